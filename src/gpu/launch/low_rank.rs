//! Factors of low rank: `kernels/low_rank.cu`.

use std::ffi::c_void;

use super::Kernels;
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

impl Kernels {
    /// x = factor · x, float32.
    pub fn scale(&self, x: Address, factor: f32, count: usize) -> Result<()> {
        let work = Work::bytes(8 * count);
        let (grid, count) = ([self.blocks(count.div_ceil(256), 32), 1, 1], count as u64);
        let launch = Launch { kernel: "scale", name: "gradients of factors", grid, threads: 256, shared: 0, work };
        // SAFETY: the types are those of `scale` in low_rank.cu.
        unsafe { self.queue.launch(&launch, arguments![x, factor, count]) }
    }

    /// values = base + scale · b·a, if the update is made: values and base are [rows, columns], b [rows, rank], a
    /// [rank, columns], all float32.
    pub fn merge(
        &self,
        [values, base, b, a]: [Address; 4],
        decision: Address,
        scale: f32,
        [rows, columns, rank]: [usize; 3],
    ) -> Result<()> {
        let count = rows * columns;
        let (grid, work) = ([self.blocks(count.div_ceil(256), 32), 1, 1], Work::bytes(8 * count));
        let (rank, columns, count) = (rank as u32, columns as u32, count as u64);
        let launch = Launch { kernel: "merge", name: "merge of factors", grid, threads: 256, shared: 0, work };
        // SAFETY: the types are those of `merge` in low_rank.cu.
        unsafe { self.queue.launch(&launch, arguments![values, base, b, a, decision, scale, rank, columns, count]) }
    }
}
