//! Flags of metrics: which they ask for, how these are computed, and what users have to be told of them.

use std::path::PathBuf;

use clap::Args;

use super::shell::Offered;
use crate::error::Result;
use crate::hub::{DEFAULT_COMET, DEFAULT_QE};
use crate::infer::ComputeType;
use crate::metrics::{BleuOptions, ChrfOptions, Smooth, TerOptions, TextMetric, Tokenize, pieces};

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
    /// Compute COMET with this model: hf:ORG/NAME or a folder [default: hf:Unbabel/wmt22-comet-da]
    ///
    /// The model is fetched once, 2.3 GB. Of several references, the scores with each are averaged.
    #[arg(
        long, value_name = "MODEL", num_args = 0..=1, default_missing_value = DEFAULT_COMET,
        help_heading = "Metrics"
    )]
    pub comet: Option<String>,
    /// Estimate quality from sources and translations alone, with a model of COMET that needs no references [default:
    /// hf:Unbabel/wmt22-cometkiwi-da, which the hub gives to those who accepted its licence there]
    #[arg(
        long, value_name = "MODEL", num_args = 0..=1, default_missing_value = DEFAULT_QE,
        help_heading = "Metrics"
    )]
    pub qe: Option<String>,
    /// COMET: number type of matrix products: f32, as published; bf16 or int8, which are faster
    #[arg(
        long, value_name = "TYPE", default_value = "f32", help_heading = "Metrics", hide_possible_values = true,
        value_parser = Offered(ComputeType::NAMES)
    )]
    pub comet_precision: String,
    /// Compute the model's perplexity and token accuracy on the first reference; alone, nothing is translated
    ///
    /// As in validation, pairs with an empty side, or one longer than model.max_length, do not count.
    #[arg(long, help_heading = "Metrics", conflicts_with_all = ["hyp", "sentence_level", "format"])]
    pub ppl: bool,
    /// BLEU: tokenizer: 13a, intl, char, zh or none; the pieces of a SentencePiece model: flores101, flores200,
    /// spBLEU-1K or spm; or MeCab's words: ja-mecab or ko-mecab [default: 13a; for a model, its valid.tokenize]
    #[arg(
        long, value_name = "NAME", help_heading = "Metrics", hide_possible_values = true,
        value_parser = Offered([&Tokenize::NAMES[..], &pieces::NAMES].concat())
    )]
    pub tokenize: Option<String>,
    /// BLEU: the SentencePiece model of --tokenize [default: as sacrebleu keeps it, ~/.sacrebleu/models/…], or the
    /// folder of MeCab's dictionary
    #[arg(long, value_name = "PATH", help_heading = "Metrics")]
    pub tokenize_model: Option<PathBuf>,
    /// BLEU: ignore case; always on for a model that writes lower case
    #[arg(long, help_heading = "Metrics")]
    pub lowercase: bool,
    /// BLEU: how to smooth n-gram counts of zero: exp, floor, add-k or none [default: exp]
    #[arg(
        long, value_name = "METHOD", help_heading = "Metrics", hide_possible_values = true,
        value_parser = Offered(Smooth::NAMES)
    )]
    pub smooth: Option<String>,
    /// BLEU: value for floor or add-k smoothing
    #[arg(long, value_name = "X", help_heading = "Metrics")]
    pub smooth_value: Option<f64>,
    /// BLEU: do not warn about translations that look tokenised, nor about text that BLEU says little about
    #[arg(long, help_heading = "Metrics")]
    pub force: bool,
    /// chrF: maximum length of character n-grams
    #[arg(
        long, default_value_t = 6, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    pub chrf_char_order: u8,
    /// chrF: maximum length of word n-grams
    #[arg(
        long, default_value_t = 0, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub chrf_word_order: u8,
    /// chrF: how many times as important recall is as precision (β)
    #[arg(
        long, default_value_t = 2, value_name = "N", help_heading = "Metrics",
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    pub chrf_beta: u32,
    /// chrF: include white space in character n-grams
    #[arg(long, help_heading = "Metrics")]
    pub chrf_whitespace: bool,
    /// chrF: ignore case; always on for a model that writes lower case
    #[arg(long, help_heading = "Metrics")]
    pub chrf_lowercase: bool,
    /// chrF: smooth orders without n-grams as chrF++.py, NLTK and Moses do
    #[arg(long, help_heading = "Metrics")]
    pub chrf_eps_smoothing: bool,
    /// TER: separate punctuation from words
    #[arg(long, help_heading = "Metrics")]
    pub ter_normalized: bool,
    /// TER: remove punctuation
    #[arg(long, help_heading = "Metrics")]
    pub ter_no_punct: bool,
    /// TER: --ter-normalized and --ter-no-punct for Chinese and Japanese, too
    #[arg(long, help_heading = "Metrics")]
    pub ter_asian_support: bool,
    /// TER: respect case
    #[arg(long, help_heading = "Metrics")]
    pub ter_case_sensitive: bool,
}

