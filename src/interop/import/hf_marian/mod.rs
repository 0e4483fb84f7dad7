//! A MarianMT folder of Hugging Face `transformers`, such as OPUS-MT's models: `config.json`, `generation_config.json`,
//! `model.safetensors`, and subwords: `source.spm`, `target.spm`, `vocab.json` and, if the target has its own,
//! `target_vocab.json`; or `tokenizer.json` and `tokenizer.tgt.json`, which `mt export` writes for our own tokenizers.
//!
//! All problems are reported together: unsupported settings in `config.json`, missing and superfluous tensors, and
//! missing files.

mod keys;
mod settings;
mod tensors;
mod vocabulary;

use std::path::Path;

use serde_json::{Map, Value};

use super::{Imported, layout_within, read};
use crate::checkpoint::CONFIG_FILE;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::model::Vocabulary;
use settings::Settings;

/// The weights.
pub const WEIGHTS: &str = "model.safetensors";
/// The weights in a form that is not read.
pub const PICKLE: &str = "pytorch_model.bin";
/// All files of a folder that we may use.
pub const FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    WEIGHTS,
    "source.spm",
    "target.spm",
    "tokenizer_config.json",
    "vocab.json",
    "target_vocab.json",
    vocabulary::TOKENIZER,
    tokenizers::TARGET,
];

/// Reads a folder.
///
/// # Errors
/// It is not such a folder, or its model is not supported; all problems are named.
pub fn import(directory: &Path) -> Result<Imported> {
    check_files(directory)?;
    let config_file = directory.join("config.json");
    let generation_file = directory.join("generation_config.json");
    let generation = if generation_file.exists() { Some(read_json(&generation_file)?) } else { None };
    let generation = generation.as_ref().map(|keys| (generation_file.as_path(), keys));
    let settings = Settings::read((&config_file, &read_json(&config_file)?), generation)?;
    let tokenizers = vocabulary::read_tokenizers(directory, &settings)?;
    let vocabulary = Vocabulary {
        source: settings.sizes[0],
        target: settings.sizes[1],
        source_padding: tokenizers.source.pad_id(),
        target_padding: tokenizers.target.pad_id(),
    };
    let mut config = settings.config;
    let source = &tokenizers.source;
    config.tokenizer.joint = settings.is_shared || tokenizers.is_one_vocabulary();
    config.tokenizer.kind = source.kind().unwrap_or(config.tokenizer.kind);
    if let Some(form) = source.form() {
        config.tokenizer.set_form(form);
    }
    if source.has_dropout() {
        config.tokenizer.tags = source.language_tags().into_iter().map(str::to_owned).collect();
        config.tokenizer.symbols = source.symbols().into_iter().map(str::to_owned).collect();
    }
    let stored = tensors::Stored::open(&directory.join(WEIGHTS))?;
    config.model.output_bias = stored.has_output_bias() || !config.model.output_padding;
    if let Some(sinusoid) = stored.sinusoid(&config.model) {
        config.model.sinusoid = sinusoid;
    }
    let layout = layout_within(&config.model, vocabulary, &directory.join(WEIGHTS))?;
    let values = stored.read(&config.model, settings.is_shared, vocabulary.target_padding, &layout)?;
    Ok(Imported { config, notes: notes(&tokenizers, settings.renormalizes_more), tokenizers, layout, values })
}

