#!/usr/bin/env python3
"""Writes codes.json: text that the real subword-nmt and fastBPE split, with the codes and vocabularies that they used.

Needs subword-nmt 0.3.8 and fastBPE 0.1.0, which has to be built with a Cython of today:

    pip install subword-nmt==0.3.8 cython setuptools wheel && pip install --no-build-isolation fastBPE==0.1.0

Run from anywhere: python3 tests/golden/codes.py
"""

import collections
import io
import json
import tempfile
from pathlib import Path

import fastBPE
from subword_nmt.apply_bpe import BPE, read_vocabulary
from subword_nmt.learn_bpe import learn_bpe

# Words whose pieces overlap and repeat, in several scripts.
TEXT = """\
the lower house lowered the lowest of the low houses , and the newer news is newest
banana bananas anan nana ananas aaaa aaaaa aaaaaaa xxx xxxx abababab ababa
die Lösungen der größten Städte lösen größere Städte auf , so groß wie die Größe
Привет , привет всем , приветы от приветливых людей людям
私は 東京に 行きます 。 東京は 東京都です
1\u00a0000\u00a0000 km 10\u202f000 km 10\u202f000 m 1\u00a0000 m
"""
LINES = TEXT.splitlines() + [
    "the  lowest   banana  ",
    " bananas",
    "",
    "a b , \u00a0 \u3000 x\ty",
    "lowhouses größtenlösung приветами 東京都民 unseen qqq",
    "houses</w> </w> a</w> @@ low@@ er@@",
    "e\u0301e\u0301 \U0001f600 \U0001f468\u200d\U0001f469 \u2028",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abab" + "ab" * 60,
]
# Merges that no text teaches: a pair twice, symbols that can be made in two ways, an earlier merge that needs a later one.
ODD = ["b c", "a bc", "abc d", "a b", "ab c", "b c", "ab a", "abc d</w>", "ab ab", "aba b</w>", "b a", "x x", "xx x", "x x</w>", "</ w>"]
ODD_LINES = ["abcd abcab ababab ababa abab abababab xxx xxxx xxxxx xxxxxx", "abcabcd babab baba xxxabc a</w> </w> </w>x"]


def learnt(merges):
    out = io.StringIO()
    learn_bpe(io.StringIO(TEXT), out, merges, min_frequency=2)
    return out.getvalue()


def first_version(codes):
    """The codes as version 0.1 writes them: the end of a word is merged on its own, and last here."""
    lines = codes.split("\n")[1:-1]
    symbols = [line.split(" ") for line in lines]
    ends = sorted({right for _, right in symbols if right.endswith("</w>")})
    plain = [f"{left} {right}" for left, right in symbols if not right.endswith("</w>")]
    inner = [f"{left} {right[:-4]}" for left, right in symbols if right.endswith("</w>") and len(right) > 4]
    return "\n".join(plain + inner + [f"{end[:-4]} </w>" for end in ends if len(end) > 4]) + "\n"


def counts(lines):
    counted = collections.Counter(piece for line in lines for piece in line.strip("\r\n ").split(" ") if piece)
    return "".join(f"{piece} {count}\n" for piece, count in sorted(counted.items(), key=lambda it: (-it[1], it[0])))


def case(name, codes, lines, vocabulary=None, threshold=0):
    known = None if vocabulary is None else read_vocabulary(io.StringIO(vocabulary), threshold)
    bpe = BPE(io.StringIO(codes), vocab=known)
    return {"name": name, "codes": codes, "vocabulary": vocabulary, "threshold": threshold, "lines": lines,
            "split": [bpe.segment(line) for line in lines]}


def fast(name, codes, lines, vocabulary=None):
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / file for file in ("codes", "vocabulary")]
        files[0].write_text(codes, encoding="utf-8")
        files[1].write_text(vocabulary or "", encoding="utf-8")
        bpe = fastBPE.fastBPE(str(files[0]), *([str(files[1])] if vocabulary else []))
        split = bpe.apply(lines)
    return {"name": name, "codes": codes, "vocabulary": vocabulary, "threshold": 0, "lines": lines, "split": split}


def main():
    codes = learnt(120)
    split = case("0.2", codes, LINES)
    listed = counts(split["split"])
    old = first_version(codes)
    pairs = codes.split("\n")[1:-1]
    counted = "".join(f"{pair} {1000 - i}\n" for i, pair in enumerate(pairs))
    # fastBPE takes words without empty ones between them, and no text without words.
    words = [" ".join(word for word in line.split(" ") if word) for line in LINES]
    words = [line for line in words if line]
    cases = [
        split,
        case("0.2 with a vocabulary", codes, LINES, listed),
        case("0.2 with a threshold", codes, LINES, listed, 3),
        case("0.2 with few pieces", codes, LINES, "".join(line + "\n" for line in listed.split("\n")[:25] if line)),
        case("0.1", old, LINES),
        case("0.1, as stated", "#version: 0.1\n" + old, LINES),
        case("0.1 with a threshold", old, LINES, counts(case("", old, LINES)["split"]), 3),
        case("odd merges, 0.2", "#version: 0.2\n" + "\n".join(ODD) + "\n", ODD_LINES),
        case("odd merges, 0.2, without merged pieces", "#version: 0.2.0\n" + "\n".join(ODD) + "\n", ODD_LINES, "ab@@ 9\nx@@ 9\nabcd 9\n"),
        case("odd merges, 0.1", "\n".join(ODD) + "\n", ODD_LINES),
        fast("fastBPE", counted, words),
        fast("fastBPE with a vocabulary", counted, words, listed),
        fast("fastBPE with few pieces", counted, words, "".join(line + "\n" for line in listed.split("\n")[:25] if line)),
    ]
    path = Path(__file__).with_name("codes.json")
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
