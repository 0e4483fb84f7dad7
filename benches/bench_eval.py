#!/usr/bin/env python3
"""Times `mt eval` beside sacrebleu on the WMT17 English-German systems: bench_eval.py [--mt FILE] [--rounds N]

Needs MT_TEST_DATA and sacrebleu 2.6.0 (pip install sacrebleu). Our time is that of the whole process; sacrebleu's is only its
scoring, without starting Python, importing it or reading files. Both have one thread. Each round times all, one after another.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import sacrebleu
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mt", default=Path(__file__).resolve().parent.parent / "target/release/mt")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if "MT_TEST_DATA" not in os.environ:
        sys.exit("bench_eval: set MT_TEST_DATA to the folder with bleu-checks/wmt17-en-de")
    folder = Path(os.environ["MT_TEST_DATA"]) / "bleu-checks" / "wmt17-en-de"
    paths = sorted(path for path in folder.glob("*.txt") if path.name != "ref.txt")[:2]
    reference = (folder / "ref.txt").read_text(encoding="utf-8").split("\n")[:-1]
    systems = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]
    print(f"sacrebleu {sacrebleu.__version__}, {len(reference)} lines, one thread, {args.rounds} rounds, medians")

    def ours(*flags, hyps=1):
        common = ["-q", "--json", "--threads", "1", "--ref", str(folder / "ref.txt"), "--hyp", *map(str, paths[:hyps])]
        command = [args.mt, "eval", *common, *flags]
        return lambda: subprocess.run(command, check=True, capture_output=True)

    def theirs(metric, **options):
        return lambda: metric().corpus_score(systems[0], [reference], **options)

    def confidence():
        for metric in (BLEU, CHRF, TER):
            metric().corpus_score(systems[0], [reference], n_bootstrap=1000)

    def paired():
        named = [("a", systems[0]), ("b", systems[1])]
        PairedTest(named, {"BLEU": BLEU(), "CHRF": CHRF(), "TER": TER()}, [reference], test_type="bs", n_samples=1000)()

    works = [
        ("BLEU", ours("--bleu"), theirs(BLEU)),
        ("chrF", ours("--chrf"), theirs(CHRF)),
        ("chrF++", ours("--chrf", "--chrf-word-order", "2"), theirs(lambda: CHRF(word_order=2))),
        ("TER", ours("--ter"), theirs(TER)),
        ("all three, 1,000 bootstrap samples", ours("--bleu", "--chrf", "--ter", "--confidence"), confidence),
        ("all three, two systems, paired bootstrap of 1,000", ours("--bleu", "--chrf", "--ter", "--paired-bs", hyps=2), paired),
    ]
    times = {name: ([], []) for name, _, _ in works}
    for _ in range(args.rounds):
        for name, mine, other in works:
            times[name][0].append(timed(mine))
            times[name][1].append(timed(other))
    print("| work | mt, whole process, s | sacrebleu, scoring alone, s | ratio |\n|---|---:|---:|---:|")
    for name, (mine, other) in times.items():
        mine, other = statistics.median(mine), statistics.median(other)
        print(f"| {name} | {mine:.3f} | {other:.2f} | {other / mine:.0f}x |")
    print(json.dumps(times))


if __name__ == "__main__":
    main()
