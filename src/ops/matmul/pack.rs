//! Packing: operands copied into the order that the micro-kernels read them in, and rounded to bfloat16 where asked
//! for.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use super::kernel::{PANEL, ROW_STRIDE, TILE_ROWS, TILE_WORDS};
use super::{Matrix, Precision};
use crate::ops::simd::vectorised;

/// The most columns that [`tiles`] can take at once.
pub(super) const MOST_COLUMNS: usize = 8 * TILE_ROWS;

/// Rows of A (row-major) at some positions of the inner dimension, packed row after row, `stride` words apart.
pub(super) fn rows(
    a: Matrix,
    rows: Range<usize>,
    positions: Range<usize>,
    to: &mut [u32],
    stride: usize,
    precision: Precision,
) {
    match precision {
        Precision::F32 => copy_rows(a, rows, positions, to, stride),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions.
        Precision::Bf16 if precision.is_native() => unsafe { x86::pair_rows(a, rows, positions, to, stride) },
        Precision::Bf16 => pair_rows(a, rows, positions, to, stride),
    }
}

/// Columns of a row-major matrix at some positions (rows) as pairs of bfloat16, packed column after column, `stride`
/// words apart: as [`rows`] of the transpose. The steps of the last 16 that lie beyond the positions become 0.
pub(super) fn columns(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if Precision::Bf16.is_native() {
        // SAFETY: the machine has the instructions.
        return unsafe { x86::pair_columns(a, columns, positions, to, stride) };
    }
    pair_columns(a, columns, positions, to, stride);
}

/// Columns of a row-major matrix at some positions (rows), packed step after step in tiles of [`TILE_ROWS`] columns.
pub(super) fn tiles(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32], precision: Precision) {
    match precision {
        Precision::F32 => copy_tiles(a, columns, positions, to),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions.
        Precision::Bf16 if precision.is_native() => unsafe { x86::pair_tiles(a, columns, positions, to) },
        Precision::Bf16 => pair_tiles(a, columns, positions, to),
    }
}

/// Columns of a row-major matrix at all its rows, packed step after step as one panel. The part of the panel beyond the
/// columns is not written.
pub(super) fn panel(b: Matrix, columns: Range<usize>, to: &mut [u32], precision: Precision) {
    match precision {
        Precision::F32 => copy_panel(b, columns, to),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions.
        Precision::Bf16 if precision.is_native() => unsafe { x86::pair_panel(b, columns, to) },
        Precision::Bf16 => pair_panel(b, columns, to),
    }
}

/// As [`panel`], of the transpose of a row-major matrix: its rows become columns. `block` holds [`PANEL`] packed rows.
pub(super) fn transposed_panel(
    b: Matrix,
    columns: Range<usize>,
    block: &mut [u32],
    to: &mut [u32],
    precision: Precision,
) {
    /// Words taken at a time, so that a block of rows stays in the first-level cache.
    const BLOCK: usize = 64;
    let (per_step, all) = (precision.positions(), b.columns);
    for start in (0..all).step_by(BLOCK * per_step) {
        let end = (start + BLOCK * per_step).min(all);
        rows(b, columns.clone(), start..end, block, ROW_STRIDE, precision);
        let words = (end - start).div_ceil(per_step);
        transpose_words(block, columns.len(), words, &mut to[start / per_step * PANEL..]);
    }
}

/// A float32 rounded to bfloat16 (to nearest, ties to even), as the upper half of a float32. As with processors'
/// instructions, what is below the normal numbers becomes 0.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = if x.to_bits() & 0x7f80_0000 == 0 { x.to_bits() & 0x8000_0000 } else { x.to_bits() };
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could overflow and turn a NaN into a number.
    if x.is_nan() { bits | 0x0040_0000 } else { rounded }
}

/// Two numbers as a pair of bfloat16, the first in the lower half.
#[inline(always)]
fn pair(first: f32, second: f32) -> u32 {
    (rounded(first) >> 16) | (rounded(second) & 0xffff_0000)
}

/// Cuts a row into pieces of [`TILE_ROWS`] and writes each at index `step` of its own tile.
#[inline(always)]
fn distribute<T: Copy>(row: &[T], tiles: &mut [u32], step: usize, bits: impl Fn(T) -> u32) {
    let (pieces, rest) = row.as_chunks::<TILE_ROWS>();
    let (whole, last) = tiles.split_at_mut(pieces.len() * TILE_WORDS);
    for (piece, tile) in pieces.iter().zip(whole.chunks_exact_mut(TILE_WORDS)) {
        for (to, from) in tile[step * TILE_ROWS..][..TILE_ROWS].iter_mut().zip(piece) {
            *to = bits(*from);
        }
    }
    for (to, from) in last.iter_mut().skip(step * TILE_ROWS).zip(rest) {
        *to = bits(*from);
    }
}

