//! Rotary positions: `kernels/rotary.cu`.

use std::ffi::c_void;

use super::{Kernels, Side};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

impl Kernels {
    /// Turns the first `heads` heads of rows by their positions, in place; `sign` -1 turns back.
    pub fn turn(
        &self,
        x: Address,
        table: Address,
        side: &Side,
        stride: usize,
        [heads, d_k]: [usize; 2],
        sign: f32,
        halves: bool,
    ) -> Result<()> {
        let bytes = 2 * self.number.bytes(side.rows * heads * d_k);
        let grid = [self.blocks((side.rows * heads * d_k / 2).div_ceil(256), 32), 1, 1];
        let (rows, stride, heads, d_k) = (side.rows as u32, stride as u32, heads as u32, d_k as u32);
        let halves = u32::from(halves);
        let arguments = arguments![x, table, side.places, rows, stride, heads, d_k, sign, halves];
        // SAFETY: the types are those of `turn` in rotary.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.typed("turn"),
                    name: "rotary",
                    grid,
                    threads: 256,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }
}
