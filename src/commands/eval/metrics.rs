//! The metrics that flags ask for.

use crate::cli::MetricArgs;
use crate::console::warning;
use crate::error::Result;
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Smooth, TerOptions};

/// How to compute BLEU: by the flags, and by `defaults` for flags not given. For single sentences, n-gram orders longer
/// than the sentence do not count.
///
/// # Errors
/// An option is impossible; exit code 2.
pub(super) fn bleu(args: &MetricArgs, sentence_level: bool, defaults: &BleuOptions) -> Result<BleuOptions> {
    Ok(BleuOptions {
        tokenize: args.tokenize.as_deref().map(str::parse).transpose()?.unwrap_or(defaults.tokenize),
        lowercase: args.lowercase || defaults.lowercase,
        smooth: Smooth::new(args.smooth.as_deref().unwrap_or("exp"), args.smooth_value)?,
        effective_order: sentence_level,
    })
}

/// Whether to compute BLEU: if it is wanted, or if no other metric is.
fn wants_bleu(args: &MetricArgs) -> bool {
    args.bleu || !(args.chrf || args.ter || args.ppl)
}

/// Warns of BLEU's flags if it is not computed: they have no effect then, as in sacrebleu. But a report always compares
/// words as BLEU does: as its tokenizer splits them, and with or without case.
pub(super) fn tell_idle(args: &MetricArgs, has_report: bool) {
    if wants_bleu(args) {
        return;
    }
    let flags = [
        ("--tokenize", args.tokenize.is_some() && !has_report),
        ("--lowercase", args.lowercase && !has_report),
        ("--smooth", args.smooth.is_some()),
        ("--smooth-value", args.smooth_value.is_some()),
        ("--force", args.force),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
        let chrf = if flag == "--lowercase" && args.chrf { "; for chrF there is --chrf-lowercase" } else { "" };
        warning(format_args!("{flag} is for BLEU, which was not asked for{chrf}"));
    }
}

/// A note if metrics ignore case without a flag: which ones, and why.
pub(super) fn case_note(args: &MetricArgs, defaults: &BleuOptions, systems: usize) -> Option<String> {
    let ignoring = [("BLEU", wants_bleu(args) && !args.lowercase), ("chrF", args.chrf && !args.chrf_lowercase)];
    let ignoring: Vec<&str> = ignoring.into_iter().filter(|(_, is_new)| *is_new).map(|(name, _)| name).collect();
    let is = if ignoring.len() > 1 { "are" } else { "is" };
    let model = if systems > 1 { "a model" } else { "the model" };
    let what = format!("{model} writes lower case: {} {is} computed ignoring case (case:lc)", ignoring.join(" and "));
    (defaults.lowercase && !ignoring.is_empty()).then_some(what)
}

/// The metrics in the order of the output: BLEU, chrF, TER. Without any metric flag it is BLEU. If `defaults` ignores
/// case, so does chrF.
pub(super) fn chosen(args: &MetricArgs, bleu: BleuOptions, defaults: &BleuOptions) -> Vec<Box<dyn Metric>> {
    // All fields by name, so that the compiler finds a missing one. `wants_bleu`, `tell_idle` and `case_note` use some
    // of them, too.
    let MetricArgs {
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
        lowercase: _,
        smooth: _,
        smooth_value: _,
        force: _,
        // It needs a model.
        ppl: _,
    } = *args;
    let mut metrics: Vec<Box<dyn Metric>> = Vec::new();
    if wants_bleu(args) {
        metrics.push(Box::new(bleu));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    /// The metrics that flags ask for, of a model that writes lower case or of one that does not; and the note.
    fn metrics_of(flags: &str, lowercase: bool) -> (Vec<Box<dyn Metric>>, Option<String>) {
        let command = format!("mt eval --model m {flags}");
        let words: Vec<std::ffi::OsString> = command.split_whitespace().map(Into::into).collect();
        let Command::Eval(args) = Cli::from_arguments(&words).unwrap().command else { panic!("{command}") };
        let defaults = BleuOptions { lowercase, ..BleuOptions::default() };
        let metrics = chosen(&args.metrics, bleu(&args.metrics, false, &defaults).unwrap(), &defaults);
        (metrics, case_note(&args.metrics, &defaults, 1))
    }

    /// Whether each metric ignores case, and the note.
    fn cases(flags: &str, lowercase: bool) -> (Vec<String>, Option<String>) {
        let (metrics, note) = metrics_of(flags, lowercase);
        let case = |metric: &dyn Metric| {
            let case = metric.options().into_iter().find(|(key, _)| *key == "case");
            format!("{} {}", metric.key(), case.map(|(_, case)| case).unwrap_or_default())
        };
        (metrics.iter().map(|metric| case(metric.as_ref())).collect(), note)
    }

    /// Every flag changes the metric that it is named after, and no other.
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
