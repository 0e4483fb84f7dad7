#!/usr/bin/env python3
"""Measures speed and memory of splitting training text into subwords: bench_prepare.py MT [--pairs N] [--peers N] [--keep DIR]

Generates N pairs (default 10,000,000) with the word frequencies and sentence lengths of news text, and measures
- `mt prepare`: from text files to the finished cache, including learning the vocabulary;
- `mt train` on that cache: seconds to the first update, memory, and that a run stopped midway resumes exactly;
- `spm_encode` and the `tokenizers` package on the source side of the first N pairs (default 1,000,000), as they process one side
  per pass, and `mt prepare` on the same pairs (both sides). spm_encode gets a BPE model of the same size, learned from the same
  text; `tokenizers` gets the vocabulary that mt learned. The rate of `mt prepare` is the one that it prints, of filtering and
  splitting alone, without reading the text a first time; spm_encode's is that of the whole process, that of `tokenizers` of the
  calls. With --keep, text that is there already is used again, if it has as many pairs.
Needs numpy, tokenizers and sentencepiece (which trains the model), and spm_encode on the PATH (Debian: sentencepiece).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = ("train.en", "train.de")
CONFIG = """
[data]
train = [{ source = "train.en", target = "train.de" }]
[tokenizer]
vocab_size = 32000
[model]
d_model = 32
d_ff = 32
heads = 2
encoder_layers = 1
decoder_layers = 1
[train]
batch_tokens = 1000
max_updates = 8
save_every = 4
log_every = 1
[valid]
every = 0
"""


def generate(folder, pairs, block=100_000):
    """Words by Zipf's law from 400,000 made of syllables; lengths log-normal around 21 words, the target's near the source's."""
    import numpy as np

    random = np.random.default_rng(7)
    syllables = [c + v + e for c in "bdfghklmnprstvwz" for v in ["a", "e", "i", "o", "u", "ei"] for e in ["", "n", "r", "st"]]
    lexicons = []
    for side in range(2):
        count = random.integers(1, 5, 400_000)
        # Frequent words are short.
        count[:2000] = random.integers(1, 3, 2000)
        picks = random.integers(0, len(syllables), (400_000, 4))
        words = ["".join(syllables[i] for i in row[:n]) for row, n in zip(picks.tolist(), count.tolist())]
        if side:
            words = [word.capitalize() if i % 3 == 0 else word for i, word in enumerate(words)]
        lexicons.append(np.array(words, dtype=object))
    weights = 1.0 / np.arange(2.7, 400_002.7)
    cumulative = np.cumsum(weights) / weights.sum()
    # Renamed when they are whole.
    parts = {folder / f"{name}.part": folder / name for name in TEXT}
    files = [open(part, "w", encoding="utf-8") for part in parts]
    for start in range(0, pairs, block):
        n = min(block, pairs - start)
        lengths = np.clip(np.exp(random.normal(2.9, 0.55, n)), 1, 90).astype(int)
        others = np.clip(lengths * np.exp(random.normal(0.0, 0.15, n)), 1, 90).astype(int)
        for file, lexicon, sizes in zip(files, lexicons, (lengths, others)):
            words = lexicon[np.searchsorted(cumulative, random.random(sizes.sum()))].tolist()
            lines, at = [], 0
            for size in sizes.tolist():
                lines.append(" ".join(words[at : at + size]) + " .\n")
                at += size
            file.writelines(lines)
    for file in files:
        file.close()
    for part, name in parts.items():
        part.rename(name)


def lines_of(path):
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def run(command, **options):
    """Runs a command. Returns seconds, peak anonymous and peak resident memory in MiB, stdout and stderr."""
    started = time.monotonic()
    anonymous = resident = 0
    # Files, since a pipe that nobody reads would stop the program when it is full.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = subprocess.Popen(command, stdout=out, stderr=error, text=True, **options)
        with open(f"/proc/{process.pid}/status") as status:
            while process.poll() is None:
                try:
                    status.seek(0)
                    fields = dict(line.split(":", 1) for line in status.read().splitlines())
                except (OSError, ValueError):
                    break
                kib = lambda name: int(fields.get(name, "0 kB").split()[0])
                anonymous, resident = max(anonymous, kib("RssAnon")), max(resident, kib("VmHWM"))
                time.sleep(0.02)
        process.wait()
        seconds = time.monotonic() - started
        out.seek(0)
        error.seek(0)
        printed, told = out.read(), error.read()
    if process.returncode:
        sys.exit(f"{command}: {told}")
    return seconds, anonymous / 1024, resident / 1024, printed, told


