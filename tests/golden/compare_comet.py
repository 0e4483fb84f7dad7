"""Compares scores of mt with those of unbabel-comet, line by line, on the models in comet/ and any text.

    cd tests/golden && python compare_comet.py ../../target/release/mt --src source --hyp translations --ref references

See comet_models.py for what to install. It ends with an AssertionError if a score differs by more than 1e-4.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from comet import load_from_checkpoint

FOLDER = Path("comet").resolve()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mt")
    for name in ("src", "hyp", "ref"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    arguments = parser.parse_args()
    files = {"src": arguments.src, "mt": arguments.hyp, "ref": arguments.ref}
    # As mt reads them: lines end with a line feed alone; white space at their end does not count.
    lines = {name: file.read_bytes().decode().removesuffix("\n").split("\n") for name, file in files.items()}
    for folder in sorted(path for path in FOLDER.iterdir() if (path / "hparams.yaml").exists()):
        model = load_from_checkpoint(str(folder / "checkpoints" / "model.ckpt"), local_files_only=True).eval()
        needs = ["src", "mt", "ref"] if "referenceless" not in folder.name and "kiwi" not in folder.name else ["src", "mt"]
        samples = [dict(zip(needs, line)) for line in zip(*(lines[name] for name in needs))]
        expected = model.predict(samples, batch_size=16, gpus=0, num_workers=0, progress_bar=False).scores
        key = "comet" if "ref" in needs else "qe"
        with tempfile.TemporaryDirectory() as place:
            # The encoder's files belong beside the checkpoint.
            for name in ("hparams.yaml", "checkpoints"):
                (Path(place) / name).symlink_to(folder / name)
            (Path(place) / "encoder").symlink_to(FOLDER / "encoder")
            command = [arguments.mt, "eval", "-q", "--json", "--sentence-level", f"--{key}", place]
            for flag, file in zip(("--src", "--hyp", "--ref"), files.values()):
                command += [flag, str(file)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = [json.loads(line)[key]["score"] for line in output.splitlines()]
        assert len(found) == len(expected)
        difference = max(abs(a - b) for a, b in zip(found, expected))
        print(f"{folder.name}: {len(found)} lines, largest difference {difference:.1e}")
        assert difference < 1e-4


if __name__ == "__main__":
    main()
