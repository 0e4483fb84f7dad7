//! Folders of Hugging Face `transformers` with translation models that descend from BART or T5: `config.json`,
//! `generation_config.json`, the weights (`model.safetensors`, or the files that `model.safetensors.index.json` lists),
//! and subwords.
//!
//! - MarianMT (OPUS-MT) has `source.spm`, `target.spm`, `vocab.json` and, if the target has its own,
//!   `target_vocab.json`; or `tokenizer.json` and `tokenizer.tgt.json`, which `mt export` writes for our own subwords.
//! - M2M-100 (to which NLLB-200 belongs) and mBART-50 have `sentencepiece.bpe.model`, M2M-100 with `vocab.json`; or
//!   `tokenizer.json`.
//! - T5 (to which MADLAD-400 belongs) and mT5 have `spiece.model`.
//!
//! All problems are reported together: unsupported settings in `config.json`, missing and superfluous tensors.

mod folder;
mod keys;
mod marian_vocabulary;
mod multilingual_vocabulary;
mod settings;
mod t5_vocabulary;
mod tensors;
mod weights;

use std::path::Path;

pub use folder::{CONFIG, Family, INDEX, WEIGHTS, Weights, format_of};
pub(super) use folder::{check_folder, other_program};
pub(crate) use weights::WeightFiles;
pub use weights::listed;

use super::{Format, Imported, Recognition, layout_within, read};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::model::{Tie, Vocabulary};
use folder::{GENERATION, read_json};
use settings::Settings;

/// What kind of model a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    /// Post-norm, with sines and cosines in halves.
    Marian,
    /// Pre-norm, with sines and cosines as in tensor2tensor, after the position of padding.
    M2m100,
    /// Pre-norm, with learned positions and a norm of the embeddings.
    Mbart,
    /// Pre-norm by the root mean square, with relative positions and without biases.
    T5,
}

/// The MarianMT family.
pub(super) const MARIAN: Format = Format {
    name: "MarianMT (OPUS-MT)",
    recognition: Recognition::Transformers(Family {
        model_type: "marian",
        subwords: &[&["source.spm", "target.spm", "vocab.json"], &[marian_vocabulary::TOKENIZER]],
        optional: &["tokenizer_config.json", "target_vocab.json", tokenizers::TARGET, marian_vocabulary::ADDED],
        version: 4,
    }),
    read: |directory| import(directory, Architecture::Marian),
};

/// The M2M-100 family, to which NLLB-200 belongs.
pub(super) const M2M_100: Format = Format {
    name: "M2M-100 (NLLB-200)",
    recognition: Recognition::Transformers(Family {
        model_type: "m2m_100",
        subwords: multilingual_vocabulary::FORMS,
        optional: multilingual_vocabulary::OPTIONAL,
        version: 2,
    }),
    read: |directory| import(directory, Architecture::M2m100),
};

/// The mBART family, of which mBART-50 is read.
pub(super) const MBART: Format = Format {
    name: "mBART-50",
    recognition: Recognition::Transformers(Family {
        model_type: "mbart",
        subwords: multilingual_vocabulary::FORMS,
        optional: multilingual_vocabulary::OPTIONAL,
        version: 2,
    }),
    read: |directory| import(directory, Architecture::Mbart),
};

/// The T5 family, to which MADLAD-400 belongs.
pub(super) const T5: Format = t5("T5 (MADLAD-400)", "t5");

/// Multilingual T5 models.
pub(super) const MT5: Format = t5("mT5", "mt5");

const fn t5(name: &'static str, model_type: &'static str) -> Format {
    let family = Family { model_type, subwords: t5_vocabulary::FORMS, optional: t5_vocabulary::OPTIONAL, version: 2 };
    Format {
        name,
        recognition: Recognition::Transformers(family),
        read: |directory| import(directory, Architecture::T5),
    }
}

