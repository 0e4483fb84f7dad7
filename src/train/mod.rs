//! The training loop.
//!
//! ```text
//! micro-batches → backend: forward, back → reduce (over ranks) → decide, clip → Adam → log, validate, save
//! ```
//!
//! Losses are summed over tokens and the gradient is divided by the update's real target tokens. An update is made of
//! `train.accumulate` micro-batches over all ranks, and dropout is drawn by a micro-batch's number among these, so that
//! the number of ranks changes nothing but rounding. All ranks decide from the same sums whether they make an update,
//! skip it or stop. Where pairs have weights, each pair's loss is multiplied by its own; the
//! tokens that the sum is divided by count whole, so that a pair of weight 0.5 moves the parameters half as much,
//! whatever else is in the update. Validation, saving and signals are the [`Callbacks`]'s business: this module knows
//! neither search nor metrics, and of files only the log.

pub mod backend;
pub mod best;
pub mod callbacks;
mod config;
pub mod evaluate;
pub mod health;
mod interval;
pub mod log;
pub mod memory;
pub mod optimizer;
pub mod pipeline;
pub mod precision;
pub mod profile;
mod report;
pub mod schedule;
pub mod split;
pub mod state;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::data::batch::Batch;
use crate::error::{Error, Result};
use crate::model::{Sequences, Transformer};
use crate::ops::loss::Targets;
use crate::ops::{Mode, profile as counters};
use backend::Backend;
use best::Judge;
use callbacks::Batches;
pub use callbacks::{Callbacks, Score, StopReason, Validation};
pub use config::{InitLayers, LowRankConfig, PROJECTIONS, TrainConfig, ValidConfig, ValidMetric};
use evaluate::Evaluator;
pub use interval::Interval;
use log::{Log, Progress};
use optimizer::Optimizer;
pub use optimizer::OptimizerConfig;
pub use pipeline::{Pipeline, rehearse};
pub use precision::WantedPrecision;
pub use schedule::ScheduleConfig;
use split::{Limit, MicroBatch};
use state::{TrainState, Window};

/// A training run.
pub struct Trainer<'a> {
    /// The model.
    pub model: &'a Transformer,
    /// Optimizer state.
    pub optimizer: Optimizer,
    /// `[train]`.
    pub config: &'a TrainConfig,
    /// `[valid]`.
    pub valid: &'a ValidConfig,
    /// Where the run stands.
    pub state: TrainState,
    /// The log.
    pub log: Log,
    /// The label that is padding.
    pub padding: u32,
    /// What computes losses and gradients, and adds them up over ranks.
    pub backend: Box<dyn Backend>,
    /// Counts where the time goes, if asked for.
    pub profiler: Option<profile::Profiler>,
    /// The state of this start of the run alone; default at its beginning.
    pub session: Session,
    /// Updates in flight; none at the beginning.
    pub pipeline: Pipeline,
}

/// State of one start of a run, which no checkpoint stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    /// How long saving has kept training waiting.
    saving: Duration,
    /// The update of the last checkpoint.
    saved_at: Option<u64>,
    /// Whether validation and a checkpoint come after the last update that this start has made.
    due: (bool, bool),
    /// Whether it has been said that most translations are the same.
    repeated_told: bool,
    /// How many updates this start has made.
    updates: u64,
    /// Whether a slow rank has been named.
    slow_told: bool,
    /// What fits into the device's memory in training, …
    limit: Limit,
    /// … and in validation.
    limit_of_evaluation: Limit,
}

/// How a validation went.
enum Validated {
    /// It is one of the best so far, and a checkpoint was written.
    Saved,
    /// There were better ones.
    NotSaved,
    /// A signal cut it short. A resumed run makes it again.
    CutShort,
    /// The loss is not finite.
    NotFinite,
}

/// The time spent on a run.
struct Clock {
    /// Seconds in earlier starts of the run.
    before: f64,
    started: Instant,
}

impl Clock {
    fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }
}

