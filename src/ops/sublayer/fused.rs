//! The fused form, for the processor.
//!
//! Blocks of whole sentences go through the entire sub-layer on one thread, so that activations stay in its cache; the
//! gradients of the weights follow in products over all rows. The division into blocks depends only on the shape, never
//! on the number of threads, and so results do not depend on it either.

use std::ops::Range;
use std::sync::Mutex;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::{BackwardBlock, ForwardBlock, Inner, NormPlacement, Residual, WholeBatch, with_bias};
use crate::ops::memory::{NewRows, Scratch, SharedRows, storage_slice, with_slice};
use crate::ops::norm::{self, Addend};
use crate::ops::params::Param;
use crate::ops::profile::{self, Work};
use crate::ops::projection::Pass;

/// The intended rows (tokens) of a block: 64 to 256 were equally fast within noise, 512 was slower.
const BLOCK_ROWS: usize = 128;

/// What forward keeps for backward.
struct Kept {
    saved: [Scratch; 2],
    memory_saved: Scratch,
    h: Scratch,
}

/// One sub-layer with its wrapper as one operation.
pub(super) struct Fused<I> {
    inner: I,
    residual: Residual,
    training: bool,
    kept: Mutex<Option<Kept>>,
}

/// The blocks of a batch of `rows` rows in sentences of `length` rows: ranges of sentences.
fn blocks(rows: usize, length: usize) -> Vec<Range<usize>> {
    let sentences = rows / length.max(1);
    let count = (rows / BLOCK_ROWS).max(4).min(sentences).max(1);
    (0..count).map(|i| i * sentences / count..(i + 1) * sentences / count).collect()
}

fn scaled(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start * by..range.end * by
}

impl<I: Inner> Fused<I> {
    pub(super) fn new(inner: I, residual: Residual, training: bool) -> Self {
        Self { inner, residual, training, kept: Mutex::new(None) }
    }

    fn forward(&self, x: &[f32], memory: &[f32], d: usize) -> Result<Vec<f32>> {
        let _timer = profile::operation(self.inner.name(), "forward", Work::NONE);
        let (rows, (length, memory_length)) = (x.len() / d, self.inner.lengths());
        let memory_rows = memory.len() / d;
        let widths = self.inner.widths();
        let prepared = self.inner.prepare(Pass::first(self.training))?;
        let mut kept = Kept {
            saved: widths.saved.map(|w| Scratch::new(rows * w)),
            memory_saved: Scratch::new(memory_rows * widths.memory_saved),
            h: Scratch::new(rows * d),
        };
        let out = NewRows::new(rows, d);
        {
            let [a, b] = &mut kept.saved;
            let saved = [SharedRows::new(a, widths.saved[0]), SharedRows::new(b, widths.saved[1])];
            let memory_saved = SharedRows::new(&mut kept.memory_saved, widths.memory_saved);
            let h = SharedRows::new(&mut kept.h, d);
            let bias = self.inner.output_bias();
            blocks(rows, length).into_par_iter().try_for_each(|sentences| {
                let range = scaled(&sentences, length);
                let memory_range = if memory.is_empty() { 0..0 } else { scaled(&sentences, memory_length) };
                // SAFETY: blocks are disjoint ranges of sentences, so of rows and of memory rows.
                let (h, y, saved, memory_saved) = unsafe {
                    let saved = saved.map(|s| s.rows(range.clone()));
                    (h.rows(range.clone()), out.rows(range.clone()), saved, memory_saved.rows(memory_range.clone()))
                };
                let x = &x[scaled(&range, d)];
                let memory = &memory[scaled(&memory_range, d)];
                self.forward_block(&prepared, sentences, x, memory, saved, memory_saved, bias, d, (h, y))
            })?;
        }
        if self.training {
            self.keep(Some(kept));
            self.inner.first_parameter().begins_sublayer();
        }
        Ok(out.into_vec())
    }

    #[allow(clippy::too_many_arguments)]
    fn forward_block(
        &self,
        prepared: &I::Prepared,
        sentences: Range<usize>,
        x: &[f32],
        memory: &[f32],
        saved: [&mut [f32]; 2],
        memory_saved: &mut [f32],
        bias: Option<&Param>,
        d: usize,
        (h, y): (&mut [f32], &mut [f32]),
    ) -> Result<()> {
        let residual = &self.residual;
        let first_row = sentences.start * self.inner.lengths().0;
        residual.norm.with_weights(|weights| {
            let pre = residual.placement == NormPlacement::Pre;
            let mut normal = Scratch::new(if pre { x.len() } else { 0 });
            if pre {
                let _timer = profile::kernel("add-norm", "forward", Work::floats(2 * x.len()));
                norm::norm_rows(x, None, weights, d, &mut normal);
            }
            let input = if pre { &normal } else { x };
            let block = ForwardBlock { sentences, input, memory, saved, memory_saved };
            self.inner.forward(prepared, block, h)?;
            with_bias(bias, |bias| {
                let addend = Addend { h, bias, dropout: residual.dropout, first_row };
                let _timer = profile::kernel("add-norm", "forward", Work::floats(3 * x.len()));
                match residual.placement {
                    NormPlacement::Post => norm::norm_rows(x, Some(addend), weights, d, y),
                    NormPlacement::Pre => norm::add_rows(x, addend, d, y),
                }
                Ok(())
            })
        })
    }

