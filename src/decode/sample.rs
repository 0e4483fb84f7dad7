//! Sampling: at each step a token drawn from the model's distribution, or from the most probable part of it.

use super::{Continuation, Hypothesis, Sampling, SearchOptions, StepModel, StepRows};
use crate::error::Result;
use crate::rng::{self, Stream};

/// An unfinished sample.
struct Live {
    sentence: usize,
    /// Which of the sentence's hypotheses it is.
    number: usize,
    parent: usize,
    token: u32,
}

/// Draws `sampling.count` hypotheses of each sentence. The draws depend on the seed, the sentence's key, the number of
/// the hypothesis, the position and the model's answers, but not on the batch.
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
        if sampling.asks_for_all() {
            batch.whole(position, |rows, log_probs| model.distributions(rows, log_probs))?;
        } else {
            batch.step(model, position, sampling.top_k)?;
        }
        let mut next = Vec::with_capacity(live.len());
        for (row, Live { sentence, number, .. }) in live.into_iter().enumerate() {
            possible(&batch, row, sampling, &mut candidates)?;
            let indices = [sentences[sentence].key, number as u64, position as u64];
            let random = Stream::from_key(rng::key(sampling.seed, "sampling", &indices)).next_f64();
            let drawn = draw(&mut candidates, sampling, random);
            if let Some(token) = hypotheses[sentence][number].extend(drawn, end)
                && position + 1 < sentences[sentence].max_length
            {
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

/// Collects the tokens that may follow a row, with their log-probabilities: all that its constraint allows, or only the
/// `top_k` most probable if the search needs no more.
fn possible(batch: &StepRows, row: usize, sampling: &Sampling, candidates: &mut Vec<(u32, f64)>) -> Result<()> {
    candidates.clear();
    if !sampling.asks_for_all() {
        for continuation in &batch.best[row * sampling.top_k..][..sampling.top_k] {
            let Some(log_prob) = continuation.log_prob()? else { break };
            candidates.push((continuation.token, log_prob));
        }
        return Ok(());
    }
    let width = batch.log_probs.len() / batch.len();
    for (token, &log_prob) in (0..).zip(&batch.log_probs[row * width..][..width]) {
        if batch.constraints[row].allows(token)
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
