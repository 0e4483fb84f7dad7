"""Training speed of `mt` beside PyTorch and Marian, by turns on one machine: `make bench-train`.

    make bench-train                                       synthetic batches: base, tiny, base on one thread
    make bench-train ARGS='--data FOLDER'                  and Multi30k (train.en, train.de, valid.en, valid.de)
    make bench-train ARGS='--only tiny --rounds 3'

Every round runs each side once; a run's figure is the median of its updates after the warm-up, the table's the
median of the rounds. All sides count target tokens that are not padding, under the same segmentation. PyTorch gets
huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1), which it needs for a steady figure.

With --compile, the synthetic batches are also given to PyTorch under torch.compile (needs a C++ compiler).

With --joeynmt, --sockeye or --fairseq, each a Python that has this toolkit, Multi30k's table has it too: benches/toolkits.py.

The peers come from PyPI into target/bench-venv (about 6 GB); with --python a Python that has them is used instead.
Prints Markdown for docs/benchmarks.md.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import toolkits

ROOT = Path(__file__).resolve().parent.parent
PEERS = [
    "torch==2.11.0",
    "numpy==2.4.6",
    "pymarian==1.12.42",
    "ctranslate2==4.8.5",
    "safetensors==0.6.2",
    "tokenizers==0.23.3",
    "matplotlib==3.10.8",
]
REAL_UPDATES = 100


@dataclass
class Side:
    """One program in one setting."""

    name: str
    command: list
    figure: re.Pattern
    environment: dict
    # How many figures to leave out at the beginning, if a run prints many.
    warmup: int = 0
    # What a figure is multiplied with to be target tokens a second.
    scale: float = 1.0


@dataclass
class Result:
    speed: float
    memory: float  # GiB, the peak of resident memory


SPEED = re.compile(r"(\d+) target tokens/s")
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def run(side: Side) -> Result:
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            list(map(str, side.command)), stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **side.environment}, cwd=ROOT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    figures = [float(figure) for figure in side.figure.findall(text)][side.warmup :]
    if process.returncode != 0 or not figures:
        raise SystemExit(f"bench-train: {side.name} failed: {' '.join(map(str, side.command))}\n{text}")
    return Result(side.scale * statistics.median(figures), usage.ru_maxrss / 2**20)


def located(program: Path) -> Path:
    """A program by its name or its path: absolute, since it is run in another folder, but not what a link leads to, since
    Python knows its virtual environment by the link."""
    found = shutil.which(program)
    if not found:
        raise SystemExit(f"{program} is missing, or cannot be run")
    return Path(found).absolute()


def peers(python: Path | None) -> Path:
    """A Python with the peers, installed if necessary."""
    if python:
        return located(python)
    folder = ROOT / "target" / "bench-venv"
    subprocess.run([ROOT / "scripts/pinned-python.sh", folder, " ".join(PEERS), "-c", ""], check=True)
    return folder / "bin" / "python"


def build() -> tuple[Path, Path]:
    """The `mt` binary and the synthetic benchmark's."""
    command = ["cargo", "build", "--release", "--locked", "--bin", "mt", "--bench", "train_step"]
    built = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = map(json.loads, built.stdout.splitlines())
    binaries = {m["target"]["name"]: Path(m["executable"]) for m in messages if m.get("executable")}
    return binaries["mt"], binaries["train_step"]


def synthetic(shape: str, threads: int, bench: Path, python: Path, updates: int, compiled: bool) -> list[Side]:
    common = ["--shape", shape, "--threads", str(threads), "--updates", str(updates)]

    def mt(precision: str) -> Side:
        return Side(f"mt {precision}", [bench, *common, "--precision", precision], SPEED, {})

    def torch(precision: str, name: str, *more: str) -> Side:
        command = [python, ROOT / "benches/pytorch_train.py", *common, "--precision", precision, *more]
        return Side(name, command, SPEED, HUGE_PAGES)

    sides = [torch("f32", "PyTorch f32"), mt("f32"), torch("bf16", "PyTorch bf16 (autocast)"), mt("bf16")]
    if compiled:
        sides[1:1] = [torch("f32", "PyTorch f32, compiled", "--compile")]
        sides[4:4] = [torch("bf16", "PyTorch bf16 (autocast), compiled", "--compile")]
    return sides


