//! From ids or pieces back to text.
//!
//! Pieces are joined, `▁` becomes a space, byte pieces become bytes; then the one space that encoding put before the
//! line is taken off and the escape of `▁` undone (see [`super::pipeline`]). A model may write anything: bytes that are
//! not UTF-8 become U+FFFD, special tokens and ids out of range vanish.

use super::pipeline::{SPACE, unescape};
use super::vocabulary::{Kind, Vocabulary, byte_of_piece};

/// The text of a sequence of ids.
pub(super) fn ids_to_text(vocabulary: &Vocabulary, ids: &[u32]) -> String {
    let mut text = Vec::with_capacity(ids.len() * 4);
    for (piece, kind) in ids.iter().filter_map(|&id| vocabulary.get(id)) {
        push(piece, kind, &mut text);
    }
    finish(text)
}

/// The text of a sequence of pieces as [`super::Tokenizer::pieces`] writes them. One that the vocabulary lacks stands
/// for its own text.
pub(super) fn pieces_to_text<'a>(vocabulary: &Vocabulary, pieces: impl Iterator<Item = &'a str>) -> String {
    let mut text = Vec::new();
    for piece in pieces {
        let kind = match byte_of_piece(piece) {
            Some(byte) => Kind::Byte(byte),
            None if vocabulary.is_special(piece) => Kind::Special,
            None => Kind::Text,
        };
        push(piece, kind, &mut text);
    }
    finish(text)
}

fn push(piece: &str, kind: Kind, text: &mut Vec<u8>) {
    match kind {
        Kind::Special => {}
        Kind::Byte(byte) => text.push(byte),
        Kind::Text => {
            let mut stretches = piece.split(SPACE);
            text.extend_from_slice(stretches.next().unwrap_or_default().as_bytes());
            for stretch in stretches {
                text.push(b' ');
                text.extend_from_slice(stretch.as_bytes());
            }
        }
    }
}

fn finish(mut text: Vec<u8>) -> String {
    if text.first() == Some(&b' ') {
        text.remove(0);
    }
    let text = String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
    unescape(text)
}
