//! Incremental decoding in plain Candle operations, on any device: one position at a time, with cached keys and values.
//!
//! The processor's fast counterpart is [`crate::infer`].
//!
//! Keys and values of the target are tensors that grow by one position per step, and are reordered when a search
//! changes the order of rows. Those of the source are repeated for the rows of each sentence; this is redone only when
//! the rows change.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::softmax;

use super::{Memory, Stack, Transformer};
use crate::ops::Mode;
use crate::ops::embedding::Embedding;
use crate::ops::feed_forward::Activation;
use crate::ops::mask::Mask;
use crate::ops::norm::Norm;
use crate::ops::projection::Plain;
use crate::ops::relative::Relative;
use crate::ops::rotary::Rotary;
use crate::ops::softmax::masked_softmax;
use crate::ops::sublayer::{self, Residual};

#[derive(Debug)]
struct Layer {
    self_query_key_value: Plain,
    self_output: Plain,
    self_residual: Residual,
    cross_query: Plain,
    cross_key_value: Plain,
    cross_output: Plain,
    cross_residual: Residual,
    fc1: Plain,
    fc2: Plain,
    feed_forward_residual: Residual,
}

/// The decoder's weights.
#[derive(Debug)]
pub struct Decoder {
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    output: Plain,
    embedding: Embedding,
    embedding_norm: Option<Norm>,
    rotary: Option<Rotary>,
    relative: Option<Relative>,
    activation: Activation,
    gated: bool,
    heads: usize,
    d_k: usize,
    d_v: usize,
    device: Device,
}

impl Transformer {
    /// Prepares the decoder for incremental decoding.
    pub fn decoder(&self) -> Result<Decoder> {
        let c = &self.config;
        Ok(Decoder {
            layers: (0..c.decoder_layers).map(|i| self.plain_layer(i)).collect::<Result<_>>()?,
            final_norm: c.final_norm.then(|| self.norm("decoder.norm")).transpose()?,
            output: self.output_projection()?.plain(false)?,
            embedding: self.embedding(Stack::Decoder, &Mode::INFERENCE)?,
            embedding_norm: self.embedding_norm(Stack::Decoder)?,
            rotary: self.rotary.clone(),
            relative: self.relative(Stack::Decoder)?,
            activation: c.activation,
            gated: c.gated,
            heads: c.heads,
            d_k: c.d_k,
            d_v: c.d_v,
            device: self.parameters.device().clone(),
        })
    }

    fn plain_layer(&self, i: usize) -> Result<Layer> {
        let (c, name) = (&self.config, format!("decoder.layers.{i}"));
        let (attn, cross) = (format!("{name}.self_attn"), format!("{name}.cross_attn"));
        let feed_forward = format!("{name}.feed_forward");
        let residual = |name: &str| self.residual(name, 0, &Mode::INFERENCE);
        Ok(Layer {
            self_query_key_value: self.query_key_value(&attn)?.plain(false)?,
            self_output: self.single(&format!("{attn}.out_proj"), c.attention_bias)?.plain(false)?,
            self_residual: residual(&attn)?,
            cross_query: self.single(&format!("{cross}.q_proj"), c.attention_bias)?.plain(false)?,
            cross_key_value: self.key_value(&cross)?.plain(false)?,
            cross_output: self.single(&format!("{cross}.out_proj"), c.attention_bias)?.plain(false)?,
            cross_residual: residual(&cross)?,
            fc1: self.inner_projection(&feed_forward)?.plain(false)?,
            fc2: self.single(&format!("{feed_forward}.fc2"), c.feed_forward_bias)?.plain(false)?,
            feed_forward_residual: residual(&feed_forward)?,
        })
    }
}

/// Keys [rows, H, L, K] and values [rows, H, L, d_v].
#[derive(Clone, Debug)]
struct KeysValues {
    keys: Tensor,
    values: Tensor,
}

