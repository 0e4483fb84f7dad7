//! A SentencePiece model with some of its pieces only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message;
use serde_json::{Map, Value};

use super::model::Pieces;
use super::proto::{ModelProto, PieceKind};
use super::{Algorithm, SentencePiece, Special, Stored};
use crate::data::tokenizer::trim::{Ranks, Trimmed, merged_of, renumbered};
use crate::error::{Error, Result};

/// Pairs are merged by the score of what they make, the highest first.
impl Ranks for &Pieces {
    fn rank(&self, left: &str, right: &str) -> Option<u64> {
        let score = self.score(self.text_id(&format!("{left}{right}"))?);
        // The order of floats as that of integers, reversed.
        let bits = score.to_bits();
        let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Some(u64::from(!ordered))
    }
}

/// The text of our JSON with the ids that are kept, and those of which kept ones are merged.
///
/// # Errors
/// The text is not our JSON.
pub(in crate::data::tokenizer) fn trimmed(json: &str, mut is_kept: Vec<bool>) -> Result<Trimmed> {
    let whole = SentencePiece::from_json(json)?;
    let failed = |error| Error::failure("the SentencePiece model cannot be decoded").caused_by(error);
    let mut model = ModelProto::decode(&whole.model_bytes()?[..]).map_err(failed)?;
    let vocabulary = &whole.vocabulary;
    // Of the model's pieces: all that are no plain text, and those that a kept id stands for.
    let mut stays: Vec<bool> = whole.pieces.iter().map(|(_, kind)| kind != PieceKind::Normal).collect();
    let unknown = whole.pieces.unknown();
    for (in_model, _) in
        vocabulary.to_model.iter().zip(&is_kept).filter(|(in_model, kept)| **kept && **in_model != unknown)
    {
        stays[*in_model as usize] = true;
    }
    if let Algorithm::Merges { .. } = whole.algorithm {
        for id in 0..stays.len() as u32 {
            if stays[id as usize] && whole.pieces.kind(id) == PieceKind::Normal {
                let parts = merged_of(whole.pieces.text(id), &&whole.pieces);
                parts.iter().filter_map(|part| whole.pieces.text_id(part)).for_each(|id| stays[id as usize] = true);
            }
        }
    }
    // Our ids follow: what stays in the model keeps its id.
    for (id, _) in vocabulary.of_model.iter().zip(&stays).filter(|(id, stays)| **stays && **id != u32::MAX) {
        is_kept[*id as usize] = true;
    }
    let mut stay = stays.iter();
    model.pieces.retain(|_| stay.next() == Some(&true));
    let (kept, new) = renumbered(&is_kept);
    let moved = |id: Option<u32>| id.and_then(|id| new.get(id as usize).copied());
    let Special { pad, bos, eos, unk } = whole.stored.special;
    let listed = || -> Map<String, Value> {
        let piece =
            |(new, old): (usize, &u32)| Some((vocabulary.pieces.get(*old as usize)?.as_ref().to_owned(), new.into()));
        kept.iter().enumerate().filter_map(piece).collect()
    };
    let forbidden = whole.stored.forbidden.as_ref();
    let stored = Stored {
        model: BASE64.encode(model.encode_to_vec()),
        vocabulary: whole.stored.vocabulary.is_some().then(|| Value::Object(listed())),
        special: Special { pad: moved(pad), bos: moved(bos), eos: moved(eos), unk: moved(unk) },
        forbidden: forbidden
            .map(|ids| ids.iter().filter_map(|id| moved(Some(*id)).filter(|id| *id != u32::MAX)).collect()),
        ..whole.stored.clone()
    };
    let text = serde_json::to_string(&stored)
        .map_err(|error| Error::failure("cannot write the tokenizer").caused_by(error))?;
    Ok((text, kept))
}
