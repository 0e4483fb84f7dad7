"""Nouns, adjectives, names and fixed expressions of the quickstart grammar.

The English side of every entry is unique, so each English word has one German translation.
Table columns are explained above each table; `parse_*` turns a table into records.
"""

from collections import namedtuple

# en/en_plural: English; gender: m, f or n; de/de_plural: German; weak: takes the plural form in
# accusative and dative singular (der Junge, den Jungen); mass: has no plural; classes: semantic
# classes that verbs select; sex: m, f or "" (which pronoun may refer to it).
Noun = namedtuple("Noun", "en en_plural gender de de_plural weak mass classes sex")

# english[/plural]  gender[w = weak]  German  plural (- = same, 0 = mass noun)  classes
# Classes: P person, K kin or companion (takes a possessive), A animal, F food one can count,
# E food as a mass, D drink, R reading matter, C clothes, T portable thing, G furniture,
# V vehicle, L place one is "in", H place one is "at" (an), O place one is "on" (auf),
# U something one can stand in front of, behind or next to, N plants, Z devices,
# Y high things, J containers, S sweet food.
NOUNS = """
man/men m Mann Männer P
woman/women f Frau Frauen P
boy mw Junge Jungen P
girl n Mädchen - P
child/children n Kind Kinder P
brother m Bruder Brüder PK
sister f Schwester Schwestern PK
mother f Mutter Mütter PK
father m Vater Väter PK
son m Sohn Söhne PK
daughter f Tochter Töchter PK
uncle m Onkel - PK
aunt f Tante Tanten PK
grandmother f Großmutter Großmütter PK
grandfather m Großvater Großväter PK
friend m Freund Freunde PK
neighbor mw Nachbar Nachbarn PK
colleague mw Kollege Kollegen PK
guest m Gast Gäste P
teacher m Lehrer - P
doctor m Arzt Ärzte P
student mw Student Studenten P
policeman/policemen mw Polizist Polizisten P
farmer mw Bauer Bauern P
chef m Koch Köche P
king m König Könige P
queen f Königin Königinnen P
tourist mw Tourist Touristen P
painter m Maler - P
musician m Musiker - P
nurse f Krankenschwester Krankenschwestern P
soldier mw Soldat Soldaten P
gardener m Gärtner - P
lawyer m Anwalt Anwälte P
pilot mw Pilot Piloten P
thief/thieves m Dieb Diebe P
singer m Sänger - P
dog m Hund Hunde A
cat f Katze Katzen A
horse n Pferd Pferde A
cow f Kuh Kühe A
bird m Vogel Vögel A
mouse/mice f Maus Mäuse A
lion mw Löwe Löwen A
bear mw Bär Bären A
monkey mw Affe Affen A
elephant mw Elefant Elefanten A
rabbit n Kaninchen - A
chicken n Huhn Hühner A
duck f Ente Enten A
snake f Schlange Schlangen A
wolf/wolves m Wolf Wölfe A
fox m Fuchs Füchse A
goat f Ziege Ziegen A
donkey m Esel - A
apple m Apfel Äpfel FS
banana f Banane Bananen FS
egg n Ei Eier F
potato f Kartoffel Kartoffeln F
tomato f Tomate Tomaten F
orange f Orange Orangen FS
pear f Birne Birnen FS
sausage f Wurst Würste F
cake m Kuchen - FS
cookie m Keks Kekse FS
cherry f Kirsche Kirschen FS
onion f Zwiebel Zwiebeln F
nut f Nuss Nüsse F
water n Wasser 0 D
milk f Milch 0 D
beer n Bier 0 D
wine m Wein 0 DS
tea m Tee 0 DS
coffee m Kaffee 0 D
juice m Saft 0 DS
bread n Brot 0 E
cheese m Käse 0 E
meat n Fleisch 0 E
rice m Reis 0 E
butter f Butter 0 E
honey m Honig 0 ES
chocolate f Schokolade 0 ES
book n Buch Bücher RT
newspaper f Zeitung Zeitungen RT
letter m Brief Briefe RT
story f Geschichte Geschichten R
poem n Gedicht Gedichte R
novel m Roman Romane RT
coat m Mantel Mäntel C
shirt n Hemd Hemden C
dress n Kleid Kleider C
shoe m Schuh Schuhe C
hat m Hut Hüte C
jacket f Jacke Jacken C
sweater m Pullover - C
key m Schlüssel - T
bag f Tasche Taschen TJ
cup f Tasse Tassen TJ
glass n Glas Gläser TJ
plate m Teller - TJ
knife/knives n Messer - T
spoon m Löffel - T
bottle f Flasche Flaschen TJ
lamp f Lampe Lampen TZ
picture n Bild Bilder T
clock f Uhr Uhren TZ
phone n Telefon Telefone TZ
computer m Computer - TZ
camera f Kamera Kameras TZ
pencil m Bleistift Bleistifte T
ring m Ring Ringe T
ball m Ball Bälle T
box f Kiste Kisten TJ
suitcase m Koffer - TJ
blanket f Decke Decken T
mirror m Spiegel - T
gift n Geschenk Geschenke T
flower f Blume Blumen NT
coin f Münze Münzen T
stone m Stein Steine T
guitar f Gitarre Gitarren TZ
violin f Geige Geigen TZ
radio n Radio Radios TZ
table m Tisch Tische G
chair m Stuhl Stühle G
bed n Bett Betten G
sofa n Sofa Sofas G
window n Fenster - W
door f Tür Türen W
gate n Tor Tore WY
tree m Baum Bäume NUY
car n Auto Autos VU
bus m Bus Busse V
train m Zug Züge V
ship n Schiff Schiffe V
plane n Flugzeug Flugzeuge V
bicycle n Fahrrad Fahrräder V
boat n Boot Boote V
taxi n Taxi Taxis V
house n Haus Häuser LUY
school f Schule Schulen LU
church f Kirche Kirchen LU
park m Park Parks L
garden m Garten Gärten L
forest m Wald Wälder L
city f Stadt Städte L
village n Dorf Dörfer L
kitchen f Küche Küchen L
bedroom n Schlafzimmer - L
office n Büro Büros LU
hotel n Hotel Hotels LU
restaurant n Restaurant Restaurants LU
hospital n Krankenhaus Krankenhäuser LU
museum n Museum Museen LU
theater n Theater - LU
library f Bibliothek Bibliotheken LU
station m Bahnhof Bahnhöfe HU
airport m Flughafen Flughäfen H
store m Laden Läden LU
supermarket m Supermarkt Supermärkte LU
beach m Strand Strände H
lake m See Seen H
river m Fluss Flüsse H
mountain m Berg Berge OY
bridge f Brücke Brücken OY
street f Straße Straßen O
castle n Schloss Schlösser LU
farm m Bauernhof Bauernhöfe O
zoo m Zoo Zoos L
garage f Garage Garagen LU
bakery f Bäckerei Bäckereien LU
"""

