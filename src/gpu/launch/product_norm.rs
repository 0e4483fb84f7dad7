//! Small products joined with the residual sums and norms after them: `kernels/product_norm.cu`.

use std::ffi::c_void;

use super::product::{SmallProduct, THREADS, shared, work};
use super::{DropoutArgument, Kernels, NormArgument, Side};
use crate::error::Result;
use crate::gpu::queue::{Address, Launch, Product};
use crate::ops::dropout::Dropout;
use crate::ops::profile::Work;

/// Rows and columns of the result that a block computes; the columns are all.
const BLOCK: [usize; 2] = [32, 128];

impl Kernels {
    /// Whether [`Self::product_add_norm`] or [`Self::product_norm_backward`] takes the product, whichever has its
    /// layout.
    pub fn joins_norm(&self, p: &Product) -> bool {
        self.has_kernel(p) && p.n <= BLOCK[1] && p.c.stride == p.n
    }

    /// [`Self::product`] and [`Self::add_norm`] in one, for a product that [this takes](Self::joins_norm): s, where the
    /// product's result would lie, is x + dropout(a·b + bias), and y = norm(s).
    pub fn product_add_norm(
        &self,
        p: &Product,
        [y, statistics]: [Address; 2],
        [x, bias]: [Address; 2],
        norm: NormArgument,
        dropout: Dropout,
        side: &Side,
    ) -> Result<()> {
        let mut work = work(p);
        work += Work::bytes(self.number.bytes(p.m * p.n) * (1 + usize::from(y != Address::NONE)));
        let (product, dropout) = (SmallProduct::new(p, bias, BLOCK, 0), DropoutArgument::from(dropout));
        let (kernel, name) = ("multiply_add_norm", "small product and add-norm");
        let (grid, shared) = ([product.end, 1, 1], shared(BLOCK, [true; 2]));
        let launch = Launch { kernel, name, grid, threads: THREADS, shared, work };
        // SAFETY: the types are those of `multiply_add_norm` in product_norm.cu.
        unsafe { self.queue.launch(&launch, arguments![product, y, statistics, x, norm, dropout, side.padded]) }
    }

    /// Rows of partial sums that [`Self::product_norm_backward`] writes, each 3·D floats.
    pub fn product_norm_blocks(&self, rows: usize) -> usize {
        rows.div_ceil(BLOCK[0])
    }

    /// [`Self::product`] and [`Self::add_norm_backward`] in one, for a product that [this takes](Self::joins_norm): dy
    /// is what its result would be, which is not written.
    pub fn product_norm_backward(
        &self,
        p: &Product,
        [ds, dh, partial]: [Address; 3],
        [addend, s, statistics]: [Address; 3],
        norm: NormArgument,
        dropout: Dropout,
        side: &Side,
    ) -> Result<()> {
        let mut work = work(p);
        let matrices = 1 + usize::from(addend != Address::NONE) + usize::from(dh != Address::NONE);
        work += Work::bytes(self.number.bytes(p.m * p.n) * (matrices + usize::from(p.accumulate)));
        let before = if p.accumulate { p.c.at } else { Address::NONE };
        let (mut of_sum, dropout) = (*p, DropoutArgument::from(dropout));
        of_sum.c.at = ds;
        let product = SmallProduct::new(&of_sum, before, BLOCK, 0);
        let (kernel, name) = ("multiply_norm_backward", "small product and add-norm, backward");
        let (grid, shared) = ([product.end, 1, 1], shared(BLOCK, [true, false]));
        let launch = Launch { kernel, name, grid, threads: THREADS, shared, work };
        let arguments = arguments![product, dh, partial, addend, s, statistics, norm, dropout, side.padded];
        // SAFETY: the types are those of `multiply_norm_backward` in product_norm.cu.
        unsafe { self.queue.launch(&launch, arguments) }
    }
}
