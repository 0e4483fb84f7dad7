//! The parts of a model. A *place* is the offset of a parameter among the flat parameters.

use std::ops::Range;

use candle_core::{Result, bail};

use crate::model::layout::{output_table, positions_table, relative_table, target_table};
use crate::model::positions::PositionKind;
use crate::model::{DropoutSite, Stack, Transformer};
use crate::ops::dropout::Dropout;

/// A projection.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Offset of the weight, [out, input].
    pub weight: usize,
    /// Offset of the bias, [out].
    pub bias: Option<usize>,
    /// Width of the result.
    pub out: usize,
    /// Distance from one row of the result to the next, in numbers.
    pub stride: usize,
    /// Width of its input.
    pub input: usize,
}

/// An attention sub-layer.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// q, k and v packed, or q alone.
    pub query: Linear,
    /// k and v packed, of the memory.
    pub key_value: Option<Linear>,
    /// The output projection; its bias is the sub-layer's.
    pub output: Linear,
    /// Dropout site of the weights.
    pub site: u64,
    /// Whether a query sees only keys up to its own place.
    pub causal: bool,
}

/// A feed-forward sub-layer.
#[derive(Clone, Copy, Debug)]
pub struct FeedForward {
    /// The first projection; if it is gated, with the third one below it, the gate's other factor.
    pub fc1: Linear,
    /// The second; its bias is the sub-layer's.
    pub fc2: Linear,
    /// Dropout site of the hidden layer.
    pub site: u64,
}

/// What a sub-layer computes.
#[derive(Clone, Copy, Debug)]
pub enum Inner {
    /// Attention to the stack's own rows, or to the memory.
    Attention(Attention),
    /// Two projections.
    FeedForward(FeedForward),
}

/// A sub-layer with its wrapper.
#[derive(Clone, Copy, Debug)]
pub struct Sublayer {
    /// What it computes.
    pub inner: Inner,
    /// Offset of the norm's γ; β follows, if there is one.
    pub norm: usize,
    /// Offset of the bias that is added to its output.
    pub bias: Option<usize>,
    /// Dropout site of its output.
    pub site: u64,
}

impl Sublayer {
    /// Where its parameters begin; they end where those of the next one begin.
    fn start(&self) -> usize {
        match &self.inner {
            Inner::Attention(attention) => attention.query.weight,
            Inner::FeedForward(feed_forward) => feed_forward.fc1.weight,
        }
    }

    /// The last projection.
    pub fn last(&self) -> &Linear {
        match &self.inner {
            Inner::Attention(attention) => &attention.output,
            Inner::FeedForward(feed_forward) => &feed_forward.fc2,
        }
    }
}

/// What is added to embeddings by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Nothing.
    None,
    /// A fixed table.
    Fixed,
    /// A parameter at this place, [max_length, D].
    Learned(usize),
    /// Nothing; attention adds to its scores by distance, from a parameter at this place, [buckets, H].
    Relative(usize),
}

/// Encoder or decoder.
#[derive(Clone, Debug)]
pub struct Layers {
    /// Offset of the embedding, [V, D].
    pub table: usize,
    /// V.
    pub vocabulary: usize,
    /// Which of the two it is.
    pub stack: Stack,
    /// What is added to the embeddings.
    pub positions: Positions,
    /// Dropout site of the sum, or of its norm.
    pub site: u64,
    /// Offset of the γ of the sum's norm.
    pub embedding_norm: Option<usize>,
    /// The sub-layers in order.
    pub sublayers: Vec<Sublayer>,
    /// Offset of the last norm's γ.
    pub final_norm: Option<usize>,
}

impl Layers {
    /// Where the parameters of sub-layer `i` begin, if there is one.
    pub fn start(&self, i: usize) -> Option<usize> {
        self.sublayers.get(i).map(Sublayer::start)
    }

    /// The dropout of the sum of embedding and position, and that of its norm: the last one has it.
    pub fn embedding_dropouts(&self, dropout: Dropout) -> (Dropout, Dropout) {
        if self.embedding_norm.is_some() { (Dropout::OFF, dropout) } else { (dropout, Dropout::OFF) }
    }

    /// The projections of the memory to keys and values, layer by layer.
    pub fn memory_projections(&self) -> Vec<Linear> {
        let of = |sublayer: &Sublayer| match &sublayer.inner {
            Inner::Attention(attention) => attention.key_value,
            Inner::FeedForward(_) => None,
        };
        self.sublayers.iter().filter_map(of).collect()
    }
}

/// A model.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The encoder.
    pub encoder: Layers,
    /// The decoder.
    pub decoder: Layers,
    /// The output projection.
    pub output: Linear,
}

/// Finds parameters by their names.
struct Finder<'a>(&'a Transformer);

