//! `[train] init`: weights and tokenizers of another model to begin with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{self, Located};
use crate::config::{self, Config, Decides};
use crate::data::TokenizerConfig;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::{Tokenizers, no_sampling};
use crate::error::{Error, Result};
use crate::limits::LEAST_PIECES;
use crate::model::{ModelConfig, PositionKind, Preset, Transformer, layout};
use crate::model_dir::record::refuse_other_model;
use crate::model_dir::{Tell, config_of, is_there, not_a_directory, slots, vocabulary};
use crate::notice::Notice;
use crate::ops::memory::change_on_host;
use crate::ops::params::ParameterLayout;
use crate::train::InitLayers;
use crate::train::optimizer::Training;

/// Errors for keys of `[model]` that are not as in the other model, in `directory`. What follows from `model.preset` is
/// one error. `other` has as many layers as `named`, `train.init_layers`, asks for.
fn other_shape(other: &Config, config: &Config, named: &InitLayers, directory: &Path) -> Vec<Error> {
    // No weight depends on the others.
    let is_free = |key: &str| {
        let unused = key == "model.max_length" && other.model.positions != PositionKind::Learned;
        unused || !(config::decides(key, Decides::Shape) || config::decides(key, Decides::Function))
    };
    let preset = config.model.preset;
    let of_preset = preset.map(|preset| given_by(preset, config)).unwrap_or_default();
    let (mut by_preset, mut errors) = (Vec::new(), Vec::new());
    for (key, there, here) in config::differences(other, config).into_iter().filter(|(key, _, _)| !is_free(key)) {
        let is_of_preset = of_preset.contains(&key);
        // If it is the other model's preset too, it may not have been stated.
        if is_of_preset && preset != other.model.preset {
            by_preset.push(format!("`{key}` is {there} there and {here} here"));
            continue;
        }
        let layers = key.strip_prefix("model.").and_then(|name| name.strip_suffix("_layers"));
        if let Some(stack) = layers.filter(|stack| named.of(stack).is_some_and(|layers| !layers.is_empty())) {
            let what = format!("`{key}` is {here}, but `train.init_layers.{stack}` names {there} layers");
            errors.push(Error::usage(what).help(format!("leave `{key}` out, or name {here} layers")));
            continue;
        }
        let what = format!("`{key}` is {here}, but {there} in the model that training begins with");
        let keys = if is_of_preset { "the key, and `model.preset` if it is stated," } else { "the key" };
        let help = format!("leave {keys} out to use the value of that model, or leave out `train.init`");
        errors.push(Error::usage(what).at(directory.join(checkpoint::CONFIG_FILE)).help(help));
    }
    if let (Some(preset), false) = (preset, by_preset.is_empty()) {
        let what = format!(
            "`model.preset` = \"{preset}\" has another shape than the model that training begins with, {}: {}",
            directory.display(),
            by_preset.join(", ")
        );
        let help = "leave `model.preset` out, and these keys if they are stated, to use the values of that model; or \
                    leave out `train.init`";
        errors.insert(0, Error::usage(what).help(help));
    }
    errors
}

/// Errors for layers that the model does not have.
fn missing_layers(other: &Config, layers: &InitLayers) -> Vec<Error> {
    let stacks = [
        ("encoder", &layers.encoder, other.model.encoder_layers),
        ("decoder", &layers.decoder, other.model.decoder_layers),
    ];
    let missing = stacks.into_iter().filter_map(|(stack, layers, count)| {
        let number = layers.iter().find(|number| **number >= count)?;
        let what = format!("`train.init_layers.{stack}` has {number}, but the model has {count} layers there, from 0");
        Some(Error::usage(what).help(format!("name layers from 0 to {}", count.saturating_sub(1))))
    });
    missing.collect()
}

/// The keys of `[model]` that have the preset's values.
fn given_by(preset: Preset, config: &Config) -> Vec<String> {
    let width = config.model.d_model / config.model.heads;
    let model = ModelConfig { d_k: width, d_v: width, ..ModelConfig::from_preset(preset) };
    let others = config::differences(&Config { model, ..Config::default() }, config);
    let keys = ModelConfig::OF_PRESET.iter().map(|name| format!("model.{name}"));
    keys.filter(|key| others.iter().all(|(other, _, _)| other != key)).collect()
}

