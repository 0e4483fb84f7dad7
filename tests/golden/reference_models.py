"""Golden numbers: well-known hand-written Transformers, step by step, in PyTorch with float64.

    python tests/golden/reference_models.py               # writes reference_models/*.safetensors beside this script
    python tests/golden/reference_models.py --full DIR    # writes the same files to DIR, with whole tensors
    python tests/golden/check_reference_models.py         # compares the models and the files

Each model is a separate class, written like the originals of its kind, with their names, mask convention, arrangement of
heads and residuals. They share the rule for weights, the inputs and, in pairs, a table of sinusoids or torch's layer norm.
The files have inputs, outputs and gradients, but no weights: both sides compute those by the rule of `weight_value`.

Shape letters: B batch, S source length, T target length, L either, D d_model, H heads, K d_k, F d_ff, V vocabulary.
"""

import argparse
import itertools
import json
import math
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

FOLDER = Path(__file__).resolve().parent / "reference_models"
PAD, BOS, EOS, UNK = 0, 1, 2, 3
FIRST_WORD = 4
LABEL_SMOOTHING = 0.1
# No ReLU of a real position may have an input this near to 0: other arithmetic could be on the other side.
KINK_DISTANCE = 1e-5
# A tensor with more elements is stored as a sample of at most SAMPLE_SIZE.
LARGEST_WHOLE = 4096
SAMPLE_SIZE = 2048


@dataclass(frozen=True)
class Model:
    """mt's `[model]` section."""

    d_model: int = 16
    d_ff: int = 24
    heads: int = 2
    d_k: int = 8
    d_v: int = 8
    encoder_layers: int = 2
    decoder_layers: int = 2
    norm: str = "post"  # "post" or "pre"
    final_norm: bool = False
    norm_kind: str = "layer"  # "layer", or "std" for the unbiased deviation with eps beside it
    norm_eps: float = 1e-5
    positions: str = "sinusoidal"  # "sinusoidal", "learned" or "rotary"
    sinusoid: str = "interleaved"  # "interleaved" or "halves"; with "rotary", how the pairs lie
    padding_mask: str = "keys"  # "keys" or "keys_and_queries"
    tie: str = "none"  # "none", "decoder" or "all"
    scale_embedding: bool = False
    output_bias: bool = False
    attention_bias: bool = True
    activation: str = "relu"  # "relu", "gelu" or "swish"
    max_length: int = 64


@dataclass(frozen=True)
class Shape:
    """A batch: its lengths (source with </s>, decoder input with <s>) and the size of both vocabularies."""

    name: str
    vocab: int
    source_lengths: tuple[int, ...]
    target_lengths: tuple[int, ...]


SMALL = Shape("small", 1000, source_lengths=(10, 2), target_lengths=(2, 9))
LARGE = Shape(
    "large",
    5000,
    source_lengths=tuple(2 + 7 * row % 9 for row in range(32)),  # 2 to 10
    target_lengths=tuple(2 + 5 * row % 14 for row in range(32)),  # 2 to 15
)


# Weights and inputs ----------------------------------------------------------------------------

MASK64 = 2**64 - 1


def mix64(x):
    """splitmix64's step, over a numpy array of uint64 (whose arithmetic wraps)."""
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def mix64_of(number):
    return int(mix64(np.array([number], dtype=np.uint64))[0])


def fnv1a64(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK64
    return value


def random_bits(name, seed, count):
    """`count` numbers of 64 bits for a name: mix64(key + i), with a key made from name and seed."""
    key = mix64_of(fnv1a64(name) ^ mix64_of(seed))
    return mix64(np.uint64(key) + np.arange(count, dtype=np.uint64))


def weight_value(name, shape, seed):
    """A weight, from its name, shape ([out, in]) and seed: computed in float64, rounded to float32."""
    bits = random_bits(name, seed, math.prod(shape)) >> np.uint64(40)
    u = bits.astype(np.float64) / 2**23 - 1  # in [-1, 1)
    if name.endswith("norm.weight"):
        values = 1 + 0.1 * u
    elif len(shape) == 1:
        values = 0.1 * u
    elif name.endswith(("_embedding.weight", "positions.weight")):
        values = math.sqrt(3 / shape[1]) * u
    else:
        values = math.sqrt(6 / (shape[0] + shape[1])) * u
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def weight_shapes(model, vocab):
    """All parameters, by our names, with their shapes."""
    d, shapes = model.d_model, {}

    def linear(name, inputs, outputs, bias=True):
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name):
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (d,)

    shapes["source_embedding.weight"] = (vocab, d)
    if model.tie != "all":
        shapes["target_embedding.weight"] = (vocab, d)
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        if model.positions == "learned":
            shapes[f"{stack}.positions.weight"] = (model.max_length, d)
        for layer in range(layers):
            for attention in ("self_attn", "cross_attn")[: 1 if stack == "encoder" else 2]:
                name = f"{stack}.layers.{layer}.{attention}"
                for projection, width in (("q", model.d_k), ("k", model.d_k), ("v", model.d_v)):
                    linear(f"{name}.{projection}_proj", d, model.heads * width, model.attention_bias)
                linear(f"{name}.out_proj", model.heads * model.d_v, d, model.attention_bias)
                norm(f"{name}_norm")
            linear(f"{stack}.layers.{layer}.feed_forward.fc1", d, model.d_ff)
            linear(f"{stack}.layers.{layer}.feed_forward.fc2", model.d_ff, d)
            norm(f"{stack}.layers.{layer}.feed_forward_norm")
        if model.final_norm:
            norm(f"{stack}.norm")
    if model.tie == "none":
        shapes["output_projection.weight"] = (vocab, d)
    if model.output_bias:
        shapes["output_projection.bias"] = (vocab,)
    return shapes


def make_weights(case, seed):
    shapes = weight_shapes(case.model, case.shape.vocab)
    return {name: weight_value(name, shape, seed) for name, shape in shapes.items()}


