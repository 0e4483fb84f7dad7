//! The encoder-decoder Transformer of "Attention Is All You Need" and its variants.
//!
//! [`Transformer`] holds the parameters and runs whole sequences: [`Transformer::encode`], [`Transformer::decode`],
//! [`Transformer::loss`]. [`cache::Decoder`] runs one position at a time for search. What one sub-layer computes lives
//! in [`crate::ops`]; where norm, residual and dropout stand, in [`crate::ops::sublayer`].

pub mod cache;
mod config;
pub mod init;
pub mod layout;
pub mod pooling;
pub mod positions;
mod sites;

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

pub use config::{ModelConfig, Preset};
pub use init::Init;
pub use layout::{Tie, Vocabulary};
pub use positions::{PositionKind, Sinusoid};
pub use sites::{DropoutSite, Stack};

pub use crate::ops::feed_forward::Activation;
pub use crate::ops::mask::PaddingMask;
pub use crate::ops::norm::NormKind;
pub use crate::ops::sublayer::NormPlacement;

use crate::ops::Mode;
use crate::ops::attention::{Attention, Core, Record};
use crate::ops::dropout::Dropout;
use crate::ops::embedding::{self, Embedding, Positions};
use crate::ops::feed_forward::FeedForward;
use crate::ops::loss::{self, Sums, Targets};
use crate::ops::mask::{Lengths, Mask};
use crate::ops::norm::{self, Norm};
use crate::ops::params::Parameters;
use crate::ops::projection::Projection;
use crate::ops::relative::{Buckets, Relative};
use crate::ops::rotary::Rotary;
use crate::ops::sublayer::{self, Residual};

/// A padded batch of token sequences.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Token ids, [B, L] row-major.
    pub ids: Vec<u32>,
    /// Real tokens of every sequence, [B].
    pub lengths: Lengths,
    /// L.
    pub length: usize,
}

impl Sequences {
    /// A batch of sequences of different lengths.
    pub fn padded(sequences: &[&[u32]], padding: u32) -> Self {
        let length = sequences.iter().map(|sequence| sequence.len()).max().unwrap_or(0);
        let mut ids = vec![padding; sequences.len() * length];
        for (row, sequence) in ids.chunks_exact_mut(length.max(1)).zip(sequences) {
            row[..sequence.len()].copy_from_slice(sequence);
        }
        let lengths = sequences.iter().map(|sequence| sequence.len() as u32).collect();
        Self { ids, lengths: Arc::new(lengths), length }
    }

    /// Number of sequences, B.
    pub fn batch(&self) -> usize {
        self.lengths.len()
    }
}

/// Encoder states of a batch.
#[derive(Clone, Debug)]
pub struct Memory {
    /// [B·S, D].
    pub states: Tensor,
    /// Real source tokens of every sentence, [B].
    pub lengths: Lengths,
    /// S.
    pub length: usize,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Transformer {
    config: ModelConfig,
    vocabulary: Vocabulary,
    parameters: Arc<Parameters>,
    /// Fixed positions; empty if the model has another kind.
    sinusoids: Arc<Vec<f32>>,
    rotary: Option<Rotary>,
    /// Buckets of relative positions of encoder and decoder.
    buckets: [Option<Buckets>; 2],
}

/// The attention weights of one kind of attention, a tensor for every layer: [B, H, S, S] or [B, H, T, T] of
/// self-attention, [B, H, T, S] of cross-attention.
pub type AttentionWeights = Vec<Tensor>;

/// Collects attention weights layer by layer, if they are wanted.
type Recorder<'a> = Option<&'a mut AttentionWeights>;

/// The attention weights of a decoder pass.
#[derive(Clone, Debug, Default)]
pub struct DecoderAttention {
    /// Of the targets over the targets, [B, H, T, T].
    pub masked: AttentionWeights,
    /// Of the targets over the source, [B, H, T, S].
    pub cross: AttentionWeights,
}

impl Transformer {
    /// A model with all parameters zero; see [`Transformer::initialise`] and [`crate::checkpoint`].
    pub fn new(config: &ModelConfig, vocabulary: Vocabulary, device: &Device) -> Result<Self> {
        Self::with_precision(config, vocabulary, device, DType::F32)
    }