impl KeysValues {
    fn rows(&self, rows: &Tensor) -> Result<Self> {
        Ok(Self { keys: self.keys.index_select(rows, 0)?, values: self.values.index_select(rows, 0)? })
    }
}

/// The source as the rows of one step see it.
#[derive(Debug)]
struct SourceRows {
    /// The sentence of each row.
    sentences: Vec<usize>,
    /// By layer.
    layers: Vec<KeysValues>,
    /// 1 where a row sees a key, [rows, 1, 1, S].
    visible: Tensor,
}

/// What a batch of sentences has produced so far.
#[derive(Debug)]
pub struct State {
    /// Of every sentence, by layer.
    source: Vec<KeysValues>,
    visible: Tensor,
    rows: Option<SourceRows>,
    /// Of the rows of the last step, by layer.
    target: Vec<KeysValues>,
    position: usize,
}

impl State {
    /// Begins again with the same sentences.
    pub fn restart(&mut self) {
        self.rows = None;
        self.target.clear();
        self.position = 0;
    }
}

impl Decoder {
    /// Begins decoding a batch of encoded sentences.
    pub fn begin(&self, memory: &Memory) -> Result<State> {
        let (batch, length) = (memory.lengths.len(), memory.length);
        let source = |layer: &Layer| {
            let both = layer.cross_key_value.apply(&memory.states)?;
            self.keys_values(&both, batch, length)
        };
        let mask = Mask { keys: memory.lengths.clone(), queries: None, causal: false };
        Ok(State {
            source: self.layers.iter().map(source).collect::<Result<_>>()?,
            visible: mask.table(1, length, DType::F32, &self.device)?,
            rows: None,
            target: Vec::new(),
            position: 0,
        })
    }

    /// Packed keys and values [B·L, H·(K + d_v)] by head.
    fn keys_values(&self, both: &Tensor, batch: usize, length: usize) -> Result<KeysValues> {
        let (keys, values) = (self.heads * self.d_k, self.heads * self.d_v);
        Ok(KeysValues {
            keys: self.by_head(&both.narrow(1, 0, keys)?, batch, length, self.d_k)?,
            values: self.by_head(&both.narrow(1, keys, values)?, batch, length, self.d_v)?,
        })
    }

    /// [B·L, H·W] as [B, H, L, W].
    fn by_head(&self, x: &Tensor, batch: usize, length: usize, width: usize) -> Result<Tensor> {
        x.reshape((batch, length, self.heads, width))?.transpose(1, 2)?.contiguous()
    }

