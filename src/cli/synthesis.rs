//! Flags of the commands that make training text: `mt distill` and `mt augment`.

use std::path::PathBuf;

use clap::Args;

use super::{DecodeArgs, LanguageArgs, ModelsArgs, RunArgs, parse_number};
use crate::synthetic::Shard;

/// Which translations become training text.
#[derive(Args, Debug)]
pub struct SelectionArgs {
    /// Keep this share of the translations: those that the model is surest of, by the mean log-probability of a token
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, allow_negative_numbers = true)]
    pub keep: f64,
    /// Leave out translations that are this many times longer or shorter than usual, for their sources
    #[arg(long, value_name = "X", default_value_t = 2.0, allow_negative_numbers = true)]
    pub length_tolerance: f64,
}

/// `mt distill`
#[derive(Args, Debug)]
pub struct DistillArgs {
    /// Models that translate, or runs; several work together, as an ensemble
    #[arg(long, required = true, num_args = 1.., value_name = "MODEL")]
    pub teacher: Vec<PathBuf>,
    /// The languages that the teachers translate between; these count more than what the student's corpora state.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// How much each of several teachers counts, in their order, such as 0.7,0.3 [default: all the same]
    #[arg(
        long, value_name = "W", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse_number::<f64>
    )]
    pub weights: Vec<f64>,
    /// The student.
    #[command(flatten)]
    pub run: RunArgs,
    /// Which translations.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Train on the translations alone, without the original pairs
    #[arg(long)]
    pub without_original: bool,
    /// Translate only a share of the text, such as the second of eight: other machines that share the folder make the
    /// rest
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Write the text, and do not train
    #[arg(long)]
    pub text_only: bool,
    /// Go on with a student's training even if the configuration has changed what is trained
    #[arg(long)]
    pub force: bool,
    /// How to decode.
    #[command(flatten)]
    pub decode: DecodeArgs,
}

/// `mt augment`
#[derive(Args, Debug)]
pub struct AugmentArgs {
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// Text to translate, one sentence a line: of the language that the model to be trained will write
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub input: Vec<PathBuf>,
    /// Folder for the pairs; what it has already is not translated again
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Put this word in front of each translation, which tells the model to be trained that it is one: [BT]
    #[arg(long, value_name = "WORD")]
    pub mark: Option<String>,
    /// Put this tag in front of each line before it is translated: the language to translate into
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Which languages.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// Which translations.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Translate only a share of the text, such as the second of eight: other machines that share the folder make the
    /// rest
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// How to decode.
    #[command(flatten)]
    pub decode: DecodeArgs,
}
