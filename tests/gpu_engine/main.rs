//! The GPU engine and its kernels, compared with the processor's fused kernels: on the device that `MT_TEST_DEVICE`
//! names (cuda, cuda:1), else on the emulator.

mod attention;
mod comet;
#[path = "../common/mod.rs"]
mod common;
mod decoding;
mod loss;
mod norm;
mod product;
mod product_norm;
mod ranks;

use std::sync::Arc;

use attention::attend;
use candle_core::{DType, Device, Tensor};
use common::emulator::{Emulator, device, on_emulator};
use common::{
    assert_same_gradients, every_option, is_idle, odd_sizes, random_sequences, relative_error, small_model, special,
    wide_heads, with_dropouts,
};
use mt::decode::neural::Neural;
use mt::decode::{LengthPenalty, PenaltyKind, SearchOptions, search};
use mt::error::Result;
use mt::gpu::Engine;
use mt::gpu::decode::InferenceEngine;
use mt::gpu::queue::{Number, Queue};
use mt::model::pooling::{Mixture, Pooling};
use mt::model::{Activation, ModelConfig, Sequences, Transformer, Vocabulary};
use mt::ops::loss::Targets;
use mt::ops::low_rank::add_row;
use mt::ops::optimizer::Counts;
use mt::ops::sublayer::NormPlacement;
use mt::ops::{Implementation, Mode};
use mt::rng::Stream;
use mt::train::backend::{Backend, OnGpu, Tape};
use mt::train::optimizer::Optimizer;
use mt::train::{LowRankConfig, OptimizerConfig};

/// Not a multiple of eight, like the vocabularies of small corpora.
const V: usize = 61;
const VOCABULARY: Vocabulary = Vocabulary { source: V, target: V, source_padding: 0, target_padding: 0 };

fn model(config: &ModelConfig, on: &Device) -> Transformer {
    let model = Transformer::new(config, VOCABULARY, on).unwrap();
    model.initialise(3).unwrap();
    let mut stream = Stream::new(5, "test");
    let values: Vec<f32> = model.parameters().values().to_vec1().unwrap();
    let values: Vec<f32> = values.iter().map(|v| v + 0.05 * stream.normal() as f32).collect();
    let count = values.len();
    model.parameters().values().slice_set(&Tensor::from_vec(values, count, on).unwrap(), 0, 0).unwrap();
    model
}

/// A model on the device, and the engine that trains it.
fn engine(config: &ModelConfig, compute: DType) -> (Transformer, Engine) {
    let (device, queue) = device();
    let model = model(config, &device);
    let engine = Engine::new(&model, queue, compute).unwrap();
    (model, engine)
}

/// A batch of weighted pairs with sentences of one tile and of several; one repeats the same token.
fn batch() -> (Sequences, Sequences, Targets) {
    let (mut source, target) =
        (random_sequences(&[37, 3, 1, 20], V, "source"), random_sequences(&[5, 45, 1, 33], V, "target"));
    // A token with more rows than the threads of its gradient process at once.
    source.ids[..37].fill(9);
    let labels = random_sequences(&target.lengths, V, "labels").ids;
    let weights = [0.5f32, 1.0, 0.0, 3.0].into_iter().flat_map(|weight| vec![weight; target.length]).collect();
    (source, target, Targets { labels, smoothing: 0.1, weights, ..Targets::default() })
}

/// Smoothed loss, negative log-likelihood and gradients of a pass on the processor.
fn want(config: &ModelConfig, mode: &Mode) -> (f64, f64, Vec<f32>) {
    let model = model(config, &Device::Cpu);
    let (source, target, targets) = batch();
    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, mode).unwrap();
    if mode.is_training() {
        loss.backward().unwrap();
    }
    (sums.smoothed, sums.nll, model.parameters().gradients().to_vec1().unwrap())
}

/// The same by the engine.
fn got(config: &ModelConfig, mode: &Mode, compute: DType) -> (f64, f64, Vec<f32>) {
    let (model, engine) = engine(config, compute);
    run(&model, engine, mode)
}