def make_inputs(case, seed):
    """Source `x1…xm </s>`, decoder input `<s> y1…yn`, labels `y1…yn </s>`, each padded to its longest row."""
    shape = case.shape

    def words(name, lengths):
        bits = random_bits(name, seed, len(lengths) * max(lengths)).reshape(len(lengths), -1)
        ids = FIRST_WORD + bits % np.uint64(shape.vocab - FIRST_WORD)
        return [ids[row, : length - 1].tolist() for row, length in enumerate(lengths)]

    def padded(rows):
        longest = max(len(row) for row in rows)
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])

    source, target = words("input.source", shape.source_lengths), words("input.target", shape.target_lengths)
    return {
        "source": padded([row + [EOS] for row in source]),
        "target_input": padded([[BOS] + row for row in target]),
        "labels": padded([row + [EOS] for row in target]),
        "source_lengths": torch.tensor(shape.source_lengths),
        "target_lengths": torch.tensor(shape.target_lengths),
    }


# What all models offer -------------------------------------------------------------------------


class Reference(nn.Module):
    """Where our weights are in a model, and what reaches its ReLUs.

    `forward(source, target_input)` returns `encoder` [B, S, D] and `logits` [B, T, V] by name, and the attention
    weights if the model returns them.
    """

    renames = ()  # (part of our name, part of theirs), replaced one after another
    first_linear = None  # what the name of a feed-forward block's first linear layer ends with

    def place(self, name):
        """:return: the model's parameter for one of our names, and which part of it is meant"""
        for ours, theirs in self.renames:
            name = name.replace(ours, theirs)
        return name, lambda parameter: parameter

    def load(self, weights):
        parameters = dict(self.named_parameters())  # a tied matrix is there once
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(math.nan)
            for name, weight in weights.items():
                theirs, part = self.place(name)
                assert part(parameters[theirs]).shape == weight.shape, f"{name} does not fit {theirs}"
                part(parameters[theirs]).copy_(weight)
        assert not any(parameter.isnan().any() for parameter in parameters.values()), "a parameter has no weight"

    def gradients(self, names):
        parameters = dict(self.named_parameters())
        places = {name: self.place(name) for name in names}
        return {name: part(parameters[theirs].grad).clone() for name, (theirs, part) in places.items()}

    def watch(self):
        """:return: a list that a forward run fills with the input of every ReLU, encoder first"""
        before_relu = []
        for name, module in self.named_modules():
            if name.endswith(self.first_linear):
                module.register_forward_hook(lambda _module, _inputs, output: before_relu.append(output.detach()))
        return before_relu


# a: masked scores are set to -1e9 --------------------------------------------------------------


class MaskedHeads(nn.Module):
    """All heads in one tensor; a mask holds True where a score is kept."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.head_width = d_model // heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)

    def split(self, x):
        """[B, L, D] to [B, H, L, K]."""
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)

    def forward(self, queries, keys, mask):
        query, key, value = self.split(self.query(queries)), self.split(self.key(keys)), self.split(self.value(keys))
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_width)  # [B, H, Lq, Lk]
        scores = scores.masked_fill(~mask, -1e9)
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.output(mixed.transpose(1, 2).reshape(queries.shape))


class MinusBillionLayer(nn.Module):
    """A layer of either stack: norm(x + sublayer(x)), with cross-attention in the decoder only."""

    def __init__(self, model, has_memory):
        super().__init__()
        d, eps = model.d_model, model.norm_eps
        self.self_attention, self.norm1 = MaskedHeads(d, model.heads), nn.LayerNorm(d, eps)
        if has_memory:
            self.cross_attention, self.norm2 = MaskedHeads(d, model.heads), nn.LayerNorm(d, eps)
        self.expand, self.contract = nn.Linear(d, model.d_ff), nn.Linear(model.d_ff, d)
        self.norm3 = nn.LayerNorm(d, eps)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norm1(x + self.self_attention(x, x, mask))
        if memory is not None:
            x = self.norm2(x + self.cross_attention(x, memory, memory_mask))
        return self.norm3(x + self.contract(F.relu(self.expand(x))))


def sinusoids(length, d_model):
    """sin(pos · w_i) at 2i and cos(pos · w_i) at 2i+1, with w_i = exp(-2i/D · ln 10000)."""
    frequencies = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * frequencies
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = torch.sin(angles), torch.cos(angles)
    return table


class MinusBillion(Reference):
    """Post-norm without final norms; nothing tied, embeddings not scaled, the output a linear layer with bias."""

    first_linear = "expand"
    renames = (
        ("self_attn_norm", "norm1"), ("cross_attn_norm", "norm2"), ("feed_forward_norm", "norm3"),
        ("self_attn", "self_attention"), ("cross_attn", "cross_attention"), ("q_proj", "query"), ("k_proj", "key"),
        ("v_proj", "value"), ("out_proj", "output"), ("feed_forward.fc1", "expand"), ("feed_forward.fc2", "contract"),
        ("encoder.layers", "encoder"), ("decoder.layers", "decoder"), ("output_projection", "to_vocabulary"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()
        self.source_embedding = nn.Embedding(vocab, model.d_model)
        self.target_embedding = nn.Embedding(vocab, model.d_model)
        self.encoder = nn.ModuleList(MinusBillionLayer(model, False) for _ in range(model.encoder_layers))
        self.decoder = nn.ModuleList(MinusBillionLayer(model, True) for _ in range(model.decoder_layers))
        self.to_vocabulary = nn.Linear(model.d_model, vocab)

    @staticmethod
    def embed(embedding, ids):
        return embedding(ids) + sinusoids(ids.shape[1], embedding.embedding_dim).to(embedding.weight)

    def forward(self, source, target_input):
        source_mask = (source != PAD)[:, None, None, :]  # [B, 1, 1, S]
        length = target_input.shape[1]
        causal = torch.tril(torch.ones(length, length)).bool()
        target_mask = (target_input != PAD)[:, None, None, :] & causal  # [B, 1, T, T]
        memory = self.embed(self.source_embedding, source)
        for layer in self.encoder:
            memory = layer(memory, source_mask)
        x = self.embed(self.target_embedding, target_input)
        for layer in self.decoder:
            x = layer(x, target_mask, memory, source_mask)
        return {"encoder": memory, "logits": self.to_vocabulary(x)}


# b: masked scores are set to -inf, and the attention weights are returned ------------------------


class WeightedHeads(nn.Module):
    """Heads stacked along the batch, H·B in all; a mask holds True where a score is hidden."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, q, k, v, hidden):
        """:param hidden: [B, Lq, Lk]; :return: [B, Lq, D] and the attention weights [B, H, Lq, Lk]"""
        q = torch.cat(self.w_q(q).chunk(self.heads, dim=-1), dim=0)  # [H·B, Lq, K]
        k = torch.cat(self.w_k(k).chunk(self.heads, dim=-1), dim=0)
        v = torch.cat(self.w_v(v).chunk(self.heads, dim=-1), dim=0)
        scores = torch.bmm(q, k.transpose(1, 2)) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(hidden.repeat(self.heads, 1, 1), -math.inf)
        attention = torch.softmax(scores, dim=-1)
        mixed = torch.cat(torch.bmm(attention, v).chunk(self.heads, dim=0), dim=-1)
        by_sentence = torch.stack(attention.chunk(self.heads, dim=0), dim=1)
        return self.w_o(mixed), by_sentence


