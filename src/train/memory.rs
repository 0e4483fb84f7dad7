//! How much memory training takes, estimated before it begins.

use crate::device;
use crate::error::{Error, Result};
use crate::limits::LEAST_PIECES;
use crate::model::{ModelConfig, PositionKind, Vocabulary, layout};
use crate::ops::params::ParameterLayout;
use crate::train::optimizer::Training;
use crate::train::{LowRankConfig, TrainConfig};

/// Batches differ in shape, and the allocator keeps what earlier ones left: resident memory is about twice what one
/// holds. Measured on tiny models with 768 to 4,096 tokens a batch.
const REUSE: usize = 2;
/// What the process holds whatever the model: code, threads, tokenizer with its cache. From the same measurements.
const PROCESS: usize = 200 << 20;

/// Bytes of a padded token that waits for its update: the source's id, the target's as input and as label.
const TOKEN: usize = 3 * 4;

/// Numbers in the tables of fixed positions; learned ones are parameters.
fn position_tables(model: &ModelConfig) -> usize {
    match model.positions {
        PositionKind::Sinusoidal => model.max_length.saturating_mul(model.d_model),
        PositionKind::Rotary => model.max_length.saturating_mul(model.d_k),
        PositionKind::Relative => model.max_length.saturating_mul(2 * model.heads),
        PositionKind::Learned => 0,
    }
}

/// Numbers of a model in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Its parameters.
    pub parameters: usize,
    /// Of these, those that `train.freeze` and `train.low_rank` leave unchanged.
    pub frozen: usize,
    /// Numbers that updates move: parameters, and factors of low rank.
    pub trained: usize,
    /// Those of matrices that have factors.
    pub adapted: usize,
}

impl Sizes {
    /// Those of a model with these parameters.
    pub fn of(parameters: &ParameterLayout, train: &TrainConfig) -> Self {
        let mut counts = Self { parameters: parameters.total(), ..Self::default() };
        for entry in parameters.entries() {
            let low_rank = train.low_rank.as_ref();
            let count = match (Training::of(&entry.name, &train.freeze, low_rank), low_rank) {
                (Training::Frozen, _) => &mut counts.frozen,
                (Training::LowRank, Some(low_rank)) => {
                    let width = entry.shape.iter().fold(0usize, |sum, width| sum.saturating_add(*width));
                    counts.trained = counts.trained.saturating_add(low_rank.rank.saturating_mul(width));
                    &mut counts.adapted
                }
                _ => &mut counts.trained,
            };
            *count = count.saturating_add(entry.len());
        }
        counts
    }
}

/// Bytes that training takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// All but the next.
    pub training: usize,
    /// A copy of what a checkpoint holds: with it, training goes on while the checkpoint is written.
    pub copy: usize,
}

impl Needed {
    /// Whether so much memory has room for the copy; yes, if the memory is not known.
    pub fn has_room_for_copy(self, memory: Option<u64>) -> bool {
        memory.is_none_or(|memory| self.training.saturating_add(self.copy) as u64 <= memory)
    }
}

/// Bytes of training with micro-batches of `tokens` padded tokens a side: parameters, gradients, moments, and what
/// factors are added to; tables of positions; what every sub-layer keeps for backward and needs while in it; the logits
/// of one chunk of the loss; and the ids of all micro-batches of an update.
pub fn estimate(model: &ModelConfig, train: &TrainConfig, counts: Sizes, vocabulary: usize, tokens: usize) -> Needed {
    // R-Drop goes over each pair twice at once.
    let tokens = if train.r_drop > 0.0 { tokens.saturating_mul(2) } else { tokens };
    let (d, f) = (model.d_model, model.d_ff);
    let (keys, values) = (model.key_width(), model.value_width());
    // Kept a token: packed projections, head outputs, output before the norm, and the tensor handed on.
    let attention = 2 * keys + 2 * values + 2 * d;
    let cross = keys + (keys + values) + values + 2 * d;
    let feed_forward = (model.hidden_inputs() + 1) * f + 2 * d;
    let encoder = model.encoder_layers * (attention + feed_forward);
    let decoder = model.decoder_layers * (attention + cross + feed_forward);
    // The largest sub-layer on its way back holds about as much again, and autograd a few gradients.
    let backward = (attention + cross).max(feed_forward) + 6 * d;
    let activations = tokens.saturating_mul(encoder + decoder + backward + 4 * d);
    let logits = tokens.min(1024) * vocabulary + 2 * vocabulary * d;
    let Sizes { parameters, trained, adapted, .. } = counts;
    // A checkpoint has all parameters, or those that are trained.
    let saved = if train.low_rank.is_some() { trained } else { parameters };
    let average = if train.exponential_average > 0.0 { parameters } else { 0 };
    let sum = |numbers: &[usize]| numbers.iter().copied().fold(0, usize::saturating_add);
    let moments = trained.saturating_mul(2);
    let passes = activations.saturating_add(logits).saturating_mul(REUSE);
    let numbers = sum(&[parameters.saturating_mul(2), moments, adapted, average, passes, position_tables(model)]);
    let ids = train.accumulate.saturating_mul(tokens).saturating_mul(TOKEN);
    Needed {
        training: numbers.saturating_mul(4).saturating_add(ids).saturating_add(PROCESS),
        copy: sum(&[saved, moments, average]).saturating_mul(4),
    }
}

