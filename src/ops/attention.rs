//! The attention sub-layer: projections, softmax(QKᵀ/√K)·V under padding and causal masks, output projection.
//!
//! Self-attention uses one packed matrix for q, k and v; cross-attention one for q and one for k and v. The core works on
//! one sentence and head at a time; its probabilities are computed anew in backward instead of being kept. With rotary
//! positions the queries and keys of self-attention are turned between projection and core: q and k are neighbours in the
//! packed rows, so that one call turns both.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Result, Tensor};

use super::dropout::Dropout;
use super::mask::Mask;
use super::matmul::{Matrix, fixed, gemm, gemm_parallel};
use super::memory::{Scratch, with_slice};
use super::norm::add_column_sums;
use super::params::Param;
use super::projection::{Projection, product, transposed_weight};
use super::rotary::Rotary;
use super::softmax::{drop_rows, masked_softmax, softmax_rows, softmax_rows_backward};
use super::sublayer::{BackwardBlock, ForwardBlock, Inner, WholeBatch, Widths};

/// Sizes and masks of one attention.
#[derive(Clone, Debug)]
pub struct Core {
    /// Sentences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Rows of queries a sentence.
    pub queries: usize,
    /// Rows of keys a sentence.
    pub keys: usize,
    /// Width of a head's queries and keys.
    pub d_k: usize,
    /// Width of a head's values.
    pub d_v: usize,
    /// Which keys each query sees.
    pub mask: Mask,
    /// Turns queries and keys by their positions (self-attention).
    pub rotary: Option<Rotary>,
    /// Dropout on the attention weights.
    pub dropout: Dropout,
    /// Where the attention weights are written, if somebody asked for them.
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

    /// What was written.
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

/// q, k and v of one sentence and head inside packed rows: slice offset and row stride of each.
#[derive(Clone, Copy)]
struct Heads<'a> {
    q: &'a [f32],
    ldq: usize,
    k: &'a [f32],
    v: &'a [f32],
    ldkv: usize,
}

/// Scratch of one block's backward pass through heads.
struct BackwardWork {
    scores: Work,
    parts: Scratch,
}

/// Scratch of one block's pass through heads.
struct Work {
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

    fn work(&self, backward: bool) -> Work {
        let (keys, square) = (self.padded_keys(), self.queries * self.padded_keys());
        let extra = if backward { square } else { 0 };
        Work {
            transposed: Scratch::new(self.d_k.max(self.d_v) * keys),
            weights: Scratch::new(square),
            dropped: Scratch::new(extra),
            gradient: Scratch::new(extra),
        }
    }

    /// First element of the dropout mask of one sentence and head.
    fn mask_base(&self, sentence: usize, head: usize) -> usize {
        (sentence * self.heads + head) * self.queries * self.keys
    }

    /// softmax(q·kᵀ/√K) of one head into `work.weights`, [T, padded keys]; masked entries are 0.
    fn weights(&self, sentence: usize, heads: &Heads, work: &mut Work) {
        let keys = self.padded_keys();
        let (t, d_k) = (self.queries, self.d_k);
        transpose_head(heads.k, heads.ldkv, self.keys, d_k, keys, &mut work.transposed);
        let q = Matrix::strided(heads.q, t, d_k, heads.ldq, 1);
        fixed(t, keys, d_k, q, &work.transposed, keys, &mut work.weights, keys, false);
        let mask = self.mask.sentence(sentence);
        softmax_rows(&mut work.weights[..t * keys], keys, mask, 1.0 / (d_k as f32).sqrt());
    }

    /// Keeps the weights of one head.
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
    fn forward(&self, sentence: usize, head: usize, heads: &Heads, out: &mut [f32], ldo: usize, work: &mut Work) {
        let keys = self.padded_keys();
        self.weights(sentence, heads, work);
        if let Some(record) = &self.record {
            self.keep(record, sentence, head, &work.weights);
        }
        if self.dropout.is_on() {
            drop_rows(&mut work.weights, keys, self.keys, self.dropout, self.mask_base(sentence, head));
        }
        let weights = Matrix::strided(&work.weights, self.queries, self.keys, keys, 1);
        fixed(self.queries, self.d_v, self.keys, weights, heads.v, heads.ldkv, out, ldo, false);
    }

