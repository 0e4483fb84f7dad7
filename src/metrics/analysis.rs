//! Where translations fail: by length, by word frequency, and by oddities of single lines.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

use super::bleu::{BleuOptions, Smooth};
use super::metric::{Metric, Statistics};
use super::tokenize::{Tokenize, words};

/// How many lines to list for each oddity.
const NAMED: usize = 10;
/// Classes of lengths, in words: each begins with a bound and ends before the next.
const LENGTHS: [usize; 8] = [0, 1, 6, 11, 21, 31, 41, 61];
/// Classes of word frequencies, in the same way.
const FREQUENCIES: [usize; 7] = [0, 1, 2, 5, 10, 100, 1000];
/// A phrase that occurs this many times in a row is a loop.
const LOOP: usize = 4;
/// The longest phrase, in words, to look for in loops.
const LONGEST_PHRASE: usize = 8;
/// Lines of fewer words are too short to be called cut off or untranslated.
const FEW: usize = 4;

/// Translations with their references and, if known, sources.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// Sources.
    pub sources: Option<&'a [String]>,
    /// The first reference of each line.
    pub references: &'a [String],
    /// Translations.
    pub hypotheses: &'a [String],
    /// It decides on the words of references and translations; if it ignores case, so does the whole analysis.
    pub bleu: &'a BleuOptions,
}

/// How sources are split into words: as for BLEU by default, and every Chinese character is a word.
const OF_SOURCE: BleuOptions =
    BleuOptions { tokenize: Tokenize::Zh, lowercase: false, smooth: Smooth::Exp, effective_order: false };

/// The words of a line, as BLEU counts them.
fn tokens(line: &str, bleu: &BleuOptions) -> Vec<String> {
    words(&bleu.prepare(line)).map(str::to_owned).collect()
}

/// Lines of similar length.
#[derive(Clone, Debug, PartialEq)]
pub struct OfLength {
    /// Words.
    pub words: RangeInclusive<usize>,
    /// How many lines.
    pub lines: usize,
    /// Their score by each metric.
    pub scores: Vec<f64>,
}

/// Scores by the length of the source, or of the reference if there are no sources; classes without lines are left out.
pub fn by_length(texts: &Texts, scored: &[(&dyn Metric, &Statistics)]) -> Vec<OfLength> {
    let (measured, bleu) = texts.sources.map_or((texts.references, texts.bleu), |sources| (sources, &OF_SOURCE));
    let lengths: Vec<usize> = measured.iter().map(|line| tokens(line, bleu).len()).collect();
    let of_range = |range: RangeInclusive<usize>| {
        let lines: Vec<usize> = (0..lengths.len()).filter(|line| range.contains(&lengths[*line])).collect();
        let score =
            |(metric, statistics): &(&dyn Metric, &Statistics)| metric.score(&statistics.sum_of(lines.iter().copied()));
        OfLength { lines: lines.len(), scores: scored.iter().map(score).collect(), words: range }
    };
    ranges(&LENGTHS).map(of_range).filter(|of| of.lines > 0).collect()
}

/// Words of similar frequency in a text.
#[derive(Clone, Debug, PartialEq)]
pub struct OfFrequency {
    /// How often they occur in that text.
    pub times: RangeInclusive<usize>,
    /// Such words in the references.
    pub in_references: usize,
    /// Such words in the translations.
    pub in_hypotheses: usize,
    /// Those of them that are also in the reference of the same line.
    pub matched: usize,
}

impl OfFrequency {
    /// The harmonic mean of precision and recall, in percent.
    pub fn f1(&self) -> f64 {
        match self.in_references + self.in_hypotheses {
            0 => 0.0,
            all => 200.0 * self.matched as f64 / all as f64,
        }
    }
}

/// How often each word occurs in a text.
pub type Frequencies = HashMap<String, usize>;

/// Counts the words of a text, as BLEU defines words.
pub fn frequencies<S: AsRef<str>>(text: impl Iterator<Item = S>, bleu: &BleuOptions) -> Frequencies {
    let mut counts = Frequencies::new();
    text.for_each(|line| count(line.as_ref(), bleu, &mut counts));
    counts
}

