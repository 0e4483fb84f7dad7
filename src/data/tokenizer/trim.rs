//! A tokenizer with some of its pieces only, for text that needs no others.
//!
//! Such text is split as before. Unigram models keep the likeliest segmentation, since it is still there and no other
//! has come. Byte-pair encoding merges the same pairs: the pieces that a kept one is merged of are kept, too, and a
//! merge whose result is gone was never made in that text.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::vocabulary::merge_parts;
use super::{Tokenizer, languages, sentencepiece};
use crate::error::{Error, Result};

/// A trimmed tokenizer, and the old id of each of its ids.
pub(super) type Trimmed = (String, Vec<u32>);

/// How two neighbouring pieces are merged: the first pair to merge has the least rank.
pub(super) trait Ranks {
    /// The rank of a pair, if it is merged at all.
    fn rank(&self, left: &str, right: &str) -> Option<u64>;
}

/// The pieces that a piece is merged of, itself not among them, in any order.
pub(super) fn merged_of<'p>(piece: &'p str, ranks: &impl Ranks) -> Vec<&'p str> {
    let mut ends: Vec<usize> = piece.char_indices().skip(1).map(|(at, _)| at).chain([piece.len()]).collect();
    let mut parts: HashSet<&str> = HashSet::new();
    let mut merged = 0..ends.len();
    loop {
        let starts: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).collect();
        let part = |index: usize| Some(piece.get(*starts.get(index)?..*ends.get(index)?).unwrap_or_default());
        parts.extend(merged.filter_map(part));
        let pairs = (0..ends.len()).filter_map(|i| Some((ranks.rank(part(i)?, part(i + 1)?)?, i)));
        let Some((_, first)) = pairs.min() else { break };
        ends.remove(first);
        merged = first..first + 1;
    }
    parts.remove(piece);
    let mut parts: Vec<&str> = parts.into_iter().collect();
    parts.sort_unstable();
    parts
}

/// The merges of a `tokenizer.json`, by their order.
struct Merges<'j>(HashMap<(&'j str, &'j str), u64>);

impl Ranks for Merges<'_> {
    fn rank(&self, left: &str, right: &str) -> Option<u64> {
        self.0.get(&(left, right)).copied()
    }
}

/// The ids that stay, and the new id of each old one; `u32::MAX` for one that is gone.
pub(super) fn renumbered(is_kept: &[bool]) -> (Vec<u32>, Vec<u32>) {
    let kept: Vec<u32> = (0..).zip(is_kept).filter(|(_, is_kept)| **is_kept).map(|(id, _)| id).collect();
    let mut new = vec![u32::MAX; is_kept.len()];
    for (id, old) in (0..).zip(&kept) {
        new[*old as usize] = id;
    }
    (kept, new)
}

/// The text of a tokenizer with the ids that are kept, and what these need.
///
/// # Errors
/// It is of a kind whose pieces cannot be removed.
pub(super) fn trim(tokenizer: &Tokenizer, mut is_kept: Vec<bool>) -> Result<Trimmed> {
    let failed = |error| Error::failure("the tokenizer is not JSON").caused_by(error);
    let mut json: Value = serde_json::from_str(tokenizer.json()).map_err(failed)?;
    let specials = tokenizer.engine.specials();
    let tags = tokenizer.ids_of(&tokenizer.language_tags());
    specials.into_iter().chain(tags).for_each(|id| is_kept[id as usize] = true);
    if json["type"] == languages::TYPE {
        return languages::trimmed(tokenizer.json(), is_kept);
    }
    if json["type"] == sentencepiece::TYPE {
        return sentencepiece::trimmed(tokenizer.json(), is_kept);
    }
    let of_library = tokenizer.engine.kind().is_none() && tokenizer.engine.codes().is_none();
    if !of_library || !["BPE", "Unigram"].iter().any(|kind| json["model"]["type"] == *kind) {
        let what = "only the pieces of SentencePiece models, and of byte-pair encoding or unigram models of other \
                    programs, can be removed";
        return Err(Error::usage(what).help("train a model of your own with a smaller `tokenizer.vocab_size`"));
    }
    keep_parts(&json, tokenizer, &mut is_kept);
    let (kept, new) = renumbered(&is_kept);
    let stays = |id: u64| usize::try_from(id).is_ok_and(|id| is_kept.get(id) == Some(&true));
    let moved = |id: u64| new.get(id as usize).copied().unwrap_or(u32::MAX);
    match &mut json["model"]["vocab"] {
        Value::Object(vocabulary) => {
            vocabulary.retain(|_, id| id.as_u64().is_some_and(stays));
            vocabulary.values_mut().for_each(|id| *id = moved(id.as_u64().unwrap_or(0)).into());
        }
        Value::Array(vocabulary) => {
            let mut id = 0..;
            vocabulary.retain(|_| id.next().is_some_and(stays));
        }
        _ => {}
    }
    if let Some(unknown) = json["model"]["unk_id"].as_u64() {
        json["model"]["unk_id"] = moved(unknown).into();
    }
    let pieces: HashSet<&str> = kept.iter().filter_map(|id| tokenizer.piece(*id)).collect();
    if let Some(merges) = json["model"].get_mut("merges").and_then(Value::as_array_mut) {
        merges.retain(|merge| {
            merge_parts(merge).is_some_and(|(left, right)| {
                [left, right, &format!("{left}{right}")].iter().all(|part| pieces.contains(*part))
            })
        });
    }
    if let Some(added) = json.get_mut("added_tokens").and_then(Value::as_array_mut) {
        added.retain(|token| token["id"].as_u64().is_some_and(stays));
        added.iter_mut().for_each(|token| token["id"] = moved(token["id"].as_u64().unwrap_or(0)).into());
    }
    Ok((json.to_string(), kept))
}

/// Keeps the pieces of which kept ones are merged.
fn keep_parts(json: &Value, tokenizer: &Tokenizer, is_kept: &mut [bool]) {
    let merges = json["model"]["merges"].as_array().into_iter().flatten();
    let merges: HashMap<(&str, &str), u64> = merges.filter_map(merge_parts).zip(0..).collect();
    if merges.is_empty() {
        return;
    }
    let merges = Merges(merges);
    let ids: HashMap<&str, u32> =
        (0..tokenizer.vocab_size() as u32).filter_map(|id| Some((tokenizer.piece(id)?, id))).collect();
    for id in 0..is_kept.len() {
        if let (true, Some(piece)) = (is_kept[id], tokenizer.piece(id as u32)) {
            let parts = merged_of(piece, &merges);
            parts.iter().filter_map(|part| ids.get(part)).for_each(|id| is_kept[*id as usize] = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Ranks for &[(&str, &str)] {
        fn rank(&self, left: &str, right: &str) -> Option<u64> {
            self.iter().position(|pair| *pair == (left, right)).map(|rank| rank as u64)
        }
    }

    #[test]
    fn a_piece_is_merged_of_its_parts() {
        let merges: &[(&str, &str)] = &[("t", "h"), ("h", "e"), ("th", "e"), ("▁", "the")];
        assert_eq!(merged_of("▁the", &merges), ["e", "h", "t", "th", "the", "▁"]);
        assert_eq!(merged_of("he", &merges), ["e", "h"]);
        assert_eq!(merged_of("ä", &merges), [""; 0]);
    }

    #[test]
    fn kept_ids_are_numbered_in_order() {
        assert_eq!(renumbered(&[true, false, true, true]), (vec![0, 2, 3], vec![0, u32::MAX, 1, 2]));
    }
}