/// Reads a folder, which has all files that it needs.
///
/// # Errors
/// Its model is not supported; all problems are named.
fn import(directory: &Path, architecture: Architecture) -> Result<Imported> {
    let config_file = directory.join(CONFIG);
    let generation_file = directory.join(GENERATION);
    let generation = if generation_file.exists() { Some(read_json(&generation_file)?) } else { None };
    let generation = generation.as_ref().map(|keys| (generation_file.as_path(), keys));
    let settings = Settings::read(architecture, (&config_file, &read_json(&config_file)?), generation)?;
    let tokenizers = match architecture {
        Architecture::Marian => marian_vocabulary::read_tokenizers(directory, &settings)?,
        Architecture::M2m100 | Architecture::Mbart => multilingual_vocabulary::read_tokenizers(directory, &settings)?,
        Architecture::T5 => t5_vocabulary::read_tokenizers(directory, &settings)?,
    };
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
    if source.has_dropout() && source.languages().is_empty() {
        config.tokenizer.tags = source.language_tags().into_iter().map(str::to_owned).collect();
        config.tokenizer.symbols = source.symbols().into_iter().map(str::to_owned).collect();
    }
    if let Some(id) = settings.language {
        let languages = source.languages();
        let known = languages.iter().find(|(_, other)| *other == id);
        config.decode.target_language = match known {
            Some((code, _)) => Some((*code).to_owned()),
            None => {
                let what = format!("`forced_bos_token_id` is {id}, which is not one of the model's languages");
                return Err(Error::failure(what).at(directory));
            }
        };
    }
    // What `mt export` stored may have been changed since.
    let languages: Vec<&str> = source.languages().into_iter().map(|(code, _)| code).collect();
    for language in [&mut config.decode.source_language, &mut config.decode.target_language] {
        if !languages.is_empty() && language.as_deref().is_some_and(|code| !languages.contains(&code)) {
            *language = None;
        }
    }
    let weights = WeightFiles::open(directory)?;
    let (bytes, path) = (weights.bytes(), weights.path.clone());
    let stored = tensors::Stored::new(weights, architecture, settings.scales_output);
    if architecture == Architecture::T5 && !stored.has_own_output() {
        config.model.tie = Tie::All;
    }
    if architecture == Architecture::Marian && stored.has_empty_padding(settings.pad) {
        config.model.output_padding = false;
    }
    config.model.output_bias = stored.has_output_bias() || !config.model.output_padding;
    if architecture == Architecture::Marian
        && let Some(sinusoid) = stored.sinusoid(&config.model)
    {
        config.model.sinusoid = sinusoid;
    }
    let layout = layout_within(&config.model, vocabulary, (&path, bytes))?;
    let values = stored.read(&config.model, settings.is_shared, vocabulary.target_padding, &layout)?;
    let mut notes = notes(&tokenizers, settings.renormalizes_more);
    notes.extend(settings.notes);
    Ok(Imported { config, notes, tokenizers, layout, values })
}

/// Notes on a `tokenizer.json` of others, and on scores that are not those of `transformers`.
fn notes(tokenizers: &Tokenizers, renormalizes_more: bool) -> Vec<String> {
    let source = &tokenizers.source;
    let is_foreign = source.sentencepiece().is_none() && source.kind().is_none() && source.languages().is_empty();
    let foreign = "the tokenizer.json is not one that mt wrote: it is used unchanged, but without BPE-dropout, and its \
                   tags are treated as ordinary text";
    let more = "`renormalize_logits` takes the probability of all that `transformers` forbids: in mt, that of padding \
                alone; with other `bad_words_ids`, `no_repeat_ngram_size` or a least length, scores can be lower here";
    let is_spare = |tokenizer: &Tokenizer, id: u32| tokenizer.piece(id) == Some(&*spare_piece(id));
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

/// The most rows that an embedding has beyond its vocabulary: some programs round its size up.
const MOST_SPARE_ROWS: usize = 1024;

/// Our name for a row of an embedding that has no piece: no text has it, and it is never in a translation.
fn spare_piece(id: u32) -> String {
    format!("<unused_{id}>")
}
