//! The same model as a `tokenizer.json` of the `tokenizers` library, as `transformers` converts it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message;
use serde_json::{Map, Value, json};

use super::model::Pieces;
use super::proto::{ModelProto, PieceKind};
use super::{Algorithm, SentencePiece};
use crate::error::{Error, Result};

impl SentencePiece {
    /// The parts of a `tokenizer.json` that cut text into pieces, for the first `size` of our ids. Added tokens are not
    /// among them. A difference remains: the library keeps a space at the end of a line.
    ///
    /// # Errors
    /// The model cannot be decoded.
    pub(in crate::data::tokenizer) fn library_json(&self, size: usize) -> Result<Value> {
        let failed = |error| Error::failure("the SentencePiece model cannot be decoded").caused_by(error);
        let bytes = self.model_bytes()?;
        let charsmap = ModelProto::decode(&bytes[..]).map_err(failed)?.normalizer;
        let charsmap = charsmap.map(|spec| spec.precompiled_charsmap).unwrap_or_default();
        let mut normalizers = vec![json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " })];
        if !charsmap.is_empty() {
            let charsmap = json!({ "type": "Precompiled", "precompiled_charsmap": BASE64.encode(charsmap) });
            normalizers.insert(0, charsmap);
        }
        let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        let [_, _, _, unknown] = self.vocabulary.specials;
        let model = match &self.algorithm {
            Algorithm::Unigram(_) => {
                let pieces = self.vocabulary.pieces.iter().map(AsRef::as_ref).take(size).enumerate();
                let piece = |(id, piece): (usize, &str)| json!([piece, self.score(id).unwrap_or(0.0)]);
                let vocabulary: Vec<Value> = pieces.map(piece).collect();
                json!({ "type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": false })
            }
            Algorithm::Merges { .. } => {
                let is_special = |id: usize| self.vocabulary.specials.contains(&(id as u32)) || id == 0;
                let in_model = self.vocabulary.pieces.iter().enumerate().take(size);
                let in_model = in_model.filter(|(id, _)| is_special(*id) || self.score(*id).is_some());
                let vocabulary: Map<String, Value> =
                    in_model.map(|(id, piece)| (piece.as_ref().to_owned(), id.into())).collect();
                json!({
                    "type": "BPE", "dropout": null, "unk_token": self.vocabulary.pieces.get(unknown as usize),
                    "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
                    "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary,
                    "merges": merges(&self.pieces),
                })
            }
        };
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": { "type": "Sequence", "normalizers": normalizers }, "pre_tokenizer": metaspace,
            "post_processor": null, "decoder": metaspace, "model": model,
        }))
    }

    /// The score of one of our ids in the model, if it is a piece of text there.
    fn score(&self, id: usize) -> Option<f32> {
        let in_model = *self.vocabulary.to_model.get(id)?;
        let is_text = matches!(self.pieces.kind(in_model), PieceKind::Normal | PieceKind::UserDefined);
        is_text.then(|| self.pieces.score(in_model))
    }
}

/// All pairs of pieces that make a piece, in the order in which they are merged: the highest score first.
fn merges(pieces: &Pieces) -> Vec<[&str; 2]> {
    let mut found: Vec<(f32, [&str; 2])> = Vec::new();
    for (id, (piece, kind)) in (0..).zip(pieces.iter()) {
        if kind != PieceKind::Normal {
            continue;
        }
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        let are_pieces =
            |(left, right): &(&str, &str)| [left, right].into_iter().all(|part| pieces.text_id(part).is_some());
        found.extend(cuts.filter(are_pieces).map(|(left, right)| (pieces.score(id), [left, right])));
    }
    let length = |text: &str| text.chars().count();
    found.sort_by(|(a, one), (b, other)| {
        b.total_cmp(a).then_with(|| length(other[0]).cmp(&length(one[0]))).then_with(|| one.cmp(other))
    });
    found.into_iter().map(|(_, pair)| pair).collect()
}
