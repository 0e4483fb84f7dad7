//! What the options inside the model say, as our `[model]`, and what its `decoder.yml` says, as our `[decode]`.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::files;
use crate::config::Config;
use crate::decode::{DecodeConfig, MAX_BEAM, PenaltyKind};
use crate::error::{Error, Result};
use crate::escape::brief;
use crate::interop::yaml::{self, Value};
use crate::model::{Activation, ModelConfig, NormPlacement, Sinusoid, Tie};

/// The model's number of positions: sines exist for any number, and Marian translates no more than this by default.
const POSITIONS: usize = 1024;
/// ε of Marian's normalisations.
const NORM_EPS: f64 = 1e-6;

/// Options that do not affect us: those of recurrent models, of training, and of attention other than `default`.
const WITHOUT_EFFECT: &[&str] = &[
    "bert-train-type-embeddings",
    "bert-type-vocab-size",
    "dec-cell",
    "dec-cell-base-depth",
    "dec-cell-high-depth",
    "dim-rnn",
    "enc-cell",
    "enc-cell-depth",
    "enc-type",
    "factors-combine",
    "factors-dim-emb",
    "layer-normalization",
    "lemma-dependency",
    "separator-symbol",
    "skip",
    "transformer-aan-activation",
    "transformer-aan-depth",
    "transformer-aan-nogate",
    "transformer-alibi-shift",
    "transformer-alibi-trainable",
    "transformer-depth-scaling",
    "transformer-dim-aan",
    "transformer-guided-alignment-layer",
    "transformer-rnn-projection",
    "ulr-dim-emb",
    "ulr-trainable-transformation",
    "version",
];

/// Options that may have these values; any other value means a model that we do not support.
const ONLY: &[(&str, &[&str])] = &[
    ("type", &["transformer"]),
    ("right-left", &["false"]),
    ("transformer-attention-mask", &["default"]),
    ("transformer-decoder-autoreg", &["self-attention"]),
    ("transformer-decoder-ffn-depth", &["2", "0"]),
    ("transformer-ffn-depth", &["2"]),
];

/// Which arrays the file has.
#[derive(Clone, Copy)]
pub(super) struct Arrays {
    /// Source and target have one embedding.
    pub(super) shares_embeddings: bool,
    /// There is a bias on the logits.
    pub(super) has_output_bias: bool,
}

/// What the options say.
pub(super) struct Settings {
    pub(super) config: Config,
    /// The sizes of the source's and the target's vocabulary, without padding.
    pub(super) sizes: [usize; 2],
    pub(super) arrays: Arrays,
}

/// The options, and what is wrong with them.
struct Options<'a> {
    values: HashMap<&'a str, &'a Value>,
    known: HashSet<&'a str>,
    problems: Vec<String>,
}

