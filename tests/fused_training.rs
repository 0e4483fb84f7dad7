//! Training with fused kernels gives the same losses as with the reference operations, update after update, with
//! dropout.

mod common;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use common::small_model;
use mt::data::TokenizerConfig;
use mt::data::batch::Batch;
use mt::data::corpus::{Corpus, PairSource};
use mt::data::encode::{self, Recipe};
use mt::data::encoded::EncodedCorpus;
use mt::data::filter::Filter;
use mt::data::sampler::Sampler;
use mt::data::shard::Elements;
use mt::data::tokenizers::Tokenizers;
use mt::model::{ModelConfig, Preset, Transformer, Vocabulary};
use mt::ops::loss::Targets;
use mt::ops::{Implementation, Mode};
use mt::rng;
use mt::train::optimizer::Optimizer;
use mt::train::{OptimizerConfig, ScheduleConfig, inputs, schedule};

/// Batches of a corpus, and the size of the joint vocabulary.
struct Task {
    batches: Vec<Batch>,
    vocabulary: usize,
    padding: u32,
    schedule: ScheduleConfig,
}

impl Task {
    fn new(folder: &Path, pieces: usize, batch_tokens: usize, updates: usize, schedule: ScheduleConfig) -> Self {
        let corpora = || -> Vec<Box<dyn PairSource>> {
            vec![Box::new(Corpus::open(folder.join("train.en"), folder.join("train.de"), 1.0).unwrap())]
        };
        let config = TokenizerConfig { vocab_size: pieces, ..TokenizerConfig::default() };
        let tokenizers = Tokenizers::train(&config, &corpora()).unwrap();
        let filter = Filter { max_length: 100, max_ratio: 0.0 };
        let recipe = Recipe { encoder: &tokenizers, filter, elements: Elements::ids(pieces), quality: None };
        let parts = corpora().into_iter().map(|corpus| {
            let shards = encode::shards(&*corpus, recipe, &|_| Ok(())).unwrap();
            (corpus, shards)
        });
        let corpus = Arc::new(EncodedCorpus::new(parts.collect(), filter).unwrap().0);
        let mut sampler = Sampler::new(corpus.clone(), corpus.ranges(), batch_tokens, 1).unwrap();
        let mut batch = || {
            let pairs: Vec<_> = sampler.next_batch().indices.into_iter().map(|index| corpus.ids(index)).collect();
            Batch::new(&pairs, &tokenizers.special_ids())
        };
        Self {
            batches: (0..updates).map(|_| batch()).collect(),
            vocabulary: tokenizers.target.vocab_size(),
            padding: tokenizers.target.pad_id(),
            schedule,
        }
    }

    /// The mean loss per token of every update.
    fn losses(&self, config: &ModelConfig, implementation: Implementation, dtype: DType) -> Vec<f64> {
        let (source, target) = (self.vocabulary, self.vocabulary);
        let vocabulary = Vocabulary { source, target, source_padding: self.padding, target_padding: self.padding };
        let start = Transformer::new(config, vocabulary, &Device::Cpu).unwrap();
        start.initialise(1).unwrap();
        let model = Transformer::with_precision(config, vocabulary, &Device::Cpu, dtype).unwrap();
        let values = model.parameters().values();
        values.slice_set(&start.parameters().values().to_dtype(values.dtype()).unwrap(), 0, 0).unwrap();
        let mut optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
        let mut losses = Vec::new();
        for (step, batch) in (1..).zip(&self.batches) {
            model.parameters().clear_gradients().unwrap();
            let mode = Mode { training: Some(rng::key(1, "dropout", &[step, 0])), implementation };
            let (source, target, targets) =
                inputs(batch, &Targets { padding: self.padding, smoothing: 0.1, ..Targets::default() });
            let (loss, sums) = model.loss(&source, &target, &targets, &mode).unwrap();
            loss.backward().unwrap();
            let rate = schedule::learning_rate(&self.schedule, config.d_model, step, 0);
            optimizer.step(step, rate, 1.0 / batch.target_tokens as f64).unwrap();
            losses.push(sums.smoothed / batch.target_tokens as f64);
            if step % 50 == 0 {
                println!("{implementation:?} in {dtype:?}, update {step}: {:.7}", losses[losses.len() - 1]);
            }
        }
        losses
    }
}

/// The largest difference between two runs' losses.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn fused_losses_follow_the_reference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/quickstart");
    let schedule = ScheduleConfig::Noam { warmup: 20, factor: 0.5 };
    let task = Task::new(&folder, 600, 600, 12, schedule);
    let config = ModelConfig {
        dropout: 0.2,
        embedding_dropout: 0.1,
        attention_dropout: 0.1,
        activation_dropout: 0.1,
        ..small_model()
    };
    let fused = task.losses(&config, Implementation::Fused, DType::F32);
    let reference = task.losses(&config, Implementation::Reference, DType::F32);
    assert!(fused[11] < fused[0] - 0.2, "nothing was learned: {fused:?}");
    assert!(apart(&fused, &reference) < 1e-5, "{fused:?}\n{reference:?}");
    // bfloat16 keeps about three digits in every product: training takes a different but close path.
    let rounded = task.losses(&config, Implementation::Fused, DType::BF16);
    assert!(rounded != fused && apart(&rounded, &fused) < 1e-2, "{rounded:?}\n{fused:?}");
}

/// 200 updates of the Multi30k model in three ways take half an hour. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "half an hour"]
fn fused_losses_follow_the_reference_on_multi30k() {
    let Some(data) = std::env::var_os("MT_TEST_DATA") else {
        return common::skipped("fused_losses_follow_the_reference_on_multi30k", "MT_TEST_DATA is not set");
    };
    let schedule = ScheduleConfig::InverseSqrt { learning_rate: 0.005, warmup: 2000, initial: 1e-7 };
    let task = Task::new(&Path::new(&data).join("multi30k"), 10_000, 4096, 200, schedule);
    let tiny = ModelConfig::from_preset(Preset::Tiny);
    let config = ModelConfig { dropout: 0.3, embedding_dropout: 0.3, ..tiny };
    let fused = task.losses(&config, Implementation::Fused, DType::F32);
    let reference = task.losses(&config, Implementation::Reference, DType::F32);
    let exact = task.losses(&config, Implementation::Reference, DType::F64);
    println!("update   fused − reference   reference − f64   fused − f64");
    for update in [1, 2, 5, 10, 20, 50, 100, 150, 200] {
        let [a, b, c] = [&fused, &reference, &exact].map(|losses| losses[update - 1]);
        println!("{update:>6}   {:>17.2e}   {:>15.2e}   {:>11.2e}   loss {c:.4}", a - b, b - c, a - c);
    }
    println!("largest over the first 10: fused − reference {:.2e}", apart(&fused[..10], &reference[..10]));
    println!(
        "largest over all: reference − f64 {:.2e}, fused − f64 {:.2e}",
        apart(&reference, &exact),
        apart(&fused, &exact)
    );
    assert!(apart(&fused[..10], &reference[..10]) <= 1e-5);
    let at_end = |a: &[f64], b: &[f64]| (a[199] - b[199]).abs();
    assert!(at_end(&fused, &exact) <= at_end(&reference, &exact).max(apart(&reference, &exact)));
}
