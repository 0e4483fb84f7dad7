//! Embedding: table rows, scaled, plus positions, with dropout; gradients go into the flat buffer, so that a table
//! shared with the output projection has one gradient.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::dropout::Dropout;
use super::memory::{SharedRows, with_slice};
use super::params::Param;
use super::profile::{self, Work};
use super::simd::vectorised;
use super::{Implementation, Mode};

/// Rows that one thread takes at a time.
const BLOCK_ROWS: usize = 128;
/// Columns that one thread takes at a time in backward.
const BLOCK_COLUMNS: usize = 64;

/// What is added to the embeddings of positions 0.., [positions, D].
#[derive(Clone, Debug)]
pub enum Positions {
    /// Nothing.
    None,
    /// A fixed table.
    Fixed(Arc<Vec<f32>>),
    /// A parameter.
    Learned(Param),
}

impl Positions {
    /// Calls `f` with the table (CPU), if there is one.
    pub fn with<R>(&self, f: impl FnOnce(Option<&[f32]>) -> Result<R>) -> Result<R> {
        match self {
            Self::None => f(None),
            Self::Fixed(table) => f(Some(table)),
            Self::Learned(param) => with_slice(param.value(), |table| f(Some(table))),
        }
    }

    /// Rows `first..first + length` as [1, L, D], for the reference.
    fn reference(&self, first: usize, length: usize, d: usize, on: &Tensor, training: bool) -> Result<Option<Tensor>> {
        Ok(match self {
            Self::None => None,
            Self::Fixed(table) => {
                let rows = &table[first * d..(first + length) * d];
                Some(Tensor::from_slice(rows, (1, length, d), on.device())?.to_dtype(on.dtype())?)
            }
            Self::Learned(param) => Some(param.reference(training)?.narrow(0, first, length)?.unsqueeze(0)?),
        })
    }
}

/// An embedding with positions.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// Table, [V, D].
    pub table: Param,
    /// What is added to the rows at each position.
    pub positions: Positions,
    /// Number of positions.
    pub max_length: usize,
    /// What the table's rows are multiplied by: √D or 1.
    pub scale: f32,
    /// Dropout on the sum.
    pub dropout: Dropout,
}

/// scale·table[ids] + positions, with dropout: `ids` is [B, L] flat, `length` is L. Returns [B·L, D].
pub fn run(embedding: Embedding, ids: Vec<u32>, length: usize, root: &Tensor, mode: &Mode) -> Result<Tensor> {
    let vocabulary = embedding.table.dims()[0];
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        bail!("token {id} is outside the vocabulary of {vocabulary}");
    }
    if length > embedding.max_length {
        bail!("a sequence of {length} tokens is longer than model.max_length = {}", embedding.max_length);
    }
    if mode.implementation == Implementation::Reference || !root.device().is_cpu() {
        let _timer = profile::reference("embedding");
        return embedding.reference(&ids, 0, length, mode.is_training());
    }
    let op = Fused { embedding, ids, length };
    if mode.is_training() { root.apply_op1(op) } else { root.apply_op1_no_bwd(&op) }
}

impl Embedding {
    /// The embedding in plain Candle operations; the sequences begin at position `first`.
    pub fn reference(&self, ids: &[u32], first: usize, length: usize, training: bool) -> Result<Tensor> {
        let table = self.table.reference(training)?;
        let d = table.dim(1)?;
        let rows = (table.index_select(&Tensor::from_slice(ids, ids.len(), table.device())?, 0)? * self.scale as f64)?;
        let sum = match self.positions.reference(first, length, d, &rows, training)? {
            None => rows,
            Some(positions) => rows.reshape((ids.len() / length.max(1), length, d))?.broadcast_add(&positions)?,
        };
        self.dropout.apply(&sum.reshape((ids.len(), d))?)
    }
}

struct Fused {
    embedding: Embedding,
    ids: Vec<u32>,
    length: usize,
}

vectorised! {
    fn rows_forward(
        table: &[f32], positions: Option<&[f32]>, ids: &[u32], layout: [usize; 3], scale: f32, dropout: Dropout,
        out: &mut [f32],
    ) {
        let [first_row, length, d] = layout;
        for (i, (out, &id)) in out.chunks_exact_mut(d).zip(ids).enumerate() {
            let row = first_row + i;
            let entry = &table[id as usize * d..][..d];
            match positions {
                Some(positions) => {
                    let position = &positions[(row % length) * d..][..d];
                    for j in 0..d {
                        out[j] = entry[j].mul_add(scale, position[j]);
                    }
                }
                None => {
                    for j in 0..d {
                        out[j] = entry[j] * scale;
                    }
                }
            }
            if dropout.is_on() {
                for j in 0..d {
                    out[j] *= dropout.factor(row * d + j);
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

/// Adds scale·mask·g of every row to row `target_row(row)` of `target`.
fn scatter_rows(
    g: &[f32],
    target: &mut [f32],
    d: usize,
    scale: f32,
    dropout: Dropout,
    target_row: &(dyn Fn(usize) -> usize + Sync),
) {
    let shared = SharedRows::new(target, 1);
    (0..d.div_ceil(BLOCK_COLUMNS)).into_par_iter().for_each(|block| {
        let (start, end) = (block * BLOCK_COLUMNS, ((block + 1) * BLOCK_COLUMNS).min(d));
        for (row, g) in g.chunks_exact(d).enumerate() {
            let at = target_row(row) * d;
            // SAFETY: each thread has its own columns, so no element is borrowed twice.
            let target = unsafe { shared.rows(at + start..at + end) };
            add_scaled(target, &g[start..end], scale, dropout, row * d + start);
        }
    });
}

impl CustomOp1 for Fused {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let _timer = profile::operation(
            self.name(),
            "forward",
            Work::floats(2 * self.ids.len() * self.embedding.table.dims()[1]),
        );
        let e = &self.embedding;
        let (n, d) = (self.ids.len(), e.table.dims()[1]);
        let mut out = vec![0f32; n * d];
        with_slice(e.table.value(), |table| {
            e.positions.with(|positions| {
                out.par_chunks_mut(BLOCK_ROWS * d).zip(self.ids.par_chunks(BLOCK_ROWS)).enumerate().for_each(
                    |(i, (out, ids))| {
                        let layout = [i * BLOCK_ROWS, self.length, d];
                        rows_forward(table, positions, ids, layout, e.scale, e.dropout, out);
                    },
                );
                Ok(())
            })
        })?;
        Ok((CpuStorage::F32(out), Shape::from((n, d))))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let _timer = profile::operation(self.name(), "backward", Work::floats(3 * gradient.elem_count()));
        let (e, gradient) = (&self.embedding, gradient.contiguous()?);
        let d = e.table.dims()[1];
        with_slice(&gradient, |g| {
            let scatter = |param: &Param, scale: f32, target_row: &(dyn Fn(usize) -> usize + Sync)| {
                param.with_gradient(|target| scatter_rows(g, target, d, scale, e.dropout, target_row))
            };
            scatter(&e.table, e.scale, &|row| self.ids[row] as usize)?;
            match &e.positions {
                Positions::Learned(param) => scatter(param, 1.0, &|row| row % self.length),
                _ => Ok(()),
            }
        })?;
        Ok(None)
    }
}
