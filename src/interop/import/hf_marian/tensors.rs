//! The weights: each tensor of the file must belong to a parameter, and each parameter must have a tensor.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::interop::import::{floats, refuse_unfetched, tensor_problems};
use crate::interop::marian_names::{self, EMBEDDINGS, OUTPUT_BIAS, OUTPUT_WEIGHT, POSITIONS, SHARED};
use crate::model::init::LEFT_OUT_BIAS;
use crate::model::positions::sinusoidal;
use crate::model::{ModelConfig, Sinusoid, Tie};
use crate::ops::params::ParameterLayout;

/// How much a table of sines in the file may differ from ours, due to rounding to float32 or float16.
const POSITION_TOLERANCE: f32 = 1e-3;

/// The file.
pub(super) struct Stored {
    path: PathBuf,
    tensors: HashMap<String, Tensor>,
}

impl Stored {
    /// Opens it; half precision becomes single.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |error: candle_core::Error| {
            let what = format!("cannot read the tensors: {error}");
            Error::failure(what).at(path).caused_by(error).help("the file is damaged or incomplete: fetch it again")
        };
        refuse_unfetched(path)?;
        let tensors = candle_core::safetensors::load(path, &Device::Cpu).map_err(failed)?;
        Ok(Self { path: path.to_path_buf(), tensors })
    }

    /// Whether there is a bias on the logits.
    pub(super) fn has_output_bias(&self) -> bool {
        self.tensors.contains_key(OUTPUT_BIAS)
    }

    /// Which layout of sines and cosines the positions have, if there is a table of them. `transformers` saves none.
    pub(super) fn sinusoid(&self, config: &ModelConfig) -> Option<Sinusoid> {
        let table = |name: &&str| floats(name, self.tensors.get(*name)?).ok();
        let tables: Vec<Vec<f32>> = POSITIONS.iter().filter_map(table).collect();
        let shape = [config.max_length, config.d_model];
        let is = |kind: &Sinusoid| tables.iter().any(|table| is_table(table, *kind, shape));
        [Sinusoid::Halves, Sinusoid::Tensor2Tensor].into_iter().find(is)
    }

    /// All parameters, in the order of `layout`.
    ///
    /// # Errors
    /// Tensors are missing, superfluous, of another shape, or contradictory; all of them are named.
    pub(super) fn read(
        mut self,
        config: &ModelConfig,
        is_shared: bool,
        padding: u32,
        layout: &ParameterLayout,
    ) -> Result<Vec<f32>> {
        let mut problems = Vec::new();
        let mut values = vec![0f32; layout.total()];
        for entry in layout.entries() {
            let sources = self.sources(&entry.name, config.tie, is_shared);
            let mut first: Option<(&String, Vec<f32>)> = None;
            for name in &sources {
                // A shared tensor may be stored once or several times; it is not removed yet, as other parameters may
                // use it.
                let Some(tensor) = self.tensors.get(name) else { continue };
                let dims = tensor.dims();
                let is_bias = name == OUTPUT_BIAS && dims.len() == 2 && dims.first() == Some(&1);
                if dims != entry.shape && !(is_bias && dims.get(1..) == Some(&entry.shape[..])) {
                    problems.push(format!("`{name}` is {dims:?}, the model has {:?}", entry.shape));
                    continue;
                }
                let found = match floats(name, tensor) {
                    Ok(found) => found,
                    Err(problem) => {
                        problems.push(problem);
                        continue;
                    }
                };
                match &first {
                    Some((other, values)) if *values != found => {
                        problems.push(format!("`{name}` differs from `{other}`, and must be the same"));
                    }
                    Some(_) => {}
                    None => first = Some((name, found)),
                }
            }
            match (first, values.get_mut(entry.range())) {
                (Some((_, found)), Some(place)) => place.copy_from_slice(&found),
                _ if sources.iter().any(|name| self.tensors.contains_key(name)) => {}
                // A model may have none; it is needed to keep padding out.
                _ if entry.name == "output_projection.bias" && !config.output_padding => {}
                _ => problems.push(format!("missing: `{}` {:?}", sources.join("` or `"), entry.shape)),
            }
        }
        if let Some(bias) = layout.entries().iter().find(|entry| entry.name == "output_projection.bias")
            && let Some(token) = config.left_out(padding)
            && let Some(bias) = values.get_mut(bias.range()).and_then(|bias| bias.get_mut(token as usize))
        {
            *bias = LEFT_OUT_BIAS;
        }
        let used = layout.entries().iter().flat_map(|entry| self.sources(&entry.name, config.tie, is_shared));
        let used: Vec<String> = used.collect();
        used.iter().for_each(|name| drop(self.tensors.remove(name)));
        if is_shared {
            self.tensors.remove(SHARED);
        }
        for name in POSITIONS {
            if let Some(table) = self.tensors.remove(name)
                && let Err(problem) = check_positions(name, &table, config)
            {
                problems.push(problem);
            }
        }
        problems.extend(self.tensors.iter().map(|(name, tensor)| format!("superfluous: `{name}` {:?}", tensor.dims())));
        tensor_problems(problems, "config.json", &self.path)?;
        Ok(values)
    }

    /// The names under which a parameter may be stored.
    fn sources(&self, name: &str, tie: Tie, is_shared: bool) -> Vec<String> {
        let [source, target] = EMBEDDINGS;
        // `transformers` 5 shares nothing in an untied model, and stores a third table that it does not use; 4 stores
        // only that.
        let is_only_shared = |name: &str| is_shared && tie == Tie::None && !self.tensors.contains_key(name);
        let names: &[&str] = match (name, tie) {
            ("source_embedding.weight", Tie::All) => &[SHARED, source, target, OUTPUT_WEIGHT],
            ("source_embedding.weight", _) if is_only_shared(source) => &[SHARED],
            ("target_embedding.weight", _) if is_only_shared(target) => &[SHARED],
            ("source_embedding.weight", _) => &[source],
            ("target_embedding.weight", Tie::Decoder) => &[target, OUTPUT_WEIGHT],
            ("target_embedding.weight", _) => &[target],
            ("output_projection.weight", _) => &[OUTPUT_WEIGHT],
            ("output_projection.bias", _) => &[OUTPUT_BIAS],
            _ => return vec![marian_names::layer_name(name)],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }
}

