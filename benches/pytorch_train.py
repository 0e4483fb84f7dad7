"""Times PyTorch's full training update, for comparison with `mt train`.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python benches/pytorch_train.py --shape base --threads 2 --updates 7
    python benches/pytorch_train.py --shape base --device cuda --precision bf16 --sentences 250 --length 100 --compile

An update is: forward in training mode, label-smoothed loss, backward, clipping to norm 1, Adam (PyTorch's fused one). The model
is `nn.Transformer` (post-norm, without its final norms), with embeddings and output in one matrix and dropout 0.1 wherever
`nn.Transformer` has it and on the embeddings. All sentences have full length, so no padding mask is passed and every target
token counts.

On a GPU, attention uses PyTorch's fused kernels (`scaled_dot_product_attention`, through `nn.Transformer`), TF32 is off, and
the next update is queued before the last one is waited for, as in `benches/train_step.rs`.

The tunable gives PyTorch's large buffers huge pages; without it, page faults make the small model's figure vary by a factor of
two. Needs only `torch==2.11.0`.
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional as F

FIRST_WORD = 4  # ids below are special tokens


@dataclass(frozen=True)
class Shape:
    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocab: int
    batch: int
    length: int


SHAPES = {
    "base": Shape(layers=6, d_model=512, d_ff=2048, heads=8, vocab=32_000, batch=32, length=32),
    "big": Shape(layers=6, d_model=1024, d_ff=4096, heads=16, vocab=32_000, batch=32, length=32),
    "tiny": Shape(layers=4, d_model=128, d_ff=256, heads=4, vocab=10_000, batch=256, length=16),
}


class Translator(nn.Module):
    """`nn.Transformer` between a tied embedding and output matrix, with sinusoidal positions."""

    def __init__(self, shape: Shape, dropout: float):
        super().__init__()
        self.transformer = nn.Transformer(
            shape.d_model,
            shape.heads,
            shape.layers,
            shape.layers,
            shape.d_ff,
            dropout,
            batch_first=True,
        )
        # The paper's post-norm model ends with the norm of its last layer.
        self.transformer.encoder.norm = None
        self.transformer.decoder.norm = None
        self.embedding = nn.Embedding(shape.vocab, shape.d_model)
        nn.init.normal_(self.embedding.weight, std=shape.d_model**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(shape.d_model)
        self.register_buffer("positions", sinusoids(shape.length, shape.d_model))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(shape.length))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, L] to [B, L, D]."""
        return self.dropout(self.embedding(ids) * self.scale + self.positions)

    def forward(self, source: torch.Tensor, target_input: torch.Tensor) -> torch.Tensor:
        """[B, S] and [B, T] to logits [B, T, V]."""
        states = self.transformer(
            self.embed(source), self.embed(target_input), tgt_mask=self.causal, tgt_is_causal=True
        )
        return F.linear(states, self.embedding.weight)


def sinusoids(length: int, d_model: int) -> torch.Tensor:
    """Section 3.5 of "Attention Is All You Need", interleaved; [L, D]."""
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angles = torch.arange(length).unsqueeze(1) * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def time_updates(
    shape: Shape, updates: int, warmup: int, bf16: bool, device: torch.device, compiled: bool
) -> list[float]:
    """Returns the seconds of each update after the warm-up.

    On a GPU, the next update is queued before the last one is waited for, as in a loop that reads losses late.
    """
    model = Translator(shape, dropout=0.1).to(device).train()

    def loss_of(source: torch.Tensor, target_input: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = model(source, target_input)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1)

    if compiled:
        # Including the loss, so that its passes over the logits are fused too.
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    on_gpu = device.type == "cuda"
    batches = [torch.randint(FIRST_WORD, shape.vocab, (3, shape.batch, shape.length)) for _ in range(warmup + updates)]
    if on_gpu:
        batches = [ids.pin_memory() for ids in batches]
    ends, losses, done = [time.perf_counter()], [], []
    for ids in batches:
        source, target_input, labels = ids.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = loss_of(source, target_input, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if on_gpu:
            done.append(torch.cuda.Event())
            done[-1].record()
            if len(done) > 1:
                done[-2].synchronize()
                ends.append(time.perf_counter())
        else:
            ends.append(time.perf_counter())
    if on_gpu:
        done[-1].synchronize()
        ends.append(time.perf_counter())
    for update, loss in enumerate(losses, 1):
        if not math.isfinite(loss.item()):
            raise SystemExit(f"the loss is {loss.item()} at update {update}")
    return [end - start for start, end in zip(ends, ends[1:])][warmup:]


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description="Median target tokens/s of PyTorch's full training update.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--updates", type=positive, default=7, help="updates timed")
    parser.add_argument("--warmup", type=positive, default=2, help="updates before the clock starts")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="bf16: under autocast")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--sentences", type=positive, help="sentences of a batch; default: the shape's")
    parser.add_argument("--length", type=positive, help="tokens of a sentence; default: the shape's")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)

    shape = SHAPES[arguments.shape]
    shape = replace(shape, batch=arguments.sentences or shape.batch, length=arguments.length or shape.length)
    bf16, device = arguments.precision == "bf16", torch.device(arguments.device)
    seconds = time_updates(shape, arguments.updates, arguments.warmup, bf16, device, arguments.compile)
    tokens = shape.batch * shape.length
    median = statistics.median(seconds)
    print(
        f"torch {torch.__version__}{' compiled' if arguments.compile else ''}, {arguments.shape} on {arguments.device}, "
        f"{shape.batch}×{shape.length}, {arguments.precision}, {arguments.threads} threads: "
        f"{tokens / median:.0f} target tokens/s (median of {len(seconds)} updates, {median:.3f} s each; "
        f"slowest {tokens / max(seconds):.0f}, fastest {tokens / min(seconds):.0f})"
    )


if __name__ == "__main__":
    main()