fn run(model: &Transformer, mut engine: Engine, mode: &Mode) -> (f64, f64, Vec<f32>) {
    let (source, target, targets) = batch();
    engine.begin().unwrap();
    engine.pass(&source, &target, &targets, mode).unwrap();
    let sums = engine.sums().unwrap();
    (sums.smoothed, sums.nll, model.parameters().gradients().to_vec1().unwrap())
}

/// ‖a − b‖ / ‖b‖.
fn error_by_norm(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (difference / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

const TRAINING: Mode = Mode { training: Some(11), implementation: Implementation::Fused };

#[test]
fn loss_and_gradients_are_the_processor_s() {
    // Deep enough for more column sums than one kernel adds up.
    let deep = ModelConfig { decoder_layers: 8, norm: NormPlacement::Pre, ..small_model() };
    // Rows of embeddings wider than one warp reads at a time, eight numbers a thread, and one.
    let flat = ModelConfig { encoder_layers: 1, decoder_layers: 1, ..with_dropouts() };
    let wide = ModelConfig { d_model: 264, d_ff: 16, ..flat.clone() };
    let narrow = ModelConfig { d_model: 40, d_ff: 37, ..flat };
    for (number, config) in every_option().into_iter().chain([deep, wide, narrow]).enumerate() {
        let (want, got) = (want(&config, &TRAINING), got(&config, &TRAINING, DType::F32));
        assert!((got.0 - want.0).abs() < 1e-5 * want.0, "config {number}: {}, not {}", got.0, want.0);
        assert!((got.1 - want.1).abs() < 1e-5 * want.1, "config {number}: {}, not {}", got.1, want.1);
        assert_same_gradients(&model(&config, &Device::Cpu), &got.2, &want.2, &format!("config {number}"));
    }
}

/// [`batch`] as R-Drop has it.
fn batch_twice() -> (Sequences, Sequences, Targets) {
    let (source, target, targets) = batch();
    let twice = |side: Sequences| Sequences { ids: side.ids.repeat(2), lengths: side.lengths.repeat(2).into(), ..side };
    let (labels, weights) = (targets.labels.repeat(2), targets.weights.repeat(2));
    (twice(source), twice(target), Targets { labels, weights, r_drop: 5.0, ..targets })
}

#[test]
fn r_drop_is_the_processor_s() {
    for config in [with_dropouts(), odd_sizes()] {
        let on_processor = model(&config, &Device::Cpu);
        let (source, target, targets) = batch_twice();
        on_processor.parameters().clear_gradients().unwrap();
        let (loss, want) = on_processor.loss(&source, &target, &targets, &TRAINING).unwrap();
        loss.backward().unwrap();
        let gradients: Vec<f32> = on_processor.parameters().gradients().to_vec1().unwrap();
        let pass = |compute| {
            let (model, mut engine) = engine(&config, compute);
            engine.begin().unwrap();
            engine.pass(&source, &target, &targets, &TRAINING).unwrap();
            (engine.sums().unwrap(), model.parameters().gradients().to_vec1::<f32>().unwrap())
        };
        let (sums, got) = pass(DType::F32);
        assert!((sums.smoothed - want.smoothed).abs() < 1e-5 * want.smoothed, "{sums:?}, not {want:?}");
        assert!((sums.nll - want.nll).abs() < 1e-5 * want.nll);
        assert_same_gradients(&on_processor, &got, &gradients, "R-Drop");
        let (sums, got) = pass(DType::BF16);
        assert!((sums.smoothed - want.smoothed).abs() < 1e-2 * want.smoothed, "{sums:?}, not {want:?}");
        assert!(error_by_norm(&got, &gradients) < 0.1);
        // The divergences are part of it.
        let once = on_processor.loss(&source, &target, &Targets { r_drop: 0.0, ..targets.clone() }, &TRAINING).unwrap();
        assert!(want.smoothed > 0.51 * once.1.smoothed && (want.nll / once.1.nll - 0.5).abs() < 1e-6);
    }
}

#[test]
fn passes_of_r_drop_must_have_the_same_targets() {
    let (_, mut engine) = engine(&small_model(), DType::F32);
    let (source, mut target, targets) = batch_twice();
    let mut other = targets.clone();
    other.labels[0] += 1;
    engine.begin().unwrap();
    let error = engine.pass(&source, &target, &other, &TRAINING).unwrap_err();
    assert!(error.to_string().contains("R-Drop"), "{error}");
    let mut lengths = target.lengths.to_vec();
    lengths[0] -= 1;
    target.lengths = lengths.into();
    assert!(engine.pass(&source, &target, &targets, &TRAINING).is_err());
}

/// bf16 has eight significant bits, and activations are rounded as well as factors: the gradient still points the same
/// way as that of float32 (measured cosines: 0.9988 to 0.99997, and 0.990 for the worst single parameter), whoever
/// computes the products. Where relu is a gate, whole terms come and go with the sign of a number near 0: there, the
/// worst parameter has 0.976, and Candle's operations in bf16 differ more.
#[test]
fn bf16_follows_f32() {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |a: &[f32], b: &[f32]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    // Without dropout, pre-norm: where the gradient of the stream is the sub-layer's own.
    let plain = ModelConfig { norm: NormPlacement::Pre, ..small_model() };
    assert!(plain.dropout == 0.0);
    for (number, config) in every_option().into_iter().chain([plain]).enumerate() {
        let want = want(&config, &TRAINING);
        let (model, mut with_library) = engine(&config, DType::BF16);
        with_library.use_library();
        let with_library = run(&model, with_library, &TRAINING);
        for got in [got(&config, &TRAINING, DType::BF16), with_library] {
            assert!((got.0 - want.0).abs() < 1e-2 * want.0, "config {number}: {}, not {}", got.0, want.0);
            assert!(got.0 != want.0, "config {number}: products were not in bf16");
            assert!(cosine(&got.2, &want.2) > 0.995, "config {number}: cosine {}", cosine(&got.2, &want.2));
            for entry in model.parameters().entries() {
                let cosine = cosine(&got.2[entry.range()], &want.2[entry.range()]);
                let bound = if config.gated && config.activation == Activation::Relu { 0.97 } else { 0.98 };
                assert!(is_idle(&entry.name, &config) || cosine > bound, "config {number}: {}: {cosine}", entry.name);
            }
        }
    }
}

#[test]
fn evaluation_is_the_processor_s() {
    for config in [with_dropouts(), odd_sizes()] {
        let (want, got) = (want(&config, &Mode::INFERENCE), got(&config, &Mode::INFERENCE, DType::F32));
        assert!((got.0 - want.0).abs() < 1e-5 * want.0 && (got.1 - want.1).abs() < 1e-5 * want.1);
        assert!(got.2.iter().all(|&g| g == 0.0));
    }
}

/// Micro-batches add up, though each reuses the memory of the one before; and the same update gives the same bits.
#[test]
fn passes_accumulate_and_repeat() {
    let (model, mut engine) = engine(&with_dropouts(), DType::BF16);
    let batches = [batch(), {
        let (source, target) = (random_sequences(&[4, 9], V, "more"), random_sequences(&[8, 2], V, "more targets"));
        let labels = random_sequences(&[8, 2], V, "more labels").ids;
        (source, target, Targets { labels, padding: 0, smoothing: 0.1, ..Targets::default() })
    }];
    let mut update = |which: &[usize]| {
        engine.begin().unwrap();
        for &i in which {
            let (source, target, targets) = &batches[i];
            engine.pass(source, target, targets, &Mode::training(i as u64)).unwrap();
        }
        let gradients: Vec<f32> = model.parameters().gradients().to_vec1().unwrap();
        (engine.sums().unwrap(), gradients)
    };
    let (first, second, both) = (update(&[0]), update(&[1]), update(&[0, 1]));
    assert!((both.0.smoothed - first.0.smoothed - second.0.smoothed).abs() < 1e-9 * both.0.smoothed);
    let sum: Vec<f32> = first.1.iter().zip(&second.1).map(|(a, b)| a + b).collect();
    assert!(relative_error(&both.1, &sum) < 1e-6);
    assert!(first.1 != second.1);
    assert_eq!(update(&[0, 1]), both);
}

#[test]
fn the_optimizer_moves_parameters_alike() {
    let config = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.1 };
    let run = |on_device: bool| {
        let (model, mut backend): (_, Box<dyn Backend>) = if on_device {
            let (model, engine) = engine(&small_model(), DType::F32);
            (model, Box::new(OnGpu::new(engine)))
        } else {
            let model = model(&small_model(), &Device::Cpu);
            (model.clone(), Box::new(Tape::new(&model)))
        };
        let freeze = ["decoder.layers.0".to_owned(), "source_embedding".to_owned()];
        let mut optimizer = Optimizer::new(&config, model.parameters(), 0.9).unwrap().training(&freeze, None).unwrap();
        let before: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        let mut stream = Stream::new(2, "gradients");
        let count = model.parameters().values().elem_count();
        let mut outcomes = Vec::new();
        for update in 1..=3 {
            let gradients: Vec<f32> = (0..count).map(|_| stream.normal() as f32).collect();
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            backend.begin().unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            backend.clear_gradients(optimizer.frozen()).unwrap();
            // The first update is not clipped.
            backend.reduce(Counts { tokens: 2, ..Counts::default() }).unwrap();
            backend.decide(if update == 1 { 1e9 } else { 10.0 }).unwrap();
            optimizer.step_with(&mut *backend, update, 1e-3).unwrap();
            outcomes.push(backend.outcome().unwrap());
        }
        let average: Vec<f32> = optimizer.average().unwrap().to_vec1().unwrap();
        let values: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        assert!(optimizer.frozen().len() == 2 && optimizer.trained_count() < count);
        for (i, (now, before)) in values.iter().zip(&before).enumerate() {
            assert_eq!(now == before, optimizer.frozen().iter().any(|range| range.contains(&i)), "{i}");
        }
        (outcomes, values, average)
    };
    let (want, got) = (run(false), run(true));
    for (got, want) in got.0.iter().zip(&want.0) {
        assert!(want.is_made && want.gradient_norm > 10.0 && got.is_made && got.sums == want.sums);
        assert!((got.gradient_norm - want.gradient_norm).abs() < 1e-9 * want.gradient_norm);
    }
    assert!(relative_error(&got.1, &want.1) < 1e-6 && relative_error(&got.2, &want.2) < 1e-6);
}

/// A model with odd sizes, so that factors lie at odd places, and another part of it that is trained whole.
#[test]
fn factors_of_low_rank_move_their_matrices_alike() {
    let config = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.1 };
    let low_rank =
        LowRankConfig { rank: 3, alpha: 4.0, also: vec!["encoder.norm".to_owned()], ..LowRankConfig::default() };
    let shape = ModelConfig { final_norm: true, ..odd_sizes() };
    let run = |on_device: bool| {
        let (model, mut backend): (_, Box<dyn Backend>) = if on_device {
            let (model, engine) = engine(&shape, DType::F32);
            (model, Box::new(OnGpu::new(engine)))
        } else {
            let model = model(&shape, &Device::Cpu);
            (model.clone(), Box::new(Tape::new(&model)))
        };
        let freeze = ["decoder.layers.0".to_owned()];
        let optimizer = Optimizer::new(&config, model.parameters(), 0.0).unwrap();
        let mut optimizer = optimizer.training(&freeze, Some(&low_rank)).unwrap();
        optimizer.begin(1).unwrap();
        let mut stream = Stream::new(2, "gradients");
        let count = model.parameters().values().elem_count();
        let mut outcomes = Vec::new();
        for update in 1..=4 {
            let mut gradients: Vec<f32> = (0..count).map(|_| stream.normal() as f32).collect();
            if update == 4 {
                gradients[optimizer.low_rank().unwrap().matrices()[0].values.start] = f32::NAN;
            }
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            backend.begin().unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            backend.clear_gradients(optimizer.frozen()).unwrap();
            backend.reduce(Counts { tokens: 2, ..Counts::default() }).unwrap();
            backend.factor_gradients(optimizer.low_rank().unwrap()).unwrap();
            backend.decide(10.0).unwrap();
            optimizer.step_with(&mut *backend, update, 1e-2).unwrap();
            outcomes.push(backend.outcome().unwrap());
        }
        let low_rank = optimizer.low_rank().unwrap();
        let tensors = [model.parameters().values(), low_rank.factors(), low_rank.base()];
        let [values, factors, base] = tensors.map(|tensor| tensor.to_vec1::<f32>().unwrap());
        // The same bits as a checkpoint that is read.
        for matrix in low_rank.matrices() {
            let (rank, columns) = (low_rank.rank(), matrix.columns);
            let (a, b) = factors[matrix.factors.clone()].split_at(matrix.split(rank));
            let mut merged = base[matrix.base.clone()].to_vec();
            for (row, b) in merged.chunks_mut(columns).zip(b.chunks(rank)) {
                add_row(row, b, a, columns, 0, low_rank.scale());
            }
            assert!(merged == values[matrix.values.clone()] && merged != base[matrix.base.clone()]);
        }
        assert!(optimizer.trained().count() > 0);
        (outcomes, values, factors)
    };
    let (want, got) = (run(false), run(true));
    for (update, (got, want)) in (1..).zip(got.0.iter().zip(&want.0)) {
        assert_eq!([got.is_made, want.is_made], [update < 4; 2], "{update}");
        if want.is_made {
            assert!(want.gradient_norm > 10.0);
            assert!((got.gradient_norm - want.gradient_norm).abs() < 1e-6 * want.gradient_norm);
        }
    }
    assert!(relative_error(&got.1, &want.1) < 1e-6 && relative_error(&got.2, &want.2) < 1e-5);
}