/// Checks that a stored table of positions is the one that we compute.
fn check_positions(name: &str, table: &Tensor, config: &ModelConfig) -> std::result::Result<(), String> {
    let shape = [config.max_length, config.d_model];
    if table.dims() != shape {
        return Err(format!("`{name}` is {:?}, the model has {shape:?}", table.dims()));
    }
    let found = floats(name, table)?;
    if is_table(&found, config.sinusoid, shape) {
        return Ok(());
    }
    Err(format!("`{name}` has other positions than sines and cosines, in halves"))
}

/// Whether these are the positions that we compute.
fn is_table(found: &[f32], kind: Sinusoid, [positions, width]: [usize; 2]) -> bool {
    // Compare sizes first: those stated by a damaged file must not exhaust memory.
    if positions.checked_mul(width) != Some(found.len()) {
        return false;
    }
    let ours = sinusoidal(kind, positions, width);
    found.iter().zip(&ours).all(|(a, b)| (a - b).abs() <= POSITION_TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_size_is_none() {
        let kind = Sinusoid::Tensor2Tensor;
        let table = sinusoidal(kind, 3, 4);
        assert!(is_table(&table, kind, [3, 4]));
        assert!(!is_table(&table, Sinusoid::Interleaved, [3, 4]));
        // The first two are too large for a table to be computed.
        for shape in [[1 << 30, 1 << 20], [usize::MAX, 2], [4, 4]] {
            assert!(!is_table(&table, kind, shape), "{shape:?}");
        }
    }
}
