//! The weights: each tensor of the files must belong to a parameter, and each parameter must have a tensor.

use std::collections::BTreeSet;

use super::Architecture;
use super::weights::WeightFiles;
use crate::error::Result;
use crate::interop::hf_names::{
    self, EMBEDDINGS, FIRST_LEARNED, OUTPUT_BIAS, OUTPUT_WEIGHT, POSITIONS, SHARED, T5_EMBEDDINGS,
};
use crate::interop::import::tensor_problems;
use crate::model::init::LEFT_OUT_BIAS;
use crate::model::positions::fixed;
use crate::model::{ModelConfig, PositionKind, Sinusoid, Tie};
use crate::ops::params::{Entry, ParameterLayout};

/// How much a table of sines in the file may differ from ours, due to rounding to float32 or float16.
const POSITION_TOLERANCE: f32 = 1e-3;

/// The tensors of a model.
pub(super) struct Stored {
    weights: WeightFiles,
    architecture: Architecture,
    /// Whether the decoder's states are divided by √d_model before the output projection.
    scales_output: bool,
}

impl Stored {
    /// Of these files.
    pub(super) fn new(weights: WeightFiles, architecture: Architecture, scales_output: bool) -> Self {
        Self { weights, architecture, scales_output }
    }

    /// Whether the output projection has a matrix of its own.
    pub(super) fn has_own_output(&self) -> bool {
        // Others save the shared one twice.
        !self.scales_output && self.weights.shape(OUTPUT_WEIGHT).is_some()
    }

