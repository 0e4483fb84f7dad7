"""Compares the reference models with each other, with torch's functions and with their files.

    python tests/golden/check_reference_models.py

It ends with an AssertionError at the first disagreement, else prints how far float32 is from float64 and what a wrong
setting changes.
"""

import json
import math
from dataclasses import asdict, fields, replace

import paper_transformer
import torch
from paper_transformer import smoothed_loss
from reference_models import (
    CASES,
    FOLDER,
    KINK_DISTANCE,
    LABEL_SMOOTHING,
    LARGEST_WHOLE,
    PAD,
    SMALL,
    EpsInRoot,
    MinusBillion,
    MinusInfinity,
    Options,
    QueryMasks,
    StdNorm,
    TorchTransformer,
    build,
    find_seed,
    fnv1a64,
    gelu,
    kink_distance,
    make_weights,
    mix64_of,
    rotate,
    run,
    sinusoids,
    swish,
    weight_value,
)
from safetensors import safe_open
from safetensors.torch import load_file
from torch.nn import functional as F

EXACT = 1e-12


def relative_error(actual, expected):
    """max|a - b| / max|b| over a tensor, in float64."""
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def real_positions(inputs, results):
    """The results with zeros at padding: in the encoder's output, the logits and the attention weights' queries."""
    real_source, real_target = inputs["source"] != PAD, inputs["target_input"] != PAD

    def kept(name, tensor):
        if name.startswith("grad.") or name == "output.loss":
            return tensor
        real = real_source if name == "output.encoder" or name.startswith("attention.encoder") else real_target
        real = real[:, None, :, None] if name.startswith("attention.") else real.unsqueeze(-1)
        return tensor.masked_fill(~real, 0.0)

    return {name: kept(name, tensor) for name, tensor in results.items()}


def vanishes(name, tensor):
    """A key projection's bias adds the same number to all scores of a query, so its gradient is only rounding.

    Rotary positions in self-attention are an exception: keys are rotated after the bias, each by its own angle.
    """
    return name.endswith("k_proj.bias") and tensor.abs().max() < 1e-10


def errors(actual, expected):
    """The relative error of every tensor whose gradient does not vanish."""
    assert actual.keys() == expected.keys(), actual.keys() ^ expected.keys()
    return {
        name: relative_error(actual[name], tensor) for name, tensor in expected.items() if not vanishes(name, tensor)
    }


def compare(what, actual, expected, tolerance=EXACT):
    found = errors(actual, expected)
    worst = max(found, key=found.get)
    assert found[worst] < tolerance, f"{what}: {worst} is off by {found[worst]:.1e}"
    for name in expected.keys() - found.keys():
        largest = actual[name].abs().max().item()
        assert largest < 1e-10, f"{what}: {name} is {largest:.1e}, not zero"
    return found[worst]


def without_attention(results):
    return {name: tensor for name, tensor in results.items() if not name.startswith("attention.")}


def case_of(name, shape=SMALL):
    return next(case for case in CASES if case.name == name and case.shape is shape)


# Parts ---------------------------------------------------------------------------------------------


def check_rule():
    """Checks both hashes against published values, and a weight of each kind of name against plain Python integers."""
    assert mix64_of(0) == 0xE220A8397B1DCDAF
    assert fnv1a64("") == 0xCBF29CE484222325 and fnv1a64("a") == 0xAF63DC4C8601EC8C

    def u(name, seed, i):
        key = mix64_of(fnv1a64(name) ^ mix64_of(seed))
        return (mix64_of((key + i) % 2**64) >> 40) / 2**23 - 1

    scales = {
        "encoder.norm.weight": ((16,), lambda u: 1 + 0.1 * u),
        "decoder.layers.1.cross_attn_norm.bias": ((16,), lambda u: 0.1 * u),
        "source_embedding.weight": ((1000, 16), lambda u: math.sqrt(3 / 16) * u),
        "encoder.positions.weight": ((24, 16), lambda u: math.sqrt(3 / 16) * u),
        "output_projection.weight": ((1000, 16), lambda u: math.sqrt(6 / 1016) * u),
    }
    for name, (shape, scale) in scales.items():
        values = weight_value(name, shape, seed=7).flatten()
        for i in (0, 1, len(values) - 1):
            assert values[i].item() == torch.tensor(scale(u(name, 7, i)), dtype=torch.float32).item(), name
    print("the weights' rule")


