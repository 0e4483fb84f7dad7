//! What runs on other devices: plain operations, the optimizer, decoding over tensors, bf16. `MT_TEST_DEVICE` names the
//! device (cuda, cuda:1, metal); if unset, the same plain operations run on the processor. Everything is compared with
//! the processor's fused kernels.

mod common;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use common::{assert_same_gradients, every_option, random_sequences, relative_error, reversals, small_model, special};
use mt::data::batch::{Batch, SpecialIds};
use mt::decode::neural::Neural;
use mt::decode::{Hypothesis, LengthPenalty, PenaltyKind, SearchOptions, search};
use mt::model::{ModelConfig, Sequences, Transformer, Vocabulary};
use mt::ops::loss::Targets;
use mt::ops::{Implementation, Mode};
use mt::rng::{Stream, key};
use mt::train::optimizer::Optimizer;
use mt::train::{OptimizerConfig, ScheduleConfig, inputs, schedule};

const V: usize = 61;
const VOCABULARY: Vocabulary = Vocabulary { source: V, target: V, source_padding: 0, target_padding: 0 };

fn device() -> Device {
    let name = std::env::var("MT_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let device = mt::device::open(&name).unwrap_or_else(|error| panic!("{error}"));
    assert!(name.starts_with("cpu") == device.is_cpu(), "{name} is not what was opened");
    device
}

/// The same model on the processor and on the device.
fn pair(config: &ModelConfig, compute: DType) -> (Transformer, Transformer) {
    let here = Transformer::new(config, VOCABULARY, &Device::Cpu).unwrap();
    here.initialise(3).unwrap();
    let mut stream = Stream::new(5, "test");
    let values: Vec<f32> = here.parameters().values().to_vec1().unwrap();
    let values: Vec<f32> = values.iter().map(|v| v + 0.05 * stream.normal() as f32).collect();
    let there = Transformer::with_precision(config, VOCABULARY, &device(), compute).unwrap();
    for model in [&here, &there] {
        let parameters = model.parameters();
        let tensor = Tensor::from_vec(values.clone(), values.len(), parameters.device()).unwrap();
        parameters.values().slice_set(&tensor, 0, 0).unwrap();
    }
    (here, there)
}

fn sequences(lengths: &[u32], name: &str) -> Sequences {
    random_sequences(lengths, V, name)
}

/// Loss and gradients of one training pass.
fn pass(model: &Transformer, implementation: Implementation) -> (f64, Vec<f32>) {
    let (source, target) = (sequences(&[7, 3, 1, 5], "source"), sequences(&[2, 6, 1, 4], "target"));
    let targets =
        Targets { labels: sequences(&target.lengths, "labels").ids, padding: 0, smoothing: 0.1, ..Targets::default() };
    model.parameters().clear_gradients().unwrap();
    let mode = Mode { training: Some(11), implementation };
    let (loss, sums) = model.loss(&source, &target, &targets, &mode).unwrap();
    loss.backward().unwrap();
    (sums.smoothed, model.parameters().gradients().to_vec1().unwrap())
}

#[test]
fn loss_and_gradients_are_the_processor_s() {
    for config in every_option() {
        let (here, there) = pair(&config, DType::F32);
        let (want_loss, want) = pass(&here, Implementation::Fused);
        let (loss, got) = pass(&there, Implementation::Reference);
        assert!((loss - want_loss).abs() < 1e-4 * want_loss, "{loss}, not {want_loss}");
        assert_same_gradients(&here, &got, &want, "reference");
    }
}

/// bf16 has eight significant bits, so operands are off by up to 4e-3. The gradient still points the same way as that
/// of f32 (measured cosines: 0.9987 to 0.99997), and master weights and gradients stay f32.
#[test]
fn bf16_products_follow_f32() {
    for config in every_option() {
        let (here, there) = pair(&config, DType::BF16);
        let (want_loss, want) = pass(&here, Implementation::Fused);
        let (loss, got) = pass(&there, Implementation::Reference);
        assert_eq!(there.parameters().values().dtype(), DType::F32);
        assert!((loss - want_loss).abs() < 1e-2 * want_loss, "{loss}, not {want_loss}");
        assert!(loss != want_loss, "products were not in bf16");
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = dot(&got, &want) / (dot(&got, &got) * dot(&want, &want)).sqrt();
        assert!(cosine > 0.995, "cosine {cosine}");
    }
}

#[test]
fn the_optimizer_moves_parameters_alike() {
    let config = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.1 };
    let (here, there) = pair(&small_model(), DType::F32);
    let run = |model: &Transformer| {
        let mut optimizer = Optimizer::new(&config, model.parameters(), 0.9).unwrap();
        let mut stream = Stream::new(2, "gradients");
        let count = model.parameters().values().elem_count();
        for update in 1..=3 {
            let gradients: Vec<f32> = (0..count).map(|_| stream.normal() as f32).collect();
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            let norm = mt::ops::optimizer::norm(model.parameters().gradients()).unwrap();
            assert!((norm - (count as f64).sqrt()).abs() < 0.05 * norm);
            optimizer.step(update, 1e-3, 0.5).unwrap();
        }
        let values: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        let average: Vec<f32> = optimizer.average().unwrap().to_vec1().unwrap();
        (values, average)
    };
    let (want, got) = (run(&here), run(&there));
    assert!(relative_error(&got.0, &want.0) < 1e-6 && relative_error(&got.1, &want.1) < 1e-6);
}

