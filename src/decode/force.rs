//! The log-probabilities of given targets (forced decoding), and how often a model would have chosen the same tokens.

use std::iter::Sum;

use super::{Constraint, Continuation, StepModel, StepRows};
use crate::error::Result;

/// For each sentence of a model, the log-probabilities of its target's tokens and of the end after them.
///
/// A search gives the same hypothesis the same values, as it takes the same steps.
///
/// # Errors
/// As [`super::search`].
pub fn force(model: &mut dyn StepModel, targets: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let mut log_probs: Vec<Vec<f32>> = targets.iter().map(|target| Vec::with_capacity(target.len() + 1)).collect();
    teacher_force(model.start_token(), model.end_token(), targets, |batch, position, tokens| {
        for (constraint, (_, token)) in batch.constraints.iter_mut().zip(tokens) {
            constraint.forced = Some(*token);
        }
        let found = batch.step(model, position, 1)?;
        for ((sentence, _), continuation) in tokens.iter().zip(found) {
            log_probs[*sentence].push(continuation.log_prob()?.map_or(f32::NEG_INFINITY, |log_prob| log_prob as f32));
        }
        Ok(())
    })?;
    Ok(log_probs)
}

/// How well a model predicts given targets, each token after the target's earlier tokens (teacher forcing). The end of
/// a target counts as a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Tokens.
    pub tokens: u64,
    /// Those that the model finds most probable.
    pub first: u64,
    /// The sum of their log-probabilities, in nats.
    pub log_prob: f64,
}

impl Prediction {
    /// Perplexity per token.
    pub fn perplexity(&self) -> f64 {
        (-self.log_prob / self.tokens as f64).exp()
    }

    /// The share of tokens that the model finds most probable, from 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.first as f64 / self.tokens as f64
    }
}

impl Sum for Prediction {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            tokens: a.tokens + b.tokens,
            first: a.first + b.first,
            log_prob: a.log_prob + b.log_prob,
        })
    }
}

/// How well a model predicts the target of each of its sentences. Target tokens the decoder never emits still count.
///
/// # Errors
/// As [`super::search`].
pub fn predict(model: &mut dyn StepModel, targets: &[&[u32]]) -> Result<Vec<Prediction>> {
    let mut all = vec![Prediction::default(); targets.len()];
    teacher_force(model.start_token(), model.end_token(), targets, |batch, position, tokens| {
        let log_probs = batch.whole(position, |rows, log_probs| model.log_probs(rows, log_probs))?;
        for ((sentence, token), row) in tokens.iter().zip(log_probs.chunks_exact(log_probs.len() / tokens.len())) {
            if position == 0 && model.languages().contains(token) {
                // It is given, not predicted.
                continue;
            }
            let (of_target, log_prob) = (&mut all[*sentence], row[*token as usize]);
            of_target.tokens += 1;
            of_target.first += u64::from(row.iter().all(|other| *other <= log_prob));
            of_target.log_prob += Continuation { token: *token, log_prob }.log_prob()?.unwrap_or(f64::NEG_INFINITY);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Walks through all targets in parallel: at each position `look` gets the rows of unfinished targets, and for each row
/// its sentence and next token.
fn teacher_force(
    start: u32,
    end: u32,
    targets: &[&[u32]],
    mut look: impl FnMut(&mut StepRows, usize, &[(usize, u32)]) -> Result<()>,
) -> Result<()> {
    let mut batch = StepRows::default();
    let mut before: Vec<(usize, u32)> = Vec::new();
    for position in 0.. {
        let next = |i: usize| targets[i].get(position).copied().unwrap_or(end);
        let alive: Vec<(usize, u32)> =
            (0..targets.len()).filter(|&i| position <= targets[i].len()).map(|i| (i, next(i))).collect();
        if alive.is_empty() {
            break;
        }
        batch.clear();
        for &(sentence, _) in &alive {
            let token = if position == 0 { start } else { targets[sentence][position - 1] };
            let parent = if position == 0 { sentence } else { before.partition_point(|(other, _)| *other < sentence) };
            batch.push(token, parent, sentence, Constraint::NONE);
        }
        look(&mut batch, position, &alive)?;
        before = alive;
    }
    Ok(())
}
