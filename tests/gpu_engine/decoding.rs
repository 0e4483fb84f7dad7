//! The encoder alone, decoding, and the selection of continuations.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device};
use mt::decode::ensemble::Ensemble;
use mt::decode::neural::Neural;
use mt::decode::source::Source;
use mt::decode::translate::TranslateOptions;
use mt::decode::{DecodeConfig, Hypothesis, LengthPenalty, PenaltyKind, Rows, SearchOptions, StepModel, force, search};
use mt::gpu::decode::InferenceEngine;
use mt::gpu::launch::{Exclusions, Kernels};
use mt::gpu::queue::Number;
use mt::infer::{ComputeType, Encoder, model_values};
use mt::model::pooling::{Mixture, Pooling, pool, rows_of};
use mt::model::{Activation, ModelConfig, PositionKind, Sequences};
use mt::ops::Mode;
use mt::ops::sublayer::NormPlacement;
use mt::rng::Stream;

use super::{V, error_by_norm, model};
use crate::common::emulator::{Emulator, device, get, on_emulator, put};
use crate::common::{every_option, odd_sizes, random_sequences, small_model, special, wide_heads, with_dropouts};

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

/// The vectors of sentences from the last layer.
#[test]
fn vectors_are_the_processor_s() {
    let source = random_sequences(&[9, 3, 1, 20], V, "source");
    let pre = ModelConfig { norm: NormPlacement::Pre, ..with_dropouts() };
    for config in [with_dropouts(), odd_sizes(), ModelConfig { final_norm: true, ..pre.clone() }, pre] {
        let (device, queue) = device();
        let here = model(&config, &Device::Cpu);
        let memory = here.encode(&source, &Mode::INFERENCE).unwrap();
        let states: Vec<f32> = memory.states.flatten_all().unwrap().to_vec1().unwrap();
        let rows = (0..).step_by(source.length).zip(source.lengths.iter());
        let rows: Vec<_> = rows.map(|(start, &length)| start..start + length as usize).collect();
        for (compute, bound) in [(DType::F32, 1e-5), (DType::BF16, 1e-2)] {
            let translator = InferenceEngine::new(&model(&config, &device), queue.clone(), compute).unwrap();
            for &pooling in Pooling::ALL {
                let want = pool(&states, config.d_model, rows.iter().cloned(), pooling).concat();
                let got = translator.vectors(&source, &Mixture::last(translator.layers(), pooling)).unwrap();
                assert_eq!((got.len(), got[0].len()), (4, config.d_model));
                let error = error_by_norm(&got.concat(), &want);
                assert!(error < bound, "{compute:?}, {pooling}: {error}");
            }
        }
    }
}

/// The vectors of sentences from all layers, and from those up to one before the last.
#[test]
fn mixtures_of_layers_are_the_processor_s() {
    let source = random_sequences(&[9, 3, 1, 20], V, "source");
    let sentences = source.ids.chunks(source.length).zip(source.lengths.iter());
    let sentences: Vec<&[u32]> = sentences.map(|(row, &length)| &row[..length as usize]).collect();
    let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.len()).collect();
    let learned = ModelConfig {
        positions: PositionKind::Learned,
        embedding_norm: true,
        activation: Activation::Gelu,
        ..small_model()
    };
    for config in [learned, odd_sizes()] {
        let d = config.d_model;
        let here = Encoder::new(&config, &model_values(&model(&config, &Device::Cpu)), ComputeType::F32).unwrap();
        let (device, queue) = device();
        let there = InferenceEngine::new(&model(&config, &device), queue, DType::F32).unwrap();
        for (weights, is_normalised) in
            [(vec![0.5, -1.0, 0.25], false), (vec![0.5, -1.0, 0.25], true), (vec![0.0, 2.0], true), (vec![1.0], false)]
        {
            let mixture = Mixture { weights, is_normalised, pooling: Pooling::Mean };
            let look = |sum: &mut (Vec<f32>, Range<usize>), layer: usize, states: &[f32]| {
                mixture.add(&mut sum.0, layer, states, &lengths[sum.1.clone()], d);
            };
            let begin = |block: Range<usize>| (vec![0.0; lengths[block.clone()].iter().sum::<usize>() * d], block);
            let sum = here.states(&sentences, begin, look).into_iter().flat_map(|(sum, _)| sum).collect::<Vec<_>>();
            let want = pool(&sum, d, rows_of(&lengths), mixture.pooling).concat();
            let got = there.vectors(&source, &mixture).unwrap().concat();
            let error = error_by_norm(&got, &want);
            assert!(error < 1e-5, "{mixture:?}: {error}");
        }
    }
}

