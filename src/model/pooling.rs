//! One vector for a whole sentence, from its encoder states.

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
