//! Sizes for a corpus and a machine.
//!
//! The tiers are those of recipes that are known to work, for each amount of text: configs/ has them, and
//! docs/results.md what they reached.

use super::survey::Survey;
use crate::model::Preset;

/// The machine to train on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Whether it has a GPU.
    pub has_gpu: bool,
    /// Whether its processor has instructions for bfloat16 products.
    pub has_bf16: bool,
}

/// How the learning rate goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// Up to a rate, then down with the inverse root of the updates.
    InverseSqrt {
        /// The highest.
        learning_rate: f64,
        /// Updates until it is reached.
        warmup: usize,
    },
    /// The paper's.
    Noam {
        /// Updates until the highest rate is reached.
        warmup: usize,
    },
}

/// What a configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Pieces of the vocabulary, of each side where it is not joint.
    pub vocab_size: usize,
    /// One vocabulary for both sides.
    pub joint: bool,
    /// Full-width punctuation stays.
    pub keeps_wide_marks: bool,
    /// How BLEU splits the target into words; nothing: as usual.
    pub tokenize: Option<&'static str>,
    /// Longer pairs are dropped.
    pub max_length: usize,
    /// The model's shape.
    pub preset: Preset,
    /// Dropout.
    pub dropout: f64,
    /// Tokens of a micro-batch.
    pub batch_tokens: usize,
    /// Micro-batches of an update.
    pub accumulate: usize,
    /// The most updates.
    pub max_updates: usize,
    /// The learning rate.
    pub schedule: Schedule,
    /// Updates between validations, and between checkpoints.
    pub every: usize,
    /// The number type of products is bfloat16.
    pub bf16: bool,
    /// How often training would see each pair, if it ran to the last update.
    pub epochs: f64,
    /// The tier: training text of fewer pairs.
    pub tier: usize,
}

/// Training text of fewer pairs than `pairs`.
struct Tier {
    pairs: usize,
    vocab_size: usize,
    /// Without a GPU, and with one.
    shapes: [Shape; 2],
    dropout: [f64; 2],
}

/// A model's shape and how it is trained.
#[derive(Clone, Copy)]
struct Shape {
    preset: Preset,
    batch_tokens: usize,
    accumulate: usize,
    max_updates: usize,
    schedule: Schedule,
}

/// The learning rate of configs/multi30k-tiny.toml.
const TINY: Shape = Shape {
    preset: Preset::Tiny,
    batch_tokens: 4096,
    accumulate: 1,
    max_updates: 8000,
    schedule: Schedule::InverseSqrt { learning_rate: 5e-3, warmup: 2000 },
};
const SMALL: Shape = Shape {
    preset: Preset::Small,
    batch_tokens: 4096,
    accumulate: 1,
    max_updates: 50_000,
    schedule: Schedule::InverseSqrt { learning_rate: 5e-4, warmup: 4000 },
};
const BASE: Shape = Shape {
    preset: Preset::Base,
    batch_tokens: 8192,
    accumulate: 1,
    max_updates: 100_000,
    schedule: Schedule::Noam { warmup: 4000 },
};
/// The paper's: 25,000 tokens an update.
const PAPER: Shape = Shape { batch_tokens: 12_500, accumulate: 2, ..BASE };

const TIERS: [Tier; 5] = [
    Tier {
        pairs: 15_000,
        vocab_size: 4000,
        shapes: [Shape { batch_tokens: 2048, max_updates: 6000, ..TINY }; 2],
        dropout: [0.3; 2],
    },
    Tier { pairs: 100_000, vocab_size: 10_000, shapes: [TINY; 2], dropout: [0.3; 2] },
    Tier { pairs: 500_000, vocab_size: 12_000, shapes: [TINY, SMALL], dropout: [0.1, 0.3] },
    Tier { pairs: 2_000_000, vocab_size: 24_000, shapes: [SMALL, BASE], dropout: [0.1, 0.2] },
    Tier { pairs: usize::MAX, vocab_size: 32_000, shapes: [SMALL, PAPER], dropout: [0.1; 2] },
];

/// Lengths of which `data.max_length` is one, in pieces.
const LENGTHS: [usize; 4] = [100, 150, 200, 256];
/// Validations until the last update.
const VALIDATIONS: usize = 32;

impl Recipe {
    /// Sizes for this text and machine.
    pub(super) fn new(survey: &Survey, machine: &Machine) -> Self {
        let tier = TIERS.iter().find(|tier| survey.pairs < tier.pairs).unwrap_or(&TIERS[TIERS.len() - 1]);
        let shape = tier.shapes[usize::from(machine.has_gpu)];
        let [source, target] = &survey.sides;
        let needed = survey.length_of(0.99);
        let tokens = survey.mean_target() * survey.pairs as f64;
        let updates = shape.max_updates as f64;
        Self {
            vocab_size: tier.vocab_size,
            joint: source.script() == target.script(),
            keeps_wide_marks: target.is_without_spaces() && target.wide_marks > 0,
            tokenize: target.is_without_spaces().then(|| if target.is_chinese() { "zh" } else { "char" }),
            max_length: LENGTHS.into_iter().find(|length| needed <= *length).unwrap_or(LENGTHS[LENGTHS.len() - 1]),
            preset: shape.preset,
            dropout: tier.dropout[usize::from(machine.has_gpu)],
            batch_tokens: shape.batch_tokens,
            accumulate: shape.accumulate,
            max_updates: shape.max_updates,
            schedule: shape.schedule,
            every: (shape.max_updates / VALIDATIONS).next_multiple_of(50),
            bf16: machine.has_gpu || machine.has_bf16 && shape.preset != Preset::Tiny,
            // An update takes no pair twice.
            epochs: updates * ((shape.batch_tokens * shape.accumulate) as f64 / tokens.max(1.0)).min(1.0),
            tier: tier.pairs,
        }
    }
}
