//! The training loop.
//!
//! ```text
//! batches → passes → gradients (summed over micro-batches and ranks) → clip → Adam → log, validate, save
//! ```
//!
//! Losses are summed over tokens and the gradient is divided by the update's real target tokens, so that accumulation and
//! ranks change nothing. Validation, saving and signals are the [`Host`]'s business: this module knows neither search nor
//! metrics nor files.

pub mod evaluate;
pub mod health;
pub mod host;
pub mod log;
pub mod memory;
pub mod optimizer;
pub mod passes;
pub mod profile;
pub mod schedule;
pub mod split;
pub mod state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::config::{TrainConfig, ValidConfig, ValidMetric};
use crate::data::batch::Batch;
use crate::data::prefetch::Prepared;
use crate::data::sampler::SamplerPosition;
use crate::error::{Error, Result};
use crate::model::{Sequences, Transformer};
use crate::ops::Mode;
use crate::ops::loss::Targets;
use crate::ops::optimizer::Outcome;
use crate::ops::profile as counters;
use crate::rng;
use evaluate::Evaluator;
use host::{Batches, Lines};
pub use host::{End, Host, Validation};
use log::{Log, Samples};
use optimizer::Optimizer;
use passes::Passes;
use split::Limit;
use state::{Best, TrainState, Window};

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
    /// What computes losses and gradients.
    pub passes: Box<dyn Passes>,
    /// Counts where the time goes, if asked for.
    pub profiler: Option<profile::Profiler>,
    /// What is known of this start of the run alone; nothing at its beginning.
    pub session: Session,
    /// Updates on their way; none at the beginning.
    pub pipeline: Pipeline,
}

/// What a start of a run knows of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    /// How long saving has kept training waiting.
    saving: Duration,
    /// The update of the last checkpoint.
    saved_at: Option<u64>,
    /// What fits into the device's memory in training, …
    limit: Limit,
    /// … and in validation.
    limit_of_evaluation: Limit,
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

/// The data of an update, and the position behind them.
#[derive(Default)]
struct Drawn {
    batches: Vec<Batch>,
    position: SamplerPosition,
}

/// An update that is under way.
struct Queued {
    drawn: Drawn,
    step: u64,
    /// Of all ranks.
    tokens: u64,
    learning_rate: f64,
}

/// One update's result.
struct Update {
    queued: Queued,
    outcome: Outcome,
}

impl Update {
    /// Its target tokens, on this rank.
    fn tokens(&self) -> u64 {
        tokens(&self.queued.drawn.batches)
    }

    /// Mean smoothed loss a target token.
    fn loss(&self) -> f64 {
        self.outcome.sums.smoothed / self.tokens() as f64
    }

    /// The epoch that its data end in.
    fn epoch(&self) -> u64 {
        self.queued.drawn.batches.last().map_or(0, |batch| batch.epoch)
    }

    /// The pairs it was made of.
    fn pairs(&self) -> Vec<usize> {
        self.queued.drawn.batches.iter().flat_map(|batch| batch.lines.iter().copied()).collect()
    }
}

/// Target tokens.
fn tokens(batches: &[Batch]) -> u64 {
    batches.iter().map(|batch| batch.target_tokens as u64).sum()
}

