//! Losses and gradients of single rows of logits.

use super::Targets;
use crate::ops::simd::{self, vectorised};

/// What is known of a row of logits that have become e^(x - largest).
struct Row {
    /// The largest logit.
    largest: f32,
    /// Σ e^(x - largest)
    exp_sum: f32,
    /// Its logarithm.
    log_sum: f32,
    /// The smoothed loss.
    smoothed: f32,
    /// The negative log-likelihood.
    nll: f32,
}

/// Replaces the logits of one row, without the token `left_out`.
#[inline(always)]
fn take_exponentials(logits: &mut [f32], label: usize, smoothing: f32, left_out: Option<usize>) -> Row {
    let v = (logits.len() - usize::from(left_out.is_some())) as f32;
    if let Some(token) = left_out {
        logits[token] = 0.0;
    }
    let total = simd::sum(logits);
    if let Some(token) = left_out {
        logits[token] = f32::NEG_INFINITY;
    }
    let (largest, chosen) = (simd::max(logits), logits[label]);
    let exp_sum = simd::exp_shifted(logits, largest);
    // Differences first, for precision: log Σ e^x lies near the largest logit, which may be far from zero.
    let log_sum = exp_sum.ln();
    let nll = log_sum + (largest - chosen);
    let smoothed = (1.0 - smoothing) * nll + smoothing * (log_sum + (largest - total / v));
    Row { largest, exp_sum, log_sum, smoothed, nll }
}

vectorised! {
    /// The smoothed loss of one row of logits, times its weight, and its negative log-likelihood, both without the
    /// token `left_out`. With `gradient`, the logits become the gradient of the former.
    pub(super) fn row_loss(
        logits: &mut [f32],
        label: usize,
        smoothing: f32,
        weight: f32,
        left_out: Option<usize>,
        gradient: bool,
    ) -> (f32, f32) {
        let v = (logits.len() - usize::from(left_out.is_some())) as f32;
        let Row { exp_sum, smoothed, nll, .. } = take_exponentials(logits, label, smoothing, left_out);
        if gradient {
            let (inverse, uniform) = (weight / exp_sum, weight * (smoothing / v));
            for x in logits.iter_mut() {
                *x = x.mul_add(inverse, -uniform);
            }
            logits[label] -= weight * (1.0 - smoothing);
            if let Some(token) = left_out {
                logits[token] = 0.0;
            }
        }
        (weight * smoothed, nll)
    }
}

vectorised! {
    /// The same of a token with R-Drop, whose logits two passes have computed; the negative log-likelihood is their
    /// mean. `difference` is scratch memory for as many numbers.
    ///
    /// With d = log p − log q, the gradient of KL(p‖q) + KL(q‖p) is p·(d − KL(p‖q)) + p − q for the logits of p, and
    /// q·(−d − KL(q‖p)) + q − p for those of q.
    pub(super) fn pair_loss(
        first: &mut [f32],
        second: &mut [f32],
        difference: &mut [f32],
        targets: &Targets,
        row: usize,
        left_out: Option<usize>,
        gradient: bool,
    ) -> (f32, f32) {
        let n = first.len();
        let (second, difference) = (&mut second[..n], &mut difference[..n]);
        let (label, smoothing, weight) = (targets.labels[row] as usize, targets.smoothing, targets.weight(row));
        for i in 0..n {
            difference[i] = first[i] - second[i];
        }
        let p = take_exponentials(first, label, smoothing, left_out);
        let q = take_exponentials(second, label, smoothing, left_out);
        let between = (p.largest - q.largest) + (p.log_sum - q.log_sum);
        for d in difference.iter_mut() {
            *d -= between;
        }
        if let Some(token) = left_out {
            difference[token] = 0.0;
        }
        let kl = [simd::dot(first, difference) / p.exp_sum, -simd::dot(second, difference) / q.exp_sum];
        let share = targets.r_drop / 4.0;
        if gradient {
            let v = (n - usize::from(left_out.is_some())) as f32;
            let (half, pull, uniform) = (weight * 0.5, weight * share, weight * 0.5 * (smoothing / v));
            let (of_first, of_second) = (1.0 / p.exp_sum, 1.0 / q.exp_sum);
            for i in 0..n {
                let (p, q, d) = (first[i] * of_first, second[i] * of_second, difference[i]);
                first[i] = half * p - uniform + pull * (p * (d - kl[0]) + p - q);
                second[i] = half * q - uniform + pull * (q * (-d - kl[1]) + q - p);
            }
            for logits in [first, second] {
                logits[label] -= half * (1.0 - smoothing);
                if let Some(token) = left_out {
                    logits[token] = 0.0;
                }
            }
        }
        let loss = 0.5 * (p.smoothed + q.smoothed) + share * (kl[0] + kl[1]);
        (weight * loss, 0.5 * (p.nll + q.nll))
    }
}
