//! A MarianMT folder of Hugging Face `transformers`: `config.json`, `generation_config.json`, `model.safetensors`, and
//! a tokenizer that `AutoTokenizer` loads.
//!
//! Marian puts all sines of a position before all cosines. If ours alternate, the components of the model's width are
//! permuted in every matrix, bias and norm that has them, which changes nothing but the order of sums.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use super::{Model, Obstacles, Tensor, pieces, write_bytes, write_json, write_text, write_transformers};
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::interop::hf_names::{EMBEDDINGS, OUTPUT_BIAS, OUTPUT_WEIGHT, POSITIONS, SHARED, layer_name};
use crate::interop::search::{self, OURS};
use crate::model::positions::sinusoidal;
use crate::model::{Activation, ModelConfig, NormPlacement, PositionKind, Sinusoid, Tie};

/// The ε of norms in `transformers`.
const EPSILON: f64 = 1e-5;

/// Which of a parameter's axes is the model's width.
#[derive(Clone, Copy)]
enum Width {
    /// [d]
    Vector,
    /// [n, d]
    Columns,
    /// [d, n]
    Rows,
    /// None.
    Nowhere,
}

/// Writes the model into a new directory.
///
/// # Errors
/// MarianMT cannot express such a model (every obstacle is named), or the directory exists or cannot be written.
pub(super) fn export(model: &Model, out: &Path) -> Result<Vec<String>> {
    refuse(model)?;
    let settings = [config(model), generation(model)];
    write_transformers(out, settings, &Tensors::new(model)?.0, |directory| tokenizer(model, directory))?;
    Ok(notes(model))
}

fn refuse(model: &Model) -> Result<()> {
    let config = &model.config.model;
    let mut obstacles = Obstacles::of_bart("MarianMT", config);
    obstacles.unless(config.norm == NormPlacement::Post, "model.norm", "it normalises after every sub-layer");
    obstacles.unless(!config.final_norm, "model.final_norm", "its stacks end without a norm");
    obstacles.unless(!config.embedding_norm, "model.embedding_norm", "its embeddings are not normalised");
    obstacles.unless(config.first_position == 0, "model.first_position", "its first position is 0");
    obstacles.unless(config.norm_eps == EPSILON, "model.norm_eps", "it is 1e-5 there");
    obstacles.unless(config.positions == PositionKind::Sinusoidal, "model.positions", "its positions are sinusoidal");
    let is_multilingual = !model.tokenizers.target.languages().is_empty();
    obstacles.unless(!is_multilingual, "tokenizer", "it has no languages: export it as \"hf\"");
    let Tokenizers { source, target } = model.tokenizers;
    if source.sentencepiece().is_some() != target.sentencepiece().is_some() {
        obstacles
            .add("tokenizer.target_path", "its tokenizers are SentencePiece models for both languages or for neither");
    }
    if target.pad_id() as usize >= source.vocab_size() {
        obstacles.add(
            "tokenizer.target_path",
            "it has one padding id for both vocabularies, but the target's lies beyond the source's last piece",
        );
    }
    obstacles.check()
}

/// What is unusual about the folder, for users of `transformers`.
fn notes(model: &Model) -> Vec<String> {
    let Tokenizers { source, target } = model.tokenizers;
    let mut notes = Vec::new();
    if stored_sinusoid(&model.config.model) != Sinusoid::Halves {
        notes.push(
            "`transformers` does not save positions: a model that it saves again has its own there, not those of \
             `model.sinusoid` = \"tensor2tensor\"; `mt import` restores them",
        );
    }
    if source.has_codes() {
        notes.push(
            "the tokenizers of `transformers` take text that `subword-nmt apply-bpe` has split with the codes beside \
             them (with tokenizer.vocabulary, also with that list), and `mt import` reads them as such; or split it \
             with `mt tokenize`",
        );
    }
    if !model.tokenizers.is_joint() && source.sentencepiece().is_none() {
        notes.push(
            "AutoTokenizer reads and saves the source's vocabulary only; decode with PreTrainedTokenizerFast of \
             tokenizer.tgt.json, and copy that file beside a model that `transformers` saves again",
        );
    } else if !model.tokenizers.is_joint() && source.pad_id() != target.pad_id() {
        notes.push(
            "<pad> has different ids in the target's and the source's vocabulary: MarianTokenizer shows it when it \
             decodes a batch",
        );
    }
    let mut notes: Vec<String> = notes.into_iter().map(str::to_owned).collect();
    notes.extend(search::difference(&model.config.decode));
    notes
}