    /// One head backward. `d_out` [T, d_v] rows `ldo` apart; writes dq, dk, dv with the strides of q and k/v.
    fn backward(
        &self,
        place: (usize, usize),
        heads: &Heads,
        (d_out, ldo): (&[f32], usize),
        grads: HeadGradients,
        work: &mut Work,
    ) {
        let (keys, t, s) = (self.padded_keys(), self.queries, self.keys);
        self.weights(place.0, heads, work);
        transpose_head(heads.v, heads.ldkv, s, self.d_v, keys, &mut work.transposed);
        let d_out_matrix = Matrix::strided(d_out, t, self.d_v, ldo, 1);
        fixed(t, keys, self.d_v, d_out_matrix, &work.transposed, keys, &mut work.gradient, keys, false);
        let scale = 1.0 / (self.d_k as f32).sqrt();
        let base = self.mask_base(place.0, place.1);
        softmax_rows_backward(&work.weights, &mut work.dropped, &mut work.gradient, keys, s, self.dropout, base, scale);
        let dropped = Matrix::strided(&work.dropped, t, s, keys, 1).t();
        fixed(s, self.d_v, t, dropped, d_out, ldo, grads.dv, self.d_v, false);
        let gradient = Matrix::strided(&work.gradient, t, s, keys, 1);
        fixed(t, self.d_k, s, gradient, heads.k, heads.ldkv, grads.dq, self.d_k, false);
        fixed(s, self.d_k, t, gradient.t(), heads.q, heads.ldq, grads.dk, self.d_k, false);
    }

    /// The core in plain Candle operations. q: [B·T, H·K], k: [B·S, H·K], v: [B·S, H·d_v] → [B·T, H·d_v]. Products are
    /// in the type of q, k and v, the softmax in f32 at least.
    fn reference(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (b, h, t, s) = (self.batch, self.heads, self.queries, self.keys);
        let split = |x: &Tensor, l: usize, w: usize| x.reshape((b, l, h, w))?.transpose(1, 2)?.contiguous();
        let (q, k, v) = (split(q, t, self.d_k)?, split(k, s, self.d_k)?, split(v, s, self.d_v)?);
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * (1.0 / (self.d_k as f64).sqrt()))?;
        let scores = if scores.dtype() == DType::F64 { scores } else { scores.to_dtype(DType::F32)? };
        let weights = masked_softmax(&scores, &self.mask.table(t, s, scores.dtype(), scores.device())?)?;
        if let Some(record) = &self.record {
            let values = weights.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            record.with(values.len(), |all| all.copy_from_slice(&values));
        }
        let weights = self.dropout.apply(&weights)?.to_dtype(v.dtype())?;
        weights.matmul(&v)?.transpose(1, 2)?.contiguous()?.reshape((b * t, h * self.d_v))
    }
}

/// Where one head's gradients go: contiguous [T, K], [S, K] and [S, d_v].
struct HeadGradients<'a> {
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

/// out[d, j] = x[j, d] for one head; columns beyond `rows` are 0.
fn transpose_head(x: &[f32], stride: usize, rows: usize, width: usize, padded: usize, out: &mut [f32]) {
    for (d, column) in out.chunks_exact_mut(padded).take(width).enumerate() {
        for (j, value) in column[..rows].iter_mut().enumerate() {
            *value = x[j * stride + d];
        }
        column[rows..].fill(0.0);
    }
}

/// Transposed weights of the three projections.
pub struct Prepared {
    query: Scratch,
    key_value: Option<Scratch>,
    output: Scratch,
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
    fn head<'a>(&self, head: usize, q_rows: &'a [f32], kv_rows: &'a [f32], ldkv: usize) -> Heads<'a> {
        let (k, v) = self.key_value_offsets();
        let core = &self.core;
        Heads {
            q: &q_rows[head * core.d_k..],
            ldq: self.query_width(),
            k: &kv_rows[k + head * core.d_k..],
            v: &kv_rows[v + head * core.d_v..],
            ldkv,
        }
    }

