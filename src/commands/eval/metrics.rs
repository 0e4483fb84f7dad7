//! The metrics that flags ask for.

use crate::cli::MetricArgs;
use crate::error::Result;
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Smooth, TerOptions};

/// The metrics in the order they are told: BLEU, chrF, TER; BLEU where nothing is asked for. Of a single sentence, n-gram orders
/// longer than it do not count in BLEU.
///
/// # Errors
/// An option is impossible; exit code 2.
pub fn chosen(args: &MetricArgs, sentence_level: bool) -> Result<Vec<Box<dyn Metric>>> {
    let mut metrics: Vec<Box<dyn Metric>> = Vec::new();
    let bleu = BleuOptions {
        tokenize: args.tokenize.parse()?,
        lowercase: args.lowercase,
        smooth: Smooth::new(&args.smooth, args.smooth_value)?,
        effective_order: sentence_level,
    };
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
    Ok(metrics)
}
