//! What AMX's instructions compute, in plain Rust.

use super::{BLOCK, PANEL, SHAPE, Tile};

/// The row of A, the row of C, and the rows of B at each step.
///
/// # Safety
/// As for [`super::Session::run`]; the row is one of the tile's.
unsafe fn operands<'a>(tile: Tile, row: usize) -> (&'a [u32], &'a mut [f32; PANEL], &'a [[u32; PANEL]]) {
    // SAFETY: inside the tiles, by the contract.
    unsafe {
        (
            std::slice::from_raw_parts(tile.a.add(row * SHAPE.stride), tile.steps),
            &mut *tile.c.add(row * tile.ldc).cast(),
            std::slice::from_raw_parts(tile.b.cast(), tile.steps),
        )
    }
}

/// TDPBF16PS over all steps.
///
/// # Safety
/// As for [`super::Session::run`].
pub(super) unsafe fn bf16(rows: usize, tile: Tile) {
    let (lower, upper) = (|pair: u32| f32::from_bits(pair << 16), |pair: u32| f32::from_bits(pair & 0xffff_0000));
    for row in 0..rows {
        // SAFETY: the caller's contract.
        let (a, c, b) = unsafe { operands(tile, row) };
        if !tile.accumulate {
            c.fill(0.0);
        }
        for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
            let (mut even, mut odd) = ([0f32; PANEL], [0f32; PANEL]);
            for (a, b) in a.iter().zip(b) {
                for j in 0..PANEL {
                    even[j] = multiply_add(lower(*a), lower(b[j]), even[j]);
                    odd[j] = multiply_add(upper(*a), upper(b[j]), odd[j]);
                }
            }
            for j in 0..PANEL {
                c[j] = add(c[j], add(even[j], odd[j]));
            }
        }
    }
}

/// TDPBUSD over all steps.
///
/// # Safety
/// As for [`super::Session::run`].
pub(super) unsafe fn int8(rows: usize, tile: Tile) {
    for row in 0..rows {
        // SAFETY: the caller's contract.
        let (a, c, b) = unsafe { operands(tile, row) };
        for (j, c) in c.iter_mut().enumerate() {
            let mut sum = if tile.accumulate { c.to_bits().cast_signed() } else { 0 };
            for (a, b) in a.iter().zip(b) {
                for (a, b) in a.to_le_bytes().into_iter().zip(b[j].to_le_bytes()) {
                    sum = sum.wrapping_add(i32::from(a) * i32::from(b.cast_signed()));
                }
            }
            *c = f32::from_bits(sum.cast_unsigned());
        }
    }
}

/// 0 with the number's sign if it is below the normal numbers.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// a + b, without subnormal numbers.
fn add(a: f32, b: f32) -> f32 {
    flushed(flushed(a) + flushed(b))
}

/// a·b + c, without subnormal numbers. Whether the result is one of them is decided after rounding to 24 bits, as if
/// exponents had no end.
pub(super) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    /// Midway between the least normal number and the number of 24 bits before it.
    const MIDWAY: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);
    let (a, b, c) = (flushed(a), flushed(b), flushed(c));
    let sum = flushed(a.mul_add(b, c));
    // Subnormal numbers are further apart: some that are below the middle have been rounded up.
    let is_least = sum.abs() == f32::MIN_POSITIVE;
    let is_below = is_least && f64::from(a).mul_add(f64::from(b), f64::from(c)).abs() < MIDWAY;
    if is_below { 0f32.copysign(sum) } else { sum }
}
