#!/usr/bin/env python3
"""Compares tokenizers of other programs, and mt's own, with those programs: tokenization.py MT

Trains SentencePiece models (unigram and BPE, every normalisation), tokenizers of the `tokenizers` library, codes of subword-nmt and mt's own on text
of $MT_TEST_DATA. mt's own are read by that library, whose engine of regular expressions is another one in Python. Compares the pieces of `mt tokenize`, and the text that `mt detokenize` makes of them, with theirs, on real
lines and on random lines from all of Unicode. No difference is allowed.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece

LINES = 20_000
RANDOM_LINES = 5_000
PIECES = 8_000
# The characters of random lines.
RANGES = {
    "ASCII": [(0x20, 0x7E)],
    "letters under combining marks": [(0x61, 0x7A), (0x300, 0x36F), (0x300, 0x36F), (0x1AB0, 0x1ACE), (0x20D0, 0x20F0)],
    "Latin and its extensions": [(0xA0, 0x24F), (0x1E00, 0x1EFF), (0x20, 0x20)],
    "ligatures, full width, half width": [(0xFB00, 0xFB06), (0xFF01, 0xFFEE), (0x3000, 0x3000), (0x2100, 0x2188), (0x3200, 0x33FF)],
    "Hangul, composed and in jamo": [(0x1100, 0x11FF), (0xAC00, 0xD7A3), (0x3131, 0x318E), (0xA960, 0xA97C)],
    "emoji": [(0x1F300, 0x1FAFF), (0x200D, 0x200D), (0xFE0F, 0xFE0F), (0x1F3FB, 0x1F3FF), (0x1F1E6, 0x1F1FF)],
    "right to left": [(0x590, 0x6FF), (0x200E, 0x200F), (0x202A, 0x202E), (0xFB1D, 0xFDFB), (0xFE70, 0xFEFC)],
    "control characters": [(0, 9), (0xB, 0xC), (0xE, 0x1F), (0x7F, 0x9F), (0x61, 0x63)],
    "white space": [(0x20, 0x20), (9, 9), (0xA0, 0xA0), (0x2000, 0x200B), (0x2028, 0x202F), (0x3000, 0x3000), (0x61, 0x63)],
    "what tokenizers write themselves": [(0x2581, 0x2581), (0x3C, 0x3E), (0x73, 0x75), (0x2F, 0x30), (0x41, 0x42), (0x78, 0x78)],
    "replacement and noncharacters": [(0xFFF0, 0xFFFF), (0xFDD0, 0xFDEF), (0xE000, 0xE010), (0xFEFF, 0xFEFF), (0x61, 0x63)],
    "Han and kana": [(0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x3002, 0x3002)],
    "Indic": [(0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x20, 0x20)],
    "anything": [(0, 9), (0xB, 0xC), (0xE, 0xD7FF), (0xE000, 0x10FFFF)],
}
SETS = list(RANGES.values())


def random_line(draw):
    def character(ranges):
        first, last = draw.choice(ranges)
        return chr(draw.randint(first, last))

    kind = draw.random()
    if kind < 0.1:
        words = ["user", "<sep>", "<user>", "▁", "<s>", "</s>", "<unk>", "<pad>", "<0x41>", " ", "  ", "a", "ﬁ", "½", "…", "é", "\u0301", "\r", "x\ry"]
        return "".join(draw.choice(words) for _ in range(draw.randint(0, 20))).rstrip("\r")
    if kind < 0.3:
        # Each line has two kinds.
        sets = draw.sample(SETS, 2)
        return "".join(character(draw.choice(sets)) for _ in range(draw.randint(0, 60)))
    if kind < 0.302:
        return "".join(character(draw.choice(SETS)) for _ in range(20_000))
    ranges = draw.choice(SETS)
    return "".join(character(ranges) for _ in range(draw.randint(0, 40)))


def mt(program, command, tokenizer, lines):
    # Only line feeds end lines: other line breaks are text.
    text = "".join(line + "\n" for line in lines).encode()
    run = subprocess.run([program, command, "-q", "--tokenizer", str(tokenizer)], input=text, capture_output=True, check=True)
    return run.stdout.decode().split("\n")[:-1]


def compare(what, ours, theirs, inputs):
    differ = [(a, b, line) for a, b, line in zip(ours, theirs, inputs, strict=True) if a != b]
    for a, b, line in differ[:3]:
        print(f"  of {line[:160]!r}\n    mt   {a[:160]!r}\n    they {b[:160]!r}")
    if differ:
        print(f"{what}: {len(differ)} of {len(ours)} lines differ")
    return len(differ)


def models(folder, text):
    """SentencePiece models of every kind, with their names."""
    settings = {"nmt_nfkc": {}, "nmt_nfkc_cf": {"normalization_rule_name": "nmt_nfkc_cf"}, "identity": {"normalization_rule_name": "identity"},
                "bytes": {"byte_fallback": True}, "bytes, identity": {"byte_fallback": True, "normalization_rule_name": "identity"},
                "user-defined symbols": {"user_defined_symbols": ["<sep>", "user", "<user>", "ﬁ", "▁▁", "e\u0301"]},
                "no dummy prefix": {"add_dummy_prefix": False},
                "all spaces kept": {"remove_extra_whitespaces": False, "normalization_rule_name": "nfkc"},
                "all spaces kept, no dummy prefix, bytes": {"remove_extra_whitespaces": False, "add_dummy_prefix": False, "byte_fallback": True},
                "spaces at the ends of words": {"treat_whitespace_as_suffix": True},
                "pieces over spaces": {"split_by_whitespace": False, "max_sentencepiece_length": 32},
                "another order of special tokens": {"pad_id": 0, "unk_id": 3, "bos_id": -1, "eos_id": 1, "unk_surface": "??", "pad_piece": "[PAD]"},
                "control symbols, small": {"control_symbols": [">>fra<<", "a"], "vocab_size": 500, "hard_vocab_limit": False}}
    for kind in ("unigram", "bpe"):
        for number, (name, options) in enumerate(settings.items()):
            prefix = folder / f"{kind}-{number}"
            options = {"vocab_size": PIECES, "character_coverage": 0.9995, "num_threads": 2, **options}
            sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(prefix), model_type=kind, minloglevel=2, **options)
            yield f"{kind}, {name}", Path(f"{prefix}.model")
            if name == "nmt_nfkc":
                yield f"{kind}, unused pieces", unused(Path(f"{prefix}.model"))


def unused(model):
    """Marks every fifth piece as unused, as a vocabulary restriction does."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model.read_bytes())
    for piece in proto.pieces[10::5]:
        if len(piece.piece) > 1:
            piece.type = sentencepiece_model_pb2.ModelProto.SentencePiece.UNUSED
    out = model.with_suffix(".unused.model")
    out.write_bytes(proto.SerializeToString())
    return out


