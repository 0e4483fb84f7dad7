//! The command line, as types. No input or output happens here.

mod color;
mod decode;
mod eval;
mod explained;
mod languages;
mod metrics;
mod models;
mod shell;
mod strategy;
mod synthesis;
mod training;
mod tune;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::checkpoint::Which;
use crate::console::{message, messages};
use crate::error::Error;
use crate::escape::is_harmful;
use crate::hub::DEFAULT_QE;
use crate::interop::import;
use crate::model::pooling::Pooling;
use crate::model_dir::Wanted;

use shell::Offered;

pub use color::Color;
pub use decode::DecodeArgs;
pub use eval::{EvalArgs, ScoreFormat, SetArgs, SignificanceArgs};
pub use languages::LanguageArgs;
pub use metrics::MetricArgs;
pub use models::{AverageArgs, ExportArgs, ImportArgs, QuantizeArgs, TrimArgs};
pub use shell::{CompletionsArgs, ManArgs, completions, manual_pages};
pub use strategy::StrategyArgs;
pub use synthesis::{AugmentArgs, DistillArgs, SelectionArgs};
pub use training::{Gpus, InitArgs, RunArgs, TrainArgs};
pub use tune::TuneArgs;

/// Train, evaluate and run Transformer machine-translation models.
#[derive(Debug, Parser)]
#[command(name = "mt", version, about, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags that every command takes.
    #[command(flatten)]
    pub common: Common,
}

