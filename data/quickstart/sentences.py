"""Random sentences of the quickstart grammar: what is said, with light selection restrictions."""

import lexicon
import verbs as verb_tables
from grammar import Adverb, Clause, Fixed, NounPhrase, Prepositional, Pronoun
from lexicon import Noun

TENSES = [
    ("pres", 46), ("past", 22), ("prog", 7), ("perf", 5), ("fut", 7), ("can", 4), ("must", 3),
    ("should", 2), ("may", 2), ("would", 2), ("want", 4), ("wanted", 2), ("had_to", 2),
]
# Which letter of lexicon.TIMES a tense takes.
TIME_OF_TENSE = {"pres": "n", "prog": "g", "past": "p", "wanted": "p", "had_to": "p", "perf": ""}
PRESENT_LIKE = ["pres", "pres", "pres", "fut", "can", "must", "want", "should"]
PAST_LIKE = ["past", "past", "past", "wanted", "had_to"]
TIME_NOUN = Noun("time", "", "f", "Zeit", "", False, True, "", "")
MONEY_NOUN = Noun("money", "", "n", "Geld", "", False, True, "", "")
VEHICLES = ["bus", "train", "car", "taxi", "ship", "plane", "bicycle", "boat"]
SITTING = ["chair", "sofa", "bed", "table", "stone"]


