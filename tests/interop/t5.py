#!/usr/bin/env python3
"""Compares imported T5 models with the program they come from: t5.py MT

Makes random models of T5's forms with Hugging Face `transformers` (weights scaled so that preferences are clear), with a SentencePiece
model trained here on real text, imports them with `mt import`, and compares pieces, log-probabilities, greedy and beam search. Then it does
the same with what `mt export` makes of the imported model for `transformers`, and compares the translations of CTranslate2.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import ctranslate2
import sentencepiece
import torch
from common import NEW_TOKENS, compare, corpus, lines_of, random_lines
from transformers import AutoModelForSeq2SeqLM, MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration, T5Tokenizer

# Lines that are translated, and lines whose pieces are compared.
LINES, PIECES = 500, 20_000
PAD, END, UNKNOWN = 0, 1, 2
TAGS = ["<2de>", "<2fr>"]

# Class, shape, type of the weights, tags of languages among the pieces, rows of the embedding beyond the pieces.
SMALL = dict(d_model=64, d_kv=16, num_heads=4, d_ff=128, num_layers=2, num_decoder_layers=2)
MODELS = [
    # T5 1.0, whose sentinels are rows without a piece.
    ("t5", dict(SMALL, feed_forward_proj="relu", tie_word_embeddings=True), torch.float32, [], 128),
    # T5 1.1 and Flan-T5.
    ("t5", dict(SMALL, num_heads=6, d_kv=8, feed_forward_proj="gated-gelu", tie_word_embeddings=False), torch.float16, [], 128),
    # mT5, and MADLAD-400 with its tags.
    ("mt5", dict(SMALL, num_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False), torch.float32, [], 12),
    ("t5", dict(SMALL, d_kv=24, num_layers=3, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
                relative_attention_num_buckets=16, relative_attention_max_distance=40), torch.bfloat16, TAGS, 0),
]
CLASSES = {"t5": (T5Config, T5ForConditionalGeneration), "mt5": (MT5Config, MT5ForConditionalGeneration)}


def make(here, name, shape, dtype, tags, spare, files, seed, lines, forbidden):
    """Writes a folder as the real models have it: with spiece.model."""
    torch.manual_seed(seed)
    here.mkdir()
    sentencepiece.SentencePieceTrainer.train(input=",".join(map(str, files)), model_prefix=str(here / "spiece"), model_type="unigram", vocab_size=1500,
                                             minloglevel=2, num_threads=2, character_coverage=0.999, pad_id=PAD, eos_id=END, unk_id=UNKNOWN, bos_id=-1,
                                             user_defined_symbols=tags)
    (here / "spiece.vocab").unlink()
    (here / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 100 if spare >= 100 else 0}), encoding="utf-8")
    config, kind = CLASSES[name]
    net = kind(config(vocab_size=1500 + spare, dropout_rate=0.1, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD, **shape)).eval()
    if not shape["tie_word_embeddings"]:
        net.lm_head.weight = torch.nn.Parameter(torch.zeros_like(net.lm_head.weight))
    with torch.no_grad():
        for key, value in net.named_parameters():
            if "norm" in key:
                value.uniform_(0.7, 1.3)
            elif "relative" in key:
                value.normal_()
            elif "shared" in key or "lm_head" in key:
                # A tied matrix serves states that are divided by the root of the width.
                value.normal_(std=2.5 if shape["tie_word_embeddings"] else 2.5 / value.shape[1] ** 0.5)
            else:
                value.normal_(std=1.5 / value.shape[1] ** 0.5)
        # Queries are not divided by the root of the heads' width.
        for key, value in net.named_parameters():
            if key.endswith(".q.weight"):
                value *= shape["d_kv"] ** -0.5
        # What all states have in common, for `ends`. As a part of a tied matrix, it adds the same to all scores.
        net.shared.weight += net.shared.weight.std() * torch.randn(shape["d_model"])
        # Else a state is nearest to the embedding of its own token, which would be repeated for ever.
        net.decoder.final_layer_norm.weight.normal_()
    net.generation_config.bad_words_ids = [[PAD]]
    net.generation_config.num_beams = 4
    net.generation_config.max_length = NEW_TOKENS + 1
    ends(net, sentencepiece.SentencePieceProcessor(model_file=str(here / "spiece.model")), lines, forbidden)
    net.to(dtype).save_pretrained(here)


def encode(processor, lines):
    """Lines as sentencepiece splits them, with their ends: transformers splits differently about the tags of languages."""
    rows = [[*processor.encode(line), END] for line in lines]
    length = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (length - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def ends(net, processor, lines, forbidden):
    """Makes the end of a sentence so likely that translations have about a dozen tokens: most end by themselves, some do not. Makes what
    is forbidden improbable: CTranslate2 has tokens in its softmax only if they may be generated."""
    batch = encode(processor, lines)
    rows = net.get_output_embeddings().weight.data
    with torch.no_grad():
        states = net(**batch, decoder_input_ids=torch.randint(3, 1500, (len(lines), 20)), output_hidden_states=True).decoder_hidden_states[-1]
    mean, end = states.mean((0, 1)), rows[END].clone()
    rows[forbidden] = -60 * mean / mean.norm() ** 2
    low, high = -100.0, 200.0
    for _ in range(14):
        middle = (low + high) / 2
        rows[END] = end + middle * mean / mean.norm() ** 2
        out = net.generate(**batch, num_beams=4, max_length=NEW_TOKENS + 1)
        lengths = [((row[1:] != PAD) & (row[1:] != END)).sum().item() for row in out]
        low, high = (low, middle) if sum(lengths) / len(lines) < 12 else (middle, high)


def generate(net, processor, lines, beam, penalty, stopping):
    found = []
    for start in range(0, len(lines), 50):
        batch = encode(processor, lines[start : start + 50])
        # What `mt` never has in a translation.
        words = net.generation_config.bad_words_ids
        with torch.no_grad():
            output = net.generate(**batch, num_beams=beam, length_penalty=penalty, max_length=NEW_TOKENS + 1, early_stopping=stopping,
                                  bad_words_ids=words, return_dict_in_generate=True, output_scores=True, output_logits=True)
            if beam > 1:
                scores = output.sequences_scores
            else:
                tokens = output.sequences[:, 1:, None]
                steps = torch.stack(output.logits, 1).log_softmax(-1).gather(2, tokens)
                scores = steps.where(tokens != PAD, 0).sum((1, 2))
        for tokens, score in zip(output.sequences.tolist(), scores.tolist()):
            tokens = tokens[1:]
            if END in tokens:
                tokens = tokens[: tokens.index(END)]
            found.append(([token for token in tokens if token != PAD], score))
    return found


def ids_of(vocabulary, pieces):
    """The ids of pieces; a row without one has its number in its name."""
    return [vocabulary[piece] if piece in vocabulary else int(piece.removeprefix("<unused_").removesuffix(">")) for piece in pieces]


def check(mt, name, theirs, ours, lines, targets, forbidden):
    """Compares an imported model with the folder it was imported from."""
    net = AutoModelForSeq2SeqLM.from_pretrained(theirs, dtype=torch.float32).eval()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(theirs / "spiece.model"))
    net.generation_config.bad_words_ids = [[token] for token in forbidden]
    vocabulary = {processor.id_to_piece(token): token for token in range(processor.get_piece_size())}
    print(name)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / side for side in ("source", "target")]
        for file, text in zip(files, (lines, targets)):
            file.write_text("".join(line + "\n" for line in text), encoding="utf-8")
        scored = lines_of([mt, "score", "-q", "--json", "--model", ours, "--src", str(files[0]), "--tgt", str(files[1])], [])
    differences = [0.0]
    for source, target, line in zip(lines, targets, scored, strict=True):
        labels = [*processor.encode(target), END]
        with torch.no_grad():
            logits = net(**encode(processor, [source]), decoder_input_ids=torch.tensor([[PAD, *labels[:-1]]])).logits
        expected = logits.log_softmax(-1)[0].gather(1, torch.tensor(labels)[:, None])[:, 0].tolist()
        found = json.loads(line)["token_log_probs"]
        assert len(found) == len(expected), (len(found), len(expected))
        differences += [abs(a - b) for a, b in zip(found, expected)]
    # NaN is the largest, which max() alone would pass over.
    largest = max(differences, key=lambda difference: (math.isnan(difference), difference))
    print(f"  log-probabilities of {len(targets)} given translations: largest difference {largest:.2e}")
    failed = not largest <= 1e-4
    for beam, penalty, stopping in ((1, 0.0, True), (4, 1.0, True), (4, 1.0, "never")):
        search = ["--beam", str(beam), "--length-penalty", str(penalty), "--length-penalty-kind", "power", "--patience",
                  str(1 if stopping is True else 0), "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100"]
        found = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", ours, *search], lines))
        found = [(ids_of(vocabulary, line["tokens"]), line["score"]) for line in found]
        expected = generate(net, processor, lines, beam, penalty, stopping)
        failed += compare(f"beam {beam}, length penalty {penalty}, early_stopping={stopping}", found, expected)
    return failed


def check_pieces(mt, theirs, ours, lines):
    """Compares the pieces of lines with those of sentencepiece."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(theirs / "spiece.model"))
    expected = [["<unk>" if processor.piece_to_id(piece) == UNKNOWN else piece for piece in processor.encode(line, out_type=str)] for line in lines]
    found = [["<unk>" if processor.piece_to_id(piece) == UNKNOWN else piece for piece in line.split(" ") if piece]
             for line in lines_of([mt, "tokenize", "-q", "--model", ours], lines)]
    wrong = [(a, b) for a, b in zip(found, expected, strict=True) if a != b]
    print(f"  pieces: {len(lines)} lines, {len(wrong)} differ from sentencepiece", flush=True)
    for a, b in wrong[:3]:
        print(f"    mt {a}\n       {b}")
    return len(wrong)


