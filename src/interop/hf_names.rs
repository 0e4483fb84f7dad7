//! The names that `transformers` gives to the parts of MarianMT, M2M-100 and mBART models, for import and export.

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
