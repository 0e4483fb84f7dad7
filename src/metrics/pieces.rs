//! BLEU whose words a model finds: the pieces of a SentencePiece model, as spBLEU has them (Goyal et al. 2022, "The
//! FLORES-101 Evaluation Benchmark for Low-Resource and Multilingual Machine Translation"), or the words of MeCab.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::bleu::BleuOptions;
use super::metric::{Metric, TextMetric};
use super::tokenize::Tokenize;

/// The models that sacrebleu knows by name, and any other of SentencePiece.
pub const NAMES: [&str; 6] = ["flores101", "flores200", "spBLEU-1K", "spm", "ja-mecab", "ko-mecab"];

/// Splits a line into pieces.
pub type Split = Box<dyn Fn(&str) -> Vec<String> + Send + Sync>;

/// A model that splits lines into pieces.
pub struct Pieces {
    /// What the signature calls it.
    pub name: String,
    /// What it does.
    pub split: Split,
}

/// BLEU of pieces.
pub struct PieceBleu {
    bleu: BleuOptions,
    pieces: Arc<Pieces>,
}

impl PieceBleu {
    /// With these options but for the tokenizer.
    pub fn new(bleu: BleuOptions, pieces: Arc<Pieces>) -> Self {
        Self { bleu: BleuOptions { tokenize: Tokenize::None, ..bleu }, pieces }
    }

    /// The pieces of a line, as sacrebleu prepares it: without case, if that does not count, and without white space at
    /// its end.
    fn split(&self, line: &str) -> String {
        let lower = if self.bleu.lowercase { line.to_lowercase() } else { line.to_owned() };
        (self.pieces.split)(lower.trim_end_matches(super::tokenize::is_whitespace)).join(" ")
    }
}

impl Metric for PieceBleu {
    fn key(&self) -> &'static str {
        self.bleu.key()
    }

    fn name(&self) -> String {
        self.bleu.name()
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let named = |(key, value)| if key == "tok" { (key, self.pieces.name.clone()) } else { (key, value) };
        self.bleu.options().into_iter().map(named).collect()
    }

    fn width(&self) -> usize {
        self.bleu.width()
    }

    fn score(&self, statistics: &[f64]) -> f64 {
        self.bleu.score(statistics)
    }

    fn details(&self, statistics: &[f64]) -> Option<String> {
        self.bleu.details(statistics)
    }

    fn add_to_json(&self, statistics: &[f64], json: &mut Map<String, Value>) {
        self.bleu.add_to_json(statistics, json);
    }
}

impl TextMetric for PieceBleu {
    fn line_statistics(&self, hypothesis: &str, references: &[&str], statistics: &mut [f64]) {
        let references: Vec<String> = references.iter().map(|line| self.split(line)).collect();
        let references: Vec<&str> = references.iter().map(String::as_str).collect();
        self.bleu.line_statistics(&self.split(hypothesis), &references, statistics);
    }
}
