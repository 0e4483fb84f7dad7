//! The GPU engine and its kernels, held against the fused kernels of the processor: on the device that `MT_TEST_DEVICE`
//! names (cuda, cuda:1), else on the emulator.

mod common;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use common::emulator::{Emulator, device, get, guarded_queue, on_emulator, put, to_bf16};
use common::{every_option, is_idle, random_sequences, relative_error, small_model, special};
use mt::config::{DecodeConfig, ModelConfig, OptimizerConfig};
use mt::decode::ensemble::Ensemble;
use mt::decode::neural::Neural;
use mt::decode::source::Source;
use mt::decode::translate::{Prefix, TranslateOptions};
use mt::decode::{Hypothesis, LengthPenalty, PenaltyKind, Rows, SearchOptions, StepModel, search};
use mt::error::Result;
use mt::gpu::Engine;
use mt::gpu::decode::InferenceEngine;
use mt::gpu::launch::{AttentionSizes, Exclusions, Heads, Kernels, Side};
use mt::gpu::queue::{Address, Number, Queue};
use mt::model::{Sequences, Transformer, Vocabulary};
use mt::ops::dropout::Dropout;
use mt::ops::loss::Targets;
use mt::ops::sublayer::NormPlacement;
use mt::ops::{Implementation, Mode};
use mt::rng::Stream;
use mt::train::optimizer::Optimizer;
use mt::train::passes::{Passes, Tape};

/// No multiple of eight, as vocabularies of small corpora are.
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

/// A batch whose sentences are of one tile and of several.
fn batch() -> (Sequences, Sequences, Targets) {
    let (source, target) =
        (random_sequences(&[37, 3, 1, 20], V, "source"), random_sequences(&[5, 45, 1, 33], V, "target"));
    let labels = random_sequences(&target.lengths, V, "labels").ids;
    (source, target, Targets { labels, padding: 0, smoothing: 0.1 })
}

/// Smoothed loss, likelihood and gradients of a pass on the processor.
fn want(config: &ModelConfig, mode: &Mode) -> (f64, f64, Vec<f32>) {
    let model = model(config, &Device::Cpu);
    let (source, target, targets) = batch();
    model.parameters().clear_gradients().unwrap();
    let (loss, sums) = model.loss(&source, &target, &targets, mode).unwrap();
    if mode.is_training() {
        loss.backward().unwrap();
    }
    (sums.smoothed, sums.likelihood, model.parameters().gradients().to_vec1().unwrap())
}

/// The same by the engine.
fn got(config: &ModelConfig, mode: &Mode, compute: DType) -> (f64, f64, Vec<f32>) {
    let (source, target, targets) = batch();
    let (model, mut engine) = engine(config, compute);
    engine.begin().unwrap();
    engine.pass(&source, &target, &targets, mode).unwrap();
    let sums = engine.sums().unwrap();
    (sums.smoothed, sums.likelihood, model.parameters().gradients().to_vec1().unwrap())
}

const TRAINING: Mode = Mode { training: Some(11), implementation: Implementation::Fused };

