"""COMET of translations by mt and by unbabel-comet, on a model of the real size with random weights.

    pip install unbabel-comet==2.2.7 transformers==4.57.6 torch==2.11.0 sentencepiece==0.2.3
    python benches/bench_comet.py target/release/mt --src source.en --hyp system.de --ref reference.de

It writes the model (2.3 GB) into --work, by default bench-comet in the present folder, and uses it again. The encoder's
vocabulary is learnt from the lines themselves. Each program's time for scoring is given without that of loading: for
mt, the whole command's minus that of the first line alone.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

KIND = "regression_metric"


def make(folder, lines):
    """A random wmt22-comet-da, saved as Lightning does."""
    import pytorch_lightning
    import sentencepiece
    import yaml
    from comet.models import str2model
    from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    text = encoder / "text"
    text.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(encoder / "sentencepiece.bpe"), vocab_size=20000, hard_vocab_limit=False,
        model_type="unigram", unk_id=0, bos_id=1, eos_id=2, pad_id=-1, minloglevel=2,
    )
    tokenizer = XLMRobertaTokenizerFast(vocab_file=str(encoder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(encoder)
    XLMRobertaConfig(
        vocab_size=250002, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
    ).save_pretrained(encoder)
    model = str2model[KIND](
        encoder_model="XLM-RoBERTa", pretrained_model=str(encoder), load_pretrained_weights=False, layer="mix",
        layer_transformation="sparsemax", layer_norm=False, hidden_sizes=[3072, 1024], train_data=["x.csv"],
        validation_data=[],
    )
    (folder / "checkpoints").mkdir()
    trainer = pytorch_lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt", weights_only=True)
    (folder / "hparams.yaml").write_text(yaml.safe_dump({**model.hparams, "class_identifier": KIND}))


def original(folder, texts, threads):
    """Seconds and scores of unbabel-comet, on the processor."""
    import torch
    from comet import load_from_checkpoint

    torch.set_num_threads(threads)
    model = load_from_checkpoint(str(folder / "checkpoints" / "model.ckpt"), local_files_only=True).eval()
    samples = [dict(zip(("src", "mt", "ref"), line)) for line in zip(*texts)]
    start = time.time()
    output = model.predict(samples, batch_size=16, gpus=0, num_workers=0, progress_bar=False)
    return time.time() - start, output.scores


def ours(arguments, folder, precision, files):
    """Seconds and scores of mt."""
    command = [arguments.mt, "eval", "-q", "--json", "--sentence-level", "--threads", str(arguments.threads)]
    command += ["--comet", str(folder), "--comet-precision", precision]
    for flag, file in zip(("--src", "--hyp", "--ref"), files):
        command += [flag, str(file)]
    start = time.time()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.time() - start, [json.loads(line)["comet"]["score"] for line in output.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mt")
    for name in ("src", "hyp", "ref"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--work", type=Path, default=Path("bench-comet"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    files = [arguments.src, arguments.hyp, arguments.ref]
    texts = [file.read_text().splitlines() for file in files]
    folder = arguments.work
    if not folder.exists():
        make(folder, sum(texts, []))
    single = [folder / f"first-{number}" for number in range(3)]
    for file, lines in zip(single, texts):
        file.write_text(lines[0] + "\n")
    seconds, differences = {}, {}
    for _ in range(arguments.rounds):
        taken, expected = original(folder, texts, arguments.threads)
        seconds.setdefault("unbabel-comet", []).append(taken)
        for precision in ("f32", "bf16", "int8"):
            # Twice: a virtual machine may take long to give memory for the first time.
            loading = [ours(arguments, folder, precision, single)[0] for _ in range(2)][1]
            whole, scores = ours(arguments, folder, precision, files)
            seconds.setdefault(precision, []).append(whole - loading)
            differences[precision] = max(abs(a - b) for a, b in zip(scores, expected))
    base = statistics.median(seconds["unbabel-comet"])
    for name, times in seconds.items():
        middle = statistics.median(times)
        difference = f", largest difference of a line {differences[name]:.1e}" if name in differences else ""
        print(f"{name}: {len(texts[0]) / middle:.2f} segments/s, {base / middle:.2f} times{difference}")


if __name__ == "__main__":
    main()
