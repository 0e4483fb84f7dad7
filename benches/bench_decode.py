"""Speed of translation of `mt` beside CTranslate2 and Marian, by turns on one machine: `make bench-decode`.

    make bench-decode                                     random sentences to a fixed length: base and tiny
    make bench-decode ARGS='--model RUN --data FOLDER'    and a file of text with a trained model
    make bench-decode ARGS='--only tiny --rounds 3'
    make bench-decode ARGS='--only nllb'                  the shape of NLLB-200's distilled model with 600 million parameters

CTranslate2 runs the very weights that `mt` runs, and so does Marian on random sentences. RUN is a run of configs/multi30k-tiny.toml; FOLDER holds train.{en,de}
and test_2016_flickr.{en,de}. Of text Marian runs a model of the same shape that is trained here for --marian-updates updates
(or --marian FOLDER, from benches/marian_train.py --save): long enough for translations of the usual length. With 0 updates, it is
left out there.

Every round runs each side once. CTranslate2 is run with each division of the threads, and the fastest counts, setting by setting.
Random sentences: the best of three passes of a run, target tokens a second. Text: from the
start of the process to the last line written. The peers come from PyPI into target/bench-venv (about 6 GB); with --python a
Python that has them is used instead. Prints Markdown for docs/benchmarks.md.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench_train import ROOT, peers

FIGURE = re.compile(r"(\d+) target tokens/s")
SETTINGS = [(1, 64), (4, 64), (1, 1), (4, 1)]
# How CTranslate2 may use two threads: both for one batch, a batch each, or (for small models) only one.
DIVISIONS = {"2 threads": ["--threads", 2], "2 workers": ["--threads", 1, "--workers", 2], "1 thread": ["--threads", 1]}


@dataclass
class Run:
    figure: float
    memory: float  # MiB, the most that was resident


def run(command: list, figure: re.Pattern | None = None) -> Run:
    """Runs a command; its figure is what it prints, or else the seconds it took."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    found = figure.search(text) if figure else None
    if process.returncode != 0 or (figure and not found):
        raise SystemExit(f"bench-decode: failed: {' '.join(map(str, command))}\n{text}")
    return Run(float(found[1]) if found else seconds, usage.ru_maxrss / 2**10)


