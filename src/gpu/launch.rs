//! The kernels of `kernels/`, each as a function with the types of its parameters. `N` rows, `D` columns.

// Kernels take many things one by one, and so do these.
#![allow(clippy::too_many_arguments)]

use std::ffi::c_void;
use std::sync::Arc;

use super::queue::{Address, Launch, Number, Queue};
use crate::error::Result;
use crate::ops::dropout::Dropout;
use crate::ops::feed_forward::Activation;
use crate::ops::norm::NormKind;

/// Threads of a warp.
pub const WARP: u32 = 32;
/// Dynamic shared memory that every GPU gives a block without being asked.
const SHARED: usize = 48 << 10;

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

/// A normalisation as kernels take it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NormArgument {
    gamma: Address,
    beta: Address,
    eps: f32,
    kind: u32,
}

impl NormArgument {
    /// γ and β are float32, [D].
    pub fn new(gamma: Address, beta: Address, eps: f64, kind: NormKind) -> Self {
        let kind = match kind {
            NormKind::Layer => 0,
            NormKind::Std => 1,
        };
        Self { gamma, beta, eps: eps as f32, kind }
    }
}

/// The constants of an Adam update as the kernel takes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AdamArgument(pub [f32; 8]);

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

/// Rows by value, on the device.
#[derive(Clone, Copy, Debug)]
pub struct SegmentsAt {
    /// Rows by value.
    pub order: Address,
    /// Beginnings.
    pub starts: Address,
    /// Values.
    pub values: Address,
    /// How many.
    pub count: usize,
    /// Rows of all together.
    pub rows: usize,
}

/// Sizes, strides and masks of one attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Queries.
    pub queries: Side,
    /// Keys.
    pub keys: Side,
    /// Numbers between two rows of queries.
    pub q_stride: usize,
    /// Numbers between two rows of keys, and of values.
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

/// What the self-attention of one step of decoding looks at.
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
    /// Most steps.
    pub capacity: usize,
    /// Steps so far, with this one.
    pub positions: usize,
    /// Rows of this step.
    pub rows: usize,
    /// Numbers between two packed rows.
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

/// What rows may not be continued by, as the kernel takes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exclusions {
    /// The only token a row may take, or [`Exclusions::NO_TOKEN`], [rows].
    pub forced: Address,
    /// Where the tokens of every row begin, and where the last ones end.
    pub starts: Address,
    /// Tokens that single rows may not take.
    pub tokens: Address,
    /// Tokens that no row may take.
    pub always: Address,
    /// How many of these.
    pub always_count: u32,
}

impl Exclusions {
    /// No token.
    pub const NO_TOKEN: u32 = u32::MAX;
}

/// Launches kernels on numbers of one type.
pub struct Kernels {
    queue: Arc<dyn Queue>,
    /// Type of activations.
    pub number: Number,
    /// Whether all widths are multiples of eight.
    pub wide: bool,
}

macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &mut [$((&raw const $argument).cast::<c_void>().cast_mut()),*]
    };
}

