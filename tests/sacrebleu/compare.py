#!/usr/bin/env python3
"""Compares `mt eval` with the real sacrebleu: on random texts, and on published systems if MT_TEST_DATA has them.

    compare.py MT [SETS [SEED]]

Every set has its own options; scores, signatures, sentence scores, intervals and p-values are compared.
"""

import json
import logging
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import sacrebleu
from sacrebleu import significance
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

TOLERANCE = 1e-6

WORDS = """the a of cat dog mat house 3.5 1,000 5. .5 -1 9-10 it's don't 's and, end. (so) "yes" no! what? a-b 10% $5 &amp; &quot;x&quot;
&lt; <skipped> naïve Straße ΣΑΣ İı ﬁ „Zitat“ – … € 我有 苹果。 「好」 日本語 カタカナ ひらがな 한국어 ; : ／ ＡＢ， مرحبا नमस्ते 👍🏽 e\u0301 \u200b ½ Ⅳ""".split()
# White space for Python's str.split, except line breaks.
SPACES = [" ", " ", " ", " ", "  ", "\t", "\xa0", "\u3000", "\x1f"]


def sentence(rng, words):
    length = rng.choice([0, 1, 2, 3, 5, 8, 13, 21, 34])
    return "".join(rng.choice(words) + rng.choice(SPACES) for _ in range(length)).rstrip()


def disturbed(rng, line, words):
    """The line with some words dropped, repeated or replaced, and a block moved."""
    out = []
    for word in line.split():
        chance = rng.random()
        if chance < 0.7:
            out.append(word)
        elif chance < 0.8:
            out += [word, word]
        elif chance < 0.9:
            out.append(rng.choice(words))
    if len(out) > 3 and rng.random() < 0.7:
        start, length = rng.randrange(len(out)), rng.randint(1, 6)
        block = out[start:start + length]
        del out[start:start + length]
        to = rng.randint(0, len(out))
        out[to:to] = block
    return " ".join(out)


def random_set(rng):
    words = rng.sample(WORDS, rng.choice([3, 8, len(WORDS)]))
    lines = rng.choice([1, 2, 5, 20])
    base = [sentence(rng, words) for _ in range(lines)]
    references = [base] + [[disturbed(rng, line, words) if rng.random() < 0.9 else "" for line in base]
                           for _ in range(rng.choice([0, 0, 1, 2]))]
    systems = [[disturbed(rng, line, words) for line in base] for _ in range(2)]
    smooth = rng.choice(["exp", "floor", "add-k", "none"])
    options = {
        "bleu": {"tokenize": rng.choice(["13a", "intl", "char", "zh", "none"]), "lowercase": rng.random() < 0.3, "smooth_method": smooth,
                 "smooth_value": rng.choice([None, 0.01, 0.5, 2.0]) if smooth in ("floor", "add-k") else None},
        "chrf": {"char_order": rng.choice([6, 6, 1, 4]), "word_order": rng.choice([0, 2, 2, 3]), "beta": rng.choice([2, 2, 1, 3]),
                 "whitespace": rng.random() < 0.3, "lowercase": rng.random() < 0.3, "eps_smoothing": rng.random() < 0.3},
        "ter": {"normalized": rng.random() < 0.4, "no_punct": rng.random() < 0.4, "asian_support": rng.random() < 0.4,
                "case_sensitive": rng.random() < 0.4},
    }
    return references, systems, options


def flags(options):
    out = ["--bleu", "--chrf", "--ter", "--force", "--json", "-q"]
    bleu = options["bleu"]
    out += ["--tokenize", bleu["tokenize"], "--smooth", bleu["smooth_method"]] + ["--lowercase"] * bleu["lowercase"]
    if bleu["smooth_value"] is not None:
        out += ["--smooth-value", str(bleu["smooth_value"])]
    for metric in ("chrf", "ter"):
        for key, value in options[metric].items():
            flag = f"--{metric}-{key.replace('_', '-')}"
            if value is True:
                out.append(flag)
            elif value is not False:
                out += [flag, str(value)]
    return out


