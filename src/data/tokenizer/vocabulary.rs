//! The pieces, their ids and their merges, as `tokenizer.json` states them.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::merge::Merges;
use super::pipeline::SPACE_PIECE;
use crate::error::{Error, Result};

/// The contents of the special tokens, in the order of their ids in a new tokenizer.
pub(super) const SPECIALS: [&str; 4] = ["<pad>", "<s>", "</s>", "<unk>"];

/// What decoding does with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stands for its own text, `▁` for a space.
    Text,
    /// Stands for one byte of UTF-8.
    Byte(u8),
    /// Stands for nothing: padding, end of sentence and the like.
    Special,
}

/// The vocabulary of one tokenizer.
pub(super) struct Vocabulary {
    /// The piece of every id.
    pieces: Vec<Box<str>>,
    /// The kind of every id.
    kinds: Vec<Kind>,
    /// The ids of [`SPECIALS`].
    specials: [u32; 4],
    /// All pieces that are special tokens.
    special: HashSet<Box<str>>,
    /// The ids of the pieces that are one character.
    characters: HashMap<char, u32>,
    /// The ids of the 256 byte pieces.
    bytes: [u32; 256],
    merges: Merges,
    /// Where the model ignores merges for words that are pieces: the ids of all pieces of text. Otherwise empty.
    words: HashMap<Box<str>, u32>,
}

/// The name of a byte's piece.
pub(super) fn byte_piece(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// The byte that a piece stands for, if it is a byte piece.
pub(super) fn byte_of_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let well_formed = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if well_formed { u8::from_str_radix(digits, 16).ok() } else { None }
}

impl Vocabulary {
    /// Reads the model and the special tokens of a parsed `tokenizer.json`.
    ///
    /// # Errors
    /// The model is not BPE with byte fallback, a token that is needed is missing, or the parts contradict each other.
    pub(super) fn from_json(file: &Value) -> Result<Self> {
        let model = &file["model"];
        check_model(model)?;
        let ids = piece_ids(model)?;
        let mut kinds = kinds(file, &ids)?;
        let mut bytes = [0; 256];
        for (byte, slot) in (0..=u8::MAX).zip(&mut bytes) {
            let piece = byte_piece(byte);
            *slot = needed(&ids, &piece)?;
            set(&mut kinds, *slot, Kind::Byte(byte));
        }
        let mut specials = [0; 4];
        for (content, slot) in SPECIALS.iter().zip(&mut specials) {
            *slot = needed(&ids, content)?;
            set(&mut kinds, *slot, Kind::Special);
        }
        needed(&ids, SPACE_PIECE)?;
        let mut pieces = vec![Box::<str>::default(); ids.len()];
        let mut characters = HashMap::new();
        for (piece, &id) in &ids {
            if let Some(slot) = pieces.get_mut(id as usize) {
                *slot = (*piece).into();
            }
            let mut chars = piece.chars();
            if let (Some(character), None) = (chars.next(), chars.next()) {
                characters.insert(character, id);
            }
        }
        let merges = merges(model, &ids, &kinds)?;
        let mut words = HashMap::new();
        if model["ignore_merges"] == true {
            let is_text = |id: u32| kinds.get(id as usize) == Some(&Kind::Text);
            words = ids.iter().filter(|(_, id)| is_text(**id)).map(|(&piece, &id)| (piece.into(), id)).collect();
        }
        let special = pieces.iter().zip(&kinds).filter(|(_, kind)| **kind == Kind::Special);
        let special = special.map(|(piece, _)| piece.clone()).collect();
        Ok(Self { pieces, kinds, specials, special, characters, bytes, merges, words })
    }

    /// The number of ids.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// The ids of `<pad>`, `<s>`, `</s>` and `<unk>`.
    pub(super) fn specials(&self) -> [u32; 4] {
        self.specials
    }

    pub(super) fn merges(&self) -> &Merges {
        &self.merges
    }

    /// The id of a word that is a piece, whatever its merges would give.
    pub(super) fn word(&self, word: &str) -> Option<u32> {
        self.words.get(word).copied()
    }

    /// The piece of an id and what decoding does with it.
    pub(super) fn get(&self, id: u32) -> Option<(&str, Kind)> {
        let at = id as usize;
        Some((self.pieces.get(at)?, *self.kinds.get(at)?))
    }

    /// Whether a piece is the name of a special token.
    pub(super) fn is_special(&self, piece: &str) -> bool {
        self.special.contains(piece)
    }

    /// Appends the ids of the word's characters, and of their bytes where a character has none.
    pub(super) fn push_symbols(&self, word: &str, out: &mut Vec<u32>) {
        for character in word.chars() {
            match self.characters.get(&character) {
                Some(&id) => out.push(id),
                None => {
                    let mut buffer = [0; 4];
                    let utf8 = character.encode_utf8(&mut buffer).bytes();
                    out.extend(utf8.filter_map(|byte| self.bytes.get(usize::from(byte))));
                }
            }
        }
    }
}

