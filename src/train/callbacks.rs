//! What the training loop asks of its surroundings: batches, validation, checkpoints, signals.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::best::Judged;
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
    /// What `valid.metric` judges the model by: the loss, or one of the scores.
    pub value: f64,
    /// Scores of translations, where they were made.
    pub scores: Vec<Score>,
    /// The statistics of the translations, line by line, that make the score by which the model is judged; none if
    /// that is the loss.
    pub lines: Vec<u32>,
    /// The translations.
    pub translations: Vec<String>,
    /// The translation that most sources share, and how many share it; `None` if no translation is that common.
    pub repeated: Option<(String, usize)>,
    /// Lines to show: sample translations.
    pub samples: Vec<String>,
    /// The first short samples, explained.
    pub explained: Vec<Explanation>,
    /// The same of further sets, by name; only their numbers.
    pub monitored: Vec<(String, Validation)>,
}

/// A score of a validation set's translations.
#[derive(Clone, Debug)]
pub struct Score {
    /// Its key in the log.
    pub key: &'static str,
    /// Its name beside the value.
    pub name: String,
    /// In per cent; of COMET, as the model gives it.
    pub value: f64,
    /// The decimals that are shown.
    pub decimals: usize,
}

impl Validation {
    /// What it says of the model of this update, to be compared with others.
    pub fn judged(&self, step: u64) -> Judged {
        Judged { step, value: self.value, loss: self.loss, lines: self.lines.clone() }
    }

    /// Its numbers by their keys in the log and in `--json`.
    pub fn numbers(&self) -> Map<String, Value> {
        let always = [("loss", self.loss), ("perplexity", self.perplexity)];
        let scores = self.scores.iter().map(|score| (score.key, score.value));
        always.into_iter().chain(scores).map(|(key, value)| (key.to_owned(), json!(value))).collect()
    }

    /// An entry of the log with its numbers, and the fields of the object `more`.
    pub fn entry(&self, event: &str, update: u64, more: Value) -> Value {
        let mut entry = json!({ "event": event, "update": update });
        for (key, value) in self.numbers().into_iter().chain(more.as_object().cloned().unwrap_or_default()) {
            entry[key] = value;
        }
        entry
    }

    /// The entries of the log for the further sets, with the field of the object `more`.
    pub fn monitored_entries(&self, update: u64, more: &Value) -> impl Iterator<Item = Value> {
        let more = more.clone();
        self.monitored.iter().map(move |(name, validation)| {
            let mut entry = validation.entry("monitor", update, more.clone());
            entry["set"] = name.as_str().into();
            entry
        })
    }

    /// The numbers of the further sets, by name.
    pub fn monitored_numbers(&self) -> Map<String, Value> {
        self.monitored.iter().map(|(name, validation)| (name.clone(), validation.numbers().into())).collect()
    }

    /// Lines that tell of the further sets.
    pub fn monitored_lines(&self) -> impl Iterator<Item = String> {
        self.monitored.iter().map(|(name, validation)| format!("  {name}: {validation}"))
    }
}

/// Its numbers in a line.
impl Display for Validation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.3} ppl {:.2}", self.loss, self.perplexity)?;
        self.scores.iter().try_for_each(|Score { name, value, decimals, .. }| write!(f, " {name} {value:.decimals$}"))
    }
}

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// `max_updates` reached.
    Updates,
    /// `max_epochs` reached.
    Epochs,
    /// `patience` validations without an improvement.
    Patience,
    /// SIGINT.
    Interrupted,
    /// SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU.
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
pub trait Callbacks {
    /// Scores the model (whose parameters are those it is judged by) for the validation of this number, from 1; `None`
    /// if a signal asked to stop meanwhile.
    fn validate(
        &mut self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        number: u64,
    ) -> Result<Option<Validation>>;
    /// Whether the scores of two validations, given by their [`Validation::lines`], differ by more than chance.
    fn differ(&self, a: &[u32], b: &[u32]) -> bool;
    /// Begins to write a checkpoint; it is the best one if the state says so. It may be written while training goes on.
    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()>;
    /// Called before each update, when so many have been made. Fails where a checkpoint could not be written.
    fn check(&mut self, update: u64) -> Result<()>;
    /// Waits until the last checkpoint is written.
    fn wait_until_saved(&mut self) -> Result<()>;
    /// Brings back the model and the optimizer of the last sound checkpoint, and returns its state; `None` where there
    /// is none. Those of update `before` and later are not sound, nor are those saved while updates were being
    /// skipped: they are removed.
    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, before: u64) -> Result<Option<TrainState>>;
    /// The batches from a position on.
    fn batches(&self, position: SamplerPosition) -> Result<Batches>;
    /// The source lines of these pairs, by file.
    fn lines(&self, pairs: &[usize]) -> Vec<Lines>;
    /// Whether a signal asks to stop, and which.
    fn stop(&self) -> Option<StopReason>;
}
