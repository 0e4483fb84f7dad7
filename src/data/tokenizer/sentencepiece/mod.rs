//! SentencePiece models (Kudo and Richardson 2018): unigram and BPE, held equal to the `sentencepiece` program by
//! `tests/interop/tokenization.py`, piece by piece and in the text that comes back.
//!
//! In a model directory a model lies in JSON of our own, its file whole inside it:
//!
//! ```json
//! { "version": "1.0", "type": "sentencepiece", "model": "<base64>", "vocabulary": { "▁the": 0, … },
//!   "appended": ["<pad>"], "special": { "pad": 1, "bos": 1, "eos": 0, "unk": 2 }, "forbidden": [1],
//!   "language_tags": true }
//! ```
//!
//! `vocabulary`, a table or a list, gives the ids of the pieces if they are not the model's own (Marian's are not; a
//! piece without one is unknown); `appended` lists the special tokens after them. `special` need not name all four;
//! `forbidden` are the ids that a translation never has, by default padding, beginning and unknown. With
//! `language_tags` a `>>fra<<` at the beginning of a line is a piece; with `tags_in_text` a `<2fr>` there selects a
//! language.

mod decode;
mod library;
mod merges;
mod model;
mod normalise;
mod proto;
mod tags;
#[cfg(test)]
mod tests;
mod trie;
mod trim;
mod unigram;
mod vocabulary;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bounded::GivenUp;
use super::engine::Engine;
use super::vocabulary::SPECIALS;
use crate::error::{Error, Result};
use crate::limits;
use crate::rng::Stream;
use decode::Decoder;
use model::Pieces;
use normalise::Normaliser;
use proto::{ModelKind, ModelProto, NormalizerProto, PieceKind, TrainerProto};
pub use tags::is_text_tag;
use trie::Trie;
pub(super) use trim::trimmed;
use unigram::{Score, Unigram};
use vocabulary::Vocabulary;

/// The `type` of our JSON.
pub(super) const TYPE: &str = "sentencepiece";

/// A part of a normalised line, from byte to byte, and the piece it is.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: usize,
    end: usize,
    id: u32,
}

/// How a normalised line becomes pieces.
enum Algorithm {
    Unigram(Unigram),
    Merges { kept: Option<Trie> },
}

/// A SentencePiece model as a tokenizer.
pub(super) struct SentencePiece {
    pieces: Pieces,
    normaliser: Normaliser,
    algorithm: Algorithm,
    decoder: Decoder,
    vocabulary: Vocabulary,
    stored: Stored,
    given_up: GivenUp,
}

/// Our JSON; see the module's documentation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    version: String,
    r#type: String,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vocabulary: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    appended: Vec<String>,
    #[serde(default, skip_serializing_if = "Special::is_empty")]
    special: Special,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forbidden: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    language_tags: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tags_in_text: bool,
}

/// Which ids the pieces of a model have, if these are not its own.
pub struct OwnIds {
    /// The ids of all pieces: a list, or a table.
    pub vocabulary: Value,
    /// The ids of padding, of the beginning of a target, of the end and of unknown text.
    pub special: [u32; 4],
    /// The ids that a translation never has.
    pub forbidden: Vec<u32>,
    /// Whether a `>>fra<<` that a line begins with is a piece.
    pub language_tags: bool,
    /// Whether a `<2fr>` that a line begins with selects a language.
    pub tags_in_text: bool,
}

impl Stored {
    /// A model as it is.
    fn new(model: &[u8]) -> Self {
        Self {
            version: "1.0".to_owned(),
            r#type: TYPE.to_owned(),
            model: BASE64.encode(model),
            vocabulary: None,
            appended: Vec::new(),
            special: Special::default(),
            forbidden: None,
            language_tags: false,
            tags_in_text: false,
        }
    }
}

/// Ids of special tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Special {
    #[serde(skip_serializing_if = "Option::is_none")]
    pad: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bos: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    eos: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unk: Option<u32>,
}

impl Special {
    fn is_empty(&self) -> bool {
        self.all().iter().all(Option::is_none)
    }

    fn all(&self) -> [Option<u32>; 4] {
        [self.pad, self.bos, self.eos, self.unk]
    }
}

