//! Names and shapes of every parameter, in the order they lie in the flat tensor.
//!
//! The names are those in model files. q, k and v of one attention are neighbours (weights, then biases), so that they
//! form one packed matrix; so are γ and β of a norm.

use crate::choice::choice;
use crate::model::ModelConfig;
use crate::model::positions::PositionKind;
use crate::ops::params::{Kind, ParameterLayout};

choice! {
    /// Which modules share an embedding matrix.
    pub enum Tie {
        /// Each has its own.
        None = "none",
        /// The target embedding and the output projection share one.
        Decoder = "decoder",
        /// Source and target embedding and the output projection share one; needs a joint vocabulary.
        All = "all",
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
    if tie == Tie::All { "source_embedding.weight" } else { "target_embedding.weight" }
}

/// Name of the matrix of the output projection.
pub fn output_table(tie: Tie) -> &'static str {
    if tie == Tie::None { "output_projection.weight" } else { target_table(tie) }
}

/// Name of the table of a stack's learned positions; `stack` is `encoder` or `decoder`.
pub fn positions_table(stack: &str) -> String {
    format!("{stack}.positions.weight")
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
    if config.tie != Tie::All {
        layout.add("target_embedding.weight", &[vocabulary.target, d], Kind::Weight);
    }
    if config.positions == PositionKind::Learned {
        layout.add(positions_table("encoder"), &[config.max_length, d], Kind::Weight);
        layout.add(positions_table("decoder"), &[config.max_length, d], Kind::Weight);
    }
    if config.embedding_norm {
        norm(&mut layout, d, "encoder.embedding_norm");
        norm(&mut layout, d, "decoder.embedding_norm");
    }
    for i in 0..config.encoder_layers {
        let layer = format!("encoder.layers.{i}");
        attention(&mut layout, config, &layer, "self_attn");
        feed_forward(&mut layout, config, &layer);
    }
    if config.final_norm {
        norm(&mut layout, d, "encoder.norm");
    }
    for i in 0..config.decoder_layers {
        let layer = format!("decoder.layers.{i}");
        attention(&mut layout, config, &layer, "self_attn");
        attention(&mut layout, config, &layer, "cross_attn");
        feed_forward(&mut layout, config, &layer);
    }
    if config.final_norm {
        norm(&mut layout, d, "decoder.norm");
    }
    if config.tie == Tie::None {
        layout.add("output_projection.weight", &[vocabulary.target, d], Kind::Weight);
    }
    // The last one, as its width is any: all before it begin at multiples of eight where d_model and d_ff are.
    if config.output_bias {
        layout.add("output_projection.bias", &[vocabulary.target], Kind::Vector);
    }
    layout
}

fn attention(layout: &mut ParameterLayout, config: &ModelConfig, layer: &str, name: &str) {
    let (d, keys, values) = (config.d_model, config.heads * config.d_k, config.heads * config.d_v);
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
    norm(layout, d, &format!("{layer}.{name}_norm"));
}

fn feed_forward(layout: &mut ParameterLayout, config: &ModelConfig, layer: &str) {
    let (d, f) = (config.d_model, config.d_ff);
    layout.add(format!("{layer}.feed_forward.fc1.weight"), &[f, d], Kind::Weight);
    layout.add(format!("{layer}.feed_forward.fc1.bias"), &[f], Kind::Vector);
    layout.add(format!("{layer}.feed_forward.fc2.weight"), &[d, f], Kind::Weight);
    layout.add(format!("{layer}.feed_forward.fc2.bias"), &[d], Kind::Vector);
    norm(layout, d, &format!("{layer}.feed_forward_norm"));
}

fn norm(layout: &mut ParameterLayout, d: usize, name: &str) {
    layout.add(format!("{name}.weight"), &[d], Kind::Vector);
    layout.add(format!("{name}.bias"), &[d], Kind::Vector);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_name_whose_matrix_it_is() {
        assert_eq!(ties(Tie::None), []);
        assert_eq!(ties(Tie::Decoder), [("output_projection", "target_embedding")]);
        let all = [("target_embedding", "source_embedding"), ("output_projection", "source_embedding")];
        assert_eq!(ties(Tie::All), all);
    }
}
