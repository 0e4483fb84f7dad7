"""Times Marian's training of the model of configs/multi30k-tiny.toml on tokenized text, with pymarian.

    python benches/marian_train.py --tokens FOLDER --tokenizer runs/multi30k-tiny/tokenizer.json --updates 60

FOLDER has train.en and train.de as written by `mt tokenize`: Marian does no segmentation of its own, because its words are
already subwords and its vocabulary has the tokenizer's pieces. Architecture, optimizer, schedule, loss, dropout and batch size
are those of the configuration. Needs `pymarian==1.12.42`; Marian prints its speed in target words (here subwords, with the
end token) per second.
"""

import argparse
import json
import tempfile
from pathlib import Path

from pymarian import Trainer

SPECIAL = {"<pad>", "<s>", "</s>", "<unk>"}

OPTIONS = """
    --type transformer --dim-emb 128 --enc-depth 4 --dec-depth 4 --transformer-dim-ffn 256 --transformer-heads 4
    --transformer-postprocess-emb d --transformer-postprocess dan --transformer-dropout 0.3 --tied-embeddings-all
    --cost-type ce-mean-words --label-smoothing 0.1 --clip-norm 0 --optimizer-params 0.9 0.98 1e-09
    --max-length 100
    --mini-batch 1000 --mini-batch-words 4096 --maxi-batch 100 --sync-sgd --workspace 2000
    --seed 1 --disp-freq 10 --overwrite --save-freq 1000000u
"""


def write_vocabulary(tokenizer: Path, file: Path):
    """Writes a vocabulary in Marian's form: its own two special tokens, then the pieces."""
    pieces = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    words = ["</s>", "<unk>", *(piece for piece in sorted(pieces, key=pieces.get) if piece not in SPECIAL)]
    lines = (f"{json.dumps(word, ensure_ascii=False)}: {number}\n" for number, word in enumerate(words))
    file.write_text("".join(lines), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=Path, required=True, help="folder with train.en and train.de, tokenized")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", default="0.005")
    parser.add_argument("--warmup", default="2000")
    parser.add_argument("--save", type=Path, help="keep model.npz and vocabulary.yml in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.save or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        vocabulary = Path(folder, "vocabulary.yml")
        write_vocabulary(arguments.tokenizer, vocabulary)
        corpus = " ".join(str(arguments.tokens / f"train.{side}") for side in ("en", "de"))
        Trainer(
            f"{' '.join(OPTIONS.split())} --train-sets {corpus} --vocabs {vocabulary} {vocabulary} --model {folder}/model.npz "
            f"--learn-rate {arguments.learning_rate} --lr-warmup {arguments.warmup} --lr-decay-inv-sqrt {arguments.warmup} "
            f"--cpu-threads {arguments.threads} --after-batches {arguments.updates}"
        ).train()


if __name__ == "__main__":
    main()