def check_steps():
    """Compares norms, activations, rotary positions, sinusoids and the loss with other formulas for the same."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 7, 16, generator=generator, dtype=torch.float64)
    # Rows of small deviation, where the place of eps matters.
    x = x * torch.logspace(-6, 0, 7, dtype=torch.float64).unsqueeze(-1)
    gain, shift = torch.randn(2, 16, generator=generator, dtype=torch.float64)
    for eps in (1e-5, 1e-9, 1e-12):
        std, root = StdNorm(16, eps), EpsInRoot(16, eps)
        with torch.no_grad():
            for norm, (weight, bias) in ((std, (std.gamma, std.beta)), (root, (root.gain, root.shift))):
                norm.double()
                weight.copy_(gain)
                bias.copy_(shift)
        layer_norm = F.layer_norm(x, (16,), gain, shift, eps)
        assert relative_error(root(x), layer_norm) < EXACT
        assert relative_error(paper_transformer.layer_norm(x, gain, shift, eps), layer_norm) < EXACT
        variance = ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1, keepdim=True) / 15
        assert relative_error(std(x), gain * (x - x.mean(-1, keepdim=True)) / (variance.sqrt() + eps) + shift) < EXACT
    assert relative_error(gelu(x), F.gelu(x)) < EXACT and relative_error(swish(x), F.silu(x)) < EXACT

    for layout in ("interleaved", "halves"):
        # A pair is a complex number, rotated by multiplication.
        pairs = x.unflatten(-1, (8, 2)) if layout == "interleaved" else x.unflatten(-1, (2, 8)).transpose(-1, -2)
        angles = torch.arange(7.0).double().outer(10000 ** (-torch.arange(8.0).double() / 8))
        turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        turned = torch.view_as_real(turned)
        turned = turned if layout == "interleaved" else turned.transpose(-1, -2)
        assert relative_error(rotate(x, layout), turned.flatten(-2)) < EXACT
        # Scores of rotated vectors depend on their distance only: for constant vectors, they are constant along diagonals.
        q, k = (rotate(y[:, :1].expand_as(y), layout) for y in (x * 1e6, x.flip(0) * 1e6))
        scores = q @ k.transpose(1, 2)
        assert relative_error(scores[:, 1:, 1:], scores[:, :-1, :-1]) < EXACT

    logits = 3 * torch.randn(4, 6, 50, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 50, (4, 6), generator=generator)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=LABEL_SMOOTHING)
    assert relative_error(smoothed_loss(logits, labels, LABEL_SMOOTHING), loss) < EXACT
    print("norms, activations, rotary positions, loss")


# Models --------------------------------------------------------------------------------------------


def check_case(case):
    """Checks the file, the model `Options` with the same keys, and each row without padding.

    :return: the relative errors of a float32 run, and the largest of its gradients that should be zero
    """
    seed, weights, inputs = find_seed(case)
    assert kink_distance(case, weights, inputs) > KINK_DISTANCE
    exact = run(case, weights, inputs)
    of_file = check_file(case, seed, inputs, exact)
    real = real_positions(inputs, exact)

    options = run(replace(case, reference=Options), weights, inputs)
    of_options = compare(f"{case.name} against Options", without_attention(real), real_positions(inputs, options))
    check_rows(case, weights, inputs, exact)
    single = real_positions(inputs, run(case, weights, inputs, torch.float32))
    print(
        f"{case.name}.{case.shape.name}: seed {seed}, file {of_file:.0e}, against Options {of_options:.0e}, rows alone"
    )
    vanished = [single[name].abs().max().item() for name, tensor in real.items() if vanishes(name, tensor)]
    return errors(single, real) | {"vanishing": max(vanished, default=0.0)}


def check_file(case, seed, inputs, exact):
    """The stored numbers are those of a run now, rounded to float32."""
    path = FOLDER / f"{case.name}.{case.shape.name}.safetensors"
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    assert config["model"] == asdict(case.model) and config["seed"] == seed
    assert config["source_vocab"] == config["target_vocab"] == case.shape.vocab
    stored = load_file(path)
    expected = exact if case.shape is SMALL else without_attention(exact)
    samples = {}
    for name, tensor in expected.items():
        assert stored[name].dtype == torch.float32, name
        assert (name in config["sampled"]) == (tensor.numel() > LARGEST_WHOLE), name
        if name in config["sampled"]:
            stride, shape = config["sampled"][name]["stride"], config["sampled"][name]["shape"]
            assert shape == list(tensor.shape) and stride % 2 == 1 and math.gcd(stride, shape[-1]) == 1
            tensor = tensor.flatten()[::stride]
        assert tensor.abs().max() > 0, f"{name}: only zeros are stored"
        samples[name] = tensor
    for name, tensor in inputs.items():
        assert torch.equal(stored.pop(f"input.{name}"), tensor), name
    assert all(tensor.shape == samples[name].shape for name, tensor in stored.items())
    return compare(f"{path.name} against a run now", stored, samples, 1e-7)


def check_rows(case, weights, inputs, exact):
    """Each row alone, without padding, gives the same numbers at its real positions."""
    reference = build(case, weights)
    for row, (s, t) in enumerate(zip(case.shape.source_lengths, case.shape.target_lengths, strict=True)):
        with torch.no_grad():
            alone = reference(inputs["source"][row : row + 1, :s], inputs["target_input"][row : row + 1, :t])
        assert relative_error(alone["encoder"][0], exact["output.encoder"][row, :s]) < EXACT
        assert relative_error(alone["logits"][0], exact["output.logits"][row, :t]) < EXACT
        for name in (name for name in alone if name.startswith("attention.")):
            expected = exact[name][row, :, :t, :t]
            if name.startswith("attention.encoder"):
                expected = exact[name][row, :, :s, :s]
            elif name.startswith("attention.cross"):
                expected = exact[name][row, :, :t, :s]
            assert relative_error(alone[name][0], expected) < EXACT, name


def check_masks():
    """Three ways of masking one model: -1e9 and -inf agree everywhere, masked queries at every real position."""
    for case in (case for case in CASES if case.reference is MinusInfinity):
        _, weights, inputs = find_seed(case)
        infinite = run(case, weights, inputs)
        billion = run(replace(case, reference=MinusBillion), weights, inputs)
        worst = compare("-1e9 against -inf", billion, without_attention(infinite))
        queries = run(replace(case, reference=QueryMasks), weights, inputs)
        expected = real_positions(inputs, infinite)
        worst = max(worst, compare("query masks against -inf", real_positions(inputs, queries), expected))
        no_source, no_target = inputs["source"] == PAD, inputs["target_input"] == PAD
        for name, weight in queries.items():
            if name.startswith("attention."):
                hidden = no_source if name.startswith("attention.encoder") else no_target
                assert (weight.sum(-1) - (~hidden).double()[:, None]).abs().max() < EXACT, name
                assert (weight.transpose(1, 2)[hidden] == 0).all(), f"{name}: a padded query has attention weights"
        print(f"-1e9, -inf and masked queries, {case.shape.name}: {worst:.0e}")


def check_paper():
    """Compares `Options` with paper_transformer.py, itself compared with torch's stacks, in the settings that both have."""
    names = [field.name for field in fields(paper_transformer.Model) if field.name != "position_layout"]
    for case in (case for case in CASES if case.shape is SMALL):
        theirs = paper_transformer.Model(**{name: getattr(case.model, name) for name in names})
        model = case.model
        if model.norm_kind != "layer" or model.sinusoid != "interleaved" or model.positions != "sinusoidal":
            continue
        if model.activation != "relu" or not model.scale_embedding or model.tie == "decoder":
            continue
        _, weights, inputs = find_seed(case)
        weights = {name: weight.double() for name, weight in weights.items()}
        paper = paper_transformer.Transformer(theirs, weights)
        memory = paper.encode(inputs["source"])
        logits = paper.project(paper.decode(memory, inputs["source"], inputs["target_input"]))
        ours = build(replace(case, reference=Options), weights)(inputs["source"], inputs["target_input"])
        assert relative_error(ours["encoder"], memory) < EXACT and relative_error(ours["logits"], logits) < EXACT
        print(f"{case.name} against paper_transformer.py")