fn translate(
    model: &Transformer,
    implementation: Implementation,
    source: &Sequences,
    beam: usize,
) -> Vec<Vec<Hypothesis>> {
    let neural = match implementation {
        Implementation::Fused => Neural::new(model, special()).unwrap(),
        Implementation::Reference => Neural::plain(model, special()).unwrap(),
    };
    let rows = source.ids.chunks_exact(source.length).zip(source.lengths.iter());
    let sources: Vec<&[u32]> = rows.map(|(row, &length)| &row[..length as usize]).collect();
    let mut step = neural.begin(&sources).unwrap();
    let max_lengths = source.lengths.iter().map(|&length| length as usize + 10);
    let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
    search(&mut step, &SearchOptions::beam(beam, penalty, max_lengths)).unwrap()
}

#[test]
fn decoding_is_the_processor_s() {
    let lengths: Vec<u32> = (0..23).map(|i| 1 + i % 9).collect();
    let source = sequences(&lengths, "source");
    for config in every_option() {
        let (here, there) = pair(&config, DType::F32);
        for beam in [1, 4] {
            let want = translate(&here, Implementation::Fused, &source, beam);
            let got = translate(&there, Implementation::Reference, &source, beam);
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got[0].tokens, want[0].tokens);
                assert!((got[0].log_prob - want[0].log_prob).abs() < 1e-3);
            }
        }
    }
}

#[test]
fn attention_weights_are_the_processor_s() {
    let (here, there) = pair(&small_model(), DType::F32);
    let (source, target) = (sequences(&[7, 3], "source"), sequences(&[2, 6], "target"));
    let run = |model: &Transformer, implementation| {
        let mode = Mode { training: None, implementation };
        let (memory, encoder) = model.encode_with_attention(&source, &mode).unwrap();
        let (_, decoder) = model.decode_with_attention(&memory, &target, &mode).unwrap();
        [encoder, decoder.masked, decoder.cross].concat()
    };
    let (want, got) = (run(&here, Implementation::Fused), run(&there, Implementation::Reference));
    assert_eq!(want.len(), 6);
    for (got, want) in got.iter().zip(&want) {
        let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(relative_error(&flat(got), &flat(want)) < 1e-5);
    }
}

/// A small model learns to reverse sequences of two to five symbols.
fn learns_to_reverse(compute: DType) {
    const IDS: SpecialIds =
        SpecialIds { pad_source: 0, eos_source: 2, pad_target: 0, bos_target: 1, eos_target: 2, language_last: false };
    let vocabulary = Vocabulary { source: 10, target: 10, source_padding: 0, target_padding: 0 };
    let config = ModelConfig { d_model: 48, d_ff: 96, d_k: 12, d_v: 12, dropout: 0.05, ..small_model() };
    let model = Transformer::with_precision(&config, vocabulary, &device(), compute).unwrap();
    model.initialise(17).unwrap();
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
    let rates = ScheduleConfig::InverseSqrt { learning_rate: 4e-3, warmup: 60, initial: 0.0 };
    let mut stream = Stream::new(17, "reverse");
    for step in 1..=350 {
        let batch = Batch::new(&reversals(48, 6, 5, &mut stream), &IDS);
        let (source, target, targets) = inputs(&batch, &Targets { smoothing: 0.1, ..Targets::default() });
        model.parameters().clear_gradients().unwrap();
        let mode = Mode { training: Some(key(17, "dropout", &[step])), implementation: Implementation::Reference };
        let (loss, _) = model.loss(&source, &target, &targets, &mode).unwrap();
        loss.backward().unwrap();
        let rate = schedule::learning_rate(&rates, config.d_model, step, 0);
        optimizer.step(step, rate, 1.0 / batch.target_tokens as f64).unwrap();
    }
    let pairs = reversals(200, 6, 5, &mut stream);
    let sources: Vec<&[u32]> = pairs.iter().map(|(s, _)| s.as_slice()).collect();
    let batch = Batch::source_only(&sources, &IDS);
    let source = Sequences { ids: batch.source, lengths: Arc::new(batch.source_lengths), length: batch.source_length };
    let found = translate(&model, Implementation::Reference, &source, 1);
    let right = found.iter().zip(&pairs).filter(|(found, (_, target))| &found[0].tokens == target).count();
    assert!(right >= 180, "{compute:?}: {right} of 200 reversed");
}

#[test]
fn learns_to_reverse_in_f32() {
    learns_to_reverse(DType::F32);
}

#[test]
fn learns_to_reverse_with_bf16_products() {
    learns_to_reverse(DType::BF16);
}