fn set(kinds: &mut [Kind], id: u32, kind: Kind) {
    if let Some(slot) = kinds.get_mut(id as usize) {
        *slot = kind;
    }
}

fn needed(ids: &HashMap<&str, u32>, piece: &str) -> Result<u32> {
    ids.get(piece).copied().ok_or_else(|| Error::failure(format!("its vocabulary lacks `{piece}`")))
}

/// Refuses a model whose encoding our merge loop would not reproduce.
fn check_model(model: &Value) -> Result<()> {
    match model["type"].as_str() {
        Some("BPE") => {}
        Some(other) => return Err(Error::failure(format!("its model is {other}, not BPE"))),
        None => return Err(Error::failure("it has no model")),
    }
    if model["byte_fallback"] != true {
        return Err(Error::failure("its model has no byte fallback, so some text would be unknown to it"));
    }
    let is_off = |value: &Value| {
        matches!(value, Value::Null | Value::Bool(false)) || value.as_str() == Some("") || value.as_f64() == Some(0.0)
    };
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if !is_off(&model[key]) {
            return Err(Error::failure(format!("its model sets `{key}`, which mt does not support")));
        }
    }
    Ok(())
}

/// The ids of the pieces: each from 0 to one less than their number, once.
fn piece_ids(model: &Value) -> Result<HashMap<&str, u32>> {
    let vocab = model["vocab"].as_object().ok_or_else(|| Error::failure("its model has no vocabulary"))?;
    let pieces = in_order(vocab.iter().map(|(piece, id)| (piece, id.clone())))?;
    Ok(pieces.into_iter().map(String::as_str).zip(0..).collect())
}

/// The pieces by their ids, which must run from 0 to their number less one, each once.
pub(super) fn in_order<P: AsRef<str>>(pieces: impl ExactSizeIterator<Item = (P, Value)>) -> Result<Vec<P>> {
    let count = pieces.len();
    let mut ordered: Vec<Option<P>> = (0..count).map(|_| None).collect();
    for (piece, id) in pieces {
        let slot = id.as_u64().and_then(|id| ordered.get_mut(usize::try_from(id).ok()?));
        let slot = slot.filter(|slot| slot.is_none()).ok_or_else(|| {
            let piece = piece.as_ref();
            Error::failure(format!(
                "the id {id} of piece `{piece}` is used twice or not below the number of pieces, {count}"
            ))
        })?;
        *slot = Some(piece);
    }
    Ok(ordered.into_iter().flatten().collect())
}

/// The kinds that `added_tokens` asks for; all others are text.
fn kinds(file: &Value, ids: &HashMap<&str, u32>) -> Result<Vec<Kind>> {
    let mut kinds = vec![Kind::Text; ids.len()];
    for token in file["added_tokens"].as_array().map_or(&[][..], Vec::as_slice) {
        let content = token["content"].as_str().unwrap_or_default();
        let Some(&id) = ids.get(content).filter(|id| token["id"] == **id) else {
            return Err(Error::failure(format!(
                "its added token `{content}` is not in the vocabulary with the same id"
            )));
        };
        if token["special"] != true {
            return Err(Error::failure(format!(
                "its added token `{content}` is not special: mt cannot find it in text"
            )));
        }
        set(&mut kinds, id, Kind::Special);
    }
    Ok(kinds)
}

/// The two pieces of a merge, written `["a", "b"]` or, in older files, `"a b"`.
pub(super) fn merge_parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(pair) => pair.split_once(' '),
        pair => pair[0].as_str().zip(pair[1].as_str()),
    }
}

/// The merges of a model.
fn merges(model: &Value, ids: &HashMap<&str, u32>, kinds: &[Kind]) -> Result<Merges> {
    let list = model["merges"].as_array().ok_or_else(|| Error::failure("its model has no merges"))?;
    let text = |id: u32| kinds.get(id as usize) == Some(&Kind::Text);
    let mut merges = Merges::default();
    let mut joined = String::new();
    for (rank, merge) in (0_u32..).zip(list) {
        let found = merge_parts(merge).and_then(|(left, right)| {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            Some((*ids.get(left)?, *ids.get(right)?, *ids.get(joined.as_str())?))
        });
        match found {
            Some((left, right, result)) if text(left) && text(right) && text(result) => {
                merges.insert(left, right, rank, result);
            }
            _ => {
                return Err(Error::failure(format!(
                    "its merge {merge} is not of two pieces of text into a third of the vocabulary"
                )));
            }
        }
    }
    Ok(merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_pieces_have_one_spelling_each() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of_piece(&byte_piece(byte)), Some(byte));
        }
        assert_eq!(byte_piece(10), "<0x0A>");
        for piece in ["<0x+4>", "<0x4>", "<0x123>", "<0xé>", "0x41", "<0x41", ""] {
            assert_eq!(byte_of_piece(piece), None, "{piece}");
        }
    }
}
