//! Phrases that a translation must not contain, in whatever tokens they would be spelled.

use std::sync::Arc;

use super::surfaces::{Surfaces, begins_in_word, ends_in_word};

/// A phrase to avoid, as whole words: `cat` does not exclude `cats`, where the letters after it are of the same token.
#[derive(Debug, PartialEq, Eq)]
pub struct Avoided {
    text: Vec<u8>,
    /// The tokens that contain it after their first byte.
    inside: Vec<u32>,
    /// Where words of it begin, but for the first.
    words: Vec<usize>,
}

impl Avoided {
    /// A phrase that is not empty, as translations write it.
    pub fn new(phrase: &str, surfaces: &Surfaces) -> Self {
        let contains = |text: &[u8]| occurrences(text, phrase).any(|offset| offset > 0);
        let is_word = |offset: &usize| {
            let (before, after) = phrase.split_at(*offset);
            !after.starts_with(' ') && !joins(before.as_bytes(), after.as_bytes())
        };
        Self {
            text: phrase.as_bytes().to_vec(),
            inside: surfaces.all().filter(|(_, text)| contains(text)).map(|(id, _)| id).collect(),
            words: phrase.char_indices().map(|(offset, _)| offset).skip(1).filter(is_word).collect(),
        }
    }
}

/// Whether a word goes on from one text to the next.
fn joins(before: &[u8], after: &[u8]) -> bool {
    ends_in_word(before) && begins_in_word(after)
}

/// Where a text has a phrase as whole words.
fn occurrences<'t>(text: &'t [u8], phrase: &'t str) -> impl Iterator<Item = usize> + 't {
    let phrase = phrase.as_bytes();
    let windows = text.windows(phrase.len().max(1)).enumerate();
    let is_whole = move |(offset, window): &(usize, &[u8])| {
        let (before, after) = (&text[..*offset], &text[offset + window.len()..]);
        *window == phrase && !joins(before, window) && !joins(window, after)
    };
    windows.filter(is_whole).map(|(offset, _)| offset)
}

/// Whether a text contains a phrase as whole words.
pub(super) fn contains(text: &str, phrase: &str) -> bool {
    occurrences(text.as_bytes(), phrase).next().is_some()
}

/// The phrases that the translation of a source must not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Avoid {
    phrases: Vec<Arc<Avoided>>,
    surfaces: Arc<Surfaces>,
    /// Whether the source is a part of a line after another: a phrase may have begun in the translation of that one.
    /// Which words it ends with is not known, so the later words of a phrase are no beginning here.
    goes_on: bool,
}

impl Avoid {
    /// Phrases for a source that is the first part of its line, or another one.
    pub fn new(phrases: Vec<Arc<Avoided>>, surfaces: &Arc<Surfaces>, goes_on: bool) -> Self {
        Self { phrases, surfaces: surfaces.clone(), goes_on }
    }

    /// The tokens that must not follow these, with which a translation begins, the first `forced` of them not by
    /// choice. Of a phrase that ends with the token, it is not known whether its last word goes on; it is excluded.
    pub(super) fn forbid(&self, tokens: &[u32], forced: usize) -> Vec<u32> {
        let mut forbidden = Vec::new();
        let written = self.surfaces.texts(tokens);
        let own = self.surfaces.texts(tokens.get(forced..).unwrap_or_default());
        let own = own.trim_ascii_start();
        for phrase in &self.phrases {
            forbidden.extend_from_slice(&phrase.inside);
            for offset in 0..phrase.text.len() {
                let (begun, rest) = phrase.text.split_at(offset);
                if let Some(before) = written.strip_suffix(begun)
                    && !joins(before, &phrase.text)
                {
                    self.forbid_beginning(&phrase.text, rest, &mut forbidden);
                }
            }
            for &word in phrase.words.iter().filter(|_| self.goes_on) {
                let Some(rest) = phrase.text[word..].strip_prefix(own) else { continue };
                if own.is_empty() {
                    self.forbid_beginning(&phrase.text, &[b" ", rest].concat(), &mut forbidden);
                }
                if !rest.is_empty() {
                    self.forbid_beginning(&phrase.text, rest, &mut forbidden);
                }
            }
        }
        forbidden.sort_unstable();
        forbidden.dedup();
        forbidden
    }

    /// Adds the tokens that begin with the rest of a phrase, unless its last word goes on inside the token.
    fn forbid_beginning(&self, phrase: &[u8], rest: &[u8], forbidden: &mut Vec<u32>) {
        let tokens = self.surfaces.beginning_with(rest).iter().copied();
        forbidden.extend(tokens.filter(|token| !joins(phrase, &self.surfaces.text(*token)[rest.len()..])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 14] =
        ["", " the", " cat", "s", " Kat", "ze", "zen", " Katze", " Katzen", ",", "猫", " a cat", " ", "Katze"];

    fn forbidden(phrases: &[&str], goes_on: bool, tokens: &[u32]) -> Vec<u32> {
        let surfaces = Arc::new(Surfaces::new(TEXTS.map(|text| text.as_bytes().to_vec())));
        let phrases = phrases.iter().map(|phrase| Arc::new(Avoided::new(phrase, &surfaces))).collect();
        Avoid::new(phrases, &surfaces, goes_on).forbid(tokens, 0)
    }

    #[test]
    fn a_phrase_is_avoided_however_it_is_spelled() {
        // In one token, at the beginning or after others, and in two.
        assert_eq!(forbidden(&["Katze"], false, &[]), [7, 13]);
        assert_eq!(forbidden(&["Katze"], false, &[1]), [7]);
        assert_eq!(forbidden(&["Katze"], false, &[1, 4]), [5, 7]);
        assert_eq!(forbidden(&["Katze"], false, &[1, 12]), [7, 13]);
        assert_eq!(forbidden(&["the cat", "猫"], false, &[9, 1]), [2, 10]);
        assert!(forbidden(&["the cat"], false, &[1, 12]).is_empty());
        assert_eq!(forbidden(&["cat", "a"], false, &[1]), [2, 11]);
        // A longer word that contains it is a different word.
        assert_eq!(forbidden(&["Kat"], false, &[1]), [4]);
        assert!(forbidden(&["zen", "s"], false, &[4]).is_empty());
    }

    #[test]
    fn a_phrase_is_not_put_together_of_two_parts_of_a_line() {
        assert_eq!(forbidden(&["the cat"], true, &[]), [2]);
        assert!(forbidden(&["the cat"], true, &[9]).is_empty());
        assert_eq!(forbidden(&["the cat s"], true, &[2, 12]), [3]);
        assert_eq!(forbidden(&["die Katze, the cat"], true, &[7, 9, 1]), [2]);
        assert_eq!(forbidden(&["白猫"], true, &[]), [10]);
    }

    #[test]
    fn texts_contain_whole_words() {
        for (text, phrase, is_there) in [
            ("the cat", "cat", true),
            ("the cats", "cat", false),
            ("concat", "cat", false),
            ("cats, cat.", "cat", true),
            ("我喜欢猫。", "喜欢", true),
            ("don't", "don", true),
            ("a  b", "a b", false),
            ("", "a", false),
        ] {
            assert_eq!(contains(text, phrase), is_there, "{text}: {phrase}");
        }
    }
}
