//! Shared by the integration tests.
// Each test binary uses only a part.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)]

pub mod comet;
pub mod datasets;
pub mod emulator;
pub mod hostile;
pub mod hostile_parquet;
pub mod hub;
pub mod marian;
pub mod multilingual;
pub mod npz;
pub mod parity;
pub mod project;
pub mod threads;
pub mod torch;
pub mod transcript;

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use mt::decode::neural::SpecialTokens;
use mt::model::{
    Activation, ModelConfig, NormKind, NormPlacement, PaddingMask, PositionKind, Sequences, Sinusoid, Tie, Transformer,
    Vocabulary,
};
use mt::ops::matmul::Precision;
use mt::rng::{Stream, mix64};

/// Reports that a test was skipped. Not by `eprintln!`, whose output the test harness captures: a skip must be seen.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// Whether this process, and so its children, ignores a signal: SIGHUP under `nohup`, SIGINT in the background of a
/// script.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether a test of several precisions has to leave one out, which it then reports: where the processor has no bf16,
/// `mt` computes in f32, which such a test tries anyway.
pub fn lacks(precision: &str, test: &str) -> bool {
    let lacks = precision == "bf16" && !Precision::Bf16.is_native();
    if lacks {
        skipped(test, "of bf16, for which this processor has no instructions");
    }
    lacks
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

/// Whether a parameter's gradient is zero in theory: a key projection's bias adds the same to all scores of a query,
/// unless keys are rotated afterwards.
pub fn is_idle(name: &str, config: &ModelConfig) -> bool {
    let turned = config.positions == PositionKind::Rotary && name.contains("self_attn");
    name.ends_with("k_proj.bias") && !turned
}

/// Compares two flat gradients, parameter by parameter: they may differ by 1e-4 of a parameter's largest number.
pub fn assert_same_gradients(model: &Transformer, got: &[f32], want: &[f32], which: &str) {
    for entry in model.parameters().entries() {
        let (got, want) = (&got[entry.range()], &want[entry.range()]);
        if is_idle(&entry.name, model.config()) {
            assert!(got.iter().all(|v| v.abs() < 5e-5), "{which}: {}", entry.name);
            continue;
        }
        let error = relative_error(got, want);
        assert!(error < 1e-4, "{which}: {}: {error}", entry.name);
    }
}

/// Random padded sequences of the given lengths, seeded by `name`: padding is 0, words begin at 4.
pub fn random_sequences(lengths: &[u32], vocabulary: usize, name: &str) -> Sequences {
    let length = *lengths.iter().max().unwrap() as usize;
    let mut stream = Stream::new(9, name);
    let mut ids = vec![0u32; lengths.len() * length];
    for (row, &real) in ids.chunks_exact_mut(length).zip(lengths) {
        row[..real as usize].iter_mut().for_each(|id| *id = 4 + stream.below(vocabulary as u64 - 4) as u32);
    }
    Sequences { ids, lengths: Arc::new(lengths.to_vec()), length }
}

/// The configuration of a small model, as a basis for others.
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

/// With every dropout, each at a rate of its own.
pub fn with_dropouts() -> ModelConfig {
    ModelConfig {
        dropout: 0.2,
        embedding_dropout: 0.1,
        attention_dropout: 0.15,
        activation_dropout: 0.25,
        ..small_model()
    }
}

/// With heads as wide as those that GPU kernels have special forms for.
pub fn wide_heads() -> ModelConfig {
    ModelConfig { heads: 2, d_k: 16, d_v: 16, ..with_dropouts() }
}

/// Of sizes that no vector and no tile divides.
pub fn odd_sizes() -> ModelConfig {
    ModelConfig {
        positions: PositionKind::Rotary,
        activation: Activation::Swish,
        tie: Tie::None,
        output_bias: true,
        attention_bias: false,
        d_model: 22,
        d_ff: 37,
        heads: 3,
        d_k: 6,
        d_v: 7,
        ..with_dropouts()
    }
}

/// Models that together cover every operation and option.
pub fn every_option() -> Vec<ModelConfig> {
    let dropouts = with_dropouts();
    let pre = ModelConfig { norm: NormPlacement::Pre, final_norm: true, ..dropouts.clone() };
    let all = vec![
        small_model(),
        dropouts.clone(),
        wide_heads(),
        ModelConfig { activation: Activation::Gelu, tie: Tie::Decoder, ..pre.clone() },
        ModelConfig { final_norm: false, sinusoid: Sinusoid::Tensor2Tensor, ..pre.clone() },
        odd_sizes(),
        // One odd width beside others: what comes after a bias of it begins nowhere in particular.
        ModelConfig { d_ff: 37, output_bias: true, output_padding: false, activation: Activation::Gelu, ..pre.clone() },
        ModelConfig { positions: PositionKind::Rotary, sinusoid: Sinusoid::Halves, ..pre.clone() },
        ModelConfig { embedding_norm: true, positions: PositionKind::Learned, ..pre.clone() },
        ModelConfig { tie: Tie::Embeddings, ..pre.clone() },
        // As Llama.
        ModelConfig {
            norm_kind: NormKind::Rms,
            positions: PositionKind::Rotary,
            sinusoid: Sinusoid::Halves,
            activation: Activation::Swish,
            gated: true,
            feed_forward_bias: false,
            attention_bias: false,
            ..pre.clone()
        },
        // As T5 1.1; buckets so few that some have several distances.
        ModelConfig {
            norm_kind: NormKind::Rms,
            positions: PositionKind::Relative,
            relative_buckets: 5,
            relative_distance: 6,
            activation: Activation::GeluTanh,
            gated: true,
            feed_forward_bias: false,
            attention_bias: false,
            tie: Tie::Embeddings,
            scale_embedding: false,
            ..pre
        },
        ModelConfig { gated: true, positions: PositionKind::Relative, relative_buckets: 8, ..dropouts.clone() },
        ModelConfig { gated: true, activation: Activation::Gelu, positions: PositionKind::Relative, ..wide_heads() },
        // Tables of an odd number of numbers come before parameters of even widths.
        ModelConfig {
            positions: PositionKind::Relative,
            relative_buckets: 5,
            heads: 3,
            norm: NormPlacement::Pre,
            final_norm: true,
            ..wide_heads()
        },
        ModelConfig {
            gated: true,
            norm_kind: NormKind::Rms,
            feed_forward_bias: false,
            final_norm: true,
            ..odd_sizes()
        },
        ModelConfig {
            norm_kind: NormKind::Rms,
            activation: Activation::GeluTanh,
            embedding_norm: true,
            first_position: 2,
            sinusoid: Sinusoid::Tensor2Tensor,
            ..wide_heads()
        },
        ModelConfig {
            positions: PositionKind::Learned,
            output_bias: true,
            norm_kind: NormKind::Std,
            norm_eps: 1e-9,
            final_norm: true,
            padding_mask: PaddingMask::KeysAndQueries,
            encoder_layers: 1,
            decoder_layers: 3,
            ..dropouts
        },
    ];
    with_every_choice(all)
}

/// These models, after a check that some of them has each name that a key of `[model]` can have, so that a new one is
/// not forgotten. Norms and activations that none has are added first; other choices are more than a name.
pub fn with_every_choice(mut models: Vec<ModelConfig>) -> Vec<ModelConfig> {
    for &norm_kind in NormKind::ALL {
        if models.iter().all(|config| config.norm_kind != norm_kind) {
            models.push(ModelConfig { norm_kind, ..with_dropouts() });
        }
    }
    for &activation in Activation::ALL {
        if models.iter().all(|config| config.activation != activation) {
            models.push(ModelConfig { activation, ..with_dropouts() });
        }
    }
    type Choice = (&'static [&'static str], fn(&ModelConfig) -> String);
    let choices: [(&str, Choice); 7] = [
        ("norm", (NormPlacement::NAMES, |config| config.norm.to_string())),
        ("norm_kind", (NormKind::NAMES, |config| config.norm_kind.to_string())),
        ("positions", (PositionKind::NAMES, |config| config.positions.to_string())),
        ("sinusoid", (Sinusoid::NAMES, |config| config.sinusoid.to_string())),
        ("padding_mask", (PaddingMask::NAMES, |config| config.padding_mask.to_string())),
        ("tie", (Tie::NAMES, |config| config.tie.to_string())),
        ("activation", (Activation::NAMES, |config| config.activation.to_string())),
    ];
    for (key, (names, of)) in choices {
        for name in names {
            assert!(models.iter().any(|config| of(config) == *name), "no model here has {key} = {name}");
        }
    }
    models
}

