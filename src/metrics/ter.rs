//! TER, the translation edit rate (Snover et al. 2006), equal to sacrebleu 2.6.0.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::metric::{Metric, TextMetric};
use super::shifts::edits;
use super::tokenize::{separate_punctuation, separate_stops, words};

/// How TER is computed. The default is sacrebleu's: words are what white space separates, case is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TerOptions {
    /// Whether punctuation is separated from words, and entities are decoded.
    pub normalized: bool,
    /// Whether punctuation is left out.
    pub no_punct: bool,
    /// Whether these two also handle Chinese and Japanese.
    pub asian_support: bool,
    /// Whether case counts.
    pub case_sensitive: bool,
}

impl Metric for TerOptions {
    fn key(&self) -> &'static str {
        "ter"
    }

    fn name(&self) -> String {
        "TER".to_owned()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        vec![
            ("case", if self.case_sensitive { "mixed" } else { "lc" }.to_owned()),
            ("tok", "tercom".to_owned()),
            ("norm", yes(self.normalized)),
            ("punct", yes(!self.no_punct)),
            ("asian", yes(self.asian_support)),
        ]
    }

    /// Edits, and words of the references.
    fn width(&self) -> usize {
        2
    }

    fn score(&self, statistics: &[f64]) -> f64 {
        let [edits, words] = [statistics[0], statistics[1]];
        match words {
            _ if words > 0.0 => 100.0 * (edits / words),
            _ if edits > 0.0 => 100.0,
            _ => 0.0,
        }
    }

    fn add_to_json(&self, statistics: &[f64], json: &mut Map<String, Value>) {
        json.insert("num_edits".to_owned(), statistics[0].into());
        json.insert("ref_length".to_owned(), statistics[1].into());
    }
}

impl TextMetric for TerOptions {
    /// The fewest edits to any reference, and the mean length of all.
    fn line_statistics(&self, hypothesis: &str, references: &[&str], statistics: &mut [f64]) {
        let mut ids = HashMap::new();
        let mut numbers = |line: Cow<'_, str>| -> Vec<u32> {
            let mut number = |word: &str| {
                let next = ids.len() as u32;
                *ids.entry(word.to_owned()).or_insert(next)
            };
            words(&line).map(&mut number).collect()
        };
        let hypothesis = numbers(self.prepare(hypothesis));
        let references: Vec<Vec<u32>> = references.iter().map(|line| numbers(self.prepare_reference(line))).collect();
        let length: usize = references.iter().map(Vec::len).sum();
        let fewest = references.iter().map(|reference| edits(&hypothesis, reference)).min();
        statistics.copy_from_slice(&[fewest.unwrap_or(0) as f64, length as f64 / references.len().max(1) as f64]);
    }
}

impl TerOptions {
    /// As [`Self::prepare`]. sacrebleu normalizes references twice, which separates a few more words: those followed by
    /// white space other than a space.
    fn prepare_reference<'a>(&self, line: &'a str) -> Cow<'a, str> {
        let line = self.prepare(line);
        if !self.normalized {
            return line;
        }
        Cow::Owned(self.prepare(&words(&line).collect::<Vec<_>>().join(" ")).into_owned())
    }

    /// The line with its words separated by white space.
    fn prepare<'a>(&self, line: &'a str) -> Cow<'a, str> {
        let mut line = Cow::Borrowed(line);
        if !self.case_sensitive {
            line = Cow::Owned(line.to_lowercase());
        }
        if self.normalized {
            line = Cow::Owned(normalize(&line));
            if self.asian_support {
                line = Cow::Owned(line.chars().flat_map(separated_asian).collect());
            }
        }
        if self.no_punct {
            let is_mark = |c: char| matches!(c, '.' | ',' | '?' | ':' | ';' | '!' | '"' | '(' | ')');
            line.to_mut().retain(|c| !(is_mark(c) || self.asian_support && is_asian_punctuation(c)));
        }
        line
    }
}

/// Decodes entities and separates punctuation and possessives from words, as Tercom does.
fn normalize(line: &str) -> String {
    let mut line = line.trim_end_matches(super::tokenize::is_whitespace).to_owned();
    for (from, to) in [("\n-", ""), ("\n", " "), ("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        if line.contains(from) {
            line = line.replace(from, to);
        }
    }
    let separated = separate_punctuation(&format!(" {line} "));
    let mut parted = Vec::with_capacity(separated.len() + 8);
    for (i, byte) in separated.iter().enumerate() {
        if separated[i..].starts_with(b"'s ") {
            parted.push(b' ');
        }
        parted.push(*byte);
    }
    separate_stops(&parted)
}

/// Separates Chinese characters, Japanese ones except kana, and their punctuation.
fn separated_asian(c: char) -> impl Iterator<Item = char> {
    let alone = matches!(c,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{31c0}'..='\u{31ef}' | '\u{2e80}'..='\u{2eff}'
        | '\u{3300}'..='\u{33ff}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}' | '\u{3200}'..='\u{3f22}')
        || is_asian_punctuation(c);
    let space = alone.then_some(' ');
    space.into_iter().chain([c]).chain(space)
}

/// Chinese and Japanese punctuation, and full-width ASCII punctuation.
fn is_asian_punctuation(c: char) -> bool {
    matches!(c,
        '\u{3001}' | '\u{3002}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}' | '\u{ff61}'..='\u{ff65}'
        | '\u{30fb}' | '\u{ff0e}' | '\u{ff0c}' | '\u{ff1f}' | '\u{ff1a}' | '\u{ff1b}' | '\u{ff01}' | '\u{ff02}'
        | '\u{ff08}' | '\u{ff09}')
}
