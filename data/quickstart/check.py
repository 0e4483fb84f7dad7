#!/usr/bin/env python3
"""Checks the quickstart corpus and prints the figures that README.md quotes.

    python3 check.py

Uses the standard library only; exits with status 1 if a requirement is not met.
"""

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from generate import MINIMUM_COUNT, TEST_PAIRS, TRAIN_PAIRS, VALID_PAIRS, tokens
from nearest import Nearest, TfIdf, corpus_bleu

FOLDER = Path(__file__).resolve().parent
LANGUAGES = ("en", "de")
GERMAN_FORMS = (1500, 1900)
MAXIMUM_COPY_BLEU = 40.0


class Report:
    """Prints each requirement with its figure and remembers failures."""

    def __init__(self):
        self.failed = 0

    def check(self, holds, text):
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {text}")


def load(name):
    """Pairs of one split."""
    texts = [(FOLDER / f"{name}.{code}").read_text(encoding="utf-8") for code in LANGUAGES]
    sources, targets = (text.splitlines() for text in texts)
    if len(sources) != len(targets):
        raise SystemExit(f"{name}: {len(sources)} source lines, {len(targets)} target lines")
    return list(zip(sources, targets))


def check_vocabulary(report, splits):
    """Number of forms in training, and that held-out forms are frequent enough there."""
    for side, language in enumerate(LANGUAGES):
        counts = Counter(word for pair in splits["train"] for word in tokens(pair[side]))
        forms = {word for word in counts if any(letter.isalnum() for letter in word)}
        rare = sum(counts[word] < MINIMUM_COUNT for word in forms)
        few = sum(counts[word] < 5 for word in forms)
        ordered = sorted(counts[word] for word in forms)
        text = (f"{language}: {len(forms)} forms in train; {rare} seen less than {MINIMUM_COUNT}"
                f" times, {few} less than 5; median count {ordered[len(ordered) // 2]}")
        low, high = GERMAN_FORMS if language == "de" else (1, len(forms))
        report.check(low <= len(forms) <= high, text)
        for name in ("valid", "test"):
            used = Counter(word for pair in splits[name] for word in tokens(pair[side]))
            lowest = min(counts[word] for word in used)
            report.check(lowest >= MINIMUM_COUNT, f"{language}: the rarest of {len(used)} forms in"
                         f" {name} occurs {lowest} times in train")


def check_overlap(report, splits):
    """No source twice anywhere, hence none with two translations."""
    everything = [pair for pairs in splits.values() for pair in pairs]
    repeated = len(everything) - len({source for source, _ in everything})
    report.check(repeated == 0, f"{repeated} sources occur twice in {len(everything)} pairs")
    for name in ("valid", "test"):
        targets = {target for _, target in splits["train"]}
        seen = sum(target in targets for _, target in splits[name])
        report.check(seen == 0, f"{seen} of {len(splits[name])} {name} targets occur in train")


def check_copying(report, train, test):
    """BLEU of copying the translation of the nearest training source."""
    sources, targets = ([tokens(pair[side]) for pair in train] for side in (0, 1))
    references = [tokens(target) for _, target in test]
    nearest, tf_idf = Nearest(sources), TfIdf(sources)
    questions = [tokens(source) for source, _ in test]
    found = [nearest.by_edit_distance(words) for words in questions]
    methods = [
        ("edit distance", [index for index, _ in found]),
        ("TF-IDF of 1- to 3-grams", [tf_idf.nearest(words) for words in questions]),
    ]
    for name, indexes in methods:
        score = corpus_bleu([targets[index] for index in indexes], references)
        report.check(score <= MAXIMUM_COPY_BLEU,
                     f"copying the nearest training target, {name}: {score:.1f} BLEU on test")
    share = sum(distance for _, distance in found) / sum(map(len, questions))
    print(f"     mean edit distance to the nearest training source: {share:.0%} of the tokens")


def check_regeneration(report):
    """generate.py writes the same bytes again, under another hash seed."""
    with tempfile.TemporaryDirectory() as folder:
        for script in FOLDER.glob("*.py"):
            shutil.copy(script, folder)
        environment = {"PYTHONHASHSEED": "12345", "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "generate.py"], cwd=folder, check=True, env=environment)
        names = [f"{name}.{code}" for name in ("train", "valid", "test") for code in LANGUAGES]
        same = all((FOLDER / n).read_bytes() == (Path(folder) / n).read_bytes() for n in names)
    report.check(same, "generate.py writes byte-identical files")


def main():
    report = Report()
    splits = {name: load(name) for name in ("train", "valid", "test")}
    for (name, pairs), wanted in zip(splits.items(), (TRAIN_PAIRS, VALID_PAIRS, TEST_PAIRS)):
        words = [sum(len(tokens(pair[side])) for pair in pairs) / len(pairs) for side in (0, 1)]
        report.check(len(pairs) == wanted, f"{name}: {len(pairs)} pairs, mean tokens"
                     f" {words[0]:.1f} English, {words[1]:.1f} German")
    lengths = [len(source.split()) for pairs in splits.values() for source, _ in pairs]
    report.check(min(lengths) >= 4 and max(lengths) <= 14,
                 f"sources have {min(lengths)} to {max(lengths)} words")
    check_vocabulary(report, splits)
    check_overlap(report, splits)
    check_copying(report, splits["train"], splits["test"])
    check_regeneration(report)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
