//! The pieces of a SentencePiece model, and what each is.

use std::collections::HashMap;

use super::proto::{ModelProto, PieceKind};
use crate::data::tokenizer::vocabulary::{byte_of_piece, byte_piece};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::limits;

/// All pieces, by id.
pub(super) struct Pieces {
    texts: Vec<Box<str>>,
    scores: Vec<f32>,
    kinds: Vec<PieceKind>,
    /// Those that text can contain.
    text_ids: HashMap<Box<str>, u32>,
    /// All others: control symbols, bytes, the unknown.
    reserved: HashMap<Box<str>, u32>,
    unknown: u32,
    /// The ids of the 256 bytes, if the model writes text without a piece in bytes.
    bytes: Option<Box<[u32; 256]>>,
}

impl Pieces {
    /// From a model.
    ///
    /// # Errors
    /// A piece is empty, very long or occurs twice, or one that is needed is missing.
    pub(super) fn new(model: &ModelProto) -> Result<Self> {
        let byte_fallback = model.trainer.as_ref().is_some_and(|trainer| trainer.byte_fallback);
        let mut pieces = Self {
            texts: Vec::with_capacity(model.pieces.len()),
            scores: Vec::with_capacity(model.pieces.len()),
            kinds: Vec::with_capacity(model.pieces.len()),
            text_ids: HashMap::new(),
            reserved: HashMap::new(),
            unknown: u32::MAX,
            bytes: None,
        };
        for (piece, id) in model.pieces.iter().zip(0..) {
            let text = piece.piece.as_str();
            let kind = piece.kind.map_or(Ok(PieceKind::Normal), PieceKind::try_from);
            let Some(kind) = kind.ok().filter(|_| !text.is_empty() && !piece.score.is_nan()) else {
                return Err(Error::failure(format!("its piece {id}, {}, has no text, kind or score", quoted(text))));
            };
            if text.len() > limits::PIECE_BYTES {
                let most = limits::PIECE_BYTES;
                return Err(Error::failure(format!("its piece {id} has {} bytes, more than {most}", text.len())));
            }
            if kind == PieceKind::Unknown && std::mem::replace(&mut pieces.unknown, id) != u32::MAX {
                return Err(Error::failure("it has two pieces for unknown text"));
            }
            let is_text = matches!(kind, PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused);
            let map = if is_text { &mut pieces.text_ids } else { &mut pieces.reserved };
            if map.insert(text.into(), id).is_some() {
                return Err(Error::failure(format!("its piece {} occurs twice", quoted(text))));
            }
            pieces.texts.push(text.into());
            pieces.scores.push(piece.score);
            pieces.kinds.push(kind);
        }
        if pieces.unknown == u32::MAX {
            return Err(Error::failure("it has no piece for unknown text"));
        }
        if byte_fallback {
            let mut bytes = Box::new([0; 256]);
            for (byte, id) in (0..=u8::MAX).zip(bytes.iter_mut()) {
                let text = byte_piece(byte);
                let found = pieces.reserved.get(text.as_str()).filter(|id| pieces.kind(**id) == PieceKind::Byte);
                *id = *found.ok_or_else(|| Error::failure(format!("its byte piece {text} is missing")))?;
            }
            pieces.bytes = Some(bytes);
        }
        Ok(pieces)
    }

    /// All of them, with their kinds, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, PieceKind)> {
        self.texts.iter().map(AsRef::as_ref).zip(self.kinds.iter().copied())
    }

    pub(super) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", AsRef::as_ref)
    }

    pub(super) fn kind(&self, id: u32) -> PieceKind {
        self.kinds.get(id as usize).copied().unwrap_or(PieceKind::Unknown)
    }

    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY)
    }

    pub(super) fn is_unused(&self, id: u32) -> bool {
        self.kind(id) == PieceKind::Unused
    }

    pub(super) fn unknown(&self) -> u32 {
        self.unknown
    }

    /// The ids of the 256 bytes, if the model has byte fallback.
    pub(super) fn bytes(&self) -> Option<&[u32; 256]> {
        self.bytes.as_deref()
    }

    /// The id of a piece that text can contain.
    pub(super) fn text_id(&self, text: &str) -> Option<u32> {
        self.text_ids.get(text).copied()
    }

    /// The id of any piece; the unknown id if there is no such piece.
    pub(super) fn id(&self, text: &str) -> u32 {
        let found = self.reserved.get(text).or_else(|| self.text_ids.get(text));
        found.copied().unwrap_or(self.unknown)
    }

    /// The byte that a piece stands for.
    pub(super) fn byte(&self, id: u32) -> Option<u8> {
        if self.kind(id) == PieceKind::Byte { byte_of_piece(self.text(id)) } else { None }
    }
}
