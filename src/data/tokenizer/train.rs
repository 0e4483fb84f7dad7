//! Learning a vocabulary.
//!
//! The corpus is reduced to counted words before the library's trainer sees it, so that memory follows the number of
//! different words and not the corpus. What the trainer is given, and so the file, depends on nothing but the text.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, BpeTrainer};

use super::pipeline::{self, ESCAPE, Pipeline, SPACE};
use super::symbols::Symbols;
use super::vocabulary::{SPECIALS, byte_piece};
use super::{TextForm, normalise, symbols};
use crate::error::{Error, Result};

/// The smallest vocabulary: the special tokens, the 256 bytes and the space marker.
const SMALLEST: usize = SPECIALS.len() + 256 + 1;
/// A pair is merged only if it occurs at least this often: a model learns nothing from a single occurrence.
const MIN_FREQUENCY: u64 = 2;
/// The longest word that the trainer sees, in characters; longer ones are not real words and are cut. Training time
/// grows with the square of a word's length.
const LONGEST_WORD: usize = 256;

/// How to learn a tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    /// The number of ids wanted, special tokens and bytes included. Text that supports fewer merges gives fewer.
    pub vocab_size: usize,
    /// The normalisation of text before splitting.
    pub form: TextForm,
    /// The longest piece, in characters, the space marker included.
    pub max_piece_length: usize,
    /// Share of the text's characters that get pieces of their own, the most frequent first. The others are written in
    /// bytes.
    pub character_coverage: f64,
    /// Strings that are one piece wherever they stand, whatever their length, and that source lines begin with.
    pub tags: Vec<String>,
    /// Other strings that are one piece wherever they stand.
    pub symbols: Vec<String>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            vocab_size: 10_000,
            form: TextForm::default(),
            max_piece_length: 16,
            character_coverage: 0.9999,
            tags: Vec::new(),
            symbols: Vec::new(),
        }
    }
}

impl TrainOptions {
    /// The normalised form of a symbol.
    ///
    /// # Errors
    /// A usage error with the reason why it is invalid.
    pub fn symbol(&self, stated: &str) -> Result<String> {
        symbols::checked(stated, normalise::normalise(stated, self.form))
    }

    /// Tags and other symbols, normalised.
    fn symbols(&self) -> Result<Symbols> {
        let as_text = |stated: &[String]| stated.iter().map(|stated| self.symbol(stated)).collect::<Result<Vec<_>>>();
        Symbols::new(as_text(&self.tags)?, as_text(&self.symbols)?)
    }

    /// Checks that a vocabulary of that size and kind is possible.
    ///
    /// # Errors
    /// A usage error with the necessary change.
    pub fn check(&self) -> Result<()> {
        let count = self.symbols()?.iter().count();
        let smallest = SMALLEST + count;
        if self.vocab_size < smallest {
            let symbols = if count == 0 { "" } else { ", the symbols" };
            return Err(Error::usage(format!(
                "a vocabulary of {} is too small: the special tokens, the 256 bytes{symbols} and the space need \
                 {smallest}",
                self.vocab_size
            ))
            .help(format!("set `tokenizer.vocab_size` to at least {smallest}; a few thousand or more are usual")));
        }
        if self.max_piece_length == 0 {
            return Err(Error::usage("`tokenizer.max_piece_length` is 0: a piece has at least one character"));
        }
        Ok(())
    }
}

/// What a text is made of: how often each stretch between two spaces occurs. Its size depends on the distinct ones
/// alone.
#[derive(Clone, Debug, Default)]
pub struct TextCounts(HashMap<Box<str>, u64>);

impl TextCounts {
    /// Counts the words and characters of a line.
    pub fn add(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        for stretch in line.split(' ') {
            match self.0.get_mut(stretch) {
                Some(count) => *count += 1,
                None => {
                    self.0.insert(stretch.into(), 1);
                }
            }
        }
    }

    /// The stretches with their counts, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(stretch, count)| (stretch.as_ref(), *count))
    }

    /// Adds the counts of another text.
    pub fn merge(&mut self, other: Self) {
        let mine = std::mem::take(&mut self.0);
        self.0 = add_counts(mine, other.0);
    }
}

