//! One vector for a whole sentence, from its encoder states.

use candle_core::{DType, Result};

use super::Memory;
use crate::choice::choice;

choice! {
    /// How a sentence's states become one vector. The end of the sentence counts as one of its tokens, padding never.
    pub enum Pooling {
        /// Their mean.
        Mean = "mean",
        /// The largest value of each component.
        Max = "max",
        /// The first token's state.
        First = "first",
    }
}

/// A vector of D numbers for every sentence, [B, D].
pub fn pool(memory: &Memory, pooling: Pooling) -> Result<Vec<Vec<f32>>> {
    let states: Vec<f32> = memory.states.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let d = memory.states.dim(1)?;
    let sentence = |(states, &length): (&[f32], &u32)| {
        let tokens = || states.chunks_exact(d).take(length as usize);
        match pooling {
            Pooling::First => states[..d].to_vec(),
            Pooling::Mean => {
                let sum = |j: usize| tokens().map(|token| f64::from(token[j])).sum::<f64>();
                (0..d).map(|j| (sum(j) / f64::from(length)) as f32).collect()
            }
            Pooling::Max => {
                let largest = |j: usize| tokens().map(|token| token[j]).fold(f32::NEG_INFINITY, f32::max);
                (0..d).map(largest).collect()
            }
        }
    };
    Ok(states.chunks_exact(memory.length * d).zip(memory.lengths.iter()).map(sentence).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn padding_is_no_part_of_a_sentence() {
        let states = [[1f32, 5.0], [3.0, -1.0], [9.0, 9.0], [-4.0, -2.0], [9.0, 9.0], [9.0, 9.0]];
        let states = Tensor::new(&states, &Device::Cpu).unwrap();
        let memory = Memory { states, lengths: Arc::new(vec![2, 1]), length: 3 };
        assert_eq!(pool(&memory, Pooling::Mean).unwrap(), [[2.0, 2.0], [-4.0, -2.0]]);
        assert_eq!(pool(&memory, Pooling::Max).unwrap(), [[3.0, 5.0], [-4.0, -2.0]]);
        assert_eq!(pool(&memory, Pooling::First).unwrap(), [[1.0, 5.0], [-4.0, -2.0]]);
    }
}
