//! A folder of Hugging Face `transformers` of the M2M-100 family (to which NLLB-200 belongs) or of mBART-50: the family
//! that a multilingual model came from. Parameters have the same layout there, but for the names.

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::hf_marian::activation;
use super::{Model, Obstacles, Tensor, pieces, write_bytes, write_json, write_text, write_transformers};
use crate::data::tokenizer::Tokenizer;
use crate::error::Result;
use crate::interop::hf_names::{FIRST_LEARNED, OUTPUT_BIAS, SHARED, layer_name};
use crate::interop::search::{self, OURS};
use crate::model::{NormPlacement, PositionKind, Sinusoid, Tie};

/// The ε of norms in `transformers`.
const EPSILON: f64 = 1e-5;
/// How many languages M2M-100 has: its tokenizer in `transformers` lists them itself.
const OF_M2M_100: usize = 100;

/// Which tokenizer `transformers` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// SentencePiece, with ids of its own, and a fixed list of languages.
    M2m100,
    /// `tokenizer.json`, with any languages.
    Nllb,
    /// `tokenizer.json` or SentencePiece.
    Mbart50,
}

impl Kind {
    fn of(model: &Model) -> Self {
        let tokenizer = &model.tokenizers.target;
        let is_m2m = languages(tokenizer).iter().all(|(code, id)| tokenizer.piece(*id) != Some(code));
        let is_whole = languages(tokenizer).len() == OF_M2M_100 && tokenizer.sentencepiece().is_some();
        match model.config.model.positions {
            PositionKind::Learned => Self::Mbart50,
            _ if is_m2m && is_whole => Self::M2m100,
            _ => Self::Nllb,
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::M2m100 => "M2M100Tokenizer",
            Self::Nllb => "NllbTokenizer",
            Self::Mbart50 => "MBart50Tokenizer",
        }
    }
}

/// The languages in the order of their ids.
fn languages(tokenizer: &Tokenizer) -> Vec<(&str, u32)> {
    let mut languages = tokenizer.languages();
    languages.sort_by_key(|(_, id)| *id);
    languages
}

/// Writes the model into a new directory.
///
/// # Errors
/// The families cannot express such a model (every obstacle is named), or the directory exists or cannot be written.
pub(super) fn export(model: &Model, out: &Path) -> Result<Vec<String>> {
    refuse(model)?;
    let settings = [config(model), generation(model)];
    write_transformers(out, settings, &tensors(model)?, |directory| tokenizer(model, directory))?;
    Ok(notes(model))
}

fn refuse(model: &Model) -> Result<()> {
    let config = &model.config.model;
    let is_mbart = config.positions == PositionKind::Learned;
    let mut obstacles = Obstacles::of_bart(if is_mbart { "mBART" } else { "M2M-100" }, config);
    obstacles.unless(config.norm == NormPlacement::Pre, "model.norm", "it normalises before every sub-layer");
    obstacles.unless(config.final_norm, "model.final_norm", "its stacks end with a norm");
    obstacles.unless(config.norm_eps == EPSILON, "model.norm_eps", "it is 1e-5 there");
    obstacles.unless(config.tie == Tie::All, "model.tie", "all its embeddings are one");
    if is_mbart {
        obstacles.unless(config.embedding_norm, "model.embedding_norm", "its embeddings are normalised");
    } else {
        let first = model.tokenizers.target.pad_id() as usize + 1;
        obstacles.unless(!config.embedding_norm, "model.embedding_norm", "its embeddings are not normalised");
        obstacles.unless(!config.output_bias, "model.output_bias", "its output projection has no bias");
        obstacles.unless(
            config.positions == PositionKind::Sinusoidal,
            "model.positions",
            "its positions are sinusoidal",
        );
        obstacles.unless(config.sinusoid == Sinusoid::Tensor2Tensor, "model.sinusoid", "it is \"tensor2tensor\" there");
        obstacles.unless(config.first_position == first, "model.first_position", "it is the one after padding's id");
    }
    obstacles.check()
}

fn notes(model: &Model) -> Vec<String> {
    let mut notes = Vec::new();
    let tokenizer = &model.tokenizers.target;
    let named_otherwise = languages(tokenizer).into_iter().find(|(code, id)| tokenizer.piece(*id) != Some(code));
    if let (Kind::Nllb, Some((code, id))) = (Kind::of(model), named_otherwise) {
        let piece = tokenizer.piece(id).unwrap_or_default();
        notes.push(format!(
            "the tokenizer of M2M-100 has a fixed list of languages, so this model has that of NLLB-200: there, {code} \
             is called {piece}"
        ));
    }
    notes.extend(search::difference(&model.config.decode));
    notes
}

fn config(model: &Model) -> Value {
    let (config, target) = (&model.config.model, &model.tokenizers.target);
    let (class, family) = match config.positions {
        PositionKind::Learned => ("MBartForConditionalGeneration", "mbart"),
        _ => ("M2M100ForConditionalGeneration", "m2m_100"),
    };
    json!({
        "architectures": [class], "model_type": family, "is_encoder_decoder": true, "dtype": "float32",
        "tokenizer_class": Kind::of(model).class(), "vocab_size": target.vocab_size(),
        "d_model": config.d_model, "encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers,
        "num_hidden_layers": config.encoder_layers, "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads, "encoder_ffn_dim": config.d_ff, "decoder_ffn_dim": config.d_ff,
        "activation_function": activation(config), "dropout": config.dropout,
        "attention_dropout": config.attention_dropout, "activation_dropout": config.activation_dropout,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "max_position_embeddings": config.max_length,
        "scale_embedding": config.scale_embedding, "tie_word_embeddings": true, "use_cache": true,
        "pad_token_id": target.pad_id(), "bos_token_id": 0, "eos_token_id": target.eos_id(),
        "decoder_start_token_id": target.bos_id(), "forced_eos_token_id": null,
        // For `mt import`: what is lost when `transformers` saves the model again.
        (OURS): {
            "max_length": model.config.data.max_length, "decode": model.config.decode,
            "embedding_dropout": config.embedding_dropout,
        },
    })
}

