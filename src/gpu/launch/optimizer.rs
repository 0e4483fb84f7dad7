//! Adam, the norm of the gradient, and weights in the type of products: `kernels/optimizer.cu`.

use std::ffi::c_void;

use super::Kernels;
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};

/// The constants of an Adam update as the kernel takes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AdamArgument(pub [f32; 8]);

impl Kernels {
    /// Blocks of [`Self::squares`]: float64 that `partial` must hold.
    pub fn square_blocks(&self, count: usize) -> usize {
        self.blocks(count.div_ceil(256), 8) as usize
    }

    /// to = Σ x², float64.
    pub fn squares(&self, to: Address, partial: Address, x: Address, count: usize) -> Result<()> {
        let bytes = 4 * count;
        let (blocks, count) = (self.square_blocks(count) as u32, count as u64);
        // SAFETY: the types are those of `squares` and `add_squares` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "squares",
                    name: "gradient norm",
                    grid: [blocks, 1, 1],
                    threads: 256,
                    shared: 0,
                    bytes,
                },
                arguments![partial, x, count],
            )?;
            self.queue.launch(
                &Launch {
                    kernel: "add_squares",
                    name: "gradient norm",
                    grid: [1, 1, 1],
                    threads: 256,
                    shared: 0,
                    bytes: 0,
                },
                arguments![to, partial, blocks],
            )
        }
    }

    /// One Adam update of `count` parameters.
    pub fn adam(
        &self,
        [values, gradients, first, second]: [Address; 4],
        step: AdamArgument,
        count: usize,
    ) -> Result<()> {
        let bytes = 28 * count;
        let (grid, count) = ([self.blocks(count.div_ceil(256), 32), 1, 1], count as u64);
        // SAFETY: the types are those of `adam` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "adam", name: "adam", grid, threads: 256, shared: 0, bytes },
                arguments![values, gradients, first, second, step, count],
            )
        }
    }

    /// out = x in bf16.
    pub fn to_bf16(&self, out: Address, x: Address, count: usize) -> Result<()> {
        let bytes = 6 * count;
        let (grid, count) = ([self.blocks(count.div_ceil(256), 32), 1, 1], count as u64);
        // SAFETY: the types are those of `to_bf16_all` in optimizer.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "to_bf16_all", name: "weights to bf16", grid, threads: 256, shared: 0, bytes },
                arguments![out, x, count],
            )
        }
    }
}