impl SentencePiece {
    /// Reads a model's own file.
    ///
    /// # Errors
    /// It is not a model, or is one of words or characters.
    pub(super) fn from_file(bytes: &[u8]) -> Result<Self> {
        let stored = Stored::new(bytes);
        let mut new = Self::new(bytes, stored)?;
        new.append();
        Ok(new)
    }

    /// A model with other ids than its own.
    ///
    /// # Errors
    /// As [`SentencePiece::from_file`]; or the ids contradict each other.
    pub(super) fn with_ids(bytes: &[u8], ids: OwnIds) -> Result<Self> {
        let [pad, bos, eos, unk] = ids.special.map(Some);
        let stored = Stored {
            vocabulary: Some(ids.vocabulary),
            special: Special { pad, bos, eos, unk },
            forbidden: Some(ids.forbidden),
            language_tags: ids.language_tags,
            tags_in_text: ids.tags_in_text,
            ..Stored::new(bytes)
        };
        let new = Self::complete(bytes, stored)?;
        let normal =
            new.pieces.iter().zip(&new.vocabulary.of_model).filter(|((_, kind), _)| *kind == PieceKind::Normal);
        let (all, missing) =
            normal.fold((0, 0), |(all, missing), (_, id)| (all + 1, missing + usize::from(*id == u32::MAX)));
        if 2 * missing > all {
            let what = format!("the vocabulary lacks {missing} of its {all} pieces: the files are of different models");
            return Err(Error::failure(what));
        }
        Ok(new)
    }

    /// Reads our JSON.
    ///
    /// # Errors
    /// It is not our JSON, or the model in it is invalid.
    pub(super) fn from_json(json: &str) -> Result<Self> {
        let stored: Stored = serde_json::from_str(json)
            .map_err(|error| Error::failure(format!("its keys are wrong: {error}")).caused_by(error))?;
        if stored.version != "1.0" {
            return Err(Error::failure(format!("its version is {:?}, and mt knows \"1.0\"", stored.version)));
        }
        let bytes = BASE64
            .decode(&stored.model)
            .map_err(|error| Error::failure(format!("its model is not base64: {error}")).caused_by(error))?;
        Self::complete(&bytes, stored)
    }

    /// As our JSON.
    pub(super) fn to_json(&self) -> Result<String> {
        serde_json::to_string(&self.stored)
            .map_err(|error| Error::failure("cannot write the tokenizer").caused_by(error))
    }

    /// A model with all special tokens.
    fn complete(bytes: &[u8], stored: Stored) -> Result<Self> {
        let new = Self::new(bytes, stored)?;
        if new.vocabulary.specials.contains(&u32::MAX) {
            return Err(Error::failure("its `special` must have pad, bos, eos and unk"));
        }
        Ok(new)
    }

    fn new(bytes: &[u8], stored: Stored) -> Result<Self> {
        if bytes.len() > limits::SENTENCEPIECE_BYTES {
            let most = limits::SENTENCEPIECE_BYTES;
            return Err(Error::failure(format!("a SentencePiece model has at most {most} bytes")));
        }
        let model = ModelProto::decode(bytes)
            .map_err(|error| Error::failure(format!("this is not a SentencePiece model: {error}")).caused_by(error))?;
        let trainer = model.trainer.clone().unwrap_or_default();
        let pieces = Pieces::new(&model)?;
        let spec = model.normalizer.clone().unwrap_or_default();
        let at_end = trainer.treat_whitespace_as_suffix;
        let normaliser = Normaliser::new(&spec, kept(&pieces), at_end)?;
        let denormaliser = model.denormalizer.as_ref().filter(|spec| !spec.precompiled_charsmap.is_empty());
        let unknown_surface = trainer.unk_surface.clone().unwrap_or_else(|| " \u{2047} ".to_owned());
        if unknown_surface.len() > limits::PIECE_BYTES {
            let (found, most) = (unknown_surface.len(), limits::PIECE_BYTES);
            return Err(Error::failure(format!("its `unk_surface` has {found} bytes, more than {most}")));
        }
        let decoder = Decoder {
            unknown_surface,
            denormaliser: denormaliser.map(|spec: &NormalizerProto| Normaliser::new(spec, None, false)).transpose()?,
            has_dummy_prefix: normaliser.has_dummy_prefix(),
            removes_extra_spaces: normaliser.removes_extra_spaces(),
        };
        let algorithm = algorithm(&pieces, &trainer)?;
        let vocabulary = Vocabulary::new(&pieces, &trainer, &stored)?;
        Ok(Self { pieces, normaliser, algorithm, decoder, vocabulary, stored, given_up: GivenUp::default() })
    }

