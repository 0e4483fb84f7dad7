//! What computes the losses and gradients of an update and moves the parameters: the model's own operations with
//! Candle's tape, or the engine of a GPU.

use std::ops::Range;
use std::rc::Rc;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::error::Result;
use crate::gpu;
use crate::model::{Sequences, Transformer};
use crate::ops::loss::{Sums, Targets};
use crate::ops::low_rank::LowRank;
use crate::ops::memory::{change_on_host, on_host};
use crate::ops::optimizer::{self, AdamStep, Counts, Outcome, Trained};
use crate::ops::{Mode, profile as counters};
use crate::ranks::{Communicator, Ranks};

/// What a device can do, measured.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings {
    /// Floating-point operations a second in products of float32.
    pub f32: f64,
    /// The same with bfloat16 factors.
    pub bf16: f64,
    /// Bytes a second, read and written.
    pub memory: f64,
}

/// What computes losses, gradients and updates: on Candle's tape ([`Tape`]), or on a GPU by kernels of our own
/// ([`OnGpu`]).
///
/// An update is [`Backend::begin`], [`Backend::pass`] for each batch, [`Backend::reduce`], [`Backend::decide`], and
/// then the optimizer's. In a data-parallel run it is made from what all ranks have passed, and all of them decide
/// alike. Each may only be queued on a device; [`Backend::outcome`] tells what came of it. If an update is rejected
/// (its loss or gradient is not finite), every update queued behind it is rejected too, because it was computed with
/// parameters and random numbers that assumed success. They are to be forgotten with [`Backend::forget`], and queued
/// again.
pub trait Backend {
    /// How many updates may be under way, before [`Backend::outcome`] must return that of the oldest.
    fn depth(&self) -> usize;
    /// Begins an update: gradients and sums are zero, and the parameters are taken as they are.
    fn begin(&mut self) -> Result<()>;
    /// Goes forward over a batch, adding to the sums, and in training back, adding to the gradients.
    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()>;
    /// Says that the next pass is the last one before [`Backend::reduce`]: gradients that it completes early may be
    /// added up while it goes on.
    fn expect_reduce(&mut self) {}
    /// The sums of the losses since [`Backend::begin`]. Waits for them.
    fn sums(&mut self) -> Result<Sums>;
    /// Clears the gradients of some parameters.
    fn clear_gradients(&mut self, of: &[Range<usize>]) -> Result<()>;
    /// The other ranks of a data-parallel run, if there are any.
    fn communicator(&self) -> Option<&dyn Communicator>;
    /// Which rank of a data-parallel run this is.
    fn ranks(&self) -> Ranks {
        self.communicator().map_or(Ranks::ALONE, Communicator::ranks)
    }
    /// Adds up the gradients, the sums of the losses and the counts over all ranks, in one collective operation.
    fn reduce(&mut self, counts: Counts) -> Result<()>;
    /// Whether `flag` is set on any rank: for decisions without an update. A collective operation. Waits for it.
    fn any(&mut self, flag: bool) -> Result<bool> {
        let mut flags = [f64::from(flag)];
        self.communicator().map_or(Ok(()), |communicator| communicator.sum(&mut [], &mut flags))?;
        Ok(flags != [0.0])
    }
    /// Decides from what was reduced whether the update is made, and what the gradient is multiplied with:
    /// [`optimizer::decide`].
    fn decide(&mut self, clip_norm: f64) -> Result<()>;
    /// One Adam update of the parameters that are trained with their moments, if it is made.
    fn adam(&mut self, moments: [&Tensor; 2], step: &AdamStep, trained: &Trained) -> Result<()>;
    /// Turns the gradients of matrices into those of their factors, which then count in [`Backend::decide`].
    fn factor_gradients(&mut self, low_rank: &LowRank) -> Result<()>;
    /// One Adam update of factors with their moments, and of the matrices that are made of them, if it is made.
    fn adam_of_factors(&mut self, low_rank: &LowRank, moments: [&Tensor; 2], step: &AdamStep) -> Result<()>;
    /// Moves an average towards the parameters, if the update is made: average = decay · average + (1 - decay) ·
    /// parameters.
    fn average(&mut self, average: &Tensor, decay: f64) -> Result<()>;
    /// The outcome of the oldest update that has not been asked for yet. Waits for it.
    fn outcome(&mut self) -> Result<Outcome>;
    /// Forgets the updates whose outcome has not been asked for; the next ones count again, even after a rejected one.
    fn forget(&mut self) -> Result<()>;
    /// Whether every number of these tensors of the device is finite. Waits for them.
    fn is_finite(&mut self, tensors: &[&Tensor]) -> Result<bool> {
        for tensor in tensors {
            if !on_host(tensor, |values| Ok(values.iter().all(|value| value.is_finite())))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
    /// Gives memory back that is not needed before the next pass.
    fn release_memory(&mut self);
    /// What the device can do, measured now; `None` for the processor, which is measured elsewhere.
    fn ceilings(&mut self) -> Result<Option<Ceilings>>;
}

/// The model's own operations.
pub struct Tape {
    model: Transformer,
    /// The other ranks, if there are any.
    communicator: Option<Rc<dyn Communicator>>,
    /// Whether the next pass is the last one before the sum over all ranks.
    reduces_next: bool,
    sums: Sums,
    counts: Counts,
    /// Euclidean norm of the gradients of factors, if there are some.
    factor_norm: f64,
    /// What the gradient is multiplied with; `None` if the update is not made.
    scale: Option<f64>,
    outcome: Option<Outcome>,
}

impl Tape {
    /// The backend of a model on its device.
    pub fn new(model: &Transformer) -> Self {
        Self {
            model: model.clone(),
            communicator: None,
            reduces_next: false,
            sums: Sums::default(),
            counts: Counts::default(),
            factor_norm: 0.0,
            scale: None,
            outcome: None,
        }
    }

    /// As one rank of a data-parallel run, if there are others.
    pub fn with_communicator(self, communicator: Option<Rc<dyn Communicator>>) -> Self {
        Self { communicator, ..self }
    }
}

impl Backend for Tape {
    fn depth(&self) -> usize {
        1
    }

    fn begin(&mut self) -> Result<()> {
        let _timer = counters::phase("optimizer");
        (self.sums, self.counts, self.factor_norm) = (Sums::default(), Counts::default(), 0.0);
        self.reduces_next = false;
        Ok(self.model.parameters().clear_gradients()?)
    }

    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        let work = || -> Result<Sums> {
            let timer = counters::phase("forward");
            let (loss, sums) = self.model.loss(source, target, targets, mode)?;
            drop(timer);
            if mode.is_training() {
                let _timer = counters::phase("backward");
                loss.backward()?;
            }
            Ok(sums)
        };
        let others = self.communicator.as_ref().filter(|_| self.reduces_next);
        let sums = match others.and_then(|others| others.sum_ahead()) {
            Some(sum) => self.model.parameters().tell_what_is_complete(sum, work),
            None => work(),
        }?;
        self.reduces_next = false;
        self.sums.smoothed += sums.smoothed;
        self.sums.nll += sums.nll;
        Ok(())
    }

    fn expect_reduce(&mut self) {
        self.reduces_next = true;
    }

    fn sums(&mut self) -> Result<Sums> {
        Ok(self.sums)
    }

    fn clear_gradients(&mut self, of: &[Range<usize>]) -> Result<()> {
        if of.is_empty() {
            return Ok(());
        }
        // Memory that was never written is not taken by reading it.
        let clear_part = |part: &mut [f32]| {
            if part.iter().any(|gradient| *gradient != 0.0) {
                part.fill(0.0);
            }
        };
        let clear = |gradients: &mut [f32]| {
            of.iter().for_each(|range| gradients[range.clone()].par_chunks_mut(1 << 16).for_each(clear_part));
        };
        Ok(change_on_host(self.model.parameters().gradients(), clear)?)
    }

    fn communicator(&self) -> Option<&dyn Communicator> {
        self.communicator.as_deref()
    }

    fn reduce(&mut self, counts: Counts) -> Result<()> {
        self.counts = counts;
        let Some(communicator) = &self.communicator else { return Ok(()) };
        let [tokens, pairs, stopping] = counts.to_numbers();
        let mut numbers = [self.sums.smoothed, self.sums.nll, tokens, pairs, stopping];
        let gradients = self.model.parameters().gradients();
        change_on_host(gradients, |gradients| communicator.sum(gradients, &mut numbers))??;
        let [smoothed, nll, counts @ ..] = numbers;
        (self.sums, self.counts) = (Sums { smoothed, nll }, Counts::from_numbers(counts));
        Ok(())
    }

    fn decide(&mut self, clip_norm: f64) -> Result<()> {
        let norm = optimizer::norm(self.model.parameters().gradients())?.hypot(self.factor_norm);
        let (outcome, scale) = optimizer::decide(self.sums, self.counts, norm, clip_norm);
        (self.outcome, self.scale) = (Some(outcome), scale);
        Ok(())
    }

    fn adam(&mut self, moments: [&Tensor; 2], step: &AdamStep, trained: &Trained) -> Result<()> {
        let Some(scale) = self.scale else { return Ok(()) };
        Ok(optimizer::adam_of(self.model.parameters(), trained, moments, scale, step)?)
    }

    fn factor_gradients(&mut self, low_rank: &LowRank) -> Result<()> {
        self.factor_norm = low_rank.take_gradients()?;
        Ok(())
    }

    fn adam_of_factors(&mut self, low_rank: &LowRank, moments: [&Tensor; 2], step: &AdamStep) -> Result<()> {
        let Some(scale) = self.scale else { return Ok(()) };
        Ok(low_rank.adam(moments, scale, step)?)
    }

    fn average(&mut self, average: &Tensor, decay: f64) -> Result<()> {
        if self.scale.is_some() {
            optimizer::average(average, self.model.parameters().values(), decay)?;
        }
        Ok(())
    }

    fn outcome(&mut self) -> Result<Outcome> {
        self.outcome.take().ok_or_else(optimizer::no_outcome)
    }

    fn forget(&mut self) -> Result<()> {
        self.outcome = None;
        Ok(())
    }

    fn release_memory(&mut self) {}

    fn ceilings(&mut self) -> Result<Option<Ceilings>> {
        Ok(None)
    }
}

/// The engine of a GPU.
pub struct OnGpu {
    engine: gpu::Engine,
    /// The other ranks, if there are any.
    others: Option<gpu::Others>,
}

impl OnGpu {
    /// The backend of an engine.
    pub fn new(engine: gpu::Engine) -> Self {
        Self { engine, others: None }
    }

