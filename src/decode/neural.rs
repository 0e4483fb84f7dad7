//! The Transformer as a [`StepModel`].

use rayon::prelude::*;

use super::{Continuation, Rows, StepModel};
use crate::error::{Error, Result};
use crate::model::Memory;
use crate::model::cache::{Decoder, State};
use crate::ops::linear::log_sum_exp;

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
        if rows.position >= self.decoder.max_positions() {
            return Err(Error::failure(format!("a hypothesis is longer than model.max_length ({})", rows.position))
                .help("lower --max-length-extra or split the input line"));
        }
        let mut logits = self.decoder.step(&mut self.state, rows.tokens, rows.parents, rows.sentences)?;
        let v = self.decoder.vocabulary();
        let special = self.special;
        logits.par_chunks_mut(v).zip(best.par_chunks_mut(k)).with_min_len(4).for_each(|(logits, best)| {
            best_continuations(logits, &special.forbidden, best);
        });
        Ok(())
    }
}

/// The best continuations of one row of logits, by falling log-probability, the smaller token first among equals.
fn best_continuations(logits: &mut [f32], forbidden: &[u32], best: &mut [Continuation]) {
    let mut scratch = crate::ops::memory::Scratch::new(logits.len());
    let log_sum = log_sum_exp(logits, &mut scratch);
    for &token in forbidden {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
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
        best_continuations(&mut logits, &[5], &mut best);
        assert_eq!(best.iter().map(|b| b.token).collect::<Vec<_>>(), [1, 3, 4, 2]);
        let total: f64 = [0.0f64, 3.0, 1.0, 3.0, 2.0, 9.0].iter().map(|x| x.exp()).sum();
        assert!((best[0].log_prob as f64 - (3.0 - total.ln())).abs() < 1e-6);
    }

    #[test]
    fn fewer_tokens_than_asked_leaves_the_rest_impossible() {
        let mut logits = vec![1.0, 2.0];
        let mut best = vec![Continuation::IMPOSSIBLE; 3];
        best_continuations(&mut logits, &[0], &mut best);
        assert_eq!(best[0].token, 1);
        assert_eq!(best[1], Continuation::IMPOSSIBLE);
    }
}
