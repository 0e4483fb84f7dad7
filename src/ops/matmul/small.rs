//! Products that read both matrices in place, without packing.

use super::Matrix;
use crate::ops::simd::vectorised;

/// The most columns of B that the kernel takes at once; B is not packed, so its panels have nothing to do with these.
const WIDEST: usize = 32;

/// C = A·B with one order of summation whatever the number of rows, on the calling thread.
///
/// `a`: [m, k] with any strides; `b`: [k, n], rows `ldb` apart; `c`: [m, n], rows `ldc` apart.
#[allow(clippy::too_many_arguments)]
pub fn fixed(m: usize, n: usize, k: usize, a: Matrix, b: &[f32], ldb: usize, c: &mut [f32], ldc: usize) {
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
unsafe fn fixed_kernel(size: [usize; 3], a: Left, b: Right, c: Output) {
    vectorised! {
        fn run(size: [usize; 3], a: Left, b: Right, c: Output) {
            let [m, n, k] = size;
            let mut j = 0;
            // SAFETY: in bounds by the contract of `fixed_kernel`.
            unsafe {
                while j + WIDEST <= n {
                    panel::<WIDEST>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1));
                    j += WIDEST;
                }
                while j + 16 <= n {
                    panel::<16>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1));
                    j += 16;
                }
                while j + 4 <= n {
                    panel::<4>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1));
                    j += 4;
                }
                while j < n {
                    panel::<1>(m, k, a, (b.0.add(j), b.1), (c.0.add(j), c.1));
                    j += 1;
                }
            }
        }
    }
    run(size, a, b, c);
}

/// All rows of one panel of `N` columns.
///
/// # Safety
/// See [`fixed_kernel`].
#[inline(always)]
unsafe fn panel<const N: usize>(m: usize, k: usize, a: Left, b: Right, c: Output) {
    let mut i = 0;
    // SAFETY: rows i.. are in bounds by the contract.
    unsafe {
        while i + 8 <= m {
            tile::<8, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1));
            i += 8;
        }
        while i + 4 <= m {
            tile::<4, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1));
            i += 4;
        }
        while i < m {
            tile::<1, N>(k, (a.0.add(i * a.1), a.1, a.2), b, (c.0.add(i * c.1), c.1));
            i += 1;
        }
    }
}

/// `M` rows by `N` columns, held in registers over the whole of K.
///
/// # Safety
/// See [`fixed_kernel`].
#[inline(always)]
unsafe fn tile<const M: usize, const N: usize>(k: usize, a: Left, b: Right, c: Output) {
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
            std::ptr::write_unaligned(c.0.add(i * c.1).cast::<[f32; N]>(), *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::matmul::Precision;
    use crate::ops::matmul::tests::{close, naive, numbers, transposed};

    #[test]
    fn products_equal_the_definition() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (8, 33, 64), (65, 129, 100), (300, 16, 48), (2, 520, 130)] {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            let want = naive(Matrix::new(&a, m, k), Matrix::new(&b, k, n));
            let mut c = vec![1f32; m * n];
            fixed(m, n, k, Matrix::new(&a, m, k), &b, n, &mut c, n);
            close(&c, &want, Precision::F32);
            let at = transposed(&a, m, k);
            fixed(m, n, k, Matrix::new(&at, k, m).t(), &b, n, &mut c, n);
            close(&c, &want, Precision::F32);
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let (m, n, k) = (150, 200, 96);
        let (a, b) = (numbers(m * k, 3), numbers(k * n, 4));
        let mut all = vec![0f32; m * n];
        fixed(m, n, k, Matrix::new(&a, m, k), &b, n, &mut all, n);
        for rows in [1, 2, 5, 9, 63] {
            let mut some = vec![0f32; rows * n];
            fixed(rows, n, k, Matrix::new(&a[10 * k..], rows, k), &b, n, &mut some, n);
            assert_eq!(some, all[10 * n..(10 + rows) * n]);
        }
    }
}
