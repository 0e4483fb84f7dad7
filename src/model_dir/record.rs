//! What a checkpoint records of the configuration that it was trained with: a run's `config.toml` may change, by a
//! resume or by hand, while its checkpoints stay.

use std::collections::BTreeMap;
use std::path::Path;

use crate::checkpoint;
use crate::config::{self, Config, Decides, OnResume};
use crate::error::{Error, Result};
use crate::train::schedule::Plateau;
use crate::train::state::{TextChecksums, TrainState};
use crate::train::{ValidConfig, ValidMetric};

/// Values of keys, as TOML.
pub type Values = BTreeMap<String, String>;

/// Where the keys of the schedule begin.
const SCHEDULE: &str = "train.schedule.";
/// The weights of the corpora.
pub const WEIGHTS: &str = "data.train.weight";
/// Whether the pairs of the corpora have weights; the checksum of the text tells which.
const WEIGHTS_OF_PAIRS: &str = "data.train.weights";

/// The values of all keys as TOML, by dotted name. Of the training corpora, which may be moved, only the weights, and
/// whether their pairs have weights.
pub fn values(config: &Config) -> Values {
    let mut values = config::values(config);
    values.remove("data.train");
    let weights = config.data.train.iter().map(|corpus| corpus.weight).collect::<Vec<_>>();
    values.insert(WEIGHTS.to_owned(), format!("{weights:?}"));
    let of_pairs: Vec<bool> = config.data.train.iter().map(|corpus| corpus.weights.is_some()).collect();
    if of_pairs.contains(&true) {
        values.insert(WEIGHTS_OF_PAIRS.to_owned(), format!("{of_pairs:?}"));
    }
    values
}

/// The values that a checkpoint records: those of its model and training that a run may not change, and those that its
/// state refers to. For the text it holds checksums.
pub fn recorded_values(config: &Config) -> Values {
    let mut values = values(config);
    values.retain(|key, _| {
        let of_training = ["model.", "train.", "tokenizer.dropout", "tokenizer.sampling."];
        let is_of_training = of_training.iter().any(|start| key.starts_with(start));
        let is_origin = key == "model.preset" || key == "train.init";
        let is_recorded = (is_of_training && !is_origin) || config::decides(key, Decides::Batches);
        is_of_state(key) || (is_recorded && matches!(config::on_resume(key), OnResume::Refused | OnResume::AtStart))
    });
    values
}

/// Whether the state refers to the key: the learning rate lowered so far, the best validation.
fn is_of_state(key: &str) -> bool {
    // The record of the training so far stays.
    key.starts_with(SCHEDULE) || config::decides(key, Decides::Validation) && !key.starts_with("train.")
}

/// Whether an epoch has other batches with this configuration than with the values `before`, for the same text.
pub fn is_other_order(before: &Values, config: &Config) -> bool {
    let now = values(config);
    // Keys of other versions are not compared.
    config::that_decide(Decides::Batches)
        .any(|key| before.get(&key).is_some_and(|before| Some(before) != now.get(&key)))
}

/// Whether the value of a validation by this metric depends on a key that decides it for some metric.
fn is_of_value(key: &str, valid: &ValidConfig) -> bool {
    match key {
        "valid.metric" => true,
        "train.label_smoothing" => valid.metric == ValidMetric::Loss,
        "valid.comet_model" => valid.metric == ValidMetric::Comet,
        _ if valid.metric == ValidMetric::Loss => false,
        "valid.tokenize" => valid.metric == ValidMetric::Bleu,
        // A greedy search ranks nothing.
        "decode.length_penalty" | "decode.length_penalty_kind" | "decode.patience" => valid.beam > 1,
        _ => true,
    }
}

