"""Trains the model of configs/multi30k-tiny.toml in PyTorch on the same subwords, to compare speed and learning curve.

    for side in en de; do for set in train valid; do
        mt tokenize --model runs/multi30k-tiny --input multi30k/$set.$side >tokens/$set.$side
    done; done
    python benches/pytorch_multi30k.py --tokens tokens --tokenizer runs/multi30k-tiny/tokenizer.json --updates 8000 \\
        --out peer

Architecture, initial distribution, optimizer, schedule, loss, dropouts and batch size are those of the configuration. The
order of batches and the dropout masks differ. Prints the mean loss and target tokens/s every 50 updates and the perplexity of
the validation set every 250.

With `--out`, the mean of the last ten checkpoints, 250 updates apart, is written there as `model.safetensors`, under mt's
names: `benches/pytorch_peer.py decode` translates with it. The state is also saved there every 250 updates; the same command
resumes from it. `--weights` writes the weights of every 100th update instead, as 100.safetensors and so on, and validates never.
Needs only `torch==2.11.0`.
"""

import argparse
import json
import math
import os
import random
import struct
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

BATCH_TOKENS = 4096
D, HEADS, LAYERS, D_FF = 128, 4, 4, 256
DROPOUT, SMOOTHING = 0.3, 0.1
# Updates between validations and checkpoints, and how many checkpoints are averaged.
EVERY, AVERAGED = 250, 10
# Updates between the files of `--weights`.
WEIGHTS_EVERY = 100


class Vocabulary:
    def __init__(self, file: Path):
        self.ids = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
        self.size = max(self.ids.values()) + 1
        self.padding, self.start, self.end = (self.ids[token] for token in ("<pad>", "<s>", "</s>"))

    def sentences(self, file: Path) -> list[list[int]]:
        lines = file.read_text(encoding="utf-8").rstrip("\n").split("\n")
        return [[self.ids[piece] for piece in line.split(" ")] + [self.end] for line in lines]

    def padded(self, sentences: list[list[int]]) -> torch.Tensor:
        """[B, L]"""
        length = max(map(len, sentences))
        return torch.tensor([ids + [self.padding] * (length - len(ids)) for ids in sentences])


def batches(pairs: list, shuffle: bool) -> list[list]:
    """Batches of pairs of similar length, up to BATCH_TOKENS padded tokens on the larger side."""

    def size(pair):
        return max(map(len, pair))

    result, batch, longest = [], [], 0
    for pair in sorted(pairs, key=lambda pair: (size(pair), random.random() if shuffle else 0)):
        longest = max(longest, size(pair))
        if batch and longest * (len(batch) + 1) > BATCH_TOKENS:
            result.append(batch)
            batch, longest = [], size(pair)
        batch.append(pair)
    result.append(batch)
    if shuffle:
        random.shuffle(result)
    return result


class Translator(nn.Module):
    """`nn.Transformer`, post-norm and without its final norms, with dropout only on embeddings and residuals."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.transformer = nn.Transformer(D, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, batch_first=True)
        self.transformer.encoder.norm = None
        self.transformer.decoder.norm = None
        for name, module in self.transformer.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif name.endswith(".dropout"):  # on the activations; those on the residuals are dropout1, 2 and 3
                module.p = 0.0
        for name, parameter in self.transformer.named_parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        self.embedding = nn.Embedding(vocabulary.size, D)
        nn.init.normal_(self.embedding.weight, std=D**-0.5)
        self.dropout = nn.Dropout(DROPOUT)
        frequencies = 10000.0 ** (-torch.arange(0, D, 2) / D)
        angles = torch.arange(1024).unsqueeze(1) * frequencies
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, L] to [B, L, D]."""
        return self.dropout(self.embedding(ids) * math.sqrt(D) + self.positions[: ids.shape[1]])

    def loss(self, batch: list, smoothing: float, reduction: str) -> tuple[torch.Tensor, int]:
        """The loss of a batch and its number of target tokens."""
        source, labels = (self.vocabulary.padded(side) for side in zip(*batch))
        start = torch.full((len(batch), 1), self.vocabulary.start)
        target = torch.cat((start, labels[:, :-1]), dim=1)
        hidden = source == self.vocabulary.padding
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        states = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        logits = F.linear(states, self.embedding.weight)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=self.vocabulary.padding,
            label_smoothing=smoothing,
            reduction=reduction,
        )
        return loss, int((labels != self.vocabulary.padding).sum())


