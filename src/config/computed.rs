//! Keys with defaults that are computed from other keys, and how the computed values follow those keys.
//!
//! The configuration in a run directory states every key, also those that its user left out. It may lie below `--set`
//! or another file. If such a layer changes a key, the run's values that were computed from that key are computed anew:
//! with `model.norm = "pre"`, a `final_norm = false` that only followed from "post" becomes true. Likewise, files below
//! its `data.root` are searched for below a new root. A key that the layer states itself has the stated value, as
//! always. In a user's own file, every stated value is intended and stays.

use std::cmp::Reverse;
use std::path::Path;

use super::document::{Table, Value, get, to_json};
use super::sections::Config;
use crate::model::{ModelConfig, NormPlacement, Preset, Tie};
use crate::train::TrainConfig;

/// A key whose default is computed.
struct Computed {
    /// The key.
    key: &'static str,
    /// The keys that the default depends on.
    from: &'static [&'static str],
    /// Gives it its default.
    fill: fn(&mut Config),
}

/// Those keys, each after the ones that it depends on.
const COMPUTED: &[Computed] = &[
    Computed { key: "model.d_model", from: PRESET, fill: |config| config.model.d_model = shape(config).d_model },
    Computed { key: "model.d_ff", from: PRESET, fill: |config| config.model.d_ff = shape(config).d_ff },
    Computed { key: "model.heads", from: PRESET, fill: |config| config.model.heads = shape(config).heads },
    Computed {
        key: "model.encoder_layers",
        from: PRESET,
        fill: |config| config.model.encoder_layers = shape(config).encoder_layers,
    },
    Computed {
        key: "model.decoder_layers",
        from: PRESET,
        fill: |config| config.model.decoder_layers = shape(config).decoder_layers,
    },
    Computed { key: "model.d_k", from: WIDTHS, fill: |config| config.model.d_k = head_width(&config.model) },
    Computed { key: "model.d_v", from: WIDTHS, fill: |config| config.model.d_v = head_width(&config.model) },
    Computed {
        key: "model.final_norm",
        from: &["model.norm"],
        fill: |config| config.model.final_norm = config.model.norm == NormPlacement::Pre,
    },
    Computed {
        key: "model.tie",
        // Two files are two vocabularies.
        from: &["tokenizer.joint", "tokenizer.path", "tokenizer.target_path"],
        fill: |config| config.model.tie = if config.tokenizer.joint { Tie::All } else { Tie::Decoder },
    },
    Computed {
        key: "model.embedding_dropout",
        from: &["model.dropout"],
        fill: |config| config.model.embedding_dropout = config.model.dropout,
    },
    Computed {
        key: "train.schedule.total",
        from: &["train.max_updates"],
        fill: |config| config.train.schedule.end_at(config.train.max_updates),
    },
    Computed {
        key: "train.average_last",
        from: &["valid.every", "train.exponential_average"],
        fill: |config| config.train.average_last = averaged(config),
    },
    Computed {
        key: "valid.on_start",
        from: &["train.init"],
        fill: |config| config.valid.on_start = config.train.init.is_some(),
    },
];

const PRESET: &[&str] = &["model.preset"];
const WIDTHS: &[&str] = &["model.d_model", "model.heads"];

/// Keys of a corpus that name its text.
const TEXT: &[&str] = &["source", "target", "tsv", "weights"];

/// The model that the preset names.
fn shape(config: &Config) -> ModelConfig {
    ModelConfig::from_preset(config.model.preset.unwrap_or(Preset::Base))
}

fn head_width(model: &ModelConfig) -> usize {
    model.d_model / model.heads
}

/// A mean may be worse than each of its checkpoints, where these still change fast: only validation tells.
fn averaged(config: &Config) -> usize {
    let is_chosen = !config.valid.every.is_never() && config.train.exponential_average == 0.0;
    if is_chosen { TrainConfig::default().average_last } else { 0 }
}

/// Computes the keys that are not stated from those that are.
pub(super) fn fill(config: &mut Config, stated: impl Fn(&str) -> bool) {
    COMPUTED.iter().filter(|computed| !stated(computed.key)).for_each(|computed| (computed.fill)(config));
}

/// A layer that `mt` wrote, with every key.
pub(super) struct ResolvedLayer {
    stated: Table,
    order: usize,
    layer: (usize, Reverse<usize>),
    /// The keys with the values that its other keys give.
    following: Vec<&'static Computed>,
}

impl ResolvedLayer {
    /// The layer, if `mt` wrote it. It has been checked.
    pub(super) fn new(layer: &Table) -> Option<Self> {
        let origin = &layer.values().next()?.key;
        if !origin.is_resolved() {
            return None;
        }
        // Missing keys are reported elsewhere.
        let config: Config = serde_json::from_value(to_json(layer)).ok()?;
        let follows = |computed: &&Computed| {
            let mut other = config.clone();
            (computed.fill)(&mut other);
            get(layer, computed.key).is_some() && other == config
        };
        let following = COMPUTED.iter().filter(follows).collect();
        Some(Self { stated: layer.clone(), order: origin.source.order, layer: origin.source.layer, following })
    }

    /// Removes from the merged layers what follows from keys that layers above this one have changed.
    pub(super) fn release(&self, merged: &mut Table) {
        if let Some(Value::Text(root)) = get(&self.stated, "data.root").map(|entry| &entry.item.value)
            && self.is_changed(merged, "data.root")
            && let Some(Value::Table(data)) = merged.get_mut("data").map(|entry| &mut entry.item.value)
        {
            self.release_corpora(data, Path::new(root));
        }
        let mut released = Vec::new();
        for computed in &self.following {
            let is_changed = |key: &&&str| released.contains(*key) || self.is_changed(merged, key);
            let is_own = get(merged, computed.key).is_some_and(|entry| entry.item.origin.source.order == self.order);
            if is_own && computed.from.iter().any(|key| is_changed(&key)) {
                remove(merged, computed.key);
                released.push(computed.key);
            }
        }
    }

    /// Makes this layer's paths of text below its `root` relative to it again.
    fn release_corpora(&self, table: &mut Table, root: &Path) {
        // Columns of a data set are no paths.
        let is_hub = table.contains_key("hub");
        for (name, entry) in table {
            match &mut entry.item.value {
                Value::Table(inner) => self.release_corpora(inner, root),
                Value::List(items) => items.iter_mut().for_each(|item| {
                    if let Value::Table(inner) = &mut item.value {
                        self.release_corpora(inner, root);
                    }
                }),
                Value::Text(path) if !is_hub && TEXT.contains(&name.as_str()) => {
                    let relative = Path::new(path.as_str()).strip_prefix(root).ok().and_then(Path::to_str);
                    if let (Some(relative), true) = (relative, entry.item.origin.source.order == self.order) {
                        *path = relative.to_owned();
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a layer above this one gives the key another value.
    fn is_changed(&self, merged: &Table, key: &str) -> bool {
        let value = |table| get(table, key).map(|entry| entry.item.value.to_json());
        let is_above = |table| get(table, key).is_some_and(|entry| entry.item.origin.source.layer > self.layer);
        is_above(merged) && value(merged) != value(&self.stated)
    }
}

/// Removes the entry at a dotted path.
fn remove(table: &mut Table, path: &str) {
    match path.split_once('.') {
        None => drop(table.remove(path)),
        Some((name, rest)) => {
            if let Some(Value::Table(inner)) = table.get_mut(name).map(|entry| &mut entry.item.value) {
                remove(inner, rest);
            }
        }
    }
}
