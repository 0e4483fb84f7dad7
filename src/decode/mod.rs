//! Search: from a model that extends rows by one token to the best translations of each sentence.
//!
//! The search sees a [`StepModel`], no tensors. It hands the model a batch of rows, one per live hypothesis of every
//! unfinished sentence, with the constraints on its next token, and gets back the `k` best continuations of each row.
//! [`search`] follows a [`Strategy`]: beam search ([`greedy`] for a beam of 1, [`grid`] for sentences whose
//! translations must contain given phrases), beam search in diverse groups, or sampling.
//!
//! A sentence's result depends only on the model's answers for its own rows. Rank within the sentence and token id
//! break ties, and the sentence is the key of its random numbers. So a batch of one and a batch of many give the same
//! hypotheses.

pub mod alignment;
pub mod attention;
mod avoid;
mod batches;
mod beam;
mod characters;
mod config;
mod constraint;
pub mod encode;
pub mod ensemble;
pub mod explain;
mod force;
mod greedy;
mod grid;
mod history;
pub mod neural;
pub mod penalty;
mod phrases;
pub mod rerank;
mod sample;
mod sentences;
pub mod shortlist;
pub mod source;
mod strategy;
mod surfaces;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;
pub mod translate;

use std::sync::Arc;

pub use avoid::{Avoid, Avoided};
pub use batches::in_halves;
pub use characters::Characters;
pub use config::DecodeConfig;
pub use constraint::{Constraint, Demands, Sentence};
pub use force::{Prediction, force, predict};
pub use penalty::{LengthPenalty, PenaltyKind};
pub use phrases::Phrases;
pub use strategy::{Sampling, Strategy, Trials};
pub use surfaces::Surfaces;

use crate::choice::choice;
use crate::error::{Error, Result};

/// The widest beam that [`search`] accepts. Nothing is gained beyond a few dozen, and memory grows quadratically.
pub const MAX_BEAM: usize = 1000;

/// The largest α of a length penalty: beyond it, scores of long hypotheses may not be finite.
pub const MAX_ALPHA: f64 = 50.0;

/// One step of an autoregressive model over rows: the hypotheses of several sentences in one batch.
///
/// A model starts with one row of state for each sentence, in order. A step at position 0 begins the search, or another
/// one for the same sentences.
pub trait StepModel {
    /// Number of sentences this model was prepared for.
    fn sentences(&self) -> usize;

    /// The token that every target starts with; it is fed at the first step and is not part of a hypothesis.
    fn start_token(&self) -> u32;

    /// The token that ends a hypothesis.
    fn end_token(&self) -> u32;

    /// Extends each row's hypothesis by one token and writes the `k` best continuations of row `r` to
    /// `best[r * k..(r + 1) * k]`, by falling log-probability, the smaller token first among equals.
    ///
    /// `best` has `rows.len() * k` entries, all [`Continuation::IMPOSSIBLE`] at first; if fewer than `k` tokens are
    /// possible, the rest stays so. The tokens of a row are distinct. Log-probabilities are natural logarithms and at
    /// most 0; tokens that a constraint excludes still count in the normalisation. The model never proposes one of its
    /// [`Self::forbidden`] tokens. Neither the other rows nor their number may change a row's answer.
    ///
    /// # Errors
    /// Whatever the computation fails with; it ends the search.
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()>;

    /// Extends each row's hypothesis by one token, as [`Self::step`], and writes the log-probabilities of all tokens,
    /// row by row, [`Self::forbidden`] ones included. Ignores constraints.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()>;

    /// The tokens that may never be in a translation, such as `<pad>`, `<s>` and `<unk>`.
    fn forbidden(&self) -> &[u32];

    /// The tokens whose probability does not count where a target is made to begin with one: languages.
    fn languages(&self) -> &[u32] {
        &[]
    }

    /// As [`Self::log_probs`], but negative infinity for the [`Self::forbidden`] tokens that are not forced, and 0 for
    /// a forced one of [`Self::languages`].
    ///
    /// # Errors
    /// As [`Self::step`].
    fn distributions(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        self.log_probs(rows, log_probs)?;
        let vocabulary = log_probs.len() / rows.len();
        for (row, log_probs) in log_probs.chunks_exact_mut(vocabulary).enumerate() {
            let forced = rows.constraint(row).forced;
            let forbidden = self.forbidden().iter().filter(|token| forced != Some(**token));
            forbidden.for_each(|&token| log_probs[token as usize] = f32::NEG_INFINITY);
            if let Some(language) = rows.forced_language(row, self.languages()) {
                make_certain(&mut log_probs[language as usize]);
            }
        }
        Ok(())
    }
}

