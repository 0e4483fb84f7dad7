//! Small models of COMET's classes, with the scores of `unbabel-comet` (`tests/golden/comet_models.py`).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/comet");

/// A model with its encoder's files beside it, as far as `wanted` wants them.
pub fn model(name: &str, wanted: impl Fn(&str) -> bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: PathBuf, to: &str| {
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    };
    let golden = Path::new(GOLDEN);
    for file in ["hparams.yaml", "checkpoints/model.ckpt"] {
        copy(golden.join(name).join(file), file);
    }
    for file in ["config.json", "tokenizer.json", "sentencepiece.bpe.model"].into_iter().filter(|file| wanted(file)) {
        copy(golden.join("encoder").join(file), &format!("encoder/{file}"));
    }
    folder
}

/// The golden lines (sources, translations, two streams of references), and the scores by model.
pub fn golden() -> ([Vec<String>; 4], Value) {
    let text = fs::read_to_string(Path::new(GOLDEN).join("scores.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let column = |column: usize| {
        json["lines"].as_array().unwrap().iter().map(|line| line[column].as_str().unwrap().to_owned()).collect()
    };
    ([0, 1, 2, 3].map(column), json["scores"].clone())
}
