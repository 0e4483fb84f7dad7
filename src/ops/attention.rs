//! The attention sub-layer: projections, softmax(QKᵀ/√K)·V under padding and causal masks, output projection.
//!
//! Self-attention uses one packed matrix for q, k and v; cross-attention one for q and one for k and v. The core works
//! on one sentence and head at a time; backward computes its probabilities again, so forward need not keep them. With
//! rotary positions, the queries and keys of self-attention are turned between projection and core; one call turns
//! both, since q and k are neighbours in the packed rows. With relative positions, the core adds to the scores.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Result, Tensor};

use super::dropout::Dropout;
use super::mask::Mask;
use super::matmul::{Matrix, Packed, fixed};
use super::memory::Scratch;
use super::norm::add_column_sums;
use super::params::Param;
use super::profile::{self, Work};
use super::projection::{Pass, Projection};
use super::relative::{Relative, add_by_distance, sum_by_distance};
use super::rotary::Rotary;
use super::simd;
use super::softmax::{drop_rows, masked_softmax, softmax_rows, softmax_rows_backward};
use super::sublayer::{BackwardBlock, ForwardBlock, Inner, WholeBatch, Widths};

/// Sizes and masks of one attention.
#[derive(Clone, Debug)]
pub struct Core {
    /// Sentences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Query rows per sentence.
    pub queries: usize,
    /// Key rows per sentence.
    pub keys: usize,
    /// Width of a head's queries and keys.
    pub d_k: usize,
    /// Width of a head's values.
    pub d_v: usize,
    /// Which keys each query sees.
    pub mask: Mask,
    /// Turns queries and keys by their positions (self-attention).
    pub rotary: Option<Rotary>,
    /// What is added to the scores by distance (self-attention).
    pub relative: Option<Relative>,
    /// Dropout on the attention weights.
    pub dropout: Dropout,
    /// Where to write the attention weights, if wanted.
    pub record: Option<Record>,
}

/// The attention weights of one attention, [B, H, T, S], before dropout; filled by its forward pass.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Vec<f32>>>);

impl Record {
    /// Calls `f` with the buffer, `len` long.
    fn with<R>(&self, len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
        let mut weights = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        weights.resize(len, 0.0);
        f(&mut weights)
    }

    /// The written values.
    pub fn take(&self) -> Vec<f32> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// The attention sub-layer.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Sizes and masks.
    pub core: Core,
    /// q, k and v packed (self-attention), or q alone (cross-attention).
    pub query: Projection,
    /// k and v packed, for cross-attention.
    pub key_value: Option<Projection>,
    /// Output projection [D, H·d_v].
    pub output: Projection,
}

/// q, k and v of one sentence and head inside packed rows: slices that begin there, and the row strides; and what
/// is added to the scores by distance, [2·T − 1], or nothing.
#[derive(Clone, Copy)]
struct Heads<'a> {
    q: &'a [f32],
    ldq: usize,
    k: &'a [f32],
    v: &'a [f32],
    ldkv: usize,
    by_distance: &'a [f32],
}

/// Scratch of one block's pass through heads.
struct Buffers {
    transposed: Scratch,
    weights: Scratch,
    dropped: Scratch,
    gradient: Scratch,
}

impl Core {
    /// Keys rounded up to whole vectors.
    fn padded_keys(&self) -> usize {
        self.keys.div_ceil(16) * 16
    }

    fn buffers(&self, backward: bool) -> Buffers {
        let (keys, square) = (self.padded_keys(), self.queries * self.padded_keys());
        let extra = if backward { square } else { 0 };
        Buffers {
            transposed: Scratch::new(self.d_k.max(self.d_v) * keys),
            weights: Scratch::new(square),
            dropped: Scratch::new(extra),
            gradient: Scratch::new(extra),
        }
    }

    /// The work of the products of `sentences` sentences: `by_key` over the width of a key, `by_value` over that of a
    /// value. Forward has one of each. Backward has three by key (the scores again, the gradients of queries and
    /// keys) and two by value (the gradients of weights and values).
    fn flops(&self, sentences: usize, [by_key, by_value]: [usize; 2]) -> Work {
        let pairs = sentences * self.heads * self.queries * self.keys;
        Work { flops: 2 * (pairs * (by_key * self.d_k + by_value * self.d_v)) as u64, ..Work::NONE }
    }