/// Updates on their way: on a device, the next is queued before the outcome of the last is known.
#[derive(Default)]
pub struct Pipeline {
    queued: VecDeque<Queued>,
    /// Data of updates that were queued behind one that was not made: they will be queued again.
    again: VecDeque<Drawn>,
    /// Why no more could be queued; told when those that are have come to their end.
    failed: Option<Error>,
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

/// Lines that a message names; the log names all.
const NAMED: usize = 8;

/// Some lines of files, as a message names them.
fn in_words(lines: &[Lines]) -> String {
    let all = |Lines { file, lines }: &Lines| {
        let named: Vec<String> = lines.iter().take(NAMED).map(usize::to_string).collect();
        let more = if lines.len() > NAMED { format!(", … ({} lines)", lines.len()) } else { String::new() };
        format!("{}: {}{more}", file.display(), named.join(", "))
    };
    lines.iter().map(all).collect::<Vec<_>>().join("; ")
}

/// Begins an update and goes over batches, in the mode of each, until there is none.
pub fn accumulate(
    passes: &mut dyn Passes,
    batches: &[Batch],
    (padding, smoothing): (u32, f64),
    mut mode: impl FnMut(u64) -> Option<Mode>,
) -> Result<()> {
    passes.begin()?;
    for (number, batch) in (0u64..).zip(batches) {
        let Some(mode) = mode(number) else { break };
        let (source, target, targets) = inputs(batch, padding, smoothing);
        passes.pass(&source, &target, &targets, &mode)?;
    }
    Ok(())
}

/// The mode of a pass of an update.
fn training(seed: u64, step: u64, pass: u64) -> Mode {
    Mode::training(rng::key(seed, "dropout", &[step, pass]))
}

fn tell_limit(log: &Log, most: usize) {
    log.line(&format!("note: out of memory: batches are split into parts of at most {most} padded tokens"));
}

fn diverged(why: String) -> Error {
    Error::failure(format!("training has diverged: {why}")).help(
        "go on from the last checkpoint with --resume and a lower learning rate (--set train.schedule.factor=… with noam, \
         else train.schedule.learning_rate=…), or with --set train.clip_norm=1; log.jsonl names the lines of skipped batches",
    )
}

impl Trainer<'_> {
    /// Goes forward and back over a batch, and forgets it: what does not fit into memory shows before the run begins.
    pub fn rehearse(&mut self, batch: Batch) -> Result<()> {
        self.go_over(vec![batch], 0)?;
        self.passes.sums()?;
        Ok(())
    }

    /// Fills the gradients with those of the batches of update `step`, in parts where they do not fit into memory. Returns
    /// the parts.
    fn go_over(&mut self, batches: Vec<Batch>, step: u64) -> Result<Vec<Batch>> {
        let Self { passes, session, config, log, padding, .. } = self;
        let of_targets = (*padding, config.label_smoothing);
        let work = |batches: &[Batch]| {
            accumulate(&mut **passes, batches, of_targets, |pass| Some(training(config.seed, step, pass)))
        };
        session.limit.within(batches, |most| tell_limit(log, most), work)
    }

