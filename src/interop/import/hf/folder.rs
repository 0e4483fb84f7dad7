//! Folders of Hugging Face `transformers`: what all of its model families have in common. `config.json` says of which
//! family a model is. Repositories of the hub are such folders.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::super::{Format, OTHERS, or, read, sources};
use super::{marian_vocabulary, t5_vocabulary, weights};
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::escape::brief;
use crate::foreign::refuse_many_values;
use crate::limits;

/// The configuration.
pub const CONFIG: &str = "config.json";
/// The weights.
pub const WEIGHTS: &str = "model.safetensors";
/// The list of the files with the weights, where there are several.
pub const INDEX: &str = "model.safetensors.index.json";
/// The weights in a form that is not read.
const PICKLE: &str = "pytorch_model.bin";
/// The settings of the search, if they are not in the configuration.
pub(in crate::interop::import) const GENERATION: &str = "generation_config.json";

/// A family of models: which of them is one, and the files that it has beside the configuration and the weights.
pub struct Family {
    /// `model_type` in `config.json`.
    pub(in crate::interop::import) model_type: &'static str,
    /// The files of its subwords. There may be several forms; the first form whose first file is there is read.
    pub(in crate::interop::import) subwords: &'static [&'static [&'static str]],
    /// Files that it may have.
    pub(in crate::interop::import) optional: &'static [&'static str],
    /// Must change when another model would be made of the same files: those of the hub are imported again then.
    pub version: u32,
}

impl Family {
    /// All files that may be read beside the configuration.
    pub fn files(&self) -> impl Iterator<Item = &'static str> {
        let subwords = self.subwords.iter().copied().flatten();
        [GENERATION, WEIGHTS, INDEX].iter().chain(subwords).chain(self.optional).copied()
    }

    /// Names every file that a folder lacks, and what to do about it.
    pub(in crate::interop::import) fn check(&self, folder: &Path) -> Result<()> {
        let has = |name: &str| folder.join(name).is_file();
        let mut errors = Vec::new();
        match Weights::among(&has).map_err(|error| error.at(folder))? {
            Weights::Safetensors => {}
            Weights::Parts => {
                let names: BTreeSet<String> = weights::listed(folder)?.into_values().collect();
                errors.extend(names.iter().filter(|name| !has(name)).map(|name| {
                    missing(name, folder).help(format!("{INDEX} lists it as a part of the weights: fetch it, too"))
                }));
            }
            Weights::Pickle => {
                let what =
                    "the weights are a pickle (pytorch_model.bin), which can run any code and is never read here";
                let help = "convert it where you trust it, in Python: from transformers import AutoModelForSeq2SeqLM; \
                            AutoModelForSeq2SeqLM.from_pretrained(\"DIR\").save_pretrained(\"DIR\")";
                errors.push(Error::failure(what).at(folder).help(help));
            }
            Weights::None => errors.push(missing(WEIGHTS, folder)),
        }
        let is_form = |files: &&&[&str]| files.first().is_some_and(|name| has(name));
        let subwords = self.subwords.iter().find(is_form).or(self.subwords.first()).copied().unwrap_or_default();
        let names = [CONFIG].iter().chain(subwords).filter(|name| !has(name));
        errors.extend(names.map(|name| match *name {
            t5_vocabulary::MODEL if has(marian_vocabulary::TOKENIZER) => {
                let help = "transformers 5 does not save it: copy it from the model that this one was made of";
                Error::failure(format!("{name} is missing")).at(folder).help(help)
            }
            name => missing(name, folder),
        }));
        if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
    }
}

fn missing(name: &str, folder: &Path) -> Error {
    Error::failure(format!("{name} is missing")).at(folder).help(format!("name {}", sources()))
}