    /// Returns the gradients of x and of the memory.
    fn backward(&self, x: &[f32], memory: &[f32], dy: &[f32], d: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let _timer = profile::operation(self.inner.name(), "backward", Work::NONE);
        let Some(kept) = self.keep(None) else { bail!("{}: backward without forward", self.inner.name()) };
        let (rows, (length, memory_length)) = (x.len() / d, self.inner.lengths());
        let memory_rows = memory.len() / d;
        let widths = self.inner.widths();
        let (dx, dmemory) = (NewRows::new(rows, d), NewRows::new(memory_rows, d));
        let (mut dh, mut dinner) = (Scratch::new(rows * d), Scratch::new(rows * widths.inner));
        let mut dmemory_inner = Scratch::new(memory_rows * widths.memory_saved);
        let pre = self.residual.placement == NormPlacement::Pre;
        let mut normal = if pre { Scratch::new(rows * d) } else { Scratch::default() };
        let prepared = self.inner.prepare(Pass::Backward)?;
        let blocks = blocks(rows, length);
        // Per block: sums for the inner biases, γ, β and the output bias.
        let sums_width = widths.sums + 3 * d;
        let mut sums = Scratch::zeroed(blocks.len() * sums_width);
        {
            let normal = SharedRows::new(&mut normal, d);
            let dh = SharedRows::new(&mut dh, d);
            let dinner = SharedRows::new(&mut dinner, widths.inner);
            let dmemory_inner = SharedRows::new(&mut dmemory_inner, widths.memory_saved);
            let sums = SharedRows::new(&mut sums, sums_width);
            blocks.par_iter().enumerate().try_for_each(|(index, sentences)| {
                let range = scaled(sentences, length);
                let memory_range = if memory.is_empty() { 0..0 } else { scaled(sentences, memory_length) };
                // SAFETY: blocks are disjoint, and each has its own row of sums.
                let (mut parts, normal) = unsafe {
                    let parts = BlockGradients {
                        dx: dx.rows(range.clone()),
                        dmemory: dmemory.rows(memory_range.clone()),
                        dh: dh.rows(range.clone()),
                        dinner: dinner.rows(range.clone()),
                        dmemory_inner: dmemory_inner.rows(memory_range.clone()),
                        sums: sums.rows(index..index + 1),
                    };
                    (parts, if pre { normal.rows(range.clone()) } else { normal.rows(0..0) })
                };
                let elements = scaled(&range, d);
                let states = BlockStates {
                    sentences: sentences.clone(),
                    x: &x[elements.clone()],
                    h: &kept.h[elements.clone()],
                    dy: &dy[elements],
                    normal,
                    saved: [0, 1].map(|i| &kept.saved[i][scaled(&range, widths.saved[i])]),
                    memory_saved: &kept.memory_saved[scaled(&memory_range, widths.memory_saved)],
                };
                self.backward_block(&prepared, states, &mut parts, d)
            })?;
        }
        let inner_sums = self.add_wrapper_gradients(&sums, d)?;
        self.inner.weight_gradients(&WholeBatch {
            rows,
            memory_rows,
            input: if pre { &normal } else { x },
            memory,
            saved: [&kept.saved[0], &kept.saved[1]],
            dh: &dh,
            dinner: &dinner,
            dmemory_inner: &dmemory_inner,
            sums: &inner_sums,
        })?;
        self.inner.first_parameter().completes_sublayer()?;
        Ok((dx.into_vec(), dmemory.into_vec()))
    }

    /// Adds the gradients of γ, β and the output bias, from the sums of all blocks; returns those for the inner biases.
    fn add_wrapper_gradients(&self, sums: &[f32], d: usize) -> Result<Vec<f32>> {
        let inner_width = self.inner.widths().sums;
        let mut total = vec![0f32; inner_width + 3 * d];
        norm::add_column_sums(sums, inner_width + 3 * d, &mut total);
        self.residual.norm.add_gradients(&total[inner_width..][..2 * d])?;
        if let Some(bias) = self.inner.output_bias() {
            bias.add_gradient_slice(&total[inner_width + 2 * d..])?;
        }
        total.truncate(inner_width);
        Ok(total)
    }

