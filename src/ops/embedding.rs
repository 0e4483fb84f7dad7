//! Embedding: table rows, scaled, plus positions, with dropout; its gradient goes into the flat buffer, so that a table
//! shared with the output projection has one gradient.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::dropout::Dropout;
use super::memory::{SharedRows, with_slice};
use super::params::Param;
use super::simd::vectorised;
use super::{Implementation, Mode};

/// Rows that one thread takes at a time.
const BLOCK_ROWS: usize = 128;
/// Columns that one thread takes at a time in backward.
const BLOCK_COLUMNS: usize = 64;

/// An embedding with positions.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// Table, [V, D].
    pub table: Param,
    /// Positional encodings of positions 0.., [positions, D].
    pub positions: Arc<Vec<f32>>,
    /// Factor of the table's rows: √D or 1.
    pub scale: f32,
    /// Dropout on the sum.
    pub dropout: Dropout,
}

/// scale·table[ids] + positions, with dropout: `ids` is [B, L] flat, `length` is L, the first position is `first`.
/// Returns [B·L, D].
pub fn run(
    embedding: Embedding,
    ids: Vec<u32>,
    length: usize,
    first: usize,
    root: &Tensor,
    mode: &Mode,
) -> Result<Tensor> {
    let (vocabulary, d) = embedding.table.value().dims2()?;
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        bail!("token {id} is outside the vocabulary of {vocabulary}");
    }
    if (first + length) * d > embedding.positions.len() {
        bail!("a sequence of {} tokens is longer than model.max_length", first + length);
    }
    if mode.implementation == Implementation::Reference || !root.device().is_cpu() {
        return reference(&embedding, &ids, length, first, mode.is_training());
    }
    let op = Fused { embedding, ids, length, first };
    if mode.is_training() { root.apply_op1(op) } else { root.apply_op1_no_bwd(&op) }
}

fn reference(e: &Embedding, ids: &[u32], length: usize, first: usize, training: bool) -> Result<Tensor> {
    let table = e.table.reference(training)?;
    let (d, device) = (table.dim(1)?, table.device().clone());
    let rows = table.index_select(&Tensor::from_slice(ids, ids.len(), &device)?, 0)?;
    let batch = ids.len() / length.max(1);
    let positions = Tensor::from_slice(&e.positions[first * d..(first + length) * d], (1, length, d), &device)?;
    let sum = (rows * e.scale as f64)?.reshape((batch, length, d))?.broadcast_add(&positions)?;
    e.dropout.apply(&sum.reshape((batch * length, d))?)
}

struct Fused {
    embedding: Embedding,
    ids: Vec<u32>,
    length: usize,
    first: usize,
}

vectorised! {
    fn rows_forward(table: &[f32], positions: &[f32], ids: &[u32], place: [usize; 3], scale: f32, dropout: Dropout, out: &mut [f32]) {
        let [first_row, length, d] = place;
        for (i, (out, &id)) in out.chunks_exact_mut(d).zip(ids).enumerate() {
            let row = first_row + i;
            let (entry, position) = (&table[id as usize * d..][..d], &positions[(row % length) * d..][..d]);
            if dropout.is_on() {
                for j in 0..d {
                    out[j] = entry[j].mul_add(scale, position[j]) * dropout.factor(row * d + j);
                }
            } else {
                for j in 0..d {
                    out[j] = entry[j].mul_add(scale, position[j]);
                }
            }
        }
    }

    /// gradient[j] += g[j]·scale·mask for the columns that begin at element `base` of the batch.
    fn add_scaled(gradient: &mut [f32], g: &[f32], scale: f32, dropout: Dropout, base: usize) {
        if dropout.is_on() {
            for (j, (target, g)) in gradient.iter_mut().zip(g).enumerate() {
                *target += g * scale * dropout.factor(base + j);
            }
        } else {
            for (target, g) in gradient.iter_mut().zip(g) {
                *target += g * scale;
            }
        }
    }
}

impl CustomOp1 for Fused {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let e = &self.embedding;
        let (n, d) = (self.ids.len(), e.table.dims()[1]);
        let mut out = vec![0f32; n * d];
        with_slice(e.table.value(), |table| {
            let positions = &e.positions[self.first * d..];
            out.par_chunks_mut(BLOCK_ROWS * d).zip(self.ids.par_chunks(BLOCK_ROWS)).enumerate().for_each(
                |(i, (out, ids))| {
                    rows_forward(table, positions, ids, [i * BLOCK_ROWS, self.length, d], e.scale, e.dropout, out);
                },
            );
            Ok(())
        })?;
        Ok((CpuStorage::F32(out), Shape::from((n, d))))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let (e, gradient) = (&self.embedding, gradient.contiguous()?);
        let d = e.table.dims()[1];
        with_slice(&gradient, |g| {
            e.table.with_gradient(|table| {
                let rows = table.len() / d;
                let shared = SharedRows::new(table, 1);
                (0..d.div_ceil(BLOCK_COLUMNS)).into_par_iter().for_each(|block| {
                    let (start, end) = (block * BLOCK_COLUMNS, ((block + 1) * BLOCK_COLUMNS).min(d));
                    for (row, &id) in self.ids.iter().enumerate() {
                        let at = (id as usize).min(rows - 1) * d;
                        // SAFETY: each thread has its own columns, so no element is borrowed twice.
                        let target = unsafe { shared.rows(at + start..at + end) };
                        add_scaled(target, &g[row * d + start..row * d + end], e.scale, e.dropout, row * d + start);
                    }
                });
            })
        })?;
        Ok(None)
    }
}
