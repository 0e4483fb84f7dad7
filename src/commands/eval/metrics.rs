//! The metrics that flags ask for.

use crate::cli::MetricArgs;
use crate::error::Result;
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Smooth, TerOptions};

/// How BLEU is computed: as flags say, and where they say nothing as `unsaid` does. Of a single sentence, n-gram orders longer
/// than it do not count.
///
/// # Errors
/// An option is impossible; exit code 2.
pub fn bleu(args: &MetricArgs, sentence_level: bool, unsaid: &BleuOptions) -> Result<BleuOptions> {
    Ok(BleuOptions {
        tokenize: args.tokenize.as_deref().map(str::parse).transpose()?.unwrap_or(unsaid.tokenize),
        lowercase: args.lowercase || unsaid.lowercase,
        smooth: Smooth::new(&args.smooth, args.smooth_value)?,
        effective_order: sentence_level,
    })
}

/// The metrics in the order they are told: BLEU, chrF, TER; BLEU where nothing is asked for.
pub fn chosen(args: &MetricArgs, bleu: BleuOptions) -> Vec<Box<dyn Metric>> {
    let mut metrics: Vec<Box<dyn Metric>> = Vec::new();
    if args.bleu || !(args.chrf || args.ter || args.ppl) {
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
