//! Updates in flight: on a device, the next is queued before the outcome of the last is known.
//!
//! ```text
//! draw → go over the batches → decide, optimizer ─┬→ … → settle: made → the state takes note
//!                                                 └→ next             not made → those behind it are queued again
//! ```
//!
//! Nothing is queued behind an update that is followed by validation, a checkpoint or the end, so a run, its log and
//! its checkpoints are the same as with one update at a time.

use std::collections::VecDeque;

use super::backend::Backend;
use super::callbacks::{Batches, Callbacks};
use super::{Session, Trainer, accumulate, limit, schedule, tell_limit};
use crate::console::note;
use crate::data::batch::Batch;
use crate::data::prefetch::Prepared;
use crate::data::sampler::SamplerPosition;
use crate::error::{Error, Result};
use crate::ops::optimizer::Outcome;
use crate::ops::{Mode, profile as counters};
use crate::rng;
use crate::train::TrainConfig;

/// The data of an update, and the position after them.
#[derive(Default)]
struct Drawn {
    batches: Vec<Batch>,
    position: SamplerPosition,
}

/// An update that is under way.
struct Queued {
    drawn: Drawn,
    step: u64,
    /// Target tokens, of all ranks.
    tokens: u64,
    learning_rate: f64,
}

/// One update's result.
pub(super) struct Update {
    queued: Queued,
    pub(super) outcome: Outcome,
}

impl Update {
    /// Its target tokens, on this rank.
    pub(super) fn tokens(&self) -> u64 {
        tokens(&self.queued.drawn.batches)
    }

    /// Mean smoothed loss a target token.
    pub(super) fn loss(&self) -> f64 {
        self.outcome.sums.smoothed / self.tokens() as f64
    }

    /// Its learning rate.
    pub(super) fn learning_rate(&self) -> f64 {
        self.queued.learning_rate
    }

    /// The epoch that its data end in.
    pub(super) fn epoch(&self) -> u64 {
        self.queued.drawn.batches.last().map_or(0, |batch| batch.epoch)
    }

    /// The pairs it was made of.
    pub(super) fn pairs(&self) -> Vec<usize> {
        self.queued.drawn.batches.iter().flat_map(|batch| batch.pairs.iter().copied()).collect()
    }
}

/// Target tokens.
fn tokens(batches: &[Batch]) -> u64 {
    batches.iter().map(|batch| batch.target_tokens as u64).sum()
}

/// Updates in flight.
#[derive(Default)]
pub struct Pipeline {
    queued: VecDeque<Queued>,
    /// Data of updates that were queued behind one that was not made: they will be queued again.
    again: VecDeque<Drawn>,
    /// Why no more could be queued; reported when those in flight are done.
    failed: Option<Error>,
}

impl Pipeline {
    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }
}

/// The mode of a pass of an update.
fn training(seed: u64, step: u64, pass: u64) -> Mode {
    Mode::training(rng::key(seed, "dropout", &[step, pass]))
}

/// Goes forward and back over a batch and discards the result, so that a lack of memory shows before the run begins.
/// Returns the state of a start that knows what fits.
pub fn rehearse(backend: &mut dyn Backend, batch: Batch, padding: u32, config: &TrainConfig) -> Result<Session> {
    let mut session = Session::default();
    let work = |batches: &[Batch]| {
        let of_targets = (padding, config.label_smoothing);
        accumulate(backend, batches, of_targets, |pass| Some(training(config.seed, 0, pass)))
    };
    session.limit.within(vec![batch], |most| note(limit(most)), work)?;
    backend.sums()?;
    Ok(session)
}