/// Adapts the state of a checkpoint to a run with this configuration and text; `before` holds the values that the keys
/// had until then. It drops what no longer applies: a lowered learning rate after another schedule, the best validation
/// after another validation. Returns why it dropped the latter, if it did. Another end of a schedule is no other
/// schedule, since it may follow from the number of updates.
pub fn adapt(state: &mut TrainState, before: &Values, config: &Config, text: TextChecksums) -> Option<String> {
    let now = config::values(config);
    // Keys of other versions are not compared.
    let differs = |key: &String| before.get(key).zip(now.get(key)).is_some_and(|(before, now)| before != now);
    let mut of_validation = config::that_decide(Decides::Validation).filter(|key| is_of_value(key, &config.valid));
    let schedule = |values: &Values| -> Values {
        values
            .iter()
            .filter(|(key, _)| key.strip_prefix(SCHEDULE).is_some_and(|key| key != "total"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let schedule_before = schedule(before);
    if !schedule_before.is_empty() && schedule_before != schedule(&now) {
        state.health.rate = 1.0;
        state.plateau = Plateau::default();
    }
    let is_other_text = matches!((&state.text.valid, &text.valid), (Some(before), Some(now)) if before != now);
    let why = if !other_model(before, config).is_empty() {
        Some("is another model's".to_owned())
    } else if let Some(key) = of_validation.find(differs) {
        Some(match key.as_str() {
            "valid.metric" => format!("was not chosen by {}", config.valid.metric),
            key => format!("was found with another `{key}`"),
        })
    } else {
        is_other_text.then(|| "is that of another validation text".to_owned())
    };
    if why.is_some() {
        state.forget_validations();
    }
    if state.step < config.valid.patience_after {
        state.stale = 0;
    }
    state.configuration.retain(|key, _| !is_of_state(key));
    state.configuration.extend(now.into_iter().filter(|(key, _)| is_of_state(key)));
    // A validation text that is not used for now stays known.
    state.text = TextChecksums { valid: text.valid.or(state.text.valid.take()), ..text };
    why
}

/// The update of a run's newest checkpoint that can be read, and its record.
pub fn newest(run: &Path) -> Option<(u64, Values)> {
    let checkpoints = checkpoint::list(run).unwrap_or_default();
    checkpoints.into_iter().rev().find_map(|(step, directory)| Some((step, read(&directory)?)))
}

fn read(checkpoint: &Path) -> Option<Values> {
    let state = checkpoint::read_state(checkpoint).and_then(TrainState::from_json);
    state.ok().map(|state| state.configuration)
}

/// The values of all keys in a run's training so far: those of its configuration, replaced by the record.
pub fn before(config: &Config, record: &Values) -> Values {
    let mut values = values(config);
    // Which keys these tables have depends on their kinds.
    for table in ["train.optimizer.", SCHEDULE] {
        let is_recorded = record.keys().any(|key| key.starts_with(table));
        values.retain(|key, _| !is_recorded || !key.starts_with(table));
    }
    values.extend(record.clone());
    values
}

/// The keys of `[model]` that change what a model computes from the same tensors, and whose values differ from the
/// record: each with its recorded and its present value.
pub fn other_model(record: &Values, config: &Config) -> Vec<(String, String, String)> {
    let now = recorded_values(config);
    // Keys of other versions are not compared.
    let both = record.iter().filter_map(|(key, before)| Some((key, before, now.get(key)?)));
    let differing = both.filter(|(key, before, now)| config::decides(key, Decides::Function) && before != now);
    differing.map(|(key, before, now)| (key.clone(), before.clone(), now.clone())).collect()
}

/// Refuses a checkpoint of a run whose configuration has another model now: its tensors might fit, and mean something
/// else.
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
    use crate::metrics::Tokenize;
    use crate::train::best::Judged;
    use crate::train::schedule::{Decay, ScheduleConfig};

    #[test]
    fn only_what_changes_a_model_makes_it_another() {
        let old = Config::default();
        let mut new = old.clone();
        new.model.dropout = 0.5;
        new.model.activation_dropout = 0.5;
        new.model.max_length += 1;
        new.train.label_smoothing = 0.0;
        assert_eq!(other_model(&recorded_values(&old), &new), []);
        new.model.scale_embedding = !old.model.scale_embedding;
        let changed = other_model(&recorded_values(&old), &new);
        assert_eq!(changed, [("model.scale_embedding".to_owned(), "true".to_owned(), "false".to_owned())]);
        // A record of another version, which lacks this key and has one of its own.
        let mut record = recorded_values(&old);
        record.remove("model.scale_embedding");
        record.insert("model.unknown".to_owned(), "1".to_owned());
        assert_eq!(other_model(&record, &new), []);
    }

    /// Validations that were translated in another way must not be compared.
    #[test]
    fn validations_depend_on_each_key_of_the_search() {
        let values = values(&Config::default());
        let of_search = || values.keys().filter(|key| key.starts_with("decode."));
        let free: Vec<_> = of_search().filter(|key| !config::decides(key, Decides::Validation)).collect();
        assert_eq!(free, ["decode.batch_tokens", "decode.beam"], "validation has a beam of its own");
        assert!(of_search().count() > 8);
    }

    /// The state of a checkpoint that was trained with `config` and has something to lose.
    fn state_of(config: &Config) -> TrainState {
        let mut state = TrainState {
            best: Some(Judged { step: 5, value: 30.0, loss: 2.0, lines: Vec::new() }),
            stale: 2,
            text: TextChecksums { train: "t".to_owned(), valid: Some("v".to_owned()), ..TextChecksums::default() },
            configuration: recorded_values(config),
            ..TrainState::default()
        };
        state.health.rate = 0.5;
        state
    }

    #[test]
    fn a_best_validation_counts_only_among_its_like() {
        let same = TextChecksums { train: "t".to_owned(), valid: Some("v".to_owned()), ..TextChecksums::default() };
        let other = TextChecksums { valid: Some("w".to_owned()), ..same.clone() };
        let none = TextChecksums { valid: None, ..same.clone() };
        let [mut bleu, mut loss] = [Config::default(), Config::default()];
        bleu.valid.metric = ValidMetric::Bleu;
        loss.valid.metric = ValidMetric::Loss;
        let [mut beams, mut chrf] = [bleu.clone(), bleu.clone()];
        beams.valid.beam = 4;
        chrf.valid.metric = ValidMetric::Chrf;
        type Change = fn(&mut Config);
        let unchanged: Change = |_| ();
        let beam: Change = |config| config.valid.beam += 1;
        let penalty: Change = |config| config.decode.length_penalty += 0.1;
        let smoothing: Change = |config| config.train.label_smoothing = 0.3;
        for (old, change, text, why) in [
            (&bleu, unchanged, &same, None),
            (&bleu, unchanged, &none, None),
            (&bleu, unchanged, &other, Some("is that of another validation text")),
            (&bleu, |config| config.valid.metric = ValidMetric::Chrf, &same, Some("was not chosen by chrf")),
            (
                &bleu,
                |config| config.valid.tokenize = Tokenize::Char,
                &same,
                Some("was found with another `valid.tokenize`"),
            ),
            (&bleu, |config| config.model.heads = 2, &same, Some("is another model's")),
            (&bleu, beam, &same, Some("was found with another `valid.beam`")),
            (&loss, beam, &same, None),
            (&bleu, penalty, &same, None),
            (&beams, penalty, &same, Some("was found with another `decode.length_penalty`")),
            (&chrf, |config| config.valid.tokenize = Tokenize::Char, &same, None),
            (&bleu, smoothing, &same, None),
            (&loss, smoothing, &same, Some("was found with another `train.label_smoothing`")),
        ] {
            let (mut state, mut new) = (state_of(old), old.clone());
            change(&mut new);
            let before = state.configuration.clone();
            assert_eq!(adapt(&mut state, &before, &new, text.clone()).as_deref(), why);
            assert_eq!((state.best.is_some(), state.stale), if why.is_some() { (false, 0) } else { (true, 2) });
            // A validation text that is left out for once is compared with the next one.
            assert_eq!(state.text.valid, text.valid.clone().or(Some("v".to_owned())));
            // Now the state belongs to the new run, with the same model.
            let before = state.configuration.clone();
            assert_eq!(before.get("valid.beam"), recorded_values(&new).get("valid.beam"));
            assert_eq!(before.get("model.heads"), recorded_values(old).get("model.heads"));
        }
    }

    #[test]
    fn a_lowered_learning_rate_belongs_to_its_schedule() {
        let old = Config::default();
        let mut new = old.clone();
        new.train.schedule = ScheduleConfig::Constant { learning_rate: 0.1, warmup: 0 };
        let linear = |total| {
            let decay = Decay { learning_rate: 0.1, warmup: 0, total, end: 0.0 };
            let mut config = old.clone();
            config.train.schedule = ScheduleConfig::Linear(decay);
            config
        };
        for (old, config, rate) in [(&old, &old, 0.5), (&old, &new, 1.0), (&linear(10), &linear(20), 0.5)] {
            let mut state = state_of(old);
            let (before, text) = (state.configuration.clone(), state.text.clone());
            adapt(&mut state, &before, config, text);
            assert_eq!(state.health.rate, rate);
            // With a record of the new schedule, no further reset happens.
            state.health.rate = 0.25;
            let (before, text) = (state.configuration.clone(), state.text.clone());
            adapt(&mut state, &before, config, text);
            assert_eq!(state.health.rate, 0.25);
        }
    }

    #[test]
    fn what_was_trained_with_is_the_record_s() {
        let mut config = Config::default();
        let record = recorded_values(&config);
        config.train.seed = 7;
        config.decode.beam = 9;
        let values = before(&config, &record);
        let value = |key: &str| values.get(key).map(String::as_str);
        assert_eq!((value("train.seed"), value("decode.beam")), (Some("1"), Some("9")));
        assert_eq!(before(&config, &Values::new()), super::values(&config));
    }
}
