//! `[train]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::train::optimizer::OptimizerConfig;
pub use crate::train::schedule::ScheduleConfig;

/// `[train]`: batches, updates, checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// A model directory whose weights and tokenizers training begins with; none: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Parameters that stay as they are: parts of the model by name, such as `encoder` or `decoder.layers.0`.
    pub freeze: Vec<String>,
    /// The most padded tokens on the larger side of one micro-batch.
    pub batch_tokens: usize,
    /// Micro-batches in an update; the loss is divided by the update's target tokens, without padding.
    pub accumulate: usize,
    /// Stop after this many updates; 0: no limit.
    pub max_updates: u64,
    /// Stop after this many passes over the data; 0: no limit.
    pub max_epochs: u64,
    /// Probability taken from the label and spread over the vocabulary (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// Gradients are scaled down to at most this L2 norm; 0: off.
    pub clip_norm: f64,
    /// How many of the last checkpoints are averaged to the final model; 0: off.
    pub average_last: usize,
    /// Decay, per update, of a running mean of the parameters, for example 0.9999; 0: off. At update t it is at most
    /// (1 + t) / (10 + t).
    pub exponential_average: f64,
    /// Updates in a row that are skipped because their loss or gradient is not finite, before the run goes back to its
    /// last checkpoint with a lower learning rate.
    pub max_skipped: u64,
    /// Updates between checkpoints.
    pub save_every: u64,
    /// Checkpoints kept; `best` and those an average needs are kept beside them.
    pub keep: usize,
    /// The best checkpoints, by validation, are kept beside them too: this many, with `best`.
    pub keep_best: usize,
    /// Updates between lines of the log. Loss and perplexity of a line are means over target tokens, the gradient's norm is
    /// the last update's.
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
            init: None,
            freeze: Vec::new(),
            batch_tokens: 4096,
            accumulate: 1,
            max_updates: 100_000,
            max_epochs: 0,
            label_smoothing: 0.1,
            clip_norm: 0.0,
            average_last: 0,
            exponential_average: 0.0,
            max_skipped: 10,
            save_every: 500,
            keep: 10,
            keep_best: 1,
            log_every: 50,
            seed: 1,
            schedule: ScheduleConfig::default(),
            optimizer: OptimizerConfig::default(),
        }
    }
}