impl Cli {
    /// Parses arguments. The first is the program's name.
    ///
    /// # Errors
    /// The arguments are wrong, or ask for help or the version. The error prints the message, in the colours they ask
    /// for.
    pub fn from_arguments(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let mut command = Self::command().color(Color::from_arguments(arguments).into());
        let matches = command.try_get_matches_from_mut(arguments);
        let matches = matches.map_err(|error| explained::explained(error, &command, arguments))?;
        explained::refuse_idle_options(&matches, &command)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// Prints the outcome of parsing, help or an error, and returns the exit code. A closed pipe is no error; a full disk
/// is.
pub fn report(outcome: &clap::Error) -> ExitCode {
    let plain = outcome.to_string();
    // An argument may be the name of somebody's file.
    if outcome.use_stderr() && plain.contains(|c| is_harmful(c) && c != '\n') {
        message(plain.trim_end());
    } else if let Err(error) = outcome.print().and_then(|()| std::io::stdout().flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        messages(format_args!("error: {}", Error::io("write", "stdout", error)));
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1))
}

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Device to compute on: auto, cpu, cuda, cuda:N or metal [default: from the configuration]
    #[arg(
        long, global = true, help_heading = "Every command", value_name = "DEVICE", hide_possible_values = true,
        value_parser = Offered(["auto", "cpu", "cuda", "metal"])
    )]
    pub device: Option<String>,
    /// Number of CPU threads; 0: one per core [default: from the configuration]
    #[arg(long, global = true, help_heading = "Every command", value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Random seed [default: from the configuration; for the tests of mt eval, 12345]
    #[arg(long, global = true, help_heading = "Every command", value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,
    /// Do not access the Hugging Face hub, only its cache
    #[arg(long, global = true, help_heading = "Every command")]
    pub offline: bool,
    /// Print the result on stdout as JSON
    #[arg(long, global = true, help_heading = "Every command")]
    pub json: bool,
    /// Print only results, errors, and warnings about files that are damaged or cannot be written
    #[arg(short, long, global = true, help_heading = "Every command", overrides_with = "quiet")]
    pub quiet: bool,
    /// Print more: the causes of errors; in mt info, every tensor
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Every command",
        overrides_with = "verbose",
        conflicts_with = "quiet"
    )]
    pub verbose: bool,
    /// When to colour messages and help
    #[arg(
        long, global = true, help_heading = "Every command", value_enum, default_value_t = Color::Auto,
        value_name = "WHEN"
    )]
    pub color: Color,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a starting configuration for two files of text
    Init(InitArgs),
    /// Train a model from a configuration
    Train(TrainArgs),
    /// Check a configuration and its text for problems before training
    Check(RunArgs),
    /// Filter the training text and split it into subwords, in a cache that training then reads
    Prepare(RunArgs),
    /// Train a student on its teachers' translations of the training text
    Distill(DistillArgs),
    /// Translate text of the target language back, into more pairs to train on
    Augment(AugmentArgs),
    /// Choose beam width and length penalty on the validation set, for the run's [decode]
    Tune(TuneArgs),
    /// Translate a test set and score it, or score translations without a model
    Eval(EvalArgs),
    /// Translate text
    Translate(TranslateArgs),
    /// Turn sentences into vectors
    Embed(EmbedArgs),
    /// Compute the log-probabilities of given translations
    ///
    /// A pair with a line longer than model.max_length has none: nan, or null in JSON.
    Score(ScoreArgs),
    /// Round a model's weights to 8-bit integers
    Quantize(QuantizeArgs),
    /// Make a model smaller: without the languages, or the pieces of its vocabulary, that are not needed
    Trim(TrimArgs),
    /// Write a model for another program, such as CTranslate2 or Hugging Face transformers
    Export(ExportArgs),
    /// Convert a model of another program
    #[command(about = format!("Convert a {} model", import::names()))]
    Import(ImportArgs),
    /// Learn the likely target tokens for each source token, so that no others are computed
    Shortlist(ShortlistArgs),
    /// Describe a model or a configuration: parameters, shapes, training history
    Info(InfoArgs),
    /// Write a page with the curves, samples and configuration of a run, or a page that compares several runs
    Report(ReportArgs),
    /// Average the last checkpoints of a run, or several models, into one model
    Average(AverageArgs),
    /// Split lines into subwords
    Tokenize(TokenizeArgs),
    /// Join subwords into lines
    Detokenize(TokenizeArgs),
    /// Write a script that completes commands, flags and file names in a shell
    ///
    /// For bash: mt completions bash > ~/.local/share/bash-completion/completions/mt
    ///
    /// For zsh: mt completions zsh > DIR/_mt, where DIR is a folder that $fpath names
    ///
    /// For fish: mt completions fish > ~/.config/fish/completions/mt.fish
    Completions(CompletionsArgs),
    /// Write the manual pages
    ///
    /// To read one: man DIR/mt-train.1. In ~/.local/share/man/man1, `man mt-train` finds it.
    Man(ManArgs),
}

/// `mt report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// File for the page [default: report.html in the directory of a single run, else in the current one, unless that
    /// is a run]
    ///
    /// If its name ends in .svg or .png, the curves are written as a picture instead.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Which model.
#[derive(Args, Debug, Default)]
pub struct ModelArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME [default: $MT_MODEL, else the newest run under
    /// ./runs]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
}

/// A number of a list on the command line, which may have spaces around it.
fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| "give numbers, separated by commas".to_owned())
}

/// The name of a feature in n-best lists.
fn feature_name(text: &str) -> Result<String, String> {
    let is_wrong = text.is_empty() || text.contains(|c: char| c.is_whitespace() || is_harmful(c) || "=|".contains(c));
    if is_wrong { Err("give a name without spaces, = or |".to_owned()) } else { Ok(text.to_owned()) }
}

/// Which models.
#[derive(Args, Debug, Default)]
pub struct ModelsArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME [default: $MT_MODEL, else the newest run under
    /// ./runs]
    ///
    /// Given several times, the models work together, as an ensemble.
    #[arg(long, value_name = "DIR")]
    pub model: Vec<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
    /// How much each of several models counts, in their order, such as 0.7,0.3 [default: all the same]
    ///
    /// It is a mean of their probabilities, at each token.
    #[arg(
        long, value_name = "W", value_delimiter = ',', allow_hyphen_values = true,
        value_parser = parse_number::<f64>
    )]
    pub weights: Vec<f64>,
}

