//! The final model: what it may be, how each of these does on the validation set, and the choice among them.
//!
//! A mean of checkpoints is usually better than any of them, but far worse where the model still changes fast. So the
//! means of the last N checkpoints (`train.average_last`), of half as many, of a quarter … and down to two compete with
//! the exponential average, the last update and the best checkpoint, by the rule of [`Judge`]. What has been validated
//! already is not validated again: beside the last update, that leaves at most log2 N means.

use std::path::{Path, PathBuf};

use candle_core::Tensor;
use serde_json::{Value, json};

use super::callbacks::RunCallbacks;
use crate::checkpoint::{self, Saved};
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::model_dir::{load_parameters, named, record, slots};
use crate::ops::memory::{change_on_host, on_host};
use crate::report::files;
use crate::run::directory;
use crate::train::best::{Judge, Judged};
use crate::train::log::{Log, Samples};
use crate::train::{Trainer, ValidMetric, Validation};

/// What the final model may be made of.
enum Source {
    /// The mean of the models of these checkpoints.
    Mean(Vec<PathBuf>),
    /// What the validation after the last update judges: its parameters, or their exponential average.
    Current,
    /// The best checkpoint.
    Best(PathBuf),
    /// The last update's parameters, where there is an exponential average.
    WithoutAverage,
}

/// A model that may become the final one.
struct Candidate {
    source: Source,
    name: String,
    /// What a validation has said of it.
    judged: Option<Judged>,
    /// That validation, if it was made since the run was started.
    validation: Option<Validation>,
}

impl Candidate {
    fn new(source: Source, name: String) -> Self {
        Self { source, name, judged: None, validation: None }
    }

    /// What it had, in words.
    fn numbers(&self, judge: &Judge) -> Option<String> {
        let Judged { value, loss, .. } = self.judged.as_ref()?;
        let score = match judge.metric {
            ValidMetric::Loss => String::new(),
            ValidMetric::Bleu | ValidMetric::Chrf | ValidMetric::Comet => format!(" {}", judge.metric.with(*value)),
        };
        Some(self.validation.as_ref().map_or_else(|| format!("loss {loss:.3}{score}"), Validation::to_string))
    }

    /// What it is judged by, for the log and `--json`: the same whether or not the run was interrupted since its
    /// validation.
    fn json(&self, judge: &Judge, is_chosen: bool) -> Value {
        let mut json = json!({ "model": self.name, "loss": null, "bleu": null, "chrf": null });
        if let Some(Judged { value, loss, .. }) = &self.judged {
            json["loss"] = (*loss).into();
            json[judge.metric.name()] = (*value).into();
        }
        json["chosen"] = is_chosen.into();
        json
    }
}

/// The final model of a run.
pub struct Final {
    /// What it is.
    pub model: String,
    /// Its validation, if one was made.
    pub validation: Option<Validation>,
    /// What it was chosen from, as in the log, if there was a choice.
    pub candidates: Vec<Value>,
}

