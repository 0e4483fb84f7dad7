"""Times Marian on the weights of `benches/decode.rs`: the same sentences' shape, the same number of target tokens.

    cargo bench --bench decode -- --shape base --export base.safetensors
    python benches/marian_decode.py --weights base.safetensors --save base.marian
    python benches/marian_decode.py --model base.marian --precision packed8 --beam 4 --batch 64

float32, or 8-bit integers by FBGEMM (packed8) or intgemm (intgemm8), in the form for this processor. Marian's threads
translate a batch each: of sentences that come together each thread has its share, of one at a time one thread all. The end
token is made impossible, and the greatest length ends every translation. Prints the line that benches/decode.rs prints.
Needs `pymarian==1.12.42`, numpy and safetensors.
"""

import argparse
import importlib.metadata
import json
import random
import subprocess
import sys
import time
from pathlib import Path

# By the suffix of Marian's names for packed weights.
LEVELS = ("avx512", "avx2")
SPECIAL = 4  # ids below are <pad>, <s>, </s>, <unk> of `mt`
NEVER = -1e4

OPTIONS = """bert-train-type-embeddings: true
bert-type-vocab-size: 2
dec-cell: gru
dec-cell-base-depth: 2
dec-cell-high-depth: 1
dec-depth: {decoder}
dim-emb: {d}
dim-rnn: 1024
dim-vocabs: [{v}, {v}]
enc-cell: gru
enc-cell-depth: 1
enc-depth: {encoder}
enc-type: bidirectional
factors-combine: sum
factors-dim-emb: 0
input-types: []
layer-normalization: false
lemma-dim-emb: 0
lemma-dependency: ""
output-omit-bias: false
right-left: false
skip: false
tied-embeddings: false
tied-embeddings-all: true
tied-embeddings-src: false
transformer-aan-activation: swish
transformer-aan-depth: 2
transformer-aan-nogate: false
transformer-decoder-autoreg: self-attention
transformer-decoder-dim-ffn: 0
transformer-decoder-ffn-depth: 0
transformer-depth-scaling: false
transformer-dim-aan: 2048
transformer-dim-ffn: {ffn}
transformer-ffn-activation: relu
transformer-ffn-depth: 2
transformer-guided-alignment-layer: last
transformer-heads: {heads}
transformer-no-affine: false
transformer-no-bias: false
transformer-no-projection: false
transformer-pool: false
transformer-postprocess: dan
transformer-postprocess-emb: d
transformer-postprocess-top: ""
transformer-preprocess: ""
transformer-rnn-projection: false
transformer-tied-layers: []
transformer-train-position-embeddings: false
type: transformer
ulr: false
ulr-dim-emb: 0
ulr-trainable-transformation: false
version: v1.12.42
"""


def arrays(weights: dict):
    """Marian's arrays of an `mt` model with post-norm and one embedding matrix; its vocabulary begins with the end, </s>."""
    import numpy as np

    table = weights["source_embedding.weight"]
    words = [2, 3, *range(SPECIAL, len(table))]
    bias = np.zeros((1, len(words)), np.float32)
    bias[0, 0] = NEVER
    found = {"Wemb": table[words], "decoder_ff_logit_out_b": bias}
    modules = {"self_attn": "self", "cross_attn": "context", "feed_forward": "ffn"}
    parts = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o", "fc1": "1", "fc2": "2"}
    for name, value in weights.items():
        stack, layers, *rest = name.split(".")
        if layers != "layers":
            continue
        prefix = f"{stack}_l{int(rest[0]) + 1}"
        kind = rest[-1]
        if rest[1].endswith("_norm"):
            module = modules[rest[1].removesuffix("_norm")]
            place = "ffn_ffn" if module == "ffn" else f"{module}_Wo"
            found[f"{prefix}_{place}_ln_{'scale' if kind == 'weight' else 'bias'}"] = value[None]
        else:
            letter = "W" if kind == "weight" else "b"
            found[f"{prefix}_{modules[rest[1]]}_{letter}{parts[rest[2]]}"] = value.T if kind == "weight" else value[None]
    return found, len(words)


def save(arguments):
    import numpy as np
    from safetensors.numpy import load_file

    weights = load_file(arguments.weights)
    found, v = arrays(weights)
    d = found["Wemb"].shape[1]
    layers = {stack: 1 + max(int(n.split(".")[2]) for n in weights if n.startswith(f"{stack}.layers.")) for stack in ("encoder", "decoder")}
    options = OPTIONS.format(d=d, v=v, ffn=found["encoder_l1_ffn_W1"].shape[1], heads={128: 4, 512: 8}[d], **layers)
    folder = Path(arguments.save)
    folder.mkdir(parents=True, exist_ok=True)
    found = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in found.items()}
    # Text is bytes with a zero behind them.
    np.savez(folder / "model.npz", **found, **{"special:model.yml": np.frombuffer(options.encode() + b"\0", np.int8)})
    names = ["</s>", "<unk>", *(f"w{i}" for i in range(SPECIAL, v + SPECIAL - 2))]
    (folder / "vocabulary.yml").write_text("".join(f"{json.dumps(name)}: {i}\n" for i, name in enumerate(names)))
    flags = Path("/proc/cpuinfo").read_text().split()
    level = LEVELS[0] if "avx512bw" in flags else LEVELS[1]
    for kind in ("packed8", "intgemm8"):
        call = ["convert", "--from", f"{folder}/model.npz", "--to", f"{folder}/{kind}.bin", "--gemm-type", f"{kind}{level}"]
        subprocess.run([sys.executable, "-c", f"import _pymarian; _pymarian.main({call!r})"], check=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights")
    parser.add_argument("--save")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--precision", choices=("float32", "packed8", "intgemm8"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--source", type=int, default=16)
    parser.add_argument("--target", type=int, default=20)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.save:
        return save(arguments)
    from pymarian import Translator

    file = arguments.model / ("model.npz" if arguments.precision == "float32" else f"{arguments.precision}.bin")
    vocabulary = arguments.model / "vocabulary.yml"
    # Marian goes on while there are fewer tokens than this factor times the source's, with its end.
    factor = (arguments.target - 0.5) / (arguments.source + 1)
    translator = Translator(
        f"--models {file} --vocabs {vocabulary} {vocabulary} --quiet --cpu-threads {arguments.threads} --beam-size {arguments.beam} "
        f"--mini-batch {-(-arguments.batch // arguments.threads)} --maxi-batch 100 --maxi-batch-sort src --max-length-factor {factor} "
        f"--workspace 512 {'--skip-cost' if arguments.beam == 1 else '--normalize 1'}"
    )
    with open(vocabulary, encoding="utf-8") as lines:
        words = sum(1 for _ in lines) - 2
    random.seed(1)
    sources = [" ".join(f"w{random.randrange(words) + SPECIAL}" for _ in range(arguments.source)) for _ in range(arguments.sentences)]

    def run() -> float:
        started = time.perf_counter()
        for start in range(0, len(sources), arguments.batch):
            results = translator.translate(sources[start : start + arguments.batch])
            lengths = {len(result.split()) for result in results}
            assert lengths == {arguments.target}, lengths
        return time.perf_counter() - started

    run()
    seconds = sorted(run() for _ in range(arguments.passes))
    count = arguments.sentences * arguments.target
    version = importlib.metadata.version("pymarian")
    print(
        f"Marian {version} {arguments.precision}, beam {arguments.beam}, {arguments.batch} at once, {arguments.threads} threads: "
        f"{count / seconds[0]:.0f} target tokens/s (best of {arguments.passes}; slowest {count / seconds[-1]:.0f})"
    )


if __name__ == "__main__":
    main()
