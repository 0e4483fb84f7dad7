//! BLEU (Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation"), equal to
//! sacrebleu 2.6.0 to the last digits.
//!
//! Every line gives a [`BleuStats`]; statistics add up; [`BleuScore::new`] turns a sum into a score.

use std::borrow::Cow;
use std::fmt;

use super::metric::{Metric, Statistics, TextMetric};
use super::ngrams::{MAX_ORDER, clipped_matches};
use super::tokenize::{Tokenize, is_whitespace, words};
use crate::error::{Error, Result};

/// What stands in for the logarithm of a precision of zero, as in sacrebleu: the score becomes zero.
const LOG_OF_ZERO: f64 = -9_999_999_999.0;

/// Hypotheses look tokenized if at least this many lines end in a separated period.
const TOKENIZED_LINES: usize = 100;

/// Smoothing of n-gram orders without a match (Chen and Cherry 2014, "A Systematic Comparison of Smoothing Techniques
/// for Sentence-Level BLEU"). No method changes the score of a corpus without any match at all, which is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Smooth {
    /// Method 3, of NIST's mteval-v13a: the i-th order without a match counts `1 / 2^i` matches.
    #[default]
    Exp,
    /// Method 1: an order without a match counts this many matches.
    Floor(f64),
    /// Method 2: this is added to matches and totals of every order above the first.
    AddK(f64),
    /// None: an order without a match makes the score zero.
    None,
}

impl Smooth {
    /// Every method's name on the command line.
    pub const NAMES: [&str; 4] = ["exp", "floor", "add-k", "none"];

    /// The method called `name`, with `value` or its default (0.1 for `floor`, 1 for `add-k`).
    ///
    /// Fails with a usage error on an unknown name, a value that is negative or not finite, or a value for a method
    /// that takes none.
    pub fn new(name: &str, value: Option<f64>) -> Result<Self> {
        let smooth = match (name, value) {
            ("floor", value) => Self::Floor(value.unwrap_or(0.1)),
            ("add-k", value) => Self::AddK(value.unwrap_or(1.0)),
            ("exp", None) => Self::Exp,
            ("none", None) => Self::None,
            ("exp" | "none", Some(_)) => {
                return Err(Error::usage(format!("smoothing `{name}` takes no value"))
                    .help("only floor and add-k take one; leave the value out"));
            }
            _ => {
                return Err(Error::usage(format!("unknown smoothing `{name}`"))
                    .help(format!("choose one of {}", Self::NAMES.join(", "))));
            }
        };
        smooth.check()?;
        Ok(smooth)
    }

    fn check(self) -> Result<()> {
        match self {
            // A precision of more would be no number.
            Self::Floor(value) | Self::AddK(value) if !(0.0..=1e300).contains(&value) => {
                Err(Error::usage(format!("invalid smoothing value `{value}`: expected a number from 0 to 1e300")))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Smooth {
    /// As in a signature: `exp`, `floor[0.10]`, `add-k[1.00]`, `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exp => f.write_str("exp"),
            Self::Floor(value) => write!(f, "floor[{value:.2}]"),
            Self::AddK(value) => write!(f, "add-k[{value:.2}]"),
            Self::None => f.write_str("none"),
        }
    }
}

/// How BLEU is computed. The default is sacrebleu's for a corpus: `13a`, mixed case, exponential smoothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BleuOptions {
    /// How a line becomes words.
    pub tokenize: Tokenize,
    /// Whether case is ignored: lines are lowercased by Unicode's full mapping, as Python's `str.lower` does, where a
    /// final capital sigma becomes a final small one.
    pub lowercase: bool,
    /// What an n-gram order without a match counts.
    pub smooth: Smooth,
    /// Whether orders longer than the hypothesis are left out of the mean; meant for single sentences.
    pub effective_order: bool,
}

impl BleuOptions {
    /// The line with its words separated by white space.
    pub(super) fn prepare<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.lowercase {
            Cow::Owned(self.tokenize.separate(&line.to_lowercase()).into_owned())
        } else {
            self.tokenize.separate(line)
        }
    }
}