/// The second row of a pair of positions, if there is one.
#[inline(always)]
fn second<'a>(b: &Matrix<'a>, position: usize, positions: &Range<usize>, columns: &Range<usize>) -> Option<&'a [f32]> {
    (position + 1 < positions.end).then(|| &b.row(position + 1)[columns.clone()])
}

vectorised! {
    fn copy_rows(a: Matrix, rows: Range<usize>, positions: Range<usize>, to: &mut [u32], stride: usize) {
        for (row, to) in rows.zip(to.chunks_exact_mut(stride)) {
            for (to, from) in to.iter_mut().zip(&a.row(row)[positions.clone()]) {
                *to = from.to_bits();
            }
        }
    }

    fn pair_rows(a: Matrix, rows: Range<usize>, positions: Range<usize>, to: &mut [u32], stride: usize) {
        for (row, to) in rows.zip(to.chunks_exact_mut(stride)) {
            let (pairs, rest) = a.row(row)[positions.clone()].as_chunks::<2>();
            for (to, from) in to.iter_mut().zip(pairs) {
                *to = pair(from[0], from[1]);
            }
            if let Some(last) = rest.first() {
                to[pairs.len()] = pair(*last, 0.0);
            }
        }
    }

    fn copy_tiles(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32]) {
        for (step, position) in positions.enumerate() {
            distribute(&a.row(position)[columns.clone()], to, step, f32::to_bits);
        }
    }

    fn pair_tiles(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32]) {
        let mut words = [0u32; MOST_COLUMNS];
        let words = &mut words[..columns.len()];
        for (step, position) in positions.clone().step_by(2).enumerate() {
            pair_words(&a.row(position)[columns.clone()], second(&a, position, &positions, &columns), words);
            distribute(words, to, step, |word| word);
        }
    }

    fn pair_columns(a: Matrix, columns: Range<usize>, positions: Range<usize>, to: &mut [u32], stride: usize) {
        let mut words = [0u32; 16];
        for block in columns.clone().step_by(16) {
            let some = block..columns.end.min(block + 16);
            for (step, position) in positions.clone().step_by(2).enumerate() {
                let words = &mut words[..some.len()];
                pair_words(&a.row(position)[some.clone()], second(&a, position, &positions, &some), words);
                for (to, word) in to.chunks_exact_mut(stride).skip(block - columns.start).zip(words) {
                    to[step] = *word;
                }
            }
        }
        let words = positions.len().div_ceil(2);
        let rows = to.chunks_exact_mut(stride).take(columns.len());
        rows.for_each(|row| row[words..words.next_multiple_of(16)].fill(0));
    }

    fn copy_panel(b: Matrix, columns: Range<usize>, to: &mut [u32]) {
        for (row, to) in (0..b.rows).zip(to.as_chunks_mut::<PANEL>().0) {
            for (to, from) in to.iter_mut().zip(&b.row(row)[columns.clone()]) {
                *to = from.to_bits();
            }
        }
    }

    fn pair_panel(b: Matrix, columns: Range<usize>, to: &mut [u32]) {
        for (row, to) in (0..b.rows).step_by(2).zip(to.chunks_exact_mut(PANEL)) {
            pair_words(&b.row(row)[columns.clone()], second(&b, row, &(0..b.rows), &columns), &mut to[..columns.len()]);
        }
    }

    /// Writes row j of a block, rows [`ROW_STRIDE`] apart, as column j, steps [`PANEL`] apart.
    fn transpose_words(from: &[u32], rows: usize, words: usize, to: &mut [u32]) {
        for (j, row) in from.chunks_exact(ROW_STRIDE).take(rows).enumerate() {
            for (step, value) in row[..words].iter().enumerate() {
                to[step * PANEL + j] = *value;
            }
        }
    }
}