impl Kernels {
    /// For numbers of this type; `wide` if every width is a multiple of eight.
    pub fn new(queue: Arc<dyn Queue>, number: Number, wide: bool) -> Self {
        Self { queue, number, wide }
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

    /// Blocks for so many pieces of work, at most `each` a multiprocessor.
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
                &Launch { kernel: &self.name("embed"), name: "embedding", grid, threads: 8 * WARP, shared: 0, bytes },
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
        let bytes = self.number.bytes(segments.rows * d) + 8 * segments.count * d;
        let columns = d.div_ceil(WARP as usize * self.vector()) as u32;
        let (dropout, d) = (DropoutArgument::from(dropout), d as u32);
        let arguments =
            arguments![gradient, g, segments.order, segments.starts, segments.values, padded, scale, dropout, d];
        let grid = [segments.count as u32, columns, 1];
        // SAFETY: the types are those of `embed_backward` in embedding.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("embed_backward"),
                    name: "embedding, backward",
                    grid,
                    threads: 8 * WARP,
                    shared: 0,
                    bytes,
                },
                arguments,
            )
        }
    }

    /// Warps of a block that each need so many floats of shared memory.
    fn warps(floats: usize) -> usize {
        (SHARED / (4 * floats)).clamp(1, 4)
    }

    /// s = x + dropout(h + bias), y = norm(s), and the statistics [N, 2] that backward needs.
    pub fn add_norm(
        &self,
        [y, s, statistics]: [Address; 3],
        [x, h, bias]: [Address; 3],
        norm: NormArgument,
        dropout: Dropout,
        side: &Side,
        d: usize,
    ) -> Result<()> {
        let bytes = self.number.bytes(side.rows * d)
            * (1 + 2 * usize::from(h != Address::NONE) + usize::from(y != Address::NONE));
        let warps = Self::warps(d);
        let grid = [self.blocks(side.rows.div_ceil(warps), 16), 1, 1];
        let (dropout, rows, shared) = (DropoutArgument::from(dropout), side.rows as u32, (4 * warps * d) as u32);
        let d = d as u32;
        let arguments = arguments![y, s, statistics, x, h, bias, norm, dropout, side.padded, rows, d];
        // SAFETY: the types are those of `add_norm` in norm.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("add_norm"),
                    name: "add-norm",
                    grid,
                    threads: warps as u32 * WARP,
                    shared,
                    bytes,
                },
                arguments,
            )
        }
    }

    /// Rows of partial sums that [`Self::add_norm_backward`] writes, each 3·D floats.
    pub fn norm_blocks(&self, rows: usize, d: usize) -> usize {
        self.blocks(rows.div_ceil(Self::warps(4 * d)), 6) as usize
    }

    /// ds = norm'(dy) + addend, dh = mask·ds, and partial column sums of the gradients of γ, β and the bias.
    pub fn add_norm_backward(
        &self,
        [ds, dh, partial]: [Address; 3],
        [dy, addend, s, statistics]: [Address; 4],
        norm: NormArgument,
        dropout: Dropout,
        side: &Side,
        d: usize,
    ) -> Result<()> {
        let bytes = self.number.bytes(side.rows * d)
            * (1 + 2 * usize::from(dy != Address::NONE)
                + usize::from(addend != Address::NONE)
                + usize::from(dh != Address::NONE));
        let warps = Self::warps(4 * d);
        let grid = [self.norm_blocks(side.rows, d) as u32, 1, 1];
        let (dropout, rows, shared) = (DropoutArgument::from(dropout), side.rows as u32, (16 * warps * d) as u32);
        let d = d as u32;
        let arguments = arguments![ds, dh, partial, dy, addend, s, statistics, norm, dropout, side.padded, rows, d];
        // SAFETY: the types are those of `add_norm_backward` in norm.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("add_norm_backward"),
                    name: "add-norm, backward",
                    grid,
                    threads: warps as u32 * WARP,
                    shared,
                    bytes,
                },
                arguments,
            )
        }
    }

    /// Rows of partial sums that column sums over so many rows are made of.
    pub fn column_blocks(&self, rows: usize, width: usize) -> usize {
        let across = width.div_ceil(WARP as usize * self.vector());
        // About as many blocks as keep the device busy.
        let wanted = (self.queue.multiprocessors() as usize * 8).div_ceil(across);
        rows.div_ceil(8).clamp(1, wanted)
    }

    fn column_grid(&self, rows: usize, width: usize) -> [u32; 3] {
        let across = width.div_ceil(WARP as usize * self.vector());
        [across as u32, self.column_blocks(rows, width) as u32, 1]
    }

    /// Partial sums of the columns of g [rows, width].
    pub fn column_sums(&self, partial: Address, g: Address, rows: usize, width: usize) -> Result<()> {
        let bytes = self.number.bytes(rows * width);
        let (grid, rows, width) = (self.column_grid(rows, width), rows as u32, width as u32);
        // SAFETY: the types are those of `column_sums` in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("column_sums"),
                    name: "column sums",
                    grid,
                    threads: 8 * WARP,
                    shared: 0,
                    bytes,
                },
                arguments![partial, g, rows, width],
            )
        }
    }

    /// Adds partial sums [blocks, Σ widths] to their targets.
    pub fn add_partial_sums(&self, targets: [(Address, usize); 2], partial: Address, blocks: usize) -> Result<()> {
        let [(first, first_width), (second, second_width)] = targets;
        let bytes = 4 * blocks * (first_width + second_width);
        let grid = [(first_width + second_width).div_ceil(WARP as usize) as u32, 1, 1];
        let (blocks, first_width, second_width) = (blocks as u32, first_width as u32, second_width as u32);
        let arguments = arguments![first, second, partial, blocks, first_width, second_width];
        // SAFETY: the types are those of `add_partial_sums` in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "add_partial_sums", name: "column sums", grid, threads: 8 * WARP, shared: 0, bytes },
                arguments,
            )
        }
    }

    fn activation(activation: Activation) -> &'static str {
        match activation {
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::Swish => "swish",
        }
    }

    /// a = dropout(activation(u)), [N, width]; a may be u.
    pub fn activate(
        &self,
        activation: Activation,
        [a, u]: [Address; 2],
        dropout: Dropout,
        side: &Side,
        width: usize,
    ) -> Result<()> {
        let bytes = 2 * self.number.bytes(side.rows * width);
        let kernel = self.name(Self::activation(activation));
        let grid = [self.blocks((side.rows * width / self.vector()).div_ceil(256), 32), 1, 1];
        let (dropout, rows, width) = (DropoutArgument::from(dropout), side.rows as u32, width as u32);
        // SAFETY: the types are those of the activations in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &kernel, name: "activation", grid, threads: 256, shared: 0, bytes },
                arguments![a, u, dropout, side.padded, rows, width],
            )
        }
    }

    /// g, the gradient of the hidden layer, becomes that of its input u; and partial sums of its columns.
    pub fn activate_backward(
        &self,
        activation: Activation,
        [g, partial, u]: [Address; 3],
        dropout: Dropout,
        side: &Side,
        width: usize,
    ) -> Result<()> {
        let bytes = 3 * self.number.bytes(side.rows * width);
        let kernel = self.name(&format!("{}_backward", Self::activation(activation)));
        let grid = self.column_grid(side.rows, width);
        let (dropout, rows, width) = (DropoutArgument::from(dropout), side.rows as u32, width as u32);
        let arguments = arguments![g, partial, u, dropout, side.padded, rows, width];
        // SAFETY: the types are those of the activations' backward in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &kernel, name: "activation, backward", grid, threads: 8 * WARP, shared: 0, bytes },
                arguments,
            )
        }
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
                &Launch { kernel: &self.typed("turn"), name: "rotary", grid, threads: 256, shared: 0, bytes },
                arguments,
            )
        }
    }

    /// Name of an attention kernel, its grid over `longest` rows, its threads and shared memory, for these sizes.
    fn attention(
        &self,
        kernel: &str,
        sizes: &AttentionSizes,
        longest: usize,
        shared: usize,
    ) -> (String, [u32; 3], u32, u32) {
        let (heads, sentences) = (sizes.heads as u32, sizes.queries.sentences as u32);
        let of_tiles = self.number == Number::Bf16
            && sizes.d_k == sizes.d_v
            && matches!(sizes.d_k, 16 | 32 | 64 | 128)
            && self.wide;
        if of_tiles {
            let name = format!("attend_tiles{kernel}_{}", sizes.d_k);
            let warps = longest.div_ceil(16).clamp(1, 4);
            return (name, [longest.div_ceil(16 * warps).max(1) as u32, heads, sentences], warps as u32 * WARP, 0);
        }
        let grid = [longest.div_ceil(4).max(1) as u32, heads, sentences];
        (self.name(&format!("attend{kernel}")), grid, 4 * WARP, (4 * 4 * shared) as u32)
    }

    /// out = softmax(q·kᵀ/√K)·v of every head, and log Σ e^x of every query, [H, N].
    pub fn attend(&self, [out, log_sums]: [Address; 2], heads: Heads, sizes: &AttentionSizes) -> Result<()> {
        let bytes = self.number.bytes(sizes.heads * (sizes.d_k + sizes.d_v) * (sizes.queries.rows + sizes.keys.rows));
        let (name, grid, threads, shared) = self.attention("", sizes, sizes.queries.longest, sizes.d_k);
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
        let (shape, both) = (sizes.argument(), sizes.d_k + sizes.d_v);
        let (name, grid, threads, shared) = self.attention("_backward_queries", sizes, sizes.queries.longest, both);
        let arguments = arguments![gradients.q, deltas, log_sums, dout, out, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_queries` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &name, name: "attention, backward (queries)", grid, threads, shared, bytes },
                arguments,
            )
        }?;
        let bytes = of(sizes.queries.rows) + 2 * of(sizes.keys.rows);
        let (name, grid, threads, shared) = self.attention("_backward_keys", sizes, sizes.keys.longest, both);
        let arguments = arguments![gradients.k, gradients.v, deltas, log_sums, dout, heads.q, heads.k, heads.v, shape];
        // SAFETY: the types are those of `attend_backward_keys` in attention.cu and attention_tiles.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &name, name: "attention, backward (keys)", grid, threads, shared, bytes },
                arguments,
            )
        }
    }

    /// The losses [rows, 2] of rows of logits, which become their gradient where it is wanted.
    pub fn smoothed_loss(
        &self,
        [logits, losses, labels]: [Address; 3],
        smoothing: f32,
        rows: usize,
        vocabulary: usize,
        gradient: bool,
    ) -> Result<()> {
        let bytes = self.number.bytes(rows * vocabulary) * (1 + usize::from(gradient));
        let wide = if self.wide && vocabulary.is_multiple_of(8) { "wide" } else { "narrow" };
        let kernel = format!("{}_{wide}", self.typed("smoothed_loss"));
        let (vocabulary, gradient) = (vocabulary as u32, u32::from(gradient));
        let arguments = arguments![logits, losses, labels, smoothing, vocabulary, gradient];
        // SAFETY: the types are those of `smoothed_loss` in loss.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "loss",
                    grid: [rows as u32, 1, 1],
                    threads: 8 * WARP,
                    shared: 0,
                    bytes,
                },
                arguments,
            )
        }
    }

    /// The rows of earlier steps that each row's hypothesis went through, [rows, capacity], from those of the last step's.
    pub fn advance(
        &self,
        [ancestors, before, parents]: [Address; 3],
        position: usize,
        capacity: usize,
        rows: usize,
    ) -> Result<()> {
        let grid = [self.blocks((rows * (position + 1)).div_ceil(256), 8), 1, 1];
        let (position, capacity, rows) = (position as u32, capacity as u32, rows as u32);
        let arguments = arguments![ancestors, before, parents, position, capacity, rows];
        // SAFETY: the types are those of `advance` in search.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: "advance", name: "ancestors", grid, threads: 256, shared: 0, bytes: 0 },
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
        let grid = [(past.rows * past.heads).div_ceil(4) as u32, 1, 1];
        let shared = (4 * 4 * past.d_k) as u32;
        let arguments = arguments![out, query, argument];
        // SAFETY: the types are those of `attend_past` in attention.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("attend_past"),
                    name: "attention, decoding",
                    grid,
                    threads: 4 * WARP,
                    shared,
                    bytes: 0,
                },
                arguments,
            )
        }
    }

    /// The k best continuations of rows of logits (float32, used up), and their log-probabilities.
    pub fn best_continuations(
        &self,
        [tokens, log_probs, logits]: [Address; 3],
        excluded: Exclusions,
        [rows, vocabulary, k]: [usize; 3],
    ) -> Result<()> {
        let (vocabulary, k) = (vocabulary as u32, k as u32);
        let arguments = arguments![tokens, log_probs, logits, excluded, vocabulary, k];
        // SAFETY: the types are those of `best_continuations` in search.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: "best_continuations",
                    name: "best continuations",
                    grid: [rows as u32, 1, 1],
                    threads: 8 * WARP,
                    shared: 0,
                    bytes: 0,
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
                &Launch { kernel: "add_losses", name: "loss", grid: [1, 1, 1], threads: 8 * WARP, shared: 0, bytes },
                arguments![sums, losses, rows],
            )
        }
    }

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
