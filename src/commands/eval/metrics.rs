//! The metrics that flags ask for.

use crate::cli::MetricArgs;
use crate::console::warning;
use crate::error::Result;
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Smooth, TerOptions};

/// How BLEU is computed: by the flags, and by `unsaid` for flags not given. For single sentences, n-gram orders longer than
/// the sentence do not count.
///
/// # Errors
/// An option is impossible; exit code 2.
pub fn bleu(args: &MetricArgs, sentence_level: bool, unsaid: &BleuOptions) -> Result<BleuOptions> {
    Ok(BleuOptions {
        tokenize: args.tokenize.as_deref().map(str::parse).transpose()?.unwrap_or(unsaid.tokenize),
        lowercase: args.lowercase || unsaid.lowercase,
        smooth: Smooth::new(args.smooth.as_deref().unwrap_or("exp"), args.smooth_value)?,
        effective_order: sentence_level,
    })
}

/// Whether BLEU is computed: if it is asked for, or if no metric is.
fn wants_bleu(args: &MetricArgs) -> bool {
    args.bleu || !(args.chrf || args.ter || args.ppl)
}

/// Warns of BLEU's flags if it is not computed: they have no effect then, as in sacrebleu. But a report always uses BLEU's
/// tokenizer to split text into words.
pub fn tell_idle(args: &MetricArgs, has_report: bool) {
    if wants_bleu(args) {
        return;
    }
    let flags = [
        ("--tokenize", args.tokenize.is_some() && !has_report),
        ("--lowercase", args.lowercase),
        ("--smooth", args.smooth.is_some()),
        ("--smooth-value", args.smooth_value.is_some()),
        ("--force", args.force),
    ];
    for (flag, _) in flags.into_iter().filter(|(_, is_given)| *is_given) {
        let chrf = if flag == "--lowercase" && args.chrf { "; for chrF there is --chrf-lowercase" } else { "" };
        warning(format_args!("{flag} is for BLEU, which was not asked for{chrf}"));
    }
}

/// The metrics in the order of the output: BLEU, chrF, TER; BLEU if none is asked for.
pub fn chosen(args: &MetricArgs, bleu: BleuOptions) -> Vec<Box<dyn Metric>> {
    let mut metrics: Vec<Box<dyn Metric>> = Vec::new();
    if wants_bleu(args) {
        metrics.push(Box::new(bleu));
    }
    if args.chrf {
        metrics.push(Box::new(ChrfOptions {
            char_order: args.chrf_char_order.into(),
            word_order: args.chrf_word_order.into(),
            beta: args.chrf_beta,
            whitespace: args.chrf_whitespace,
            lowercase: args.chrf_lowercase,
            eps_smoothing: args.chrf_eps_smoothing,
        }));
    }
    if args.ter {
        metrics.push(Box::new(TerOptions {
            normalized: args.ter_normalized,
            no_punct: args.ter_no_punct,
            asian_support: args.ter_asian_support,
            case_sensitive: args.ter_case_sensitive,
        }));
    }
    metrics
}