#[test]
fn loss_and_gradients_are_the_processor_s() {
    // More column sums than one kernel adds up.
    let deep = ModelConfig { decoder_layers: 8, norm: NormPlacement::Pre, ..small_model() };
    for (number, config) in every_option().into_iter().chain([deep]).enumerate() {
        let (want, got) = (want(&config, &TRAINING), got(&config, &TRAINING, DType::F32));
        assert!((got.0 - want.0).abs() < 1e-5 * want.0, "config {number}: {}, not {}", got.0, want.0);
        assert!((got.1 - want.1).abs() < 1e-5 * want.1, "config {number}: {}, not {}", got.1, want.1);
        for entry in model(&config, &Device::Cpu).parameters().entries() {
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
/// float32 does (cosines of 0.9988 to 0.99997 were measured, 0.990 for the worst of all parameters).
#[test]
fn bf16_follows_f32() {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |a: &[f32], b: &[f32]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    for (number, config) in every_option().into_iter().enumerate() {
        let (want, got) = (want(&config, &TRAINING), got(&config, &TRAINING, DType::BF16));
        assert!((got.0 - want.0).abs() < 1e-2 * want.0, "config {number}: {}, not {}", got.0, want.0);
        assert!(got.0 != want.0, "config {number}: products were not in bf16");
        assert!(cosine(&got.2, &want.2) > 0.995, "config {number}: cosine {}", cosine(&got.2, &want.2));
        for entry in model(&config, &Device::Cpu).parameters().entries() {
            let cosine = cosine(&got.2[entry.range()], &want.2[entry.range()]);
            assert!(is_idle(&entry.name, &config) || cosine > 0.98, "config {number}: {}: {cosine}", entry.name);
        }
    }
}

#[test]
fn evaluation_is_the_processor_s() {
    for config in [every_option().remove(1), every_option().remove(5)] {
        let (want, got) = (want(&config, &Mode::INFERENCE), got(&config, &Mode::INFERENCE, DType::F32));
        assert!((got.0 - want.0).abs() < 1e-5 * want.0 && (got.1 - want.1).abs() < 1e-5 * want.1);
        assert!(got.2.iter().all(|&g| g == 0.0));
    }
}

/// Micro-batches add up, each with memory that the one before has used; and the same update gives the same bits.
#[test]
fn passes_accumulate_and_repeat() {
    let (model, mut engine) = engine(&every_option()[1], DType::BF16);
    let batches = [batch(), {
        let (source, target) = (random_sequences(&[4, 9], V, "more"), random_sequences(&[8, 2], V, "more targets"));
        let labels = random_sequences(&[8, 2], V, "more labels").ids;
        (source, target, Targets { labels, padding: 0, smoothing: 0.1 })
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
        let (model, mut passes): (_, Box<dyn Passes>) = if on_device {
            let (model, engine) = engine(&small_model(), DType::F32);
            (model, Box::new(engine))
        } else {
            let model = model(&small_model(), &Device::Cpu);
            (model.clone(), Box::new(Tape::new(&model)))
        };
        let mut optimizer = Optimizer::new(&config, model.parameters(), 0.9).unwrap();
        let mut stream = Stream::new(2, "gradients");
        let count = model.parameters().values().elem_count();
        let mut outcomes = Vec::new();
        for update in 1..=3 {
            let gradients: Vec<f32> = (0..count).map(|_| stream.normal() as f32).collect();
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            passes.begin().unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            // The first is not clipped.
            passes.decide(0.5, if update == 1 { 1e9 } else { 10.0 }).unwrap();
            optimizer.step_with(&mut *passes, update, 1e-3).unwrap();
            outcomes.push(passes.outcome().unwrap());
        }
        let average: Vec<f32> = optimizer.average().unwrap().to_vec1().unwrap();
        (outcomes, model.parameters().values().to_vec1::<f32>().unwrap(), average)
    };
    let (want, got) = (run(false), run(true));
    for (got, want) in got.0.iter().zip(&want.0) {
        assert!(want.is_made && want.gradient_norm > 10.0 && got.is_made && got.sums == want.sums);
        assert!((got.gradient_norm - want.gradient_norm).abs() < 1e-9 * want.gradient_norm);
    }
    assert!(relative_error(&got.1, &want.1) < 1e-6 && relative_error(&got.2, &want.2) < 1e-6);
}

/// An update, and a translation with a beam.
fn update_and_translate(queue: Emulator, config: &ModelConfig, compute: DType) -> Result<()> {
    let queue: Arc<dyn Queue> = Arc::new(queue);
    let model = model(config, &Device::Cpu);
    let mut engine = Engine::new(&model, queue.clone(), compute)?;
    let decay = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.1 };
    let mut optimizer = Optimizer::new(&decay, model.parameters(), 0.9)?;
    let (source, target, targets) = batch();
    engine.begin()?;
    engine.pass(&source, &target, &targets, &TRAINING)?;
    engine.decide(0.01, 1.0)?;
    optimizer.step_with(&mut engine, 1, 1e-3)?;
    assert!(engine.outcome()?.is_made);
    let neural = Neural::on_device(&model, InferenceEngine::new(&model, queue, compute)?, special());
    let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
    let sources: [&[u32]; 3] = [&[5, 6, 7, 8, 9, 4, 2], &[9, 8, 2], &[2]];
    search(&mut neural.begin(&sources)?, &SearchOptions::beam(3, penalty, vec![4; 3]))?;
    Ok(())
}

/// Training and decoding touch no memory but what they took, and none that was given back.
#[test]
fn kernels_stay_in_their_memory() {
    if !on_emulator("kernels_stay_in_their_memory") {
        return;
    }
    let options = every_option();
    let all = options.iter().map(|config| (config, DType::BF16));
    // Wide and narrow ones.
    for (config, compute) in all.chain([(&options[1], DType::F32), (&options[5], DType::F32)]) {
        update_and_translate(Emulator::guarded(), config, compute).unwrap();
    }
}

/// No two threads are at the same number, one of them writing, without a barrier between them.
#[test]
fn threads_of_a_kernel_do_not_race() {
    if !on_emulator("threads_of_a_kernel_do_not_race") {
        return;
    }
    let options = every_option();
    for (config, compute) in [(&options[2], DType::BF16), (&options[5], DType::F32)] {
        update_and_translate(Emulator::that_sees_races(true), config, compute).unwrap();
    }
    // What finds none finds some where barriers do not count.
    let error = update_and_translate(Emulator::that_sees_races(false), &small_model(), DType::BF16).unwrap_err();
    assert!(error.to_string().contains("a race"), "{error}");
}

#[test]
#[ignore = "some minutes"]
fn threads_of_no_kernel_race() {
    for config in every_option() {
        for compute in [DType::F32, DType::BF16] {
            update_and_translate(Emulator::that_sees_races(true), &config, compute).unwrap();
        }
    }
    for d in [16, 32, 64, 128] {
        let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
        attention(&queue, Number::Bf16, [&[1, 17, 70], &[5, 31, 64]], d, false, 0.1);
    }
    for (d, causal) in [(6, false), (64, true), (100, false), (136, false), (512, true)] {
        let queue: Arc<dyn Queue> = Arc::new(Emulator::that_sees_races(true));
        let keys = if causal { [1, 17, 70] } else { [5, 31, 64] };
        attention(&queue, Number::F32, [&[1, 17, 70], &keys], d, causal, 0.1);
    }
}

/// An update whose gradient is not finite moves nothing, nor do those that were queued behind it, until they are forgotten;
/// then all goes on as if it had not been.
#[test]
fn updates_behind_one_that_is_not_finite_wait() {
    let run = |poisoned: &[usize]| {
        let (model, mut engine) = engine(&small_model(), DType::F32);
        let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.9).unwrap();
        let count = model.parameters().values().elem_count();
        let state = |optimizer: &Optimizer| -> Vec<Vec<f32>> {
            let tensors = optimizer.tensors().into_iter().map(|(_, tensor)| tensor);
            tensors.chain([model.parameters().values()]).map(|tensor| tensor.to_vec1().unwrap()).collect()
        };
        let queue = |engine: &mut Engine, optimizer: &mut Optimizer, number: usize| {
            let mut gradients: Vec<f32> = (0..count).map(|i| ((i * number) as f32).sin()).collect();
            if poisoned.contains(&number) {
                gradients[count / 2] = f32::NAN;
            }
            let gradients = Tensor::from_vec(gradients, count, model.parameters().device()).unwrap();
            engine.begin().unwrap();
            model.parameters().gradients().slice_set(&gradients, 0, 0).unwrap();
            engine.decide(1.0, 0.0).unwrap();
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
        let outcome = |engine: &mut Engine| engine.outcome().unwrap().is_made;
        while is_made.iter().filter(|&&made| made).count() < 2 {
            is_made.push(outcome(&mut engine));
        }
        (is_made, state(&optimizer))
    };
    let (never, with) = (run(&[]), run(&[2]));
    assert_eq!((never.0, with.0), (vec![true, true], vec![true, false, true]));
    assert_eq!(never.1, with.1);
}

/// One number that is not finite, anywhere, is seen.
#[test]
fn numbers_that_are_not_finite_are_seen() {
    let (model, mut engine) = engine(&small_model(), DType::F32);
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

/// What does not fit fails with a message that training splits batches at, and leaves room for the parts.
#[test]
fn running_out_of_memory_leaves_room_for_less() {
    if !on_emulator("running_out_of_memory_leaves_room_for_less") {
        return;
    }
    let model = model(&small_model(), &Device::Cpu);
    let mut engine = Engine::new(&model, Arc::new(Emulator::with_memory(4 << 20)), DType::F32).unwrap();
    let long: Vec<u32> = vec![60; 40];
    let (source, target) = (random_sequences(&long, V, "source"), random_sequences(&long, V, "target"));
    let targets = Targets { labels: target.ids.clone(), padding: 0, smoothing: 0.1 };
    engine.begin().unwrap();
    let error = engine.pass(&source, &target, &targets, &Mode::training(1)).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    let (source, target, targets) = batch();
    engine.begin().unwrap();
    engine.pass(&source, &target, &targets, &Mode::training(1)).unwrap();
    assert!(engine.sums().unwrap().smoothed > 0.0);
}

/// Sentences on the device: their rows begin at the sums of the lengths before.
fn side(queue: &dyn Queue, lengths: &[u32]) -> Side {
    let mut starts = vec![0u32];
    lengths.iter().for_each(|length| starts.push(starts[starts.len() - 1] + length));
    let (rows, none) = (starts[lengths.len()] as usize, put(queue, &[0u32]));
    Side {
        ids: none,
        places: none,
        padded: none,
        starts: put(queue, &starts),
        rows,
        sentences: lengths.len(),
        longest: lengths.iter().copied().max().unwrap() as usize,
    }
}

/// ‖a − b‖ / ‖b‖.
fn error_by_norm(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (difference / b.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

/// Output and gradients of attention over packed rows: out, dq, dk, dv.
fn attention(
    queue: &Arc<dyn Queue>,
    number: Number,
    [queries, keys]: [&[u32]; 2],
    d: usize,
    causal: bool,
    p: f64,
) -> [Vec<f32>; 4] {
    const HEADS: usize = 2;
    let kernels = Kernels::new(queue.clone(), number, d.is_multiple_of(8));
    let (queries, keys) = (side(&**queue, queries), side(&**queue, keys));
    let width = HEADS * d;
    let mut stream = Stream::new(d as u64, "attention");
    let mut draw = |rows: usize| -> Address {
        // Of bf16, so that both types begin with the same numbers.
        let values: Vec<u16> = (0..rows * width).map(|_| to_bf16(stream.normal() as f32)).collect();
        match number {
            Number::Bf16 => put(&**queue, &values),
            Number::F32 => {
                let values: Vec<f32> = values.iter().map(|&v| f32::from_bits(u32::from(v) << 16)).collect();
                put(&**queue, &values)
            }
        }
    };
    let heads = Heads { q: draw(queries.rows), k: draw(keys.rows), v: draw(keys.rows) };
    let dout = draw(queries.rows);
    let numbers = |rows: usize| queue.allocate(number.bytes(rows * width)).unwrap();
    let (out, gradients) =
        (numbers(queries.rows), Heads { q: numbers(queries.rows), k: numbers(keys.rows), v: numbers(keys.rows) });
    let [log_sums, deltas] = [0; 2].map(|_| queue.allocate(4 * HEADS * queries.rows).unwrap());
    let sizes = AttentionSizes {
        queries,
        keys,
        q_stride: width,
        k_stride: width,
        heads: HEADS,
        d_k: d,
        d_v: d,
        causal,
        dropout: Dropout::new(p, 7),
    };
    kernels.attend([out, log_sums], heads, &sizes).unwrap();
    kernels.attend_backward(gradients, [dout, out, log_sums, deltas], heads, &sizes).unwrap();
    [(out, queries.rows), (gradients.q, queries.rows), (gradients.k, keys.rows), (gradients.v, keys.rows)].map(
        |(at, rows)| match number {
            Number::F32 => get::<f32>(&**queue, at, rows * width),
            Number::Bf16 => {
                let values = get::<u16>(&**queue, at, rows * width);
                values.iter().map(|&v| f32::from_bits(u32::from(v) << 16)).collect()
            }
        },
    )
}

/// What `attention` computes without dropout, by its definition, in float64.
fn attention_by_definition([queries, keys]: [&[u32]; 2], d: usize, causal: bool) -> [Vec<f32>; 4] {
    const HEADS: usize = 2;
    let (width, scale) = (HEADS * d, 1.0 / (d as f64).sqrt());
    let mut stream = Stream::new(d as u64, "attention");
    let mut draw = |lengths: &[u32]| -> Vec<f64> {
        let count = lengths.iter().sum::<u32>() as usize * width;
        (0..count).map(|_| f64::from(f32::from_bits(u32::from(to_bf16(stream.normal() as f32)) << 16))).collect()
    };
    let (q, k, v, dout) = (draw(queries), draw(keys), draw(keys), draw(queries));
    let [mut out, mut dq, mut dk, mut dv] = [&q, &q, &k, &v].map(|like| vec![0.0; like.len()]);
    let (mut first_query, mut first_key) = (0, 0);
    for (&queries, &keys) in queries.iter().zip(keys) {
        let (queries, keys) = (queries as usize, keys as usize);
        for (head, t) in (0..HEADS).flat_map(|head| (0..queries).map(move |t| (head, t))) {
            let row = |first: usize, t: usize| (first + t) * width + head * d;
            let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 { (0..d).map(|c| a[i + c] * b[j + c]).sum() };
            let (at, visible) = (row(first_query, t), if causal { keys.min(t + 1) } else { keys });
            let weights: Vec<f64> = (0..visible).map(|s| (scale * dot(&q, at, &k, row(first_key, s))).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (s, weight) in weights.iter().enumerate() {
                (0..d).for_each(|c| out[at + c] += weight / sum * v[row(first_key, s) + c]);
            }
            let delta = dot(&dout, at, &out, at);
            for (s, weight) in weights.iter().enumerate() {
                let (p, of_key) = (weight / sum, row(first_key, s));
                let dx = scale * p * (dot(&dout, at, &v, of_key) - delta);
                for c in 0..d {
                    dq[at + c] += dx * k[of_key + c];
                    dk[of_key + c] += dx * q[at + c];
                    dv[of_key + c] += p * dout[at + c];
                }
            }
        }
        (first_query, first_key) = (first_query + queries, first_key + keys);
    }
    [out, dq, dk, dv].map(|values| values.into_iter().map(|value| value as f32).collect())
}

/// The kernels for every width, in each of their forms, against the definition.
#[test]
fn attention_is_its_definition() {
    for (d, causal) in [(6, true), (40, false), (64, true), (100, false), (128, true), (136, true), (512, false)] {
        let queries = [1, 37, 4];
        let keys = if causal { queries } else { [5, 33, 32] };
        let got = attention(&guarded_queue(), Number::F32, [&queries, &keys], d, causal, 0.0);
        let want = attention_by_definition([&queries, &keys], d, causal);
        for ((name, got), want) in ["out", "dq", "dk", "dv"].iter().zip(&got).zip(&want) {
            // Sums of up to 512 products, and of 37 rows, in float32.
            let error = error_by_norm(got, want);
            assert!(error < 1e-6, "{name} of heads of {d}, causal {causal}: {error}");
        }
    }
}

/// The kernels for tensor cores against those for every width and type, which the tests above hold against the processor's.
#[test]
fn attention_in_tiles_is_attention() {
    for (d, causal, p) in [(16, true, 0.0), (32, false, 0.2), (64, true, 0.1), (128, false, 0.0), (64, false, 0.0)] {
        let queries = [1, 16, 17, 33, 70, 2];
        let keys = if causal { queries } else { [5, 31, 32, 1, 64, 90] };
        let [want, got] = [Number::F32, Number::Bf16]
            .map(|number| attention(&guarded_queue(), number, [&queries, &keys], d, causal, p));
        for ((name, got), want) in ["out", "dq", "dk", "dv"].iter().zip(&got).zip(&want) {
            let error = error_by_norm(got, want);
            assert!(error < 1e-2, "{name} of heads of {d}, causal {causal}, dropout {p}: {error}");
        }
    }
}

/// A head as wide as a base model, as in the paper's table 3 (A): twice as wide as a lane's first numbers reach.
#[test]
fn one_wide_head() {
    let [want, got] = [Number::F32, Number::Bf16]
        .map(|number| attention(&guarded_queue(), number, [&[3, 40], &[33, 7]], 512, false, 0.1));
    for (got, want) in got.iter().zip(&want) {
        assert!(error_by_norm(got, want) < 1e-2);
    }
}

fn translate(
    neural: &Neural,
    source: &Sequences,
    options: impl Fn(Vec<usize>) -> SearchOptions,
) -> Vec<Vec<Hypothesis>> {
    let rows = source.ids.chunks_exact(source.length).zip(source.lengths.iter());
    let sources: Vec<&[u32]> = rows.map(|(row, &length)| &row[..length as usize]).collect();
    let max_lengths = source.lengths.iter().map(|&length| length as usize + 10).collect();
    search(&mut neural.begin(&sources).unwrap(), &options(max_lengths)).unwrap()
}

/// The encoder's states alone, packed.
#[test]
fn encoding_is_the_processor_s() {
    let source = random_sequences(&[9, 3, 1, 20], V, "source");
    for config in [every_option().remove(1), every_option().remove(5)] {
        let (device, queue) = device();
        let here = model(&config, &Device::Cpu);
        let memory = here.encode(&source, &Mode::INFERENCE).unwrap();
        let states: Vec<Vec<f32>> = memory.states.to_vec2().unwrap();
        let sentences = states.chunks(source.length).zip(source.lengths.iter());
        let want: Vec<f32> = sentences.flat_map(|(rows, &length)| rows[..length as usize].concat()).collect();
        for (compute, bound) in [(DType::F32, 1e-5), (DType::BF16, 1e-2)] {
            let translator = InferenceEngine::new(&model(&config, &device), queue.clone(), compute).unwrap();
            for _ in 0..2 {
                let (got, d) = translator.encode(&source).unwrap();
                assert_eq!((got.len(), d), (want.len(), config.d_model));
                assert!(error_by_norm(&got, &want) < bound, "{compute:?}: {}", error_by_norm(&got, &want));
            }
        }
    }
}

/// Beams of every width, with constraints: as on the processor, where every step is computed anew by other code.
#[test]
fn decoding_is_the_processor_s() {
    let lengths: Vec<u32> = (0..7).map(|i| 1 + i * 5 % 9).collect();
    let source = random_sequences(&lengths, V, "source");
    for config in every_option() {
        let here = model(&config, &Device::Cpu);
        let (device, queue) = device();
        let there = model(&config, &device);
        let here = Neural::new(&here, special()).unwrap();
        let there = Neural::on_device(&there, InferenceEngine::new(&there, queue, DType::F32).unwrap(), special());
        for (beam, no_repeat_ngram) in [(1, 0), (4, 0), (3, 2)] {
            let options = |max_lengths: Vec<usize>| {
                let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
                let options = SearchOptions::beam(beam, penalty, max_lengths);
                SearchOptions { no_repeat_ngram, ..options }
            };
            let (want, got) = (translate(&here, &source, options), translate(&there, &source, options));
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got[0].tokens, want[0].tokens);
                assert!((got[0].log_prob - want[0].log_prob).abs() < 1e-3);
            }
        }
    }
}

/// Two translations at a time by one model, one in bf16; and whole distributions.
#[test]
fn sessions_do_not_disturb_each_other() {
    let config = &every_option()[2];
    let (device, queue) = device();
    let model = model(config, &device);
    let neural = Neural::on_device(&model, InferenceEngine::new(&model, queue, DType::BF16).unwrap(), special());
    let (first, second): (&[u32], &[u32]) = (&[5, 6, 7, 2], &[9, 2]);
    let distributions = |step: &mut dyn StepModel| {
        let mut log_probs = Vec::new();
        for (position, token) in [1, 8].into_iter().enumerate() {
            let rows = Rows { tokens: &[token], parents: &[0], sentences: &[0], constraints: &[], position };
            step.distributions(&rows, &mut log_probs).unwrap();
        }
        log_probs
    };
    let alone = [first, second].map(|source| distributions(&mut neural.begin(&[source]).unwrap()));
    let (mut a, mut b) = (neural.begin(&[first]).unwrap(), neural.begin(&[second]).unwrap());
    let (of_b, of_a) = (distributions(&mut b), distributions(&mut a));
    assert_eq!([of_a, of_b], alone);
    let total: f64 = alone[0].iter().map(|&log_prob| f64::from(log_prob).exp()).sum();
    // Tokens that have no place in a translation are left out.
    assert!(total > 0.5 && total < 1.0, "{total}");
}

/// The best of rows of logits, with ties, more than one thread's share, and all kinds of exclusions.
#[test]
fn the_best_continuations() {
    let (queue, vocabulary, stride, k) = (device().1, 1000, 1003, 5);
    let kernels = Kernels::new(queue.clone(), Number::F32, true);
    let mut stream = Stream::new(1, "logits");
    let mut logits: Vec<f32> = (0..5 * vocabulary).map(|_| (4.0 * stream.normal()).round() as f32 / 2.0).collect();
    logits[3 * vocabulary + 700] = f32::NAN;
    // The best of one thread's share come one after the other.
    for i in 0..3 {
        logits[17 + 256 * i] = 50.0;
    }
    let forced = [Exclusions::NO_TOKEN, Exclusions::NO_TOKEN, 77, Exclusions::NO_TOKEN, Exclusions::NO_TOKEN];
    let (starts, tokens, always) = ([0u32, 0, 2, 2, 2, 2], [4u32, 999], [0u32, 1, 273]);
    let [out_tokens, out_log_probs] = [0; 2].map(|_| queue.allocate(4 * 5 * k).unwrap());
    let exclusions = Exclusions {
        forced: put(&*queue, &forced),
        starts: put(&*queue, &starts),
        tokens: put(&*queue, &tokens),
        always: put(&*queue, &always),
        always_count: 3,
    };
    let rows: Vec<Vec<f32>> = logits.chunks(vocabulary).map(|row| [row, &[99.0; 3]].concat()).collect();
    let at = put(&*queue, &rows.concat());
    kernels.best_continuations([out_tokens, out_log_probs, at], exclusions, [5, vocabulary, stride, k]).unwrap();
    let (got_tokens, log_probs) = (get::<u32>(&*queue, out_tokens, 5 * k), get::<f32>(&*queue, out_log_probs, 5 * k));
    for row in 0..5 {
        let of_row = &logits[row * vocabulary..][..vocabulary];
        let log_sum = of_row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let excluded = |token: u32| always.contains(&token) || row == 1 && tokens.contains(&token);
        let mut order: Vec<u32> = (0..vocabulary as u32).filter(|&token| !excluded(token)).collect();
        order.sort_by(|&a, &b| of_row[b as usize].total_cmp(&of_row[a as usize]).then(a.cmp(&b)));
        let got = got_tokens[row * k..][..k].iter().zip(&log_probs[row * k..][..k]);
        match row {
            2 => {
                let got: Vec<(u32, f32)> = got.map(|(token, log_prob)| (*token, *log_prob)).collect();
                assert_eq!(got[0].0, 77);
                assert!((f64::from(got[0].1) - (f64::from(of_row[77]) - log_sum)).abs() < 1e-4);
                assert!(got[1..].iter().all(|(_, log_prob)| *log_prob == f32::NEG_INFINITY));
            }
            3 => assert!(log_probs[row * k].is_nan()),
            _ => {
                for ((token, log_prob), want) in got.zip(order) {
                    assert_eq!(*token, want, "row {row}");
                    assert!((f64::from(*log_prob) - (f64::from(of_row[want as usize]) - log_sum)).abs() < 1e-4);
                }
            }
        }
    }
}

/// On a device that has room for some sentences of a batch, not for all.
#[test]
fn a_batch_that_does_not_fit_is_translated_in_parts() {
    if !on_emulator("a_batch_that_does_not_fit_is_translated_in_parts") {
        return;
    }
    let sentence = |line: usize| Source {
        line,
        ids: (0..3 + line as u32 % 7).map(|i| 4 + (line as u32 * 5 + i * 11) % 57).collect(),
        ..Source::default()
    };
    let sources: Vec<Source> = (0..12).map(sentence).collect();
    let options = TranslateOptions { max_length_extra: 5, ..TranslateOptions::of(&DecodeConfig::default()) };
    let ensemble = |bytes: usize| {
        let model = model(&small_model(), &Device::Cpu);
        let translator = InferenceEngine::new(&model, Arc::new(Emulator::with_memory(bytes)), DType::F32).unwrap();
        Ensemble::new(vec![Neural::on_device(&model, translator, special())])
    };
    let translate = |bytes: usize| -> Vec<Vec<u32>> {
        let found = ensemble(bytes)
            .translate(std::slice::from_ref(&sources), &Prefix::default(), &options, |_| true)
            .unwrap()
            .unwrap();
        found.into_iter().map(|hypotheses| hypotheses[0].tokens.clone()).collect()
    };
    const LITTLE: usize = 300_000;
    let lines: Vec<Vec<u32>> = sources.iter().map(|source| [&source.ids[..], &[2]].concat()).collect();
    let all = |ensemble: &Ensemble| {
        let lines: Vec<&[u32]> = lines.iter().map(Vec::as_slice).collect();
        let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.6 };
        let limits: Vec<usize> = lines.iter().map(|line| line.len() + 4).collect();
        search(&mut ensemble.begin(&[lines])?, &SearchOptions::beam(4, penalty, limits))
    };
    assert!(all(&ensemble(LITTLE)).unwrap_err().is_out_of_memory());
    all(&ensemble(usize::MAX)).unwrap();
    assert_eq!(translate(LITTLE), translate(usize::MAX));
}