def whole(mt, folder, pairs):
    """Measures preparing and training on all pairs."""
    prepare = [mt, "prepare", "--config", "config.toml", "--run-dir", "runs/whole", "--json"]
    seconds, anonymous, _, out, error = run(prepare, cwd=folder)
    made = json.loads(out)
    rate = next(line for line in error.splitlines() if line.startswith("prepared "))
    print(f"mt prepare: {pairs:,} pairs in {seconds:.1f} s, of that: {rate.split(', in ')[0]}; {anonymous:.0f} MiB anonymous memory at most")
    print(f"  {made['source_tokens']:,} and {made['target_tokens']:,} subwords, {made['bytes'] / 1e9:.2f} GB on disk")
    seconds, anonymous, _, _, _ = run([*prepare], cwd=folder)
    print(f"mt prepare, all there: {seconds:.1f} s, {anonymous:.0f} MiB")
    train = [mt, "train", "--config", "config.toml", "--set", "data.cache_dir=runs/data-cache", "--run-dir"]
    seconds, anonymous, resident, _, _ = run([*train, "runs/one", "--set", "train.max_updates=1"], cwd=folder)
    log = [json.loads(line) for line in open(folder / "runs/one/log.jsonl")]
    assert any(entry.get("update") == 1 for entry in log)
    print(f"mt train, one update and the end: {seconds:.1f} s; {anonymous:.0f} MiB anonymous, {resident:.0f} MiB with mapped pages")
    run([*train, "runs/straight"], cwd=folder)
    run([*train, "runs/parts", "--set", "train.max_updates=5"], cwd=folder)
    run([*train, "runs/parts", "--resume"], cwd=folder)
    files = [folder / "runs" / name / "checkpoints/step-00000008/model.safetensors" for name in ("straight", "parts")]
    same = files[0].read_bytes() == files[1].read_bytes()
    print(f"stopped after update 5 and resumed: the parameters after update 8 are {'the same, bit for bit' if same else 'DIFFERENT'}")
    return same


def peers(mt, folder, pairs):
    """Measures each program on the source side of the first pairs, three times in turn."""
    small = folder / "small"
    small.mkdir(exist_ok=True)
    for name in TEXT:
        with open(small / name, "w") as file:
            subprocess.run(["head", "-n", str(pairs), folder / name], stdout=file, check=True)
    shutil.copy(folder / "config.toml", small)
    import sentencepiece
    from tokenizers import Tokenizer

    lines = (small / "train.en").read_text(encoding="utf-8").split("\n")[:-1]
    # There may be fewer.
    pairs = len(lines)
    sentencepiece.SentencePieceTrainer.train(
        input=str(small / "train.en"), model_prefix=str(small / "bpe"), vocab_size=32000, model_type="bpe",
        input_sentence_size=500_000, shuffle_input_sentence=True, minloglevel=2)
    run([mt, "prepare", "--config", "config.toml"], cwd=small)
    [vocabulary] = (small / "runs/data-cache").glob("vocabulary-*")
    library = Tokenizer.from_file(str(vocabulary / "tokenizer.json"))
    library.encode_special_tokens = True

    def ours():
        for text in (small / "runs/data-cache").glob("text-*"):
            shutil.rmtree(text)
        _, _, _, _, error = run([mt, "prepare", "--config", "config.toml"], cwd=small)
        words = next(line for line in error.splitlines() if line.startswith("prepared ")).split()
        # `mt prepare` processes both sides.
        return 2 * pairs / float(words[words.index("in") + 1])

    def spm():
        command = ["spm_encode", f"--model={small}/bpe.model", "--output_format=id", f"--input={small}/train.en", f"--output={small}/ids"]
        return pairs / run(command)[0]

    def tokenizers():
        started = time.monotonic()
        for start in range(0, len(lines), 10_000):
            library.encode_batch_fast(lines[start : start + 10_000])
        return len(lines) / (time.monotonic() - started)

    rates = {"mt prepare": [], "tokenizers": [], "spm_encode": []}
    for _ in range(3):
        for name, measure in (("mt prepare", ours), ("tokenizers", tokenizers), ("spm_encode", spm)):
            rates[name].append(measure())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name}{' (filtering and splitting alone)' * (name == 'mt prepare')}: {rate:,.0f} sentences/s, mt is {medians['mt prepare'] / rate:.1f} times as fast")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mt")
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--peers", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="a folder for the text, which stays")
    options = parser.parse_args()
    mt = os.path.abspath(options.mt)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        # What an earlier call has left would be found prepared.
        for made in ("runs", "small"):
            shutil.rmtree(folder / made, ignore_errors=True)
        if not all((folder / name).exists() for name in TEXT):
            generate(folder, options.pairs or options.peers)
        found = [lines_of(folder / name) for name in TEXT]
        if options.pairs and found != [options.pairs] * 2:
            sys.exit(f"bench_prepare: {folder} has {found[0]} and {found[1]} lines, not {options.pairs}: remove them, or change --pairs")
        (folder / "config.toml").write_text(CONFIG)
        print(f"{os.cpu_count()} cores; text of {sum((folder / n).stat().st_size for n in TEXT) / 1e9:.2f} GB")
        same = whole(mt, folder, options.pairs) if options.pairs else True
        if options.peers:
            peers(mt, folder, options.peers)
    sys.exit(not same)


if __name__ == "__main__":
    main()
