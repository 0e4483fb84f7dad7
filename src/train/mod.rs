//! The training loop.
//!
//! ```text
//! batches → loss.backward() → gradients (summed over micro-batches and ranks) → clip → Adam → log, validate, save
//! ```
//!
//! Losses are summed over tokens and the gradient is divided by the update's real target tokens, so that accumulation and
//! ranks change nothing. Validation, saving and signals are the [`Host`]'s business: this module knows neither search nor
//! metrics nor files.

pub mod log;
pub mod memory;
pub mod optimizer;
pub mod profile;
pub mod schedule;
pub mod state;

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use crate::config::{TrainConfig, ValidConfig, ValidMetric};
use crate::data::batch::Batch;
use crate::data::prefetch::{Prefetch, Prepared};
use crate::error::{Error, Result};
use crate::model::{Sequences, Transformer};
use crate::ops::loss::{Sums, Targets};
use crate::ops::profile as counters;
use crate::ops::{self, Mode};
use crate::rng;
use log::Log;
use optimizer::Optimizer;
use state::{Best, TrainState, Window};

/// What a validation found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Mean smoothed loss a target token.
    pub loss: f64,
    /// e^(mean negative log-likelihood a target token).
    pub perplexity: f64,
    /// BLEU of translations, where they were made.
    pub bleu: Option<f64>,
    /// Lines to show: sample translations.
    pub samples: Vec<String>,
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
    /// SIGTERM.
    Terminated,
}

/// What the loop asks of its surroundings.
pub trait Host {
    /// Scores the model (whose parameters are those it is judged by); `None` if a signal asked to stop meanwhile.
    fn validate(&mut self, model: &Transformer) -> Result<Option<Validation>>;
    /// Writes a checkpoint.
    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()>;
    /// Marks the checkpoint of this update as the best.
    fn mark_best(&mut self, step: u64) -> Result<()>;
    /// Whether a signal asks to stop, and which.
    fn stop(&self) -> Option<End>;
}

/// Sums gradients over the ranks of a data-parallel run.
pub trait Communicator {
    /// Sums the flat gradients over all ranks, in place, and returns the sum of `tokens`.
    fn sum(&self, gradients: &candle_core::Tensor, tokens: u64) -> Result<u64>;
}

/// The only rank.
pub struct Alone;

impl Communicator for Alone {
    fn sum(&self, _: &candle_core::Tensor, tokens: u64) -> Result<u64> {
        Ok(tokens)
    }
}

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
    /// Sums gradients over ranks.
    pub communicator: &'a dyn Communicator,
    /// The label that is padding.
    pub padding: u32,
    /// Which operations to use.
    pub implementation: ops::Implementation,
    /// Counts where the time goes, if asked for.
    pub profiler: Option<profile::Profiler>,
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

/// One update's result.
struct Update {
    sums: Sums,
    tokens: u64,
    gradient_norm: f64,
    learning_rate: f64,
    epoch: u64,
}

/// A batch in the form the model takes: source, decoder input, labels.
pub fn inputs(batch: &Batch, padding: u32, smoothing: f64) -> (Sequences, Sequences, Targets) {
    let sequences = |ids: &[u32], lengths: &[u32], length: usize| Sequences {
        ids: ids.to_vec(),
        lengths: Arc::new(lengths.to_vec()),
        length,
    };
    (
        sequences(&batch.source, &batch.source_lengths, batch.source_length),
        sequences(&batch.target_input, &batch.target_lengths, batch.target_length),
        Targets { labels: batch.labels.clone(), padding, smoothing: smoothing as f32 },
    )
}

fn diverged(step: u64, update: &Update) -> Error {
    let (loss, norm) = (update.sums.smoothed / update.tokens as f64, update.gradient_norm);
    Error::failure(format!("training has diverged: at update {step} the loss is {loss} and the gradient's norm {norm}"))
        .help(
            "go on from the last checkpoint with --resume and a lower learning rate (--set train.schedule.factor=… with noam, \
             else train.schedule.learning_rate=…), or with --set train.clip_norm=1",
        )
}

