//! Micro-kernels: a tile of C, up to [`TILE_ROWS`] rows by [`PANEL`] columns, held in registers over a run of steps.
//!
//! A *step* is one position of the inner dimension with float32, two with bfloat16, four with 8-bit integers: always 32
//! bits of A and of B, so that everything but packing and the multiplication itself is the same for all types.
//!
//! Every element of C is one chain of fused multiply-adds over the inner dimension, from its beginning to its end,
//! whichever tile it falls into: a row's result depends neither on the rows beside it, nor on the number of threads,
//! nor (in float32) on the instruction set. [`super::amx`] has other kernels for bfloat16 and 8-bit integers; it cuts
//! chains of bfloat16 into blocks, which are the same for every row, too.

/// Rows of a tile of C: with two vectors of 16 columns a row, 24 of AVX-512's 32 registers hold sums.
pub(super) const TILE_ROWS: usize = 12;
/// Columns of a tile of C, and of a packed panel of B.
pub(super) const PANEL: usize = 32;
/// Steps that a tile of A holds: 12 KiB for the tile, and 32 KiB for the piece of a panel that it is multiplied by.
pub(super) const DEPTH: usize = 256;
/// Distance of a tile's rows, where A is packed by rows: more than [`DEPTH`], so that rows do not share cache sets.
pub(super) const ROW_STRIDE: usize = DEPTH + 16;
/// Distance of packed tiles of A, in either order: not a multiple of the page size, so that tiles written side by side
/// do not share cache sets.
pub(super) const TILE_WORDS: usize = TILE_ROWS * ROW_STRIDE;

/// How a tile of A is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Row after row, [`ROW_STRIDE`] apart; for AMX, [`super::arithmetic::Shape::stride`].
    Rows,
    /// Step after step, [`TILE_ROWS`] apart. AMX has only the other order.
    Steps,
}

/// One tile of C, and its operands.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Steps of A and of B.
    pub steps: usize,
    /// A, packed.
    pub a: *const u32,
    /// B, steps [`PANEL`] apart.
    pub b: *const u32,
    /// C, rows [`Tile::ldc`] apart.
    pub c: *mut f32,
    /// Distance of C's rows.
    pub ldc: usize,
    /// C += A·B instead of C = A·B.
    pub accumulate: bool,
}

impl Tile {
    /// The part of the tile from `row` and `column` on.
    ///
    /// # Safety
    /// Both lie in the tile.
    #[inline(always)]
    unsafe fn part(self, by_step: bool, row: usize, column: usize) -> Self {
        // SAFETY: inside the tile.
        unsafe {
            Self {
                a: self.a.add(offset(by_step, row, 0)),
                b: self.b.add(column),
                c: self.c.add(row * self.ldc + column),
                ..self
            }
        }
    }
}

/// Computes a number of rows of a tile.
///
/// # Safety
/// Rows are 1 to [`TILE_ROWS`]; A and B hold the tile's steps, C that many rows of [`PANEL`] columns; the machine has
/// the instructions that it is compiled for.
pub(super) type Function = unsafe fn(usize, Tile);

/// Evaluates an expression with the number of rows, known only at run time, as the constant `ROWS`.
macro_rules! for_rows {
    ($rows:expr, [$($count:literal)+], $call:expr) => {
        match $rows {
            $($count => { const ROWS: usize = $count; $call })+
            _ => unreachable!("a tile has 1 to {TILE_ROWS} rows"),
        }
    };
}

/// Where the element of A at a row and a step lies in its tile.
#[inline(always)]
const fn offset(by_step: bool, row: usize, step: usize) -> usize {
    if by_step { step * TILE_ROWS + row } else { row * ROW_STRIDE + step }
}

/// In plain Rust, for any machine: pieces of at most 4 rows by 16 columns, 16 of NEON's 32 registers.
pub(super) mod plain {
    use super::{PANEL, TILE_ROWS, Tile, offset};