/// The search options of `generate`, as close to our own configuration as they can be.
fn generation(model: &Model) -> Value {
    let (config, target) = (model.config, &model.tokenizers.target);
    let is_spare = |id: &u32| target.piece(*id).is_some_and(|piece| piece.starts_with("<unused_"));
    let forbidden = target.forbidden().into_iter().filter(|id| !is_spare(id));
    let mut keys = json!({
        "pad_token_id": target.pad_id(), "bos_token_id": 0, "eos_token_id": target.eos_id(),
        "decoder_start_token_id": target.bos_id(),
        "bad_words_ids": forbidden.map(|id| [id]).collect::<Vec<_>>(),
        "renormalize_logits": !config.model.output_padding,
    });
    let language = config.decode.target_language.as_deref();
    let language = languages(target).into_iter().find(|(code, _)| Some(*code) == language);
    if let Some(keys) = keys.as_object_mut() {
        keys.extend(search::keys(&config.decode, config.model.max_length));
        keys.extend(language.map(|(_, id)| ("forced_bos_token_id".to_owned(), id.into())));
    }
    keys
}

fn tensors<'a>(model: &Model<'a>) -> Result<Vec<Tensor<'a>>> {
    let config = &model.config.model;
    let mut tensors: Vec<Tensor> = Vec::new();
    for entry in model.layout.entries() {
        let (shape, values) = model.parameter(&entry.name)?;
        let mut shape = shape.to_vec();
        let (name, values): (String, Cow<[f32]>) = match entry.name.as_str() {
            "source_embedding.weight" => (SHARED.to_owned(), values.into()),
            "output_projection.bias" => {
                shape.insert(0, 1);
                (OUTPUT_BIAS.to_owned(), values.into())
            }
            name if name.ends_with(".positions.weight") => {
                shape[0] += FIRST_LEARNED;
                let unused = std::iter::repeat_n(0.0, FIRST_LEARNED * config.d_model);
                (layer_name(name), unused.chain(values.iter().copied()).collect())
            }
            name => (layer_name(name), values.into()),
        };
        let bias = name.strip_suffix("_proj.weight").map(|projection| format!("{projection}_proj.bias"));
        if let (Some(bias), false) = (bias, config.attention_bias) {
            tensors.push((bias, vec![shape[0]], vec![0.0; shape[0]].into()));
        }
        tensors.push((name, shape, values));
    }
    if config.positions == PositionKind::Learned && !config.output_bias {
        let size = model.tokenizers.target.vocab_size();
        tensors.push((OUTPUT_BIAS.to_owned(), vec![1, size], vec![0.0; size].into()));
    }
    Ok(tensors)
}

fn tokenizer(model: &Model, directory: &Path) -> Result<()> {
    let tokenizer = &model.tokenizers.target;
    let (kind, all) = (Kind::of(model), pieces(tokenizer));
    let languages = languages(tokenizer);
    let names: Vec<&str> = languages.iter().filter_map(|(_, id)| tokenizer.piece(*id)).collect();
    // The tokenizer of M2M-100 alone knows codes that are not pieces.
    let named = |code: &Option<String>| {
        let id = languages.iter().find(|(other, _)| Some(*other) == code.as_deref()).map(|(_, id)| *id);
        id.and_then(|id| tokenizer.piece(id)).filter(|_| kind != Kind::M2m100).map(str::to_owned).or(code.clone())
    };
    if let Some(bytes) = tokenizer.sentencepiece()
        && (kind == Kind::M2m100 || has_ids_of_fairseq(tokenizer, &bytes)?)
    {
        write_bytes(directory, "sentencepiece.bpe.model", &bytes)?;
    }
    let special = json!({
        "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
        "additional_special_tokens": names,
    });
    write_json(directory, "special_tokens_map.json", &special)?;
    let mut config = json!({
        "tokenizer_class": kind.class(), "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "model_max_length": model.config.model.max_length,
        "additional_special_tokens": names, "src_lang": named(&model.config.decode.source_language),
        "tgt_lang": named(&model.config.decode.target_language),
    });
    match kind {
        Kind::M2m100 => {
            let first = languages.first().map_or(all.len(), |(_, id)| *id as usize);
            let ids: Map<String, Value> =
                all[..first].iter().map(|piece| (*piece).to_owned()).zip((0..).map(Value::from)).collect();
            write_json(directory, "vocab.json", &ids)?;
            config["language_codes"] = "m2m100".into();
        }
        Kind::Nllb | Kind::Mbart50 => {
            if all.contains(&"<mask>") {
                config["mask_token"] = "<mask>".into();
            }
            config["legacy_behaviour"] = tokenizer.language_last().into();
            write_text(directory, "tokenizer.json", &tokenizer.library_json()?)?;
        }
    }
    write_json(directory, "tokenizer_config.json", &config)
}

/// Whether ids follow from a SentencePiece model as in fairseq: each one higher than there, from the fourth on.
fn has_ids_of_fairseq(tokenizer: &Tokenizer, model: &[u8]) -> Result<bool> {
    let model = Tokenizer::from_bytes(model.to_vec())?;
    let first = languages(tokenizer).first().map_or(tokenizer.vocab_size() as u32, |(_, id)| *id);
    let size = (model.vocab_size() - model.appended().len()) as u32;
    Ok(first == size + 1 && (4..first).all(|id| tokenizer.piece(id) == model.piece(id - 1)))
}