/// The layout of sines and cosines in the folder: see the module on the alternating ones.
fn stored_sinusoid(config: &ModelConfig) -> Sinusoid {
    match config.sinusoid {
        Sinusoid::Interleaved | Sinusoid::Halves => Sinusoid::Halves,
        Sinusoid::Tensor2Tensor => Sinusoid::Tensor2Tensor,
    }
}

/// The activation as `transformers` names it, in `ACT2FN`.
pub(super) fn activation(config: &ModelConfig) -> &'static str {
    match config.activation {
        Activation::Relu => "relu",
        Activation::Gelu => "gelu",
        Activation::Swish => "swish",
        Activation::GeluTanh => "gelu_new",
    }
}

fn config(model: &Model) -> Value {
    let (config, target) = (&model.config.model, &model.tokenizers.target);
    json!({
        "architectures": ["MarianMTModel"], "model_type": "marian", "is_encoder_decoder": true, "dtype": "float32",
        "vocab_size": model.tokenizers.source.vocab_size(), "decoder_vocab_size": target.vocab_size(),
        "d_model": config.d_model, "encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers,
        "num_hidden_layers": config.encoder_layers, "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads, "encoder_ffn_dim": config.d_ff, "decoder_ffn_dim": config.d_ff,
        "activation_function": activation(config), "dropout": config.dropout,
        "attention_dropout": config.attention_dropout, "activation_dropout": config.activation_dropout,
        "max_position_embeddings": config.max_length, "scale_embedding": config.scale_embedding,
        "static_position_embeddings": true, "share_encoder_decoder_embeddings": config.tie == Tie::All,
        "tie_word_embeddings": config.tie != Tie::None, "use_cache": true,
        "pad_token_id": target.pad_id(), "bos_token_id": target.bos_id(), "eos_token_id": target.eos_id(),
        "decoder_start_token_id": target.bos_id(), "forced_eos_token_id": null,
        // For `mt import`: what has no place elsewhere in these files, or is lost when `transformers` saves them again.
        (OURS): {
            "max_length": model.config.data.max_length, "decode": model.config.decode,
            "embedding_dropout": config.embedding_dropout, "sinusoid": stored_sinusoid(config),
            "target_tokenizer": target_tokenizer(model.tokenizers),
        },
    })
}

/// The search options of `generate`, as close to our own configuration as they can be.
pub(super) fn generation(model: &Model) -> Value {
    let (config, target) = (model.config, &model.tokenizers.target);
    let mut keys = json!({
        "pad_token_id": target.pad_id(), "bos_token_id": target.bos_id(), "eos_token_id": target.eos_id(),
        "decoder_start_token_id": target.bos_id(),
        // Never part of a translation.
        "bad_words_ids": target.forbidden().into_iter().map(|id| [id]).collect::<Vec<_>>(),
        // What is forbidden takes no share of any probability, either: here, padding.
        "renormalize_logits": !config.model.output_padding,
    });
    if let Some(keys) = keys.as_object_mut() {
        keys.extend(search::keys(&config.decode, config.model.max_length));
    }
    keys
}

/// The file of the target's tokenizer, if it has its own `tokenizer.json`.
fn target_tokenizer(tokenizers: &Tokenizers) -> Option<&'static str> {
    (!tokenizers.is_joint() && tokenizers.source.sentencepiece().is_none()).then_some(tokenizers::TARGET)
}

