//! Normalisation, alone and joined with the residual sum: kernels over rows, and the reference.
//!
//! y = γ·(z − μ)·r + β over the last dimension, where z is x, or x + dropout(h + bias), and μ, r and β are as
//! [`NormKind`] says.

use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::dropout::Dropout;
use super::memory::{Scratch, SharedRows, storage_slice, with_slice};
use super::params::Param;
use super::profile::{self, Work};
use super::simd::{LANES, sum, sum_lanes, vectorised};
use super::{Implementation, Mode};
use crate::choice::choice;

choice! {
    /// What a normalisation divides by. Kernels of a GPU know the kinds by their numbers in this order.
    pub enum NormKind {
        /// √(σ² + ε) with the biased variance: layer normalisation (Ba et al. 2016), as in most libraries.
        Layer = "layer",
        /// σ + ε with the unbiased standard deviation, as the Annotated Transformer writes it.
        Std = "std",
        /// √(mean of z² + ε), where z keeps its mean, and nothing is added: the root mean square (Zhang and Sennrich
        /// 2019), as in T5.
        Rms = "rms",
    }
}

impl NormKind {
    /// The name of such a module in PyTorch's style.
    pub fn module(self) -> &'static str {
        match self {
            Self::Layer => "LayerNorm",
            Self::Std => "StdNorm",
            Self::Rms => "RMSNorm",
        }
    }

    /// Whether it subtracts the mean and adds β. If not, β is no parameter.
    pub fn is_centred(self) -> bool {
        self != Self::Rms
    }

    /// Parameters for each number of a row: γ, and β if there is one.
    pub fn parameters(self) -> usize {
        if self.is_centred() { 2 } else { 1 }
    }
}

/// A normalisation with its parameters.
#[derive(Clone, Debug)]
pub struct Norm {
    /// γ and β, [2, D]; of "rms" γ, [1, D].
    pub parameters: Param,
    /// ε.
    pub eps: f64,
    /// What it divides by.
    pub kind: NormKind,
}

impl Norm {
    /// Calls `f` with the parameters in the form that kernels take (CPU).
    pub fn with_weights<R>(&self, f: impl FnOnce(NormWeights) -> Result<R>) -> Result<R> {
        with_slice(self.parameters.value(), |all| f(NormWeights::new(all, self.eps as f32, self.kind)))
    }

    /// Adds [dγ, dβ], 2·D wide, to the gradients of the parameters that there are.
    pub fn add_gradients(&self, sums: &[f32]) -> Result<()> {
        self.parameters.add_gradient_slice(&sums[..sums.len() / 2 * self.kind.parameters()])
    }

    /// In plain differentiable operations; f32 inside, whatever the type of z.
    pub fn reference(&self, z: &Tensor, training: bool) -> Result<Tensor> {
        reference(z, &self.parameters.reference(training)?, self.eps, self.kind)
    }
}

/// What is added to x before the normalisation: dropout(h + bias).
#[derive(Clone, Copy)]
pub struct Addend<'a> {
    /// The sub-layer's output, [rows, D].
    pub h: &'a [f32],
    /// Its bias, [D].
    pub bias: Option<&'a [f32]>,
    /// Residual dropout.
    pub dropout: Dropout,
    /// Index of the first row in the whole batch, for the dropout mask.
    pub first_row: usize,
}

/// Scale, shift, ε and kind of one normalisation.
#[derive(Clone, Copy)]
pub struct NormWeights<'a> {
    /// γ, [D].
    pub gamma: &'a [f32],
    /// β, [D]; empty if there is none.
    pub beta: &'a [f32],
    /// ε: inside the root, or added to it.
    pub eps: f32,
    /// What it divides by.
    pub kind: NormKind,
}

impl<'a> NormWeights<'a> {
    /// From γ and, if there is one, β behind it.
    pub fn new(parameters: &'a [f32], eps: f32, kind: NormKind) -> Self {
        let (gamma, beta) = parameters.split_at(parameters.len() / kind.parameters());
        Self { gamma, beta, eps, kind }
    }
}

