//! Updates in flight: on a device, the next is queued before the outcome of the last is known.
//!
//! ```text
//! draw → go over the batches → reduce, decide, optimizer ─┬→ … → settle: made → the state takes note
//!                                                         │              not made → those behind are queued again
//!                                                         └→ next
//! ```
//!
//! In a data-parallel run all ranks queue the same updates in the same order. What one rank alone knows, such as that a
//! signal asks it to stop, decides nothing before it is reduced. Nothing is queued behind an update that is followed by
//! validation, a checkpoint or the end, so a run, its log and its checkpoints are the same as with one update at a
//! time.

use std::collections::VecDeque;

use super::backend::Backend;
use super::callbacks::{Batches, Callbacks};
use super::split::MicroBatch;
use super::{Session, Trainer, accumulate, limit, schedule, tell_limit};
use crate::console::note;
use crate::data::batch::Batch;
use crate::data::prefetch::Prepared;
use crate::data::sampler::SamplerPosition;
use crate::error::{Error, Result};
use crate::ops::optimizer::{Counts, Outcome};
use crate::ops::{Mode, profile as counters};
use crate::rng;
use crate::train::TrainConfig;

/// The data of an update, and the position after them.
#[derive(Default)]
struct Drawn {
    /// Those of this rank.
    batches: Vec<MicroBatch>,
    /// The pairs of all ranks.
    pairs: Vec<usize>,
    position: SamplerPosition,
    /// The epoch that they end in.
    epoch: u64,
    /// Whether a signal came before they were complete, or before this rank had gone over them.
    is_cut: bool,
}

impl Drawn {
    fn parts(&self) -> impl Iterator<Item = &Batch> {
        self.batches.iter().flat_map(|batch| &batch.parts)
    }

    fn counts(&self) -> Counts {
        Counts {
            tokens: self.parts().map(|batch| batch.target_tokens as u64).sum(),
            pairs: self.parts().map(|batch| batch.batch_size as u64).sum(),
            stopping: u64::from(self.is_cut),
        }
    }
}

/// An update that is under way.
struct Queued {
    drawn: Drawn,
    step: u64,
    learning_rate: f64,
}

/// One update's result.
pub(super) struct Update {
    queued: Queued,
    pub(super) outcome: Outcome,
}

impl Update {
    /// Whether a signal to some rank has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        self.outcome.counts.stopping > 0
    }

    /// Mean smoothed loss a target token.
    pub(super) fn loss(&self) -> f64 {
        self.outcome.sums.smoothed / self.outcome.counts.tokens as f64
    }

    /// Its learning rate.
    pub(super) fn learning_rate(&self) -> f64 {
        self.queued.learning_rate
    }

    /// The epoch that its data end in.
    pub(super) fn epoch(&self) -> u64 {
        self.queued.drawn.epoch
    }

    /// The pairs of all ranks.
    pub(super) fn pairs(&self) -> &[usize] {
        &self.queued.drawn.pairs
    }
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

/// The mode of a pass of update `step`. Dropout depends on the number of the micro-batch among all ranks' and on the
/// part of it, and not on how many parts other micro-batches have.
fn training(config: &TrainConfig, step: u64, number: u64, part: u64) -> Mode {
    Mode::training(rng::key(config.seed, "dropout", &[step, number + part * config.accumulate as u64]))
}

/// Goes forward and back over a batch and discards the result, so that a lack of memory shows before the run begins.
/// Returns the state of a start that knows what fits.
pub fn rehearse(backend: &mut dyn Backend, batch: Batch, padding: u32, config: &TrainConfig) -> Result<Session> {
    let mut session = Session::default();
    let loss = config.loss(padding);
    let work = |batches: &[MicroBatch]| {
        accumulate(backend, batches, &loss, false, |number, part| Some(training(config, 0, number, part)))
    };
    session.limit.within(vec![MicroBatch::only(vec![batch])], |most| note(limit(most)), work)?;
    backend.sums()?;
    Ok(session)
}

