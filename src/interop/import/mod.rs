//! Models of other programs, read into one of ours. One module for each format.
//!
//! Only data is read, never a pickle, which can run code. Each importer maps the names in the file to places in our
//! flat buffer: every tensor of the file must have a place and every place a tensor, of the right shape.
//!
//! [`FORMATS`] is the registry. How a format is recognised, which files are fetched from the hub, and what messages and
//! the help say that there is to import, all follow from it.

pub mod hf;
mod marian;

use std::path::Path;

use crate::config::Config;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Vocabulary, layout};
use crate::ops::params::ParameterLayout;
use crate::{file, key, limits};
use hf::Family;

/// The formats that are read.
const FORMATS: &[Format] = &[hf::MARIAN, hf::M2M_100, hf::MBART, hf::T5, hf::MT5, marian::FORMAT];

/// Programs whose models are not read, by a file that each model has: what "this" is, and why not.
const OTHERS: &[(&str, &str)] = &[
    ("model.bin", "looks like a model of CTranslate2, which is not read: import the model that it was made from"),
    ("checkpoint_best.pt", "looks like a model of fairseq, which is a pickle, can run any code and is never read"),
];

/// A format of another program's models.
pub struct Format {
    /// What users call the models.
    pub name: &'static str,
    /// Which files are of this format.
    recognition: Recognition,
    /// Reads a model: its folder or, if its files are its own, also one of these.
    read: fn(&Path) -> Result<Imported>,
}

/// How a format is told from others.
enum Recognition {
    /// It is a family of `transformers`.
    Transformers(Family),
    /// It has files that no other format has.
    Files {
        /// What these are, in a sentence: "a .npz".
        files: &'static str,
        /// Whether there is a model of this format at a path.
        is_model: fn(&Path) -> bool,
    },
}

impl Format {
    /// All of them.
    pub fn all() -> std::slice::Iter<'static, Self> {
        FORMATS.iter()
    }

    /// The format of the model at a path.
    fn recognise(source: &Path) -> Result<&'static Self> {
        match Self::with_own_files(source) {
            Some(format) => Ok(format),
            None => {
                hf::check_folder(source)?;
                Ok(hf::format_of(source)?.0)
            }
        }
    }

    fn with_own_files(source: &Path) -> Option<&'static Self> {
        FORMATS.iter().find(|format| match format.recognition {
            Recognition::Files { is_model, .. } => is_model(source),
            Recognition::Transformers(_) => false,
        })
    }

    /// The family, if it is one of `transformers`.
    pub fn family(&self) -> Option<&Family> {
        match &self.recognition {
            Recognition::Transformers(family) => Some(family),
            Recognition::Files { .. } => None,
        }
    }

    /// The files that only this format has.
    fn own_files(&self) -> Option<String> {
        match self.recognition {
            Recognition::Files { files, .. } => Some(format!("{files} ({})", self.name)),
            Recognition::Transformers(_) => None,
        }
    }

    /// Reads a model.
    ///
    /// # Errors
    /// Files are missing, or the model is not supported; all problems are named.
    pub fn import(&self, source: &Path) -> Result<Imported> {
        if let Some(family) = self.family() {
            family.check(source)?;
        }
        (self.read)(source)
    }
}

/// The names of all formats, in a sentence.
pub fn names() -> String {
    or(&Format::all().map(|format| format.name).collect::<Vec<_>>())
}

/// What can be imported, in a sentence.
pub fn sources() -> String {
    let families: Vec<&str> = Format::all().filter(|format| format.family().is_some()).map(|f| f.name).collect();
    let own = Format::all().filter_map(Format::own_files).map(|files| format!(", or {files} or its folder"));
    format!("the folder of a {} model of Hugging Face transformers{}", or(&families), own.collect::<String>())
}

/// Names in a sentence: "a, b or c".
fn or(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// What to do with a directory that is no model of ours, if it looks like one of another program's.
pub fn advice(directory: &Path) -> Option<String> {
    let own = Format::with_own_files(directory);
    if let (None, Some(other)) = (own, hf::other_program(directory)) {
        return Some(format!("it {other}"));
    }
    let is_model = own.is_some() || directory.join(hf::CONFIG).exists();
    is_model.then(|| "it looks like another program's model; import it first: mt import DIR --out MODEL_DIR".to_owned())
}

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

/// Reads a model in any of the [`FORMATS`].
///
/// # Errors
/// There is no model, or it is not supported; all problems are named.
pub fn import(source: &Path) -> Result<Imported> {
    Format::recognise(source)?.import(source)
}

/// Reads one of the small files, without a byte order mark (a SentencePiece model never begins like one).
fn read(file: &Path) -> Result<Vec<u8>> {
    let bytes =
        file::read_at_most(file, limits::IMPORTED_BYTES).map_err(|error| Error::io("read the model", file, error))?;
    Ok(file::without_mark(bytes))
}

/// The parameters of a model whose weights are in `weights`, of so many bytes. Fails if these are too few to hold them,
/// so that sizes stated by a damaged file cannot exhaust memory.
fn layout_within(
    config: &ModelConfig,
    vocabulary: Vocabulary,
    (weights, length): (&Path, u64),
) -> Result<ParameterLayout> {
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
    // A parameter takes at least two bytes.
    if layout.total() as u64 > length {
        return Err(unlikely(format!("{} parameters do not fit in {length} bytes", layout.total())));
    }
    Ok(layout)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_found_by_the_name_in_its_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (format, family) in Format::all().filter_map(|format| Some((format, format.family()?))) {
            std::fs::write(path.join(hf::CONFIG), format!("{{\"model_type\": \"{}\"}}", family.model_type)).unwrap();
            assert_eq!(Format::recognise(path).map(|found| found.name).ok(), Some(format.name));
            assert!(sources().contains(format.name) && names().contains(format.name));
        }
        let families = Format::all().filter_map(Format::family).map(|family| family.model_type);
        assert_eq!(families.clone().collect::<std::collections::BTreeSet<_>>().len(), families.count());
    }

    #[test]
    fn names_in_a_sentence() {
        assert_eq!([or(&[""; 0]), or(&["a"]), or(&["a", "b"]), or(&["a", "b", "c"])], ["", "a", "a or b", "a, b or c"]);
    }
}
