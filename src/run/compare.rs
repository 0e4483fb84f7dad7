//! Whether a run may continue with another configuration, and with the present text.

use std::path::Path;

use super::init;
use super::validator::Validator;
use crate::config::{self, Config, Decides, OnResume};
use crate::data::encoded::EncodedCorpus;
use crate::data::{CorpusLocation, SetConfig, TokenizerConfig};
use crate::error::{Error, Result};
use crate::escape::shell_word;
use crate::model::ModelConfig;
use crate::model::layout::{Vocabulary, layout};
use crate::model_dir::record::{self, Values};
use crate::ops::params::ParameterLayout;
use crate::train::state::{TextChecksums, TrainState};

/// A checkpoint holds other tensors if this is 0.
const AVERAGE: &str = "train.exponential_average";

/// Whether a number, as TOML, is 0.
fn is_off(value: &str) -> bool {
    value.parse() == Ok(0.0)
}

/// The number of corpora that have these weights, as TOML.
fn corpora(weights: &str) -> usize {
    weights.split(',').filter(|weight| weight.contains(|c: char| c.is_ascii_digit())).count()
}

/// Whether the parameters of two models have different shapes, whatever the vocabulary.
fn is_other_shape(a: &ModelConfig, b: &ModelConfig) -> bool {
    let any = Vocabulary { source: 8, target: 8, source_padding: 0, target_padding: 0 };
    let [a, b] = [a, b].map(|model| layout(model, any));
    let shapes = |layout: &ParameterLayout| -> Vec<_> {
        layout.entries().iter().map(|entry| (entry.name.clone(), entry.shape.clone())).collect()
    };
    shapes(&a) != shapes(&b)
}

/// The `[model]` section that a record's values make, if this version knows all its keys.
fn model_of(values: &Values) -> Option<ModelConfig> {
    let lines = values.iter().filter_map(|(key, value)| Some(format!("{} = {value}\n", key.strip_prefix("model.")?)));
    toml::from_str(&lines.collect::<String>()).ok()
}

/// How the configuration of a run differs from the one to continue it with.
#[derive(Default)]
pub struct Comparison {
    /// Changes that are allowed but worth mentioning.
    pub notes: Vec<String>,
    /// Changes that would make it a different training, and need `--force`.
    pub refused: Vec<Error>,
    /// Whether nothing has changed that decides what is trained or made of it; where it is computed and where text
    /// lies does not.
    pub is_same: bool,
    /// What has changed nevertheless that others read in a run's configuration: the test set, for example.
    pub not_taken_over: Vec<&'static str>,
    /// Changes that even `--force` cannot allow: they would have no effect, or the parameters would have another
    /// shape.
    pub impossible: Vec<Error>,
}

