//! The text of each token of a vocabulary, so that a search can recognise words, whatever tokens spell them.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};
use unicode_script::UnicodeScript;

use crate::data::text::script::is_without_spaces;
use crate::data::tokenizer::Tokenizer;

/// The text of each token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surfaces {
    texts: Vec<Box<[u8]>>,
    /// All tokens that write something, by their text.
    sorted: Vec<u32>,
}

impl Surfaces {
    /// From the text of each token, in bytes, with the space before or after it.
    pub fn new(texts: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let texts: Vec<Box<[u8]>> = texts.into_iter().map(Into::into).collect();
        let mut sorted: Vec<u32> = (0..).zip(&texts).filter(|(_, text)| !text.is_empty()).map(|(id, _)| id).collect();
        sorted.sort_by_key(|&id| &texts[id as usize]);
        Self { texts, sorted }
    }

    /// Those of a tokenizer.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self::new((0..tokenizer.vocab_size() as u32).map(|id| tokenizer.written(id)))
    }

    /// The text of a token.
    pub fn text(&self, token: u32) -> &[u8] {
        self.texts.get(token as usize).map_or(&[], AsRef::as_ref)
    }

    /// Whether a token is known to write nothing.
    pub fn writes_nothing(&self, token: u32) -> bool {
        self.texts.get(token as usize).is_some_and(|text| text.is_empty())
    }

    /// The text of tokens.
    pub fn texts(&self, tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|token| self.text(*token)).copied().collect()
    }

    /// The tokens whose text begins with this one.
    pub fn beginning_with(&self, text: &[u8]) -> &[u32] {
        let first = self.sorted.partition_point(|id| self.text(*id) < text);
        let count = self.sorted[first..].partition_point(|id| self.text(*id).starts_with(text));
        &self.sorted[first..first + count]
    }

    /// The tokens that write something, with their text.
    pub fn all(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.sorted.iter().map(|id| (*id, self.text(*id)))
    }

    /// Whether a word goes on from one token to the next.
    pub fn joins(&self, first: u32, next: u32) -> bool {
        ends_in_word(self.text(first)) && begins_in_word(self.text(next))
    }
}

/// Whether a character is of a word that spaces separate from others. Those of scripts without such spaces are not:
/// there, words end anywhere.
fn is_of_word(character: char) -> bool {
    let is_spaced = !is_without_spaces(character.script());
    // The mark of long vowels is of no script.
    let is_of_kana = character == '\u{30FC}';
    let is_mark = || character.general_category_group() == GeneralCategoryGroup::Mark;
    is_spaced && !is_of_kana && (character.is_alphanumeric() || is_mark())
}

/// The most bytes of a character.
const CHARACTER: usize = 4;

/// Whether text begins with a character of a word. For an incomplete character, the first byte shows the script well
/// enough: in UTF-8, E2 begins punctuation and symbols, E3 to E9 kana and Chinese characters, EF and F0 wide forms and
/// emoji.
pub(super) fn begins_in_word(text: &[u8]) -> bool {
    let Some(&first) = text.first() else { return false };
    match text[..text.len().min(CHARACTER)].utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next()) {
        Some(character) => is_of_word(character),
        None => !matches!(first, 0xE2..=0xE9 | 0xEF..),
    }
}

/// Whether text ends with a character of a word, or inside a character.
pub(super) fn ends_in_word(text: &[u8]) -> bool {
    let last = text[text.len().saturating_sub(2 * CHARACTER)..].utf8_chunks().last();
    last.is_some_and(|chunk| !chunk.invalid().is_empty() || chunk.valid().chars().next_back().is_some_and(is_of_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_on_inside_words_only() {
        let texts = [" Kat", "ze", ",", " und", "猫", "です", "é", "\u{301}", "ไทย", "3"];
        let bytes = [vec![0xC3], vec![0xA9], vec![0xE4], vec![]];
        let surfaces = Surfaces::new(texts.iter().map(|text| text.as_bytes().to_vec()).chain(bytes));
        let joined: Vec<(u32, u32)> = (0..14)
            .flat_map(|first| (0..14).map(move |next| (first, next)))
            .filter(|(first, next)| surfaces.joins(*first, *next))
            .collect();
        let (ends, begins) = ([0, 1, 3, 6, 7, 9, 10, 11, 12], [1, 6, 7, 9, 10, 11]);
        let expected: Vec<(u32, u32)> = ends.into_iter().flat_map(|first| begins.map(|next| (first, next))).collect();
        assert_eq!(joined, expected);
    }

    #[test]
    fn tokens_are_found_by_how_they_begin() {
        let surfaces = Surfaces::new([" a", " ab", "b", "", " abc", " b"].map(|text| text.as_bytes().to_vec()));
        assert_eq!(surfaces.beginning_with(b" ab"), [1, 4]);
        assert_eq!(surfaces.beginning_with(b" "), [0, 1, 4, 5]);
        assert!(surfaces.beginning_with(b"c").is_empty());
        assert_eq!(surfaces.texts(&[0, 2, 3, 9]), b" ab");
    }
}
