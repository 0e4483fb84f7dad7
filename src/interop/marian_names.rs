//! The names that `transformers` gives to the parts of a MarianMT model, for import and export.

/// The embedding of source and target if they share it.
pub(super) const SHARED: &str = "model.shared.weight";
/// The embeddings of source and target.
pub(super) const EMBEDDINGS: [&str; 2] = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"];
/// The positions of encoder and decoder.
pub(super) const POSITIONS: [&str; 2] =
    ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"];
/// The output projection.
pub(super) const OUTPUT_WEIGHT: &str = "lm_head.weight";
/// The bias on the logits, [1, V].
pub(super) const OUTPUT_BIAS: &str = "final_logits_bias";

/// Names of the parts of a layer: ours, and theirs. The first that occurs in a parameter's name applies.
const PARTS: [(&str, &str); 7] = [
    (".self_attn_norm.", ".self_attn_layer_norm."),
    (".cross_attn_norm.", ".encoder_attn_layer_norm."),
    (".cross_attn.", ".encoder_attn."),
    (".feed_forward_norm.", ".final_layer_norm."),
    (".feed_forward.fc1.", ".fc1."),
    (".feed_forward.fc2.", ".fc2."),
    (".self_attn.", ".self_attn."),
];

/// The name of a parameter in a layer, such as `encoder.layers.0.self_attn.q_proj.weight`.
pub(super) fn layer_name(name: &str) -> String {
    let part = PARTS.iter().find(|(ours, _)| name.contains(ours));
    format!("model.{}", part.map_or_else(|| name.to_owned(), |(ours, theirs)| name.replace(ours, theirs)))
}
