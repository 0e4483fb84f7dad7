//! The model against golden numbers from PyTorch: encoder states, logits, loss and the gradient of every parameter.
//! `tests/golden/README.md` describes how the numbers were made.

mod common;

use candle_core::{DType, Device, Tensor};
use common::parity::{self, TOLERANCE};
use common::{Golden, relative_error};
use mt::infer::{ComputeType, Engine, model_values};
use mt::ops::loss::{self, Targets};
use mt::ops::params::{Kind, ParameterLayout};
use mt::ops::projection::Projection;
use mt::ops::{Implementation, Mode};

fn check(file: &str, implementation: Implementation) {
    let golden = Golden::load(file);
    parity::check(file, &golden, &golden.model(), implementation);
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

/// Incremental decoding gives the logits of the whole sequence, with the processor's engine and with plain operations.
#[test]
fn cached_steps_equal_the_whole_sequence() {
    for file in ["post_norm", "pre_norm"] {
        let golden = Golden::load(file);
        let model = golden.model();
        let (source, target) = (golden.sequences("source"), golden.sequences("target_input"));
        let want = golden.floats("output.logits");
        let (rows, length, v) = (target.batch(), target.length, model.vocabulary().target);
        let sentences: Vec<usize> = (0..rows).collect();
        let check = |name: &str, step: &mut dyn FnMut(&[u32]) -> Vec<f32>| {
            for position in 0..length {
                let tokens: Vec<u32> = (0..rows).map(|r| target.ids[r * length + position]).collect();
                let logits = step(&tokens);
                for row in (0..rows).filter(|&r| position < target.lengths[r] as usize) {
                    let at = (row * length + position) * v;
                    let error = relative_error(&logits[row * v..(row + 1) * v], &want[at..at + v]);
                    assert!(error < TOLERANCE, "{name}, {file}: position {position}, row {row}: {error}");
                }
            }
        };
        let memory = model.encode(&source, &Mode::INFERENCE).unwrap();
        let decoder = model.decoder().unwrap();
        let mut state = decoder.begin(&memory).unwrap();
        check("plain", &mut |tokens| decoder.step(&mut state, tokens, &sentences, &sentences).unwrap());
        let engine = Engine::new(model.config(), &model_values(&model), ComputeType::F32).unwrap();
        let sources = source.ids.chunks_exact(source.length).zip(source.lengths.iter());
        let sources: Vec<&[u32]> = sources.map(|(row, &length)| &row[..length as usize]).collect();
        let mut session = engine.begin(engine.encode(&sources), None);
        check("engine", &mut |tokens| {
            let mut all = vec![0f32; rows * v];
            session.step(tokens, &sentences, &sentences, &mut all, |_, logits, _, all| all.copy_from_slice(logits));
            all
        });
    }
}

#[test]
fn label_smoothing_equals_pytorch() {
    let golden = Golden::load("label_smoothing");
    let logits = Tensor::from_vec(golden.floats("input.logits"), golden.shape("input.logits"), &Device::Cpu).unwrap();
    let labels = golden.ids("input.labels");
    let real = labels.iter().filter(|&&y| y != 0).count() as f64;
    for smoothing in ["0.0", "0.1", "0.2"] {
        let targets =
            Targets { labels: labels.clone(), padding: 0, smoothing: smoothing.parse().unwrap(), ..Targets::default() };
        let logits = candle_core::Var::from_tensor(&logits).unwrap();
        let (loss, sums) = loss::reference(&logits, &targets, None).unwrap();
        let want = golden.floats(&format!("output.loss.{smoothing}"))[0] as f64;
        assert!((sums.smoothed / real - want).abs() < 1e-5 * want, "{smoothing}");
        let gradients = (loss * (1.0 / real)).unwrap().backward().unwrap();
        let got: Vec<f32> = gradients.get(&logits).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let error = relative_error(&got, &golden.floats(&format!("grad.logits.{smoothing}")));
        assert!(error < 1e-5, "{smoothing}: {error}");
    }
}

/// The fused loss with R-Drop, and that in plain operations: the projection of the logits is the identity.
#[test]
fn r_drop_equals_pytorch() {
    let golden = Golden::load("r_drop");
    let (logits, labels) = (golden.floats("input.logits"), golden.ids("input.labels"));
    let (rows, v) = (2 * labels.len(), golden.shape("input.logits")[2]);
    let mut layout = ParameterLayout::default();
    layout.add("weight", &[v, v], Kind::Weight);
    let parameters = layout.allocate(&Device::Cpu, DType::F32).unwrap();
    let identity = Tensor::eye(v, DType::F32, &Device::Cpu).unwrap().flatten_all().unwrap();
    parameters.values().slice_set(&identity, 0, 0).unwrap();
    let projection = Projection { weight: parameters.param("weight").unwrap(), bias: None };
    let real = labels.iter().filter(|&&y| y != 0).count() as f64;
    let targets = Targets { labels: labels.repeat(2), smoothing: 0.1, r_drop: 5.0, ..Targets::default() };
    let want = f64::from(golden.floats("output.loss")[0]);
    for implementation in [Implementation::Fused, Implementation::Reference] {
        let x = Tensor::from_vec(logits.clone(), (rows, v), &Device::Cpu).unwrap();
        let x = candle_core::Var::from_tensor(&x).unwrap();
        let mode = Mode { training: Some(1), implementation };
        let (loss, sums) = loss::run(&x, &projection, &targets, None, &mode).unwrap();
        assert!((sums.smoothed / real - want).abs() < 1e-5 * want, "{implementation:?}");
        let gradients = (loss * (1.0 / real)).unwrap().backward().unwrap();
        let got: Vec<f32> = gradients.get(&x).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let error = relative_error(&got, &golden.floats("grad.logits"));
        assert!(error < 1e-5, "{implementation:?}: {error}");
    }
}
