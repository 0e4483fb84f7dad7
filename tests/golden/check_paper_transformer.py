"""Compares the golden files with float64, `torch.nn.functional`, torch's Transformer and finite differences.

    python tests/golden/check_paper_transformer.py

It ends with an AssertionError at the first disagreement.
"""

import json
from dataclasses import asdict, replace

import torch
from paper_transformer import (
    CASES,
    FOLDER,
    PAD,
    R_DROP_ALPHA,
    R_DROP_SMOOTHING,
    SMOOTHINGS,
    Transformer,
    make_inputs,
    make_weights,
    run,
    smoothed_loss,
)
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

# float32 has 24 bits; a few thousand roundings of relative size 6e-8 stay well under this.
TOLERANCE = 1e-5
# A key projection's bias adds the same number to all scores of a query, which softmax ignores:
# its gradient is zero in theory, so only an absolute bound means anything.
KEY_BIAS_TOLERANCE = 1e-6
# With other arithmetic, an activation this near to zero could be on the other side of ReLU's kink.
KINK_DISTANCE = 1e-5


class Library:
    """The same steps with `torch.nn.functional`."""

    @staticmethod
    def attention(query, key, value, allowed):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    @staticmethod
    def layer_norm(x, gain, bias, eps):
        return F.layer_norm(x, x.shape[-1:], gain, bias, eps)

    @staticmethod
    def smoothed_loss(logits, labels, smoothing):
        return F.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=smoothing
        )


def relative_error(actual, expected):
    """max|a - b| / max|b| over a tensor, in float64."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def compare(what, actual, expected, tolerance=TOLERANCE):
    """Asserts that two dictionaries of results agree, and prints the worst tensor."""
    assert actual.keys() == expected.keys(), f"{what}: {actual.keys() ^ expected.keys()}"
    worst = (0.0, "")
    for name, tensor in expected.items():
        assert tensor.isfinite().all() and actual[name].isfinite().all(), f"{what}: {name} is not finite"
        assert tensor.shape == actual[name].shape, f"{what}: {name} has another shape"
        if name.startswith("grad.") and name.endswith("k_proj.bias"):
            largest = max(tensor.abs().max().item(), actual[name].abs().max().item())
            assert largest < KEY_BIAS_TOLERANCE, f"{what}: {name} is {largest:.1e}, not zero"
            continue
        assert tensor.abs().max() > 0, f"{what}: {name} is zero"
        worst = max(worst, (relative_error(actual[name], tensor), name))
    assert worst[0] < tolerance, f"{what}: {worst[1]} is off by {worst[0]:.1e}"
    print(f"  {what}: {len(expected)} tensors, worst {worst[0]:.1e} ({worst[1]})")


def stored(case):
    """The weights, inputs and results of a case's file, and its configuration."""
    path = FOLDER / f"{case.name}.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])

    def part(prefix):
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

    results = {name: t for name, t in tensors.items() if name.startswith(("output.", "grad."))}
    return part("weight."), part("input."), results, config


def check_case(case):
    """Compares the stored numbers with float64, and with the same model made of torch's functions."""
    print(f"{case.name}.safetensors")
    weights, inputs, results, config = stored(case)
    assert config["model"] == asdict(case.model), "the file was made from another configuration"
    assert weights.keys() == make_weights(case).keys(), "the file has other weights"
    exact, kink = run(case, weights, inputs, torch.float64)
    assert kink > KINK_DISTANCE, f"an activation lies {kink:.1e} from ReLU's kink: take another seed"
    compare("stored float32 against float64", results, exact)
    library, _ = run(case, weights, inputs, torch.float64, Library)
    compare("formulas against torch.nn.functional, float64", exact, library, 1e-12)
    check_padding(case, weights, inputs, exact)
    check_differences(case, weights, inputs, exact)


