//! Compares a model with golden numbers.

use candle_core::Tensor;
use mt::model::{Sequences, Transformer};
use mt::ops::loss::Targets;
use mt::ops::{Implementation, Mode};

use super::{Golden, is_idle, relative_error};

/// Largest relative error of logits and gradients (max|a-b| / max|b| over a tensor).
pub const TOLERANCE: f64 = 1e-4;
/// Largest allowed gradient of a parameter whose gradient is zero in theory.
const IDLE: f32 = 1e-6;

/// Whether an element belongs to a real position, not to padding: element i of a flat [B, L, W] belongs to token i / W.
pub fn real(tokens: &Sequences, width: usize) -> impl Fn(usize) -> bool {
    move |element| {
        let token = element / width;
        token % tokens.length < tokens.lengths[token / tokens.length] as usize
    }
}

/// Error of a flat tensor against a golden one, whole or sampled, over the elements that `counts` accepts.
fn error(golden: &Golden, name: &str, got: &[f32], counts: impl Fn(usize) -> bool) -> f64 {
    let stride = golden.stride(name, got.len());
    let want = golden.floats(name);
    assert_eq!(want.len(), got.len().div_ceil(stride), "{name}");
    let kept: Vec<usize> = (0..want.len()).filter(|i| counts(i * stride)).collect();
    assert!(!kept.is_empty(), "{name}: nothing to compare");
    let pick = |values: &[f32], by: usize| kept.iter().map(|i| values[i * by]).collect::<Vec<_>>();
    relative_error(&pick(got, stride), &pick(&want, 1))
}

/// The elements in order.
pub fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Compares encoder states, logits, loss and the gradient of every parameter of `model` with `golden`. Prints one row
/// of docs/parity.md.
pub fn check(case: &str, golden: &Golden, model: &Transformer, implementation: Implementation) {
    let mode = Mode { training: Some(0), implementation };
    let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
    let targets = Targets { labels: golden.ids("input.labels"), padding: 0, smoothing: 0.1, ..Targets::default() };
    let labels = targets.labels.iter().filter(|&&y| y != 0).count() as f64;

    let memory = model.encode(&source, &mode).unwrap();
    let states = model.decode(&memory, &target, &mode).unwrap();
    let (encoder, logits) = (flat(&memory.states), flat(&model.logits(&states, &mode).unwrap()));
    let encoder = error(golden, "output.encoder", &encoder, real(&source, model.config().d_model));
    let logits = error(golden, "output.logits", &logits, real(&target, model.vocabulary().target));
    assert!(encoder < TOLERANCE && logits < TOLERANCE, "{case}: encoder {encoder:.1e}, logits {logits:.1e}");

    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, &mode).unwrap();
    let want = golden.floats("output.loss")[0] as f64;
    let loss_error = (sums.smoothed / labels - want).abs() / want;
    assert!(loss_error < 1e-5, "{case}: loss {} for {want}", sums.smoothed / labels);
    (loss * (1.0 / labels)).unwrap().backward().unwrap();
    let gradients = model.parameters().gradients().to_vec1::<f32>().unwrap();
    let mut worst = (0.0, "");
    for entry in model.parameters().entries() {
        let got = &gradients[entry.range()];
        if is_idle(&entry.name, model.config()) {
            assert!(got.iter().all(|g| g.abs() < IDLE), "{case}: {}", entry.name);
            continue;
        }
        let error = error(golden, &format!("grad.{}", entry.name), got, |_| true);
        assert!(error < TOLERANCE, "{case}: {}: {error:.1e}", entry.name);
        if error > worst.0 {
            worst = (error, &entry.name);
        }
    }
    assert_eq!(golden.count("grad."), model.parameters().entries().len(), "{case}: other parameters");
    let implementation = format!("{implementation:?}").to_lowercase();
    println!("| {case} | {implementation} | {logits:.1e} | {loss_error:.1e} | {:.1e} | `{}` |", worst.0, worst.1);
}
