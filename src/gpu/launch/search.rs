//! The steps of decoding: `kernels/search.cu`.

use std::ffi::c_void;

use super::{Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

/// What rows may not be continued by, as the kernel takes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exclusions {
    /// The only token a row may take, or [`Exclusions::NO_TOKEN`], [rows].
    pub forced: Address,
    /// Where the tokens of every row begin, and where those of the last row end.
    pub starts: Address,
    /// Tokens that single rows may not take.
    pub tokens: Address,
    /// Tokens that no row may take.
    pub always: Address,
    /// Number of tokens in `always`.
    pub always_count: u32,
}

impl Exclusions {
    /// No token.
    pub const NO_TOKEN: u32 = u32::MAX;
}

impl Kernels {
    /// The rows that each row's hypothesis went through, [rows, capacity], from the same table of the last step,
    /// `before`.
    pub fn advance(
        &self,
        [ancestors, before, parents]: [Address; 3],
        position: usize,
        capacity: usize,
        rows: usize,
    ) -> Result<()> {
        let grid = [self.blocks((rows * (position + 1)).div_ceil(256), 8), 1, 1];
        let (position, capacity, rows) = (position as u32, capacity as u32, rows as u32);
        let arguments = arguments![ancestors, before, parents, position, capacity, rows];
        // SAFETY: the types are those of `advance` in search.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "advance", name: "ancestors", grid, threads: 256, shared: 0, work: Work::NONE },
                arguments,
            )
        }
    }

    /// The k best continuations of rows of logits (float32, overwritten) that lie `stride` apart, a multiple of four,
    /// and their log-probabilities.
    pub fn best_continuations(
        &self,
        [tokens, log_probs, logits]: [Address; 3],
        excluded: Exclusions,
        [rows, vocabulary, stride, k]: [usize; 4],
    ) -> Result<()> {
        let [vocabulary, stride, k] = [vocabulary, stride, k].map(|n| n as u32);
        let arguments = arguments![tokens, log_probs, logits, excluded, vocabulary, stride, k];
        // SAFETY: the types are those of `best_continuations` in search.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "best_continuations",
                    name: "best continuations",
                    grid: [rows as u32, 1, 1],
                    // Each thread takes four logits at a time.
                    threads: vocabulary.div_ceil(4).next_multiple_of(WARP).min(32 * WARP),
                    shared: 0,
                    work: Work::NONE,
                },
                arguments,
            )
        }
    }
}
