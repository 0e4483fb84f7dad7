//! Search: from a model that extends rows by one token to the best translations of each sentence.
//!
//! The search sees a [`StepModel`] and nothing of tensors. It hands the model a batch of rows, one per live hypothesis
//! of every unfinished sentence, with what each may be continued by, and gets back the `k` best continuations of each row.
//! [`search`] follows a [`Strategy`]: beam search ([`greedy`] for a beam of 1), beam search in diverse groups, or sampling.
//!
//! A sentence's result depends on nothing but the model's answers for its own rows: ties are broken by rank within the
//! sentence and by token id, and random numbers are keyed by the sentence, so a batch of one and a batch of many give the
//! same hypotheses.

pub mod alignment;
pub mod attention;
mod beam;
mod constraint;
pub mod encode;
pub mod ensemble;
pub mod explain;
mod force;
mod greedy;
pub mod neural;
pub mod penalty;
mod sample;
pub mod shortlist;
pub mod source;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;
pub mod translate;

pub use constraint::{Constraint, Sentence};
pub use force::{Knowledge, force, knowledge};
pub use penalty::{LengthPenalty, PenaltyKind};

use crate::choice::choice;
use crate::error::{Error, Result};

/// The widest beam that [`search`] accepts. Nothing is gained beyond some tens, and memory grows with the square.
pub const MAX_BEAM: usize = 1000;

/// The largest α of a length penalty: beyond it scores are no numbers for long hypotheses.
pub const MAX_ALPHA: f64 = 50.0;

/// One step of an autoregressive model over rows: the hypotheses of several sentences in one batch.
///
/// A model starts with one row of state for each sentence, in order, and is good for one search.
pub trait StepModel {
    /// Number of sentences this model was prepared for.
    fn sentences(&self) -> usize;

    /// The token that every target starts with; it is fed at the first step and is in no hypothesis.
    fn start_token(&self) -> u32;

    /// The token that ends a hypothesis.
    fn end_token(&self) -> u32;

    /// Extends each row's hypothesis by one token and writes the `k` best continuations of row `r` to
    /// `best[r * k..(r + 1) * k]`, by falling log-probability, the smaller token first among equals.
    ///
    /// `best` has `rows.len() * k` entries and comes filled with [`Continuation::IMPOSSIBLE`]; where fewer than `k`
    /// tokens are possible, the rest stays so. The tokens of a row are distinct. Log-probabilities are natural
    /// logarithms and at most 0; what a row's constraint excludes does not change those of the others. The model never
    /// proposes a token that has no place in a translation (`<pad>`, `<s>`, `<unk>`): that list is its own. Neither the
    /// other rows nor their number may change a row's answer.
    ///
    /// # Errors
    /// Whatever the computation fails with; the search ends with it.
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()>;

    /// Extends each row's hypothesis by one token, as [`Self::step`], and writes the log-probabilities of all tokens, a
    /// row after the other, those included that have no place in a translation. Constraints are not looked at.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()>;

    /// The tokens that have no place in a translation.
    fn forbidden(&self) -> &[u32];

    /// As [`Self::log_probs`]; negative infinity for a token that has no place in a translation.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn distributions(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        self.log_probs(rows, log_probs)?;
        let vocabulary = log_probs.len() / rows.len();
        for row in log_probs.chunks_exact_mut(vocabulary) {
            self.forbidden().iter().for_each(|&token| row[token as usize] = f32::NEG_INFINITY);
        }
        Ok(())
    }
}

/// The rows of one step. The slices are equally long and never empty; the rows of a sentence stand together, its best
/// hypothesis first, and sentences stand in order. A sentence that is finished has no rows any more.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The token each row's hypothesis is extended with; the start token at the first step.
    pub tokens: &'a [u32],
    /// The row of the previous step whose hypothesis (and cached state) this row continues. At the first step: the row
    /// of the initial state, that is, the sentence.
    pub parents: &'a [usize],
    /// The source sentence each row belongs to.
    pub sentences: &'a [usize],
    /// What each row may be continued by; where nothing is excluded anywhere, there may be none.
    pub constraints: &'a [Constraint],
    /// The number of steps taken before this one: the position, from 0, of `tokens` in the decoder's input.
    pub position: usize,
}

impl Rows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no rows (never so in a call of [`StepModel::step`]).
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// What a row may be continued by.
    pub fn constraint(&self, row: usize) -> &Constraint {
        static NONE: Constraint = Constraint::NONE;
        self.constraints.get(row).unwrap_or(&NONE)
    }
}

/// One way to continue a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Continuation {
    /// The next token.
    pub token: u32,
    /// Its log-probability given the row's hypothesis.
    pub log_prob: f32,
}

/// The error where a model gives no numbers.
fn not_a_number() -> Error {
    Error::failure("the model's output is not a number")
        .help("its weights are damaged or its training diverged: use an earlier checkpoint")
}