# en: English; stem: German stem before an ending; base: German predicate form; classes: noun
# classes it may modify; comparative: German comparative or "".
Adjective = namedtuple("Adjective", "en base stem classes comparative en_comparative")

# english  German[/inflected stem]  noun classes  [German comparative [English comparative]]
ADJECTIVES = """
young jung PA jünger younger
old alt PACVLGTOUW älter older
rich reich P reicher richer
poor arm P ärmer poorer
famous berühmt PLRO
brave mutig P mutiger braver
lazy faul PA fauler lazier
sick krank PA
hungry hungrig PA
thirsty durstig PA
tired müde/müd PA
happy glücklich P glücklicher happier
sad traurig PR trauriger sadder
friendly freundlich P freundlicher friendlier
strong stark PA stärker stronger
weak schwach PA schwächer weaker
funny lustig PAR lustiger funnier
angry wütend PA
curious neugierig PA
dangerous gefährlich A gefährlicher -
wild wild A
big groß ACVLGFTWOHN größer bigger
small klein ACVLGFTWOHN kleiner smaller
beautiful schön PCLVTOHNW schöner -
ugly hässlich CLVTWG hässlicher uglier
new neu CVLGTRW
cheap billig CVGTF billiger cheaper
expensive teuer/teur CVGTD teurer -
broken kaputt VGZW
heavy schwer GT schwerer heavier
long lang RCO länger longer
short kurz RC kürzer shorter
clean sauber CTVLGW sauberer cleaner
dirty schmutzig CTVLGW schmutziger dirtier
empty leer LVJ
red rot CVTFNW
blue blau CVTWG
green grün CVTFNW
yellow gelb CVTNF
black schwarz CVTAG
white weiß CVTAGNW
brown braun CTAG
interesting interessant R interessanter -
boring langweilig RP langweiliger -
strange seltsam PRA
important wichtig R wichtiger -
dark dunkel/dunkl LC dunkler darker
quiet ruhig LHO ruhiger quieter
high hoch/hoh Y höher higher
fresh frisch FEDN frischer fresher
sweet süß S süßer sweeter
delicious lecker FE
cold kalt D kälter colder
hot heiß D heißer hotter
warm warm CD wärmer warmer
fast schnell VA schneller faster
slow langsam VA langsamer slower
"""

# Adjectives a person or an animal can be for a while ("because he is tired").
STATES = "tired sick hungry thirsty happy sad angry curious lazy".split()

# name and sex
NAMES = [(name, "f") for name in "Anna Maria Laura Julia Lisa Sarah Emma Clara Nina Sophie".split()]
NAMES += [(name, "m") for name in "Tom Peter Paul Max Felix David Lukas Simon Oskar Jan".split()]

# English and German city names; motion towards them is "nach".
CITIES = [
    ("Berlin", "Berlin"), ("Paris", "Paris"), ("London", "London"), ("Hamburg", "Hamburg"),
    ("Rome", "Rom"), ("Vienna", "Wien"), ("Munich", "München"), ("Moscow", "Moskau"),
]

NUMBER_WORDS = {
    "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs",
    "seven": "sieben", "eight": "acht", "nine": "neun", "ten": "zehn", "eleven": "elf",
    "twelve": "zwölf", "twenty": "zwanzig",
}
DIGITS = [str(number) for number in list(range(2, 13)) + [15, 20, 25, 30, 50, 100]]

