//! How hypotheses are chosen.

use std::sync::Arc;

use super::{Hypothesis, LengthPenalty, MAX_BEAM, SearchOptions, StepModel, beam, greedy};
use crate::error::{Error, Result};

/// How hypotheses are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// Beam search; a width of 1 is greedy search.
    Beam {
        /// Hypotheses extended at each step, and the most that are returned: 1 to [`MAX_BEAM`].
        width: usize,
    },
    /// Beam search in diverse groups (Vijayakumar et al. 2016, "Diverse Beam Search", with Hamming diversity): a
    /// group's hypotheses pay `penalty` for a token each time that an earlier group took it at the same step. The
    /// penalty affects which hypotheses are extended, but not their scores.
    Diverse {
        /// Beam width of all groups together, a multiple of `groups`.
        width: usize,
        /// Number of groups.
        groups: usize,
        /// Log-probability paid for a token another group took.
        penalty: f64,
    },
    /// Tokens drawn at random.
    Sample(Sampling),
    /// What several beam searches would find.
    Trials(Arc<Trials>),
}

/// What whoever translates has to know of a strategy, whichever it is.
impl Strategy {
    /// The most rows that a sentence takes, and so the most hypotheses that it gets.
    pub fn rows(&self) -> usize {
        match self {
            Self::Beam { width } | Self::Diverse { width, .. } => *width,
            Self::Sample(sampling) => sampling.count,
            Self::Trials(trials) => trials.widths.iter().copied().max().unwrap_or(0),
        }
    }

    /// Whether hypotheses come ranked, the best first.
    pub(super) fn is_ranked(&self) -> bool {
        match self {
            Self::Beam { .. } | Self::Diverse { .. } => true,
            Self::Sample(_) | Self::Trials(_) => false,
        }
    }

    /// Whether the model is asked for the probabilities of all tokens.
    pub(super) fn asks_for_all(&self) -> bool {
        match self {
            Self::Beam { .. } | Self::Diverse { .. } | Self::Trials(_) => false,
            Self::Sample(sampling) => sampling.asks_for_all(),
        }
    }

    /// Whether it can see to it that a translation contains given phrases.
    pub(super) fn takes_phrases(&self) -> bool {
        match self {
            Self::Beam { .. } => true,
            Self::Diverse { .. } | Self::Sample(_) | Self::Trials(_) => false,
        }
    }

    /// Checks that its options are in range.
    pub(super) fn check(&self) -> Result<()> {
        let (name, counts) = match self {
            Self::Beam { .. } | Self::Diverse { .. } => ("beam", vec![self.rows()]),
            Self::Sample(_) => ("number of samples", vec![self.rows()]),
            Self::Trials(trials) => ("beam", trials.widths.clone()),
        };
        if let Some(count) = counts.iter().find(|count| !(1..=MAX_BEAM).contains(*count)) {
            return Err(Error::usage(format!("a {name} of {count} is not between 1 and {MAX_BEAM}")));
        }
        match *self {
            Self::Beam { .. } | Self::Trials(_) => {}
            Self::Diverse { width, groups, penalty } => {
                if groups == 0 || width % groups != 0 {
                    let error = Error::usage(format!("a beam of {width} cannot be split into {groups} equal groups"));
                    return Err(error.help("choose --beam as a multiple of --beam-groups"));
                }
                if !(penalty.is_finite() && penalty >= 0.0) {
                    return Err(Error::usage(format!(
                        "a diversity penalty of {penalty} is not a number of at least 0"
                    )));
                }
            }
            Self::Sample(Sampling { temperature, top_p, .. }) => {
                if !(temperature.is_finite() && temperature > 0.0) {
                    let error = Error::usage(format!("a temperature of {temperature} is not a number above 0"));
                    return Err(
                        error.help("for the most probable token at each step, give --beam 1 instead of --sample")
                    );
                }
                if !(top_p > 0.0 && top_p <= 1.0) {
                    return Err(Error::usage(format!("a top-p of {top_p} is not above 0 and at most 1")));
                }
            }
        }
        Ok(())
    }
}

/// Beam searches with several widths and length penalties. A sentence gets the best hypothesis of each: width by width,
/// and for each width penalty by penalty. The search of a width serves all penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    /// Beam widths, each 1 to [`MAX_BEAM`].
    pub widths: Vec<usize>,
    /// Length penalties, at least one; that of the options does not count.
    pub penalties: Vec<LengthPenalty>,
}

impl Trials {
    pub(super) fn search(&self, model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
        let mut all = vec![Vec::new(); options.sentences.len()];
        for width in &self.widths {
            let found = match width {
                1 => greedy::best_by_each(model, options, &self.penalties),
                _ => beam::best_by_each(model, options, *width, &self.penalties),
            }?;
            all.iter_mut().zip(found).for_each(|(all, found)| all.extend(found));
        }
        Ok(all)
    }
}

/// How tokens are drawn: from the most probable part of the distribution at a temperature, renormalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Translations drawn for each sentence, in the order drawn; they may be equal.
    pub count: usize,
    /// Logits are divided by this: below 1 sharper, above 1 flatter.
    pub temperature: f64,
    /// Draw among this many of the most probable tokens; 0: all (Fan et al. 2018).
    pub top_k: usize,
    /// Draw among the fewest most probable tokens that together reach this probability; 1: all (Holtzman et al. 2020).
    pub top_p: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Whether the search needs the whole distribution; otherwise it needs a few best continuations.
    pub(super) fn asks_for_all(&self) -> bool {
        self.top_k == 0 || self.top_k > MAX_BEAM
    }
}
