//! Shared by the integration tests.
#![allow(dead_code)] // Each test binary uses its part.

pub mod project;

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use mt::config::{ModelConfig, PositionKind};
use mt::model::{Sequences, Transformer, Vocabulary};

/// Tells that a test did nothing. Not by `eprintln!`: the test harness would swallow it, and a skip must be seen.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// max|a-b| / max|b|.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f64, |m, v| m.max(v.abs() as f64));
    let difference = a.iter().zip(b).fold(0f64, |m, (x, y)| {
        let d = (x - y).abs() as f64;
        if d.is_nan() { f64::INFINITY } else { m.max(d) }
    });
    if largest == 0.0 { difference } else { difference / largest }
}

/// Whether a parameter's gradient is zero in theory: a key projection's bias adds the same to all scores of a query, unless
/// keys are turned after it.
pub fn is_idle(name: &str, config: &ModelConfig) -> bool {
    let turned = config.positions == PositionKind::Rotary && name.contains("self_attn");
    name.ends_with("k_proj.bias") && !turned
}

/// A small model's configuration, to be changed at will.
pub fn small_model() -> ModelConfig {
    ModelConfig {
        d_model: 32,
        d_ff: 64,
        heads: 4,
        d_k: 8,
        d_v: 8,
        encoder_layers: 2,
        decoder_layers: 2,
        dropout: 0.0,
        embedding_dropout: 0.0,
        attention_dropout: 0.0,
        activation_dropout: 0.0,
        max_length: 64,
        ..ModelConfig::default()
    }
}

/// A golden file.
pub struct Golden {
    tensors: HashMap<String, Tensor>,
    config: serde_json::Value,
}

impl Golden {
    pub fn load(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.safetensors"));
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let config = header.metadata().as_ref().and_then(|m| m.get("config")).map(|c| serde_json::from_str(c).unwrap());
        Self { tensors, config: config.unwrap_or_default() }
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let tensor = self.tensors.get(name).unwrap_or_else(|| panic!("no {name}"));
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let ids: Vec<i64> = self.tensors[name].flatten_all().unwrap().to_vec1().unwrap();
        ids.into_iter().map(|id| id as u32).collect()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors[name].dims().to_vec()
    }

    /// `source` or `target_input`, with its lengths.
    pub fn sequences(&self, side: &str) -> Sequences {
        let name = format!("input.{side}");
        let lengths = format!("input.{}_lengths", side.trim_end_matches("_input"));
        Sequences { ids: self.ids(&name), lengths: Arc::new(self.ids(&lengths)), length: self.shape(&name)[1] }
    }

    /// The model of the file, with its weights.
    pub fn model(&self) -> Transformer {
        let table = |side: &str| self.tensors.get(&format!("weight.{side}_embedding.weight")).map(|t| t.dims()[0]);
        let source = table("source").unwrap();
        let vocabulary =
            Vocabulary { source, target: table("target").unwrap_or(source), source_padding: 0, target_padding: 0 };
        let mut value = serde_json::to_value(small_model()).unwrap();
        for (key, setting) in self.config["model"].as_object().unwrap() {
            match key.as_str() {
                // What every model is; not yet keys.
                "norm_kind" => assert_eq!(setting, "layer"),
                "positions" => assert_eq!(setting, "sinusoidal"),
                "position_layout" => value["sinusoid"] = setting.clone(),
                _ => {
                    assert!(value.get(key).is_some(), "no [model] key {key}");
                    value[key] = setting.clone();
                }
            }
        }
        let config: ModelConfig = serde_json::from_value(value).unwrap();
        let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
        let mut flat = Vec::new();
        for entry in model.parameters().entries() {
            let name = format!("weight.{}", entry.name);
            assert_eq!(self.shape(&name), entry.shape, "{name}");
            flat.extend(self.floats(&name));
        }
        let weights = self.tensors.keys().filter(|k| k.starts_with("weight.")).count();
        assert_eq!(weights, model.parameters().entries().len());
        let flat = Tensor::from_vec(flat, model.parameters().values().shape(), &Device::Cpu).unwrap();
        model.parameters().values().slice_set(&flat, 0, 0).unwrap();
        model
    }
}