/// Errors for keys of `[tokenizer]` that are neither the model's nor the default: they would have no effect. Tags and
/// symbols may be added. `others` are what its configuration states, and how its tokenizers are.
fn idle_keys(others: &[Config], config: &Config) -> Vec<Error> {
    let default = Config::default();
    let differs_from = |other: &Config, key: &str| config::differences(other, config).iter().any(|(k, _, _)| k == key);
    let has_path = config.tokenizer.path.is_some();
    let is_idle = |key: &str| match key {
        "tokenizer.dropout" | "tokenizer.path" | "tokenizer.target_path" => false,
        _ if key.starts_with("tokenizer.sampling.") => false,
        "tokenizer.tags" | "tokenizer.symbols" => false,
        _ => key.starts_with("tokenizer.") && !has_path && differs_from(&default, key),
    };
    let Some((first, rest)) = others.split_first() else { return Vec::new() };
    let idle = config::differences(first, config).into_iter().filter(|(key, _, _)| is_idle(key));
    let idle = idle.filter(|(key, _, _)| rest.iter().all(|other| differs_from(other, key)));
    idle.map(|(key, there, here)| config::idle_key(&key, &here, &there)).collect()
}

/// `[tokenizer]` of a model with these tokenizers whose configuration is `other`: as they are, where that can be known,
/// else as it is stated.
fn as_they_are(other: &Config, tokenizers: &Tokenizers) -> TokenizerConfig {
    let (mut known, source) = (other.tokenizer.clone(), &tokenizers.source);
    // A tie of all matrices needs one vocabulary.
    known.joint = other.model.tie.joins_embeddings() || tokenizers.is_one_vocabulary();
    // What was asked for stands, unless nothing was: the vocabulary is from elsewhere, and the default is stated.
    let is_given = other.tokenizer.path.is_some() || other.train.init.is_some();
    let is_unknown = is_given && known.vocab_size == TokenizerConfig::default().vocab_size;
    let pieces = source.vocab_size().max(tokenizers.target.vocab_size()).max(LEAST_PIECES);
    if is_unknown || pieces > known.vocab_size {
        known.vocab_size = pieces;
    }
    known.kind = source.kind().unwrap_or(known.kind);
    known.set_form(source.form().unwrap_or(known.form()));
    known
}

/// `new` with the keys on how a vocabulary is learnt from `old`, as far as it does not state them: where it has the
/// default, or the value of the model that training begins with.
pub fn keeping_vocabulary(
    new: &TokenizerConfig,
    old: &TokenizerConfig,
    init: Option<&TokenizerConfig>,
) -> TokenizerConfig {
    let (mut kept, default) = (new.clone(), TokenizerConfig::default());
    macro_rules! keep {
        ($($key:ident)*) => {
            $(if new.$key == default.$key || init.is_some_and(|init| new.$key == init.$key) {
                kept.$key = old.$key;
            })*
        };
    }
    keep!(kind vocab_size joint normalization remove_extra_whitespaces lowercase max_piece_length character_coverage
        sample_lines);
    kept
}

/// The configuration of the model that training begins with, if there is one and it can be read.
pub fn config_of_init(config: &Config) -> Option<Config> {
    let (directory, _) = checkpoint::directory_and_step(config.train.init.as_deref()?);
    config_of(directory).ok()
}

/// The model's tokenizers with the tags and symbols that the configuration adds, if it adds any.
fn extended(tokenizers: &Tokenizers, config: &TokenizerConfig) -> Result<Option<Tokenizers>> {
    let more = |tokenizer: &Tokenizer| -> Result<Option<Arc<Tokenizer>>> {
        let there: Vec<&str> = tokenizer.language_tags().into_iter().chain(tokenizer.symbols()).collect();
        let is_new = |symbol: &&String| {
            !there.contains(&symbol.as_str()) && !there.contains(&tokenizer.encoded_form(symbol).as_str())
        };
        let new = |stated: &[String]| -> Vec<String> { stated.iter().filter(is_new).cloned().collect() };
        let (tags, symbols) = (new(&config.tags), new(&config.symbols));
        let adds_any = !tags.is_empty() || !symbols.is_empty();
        adds_any.then(|| tokenizer.with_symbols(&tags, &symbols).map(Arc::new)).transpose()
    };
    let source = more(&tokenizers.source)?;
    let target = if tokenizers.is_joint() { source.clone() } else { more(&tokenizers.target)? };
    if source.is_none() && target.is_none() {
        return Ok(None);
    }
    let Tokenizers { source: old_source, target: old_target } = tokenizers.clone();
    Ok(Some(Tokenizers { source: source.unwrap_or(old_source), target: target.unwrap_or(old_target) }))
}