    /// Adds the special tokens that the model lacks after its pieces.
    fn append(&mut self) {
        let vocabulary = &mut self.vocabulary;
        let missing = vocabulary.specials.iter_mut().zip(SPECIALS).filter(|(id, _)| **id == u32::MAX);
        for (id, name) in missing {
            *id = vocabulary.pieces.len() as u32;
            vocabulary.pieces.push(name.into());
            vocabulary.ids.entry(name.into()).or_insert(*id);
            vocabulary.to_model.push(self.pieces.unknown());
            self.stored.appended.push(name.to_owned());
        }
        let [pad, bos, eos, unk] = vocabulary.specials.map(Some);
        self.stored.special = Special { pad, bos, eos, unk };
    }

    /// The model's file.
    fn model_bytes(&self) -> Result<Vec<u8>> {
        BASE64.decode(&self.stored.model).map_err(|error| Error::failure("its model is not base64").caused_by(error))
    }

    fn segments(&self, line: &str) -> Vec<Segment> {
        match &self.algorithm {
            Algorithm::Unigram(unigram) => unigram.segment(line),
            Algorithm::Merges { kept } => merges::segment(&self.pieces, kept.as_ref(), line),
        }
    }

    /// The ids of a line, as `split` splits the normalised line.
    fn ids(&self, line: &str, split: impl FnOnce(&str) -> Vec<Segment>) -> Vec<u32> {
        let (tag, line) = self.split_tag(line);
        let mut ids: Vec<u32> = tag.map(|tag| self.vocabulary.id(tag)).into_iter().collect();
        let unknown = self.pieces.unknown();
        self.each_piece(line, split, |piece, id| ids.push(self.vocabulary.id_of_piece(piece, id, unknown)));
        ids
    }

    /// Calls `piece` with each piece of a line and its id in the model, as `split` splits the normalised line. Adjacent
    /// unknown text is one piece, or bytes if the model has byte pieces.
    fn each_piece(&self, line: &str, split: impl FnOnce(&str) -> Vec<Segment>, mut piece: impl FnMut(&str, u32)) {
        let unknown = self.pieces.unknown();
        let line = match self.normaliser.normalise(line) {
            Ok(line) => line,
            Err(error) => {
                self.given_up.say("a line cannot be normalised, and is taken for unknown", &error);
                return piece(&line.replace(' ', super::pipeline::SPACE_PIECE), unknown);
            }
        };
        let mut pending: Option<(usize, usize)> = None;
        for Segment { start, end, id } in split(&line) {
            if id == unknown && self.pieces.bytes().is_none() {
                pending = Some((pending.map_or(start, |(first, _)| first), end));
                continue;
            }
            if let Some((start, end)) = pending.take() {
                piece(line.get(start..end).unwrap_or_default(), unknown);
            }
            let text = line.get(start..end).unwrap_or_default();
            match self.pieces.bytes().filter(|_| id == unknown) {
                Some(bytes) => text.bytes().filter_map(|byte| bytes.get(usize::from(byte))).for_each(|&id| {
                    piece(self.pieces.text(id), id);
                }),
                None => piece(text, id),
            }
        }
        if let Some((start, end)) = pending {
            piece(line.get(start..end).unwrap_or_default(), unknown);
        }
    }
}

impl Engine for SentencePiece {
    fn len(&self) -> usize {
        self.vocabulary.pieces.len()
    }

    fn specials(&self) -> [u32; 4] {
        self.vocabulary.specials
    }

    fn piece(&self, id: u32) -> Option<&str> {
        self.vocabulary.pieces.get(id as usize).map(AsRef::as_ref)
    }

    fn encode(&self, line: &str) -> Vec<u32> {
        self.ids(line, |line| self.segments(line))
    }

    fn is_unigram(&self) -> bool {
        matches!(self.algorithm, Algorithm::Unigram(_))
    }

