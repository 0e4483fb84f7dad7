//! Normalisation joined with the residual sum: `kernels/norm.cu`.

use std::ffi::c_void;

use super::{DropoutArgument, Kernels, Side, WARP};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch};
use crate::ops::dropout::Dropout;
use crate::ops::norm::NormKind;
use crate::ops::profile::Work;

/// Dynamic shared memory that every GPU gives a block without being asked.
const SHARED: usize = 48 << 10;
/// Bytes of shared memory of a multiprocessor of compute capability 9.0, and those that each block takes besides its
/// own.
const OF_MULTIPROCESSOR: usize = 228 << 10;
const RESERVED: usize = 1 << 10;

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
        Self { gamma, beta, eps: eps as f32, kind: kind as u32 }
    }
}

/// The kernels for rows of a width.
#[derive(Clone, Copy)]
enum NormForm {
    /// A lane holds this many runs of eight numbers in registers.
    Held(usize),
    /// A row passes through shared memory.
    Shared,
}

impl NormForm {
    /// Warps of a forward block, and its bytes of shared memory.
    fn forward(self, d: usize) -> (usize, usize) {
        match self {
            Self::Held(_) => (4, 0),
            Self::Shared => {
                let warps = warps(d);
                (warps, 4 * warps * d)
            }
        }
    }

    /// Warps of a backward block, its bytes of shared memory, and how many blocks run at once on a multiprocessor.
    fn backward(self, d: usize) -> (usize, usize, usize) {
        match self {
            // As norm.cu tells the compiler.
            Self::Held(runs) => {
                let blocks = match runs {
                    1 => 6,
                    2 => 4,
                    _ => 2,
                };
                (4, 4 * 4 * 3 * d, blocks)
            }
            Self::Shared => {
                let warps = warps(4 * d);
                let bytes = 4 * warps * 4 * d;
                (warps, bytes, (OF_MULTIPROCESSOR / (bytes + RESERVED)).clamp(1, 6))
            }
        }
    }
}

/// How many warps a block has if each needs `floats` floats of shared memory.
fn warps(floats: usize) -> usize {
    (SHARED / (4 * floats)).clamp(1, 4)
}

impl Kernels {
    fn norm_form(&self, d: usize) -> NormForm {
        match d.div_ceil(8 * WARP as usize) {
            _ if !self.wide => NormForm::Shared,
            runs @ 0..=2 => NormForm::Held(runs.max(1)),
            3..=4 => NormForm::Held(4),
            _ => NormForm::Shared,
        }
    }

    fn norm_name(&self, kernel: &str, form: NormForm) -> String {
        match form {
            NormForm::Held(runs) => format!("{}_held{runs}", self.typed(kernel)),
            NormForm::Shared => self.name(kernel),
        }
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
        let form = self.norm_form(d);
        let (warps, shared) = form.forward(d);
        let grid = [self.blocks(side.rows.div_ceil(warps), 16), 1, 1];
        let (dropout, rows, d) = (DropoutArgument::from(dropout), side.rows as u32, d as u32);
        let arguments = arguments![y, s, statistics, x, h, bias, norm, dropout, side.padded, rows, d];
        let (kernel, threads, shared) = (self.norm_name("add_norm", form), warps as u32 * WARP, shared as u32);
        let launch = Launch { kernel: &kernel, name: "add-norm", grid, threads, shared, work: Work::bytes(bytes) };
        // SAFETY: the types are those of `add_norm` in norm.cu.
        unsafe { self.queue.launch(&launch, arguments) }
    }

    /// Rows of partial sums that [`Self::add_norm_backward`] writes, each 3·D floats.
    pub fn norm_blocks(&self, rows: usize, d: usize) -> usize {
        let (warps, _, each) = self.norm_form(d).backward(d);
        // No more than run at once.
        self.blocks(rows.div_ceil(warps), each as u32) as usize
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
        let form = self.norm_form(d);
        let (warps, shared, _) = form.backward(d);
        let grid = [self.norm_blocks(side.rows, d) as u32, 1, 1];
        let (dropout, rows, d) = (DropoutArgument::from(dropout), side.rows as u32, d as u32);
        let arguments = arguments![ds, dh, partial, dy, addend, s, statistics, norm, dropout, side.padded, rows, d];
        let (kernel, threads, shared) = (self.norm_name("add_norm_backward", form), warps as u32 * WARP, shared as u32);
        let launch =
            Launch { kernel: &kernel, name: "add-norm, backward", grid, threads, shared, work: Work::bytes(bytes) };
        // SAFETY: the types are those of `add_norm_backward` in norm.cu.
        unsafe { self.queue.launch(&launch, arguments) }
    }
}