def check_padding(case, weights, inputs, exact):
    """Each row alone, without padding, must give the same numbers at its real positions."""
    model = Transformer(case.model, {name: weight.double() for name, weight in weights.items()})
    for row, (source_length, target_length) in enumerate(
        zip(case.source_lengths, case.target_lengths, strict=True)
    ):
        source = inputs["source"][row : row + 1, :source_length]
        target_input = inputs["target_input"][row : row + 1, :target_length]
        memory = model.encode(source)
        logits = model.project(model.decode(memory, source, target_input))
        assert relative_error(memory[0], exact["output.encoder"][row, :source_length]) < 1e-12
        assert relative_error(logits[0], exact["output.logits"][row, :target_length]) < 1e-12
    print("  every row alone, without padding: the same numbers")


def check_differences(case, weights, inputs, exact):
    """Compares the largest gradient of every weight with a central difference of the loss, in float64."""
    step, worst = 1e-6, 0.0

    def loss(changed):
        model = Transformer(case.model, changed)
        memory = model.encode(inputs["source"])
        logits = model.project(model.decode(memory, inputs["source"], inputs["target_input"]))
        return smoothed_loss(logits, inputs["labels"], case.label_smoothing)

    weights = {name: weight.double() for name, weight in weights.items()}
    for name, weight in weights.items():
        if name.endswith("k_proj.bias"):
            continue
        gradient = exact[f"grad.{name}"].flatten()
        entry = gradient.abs().argmax()
        offset = torch.zeros(weight.numel(), dtype=torch.float64)
        offset[entry] = step
        offset = offset.view_as(weight)
        slope = (loss(weights | {name: weight + offset}) - loss(weights | {name: weight - offset})) / (
            2 * step
        )
        worst = max(worst, (slope / gradient[entry] - 1).abs().item())
    assert worst < 1e-5, f"a gradient is off its finite difference by {worst:.1e}"
    print(f"  gradients against finite differences, float64: worst {worst:.1e}")


def torch_stacks(model, weights):
    """torch's whole encoder and decoder, with these weights in their places."""
    shape = {
        "d_model": model.d_model,
        "nhead": model.heads,
        "dim_feedforward": model.d_ff,
        "dropout": 0.0,
        "layer_norm_eps": model.norm_eps,
        "batch_first": True,
        "norm_first": model.norm == "pre",
    }

    def final():
        return nn.LayerNorm(model.d_model, model.norm_eps) if model.final_norm else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**shape), model.encoder_layers, final(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), model.decoder_layers, final())
    sublayers = {
        "encoder": ["self_attn", "feed_forward"],
        "decoder": ["self_attn", "cross_attn", "feed_forward"],
    }
    theirs = {"self_attn": "self_attn", "cross_attn": "multihead_attn"}
    for stack, module in (("encoder", encoder), ("decoder", decoder)):
        state = {}
        for name in module.state_dict():
            if name.startswith("norm."):
                state[name] = weights[f"{stack}.{name}"]
        for layer in range(len(module.layers)):
            ours = f"{stack}.layers.{layer}"
            for place, sublayer in enumerate(sublayers[stack], start=1):
                for kind in ("weight", "bias"):
                    state[f"layers.{layer}.norm{place}.{kind}"] = weights[f"{ours}.{sublayer}_norm.{kind}"]
                    if sublayer == "feed_forward":
                        for n in (1, 2):
                            state[f"layers.{layer}.linear{n}.{kind}"] = weights[
                                f"{ours}.feed_forward.fc{n}.{kind}"
                            ]
                        continue
                    block = f"layers.{layer}.{theirs[sublayer]}"
                    state[f"{block}.in_proj_{kind}"] = torch.cat(
                        [weights[f"{ours}.{sublayer}.{projection}_proj.{kind}"] for projection in "qkv"]
                    )
                    state[f"{block}.out_proj.{kind}"] = weights[f"{ours}.{sublayer}.out_proj.{kind}"]
        module.double().load_state_dict(state)
    return encoder, decoder