/// The rows of one step. The slices are equally long and never empty; the rows of a sentence are adjacent, and
/// sentences are in order. A finished sentence has no rows.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The token each row's hypothesis is extended with; the start token at the first step.
    pub tokens: &'a [u32],
    /// The row of the previous step whose hypothesis (and cached state) this row continues. At the first step: the row
    /// of the initial state, that is, the sentence.
    pub parents: &'a [usize],
    /// The source sentence each row belongs to.
    pub sentences: &'a [usize],
    /// What may follow each row; the slice may be empty if no row is constrained.
    pub constraints: &'a [Constraint],
    /// The number of steps taken before this one: the position, from 0, of `tokens` in the decoder's input.
    pub position: usize,
}

impl Rows<'_> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no rows; never so in a call of [`StepModel::step`].
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The language that a row's target is made to begin with at this step, if it is one of these.
    fn forced_language(&self, row: usize, languages: &[u32]) -> Option<u32> {
        self.constraint(row).forced.filter(|token| self.position == 0 && languages.contains(token))
    }

    /// What may follow a row.
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

impl Continuation {
    /// Fills up the answer for a row with fewer possible tokens than requested.
    pub const IMPOSSIBLE: Self = Self { token: 0, log_prob: f32::NEG_INFINITY };

    /// The log-probability, or `None` for an impossible continuation. A value just above 0, which rounding in a softmax
    /// can give, counts as 0: the search relies on sums that never rise. So does -0, which would look odd in output.
    fn log_prob(&self) -> Result<Option<f64>> {
        if self.log_prob.is_nan() || self.log_prob == f32::INFINITY {
            return Err(not_a_number());
        }
        Ok((self.log_prob > f32::NEG_INFINITY).then(|| f64::from(self.log_prob.min(0.0) + 0.0)))
    }
}

/// Turns the log-probability of a possible token into 0; what is not a number stays so, to be noticed.
fn make_certain(log_prob: &mut f32) {
    if *log_prob > f32::NEG_INFINITY {
        *log_prob = 0.0;
    }
}

/// The error for a model whose output is not finite.
fn not_a_number() -> Error {
    Error::failure("the model's output is not a number")
        .help("its weights are damaged or its training diverged: use an earlier checkpoint")
}

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// How hypotheses are chosen.
    pub strategy: Strategy,
    /// A hypothesis's score is its log-probability divided by this.
    pub length_penalty: LengthPenalty,
    /// A beam stops when this many times its width have finished; 0: when nothing can become better.
    pub patience: f64,
    /// No sequence of this many tokens may repeat within a hypothesis; 0: no limit. The tokens of one character count
    /// as one.
    pub no_repeat_ngram: usize,
    /// Which tokens are parts of characters.
    pub characters: Arc<Characters>,
    /// The options of each sentence.
    pub sentences: Vec<Sentence>,
}

choice! {
    /// Why a hypothesis stopped.
    pub enum Ending {
        /// It ended with the end token.
        End = "end",
        /// It was cut at the maximum length.
        MaxLength = "max_length",
        /// No further token was possible.
        Stuck = "stuck",
    }
}

/// A translation that the search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// The tokens, without start and end.
    pub tokens: Vec<u32>,
    /// Their log-probabilities under the model, and that of the end token if there is one.
    pub token_log_probs: Vec<f32>,
    /// The sum of these.
    pub log_prob: f64,
    /// `log_prob` divided by the length penalty; hypotheses are ranked by it.
    pub score: f64,
    /// Why it stopped.
    pub ending: Ending,
}

impl Hypothesis {
    /// A hypothesis before its first token.
    const EMPTY: Self =
        Self { tokens: Vec::new(), token_log_probs: Vec::new(), log_prob: 0.0, score: 0.0, ending: Ending::MaxLength };

    /// Adds the next token and its log-probability, if one is possible. Returns the token, unless the hypothesis stops.
    fn extend(&mut self, next: Option<(u32, f64)>, end: u32) -> Option<u32> {
        let Some((token, log_prob)) = next else {
            self.ending = Ending::Stuck;
            return None;
        };
        self.log_prob += log_prob;
        self.token_log_probs.push(log_prob as f32);
        if token == end {
            self.ending = Ending::End;
            return None;
        }
        self.tokens.push(token);
        Some(token)
    }