/// Sufficient statistics of a line or, added up, of any set of lines. Lengths count words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuStats {
    /// Clipped matches of 1- to 4-grams.
    pub correct: [u64; MAX_ORDER],
    /// 1- to 4-grams of the hypothesis.
    pub total: [u64; MAX_ORDER],
    /// Length of the hypothesis.
    pub hyp_len: u64,
    /// Length of the reference closest to it; of two equally close, the shorter.
    pub ref_len: u64,
}

impl BleuStats {
    /// The statistics of one line. Without a reference nothing matches and the reference length is 0.
    pub fn from_line<'a>(
        hypothesis: &str,
        references: impl IntoIterator<Item = &'a str>,
        options: &BleuOptions,
    ) -> Self {
        let hypothesis = options.prepare(hypothesis);
        let hypothesis: Vec<&str> = words(&hypothesis).collect();
        let references: Vec<Cow<'_, str>> = references.into_iter().map(|line| options.prepare(line)).collect();
        let references: Vec<Vec<&str>> = references.iter().map(|line| words(line).collect()).collect();
        let hyp_len = hypothesis.len();
        let closest = references.iter().map(Vec::len).min_by_key(|&len| (len.abs_diff(hyp_len), len));
        Self {
            correct: clipped_matches(&hypothesis, &references),
            total: std::array::from_fn(|order| hyp_len.saturating_sub(order) as u64),
            hyp_len: hyp_len as u64,
            ref_len: closest.unwrap_or(0) as u64,
        }
    }
}

/// Numbers in [`BleuStats`].
const WIDTH: usize = 2 * MAX_ORDER + 2;

impl BleuStats {
    fn write(&self, out: &mut [f64]) {
        let numbers = self.correct.iter().chain(&self.total).chain([&self.hyp_len, &self.ref_len]);
        out.iter_mut().zip(numbers).for_each(|(out, number)| *out = *number as f64);
    }

    /// Reads numbers from [`TextMetric::line_statistics`], or sums of them.
    fn read(numbers: &[f64]) -> Self {
        let number = |i: usize| numbers[i] as u64;
        Self {
            correct: std::array::from_fn(number),
            total: std::array::from_fn(|i| number(MAX_ORDER + i)),
            hyp_len: number(2 * MAX_ORDER),
            ref_len: number(2 * MAX_ORDER + 1),
        }
    }
}

impl Metric for BleuOptions {
    fn key(&self) -> &'static str {
        "bleu"
    }

    fn name(&self) -> String {
        "BLEU".to_owned()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let case = if self.lowercase { "lc" } else { "mixed" };
        let effective = if self.effective_order { "yes" } else { "no" };
        vec![
            ("case", case.to_owned()),
            ("eff", effective.to_owned()),
            ("tok", self.tokenize.to_string()),
            ("smooth", self.smooth.to_string()),
        ]
    }

    fn width(&self) -> usize {
        WIDTH
    }

    fn score(&self, statistics: &[f64]) -> f64 {
        BleuScore::new(&BleuStats::read(statistics), self).score
    }

    fn details(&self, statistics: &[f64]) -> Option<String> {
        Some(BleuScore::new(&BleuStats::read(statistics), self).details())
    }

    fn add_to_json(&self, statistics: &[f64], json: &mut serde_json::Map<String, serde_json::Value>) {
        let score = BleuScore::new(&BleuStats::read(statistics), self);
        json.insert("precisions".to_owned(), score.precisions.into());
        json.insert("bp".to_owned(), score.bp.into());
        json.insert("sys_len".to_owned(), score.sys_len.into());
        json.insert("ref_len".to_owned(), score.ref_len.into());
    }
}