/// Compares the configuration of a run, stored in `config_file`, with the one to continue it with. What its newest
/// checkpoint records counts for more than the file, which may have been changed since. `locate` adds to an error where
/// the new value of a key is stated.
pub fn configurations(
    config_file: &Path,
    old: &Config,
    new: &Config,
    locate: &dyn Fn(Error, &str) -> Error,
) -> Comparison {
    let newest = config_file.parent().and_then(record::newest);
    let has_parameters = newest.is_some();
    let (step, record) = newest.unwrap_or_default();
    let mut comparison = Comparison::default();
    let gone = new.train.init.as_deref().filter(|init| !init.exists());
    let (before, now) = (record::before(old, &record), record::values(&with_text_of(new, old, has_parameters)));
    let is_other_shape = is_other_shape(&model_of(&before).unwrap_or_else(|| old.model.clone()), &new.model);
    // The record of a checkpoint does not have all keys, and the file may have others than it.
    let in_file = config::differences_of(&record::values(old), &now);
    comparison.is_same = in_file.iter().all(|(key, ..)| config::decides(key, Decides::NoModel));
    if new.data.test != old.data.test {
        comparison.not_taken_over.push("data.test");
    }
    if new.data.monitor != old.data.monitor {
        comparison.not_taken_over.push("data.monitor");
    }
    let set = |(new, old): (&SetConfig, &SetConfig)| {
        let is_same_text = new.location == old.location || is_moved(&new.location, &old.location);
        new.name() == old.name() && new.tag == old.tag && is_same_text
    };
    let monitored = [&old.data.monitor, &new.data.monitor];
    if monitored[0].len() != monitored[1].len() || !monitored[1].iter().zip(monitored[0]).all(set) {
        let [before, now] = monitored.map(|sets| sets.iter().map(SetConfig::name).collect::<Vec<_>>().join(", "));
        comparison
            .notes
            .push(format!("other sets are monitored from now on: \"{now}\" instead of \"{before}\" (`data.monitor`)"));
    }
    if new.decode != old.decode {
        comparison.not_taken_over.push("decode");
    }
    for (key, before, now) in config::differences_of(&before, &now) {
        comparison.is_same &= config::decides(&key, Decides::NoModel);
        let until = if record.contains_key(&key) { format!("up to update {step}") } else { "before".to_owned() };
        let what = match (corpora(&before), corpora(&now)) {
            (old, new) if key == record::WEIGHTS && old != new => {
                let one_or_more = if old.abs_diff(new) == 1 { "a corpus was" } else { "corpora were" };
                let change = if new > old { "added to" } else { "removed from" };
                format!("{one_or_more} {change} `data.train`: the weights were {before} {until} and are {now} now")
            }
            _ => format!("`{key}` was {before} {until} and is {now} now"),
        };
        let meaning = config::on_resume(&key);
        if meaning == OnResume::Noted {
            comparison.notes.push(what);
        } else if let (Some(init), true) = (gone, key.starts_with("model.")) {
            let help = format!(
                "the keys that [model] leaves out come from the model in `train.init`, but {} is gone: continue with \
                 the run's own configuration, --config {}",
                init.display(),
                shell_word(config_file)
            );
            comparison.impossible.push(locate(Error::usage(what), &key).help(help));
        } else if meaning == OnResume::NoEffect {
            let help =
                "a run keeps the vocabulary that it began with: restore the value, or start another run with --run-dir";
            comparison.impossible.push(locate(Error::usage(what), &key).help(help));
        } else if meaning == OnResume::AtStart && has_parameters {
            let help = "a run that has a checkpoint goes on with its own parameters: restore the value, or start \
                        another run with --run-dir";
            comparison.impossible.push(locate(Error::usage(what), &key).help(help));
        } else if is_other_shape && config::decides(&key, Decides::Shape) {
            let help =
                "the run's parameters do not fit another shape: restore the value, or start another run with --run-dir";
            comparison.impossible.push(locate(Error::usage(what), &key).help(help));
        } else if key == AVERAGE && is_off(&before) != is_off(&now) {
            let help = "a run has its exponential average from the beginning or not at all: restore the value, or \
                        start another run from this one's model with train.init";
            comparison.impossible.push(locate(Error::usage(what), &key).help(help));
        } else if matches!(meaning, OnResume::Refused | OnResume::AtStart) {
            let help = "a resumed run must train as it began: restore the value, start another run with --run-dir, or \
                        insist with --force";
            comparison.refused.push(locate(Error::usage(what), &key).help(help));
        }
    }
    comparison
}