    /// As one rank of a data-parallel run, if there are others. Gradients travel from GPU to GPU in parts of at least
    /// so many bytes, such as [`gpu::PART_BYTES`].
    ///
    /// # Errors
    /// There is no memory for gradients in another type.
    pub fn with_others(mut self, others: Option<gpu::Others>, part_bytes: usize) -> Result<Self> {
        if let Some(gpu::Others::Device(_, number)) = &others {
            self.engine.exchange_in(*number, part_bytes)?;
        }
        Ok(Self { others, ..self })
    }
}

impl Backend for OnGpu {
    /// One running, one queued behind it: the device never waits for the host.
    fn depth(&self) -> usize {
        2
    }

    fn begin(&mut self) -> Result<()> {
        self.engine.begin()
    }

    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        let _timer = counters::phase("queue a pass");
        self.engine.pass(source, target, targets, mode)
    }

    fn sums(&mut self) -> Result<Sums> {
        let _timer = counters::phase("wait for the device");
        self.engine.sums()
    }

    fn clear_gradients(&mut self, of: &[Range<usize>]) -> Result<()> {
        self.engine.clear_gradients(of)
    }

    fn communicator(&self) -> Option<&dyn Communicator> {
        self.others.as_ref().map(gpu::Others::operations)
    }

    fn reduce(&mut self, counts: Counts) -> Result<()> {
        self.engine.reduce(counts, self.others.as_ref())
    }

