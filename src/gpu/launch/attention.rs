//! Attention: `kernels/attention.cu` and `kernels/attention_tiles.cu`.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, Side, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch, Number};
use crate::ops::dropout::Dropout;

/// The most numbers of a head that a lane holds, in each variant of the kernels of attention.cu.
const PARTS: [usize; 3] = [2, 4, MOST_PARTS];
/// Heads are up to 512 wide.
const MOST_PARTS: usize = 16;
/// The most warps of a block.
const WARPS: usize = 4;

/// Rows that a warp of attention.cu owns in training: `OWN` there.
const fn own(parts: usize) -> usize {
    if parts > 4 { 2 } else { 4 }
}

/// Sizes, strides and masks of one attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Queries.
    pub queries: Side,
    /// Keys.
    pub keys: Side,
    /// Distance from one row of queries to the next, in numbers.
    pub q_stride: usize,
    /// Distance from one row of keys to the next, and of values, in numbers.
    pub k_stride: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head's queries and keys.
    pub d_k: usize,
    /// Width of a head's values.
    pub d_v: usize,
    /// Whether a query sees only keys up to its own place.
    pub causal: bool,
    /// Dropout on the weights.
    pub dropout: Dropout,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct AttentionArgument {
    q_starts: Address,
    k_starts: Address,
    q_stride: u32,
    k_stride: u32,
    out_stride: u32,
    heads: u32,
    d_k: u32,
    d_v: u32,
    causal: u32,
    queries: u32,
    keys: u32,
    rows: u32,
    scale: f32,
    dropout: DropoutArgument,
}

impl AttentionSizes {
    fn argument(&self) -> AttentionArgument {
        AttentionArgument {
            q_starts: self.queries.starts,
            k_starts: self.keys.starts,
            q_stride: self.q_stride as u32,
            k_stride: self.k_stride as u32,
            out_stride: (self.heads * self.d_v) as u32,
            heads: self.heads as u32,
            d_k: self.d_k as u32,
            d_v: self.d_v as u32,
            causal: self.causal.into(),
            queries: self.queries.longest as u32,
            keys: self.keys.longest as u32,
            rows: self.queries.rows as u32,
            scale: 1.0 / (self.d_k as f32).sqrt(),
            dropout: self.dropout.into(),
        }
    }
}

/// Queries, keys and values, or their gradients.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Queries.
    pub q: Address,
    /// Keys.
    pub k: Address,
    /// Values.
    pub v: Address,
}

/// What the self-attention of one decoding step attends to.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// Addresses of the packed queries, keys and values of every step and layer, [steps, layers].
    pub steps: Address,
    /// The rows that each hypothesis went through, [rows, capacity].
    pub ancestors: Address,
    /// Which layer.
    pub layer: usize,
    /// How many layers.
    pub layers: usize,
    /// The most steps that there is room for.
    pub capacity: usize,
    /// Steps so far, including this one.
    pub positions: usize,
    /// Rows of this step.
    pub rows: usize,
    /// Distance from one packed row to the next, in numbers.
    pub stride: usize,
    /// Heads.
    pub heads: usize,
    /// Width of a head's queries and keys.
    pub d_k: usize,
    /// Width of a head's values.
    pub d_v: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PastArgument {
    steps: Address,
    ancestors: Address,
    layer: u32,
    layers: u32,
    capacity: u32,
    positions: u32,
    rows: u32,
    stride: u32,
    heads: u32,
    d_k: u32,
    d_v: u32,
    scale: f32,
}

impl Kernels {
    /// The variant of a kernel of attention.cu for heads of this width: one of [`PARTS`].
    fn parts(width: usize) -> usize {
        let needed = width.div_ceil(WARP as usize);
        PARTS.into_iter().find(|parts| *parts >= needed).unwrap_or(MOST_PARTS)
    }

