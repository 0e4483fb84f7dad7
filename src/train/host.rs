//! What the training loop asks of its surroundings: batches, validation, checkpoints, signals.

use std::path::PathBuf;

use serde::Serialize;

use super::evaluate::Evaluator;
use super::optimizer::Optimizer;
use super::state::TrainState;
use crate::data::batch::Batch;
use crate::data::prefetch::{Prefetch, Prepared};
use crate::data::sampler::SamplerPosition;
use crate::error::Result;
use crate::explanation::Explanation;
use crate::model::Transformer;

/// What a validation found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Mean smoothed loss a target token.
    pub loss: f64,
    /// e^(mean negative log-likelihood a target token).
    pub perplexity: f64,
    /// BLEU of translations, where they were made.
    pub bleu: Option<f64>,
    /// The translations.
    pub translations: Vec<String>,
    /// Lines to show: sample translations.
    pub samples: Vec<String>,
    /// The first of these, explained.
    pub explained: Vec<Explanation>,
}

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `max_updates` reached.
    Updates,
    /// `max_epochs` reached.
    Epochs,
    /// `patience` validations without an improvement.
    Patience,
    /// SIGINT.
    Interrupted,
    /// SIGTERM, SIGHUP or SIGUSR1.
    Terminated,
}

/// Some lines of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// The file.
    pub file: PathBuf,
    /// Their numbers, from 1, in order.
    pub lines: Vec<usize>,
}

/// The batches of a run, in order.
pub type Batches = Prefetch<Prepared<Vec<Batch>>>;

/// What the loop asks of its surroundings.
pub trait Host {
    /// Scores the model (whose parameters are those it is judged by); `None` if a signal asked to stop meanwhile.
    fn validate(&mut self, model: &Transformer, evaluator: &mut Evaluator<'_>) -> Result<Option<Validation>>;
    /// Begins to write a checkpoint; it is the best one if the state says so. It may be written while training goes on.
    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()>;
    /// Fails where a checkpoint could not be written.
    fn check(&mut self) -> Result<()>;
    /// Waits until the last checkpoint is written.
    fn settle(&mut self) -> Result<()>;
    /// Brings back the model and the optimizer of the last sound checkpoint, and returns its state; `None` where there is
    /// none. Those of update `before` and later are not sound, nor are those saved while updates were being skipped: they are
    /// removed.
    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, before: u64) -> Result<Option<TrainState>>;
    /// The batches from a position on.
    fn batches(&self, position: SamplerPosition) -> Result<Batches>;
    /// The source lines of these pairs, by file.
    fn lines(&self, pairs: &[usize]) -> Vec<Lines>;
    /// Whether a signal asks to stop, and which.
    fn stop(&self) -> Option<End>;
}
