#!/usr/bin/env python3
"""Writes metrics.json: BLEU, chrF and TER of small hard cases, computed by the real sacrebleu.

Needs sacrebleu 2.6.0 (pip install sacrebleu==2.6.0). Run from anywhere: python3 tests/golden/metrics.py
"""

import json
import logging
from pathlib import Path

import regex
import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER

TOKENIZERS = ["13a", "intl", "char", "zh", "none"]
SMOOTHINGS = [("exp", None), ("floor", None), ("floor", 0.5), ("add-k", None), ("add-k", 0.25), ("none", None)]

# Lines that are hard for a tokenizer; each is scored, and its tokens are listed too.
ODDITIES = [
    "Hello, world! It's 3.5% of $1,000.00 (approx.)",
    "... a..b ,, 1..2 1.,2 .5 5. -1 9-10 9--10 a-b",
    "&quot;A&quot; &amp;lt; B &amp;amp; C &lt;skipped&gt; D<skipped>E &apos;",
    "well-\nknown line\nbreak end-\n",
    "tab\tand\x1cfile\x1dgroup\x1erecord\x1funit\x85next\xa0nbsp\u3000wide\u200bzero\u2028line\u202fnarrow",
    "„Zitat“ – ‚einfach‘ … 5 € · 20 °C ±1 ½.x ².3 Ⅳ.",
    "  leading .5 and trailing  \t\x1f",
    "我有3.5个苹果，价格是￥12.50（约）。「好」 𠀀𪛖 あア한글 ㍿ ✓☂",
    "Привет, мир! Сколько стоит? 1.000,50 ₽ №5 «да»",
    "مرحبا، كيف؟ ١٢٣٫٤٥ नमस्ते। १.२ ไทย",
    "ΟΔΥΣΣΕΥΣ Σ ΑΣ. ΑΣΑ İstanbul ẞ ǅ ΤΑΣ’Α Å ﬁ",
    "e\u0301 é 👩‍👩‍👧 👍🏽 x^2_{n}~`|\\ [a]@b #c *d* +e=f;g:h?",
    "a\u2001b \u2a6d\u2a6e\u2f80\u2f81 \ufeffBOM \uff21．",
]

A = "The cat sat on the mat, and the dog -- 3.5 years old -- didn't care."
B = "The cat is on the mat; the dog (3.5 years old) did not care."
C = "On the mat sat a cat, but the Dog, aged 3.5, doesn't care!"


def scored(name, kind, metric, options, hypotheses, references):
    score = metric.corpus_score(hypotheses, references)
    statistics = metric._extract_corpus_statistics(hypotheses, references)
    # sacrebleu's statistics begin with two lengths; ours end with them.
    if kind == "bleu":
        statistics = [line[2:] + line[:2] for line in statistics]
    return {
        "name": f"{kind} {name}",
        "metric": kind,
        "hypotheses": hypotheses,
        "references": references,
        "options": options,
        "expected": {
            "name": score.name,
            "score": score.score,
            "statistics": statistics,
            "sentences": [metric._compute_score_from_stats(line).score
                          for line in metric._extract_corpus_statistics(hypotheses, references)],
            "signature": str(metric.get_signature()).rsplit("|version:", 1)[0],
            "verbose": score._verbose,
        },
    }


def case(name, hypotheses, references, tokenize="13a", lowercase=False, smooth=("exp", None), effective=False):
    options = {"tokenize": tokenize, "lowercase": lowercase, "smooth_method": smooth[0], "smooth_value": smooth[1],
               "effective_order": effective}
    return scored(name, "bleu", BLEU(**options, force=True), options, hypotheses, references)


def chrf(name, hypotheses, references, **changes):
    options = {"char_order": 6, "word_order": 0, "beta": 2, "whitespace": False, "lowercase": False,
               "eps_smoothing": False, **changes}
    return scored(f"{name} {changes}", "chrf", CHRF(**options), options, hypotheses, references)


