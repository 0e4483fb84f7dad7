//! Search: from a model that extends rows by one token to the best translations of each sentence.
//!
//! The search sees a [`StepModel`] and nothing of tensors. It hands the model a batch of rows, one per live hypothesis
//! of every unfinished sentence, and gets back the `k` best continuations of each row. [`search`] picks the strategy:
//! greedy search for a beam of 1, batched beam search otherwise.
//!
//! A sentence's result depends on nothing but the model's answers for its own rows: ties are broken by rank within the
//! sentence and by token id, so a batch of one and a batch of many give the same hypotheses.

pub mod attention;
mod beam;
mod greedy;
pub mod neural;
pub mod penalty;
pub mod source;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;
pub mod translate;

use crate::error::{Error, Result};

/// The widest beam that [`search`] accepts. Nothing is gained beyond some tens, and memory grows with the square.
pub const MAX_BEAM: usize = 1000;

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
    /// logarithms and at most 0. The model never proposes a token that has no place in a translation (`<pad>`, `<s>`,
    /// `<unk>`): that list is its own. Neither the other rows nor their number may change a row's answer.
    ///
    /// # Errors
    /// Whatever the computation fails with; the search ends with it.
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()>;
}

/// The rows of one step. The three slices are equally long and never empty; the rows of a sentence stand together, its
/// best hypothesis first, and sentences stand in order. A sentence that is finished has no rows any more.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The token each row's hypothesis is extended with; the start token at the first step.
    pub tokens: &'a [u32],
    /// The row of the previous step whose hypothesis (and cached state) this row continues. At the first step: the row
    /// of the initial state, that is, the sentence.
    pub parents: &'a [usize],
    /// The source sentence each row belongs to.
    pub sentences: &'a [usize],
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
    /// Fills the places of a row that has fewer possible tokens than were asked for.
    pub const IMPOSSIBLE: Self = Self { token: 0, log_prob: f32::NEG_INFINITY };

    /// The log-probability, or `None` where the continuation is impossible. A value just above 0, which rounding in a
    /// softmax can give, counts as 0: the search relies on sums that never rise.
    fn log_prob(&self) -> Result<Option<f64>> {
        if self.log_prob.is_nan() || self.log_prob == f32::INFINITY {
            return Err(Error::failure("the model's output is not a number")
                .help("its weights are damaged or its training diverged: use an earlier checkpoint"));
        }
        Ok((self.log_prob > f32::NEG_INFINITY).then(|| f64::from(self.log_prob.min(0.0))))
    }
}

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Beam width, 1 to [`MAX_BEAM`]: hypotheses extended at each step, and most hypotheses returned. 1 is greedy search.
    pub beam: usize,
    /// The exponent `alpha` of the [GNMT length penalty](penalty::gnmt); 0 is none. Greedy search has nothing to choose
    /// between, so there it changes the score only.
    pub length_penalty: f64,
    /// For each sentence, the most tokens to generate, the end token counted; 0 gives an empty hypothesis.
    pub max_lengths: Vec<usize>,
}

/// A translation that the search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// The tokens, without start and end.
    pub tokens: Vec<u32>,
    /// Sum of the tokens' log-probabilities, the end token's included where there is one.
    pub log_prob: f64,
    /// `log_prob` divided by the length penalty: what hypotheses are ranked by.
    pub score: f64,
    /// Whether it closes with the end token; if not, it was cut at the maximum length, or where no token was possible.
    pub finished: bool,
}

/// Finds for each sentence up to `options.beam` distinct hypotheses, the best score first; at least one.
///
/// # Errors
/// If the options are out of range (exit code 2) or do not fit the model, if the model fails, or if it gives a
/// log-probability that is not a number.
pub fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    if !(1..=MAX_BEAM).contains(&options.beam) {
        return Err(Error::usage(format!("a beam of {} is not between 1 and {MAX_BEAM}", options.beam)));
    }
    if !options.length_penalty.is_finite() {
        return Err(Error::usage(format!("a length penalty of {} is not a finite number", options.length_penalty)));
    }
    let (given, wanted) = (options.max_lengths.len(), model.sentences());
    if given != wanted {
        return Err(Error::failure(format!("{given} maximum lengths were given for {wanted} sentences")));
    }
    if options.beam == 1 { greedy::search(model, options) } else { beam::search(model, options) }
}

/// The rows of the step at hand and the model's answer to them, in buffers kept from step to step.
#[derive(Default)]
struct Batch {
    tokens: Vec<u32>,
    parents: Vec<usize>,
    sentences: Vec<usize>,
    best: Vec<Continuation>,
}

impl Batch {
    fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.sentences.clear();
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn push(&mut self, token: u32, parent: usize, sentence: usize) {
        self.tokens.push(token);
        self.parents.push(parent);
        self.sentences.push(sentence);
    }

    /// Runs the model on the rows pushed since `clear`; returns `k` continuations a row.
    fn step(&mut self, model: &mut dyn StepModel, position: usize, k: usize) -> Result<&[Continuation]> {
        self.best.clear();
        self.best.resize(self.len() * k, Continuation::IMPOSSIBLE);
        let rows = Rows { tokens: &self.tokens, parents: &self.parents, sentences: &self.sentences, position };
        model.step(&rows, k, &mut self.best)?;
        Ok(&self.best)
    }
}
