//! The command line, as types. No input or output happens here.

mod eval;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

pub use eval::{EvalArgs, MetricArgs, ScoreFormat, SignificanceArgs};

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

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Where to compute: auto, cpu, cuda, cuda:N or metal [default: the configuration's]
    #[arg(long, global = true, help_heading = "Every command", value_name = "DEVICE")]
    pub device: Option<String>,
    /// Processor threads; 0: all cores [default: the configuration's]
    #[arg(long, global = true, help_heading = "Every command", value_name = "N")]
    pub threads: Option<usize>,
    /// Seed of everything random [default: the configuration's; of the tests of mt eval 12345]
    #[arg(long, global = true, help_heading = "Every command", value_name = "N")]
    pub seed: Option<u64>,
    /// Use only what is in the cache of the Hugging Face hub
    #[arg(long, global = true, help_heading = "Every command")]
    pub offline: bool,
    /// Print a machine-readable result on stdout
    #[arg(long, global = true, help_heading = "Every command")]
    pub json: bool,
    /// Print only results and errors
    #[arg(short, long, global = true, help_heading = "Every command")]
    pub quiet: bool,
    /// Print more: causes of errors; in info, every tensor
    #[arg(short, long, global = true, help_heading = "Every command", conflicts_with = "quiet")]
    pub verbose: bool,
    /// When to colour messages
    #[arg(long, global = true, help_heading = "Every command", value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
}

/// When to colour messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// When stderr is a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model from a configuration
    Train(TrainArgs),
    /// Find what is wrong with a configuration and its text before training
    Check(RunArgs),
    /// Filter the training text and split it into subwords, into the cache that training then reads
    Prepare(RunArgs),
    /// Translate a test set and score it, or score translations without a model
    Eval(EvalArgs),
    /// Translate text
    Translate(TranslateArgs),
    /// Turn sentences into vectors
    Embed(EmbedArgs),
    /// Tell how probable given translations are to a model
    Score(ScoreArgs),
    /// Round a model's weights to 8-bit integers
    Quantize(QuantizeArgs),
    /// Write a model as another program reads it: CTranslate2, Hugging Face transformers
    Export(ExportArgs),
    /// Make a model of another program's: MarianMT of Hugging Face transformers, Marian, OPUS-MT
    Import(ImportArgs),
    /// Learn which target tokens translate which source tokens, to compute no others
    Shortlist(ShortlistArgs),
    /// Describe a model or a configuration: parameters, shapes, training history
    Info(InfoArgs),
    /// Write a page with the curves, samples and configuration of a run, or one that compares several
    Report(ReportArgs),
    /// Average the last checkpoints of a run into one model
    Average(AverageArgs),
    /// Split lines into subwords
    Tokenize(TokenizeArgs),
    /// Join subwords into lines
    Detokenize(TokenizeArgs),
}

/// `mt train`
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// Configuration files; later ones override earlier ones
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Override one key, for example --set train.max_updates=1000
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run directory [default: runs/<configuration name>; of a run's own config.toml, that run]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Continue a run from its newest checkpoint
    #[arg(long, conflicts_with = "overwrite")]
    pub resume: bool,
    /// Replace a run that exists
    #[arg(long)]
    pub overwrite: bool,
    /// With --resume: go on although the configuration now trains something else
    #[arg(long, requires = "resume")]
    pub force: bool,
    /// Check everything and print what would be done: configuration, parameters, corpus, memory
    #[arg(long)]
    pub dry_run: bool,
    /// At the end, print where the time of the updates went: parts of the loop, operations, kernels
    #[arg(long)]
    pub profile: bool,
}

/// `mt report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The page, or with the ending .svg or .png the curves as a picture [default: report.html in the directory of a single run, else in the current one]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `mt check`, `mt prepare`: a configuration and the run that it is for.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Configuration files, those that training will be given; later ones override earlier ones
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Override one key, for example --set train.max_updates=1000
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Run directory that training will have, or has [default: runs/<configuration name>; of a run's own
    /// config.toml, that run]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// Which model.
#[derive(Args, Debug, Default)]
pub struct ModelArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME [default: $MT_MODEL, else the newest run under ./runs]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH")]
    pub checkpoint: Option<String>,
}

