//! Attention: `kernels/attention.cu`, `kernels/attention_tiles.cu` and `kernels/attention_whole.cu`.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, Side, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch, Number};
use crate::ops::dropout::Dropout;
use crate::ops::profile::Work;

/// The most numbers of a head that a lane holds, in each variant of the kernels of attention.cu.
const PARTS: [usize; 3] = [2, 4, MOST_PARTS];
/// Heads are up to 512 wide.
const MOST_PARTS: usize = 16;
/// The most warps of a block, where they fetch the rows of the other side piece by piece.
const WARPS: usize = 4;
/// The most rows that a block has in shared memory at a time, and the most that its warps own, 16 each: `HELD_ROWS` of
/// attention_tiles.cuh.
const HELD_ROWS: usize = 128;
/// Rows that a warp of attention_tiles.cu takes at a time: `TILE` there.
const TILE: usize = 32;
/// Rows that a warp owns in kernels on tensor cores.
const TILE_ROWS: usize = 16;

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
    /// With relative positions, what is added to products by head and distance, [H, 2·reach + 1].
    pub by_distance: Address,
    /// The longest distance.
    pub reach: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttentionArgument {
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
    by_distance: Address,
    reach: u32,
}

impl AttentionSizes {
    pub(super) fn argument(&self) -> AttentionArgument {
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
            scale: scale(self.d_k),
            dropout: self.dropout.into(),
            by_distance: self.by_distance,
            reach: self.reach as u32,
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
    /// As in [`AttentionSizes`].
    pub by_distance: Address,
    /// The longest distance.
    pub reach: usize,
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
    by_distance: Address,
    reach: u32,
}

/// What products of heads of this width are multiplied by.
pub fn scale(d_k: usize) -> f32 {
    1.0 / (d_k as f32).sqrt()
}

/// A kernel and how it is started.
struct Execution {
    kernel: String,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
}

impl Execution {
    /// For the `longest` rows of a sentence, of which a warp owns `rows`, with at most `most` warps in a block;
    /// `shared` tells the bytes of shared memory for a number of warps.
    fn new(
        kernel: String,
        sizes: &AttentionSizes,
        longest: usize,
        rows: usize,
        most: usize,
        shared: impl Fn(usize) -> usize,
    ) -> Self {
        let warps = longest.div_ceil(rows).clamp(1, most);
        let blocks = longest.div_ceil(rows * warps).max(1);
        let grid = [sizes.queries.sentences as u32, sizes.heads as u32, blocks as u32];
        Self { kernel, grid, threads: warps as u32 * WARP, shared: shared(warps) as u32 }
    }
}

/// Bytes of rows of heads in shared memory: `Tile` in attention_tiles.cuh.
fn tiles(rows: usize, width: usize) -> usize {
    2 * rows * (width + 8)
}

impl Kernels {
    /// The variant of a kernel of attention.cu for heads of this width: one of [`PARTS`].
    fn parts(width: usize) -> usize {
        let needed = width.div_ceil(WARP as usize);
        PARTS.into_iter().find(|parts| *parts >= needed).unwrap_or(MOST_PARTS)
    }

    /// Whether the kernels on tensor cores take these sizes.
    fn is_of_tiles(&self, sizes: &AttentionSizes) -> bool {
        let width = sizes.d_k;
        self.number == Number::Bf16 && self.wide && width == sizes.d_v && matches!(width, 16 | 32 | 64 | 128)
    }

    /// An attention kernel for these sizes, over `longest` rows. For each of its rows, a kernel of attention.cu keeps
    /// vectors of `kept` numbers in shared memory.
    fn attention(&self, kernel: &str, sizes: &AttentionSizes, longest: usize, kept: &[usize]) -> Execution {
        if self.is_of_tiles(sizes) {
            return Execution::new(
                format!("attend_tiles{kernel}_{}", sizes.d_k),
                sizes,
                longest,
                TILE_ROWS,
                WARPS,
                |_| 0,
            );
        }
        let parts = Self::parts(sizes.d_k.max(sizes.d_v));
        let name = format!("{}_{parts}", self.name(&format!("attend{kernel}")));
        // As floats, each vector padded to a multiple of four.
        let numbers: usize = kept.iter().map(|width| width.next_multiple_of(4)).sum();
        Execution::new(name, sizes, longest, own(parts), WARPS, |warps| 4 * warps * own(parts) * numbers)
    }

