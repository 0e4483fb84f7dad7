//! Relative positions: `kernels/relative.cu`.

use std::ffi::c_void;

use super::{AttentionSizes, Heads, Kernels, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::profile::Work;

/// Which row of a table belongs to each distance from −`reach` to `reach`.
#[derive(Clone, Copy, Debug)]
pub struct Distances {
    /// The rows, [2·reach + 1].
    pub buckets: Address,
    /// How many rows the table has.
    pub count: usize,
    /// The longest distance.
    pub reach: usize,
    /// Heads.
    pub heads: usize,
}

impl Distances {
    /// How many there are.
    pub fn all(&self) -> usize {
        2 * self.reach + 1
    }
}

impl Kernels {
    /// What is added for each head and distance, [H, 2·reach + 1], from a table [buckets, H], divided by `scale`.
    pub fn spread_by_distance(&self, out: Address, table: Address, of: &Distances, scale: f32) -> Result<()> {
        let grid = [self.blocks((of.heads * of.all()).div_ceil(256), 8), 1, 1];
        let (buckets, heads, distances) = (of.buckets, of.heads as u32, of.all() as u32);
        let (kernel, name) = ("spread_by_distance", "relative positions");
        // SAFETY: the types are those of `spread_by_distance` in relative.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel, name, grid, threads: 256, shared: 0, work: Work::NONE },
                arguments![out, table, buckets, heads, distances, scale],
            )
        }
    }

    /// Adds the gradients of an attention's scores to sums by head and distance, [H, 2·reach + 1].
    pub fn sum_by_distance(
        &self,
        sums: Address,
        [dout, out, log_sums]: [Address; 3],
        heads: Heads,
        sizes: &AttentionSizes,
    ) -> Result<()> {
        let grid = [(2 * sizes.keys.longest).saturating_sub(1) as u32, sizes.heads as u32, 1];
        let (Heads { q, k, v }, shape, sentences) = (heads, sizes.argument(), sizes.queries.sentences as u32);
        let (kernel, name, threads) = (self.typed("sum_by_distance"), "relative positions, backward", 8 * WARP);
        // SAFETY: the types are those of `sum_by_distance` in relative.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &kernel, name, grid, threads, shared: 0, work: Work::NONE },
                arguments![sums, log_sums, dout, out, q, k, v, shape, sentences],
            )
        }
    }

    /// Adds such sums to the gradient of the table.
    pub fn add_to_buckets(&self, gradient: Address, sums: Address, of: &Distances) -> Result<()> {
        let grid = [(of.count * of.heads).div_ceil(256) as u32, 1, 1];
        let (buckets, heads, distances, count) = (of.buckets, of.heads as u32, of.all() as u32, of.count as u32);
        let (kernel, name) = ("add_to_buckets", "relative positions, backward");
        // SAFETY: the types are those of `add_to_buckets` in relative.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel, name, grid, threads: 256, shared: 0, work: Work::NONE },
                arguments![gradient, sums, buckets, heads, distances, count],
            )
        }
    }
}