class Added(nn.Module):
    """Layer norm of a sum."""

    def __init__(self, d_model, eps):
        super().__init__()
        self.layer_norm = nn.LayerNorm(d_model, eps)

    def forward(self, x, y):
        return self.layer_norm(x + y)


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear2(self.relu(self.linear1(x)))


class MinusInfinityEncoderLayer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.mha = WeightedHeads(model.d_model, model.heads)
        self.add_1 = Added(model.d_model, model.norm_eps)
        self.ffn = FeedForward(model.d_model, model.d_ff)
        self.add_2 = Added(model.d_model, model.norm_eps)

    def forward(self, x, hidden):
        y, attention = self.mha(x, x, x, hidden)
        x = self.add_1(x, y)
        return self.add_2(x, self.ffn(x)), attention


class MinusInfinityDecoderLayer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.mha = WeightedHeads(model.d_model, model.heads)
        self.add_1 = Added(model.d_model, model.norm_eps)
        self.mha_memory = WeightedHeads(model.d_model, model.heads)
        self.add_memory = Added(model.d_model, model.norm_eps)
        self.ffn = FeedForward(model.d_model, model.d_ff)
        self.add_2 = Added(model.d_model, model.norm_eps)

    def forward(self, x, memory, hidden, memory_hidden):
        y, of_self = self.mha(x, x, x, hidden)
        x = self.add_1(x, y)
        y, of_memory = self.mha_memory(x, memory, memory, memory_hidden)
        x = self.add_memory(x, y)
        return self.add_2(x, self.ffn(x)), of_self, of_memory


