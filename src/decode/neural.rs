//! The Transformer as a [`StepModel`].

use rayon::prelude::*;

use super::{Constraint, Continuation, Rows, StepModel};
use crate::error::{Error, Result};
use crate::model::Memory;
use crate::model::cache::{Decoder, State};
use crate::ops::linear::log_sum_exp;
use crate::ops::memory::Scratch;

/// Token ids that search must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialTokens {
    /// First decoder input.
    pub start: u32,
    /// Ends a hypothesis.
    pub end: u32,
    /// Never produced: padding, start and unknown.
    pub forbidden: Vec<u32>,
}

/// A batch of encoded sentences being decoded.
pub struct NeuralStep<'a> {
    decoder: &'a Decoder,
    state: State,
    sentences: usize,
    special: &'a SpecialTokens,
}

impl<'a> NeuralStep<'a> {
    /// Begins with encoder states.
    pub fn new(decoder: &'a Decoder, memory: &Memory, special: &'a SpecialTokens) -> Result<Self> {
        Ok(Self { decoder, state: decoder.begin(memory)?, sentences: memory.lengths.len(), special })
    }
}

impl StepModel for NeuralStep<'_> {
    fn sentences(&self) -> usize {
        self.sentences
    }

    fn start_token(&self) -> u32 {
        self.special.start
    }

    fn end_token(&self) -> u32 {
        self.special.end
    }

    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        let mut logits = self.logits(rows)?;
        let v = self.decoder.vocabulary();
        let special = self.special;
        let answers = logits.par_chunks_mut(v).zip(best.par_chunks_mut(k)).with_min_len(4).enumerate();
        answers.for_each(|(row, (logits, best))| {
            best_continuations(logits, &special.forbidden, rows.constraint(row), best);
        });
        Ok(())
    }

    fn distributions(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        *log_probs = self.logits(rows)?;
        let v = self.decoder.vocabulary();
        let special = self.special;
        log_probs.par_chunks_mut(v).with_min_len(4).for_each(|row| {
            let log_sum = log_sum_exp(row, &mut Scratch::new(v));
            row.iter_mut().for_each(|logit| *logit -= log_sum);
            forbid(row, &special.forbidden);
        });
        Ok(())
    }
}

impl NeuralStep<'_> {
    fn logits(&mut self, rows: &Rows<'_>) -> Result<Vec<f32>> {
        if rows.position >= self.decoder.max_positions() {
            return Err(Error::failure(format!("a hypothesis is longer than model.max_length ({})", rows.position))
                .help("lower --max-length-extra or split the input line"));
        }
        Ok(self.decoder.step(&mut self.state, rows.tokens, rows.parents, rows.sentences)?)
    }
}

fn forbid(row: &mut [f32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(value) = row.get_mut(token as usize) {
            *value = f32::NEG_INFINITY;
        }
    }
}

/// The best continuations of one row of logits, by falling log-probability, the smaller token first among equals.
fn best_continuations(logits: &mut [f32], forbidden: &[u32], constraint: &Constraint, best: &mut [Continuation]) {
    let log_sum = log_sum_exp(logits, &mut Scratch::new(logits.len()));
    if let Some(token) = constraint.forced {
        if let Some(logit) = logits.get(token as usize) {
            best[0] = Continuation { token, log_prob: logit - log_sum };
        }
        return;
    }
    forbid(logits, forbidden);
    forbid(logits, &constraint.forbidden);
    let k = best.len();
    let mut filled = 0;
    let mut threshold = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        // Strictly greater: among equals the earlier token stays first.
        if logit > threshold {
            let mut place = filled.min(k - 1);
            while place > 0 && best[place - 1].log_prob < logit {
                best[place] = best[place - 1];
                place -= 1;
            }
            best[place] = Continuation { token: token as u32, log_prob: logit };
            filled = (filled + 1).min(k);
            if filled == k {
                threshold = best[k - 1].log_prob;
            }
        }
    }
    for continuation in &mut best[..filled] {
        continuation.log_prob -= log_sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_best_in_order() {
        let mut logits = vec![0.0, 3.0, 1.0, 3.0, 2.0, 9.0];
        let mut best = vec![Continuation::IMPOSSIBLE; 4];
        best_continuations(&mut logits, &[5], &Constraint::NONE, &mut best);
        assert_eq!(best.iter().map(|b| b.token).collect::<Vec<_>>(), [1, 3, 4, 2]);
        let total: f64 = [0.0f64, 3.0, 1.0, 3.0, 2.0, 9.0].iter().map(|x| x.exp()).sum();
        assert!((best[0].log_prob as f64 - (3.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn constraints_change_no_log_probability() {
        let logits = [0.0, 3.0, 1.0, 3.0, 2.0, 9.0];
        let best = |constraint: Constraint| {
            let mut best = vec![Continuation::IMPOSSIBLE; 6];
            best_continuations(&mut logits.clone(), &[5], &constraint, &mut best);
            best
        };
        let all = best(Constraint::NONE);
        let some = best(Constraint { forced: None, forbidden: vec![1, 2, 1] });
        assert_eq!(some[..3], [all[1], all[2], all[4]]);
        assert_eq!(some[3], Continuation::IMPOSSIBLE);
        let forced = best(Constraint { forced: Some(2), forbidden: vec![2] });
        assert_eq!((forced[0], forced[1]), (all[3], Continuation::IMPOSSIBLE));
    }

    #[test]
    fn fewer_tokens_than_asked_leaves_the_rest_impossible() {
        let mut logits = vec![1.0, 2.0];
        let mut best = vec![Continuation::IMPOSSIBLE; 3];
        best_continuations(&mut logits, &[0], &Constraint::NONE, &mut best);
        assert_eq!(best[0].token, 1);
        assert_eq!(best[1], Continuation::IMPOSSIBLE);
    }
}
