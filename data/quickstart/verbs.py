"""Verbs of the quickstart grammar: table and conjugation in English and German."""

from collections import namedtuple

# en: English forms base, third, past, participle, ing (first word only); particle: English
# particle that follows a pronoun object; preposition: English preposition before the object;
# de: German forms (see `conjugate`); prefix: separable prefix or ""; aux: haben or sein;
# subjects: noun classes of the subject; frame: kind of object; objects: what it may be;
# flags: see the table.
Verb = namedtuple("Verb", "en particle preposition de prefix aux subjects frame objects flags")

# English | German [du/er of the present] [participle] | subjects | frame | flags
# English: base [past participle], then "+particle" or "~preposition".
# German: prefix=infinitive; the participle is that of the verb without its prefix. An
# irregular present gives the du and er forms. A final * marks the auxiliary sein.
# Frame: "-" none; "a:" accusative, "d:" dative, "da:" dative person and accusative, "PREP+a:"
# or "PREP+d:" prepositional object; then classes in capitals or single nouns.
# Flags: s stative (no progressive), l may have a place, c "with somebody", f "for somebody",
# t travels "by" vehicle, i with an instrument, p takes a "place" that must be there, and the
# letters of MANNER in lexicon.py.
VERBS = """
see saw seen | sehen siehst/sieht gesehen | PA | a:PAVN | s
hear heard heard | hören | PA | a:PA | s
visit | besuchen | P | a:P,museum,castle,school,church,zoo,library | ca
love | lieben | P | a:PAR | s
hate | hassen | P | a:PA | s
meet met met | treffen triffst/trifft getroffen | P | a:P | l
look ~for | suchen | P | a:PATC | l
find found found | finden gefunden | P | a:TAC | sl
call | an=rufen gerufen | P | a:P |
pick +up | ab=holen | P | a:P | t
invite | ein=laden lädst/lädt geladen | P | a:P |
ask | fragen | P | a:P |
greet | begrüßen | P | a:P | lv
kiss | küssen | P | a:P | l
hug | umarmen umarmt | P | a:P | l
understand understood understood | verstehen verstanden | P | a:PR | sw
save | retten | P | a:PA |
forget forgot forgotten | vergessen vergisst/vergisst vergessen | P | a:TPC | s
miss | vermissen | P | a:PK | s
draw drew drawn | zeichnen | P | a:PANV | lqfw
paint | malen | P | a:picture,flower,tree,A | lqf
watch | beobachten | PA | a:PA | lqk
warn | warnen | P | a:P |
push | schieben geschoben | P | a:car,bicycle,table,bed,taxi | q
pull | ziehen gezogen | P | a:donkey,goat,box,boat,suitcase,horse,bed | q
catch caught caught | fangen fängst/fängt gefangen | PA | a:A,ball | l
feed fed fed | füttern | P | a:A | lk
buy bought bought | kaufen | P | a:TCFVGRTED | lf
sell sold sold | verkaufen | P | a:TCFVGETD | l
read read read | lesen liest/liest gelesen | P | a:R | lq
write wrote written | schreiben geschrieben | P | a:letter,book,poem,novel,story | lqf
open | auf=machen | P | a:W,box,bag,suitcase,bottle,letter,gift | qk
close | zu=machen | P | a:W,box,bag,suitcase,bottle,book | qk
clean | putzen | P | a:window,kitchen,shoe,door,mirror,house,bedroom,plate,glass | q
wash | waschen wäschst/wäscht gewaschen | P | a:car,bicycle,bus,C,apple,potato,tomato,cherry,pear,cup,spoon,dog,knife,blanket | kq
repair | reparieren | P | a:VG,clock,computer,phone,radio,lamp,camera,guitar,door | l
carry | tragen trägst/trägt getragen | P | a:TG | qk
wear wore worn | tragen trägst/trägt getragen | P | a:C | l
take took taken | nehmen nimmst/nimmt genommen | P | a:TC,bus,train,taxi |
need | brauchen | P | a:TCVGD | s
have had had | haben gehabt | P | a:TACV | s
lose lost lost | verlieren verloren | P | a:TC | l
hide hid hidden | verstecken | P | a:TR | l
break broke broken | zerbrechen zerbrichst/zerbricht zerbrochen | P | a:cup,glass,plate,mirror,bottle,lamp,camera | s
throw threw thrown | werfen wirfst/wirft geworfen | P | a:ball,stone,egg,tomato,shoe |
cook | kochen | P | a:egg,potato,rice,meat,coffee,tea | lfc
eat ate eaten | essen isst/isst gegessen | P | a:FE | lqc
drink drank drunk | trinken getrunken | PA | a:D | lq
bake | backen gebacken | P | a:cake,bread,cookie | lf
cut cut cut | schneiden geschnitten | P | a:F,bread,cheese,meat | i
peel | schälen | P | a:apple,potato,orange,onion,egg,pear | qi
taste | probieren | P | a:FED | l
order | bestellen | P | a:FDRC | lf
steal stole stolen | stehlen stiehlst/stiehlt gestohlen | P | a:TVC | l
build built built | bauen | P | a:house,school,church,bridge,castle,boat,hotel,theater,ship | q
destroy | zerstören | P | a:house,bridge,castle,church,V,G,L |
collect | sammeln | P | a:stone,coin,nut,book,clock,picture,flower | l
explain | erklären | P | a:R,picture | wk
put put put +on | an=ziehen gezogen | P | a:C | q
take took taken +off | aus=ziehen gezogen | P | a:C | q
turn +on | ein=schalten | P | a:lamp,computer,radio,phone,camera | q
turn +off | aus=schalten | P | a:lamp,computer,radio,phone,camera | q
throw threw thrown +away | weg=werfen wirfst/wirft geworfen | P | a:TCRF |
clean +up | auf=räumen | P | a:kitchen,garage,bedroom,office,house,garden | q
pack | ein=packen | P | a:TCR | q
look ~at | an=sehen siehst/sieht gesehen | PA | a:picture,L,camera,ring,dress,shoe,flower,N | l
give gave given +back | zurück=geben gibst/gibt gegeben | P | a:TRC |
hang hung hung +up | auf=hängen gehängt | P | a:C,picture,lamp,mirror,clock | l
give gave given | geben gibst/gibt gegeben | P | da:TFCR |
show showed shown | zeigen | P | da:TACRVL |
send sent sent | schicken | P | da:RT |
lend lent lent | leihen geliehen | P | da:TVC |
bring brought brought | bringen gebracht | P | da:TFEDC |
offer | an=bieten geboten | P | da:FEDG |
help | helfen hilfst/hilft geholfen | P | d:P | l
thank | danken | P | d:P |
follow | folgen* | PA | d:PA | qk
trust | vertrauen | P | d:P | s
listen ~to | zu=hören | P | d:P | lk
belong ~to | gehören gehört | TCV | d:PK | s
answer | antworten | P | d:P | qv
wait ~for | warten | P | auf+a:PV | l
talk ~about | sprechen sprichst/spricht gesprochen | P | über+a:PRL | lv
think thought thought ~of | denken gedacht | P | an+a:PK |
laugh ~at | lachen | P | über+a:PA | v
dream ~of | träumen | P | von+d:PLVA |
play ~with | spielen | PA | mit+d:A,ball,child,friend,stone | l
sleep slept slept | schlafen schläfst/schläft geschlafen | PA | - | lwa
work | arbeiten | P | - | lcaq
laugh | lachen | P | - | lv
cry | weinen | P | - | lva
sing sang sung | singen gesungen | P | - | lcvwa
dance | tanzen | P | - | lcwa
smile | lächeln | P | - |
live | wohnen | P | - | spca
swim swam swum | schwimmen geschwommen* | PA | - | wqac
run ran run | laufen läufst/läuft gelaufen* | PA | dir: | q
go went gone | gehen gegangen* | P | dir: | ca
come came come | kommen gekommen* | P | from: | tac
drive drove driven | fahren fährst/fährt gefahren* | P | dir: | tc
fly flew flown | fliegen geflogen* | P | city: | ca
travel | reisen gereist* | P | city: | tca
climb | klettern geklettert* | PA | onto: | qk
jump | springen gesprungen* | PA | into: |
stay | bleiben geblieben* | P | - | pac
sit sat sat | sitzen gesessen | P | - | pac
get got gotten +up | auf=stehen gestanden* | P | - | q
wake woke woken +up | auf=wachen* | PA | - | l
fall fell fallen +asleep | ein=schlafen schläfst/schläft geschlafen* | PA | - | lq
arrive | an=kommen gekommen* | PV | - | l
leave left left | ab=fahren fährst/fährt gefahren* | V | - |
come came come +back | zurück=kommen gekommen* | P | - | ta
disappear | verschwinden verschwunden* | AT | - |
bark | bellen gebellt | dog | - | lv
"""
# Animals do not "essen": the verb depends on the subject.
ANIMAL_EAT = "eat ate eaten | fressen frisst/frisst gefressen | A | a:FE | lq"
# Verbs before a that-clause, and before an infinitive with zu.
CLAUSE_VERBS = """
say said said | sagen | P | - | v
believe | glauben | P | - | s
hope | hoffen | P | - | s
know knew known | wissen weißt/weiß gewusst | P | - | s
think thought thought | denken gedacht | P | - |
claim | behaupten | P | - |
"""
INFINITIVE_VERBS = """
try | versuchen | P | - |
plan | planen | P | - |
forget forgot forgotten | vergessen vergisst/vergisst vergessen | P | - | s
promise | versprechen versprichst/verspricht versprochen | P | - |
begin began begun | beginnen begonnen | P | - |
"""
WEATHER_VERBS = """
rain | regnen | - | - |
snow | schneien | - | - |
"""
COST = "cost cost cost | kosten | - | - | s"

