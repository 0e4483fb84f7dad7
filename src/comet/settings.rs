//! What a model of COMET is: its class, and the settings it was trained with.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::model::pooling::Pooling;

/// What a model looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The vectors of translation, source and reference, each encoded by itself (`regression_metric`).
    Regression,
    /// Those of translation and source (`referenceless_regression_metric`).
    Referenceless,
    /// The translation and these in one sequence (`unified_metric`).
    Unified {
        /// The source.
        source: bool,
        /// The reference.
        reference: bool,
    },
}

/// The states of which layers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layers {
    /// Those of one; 0 is the embedding.
    One(usize),
    /// A mixture of all.
    Mixture {
        /// The weights are projected onto the simplex (Martins and Astudillo 2016), instead of by a softmax.
        sparse: bool,
        /// Each layer's states are normalised before: all numbers of a sentence together.
        normalised: bool,
    },
}

/// A non-linearity of the estimator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Tanh,
    Sigmoid,
}

impl Activation {
    fn read(key: &str, name: &str) -> Result<Self> {
        match name.to_lowercase().as_str() {
            "tanh" => Ok(Self::Tanh),
            "sigmoid" => Ok(Self::Sigmoid),
            _ => Err(unsupported(key, name)),
        }
    }

    pub(super) fn apply(self, values: &mut [f32]) {
        match self {
            Self::Tanh => values.iter_mut().for_each(|x| *x = x.tanh()),
            Self::Sigmoid => values.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        }
    }
}

/// The settings that scores depend on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) kind: Kind,
    pub(super) pooling: Pooling,
    pub(super) layers: Layers,
    pub(super) activation: Activation,
    /// That of the score.
    pub(super) last: Option<Activation>,
    /// The repository or folder of the encoder, whose tokenizer it has.
    pub(super) encoder: String,
}

/// A `layer_transformation` that is a softmax, since the models were trained with one.
const PATCHED: &str = "sparsemax_patch";

fn unsupported(key: &str, value: &str) -> Error {
    Error::failure(format!("a model of COMET with `{key}` = {value}")).help(
        "mt has the classes regression_metric, referenceless_regression_metric and unified_metric with an encoder of \
         XLM-RoBERTa",
    )
}

