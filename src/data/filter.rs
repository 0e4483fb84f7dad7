//! Chooses the pairs for training, and reports on the dropped ones.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::corpus::Side;
use crate::error::{Error, Result};

/// Limits on a pair's lengths, in subwords without special tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    /// Most subwords a side; 0 for no limit.
    pub max_length: usize,
    /// Most times that one side may be longer than the other; 0 for no limit.
    pub max_ratio: f64,
}

/// Why a pair was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// The source has no subword.
    EmptySource,
    /// The target has no subword.
    EmptyTarget,
    /// The source is longer than the limit.
    SourceTooLong,
    /// The target is longer than the limit.
    TargetTooLong,
    /// One side is too many times longer than the other.
    Ratio,
    /// A model of quality estimation finds the translation bad.
    LowQuality,
}

impl DropReason {
    /// The side whose line shows the reason best.
    pub fn side(self) -> Side {
        match self {
            Self::EmptyTarget | Self::TargetTooLong => Side::Target,
            Self::EmptySource | Self::SourceTooLong | Self::Ratio | Self::LowQuality => Side::Source,
        }
    }
}

impl Filter {
    /// Why a pair of these lengths is dropped; `None` if it is kept. The first reason of several.
    pub fn check(&self, source_length: usize, target_length: usize) -> Option<DropReason> {
        let too_long = |length| self.max_length > 0 && length > self.max_length;
        let (shorter, longer) = (source_length.min(target_length), source_length.max(target_length));
        if source_length == 0 {
            Some(DropReason::EmptySource)
        } else if target_length == 0 {
            Some(DropReason::EmptyTarget)
        } else if too_long(source_length) {
            Some(DropReason::SourceTooLong)
        } else if too_long(target_length) {
            Some(DropReason::TargetTooLong)
        } else if self.max_ratio > 0.0 && longer as f64 > self.max_ratio * shorter as f64 {
            Some(DropReason::Ratio)
        } else {
            None
        }
    }
}

/// The pairs that one reason dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// How many.
    pub count: usize,
    /// File of the first of them.
    pub path: PathBuf,
    /// Line of the first of them, from 1.
    pub line: usize,
}

/// What a filter kept and dropped. Displays as one line.
#[derive(Clone, Debug, PartialEq)]
pub struct FilterReport {
    /// The filter.
    pub filter: Filter,
    /// Pairs kept.
    pub kept: usize,
    /// Pairs dropped, by reason.
    pub dropped: BTreeMap<DropReason, Dropped>,
}

impl FilterReport {
    /// The report of a filter that has seen nothing yet.
    pub fn new(filter: Filter) -> Self {
        Self { filter, kept: 0, dropped: BTreeMap::new() }
    }

    /// Counts dropped pairs. `first` gives the file and line of the first of them; it is only asked for the first time
    /// that a reason occurs.
    pub fn drop_pairs(&mut self, reason: DropReason, count: usize, first: impl FnOnce() -> (PathBuf, usize)) {
        let new = || {
            let (path, line) = first();
            Dropped { count: 0, path, line }
        };
        self.dropped.entry(reason).or_insert_with(new).count += count;
    }

    /// Pairs dropped for any reason.
    pub fn total_dropped(&self) -> usize {
        self.dropped.values().map(|dropped| dropped.count).sum()
    }

    /// Fails where nothing was kept, with the counts and what could be changed.
    pub fn require_pairs(&self) -> Result<()> {
        if self.kept > 0 {
            return Ok(());
        }
        let help = match self.dropped.iter().max_by_key(|(_, dropped)| dropped.count).map(|(reason, _)| reason) {
            None => "the corpora hold no pair: check data.train",
            Some(DropReason::EmptySource | DropReason::EmptyTarget) => {
                "look at the lines named: are these the right files?"
            }
            Some(DropReason::SourceTooLong | DropReason::TargetTooLong) => {
                "raise data.max_length, or train a tokenizer that fits this text"
            }
            Some(DropReason::Ratio) => "check that the two files are aligned line by line, or raise data.max_ratio",
            Some(DropReason::LowQuality) => {
                "check that the two files are aligned line by line, or lower data.quality.least"
            }
        };
        Err(Error::failure(format!("no pair is left to train on: {self}")).help(help))
    }

