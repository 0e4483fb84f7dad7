//! Matrix products on slices.
//!
//! [`Packed::product`] multiplies rows by a matrix packed once for many rows: the weights of a training step.
//! [`transposed_product`] sums over rows: the gradients of weights. [`small`] multiplies where packing would cost more
//! than it saves: heads of attention. [`int8`] multiplies by a matrix of 8-bit integers, for inference.
//!
//! All of them sum every element in the same order, from the first to the last position of the inner dimension. So a
//! row's result depends neither on the number of rows nor on that of threads, and decoding one sentence gives exactly
//! the same as decoding a batch.
//!
//! ```text
//! for each group of the inner dimension         A is packed into tiles, which then lie in the second-level cache
//!     for each panel of 32 columns of B
//!         for each piece of the inner dimension the panel's piece lies in the first-level cache
//!             for each tile of 12 rows of A     one micro-kernel
//! ```
//! (Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication", with B packed beforehand.) With
//! AMX a tile has 32 rows.

mod amx;
mod arithmetic;
pub mod int8;
mod kernel;
mod pack;
mod panels;
pub mod small;

use std::ops::Range;

use rayon::prelude::*;

use super::memory::{Scratch, SharedRows};
use super::profile::{self, Work};
use super::simd;
use crate::choice::choice;
use arithmetic::{Arithmetic, Shape};
use kernel::{DEPTH, Order, PANEL, ROW_STRIDE, Tile};
use panels::{Panels, Tiles};
pub use small::fixed;

choice! {
    /// The type that operands of products are rounded to in training and on a device (`runtime.precision`). Sums in
    /// products are always float32, and so are parameters, gradients, normalisation, softmax and loss. When the
    /// processor translates, [`crate::infer::ComputeType`] says what they are rounded to.
    pub enum Precision {
        /// float32.
        F32 = "f32",
        /// bfloat16, where the device has it in hardware.
        Bf16 = "bf16",
    }
}

impl Precision {
    /// Whether this machine has instructions for it; without them it is slower than float32.
    pub fn is_native(self) -> bool {
        match self {
            Self::F32 => true,
            Self::Bf16 => simd::instructions().bf16,
        }
    }

    /// Whether AMX computes its products.
    pub fn is_by_amx(self) -> bool {
        matches!(Arithmetic::of(self), Arithmetic::Amx(_))
    }

    /// Positions of the inner dimension in one 32-bit step.
    fn positions(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::Bf16 => 2,
        }
    }
}

/// A read-only matrix inside a slice: element (i, j) is at `i * row_stride + j * column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A contiguous row-major matrix [rows, columns].
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns, 1)
    }

    /// A matrix with any strides.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> Self {
        if rows > 0 && columns > 0 {
            let last = (rows - 1) * row_stride + (columns - 1) * column_stride;
            assert!(last < data.len(), "matrix {rows}x{columns} reaches beyond its {} elements", data.len());
        }
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// The same data, transposed.
    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// One row of a matrix whose rows are contiguous.
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        debug_assert_eq!(self.column_stride, 1);
        &self.data[i * self.row_stride..][..self.columns]
    }
}

/// The right-hand matrix of a product, [k, n], in panels of [`PANEL`] columns.
#[derive(Debug)]
pub struct Packed {
    panels: Panels,
    k: usize,
    n: usize,
    arithmetic: Arithmetic,
}

impl Packed {
    /// A row-major matrix [k, n].
    pub fn new(b: &[f32], k: usize, n: usize, precision: Precision) -> Self {
        Self::by(Matrix::new(b, k, n), Arithmetic::of(precision))
    }

    fn by(b: Matrix, arithmetic: Arithmetic) -> Self {
        let pack = |columns, to: &mut [u32]| pack::panel(b, columns, to, arithmetic.precision());
        Self::pack(b.rows, b.columns, arithmetic, |_, columns, to| pack(columns, to))
    }

    /// The transpose of a row-major matrix [n, k]: a weight, for x·Wᵀ.
    pub fn transposed(b: &[f32], n: usize, k: usize, precision: Precision) -> Self {
        Self::transposed_by(Matrix::new(b, n, k), Arithmetic::of(precision))
    }

    fn transposed_by(b: Matrix, arithmetic: Arithmetic) -> Self {
        Self::pack(b.columns, b.rows, arithmetic, |block, columns, to| {
            pack::transposed_panel(b, columns, block, to, arithmetic.precision());
        })
    }

