//! The loss of a validation set, computed by the training backend, in its memory.

use super::backend::Backend;
use super::log::Log;
use super::split::{Limit, MicroBatch};
use super::{accumulate, tell_limit};
use crate::data::batch::Batch;
use crate::error::Result;
use crate::ops::Mode;
use crate::ops::loss::{Sums, Targets};

/// Computes losses between two updates.
pub struct Evaluator<'a> {
    pub(super) backend: &'a mut dyn Backend,
    pub(super) limit: &'a mut Limit,
    pub(super) log: &'a Log,
    /// Which loss that is.
    pub(super) loss: Targets,
}

impl Evaluator<'_> {
    /// The sums of the losses over batches; `None` if `stops` ended it early.
    pub fn losses(&mut self, batches: &[Batch], stops: &dyn Fn() -> bool) -> Result<Option<Sums>> {
        let Self { backend, limit, log, loss } = self;
        let mut stopped = false;
        let work = |batches: &[MicroBatch]| {
            accumulate(&mut **backend, batches, loss, false, |_, _| {
                stopped = stops();
                (!stopped).then_some(Mode::INFERENCE)
            })
        };
        limit.within(vec![MicroBatch::only(batches.to_vec())], |most| tell_limit(log, most), work).map_err(|error| {
            let help = "even a single pair of the validation set does not fit: leave long pairs out of it, or lower \
                        model.max_length";
            if error.is_out_of_memory() { error.help(help) } else { error }
        })?;
        if stopped { Ok(None) } else { Ok(Some(self.backend.sums()?)) }
    }

    /// Releases device memory, for other work before the next update.
    pub fn release_memory(&mut self) {
        self.backend.release_memory();
    }
}
