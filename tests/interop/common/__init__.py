"""What the comparisons of imported models share."""

import os
import subprocess
import sys
from pathlib import Path

# Scores that differ less are ties: 32-bit sums depend on their order.
TIE = 1e-4
# The most that two scores of the same translation may differ: a sum over up to 41 tokens.
SAME = 1e-3
# The most tokens of a translation.
NEW_TOKENS = 40


def corpus():
    """The English and the German file of a real corpus in $MT_TEST_DATA, and words of each. Without it, ends the program."""
    root = os.environ.get("MT_TEST_DATA")
    if not root:
        print(f"SKIPPED {sys.argv[0]}: MT_TEST_DATA is unset", file=sys.stderr)
        sys.exit()
    files = [Path(root) / "multi30k" / f"train.{side}" for side in ("en", "de")]
    return files, [file.read_text(encoding="utf-8").split()[:20_000] for file in files]


def lines_of(command, text):
    run = subprocess.run(command, input="".join(line + "\n" for line in text).encode(), capture_output=True, check=False)
    if run.returncode:
        sys.exit(f"{command}: {run.stderr.decode()}")
    return run.stdout.decode().split("\n")[:-1]


def compare(name, ours, theirs, of_all=True):
    """Counts translations that differ by more than a tie, and equal ones with other scores. CTranslate2's scores are of fewer tokens:
    not `of_all`, and what differs there counts in any case."""
    pairs = list(zip(ours, theirs, strict=True))
    differ = [(a, b) for a, b in pairs if a[0] != b[0]]
    if not of_all:
        print(f"  {name}: {len(ours)} lines, {sum(len(b[0]) for b in theirs)} tokens, {len(differ)} differ", flush=True)
        return len(differ)
    # Not `>`, which NaN would pass.
    bad = [(a, b) for a, b in pairs if not abs(a[1] - b[1]) <= (TIE if a[0] != b[0] else SAME)]
    tokens, ended = sum(len(b[0]) for b in theirs), sum(len(b[0]) < NEW_TOKENS for b in theirs)
    print(f"  {name}: {len(ours)} lines ({ended} end by themselves), {tokens} tokens, {len(differ)} differ; {len(bad)} by more than a tie, or in their score alone", flush=True)
    for (a, x), (b, y) in bad[:3]:
        print(f"    mt {x:.6f} {a}\n       {y:.6f} {b}")
    return len(bad)


def random_lines(draw, words, count):
    odd = ["naïve", "ﬁn", "½", "…", "中文", "🙂", "<p>?", "  ", "Ａ", "x\u0301"]
    return [" ".join(draw.choice(words if draw.random() < 0.95 else odd) for _ in range(draw.randint(1, 14))).strip() or "a" for _ in range(count)]
