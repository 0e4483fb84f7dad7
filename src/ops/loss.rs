//! Output projection and label-smoothed cross-entropy in one operation, in chunks of rows, so that the logits [N, V] of
//! a whole batch are never stored.
//!
//! The loss of a token with label y is (1−ε)·(−log p_y) + ε/V·Σ_v (−log p_v) (Szegedy et al. 2016, section 7), as
//! PyTorch's `CrossEntropyLoss(label_smoothing=ε)`; padding contributes nothing. Losses are *summed*: training divides
//! by the number of target tokens of the whole update.
//!
//! R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks") goes over each sentence twice, with
//! different dropout. The loss of a token is ½·(CE₁ + CE₂) + α/4·(KL(p‖q) + KL(q‖p)), where p and q are what the two
//! passes predict, and CE is the smoothed loss above.

mod rows;

use std::ops::Range;
use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, D, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::matmul::{Packed, Precision, transposed_product};
use super::memory::{Scratch, SharedRows, storage_slice, with_slice};
use super::norm::add_bias;
use super::profile::{self, Work};
use super::projection::{Pass, Projection};
use super::simd;
use super::sublayer::with_bias;
use super::{Implementation, Mode};
use rows::{pair_loss, row_loss};

/// Rows whose logits are held at once.
const CHUNK_ROWS: usize = 1024;
/// Rows of a chunk that one thread takes at a time: few, so that their logits stay in its cache from the product to the
/// gradient, but more in wider models, since every task reads the whole weight.
fn task_rows(d: usize) -> usize {
    // For d = 128, d/3 to d/10 were equally fast; for d = 512, fewer were faster.
    (d / 10).next_multiple_of(12).clamp(12, 192)
}

/// What the rows are to predict, and how far from it they are: the loss.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// One label per row, [N].
    pub labels: Vec<u32>,
    /// The label that is ignored.
    pub padding: u32,
    /// Label smoothing ε.
    pub smoothing: f32,
    /// α of R-Drop; 0: off. Otherwise rows i and N/2 + i are one token in two passes.
    pub r_drop: f32,
    /// What the smoothed loss of each row is multiplied by, [N]; empty: by 1.
    pub weights: Vec<f32>,
}

impl Targets {
    /// What the smoothed loss of a row is multiplied by.
    fn weight(&self, row: usize) -> f32 {
        self.weights.get(row).copied().unwrap_or(1.0)
    }

    /// The rows that are not padding. With R-Drop, both of each token follow one another.
    fn real_rows(&self) -> Vec<usize> {
        let is_real = |row: &usize| self.labels[*row] != self.padding;
        if self.r_drop == 0.0 {
            return (0..self.labels.len()).filter(is_real).collect();
        }
        let half = self.labels.len() / 2;
        (0..half).filter(is_real).flat_map(|row| [row, half + row]).collect()
    }

    /// Whether with R-Drop each token is there twice.
    pub fn is_paired(&self) -> bool {
        fn has_equal_halves<T: PartialEq>(all: &[T]) -> bool {
            all.len().is_multiple_of(2) && all[..all.len() / 2] == all[all.len() / 2..]
        }
        self.r_drop == 0.0 || (has_equal_halves(&self.labels) && has_equal_halves(&self.weights))
    }
}

/// Sum over rows of the smoothed loss, and of the plain negative log-likelihood.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Sum of the smoothed losses, each multiplied by its weight.
    pub smoothed: f64,
    /// Sum of the negative log-likelihoods, without weights; its mean is the logarithm of the perplexity.
    pub nll: f64,
}