WEEKDAYS = {
    "Monday": "Montag", "Tuesday": "Dienstag", "Wednesday": "Mittwoch", "Thursday": "Donnerstag",
    "Friday": "Freitag", "Saturday": "Samstag", "Sunday": "Sonntag",
}
MONTHS = {
    "January": "Januar", "March": "März", "May": "Mai", "June": "Juni", "July": "Juli",
    "October": "Oktober", "December": "Dezember",
}
SEASONS = {"spring": "Frühling", "summer": "Sommer", "autumn": "Herbst", "winter": "Winter"}

# Time expressions by the tenses they fit: p past, n present (habit), f future or modal, g now.
TIMES = [
    ("yesterday", "gestern", "p"), ("last week", "letzte Woche", "p"),
    ("last year", "letztes Jahr", "p"), ("last month", "letzten Monat", "p"),
    ("this morning", "heute Morgen", "p"), ("last night", "letzte Nacht", "p"),
    ("today", "heute", "pnf"), ("tomorrow", "morgen", "f"), ("tonight", "heute Abend", "f"),
    ("next week", "nächste Woche", "f"), ("next year", "nächstes Jahr", "f"),
    ("next month", "nächsten Monat", "f"), ("soon", "bald", "f"),
    ("every day", "jeden Tag", "n"), ("every week", "jede Woche", "n"),
    ("every year", "jedes Jahr", "n"), ("every evening", "jeden Abend", "n"),
    ("every morning", "jeden Morgen", "n"), ("in the evening", "am Abend", "pnf"),
    ("in the morning", "am Morgen", "nf"), ("in the afternoon", "am Nachmittag", "pnf"),
    ("at night", "in der Nacht", "n"), ("on the weekend", "am Wochenende", "nf"),
    ("after work", "nach der Arbeit", "pnf"), ("before breakfast", "vor dem Frühstück", "pn"),
    ("after dinner", "nach dem Abendessen", "pnf"), ("now", "jetzt", "g"),
    ("at the moment", "im Moment", "g"),
]
TIMES += [("on " + en, "am " + de, "pf") for en, de in WEEKDAYS.items()]
TIMES += [("in " + en, "im " + de, "pnf") for en, de in MONTHS.items()]
TIMES += [("in " + en, "im " + de, "nf") for en, de in SEASONS.items()]
TIMES += [
    (f"{en} {unit_en} ago", f"vor {de} {unit_de}", "p")
    for en, de in list(NUMBER_WORDS.items())[:6]
    for unit_en, unit_de in [("days", "Tagen"), ("weeks", "Wochen"), ("years", "Jahren")]
]
TIMES += [(f"at {hour} o'clock", f"um {hour} Uhr", "pnf") for hour in range(2, 13)]

# Adverbs of frequency, before the English main verb.
FREQUENCY = [
    ("often", "oft"), ("always", "immer"), ("sometimes", "manchmal"), ("never", "nie"),
    ("rarely", "selten"), ("usually", "meistens"),
]
# Adverbs that go with the English present perfect.
PERFECT = [("already", "schon"), ("just", "gerade"), ("never", "nie")]

# Adverbs of manner by the letter a verb lists in its flags.
MANNER = {
    "q": [("quickly", "schnell"), ("slowly", "langsam")],
    "v": [("loudly", "laut"), ("quietly", "leise")],
    "w": [("well", "gut"), ("badly", "schlecht")],
    "a": [("alone", "allein")],
    "k": [("carefully", "vorsichtig")],
}

FEMALE_NOUNS = {"girl"}  # grammatically neuter, but "she"
NO_PRONOUN = {"child"}

IRREGULAR_PLURAL = {"radio": "radios", "zoo": "zoos"}


def english_plural(word):
    """The regular English plural of `word`."""
    if word in IRREGULAR_PLURAL:
        return IRREGULAR_PLURAL[word]
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "ch", "sh", "o")):
        return word + "es"
    return word + "s"


def parse_nouns():
    """All nouns, in table order."""
    nouns = []
    for line in NOUNS.strip().splitlines():
        english, gender, german, plural, classes = line.split()
        singular, _, irregular = english.partition("/")
        sex = ""
        if "P" in classes and singular not in NO_PRONOUN:
            sex = "f" if gender == "f" or singular in FEMALE_NOUNS else "m"
        nouns.append(Noun(
            singular, irregular or english_plural(singular), gender[0], german,
            german if plural in "-0" else plural, gender.endswith("w"), plural == "0", classes, sex,
        ))
    return nouns


def parse_adjectives():
    """All adjectives, in table order."""
    adjectives = []
    for line in ADJECTIVES.strip().splitlines():
        english, german, classes, *rest = line.split()
        base, _, stem = german.partition("/")
        comparative = rest[0] if rest else ""
        english_comparative = rest[1] if len(rest) > 1 and rest[1] != "-" else "more " + english
        adjectives.append(
            Adjective(english, base, stem or base, classes, comparative, english_comparative)
        )
    return adjectives
