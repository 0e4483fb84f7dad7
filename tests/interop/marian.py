#!/usr/bin/env python3
"""Compares models imported from Marian's own files with Marian: marian.py MT

Trains three small models with Marian (pymarian) on real text: one vocab.spm for both sides; YAML vocabularies of text that is
already split; and a folder like an OPUS-MT release, with SentencePiece models and a YAML vocabulary named by a decoder.yml.
Imports each with `mt import`, and compares the log-probability of each token of 500 given translations, then translations of
500 lines.

Greedy search must give the same, up to the shorter limit of tokens. Beam search is only reported: Marian's beam becomes
narrower with each translation that ends. With pre-norm, Marian's decoder differs from its scorer (it leaves out the norm of
earlier tokens in self-attention); this is shown, and only the scorer is compared.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
from pymarian import Trainer, Translator

# For log-probabilities; Marian prints them with five decimals.
TOLERANCE = 1e-4
LINES, UPDATES, LONGEST = 500, 400, 60

OPTIONS = """--type transformer --cost-type ce-mean-words --label-smoothing 0.1 --clip-norm 0 --max-length 60 --mini-batch 64 --sync-sgd
 --workspace 1000 --seed 1 --quiet --overwrite --save-freq 1000000u --cpu-threads 2 --learn-rate 0.003 --lr-warmup 60 --dim-emb 64
 --transformer-heads 4 --transformer-dim-ffn 128 --transformer-postprocess-emb d"""

MODELS = {
    "one vocab.spm, everything tied, post-norm, swish, 2 and 2 layers":
        ("spm", "--tied-embeddings-all --dim-vocabs 2000 2000 --transformer-postprocess dan --enc-depth 2 --dec-depth 2"),
    "two vocabularies of words, decoder tied, pre-norm, ReLU, 1 and 3 layers":
        ("words", "--tied-embeddings --dim-vocabs 1500 1200 --transformer-preprocess n --transformer-postprocess da --transformer-postprocess-top n "
                  "--transformer-ffn-activation relu --enc-depth 1 --dec-depth 3"),
    "OPUS-MT's folder, nothing tied, post-norm and a last norm, no output bias, 2 and 1 layers":
        ("opus", "--transformer-postprocess an --transformer-postprocess-top n --output-omit-bias --enc-depth 2 --dec-depth 1"),
}


def write(file, lines):
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def make(kind, folder, text):
    """The vocabularies, the files Marian trains on, and functions that convert a line of each side to their form."""
    if kind == "spm":
        return [folder / "vocab.spm"] * 2, text, [str, str]
    if kind == "words":
        return [folder / "vocab.en.yml", folder / "vocab.de.yml"], text, [str, str]
    processors = []
    for side, file in zip(("source", "target"), text):
        sentencepiece.SentencePieceTrainer.train(input=str(file), model_prefix=str(folder / side), model_type="unigram", vocab_size=1000, minloglevel=2)
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        processors.append(sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm")))
    split, files = [], []
    for side, file, processor in zip(("en", "de"), text, processors):
        split.append([processor.encode(line, out_type=str) for line in file.read_text(encoding="utf-8").splitlines()])
        files.append(folder / f"pieces.{side}")
        write(files[-1], [" ".join(line) for line in split[-1]])
    pieces = ["</s>", "<unk>", *sorted({piece for side in split for line in side for piece in line} - {"<unk>"})]
    vocabulary = folder / "opus.vocab.yml"
    vocabulary.write_text("".join(f"{json.dumps(piece, ensure_ascii=False)}: {i}\n" for i, piece in enumerate(pieces)), encoding="utf-8")
    return [vocabulary] * 2, files, [lambda line, p=p: " ".join(p.encode(line, out_type=str)) for p in processors]


def translate(model, vocabularies, lines, beam, penalty):
    options = (f"--models {model} --vocabs {vocabularies[0]} {vocabularies[1]} --quiet --cpu-threads 2 --beam-size {beam} --normalize {penalty} "
               "--n-best --word-scores --no-spm-decode --mini-batch 16 --maxi-batch 10 --max-length 1000 --max-length-factor 9")
    found = {}
    for block in Translator(options).translate(lines):
        for line in block.split("\n"):
            number, tokens, *_ = line.split(" ||| ")
            # The best translation comes first.
            found.setdefault(int(number), (tokens.split(), scores_of(line)))
    return [found[number] for number in range(len(lines))]


def scores_of(line):
    return [float(score) for score in line.split("WordScores=")[1].split("|||")[0].split()]


def score(model, vocabularies, files):
    """Scores with Marian's scorer, which computes as in training; it writes to the process's own stdout."""
    command = ["score", "-m", str(model), "-v", *map(str, vocabularies), "-t", *map(str, files), "--cpu-threads", "1", "--quiet", "--word-scores"]
    run = subprocess.run([sys.executable, "-c", f"import _pymarian; _pymarian.main({command!r})"], capture_output=True, check=True)
    return [scores_of(line) for line in run.stdout.decode().splitlines() if "WordScores" in line]


def lines_of(command, lines):
    run = subprocess.run(command, input="".join(line + "\n" for line in lines).encode(), capture_output=True, check=True)
    return [json.loads(line) for line in run.stdout.decode().split("\n")[:-1]]


def largest(pairs):
    # NaN is the largest, which max() alone would pass over.
    differences = [abs(x - y) for a, b in pairs for x, y in zip(a, b, strict=True)]
    return max(differences, key=lambda difference: (math.isnan(difference), difference))


def check(mt, name, kind, options, folder, text, lines):
    vocabularies, files, prepare = make(kind, folder, text)
    Trainer(f"{' '.join(OPTIONS.split())} {options} --train-sets {files[0]} {files[1]} --vocabs {vocabularies[0]} {vocabularies[1]} "
            f"--model {folder}/model.npz --after-batches {UPDATES} --beam-size 4 --normalize 1").train()
    if kind == "opus":
        # Models are released without the other files that training leaves.
        for left in (*folder.glob("model.npz.*"), *folder.glob("pieces.*")):
            left.unlink()
        (folder / "decoder.yml").write_text("models: [/elsewhere/model.npz]\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\nbeam-size: 4\nnormalize: 1\n")
    ours = folder / "ours"
    subprocess.run([mt, "import", "-q", str(folder), "--out", str(ours)], check=True)
    print(name)
    # The given translations are the references.
    given = [folder / f"given.{side}" for side in ("en", "de")]
    for file, side in zip(given, lines):
        write(file, side)
    scored = [line["token_log_probs"] for line in lines_of([mt, "score", "-q", "--json", "--model", str(ours), "--src", str(given[0]), "--tgt", str(given[1])], [])]
    write(given[0], map(prepare[0], lines[0])), write(given[1], map(prepare[1], lines[1]))
    expected = score(folder / "model.npz", vocabularies, given)
    difference = largest(zip(scored, expected, strict=True))
    print(f"  {len(expected)} given translations, {sum(map(len, expected))} tokens: log-probabilities differ by at most {difference:.1e}")
    failed = int(not difference <= TOLERANCE)
    for beam, penalty in ((1, 0.0), (4, 1.0), (6, 0.6)):
        theirs = translate(folder / "model.npz", vocabularies, list(map(prepare[0], lines[0])), beam, penalty)
        if "--transformer-preprocess n" in options:
            write(given[1], [" ".join(tokens) for tokens, _ in theirs])
            own = zip(theirs, score(folder / "model.npz", vocabularies, given), strict=True)
            # A translation cut at the maximum length has no end.
            difference = largest((a[: len(tokens)], b[: len(tokens)]) for (tokens, a), b in own)
            print(f"  Marian's decoder and its scorer differ by {difference:.1f} in the log-probability of a token of its own translations")
            assert difference > 0.1, "Marian's decoder has become right: compare with it"
            break
        command = [mt, "translate", "-q", "--json", "--model", str(ours), "--beam", str(beam), "--length-penalty", str(penalty),
                   "--max-length", str(2 * LONGEST), "--max-length-ratio", "100"]
        pairs = [(a["tokens"][:LONGEST], b[0][:LONGEST], a, b) for a, b in zip(lines_of(command, lines[0]), theirs, strict=True)]
        differ = [(a, b) for a, b, *_ in pairs if a != b]
        difference = largest((x["token_log_probs"][:LONGEST], y[1][:LONGEST]) for a, b, x, y in pairs if a == b)
        print(f"  beam {beam}, normalize {penalty}: {len(pairs)} lines, {sum(len(b) for _, b, *_ in pairs)} tokens, {len(differ)} differ; "
              f"log-probabilities of the others by at most {difference:.1e}", flush=True)
        failed += (len(differ) if beam == 1 else 0) + (not difference <= TOLERANCE)
        for a, b in differ[: 2 if beam == 1 else 0]:
            print(f"    mt     {' '.join(a)}\n    Marian {' '.join(b)}")
    return failed


def main():
    mt, root = sys.argv[1], os.environ.get("MT_TEST_DATA")
    if not root:
        print(f"SKIPPED {sys.argv[0]}: MT_TEST_DATA is unset", file=sys.stderr)
        return
    read = lambda name: (Path(root) / "multi30k" / name).read_text(encoding="utf-8").splitlines()
    lines, failed = [read(f"test_2016_flickr.{side}")[:LINES] for side in ("en", "de")], 0
    with tempfile.TemporaryDirectory() as folder:
        text = [Path(folder) / f"train.{side}" for side in ("en", "de")]
        for file, side in zip(text, ("en", "de")):
            write(file, read(f"train.{side}")[:8000])
        for name, (kind, options) in MODELS.items():
            here = Path(folder) / kind
            here.mkdir()
            failed += check(mt, name, kind, options, here, text, lines)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
