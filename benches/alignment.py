"""How well `mt translate --alignment` agrees with a statistical aligner: eflomal, from PyPI, which needs the training text.

    python3 benches/alignment.py target/release/mt RUN --train train.en train.de --input test.en [--lines 600]

Translates lines, aligns the translations together with the training text in both directions, and prints the alignment error
rate (Och and Ney 2003) of mt's links between words, with the links of both directions as sure and those of either as possible.
No person has checked those links: the rate compares ways of aligning, and is not that of a gold standard.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from eflomal import Aligner

TOKEN = re.compile(r"\w+|[^\w\s]")


def lines_of(path):
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def tokens_of(line):
    """The tokens of a line for eflomal, and the number of the word that each is part of."""
    found = [(token.lower(), number) for number, word in enumerate(line.split()) for token in TOKEN.findall(word)]
    return found or [("-", 0)]


def links_of(text):
    return {tuple(map(int, link.split("-"))) for link in text.split()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mt")
    parser.add_argument("model")
    parser.add_argument("--train", nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--input", required=True)
    parser.add_argument("--lines", type=int, default=600)
    args = parser.parse_args()

    sources = lines_of(args.input)[: args.lines]
    command = [args.mt, "translate", "--model", args.model, "--alignment", "-q"]
    output = subprocess.run(command, input="\n".join(sources) + "\n", capture_output=True, text=True, check=True).stdout
    translations, found = zip(*(line.rsplit(" ||| ", 1) if " ||| " in line else (line, "") for line in output.splitlines()))

    train = [lines_of(path) for path in args.train]
    pairs = [(tokens_of(s), tokens_of(t)) for s, t in zip(train[0] + sources, train[1] + list(translations), strict=True)]
    with tempfile.TemporaryDirectory() as directory:
        names = [str(Path(directory) / name) for name in ("source", "target", "forward", "reverse")]
        for side in (0, 1):
            text = "".join(" ".join(token for token, _ in pair[side]) + "\n" for pair in pairs)
            Path(names[side]).write_text(text, encoding="utf-8")
        with open(names[0], encoding="utf-8") as source, open(names[1], encoding="utf-8") as target:
            Aligner().align(source, target, links_filename_fwd=names[2], links_filename_rev=names[3], quiet=True)
        forward, reverse = (lines_of(name)[-len(sources):] for name in names[2:])

    made = right = sure = sure_found = 0
    for (source, target), ours, one, other in zip(pairs[-len(sources):], found, forward, reverse):
        words = lambda links: {(source[s][1], target[t][1]) for s, t in links}
        one, other, ours = links_of(one), links_of(other), links_of(ours)
        certain, possible = words(one & other), words(one | other)
        made += len(ours)
        right += len(ours & possible)
        sure += len(certain)
        sure_found += len(ours & certain)
    rate = 1 - (sure_found + right) / (made + sure)
    print(f"{len(sources)} lines, {made} links: {right / made:.3f} of them possible, {sure_found / sure:.3f} of the sure ones found, error rate {rate:.3f}")


if __name__ == "__main__":
    main()
