#!/usr/bin/env python3
"""Writes resampling.json: means, intervals and p-values of a few systems, computed by the real sacrebleu.

Needs sacrebleu 2.6.0 (pip install sacrebleu==2.6.0). Run from anywhere: python3 tests/golden/resampling.py
"""

import json
import logging
import os
import random
from pathlib import Path

import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

# More samples than are held in memory at once.
SAMPLES = 300
WORDS = "the cat and a dog sat or slept on this mat while it rained in their old town".split()


def changed(rng, line, rate):
    return " ".join(rng.choice(WORDS) if rng.random() < rate else word for word in line.split())


def main():
    logging.disable(logging.WARNING)
    rng = random.Random(1)
    references = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 14))) for _ in range(23)]
    # The baseline, two about as good, and a worse one.
    systems = [[changed(rng, line, rate) for line in references] for rate in (0.3, 0.3, 0.4, 0.6)]
    cases = []
    for seed in (12345, 7):
        os.environ["SACREBLEU_SEED"] = str(seed)
        for kind in ("bs", "ar"):
            metrics = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}
            named = [(str(i), lines) for i, lines in enumerate(systems)]
            _, found = PairedTest(named, metrics, [references], test_type=kind, n_samples=SAMPLES)()
            keys = [key for key in found if key != "System"]
            results = {}
            for name, key in zip(metrics, keys, strict=True):
                numbers = lambda result: {"mean": result.mean, "interval": result.ci, "p_value": result.p_value}
                results[name] = [
                    {what: float(number) for what, number in numbers(result).items() if number is not None}
                    for result in found[key]
                ]
            cases.append({"seed": seed, "test": kind, "results": results})
    path = Path(__file__).with_suffix(".json")
    golden = {"made_with": {"sacrebleu": sacrebleu.__version__}, "samples": SAMPLES, "references": references,
              "systems": systems}
    one_a_line = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{json.dumps(golden)[:-1]},\n"cases": [\n{one_a_line}\n]}}\n', encoding="ascii")
    print(f"{path}: {len(cases)} cases")


if __name__ == "__main__":
    main()