/// `work` on a batch, whose results come in order; in halves where it does not fit into a device's memory.
///
/// # Errors
/// Those of `work`; out of memory only for a single item.
pub fn in_halves<T, R>(batch: &[T], work: &impl Fn(&[T]) -> Result<Vec<R>>) -> Result<Vec<R>> {
    match work(batch) {
        Err(error) if error.is_out_of_memory() && batch.len() > 1 => {
            let (first, second) = batch.split_at(batch.len() / 2);
            let mut results = in_halves(first, work)?;
            results.extend(in_halves(second, work)?);
            Ok(results)
        }
        result => result,
    }
}

impl Continuation {
    /// Fills the places of a row that has fewer possible tokens than were asked for.
    pub const IMPOSSIBLE: Self = Self { token: 0, log_prob: f32::NEG_INFINITY };

    /// The log-probability, or `None` where the continuation is impossible. A value just above 0, which rounding in a
    /// softmax can give, counts as 0: the search relies on sums that never rise.
    fn log_prob(&self) -> Result<Option<f64>> {
        if self.log_prob.is_nan() || self.log_prob == f32::INFINITY {
            return Err(not_a_number());
        }
        Ok((self.log_prob > f32::NEG_INFINITY).then(|| f64::from(self.log_prob.min(0.0))))
    }
}

/// How hypotheses are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strategy {
    /// Beam search; a width of 1 is greedy search.
    Beam {
        /// Hypotheses extended at each step, and most hypotheses returned: 1 to [`MAX_BEAM`].
        width: usize,
    },
    /// Beam search in groups that keep away from each other (Vijayakumar et al. 2016, "Diverse Beam Search", with Hamming
    /// diversity): a group's hypotheses pay `penalty` for a token for each time that an earlier group took it at the same
    /// step. What they pay decides which are extended, and is not in their score.
    Diverse {
        /// Hypotheses of all groups together, a multiple of `groups`.
        width: usize,
        /// Number of groups.
        groups: usize,
        /// Log-probability paid for a token another group took.
        penalty: f64,
    },
    /// Tokens drawn at random.
    Sample(Sampling),
}

/// How tokens are drawn: from the distribution at a temperature, of that the most probable, renormalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Translations drawn for each sentence, in the order drawn; they may be equal.
    pub count: usize,
    /// What logits are divided by: below 1 sharper, above 1 flatter.
    pub temperature: f64,
    /// Draw among this many of the most probable tokens; 0: all (Fan et al. 2018).
    pub top_k: usize,
    /// Draw among the most probable tokens that reach this probability together; 1: all (Holtzman et al. 2020).
    pub top_p: f64,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// How hypotheses are chosen.
    pub strategy: Strategy,
    /// What a hypothesis's log-probability is divided by for its score.
    pub length_penalty: LengthPenalty,
    /// Beams stop when so many times their width have finished; 0: when nothing can become better.
    pub patience: f64,
    /// No sequence of so many tokens comes twice in a hypothesis; 0: any may.
    pub no_repeat_ngram: usize,
    /// What holds for each sentence.
    pub sentences: Vec<Sentence>,
}

choice! {
    /// Why a hypothesis goes no further.
    pub enum Ending {
        /// It closes with the end token.
        End = "end",
        /// It was cut at the maximum length.
        MaxLength = "max_length",
        /// No token was possible any more.
        Stuck = "stuck",
    }
}

/// A translation that the search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// The tokens, without start and end.
    pub tokens: Vec<u32>,
    /// Their log-probabilities under the model, and that of the end token where there is one.
    pub token_log_probs: Vec<f32>,
    /// The sum of these.
    pub log_prob: f64,
    /// `log_prob` divided by the length penalty: what hypotheses are ranked by.
    pub score: f64,
    /// Why it goes no further.
    pub ending: Ending,
}

impl Hypothesis {
    /// Before the first token.
    const EMPTY: Self =
        Self { tokens: Vec::new(), token_log_probs: Vec::new(), log_prob: 0.0, score: 0.0, ending: Ending::MaxLength };

    /// Whether it closes with the end token.
    pub fn finished(&self) -> bool {
        self.ending == Ending::End
    }

    /// The length that penalties count: all tokens, and the end.
    fn length(&self) -> usize {
        self.tokens.len() + usize::from(self.finished())
    }
}

/// Finds the hypotheses of each sentence, at least one: of a beam up to its width, distinct, the best score first.
///
/// # Errors
/// If the options are out of range (exit code 2) or do not fit the model, if the model fails, or if it gives a
/// log-probability that is not a number.
pub fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    options.check()?;
    let (given, wanted) = (options.sentences.len(), model.sentences());
    if given != wanted {
        return Err(Error::failure(format!("the options of {given} sentences were given for {wanted}")));
    }
    match options.strategy {
        Strategy::Beam { width: 1 } => greedy::search(model, options),
        Strategy::Beam { width } => beam::search(model, options, beam::Groups { count: 1, width, penalty: 0.0 }),
        Strategy::Diverse { width, groups, penalty } => {
            beam::search(model, options, beam::Groups { count: groups, width: width / groups, penalty })
        }
        Strategy::Sample(sampling) => sample::search(model, options, &sampling),
    }
}