/// out = x + dropout(h + bias) for one row.
#[inline(always)]
fn add_row(x: &[f32], addend: &Addend, row: usize, out: &mut [f32]) {
    let d = out.len();
    let (x, h) = (&x[row * d..][..d], &addend.h[row * d..][..d]);
    let (dropout, base) = (addend.dropout, (addend.first_row + row) * d);
    match (addend.bias, dropout.is_on()) {
        (None, false) => (0..d).for_each(|j| out[j] = x[j] + h[j]),
        (None, true) => (0..d).for_each(|j| out[j] = x[j] + h[j] * dropout.factor(base + j)),
        (Some(bias), false) => {
            let bias = &bias[..d];
            (0..d).for_each(|j| out[j] = x[j] + (h[j] + bias[j]));
        }
        (Some(bias), true) => {
            let bias = &bias[..d];
            (0..d).for_each(|j| out[j] = x[j] + (h[j] + bias[j]) * dropout.factor(base + j));
        }
    }
}

/// What one row is normalised with.
struct Statistics {
    /// μ, or 0.
    mean: f32,
    /// r: 1/√(σ² + ε), or 1/(σ + ε).
    factor: f32,
    /// D, or (D − 1)·σ·r, for dz = r·(t − mean(t) − n·Σ(t·n)/divisor) with n = (z − μ)·r and t = γ·dy. Without μ,
    /// mean(t) is left out.
    divisor: f32,
}

/// Statistics of one row, in two passes.
#[inline(always)]
fn statistics(z: &[f32], weights: &NormWeights) -> Statistics {
    let mean = if weights.kind.is_centred() { sum(z) / z.len() as f32 } else { 0.0 };
    let mut lanes = [0f32; LANES];
    let chunks = z.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            let u = chunk[i] - mean;
            lanes[i] = u.mul_add(u, lanes[i]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += (v - mean) * (v - mean);
    }
    let (squares, d) = (sum_lanes(lanes), z.len() as f32);
    match weights.kind {
        NormKind::Layer | NormKind::Rms => {
            Statistics { mean, factor: 1.0 / (squares / d + weights.eps).sqrt(), divisor: d }
        }
        NormKind::Std => {
            let deviation = (squares / (d - 1.0).max(1.0)).sqrt();
            let factor = 1.0 / (deviation + weights.eps);
            // A row without any deviation has n = 0, so any positive divisor gives 0.
            Statistics { mean, factor, divisor: ((d - 1.0) * deviation * factor).max(f32::MIN_POSITIVE) }
        }
    }
}

