//! What all metrics have in common: statistics of every line, which add up, and a score from their sum.

use rayon::prelude::*;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A metric with its options.
pub trait Metric: Sync {
    /// Its key in JSON: `bleu`, `chrf`, `ter`.
    fn key(&self) -> &'static str;

    /// Its name beside a score: `BLEU`, `chrF2++`, `TER`.
    fn name(&self) -> String;

    /// How it is computed, as sacrebleu's signature has it, without the number of references and the version.
    fn options(&self) -> Vec<(&'static str, String)>;

    /// How many numbers the statistics of a line have.
    fn width(&self) -> usize;

    /// The score of added-up statistics, in percent; of a neural metric, the mean.
    fn score(&self, statistics: &[f64]) -> f64;

    /// What sacrebleu prints behind the score.
    fn details(&self, _statistics: &[f64]) -> Option<String> {
        None
    }

    /// What else goes into JSON beside score and signature.
    fn add_to_json(&self, _statistics: &[f64], _json: &mut Map<String, Value>) {}

    /// Whether it compares with references.
    fn has_references(&self) -> bool {
        true
    }

    /// How many more decimals its scores are printed with than those in percent.
    fn more_decimals(&self) -> usize {
        0
    }
}

/// A metric that compares a line with its references.
pub trait TextMetric: Metric {
    /// Writes the statistics of a line. `references` are those of the line, at least one.
    fn line_statistics(&self, hypothesis: &str, references: &[&str], statistics: &mut [f64]);
}

/// A metric whose score is the mean of the scores that a model gives to lines.
#[derive(Clone, Debug)]
pub struct MeanScore {
    /// Its key in JSON.
    pub key: &'static str,
    /// Its name beside a score.
    pub name: &'static str,
    /// What its signature says of the model.
    pub options: Vec<(&'static str, String)>,
    /// Whether the model compares with references.
    pub has_references: bool,
}

impl Metric for MeanScore {
    fn key(&self) -> &'static str {
        self.key
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        self.options.clone()
    }

    fn width(&self) -> usize {
        2
    }

    fn score(&self, statistics: &[f64]) -> f64 {
        statistics[0] / statistics[1]
    }

    fn has_references(&self) -> bool {
        self.has_references
    }

    fn more_decimals(&self) -> usize {
        2
    }
}

/// The statistics of every line of a corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    width: usize,
    values: Vec<f64>,
    /// Number of references of every line; 0 if it differs between lines.
    pub references: usize,
}

impl Statistics {
    /// The statistics of a corpus; `references[r][i]` is line `i` of reference stream `r`.
    ///
    /// # Errors
    /// There is nothing to score, or the streams differ in length.
    pub fn new<S: AsRef<str> + Sync>(metric: &dyn TextMetric, hypotheses: &[S], references: &[Vec<S>]) -> Result<Self> {
        check(hypotheses.len(), references)?;
        let line_references = |i: usize| references.iter().map(|stream| stream[i].as_ref()).collect::<Vec<_>>();
        Ok(Self::from_lines(metric, hypotheses, line_references, references.len()))
    }

    /// The statistics of a corpus whose lines differ in their number of references: `None` is a missing one. An empty
    /// string is a reference of length zero.
    ///
    /// # Errors
    /// As [`Statistics::new`], and where a line has no reference at all.
    pub fn with_missing<S: AsRef<str> + Sync>(
        metric: &dyn TextMetric,
        hypotheses: &[S],
        references: &[Vec<Option<S>>],
    ) -> Result<Self> {
        check(hypotheses.len(), references)?;
        let line_references = |i: usize| {
            references.iter().filter_map(|stream| stream[i].as_ref()).map(AsRef::as_ref).collect::<Vec<&str>>()
        };
        let counts: Vec<usize> = (0..hypotheses.len()).map(|i| line_references(i).len()).collect();
        if let Some(line) = counts.iter().position(|count| *count == 0) {
            return Err(Error::failure(format!("line {} has no reference", line + 1)));
        }
        let same = counts.windows(2).all(|pair| pair[0] == pair[1]);
        Ok(Self::from_lines(metric, hypotheses, line_references, if same { counts[0] } else { 0 }))
    }

