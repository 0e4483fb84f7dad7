//! The files of a model: a folder as on the hub, or a repository there.
//!
//! | | |
//! |---|---|
//! | `hparams.yaml` | the class, and the settings of its training |
//! | `checkpoints/model.ckpt` or `checkpoints/model.safetensors` | tensors; of the former, the settings again |
//! | `config.json`, and `tokenizer.json` or `sentencepiece.bpe.model` | of the encoder |
//!
//! The encoder's files are in the repository that the settings name, or in a folder `encoder` beside these.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::checkpoint::Checkpoint;
use super::encoder::Shape;
use super::settings::{Kind, Settings};
use super::tokenizer::{MODEL, WHOLE};
use crate::error::{Error, Result};
use crate::escape::{hex, quoted};
use crate::foreign::refuse_many_values;
use crate::hub::{DEFAULT_COMET, DEFAULT_QE, Hub, Repo};
use crate::interop::yaml;
use crate::{file, limits};

/// The settings of a model.
pub(super) const SETTINGS: &str = "hparams.yaml";
const CHECKPOINT: &str = "checkpoints/model.ckpt";
/// The tensors, where that is not there.
const SAFE: &str = "checkpoints/model.safetensors";
/// The encoder's shape.
const CONFIG: &str = "config.json";
/// Encoders of COMET's models.
const ENCODERS: &[&str] =
    &["xlm-roberta-large", "xlm-roberta-base", "FacebookAI/xlm-roberta-large", "microsoft/infoxlm-large"];
/// A folder for the encoder's files, where they are not fetched.
const ENCODER: &str = "encoder";

/// Where a model is.
#[derive(Clone, Debug)]
pub enum Place {
    /// A folder.
    Folder(PathBuf),
    /// A repository of the hub.
    Hub(Repo),
}

impl Place {
    /// From `hf:ORG/NAME` or a folder's path.
    ///
    /// # Errors
    /// There is no such folder, or it holds no model.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(repo) = Repo::named(name) {
            return Ok(Self::Hub(repo));
        }
        let folder = PathBuf::from(name);
        if folder.join(SETTINGS).is_file() {
            return Ok(Self::Folder(folder));
        }
        let what = if folder.exists() { format!("it has no {SETTINGS}") } else { "there is no such folder".to_owned() };
        let error = Error::failure(what).at(&folder);
        Err(match Repo::perhaps(name) {
            Some(repo) => error.help(format!("for a model of the hub, write hf:{}", repo.name)),
            None => error.help("name a folder with a model of COMET, or hf:ORG/NAME"),
        })
    }
}

/// The files of a model, found and opened, and what they say.
#[derive(Debug)]
pub struct Found {
    /// Its name, as a signature has it.
    pub name: String,
    /// Its commit on the hub.
    pub revision: Option<String>,
    pub(super) path: PathBuf,
    pub(super) checkpoint: Checkpoint,
    pub(super) settings: Settings,
    pub(super) shape: Shape,
    /// The folder of the encoder's files.
    pub(super) encoder: PathBuf,
}

impl Found {
    /// As [`Found::open`], the model of a flag that takes one with references.
    ///
    /// # Errors
    /// Those, and it looks at no references.
    pub fn with_references(flag: &str, model: &str, offline: bool) -> Result<Self> {
        let found = Self::open(&Place::named(model)?, offline)?;
        if found.takes_references() {
            return Ok(found);
        }
        let error = Error::usage(format!("{flag} {model}: this model looks at no references"));
        Err(error.help(format!("name one that compares with references, such as {DEFAULT_COMET}")))
    }

    /// As [`Found::open`], the model of a flag that takes one that needs no references.
    ///
    /// # Errors
    /// Those, and it needs references.
    pub fn without_references(flag: &str, model: &str, offline: bool) -> Result<Self> {
        let found = Self::open(&Place::named(model)?, offline)?;
        if !found.needs_references() {
            return Ok(found);
        }
        let error = Error::usage(format!("{flag} {model}: this model compares with references"));
        Err(error.help(format!("name one that needs none, such as {DEFAULT_QE}")))
    }