    /// `panel` packs some columns into a panel. It also gets scratch for [`PANEL`] packed rows, one for each thread.
    fn pack(
        k: usize,
        n: usize,
        arithmetic: Arithmetic,
        panel: impl Fn(&mut [u32], Range<usize>, &mut [u32]) + Sync,
    ) -> Self {
        let _timer = profile::kernel("pack weights and gradients", "", Work::floats(2 * k * n));
        let filled = k.div_ceil(arithmetic.precision().positions());
        let steps = filled.next_multiple_of(arithmetic.shape().block);
        let (mut panels, words) = (Scratch::new(n.div_ceil(PANEL) * steps * PANEL), steps * PANEL);
        if words > 0 {
            let block = || Scratch::new(PANEL * ROW_STRIDE);
            panels.words_mut().par_chunks_mut(words).enumerate().for_each_init(block, |block, (i, to)| {
                let columns = i * PANEL..n.min((i + 1) * PANEL);
                if columns.len() < PANEL {
                    to.fill(0);
                } else {
                    to[filled * PANEL..].fill(0);
                }
                panel(block.words_mut(), columns, to);
            });
        }
        Self { panels: Panels { words: panels, steps, n }, k, n, arithmetic }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.n
    }

    /// Some of the columns.
    pub fn subset(&self, columns: &[u32]) -> Self {
        Self { panels: self.panels.subset(columns), n: columns.len(), ..*self }
    }

    /// Column `j`, with the rounding of packing. out: [k].
    pub fn column(&self, j: usize, out: &mut [f32]) {
        match self.arithmetic.precision() {
            Precision::F32 => out.iter_mut().zip(self.panels.column(j)).for_each(|(x, word)| *x = f32::from_bits(word)),
            Precision::Bf16 => {
                for (two, word) in out.chunks_mut(2).zip(self.panels.column(j)) {
                    let both = [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)];
                    two.copy_from_slice(&both[..two.len()]);
                }
            }
        }
    }

    /// C = A·B, or C += A·B, on the calling thread. A: [m, k] row-major, C: [m, n] row-major.
    pub fn product(&self, a: &[f32], c: &mut [f32], accumulate: bool) {
        if c.is_empty() {
            return;
        }
        let m = c.len() / self.n.max(1);
        assert_eq!(a.len(), m * self.k, "A is not [{m}, {}]", self.k);
        self.multiply(Matrix::new(a, m, self.k), Order::Rows, 0..m, c, accumulate);
    }

    /// C = A·B on all threads, each of which computes some of the columns: for too few rows to divide among the
    /// threads. A: [m, k] row-major, C: [m, n] row-major.
    pub fn product_by_columns(&self, a: &[f32], c: &mut [f32]) {
        if c.is_empty() {
            return;
        }
        let m = c.len() / self.n.max(1);
        assert_eq!(a.len(), m * self.k, "A is not [{m}, {}]", self.k);
        assert_eq!(c.len(), m * self.n, "C is not [{m}, {}]", self.n);
        if self.k == 0 {
            return c.fill(0.0);
        }
        let tiles = Tiles::pack(Matrix::new(a, m, self.k), Order::Rows, 0..m, 0..self.panels.steps, self.arithmetic);
        let shared = SharedRows::new(c, self.n);
        self.panels.tasks().for_each(|columns| {
            let work = Work::product(m, columns.len(), self.k, self.arithmetic.precision());
            let _timer = profile::kernel("product", "rows", work);
            // SAFETY: C holds m rows of n columns, and tasks have disjoint columns.
            unsafe { self.panels.multiply(&tiles, columns, shared.pointer(), false) };
        });
    }

    /// Computes `rows` of C = A·B (`Order::Rows`, A: [m, k]) or of C = Aᵀ·B (`Order::Steps`, A: [k, m]).
    fn multiply(&self, a: Matrix, order: Order, rows: Range<usize>, c: &mut [f32], accumulate: bool) {
        /// Steps whose tiles of A are packed at once.
        const GROUP: usize = 8 * DEPTH;
        let (m, n) = (rows.len(), self.n);
        assert_eq!(c.len(), m * n, "C is not [{m}, {n}]");
        if m == 0 || n == 0 {
            return;
        }
        if self.k == 0 {
            if !accumulate {
                c.fill(0.0);
            }
            return;
        }
        let part = if order == Order::Rows { "rows" } else { "weight gradients" };
        let _timer = profile::kernel("product", part, Work::product(m, n, self.k, self.arithmetic.precision()));
        let steps = self.panels.steps;
        for start in (0..steps).step_by(GROUP) {
            let group = start..steps.min(start + GROUP);
            let tiles = Tiles::pack(a, order, rows.clone(), group, self.arithmetic);
            // SAFETY: C holds m rows of n columns.
            unsafe { self.panels.multiply(&tiles, 0..n, c.as_mut_ptr(), accumulate || start > 0) };
        }
    }
}

