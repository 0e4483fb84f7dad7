//! Flags of `mt eval`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{DecodeArgs, ModelsArgs};

/// `mt eval`
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Which models.
    #[command(flatten)]
    pub models: ModelsArgs,
    /// How to decode.
    #[command(flatten)]
    pub decode: DecodeArgs,
    /// Source file [default: the test set of the model's configuration]; with --hyp, only for --report
    #[arg(long, value_name = "FILE")]
    pub src: Option<PathBuf>,
    /// Put this tag in front of each line of --src, as `tag` of the corpora does in training: the language to
    /// translate into
    #[arg(long, value_name = "TAG", requires = "src", conflicts_with = "hyp")]
    pub tag: Option<String>,
    /// Reference file; several files give several references per line
    #[arg(long = "ref", num_args = 1.., value_name = "FILE")]
    pub reference: Vec<PathBuf>,
    /// Fetch data sets of the hub that the model's configuration names as its test set, with your token
    ///
    /// Without this flag, a model, which may come from somebody else, may only have files read, and each one is
    /// reported.
    #[arg(long, conflicts_with_all = ["src", "hyp"])]
    pub trust_model_data: bool,
    /// Score these translations, without a model; several files are several systems, - is stdin
    #[arg(long, num_args = 1.., value_name = "FILE", requires = "reference", conflicts_with_all = [
        "model", "checkpoint", "weights", "beam", "beam_groups", "diversity", "length_penalty", "length_penalty_kind",
        "patience",
        "no_repeat_ngram", "min_length", "max_length", "max_length_ratio", "max_length_extra", "sample", "temperature",
        "top_k", "top_p", "batch_tokens", "long", "shortlist", "precision",
    ])]
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
    #[arg(long, value_name = "FILE", requires = "report")]
    pub train_text: Option<PathBuf>,
    /// Output format: sacrebleu's text or JSON, or a LaTeX table
    #[arg(long, value_enum, default_value_t = ScoreFormat::Text, value_name = "FORMAT", conflicts_with = "json")]
    pub format: ScoreFormat,
    /// Number of decimals of printed scores
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub width: u8,
    /// Print only the scores
    #[arg(long)]
    pub score_only: bool,
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

/// Which metrics, and how they are computed.
#[derive(Args, Debug)]
pub struct MetricArgs {
    /// Compute BLEU (the default)
    #[arg(long, help_heading = "Metrics")]
    pub bleu: bool,
    /// Compute chrF; with --chrf-word-order 2, chrF++
    #[arg(long, help_heading = "Metrics")]
    pub chrf: bool,
    /// Compute TER
    #[arg(long, help_heading = "Metrics")]
    pub ter: bool,
    /// Compute the model's perplexity and token accuracy on the first reference; alone, nothing is translated
    ///
    /// As in validation, pairs with an empty side, or one longer than model.max_length, do not count.
    #[arg(long, help_heading = "Metrics", conflicts_with_all = ["hyp", "sentence_level", "format"])]
    pub ppl: bool,
    /// BLEU: tokenizer: 13a, intl, char, zh or none [default: 13a; for a model, its valid.tokenize]
    #[arg(long, value_name = "NAME", help_heading = "Metrics")]
    pub tokenize: Option<String>,
    /// BLEU: ignore case; always on for a model that writes lower case
    #[arg(long, help_heading = "Metrics")]
    pub lowercase: bool,
    /// BLEU: how to smooth n-gram counts of zero: exp, floor, add-k or none [default: exp]
    #[arg(long, value_name = "METHOD", help_heading = "Metrics")]
    pub smooth: Option<String>,
    /// BLEU: value for floor or add-k smoothing
    #[arg(long, value_name = "X", help_heading = "Metrics")]
    pub smooth_value: Option<f64>,
    /// BLEU: do not warn about translations that look tokenised, nor about text that BLEU says little about
    #[arg(long, help_heading = "Metrics")]
    pub force: bool,
    /// chrF: maximum length of character n-grams
    #[arg(
        long, requires = "chrf", default_value_t = 6, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    pub chrf_char_order: u8,
    /// chrF: maximum length of word n-grams
    #[arg(
        long, requires = "chrf", default_value_t = 0, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub chrf_word_order: u8,
    /// chrF: how many times as important recall is as precision (β)
    #[arg(
        long, requires = "chrf", default_value_t = 2, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    pub chrf_beta: u32,
    /// chrF: include white space in character n-grams
    #[arg(long, requires = "chrf", help_heading = "Metrics")]
    pub chrf_whitespace: bool,
    /// chrF: ignore case; always on for a model that writes lower case
    #[arg(long, requires = "chrf", help_heading = "Metrics")]
    pub chrf_lowercase: bool,
    /// chrF: smooth orders without n-grams as chrF++.py, NLTK and Moses do
    #[arg(long, requires = "chrf", help_heading = "Metrics")]
    pub chrf_eps_smoothing: bool,
    /// TER: separate punctuation from words
    #[arg(long, requires = "ter", help_heading = "Metrics")]
    pub ter_normalized: bool,
    /// TER: remove punctuation
    #[arg(long, requires = "ter", help_heading = "Metrics")]
    pub ter_no_punct: bool,
    /// TER: --ter-normalized and --ter-no-punct for Chinese and Japanese, too
    #[arg(long, requires = "ter", help_heading = "Metrics")]
    pub ter_asian_support: bool,
    /// TER: respect case
    #[arg(long, requires = "ter", help_heading = "Metrics")]
    pub ter_case_sensitive: bool,
}

/// Significance of scores and of differences.
#[derive(Args, Debug)]
pub struct SignificanceArgs {
    /// Compute the 95 % confidence interval by bootstrap resampling
    #[arg(long, help_heading = "Significance")]
    pub confidence: bool,
    /// Number of bootstrap samples for --confidence
    #[arg(
        long, requires = "confidence", default_value_t = 1000, value_name = "N", help_heading = "Significance",
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
        long, requires = "paired_bs", default_value_t = 1000, value_name = "N", help_heading = "Significance",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub paired_bs_n: u32,
    /// Test each of several --hyp or --model against the first by approximate randomisation
    ///
    /// The models then translate one by one, not as an ensemble.
    #[arg(long, help_heading = "Significance", conflicts_with = "confidence")]
    pub paired_ar: bool,
    /// Number of trials for --paired-ar
    #[arg(
        long, requires = "paired_ar", default_value_t = 10_000, value_name = "N", help_heading = "Significance",
        value_parser = clap::value_parser!(u32).range(1..=10_000_000)
    )]
    pub paired_ar_n: u32,
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    /// `--hyp` conflicts with every flag about translating.
    #[test]
    fn given_translations_are_not_decoded() {
        let command = EvalArgs::augment_args(Command::new("eval"));
        let hyp = command.get_arguments().find(|arg| arg.get_id() == "hyp").unwrap();
        let refused: Vec<_> = command.get_arg_conflicts_with(hyp).into_iter().map(|arg| arg.get_id().clone()).collect();
        let both = DecodeArgs::augment_args(ModelsArgs::augment_args(Command::new("decode")));
        for arg in both.get_arguments() {
            assert!(refused.contains(arg.get_id()), "{} is not refused", arg.get_id());
        }
    }
}
