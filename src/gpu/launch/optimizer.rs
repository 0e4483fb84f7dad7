//! Adam, the norm of the gradient, and weights in the type of products: `kernels/optimizer.cu`.

use std::ffi::c_void;
use std::ops::Range;

use super::Kernels;
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::optimizer::AdamConstants;
use crate::ops::profile::Work;

/// The constants of an Adam update as the kernel takes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AdamArgument(pub AdamConstants);

impl Kernels {
    /// Blocks of [`Self::squares`]: `partial` must have room for as many float64.
    pub fn square_blocks(&self, count: usize) -> usize {
        self.blocks(count.div_ceil(256), 8) as usize
    }

    /// partial = Σ x² over each block's share of x, float64.
    pub fn squares(&self, partial: Address, x: Address, count: usize) -> Result<()> {
        let (blocks, bytes, count) = (self.square_blocks(count) as u32, 4 * count, count as u64);
        let grid = [blocks, 1, 1];
        // SAFETY: the types are those of `squares` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "squares",
                    name: "gradient norm",
                    grid,
                    threads: 256,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments![partial, x, count],
            )
        }
    }

    /// Decides on an update: from its totals, `blocks` partial sums of squares of its gradients, and the norm to which
    /// they are clipped.
    pub fn decide(
        &self,
        [decision, stopped]: [Address; 2],
        partial: Address,
        totals: Address,
        clip_norm: f64,
        blocks: usize,
    ) -> Result<()> {
        let (blocks, grid) = (blocks as u32, [1, 1, 1]);
        // SAFETY: the types are those of `decide` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "decide", name: "gradient norm", grid, threads: 256, shared: 0, work: Work::NONE },
                arguments![decision, stopped, partial, totals, clip_norm, blocks],
            )
        }
    }

    /// One Adam update of a `range` of parameters, if it is made. Values and gradients are those of all parameters,
    /// moments those of the range. Weight decay begins and ends, alternately, at the `bounds`.
    pub fn adam(
        &self,
        [values, gradients, first, second]: [Address; 4],
        decision: Address,
        step: AdamArgument,
        (bounds, bound_count): (Address, usize),
        range: &Range<usize>,
    ) -> Result<()> {
        let (from, count) = (range.start as u64, range.len());
        let bytes = 28 * count;
        let grid = [self.blocks(count.div_ceil(256), 32), 1, 1];
        let (bound_count, count) = (bound_count as u32, count as u64);
        // SAFETY: the types are those of `adam` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "adam", name: "adam", grid, threads: 256, shared: 0, work: Work::bytes(bytes) },
                arguments![values, gradients, first, second, decision, step, bounds, bound_count, from, count],
            )
        }
    }

    /// average = decay · average + (1 - decay) · values, if the update is made.
    pub fn average(
        &self,
        average: Address,
        values: Address,
        decision: Address,
        decay: f64,
        count: usize,
    ) -> Result<()> {
        let bytes = 12 * count;
        let (grid, count) = ([self.blocks(count.div_ceil(256), 32), 1, 1], count as u64);
        let share = (1.0 - decay) as f32;
        // SAFETY: the types are those of `average` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "average",
                    name: "average of weights",
                    grid,
                    threads: 256,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments![average, values, decision, share, count],
            )
        }
    }

    /// out = x in bf16.
    pub fn to_bf16(&self, out: Address, x: Address, count: usize) -> Result<()> {
        self.convert("to_bf16_all", [out, x], count)
    }

    /// out = x in float32.
    pub fn to_float(&self, out: Address, x: Address, count: usize) -> Result<()> {
        self.convert("to_float_all", [out, x], count)
    }

    fn convert(&self, kernel: &'static str, [out, x]: [Address; 2], count: usize) -> Result<()> {
        let work = Work::bytes(6 * count);
        let (grid, count) = ([self.blocks(count.div_ceil(256), 32), 1, 1], count as u64);
        let launch = Launch { kernel, name: "conversion", grid, threads: 256, shared: 0, work };
        // SAFETY: the types are those of both kernels in optimizer.cu.
        unsafe { self.queue.launch(&launch, arguments![out, x, count]) }
    }
}
