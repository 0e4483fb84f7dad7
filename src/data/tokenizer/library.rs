//! Any other `tokenizer.json`, by the `tokenizers` library's own encoding and decoding.
//!
//! Nothing is added to a line nor cut off, and what looks like a special token in it is text.

use std::collections::HashMap;

use tokenizers::{AddedToken, Decoder};

use super::engine::{Engine, find_specials};
use super::pipeline::{SPACE, SPACE_PIECE};
use super::vocabulary::{SPECIALS, byte_of_piece, in_order};
use crate::error::{Error, Result};

/// A tokenizer of the library.
pub(super) struct Library {
    inner: tokenizers::Tokenizer,
    pieces: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
    specials: [u32; 4],
    appended: Vec<String>,
    marking: Marking,
}

/// How the pieces tell where a word begins.
#[derive(Clone, Copy)]
enum Marking {
    /// By `▁` for a space.
    Space,
    /// By `Ġ` for a space, as in byte-level BPE.
    ByteLevel,
    /// By `##` inside words, as in WordPiece, or by nothing: then each piece is a word.
    Inside,
}

/// A space in byte-level BPE.
const BYTE_LEVEL_SPACE: char = 'Ġ';
/// Before a piece inside a word, in WordPiece.
const INSIDE: &str = "##";

impl Marking {
    fn of(pieces: &[Box<str>]) -> Self {
        let some = |mark: char| pieces.iter().any(|piece| piece.len() > mark.len_utf8() && piece.starts_with(mark));
        match (some(SPACE), some(BYTE_LEVEL_SPACE)) {
            (true, _) => Self::Space,
            (_, true) => Self::ByteLevel,
            _ => Self::Inside,
        }
    }
}

impl Library {
    /// Reads a `tokenizer.json`; special tokens that it lacks are added after its vocabulary.
    ///
    /// # Errors
    /// The library cannot read it, its ids have gaps, or it cannot encode any text.
    pub(super) fn from_json(json: &str) -> Result<Self> {
        let failed = |error: tokenizers::Error| Error::failure(error.to_string()).caused_by(error);
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(failed)?;
        inner.with_truncation(None).map_err(failed)?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        let pieces = in_order(inner.get_vocab(true).into_iter().map(|(piece, id)| (piece, id.into())))?;
        let mut pieces: Vec<Box<str>> = pieces.into_iter().map(Into::into).collect();
        let mut appended = Vec::new();
        let found = find_specials(|name| inner.token_to_id(name)).into_iter().zip(SPECIALS);
        let mut specials = [0; 4];
        for (slot, (found, name)) in specials.iter_mut().zip(found) {
            *slot = found.unwrap_or_else(|| {
                appended.push(name.to_owned());
                (pieces.len() + appended.len() - 1) as u32
            });
        }
        let new = appended.iter().map(|name| AddedToken::from(name.clone(), true));
        inner.add_special_tokens(new).map_err(failed)?;
        pieces.extend(appended.iter().map(|name| name.as_str().into()));
        let ids: HashMap<Box<str>, u32> = pieces.iter().cloned().zip(0..).collect();
        let lost = appended.iter().any(|name| inner.token_to_id(name) != ids.get(name.as_str()).copied());
        if lost {
            return Err(Error::failure("no special token can be added at the end of its vocabulary"));
        }
        let marking = Marking::of(&pieces);
        let new = Self { inner, pieces, ids, specials, appended, marking };
        // A model without a piece for unknown text refuses what it does not know.
        if let Err(error) = new.inner.encode_fast("a \u{10FFFD}\u{E000} 0 \u{1F600}", false) {
            return Err(Error::failure(format!("it cannot encode unknown text: {error}")).caused_by(error));
        }
        Ok(new)
    }

    /// The text of the file, with what was appended.
    pub(super) fn to_json(&self) -> Result<String> {
        let written = self.inner.to_string(true);
        written.map_err(|error| Error::failure("cannot write the tokenizer").caused_by(error))
    }