impl RunCallbacks<'_> {
    /// Makes the final model: the best by validation of what the configuration asks for; without a validation set, the
    /// mean of the last checkpoints, else the exponential average, else the best checkpoint or, where none has been
    /// chosen since, the last update.
    pub fn finish(&mut self, trainer: &mut Trainer<'_>) -> Result<Final> {
        self.lock.check(self.run)?;
        // Trying another model overwrites these.
        let last = trainer.model.parameters().values().copy()?;
        let (mut candidates, configured) = self.candidates(trainer)?;
        let has_choice = self.validator.is_some() && candidates.len() > 1;
        let is_stopped = has_choice && !self.try_out(&mut candidates, &last, trainer)?;
        let chosen = if has_choice { self.choose(&candidates, trainer).unwrap_or(configured) } else { configured };
        let tried =
            if has_choice && !is_stopped { self.tell(&candidates, [configured, chosen], trainer) } else { Vec::new() };
        let Candidate { source, name: what, validation, .. } = candidates.swap_remove(chosen);
        self.fill(&source, &last, trainer)?;
        drop(last);
        self.lock.check(self.run)?;
        directory::restore_files(self.run, self.config, &self.data.tokenizers, &*self.tell)?;
        on_host(trainer.model.parameters().values(), |values| {
            Ok(checkpoint::save_model(self.run, &named(self.parameters.entries(), values), None))
        })??;
        let validation = if is_stopped { None } else { self.validation_of_final(validation, trainer)? };
        self.report(&what, validation.as_ref(), &tried, trainer)?;
        Ok(Final { model: what, validation, candidates: tried })
    }

    /// The candidates for the final model, and the one to take without validation.
    fn candidates(&mut self, trainer: &Trainer<'_>) -> Result<(Vec<Candidate>, usize)> {
        let (state, log) = (&trainer.state, &trainer.log);
        let (step, has_average) = (state.step, trainer.optimizer.average().is_some());
        let averaged = self.to_average(log, step)?;
        let directories = |saved: &[Saved]| saved.iter().map(|(_, path)| path.clone()).collect();
        let mut all = Vec::new();
        let mut count = averaged.len();
        while count > 1 {
            let name = format!("average of the last {count} checkpoints");
            all.push(Candidate::new(Source::Mean(directories(&averaged[averaged.len() - count..])), name));
            count /= 2;
        }
        let is_best = state.best.as_ref().is_some_and(|best| best.step == step);
        let mut name = match (has_average, is_best) {
            (true, _) => "exponential average".to_owned(),
            (false, true) => format!("best, update {step}"),
            (false, false) => format!("last, update {step}"),
        };
        match averaged[..] {
            [(of, _)] if of == step => name = "average of one checkpoint, the last".to_owned(),
            [(of, _)] => {
                let name = format!("average of one checkpoint, that of update {of}");
                all.push(Candidate::new(Source::Mean(directories(&averaged)), name));
            }
            _ => {}
        }
        let current = all.len();
        let validation = self.latest.take().filter(|_| state.validated == Some(step));
        let known = state.best.clone().filter(|_| is_best);
        let judged = known.or_else(|| validation.as_ref().map(|validation| validation.judged(step)));
        all.push(Candidate { judged, validation, ..Candidate::new(Source::Current, name) });
        let mut configured = 0;
        if let Some(best) = state.best.clone().filter(|_| !is_best)
            && let Some(directory) = self.usable_best(best.step, log)?
        {
            let is_past = state.validated.unwrap_or(best.step) < step;
            if current == 0 && !has_average && !(self.validator.is_none() && is_past) {
                configured = all.len();
            }
            let name = format!("best, update {}", best.step);
            all.push(Candidate { judged: Some(best), ..Candidate::new(Source::Best(directory), name) });
        }
        if has_average {
            let name = format!("last, update {step}, without the exponential average");
            all.push(Candidate::new(Source::WithoutAverage, name));
        }
        Ok((all, configured))
    }

    /// The directory of the best checkpoint; a damaged one is reported.
    fn usable_best(&self, best: u64, log: &Log) -> Result<Option<PathBuf>> {
        // If it is gone, its usual place is named.
        let found = checkpoint::find(self.run, best)?.unwrap_or_else(|| checkpoint::directory_of(self.run, best));
        let why = self.why_unusable(&found)?;
        if let Some(why) = &why {
            log.damage(&format!("warning: the best checkpoint cannot be used: {why}"));
        }
        Ok(why.is_none().then_some(found))
    }

    /// The last checkpoints, as many as are averaged or as there are; damaged ones are reported and replaced by earlier
    /// ones.
    fn to_average(&self, log: &Log, step: u64) -> Result<Vec<Saved>> {
        let mut found = Vec::new();
        for (number, path) in checkpoint::regular(self.run, step)?.into_iter().rev() {
            if found.len() == self.config.train.average_last {
                break;
            }
            match self.why_unusable(&path)? {
                None => found.push((number, path)),
                Some(why) => {
                    log.damage(&format!(
                        "warning: the checkpoint of update {number} is not part of the average: {why}"
                    ));
                }
            }
        }
        found.reverse();
        Ok(found)
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

    /// Loads a candidate's parameters into the model; `last` holds those of the last update.
    fn fill(&self, source: &Source, last: &Tensor, trainer: &Trainer<'_>) -> Result<()> {
        let parameters = trainer.model.parameters();
        match source {
            Source::Mean(directories) => {
                let slots = slots(parameters.entries());
                change_on_host(parameters.values(), |flat| checkpoint::average(directories, &slots, flat))??;
            }
            Source::Best(directory) => load_parameters(&directory.join(checkpoint::MODEL_FILE), trainer.model)?,
            Source::WithoutAverage => parameters.values().slice_set(last, 0, 0)?,
            Source::Current => {
                let values = trainer.optimizer.average().unwrap_or(last);
                parameters.values().slice_set(values, 0, 0)?;
            }
        }
        Ok(())
    }

    /// Validates the candidates without a validation; returns false if a signal stops it.
    fn try_out(&mut self, candidates: &mut [Candidate], last: &Tensor, trainer: &mut Trainer<'_>) -> Result<bool> {
        let Some(validator) = &self.validator else { return Ok(true) };
        let (model, step) = (trainer.model, trainer.state.step);
        for candidate in candidates.iter_mut().filter(|candidate| candidate.judged.is_none()) {
            self.fill(&candidate.source, last, trainer)?;
            let validation = validator.judge(model, &mut trainer.evaluator(), self.stop)?;
            let Some(validation) = validation else { return Ok(false) };
            candidate.judged = Some(validation.judged(step));
            candidate.validation = Some(validation);
        }
        Ok(true)
    }

    /// The index of the best candidate; `None` if none has a finite loss.
    fn choose(&self, candidates: &[Candidate], trainer: &Trainer<'_>) -> Option<usize> {
        let judged = candidates.iter().enumerate().filter_map(|(i, candidate)| Some((i, candidate.judged.clone()?)));
        let (places, models): (Vec<usize>, Vec<Judged>) = judged.filter(|(_, judged)| judged.loss.is_finite()).unzip();
        let judge = Judge { metric: trainer.valid.metric, differ: &|a, b| self.differ_by_more_than_chance(a, b) };
        judge.choose(&models, trainer.state.highest.as_ref()).map(|chosen| places[chosen])
    }

    /// Says what each candidate had, and which one was chosen; returns the same for the log.
    fn tell(&self, candidates: &[Candidate], [configured, chosen]: [usize; 2], trainer: &Trainer<'_>) -> Vec<Value> {
        let log = &trainer.log;
        let judge = Judge { metric: trainer.valid.metric, differ: &|a, b| self.differ_by_more_than_chance(a, b) };
        log.line("what the final model may be, and what each has on the validation set:");
        for candidate in candidates {
            let numbers = candidate.numbers(&judge).unwrap_or_default();
            log.line(&format!("  {}: {numbers}", candidate.name));
        }
        if chosen != configured {
            let [configured, chosen] = [configured, chosen].map(|index| &candidates[index]);
            let value = |candidate: &Candidate| candidate.judged.as_ref().map_or(f64::NAN, |judged| judged.value);
            let by_loss = match judge.metric.order(value(chosen), value(configured)).is_le() {
                true => String::new(),
                false => format!(": {} differs by no more than chance, and the loss is lower", judge.metric.label()),
            };
            log.line(&format!(
                "note: {} is better than {}, and becomes the final model{by_loss}",
                chosen.name, configured.name
            ));
        }
        let of = |(index, candidate): (usize, &Candidate)| candidate.json(&judge, index == chosen);
        candidates.iter().enumerate().map(of).collect()
    }

    /// The validation of the final model, with the sets that are monitored; `validation` is that of its choice. `None`
    /// if a signal stops it, and without a validation set.
    fn validation_of_final(
        &mut self,
        validation: Option<Validation>,
        trainer: &mut Trainer<'_>,
    ) -> Result<Option<Validation>> {
        let Some(validator) = &self.validator else { return Ok(None) };
        let model = trainer.model;
        validator.score_final(validation, model, &mut trainer.evaluator(), self.stop)
    }

    /// Tells of the final model, and logs it.
    ///
    /// # Errors
    /// Its loss is not finite, or the log cannot be written.
    fn report(
        &mut self,
        what: &str,
        validation: Option<&Validation>,
        tried: &[Value],
        trainer: &mut Trainer<'_>,
    ) -> Result<()> {
        let (step, seconds) = (trainer.state.step, trainer.state.seconds);
        let log = &mut trainer.log;
        for candidate in tried {
            let mut entry = json!({ "event": "candidate", "update": step });
            for (key, value) in candidate.as_object().into_iter().flatten() {
                entry[key] = value.clone();
            }
            log.entry(&entry);
        }
        let mut result = String::new();
        if let Some(validation) = validation {
            result = format!("; valid {validation}");
            self.keep_translations(files::FINAL, &validation.translations);
            log.samples(Samples { update: step, is_final: true, explained: &validation.explained });
            for entry in validation.monitored_entries(step, &json!({ "seconds": seconds, "model": what })) {
                log.entry(&entry);
            }
            log.entry(&validation.entry("final", step, json!({ "model": what })));
        }
        log.line(&format!("final model: {what}{result}"));
        validation.into_iter().flat_map(Validation::monitored_lines).for_each(|line| log.line(&line));
        log.line(&format!("saved in {}", shown_path(self.run)));
        if validation.is_some_and(|of| !of.loss.is_finite()) {
            let error =
                format!("training has diverged: the final model, {what}, gives no finite loss on the validation set");
            return Err(Error::failure(error).help(
                "an earlier checkpoint may be good (`mt info` lists them, --checkpoint best uses the best); to train \
                 on, start again with a lower learning rate",
            ));
        }
        log.complete()
    }
}
