//! `mt score`

use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::json;

use super::shared::answered::AnsweredLines;
use super::shared::decimals::decimals;
use super::shared::decoding::translator;
use super::shared::input::{shown_name, with_tag};
use super::shared::languages;
use super::shared::model;
use super::shared::output::{Output, refuse_inputs};
use super::shared::pairs::{Pair, Pairs, Targets};
use super::shared::suspicious::unknown_warning;
use super::shared::tags::{self, Tags};
use crate::cli::{Common, ScoreArgs};
use crate::console::{note, warning};
use crate::data::corpus::Side;
use crate::decode::source::BeyondPositions;
use crate::decode::translate::{Fit, Translator};
use crate::error::{Error, Result};
use crate::escape::harmless_json;

/// Writes the log-probability of each translation, one per line, in order; of n-best lists, each line with it.
pub(super) fn run(args: &ScoreArgs, common: &Common) -> Result<()> {
    if args.batch_tokens == Some(0) {
        return Err(Error::usage("--batch-tokens must be at least 1"));
    }
    // One of them is there: the command line is checked for that.
    let (flag, target) = match (&args.tgt, &args.n_best) {
        (_, Some(path)) => ("--n-best", path),
        (Some(path), None) => ("--tgt", path),
        (None, None) => return Err(Error::usage("neither --tgt nor --n-best is given")),
    };
    if args.src == Path::new("-") && target == Path::new("-") {
        let error = Error::usage(format!("--src and {flag} cannot both be stdin"));
        return Err(error.help("name a file for one of them"));
    }
    let (mut first, mut others) = model::load_all(&args.models, common)?;
    let models = std::iter::once(&mut first).chain(&mut others);
    let tag = languages::choose(&args.languages, args.tag.as_deref(), models)?;
    let tag = tag.as_deref();
    let translator = translator(&first, &others, &args.models.weights, args.precision.as_deref())?;
    let batch_tokens = args.batch_tokens.unwrap_or(first.config.decode.batch_tokens);
    let targets = match &args.n_best {
        Some(_) => Targets::Lists((!common.json).then_some(&args.feature)),
        None => Targets::Lines,
    };
    let mut pairs = Pairs::open([&args.src, target], targets)?;
    let mut unscored = Unscored::default();
    let written = AnsweredLines::watch(args.output.as_deref(), ProgressBar::hidden())?;
    let of_models = crate::model_dir::files_of(&first, &others);
    let inputs = [&args.src, target].into_iter().chain(&of_models);
    refuse_inputs(args.output.as_deref(), inputs.map(PathBuf::as_path))?;
    let mut output = None;
    tags::check_flag(tag, &first.tokenizers.source)?;
    let mut tags = Tags::new(&first.tokenizers.source, tag);
    let (mut unknown, mut all) = (0, 0);
    let refused = loop {
        let (window, refused) = match pairs.read() {
            Ok(window) => window,
            // After output has begun, first report on the lines before.
            Err(error) if output.is_some() => break Some(error),
            Err(error) => return Err(error),
        };
        // Opening empties the output file, so first make sure that the input can be read.
        let output = match &mut output {
            Some(output) => output,
            None => output.insert(Output::open(args.output.as_deref())?),
        };
        let sources = with_tag(tag, window.iter().map(|pair| pair.source.clone()).collect());
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        let targets: Vec<&str> = window.iter().map(|pair| pair.target.as_str()).collect();
        languages::refuse_without(&translator, [&sources, &targets], |error, index, side| {
            let side = usize::from(side == Side::Target);
            error.at_line(shown_name(pairs.paths[side]), window[index].lines[side], 0)
        })?;
        let fits = translator.fit(&sources, &targets);
        fits.iter().zip(&window).for_each(|(fit, pair)| unscored.add(*fit, pairs.paths, pair.lines));
        let is_scored: Vec<bool> = fits.iter().map(|fit| !matches!(fit, Fit::TooLong(..))).collect();
        let scored = |lines: &[&'_ str]| -> Vec<String> {
            lines
                .iter()
                .zip(&is_scored)
                .filter(|(_, is_scored)| **is_scored)
                .map(|(line, _)| (*line).to_owned())
                .collect()
        };
        let scores = translator.score(&scored(&sources), &scored(&targets), batch_tokens)?;
        sources.iter().for_each(|line| tags.count(line));
        for (tokens, _) in &scores {
            unknown += tokens.iter().filter(|token| **token == translator.target().unk_id()).count();
            all += tokens.len();
        }
        let mut scores = scores.iter();
        let result = written.write(window.len(), || {
            for ((source, pair), is_scored) in sources.iter().zip(&window).zip(is_scored) {
                let score = if is_scored { scores.next() } else { None };
                output.line(&shown(&translator, (source, pair), score, args, common))?;
            }
            written.note([pairs.warnings(), tags.warnings()].concat());
            output.flush()
        });
        result.map_err(|error| written.how_far(error, output.cut_back()))?;
        if refused.is_some() || window.is_empty() || output.is_closed() {
            break refused;
        }
    };
    pairs.warnings().into_iter().for_each(warning);
    if refused.is_none() && pairs.is_empty() {
        note("there is no translation to score");
    }
    tags.warnings().into_iter().chain(unknown_warning("target", unknown, all)).for_each(warning);
    let errors: Vec<Error> = unscored.errors().chain(refused).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// The output for a pair with its target's tokens and their log-probabilities, or for one that cannot be scored.
fn shown(
    translator: &Translator,
    (source, pair): (&str, &Pair),
    score: Option<&(Vec<u32>, Vec<f32>)>,
    args: &ScoreArgs,
    common: &Common,
) -> String {
    let sum = score.map(|(_, log_probs)| log_probs.iter().map(|log_prob| f64::from(*log_prob)).sum::<f64>());
    let average = sum.zip(score).map(|(sum, (_, log_probs))| sum / log_probs.len() as f64);
    if common.json {
        let piece = |token: &u32| translator.target().piece(*token).unwrap_or_default();
        let mut json = json!({
            "source": source, "target": pair.target, "log_prob": sum, "average": average,
            "tokens": score.map(|(tokens, _)| tokens.iter().map(piece).collect::<Vec<_>>()),
            "token_log_probs": score.map(|(_, log_probs)| log_probs),
        });
        if let Some(entry) = &pair.entry {
            json["number"] = entry.number.into();
        }
        return harmless_json(&json.to_string()).into_owned();
    }
    let number = if args.normalize { average } else { sum }.map_or_else(|| "nan".to_owned(), decimals);
    match &pair.entry {
        Some(entry) => entry.with(&pair.target, &args.feature, &number),
        None => number,
    }
}

/// Pairs that could not be scored.
#[derive(Default)]
struct Unscored {
    /// An error for each of the first.
    first: Vec<Error>,
    others: usize,
}

impl Unscored {
    /// Counts a pair, if it is one of them, with its lines in these files.
    fn add(&mut self, fit: Fit, paths: [&PathBuf; 2], lines: [usize; 2]) {
        /// More are only counted.
        const MOST: usize = 20;
        let Fit::TooLong(side, beyond) = fit else { return };
        if self.first.len() == MOST {
            self.others += 1;
            return;
        }
        let side = usize::from(side == Side::Target);
        let error = BeyondPositions { line: 0, ..beyond }.error(shown_name(paths[side]), lines[side]);
        self.first.push(error.help("its pair has no score (nan; with --json, null): split the line, or leave it out"));
    }

    /// Names them.
    fn errors(self) -> impl Iterator<Item = Error> {
        let (others, s) = (self.others, if self.others == 1 { "" } else { "s" });
        let more = (others > 0).then(|| Error::failure(format!("{others} more pair{s} could not be scored either")));
        self.first.into_iter().chain(more)
    }
}