# German finite forms: ich, du, er, plural. English modals: what stands before the infinitive.
MODALS = {
    "fut": ("will", ["werde", "wirst", "wird", "werden"]),
    "can": ("can", ["kann", "kannst", "kann", "können"]),
    "must": ("must", ["muss", "musst", "muss", "müssen"]),
    "should": ("should", ["sollte", "solltest", "sollte", "sollten"]),
    "may": ("may", ["darf", "darfst", "darf", "dürfen"]),
    "would": ("would like to", ["möchte", "möchtest", "möchte", "möchten"]),
    "want": ("want to", ["will", "willst", "will", "wollen"]),
    "wanted": ("wanted to", ["wollte", "wolltest", "wollte", "wollten"]),
    "had_to": ("had to", ["musste", "musstest", "musste", "mussten"]),
}
SEIN = {"pres": ["bin", "bist", "ist", "sind"], "past": ["war", "warst", "war", "waren"]}
HABEN = {"pres": ["habe", "hast", "hat", "haben"], "past": ["hatte", "hattest", "hatte", "hatten"]}

DOUBLING = set("hug swim run sit get put cut plan begin forget".split())
INSEPARABLE = ("be", "ver", "er", "ent", "zer")


def english_forms(base, past=None, participle=None):
    """[base, third person, past, past participle, -ing form] of an English verb."""
    doubled = base + base[-1] if base in DOUBLING else base
    if base.endswith(("s", "x", "ch", "sh", "o")):
        third = base + "es"
    elif base.endswith("y") and base[-2] not in "aeiou":
        third = base[:-1] + "ies"
    else:
        third = base + "s"
    if past is None:
        if third.endswith("ies"):
            past = third[:-1] + "d"
        else:
            past = base + "d" if base.endswith("e") else doubled + "ed"
    stem = base[:-1] if base.endswith("e") and not base.endswith("ee") else doubled
    return [base, "has" if base == "have" else third, past, participle or past, stem + "ing"]