/// C = Aᵀ·B, or C += Aᵀ·B, over the threads: the gradient of a weight. A: [rows, m], B: [rows, n], C: [m, n], all
/// row-major.
pub fn transposed_product(a: &[f32], b: &[f32], rows: usize, c: &mut [f32], accumulate: bool, precision: Precision) {
    transposed_product_by(a, b, rows, c, accumulate, Arithmetic::of(precision));
}

fn transposed_product_by(a: &[f32], b: &[f32], rows: usize, c: &mut [f32], accumulate: bool, arithmetic: Arithmetic) {
    if rows == 0 || c.is_empty() {
        if !accumulate {
            c.fill(0.0);
        }
        return;
    }
    let (m, n) = (a.len() / rows, b.len() / rows);
    assert!(a.len() == rows * m && b.len() == rows * n && c.len() == m * n, "sizes of a product differ");
    let packed = Packed::by(Matrix::new(b, rows, n), arithmetic);
    let a = Matrix::new(a, rows, m);
    // A task has few enough rows for its tiles of A to stay in a thread's cache, but no fewer, since each task reads
    // all of B; and all threads get the same number of tasks. How the rows are divided does not change any result.
    let (most, multiple) = match arithmetic {
        Arithmetic::F32 | Arithmetic::Bf16 => (pack::MOST_COLUMNS, 4),
        Arithmetic::Amx(_) => (amx::MOST_COLUMNS, amx::ROWS),
    };
    let tasks = m.div_ceil(most).next_multiple_of(rayon::current_num_threads());
    let task = m.div_ceil(tasks).next_multiple_of(multiple).min(most);
    let shared = SharedRows::new(c, n);
    (0..m.div_ceil(task)).into_par_iter().for_each(|i| {
        let range = i * task..m.min((i + 1) * task);
        // SAFETY: tasks have disjoint rows.
        let c = unsafe { shared.rows(range.clone()) };
        packed.multiply(a, Order::Steps, range, c, accumulate);
    });
}