/// Notes on a `tokenizer.json` of others, and on scores that are not those of `transformers`.
fn notes(tokenizers: &Tokenizers, renormalizes_more: bool) -> Vec<String> {
    let source = &tokenizers.source;
    let is_foreign = source.sentencepiece().is_none() && source.kind().is_none();
    let foreign = "the tokenizer.json is not one that mt wrote: it is used unchanged, but without BPE-dropout, and its \
                   tags are treated as ordinary text";
    let more = "`renormalize_logits` takes the probability of all that `transformers` forbids: in mt, that of padding \
                alone; with other `bad_words_ids`, `no_repeat_ngram_size` or a least length, scores can be lower here";
    let is_spare = |tokenizer: &Tokenizer, id: u32| tokenizer.piece(id) == Some(&*vocabulary::spare_piece(id));
    let spare = |tokenizer: &Tokenizer| {
        (0..tokenizer.vocab_size() as u32).rev().take_while(|id| is_spare(tokenizer, *id)).count()
    };
    let spare = spare(source).max(spare(&tokenizers.target));
    let rows = (spare > 0).then(|| {
        format!(
            "the embedding has {spare} rows beyond the vocabulary: they keep their share of every probability, as in \
             `transformers`, but are never in a translation"
        )
    });
    let notes = [is_foreign.then_some(foreign), renormalizes_more.then_some(more)];
    notes.into_iter().flatten().map(str::to_owned).chain(rows).collect()
}

/// Names every file that is missing, and what to do about it.
fn check_files(directory: &Path) -> Result<()> {
    if !directory.is_dir() {
        let what =
            if directory.exists() { "this is neither a folder nor a .npz" } else { "there is no such directory" };
        let error = Error::failure(what).at(directory);
        return Err(error.help("name the folder of a MarianMT model, or the .npz of one of Marian's own"));
    }
    let is_there = |name: &str| directory.join(name).is_file();
    if is_there(CONFIG_FILE) {
        let error = Error::failure("this is already a model of mt").at(directory);
        return Err(error.help("use it as it is: mt translate --model DIR"));
    }
    if !is_there("checkpoint_best.pt") && ![WEIGHTS, PICKLE, "config.json", "vocab.json"].into_iter().any(is_there) {
        let what =
            "no model that mt could read: neither model.safetensors and config.json (transformers) nor a .npz (Marian)";
        return Err(Error::failure(what).at(directory).help("name the folder that contains these files"));
    }
    let mut errors = Vec::new();
    if !is_there(WEIGHTS) && is_there(PICKLE) {
        let what = "the weights are a pickle (pytorch_model.bin), which can run any code and is never read here";
        let help = "convert it where you trust it, in Python: from transformers import MarianMTModel; \
                    MarianMTModel.from_pretrained(\"DIR\").save_pretrained(\"DIR\")";
        errors.push(Error::failure(what).at(directory).help(help));
    } else if !is_there(WEIGHTS) {
        let help = if is_there("model.bin") {
            "this looks like a model of CTranslate2, which is not read back: import the model that it was made from"
        } else {
            "name the folder of a MarianMT model"
        };
        errors.push(Error::failure(format!("{WEIGHTS} is missing")).at(directory).help(help));
    }
    let subwords: &[&str] =
        if vocabulary::is_in_json(directory) { &[] } else { &["source.spm", "target.spm", "vocab.json"] };
    for name in ["config.json"].iter().chain(subwords).filter(|name| !is_there(name)) {
        let help = if is_there("checkpoint_best.pt") {
            "this is a folder of fairseq, whose weights are a pickle, which can run any code and is never read here"
        } else {
            "name the folder of a MarianMT model"
        };
        errors.push(Error::failure(format!("{name} is missing")).at(directory).help(help));
    }
    if errors.is_empty() { Ok(()) } else { Err(other_model(directory).unwrap_or_else(|| Error::many(errors))) }
}

/// The error for a folder of another kind of model, if its configuration says so: it has other files.
fn other_model(directory: &Path) -> Option<Error> {
    let file = directory.join("config.json");
    let config = read_json(&file).ok()?;
    let kind = config.get("model_type")?.as_str().filter(|kind| *kind != "marian")?;
    let error = Error::failure(format!("`model_type` is \"{kind}\", not \"marian\": mt has no such model")).at(file);
    Some(error.help("name the folder of a MarianMT model, such as OPUS-MT's, or the .npz of one of Marian's own"))
}

/// Reads a JSON object.
fn read_json(file: &Path) -> Result<Map<String, Value>> {
    serde_json::from_slice(&read(file)?).map_err(|error| {
        let what = format!("not a JSON object: {error}");
        Error::failure(what).at(file).caused_by(error).help("it is damaged: fetch it again")
    })
}
