//! Packed operands of any type, and their multiplication tile by tile.

use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{self, DEPTH, Order, PANEL, TILE_ROWS, TILE_WORDS, Tile};
use super::{Matrix, Precision, Scratch, pack};

/// The right operand B, packed in panels of [`PANEL`] columns. A panel is stored step after step.
#[derive(Debug)]
pub(super) struct Panels {
    pub(super) words: Scratch,
    pub(super) steps: usize,
    /// Number of columns.
    pub(super) n: usize,
}

impl Panels {
    /// The columns, divided into a few tasks per thread; each has whole panels.
    pub(super) fn tasks(&self) -> impl ParallelIterator<Item = Range<usize>> + use<> {
        let n = self.n;
        let width = n.div_ceil(PANEL).div_ceil(4 * rayon::current_num_threads()) * PANEL;
        (0..n.div_ceil(width)).into_par_iter().map(move |task| task * width..n.min((task + 1) * width))
    }

    /// The words of a column, step after step.
    pub(super) fn column(&self, j: usize) -> impl Iterator<Item = u32> {
        let panel = &self.words.words()[j / PANEL * PANEL * self.steps..][..PANEL * self.steps];
        panel.iter().skip(j % PANEL).step_by(PANEL).copied()
    }

    /// Some of the columns, in panels of their own.
    pub(super) fn subset(&self, columns: &[u32]) -> Self {
        let (steps, n) = (self.steps, columns.len());
        let mut words = Scratch::zeroed(n.div_ceil(PANEL) * steps * PANEL);
        for (to, j) in columns.iter().enumerate() {
            let panel = &mut words.words_mut()[to / PANEL * PANEL * steps..][..PANEL * steps];
            let to = panel.iter_mut().skip(to % PANEL).step_by(PANEL);
            to.zip(self.column(*j as usize)).for_each(|(to, word)| *to = word);
        }
        Self { words, steps, n }
    }

    /// Computes `columns` of C, from the first of a panel on, over the tiles' steps of A and B.
    ///
    /// # Safety
    /// C points to as many rows as the tiles have, with all columns; no other thread touches the columns in `columns`.
    pub(super) unsafe fn multiply(&self, tiles: &Tiles, columns: Range<usize>, c: *mut f32, accumulate: bool) {
        let ldc = self.n;
        for column in columns.clone().step_by(PANEL) {
            let panel = &self.words.words()[column * self.steps..][..self.steps * PANEL];
            let width = PANEL.min(columns.end - column);
            for (number, piece) in tiles.pieces().enumerate() {
                let b = panel[piece.start * PANEL..piece.end * PANEL].as_ptr();
                for (tile, first) in (0..tiles.rows).step_by(TILE_ROWS).enumerate() {
                    let a = tiles.tile(number, tile).as_ptr();
                    // SAFETY: the first of the tile's rows, by the contract.
                    let c = unsafe { c.add(first * ldc + column) };
                    let tile = Tile { steps: piece.len(), a, b, c, ldc, accumulate: accumulate || number > 0 };
                    // SAFETY: A's tile and B's panel hold these steps; of C only `width` columns are touched.
                    unsafe { run(tiles.kernel, TILE_ROWS.min(tiles.rows - first), tile, width) };
                }
            }
        }
    }
}

/// Rows of A at some steps, packed for the micro-kernels.
pub(super) struct Tiles {
    packed: Scratch,
    rows: usize,
    steps: Range<usize>,
    kernel: kernel::Kernel,
}

impl Tiles {
    pub(super) fn pack(a: Matrix, order: Order, rows: Range<usize>, steps: Range<usize>, precision: Precision) -> Self {
        let (per_step, k) = (precision.positions(), if order == Order::Rows { a.columns } else { a.rows });
        Self::new(rows.len(), steps, kernel::choose(precision, order), |piece, to| {
            let positions = piece.start * per_step..k.min(piece.end * per_step);
            match order {
                Order::Rows => {
                    for (to, first) in to.chunks_mut(TILE_WORDS).zip(rows.clone().step_by(TILE_ROWS)) {
                        let rows = first..rows.end.min(first + TILE_ROWS);
                        pack::rows(a, rows, positions.clone(), to, precision);
                    }
                }
                Order::Steps => pack::tiles(a, rows.clone(), positions, to, precision),
            }
        })
    }

    /// `pack` is called for each piece of the steps and writes its tiles, [`TILE_WORDS`] apart.
    pub(super) fn new(
        rows: usize,
        steps: Range<usize>,
        kernel: kernel::Kernel,
        pack: impl Fn(Range<usize>, &mut [u32]),
    ) -> Self {
        let words = rows.div_ceil(TILE_ROWS) * TILE_WORDS;
        let packed = Scratch::new(steps.len().div_ceil(DEPTH) * words);
        let mut tiles = Self { packed, rows, steps, kernel };
        for (piece, to) in tiles.pieces().zip(tiles.packed.words_mut().chunks_mut(words)) {
            pack(piece, to);
        }
        tiles
    }

    /// The steps, cut into pieces that fit into a tile.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.steps;
        (start..end).step_by(DEPTH).map(move |start| start..end.min(start + DEPTH))
    }

    /// A tile of rows at a piece of the steps.
    fn tile(&self, piece: usize, tile: usize) -> &[u32] {
        &self.packed.words()[(piece * self.rows.div_ceil(TILE_ROWS) + tile) * TILE_WORDS..][..TILE_WORDS]
    }
}

/// Computes a tile of a C that has only `columns` columns there.
///
/// # Safety
/// As for [`kernel::Kernel`], except that C holds only `columns` columns.
#[inline(always)]
unsafe fn run(kernel: kernel::Kernel, rows: usize, tile: Tile, columns: usize) {
    if columns == PANEL {
        // SAFETY: the caller's contract.
        return unsafe { kernel(rows, tile) };
    }
    let mut whole = [0f32; TILE_ROWS * PANEL];
    let row = |i: usize| {
        // SAFETY: row i of C, by the contract.
        unsafe { std::slice::from_raw_parts_mut(tile.c.add(i * tile.ldc), columns) }
    };
    if tile.accumulate {
        for (i, whole) in whole.chunks_exact_mut(PANEL).take(rows).enumerate() {
            whole[..columns].copy_from_slice(row(i));
        }
    }
    // SAFETY: `whole` holds a whole tile; the rest is the caller's contract.
    unsafe { kernel(rows, Tile { c: whole.as_mut_ptr(), ldc: PANEL, ..tile }) };
    for (i, whole) in whole.chunks_exact(PANEL).take(rows).enumerate() {
        row(i).copy_from_slice(&whole[..columns]);
    }
}
