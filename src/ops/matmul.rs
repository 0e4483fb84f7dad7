//! Matrix products on slices.
//!
//! [`gemm`] is the `gemm` crate's blocked product: fastest for many rows, but a row's rounding may depend on how many rows
//! are computed with it. [`fixed`] sums over K in one order for any number of rows, so that decoding one sentence gives
//! exactly what decoding a batch gives.

use gemm::Parallelism;
use rayon::prelude::*;

use super::memory::{Scratch, SharedRows};
use super::simd::vectorised;

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

    /// Rows `start..end`.
    fn slice_rows(self, start: usize, end: usize) -> Self {
        let data = if start < end { &self.data[start * self.row_stride..] } else { self.data };
        Self { data, rows: end - start, ..self }
    }
}

/// C = A·B, or C += A·B, on the calling thread. `c` is row-major [a.rows, b.columns].
pub fn gemm(a: Matrix, b: Matrix, c: &mut [f32], accumulate: bool) {
    assert_eq!(a.columns, b.rows, "inner dimensions differ");
    assert!(c.len() >= a.rows * b.columns, "output too small");
    let (m, n, k) = (a.rows, b.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            c[..m * n].fill(0.0);
        }
        return;
    }
    // SAFETY: `Matrix` checked that the strided accesses stay inside its slice, and `c` was checked above.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            accumulate,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// [`gemm`] with the rows of C spread over the threads, in pieces that do not depend on their number.
pub fn gemm_parallel(a: Matrix, b: Matrix, c: &mut [f32], accumulate: bool) {
    let (m, n) = (a.rows, b.columns);
    assert!(c.len() >= m * n, "output too small");
    let pieces = (m / 64).clamp(1, 8);
    let shared = SharedRows::new(&mut c[..m * n], n);
    (0..pieces).into_par_iter().for_each(|i| {
        let (start, end) = (i * m / pieces, (i + 1) * m / pieces);
        // SAFETY: the pieces are disjoint.
        let rows = unsafe { shared.rows(start..end) };
        gemm(a.slice_rows(start, end), b, rows, accumulate);
    });
}

/// The transpose of a row-major [rows, columns] matrix, as row-major [columns, rows].
pub fn transposed(x: &[f32], rows: usize, columns: usize) -> Scratch {
    const TILE: usize = 16;
    let mut out = Scratch::new(rows * columns);
    let shared = SharedRows::new(&mut out, rows);
    (0..columns.div_ceil(TILE * 4)).into_par_iter().for_each(|block| {
        let start = block * TILE * 4;
        let end = (start + TILE * 4).min(columns);
        // SAFETY: every block writes its own rows of the result.
        let out = unsafe { shared.rows(start..end) };
        for r0 in (0..rows).step_by(TILE) {
            let r1 = (r0 + TILE).min(rows);
            for c in start..end {
                let target = &mut out[(c - start) * rows..][..rows];
                for r in r0..r1 {
                    target[r] = x[r * columns + c];
                }
            }
        }
    });
    out
}

/// Columns of B that one panel of the fixed-order kernel covers.
const PANEL: usize = 32;

/// C = A·B (or +=) with one order of summation whatever the number of rows, on the calling thread.
///
/// `a`: [m, k] with any strides; `b`: [k, n], rows `ldb` apart; `c`: [m, n], rows `ldc` apart.
#[allow(clippy::too_many_arguments)]
pub fn fixed(
    m: usize,
    n: usize,
    k: usize,
    a: Matrix,
    b: &[f32],
    ldb: usize,
    c: &mut [f32],
    ldc: usize,
    accumulate: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(a.rows >= m && a.columns >= k, "A is too small");
    assert!(k == 0 || b.len() >= (k - 1) * ldb + n, "B is too small");
    assert!(c.len() >= (m - 1) * ldc + n, "C is too small");
    // SAFETY: the three assertions (and `Matrix`'s own) bound every access of the kernel.
    unsafe {
        fixed_kernel(
            [m, n, k],
            (a.data.as_ptr(), a.row_stride, a.column_stride),
            (b.as_ptr(), ldb),
            (c.as_mut_ptr(), ldc),
            accumulate,
        )
    }
}

/// Pointer and two strides.
type Left = (*const f32, usize, usize);
/// Pointer and row stride.
type Right = (*const f32, usize);
/// Pointer and row stride.
type Output = (*mut f32, usize);

/// # Safety
/// All accesses of an [m, n, k] product must be in bounds.
unsafe fn fixed_kernel(size: [usize; 3], a: Left, b: Right, c: Output, accumulate: bool) {
    vectorised! {
        fn run(size: [usize; 3], a: Left, b: Right, c: Output, accumulate: bool) {
            let [m, n, k] = size;
            let mut j = 0;
            // SAFETY: in bounds by the contract of `fixed_kernel`.
            unsafe {
                while j + PANEL <= n {
                    panel::<PANEL>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1), accumulate);
                    j += PANEL;
                }
                while j + 16 <= n {
                    panel::<16>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1), accumulate);
                    j += 16;
                }
                while j + 4 <= n {
                    panel::<4>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1), accumulate);
                    j += 4;
                }
                while j < n {
                    panel::<1>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1), accumulate);
                    j += 1;
                }
            }
        }
    }
    run(size, a, b, c, accumulate);
}