vectorised! {
    /// out = x + dropout(h + bias), row by row.
    pub fn add_rows(x: &[f32], addend: Addend, d: usize, out: &mut [f32]) {
        for (row, out) in out.chunks_exact_mut(d).enumerate() {
            add_row(x, &addend, row, out);
        }
    }

    /// out = norm(x), or norm(x + dropout(h + bias)), row by row.
    pub fn norm_rows(x: &[f32], addend: Option<Addend>, weights: NormWeights, d: usize, out: &mut [f32]) {
        let gamma = &weights.gamma[..d];
        for (row, out) in out.chunks_exact_mut(d).enumerate() {
            match &addend {
                Some(addend) => add_row(x, addend, row, out),
                None => out.copy_from_slice(&x[row * d..][..d]),
            }
            let Statistics { mean, factor, .. } = statistics(out, &weights);
            if weights.kind.is_centred() {
                let beta = &weights.beta[..d];
                for j in 0..d {
                    out[j] = ((out[j] - mean) * factor).mul_add(gamma[j], beta[j]);
                }
            } else {
                for j in 0..d {
                    out[j] = out[j] * factor * gamma[j];
                }
            }
        }
    }

    /// Backward of [`norm_rows`]: writes dz (or adds it, with `accumulate`) and adds to `sums` = [dγ, dβ], 2·D wide,
    /// whether there is a β or not.
    pub fn norm_rows_backward(
        x: &[f32], addend: Option<Addend>, weights: NormWeights, d: usize,
        dy: &[f32], dz: &mut [f32], accumulate: bool, scratch: &mut [f32], sums: &mut [f32],
    ) {
        let gamma = &weights.gamma[..d];
        let (z, t) = scratch.split_at_mut(d);
        let (z, t) = (&mut z[..d], &mut t[..d]);
        let (dgamma, dbeta) = sums.split_at_mut(d);
        let (dgamma, dbeta) = (&mut dgamma[..d], &mut dbeta[..d]);
        for (row, (dy, dz)) in dy.chunks_exact(d).zip(dz.chunks_exact_mut(d)).enumerate() {
            match &addend {
                Some(addend) => add_row(x, addend, row, z),
                None => z.copy_from_slice(&x[row * d..][..d]),
            }
            let Statistics { mean, factor, divisor } = statistics(z, &weights);
            for j in 0..d {
                let normal = (z[j] - mean) * factor;
                z[j] = normal;
                t[j] = dy[j] * gamma[j];
                dgamma[j] = dy[j].mul_add(normal, dgamma[j]);
                dbeta[j] += dy[j];
            }
            let mean_t = if weights.kind.is_centred() { sum(t) / d as f32 } else { 0.0 };
            let mean_tz = super::simd::dot(t, z) / divisor;
            if accumulate {
                for j in 0..d {
                    dz[j] += factor * (t[j] - mean_t - z[j] * mean_tz);
                }
            } else {
                for j in 0..d {
                    dz[j] = factor * (t[j] - mean_t - z[j] * mean_tz);
                }
            }
        }
    }

    /// Backward of the residual dropout: dh = dz·mask, and adds dh's column sums to the bias's gradient.
    pub fn dropout_rows_backward(
        dz: &[f32], dropout: Dropout, first_row: usize, d: usize, dh: &mut [f32], dbias: &mut [f32],
    ) {
        let dbias = &mut dbias[..d];
        for (row, (dz, dh)) in dz.chunks_exact(d).zip(dh.chunks_exact_mut(d)).enumerate() {
            let base = (first_row + row) * d;
            if dropout.is_on() {
                for j in 0..d {
                    let v = dz[j] * dropout.factor(base + j);
                    dh[j] = v;
                    dbias[j] += v;
                }
            } else {
                for j in 0..d {
                    dh[j] = dz[j];
                    dbias[j] += dz[j];
                }
            }
        }
    }

    /// Adds the sum of every column of [rows, width] to `sums`.
    pub fn add_column_sums(x: &[f32], width: usize, sums: &mut [f32]) {
        let sums = &mut sums[..width];
        for row in x.chunks_exact(width) {
            for j in 0..width {
                sums[j] += row[j];
            }
        }
    }

    /// Adds a bias to every row.
    pub fn add_bias(x: &mut [f32], bias: &[f32]) {
        let width = bias.len();
        for row in x.chunks_exact_mut(width) {
            for j in 0..width {
                row[j] += bias[j];
            }
        }
    }
}

/// The reference: normalisation in plain differentiable operations. `parameters`: [2, D], γ then β, or [1, D]. Computes
/// in f32 at least.
pub fn reference(z: &Tensor, parameters: &Tensor, eps: f64, kind: NormKind) -> Result<Tensor> {
    let z = if z.dtype() == DType::F64 { z.clone() } else { z.to_dtype(DType::F32)? };
    let centred = if kind.is_centred() { z.broadcast_sub(&z.mean_keepdim(D::Minus1)?)? } else { z.clone() };
    let squares = centred.sqr()?;
    let divisor = match kind {
        NormKind::Layer | NormKind::Rms => (squares.mean_keepdim(D::Minus1)? + eps)?.sqrt()?,
        NormKind::Std => {
            let freedom = (z.dim(D::Minus1)? as f64 - 1.0).max(1.0);
            // The root has no finite slope at 0, so a row without any deviation is kept just above it.
            (((squares.sum_keepdim(D::Minus1)? / freedom)? + 1e-30)?.sqrt()? + eps)?
        }
    };
    let scaled = centred.broadcast_div(&divisor)?.broadcast_mul(&parameters.get(0)?)?;
    if kind.is_centred() { scaled.broadcast_add(&parameters.get(1)?) } else { Ok(scaled) }
}

/// A normalisation alone (the final norm of a stack). x: [N, D].
pub fn run(x: &Tensor, norm: &Norm, mode: &Mode) -> Result<Tensor> {
    if mode.implementation == Implementation::Reference || !x.device().is_cpu() {
        let _timer = profile::reference("norm");
        return norm.reference(x, mode.is_training());
    }
    x.apply_op1(Fused(norm.clone()))
}

