//! Flags of `mt tune`.

use std::path::PathBuf;

use clap::Args;

use super::shell::Offered;
use super::{SetArgs, parse_number};
use crate::checkpoint::Which;
use crate::decode::PenaltyKind;
use crate::model_dir::Wanted;

/// `mt tune`
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// Run or model directory; for a model of the hub, the best values are only printed
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Which checkpoint of the run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
    /// Beam widths to try, separated by commas
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_value = "1,2,3,4,5,6,8",
        value_parser = parse_number::<usize>
    )]
    pub beam: Vec<usize>,
    /// Strengths α of the length penalty to try, separated by commas
    #[arg(
        long, value_name = "X", value_delimiter = ',', allow_hyphen_values = true,
        default_value = "0,0.2,0.4,0.6,0.8,1,1.2,1.4,1.6,1.8,2", value_parser = parse_number::<f64>
    )]
    pub length_penalty: Vec<f64>,
    /// Formulas of the length penalty to try, separated by commas: gnmt, power or average [default: the model's]
    #[arg(
        long, value_name = "KIND", value_delimiter = ',', hide_possible_values = true,
        value_parser = Offered(PenaltyKind::NAMES)
    )]
    pub length_penalty_kind: Vec<String>,
    /// What is to be best: bleu or chrf [default: valid.metric if it is one of them, else bleu]
    #[arg(long, value_name = "METRIC", hide_possible_values = true, value_parser = Offered(["bleu", "chrf"]))]
    pub metric: Option<String>,
    /// Ignore case; always on for a model that writes lower case
    #[arg(long)]
    pub lowercase: bool,
    /// Which text; without flags, the validation set.
    #[command(flatten)]
    pub set: SetArgs,
    /// Number type of matrix products: f32, bf16, int8, or auto, the fastest here [default: as the model is stored; on
    /// a GPU, its runtime.precision]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = Offered(Wanted::names()))]
    pub precision: Option<String>,
    /// Print the scores, and do not write the best values into the run's configuration
    #[arg(long)]
    pub dry_run: bool,
}
