//! The softmax of attention: rows of scores under a mask, with dropout, and backward.

use candle_core::{D, Result, Tensor};

use super::dropout::Dropout;
use super::mask::SentenceMask;
use super::simd::{self, vectorised};

/// Softmax over the last dimension of scores [B, H, T, S] where `visible` [B, 1, T, S] is 1; elsewhere, and in rows
/// that see nothing, 0.
pub fn masked_softmax(scores: &Tensor, visible: &Tensor) -> Result<Tensor> {
    // Shift by the largest visible score, exponentiate, and mask by a product: a row without keys gives 0, not NaN.
    let scores = scores.broadcast_add(&visible.affine(1e30, -1e30)?)?;
    let shifted = scores.broadcast_sub(&scores.detach().max_keepdim(D::Minus1)?)?;
    let weights = shifted.exp()?.broadcast_mul(visible)?;
    let sums = weights.sum_keepdim(D::Minus1)?;
    // A sum is 0, or at least 1 because of the largest score; the floor of 0.5 keeps the quotient's gradient finite.
    weights.broadcast_div(&sums.maximum(0.5)?)
}

/// Rows that go through each step together.
const ROWS: usize = 16;

vectorised! {
    /// log Σ e^x of one row.
    pub fn log_sum_exp(x: &[f32]) -> f32 {
        /// Values that are exponentiated and summed at a time: they stay in registers and the first-level cache.
        const BLOCK: usize = 256;
        let largest = simd::max(x);
        let (mut powers, mut sum) = ([0f32; BLOCK], 0f32);
        // A loop, because a closure would not be compiled for the chosen instruction set.
        for block in x.chunks(BLOCK) {
            let powers = &mut powers[..block.len()];
            powers.copy_from_slice(block);
            sum += simd::exp_shifted(powers, largest);
        }
        largest + sum.ln()
    }

    /// Scales, masks and normalises rows of scores in place.
    pub fn softmax_rows(scores: &mut [f32], width: usize, mask: SentenceMask, scale: f32) {
        // Whole vectors, masked entries included: rows are short, and a remainder of single entries would cost the
        // most. Several rows go through each step together, since the steps of one row have to wait for each other.
        for (block, scores) in scores.chunks_mut(ROWS * width).enumerate() {
            let mut largest = [0f32; ROWS];
            for (i, row) in scores.chunks_exact_mut(width).enumerate() {
                let visible = mask.visible(block * ROWS + i);
                for (j, v) in row.iter_mut().enumerate() {
                    *v = if j < visible { *v * scale } else { f32::NEG_INFINITY };
                }
                largest[i] = simd::max(row);
            }
            let mut sums = [0f32; ROWS];
            for (i, row) in scores.chunks_exact_mut(width).enumerate() {
                let visible = mask.visible(block * ROWS + i);
                for (j, v) in row.iter_mut().enumerate() {
                    let weight = simd::exp(*v - largest[i]);
                    *v = if j < visible { weight } else { 0.0 };
                }
                sums[i] = simd::sum(row);
            }
            for (i, row) in scores.chunks_exact_mut(width).enumerate() {
                // A row that sees nothing stays at 0.
                let inverse = if sums[i] > 0.0 { 1.0 / sums[i] } else { 0.0 };
                for v in row.iter_mut() {
                    *v *= inverse;
                }
            }
        }
    }

    /// Multiplies the attention weights by their dropout mask. Only the first `columns` of a row's `width` entries are
    /// real; the others are 0 and stay 0.
    pub fn drop_rows(weights: &mut [f32], width: usize, columns: usize, dropout: Dropout, base: usize) {
        for (i, row) in weights.chunks_exact_mut(width).enumerate() {
            for (j, v) in row.iter_mut().enumerate() {
                *v *= dropout.factor(base + i * columns + j);
            }
        }
    }

    /// From the weights p and the gradient of the dropped weights: `dropped` = p·mask, and `gradient` becomes that of
    /// the unscaled scores, p·(g·mask − Σ p·g·mask)·scale.
    pub fn softmax_rows_backward(
        weights: &[f32], dropped: &mut [f32], gradient: &mut [f32], width: usize, columns: usize,
        dropout: Dropout, base: usize, scale: f32,
    ) {
        let block = ROWS * width;
        let blocks = weights.chunks(block).zip(dropped.chunks_mut(block)).zip(gradient.chunks_mut(block));
        for (block, ((weights, dropped), gradient)) in blocks.enumerate() {
            let base = base + block * ROWS * columns;
            backward_of_block(weights, dropped, gradient, width, columns, dropout, base, scale);
        }
    }
}