impl Trainer<'_> {
    /// Trains until a limit, patience or a signal ends it.
    pub fn run(&mut self, batches: &mut Prefetch<Prepared<Vec<Batch>>>, host: &mut dyn Host) -> Result<End> {
        let clock = Clock { before: self.state.seconds, started: Instant::now() };
        if self.state.validation_due && self.valid.every > 0 {
            self.validate(host, &clock)?;
        }
        let end = loop {
            if let Some(end) = self.limit(host) {
                break end;
            }
            let Some(update) = self.update(batches)? else { break End::Epochs };
            self.state.seconds = clock.seconds();
            {
                let _timer = counters::phase("report");
                self.report(&update)?;
            }
            if let Some(profiler) = &mut self.profiler {
                profiler.updated();
            }
            let mut saved = false;
            if self.valid.every > 0 && self.state.step.is_multiple_of(self.valid.every) {
                let _timer = counters::phase("validation");
                saved = self.validate(host, &clock)?;
            }
            if !saved && self.config.save_every > 0 && self.state.step.is_multiple_of(self.config.save_every) {
                let _timer = counters::phase("checkpoint");
                host.save(&self.optimizer, &self.state)?;
            }
        };
        // Before the first update there is nothing to lose.
        if self.state.step > 0 {
            host.save(&self.optimizer, &self.state)?;
        }
        self.log.finish();
        Ok(end)
    }

    /// Why training should end now, if it should.
    fn limit(&self, host: &dyn Host) -> Option<End> {
        if let Some(signal) = host.stop() {
            return Some(signal);
        }
        if self.config.max_updates > 0 && self.state.step >= self.config.max_updates {
            return Some(End::Updates);
        }
        (self.valid.patience > 0 && self.state.stale >= self.valid.patience).then_some(End::Patience)
    }

    /// One update over `accumulate` micro-batches; `None` when the data are at their end.
    fn update(&mut self, batches: &mut Prefetch<Prepared<Vec<Batch>>>) -> Result<Option<Update>> {
        let step = self.state.step + 1;
        let mut update = Update { sums: Sums::default(), tokens: 0, gradient_norm: 0.0, learning_rate: 0.0, epoch: 0 };
        {
            let _timer = counters::phase("optimizer");
            self.model.parameters().clear_gradients()?;
        }
        let mut passes = 0u64;
        for _ in 0..self.config.accumulate {
            let waiting = counters::phase("wait for a batch");
            let Some(prepared) = batches.next() else { break };
            drop(waiting);
            let Prepared { item: parts, position } = prepared?;
            for batch in &parts {
                let mode = Mode {
                    training: Some(rng::key(self.config.seed, "dropout", &[step, passes])),
                    implementation: self.implementation,
                };
                let timer = counters::phase("forward");
                let (source, target, targets) = inputs(batch, self.padding, self.config.label_smoothing);
                let (loss, sums) = self.model.loss(&source, &target, &targets, &mode)?;
                drop(timer);
                let timer = counters::phase("backward");
                loss.backward()?;
                drop(loss);
                drop(timer);
                update.sums.smoothed += sums.smoothed;
                update.sums.likelihood += sums.likelihood;
                update.tokens += batch.target_tokens as u64;
                update.epoch = batch.epoch;
                passes += 1;
            }
            self.state.sampler = position;
        }
        if update.tokens == 0 {
            return Ok(None);
        }
        let _timer = counters::phase("optimizer");
        let gradients = self.model.parameters().gradients();
        let tokens = self.communicator.sum(gradients, update.tokens)?;
        let mut scale = 1.0 / tokens as f64;
        update.gradient_norm = ops::optimizer::norm(gradients)? * scale;
        if !(update.gradient_norm.is_finite() && update.sums.smoothed.is_finite()) {
            return Err(diverged(step, &update));
        }
        if self.config.clip_norm > 0.0 && update.gradient_norm > self.config.clip_norm {
            scale *= self.config.clip_norm / update.gradient_norm;
        }
        update.learning_rate = schedule::learning_rate(&self.config.schedule, self.model.config().d_model, step);
        self.optimizer.step(step, update.learning_rate, scale)?;
        self.state.step = step;
        self.state.target_tokens += tokens;
        Ok(Some(update))
    }

    /// Progress after every update, and a line of the log every `log_every`.
    fn report(&mut self, update: &Update) -> Result<()> {
        let step = self.state.step;
        let window = &mut self.state.window;
        window.smoothed += update.sums.smoothed;
        window.likelihood += update.sums.likelihood;
        window.tokens += update.tokens;
        let important = self.config.log_every > 0 && step.is_multiple_of(self.config.log_every);
        let tokens = window.tokens as f64;
        let (loss, perplexity) = (window.smoothed / tokens, (window.likelihood / tokens).exp());
        let rate = tokens / (self.state.seconds - window.since).max(1e-9);
        let text = format!(
            "epoch {} loss {loss:.3} ppl {perplexity:.2} lr {:.2e} {rate:.0} tok/s",
            update.epoch + 1,
            update.learning_rate
        );
        self.log.progress(step, text, important);
        if important {
            self.log.entry(&json!({
                "event": "train", "update": step, "epoch": update.epoch + 1, "loss": loss, "perplexity": perplexity,
                "learning_rate": update.learning_rate, "gradient_norm": update.gradient_norm,
                "target_tokens": self.state.target_tokens, "tokens_per_second": rate,
                "seconds": self.state.seconds, "memory": crate::device::resident_memory(),
            }))?;
            self.begin_window();
        }
        Ok(())
    }

    fn begin_window(&mut self) {
        self.state.window = Window { since: self.state.seconds, ..Window::default() };
    }

    /// Validates, saves if it is the best so far, and says so. Returns whether a checkpoint was written. What a signal cuts
    /// short is done when the run goes on.
    fn validate(&mut self, host: &mut dyn Host, clock: &Clock) -> Result<bool> {
        let step = self.state.step;
        let model = self.model;
        self.state.validation_due = true;
        let Some(result) = self.optimizer.with_model_values(|| host.validate(model))?? else { return Ok(false) };
        self.state.validation_due = false;
        let loss = result.loss;
        // Equal BLEU is common while it is 0: the loss tells which model has learnt more.
        let (value, better) = match (self.valid.metric, result.bleu) {
            (ValidMetric::Bleu, Some(bleu)) => {
                (bleu, self.state.best.as_ref().is_none_or(|best| (bleu, -loss) > (best.value, -best.loss)))
            }
            _ => (loss, self.state.best.as_ref().is_none_or(|best| loss < best.value)),
        };
        if better {
            self.state.best = Some(Best { step, value, loss });
            self.state.stale = 0;
        } else {
            self.state.stale += 1;
        }
        let bleu = result.bleu.map(|b| format!(" BLEU {b:.2}")).unwrap_or_default();
        let note = match (better, self.valid.patience) {
            (true, _) => " (best so far)".to_owned(),
            (false, 0) => String::new(),
            (false, patience) => format!(" (no better: {} of {patience})", self.state.stale),
        };
        let seconds = clock.seconds() - self.state.seconds;
        self.state.seconds += seconds;
        self.begin_window();
        self.log.line(&format!(
            "valid at {step}: loss {:.3} ppl {:.2}{bleu}{note} [{seconds:.1} s]",
            result.loss, result.perplexity
        ));
        for sample in &result.samples {
            self.log.line(sample);
        }
        self.log.entry(&json!({
            "event": "valid", "update": step, "loss": result.loss, "perplexity": result.perplexity, "bleu": result.bleu,
            "best": better, "stale": self.state.stale, "samples": result.samples, "seconds": self.state.seconds,
            "validation_seconds": seconds,
        }))?;
        if better {
            host.save(&self.optimizer, &self.state)?;
            host.mark_best(step)?;
        }
        Ok(better)
    }
}