impl TextMetric for BleuOptions {
    fn line_statistics(&self, hypothesis: &str, references: &[&str], statistics: &mut [f64]) {
        BleuStats::from_line(hypothesis, references.iter().copied(), self).write(statistics);
    }
}

/// A BLEU score and its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct BleuScore {
    /// BLEU, from 0 to 100.
    pub score: f64,
    /// Smoothed precisions of 1- to 4-grams, from 0 to 100; all zero where nothing matches.
    pub precisions: [f64; MAX_ORDER],
    /// Brevity penalty, from 0 to 1.
    pub bp: f64,
    /// Words of the hypotheses.
    pub sys_len: u64,
    /// Words of the closest references.
    pub ref_len: u64,
    /// Clipped n-gram matches, before smoothing.
    pub counts: [u64; MAX_ORDER],
    /// n-grams of the hypotheses, before smoothing.
    pub totals: [u64; MAX_ORDER],
}

impl BleuScore {
    /// The score of added-up statistics (Papineni et al. 2002, section 2.3).
    pub fn new(stats: &BleuStats, options: &BleuOptions) -> Self {
        let bp = brevity_penalty(stats.hyp_len, stats.ref_len);
        let (score, precisions) = if stats.correct == [0; MAX_ORDER] {
            (0.0, [0.0; MAX_ORDER])
        } else {
            let (precisions, orders) = smoothed_precisions(stats, options);
            let log = |&precision: &f64| if precision == 0.0 { LOG_OF_ZERO } else { precision.ln() };
            let mean = precisions.iter().take(orders).map(log).sum::<f64>() / orders as f64;
            (bp * mean.exp(), precisions)
        };
        Self {
            score,
            precisions,
            bp,
            sys_len: stats.hyp_len,
            ref_len: stats.ref_len,
            counts: stats.correct,
            totals: stats.total,
        }
    }

    /// What sacrebleu prints behind the score: `55.2/28.3/16.7/10.3 (BP = 1.000 ratio = 0.995 hyp_len = … ref_len =
    /// …)`.
    pub fn details(&self) -> String {
        let [p1, p2, p3, p4] = self.precisions;
        let ratio = if self.ref_len == 0 { 0.0 } else { self.sys_len as f64 / self.ref_len as f64 };
        format!(
            "{p1:.1}/{p2:.1}/{p3:.1}/{p4:.1} (BP = {:.3} ratio = {ratio:.3} hyp_len = {} ref_len = {})",
            self.bp, self.sys_len, self.ref_len
        )
    }
}

/// `min(1, e^(1 − r/c))` for a hypothesis of `c` words and a reference of `r`; 0 if only the hypothesis is empty.
fn brevity_penalty(hyp_len: u64, ref_len: u64) -> f64 {
    match hyp_len {
        _ if hyp_len >= ref_len => 1.0,
        0 => 0.0,
        _ => (1.0 - ref_len as f64 / hyp_len as f64).exp(),
    }
}

/// Precisions in percent, and how many orders go into the mean. From the first order without any n-gram on, precisions
/// are left at zero.
fn smoothed_precisions(stats: &BleuStats, options: &BleuOptions) -> ([f64; MAX_ORDER], usize) {
    let mut precisions = [0.0; MAX_ORDER];
    let mut orders = MAX_ORDER;
    let mut halvings = 1.0;
    for (n, precision) in precisions.iter_mut().enumerate() {
        let (mut correct, mut total) = (stats.correct[n] as f64, stats.total[n] as f64);
        if let Smooth::AddK(k) = options.smooth
            && n > 0
        {
            correct += k;
            total += k;
        }
        if total == 0.0 {
            break;
        }
        if options.effective_order {
            orders = n + 1;
        }
        *precision = match options.smooth {
            _ if correct > 0.0 => 100.0 * correct / total,
            Smooth::Exp => {
                halvings *= 2.0;
                100.0 / (halvings * total)
            }
            Smooth::Floor(value) => 100.0 * value / total,
            Smooth::AddK(_) | Smooth::None => 0.0,
        };
    }
    (precisions, orders)
}