/// Random sequences of `symbols` symbols, from two long to `longest`, and their reverses.
pub fn reversals(count: usize, symbols: u64, longest: u64, stream: &mut Stream) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut pair = || {
        let source: Vec<u32> = (0..2 + stream.below(longest - 1)).map(|_| 4 + stream.below(symbols) as u32).collect();
        let target = source.iter().rev().copied().collect();
        (source, target)
    };
    (0..count).map(|_| pair()).collect()
}

/// The special tokens of a small model.
pub fn special() -> SpecialTokens {
    SpecialTokens {
        source_end: 2,
        language_last: false,
        start: 1,
        end: 2,
        languages: Vec::new(),
        forbidden: vec![0, 1, 3],
        characters: Arc::default(),
    }
}

/// A golden file.
pub struct Golden {
    tensors: HashMap<String, Tensor>,
    config: serde_json::Value,
}

impl Golden {
    /// A file of tests/golden.
    pub fn load(name: &str) -> Self {
        Self::open(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.safetensors")))
    }

    /// A reference model: with whole tensors from the folder $MT_GOLDEN if that is set, else from tests/golden.
    pub fn reference_model(case: &str) -> Self {
        match std::env::var_os("MT_GOLDEN") {
            Some(folder) => Self::open(PathBuf::from(folder).join(format!("{case}.safetensors"))),
            None => Self::load(&format!("reference_models/{case}")),
        }
    }

    fn open(path: PathBuf) -> Self {
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

    /// Of a tensor of `len` elements, the file has elements 0, stride, 2·stride, …
    pub fn stride(&self, name: &str, len: usize) -> usize {
        let Some(sample) = self.config["sampled"].get(name) else { return 1 };
        let shape: Vec<usize> = serde_json::from_value(sample["shape"].clone()).unwrap();
        assert_eq!(shape.iter().product::<usize>(), len, "{name}");
        sample["stride"].as_u64().unwrap() as usize
    }

    /// Counts the tensors whose names begin with `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        self.tensors.keys().filter(|name| name.starts_with(prefix)).count()
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

    /// `[model]` of the file; keys that it lacks are as in [`small_model`].
    pub fn model_config(&self) -> ModelConfig {
        let mut value = serde_json::to_value(small_model()).unwrap();
        for (key, setting) in self.config["model"].as_object().unwrap() {
            let key = if key == "position_layout" { "sinusoid" } else { key };
            assert!(value.get(key).is_some(), "no [model] key {key}");
            value[key] = setting.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    /// The model of the file. Its weights are in the file, or follow from the rule in tests/golden/README.md.
    pub fn model(&self) -> Transformer {
        let size = |side: &str| self.config[format!("{side}_vocab")].as_u64().unwrap() as usize;
        let vocabulary =
            Vocabulary { source: size("source"), target: size("target"), source_padding: 0, target_padding: 0 };
        let model = Transformer::new(&self.model_config(), vocabulary, &Device::Cpu).unwrap();
        let stored = self.count("weight.");
        assert!(stored == 0 || stored == model.parameters().entries().len());
        let mut flat = Vec::new();
        for entry in model.parameters().entries() {
            if stored == 0 {
                flat.extend(rule_weights(&entry.name, &entry.shape, self.config["seed"].as_u64().unwrap()));
                continue;
            }
            let name = format!("weight.{}", entry.name);
            assert_eq!(self.shape(&name), entry.shape, "{name}");
            flat.extend(self.floats(&name));
        }
        let flat = Tensor::from_vec(flat, model.parameters().values().shape(), &Device::Cpu).unwrap();
        model.parameters().values().slice_set(&flat, 0, 0).unwrap();
        model
    }
}

/// A reference model's weights, by the rule in tests/golden/README.md.
fn rule_weights(name: &str, shape: &[usize], seed: u64) -> Vec<f32> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let key = mix64(hash ^ mix64(seed));
    let draw = |i: u64| (mix64(key.wrapping_add(i)) >> 40) as f64 / (1u64 << 23) as f64 - 1.0;
    let count = shape.iter().product::<usize>() as u64;
    let (shift, scale) = match *shape {
        [_, d] if name.ends_with("_embedding.weight") || name.ends_with("positions.weight") => {
            (0.0, (3.0 / d as f64).sqrt())
        }
        [out, input] => (0.0, (6.0 / (out + input) as f64).sqrt()),
        _ if name.ends_with("norm.weight") => (1.0, 0.1),
        _ => (0.0, 0.1),
    };
    (0..count).map(|i| (shift + scale * draw(i)) as f32).collect()
}