    /// First element of the dropout mask of one sentence and head.
    fn mask_base(&self, sentence: usize, head: usize) -> usize {
        (sentence * self.heads + head) * self.queries * self.keys
    }

    /// The factor of scores, 1/√K.
    fn scale(&self) -> f32 {
        1.0 / (self.d_k as f32).sqrt()
    }

    /// The number of sums that the gradient of relative positions needs: 2·T − 1 for each head.
    fn distances(&self) -> usize {
        if self.relative.is_some() { self.heads * (2 * self.queries - 1) } else { 0 }
    }

    /// softmax(q·kᵀ/√K) of one head into `buffers.weights`, [T, padded keys]; masked entries are 0.
    fn weights(&self, sentence: usize, heads: &Heads, buffers: &mut Buffers) {
        let keys = self.padded_keys();
        let (t, d_k) = (self.queries, self.d_k);
        simd::transpose_padded(heads.k, heads.ldkv, self.keys, d_k, &mut buffers.transposed, keys);
        let q = Matrix::strided(heads.q, t, d_k, heads.ldq, 1);
        fixed(t, keys, d_k, q, &buffers.transposed, keys, &mut buffers.weights, keys);
        let (mask, scores) = (self.mask.sentence(sentence), &mut buffers.weights[..t * keys]);
        if !heads.by_distance.is_empty() {
            add_by_distance(scores, keys, self.keys, heads.by_distance);
        }
        softmax_rows(scores, keys, mask, self.scale());
    }

    /// Records the weights of one head.
    fn keep(&self, record: &Record, sentence: usize, head: usize, weights: &[f32]) {
        let (t, s, padded) = (self.queries, self.keys, self.padded_keys());
        record.with(self.batch * self.heads * t * s, |all| {
            let all = all[self.mask_base(sentence, head)..].chunks_exact_mut(s);
            for (to, from) in all.zip(weights.chunks_exact(padded)).take(t) {
                to.copy_from_slice(&from[..s]);
            }
        });
    }

    /// One head forward: out [T, d_v], rows `ldo` apart.
    fn forward(&self, sentence: usize, head: usize, heads: &Heads, out: &mut [f32], ldo: usize, buffers: &mut Buffers) {
        let keys = self.padded_keys();
        self.weights(sentence, heads, buffers);
        if let Some(record) = &self.record {
            self.keep(record, sentence, head, &buffers.weights);
        }
        if self.dropout.is_on() {
            drop_rows(&mut buffers.weights, keys, self.keys, self.dropout, self.mask_base(sentence, head));
        }
        let weights = Matrix::strided(&buffers.weights, self.queries, self.keys, keys, 1);
        fixed(self.queries, self.d_v, self.keys, weights, heads.v, heads.ldkv, out, ldo);
    }

    /// One head backward. `d_out` [T, d_v] rows `ldo` apart; writes dq, dk, dv with the strides of q and k/v.
    fn backward(
        &self,
        (sentence, head): (usize, usize),
        heads: &Heads,
        (d_out, ldo): (&[f32], usize),
        grads: HeadGradients,
        buffers: &mut Buffers,
    ) {
        let (keys, t, s) = (self.padded_keys(), self.queries, self.keys);
        self.weights(sentence, heads, buffers);
        simd::transpose_padded(heads.v, heads.ldkv, s, self.d_v, &mut buffers.transposed, keys);
        let d_out_matrix = Matrix::strided(d_out, t, self.d_v, ldo, 1);
        fixed(t, keys, self.d_v, d_out_matrix, &buffers.transposed, keys, &mut buffers.gradient, keys);
        let base = self.mask_base(sentence, head);
        softmax_rows_backward(
            &buffers.weights,
            &mut buffers.dropped,
            &mut buffers.gradient,
            keys,
            s,
            self.dropout,
            base,
            self.scale(),
        );
        if !grads.by_distance.is_empty() {
            sum_by_distance(&buffers.gradient[..t * keys], keys, s, grads.by_distance);
        }
        let dropped = Matrix::strided(&buffers.dropped, t, s, keys, 1).t();
        fixed(s, self.d_v, t, dropped, d_out, ldo, grads.dv, self.d_v);
        let gradient = Matrix::strided(&buffers.gradient, t, s, keys, 1);
        fixed(t, self.d_k, s, gradient, heads.k, heads.ldkv, grads.dq, self.d_k);
        fixed(s, self.d_k, t, gradient.t(), heads.q, heads.ldq, grads.dk, self.d_k);
    }

