//! Operations of decoding: a linear layer with prepared weights, and one step of attention over cached keys and values.
//!
//! They work on slices, sum in one order for any number of rows, and are used only without gradients.

use rayon::prelude::*;

use super::matmul::fixed_parallel;
use super::norm::add_bias;
use super::simd::{self, vectorised};

/// A linear layer for decoding: weight transposed to [in, out] once.
#[derive(Debug)]
pub struct Linear {
    /// [in, out], row-major.
    weight: Vec<f32>,
    /// [out], or empty.
    bias: Vec<f32>,
    input: usize,
    output: usize,
}

impl Linear {
    /// From a weight [out, in] and perhaps a bias [out].
    pub fn new(weight: &[f32], bias: Option<&[f32]>, output: usize, input: usize) -> Self {
        let weight = super::matmul::transposed(weight, output, input).to_vec();
        Self { weight, bias: bias.unwrap_or_default().to_vec(), input, output }
    }

    /// Width of the output.
    pub fn output(&self) -> usize {
        self.output
    }

    /// y = x·Wᵀ + b. x: [rows, in], y: [rows, out].
    pub fn apply(&self, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.input;
        fixed_parallel(rows, self.output, self.input, x, &self.weight, y);
        if !self.bias.is_empty() {
            add_bias(y, &self.bias);
        }
    }
}

vectorised! {
    /// One query row against the keys and values of the positions it sees: each a row of H·K keys, then H·d_v values.
    fn attend_row(q: &[f32], seen: &[&[f32]], shape: [usize; 3], scores: &mut [f32], out: &mut [f32]) {
        let [heads, d_k, d_v] = shape;
        let scale = 1.0 / (d_k as f32).sqrt();
        let scores = &mut scores[..seen.len()];
        for head in 0..heads {
            let q = &q[head * d_k..][..d_k];
            for (score, row) in scores.iter_mut().zip(seen) {
                *score = scale * simd::dot(q, &row[head * d_k..][..d_k]);
            }
            let largest = simd::max(scores);
            let inverse = 1.0 / simd::exp_shifted(scores, largest);
            let out = &mut out[head * d_v..][..d_v];
            out.fill(0.0);
            for (score, row) in scores.iter().zip(seen) {
                let (weight, value) = (score * inverse, &row[heads * d_k + head * d_v..][..d_v]);
                for j in 0..d_v {
                    out[j] = weight.mul_add(value[j], out[j]);
                }
            }
        }
    }

    /// log Σ e^x of one row.
    pub fn log_sum_exp(x: &[f32], scratch: &mut [f32]) -> f32 {
        let scratch = &mut scratch[..x.len()];
        scratch.copy_from_slice(x);
        let largest = simd::max(scratch);
        largest + simd::exp_shifted(scratch, largest).ln()
    }
}

/// Attention of one new position per row over cached keys and values: `seen(row)` lists the cached rows that a query
/// sees, each H·K keys then H·d_v values. q: [rows, H·K], out: [rows, H·d_v]. A row that sees nothing gives zeros.
pub fn attend_cached<'a>(q: &[f32], shape: [usize; 3], seen: impl Fn(usize) -> Vec<&'a [f32]> + Sync, out: &mut [f32]) {
    let [heads, d_k, d_v] = shape;
    let attend = |(row, (q, out)): (usize, (&[f32], &mut [f32]))| {
        let seen = seen(row);
        let mut scores = super::memory::Scratch::new(seen.len());
        attend_row(q, &seen, shape, &mut scores, out);
    };
    let width = heads * d_v;
    if out.len() / width < 8 {
        q.chunks_exact(heads * d_k).zip(out.chunks_exact_mut(width)).enumerate().for_each(attend);
    } else {
        q.par_chunks_exact(heads * d_k)
            .zip(out.par_chunks_exact_mut(width))
            .enumerate()
            .with_min_len(4)
            .for_each(attend);
    }
}
