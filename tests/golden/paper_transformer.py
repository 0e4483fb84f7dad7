"""Golden numbers: the Transformer of "Attention Is All You Need", formula by formula, in PyTorch.

    python tests/golden/paper_transformer.py          # writes the four .safetensors files beside this script
    python tests/golden/check_paper_transformer.py    # compares them with float64 and torch's own modules

Every step is written as in the paper, with its section number, and heads are computed one at a time,
so that an implementation compared with these numbers shares nothing with them but the names of weights.
Section numbers are those of arXiv:1706.03762; pre-norm is arXiv:2002.04745.

Shape letters: B batch, S source length, T target length, L either, D d_model, H heads, K d_k or
d_v of one head, F d_ff, V vocabulary.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

FOLDER = Path(__file__).resolve().parent
PAD, BOS, EOS, UNK = 0, 1, 2, 3
FIRST_WORD = 4


@dataclass(frozen=True)
class Model:
    """The keys of a `[model]` section that these models need."""

    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    encoder_layers: int
    decoder_layers: int
    norm: str  # "post" or "pre"
    final_norm: bool
    tie: str  # "all" or "none"
    output_bias: bool
    norm_eps: float = 1e-5
    norm_kind: str = "layer"
    positions: str = "sinusoidal"
    position_layout: str = "interleaved"
    scale_embedding: bool = True
    attention_bias: bool = True
    activation: str = "relu"


@dataclass(frozen=True)
class Case:
    """One golden file: a model, its vocabularies and the lengths of its batch's rows."""

    name: str
    seed: int
    model: Model
    source_vocab: int
    target_vocab: int
    source_lengths: tuple[int, ...]  # with </s>
    target_lengths: tuple[int, ...]  # of the decoder's input, with <s>
    label_smoothing: float = 0.1


CASES = (
    Case(
        name="post_norm",
        seed=1,
        model=Model(
            d_model=32, d_ff=64, heads=4, d_k=8, d_v=8, encoder_layers=2, decoder_layers=2,
            norm="post", final_norm=False, tie="all", output_bias=False,
        ),
        source_vocab=97,
        target_vocab=97,
        source_lengths=(7, 4, 1),
        target_lengths=(3, 6, 2),
    ),
    Case(
        name="pre_norm",
        seed=2,
        # d_k, d_v, d_ff and both vocabularies are all different and no multiple of 8.
        model=Model(
            d_model=32, d_ff=19, heads=3, d_k=12, d_v=6, encoder_layers=2, decoder_layers=3,
            norm="pre", final_norm=True, tie="none", output_bias=True,
        ),
        source_vocab=83,
        target_vocab=101,
        source_lengths=(2, 7, 5),
        target_lengths=(6, 4, 1),
    ),
)  # fmt: skip


# The model -------------------------------------------------------------------------------------


def attention(query, key, value, allowed):
    """Section 3.2.1, equation 1: softmax(Q K^T / sqrt(d_k)) V.

    :param query: [B, Lq, d_k]; :param key: [B, Lk, d_k]; :param value: [B, Lk, d_v]
    :param allowed: [B, Lq, Lk], False where a score is set to -inf before the softmax
    :return: [B, Lq, d_v]
    """
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])  # [B, Lq, Lk]
    scores = scores.masked_fill(~allowed, -math.inf)
    exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return exponentials / exponentials.sum(dim=-1, keepdim=True) @ value


def layer_norm(x, gain, bias, eps):
    """Ba et al. 2016: the biased variance, eps inside the root."""
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return gain * (x - mean) / torch.sqrt(variance + eps) + bias


def smoothed_loss(logits, labels, smoothing):
    """Section 5.4: the label's target is 1 - eps, and eps is spread evenly over all V entries.

    :param logits: [B, T, V]; :param labels: [B, T]
    :return: the mean over the labels that are not padding
    """
    shifted = logits - logits.max(dim=-1, keepdim=True).values
    log_probabilities = shifted - torch.log(torch.exp(shifted).sum(dim=-1, keepdim=True))
    of_label = -log_probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)  # [B, T]
    of_all = -log_probabilities.sum(dim=-1)  # [B, T]
    losses = (1 - smoothing) * of_label + smoothing / logits.shape[-1] * of_all
    real = labels != PAD
    return losses[real].sum() / real.sum()