    fn backward_block(
        &self,
        prepared: &I::Prepared,
        states: BlockStates,
        parts: &mut BlockGradients,
        d: usize,
    ) -> Result<()> {
        let BlockStates { sentences, x, h, dy, normal, saved, memory_saved } = states;
        let residual = &self.residual;
        let first_row = sentences.start * self.inner.lengths().0;
        let mut scratch = Scratch::new(2 * d);
        let widths = self.inner.widths();
        let (inner_sums, rest) = parts.sums.split_at_mut(widths.sums);
        let (norm_sums, bias_sums) = rest.split_at_mut(2 * d);
        residual.norm.with_weights(|weights| {
            let timer = profile::kernel("add-norm", "backward", Work::floats(5 * x.len()));
            match residual.placement {
                NormPlacement::Post => with_bias(self.inner.output_bias(), |bias| {
                    let addend = Addend { h, bias, dropout: residual.dropout, first_row };
                    norm::norm_rows_backward(x, Some(addend), weights, d, dy, parts.dx, false, &mut scratch, norm_sums);
                    Ok(())
                })?,
                NormPlacement::Pre => {
                    parts.dx.copy_from_slice(dy);
                    norm::norm_rows(x, None, weights, d, normal);
                }
            }
            norm::dropout_rows_backward(parts.dx, residual.dropout, first_row, d, parts.dh, bias_sums);
            drop(timer);
            let pre = residual.placement == NormPlacement::Pre;
            let mut dnormal = Scratch::zeroed(if pre { x.len() } else { 0 });
            let block = BackwardBlock {
                sentences,
                dh: parts.dh,
                saved,
                memory_saved,
                dinner: parts.dinner,
                dmemory_inner: parts.dmemory_inner,
                dinput: if pre { &mut dnormal } else { parts.dx },
                dmemory: parts.dmemory,
                sums: inner_sums,
            };
            self.inner.backward(prepared, block)?;
            if pre {
                norm::norm_rows_backward(x, None, weights, d, &dnormal, parts.dx, true, &mut scratch, norm_sums);
            }
            Ok(())
        })
    }

    /// Stores what forward kept, or takes it out.
    fn keep(&self, put: Option<Kept>) -> Option<Kept> {
        let mut guard = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::replace(&mut *guard, put)
    }
}

/// What one block's backward pass begins with: what forward saw and kept, by rows, and the gradient of the output.
struct BlockStates<'a> {
    sentences: Range<usize>,
    /// The sub-layer's input.
    x: &'a [f32],
    /// Its output before bias, dropout and residual.
    h: &'a [f32],
    /// Gradient of the wrapper's output.
    dy: &'a [f32],
    /// With pre-norm, where the normalised input goes; else empty.
    normal: &'a mut [f32],
    saved: [&'a [f32]; 2],
    memory_saved: &'a [f32],
}

/// Where one block's gradients go.
struct BlockGradients<'a> {
    dx: &'a mut [f32],
    dmemory: &'a mut [f32],
    dh: &'a mut [f32],
    dinner: &'a mut [f32],
    dmemory_inner: &'a mut [f32],
    sums: &'a mut [f32],
}

impl<I: Inner> CustomOp1 for Fused<I> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let d = layout.dims().last().copied().unwrap_or(1);
        let out = self.forward(storage_slice(x, layout)?, &[], d)?;
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let d = x.dim(candle_core::D::Minus1)?;
        let gradient = gradient.contiguous()?;
        let (dx, _) = with_slice(x, |xs| with_slice(&gradient, |g| self.backward(xs, &[], g, d)))?;
        Ok(Some(Tensor::from_vec(dx, x.shape(), x.device())?))
    }
}

impl<I: Inner> CustomOp2 for Fused<I> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn cpu_fwd(
        &self,
        memory: &CpuStorage,
        memory_layout: &Layout,
        x: &CpuStorage,
        layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let d = layout.dims().last().copied().unwrap_or(1);
        let out = self.forward(storage_slice(x, layout)?, storage_slice(memory, memory_layout)?, d)?;
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(
        &self,
        memory: &Tensor,
        x: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let d = x.dim(candle_core::D::Minus1)?;
        let gradient = gradient.contiguous()?;
        let (dx, dmemory) =
            with_slice(x, |xs| with_slice(memory, |ms| with_slice(&gradient, |g| self.backward(xs, ms, g, d))))?;
        let dx = Tensor::from_vec(dx, x.shape(), x.device())?;
        let dmemory = Tensor::from_vec(dmemory, memory.shape(), memory.device())?;
        Ok((Some(dmemory), Some(dx)))
    }
}
