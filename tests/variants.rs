//! The configurations of the paper's Table 3 and of well-known hand-written Transformers: each learns, at an eighth of its
//! size; and those with golden numbers are configured as the numbers were made.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use common::Golden;
use mt::config::{self, Config, ModelConfig, Tie};
use mt::model::{Sequences, Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::Targets;
use mt::rng::Stream;
use mt::train::optimizer::Optimizer;

/// Configurations of a folder in configs/ by name.
fn folder(name: &str) -> BTreeMap<String, Config> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(name);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let load = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, config::load(&[path], &[]).unwrap())
    };
    paths.map(load).collect()
}

/// Vocabulary of the reduced models.
const PIECES: usize = 60;
/// Learning rate of the two updates.
const RATE: f64 = 1e-3;
/// By how much the loss, which begins at about 4.5, falls at least with each update: less than half of the least that was
/// seen.
const FALL: f64 = 0.1;

/// The model at an eighth of its widths, so that all ratios stay: the heads of Table 3 are then 2 to 64 wide.
fn reduced(model: &ModelConfig) -> ModelConfig {
    let eighth = |width: usize| {
        assert!(width.is_multiple_of(16), "{width}");
        width / 8
    };
    ModelConfig {
        d_model: eighth(model.d_model),
        d_ff: eighth(model.d_ff),
        d_k: eighth(model.d_k),
        d_v: eighth(model.d_v),
        max_length: 16,
        ..model.clone()
    }
}

/// Random sequences, padded.
fn sequences(lengths: &[u32], name: &str) -> Sequences {
    let length = *lengths.iter().max().unwrap() as usize;
    let mut stream = Stream::new(9, name);
    let mut ids = vec![0u32; lengths.len() * length];
    for (row, &real) in ids.chunks_exact_mut(length).zip(lengths) {
        row[..real as usize].iter_mut().for_each(|id| *id = 4 + stream.below(PIECES as u64 - 4) as u32);
    }
    Sequences { ids, lengths: Arc::new(lengths.to_vec()), length }
}

/// Two updates on one padded batch: the loss without dropout falls with each, and every parameter moves.
fn learns(name: &str, config: &Config) {
    let vocabulary = Vocabulary { source: PIECES, target: PIECES, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(&reduced(&config.model), vocabulary, &Device::Cpu).unwrap();
    model.initialise(config.train.seed).unwrap();
    let (source, target) = (sequences(&[7, 3, 1, 5], "source"), sequences(&[2, 6, 1, 4], "target"));
    let labels = sequences(&[2, 6, 1, 4], "labels").ids;
    let tokens = labels.iter().filter(|&&label| label != 0).count() as f64;
    let targets = Targets { labels, padding: 0, smoothing: config.train.label_smoothing as f32 };
    let loss = || model.loss(&source, &target, &targets, &Mode::INFERENCE).unwrap().1.smoothed / tokens;
    let values = || model.parameters().values().to_vec1::<f32>().unwrap();

    let mut optimizer = Optimizer::new(&config.train.optimizer, model.parameters(), 0.0).unwrap();
    let (before, mut losses) = (values(), vec![loss()]);
    for update in 1..=2 {
        model.parameters().clear_gradients().unwrap();
        let (sum, _) = model.loss(&source, &target, &targets, &Mode::training(update)).unwrap();
        sum.backward().unwrap();
        optimizer.step(update, RATE, 1.0 / tokens).unwrap();
        losses.push(loss());
    }
    println!("{name}: {losses:.3?}");
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0] - FALL), "{name}: {losses:?}");
    let after = values();
    for entry in model.parameters().entries() {
        let moved = before[entry.range()] != after[entry.range()];
        assert!(moved || common::is_idle(&entry.name, model.config()), "{name}: {} did not move", entry.name);
    }
}

#[test]
fn every_row_of_table_3_learns() {
    let rows = folder("paper");
    assert_eq!(rows.len(), 20);
    rows.iter().for_each(|(name, config)| learns(name, config));
}

#[test]
fn every_reference_model_learns() {
    folder("reference-models").iter().for_each(|(name, config)| learns(name, config));
}

/// Each configuration of a reference model, and the golden numbers of what it configures.
const GOLDEN: &[(&str, &str)] = &[
    ("a-minus-1e9", "a_minus_1e9"),
    ("b-attention-weights", "b_minus_inf"),
    ("c-annotated-post", "c_post"),
    ("c-annotated-post-shared", "c_post_shared"),
    ("c-annotated-pre", "c_pre"),
    ("c-annotated-pre-shared", "c_pre_shared"),
    ("d-query-masks", "d_query_masks"),
    ("e-torch-post", "e_torch_post"),
    ("e-torch-pre", "e_torch_pre"),
    ("f-tensor2tensor", "f_tensor2tensor"),
];

#[test]
fn reference_models_are_configured_as_their_golden_numbers() {
    let mut configs = folder("reference-models");
    configs.remove("common");
    assert_eq!(configs.keys().collect::<Vec<_>>(), GOLDEN.iter().map(|(name, _)| name).collect::<Vec<_>>());
    for (name, case) in GOLDEN {
        let config = &configs[*name];
        let m = &config.model;
        assert_eq!((m.d_model, m.d_ff, m.heads, m.d_k, m.d_v), (512, 2048, 8, 64, 64), "{name}");
        assert_eq!((m.encoder_layers, m.decoder_layers), (6, 6), "{name}");
        assert_eq!(config.tokenizer.vocab_size, 5000, "{name}");
        assert_eq!(config.tokenizer.joint, m.tie == Tie::All, "{name}");
        // Sizes, and what golden numbers have no part in: dropout, and the values to begin with.
        let golden = Golden::reference_model(&format!("{case}.small")).model_config();
        let expected = ModelConfig {
            preset: m.preset,
            d_model: m.d_model,
            d_ff: m.d_ff,
            heads: m.heads,
            d_k: m.d_k,
            d_v: m.d_v,
            encoder_layers: m.encoder_layers,
            decoder_layers: m.decoder_layers,
            max_length: m.max_length,
            dropout: m.dropout,
            embedding_dropout: m.embedding_dropout,
            attention_dropout: m.attention_dropout,
            activation_dropout: m.activation_dropout,
            init: m.init,
            ..golden
        };
        assert_eq!(*m, expected, "{name}");
    }
}
