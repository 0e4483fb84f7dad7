//! A model of Marian itself: `model.npz`, with the options it was trained with inside, and the vocabularies and search
//! options that its `decoder.yml` names. OPUS-MT's own releases are of this kind.
//!
//! Marian begins a translation with a vector of zeros and has no piece for padding. Here padding is added at the end of
//! the vocabulary, with an embedding of zeros, and serves as the start token.

mod files;
mod npz;
mod settings;
mod tensors;
mod vocabulary;

use std::path::Path;

use super::{Format, Imported, Recognition, hf, layout_within};
use crate::error::{Error, Result};
use crate::interop::yaml;
use crate::model::Vocabulary;
use files::Files;
use npz::Npz;
use settings::{Search, Settings};

/// A model of Marian's own.
pub(super) const FORMAT: Format =
    Format { name: "Marian", recognition: Recognition::Files { files: "a .npz", is_model }, read: import };

/// Whether this is a `.npz`, or a folder that has one and is not a folder of `transformers`.
fn is_model(source: &Path) -> bool {
    let is_transformers = [hf::CONFIG, hf::WEIGHTS].iter().any(|name| source.join(name).exists());
    files::is_weights(source) || (!is_transformers && !files::weights_in(source).is_empty())
}

/// Reads a model: its `.npz`, or the folder that it is in.
///
/// # Errors
/// Files are missing or the model is not supported; all problems are named.
fn import(source: &Path) -> Result<Imported> {
    let files = Files::find(source)?;
    let stored = Npz::open(&files.weights)?;
    let options = yaml::table(&stored.options()?).map_err(|error| {
        let what = "the options inside it, special:model.yml, cannot be read";
        error.context(what).at(&files.weights).help("it is damaged: fetch it again")
    })?;
    let mut search = Search::default();
    if let Some(file) = &files.decoder {
        search.read(file)?;
    }
    let settings = Settings::read(&files.weights, &options)?;
    let tokenizers = vocabulary::read_tokenizers(&files, &settings, search.allows_unknown)?;
    let vocabulary = Vocabulary {
        source: tokenizers.source.vocab_size(),
        target: tokenizers.target.vocab_size(),
        source_padding: tokenizers.source.pad_id(),
        target_padding: tokenizers.target.pad_id(),
    };
    let mut config = settings.config;
    search.apply(&mut config.decode);
    config.tokenizer.joint = settings.arrays.shares_embeddings || tokenizers.is_one_vocabulary();
    config.tokenizer.kind = tokenizers.source.kind().unwrap_or(config.tokenizer.kind);
    config.tokenizer.vocab_size = vocabulary.target.max(300);
    let length =
        std::fs::metadata(&files.weights).map_err(|error| Error::io("read the model", &files.weights, error))?;
    let layout = layout_within(&config.model, vocabulary, (&files.weights, length.len()))?;
    let values = tensors::read(&stored, &config.model, settings.arrays, &layout)?;
    Ok(Imported { config, tokenizers, layout, values, notes: notes(&files) })
}

/// Notes on the choice of the model, and for models without SentencePiece.
fn notes(files: &Files) -> Vec<String> {
    let mut notes = Vec::new();
    if !files.passed_over.is_empty() {
        let (taken, others) = (files.weights.display(), files.passed_over.join(", "));
        notes.push(format!(
            "imported {taken}, the last model of its training; to take another ({others}), name it: mt import \
             FILE.npz --out DIR"
        ));
    }
    if files.models.is_none() && !files.vocabularies.iter().any(|file| files::is_model(file)) {
        notes.push(
            "no SentencePiece model belongs to it, so it reads and writes text that is split into its pieces; if it \
             was made with source.spm and target.spm, put them beside the .npz and import it again"
                .to_owned(),
        );
    }
    notes
}