    /// [`Transformer::new`] with products in `compute`, f32 or bf16: in plain operations, in fused ones and in the GPU
    /// engine. Parameters, gradients, normalisation, softmax and loss are f32.
    pub fn with_precision(
        config: &ModelConfig,
        vocabulary: Vocabulary,
        device: &Device,
        compute: DType,
    ) -> Result<Self> {
        Self::of(config, vocabulary, layout::layout(config, vocabulary).allocate(device, compute)?)
    }

    /// [`Transformer::with_precision`] without memory for gradients: it cannot be trained.
    pub fn for_inference(
        config: &ModelConfig,
        vocabulary: Vocabulary,
        device: &Device,
        compute: DType,
    ) -> Result<Self> {
        Self::of(config, vocabulary, layout::layout(config, vocabulary).allocate_values(device, compute)?)
    }

    fn of(config: &ModelConfig, vocabulary: Vocabulary, parameters: Arc<Parameters>) -> Result<Self> {
        let (sinusoids, rotary) = (Arc::new(positions::fixed(config)), positions::rotary(config));
        let buckets = [Stack::Encoder, Stack::Decoder].map(|stack| positions::buckets(config, stack));
        Ok(Self { config: config.clone(), vocabulary, parameters, sinusoids, rotary, buckets })
    }

    /// The same model on the processor, in float32; if it is already there, the model itself.
    pub fn on_processor(&self) -> Result<Self> {
        if self.parameters.device().is_cpu() {
            return Ok(self.clone());
        }
        let copy = Self::new(&self.config, self.vocabulary, &Device::Cpu)?;
        copy.parameters.values().slice_set(&self.parameters.values().to_device(&Device::Cpu)?, 0, 0)?;
        Ok(copy)
    }