    /// The core in plain Candle operations. q: [B·T, H·K], k: [B·S, H·K], v: [B·S, H·d_v] → [B·T, H·d_v]. Products are
    /// in the type of q, k and v, the softmax in f32 at least.
    fn reference(&self, q: &Tensor, k: &Tensor, v: &Tensor, training: bool) -> Result<Tensor> {
        let (b, h, t, s) = (self.batch, self.heads, self.queries, self.keys);
        let split = |x: &Tensor, l: usize, w: usize| x.reshape((b, l, h, w))?.transpose(1, 2)?.contiguous();
        let (q, k, v) = (split(q, t, self.d_k)?, split(k, s, self.d_k)?, split(v, s, self.d_v)?);
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * (1.0 / (self.d_k as f64).sqrt()))?;
        let scores = if scores.dtype() == DType::F64 { scores } else { scores.to_dtype(DType::F32)? };
        let scores = match &self.relative {
            Some(relative) => {
                scores.broadcast_add(&relative.reference(0, t, s, training)?.to_dtype(scores.dtype())?)?
            }
            None => scores,
        };
        let weights = masked_softmax(&scores, &self.mask.table(t, s, scores.dtype(), scores.device())?)?;
        if let Some(record) = &self.record {
            let values = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            record.with(values.len(), |all| all.copy_from_slice(&values));
        }
        let weights = self.dropout.apply(&weights)?.to_dtype(v.dtype())?;
        weights.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((b * t, h * self.d_v))
    }
}

/// Where one head's gradients go: contiguous [T, K], [S, K] and [S, d_v]; and [2·T − 1] with relative positions, to be
/// added to.
struct HeadGradients<'a> {
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    by_distance: &'a mut [f32],
}

/// Packed weights of the three projections.
pub struct Prepared {
    query: Packed,
    key_value: Option<Packed>,
    output: Packed,
    /// What is added to the scores of each head by distance, [H, 2·T − 1]; empty without relative positions.
    by_distance: Vec<f32>,
}

impl Attention {
    fn query_width(&self) -> usize {
        self.query.out()
    }

    /// Width of the head outputs, H·d_v.
    fn value_width(&self) -> usize {
        self.core.heads * self.core.d_v
    }

    /// Column offsets of k and v in the packed rows that hold them.
    fn key_value_offsets(&self) -> (usize, usize) {
        let keys = self.core.heads * self.core.d_k;
        if self.key_value.is_some() { (0, keys) } else { (keys, 2 * keys) }
    }

