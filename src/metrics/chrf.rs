//! chrF (Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation") and chrF++ (Popović 2017, "chrF++:
//! words helping character n-grams"), equal to sacrebleu 2.6.0 to the last digits.

use std::borrow::Cow;
use std::collections::HashMap;

use super::metric::{Metric, TextMetric};
use super::tokenize::{is_whitespace, words};

/// What stands in for a precision or recall without n-grams under [`ChrfOptions::eps_smoothing`].
const EPSILON: f64 = 1e-16;

/// How chrF is computed. The default is sacrebleu's: chrF2 of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChrfOptions {
    /// Longest character n-gram.
    pub char_order: usize,
    /// Longest word n-gram; 2 is chrF++.
    pub word_order: usize,
    /// How many times recall weighs more than precision.
    pub beta: u32,
    /// Whether white space is part of character n-grams.
    pub whitespace: bool,
    /// Whether case is ignored.
    pub lowercase: bool,
    /// Whether orders without n-grams count with a small number, as in chrF++.py, NLTK and Moses, instead of not at
    /// all.
    pub eps_smoothing: bool,
}

impl Default for ChrfOptions {
    fn default() -> Self {
        Self { char_order: 6, word_order: 0, beta: 2, whitespace: false, lowercase: false, eps_smoothing: false }
    }
}

impl Metric for ChrfOptions {
    fn key(&self) -> &'static str {
        "chrf"
    }

    fn name(&self) -> String {
        format!("chrF{}{}", self.beta, "+".repeat(self.word_order))
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        vec![
            ("case", if self.lowercase { "lc" } else { "mixed" }.to_owned()),
            ("eff", yes(!self.eps_smoothing)),
            ("nc", self.char_order.to_string()),
            ("nw", self.word_order.to_string()),
            ("space", yes(self.whitespace)),
        ]
    }

    /// For each order, the n-grams of the hypothesis, of the reference, and those they share.
    fn width(&self) -> usize {
        3 * (self.char_order + self.word_order)
    }

    fn score(&self, statistics: &[f64]) -> f64 {
        let factor = f64::from(self.beta * self.beta);
        let mean = |precision: f64, recall: f64| (1.0 + factor) * precision * recall / (factor * precision + recall);
        let orders = || statistics.chunks_exact(3).map(|of| (of[0], of[1], of[2]));
        if self.eps_smoothing {
            let share = |shared: f64, all: f64| if all > 0.0 { shared / all } else { EPSILON };
            let of_order = |(hypothesis, reference, shared)| {
                let (precision, recall) = (share(shared, hypothesis), share(shared, reference));
                if factor * precision + recall > 0.0 { mean(precision, recall) } else { EPSILON }
            };
            return 100.0 * orders().map(of_order).sum::<f64>() / orders().count() as f64;
        }
        let (mut precision, mut recall, mut effective) = (0.0, 0.0, 0.0);
        for (hypothesis, reference, shared) in
            orders().filter(|(hypothesis, reference, _)| *hypothesis > 0.0 && *reference > 0.0)
        {
            precision += shared / hypothesis;
            recall += shared / reference;
            effective += 1.0;
        }
        if precision + recall == 0.0 { 0.0 } else { 100.0 * mean(precision / effective, recall / effective) }
    }
}

impl TextMetric for ChrfOptions {
    /// The statistics of the reference with the best score.
    fn line_statistics(&self, hypothesis: &str, references: &[&str], statistics: &mut [f64]) {
        let hypothesis = self.cased(hypothesis);
        let mut best = f64::NEG_INFINITY;
        let mut candidate = vec![0.0; self.width()];
        for reference in references {
            self.against(&hypothesis, &self.cased(reference), &mut candidate);
            let score = self.score(&candidate);
            if score > best {
                best = score;
                statistics.copy_from_slice(&candidate);
            }
        }
    }
}

impl ChrfOptions {
    fn cased<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.lowercase { Cow::Owned(line.to_lowercase()) } else { Cow::Borrowed(line) }
    }

    /// The statistics against one reference.
    fn against(&self, hypothesis: &str, reference: &str, statistics: &mut [f64]) {
        let (of_characters, of_words) = statistics.split_at_mut(3 * self.char_order);
        let characters = |line: &str| -> Vec<u32> {
            line.chars().filter(|c| self.whitespace || !is_whitespace(*c)).map(u32::from).collect()
        };
        count(&characters(hypothesis), &characters(reference), self.char_order, of_characters);
        if self.word_order > 0 {
            let mut ids = HashMap::new();
            let mut numbers = |line: &str| -> Vec<u32> {
                let mut numbers = Vec::new();
                for word in words(line) {
                    for part in split_punctuation(word).into_iter().filter(|part| !part.is_empty()) {
                        let next = ids.len() as u32;
                        numbers.push(*ids.entry(part.to_owned()).or_insert(next));
                    }
                }
                numbers
            };
            count(&numbers(hypothesis), &numbers(reference), self.word_order, of_words);
        }
    }
}

