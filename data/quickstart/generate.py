#!/usr/bin/env python3
"""Writes the quickstart corpus: train, valid and test, English and German, beside this file.

    python3 generate.py

The output depends on nothing but the tables and SEED: running it again writes the same bytes.
"""

import random
import re
from collections import Counter
from pathlib import Path

from sentences import Sampler
from templates import sentence

SEED = 20240607
TRAIN_PAIRS, VALID_PAIRS, TEST_PAIRS = 8000, 300, 500
# The first pairs are drawn as they come; each of the last ones is the most needed of many
# candidates, until every form has been seen ENOUGH times.
DRAWN_FREELY, CANDIDATES, ENOUGH = 0.65, 100, 7
# A held-out pair may use only forms (of either language) seen this often in training.
MINIMUM_COUNT = 3

TOKEN = re.compile(r"\w[\w']*|[^\w\s]")


def tokens(text):
    """Words and punctuation marks of a sentence."""
    return TOKEN.findall(text)


class Pairs:
    """Draws pairs that have not been drawn before and never contradict an earlier one."""

    def __init__(self, sampler):
        self.sampler = sampler
        self.used = set()
        self.translations = {}

    def draw(self):
        while True:
            source, target = sentence(self.sampler)
            known = self.translations.setdefault(source, target)
            if known != target:
                raise SystemExit(f"two translations of {source!r}: {known!r} and {target!r}")
            if source not in self.used:
                return source, target


def need(pair, counts):
    """How much the words of a pair lack to ENOUGH, per token."""
    words = [("en", word) for word in tokens(pair[0])] + [("de", word) for word in tokens(pair[1])]
    return sum(max(0, ENOUGH - counts[word]) ** 2 for word in words) / len(words)


def count(pair, counts):
    for language, text in zip(("en", "de"), pair):
        counts.update((language, word) for word in tokens(text))


def training_pairs(pairs):
    """Training pairs and the counts of their words by language."""
    counts, train = Counter(), []
    while len(train) < TRAIN_PAIRS:
        free = len(train) < DRAWN_FREELY * TRAIN_PAIRS
        candidates = [pairs.draw() for _ in range(1 if free else CANDIDATES)]
        best = max(candidates, key=lambda pair: need(pair, counts))
        pairs.used.add(best[0])
        count(best, counts)
        train.append(best)
    return train, counts


def held_out_pairs(pairs, number, counts, targets):
    """Pairs whose words are all known from training and whose target is not among `targets`."""
    chosen = []
    while len(chosen) < number:
        pair = pairs.draw()
        words = [("en", w) for w in tokens(pair[0])] + [("de", w) for w in tokens(pair[1])]
        if pair[1] in targets or any(counts[word] < MINIMUM_COUNT for word in words):
            continue
        pairs.used.add(pair[0])
        targets.add(pair[1])
        chosen.append(pair)
    return chosen


def write(folder, name, pairs):
    for index, language in enumerate(("en", "de")):
        text = "".join(pair[index] + "\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")


def main():
    folder = Path(__file__).resolve().parent
    rng = random.Random(SEED)
    pairs = Pairs(Sampler(rng))
    train, counts = training_pairs(pairs)
    targets = {target for _, target in train}
    valid = held_out_pairs(pairs, VALID_PAIRS, counts, targets)
    test = held_out_pairs(pairs, TEST_PAIRS, counts, targets)
    order = [(rng.random(), index) for index in range(len(train))]
    write(folder, "train", [train[index] for _, index in sorted(order)])
    write(folder, "valid", valid)
    write(folder, "test", test)


if __name__ == "__main__":
    main()