impl Finder<'_> {
    fn place(&self, name: &str) -> Result<usize> {
        match self.0.parameters().entry(name) {
            Some(entry) => Ok(entry.offset),
            None => bail!("no parameter named {name}"),
        }
    }

    /// `out` rows of weights from `name` on, and as much of the biases.
    fn linear(&self, name: &str, out: usize, input: usize, has_bias: bool) -> Result<Linear> {
        let bias = has_bias.then(|| self.place(&format!("{name}.bias"))).transpose()?;
        Ok(Linear { weight: self.place(&format!("{name}.weight"))?, bias, out, stride: out, input })
    }

    fn attention(&self, stack: Stack, layer: usize, kind: &str) -> Result<Sublayer> {
        let (c, cross) = (self.0.config(), kind == "cross_attn");
        let name = format!("{}.layers.{layer}.{kind}", stack.name());
        let (keys, values, has_bias) = (c.heads * c.d_k, c.heads * c.d_v, c.attention_bias);
        let width = if cross { keys } else { 2 * keys + values };
        let output = self.linear(&format!("{name}.out_proj"), c.d_model, values, has_bias)?;
        let [weights, result] = match cross {
            true => [DropoutSite::CrossAttentionWeights, DropoutSite::CrossAttentionOutput],
            false => [DropoutSite::SelfAttentionWeights, DropoutSite::SelfAttentionOutput],
        };
        let attention = Attention {
            query: self.linear(&format!("{name}.q_proj"), width, c.d_model, has_bias)?,
            key_value: cross
                .then(|| self.linear(&format!("{name}.k_proj"), keys + values, c.d_model, has_bias))
                .transpose()?,
            output,
            site: stack.site(layer, weights),
            causal: stack == Stack::Decoder && !cross,
        };
        Ok(Sublayer {
            inner: Inner::Attention(attention),
            norm: self.place(&format!("{name}_norm.weight"))?,
            bias: output.bias,
            site: stack.site(layer, result),
        })
    }

    fn feed_forward(&self, stack: Stack, layer: usize) -> Result<Sublayer> {
        let c = self.0.config();
        let name = format!("{}.layers.{layer}.feed_forward", stack.name());
        let (inner, has_bias) = (c.hidden_inputs() * c.d_ff, c.feed_forward_bias);
        let fc2 = self.linear(&format!("{name}.fc2"), c.d_model, c.d_ff, has_bias)?;
        let feed_forward = FeedForward {
            fc1: self.linear(&format!("{name}.fc1"), inner, c.d_model, has_bias)?,
            fc2,
            site: stack.site(layer, DropoutSite::FeedForwardHidden),
        };
        Ok(Sublayer {
            inner: Inner::FeedForward(feed_forward),
            norm: self.place(&format!("{name}_norm.weight"))?,
            bias: fc2.bias,
            site: stack.site(layer, DropoutSite::FeedForwardOutput),
        })
    }

    fn layers(&self, stack: Stack, table: &str, vocabulary: usize) -> Result<Layers> {
        let (c, decoder) = (self.0.config(), stack == Stack::Decoder);
        let mut sublayers = Vec::new();
        for layer in 0..if decoder { c.decoder_layers } else { c.encoder_layers } {
            sublayers.push(self.attention(stack, layer, "self_attn")?);
            if decoder {
                sublayers.push(self.attention(stack, layer, "cross_attn")?);
            }
            sublayers.push(self.feed_forward(stack, layer)?);
        }
        let norm = |is_there: bool, norm: &str| {
            is_there.then(|| self.place(&format!("{}.{norm}.weight", stack.name()))).transpose()
        };
        let (embedding_norm, final_norm) = (norm(c.embedding_norm, "embedding_norm")?, norm(c.final_norm, "norm")?);
        let positions = match c.positions {
            PositionKind::Sinusoidal => Positions::Fixed,
            PositionKind::Rotary => Positions::None,
            PositionKind::Relative => Positions::Relative(self.place(&relative_table(stack))?),
            PositionKind::Learned => Positions::Learned(self.place(&positions_table(stack))?),
        };
        let (table, site) = (self.place(table)?, stack.site(0, DropoutSite::Embedding));
        Ok(Layers { table, vocabulary, stack, positions, site, embedding_norm, sublayers, final_norm })
    }
}

impl Plan {
    /// Cuts `count` parameters into parts of at least `least` where a sub-layer begins, from the last one to the first.
    pub fn parts(&self, count: usize, least: usize) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut end = count;
        let sublayers = self.encoder.sublayers.iter().chain(&self.decoder.sublayers);
        for start in sublayers.map(Sublayer::start).rev() {
            if end - start >= least.max(1) {
                parts.push(start..end);
                end = start;
            }
        }
        parts.push(0..end);
        parts
    }

    /// The plan of a model.
    pub fn new(model: &Transformer) -> Result<Self> {
        let (c, vocabulary, find) = (model.config(), model.vocabulary(), Finder(model));
        let bias = c.output_bias.then(|| find.place("output_projection.bias")).transpose()?;
        Ok(Self {
            encoder: find.layers(Stack::Encoder, "source_embedding.weight", vocabulary.source)?,
            decoder: find.layers(Stack::Decoder, target_table(c.tie), vocabulary.target)?,
            output: Linear {
                weight: find.place(output_table(c.tie))?,
                bias,
                out: vocabulary.target,
                // Rows begin at multiples of eight: otherwise products are slow, and the loss kernel cannot read them.
                stride: vocabulary.target.next_multiple_of(8),
                input: c.d_model,
            },
        })
    }
}
