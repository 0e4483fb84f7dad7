//! The kernels of `kernels/`, each as a function with the types of its parameters. `N` rows, `D` columns.

// Kernels take many arguments, and so do these functions.
#![allow(clippy::too_many_arguments)]

/// Pointers to the arguments of a kernel.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &mut [$((&raw const $argument).cast::<c_void>().cast_mut()),*]
    };
}

mod attention;
mod columns;
mod norm;
mod optimizer;
mod product;
mod search;

use std::ffi::c_void;
use std::sync::Arc;

use super::queue::{Address, Launch, Number, Queue};
use crate::error::Result;
use crate::ops::dropout::Dropout;
use crate::ops::profile::Work;

pub use attention::{AttentionSizes, Heads, Past};
pub use columns::{MOST_PARTIAL_SUMS, PartialSum};
pub use norm::NormArgument;
pub use optimizer::AdamArgument;
pub use product::{MOST_MULTIPLICATIONS, WeightGradient};
pub use search::Exclusions;

/// Threads of a warp.
pub const WARP: u32 = 32;

/// A dropout mask as kernels take it.
#[derive(Clone, Copy)]
#[repr(C)]
struct DropoutArgument {
    threshold: u32,
    key: u32,
    scale: f32,
}

impl From<Dropout> for DropoutArgument {
    fn from(dropout: Dropout) -> Self {
        let (threshold, key, scale) = dropout.parts();
        Self { threshold, key, scale }
    }
}

/// The rows of a side of a batch, on the device.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Tokens, [N].
    pub ids: Address,
    /// Positions in the sentence, [N].
    pub places: Address,
    /// Rows in the padded batch, [N].
    pub padded: Address,
    /// First row of each sentence, and N.
    pub starts: Address,
    /// N.
    pub rows: usize,
    /// Sentences.
    pub sentences: usize,
    /// The longest sentence.
    pub longest: usize,
}

impl Side {
    /// No rows.
    pub const NONE: Self = Self {
        ids: Address::NONE,
        places: Address::NONE,
        padded: Address::NONE,
        starts: Address::NONE,
        rows: 0,
        sentences: 0,
        longest: 0,
    };
}

/// Rows grouped by value, on the device.
#[derive(Clone, Copy, Debug)]
pub struct SegmentsAt {
    /// The rows, segment after segment.
    pub order: Address,
    /// Where each segment of one value begins, and where the last one ends.
    pub starts: Address,
    /// The value of each segment.
    pub values: Address,
    /// Number of segments.
    pub count: usize,
    /// How many of them, the first ones, have many rows.
    pub long: usize,
    /// Number of rows.
    pub rows: usize,
}

/// Launches kernels on numbers of one type.
pub struct Kernels {
    queue: Arc<dyn Queue>,
    /// Type of activations.
    pub number: Number,
    /// Whether all widths are multiples of eight.
    pub wide: bool,
    /// Products of at most so many multiplications are computed by kernels: [`MOST_MULTIPLICATIONS`], or zero for none.
    pub most_multiplications: usize,
}

impl Kernels {
    /// For numbers of this type; `wide` if every width is a multiple of eight.
    pub fn new(queue: Arc<dyn Queue>, number: Number, wide: bool) -> Self {
        Self { queue, number, wide, most_multiplications: MOST_MULTIPLICATIONS }
    }

    fn name(&self, kernel: &str) -> String {
        let width = if self.wide { "wide" } else { "narrow" };
        format!("{}_{width}", self.typed(kernel))
    }

    fn typed(&self, kernel: &str) -> String {
        match self.number {
            Number::F32 => format!("{kernel}_f32"),
            Number::Bf16 => format!("{kernel}_bf16"),
        }
    }

    fn vector(&self) -> usize {
        if self.wide { 8 } else { 1 }
    }

    /// Number of blocks for `pieces` of work, at most `each` per multiprocessor.
    fn blocks(&self, pieces: usize, each: u32) -> u32 {
        (pieces.max(1) as u64).min(u64::from(self.queue.multiprocessors() * each)) as u32
    }

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
        // A block for each long segment and run of columns; a warp for each of the others. The profile counts their bytes once.
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
        let (rows, vocabulary, stride, gradient) = (rows as u32, vocabulary as u32, stride as u32, u32::from(gradient));
        let arguments = arguments![logits, losses, labels, smoothing, vocabulary, stride, gradient];
        // SAFETY: the types are those of `smoothed_loss` in loss.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "loss",
                    grid: [rows, 1, 1],
                    threads: 16 * WARP,
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
