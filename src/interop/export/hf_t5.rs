//! A folder of Hugging Face `transformers` of the T5 family, to which MADLAD-400 belongs. Parameters have the same
//! layout there, but for the names.

use std::path::Path;

use serde_json::{Value, json};

use super::hf_marian::{self, activation};
use super::{Model, Obstacles, Tensor, write_bytes, write_json, write_transformers};
use crate::data::tokenizer::RandomSplit;
use crate::error::Result;
use crate::interop::hf_names::{OUTPUT_WEIGHT, T5_EMBEDDINGS, t5_layer_name};
use crate::interop::search::{self, OURS};
use crate::model::{Activation, ModelConfig, NormKind, NormPlacement, PositionKind, Tie};

/// T5's sentinels (`<extra_id_0>`), which are in the embedding, but not in the SentencePiece model.
const SENTINELS: usize = 100;

/// The id of unknown text, which the tokenizer of `transformers` takes for granted.
const UNKNOWN: u32 = 2;

/// Writes the model into a new directory.
///
/// # Errors
/// T5 cannot express such a model (every obstacle is named), or the directory exists or cannot be written.
pub(super) fn export(model: &Model, out: &Path) -> Result<Vec<String>> {
    let subwords = refuse(model)?;
    let settings = [config(model), hf_marian::generation(model)];
    write_transformers(out, settings, &tensors(model)?, |directory| tokenizer(model, &subwords, directory))?;
    Ok(search::difference(&model.config.decode).into_iter().collect())
}

/// Refuses a model that T5 cannot express. Returns its SentencePiece model.
fn refuse(model: &Model) -> Result<Vec<u8>> {
    let (config, tokenizers) = (&model.config.model, model.tokenizers);
    let mut obstacles = Obstacles::new("T5");
    obstacles.unless(config.norm == NormPlacement::Pre, "model.norm", "it normalises before every sub-layer");
    obstacles.unless(config.final_norm, "model.final_norm", "its stacks end with a norm");
    obstacles.unless(config.norm_kind == NormKind::Rms, "model.norm_kind", "it divides by the root mean square");
    obstacles.unless(!config.embedding_norm, "model.embedding_norm", "its embeddings are not normalised");
    obstacles.unless(!config.scale_embedding, "model.scale_embedding", "its embeddings are not scaled");
    obstacles.unless(config.positions == PositionKind::Relative, "model.positions", "its positions are relative");
    obstacles.unless(!config.attention_bias, "model.attention_bias", "its attention has no biases");
    obstacles.unless(!config.feed_forward_bias, "model.feed_forward_bias", "its feed-forward layers have no biases");
    obstacles.unless(!config.output_bias, "model.output_bias", "its output projection has no bias");
    obstacles.unless(config.d_k == config.d_v, "model.d_v", "it has one width of heads, model.d_k");
    let is_gelu = config.gated && config.activation == Activation::Gelu;
    obstacles.unless(!is_gelu, "model.activation", "a gate with \"gelu\" is one with \"gelu_tanh\" there");
    obstacles.unless(
        matches!(config.tie, Tie::All | Tie::Embeddings),
        "model.tie",
        "source and target share an embedding there",
    );
    let subwords = tokenizers.target.sentencepiece().filter(|_| {
        let can_split = tokenizers.target.can(RandomSplit::Unigram { alpha: 1.0, nbest: 0 });
        tokenizers.is_joint() && can_split
    });
    obstacles.unless(tokenizers.target.languages().is_empty(), "tokenizer", "it has no languages");
    let what = "its subwords are those of one unigram model of SentencePiece";
    obstacles.unless(subwords.is_some(), "tokenizer", what);
    let unknown = tokenizers.target.unk_id();
    let why = format!("`<unk>` has the id {UNKNOWN} in the tokenizer that transformers has for T5, and {unknown} here");
    obstacles.unless(unknown == UNKNOWN, "tokenizer", &why);
    obstacles.check()?;
    Ok(subwords.unwrap_or_default())
}

fn config(model: &Model) -> Value {
    let (config, target) = (&model.config.model, &model.tokenizers.target);
    let activation = match (config.gated, config.activation) {
        (true, Activation::GeluTanh) => "gated-gelu".to_owned(),
        (true, _) => format!("gated-{}", activation(config)),
        (false, _) => activation(config).to_owned(),
    };
    json!({
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": true,
        "dtype": "float32", "vocab_size": target.vocab_size(), "d_model": config.d_model, "d_kv": config.d_k,
        "d_ff": config.d_ff, "num_heads": config.heads, "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers, "layer_norm_epsilon": config.norm_eps,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_distance, "feed_forward_proj": activation,
        "dropout_rate": config.dropout, "tie_word_embeddings": config.tie == Tie::All, "use_cache": true,
        "pad_token_id": target.pad_id(), "eos_token_id": target.eos_id(), "decoder_start_token_id": target.bos_id(),
        // For `mt import`: what is lost when `transformers` saves the model again.
        (OURS): {
            "max_length": model.config.data.max_length, "decode": model.config.decode,
            "embedding_dropout": config.embedding_dropout,
        },
    })
}

/// What a parameter is multiplied by: T5 does not divide queries by √d_k as ours are, and divides the decoder's states
/// by √d_model where the output projection is the embedding.
fn scale(name: &str, config: &ModelConfig) -> Option<f32> {
    match name {
        name if name.ends_with("_attn.q_proj.weight") => Some(1.0 / (config.d_k as f32).sqrt()),
        "decoder.norm.weight" if config.tie == Tie::All => Some((config.d_model as f32).sqrt()),
        _ => None,
    }
}

fn tensors<'a>(model: &Model<'a>) -> Result<Vec<Tensor<'a>>> {
    let config = &model.config.model;
    let tensor = |name: &str| {
        let (shape, values) = model.parameter(name)?;
        let theirs = match name {
            "source_embedding.weight" => T5_EMBEDDINGS[0].to_owned(),
            "output_projection.weight" => OUTPUT_WEIGHT.to_owned(),
            name => t5_layer_name(name, config.gated),
        };
        let values = match scale(name, config) {
            Some(scale) => values.iter().map(|value| value * scale).collect(),
            None => values.into(),
        };
        Ok((theirs, shape.to_vec(), values))
    };
    model.layout.entries().iter().map(|entry| tensor(&entry.name)).collect()
}

fn tokenizer(model: &Model, subwords: &[u8], directory: &Path) -> Result<()> {
    let target = &model.tokenizers.target;
    write_bytes(directory, "spiece.model", subwords)?;
    let piece = |id| target.piece(id);
    let is_spare = |id: &u32| piece(*id).is_some_and(|piece| piece.starts_with("<unused_"));
    let spare = (0..target.vocab_size() as u32).rev().take_while(is_spare).count();
    write_json(
        directory,
        "tokenizer_config.json",
        &json!({
            "tokenizer_class": "T5Tokenizer", "model_max_length": model.config.model.max_length,
            "eos_token": piece(target.eos_id()), "pad_token": piece(target.pad_id()),
            "unk_token": piece(target.unk_id()), "extra_ids": if spare >= SENTINELS { SENTINELS } else { 0 },
            "clean_up_tokenization_spaces": false,
        }),
    )
}
