"""Times CTranslate2 on the weights of `benches/decode.rs`: sentences of the same length, the same number of target tokens.

    cargo bench --bench decode -- --shape base --export base.safetensors
    python benches/ctranslate2_decode.py --weights base.safetensors --save base.ct2
    python benches/ctranslate2_decode.py --model base.ct2 --precision int8 --beam 4 --batch 64

--threads is CTranslate2's intra_threads, the threads of one batch; --workers its inter_threads, the batches computed at the same
time, among which a call's sentences are divided. With --tokenizer, the model gets the vocabulary of a tokenizer.json, as benches/peer_translate.py needs. Prints the same line as
benches/decode.rs. Needs `ctranslate2==4.8.5`, numpy and safetensors.
"""

import argparse
import json
import os
import random
import time

import ctranslate2


def sinusoids(positions: int, d: int, pre_norm: bool):
    """The positions of our own models; with pre-norm, those of NLLB-200 from the third on."""
    import numpy as np

    if pre_norm:
        angles = np.arange(2, positions + 2)[:, None] / 10000 ** (np.arange(d // 2) / (d // 2 - 1))
        return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    angles = np.arange(positions)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    table = np.zeros((positions, d), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def convert(weights: dict, heads: int, tokens: list[str], directory: str, positions: int = 1024):
    """Converts an `mt` model with sinusoidal positions and one embedding matrix to CTranslate2."""
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec

    def layers(stack):
        return 1 + max(int(name.split(".")[2]) for name in weights if name.startswith(f"{stack}.layers."))

    def linear(spec, *names):
        spec.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        spec.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def norm(spec, name):
        spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def attention(spec, name, cross):
        parts = [f"{name}.{part}_proj" for part in "qkv"]
        groups = [parts[:1], parts[1:]] if cross else [parts]
        for target, group in zip(spec.linear, [*groups, [f"{name}.out_proj"]]):
            linear(target, *group)
        norm(spec.layer_norm, f"{name}_norm")

    def stack(spec, name):
        if pre_norm:
            norm(spec.layer_norm, f"{name}.norm")
        for i, layer in enumerate(spec.layer):
            prefix = f"{name}.layers.{i}"
            attention(layer.self_attention, f"{prefix}.self_attn", False)
            if name == "decoder":
                attention(layer.attention, f"{prefix}.cross_attn", True)
            linear(layer.ffn.linear_0, f"{prefix}.feed_forward.fc1")
            linear(layer.ffn.linear_1, f"{prefix}.feed_forward.fc2")
            norm(layer.ffn.layer_norm, f"{prefix}.feed_forward_norm")

    table, pre_norm = weights["source_embedding.weight"], "encoder.norm.weight" in weights
    spec = transformer_spec.TransformerSpec.from_config(
        (layers("encoder"), layers("decoder")), heads, pre_norm=pre_norm, activation=common_spec.Activation.RELU
    )
    encodings = sinusoids(positions, table.shape[1], pre_norm)
    spec.encoder.embeddings[0].weight = table
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = table
    spec.encoder.position_encodings.encodings = encodings
    spec.decoder.position_encodings.encodings = encodings
    stack(spec.encoder, "encoder")
    stack(spec.decoder, "decoder")
    spec.config.add_source_eos = False
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<unk>"
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.validate()
    spec.save(directory)


def words(count: int) -> list[str]:
    return ["<pad>", "<s>", "</s>", "<unk>"] + [f"w{i}" for i in range(4, count)]


def save(arguments):
    from safetensors.numpy import load_file

    weights = load_file(arguments.weights)
    vocabulary, d = weights["source_embedding.weight"].shape
    tokens = words(vocabulary)
    if arguments.tokenizer:
        with open(arguments.tokenizer, encoding="utf-8") as file:
            pieces = json.load(file)["model"]["vocab"]
        tokens = sorted(pieces, key=pieces.get)
    os.makedirs(arguments.save, exist_ok=True)
    convert(weights, {128: 4, 512: 8, 1024: 16}[d], tokens, arguments.save)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights")
    parser.add_argument("--tokenizer")
    parser.add_argument("--save")
    parser.add_argument("--model")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--source", type=int, default=16)
    parser.add_argument("--target", type=int, default=20)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.save:
        return save(arguments)
    translator = ctranslate2.Translator(
        arguments.model, compute_type=arguments.precision, intra_threads=arguments.threads, inter_threads=arguments.workers
    )
    with open(f"{arguments.model}/shared_vocabulary.json", encoding="utf-8") as file:
        tokens = json.load(file)
    random.seed(1)
    sources = [random.choices(tokens[4:], k=arguments.source) + ["</s>"] for _ in range(arguments.sentences)]

    def run() -> float:
        started = time.perf_counter()
        for start in range(0, len(sources), arguments.batch):
            results = translator.translate_batch(
                sources[start : start + arguments.batch],
                beam_size=arguments.beam,
                min_decoding_length=arguments.target,
                max_decoding_length=arguments.target,
                max_batch_size=-(-arguments.batch // arguments.workers),
            )
            assert all(len(result.hypotheses[0]) == arguments.target for result in results)
        return time.perf_counter() - started

    run()
    seconds = sorted(run() for _ in range(arguments.passes))
    count = arguments.sentences * arguments.target
    print(
        f"CTranslate2 {ctranslate2.__version__} {translator.compute_type}, beam {arguments.beam}, "
        f"{arguments.batch} at once, {arguments.workers} x {arguments.threads} threads: {count / seconds[0]:.0f} target tokens/s "
        f"(best of {arguments.passes}; slowest {count / seconds[-1]:.0f})"
    )


if __name__ == "__main__":
    main()
