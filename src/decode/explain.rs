//! A translation explained: what its tokens attended to, which words belong together, and what else could have been
//! chosen.

use candle_core::DType;
use rayon::prelude::*;

use super::alignment::align;
use super::attention::{Trace, trace};
use super::source::Reader;
use super::translate::Translation;
use crate::error::Result;
use crate::explanation::{Explanation, Step, temperatures};
use crate::model::Transformer;
use crate::ops::Mode;

/// How many candidate tokens to report for each position.
const CANDIDATES: usize = 10;

/// Describes the choice of a token from these logits.
fn step(logits: &[f32], chosen: u32, piece: impl Fn(u32) -> String) -> Step {
    let log_sum = log_sum_exp(logits, 1.0);
    let log_prob = |id: usize| (f64::from(logits[id]) - log_sum) as f32;
    let logit = logits[chosen as usize];
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    let count = CANDIDATES.min(ids.len());
    ids.select_nth_unstable_by(count - 1, |&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    ids.truncate(count);
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    Step {
        log_prob: log_prob(chosen as usize),
        rank: 1 + logits.iter().filter(|other| **other > logit).count(),
        candidates: ids.into_iter().map(|id| (piece(id as u32), log_prob(id))).collect(),
        log_sums: temperatures().map(|t| (log_sum_exp(logits, t) - log_sum / t) as f32).collect(),
    }
}

/// log Σ e^(x/T)
fn log_sum_exp(logits: &[f32], temperature: f64) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scaled = logits.iter().map(|logit| (f64::from(logit - largest) / temperature).exp());
    scaled.sum::<f64>().ln() + f64::from(largest) / temperature
}

/// Explains the best translation of a line, which must not have been split into parts.
///
/// # Errors
/// The device fails.
pub fn explain(model: &Transformer, reader: &Reader, text: &str, translation: &Translation) -> Result<Explanation> {
    let best = translation.best();
    let (plain, translated) = (reader.tokenizers().source.plain(text).into_owned(), best.text.clone());
    let Some(source) = translation.parts.first().filter(|source| !source.ids.is_empty()) else {
        return Ok(Explanation { text: plain, translation: translated, ..Explanation::default() });
    };
    let Trace { attention, states, produced } = trace(model, reader, source, best)?;
    let logits = model.logits(&states, &Mode::INFERENCE)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
    let target = &reader.tokenizers().target;
    let piece = |id: u32| target.piece(id).unwrap_or_default().to_owned();
    let steps = logits.par_iter().zip(&produced).map(|(logits, &token)| step(logits, token, piece)).collect();
    let alignment = align(model, reader, &[text], std::slice::from_ref(translation), 1)?;
    let alignment = alignment.into_iter().flatten().next().unwrap_or_default().0;
    Ok(Explanation { text: plain, translation: translated, attention, steps, alignment })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At each temperature, probabilities are a softmax over the whole vocabulary, not just the reported candidates.
    #[test]
    fn a_step_is_the_softmax_at_every_temperature() {
        let logits: Vec<f32> = (0..50).map(|i| ((i * 7919) % 50) as f32 / 7.0 - 3.0).collect();
        let chosen = 20;
        let step = step(&logits, chosen, |id| id.to_string());
        let mut sorted: Vec<usize> = (0..50).collect();
        sorted.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        assert_eq!(step.rank, 1 + sorted.iter().position(|&id| id == chosen as usize).unwrap());
        assert_eq!(step.candidates.len(), CANDIDATES);
        for (index, temperature) in temperatures().enumerate() {
            let powers: Vec<f64> = logits.iter().map(|logit| (f64::from(*logit) / temperature).exp()).collect();
            let sum: f64 = powers.iter().sum();
            let expected = |id: usize| powers[id] / sum;
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-5, "{a} is not {b} at {temperature}");
            for ((piece, log_prob), &id) in step.candidates.iter().zip(&sorted) {
                assert_eq!(*piece, id.to_string());
                close(step.at_temperature(*log_prob, temperature), expected(id));
            }
            close(step.at_temperature(step.log_prob, temperature), expected(chosen as usize));
            assert!(step.log_sums[index].is_finite());
        }
    }
}
