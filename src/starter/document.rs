//! The configuration as text, with the reason for each choice as a comment.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::recipe::{Recipe, Schedule};
use super::survey::Survey;
use crate::escape::{in_one_line, shell_word, shown_path};
use crate::model::Preset;
use crate::notice::grouped;

/// The text that a configuration names.
pub(super) struct Named {
    /// Source and target to train on.
    pub train: [String; 2],
    /// Source and target to validate on.
    pub valid: [String; 2],
    /// Pairs of the former that were taken for the latter.
    pub held_out: usize,
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The two files of a corpus.
fn corpus([source, target]: &[String; 2]) -> String {
    format!("{{ source = {}, target = {} }}", quoted(source), quoted(target))
}

/// The configuration for text that came from `given`. `name` is that of its file, without its extension.
pub(super) fn text(given: &[PathBuf; 2], named: &Named, survey: &Survey, recipe: &Recipe, name: &str) -> String {
    let mut text = String::new();
    let [source, target] = [&given[0], &given[1]].map(|path| shown_path(path));
    let word = |text: String| in_one_line(&shell_word(Path::new(&text))).into_owned();
    let (file, run) = (word(format!("{name}.toml")), word(format!("runs/{name}")));
    let pairs = grouped(survey.pairs);
    let _ = write!(
        text,
        "# Translates from {source} to {target}: a start, made by `mt init` for {pairs} pairs.\n\
         #\n\
         #   mt check --config {file}     problems of the text, and how long training takes\n\
         #   mt train --config {file}     trains; Ctrl-C stops and saves, --resume continues\n\
         #   mt translate --model {run} \"…\"\n\
         #\n\
         # `configs/reference.toml` explains every key. A change of [tokenizer] or [model] needs a new run.\n\n",
    );
    data(&mut text, named, recipe);
    tokenizer(&mut text, survey, recipe);
    model(&mut text, &pairs, recipe);
    train(&mut text, recipe);
    valid(&mut text, recipe);
    text
}

fn data(text: &mut String, named: &Named, recipe: &Recipe) {
    *text += "[data]\n";
    if named.held_out > 0 {
        let _ = writeln!(
            text,
            "# All pairs but {}, which were drawn at random for validation. None of their lines is in the training\n\
             # text, not even with other case or punctuation.",
            grouped(named.held_out)
        );
    }
    let _ = writeln!(text, "train = [{}]\nvalid = {}", corpus(&named.train), corpus(&named.valid));
    *text += "# Text that neither training nor validation has seen, for `mt eval --model`:\n\
              # test = { source = \"test.source\", target = \"test.target\" }\n";
    if recipe.max_length != 100 {
        let left_out = match recipe.left_out {
            0 => String::new(),
            count => format!(": about {}", grouped(count)),
        };
        let _ = writeln!(text, "# Some pairs are long. Those of more subwords than this are left out{left_out}.");
        let _ = writeln!(text, "max_length = {}", recipe.max_length);
    }
    text.push('\n');
}

fn tokenizer(text: &mut String, survey: &Survey, recipe: &Recipe) {
    let _ = writeln!(
        text,
        "[tokenizer]\n# More text supports more subwords. Too many rare ones would be learnt badly.\nvocab_size = {}",
        recipe.vocab_size
    );
    if recipe.joint {
        *text += "# Both sides are in the same script, so they share names and numbers.\njoint = true\n";
    } else {
        let names = survey.sides.each_ref().map(|side| side.script().map_or("no letters", |script| script.full_name()));
        let _ = writeln!(text, "# The sides share few letters ({} and {}).\njoint = false", names[0], names[1]);
    }
    if recipe.keeps_wide_marks {
        *text += "# Full-width punctuation stays as it is.\nnormalization = \"nfc\"\n";
    }
    text.push('\n');
}

fn model(text: &mut String, pairs: &str, recipe: &Recipe) {
    let (layers, widths) = match recipe.preset {
        Preset::Tiny => ("4+4", "128/256"),
        Preset::Small => ("6+6", "512/1024"),
        Preset::Base => ("6+6", "512/2048"),
        Preset::Big => ("6+6", "1024/4096"),
    };
    let _ = writeln!(text, "[model]\n# {layers} layers, {widths} wide.");
    *text += match (recipe.preset, recipe.tier) {
        (Preset::Tiny, ..100_001) => "# With so little text, a larger model would memorise it.\n",
        (Preset::Tiny, _) => {
            "# The largest that trains in hours without a GPU; \"transformer-small\" is better, and takes far longer.\n"
        }
        (Preset::Small, 2_000_000..) => {
            "# Without a GPU, and `mt init` found none, even this takes weeks. On one, choose \"transformer-base\".\n"
        }
        _ => "",
    };
    let _ = writeln!(text, "preset = \"{}\"", recipe.preset);
    let _ = writeln!(
        text,
        "# The less text ({pairs} pairs) for the model's size, the more dropout it needs.\ndropout = {}\n",
        recipe.dropout
    );
}

fn train(text: &mut String, recipe: &Recipe) {
    *text += "[train]\n";
    let batch = recipe.batch_tokens * recipe.accumulate;
    let _ = writeln!(
        text,
        "# Up to {} tokens an update. If memory is short, halve batch_tokens and double accumulate.",
        grouped(batch)
    );
    let _ = writeln!(text, "batch_tokens = {}\naccumulate = {}", recipe.batch_tokens, recipe.accumulate);
    let _ = writeln!(
        text,
        "# At most about {} passes over the text: training ends earlier if validation no longer improves.",
        grouped(recipe.epochs.round().max(1.0) as usize)
    );
    let _ = writeln!(text, "max_updates = {}\nsave_every = {}", recipe.max_updates, recipe.every);
    *text += "# The mean of the last checkpoints is usually better than each of them.\naverage_last = 10\n\n";
    *text += "[train.schedule]\n";
    let _ = match recipe.schedule {
        Schedule::InverseSqrt { learning_rate, warmup } => {
            writeln!(text, "kind = \"inverse_sqrt\"\nlearning_rate = {learning_rate}\nwarmup = {warmup}\n")
        }
        Schedule::Noam { warmup } => writeln!(text, "# The paper's.\nkind = \"noam\"\nwarmup = {warmup}\n"),
    };
}

fn valid(text: &mut String, recipe: &Recipe) {
    let _ = writeln!(text, "[valid]\nevery = {}", recipe.every);
    if let Some(tokenize) = recipe.tokenize {
        let _ = writeln!(text, "# How BLEU splits a language without spaces.\ntokenize = \"{tokenize}\"");
    }
    *text += "# Training ends after so many validations without improvement.\npatience = 10\n\n\
              [decode]\nbeam = 5\nlength_penalty = 1.0\n";
    if recipe.on_gpu {
        *text +=
            "\n[runtime]\n# bfloat16 is faster on a GPU, and models have been about as good.\nprecision = \"bf16\"\n";
    }
}