/// `to[j]` = the pair of `first[j]` and `second[j]`, or of `first[j]` and 0.
#[inline(always)]
fn pair_words(first: &[f32], second: Option<&[f32]>, to: &mut [u32]) {
    match second {
        Some(second) => {
            for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
                *to = pair(*first, *second);
            }
        }
        None => {
            for (to, first) in to.iter_mut().zip(first) {
                *to = pair(*first, 0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even() {
        let upper = |x: f32| f32::from_bits(rounded(x) & 0xffff_0000);
        // Eight bits of precision: 1 + 2⁻⁷ is the next number after 1.
        let ulp = 2f32.powi(-7);
        for (x, want) in [
            (1.0, 1.0),
            (1.0 + ulp, 1.0 + ulp),
            (1.0 + 0.4 * ulp, 1.0),
            (1.0 + 0.5 * ulp, 1.0),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
            (-1.0 - 0.6 * ulp, -1.0 - ulp),
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
            (-0.0, -0.0),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
            (f32::MIN_POSITIVE.next_down(), 0.0),
            (-f32::MIN_POSITIVE.next_down(), -0.0),
            (1e-40, 0.0),
        ] {
            assert_eq!(upper(x).to_bits(), f32::to_bits(want), "{x}");
        }
        for bits in [0x7fff_ffffu32, 0xffff_ffff, 0x7f80_0001] {
            assert!(upper(f32::from_bits(bits)).is_nan());
        }
    }

    /// Columns are the rows of the transpose.
    #[test]
    fn columns_are_packed_as_rows() {
        for (rows, columns) in [(1, 1), (2, 15), (3, 16), (31, 17), (32, 33), (70, 90), (255, 128)] {
            let data: Vec<f32> = (0..rows * columns).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
            let transposed: Vec<f32> = (0..rows * columns).map(|i| data[i % rows * columns + i / rows]).collect();
            let stride = 144;
            let (mut got, mut want) = (vec![0u32; columns * stride], vec![0u32; columns * stride]);
            for (some, positions) in [(0..columns, 0..rows), (columns / 3..columns, rows / 4 * 2..rows)] {
                super::columns(Matrix::new(&data, rows, columns), some.clone(), positions.clone(), &mut got, stride);
                let matrix = Matrix::new(&transposed, columns, rows);
                super::rows(matrix, some.clone(), positions.clone(), &mut want, stride, Precision::Bf16);
                for (got, want) in got.chunks(stride).zip(want.chunks(stride)).take(some.len()) {
                    let words = positions.len().div_ceil(2);
                    assert_eq!(got[..words], want[..words], "{rows}x{columns}");
                    assert!(got[words..words.next_multiple_of(16)].iter().all(|word| *word == 0));
                }
            }
        }
    }

    /// The machine's instructions and plain Rust pack the same words.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instructions_round_as_plain_code_does() {
        if !Precision::Bf16.is_native() {
            eprintln!("skipped: this machine has no bfloat16 instructions");
            return;
        }
        for (rows, columns) in [(1, 1), (2, 15), (3, 16), (7, 31), (12, 33), (9, 70), (30, 90)] {
            let special = [f32::NAN, f32::INFINITY, f32::MIN_POSITIVE.next_down(), -1e-40, f32::MAX, -0.0];
            let number = |i: usize| if i % 11 < 6 { special[i % 11] } else { (i as f32 * 0.37).sin() * 3.0 };
            let data: Vec<f32> = (0..rows * columns).map(number).collect();
            let matrix = Matrix::new(&data, rows, columns);
            let mut got = vec![0u32; 12 * TILE_WORDS];
            let mut want = got.clone();
            // SAFETY: checked above.
            unsafe { x86::pair_rows(matrix, 0..rows.min(12), 0..columns, &mut got, ROW_STRIDE) };
            pair_rows(matrix, 0..rows.min(12), 0..columns, &mut want, ROW_STRIDE);
            assert_eq!(got, want, "rows {rows}x{columns}");
            // SAFETY: checked above.
            unsafe { x86::pair_tiles(matrix, 0..columns, 0..rows, &mut got) };
            pair_tiles(matrix, 0..columns, 0..rows, &mut want);
            assert_eq!(got, want, "tiles {rows}x{columns}");
            // SAFETY: checked above.
            unsafe { x86::pair_columns(matrix, 0..columns, 0..rows, &mut got, ROW_STRIDE) };
            pair_columns(matrix, 0..columns, 0..rows, &mut want, ROW_STRIDE);
            assert_eq!(got, want, "columns {rows}x{columns}");
            let some = 0..columns.min(PANEL);
            // SAFETY: checked above.
            unsafe { x86::pair_panel(matrix, some.clone(), &mut got) };
            pair_panel(matrix, some, &mut want);
            assert_eq!(got, want, "panel {rows}x{columns}");
        }
    }
}
