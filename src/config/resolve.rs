//! From a checked document to a [`Config`]: computed defaults, and checks that involve several keys.

mod positions;

use std::path::PathBuf;

use super::check::Report;
use super::document::{Origin, Source, Table, Value, get, to_json};
use super::sections::Config;
use super::{computed, init};
use crate::data::tokenizer::{Normalization, TokenizerKind, TrainOptions};
use crate::data::{SampledSide, SamplingConfig, SetConfig, TokenizerConfig};
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::limits;
use crate::model::ModelConfig;
use crate::model::layout::{self, Vocabulary};
use crate::ops::params::{Entry, ParameterLayout};
use crate::train::optimizer::Training;
use crate::train::{InitLayers, LowRankConfig, PROJECTIONS, ScheduleConfig, ValidMetric};

/// Computes missing keys and checks conditions on several keys. `root` is the absolute `data.root`.
///
/// # Errors
///
/// If schema and types disagree, which a test rules out. Problems of the user's go to `report`.
pub(super) fn resolve(merged: &Table, root: PathBuf, report: &mut Report) -> Result<Config> {
    let mut config: Config = serde_json::from_value(to_json(merged)).map_err(|error| {
        Error::failure("the configuration passed its checks but could not be read").caused_by(error)
    })?;
    config.data.root = root;
    let stated = |key: &str| get(merged, key).is_some();
    if config.tokenizer.path.is_some() {
        config.tokenizer.joint = config.tokenizer.target_path.is_none();
    }
    computed::fill(&mut config, stated);
    let mut together = Together { merged, report };
    together.tokenizer(&config.tokenizer);
    together.symbols(&config.tokenizer);
    together.widths(&config.model);
    together.positions(&config.model);
    together.relative(&config.model);
    together.output(&config.model);
    together.tie(&config);
    together.lengths(&config);
    together.schedule(&config.train.schedule);
    together.init_layers(&config);
    together.comet(&config);
    together.plateau(&config);
    together.freeze(&config);
    together.r_drop(&config);
    Ok(config)
}

/// Reports what training needs and the document does not name: a corpus, and with `valid.every > 0` a validation pair.
pub(super) fn require_for_training(config: &Config, merged: &Table, report: &mut Report) {
    let mut together = Together { merged, report };
    if config.data.train.is_empty() {
        let state = if get(merged, "data.train").is_some() { "empty" } else { "missing" };
        let help = "add to [data]: train = [{ source = \"train.en\", target = \"train.de\" }]";
        let error = Error::usage(format!("`data.train` is {state}: there is nothing to train on"));
        together.add(&["data.train"], error.help(help));
    }
    if !config.valid.every.is_never() && config.data.valid.is_none() {
        let what = format!("`data.valid` is missing, but `valid.every` = {}", config.valid.every);
        let help = "add to [data]: valid = { source = \"valid.en\", target = \"valid.de\" }; or set `valid.every = 0`";
        together.add(&["data.valid", "valid.every"], Error::usage(what).help(help));
    }
    let monitor = &config.data.monitor;
    if !monitor.is_empty() && config.data.valid.is_none() {
        let error = Error::usage("`data.monitor` is scored at validations, but there is no `data.valid`");
        together.add(&["data.monitor"], error.help("name the set that decides in `data.valid`"));
    }
    if monitor.len() > limits::MOST_MONITORED {
        let error = Error::usage(format!(
            "`data.monitor` has {} sets, but at most {} can be",
            monitor.len(),
            limits::MOST_MONITORED
        ));
        return together.add(&["data.monitor"], error.help("each is translated at every validation: name fewer"));
    }
    let names: Vec<String> = monitor.iter().map(SetConfig::name).collect();
    if let Some(name) = names.iter().find(|name| name.contains(char::is_control) || name.chars().count() > 100) {
        let error = Error::usage(format!("a set of `data.monitor` cannot be called {}", quoted(name)));
        together.add(&["data.monitor"], error.help("a name has at most 100 characters, and no line breaks among them"));
    }
    if let Some(name) = names.iter().enumerate().find_map(|(i, name)| names[..i].contains(name).then_some(name)) {
        let error = Error::usage(format!("two sets of `data.monitor` are called {name}"));
        together.add(&["data.monitor"], error.help("tell them apart: { name = \"news\", source = …, target = … }"));
    }
}

