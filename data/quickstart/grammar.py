"""Phrases and clauses of the quickstart grammar, and their English and German word order.

A clause is built once, as a subject, a verb with its objects, and adverbials, and is then spoken
twice: `english` and `german` turn it into a list of words. Nothing here is random.
"""

from dataclasses import dataclass, field

from verbs import HABEN, MODALS, SEIN

# Endings of der-words (dieser, jeder, welcher) by case, for m, f, n, plural.
DER_ENDINGS = {
    "nom": {"m": "er", "f": "e", "n": "es", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "es", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
# Endings of ein-words (ein, kein, mein, ...).
EIN_ENDINGS = {
    "nom": {"m": "", "f": "e", "n": "", "p": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "p": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "p": "en"},
}
DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
CONTRACTIONS = {
    ("in", "dem"): "im", ("in", "das"): "ins", ("an", "dem"): "am",
    ("zu", "dem"): "zum", ("zu", "der"): "zur", ("von", "dem"): "vom",
}
POSSESSIVES = {
    "my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr",
}
DER_WORDS = {"this": "dies", "these": "dies", "every": "jed", "which": "welch"}
MANY = {"many": "viel", "some": "einig"}


def adjective_ending(kind, case, gender):
    """Ending after a der-word ("weak"), an ein-word ("mixed") or no article ("strong")."""
    if kind == "strong":
        return DER_ENDINGS[case][gender]
    if gender == "p" or case == "dat" or (case == "acc" and gender == "m"):
        return "en"
    if kind == "mixed":
        return {"m": "er", "f": "e", "n": "es"}[gender]
    return "e"


def a_or_an(word):
    """The English indefinite article before `word`."""
    return "an" if word[0] in "aeiou" and not word.startswith("uni") else "a"


class Pronoun:
    """A personal pronoun; `person` indexes German verb forms (ich, du, er, plural)."""

    TABLE = {
        "I": ("me", "ich", "mich", "mir", 0, False, "my"),
        "you": ("you", "du", "dich", "dir", 1, False, "your"),
        "he": ("him", "er", "ihn", "ihm", 2, False, "his"),
        "she": ("her", "sie", "sie", "ihr", 2, False, "her"),
        "we": ("us", "wir", "uns", "uns", 3, True, "our"),
        "they": ("them", "sie", "sie", "ihnen", 3, True, "their"),
    }
    definite, is_pronoun, classes, negatable = True, True, "P", False
    determiner, indefinite_number, trailer = "the", False, None

    def __init__(self, word):
        self.name = word
        self.object, nom, acc, dat, self.person, self.plural, self.possessive = self.TABLE[word]
        self.cases = {"nom": nom, "acc": acc, "dat": dat}

    def english(self, subject=False):
        return [self.name if subject else self.object]

    def german(self, case, negated=False):
        return [self.cases[case]]


class Fixed:
    """A name, a coordination or a question word: the same words in every case unless given."""

    is_pronoun, negatable = False, False
    determiner, indefinite_number, trailer = "the", False, None

    def __init__(self, english, german, plural=False, name="", possessive="", definite=True):
        self.words, self.plural, self.name = english, plural, name or " ".join(english)
        self.cases = german if isinstance(german, dict) else {c: german for c in DEFINITE}
        self.person, self.possessive = 3 if plural else 2, possessive
        self.definite, self.classes = definite, "P"

    def english(self, subject=False):
        return self.words

    def german(self, case, negated=False):
        return self.cases[case]


class NounPhrase:
    """Determiner, adjectives and noun.

    `determiner` is "the", "a", "" (bare), a possessive, a der-word of DER_WORDS, "many",
    "some", or a (English, German) pair for a number.
    """

    is_pronoun = False

    def __init__(self, noun, determiner, plural=False, adjectives=(), trailer=None):
        self.noun, self.determiner, self.plural = noun, determiner, plural
        self.adjectives, self.trailer, self.name = adjectives, trailer, noun.en
        self.person, self.classes = 3 if plural else 2, noun.classes
        self.indefinite_number = isinstance(determiner, tuple) or determiner in MANY
        self.definite = not (determiner in ("a", "") or self.indefinite_number)
        self.negatable = determiner in ("a", "")
        if plural:
            self.possessive = "their"
        else:
            self.possessive = {"m": "his", "f": "her"}.get(noun.sex, "")

    def english(self, subject=False):
        noun = self.noun.en_plural if self.plural else self.noun.en
        words = [adjective.en for adjective in self.adjectives] + [noun]
        if isinstance(self.determiner, tuple):
            words.insert(0, self.determiner[0])
        elif self.determiner == "a":
            words.insert(0, a_or_an(words[0]))
        elif self.determiner:
            words.insert(0, self.determiner)
        if self.trailer:
            words += self.trailer.english()
        return words

    def german(self, case, negated=False):
        gender = "p" if self.plural else self.noun.gender
        words, kind = self._german_determiner(case, gender, negated)
        for adjective in self.adjectives:
            words.append(adjective.stem + adjective_ending(kind, case, gender))
        words.append(self._german_noun(case))
        if self.trailer:
            words += self.trailer.german()
        return words

    def _german_determiner(self, case, gender, negated):
        if isinstance(self.determiner, tuple):
            return [self.determiner[1]], "strong"
        if negated and self.negatable:
            return ["kein" + EIN_ENDINGS[case][gender]], "mixed"
        if self.determiner == "the":
            return [DEFINITE[case][gender]], "weak"
        if self.determiner == "a":
            return ["ein" + EIN_ENDINGS[case][gender]], "mixed"
        if self.determiner in POSSESSIVES:
            return [POSSESSIVES[self.determiner] + EIN_ENDINGS[case][gender]], "mixed"
        if self.determiner in DER_WORDS:
            return [DER_WORDS[self.determiner] + DER_ENDINGS[case][gender]], "weak"
        if self.determiner in MANY:
            return [MANY[self.determiner] + DER_ENDINGS[case][gender]], "strong"
        return [], "strong"

    def _german_noun(self, case):
        if self.plural:
            plural = self.noun.de_plural
            return plural + "n" if case == "dat" and plural[-1] not in "ns" else plural
        return self.noun.de_plural if self.noun.weak and case != "nom" else self.noun.de


class Prepositional:
    """A preposition and its phrase; German articles contract (in dem -> im)."""

    def __init__(self, english, german, case, phrase):
        self.words, self.preposition, self.case, self.phrase = english, german, case, phrase

    def english(self):
        return self.words.split() + self.phrase.english()

    def german(self):
        words = self.phrase.german(self.case)
        contracted = CONTRACTIONS.get((self.preposition, words[0]))
        return [contracted] + words[1:] if contracted else [self.preposition] + words


class Adverb:
    """A fixed adverbial: English and German words."""

    def __init__(self, english, german):
        self.words, self.translation = english.split(), german.split()

    def english(self):
        return self.words

    def german(self):
        return self.translation


@dataclass
class Clause:
    """One clause without its word order.

    `objects` are (case, phrase) in English order; `adverbials` follow them (manner, company,
    place); `predicate` goes with the verb "be" (verb None).
    """

    subject: object
    verb: object = None
    tense: str = "pres"
    negated: bool = False
    objects: list = field(default_factory=list)
    prepositional: object = None
    adverbials: list = field(default_factory=list)
    predicate: object = None
    time: object = None
    frequency: object = None
    fronted_time: bool = False

    def kein(self):
        """Whether the negation sits in an object as kein."""
        return self.negated and any(phrase.negatable for _, phrase in self.objects)


def english_verb_group(clause, question):
    """(words before the subject in a question, words after it) without the objects."""
    third = clause.subject.person == 2
    negation = ["not"] if clause.negated else []
    frequency = clause.frequency.english() if clause.frequency else []
    if clause.verb is None:
        return _english_be(clause, third, negation + frequency)
    base, third_form, past, participle, ing = clause.verb.en
    tense = clause.tense
    if tense in MODALS:
        modal, *rest = MODALS[tense][0].split()
        if tense in ("want", "wanted", "had_to"):
            past_modal = tense != "want"
            if question or negation:
                do = "did" if past_modal else "does" if third else "do"
                plain = {"wanted": "want", "had_to": "have"}.get(tense, modal)
                return [do], negation + frequency + [plain] + rest + [base]
            finite = modal + "s" if tense == "want" and third else modal
            return [], frequency + [finite] + rest + [base]
        if tense == "can" and negation and not question:
            return ["cannot"], frequency + rest + [base]
        return [modal], negation + frequency + rest + [base]
    if tense == "prog":
        return [_be(clause.subject, third)], negation + frequency + [ing]
    if tense == "perf":
        return ["has" if third else "have"], negation + frequency + [participle]
    if question or negation:
        do = "did" if tense == "past" else "does" if third else "do"
        return [do], negation + frequency + [base]
    finite = past if tense == "past" else third_form if third else base
    return [], frequency + [finite]


def _be(subject, third, past=False):
    if past:
        return "was" if third or subject.person == 0 else "were"
    return "is" if third else "am" if subject.person == 0 else "are"


def _english_be(clause, third, rest):
    if clause.tense in MODALS:
        return [MODALS[clause.tense][0]], rest + ["be"]
    return [_be(clause.subject, third, clause.tense == "past")], rest


def english(clause, question=False, fronted=None):
    """English words of a declarative clause, or of a question (`fronted`: the wh-phrase)."""
    auxiliary, group = english_verb_group(clause, question)
    subject = clause.subject.english(subject=True)
    time = clause.time.english() if clause.time else []
    tail = _english_objects(clause) + ([] if clause.fronted_time else time)
    if question:
        return (fronted or []) + auxiliary + subject + group + tail
    return (time if clause.fronted_time else []) + subject + auxiliary + group + tail


def english_infinitive(clause):
    """Words of "to ..." without a subject."""
    return ["to", clause.verb.en[0]] + _english_objects(clause)


def _english_objects(clause):
    words = []
    verb = clause.verb
    phrases = [phrase for _, phrase in clause.objects]
    if verb is not None and verb.particle:
        pronoun = bool(phrases) and phrases[0].is_pronoun
        words += phrases[0].english() + [verb.particle] if pronoun else [verb.particle]
        phrases = phrases[1:] if pronoun else phrases
    if verb is not None and verb.preposition and phrases:
        words.append(verb.preposition)
    for phrase in phrases:
        words += phrase.english()
    if clause.prepositional:
        words += clause.prepositional.english()
    if clause.predicate:
        words += clause.predicate.english()
    for adverbial in clause.adverbials:
        words += adverbial.english()
    return words


def german_verb_group(clause):
    """(finite verb, separable prefix or "", words of the right bracket)."""
    person, tense = clause.subject.person, clause.tense
    if clause.verb is None:
        if tense in MODALS:
            return MODALS[tense][1][person], "", ["sein"]
        return SEIN["past" if tense == "past" else "pres"][person], "", []
    forms, prefix = clause.verb.de, clause.verb.prefix
    if tense in MODALS:
        return MODALS[tense][1][person], "", [prefix + forms["infinitive"]]
    if tense == "past" and forms["infinitive"] == "haben":
        return HABEN["past"][person], "", []
    if tense in ("past", "perf"):
        auxiliary = SEIN if clause.verb.aux == "sein" else HABEN
        return auxiliary["pres"][person], "", [forms["participle"]]
    return forms["present"][person], prefix, []


def german_middle(clause, subject=True, skip_time=False):
    """The words between the finite verb and the right bracket.

    Order: subject, pronoun objects, time, dative, adverb of frequency, accusative, nicht,
    manner and place, prepositional object, predicate.
    """
    words = clause.subject.german("nom") if subject else []
    kein = clause.kein()
    pronouns = [(case, phrase) for case, phrase in clause.objects if phrase.is_pronoun]
    others = [(case, phrase) for case, phrase in clause.objects if not phrase.is_pronoun]
    for case, phrase in pronouns:
        words += phrase.german(case)
    if clause.time and not skip_time:
        words += clause.time.german()
    for case, phrase in others:
        if case == "dat":
            words += phrase.german(case, negated=kein)
    if clause.frequency:
        words += clause.frequency.german()
    for case, phrase in others:
        if case == "acc":
            words += phrase.german(case, negated=kein)
    if clause.negated and not kein:
        words.append("nicht")
    for adverbial in clause.adverbials:
        words += adverbial.german()
    if clause.prepositional:
        words += clause.prepositional.german()
    if clause.predicate:
        words += clause.predicate.german()
    return words


def german_main(clause, inverted=False, fronted=None):
    """Verb-second words; `inverted`: the first place is taken by what stands before."""
    finite, prefix, bracket = german_verb_group(clause)
    tail = ([prefix] if prefix else []) + bracket
    if clause.fronted_time and clause.time:
        return clause.time.german() + [finite] + german_middle(clause, skip_time=True) + tail
    if inverted or fronted:
        return (fronted or []) + [finite] + german_middle(clause) + tail
    return clause.subject.german("nom") + [finite] + german_middle(clause, subject=False) + tail


def german_subordinate(clause):
    """Verb-final words, without the conjunction."""
    finite, prefix, bracket = german_verb_group(clause)
    return german_middle(clause) + bracket + [prefix + finite]


def german_infinitive(clause):
    """Words of an infinitive with zu (aufzumachen, zu lesen)."""
    forms, prefix = clause.verb.de, clause.verb.prefix
    infinitive = forms["infinitive"]
    last = [prefix + "zu" + infinitive] if prefix else ["zu", infinitive]
    return german_middle(clause, subject=False) + last