def check_ties():
    """A shared matrix acts like copies of it in each place, and its gradient is the sum of theirs."""
    shared = "source_embedding.weight"
    for name in ("c_post_shared", "c_pre_shared", "g_gelu", "g_tie_decoder"):
        case = case_of(name)
        _, weights, inputs = find_seed(case)
        tied = run(case, weights, inputs)
        matrix, copies = shared, [shared, "target_embedding.weight", "output_projection.weight"]
        if case.model.tie == "decoder":
            matrix, copies = copies[1], copies[1:]
        untied_case = replace(case, model=replace(case.model, tie="none"))
        untied = run(untied_case, weights | {copy: weights[matrix] for copy in copies}, inputs)
        total = sum(untied.pop(f"grad.{copy}") for copy in copies)
        compare(f"{name}: tied against copies", tied, untied | {f"grad.{matrix}": total})
    print("tied matrices against copies of them")


def check_options():
    """Learned positions with the values of sinusoids, and rotary positions of both layouts."""
    case = case_of("g_learned")
    _, weights, inputs = find_seed(case)
    table = sinusoids(case.model.max_length, case.model.d_model)
    positions = [f"{stack}.positions.weight" for stack in ("encoder", "decoder")]
    learned = run(case, weights | dict.fromkeys(positions, table), inputs)
    for name in positions:
        used = inputs["source" if name.startswith("encoder") else "target_input"].shape[1]
        assert (learned.pop(f"grad.{name}")[used:] == 0).all()
    fixed = {name: weight for name, weight in weights.items() if name not in positions}
    sinusoidal = run(replace(case, model=replace(case.model, positions="sinusoidal")), fixed, inputs)
    compare("learned positions that are sinusoids", learned, sinusoidal)

    # Permuting the rows of each head's query and key projections turns pairs in halves into interleaved ones.
    case = case_of("g_rotary")
    _, weights, inputs = find_seed(case)
    order = torch.cat([8 * head + torch.arange(8).view(4, 2).T.flatten() for head in range(case.model.heads)])

    def permuted(tensors):
        rotated = ("self_attn.q_proj.", "self_attn.k_proj.")
        return {name: t[order] if any(part in name for part in rotated) else t for name, t in tensors.items()}

    halves = run(replace(case, model=replace(case.model, sinusoid="halves")), permuted(weights), inputs)
    compare("rotary halves against interleaved", halves, permuted(run(case, weights, inputs)))
    print("learned positions, rotary layouts")


