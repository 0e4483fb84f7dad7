//! Incremental decoding on the processor.
//!
//! Keys and values of the source are computed once a sentence and shared by its hypotheses. Those of the target are
//! appended step by step and never moved: a hypothesis remembers, for every position, the row that its ancestor had
//! ([`State::advance`]), so that reordering a beam copies a few integers.
//!
//! Sums run in one order for any number of rows: a sentence decodes to the same tokens alone and in a batch.

use std::sync::Arc;

use candle_core::Result;

use super::super::{Memory, Stack, Transformer, layout};
use crate::ops::embedding::Positions;
use crate::ops::feed_forward::Activation;
use crate::ops::linear::{Linear, attend_cached};
use crate::ops::memory::with_slice;
use crate::ops::norm::{NormKind, NormWeights, norm_rows};
use crate::ops::projection::Projection;
use crate::ops::rotary::Rotary;
use crate::ops::sublayer::{self, NormPlacement};

/// γ and β, one after the other, ε and kind.
#[derive(Debug)]
struct Norm {
    both: Vec<f32>,
    eps: f32,
    kind: NormKind,
}

impl Norm {
    fn apply(&self, x: &[f32], out: &mut [f32]) {
        norm_rows(x, None, NormWeights::new(&self.both, self.eps, self.kind), self.both.len() / 2, out);
    }
}

#[derive(Debug)]
struct Layer {
    self_query_key_value: Linear,
    self_output: Linear,
    self_norm: Norm,
    cross_query: Linear,
    cross_key_value: Linear,
    cross_output: Linear,
    cross_norm: Norm,
    fc1: Linear,
    fc2: Linear,
    feed_forward_norm: Norm,
}

/// The decoder's weights, prepared for incremental decoding.
#[derive(Debug)]
pub struct Decoder {
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    output: Linear,
    table: Vec<f32>,
    /// Added to the embeddings, [positions, D]; empty where nothing is.
    positions: Arc<Vec<f32>>,
    rotary: Option<Rotary>,
    scale: f32,
    d_model: usize,
    /// Heads, d_k, d_v.
    shape: [usize; 3],
    placement: NormPlacement,
    activation: Activation,
}

fn linear(projection: &Projection) -> Result<Linear> {
    let (output, input) = projection.weight.value().dims2()?;
    with_slice(projection.weight.value(), |weight| match &projection.bias {
        Some(bias) => with_slice(bias.value(), |bias| Ok(Linear::new(weight, Some(bias), output, input))),
        None => Ok(Linear::new(weight, None, output, input)),
    })
}

impl Transformer {
    /// Prepares the decoder for incremental decoding (CPU, f32).
    pub(super) fn fused_decoder(&self) -> Result<Decoder> {
        let c = &self.config;
        let table = self.parameters.param(layout::target_table(c.tie))?;
        Ok(Decoder {
            layers: (0..c.decoder_layers).map(|i| self.decoder_layer(i)).collect::<Result<_>>()?,
            final_norm: c.final_norm.then(|| self.prepared_norm("decoder.norm")).transpose()?,
            output: linear(&self.output_projection()?)?,
            table: with_slice(table.value(), |t| Ok(t.to_vec()))?,
            positions: match self.positions(Stack::Decoder)? {
                Positions::Fixed(table) => table,
                Positions::Learned(param) => Arc::new(with_slice(param.value(), |table| Ok(table.to_vec()))?),
                Positions::None => Arc::default(),
            },
            rotary: self.rotary.clone(),
            scale: self.embedding_scale(),
            d_model: c.d_model,
            shape: [c.heads, c.d_k, c.d_v],
            placement: c.norm,
            activation: c.activation,
        })
    }

    fn prepared_norm(&self, name: &str) -> Result<Norm> {
        let norm = self.norm(name)?;
        let both = with_slice(norm.both.value(), |both| Ok(both.to_vec()))?;
        Ok(Norm { both, eps: norm.eps as f32, kind: norm.kind })
    }

