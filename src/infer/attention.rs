//! The attention kernel: one query row against keys and values that need not be contiguous.

use crate::ops::simd::{self, vectorised};

vectorised! {
    /// One query row against the keys and values of the positions it sees: each a row of H·K keys, then H·d_v values.
    pub fn attend_row(q: &[f32], seen: &[&[f32]], shape: [usize; 3], scores: &mut [f32], out: &mut [f32]) {
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
}