    /// Packed k/v rows of one sentence of a block, and their stride.
    fn key_value_rows<'a>(&self, local: usize, q: &'a [f32], memory_saved: &'a [f32]) -> (&'a [f32], usize) {
        match &self.key_value {
            Some(kv) => (&memory_saved[local * self.core.keys * kv.out()..], kv.out()),
            None => (&q[local * self.core.queries * self.query_width()..], self.query_width()),
        }
    }

    fn heads_forward(&self, sentences: &Range<usize>, q: &[f32], memory_saved: &[f32], out: &mut [f32]) {
        let (core, width) = (&self.core, self.value_width());
        let mut work = core.work(false);
        for (local, sentence) in sentences.clone().enumerate() {
            let q_rows = &q[local * core.queries * self.query_width()..];
            let (kv_rows, ldkv) = self.key_value_rows(local, q, memory_saved);
            for head in 0..core.heads {
                let heads = self.head(head, q_rows, kv_rows, ldkv);
                let out = &mut out[local * core.queries * width + head * core.d_v..];
                core.forward(sentence, head, &heads, out, width, &mut work);
            }
        }
    }

    fn heads_backward(&self, block: &mut BackwardBlock, d_out: &[f32]) {
        let (core, width, qw) = (&self.core, self.value_width(), self.query_width());
        let (k_at, v_at) = self.key_value_offsets();
        let parts = Scratch::new(core.queries * core.d_k + core.keys * (core.d_k + core.d_v));
        let mut work = BackwardWork { scores: core.work(true), parts };
        let q = block.saved[0];
        for (local, sentence) in block.sentences.clone().enumerate() {
            let q_start = local * core.queries * qw;
            let (kv_rows, ldkv) = self.key_value_rows(local, q, block.memory_saved);
            let rows = core.queries * qw;
            for head in 0..core.heads {
                let heads = self.head(head, &q[q_start..], kv_rows, ldkv);
                // dq, dk and dv are interleaved columns of shared rows: compute them apart, then put them in place.
                let (nq, nk, nv) = (core.queries * core.d_k, core.keys * core.d_k, core.keys * core.d_v);
                let (dq, rest) = work.parts.split_at_mut(nq);
                let (dk, rest) = rest.split_at_mut(nk);
                let dv = &mut rest[..nv];
                let d_out = &d_out[local * core.queries * width + head * core.d_v..];
                core.backward((sentence, head), &heads, (d_out, width), HeadGradients { dq, dk, dv }, &mut work.scores);
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
            sums: self.query_width() + memory,
        }
    }

    fn output_bias(&self) -> Option<&Param> {
        self.output.bias.as_ref()
    }

    fn prepare(&self) -> Result<Prepared> {
        Ok(Prepared {
            query: transposed_weight(&self.query.weight)?,
            key_value: self.key_value.as_ref().map(|kv| transposed_weight(&kv.weight)).transpose()?,
            output: transposed_weight(&self.output.weight)?,
        })
    }

    fn forward(&self, prepared: &Prepared, block: ForwardBlock, h: &mut [f32], fixed_order: bool) -> Result<()> {
        let core = &self.core;
        let rows = block.sentences.len() * core.queries;
        let d = self.output.out();
        let [q, out] = block.saved;
        product(block.input, rows, d, &prepared.query, self.query_width(), q, fixed_order);
        self.query.add_bias(q)?;
        if let Some(rotary) = &core.rotary {
            rotary.turn(q, self.query_width(), 2 * core.heads, 0, core.queries);
        }
        if let (Some(kv), Some(weight)) = (&self.key_value, &prepared.key_value) {
            let memory_rows = block.sentences.len() * core.keys;
            product(block.memory, memory_rows, d, weight, kv.out(), block.memory_saved, fixed_order);
            kv.add_bias(block.memory_saved)?;
        }
        self.heads_forward(&block.sentences, q, block.memory_saved, out);
        product(out, rows, self.value_width(), &prepared.output, d, h, fixed_order);
        Ok(())
    }

    fn backward(&self, mut block: BackwardBlock) -> Result<()> {
        let core = &self.core;
        let rows = block.sentences.len() * core.queries;
        let (d, width, qw) = (self.output.out(), self.value_width(), self.query_width());
        let mut d_out = Scratch::new(rows * width);
        with_slice(self.output.weight.value(), |w| {
            gemm(Matrix::new(block.dh, rows, d), Matrix::new(w, d, width), &mut d_out, false);
            Ok(())
        })?;
        self.heads_backward(&mut block, &d_out);
        if let Some(rotary) = &core.rotary {
            rotary.turn_back(block.dinner, qw, 2 * core.heads, core.queries);
        }
        let (query_sums, memory_sums) = block.sums.split_at_mut(qw);
        add_column_sums(block.dinner, qw, query_sums);
        with_slice(self.query.weight.value(), |w| {
            gemm(Matrix::new(block.dinner, rows, qw), Matrix::new(w, qw, d), block.dinput, true);
            Ok(())
        })?;
        if let Some(kv) = &self.key_value {
            let memory_rows = block.sentences.len() * core.keys;
            add_column_sums(block.dmemory_inner, kv.out(), memory_sums);
            with_slice(kv.weight.value(), |w| {
                let g = Matrix::new(block.dmemory_inner, memory_rows, kv.out());
                gemm(g, Matrix::new(w, kv.out(), d), block.dmemory, false);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn weight_gradients(&self, batch: &WholeBatch) -> Result<()> {
        let (query_sums, memory_sums) = batch.sums.split_at(self.query_width());
        self.output.weight.with_gradient(|dw| {
            let (d, width) = (self.output.out(), self.value_width());
            gemm_parallel(
                Matrix::new(batch.dh, batch.rows, d).t(),
                Matrix::new(batch.saved[1], batch.rows, width),
                dw,
                true,
            );
        })?;
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
        let out = self.core.reference(&q, &k, &v)?;
        self.output.reference(&out, training)
    }
}