/// A warning, where training takes more than this machine's memory. `other` estimates another configuration; the
/// warning names those that would fit.
pub fn warning(needed: usize, train: &TrainConfig, other: impl Fn(&TrainConfig) -> usize) -> Option<String> {
    let memory = device::machine_memory().filter(|memory| needed as u64 > *memory)?;
    Some(advice(needed, memory, train, other))
}

/// The fewest tokens of a micro-batch that are advised: smaller ones make training slow.
const LEAST_TOKENS: usize = 256;

fn advice(needed: usize, memory: u64, train: &TrainConfig, other: impl Fn(&TrainConfig) -> usize) -> String {
    let smaller = |train: &TrainConfig| {
        let halved = std::iter::successors(Some(train.clone()), |train| {
            let next = TrainConfig {
                batch_tokens: train.batch_tokens / 2,
                accumulate: train.accumulate.checked_mul(2)?,
                ..train.clone()
            };
            (next.batch_tokens >= LEAST_TOKENS).then_some(next)
        });
        halved.map(|train| (other(&train), train)).find(|(bytes, _)| *bytes as u64 <= memory)
    };
    let may_adapt = train.init.is_some() && train.low_rank.is_none() && train.exponential_average == 0.0;
    let adapted = may_adapt.then(|| TrainConfig { low_rank: Some(LowRankConfig::default()), ..train.clone() });
    let found = [Some(train.clone()), adapted].into_iter().flatten().filter_map(|train| smaller(&train));
    let named = found.map(|(bytes, fitting)| {
        let mut keys = Vec::new();
        if let Some(low_rank) = fitting.low_rank.as_ref().filter(|_| train.low_rank.is_none()) {
            keys.push(format!("train.low_rank = {{ rank = {} }}", low_rank.rank));
        }
        if fitting.batch_tokens != train.batch_tokens {
            let TrainConfig { batch_tokens, accumulate, .. } = fitting;
            keys.push(format!("train.batch_tokens = {batch_tokens} and train.accumulate = {accumulate}"));
        }
        format!("{} would take about {:.1} GiB", keys.join(" with "), gibibytes(bytes))
    });
    let named = named.collect::<Vec<_>>().join("; ");
    format!(
        "training takes about {:.1} GiB of memory, and the machine has {:.1} GiB: {}",
        gibibytes(needed),
        gibibytes(memory as usize),
        if named.is_empty() { "make the model smaller" } else { &named }
    )
}

/// Refuses a model whose parameters, gradients, moments and tables of positions alone, with the smallest vocabulary,
/// are more than the machine's memory: the allocator would end the process.
pub fn refuse_the_impossible(model: &ModelConfig, vocab_size: usize) -> Result<()> {
    let pieces = vocab_size.min(LEAST_PIECES);
    let vocabulary = Vocabulary { source: pieces, target: pieces, source_padding: 0, target_padding: 0 };
    let of_optimizer = layout::layout(model, vocabulary).total().saturating_mul(16);
    let needed = position_tables(model).saturating_mul(4).saturating_add(of_optimizer);
    match device::machine_memory() {
        Some(memory) if needed as u64 > memory => {
            let what = format!(
                "training this model takes more than {:.1} GiB of memory; this machine has {:.1} GiB",
                gibibytes(needed),
                gibibytes(memory as usize)
            );
            let help = "make the model smaller, or lower model.max_length: see `mt info` with the configuration";
            Err(Error::usage(what).help(help))
        }
        _ => Ok(()),
    }
}

