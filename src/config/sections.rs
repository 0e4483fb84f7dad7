//! The configuration as a type. Each section is defined in the module that implements it; only `[runtime]`, which is
//! for all, is defined here.
//!
//! The allowed values of each key are in `schema`; a test keeps the two in step.

use serde::{Deserialize, Serialize};

use crate::data::{DataConfig, TokenizerConfig};
use crate::decode::DecodeConfig;
use crate::model::ModelConfig;
use crate::ops::matmul::Precision;
use crate::train::{TrainConfig, ValidConfig, WantedPrecision};

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
    pub precision: WantedPrecision,
    /// Whether training writes into directories of its run that are links.
    pub follow_links: bool,
    /// The number type of gradients on their way between the GPUs of a run on several.
    pub reduce: Precision,
    /// Seconds that a rank of a run on several processes may be silent before the others end.
    pub rank_timeout: usize,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            device: "auto".to_owned(),
            threads: 0,
            precision: WantedPrecision::Auto,
            follow_links: false,
            reduce: Precision::F32,
            rank_timeout: 60,
        }
    }
}
