"""Fine-tuning speed of Hugging Face transformers' Trainer on the processor, beside `mt train` with the same folder and text.

    python benches/transformers_train.py FOLDER --text train.en train.de --languages eng_Latn deu_Latn --rows 64 --updates 4
    python benches/transformers_train.py FOLDER … --low-rank 16        factors of rank 16, by peft

Prints target tokens a second of each update (without padding), and the peak of resident memory. Needs torch, transformers,
accelerate, sentencepiece, and peft for --low-rank.
"""

import argparse
import resource
import tempfile
import time

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)


class Speed(TrainerCallback):
    """Times each update, from its beginning to its end."""

    def __init__(self, tokens):
        self.tokens, self.start = tokens, 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        seconds = time.perf_counter() - self.start
        print(f"update {state.global_step}: {self.tokens[-1] / seconds:.1f} target tokens/s, {self.tokens[-1]} tokens, {seconds:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", nargs=2, required=True)
    parser.add_argument("--languages", nargs=2, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--low-rank", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, src_lang=arguments.languages[0], tgt_lang=arguments.languages[1])
    model = AutoModelForSeq2SeqLM.from_pretrained(arguments.model, dtype=torch.float32)
    if arguments.low_rank:
        import peft

        projections = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
        rank = arguments.low_rank
        model = peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=projections))
    count = arguments.rows * arguments.updates
    sources, targets = ([line.rstrip("\n") for line in open(file, encoding="utf-8")][:count] for file in arguments.text)
    examples = [tokenizer(source, text_target=target) for source, target in zip(sources, targets)]
    tokens, collate = [], DataCollatorForSeq2Seq(tokenizer)

    def batch(rows):
        tokens.append(sum(len(row["labels"]) for row in rows))
        return collate(rows)

    with tempfile.TemporaryDirectory() as folder:
        settings = Seq2SeqTrainingArguments(
            folder, per_device_train_batch_size=arguments.rows, max_steps=arguments.updates, learning_rate=1e-4,
            use_cpu=True, save_strategy="no", report_to=[], dataloader_num_workers=0, disable_tqdm=True, remove_unused_columns=False,
        )
        trainer = Seq2SeqTrainer(model=model, args=settings, train_dataset=examples, data_collator=batch)
        trainer.add_callback(Speed(tokens))
        trainer.train()
    print(f"peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
