"""Trains and decodes an `mt` model in PyTorch, for scripts/gpu-bench.sh to compare with `mt`.

    mt info runs/base --json >info.json
    for side in en de; do mt tokenize --model runs/base --input train.$side >tokens/train.$side; done
    mt tokenize --model runs/base --input test.en >tokens/test.en
    python benches/pytorch_peer.py train --model runs/base --info info.json --device cuda --precision bf16 \\
        --source tokens/train.en --target tokens/train.de
    python benches/pytorch_peer.py decode --model runs/base --info info.json --device cuda --precision bf16 \\
        --input tokens/test.en --output translated --beam 4

Both print one line of JSON. Shape, dropouts, batch size and decoding limits are those of `mt`'s model, which must have one
vocabulary for both languages.

`train` times full updates of `nn.Transformer` from its own initial weights: forward with padding and causal masks,
label-smoothed loss, backward, fused Adam. The gradient is that of the summed loss, divided by the number of target tokens.
Batches are made as in `mt`: pools sorted by length, cut at a number of padded tokens. All batches are tensors in pinned memory
before the clock starts, and the loss is read once every `--log-every` updates, whereas `mt` makes batches during training and
checks every update. The figure is the median over stretches of `--log-every` updates; the first stretch is warm-up.
`--compile` applies torch.compile to the model; the warm-up must cover its compilation.

`decode` uses `mt`'s weights and searches as `mt translate --patience 0` does, so greedy translations are the same except
for rounding. Keys and values are cached; the hypotheses of a sentence share those of the source; finished sentences leave
the batch. One pass over the input is warm-up, `--repeat` more are timed, from token ids to token ids. torch.compile and
CUDA graphs are not used.

With `--precision bf16`, `train` computes products and attention in bfloat16, as torch.autocast chooses; `decode` has its
weights and activations in that type, rounded once, so that nothing is converted on the way. With `f32`, TF32 is off.
Attention never uses cuDNN, which PyTorch prefers on an H100: cuDNN builds a plan for every new shape, and with sentences
nearly every batch and step has one.

Needs only `torch==2.11.0`.
"""

import argparse
import json
import math
import platform
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

Pair = tuple[list[int], list[int]]

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}
IMPOSSIBLE = -math.inf
# The minimum size of a pool, as in mt's src/data/sampler.rs.
POOL_PAIRS, POOL_BATCHES = 20_000, 400
# The cache of keys and values grows by this many positions.
CACHE_BLOCK = 8
# Rows of a mask begin at multiples of this: the GPU's kernels copy other masks at every use.
MASK_ALIGNMENT = 8


class Vocabulary:
    def __init__(self, file: Path):
        self.ids = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
        self.pieces = {number: piece for piece, number in self.ids.items()}
        self.size = max(self.ids.values()) + 1
        self.padding, self.start, self.end, self.unknown = (
            self.ids[token] for token in ("<pad>", "<s>", "</s>", "<unk>")
        )

    def sentences(self, file: Path) -> list[list[int]]:
        """The ids of each line, without the end."""
        with file.open(encoding="utf-8", newline="\n") as lines:
            return [[self.ids[piece] for piece in line.rstrip("\n").split(" ") if piece] for line in lines]

    def padded(self, sentences: list[list[int]]) -> torch.Tensor:
        """[B, L]"""
        return pad_sequence([torch.tensor(ids) for ids in sentences], batch_first=True, padding_value=self.padding)


def check_shape(shape: dict):
    """Ends the program if the model needs something that is not implemented here."""
    for key, value in (
        ("positions", ("sinusoidal", "learned")),
        ("sinusoid", ("interleaved", "halves")),
        ("norm_kind", ("layer",)),
        ("attention_bias", (True,)),
        ("output_padding", (True,)),
    ):
        if shape[key] not in value:
            raise SystemExit(f"model.{key} = {shape[key]} is not supported here")
    if not shape["d_k"] == shape["d_v"] == shape["d_model"] // shape["heads"]:
        raise SystemExit("heads of another width than d_model / heads are not supported here")