/// Learns merges from a text and returns the text of `tokenizer.json`.
pub(super) fn train(text: TextCounts, options: &TrainOptions) -> Result<String> {
    options.check()?;
    let symbols = options.symbols()?;
    let normalizer = normalise::normalizer(options.form)?;
    let pre_tokenizer = pipeline::pre_tokenizer(&symbols)?;
    let decoder = pipeline::decoder()?;
    let parts = serde_json::json!({ "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder });
    let mut words = count_words(&Pipeline::from_json(&parts)?, text.0);
    words.retain(|word, _| !symbols.contains(word));
    let room = options.vocab_size - SMALLEST - symbols.iter().count();
    let alphabet = alphabet(&words, options.character_coverage, room);
    let words = within(&alphabet, words);

    // The trainer ignores the order of the words and breaks ties by id, and ids follow from the sorted alphabet and the
    // merges before; so its hash maps leave no trace in what it learns.
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(options.vocab_size)
        .min_frequency(if options.max_piece_length == 1 { u64::MAX } else { MIN_FREQUENCY })
        // The trainer joins two pieces only if the result is shorter than this.
        .max_token_length(Some(options.max_piece_length.saturating_add(1)))
        .initial_alphabet(HashSet::from([SPACE]))
        .special_tokens(reserved(&symbols))
        .build();
    let mut model = BPE::default();
    let word_counts = words.into_iter().map(|(word, count)| (word.into(), count)).collect();
    trainer.do_train(&word_counts, &mut model).map_err(|error| failed("learn the merges", error))?;
    model.unk_token = Some(SPECIALS[3].to_owned());
    model.byte_fallback = true;
    model.ignore_merges = !symbols.is_empty();

    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(normalizer)).map_err(|error| failed("set the normaliser", error))?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer)).with_decoder(Some(decoder));
    tokenizer
        .add_special_tokens(SPECIALS.map(|content| AddedToken::from(content, true)))
        .map_err(|error| failed("add the special tokens", error))?;
    tokenizer.to_string(true).map_err(|error| failed("write the tokenizer", error))
}

fn failed(doing: &str, error: tokenizers::Error) -> Error {
    Error::failure(format!("cannot {doing}: {error}")).caused_by(error)
}

/// The pieces that come before the alphabet: the special tokens, the bytes and the symbols. They are the first ids.
fn reserved(symbols: &Symbols) -> Vec<AddedToken> {
    let bytes = (0..=u8::MAX).map(byte_piece);
    SPECIALS
        .iter()
        .map(|content| (*content).to_owned())
        .chain(bytes)
        .chain(symbols.iter().cloned())
        .map(|piece| AddedToken::from(piece, true))
        .collect()
}

/// The words of counted stretches, counted.
fn count_words(pipeline: &Pipeline, stretches: HashMap<Box<str>, u64>) -> HashMap<String, u64> {
    stretches
        .into_par_iter()
        .fold(HashMap::new, |mut counts, (stretch, count)| {
            pipeline.for_each_word(&stretch, |word| match counts.get_mut(word) {
                Some(total) => *total += count,
                None => {
                    counts.insert(word.to_owned(), count);
                }
            });
            counts
        })
        .reduce(HashMap::new, add_counts)
}

/// The sum of two tables of counts.
fn add_counts<K: std::hash::Hash + Eq>(mut a: HashMap<K, u64>, mut b: HashMap<K, u64>) -> HashMap<K, u64> {
    if a.len() < b.len() {
        std::mem::swap(&mut a, &mut b);
    }
    for (key, count) in b {
        *a.entry(key).or_default() += count;
    }
    a
}

/// The characters that get a piece of their own: the most frequent ones (of equals, the first in Unicode) that cover
/// this share of the text, at most `room`. White space, control characters and the escape never do: they would spoil a
/// line of pieces.
fn alphabet(words: &HashMap<String, u64>, coverage: f64, room: usize) -> HashSet<char> {
    let mut counts: HashMap<char, u64> = HashMap::new();
    for (word, count) in words {
        for character in word.chars() {
            *counts.entry(character).or_default() += count;
        }
    }
    counts.retain(|&c, _| !(c == SPACE || c == ESCAPE || c.is_whitespace() || c.is_control()));
    // One in ten thousand is 1, although 1 - 0.9999 is a little less.
    let uncovered = (counts.values().sum::<u64>() as f64 * (1.0 - coverage) + 1e-6) as u64;
    let mut ranked: Vec<(char, u64)> = counts.into_iter().collect();
    ranked.sort_unstable_by_key(|&(character, count)| (Reverse(count), character));
    let mut dropped = 0;
    while let Some(&(_, count)) = ranked.last() {
        dropped += count;
        if dropped <= uncovered || ranked.len() > room {
            ranked.pop();
        } else {
            break;
        }
    }
    ranked.into_iter().map(|(character, _)| character).chain([SPACE]).collect()
}