def build() -> tuple[Path, Path]:
    command = ["cargo", "build", "--release", "--locked", "--bin", "mt", "--bench", "decode", "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    messages = map(json.loads, built.stdout.splitlines())
    binaries = {m["target"]["name"]: Path(m["executable"]) for m in messages if m.get("executable")}
    return binaries["mt"], binaries["decode"]


def progress(text: str):
    print(f"bench-decode: {text}", file=sys.stderr, flush=True)


def fixed_length(shape: str, bench: Path, python: Path, rounds: int, folder: Path):
    """Random sentences of 16 tokens, 20 target tokens each."""
    weights = folder / f"{shape}.safetensors"
    run([bench, "--shape", shape, "--export", weights])

    def peer(program: str, script: str, precisions: list[str]) -> list[tuple[str, list]]:
        """A program's sides: its name with each precision, and the command."""
        script, model = ROOT / "benches" / script, folder / f"{shape}.{program}"
        run([python, script, "--weights", weights, "--save", model])
        return [(f"{program} {precision}", [python, script, "--model", model, "--precision", precision])
                for precision in precisions]  # fmt: skip

    ours = [(f"mt {precision}", [bench, "--shape", shape, "--weights", weights, "--precision", precision])
            for precision in ("f32", "bf16", "int8")]
    divided = [
        (f"{name}, {division}", [*command, *flags])
        for name, command in peer("CTranslate2", "ctranslate2_decode.py", ["float32", "int8"])
        for division, flags in DIVISIONS.items()
    ]  # fmt: skip
    theirs = [
        *divided,
        # Marian has no pre-norm that computes what was trained.
        *(peer("Marian", "marian_decode.py", ["float32", "packed8", "intgemm8"]) if shape != "nllb" else []),
    ]
    sides = [*theirs, *ours]
    results = {name: {setting: [] for setting in SETTINGS} for name, _ in sides}
    for number in range(rounds):
        for beam, batch in SETTINGS:
            # One at a time takes as long for fewer sentences.
            sentences = batch if batch > 1 else {"base": 8, "tiny": 64, "nllb": 2}[shape]
            common = ["--beam", beam, "--batch", batch, "--sentences", sentences, "--passes", 3]
            for name, command in sides:
                result = run([*command, *common], FIGURE)
                results[name][beam, batch].append(result)
                progress(f"round {number + 1}, {shape}, {name}, beam {beam} x{batch}: {result.figure:.0f}")
    titles = [f"{'greedy' if beam == 1 else f'beam {beam}'} ×{batch}" for beam, batch in SETTINGS]
    print(f"\n**{shape}, target tokens/s**\n\n| | {' | '.join(titles)} | memory, MiB |\n|---|{'---:|' * 5}")
    for name, by_setting in results.items():
        medians = [f"{statistics.median(r.figure for r in runs):,.0f}" for runs in by_setting.values()]
        memory = max(r.memory for runs in by_setting.values() for r in runs)
        print(f"| {name} | {' | '.join(medians)} | {memory:,.0f} |", flush=True)

    def ratio(mine: str, others: list[str], setting) -> float:
        """The median over the rounds of the ratio to the fastest of the others."""
        best = [max(runs) for runs in zip(*([r.figure for r in results[name][setting]] for name in others))]
        return statistics.median(m.figure / b for m, b in zip(results[mine][setting], best))

    of = {program: [name for name, _ in theirs if name.startswith(program)] for program in ("CTranslate2", "Marian")}
    for title, mine, others in [
        ("mt f32 against the fastest float32", "mt f32", [name for name, _ in theirs if "float32" in name]),
        ("mt bf16 against CTranslate2's fastest", "mt bf16", of["CTranslate2"]),
        ("mt int8 against CTranslate2's fastest", "mt int8", of["CTranslate2"]),
        ("mt int8 against Marian's fastest", "mt int8", of["Marian"]),
    ]:
        if not others:
            continue
        ratios = [f"{ratio(mine, others, setting):.2f}" for setting in SETTINGS]
        print(f"| *{title}* | {' | '.join(ratios)} | |", flush=True)


def text(model: Path, data: Path, mt: Path, python: Path, arguments, folder: Path):
    """A test set, from the start to the end of the process."""
    tokenizer, source = model / "tokenizer.json", data / "test_2016_flickr.en"
    converter = ROOT / "benches/ctranslate2_decode.py"
    run([python, converter, "--weights", model / "model.safetensors", "--tokenizer", tokenizer, "--save", folder / "ct2"])
    # Commands run in another directory.
    marian = arguments.marian and arguments.marian.resolve()
    if not marian and arguments.marian_updates:
        progress(f"training a model with Marian: {arguments.marian_updates} updates")
        tokens, marian = folder / "tokens", folder / "marian"
        tokens.mkdir()
        for side in ("en", "de"):
            with open(tokens / f"train.{side}", "w", encoding="utf-8") as file:
                command = [mt, "tokenize", "--model", model, "--input", data / f"train.{side}"]
                subprocess.run(command, check=True, stdout=file)
        run([python, ROOT / "benches/marian_train.py", "--tokens", tokens, "--tokenizer", tokenizer,
             "--updates", arguments.marian_updates, "--save", marian,
             # With the recipe's own rate Marian, which draws larger attention weights, does not learn.
             "--learning-rate", "0.002", "--warmup", "500"])  # fmt: skip
    peer = [python, ROOT / "benches/peer_translate.py", "--tokenizer", tokenizer, "--input", source]
    sides = {}
    # CTranslate2 may divide threads and text as it is fastest.
    for precision in ("float32", "int8"):
        for division, flags in DIVISIONS.items():
            for batches, more in {"64 lines": [], "4,096 tokens": ["--batch-tokens", 4096]}.items():
                sides[f"CTranslate2 {precision}, {division}, {batches}"] = [
                    *peer, "--peer", "ctranslate2", "--model", folder / "ct2", "--precision", precision, *flags, *more]  # fmt: skip
    if marian:
        sides["Marian float32"] = [
            *peer, "--peer", "marian", "--model", marian / "model.npz", "--vocabulary", marian / "vocabulary.yml"]  # fmt: skip
    ours = [mt, "translate", "--model", model, "--quiet", "--beam", 5, "--threads", 2, "--input", source]
    like_peers = ["--length-penalty-kind", "power", "--length-penalty", 1, "--patience", 1]
    for precision in ("f32", "bf16", "int8"):
        sides[f"mt {precision}"] = [*ours, *like_peers, "--precision", precision]
    runs = {name: [] for name in sides}
    for number in range(arguments.rounds):
        for name, command in sides.items():
            result = run([*command, "--output", folder / f"{name}.de"])
            runs[name].append(result)
            progress(f"round {number + 1}, text, {name}: {result.figure:.2f} s")
    words = {name: len((folder / f"{name}.de").read_text(encoding="utf-8").split()) for name in sides}
    lines = len(source.read_text(encoding="utf-8").splitlines())
    print(f"\n**{lines} lines of text, beam 5, 2 threads: from the start to the end of the process**\n")
    print("| | seconds | lines/s | BLEU | words out | memory, MiB |\n|---|---:|---:|---:|---:|---:|")
    for name, results in runs.items():
        seconds = statistics.median(r.figure for r in results)
        command = [mt, "eval", "--hyp", folder / f"{name}.de", "--ref", data / "test_2016_flickr.de", "--json", "--quiet"]
        scored = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        bleu = json.loads(scored.stdout)["bleu"]["score"]
        memory = max(r.memory for r in results)
        print(f"| {name} | {seconds:.2f} | {lines / seconds:,.0f} | {bleu:.2f} | {words[name]:,} | {memory:,.0f} |", flush=True)
    one = [mt, "translate", "--model", model, "--quiet", "A dog runs over the grass."]
    seconds = statistics.median(run(one).figure for _ in range(max(arguments.rounds, 5)))
    print(f"\nStart to the translation of one sentence, `mt translate \"A dog …\"`: {1000 * seconds:.0f} ms.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=("base", "tiny", "nllb", "text"))
    parser.add_argument("--model", type=Path, help="a run of configs/multi30k-tiny.toml")
    parser.add_argument("--data", type=Path, help="folder with Multi30k as plain text")
    parser.add_argument("--marian", type=Path, help="a model of benches/marian_train.py --save")
    parser.add_argument("--marian-updates", type=int, default=800, help="0: text without Marian")
    parser.add_argument("--python", type=Path, help="a Python that has the peers")
    arguments = parser.parse_args()
    wanted = arguments.only or ["base", "tiny", *(["text"] if arguments.model else [])]
    if "text" in wanted and not (arguments.model and arguments.data):
        parser.error("text needs --model and --data")
    mt, bench = build()
    python = peers(arguments.python)
    with tempfile.TemporaryDirectory() as folder:
        for shape in ("base", "tiny", "nllb"):
            if shape in wanted:
                fixed_length(shape, bench, python, arguments.rounds, Path(folder))
        if "text" in wanted:
            text(arguments.model.resolve(), arguments.data.resolve(), mt, python, arguments, Path(folder))


if __name__ == "__main__":
    main()
