"""Commands that train configs/multi30k-tiny.toml's model with other toolkits, each in a Python of its own.

For benches/bench_train.py. They get text that is split into subwords already, and the vocabulary; the same shape, dropout, loss,
optimizer and size of batches as the configuration. None saves or validates while it is timed. What was used:

    Python 3.10  pip install torch==2.11.0 joeynmt==2.3.0 importlib_metadata
    Python 3.10  pip install sockeye==3.1.34                    takes PyTorch 1.13.1
    Python 3.8   pip install torch==2.4.1 'numpy<1.24' fairseq==0.12.2 'pip<24.1'   the newest Python that it has a wheel for
"""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")

JOEYNMT = """
name: multi30k
joeynmt_version: "2.3.0"
model_dir: {folder}/joeynmt
use_cuda: False
random_seed: 1
data:
    train: {tokens}/train
    dev: {tokens}/valid
    dataset_type: plain
    src: {{lang: en, max_length: 100, level: word, voc_file: {folder}/joeynmt.txt, tokenizer_type: none}}
    trg: {{lang: de, max_length: 100, level: word, voc_file: {folder}/joeynmt.txt, tokenizer_type: none}}
    special_symbols: {{unk_token: <unk>, unk_id: 0, pad_token: <pad>, pad_id: 1, bos_token: <s>, bos_id: 2, eos_token: </s>, eos_id: 3}}
testing:
    beam_size: 5
    batch_size: 64
    batch_type: sentence
    eval_metrics: [bleu]
training:
    optimizer: adam
    adam_betas: [0.9, 0.98]
    scheduling: warmupinversesquareroot
    learning_rate: 0.005
    learning_rate_warmup: 2000
    normalization: tokens
    loss: crossentropy
    label_smoothing: 0.1
    batch_size: 4096
    batch_type: token
    epochs: 1
    updates: {updates}
    validation_freq: 1000000
    logging_freq: 10
    shuffle: True
    overwrite: True
model:
    initializer: xavier_uniform
    embed_initializer: xavier_uniform
    tied_embeddings: True
    tied_softmax: True
    encoder: {{type: transformer, num_layers: 4, num_heads: 4, hidden_size: 128, ff_size: 256, dropout: 0.3, layer_norm: post,
              embeddings: {{embedding_dim: 128, scale: True, dropout: 0.3}}}}
    decoder: {{type: transformer, num_layers: 4, num_heads: 4, hidden_size: 128, ff_size: 256, dropout: 0.3, layer_norm: post,
              embeddings: {{embedding_dim: 128, scale: True, dropout: 0.3}}}}
"""

FAIRSEQ = """
    --cpu --arch transformer --encoder-layers 4 --decoder-layers 4 --encoder-embed-dim 128 --decoder-embed-dim 128
    --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4
    --dropout 0.3 --share-all-embeddings --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam
    --adam-betas (0.9,0.98) --adam-eps 1e-9 --lr 0.005 --lr-scheduler inverse_sqrt --warmup-updates 2000 --max-tokens 4096
    --log-format simple --log-interval 10 --seed 1 --num-workers 0 --no-save --disable-validation
"""

SOCKEYE = """
    --shared-vocab --use-cpu --encoder transformer --decoder transformer --num-layers 4:4 --transformer-model-size 128
    --transformer-attention-heads 4 --transformer-feed-forward-num-hidden 256 --transformer-preprocess= --transformer-postprocess drn
    --transformer-dropout-attention 0 --transformer-dropout-act 0 --transformer-dropout-prepost 0.3 --embed-dropout 0.3
    --weight-tying-type src_trg_softmax --label-smoothing 0.1 --batch-type max-word --batch-size 4096 --optimizer adam
    --optimizer-betas 0.9:0.98 --initial-learning-rate 0.005 --learning-rate-scheduler-type inv-sqrt-decay
    --learning-rate-warmup 2000 --max-seq-len 100 --checkpoint-interval 100000 --seed 1 --overwrite-output
"""


@dataclass
class Toolkit:
    """What trains, and how its speed is read: `figure` times `scale` is target tokens a second."""

    name: str
    command: list
    figure: re.Pattern
    scale: float = 1.0


def pieces(tokenizer: Path) -> list[str]:
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    return [piece for piece in sorted(vocabulary, key=vocabulary.get) if piece not in SPECIAL]


def lines(file: Path, words):
    file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def joeynmt(python: Path, tokens: Path, tokenizer: Path, folder: Path, updates: int) -> Toolkit:
    lines(folder / "joeynmt.txt", ["<unk>", "<pad>", "<s>", "</s>", *pieces(tokenizer)])
    config = folder / "joeynmt.yaml"
    config.write_text(JOEYNMT.format(folder=folder, tokens=tokens, updates=updates), encoding="utf-8")
    return Toolkit("JoeyNMT", [python, "-m", "joeynmt", "train", config, "--skip-test"], re.compile(r"Tokens per Sec:\s+(\d+)"))


def sockeye(python: Path, tokens: Path, tokenizer: Path, folder: Path, updates: int) -> Toolkit:
    vocabulary = folder / "sockeye.json"
    names = ["<pad>", "<unk>", "<s>", "</s>", *pieces(tokenizer)]
    vocabulary.write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    # It tells sentences a second; each has its tokens and an end.
    counts = [len(line.split()) + 1 for line in (tokens / "train.de").read_text(encoding="utf-8").splitlines()]
    files = ["--source", tokens / "train.en", "--target", tokens / "train.de", "--validation-source", tokens / "valid.en",
             "--validation-target", tokens / "valid.de", "--source-vocab", vocabulary, "--target-vocab", vocabulary]  # fmt: skip
    command = [python, "-m", "sockeye.train", *files, "--output", folder / "sockeye", *SOCKEYE.split(), "--max-updates", updates]
    return Toolkit("Sockeye", command, re.compile(r"B=\d+\s+s/sec=([\d.]+)"), sum(counts) / len(counts))


def fairseq(python: Path, tokens: Path, tokenizer: Path, folder: Path, updates: int) -> Toolkit:
    lines(folder / "fairseq.txt", (f"{piece} 1" for piece in pieces(tokenizer)))
    data, programs = folder / "fairseq", Path(python).parent
    command = [python, programs / "fairseq-preprocess", "--source-lang", "en", "--target-lang", "de", "--trainpref", tokens / "train",
               "--validpref", tokens / "valid", "--destdir", data, "--srcdict", folder / "fairseq.txt", "--joined-dictionary"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    command = [python, programs / "fairseq-train", data, *FAIRSEQ.split(), "--save-dir", folder / "fairseq-model", "--max-update", updates]
    return Toolkit("fairseq", command, re.compile(r"wps=([\d.]+)"))
