"""Writes comet/: models of COMET's classes with random weights, and the scores that unbabel-comet gives.

    pip install unbabel-comet==2.2.7 --no-deps
    pip install torch==2.11.0 "transformers==4.57.6" entmax==1.3 pytorch-lightning==2.6.6 torchmetrics==1.9.0 \
        jsonargparse pandas scipy sacrebleu sentencepiece==0.2.3 protobuf lxml
    cd tests/golden && python comet_models.py

The encoder's vocabulary is learnt from the quickstart corpus. Positions are few, so that the lines that are too long
for the encoder stay short.
"""

import json
import shutil
from pathlib import Path

import pytorch_lightning as lightning
import sentencepiece
import torch
import yaml
from comet.models import str2model
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

FOLDER = Path("comet")
ENCODER = FOLDER / "encoder"
POSITIONS = 48

CASES = {
    "regression": ("regression_metric", dict(pool="avg", layer="mix", layer_transformation="sparsemax", layer_norm=False)),
    "normalised": (
        "regression_metric",
        dict(pool="avg", layer="mix", layer_transformation="softmax", layer_norm=True, activations="Sigmoid", final_activation="Sigmoid"),
    ),
    "max": ("regression_metric", dict(pool="max", layer="mix", layer_transformation="sparsemax_patch", layer_norm=False)),
    "first": ("regression_metric", dict(pool="cls", layer=1)),
    "referenceless": ("referenceless_regression_metric", dict(pool="avg", layer="mix", layer_transformation="softmax", layer_norm=True)),
    "kiwi": (
        "unified_metric",
        dict(input_segments=["mt", "src"], sent_layer="mix", layer_transformation="sparsemax_patch", layer_norm=False, word_layer=2, word_level_training=True),
    ),
    "unified": ("unified_metric", dict(input_segments=["mt", "src", "ref"], sent_layer="mix", layer_transformation="sparsemax", layer_norm=True, word_layer=2)),
    "reference_alone": ("unified_metric", dict(input_segments=["mt", "ref"], sent_layer=2, layer_norm=False, word_layer=2)),
}

# Source, translation, two references.
LINES = [
    ("the old woman sees a small dog", "die alte Frau sieht einen kleinen Hund", "eine alte Frau sieht einen Hund", "die Frau sieht einen kleinen Hund"),
    ("a dog", "ein Hund", "ein Hund", "der Hund"),
    ("", "ein Hund", "", "Hund"),
    ("the dog", "", "der Hund", ""),
    ("", "", "", ""),
    ("   two  spaces ", " zwei\tund  mehr ", "zwei", "mehr  "),
    ("ﬁne Ｗｉｄｅ ½ ①", "naïve café e\u0301 ﬀ", "naïve cafe\u0301", "Å\u212b"),
    ("日本語の文です。", "emoji 👩‍👩‍👧 \U0001f600 zero\u200bwidth", "ไทย العربية \u202eabc", "a\u00a0b\u3000c\u2028d"),
    ("quotes \"x\" 'y' <b> & ...", "»so« – und – so …", "1,000.00 % €", "(a) [b] {c}"),
    ("dog " * 60, "Hund " * 70, "Hund " * 20, "die kleine Frau " * 30),
    ("the small woman " * 12, "die kleine Frau " * 9, "kleine Frau " * 40, "x"),
]


def make_encoder():
    """The files of a small XLM-RoBERTa."""
    ENCODER.mkdir(parents=True)
    corpus = Path("../../data/quickstart")
    files = ",".join(str(corpus / name) for name in ("train.en", "train.de"))
    sentencepiece.SentencePieceTrainer.train(
        input=files, model_prefix=str(ENCODER / "sentencepiece.bpe"), vocab_size=150, model_type="unigram",
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2, normalization_rule_name="nmt_nfkc",
    )
    (ENCODER / "sentencepiece.bpe.vocab").unlink()
    tokenizer = XLMRobertaTokenizerFast(vocab_file=str(ENCODER / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(ENCODER)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=POSITIONS + 2, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0,
        eos_token_id=2,
    )
    config.save_pretrained(ENCODER)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (ENCODER / name).unlink()


def make_model(name):
    """A model of a class, saved as Lightning does."""
    kind, settings = CASES[name]
    torch.manual_seed(len(name))
    model = str2model[kind](
        encoder_model="XLM-RoBERTa", pretrained_model=str(ENCODER), load_pretrained_weights=False,
        local_files_only=True, hidden_sizes=[20, 10], train_data=["train.csv"], validation_data=[], **settings,
    )
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            elif "LayerNorm.weight" in parameter_name:
                parameter.normal_(1, 0.1)
            elif "gamma" in parameter_name:
                parameter.fill_(1.3)
            else:
                parameter.normal_(0, 0.3)
    folder = FOLDER / name
    (folder / "checkpoints").mkdir(parents=True)
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_epochs=1)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt", weights_only=True)
    settings = {**model.hparams, "class_identifier": kind}
    (folder / "hparams.yaml").write_text(yaml.safe_dump(settings))
    return model.eval()


def scores(model, reference):
    """The score of each line with a reference stream, each line alone: padding changes float32's rounding."""
    result = []
    for line in LINES:
        sample = {"src": line[0], "mt": line[1], "ref": line[2 + reference]}
        with torch.no_grad():
            batch = model.prepare_sample([sample], stage="predict")
            outputs = [model.forward(**each) for each in batch] if isinstance(batch, tuple) else [model.forward(**batch)]
        result.append(sum(float(output.score[0]) for output in outputs) / len(outputs))
    return result


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    make_encoder()
    expected = {}
    for name in CASES:
        model = make_model(name)
        expected[name] = [scores(model, reference) for reference in range(2)]
    text = {"lines": LINES, "scores": expected}
    (FOLDER / "scores.json").write_text(json.dumps(text, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
