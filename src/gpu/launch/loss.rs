//! The smoothed loss: `kernels/loss.cu`.

use std::ffi::c_void;

use super::{Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

/// Logits that a warp of `smoothed_loss` keeps in registers.
const HELD_BY_WARP: usize = 8 * 8 * WARP as usize;

impl Kernels {
    /// The losses [rows, 2] of rows of logits, which become their gradient where it is wanted.
    pub fn smoothed_loss(
        &self,
        [logits, losses, labels]: [Address; 3],
        smoothing: f32,
        [rows, vocabulary, stride]: [usize; 3],
        gradient: bool,
    ) -> Result<()> {
        let bytes = self.number.bytes(rows * vocabulary) * (1 + usize::from(gradient));
        let kernel = self.typed("smoothed_loss");
        let warps = if vocabulary <= 8 * HELD_BY_WARP { 8 } else { 16 };
        let (rows, vocabulary, stride, gradient) = (rows as u32, vocabulary as u32, stride as u32, u32::from(gradient));
        let arguments = arguments![logits, losses, labels, smoothing, vocabulary, stride, gradient];
        // SAFETY: the types are those of `smoothed_loss` in loss.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "loss",
                    grid: [rows, 1, 1],
                    threads: warps * WARP,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }

    /// Adds the columns of losses [rows, 2] to two float64.
    pub fn add_losses(&self, sums: Address, losses: Address, rows: usize) -> Result<()> {
        let bytes = 8 * rows;
        let rows = rows as u32;
        // SAFETY: the types are those of `add_losses` in loss.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "add_losses",
                    name: "loss",
                    grid: [1, 1, 1],
                    threads: 32 * WARP,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments![sums, losses, rows],
            )
        }
    }
}
