//! What training text is like: how much of it there is, and how long its sentences are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::encoded::EncodedCorpus;
use super::filter::FilterReport;
use super::lengths::Lengths;
use crate::data::DataConfig;

/// Most bars of a histogram.
const BARS: u32 = 40;

/// Numbers of a training text; lengths are in subwords, without special tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Pairs that passed the filters.
    pub pairs: usize,
    /// How many did not, and why, in words.
    pub filters: String,
    /// The corpora.
    pub corpora: Vec<CorpusSize>,
    /// Source side.
    pub source: Side,
    /// Target side.
    pub target: Side,
    /// Ratios of target length to source length.
    pub ratios: Histogram,
}

/// One of the corpora.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CorpusSize {
    /// Its source file.
    pub source: PathBuf,
    /// Its target file.
    pub target: PathBuf,
    /// How often its pairs are drawn an epoch.
    pub weight: f64,
    /// Pairs that passed the filters.
    pub pairs: usize,
}

/// One side of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Pieces of the vocabulary.
    pub vocabulary: usize,
    /// Subwords of the text.
    pub tokens: u64,
    /// Half of all lines are as long or shorter.
    pub median: u32,
    /// The longest line.
    pub longest: u32,
    /// How the lengths are distributed.
    pub lengths: Histogram,
}

/// How many values lie in each of some intervals of equal width.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// Where the first begins.
    pub start: f64,
    /// Width of each.
    pub width: f64,
    /// How many values lie in each; the last also counts all larger ones.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// From values, each with its count.
    fn new(start: f64, width: f64, bars: usize, values: impl Iterator<Item = (f64, u64)>) -> Self {
        let mut counts = vec![0; bars];
        for (value, count) in values {
            // A value on an edge belongs to the bar that begins there, however the division is rounded.
            let bar = ((value - start) / width + 1e-9).max(0.0) as usize;
            counts[bar.min(bars - 1)] += count;
        }
        Self { start, width, counts }
    }
}

impl Side {
    /// From at least one length.
    fn new(lengths: impl Iterator<Item = u32>, vocabulary: usize) -> Self {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        lengths.for_each(|length| *counts.entry(length).or_default() += 1);
        let lines: u64 = counts.values().sum();
        // The length at this rank, from 0, among the sorted lengths.
        let ranked = |rank: u64| {
            let mut before = 0;
            let reaches = |(_, count): &(&u32, &u64)| {
                before += *count;
                before > rank
            };
            counts.iter().find(reaches).map_or(0, |(length, _)| *length)
        };
        let last = lines.saturating_sub(1);
        let longest = ranked(last);
        // One line in two hundred may be longer than the bars show.
        let usual = ranked(last * 199 / 200);
        let width = (usual / BARS + 1).max(1);
        let histogram = Histogram::new(
            0.0,
            f64::from(width),
            (usual / width + 1) as usize + usize::from(longest > usual),
            counts.iter().map(|(length, count)| (f64::from(*length), *count)),
        );
        Self {
            vocabulary,
            tokens: counts.iter().map(|(length, count)| u64::from(*length) * count).sum(),
            median: ranked(last / 2),
            longest,
            lengths: histogram,
        }
    }
}

impl Statistics {
    /// From a corpus that is not empty, and the sizes of the source and target vocabularies.
    pub fn new(
        corpus: &EncodedCorpus,
        report: &FilterReport,
        config: &DataConfig,
        [source, target]: [usize; 2],
    ) -> Self {
        let corpora = config.train.iter().zip(corpus.ranges());
        let side = |of: fn(Lengths) -> u32, vocabulary| Side::new(corpus.lengths().map(of), vocabulary);
        let ratio = |lengths: Lengths| (f64::from(lengths.target) / f64::from(lengths.source.max(1)), 1);
        Self {
            pairs: corpus.len(),
            filters: report.to_string(),
            corpora: corpora
                .map(|(config, range)| {
                    let [source, target] = config.location.sides();
                    CorpusSize { source, target, weight: config.weight, pairs: range.range.len() }
                })
                .collect(),
            source: side(|lengths| lengths.source, source),
            target: side(|lengths| lengths.target, target),
            ratios: Histogram::new(0.0, 0.1, 31, corpus.lengths().map(ratio)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_one_bar() {
        let side = Side::new(1..=1000, 7);
        assert_eq!((side.tokens, side.median, side.longest), (500_500, 500, 1000));
        let Histogram { start, width, counts } = side.lengths;
        assert_eq!((start, counts.iter().sum::<u64>()), (0.0, 1000));
        assert!(counts.len() <= BARS as usize + 1, "{}", counts.len());
        // The first has 1 to 24.
        assert_eq!((width, counts[0], counts[1]), (25.0, 24, 25));

        let one = Side::new([3].into_iter(), 7).lengths;
        assert_eq!((one.width, one.counts), (1.0, vec![0, 0, 0, 1]));
        let outlier = Side::new([5; 999].into_iter().chain([4000]), 7).lengths;
        assert_eq!((outlier.counts[5], outlier.counts[6], outlier.counts.len()), (999, 1, 7));
    }

    #[test]
    fn what_is_larger_is_in_the_last_bar() {
        let ratios = Histogram::new(
            0.0,
            0.1,
            31,
            [0.05, 1.0, 1.05, 3.0, 70.0, 7.0 / 10.0, 12.0 / 10.0, 1.4].map(|v| (v, 1)).into_iter(),
        );
        assert_eq!((ratios.counts[0], ratios.counts[10], ratios.counts[30]), (1, 2, 2));
        // On the edges.
        assert_eq!([7, 12, 14].map(|bar| ratios.counts[bar]), [1, 1, 1]);
    }
}
