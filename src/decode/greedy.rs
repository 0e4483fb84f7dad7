//! Greedy search: at each step the one most probable token.

use super::{Batch, Hypothesis, SearchOptions, StepModel, penalty};
use crate::error::Result;

/// Follows the most probable token of each sentence to the end token or the maximum length. One hypothesis a sentence;
/// a finished sentence's row leaves the batch at once.
pub(super) fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    let (start, end) = (model.start_token(), model.end_token());
    let empty = Hypothesis { tokens: Vec::new(), log_prob: 0.0, score: 0.0, finished: false };
    let mut hypotheses = vec![empty; options.max_lengths.len()];
    // Of each live row: its sentence, its row at the previous step, its last token.
    let mut live: Vec<(usize, usize, u32)> = Vec::with_capacity(hypotheses.len());
    live.extend((0..hypotheses.len()).filter(|&s| options.max_lengths[s] > 0).map(|s| (s, s, start)));
    let mut next = Vec::with_capacity(live.len());
    let mut batch = Batch::default();
    let mut position = 0;
    while !live.is_empty() {
        batch.clear();
        live.iter().for_each(|&(sentence, parent, token)| batch.push(token, parent, sentence));
        let best = batch.step(model, position, 1)?;
        position += 1;
        next.clear();
        for (row, (&(sentence, ..), continuation)) in live.iter().zip(best).enumerate() {
            let hypothesis = &mut hypotheses[sentence];
            // Where no token is possible the hypothesis is cut as it stands.
            let Some(log_prob) = continuation.log_prob()? else { continue };
            hypothesis.log_prob += log_prob;
            if continuation.token == end {
                hypothesis.finished = true;
                continue;
            }
            hypothesis.tokens.push(continuation.token);
            if position < options.max_lengths[sentence] {
                next.push((sentence, row, continuation.token));
            }
        }
        std::mem::swap(&mut live, &mut next);
    }
    for hypothesis in &mut hypotheses {
        let length = hypothesis.tokens.len() + usize::from(hypothesis.finished);
        hypothesis.score = penalty::score(hypothesis.log_prob, length, options.length_penalty);
    }
    Ok(hypotheses.into_iter().map(|hypothesis| vec![hypothesis]).collect())
}