impl SearchOptions {
    /// Beam search until nothing can become better, up to a maximum length for each sentence.
    pub fn beam(width: usize, length_penalty: LengthPenalty, max_lengths: impl IntoIterator<Item = usize>) -> Self {
        let sentence = |max_length| Sentence { max_length, ..Sentence::default() };
        let sentences = max_lengths.into_iter().map(sentence).collect();
        Self { strategy: Strategy::Beam { width }, length_penalty, patience: 0.0, no_repeat_ngram: 0, sentences }
    }

    /// Refuses what cannot be searched with.
    ///
    /// # Errors
    /// Names the flag of what is out of range; exit code 2.
    pub fn check(&self) -> Result<()> {
        let width = match self.strategy {
            Strategy::Beam { width } | Strategy::Diverse { width, .. } => width,
            Strategy::Sample(sampling) => sampling.count,
        };
        if !(1..=MAX_BEAM).contains(&width) {
            let name = if let Strategy::Sample(_) = self.strategy { "number of samples" } else { "beam" };
            return Err(Error::usage(format!("a {name} of {width} is not between 1 and {MAX_BEAM}")));
        }
        let LengthPenalty { alpha, .. } = self.length_penalty;
        if !(-MAX_ALPHA..=MAX_ALPHA).contains(&alpha) {
            return Err(Error::usage(format!(
                "a length penalty of {alpha} is not between -{MAX_ALPHA} and {MAX_ALPHA}"
            )));
        }
        if !(self.patience.is_finite() && self.patience >= 0.0) {
            return Err(Error::usage(format!("a patience of {} is not a number from 0 on", self.patience)));
        }
        match self.strategy {
            Strategy::Diverse { width, groups, penalty } => {
                if groups == 0 || width % groups != 0 {
                    let error = Error::usage(format!("a beam of {width} cannot be split into {groups} equal groups"));
                    return Err(error.help("choose --beam as a multiple of --beam-groups"));
                }
                if !(penalty.is_finite() && penalty >= 0.0) {
                    return Err(Error::usage(format!("a diversity penalty of {penalty} is not a number from 0 on")));
                }
            }
            Strategy::Sample(Sampling { temperature, top_p, .. }) => {
                if !(temperature.is_finite() && temperature > 0.0) {
                    let error = Error::usage(format!("a temperature of {temperature} is not a number above 0"));
                    return Err(error.help("for the most probable token at each step leave out --sample: --beam 1"));
                }
                if !(top_p > 0.0 && top_p <= 1.0) {
                    return Err(Error::usage(format!("a top-p of {top_p} is not above 0 and at most 1")));
                }
            }
            Strategy::Beam { .. } => {}
        }
        Ok(())
    }
}

/// The rows of the step at hand and the model's answer to them, in buffers kept from step to step.
#[derive(Default)]
struct StepRows {
    tokens: Vec<u32>,
    parents: Vec<usize>,
    sentences: Vec<usize>,
    constraints: Vec<Constraint>,
    best: Vec<Continuation>,
    log_probs: Vec<f32>,
}

impl StepRows {
    fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.sentences.clear();
        self.constraints.clear();
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn push(&mut self, token: u32, parent: usize, sentence: usize, constraint: Constraint) {
        self.tokens.push(token);
        self.parents.push(parent);
        self.sentences.push(sentence);
        self.constraints.push(constraint);
    }

    fn rows(&self, position: usize) -> Rows<'_> {
        let Self { tokens, parents, sentences, constraints, .. } = self;
        Rows { tokens, parents, sentences, constraints, position }
    }

    /// Runs the model on the rows pushed since `clear`; returns `k` continuations a row.
    fn step(&mut self, model: &mut dyn StepModel, position: usize, k: usize) -> Result<&[Continuation]> {
        let mut best = std::mem::take(&mut self.best);
        best.clear();
        best.resize(self.len() * k, Continuation::IMPOSSIBLE);
        model.step(&self.rows(position), k, &mut best)?;
        self.best = best;
        Ok(&self.best)
    }

    /// Runs the model on the rows pushed since `clear`; returns the log-probabilities of all tokens for each: what
    /// [`StepModel::distributions`] says, or [`StepModel::log_probs`].
    fn whole(&mut self, position: usize, ask: impl FnOnce(&Rows<'_>, &mut Vec<f32>) -> Result<()>) -> Result<&[f32]> {
        let mut log_probs = std::mem::take(&mut self.log_probs);
        log_probs.clear();
        ask(&self.rows(position), &mut log_probs)?;
        self.log_probs = log_probs;
        Ok(&self.log_probs)
    }
}