impl MetricArgs {
    /// How BLEU is computed: by the flags, and by `defaults` for flags not given. For single sentences, n-gram orders
    /// longer than the sentence do not count.
    ///
    /// # Errors
    /// An option is impossible; exit code 2.
    pub fn bleu(&self, sentence_level: bool, defaults: &BleuOptions) -> Result<BleuOptions> {
        let tokenize = match self.tokenize.as_deref() {
            Some(name) if pieces::NAMES.contains(&name) => Tokenize::None,
            Some(name) => name.parse()?,
            None => defaults.tokenize,
        };
        Ok(BleuOptions {
            tokenize,
            lowercase: self.lowercase || defaults.lowercase,
            smooth: Smooth::new(self.smooth.as_deref().unwrap_or("exp"), self.smooth_value)?,
            effective_order: sentence_level,
        })
    }

    /// Whether BLEU is computed: if it is asked for, or if no metric is.
    fn wants_bleu(&self) -> bool {
        self.bleu || !(self.chrf || self.ter || self.ppl || self.neural() > 0)
    }

    /// Whether a metric compares translations with references.
    #[must_use]
    pub fn compares(&self) -> bool {
        self.wants_bleu() || self.chrf || self.ter || self.comet.is_some()
    }

    /// How many neural metrics are computed.
    #[must_use]
    pub fn neural(&self) -> usize {
        [&self.comet, &self.qe].into_iter().flatten().count()
    }