/// Adds the words of a line.
pub fn count(line: &str, bleu: &BleuOptions, counts: &mut Frequencies) {
    for word in tokens(line, bleu) {
        *counts.entry(word).or_insert(0) += 1;
    }
}

/// How well words are translated, by their frequency in a text, for example the training text.
pub fn by_frequency(texts: &Texts, frequencies: &Frequencies) -> Vec<OfFrequency> {
    let mut all: Vec<OfFrequency> = ranges(&FREQUENCIES)
        .map(|times| OfFrequency { times, in_references: 0, in_hypotheses: 0, matched: 0 })
        .collect();
    let class = |word: &str| {
        let times = frequencies.get(word).copied().unwrap_or(0);
        FREQUENCIES.partition_point(|from| *from <= times) - 1
    };
    for (hypothesis, reference) in texts.hypotheses.iter().zip(texts.references) {
        let mut left: HashMap<String, usize> = HashMap::new();
        for word in tokens(reference, texts.bleu) {
            all[class(&word)].in_references += 1;
            *left.entry(word).or_insert(0) += 1;
        }
        for word in tokens(hypothesis, texts.bleu) {
            let of_class = &mut all[class(&word)];
            of_class.in_hypotheses += 1;
            if let Some(left) = left.get_mut(&word).filter(|left| **left > 0) {
                *left -= 1;
                of_class.matched += 1;
            }
        }
    }
    all.retain(|of| of.in_references + of.in_hypotheses > 0);
    all
}

/// What is odd about a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// It is empty, but the reference is not.
    Empty,
    /// It repeats a phrase several times in a row.
    Looping,
    /// It is the source.
    Copied,
    /// Most of its words are words of the source, and not of the reference.
    Untranslated,
    /// It is less than half as long as the reference.
    CutOff,
    /// It is more than twice as long as the reference.
    TooLong,
}

impl Oddity {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Empty, Self::Looping, Self::Copied, Self::Untranslated, Self::CutOff, Self::TooLong];

    /// Its key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Looping => "looping",
            Self::Copied => "copied",
            Self::Untranslated => "untranslated",
            Self::CutOff => "cut_off",
            Self::TooLong => "too_long",
        }
    }

    /// What it means.
    pub fn text(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Looping => "a phrase again and again",
            Self::Copied => "the source as it is",
            Self::Untranslated => "mostly words of the source",
            Self::CutOff => "less than half as long as the reference",
            Self::TooLong => "more than twice as long as the reference",
        }
    }

    fn is_in(self, source: Option<&[String]>, reference: &[String], hypothesis: &[String]) -> bool {
        match self {
            Self::Empty => hypothesis.is_empty() && !reference.is_empty(),
            Self::Looping => repeats(hypothesis) >= LOOP && repeats(reference) < LOOP,
            Self::Copied => source == Some(hypothesis) && hypothesis != reference && hypothesis.len() >= FEW,
            Self::Untranslated => source.is_some_and(|source| {
                source != hypothesis
                    && hypothesis.len() >= FEW
                    && 2 * left_over(source, reference, hypothesis) > hypothesis.len()
            }),
            Self::CutOff => reference.len() >= FEW && !hypothesis.is_empty() && 2 * hypothesis.len() < reference.len(),
            Self::TooLong => hypothesis.len() >= FEW && hypothesis.len() > 2 * reference.len() && !reference.is_empty(),
        }
    }
}

/// How many words of a translation are words of the source, and not of the reference.
fn left_over(source: &[String], reference: &[String], hypothesis: &[String]) -> usize {
    // Sets, because a line may have very many words.
    let [source, reference]: [HashSet<&String>; 2] = [source, reference].map(|words| words.iter().collect());
    let is_left =
        |word: &&String| source.contains(word) && !reference.contains(word) && word.chars().any(char::is_alphabetic);
    hypothesis.iter().filter(is_left).count()
}