impl Trainer<'_> {
    /// Fills the gradients with those of the batches of update `step`, in parts where they do not fit into memory.
    /// Returns the parts; `None` where a signal `stops` it between two of them.
    fn go_over(&mut self, batches: Vec<Batch>, step: u64, stops: &dyn Fn() -> bool) -> Result<Option<Vec<Batch>>> {
        let Self { backend, session, config, log, padding, .. } = self;
        let of_targets = (*padding, config.label_smoothing);
        let mut is_cut = false;
        let work = |batches: &[Batch]| {
            accumulate(&mut **backend, batches, of_targets, |pass| {
                is_cut = pass > 0 && stops();
                (!is_cut).then(|| training(config.seed, step, pass))
            })
        };
        let parts = session.limit.within(batches, |most| tell_limit(log, most), work)?;
        Ok((!is_cut).then_some(parts))
    }

    /// Queues the next update, and as many behind it as may be queued now.
    ///
    /// # Errors
    /// The next one could not be queued. If a later one could not, that is reported when those before it are done.
    pub(super) fn queue_ahead(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<()> {
        while self.pipeline.failed.is_none() && self.may_queue(callbacks) {
            match self.queue(callbacks, batches) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => self.pipeline.failed = Some(error),
            }
        }
        let is_empty = self.pipeline.is_empty();
        self.pipeline.failed.take_if(|_| is_empty).map_or(Ok(()), Err)
    }

    /// Whether the next update may be queued before the outcome of the last is known.
    fn may_queue(&self, callbacks: &dyn Callbacks) -> bool {
        let Some(last) = self.pipeline.queued.back().map(|queued| queued.step) else { return true };
        let under_way = self.pipeline.queued.len();
        under_way < self.backend.depth()
            && self.due(last) == (false, false)
            && last != self.config.max_updates
            && callbacks.stop().is_none()
            && !self.profiler.as_ref().is_some_and(|profiler| profiler.begins_after(under_way))
    }

    /// Draws the data of an update: `accumulate` micro-batches; `None` when the data are at their end, or a signal
    /// comes.
    fn draw(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<Option<Drawn>> {
        if let Some(drawn) = self.pipeline.again.pop_front() {
            return Ok(Some(drawn));
        }
        let mut drawn = Drawn::default();
        for number in 0..self.config.accumulate {
            if number > 0 && callbacks.stop().is_some() {
                return Ok(None);
            }
            let _timer = counters::phase("wait for a batch");
            let Some(prepared) = batches.next() else { break };
            let Prepared { item, position } = prepared?;
            drawn.batches.extend(item);
            drawn.position = position;
        }
        Ok((!drawn.batches.is_empty()).then_some(drawn))
    }

    /// Queues an update; `false` when the data are at their end, or a signal comes before its batches are through:
    /// `state.sampler` has not advanced past these, so that a resumed run draws them again. Where its loss or gradient
    /// turns out not to be finite, neither it nor those queued behind it move the parameters.
    fn queue(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<bool> {
        let step = self.pipeline.queued.back().map_or(self.state.step, |last| last.step) + 1;
        let Some(Drawn { batches, position }) = self.draw(callbacks, batches)? else { return Ok(false) };
        let Some(batches) = self.go_over(batches, step, &|| callbacks.stop().is_some())? else { return Ok(false) };
        let drawn = Drawn { batches, position };

        let _timer = counters::phase("optimizer");
        let gradients = self.model.parameters().gradients();
        let tokens = self.communicator.sum(gradients, tokens(&drawn.batches))?;
        self.backend.clear_gradients(self.optimizer.frozen())?;
        self.backend.decide(1.0 / tokens as f64, self.config.clip_norm)?;
        let learning_rate = self.learning_rate(step);
        self.optimizer.step_with(&mut *self.backend, step, learning_rate)?;
        self.pipeline.queued.push_back(Queued { drawn, step, tokens, learning_rate });
        Ok(true)
    }

    /// The learning rate of update `step`, as far as it is known now: validations may lower it.
    pub(super) fn learning_rate(&self, step: u64) -> f64 {
        let (schedule, lowered) = (&self.config.schedule, self.state.plateau.lowered);
        schedule::learning_rate(schedule, self.model.config().d_model, step, lowered) * self.state.health.rate
    }

    /// Waits for the oldest update in flight, if there is one, and notes its outcome in the state. If it was not made,
    /// only the position in the data changes, and those queued behind it will be queued again.
    pub(super) fn settle(&mut self) -> Result<Option<Update>> {
        let Some(queued) = self.pipeline.queued.pop_front() else { return Ok(None) };
        let outcome = self.backend.outcome()?;
        self.state.sampler = queued.drawn.position;
        if outcome.is_made {
            self.state.step = queued.step;
            self.state.regular = None;
            // It was of the update before.
            self.state.validation_due = false;
            self.state.target_tokens += queued.tokens;
        } else {
            self.backend.forget()?;
            // Before what is there already, which was drawn later.
            let Pipeline { queued, again, .. } = &mut self.pipeline;
            queued.drain(..).rev().for_each(|queued| again.push_front(queued.drawn));
        }
        Ok(Some(Update { queued, outcome }))
    }
}
