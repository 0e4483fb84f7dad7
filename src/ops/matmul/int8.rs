//! Products with 8-bit integers: weights with a scale for each output, inputs with one for each row.
//!
//! A weight w of output j becomes the integer round(w / s_j), where s_j = max|w| / 127 over the output's weights. An
//! input x becomes round(x / r), where r = max|x| / 127 is computed for each row when it is multiplied. Integers are
//! multiplied and summed exactly in 32 bits, so that a result y_j = r·s_j·Σ depends neither on the instruction set nor
//! on the other rows. (Symmetric quantisation as in Bhandare et al. 2019, "Efficient 8-Bit Quantization of Transformer
//! Neural Machine Language Translation Model".)

use std::ops::Range;

use super::arithmetic::{Integers, Kernel};
use super::kernel::PANEL;
use super::panels::{Panels, Tiles};
use super::{Scratch, SharedRows};
use crate::error::{Error, Result};
use crate::ops::simd::{self, vectorised};

/// The largest integer.
const MOST: f32 = 127.0;
/// Positions of the inner dimension in one 32-bit step.
const POSITIONS: usize = 4;
/// Rows longer than this could overflow their 32-bit sums.
const LONGEST: usize = 1 << 16;

/// A matrix [rows, k] as integers, and the scale of each row: element = integer · scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantised {
    /// [rows, k], -127 to 127.
    pub values: Vec<i8>,
    /// [rows].
    pub scales: Vec<f32>,
}

impl Quantised {
    /// Rounds a row-major matrix with rows of `k` numbers.
    pub fn new(matrix: &[f32], k: usize) -> Self {
        let scales: Vec<f32> = matrix.chunks_exact(k).map(scale_of).collect();
        let rounded = |(row, scale): (&[f32], &f32)| {
            let inverse = inverse(*scale);
            row.iter().map(move |x| (x * inverse).round_ties_even() as i8).collect::<Vec<i8>>()
        };
        Self { values: matrix.chunks_exact(k).zip(&scales).flat_map(rounded).collect(), scales }
    }

    /// The numbers that the integers stand for.
    pub fn floats(&self) -> Vec<f32> {
        let k = self.values.len() / self.scales.len().max(1);
        let rows = self.values.chunks_exact(k.max(1)).zip(&self.scales);
        rows.flat_map(|(row, scale)| row.iter().map(move |value| f32::from(*value) * scale)).collect()
    }
}

/// The values of a parameter, as a model holds them.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// float32.
    F32(Vec<f32>),
    /// 8-bit integers; only matrices have them.
    I8(Quantised),
}

impl Values {
    /// As float32.
    pub fn floats(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values,
            Self::I8(integers) => integers.floats(),
        }
    }

    /// As integers, if it is a matrix with rows of `k` numbers.
    pub fn integers(self, k: usize) -> Quantised {
        match self {
            Self::F32(values) => Quantised::new(&values, k),
            Self::I8(integers) => integers,
        }
    }
}