/// The configuration with the corpora of `old` in place of its own: text may have moved, and is compared by its
/// checksum. So may the model that training began with, which a run that `has_parameters` does not read.
fn with_text_of(config: &Config, old: &Config, has_parameters: bool) -> Config {
    let mut config = config.clone();
    if let (Some(new), Some(before), true) = (&mut config.train.init, &old.train.init, has_parameters)
        && new.file_name() == before.file_name()
    {
        new.clone_from(before);
    }
    for (new, old) in config.data.train.iter_mut().zip(&old.data.train) {
        new.location = old.location.clone();
    }
    if let (Some(new), Some(old)) = (&mut config.data.valid, &old.data.valid) {
        *new = old.clone();
    }
    if let (Some(new), Some(old)) = (&mut config.data.test, &old.data.test)
        && is_moved(&new.location, &old.location)
    {
        new.location = old.location.clone();
    }
    // A run that fine-tunes a model has recorded its tokenizers with all symbols, whether the user stated them or not.
    if config.train.init.is_some() && old.train.init.is_some() {
        let init = init::config_of_init(&config).map(|init| init.tokenizer);
        config.tokenizer = init::keeping_vocabulary(&config.tokenizer, &old.tokenizer, init.as_ref());
        let there = |new: &[String], old: &[String]| new.iter().all(|symbol| old.contains(symbol));
        let (new, old) = (&mut config.tokenizer, &old.tokenizer);
        if there(&new.tags, &old.tags) && there(&new.symbols, &old.symbols) {
            new.tags.clone_from(&old.tags);
            new.symbols.clone_from(&old.symbols);
        }
    }
    // A tokenizer may have moved too: the run has a copy to compare it with.
    let files = |tokenizer: &mut TokenizerConfig| {
        let TokenizerConfig { path, target_path, codes, target_codes, vocabulary, target_vocabulary, .. } = tokenizer;
        [path, target_path, codes, target_codes, vocabulary, target_vocabulary].map(std::mem::take)
    };
    let [new, before] = [files(&mut config.tokenizer), files(&mut old.tokenizer.clone())];
    let mut kept = new.into_iter().zip(before).map(|(new, old)| if new.is_some() && old.is_some() { old } else { new });
    let mut next = || kept.next().flatten();
    let tokenizer = &mut config.tokenizer;
    (tokenizer.path, tokenizer.target_path) = (next(), next());
    (tokenizer.codes, tokenizer.target_codes) = (next(), next());
    (tokenizer.vocabulary, tokenizer.target_vocabulary) = (next(), next());
    config
}

/// Whether two texts are of the same names, which is all that is known of a test set. `mt eval` finds it by the run's
/// record.
fn is_moved(new: &CorpusLocation, old: &CorpusLocation) -> bool {
    match (new, old) {
        (
            CorpusLocation::Files { source, target },
            CorpusLocation::Files { source: old_source, target: old_target },
        ) => source.file_name() == old_source.file_name() && target.file_name() == old_target.file_name(),
        (CorpusLocation::Tsv { file, columns }, CorpusLocation::Tsv { file: old_file, columns: old_columns }) => {
            file.file_name() == old_file.file_name() && columns == old_columns
        }
        _ => false,
    }
}

/// The checksums of a run's text.
pub fn checksums(corpus: &EncodedCorpus, validator: Option<&Validator>) -> TextChecksums {
    TextChecksums {
        train: corpus.fingerprint(),
        corpora: corpus.fingerprints(),
        valid: validator.map(Validator::fingerprint),
    }
}