    /// Slices of one head. `q_rows` and `kv_rows` begin at the sentence.
    fn head<'a>(
        &self,
        head: usize,
        q_rows: &'a [f32],
        (kv_rows, ldkv): (&'a [f32], usize),
        by_distance: &'a [f32],
    ) -> Heads<'a> {
        let (k, v) = self.key_value_offsets();
        let core = &self.core;
        let distances = by_distance.len() / core.heads;
        Heads {
            q: &q_rows[head * core.d_k..],
            ldq: self.query_width(),
            k: &kv_rows[k + head * core.d_k..],
            v: &kv_rows[v + head * core.d_v..],
            ldkv,
            by_distance: &by_distance[head * distances..][..distances],
        }
    }

    /// Packed k/v rows of one sentence of a block, and their stride.
    fn key_value_rows<'a>(&self, local: usize, q: &'a [f32], memory_saved: &'a [f32]) -> (&'a [f32], usize) {
        match &self.key_value {
            Some(kv) => (&memory_saved[local * self.core.keys * kv.out()..], kv.out()),
            None => (&q[local * self.core.queries * self.query_width()..], self.query_width()),
        }
    }

    fn heads_forward(
        &self,
        prepared: &Prepared,
        sentences: &Range<usize>,
        q: &[f32],
        memory_saved: &[f32],
        out: &mut [f32],
    ) {
        let (core, width) = (&self.core, self.value_width());
        let _timer = profile::kernel("attention core", "forward", core.flops(sentences.len(), [1, 1]));
        let mut buffers = core.buffers(false);
        for (local, sentence) in sentences.clone().enumerate() {
            let q_rows = &q[local * core.queries * self.query_width()..];
            let rows = self.key_value_rows(local, q, memory_saved);
            for head in 0..core.heads {
                let heads = self.head(head, q_rows, rows, &prepared.by_distance);
                let out = &mut out[local * core.queries * width + head * core.d_v..];
                core.forward(sentence, head, &heads, out, width, &mut buffers);
            }
        }
    }

    /// `by_distance`: sums of the gradient with relative positions, [H, 2·T − 1].
    fn heads_backward(&self, prepared: &Prepared, block: &mut BackwardBlock, d_out: &[f32], by_distance: &mut [f32]) {
        let (core, width, qw) = (&self.core, self.value_width(), self.query_width());
        let (k_at, v_at) = self.key_value_offsets();
        let _timer = profile::kernel("attention core", "backward", core.flops(block.sentences.len(), [3, 2]));
        let mut parts = Scratch::new(core.queries * core.d_k + core.keys * (core.d_k + core.d_v));
        let mut buffers = core.buffers(true);
        let q = block.saved[0];
        for (local, sentence) in block.sentences.clone().enumerate() {
            let q_start = local * core.queries * qw;
            let key_value_rows = self.key_value_rows(local, q, block.memory_saved);
            let (rows, distances) = (core.queries * qw, core.distances() / core.heads);
            for head in 0..core.heads {
                let heads = self.head(head, &q[q_start..], key_value_rows, &prepared.by_distance);
                // dq, dk and dv are interleaved columns of shared rows: compute them separately, then copy them.
                let (nq, nk, nv) = (core.queries * core.d_k, core.keys * core.d_k, core.keys * core.d_v);
                let (dq, rest) = parts.split_at_mut(nq);
                let (dk, rest) = rest.split_at_mut(nk);
                let dv = &mut rest[..nv];
                let d_out = &d_out[local * core.queries * width + head * core.d_v..];
                let by_distance = &mut by_distance[head * distances..][..distances];
                let gradients = HeadGradients { dq, dk, dv, by_distance };
                core.backward((sentence, head), &heads, (d_out, width), gradients, &mut buffers);
                let sentence_rows = &mut block.dinner[q_start..q_start + rows];
                put_columns(dq, core.d_k, sentence_rows, qw, head * core.d_k);
                let (target, ld) = match &self.key_value {
                    Some(kv) => {
                        (&mut block.dmemory_inner[local * core.keys * kv.out()..][..core.keys * kv.out()], kv.out())
                    }
                    None => (sentence_rows, qw),
                };
                put_columns(dk, core.d_k, target, ld, k_at + head * core.d_k);
                put_columns(dv, core.d_v, target, ld, v_at + head * core.d_v);
            }
        }
    }
}

/// Writes a [rows, width] matrix into columns `at..at + width` of wider rows.
fn put_columns(from: &[f32], width: usize, to: &mut [f32], stride: usize, at: usize) {
    for (from, to) in from.chunks_exact(width).zip(to.chunks_exact_mut(stride)) {
        to[at..at + width].copy_from_slice(from);
    }
}

impl Inner for Attention {
    type Prepared = Prepared;

