//! Exports our models to the formats of other programs. One module for each [`Format`].
//!
//! An exporter first reports everything that the format cannot express ([`Obstacles`]). The exported model computes the
//! same as ours, up to the rounding of sums in another order.

pub mod ct2;
mod hf_marian;
mod hf_multilingual;
mod hf_t5;

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use serde_json::Value;

use crate::checkpoint::format::{self, Elements, NamedTensor};
use crate::checkpoint::{whole_directory, write_error};
use crate::choice::choice;
use crate::config::Config;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::file;
use crate::model::{ModelConfig, NormKind, PositionKind, Tie};
use crate::ops::params::ParameterLayout;

choice! {
    /// A format that another program reads.
    pub enum Format {
        /// A CTranslate2 model directory.
        Ct2 = "ct2",
        /// A folder of Hugging Face `transformers`: of the family that a model came from, MarianMT for one of our own.
        Hf = "hf",
        /// A MarianMT folder of `transformers`.
        HfMarian = "hf-marian",
    }
}

impl Format {
    /// All of them with what they are, for the help.
    #[must_use]
    pub fn list() -> String {
        let about = |format: &Self| format!("{format} for {}", format.about());
        Self::ALL.iter().map(about).collect::<Vec<_>>().join(", or ")
    }

    fn about(self) -> &'static str {
        match self {
            Self::Ct2 => "CTranslate2",
            Self::Hf => "Hugging Face transformers, in the model's own family",
            Self::HfMarian => "a MarianMT folder of transformers",
        }
    }

    /// Writes a model into a new directory. What is returned are notes for those who use it there.
    ///
    /// # Errors
    /// The format cannot express such a model (every obstacle is named), or the directory exists or cannot be written.
    pub fn export(self, model: &Model, quantization: ct2::Quantization, out: &Path) -> Result<Vec<String>> {
        match self {
            Self::Ct2 => ct2::export(model, quantization, out),
            Self::Hf if model.config.model.positions == PositionKind::Relative => hf_t5::export(model, out),
            Self::Hf if !model.tokenizers.target.languages().is_empty() => hf_multilingual::export(model, out),
            Self::Hf | Self::HfMarian => hf_marian::export(model, out),
        }
    }
}

/// A model to be exported.
pub struct Model<'a> {
    /// Its resolved configuration.
    pub config: &'a Config,
    /// Its tokenizers.
    pub tokenizers: &'a Tokenizers,
    /// Where each parameter lies in `values`.
    pub layout: &'a ParameterLayout,
    /// All parameters.
    pub values: &'a [f32],
}

impl<'a> Model<'a> {
    /// A parameter's shape and values, if the model has it.
    fn get(&self, name: &str) -> Option<(&'a [usize], &'a [f32])> {
        let entry = self.layout.entries().iter().find(|entry| entry.name == name)?;
        Some((&entry.shape, self.values.get(entry.range())?))
    }

    /// As [`Model::get`], for a parameter that a model with this configuration must have.
    fn parameter(&self, name: &str) -> Result<(&'a [usize], &'a [f32])> {
        self.get(name).ok_or_else(|| Error::failure(format!("the model has no {name}")))
    }
}

/// What a model has that the other format cannot express.
struct Obstacles {
    format: &'static str,
    found: Vec<String>,
}

impl Obstacles {
    /// None yet.
    fn new(format: &'static str) -> Self {
        Self { format, found: Vec::new() }
    }