/// The summed loss of decoder states x [N, D] under a projection [V, D]: a scalar that can be differentiated, and the
/// sums. The token `left_out`, if there is one, takes no part in the softmax; it must not be the label of a row.
pub fn run(
    x: &Tensor,
    projection: &Projection,
    targets: &Targets,
    left_out: Option<u32>,
    mode: &Mode,
) -> Result<(Tensor, Sums)> {
    let (n, vocabulary) = (x.dim(0)?, projection.weight.dims()[0]);
    if targets.labels.len() != n {
        bail!("{} labels for {n} rows", targets.labels.len());
    }
    if !targets.weights.is_empty() && targets.weights.len() != n {
        bail!("{} weights for {n} rows", targets.weights.len());
    }
    if !targets.is_paired() {
        bail!("the two passes of R-Drop have different targets");
    }
    let is_unknown = |&&y: &&u32| y as usize >= vocabulary || (Some(y) == left_out && y != targets.padding);
    if let Some(label) = targets.labels.iter().find(is_unknown) {
        bail!("label {label} is outside the vocabulary of {vocabulary}, or left out of it");
    }
    if mode.implementation == Implementation::Reference || !x.device().is_cpu() {
        let _timer = profile::reference("projection-loss");
        let logits = projection.reference(x, mode.is_training())?;
        return reference(&logits, targets, left_out);
    }
    let left_out = left_out.map(|token| token as usize);
    if !mode.is_training() {
        let sums = with_slice(&x.contiguous()?, |xs| forward(xs, projection, targets, left_out, None))?;
        return Ok((Tensor::new(sums.smoothed as f32, x.device())?, sums));
    }
    let sums = std::sync::Arc::new(Mutex::new(Sums::default()));
    let op = Fused {
        projection: projection.clone(),
        targets: targets.clone(),
        left_out,
        sums: sums.clone(),
        kept: Mutex::new(None),
    };
    let loss = x.apply_op1(op)?;
    let sums = *sums.lock().unwrap_or_else(|p| p.into_inner());
    Ok((loss, sums))
}

/// The summed loss of logits [N, V] in plain Candle operations; `left_out` is as in [`run`].
pub fn reference(logits: &Tensor, targets: &Targets, left_out: Option<u32>) -> Result<(Tensor, Sums)> {
    let device = logits.device();
    let logits = if logits.dtype() == DType::F64 { logits.clone() } else { logits.to_dtype(DType::F32)? };
    let logits = match left_out {
        Some(token) => without_column(&logits, token as usize)?,
        None => logits,
    };
    // Tokens after the one left out move up by one. Rows of padding do not count, whatever their values.
    let moved =
        |&y: &u32| if left_out.is_some_and(|token| y > token || y as usize == logits.dims()[1]) { y - 1 } else { y };
    let labels: Vec<u32> = targets.labels.iter().map(moved).collect();
    // Candle's plain log-softmax, not the fused one, which has no gradient.
    let log_probs = candle_nn::ops::log_softmax(&logits, D::Minus1)?;
    let rows = targets.labels.len();
    let real: Vec<f32> = targets.labels.iter().map(|&y| (y != targets.padding) as u8 as f32).collect();
    let weights: Vec<f32> = real.iter().enumerate().map(|(row, real)| real * targets.weight(row)).collect();
    let [real, weights] =
        [real, weights].map(|values| Tensor::from_vec(values, rows, device)?.to_dtype(log_probs.dtype()));
    let (real, weights) = (real?, weights?);
    let labels = Tensor::from_vec(labels, (rows, 1), device)?;
    let nll = log_probs.gather(&labels, 1)?.squeeze(1)?.neg()?; // [N]
    let uniform = log_probs.mean(D::Minus1)?.neg()?; // [N]
    let smoothing = targets.smoothing as f64;
    let mut loss = ((&nll * (1.0 - smoothing))? + (uniform * smoothing)?)?.mul(&weights)?.sum_all()?;
    let mut nll = nll.mul(&real)?.sum_all()?;
    if targets.r_drop > 0.0 {
        let half = rows / 2;
        let (p, q) = (log_probs.narrow(0, 0, half)?, log_probs.narrow(0, half, half)?);
        // KL(p‖q) + KL(q‖p) = Σ (p − q)·(log p − log q)
        let both = (p.exp()? - q.exp()?)?.mul(&(p - q)?)?.sum(D::Minus1)?;
        let between = both.mul(&weights.narrow(0, 0, half)?)?.sum_all()?;
        loss = ((loss * 0.5)? + (between * (f64::from(targets.r_drop) / 4.0))?)?;
        nll = (nll * 0.5)?;
    }
    // Not every device has f64.
    let scalar = |t: Tensor| match t.dtype() {
        DType::F64 => t.to_scalar::<f64>(),
        _ => Ok(f64::from(t.to_scalar::<f32>()?)),
    };
    let sums = Sums { smoothed: scalar(loss.detach())?, nll: scalar(nll.detach())? };
    Ok((loss, sums))
}

/// A matrix without one of its columns.
fn without_column(matrix: &Tensor, column: usize) -> Result<Tensor> {
    let columns = matrix.dim(1)?;
    let (before, after) = (matrix.narrow(1, 0, column)?, matrix.narrow(1, column + 1, columns - column - 1)?);
    match (column, columns - column - 1) {
        (0, _) => after.contiguous(),
        (_, 0) => before.contiguous(),
        _ => Tensor::cat(&[before, after], 1),
    }
}

