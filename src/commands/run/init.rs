//! `[train] init`: weights and tokenizers of another model to begin with.

use std::path::PathBuf;

use crate::checkpoint::{self, Located};
use crate::commands::model::{config_of, load_parameters};
use crate::config::{self, Config, PositionKind};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::Transformer;

/// Keys of `[model]` that another training may have otherwise: no weight depends on them.
const FREE: &[&str] = &[
    "model.preset",
    "model.dropout",
    "model.embedding_dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.init",
];

/// Keys of `[tokenizer]` that are not what the model has, nor left as they are by default: nothing would come of them.
fn idle_keys(other: &Config, config: &Config) -> impl Iterator<Item = Error> {
    let default = Config::default();
    let is_stated = |key: &str| config::differences(&default, config).iter().any(|(other, _, _)| other == key);
    let of_learning = |key: &str| !matches!(key, "tokenizer.dropout" | "tokenizer.path" | "tokenizer.target_path");
    let named = config.tokenizer.path.is_some();
    let differences = config::differences(other, config).into_iter();
    let idle = differences
        .filter(move |(key, _, _)| key.starts_with("tokenizer.") && !named && of_learning(key) && is_stated(key));
    let error = |(key, there, here)| {
        let what = format!("`{key}` is {here}, but the vocabulary is that of `train.init`, with {there}");
        Error::usage(what).help("leave it out: the model's own tokenizers are taken")
    };
    idle.map(error).collect::<Vec<_>>().into_iter()
}

/// The model that training begins with.
pub struct Start {
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    directory: PathBuf,
    located: Located,
}

impl Start {
    /// The model that the configuration names, if it names one.
    ///
    /// # Errors
    /// There is no such model; or its shape or its vocabulary is not the configuration's: every difference is named.
    pub fn open(config: &Config) -> Result<Option<Self>> {
        let Some(directory) = &config.train.init else { return Ok(None) };
        let context = |error: Error| error.context("`train.init`");
        let other = config_of(directory).map_err(context)?;
        let is_free = |key: &str| {
            let unused = key == "model.max_length" && other.model.positions != PositionKind::Learned;
            unused || FREE.contains(&key) || !key.starts_with("model.")
        };
        let differences = config::differences(&other, config).into_iter().filter(|(key, _, _)| !is_free(key));
        let mut errors: Vec<Error> = differences
            .map(|(key, there, here)| {
                let what = format!("`{key}` is {there} in the model that training begins with, and {here} here");
                let file = directory.join(checkpoint::CONFIG_FILE);
                let help = "take its [model], as `extends` of its config.toml does; or leave out `train.init`";
                Error::usage(what).at(file).help(help)
            })
            .collect();
        errors.extend(idle_keys(&other, config).map(|error| error.at(directory.join(checkpoint::CONFIG_FILE))));
        let tokenizers = Tokenizers::load(directory).map_err(context)?;
        if let Some(named) = Tokenizers::named(&config.tokenizer)? {
            let sides = [("source", &named.source, &tokenizers.source), ("target", &named.target, &tokenizers.target)];
            let differing = sides.iter().filter_map(|(side, named, own)| Some((side, named.difference(own)?)));
            errors.extend(differing.map(|(side, why)| {
                let what = format!("the {side} vocabulary of `tokenizer.path` is not that of `train.init`: {why}");
                Error::usage(what)
                    .at(directory)
                    .help("leave out `tokenizer.path`: the model's own tokenizers are taken")
            }));
        }
        if config.tokenizer.dropout > 0.0 && !(tokenizers.source.has_dropout() && tokenizers.target.has_dropout()) {
            let what =
                format!("`tokenizer.dropout` = {}, but its tokenizers have no BPE-dropout", config.tokenizer.dropout);
            errors.push(Error::usage(what).at(directory).help("set `tokenizer.dropout = 0`"));
        }
        if !errors.is_empty() {
            return Err(Error::many(errors));
        }
        let located = checkpoint::locate(directory, None).map_err(context)?;
        Ok(Some(Self { tokenizers, directory: directory.clone(), located }))
    }

    /// What it is, for the user to see.
    pub fn describe(&self) -> String {
        format!("beginning with the weights of {} ({})", self.directory.display(), self.located.what)
    }

    /// Fills a model's parameters.
    ///
    /// # Errors
    /// The weights do not fit it.
    pub fn load(&self, model: &Transformer) -> Result<()> {
        load_parameters(&self.located.model, model)
    }
}
