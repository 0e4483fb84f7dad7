#!/usr/bin/env python3
"""Compares training by factors of low rank with PyTorch: low_rank.py MT

Fine-tunes random multilingual models of Hugging Face `transformers` for two updates with `train.low_rank`. PyTorch computes the
same losses and the gradients of the same factors, which it adds in the forward pass: x·W₀ᵀ + s·(x·Aᵀ)·Bᵀ. Gradients of `mt` are
taken from the first moments that its checkpoints hold. Then the exported model, in which the factors are merged, is compared with
the unmerged one: logits, and greedy translations.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from common import NEW_TOKENS, corpus, lines_of, random_lines
from multilingual import CLASSES, MODELS, language_id, make, source_of, train
from transformers import AutoModelForSeq2SeqLM

RANK, ALPHA, PAIRS, BETA = 4, 12.0, 24, 0.9

CONFIG = """
[data]
train = [{{ source = "{folder}/train.source", target = "{folder}/train.target", source_language = "{pair[0]}", target_language = "{pair[1]}" }}]
max_length = 100
[model]
dropout = 0.0
embedding_dropout = 0.0
attention_dropout = 0.0
activation_dropout = 0.0
[train]
init = "{ours}"
low_rank = {{ rank = {rank}, alpha = {alpha} }}
batch_tokens = 100000
max_updates = 2
label_smoothing = {smoothing}
save_every = 1
log_every = 1
schedule = {{ kind = "constant", learning_rate = 1e-2 }}
optimizer = {{ kind = "adam", betas = [{beta}, 0.98] }}
[valid]
every = 0
"""


def tensors(file):
    """The tensors of a safetensors file in the order of their data."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
    read = lambda entry: numpy.frombuffer(data[8 + length :][slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
    return {name: torch.from_numpy(read(entry).copy()) for name, entry in entries}


class Unmerged(torch.nn.Module):
    """A projection with factors beside its weight."""

    def __init__(self, linear, a, b, scale):
        super().__init__()
        self.linear, self.scale = linear, scale
        self.a, self.b = torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone())

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.a.T) @ self.b.T


def unmerged(theirs, saved):
    """The model with the factors of a checkpoint, and these modules in the order of the checkpoint."""
    net = AutoModelForSeq2SeqLM.from_pretrained(theirs, dtype=torch.float32).eval()
    modules = []
    for name in [name for name in saved if name.endswith(".low_rank_a")]:
        path = "model." + name.removesuffix(".weight.low_rank_a").replace("cross_attn", "encoder_attn").replace("feed_forward.", "")
        parent, _, last = path.rpartition(".")
        factors = saved[name], saved[name.removesuffix("_a") + "_b"]
        module = Unmerged(net.get_submodule(path), *factors, saved["low_rank.scale"].item())
        setattr(net.get_submodule(parent), last, module)
        modules.append(module)
    return net, modules


def gradients(net, modules, tokenizer, family, pair, lines, targets, smoothing):
    """The loss per token, and the gradients of all factors."""
    batch, language = source_of(tokenizer, family, lines, pair[0]), language_id(tokenizer, family, pair[1])
    rows = [[language, *tokenizer(target, add_special_tokens=False).input_ids, 2] for target in targets]
    longest = max(map(len, rows))
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    inputs = torch.tensor([[2, *row[:-1]] + [1] * (longest - len(row)) for row in rows])
    logits = net(**batch, decoder_input_ids=inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    loss.backward()
    return loss.item(), torch.cat([part.grad.flatten() for module in modules for part in (module.a, module.b)])


def check(mt, folder, number, words, spm):
    family, shape, dtype, saved, shard, options, pairs = MODELS[number]
    draw, pair, smoothing = random.Random(number), pairs[0], 0.1 * (number % 2)
    lines, targets = random_lines(draw, words[0], PAIRS), random_lines(draw, words[1], PAIRS)
    theirs = make(folder, f"theirs-{number}", family, shape, dtype, saved, shard, options, spm, number, lines, pair)
    tokenizer = CLASSES[family][0].from_pretrained(theirs, **options)
    ours, run, again = (folder / f"{name}-{number}" for name in ("ours", "run", "again"))
    subprocess.run([mt, "import", "-q", str(theirs), "--out", str(ours)], check=True)
    for side, text in (("source", lines), ("target", targets)):
        (folder / f"train.{side}").write_text("".join(line + "\n" for line in text), encoding="utf-8")
    config = folder / "tune.toml"
    config.write_text(CONFIG.format(folder=folder, pair=pair, ours=ours, rank=RANK, alpha=ALPHA, smoothing=smoothing, beta=BETA), encoding="utf-8")
    subprocess.run([mt, "train", "-q", "--config", str(config), "--run-dir", str(run)], check=True)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if entry["event"] == "train"]
    checkpoints = [run / "checkpoints" / f"step-{step:08}" for step in (1, 2)]
    models = [tensors(checkpoint / "model.safetensors") for checkpoint in checkpoints]
    moments = [tensors(checkpoint / "optimizer.safetensors")["adam.first_moment"] for checkpoint in checkpoints]
    # B begins with zeros, so that A has a gradient only at the second update.
    found = (moments[1] - BETA * moments[0]) / (1 - BETA)
    net, modules = unmerged(theirs, models[0])
    loss, expected = gradients(net, modules, tokenizer, family, pair, lines, targets, smoothing)
    error = ((found - expected).norm() / expected.norm()).item()
    largest = (found - expected).abs().max().item()
    print(f"{family}, {shape}, {len(modules)} projections, smoothing {smoothing}")
    print(f"  loss {losses[1]:.6f}, {loss:.6f} in PyTorch; {len(found)} gradients: relative error {error:.1e}, largest difference {largest:.1e}")
    failed = not (error <= 1e-4 and largest <= 1e-4 and abs(losses[1] - loss) <= 1e-4)

    subprocess.run([mt, "export", "-q", str(run), "--format", "hf", "--out", str(again)], check=True)
    merged, (net, _) = AutoModelForSeq2SeqLM.from_pretrained(again, dtype=torch.float32).eval(), unmerged(theirs, models[1])
    batch, language = source_of(tokenizer, family, lines, pair[0]), language_id(tokenizer, family, pair[1])
    start = torch.tensor([[2, language]] * len(lines))
    with torch.no_grad():
        difference = (merged(**batch, decoder_input_ids=start).logits - net(**batch, decoder_input_ids=start).logits).abs().max().item()
        output = net.generate(**batch, num_beams=1, max_length=NEW_TOKENS + 1, forced_bos_token_id=language).tolist()
    search = ["--beam", "1", "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100", "--from", pair[0], "--to", pair[1]]
    vocabulary = tokenizer.get_vocab()
    answers = lines_of([mt, "translate", "-q", "--json", "--model", str(run), *search], lines)
    answers = [[vocabulary[piece] for piece in json.loads(line)["tokens"]] for line in answers]
    output = [[token for token in row[1:] if token not in (1, 2)] for row in output]
    differ = sum(a != b for a, b in zip(answers, output, strict=True))
    print(f"  merged and unmerged: largest difference of logits {difference:.1e}; {differ} of {len(lines)} translations differ")
    return failed or not difference <= 1e-3 or differ > 0


def main():
    mt, (files, words) = sys.argv[1], corpus()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        kinds = {kind: train(folder / kind, files, kind) for kind in ("unigram", "bpe")}
        for number in (0, 3, 7, 8):
            failed |= check(mt, folder, number, words, kinds["unigram" if MODELS[number][0] == "mbart" else "bpe"])
    sys.exit(failed)


if __name__ == "__main__":
    main()