    /// Joins pieces as the file says.
    fn join(&self, pieces: Vec<String>) -> String {
        // Some of the library's decoders take the last of the pieces without asking whether there is one.
        if pieces.is_empty() {
            return String::new();
        }
        match self.inner.get_decoder() {
            Some(decoder) => decoder.decode(pieces).unwrap_or_default(),
            None => pieces.join(" "),
        }
    }

    /// A token found in text. Unigram models find their special tokens there too: such a one is spelled, by the pieces of its
    /// characters.
    fn as_text(&self, id: u32) -> Vec<u32> {
        let [.., unk] = self.specials;
        match self.pieces.get(id as usize) {
            Some(piece) if id != unk && self.specials.contains(&id) => {
                let of_character = |c: char| self.ids.get(c.encode_utf8(&mut [0; 4]) as &str).copied().unwrap_or(unk);
                piece.chars().map(of_character).collect()
            }
            _ => vec![id],
        }
    }

    fn is_special(&self, id: u32, piece: &str) -> bool {
        self.specials.contains(&id) || self.inner.get_added_vocabulary().is_special_token(piece)
    }
}

impl Engine for Library {
    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn specials(&self) -> [u32; 4] {
        self.specials
    }

    fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(AsRef::as_ref)
    }

    fn encode(&self, line: &str) -> Vec<u32> {
        let [_, _, _, unk] = self.specials;
        // A foreign regular expression may give up: the whole line is then unknown.
        let Ok(encoded) = self.inner.encode_fast(line, false) else { return vec![unk] };
        encoded.get_ids().iter().flat_map(|&id| self.as_text(id)).collect()
    }

    fn decode(&self, ids: &[u32]) -> String {
        let pieces = ids.iter().filter_map(|&id| self.piece(id).filter(|piece| !self.is_special(id, piece)));
        self.join(pieces.map(str::to_owned).collect())
    }

    fn decode_pieces(&self, line: &str) -> String {
        let is_text = |piece: &&str| self.ids.get(*piece).is_none_or(|&id| !self.is_special(id, piece));
        self.join(line.split_whitespace().filter(is_text).map(str::to_owned).collect())
    }

    fn marked(&self, ids: &[u32]) -> Vec<String> {
        let mark = |&id: &u32| {
            let piece = self.piece(id).unwrap_or_default();
            match self.marking {
                Marking::Space => piece.to_owned(),
                Marking::ByteLevel => piece.replace(BYTE_LEVEL_SPACE, SPACE_PIECE),
                Marking::Inside => match piece.strip_prefix(INSIDE) {
                    Some(rest) => rest.to_owned(),
                    None => format!("{SPACE_PIECE}{piece}"),
                },
            }
        };
        ids.iter().map(mark).collect()
    }

    fn written(&self, id: u32) -> Vec<u8> {
        let piece = self.piece(id).unwrap_or_default();
        match self.marking {
            Marking::ByteLevel => piece.chars().map_while(byte_of_character).collect(),
            Marking::Space if byte_of_piece(piece).is_some() => byte_of_piece(piece).into_iter().collect(),
            _ => self.marked(&[id]).concat().replace(SPACE, " ").into_bytes(),
        }
    }

    fn appended(&self) -> &[String] {
        &self.appended
    }
}

/// The byte that a character of byte-level BPE stands for: printable characters of Latin-1 stand for themselves, and the other
/// bytes, in order, are U+0100 and those after it.
fn byte_of_character(character: char) -> Option<u8> {
    let is_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u8::try_from(character) {
        Ok(byte) => is_itself(&byte).then_some(byte),
        Err(_) => {
            let place = (character as usize).checked_sub(0x100)?;
            (0..=u8::MAX).filter(|byte| !is_itself(byte)).nth(place)
        }
    }
}
