#!/usr/bin/env python3
"""Compares exported models in `mt` and in the programs they are exported for: export.py MT [MODEL SOURCE]

Exports MODEL (by default a small model trained here, and some of other kinds) to CTranslate2 and to Hugging Face
`transformers`, and compares pieces, greedy and beam translations of the lines of SOURCE with those of `mt translate`: except
for ties, they must be the same. What a search finds depends on when it stops: `--patience 1` is the rule of CTranslate2 and of
transformers' `early_stopping=True`, `--patience 0` that of its `early_stopping="never"`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Scores that differ less are ties: 32-bit sums depend on their order.
TIE = 1e-4
# The most that two scores of the same translation may differ: a sum over up to 61 tokens.
SAME = 1e-3
ODD = ["", "A", "  two  spaces ", "<pad> </s> <s>", "ﬁ ½ Ａ", "naïve café", "中文 русский 🙂", "tab\there", "<0x41> ▁ x"]


# Models of other kinds, each trained only briefly, and the formats they are exported to.
VARIANTS = {
    "pre-norm, GELU, learned positions, no attention bias": (["ct2"], [
        "model.norm=pre", "model.activation=gelu", "model.positions=learned", "model.attention_bias=false", "model.max_length=128"]),
    "separate vocabularies, nothing tied, swish, output bias": (["ct2", "hf-marian"], [
        "tokenizer.joint=false", "tokenizer.vocab_size=2000", "model.tie=none", "model.activation=swish", "model.output_bias=true"]),
    "separate vocabularies, decoder tied, positions in halves, unscaled": (["ct2", "hf-marian"], [
        "tokenizer.joint=false", "tokenizer.vocab_size=2000", "model.sinusoid=halves", "model.scale_embedding=false"]),
    "a last norm after post-norm, another epsilon, 3 and 2 layers": (["ct2"], [
        "model.final_norm=true", "model.norm_eps=1e-3", "model.encoder_layers=3", "model.decoder_layers=2"]),
    "norms by the root mean square, gated layers, heads that are wider": (["ct2"], [
        "model.norm=pre", "model.norm_kind=rms", "model.gated=true", "model.activation=swish", "model.d_k=40", "model.d_v=40"]),
    "relative positions, post-norm, embeddings tied, no biases of feed-forward layers": (["ct2"], [
        "model.positions=relative", "model.tie=embeddings", "model.feed_forward_bias=false", "model.relative_buckets=8"]),
}


def lines_of(command, text):
    output = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    return output.split("\n")[:-1]


def compare(name, ours, theirs):
    """Counts translations, given with scores, that differ by more than a tie, and equal ones with other scores."""
    pairs = list(zip(ours, theirs, strict=True))
    differ = [(a, b) for a, b in pairs if a[0] != b[0]]
    # Not `>`, which NaN would pass.
    bad = [(a, b) for a, b in pairs if not abs(a[1] - b[1]) <= (TIE if a[0] != b[0] else SAME)]
    print(f"{name}: {len(ours)} lines, {len(differ)} differ; {len(bad)} by more than a tie, or in their score alone")
    for (a, x), (b, y) in bad[:5]:
        print(f"  mt {x:.5f} {a}\n     {y:.5f} {b}")
    return len(bad)


def ctranslate2(directory, lines, beam, penalty, compute="float32"):
    import ctranslate2
    from tokenizers import Tokenizer

    joint = directory / "tokenizer.json"
    names = [joint, joint] if joint.exists() else [directory / "tokenizer.src.json", directory / "tokenizer.tgt.json"]
    source, target = (Tokenizer.from_file(str(name)) for name in names)
    source.encode_special_tokens = True
    translator = ctranslate2.Translator(str(directory), compute_type=compute)
    pieces = [source.encode(line).tokens for line in lines]
    results = translator.translate_batch(pieces, beam_size=beam, length_penalty=penalty, min_decoding_length=0,
                                         max_decoding_length=60, return_scores=True)
    text = [target.decode([target.token_to_id(piece) for piece in result.hypotheses[0]]) for result in results]
    return list(zip(text, (result.scores[0] for result in results)))


def transformers(directory, lines, beam, penalty, stopping=True):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, MarianMTModel

    target = directory / "tokenizer.tgt.json"
    target = Tokenizer.from_file(str(target if target.exists() else directory / "tokenizer.json"))
    tokenizer, model = AutoTokenizer.from_pretrained(directory), MarianMTModel.from_pretrained(directory).eval()
    # Of logits, because greedy search's scores share out the probability of the padding.
    found, pad = [], model.config.pad_token_id
    for start in range(0, len(lines), 50):
        batch = tokenizer(lines[start : start + 50], return_tensors="pt", padding=True)
        with torch.no_grad():
            output = model.generate(**batch, num_beams=beam, length_penalty=penalty, max_length=61, early_stopping=stopping,
                                    return_dict_in_generate=True, output_scores=True, output_logits=True)
            scores = output.sequences_scores if beam > 1 else model.compute_transition_scores(
                output.sequences, output.logits, normalize_logits=True).where(output.sequences[:, 1:] != pad, 0).sum(1)
        found += zip(target.decode_batch(output.sequences.tolist()), scores.tolist())
    return found


def translated(mt, model, lines, beam, penalty, patience=1, precision="f32"):
    options = ["--precision", precision, "--beam", str(beam), "--length-penalty", str(penalty), "--length-penalty-kind", "power",
               "--patience", str(patience), "--max-length", "60", "--max-length-ratio", "100"]
    found = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", model, *options], "\n".join(lines) + "\n"))
    return [(result["translation"], result["score"]) for result in found]


def variants(mt, folder, lines):
    failed = 0
    for number, (name, (formats, settings)) in enumerate(VARIANTS.items()):
        run = str(folder / f"variant-{number}")
        options = [f"--set={setting}" for setting in ["train.max_updates=100", "valid.every=0", *settings]]
        subprocess.run([mt, "train", "-q", "--config", "configs/quickstart.toml", "--run-dir", run, *options], check=True)
        ours = translated(mt, run, lines, 4, 0.0)
        for format in formats:
            out = folder / f"{format}-{number}"
            subprocess.run([mt, "export", run, "-q", "--format", format, "--out", str(out)], check=True)
            theirs = (ctranslate2 if format == "ct2" else transformers)(out, lines, 4, 0.0)
            failed += compare(f"{format}, {name}, beam 4", ours, theirs)
    return failed


def main():
    mt = sys.argv[1]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if len(sys.argv) > 3:
            model, source = sys.argv[2:4]
        else:
            model, source = str(folder / "run"), "data/quickstart/test.en"
            subprocess.run([mt, "train", "-q", "--config", "configs/quickstart.toml", "--run-dir", model, "--set",
                            "train.max_updates=800"], check=True)
        lines = Path(source).read_text(encoding="utf-8").split("\n")[:-1]
        for name, options in (("ct2", []), ("ct2-int8", ["--quantization", "int8"]), ("hf", [])):
            format = "hf-marian" if name == "hf" else "ct2"
            subprocess.run([mt, "export", model, "-q", "--format", format, "--out", str(folder / name), *options], check=True)

        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder / "hf")
        texts = lines + ODD
        ours = lines_of([mt, "tokenize", "-q", "--model", model], "\n".join(texts) + "\n")
        theirs = [" ".join(tokenizer.convert_ids_to_tokens(tokenizer(line).input_ids)[:-1]) for line in texts]
        different = [(line, a, b) for line, a, b in zip(texts, ours, theirs, strict=True) if a != b]
        print(f"pieces by AutoTokenizer: {len(texts)} lines, {len(different)} differ {different[:3]}")
        failed += len(different)

        for beam, penalty in ((1, 0.0), (4, 0.0), (4, 1.0)):
            ours, setting = translated(mt, model, lines, beam, penalty), f"beam {beam}, length penalty {penalty}"
            failed += compare(f"CTranslate2, {setting}", ours, ctranslate2(folder / "ct2", lines, beam, penalty))
            failed += compare(f"transformers, {setting}", ours, transformers(folder / "hf", lines, beam, penalty))
        ours, theirs = translated(mt, model, lines, 4, 1.0, patience=0), transformers(folder / "hf", lines, 4, 1.0, "never")
        failed += compare("transformers, beam 4, length penalty 1.0, patience 0", ours, theirs)
        ours, theirs = translated(mt, model, lines, 1, 0.0, precision="int8"), ctranslate2(folder / "ct2-int8", lines, 1, 0.0, "int8")
        same = sum(a[0] == b[0] for a, b in zip(ours, theirs, strict=True))
        print(f"8-bit integers, greedy: {same} of {len(lines)} lines are the same in CTranslate2")
        failed += same < 0.8 * len(lines)
        if len(sys.argv) <= 3:
            failed += variants(mt, folder, lines[:100])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
