//! The model against golden numbers from PyTorch: encoder states, logits, loss and the gradient of every parameter.
//! `tests/golden/README.md` says how the numbers were made.

mod common;

use candle_core::{Device, Tensor};
use common::{Golden, relative_error};
use mt::model::Sequences;
use mt::ops::loss::{self, Targets};
use mt::ops::{Implementation, Mode};

/// Largest relative error of logits and gradients (max|a-b| / max|b| over a tensor).
const TOLERANCE: f64 = 1e-4;

fn check(file: &str, implementation: Implementation) {
    let golden = Golden::load(file);
    let model = golden.model();
    let mode = Mode { training: Some(0), implementation };
    let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
    let targets = Targets { labels: golden.ids("input.labels"), padding: 0, smoothing: 0.1 };
    let real = targets.labels.iter().filter(|&&y| y != 0).count() as f64;

    let memory = model.encode(&source, &mode).unwrap();
    let states = model.decode(&memory, &target, &mode).unwrap();
    let logits = model.logits(&states, &mode).unwrap();
    compare_real("encoder", &memory.states, &golden.floats("output.encoder"), &source);
    compare_real("logits", &logits, &golden.floats("output.logits"), &target);

    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, &mode).unwrap();
    let want = golden.floats("output.loss")[0] as f64;
    assert!((sums.smoothed / real - want).abs() / want < 1e-5, "loss {} for {want}", sums.smoothed / real);
    (loss * (1.0 / real)).unwrap().backward().unwrap();
    let gradients = model.parameters().gradients().to_vec1::<f32>().unwrap();
    let mut worst = (0.0, String::new());
    for entry in model.parameters().entries() {
        let (got, want) = (&gradients[entry.range()], golden.floats(&format!("grad.{}", entry.name)));
        assert_eq!(got.len(), want.len(), "{}", entry.name);
        if entry.name.ends_with("k_proj.bias") {
            // Exactly zero in theory: a constant added to all scores of a row changes no softmax.
            assert!(got.iter().all(|g| g.abs() < 1e-6), "{}", entry.name);
            continue;
        }
        let error = relative_error(got, &want);
        assert!(error < TOLERANCE, "{}: {error}", entry.name);
        if error > worst.0 {
            worst = (error, entry.name.clone());
        }
    }
    println!("{file} {implementation:?}: worst gradient error {:.1e} at {}", worst.0, worst.1);
}

/// Compares [B·L, W] with golden [B, L, W] over the real positions.
fn compare_real(what: &str, got: &Tensor, want: &[f32], tokens: &Sequences) {
    let width = got.dim(1).unwrap();
    let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
    let rows: Vec<usize> = (0..tokens.batch() * tokens.length)
        .filter(|r| r % tokens.length < tokens.lengths[r / tokens.length] as usize)
        .collect();
    let pick = |x: &[f32]| rows.iter().flat_map(|r| x[r * width..(r + 1) * width].to_vec()).collect::<Vec<_>>();
    let error = relative_error(&pick(&got), &pick(want));
    println!("{what}: {error:.1e}");
    assert!(error < TOLERANCE, "{what}: {error}");
}

#[test]
fn post_norm_fused() {
    check("post_norm", Implementation::Fused);
}

#[test]
fn post_norm_reference() {
    check("post_norm", Implementation::Reference);
}

#[test]
fn pre_norm_fused() {
    check("pre_norm", Implementation::Fused);
}

#[test]
fn pre_norm_reference() {
    check("pre_norm", Implementation::Reference);
}

/// Incremental decoding gives the logits of the whole sequence.
#[test]
fn cached_steps_equal_the_whole_sequence() {
    for file in ["post_norm", "pre_norm"] {
        let golden = Golden::load(file);
        let model = golden.model();
        let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
        let memory = model.encode(&source, &Mode::INFERENCE).unwrap();
        let decoder = model.decoder().unwrap();
        let mut state = decoder.begin(&memory).unwrap();
        let want = golden.floats("output.logits");
        let (rows, length, v) = (target.batch(), target.length, decoder.vocabulary());
        let sentences: Vec<usize> = (0..rows).collect();
        for position in 0..length {
            let tokens: Vec<u32> = (0..rows).map(|r| target.ids[r * length + position]).collect();
            let logits = decoder.step(&mut state, &tokens, &sentences, &sentences).unwrap();
            for row in (0..rows).filter(|&r| position < target.lengths[r] as usize) {
                let at = (row * length + position) * v;
                let error = relative_error(&logits[row * v..(row + 1) * v], &want[at..at + v]);
                assert!(error < TOLERANCE, "{file}: position {position}, row {row}: {error}");
            }
        }
    }
}

#[test]
fn label_smoothing_equals_pytorch() {
    let golden = Golden::load("label_smoothing");
    let logits = Tensor::from_vec(golden.floats("input.logits"), golden.shape("input.logits"), &Device::Cpu).unwrap();
    let labels = golden.ids("input.labels");
    let real = labels.iter().filter(|&&y| y != 0).count() as f64;
    for smoothing in ["0.0", "0.1", "0.2"] {
        let targets = Targets { labels: labels.clone(), padding: 0, smoothing: smoothing.parse().unwrap() };
        let logits = candle_core::Var::from_tensor(&logits).unwrap();
        let (loss, sums) = loss::reference(&logits, &targets).unwrap();
        let want = golden.floats(&format!("output.loss.{smoothing}"))[0] as f64;
        assert!((sums.smoothed / real - want).abs() < 1e-5 * want, "{smoothing}");
        let gradients = (loss * (1.0 / real)).unwrap().backward().unwrap();
        let got: Vec<f32> = gradients.get(&logits).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let error = relative_error(&got, &golden.floats(&format!("grad.logits.{smoothing}")));
        assert!(error < 1e-5, "{smoothing}: {error}");
    }
}
