//! Names and shapes of every parameter, in the order they lie in the flat tensor.
//!
//! The names are those in model files. q, k and v of one attention are neighbours (weights, then biases), so that they
//! form one packed matrix; so are fc1 and fc3 of a gated feed-forward layer, and γ and β of a norm.

use crate::choice::choice;
use crate::model::positions::PositionKind;
use crate::model::{ModelConfig, Stack};
use crate::ops::params::{Kind, ParameterLayout};

choice! {
    /// Which modules share an embedding matrix.
    pub enum Tie {
        /// Each has its own.
        None = "none",
        /// The target embedding and the output projection share one.
        Decoder = "decoder",
        /// Source and target embedding share one; needs a joint vocabulary.
        Embeddings = "embeddings",
        /// Source and target embedding and the output projection share one; needs a joint vocabulary.
        All = "all",
    }
}

impl Tie {
    /// Whether source and target are embedded with the same matrix.
    pub fn joins_embeddings(self) -> bool {
        matches!(self, Self::Embeddings | Self::All)
    }

    /// Whether the output projection has a matrix of its own.
    pub fn frees_output(self) -> bool {
        matches!(self, Self::None | Self::Embeddings)
    }
}

/// Sizes of the vocabularies and the ids of padding, whose embeddings begin at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Pieces on the source side.
    pub source: usize,
    /// Pieces on the target side.
    pub target: usize,
    /// Id of the source padding.
    pub source_padding: u32,
    /// Id of the target padding.
    pub target_padding: u32,
}

/// Name of the table that target tokens are embedded with.
pub fn target_table(tie: Tie) -> &'static str {
    if tie.joins_embeddings() { "source_embedding.weight" } else { "target_embedding.weight" }
}

/// Name of the matrix of the output projection.
pub fn output_table(tie: Tie) -> &'static str {
    if tie.frees_output() { "output_projection.weight" } else { target_table(tie) }
}

/// Name of the table of a stack's learned positions.
pub fn positions_table(stack: Stack) -> String {
    format!("{}.positions.weight", stack.name())
}

/// Name of the table of a stack's relative positions, [buckets, H].
pub fn relative_table(stack: Stack) -> String {
    format!("{}.relative_positions.weight", stack.name())
}

/// The modules without a matrix of their own, each with the module whose matrix it uses.
pub fn ties(tie: Tie) -> Vec<(&'static str, &'static str)> {
    let pairs = [("target_embedding", target_table(tie)), ("output_projection", output_table(tie))];
    let owners = pairs.map(|(name, table)| (name, table.trim_end_matches(".weight")));
    owners.into_iter().filter(|(name, owner)| name != owner).collect()
}

/// Whether a parameter belongs to a part of the model: whether it has that name, or one below it.
pub fn is_within(parameter: &str, part: &str) -> bool {
    parameter.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// All parameters of a model.
pub fn layout(config: &ModelConfig, vocabulary: Vocabulary) -> ParameterLayout {
    let mut layout = ParameterLayout::default();
    let d = config.d_model;
    layout.add("source_embedding.weight", &[vocabulary.source, d], Kind::Weight);
    if !config.tie.joins_embeddings() {
        layout.add("target_embedding.weight", &[vocabulary.target, d], Kind::Weight);
    }
    if config.positions == PositionKind::Learned {
        for stack in [Stack::Encoder, Stack::Decoder] {
            layout.add(positions_table(stack), &[config.max_length, d], Kind::Weight);
        }
    }
    if config.positions == PositionKind::Relative {
        for stack in [Stack::Encoder, Stack::Decoder] {
            layout.add(relative_table(stack), &[config.relative_buckets, config.heads], Kind::Weight);
        }
    }
    if config.embedding_norm {
        norm(&mut layout, config, "encoder.embedding_norm");
        norm(&mut layout, config, "decoder.embedding_norm");
    }
    for i in 0..config.encoder_layers {
        let layer = format!("encoder.layers.{i}");
        attention(&mut layout, config, &layer, "self_attn");
        feed_forward(&mut layout, config, &layer);
    }
    if config.final_norm {
        norm(&mut layout, config, "encoder.norm");
    }
    for i in 0..config.decoder_layers {
        let layer = format!("decoder.layers.{i}");
        attention(&mut layout, config, &layer, "self_attn");
        attention(&mut layout, config, &layer, "cross_attn");
        feed_forward(&mut layout, config, &layer);
    }
    if config.final_norm {
        norm(&mut layout, config, "decoder.norm");
    }
    if config.tie.frees_output() {
        layout.add("output_projection.weight", &[vocabulary.target, d], Kind::Weight);
    }
    // The last one, as its width is any: all before it begin at multiples of eight where d_model, d_ff and the numbers
    // in the tables of relative positions are.
    if config.output_bias {
        layout.add("output_projection.bias", &[vocabulary.target], Kind::Vector);
    }
    layout
}

fn attention(layout: &mut ParameterLayout, config: &ModelConfig, layer: &str, name: &str) {
    let (d, keys, values) = (config.d_model, config.key_width(), config.value_width());
    let projections = [("q_proj", keys), ("k_proj", keys), ("v_proj", values)];
    for (projection, width) in projections {
        layout.add(format!("{layer}.{name}.{projection}.weight"), &[width, d], Kind::Weight);
    }
    if config.attention_bias {
        for (projection, width) in projections {
            layout.add(format!("{layer}.{name}.{projection}.bias"), &[width], Kind::Vector);
        }
    }
    layout.add(format!("{layer}.{name}.out_proj.weight"), &[d, values], Kind::Weight);
    if config.attention_bias {
        layout.add(format!("{layer}.{name}.out_proj.bias"), &[d], Kind::Vector);
    }
    norm(layout, config, &format!("{layer}.{name}_norm"));
}

fn feed_forward(layout: &mut ParameterLayout, config: &ModelConfig, layer: &str) {
    let (d, f, has_bias) = (config.d_model, config.d_ff, config.feed_forward_bias);
    let name = format!("{layer}.feed_forward");
    let inner = &["fc1", "fc3"][..config.hidden_inputs()];
    for projection in inner {
        layout.add(format!("{name}.{projection}.weight"), &[f, d], Kind::Weight);
    }
    for projection in inner.iter().filter(|_| has_bias) {
        layout.add(format!("{name}.{projection}.bias"), &[f], Kind::Vector);
    }
    layout.add(format!("{name}.fc2.weight"), &[d, f], Kind::Weight);
    if has_bias {
        layout.add(format!("{name}.fc2.bias"), &[d], Kind::Vector);
    }
    norm(layout, config, &format!("{layer}.feed_forward_norm"));
}

fn norm(layout: &mut ParameterLayout, config: &ModelConfig, name: &str) {
    for part in ["weight", "bias"].iter().take(config.norm_kind.parameters()) {
        layout.add(format!("{name}.{part}"), &[config.d_model], Kind::Vector);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_name_whose_matrix_it_is() {
        assert_eq!(ties(Tie::None), []);
        assert_eq!(ties(Tie::Decoder), [("output_projection", "target_embedding")]);
        let all = [("target_embedding", "source_embedding"), ("output_projection", "source_embedding")];
        assert_eq!(ties(Tie::Embeddings), [("target_embedding", "source_embedding")]);
        assert_eq!(ties(Tie::All), all);
    }
}