/// Rows that one thread takes at a time.
const BLOCK_ROWS: usize = 128;

struct Fused(Norm);

impl CustomOp1 for Fused {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let _timer = profile::operation(self.name(), "forward", Work::floats(2 * layout.shape().elem_count()));
        let (x, d) = (storage_slice(x, layout)?, self.0.parameters.dims()[1]);
        let mut out = vec![0f32; x.len()];
        self.0.with_weights(|weights| {
            let blocks = x.par_chunks(BLOCK_ROWS * d).zip(out.par_chunks_mut(BLOCK_ROWS * d));
            blocks.for_each(|(x, out)| norm_rows(x, None, weights, d, out));
            Ok(())
        })?;
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let _timer = profile::operation(self.name(), "backward", Work::floats(3 * x.elem_count()));
        let (d, gradient) = (self.0.parameters.dims()[1], gradient.contiguous()?);
        let mut dx = vec![0f32; x.elem_count()];
        let mut sums = Scratch::zeroed(x.elem_count().div_ceil(BLOCK_ROWS * d) * 2 * d);
        with_slice(x, |x| {
            with_slice(&gradient, |g| {
                self.0.with_weights(|weights| {
                    let shared = SharedRows::new(&mut sums, 2 * d);
                    let blocks = x.par_chunks(BLOCK_ROWS * d).zip(g.par_chunks(BLOCK_ROWS * d));
                    blocks.zip(dx.par_chunks_mut(BLOCK_ROWS * d)).enumerate().for_each(|(i, ((x, g), dx))| {
                        let mut scratch = Scratch::new(2 * d);
                        // SAFETY: every block has its own row of sums.
                        let sums = unsafe { shared.rows(i..i + 1) };
                        norm_rows_backward(x, None, weights, d, g, dx, false, &mut scratch, sums);
                    });
                    Ok(())
                })
            })
        })?;
        let mut total = vec![0f32; 2 * d];
        add_column_sums(&sums, 2 * d, &mut total);
        self.0.add_gradients(&total)?;
        Ok(Some(Tensor::from_vec(dx, x.shape(), x.device())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    /// γ·(z − μ)/√(σ² + ε) + β, γ·(z − μ)/(σ + ε) + β with the unbiased σ, or γ·z/√(mean of z² + ε), in f64, term by
    /// term.
    fn formula(kind: NormKind, z: &[f64], gamma: &[f64], beta: &[f64], eps: f64) -> Vec<f64> {
        let d = z.len() as f64;
        let mean = z.iter().sum::<f64>() / d;
        let squares = z.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let of = |mean: f64, divisor: f64, beta: &dyn Fn(usize) -> f64| {
            (0..z.len()).map(|j| gamma[j] * (z[j] - mean) / divisor + beta(j)).collect()
        };
        match kind {
            NormKind::Layer => of(mean, (squares / d + eps).sqrt(), &|j| beta[j]),
            NormKind::Std => of(mean, (squares / (d - 1.0)).sqrt() + eps, &|j| beta[j]),
            NormKind::Rms => of(0.0, (z.iter().map(|v| v * v).sum::<f64>() / d + eps).sqrt(), &|_| 0.0),
        }
    }

    #[test]
    fn rows_of_any_variance_follow_the_formula() {
        let wide = |v: &[f32]| v.iter().map(|&x| x as f64).collect::<Vec<_>>();
        // At deviations near √ε, ε decides; far above, it hardly counts; at 0, only β is left.
        use NormKind::{Layer, Rms, Std};
        for (kind, deviation, eps) in [
            (Layer, 1.0, 1e-5),
            (Layer, 3e-3, 1e-5),
            (Layer, 1e-4, 1e-5),
            (Layer, 0.0, 1e-5),
            (Layer, 1e-3, 1e-6),
            (Layer, 40.0, 1e-3),
            (Std, 1.0, 1e-9),
            (Std, 1e-3, 1e-3),
            (Std, 1e-5, 1e-3),
            (Std, 40.0, 1e-1),
            (Rms, 1.0, 1e-6),
            (Rms, 1e-3, 1e-6),
            (Rms, 0.0, 1e-5),
            (Rms, 40.0, 1e-3),
        ] {
            // One component has no standard deviation, and with two only ε gives a slope.
            for d in if kind == Std { vec![3, 16, 37] } else { vec![1, 3, 16, 37] } {
                let mut stream = Stream::new(4, "norm");
                let mut draw = |scale: f64, shift: f64| {
                    (0..d).map(|_| (shift + scale * stream.normal()) as f32).collect::<Vec<_>>()
                };
                let (z, gamma, beta, dy) = (draw(deviation, 0.0), draw(0.5, 1.0), draw(1.0, 0.0), draw(1.0, 0.0));
                let weights = NormWeights { gamma: &gamma, beta: &beta, eps: eps as f32, kind };
                let (mut y, mut dz, mut sums) = (vec![0f32; d], vec![0f32; d], vec![0f32; 2 * d]);
                norm_rows(&z, None, weights, d, &mut y);
                norm_rows_backward(&z, None, weights, d, &dy, &mut dz, false, &mut vec![0f32; 2 * d], &mut sums);

                let (z, gamma, beta, dy) = (wide(&z), wide(&gamma), wide(&beta), wide(&dy));
                let near = |what: &str, got: &[f32], want: &[f64]| {
                    let largest = want.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
                    for (a, b) in got.iter().zip(want) {
                        // A few roundings of f32 over a row.
                        assert!(
                            (*a as f64 - b).abs() <= 1e-5 * largest,
                            "{what} {got:?} {want:?} σ {deviation} ε {eps}"
                        );
                    }
                };
                near("y", &y, &formula(kind, &z, &gamma, &beta, eps));
                let objective =
                    |z: &[f64]| formula(kind, z, &gamma, &beta, eps).iter().zip(&dy).map(|(y, g)| y * g).sum::<f64>();
                let step = 1e-4 * if kind == Std { deviation } else { (deviation * deviation + eps).sqrt() };
                let moved = |j: usize, by: f64| {
                    let mut z = z.clone();
                    z[j] += by;
                    objective(&z)
                };
                let slope = |j: usize| (moved(j, step) - moved(j, -step)) / (2.0 * step);
                // With one column y depends on the sign of z at most.
                if d > 1 {
                    near("dz", &dz, &(0..d).map(slope).collect::<Vec<_>>());
                }
                near("dβ", &sums[d..], &dy);
            }
        }
    }

    /// What y and dz of a row of one component or two come to by hand, with t = γ·dy. Of two, z = μ ± u and σ = √2·|u|.
    #[test]
    fn the_standard_deviation_of_the_shortest_rows() {
        let eps = 0.5;
        let run = |z: &[f32], gamma: &[f32], beta: &[f32], dy: &[f32]| {
            let d = z.len();
            let weights = NormWeights { gamma, beta, eps, kind: NormKind::Std };
            let (mut y, mut dz, mut sums) = (vec![0f32; d], vec![0f32; d], vec![0f32; 2 * d]);
            norm_rows(z, None, weights, d, &mut y);
            norm_rows_backward(z, None, weights, d, dy, &mut dz, false, &mut vec![0f32; 2 * d], &mut sums);
            (y, dz)
        };
        assert_eq!(run(&[3.0], &[2.0], &[0.25], &[7.0]), (vec![0.25], vec![0.0]));
        let (gamma, beta, dy) = ([2.0, -1.0], [0.25, 0.5], [3.0, 5.0]);
        for u in [0.0, 1.0, -4.0f32] {
            let (y, dz) = run(&[7.0 + u, 7.0 - u], &gamma, &beta, &dy);
            let divisor = 2f32.sqrt() * u.abs() + eps;
            let slope = (gamma[0] * dy[0] - gamma[1] * dy[1]) / 2.0 * eps / (divisor * divisor);
            let want = [gamma[0] * u / divisor + beta[0], -gamma[1] * u / divisor + beta[1], slope, -slope];
            // A few roundings of numbers up to 6.
            let near = y.iter().chain(&dz).zip(want).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near, "u = {u}: {y:?}, {dz:?}, not {want:?}");
        }
    }
}
