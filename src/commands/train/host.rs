//! What the training loop needs: validation, checkpoints, signals, and the final model.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use serde_json::json;

use super::saver::{Saver, Snapshot};
use crate::checkpoint;
use crate::commands::shared::model::{load_parameters, named, slots};
use crate::commands::shared::run::batches;
use crate::commands::shared::run::directory::{self, Lock};
use crate::commands::shared::run::record::{self, Values};
use crate::commands::shared::run::restore;
use crate::commands::shared::run::training_data::Data;
use crate::commands::shared::run::validator::Validator;
use crate::commands::shared::signals::Signals;
use crate::config::Config;
use crate::console::message;
use crate::data::corpus::Side;
use crate::data::sampler::SamplerPosition;
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::ops::memory::{change_on_host, on_host};
use crate::ops::params::Parameters;
use crate::report::files;
use crate::train::Trainer;
use crate::train::evaluate::Evaluator;
use crate::train::host::{Batches, End, Host, Lines, Validation};
use crate::train::log::{Log, Samples};
use crate::train::optimizer::Optimizer;
use crate::train::state::{TextChecksums, TrainState};

/// The surroundings of one run.
pub struct RunHost<'a> {
    /// Run directory.
    pub run: &'a Path,
    /// Keeps other processes from training there.
    pub lock: Arc<Lock>,
    /// Resolved configuration.
    pub config: &'a Config,
    /// Checksums of the text.
    pub text: TextChecksums,
    /// The update of the checkpoint that training goes on from, and its record.
    pub loaded: Option<(u64, Values)>,
    /// The training data.
    pub data: &'a Data,
    /// Validation set, if there is one.
    pub validator: Option<Validator>,
    /// Signals.
    pub signals: Signals,
    /// The model's parameters.
    pub parameters: Arc<Parameters>,
    /// Writes checkpoints.
    pub saver: Saver,
    /// The last validation's translations, until they are written.
    pub translations: Vec<String>,
}

impl Host for RunHost<'_> {
    fn validate(&mut self, model: &Transformer, evaluator: &mut Evaluator<'_>) -> Result<Option<Validation>> {
        let Some(validator) = &self.validator else { return Ok(Some(Validation::default())) };
        let mut validation = validator.score(model, evaluator, &self.signals)?;
        self.translations = validation.as_mut().map(|of| std::mem::take(&mut of.translations)).unwrap_or_default();
        // What is shown of it must not be written into another run's directory.
        self.lock.check(self.run)?;
        Ok(validation)
    }

    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()> {
        self.lock.check(self.run)?;
        directory::restore_files(self.run, self.config, &self.data.tokenizers)?;
        if state.best.as_ref().is_some_and(|best| best.step == state.step) {
            self.keep_translations(files::BEST);
        }
        // A checkpoint that is written again, because its state is another, keeps the record of how it was trained.
        let configuration = match &self.loaded {
            Some((step, record)) if *step == state.step => record.clone(),
            _ => record::of(self.config),
        };
        let state = TrainState { configuration, ..state.clone() };
        // The previous one is in memory until it is written, and there may be no room for two.
        self.saver.finish()?;
        let copy = |tensor: &Tensor| on_host(tensor, |values| Ok(values.to_vec()));
        let moments = optimizer.tensors().into_iter().map(|(name, tensor)| Ok((name, copy(tensor)?)));
        let snapshot = Snapshot {
            run: self.run.to_path_buf(),
            lock: self.lock.clone(),
            step: state.step,
            best: state.best.as_ref().map(|best| best.step),
            parameters: self.parameters.clone(),
            values: copy(optimizer.model_values())?,
            moments: moments.collect::<Result<_>>()?,
            state: state.to_json(self.config.train.seed)?,
            config: self.config.train.clone(),
        };
        self.saver.begin(snapshot)
    }

    fn check(&mut self) -> Result<()> {
        self.saver.check()
    }

    fn wait_until_saved(&mut self) -> Result<()> {
        self.saver.finish()
    }

    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, before: u64) -> Result<Option<TrainState>> {
        self.saver.finish()?;
        // They belong to updates that are undone.
        self.translations.clear();
        let is_sound = |state: &TrainState| state.step < before && state.health.in_a_row == 0;
        let Some(mut state) = restore::go_back(self.run, model, optimizer, is_sound, &|line| message(line))? else {
            return Ok(None);
        };
        let before = state.configuration.clone();
        let is_other_order = record::is_other_order(&before, self.config) || state.text.train != self.text.train;
        state.sampler = batches::nearest(self.data, self.config, state.sampler, is_other_order)?;
        record::adapt(&mut state, &before, self.config, self.text.clone());
        self.loaded = Some((state.step, state.configuration.clone()));
        Ok(Some(state))
    }

    fn batches(&self, position: SamplerPosition) -> Result<Batches> {
        batches::batches(self.data, self.config, position)
    }

    fn lines(&self, pairs: &[usize]) -> Vec<Lines> {
        let mut files: Vec<Lines> = Vec::new();
        for &pair in pairs {
            let (path, line) = self.data.corpus.origin(pair, Side::Source);
            match files.iter_mut().find(|lines| lines.file == path) {
                Some(file) => file.lines.push(line),
                None => files.push(Lines { file: path.to_path_buf(), lines: vec![line] }),
            }
        }
        files.iter_mut().for_each(|file| file.lines.sort_unstable());
        files
    }

    fn stop(&self) -> Option<End> {
        self.signals.stop()
    }
}