/// Refuses to freeze the embeddings of tags and symbols that are new: they would stay random.
fn refuse_frozen_rows(config: &Config, layout: &ParameterLayout) -> Result<()> {
    let tables = ["source_embedding.weight", "target_embedding.weight", "output_projection.weight"];
    let names = layout.entries().iter().map(|entry| entry.name.as_str()).filter(|name| tables.contains(name));
    let (freeze, low_rank) = (&config.train.freeze, config.train.low_rank.as_ref());
    let is_frozen = |name: &&str| Training::of(name, freeze, low_rank) != Training::Whole;
    let Some(table) = names.into_iter().find(is_frozen) else { return Ok(()) };
    let (key, help) = match low_rank {
        None => ("train.freeze", "leave the embedding out of `train.freeze`, or add no tags and symbols"),
        Some(_) => ("train.low_rank", "name the embedding in `train.low_rank.also`, or add no tags and symbols"),
    };
    let what = format!(
        "`tokenizer.tags` or `symbols` adds rows to {table}, which `{key}` leaves unchanged: they would stay random"
    );
    Err(Error::usage(what).help(help))
}

/// The configuration as a run records it, once its tokenizers are known. A run that is continued has recorded them in
/// `old`.
pub fn stating_what_is_known(config: Config, old: Option<&Config>, tokenizers: &Tokenizers) -> Config {
    stating_languages(stating_tokenizers(config, old, tokenizers), tokenizers)
}

/// The configuration with `[tokenizer]` as the tokenizers are, if those are another model's.
fn stating_tokenizers(mut config: Config, old: Option<&Config>, tokenizers: &Tokenizers) -> Config {
    if config.train.init.is_none() || config.tokenizer.path.is_some() {
        return config;
    }
    let init = config_of_init(&config);
    if let Some(other) = old.or(init.as_ref()) {
        let TokenizerConfig { path, target_path, dropout, sampling, tags, symbols, .. } = config.tokenizer;
        let known = as_they_are(other, tokenizers);
        config.tokenizer = TokenizerConfig { path, target_path, dropout, sampling, tags, symbols, ..known };
    }
    let source = &tokenizers.source;
    // Only our own tokenizers have symbols that a configuration can state.
    if source.has_dropout() {
        config.tokenizer.tags = source.language_tags().into_iter().map(str::to_owned).collect();
        config.tokenizer.symbols = source.symbols().into_iter().map(str::to_owned).collect();
    }
    config
}

/// The configuration with the languages of the validation set, or else of the only pair that is trained on, as those
/// between which the model translates, if it has several and none are stated.
fn stating_languages(mut config: Config, tokenizers: &Tokenizers) -> Config {
    if tokenizers.source.languages().is_empty() {
        return config;
    }
    let of_training = config.data.train.first().map(|corpus| &corpus.languages);
    let of_training =
        of_training.filter(|languages| config.data.train.iter().all(|corpus| &corpus.languages == *languages));
    let of_valid = config.data.valid.as_ref().map(|set| &set.languages);
    // The model that training begins with may have translated between others.
    if let Some([source, target]) = of_valid.or(of_training).cloned() {
        config.decode.source_language = source.or(config.decode.source_language);
        config.decode.target_language = target.or(config.decode.target_language);
    }
    config
}