/// Gradients of the summed loss.
struct Gradients<'a> {
    dx: &'a mut [f32],
    /// Empty if nobody needs it.
    d_weight: &'a mut [f32],
    d_bias: &'a mut [f32],
}

/// The projection, packed.
struct Weights<'a> {
    forward: Packed,
    /// For gradients.
    backward: Option<Packed>,
    bias: Option<&'a [f32]>,
    precision: Precision,
    /// A token that takes no part in the softmax.
    left_out: Option<usize>,
}

fn forward(
    x: &[f32],
    projection: &Projection,
    targets: &Targets,
    left_out: Option<usize>,
    gradients: Option<&mut Gradients>,
) -> Result<Sums> {
    let d = projection.weight.dims()[1];
    with_bias(projection.bias.as_ref(), |bias| {
        let weights = Weights {
            forward: projection.packed(Pass::first(gradients.is_some()))?,
            backward: gradients.is_some().then(|| projection.packed(Pass::Backward)).transpose()?,
            bias,
            precision: projection.weight.precision(),
            left_out,
        };
        if targets.r_drop == 0.0 && !targets.labels.contains(&targets.padding) {
            return Ok(chunks(x, d, &weights, targets, gradients));
        }
        Ok(real_rows(x, d, &weights, targets, gradients))
    })
}

/// [`chunks`] of the rows that are not padding, in the order of [`Targets::real_rows`]; padding gets no logits, and a
/// gradient of zero.
fn real_rows(x: &[f32], d: usize, weights: &Weights, targets: &Targets, gradients: Option<&mut Gradients>) -> Sums {
    let real = targets.real_rows();
    let labels = real.iter().map(|&row| targets.labels[row]).collect();
    let weights_of_rows = match targets.weights[..] {
        [] => Vec::new(),
        _ => real.iter().map(|&row| targets.weight(row)).collect(),
    };
    let mut rows = Scratch::new(real.len() * d);
    for (to, &row) in rows.chunks_exact_mut(d).zip(&real) {
        to.copy_from_slice(&x[row * d..][..d]);
    }
    let targets = Targets { labels, weights: weights_of_rows, ..*targets };
    let Some(gradients) = gradients else { return chunks(&rows, d, weights, &targets, None) };
    let mut d_rows = Scratch::new(rows.len());
    let (dx, d_weight, d_bias) = (&mut d_rows[..], &mut *gradients.d_weight, &mut *gradients.d_bias);
    let sums = chunks(&rows, d, weights, &targets, Some(&mut Gradients { dx, d_weight, d_bias }));
    gradients.dx.fill(0.0);
    for (from, &row) in d_rows.chunks_exact(d).zip(&real) {
        gradients.dx[row * d..][..d].copy_from_slice(from);
    }
    sums
}

fn chunks(x: &[f32], d: usize, weights: &Weights, targets: &Targets, mut gradients: Option<&mut Gradients>) -> Sums {
    let (n, v) = (x.len() / d, weights.forward.columns());
    let mut logits = Scratch::new(CHUNK_ROWS.min(n) * v);
    let mut sums = Sums::default();
    if let (0, Some(g)) = (n, &mut gradients) {
        g.d_weight.fill(0.0);
    }
    for start in (0..n).step_by(CHUNK_ROWS) {
        let end = (start + CHUNK_ROWS).min(n);
        let x = &x[start * d..end * d];
        let logits = &mut logits[..(end - start) * v];
        let dx = gradients.as_mut().map(|g| &mut g.dx[start * d..end * d]);
        let parts = chunk_rows(x, d, weights, (targets, start..end), logits, dx);
        // Added in the order of the rows, whichever thread finished first.
        for (smoothed, nll) in parts {
            sums.smoothed += smoothed;
            sums.nll += nll;
        }
        if let Some(g) = gradients.as_mut() {
            if !g.d_weight.is_empty() {
                transposed_product(logits, x, end - start, g.d_weight, start > 0, weights.precision);
            }
            const COLUMNS: usize = 512;
            g.d_bias.par_chunks_mut(COLUMNS).enumerate().for_each(|(i, sums)| {
                for row in logits.chunks_exact(v) {
                    simd::add_scaled(sums, &row[i * COLUMNS..], 1.0);
                }
            });
        }
    }
    sums
}