/// An update, and a translation with a beam.
fn update_and_translate(queue: Emulator, config: &ModelConfig, compute: DType) -> Result<()> {
    let queue: Arc<dyn Queue> = Arc::new(queue);
    let model = model(config, &Device::Cpu);
    let mut engine = OnGpu::new(Engine::new(&model, queue.clone(), compute)?);
    let decay = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.1 };
    let twice = (batch_twice(), Some(LowRankConfig::default()));
    for ((source, target, targets), low_rank) in [(batch(), None), twice] {
        let mut optimizer = Optimizer::new(&decay, model.parameters(), 0.9)?.training(&[], low_rank.as_ref())?;
        engine.begin()?;
        engine.pass(&source, &target, &targets, &TRAINING)?;
        engine.reduce(Counts { tokens: 100, ..Counts::default() })?;
        if let Some(low_rank) = optimizer.low_rank() {
            engine.factor_gradients(low_rank)?;
        }
        engine.decide(1.0)?;
        optimizer.step_with(&mut engine, 1, 1e-3)?;
        assert!(engine.outcome()?.is_made);
    }
    let engine = InferenceEngine::new(&model, queue, compute)?;
    let mixture = Mixture { weights: vec![0.5, 0.25, 0.125], is_normalised: true, pooling: Pooling::Max };
    engine.vectors(&batch().0, &mixture)?;
    let neural = Neural::on_device(&model, engine, special());
    let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
    let sources: [&[u32]; 3] = [&[5, 6, 7, 8, 9, 4, 2], &[9, 8, 2], &[2]];
    search(&mut neural.begin(&sources)?, &SearchOptions::beam(3, penalty, vec![4; 3]))?;
    Ok(())
}

