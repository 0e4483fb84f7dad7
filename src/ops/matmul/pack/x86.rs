//! Packing with AVX-512's instructions for rounding to bfloat16.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_ps,
    _mm512_permutex2var_epi32, _mm512_permutexvar_epi16, _mm512_set_epi16, _mm512_set_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_storeu_epi32,
};
use std::mem::transmute;
use std::ops::Range;

use super::{MOST_COLUMNS, Matrix, PANEL, TILE_ROWS, TILE_WORDS, distribute, second};

/// Sixteen pairs of neighbours, from 32 floats.
///
/// # Safety
/// AVX-512 with bfloat16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn neighbours(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 512 bits.
    unsafe { transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// The mask of the first `count` of 16 lanes.
#[inline(always)]
fn lanes(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

/// The first `count` of 16 floats at `from`, the others 0.
///
/// # Safety
/// AVX-512; `count` floats can be read at `from`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(from: *const f32, count: usize) -> __m512 {
    // SAFETY: lanes that are masked are not touched.
    unsafe { if count >= 16 { _mm512_loadu_ps(from) } else { _mm512_maskz_loadu_ps(lanes(count), from) } }
}

/// See [`super::rows`].
///
/// # Safety
/// AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pair_rows(a: Matrix, rows: Range<usize>, positions: Range<usize>, to: &mut [u32], stride: usize) {
    for (row, to) in rows.zip(to.chunks_exact_mut(stride)) {
        let from = &a.row(row)[positions.clone()];
        for start in (0..from.len()).step_by(32) {
            let left = from.len() - start;
            let words = (left.div_ceil(2)).min(16);
            let to = &mut to[start / 2..][..words];
            // SAFETY: reads and writes are masked to the slices.
            unsafe {
                let low = load(from.as_ptr().add(start), left);
                let high = if left > 16 { load(from.as_ptr().add(start + 16), left - 16) } else { _mm512_setzero_ps() };
                _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), lanes(words), neighbours(low, high));
            }
        }
    }
}

/// Sixteen pairs of two rows' numbers, or of one row's and 0; those beyond the first `count` are 0.
///
/// # Safety
/// AVX-512 with bfloat16; `count` floats can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pairs(first: *const f32, second: Option<*const f32>, count: usize) -> __m512i {
    // 16-bit number 2j comes from the lower half, 2j + 1 from the upper half: the two rows become a row of pairs.
    #[rustfmt::skip]
    let interleave = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17,
        1, 16, 0,
    );
    // SAFETY: by the contract.
    unsafe {
        let low = load(first, count);
        let high = match second {
            Some(second) => load(second, count),
            None => _mm512_setzero_ps(),
        };
        _mm512_permutexvar_epi16(interleave, neighbours(low, high))
    }
}

/// [`super::pair_words`].
///
/// # Safety
/// AVX-512 with bfloat16; `to`, and `second` if given, are as long as `first`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn pair_words(first: &[f32], second: Option<&[f32]>, to: &mut [u32]) {
    for start in (0..first.len()).step_by(16) {
        let left = first.len() - start;
        // SAFETY: reads and writes are masked to the slices.
        unsafe {
            let second = second.map(|second| second.as_ptr().add(start));
            let pairs = pairs(first.as_ptr().add(start), second, left);
            let to = to.as_mut_ptr().add(start).cast();
            if left >= 16 {
                _mm512_storeu_epi32(to, pairs);
            } else {
                _mm512_mask_storeu_epi32(to, lanes(left), pairs);
            }
        }
    }
}

/// See [`super::tiles`].
///
/// # Safety
/// AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pair_tiles(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32]) {
    debug_assert!(to.len() >= columns.len().div_ceil(TILE_ROWS) * TILE_WORDS);
    let mut words = [0u32; MOST_COLUMNS];
    let words = &mut words[..columns.len()];
    for (step, position) in positions.clone().step_by(2).enumerate() {
        // SAFETY: all have the same number of columns.
        unsafe {
            pair_words(&a.row(position)[columns.clone()], second(&a, position, &positions, &columns), words);
        }
        distribute(words, to, step, |word| word);
    }
}

/// See [`super::columns`]. Blocks of 16 steps by 16 columns are transposed in registers.
///
/// # Safety
/// AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pair_columns(
    a: Matrix,
    columns: Range<usize>,
    positions: Range<usize>,
    to: &mut [u32],
    stride: usize,
) {
    for (number, start) in positions.clone().step_by(32).enumerate() {
        let positions = start..positions.end.min(start + 32);
        for (block, to) in columns.clone().step_by(16).zip(to.chunks_mut(16 * stride)) {
            let some = block..columns.end.min(block + 16);
            let mut words = [_mm512_setzero_si512(); 16];
            for (position, words) in positions.clone().step_by(2).zip(&mut words) {
                let first = &a.row(position)[some.clone()];
                let second = second(&a, position, &positions, &some).map(<[f32]>::as_ptr);
                // SAFETY: both are that long.
                *words = unsafe { pairs(first.as_ptr(), second, some.len()) };
            }
            let words = transposed(words);
            for (to, words) in to.chunks_mut(stride).zip(words).take(some.len()) {
                let to = &mut to[16 * number..][..16];
                // SAFETY: sixteen words.
                unsafe { _mm512_storeu_epi32(to.as_mut_ptr().cast(), words) };
            }
        }
    }
}

/// The transpose of 16 rows of 16 words.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // Each time, rows i and i + 8 are interleaved into rows 2i and 2i + 1. An index and 16 means the second row.
    let low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    let high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    let mut rows = rows;
    macro_rules! interleave {
        ($($i:literal)+) => {
            rows = [$(
                _mm512_permutex2var_epi32(rows[$i], low, rows[$i + 8]),
                _mm512_permutex2var_epi32(rows[$i], high, rows[$i + 8]),
            )+]
        };
    }
    interleave!(0 1 2 3 4 5 6 7);
    interleave!(0 1 2 3 4 5 6 7);
    interleave!(0 1 2 3 4 5 6 7);
    interleave!(0 1 2 3 4 5 6 7);
    rows
}

/// See [`super::panel`].
///
/// # Safety
/// AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn pair_panel(b: Matrix, columns: Range<usize>, to: &mut [u32]) {
    for (row, to) in (0..b.rows).step_by(2).zip(to.chunks_exact_mut(PANEL)) {
        let to = &mut to[..columns.len()];
        // SAFETY: all have the same number of columns.
        unsafe { pair_words(&b.row(row)[columns.clone()], second(&b, row, &(0..b.rows), &columns), to) };
    }
}