def check_search(settings: dict):
    """Ends the program if the model's translations are searched for in a way that is not implemented here."""
    for key, value in (
        ("length_penalty_kind", "gnmt"),
        ("max_length_ratio", 1.0),
        ("min_length", 0),
        ("no_repeat_ngram", 0),
    ):
        if settings[key] != value:
            raise SystemExit(f"decode.{key} = {settings[key]} is not supported here")


def sinusoids(shape: dict) -> torch.Tensor:
    """Section 3.5 of "Attention Is All You Need"; [positions, D]."""
    d = shape["d_model"]
    frequencies = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(shape["max_length"]).unsqueeze(1) * frequencies
    parts = angles.sin(), angles.cos()
    table = torch.stack(parts, dim=-1).flatten(1) if shape["sinusoid"] == "interleaved" else torch.cat(parts, dim=1)
    return table.float()


# Training


def usable(pairs: list[Pair], data: dict) -> list[Pair]:
    """The pairs that mt trains on."""

    def fits(pair: Pair) -> bool:
        shorter, longer = sorted(map(len, pair))
        in_length = not data["max_length"] or longer <= data["max_length"]
        return shorter > 0 and in_length and (not data["max_ratio"] or longer <= data["max_ratio"] * shorter)

    return [pair for pair in pairs if fits(pair)]


def sort_key(pair: Pair) -> tuple[int, int]:
    """mt's sort key: the longer side, then how much longer it is, alternately ascending and descending."""
    source, target = map(len, pair)
    return max(source, target), source - target if max(source, target) % 2 == 0 else target - source