def check_state_dicts():
    """The saved modules have the rule's weights, under torch's names."""
    for case in (case for case in CASES if case.reference is TorchTransformer and case.shape is SMALL):
        _, weights, inputs = find_seed(case)
        state = load_file(FOLDER / f"{case.name}.state_dict.safetensors")
        module = TorchTransformer(case.model, case.shape.vocab)
        assert state.keys() == module.state_dict().keys()
        module.load_state_dict(state)
        results = module.double()(inputs["source"], inputs["target_input"])
        expected = build(case, weights)(inputs["source"], inputs["target_input"])
        assert torch.equal(results["logits"], expected["logits"]), case.name
        assert state["transformer.encoder.layers.0.self_attn.in_proj_weight"].shape == (48, 16)
    print("saved modules")


# What the README says --------------------------------------------------------------------------------


def print_errors(singles):
    print("\n| Case | logits | loss | worst gradient | of |\n|---|---|---|---|---|")
    zero = max(found["vanishing"] for found in singles.values())
    for case, found in singles.items():
        gradients = {name: error for name, error in found.items() if name.startswith("grad.")}
        worst = max(gradients, key=gradients.get)
        print(
            f"| {case.name}.{case.shape.name} | {found['output.logits']:.1e} | {found['output.loss']:.1e} |"
            f" {gradients[worst]:.1e} | `{worst.removeprefix('grad.')}` |"
        )
    print(f"\nLargest gradient of a key projection's bias where it should be zero: {zero:.1e}")


def print_wrong_settings():
    """Prints how much the numbers change when one key of the model is wrong."""
    wrong = (
        ("c_pre", {"norm_kind": "layer"}),
        ("c_pre", {"norm_eps": 1e-5}),
        ("a_minus_1e9", {"norm_eps": 1e-6}),
        ("d_query_masks", {"norm_eps": 1e-6}),
        ("d_query_masks", {"norm_eps": 1e-5}),
        ("f_tensor2tensor", {"norm_eps": 1e-5}),
        ("f_tensor2tensor", {"sinusoid": "interleaved"}),
        ("g_rotary", {"sinusoid": "halves"}),
        ("g_gelu", {"activation": "swish"}),
        ("g_learned", {"positions": "sinusoidal"}),
        ("a_minus_1e9", {"scale_embedding": True}),
    )
    print("\n| Case | with | logits | loss | worst gradient |\n|---|---|---|---|---|")
    for name, keys in wrong:
        case = case_of(name)
        _, weights, inputs = find_seed(case)
        exact = real_positions(inputs, without_attention(run(case, weights, inputs)))
        changed = replace(case, reference=Options, model=replace(case.model, **keys))
        present = make_weights(changed, case.first_seed)
        found = run(changed, {name: weight for name, weight in weights.items() if name in present}, inputs)
        found = real_positions(inputs, found)
        found = errors(found, {name: tensor for name, tensor in exact.items() if name in found})
        worst = max(error for name, error in found.items() if name.startswith("grad."))
        setting = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in keys.items())
        print(f"| {name} | {setting} | {found['output.logits']:.0e} | {found['output.loss']:.0e} | {worst:.0e} |")


def main():
    torch.set_num_threads(1)  # one order of summation
    check_rule()
    check_steps()
    singles = {case: check_case(case) for case in CASES}
    check_masks()
    check_paper()
    check_ties()
    check_options()
    check_state_dicts()
    print_errors(singles)
    print_wrong_settings()


if __name__ == "__main__":
    main()
