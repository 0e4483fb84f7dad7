#!/usr/bin/env python3
"""Compares imported models with the program they come from: import.py MT

Makes random MarianMT models with Hugging Face `transformers` (weights scaled so that preferences are clear), with
SentencePiece models trained here, imports them with `mt import`, and compares pieces, log-probabilities, greedy and beam
search on random lines of text. Then it does the same with what `mt export --format hf-marian` makes of an imported model.
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import sentencepiece
import torch
from common import NEW_TOKENS, compare, corpus, lines_of, random_lines
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, MarianTokenizer

LINES = 500

# Shape, whether the vocabulary is shared, type of the weights, target languages.
MODELS = {
    "shared vocabulary, swish, 6 heads": (dict(d_model=96, encoder_layers=3, decoder_layers=3, heads=6, ffn=192, activation_function="swish",
                                              scale_embedding=True), True, torch.float32, []),
    "separate vocabularies, ReLU, 4 and 2 layers, unscaled": (dict(d_model=64, encoder_layers=4, decoder_layers=2, heads=4, ffn=128,
        activation_function="relu", scale_embedding=False), False, torch.float32, []),
    "shared vocabulary, GELU, 1 and 3 layers, three languages, float16": (dict(d_model=64, encoder_layers=1, decoder_layers=3, heads=8, ffn=256,
        activation_function="gelu", scale_embedding=True), True, torch.float16, [">>fra<<", ">>deu<<", ">>nob<<"]),
}


def train(folder, name, files, kind):
    sentencepiece.SentencePieceTrainer.train(input=",".join(map(str, files)), model_prefix=str(folder / name), model_type=kind, vocab_size=1500,
                                             minloglevel=2, num_threads=2, character_coverage=0.999)
    return folder / f"{name}.model"


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def make(folder, name, shape, shared, dtype, tags, models, seed, lines):
    """Writes a folder like OPUS-MT's."""
    torch.manual_seed(seed)
    (folder / name).mkdir()
    here = folder / name
    for side, model in zip(("source", "target"), models):
        (here / f"{side}.spm").write_bytes(model.read_bytes())
    sides = [pieces_of(model) for model in models]
    if shared:
        sides = [sorted(set(sides[0]) | set(sides[1])) + tags]
    vocabularies = [{piece: i for i, piece in enumerate(["</s>", "<unk>", *side, "<pad>"])} for side in sides]
    for file, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies):
        (here / file).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (here / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared, "model_max_length": 128}))
    source, target = vocabularies[0], vocabularies[-1]
    heads, ffn = shape.pop("heads"), shape.pop("ffn")
    pad = target["<pad>"]
    config = MarianConfig(vocab_size=len(source), decoder_vocab_size=len(target), share_encoder_decoder_embeddings=shared,
                          encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn,
                          max_position_embeddings=128, pad_token_id=pad, eos_token_id=0, bos_token_id=0, decoder_start_token_id=pad,
                          forced_eos_token_id=None, dropout=0.1, **shape)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "embed_positions" in key:
                continue
            if value.dim() == 2:
                value.normal_(std=(2.5 if "embed" in key or "shared" in key else 1.5) / value.shape[1] ** 0.5)
            elif "norm.weight" in key:
                value.uniform_(0.7, 1.3)
            else:
                value.normal_(std=0.2)
        model.final_logits_bias.normal_(std=0.5)
        # As `transformers` converts Marian's models: padding has an embedding of zeros and a logit of 0, here far above all
        # others, and is left out by renormalising.
        for table in (model.model.get_decoder().embed_tokens.weight, model.lm_head.weight):
            table[pad] = 0
        ends(model, MarianTokenizer.from_pretrained(here), lines)
        model.final_logits_bias.sub_(15)
        model.final_logits_bias[0, pad] = 0
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.renormalize_logits = True
    model.generation_config.num_beams = 4
    model.generation_config.max_length = NEW_TOKENS + 1
    model.to(dtype).save_pretrained(here)
    return here


def ends(model, tokenizer, lines):
    """Makes the end of a sentence so likely that translations have about a dozen tokens: most end by themselves, some do not."""
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    # The end's probability must depend on what differs between states, not on what all first states have in common: else all
    # translations would end at the beginning, or none.
    starts = torch.full((len(lines), 1), model.config.pad_token_id)
    first = model(**batch, decoder_input_ids=starts, output_hidden_states=True).decoder_hidden_states[-1].mean((0, 1))
    end = model.model.get_decoder().embed_tokens.weight[0]
    end.mul_(2).sub_(1.5 * first / first.norm())
    low, high, start = -20.0, 40.0, model.final_logits_bias[0, 0].item()
    for _ in range(14):
        model.final_logits_bias[0, 0] = start + (low + high) / 2
        lengths = [((row[1:] > 0) & (row[1:] != model.config.pad_token_id)).sum().item() for row in model.generate(**batch, num_beams=4, max_length=NEW_TOKENS + 1)]
        low, high = (low, (low + high) / 2) if sum(lengths) / len(lines) < 12 else ((low + high) / 2, high)


