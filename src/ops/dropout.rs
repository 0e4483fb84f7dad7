//! Dropout by a counter-based generator: a mask is a function of (key, element index) and is never stored.
//!
//! The fused kernels regenerate it in backward, the reference multiplies by [`Dropout::mask`]; both see the same bits,
//! and so does a run that was resumed.
//!
//! Key and index are cut to 32 bits, so that a vector holds more of them. A mask therefore repeats after 2³² elements,
//! which only attention weights can have, with sentences of thousands of tokens; and of n masks about n²/2³³ pairs are
//! equal: a few in a long run. Neither does harm.

use candle_core::{Device, Result, Shape, Tensor};
use rayon::prelude::*;

use crate::rng::mix64;

/// The mask of one dropout site in one forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    threshold: u32,
    key: u32,
    scale: f32,
}

impl Dropout {
    /// No dropout.
    pub const OFF: Dropout = Dropout { threshold: 0, key: 0, scale: 1.0 };

    /// Drops with probability `p` in [0, 1), and scales the other values by 1/(1-p).
    pub fn new(p: f64, key: u64) -> Self {
        if p <= 0.0 {
            return Self::OFF;
        }
        Self { threshold: (p * 4_294_967_296.0) as u32, key: mix64(key) as u32, scale: (1.0 / (1.0 - p)) as f32 }
    }

    /// Whether anything is dropped.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.threshold > 0
    }

    /// The factor of kept elements.
    #[inline(always)]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Threshold, key and scale, for the GPU kernels.
    pub fn parts(&self) -> (u32, u32, f32) {
        (self.threshold, self.key, self.scale)
    }

    /// The factor of element `index`: 0 or 1/(1-p).
    #[inline(always)]
    pub fn factor(&self, index: usize) -> f32 {
        if hash(index as u32, self.key) >= self.threshold { self.scale } else { 0.0 }
    }

    /// The whole mask as a tensor, for the reference operations.
    pub fn mask(&self, shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
        let shape = shape.into();
        let mask: Vec<f32> = (0..shape.elem_count()).into_par_iter().map(|i| self.factor(i)).collect();
        Tensor::from_vec(mask, shape, device)
    }

    /// Reference dropout: x times its mask.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if !self.is_on() {
            return Ok(x.clone());
        }
        x * self.mask(x.shape(), x.device())?.to_dtype(x.dtype())?
    }
}

/// A 32-bit integer hash of an element's index under a key (two multiply-xorshift rounds): cheap enough to be computed
/// in every lane of a vector, with no visible bias for consecutive indices.
#[inline(always)]
fn hash(index: u32, key: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9E37_79B9) ^ key;
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_expected_share_and_mean() {
        for (p, key) in [(0.1, 1u64), (0.3, 2), (0.5, 3)] {
            let dropout = Dropout::new(p, key);
            let n = 200_000;
            let kept = (0..n).filter(|&i| dropout.factor(i) > 0.0).count() as f64 / n as f64;
            // Five standard deviations of a binomial share.
            assert!((kept - (1.0 - p)).abs() < 5.0 * (p * (1.0 - p) / n as f64).sqrt(), "{p}: {kept}");
            assert!((dropout.scale() as f64 - 1.0 / (1.0 - p)).abs() < 1e-6);
        }
    }

    #[test]
    fn neighbours_and_keys_are_independent() {
        let (a, b) = (Dropout::new(0.5, 1), Dropout::new(0.5, 2));
        let n = 100_000;
        let same_key = (0..n).filter(|&i| (a.factor(i) > 0.0) == (a.factor(i + 1) > 0.0)).count();
        let other_key = (0..n).filter(|&i| (a.factor(i) > 0.0) == (b.factor(i) > 0.0)).count();
        for agree in [same_key, other_key] {
            assert!((agree as f64 / n as f64 - 0.5).abs() < 0.01, "{agree}");
        }
    }
}
