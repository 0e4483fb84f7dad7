//! What a checkpoint records of the configuration that it was trained with: a run's `config.toml` may change, by a resume or by
//! hand, while its checkpoints stay.

use std::collections::BTreeMap;
use std::path::Path;

use crate::checkpoint;
use crate::config::{self, Config};
use crate::error::{Error, Result};
use crate::train::state::TrainState;

/// Values of keys, as TOML.
pub type Values = BTreeMap<String, String>;

/// Keys that may change when a run is continued: they do not change what an update computes.
pub const MAY_CHANGE: &[&str] = &[
    "runtime.device",
    "runtime.threads",
    "decode.",
    "data.root",
    "data.test",
    "data.cache_",
    "valid.every",
    "valid.patience",
    "valid.samples",
    "train.max_updates",
    "train.max_epochs",
    "train.average_last",
    "train.max_skipped",
    "train.save_every",
    "train.keep",
    "train.log_every",
];
/// Keys that may change too, but with a note: they affect further training, which may be intended.
pub const MAY_CHANGE_ALOUD: &[&str] = &["train.schedule.", "train.clip_norm", "valid.beam", "runtime.precision"];

/// Whether the key, or its beginning, is in a list.
pub fn is_in(key: &str, list: &[&str]) -> bool {
    list.iter().any(|listed| key.starts_with(listed))
}

/// What a checkpoint records: what its model is and how it was trained, as far as a run may not change that. Of the text it has
/// checksums.
pub fn of(config: &Config) -> Values {
    let mut values = config::values(config);
    values.retain(|key, _| {
        let is_recorded = is_in(key, &["model.", "train.", "tokenizer.dropout", "valid.metric"]);
        let is_origin = key == "model.preset" || key == "train.init";
        is_recorded && !is_origin && !is_in(key, MAY_CHANGE) && !is_in(key, MAY_CHANGE_ALOUD)
    });
    values
}

/// The update of a run's newest checkpoint that can be read, and its record; without keys if an older version wrote it.
pub fn of_newest(run: &Path) -> Option<(u64, Values)> {
    let checkpoints = checkpoint::list(run).unwrap_or_default();
    checkpoints.into_iter().rev().find_map(|(step, directory)| Some((step, read(&directory)?)))
}

fn read(checkpoint: &Path) -> Option<Values> {
    let state = checkpoint::read_state(checkpoint).and_then(TrainState::from_json);
    state.ok().map(|state| state.configuration)
}

/// The values of all keys with which a run was trained so far: those of its configuration, replaced by the record.
pub fn before(config: &Config, record: &Values) -> Values {
    let mut values = config::values(config);
    // Which keys this table has depends on its kind.
    values.retain(|key, _| record.is_empty() || !key.starts_with("train.optimizer."));
    values.extend(record.clone());
    values
}

/// The keys of `[model]` by which a model computes something else from the same tensors, if their values are not those of the
/// record: each with the value there and the one of now.
pub fn other_model(record: &Values, config: &Config) -> Vec<(String, String, String)> {
    let only_of_training = ["model.dropout", "model.init", "model.max_length"];
    let is_of_model =
        |key: &str| key.starts_with("model.") && !only_of_training.contains(&key) && !key.ends_with("_dropout");
    let now = of(config);
    // Keys of other versions are not compared.
    let both = record.iter().filter_map(|(key, before)| Some((key, before, now.get(key)?)));
    let differing = both.filter(|(key, before, now)| is_of_model(key) && before != now);
    differing.map(|(key, before, now)| (key.clone(), before.clone(), now.clone())).collect()
}

/// Refuses a checkpoint of a run whose configuration has another model now: its tensors might fit, and mean something else.
pub fn refuse_other_model(config: &Config, run: &Path, directory: &Path) -> Result<()> {
    // A checkpoint needs no state to be used as a model; a final model has its configuration's checksum.
    let Some((_, step)) = checkpoint::run_and_step(directory) else { return Ok(()) };
    let differing = other_model(&read(directory).unwrap_or_default(), config);
    if differing.is_empty() {
        return Ok(());
    }
    let differing: Vec<_> =
        differing.into_iter().map(|(key, before, now)| format!("`{key}` was {before} and is {now} now")).collect();
    let what = format!("this is not the model that update {step} was trained with: {}", differing.join(", "));
    let error = Error::failure(what).at(run.join(checkpoint::CONFIG_FILE));
    Err(error.help("restore the file as training wrote it, or use a checkpoint that was saved later"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_a_model_makes_it_another() {
        let old = Config::default();
        let mut new = old.clone();
        new.model.dropout = 0.5;
        new.model.activation_dropout = 0.5;
        new.model.max_length += 1;
        new.train.label_smoothing = 0.0;
        assert_eq!(other_model(&of(&old), &new), []);
        new.model.scale_embedding = !old.model.scale_embedding;
        let changed = other_model(&of(&old), &new);
        assert_eq!(changed, [("model.scale_embedding".to_owned(), "true".to_owned(), "false".to_owned())]);
        // A record of another version, which lacks this key and has one of its own.
        let mut record = of(&old);
        record.remove("model.scale_embedding");
        record.insert("model.unknown".to_owned(), "1".to_owned());
        assert_eq!(other_model(&record, &new), []);
    }

    #[test]
    fn what_was_trained_with_is_the_record_s() {
        let mut config = Config::default();
        let record = of(&config);
        config.train.seed = 7;
        config.decode.beam = 9;
        let values = before(&config, &record);
        let value = |key: &str| values.get(key).map(String::as_str);
        assert_eq!((value("train.seed"), value("decode.beam")), (Some("1"), Some("9")));
        assert_eq!(before(&config, &Values::new()), config::values(&config));
    }
}