impl Trainer<'_> {
    /// Fills the gradients with those of the data of update `step`, in parts where they do not fit into memory; cuts it
    /// short where a signal `stops` it between two of them.
    fn go_over(&mut self, drawn: Drawn, step: u64, stops: &dyn Fn() -> bool) -> Result<Drawn> {
        let Self { backend, session, config, log, padding, .. } = self;
        let loss = config.loss(*padding);
        let mut is_cut = drawn.is_cut;
        let work = |batches: &[MicroBatch]| {
            let mut passes = 0;
            accumulate(&mut **backend, batches, &loss, true, |number, part| {
                is_cut |= passes > 0 && stops();
                passes += 1;
                (!is_cut).then(|| training(config, step, number, part))
            })
        };
        let batches = session.limit.within(drawn.batches, |most| tell_limit(log, most), work)?;
        Ok(Drawn { batches, is_cut, ..drawn })
    }

    /// Queues the next update, and as many behind it as may be queued now.
    ///
    /// # Errors
    /// The next one could not be queued. If a later one could not, that is reported when those before it are done.
    pub(super) fn queue_ahead(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<()> {
        while self.pipeline.failed.is_none() && self.may_queue() {
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
    fn may_queue(&self) -> bool {
        let queued = &self.pipeline.queued;
        let Some(last) = queued.back() else { return true };
        let under_way = queued.len();
        let before = queued.iter().rev().nth(1).map_or(self.state.epochs, |before| before.drawn.position.epoch);
        under_way < self.backend.depth()
            && self.due(last.step, [before, last.drawn.position.epoch]) == (false, false)
            && last.step != self.config.max_updates
            && !self.profiler.as_ref().is_some_and(|profiler| profiler.begins_after(under_way))
    }

    /// Draws the data of an update: this rank's among `accumulate` micro-batches, or fewer if a signal comes; `None`
    /// when the data are at their end. The position is that behind all of them, on all ranks: what comes after the
    /// update must be the same for each.
    fn draw(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<Option<Drawn>> {
        if let Some(drawn) = self.pipeline.again.pop_front() {
            return Ok(Some(drawn));
        }
        let (mut drawn, mut is_end, ranks) = (Drawn::default(), true, self.backend.ranks());
        for number in 0..self.config.accumulate as u64 {
            let _timer = counters::phase("wait for a batch");
            let Some(prepared) = batches.next() else { break };
            let Prepared { item: parts, position } = prepared?;
            (drawn.position, is_end) = (position, false);
            drawn.epoch = parts.last().map_or(drawn.epoch, |batch| batch.epoch);
            drawn.pairs.extend(parts.iter().flat_map(|batch| &batch.pairs));
            if ranks.takes(number) && !drawn.is_cut {
                drawn.batches.push(MicroBatch { number, parts });
            }
            // Only now: whether the data are at their end must be the same on all ranks.
            drawn.is_cut |= callbacks.stop().is_some();
        }
        Ok((!is_end).then_some(drawn))
    }

    /// Queues an update; `false` when the data are at their end. Where a signal comes before all ranks have gone over
    /// their batches, or the loss or gradient turns out not to be finite, neither it nor those queued behind it move
    /// the parameters.
    fn queue(&mut self, callbacks: &dyn Callbacks, batches: &mut Batches) -> Result<bool> {
        let step = self.pipeline.queued.back().map_or(self.state.step, |last| last.step) + 1;
        let Some(drawn) = self.draw(callbacks, batches)? else { return Ok(false) };
        let drawn = self.go_over(drawn, step, &|| callbacks.stop().is_some())?;

        let _timer = counters::phase("optimizer");
        self.backend.reduce(drawn.counts())?;
        self.backend.clear_gradients(self.optimizer.frozen())?;
        if let Some(low_rank) = self.optimizer.low_rank() {
            self.backend.factor_gradients(low_rank)?;
        }
        self.backend.decide(self.config.clip_norm)?;
        let learning_rate = self.learning_rate(step);
        self.optimizer.step_with(&mut *self.backend, step, learning_rate)?;
        self.pipeline.queued.push_back(Queued { drawn, step, learning_rate });
        Ok(true)
    }

    /// The learning rate of update `step`, as far as it is known now: validations may lower it.
    pub(super) fn learning_rate(&self, step: u64) -> f64 {
        let (schedule, lowered) = (&self.config.schedule, self.state.plateau.lowered);
        schedule::learning_rate(schedule, self.model.config().d_model, step, lowered) * self.state.health.rate
    }

    /// Waits for the oldest update in flight, if there is one, and notes its outcome in the state. If it was not made,
    /// only the position in the data changes, and those queued behind it will be queued again. If a signal has stopped
    /// it, not even the position changes: a resumed run draws its data again.
    pub(super) fn settle(&mut self) -> Result<Option<Update>> {
        let Some(queued) = self.pipeline.queued.pop_front() else { return Ok(None) };
        let outcome = self.backend.outcome()?;
        if outcome.counts.stopping > 0 {
            self.backend.forget()?;
            return Ok(Some(Update { queued, outcome }));
        }
        self.state.sampler = queued.drawn.position;
        if outcome.is_made {
            self.state.step = queued.step;
            let before = std::mem::replace(&mut self.state.epochs, queued.drawn.position.epoch);
            self.session.due = self.due(queued.step, [before, self.state.epochs]);
            self.state.regular = None;
            // It was of the update before.
            self.state.validation_due = false;
            self.state.target_tokens += outcome.counts.tokens;
        } else {
            self.backend.forget()?;
            // Before what is there already, which was drawn later.
            let Pipeline { queued, again, .. } = &mut self.pipeline;
            queued.drain(..).rev().for_each(|queued| again.push_front(queued.drawn));
        }
        Ok(Some(Update { queued, outcome }))
    }
}