/// All rows of one panel of `N` columns.
///
/// # Safety
/// See [`fixed_kernel`].
#[inline(always)]
unsafe fn panel<const N: usize>(m: usize, k: usize, a: Left, b: Right, c: Output, accumulate: bool) {
    let mut i = 0;
    // SAFETY: rows i.. are in bounds by the contract.
    unsafe {
        while i + 8 <= m {
            tile::<8, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1), accumulate);
            i += 8;
        }
        while i + 4 <= m {
            tile::<4, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1), accumulate);
            i += 4;
        }
        while i < m {
            tile::<1, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1), accumulate);
            i += 1;
        }
    }
}

/// `M` rows by `N` columns, held in registers over the whole of K.
///
/// # Safety
/// See [`fixed_kernel`].
#[inline(always)]
unsafe fn tile<const M: usize, const N: usize>(k: usize, a: Left, b: Right, c: Output, accumulate: bool) {
    let mut sums = [[0f32; N]; M];
    for p in 0..k {
        // SAFETY: p < k and the contract.
        let row: [f32; N] = unsafe { std::ptr::read_unaligned(b.0.add(p * b.1).cast()) };
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i < M rows and p < k.
            let x = unsafe { *a.0.add(i * a.1 + p * a.2) };
            for z in 0..N {
                sum[z] = x.mul_add(row[z], sum[z]);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        // SAFETY: row i of C has N columns here.
        unsafe {
            let target = c.0.add(i * c.1).cast::<[f32; N]>();
            let mut value = *sum;
            if accumulate {
                let old: [f32; N] = std::ptr::read_unaligned(target);
                for z in 0..N {
                    value[z] += old[z];
                }
            }
            std::ptr::write_unaligned(target, value);
        }
    }
}

/// [`fixed`] over contiguous row-major matrices with the work spread over the threads: panels of columns for few rows,
/// blocks of rows for many. Which thread computes what changes no result.
pub fn fixed_parallel(m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &mut [f32]) {
    const SMALL: usize = 1 << 16;
    if m * n * k <= SMALL {
        fixed(m, n, k, Matrix::new(a, m, k), b, n, c, n, false);
    } else if m >= 64 {
        let shared = SharedRows::new(&mut c[..m * n], n);
        (0..m.div_ceil(32)).into_par_iter().for_each(|i| {
            let (start, end) = (i * 32, (i * 32 + 32).min(m));
            // SAFETY: blocks of rows are disjoint.
            let rows = unsafe { shared.rows(start..end) };
            fixed(end - start, n, k, Matrix::new(&a[start * k..], end - start, k), b, n, rows, n, false);
        });
    } else {
        let pieces = (n / 128).clamp(1, 16);
        let out = SharedRows::new(&mut c[..m * n], n);
        (0..pieces).into_par_iter().for_each(|i| {
            let (start, end) = (i * n / pieces / PANEL * PANEL, (i + 1) * n / pieces / PANEL * PANEL);
            let end = if i + 1 == pieces { n } else { end };
            // SAFETY: every piece writes only its own columns, through the raw pointer taken here.
            unsafe {
                let pointer = out.pointer().add(start);
                fixed_kernel([m, end - start, k], (a.as_ptr(), k, 1), (b.as_ptr().add(start), n), (pointer, n), false);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) % 2001) as f32 / 1000.0 - 1.0)
            .collect()
    }

    fn naive(m: usize, n: usize, k: usize, a: Matrix, b: Matrix) -> Vec<f64> {
        let mut c = vec![0f64; m * n];
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k)
                    .map(|p| {
                        a.data[i * a.row_stride + p * a.column_stride] as f64
                            * b.data[p * b.row_stride + j * b.column_stride] as f64
                    })
                    .sum();
            }
        }
        c
    }

    fn close(got: &[f32], want: &[f64]) {
        for (g, w) in got.iter().zip(want) {
            assert!((*g as f64 - w).abs() < 1e-4, "{g} {w}");
        }
    }

    #[test]
    fn products_equal_the_definition() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (8, 33, 64), (65, 129, 100), (300, 16, 48), (2, 520, 130)] {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let want = naive(m, n, k, Matrix::new(&a, m, k), Matrix::new(&b, k, n));
            let mut c = vec![1f32; m * n];
            gemm_parallel(Matrix::new(&a, m, k), Matrix::new(&b, k, n), &mut c, false);
            close(&c, &want);
            fixed_parallel(m, n, k, &a, &b, &mut c);
            close(&c, &want);
            let at = transposed(&a, m, k);
            gemm_parallel(Matrix::new(&at, k, m).t(), Matrix::new(&b, k, n), &mut c, false);
            close(&c, &want);
            fixed(m, n, k, Matrix::new(&at, k, m).t(), &b, n, &mut c, n, true);
            close(&c, &want.iter().map(|v| v * 2.0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let (m, n, k) = (150, 200, 96);
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let mut all = vec![0f32; m * n];
        fixed_parallel(m, n, k, &a, &b, &mut all);
        for rows in [1, 2, 5, 9, 63] {
            let mut some = vec![0f32; rows * n];
            fixed_parallel(rows, n, k, &a[10 * k..], &b, &mut some);
            assert_eq!(some, all[10 * n..(10 + rows) * n]);
        }
    }
}
