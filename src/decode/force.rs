//! The log-probabilities of given targets: search with no choice.

use super::{Batch, Constraint, StepModel};
use crate::error::Result;

/// For each sentence of a model the log-probabilities of the tokens of its target, and of the end after them.
///
/// They are those that a search finds for the same hypothesis: its steps are the same.
///
/// # Errors
/// As [`super::search`].
pub fn force(model: &mut dyn StepModel, targets: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
    let (start, end) = (model.start_token(), model.end_token());
    let mut log_probs: Vec<Vec<f32>> = targets.iter().map(|target| Vec::with_capacity(target.len() + 1)).collect();
    let mut batch = Batch::default();
    let mut before: Vec<usize> = Vec::new();
    for position in 0.. {
        let alive: Vec<usize> = (0..targets.len()).filter(|&i| position <= targets[i].len()).collect();
        if alive.is_empty() {
            break;
        }
        batch.clear();
        for &sentence in &alive {
            let target = targets[sentence];
            let token = if position == 0 { start } else { target[position - 1] };
            let parent = if position == 0 { sentence } else { before.partition_point(|&other| other < sentence) };
            let forced = Some(target.get(position).copied().unwrap_or(end));
            batch.push(token, parent, sentence, Constraint { forced, forbidden: Vec::new() });
        }
        let found = batch.step(model, position, 1)?;
        for (&sentence, continuation) in alive.iter().zip(found) {
            log_probs[sentence].push(continuation.log_prob()?.map_or(f32::NEG_INFINITY, |log_prob| log_prob as f32));
        }
        before = alive;
    }
    Ok(log_probs)
}