/// Checks that something is a folder that may be of `transformers`, and no other program's.
pub(in crate::interop::import) fn check_folder(folder: &Path) -> Result<()> {
    let own_files =
        || Format::all().filter_map(Format::own_files).map(|files| format!(" nor {files}")).collect::<String>();
    if !folder.is_dir() {
        let is_file = || format!("this is neither a folder{}", own_files());
        let what = if folder.exists() { is_file() } else { "there is no such directory".to_owned() };
        return Err(Error::failure(what).at(folder).help(format!("name {}", sources())));
    }
    let has = |name: &str| folder.join(name).is_file();
    if has(checkpoint::CONFIG_FILE) {
        let error = Error::failure("this is already a model of mt").at(folder);
        return Err(error.help("use it as it is: mt translate --model DIR"));
    }
    if let Some(other) = other_program(folder) {
        return Err(Error::failure(format!("this {other}")).at(folder).help(format!("name {}", sources())));
    }
    if let (false, Ok(Weights::None)) = (has(CONFIG), Weights::among(&has)) {
        let what = format!("no model that mt could read: neither {WEIGHTS} and {CONFIG} (transformers){}", own_files());
        return Err(Error::failure(what).at(folder).help("name the folder that contains these files"));
    }
    Ok(())
}

/// What a folder looks like, and why it is not read, if it is another program's.
pub(in crate::interop::import) fn other_program(folder: &Path) -> Option<&'static str> {
    let has = |name: &str| folder.join(name).exists();
    OTHERS.iter().find(|(file, _)| !has(WEIGHTS) && has(file)).map(|(_, what)| *what)
}

/// The format of the family that the configuration in `folder` names. If it names none, the first family is to find
/// out what is wrong.
///
/// # Errors
/// The configuration cannot be read, or names a family that is not read.
pub fn format_of(folder: &Path) -> Result<(&'static Format, &'static Family)> {
    let file = folder.join(CONFIG);
    let config = if file.exists() { read_json(&file)? } else { Map::new() };
    let named = config.get("model_type").filter(|named| !named.is_null());
    let mut families = Format::all().filter_map(|format| Some((format, format.family()?)));
    let known: Vec<String> = families.clone().map(|(_, family)| format!("\"{}\"", family.model_type)).collect();
    families.find(|(_, family)| named.is_none_or(|named| named == family.model_type)).ok_or_else(|| {
        let named = named.map(Value::to_string).unwrap_or_default();
        let what = format!("`model_type` is {}, not {}: mt has no such model", brief(&named), or(&known));
        Error::failure(what).at(&file).help(format!("name {}", sources()))
    })
}

/// The form in which a model has its weights.
pub enum Weights {
    /// A file that is read.
    Safetensors,
    /// Several such files, and a list of them.
    Parts,
    /// A pickle alone, which the hub's converter may have replaced.
    Pickle,
    /// There are none.
    None,
}

impl Weights {
    /// The weights among files; `has` says whether there is one of that name.
    ///
    /// # Errors
    /// They are in another form, which is not read.
    pub fn among(has: &dyn Fn(&str) -> bool) -> Result<Self> {
        let (what, form) = match has {
            has if has(WEIGHTS) => return Ok(Self::Safetensors),
            has if has(INDEX) => return Ok(Self::Parts),
            has if has("pytorch_model.bin.index.json") => (
                "pytorch_model.bin.index.json: the weights are in several pickles, which can run any code and are \
                 never read here",
                "",
            ),
            has if has(PICKLE) => return Ok(Self::Pickle),
            has if has("tf_model.h5") => {
                ("tf_model.h5: the weights are TensorFlow's, which are not read", ", from_tf=True")
            }
            has if has("flax_model.msgpack") => {
                ("flax_model.msgpack: the weights are Flax's, which are not read", ", from_flax=True")
            }
            _ => return Ok(Self::None),
        };
        let error = Error::failure(format!("{what}; mt reads one {WEIGHTS}"));
        Err(error.help(format!(
            "save them as one, in Python: from transformers import AutoModelForSeq2SeqLM as M; \
             M.from_pretrained(\"DIR\"{form}).save_pretrained(\"ONE\", max_shard_size=\"100GB\"); copy the other files \
             beside it, and import that folder"
        )))
    }
}

/// Reads a JSON object.
pub(in crate::interop::import) fn read_json(file: &Path) -> Result<Map<String, Value>> {
    let bytes = read(file)?;
    refuse_many_values(&bytes, limits::TOKENIZER_VALUES).map_err(|error| error.at(file))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let what = format!("not a JSON object: {error}");
        Error::failure(what).at(file).caused_by(error).help("it is damaged: fetch it again")
    })
}
