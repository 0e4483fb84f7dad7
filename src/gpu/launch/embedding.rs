//! Embeddings and their gradient: `kernels/embedding.cu`.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, SegmentsAt, Side, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::dropout::Dropout;
use crate::ops::profile::Work;

impl Kernels {
    /// out = dropout(scale·table[ids] + positions).
    pub fn embed(
        &self,
        out: Address,
        table: Address,
        positions: Address,
        side: &Side,
        scale: f32,
        dropout: Dropout,
        d: usize,
    ) -> Result<()> {
        let bytes = 4 * side.rows * d + self.number.bytes(side.rows * d);
        let (dropout, rows, d) = (DropoutArgument::from(dropout), side.rows as u32, d as u32);
        let grid = [self.blocks(side.rows.div_ceil(8), 16), 1, 1];
        let arguments = arguments![out, table, positions, side.ids, side.places, side.padded, scale, dropout, rows, d];
        // SAFETY: the types are those of `embed` in embedding.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("embed"),
                    name: "embedding",
                    grid,
                    threads: 8 * WARP,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }

    /// gradient[value] += scale·Σ mask·g of each segment's rows.
    pub fn embed_backward(
        &self,
        gradient: Address,
        g: Address,
        segments: &SegmentsAt,
        padded: Address,
        scale: f32,
        dropout: Dropout,
        d: usize,
    ) -> Result<()> {
        const WARPS: usize = 8;
        let SegmentsAt { order, starts, values, count, long, rows } = *segments;
        let bytes = self.number.bytes(rows * d) + 8 * count * d;
        let columns = d.div_ceil(WARP as usize * self.vector()) as u32;
        let (dropout, d, last) = (DropoutArgument::from(dropout), d as u32, count as u32);
        // A block for each long segment and run of columns; a warp for each of the others. The profile counts their
        // bytes once.
        let short = ((count - long) * columns as usize).div_ceil(WARPS);
        let parts = [
            ("embed_backward", [long as u32, columns, 1], 0u32),
            ("embed_backward_short", [short as u32, 1, 1], long as u32),
        ];
        let mut bytes = Some(bytes);
        for (kernel, grid, first) in parts.into_iter().filter(|(_, grid, _)| grid[0] > 0) {
            let kernel = self.name(kernel);
            let bytes = bytes.take().unwrap_or(0);
            let arguments = arguments![gradient, g, order, starts, values, padded, scale, dropout, d, first, last];
            let threads = WARPS as u32 * WARP;
            let launch = Launch {
                kernel: &kernel,
                name: "embedding, backward",
                grid,
                threads,
                shared: 0,
                work: Work::bytes(bytes),
            };
            // SAFETY: the types are those of `embed_backward` and `embed_backward_short` in embedding.cu.
            unsafe { self.queue.launch(&launch, arguments) }?;
        }
        Ok(())
    }
}
