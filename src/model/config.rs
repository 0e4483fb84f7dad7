//! `[model]`: the Transformer's shape, and the named presets.

use serde::{Deserialize, Serialize};

use super::init::Init;
use super::layout::Tie;
use super::positions::{PositionKind, Sinusoid};
use crate::choice::choice;
use crate::ops::feed_forward::Activation;
use crate::ops::mask::PaddingMask;
use crate::ops::norm::NormKind;
use crate::ops::sublayer::NormPlacement;

choice! {
    /// A named shape of the Transformer.
    pub enum Preset {
        /// 4+4 layers, 128/256, 4 heads.
        Tiny = "transformer-tiny",
        /// 6+6 layers, 512/1024, 4 heads: the shape used for IWSLT.
        Small = "transformer-small",
        /// 6+6 layers, 512/2048, 8 heads: the paper's base model.
        Base = "transformer-base",
        /// 6+6 layers, 1024/4096, 16 heads: the paper's big model.
        Big = "transformer-big",
    }
}

/// `[model]`: the Transformer's shape. Keys left out come from `preset`, or from the base model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// The named shape that keys left out are taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Width of the model (D); even.
    pub d_model: usize,
    /// Width of the feed-forward layers (F).
    pub d_ff: usize,
    /// Attention heads (H).
    pub heads: usize,
    /// Width of one head's queries and keys (K). Default: `d_model / heads`.
    pub d_k: usize,
    /// Width of one head's values. Default: `d_model / heads`.
    pub d_v: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Normalisation after each residual sum, or before each sub-layer.
    pub norm: NormPlacement,
    /// One more normalisation at the end of encoder and decoder. Default: only with `norm = "pre"`.
    pub final_norm: bool,
    /// What normalisations divide by.
    pub norm_kind: NormKind,
    /// ε of the normalisations.
    pub norm_eps: f64,
    /// How the model knows the order of its tokens.
    pub positions: PositionKind,
    /// Layout of the sinusoidal positions, and of rotary pairs.
    pub sinusoid: Sinusoid,
    /// The position that the first token has in the formula of sinusoidal positions.
    pub first_position: usize,
    /// Parameters of relative positions for each head.
    pub relative_buckets: usize,
    /// The distance from which on relative positions are alike.
    pub relative_distance: usize,
    /// What padding masks.
    pub padding_mask: PaddingMask,
    /// Which embedding matrices are shared. Default: `all` with a joint vocabulary, otherwise `decoder`.
    pub tie: Tie,
    /// Multiply embeddings by √d_model.
    pub scale_embedding: bool,
    /// Normalise the sum of embedding and position.
    pub embedding_norm: bool,
    /// A bias on the output projection.
    pub output_bias: bool,
    /// Padding takes part in the output's softmax. If not, its probability is 0; this needs `output_bias`.
    pub output_padding: bool,
    /// Biases on the attention projections.
    pub attention_bias: bool,
    /// The feed-forward layers' non-linearity.
    pub activation: Activation,
    /// Multiply what is activated by a third projection.
    pub gated: bool,
    /// Biases in the feed-forward layers.
    pub feed_forward_bias: bool,
    /// Dropout on the output of every sub-layer.
    pub dropout: f64,
    /// Dropout on the sum of embedding and position. Default: `dropout`.
    pub embedding_dropout: f64,
    /// Dropout on the attention weights.
    pub attention_dropout: f64,
    /// Dropout on the hidden layer of the feed-forward layers.
    pub activation_dropout: f64,
    /// How matrices are initialised, including embeddings and learned positions.
    pub init: Init,
    /// The longest sequence, in tokens, that positions exist for.
    pub max_length: usize,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::with_shape(Preset::Base, None)
    }
}

impl ModelConfig {
    /// The keys that `preset` sets.
    pub const OF_PRESET: &[&str] = &["d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "d_k", "d_v"];

    /// The model of a preset, everything else at its default (with a joint vocabulary).
    pub fn from_preset(preset: Preset) -> Self {
        Self::with_shape(preset, Some(preset))
    }

    /// The shape of `shape`, said to come from `preset`.
    fn with_shape(shape: Preset, preset: Option<Preset>) -> Self {
        let (layers, d_model, d_ff, heads) = match shape {
            Preset::Tiny => (4, 128, 256, 4),
            Preset::Small => (6, 512, 1024, 4),
            Preset::Base => (6, 512, 2048, 8),
            Preset::Big => (6, 1024, 4096, 16),
        };
        Self {
            preset,
            d_model,
            d_ff,
            heads,
            d_k: d_model / heads,
            d_v: d_model / heads,
            encoder_layers: layers,
            decoder_layers: layers,
            norm: NormPlacement::Post,
            final_norm: false,
            norm_kind: NormKind::Layer,
            norm_eps: 1e-5,
            positions: PositionKind::Sinusoidal,
            sinusoid: Sinusoid::Interleaved,
            first_position: 0,
            relative_buckets: 32,
            relative_distance: 128,
            padding_mask: PaddingMask::Keys,
            tie: Tie::All,
            scale_embedding: true,
            embedding_norm: false,
            output_bias: false,
            output_padding: true,
            attention_bias: true,
            activation: Activation::Relu,
            gated: false,
            feed_forward_bias: true,
            dropout: 0.1,
            embedding_dropout: 0.1,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            init: Init::XavierUniform,
            max_length: 1024,
        }
    }

    /// Factor of embeddings: √D or 1.
    pub fn embedding_scale(&self) -> f32 {
        if self.scale_embedding { (self.d_model as f32).sqrt() } else { 1.0 }
    }

    /// The token that takes no part in the output's softmax, if there is one: padding.
    pub fn left_out(&self, padding: u32) -> Option<u32> {
        (!self.output_padding).then_some(padding)
    }

    /// Projections that a hidden layer of the feed-forward layers is made of: 2 if it is gated.
    pub fn hidden_inputs(&self) -> usize {
        if self.gated { 2 } else { 1 }
    }

    /// Width of all heads' queries (or keys) together: H·K.
    pub fn key_width(&self) -> usize {
        self.heads * self.d_k
    }

    /// Width of all heads' values together.
    pub fn value_width(&self) -> usize {
        self.heads * self.d_v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_scaled_by_the_root_of_the_width() {
        let config = ModelConfig { d_model: 64, ..ModelConfig::default() };
        assert_eq!(config.embedding_scale(), 8.0);
        assert_eq!(ModelConfig { scale_embedding: false, ..config }.embedding_scale(), 1.0);
    }
}