def ter(name, hypotheses, references, **changes):
    options = {"normalized": False, "no_punct": False, "asian_support": False, "case_sensitive": False, **changes}
    return scored(f"{name} {changes}", "ter", TER(**options), options, hypotheses, references)


CHRF_OPTIONS = [{}, {"word_order": 2}, {"char_order": 1, "beta": 1}, {"whitespace": True}, {"lowercase": True, "word_order": 1},
                {"eps_smoothing": True, "word_order": 2}, {"char_order": 9, "word_order": 3, "beta": 3}]
TER_OPTIONS = [{}, {"normalized": True}, {"no_punct": True}, {"asian_support": True}, {"case_sensitive": True},
               {"normalized": True, "asian_support": True}, {"normalized": True, "no_punct": True},
               {"normalized": True, "no_punct": True, "asian_support": True, "case_sensitive": True},
               {"no_punct": True, "asian_support": True}]

# Shifted blocks: near, far, several, nested, repeated, longer than TER looks for; and very different lengths.
SHIFTS = [
    ("c d a b", "a b c d"),
    ("e f g h i j a b c d", "a b c d e f g h i j"),
    ("d a b c e h f g", "a b c d e f g h"),
    ("a a b a a b b", "b b a a a a b"),
    ("the cat sat on the mat on the cat the", "on the mat the cat sat on the the cat"),
    (" ".join(f"w{i}" for i in list(range(20, 40)) + list(range(20))), " ".join(f"w{i}" for i in range(40))),
    (" ".join(f"w{i}" for i in list(range(60, 75)) + list(range(60))), " ".join(f"w{i}" for i in range(75))),
    ("a b " * 30, "b a " * 35),
    ("a", " ".join("abcdefgh" * 12)),
    (" ".join("abcdefgh" * 12), "h"),
    ("x y z", "a b c d"),
    ("it's a dog's life, isn't it?", "it is a dog ' s life , is not it ?"),
    ("a b c d e f g", "b c a e f d g"),
    ("it's\ta dog's\u00a0life", "it's\ta dog's\u00a0life isn't\u3000it"),
    ("b c a e f d g b c a e f d g", "a b c d e f g a b c d e f g"),
    ("", "a b"),
    ("a b", ""),
    ("", ""),
]


