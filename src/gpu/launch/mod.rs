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
mod embedding;
mod loss;
mod low_rank;
mod norm;
mod optimizer;
mod pooling;
mod product;
mod product_norm;
mod relative;
mod rotary;
mod search;

use std::sync::Arc;

use super::queue::{Address, Number, Queue};
use crate::ops::dropout::Dropout;

pub use attention::{AttentionSizes, Heads, Past, scale};
pub use columns::{MOST_PARTIAL_SUMS, PartialSum};
pub use loss::NO_LABEL;
pub use norm::NormArgument;
pub use optimizer::AdamArgument;
pub use product::{MOST_MULTIPLICATIONS, WeightGradient};
pub use relative::Distances;
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
    /// Products of at most so many multiplications are computed by kernels: [`MOST_MULTIPLICATIONS`], or zero for
    /// none.
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
}
