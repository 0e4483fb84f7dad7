//! Weights of other programs, read into a model of ours. One module for each kind of source.
//!
//! Only data is read, never a pickle, which can run code. Each importer maps the names in the file to places in our
//! flat buffer: every tensor of the file must have a place and every place a tensor, of the right shape.

pub mod hf_marian;
pub mod marian;

use std::path::Path;

use candle_core::{DType, Tensor};

use crate::config::Config;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Vocabulary, layout};
use crate::ops::params::ParameterLayout;
use crate::{file, key, limits};

/// A model that was read.
pub struct Imported {
    /// Its configuration.
    pub config: Config,
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    /// Where each parameter lies in `values`.
    pub layout: ParameterLayout,
    /// All parameters.
    pub values: Vec<f32>,
    /// What users have to know about it.
    pub notes: Vec<String>,
}

/// Reads a MarianMT folder of `transformers`, or a model of Marian itself: its `.npz`, or the folder that it is in.
///
/// # Errors
/// There is no model, or it is not supported; all problems are named.
pub fn import(source: &Path) -> Result<Imported> {
    let has = |name: &str| source.join(name).is_file();
    if let (false, Some(error)) = (has(hf_marian::WEIGHTS) || marian::is_model(source), unread(&has)) {
        return Err(error.at(source));
    }
    if marian::is_model(source) { marian::import(source) } else { hf_marian::import(source) }
}

/// The error for weights in a form that is not read, if they are in one; `has` says whether there is a file of that
/// name. (One pickle alone is looked for elsewhere, since the hub's converter may have replaced it.)
pub fn unread(has: &dyn Fn(&str) -> bool) -> Option<Error> {
    let (what, form) = match has {
        has if has("model.safetensors.index.json") => {
            ("model.safetensors.index.json: the weights are in several files", "")
        }
        has if has("pytorch_model.bin.index.json") => (
            "pytorch_model.bin.index.json: the weights are in several pickles, which can run any code and are never \
             read here",
            "",
        ),
        has if has(hf_marian::PICKLE) => return None,
        has if has("tf_model.h5") => {
            ("tf_model.h5: the weights are TensorFlow's, which are not read", ", from_tf=True")
        }
        has if has("flax_model.msgpack") => {
            ("flax_model.msgpack: the weights are Flax's, which are not read", ", from_flax=True")
        }
        _ => return None,
    };
    let error = Error::failure(format!("{what}; mt reads one {}", hf_marian::WEIGHTS));
    Some(error.help(format!(
        "save them as one, in Python: from transformers import MarianMTModel; \
         MarianMTModel.from_pretrained(\"DIR\"{form}).save_pretrained(\"ONE\", max_shard_size=\"100GB\"); copy the \
         other files beside it, and import that folder"
    )))
}

/// Reads one of the small files, without a byte order mark (a SentencePiece model never begins like one).
fn read(file: &Path) -> Result<Vec<u8>> {
    let bytes =
        file::read_at_most(file, limits::IMPORTED_BYTES).map_err(|error| Error::io("read the model", file, error))?;
    Ok(file::without_mark(bytes))
}

/// Refuses weights that were not fetched, or not to the end, before the library reads all of them.
fn refuse_unfetched(weights: &Path) -> Result<()> {
    let refused = file::open_regular(weights).and_then(|file| {
        file::refuse_placeholder(&file)?;
        file::refuse_holes(&file)
    });
    refused.map_err(|error| Error::io("read the model", weights, error))
}

/// The parameters of a model whose weights are in `weights`. Fails if that file is too small to hold them, so that
/// sizes stated by a damaged file cannot exhaust memory.
fn layout_within(config: &ModelConfig, vocabulary: Vocabulary, weights: &Path) -> Result<ParameterLayout> {
    let unlikely = |what: String| {
        Error::failure(what).at(weights).help("the files are of different models, or damaged: fetch them again")
    };
    for (name, layers) in [("encoder", config.encoder_layers), ("decoder", config.decoder_layers)] {
        if layers as i128 > key::MOST_LAYERS {
            return Err(unlikely(format!(
                "a model with {layers} layers in its {name}; mt has at most {}",
                key::MOST_LAYERS
            )));
        }
    }
    let width = config.d_model.max(config.d_ff);
    if width as i128 > key::WIDTH {
        return Err(unlikely(format!("a model with a width of {width}; mt has at most {}", key::WIDTH)));
    }
    let layout = layout::layout(config, vocabulary);
    let length = std::fs::metadata(weights).map_err(|error| Error::io("read the model", weights, error))?.len();
    // A parameter takes at least two bytes.
    if layout.total() as u64 > length {
        return Err(unlikely(format!("{} parameters do not fit in a file of {length} bytes", layout.total())));
    }
    Ok(layout)
}

/// The values of a tensor in single precision.
///
/// # Errors
/// What is wrong with it.
fn floats(name: &str, tensor: &Tensor) -> std::result::Result<Vec<f32>, String> {
    if !tensor.dtype().is_float() {
        return Err(format!("`{name}` has numbers of the type {}, not weights", tensor.dtype().as_str()));
    }
    let read = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let values = read().map_err(|error| format!("`{name}` cannot be read: {error}"))?;
    match values.iter().filter(|value| !value.is_finite()).count() {
        0 => Ok(values),
        count => Err(format!("`{name}` has {count} values that are NaN or infinite")),
    }
}

/// What is wrong with the tensors of a file, if anything is.
fn tensor_problems(mut problems: Vec<String>, settings: &str, file: &Path) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    problems.sort();
    let what = format!("the tensors are not those of the model in {settings}:\n    {}", problems.join("\n    "));
    let help = "the files are of different models, or a model that mt does not have";
    Err(Error::failure(what).at(file).help(help))
}
