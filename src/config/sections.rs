//! The configuration and its shorter sections as types, with their defaults.
//!
//! What a key may hold is in `schema`; a test keeps the two in step.

use std::cmp::Ordering;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::corpus::{CorpusConfig, CorpusLocation, SetConfig};
use super::model::ModelConfig;
use super::train::TrainConfig;
use crate::choice::choice;
use crate::data::tokenizer::{Normalization, TextForm, TokenizerKind, TrainOptions};
use crate::decode::PenaltyKind;
use crate::metrics::Tokenize;
use crate::ops::matmul::Precision;

/// A whole configuration; [`super::load`] makes one in which every value is filled in and every path absolute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[data]`: the corpora and which pairs are dropped.
    pub data: DataConfig,
    /// `[tokenizer]`: the subword vocabulary.
    pub tokenizer: TokenizerConfig,
    /// `[model]`: the Transformer's shape.
    pub model: ModelConfig,
    /// `[train]`: batches, updates, checkpoints, with `[train.schedule]` and `[train.optimizer]`.
    pub train: TrainConfig,
    /// `[valid]`: validation while training, and stopping early.
    pub valid: ValidConfig,
    /// `[decode]`: how translations are searched for.
    pub decode: DecodeConfig,
    /// `[runtime]`: device, threads, precision.
    pub runtime: RuntimeConfig,
}

/// `[data]`: the corpora and which pairs are dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// The folder that the file names below are relative to. Default: the folder of the file that names them.
    pub root: PathBuf,
    /// The parallel corpora to train on.
    pub train: Vec<CorpusConfig>,
    /// The text validated on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<SetConfig>,
    /// The text that `mt eval` scores when it is given none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<SetConfig>,
    /// Further texts that are scored at each validation, and decide nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub monitor: Vec<SetConfig>,
    /// Training pairs with more subwords than this on either side, end of sentence not counted, are dropped.
    pub max_length: usize,
    /// Training pairs whose longer side has more than this times the subwords of the shorter are dropped; 0: none.
    pub max_ratio: f64,
    /// Training text of at least this many MiB is prepared on disk, once, instead of in memory; 0: any text.
    pub cache_above: u64,
    /// The directory for that. Default: `data-cache`, beside the run directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<PathBuf>,
}

impl DataConfig {
    /// Where all text is.
    pub fn locations(&self) -> impl Iterator<Item = &CorpusLocation> {
        let sets = self.valid.iter().chain(&self.test).chain(&self.monitor).map(|set| &set.location);
        self.train.iter().map(|corpus| &corpus.location).chain(sets)
    }
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::from("."),
            train: Vec::new(),
            valid: None,
            test: None,
            monitor: Vec::new(),
            max_length: 100,
            max_ratio: 9.0,
            cache_above: 256,
            cache_dir: None,
        }
    }
}

/// `[tokenizer]`: the subword vocabulary, learnt (by byte-pair encoding, Sennrich et al. 2016) or from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenizerConfig {
    /// A tokenizer.json or SentencePiece model to use; none: one is learnt from the training text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The target side's, if it is a different one; none: `path` is for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_path: Option<PathBuf>,
    /// How the vocabulary is learnt.
    pub kind: TokenizerKind,
    /// The merges of subword-nmt or fastBPE that split text; none: it is split already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codes: Option<PathBuf>,
    /// The target side's, if they are different ones; none: `codes` are for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_codes: Option<PathBuf>,
    /// Pieces with their counts: what the codes may split words into; none: anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
    /// The target side's, if it is a different one; none: `vocabulary` is for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_vocabulary: Option<PathBuf>,
    /// The least count of a piece in these files; 0: any.
    pub vocabulary_threshold: u64,
    /// Pieces in the vocabulary, special tokens and the 256 bytes included (of each side, unless `joint`).
    pub vocab_size: usize,
    /// One vocabulary for both languages.
    pub joint: bool,
    /// Probability of leaving out a merge while training (BPE-dropout, Provilkov et al. 2020).
    pub dropout: f64,
    /// The form of Unicode that text is brought into before it is split; translations come out in it.
    pub normalization: Normalization,
    /// Several characters of white space, and control characters, become one space, and nothing at the ends of a line; invisible
    /// ones are removed.
    pub remove_extra_whitespaces: bool,
    /// Lowercase text before it is split; translations come out in lower case.
    pub lowercase: bool,
    /// The longest piece learned, in characters.
    pub max_piece_length: usize,
    /// Share of the text's characters that get pieces of their own; the rarest beyond it are spelt in bytes.
    pub character_coverage: f64,
    /// Every source line begins with one of these, such as the `<2de>` of a multilingual model; each is one piece.
    pub tags: Vec<String>,
    /// Other strings that are one piece wherever they occur.
    pub symbols: Vec<String>,
    /// The most lines of each side that the merges are learned from; 0: all.
    pub sample_lines: usize,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        Self {
            path: None,
            target_path: None,
            kind: TokenizerKind::Bpe,
            codes: None,
            target_codes: None,
            vocabulary: None,
            target_vocabulary: None,
            vocabulary_threshold: 0,
            vocab_size: 10_000,
            joint: true,
            dropout: 0.0,
            normalization: Normalization::Nfkc,
            remove_extra_whitespaces: true,
            lowercase: false,
            max_piece_length: 16,
            character_coverage: 0.9999,
            tags: Vec::new(),
            symbols: Vec::new(),
            sample_lines: 2_000_000,
        }
    }
}