impl<'a> Options<'a> {
    /// A single value that is not empty.
    fn get(&mut self, key: &'a str) -> Option<&'a str> {
        self.known.insert(key);
        match self.values.get(key) {
            Some(Value::Scalar(text)) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    fn size(&mut self, key: &'a str) -> usize {
        let text = self.get(key);
        let size = text.and_then(|text| text.parse().ok()).filter(|size| (1..=1 << 24).contains(size));
        size.unwrap_or_else(|| {
            self.problems
                .push(format!("`{key}` is {}, not a size of at least 1", text.map_or("missing".into(), brief)));
            1
        })
    }

    fn flag(&mut self, key: &'a str) -> bool {
        self.get(key).is_some_and(yaml::is_yes)
    }

    /// The operations between layers that an option lists, without dropout.
    fn operations(&mut self, key: &'a str) -> String {
        self.get(key).unwrap_or_default().replace('d', "")
    }

    fn sizes(&mut self, key: &'a str) -> [usize; 2] {
        self.known.insert(key);
        let sizes = match self.values.get(key) {
            Some(Value::List(list)) => list.iter().map_while(|text| text.parse().ok()).collect(),
            _ => Vec::new(),
        };
        match sizes.as_slice() {
            [source, target] if *source > 0 && *target > 0 => [*source, *target],
            _ => {
                self.problems.push(format!("`{key}` is not the sizes of two vocabularies"));
                [1, 1]
            }
        }
    }

    /// Checks options limited to certain values, then any unknown ones.
    fn only(&mut self) {
        for (key, allowed) in ONLY {
            if let Some(value) = self.get(key).filter(|value| !allowed.contains(value)) {
                let what = format!("`{key}` is {}, but mt has only models with {}", brief(value), allowed[0]);
                self.problems.push(what);
            }
        }
        let mut left: Vec<_> = self.values.iter().collect();
        left.sort_by_key(|(key, _)| **key);
        for (key, value) in left {
            let asks = match value {
                Value::Null => false,
                Value::Scalar(text) => !matches!(text.as_str(), "" | "false" | "0" | "[]"),
                Value::List(list) => !list.is_empty(),
                Value::Nested => true,
            };
            if asks && !self.known.contains(key) && !WITHOUT_EFFECT.contains(key) {
                let value = match value {
                    Value::Scalar(text) => text.clone(),
                    Value::List(list) => format!("[{}]", list.join(", ")),
                    _ => "a table".to_owned(),
                };
                let (key, value) = (brief(key), brief(&value));
                self.problems.push(format!("mt has no models with `{key}`, which is {value}"));
            }
        }
    }
}

impl Settings {
    /// Reads the options.
    ///
    /// # Errors
    /// Something is missing or not supported; all problems are named.
    pub(super) fn read(weights: &Path, options: &[(String, Value)]) -> Result<Self> {
        let values = options.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let mut options = Options { values, known: HashSet::new(), problems: Vec::new() };
        let sizes = options.sizes("dim-vocabs");
        let is_shared = options.flag("tied-embeddings-all");
        let (shares_embeddings, is_tied) = (options.flag("tied-embeddings-src"), options.flag("tied-embeddings"));
        let arrays = Arrays {
            shares_embeddings: is_shared || shares_embeddings,
            has_output_bias: !options.flag("output-omit-bias"),
        };
        if arrays.shares_embeddings && sizes[0] != sizes[1] {
            options.problems.push(format!("one embedding for vocabularies of {} and {} pieces", sizes[0], sizes[1]));
        }
        let mut config = Config { model: model(&mut options), ..Config::default() };
        config.model.tie = match (arrays.shares_embeddings, is_shared || is_tied) {
            (true, true) => Tie::All,
            (false, true) => Tie::Decoder,
            (_, false) => Tie::None,
        };
        // Longer lines are translated in parts.
        config.data.max_length = POSITIONS - 2;
        options.only();
        if options.problems.is_empty() {
            return Ok(Self { config, sizes, arrays });
        }
        let errors = options.problems.into_iter().map(|what| Error::failure(what).at(weights)).collect();
        Err(Error::many(errors))
    }
}

fn model<'a>(options: &mut Options<'a>) -> ModelConfig {
    let activation = options.get("transformer-ffn-activation").unwrap_or("swish");
    let activation = match activation {
        "relu" => Activation::Relu,
        "swish" => Activation::Swish,
        // Marian's GELU is a swish of 1.702 times its argument.
        other => {
            options
                .problems
                .push(format!("`transformer-ffn-activation` is {other}, but mt has only relu and Marian's swish"));
            Activation::Swish
        }
    };
    let places = ["transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top"];
    let operations = places.map(|key| options.operations(key));
    let (norm, final_norm) = match operations.each_ref().map(String::as_str) {
        ["", "an", ""] => (NormPlacement::Post, false),
        ["", "an", "n"] => (NormPlacement::Post, true),
        ["n", "a", "n"] => (NormPlacement::Pre, true),
        other => {
            let what = places.iter().zip(other).map(|(key, value)| format!("`{key}` {value:?}")).collect::<Vec<_>>();
            let what = format!(
                "mt has no models with {} (without dropout), only with \"\", \"an\" and \"\" or \"n\", or with \"n\", \
                 \"a\" and \"n\"",
                what.join(", ")
            );
            options.problems.push(what);
            (NormPlacement::Post, false)
        }
    };
    let emb = options.operations("transformer-postprocess-emb");
    if !emb.is_empty() {
        options.problems.push(format!("`transformer-postprocess-emb` is {emb}, but mt has only dropout there"));
    }
    let (d_model, heads) = (options.size("dim-emb"), options.size("transformer-heads"));
    if d_model % heads != 0 || d_model % 2 != 0 {
        options.problems.push(format!("a width of {d_model} is odd, or {heads} heads cannot share it evenly"));
    }
    let d_ff = options.size("transformer-dim-ffn");
    if let Some(other) = options.get("transformer-decoder-dim-ffn").filter(|size| *size != "0")
        && other != d_ff.to_string()
    {
        let what = format!("`transformer-decoder-dim-ffn` is {other}, but mt has one width for both stacks, {d_ff}");
        options.problems.push(what);
    }
    ModelConfig {
        d_model,
        d_ff,
        heads,
        d_k: d_model / heads,
        d_v: d_model / heads,
        encoder_layers: options.size("enc-depth"),
        decoder_layers: options.size("dec-depth"),
        norm,
        final_norm,
        norm_eps: NORM_EPS,
        sinusoid: Sinusoid::Tensor2Tensor,
        scale_embedding: true,
        output_bias: true,
        // Marian has no padding.
        output_padding: false,
        activation,
        max_length: POSITIONS,
        ..ModelConfig::default()
    }
}

/// How the model is searched by default.
pub(super) struct Search {
    beam: usize,
    length_penalty: f64,
    length_factor: f64,
    pub(super) allows_unknown: bool,
}

impl Default for Search {
    /// Marian's own defaults, except that its beam is 12.
    fn default() -> Self {
        Self { beam: 6, length_penalty: 0.0, length_factor: 3.0, allows_unknown: false }
    }
}

impl Search {
    /// Takes over the options of a `decoder.yml`.
    ///
    /// # Errors
    /// Options are not numbers or ask for a search that we do not have; all of them are named.
    pub(super) fn read(&mut self, file: &Path) -> Result<()> {
        let mut problems = Vec::new();
        for (key, value) in &files::entries(file)? {
            let Value::Scalar(text) = value else { continue };
            let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            match (key.as_str(), number) {
                ("beam-size", Some(beam)) if (1.0..=MAX_BEAM as f64).contains(&beam) => self.beam = beam as usize,
                ("normalize", Some(penalty)) => self.length_penalty = penalty,
                ("max-length-factor", Some(factor)) if factor > 0.0 => self.length_factor = factor,
                ("word-penalty", Some(0.0)) => {}
                ("allow-unk", _) => self.allows_unknown = yaml::is_yes(text),
                ("beam-size" | "normalize" | "max-length-factor" | "word-penalty", _) => {
                    problems.push(format!("`{key}` is {text}, but mt has no such search"));
                }
                _ => {}
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let help = "change it in this file, or remove the file: it is needed only for searching";
        Err(Error::many(problems.into_iter().map(|what| Error::failure(what).at(file).help(help)).collect()))
    }

    /// As our settings.
    pub(super) fn apply(&self, decode: &mut DecodeConfig) {
        decode.beam = self.beam;
        decode.length_penalty_kind = PenaltyKind::Power;
        decode.length_penalty = self.length_penalty;
        // Marian stops when as many translations as the beam is wide have finished.
        decode.patience = 1.0;
        decode.max_length_ratio = self.length_factor;
        decode.max_length_extra = self.length_factor.ceil() as usize;
    }
}