    fn decide(&mut self, clip_norm: f64) -> Result<()> {
        self.engine.decide(clip_norm)
    }

    fn is_finite(&mut self, tensors: &[&Tensor]) -> Result<bool> {
        self.engine.is_finite(tensors)
    }

    fn adam(&mut self, moments: [&Tensor; 2], step: &AdamStep, trained: &Trained) -> Result<()> {
        self.engine.adam(moments, step, trained)
    }

    fn factor_gradients(&mut self, low_rank: &LowRank) -> Result<()> {
        self.engine.factor_gradients(low_rank)
    }

    fn adam_of_factors(&mut self, low_rank: &LowRank, moments: [&Tensor; 2], step: &AdamStep) -> Result<()> {
        self.engine.adam_of_factors(low_rank, moments, step)
    }

    fn average(&mut self, average: &Tensor, decay: f64) -> Result<()> {
        self.engine.average(average, decay)
    }

    fn outcome(&mut self) -> Result<Outcome> {
        let _timer = counters::phase("wait for the device");
        self.engine.outcome()
    }

    fn forget(&mut self) -> Result<()> {
        self.engine.forget()
    }

    fn release_memory(&mut self) {
        self.engine.release_memory();
    }

    fn ceilings(&mut self) -> Result<Option<Ceilings>> {
        let [f32, bf16, memory] = gpu::ceilings::measure(&mut self.engine)?;
        Ok(Some(Ceilings { f32, bf16, memory }))
    }
}