vectorised! {
    /// max|x| / 127; NaN if any number of the row is not finite.
    fn scale_of(row: &[f32]) -> f32 {
        // Without their signs, numbers are in the order of their bits, and beyond infinity is NaN.
        let largest = f32::from_bits(row.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
        if largest.is_finite() { largest / MOST } else { f32::NAN }
    }

    /// Rounds a row to integers, four per word, the first in the lowest byte; the words are XORed with `flip`.
    fn round_row(row: &[f32], inverse: f32, flip: u32, to: &mut [u32]) {
        // Adding 1.5·2^23 rounds to an integer, ties to even, and leaves it in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let (whole, rest) = row.as_chunks::<POSITIONS>();
        for (to, four) in to.iter_mut().zip(whole) {
            let byte = |i: usize| (four[i].mul_add(inverse, ROUND).to_bits() & 0xff) << (8 * i);
            *to = (byte(0) | byte(1) | byte(2) | byte(3)) ^ flip;
        }
        if !rest.is_empty() {
            let mut word = 0;
            for (i, x) in rest.iter().enumerate() {
                word |= (x.mul_add(inverse, ROUND).to_bits() & 0xff) << (8 * i);
            }
            to[whole.len()] = word ^ flip;
        }
    }

    /// Turns the integers that are in the bits of `row` into the numbers that they stand for.
    fn scale_row(row: &mut [f32], offsets: &[i32], scales: &[f32], scale: f32) {
        for ((x, offset), of_column) in row.iter_mut().zip(offsets).zip(scales) {
            *x = (x.to_bits() as i32).wrapping_sub(*offset) as f32 * (scale * of_column);
        }
    }
}

/// Whether this machine multiplies integers faster than floats.
pub fn is_native() -> bool {
    simd::level() != simd::Level::Baseline
}

/// Whether AMX computes the products.
pub fn is_by_amx() -> bool {
    matches!(Integers::choose().kernel, Kernel::Amx(..))
}

fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

/// The transpose of a matrix of integers, packed: a weight, for x·Wᵀ.
#[derive(Debug)]
pub struct Int8 {
    panels: Panels,
    k: usize,
    scales: Vec<f32>,
    /// For each column, the excess that the kernel adds; it is subtracted afterwards.
    offsets: Vec<i32>,
    integers: Integers,
}

impl Int8 {
    /// From the integers of a weight [n, k].
    ///
    /// # Errors
    /// `k` is more than 65,536: sums of so many could overflow.
    pub fn new(weight: &Quantised, k: usize) -> Result<Self> {
        Self::by(weight, k, Integers::choose())
    }

    fn by(weight: &Quantised, k: usize, integers: Integers) -> Result<Self> {
        if k > LONGEST {
            let error = Error::usage(format!("a layer with {k} inputs is too wide for 8-bit integers"));
            return Err(error.help("give --precision f32 or bf16"));
        }
        let n = weight.scales.len();
        let steps = k.div_ceil(POSITIONS).next_multiple_of(integers.kernel.shape().block);
        let mut words = Scratch::zeroed(n.div_ceil(PANEL) * steps * PANEL);
        for (j, row) in weight.values.chunks_exact(k.max(1)).enumerate() {
            let panel = &mut words.words_mut()[j / PANEL * PANEL * steps..];
            for (step, four) in row.chunks(POSITIONS).enumerate() {
                let mut bytes = [0u8; POSITIONS];
                bytes.iter_mut().zip(four).for_each(|(byte, value)| *byte = *value as u8);
                panel[step * PANEL + j % PANEL] = u32::from_le_bytes(bytes);
            }
        }
        let sums = weight.values.chunks_exact(k.max(1)).map(|row| row.iter().map(|v| i32::from(*v)).sum::<i32>());
        let offsets = sums.map(|sum| integers.offset * sum).collect();
        Ok(Self { panels: Panels { words, steps, n }, k, scales: weight.scales.clone(), offsets, integers })
    }

    /// Number of columns, that is, of outputs.
    pub fn columns(&self) -> usize {
        self.panels.n
    }

    /// Some of the columns.
    pub fn subset(&self, columns: &[u32]) -> Self {
        Self {
            panels: self.panels.subset(columns),
            k: self.k,
            scales: columns.iter().map(|&j| self.scales[j as usize]).collect(),
            offsets: columns.iter().map(|&j| self.offsets[j as usize]).collect(),
            integers: self.integers,
        }
    }

    /// Column `j` of the matrix: row j of the weight. out: [k].
    pub fn column(&self, j: usize, out: &mut [f32]) {
        let scale = self.scales[j];
        for (word, out) in self.panels.column(j).zip(out.chunks_mut(POSITIONS)) {
            for (byte, out) in word.to_le_bytes().into_iter().zip(out) {
                *out = f32::from(byte.cast_signed()) * scale;
            }
        }
    }

    /// C = A·B on the calling thread. A: [m, k] row-major, C: [m, n] row-major.
    pub fn product(&self, a: &[f32], c: &mut [f32]) {
        if c.is_empty() {
            return;
        }
        let (tiles, scales) = self.tiles(a, c.len());
        let shared = SharedRows::new(c, self.panels.n);
        // SAFETY: C holds all rows and columns, and is this thread's.
        unsafe { self.multiply(&tiles, &scales, 0..self.panels.n, &shared) };
    }

    /// C = A·B on all threads, each of which computes some of the columns.
    pub fn product_by_columns(&self, a: &[f32], c: &mut [f32]) {
        if c.is_empty() {
            return;
        }
        use rayon::prelude::*;
        let (tiles, scales) = self.tiles(a, c.len());
        let shared = SharedRows::new(c, self.panels.n);
        // SAFETY: C holds all rows, and tasks have disjoint columns.
        self.panels.tasks().for_each(|columns| unsafe { self.multiply(&tiles, &scales, columns, &shared) });
    }

    /// The rows of A as packed integers, and the scale of each row.
    fn tiles(&self, a: &[f32], c: usize) -> (Tiles, Vec<f32>) {
        let Integers { kernel, offset } = self.integers;
        let m = c / self.panels.n.max(1);
        assert!(a.len() == m * self.k && c == m * self.panels.n, "sizes of a product differ");
        let rows: Vec<&[f32]> = a.chunks_exact(self.k.max(1)).collect();
        let scales: Vec<f32> = rows.iter().map(|row| scale_of(row)).collect();
        // Flipping the highest bit of a byte adds 128 to it.
        let flip = if offset == 0 { 0 } else { 0x8080_8080 };
        let end = self.k.div_ceil(POSITIONS);
        let tiles = Tiles::new(m, 0..self.panels.steps, end, kernel, |piece, to| {
            let positions = piece.start * POSITIONS..self.k.min(piece.end * POSITIONS);
            for ((row, scale), to) in rows.iter().zip(&scales).zip(to.chunks_exact_mut(kernel.shape().stride)) {
                round_row(&row[positions.clone()], inverse(*scale), flip, to);
            }
        });
        (tiles, scales)
    }

    /// Computes `columns` of C, from the first of a panel on.
    ///
    /// # Safety
    /// C has as many rows as the tiles; no other thread touches those columns.
    unsafe fn multiply(&self, tiles: &Tiles, scales: &[f32], columns: Range<usize>, c: &SharedRows) {
        // SAFETY: the caller's contract.
        unsafe { self.panels.multiply(tiles, columns.clone(), c.pointer(), false) };
        let (offsets, of_columns) = (&self.offsets[columns.clone()], &self.scales[columns.clone()]);
        for (i, scale) in scales.iter().enumerate() {
            // SAFETY: as above, and row i is there.
            let row = unsafe {
                std::slice::from_raw_parts_mut(c.pointer().add(i * self.panels.n + columns.start), columns.len())
            };
            scale_row(row, offsets, of_columns, *scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::amx;
    use super::super::tests::{SIZES, numbers};
    use super::*;

    #[test]
    fn products_are_those_of_the_integers() {
        let sizes = [(5, 37, 1030), (1, 70, 2051)].into_iter().chain(SIZES);
        let by = amx::ways().into_iter().map(Integers::amx);
        let integers: Vec<Integers> = [Integers::vectors()].into_iter().chain(by).collect();
        for ((m, n, k), integers) in sizes.flat_map(|size| integers.iter().map(move |integers| (size, *integers))) {
            let (a, w) = (numbers(m * k, 1), numbers(n * k, 2));
            let (rows, weight) = (Quantised::new(&a, k), Quantised::new(&w, k));
            let packed = Int8::by(&weight, k, integers).unwrap();
            let mut c = vec![f32::NAN; m * n];
            packed.product(&a, &mut c);
            for (i, row) in rows.values.chunks_exact(k).enumerate() {
                for (j, column) in weight.values.chunks_exact(k).enumerate() {
                    let sum: i32 = row.iter().zip(column).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
                    let want = sum as f32 * (rows.scales[i] * weight.scales[j]);
                    assert_eq!(c[i * n + j], want, "{m}x{n}x{k}: {i}, {j}");
                }
            }
            let mut by_columns = vec![f32::NAN; m * n];
            packed.product_by_columns(&a, &mut by_columns);
            assert_eq!(by_columns, c);
            let some: Vec<u32> = (0..n as u32).rev().step_by(3).collect();
            let mut of_subset = vec![f32::NAN; m * some.len()];
            packed.subset(&some).product(&a, &mut of_subset);
            let of_all: Vec<f32> = c.chunks_exact(n.max(1)).flat_map(|c| some.iter().map(|&j| c[j as usize])).collect();
            assert_eq!(of_subset, of_all);
            let floats = weight.floats();
            for (j, row) in floats.chunks_exact(k).enumerate() {
                let mut column = vec![f32::NAN; k];
                packed.column(j, &mut column);
                assert_eq!(column, row);
            }
        }
    }

    #[test]
    fn integers_are_near_what_they_stand_for() {
        let matrix = numbers(40, 3);
        let Quantised { values, scales } = Quantised::new(&matrix, 10);
        for (i, (x, value)) in matrix.iter().zip(&values).enumerate() {
            assert!((x - f32::from(*value) * scales[i / 10]).abs() <= 0.5001 * scales[i / 10]);
        }
        assert!(values.chunks(10).all(|row| row.iter().any(|v| v.abs() == 127)));
        assert_eq!(Quantised::new(&[0.0, -0.0], 2), Quantised { values: vec![0, 0], scales: vec![0.0] });
    }

    /// A NaN must reach the search, or a damaged model would pass unseen.
    #[test]
    fn nan_stays() {
        let packed = Int8::new(&Quantised::new(&[1.0, 2.0], 2), 2).unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut c = [0f32];
            packed.product(&[1.0, bad], &mut c);
            assert!(c[0].is_nan());
        }
        let mut c = [1f32];
        Int8::new(&Quantised::new(&[1.0, f32::NAN], 2), 2).unwrap().product(&[1.0, 1.0], &mut c);
        assert!(c[0].is_nan());
    }
}