    /// What tells its scores from those of other models: a checksum of its tensors, settings and subwords.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn digest(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(self.checkpoint.digest()?);
        for path in self.files().into_iter().filter(|path| *path != self.path && path.exists()) {
            let bytes = file::read_at_most(&path, limits::IMPORTED_BYTES);
            hash.update(Sha256::digest(bytes.map_err(|error| Error::io("read the model", &path, error))?));
        }
        Ok(hex(&hash.finalize()))
    }

    /// Those of its files that are read as they are, which nothing may be written to.
    pub fn files(&self) -> Vec<PathBuf> {
        let folder = file::folder_of(&self.path).parent().unwrap_or(Path::new(""));
        let of_encoder = [CONFIG, WHOLE, MODEL].map(|file| self.encoder.join(file));
        [folder.join(SETTINGS), self.path.clone()].into_iter().chain(of_encoder).collect()
    }

    /// Whether the model needs references.
    fn needs_references(&self) -> bool {
        match self.settings.kind {
            Kind::Regression => true,
            Kind::Referenceless => false,
            Kind::Unified { source, .. } => !source,
        }
    }

    /// Whether it looks at references if there are some.
    fn takes_references(&self) -> bool {
        match self.settings.kind {
            Kind::Regression => true,
            Kind::Referenceless => false,
            Kind::Unified { reference, .. } => reference,
        }
    }

    /// Whether it needs sources.
    pub fn needs_sources(&self) -> bool {
        match self.settings.kind {
            Kind::Regression | Kind::Referenceless => true,
            Kind::Unified { source, .. } => source,
        }
    }

    /// Opens a model's files; fetches what is not in the cache.
    ///
    /// # Errors
    /// A file is missing or damaged, or says something that is not supported; those of the hub.
    pub fn open(place: &Place, offline: bool) -> Result<Self> {
        let (settings, path, name, revision) = match place {
            Place::Folder(folder) => {
                let folder = file::folder_of(&folder.join(SETTINGS)).to_path_buf();
                let is_safe = !folder.join(CHECKPOINT).exists() && folder.join(SAFE).exists();
                let checkpoint = folder.join(if is_safe { SAFE } else { CHECKPOINT });
                (folder.join(SETTINGS), checkpoint, folder.display().to_string(), None)
            }
            Place::Hub(repo) => {
                let fetch = || {
                    let hub = Hub::open(offline)?;
                    let (settings, checkpoint) = (hub.fetch(repo, SETTINGS)?, hub.fetch(repo, CHECKPOINT)?);
                    Ok((settings, checkpoint, repo.name.clone(), Some(hub.commit(repo)?)))
                };
                fetch().map_err(|error: Error| {
                    let help = format!("or copy {SETTINGS} and {CHECKPOINT} of {repo} into a folder, and name that");
                    error.more_help(&help)
                })?
            }
        };
        let of_file = table(&settings)?;
        let checkpoint = Checkpoint::open(&path)?;
        let settings = Settings::read(&of_file, &checkpoint.settings)
            .map_err(|error| error.at(&settings).more_help("what the checkpoint says of the same keys counts more"))?;
        let own = file::folder_of(&path).parent().map(|folder| folder.join(ENCODER));
        let encoder = match own.filter(|folder| folder.join(CONFIG).is_file()) {
            Some(folder) => folder,
            None => encoder_of(&settings.encoder, place, offline)?,
        };
        let config = encoder.join(CONFIG);
        let shape = Shape::read(&json(&config)?).map_err(|error| error.at(&config))?;
        Ok(Self { name, revision, path, checkpoint, settings, shape, encoder })
    }
}

/// The folder of an encoder's files, which are fetched. Whoever made a folder does not decide what else is read or
/// fetched: for a model that is not of the hub, only one of the [`ENCODERS`] is.
fn encoder_of(name: &str, place: &Place, offline: bool) -> Result<PathBuf> {
    let fetch = || {
        if matches!(place, Place::Folder(_)) && !ENCODERS.contains(&name) {
            return Err(Error::failure("it is not fetched for a folder, which may be a stranger's"));
        }
        let (hub, repo) = (Hub::open(offline)?, Repo::model(name));
        let config = hub.fetch(&repo, CONFIG)?;
        let files = hub.files(&repo)?;
        let tokenizer = [WHOLE, MODEL].into_iter().find(|name| files.iter().any(|file| file == name));
        let tokenizer = tokenizer.ok_or_else(|| Error::failure(format!("{repo} has neither {WHOLE} nor {MODEL}")))?;
        hub.fetch(&repo, tokenizer)?;
        Ok(file::folder_of(&config).to_path_buf())
    };
    fetch().map_err(|error: Error| {
        let what = format!("the tokenizer of the encoder {} is needed", quoted(name));
        let help = format!("put {CONFIG} and {WHOLE} of the encoder into a folder `{ENCODER}` beside `checkpoints`");
        let error = error.context(what).more_help(&help);
        if let Place::Folder(folder) = place { error.at(folder) } else { error }
    })
}

fn json(path: &Path) -> Result<Map<String, Value>> {
    let bytes = file::read_at_most(path, limits::IMPORTED_BYTES).map_err(|e| Error::io("read the encoder", path, e))?;
    refuse_many_values(&bytes, limits::FOREIGN_VALUES).map_err(|error| error.at(path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::failure(format!("not a JSON object: {error}")).at(path).caused_by(error))
}

/// The values of `hparams.yaml`.
fn table(path: &Path) -> Result<Map<String, Value>> {
    let bytes =
        file::read_at_most(path, limits::IMPORTED_BYTES).map_err(|e| Error::io("read the settings", path, e))?;
    let text = String::from_utf8(file::without_mark(bytes));
    let text = text.map_err(|error| Error::failure("not UTF-8 text").at(path).caused_by(error))?;
    let value = |value: yaml::Value| match value {
        yaml::Value::Null | yaml::Value::Nested => Value::Null,
        yaml::Value::Scalar(text) => match (text.as_str(), text.parse::<u64>()) {
            ("null" | "~", _) => Value::Null,
            ("true" | "false", _) => Value::Bool(text == "true"),
            (_, Ok(number)) => Value::from(number),
            _ => Value::String(text),
        },
        yaml::Value::List(list) => list.into_iter().map(Value::String).collect(),
    };
    let table = yaml::table(&text).map_err(|error| error.at(path))?;
    Ok(table.into_iter().map(|(key, scalar)| (key, value(scalar))).collect())
}