    fn name(&self) -> &'static str {
        if self.key_value.is_some() { "cross-attention" } else { "self-attention" }
    }

    fn lengths(&self) -> (usize, usize) {
        (self.core.queries, self.core.keys)
    }

    fn widths(&self) -> Widths {
        let memory = self.key_value.as_ref().map_or(0, Projection::out);
        Widths {
            saved: [self.query_width(), self.value_width()],
            memory_saved: memory,
            inner: self.query_width(),
            sums: self.query_width() + memory + self.core.distances(),
        }
    }

    fn first_parameter(&self) -> &Param {
        &self.query.weight
    }

    fn output_bias(&self) -> Option<&Param> {
        self.output.bias.as_ref()
    }

    fn prepare(&self, pass: Pass) -> Result<Prepared> {
        let core = &self.core;
        let by_distance = core.relative.as_ref().map(|relative| relative.by_distance(core.queries, core.scale()));
        Ok(Prepared {
            by_distance: by_distance.transpose()?.unwrap_or_default(),
            query: self.query.packed(pass)?,
            key_value: self.key_value.as_ref().map(|kv| kv.packed(pass)).transpose()?,
            output: self.output.packed(pass)?,
        })
    }

    fn forward(&self, prepared: &Prepared, block: ForwardBlock, h: &mut [f32]) -> Result<()> {
        let core = &self.core;
        let [q, out] = block.saved;
        prepared.query.product(block.input, q, false);
        self.query.add_bias(q)?;
        if let Some(rotary) = &core.rotary {
            rotary.turn(q, self.query_width(), 2 * core.heads, 0, core.queries);
        }
        if let (Some(kv), Some(weight)) = (&self.key_value, &prepared.key_value) {
            weight.product(block.memory, block.memory_saved, false);
            kv.add_bias(block.memory_saved)?;
        }
        self.heads_forward(prepared, &block.sentences, q, block.memory_saved, out);
        prepared.output.product(out, h, false);
        Ok(())
    }

    fn backward(&self, prepared: &Prepared, mut block: BackwardBlock) -> Result<()> {
        let core = &self.core;
        let qw = self.query_width();
        let mut d_out = Scratch::new(block.sentences.len() * core.queries * self.value_width());
        prepared.output.product(block.dh, &mut d_out, false);
        let sums = std::mem::take(&mut block.sums);
        let (sums, by_distance) = sums.split_at_mut(sums.len() - core.distances());
        self.heads_backward(prepared, &mut block, &d_out, by_distance);
        if let Some(rotary) = &core.rotary {
            rotary.turn_back(block.dinner, qw, 2 * core.heads, core.queries);
        }
        let (query_sums, memory_sums) = sums.split_at_mut(qw);
        add_column_sums(block.dinner, qw, query_sums);
        prepared.query.product(block.dinner, block.dinput, true);
        if let (Some(kv), Some(weight)) = (&self.key_value, &prepared.key_value) {
            add_column_sums(block.dmemory_inner, kv.out(), memory_sums);
            weight.product(block.dmemory_inner, block.dmemory, false);
        }
        Ok(())
    }

    fn weight_gradients(&self, batch: &WholeBatch) -> Result<()> {
        let core = &self.core;
        let (sums, by_distance) = batch.sums.split_at(batch.sums.len() - core.distances());
        let (query_sums, memory_sums) = sums.split_at(self.query_width());
        if let Some(relative) = &core.relative {
            relative.add_gradient(by_distance, core.queries, core.scale())?;
        }
        self.output.add_weight_gradient(batch.rows, batch.dh, batch.saved[1])?;
        self.query.add_gradients(batch.rows, batch.dinner, batch.input, query_sums)?;
        match &self.key_value {
            Some(kv) => kv.add_gradients(batch.memory_rows, batch.dmemory_inner, batch.memory, memory_sums),
            None => Ok(()),
        }
    }

    fn reference(&self, x: &Tensor, memory: Option<&Tensor>, training: bool) -> Result<Tensor> {
        let (keys, values) = (self.core.heads * self.core.d_k, self.value_width());
        let queries = self.query.reference(x, training)?;
        let (q, k, v) = match (&self.key_value, memory) {
            (Some(kv), Some(memory)) => {
                let kv = kv.reference(memory, training)?;
                (queries, kv.narrow(1, 0, keys)?, kv.narrow(1, keys, values)?)
            }
            _ => (queries.narrow(1, 0, keys)?, queries.narrow(1, keys, keys)?, queries.narrow(1, 2 * keys, values)?),
        };
        let (q, k) = match &self.core.rotary {
            Some(rotary) => (rotary.reference(&q, 0, self.core.queries)?, rotary.reference(&k, 0, self.core.queries)?),
            None => (q, k),
        };
        let out = self.core.reference(&q, &k, &v, training)?;
        self.output.reference(&out, training)
    }
}