/// Floating-point operations per second of each thread while all of them run, with operands in the first-level cache:
/// the peak that products are measured against.
pub fn peak(precision: Precision) -> f64 {
    const CALLS: usize = 4_000;
    let kernel = arithmetic::choose(Arithmetic::of(precision), Order::Rows);
    let shape @ Shape { rows, depth, .. } = kernel.shape();
    let run = || {
        let (a, b) = (vec![0u32; shape.tile_words()], vec![0u32; depth * PANEL]);
        let mut c = vec![0f32; rows * PANEL];
        let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
        let tile = Tile { steps: depth, a, b, c, ldc: PANEL, accumulate: false };
        let kernel = kernel.begin(rows);
        for _ in 0..CALLS {
            // SAFETY: whole tiles.
            unsafe { kernel.run(rows, tile) };
        }
    };
    let flops = 2 * CALLS * rows * PANEL * depth * precision.positions();
    let turn = || {
        let started = std::time::Instant::now();
        rayon::broadcast(|_| run());
        flops as f64 / started.elapsed().as_secs_f64()
    };
    // The best of a few turns, since other programs may be using the machine.
    (0..8).map(|_| turn()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) % 2001) as f32 / 1000.0 - 1.0)
            .collect()
    }

    /// A·B in f64, and the sum of the products' absolute values, which bounds the rounding error.
    pub(super) fn naive(a: Matrix, b: Matrix) -> Vec<(f64, f64)> {
        let mut c = Vec::new();
        for i in 0..a.rows {
            for j in 0..b.columns {
                let products = (0..a.columns).map(|p| {
                    a.data[i * a.row_stride + p * a.column_stride] as f64
                        * b.data[p * b.row_stride + j * b.column_stride] as f64
                });
                c.push(products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs())));
            }
        }
        c
    }

    /// Rounding of both operands: 2⁻⁸ each in bfloat16; a chain of sums in float32.
    pub(super) fn close(got: &[f32], want: &[(f64, f64)], precision: Precision) {
        let bound = if precision == Precision::Bf16 { 2f64.powi(-7) } else { 1e-5 };
        for (i, (g, (w, size))) in got.iter().zip(want).enumerate() {
            assert!((*g as f64 - w).abs() <= bound * size + 1e-7, "element {i}: {g}, not {w} ({precision:?})");
        }
    }

    /// The transpose of a row-major [rows, columns] matrix.
    pub(super) fn transposed(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..columns * rows).map(|i| x[i % rows * columns + i / rows]).collect()
    }

    /// Awkward sizes: no rows or columns, single ones, odd inner dimensions, tails of tiles, panels, pieces and groups.
    pub(super) const SIZES: [(usize, usize, usize); 16] = [
        (0, 5, 7),
        (3, 0, 7),
        (1, 1, 1),
        (3, 5, 7),
        (12, 32, 64),
        (13, 33, 65),
        (64, 128, 128),
        (25, 40, 255),
        (5, 37, 256),
        (30, 64, 257),
        (2, 520, 130),
        (7, 3, 2050),
        (7, 3, 4100),
        (1, 31, 513),
        (48, 35, 31),
        (67, 17, 300),
    ];

    /// All that products can be computed with here; AMX by a plain function, and by the instructions.
    pub(super) fn arithmetics() -> Vec<Arithmetic> {
        let by = amx::ways().into_iter().map(Arithmetic::Amx);
        [Arithmetic::F32, Arithmetic::Bf16].into_iter().chain(by).collect()
    }

    #[test]
    fn packed_products_equal_the_definition() {
        for arithmetic in arithmetics() {
            let precision = arithmetic.precision();
            for (m, n, k) in SIZES {
                let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
                let want = naive(Matrix::new(&a, m, k), Matrix::new(&b, k, n));
                let packed = Packed::by(Matrix::new(&b, k, n), arithmetic);
                let mut c = vec![f32::NAN; m * n];
                packed.product(&a, &mut c, false);
                close(&c, &want, precision);
                let mut by_columns = vec![f32::NAN; m * n];
                packed.product_by_columns(&a, &mut by_columns);
                assert_eq!(by_columns, c, "{m}x{n}x{k}");
                let some: Vec<u32> = (0..n as u32).rev().step_by(3).collect();
                let mut of_subset = vec![f32::NAN; m * some.len()];
                packed.subset(&some).product(&a, &mut of_subset, false);
                let of_all: Vec<f32> =
                    c.chunks_exact(n.max(1)).flat_map(|c| some.iter().map(|&j| c[j as usize])).collect();
                assert_eq!(of_subset, of_all, "{m}x{n}x{k}");
                packed.product(&a, &mut c, true);
                let twice: Vec<(f64, f64)> = want.iter().map(|(w, size)| (2.0 * w, 2.0 * size)).collect();
                close(&c, &twice, precision);

                let b_t = transposed(&b, k, n);
                for (j, want) in b_t.chunks_exact(k).enumerate() {
                    let mut column = vec![f32::NAN; k];
                    packed.column(j, &mut column);
                    let most = if precision == Precision::Bf16 { 2f32.powi(-8) } else { 0.0 };
                    assert!(column.iter().zip(want).all(|(x, w)| (x - w).abs() <= most * w.abs()), "{m}x{n}x{k}: {j}");
                }
                let from_transpose = Packed::transposed_by(Matrix::new(&b_t, n, k), arithmetic);
                assert_eq!(from_transpose.panels.words.words(), packed.panels.words.words(), "{m}x{n}x{k}");
            }
        }
    }

    #[test]
    fn transposed_products_add_to_what_is_there() {
        for arithmetic in arithmetics() {
            for (m, n, rows) in SIZES {
                let (a, b) = (numbers(rows * m, 3), numbers(rows * n, 4));
                let want = naive(Matrix::new(&a, rows, m).t(), Matrix::new(&b, rows, n));
                let mut c = vec![1f32; m * n];
                transposed_product_by(&a, &b, rows, &mut c, true, arithmetic);
                let want: Vec<(f64, f64)> = want.iter().map(|(w, size)| (w + 1.0, size + 1.0)).collect();
                close(&c, &want, arithmetic.precision());
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_among_others() {
        for arithmetic in arithmetics() {
            let (m, n, k) = (37, 70, 600);
            let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
            let packed = Packed::by(Matrix::new(&b, k, n), arithmetic);
            let mut all = vec![0f32; m * n];
            packed.product(&a, &mut all, false);
            for i in [0, 11, 12, 15, 16, 31, 32, 36] {
                let mut one = vec![0f32; n];
                packed.product(&a[i * k..(i + 1) * k], &mut one, false);
                assert_eq!(one, all[i * n..(i + 1) * n]);
            }
            for rows in [5, 16, 20, 33] {
                let mut some = vec![0f32; rows * n];
                packed.product(&a[3 * k..(3 + rows) * k], &mut some, false);
                assert_eq!(some, all[3 * n..(3 + rows) * n]);
            }
            if arithmetic == Arithmetic::F32 {
                // The unpacked product sums in the same order.
                let mut fixed_order = vec![0f32; m * n];
                fixed(m, n, k, Matrix::new(&a, m, k), &b, n, &mut fixed_order, n);
                assert_eq!(fixed_order, all);
            }
        }
    }

    /// A NaN must reach the loss, or divergence would pass unseen.
    #[test]
    fn nan_stays() {
        for arithmetic in arithmetics() {
            let packed = Packed::by(Matrix::new(&[1.0, f32::NAN], 2, 1), arithmetic);
            let mut c = [0f32];
            packed.product(&[1.0, 1.0], &mut c, false);
            assert!(c[0].is_nan());
        }
    }
}
