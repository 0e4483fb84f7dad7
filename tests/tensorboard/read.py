#!/usr/bin/env python3
"""Trains some updates, stops, resumes, and compares what the real TensorBoard reads with log.jsonl: read.py MT"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Tags of train and valid entries, and the number that each shows.
SHOWN = {
    "train": {
        "train/label_smoothed_loss": lambda entry: entry["loss"],
        "train/cross_entropy": lambda entry: math.log(entry["perplexity"]),
        "train/perplexity": lambda entry: entry["perplexity"],
        "train/learning_rate": lambda entry: entry["learning_rate"],
        "train/gradient_norm": lambda entry: entry["gradient_norm"],
        "speed/tokens_per_second": lambda entry: entry["tokens_per_second"],
        "memory/MiB": lambda entry: entry["memory"] / 2**20,
    },
    "valid": {
        "valid/label_smoothed_loss": lambda entry: entry["loss"],
        "valid/perplexity": lambda entry: entry["perplexity"],
        "valid/bleu": lambda entry: entry["bleu"],
        "valid/chrf": lambda entry: entry["chrf"],
    },
    "final": {
        "final/perplexity": lambda entry: entry["perplexity"],
        "final/bleu": lambda entry: entry["bleu"],
        "final/chrf": lambda entry: entry["chrf"],
    },
}


def main():
    mt = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [mt, "train", "-q", "--config", "configs/quickstart.toml", "--run-dir", str(run), "--set", "train.log_every=5",
                   "--set", "valid.every=10", "--set", "train.save_every=10"]
        subprocess.run([*command, "--set", "train.max_updates=20"], check=True)
        subprocess.run([*command, "--set", "train.max_updates=40", "--resume"], check=True)
        log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        events = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
        events.Reload()
        points = 0
        for event, tags in SHOWN.items():
            for tag, number in tags.items():
                expected = [(entry["update"], number(entry)) for entry in log if entry["event"] == event]
                found = [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]
                assert [step for step, _ in found] == [step for step, _ in expected], (tag, found, expected)
                for (step, value), (_, wanted) in zip(found, expected):
                    assert math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-9), (tag, step, value, wanted)
                points += len(found)
        samples = events.Tensors("valid/samples")
        texts = [entry["samples"] for entry in log if entry["event"] == "valid"]
        assert len(samples) == len(texts) > 0
        for sample, text in zip(samples, texts):
            shown = [string.decode("utf-8").split() for string in sample.tensor_proto.string_val]
            assert shown == [line.split() for line in text], (shown, text)
        # Three samples per validation, before and after the stop, and those of the final model.
        updates = [entry["update"] for entry in log if entry["event"] == "valid"]
        pictures = 0
        for number in range(1, 4):
            images = events.Images(f"attention/{number}")
            assert sorted(image.step for image in images) == updates, (images, updates)
            assert [image.step for image in events.Images(f"final/attention/{number}")] == [40]
            for image in images:
                assert image.encoded_image_string.startswith(b"\x89PNG") and min(image.width, image.height) > 100, image
            pictures += len(images) + 1
    print(f"TensorBoard reads {pictures} pictures, {points} points and {len(samples)} sets of samples as they are in log.jsonl")


if __name__ == "__main__":
    main()
