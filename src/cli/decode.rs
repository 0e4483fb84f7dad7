//! Flags of the commands that decode.

use std::path::PathBuf;

use clap::Args;

use super::StrategyArgs;
use super::shell::Offered;
use crate::decode::PenaltyKind;
use crate::decode::source::Long;
use crate::model_dir::Wanted;

/// How to decode; what is not given comes from the model's configuration.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Decoding", allow_negative_numbers = true)]
pub struct DecodeArgs {
    /// How translations are chosen.
    #[command(flatten)]
    pub strategy: StrategyArgs,
    /// Strength α of the length penalty
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub length_penalty: Option<f64>,
    /// Formula of the length penalty: gnmt, ((5 + length) / 6)^α; power, length^α; or average, length
    #[arg(long, value_name = "KIND", hide_possible_values = true, value_parser = Offered(PenaltyKind::NAMES))]
    pub length_penalty_kind: Option<String>,
    /// Stop when this many times the beam width have finished; 0: when no translation can become better
    ///
    /// Below 1, there may be fewer translations than asked for.
    #[arg(long, value_name = "X")]
    pub patience: Option<f64>,
    /// Never repeat a sequence of this many tokens in a translation, or in a part of one if the line is split; 0: no
    /// such limit. What a line demands (a prefix, phrases) may repeat one
    #[arg(long, value_name = "N")]
    pub no_repeat_ngram: Option<usize>,
    /// Minimum number of tokens of a translation, its end not counted; of each part of a line that is split
    #[arg(long, value_name = "N")]
    pub min_length: Option<usize>,
    /// Maximum number of tokens of a translation, its end counted; of each part of a line that is split
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,
    /// Maximum number of tokens of a translation, as a multiple of its source's
    #[arg(long, value_name = "X")]
    pub max_length_ratio: Option<f64>,
    /// Number of tokens that a translation may have beyond --max-length-ratio times its source's
    #[arg(long, value_name = "N")]
    pub max_length_extra: Option<usize>,
    /// Maximum number of padded source tokens in a batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
    /// What to do with long lines: split, truncate or error [default: split; if attention is asked for: truncate]
    ///
    /// split: translate lines beyond data.max_length sentence by sentence; truncate: translate only the beginning of
    /// lines beyond model.max_length; error: stop at such a line.
    #[arg(long, value_name = "HOW", hide_possible_values = true, value_parser = Offered(Long::NAMES))]
    pub long: Option<String>,
    /// Use only the target tokens that this file from `mt shortlist` allows for the source
    ///
    /// Log-probabilities are then relative to these tokens.
    #[arg(long, value_name = "FILE")]
    pub shortlist: Option<PathBuf>,
    /// Number type of matrix products: f32, bf16, int8, or auto, the fastest here [default: as the model is stored; on
    /// a GPU, its runtime.precision]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = Offered(Wanted::names()))]
    pub precision: Option<String>,
}
