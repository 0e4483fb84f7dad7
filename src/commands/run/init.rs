//! `[train] init`: weights and tokenizers of another model to begin with.

use std::path::PathBuf;
use std::sync::Arc;

use crate::checkpoint::{self, Located, Slot, Which};
use crate::commands::model::{config_of, vocabulary};
use crate::config::{self, Config, PositionKind};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::{Transformer, layout};
use crate::ops::memory::change_on_host;
use crate::ops::params::ParameterLayout;

/// Keys of `[model]` that another training may have otherwise: no weight depends on them.
const FREE: &[&str] = &[
    "model.preset",
    "model.dropout",
    "model.embedding_dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.init",
];

/// Keys of `[tokenizer]` that are not what the model has, nor left as they are by default: nothing would come of them. Tags and
/// symbols may be added.
fn idle_keys(other: &Config, config: &Config) -> Vec<Error> {
    let default = Config::default();
    let is_stated = |key: &str| config::differences(&default, config).iter().any(|(other, _, _)| other == key);
    let (now, before) = (&config.tokenizer, &other.tokenizer);
    let may_differ = |key: &str| match key {
        "tokenizer.dropout" | "tokenizer.path" | "tokenizer.target_path" => true,
        "tokenizer.tags" => before.tags.iter().all(|tag| now.tags.contains(tag)),
        "tokenizer.symbols" => before.symbols.iter().all(|symbol| now.symbols.contains(symbol)),
        _ => now.path.is_some() || !key.starts_with("tokenizer.") || !is_stated(key),
    };
    let idle = config::differences(other, config).into_iter().filter(|(key, _, _)| !may_differ(key) && is_stated(key));
    let error = |(key, there, here)| {
        let what = format!("`{key}` is {here}, but the vocabulary is that of `train.init`, with {there}");
        Error::usage(what)
            .help("leave it out: the model's own tokenizers are taken; tags and symbols can be added to them")
    };
    idle.map(error).collect()
}

/// The model's tokenizers with the tags and symbols that the configuration adds.
fn extended(tokenizers: &Tokenizers, other: &Config, config: &Config) -> Result<Option<Tokenizers>> {
    let added = |now: &[String], before: &[String]| -> Vec<String> {
        now.iter().filter(|symbol| !before.contains(symbol)).cloned().collect()
    };
    let (now, before) = (&config.tokenizer, &other.tokenizer);
    let (tags, symbols) = (added(&now.tags, &before.tags), added(&now.symbols, &before.symbols));
    if tags.is_empty() && symbols.is_empty() {
        return Ok(None);
    }
    let source = Arc::new(tokenizers.source.with_symbols(&tags, &symbols)?);
    let target = match tokenizers.is_joint() {
        true => source.clone(),
        false => Arc::new(tokenizers.target.with_symbols(&tags, &symbols)?),
    };
    Ok(Some(Tokenizers { source, target }))
}

/// The model that training begins with.
pub struct Start {
    /// Its tokenizers, with what the configuration adds to them.
    pub tokenizers: Tokenizers,
    /// How its parameters lie.
    layout: ParameterLayout,
    directory: PathBuf,
    located: Located,
}

impl Start {
    /// The model that the configuration names, if it names one.
    ///
    /// # Errors
    /// There is no such model; or its shape or its vocabulary is not the configuration's: every difference is named.
    pub fn open(config: &Config) -> Result<Option<Self>> {
        let Some(named) = &config.train.init else { return Ok(None) };
        // One of a run's checkpoints, or the directory of a model.
        let (directory, which) = match checkpoint::run_and_step(named) {
            Some((run, step)) if !named.join(checkpoint::CONFIG_FILE).exists() => (run, Some(Which::Step(step))),
            _ => (named.as_path(), None),
        };
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
        errors.extend(
            idle_keys(&other, config).into_iter().map(|error| error.at(directory.join(checkpoint::CONFIG_FILE))),
        );
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
        let located = checkpoint::locate(directory, which).map_err(context)?;
        let layout = layout::layout(&config.model, vocabulary(&tokenizers));
        let more = extended(&tokenizers, &other, config).map_err(context)?;
        let tokenizers = more.unwrap_or(tokenizers);
        Ok(Some(Self { tokenizers, layout, directory: directory.to_path_buf(), located }))
    }

    /// What it is, for the user to see.
    pub fn describe(&self) -> String {
        format!("beginning with the weights of {} ({})", self.directory.display(), self.located.what)
    }

    /// Fills a model's parameters. Of a table with more rows than there were the first are filled: what was added to a
    /// vocabulary stands behind it.
    ///
    /// # Errors
    /// The weights do not fit it.
    pub fn load(&self, model: &Transformer) -> Result<()> {
        let parameters = model.parameters();
        let mut slots = Vec::new();
        for entry in self.layout.entries() {
            let missing = || Error::failure(format!("the model has no {}", entry.name));
            let offset = parameters.entry(&entry.name).ok_or_else(missing)?.offset;
            slots.push(Slot { name: &entry.name, shape: &entry.shape, offset });
        }
        change_on_host(parameters.values(), |flat| checkpoint::load_into(&self.located.model, &slots, flat))?
    }
}