impl Settings {
    /// From the values of `hparams.yaml` and those of the checkpoint, which count where there are both.
    ///
    /// # Errors
    /// A value is missing or of a kind that is not supported.
    pub(super) fn read(file: &Map<String, Value>, checkpoint: &Map<String, Value>) -> Result<Self> {
        // A list that two tables share is empty in the second.
        let is_there = |value: &&Value| value.as_array().is_none_or(|list| !list.is_empty());
        let value = |key: &str| checkpoint.get(key).filter(is_there).or_else(|| file.get(key)).unwrap_or(&Value::Null);
        let text = |key: &str, default: &str| match value(key) {
            Value::Null => default.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // The class is in the file alone; the checkpoint may name the one that it was derived from.
        let class = file.get("class_identifier").unwrap_or(&Value::Null).as_str().unwrap_or_default();
        let segments: Vec<&str> = match value("input_segments") {
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            _ => vec!["mt", "src", "ref"],
        };
        let kind = match class {
            "regression_metric" => Kind::Regression,
            "referenceless_regression_metric" => Kind::Referenceless,
            "unified_metric" => {
                let [source, reference] = ["src", "ref"].map(|name| segments.contains(&name));
                if segments.first() != Some(&"mt") || !(source || reference) {
                    return Err(unsupported("input_segments", &segments.join(", ")));
                }
                Kind::Unified { source, reference }
            }
            other => return Err(unsupported("class_identifier", other)),
        };
        let is_unified = matches!(kind, Kind::Unified { .. });
        if text("encoder_model", "XLM-RoBERTa") != "XLM-RoBERTa" {
            return Err(unsupported("encoder_model", &text("encoder_model", "")));
        }
        let key = if is_unified { "sent_layer" } else { "layer" };
        // A mark of the file counts more than what the checkpoint says: the original reads it last.
        let transformation = match file.get("layer_transformation").and_then(Value::as_str) {
            Some(PATCHED) => PATCHED.to_owned(),
            _ => text("layer_transformation", if is_unified { "sparsemax" } else { "softmax" }),
        };
        let layers = match value(key) {
            Value::Number(number) => {
                let layer = number.as_u64().ok_or_else(|| unsupported(key, &number.to_string()))?;
                Layers::One(layer as usize)
            }
            _ if text(key, "mix") != "mix" => return Err(unsupported(key, &text(key, ""))),
            _ => Layers::Mixture {
                sparse: match transformation.as_str() {
                    "sparsemax" => true,
                    "softmax" | PATCHED => false,
                    other => return Err(unsupported("layer_transformation", other)),
                },
                normalised: match value("layer_norm") {
                    Value::Null => true,
                    found => truth(found).ok_or_else(|| unsupported("layer_norm", &found.to_string()))?,
                },
            },
        };
        Ok(Self {
            pooling: match text("pool", "avg").as_str() {
                _ if is_unified => Pooling::First,
                "avg" => Pooling::Mean,
                "max" => Pooling::Max,
                "cls" => Pooling::First,
                other => return Err(unsupported("pool", other)),
            },
            layers,
            activation: Activation::read("activations", &text("activations", "Tanh"))?,
            last: match value("final_activation") {
                Value::Null => None,
                other => Some(Activation::read("final_activation", other.as_str().unwrap_or_default())?),
            },
            encoder: text("pretrained_model", if is_unified { "microsoft/infoxlm-large" } else { "xlm-roberta-large" }),
            kind,
        })
    }
}

/// A truth value, as Python or YAML 1.1 writes it.
fn truth(value: &Value) -> Option<bool> {
    match value.to_string().trim_matches('"').to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn the_checkpoint_counts_where_it_says_something() {
        let file = map(json!({
            "class_identifier": "unified_metric", "input_segments": ["mt", "src"], "sent_layer": "mix",
            "layer_transformation": "sparsemax_patch", "layer_norm": false, "pretrained_model": "a/b"
        }));
        let read = |checkpoint: Value| Settings::read(&file, &map(checkpoint)).unwrap();
        let settings = read(json!({ "input_segments": [], "pretrained_model": "c/d", "final_activation": null }));
        assert_eq!(settings.kind, Kind::Unified { source: true, reference: false });
        assert_eq!(settings.layers, Layers::Mixture { sparse: false, normalised: false });
        assert_eq!((settings.pooling, settings.activation, settings.last), (Pooling::First, Activation::Tanh, None));
        assert_eq!(settings.encoder, "c/d");
        assert_eq!(read(json!({ "sent_layer": 3 })).layers, Layers::One(3));
        // The mark of a patched one is in the file.
        let mixture = |sparse| Layers::Mixture { sparse, normalised: false };
        assert_eq!(read(json!({ "layer_transformation": "sparsemax" })).layers, mixture(false));
        let mut unmarked = file.clone();
        unmarked.insert("layer_transformation".to_owned(), json!("softmax"));
        let checkpoint = map(json!({ "layer_transformation": "sparsemax" }));
        assert_eq!(Settings::read(&unmarked, &checkpoint).unwrap().layers, mixture(true));
        let mut odd = file.clone();
        for (value, normalised) in [(json!("no"), false), (json!(0), false), (json!("True"), true), (json!(1), true)] {
            odd.insert("layer_norm".to_owned(), value);
            let read = Settings::read(&odd, &Map::new()).unwrap();
            assert_eq!(read.layers, Layers::Mixture { sparse: false, normalised });
        }
        odd.insert("layer_norm".to_owned(), json!("perhaps"));
        assert!(Settings::read(&odd, &Map::new()).unwrap_err().to_string().contains("layer_norm"));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (key, value) in [
            ("class_identifier", json!("xcomet_metric")),
            ("encoder_model", json!("XLM-RoBERTa-XL")),
            ("layer_transformation", json!("max")),
            ("activations", json!("GELU")),
            ("layer", json!("default")),
            ("pool", json!("default")),
        ] {
            let mut file = map(json!({ "class_identifier": "regression_metric" }));
            file.insert(key.to_owned(), value.clone());
            let error = Settings::read(&file, &Map::new()).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(value.as_str().unwrap()), "{error}");
        }
    }
}