def conjugate(infinitive, present=None, participle=None):
    """German forms: "present" (ich, du, er, plural), "infinitive", "participle"."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    link = "e" if stem.endswith(("t", "d", "chn", "gn")) else ""
    first = stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    second = stem + link + ("t" if stem.endswith(("s", "ß", "z")) else "st")
    third = stem + link + "t"
    if infinitive == "haben":
        first, second, third = HABEN["pres"][:3]
    elif present:
        second, third = present.split("/")
        first = "weiß" if infinitive == "wissen" else first
    if participle is None:
        bare = infinitive.startswith(INSEPARABLE) or infinitive.endswith("ieren")
        participle = ("" if bare else "ge") + stem + link + "t"
    return {
        "present": [first, second, third, infinitive],
        "infinitive": infinitive,
        "participle": participle,
    }


def parse_verb(line):
    """One table row as a Verb."""
    english, german, subjects, frame, flags = (cell.strip() for cell in line.split("|"))
    words = english.split()
    particle = preposition = ""
    if words[-1][0] in "+~":
        mark = words.pop()
        particle, preposition = (mark[1:], "") if mark[0] == "+" else ("", mark[1:])
    german_words = german.rstrip("*").split()
    prefix, _, infinitive = german_words[0].rpartition("=")
    present = next((word for word in german_words[1:] if "/" in word), None)
    participle = next((word for word in german_words[1:] if "/" not in word), None)
    forms = conjugate(infinitive, present, participle)
    forms["participle"] = prefix + forms["participle"]
    auxiliary = "sein" if german.endswith("*") else "haben"
    kind, _, objects = frame.partition(":")
    return Verb(
        english_forms(*words), particle, preposition, forms, prefix, auxiliary, subjects, kind,
        objects, flags,
    )


def parse_verbs(table):
    """All verbs of a table, in order."""
    return [parse_verb(line) for line in table.strip().splitlines()]