/// The most times that any phrase occurs in a row.
fn repeats(words: &[String]) -> usize {
    let longest = LONGEST_PHRASE.min(words.len());
    let of_length = |length: usize| {
        let (mut most, mut same) = (0, 0);
        for i in length..words.len() {
            same = if words[i] == words[i - length] { same + 1 } else { 0 };
            most = most.max(same);
        }
        1 + most / length
    };
    (1..=longest).map(of_length).max().unwrap_or(0)
}

/// The lines with an oddity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OddLines {
    /// How many.
    pub count: usize,
    /// The numbers of the first ones, from 1.
    pub lines: Vec<usize>,
}

/// The lines with each oddity.
pub fn oddities(texts: &Texts) -> Vec<(Oddity, OddLines)> {
    let mut found: Vec<(Oddity, OddLines)> = Oddity::ALL.map(|oddity| (oddity, OddLines::default())).into();
    for (i, (hypothesis, reference)) in texts.hypotheses.iter().zip(texts.references).enumerate() {
        let [hypothesis, reference] = [hypothesis, reference].map(|line| tokens(line, texts.bleu));
        // Split like the translation, so that a copy is recognised.
        let source = texts.sources.map(|sources| tokens(&sources[i], texts.bleu));
        for (_, lines) in
            found.iter_mut().filter(|(oddity, _)| oddity.is_in(source.as_deref(), &reference, &hypothesis))
        {
            lines.count += 1;
            if lines.lines.len() < NAMED {
                lines.lines.push(i + 1);
            }
        }
    }
    found
}