impl TokenizerConfig {
    /// What is done to text before it is split.
    pub fn form(&self) -> TextForm {
        TextForm {
            normalization: self.normalization,
            lowercase: self.lowercase,
            remove_extra_whitespaces: self.remove_extra_whitespaces,
        }
    }

    /// Notes what a tokenizer does to text.
    pub fn set_form(&mut self, form: TextForm) {
        let TextForm { normalization, lowercase, remove_extra_whitespaces } = form;
        (self.normalization, self.lowercase) = (normalization, lowercase);
        self.remove_extra_whitespaces = remove_extra_whitespaces;
    }

    /// How a vocabulary is learnt by byte-pair encoding.
    pub fn options(&self) -> TrainOptions {
        TrainOptions {
            vocab_size: self.vocab_size,
            form: self.form(),
            max_piece_length: self.max_piece_length,
            character_coverage: self.character_coverage,
            tags: self.tags.clone(),
            symbols: self.symbols.clone(),
        }
    }
}

choice! {
    /// What counts as an improvement at a validation.
    pub enum ValidMetric {
        /// A higher BLEU of the translated validation set.
        Bleu = "bleu",
        /// A higher chrF of the translated validation set.
        Chrf = "chrf",
        /// A lower loss per token, label-smoothed as in training.
        Loss = "loss",
    }
}

impl ValidMetric {
    /// The order of two values, the better one first.
    pub fn order(self, a: f64, b: f64) -> Ordering {
        match self {
            Self::Bleu | Self::Chrf => b.total_cmp(&a),
            Self::Loss => a.total_cmp(&b),
        }
    }

    /// Its name beside a value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Bleu => "BLEU",
            Self::Chrf => "chrF2",
            Self::Loss => "loss",
        }
    }

    /// A value, as it is printed.
    pub fn with(self, value: f64) -> String {
        let digits = if self == Self::Loss { 4 } else { 2 };
        format!("{} {value:.digits$}", self.label())
    }
}

/// `[valid]`: validation while training, and stopping early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidConfig {
    /// Updates between validations; 0: none.
    pub every: u64,
    /// Whether there is a validation before the first update: what training begins with may be the best.
    pub on_start: bool,
    /// What counts as an improvement; an improvement saves.
    pub metric: ValidMetric,
    /// How lines become words for BLEU, also in `mt eval --model`.
    pub tokenize: Tokenize,
    /// Beam width of the translations scored; 1 is greedy.
    pub beam: usize,
    /// Stop after this many validations without an improvement; 0: never.
    pub patience: u64,
    /// Validations before this update do not count for that.
    pub patience_after: u64,
    /// Translations shown at each validation.
    pub samples: usize,
    /// The most sentences translated at a validation, for BLEU and chrF; 0: all. The loss is of all pairs.
    pub max_sentences: usize,
}

impl Default for ValidConfig {
    fn default() -> Self {
        Self {
            every: 500,
            on_start: false,
            metric: ValidMetric::Bleu,
            tokenize: Tokenize::V13a,
            beam: 1,
            patience: 10,
            patience_after: 0,
            samples: 3,
            max_sentences: 0,
        }
    }
}

/// `[decode]`: how translations are searched for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecodeConfig {
    /// Beam width; 1 is greedy.
    pub beam: usize,
    /// α of the length penalty.
    pub length_penalty: f64,
    /// The formula of the length penalty.
    pub length_penalty_kind: PenaltyKind,
    /// Beam search stops when this many times its width have finished; 0: when nothing can become better. Below 1 there may
    /// be fewer translations than the beam is wide.
    pub patience: f64,
    /// No sequence of this many tokens may repeat within a translation; 0: no limit.
    pub no_repeat_ngram: usize,
    /// A translation has at least this many tokens.
    pub min_length: usize,
    /// A translation has at most this many times the tokens of its source, plus `max_length_extra`. One that is cut
    /// there has no end, and competes by its score with those that ended.
    pub max_length_ratio: f64,
    /// See `max_length_ratio`.
    pub max_length_extra: usize,
    /// The most padded source tokens in one batch.
    pub batch_tokens: usize,
}

impl Default for DecodeConfig {
    fn default() -> Self {
        Self {
            beam: 4,
            length_penalty: 0.6,
            length_penalty_kind: PenaltyKind::Gnmt,
            patience: 1.0,
            no_repeat_ngram: 0,
            min_length: 0,
            max_length_ratio: 1.0,
            max_length_extra: 50,
            batch_tokens: 4096,
        }
    }
}

/// More than any machine's cores: further threads would only wait for each other.
pub const MOST_THREADS: usize = 1024;

/// `[runtime]`: where and how it runs; changes no result beyond rounding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// `auto`, `cpu`, `cuda`, `cuda:N` or `metal`.
    pub device: String,
    /// Threads on the processor; 0: all cores.
    pub threads: usize,
    /// The number type of matrix products.
    pub precision: Precision,
    /// Whether training writes into directories of its run that are links.
    pub follow_links: bool,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self { device: "auto".to_owned(), threads: 0, precision: Precision::F32, follow_links: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_and_lower_losses_are_better() {
        for (metric, worse, better) in
            [(ValidMetric::Bleu, 20.0, 21.0), (ValidMetric::Chrf, 20.0, 21.0), (ValidMetric::Loss, 3.0, 2.0)]
        {
            assert_eq!(metric.order(better, worse), Ordering::Less, "{metric}");
            assert_eq!(metric.order(worse, better), Ordering::Greater, "{metric}");
            assert_eq!(metric.order(better, better), Ordering::Equal, "{metric}");
        }
    }
}
