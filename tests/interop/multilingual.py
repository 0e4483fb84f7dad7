#!/usr/bin/env python3
"""Compares imported multilingual models with the program they come from: multilingual.py MT

Makes random models of the NLLB-200, M2M-100 and mBART-50 families with Hugging Face `transformers` (weights scaled so that
preferences are clear), with SentencePiece models trained here on real text, imports them with `mt import`, and compares
pieces, log-probabilities, greedy and beam search between several pairs of languages. Then it does the same with what
`mt export` makes of the imported model for `transformers`, and compares the translations of CTranslate2.
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
from transformers import (AutoModelForSeq2SeqLM, AutoTokenizer, M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer, MBart50Tokenizer,
                          MBartConfig, MBartForConditionalGeneration, NllbTokenizer)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M_CODES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

# Lines of each pair of languages, and lines whose pieces are compared.
LINES, PIECES = 84, 20_000

# Family, shape, type of the weights, whether the folder is one that this version of transformers saved (else, as it was
# published: with a SentencePiece model), the size of a file of weights, options of the tokenizer, pairs of languages.
NLLB_PAIRS = [("eng_Latn", "deu_Latn"), ("deu_Latn", "eng_Latn"), ("eng_Latn", "zho_Hans"), ("fra_Latn", "pes_Arab"), ("zul_Latn", "ace_Arab"),
              ("deu_Latn", "khk_Cyrl")]
M2M_PAIRS = [("en", "de"), ("de", "en"), ("en", "zu"), ("fr", "af"), ("ceb", "ast"), ("de", "fr")]
MBART_PAIRS = [("en_XX", "de_DE"), ("de_DE", "en_XX"), ("en_XX", "zh_CN"), ("fr_XX", "ar_AR"), ("sl_SI", "gl_ES"), ("de_DE", "ro_RO")]
SMALL = dict(d_model=64, encoder_layers=2, decoder_layers=2, heads=4, ffn=128)
MODELS = [
    ("nllb", dict(SMALL, activation_function="relu"), torch.float32, False, "50MB", {}, NLLB_PAIRS),
    ("nllb", dict(SMALL, encoder_layers=3, heads=8, activation_function="relu"), torch.float16, True, "200KB", {}, NLLB_PAIRS),
    ("nllb", dict(SMALL, d_model=96, decoder_layers=1, activation_function="swish"), torch.bfloat16, False, "50MB", {"legacy_behaviour": True}, NLLB_PAIRS),
    ("m2m", dict(SMALL, activation_function="relu"), torch.float32, False, "300KB", {}, M2M_PAIRS),
    ("m2m", dict(SMALL, encoder_layers=1, decoder_layers=3, activation_function="gelu"), torch.float16, True, "50MB", {}, M2M_PAIRS),
    ("m2m", dict(SMALL, d_model=96, heads=6, scale_embedding=False, activation_function="relu"), torch.float32, False, "50MB", {}, M2M_PAIRS),
    ("mbart", dict(SMALL, activation_function="relu"), torch.float32, False, "50MB", {}, MBART_PAIRS),
    ("mbart", dict(SMALL, decoder_layers=3, activation_function="gelu"), torch.float16, True, "200KB", {}, MBART_PAIRS),
    ("mbart", dict(SMALL, d_model=96, heads=6, scale_embedding=False, activation_function="relu"), torch.float32, False, "50MB", {}, MBART_PAIRS),
]
CLASSES = {"nllb": (NllbTokenizer, NLLB_CODES), "m2m": (M2M100Tokenizer, M2M_CODES["m2m100"]), "mbart": (MBart50Tokenizer, MBART_CODES)}


def train(prefix, files, kind):
    sentencepiece.SentencePieceTrainer.train(input=",".join(map(str, files)), model_prefix=str(prefix), model_type=kind, vocab_size=1500,
                                             minloglevel=2, num_threads=2, character_coverage=0.999)
    return prefix.parent / f"{prefix.name}.model"


def make_tokenizer(here, family, model, saved, options):
    """Writes the files of a tokenizer, as they were published with the real models or as transformers saves them now."""
    here.mkdir()
    (here / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
    kind, codes = CLASSES[family]
    listed = [f"__{code}__" for code in codes] if family == "m2m" else codes
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
    if family != "nllb":
        special["additional_special_tokens"] = listed
    (here / "special_tokens_map.json").write_text(json.dumps(special), encoding="utf-8")
    (here / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind.__name__, **options}), encoding="utf-8")
    if family == "m2m":
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces = ["<s>", "<pad>", "</s>", "<unk>"] + [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
        # In another order than the model's.
        (here / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces[:4] + pieces[:3:-1])}), encoding="utf-8")
    tokenizer = kind.from_pretrained(here, **options)
    if family == "nllb":
        # From the SentencePiece model alone, transformers 5 makes a tokenizer without languages. The published folders have a
        # tokenizer.json with them.
        tokenizer.save_pretrained(here)
        whole = json.loads((here / "tokenizer.json").read_text(encoding="utf-8"))
        tokens = [token for token in whole["added_tokens"] if token["content"] != "<mask>"]
        first = len(whole["model"]["vocab"])
        tokens += [{**tokens[0], "id": first + i, "content": code} for i, code in enumerate([*listed, "<mask>"])]
        whole["added_tokens"] = tokens
        (here / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
        (here / "special_tokens_map.json").write_text(json.dumps({**special, "additional_special_tokens": listed}), encoding="utf-8")
        (here / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind.__name__, **options}), encoding="utf-8")
        tokenizer = kind.from_pretrained(here, **options)
    if saved:
        for file in list(here.iterdir()):
            file.unlink()
        tokenizer.save_pretrained(here)
    return tokenizer


def make(folder, name, family, shape, dtype, saved, shard, options, model, seed, lines, pair):
    torch.manual_seed(seed)
    here = folder / name
    tokenizer = make_tokenizer(here, family, model, saved, options)
    shape = dict(shape)
    heads, ffn = shape.pop("heads"), shape.pop("ffn")
    # Real models have rows beyond their vocabulary.
    rows = max(len(tokenizer), max(tokenizer.get_vocab().values()) + 1) + {"nllb": 2, "m2m": 8, "mbart": 0}[family]
    shape.setdefault("scale_embedding", True)
    common = dict(vocab_size=rows, encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=ffn, decoder_ffn_dim=ffn,
                  max_position_embeddings=128, dropout=0.1, forced_eos_token_id=None, **shape)
    if family == "mbart":
        net = MBartForConditionalGeneration(MBartConfig(decoder_start_token_id=2, **common)).eval()
    else:
        net = M2M100ForConditionalGeneration(M2M100Config(**common)).eval()
    with torch.no_grad():
        for key, value in net.named_parameters():
            if value.dim() == 2:
                scale = 2.5 if "shared" in key or "embed" in key else 1.5
                value.normal_(std=scale / value.shape[1] ** 0.5)
            elif "norm" in key and key.endswith("weight"):
                value.uniform_(0.7, 1.3)
            else:
                value.normal_(std=0.2)
        # Else a state is nearest to the embedding of its own token, which would be repeated for ever.
        net.model.decoder.layer_norm.weight.normal_()
        bias = net.model.decoder.layer_norm.bias.normal_(std=0.5)
        # Padding and rows without a piece are improbable everywhere: CTranslate2 has tokens in its softmax only if they may be generated.
        improbable = [1, *range(max(tokenizer.get_vocab().values()) + 1, rows)]
        net.model.shared.weight[improbable] = -60 * bias / bias.norm() ** 2
        if family == "mbart" and seed % 2 == 0:
            net.final_logits_bias.normal_(std=0.5)
    net.generation_config.bad_words_ids = [[1]]
    net.generation_config.num_beams = 4
    net.generation_config.max_length = NEW_TOKENS + 1
    ends(net, tokenizer, family, lines, pair)
    net.to(dtype).save_pretrained(here, max_shard_size=shard)
    return here


def source_of(tokenizer, family, lines, language):
    """Lines as transformers gives them to the encoder."""
    tokenizer.src_lang = language
    return tokenizer(lines, return_tensors="pt", padding=True)


def ends(net, tokenizer, family, lines, pair):
    """Makes the end of a sentence so likely that translations have about a dozen tokens: most end by themselves, some do not."""
    batch = source_of(tokenizer, family, lines, pair[0])
    language = language_id(tokenizer, family, pair[1])
    # All states have the last norm's bias in common.
    bias, end = net.model.decoder.layer_norm.bias.data, net.model.shared.weight.data[2].clone()
    low, high = -20.0, 40.0
    for _ in range(14):
        middle = (low + high) / 2
        net.model.shared.weight.data[2] = end + middle * bias / bias.norm() ** 2
        out = net.generate(**batch, num_beams=4, max_length=NEW_TOKENS + 1, forced_bos_token_id=language)
        lengths = [((row[2:] != 1) & (row[2:] != 2)).sum().item() for row in out]
        low, high = (low, middle) if sum(lengths) / len(lines) < 12 else (middle, high)


def language_id(tokenizer, family, code):
    return tokenizer.get_lang_id(code) if family == "m2m" else tokenizer.convert_tokens_to_ids(code)


def generate(net, tokenizer, family, lines, pair, beam, penalty, stopping):
    found = []
    language = language_id(tokenizer, family, pair[1])
    for start in range(0, len(lines), 50):
        batch = source_of(tokenizer, family, lines[start : start + 50], pair[0])
        with torch.no_grad():
            output = net.generate(**batch, num_beams=beam, length_penalty=penalty, max_length=NEW_TOKENS + 1, early_stopping=stopping,
                                  forced_bos_token_id=language, return_dict_in_generate=True, output_scores=True, output_logits=True)
            if beam > 1:
                scores = output.sequences_scores
            else:
                # The language is forced: its probability does not count.
                tokens = output.sequences[:, 2:, None]
                steps = torch.stack(output.logits[1:], 1).log_softmax(-1).gather(2, tokens)
                scores = steps.where(tokens != 1, 0).sum((1, 2))
        for tokens, score in zip(output.sequences.tolist(), scores.tolist()):
            tokens = tokens[1:]
            if 2 in tokens:
                tokens = tokens[: tokens.index(2)]
            found.append(([token for token in tokens if token != 1], score))
    return found


def log_probabilities(net, tokenizer, family, pairs, languages):
    """Log-probabilities of every token of each target but its language, and of its end."""
    found = []
    language = language_id(tokenizer, family, languages[1])
    for source, target in pairs:
        batch = source_of(tokenizer, family, [source], languages[0])
        labels = [language, *tokenizer(target, add_special_tokens=False).input_ids, 2]
        with torch.no_grad():
            logits = net(**batch, decoder_input_ids=torch.tensor([[2, *labels[:-1]]])).logits
        probabilities = logits.log_softmax(-1)[0].gather(1, torch.tensor(labels)[:, None])[:, 0].tolist()
        found.append([0.0, *probabilities[1:]])
    return found


def check_pieces(mt, tokenizer, here, ours, lines):
    """Compares the pieces of lines: with those of sentencepiece, if the folder has its model, else with those of tokenizers."""
    vocabulary, model = tokenizer.get_vocab(), here / "sentencepiece.bpe.model"
    if model.exists():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        expected = [[piece if piece in vocabulary else "<unk>" for piece in processor.encode(line, out_type=str)] for line in lines]
    else:
        expected = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(lines, add_special_tokens=False).input_ids]
    found = [[piece if piece in vocabulary else "<unk>" for piece in line.split(" ") if piece]
             for line in lines_of([mt, "tokenize", "-q", "--model", ours], lines)]
    wrong = [(a, b) for a, b in zip(found, expected, strict=True) if a != b]
    print(f"  pieces: {len(lines)} lines, {len(wrong)} differ from {'sentencepiece' if model.exists() else 'tokenizers'}", flush=True)
    for a, b in wrong[:3]:
        print(f"    mt {a}\n       {b}")
    return len(wrong)


def check(mt, name, family, theirs, ours, pairs, lines, targets, options):
    """Compares an imported model with the folder it was imported from."""
    net, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(theirs, dtype=torch.float32).eval(), CLASSES[family][0].from_pretrained(theirs, **options)
    print(name)
    failed, vocabulary = 0, tokenizer.get_vocab()
    each = len(lines) // len(pairs)
    differences = [0.0]
    results = {}
    for number, pair in enumerate(pairs):
        own, own_targets = lines[number * each : (number + 1) * each], targets[number * each : (number + 1) * each]
        languages = ["--from", pair[0], "--to", pair[1]]
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / side for side in ("source", "target")]
            for file, text in zip(files, (own, own_targets)):
                file.write_text("".join(line + "\n" for line in text), encoding="utf-8")
            scored = lines_of([mt, "score", "-q", "--json", "--model", ours, *languages, "--src", str(files[0]), "--tgt", str(files[1])], [])
        expected = log_probabilities(net, tokenizer, family, list(zip(own, own_targets)), pair)
        for line, expected in zip(scored, expected, strict=True):
            probabilities = json.loads(line)["token_log_probs"]
            assert len(probabilities) == len(expected), (len(probabilities), len(expected))
            differences += [abs(a - b) for a, b in zip(probabilities, expected)]
        for beam, penalty, stopping in ((1, 0.0, True), (4, 1.0, True), (4, 1.0, "never")):
            search = ["--beam", str(beam), "--length-penalty", str(penalty), "--length-penalty-kind", "power", "--patience",
                      str(1 if stopping is True else 0), "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100"]
            found = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", ours, *languages, *search], own))
            found = [([vocabulary[piece] for piece in line["tokens"]], line["score"]) for line in found]
            of_search = results.setdefault(f"beam {beam}, length penalty {penalty}, early_stopping={stopping}", ([], []))
            of_search[0].extend(found)
            of_search[1].extend(generate(net, tokenizer, family, own, pair, beam, penalty, stopping))
    # NaN is the largest, which max() alone would pass over.
    largest = max(differences, key=lambda difference: (math.isnan(difference), difference))
    print(f"  log-probabilities of {len(targets)} given translations: largest difference {largest:.2e}")
    failed += not largest <= 1e-4
    for search, (found, expected) in results.items():
        failed += compare(search, found, expected)
    return failed


def check_ct2(mt, family, folder, ours, pairs, lines, tokenizer, legacy):
    """Compares the translations of CTranslate2 with those of `mt`."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=2)
    vocabulary, each, results = tokenizer.get_vocab(), len(lines) // len(pairs), {}
    for number, pair in enumerate(pairs):
        own = lines[number * each : (number + 1) * each]
        source, target = (tokenizer.convert_ids_to_tokens(language_id(tokenizer, family, code)) for code in pair)
        pieces = [[piece if piece in vocabulary else "<unk>" for piece in line.split(" ") if piece]
                  for line in lines_of([mt, "tokenize", "-q", "--model", ours], own)]
        tokens = [[*line, "</s>", source] if legacy else [source, *line] for line in pieces]
        for beam in (1, 4):
            # After what is given, CTranslate2 does not end at once. Without a length penalty, it ends only when its best translation has.
            search = ["--beam", str(beam), "--length-penalty", "0", "--patience", "50", "--max-length", str(NEW_TOKENS), "--max-length-ratio", "100",
                      "--min-length", "2"]
            found = map(json.loads, lines_of([mt, "translate", "-q", "--json", "--model", ours, "--from", pair[0], "--to", pair[1], *search], own))
            found = [([vocabulary[piece] for piece in line["tokens"]], line["log_prob"]) for line in found]
            output = translator.translate_batch(tokens, target_prefix=[[target]] * len(tokens), beam_size=beam, length_penalty=0, return_scores=True,
                                                max_decoding_length=NEW_TOKENS, min_decoding_length=2)
            # Its score does not count the probability of what is given, either.
            of_search = results.setdefault(f"CTranslate2, beam {beam}", ([], []))
            of_search[0].extend(found)
            of_search[1].extend(([vocabulary[piece] for piece in result.hypotheses[0]], result.scores[0]) for result in output)
    return sum(compare(search, found, expected, of_all=False) for search, (found, expected) in results.items())