/// BLEU of a corpus; `references[r][i]` is line `i` of reference stream `r`.
///
/// Fails where there is nothing to score, where the streams differ in length, or on an impossible smoothing value.
pub fn corpus_bleu<S: AsRef<str> + Sync>(
    hypotheses: &[S],
    references: &[Vec<S>],
    options: &BleuOptions,
) -> Result<BleuScore> {
    options.smooth.check()?;
    let sum = Statistics::new(options, hypotheses, references)?.sum();
    Ok(BleuScore::new(&BleuStats::read(&sum), options))
}

/// BLEU of one sentence against its references; `effective_order` is advisable.
///
/// Fails without a reference, or on an impossible smoothing value.
pub fn sentence_bleu<S: AsRef<str>>(hypothesis: &str, references: &[S], options: &BleuOptions) -> Result<BleuScore> {
    options.smooth.check()?;
    if references.is_empty() {
        return Err(Error::usage("BLEU needs at least one reference"));
    }
    let stats = BleuStats::from_line(hypothesis, references.iter().map(AsRef::as_ref), options);
    Ok(BleuScore::new(&stats, options))
}

/// A warning if the hypotheses look tokenized: 100 or more lines end in a separate period. The caller skips the check
/// under `--force`.
pub fn tokenized_warning<S: AsRef<str>>(hypotheses: &[S]) -> Option<String> {
    let ends_tokenized = |line: &&S| line.as_ref().trim_end_matches(is_whitespace).ends_with(" .");
    let lines = hypotheses.iter().filter(ends_tokenized).count();
    (lines >= TOKENIZED_LINES).then(|| {
        format!(
            "{lines} lines end in a period with a space before it, as in tokenized text: \
             detokenize the hypotheses before scoring, or the score is not comparable (--force silences this)"
        )
    })
}

/// A warning if a text has no spaces between words, as in Chinese, Japanese and Thai, but `tokenize` splits at spaces:
/// whole clauses then count as a word.
pub fn spaceless_warning<S: AsRef<str>>(lines: &[S], tokenize: Tokenize) -> Option<String> {
    if matches!(tokenize, Tokenize::Zh | Tokenize::Char) {
        return None;
    }
    let (mut found, mut letters, mut spaceless) = (0, 0, 0);
    for line in lines {
        for word in words(&tokenize.separate(line.as_ref())) {
            let of_word = word.chars().filter(|c| c.is_alphabetic()).count();
            found += usize::from(of_word > 0);
            letters += of_word;
            spaceless += word.chars().filter(|c| is_spaceless(*c)).count();
        }
    }
    // More than three letters per word on average: words of Chinese that is already split have about two.
    (2 * spaceless > letters && letters > 3 * found).then(|| {
        format!(
            "the references are of a script without spaces between words: to BLEU's tokenizer {tokenize} they are \
             words of {:.1} letters on average, of which hardly any is ever right",
            letters as f64 / found as f64
        )
    })
}

