//! What every kind of tokenizer can do.

use std::borrow::Cow;

use serde_json::Value;

use super::bounded::GivenUp;
use super::codes::Codes;
use super::pipeline::SPACE;
use super::vocabulary::byte_of_piece;
use super::{TextForm, TokenizerKind};
use crate::error::Result;

/// BPE-dropout of one line.
#[derive(Clone, Copy)]
pub(super) struct Dropout {
    pub(super) probability: f32,
    pub(super) key: u64,
}

/// A way from text to ids and back.
pub(super) trait Engine: Send + Sync {
    /// The number of ids.
    fn len(&self) -> usize;

    /// The ids of padding, beginning, end and unknown.
    fn specials(&self) -> [u32; 4];

    /// The piece of an id.
    fn piece(&self, id: u32) -> Option<&str>;

    /// The ids of a line.
    fn encode(&self, line: &str) -> Vec<u32>;

    /// How the vocabulary was learnt, if that was by `mt`.
    fn kind(&self) -> Option<TokenizerKind> {
        None
    }

    /// The normalisation before splitting, if the file describes it in `mt`'s way.
    fn form(&self) -> Option<TextForm> {
        None
    }

    /// Whether there is BPE-dropout.
    fn has_dropout(&self) -> bool {
        false
    }

    /// The merges of subword-nmt that split text, if there are any.
    fn codes(&self) -> Option<&Codes> {
        None
    }

    /// The ids of a line under BPE-dropout, where there is any.
    fn encode_with_dropout(&self, line: &str, _dropout: Dropout) -> Vec<u32> {
        self.encode(line)
    }

    /// Whether it is a unigram model, which can draw segmentations.
    fn is_unigram(&self) -> bool {
        false
    }

    /// The ids of a line, split in a way that is drawn: see [`super::RandomSplit::Unigram`]. For a unigram model.
    fn draw(&self, line: &str, _alpha: f64, _nbest: usize, _key: u64) -> Vec<u32> {
        self.encode(line)
    }

    /// The text of ids.
    fn decode(&self, ids: &[u32]) -> String;

    /// The pieces of a line.
    fn pieces(&self, line: &str) -> Vec<String> {
        self.encode(line).into_iter().filter_map(|id| self.piece(id)).map(str::to_owned).collect()
    }

    /// The text of pieces with spaces between them.
    fn decode_pieces(&self, line: &str) -> String;

    /// What decoding a line's ids gives back.
    fn normalise(&self, line: &str) -> String {
        self.decode(&self.encode(line))
    }

    /// The form of a line that is split: it has the same ids.
    fn encoded_form(&self, line: &str) -> String {
        line.to_owned()
    }

    /// A line of a corpus as a reader would see it.
    fn plain<'t>(&self, line: &'t str) -> Cow<'t, str> {
        Cow::Borrowed(line)
    }

    /// The pieces of ids with `▁` for every space between words, and no other mark of how pieces join.
    fn marked(&self, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|&id| self.piece(id).unwrap_or_default().to_owned()).collect()
    }

    /// The bytes that a token adds to the text, with the space before or after it.
    fn written(&self, id: u32) -> Vec<u8> {
        let byte = self.piece(id).and_then(byte_of_piece);
        byte.map_or_else(|| self.marked(&[id]).concat().replace(SPACE, " ").into_bytes(), |byte| vec![byte])
    }

    /// Whether output is lower-case: no piece has a capital, except those between brackets or the like (`<unk>`,
    /// `⟨NUM⟩`), and most pieces with letters are in a cased script.
    fn lowers_case(&self) -> bool {
        let is_sign = |c: char| !c.is_alphanumeric() && c != SPACE;
        let is_bracketed = |piece: &str| piece.starts_with(is_sign) && piece.ends_with(is_sign);
        let pieces = (0..self.len() as u32).filter_map(|id| self.piece(id)).filter(|piece| !is_bracketed(piece));
        let (mut with_letters, mut with_case) = (0, 0);
        for piece in pieces {
            if piece.contains(char::is_uppercase) {
                return false;
            }
            with_letters += usize::from(piece.contains(char::is_alphabetic));
            with_case += usize::from(piece.contains(char::is_lowercase));
        }
        2 * with_case > with_letters
    }

    /// The special tokens that the file lacked and that were added after its vocabulary.
    fn appended(&self) -> &[String] {
        &[]
    }

    /// The whole file of the model, if this is SentencePiece.
    fn sentencepiece(&self) -> Option<Vec<u8>> {
        None
    }

    /// The parts of a `tokenizer.json` of the library for the first `size` ids, if this is SentencePiece.
    fn library_json(&self, _size: usize) -> Option<Result<Value>> {
        None
    }

    /// The message about text that the file cannot handle, if there may be any.
    fn given_up(&self) -> Option<&GivenUp> {
        None
    }

    /// The tags; each source line begins with one.
    fn language_tags(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The user's own symbols that are not tags.
    fn symbols(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The tag that a line begins with, whether it is known or not.
    fn language_tag<'t>(&self, _line: &'t str) -> Option<&'t str> {
        None
    }

    /// The codes of the languages that are pieces, with their ids.
    fn languages(&self) -> Vec<(&str, u32)> {
        Vec::new()
    }

    /// Whether a source's language comes after its end.
    fn language_last(&self) -> bool {
        false
    }

    /// The tag or symbols at the beginning of a line, which apply to all of it, and the white space after them.
    fn leading<'t>(&self, line: &'t str) -> &'t str {
        let after = line.strip_prefix(self.language_tag(line).unwrap_or_default()).unwrap_or(line);
        if after.len() < line.len() { &line[..line.len() - after.trim_start().len()] } else { "" }
    }

    /// The ids that a translation never has.
    fn forbidden(&self) -> Vec<u32> {
        let [pad, bos, _, unk] = self.specials();
        vec![pad, bos, unk]
    }
}

/// The names that special tokens usually have, in the order of [`super::vocabulary::SPECIALS`].
const USUAL_NAMES: [&[&str]; 4] = [
    &["<pad>", "[PAD]"],
    &["<s>", "[CLS]", "[BOS]", "<bos>"],
    &["</s>", "[SEP]", "[EOS]", "<eos>", "<|endoftext|>"],
    &["<unk>", "[UNK]"],
];

/// The ids of the special tokens among the pieces that `find` knows, by their usual names; `None` for one that is not
/// there.
pub(super) fn find_specials(find: impl Fn(&str) -> Option<u32>) -> [Option<u32>; 4] {
    USUAL_NAMES.map(|names| names.iter().find_map(|name| find(name)))
}
