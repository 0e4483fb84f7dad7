"""Sentence templates of the quickstart grammar: clauses joined into sentences.

Each template takes a `Sampler` and returns (English words, German words, final mark). A comma is
a word of its own until `join` attaches it.
"""

from grammar import (
    Adverb, Clause, Fixed, NounPhrase, Prepositional, Pronoun, english, english_infinitive,
    german_infinitive, german_main, german_subordinate,
)
from sentences import (
    PAST_LIKE, POSSESSIVE_WORDS, PRESENT_LIKE, TENSES, TIME_OF_TENSE, UNWILLING, can_negate,
)
import lexicon

# What one does in order to do something else.
PURPOSEFUL = "go run drive travel fly come stay get work".split()
# Verbs of yes/no questions in the present.
ASKED = "see need have love buy read eat drink help sleep work live go know".split()
WHO = {"nom": ["wer"], "acc": ["wen"], "dat": ["wem"]}


def join(words, mark):
    """Words as a sentence: commas attached, first letter capitalised, final mark added."""
    text = " ".join(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def statement(s):
    """The boy often reads a book. Yesterday the boy read a book."""
    clause = s.clause()
    return english(clause), german_main(clause), "."


def yes_no_question(s):
    """Does the boy read the book?"""
    subject = Pronoun("you") if s.chance(0.25) else None
    verb = None
    tense = s.weighted(TENSES)
    if tense in ("pres", "prog"):
        # The German verb stands first, with a capital letter: few verbs, so that each is frequent.
        verb = s.pick([v for v in s.verbs if v.en[0] in ASKED and not v.particle])
    clause = s.clause(tense, subject, verb, frontable=False)
    had = clause.tense == "past" and clause.verb.en[0] == "have"
    if had or clause.tense == "pres" and clause.verb.en[0] not in ASKED:
        return statement(s)
    return english(clause, question=True), german_main(clause, inverted=True), "?"


def who_question(s):
    """Who reads the book?"""
    clause = s.clause(subject=Fixed(["who"], WHO), verb=s.common(s.subjectless), frontable=False)
    clause.negated = False
    return english(clause), german_main(clause), "?"


def object_question(s):
    """What does the boy read? Whom do you see? Which book, how many books ...?"""
    verbs = [v for v in s.verbs if v.frame in ("a", "d") and not v.particle and not v.preposition]
    verb = s.common(verbs)
    clause = s.clause(verb=verb, frontable=False)
    if clause.tense == "perf":
        clause.tense, clause.frequency = "past", None
    clause.tense = s.fitting_tense(clause.verb, clause.tense, clause.subject)
    clause.negated, (case, phrase) = False, clause.objects[0]
    clause.objects = []
    if s.chance(0.4) and isinstance(phrase, NounPhrase):
        plural = phrase.plural
        if plural and s.chance(0.5):
            if case == "dat":
                return statement(s)
            asked = NounPhrase(phrase.noun, "", True, phrase.adjectives)
            words = ["how", "many"] + asked.english()
            translation = ["wie", "viele"] + asked.german(case)
        else:
            asked = NounPhrase(phrase.noun, "which", plural, phrase.adjectives)
            words, translation = asked.english(), asked.german(case)
    elif "P" in phrase.classes:
        words, translation = ["whom"], WHO[case]
    elif "A" in phrase.classes or phrase.is_pronoun:
        return statement(s)
    else:
        words, translation = ["what"], ["was"]
    return english(clause, True, words), german_main(clause, fronted=translation), "?"


def adverb_question(s):
    """Why is the child crying? When ...? Where ...?"""
    word, translation = s.pick([("why", "warum"), ("when", "wann"), ("where", "wo")])
    verb = None
    if word == "where":
        verb = s.pick([v for v in s.verbs if "l" in v.flags or v.en[0] in ("live", "stay", "sit")])
    clause = s.clause(verb=verb, plain=word == "where", frontable=False, no_place=True)
    if word == "where":
        clause.adverbials = []
    if word == "when":
        clause.time = clause.frequency = None
        clause.negated = False
        if clause.tense == "perf":
            clause.tense = s.fitting_tense(clause.verb, "past", clause.subject)
    elif clause.tense == "perf":
        clause.frequency = Adverb("already", "schon")
    return english(clause, True, [word]), german_main(clause, fronted=[translation]), "?"


def description(s):
    """The old house is not empty. The dog was bigger than the cat."""
    noun = s.common([n for n in s.nouns if not n.mass])
    if "P" in noun.classes:
        subject = s.subject("P")
    else:
        subject = s.phrase(noun, definite=True, adjective=0.1)
    letters = subject.classes[0] if subject.classes[0] == "R" else subject.classes
    fitting = [a for a in s.adjectives if any(letter in letters for letter in a.classes)]
    past = s.chance(0.4)
    clause = Clause(subject, None, "past" if past else "pres",
                    can_negate(subject) and s.chance(0.2))
    adjective = s.common(fitting)
    comparable = [a for a in fitting if a.comparative]
    if s.chance(0.4) and comparable:
        adjective = s.common(comparable)
        others = [n for n in s.nouns_of(noun.classes[0]) if n is not noun and not n.mass]
        other = s.phrase(s.common(others), definite=True, adjective=0.2)
        clause.predicate = Adverb("", "")
        clause.predicate.words = (adjective.en_comparative + " than").split() + other.english()
        clause.predicate.translation = [adjective.comparative, "als"] + other.german("nom")
    else:
        clause.predicate = Adverb(adjective.en, adjective.base)
        if s.chance(0.25) and adjective.en in lexicon.STATES:
            times = [t for t in lexicon.TIMES if ("p" if past else "n") in t[2]]
            clause.time = Adverb(*s.pick(times)[:2])
            clause.fronted_time = s.chance(0.5)
    if s.chance(0.2):
        clause.fronted_time = False
        return english(clause, question=True), german_main(clause, inverted=True), "?"
    return english(clause), german_main(clause), "."


def identity(s):
    """This is my new coat. These were old books. Her uncle is a famous painter."""
    past = s.chance(0.3)
    tense = "past" if past else "pres"
    if s.chance(0.35):
        kin = [n for n in s.nouns if "K" in n.classes and n.sex == "m"]
        subject = NounPhrase(s.common(kin), s.pick(list(POSSESSIVE_WORDS)))
        jobs = [n for n in s.nouns if "P" in n.classes and "K" not in n.classes and n.sex == "m"]
        noun = s.common(jobs)
        phrase = NounPhrase(noun, "a", False, s.adjectives_for(noun, 1.0))
        clause = Clause(subject, None, tense)
    else:
        noun = s.common([n for n in s.nouns if not n.mass])
        phrase = s.phrase(noun, adjective=0.85)
        if phrase.determiner in ("this", "these", "every", "many", "some"):
            phrase.determiner = "the"
        subject = Fixed(["these" if phrase.plural else "this"], ["das"], plural=phrase.plural)
        clause = Clause(subject, None, tense, phrase.negatable and s.chance(0.15))
        if clause.negated:
            predicate = Adverb("", "")
            predicate.words, predicate.translation = phrase.english(), phrase.german("nom", True)
            clause.predicate, clause.negated = predicate, False
            words = english(clause)
            return words[:2] + ["not"] + words[2:], german_main(clause), "."
    clause.predicate = Adverb("", "")
    clause.predicate.words, clause.predicate.translation = phrase.english(), phrase.german("nom")
    return english(clause), german_main(clause), "."


def existence(s):
    """There are many old trees in the garden."""
    if s.chance(0.5):
        noun = s.common([n for n in s.nouns_of("PA") if "K" not in n.classes])
        place = s.place()
    else:
        classes, rooms = s.pick([
            ("TGF", "kitchen,bedroom,office,house,school,store,restaurant,hotel,garage"),
            ("V", "garage,street,city,village"), ("N", "garden,park,city,forest"),
        ])
        noun, room = s.common(s.nouns_of(classes)), s.common(s.nouns_of(rooms))
        words, preposition = ("on", "auf") if "O" in room.classes else ("in", "in")
        place = Prepositional(words, preposition, "dat", s.place_phrase(room))
    phrase = s.phrase(noun, adjective=0.6)
    if phrase.definite:
        phrase = NounPhrase(noun, "a", False, phrase.adjectives)
    past = s.chance(0.35)
    be = ("were" if past else "are") if phrase.plural else ("was" if past else "is")
    words = ["there", be] + phrase.english() + place.english()
    return words, ["es", "gab" if past else "gibt"] + phrase.german("acc") + place.german(), "."


def location(s):
    """The keys are under the table."""
    if s.chance(0.5):
        subject, place = s.subject("PA"), s.place()
    else:
        subject = s.phrase(s.common(s.nouns_of("TFC")), definite=True)
        words, preposition = s.pick([("on", "auf"), ("under", "unter"), ("next to", "neben"),
                                     ("behind", "hinter")])
        noun = s.common(s.nouns_of("GW" if preposition in ("neben", "hinter") else "G"))
        place = Prepositional(words, preposition, "dat", s.place_phrase(noun))
    past = s.chance(0.4)
    negated = subject.definite and can_negate(subject) and s.chance(0.15)
    clause = Clause(subject, None, "past" if past else "pres", negated, adverbials=[place])
    if past and s.chance(0.35):
        clause.time = Adverb(*s.pick([t for t in lexicon.TIMES if "p" in t[2]])[:2])
        clause.fronted_time = s.chance(0.5)
    if s.chance(0.25):
        clause.fronted_time = False
        return english(clause, question=True), german_main(clause, inverted=True), "?"
    return english(clause), german_main(clause), "."


def measure(s):
    """The coat costs 50 euros. My sister is 12 years old."""
    number = s.pick(lexicon.DIGITS[1:])
    if s.chance(0.5):
        noun = s.common(s.nouns_of("TCVGR"))
        subject = s.phrase(noun, definite=True, adjective=0.5)
        predicate = Adverb(f"{number} euros", f"{number} Euro")
        clause = Clause(subject, s.cost, "pres", predicate=predicate)
    else:
        thing = s.phrase(s.common(s.nouns_of("ALV")), definite=True)
        subject = s.subject("P") if s.chance(0.7) else thing
        predicate = Adverb(f"{number} years old", f"{number} Jahre alt")
        clause = Clause(subject, None, "pres", predicate=predicate)
    return english(clause), german_main(clause), "."


def weather(s):
    """Yesterday it rained."""
    past = s.chance(0.6)
    clause = s.weather_clause(past)
    times = [t for t in lexicon.TIMES if ("p" if past else "g") in t[2]]
    clause.time = Adverb(*s.pick(times)[:2])
    clause.fronted_time = past and s.chance(0.5)
    return english(clause), german_main(clause), "."


def rare_verb_final(clause):
    """Whether the verb-final form is one that would be too rare to learn.

    Separable verbs are one word there (weil ich aufmache), of little use for I and you.
    """
    separable = clause.verb is not None and clause.verb.prefix
    return separable and clause.subject.person < 2 and clause.tense in ("pres", "prog")


def with_reason(s):
    """The boy sleeps because he is tired. Although it is raining, we go to the park."""
    past = s.chance(0.45)
    clause = s.clause(s.pick(PAST_LIKE if past else PRESENT_LIKE), frontable=False)
    past = clause.tense in PAST_LIKE
    conjunction, translation = s.pick([("because", "weil"), ("although", "obwohl"), ("if", "wenn")])
    if conjunction == "if" and (past or clause.tense == "prog"):
        conjunction, translation = "because", "weil"
    reason = s.reason(clause.subject, past)
    if conjunction != "because" and s.chance(0.5) or conjunction == "if":
        return front_subordinate(conjunction, translation, clause, reason)
    words = english(clause) + [conjunction] + english(reason)
    return words, german_main(clause) + [",", translation] + german_subordinate(reason), "."


def front_subordinate(conjunction, translation, clause, reason):
    """The subordinate clause first, with the nouns in it and pronouns after it."""
    first = reason
    if reason.subject.english() != ["it"]:
        first, clause = (Clause(**{**vars(reason), "subject": clause.subject}),
                         Clause(**{**vars(clause), "subject": reason.subject}))
    words = [conjunction] + english(first) + [","] + english(clause)
    german = [translation] + german_subordinate(first) + [","] + german_main(clause, inverted=True)
    return words, german, "."


def with_content(s):
    """She believes that the dog is sick. He does not know whether ..."""
    subject = s.subject("P", pronoun=0.5)
    tense = s.weighted([("pres", 6), ("past", 4)])
    if s.chance(0.75):
        verb = s.pick(s.clause_verbs)
        conjunction, translation = "that", "dass"
        negated = verb.en[0] in ("know", "believe", "think", "say") and s.chance(0.2)
    else:
        verb = s.pick([v for v in s.clause_verbs if v.en[0] == "know"] + [s.ask])
        conjunction, translation, negated = "whether", "ob", verb.en[0] == "know"
    if not can_negate(subject) and conjunction == "whether":
        return statement(s)
    main = Clause(subject, verb, tense, negated and can_negate(subject))
    if s.chance(0.3):
        other = s.subject("P")
        content = s.state_clause(other, tense == "past")
        content.negated = content.negated and can_negate(other)
    else:
        allowed = PAST_LIKE if tense == "past" else PRESENT_LIKE + ["past"]
        content = s.clause(s.pick(allowed), frontable=False)
    if rare_verb_final(content):
        return statement(s)
    words = english(main) + [conjunction] + english(content)
    return words, german_main(main) + [",", translation] + german_subordinate(content), "."


def with_time_clause(s):
    """The mother sings while the father cooks the soup. He eats before he goes to work."""
    tense = s.pick(["pres", "past"])
    first = s.clause(tense, verb=s.common(activities(s)), plain=True)
    conjunction, translation = s.pick([("while", "während"), ("before", "bevor")])
    tense = first.tense
    again = s.again(first.subject)
    if again is not None and conjunction == "before":
        second = s.clause(tense, again, s.common(activities(s)), plain=True)
    else:
        second = s.clause(tense, s.subject("P"), s.common(activities(s)), plain=True)
    if second.tense != tense or second.verb is first.verb or rare_verb_final(second):
        return statement(s)
    words = english(first) + [conjunction] + english(second)
    return words, german_main(first) + [",", translation] + german_subordinate(second), "."


def activities(s):
    return [v for v in s.subjectless if "s" not in v.flags and v.en[0] not in UNWILLING]


def coordination(s):
    """The boy opens the door, and the girl greets the guest."""
    tense = s.pick(["pres", "past"])
    first, second = (s.clause(tense, plain=s.chance(0.6), frontable=False) for _ in range(2))
    same = first.verb is second.verb or first.subject.name == second.subject.name
    if same or first.tense != second.tense:
        return statement(s)
    word, translation = s.pick([("and", ["und"]), ("but", [",", "aber"])])
    words = english(first) + [",", word] + english(second)
    return words, german_main(first) + translation + german_main(second), "."


def shared_subject(s):
    """The boy opens the door and greets the guest."""
    tense = s.pick(["pres", "past"])
    first = s.clause(tense, verb=s.common(activities(s)), plain=True)
    second = s.clause(tense, first.subject, s.common(activities(s)), plain=True)
    simple = first.tense == second.tense == tense and first.verb.aux == second.verb.aux
    if not simple or first.verb is second.verb:
        return statement(s)
    first_english, first_german = english(first), german_main(first)
    subject_english = len(first.subject.english(True))
    subject_german = len(first.subject.german("nom"))
    skip = subject_german + (1 if tense == "past" else 0)
    words = first_english + ["and"] + english(second)[subject_english:]
    return words, first_german + ["und"] + german_main(second)[skip:], "."


def with_infinitive(s):
    """He tries to open the window. She works in order to buy a car. It is easy to ..."""
    kind = s.pick(["verb", "verb", "purpose", "adjective"])
    if kind == "adjective":
        adjective = s.pick([
            ("easy", "leicht"), ("difficult", "schwierig"), ("important", "wichtig"),
            ("dangerous", "gefährlich"), ("boring", "langweilig"), ("interesting", "interessant"),
        ])
        past = s.chance(0.35)
        main = Clause(Fixed(["it"], ["es"]), None, "past" if past else "pres", s.chance(0.25),
                      predicate=Adverb(*adjective))
        subject = Fixed(["one"], ["man"])
        subject.classes = "P"
    elif kind == "verb":
        subject = s.subject("P")
        verb = s.pick(s.infinitive_verbs)
        tense = s.pick(["pres", "past"])
        main = Clause(subject, verb, tense)
        if s.chance(0.25):
            letter = TIME_OF_TENSE[tense]
            main.time = Adverb(*s.pick([t for t in lexicon.TIMES if letter in t[2]])[:2])
            main.fronted_time = True
    else:
        verb = s.pick([v for v in s.subjectless if v.en[0] in PURPOSEFUL])
        main = s.clause(s.pick(["pres", "past", "want", "fut", "must"]), verb=verb, plain=True)
        subject = main.subject
        if "P" not in subject.classes:
            return statement(s)
    action = s.clause("pres", subject, s.common(activities(s)), plain=True)
    if action.verb is main.verb:
        return statement(s)
    um = ["um"] if kind == "purpose" else []
    words = english(main) + (["in", "order"] if um else []) + english_infinitive(action)
    return words, german_main(main) + [","] + um + german_infinitive(action), "."


TEMPLATES = [
    (statement, 34), (yes_no_question, 8), (who_question, 3), (object_question, 5),
    (adverb_question, 4), (description, 7), (identity, 5), (existence, 3), (location, 4),
    (measure, 2), (weather, 1), (with_reason, 9), (with_content, 7), (with_time_clause, 4),
    (coordination, 5), (shared_subject, 4), (with_infinitive, 6),
]


def sentence(s):
    """One (English, German) pair of 4 to 14 English words, drawn from all templates."""
    while True:
        words, translation, mark = s.weighted(TEMPLATES)(s)
        if 4 <= sum(word != "," for word in words) <= 14:
            return join(words, mark), join(translation, mark)