/// Bytes in GiB.
pub fn gibibytes(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { parameters: 1_000_000, frozen: 0, trained: 1_000_000, adapted: 0 };

    fn bytes(model: ModelConfig, accumulate: usize) -> usize {
        let train = TrainConfig { accumulate, ..TrainConfig::default() };
        estimate(&model, &train, SIZES, 1000, 4096).training
    }

    #[test]
    fn a_checkpoint_is_copied_if_there_is_room() {
        let copy = |train: &TrainConfig, sizes| estimate(&ModelConfig::default(), train, sizes, 1000, 4096).copy;
        let plain = TrainConfig::default();
        assert_eq!(copy(&plain, SIZES), 3 * 4_000_000);
        assert_eq!(copy(&TrainConfig { exponential_average: 0.999, ..plain.clone() }, SIZES), 4 * 4_000_000);
        let low_rank = TrainConfig { low_rank: Some(LowRankConfig::default()), ..plain };
        assert_eq!(copy(&low_rank, Sizes { trained: 1000, ..SIZES }), 3 * 4000);

        let needed = Needed { training: 1000, copy: 300 };
        let cases = [(None, true), (Some(1300), true), (Some(1299), false), (Some(500), false)];
        for (memory, room) in cases {
            assert_eq!(needed.has_room_for_copy(memory), room, "{memory:?}");
        }
        assert!(!Needed { training: usize::MAX, copy: usize::MAX }.has_room_for_copy(Some(1 << 40)));
    }

    #[test]
    fn positions_and_the_micro_batches_of_an_update_count() {
        let model = |positions, max_length| ModelConfig { positions, max_length, ..ModelConfig::default() };
        let more = |positions| bytes(model(positions, 3024), 1) - bytes(model(positions, 1024), 1);
        assert_eq!(more(PositionKind::Sinusoidal), 2000 * 512 * 4);
        assert_eq!(more(PositionKind::Rotary), 2000 * 64 * 4);
        // Learned ones are among the parameters.
        assert_eq!(more(PositionKind::Learned), 0);
        let learned = |max_length| {
            let any = Vocabulary { source: 8, target: 8, source_padding: 0, target_padding: 0 };
            layout::layout(&model(PositionKind::Learned, max_length), any).total()
        };
        assert_eq!(learned(3024) - learned(1024), 2 * 2000 * 512);
        assert_eq!(bytes(ModelConfig::default(), 101) - bytes(ModelConfig::default(), 1), 100 * 4096 * 12);
    }

    #[test]
    fn what_would_fit_is_named() {
        let train = TrainConfig { init: Some("model".into()), batch_tokens: 1000, ..TrainConfig::default() };
        // A byte a token, and 600 for moments that factors do not have.
        let bytes = |train: &TrainConfig| train.batch_tokens + if train.low_rank.is_none() { 600 } else { 0 };
        let advice = |memory| advice(bytes(&train), memory, &train, bytes);
        let (batch, factors) =
            ("train.batch_tokens = 500 and train.accumulate = 2 would", "train.low_rank = { rank = 16 } would");
        let said = advice(1200);
        assert!(said.contains(batch) && said.contains(factors), "{said}");
        let said = advice(600);
        let both = "train.low_rank = { rank = 16 } with train.batch_tokens = 500 and train.accumulate = 2 would";
        assert!(said.contains(both) && said.matches("would").count() == 1, "{said}");
        assert!(advice(100).ends_with("make the model smaller"));
    }

    #[test]
    fn what_is_frozen_or_of_low_rank_has_fewer_moments() {
        let any = Vocabulary { source: 8, target: 8, source_padding: 0, target_padding: 0 };
        let model = ModelConfig::default();
        let counts = |train: TrainConfig| Sizes::of(&layout::layout(&model, any), &train);
        let all = counts(TrainConfig::default());
        assert_eq!((all.trained, all.frozen, all.adapted), (all.parameters, 0, 0));
        let frozen = counts(TrainConfig { freeze: vec!["encoder".to_owned()], ..TrainConfig::default() });
        assert!(frozen.frozen > 0 && frozen.trained + frozen.frozen == all.parameters);
        let low_rank = LowRankConfig { rank: 4, projections: vec!["fc1".to_owned()], ..LowRankConfig::default() };
        let low_rank = counts(TrainConfig { low_rank: Some(low_rank), ..TrainConfig::default() });
        // Of 12 layers [2048, 512].
        assert_eq!((low_rank.trained, low_rank.adapted), (12 * 4 * (2048 + 512), 12 * 2048 * 512));
        assert_eq!(low_rank.adapted + low_rank.frozen, all.parameters);
    }

    /// The widest model that a configuration can state has more parameters than a number can hold.
    #[test]
    fn nothing_wraps_around() {
        let (most, layers) = (1 << 20, 1000);
        let model = ModelConfig {
            d_model: most,
            d_ff: most,
            heads: most,
            d_k: most,
            d_v: most,
            encoder_layers: layers,
            decoder_layers: layers,
            max_length: 1 << 24,
            ..ModelConfig::default()
        };
        let any = Vocabulary { source: 1 << 24, target: 1 << 24, source_padding: 0, target_padding: 0 };
        assert_eq!(layout::layout(&model, any).total(), usize::MAX);
        let train = TrainConfig::default();
        let counts = Sizes::of(&layout::layout(&model, any), &train);
        let all = Needed { training: usize::MAX, copy: usize::MAX };
        assert_eq!(estimate(&model, &train, counts, 1 << 24, usize::MAX), all);
        let long = ModelConfig { max_length: 1 << 24, d_model: most, ..ModelConfig::default() };
        // It is known on the systems that tests run on.
        for model in [model, long].into_iter().filter(|_| device::machine_memory().is_some()) {
            let error = refuse_the_impossible(&model, 10_000).unwrap_err();
            assert!(error.what().contains("takes more than"), "{error}");
        }
    }
}
