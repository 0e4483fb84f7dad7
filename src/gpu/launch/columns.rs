//! Column sums, biases and activations: `kernels/columns.cu`.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, Side, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch, Matrix, Number};
use crate::ops::dropout::Dropout;
use crate::ops::feed_forward::Activation;
use crate::ops::profile::Work;

/// The most sums that [`Kernels::add_partial_sums`] takes at once: a kernel's arguments have at most 4,096 bytes.
pub const MOST_PARTIAL_SUMS: usize = 48;

/// Rows of partial sums, [blocks, Σ widths], and what their columns are to be added to.
#[derive(Clone, Copy, Debug)]
pub struct PartialSum {
    /// The targets, any of which may be missing, and their widths.
    pub targets: [(Address, usize); 3],
    /// The rows.
    pub partial: Address,
    /// Number of rows.
    pub blocks: usize,
}

impl PartialSum {
    /// Number of columns.
    pub fn width(&self) -> usize {
        self.targets.iter().map(|(_, width)| width).sum()
    }
}

/// [`PartialSum`] as kernels take it.
#[derive(Clone, Copy)]
#[repr(C)]
struct PartialSumArgument {
    targets: [Address; 3],
    partial: Address,
    widths: [u32; 3],
    blocks: u32,
    /// Number of thread blocks for this sum and all before it. Of one that is not there, beyond every grid.
    end: u32,
}

impl PartialSumArgument {
    const NONE: Self =
        Self { targets: [Address::NONE; 3], partial: Address::NONE, widths: [0; 3], blocks: 0, end: u32::MAX };
}

/// What `add_partial_sums` takes.
#[repr(C)]
struct PartialSumsArgument {
    each: [PartialSumArgument; MOST_PARTIAL_SUMS],
}

impl Kernels {
    /// How many rows of partial sums stage one makes of `rows` rows.
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

    /// Partial sums of the columns of g [rows, width], whose rows lie `stride` apart; wide accesses need that to be a
    /// multiple of eight.
    pub fn column_sums(&self, partial: Address, g: Address, rows: usize, width: usize, stride: usize) -> Result<()> {
        let bytes = self.number.bytes(rows * width);
        let grid = self.column_grid(rows, width);
        let [rows, width, stride] = [rows, width, stride].map(|n| n as u32);
        // SAFETY: the types are those of `column_sums` in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &self.name("column_sums"),
                    name: "column sums",
                    grid,
                    threads: 8 * WARP,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments![partial, g, rows, width, stride],
            )
        }
    }

    /// Adds partial sums to their targets, at most [`MOST_PARTIAL_SUMS`] of them: no target may be there twice.
    pub fn add_partial_sums(&self, sums: &[PartialSum]) -> Result<()> {
        let mut arguments = PartialSumsArgument { each: [PartialSumArgument::NONE; MOST_PARTIAL_SUMS] };
        let (mut end, mut bytes) = (0, 0);
        for (argument, sum) in arguments.each.iter_mut().zip(sums) {
            end += sum.width().div_ceil(WARP as usize) as u32;
            bytes += 4 * sum.blocks * sum.width();
            let (targets, widths) = (sum.targets.map(|(target, _)| target), sum.targets.map(|(_, width)| width as u32));
            *argument = PartialSumArgument { targets, partial: sum.partial, widths, blocks: sum.blocks as u32, end };
        }
        if end == 0 {
            return Ok(());
        }
        let (kernel, name, threads) = ("add_partial_sums", "column sums", 32 * WARP);
        // SAFETY: the type is that of `add_partial_sums` in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel, name, grid: [end, 1, 1], threads, shared: 0, work: Work::bytes(bytes) },
                arguments![arguments],
            )
        }
    }

    /// y += bias in every row of y [N, width], then max(0, y) if `relu`: what the epilogue of a product does.
    pub fn add_bias(
        &self,
        y: Matrix,
        bias: Address,
        number: Number,
        [rows, width]: [usize; 2],
        relu: bool,
    ) -> Result<()> {
        let bytes = 2 * number.bytes(rows * width);
        let kernel = match number {
            Number::F32 => "add_bias_f32",
            Number::Bf16 => "add_bias_bf16",
        };
        let grid = [self.blocks((rows * width).div_ceil(256), 32), 1, 1];
        let (relu, rows, width, stride) = (u32::from(relu), rows as u32, width as u32, y.stride as u32);
        // SAFETY: the types are those of `add_bias` in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel, name: "bias", grid, threads: 256, shared: 0, work: Work::bytes(bytes) },
                arguments![y.at, bias, relu, rows, width, stride],
            )
        }
    }

    /// a = dropout(activation(u)), [N, width]; a may be u. If it is gated, a = dropout(activation(u₁) ⊙ u₂), where u₁
    /// and u₂ are the halves of the rows of u, [N, 2·width].
    pub fn activate(
        &self,
        activation: Activation,
        is_gated: bool,
        [a, u]: [Address; 2],
        dropout: Dropout,
        side: &Side,
        width: usize,
    ) -> Result<()> {
        let (bytes, gate) = if is_gated { (3, "gate_") } else { (2, "") };
        let bytes = bytes * self.number.bytes(side.rows * width);
        let kernel = self.name(&format!("{gate}{}", activation.name()));
        let grid = [self.blocks((side.rows * width / self.vector()).div_ceil(256), 32), 1, 1];
        let (dropout, rows, width) = (DropoutArgument::from(dropout), side.rows as u32, width as u32);
        // SAFETY: the types are those of the activations and gates in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "activation",
                    grid,
                    threads: 256,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments![a, u, dropout, side.padded, rows, width],
            )
        }
    }

    /// du, [N, 2·width], from the gradient g of what [`Self::activate`] has gated; `partial` gets partial sums of du's
    /// columns.
    pub fn gate_backward(
        &self,
        activation: Activation,
        [du, g, partial, u]: [Address; 4],
        dropout: Dropout,
        side: &Side,
        width: usize,
    ) -> Result<()> {
        let bytes = 6 * self.number.bytes(side.rows * width);
        let kernel = self.name(&format!("gate_{}_backward", activation.name()));
        let grid = self.column_grid(side.rows, 2 * width);
        let (dropout, rows, width) = (DropoutArgument::from(dropout), side.rows as u32, width as u32);
        let work = Work::bytes(bytes);
        // SAFETY: the types are those of the gates' backward in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch { kernel: &kernel, name: "gate, backward", grid, threads: 8 * WARP, shared: 0, work },
                arguments![du, g, partial, u, dropout, side.padded, rows, width],
            )
        }
    }

    /// g, the gradient of the hidden layer, becomes that of its input u; `partial` gets partial sums of its columns.
    pub fn activate_backward(
        &self,
        activation: Activation,
        [g, partial, u]: [Address; 3],
        dropout: Dropout,
        side: &Side,
        width: usize,
    ) -> Result<()> {
        let bytes = 3 * self.number.bytes(side.rows * width);
        let kernel = self.name(&format!("{}_backward", activation.name()));
        let grid = self.column_grid(side.rows, width);
        let (dropout, rows, width) = (DropoutArgument::from(dropout), side.rows as u32, width as u32);
        let arguments = arguments![g, partial, u, dropout, side.padded, rows, width];
        // SAFETY: the types are those of the activations' backward in columns.cu.
        unsafe {
            self.queue.launch(
                &Launch {
                    kernel: &kernel,
                    name: "activation, backward",
                    grid,
                    threads: 8 * WARP,
                    shared: 0,
                    work: Work::bytes(bytes),
                },
                arguments,
            )
        }
    }
}