    fn describe(&self, reason: DropReason) -> String {
        match reason {
            DropReason::EmptySource => "with an empty source".to_owned(),
            DropReason::EmptyTarget => "with an empty target".to_owned(),
            DropReason::SourceTooLong => {
                format!("with a source longer than data.max_length = {}", self.filter.max_length)
            }
            DropReason::TargetTooLong => {
                format!("with a target longer than data.max_length = {}", self.filter.max_length)
            }
            DropReason::Ratio => format!("with a length ratio above {}", self.filter.max_ratio),
            DropReason::LowQuality => "with a quality below data.quality.least".to_owned(),
        }
    }
}

impl fmt::Display for FilterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total_dropped();
        if total == 0 {
            return write!(f, "{} pair{}", self.kept, if self.kept == 1 { "" } else { "s" });
        }
        write!(f, "{} of {} pairs, {total} dropped", self.kept, self.kept + total)?;
        for (i, (&reason, Dropped { count, path, line })) in self.dropped.iter().enumerate() {
            let separator = if i == 0 { ": " } else { ", " };
            write!(f, "{separator}{count} {} (first at {}:{line})", self.describe(reason), path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons() {
        let filter = Filter { max_length: 100, max_ratio: 9.0 };
        for (source, target, expected) in [
            (1, 1, None),
            (100, 100, None),
            (9, 1, None),
            (1, 9, None),
            (0, 0, Some(DropReason::EmptySource)),
            (0, 200, Some(DropReason::EmptySource)),
            (5, 0, Some(DropReason::EmptyTarget)),
            (101, 1, Some(DropReason::SourceTooLong)),
            (100, 101, Some(DropReason::TargetTooLong)),
            (10, 1, Some(DropReason::Ratio)),
            (1, 10, Some(DropReason::Ratio)),
            (10, 91, Some(DropReason::Ratio)),
        ] {
            assert_eq!(filter.check(source, target), expected, "{source} {target}");
        }
        let open = Filter { max_length: 0, max_ratio: 0.0 };
        assert_eq!(open.check(1, 100_000), None);
        assert_eq!(open.check(1, 0), Some(DropReason::EmptyTarget));
    }

    #[test]
    fn report_is_one_line() {
        let mut report = FilterReport::new(Filter { max_length: 100, max_ratio: 9.0 });
        report.kept = 28988;
        assert_eq!(report.to_string(), "28988 pairs");
        for (count, line) in [(1, 17), (2, 20)] {
            report.drop_pairs(DropReason::EmptySource, count, || ("train.en".into(), line));
        }
        report.drop_pairs(DropReason::TargetTooLong, 9, || ("train.de".into(), 5));
        assert_eq!(
            report.to_string(),
            "28988 of 29000 pairs, 12 dropped: 3 with an empty source (first at train.en:17), \
             9 with a target longer than data.max_length = 100 (first at train.de:5)"
        );
        assert!(report.require_pairs().is_ok());
    }

    #[test]
    fn nothing_left_says_what_to_change() {
        let mut report = FilterReport::new(Filter { max_length: 100, max_ratio: 9.0 });
        assert!(report.require_pairs().unwrap_err().to_string().contains("data.train"));
        report.drop_pairs(DropReason::Ratio, 1, || ("train.en".into(), 2));
        let error = report.require_pairs().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "no pair is left to train on: 0 of 1 pairs, 1 dropped: 1 with a length ratio above 9 (first at \
                 train.en:2)"
            ),
            "{error}"
        );
        assert!(error.contains("help: check that the two files are aligned"), "{error}");
    }
}