    /// Draws initial values from a seed.
    pub fn initialise(&self, seed: u64) -> Result<()> {
        init::initialise(&self.config, &self.parameters, self.vocabulary, seed)
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Sizes of the vocabularies.
    pub fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    /// Its parameters and gradients.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// Encoder states of a batch of source sequences.
    pub fn encode(&self, source: &Sequences, mode: &Mode) -> Result<Memory> {
        self.encode_recording(source, mode, None)
    }

    /// [`Transformer::encode`] with the attention weights of every layer, [B, H, S, S].
    pub fn encode_with_attention(&self, source: &Sequences, mode: &Mode) -> Result<(Memory, AttentionWeights)> {
        let mut weights = AttentionWeights::new();
        let memory = self.encode_recording(source, mode, Some(&mut weights))?;
        Ok((memory, weights))
    }

    fn encode_recording(&self, source: &Sequences, mode: &Mode, mut recorder: Recorder) -> Result<Memory> {
        let mut x = self.embed(source, Stack::Encoder, mode)?;
        for layer in 0..self.config.encoder_layers {
            x = self.self_attention(&x, source, Stack::Encoder, layer, mode, recorder.as_deref_mut())?;
            x = self.feed_forward(&x, Stack::Encoder, layer, mode)?;
        }
        let states = self.final_norm(x, Stack::Encoder, mode)?;
        Ok(Memory { states, lengths: source.lengths.clone(), length: source.length })
    }

    /// Decoder states [B·T, D] of decoder inputs (targets shifted right); a position sees itself and those before it.
    pub fn decode(&self, memory: &Memory, target: &Sequences, mode: &Mode) -> Result<Tensor> {
        self.decode_recording(memory, target, mode, None)
    }

    /// [`Transformer::decode`] with the attention weights of every layer.
    pub fn decode_with_attention(
        &self,
        memory: &Memory,
        target: &Sequences,
        mode: &Mode,
    ) -> Result<(Tensor, DecoderAttention)> {
        let mut weights = DecoderAttention::default();
        let states = self.decode_recording(memory, target, mode, Some(&mut weights))?;
        Ok((states, weights))
    }

    fn decode_recording(
        &self,
        memory: &Memory,
        target: &Sequences,
        mode: &Mode,
        recorder: Option<&mut DecoderAttention>,
    ) -> Result<Tensor> {
        let (mut masked, mut cross) = match recorder {
            Some(DecoderAttention { masked, cross }) => (Some(masked), Some(cross)),
            None => (None, None),
        };
        let mut y = self.embed(target, Stack::Decoder, mode)?;
        for layer in 0..self.config.decoder_layers {
            y = self.self_attention(&y, target, Stack::Decoder, layer, mode, masked.as_deref_mut())?;
            y = self.cross_attention(&y, memory, target, layer, mode, cross.as_deref_mut())?;
            y = self.feed_forward(&y, Stack::Decoder, layer, mode)?;
        }
        self.final_norm(y, Stack::Decoder, mode)
    }

    /// Logits [N, V] of decoder states [N, D], in plain operations: for tests and small inputs.
    pub fn logits(&self, states: &Tensor, mode: &Mode) -> Result<Tensor> {
        self.output_projection()?.reference(states, mode.is_training())
    }

    /// The loss of a batch, summed over its target tokens: a differentiable scalar, and the sums.
    pub fn loss(
        &self,
        source: &Sequences,
        target: &Sequences,
        targets: &Targets,
        mode: &Mode,
    ) -> Result<(Tensor, Sums)> {
        let memory = self.encode(source, mode)?;
        let states = self.decode(&memory, target, mode)?;
        let left_out = self.config.left_out(targets.padding);
        loss::run(&states, &self.output_projection()?, targets, left_out, mode)
    }

    fn output_projection(&self) -> Result<Projection> {
        Ok(Projection {
            weight: self.parameters.param(layout::output_table(self.config.tie))?,
            bias: self.config.output_bias.then(|| self.parameters.param("output_projection.bias")).transpose()?,
        })
    }

    fn embed(&self, tokens: &Sequences, stack: Stack, mode: &Mode) -> Result<Tensor> {
        let mut embedding = self.embedding(stack, mode)?;
        let norm = self.embedding_norm(stack)?;
        // A norm comes before the dropout.
        let dropout =
            if norm.is_some() { std::mem::replace(&mut embedding.dropout, Dropout::OFF) } else { Dropout::OFF };
        let x = embedding::run(embedding, tokens.ids.clone(), tokens.length, self.parameters.root(), mode)?;
        match norm {
            Some(norm) => dropout.apply(&norm::run(&x, &norm, mode)?),
            None => Ok(x),
        }
    }

    /// The norm of a stack's embeddings, if there is one.
    fn embedding_norm(&self, stack: Stack) -> Result<Option<Norm>> {
        self.config.embedding_norm.then(|| self.norm(&format!("{}.embedding_norm", stack.name()))).transpose()
    }

    /// The embedding that a stack begins with.
    fn embedding(&self, stack: Stack, mode: &Mode) -> Result<Embedding> {
        let table = match stack {
            Stack::Encoder => "source_embedding.weight",
            Stack::Decoder => layout::target_table(self.config.tie),
        };
        Ok(Embedding {
            table: self.parameters.param(table)?,
            positions: self.positions(stack)?,
            max_length: self.config.max_length,
            scale: self.config.embedding_scale(),
            dropout: mode.dropout(self.config.embedding_dropout, stack.site(0, DropoutSite::Embedding)),
        })
    }

    /// What is added to a stack's embeddings by position.
    fn positions(&self, stack: Stack) -> Result<Positions> {
        Ok(match self.config.positions {
            PositionKind::Sinusoidal => Positions::Fixed(self.sinusoids.clone()),
            PositionKind::Rotary | PositionKind::Relative => Positions::None,
            PositionKind::Learned => Positions::Learned(self.parameters.param(&layout::positions_table(stack))?),
        })
    }

    /// The table of fixed positions, [max_length, D]; empty if the model has another kind.
    pub fn sinusoids(&self) -> &[f32] {
        &self.sinusoids
    }

    /// What turns queries and keys, with rotary positions.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// With relative positions, the buckets of a stack's distances.
    pub fn buckets(&self, stack: Stack) -> Option<&Buckets> {
        self.buckets[stack as usize].as_ref()
    }

    /// What a stack adds to the scores of self-attention, with relative positions.
    fn relative(&self, stack: Stack) -> Result<Option<Relative>> {
        let Some(buckets) = self.buckets[stack as usize].clone() else { return Ok(None) };
        Ok(Some(Relative { table: self.parameters.param(&layout::relative_table(stack))?, buckets }))
    }

    /// The wrapper of sub-layer `name`; `site` is the number of its dropout ([`Stack::site`]).
    fn residual(&self, name: &str, site: u64, mode: &Mode) -> Result<Residual> {
        Ok(Residual {
            placement: self.config.norm,
            norm: self.norm(&format!("{name}_norm"))?,
            dropout: mode.dropout(self.config.dropout, site),
        })
    }

    /// The normalisation called `name`.
    fn norm(&self, name: &str) -> Result<Norm> {
        let (eps, kind) = (self.config.norm_eps, self.config.norm_kind);
        let shape = (kind.parameters(), self.config.d_model);
        Ok(Norm { parameters: self.parameters.view(&format!("{name}.weight"), shape)?, eps, kind })
    }

    /// A run of neighbouring projections as one, `width` wide; `first` is the name of the first of them.
    fn packed(&self, first: &str, width: usize, has_bias: bool) -> Result<Projection> {
        let bias = format!("{first}.bias");
        Ok(Projection {
            weight: self.parameters.view(&format!("{first}.weight"), (width, self.config.d_model))?,
            bias: has_bias.then(|| self.parameters.view(&bias, width)).transpose()?,
        })
    }

    /// The projection that a feed-forward layer begins with: fc1, or fc1 and fc3.
    fn inner_projection(&self, feed_forward: &str) -> Result<Projection> {
        let c = &self.config;
        self.packed(&format!("{feed_forward}.fc1"), c.hidden_inputs() * c.d_ff, c.feed_forward_bias)
    }

    /// Queries, keys and values of a self-attention as one projection.
    fn query_key_value(&self, attention: &str) -> Result<Projection> {
        let c = &self.config;
        self.packed(&format!("{attention}.q_proj"), 2 * c.key_width() + c.value_width(), c.attention_bias)
    }

    /// Keys and values of a cross-attention as one projection.
    fn key_value(&self, attention: &str) -> Result<Projection> {
        let c = &self.config;
        self.packed(&format!("{attention}.k_proj"), c.key_width() + c.value_width(), c.attention_bias)
    }

    fn single(&self, name: &str, has_bias: bool) -> Result<Projection> {
        Ok(Projection {
            weight: self.parameters.param(&format!("{name}.weight"))?,
            bias: has_bias.then(|| self.parameters.param(&format!("{name}.bias"))).transpose()?,
        })
    }

    /// The mask of `queries` over keys of these lengths.
    fn mask(&self, queries: &Sequences, keys: &Lengths, causal: bool) -> Mask {
        let both = self.config.padding_mask == PaddingMask::KeysAndQueries;
        Mask { keys: keys.clone(), queries: both.then(|| queries.lengths.clone()), causal }
    }

    fn self_attention(
        &self,
        x: &Tensor,
        tokens: &Sequences,
        stack: Stack,
        layer: usize,
        mode: &Mode,
        recorder: Recorder,
    ) -> Result<Tensor> {
        let c = &self.config;
        let name = format!("{}.layers.{layer}.self_attn", stack.name());
        let core = Core {
            batch: tokens.batch(),
            heads: c.heads,
            queries: tokens.length,
            keys: tokens.length,
            d_k: c.d_k,
            d_v: c.d_v,
            mask: self.mask(tokens, &tokens.lengths, matches!(stack, Stack::Decoder)),
            rotary: self.rotary.clone(),
            relative: self.relative(stack)?,
            dropout: mode.dropout(c.attention_dropout, stack.site(layer, DropoutSite::SelfAttentionWeights)),
            record: recorder.is_some().then(Record::default),
        };
        let attention = Attention {
            core,
            query: self.query_key_value(&name)?,
            key_value: None,
            output: self.single(&format!("{name}.out_proj"), c.attention_bias)?,
        };
        let residual = self.residual(&name, stack.site(layer, DropoutSite::SelfAttentionOutput), mode)?;
        self.attend(attention, residual, x, None, mode, recorder)
    }

    fn cross_attention(
        &self,
        y: &Tensor,
        memory: &Memory,
        target: &Sequences,
        layer: usize,
        mode: &Mode,
        recorder: Recorder,
    ) -> Result<Tensor> {
        let c = &self.config;
        let name = format!("decoder.layers.{layer}.cross_attn");
        let core = Core {
            batch: target.batch(),
            heads: c.heads,
            queries: target.length,
            keys: memory.length,
            d_k: c.d_k,
            d_v: c.d_v,
            mask: self.mask(target, &memory.lengths, false),
            rotary: None,
            relative: None,
            dropout: mode.dropout(c.attention_dropout, Stack::Decoder.site(layer, DropoutSite::CrossAttentionWeights)),
            record: recorder.is_some().then(Record::default),
        };
        let attention = Attention {
            core,
            query: self.single(&format!("{name}.q_proj"), c.attention_bias)?,
            key_value: Some(self.key_value(&name)?),
            output: self.single(&format!("{name}.out_proj"), c.attention_bias)?,
        };
        let residual = self.residual(&name, Stack::Decoder.site(layer, DropoutSite::CrossAttentionOutput), mode)?;
        self.attend(attention, residual, y, Some(&memory.states), mode, recorder)
    }

    /// One attention sub-layer; its weights go to the recorder, if there is one.
    fn attend(
        &self,
        attention: Attention,
        residual: Residual,
        x: &Tensor,
        memory: Option<&Tensor>,
        mode: &Mode,
        recorder: Recorder,
    ) -> Result<Tensor> {
        let core = &attention.core;
        let (shape, record) = ((core.batch, core.heads, core.queries, core.keys), core.record.clone());
        let y = sublayer::run(attention, residual, x, memory, mode)?;
        if let (Some(recorder), Some(record)) = (recorder, record) {
            recorder.push(Tensor::from_vec(record.take(), shape, &Device::Cpu)?);
        }
        Ok(y)
    }

    fn feed_forward(&self, x: &Tensor, stack: Stack, layer: usize, mode: &Mode) -> Result<Tensor> {
        let c = &self.config;
        let name = format!("{}.layers.{layer}.feed_forward", stack.name());
        let feed_forward = FeedForward {
            fc1: self.inner_projection(&name)?,
            fc2: self.single(&format!("{name}.fc2"), c.feed_forward_bias)?,
            activation: c.activation,
            gated: c.gated,
            dropout: mode.dropout(c.activation_dropout, stack.site(layer, DropoutSite::FeedForwardHidden)),
        };
        let residual = self.residual(&name, stack.site(layer, DropoutSite::FeedForwardOutput), mode)?;
        sublayer::run(feed_forward, residual, x, None, mode)
    }

    fn final_norm(&self, x: Tensor, stack: Stack, mode: &Mode) -> Result<Tensor> {
        if !self.config.final_norm {
            return Ok(x);
        }
        norm::run(&x, &self.norm(&format!("{}.norm", stack.name()))?, mode)
    }
}