/// Refuses to continue a run with other text than it began with.
pub fn text(state: &TrainState, new: &TextChecksums, config: &Config) -> Result<()> {
    let (old, filters) = (&state.text, other_filters(&state.configuration, config));
    let config = &config.data;
    let valid = old.valid.is_some() && new.valid.is_some() && old.valid != new.valid;
    let is_known = old.corpora.len() == config.train.len() && new.corpora.len() == config.train.len();
    let is_other = |number: &usize| !is_known || old.corpora[*number] != new.corpora[*number];
    let other: Vec<_> = (0..config.train.len()).filter(is_other).map(|number| &config.train[number].location).collect();
    let mut errors = Vec::new();
    if old.train != new.train {
        let is_weighted = config.train.iter().any(|corpus| corpus.weights.is_some());
        let what = if is_weighted { "training text, or the weights of its pairs," } else { "training text" };
        errors.push(changed(what, &filters, &other, is_known));
    }
    if valid {
        errors.push(changed(
            "validation text",
            &[],
            &config.valid.iter().map(|set| &set.location).collect::<Vec<_>>(),
            true,
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// The filters of training text whose values have changed. Checksums cover only the text that filters leave.
fn other_filters(before: &Values, config: &Config) -> Vec<String> {
    let now = record::values(config);
    config::that_decide(Decides::Filter)
        .filter(|key| before.get(key).is_some_and(|before| now.get(key) != Some(before)))
        .collect()
}

/// The error for text that has changed: all of `texts` or, if it is not known which, some of them. With other
/// `filters`, it may be the same.
fn changed(what: &str, filters: &[String], texts: &[&CorpusLocation], is_known: bool) -> Error {
    let or = match filters {
        [] => String::new(),
        keys => format!(", or only what `{}` leaves of it", keys.join("` and `")),
    };
    let what = format!("the {what} has changed since the run began{or}");
    let error = match texts {
        [] => Error::usage(what),
        [text] => Error::usage(what).at(text.to_string()),
        texts => {
            let among = if is_known { "" } else { "at least one of " };
            let names: Vec<_> = texts.iter().map(ToString::to_string).collect();
            Error::usage(format!("{what}: {among}{}", names.join(", ")))
        }
    };
    error.help(
        "restore the files (they may be in another place, but with the same `tag`); or start another run with \
         --run-dir, from this one's model with train.init; or insist with --force",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CorpusConfig, DataConfig};

    #[test]
    fn a_corpus_that_was_added_is_told_from_another_weight() {
        let corpus = |weight| CorpusConfig {
            location: CorpusLocation::Files { source: "a.en".into(), target: "a.de".into() },
            tag: None,
            languages: [None, None],
            weight,
            weights: None,
        };
        let config = |weights: &[f64]| {
            let mut config = Config::default();
            config.data.train = weights.iter().copied().map(corpus).collect();
            config
        };
        for (old, new, says) in [
            (&[1.0][..], &[1.0, 0.5][..], "a corpus was added to `data.train`: the weights were [1.0] before"),
            (
                &[1.0, 2.0, 3.0],
                &[1.0],
                "corpora were removed from `data.train`: the weights were [1.0, 2.0, 3.0] before",
            ),
            (&[1.0, 1.0], &[1.0, 2.0], "`data.train.weight` was [1.0, 1.0] before and is [1.0, 2.0] now"),
        ] {
            let refused =
                configurations(Path::new("none/config.toml"), &config(old), &config(new), &|error, _| error).refused;
            assert_eq!(refused.len(), 1);
            assert!(refused[0].what().starts_with(says), "{}", refused[0]);
        }
    }

    #[test]
    fn the_text_that_has_changed_is_named() {
        let config = Config::default();
        let train = ["a", "b", "c"].map(|name| CorpusConfig {
            location: CorpusLocation::Files {
                source: format!("{name}.en").into(),
                target: format!("{name}.de").into(),
            },
            tag: None,
            languages: [None, None],
            weight: 1.0,
            weights: None,
        });
        let config = Config { data: DataConfig { train: train.to_vec(), ..config.data }, ..Config::default() };
        let checksums = |corpora: &[&str]| TextChecksums {
            train: corpora.concat(),
            corpora: corpora.iter().map(|&digest| digest.to_owned()).collect(),
            valid: None,
        };
        let old = checksums(&["1", "2", "3"]);
        let state = |text: &TextChecksums| TrainState { text: text.clone(), ..TrainState::default() };
        text(&state(&old), &old, &config).unwrap();
        let older = TextChecksums { corpora: Vec::new(), ..old.clone() };
        for (old, new, named) in [
            (&old, ["1", "5", "3"], &["b"][..]),
            (&old, ["1", "5", "6"], &["b", "c"]),
            (&older, ["1", "5", "3"], &["a", "b", "c"]),
        ] {
            let error = text(&state(old), &checksums(&new), &config).unwrap_err().to_string();
            let found = ["a", "b", "c"].into_iter().filter(|name| error.contains(&format!("{name}.en")));
            assert_eq!(found.collect::<Vec<_>>(), named, "{error}");
        }
    }
}