def real(data: Path, mt: Path, python: Path, others: dict[str, Path], folder: Path) -> list[Side]:
    """Multi30k, the whole loop; tokenizes the corpus with `mt`'s own subwords for the peers, `others` among them."""
    config = ["--config", "configs/multi30k-tiny.toml", "--set", f"data.root={data}"]
    quiet = ["--set", "train.average_last=0", "--set", "valid.every=0"]
    model, tokens = folder / "model", folder / "tokens"
    tokens.mkdir()
    first = [mt, "train", *config, *quiet, "--run-dir", model, "--set", "train.max_updates=1"]
    made = subprocess.run(first, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise SystemExit(f"bench-train: mt train failed: {made.stderr}")
    for name in (f"{part}.{side}" for part in ("train", "valid") for side in ("en", "de")):
        with open(tokens / name, "w", encoding="utf-8") as file:
            subprocess.run([mt, "tokenize", "--model", model, "--input", data / name], check=True, stdout=file)
    peer = ["--tokens", tokens, "--tokenizer", model / "tokenizer.json"]

    def ours(precision: str) -> Side:
        limits = [f"train.max_updates={REAL_UPDATES}", "train.log_every=10", f"runtime.precision={precision}"]
        sets = [argument for limit in limits for argument in ("--set", limit)]
        command = [mt, "train", *config, *quiet, *sets, "--run-dir", folder / "run", "--overwrite", "--threads", "2"]
        return Side(f"mt {precision}", command, re.compile(r"(\d+) tok/s"), {}, warmup=2)

    def other(name: str) -> Side:
        # Sockeye tells of every fiftieth update.
        updates = 100 if name == "sockeye" else 60
        toolkit = getattr(toolkits, name)(others[name], tokens, model / "tokenizer.json", folder, updates)
        environment = {**HUGE_PAGES, "OMP_NUM_THREADS": "2"}
        return Side(toolkit.name, toolkit.command, toolkit.figure, environment, warmup=1, scale=toolkit.scale)

    return [
        Side(
            "Marian",
            [python, ROOT / "benches/marian_train.py", *peer, "--updates", "50"],
            re.compile(r"([\d.]+) words/s"),
            HUGE_PAGES,
            warmup=1,
        ),
        ours("f32"),
        Side(
            "PyTorch f32",
            [python, ROOT / "benches/pytorch_multi30k.py", *peer, "--updates", str(REAL_UPDATES)],
            re.compile(r"(\d+) tok/s"),
            HUGE_PAGES,
            warmup=1,
        ),
        ours("bf16"),
        *map(other, others),
    ]


def table(title: str, sides: list[Side], rounds: int):
    """Runs the sides in turns; the others are compared with the first."""
    results = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            result = run(side)
            results[side.name].append(result)
            print(f"round {number + 1}, {title}, {side.name}: {result.speed:.0f}", file=sys.stderr, flush=True)
    print(f"\n**{title}**\n\n| | target tokens/s | lowest to highest | against {sides[0].name} | memory, GiB |")
    print("|---|---:|---:|---:|---:|")
    for name, runs in results.items():
        speeds = [result.speed for result in runs]
        # The ratio of each round, since a shared machine's speed drifts between them.
        ratios = [mine.speed / first.speed for mine, first in zip(runs, results[sides[0].name])]
        memory = max(result.memory for result in runs)
        print(
            f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} "
            f"| {statistics.median(ratios):.2f} | {memory:.2f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=5, help="timed updates of a synthetic run")
    parser.add_argument("--only", nargs="+", choices=("base", "tiny", "one-thread", "multi30k"))
    parser.add_argument("--compile", action="store_true", help="time torch.compile too, on synthetic batches")
    parser.add_argument("--data", type=Path, help="folder with Multi30k as plain text")
    parser.add_argument("--python", type=Path, help="a Python that has the peers")
    for name in ("joeynmt", "sockeye", "fairseq"):
        parser.add_argument(f"--{name}", type=Path, help="a Python that has this toolkit")
    arguments = parser.parse_args()
    wanted = arguments.only or ["base", "tiny", "one-thread", *(["multi30k"] if arguments.data else [])]
    if "multi30k" in wanted and not arguments.data:
        parser.error("multi30k needs --data")
    mt, bench = build()
    python = peers(arguments.python)
    for shape, threads, name, title in [
        ("base", 2, "base", "base 6+6, 512/2048, V 32,000, 32×32 tokens, 2 threads"),
        ("base", 1, "one-thread", "base, 1 thread"),
        ("tiny", 2, "tiny", "tiny 4+4, 128/256, V 10,000, 256×16 tokens, 2 threads"),
    ]:
        if name in wanted:
            sides = synthetic(shape, threads, bench, python, arguments.updates, arguments.compile)
            table(title, sides, arguments.rounds)
    if "multi30k" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            others = {name: getattr(arguments, name) for name in ("joeynmt", "sockeye", "fairseq")}
            others = {name: located(other) for name, other in others.items() if other}
            sides = real(arguments.data.resolve(), mt, python, others, Path(folder))
            table("tiny on Multi30k, batches of 4,096 tokens, 2 threads", sides, arguments.rounds)


if __name__ == "__main__":
    main()