/// Writes the tokenizer of the source, which appends the end of the sentence, and that of the target if it has its own.
fn tokenizer(model: &Model, directory: &Path) -> Result<()> {
    let tokenizers = model.tokenizers;
    if let (Some(source), Some(target)) = (tokenizers.source.sentencepiece(), tokenizers.target.sentencepiece()) {
        return sentencepiece(model, [&source, &target], directory);
    }
    let files = [("tokenizer.json", "bpe.codes", &tokenizers.source)].into_iter();
    let target = target_tokenizer(tokenizers).map(|name| (name, "bpe.tgt.codes", &tokenizers.target));
    for (name, codes_name, tokenizer) in files.chain(target) {
        match tokenizer.codes()? {
            // The library has no such tokenizer.
            Some((codes, of_split_text)) => {
                write_text(directory, name, &with_end(&of_split_text)?)?;
                write_text(directory, codes_name, &codes)?;
            }
            None => write_text(directory, name, &with_end(tokenizer)?)?,
        }
    }
    let piece = |id| tokenizers.source.piece(id);
    let source = &tokenizers.source;
    write_json(
        directory,
        "tokenizer_config.json",
        &json!({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.model.max_length,
            "bos_token": piece(source.bos_id()), "eos_token": piece(source.eos_id()),
            "pad_token": piece(source.pad_id()),
            "unk_token": piece(source.unk_id()), "clean_up_tokenization_spaces": false, "split_special_tokens": true,
            "model_input_names": ["input_ids", "attention_mask"],
        }),
    )
}

/// What `MarianTokenizer` reads: SentencePiece models, and the ids of their pieces.
fn sentencepiece(model: &Model, [source_model, target_model]: [&[u8]; 2], directory: &Path) -> Result<()> {
    let Tokenizers { source, target } = model.tokenizers;
    for (name, bytes) in [("source.spm", source_model), ("target.spm", target_model)] {
        write_bytes(directory, name, bytes)?;
    }
    let ids = |tokenizer: &Tokenizer| -> serde_json::Map<String, Value> {
        pieces(tokenizer).into_iter().map(str::to_owned).zip((0..).map(Value::from)).collect()
    };
    let (of_source, of_target) = (ids(source), ids(target));
    let is_separate = of_source != of_target;
    write_json(directory, "vocab.json", &of_source)?;
    if is_separate {
        write_json(directory, "target_vocab.json", &of_target)?;
    }
    let piece = |id| source.piece(id);
    write_json(
        directory,
        "tokenizer_config.json",
        &json!({
            "tokenizer_class": "MarianTokenizer", "model_max_length": model.config.model.max_length,
            "separate_vocabs": is_separate, "eos_token": piece(source.eos_id()), "pad_token": piece(source.pad_id()),
            "unk_token": piece(source.unk_id()), "clean_up_tokenization_spaces": false, "split_special_tokens": true,
        }),
    )
}

/// A tokenizer.json that appends the end of the sentence to each line.
fn with_end(tokenizer: &Tokenizer) -> Result<String> {
    let mut json: Value = serde_json::from_str(tokenizer.json())
        .map_err(|error| Error::failure("the tokenizer is not JSON").caused_by(error))?;
    let (end, id) = (tokenizer.piece(tokenizer.eos_id()).unwrap_or_default(), tokenizer.eos_id());
    let special = json!({ "SpecialToken": { "id": end, "type_id": 0 } });
    let sequence = |name: &str, type_id: u32| json!({ "Sequence": { "id": name, "type_id": type_id } });
    json["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [sequence("A", 0), special],
        "pair": [sequence("A", 0), sequence("B", 0), special],
        "special_tokens": { end: { "id": end, "ids": [id], "tokens": [end] } },
    });
    Ok(json.to_string())
}

struct Tensors<'a>(Vec<Tensor<'a>>);

impl<'a> Tensors<'a> {
    fn new(model: &Model<'a>) -> Result<Self> {
        let mut tensors = Self(Vec::new());
        let config = &model.config.model;
        let target = model.tokenizers.target.vocab_size();
        let [source, target_table] = EMBEDDINGS;
        let tables: &[(&str, &str)] = match config.tie {
            Tie::All => &[(SHARED, "source_embedding.weight")],
            Tie::Decoder => &[(source, "source_embedding.weight"), (target_table, "target_embedding.weight")],
            Tie::None | Tie::Embeddings => &[
                (source, "source_embedding.weight"),
                (target_table, "target_embedding.weight"),
                (OUTPUT_WEIGHT, "output_projection.weight"),
            ],
        };
        for (to, from) in tables {
            tensors.parameter(model, (*to).to_owned(), from, Width::Columns)?;
        }
        let bias = model.get("output_projection.bias").map_or(Cow::from(vec![0f32; target]), |(_, bias)| bias.into());
        tensors.0.push((OUTPUT_BIAS.to_owned(), vec![1, target], bias));
        for (stack, table) in ["encoder", "decoder"].into_iter().zip(POSITIONS) {
            let positions = sinusoidal(stored_sinusoid(config), 0, config.max_length, config.d_model);
            let shape = vec![config.max_length, config.d_model];
            tensors.0.push((table.to_owned(), shape, positions.into()));
            let layers = if stack == "encoder" { config.encoder_layers } else { config.decoder_layers };
            for i in 0..layers {
                tensors.layer(model, stack, i)?;
            }
        }
        Ok(tensors)
    }

