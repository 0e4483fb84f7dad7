//! A MarianMT folder of Hugging Face `transformers`, such as OPUS-MT's models: `config.json`, `generation_config.json`,
//! `model.safetensors`, and subwords: `source.spm`, `target.spm`, `vocab.json` and, if the target has its own,
//! `target_vocab.json`; or `tokenizer.json` and `tokenizer.tgt.json`, which `mt export` writes for our own tokenizers.
//!
//! All problems are reported together: unsupported settings in `config.json`, missing and superfluous tensors.

mod keys;
mod settings;
mod tensors;
mod vocabulary;

use std::path::Path;

use super::transformers::{CONFIG, Family, GENERATION, WEIGHTS, read_json};
use super::{Format, Imported, Recognition, layout_within, read};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::Result;
use crate::model::Vocabulary;
use settings::Settings;

/// The MarianMT family of `transformers`.
pub(super) const FORMAT: Format = Format {
    name: "MarianMT (OPUS-MT)",
    recognition: Recognition::Transformers(Family {
        model_type: "marian",
        subwords: &[&["source.spm", "target.spm", "vocab.json"], &[vocabulary::TOKENIZER]],
        optional: &["tokenizer_config.json", "target_vocab.json", tokenizers::TARGET],
        version: 3,
    }),
    read: import,
};

/// Reads a folder, which has all files that it needs.
///
/// # Errors
/// Its model is not supported; all problems are named.
fn import(directory: &Path) -> Result<Imported> {
    let config_file = directory.join(CONFIG);
    let generation_file = directory.join(GENERATION);
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
