//! Losses without training, by what trains and in its memory.

use super::log::Log;
use super::passes::Passes;
use super::split::Limit;
use super::{inputs, tell_limit};
use crate::data::batch::Batch;
use crate::error::Result;
use crate::ops::Mode;
use crate::ops::loss::Sums;

/// Computes losses between two updates.
pub struct Evaluator<'a> {
    pub(super) passes: &'a mut dyn Passes,
    pub(super) limit: &'a mut Limit,
    pub(super) log: &'a Log,
    pub(super) padding: u32,
    pub(super) smoothing: f64,
}

impl Evaluator<'_> {
    /// The sums of the losses over batches; `None` where `stops` has said so before the last.
    pub fn losses(&mut self, batches: &[Batch], stops: &dyn Fn() -> bool) -> Result<Option<Sums>> {
        let Self { passes, limit, log, padding, smoothing } = self;
        let mut stopped = false;
        let work = |batches: &[Batch]| {
            passes.begin()?;
            for batch in batches {
                stopped = stops();
                if stopped {
                    break;
                }
                let (source, target, targets) = inputs(batch, *padding, *smoothing);
                passes.pass(&source, &target, &targets, &Mode::INFERENCE)?;
            }
            Ok(())
        };
        limit.within(batches.to_vec(), |most| tell_limit(log, most), work)?;
        if stopped { Ok(None) } else { Ok(Some(self.passes.sums()?)) }
    }

    /// Gives a device's memory back, for other things to be done before the next update.
    pub fn rest(&mut self) {
        self.passes.rest();
    }
}