/// Splits off the ASCII punctuation mark at the end of a word or, if there is none, at its beginning. The second part
/// may be empty.
fn split_punctuation(word: &str) -> [&str; 2] {
    let is_mark = |c: char| c.is_ascii_punctuation();
    let last = word.chars().next_back().filter(|c| word.len() > c.len_utf8());
    match last {
        Some(last) if is_mark(last) => word.split_at(word.len() - 1).into(),
        Some(_) if word.starts_with(is_mark) => word.split_at(1).into(),
        _ => [word, ""],
    }
}

/// Writes for each order how many n-grams `hypothesis` has (0 where `reference` has none), how many `reference` has,
/// and how many they share.
///
/// The suffixes of both are sorted together, once: those that begin with the same n-gram are then adjacent, whatever
/// `n` is.
fn count(hypothesis: &[u32], reference: &[u32], orders: usize, statistics: &mut [f64]) {
    let suffixes = |of: &[u32]| (0..of.len()).map(|start| start..of.len().min(start + orders)).collect::<Vec<_>>();
    let mut sorted: Vec<(&[u32], bool)> =
        suffixes(hypothesis).into_iter().map(|range| (&hypothesis[range], true)).collect();
    sorted.extend(suffixes(reference).into_iter().map(|range| (&reference[range], false)));
    sorted.sort_unstable();
    let common = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    // The length of the prefix that each suffix shares with the one before it.
    let mut before = vec![0; sorted.len()];
    for i in 1..sorted.len() {
        before[i] = common(sorted[i - 1].0, sorted[i].0);
    }
    for (order, statistics) in (1..=orders).zip(statistics.chunks_exact_mut(3)) {
        let of = |length: usize| (length + 1).saturating_sub(order) as f64;
        let (mut shared, mut of_hypothesis, mut of_reference) = (0u32, 0u32, 0u32);
        for ((suffix, is_hypothesis), before) in sorted.iter().zip(&before) {
            if *before < order {
                shared += of_hypothesis.min(of_reference);
                (of_hypothesis, of_reference) = (0, 0);
            }
            if suffix.len() >= order {
                let side = if *is_hypothesis { &mut of_hypothesis } else { &mut of_reference };
                *side += 1;
            }
        }
        shared += of_hypothesis.min(of_reference);
        let all = of(reference.len());
        statistics.copy_from_slice(&[if all > 0.0 { of(hypothesis.len()) } else { 0.0 }, all, f64::from(shared)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(options: &ChrfOptions, hypothesis: &str, references: &[&str]) -> f64 {
        let mut statistics = vec![0.0; options.width()];
        options.line_statistics(hypothesis, references, &mut statistics);
        options.score(&statistics)
    }

    #[test]
    fn by_hand() {
        // "ab" in "abc": of order 1 precision 1 and recall 2/3, of order 2 precision 1 and recall 1/2.
        let options = ChrfOptions { char_order: 2, beta: 1, ..Default::default() };
        let recall = (2.0 / 3.0 + 1.0 / 2.0) / 2.0;
        assert!((score(&options, "a b", &["abc"]) - 100.0 * 2.0 * recall / (1.0 + recall)).abs() < 1e-9);
        assert_eq!(score(&options, "", &["a"]), 0.0);
        assert_eq!(score(&options, "x", &["a"]), 0.0);
        assert!((score(&options, "abc", &["x", "abc"]) - 100.0).abs() < 1e-9);
    }

    /// As in sacrebleu; it matters for the sum over a corpus.
    #[test]
    fn the_first_of_equally_good_references_counts() {
        let options = ChrfOptions::default();
        let statistics = |references: &[&str]| {
            let mut statistics = vec![0.0; options.width()];
            options.line_statistics("abc", references, &mut statistics);
            statistics
        };
        assert_ne!(statistics(&["xyz"]), statistics(&["uvwxyz"]));
        assert_eq!(statistics(&["xyz", "uvwxyz"]), statistics(&["xyz"]));
        assert_eq!(statistics(&["uvwxyz", "xyz"]), statistics(&["uvwxyz"]));
    }

    #[test]
    fn repeated_ngrams_are_clipped() {
        let mut statistics = [0.0; 9];
        count(&[1, 1, 1, 2], &[1, 1, 2, 1], 3, &mut statistics);
        assert_eq!(statistics, [4.0, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn marks_are_parted_from_words() {
        for (word, parts) in [
            ("(hi)", ["(hi", ")"]),
            ("'s", ["'", "s"]),
            ("!", ["!", ""]),
            ("»a«", ["»a«", ""]),
            ("é.", ["é", "."]),
            ("é", ["é", ""]),
        ] {
            assert_eq!(split_punctuation(word), parts, "{word}");
        }
    }
}
