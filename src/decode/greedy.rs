//! Greedy search: at each step the one most probable token.

use super::{Hypothesis, LengthPenalty, SearchOptions, StepModel, StepRows};
use crate::error::Result;

/// Follows the most probable token of each sentence to the end token or the maximum length. One hypothesis a sentence;
/// a finished sentence's row leaves the batch at once.
pub(super) fn search(model: &mut dyn StepModel, options: &SearchOptions) -> Result<Vec<Vec<Hypothesis>>> {
    best_by_each(model, options, &[options.length_penalty])
}

/// As [`search`], the same hypothesis for each length penalty, scored by it.
pub(super) fn best_by_each(
    model: &mut dyn StepModel,
    options: &SearchOptions,
    penalties: &[LengthPenalty],
) -> Result<Vec<Vec<Hypothesis>>> {
    let (start, end) = (model.start_token(), model.end_token());
    let sentences = &options.sentences;
    let mut hypotheses = vec![Hypothesis::EMPTY; sentences.len()];
    // For each live row: its sentence, its row at the previous step, its last token.
    let mut live: Vec<(usize, usize, u32)> = Vec::with_capacity(hypotheses.len());
    live.extend((0..hypotheses.len()).filter(|&s| sentences[s].max_length > 0).map(|s| (s, s, start)));
    let mut next = Vec::with_capacity(live.len());
    let mut batch = StepRows::default();
    let mut position = 0;
    while !live.is_empty() {
        batch.clear();
        for &(sentence, parent, token) in &live {
            let constraint = options.constraint(sentence, position, end, || hypotheses[sentence].tokens.clone());
            batch.push(token, parent, sentence, constraint);
        }
        let best = batch.step(model, position, 1)?;
        position += 1;
        next.clear();
        for (row, (&(sentence, ..), continuation)) in live.iter().zip(best).enumerate() {
            // If no token is possible, the hypothesis is cut as it stands.
            let best = continuation.log_prob()?.map(|log_prob| (continuation.token, log_prob));
            if let Some(token) = hypotheses[sentence].extend(best, end)
                && position < sentences[sentence].max_length
            {
                next.push((sentence, row, token));
            }
        }
        std::mem::swap(&mut live, &mut next);
    }
    let scored = |hypothesis: &Hypothesis, penalty: &LengthPenalty| {
        let score = penalty.score(hypothesis.log_prob, hypothesis.length());
        Hypothesis { score, ..hypothesis.clone() }
    };
    let by_each = |hypothesis: &Hypothesis| penalties.iter().map(|penalty| scored(hypothesis, penalty)).collect();
    Ok(hypotheses.iter().map(by_each).collect())
}
