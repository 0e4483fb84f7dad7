//! The library's steps of normalising, splitting and decoding, one at a time, so that a text cannot grow without bound.
//!
//! Each step alone makes a text at most a few times as long, or announces its length. A file may have many steps.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tokenizers::{
    Decoder, DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use crate::console::warning;
use crate::error::Error;
use crate::limits;

/// A step of the library, or a sequence of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Bounded<S>(S);

/// The error for a text that has grown too much.
fn too_long() -> tokenizers::Error {
    "its steps make a text many times as long as it is".into()
}

/// What is as short may be put anywhere into a text, whose length is then known.
const SHORT: usize = 8;

/// Refuses to put `content` wherever it may be put into a text of `length` bytes, if that gives more than `most`.
fn check_replacing(length: usize, content: &str, most: usize) -> tokenizers::Result<()> {
    let longest = (length + 1).saturating_mul(content.len() + 1);
    if longest > most && content.len() > SHORT { Err(too_long()) } else { Ok(()) }
}

impl Normalizer for Bounded<NormalizerWrapper> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = limits::grown(text.get().len());
        normalise(&self.0, text, most).map_err(|error| {
            // The library ignores a normaliser's error, and would go on with what there is: this stops it. It is caught
            // where the library is called, as its panics are.
            std::panic::resume_unwind(Box::new(error.to_string()))
        })
    }
}

fn normalise(step: &NormalizerWrapper, text: &mut NormalizedString, most: usize) -> tokenizers::Result<()> {
    let length = text.get().len();
    match step {
        NormalizerWrapper::Sequence(steps) => {
            return steps.as_ref().iter().try_for_each(|step| normalise(step, text, most));
        }
        NormalizerWrapper::Replace(step) => check_replacing(length, &step.content, most)?,
        NormalizerWrapper::Precompiled(step) if step.normalize_string(text.get()).len() > most => {
            return Err(too_long());
        }
        _ => {}
    }
    step.normalize(text)?;
    if text.get().len() > most { Err(too_long()) } else { Ok(()) }
}

impl PreTokenizer for Bounded<PreTokenizerWrapper> {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        let most = limits::grown(length(text));
        split(&self.0, text, most)
    }
}

fn length(text: &PreTokenizedString) -> usize {
    text.get_splits(OffsetReferential::Normalized, OffsetType::None).iter().map(|(part, ..)| part.len()).sum()
}

fn split(step: &PreTokenizerWrapper, text: &mut PreTokenizedString, most: usize) -> tokenizers::Result<()> {
    if let PreTokenizerWrapper::Sequence(steps) = step {
        return steps.as_ref().iter().try_for_each(|step| split(step, text, most));
    }
    step.pre_tokenize(text)?;
    // No other step adds anything.
    let adds = matches!(step, PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Metaspace(_));
    if adds && length(text) > most { Err(too_long()) } else { Ok(()) }
}

/// The text of pieces.
pub(super) fn decode(decoder: &DecoderWrapper, pieces: Vec<String>) -> tokenizers::Result<String> {
    let most = limits::grown(pieces.iter().map(|piece| piece.len() + 1).sum());
    Ok(chain(decoder, pieces, most)?.concat())
}

fn chain(step: &DecoderWrapper, pieces: Vec<String>, most: usize) -> tokenizers::Result<Vec<String>> {
    let length = |pieces: &[String]| pieces.iter().map(|piece| piece.len() + 1).sum::<usize>();
    match step {
        DecoderWrapper::Sequence(steps) => {
            return steps.get_decoders().iter().try_fold(pieces, |pieces, step| chain(step, pieces, most));
        }
        DecoderWrapper::Replace(step) => check_replacing(length(&pieces), &step.content, most)?,
        _ => {}
    }
    // Some of the library's decoders take the last of the pieces without asking whether there is one.
    let pieces = if pieces.is_empty() { pieces } else { step.decode_chain(pieces)? };
    if length(&pieces) > most { Err(too_long()) } else { Ok(pieces) }
}

/// A message, given once, about text that cannot be encoded or decoded as a tokenizer's file requires.
#[derive(Default)]
pub(super) struct GivenUp {
    file: OnceLock<PathBuf>,
    is_said: AtomicBool,
}

impl GivenUp {
    /// Names the file that the tokenizer is read from.
    pub(super) fn set_file(&self, file: &Path) {
        self.file.get_or_init(|| file.to_path_buf());
    }

    /// Reports that `what` happened, unless it has reported before.
    pub(super) fn say(&self, what: &str, why: &Error) {
        if !self.is_said.swap(true, Ordering::Relaxed) {
            let file = self.file.get().map(|file| format!("{}: ", file.display())).unwrap_or_default();
            warning(format_args!("{file}{what}: {}", why.what()));
        }
    }
}
