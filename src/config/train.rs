//! `[train]`, `[train.schedule]` and `[train.optimizer]`.

use serde::{Deserialize, Serialize};

use super::sections::one;

/// `[train]`: batches, updates, checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// The most padded tokens on the larger side of one micro-batch.
    pub batch_tokens: usize,
    /// Micro-batches in an update; the loss is divided by the update's real target tokens.
    pub accumulate: usize,
    /// Stop after this many updates; 0: no limit.
    pub max_updates: u64,
    /// Stop after this many passes over the data; 0: no limit.
    pub max_epochs: u64,
    /// Probability taken from the label and spread over the vocabulary (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// Gradients are scaled down to at most this L2 norm; 0: off.
    pub clip_norm: f64,
    /// The final model is the mean of this many last checkpoints; 0: off.
    pub average_last: usize,
    /// Decay, per update, of a running mean of the parameters, for example 0.9999; 0: off.
    pub exponential_average: f64,
    /// Updates between checkpoints.
    pub save_every: u64,
    /// Checkpoints kept; `best` and those an average needs are kept beside them.
    pub keep: usize,
    /// Updates between lines of the log.
    pub log_every: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// `[train.schedule]`: the learning rate at each update.
    pub schedule: ScheduleConfig,
    /// `[train.optimizer]`: how gradients move parameters.
    pub optimizer: OptimizerConfig,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            batch_tokens: 4096,
            accumulate: 1,
            max_updates: 100_000,
            max_epochs: 0,
            label_smoothing: 0.1,
            clip_norm: 0.0,
            average_last: 0,
            exponential_average: 0.0,
            save_every: 500,
            keep: 10,
            log_every: 50,
            seed: 1,
            schedule: ScheduleConfig::default(),
            optimizer: OptimizerConfig::default(),
        }
    }
}

/// `[train.schedule]`: the learning rate at each update, counted from 1.
///
/// Every kind rises linearly over its first `warmup` updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) ("Attention Is All You Need", section 5.3).
    Noam {
        /// Updates of linear rise; positive.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// Multiplies the rate.
        #[serde(default = "one")]
        factor: f64,
    },
    /// From `initial` linearly to `learning_rate`, then learning_rate · √(warmup / step).
    InverseSqrt {
        /// The highest rate, reached at `warmup`.
        learning_rate: f64,
        /// Updates of linear rise; positive.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// The rate at update 0 of the rise.
        #[serde(default)]
        initial: f64,
    },
    /// Linearly up to `learning_rate`, then linearly down to `end` at update `total`.
    Linear {
        /// The highest rate, reached at `warmup`.
        learning_rate: f64,
        /// Updates of linear rise.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// The update at which `end` is reached. Default: `train.max_updates`.
        #[serde(default)]
        total: u64,
        /// The last rate.
        #[serde(default)]
        end: f64,
    },
    /// Linearly up to `learning_rate`, then along half a cosine down to `end` at update `total`.
    Cosine {
        /// The highest rate, reached at `warmup`.
        learning_rate: f64,
        /// Updates of linear rise.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// The update at which `end` is reached. Default: `train.max_updates`.
        #[serde(default)]
        total: u64,
        /// The last rate.
        #[serde(default)]
        end: f64,
    },
    /// `learning_rate` throughout.
    Constant {
        /// The rate.
        learning_rate: f64,
        /// Updates of linear rise.
        #[serde(default)]
        warmup: u64,
    },
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Noam { warmup: paper_warmup(), factor: one() }
    }
}

/// `[train.optimizer]`: how gradients move parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019).
    Adam {
        /// Decay of the running mean of the gradient and of its square.
        #[serde(default = "paper_betas")]
        betas: [f64; 2],
        /// Added to the root of the mean square.
        #[serde(default = "paper_eps")]
        eps: f64,
        /// Share of a parameter, times the learning rate, taken away at each update; not of biases and norms.
        #[serde(default)]
        weight_decay: f64,
    },
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adam { betas: paper_betas(), eps: paper_eps(), weight_decay: 0.0 }
    }
}

/// The paper's warm-up (section 5.3).
fn paper_warmup() -> u64 {
    4000
}

/// The paper's β₁ and β₂ (section 5.3).
fn paper_betas() -> [f64; 2] {
    [0.9, 0.98]
}

/// The paper's ε (section 5.3).
fn paper_eps() -> f64 {
    1e-9
}