/// A batch in the form the model takes: source, decoder input, and targets with the `loss` of these, which have no
/// labels. With R-Drop, all rows are there twice.
pub fn inputs(batch: &Batch, loss: &Targets) -> (Sequences, Sequences, Targets) {
    let times = if loss.r_drop > 0.0 { 2 } else { 1 };
    let sequences = |ids: &[u32], lengths: &[u32], length: usize| Sequences {
        ids: ids.repeat(times),
        lengths: Arc::new(lengths.repeat(times)),
        length,
    };
    let weights = batch.weights.iter().flat_map(|weight| std::iter::repeat_n(*weight, batch.target_length));
    let weights = weights.collect::<Vec<_>>().repeat(times);
    (
        sequences(&batch.source, &batch.source_lengths, batch.source_length),
        sequences(&batch.target_input, &batch.target_lengths, batch.target_length),
        Targets { labels: batch.labels.repeat(times), weights, ..*loss },
    )
}

/// Begins an update and goes over the parts of micro-batches, each in the mode that `mode` gives for the numbers of the
/// micro-batch and the part; ends early if it gives none. [`Backend::reduce`] must follow if `is_reduced`, and must
/// not otherwise.
pub fn accumulate(
    backend: &mut dyn Backend,
    batches: &[MicroBatch],
    loss: &Targets,
    is_reduced: bool,
    mut mode: impl FnMut(u64, u64) -> Option<Mode>,
) -> Result<()> {
    backend.begin()?;
    let mut left: usize = batches.iter().map(|batch| batch.parts.len()).sum();
    for MicroBatch { number, parts } in batches {
        for (part, batch) in (0..).zip(parts) {
            let Some(mode) = mode(*number, part) else { return Ok(()) };
            left -= 1;
            if is_reduced && left == 0 {
                backend.expect_reduce();
            }
            let (source, target, targets) = inputs(batch, loss);
            backend.pass(&source, &target, &targets, &mode)?;
        }
    }
    Ok(())
}

fn tell_limit(log: &Log, most: usize) {
    log.line(&format!("note: {}", limit(most)));
}

fn limit(most: usize) -> String {
    format!("out of memory: batches are split into parts of at most {most} padded tokens")
}

/// Which signal has stopped this rank. One that another rank was sent is like SIGTERM.
fn stop_reason(callbacks: &dyn Callbacks) -> StopReason {
    callbacks.stop().unwrap_or(StopReason::Terminated)
}

/// Why a run goes back before it saves or validates.
const NOT_FINITE: &str = "values of the model or the optimizer are not finite";
/// Why a run goes back after a validation.
const NO_LOSS: &str = "the loss on the validation set is not finite";

fn diverged(why: String) -> Error {
    Error::failure(format!("training has diverged: {why}")).help(
        "go on from the last checkpoint with --resume and a lower learning rate (--set train.schedule.factor=… with \
         noam, else train.schedule.learning_rate=…), or with --set train.clip_norm=1; log.jsonl names the lines of \
         skipped batches",
    )
}