CONFIG = """
[data]
train = [{{ source = "{folder}/train.source", target = "{folder}/train.target", source_language = "{pair[0]}", target_language = "{pair[1]}" }}]
valid = {{ source = "{folder}/train.source", target = "{folder}/train.target", source_language = "{pair[0]}", target_language = "{pair[1]}" }}
[train]
init = "{ours}"
batch_tokens = 2000
max_updates = 400
label_smoothing = 0.0
save_every = 400
schedule = {{ kind = "constant", learning_rate = 2e-3 }}
[valid]
every = 0
"""


def check_trimming(mt, folder, ours, pair, files):
    """Fine-tunes a model, and removes what its text does not need: the greedy translations of that text stay the same. A beam's may
    change where two are close: what the removed pieces had of the probability is shared out among the others. Those are only printed."""
    folder.mkdir()
    for side, file in zip(("source", "target"), files):
        lines = file.read_text(encoding="utf-8").split("\n")[:1000]
        (folder / f"train.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tune.toml").write_text(CONFIG.format(folder=folder, pair=pair, ours=ours), encoding="utf-8")
    run, small = folder / "run", folder / "small"
    subprocess.run([mt, "train", "-q", "--config", str(folder / "tune.toml"), "--run-dir", str(run)], check=True)
    report = subprocess.run([mt, "trim", str(run), "-q", "--json", "--keep-languages", ",".join(pair), "--keep-vocabulary-of", str(folder / "train.source"),
                             str(folder / "train.target"), "--out", str(small)], check=True, capture_output=True).stdout
    report = json.loads(report)
    source = (folder / "train.source").read_text(encoding="utf-8").split("\n")[:300]
    failed = 0
    for beam in ("1", "4"):
        results = [[(json.loads(line)["tokens"], 0.0) for line in lines_of([mt, "translate", "-q", "--json", "--model", str(model), "--beam", beam], source)]
                   for model in (run, small)]
        differ = compare(f"trimmed to {report['pieces']} of {report['pieces_before']} pieces, beam {beam}", results[1], results[0], of_all=False)
        failed += differ if beam == "1" else 0
    return failed


