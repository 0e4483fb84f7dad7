"""BLEU on Multi30k's validation set after so many minutes of training, of `mt` and of PyTorch: `make bench-quality`.

    make bench-quality ARGS='--data FOLDER --out FOLDER'

Both train the model of configs/multi30k-tiny.toml by its recipe, one after the other, each for 30 minutes of two threads from
the start of its process; nothing else should run. `mt` makes its subwords in this time; PyTorch gets them ready. Neither
validates. The model of every 100th update is kept. Afterwards each side translates the validation set with each of its models,
beam 5, and `mt eval` scores it (case-sensitive BLEU): single models, no averages.

Prints Markdown for docs/results.md, and writes curves.svg. A side whose models are in `--out` already is not trained again.
The peer comes from PyPI, as for benches/bench_train.py; with --python a Python that has torch and matplotlib is used instead.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench_train import HUGE_PAGES, ROOT, peers

MARKS = (5, 10, 20, 30)
THREADS = "2"


def train(name: str, command: list, out: Path, minutes: float, environment: dict):
    """Runs a training for so many minutes. `NAME.start` has the time of its start, and marks that it has run."""
    if (out / f"{name}.start").exists():
        return
    print(f"training with {name}", file=sys.stderr, flush=True)
    with open(out / f"{name}.log", "w") as log:
        started = time.time()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        try:
            process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
        else:
            raise SystemExit(f"{name} ended before its time: see {out}/{name}.log")
    (out / f"{name}.start").write_text(str(started))


def models(name: str, files: list[Path], out: Path, minutes: float) -> list[tuple[float, Path]]:
    """The models that a side has written in time, the oldest first, with the minutes from its start."""
    start = float((out / f"{name}.start").read_text())
    timed = sorted(((file.stat().st_mtime - start) / 60, file) for file in files)
    return [(at, file) for at, file in timed if at <= minutes]


def score(mt: Path, arguments: list) -> float:
    command = [mt, "eval", *arguments, "--bleu", "--json", "--quiet"]
    result = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)["bleu"]["score"]


def draw(curves: dict[str, list[tuple[float, float]]], file: Path):
    # Only this needs it.
    from matplotlib import pyplot

    # Letters as text, and the same bytes each time.
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mt"})
    _, axes = pyplot.subplots(figsize=(7, 4))
    for name, points in curves.items():
        axes.plot([at for at, _ in points], [bleu for _, bleu in points], marker=".", label=name)
    axes.set(xlabel="minutes of training on two cores", ylabel="BLEU, validation set", xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    pyplot.savefig(file, bbox_inches="tight", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with Multi30k as plain text")
    parser.add_argument("--out", type=Path, required=True, help="folder for the models, some hundred MB")
    parser.add_argument("--mt", type=Path, default=ROOT / "target/release/mt", help="the binary")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="of both sides: the faster one here")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--python", type=Path, help="a Python that has the peer")
    parser.add_argument("--drawing", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drawing:
        return draw(json.loads((arguments.out / "curves.json").read_text()), arguments.out / "curves.svg")

    python = peers(arguments.python)
    data, out, mt = (path.resolve() for path in (arguments.data, arguments.out, arguments.mt))
    out.mkdir(parents=True, exist_ok=True)
    run, tokens, weights = out / "mt", out / "tokens", out / "pytorch"
    for folder in (tokens, weights):
        folder.mkdir(exist_ok=True)
    settings = (f"data.root={data}", "train.save_every=100", "train.keep=1000", "valid.every=8000")
    settings = [word for setting in (*settings, f"runtime.precision={arguments.precision}") for word in ("--set", setting)]
    config = ROOT / "configs/multi30k-tiny.toml"
    command = [mt, "train", "--config", config, *settings, "--run-dir", run, "--threads", THREADS]
    train("mt", command, out, arguments.minutes, {})

    for name in (f"{part}.{side}" for part in ("train", "valid") for side in ("en", "de")):
        with open(tokens / name, "w", encoding="utf-8") as file:
            subprocess.run([mt, "tokenize", "--model", run, "--input", data / name], check=True, stdout=file)
    peer = [python, ROOT / "benches/pytorch_multi30k.py", "--tokens", tokens, "--tokenizer", run / "tokenizer.json",
            "--updates", "8000", "--precision", arguments.precision, "--weights", weights, "--threads", THREADS]  # fmt: skip
    train("pytorch", peer, out, arguments.minutes, HUGE_PAGES)

    valid = [data / "valid.en", data / "valid.de"]
    curves = {"mt": [], "PyTorch": []}
    for minutes, file in models("mt", list(run.glob("checkpoints/step-*/manifest.json")), out, arguments.minutes):
        bleu = score(mt, ["--model", run, "--checkpoint", int(file.parent.name[5:]), "--src", valid[0], "--ref", valid[1], "--beam", 5])
        curves["mt"].append((minutes, bleu))

    info = out / "info.json"
    with open(info, "w") as file:
        subprocess.run([mt, "info", run, "--json"], check=True, stdout=file)
    model, pieces, text = out / "model", out / "translated", out / "translated.de"
    model.mkdir(exist_ok=True)
    (model / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    for minutes, file in models("pytorch", list(weights.glob("*.safetensors")), out, arguments.minutes):
        (model / "model.safetensors").write_bytes(file.read_bytes())
        subprocess.run([python, ROOT / "benches/pytorch_peer.py", "decode", "--model", model, "--info", info, "--device", "cpu",
                        "--input", tokens / "valid.en", "--output", pieces, "--beam", "5"],
                       check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        subprocess.run([mt, "detokenize", "--model", run, "--target", "--input", pieces, "--output", text], check=True)
        curves["PyTorch"].append((minutes, score(mt, ["--hyp", text, "--ref", valid[1]])))
    (out / "curves.json").write_text(json.dumps(curves))
    subprocess.run([python, __file__, "--data", data, "--out", out, "--drawing"], check=True)

    marks = [mark for mark in MARKS if mark <= arguments.minutes]
    print(f"| BLEU after | {' | '.join(f'{mark} minutes' for mark in marks)} |\n|---|{'---:|' * len(marks)}")
    for name, points in curves.items():
        reached = [max(((at, bleu) for at, bleu in points if at <= mark), default=(0, 0.0))[1] for mark in marks]
        print(f"| {name} | {' | '.join(f'{bleu:.2f}' for bleu in reached)} |")


if __name__ == "__main__":
    main()