/// Which models.
#[derive(Args, Debug, Default)]
pub struct ModelsArgs {
    /// Model or run directory, a run's checkpoint, or hf:ORG/NAME; several translate together, as an ensemble [default:
    /// $MT_MODEL, else the newest run under ./runs]
    #[arg(long, value_name = "DIR")]
    pub model: Vec<PathBuf>,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH")]
    pub checkpoint: Option<String>,
}

/// How to decode; what is not given comes from the model's configuration.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Decoding", allow_negative_numbers = true)]
pub struct DecodeArgs {
    /// Beam width; 1 is greedy
    #[arg(long, value_name = "N")]
    pub beam: Option<usize>,
    /// Split the beam into this many groups that keep away from each other (diverse beam search); those that find the same
    /// translation leave fewer than --n-best
    #[arg(long, value_name = "N")]
    pub beam_groups: Option<usize>,
    /// Log-probability that a token costs a group for each hypothesis of earlier groups that took it at the same step; it
    /// decides what is extended at this step, and is neither in the score nor carried into later steps
    #[arg(long, value_name = "X", default_value_t = 0.5, requires = "beam_groups")]
    pub diversity: f64,
    /// α of the length penalty
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub length_penalty: Option<f64>,
    /// Formula of the length penalty: gnmt, ((5 + length) / 6)^α; power, length^α; or average, length
    #[arg(long, value_name = "KIND")]
    pub length_penalty_kind: Option<String>,
    /// Stop when this many times the beam's width have finished; 0: when nothing can become better. Below 1 there may be fewer
    /// translations than --n-best asks for
    #[arg(long, value_name = "X")]
    pub patience: Option<f64>,
    /// No sequence of so many tokens comes twice in a translation; 0: any may
    #[arg(long, value_name = "N")]
    pub no_repeat_ngram: Option<usize>,
    /// Fewest tokens of a translation
    #[arg(long, value_name = "N")]
    pub min_length: Option<usize>,
    /// Most tokens of a translation
    #[arg(long, value_name = "N")]
    pub max_length: Option<usize>,
    /// Most tokens of a translation, as a multiple of those of its source
    #[arg(long, value_name = "X")]
    pub max_length_ratio: Option<f64>,
    /// Most tokens of a translation beyond that multiple
    #[arg(long, value_name = "N")]
    pub max_length_extra: Option<usize>,
    /// Draw tokens at random instead of searching for the best
    #[arg(long, conflicts_with_all = ["beam", "beam_groups", "patience"])]
    pub sample: bool,
    /// What logits are divided by before drawing: below 1 sharper, above 1 flatter
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "sample")]
    pub temperature: f64,
    /// Draw among this many of the most probable tokens; 0: all
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    pub top_k: usize,
    /// Draw among the most probable tokens that reach this probability together
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "sample")]
    pub top_p: f64,
    /// Most padded source tokens in one batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
    /// Long lines: split those beyond data.max_length at the ends of sentences; or truncate those beyond model.max_length, or
    /// stop there with an error [default: split; with --attention: truncate]
    #[arg(long, value_name = "HOW")]
    pub long: Option<String>,
    /// Use only the target tokens that this file of `mt shortlist` allows for the tokens of a source; log-probabilities are
    /// then among these
    #[arg(long, value_name = "FILE")]
    pub shortlist: Option<PathBuf>,
    /// What products are computed in: f32, bf16, int8, or auto, the fastest here [default: as
    /// the model is stored; on a GPU, its runtime.precision]
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
}