    fn decoder_layer(&self, i: usize) -> Result<Layer> {
        let (c, name) = (&self.config, format!("decoder.layers.{i}"));
        let (attn, cross) = (format!("{name}.self_attn"), format!("{name}.cross_attn"));
        Ok(Layer {
            self_query_key_value: linear(&self.packed(&attn, "q_proj", c.heads * (2 * c.d_k + c.d_v))?)?,
            self_output: linear(&self.single(&format!("{attn}.out_proj"), c.attention_bias)?)?,
            self_norm: self.prepared_norm(&format!("{attn}_norm"))?,
            cross_query: linear(&self.packed(&cross, "q_proj", c.heads * c.d_k)?)?,
            cross_key_value: linear(&self.packed(&cross, "k_proj", c.heads * (c.d_k + c.d_v))?)?,
            cross_output: linear(&self.single(&format!("{cross}.out_proj"), c.attention_bias)?)?,
            cross_norm: self.prepared_norm(&format!("{cross}_norm"))?,
            fc1: linear(&self.single(&format!("{name}.feed_forward.fc1"), true)?)?,
            fc2: linear(&self.single(&format!("{name}.feed_forward.fc2"), true)?)?,
            feed_forward_norm: self.prepared_norm(&format!("{name}.feed_forward_norm"))?,
        })
    }
}

/// Keys and values (side by side) of one layer.
#[derive(Debug, Default)]
struct LayerCache {
    /// Of the source, [B·S, H·(K + d_v)].
    source: Vec<f32>,
    /// Of the target: for every position, those of the rows alive at that step.
    target: Vec<Vec<f32>>,
}

/// What a batch of sentences has produced so far.
#[derive(Debug)]
pub struct State {
    layers: Vec<LayerCache>,
    /// Row of its ancestor at every position so far, for every row alive, [rows, positions].
    ancestors: Vec<Vec<u32>>,
    lengths: Arc<Vec<u32>>,
    source_length: usize,
}

impl State {
    /// Number of target positions so far.
    fn position(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.target.len())
    }

    /// Rows of this step continue rows `parents` of the last one.
    fn advance(&mut self, parents: &[usize]) {
        let position = self.position();
        let old = std::mem::take(&mut self.ancestors);
        self.ancestors = parents
            .iter()
            .enumerate()
            .map(|(row, &parent)| {
                let mut history = Vec::with_capacity(position + 1);
                if position > 0 {
                    history.extend_from_slice(&old[parent]);
                }
                history.push(row as u32);
                history
            })
            .collect();
    }
}

/// scale·table[tokens] + encoding; `encoding` is [D], or empty.
fn embed_rows(table: &[f32], encoding: &[f32], tokens: &[u32], scale: f32, out: &mut [f32]) {
    let d = out.len() / tokens.len().max(1);
    for (x, &token) in out.chunks_exact_mut(d).zip(tokens) {
        let entry = &table[token as usize * d..][..d];
        if encoding.is_empty() {
            x.iter_mut().zip(entry).for_each(|(x, e)| *x = e * scale);
        } else {
            x.iter_mut().zip(entry).zip(encoding).for_each(|((x, e), p)| *x = e.mul_add(scale, *p));
        }
    }
}

impl Decoder {
    /// Begins decoding a batch of encoded sentences.
    pub fn begin(&self, memory: &Memory) -> Result<State> {
        let rows = memory.states.dim(0)?;
        let layers = with_slice(&memory.states.contiguous()?, |states| {
            let layer = |layer: &Layer| {
                let mut source = vec![0f32; rows * layer.cross_key_value.output()];
                layer.cross_key_value.apply(states, &mut source);
                LayerCache { source, target: Vec::new() }
            };
            Ok(self.layers.iter().map(layer).collect())
        })?;
        Ok(State { layers, ancestors: Vec::new(), lengths: memory.lengths.clone(), source_length: memory.length })
    }