    /// Name of an attention kernel, its grid over `longest` rows, its threads and shared memory, for these sizes. For each of
    /// its rows, the kernel keeps vectors of `kept` numbers in shared memory.
    fn attention(
        &self,
        kernel: &str,
        sizes: &AttentionSizes,
        longest: usize,
        kept: &[usize],
    ) -> (String, [u32; 3], u32, u32) {
        let (heads, sentences) = (sizes.heads as u32, sizes.queries.sentences as u32);
        let of_tiles = self.number == Number::Bf16
            && sizes.d_k == sizes.d_v
            && matches!(sizes.d_k, 16 | 32 | 64 | 128)
            && self.wide;
        let parts = Self::parts(sizes.d_k.max(sizes.d_v));
        let (name, rows, shared) = match of_tiles {
            true => (format!("attend_tiles{kernel}_{}", sizes.d_k), 16, 0),
            false => {
                // As floats, each vector padded to a multiple of four.
                let numbers: usize = kept.iter().map(|width| width.next_multiple_of(4)).sum();
                (format!("{}_{parts}", self.name(&format!("attend{kernel}"))), own(parts), 4 * own(parts) * numbers)
            }
        };
        let warps = longest.div_ceil(rows).clamp(1, WARPS);
        let blocks = longest.div_ceil(rows * warps).max(1);
        (name, [sentences, heads, blocks as u32], warps as u32 * WARP, (warps * shared) as u32)
    }

    /// out = softmax(q·kᵀ/√K)·v of every head, and log Σ e^x of every query, [H, N].
    pub fn attend(&self, [out, log_sums]: [Address; 2], heads: Heads, sizes: &AttentionSizes) -> Result<()> {
        let bytes = self.number.bytes(sizes.heads * (sizes.d_k + sizes.d_v) * (sizes.queries.rows + sizes.keys.rows));
        let (name, grid, threads, shared) = self.attention("", sizes, sizes.queries.longest, &[sizes.d_k]);
        let shape = sizes.argument();
        let arguments = arguments![out, log_sums, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(&Launch { kernel: &name, name: "attention", grid, threads, shared, bytes }, arguments)
        }
    }

    /// The gradients of queries, keys and values; `deltas` is scratch, [H, N].
    pub fn attend_backward(
        &self,
        gradients: Heads,
        [dout, out, log_sums, deltas]: [Address; 4],
        heads: Heads,
        sizes: &AttentionSizes,
    ) -> Result<()> {
        let of = |rows: usize| self.number.bytes(sizes.heads * (sizes.d_k + sizes.d_v) * rows);
        let bytes = 2 * of(sizes.queries.rows) + of(sizes.keys.rows);
        let (shape, both) = (sizes.argument(), [sizes.d_k, sizes.d_v]);
        let (name, grid, threads, shared) = self.attention("_backward_queries", sizes, sizes.queries.longest, &both);
        let arguments = arguments![gradients.q, deltas, log_sums, dout, out, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_queries` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &name, name: "attention, backward (queries)", grid, threads, shared, bytes },
                arguments,
            )
        }?;
        let bytes = of(sizes.queries.rows) + 2 * of(sizes.keys.rows);
        let (name, grid, threads, shared) = self.attention("_backward_keys", sizes, sizes.keys.longest, &both);
        let arguments = arguments![gradients.k, gradients.v, deltas, log_sums, dout, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_keys` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &name, name: "attention, backward (keys)", grid, threads, shared, bytes },
                arguments,
            )
        }
    }

    /// Attention of each row's newest position to all positions of its hypothesis.
    pub fn attend_past(&self, out: Address, query: Address, past: &Past) -> Result<()> {
        let argument = PastArgument {
            steps: past.steps,
            ancestors: past.ancestors,
            layer: past.layer as u32,
            layers: past.layers as u32,
            capacity: past.capacity as u32,
            positions: past.positions as u32,
            rows: past.rows as u32,
            stride: past.stride as u32,
            heads: past.heads as u32,
            d_k: past.d_k as u32,
            d_v: past.d_v as u32,
            scale: 1.0 / (past.d_k as f32).sqrt(),
        };
        let grid = [(past.rows * past.heads).div_ceil(WARPS) as u32, 1, 1];
        let shared = (4 * WARPS * past.d_k.next_multiple_of(4)) as u32;
        let kernel = format!("{}_{}", self.name("attend_past"), Self::parts(past.d_k.max(past.d_v)));
        let arguments = arguments![out, query, argument];
        // SAFETY: the types are those of `attend_past` in attention.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "attention, decoding",
                    grid,
                    threads: WARPS as u32 * WARP,
                    shared,
                    bytes: 0,
                },
                arguments,
            )
        }
    }
}