def check_ct2(mt, folder, ours, lines, forbidden):
    """Compares the translations of CTranslate2 with those of `mt`."""
    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=2)
    pieces = [line.split(" ") for line in lines_of([mt, "tokenize", "-q", "--model", ours], lines)]
    failed = 0
    for beam in (1, 4):
        search = ["--beam", str(beam), "--length-penalty", "0", "--patience", "50", "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100",
                  "--min-length", "1"]
        found = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", ours, *search], lines))
        found = [(line["tokens"], line["log_prob"]) for line in found]
        output = translator.translate_batch(pieces, beam_size=beam, length_penalty=0, return_scores=True, max_decoding_length=NEW_TOKENS, min_decoding_length=1,
                                            suppress_sequences=[[piece] for piece in forbidden])
        expected = [(result.hypotheses[0], result.scores[0]) for result in output]
        failed += compare(f"CTranslate2, beam {beam}", found, expected, of_all=False)
    return failed


def main():
    mt, (files, words) = sys.argv[1], corpus()
    draw, failed = random.Random(1), 0
    real = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")[: PIECES // 2]]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for number, (kind, shape, dtype, tags, spare) in enumerate(MODELS):
            lines, targets = random_lines(draw, words[0], LINES), random_lines(draw, words[1], LINES)
            theirs, ours, again, ct2 = (folder / f"{name}-{number}" for name in ("theirs", "ours", "again", "ct2"))
            # Tags follow the special tokens.
            forbidden = [PAD, UNKNOWN, *range(3, 3 + len(tags)), *range(1500, 1500 + spare)]
            make(theirs, kind, shape, dtype, tags, spare, files, number, lines[:60], forbidden)
            subprocess.run([mt, "import", "-q", str(theirs), "--out", str(ours)], check=True)
            if tags:
                lines = [f"{draw.choice(tags)} {line}" for line in lines]
            failed += check(mt, f"{kind}, {shape}, {dtype}, tags {tags}", theirs, str(ours), lines, targets, forbidden)
            failed += check_pieces(mt, theirs, str(ours), real)
            subprocess.run([mt, "export", "-q", str(ours), "--format", "hf", "--out", str(again)], check=True)
            failed += check(mt, "  the same, exported again", again, str(ours), lines[:60], targets[:60], forbidden)
            own, other = (T5Tokenizer.from_pretrained(f) for f in (theirs, again))
            wrong = sum(a != b for a, b in zip(own(real).input_ids, other(real).input_ids))
            print(f"  pieces of transformers: {len(real)} lines, {wrong} differ in the exported folder")
            tensors, others = (dict(AutoModelForSeq2SeqLM.from_pretrained(f, dtype=torch.float32).state_dict()) for f in (theirs, again))
            assert tensors.keys() == others.keys() and all(torch.allclose(tensors[key], others[key], atol=1e-6) for key in tensors)
            subprocess.run([mt, "export", "-q", str(ours), "--format", "ct2", "--out", str(ct2)], check=True)
            failed += wrong + check_ct2(mt, ct2, str(ours), lines[:120], ["<pad>", "<unk>", *tags, *(f"<unused_{row}>" for row in range(1500, 1500 + spare))])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