class Formulas:
    """The steps that a check can replace by torch's own."""

    attention = staticmethod(attention)
    layer_norm = staticmethod(layer_norm)
    smoothed_loss = staticmethod(smoothed_loss)


def positions(length, d_model, dtype):
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) the cosine; [L, D]."""
    table = torch.empty(length, d_model, dtype=torch.float64)
    for pos in range(length):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            table[pos, 2 * i] = math.sin(angle)
            table[pos, 2 * i + 1] = math.cos(angle)
    return table.to(dtype)


class Transformer:
    """The model of Figure 1 over a dictionary of named weights, without dropout."""

    def __init__(self, model, weights, steps=Formulas):
        self.model = model
        self.weights = weights
        self.steps = steps
        self.before_relu = []

    def linear(self, name, x):
        """x W^T + b, with W stored [out, in]."""
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def normalise(self, name, x):
        gain, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self.steps.layer_norm(x, gain, bias, self.model.norm_eps)

    def multi_head(self, name, queries, keys, allowed):
        """Section 3.2.2: Concat(head_1 … head_H) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)."""
        d_k, d_v = self.model.d_k, self.model.d_v
        query = self.linear(f"{name}.q_proj", queries)  # [B, Lq, H·d_k]
        key = self.linear(f"{name}.k_proj", keys)  # [B, Lk, H·d_k]
        value = self.linear(f"{name}.v_proj", keys)  # [B, Lk, H·d_v]
        outputs = []
        for head in range(self.model.heads):
            of_keys = slice(head * d_k, (head + 1) * d_k)
            of_values = slice(head * d_v, (head + 1) * d_v)
            outputs.append(
                self.steps.attention(query[..., of_keys], key[..., of_keys], value[..., of_values], allowed)
            )
        return self.linear(f"{name}.out_proj", torch.cat(outputs, dim=-1))  # [B, Lq, D]

    def self_attention(self, name, x, allowed):
        return self.multi_head(name, x, x, allowed)

    def feed_forward(self, name, x):
        """Section 3.3, equation 2: max(0, x W_1 + b_1) W_2 + b_2."""
        hidden = self.linear(f"{name}.fc1", x)  # [B, L, F]
        self.before_relu.append(hidden.detach())
        return self.linear(f"{name}.fc2", torch.clamp(hidden, min=0))

    def residual(self, sublayer, name, x, *rest):
        """Section 3.1: LayerNorm(x + Sublayer(x)); pre-norm: x + Sublayer(LayerNorm(x))."""
        if self.model.norm == "post":
            return self.normalise(f"{name}_norm", x + sublayer(name, x, *rest))
        return x + sublayer(name, self.normalise(f"{name}_norm", x), *rest)

    def embed(self, side, ids):
        """Sections 3.4 and 3.5: embeddings times sqrt(D), plus positions; [B, L, D]."""
        weight = self.weights.get(f"{side}_embedding.weight")
        if weight is None:
            weight = self.weights["source_embedding.weight"]
        length, d_model = ids.shape[1], self.model.d_model
        return weight[ids] * math.sqrt(d_model) + positions(length, d_model, weight.dtype)

    def encode(self, source):
        """:param source: [B, S]; :return: [B, S, D]"""
        allowed = (source != PAD).unsqueeze(1).expand(-1, source.shape[1], -1)  # [B, S, S]
        x = self.embed("source", source)
        for layer in range(self.model.encoder_layers):
            name = f"encoder.layers.{layer}"
            x = self.residual(self.self_attention, f"{name}.self_attn", x, allowed)
            x = self.residual(self.feed_forward, f"{name}.feed_forward", x)
        return self.normalise("encoder.norm", x) if self.model.final_norm else x

    def decode(self, memory, source, target_input):
        """:param memory: [B, S, D]; :param target_input: [B, T]; :return: [B, T, D]"""
        length = target_input.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        on_target = causal & (target_input != PAD).unsqueeze(1)  # [B, T, T]
        on_source = (source != PAD).unsqueeze(1).expand(-1, length, -1)  # [B, T, S]
        x = self.embed("target", target_input)
        for layer in range(self.model.decoder_layers):
            name = f"decoder.layers.{layer}"
            x = self.residual(self.self_attention, f"{name}.self_attn", x, on_target)
            x = self.residual(self.multi_head, f"{name}.cross_attn", x, memory, on_source)
            x = self.residual(self.feed_forward, f"{name}.feed_forward", x)
        return self.normalise("decoder.norm", x) if self.model.final_norm else x

    def project(self, states):
        """Section 3.4: the output matrix, which is the embedding if tied; [B, T, V]."""
        if self.model.tie == "all":
            return states @ self.weights["source_embedding.weight"].T
        return self.linear("output_projection", states)


# Weights and inputs ----------------------------------------------------------------------------


def make_weights(case):
    """Random weights, none of them zero or one, so that a missing term of a formula shows."""
    model, generator, weights = case.model, torch.Generator().manual_seed(case.seed), {}

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    def linear(name, inputs, outputs, bias=True):
        bound = math.sqrt(6 / (inputs + outputs))  # Glorot and Bengio 2010
        weights[f"{name}.weight"] = (2 * torch.rand(outputs, inputs, generator=generator) - 1) * bound
        if bias:
            weights[f"{name}.bias"] = 0.1 * normal(outputs)

    def norm(name):
        weights[f"{name}.weight"] = 1 + 0.1 * normal(model.d_model)
        weights[f"{name}.bias"] = 0.1 * normal(model.d_model)

    def attention_block(name):
        for projection, width in (("q_proj", model.d_k), ("k_proj", model.d_k), ("v_proj", model.d_v)):
            linear(f"{name}.{projection}", model.d_model, model.heads * width, model.attention_bias)
        linear(f"{name}.out_proj", model.heads * model.d_v, model.d_model, model.attention_bias)
        norm(f"{name}_norm")

    def feed_forward_block(name):
        linear(f"{name}.fc1", model.d_model, model.d_ff)
        linear(f"{name}.fc2", model.d_ff, model.d_model)
        norm(f"{name}_norm")

    # The padding row is not zero either, so that a leaking mask shows.
    weights["source_embedding.weight"] = normal(case.source_vocab, model.d_model) * model.d_model**-0.5
    if model.tie == "none":
        weights["target_embedding.weight"] = normal(case.target_vocab, model.d_model) * model.d_model**-0.5
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for layer in range(layers):
            attention_block(f"{stack}.layers.{layer}.self_attn")
            if stack == "decoder":
                attention_block(f"{stack}.layers.{layer}.cross_attn")
            feed_forward_block(f"{stack}.layers.{layer}.feed_forward")
        if model.final_norm:
            norm(f"{stack}.norm")
    if model.tie == "none":
        linear("output_projection", model.d_model, case.target_vocab, model.output_bias)
    return weights


def make_inputs(case):
    """Source `x1…xm </s>`, decoder input `<s> y1…yn`, labels `y1…yn </s>`, each padded to its longest."""
    generator = torch.Generator().manual_seed(case.seed + 1000)

    def words(vocab, count):
        return torch.randint(FIRST_WORD, vocab, (count,), generator=generator).tolist()

    def padded(rows):
        longest = max(len(row) for row in rows)
        return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])

    source, target_input, labels = [], [], []
    for source_length, target_length in zip(case.source_lengths, case.target_lengths, strict=True):
        source.append(words(case.source_vocab, source_length - 1) + [EOS])
        target = words(case.target_vocab, target_length - 1)
        target_input.append([BOS] + target)
        labels.append(target + [EOS])
    return {
        "source": padded(source),
        "target_input": padded(target_input),
        "labels": padded(labels),
        "source_lengths": torch.tensor(case.source_lengths),
        "target_lengths": torch.tensor(case.target_lengths),
    }


# Running a case --------------------------------------------------------------------------------


def run(case, weights, inputs, dtype, steps=Formulas):
    """Forward and backward.

    :return: `output.*` and `grad.*` by name, and the distance of the nearest real activation from ReLU's kink
    """
    leaves = {name: weight.to(dtype).requires_grad_() for name, weight in weights.items()}
    model = Transformer(case.model, leaves, steps)
    source, target_input = inputs["source"], inputs["target_input"]
    memory = model.encode(source)
    logits = model.project(model.decode(memory, source, target_input))
    loss = steps.smoothed_loss(logits, inputs["labels"], case.label_smoothing)
    loss.backward()

    results = {"output.encoder": memory, "output.logits": logits, "output.loss": loss}
    results = {name: tensor.detach() for name, tensor in results.items()}
    results |= {f"grad.{name}": leaf.grad for name, leaf in leaves.items()}
    encoder_layers = case.model.encoder_layers
    kink = min(
        hidden[(source if layer < encoder_layers else target_input) != PAD].abs().min().item()
        for layer, hidden in enumerate(model.before_relu)
    )
    return results, kink


def write_case(case):
    weights, inputs = make_weights(case), make_inputs(case)
    results, _ = run(case, weights, inputs, torch.float32)
    tensors = {f"weight.{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"input.{name}": tensor for name, tensor in inputs.items()}
    config = {
        "model": asdict(case.model),
        "source_vocab": case.source_vocab,
        "target_vocab": case.target_vocab,
        "label_smoothing": case.label_smoothing,
        "special_tokens": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK},
        "seed": case.seed,
        "torch": torch.__version__.split("+")[0],
    }
    write_file(case.name, tensors | results, config)


def write_file(name, tensors, config):
    """Writes a single metadata entry: with several, safetensors writes them in varying order."""
    path = FOLDER / f"{name}.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={"config": json.dumps(config)})
    print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size:,} bytes")


# The loss alone --------------------------------------------------------------------------------

SMOOTHINGS = (0.0, 0.1, 0.2)


def write_label_smoothing():
    """Logits [37, 113] with a spread of 3, about a fifth of labels padding; torch's loss and its gradient."""
    rows, vocab, seed = 37, 113, 3
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, vocab, generator=generator)
    labels = torch.randint(1, vocab, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = PAD
    tensors = {"input.logits": logits, "input.labels": labels}
    for smoothing in SMOOTHINGS:
        leaf = logits.clone().requires_grad_()
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing, ignore_index=PAD)(leaf, labels)
        loss.backward()
        tensors |= {f"output.loss.{smoothing}": loss.detach(), f"grad.logits.{smoothing}": leaf.grad}
    config = {
        "reduction": "mean",
        "smoothing": SMOOTHINGS,
        "ignore_index": PAD,
        "seed": seed,
        "torch": torch.__version__.split("+")[0],
    }
    write_file("label_smoothing", tensors, config)