/// Checks of keys that depend on one another.
struct Together<'a> {
    merged: &'a Table,
    report: &'a mut Report,
}

impl Together<'_> {
    /// Reports a problem at the first of `keys` that is stated, unless one of them already has a problem. Keys from the
    /// initial model cannot be changed: if there are no others, `train.init` gets the problem.
    fn add(&mut self, keys: &[&str], error: Error) {
        if keys.iter().any(|key| self.report.is_bad(key)) {
            return;
        }
        let of_user = keys.iter().find(|key| get(self.merged, key).is_some() && !self.is_of_init(key));
        let of_init = keys.iter().any(|key| self.is_of_init(key)).then_some(&"train.init");
        match of_user.or(of_init).and_then(|key| get(self.merged, key)) {
            Some(entry) => self.report.add(&entry.item.origin, error),
            None => self.report.add_anywhere(error),
        }
    }

    /// Whether only the initial model states the key.
    fn is_of_init(&self, key: &str) -> bool {
        get(self.merged, key).is_some_and(|entry| init::is_origin(&entry.item.origin))
    }

    /// Keys about learning a tokenizer conflict with a tokenizer file. Two exceptions: a layer with a file may lie
    /// above one with keys about learning, and a configuration that `mt` wrote states all keys.
    fn tokenizer(&mut self, tokenizer: &TokenizerConfig) {
        let stated = |key: &str| get(self.merged, &format!("tokenizer.{key}")).map(|entry| &entry.item.origin);
        if let (Some(target), None) = (stated("target_path"), stated("path")) {
            let error =
                Error::usage("`tokenizer.target_path` is the target side's file, but `tokenizer.path` is missing");
            self.report.add(target, error.help("set `path` to the tokenizer of the source side"));
        }
        self.sampling(tokenizer);
        if let Some(file) = stated("path") {
            let learnt = [
                "kind",
                "codes",
                "target_codes",
                "vocabulary",
                "target_vocabulary",
                "vocabulary_threshold",
                "vocab_size",
                "joint",
                "normalization",
                "remove_extra_whitespaces",
                "lowercase",
                "max_piece_length",
                "character_coverage",
                "sample_lines",
            ];
            // These can be added to the tokenizer of a model that is fine-tuned.
            let added = if get(self.merged, "train.init").is_none() { &["tags", "symbols"][..] } else { &[] };
            // All `--set` are one layer here, in whatever order they stand.
            let is_one = |a: &Source, b: &Source| a.order == b.order || (a.text.is_none() && b.text.is_none());
            let together = |origin: &Origin| is_one(&origin.source, &file.source) && !file.is_resolved();
            for (key, origin) in learnt.iter().chain(added).filter_map(|key| Some((key, stated(key)?))) {
                if together(origin) || origin.source.layer > file.source.layer {
                    let what =
                        format!("`tokenizer.{key}` is about learning a tokenizer, but `tokenizer.path` names one");
                    self.report.add(origin, Error::usage(what).help(format!("leave out `{key}`, or `path`")));
                }
            }
            return;
        }
        self.codes(tokenizer);
        if get(self.merged, "train.init").is_none() && tokenizer.sampling.alpha > 0.0 {
            let what = "`tokenizer.sampling.alpha` splits text with a unigram model, and `mt` learns none";
            let help = "name a SentencePiece model as `tokenizer.path`; or set `tokenizer.dropout` instead";
            self.add(&["tokenizer.sampling.alpha"], Error::usage(what).help(help));
        }
        if tokenizer.kind == TokenizerKind::SubwordNmt {
            let default = TokenizerConfig::default();
            let has_codes = tokenizer.codes.is_some();
            let why = if has_codes { "codes take text as it is" } else { "the text is split already" };
            for (key, is_set) in [
                ("dropout", tokenizer.dropout > 0.0 && !has_codes),
                ("normalization", tokenizer.normalization != Normalization::Nfkc),
                ("remove_extra_whitespaces", !tokenizer.remove_extra_whitespaces),
                ("lowercase", tokenizer.lowercase),
                ("max_piece_length", tokenizer.max_piece_length != default.max_piece_length),
                ("character_coverage", tokenizer.character_coverage != default.character_coverage),
                ("tags", !tokenizer.tags.is_empty()),
                ("symbols", !tokenizer.symbols.is_empty()),
            ] {
                if let Some(origin) = stated(key).filter(|_| is_set) {
                    let what = format!("`tokenizer.{key}` does nothing with `tokenizer.kind` = \"subword-nmt\"");
                    self.report.add(origin, Error::usage(what).help(format!("leave `{key}` out: {why}")));
                }
            }
        }
    }

    /// Checks that what is said about sampling has an effect.
    fn sampling(&mut self, tokenizer: &TokenizerConfig) {
        let SamplingConfig { alpha, nbest, side, epochs } = tokenizer.sampling;
        if tokenizer.dropout > 0.0 && alpha > 0.0 {
            let what =
                "`tokenizer.dropout` is for byte-pair encoding, and `tokenizer.sampling.alpha` for unigram models";
            self.add(
                &["tokenizer.sampling.alpha", "tokenizer.dropout"],
                Error::usage(what).help("leave one of them out"),
            );
        }
        let is_sampled = tokenizer.subword_sampling().is_some();
        for (key, is_idle, needed) in [
            ("nbest", nbest > 0 && alpha == 0.0, "`alpha`, too"),
            // The best alone.
            ("alpha", nbest == 1 && alpha > 0.0, "`nbest` to more than 1, or to 0 for all segmentations"),
            ("side", side != SampledSide::Both && !is_sampled, "`tokenizer.dropout`, or `alpha`, too"),
            ("epochs", epochs > 0 && !is_sampled, "`tokenizer.dropout`, or `alpha`, too"),
        ] {
            if is_idle {
                let what = format!("`tokenizer.sampling.{key}` has no effect: text is not split at random");
                let error = Error::usage(what).help(format!("set {needed}; or leave `{key}` out"));
                self.add(&[&format!("tokenizer.sampling.{key}")], error);
            }
        }
    }

    /// Codes need the kind `subword-nmt`; keys about codes or their vocabulary need `tokenizer.codes` or `vocabulary`.
    fn codes(&mut self, tokenizer: &TokenizerConfig) {
        let stated = |key: &str| get(self.merged, &format!("tokenizer.{key}")).map(|entry| &entry.item.origin);
        if let Some(origin) = stated("codes").filter(|_| tokenizer.kind != TokenizerKind::SubwordNmt) {
            let what = "`tokenizer.codes` are merges of subword-nmt, but `tokenizer.kind` is not \"subword-nmt\"";
            let help = "set `kind = \"subword-nmt\"`, or leave `codes` out to have mt learn its own merges";
            self.report.add(origin, Error::usage(what).help(help));
        }
        for (key, needed, is_there, does) in [
            ("target_codes", "codes", tokenizer.codes.is_some(), "splits the target side"),
            ("vocabulary", "codes", tokenizer.codes.is_some(), "restricts what codes split words into"),
            ("target_vocabulary", "vocabulary", tokenizer.vocabulary.is_some(), "is the target side's"),
            ("vocabulary_threshold", "vocabulary", tokenizer.vocabulary.is_some(), "is a count in a vocabulary"),
        ] {
            let is_set = key != "vocabulary_threshold" || tokenizer.vocabulary_threshold > 0;
            if let Some(origin) = stated(key).filter(|_| is_set && !is_there) {
                let what = format!("`tokenizer.{key}` {does}, but `tokenizer.{needed}` is missing");
                self.report.add(origin, Error::usage(what).help(format!("set `{needed}`, or leave `{key}` out")));
            }
        }
    }

    /// Reports impossible symbols, and a vocabulary without room for them.
    fn symbols(&mut self, tokenizer: &TokenizerConfig) {
        let options = tokenizer.options();
        let mut usable = !["tokenizer.tags", "tokenizer.symbols"].iter().any(|key| self.report.is_bad(key));
        for key in ["tags", "symbols"] {
            let path = format!("tokenizer.{key}");
            let Some(Value::List(items)) = get(self.merged, &path).map(|entry| &entry.item.value) else { continue };
            for (i, item) in items.iter().enumerate() {
                // An empty one stands for what has been reported.
                if let Value::Text(stated) = &item.value
                    && !stated.is_empty()
                    && let Err(error) = options.symbol(stated)
                {
                    usable = false;
                    self.report.add(&item.origin, error.context(format_args!("`{path}[{i}]`")));
                }
            }
        }
        let has_any = !tokenizer.tags.is_empty() || !tokenizer.symbols.is_empty();
        if let (true, true, Err(error)) = (has_any, usable, options.check()) {
            // Blame the tags if there is no room for them alone.
            let of_tags = TrainOptions { symbols: Vec::new(), ..options }.check().is_err();
            let [tags, symbols] = ["tokenizer.tags", "tokenizer.symbols"];
            let keys = if of_tags { [tags, symbols] } else { [symbols, tags] };
            self.add(&keys, error);
        }
    }

    fn widths(&mut self, model: &ModelConfig) {
        let both_stated = ["model.d_k", "model.d_v"].iter().all(|key| get(self.merged, key).is_some());
        if both_stated || model.d_model.is_multiple_of(model.heads) {
            return;
        }
        let what = format!("`model.d_model` = {} is not a multiple of `model.heads` = {}", model.d_model, model.heads);
        let error = Error::usage(what).help("change one of them, or set both `d_k` and `d_v`");
        self.add(&["model.heads", "model.d_model", "model.preset", "model.d_k", "model.d_v"], error);
    }

    fn output(&mut self, model: &ModelConfig) {
        if !model.output_padding && !model.output_bias {
            let what = "`model.output_padding` = false keeps padding out by its bias, but `model.output_bias` = false";
            let help = "set `output_bias = true`, or leave `output_padding` out";
            self.add(&["model.output_padding", "model.output_bias"], Error::usage(what).help(help));
        }
    }

    fn tie(&mut self, config: &Config) {
        let tie = config.model.tie;
        if tie.joins_embeddings() && !config.tokenizer.joint {
            let is_of_init = self.is_of_init("model.tie");
            if config.tokenizer.target_path.is_some() {
                let what = format!(
                    "`model.tie` = \"{tie}\" needs one vocabulary, but `tokenizer.target_path` gives the target its own"
                );
                let help = match is_of_init {
                    true => "leave `target_path` out: the tie is that of the model in `train.init`",
                    false => "set `tie = \"decoder\"`, or leave `target_path` out",
                };
                return self.add(&["model.tie", "tokenizer.target_path"], Error::usage(what).help(help));
            }
            if is_of_init {
                return self.add(&["tokenizer.joint"], init::idle_key("tokenizer.joint", "false", "true"));
            }
            let what = format!("`model.tie` = \"{tie}\" needs one vocabulary, but `tokenizer.joint` = false");
            let error = Error::usage(what).help("set `tie = \"decoder\"`, or `joint = true`");
            self.add(&["model.tie", "tokenizer.joint"], error);
        }
    }

    fn lengths(&mut self, config: &Config) {
        let (data, model) = (config.data.max_length, config.model.max_length);
        if data >= model {
            let what = format!(
                "`data.max_length` = {data} and the end of sentence do not fit into `model.max_length` = {model}"
            );
            let error = Error::usage(what).help(format!("lower `data.max_length` to at most {}", model - 1));
            self.add(&["data.max_length", "model.max_length"], error);
        }
        let least = config.decode.min_length;
        if least >= model {
            let what = format!(
                "`decode.min_length` = {least} is more tokens than a translation can have: `model.max_length` = \
                 {model} counts its end too"
            );
            let error = Error::usage(what).help(format!("lower `decode.min_length` to at most {}", model - 1));
            self.add(&["decode.min_length", "model.max_length"], error);
        }
    }

    fn schedule(&mut self, schedule: &ScheduleConfig) {
        if let Some((what, help)) = schedule.contradiction() {
            let keys = ["train.schedule.total", "train.schedule.warmup", "train.max_updates", "train.schedule"];
            self.add(&keys, Error::usage(what).help(help));
        }
    }

    /// Checks that the two passes of R-Drop differ.
    fn r_drop(&mut self, config: &Config) {
        let model = &config.model;
        let dropouts = [model.dropout, model.embedding_dropout, model.attention_dropout, model.activation_dropout];
        if config.train.r_drop > 0.0 && dropouts.iter().all(|dropout| *dropout == 0.0) {
            let what = "`train.r_drop` compares two passes that dropout makes different, and the model has no dropout";
            let error = Error::usage(what).help("set `model.dropout`, for example to 0.3; or leave `train.r_drop` out");
            self.add(&["train.r_drop", "model.dropout"], error);
        }
    }

    /// Checks that frozen parts exist, and that not everything is frozen.
    fn freeze(&mut self, config: &Config) {
        let train = &config.train;
        self.parts("train.freeze", &train.freeze, config);
        if let Some(low_rank) = &train.low_rank {
            self.parts("train.low_rank.also", &low_rank.also, config);
            self.low_rank(low_rank, config);
        }
        let of = |entry: &Entry| Training::of(&entry.name, &train.freeze, None);
        if train.low_rank.is_none() && names(config).entries().iter().all(|entry| of(entry) == Training::Frozen) {
            let error = Error::usage("`train.freeze` leaves no parameter to be trained");
            self.add(&["train.freeze"], error.help("leave something out of it"));
        }
    }

    /// Checks that the model has the parts that a key names.
    fn parts(&mut self, key: &str, parts: &[String], config: &Config) {
        let Some(stated) = get(self.merged, key) else { return };
        let layout = names(config);
        let names = || layout.entries().iter().map(|entry| entry.name.as_str());
        let ties = layout::ties(config.model.tie);
        // Of a tied matrix, only a bias may be its own.
        let is_tied = |part: &str| ties.iter().any(|(name, _)| *name == part);
        let is_unknown = |part: &&String| is_tied(part) || !names().any(|name| layout::is_within(name, part));
        // An empty one stands for what has been reported.
        for part in parts.iter().filter(|part| !part.is_empty()).filter(is_unknown) {
            self.report.add_described(&stated.item.origin, || {
                let tied = ties.iter().find(|(name, _)| name == part || format!("{name}.weight") == **part);
                let (what, help) = match tied {
                    Some((name, owner)) => {
                        let tie = config.model.tie;
                        let what = format!("`{key}`: {name} has no matrix of its own (`model.tie` = \"{tie}\")");
                        let bias = format!("{name}.bias");
                        let or_bias = match names().any(|name| name == bias) {
                            true => format!(", or \"{bias}\" for the bias alone"),
                            false => String::new(),
                        };
                        (what, format!("name \"{owner}\", which is the same matrix{or_bias}"))
                    }
                    None => {
                        let mut parts: Vec<&str> = names().filter_map(|name| name.split('.').next()).collect();
                        parts.sort_unstable();
                        parts.dedup();
                        let help = format!(
                            "the parts are {}, and those within them that `mt info -v` lists, such as encoder.layers.0",
                            parts.join(", ")
                        );
                        (format!("`{key}`: the model has no {part}"), help)
                    }
                };
                Error::usage(what).help(help)
            });
        }
    }

    /// Checks that there is a model to be changed, and what of it is.
    fn low_rank(&mut self, low_rank: &LowRankConfig, config: &Config) {
        let is_unknown = |name: &&String| !name.is_empty() && !PROJECTIONS.contains(&name.as_str());
        for name in low_rank.projections.iter().filter(is_unknown) {
            let what = format!("`train.low_rank.projections`: no layer has a projection {name}");
            let error = Error::usage(what).help(format!("they are {}", PROJECTIONS.join(", ")));
            self.add(&["train.low_rank.projections"], error);
        }
        let of = |entry: &Entry| Training::of(&entry.name, &config.train.freeze, Some(low_rank));
        if names(config).entries().iter().all(|entry| of(entry) != Training::LowRank) {
            let error = Error::usage("`train.low_rank` gives factors to no matrix");
            let help = "name projections in it that neither `also` nor `train.freeze` holds; or leave it out";
            self.add(&["train.low_rank"], error.help(help));
        }
        if config.train.init.is_none() {
            let what = "`train.low_rank` changes a trained model, and `train.init` names none";
            let help = "set `train.init` to the model; or leave `train.low_rank` out to train a new one";
            self.add(&["train.low_rank"], Error::usage(what).help(help));
        }
        if config.train.exponential_average > 0.0 {
            let what = "`train.exponential_average` is not computed of factors (`train.low_rank`)";
            let error = Error::usage(what).help("set `train.average_last` instead, or leave one of them out");
            self.add(&["train.exponential_average", "train.low_rank"], error);
        }
    }

    /// Checks that there is a model of which layers can be taken.
    fn init_layers(&mut self, config: &Config) {
        let train = &config.train;
        if train.init.is_none() && train.init_layers != InitLayers::default() {
            let what = "`train.init_layers` names layers of a model, and `train.init` names no model";
            let help = "set `train.init` to the model, or leave `train.init_layers` out";
            self.add(&["train.init_layers.encoder", "train.init_layers.decoder"], Error::usage(what).help(help));
        }
    }

    /// Checks that the metric that decides is computed at each validation.
    fn comet(&mut self, config: &Config) {
        if config.valid.metric == ValidMetric::Comet && config.valid.comet > 1 {
            let what =
                "`valid.metric` = \"comet\" needs COMET at each validation, and `valid.comet` asks for it at some";
            let help = "leave `valid.comet` out, and validate less often (`valid.every`)";
            self.add(&["valid.comet", "valid.metric"], Error::usage(what).help(help));
        }
    }

    /// Checks that a schedule that depends on validations gets them.
    fn plateau(&mut self, config: &Config) {
        let ScheduleConfig::Plateau { patience, .. } = config.train.schedule else { return };
        let (every, stop) = (config.valid.every, config.valid.patience);
        let kind = "`train.schedule.kind` = \"plateau\"";
        if every.is_never() {
            let what = format!("{kind} waits for validations, but with `valid.every` = 0 there are none");
            let help = "set `valid.every`, or another `kind`";
            self.add(&["train.schedule.kind", "valid.every"], Error::usage(what).help(help));
        } else if stop > 0 && stop <= patience {
            let what = format!(
                "{kind} lowers the rate after {patience} validations without an improvement, but `valid.patience` = \
                 {stop} ends training then"
            );
            let help = "raise `valid.patience`, or lower `train.schedule.patience`";
            self.add(
                &["train.schedule.patience", "valid.patience", "train.schedule.kind"],
                Error::usage(what).help(help),
            );
        }
    }
}

/// The parameters of the model, for their names: these do not depend on the vocabulary.
fn names(config: &Config) -> ParameterLayout {
    let any = Vocabulary { source: 8, target: 8, source_padding: 0, target_padding: 0 };
    layout::layout(&config.model, any)
}