impl Trainer<'_> {
    /// What computes losses between two updates.
    pub fn evaluator(&mut self) -> Evaluator<'_> {
        let Self { backend, session, log, padding, config, .. } = self;
        let limit = &mut session.limit_of_evaluation;
        let loss = Targets { r_drop: 0.0, ..config.loss(*padding) };
        Evaluator { backend: &mut **backend, limit, log, loss }
    }

    /// Trains until a limit, patience or a signal ends it.
    pub fn run(&mut self, callbacks: &mut dyn Callbacks) -> Result<StopReason> {
        let clock = Clock { before: self.state.seconds, started: Instant::now() };
        let mut batches = callbacks.batches(self.state.sampler)?;
        if self.state.validation_due && !self.valid.every.is_never() {
            match self.validate(callbacks, &clock)? {
                // Otherwise it would be made again, and be in the log twice, if the process ended now.
                Validated::NotSaved => self.save(callbacks)?,
                Validated::Saved | Validated::CutShort => {}
                Validated::NotFinite if self.state.step == 0 => {
                    let error = Error::failure(format!("{NO_LOSS}, before any update"));
                    return Err(error.help("begin with another model (train.init): its weights cannot be used"));
                }
                Validated::NotFinite => batches = self.go_back(NO_LOSS, callbacks)?,
            }
        }
        let end = loop {
            callbacks.check(self.state.step)?;
            let mut end = self.pipeline.is_empty().then(|| self.state.end(self.config, self.valid)).flatten();
            let mut update = None;
            if end.is_none() {
                self.queue_ahead(callbacks, &mut batches)?;
                update = self.settle()?;
                end = update.is_none().then_some(StopReason::Epochs);
            }
            let is_stopped = update.as_ref().is_some_and(|update| update.is_stopped());
            if is_stopped || end.is_some() {
                // What could not be saved is not where training ends.
                if self.is_unsaved() && !self.optimizer.is_finite(&mut *self.backend)? {
                    batches = self.go_back(NOT_FINITE, callbacks)?;
                    continue;
                }
                break end.map_or_else(|| Ok(stop_reason(callbacks)), |end| self.end(end, callbacks))?;
            }
            let Some(update) = update else { continue };
            self.state.seconds = clock.seconds();
            if !update.outcome.is_made {
                self.skip(&update, callbacks);
                if self.state.health.in_a_row > self.config.max_skipped {
                    let why = match self.state.health.in_a_row {
                        1 => "an update was not finite".to_owned(),
                        several => format!("{several} updates in a row were not finite"),
                    };
                    batches = self.go_back(&why, callbacks)?;
                }
                continue;
            }
            {
                let _timer = counters::phase("report");
                self.report(&update, callbacks);
            }
            if let Some(profiler) = &mut self.profiler {
                profiler.updated();
            }
            let (validation, checkpoint) = self.session.due;
            if (validation || checkpoint) && !self.optimizer.is_finite(&mut *self.backend)? {
                batches = self.go_back(NOT_FINITE, callbacks)?;
                continue;
            }
            let mut saved = false;
            if validation {
                let _timer = counters::phase("validation");
                saved = match self.validate(callbacks, &clock)? {
                    Validated::Saved => true,
                    Validated::NotSaved | Validated::CutShort => false,
                    Validated::NotFinite => {
                        batches = self.go_back(NO_LOSS, callbacks)?;
                        continue;
                    }
                };
            }
            if checkpoint && !saved {
                let _timer = counters::phase("checkpoint");
                self.save(callbacks)?;
            }
        };
        if let Some(profiler) = &mut self.profiler {
            profiler.stop(&mut *self.backend)?;
        }
        if self.is_unsaved() {
            self.save(callbacks)?;
        }
        // The final model is made next.
        self.backend.release_memory();
        let done = callbacks.wait_until_saved();
        // Neither the final model nor the answer to a signal depends on it.
        if let Err(error) = self.log.complete() {
            self.log.damage(&format!("warning: {error}\n  what has been logged since is lost"));
        }
        self.log.finish();
        done?;
        Ok(end)
    }

    /// Whether there is something to save. Before the first update there is nothing to lose.
    fn is_unsaved(&self) -> bool {
        self.state.step > 0 && self.session.saved_at != Some(self.state.step)
    }

    /// Saves, counting the time that training waits for it.
    fn save(&mut self, callbacks: &mut dyn Callbacks) -> Result<()> {
        let started = Instant::now();
        // Saved again, it stays what it was, though `train.save_every` may be another now.
        self.state.regular.get_or_insert(self.session.due.1);
        callbacks.save(&self.optimizer, &self.state)?;
        self.session.saving += started.elapsed();
        self.session.saved_at = Some(self.state.step);
        Ok(())
    }

    /// Why training ends where its configuration or data say so: a signal that has come meanwhile counts more.
    fn end(&mut self, end: StopReason, callbacks: &dyn Callbacks) -> Result<StopReason> {
        let is_stopped = self.backend.any(callbacks.stop().is_some())?;
        Ok(if is_stopped { stop_reason(callbacks) } else { end })
    }

    /// Whether validation and a checkpoint come after an update, before and after which so many epochs are complete.
    fn due(&self, step: u64, epochs: [u64; 2]) -> (bool, bool) {
        (self.valid.every.is_over(step, epochs), self.config.save_every.is_over(step, epochs))
    }

    /// Goes on from the last sound checkpoint with a lower learning rate, once; returns the batches from there.
    ///
    /// # Errors
    /// There is no sound checkpoint, or the run has gone back before.
    fn go_back(&mut self, why: &str, callbacks: &mut dyn Callbacks) -> Result<Batches> {
        let step = self.state.step;
        let report = |more: &str| {
            let (skipped, tokens) = (self.state.health.skipped, self.state.target_tokens);
            diverged(format!(
                "after update {step}, {why}{more}; {skipped} updates skipped, {tokens} target tokens seen"
            ))
        };
        if self.state.health.is_rate_lowered() {
            return Err(report(", though the learning rate has been lowered"));
        }
        self.backend.release_memory();
        let Some(state) = callbacks.go_back(self.model, &self.optimizer, step)? else {
            let error = report(", and there is no checkpoint to go back to");
            return Err(error.help(
                "start again with --overwrite and a lower learning rate (--set train.schedule.factor=… with noam, else \
                 train.schedule.learning_rate=…); log.jsonl names the lines of skipped batches",
            ));
        };
        self.pipeline = Pipeline::default();
        let health = self.state.health.gone_back_to(&state.health);
        self.log.rewind(Progress { step: state.step, ..self.state.progress() })?;
        self.log.damage(&format!(
            "warning: after update {step}, {why}: going on from the checkpoint of update {} with {} times the learning \
             rate",
            state.step, health.rate
        ));
        self.log.entry(&json!({
            "event": "back", "update": state.step, "from": step, "why": why, "rate": health.rate,
            "skipped": health.skipped, "returns": health.returns,
        }));
        // The time between is not that of the window's tokens.
        let since = state.window.since + self.state.seconds - state.seconds;
        let window = Window { since, ..state.window };
        self.state = TrainState { health, seconds: self.state.seconds, window, ..state };
        // Otherwise a kill before the next checkpoint would bring back the old rate.
        self.save(callbacks)?;
        callbacks.batches(self.state.sampler)
    }

    /// Validates, saves if it is one of the best so far, and says so.
    fn validate(&mut self, callbacks: &mut dyn Callbacks, clock: &Clock) -> Result<Validated> {
        let step = self.state.step;
        let (model, number) = (self.model, self.state.validations + 1);
        self.state.validation_due = true;
        if self.optimizer.average().is_some() {
            // All parameters are about to be copied.
            self.backend.release_memory();
        }
        let values = self.optimizer.begin_model_values()?;
        let result = callbacks.validate(model, &mut self.evaluator(), number);
        self.optimizer.end_model_values(values)?;
        let result = result?;
        let is_cut = self.backend.any(result.is_none())?;
        let Some(result) = result.filter(|_| !is_cut) else { return Ok(Validated::CutShort) };
        if !result.loss.is_finite() {
            return Ok(Validated::NotFinite);
        }
        self.state.validation_due = false;
        self.state.validated = Some(step);
        self.state.validations += 1;
        let judge = Judge { metric: self.valid.metric, differ: &|a, b| callbacks.differ(a, b) };
        let standing = self.state.rank(result.judged(step), self.config.keep_best, &judge);
        // A score near 0 goes up and down by chance while the loss still falls.
        let improved = self.state.note_loss(result.loss) || standing.is_best();
        if improved {
            self.state.stale = 0;
        } else if step >= self.valid.patience_after {
            self.state.stale += 1;
        }
        self.tell_validation(&result, standing, clock);
        if self.state.plateau.validated(&self.config.schedule, improved) {
            let rate = self.learning_rate(step + 1);
            self.log.line(&format!("note: validation has not improved: the learning rate is lowered to {rate:.2e}"));
        }
        if standing.place.is_some() {
            self.save(callbacks)?;
            return Ok(Validated::Saved);
        }
        Ok(Validated::NotSaved)
    }
}