impl RunHost<'_> {
    /// Writes the last validation's translations under this name, for reports and comparisons.
    fn keep_translations(&mut self, name: &str) {
        let (Some(validator), false) = (&self.validator, self.translations.is_empty()) else { return };
        let texts =
            [(files::REFERENCE, files::lines(validator.references())), (name, files::lines(&self.translations))];
        for (name, text) in texts {
            // The next save tells of it.
            if self.lock.check(self.run).is_err() {
                break;
            }
            if let Err(error) = files::replace(self.run, name, &text) {
                message(format_args!("warning: {error}"));
            }
        }
        self.translations.clear();
    }

    /// Makes the final model: the mean of the last checkpoints, else the exponential average, else the better of the best
    /// checkpoint and the last update. Returns which it is, and its validation.
    pub fn finish(&mut self, trainer: &mut Trainer<'_>) -> Result<(String, Option<Validation>)> {
        let (model, step) = (trainer.model, trainer.state.step);
        self.lock.check(self.run)?;
        let of_last = self.validation_of_last(trainer)?;
        let Trainer { optimizer, log, .. } = &*trainer;
        let what = if self.config.train.average_last > 0 {
            self.average(model, log, step)?
        } else if optimizer.average().is_some() {
            model.parameters().values().slice_set(optimizer.model_values(), 0, 0)?;
            "exponential average".to_owned()
        } else if of_last.is_some() || self.is_past_validation(&trainer.state) {
            format!("last, update {step}")
        } else {
            self.best_or_last(model, log, step)?
        };
        self.lock.check(self.run)?;
        directory::restore_files(self.run, self.config, &self.data.tokenizers)?;
        on_host(model.parameters().values(), |values| {
            Ok(checkpoint::save_model(self.run, &named(self.parameters.entries(), values), None))
        })??;
        let (mut result, mut validated) = (String::new(), None);
        let validation = match of_last {
            None if self.validator.is_some() => self.validate(model, &mut trainer.evaluator())?,
            of_last => of_last,
        };
        if let Some(validation) = validation {
            result = format!("; valid {validation}");
            self.keep_translations(files::FINAL);
            let (log, seconds) = (&mut trainer.log, trainer.state.seconds);
            log.samples(Samples { update: step, is_final: true, explained: &validation.explained });
            for entry in validation.monitored_entries(step, &json!({ "seconds": seconds, "model": what })) {
                log.entry(&entry);
            }
            log.entry(&validation.entry("final", step, json!({ "model": what })));
            validated = Some(validation);
        }
        let log = &trainer.log;
        log.line(&format!("final model: {what}{result}"));
        validated.iter().flat_map(Validation::monitored_lines).for_each(|line| log.line(&line));
        log.line(&format!("saved in {}", self.run.display()));
        if let (Some(made), Some(best)) = (&validated, &trainer.state.best) {
            let metric = trainer.valid.metric;
            let value = metric.with(best.value);
            if metric.is_better((best.value, best.loss), (made.value, made.loss)) && value != metric.with(made.value) {
                log.line(&format!("note: update {} was better ({value}): `--checkpoint best` uses that", best.step));
            }
        }
        if validated.as_ref().is_some_and(|of: &Validation| !of.loss.is_finite()) {
            let error =
                format!("training has diverged: the final model, {what}, gives no finite loss on the validation set");
            return Err(Error::failure(error).help(
                "an earlier checkpoint may be good (`mt info` lists them, --checkpoint best uses the best); to train on, start \
                 again with a lower learning rate",
            ));
        }
        trainer.log.complete()?;
        Ok((what, validated))
    }

    /// Whether validations were turned off, and training went on: what they found says nothing about the last update.
    fn is_past_validation(&self, state: &TrainState) -> bool {
        let validated = state.validated.or(state.best.as_ref().map(|best| best.step));
        self.validator.is_none() && validated.is_some_and(|validated| validated < state.step)
    }

    /// The validation of the last update, if none was due after it and it is better than the best so far. Not needed for a mean
    /// of models.
    fn validation_of_last(&mut self, trainer: &mut Trainer<'_>) -> Result<Option<Validation>> {
        let (step, validated) = (trainer.state.step, trainer.state.validated);
        let is_mean = self.config.train.average_last > 0 || trainer.optimizer.average().is_some();
        // In checkpoints of older versions, `valid.every` says whether there was one.
        let was_due = self.config.valid.every > 0 && step.is_multiple_of(self.config.valid.every);
        let was_validated = validated.map_or(was_due, |update| update == step);
        let Some(best) = trainer.state.best.as_ref().map(|best| (best.value, best.loss)) else { return Ok(None) };
        if is_mean || was_validated || self.validator.is_none() {
            return Ok(None);
        }
        let validation = self.validate(trainer.model, &mut trainer.evaluator())?;
        let metric = trainer.valid.metric;
        let is_better = |of: &Validation| of.loss.is_finite() && metric.is_better((of.value, of.loss), best);
        Ok(validation.filter(is_better))
    }

    /// Loads the best checkpoint; a damaged one is reported, and the parameters stay those of the last update.
    fn best_or_last(&self, model: &Transformer, log: &Log, step: u64) -> Result<String> {
        let last = format!("last, update {step}");
        let Some(best) = checkpoint::pointer(self.run, checkpoint::BEST)? else { return Ok(last) };
        let found = checkpoint::find(self.run, best)?;
        // If it is gone, its usual place is named.
        let directory = found.unwrap_or_else(|| checkpoint::directory_of(self.run, best));
        if let Some(error) = self.why_unusable(&directory)? {
            log.damage(&format!("warning: the best checkpoint cannot be used, so the last one is used: {error}"));
            return Ok(last);
        }
        load_parameters(&directory.join(checkpoint::MODEL_FILE), model)?;
        Ok(format!("best, update {best}"))
    }

    /// Why a checkpoint cannot be part of the final model: it is damaged, or was trained as another model.
    ///
    /// # Errors
    /// It cannot be opened.
    fn why_unusable(&self, directory: &Path) -> Result<Option<Error>> {
        let checked = checkpoint::verify(directory);
        let checked = checked.and_then(|_| record::refuse_other_model(self.config, self.run, directory));
        checked.err().map(checkpoint::known_damage).transpose()
    }

    /// Averages the last checkpoints into the model; damaged ones are reported and replaced by earlier ones.
    fn average(&self, model: &Transformer, log: &Log, step: u64) -> Result<String> {
        let mut directories = Vec::new();
        for (number, path) in checkpoint::regular(self.run, self.config.train.save_every, step)?.into_iter().rev() {
            if directories.len() == self.config.train.average_last {
                break;
            }
            match self.why_unusable(&path)? {
                None => directories.push(path),
                Some(why) => {
                    log.damage(&format!(
                        "warning: the checkpoint of update {number} is not part of the average: {why}"
                    ));
                }
            }
        }
        directories.reverse();
        if directories.is_empty() {
            return Ok(format!("last, update {step}"));
        }
        let parameters = model.parameters();
        let slots = slots(parameters.entries());
        change_on_host(parameters.values(), |flat| checkpoint::average(&directories, &slots, flat))??;
        Ok(match directories.len() {
            1 => "average of one checkpoint, the last".to_owned(),
            several => format!("average of the last {several} checkpoints"),
        })
    }
}