    fn draw(&self, line: &str, alpha: f64, nbest: usize, key: u64) -> Vec<u32> {
        self.ids(line, |line| match &self.algorithm {
            Algorithm::Unigram(unigram) => unigram.draw(line, alpha, nbest, &mut Stream::from_key(key)),
            Algorithm::Merges { .. } => self.segments(line),
        })
    }

    fn decode(&self, ids: &[u32]) -> String {
        let [pad, bos, eos, unk] = self.vocabulary.specials;
        // Marian's models write nothing for unknown text.
        let unk = if self.vocabulary.is_foreign { unk } else { eos };
        let ids = ids.iter().filter(|id| ![pad, bos, eos, unk].contains(id));
        let found = ids.filter_map(|&id| Some((self.piece(id)?, *self.vocabulary.to_model.get(id as usize)?)));
        self.vocabulary.finish(self.decoder.decode(&self.pieces, found))
    }

    fn pieces(&self, line: &str) -> Vec<String> {
        let (tag, line) = self.split_tag(line);
        let mut pieces: Vec<String> = tag.map(str::to_owned).into_iter().collect();
        self.each_piece(line, |line| self.segments(line), |piece, _| pieces.push(piece.to_owned()));
        pieces
    }

    fn decode_pieces(&self, line: &str) -> String {
        // Other white space may be part of an unknown piece.
        let pieces = line.split(' ').filter(|piece| !piece.is_empty());
        let pieces = pieces.map(|piece| (piece, self.pieces.id(piece)));
        self.vocabulary.finish(self.decoder.decode(&self.pieces, pieces))
    }

    fn appended(&self) -> &[String] {
        &self.stored.appended
    }

    fn given_up(&self) -> Option<&GivenUp> {
        Some(&self.given_up)
    }

    fn sentencepiece(&self) -> Option<Vec<u8>> {
        self.model_bytes().ok()
    }

    fn library_json(&self, size: usize) -> Option<Result<Value>> {
        Some(self.library_json(size))
    }

    fn language_tags(&self) -> Vec<&str> {
        self.tags()
    }

    fn language_tag<'t>(&self, line: &'t str) -> Option<&'t str> {
        self.tag_of(line)
    }

    fn forbidden(&self) -> Vec<u32> {
        let [pad, bos, _, unk] = self.vocabulary.specials;
        self.stored.forbidden.clone().unwrap_or_else(|| vec![pad, bos, unk])
    }
}

/// The user-defined pieces.
fn kept(pieces: &Pieces) -> Option<Trie> {
    let kept = pieces.iter().zip(0..).filter(|((_, kind), _)| *kind == PieceKind::UserDefined);
    let kept: Vec<_> = kept.map(|((text, _), id)| (text.as_bytes(), id)).collect();
    (!kept.is_empty()).then(|| Trie::new(kept))
}

fn algorithm(pieces: &Pieces, trainer: &TrainerProto) -> Result<Algorithm> {
    let kind = trainer.model_kind.map_or(Ok(ModelKind::Unigram), ModelKind::try_from);
    let other = match kind {
        Ok(ModelKind::Unigram) => return Ok(Algorithm::Unigram(unigram(pieces))),
        Ok(ModelKind::Bpe) => return Ok(Algorithm::Merges { kept: kept(pieces) }),
        Ok(ModelKind::Word) => "words",
        Ok(ModelKind::Char) => "characters",
        Err(_) => "a kind that mt does not know",
    };
    Err(Error::failure(format!("this SentencePiece model is one of {other}, and mt has unigram and BPE models")))
}

fn unigram(pieces: &Pieces) -> Unigram {
    let (mut keys, mut scores) = (Vec::new(), Vec::new());
    let mut worst = f32::MAX;
    for ((text, kind), id) in pieces.iter().zip(0..) {
        let score = pieces.score(id);
        scores.push(match kind {
            PieceKind::UserDefined => Score::UserDefined,
            PieceKind::Unused => Score::Unused,
            _ => Score::LogProbability(score),
        });
        if matches!(kind, PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused) {
            keys.push((text.as_bytes(), id));
        }
        if kind == PieceKind::Normal {
            worst = worst.min(score);
        }
    }
    Unigram { trie: Trie::new(keys), scores, worst, unknown: pieces.unknown() }
}
