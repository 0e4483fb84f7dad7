//! The configurations of the paper's Table 3 and of well-known hand-written Transformers: each learns, at an eighth of
//! its size; those with golden numbers match the models that gave the numbers; and docs/paper.md has the right counts.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Once;

use candle_core::Device;
use common::{Golden, random_sequences};
use mt::config::{self, Config};
use mt::model::{ModelConfig, Sequences, Tie, Transformer, Vocabulary, layout};
use mt::ops::Mode;
use mt::ops::loss::Targets;
use mt::ops::profile::{self, Level};
use mt::train::optimizer::Optimizer;

/// The configurations in a folder of configs/, by name.
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
/// Each update must lower the loss, which begins at about 4.5, by at least this: less than half of the least observed
/// fall.
const FALL: f64 = 0.1;

/// The model at an eighth of its widths, with all ratios kept: the heads of Table 3 are then 2 to 64 wide.
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

fn sequences(lengths: &[u32], name: &str) -> Sequences {
    random_sequences(lengths, PIECES, name)
}

/// Two updates on one padded batch: the loss without dropout falls with each, and every parameter moves.
fn learns(name: &str, config: &Config) {
    let vocabulary = Vocabulary { source: PIECES, target: PIECES, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(&reduced(&config.model), vocabulary, &Device::Cpu).unwrap();
    model.initialise(config.train.seed).unwrap();
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| profile::enable(true));
    let (source, target) = (sequences(&[7, 3, 1, 5], "source"), sequences(&[2, 6, 1, 4], "target"));
    let labels = sequences(&[2, 6, 1, 4], "labels").ids;
    let tokens = labels.iter().filter(|&&label| label != 0).count() as f64;
    let targets = Targets { labels, padding: 0, smoothing: config.train.label_smoothing as f32, ..Targets::default() };
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
    // Fused kernels do all of it, not plain operations.
    let counted = profile::entries();
    assert!(counted.iter().any(|entry| entry.level == Level::Operation && entry.name == "projection-loss"));
    let plain = counted.iter().find(|entry| entry.level == Level::Reference);
    assert!(plain.is_none(), "{name}: {plain:?} went through plain operations");
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

/// The configurations of reference models, each with the golden numbers of that model.
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
        // Sizes differ, and so may dropout and initial values, which do not affect golden numbers.
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

/// The number of parameters with one vocabulary of this many pieces.
fn total(config: &Config, pieces: usize) -> usize {
    let vocabulary = Vocabulary { source: pieces, target: pieces, source_padding: 0, target_padding: 0 };
    layout::layout(&config.model, vocabulary).total()
}

/// A number as docs/paper.md writes it: 63,082,496 or −3.0 %.
fn number(text: &str) -> f64 {
    let plain: String = text.chars().filter(|c| !",*% ".contains(*c)).collect();
    plain.replace('−', "-").parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

/// The range of embedding rows, each `width` wide, with which the total rounds to this many millions.
fn rows_for(millions: f64, others: usize, width: usize) -> (usize, usize) {
    let rows = |total: f64| (total - others as f64) / width as f64;
    (rows((millions - 0.5) * 1e6).ceil() as usize, rows((millions + 0.5) * 1e6).ceil() as usize - 1)
}

/// The intersection of several ranges.
fn common_range(ranges: impl Iterator<Item = (usize, usize)>) -> (usize, usize) {
    ranges.fold((0, usize::MAX), |all, range| (all.0.max(range.0), all.1.min(range.1)))
}

/// The table rows of docs/paper.md that have this many columns.
fn rows_of_width(text: &str, columns: usize) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    rows.filter(|row| row.len() == columns && row[0] != "Row" && row[0] != "Rows").collect()
}

#[test]
fn the_page_on_the_paper_says_what_is_counted() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/paper.md")).unwrap();
    let configs = folder("paper");
    // The paper's parameter counts, in millions, by row.
    let mut paper = BTreeMap::new();
    let mut named = Vec::new();
    for row in rows_of_width(&text, 7) {
        let (name, link) = row[0].trim_start_matches('[').split_once("](").unwrap();
        assert_eq!(link, format!("../configs/paper/{name}.toml)"));
        let config = &configs[name];
        assert_eq!(number(row[4]) as usize, total(config, config.tokenizer.vocab_size), "{name}");
        if row[5] == "–" {
            assert_eq!(row[6], "–");
        } else {
            let millions = number(row[5]);
            let difference = 100.0 * (number(row[4]) / (millions * 1e6) - 1.0);
            assert!((number(row[6]) - difference).abs() < 0.051, "{name}: {difference}");
            paper.insert(name, millions);
        }
        named.push(name);
    }
    named.sort();
    assert_eq!(named, configs.keys().collect::<Vec<_>>());
    assert_eq!(paper.len(), 11);

    let differences = rows_of_width(&text, 3);
    assert_eq!(differences.len(), 7);
    for row in differences {
        let (a, b) = row[0].split_once(" − ").unwrap();
        assert_eq!(number(row[1]), paper[a] - paper[b], "{}", row[0]);
        assert_eq!(number(row[2]) as usize, total(&configs[a], 0) - total(&configs[b], 0), "{}", row[0]);
        assert!((number(row[1]) * 1e6 - number(row[2])).abs() < 1e6, "{}", row[0]);
    }

    let ranges = rows_of_width(&text, 6);
    assert_eq!(ranges.len(), paper.len());
    for row in ranges {
        let (name, config) = (row[0], &configs[row[0]]);
        let others = total(config, 0);
        assert_eq!((number(row[1]) as usize, number(row[2])), (others, paper[name]), "{name}");
        let range = rows_for(paper[name], others, config.model.d_model);
        assert_eq!((number(row[3]) as usize, number(row[4]) as usize), range, "{name}");
        let total = total(config, 41_000) as f64 / 1e6;
        assert!((number(row[5]) - total).abs() < 0.0051, "{name}: {total}");
        assert_eq!(total.round() == paper[name], name != "big");
    }
    let without_big =
        || paper.iter().filter(|(name, _)| **name != "big").map(|(name, figure)| (&configs[*name], *figure));
    let all = without_big().map(|(config, figure)| rows_for(figure, total(config, 0), config.model.d_model));
    assert_eq!(common_range(all), (40_932, 41_160));
    let matrices = |config: &Config| {
        let vocabulary = Vocabulary { source: 0, target: 0, source_padding: 0, target_padding: 0 };
        let layout = layout::layout(&config.model, vocabulary);
        layout.entries().iter().filter(|e| e.shape.len() == 2).map(|e| e.len()).sum::<usize>()
    };
    let plain = without_big().map(|(config, figure)| rows_for(figure, matrices(config), config.model.d_model));
    assert_eq!(common_range(plain), (41_100, 41_288));
    // By how many millions the paper's counts exceed those with 37,000 rows, for a given d_model.
    let missing = |d_model: usize| {
        let rows = without_big().filter(|(config, _)| config.model.d_model == d_model);
        let missing = rows.map(|(config, figure)| figure - total(config, 37_000) as f64 / 1e6);
        missing.fold((f64::MIN, f64::MAX), |all, more| (all.0.max(more - 0.5), all.1.min(more + 0.5)))
    };
    let [small, base, large] = [256, 512, 1024].map(missing).map(|(from, to)| format!("{from:.2} to {to:.2} in"));
    let millions = |name: &str, rows: usize, width: usize| {
        format!("{:.1}", (total(&configs[name], 0) + rows * width) as f64 / 1e6)
    };
    let twice = format!("base would have {} million", millions("base", 2 * 37_000, 512));
    let thrice = format!("counted three times, {} million.", millions("base", 3 * 37_000, 512));
    let french = format!("it would have {} million", millions("big", 32_000, 1024));
    let prose = text.replace('\n', " ");
    let ranges = ["**40,932 to 41,160** in common", "41,100 to 41,288 in common"];
    for words in [&small, &base, &large, &twice, &thrice, &french].map(String::as_str).iter().chain(&ranges) {
        assert!(prose.contains(words), "{words}");
    }
}