/// `mt translate`
#[derive(Args, Debug)]
pub struct TranslateArgs {
    /// Lines to translate; without any, --input or stdin is read
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub text: Vec<OsString>,
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// File to translate, one sentence per line; - for stdin
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Put this tag in front of each line, as `tag` of the corpora does in training: the language to translate into
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Which languages.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// File to write to; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write an explanation of the translations to this file, from the first model
    ///
    /// It shows the attention of every layer and head, the alignment, and the probability and alternatives of each
    /// token. FILE.html is an interactive page, FILE.svg or FILE.png a picture of a single sentence; any other
    /// name gives JSON.
    #[arg(long, value_name = "FILE")]
    pub attention: Option<PathBuf>,
    /// Append ` ||| ` and the word alignment to each translation: pairs of a source and a target word, from 0
    ///
    /// Words are what any white space separates, no-break spaces too. The alignment is found from the attention of the
    /// (first) model. With --n-best, each translation has its own, between text and LogProb.
    #[arg(long)]
    pub alignment: bool,
    /// Write this many translations per line, as `NUMBER ||| TEXT ||| LogProb= X ||| SCORE`; lines are numbered from 0
    ///
    /// The best come first; with --sample, they come in the order in which they were drawn. Two may be the same text
    /// in other subwords. A text with ||| in it is warned of: only --json keeps it apart from what follows.
    #[arg(long, value_name = "N")]
    pub n_best: Option<usize>,
    /// Begin every translation with this text
    ///
    /// The translation may continue its last word. If a line is translated in parts (--long), the first part begins
    /// with the text, and every part with the tags (symbols of the vocabulary) at its beginning.
    #[arg(long, value_name = "TEXT", conflicts_with = "prefix_file")]
    pub prefix: Option<OsString>,
    /// Begin the translation of each line with the line of the same number of this file; - for stdin
    ///
    /// Where that is blank, the translation is free. A blank line of text takes no prefix. With parts, see --prefix.
    #[arg(long, value_name = "FILE")]
    pub prefix_file: Option<PathBuf>,
    /// Read JSON: each line is an object with `text` and, if wanted, `must`, `avoid` and `prefix`
    ///
    /// `must` and `avoid` are lists of phrases that the translation contains, or does not contain, as whole words,
    /// spelled like this; `prefix` is what it begins with, or its first part (--long). With `must`, a line has a
    /// beam of --beam for each number of its phrases' tokens (grid beam search), so it takes longer.
    #[arg(long, conflicts_with_all = ["prefix", "prefix_file"])]
    pub json_input: bool,
    /// How to decode. Last, since its heading in the help holds for all flags that follow.
    #[command(flatten)]
    pub decode: DecodeArgs,
}

