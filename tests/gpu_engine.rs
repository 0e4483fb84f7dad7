//! The GPU engine and its kernels on the emulator, held against the fused kernels of the processor.

mod common;

use candle_core::{DType, Device, Tensor};
use common::emulator::Emulator;
use common::{is_idle, random_sequences, relative_error, small_model};
use mt::config::{Activation, ModelConfig, NormKind, NormPlacement, PaddingMask, PositionKind, Sinusoid, Tie};
use mt::gpu::Engine;
use mt::model::{Sequences, Transformer, Vocabulary};
use mt::ops::loss::Targets;
use mt::ops::{Implementation, Mode};
use mt::rng::Stream;

const V: usize = 64;
const VOCABULARY: Vocabulary = Vocabulary { source: V, target: V, source_padding: 0, target_padding: 0 };

/// Between them every kernel and option.
fn configs() -> Vec<ModelConfig> {
    let dropouts = ModelConfig {
        dropout: 0.2,
        embedding_dropout: 0.1,
        attention_dropout: 0.15,
        activation_dropout: 0.25,
        ..small_model()
    };
    let pre = ModelConfig { norm: NormPlacement::Pre, final_norm: true, ..dropouts.clone() };
    vec![
        small_model(),
        dropouts.clone(),
        ModelConfig { heads: 2, d_k: 16, d_v: 16, ..dropouts.clone() },
        ModelConfig { activation: Activation::Gelu, tie: Tie::Decoder, ..pre.clone() },
        ModelConfig { final_norm: false, ..pre.clone() },
        ModelConfig {
            positions: PositionKind::Rotary,
            activation: Activation::Swish,
            tie: Tie::None,
            output_bias: true,
            attention_bias: false,
            d_model: 22,
            d_ff: 37,
            heads: 3,
            d_k: 6,
            d_v: 7,
            ..dropouts.clone()
        },
        ModelConfig { positions: PositionKind::Rotary, sinusoid: Sinusoid::Halves, ..pre },
        ModelConfig {
            positions: PositionKind::Learned,
            norm_kind: NormKind::Std,
            norm_eps: 1e-9,
            final_norm: true,
            padding_mask: PaddingMask::KeysAndQueries,
            encoder_layers: 1,
            decoder_layers: 3,
            ..dropouts
        },
    ]
}

fn model(config: &ModelConfig) -> Transformer {
    let model = Transformer::new(config, VOCABULARY, &Device::Cpu).unwrap();
    model.initialise(3).unwrap();
    let mut stream = Stream::new(5, "test");
    let values: Vec<f32> = model.parameters().values().to_vec1().unwrap();
    let values: Vec<f32> = values.iter().map(|v| v + 0.05 * stream.normal() as f32).collect();
    let tensor = Tensor::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap();
    model.parameters().values().slice_set(&tensor, 0, 0).unwrap();
    model
}

/// A batch whose sentences are of one tile and of several.
fn batch() -> (Sequences, Sequences, Targets) {
    let (source, target) =
        (random_sequences(&[37, 3, 1, 20], V, "source"), random_sequences(&[5, 45, 1, 33], V, "target"));
    let labels = random_sequences(&target.lengths, V, "labels").ids;
    (source, target, Targets { labels, padding: 0, smoothing: 0.1 })
}

/// Smoothed loss, likelihood and gradients of a pass on the processor.
fn want(model: &Transformer, mode: &Mode) -> (f64, f64, Vec<f32>) {
    let (source, target, targets) = batch();
    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, mode).unwrap();
    if mode.is_training() {
        loss.backward().unwrap();
    }
    (sums.smoothed, sums.likelihood, model.parameters().gradients().to_vec1().unwrap())
}

/// The same by the engine.
fn got(model: &Transformer, mode: &Mode, compute: DType) -> (f64, f64, Vec<f32>) {
    let (source, target, targets) = batch();
    let mut engine = Engine::new(model, Emulator::new(), compute).unwrap();
    engine.begin().unwrap();
    engine.pass(&source, &target, &targets, mode).unwrap();
    let sums = engine.sums().unwrap();
    (sums.smoothed, sums.likelihood, model.parameters().gradients().to_vec1().unwrap())
}

const TRAINING: Mode = Mode { training: Some(11), implementation: Implementation::Fused };

#[test]
fn loss_and_gradients_are_the_processor_s() {
    for (number, config) in configs().into_iter().enumerate() {
        let model = model(&config);
        let (want, got) = (want(&model, &TRAINING), got(&model, &TRAINING, DType::F32));
        assert!((got.0 - want.0).abs() < 1e-5 * want.0, "config {number}: {}, not {}", got.0, want.0);
        assert!((got.1 - want.1).abs() < 1e-5 * want.1, "config {number}: {}, not {}", got.1, want.1);
        for entry in model.parameters().entries() {
            let (got, want) = (&got.2[entry.range()], &want.2[entry.range()]);
            if is_idle(&entry.name, &config) {
                assert!(got.iter().all(|v| v.abs() < 5e-5), "config {number}: {}", entry.name);
                continue;
            }
            let error = relative_error(got, want);
            assert!(error < 1e-4, "config {number}: {}: {error}", entry.name);
        }
    }
}

/// bf16 has eight significant bits, and activations are rounded as well as factors: the whole gradient points where that of
/// float32 does.
#[test]
fn bf16_follows_f32() {
    for (number, config) in configs().into_iter().enumerate() {
        let model = model(&config);
        let (want, got) = (want(&model, &TRAINING), got(&model, &TRAINING, DType::BF16));
        assert!((got.0 - want.0).abs() < 1e-2 * want.0, "config {number}: {}, not {}", got.0, want.0);
        assert!(got.0 != want.0, "config {number}: products were not in bf16");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(&got.2, &want.2) / (dot(&got.2, &got.2) * dot(&want.2, &want.2)).sqrt();
        println!("config {number}: loss {} {} cosine {cosine}", got.0, want.0);
        assert!(cosine > 0.995, "config {number}: cosine {cosine}");
        for entry in model.parameters().entries() {
            let (got, want) = (&got.2[entry.range()], &want.2[entry.range()]);
            if !is_idle(&entry.name, &config) {
                let cosine = dot(got, want) / (dot(got, got) * dot(want, want)).sqrt();
                println!("  {} {cosine}", entry.name);
            }
        }
    }
}