def main():
    mt, (files, words) = sys.argv[1], corpus()
    draw, failed = random.Random(1), 0
    real = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")[: PIECES // 2]]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        kinds = {kind: train(folder / kind, files, kind) for kind in ("unigram", "bpe")}
        for number, (family, shape, dtype, saved, shard, options, pairs) in enumerate(MODELS):
            # As in the real models: NLLB-200's and M2M-100's SentencePiece models are BPE, mBART's is a unigram model.
            model = kinds["unigram" if family == "mbart" else "bpe"]
            lines, targets = random_lines(draw, words[0], LINES * len(pairs)), random_lines(draw, words[1], LINES * len(pairs))
            theirs = make(folder, f"theirs-{number}", family, shape, dtype, saved, shard, options, model, number, lines[:60], pairs[0])
            ours = str(folder / f"ours-{number}")
            subprocess.run([mt, "import", "-q", str(theirs), "--out", ours], check=True)
            files_of = ", ".join(sorted(file.name for file in theirs.iterdir() if "model" in file.name or file.name == "tokenizer.json"))
            name = f"{family}, {shape}, {dtype}, {options}, {files_of}"
            tokenizer = CLASSES[family][0].from_pretrained(theirs, **options)
            failed += check(mt, name, family, theirs, ours, pairs, lines, targets, options)
            failed += check_pieces(mt, tokenizer, theirs, ours, real)
            again, ct2 = folder / f"again-{number}", folder / f"ct2-{number}"
            subprocess.run([mt, "export", "-q", ours, "--format", "hf", "--out", str(again)], check=True)
            assert type(AutoTokenizer.from_pretrained(again)).__name__ == CLASSES[family][0].__name__
            failed += check(mt, "  the same, exported again", family, again, ours, pairs, lines[: 6 * 10], targets[: 6 * 10], options)
            own, other = (CLASSES[family][0].from_pretrained(f, **options) for f in (theirs, again))
            assert own.get_vocab() == other.get_vocab()
            wrong = sum(a != b for a, b in zip(own(real).input_ids, other(real).input_ids))
            print(f"  pieces of transformers: {len(real)} lines, {wrong} differ in the exported folder")
            tensors, others = (dict(AutoModelForSeq2SeqLM.from_pretrained(f, dtype=torch.float32).state_dict()) for f in (theirs, again))
            # No token has the first two learnt positions.
            for name in [name for name in others if "embed_positions.weight" in name]:
                tensors[name][:2] = others[name][:2] = 0
            assert tensors.keys() == others.keys() and all(torch.equal(tensors[key], others[key]) for key in tensors)
            subprocess.run([mt, "export", "-q", ours, "--format", "ct2", "--out", str(ct2)], check=True)
            if number % 3 == 0:
                failed += check_trimming(mt, folder / f"trimmed-{number}", ours, pairs[0], files)
            failed += wrong + check_ct2(mt, family, ct2, ours, pairs, lines[: 6 * 20], tokenizer, options.get("legacy_behaviour"))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