def named_as_mt(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters of a Translator under mt's names."""
    parts = {"linear1": "feed_forward.fc1", "linear2": "feed_forward.fc2", "multihead_attn": "cross_attn"}
    norms = {
        "encoder": {"norm1": "self_attn_norm", "norm2": "feed_forward_norm"},
        "decoder": {"norm1": "self_attn_norm", "norm2": "cross_attn_norm", "norm3": "feed_forward_norm"},
    }
    result = {"source_embedding.weight": weights["embedding.weight"]}
    for name, tensor in weights.items():
        if not name.startswith("transformer."):
            continue
        _, stack, _, layer, module, rest = name.split(".", 5)
        module = (parts | norms[stack]).get(module, module)
        before = f"{stack}.layers.{layer}.{module}"
        if rest.startswith("in_proj_"):
            kind = rest.removeprefix("in_proj_")
            for letter, part in zip("qkv", tensor.chunk(3)):
                result[f"{before}.{letter}_proj.{kind}"] = part
        else:
            result[f"{before}.{rest}"] = tensor
    return result


def write_safetensors(file: Path, tensors: dict[str, torch.Tensor]):
    header, blocks, end = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        block = tensor.detach().float().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + len(block)]}
        blocks.append(block)
        end += len(block)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


@torch.no_grad()
def perplexity(model: Translator, pairs: list) -> float:
    model.eval()
    losses, tokens = zip(*(model.loss(batch, 0.0, "sum") for batch in batches(pairs, shuffle=False)))
    model.train()
    return math.exp(sum(map(float, losses)) / sum(tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=Path, required=True, help="folder with train and valid .en and .de, tokenized")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--warmup", type=int, default=2000)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="bf16: torch.autocast")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for the model and what is needed to go on")
    parser.add_argument("--weights", type=Path, help="folder for the weights on the way")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    random.seed(arguments.seed)
    bf16 = torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16")

    vocabulary = Vocabulary(arguments.tokenizer)

    def pairs(name: str) -> list:
        return list(zip(*(vocabulary.sentences(arguments.tokens / f"{name}.{side}") for side in ("en", "de"))))

    train, valid = pairs("train"), pairs("valid")
    model = Translator(vocabulary).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    # `epoch`: the batches left in this one. `checkpoints`: the weights of the last ones.
    update, epoch, checkpoints = 0, [], []

    reached = arguments.out and arguments.out / "reached.pt"
    if reached and reached.exists():
        # This program wrote the file, so loading a pickle is safe.
        state = torch.load(reached, weights_only=False)
        update, epoch, checkpoints = state["update"], state["epoch"], state["checkpoints"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch"])
        random.setstate(state["random"])
        print(f"going on after update {update}", flush=True)

    def keep():
        state = {"update": update, "epoch": epoch, "checkpoints": checkpoints, "model": model.state_dict()}
        state |= {"optimizer": optimizer.state_dict(), "torch": torch.get_rng_state(), "random": random.getstate()}
        arguments.out.mkdir(parents=True, exist_ok=True)
        torch.save(state, reached.with_suffix(".new"))
        os.replace(reached.with_suffix(".new"), reached)

    total, tokens, start = 0.0, 0, time.perf_counter()
    while update < arguments.updates:
        epoch = epoch or batches(train, shuffle=True)
        batch = epoch.pop(0)
        update += 1
        rate = arguments.learning_rate * min(update / arguments.warmup, (arguments.warmup / update) ** 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        with bf16:
            loss, count = model.loss(batch, SMOOTHING, "mean")
        loss.backward()
        optimizer.step()
        total += loss.item()
        tokens += count
        if update % 50 == 0:
            speed = tokens / (time.perf_counter() - start)
            print(f"update {update}: loss {total / 50:.3f} {speed:.0f} tok/s", flush=True)
            total, tokens, start = 0.0, 0, time.perf_counter()
        if arguments.weights:
            if update % WEIGHTS_EVERY == 0:
                file = arguments.weights / f"{update}.safetensors"
                write_safetensors(file, named_as_mt(dict(model.named_parameters())))
        elif update % EVERY == 0:
            print(f"valid at {update}: ppl {perplexity(model, valid):.2f}", flush=True)
            weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            checkpoints = [*checkpoints[1 - AVERAGED :], weights]
            if arguments.out:
                keep()
            start = time.perf_counter()

    if arguments.out and checkpoints:
        mean = {name: sum(weights[name] for weights in checkpoints) / len(checkpoints) for name in checkpoints[0]}
        model.load_state_dict(mean, strict=False)
        print(f"mean of {len(checkpoints)} checkpoints: ppl {perplexity(model, valid):.2f}")
        write_safetensors(arguments.out / "model.safetensors", named_as_mt(mean))


if __name__ == "__main__":
    main()