def cases():
    # Every tokenizer with every smoothing; lowercase, effective order and the number of references vary in turn.
    for t, tokenize in enumerate(TOKENIZERS):
        for s, smooth in enumerate(SMOOTHINGS):
            turn = t + s
            references = [[B, "short ref ."], [C, "a b c d e"]][: 1 + turn % 2]
            yield case(f"grid {tokenize} {smooth}", [A, "short hyp ."], references, tokenize, turn % 3 == 0, smooth,
                       turn % 4 == 0)
    # Every oddity against a changed copy of itself, so that most n-grams match and the rest depend on the rules.
    changed = [line.replace("a", "b", 1).replace(".", " .", 1) for line in ODDITIES]
    for tokenize in TOKENIZERS:
        for lowercase in (False, True):
            yield case(f"oddities {tokenize} {lowercase}", ODDITIES, [changed], tokenize, lowercase)
        yield case(f"upper {tokenize}", [x.upper() for x in ODDITIES], [ODDITIES, changed], tokenize, True)
    yield case("varying number of references", ["a b c d", "e f g h i", "j k"],
               [["a b c x", None, "j"], [None, "e f g h", "j k l"], ["a b c d e", None, None]])
    yield case("same number, other streams", ["a b c d", "e f g h i", "j k"],
               [["a b c d", None, ""], [None, "e f g h", "j k l"], ["a b c", "e f x g h i", None]])
    yield case("one missing stream", ["a b c d", "e f g h"], [["a b c d", "e f g i"], [None, None]])
    yield case("length tie", ["a b c d e"], [["a b c d e f"], ["a b c d"]])
    yield case("empty hypothesis", [""], [["a b"]])
    yield case("empty both", [""], [[""]])
    yield case("empty reference", ["a b"], [[""]])
    yield case("blank lines", [" \t", "a b c d e", "\x1c"], [["a", "a b c d e f", ""]])
    yield case("no match", ["a b c d"], [["e f g h"]], smooth=("floor", None))
    yield case("no match, add-k", ["a b c d"], [["e f g h"]], smooth=("add-k", None))
    yield case("repeated words", ["the the the the the the the"], [["the cat is on the mat"], ["the the the cat"]])
    yield case("long repetition", ["a b " * 40], [["b a " * 25], ["a a b " * 11]])
    for smooth in SMOOTHINGS:
        yield case(f"two words {smooth}", ["a b"], [["a b c"]], smooth=smooth)
        yield case(f"two words, effective {smooth}", ["a b"], [["a b c"]], smooth=smooth, effective=True)
    yield case("add-k of zero", ["a b x"], [["a b c"]], smooth=("add-k", 0.0))
    changed = [line.replace("a", "b", 1).replace(".", " .", 1) for line in ODDITIES]
    sentences = ([A, C, B], [[B, A, C], [C, B, A]])
    for options in CHRF_OPTIONS:
        yield chrf("oddities", ODDITIES, [changed], **options)
        yield chrf("two references", [x.upper() for x in ODDITIES], [ODDITIES, changed], **options)
        yield chrf("sentences", *sentences, **options)
        yield chrf("short and empty", ["", "a", "", "a b", "ab.", "(", "a" * 40], [["a", "", "", "b a", "(ab", "(.", "a" * 30]],
                   **options)
    yield chrf("missing", ["a b c d", "e f"], [["a b x d", None], [None, "e g"], ["a b c", "e f"]])
    for options in TER_OPTIONS:
        yield ter("oddities", ODDITIES, [changed], **options)
        yield ter("two references", [x.upper() for x in ODDITIES], [ODDITIES, changed], **options)
        yield ter("sentences", *sentences, **options)
        yield ter("shifts", [h for h, _ in SHIFTS], [[r for _, r in SHIFTS]], **options)
    yield ter("three references", [h for h, _ in SHIFTS], [[r for _, r in SHIFTS], [h for h, _ in SHIFTS][::-1],
                                                           [r for _, r in SHIFTS][::-1]])
    yield ter("missing", ["a b c d", "e f"], [["d a b", None], [None, "f e"], ["a b c", "e"]])
    yield case("floor of zero", ["a b x y z"], [["a b c d e"]], smooth=("floor", 0.0))


def tokens(tokenize):
    metric = BLEU(tokenize=tokenize)
    return [metric._preprocess_segment(line).split() for line in ODDITIES]


def main():
    logging.disable(logging.WARNING)
    golden_cases = list(cases())
    # Many cases have the same texts: each is stored once, and cases refer to its number.
    texts = []
    for golden_case in golden_cases:
        text = {"hypotheses": golden_case.pop("hypotheses"), "references": golden_case.pop("references")}
        if text not in texts:
            texts.append(text)
        golden_case["text"] = texts.index(text)
    golden = {
        "made_with": {"sacrebleu": sacrebleu.__version__, "regex": regex.__version__},
        "lines": ODDITIES,
        "tokens": {tokenize: tokens(tokenize) for tokenize in TOKENIZERS},
    }
    path = Path(__file__).with_suffix(".json")
    # One case per line, so that a diff shows which one changed.
    one_a_line = lambda values: ",\n".join(json.dumps(value) for value in values)
    path.write_text(f'{json.dumps(golden)[:-1]},\n"texts": [\n{one_a_line(texts)}\n],\n'
                    f'"cases": [\n{one_a_line(golden_cases)}\n]}}\n', encoding="ascii")
    print(f"{path}: {len(golden_cases)} cases")


if __name__ == "__main__":
    main()