def check_sentencepiece(program, name, file, real, odd, draw):
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    failed = 0
    for lines in (real, odd):
        pieces = [" ".join(line) for line in theirs.encode(lines, out_type=str)]
        failed += compare(f"{name}: pieces", mt(program, "tokenize", file, lines), pieces, lines)
        # A carriage return at the end of a line is not text.
        pieces = [line for line in pieces if not line.endswith("\r")]
        text = [line.replace("\n", " ") for line in theirs.decode([line.split(" ") if line else [] for line in pieces])]
        failed += compare(f"{name}: text", mt(program, "detokenize", file, pieces), text, pieces)
    # Not just pieces from encoding: any pieces in any order, including bytes that are not text.
    drawn = [[draw.randrange(theirs.get_piece_size()) for _ in range(draw.randint(0, 20))] for _ in range(RANDOM_LINES)]
    drawn = [[piece for piece in map(theirs.id_to_piece, ids) if " " not in piece] for ids in drawn]
    text = [theirs.decode(pieces).replace("\n", " ") for pieces in drawn]
    failed += compare(f"{name}: text of drawn pieces", mt(program, "detokenize", file, map(" ".join, drawn)), text, list(map(" ".join, drawn)))
    print(f"SentencePiece {name}: {len(real)} + {len(odd)} lines, their text, {len(drawn)} drawn lines: {failed} differ", flush=True)
    return failed


