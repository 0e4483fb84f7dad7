//! What a corpus is like: how much text, how long, in which scripts.

use std::collections::HashMap;

use unicode_script::{Script, UnicodeScript};

use crate::data::corpus::PairSource;
use crate::data::text::script::is_without_spaces;
use crate::error::Result;
use crate::rng::mix64;

/// Characters, about, of what counts as a word in scripts without spaces between words.
const CHARACTERS_PER_WORD: f64 = 2.0;
/// Longer pairs count as this long.
const LONGEST: usize = 1024;
/// One line in so many has its letters counted by script.
const EVERY: usize = 16;

/// One side of a corpus.
#[derive(Clone, Debug, Default)]
pub(super) struct SideSurvey {
    /// Words, about.
    pub words: f64,
    /// Letters of a sample of lines.
    letters: HashMap<Script, usize>,
    /// Full-width punctuation.
    pub wide_marks: usize,
}

impl SideSurvey {
    /// The script of most letters.
    pub(super) fn script(&self) -> Option<Script> {
        self.letters.iter().max_by_key(|(script, count)| (**count, script.full_name())).map(|(script, _)| *script)
    }

    /// Whether most letters are of scripts that put no spaces between words.
    pub(super) fn is_without_spaces(&self) -> bool {
        let of = |wanted: &dyn Fn(Script) -> bool| -> usize {
            self.letters.iter().filter(|(script, _)| wanted(**script)).map(|(_, count)| count).sum()
        };
        2 * of(&is_without_spaces) > of(&|_| true)
    }

    /// Whether it is Chinese: Chinese characters without the syllables of Japanese.
    pub(super) fn is_chinese(&self) -> bool {
        let of = |script| self.letters.get(&script).copied().unwrap_or_default();
        self.script() == Some(Script::Han) && 20 * (of(Script::Hiragana) + of(Script::Katakana)) < of(Script::Han)
    }

    /// Adds a line; returns its words, about.
    fn add(&mut self, line: &str, is_sampled: bool) -> usize {
        let (mut words, mut without_spaces, mut in_word) = (0_u32, 0_u32, false);
        for c in line.chars() {
            // Nearly all text is ASCII or near it, whose script need not be looked up.
            let lacks_spaces = c > '\u{0E00}' && is_without_spaces(c.script());
            let is_wide_mark =
                matches!(c, '\u{FF01}' | '\u{FF08}' | '\u{FF09}' | '\u{FF0C}' | '\u{FF1A}' | '\u{FF1B}' | '\u{FF1F}');
            self.wide_marks += usize::from(is_wide_mark);
            without_spaces += u32::from(lacks_spaces);
            let is_word = !c.is_whitespace() && !lacks_spaces;
            words += u32::from(is_word && !in_word);
            in_word = is_word;
            if is_sampled && c.is_alphabetic() {
                *self.letters.entry(c.script()).or_default() += 1;
            }
        }
        let words = f64::from(words) + f64::from(without_spaces) / CHARACTERS_PER_WORD;
        self.words += words;
        words.ceil() as usize
    }
}

/// A corpus.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// Pairs that have text on both sides.
    pub pairs: usize,
    /// Source and target.
    pub sides: [SideSurvey; 2],
    /// Per pair, a hash of the letters and digits of each side, in lower case; 0 where a side has none.
    pub keys: [Vec<u64>; 2],
    /// Pairs by the length of their longer side in words.
    pub lengths: Vec<usize>,
}

impl Survey {
    /// Reads a corpus once.
    pub(super) fn of(corpus: &dyn PairSource) -> Result<Self> {
        let keys = [0; 2].map(|_| Vec::with_capacity(corpus.len()));
        let mut survey = Self { pairs: 0, sides: Default::default(), keys, lengths: vec![0; LONGEST + 1] };
        for block in corpus.blocks()? {
            let block = block?;
            for (source, target) in (0..block.len()).map(|index| block.get(index)) {
                let is_sampled = survey.keys[0].len().is_multiple_of(EVERY);
                let lines = [source, target];
                for (keys, line) in survey.keys.iter_mut().zip(lines) {
                    keys.push(key(line));
                }
                let mut longer = 0;
                for (side, line) in survey.sides.iter_mut().zip(lines) {
                    longer = longer.max(side.add(line, is_sampled));
                }
                survey.pairs += usize::from(lines.iter().all(|line| !line.trim().is_empty()));
                survey.lengths[longer.min(LONGEST)] += 1;
            }
        }
        Ok(survey)
    }

    /// The length that this share of the pairs does not exceed, in words of the longer side.
    pub(super) fn length_of(&self, share: f64) -> usize {
        let wanted = share * self.lengths.iter().sum::<usize>() as f64;
        let mut so_far = 0;
        self.lengths
            .iter()
            .take_while(|pairs| {
                so_far += **pairs;
                (so_far as f64) < wanted
            })
            .count()
    }

    /// Pairs of which a side has more words, about: held-out pairs are not counted.
    pub(super) fn longer_than(&self, words: f64) -> usize {
        let longer = self.lengths.iter().enumerate().filter(|(length, _)| *length as f64 > words);
        let (longer, all) = (longer.map(|(_, pairs)| pairs).sum::<usize>(), self.lengths.iter().sum::<usize>());
        (longer as f64 * self.pairs as f64 / all.max(1) as f64).round() as usize
    }

    /// Words of a target line.
    pub(super) fn mean_target(&self) -> f64 {
        self.sides[1].words / (self.pairs.max(1) as f64)
    }
}

/// A hash of the letters and digits of a line, in lower case: lines that differ in nothing else count as the same.
pub(super) fn key(line: &str) -> u64 {
    let letters = line.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase);
    letters.fold(0, |hash, c| mix64(hash ^ u64::from(c)))
}