    /// One step: row r continues row `parents[r]` of the last step with `tokens[r]`, for sentence `sentences[r]`.
    /// Returns logits, [rows, V].
    pub fn step(&self, state: &mut State, tokens: &[u32], parents: &[usize], sentences: &[usize]) -> Result<Vec<f32>> {
        let rows = tokens.len();
        self.advance(state, parents, sentences)?;
        let State { rows: Some(source), target, position, .. } = state else {
            candle_core::bail!("no rows were chosen")
        };
        let by_distance = self.relative.as_ref().map(|relative| relative.reference(*position, 1, *position + 1, false));
        let by_distance = by_distance.transpose()?;
        let mut x = self.embedding.reference(tokens, *position, 1, false)?;
        if let Some(norm) = &self.embedding_norm {
            x = norm.reference(&x, false)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            x = sublayer::plain(&layer.self_residual, &x, false, |input| {
                let (query, new) = self.query_key_value(layer, input, *position)?;
                let all = match target.get(index) {
                    Some(past) => KeysValues {
                        keys: Tensor::cat(&[&past.keys, &new.keys], 2)?,
                        values: Tensor::cat(&[&past.values, &new.values], 2)?,
                    },
                    None => new,
                };
                let out = self.attend(&query, &all, None, by_distance.as_ref())?;
                match target.get_mut(index) {
                    Some(past) => *past = all,
                    None => target.push(all),
                }
                layer.self_output.apply(&out)
            })?;
            x = sublayer::plain(&layer.cross_residual, &x, false, |input| {
                let query = self.by_head(&layer.cross_query.apply(input)?, rows, 1, self.d_k)?;
                let out = self.attend(&query, &source.layers[index], Some(&source.visible), None)?;
                layer.cross_output.apply(&out)
            })?;
            x = sublayer::plain(&layer.feed_forward_residual, &x, false, |input| {
                layer.fc2.apply(&self.activation.hidden(&layer.fc1.apply(input)?, self.gated)?)
            })?;
        }
        if let Some(norm) = &self.final_norm {
            x = norm.reference(&x, false)?;
        }
        *position += 1;
        self.output.apply(&x)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// The query [rows, H, 1, K] of a step, and its key and value.
    fn query_key_value(&self, layer: &Layer, input: &Tensor, position: usize) -> Result<(Tensor, KeysValues)> {
        let (rows, keys, values) = (input.dim(0)?, self.heads * self.d_k, self.heads * self.d_v);
        let packed = layer.self_query_key_value.apply(input)?;
        let turned = packed.narrow(1, 0, 2 * keys)?;
        let turned = match &self.rotary {
            Some(rotary) => rotary.reference(&turned.contiguous()?, position, 1)?,
            None => turned,
        };
        let query = self.by_head(&turned.narrow(1, 0, keys)?, rows, 1, self.d_k)?;
        let new = KeysValues {
            keys: self.by_head(&turned.narrow(1, keys, keys)?, rows, 1, self.d_k)?,
            values: self.by_head(&packed.narrow(1, 2 * keys, values)?, rows, 1, self.d_v)?,
        };
        Ok((query, new))
    }

    /// softmax(q·kᵀ/√K)·v over the keys that are visible: [rows, H·d_v]. `by_distance` is added to the scores,
    /// [1, H, 1, L].
    fn attend(
        &self,
        query: &Tensor,
        seen: &KeysValues,
        visible: Option<&Tensor>,
        by_distance: Option<&Tensor>,
    ) -> Result<Tensor> {
        let scores = (query.matmul(&seen.keys.t()?.contiguous()?)? * (1.0 / (self.d_k as f64).sqrt()))?;
        let scores = scores.to_dtype(DType::F32)?;
        let scores = match by_distance {
            Some(by_distance) => scores.broadcast_add(by_distance)?,
            None => scores,
        };
        let weights = match visible {
            Some(visible) => masked_softmax(&scores, visible)?,
            None => softmax(&scores, D::Minus1)?,
        };
        let out = weights.to_dtype(seen.values.dtype())?.matmul(&seen.values)?;
        out.reshape((query.dim(0)?, self.heads * self.d_v))
    }

    /// Reorders the cached values of the last step's rows and of the source to the order of this step's rows.
    fn advance(&self, state: &mut State, parents: &[usize], sentences: &[usize]) -> Result<()> {
        let index =
            |rows: &[usize]| Tensor::from_vec(rows.iter().map(|&row| row as u32).collect(), rows.len(), &self.device);
        let unchanged =
            |rows: &[usize], before: usize| rows.len() == before && rows.iter().enumerate().all(|(i, &r)| i == r);
        if let Some(first) = state.target.first()
            && !unchanged(parents, first.keys.dim(0)?)
        {
            let parents = index(parents)?;
            state.target = state.target.iter().map(|layer| layer.rows(&parents)).collect::<Result<_>>()?;
        }
        if state.rows.as_ref().is_none_or(|rows| rows.sentences != sentences) {
            let rows = index(sentences)?;
            state.rows = Some(SourceRows {
                sentences: sentences.to_vec(),
                layers: state.source.iter().map(|layer| layer.rows(&rows)).collect::<Result<_>>()?,
                visible: state.visible.index_select(&rows, 0)?,
            });
        }
        Ok(())
    }
}