/// Training and decoding touch no memory but what they allocated, and none that was freed.
#[test]
fn kernels_stay_in_their_memory() {
    if !on_emulator("kernels_stay_in_their_memory") {
        return;
    }
    let options = every_option();
    let (wide, narrow) = (with_dropouts(), odd_sizes());
    let all = options.iter().map(|config| (config, DType::BF16));
    // The float32 ones run the kernels with wide accesses and those with narrow ones.
    for (config, compute) in all.chain([(&wide, DType::F32), (&narrow, DType::F32)]) {
        update_and_translate(Emulator::guarded(), config, compute).unwrap();
    }
}

/// No two threads access the same number, one of them writing, without a barrier between them.
#[test]
fn threads_of_a_kernel_do_not_race() {
    if !on_emulator("threads_of_a_kernel_do_not_race") {
        return;
    }
    for (config, compute) in [(wide_heads(), DType::BF16), (odd_sizes(), DType::F32)] {
        update_and_translate(Emulator::that_sees_races(true), &config, compute).unwrap();
    }
    // The detector works: it finds races if barriers are ignored.
    let error = update_and_translate(Emulator::that_sees_races(false), &small_model(), DType::BF16).unwrap_err();
    assert!(error.to_string().contains("a race"), "{error}");
}

fn no_kernel_races(compute: DType) {
    for config in every_option() {
        update_and_translate(Emulator::that_sees_races(true), &config, compute).unwrap();
    }
}