/// `mt score`
#[derive(Args, Debug)]
pub struct ScoreArgs {
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// Source file; - for stdin
    #[arg(long, value_name = "FILE")]
    pub src: PathBuf,
    /// File with a translation of each source line; - for stdin
    #[arg(long, value_name = "FILE", required_unless_present = "n_best")]
    pub tgt: Option<PathBuf>,
    /// File with several translations of source lines, `NUMBER ||| TEXT ||| …`, as `mt translate --n-best`, Moses and
    /// Marian write them; - for stdin
    ///
    /// Numbers count source lines from 0, and must not fall. Each line is written with its score, as the feature
    /// `Score= X`.
    #[arg(long, value_name = "FILE", conflicts_with = "tgt")]
    pub n_best: Option<PathBuf>,
    /// Name of that feature: another one for each model whose scores a list gets [default: Score; with --qe, QE]
    #[arg(long, value_name = "NAME", value_parser = feature_name)]
    pub feature: Option<String>,
    /// Estimate how good the translations are, with a model of COMET that needs no references, instead of how likely a
    /// model of this program finds them [default: hf:Unbabel/wmt22-cometkiwi-da, which the hub gives to those who
    /// accepted its licence there]
    #[arg(
        long, value_name = "MODEL", num_args = 0..=1, default_missing_value = DEFAULT_QE,
        conflicts_with_all = ["model", "checkpoint", "weights", "tag", "from", "to", "normalize", "batch_tokens"]
    )]
    pub qe: Option<String>,
    /// Put this tag in front of each line, as `tag` of the corpora does in training: the language to translate into
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Which languages.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// Print the average log-probability per token instead of the sum; --json has both
    #[arg(long)]
    pub normalize: bool,
    /// File to write to; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Maximum number of padded tokens in a batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
    /// Number type of matrix products: f32, bf16, int8, or auto, the fastest here [default: as the model is stored; on
    /// a GPU, its runtime.precision; with --qe, f32]
    #[arg(long, value_name = "TYPE", hide_possible_values = true, value_parser = Offered(Wanted::names()))]
    pub precision: Option<String>,
}

/// `mt shortlist`
#[derive(Args, Debug)]
pub struct ShortlistArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Source file to learn from [default: the training text that the model's configuration names]
    #[arg(long, value_name = "FILE")]
    pub src: Option<PathBuf>,
    /// File with a translation of each source line
    #[arg(long, value_name = "FILE")]
    pub tgt: Option<PathBuf>,
    /// Of these files.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// Fetch data sets of the hub that the model's configuration names as its training text, with your token; and
    /// write prepared text where it says (`data.cache_dir`)
    #[arg(long, conflicts_with = "src")]
    pub trust_model_data: bool,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Maximum number of target tokens per source token
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub best: usize,
    /// Number of most frequent target tokens that are always allowed
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub first: usize,
    /// Learn from about this many sentence pairs, evenly spread over the text
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub sample_lines: usize,
}

/// `mt embed`
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct EmbedArgs {
    /// Lines to embed; without any, --input or stdin is read
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub text: Vec<OsString>,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How to combine encoder states into one vector: mean, max or first
    #[arg(
        long, value_name = "HOW", default_value = "mean", hide_possible_values = true,
        value_parser = Offered(Pooling::NAMES)
    )]
    pub pool: String,
    /// File to embed, one sentence per line; - for stdin
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Put this tag in front of each line, as `tag` of the corpora does in training: the language to translate into
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Which languages.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// File to write to; - for stdout
    ///
    /// It gets JSON, one list per line, or a single tensor if its name ends in .safetensors.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Maximum number of padded tokens in a batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
}

/// `mt info`
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// A model or run directory, one of a run's checkpoints, hf:ORG/NAME, or a configuration file
    #[arg(value_name = "MODEL_DIR|CONFIG", required_unless_present = "machine")]
    pub path: Option<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: the run as a whole]
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = Offered(Which::NAMES))]
    pub checkpoint: Option<String>,
    /// Override one key of the configuration
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Describe this machine instead: its processor with the instructions that are used, cores, caches, memory, and
    /// what `auto` chooses
    #[arg(long, conflicts_with_all = ["path", "checkpoint", "set"])]
    pub machine: bool,
}

/// `mt tokenize`, `mt detokenize`
#[derive(Args, Debug)]
pub struct TokenizeArgs {
    /// Lines; without any, --input or stdin is read
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub text: Vec<OsString>,
    /// Model or run directory, or hf:ORG/NAME [default: $MT_MODEL, else the newest run under ./runs]
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    pub model: Option<PathBuf>,
    /// Tokenizer file: a tokenizer.json, a SentencePiece .model, or codes of subword-nmt or fastBPE
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Use the target side's tokenizer, if the model has two
    #[arg(long, conflicts_with = "tokenizer")]
    pub target: bool,
    /// File to read; - for stdin
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// File to write to; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
