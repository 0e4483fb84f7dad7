//! Packed operands of any type, and their multiplication tile by tile.

use std::mem::MaybeUninit;
use std::ops::Range;

use rayon::prelude::*;

use super::amx;
use super::arithmetic::{Arithmetic, Kernel, Running, Shape, choose};
use super::kernel::{Order, PANEL, Tile};
use super::{Matrix, Scratch, pack};

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
        let (ldc, most) = (self.n, tiles.shape.rows);
        let kernel = tiles.kernel.begin(tiles.rows);
        for column in columns.clone().step_by(PANEL) {
            let panel = &self.words.words()[column * self.steps..][..self.steps * PANEL];
            let width = PANEL.min(columns.end - column);
            for (number, piece) in tiles.pieces().enumerate() {
                let b = panel[piece.start * PANEL..piece.end * PANEL].as_ptr();
                for (tile, first) in (0..tiles.rows).step_by(most).enumerate() {
                    let a = tiles.tile(number, tile).as_ptr();
                    // SAFETY: the first of the tile's rows, by the contract.
                    let c = unsafe { c.add(first * ldc + column) };
                    let tile = Tile { steps: piece.len(), a, b, c, ldc, accumulate: accumulate || number > 0 };
                    // SAFETY: A's tile and B's panel hold these steps; of C only `width` columns are touched.
                    unsafe { run(&kernel, most.min(tiles.rows - first), tile, width) };
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
    kernel: Kernel,
    shape: Shape,
}

impl Tiles {
    /// Packs `rows` of A (`Order::Rows`, A: [m, k]) or of its transpose (`Order::Steps`, A: [k, m]).
    pub(super) fn pack(a: Matrix, order: Order, rows: Range<usize>, steps: Range<usize>, by: Arithmetic) -> Self {
        let (precision, shape) = (by.precision(), by.shape());
        let (per_step, k) = (precision.positions(), if order == Order::Rows { a.columns } else { a.rows });
        let end = k.div_ceil(per_step);
        Self::new(rows.len(), steps, end, choose(by, order), |piece, to| {
            let positions = piece.start * per_step..k.min(piece.end * per_step);
            match (order, by) {
                (Order::Rows, _) => pack::rows(a, rows.clone(), positions, to, shape.stride, precision),
                (Order::Steps, Arithmetic::Amx(_)) => pack::columns(a, rows.clone(), positions, to, shape.stride),
                (Order::Steps, _) => pack::tiles(a, rows.clone(), positions, to, precision),
            }
        })
    }

    /// `pack` is called for each piece of the steps and writes its tiles, [`Shape::tile_words`] apart. It writes the
    /// steps before `end`; others become 0.
    pub(super) fn new(
        rows: usize,
        steps: Range<usize>,
        end: usize,
        kernel: Kernel,
        pack: impl Fn(Range<usize>, &mut [u32]),
    ) -> Self {
        let shape = kernel.shape();
        let words = rows.div_ceil(shape.rows) * shape.tile_words();
        let packed = Scratch::new(steps.len().div_ceil(shape.depth) * words);
        let mut tiles = Self { packed, rows, steps, kernel, shape };
        for (piece, to) in tiles.pieces().zip(tiles.packed.words_mut().chunks_mut(words)) {
            pack(piece.clone(), to);
            if end < piece.end {
                let rows = to.chunks_exact_mut(shape.stride).take(rows);
                rows.for_each(|row| row[end - piece.start..piece.len()].fill(0));
            }
        }
        tiles
    }

    /// The steps, cut into pieces that fit into a tile.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (Range { start, end }, depth) = (self.steps.clone(), self.shape.depth);
        (start..end).step_by(depth).map(move |start| start..end.min(start + depth))
    }

    /// A tile of rows at a piece of the steps.
    fn tile(&self, piece: usize, tile: usize) -> &[u32] {
        let (tiles, words) = (self.rows.div_ceil(self.shape.rows), self.shape.tile_words());
        &self.packed.words()[(piece * tiles + tile) * words..][..words]
    }
}

/// Computes a tile of a C that has only `columns` columns there.
///
/// # Safety
/// As for [`Running::run`], except that C holds only `columns` columns.
#[inline(always)]
unsafe fn run(kernel: &Running, rows: usize, tile: Tile, columns: usize) {
    if columns == PANEL {
        // SAFETY: the caller's contract.
        return unsafe { kernel.run(rows, tile) };
    }
    let mut whole = [const { MaybeUninit::<[f32; PANEL]>::uninit() }; amx::SHAPE.rows];
    let row = |i: usize| {
        // SAFETY: row i of C, by the contract.
        unsafe { std::slice::from_raw_parts_mut(tile.c.add(i * tile.ldc), columns) }
    };
    if tile.accumulate {
        for (i, whole) in whole.iter_mut().take(rows).enumerate() {
            whole.write([0.0; PANEL])[..columns].copy_from_slice(row(i));
        }
    }
    // SAFETY: `whole` has room for any tile; the rest is the caller's contract.
    unsafe { kernel.run(rows, Tile { c: whole.as_mut_ptr().cast(), ldc: PANEL, ..tile }) };
    for (i, whole) in whole.iter().take(rows).enumerate() {
        // SAFETY: the kernel has written these rows.
        row(i).copy_from_slice(unsafe { &whole.assume_init_ref()[..columns] });
    }
}
