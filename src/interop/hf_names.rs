//! The names that `transformers` gives to the parts of MarianMT, M2M-100 and mBART models, for import and export, and
//! to those of T5 models.

/// The embedding of source and target if they share it.
pub(super) const SHARED: &str = "model.shared.weight";
/// The embeddings of source and target.
pub(super) const EMBEDDINGS: [&str; 2] = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"];
/// The positions of encoder and decoder. Older M2M-100 models have a table of sines under the second pair of names.
pub(super) const POSITIONS: [&str; 4] = [
    "model.encoder.embed_positions.weight",
    "model.decoder.embed_positions.weight",
    "model.encoder.embed_positions.weights",
    "model.decoder.embed_positions.weights",
];
/// The row of a table of learned positions that belongs to the first token.
pub(super) const FIRST_LEARNED: usize = 2;
/// The output projection.
pub(super) const OUTPUT_WEIGHT: &str = "lm_head.weight";
/// The bias on the logits, [1, V].
pub(super) const OUTPUT_BIAS: &str = "final_logits_bias";

/// Names of the parts of a layer: ours, and theirs. The first that occurs in a parameter's name applies.
const PARTS: [(&str, &str); 10] = [
    (".self_attn_norm.", ".self_attn_layer_norm."),
    (".cross_attn_norm.", ".encoder_attn_layer_norm."),
    (".cross_attn.", ".encoder_attn."),
    (".feed_forward_norm.", ".final_layer_norm."),
    (".feed_forward.fc1.", ".fc1."),
    (".feed_forward.fc2.", ".fc2."),
    (".self_attn.", ".self_attn."),
    (".embedding_norm.", ".layernorm_embedding."),
    (".positions.", ".embed_positions."),
    ("coder.norm.", "coder.layer_norm."),
];

/// The name of a parameter in a stack, such as `encoder.layers.0.self_attn.q_proj.weight`.
pub(super) fn layer_name(name: &str) -> String {
    let part = PARTS.iter().find(|(ours, _)| name.contains(ours));
    format!("model.{}", part.map_or_else(|| name.to_owned(), |(ours, theirs)| name.replace(ours, theirs)))
}

/// The tables of T5 models that are one embedding.
pub(super) const T5_EMBEDDINGS: [&str; 3] =
    ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
/// A table that old T5 models have, and do not use.
pub(super) const T5_UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// Parts of a T5 layer, [encoder, decoder]: ours, and theirs. The first that occurs in a parameter's name applies.
const T5_PARTS: [(&str, [&str; 2]); 7] = [
    ("self_attn_norm.", ["layer.0.layer_norm."; 2]),
    ("self_attn.", ["layer.0.SelfAttention."; 2]),
    ("cross_attn_norm.", ["", "layer.1.layer_norm."]),
    ("cross_attn.", ["", "layer.1.EncDecAttention."]),
    ("feed_forward_norm.", ["layer.1.layer_norm.", "layer.2.layer_norm."]),
    ("feed_forward.", ["layer.1.DenseReluDense.", "layer.2.DenseReluDense."]),
    ("norm.", ["final_layer_norm."; 2]),
];

/// The name in a T5 model of a parameter in a stack.
pub(super) fn t5_layer_name(name: &str, is_gated: bool) -> String {
    let stack = usize::from(name.starts_with("decoder."));
    let mut name = name.replace("relative_positions.", "block.0.layer.0.SelfAttention.relative_attention_bias.");
    if let Some((ours, theirs)) = T5_PARTS.iter().find(|(ours, _)| name.contains(ours)) {
        name = name.replace(ours, theirs[stack]);
    }
    let first = if is_gated { "wi_0." } else { "wi." };
    let projections = [("q_proj.", "q."), ("k_proj.", "k."), ("v_proj.", "v."), ("out_proj.", "o.")];
    let parts = [("fc1.", first), ("fc3.", "wi_1."), ("fc2.", "wo."), (".layers.", ".block.")];
    projections.into_iter().chain(parts).fold(name, |name, (ours, theirs)| name.replace(ours, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_names_of_t5() {
        for (ours, theirs) in [
            (
                "encoder.relative_positions.weight",
                "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            ),
            ("encoder.layers.3.self_attn.out_proj.weight", "encoder.block.3.layer.0.SelfAttention.o.weight"),
            ("decoder.layers.0.cross_attn.q_proj.weight", "decoder.block.0.layer.1.EncDecAttention.q.weight"),
            ("decoder.layers.0.cross_attn_norm.weight", "decoder.block.0.layer.1.layer_norm.weight"),
            ("encoder.layers.1.feed_forward.fc3.weight", "encoder.block.1.layer.1.DenseReluDense.wi_1.weight"),
            ("decoder.layers.1.feed_forward.fc2.weight", "decoder.block.1.layer.2.DenseReluDense.wo.weight"),
            ("decoder.layers.1.feed_forward_norm.weight", "decoder.block.1.layer.2.layer_norm.weight"),
            ("decoder.norm.weight", "decoder.final_layer_norm.weight"),
        ] {
            assert_eq!(t5_layer_name(ours, true), theirs);
        }
        let plain = t5_layer_name("encoder.layers.0.feed_forward.fc1.weight", false);
        assert_eq!(plain, "encoder.block.0.layer.1.DenseReluDense.wi.weight");
    }
}