    /// Those that a model has in every family that descends from BART. What only some of them lack, their exporters
    /// add.
    fn of_bart(format: &'static str, config: &ModelConfig) -> Self {
        // All by name, so that of a new key someone asks which formats have it.
        let ModelConfig {
            norm_kind,
            gated,
            feed_forward_bias,
            tie,
            // Exporters look at these: some formats do not have all of them.
            norm: _,
            final_norm: _,
            embedding_norm: _,
            first_position: _,
            norm_eps: _,
            positions: _,
            // These can be expressed.
            d_model: _,
            d_ff: _,
            heads: _,
            encoder_layers: _,
            decoder_layers: _,
            sinusoid: _,
            scale_embedding: _,
            output_bias: _,
            output_padding: _,
            attention_bias: _,
            activation: _,
            max_length: _,
            padding_mask: _,
            // `uneven_width` looks at these.
            d_k: _,
            d_v: _,
            // These matter to relative positions only.
            relative_buckets: _,
            relative_distance: _,
            // These matter to training only.
            preset: _,
            dropout: _,
            embedding_dropout: _,
            attention_dropout: _,
            activation_dropout: _,
            init: _,
        } = config;
        let mut obstacles = Self::new(format);
        obstacles.unless(*norm_kind == NormKind::Layer, "model.norm_kind", "it divides by √(σ² + ε)");
        obstacles.unless(!gated, "model.gated", "mt writes feed-forward layers of two projections there");
        obstacles.unless(
            *feed_forward_bias,
            "model.feed_forward_bias",
            "mt writes feed-forward layers with biases there",
        );
        let is_expressed = *tie != Tie::Embeddings;
        obstacles.unless(
            is_expressed,
            "model.tie",
            "where source and target share a matrix, its output projection has it, too",
        );
        if let Some(key) = uneven_width(config) {
            obstacles.add(key, "its heads share d_model evenly");
        }
        obstacles
    }

    /// Notes an option as an obstacle unless `holds`.
    fn unless(&mut self, holds: bool, option: &str, why: &str) {
        if !holds {
            self.add(option, why);
        }
    }

    fn add(&mut self, option: &str, why: &str) {
        self.found.push(format!("`{option}`: {why}"));
    }

    /// All of them as one error.
    fn check(self) -> Result<()> {
        let errors = self.found.into_iter().map(|what| Error::failure(format!("{} cannot take {what}", self.format)));
        let errors: Vec<Error> = errors.collect();
        if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
    }
}

/// The key that breaks the rule that heads share the model's width evenly, which most programs take for granted.
fn uneven_width(config: &ModelConfig) -> Option<&'static str> {
    let is_uneven = |width: usize| width * config.heads != config.d_model;
    if is_uneven(config.d_k) { Some("model.d_k") } else { is_uneven(config.d_v).then_some("model.d_v") }
}

/// A vocabulary in the order of its ids.
fn pieces(tokenizer: &Tokenizer) -> Vec<&str> {
    (0..tokenizer.vocab_size() as u32).map(|id| tokenizer.piece(id).unwrap_or_default()).collect()
}

/// A tensor of a folder of `transformers`: name, shape and values.
type Tensor<'a> = (String, Vec<usize>, Cow<'a, [f32]>);

/// Writes a new folder of `transformers`, with the files that `tokenizer` adds; whole, or not at all.
fn write_transformers(
    out: &Path,
    [config, generation]: [Value; 2],
    tensors: &[Tensor],
    tokenizer: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    whole_directory(out, |directory| {
        write_json(directory, "config.json", &config)?;
        write_json(directory, "generation_config.json", &generation)?;
        let named: Vec<NamedTensor> = tensors
            .iter()
            .map(|(name, shape, values)| NamedTensor { name, shape, data: Elements::F32(values) })
            .collect();
        format::write_with_metadata(directory, "model.safetensors", &named, &[("format", "pt")])?;
        tokenizer(directory)
    })
}

/// Writes a small file, and syncs it to disk: the folder is to be whole once it has its name.
fn write_bytes(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let file = directory.join(name);
    let write = || {
        let mut file = file::create(&file)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| write_error(&file, error))
}

/// As [`write_bytes`], of text.
fn write_text(directory: &Path, name: &str, text: &str) -> Result<()> {
    write_bytes(directory, name, text.as_bytes())
}

/// As [`write_text`], for people to read.
fn write_json(directory: &Path, name: &str, json: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(json)
        .map_err(|error| Error::failure(format!("{name} cannot be written as JSON")).caused_by(error))?;
    write_text(directory, name, &(text + "\n"))
}
