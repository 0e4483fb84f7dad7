//! What computes the losses and gradients of an update and moves the parameters: the model's own operations with Candle's
//! tape, or the engine of a GPU.

use std::ops::Range;

use candle_core::Tensor;

use crate::error::Result;
use crate::gpu;
use crate::model::{Sequences, Transformer};
use crate::ops::Mode;
use crate::ops::loss::{Sums, Targets};
use crate::ops::optimizer::{self, AdamStep};
use crate::ops::profile as counters;

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

/// The passes of training.
pub trait Passes {
    /// Begins an update: gradients and sums are zero, and the parameters are taken as they are.
    fn begin(&mut self) -> Result<()>;
    /// Goes forward over a batch, adding to the sums, and in training back, adding to the gradients.
    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()>;
    /// The sums of the losses since [`Passes::begin`].
    fn sums(&mut self) -> Result<Sums>;
    /// Euclidean norm of the gradients.
    fn gradient_norm(&mut self) -> Result<f64>;
    /// One Adam update of a range of the flat parameters, with moments of the same places.
    fn adam(&mut self, range: Range<usize>, first: &Tensor, second: &Tensor, step: AdamStep) -> Result<()>;
    /// What the device can do, measured now; `None` for the processor, which others measure.
    fn ceilings(&mut self) -> Result<Option<Ceilings>>;
}

/// The model's own operations.
pub struct Tape {
    model: Transformer,
    sums: Sums,
}

impl Tape {
    /// The passes of a model on its device.
    pub fn new(model: &Transformer) -> Self {
        Self { model: model.clone(), sums: Sums::default() }
    }
}

impl Passes for Tape {
    fn begin(&mut self) -> Result<()> {
        let _timer = counters::phase("optimizer");
        self.sums = Sums::default();
        Ok(self.model.parameters().clear_gradients()?)
    }

    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        let timer = counters::phase("forward");
        let (loss, sums) = self.model.loss(source, target, targets, mode)?;
        drop(timer);
        if mode.is_training() {
            let _timer = counters::phase("backward");
            loss.backward()?;
            drop(loss);
        }
        self.sums.smoothed += sums.smoothed;
        self.sums.likelihood += sums.likelihood;
        Ok(())
    }

    fn sums(&mut self) -> Result<Sums> {
        Ok(self.sums)
    }

    fn gradient_norm(&mut self) -> Result<f64> {
        Ok(optimizer::norm(self.model.parameters().gradients())?)
    }

    fn adam(&mut self, range: Range<usize>, first: &Tensor, second: &Tensor, step: AdamStep) -> Result<()> {
        let parameters = self.model.parameters();
        let part = |t: &Tensor| t.narrow(0, range.start, range.len());
        let (values, gradients) = (part(parameters.values())?, part(parameters.gradients())?);
        Ok(optimizer::adam(&values, &gradients, &part(first)?, &part(second)?, step)?)
    }

    fn ceilings(&mut self) -> Result<Option<Ceilings>> {
        Ok(None)
    }
}

impl Passes for gpu::Engine {
    fn begin(&mut self) -> Result<()> {
        gpu::Engine::begin(self)
    }

    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        let _timer = counters::phase("queue a pass");
        gpu::Engine::pass(self, source, target, targets, mode)
    }

    fn sums(&mut self) -> Result<Sums> {
        let _timer = counters::phase("wait for the device");
        gpu::Engine::sums(self)
    }

    fn gradient_norm(&mut self) -> Result<f64> {
        gpu::Engine::gradient_norm(self)
    }

    fn adam(&mut self, range: Range<usize>, first: &Tensor, second: &Tensor, step: AdamStep) -> Result<()> {
        gpu::Engine::adam(self, range, first, second, &step)
    }

    fn ceilings(&mut self) -> Result<Option<Ceilings>> {
        let [f32, bf16, memory] = gpu::ceilings::measure(self)?;
        Ok(Some(Ceilings { f32, bf16, memory }))
    }
}