    fn from_lines<'a, S: AsRef<str> + Sync>(
        metric: &dyn TextMetric,
        hypotheses: &[S],
        line_references: impl Fn(usize) -> Vec<&'a str> + Sync,
        references: usize,
    ) -> Self {
        let width = metric.width();
        let mut values = vec![0.0; width * hypotheses.len()];
        values.par_chunks_exact_mut(width).zip(hypotheses).enumerate().for_each(|(i, (line, hypothesis))| {
            metric.line_statistics(hypothesis.as_ref(), &line_references(i), line);
        });
        Self { width, values, references }
    }

    /// All of them as whole numbers, line after line, for [`Statistics::from_counts`]. The statistics of BLEU and chrF
    /// are counts; others are rounded.
    pub fn counts(&self) -> Vec<u32> {
        self.values.iter().map(|value| *value as u32).collect()
    }

    /// The statistics of lines with one reference each, as [`Statistics::counts`] gives them.
    pub fn from_counts(metric: &dyn Metric, counts: &[u32]) -> Self {
        let values = counts.iter().map(|count| f64::from(*count)).collect();
        Self { width: metric.width(), values, references: 1 }
    }

    /// For a [`MeanScore`], from the score of each line.
    pub fn from_scores(scores: &[f64], references: usize) -> Self {
        Self { width: 2, values: scores.iter().flat_map(|score| [*score, 1.0]).collect(), references }
    }

    /// Those of one line alone.
    pub fn of_line(&self, index: usize) -> Self {
        Self { values: self.line(index).to_vec(), ..*self }
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The statistics of a line.
    pub fn line(&self, index: usize) -> &[f64] {
        &self.values[index * self.width..][..self.width]
    }

    /// The lines in order.
    pub fn lines(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks_exact(self.width)
    }

    /// The sum over all lines.
    pub fn sum(&self) -> Vec<f64> {
        self.sum_of(0..self.len())
    }

    /// The sum over some lines; a line given several times counts each time.
    pub fn sum_of(&self, lines: impl IntoIterator<Item = usize>) -> Vec<f64> {
        let mut sum = vec![0.0; self.width];
        for index in lines {
            add(&mut sum, self.line(index));
        }
        sum
    }
}

fn add(sum: &mut [f64], line: &[f64]) {
    sum.iter_mut().zip(line).for_each(|(sum, value)| *sum += value);
}

/// The signature for repeating a computation, in sacrebleu's form with our version:
/// `nrefs:1|case:mixed|…|version:mt-X.Y.Z`. `references` is their number in every line, 0 if it varies; `resampling` is
/// added by a significance test.
pub fn signature(metric: &dyn Metric, references: usize, resampling: &[(&str, String)]) -> String {
    let references = if references == 0 { "var".to_owned() } else { references.to_string() };
    let mut parts = if metric.has_references() { vec![format!("nrefs:{references}")] } else { Vec::new() };
    parts.extend(resampling.iter().map(|(key, value)| format!("{key}:{value}")));
    parts.extend(metric.options().into_iter().map(|(key, value)| format!("{key}:{value}")));
    parts.push(format!("version:mt-{}", env!("CARGO_PKG_VERSION")));
    parts.join("|")
}

/// Checks that there are lines to score, and as many in each reference; `L` is a line or a line that may be missing.
fn check<L>(hypotheses: usize, references: &[Vec<L>]) -> Result<()> {
    if references.is_empty() {
        return Err(Error::usage("a score needs at least one reference"));
    }
    for (r, stream) in references.iter().enumerate() {
        if stream.len() != hypotheses {
            let (r, lines) = (r + 1, stream.len());
            return Err(Error::failure(format!("{hypotheses} hypotheses, but reference {r} has {lines} lines"))
                .help("hypotheses and references must be of the same lines, in the same order"));
        }
    }
    if hypotheses == 0 {
        return Err(Error::failure("there are no lines to score"));
    }
    Ok(())
}