#[test]
#[ignore = "some minutes"]
fn threads_of_no_kernel_race_in_float32() {
    no_kernel_races(DType::F32);
}

#[test]
#[ignore = "some minutes"]
fn threads_of_no_kernel_race_in_bfloat16() {
    no_kernel_races(DType::BF16);
}

#[test]
#[ignore = "some minutes"]
fn threads_of_no_attention_race() {
    for d in [16, 32, 64, 128] {
        let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
        attend(&queue, Number::Bf16, [&[1, 17, 70], &[5, 31, 64]], d, false, 0.1, false);
        attend(&queue, Number::Bf16, [&[1, 17, 70]; 2], d, true, 0.1, true);
    }
    for (d, causal) in [(6, false), (64, true), (100, false), (136, false), (512, true)] {
        let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
        let keys = if causal { [1, 17, 70] } else { [5, 31, 64] };
        attend(&queue, Number::F32, [&[1, 17, 70], &keys], d, causal, 0.1, causal);
    }
}

/// An update whose gradient is not finite changes nothing, nor do those queued after it, until they are forgotten; then
/// training goes on as if it had never been.
#[test]
fn updates_behind_one_that_is_not_finite_wait() {
    let run = |poisoned: &[usize]| {
        let (model, engine) = engine(&small_model(), DType::F32);
        let mut engine = OnGpu::new(engine);
        let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.9).unwrap();
        let count = model.parameters().values().elem_count();
        let state = |optimizer: &Optimizer| -> Vec<Vec<f32>> {
            let tensors = optimizer.tensors().into_iter().map(|(_, tensor)| tensor);
            tensors.chain([model.parameters().values()]).map(|tensor| tensor.to_vec1().unwrap()).collect()
        };
        let queue = |engine: &mut OnGpu, optimizer: &mut Optimizer, number: usize| {
            let mut gradients: Vec<f32> = (0..count).map(|i| ((i * number) as f32).sin()).collect();
            if poisoned.contains(&number) {
                gradients[count / 2] = f32::NAN;
            }
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            engine.begin().unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            engine.reduce(Counts { tokens: 1, ..Counts::default() }).unwrap();
            engine.decide(0.0).unwrap();
            optimizer.step_with(engine, 1, 1e-3).unwrap();
        };
        let mut is_made = Vec::new();
        queue(&mut engine, &mut optimizer, 1);
        if poisoned.contains(&2) {
            queue(&mut engine, &mut optimizer, 2);
            is_made.push(engine.outcome().unwrap().is_made);
            let before = state(&optimizer);
            queue(&mut engine, &mut optimizer, 3);
            is_made.push(engine.outcome().unwrap().is_made);
            assert_eq!(state(&optimizer), before);
            engine.forget().unwrap();
        }
        queue(&mut engine, &mut optimizer, 3);
        let outcome = |engine: &mut OnGpu| engine.outcome().unwrap().is_made;
        while is_made.iter().filter(|&&made| made).count() < 2 {
            is_made.push(outcome(&mut engine));
        }
        (is_made, state(&optimizer))
    };
    let (never, with) = (run(&[]), run(&[2]));
    assert_eq!((never.0, with.0), (vec![true, true], vec![true, false, true]));
    assert_eq!(never.1, with.1);
}

