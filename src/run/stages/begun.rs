//! The last stage: training, to the end or to a signal.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::{Parts, Resolved, UPDATES_REACHED};
use crate::error::Result;
use crate::notice::Notice;
use crate::report::page;
use crate::run::callbacks::RunCallbacks;
use crate::run::finish::Final;
use crate::train::log::Log;
use crate::train::profile::{Profile, Profiler};
use crate::train::{Pipeline, StopReason, Trainer, Validation};

/// A run that has begun.
pub struct Begun<'a> {
    pub(super) parts: Parts<'a>,
    pub(super) log: Log,
}

/// How a run has ended, or was stopped.
pub struct Outcome {
    /// Its directory.
    pub run: PathBuf,
    /// Its last update.
    pub update: u64,
    /// The signal that has stopped it, if one has.
    pub stopped: Option<StopReason>,
    /// Why training has ended, in words.
    pub why: String,
    /// Which model became the final one, if there is one.
    pub model: Option<String>,
    /// The validation of the final model, if one was made.
    pub validation: Option<Validation>,
    /// What it was chosen from, as in the log, if there was a choice.
    pub candidates: Vec<Value>,
    /// Where the time went, if that was asked for.
    pub profile: Option<Profile>,
}

impl Begun<'_> {
    /// Trains to the end, and makes the final model unless a signal stops it before.
    ///
    /// # Errors
    /// Training cannot go on. What the last checkpoint holds is kept.
    pub fn train(self) -> Result<Outcome> {
        let Self { parts, log } = self;
        let Parts {
            resolved,
            surroundings,
            lock,
            data,
            validator,
            model,
            backend,
            optimizer,
            state,
            is_loaded,
            machine,
            session,
            saver,
            copies_checkpoints,
        } = parts;
        let Resolved { config, run, .. } = &resolved;
        let profiles = resolved.request.profile;
        let mut callbacks = RunCallbacks {
            run,
            lock: Arc::new(lock),
            config,
            text: state.text.clone(),
            loaded: is_loaded.then(|| (state.step, state.configuration.clone())),
            machine,
            data: &data,
            validator,
            stop: surroundings.stop,
            tell: surroundings.tell,
            parameters: model.parameters().clone(),
            saver,
            copies_checkpoints,
            latest: None,
            group: surroundings.group,
        };
        let mut trainer = Trainer {
            model: &model,
            optimizer,
            config: &config.train,
            valid: &config.valid,
            state,
            log,
            padding: data.tokenizers.target.pad_id(),
            backend,
            profiler: profiles.then(Profiler::default),
            session,
            pipeline: Pipeline::default(),
        };
        let end = trainer.run(&mut callbacks)?;
        // Even if there was no validation since the last page, or none at all.
        let drawn = page::Run::open(run).map(|of_run| page::page(&[of_run], &Value::Null));
        if let Err(error) = drawn.and_then(|drawn| page::write(run, drawn.as_bytes())) {
            trainer.log.damage(&format!("warning: {error}"));
        }
        let profile = match trainer.profiler.take() {
            Some(profiler) => profiler.finish(&mut *trainer.backend)?,
            None => None,
        };
        if profiles && profile.is_none() {
            let text = "nothing to profile: the first three updates are not counted, and there were no more";
            (callbacks.tell)(Notice::Note(text.to_owned()));
        }
        let update = trainer.state.step;
        let mut outcome = Outcome {
            run: run.clone(),
            update,
            stopped: matches!(end, StopReason::Interrupted | StopReason::Terminated).then_some(end),
            why: why(end, update, config.valid.patience),
            model: None,
            validation: None,
            candidates: Vec::new(),
            profile,
        };
        if outcome.stopped.is_some() {
            return Ok(outcome);
        }
        trainer.log.line(&format!("training ended at update {update}: {}", outcome.why));
        let Final { model, validation, candidates } = callbacks.finish(&mut trainer)?;
        if callbacks.validator.is_some() && validation.is_none() {
            outcome.stopped = callbacks.stop.stop();
        }
        Ok(Outcome { model: Some(model), validation, candidates, ..outcome })
    }
}

/// Why training has ended at an update.
fn why(end: StopReason, update: u64, patience: u64) -> String {
    match end {
        StopReason::Interrupted | StopReason::Terminated if update == 0 => {
            "stopped by a signal before the first update".to_owned()
        }
        StopReason::Interrupted | StopReason::Terminated => {
            format!("stopped by a signal at update {update}; everything is saved")
        }
        StopReason::Updates => UPDATES_REACHED.to_owned(),
        StopReason::Epochs => "train.max_epochs reached".to_owned(),
        StopReason::Patience if patience == 1 => "a validation without an improvement (valid.patience)".to_owned(),
        StopReason::Patience => format!("{patience} validations without an improvement (valid.patience)"),
    }
}
