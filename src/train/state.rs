//! Where a training run stands: everything beside the tensors that a resumed run needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::best::Judged;
use super::callbacks::StopReason;
use super::health::Health;
use super::log::Progress;
use super::schedule::Plateau;
use crate::data::sampler::SamplerPosition;
use crate::error::{Error, Result};
use crate::train::{TrainConfig, ValidConfig};

/// State of a run after an update.
///
/// Random numbers come from a counter-based generator ([`crate::rng`]), keyed by the seed, the update and what they are
/// for: beside the seed it has no state of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Updates done.
    pub step: u64,
    /// The next batch.
    pub sampler: SamplerPosition,
    /// Epochs that were complete after that update; the next batch may be beyond more, where updates were skipped.
    pub epochs: u64,
    /// Target tokens trained on so far.
    pub target_tokens: u64,
    /// The best validation so far.
    pub best: Option<Judged>,
    /// The next best ones, in order: with it, as many as `train.keep_best`.
    pub next_best: Vec<Judged>,
    /// That with the highest score, unless it is the best one.
    pub highest: Option<Judged>,
    /// The lowest loss of all validations so far.
    pub lowest_loss: Option<f64>,
    /// Validations since the last improvement, without those before `valid.patience_after`.
    pub stale: u64,
    /// Whether the validation of this update was cut short.
    pub validation_due: bool,
    /// The update of the last validation.
    pub validated: Option<u64>,
    /// How many validations there have been.
    pub validations: u64,
    /// Seconds spent training, over all starts of the run.
    pub seconds: f64,
    /// Sums for the next line of the log.
    pub window: Window,
    /// How validations have changed the learning rate.
    pub plateau: Plateau,
    /// Skipped updates and the usual loss.
    pub health: Health,
    /// The parts that were frozen when it was saved (`train.freeze`): the optimizer's moments are without them.
    pub frozen: Vec<String>,
    /// Whether `train.save_every`, as it was then, made the checkpoint of this update due; `None` until it is saved.
    pub regular: Option<bool>,
    /// What computes it, as [`crate::run::backend::machines`] says: others round otherwise.
    pub machine: String,
    /// Checksums of the text that the rest refers to.
    pub text: TextChecksums,
    /// What the model is and how it was trained: keys of the configuration and their values as TOML.
    pub configuration: BTreeMap<String, String>,
}

/// Sums since the last line of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Label-smoothed cross-entropy, in nats.
    pub smoothed: f64,
    /// Negative log-likelihood, in nats.
    pub nll: f64,
    /// Target tokens.
    pub tokens: u64,
    /// When it began, in [`TrainState::seconds`].
    pub since: f64,
}

/// Checksums of the text of a run, by which a resumed run recognises it, wherever the files are now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextChecksums {
    /// Of the training pairs that passed the filters.
    pub train: String,
    /// Of those of each corpus, to name what has changed.
    pub corpora: Vec<String>,
    /// Of the validation pairs; `None` without validation.
    pub valid: Option<String>,
}

impl TrainState {
    /// How far the run has come.
    pub fn progress(&self) -> Progress {
        Progress { step: self.step, skipped: self.health.skipped, returns: self.health.returns }
    }

    /// Why training should end here, if it should.
    pub fn end(&self, train: &TrainConfig, valid: &ValidConfig) -> Option<StopReason> {
        if train.max_updates > 0 && self.step >= train.max_updates {
            return Some(StopReason::Updates);
        }
        if train.max_epochs > 0 && self.sampler.epoch >= train.max_epochs {
            return Some(StopReason::Epochs);
        }
        let is_counted = valid.patience > 0 && self.step >= valid.patience_after;
        (is_counted && self.stale >= valid.patience).then_some(StopReason::Patience)
    }

    /// `state.json`: the fields, with the epoch (from 0) and the generator's key and counter for human readers.
    pub fn to_json(&self, seed: u64) -> Result<Value> {
        let mut json = serde_json::to_value(self)
            .map_err(|error| Error::failure(format!("cannot write the training state: {error}")))?;
        json["epoch"] = json!(self.sampler.epoch);
        json["rng"] = json!({ "generator": "counter", "seed": seed, "update": self.step });
        Ok(json)
    }

    /// What [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// It is something else.
    pub fn from_json(mut json: Value) -> Result<Self> {
        if let Some(fields) = json.as_object_mut() {
            fields.remove("epoch");
            fields.remove("rng");
        }
        serde_json::from_value(json)
            .map_err(|error| Error::failure(format!("the training state cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_ends_at_the_last_update_or_epoch_or_after_validations_without_an_improvement() {
        let end = |step, stale, max_updates, patience| {
            let (train, valid) =
                (TrainConfig { max_updates, ..Default::default() }, ValidConfig { patience, ..Default::default() });
            TrainState { step, stale, ..TrainState::default() }.end(&train, &valid)
        };
        assert_eq!((end(9, 1, 10, 2), end(10, 1, 10, 2)), (None, Some(StopReason::Updates)));
        assert_eq!((end(9, 2, 10, 2), end(9, 2, 0, 2)), (Some(StopReason::Patience), Some(StopReason::Patience)));
        assert_eq!(end(1000, 1000, 0, 0), None, "0 is no limit");
        let later = |step| {
            let valid = ValidConfig { patience: 2, patience_after: 10, ..Default::default() };
            TrainState { step, stale: 2, ..TrainState::default() }.end(&TrainConfig::default(), &valid)
        };
        assert_eq!((later(9), later(10)), (None, Some(StopReason::Patience)));
        let after_epochs = |epoch, max_epochs| {
            let sampler = SamplerPosition { epoch, ..SamplerPosition::default() };
            let train = TrainConfig { max_updates: 0, max_epochs, ..Default::default() };
            TrainState { sampler, ..TrainState::default() }.end(&train, &ValidConfig::default())
        };
        assert_eq!((after_epochs(1, 2), after_epochs(2, 2)), (None, Some(StopReason::Epochs)));
        assert_eq!(after_epochs(1000, 0), None, "0 is no limit");
    }

    #[test]
    fn comes_back_from_json_as_it_was() {
        let state = TrainState {
            step: 7,
            best: Some(Judged { step: 5, value: 0.1 + 0.2, loss: 1.5, lines: vec![3, 0, u32::MAX] }),
            next_best: vec![Judged { step: 4, value: 0.2, loss: 1.25, lines: Vec::new() }],
            stale: 1,
            seconds: 1.0 / 3.0,
            window: Window { smoothed: 2.0 / 7.0, nll: 1e-300, tokens: 9, since: 0.1 },
            text: TextChecksums { train: "ab".to_owned(), corpora: vec!["a".to_owned()], valid: None },
            ..TrainState::default()
        };
        let json = state.to_json(3).unwrap();
        assert_eq!((&json["step"], &json["epoch"], &json["rng"]["seed"]), (&json!(7), &json!(0), &json!(3)));
        let read: Value = serde_json::from_str(&json.to_string()).unwrap();
        assert_eq!(TrainState::from_json(read).unwrap(), state);
        assert!(TrainState::from_json(json!({ "step": 7 })).is_err());
    }
}
