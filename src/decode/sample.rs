//! Sampling: at each step a token drawn from the model's distribution, or from the most probable part of it.

use super::{Constraint, Continuation, Ending, Hypothesis, Sampling, SearchOptions, StepModel, StepRows};
use crate::error::Result;
use crate::rng::{self, Stream};

/// A hypothesis being drawn.
struct Live {
    sentence: usize,
    /// Which of the sentence's hypotheses it is.
    number: usize,
    parent: usize,
    token: u32,
}

/// Draws `sampling.count` hypotheses of each sentence. The draws depend on the seed, the sentence's key, the number of the
/// hypothesis, the position and the model's answers, but not on the batch.
pub(super) fn search(
    model: &mut dyn StepModel,
    options: &SearchOptions,
    sampling: &Sampling,
) -> Result<Vec<Vec<Hypothesis>>> {
    let (start, end) = (model.start_token(), model.end_token());
    let sentences = &options.sentences;
    let mut hypotheses = vec![vec![Hypothesis::EMPTY; sampling.count]; sentences.len()];
    let mut live: Vec<Live> = (0..sentences.len())
        .filter(|&sentence| sentences[sentence].max_length > 0)
        .flat_map(|sentence| {
            (0..sampling.count).map(move |number| Live { sentence, number, parent: sentence, token: start })
        })
        .collect();
    let mut batch = StepRows::default();
    let mut candidates = Vec::new();
    let mut position = 0;
    while !live.is_empty() {
        batch.clear();
        for &Live { sentence, number, parent, token } in &live {
            let tokens = || hypotheses[sentence][number].tokens.clone();
            batch.push(token, parent, sentence, options.constraint(sentence, position, end, tokens));
        }
        let rows = live.len();
        let whole = sampling.asks_for_all();
        if whole {
            batch.whole(position, |rows, log_probs| model.distributions(rows, log_probs))?;
        } else {
            batch.step(model, position, sampling.top_k)?;
        }
        let mut next = Vec::with_capacity(rows);
        for (row, Live { sentence, number, .. }) in live.into_iter().enumerate() {
            candidates.clear();
            if whole {
                let width = batch.log_probs.len() / rows;
                possible(&batch.log_probs[row * width..][..width], &batch.constraints[row], &mut candidates)?;
            } else {
                for continuation in &batch.best[row * sampling.top_k..][..sampling.top_k] {
                    let Some(log_prob) = continuation.log_prob()? else { break };
                    candidates.push((continuation.token, log_prob));
                }
            }
            let indices = [sentences[sentence].key, number as u64, position as u64];
            let random = Stream::from_key(rng::key(sampling.seed, "sampling", &indices)).next_f64();
            let hypothesis = &mut hypotheses[sentence][number];
            let Some((token, log_prob)) = draw(&mut candidates, sampling, random) else {
                hypothesis.ending = Ending::Stuck;
                continue;
            };
            hypothesis.log_prob += log_prob;
            hypothesis.token_log_probs.push(log_prob as f32);
            if token == end {
                hypothesis.ending = Ending::End;
                continue;
            }
            hypothesis.tokens.push(token);
            if position + 1 < sentences[sentence].max_length {
                next.push(Live { sentence, number, parent: row, token });
            }
        }
        live = next;
        position += 1;
    }
    for hypothesis in hypotheses.iter_mut().flatten() {
        hypothesis.score = options.length_penalty.score(hypothesis.log_prob, hypothesis.length());
    }
    Ok(hypotheses)
}

/// Adds the tokens of a distribution that a constraint allows, with their log-probabilities.
fn possible(log_probs: &[f32], constraint: &Constraint, candidates: &mut Vec<(u32, f64)>) -> Result<()> {
    for (token, &log_prob) in log_probs.iter().enumerate() {
        let token = token as u32;
        if constraint.allows(token)
            && let Some(log_prob) = (Continuation { token, log_prob }).log_prob()?
        {
            candidates.push((token, log_prob));
        }
    }
    Ok(())
}

/// The most probable first, the smaller token first among equals.
fn sort(candidates: &mut [(u32, f64)]) {
    candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
}

/// Draws one of the candidates; `random` is uniform in [0, 1).
fn draw(candidates: &mut Vec<(u32, f64)>, sampling: &Sampling, random: f64) -> Option<(u32, f64)> {
    if sampling.top_k > 0 && candidates.len() > sampling.top_k {
        sort(candidates);
        candidates.truncate(sampling.top_k);
    }
    let largest = candidates.iter().map(|(_, log_prob)| *log_prob).fold(f64::NEG_INFINITY, f64::max);
    let weight = |log_prob: f64| ((log_prob - largest) / sampling.temperature).exp();
    let mut total: f64 = candidates.iter().map(|(_, log_prob)| weight(*log_prob)).sum();
    if sampling.top_p < 1.0 {
        sort(candidates);
        let (mut sum, wanted) = (0.0, sampling.top_p * total);
        let last = candidates.iter().position(|(_, log_prob)| {
            sum += weight(*log_prob);
            sum >= wanted
        });
        if let Some(last) = last {
            candidates.truncate(last + 1);
            total = sum;
        }
    }
    let mut left = random * total;
    for candidate in candidates.iter() {
        left -= weight(candidate.1);
        if left < 0.0 {
            return Some(*candidate);
        }
    }
    // Reached only if rounding leaves a little over.
    candidates.last().copied()
}