/// Ranges from each bound to before the next; the last one is open.
fn ranges(bounds: &[usize]) -> impl Iterator<Item = RangeInclusive<usize>> {
    let last = |i: usize| bounds.get(i + 1).map_or(usize::MAX, |next| next - 1);
    bounds.iter().enumerate().map(move |(i, from)| *from..=last(i))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TerOptions;

    fn lines(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn every_oddity_is_seen_where_it_is() {
        let sources = lines(&[
            "the old cat sleeps here",
            "a b c d",
            "x y z u",
            "the old cat sleeps",
            "one two",
            "a",
            "ja ja ja ja ja",
            "so",
        ]);
        let references = lines(&[
            "die alte Katze schläft hier",
            "e f g h",
            "u v w x",
            "die alte Katze schläft",
            "eins zwei drei vier fünf",
            "ein",
            "yes yes yes yes yes",
            "so",
        ]);
        let hypotheses = lines(&[
            "",
            "e f e f e f e f",
            "x y z u",
            "the old cat schläft",
            "eins zwei",
            "ein zwei drei vier",
            "yes yes yes yes yes",
            "so",
        ]);
        let bleu = &BleuOptions::default();
        let texts = Texts { sources: Some(&sources), references: &references, hypotheses: &hypotheses, bleu };
        let found = oddities(&texts);
        let lines: Vec<(Oddity, Vec<usize>)> = found.into_iter().map(|(oddity, found)| (oddity, found.lines)).collect();
        let expected = [
            (Oddity::Empty, vec![1]),
            (Oddity::Looping, vec![2]),
            (Oddity::Copied, vec![3]),
            (Oddity::Untranslated, vec![4]),
            (Oddity::CutOff, vec![5]),
            (Oddity::TooLong, vec![6]),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn words_that_are_left_over_are_counted_each_time() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let count = |hypothesis| left_over(&words("the old cat , 1"), &words("die old Katze , 1"), &words(hypothesis));
        assert_eq!(
            ["the cat the", "die old Katze", ", 1 cat", "dog"].map(count),
            [3, 0, 1, 0],
            "words of the source, unless the reference has them or they are no words"
        );
    }

    #[test]
    fn repeats_of_phrases() {
        for (line, most) in
            [("", 0), ("a", 1), ("a b", 1), ("a a a", 3), ("a b a b a", 2), ("x a b c a b c a b c y", 3)]
        {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(repeats(&words), most, "{line}");
        }
    }

    #[test]
    fn words_are_those_that_bleu_counts() {
        let (sources, references, hypotheses) = (lines(&["我喜欢猫。"]), lines(&["私は猫が好き"]), lines(&["私は犬"]));
        let of = |sources, bleu| Texts { sources, references: &references, hypotheses: &hypotheses, bleu };
        let matched = |bleu| {
            let found = by_frequency(&of(None, bleu), &HashMap::new());
            (found[0].in_references, found[0].in_hypotheses, found[0].matched)
        };
        let western = &BleuOptions::default();
        let of_characters = &BleuOptions { tokenize: Tokenize::Char, ..BleuOptions::default() };
        assert_eq!((matched(western), matched(of_characters)), ((1, 1, 0), (6, 3, 2)));
        assert_eq!(by_length(&of(None, of_characters), &[])[0].words, 6..=10);
        // In a Chinese source every character is a word, whatever the tokenizer of the target.
        assert_eq!(by_length(&of(Some(&sources), western), &[])[0].words, 1..=5);
        assert_eq!(tokens(&sources[0], &OF_SOURCE).len(), 5);
    }

    #[test]
    fn case_is_ignored_if_bleu_ignores_it() {
        let (sources, references) = (lines(&["The Cat Sees Us"]), lines(&["Die Katze sieht uns"]));
        let hypotheses = lines(&["the cat sees Die"]);
        for (lowercase, matched, untranslated) in [(false, 1, 0), (true, 1, 1)] {
            let bleu = &BleuOptions { lowercase, ..BleuOptions::default() };
            let texts = Texts { sources: Some(&sources), references: &references, hypotheses: &hypotheses, bleu };
            let found = by_frequency(&texts, &frequencies(["DIE die Die"].iter(), bleu));
            let right: usize = found.iter().map(|of| of.matched).sum();
            assert_eq!(right, matched);
            assert_eq!(
                found.iter().find(|of| of.matched > 0).map(|of| *of.times.start()),
                Some(if lowercase { 2 } else { 1 })
            );
            let of = |oddity| oddities(&texts).into_iter().find(|(found, _)| *found == oddity).map(|(_, of)| of.count);
            assert_eq!(of(Oddity::Untranslated), Some(untranslated));
        }
        let bleu = &BleuOptions { lowercase: true, ..BleuOptions::default() };
        let lower = lines(&["die katze sieht uns"]);
        let texts = Texts { sources: None, references: &references, hypotheses: &lower, bleu };
        assert_eq!(by_frequency(&texts, &HashMap::new())[0].matched, 4);
    }

    #[test]
    fn words_and_lengths_are_sorted() {
        let references = lines(&["a a b", "c d e f g h"]);
        let hypotheses = lines(&["a a a", "c d e f g x"]);
        let bleu = &BleuOptions::default();
        let texts = Texts { sources: None, references: &references, hypotheses: &hypotheses, bleu };
        let found = by_frequency(&texts, &frequencies(["a a b c d e f g h"; 3].iter(), bleu));
        // a: 6 times, the other words of the text: 3, x: not at all.
        assert_eq!(
            found,
            [
                OfFrequency { times: 0..=0, in_references: 0, in_hypotheses: 1, matched: 0 },
                OfFrequency { times: 2..=4, in_references: 7, in_hypotheses: 5, matched: 5 },
                OfFrequency { times: 5..=9, in_references: 2, in_hypotheses: 3, matched: 2 },
            ]
        );
        assert!((found[1].f1() - 100.0 * 10.0 / 12.0).abs() < 1e-9);
        let metric = TerOptions::default();
        let statistics = Statistics::new(&metric, &hypotheses, std::slice::from_ref(&references)).unwrap();
        let lengths = by_length(&texts, &[(&metric, &statistics)]);
        assert_eq!(lengths.len(), 2);
        assert_eq!((lengths[0].words.clone(), lengths[0].lines), (1..=5, 1));
        assert!((lengths[0].scores[0] - 100.0 / 3.0).abs() < 1e-9 && (lengths[1].scores[0] - 100.0 / 6.0).abs() < 1e-9);
    }
}
