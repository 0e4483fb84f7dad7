//! Where a training run stands: everything beside the tensors that a resumed run needs.

use serde::{Deserialize, Serialize};

use crate::data::sampler::SamplerPosition;

/// State of a run after an update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Updates done.
    pub step: u64,
    /// The next batch.
    pub position: SamplerPosition,
    /// Target tokens trained on so far.
    pub target_tokens: u64,
    /// The best validation so far.
    pub best: Option<Best>,
    /// Validations since the best one.
    pub stale: u64,
    /// Seconds spent training, over all sessions of the run.
    pub seconds: f64,
    /// What the next line of the log will be about.
    pub window: Window,
    /// Checksums of the text that the rest refers to.
    pub text: TextChecksums,
}

/// Sums since the last line of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Label-smoothed cross-entropy, in nats.
    pub smoothed: f64,
    /// Negative log-likelihood, in nats.
    pub likelihood: f64,
    /// Target tokens.
    pub tokens: u64,
    /// When it began, in [`TrainState::seconds`].
    pub since: f64,
}

/// Checksums of the text of a run, by which a resumed run knows it wherever the files lie now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextChecksums {
    /// Of the training pairs that passed the filters.
    pub train: String,
    /// Of the validation pairs; `None` without validation.
    pub valid: Option<String>,
}

/// The best validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// After this update.
    pub step: u64,
    /// Value of the chosen metric.
    pub value: f64,
}
