//! Tokenizers from files, and from what is in them.

use std::path::Path;

use super::bpe::Bpe;
use super::languages::{self, Languages, Multilingual};
use super::library::Library;
use super::sentencepiece::{self, OwnIds, SentencePiece};
use super::words::{self, Words};
use super::{Codes, Tokenizer, codes, components};
use crate::error::{Error, Result};
use crate::foreign::refuse_many_values;
use crate::{file, limits};

/// The bytes of a tokenizer's file.
fn read(path: &Path) -> Result<Vec<u8>> {
    file::read_at_most(path, limits::TOKENIZER_BYTES).map_err(|error| Error::io("read the tokenizer", path, error))
}

impl Tokenizer {
    /// As [`Tokenizer::load`]; or, of a file of codes, a tokenizer with every piece that these can make.
    ///
    /// # Errors
    /// As for [`Tokenizer::load`].
    pub fn load_or_codes(path: &Path) -> Result<Self> {
        if !Codes::is_one(&read(path)?) {
            return Self::load(path);
        }
        let codes = Codes::load(path, None, 0)?;
        Self::from_json(words::file_with_codes(codes.pieces(), &codes)?)
    }

    /// Reads a `tokenizer.json`, a SentencePiece model, or our JSON of one.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or is one that mt cannot use. The error names the file.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = read(path)?;
        let help = "name a tokenizer.json, a SentencePiece .model, or what mt wrote";
        let new = Self::from_bytes(bytes).map_err(|error| match error.helps() {
            Some(_) => error.at(path),
            None => error.at(path).help(help),
        })?;
        if let Some(given_up) = new.engine.given_up() {
            given_up.set_file(path);
        }
        Ok(new)
    }

    /// Reads the contents of a file; see [`Tokenizer::load`].
    ///
    /// # Errors
    /// As for [`Tokenizer::load`], without a file to name.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let bytes = file::without_mark(bytes);
        if bytes.is_empty() {
            return Err(Error::failure("this is not a tokenizer: it is empty"));
        }
        // A SentencePiece model begins with a line feed, the protobuf tag of its first field.
        if bytes.trim_ascii_start().starts_with(b"{") {
            let json = String::from_utf8(bytes).map_err(|error| {
                Error::failure("this is not a tokenizer.json: it is not UTF-8 text").caused_by(error)
            })?;
            return Self::from_json(json);
        }
        if Codes::is_one(&bytes) {
            let error =
                Error::failure("these are codes of subword-nmt or fastBPE, which have no vocabulary of their own");
            return Err(error.help("leave `path` out, and set tokenizer.kind = \"subword-nmt\" and `tokenizer.codes`"));
        }
        // Every such model has bytes that are no text.
        if !bytes.iter().any(|byte| byte.is_ascii_control() && !b"\t\n\r".contains(byte))
            && std::str::from_utf8(&bytes).is_ok()
        {
            return Err(Error::failure("this is text, but not a tokenizer.json, nor codes of subword-nmt or fastBPE"));
        }
        let engine = SentencePiece::from_file(&bytes)?;
        Ok(Self { json: engine.to_json()?, engine: Box::new(engine) })
    }

    /// A SentencePiece model whose pieces have other ids than its own, as Marian's have.
    ///
    /// # Errors
    /// It is no such model, or the ids contradict each other.
    pub fn from_sentencepiece(model: &[u8], ids: OwnIds) -> Result<Self> {
        let engine = SentencePiece::with_ids(model, ids)?;
        Ok(Self { json: engine.to_json()?, engine: Box::new(engine) })
    }

    /// This tokenizer with languages, which are some of its pieces.
    ///
    /// # Errors
    /// An id is not that of a piece.
    pub fn with_languages(&self, languages: &Languages) -> Result<Self> {
        Self::from_json(languages::file(self, languages)?)
    }

    /// Pieces with these ids, of text that is split already; see [`super::TokenizerKind::SubwordNmt`]. `<pad>`, `</s>`
    /// and `<unk>` are among them; without `<s>` a target begins with padding.
    ///
    /// # Errors
    /// Those are missing, or the ids contradict each other.
    pub fn from_words(pieces: Vec<(String, u32)>) -> Result<Self> {
        Self::from_json(words::file(pieces)?)
    }

    /// Reads the text of a `tokenizer.json`, or of our JSON of a SentencePiece model; see [`Tokenizer::load`].
    ///
    /// # Errors
    /// As for [`Tokenizer::load`], without a file to name.
    pub fn from_json(json: String) -> Result<Self> {
        let unusable = |error: Error| error.context("mt cannot use this tokenizer");
        let mut json = json;
        refuse_many_values(json.as_bytes(), limits::TOKENIZER_VALUES)?;
        let mut file: serde_json::Value = serde_json::from_str(&json)
            .map_err(|error| Error::failure(format!("this is not a tokenizer.json: {error}")).caused_by(error))?;
        // The library would apply it always, and follow no seed: it is `tokenizer.dropout` that asks for it.
        if file["model"]["dropout"].as_f64().is_some_and(|dropout| dropout != 0.0) {
            file["model"]["dropout"] = serde_json::Value::Null;
            json = format!("{file:#}");
        }
        if file["type"] == sentencepiece::TYPE {
            let engine = SentencePiece::from_json(&json).map_err(unusable)?;
            return Ok(Self { json, engine: Box::new(engine) });
        }
        if file["type"] == languages::TYPE {
            let engine = Multilingual::from_json(&json).map_err(unusable)?;
            return Ok(Self { json, engine: Box::new(engine) });
        }
        if file["type"] == codes::TYPE {
            let words = Words::with_codes(&file).map_err(unusable)?;
            return Ok(Self { json, engine: Box::new(words) });
        }
        if let Some(words) = Words::from_json(&file) {
            return Ok(Self { json, engine: Box::new(words) });
        }
        components::check(&file).map_err(unusable)?;
        let not_ours = match Bpe::from_json(&file) {
            Ok(bpe) => return Ok(Self { json, engine: Box::new(bpe) }),
            Err(error) => error,
        };
        let model_type = file["model"]["type"].as_str().map(str::to_owned);
        let (library, written) = Library::from_json(file).map_err(|error| {
            let what = match model_type.as_deref() {
                Some("BPE") => {
                    format!("by mt's own rules {}; by the tokenizers library: {}", not_ours.what(), error.what())
                }
                _ => format!("the tokenizers library says: {}", error.what()),
            };
            unusable(Error::failure(what).caused_by(error))
        })?;
        // As it was, unless something had to be added.
        Ok(Self { json: written.unwrap_or(json), engine: Box::new(library) })
    }
}
