//! From SentencePiece's pieces back to text.

use super::model::Pieces;
use super::normalise::Normaliser;
use super::proto::PieceKind;
use crate::data::tokenizer::pipeline::{SPACE, SPACE_PIECE};

/// What a model needs to write text.
pub(super) struct Decoder {
    /// AnsweredLines for the unknown piece.
    pub(super) unknown_surface: String,
    /// Applied to the whole text.
    pub(super) denormaliser: Option<Normaliser>,
    pub(super) has_dummy_prefix: bool,
    pub(super) removes_extra_spaces: bool,
}

impl Decoder {
    /// The text of pieces, each given as text and its id in the model. One that the model lacks stands for its own
    /// text; bytes that are not UTF-8 become U+FFFD, one each.
    pub(super) fn decode<'p>(&self, pieces: &Pieces, sequence: impl IntoIterator<Item = (&'p str, u32)>) -> String {
        let mut text = String::new();
        let mut bytes = Vec::new();
        // Whether the space before the line may still come, and whether it just came.
        let (mut at_start, mut prefix_seen) = (true, false);
        for (piece, id) in sequence {
            if let Some(byte) = pieces.byte(id) {
                bytes.push(byte);
                continue;
            }
            push_bytes(&mut bytes, &mut text);
            if prefix_seen || !text.is_empty() {
                at_start = false;
            }
            prefix_seen = false;
            match pieces.kind(id) {
                PieceKind::Control => {}
                PieceKind::Unknown if piece == pieces.text(id) => text.push_str(&self.unknown_surface),
                PieceKind::Unknown => text.push_str(piece),
                _ => {
                    let mut piece = piece;
                    if at_start && (self.has_dummy_prefix || self.removes_extra_spaces) {
                        let rest = piece.strip_prefix(SPACE_PIECE);
                        // If extra spaces are removed, so are all those before the line.
                        prefix_seen = rest.is_some() && !self.removes_extra_spaces;
                        piece = rest.unwrap_or(piece);
                    }
                    text.extend(piece.chars().map(|character| if character == SPACE { ' ' } else { character }));
                }
            }
        }
        push_bytes(&mut bytes, &mut text);
        // A text that would become many times as long stays as it is.
        let denormal = self.denormaliser.as_ref().and_then(|denormaliser| denormaliser.normalise(&text).ok());
        denormal.unwrap_or(text)
    }
}

/// Appends bytes as text, and forgets them.
fn push_bytes(bytes: &mut Vec<u8>, text: &mut String) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    bytes.clear();
}