/// A single number that is not finite is noticed, wherever it is.
#[test]
fn numbers_that_are_not_finite_are_seen() {
    let (model, engine) = engine(&small_model(), DType::F32);
    let mut engine = OnGpu::new(engine);
    let optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.9).unwrap();
    assert!(optimizer.is_finite(&mut engine).unwrap());
    let device = model.parameters().device();
    let one = |value: f32| Tensor::new(&[value], device).unwrap();
    let values = model.parameters().values();
    values.slice_set(&one(f32::MAX), 0, 3).unwrap();
    assert!(optimizer.is_finite(&mut engine).unwrap());
    let tensors = optimizer.tensors();
    for (tensor, value) in tensors.iter().map(|(_, tensor)| *tensor).zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
        let last = tensor.elem_count() - 1;
        let before = tensor.narrow(0, last, 1).unwrap().copy().unwrap();
        tensor.slice_set(&one(value), 0, last).unwrap();
        assert!(!optimizer.is_finite(&mut engine).unwrap());
        tensor.slice_set(&before, 0, last).unwrap();
        assert!(optimizer.is_finite(&mut engine).unwrap());
    }
}

/// Logits take most of this model's memory: if those of all rows do not fit, computing them in parts gives the same.
#[test]
fn logits_that_do_not_fit_are_computed_in_parts() {
    if !on_emulator("logits_that_do_not_fit_are_computed_in_parts") {
        return;
    }
    const MANY: usize = 2048;
    let lengths = [30; 40];
    let (source, target) = (random_sequences(&lengths, MANY, "source"), random_sequences(&lengths, MANY, "target"));
    let targets = Targets {
        labels: random_sequences(&lengths, MANY, "labels").ids,
        padding: 0,
        smoothing: 0.1,
        ..Targets::default()
    };
    let logits = 4 * MANY * target.ids.len();
    let pass = |bytes: usize| {
        let vocabulary = Vocabulary { source: MANY, target: MANY, ..VOCABULARY };
        let config = ModelConfig { encoder_layers: 1, decoder_layers: 1, ..small_model() };
        let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
        model.initialise(3).unwrap();
        let mut engine = Engine::new(&model, Arc::new(Emulator::with_memory(bytes)), DType::F32).unwrap();
        engine.begin().unwrap();
        engine.pass(&source, &target, &targets, &Mode::training(1)).unwrap();
        let gradients: Vec<f32> = model.parameters().gradients().to_vec1().unwrap();
        (engine.sums().unwrap().smoothed, gradients)
    };
    let (want, got) = (pass(1 << 30), pass(logits));
    assert!((got.0 - want.0).abs() < 1e-9 * want.0, "{}, not {}", got.0, want.0);
    assert!(error_by_norm(&got.1, &want.1) < 1e-6);
    // Summing in parts gives other bits, which proves that there were parts.
    assert!(got.1 != want.1);
}

/// What does not fit fails with an error at which training splits batches, and leaves room for the parts.
#[test]
fn running_out_of_memory_leaves_room_for_less() {
    if !on_emulator("running_out_of_memory_leaves_room_for_less") {
        return;
    }
    let model = model(&small_model(), &Device::Cpu);
    let mut engine = Engine::new(&model, Arc::new(Emulator::with_memory(4 << 20)), DType::F32).unwrap();
    let long: Vec<u32> = vec![60; 40];
    let (source, target) = (random_sequences(&long, V, "source"), random_sequences(&long, V, "target"));
    let targets = Targets { labels: target.ids.clone(), padding: 0, smoothing: 0.1, ..Targets::default() };
    engine.begin().unwrap();
    let error = engine.pass(&source, &target, &targets, &Mode::training(1)).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    let (source, target, targets) = batch();
    engine.begin().unwrap();
    engine.pass(&source, &target, &targets, &Mode::training(1)).unwrap();
    assert!(engine.sums().unwrap().smoothed > 0.0);
}
