//! A small model learns to reverse sequences, from a random seed and to a stated accuracy, for every norm placement and
//! every kind of position.

mod common;

use candle_core::Device;
use common::{reversals, small_model, special};
use mt::data::batch::{Batch, SpecialIds};
use mt::decode::neural::Neural;
use mt::decode::{LengthPenalty, PenaltyKind, SearchOptions, search};
use mt::model::{Activation, ModelConfig, NormKind, NormPlacement, PositionKind, Tie, Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::Targets;
use mt::rng::{Stream, key};
use mt::train::optimizer::Optimizer;
use mt::train::{OptimizerConfig, ScheduleConfig, inputs, schedule};

const IDS: SpecialIds =
    SpecialIds { pad_source: 0, eos_source: 2, pad_target: 0, bos_target: 1, eos_target: 2, language_last: false };

/// Sequences of two to seven of eight symbols and their reverses.
fn pairs(count: usize, stream: &mut Stream) -> Vec<(Vec<u32>, Vec<u32>)> {
    reversals(count, 8, 7, stream)
}

fn accuracy(model: &Transformer, stream: &mut Stream) -> f64 {
    let pairs = pairs(200, stream);
    let neural = Neural::new(model, special()).unwrap();
    let sources: Vec<Vec<u32>> = pairs.iter().map(|(source, _)| [&source[..], &[2]].concat()).collect();
    let mut step = neural.begin(&sources.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    let penalty = LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 0.0 };
    let options = SearchOptions::beam(1, penalty, vec![12; pairs.len()]);
    let found = search(&mut step, &options).unwrap();
    found.iter().zip(&pairs).filter(|(f, (_, target))| &f[0].tokens == target).count() as f64 / pairs.len() as f64
}

/// Trains `config` at the widths of this task and returns the share of sequences that it then reverses.
fn learn(config: ModelConfig, seed: u64) -> f64 {
    let config = ModelConfig {
        final_norm: config.final_norm || config.norm == NormPlacement::Pre,
        d_model: 64,
        d_ff: 128,
        d_k: 16,
        d_v: 16,
        dropout: 0.05,
        embedding_dropout: 0.05,
        tie: Tie::All,
        ..config
    };
    let vocabulary = Vocabulary { source: 12, target: 12, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
    model.initialise(seed).unwrap();
    let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
    let schedule = ScheduleConfig::InverseSqrt { learning_rate: 3e-3, warmup: 100, initial: 0.0 };
    let mut stream = Stream::new(seed, "reverse");
    for step in 1..=700 {
        let batch = Batch::new(&pairs(64, &mut stream), &IDS);
        let (source, target, targets) = inputs(&batch, &Targets { smoothing: 0.1, ..Targets::default() });
        model.parameters().clear_gradients().unwrap();
        let (loss, _) = model.loss(&source, &target, &targets, &Mode::training(key(seed, "dropout", &[step]))).unwrap();
        loss.backward().unwrap();
        let rate = schedule::learning_rate(&schedule, 64, step, 0);
        optimizer.step(step, rate, 1.0 / batch.target_tokens as f64).unwrap();
    }
    accuracy(&model, &mut stream)
}

#[test]
fn post_norm_learns_to_reverse() {
    let accuracy = learn(small_model(), 17);
    assert!(accuracy >= 0.95, "{accuracy}");
}

#[test]
fn pre_norm_learns_to_reverse() {
    let accuracy = learn(ModelConfig { norm: NormPlacement::Pre, ..small_model() }, 18);
    assert!(accuracy >= 0.95, "{accuracy}");
}

#[test]
fn rotary_positions_learn_to_reverse() {
    let config = ModelConfig { positions: PositionKind::Rotary, activation: Activation::Swish, ..small_model() };
    let accuracy = learn(config, 19);
    assert!(accuracy >= 0.95, "{accuracy}");
}

#[test]
fn learned_positions_and_the_std_norm_learn_to_reverse() {
    let config = ModelConfig {
        positions: PositionKind::Learned,
        norm_kind: NormKind::Std,
        norm_eps: 1e-9,
        final_norm: true,
        ..small_model()
    };
    let accuracy = learn(config, 20);
    assert!(accuracy >= 0.95, "{accuracy}");
}