/// Whether a letter is of a script that has no spaces between words: Han, kana, Thai, Lao, Tibetan, Burmese, Khmer.
fn is_spaceless(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{fff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}' |
        '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(hypothesis: &str, references: &[&str], options: BleuOptions) -> BleuScore {
        sentence_bleu(hypothesis, references, &options).unwrap()
    }

    fn with(smooth: Smooth) -> BleuOptions {
        BleuOptions { smooth, ..Default::default() }
    }

    #[test]
    fn text_without_spaces_is_seen() {
        let warns = |line: &str, tokenize| spaceless_warning(&[line], tokenize).is_some();
        for line in ["猫在睡觉，它很累。", "これは日本語の文です。", "นี่คือประโยคภาษาไทย", "ABC 公司的新产品今天上市了"]
        {
            assert!(
                warns(line, Tokenize::V13a) && warns(line, Tokenize::Intl) && warns(line, Tokenize::None),
                "{line}"
            );
            assert!(!warns(line, Tokenize::Zh) && !warns(line, Tokenize::Char));
        }
        for line in [
            "",
            "Donaudampfschifffahrtsgesellschaft",
            "猫 在 睡觉 ， 它 很 累 。",
            "한국어 문장입니다",
            "The word 猫 means cat.",
        ] {
            assert!(!warns(line, Tokenize::V13a), "{line}");
        }
    }

    #[test]
    fn smoothing_by_hand() {
        // Matches 3, 1, 0, 0 of 4, 3, 2, 1 n-grams; equal lengths.
        let near = |smooth, expected: f64| {
            let result = score("a b c d", &["a b x c"], with(smooth)).score;
            assert!((result - expected).abs() < 1e-9, "{smooth}: {result} for {expected}");
        };
        let mean = |p: [f64; 4]| 100.0 * p.iter().product::<f64>().powf(0.25);
        near(Smooth::Exp, mean([3.0 / 4.0, 1.0 / 3.0, 0.5 / 2.0, 0.25]));
        near(Smooth::Floor(0.1), mean([3.0 / 4.0, 1.0 / 3.0, 0.1 / 2.0, 0.1]));
        near(Smooth::AddK(1.0), mean([3.0 / 4.0, 2.0 / 4.0, 1.0 / 3.0, 1.0 / 2.0]));
        near(Smooth::None, 0.0);
    }

    #[test]
    fn effective_order_leaves_out_what_the_hypothesis_cannot_have() {
        assert_eq!(score("a b", &["a b"], with(Smooth::Exp)).score, 0.0);
        let effective = BleuOptions { effective_order: true, ..Default::default() };
        assert!((score("a b", &["a b"], effective).score - 100.0).abs() < 1e-9);
    }

    #[test]
    fn closest_reference_and_brevity() {
        // 3 words against 2 and 4: equally close, so the shorter counts, and there is no brevity penalty.
        let tie = score("a b c", &["a b c d", "a b"], BleuOptions::default());
        assert_eq!((tie.ref_len, tie.bp), (2, 1.0));
        let short = score("a b", &["a b c d"], BleuOptions::default());
        assert_eq!(short.bp, (-1f64).exp());
        assert_eq!(score("", &["a"], BleuOptions::default()).bp, 0.0);
        assert_eq!(score("", &[""], BleuOptions::default()).bp, 1.0);
    }

    #[test]
    fn refuses_what_cannot_be_scored() {
        let options = BleuOptions::default();
        let error = corpus_bleu(&["a", "b"], &[vec!["a", "b"], vec!["a"]], &options).unwrap_err();
        assert_eq!(error.what(), "2 hypotheses, but reference 2 has 1 lines");
        assert!(corpus_bleu::<&str>(&[], &[vec![]], &options).is_err());
        assert!(corpus_bleu(&["a"], &[], &options).is_err());
        let error = Statistics::with_missing(&options, &["a", "b"], &[vec![Some("a"), None]]).unwrap_err();
        assert_eq!(error.what(), "line 2 has no reference");
        for (name, value) in [("exp", Some(1.0)), ("floor", Some(-0.1)), ("add-k", Some(f64::NAN)), ("laplace", None)] {
            assert_eq!(Smooth::new(name, value).unwrap_err().exit_code(), 2, "{name}");
        }
        assert_eq!(Smooth::new("floor", None).unwrap(), Smooth::Floor(0.1));
        assert_eq!(Smooth::new("add-k", None).unwrap(), Smooth::AddK(1.0));
    }

    #[test]
    fn warns_of_tokenized_hypotheses() {
        let mut lines = vec!["A sentence ."; 99];
        lines.extend(["Another.", ""]);
        assert_eq!(tokenized_warning(&lines), None);
        lines.push("The hundredth . ");
        assert!(tokenized_warning(&lines).unwrap().starts_with("100 lines "));
    }
}
