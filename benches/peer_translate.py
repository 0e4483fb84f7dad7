"""Translates a file with CTranslate2 or Marian, from text to text, as `mt translate` does.

    python benches/peer_translate.py --peer ctranslate2 --model FOLDER --tokenizer tokenizer.json --input F --output F
    python benches/peer_translate.py --peer marian --model FOLDER/model.npz --vocabulary FOLDER/vocabulary.yml ...

The `tokenizers` library splits text by `mt`'s tokenizer.json. A CTranslate2 model comes from
`benches/ctranslate2_decode.py --save`, a Marian model from `benches/marian_train.py --save`. As the whole process is timed, it
imports only what it uses.
"""

import argparse
import os

from tokenizers import Tokenizer


def ctranslate2(arguments, lines: list[list[str]]) -> list[list[str]]:
    from ctranslate2 import Translator

    translator = Translator(
        arguments.model,
        compute_type=arguments.precision,
        intra_threads=arguments.threads,
        inter_threads=arguments.workers,
    )
    results = translator.translate_batch(
        [[*line, "</s>"] for line in lines],
        beam_size=arguments.beam,
        length_penalty=1.0,
        batch_type="tokens" if arguments.batch_tokens else "examples",
        max_batch_size=arguments.batch_tokens or 64,
    )
    return [result.hypotheses[0] for result in results]


def marian(arguments, lines: list[list[str]]) -> list[list[str]]:
    from pymarian import Translator

    translator = Translator(
        f"--models {arguments.model} --vocabs {arguments.vocabulary} {arguments.vocabulary} --quiet "
        f"--cpu-threads {arguments.threads} --beam-size {arguments.beam} --normalize 1 --mini-batch 64 "
        "--maxi-batch 100 --maxi-batch-sort src --max-length 1000"
    )
    return [line.split() for line in translator.translate([" ".join(line) for line in lines])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", choices=("ctranslate2", "marian"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--vocabulary")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="CTranslate2's batches at the same time")
    parser.add_argument("--batch-tokens", type=int, help="for CTranslate2: padded tokens of a batch, instead of 64 sentences")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    with open(arguments.input, encoding="utf-8") as file:
        lines = [encoding.tokens for encoding in tokenizer.encode_batch(file.read().splitlines())]
    translated = {"ctranslate2": ctranslate2, "marian": marian}[arguments.peer](arguments, lines)
    ids = [[tokenizer.token_to_id(piece) for piece in line] for line in translated]
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in tokenizer.decode_batch(ids))
    # The end of Python and its libraries is not part of the work.
    os._exit(0)


if __name__ == "__main__":
    main()
