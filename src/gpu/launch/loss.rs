//! The smoothed loss: `kernels/loss.cu`.

use std::ffi::c_void;

use super::{Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

/// Stands for no label, in rows that have no loss; and for no token.
pub const NO_LABEL: u32 = u32::MAX;
/// Warps of a block of `smoothed_loss` at most, and for rows that half as many can keep in registers, in bf16: then
/// more blocks fit at a time, of which some read while others write.
const WARPS: u32 = 16;
/// Logits that a thread takes at once, and how many times that it keeps.
const LOGITS: usize = 8;
const HELD: usize = 8;

impl Kernels {
    /// The losses [rows, 2] of rows of logits, which become their gradient where it is wanted. `weights` [rows], by
    /// which the smoothed losses are multiplied, may be [`Address::NONE`], for 1. The token `left_out`, if there is
    /// one, takes no part in the softmax.
    pub fn smoothed_loss(
        &self,
        [logits, losses, labels, weights]: [Address; 4],
        smoothing: f32,
        [rows, vocabulary, stride]: [usize; 3],
        left_out: Option<u32>,
        gradient: bool,
    ) -> Result<()> {
        let bytes = self.number.bytes(rows * vocabulary) * (1 + usize::from(gradient));
        let kernel = self.typed("smoothed_loss");
        let held_by_half = HELD * LOGITS * (WARPS / 2 * WARP) as usize;
        let warps = if vocabulary <= held_by_half { WARPS / 2 } else { WARPS };
        let (rows, vocabulary, stride, gradient) = (rows as u32, vocabulary as u32, stride as u32, u32::from(gradient));
        let left_out = left_out.unwrap_or(NO_LABEL);
        let arguments = arguments![logits, losses, labels, weights, smoothing, vocabulary, stride, left_out, gradient];
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

    /// The same with R-Drop and its α, for `tokens` tokens of two rows of logits each: first one row of each, then the
    /// other rows in the same order. Labels, weights and losses are those of tokens.
    pub fn paired_loss(
        &self,
        [logits, losses, labels, weights]: [Address; 4],
        [smoothing, alpha]: [f32; 2],
        [tokens, vocabulary, stride]: [usize; 3],
        left_out: Option<u32>,
        gradient: bool,
    ) -> Result<()> {
        // Both rows are read twice, and once more where they become gradients.
        let work = Work::bytes(2 * self.number.bytes(tokens * vocabulary) * if gradient { 4 } else { 2 });
        let kernel = self.typed("paired_loss");
        let (tokens, vocabulary, stride) = (tokens as u32, vocabulary as u32, stride as u32);
        let (left_out, gradient) = (left_out.unwrap_or(NO_LABEL), u32::from(gradient));
        let arguments =
            arguments![logits, losses, labels, weights, smoothing, alpha, vocabulary, stride, left_out, gradient];
        let (grid, threads) = ([tokens, 1, 1], WARPS * WARP);
        let launch = Launch { kernel: &kernel, name: "loss", grid, threads, shared: 0, work };
        // SAFETY: the types are those of `paired_loss` in loss.cu.
        unsafe { self.queue.launch(&launch, arguments) }
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