    /// # Safety
    /// As for [`super::Function`].
    pub(in super::super) unsafe fn kernel<const PAIRS: bool, const BY_STEP: bool>(rows: usize, tile: Tile) {
        for first in (0..rows).step_by(4) {
            for column in (0..PANEL).step_by(16) {
                // SAFETY: a part of the tile.
                unsafe {
                    let part = tile.part(BY_STEP, first, column);
                    for_rows!((rows - first).min(4), [1 2 3 4], piece::<ROWS, PAIRS, BY_STEP>(part));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn piece<const ROWS: usize, const PAIRS: bool, const BY_STEP: bool>(tile: Tile) {
        let Tile { steps, a, b, c, ldc, accumulate } = tile;
        let mut sums = [[0f32; 16]; ROWS];
        // SAFETY: inside the tiles, by the contract.
        unsafe {
            if accumulate {
                for row in 0..ROWS {
                    sums[row] = c.add(row * ldc).cast::<[f32; 16]>().read_unaligned();
                }
            }
            for step in 0..steps {
                let b = b.add(step * PANEL).cast::<[u32; 16]>().read_unaligned();
                for row in 0..ROWS {
                    let x = *a.add(offset(BY_STEP, row, step));
                    for j in 0..16 {
                        let sum = sums[row][j];
                        sums[row][j] = if PAIRS {
                            dot(x, b[j], sum)
                        } else {
                            f32::from_bits(x).mul_add(f32::from_bits(b[j]), sum)
                        };
                    }
                }
            }
            for row in 0..ROWS {
                c.add(row * ldc).cast::<[f32; 16]>().write_unaligned(sums[row]);
            }
        }
    }

    /// # Safety
    /// As for [`super::Function`], with A packed by rows.
    pub(in super::super) unsafe fn int8(rows: usize, tile: Tile) {
        let Tile { steps, a, b, c, ldc, accumulate } = tile;
        for row in 0..rows {
            for column in (0..PANEL).step_by(16) {
                let mut sums = [0i32; 16];
                // SAFETY: inside the tiles, by the contract.
                unsafe {
                    let c = c.add(row * ldc + column).cast::<[i32; 16]>();
                    if accumulate {
                        sums = c.read_unaligned();
                    }
                    for step in 0..steps {
                        let x = (*a.add(offset(false, row, step))).to_le_bytes();
                        let b = b.add(step * PANEL + column).cast::<[[i8; 4]; 16]>().read_unaligned();
                        for j in 0..16 {
                            for i in 0..4 {
                                sums[j] += i32::from(x[i] as i8) * i32::from(b[j][i]);
                            }
                        }
                    }
                    c.write_unaligned(sums);
                }
            }
        }
    }

    /// sum + a·b of two pairs of bfloat16, each with its first number in the lower half.
    #[inline(always)]
    fn dot(a: u32, b: u32, sum: f32) -> f32 {
        const UPPER: u32 = 0xffff_0000;
        let sum = f32::from_bits(a & UPPER).mul_add(f32::from_bits(b & UPPER), sum);
        f32::from_bits(a << 16).mul_add(f32::from_bits(b << 16), sum)
    }
}

// With intrinsics: plain loops over arrays reach the same speed for some numbers of rows and a quarter of it for
// others.
#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::{
        __m256, __m256i, __m512, __m512bh, _mm256_add_epi32, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
        _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256,
        _mm256_slli_epi16, _mm256_srai_epi16, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_castps_si512,
        _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };
    use std::mem::transmute;

    use super::{PANEL, TILE_ROWS, Tile, offset};

    /// Defines a kernel for vectors of `$lanes` floats that holds pieces of at most `$most` rows by two vectors in
    /// registers.
    macro_rules! kernel {
        (
            $(#[$meta:meta])* $name:ident, $piece:ident, $features:literal, $vector:ty, $lanes:literal,
            [$most:literal: $($count:literal)+],
            $zero:ident, $load:ident, $store:ident, $splat:ident, |$x:ident, $b:ident, $sum:ident| $multiply_add:expr
        ) => {
            $(#[$meta])*
            ///
            /// # Safety
            /// As for [`super::Function`].
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn $name<const BY_STEP: bool>(rows: usize, tile: Tile) {
                for first in (0..rows).step_by($most) {
                    for column in (0..PANEL).step_by(2 * $lanes) {
                        // SAFETY: a part of the tile.
                        unsafe {
                            let part = tile.part(BY_STEP, first, column);
                            for_rows!((rows - first).min($most), [$($count)+], $piece::<ROWS, BY_STEP>(part));
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn $piece<const ROWS: usize, const BY_STEP: bool>(tile: Tile) {
                let Tile { steps, a, b, c, ldc, accumulate } = tile;
                let mut sums: [[$vector; 2]; ROWS] = [[$zero(); 2]; ROWS];
                // SAFETY: all of it inside the tiles, by the contract.
                unsafe {
                    if accumulate {
                        for row in 0..ROWS {
                            for half in 0..2 {
                                sums[row][half] = $load(c.add(row * ldc + half * $lanes));
                            }
                        }
                    }
                    for step in 0..steps {
                        let b = b.add(step * PANEL).cast::<f32>();
                        let halves = [$load(b), $load(b.add($lanes))];
                        for row in 0..ROWS {
                            let $x = $splat(*a.add(offset(BY_STEP, row, step)).cast::<f32>());
                            for half in 0..2 {
                                let ($b, $sum) = (halves[half], sums[row][half]);
                                sums[row][half] = $multiply_add;
                            }
                        }
                    }
                    for row in 0..ROWS {
                        for half in 0..2 {
                            $store(c.add(row * ldc + half * $lanes), sums[row][half]);
                        }
                    }
                }
            }
        };
    }

    kernel!(
        /// float32 with AVX-512: 24 of 32 registers hold sums.
        avx512, avx512_piece, "avx512f,avx2,fma", __m512, 16, [12: 1 2 3 4 5 6 7 8 9 10 11 12],
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
        |x, b, sum| _mm512_fmadd_ps(x, b, sum)
    );
    kernel!(
        /// bfloat16 with AVX-512's dot product of pairs.
        avx512_bf16, avx512_bf16_piece, "avx512f,avx512bf16,avx2,fma", __m512, 16, [12: 1 2 3 4 5 6 7 8 9 10 11 12],
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
        |x, b, sum| _mm512_dpbf16_ps(sum, transmute::<__m512, __m512bh>(x), transmute::<__m512, __m512bh>(b))
    );
    kernel!(
        /// 8-bit integers with AVX-512's dot product of fours; those of A are unsigned.
        avx512_vnni, avx512_vnni_piece, "avx512f,avx512vnni,avx2,fma", __m512, 16, [12: 1 2 3 4 5 6 7 8 9 10 11 12],
        _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps,
        |x, b, sum| _mm512_castsi512_ps(_mm512_dpbusd_epi32(
            _mm512_castps_si512(sum), _mm512_castps_si512(x), _mm512_castps_si512(b)
        ))
    );
    kernel!(
        /// float32 with AVX2: 12 of 16 registers hold sums.
        avx2, avx2_piece, "avx2,fma", __m256, 8, [6: 1 2 3 4 5 6],
        _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps,
        |x, b, sum| _mm256_fmadd_ps(x, b, sum)
    );

    /// 8-bit integers with AVX2: bytes 0 and 2 of every four as 16-bit numbers, then 1 and 3, so that nothing
    /// saturates.
    ///
    /// # Safety
    /// As for [`super::Function`], with A packed by rows.
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) unsafe fn avx2_int8(rows: usize, tile: Tile) {
        for first in (0..rows).step_by(4) {
            for column in (0..PANEL).step_by(16) {
                // SAFETY: a part of the tile.
                unsafe {
                    let part = tile.part(false, first, column);
                    for_rows!((rows - first).min(4), [1 2 3 4], avx2_int8_piece::<ROWS>(part));
                }
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2_int8_piece<const ROWS: usize>(tile: Tile) {
        let Tile { steps, a, b, c, ldc, accumulate } = tile;
        let even = |x: __m256i| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let odd = |x: __m256i| _mm256_srai_epi16::<8>(x);
        let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
        // SAFETY: all of it inside the tiles, by the contract.
        unsafe {
            if accumulate {
                for row in 0..ROWS {
                    for half in 0..2 {
                        sums[row][half] = _mm256_loadu_si256(c.add(row * ldc + half * 8).cast());
                    }
                }
            }
            for step in 0..steps {
                let b = b.add(step * PANEL);
                let halves = [_mm256_loadu_si256(b.cast()), _mm256_loadu_si256(b.add(8).cast())];
                let (evens, odds) = (halves.map(even), halves.map(odd));
                for row in 0..ROWS {
                    let x = _mm256_set1_epi32(*a.add(offset(false, row, step)) as i32);
                    let (x_even, x_odd) = (even(x), odd(x));
                    for half in 0..2 {
                        let products = _mm256_add_epi32(
                            _mm256_madd_epi16(x_even, evens[half]),
                            _mm256_madd_epi16(x_odd, odds[half]),
                        );
                        sums[row][half] = _mm256_add_epi32(sums[row][half], products);
                    }
                }
            }
            for row in 0..ROWS {
                for half in 0..2 {
                    _mm256_storeu_si256(c.add(row * ldc + half * 8).cast(), sums[row][half]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::arithmetic::{Arithmetic, Integers, Kernel, choose};
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::ops::simd::{Level, level};

    fn words(n: usize, seed: u32, word: impl Fn(u32) -> u32) -> Vec<u32> {
        (0..n as u32).map(|i| word(i.wrapping_mul(2_654_435_761).wrapping_add(seed))).collect()
    }

    /// C after two pieces of the inner dimension, the second added to the first.
    fn run(kernel: Function, rows: usize, steps: usize, a: &[u32], b: &[u32]) -> Vec<f32> {
        let mut c = vec![f32::NAN; rows * PANEL];
        for accumulate in [false, true] {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            let tile = Tile { steps, a, b, c: c.as_mut_ptr(), ldc: PANEL, accumulate };
            // SAFETY: whole tiles; only kernels that this machine supports are called.
            unsafe { kernel(rows, tile) };
        }
        c
    }

    fn function(kernel: Kernel) -> Function {
        let Kernel::Vectors(function) = kernel else { panic!("{kernel:?} is not a function") };
        function
    }

    /// All kernels with vectors that this machine can run give the same bits, for every number of rows.
    #[test]
    fn kernels_agree() {
        let number = |x: u32| ((x >> 8) as f32 / 1e7 - 0.8).to_bits();
        for rows in 1..=TILE_ROWS {
            for steps in [1, 2, 33, DEPTH] {
                let (a, b) = (words(TILE_WORDS, 1, number), words(steps * PANEL, 2, number));
                let want = run(plain::kernel::<false, false>, rows, steps, &a, &b);
                let by_step = run(plain::kernel::<false, true>, rows, steps, &a, &b);
                assert_eq!(run(function(choose(Arithmetic::F32, Order::Rows)), rows, steps, &a, &b), want);
                assert_eq!(run(function(choose(Arithmetic::F32, Order::Steps)), rows, steps, &a, &b), by_step);
                let (ints, weights) = (words(TILE_WORDS, 3, |x| x >> 3), words(steps * PANEL, 4, |x| x.rotate_left(9)));
                // Bytes of A in two forms: signed, and 128 more.
                let flipped: Vec<u32> = ints.iter().map(|word| word ^ 0x8080_8080).collect();
                let want_int8 = run(plain::int8, rows, steps, &ints, &weights);
                let Integers { kernel, offset } = Integers::vectors();
                let mut got = run(function(kernel), rows, steps, if offset == 0 { &ints } else { &flipped }, &weights);
                for (i, value) in got.iter_mut().enumerate() {
                    let column = weights[i % PANEL..].iter().step_by(PANEL).take(steps);
                    let sum: i32 = column.flat_map(|word| word.to_le_bytes()).map(|byte| i32::from(byte as i8)).sum();
                    *value = f32::from_bits((value.to_bits() as i32 - 2 * offset * sum) as u32);
                }
                let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(&got), bits(&want_int8), "{rows} rows, {steps} steps");
                #[cfg(target_arch = "x86_64")]
                if level() != Level::Baseline {
                    assert_eq!(run(x86::avx2::<false>, rows, steps, &a, &b), want);
                    assert_eq!(run(x86::avx2::<true>, rows, steps, &a, &b), by_step);
                    assert_eq!(bits(&run(x86::avx2_int8, rows, steps, &ints, &weights)), bits(&want_int8));
                }
            }
        }
    }
}