/// One chunk, the rows `of` the targets: logits become their gradient (if wanted), `dx` is written; returns the sums of
/// each task.
fn chunk_rows(
    x: &[f32],
    d: usize,
    weights: &Weights,
    (targets, of): (&Targets, Range<usize>),
    logits: &mut [f32],
    dx: Option<&mut [f32]>,
) -> Vec<(f64, f64)> {
    let (rows, v) = (of.len(), weights.forward.columns());
    let shared = SharedRows::new(logits, v);
    let wanted = dx.is_some();
    let dx = SharedRows::new(dx.unwrap_or_default(), d);
    let task_rows = task_rows(d);
    (0..rows.div_ceil(task_rows))
        .into_par_iter()
        .map(|task| {
            let (a, b) = (task * task_rows, ((task + 1) * task_rows).min(rows));
            // SAFETY: tasks have disjoint rows.
            let logits = unsafe { shared.rows(a..b) };
            weights.forward.product(&x[a * d..b * d], logits, false);
            if let Some(bias) = weights.bias {
                add_bias(logits, bias);
            }
            let mut sums = (0.0, 0.0);
            let timer = profile::kernel("softmax and loss", "", Work::floats(2 * logits.len()));
            let mut add = |(smoothed, nll): (f32, f32)| {
                sums.0 += smoothed as f64;
                sums.1 += nll as f64;
            };
            let (of_rows, left_out) = (of.start + a..of.start + b, weights.left_out);
            if targets.r_drop > 0.0 {
                // Chunks and tasks have even numbers of rows.
                let mut difference = Scratch::new(v);
                for (pair, row) in logits.chunks_exact_mut(2 * v).zip(of_rows.step_by(2)) {
                    let (first, second) = pair.split_at_mut(v);
                    add(pair_loss(first, second, &mut difference, targets, row, left_out, wanted));
                }
            } else {
                for (logits, row) in logits.chunks_exact_mut(v).zip(of_rows) {
                    let (label, weight) = (targets.labels[row] as usize, targets.weight(row));
                    add(row_loss(logits, label, targets.smoothing, weight, left_out, wanted));
                }
            }
            drop(timer);
            if let Some(backward) = &weights.backward {
                // SAFETY: tasks have disjoint rows.
                let dx = unsafe { dx.rows(a..b) };
                backward.product(logits, dx, false);
            }
            sums
        })
        .collect()
}

/// Gradients computed in forward, while the logits are there.
struct Kept {
    dx: Vec<f32>,
    d_weight: Scratch,
    d_bias: Vec<f32>,
}

struct Fused {
    projection: Projection,
    targets: Targets,
    left_out: Option<usize>,
    sums: std::sync::Arc<Mutex<Sums>>,
    kept: Mutex<Option<Kept>>,
}

impl CustomOp1 for Fused {
    fn name(&self) -> &'static str {
        "projection-loss"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let _timer = profile::operation(self.name(), "forward", Work::NONE);
        let x = storage_slice(x, layout)?;
        let bias = self.projection.bias.as_ref().map_or(0, |b| b.len());
        let weight = &self.projection.weight;
        let mut kept = Kept {
            dx: vec![0f32; x.len()],
            d_weight: Scratch::new(if weight.needs_gradient() { weight.len() } else { 0 }),
            d_bias: vec![0f32; bias],
        };
        let mut gradients = Gradients { dx: &mut kept.dx, d_weight: &mut kept.d_weight, d_bias: &mut kept.d_bias };
        let sums = forward(x, &self.projection, &self.targets, self.left_out, Some(&mut gradients))?;
        *self.sums.lock().unwrap_or_else(|p| p.into_inner()) = sums;
        *self.kept.lock().unwrap_or_else(|p| p.into_inner()) = Some(kept);
        Ok((CpuStorage::F32(vec![sums.smoothed as f32]), Shape::from(())))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let _timer = profile::operation(self.name(), "backward", Work::floats(3 * self.projection.weight.len()));
        let Some(mut kept) = self.kept.lock().unwrap_or_else(|p| p.into_inner()).take() else {
            bail!("projection-loss: backward without forward")
        };
        let scale = gradient.to_dtype(DType::F32)?.to_scalar::<f32>()?;
        let add = |target: &mut [f32], from: &[f32]| {
            let pieces = target.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16));
            pieces.for_each(|(target, from)| simd::add_scaled(target, from, scale));
        };
        self.projection.weight.with_gradient(|g| add(g, &kept.d_weight))?;
        if let Some(bias) = &self.projection.bias {
            bias.with_gradient(|g| add(g, &kept.d_bias))?;
        }
        if scale != 1.0 {
            kept.dx.iter_mut().for_each(|v| *v *= scale);
        }
        Ok(Some(Tensor::from_vec(kept.dx, x.shape(), x.device())?))
    }
}

#[cfg(test)]
mod tests;