/// An encoder takes the memory of a few layers, whatever their number.
#[test]
fn memory_of_layers_is_used_again() {
    if !on_emulator("memory_of_layers_is_used_again") {
        return;
    }
    let source = random_sequences(&[60; 16], V, "source");
    let config = ModelConfig { encoder_layers: 12, ..small_model() };
    // States of all rows, [N, D] in float32.
    let states = 4 * 16 * 60 * config.d_model;
    let begin = |memory| {
        let engine = InferenceEngine::new(&model(&config, &Device::Cpu), Arc::new(memory), DType::F32).unwrap();
        engine.vectors(&source, &Mixture::last(engine.layers(), Pooling::Mean))
    };
    begin(Emulator::with_memory(24 * states)).unwrap();
    assert!(begin(Emulator::with_memory(8 * states)).unwrap_err().is_out_of_memory());
}

/// Beams of every width, with constraints, give the same as on the processor, where other code recomputes every step.
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

/// In both number types, and beyond the earlier positions that one tile has.
#[test]
fn given_targets_have_the_processor_s_probabilities() {
    let random = |length: u32, name: &str| random_sequences(&[length], V, name).ids;
    let sources = [random(9, "source"), random(3, "another source")];
    let targets = [random(45, "target"), random(6, "another target")];
    let [sources, targets] = [&sources, &targets].map(|lines| lines.each_ref().map(Vec::as_slice));
    for (number, config) in every_option().into_iter().enumerate() {
        let here = Neural::new(&model(&config, &Device::Cpu), special()).unwrap();
        let want = force(&mut here.begin(&sources).unwrap(), &targets).unwrap().concat();
        assert_eq!(want.len(), 45 + 6 + 2);
        for (compute, bound) in [(DType::F32, 1e-5), (DType::BF16, 2e-2)] {
            let (device, queue) = device();
            let there = model(&config, &device);
            let there = Neural::on_device(&there, InferenceEngine::new(&there, queue, compute).unwrap(), special());
            let got = force(&mut there.begin(&sources).unwrap(), &targets).unwrap().concat();
            let error = error_by_norm(&got, &want);
            assert!(error < bound, "config {number}, {compute:?}: {error}");
        }
    }
}

/// Two translations at a time by one model, in bf16, with whole distributions.
#[test]
fn sessions_do_not_disturb_each_other() {
    let config = &wide_heads();
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
    // Forbidden tokens have no probability, so the sum is below 1.
    assert!(total > 0.5 && total < 1.0, "{total}");
}

/// The best continuations of rows of logits, with ties, rows longer than one thread's share, and all kinds of
/// exclusions.
#[test]
fn the_best_continuations() {
    let (queue, vocabulary, stride, k) = (device().1, 4099, 4104, 5);
    let kernels = Kernels::new(queue.clone(), Number::F32, true);
    let mut stream = Stream::new(1, "logits");
    let mut logits: Vec<f32> = (0..5 * vocabulary).map(|_| (4.0 * stream.normal()).round() as f32 / 2.0).collect();
    logits[3 * vocabulary + 700] = f32::NAN;
    // The best ones fall to one thread.
    for token in [2, 3, 4097] {
        logits[token] = 50.0;
    }
    // The very best are excluded: 273 for all rows, 999 for one.
    logits[273] = 60.0;
    logits[vocabulary + 999] = 70.0;
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
    let rows: Vec<Vec<f32>> = logits.chunks(vocabulary).map(|row| [row, &[99.0; 5]].concat()).collect();
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

/// The device has room for some sentences of a batch, but not for all.
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
    let options = TranslateOptions { max_length_extra: 5, ..TranslateOptions::from_config(&DecodeConfig::default()) };
    let ensemble = |bytes: usize| {
        let model = model(&small_model(), &Device::Cpu);
        let translator = InferenceEngine::new(&model, Arc::new(Emulator::with_memory(bytes)), DType::F32).unwrap();
        Ensemble::new(vec![Neural::on_device(&model, translator, special())])
    };
    // One batch, or several, two of which are translated at a time.
    let translate = |bytes: usize, batch_tokens: usize| -> Vec<Vec<u32>> {
        let options = TranslateOptions { batch_tokens, ..options.clone() };
        let found =
            ensemble(bytes).translate(std::slice::from_ref(&sources), &[], &options, |_| true).unwrap().unwrap();
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
    let want = translate(usize::MAX, 1000);
    for (bytes, batch_tokens) in [(LITTLE, 1000), (usize::MAX, 20), (LITTLE, 20), (LITTLE, 50)] {
        assert_eq!(translate(bytes, batch_tokens), want, "{bytes} bytes, batches of {batch_tokens} tokens");
    }
}