def generate(model, tokenizer, lines, beam, penalty, stopping):
    found, pad = [], model.config.pad_token_id
    for start in range(0, len(lines), 50):
        batch = tokenizer(lines[start : start + 50], return_tensors="pt", padding=True)
        with torch.no_grad():
            output = model.generate(**batch, num_beams=beam, length_penalty=penalty, max_length=NEW_TOKENS + 1, early_stopping=stopping,
                                    return_dict_in_generate=True, output_scores=True)
            scores = output.sequences_scores if beam > 1 else model.compute_transition_scores(
                output.sequences, output.scores).where(output.sequences[:, 1:] != pad, 0).sum(1)
        for tokens, score in zip(output.sequences.tolist(), scores.tolist()):
            tokens = tokens[1:]
            if 0 in tokens:
                tokens = tokens[: tokens.index(0)]
            found.append(([token for token in tokens if token != model.config.pad_token_id], score))
    return found


def log_probabilities(model, tokenizer, pairs):
    """Log-probabilities of every token of each target and of its end."""
    found = []
    for source, target in pairs:
        batch = tokenizer(source, text_target=target, return_tensors="pt")
        labels = batch["labels"]
        start = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits
        logits[..., model.config.pad_token_id] = -math.inf
        found.append(logits.log_softmax(-1)[0].gather(1, labels[0][:, None])[:, 0].tolist())
    return found


def check(mt, name, theirs, ours, lines, targets):
    """Compares an imported model with the folder it was imported from."""
    model, tokenizer = MarianMTModel.from_pretrained(theirs, dtype=torch.float32).eval(), MarianTokenizer.from_pretrained(theirs)
    source = json.loads((theirs / "vocab.json").read_text(encoding="utf-8"))
    separate = theirs / "target_vocab.json"
    target = json.loads(separate.read_text(encoding="utf-8")) if separate.exists() else source
    failed = 0
    unknown = {i: piece for piece, i in source.items()}
    pieces = [" ".join(unknown[i] for i in tokenizer(line).input_ids[:-1]) for line in lines]
    # `mt` shows unknown text unchanged.
    found = [" ".join(piece if piece in source else "<unk>" for piece in line.split(" ") if piece)
             for line in lines_of([mt, "tokenize", "-q", "--model", ours], lines)]
    wrong = sum(a != b for a, b in zip(found, pieces, strict=True))
    print(f"{name}\n  pieces: {len(lines)} lines, {wrong} differ")
    failed += wrong
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / side for side in ("source", "target")]
        for file, text in zip(files, (lines, targets)):
            file.write_text("".join(line + "\n" for line in text), encoding="utf-8")
        scored = lines_of([mt, "score", "-q", "--json", "--model", ours, "--src", str(files[0]), "--tgt", str(files[1])], [])
    differences = [0.0]
    for line, expected in zip(scored, log_probabilities(model, tokenizer, list(zip(lines, targets))), strict=True):
        probabilities = json.loads(line)["token_log_probs"]
        assert len(probabilities) == len(expected), (len(probabilities), len(expected))
        differences += [abs(a - b) for a, b in zip(probabilities, expected)]
    # NaN is the largest, which max() alone would pass over.
    largest = max(differences, key=lambda difference: (math.isnan(difference), difference))
    print(f"  log-probabilities of {len(targets)} given translations: largest difference {largest:.2e}")
    failed += not largest <= 1e-4
    for beam, penalty, stopping in ((1, 0.0, True), (4, 1.0, True), (4, 1.0, "never"), (4, 0.6, True)):
        patience = 1 if stopping is True else 0
        options = ["--beam", str(beam), "--length-penalty", str(penalty), "--length-penalty-kind", "power", "--patience", str(patience),
                   "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100"]
        results = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", ours, *options], lines))
        results = [([target[piece] for piece in result["tokens"]], result["score"]) for result in results]
        name = f"beam {beam}, length penalty {penalty}, early_stopping={stopping}"
        failed += compare(name, results, generate(model, tokenizer, lines, beam, penalty, stopping))
    return failed


def main():
    mt, (files, words) = sys.argv[1], corpus()
    draw, failed = random.Random(1), 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for number, (name, (shape, shared, dtype, tags)) in enumerate(MODELS.items()):
            kind = ("unigram", "bpe")[number % 2]
            models = [train(folder, f"{number}-{side}", [file], kind) for side, file in zip(("source", "target"), files)]
            lines = random_lines(draw, words[0], LINES)
            if tags:
                lines = [f"{draw.choice([*tags, '>>xxx<<'])} {line}" for line in lines]
            targets = random_lines(draw, words[1], LINES)
            theirs = make(folder, f"theirs-{number}", dict(shape), shared, dtype, tags, models, number, lines[:60])
            ours = folder / f"ours-{number}"
            subprocess.run([mt, "import", "-q", str(theirs), "--out", str(ours)], check=True)
            failed += check(mt, f"{name} ({kind})", theirs, str(ours), lines, targets)
            again = folder / f"again-{number}"
            subprocess.run([mt, "export", "-q", str(ours), "--format", "hf-marian", "--out", str(again)], check=True)
            assert type(AutoTokenizer.from_pretrained(again)).__name__.startswith("Marian")
            for file in ("source.spm", "target.spm"):
                assert (again / file).read_bytes() == (theirs / file).read_bytes()
            failed += check(mt, "the same, exported again", again, str(ours), lines[:50], targets[:50])
            tensors, others = (dict(MarianMTModel.from_pretrained(f, dtype=torch.float32).state_dict()) for f in (theirs, again))
            # In ours, padding has a logit too low to matter.
            assert others["final_logits_bias"].min() == -1e4
            others["final_logits_bias"][others["final_logits_bias"] == -1e4] = 0
            assert tensors.keys() == others.keys() and all(torch.equal(tensors[key], others[key]) for key in tensors)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