/// A word in parts of at most [`LONGEST_WORD`] characters.
fn in_short_parts(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let end = rest.char_indices().nth(LONGEST_WORD).map_or(rest.len(), |(end, _)| end);
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// The words, cut at characters outside the alphabet, so that no merge crosses one. Their counts are scaled down
/// together if necessary, since the trainer counts pairs in 32 bits.
fn within(alphabet: &HashSet<char>, words: HashMap<String, u64>) -> HashMap<String, u64> {
    let pairs: u128 = words.iter().map(|(word, &count)| word.len() as u128 * u128::from(count)).sum();
    let scale = u64::try_from(pairs / i32::MAX as u128 + 1).unwrap_or(u64::MAX);
    let mut cut = HashMap::with_capacity(words.len());
    for (word, count) in words {
        for part in word.split(|character| !alphabet.contains(&character)).filter(|part| !part.is_empty()) {
            for part in in_short_parts(part) {
                *cut.entry(part.to_owned()).or_default() += count.div_ceil(scale);
            }
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: f64 = 0.9999;

    fn counted(words: &[(&str, u64)]) -> HashMap<String, u64> {
        words.iter().map(|&(word, count)| (word.to_owned(), count)).collect()
    }

    #[test]
    fn the_alphabet_keeps_the_frequent_and_drops_the_unprintable() {
        let words = counted(&[("▁aab", 3), ("c\td", 2), ("\u{FDD0}\u{2028}", 9)]);
        assert_eq!(alphabet(&words, USUAL, 100), HashSet::from(['▁', 'a', 'b', 'c', 'd']));
        // Of the equally frequent c and d, the first stays.
        assert_eq!(alphabet(&words, USUAL, 3), HashSet::from(['▁', 'a', 'b', 'c']));
        assert_eq!(alphabet(&words, USUAL, 0), HashSet::from(['▁']));
    }

    #[test]
    fn one_character_in_ten_thousand_may_be_uncovered() {
        let words = counted(&[("a", 19_997), ("b", 2), ("c", 1)]);
        // 20,000 characters: two may go; c goes, b would make it three.
        assert_eq!(alphabet(&words, USUAL, 100), HashSet::from(['▁', 'a', 'b']));
        let others = [(1.0, &['▁', 'a', 'b', 'c'][..]), (0.9998, &['▁', 'a'])];
        for (coverage, left) in others {
            assert_eq!(alphabet(&words, coverage, 100), left.iter().copied().collect(), "{coverage}");
        }
    }

    #[test]
    fn words_are_cut_outside_the_alphabet() {
        let words = counted(&[("▁ab", 2), ("axb", 3), ("x", 1)]);
        let cut = within(&HashSet::from(['▁', 'a', 'b']), words);
        assert_eq!(cut, counted(&[("▁ab", 2), ("a", 3), ("b", 3)]));
    }

    #[test]
    fn long_words_are_cut() {
        let word = "ä".repeat(2 * LONGEST_WORD + 1);
        let lengths: Vec<usize> = in_short_parts(&word).map(|part| part.chars().count()).collect();
        assert_eq!(lengths, [LONGEST_WORD, LONGEST_WORD, 1]);
    }

    #[test]
    fn counts_fit_the_trainer() {
        let cut = within(&HashSet::from(['a', 'b']), counted(&[("ab", 1 << 33), ("ba", 1)]));
        assert!(cut["ab"] < (1 << 31) && cut["ab"] > (1 << 28), "{cut:?}");
        assert_eq!(cut["ba"], 1);
    }

    #[test]
    fn impossible_options_are_refused() {
        let train = |vocab_size, max_piece_length| {
            let mut text = TextCounts::default();
            text.add("a b");
            train(text, &TrainOptions { vocab_size, max_piece_length, ..TrainOptions::default() })
        };
        let error = train(260, 16).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("at least 261"), "{error}");
        assert!(train(261, 16).is_ok());
        assert_eq!(train(300, 0).unwrap_err().exit_code(), 2);
    }
}