class Sampler:
    """Draws sentences from a random generator; every draw uses only `rng.random()`."""

    def __init__(self, rng):
        self.rng = rng
        self.nouns = lexicon.parse_nouns()
        self.by_name = {noun.en: noun for noun in self.nouns}
        self.adjectives = lexicon.parse_adjectives()
        self.states = [a for a in self.adjectives if a.en in lexicon.STATES]
        self.verbs = verb_tables.parse_verbs(verb_tables.VERBS)
        # The table is grouped by construction; another order decides which verbs are common.
        self.verbs = [self.verbs[index * 37 % len(self.verbs)] for index in range(len(self.verbs))]
        self.animal_eat = verb_tables.parse_verb(verb_tables.ANIMAL_EAT)
        drink = next(v for v in self.verbs if v.en[0] == "drink")
        self.animal_drink = drink._replace(objects="water,milk")
        self.clause_verbs = verb_tables.parse_verbs(verb_tables.CLAUSE_VERBS)
        self.infinitive_verbs = verb_tables.parse_verbs(verb_tables.INFINITIVE_VERBS)
        self.weather_verbs = verb_tables.parse_verbs(verb_tables.WEATHER_VERBS)
        self.have = next(v for v in self.verbs if v.en[0] == "have")
        self.ask = next(v for v in self.verbs if v.en[0] == "ask")
        self.cost = verb_tables.parse_verb(verb_tables.COST)
        self.subjectless = [v for v in self.verbs if "P" in v.subjects]

    # Draws.

    def chance(self, probability):
        return self.rng.random() < probability

    def pick(self, items):
        return items[int(self.rng.random() * len(items))]

    def common(self, items):
        """One of `items`, the first ones more often: like words in real text."""
        draw = self.rng.random()
        return items[int(len(items) * (draw + SKEW * draw**4) / (1 + SKEW))]

    def weighted(self, pairs):
        point = self.rng.random() * sum(weight for _, weight in pairs)
        for item, weight in pairs:
            point -= weight
            if point < 0:
                return item
        return pairs[-1][0]

    # Noun phrases.

    def nouns_of(self, classes):
        """Nouns of the given classes (capitals) or names, comma-separated."""
        found = []
        for part in classes.split(","):
            if part.isupper():
                found += [n for n in self.nouns if any(letter in n.classes for letter in part)]
            elif part:
                found.append(self.by_name[part])
        return found

    def adjectives_for(self, noun, probability):
        if not self.chance(probability):
            return ()
        letters = noun.classes[0] if noun.classes[0] == "R" else noun.classes
        fitting = [a for a in self.adjectives if any(letter in letters for letter in a.classes)]
        return (self.common(fitting),) if fitting else ()

    def determiner(self, noun, owner, definite):
        """(determiner, plural) for `noun`; `owner` is the possessive that refers to the subject."""
        if noun.mass:
            return self.weighted([("", 0 if definite else 5), ("the", 4), ("this", 1)]), False
        possible = not any(c in "HO" for c in noun.classes) and "L" not in noun.classes
        own = 60 if "K" in noun.classes else 15 if possible and noun.en not in NOT_OWNED else 0
        kind = self.weighted([
            ("the", 12 if "K" in noun.classes else 38), ("possessive", own), ("this", 9),
            ("every", 1),
        ] + ([] if definite else [
            ("a", 5 if "K" in noun.classes else 24), ("number", 9), ("many", 6), ("", 7),
        ]))
        plural = self.chance(0.9 if noun.en == "shoe" else 0.3)
        if kind == "possessive":
            if owner and self.chance(0.7):
                return owner, plural
            return self.pick(list(POSSESSIVE_WORDS)), plural
        if kind == "number":
            words = list(lexicon.NUMBER_WORDS.items()) + [(d, d) for d in lexicon.DIGITS]
            return self.pick(words), True
        if kind == "many":
            return self.pick(["many", "some"]), True
        if kind == "":
            return "", True
        if kind == "this":
            return ("these" if plural else "this"), plural
        return kind, plural and kind == "the"

    def phrase(self, noun, owner="", definite=False, adjective=0.36, plural=None):
        for _ in range(50):
            determiner, is_plural = self.determiner(noun, owner, definite)
            if plural is None or plural == is_plural:
                break
        else:
            determiner, is_plural = "the", plural
        return NounPhrase(noun, determiner, is_plural, self.adjectives_for(noun, adjective))

    def name(self):
        word, sex = self.pick(lexicon.NAMES)
        return Fixed([word], [word], possessive={"m": "his", "f": "her"}[sex])

    def person(self, avoid=None, owner="", definite=False, pronoun=0.2):
        """A person as an object or in a prepositional phrase, not the same as `avoid`."""
        draw = self.rng.random()
        if draw < pronoun:
            first = {"I": "we", "we": "I"}.get(avoid.name, "") if avoid else ""
            words = [w for w in Pronoun.TABLE if avoid is None or w not in (avoid.name, first)]
            return Pronoun(self.pick(words))
        if draw < pronoun + 0.1:
            return self.name()
        return self.phrase(self.common(self.nouns_of("P")), owner, definite)

    def subject(self, classes, pronoun=0.45):
        """A subject of the given noun classes."""
        if "P" in classes and not classes.islower():
            draw = self.rng.random()
            if draw < pronoun:
                return Pronoun(self.weighted(
                    [("I", 6), ("you", 6), ("he", 3), ("she", 3), ("we", 3), ("they", 2)]
                ))
            if draw < pronoun + 0.11:
                return self.name()
            if draw < pronoun + 0.14:
                return self.couple()
            if "A" not in classes or self.chance(0.5):
                return self.subject_phrase("P")
            classes = classes.replace("P", "")
        return self.subject_phrase(classes)

    def subject_phrase(self, classes):
        """A noun phrase with an article: a bare one would start the sentence with any word."""
        phrase = self.phrase(self.common(self.nouns_of(classes)))
        if phrase.determiner == "" or not any(letter in phrase.classes for letter in "PA"):
            phrase.determiner = phrase.determiner if phrase.definite else "the"
        return phrase

    def couple(self):
        """Two names, or two people with the article, joined by "and"."""
        if self.chance(0.5):
            first, second = self.name(), self.name()
        else:
            people = [n for n in self.nouns_of("P") if "K" not in n.classes]
            first, second = (NounPhrase(self.common(people), "the") for _ in range(2))
        if first.name == second.name:
            return self.couple()
        return Fixed(
            first.english() + ["and"] + second.english(),
            first.german("nom") + ["und"] + second.german("nom"), plural=True, possessive="their",
        )

    def again(self, subject):
        """A pronoun that refers to `subject`; None where English would say "it"."""
        if subject.is_pronoun:
            return subject
        if subject.plural:
            return Pronoun("they")
        pronoun = {"his": "he", "her": "she"}.get(subject.possessive)
        return Pronoun(pronoun) if pronoun else None

    # Places and other adverbials.

    def place(self, avoid=""):
        """Where something happens: in, at, on, in front of, behind or next to a place."""
        if self.chance(0.06):
            english_name, german_name = self.pick(lexicon.CITIES)
            return Prepositional("in", "in", "dat", Fixed([english_name], [german_name]))
        words, preposition, letter = self.weighted([
            (("in", "in", "L"), 12), (("at", "an", "H"), 4), (("on", "auf", "O"), 4),
            (("in front of", "vor", "U"), 2), (("behind", "hinter", "U"), 2),
            (("next to", "neben", "U"), 2),
        ])
        noun = self.common([n for n in self.nouns_of(letter) if n.en != avoid])
        return Prepositional(words, preposition, "dat", self.place_phrase(noun))

    def place_phrase(self, noun):
        draw = self.rng.random()
        plural = draw > 0.88
        determiner = "the" if draw < 0.68 or plural else self.pick(["a", "this"])
        if plural and self.chance(0.3):
            determiner = "these"
        adjective = 0.7 if determiner == "a" else 0.3
        return NounPhrase(noun, determiner, plural, self.adjectives_for(noun, adjective))

    def on_furniture(self, nouns):
        words, preposition = self.pick([("on", "auf"), ("under", "unter")])
        noun = self.by_name[self.pick(nouns)]
        return Prepositional(words, preposition, "dat", self.place_phrase(noun))

    def direction(self, frame, rides):
        """The goal or path of a verb of motion."""
        if frame == "city" or (frame == "from" and self.chance(0.4)):
            english_name, german_name = self.pick(lexicon.CITIES)
            words, preposition = ("to", "nach") if frame == "city" else ("from", "aus")
            return Prepositional(words, preposition, "dat", Fixed([english_name], [german_name]))
        words, preposition, case, classes = self.pick({
            "dir": [("to", "zu", "dat", "LH"), ("to", "zu", "dat", "LH"),
                    ("into", "in", "acc", "L"),
                    ("through", "durch", "acc", "forest,park,city,village,street"),
                    ("across", "über", "acc", "bridge,street")],
            "from": [("from", "aus", "dat", "L")],
            "onto": [("onto", "auf", "acc", "tree,mountain,chair,table,bed,bridge")],
            "into": [("into", "in", "acc", "lake,river,car,bed,boat,garden,box,bus,taxi")],
        }[frame])
        if rides and classes == "LH":
            classes = RIDE_TO
        noun = self.common(self.nouns_of(classes))
        return Prepositional(words, preposition, case, self.place_phrase(noun))

    def adverbials(self, verb, subject, has_indefinite, no_place=False):
        """At most one adverbial (two where the verb needs a place)."""
        found = []
        avoid = subject.name
        if verb.en[0] == "sit":
            return [self.on_furniture(SITTING) if self.chance(0.5) else self.place()]
        if verb.en[0] == "swim" and self.chance(0.6):
            noun = self.by_name[self.pick(["lake", "river"])]
            return [Prepositional("in", "in", "dat", self.place_phrase(noun))]
        if verb.en[0] == "live":
            noun = self.common(self.nouns_of("house,castle,city,village,hotel,street,farm"))
            words, preposition = ("on", "auf") if "O" in noun.classes else ("in", "in")
            return [Prepositional(words, preposition, "dat", self.place_phrase(noun))]
        if "p" in verb.flags and not no_place:
            return [self.place()]
        person = "P" in subject.classes
        flag = self.pick(list(verb.flags.replace("s", "").replace("p", "")) + ["", "", ""])
        if flag == "l" and not no_place:
            found.append(self.place(avoid))
        elif flag == "c" and person:
            friend = self.person(subject, subject.possessive)
            found.append(Prepositional("with", "mit", "dat", friend))
        elif flag == "f" and person:
            friend = self.person(subject, subject.possessive)
            found.append(Prepositional("for", "für", "acc", friend))
        elif flag == "t" and person:
            vehicle = self.by_name[self.pick(VEHICLES)]
            found.append(Prepositional(
                "by", "mit", "dat", Fixed([vehicle.en], NounPhrase(vehicle, "the").german("dat"))
            ))
        elif flag == "i":
            knife = NounPhrase(self.by_name["knife"], self.pick(["a", "the", "this"]), False,
                               self.adjectives_for(self.by_name["knife"], 0.5))
            found.append(Prepositional("with", "mit", "dat", knife))
        elif flag in lexicon.MANNER and flag and not has_indefinite:
            found.append(Adverb(*self.pick(lexicon.MANNER[flag])))
        return found

    # Clauses.

    def objects(self, verb, subject, definite=False):
        """(list of (case, phrase), prepositional object) of `verb`."""
        owner, frame = subject.possessive, verb.frame
        if frame == "-":
            return [], None
        if frame in ("dir", "city", "onto", "into", "from"):
            if frame in ("dir", "from") and self.chance(0.1):
                return [], None
            return [], self.direction(frame, "t" in verb.flags)
        if frame == "da":
            receiver = self.person(subject, owner, definite=True)
            thing = self.thing(verb, subject, definite)
            if receiver.name == "she" and thing.determiner == "":
                thing.determiner = "the"  # "shows her pictures" would be ambiguous
            return [("dat", receiver), ("acc", thing)], None
        phrase = self.thing(verb, subject, definite)
        if frame in ("a", "d"):
            return [("acc" if frame == "a" else "dat", phrase)], None
        preposition, case = frame.split("+")
        case = {"a": "acc", "d": "dat"}[case]
        return [], Prepositional(verb.preposition, preposition, case, phrase)

    def thing(self, verb, subject, definite):
        nouns = [n for n in self.nouns_of(verb.objects) if n.en != subject.name]
        letters = [part for part in verb.objects.split(",") if part.isupper()]
        if letters and letters[0] == "P" and "P" in subject.classes or verb.objects in ("P", "PK"):
            return self.person(subject, subject.possessive, definite, pronoun=0.28)
        noun = self.common(nouns)
        if "P" in noun.classes and verb.en[0] != "have":
            return self.person(subject, subject.possessive, definite, pronoun=0.28)
        plural = True if verb.en[0] == "collect" and not noun.mass else None
        phrase = self.phrase(noun, subject.possessive, definite, plural=plural)
        if noun.mass and not phrase.determiner and self.chance(0.12) and verb.en[0] in MIXED:
            other = self.pick([n for n in self.nouns if n.mass and n is not noun])
            mixed = NounPhrase(other, "", False, self.adjectives_for(other, 0.8))
            phrase.trailer = Prepositional("with", "mit", "dat", mixed)
        return phrase

    def clause(self, tense=None, subject=None, verb=None, plain=False, frontable=True,
               no_place=False):
        """A clause; `plain` leaves out adverbials, negation and time."""
        if verb is None:
            person = subject is not None and "P" in subject.classes
            animal = subject is not None and not person
            verb = self.common([
                v for v in self.verbs
                if not (person and "P" not in v.subjects or animal and "A" not in v.subjects)
            ])
        if subject is None:
            subject = self.subject(verb.subjects)
        if "A" in subject.classes and verb.en[0] in ("eat", "drink"):
            verb = self.animal_eat if verb.en[0] == "eat" else self.animal_drink
        tense = self.fitting_tense(verb, tense or self.weighted(TENSES), subject)
        clause = Clause(subject, verb, tense)
        clause.objects, clause.prepositional = self.objects(verb, subject)
        possible = not plain and can_negate(subject) and tense not in NOT_NEGATED
        if possible and not any(
            phrase.indefinite_number or phrase.determiner == "every" or phrase.trailer
            for _, phrase in clause.objects
        ):
            clause.negated = self.chance(0.18)
        indefinite = any(not phrase.definite for _, phrase in clause.objects)
        if not plain or "p" in verb.flags:
            clause.adverbials = self.adverbials(verb, subject, indefinite, no_place)
        if not plain:
            self.add_time(clause, frontable)
        return clause

    def fitting_tense(self, verb, tense, subject):
        if tense == "prog" and "s" in verb.flags:
            return "pres"
        if tense == "perf" and verb.en[0] in ("have", "belong", "cost"):
            return "past"
        if tense in MODAL_TENSES and not ("P" in subject.classes or tense in ("can", "fut")):
            return "pres"
        if tense in MODAL_TENSES and verb.en[0] in UNWILLING:
            return "pres"
        if tense == "past" and verb.en[0] == verb.en[2] and subject.person != 2:
            return "pres"  # "they read": the English form would be ambiguous
        return tense

    def add_time(self, clause, frontable):
        letter = TIME_OF_TENSE.get(clause.tense, "f")
        if clause.verb.en[0] in LASTING and clause.tense != "perf":
            return
        if clause.tense == "perf":
            if clause.negated:
                clause.negated = False
            clause.frequency = Adverb(*self.pick(lexicon.PERFECT))
            return
        if clause.tense in ("pres", "past") and not clause.negated and self.chance(0.16):
            clause.frequency = Adverb(*self.pick(lexicon.FREQUENCY))
            return
        if letter and self.chance(0.36 if frontable else 0.15):
            times = [t for t in lexicon.TIMES if letter in t[2]]
            clause.time = Adverb(*self.pick(times)[:2])
            clause.fronted_time = frontable and letter != "g" and self.chance(0.4)

    def state_clause(self, subject, past):
        """ "he is tired", with a subject that was mentioned before."""
        state = self.pick(self.states)
        negated = self.chance(0.15)
        return Clause(subject, None, "past" if past else "pres", negated,
                      predicate=Adverb(state.en, state.base))

    def lack_clause(self, subject, past):
        noun = self.pick([TIME_NOUN, MONEY_NOUN])
        return Clause(subject, self.have, "past" if past else "pres", self.chance(0.75),
                      objects=[("acc", NounPhrase(noun, ""))])

    def weather_clause(self, past):
        subject = Fixed(["it"], ["es"])
        if self.chance(0.6):
            return Clause(subject, self.pick(self.weather_verbs), "past" if past else "prog")
        word = self.pick([("cold", "kalt"), ("warm", "warm"), ("hot", "heiß"), ("dark", "dunkel")])
        return Clause(subject, None, "past" if past else "pres", predicate=Adverb(*word))

    def reason(self, subject, past):
        """A clause that may follow because, although or if."""
        kind = self.weighted([("state", 4), ("lack", 1), ("weather", 2), ("want", 4)])
        again = self.again(subject)
        alive = any(letter in "PA" for letter in subject.classes)
        if kind == "weather" or again is None or not alive:
            return self.weather_clause(past)
        if kind == "lack" and "P" in subject.classes:
            return self.lack_clause(again, past)
        if kind == "want" and "P" in subject.classes:
            tense = self.pick(["wanted", "had_to"] if past else ["want", "must", "would"])
            return self.clause(tense, again, self.common(self.willing()), plain=True)
        return self.state_clause(again, past)

    def willing(self):
        return [v for v in self.subjectless if v.en[0] not in UNWILLING]


# Where one may drive to.
RIDE_TO = ("city,village,hotel,school,hospital,station,airport,beach,lake,river,museum,restaurant,"
           "supermarket,park,house,castle,zoo,church,theater,library")
# At 0 all entries of a table are equally common; the larger, the more the first ones prevail.
SKEW = 4
NOT_OWNED = ("man", "woman", "king", "queen", "thief")
POSSESSIVE_WORDS = ("my", "your", "his", "her", "our", "their")
MIXED = ("buy", "eat", "drink", "order", "bring", "offer", "need", "taste")
NOT_NEGATED = ("must", "had_to", "perf", "should", "would")
MODAL_TENSES = ("fut", "can", "must", "should", "may", "would", "want", "wanted", "had_to")
UNWILLING = ("belong", "cost", "disappear", "fall", "bark", "forget", "miss",
             "lose", "leave", "hate", "dream", "steal", "break", "love", "need")
LASTING = ("love", "hate", "belong", "need", "know")  # not often or every day


def can_negate(subject):
    """Whether "not" after this subject has one clear meaning."""
    return subject.determiner not in ("a", "every", "many", "some", "which")