def angle_table(length, d_model):
    """Entry (pos, j) is the sine (j even) or cosine (j odd) of pos / 10000^(2·⌊j/2⌋/D)."""
    position, j = np.arange(length)[:, None], np.arange(d_model)[None, :]
    angles = position / np.power(10000.0, 2 * (j // 2) / d_model)
    return torch.from_numpy(np.where(j % 2 == 0, np.sin(angles), np.cos(angles)))


class MinusInfinity(Reference):
    """The model of `MinusBillion`; only keys are masked, so no row of scores is -inf everywhere."""

    first_linear = "linear1"
    renames = (
        ("self_attn_norm", "add_1.layer_norm"), ("cross_attn_norm", "add_memory.layer_norm"),
        ("feed_forward_norm", "add_2.layer_norm"), ("self_attn", "mha"), ("cross_attn", "mha_memory"),
        ("feed_forward.fc", "ffn.linear"), ("q_proj", "w_q"), ("k_proj", "w_k"), ("v_proj", "w_v"), ("out_proj", "w_o"),
        ("source_embedding", "enc_embedding"), ("target_embedding", "dec_embedding"),
        ("encoder.layers", "enc_layers"), ("decoder.layers", "dec_layers"), ("output_projection", "final"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()
        self.d_model = model.d_model
        self.enc_embedding, self.dec_embedding = nn.Embedding(vocab, self.d_model), nn.Embedding(vocab, self.d_model)
        self.enc_layers = nn.ModuleList(MinusInfinityEncoderLayer(model) for _ in range(model.encoder_layers))
        self.dec_layers = nn.ModuleList(MinusInfinityDecoderLayer(model) for _ in range(model.decoder_layers))
        self.final = nn.Linear(self.d_model, vocab)

    def forward(self, source, target_input):
        (_, s), (_, t) = source.shape, target_input.shape
        no_source, no_target = source.eq(PAD).unsqueeze(1), target_input.eq(PAD).unsqueeze(1)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        table = angle_table(max(s, t), self.d_model).to(self.final.weight)
        results = {}
        x = self.enc_embedding(source) + table[:s]
        for number, layer in enumerate(self.enc_layers):
            x, results[f"attention.encoder.{number}"] = layer(x, no_source.expand(-1, s, -1))
        memory = x
        x = self.dec_embedding(target_input) + table[:t]
        for number, layer in enumerate(self.dec_layers):
            x, of_self, of_memory = layer(x, memory, no_target | future, no_source.expand(-1, t, -1))
            results |= {f"attention.decoder_self.{number}": of_self, f"attention.cross.{number}": of_memory}
        return {"encoder": memory, "logits": self.final(x)} | results


# c: a norm of the standard deviation, and a residual wrapper ------------------------------------


class StdNorm(nn.Module):
    """gamma · (x - mean) / (std + eps) + beta: the unbiased deviation, eps outside the root."""

    def __init__(self, d_model, eps):
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps

    def forward(self, x):
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (deviation + self.eps) + self.beta


class Wrapper(nn.Module):
    """x + sublayer(norm(x)), or norm(x + sublayer(x))."""

    def __init__(self, model):
        super().__init__()
        self.norm = StdNorm(model.d_model, model.norm_eps)
        self.norm_first = model.norm == "pre"

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x)) if self.norm_first else self.norm(x + sublayer(x))


class FourLinears(nn.Module):
    """Attention by einsum over [B, L, H, K]; linears 0 to 3 are query, key, value and output."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, *inputs, mask):
        """:param inputs: queries, keys and values; :param mask: [B, 1 or Lq, Lk], 0 where hidden"""
        query, key, value = (
            linear(x).unflatten(-1, (self.heads, -1)) for linear, x in zip(self.linears[:3], inputs, strict=True)
        )
        scores = torch.einsum("bihk,bjhk->bhij", query, key) / query.shape[-1] ** 0.5
        probabilities = F.softmax(scores.masked_fill(mask.unsqueeze(1) == 0, -1e9), dim=-1)
        return self.linears[3](torch.einsum("bhij,bjhk->bihk", probabilities, value).flatten(-2))


class WrappedLayer(nn.Module):
    def __init__(self, model, has_source):
        super().__init__()
        self.attn = FourLinears(model.d_model, model.heads)
        self.src_attn = FourLinears(model.d_model, model.heads) if has_source else None
        self.ff = nn.Sequential(nn.Linear(model.d_model, model.d_ff), nn.ReLU(), nn.Linear(model.d_ff, model.d_model))
        sublayers = ("attn", "src_attn", "ff") if has_source else ("attn", "ff")
        self.wrappers = nn.ModuleDict({name: Wrapper(model) for name in sublayers})

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.wrappers["attn"](x, lambda x: self.attn(x, x, x, mask=mask))
        if self.src_attn is not None:
            x = self.wrappers["src_attn"](x, lambda x: self.src_attn(x, memory, memory, mask=memory_mask))
        return self.wrappers["ff"](x, self.ff)


class WrappedStack(nn.Module):
    """Layers and a norm after the last."""

    def __init__(self, model, layers, has_source):
        super().__init__()
        self.layers = nn.ModuleList(WrappedLayer(model, has_source) for _ in range(layers))
        self.norm = StdNorm(model.d_model, model.norm_eps)

    def forward(self, x, *rest):
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Annotated(Reference):
    """Embeddings times √D; final norms; an output bias even if one matrix serves all three."""

    first_linear = "ff.0"
    renames = (
        ("self_attn_norm.", "wrappers.attn.norm."), ("cross_attn_norm.", "wrappers.src_attn.norm."),
        ("feed_forward_norm.", "wrappers.ff.norm."), ("norm.weight", "norm.gamma"), ("norm.bias", "norm.beta"),
        ("self_attn", "attn"), ("cross_attn", "src_attn"), ("q_proj", "linears.0"), ("k_proj", "linears.1"),
        ("v_proj", "linears.2"), ("out_proj", "linears.3"), ("feed_forward.fc1", "ff.0"), ("feed_forward.fc2", "ff.2"),
        ("source_embedding", "src_embed"), ("target_embedding", "tgt_embed"), ("output_projection", "generator"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()
        self.d_model = model.d_model
        self.src_embed, self.tgt_embed = nn.Embedding(vocab, self.d_model), nn.Embedding(vocab, self.d_model)
        self.encoder = WrappedStack(model, model.encoder_layers, has_source=False)
        self.decoder = WrappedStack(model, model.decoder_layers, has_source=True)
        self.generator = nn.Linear(self.d_model, vocab)
        if model.tie == "all":
            self.tgt_embed.weight = self.generator.weight = self.src_embed.weight

    def embed(self, embedding, ids):
        position = torch.arange(ids.shape[1], dtype=torch.float64)
        encoding = torch.stack(
            [
                (torch.cos if column % 2 else torch.sin)(position / 10000 ** ((column - column % 2) / self.d_model))
                for column in range(self.d_model)
            ],
            dim=1,
        )
        return embedding(ids) * math.sqrt(self.d_model) + encoding.to(embedding.weight)

    def forward(self, source, target_input):
        length = target_input.shape[1]
        source_mask = (source != PAD).unsqueeze(-2)
        target_mask = (target_input != PAD).unsqueeze(-2) & (torch.triu(torch.ones(1, length, length), diagonal=1) == 0)
        memory = self.encoder(self.embed(self.src_embed, source), source_mask)
        x = self.decoder(self.embed(self.tgt_embed, target_input), target_mask, memory, source_mask)
        return {"encoder": memory, "logits": self.generator(x)}


# d: padding masked as query and as key ----------------------------------------------------------


class EpsInRoot(nn.Module):
    """gain · (x - mean) / √(variance + eps) + shift, the variance biased."""

    def __init__(self, d_model, eps):
        super().__init__()
        self.gain, self.shift, self.eps = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model)), eps

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, unbiased=False, keepdim=True)
        return self.gain * ((x - mean) / torch.sqrt(variance + self.eps)) + self.shift


class QueryMaskedHeads(nn.Module):
    """One head after another; a query that may see nothing gets attention weights of exactly zero."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.head_width = d_model // heads
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v, self.concat = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def attend(self, q, k, v, mask):
        scores = q.matmul(k.transpose(1, 2)) / math.sqrt(self.head_width)
        sees_nothing = ~mask.any(dim=-1, keepdim=True)  # [B, Lq, 1]
        # Rows of only -inf would give NaN, forward and backward: such rows are masked after the softmax instead.
        scores = scores.masked_fill(~mask & ~sees_nothing, -math.inf)
        weights = torch.softmax(scores, dim=-1).masked_fill(sees_nothing, 0.0)
        return weights.matmul(v), weights

    def forward(self, q, k, v, mask):
        """:param mask: [B, Lq, Lk], True where query i may see key j"""
        heads = zip(*(x.split(self.head_width, dim=-1) for x in (self.q(q), self.k(k), self.v(v))), strict=True)
        outputs, weights = zip(*(self.attend(*head, mask) for head in heads), strict=True)
        return self.concat(torch.cat(outputs, dim=-1)), torch.stack(weights, dim=1)


class QueryMaskedLayer(nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.heads = nn.ModuleDict({name: QueryMaskedHeads(model.d_model, model.heads) for name in names})
        self.norms = nn.ModuleDict({name: EpsInRoot(model.d_model, model.norm_eps) for name in (*names, "ffn")})
        self.inner, self.outer = nn.Linear(model.d_model, model.d_ff), nn.Linear(model.d_ff, model.d_model)

    def attention(self, name, x, seen, mask):
        y, weights = self.heads[name](x, seen, seen, mask)
        return self.norms[name](x + y), weights

    def feed_forward(self, x):
        return self.norms["ffn"](x + self.outer(torch.relu(self.inner(x))))


class QueryMasks(Reference):
    """Post-norm without final norms; separate embeddings, not scaled; an output bias."""

    first_linear = "inner"
    renames = (
        ("norm.weight", "norm.gain"), ("norm.bias", "norm.shift"), ("self_attn_norm", "norms.self"),
        ("cross_attn_norm", "norms.cross"), ("feed_forward_norm", "norms.ffn"), ("self_attn", "heads.self"),
        ("cross_attn", "heads.cross"), ("feed_forward.fc1", "inner"), ("feed_forward.fc2", "outer"),
        ("out_proj.", "concat."), ("_proj.", "."), ("source_embedding", "encoder.token_emb"),
        ("target_embedding", "decoder.token_emb"), ("output_projection", "decoder.linear"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()

        def stack(layers, names):
            return nn.ModuleDict(
                {
                    "token_emb": nn.Embedding(vocab, model.d_model),
                    "layers": nn.ModuleList(QueryMaskedLayer(model, names) for _ in range(layers)),
                }
            )

        self.encoder = stack(model.encoder_layers, ["self"])
        self.decoder = stack(model.decoder_layers, ["self", "cross"])
        self.decoder["linear"] = nn.Linear(model.d_model, vocab)

    @staticmethod
    def embed(stack, ids):
        embedded = stack["token_emb"](ids)
        return embedded + angle_table(*embedded.shape[1:]).to(embedded)

    def forward(self, source, target_input):
        real_source, real_target = source != PAD, target_input != PAD
        causal = torch.ones(target_input.shape[1], target_input.shape[1], dtype=torch.bool).tril()
        encoder_mask = real_source.unsqueeze(2) & real_source.unsqueeze(1)
        decoder_mask = real_target.unsqueeze(2) & real_target.unsqueeze(1) & causal
        cross_mask = real_target.unsqueeze(2) & real_source.unsqueeze(1)
        attention = {}
        memory = self.embed(self.encoder, source)
        for i, layer in enumerate(self.encoder["layers"]):
            memory, attention[f"attention.encoder.{i}"] = layer.attention("self", memory, memory, encoder_mask)
            memory = layer.feed_forward(memory)
        x = self.embed(self.decoder, target_input)
        for i, layer in enumerate(self.decoder["layers"]):
            x, attention[f"attention.decoder_self.{i}"] = layer.attention("self", x, x, decoder_mask)
            x, attention[f"attention.cross.{i}"] = layer.attention("cross", x, memory, cross_mask)
            x = layer.feed_forward(x)
        return {"encoder": memory, "logits": self.decoder["linear"](x)} | attention


# e: torch.nn.Transformer -------------------------------------------------------------------------


class TorchTransformer(Reference):
    """torch's own module between two embeddings and a linear layer. Its stacks end with norms, even with post-norm."""

    first_linear = "linear1"
    renames = (
        ("encoder.", "transformer.encoder."), ("decoder.", "transformer.decoder."), ("self_attn_norm", "norm1"),
        ("cross_attn_norm", "norm2"), ("cross_attn", "multihead_attn"), ("feed_forward.fc", "linear"),
        ("output_projection", "generator"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()
        self.d_model = model.d_model
        self.source_embedding = nn.Embedding(vocab, model.d_model)
        self.target_embedding = nn.Embedding(vocab, model.d_model)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "enable_nested_tensor")  # for inference only
            self.transformer = nn.Transformer(
                model.d_model, model.heads, model.encoder_layers, model.decoder_layers, model.d_ff, dropout=0.0,
                layer_norm_eps=model.norm_eps, batch_first=True, norm_first=model.norm == "pre",
            )  # fmt: skip
        self.generator = nn.Linear(model.d_model, vocab)
        self.train()  # the plain path; without dropout nothing else changes

    def place(self, name):
        name, whole = super().place(name)
        # A decoder layer's third norm is its feed-forward block's, an encoder layer's second.
        name = name.replace("feed_forward_norm", "norm2" if ".encoder." in name else "norm3")
        for third, projection in enumerate("qkv"):
            if f".{projection}_proj." in name:
                name = name.replace(f".{projection}_proj.", ".in_proj_")
                return name, lambda packed, third=third: packed.chunk(3)[third]
        return name, whole

    def embed(self, embedding, ids):
        return embedding(ids) * math.sqrt(self.d_model) + sinusoids(ids.shape[1], self.d_model).to(embedding.weight)

    def forward(self, source, target_input):
        no_source, no_target = source == PAD, target_input == PAD
        x, y = self.embed(self.source_embedding, source), self.embed(self.target_embedding, target_input)
        memories = []
        hook = self.transformer.encoder.register_forward_hook(lambda _module, _inputs, output: memories.append(output))
        states = self.transformer(
            x, y, tgt_mask=torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=no_source, tgt_key_padding_mask=no_target, memory_key_padding_mask=no_source,
        )  # fmt: skip
        hook.remove()
        return {"encoder": memories[0], "logits": self.generator(states)}


# f: tensor2tensor ---------------------------------------------------------------------------------


class TensorToTensor(Reference):
    """One matrix for everything, no bias on it or on attention; dense kernels are [in, out]; masks are added.

    These are tensor2tensor's first settings, with the paper's post-norm. Its timescales have the exponent
    i / (D/2 - 1), so that the last is 10000; here the exponent is the paper's 2i / D, as in mt's `halves`.
    It also sets padding's embeddings to zero, which changes no real position.
    """

    first_linear = None
    renames = (
        ("source_embedding.weight", "shared/weights"), ("encoder.layers.", "encoder/layer_"),
        ("decoder.layers.", "decoder/layer_"), (".self_attn_norm.weight", "/self_attention/layer_norm/scale"),
        (".self_attn_norm.bias", "/self_attention/layer_norm/bias"),
        (".cross_attn_norm.weight", "/encdec_attention/layer_norm/scale"),
        (".cross_attn_norm.bias", "/encdec_attention/layer_norm/bias"),
        (".feed_forward_norm.weight", "/ffn/layer_norm/scale"), (".feed_forward_norm.bias", "/ffn/layer_norm/bias"),
        (".self_attn.", "/self_attention/"), (".cross_attn.", "/encdec_attention/"), ("out_proj.", "output_transform."),
        ("_proj.", "."), (".feed_forward.fc1.", "/ffn/conv1."), (".feed_forward.fc2.", "/ffn/conv2."),
        (".weight", "/kernel"), (".bias", "/bias"),
    )  # fmt: skip

    def __init__(self, model, vocab):
        super().__init__()
        self.model, self.before_relu = model, []
        for name, shape in weight_shapes(model, vocab).items():
            theirs, _ = self.place(name)
            transposed = theirs.endswith("/kernel")
            self.register_parameter(theirs, nn.Parameter(torch.empty(shape[::-1] if transposed else shape)))

    def watch(self):
        return self.before_relu

    def place(self, name):
        name, whole = super().place(name)
        return name, (lambda kernel: kernel.T) if name.endswith("/kernel") else whole

    def variable(self, name):
        return self.get_parameter(name)

    def layer_norm(self, scope, x):
        mean = x.mean(-1, keepdim=True)
        variance = torch.square(x - mean).mean(-1, keepdim=True)
        normal = (x - mean) * torch.rsqrt(variance + self.model.norm_eps)
        return normal * self.variable(f"{scope}/layer_norm/scale") + self.variable(f"{scope}/layer_norm/bias")

    def multihead_attention(self, scope, x, memory, bias):
        """:param bias: added to the scores: -1e9 where a key is hidden, else 0"""
        model = self.model

        def heads(name, y):
            y = torch.tensordot(y, self.variable(f"{scope}/{name}/kernel"), 1)
            return y.unflatten(-1, (model.heads, -1)).movedim(2, 1)  # [B, H, L, K]

        q, k, v = heads("q", x) * model.d_k**-0.5, heads("k", memory), heads("v", memory)
        weights = torch.softmax(q @ k.mT + bias, dim=-1)
        combined = (weights @ v).movedim(1, 2).flatten(2)
        return combined @ self.variable(f"{scope}/output_transform/kernel")

    def ffn(self, scope, x):
        hidden = x @ self.variable(f"{scope}/conv1/kernel") + self.variable(f"{scope}/conv1/bias")
        self.before_relu.append(hidden.detach())
        return torch.relu(hidden) @ self.variable(f"{scope}/conv2/kernel") + self.variable(f"{scope}/conv2/bias")

    def bottom(self, ids):
        """Embeddings times √D, plus all sines, then all cosines."""
        d_model = self.model.d_model
        timescales = torch.pow(10000.0, torch.arange(d_model // 2, dtype=torch.float64) / (d_model // 2))
        scaled_time = torch.outer(torch.arange(ids.shape[1], dtype=torch.float64), 1 / timescales)
        signal = torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=1)
        table = self.variable("shared/weights")
        return F.embedding(ids, table) * d_model**0.5 + signal.to(table)

    def forward(self, source, target_input):
        dtype = self.variable("shared/weights").dtype
        ignore_padding = -1e9 * (source == PAD).to(dtype)[:, None, None, :]
        length = target_input.shape[1]
        later = torch.triu(torch.ones(length, length), diagonal=1).bool()
        ignore_later = -1e9 * (later | (target_input == PAD)[:, None, None, :]).to(dtype)

        x = self.bottom(source)
        for layer in range(self.model.encoder_layers):
            scope = f"encoder/layer_{layer}"
            y = self.multihead_attention(f"{scope}/self_attention", x, x, ignore_padding)
            x = self.layer_norm(f"{scope}/self_attention", x + y)
            x = self.layer_norm(f"{scope}/ffn", x + self.ffn(f"{scope}/ffn", x))
        memory = x
        x = self.bottom(target_input)
        for layer in range(self.model.decoder_layers):
            scope = f"decoder/layer_{layer}"
            y = self.multihead_attention(f"{scope}/self_attention", x, x, ignore_later)
            x = self.layer_norm(f"{scope}/self_attention", x + y)
            y = self.multihead_attention(f"{scope}/encdec_attention", x, memory, ignore_padding)
            x = self.layer_norm(f"{scope}/encdec_attention", x + y)
            x = self.layer_norm(f"{scope}/ffn", x + self.ffn(f"{scope}/ffn", x))
        return {"encoder": memory, "logits": torch.matmul(x, self.variable("shared/weights").T)}


# g: every option, formula by formula --------------------------------------------------------------


def rotate(x, layout):
    """Rotates pair i of the vector at position p by the angle p · 10000^(-2i/K); x is [B, L, K].

    A pair is (x_2i, x_2i+1) if interleaved, (x_i, x_i+K/2) in halves.
    """
    length, width = x.shape[1:]
    half = width // 2
    rotated = [None] * width
    for i in range(half):
        angle = torch.arange(length, dtype=torch.float64) * 10000 ** (-2 * i / width)
        cosine, sine = torch.cos(angle).to(x), torch.sin(angle).to(x)  # [L]
        first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + half)
        rotated[first] = x[..., first] * cosine - x[..., second] * sine
        rotated[second] = x[..., first] * sine + x[..., second] * cosine
    return torch.stack(rotated, dim=-1)


def relu(x):
    return torch.clamp(x, min=0)


def gelu(x):
    """x · Φ(x), with Φ the normal distribution: exact, without approximation by tanh."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def swish(x):
    return x / (1 + torch.exp(-x))


class Options(Reference):
    """All of mt's `[model]` keys, with weights under mt's names (with / for .)."""

    first_linear = None
    renames = ((".", "/"),)

    def __init__(self, model, vocab):
        super().__init__()
        self.model, self.before_activation = model, []
        for name, shape in weight_shapes(model, vocab).items():
            self.register_parameter(self.place(name)[0], nn.Parameter(torch.empty(shape)))

    def watch(self):
        return self.before_activation

    def weight(self, name):
        return self.get_parameter(name.replace(".", "/"))

    def linear(self, name, x, bias=True):
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if bias else y

    def normalise(self, name, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        squares = centred.square().sum(dim=-1, keepdim=True)
        if self.model.norm_kind == "std":
            divisor = torch.sqrt(squares / (x.shape[-1] - 1)) + self.model.norm_eps
        else:
            divisor = torch.sqrt(squares / x.shape[-1] + self.model.norm_eps)
        return self.weight(f"{name}.weight") * centred / divisor + self.weight(f"{name}.bias")

    def self_attention(self, name, x, allowed):
        return self.attention(name, x, x, allowed, rotary=self.model.positions == "rotary")

    def attention(self, name, x, seen, allowed, rotary=False):
        """:param allowed: [B, Lq, Lk], True where query i sees key j; :param rotary: rotate queries and keys"""
        model = self.model
        query = self.linear(f"{name}.q_proj", x, model.attention_bias)
        key = self.linear(f"{name}.k_proj", seen, model.attention_bias)
        value = self.linear(f"{name}.v_proj", seen, model.attention_bias)
        outputs = []
        for head in range(model.heads):
            q, k = (y[..., head * model.d_k : (head + 1) * model.d_k] for y in (query, key))
            if rotary:
                q, k = rotate(q, model.sinusoid), rotate(k, model.sinusoid)
            scores = q @ k.transpose(1, 2) / math.sqrt(model.d_k)
            probabilities = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
            outputs.append(probabilities @ value[..., head * model.d_v : (head + 1) * model.d_v])
        return self.linear(f"{name}.out_proj", torch.cat(outputs, dim=-1), model.attention_bias)

    def feed_forward(self, name, x):
        hidden = self.linear(f"{name}.fc1", x)
        self.before_activation.append(hidden.detach())
        activation = {"relu": relu, "gelu": gelu, "swish": swish}[self.model.activation]
        return self.linear(f"{name}.fc2", activation(hidden))

    def residual(self, sublayer, name, x, *rest):
        if self.model.norm == "pre":
            return x + sublayer(name, self.normalise(f"{name}_norm", x), *rest)
        return self.normalise(f"{name}_norm", x + sublayer(name, x, *rest))

    def position_table(self, stack, length):
        """[L, D], or 0 with rotary positions, which act in attention."""
        model = self.model
        if model.positions == "learned":
            return self.weight(f"{stack}.positions.weight")[:length]
        if model.positions == "rotary":
            return 0
        table = torch.empty(length, model.d_model, dtype=torch.float64)
        half = model.d_model // 2
        for position, i in itertools.product(range(length), range(half)):
            angle = position / 10000 ** (2 * i / model.d_model)
            sine, cosine = (2 * i, 2 * i + 1) if model.sinusoid == "interleaved" else (i, half + i)
            table[position, sine], table[position, cosine] = math.sin(angle), math.cos(angle)
        return table.to(self.weight("source_embedding.weight"))

    def table_name(self, use):
        """The matrix that serves as "target_embedding" or "output_projection"."""
        tie = self.model.tie
        if tie == "all":
            return "source_embedding.weight"
        return "target_embedding.weight" if tie == "decoder" else f"{use}.weight"

    def embed(self, stack, table, ids):
        scale = math.sqrt(self.model.d_model) if self.model.scale_embedding else 1.0
        return scale * self.weight(table)[ids] + self.position_table(stack, ids.shape[1])

    def encode(self, x, allowed):
        for layer in range(self.model.encoder_layers):
            name = f"encoder.layers.{layer}"
            x = self.residual(self.self_attention, f"{name}.self_attn", x, allowed)
            x = self.residual(self.feed_forward, f"{name}.feed_forward", x)
        return self.normalise("encoder.norm", x) if self.model.final_norm else x

    def decode(self, x, allowed, memory, memory_allowed):
        for layer in range(self.model.decoder_layers):
            name = f"decoder.layers.{layer}"
            x = self.residual(self.self_attention, f"{name}.self_attn", x, allowed)
            x = self.residual(self.attention, f"{name}.cross_attn", x, memory, memory_allowed)
            x = self.residual(self.feed_forward, f"{name}.feed_forward", x)
        return self.normalise("decoder.norm", x) if self.model.final_norm else x

    def forward(self, source, target_input):
        (_, s), (_, t) = source.shape, target_input.shape
        real_source, real_target = (source != PAD).unsqueeze(1), (target_input != PAD).unsqueeze(1)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        memory = self.embed("encoder", "source_embedding.weight", source)
        memory = self.encode(memory, real_source.expand(-1, s, -1))
        x = self.embed("decoder", self.table_name("target_embedding"), target_input)
        x = self.decode(x, real_target & causal, memory, real_source.expand(-1, t, -1))
        logits = x @ self.weight(self.table_name("output_projection")).T
        if self.model.output_bias:
            logits = logits + self.weight("output_projection.bias")
        return {"encoder": memory, "logits": logits}


# Cases ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One golden file: a model and a batch; the seed is the first from `first_seed` on that avoids kinks."""

    name: str
    reference: type[Reference]
    first_seed: int
    model: Model
    shape: Shape = SMALL


UNTIED = Model(output_bias=True)
ANNOTATED = Model(norm_kind="std", norm_eps=1e-9, final_norm=True, scale_embedding=True, output_bias=True)
TORCH = Model(final_norm=True, scale_embedding=True, output_bias=True)
TIED = Model(tie="all", scale_embedding=True)

NAMED_MODELS = (
    ("a_minus_1e9", MinusBillion, 100, UNTIED),
    ("b_minus_inf", MinusInfinity, 100, UNTIED),  # a's seed and so a's weights: the numbers must be the same
    ("c_post", Annotated, 300, ANNOTATED),
    ("c_pre", Annotated, 400, replace(ANNOTATED, norm="pre")),
    ("c_post_shared", Annotated, 500, replace(ANNOTATED, tie="all")),
    ("c_pre_shared", Annotated, 600, replace(ANNOTATED, tie="all", norm="pre")),
    ("d_query_masks", QueryMasks, 700, replace(UNTIED, norm_eps=1e-12, padding_mask="keys_and_queries")),
    ("e_torch_post", TorchTransformer, 800, TORCH),
    ("e_torch_pre", TorchTransformer, 900, replace(TORCH, norm="pre")),
    ("f_tensor2tensor", TensorToTensor, 1000, replace(TIED, norm_eps=1e-6, attention_bias=False, sinusoid="halves")),
)
OPTIONS = (
    ("g_rotary", 1100, replace(TIED, positions="rotary")),
    ("g_rotary_halves", 1200, replace(TIED, positions="rotary", sinusoid="halves")),
    ("g_learned", 1300, replace(TIED, positions="learned", max_length=24)),
    ("g_gelu", 1400, replace(TIED, activation="gelu")),
    ("g_swish", 1500, replace(TIED, activation="swish")),
    ("g_halves", 1600, replace(TIED, sinusoid="halves")),
    ("g_tie_decoder", 1700, replace(TIED, tie="decoder")),
    ("g_asymmetric", 1800, replace(TIED, encoder_layers=3, decoder_layers=1, heads=3, d_k=6, d_v=10, norm="pre",
                                   final_norm=True, attention_bias=False)),
)  # fmt: skip
CASES = (
    *(Case(*named, shape) for shape in (SMALL, LARGE) for named in NAMED_MODELS),
    *(Case(name, Options, first_seed, model) for name, first_seed, model in OPTIONS),
)


# Running a case ------------------------------------------------------------------------------------


def build(case, weights, dtype=torch.float64):
    reference = case.reference(case.model, case.shape.vocab).to(dtype)
    reference.load(weights)
    return reference


def run(case, weights, inputs, dtype=torch.float64):
    """Forward and backward.

    :return: `output.*`, `attention.*` and `grad.*` by name
    """
    reference = build(case, weights, dtype)
    results = reference(inputs["source"], inputs["target_input"])
    logits = results["logits"]
    loss = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING, ignore_index=PAD)(
        logits.flatten(0, 1), inputs["labels"].flatten()
    )
    loss.backward()
    tensors = {"output.encoder": results["encoder"], "output.logits": logits, "output.loss": loss}
    tensors |= {name: tensor for name, tensor in results.items() if name.startswith("attention.")}
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    tensors |= {f"grad.{name}": gradient for name, gradient in reference.gradients(weights).items()}
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), f"{case.name}: {name} is not finite"
    return tensors


def kink_distance(case, weights, inputs):
    """How near to 0 an input of a ReLU at a real position comes; other activations have no kink."""
    if case.model.activation != "relu":
        return math.inf
    reference = build(case, weights)
    before_relu = reference.watch()
    with torch.no_grad():
        reference(inputs["source"], inputs["target_input"])
    real = [inputs["source"] != PAD] * case.model.encoder_layers
    real += [inputs["target_input"] != PAD] * case.model.decoder_layers
    return min(hidden[where].abs().min().item() for hidden, where in zip(before_relu, real, strict=True))


def find_seed(case):
    """:return: the first seed whose ReLUs keep their distance, and its weights and inputs"""
    for seed in itertools.count(case.first_seed):
        weights, inputs = make_weights(case, seed), make_inputs(case, seed)
        if kink_distance(case, weights, inputs) > KINK_DISTANCE:
            return seed, weights, inputs


# Files ---------------------------------------------------------------------------------------------


def stride_of(tensor):
    """The smallest odd stride, coprime with the last dimension, that leaves at most SAMPLE_SIZE elements."""
    stride = -(-tensor.numel() // SAMPLE_SIZE)
    while stride % 2 == 0 or math.gcd(stride, tensor.shape[-1]) > 1:
        stride += 1
    return stride


def stored_form(tensors, full):
    """Converts tensors to float32 and samples the large ones.

    :return: the tensors as they are stored, and the configuration's entries about the sampled ones
    """
    stored, sampled = {}, {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            tensor = tensor.float()
        if not full and tensor.numel() > LARGEST_WHOLE:
            stride = stride_of(tensor)
            sampled[name] = {"stride": stride, "shape": list(tensor.shape)}
            tensor = tensor.flatten()[::stride]
        stored[name] = tensor.clone(memory_format=torch.contiguous_format)
    return stored, sampled


def write_case(case, folder, full):
    seed, weights, inputs = find_seed(case)
    results = run(case, weights, inputs)
    if case.shape is not SMALL:
        results = {name: tensor for name, tensor in results.items() if not name.startswith("attention.")}
    tensors, sampled = stored_form({f"input.{name}": t for name, t in inputs.items()} | results, full)
    config = {
        "model": asdict(case.model),
        "source_vocab": case.shape.vocab,
        "target_vocab": case.shape.vocab,
        "label_smoothing": LABEL_SMOOTHING,
        "seed": seed,
        "sampled": sampled,
        "special_tokens": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK},
        "torch": torch.__version__.split("+")[0],
    }
    write_file(folder / f"{case.name}.{case.shape.name}.safetensors", tensors, {"config": json.dumps(config)})
    if case.reference is TorchTransformer and case.shape is SMALL:
        # The module as saved. Its numbers are the rule's, which are float32 from the start.
        state = build(case, weights, torch.float32).state_dict()
        write_file(folder / f"{case.name}.state_dict.safetensors", state, None)


def write_file(path, tensors, metadata):
    """Writes at most one metadata entry: with several, safetensors writes them in varying order."""
    save_file(tensors, path, metadata=metadata)
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description="Writes the golden files of the reference models.")
    parser.add_argument("--full", type=Path, metavar="DIR", help="write the files whole, without sampling, into DIR")
    arguments = parser.parse_args()
    folder = arguments.full or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # one order of summation
    for case in CASES:
        write_case(case, folder, full=arguments.full is not None)


if __name__ == "__main__":
    main()