    /// One step: row r continues row `parents[r]` of the last step with `tokens[r]`, for sentence `sentences[r]`.
    /// Returns logits, [rows, V].
    pub fn step(&self, state: &mut State, tokens: &[u32], parents: &[usize], sentences: &[usize]) -> Vec<f32> {
        let (rows, d, position) = (tokens.len(), self.d_model, state.position());
        state.advance(parents);
        let mut x = vec![0f32; rows * d];
        let encoding = if self.positions.is_empty() { &[] } else { &self.positions[position * d..][..d] };
        embed_rows(&self.table, encoding, tokens, self.scale, &mut x);
        for (index, layer) in self.layers.iter().enumerate() {
            self.sublayer(&mut x, &layer.self_norm, |input, h| self.self_attention(layer, index, state, input, h));
            self.sublayer(&mut x, &layer.cross_norm, |input, h| {
                self.cross_attention(layer, index, state, sentences, input, h)
            });
            self.sublayer(&mut x, &layer.feed_forward_norm, |input, h| {
                let mut hidden = vec![0f32; rows * layer.fc1.output()];
                layer.fc1.apply(input, &mut hidden);
                self.activation.apply(&mut hidden);
                layer.fc2.apply(&hidden, h);
            });
        }
        if let Some(norm) = &self.final_norm {
            let input = x.clone();
            norm.apply(&input, &mut x);
        }
        let mut logits = vec![0f32; rows * self.output.output()];
        self.output.apply(&x, &mut logits);
        logits
    }

    fn sublayer(&self, x: &mut [f32], norm: &Norm, f: impl FnOnce(&[f32], &mut [f32])) {
        sublayer::infer(self.placement, x, |rows, out| norm.apply(rows, out), f);
    }

    fn self_attention(&self, layer: &Layer, index: usize, state: &mut State, input: &[f32], h: &mut [f32]) {
        let [heads, d_k, d_v] = self.shape;
        let (rows, keys, width) = (input.len() / self.d_model, heads * d_k, heads * (d_k + d_v));
        let mut packed = vec![0f32; rows * layer.self_query_key_value.output()];
        layer.self_query_key_value.apply(input, &mut packed);
        if let Some(rotary) = &self.rotary {
            // One position a step, queries and keys side by side.
            let position = state.layers[index].target.len();
            rotary.turn(&mut packed, keys + width, 2 * heads, position, 1);
        }
        let mut queries = Vec::with_capacity(rows * keys);
        let mut cached = Vec::with_capacity(rows * width);
        for row in packed.chunks_exact(keys + width) {
            queries.extend_from_slice(&row[..keys]);
            cached.extend_from_slice(&row[keys..]);
        }
        let cache = &mut state.layers[index].target;
        cache.push(cached);
        let (cache, ancestors) = (&*cache, &state.ancestors);
        let seen = |row: usize| -> Vec<&[f32]> {
            ancestors[row].iter().zip(cache).map(|(&r, step)| &step[r as usize * width..][..width]).collect()
        };
        let mut out = vec![0f32; rows * heads * d_v];
        attend_cached(&queries, self.shape, seen, &mut out);
        layer.self_output.apply(&out, h);
    }

    fn cross_attention(
        &self,
        layer: &Layer,
        index: usize,
        state: &State,
        sentences: &[usize],
        input: &[f32],
        h: &mut [f32],
    ) {
        let [heads, d_k, d_v] = self.shape;
        let (rows, width) = (input.len() / self.d_model, heads * (d_k + d_v));
        let mut queries = vec![0f32; rows * heads * d_k];
        layer.cross_query.apply(input, &mut queries);
        let source = &state.layers[index].source;
        let seen = |row: usize| -> Vec<&[f32]> {
            let sentence = sentences[row];
            let first = sentence * state.source_length * width;
            source[first..].chunks_exact(width).take(state.lengths[sentence] as usize).collect()
        };
        let mut out = vec![0f32; rows * heads * d_v];
        attend_cached(&queries, self.shape, seen, &mut out);
        layer.cross_output.apply(&out, h);
    }
}