    /// The forward kernel for these sizes.
    fn attention_forward(&self, sizes: &AttentionSizes) -> Execution {
        let longest = sizes.queries.longest;
        if !self.is_of_tiles(sizes) {
            return self.attention("", sizes, longest, &[sizes.d_k]);
        }
        let held = sizes.keys.longest.next_multiple_of(TILE).min(HELD_ROWS);
        let shared = |warps| tiles(2 * held + TILE_ROWS * warps, sizes.d_k);
        // Not every GPU gives a block more than 99 KiB of shared memory.
        let warps = if sizes.d_k > 64 { WARPS } else { HELD_ROWS / TILE_ROWS };
        Execution::new(format!("attend_tiles_{}", sizes.d_k), sizes, longest, TILE_ROWS, warps, shared)
    }

    /// The kernel that goes back over all of a sentence at once, if it takes these sizes.
    fn attention_whole(&self, sizes: &AttentionSizes) -> Option<Execution> {
        let longest = sizes.queries.longest.max(sizes.keys.longest);
        if !self.is_of_tiles(sizes) || sizes.d_k > 64 || longest > HELD_ROWS {
            return None;
        }
        let room = longest.next_multiple_of(TILE_ROWS);
        // The gradients of the scores take the place of the values, and two floats belong to each query.
        let shared = tiles(3 * room, sizes.d_k) + tiles(room, room.max(sizes.d_k)) + 8 * room;
        let name = format!("attend_whole_backward_{}", sizes.d_k);
        Some(Execution::new(name, sizes, longest, TILE_ROWS, HELD_ROWS / TILE_ROWS, |_| shared))
    }

    /// out = softmax(q·kᵀ/√K)·v of every head, and log Σ e^x of every query, [H, N].
    pub fn attend(&self, [out, log_sums]: [Address; 2], heads: Heads, sizes: &AttentionSizes) -> Result<()> {
        let bytes = self.number.bytes(sizes.heads * (sizes.d_k + sizes.d_v) * (sizes.queries.rows + sizes.keys.rows));
        let Execution { kernel, grid, threads, shared } = self.attention_forward(sizes);
        let shape = sizes.argument();
        let arguments = arguments![out, log_sums, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &kernel, name: "attention", grid, threads, shared, work: Work::bytes(bytes) },
                arguments,
            )
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
        let (shape, both) = (sizes.argument(), [sizes.d_k, sizes.d_v]);
        if let Some(Execution { kernel, grid, threads, shared }) = self.attention_whole(sizes) {
            let bytes = 2 * of(sizes.queries.rows) + 2 * of(sizes.keys.rows);
            let arguments = arguments![
                gradients.q,
                gradients.k,
                gradients.v,
                log_sums,
                dout,
                out,
                heads.q,
                heads.k,
                heads.v,
                shape
            ];
            let launch = Launch {
                kernel: &kernel,
                name: "attention, backward",
                grid,
                threads,
                shared,
                work: Work::bytes(bytes),
            };
            // SAFETY: the types are those of `attend_whole_backward` in attention_whole.cu.
            return unsafe { self.queue.launch(&launch, arguments) };
        }
        let bytes = 2 * of(sizes.queries.rows) + of(sizes.keys.rows);
        let Execution { kernel, grid, threads, shared } =
            self.attention("_backward_queries", sizes, sizes.queries.longest, &both);
        let arguments = arguments![gradients.q, deltas, log_sums, dout, out, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_queries` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "attention, backward (queries)",
                    grid,
                    threads,
                    shared,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }?;
        let bytes = of(sizes.queries.rows) + 2 * of(sizes.keys.rows);
        let Execution { kernel, grid, threads, shared } =
            self.attention("_backward_keys", sizes, sizes.keys.longest, &both);
        let arguments = arguments![gradients.k, gradients.v, deltas, log_sums, dout, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_keys` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "attention, backward (keys)",
                    grid,
                    threads,
                    shared,
                    work: Work::bytes(bytes),
                },
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
            scale: scale(past.d_k),
            by_distance: past.by_distance,
            reach: past.reach as u32,
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
                    work: Work::NONE,
                },
                arguments,
            )
        }
    }
}