    /// Whether there is a bias on the logits. Where models have none by design, one of zeros is none.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn has_output_bias(&self) -> bool {
        let is_there = self.weights.shape(OUTPUT_BIAS).is_some();
        let mut is_zero = true;
        let read = |_: usize, values: &[f32]| is_zero &= values.iter().all(|value| *value == 0.0);
        match self.architecture {
            Architecture::Marian => is_there,
            // What is wrong with it is said when all are read.
            Architecture::M2m100 | Architecture::Mbart | Architecture::T5 => {
                is_there && (self.weights.each(OUTPUT_BIAS, read).is_err() || !is_zero)
            }
        }
    }

    /// Whether nothing is known about padding: its row of the output's matrix is zero, and so is its bias. So it is in
    /// models that `transformers` converted from Marian, which has no padding, and never after training.
    pub(super) fn has_empty_padding(&self, padding: u32) -> bool {
        let padding = padding as usize;
        let table = [OUTPUT_WEIGHT, EMBEDDINGS[1], SHARED].into_iter().find(|name| self.weights.shape(name).is_some());
        let is_zero = |name: &str, row: std::ops::Range<usize>| {
            let mut is_zero = true;
            let read = self.weights.each(name, |begin, values| {
                let of_row = (begin..).zip(values).filter(|(at, _)| row.contains(at));
                is_zero &= of_row.fold(true, |zero, (_, value)| zero && *value == 0.0);
            });
            read.is_ok() && is_zero
        };
        let Some((table, &[rows, width])) = table.and_then(|name| Some((name, self.weights.shape(name)?))) else {
            return false;
        };
        let has_no_bias = self.weights.shape(OUTPUT_BIAS).is_none() || is_zero(OUTPUT_BIAS, padding..padding + 1);
        padding < rows && has_no_bias && is_zero(table, padding * width..(padding + 1) * width)
    }

    /// Which layout of sines and cosines the positions have, if there is a table of them. `transformers` saves none.
    pub(super) fn sinusoid(&self, config: &ModelConfig) -> Option<Sinusoid> {
        let tables: Vec<Vec<f32>> = POSITIONS.iter().filter_map(|name| self.table(name, config).ok()).collect();
        let is = |kind: &Sinusoid| {
            tables.iter().any(|table| is_table(table, &ModelConfig { sinusoid: *kind, ..config.clone() }))
        };
        [Sinusoid::Halves, Sinusoid::Tensor2Tensor].into_iter().find(is)
    }

    /// All parameters, in the order of `layout`.
    ///
    /// # Errors
    /// Tensors are missing, superfluous, of another shape, or contradictory; all of them are named.
    pub(super) fn read(
        self,
        config: &ModelConfig,
        is_shared: bool,
        padding: u32,
        layout: &ParameterLayout,
    ) -> Result<Vec<f32>> {
        let mut problems = Vec::new();
        let mut used = BTreeSet::new();
        let mut values = vec![0f32; layout.total()];
        for entry in layout.entries() {
            let sources = match self.architecture {
                Architecture::T5 => t5_sources(&entry.name, config),
                _ => self.sources(&entry.name, config.tie, is_shared),
            };
            if let Some(place) = values.get_mut(entry.range()) {
                problems.extend(self.read_entry(entry, &sources, config, place));
                if let Some(scale) = self.scale(&entry.name, config) {
                    place.iter_mut().for_each(|value| *value *= scale);
                }
            }
            used.extend(sources);
        }
        if let Some(bias) = layout.entries().iter().find(|entry| entry.name == "output_projection.bias")
            && let Some(token) = config.left_out(padding)
            && let Some(bias) = values.get_mut(bias.range()).and_then(|bias| bias.get_mut(token as usize))
        {
            *bias = LEFT_OUT_BIAS;
        }
        if is_shared {
            used.insert(SHARED.to_owned());
        }
        if self.architecture == Architecture::T5 {
            used.insert(hf_names::T5_UNUSED.to_owned());
        } else if self.architecture != Architecture::Marian {
            // It was found to be zero.
            used.insert(OUTPUT_BIAS.to_owned());
        }
        for name in POSITIONS.iter().filter(|name| self.weights.shape(name).is_some() && !used.contains(**name)) {
            problems.extend(self.check_positions(name, config).err());
        }
        used.extend(POSITIONS.map(str::to_owned));
        let superfluous = self.weights.all().filter(|(name, _)| !used.contains(*name));
        problems.extend(superfluous.map(|(name, shape)| format!("superfluous: `{name}` {shape:?}")));
        tensor_problems(problems, "config.json", &self.weights.path)?;
        Ok(values)
    }

    /// What a parameter of T5 is multiplied by: its queries are not divided by √d_k later, as ours are, and if the
    /// output is scaled, the norm before it can do that.
    fn scale(&self, name: &str, config: &ModelConfig) -> Option<f32> {
        match self.architecture {
            Architecture::T5 if name.ends_with("_attn.q_proj.weight") => Some((config.d_k as f32).sqrt()),
            Architecture::T5 if name == "decoder.norm.weight" && self.scales_output => {
                Some(1.0 / (config.d_model as f32).sqrt())
            }
            _ => None,
        }
    }

    /// Reads a parameter, which may be stored under several names; returns what is wrong.
    fn read_entry(&self, entry: &Entry, sources: &[String], config: &ModelConfig, place: &mut [f32]) -> Vec<String> {
        let mut problems = Vec::new();
        let mut first: Option<&String> = None;
        let is_positions = entry.name.ends_with(".positions.weight");
        let skipped = if is_positions { FIRST_LEARNED } else { 0 };
        let mut shape = entry.shape.clone();
        if let Some(rows) = shape.first_mut() {
            *rows += skipped;
        }
        let skipped = skipped * config.d_model;
        for name in sources {
            let Some(dims) = self.weights.shape(name) else { continue };
            let is_bias = name == OUTPUT_BIAS && dims.len() == 2 && dims.first() == Some(&1);
            if dims != shape && !(is_bias && dims.get(1..) == Some(&entry.shape[..])) {
                problems.push(format!("`{name}` is {dims:?}, the model has {shape:?}"));
                continue;
            }
            let mut is_same = true;
            let read = self.weights.each(name, |begin, values| {
                let values = values.get(skipped.saturating_sub(begin)..).unwrap_or_default();
                let Some(place) =
                    place.get_mut(begin.saturating_sub(skipped)..).and_then(|p| p.get_mut(..values.len()))
                else {
                    return;
                };
                match first {
                    Some(_) => is_same &= *place == *values,
                    None => place.copy_from_slice(values),
                }
            });
            match (read, first) {
                (Err(problem), _) => problems.push(problem),
                (Ok(()), Some(other)) if !is_same => {
                    problems.push(format!("`{name}` differs from `{other}`, and must be the same"));
                }
                (Ok(()), Some(_)) => {}
                (Ok(()), None) => first = Some(name),
            }
        }
        let is_missing = sources.iter().all(|name| self.weights.shape(name).is_none());
        // A model may have no bias; it is needed to keep padding out.
        if is_missing && (entry.name != "output_projection.bias" || config.output_padding) {
            problems.push(format!("missing: `{}` {shape:?}", sources.join("` or `")));
        }
        problems
    }

    /// The names under which a parameter may be stored.
    fn sources(&self, name: &str, tie: Tie, is_shared: bool) -> Vec<String> {
        let [source, target] = EMBEDDINGS;
        // `transformers` 5 shares nothing in an untied model, and stores a third table that it does not use; 4 stores
        // only that.
        let is_only_shared = |name: &str| is_shared && tie == Tie::None && self.weights.shape(name).is_none();
        let names: &[&str] = match (name, tie) {
            ("source_embedding.weight", Tie::All) => &[SHARED, source, target, OUTPUT_WEIGHT],
            ("source_embedding.weight", _) if is_only_shared(source) => &[SHARED],
            ("target_embedding.weight", _) if is_only_shared(target) => &[SHARED],
            ("source_embedding.weight", _) => &[source],
            ("target_embedding.weight", Tie::Decoder) => &[target, OUTPUT_WEIGHT],
            ("target_embedding.weight", _) => &[target],
            ("output_projection.weight", _) => &[OUTPUT_WEIGHT],
            ("output_projection.bias", _) => &[OUTPUT_BIAS],
            _ => return vec![hf_names::layer_name(name)],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A stored table of fixed positions, from the one of the first token on.
    fn table(&self, name: &str, config: &ModelConfig) -> std::result::Result<Vec<f32>, String> {
        let shape = [config.first_position + config.max_length, config.d_model];
        // Compare shapes first: those stated by a damaged file must not exhaust memory.
        match self.weights.shape(name) {
            Some(found) if found == shape => {
                let values = self.weights.values(name)?;
                Ok(values.get(config.first_position * config.d_model..).unwrap_or_default().to_vec())
            }
            found => Err(format!("`{name}` is {:?}, the model has {shape:?}", found.unwrap_or_default())),
        }
    }

    /// Checks that a stored table of positions is the one that we compute.
    fn check_positions(&self, name: &str, config: &ModelConfig) -> std::result::Result<(), String> {
        if config.positions == PositionKind::Sinusoidal && is_table(&self.table(name, config)?, config) {
            return Ok(());
        }
        Err(format!("`{name}` has other positions than sines and cosines, in halves"))
    }
}

/// The names under which a parameter of T5 may be stored.
fn t5_sources(name: &str, config: &ModelConfig) -> Vec<String> {
    let names: Vec<&str> = match (name, config.tie) {
        ("source_embedding.weight", Tie::All) => T5_EMBEDDINGS.into_iter().chain([OUTPUT_WEIGHT]).collect(),
        ("source_embedding.weight", _) => T5_EMBEDDINGS.to_vec(),
        ("output_projection.weight", _) => vec![OUTPUT_WEIGHT],
        _ => return vec![hf_names::t5_layer_name(name, config.gated)],
    };
    names.into_iter().map(str::to_owned).collect()
}

/// Whether these are the positions that we compute.
fn is_table(found: &[f32], config: &ModelConfig) -> bool {
    let ours = fixed(config);
    found.len() == ours.len() && found.iter().zip(&ours).all(|(a, b)| (a - b).abs() <= POSITION_TOLERANCE)
}
