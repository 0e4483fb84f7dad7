//! Flags of the commands that make a model of others: `mt average`, `mt quantize`, `mt trim`, `mt export` and
//! `mt import`.

use std::path::PathBuf;

use clap::Args;

use super::parse_number;
use super::shell::Offered;
use crate::checkpoint::Which;
use crate::interop::export::Format;
use crate::interop::export::ct2::Quantization;
use crate::interop::import;

/// `mt average`
#[derive(Args, Debug)]
pub struct AverageArgs {
    /// Run directory, whose checkpoints are averaged; or several models (or runs, or checkpoints)
    #[arg(value_name = "RUN|MODEL", required = true)]
    pub models: Vec<PathBuf>,
    /// Average this many of the checkpoints that train.save_every asked for, the last ones; the newest counts as one
    #[arg(long, value_name = "N", conflicts_with = "checkpoints")]
    pub last: Option<usize>,
    /// Average this many of the checkpoints that train.keep_best keeps, the best ones by validation
    #[arg(long, value_name = "N", conflicts_with_all = ["last", "checkpoints"])]
    pub best: Option<usize>,
    /// Average the checkpoints of these updates, separated by commas
    #[arg(long, value_name = "STEP", value_delimiter = ',', value_parser = parse_number::<u64>)]
    pub checkpoints: Vec<u64>,
    /// How much each of several models counts, such as 0.7,0.3 [default: all the same]
    #[arg(long, value_name = "W", value_delimiter = ',', conflicts_with_all = ["last", "best", "checkpoints"],
        allow_hyphen_values = true, value_parser = parse_number::<f64>)]
    pub weights: Vec<f64>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt quantize`
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// What to write
    #[arg(
        long, value_name = "FORMAT", help = Format::list(), hide_possible_values = true,
        value_parser = Offered(Format::NAMES)
    )]
    pub format: String,
    /// Directory to write; it must not exist yet
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number type of the stored weights of a CTranslate2 model: float32 or int8
    #[arg(
        long, value_name = "TYPE", default_value = "float32", hide_possible_values = true,
        value_parser = Offered(Quantization::NAMES)
    )]
    pub quantization: String,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
}

/// `mt import`
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// What to read
    #[arg(value_name = "DIR", help = format!("What to read: {}; or hf:ORG/NAME of the hub", import::sources()))]
    pub source: PathBuf,
    /// Directory of the new model; it must not exist yet
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt trim`
#[derive(Args, Debug)]
pub struct TrimArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Keep only these of a multilingual model's languages, separated by commas
    #[arg(long, value_name = "LANGUAGE", value_delimiter = ',')]
    pub keep_languages: Vec<String>,
    /// Keep only the pieces that the text of these files needs, and single characters of its scripts
    ///
    /// Name text of all languages, on both sides, as much as you have: what it never uses cannot be written any more.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub keep_vocabulary_of: Vec<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}
