//! Positional encodings.

use crate::choice::choice;
use crate::model::{ModelConfig, Stack};
use crate::ops::relative::Buckets;
use crate::ops::rotary::Rotary;

choice! {
    /// How a model knows the order of its tokens.
    pub enum PositionKind {
        /// Fixed sines and cosines, added to the embeddings.
        Sinusoidal = "sinusoidal",
        /// A parameter for every position, added to the embeddings.
        Learned = "learned",
        /// Queries and keys of self-attention are turned by their positions.
        Rotary = "rotary",
        /// A parameter for every head and distance, added to the scores of self-attention; the same in all layers of a
        /// stack.
        Relative = "relative",
    }
}

choice! {
    /// How sines and cosines are arranged in a position's vector; with rotary positions, which components are turned
    /// together.
    pub enum Sinusoid {
        /// Sine on even, cosine on odd components (the paper's section 3.5); neighbours turn together (RoFormer).
        Interleaved = "interleaved",
        /// All sines, then all cosines (MarianMT of `transformers`); halves turn together (GPT-NeoX, Llama).
        Halves = "halves",
        /// Halves whose slowest wave is 10000 times as long as the fastest (tensor2tensor, Marian, OpenNMT); not for
        /// rotary positions.
        Tensor2Tensor = "tensor2tensor",
    }
}

/// A model's fixed positions, [max_length, D]; empty if it has another kind.
pub fn fixed(config: &ModelConfig) -> Vec<f32> {
    match config.positions {
        PositionKind::Sinusoidal => {
            sinusoidal(config.sinusoid, config.first_position, config.max_length, config.d_model)
        }
        PositionKind::Learned | PositionKind::Rotary | PositionKind::Relative => Vec::new(),
    }
}

/// What turns a model's queries and keys, if its positions are rotary.
pub fn rotary(config: &ModelConfig) -> Option<Rotary> {
    let halves = config.sinusoid == Sinusoid::Halves;
    (config.positions == PositionKind::Rotary).then(|| Rotary::new(config.max_length, config.d_k, halves))
}

/// The buckets of distances in a stack, if a model's positions are relative.
pub fn buckets(config: &ModelConfig, stack: Stack) -> Option<Buckets> {
    let (count, far) = (config.relative_buckets, config.relative_distance);
    let both = stack == Stack::Encoder;
    (config.positions == PositionKind::Relative).then(|| Buckets::new(config.max_length, count, far, both))
}

/// PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(the same) ("Attention Is All You Need", section 3.5).
///
/// `Interleaved` alternates sine and cosine as the paper writes it; `Halves` puts all sines before all cosines, with
/// the same frequencies. `Tensor2Tensor` also has halves, with frequencies 10000^(-i/(D/2-1)), as in the authors' own
/// program. Returns the `positions` from p = `first` on, [positions, D], row-major. D is even.
pub fn sinusoidal(kind: Sinusoid, first: usize, positions: usize, d: usize) -> Vec<f32> {
    let half = d / 2;
    let mut table = vec![0f32; positions * d];
    for (p, row) in (first..).zip(table.chunks_exact_mut(d)) {
        for i in 0..half {
            let exponent = match kind {
                Sinusoid::Interleaved | Sinusoid::Halves => 2.0 * i as f64 / d as f64,
                // A single wave has frequency 1.
                Sinusoid::Tensor2Tensor => i as f64 / (half as f64 - 1.0).max(1.0),
            };
            let angle = p as f64 / 10_000f64.powf(exponent);
            let (sine, cosine) = match kind {
                Sinusoid::Interleaved => (2 * i, 2 * i + 1),
                Sinusoid::Halves | Sinusoid::Tensor2Tensor => (i, half + i),
            };
            row[sine] = angle.sin() as f32;
            row[cosine] = angle.cos() as f32;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_may_have_a_later_position() {
        for kind in [Sinusoid::Interleaved, Sinusoid::Halves, Sinusoid::Tensor2Tensor] {
            assert_eq!(sinusoidal(kind, 2, 3, 6), sinusoidal(kind, 0, 5, 6)[2 * 6..]);
        }
    }

    #[test]
    fn follows_the_papers_formula() {
        let literal = [
            [0.0, 1.0, 0.0, 1.0],
            [0.841_470_98, 0.540_302_3, 0.009_999_833, 0.999_95],
            [0.909_297_4, -0.416_146_84, 0.019_998_667, 0.999_8],
        ];
        let table = sinusoidal(Sinusoid::Interleaved, 0, 3, 4);
        assert!(table.iter().zip(literal.as_flattened()).all(|(a, b)| (a - b).abs() < 1e-6), "{table:?}");
        // D = 4: frequencies 1 and 1/100.
        let table = sinusoidal(Sinusoid::Interleaved, 0, 3, 4);
        let row = |p: f64| [p.sin(), p.cos(), (p / 100.0).sin(), (p / 100.0).cos()];
        for p in 0..3 {
            for (got, want) in table[p * 4..].iter().zip(row(p as f64)) {
                assert!((*got as f64 - want).abs() < 1e-7);
            }
        }
    }

    #[test]
    fn a_model_has_one_kind() {
        for (positions, numbers, is_rotary) in
            [(PositionKind::Sinusoidal, 30, false), (PositionKind::Learned, 0, false), (PositionKind::Rotary, 0, true)]
        {
            let config = ModelConfig { positions, max_length: 5, d_model: 6, d_k: 2, ..ModelConfig::default() };
            assert_eq!((fixed(&config).len(), rotary(&config).is_some()), (numbers, is_rotary), "{positions:?}");
        }
    }

    #[test]
    fn halves_is_a_permutation_of_interleaved() {
        let (a, b) = (sinusoidal(Sinusoid::Interleaved, 0, 5, 6), sinusoidal(Sinusoid::Halves, 0, 5, 6));
        for p in 0..5 {
            for i in 0..3 {
                assert_eq!(a[p * 6 + 2 * i], b[p * 6 + i]);
                assert_eq!(a[p * 6 + 2 * i + 1], b[p * 6 + 3 + i]);
            }
        }
    }

    #[test]
    fn tensor2tensor_goes_from_one_to_ten_thousand() {
        let table = sinusoidal(Sinusoid::Tensor2Tensor, 0, 4, 6);
        let row =
            |p: f64| [p.sin(), (p / 100.0).sin(), (p / 10_000.0).sin(), p.cos(), (p / 100.0).cos(), (p / 1e4).cos()];
        for p in 0..4 {
            for (got, want) in table[p * 6..].iter().zip(row(p as f64)) {
                assert!((*got as f64 - want).abs() < 1e-7);
            }
        }
        assert_eq!(sinusoidal(Sinusoid::Tensor2Tensor, 0, 2, 2)[2..], [1f32.sin(), 1f32.cos()]);
    }
}