def check_wiring(case):
    """Compares the whole model with torch.nn.TransformerEncoder and -Decoder, in float64.

    These only support d_k = d_v = D / H, so pre-norm is compared in post_norm's shape.
    """
    model = case.model
    weights = {name: weight.double() for name, weight in make_weights(case).items()}
    inputs = make_inputs(case)
    source, target_input = inputs["source"], inputs["target_input"]
    ours = Transformer(model, weights)
    memory = ours.encode(source)
    states = ours.decode(memory, source, target_input)

    encoder, decoder = torch_stacks(model, weights)
    no_source, no_target = source == PAD, target_input == PAD
    causal = torch.ones(target_input.shape[1], target_input.shape[1], dtype=torch.bool).triu(1)
    their_memory = encoder(ours.embed("source", source), src_key_padding_mask=no_source)
    their_states = decoder(
        ours.embed("target", target_input), their_memory, tgt_mask=causal,
        tgt_key_padding_mask=no_target, memory_key_padding_mask=no_source,
    )  # fmt: skip
    results = {"output.encoder": memory, "output.decoder": states}
    theirs = {"output.encoder": their_memory.detach(), "output.decoder": their_states.detach()}
    compare(f"{model.norm}-norm against torch.nn.Transformer's stacks, float64", results, theirs, 1e-12)


def check_label_smoothing():
    """Compares torch's loss with the formula, and its gradient with softmax minus the smoothed target."""
    print("label_smoothing.safetensors")
    tensors = load_file(FOLDER / "label_smoothing.safetensors")
    logits, labels = tensors["input.logits"].double(), tensors["input.labels"]
    real = labels != PAD
    assert 0 < real.sum() < len(labels), "the labels should have some padding"
    for smoothing in SMOOTHINGS:
        target = torch.full_like(logits, smoothing / logits.shape[-1])
        target[torch.arange(len(labels)), labels] += 1 - smoothing
        gradient = (logits.softmax(dim=-1) - target) * real.unsqueeze(-1) / real.sum()
        names = [f"output.loss.{smoothing}", f"grad.logits.{smoothing}"]
        loss = smoothed_loss(logits.unsqueeze(0), labels.unsqueeze(0), smoothing)
        exact = dict(zip(names, (loss, gradient), strict=True))
        compare(f"smoothing {smoothing} against the formula, float64", {n: tensors[n] for n in names}, exact)


def check_r_drop():
    """Compares torch's loss with the formula, and its gradient with the one derived by hand."""
    print("r_drop.safetensors")
    tensors = load_file(FOLDER / "r_drop.safetensors")
    logits, labels = tensors["input.logits"].double(), tensors["input.labels"]
    real = (labels != PAD).unsqueeze(-1)
    p, q = logits.softmax(dim=-1)
    d = p.log() - q.log()
    forward, back = (p * d).sum(dim=-1, keepdim=True), -(q * d).sum(dim=-1, keepdim=True)
    target = torch.full_like(p, R_DROP_SMOOTHING / p.shape[-1])
    target[torch.arange(len(labels)), labels] += 1 - R_DROP_SMOOTHING
    share = R_DROP_ALPHA / 4
    of_p = (p - target) / 2 + share * (p * (d - forward) + p - q)
    of_q = (q - target) / 2 + share * (q * (-d - back) + q - p)
    cross_entropies = -(target * (p.log() + q.log())).sum(dim=-1, keepdim=True) / 2
    loss = (cross_entropies + share * (forward + back))[real].sum() / real.sum()
    exact = {"output.loss": loss, "grad.logits": torch.stack((of_p, of_q)) * real / real.sum()}
    compare("R-Drop against the formula, float64", {n: tensors[n] for n in exact}, exact)


def main():
    torch.set_num_threads(1)  # one order of summation
    for case in CASES:
        check_case(case)
    print("wiring")
    post = CASES[0]
    check_wiring(post)
    check_wiring(replace(post, model=replace(post.model, norm="pre", final_norm=True)))
    check_label_smoothing()
    check_r_drop()


if __name__ == "__main__":
    main()