R_DROP_ALPHA, R_DROP_SMOOTHING = 5.0, 0.1


def r_drop_loss(logits, labels):
    """Liang et al. 2021 (arXiv:2106.14448), section 2.1, with label smoothing in the cross-entropy alone.

    :param logits: [2, N, V], of two passes; :param labels: [N]
    :return: the mean of 1/2 (CE1 + CE2) + alpha/4 (KL12 + KL21) over the labels that are not padding
    """
    real = labels != PAD
    smoothed = nn.CrossEntropyLoss(label_smoothing=R_DROP_SMOOTHING, ignore_index=PAD, reduction="sum")
    first, second = (row[real].log_softmax(dim=-1) for row in logits)
    divergences = sum(
        nn.functional.kl_div(other, one, reduction="sum", log_target=True)
        for one, other in ((first, second), (second, first))
    )
    cross_entropies = smoothed(logits[0], labels) + smoothed(logits[1], labels)
    return (cross_entropies / 2 + R_DROP_ALPHA / 4 * divergences) / real.sum()


def write_r_drop():
    """Logits [2, 29, 71] of two passes that differ by a sixth of their spread; torch's loss and its gradient."""
    rows, vocab, seed = 29, 71, 4
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, vocab, generator=generator)
    logits = logits + 0.5 * torch.randn(2, rows, vocab, generator=generator)
    labels = torch.randint(1, vocab, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = PAD
    leaf = logits.clone().requires_grad_()
    loss = r_drop_loss(leaf, labels)
    loss.backward()
    tensors = {"input.logits": logits, "input.labels": labels, "output.loss": loss.detach(), "grad.logits": leaf.grad}
    config = {
        "alpha": R_DROP_ALPHA,
        "smoothing": R_DROP_SMOOTHING,
        "ignore_index": PAD,
        "seed": seed,
        "torch": torch.__version__.split("+")[0],
    }
    write_file("r_drop", tensors, config)


def main():
    torch.set_num_threads(1)  # one order of summation
    for case in CASES:
        write_case(case)
    write_label_smoothing()
    write_r_drop()


if __name__ == "__main__":
    main()