    /// What computes losses between two updates.
    pub fn evaluator(&mut self) -> Evaluator<'_> {
        let Self { passes, session, log, padding, config, .. } = self;
        let limit = &mut session.limit_of_evaluation;
        Evaluator { passes: &mut **passes, limit, log, of_targets: (*padding, config.label_smoothing) }
    }

    /// Trains until a limit, patience or a signal ends it.
    pub fn run(&mut self, host: &mut dyn Host) -> Result<End> {
        let clock = Clock { before: self.state.seconds, started: Instant::now() };
        let mut batches = host.batches(self.state.sampler)?;
        if self.state.validation_due && self.valid.every > 0 {
            self.validate(host, &clock)?;
        }
        let end = loop {
            host.check()?;
            if self.pipeline.queued.is_empty() {
                if let Some(error) = self.pipeline.failed.take() {
                    return Err(error);
                }
                if let Some(end) = self.limit(host) {
                    break end;
                }
            }
            while self.may_queue(host) {
                match self.queue(&mut batches) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => self.pipeline.failed = Some(error),
                }
            }
            if self.pipeline.queued.is_empty() && self.pipeline.failed.is_some() {
                continue;
            }
            let Some(update) = self.settle()? else { break End::Epochs };
            self.state.seconds = clock.seconds();
            if !update.outcome.is_made {
                self.skip(&update, host)?;
                if self.state.health.in_a_row > self.config.max_skipped {
                    self.go_back(&format!("{} updates in a row were not finite", self.state.health.in_a_row), host)?;
                    batches = host.batches(self.state.sampler)?;
                }
                continue;
            }
            {
                let _timer = counters::phase("report");
                self.report(&update, host)?;
            }
            if let Some(profiler) = &mut self.profiler {
                profiler.updated();
            }
            let (validation, checkpoint) = self.due(self.state.step);
            if (validation || checkpoint) && !self.optimizer.is_finite()? {
                self.go_back("values of the model or the optimizer are not finite", host)?;
                batches = host.batches(self.state.sampler)?;
                continue;
            }
            let mut saved = false;
            if validation {
                let _timer = counters::phase("validation");
                saved = self.validate(host, &clock)?;
            }
            if checkpoint && !saved {
                let _timer = counters::phase("checkpoint");
                self.save(host)?;
            }
        };
        // Before the first update there is nothing to lose.
        if self.state.step > 0 && self.session.saved_at != Some(self.state.step) {
            self.save(host)?;
        }
        // The final model is made next.
        self.passes.rest();
        let done = host.settle();
        self.log.finish();
        done?;
        Ok(end)
    }

    /// Saves, counting the time that training waits for it.
    fn save(&mut self, host: &mut dyn Host) -> Result<()> {
        let started = Instant::now();
        host.save(&self.optimizer, &self.state)?;
        self.session.saving += started.elapsed();
        self.session.saved_at = Some(self.state.step);
        Ok(())
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

    /// Whether validation and a checkpoint come after an update.
    fn due(&self, step: u64) -> (bool, bool) {
        let is_due = |every: u64| every > 0 && step.is_multiple_of(every);
        (is_due(self.valid.every), is_due(self.config.save_every))
    }

    /// Whether the next update may be queued before the outcome of the last is known.
    fn may_queue(&self, host: &dyn Host) -> bool {
        if self.pipeline.failed.is_some() {
            return false;
        }
        let Some(last) = self.pipeline.queued.back().map(|queued| queued.step) else { return true };
        let under_way = self.pipeline.queued.len();
        under_way < self.passes.depth()
            && self.due(last) == (false, false)
            && last != self.config.max_updates
            && host.stop().is_none()
            && !self.profiler.as_ref().is_some_and(|profiler| profiler.begins_after(under_way))
    }

    /// Draws the data of an update: `accumulate` micro-batches; `None` when the data are at their end.
    fn draw(&mut self, batches: &mut Batches) -> Result<Option<Drawn>> {
        if let Some(drawn) = self.pipeline.again.pop_front() {
            return Ok(Some(drawn));
        }
        let mut drawn = Drawn::default();
        for _ in 0..self.config.accumulate {
            let _timer = counters::phase("wait for a batch");
            let Some(prepared) = batches.next() else { break };
            let Prepared { item, position } = prepared?;
            drawn.batches.extend(item);
            drawn.position = position;
        }
        Ok((!drawn.batches.is_empty()).then_some(drawn))
    }

    /// Queues an update; `false` when the data are at their end. Where its loss or gradient turns out not to be finite,
    /// neither it nor those queued behind it move the parameters.
    fn queue(&mut self, batches: &mut Batches) -> Result<bool> {
        let step = self.pipeline.queued.back().map_or(self.state.step, |last| last.step) + 1;
        let Some(drawn) = self.draw(batches)? else { return Ok(false) };
        let drawn = Drawn { batches: self.go_over(drawn.batches, step)?, ..drawn };

        let _timer = counters::phase("optimizer");
        let gradients = self.model.parameters().gradients();
        let tokens = self.communicator.sum(gradients, tokens(&drawn.batches))?;
        self.passes.decide(1.0 / tokens as f64, self.config.clip_norm)?;
        let scheduled = schedule::learning_rate(&self.config.schedule, self.model.config().d_model, step);
        let learning_rate = scheduled * self.state.health.rate;
        self.optimizer.step_with(&mut *self.passes, step, learning_rate)?;
        self.pipeline.queued.push_back(Queued { drawn, step, tokens, learning_rate });
        Ok(true)
    }

    /// The outcome of the oldest update that is under way, if there is one, of which the state takes note. Where it was not
    /// made, the state stays as it is but for the position in the data, and those queued behind it will be queued again.
    fn settle(&mut self) -> Result<Option<Update>> {
        let Some(queued) = self.pipeline.queued.pop_front() else { return Ok(None) };
        let outcome = self.passes.outcome()?;
        self.state.sampler = queued.drawn.position;
        if outcome.is_made {
            self.state.step = queued.step;
            self.state.target_tokens += queued.tokens;
        } else {
            self.passes.forget()?;
            // Before those that were there already: these had been drawn after them.
            let Pipeline { queued, again, .. } = &mut self.pipeline;
            queued.drain(..).rev().for_each(|queued| again.push_front(queued.drawn));
        }
        Ok(Some(Update { queued, outcome }))
    }

    /// Takes note of an update that was not made.
    fn skip(&mut self, update: &Update, host: &dyn Host) -> Result<()> {
        self.state.health.skip();
        // The checkpoint of this update, if there is one, knows nothing of the skip.
        self.session.saved_at = None;
        let (step, skipped) = (self.state.step + 1, self.state.health.skipped);
        let (loss, norm, lines) = (update.loss(), update.outcome.gradient_norm, host.lines(&update.pairs()));
        self.log.line(&format!(
            "warning: update {step} skipped: its loss is {loss} and the gradient's norm {norm}; it was of {}",
            in_words(&lines)
        ));
        // JSON has no numbers for these.
        self.log.entry(&json!({
            "event": "skip", "update": step, "epoch": update.epoch() + 1, "loss": loss.to_string(),
            "gradient_norm": norm.to_string(), "skipped": skipped, "lines": lines,
        }))
    }

    /// Goes on from the last checkpoint with a lower learning rate, once.
    ///
    /// # Errors
    /// There is none, or it has done so before.
    fn go_back(&mut self, why: &str, host: &mut dyn Host) -> Result<()> {
        let step = self.state.step;
        let report = |more: &str| {
            let (skipped, tokens) = (self.state.health.skipped, self.state.target_tokens);
            diverged(format!(
                "after update {step}, {why}{more}; {skipped} updates skipped, {tokens} target tokens seen"
            ))
        };
        if self.state.health.has_gone_back() {
            return Err(report(", though the learning rate has been lowered"));
        }
        self.passes.rest();
        let Some(state) = host.go_back(self.model, &self.optimizer)? else {
            return Err(report(", and there is no checkpoint to go back to"));
        };
        self.pipeline = Pipeline::default();
        let health = self.state.health.gone_back_to(&state.health);
        self.log.rewind(state.progress())?;
        self.log.line(&format!(
            "warning: after update {step}, {why}: going on from the checkpoint of update {} with {} times the learning rate",
            state.step, health.rate
        ));
        self.log.entry(&json!({
            "event": "back", "update": state.step, "from": step, "why": why, "rate": health.rate,
            "skipped": health.skipped,
        }))?;
        self.state = TrainState { health, seconds: self.state.seconds, ..state };
        // Else a kill before the next checkpoint would bring back the old rate.
        self.save(host)
    }

    /// Progress after every update, and a line of the log every `log_every`.
    fn report(&mut self, update: &Update, host: &dyn Host) -> Result<()> {
        let step = self.state.step;
        if let Some(usual) = self.state.health.observe(update.loss()) {
            let (loss, lines) = (update.loss(), host.lines(&update.pairs()));
            self.log.line(&format!(
                "note: the loss of update {step} is {loss:.3}, usual is {usual:.3}; it was of {}",
                in_words(&lines)
            ));
            self.log.entry(&json!({
                "event": "spike", "update": step, "epoch": update.epoch() + 1, "loss": loss, "usual": usual,
                "gradient_norm": update.outcome.gradient_norm, "lines": lines,
            }))?;
        }
        let window = &mut self.state.window;
        window.smoothed += update.outcome.sums.smoothed;
        window.likelihood += update.outcome.sums.likelihood;
        window.tokens += update.tokens();
        let important = self.config.log_every > 0 && step.is_multiple_of(self.config.log_every);
        let tokens = window.tokens as f64;
        let (loss, perplexity) = (window.smoothed / tokens, (window.likelihood / tokens).exp());
        let rate = tokens / (self.state.seconds - window.since).max(1e-9);
        let text = format!(
            "epoch {} loss {loss:.3} ppl {perplexity:.2} lr {:.2e} {rate:.0} tok/s",
            update.epoch() + 1,
            update.queued.learning_rate
        );
        self.log.progress(step, text, important);
        if important {
            self.log.entry(&json!({
                "event": "train", "update": step, "epoch": update.epoch() + 1, "loss": loss, "perplexity": perplexity,
                "learning_rate": update.queued.learning_rate, "gradient_norm": update.outcome.gradient_norm,
                "target_tokens": self.state.target_tokens, "tokens_per_second": rate,
                "seconds": self.state.seconds, "saving_seconds": self.session.saving.as_secs_f64(),
                "skipped": self.state.health.skipped,
                "memory": crate::device::resident_memory(),
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
        if self.optimizer.average().is_some() {
            // They are all copied.
            self.passes.rest();
        }
        let values = self.optimizer.begin_model_values()?;
        let result = host.validate(model, &mut self.evaluator());
        self.optimizer.end_model_values(values)?;
        let Some(result) = result? else { return Ok(false) };
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
        self.log.samples(Samples { update: step, is_final: false, explained: &result.explained });
        self.log.entry(&json!({
            "event": "valid", "update": step, "loss": result.loss, "perplexity": result.perplexity, "bleu": result.bleu,
            "best": better, "stale": self.state.stale, "samples": result.samples, "seconds": self.state.seconds,
            "validation_seconds": seconds,
        }))?;
        if better {
            self.save(host)?;
        }
        Ok(better)
    }
}