def metrics(options, effective=False):
    return {"bleu": BLEU(**options["bleu"], effective_order=effective, force=True), "chrf": CHRF(**options["chrf"]),
            "ter": TER(**options["ter"])}


class Failed(Exception):
    pass


bleu_of = BLEU._compute_score_from_stats


def bleu_of_floats(self, statistics):
    return bleu_of(self, [float(value) for value in statistics])


def p_value_but_for_rounding(differences, actual):
    """As sacrebleu, but a difference counts as larger only if it is so by more than rounding."""
    return ((differences > actual + 1e-9).sum() + 1) / (len(differences) + 1)


def same(what, ours, theirs, tolerance=TOLERANCE):
    if not abs(ours - theirs) <= tolerance:
        raise Failed(f"{what}: {ours}, sacrebleu has {theirs}")


def compare(mt, folder, references, systems, options, samples):
    paths = {"ref": [], "hyp": []}
    for kind, texts in (("ref", references), ("hyp", systems)):
        for i, lines in enumerate(texts):
            path = folder / f"{kind}{i}"
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
            paths[kind].append(str(path))

    def run(*more, hyp=paths["hyp"]):
        command = [mt, "eval", "--hyp", *hyp, "--ref", *paths["ref"], *flags(options), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def signature(metric):
        return str(metric.get_signature()).rsplit("|version:", 1)[0]

    # Compare scores and signatures of both systems.
    of_corpus = metrics(options)
    for lines, ours in zip(systems, run()[0], strict=True):
        for name, metric in of_corpus.items():
            theirs = metric.corpus_score(lines, references)
            same(name, ours[name]["score"], theirs.score)
            if ours[name]["signature"].rsplit("|version:", 1)[0] != signature(metric):
                raise Failed(f"{ours[name]['signature']}, sacrebleu has {signature(metric)}")
    # Compare each sentence separately.
    of_sentence = metrics(options, effective=True)
    sentences = run("--sentence-level", hyp=paths["hyp"][:1])
    if len(sentences) != len(systems[0]):
        raise Failed(f"scores of {len(sentences)} sentences, there are {len(systems[0])}")
    for i, ours in enumerate(sentences):
        for name, metric in of_sentence.items():
            theirs = metric.sentence_score(systems[0][i], [stream[i] for stream in references])
            same(f"{name} of line {i + 1}", ours[name]["score"], theirs.score)
    if not samples:
        return
    # Compare intervals and p-values: with the same random numbers, samples are the same.
    ours = run("--confidence", "--confidence-n", str(samples), hyp=paths["hyp"][:1])[0]
    for name, metric in metrics(options).items():
        try:
            theirs = metric.corpus_score(systems[0], references, n_bootstrap=samples)
        except TypeError:
            # Python's mean fails on the mixture of floats that TER gives if some samples have no words.
            continue
        same(f"mean of {name}", ours[name]["mean"], theirs._mean, 1e-4)
        same(f"interval of {name}", ours[name]["confidence"], theirs._ci, 1e-4)
        if ours[name]["signature"].rsplit("|version:", 1)[0] != signature(metric):
            raise Failed(f"{ours[name]['signature']}, sacrebleu has {signature(metric)}")
    # With the same statistics in every line, a metric cannot tell the systems apart.
    is_same = {}
    for name, metric in metrics(options).items():
        of_systems = [metric._extract_corpus_statistics(lines, references) for lines in systems]
        is_same[name] = all(list(a) == list(b) for a, b in zip(*of_systems, strict=True))
    for kind in ("bs", "ar"):
        ours = run(f"--paired-{kind}", f"--paired-{kind}-n", str(samples))[0]
        named = [("a", systems[0]), ("b", systems[1])]

        def tested():
            return PairedTest(named, metrics(options), references, test_type=kind, n_samples=samples)()

        signatures, theirs = tested()
        exact = theirs
        if kind == "ar":
            # Here sacrebleu has the statistics as integers, which lose a fraction that smoothing adds, and takes differences that
            # are equal but for rounding for larger ones.
            with mock.patch.object(significance, "_compute_p_value", p_value_but_for_rounding), \
                    mock.patch.object(BLEU, "_compute_score_from_stats", bleu_of_floats):
                _, exact = tested()
        keys = [key for key in theirs if key != "System"]
        for name, key in zip(("bleu", "chrf", "ter"), keys, strict=True):
            for system in range(2):
                result = theirs[key][system]
                same(f"{kind}: {name}", ours[system][name]["score"], result.score)
                if result.mean is not None:
                    same(f"{kind}: mean of {name}", ours[system][name]["mean"], result.mean, 1e-4)
                    same(f"{kind}: interval of {name}", ours[system][name]["confidence"], result.ci, 1e-4)
                # If no sample differs by more than the equal scores do, none differs at all.
                never_differs = theirs[key][0].score == result.score and result.p_value == 1 / (samples + 1)
                if result.p_value is not None and (is_same[name] or never_differs):
                    # sacrebleu gives its lowest p-value, we 1.
                    same(f"{kind}: sacrebleu's p-value of the same {name}", 1 / (samples + 1), result.p_value)
                    same(f"{kind}: p-value of the same {name}", ours[system][name]["p_value"], 1)
                elif result.p_value is not None:
                    nearest = min((result.p_value, exact[key][system].p_value), key=lambda p: abs(p - ours[system][name]["p_value"]))
                    same(f"{kind}: p-value of {name}", ours[system][name]["p_value"], nearest, 0.02)
            given = ours[0][name]["signature"].rsplit("|version:", 1)[0]
            if given != str(signatures[key]).rsplit("|version:", 1)[0]:
                raise Failed(f"{given}, sacrebleu has {signatures[key]}")


def published(mt, folder):
    """Compares all metrics of the published systems."""
    systems = sorted(path for path in folder.glob("*.txt") if path.name != "ref.txt")
    reference = (folder / "ref.txt").read_text(encoding="utf-8").splitlines()
    options = [{"--chrf": CHRF()}, {"--chrf --chrf-word-order 2": CHRF(word_order=2)}, {"--ter": TER()},
               {"--ter --ter-normalized --ter-no-punct": TER(normalized=True, no_punct=True)}, {"--bleu": BLEU()},
               {"--bleu --tokenize intl --lowercase": BLEU(tokenize="intl", lowercase=True)}]
    worst = 0.0
    for flag, metric in (pair for option in options for pair in option.items()):
        command = [mt, "eval", "--json", "-q", "--ref", str(folder / "ref.txt"), "--hyp", *map(str, systems), *flag.split()]
        ours = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        for path, result in zip(systems, ours, strict=True):
            theirs = metric.corpus_score(path.read_text(encoding="utf-8").split("\n")[:-1], [reference]).score
            score = next(value["score"] for key, value in result.items() if key != "hyp")
            same(f"{path.name} {flag}", score, theirs)
            worst = max(worst, abs(score - theirs))
    print(f"{len(systems)} published systems, {len(options)} metrics: largest difference {worst:.1e}")


def main():
    logging.disable(logging.WARNING)
    mt, sets = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(sets):
            texts = random_set(rng)
            try:
                # sacrebleu resamples slowly, so only one set in fifty does.
                compare(mt, Path(folder), *texts, samples=200 if number % 50 == 0 else 0)
            except Failed as error:
                failed += 1
                print(f"set {number}: {error}\n  {json.dumps(texts)}")
                if failed >= 5:
                    break
    print(f"sacrebleu {sacrebleu.__version__}: {sets} random sets, {failed} differ")
    data = os.environ.get("MT_TEST_DATA")
    if data:
        published(mt, Path(data) / "bleu-checks" / "wmt17-en-de")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