def epoch(pairs: list[Pair], batch_tokens: int) -> Iterator[list[Pair]]:
    """Batches of up to `batch_tokens` padded tokens on the larger side."""
    pairs = random.sample(pairs, len(pairs))
    columns = sum(max(map(len, pair)) + 1 for pair in pairs) / len(pairs)
    pools = max(1, round(len(pairs) / max(POOL_PAIRS, POOL_BATCHES * batch_tokens / columns)))
    for number in range(pools):
        pool = sorted(pairs[number * len(pairs) // pools : (number + 1) * len(pairs) // pools], key=sort_key)
        batches, start = [], 0
        for end in range(1, len(pool) + 1):
            # The next pair would be the longest of the batch.
            if end == len(pool) or (end + 1 - start) * (max(map(len, pool[end])) + 1) > batch_tokens:
                batches.append(pool[start:end])
                start = end
        random.shuffle(batches)
        yield from batches


class Translator(nn.Module):
    """`nn.Transformer` between embeddings and output, with the dropouts of the configuration."""

    def __init__(self, shape: dict, vocabulary: Vocabulary):
        super().__init__()
        self.shape, self.padding = shape, vocabulary.padding
        d = shape["d_model"]
        self.transformer = nn.Transformer(
            d,
            shape["heads"],
            shape["encoder_layers"],
            shape["decoder_layers"],
            shape["d_ff"],
            shape["dropout"],
            ACTIVATIONS[shape["activation"]],
            layer_norm_eps=shape["norm_eps"],
            batch_first=True,
            norm_first=shape["norm"] == "pre",
        )
        if not shape["final_norm"]:
            self.transformer.encoder.norm = None
            self.transformer.decoder.norm = None
        for name, module in self.transformer.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = shape["attention_dropout"]
            elif name.endswith(".dropout"):  # on the activations; those on the residuals are dropout1, 2 and 3
                module.p = shape["activation_dropout"]
        for parameter in self.transformer.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

        def table(rows: int) -> nn.Embedding:
            embedding = nn.Embedding(rows, d)
            nn.init.normal_(embedding.weight, std=d**-0.5)
            return embedding

        self.source = table(vocabulary.size)
        self.target = self.source if shape["tie"] == "all" else table(vocabulary.size)
        self.output = nn.Linear(d, vocabulary.size, bias=shape["output_bias"])
        if shape["tie"] == "none":
            nn.init.xavier_uniform_(self.output.weight)
        else:
            self.output.weight = self.target.weight
        self.dropout = nn.Dropout(shape["embedding_dropout"])
        if shape["positions"] == "learned":
            self.source_positions, self.target_positions = (table(shape["max_length"]).weight for _ in range(2))
        else:
            self.register_buffer("source_positions", sinusoids(shape))
            self.register_buffer("target_positions", sinusoids(shape))
        self.scale = math.sqrt(d) if shape["scale_embedding"] else 1.0

    def embed(self, table: nn.Embedding, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """[B, L] to [B, L, D]."""
        return self.dropout(table(ids) * self.scale + positions[: ids.shape[1]])

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor, smoothing: float
    ) -> torch.Tensor:
        """The summed loss, from [B, S] and [B, T]."""
        hidden = source == self.padding
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        # Padding follows the real targets, so the causal mask hides it; with that mask alone, attention uses its fastest
        # kernels.
        states = self.transformer(
            self.embed(self.source, self.source_positions, source),
            self.embed(self.target, self.target_positions, target),
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        logits = self.output(states).flatten(0, 1)
        return F.cross_entropy(
            logits, labels.flatten(), ignore_index=self.padding, label_smoothing=smoothing, reduction="sum"
        )


def tensors(batch: list[Pair], vocabulary: Vocabulary, pinned: bool) -> tuple[list[torch.Tensor], int]:
    """Source, decoder input and labels, and the number of target tokens."""
    sources, targets = zip(*batch)
    sides = [
        vocabulary.padded([ids + [vocabulary.end] for ids in sources]),
        vocabulary.padded([[vocabulary.start] + ids for ids in targets]),
        vocabulary.padded([ids + [vocabulary.end] for ids in targets]),
    ]
    return [side.pin_memory() if pinned else side for side in sides], sum(len(ids) + 1 for ids in targets)


def train(arguments, info: dict, vocabulary: Vocabulary, device: torch.device) -> dict:
    config = info["config"]
    settings = config["train"]
    sides = (vocabulary.sentences(file) for file in (arguments.source, arguments.target))
    pairs = usable(list(zip(*sides, strict=True)), config["data"])
    batches = []
    while len(batches) < arguments.updates:
        batches += epoch(pairs, settings["batch_tokens"])
    prepared = [tensors(batch, vocabulary, device.type == "cuda") for batch in batches[: arguments.updates]]

    model = Translator(config["model"], vocabulary).to(device).train()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if parameters != info["parameters"]["total"]:
        raise SystemExit(f"this model has {parameters} parameters, mt's has {info['parameters']['total']}")
    loss_of = torch.compile(model, dynamic=True) if arguments.compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    bf16 = torch.autocast(device.type, dtype=torch.bfloat16, enabled=arguments.precision == "bf16")

    def update(sides: list[torch.Tensor], tokens: int) -> torch.Tensor:
        source, target, labels = (side.to(device, non_blocking=True) for side in sides)
        optimizer.zero_grad()
        with bf16:
            loss = loss_of(source, target, labels, settings["label_smoothing"]) / tokens
        loss.backward()
        if settings["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimizer.step()
        return loss.detach()

    speeds = []
    for start in range(0, len(prepared) - arguments.log_every + 1, arguments.log_every):
        stretch = prepared[start : start + arguments.log_every]
        synchronise(device)
        began = time.perf_counter()
        loss = sum(update(sides, tokens) for sides, tokens in stretch)
        synchronise(device)
        speeds.append(sum(tokens for _, tokens in stretch) / (time.perf_counter() - began))
        loss = loss.item() / len(stretch)
        if not math.isfinite(loss):
            raise SystemExit(f"the loss is {loss} at update {start + len(stretch)}")
    timed = speeds[1:]
    return {
        "target_tokens_per_second": statistics.median(timed),
        "slowest": min(timed),
        "fastest": max(timed),
        "updates": len(timed) * arguments.log_every,
        "loss": loss,
        "parameters": parameters,
    }


# Decoding


def read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """The float32 tensors of a model by name. The file begins with the length of a JSON header, which has their places."""
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise SystemExit(f"{name} in {file} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(data, dtype=torch.float32, count=(end - begin) // 4, offset=8 + length + begin)
        result[name] = values.view(entry["shape"])
    return result


class State:
    """The state of a batch of B sentences with R rows of hypotheses."""

    def __init__(self, source: torch.Tensor, mask: torch.Tensor, rows: int):
        layers, _, _, heads, _, k = source.shape
        self.source = source  # keys and values of every layer, [layers, 2, B, H, S, K]
        self.mask = mask  # 0, or -inf on padding, [B, 1, 1, at least S]
        self.cache = source.new_zeros(layers, 2, rows, heads, CACHE_BLOCK, k)

    def extend(self, position: int):
        """Makes room for a position."""
        if position == self.cache.shape[4]:
            self.cache = F.pad(self.cache, (0, 0, 0, CACHE_BLOCK))

    def select_rows(self, rows: torch.Tensor):
        self.cache = self.cache.index_select(2, rows)

    def select_sentences(self, sentences: torch.Tensor):
        self.source = self.source.index_select(2, sentences)
        self.mask = self.mask.index_select(0, sentences)


class Decoder:
    """mt's model for inference: encoder, decoder steps, greedy and beam search."""

    def __init__(self, shape: dict, vocabulary: Vocabulary, file: Path, device: torch.device, precision: str):
        self.shape, self.vocabulary, self.device = shape, vocabulary, device
        self.weights = {name: tensor.to(device) for name, tensor in read_safetensors(file).items()}
        self.type = torch.bfloat16 if precision == "bf16" else torch.float32
        self.activation = ACTIVATIONS[shape["activation"]]
        self.encoder = [self.layer(f"encoder.layers.{i}", False) for i in range(shape["encoder_layers"])]
        self.decoder = [self.layer(f"decoder.layers.{i}", True) for i in range(shape["decoder_layers"])]
        unchanged = lambda x: x
        self.encoder_norm = self.norm("encoder.norm") if shape["final_norm"] else unchanged
        self.decoder_norm = self.norm("decoder.norm") if shape["final_norm"] else unchanged
        target = "source_embedding" if shape["tie"] == "all" else "target_embedding"
        output = "output_projection" if shape["tie"] == "none" else target
        self.output = self.linear(f"{output}.weight", bias="output_projection.bias" if shape["output_bias"] else None)
        scale = math.sqrt(shape["d_model"]) if shape["scale_embedding"] else 1.0
        self.source_table, self.target_table = (
            (self.weights[f"{name}.weight"] * scale).to(self.type) for name in ("source_embedding", target)
        )
        if shape["positions"] == "learned":
            self.source_positions, self.target_positions = (
                self.weights[f"{stack}.positions.weight"].to(self.type) for stack in ("encoder", "decoder")
            )
        else:
            self.source_positions = self.target_positions = sinusoids(shape).to(device, self.type)
        self.forbidden = torch.tensor([vocabulary.padding, vocabulary.start, vocabulary.unknown], device=device)

    def linear(self, weight: str, bias: str | None) -> Callable:
        weight = self.weights[weight].to(self.type)
        bias = None if bias is None else self.weights[bias].to(self.type)
        return lambda x: F.linear(x, weight, bias)

    def packed(self, attention: str, projections: str) -> Callable:
        """Several of an attention's projections, by their letters, as one product."""
        weight, bias = (
            torch.cat([self.weights[f"{attention}.{letter}_proj.{kind}"] for letter in projections]).to(self.type)
            for kind in ("weight", "bias")
        )
        return lambda x: F.linear(x, weight, bias)

    def norm(self, name: str) -> Callable:
        weight, bias = (self.weights[f"{name}.{kind}"].to(self.type) for kind in ("weight", "bias"))
        epsilon = self.shape["norm_eps"]
        return lambda x: F.layer_norm(x, weight.shape, weight, bias, epsilon)

    def residual(self, name: str) -> Callable:
        """Maps x and f to norm(x + f(x)), or x + f(norm(x)), in the type of the products: without casts between them."""
        norm = self.norm(name)
        if self.shape["norm"] == "pre":
            return lambda x, f: x + f(norm(x))
        return lambda x, f: norm(x + f(x))

    def layer(self, name: str, cross: bool) -> dict[str, Callable]:
        def module(part: str) -> Callable:
            return self.linear(f"{name}.{part}.weight", f"{name}.{part}.bias")

        up, down = module("feed_forward.fc1"), module("feed_forward.fc2")
        result = {
            "self": self.packed(f"{name}.self_attn", "qkv"),
            "self_output": module("self_attn.out_proj"),
            "self_residual": self.residual(f"{name}.self_attn_norm"),
            "feed_forward": lambda x: down(self.activation(up(x))),
            "feed_forward_residual": self.residual(f"{name}.feed_forward_norm"),
        }
        if cross:
            result |= {
                "query": module("cross_attn.q_proj"),
                "source": self.packed(f"{name}.cross_attn", "kv"),
                "cross_output": module("cross_attn.out_proj"),
                "cross_residual": self.residual(f"{name}.cross_attn_norm"),
            }
        return result

    def begin(self, sentences: list[list[int]], hypotheses: int) -> State:
        """Encodes sentences; each gets rows for this many hypotheses."""
        heads = self.shape["heads"]
        ids = self.vocabulary.padded([sentence + [self.vocabulary.end] for sentence in sentences])
        ids = ids.to(self.device)
        hidden = F.pad(ids == self.vocabulary.padding, (0, -ids.shape[1] % MASK_ALIGNMENT))[:, None, None]
        mask = torch.zeros(hidden.shape, dtype=self.type, device=self.device).masked_fill_(hidden, IMPOSSIBLE)
        visible = mask[..., : ids.shape[1]]
        x = F.embedding(ids, self.source_table) + self.source_positions[: ids.shape[1]]
        for layer in self.encoder:

            def attend(x: torch.Tensor) -> torch.Tensor:
                q, k, v = layer["self"](x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
                states = F.scaled_dot_product_attention(q, k, v, visible)
                return layer["self_output"](states.transpose(1, 2).flatten(2))

            x = layer["self_residual"](x, attend)
            x = layer["feed_forward_residual"](x, layer["feed_forward"])
        x = self.encoder_norm(x)
        source = [layer["source"](x).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4) for layer in self.decoder]
        return State(torch.stack(source), mask, len(sentences) * hypotheses)

    def step(self, tokens: torch.Tensor, position: int, state: State) -> torch.Tensor:
        """Extends each row by a token, [R]; returns logits [R, V] in float32."""
        rows, sentences = len(tokens), state.source.shape[2]
        heads = self.shape["heads"]
        state.extend(position)
        visible = state.mask[..., : state.source.shape[4]]
        x = F.embedding(tokens, self.target_table) + self.target_positions[position]
        for layer, cache, (source_keys, source_values) in zip(self.decoder, state.cache, state.source):

            def attend(x: torch.Tensor) -> torch.Tensor:
                both = layer["self"](x).view(rows, 3, heads, -1).transpose(0, 1)
                cache[:, :, :, position] = both[1:]
                keys, values = cache[:, :, :, : position + 1]
                states = F.scaled_dot_product_attention(both[0].unsqueeze(2), keys, values)
                return layer["self_output"](states.flatten(1))

            def look(x: torch.Tensor) -> torch.Tensor:
                # The hypotheses of a sentence are R/B queries of the same keys: [B, H, R/B, K].
                q = layer["query"](x).view(sentences, rows // sentences, heads, -1).transpose(1, 2)
                states = F.scaled_dot_product_attention(q, source_keys, source_values, visible)
                return layer["cross_output"](states.transpose(1, 2).reshape(rows, -1))

            x = layer["self_residual"](x, attend)
            x = layer["cross_residual"](x, look)
            x = layer["feed_forward_residual"](x, layer["feed_forward"])
        return self.output(self.decoder_norm(x)).float()

    def greedy(self, sources: list[list[int]], limits: list[int]) -> torch.Tensor:
        """Tokens [B, longest], filled with the end."""
        end = self.vocabulary.end
        state = self.begin(sources, 1)
        longest, limits = max(limits), torch.tensor(limits, device=self.device)
        output = torch.full((len(sources), longest), end, device=self.device)
        sentences = torch.arange(len(sources), device=self.device)
        tokens = torch.full_like(sentences, self.vocabulary.start)
        for position in range(longest):
            logits = self.step(tokens, position, state).index_fill_(1, self.forbidden, IMPOSSIBLE)
            tokens = logits.argmax(1)
            output[sentences, position] = tokens
            live = ((tokens != end) & (limits > position + 1)).nonzero().squeeze(1)
            if len(live) == 0:
                break
            if len(live) < len(tokens):
                tokens, sentences, limits = tokens[live], sentences[live], limits[live]
                state.select_rows(live)
                state.select_sentences(live)
        return output

    def beam(self, sources: list[list[int]], limits: list[int], width: int, alpha: float) -> torch.Tensor:
        """Tokens [B, longest] of the best hypotheses, filled with the end. The search is mt's (src/decode/beam.rs)."""
        end, device, count = self.vocabulary.end, self.device, len(sources)
        state = self.begin(sources, width)
        longest, limits = max(limits), torch.tensor(limits, device=device)
        output = torch.full((count, longest), end, device=device)
        sentences = torch.arange(count, device=device)
        # Live hypotheses, the most probable first; missing ones have probability 0.
        log_probs = torch.full((count, width), IMPOSSIBLE, dtype=torch.float64, device=device)
        log_probs[:, 0] = 0.0
        history = torch.full((count, width, longest), end, device=device)
        tokens = torch.full((count * width,), self.vocabulary.start, device=device)
        # The scores of the best hypotheses set aside, and the tokens of the very best.
        kept = torch.full_like(log_probs, IMPOSSIBLE)
        best = output.clone()
        # At most one continuation of a row is its end.
        k = width + 1
        for position in range(longest):
            length = position + 1
            logits = self.step(tokens, position, state)
            log_sums = logits.logsumexp(1, keepdim=True)
            values, tokens = logits.index_fill_(1, self.forbidden, IMPOSSIBLE).topk(k)
            values = (values - log_sums).clamp_(max=0.0).double().view(-1, width, k)
            totals, order = (values + log_probs.unsqueeze(2)).flatten(1).topk(2 * width)
            parents, tokens = order // k, tokens.view(-1, width * k).gather(1, order)
            # From the top down, ends are set aside and the others stay live, until `width` are live.
            goes_on = tokens != end
            above = goes_on.cumsum(1) - goes_on.long()
            ended = totals.masked_fill(goes_on | (above >= width), IMPOSSIBLE)
            chosen = goes_on.byte().argsort(dim=1, descending=True, stable=True)[:, :width]
            log_probs, live_parents, live_tokens = (x.gather(1, chosen) for x in (totals, parents, tokens))
            # At a sentence's limit, live hypotheses are set aside, too.
            cut = (limits == length).unsqueeze(1)
            aside = torch.cat((ended, log_probs.masked_fill(~cut, IMPOSSIBLE)), dim=1) / ((5 + length) / 6) ** alpha
            score, first = aside.max(1, keepdim=True)
            better = score > kept[:, :1]
            parent, token = (
                torch.cat(both, dim=1).gather(1, first) for both in ((parents, live_parents), (tokens, live_tokens))
            )
            new_best = history.gather(1, parent.unsqueeze(2).expand(-1, -1, longest)).squeeze(1)
            new_best[:, position] = token.squeeze(1)
            best = torch.where(better, new_best, best)
            kept = torch.cat((kept, aside), dim=1).topk(width).values
            # Hypotheses that can no longer displace the worst of those kept are dropped.
            attainable = log_probs / (((5 + limits.double()) / 6) ** alpha).unsqueeze(1)
            log_probs = log_probs.masked_fill(cut | ~(attainable > kept[:, -1:]), IMPOSSIBLE)
            history = history.gather(1, live_parents.unsqueeze(2).expand(-1, -1, longest))
            history[:, :, position] = live_tokens
            rows = live_parents + torch.arange(len(kept), device=device).unsqueeze(1) * width
            live = (log_probs[:, 0] > IMPOSSIBLE).nonzero().squeeze(1)
            if len(live) < len(kept):
                output[sentences] = best
                if len(live) == 0:
                    break
                state.select_sentences(live)
                rows, live_tokens, log_probs, history, kept, best, sentences, limits = (
                    x.index_select(0, live)
                    for x in (rows, live_tokens, log_probs, history, kept, best, sentences, limits)
                )
            state.select_rows(rows.flatten())
            tokens = live_tokens.flatten()
        return output

    @torch.inference_mode()
    def translate(self, sources: list[list[int]], settings: dict, beam: int, batch_tokens: int) -> list[list[int]]:
        """Maps token ids, without the end, to token ids, in the same order; batches are sorted by length as in mt."""
        result = [[] for _ in sources]
        order = sorted((i for i, ids in enumerate(sources) if ids), key=lambda i: -len(sources[i]))
        while order:
            rows = max(1, batch_tokens // (len(sources[order[0]]) + 1))
            batch, order = order[:rows], order[rows:]
            ids = [sources[i] for i in batch]
            limits = [min(len(row) + settings["max_length_extra"], self.shape["max_length"]) for row in ids]
            if beam == 1:
                output = self.greedy(ids, limits)
            else:
                output = self.beam(ids, limits, beam, settings["length_penalty"])
            for i, row in zip(batch, output.tolist()):
                result[i] = row[: row.index(self.vocabulary.end)] if self.vocabulary.end in row else row
        return result


def decode(arguments, info: dict, vocabulary: Vocabulary, device: torch.device) -> dict:
    config = info["config"]
    settings, longest = config["decode"], config["model"]["max_length"] - 1
    check_search(settings)
    decoder = Decoder(config["model"], vocabulary, arguments.model / "model.safetensors", device, arguments.precision)
    sources = [ids[:longest] for ids in vocabulary.sentences(arguments.input)]
    batch_tokens = arguments.batch_tokens or settings["batch_tokens"]
    translations = decoder.translate(sources, settings, arguments.beam, batch_tokens)
    synchronise(device)
    began = time.perf_counter()
    for _ in range(arguments.repeat):
        translations = decoder.translate(sources, settings, arguments.beam, batch_tokens)
    synchronise(device)
    seconds = (time.perf_counter() - began) / arguments.repeat
    with arguments.output.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(" ".join(vocabulary.pieces[i] for i in ids) + "\n" for ids in translations)
    # The end of a sentence is a token too.
    tokens = sum(len(ids) + 1 for ids in translations)
    return {
        "sentences_per_second": len(sources) / seconds,
        "target_tokens_per_second": tokens / seconds,
        "sentences": len(sources),
        "target_tokens": tokens,
        "seconds": seconds,
    }


def synchronise(device: torch.device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def versions(device: torch.device) -> dict:
    result = {"torch": torch.__version__, "python": platform.python_version()}
    if device.type == "cuda":
        result |= {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name(device)}
    return result


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def parse_arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", type=Path, required=True, help="folder of mt's model, with one tokenizer.json")
    common.add_argument("--info", type=Path, required=True, help="what `mt info MODEL --json` prints")
    common.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    common.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    common.add_argument("--threads", type=positive, help="threads on the processor; default: PyTorch's choice")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("train", parents=[common], help="target tokens/s of full updates")
    mode.add_argument("--source", type=Path, required=True, help="the training text in subwords")
    mode.add_argument("--target", type=Path, required=True)
    mode.add_argument("--updates", type=positive, default=100)
    mode.add_argument("--log-every", type=positive, default=20, help="updates timed together; the first are warm-up")
    mode.add_argument("--compile", action="store_true", help="use torch.compile")
    mode = modes.add_parser("decode", parents=[common], help="sentences/s of translation")
    mode.add_argument("--input", type=Path, required=True, help="sources in subwords")
    mode.add_argument("--output", type=Path, required=True, help="file for the translations in subwords")
    mode.add_argument("--beam", type=positive, default=1, help="beam width; 1: greedy")
    mode.add_argument("--batch-tokens", type=positive, help="padded source tokens in a batch; default: the model's")
    mode.add_argument("--repeat", type=positive, default=1, help="passes timed")
    arguments = parser.parse_args()
    if arguments.mode == "train" and arguments.updates < 2 * arguments.log_every:
        parser.error("--updates must be at least twice --log-every")
    return arguments


def main():
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(1)
    random.seed(1)

    info = json.loads(arguments.info.read_text(encoding="utf-8"))
    check_shape(info["config"]["model"])
    file = arguments.model / "tokenizer.json"
    if not file.exists():
        raise SystemExit(f"{file} is missing: only a model with one vocabulary for both languages is supported here")
    result = (train if arguments.mode == "train" else decode)(arguments, info, Vocabulary(file), device)
    print(json.dumps(result | versions(device)), flush=True)


if __name__ == "__main__":
    main()