/// [`softmax_rows_backward`] of at most [`ROWS`] rows. Beyond the real columns p is 0, and so are the results.
#[inline(always)]
fn backward_of_block(
    weights: &[f32],
    dropped: &mut [f32],
    gradient: &mut [f32],
    width: usize,
    columns: usize,
    dropout: Dropout,
    base: usize,
    scale: f32,
) {
    let mut inner = [0f32; ROWS];
    let rows = weights.chunks_exact(width).zip(dropped.chunks_exact_mut(width)).zip(gradient.chunks_exact_mut(width));
    for (i, ((p, dropped), g)) in rows.enumerate() {
        let (p, dropped, g) = (&p[..width], &mut dropped[..width], &mut g[..width]);
        if dropout.is_on() {
            let base = base + i * columns;
            for j in 0..width {
                let factor = dropout.factor(base + j);
                dropped[j] = p[j] * factor;
                g[j] *= factor;
            }
        } else {
            dropped.copy_from_slice(p);
        }
        inner[i] = simd::dot(p, g);
    }
    for (i, (p, g)) in weights.chunks_exact(width).zip(gradient.chunks_exact_mut(width)).enumerate() {
        for j in 0..width {
            g[j] = p[j] * (g[j] - inner[i]) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device};

    use super::*;
    use crate::ops::mask::Mask;

    /// Scores log(1), log(2), log(3), … of every query: weights are n/Σ over the keys that are seen.
    #[test]
    fn softmax_over_visible_keys() {
        let (queries, keys) = (4, 4);
        for (lengths, real_queries, causal, want) in [
            (4, None, false, vec![[0.1, 0.2, 0.3, 0.4]; 4]),
            (3, None, false, vec![[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0, 0.0]; 4]),
            (
                3,
                Some(3),
                true,
                vec![
                    [1.0, 0.0, 0.0, 0.0],
                    [1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0],
                    [1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0, 0.0],
                    [0.0; 4],
                ],
            ),
            (0, None, false, vec![[0.0; 4]; 4]),
        ] {
            let queries_mask = real_queries.map(|n: u32| Arc::new(vec![n]));
            let mask = Mask { keys: Arc::new(vec![lengths]), queries: queries_mask, causal };
            // Scores times the scale of 1/2, in rows padded to 16.
            let mut scores = vec![f32::NAN; queries * 16];
            for row in scores.chunks_exact_mut(16) {
                (0..keys).for_each(|j| row[j] = 2.0 * ((j + 1) as f32).ln());
            }
            softmax_rows(&mut scores, 16, mask.sentence(0), 0.5);
            let plain: Vec<f32> = (0..queries * keys).map(|i| ((i % keys + 1) as f32).ln()).collect();
            let plain = Tensor::from_vec(plain, (1, 1, queries, keys), &Device::Cpu).unwrap();
            let table = mask.table(queries, keys, DType::F32, &Device::Cpu).unwrap();
            let reference = masked_softmax(&plain, &table).unwrap().squeeze(0).unwrap().squeeze(0).unwrap();
            let reference: Vec<Vec<f32>> = reference.to_vec2().unwrap();
            for (i, want) in want.iter().enumerate() {
                let fused = &scores[i * 16..(i + 1) * 16];
                assert!(fused[keys..].iter().all(|v| *v == 0.0));
                for j in 0..keys {
                    assert!((fused[j] - want[j]).abs() < 1e-6, "fused {fused:?}, not {want:?}");
                    assert!((reference[i][j] - want[j]).abs() < 1e-6, "{:?}, not {want:?}", reference[i]);
                }
            }
        }
    }
}
