//! A sub-layer without its wrapper, and the data that the fused form hands it.

use std::ops::Range;

use candle_core::{Result, Tensor};

use crate::ops::params::Param;
use crate::ops::projection::Pass;

/// A block of whole sentences on its way forward.
pub struct ForwardBlock<'a> {
    /// The sentences.
    pub sentences: Range<usize>,
    /// Input rows.
    pub input: &'a [f32],
    /// Memory rows (cross-attention), or empty.
    pub memory: &'a [f32],
    /// What is kept for backward, per input row.
    pub saved: [&'a mut [f32]; 2],
    /// What is kept for backward, per memory row.
    pub memory_saved: &'a mut [f32],
}

/// A block of whole sentences on its way back.
pub struct BackwardBlock<'a> {
    /// The sentences.
    pub sentences: Range<usize>,
    /// Gradient of the sub-layer's output (before its bias).
    pub dh: &'a [f32],
    /// What forward kept, per input row.
    pub saved: [&'a [f32]; 2],
    /// What forward kept, per memory row.
    pub memory_saved: &'a [f32],
    /// Gradient at the inner projection's output, per input row ([`Inner::widths`]).
    pub dinner: &'a mut [f32],
    /// Gradient at the memory projection's output, per memory row.
    pub dmemory_inner: &'a mut [f32],
    /// Gradient of the input: added to.
    pub dinput: &'a mut [f32],
    /// Gradient of the memory, for writing.
    pub dmemory: &'a mut [f32],
    /// Column sums for the inner biases ([`Inner::widths`]): added to.
    pub sums: &'a mut [f32],
}

/// The data of all rows, for the gradients of the weights.
pub struct WholeBatch<'a> {
    /// Number of input rows.
    pub rows: usize,
    /// Number of memory rows.
    pub memory_rows: usize,
    /// The sub-layer's input (normalised, with pre-norm).
    pub input: &'a [f32],
    /// The memory.
    pub memory: &'a [f32],
    /// What forward kept.
    pub saved: [&'a [f32]; 2],
    /// Gradient of the sub-layer's output.
    pub dh: &'a [f32],
    /// Gradient at the inner projection's output.
    pub dinner: &'a [f32],
    /// Gradient at the memory projection's output.
    pub dmemory_inner: &'a [f32],
    /// Column sums for the inner biases.
    pub sums: &'a [f32],
}

/// Widths, in floats per row, of the values that a sub-layer keeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Widths {
    /// Kept per input row.
    pub saved: [usize; 2],
    /// Kept per memory row.
    pub memory_saved: usize,
    /// Gradient at the inner projection.
    pub inner: usize,
    /// Column sums for inner biases.
    pub sums: usize,
}

/// A sub-layer without its wrapper.
pub trait Inner: Send + Sync {
    /// Weights in the form that products need.
    type Prepared: Send + Sync;

    /// Name, for messages and profiles.
    fn name(&self) -> &'static str;
    /// Rows of x and of the memory in one sentence.
    fn lengths(&self) -> (usize, usize);
    /// Widths of the buffers.
    fn widths(&self) -> Widths;
    /// The first of its parameters in the layout: all others, and those of its norm, are behind it, and before those of
    /// the next sub-layer.
    fn first_parameter(&self) -> &Param;
    /// The output projection's bias, added by the wrapper.
    fn output_bias(&self) -> Option<&Param>;
    /// Prepares the weights for one pass.
    fn prepare(&self, pass: Pass) -> Result<Self::Prepared>;
    /// h = f(input) without the output bias.
    fn forward(&self, prepared: &Self::Prepared, block: ForwardBlock, h: &mut [f32]) -> Result<()>;
    /// Gradients of input, memory and inner activations.
    fn backward(&self, prepared: &Self::Prepared, block: BackwardBlock) -> Result<()>;
    /// Adds the gradients of the weights and inner biases.
    fn weight_gradients(&self, batch: &WholeBatch) -> Result<()>;
    /// f in plain Candle operations, with its output bias. x: [N, D].
    fn reference(&self, x: &Tensor, memory: Option<&Tensor>, training: bool) -> Result<Tensor>;
}