/// The model that training begins with.
pub struct Start {
    /// Its tokenizers, with what the configuration adds to them.
    pub tokenizers: Tokenizers,
    /// The layout of its parameters.
    layout: ParameterLayout,
    /// Which of its layers are taken.
    layers: InitLayers,
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
        let context = |error: Error| error.context("`train.init`");
        if is_there(named).map_err(context)? && !named.is_dir() {
            return Err(context(not_a_directory(named)));
        }
        // One of a run's checkpoints, or the directory of a model.
        let (directory, which) = checkpoint::directory_and_step(named);
        let other = config_of(directory).map_err(context)?;
        let tokenizers = Tokenizers::load(directory).map_err(context)?;
        let more = extended(&tokenizers, &config.tokenizer).map_err(context);
        let layers = &config.train.init_layers;
        let mut errors: Vec<Error> = missing_layers(&other, layers);
        let mut chosen = other.clone();
        [chosen.model.encoder_layers, chosen.model.decoder_layers] =
            layers.counts([other.model.encoder_layers, other.model.decoder_layers]);
        errors.extend(other_shape(&chosen, config, layers, directory));
        // The run's own configuration, with which it may be begun again, states the tokenizers as they became.
        let as_they_became = more.as_ref().ok().and_then(Option::as_ref).unwrap_or(&tokenizers);
        let [before, after] = [&tokenizers, as_they_became]
            .map(|tokenizers| Config { tokenizer: as_they_are(&other, tokenizers), ..other.clone() });
        let idle = idle_keys(&[other.clone(), before, after], config);
        errors.extend(idle.into_iter().map(|error| error.at(directory.join(checkpoint::CONFIG_FILE))));
        if let Some(named) = Tokenizers::named(&config.tokenizer)? {
            let sides = [("source", &named.source, &tokenizers.source), ("target", &named.target, &tokenizers.target)];
            let differing = sides.iter().filter_map(|(side, named, own)| Some((side, named.difference(own)?)));
            errors.extend(differing.map(|(side, why)| {
                let what = format!("the {side} vocabulary of `tokenizer.path` is not that of `train.init`: {why}");
                Error::usage(what).at(directory).help("leave out `tokenizer.path`: the model's own tokenizers are used")
            }));
        }
        let (both, is_one) = ([&tokenizers.source, &tokenizers.target], tokenizers.is_one_vocabulary());
        let sides = if is_one { &both[..1] } else { &both[..] };
        errors.extend(sides.iter().enumerate().filter_map(|(number, own)| {
            let sides = if is_one { 0..2 } else { number..number + 1 };
            no_sampling(&config.tokenizer, sides, own).map(|error| error.at(directory))
        }));
        if !errors.is_empty() {
            return Err(Error::many(errors));
        }
        let located = checkpoint::locate(directory, which).map_err(context)?;
        refuse_other_model(&other, directory, &located.directory).map_err(context)?;
        let all_layers = ModelConfig {
            encoder_layers: other.model.encoder_layers,
            decoder_layers: other.model.decoder_layers,
            ..config.model.clone()
        };
        let layout = layout::layout(&all_layers, vocabulary(&tokenizers));
        let more = more?;
        if more.is_some() {
            refuse_frozen_rows(config, &layout)?;
        }
        let tokenizers = more.unwrap_or(tokenizers);
        let layers = layers.clone();
        Ok(Some(Self { tokenizers, layout, layers, directory: directory.to_path_buf(), located }))
    }

    /// Whether training would begin with it, as messages say it; nothing if it begins with new weights.
    pub fn described(config: &Config) -> Result<Option<String>> {
        Ok(Self::open(config)?.map(|start| start.describe()))
    }

    /// What it is, for the user to see.
    pub fn describe(&self) -> String {
        format!("beginning with the weights of {} ({})", self.directory.display(), self.located.what)
    }

    /// Fills a model's parameters. In a table with more rows than before, the first ones are filled: pieces added to a
    /// vocabulary come at its end.
    ///
    /// # Errors
    /// The weights do not fit it.
    pub fn load(&self, model: &Transformer, tell: Tell<'_>) -> Result<()> {
        let entries = self.layout.entries();
        let mut file = self.located.tensors(&slots(entries))?;
        if file.is_quantised() {
            tell(Notice::Note(format!(
                "the weights of {} are 8-bit integers: better begin with the model that they were made from",
                self.directory.display()
            )));
        }
        let parameters = model.parameters();
        let mut fill = |flat: &mut [f32]| -> Result<()> {
            for entry in parameters.entries() {
                let origin = self.layers.origin(&entry.name);
                let missing = || Error::failure(format!("the model that training begins with has no {origin}"));
                let index = entries.iter().position(|other| other.name == origin).ok_or_else(missing)?;
                let place = flat.get_mut(entry.range()).and_then(|place| place.get_mut(..entries[index].len()));
                let place = place.ok_or_else(missing)?;
                file.read(index, 0, place)?;
                file.note_non_finite(&origin, place.iter().filter(|value| !value.is_finite()).count());
            }
            Ok(())
        };
        change_on_host(parameters.values(), |flat| fill(flat))??;
        file.finish()
    }
}
