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
    /// How many these are, about.
    pub left_out: usize,
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
    /// Whether it is for a GPU.
    pub on_gpu: bool,
    /// How often training would see each pair, if it ran to the last update.
    pub epochs: f64,
    /// The tier: training text of fewer pairs.
    pub tier: usize,
}

/// Training text of fewer pairs than `pairs`.
struct Tier {
    pairs: usize,
    vocab_size: usize,
    /// Pieces of a word with such a vocabulary, about, in scripts with spaces, with a share of the punctuation.
    pieces_per_word: f64,
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

/// For little text.
const TINIEST: Shape = Shape { batch_tokens: 2048, max_updates: 6000, ..TINY };

const TIERS: [Tier; 7] = [
    tier(1500, (1000, 2.0), [TINIEST; 2], [0.3; 2]),
    tier(8000, (2000, 1.8), [TINIEST; 2], [0.3; 2]),
    tier(15_000, (4000, 1.6), [TINIEST; 2], [0.3; 2]),
    tier(100_000, (10_000, 1.3), [TINY; 2], [0.3; 2]),
    tier(500_000, (12_000, 1.3), [TINY, SMALL], [0.1, 0.3]),
    tier(2_000_000, (24_000, 1.3), [SMALL, BASE], [0.1, 0.2]),
    tier(usize::MAX, (32_000, 1.3), [SMALL, PAPER], [0.1; 2]),
];

const fn tier(
    pairs: usize,
    (vocab_size, pieces_per_word): (usize, f64),
    shapes: [Shape; 2],
    dropout: [f64; 2],
) -> Tier {
    Tier { pairs, vocab_size, pieces_per_word, shapes, dropout }
}

/// Lengths of which `data.max_length` is one, in pieces. The last one leaves room for the end of the sentence.
const LENGTHS: [usize; 8] = [100, 150, 200, 256, 400, 600, 800, 1000];
/// The smallest vocabulary of scripts in which characters are many: else most of them would be split into bytes.
const MANY_CHARACTERS: usize = 4000;
/// Validations until the last update.
const VALIDATIONS: usize = 32;

impl Recipe {
    /// Sizes for this text and machine.
    pub(super) fn new(survey: &Survey, machine: &Machine) -> Self {
        let tier = TIERS.iter().find(|tier| survey.pairs < tier.pairs).unwrap_or(&TIERS[TIERS.len() - 1]);
        let shape = tier.shapes[usize::from(machine.has_gpu)];
        let [source, target] = &survey.sides;
        let has_many_characters = survey.sides.iter().any(|side| side.is_without_spaces());
        let pieces = |words: f64| words * tier.pieces_per_word;
        let needed = pieces(survey.length_of(0.99) as f64);
        let most = LENGTHS[LENGTHS.len() - 1];
        let max_length = LENGTHS.into_iter().find(|length| needed <= *length as f64).unwrap_or(most);
        let tokens = (pieces(survey.mean_target()) + 1.0) * survey.pairs as f64;
        // An update takes no pair twice, and the last one of an epoch is not full.
        let updates_of_epoch = (tokens / (shape.batch_tokens * shape.accumulate) as f64).ceil().max(1.0);
        Self {
            vocab_size: tier.vocab_size.max(if has_many_characters { MANY_CHARACTERS } else { 0 }),
            joint: source.script() == target.script(),
            keeps_wide_marks: target.is_without_spaces() && target.wide_marks > 0,
            tokenize: target.is_without_spaces().then(|| if target.is_chinese() { "zh" } else { "char" }),
            max_length,
            left_out: survey.longer_than(max_length as f64 / tier.pieces_per_word),
            preset: shape.preset,
            dropout: tier.dropout[usize::from(machine.has_gpu)],
            batch_tokens: shape.batch_tokens,
            accumulate: shape.accumulate,
            max_updates: shape.max_updates,
            schedule: shape.schedule,
            every: (shape.max_updates / VALIDATIONS).next_multiple_of(50),
            on_gpu: machine.has_gpu,
            epochs: shape.max_updates as f64 / updates_of_epoch,
            tier: tier.pairs,
        }
    }
}