    fn layer(&mut self, model: &Model<'a>, stack: &str, i: usize) -> Result<()> {
        let layer = format!("{stack}.layers.{i}");
        let attentions: &[&str] = if stack == "decoder" { &["self_attn", "cross_attn"] } else { &["self_attn"] };
        for attention in attentions {
            for projection in ["q_proj", "k_proj", "v_proj"] {
                self.linear(model, &format!("{layer}.{attention}.{projection}"), false)?;
            }
            self.linear(model, &format!("{layer}.{attention}.out_proj"), true)?;
            self.norm(model, &format!("{layer}.{attention}_norm"))?;
        }
        self.linear(model, &format!("{layer}.feed_forward.fc1"), false)?;
        self.linear(model, &format!("{layer}.feed_forward.fc2"), true)?;
        self.norm(model, &format!("{layer}.feed_forward_norm"))
    }

    /// A projection from the model's width, or to it. A missing bias is written as zeros.
    fn linear(&mut self, model: &Model<'a>, name: &str, to_width: bool) -> Result<()> {
        let (weight, bias) = if to_width { (Width::Rows, Width::Vector) } else { (Width::Columns, Width::Nowhere) };
        let [matrix, vector] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
        self.parameter(model, layer_name(&matrix), &matrix, weight)?;
        let rows = model.parameter(&matrix)?.0[0];
        if model.get(&vector).is_some() {
            return self.parameter(model, layer_name(&vector), &vector, bias);
        }
        self.0.push((layer_name(&vector), vec![rows], vec![0f32; rows].into()));
        Ok(())
    }

    fn norm(&mut self, model: &Model<'a>, name: &str) -> Result<()> {
        for part in ["weight", "bias"] {
            let name = format!("{name}.{part}");
            self.parameter(model, layer_name(&name), &name, Width::Vector)?;
        }
        Ok(())
    }

    fn parameter(&mut self, model: &Model<'a>, to: String, from: &str, width: Width) -> Result<()> {
        let (shape, values) = model.parameter(from)?;
        let permuted = match model.config.model.sinusoid {
            Sinusoid::Halves | Sinusoid::Tensor2Tensor => values.into(),
            Sinusoid::Interleaved => permuted(shape, values, width),
        };
        self.0.push((to, shape.to_vec(), permuted));
        Ok(())
    }
}

/// A parameter with the even components of the model's width before the odd ones.
fn permuted<'a>(shape: &[usize], values: &'a [f32], width: Width) -> Cow<'a, [f32]> {
    let place = |i: usize, d: usize| if i < d / 2 { 2 * i } else { 2 * (i - d / 2) + 1 };
    match (width, shape) {
        (Width::Nowhere, _) => values.into(),
        (Width::Rows, [rows, columns]) => {
            (0..*rows).flat_map(|i| &values[place(i, *rows) * columns..][..*columns]).copied().collect()
        }
        (_, shape) => {
            let d = shape[shape.len() - 1];
            values.chunks_exact(d).flat_map(|row| (0..d).map(move |i| row[place(i, d)])).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_permuted_wherever_it_is() {
        let values: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(*permuted(&[8], &values, Width::Vector), [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
        assert_eq!(*permuted(&[2, 4], &values, Width::Columns), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert_eq!(*permuted(&[4, 2], &values, Width::Rows), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
        assert_eq!(*permuted(&[8], &values, Width::Nowhere), values);
    }
}
