//! Vectors of sentences: `kernels/pooling.cu`.

use std::ffi::c_void;

use super::{Kernels, Side};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::model::pooling::Pooling;
use crate::ops::profile::Work;

/// Threads of a block.
const THREADS: u32 = 256;

impl Kernels {
    /// Adds states [N, D] to their weighted sum, float32 [N, D]; if they are normalised, each sentence to mean 0 and
    /// variance 1 first.
    pub fn mix(
        &self,
        sum: Address,
        states: Address,
        side: &Side,
        weight: f32,
        is_normalised: bool,
        d: usize,
    ) -> Result<()> {
        let bytes = self.number.bytes(side.rows * d) + 8 * side.rows * d;
        let (normalised, d) = (u32::from(is_normalised), d as u32);
        let arguments = arguments![sum, states, side.starts, weight, normalised, d];
        // SAFETY: the types are those of `mix` in pooling.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("mix"),
                    name: "mixture of layers",
                    grid: [side.sentences as u32, 1, 1],
                    threads: THREADS,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }

    /// The vector of each sentence, float32 [B, D], from float32 [N, D]. Each has at least one row.
    pub fn pool(&self, vectors: Address, states: Address, side: &Side, pooling: Pooling, d: usize) -> Result<()> {
        let bytes = 4 * (side.rows + side.sentences) * d;
        let (pooling, d) = (pooling as u32, d as u32);
        let arguments = arguments![vectors, states, side.starts, pooling, d];
        // SAFETY: the types are those of `pool` in pooling.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "pool",
                    name: "vectors of sentences",
                    grid: [side.sentences as u32, d.div_ceil(THREADS), 1],
                    threads: THREADS,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }
}