def library(folder, text):
    """Tokenizers of the `tokenizers` library, with their names."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.post_processor = processors.ByteLevel(trim_offsets=True)
    byte_level.train([text], trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<|endoftext|>"], show_progress=False,
                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    yield "byte-level BPE", byte_level
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.train([text], trainers.WordPieceTrainer(vocab_size=PIECES, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[PAD]"], show_progress=False))
    pieces.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    pieces.enable_truncation(16)
    pieces.enable_padding(length=16, pad_id=3, pad_token="[PAD]")
    yield "WordPiece", pieces
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("a", "A")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    unigram.train([text], trainers.UnigramTrainer(vocab_size=PIECES, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False))
    yield "Unigram", unigram


def own(program, folder, text):
    """mt's own tokenizers as that library reads them, with their names and files."""
    from tokenizers import Tokenizer

    corpus = "{ source = %r, target = %r }" % (str(text), str(text))
    (folder / "own.toml").write_text(f"data.train = [{corpus}]\ntrain.max_updates = 1\nvalid.every = 0\n", encoding="utf-8")
    small = ["model.d_model=8", "model.d_ff=8", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1", "data.max_length=20"]
    for name, sets in {
        "mt's own": [],
        "mt's own, lower case, nfc": ["tokenizer.lowercase=true", "tokenizer.normalization=nfc"],
        "mt's own, all white space kept": ["tokenizer.remove_extra_whitespaces=false"],
        "mt's own, none, all white space kept": ["tokenizer.remove_extra_whitespaces=false", "tokenizer.normalization=none"],
        "mt's own, none": ["tokenizer.normalization=none"],
    }.items():
        run = folder / "own"
        command = [program, "train", "--config", folder / "own.toml", "--run-dir", run, "--overwrite", "-q"]
        sets = [*small, f"tokenizer.vocab_size={PIECES}", *sets]
        subprocess.run([*command, *(part for change in sets for part in ("--set", change))], check=True)
        yield name, Tokenizer.from_file(str(run / "tokenizer.json")), run / "tokenizer.json"


def unnamed(theirs):
    """The same tokenizer with other names for its special tokens, which its model would find in text all the same."""
    from tokenizers import Tokenizer

    file = json.loads(theirs.to_str())
    specials = {token["content"] for token in file["added_tokens"] if token["special"]} - {"<unk>", "[UNK]"}
    other = lambda piece: "\n" + piece if piece in specials else piece
    vocabulary = file["model"]["vocab"]
    if isinstance(vocabulary, dict):
        file["model"]["vocab"] = {other(piece): number for piece, number in vocabulary.items()}
    else:
        file["model"]["vocab"] = [[other(piece), score] for piece, score in vocabulary]
    for token in file["added_tokens"]:
        token["content"] = other(token["content"])
    file["post_processor"] = None
    again = Tokenizer.from_str(json.dumps(file))
    again.encode_special_tokens = True
    again.no_truncation()
    again.no_padding()
    return again


def check_codes(program, folder, text, lines):
    """Codes of subword-nmt, with and without a vocabulary, and their dropout of nothing."""
    import io

    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    file = folder / "bpe.codes"
    with open(text, encoding="utf-8", newline="\n") as source, open(file, "w", encoding="utf-8") as out:
        learn_bpe(source, out, PIECES)
    codes = file.read_text(encoding="utf-8")
    plain = "".join(line.replace("</w>", "") + "\n" for line in codes.split("\n")[1:-1] if "</w>" not in line)
    failed = 0
    for name, codes in {"0.2": codes, "0.1": plain + "e </w>\nn </w>\n"}.items():
        file.write_text(codes, encoding="utf-8")
        bpe = BPE(io.StringIO(codes))
        split = [bpe.segment(line) for line in lines]
        failed += compare(f"subword-nmt {name}: pieces", mt(program, "tokenize", file, lines), split, lines)
        # What looks like a joiner in text is one.
        plain = [(line, pieces) for line, pieces in zip(lines, split) if "@@" not in line]
        text = [" ".join(word for word in line.strip("\r ").split(" ") if word) for line, _ in plain]
        split = [pieces for _, pieces in plain]
        failed += compare(f"subword-nmt {name}: text", mt(program, "detokenize", file, split), text, split)
    print(f"subword-nmt: {len(lines)} lines, twice: {failed} differ", flush=True)
    return failed


def check_library(program, name, theirs, lines, file):
    theirs.encode_special_tokens = True
    theirs.no_truncation()
    theirs.no_padding()
    # By ids, because the library's tokens show unknown text unchanged.
    encoded = unnamed(theirs).encode_batch(lines, add_special_tokens=False)
    encoded = [list(map(theirs.id_to_token, line.ids)) for line in encoded]
    failed = compare(f"{name}: pieces", mt(program, "tokenize", file, lines), list(map(" ".join, encoded)), lines)
    # Pieces that contain white space cannot be separated in a line of pieces.
    plain = [pieces for pieces in encoded if " ".join(pieces).split() == pieces and not {"<unk>", "[UNK]", "</s>"} & set(pieces)]
    text = [theirs.decode([theirs.token_to_id(piece) for piece in pieces]).replace("\n", " ") for pieces in plain]
    joined = list(map(" ".join, plain))
    failed += compare(f"{name}: text", mt(program, "detokenize", file, joined), text, joined)
    print(f"tokenizers library, {name}: {len(lines)} lines, text of {len(plain)}: {failed} differ", flush=True)
    return failed


def main():
    program, root = sys.argv[1], os.environ.get("MT_TEST_DATA")
    if not root:
        print(f"SKIPPED {sys.argv[0]}: MT_TEST_DATA is unset", file=sys.stderr)
        return
    draw = random.Random(1)
    corpus = []
    for name in ("multi30k/train.en", "multi30k/train.de", "tatoeba-en-de/train.en", "tatoeba-en-de/train.de"):
        corpus += draw.sample((Path(root) / name).read_text(encoding="utf-8").split("\n")[:-1], 15_000)
    real, odd = draw.sample(corpus, LINES), [random_line(draw) for _ in range(RANDOM_LINES)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text = folder / "text"
        text.write_text("\n".join(corpus) + "\n", encoding="utf-8")
        for name, file in models(folder, text):
            failed += check_sentencepiece(program, name, file, real, odd, draw)
        for name, theirs in library(folder, str(text)):
            theirs.save(str(folder / f"{name}.json"))
            failed += check_library(program, name, theirs, real + odd, folder / f"{name}.json")
        failed += check_codes(program, folder, text, real + odd)
        for name, theirs, file in own(program, folder, text):
            failed += check_library(program, name, theirs, real + odd, file)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
