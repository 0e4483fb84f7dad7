//! One vector for a whole sentence, from the states of its encoder's layers.

use std::ops::Range;

use crate::choice::choice;

choice! {
    /// How a sentence's states become one vector. The end of the sentence counts as a token, padding never does.
    pub enum Pooling {
        /// Their mean.
        Mean = "mean",
        /// The largest value of each component.
        Max = "max",
        /// The first token's state.
        First = "first",
    }
}

/// Added to the variance of a sentence's states.
const VARIANCE_EPS: f64 = 1e-12;

/// How the states of all layers become one vector of a sentence: a weighted sum of them is pooled.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// What the states after the embedding (0) and after each layer (1 and so on) count. None beyond counts.
    pub weights: Vec<f32>,
    /// Whether a layer's states of a sentence are brought to mean 0 and variance 1 before they are added.
    pub is_normalised: bool,
    /// What becomes of the sum.
    pub pooling: Pooling,
}

impl Mixture {
    /// The states of the last of `layers` layers.
    pub fn last(layers: usize, pooling: Pooling) -> Self {
        let weights = (0..=layers).map(|layer| if layer == layers { 1.0 } else { 0.0 }).collect();
        Self { weights, is_normalised: false, pooling }
    }

    /// Adds a layer's states to their sum: both are [N, D], sentences of these lengths one after the other.
    pub fn add(&self, sum: &mut [f32], layer: usize, states: &[f32], lengths: &[usize], d: usize) {
        let weight = self.weights.get(layer).copied().unwrap_or(0.0);
        if weight == 0.0 {
            return;
        }
        let (mut sum, mut states) = (sum, states);
        for length in lengths {
            let (of_sentence, rest) = std::mem::take(&mut sum).split_at_mut(length * d);
            let (own, others) = states.split_at(length * d);
            (sum, states) = (rest, others);
            let (mean, deviation) = if self.is_normalised { moments(own) } else { (0.0, 1.0) };
            let scale = weight / deviation;
            of_sentence.iter_mut().zip(own).for_each(|(sum, x)| *sum += scale * (x - mean));
        }
    }
}

/// Mean and standard deviation of all numbers.
fn moments(values: &[f32]) -> (f32, f32) {
    let count = values.len() as f64;
    let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
    (mean as f32, (variance + VARIANCE_EPS).sqrt() as f32)
}

/// The rows of sentences that lie one after the other.
pub fn rows_of(lengths: &[usize]) -> impl Iterator<Item = Range<usize>> {
    lengths.iter().scan(0, |end, length| {
        *end += length;
        Some(*end - length..*end)
    })
}

/// A vector of D numbers for every sentence, [B, D], from states [N, D]. Each of `sentences` is a range of at least one
/// row.
pub fn pool(
    states: &[f32],
    d: usize,
    sentences: impl IntoIterator<Item = Range<usize>>,
    pooling: Pooling,
) -> Vec<Vec<f32>> {
    let sentence = |rows: Range<usize>| {
        let tokens = || states[rows.start * d..rows.end * d].chunks_exact(d);
        match pooling {
            Pooling::First => states[rows.start * d..][..d].to_vec(),
            Pooling::Mean => {
                let sum = |j: usize| tokens().map(|token| f64::from(token[j])).sum::<f64>();
                (0..d).map(|j| (sum(j) / rows.len() as f64) as f32).collect()
            }
            Pooling::Max => {
                let largest = |j: usize| tokens().map(|token| token[j]).fold(f32::NEG_INFINITY, f32::max);
                (0..d).map(largest).collect()
            }
        }
    };
    sentences.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_no_part_of_a_sentence() {
        let states = [1.0, 5.0, 3.0, -1.0, 9.0, 9.0, -4.0, -2.0, 9.0, 9.0, 9.0, 9.0];
        let pool = |pooling| pool(&states, 2, [0..2, 3..4], pooling);
        assert_eq!(pool(Pooling::Mean), [[2.0, 2.0], [-4.0, -2.0]]);
        assert_eq!(pool(Pooling::Max), [[3.0, 5.0], [-4.0, -2.0]]);
        assert_eq!(pool(Pooling::First), [[1.0, 5.0], [-4.0, -2.0]]);
    }
}
