//! `mt eval --ppl`: how well a model predicts references.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::{DecodeArgs, EvalArgs};
use crate::commands::shared::input::shown_name;
use crate::console::warning;
use crate::data::corpus::Side;
use crate::decode::Prediction;
use crate::decode::translate::{Fit, Translator};
use crate::error::{Error, Result};

/// Refuses flags that have no effect on perplexity alone, which needs no translation and no resampling.
///
/// # Errors
/// There are any; exit code 2.
pub(super) fn refuse_idle(args: &EvalArgs) -> Result<()> {
    let DecodeArgs {
        strategy,
        length_penalty,
        length_penalty_kind,
        patience,
        no_repeat_ngram,
        min_length,
        max_length,
        max_length_ratio,
        max_length_extra,
        long,
        // These have an effect, or are refused elsewhere.
        batch_tokens: _,
        precision: _,
        shortlist: _,
    } = &args.decode;
    let flags = [
        ("--length-penalty", length_penalty.is_some()),
        ("--length-penalty-kind", length_penalty_kind.is_some()),
        ("--patience", patience.is_some()),
        ("--no-repeat-ngram", no_repeat_ngram.is_some()),
        ("--min-length", min_length.is_some()),
        ("--max-length", max_length.is_some()),
        ("--max-length-ratio", max_length_ratio.is_some()),
        ("--max-length-extra", max_length_extra.is_some()),
        ("--long", long.is_some()),
        ("--confidence", args.significance.confidence),
    ];
    let others = flags.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag));
    let given: Vec<&str> = strategy.given().into_iter().chain(others).collect();
    if given.is_empty() {
        return Ok(());
    }
    let error = Error::usage(format!("--ppl alone has no use for {}: nothing is translated", given.join(", ")));
    Err(error.help("leave the flags out, or ask for a score of translations as well, such as --bleu"))
}

/// How well a model predicts the pairs that validation would also count.
pub(super) struct Perplexity {
    prediction: Prediction,
    pairs: usize,
    /// Pairs that do not count: a side is empty, or longer than the model's positions.
    left_out: usize,
}

impl Perplexity {
    /// The perplexity of the pairs in these files. Warns about pairs that do not count.
    ///
    /// # Errors
    /// None counts, or the device fails.
    pub(super) fn new(
        translator: &Translator,
        files: [&PathBuf; 2],
        [sources, targets]: [&[String]; 2],
        batch_tokens: usize,
    ) -> Result<Self> {
        let fits = translator.fit(sources, targets);
        let pairs = fits.len();
        let left_out = fits.iter().filter(|fit| **fit != Fit::Whole).count();
        if left_out == pairs {
            let what = format!("no pair is left to predict: all {pairs} are empty or longer than model.max_length");
            return Err(Error::failure(what).at(shown_name(files[0])).help("look at the text, or name other files"));
        }
        if let Some(first) = fits.iter().position(|fit| *fit != Fit::Whole) {
            let is_target = matches!(fits[first], Fit::TooLong(Side::Target, _));
            warning(format_args!(
                "{left_out} of {pairs} pairs are not part of the perplexity: empty, or longer than model.max_length; \
                 the first is {}:{}",
                shown_name(files[usize::from(is_target)]).display(),
                first + 1
            ));
        }
        let counted = |lines: &[String]| -> Vec<String> {
            lines.iter().zip(&fits).filter(|(_, fit)| **fit == Fit::Whole).map(|(line, _)| line.clone()).collect()
        };
        let prediction = translator.predict(&counted(sources), &counted(targets), batch_tokens)?;
        Ok(Self { prediction, pairs, left_out })
    }

    /// As JSON, nothing rounded.
    pub(super) fn json(&self) -> Value {
        let Self { prediction, pairs, left_out } = self;
        json!({
            "score": prediction.perplexity(), "accuracy": prediction.accuracy(), "tokens": prediction.tokens,
            "pairs": pairs,
            "left_out": left_out,
        })
    }

    /// As a line of text with `width` decimals.
    pub(super) fn print(&self, width: usize, score_only: bool) -> String {
        let Self { prediction, pairs, left_out } = self;
        let perplexity = format!("{:.width$}", prediction.perplexity());
        if score_only {
            return perplexity;
        }
        let without = if *left_out > 0 { format!(" ({left_out} of {pairs} pairs left out)") } else { String::new() };
        let accuracy = 100.0 * prediction.accuracy();
        format!("perplexity = {perplexity} accuracy = {accuracy:.width$} % of {} tokens{without}", prediction.tokens)
    }
}