/// `mt translate`
#[derive(Args, Debug)]
pub struct TranslateArgs {
    /// Lines to translate; with none, and no --input, stdin is read
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub text: Vec<String>,
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// How to decode.
    #[command(flatten)]
    pub decode: DecodeArgs,
    /// File to translate, one sentence a line; - for stdin
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// File to write to; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Explain the translations in this file (by the first model): attention of every layer and head, alignment, each
    /// token's probability and what else could have been. A .html page to click through, a .svg or .png picture of one
    /// sentence, else JSON
    #[arg(long, value_name = "FILE")]
    pub attention: Option<PathBuf>,
    /// Write behind each translation ` ||| ` and which words come from which, by the (first) model's attention: pairs of a
    /// source and a target word, from 0
    #[arg(long)]
    pub alignment: bool,
    /// Give this many translations of each line, as `NUMBER ||| TEXT ||| LogProb= X ||| SCORE`, lines numbered from 0
    #[arg(long, value_name = "N")]
    pub n_best: Option<usize>,
    /// What every translation begins with; what follows may also go on within its last word. Symbols of the vocabulary at its
    /// beginning (tags) are forced on every part of a line that is translated in parts
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,
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
    /// File with a translation of each of its lines; - for stdin
    #[arg(long, value_name = "FILE")]
    pub tgt: PathBuf,
    /// Print the average of the tokens' log-probabilities instead of their sum; --json has both
    #[arg(long)]
    pub normalize: bool,
    /// File to write to; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Most padded tokens in one batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
    /// What products are computed in: f32, bf16, int8, or auto, the fastest here [default: as
    /// the model is stored; on a GPU, its runtime.precision]
    #[arg(long, value_name = "TYPE")]
    pub precision: Option<String>,
}

/// `mt quantize`
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// Model or run directory
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH")]
    pub checkpoint: Option<String>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Model or run directory
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// ct2, a CTranslate2 model, or hf-marian, a MarianMT folder of Hugging Face transformers
    #[arg(long, value_name = "FORMAT")]
    pub format: String,
    /// Directory to write, which is not there yet
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// What the weights of a CTranslate2 model are stored as: float32 or int8
    #[arg(long, value_name = "TYPE", default_value = "float32")]
    pub quantization: String,
    /// Which checkpoint of a run: best, last, final or an update [default: final, else best, else last]
    #[arg(long, value_name = "WHICH")]
    pub checkpoint: Option<String>,
}

/// `mt import`
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Folder of a MarianMT model of Hugging Face transformers, or of Marian itself (or its .npz), such as those of OPUS-MT; or
    /// hf:ORG/NAME, one of the hub
    #[arg(value_name = "DIR")]
    pub source: PathBuf,
    /// Directory of the new model, which is not there yet
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt shortlist`
#[derive(Args, Debug)]
pub struct ShortlistArgs {
    /// Model or run directory
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Source file to learn from [default: the training text that the model's configuration names]
    #[arg(long, value_name = "FILE", requires = "tgt")]
    pub src: Option<PathBuf>,
    /// File with a translation of each of its lines
    #[arg(long, value_name = "FILE", requires = "src")]
    pub tgt: Option<PathBuf>,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Most target tokens of a source token
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub best: usize,
    /// How many of the most frequent target tokens are always allowed
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub first: usize,
    /// Learn from about this many pairs, evenly spread
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub sample_lines: usize,
}

/// `mt embed`
#[derive(Args, Debug)]
pub struct EmbedArgs {
    /// Lines to embed; with none, and no --input, stdin is read
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub text: Vec<String>,
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How encoder states become one vector: mean, max or first
    #[arg(long, value_name = "HOW", default_value = "mean")]
    pub pool: String,
    /// File to embed, one sentence a line; - for stdin
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// File to write to: JSON, one list a line, or one tensor if its name ends in .safetensors; - for stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Most padded tokens in one batch
    #[arg(long, value_name = "N")]
    pub batch_tokens: Option<usize>,
}

/// `mt info`
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// A model or run directory, or a configuration file
    #[arg(value_name = "MODEL_DIR|CONFIG")]
    pub path: PathBuf,
    /// Override one key of a configuration
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// `mt average`
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["last", "checkpoints"]))]
pub struct AverageArgs {
    /// The run
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// How many of the last checkpoints
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Those of these updates, between commas
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    pub checkpoints: Vec<u64>,
    /// Directory of the new model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// `mt tokenize`, `mt detokenize`
#[derive(Args, Debug)]
pub struct TokenizeArgs {
    /// Model or run directory, or hf:ORG/NAME [default: $MT_MODEL, else the newest run under ./runs]
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    pub model: Option<PathBuf>,
    /// A tokenizer.json, or a SentencePiece .model
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Use the target side's tokenizer, where a model has two
    #[arg(long, conflicts_with = "tokenizer")]
    pub target: bool,
    /// File to read; - for stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub input: PathBuf,
}