    /// Whether it ended with the end token.
    pub fn finished(&self) -> bool {
        self.ending == Ending::End
    }

    /// The length for the penalty: all tokens, and the end token if there is one.
    fn length(&self) -> usize {
        self.tokens.len() + usize::from(self.finished())
    }
}

/// Finds the hypotheses of each sentence, at least one. A beam gives up to its width, distinct, the best score first.
///
/// # Errors
/// The options are out of range (exit code 2) or do not fit the model, the model fails, or it gives a log-probability
/// that is not a number.
pub fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    options.check()?;
    let (given, wanted) = (options.sentences.len(), model.sentences());
    if given != wanted {
        return Err(Error::failure(format!("the options of {given} sentences were given for {wanted}")));
    }
    let has_phrases = options.sentences.iter().any(|sentence| sentence.demands.must.is_some());
    match &options.strategy {
        Strategy::Beam { width } if has_phrases => grid::search(model, options, *width),
        _ if has_phrases => {
            let error = Error::usage("required phrases need beam search");
            Err(error.help("leave out the flags that ask for another search, such as --sample"))
        }
        Strategy::Beam { width: 1 } => greedy::search(model, options),
        &Strategy::Beam { width } => beam::search(model, options, beam::Groups { count: 1, width, penalty: 0.0 }),
        &Strategy::Diverse { width, groups, penalty } => {
            beam::search(model, options, beam::Groups { count: groups, width: width / groups, penalty })
        }
        Strategy::Sample(sampling) => sample::search(model, options, sampling),
        Strategy::Trials(trials) => trials.search(model, options),
    }
}

impl SearchOptions {
    /// Beam search until nothing can become better, up to a maximum length for each sentence.
    pub fn beam(width: usize, length_penalty: LengthPenalty, max_lengths: impl IntoIterator<Item = usize>) -> Self {
        let sentence = |max_length| Sentence { max_length, ..Sentence::default() };
        let sentences = max_lengths.into_iter().map(sentence).collect();
        let strategy = Strategy::Beam { width };
        Self { strategy, length_penalty, patience: 0.0, no_repeat_ngram: 0, characters: Arc::default(), sentences }
    }

    /// Checks that the options are in range.
    ///
    /// # Errors
    /// Names the flag of an option that is out of range; exit code 2.
    pub fn check(&self) -> Result<()> {
        self.strategy.check()?;
        let of_trials = match &self.strategy {
            Strategy::Trials(trials) => &trials.penalties[..],
            Strategy::Beam { .. } | Strategy::Diverse { .. } | Strategy::Sample(_) => &[],
        };
        let mut alphas = of_trials.iter().chain([&self.length_penalty]).map(|penalty| penalty.alpha);
        if let Some(alpha) = alphas.find(|alpha| !(-MAX_ALPHA..=MAX_ALPHA).contains(alpha)) {
            return Err(Error::usage(format!(
                "a length penalty of {alpha} is not between -{MAX_ALPHA} and {MAX_ALPHA}"
            )));
        }
        if !(self.patience.is_finite() && self.patience >= 0.0) {
            return Err(Error::usage(format!("a patience of {} is not a number of at least 0", self.patience)));
        }
        Ok(())
    }
}

/// The rows of the current step and the model's answer to them, in buffers that are reused at each step.
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

    /// Runs the model on the rows pushed since `clear`; returns `k` continuations per row.
    fn step(&mut self, model: &mut dyn StepModel, position: usize, k: usize) -> Result<&[Continuation]> {
        let mut best = std::mem::take(&mut self.best);
        best.clear();
        best.resize(self.len() * k, Continuation::IMPOSSIBLE);
        let rows = self.rows(position);
        model.step(&rows, k, &mut best)?;
        for (row, best) in best.chunks_exact_mut(k).enumerate() {
            if rows.forced_language(row, model.languages()).is_some() {
                make_certain(&mut best[0].log_prob);
            }
        }
        self.best = best;
        Ok(&self.best)
    }

    /// Runs the model on the rows pushed since `clear`; returns the log-probabilities of all tokens for each. `ask`
    /// calls [`StepModel::distributions`] or [`StepModel::log_probs`].
    fn whole(&mut self, position: usize, ask: impl FnOnce(&Rows<'_>, &mut Vec<f32>) -> Result<()>) -> Result<&[f32]> {
        let mut log_probs = std::mem::take(&mut self.log_probs);
        log_probs.clear();
        ask(&self.rows(position), &mut log_probs)?;
        self.log_probs = log_probs;
        Ok(&self.log_probs)
    }
}