    /// Warnings of BLEU's flags if it is not computed: they have no effect then, as in sacrebleu. But a report always
    /// compares words as BLEU does: as its tokenizer splits them, and with or without case.
    #[must_use]
    pub fn idle(&self, has_report: bool) -> Vec<String> {
        if self.wants_bleu() {
            return Vec::new();
        }
        let flags = [
            ("--tokenize", self.tokenize.is_some() && !has_report),
            ("--lowercase", self.lowercase && !has_report),
            ("--smooth", self.smooth.is_some()),
            ("--smooth-value", self.smooth_value.is_some()),
            ("--force", self.force),
        ];
        let warning = |flag: &str| {
            let chrf = if flag == "--lowercase" && self.chrf { "; for chrF there is --chrf-lowercase" } else { "" };
            format!("{flag} is for BLEU, which was not asked for{chrf}")
        };
        flags.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| warning(flag)).collect()
    }

    /// A note if case is ignored though no flag says so: what ignores it, and why.
    #[must_use]
    pub fn case_note(&self, defaults: &BleuOptions, systems: usize) -> Option<String> {
        let ignoring = [("BLEU", self.wants_bleu() && !self.lowercase), ("chrF", self.chrf && !self.chrf_lowercase)];
        let ignoring: Vec<&str> = ignoring.into_iter().filter(|(_, is_new)| *is_new).map(|(name, _)| name).collect();
        let is = if ignoring.len() > 1 { "are" } else { "is" };
        let model = if systems > 1 { "a model" } else { "the model" };
        let what =
            format!("{model} writes lower case: {} {is} computed ignoring case (case:lc)", ignoring.join(" and "));
        (defaults.lowercase && !ignoring.is_empty()).then_some(what)
    }

    /// The metrics in the order of the output: BLEU, chrF, TER; BLEU if none is asked for. chrF, too, ignores case if
    /// `defaults` does.
    #[must_use]
    pub fn chosen(&self, bleu: Box<dyn TextMetric>, defaults: &BleuOptions) -> Vec<Box<dyn TextMetric>> {
        // All by name, so that none is forgotten here; `wants_bleu`, `idle` and `case_note` look at some of them, too.
        let Self {
            chrf,
            chrf_char_order,
            chrf_word_order,
            chrf_beta,
            chrf_whitespace,
            chrf_lowercase,
            chrf_eps_smoothing,
            ter,
            ter_normalized,
            ter_no_punct,
            ter_asian_support,
            ter_case_sensitive,
            // `bleu` has these.
            bleu: _,
            tokenize: _,
            tokenize_model: _,
            lowercase: _,
            smooth: _,
            smooth_value: _,
            force: _,
            // They need models.
            ppl: _,
            comet: _,
            qe: _,
            comet_precision: _,
        } = *self;
        let mut metrics: Vec<Box<dyn TextMetric>> = Vec::new();
        if self.wants_bleu() {
            metrics.push(bleu);
        }
        if chrf {
            metrics.push(Box::new(ChrfOptions {
                char_order: chrf_char_order.into(),
                word_order: chrf_word_order.into(),
                beta: chrf_beta,
                whitespace: chrf_whitespace,
                lowercase: chrf_lowercase || defaults.lowercase,
                eps_smoothing: chrf_eps_smoothing,
            }));
        }
        if ter {
            metrics.push(Box::new(TerOptions {
                normalized: ter_normalized,
                no_punct: ter_no_punct,
                asian_support: ter_asian_support,
                case_sensitive: ter_case_sensitive,
            }));
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    /// The metrics that flags ask for, of a model that writes lower case or of one that does not; and the note.
    fn metrics_of(flags: &str, lowercase: bool) -> (Vec<Box<dyn TextMetric>>, Option<String>) {
        let command = format!("mt eval --model m {flags}");
        let words: Vec<std::ffi::OsString> = command.split_whitespace().map(Into::into).collect();
        let Command::Eval(args) = Cli::from_arguments(&words).unwrap().command else { panic!("{command}") };
        let defaults = BleuOptions { lowercase, ..BleuOptions::default() };
        let metrics = args.metrics.chosen(Box::new(args.metrics.bleu(false, &defaults).unwrap()), &defaults);
        (metrics, args.metrics.case_note(&defaults, 1))
    }

    /// Whether each metric ignores case, and the note.
    fn cases(flags: &str, lowercase: bool) -> (Vec<String>, Option<String>) {
        let (metrics, note) = metrics_of(flags, lowercase);
        let case = |metric: &dyn TextMetric| {
            let case = metric.options().into_iter().find(|(key, _)| *key == "case");
            format!("{} {}", metric.key(), case.map(|(_, case)| case).unwrap_or_default())
        };
        (metrics.iter().map(|metric| case(metric.as_ref())).collect(), note)
    }

    /// Every flag changes what it is named after, and nothing else.
    #[test]
    fn a_flag_sets_the_option_that_it_names() {
        for (metric, flags, changed) in [
            ("--bleu", "--tokenize char", &["tok:char"][..]),
            ("--bleu", "--lowercase", &["case:lc"]),
            ("--bleu", "--smooth floor", &["smooth:floor[0.10]"]),
            ("--bleu", "--smooth floor --smooth-value 0.25", &["smooth:floor[0.25]"]),
            ("--bleu", "--smooth add-k --smooth-value 2", &["smooth:add-k[2.00]"]),
            ("--bleu", "--smooth none", &["smooth:none"]),
            ("--chrf", "--chrf-char-order 4", &["nc:4"]),
            ("--chrf", "--chrf-word-order 2", &["chrF2++", "nw:2"]),
            ("--chrf", "--chrf-beta 3", &["chrF3"]),
            ("--chrf", "--chrf-whitespace", &["space:yes"]),
            ("--chrf", "--chrf-lowercase", &["case:lc"]),
            ("--chrf", "--chrf-eps-smoothing", &["eff:no"]),
            ("--ter", "--ter-normalized", &["norm:yes"]),
            ("--ter", "--ter-no-punct", &["punct:no"]),
            ("--ter", "--ter-asian-support", &["asian:yes"]),
            ("--ter", "--ter-case-sensitive", &["case:mixed"]),
        ] {
            let settings = |flags: &str| -> Vec<String> {
                let (metrics, _) = metrics_of(&format!("{metric} {flags}"), false);
                assert_eq!(metrics.len(), 1, "{metric} {flags}");
                let options = metrics[0].options().into_iter().map(|(key, value)| format!("{key}:{value}"));
                std::iter::once(metrics[0].name()).chain(options).collect()
            };
            let (before, after) = (settings(""), settings(flags));
            let differing: Vec<&String> = after.iter().filter(|setting| !before.contains(setting)).collect();
            assert_eq!(differing, changed, "{flags}");
        }
    }

    #[test]
    fn case_is_ignored_where_a_flag_or_the_model_says_so() {
        for (flags, lowercase, expected, noted) in [
            ("--bleu --chrf", false, &["bleu mixed", "chrf mixed"][..], None),
            ("--bleu --chrf --lowercase", false, &["bleu lc", "chrf mixed"], None),
            ("--bleu --chrf --chrf-lowercase", false, &["bleu mixed", "chrf lc"], None),
            ("", true, &["bleu lc"], Some("BLEU is")),
            ("--chrf", true, &["chrf lc"], Some("chrF is")),
            ("--bleu --chrf", true, &["bleu lc", "chrf lc"], Some("BLEU and chrF are")),
            ("--bleu --chrf --lowercase", true, &["bleu lc", "chrf lc"], Some("chrF is")),
            ("--bleu --chrf --lowercase --chrf-lowercase", true, &["bleu lc", "chrf lc"], None),
        ] {
            let (cases, note) = cases(flags, lowercase);
            assert_eq!(cases, expected, "{flags}");
            let noted =
                noted.map(|what| format!("the model writes lower case: {what} computed ignoring case (case:lc)"));
            assert_eq!(note, noted, "{flags}");
        }
    }
}
