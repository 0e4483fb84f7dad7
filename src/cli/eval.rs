//! Flags of `mt eval`.

use std::path::PathBuf;

use clap::{Args, Command, Id, ValueEnum};

use super::{DecodeArgs, LanguageArgs, MetricArgs, ModelsArgs};

/// `mt eval`
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// Which text.
    #[command(flatten)]
    pub set: SetArgs,
    /// Score these translations, without a model; several files are several systems, - is stdin. --src is then only for
    /// --report, --comet and --qe
    #[arg(
        long, num_args = 1.., value_name = "FILE", conflicts_with_all = ids_of_decoding(),
        conflicts_with_all = ["tag", "trust_model_data", "from", "to"]
    )]
    pub hyp: Vec<PathBuf>,
    /// Write the model's translations to this file; not -, since stdout gets the scores
    #[arg(long, value_name = "FILE", conflicts_with = "hyp")]
    pub output: Option<PathBuf>,
    /// Which metrics, and how they are computed.
    #[command(flatten)]
    pub metrics: MetricArgs,
    /// Significance.
    #[command(flatten)]
    pub significance: SignificanceArgs,
    /// Score each sentence separately
    #[arg(long, conflicts_with_all = ["confidence", "paired_bs", "paired_ar", "format"])]
    pub sentence_level: bool,
    /// Report where translations fail: by length, by rare words, odd lines, the worst and the best
    ///
    /// For two systems, report also where they differ.
    #[arg(long, conflicts_with_all = ["sentence_level", "format", "score_only"])]
    pub report: bool,
    /// With --report: text that shows how rare words are [default: the model's training targets, else the references]
    #[arg(long, value_name = "FILE")]
    pub train_text: Option<PathBuf>,
    /// Output format: sacrebleu's text or JSON, or a LaTeX table
    #[arg(long, value_enum, default_value_t = ScoreFormat::Text, value_name = "FORMAT", conflicts_with = "json")]
    pub format: ScoreFormat,
    /// Number of decimals of printed scores; COMET and QE have two more
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub width: u8,
    /// Print only the scores
    #[arg(long)]
    pub score_only: bool,
    /// How to decode. Last, since its heading in the help holds for all flags that follow.
    #[command(flatten)]
    pub decode: DecodeArgs,
}

/// The text that is translated and scored.
#[derive(Args, Debug)]
pub struct SetArgs {
    /// Source file [default: the set of the model's configuration]
    #[arg(long, value_name = "FILE")]
    pub src: Option<PathBuf>,
    /// Put this tag in front of each line of --src, as `tag` of the corpora does in training: the language to
    /// translate into
    #[arg(long, value_name = "TAG")]
    pub tag: Option<String>,
    /// Which languages.
    #[command(flatten)]
    pub languages: LanguageArgs,
    /// Reference file; several files give several references per line
    #[arg(long = "ref", num_args = 1.., value_name = "FILE")]
    pub reference: Vec<PathBuf>,
    /// Fetch data sets of the hub that the model's configuration names as its text, with your token
    ///
    /// Without this flag, a model, which may come from somebody else, may only have files read, and each one is
    /// reported.
    #[arg(long, conflicts_with = "src")]
    pub trust_model_data: bool,
}

/// All flags that say how to translate.
fn ids_of_decoding() -> Vec<Id> {
    let command = DecodeArgs::augment_args(ModelsArgs::augment_args(Command::new("decode")));
    command.get_arguments().map(|argument| argument.get_id().clone()).collect()
}

/// What `mt eval` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScoreFormat {
    /// A line per metric; for several systems, a table.
    Text,
    /// sacrebleu's JSON.
    Json,
    /// A LaTeX table.
    Latex,
}

/// Significance of scores and of differences.
#[derive(Args, Debug)]
pub struct SignificanceArgs {
    /// Compute the 95 % confidence interval by bootstrap resampling
    #[arg(long, help_heading = "Significance")]
    pub confidence: bool,
    /// Number of bootstrap samples for --confidence
    #[arg(
        long, default_value_t = 1000, value_name = "N", help_heading = "Significance",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub confidence_n: u32,
    /// Test each of several --hyp or --model against the first by paired bootstrap resampling
    ///
    /// The models then translate one by one, not as an ensemble.
    #[arg(long, help_heading = "Significance", conflicts_with_all = ["confidence", "paired_ar"])]
    pub paired_bs: bool,
    /// Number of bootstrap samples for --paired-bs
    #[arg(
        long, default_value_t = 1000, value_name = "N", help_heading = "Significance",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub paired_bs_n: u32,
    /// Compare all systems by the scores of --comet or --qe as comet-compare does: how often each wins in 300 samples
    /// of 40 % of the lines, and Student's paired t-test
    #[arg(long, help_heading = "Significance", conflicts_with_all = ["sentence_level", "format", "score_only"])]
    pub comet_compare: bool,
    /// Test each of several --hyp or --model against the first by approximate randomisation
    ///
    /// The models then translate one by one, not as an ensemble.
    #[arg(long, help_heading = "Significance", conflicts_with = "confidence")]
    pub paired_ar: bool,
    /// Number of trials for --paired-ar
    #[arg(
        long, default_value_t = 10_000, value_name = "N", help_heading = "Significance",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub paired_ar_n: u32,
}
