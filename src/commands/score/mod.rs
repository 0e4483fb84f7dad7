//! `mt score`: how likely a model finds translations, or how good a model of COMET finds them.

mod likelihood;
mod quality;

use std::path::PathBuf;

use indicatif::ProgressBar;

use super::shared::answered::AnsweredLines;
use super::shared::decimals::decimals;
use super::shared::input::is_stdin;
use super::shared::output::{Output, refuse_inputs};
use super::shared::pairs::{Pair, Pairs, Targets};
use crate::cli::{Common, ScoreArgs};
use crate::console::{note, warning};
use crate::error::{Error, Result};

/// What gives pairs their scores.
trait Scorer {
    /// The name of the feature that n-best lists get, if no other is asked for.
    const FEATURE: &'static str;

    /// The output line of each pair; `paths` are the files that they come from.
    ///
    /// # Errors
    /// The model fails.
    fn lines(&mut self, window: &[Pair], paths: [&PathBuf; 2]) -> Result<Vec<String>>;

    /// Warnings about the pairs so far.
    fn warnings(&self) -> Vec<String>;

    /// The last warnings, about all pairs, and the errors of those without a score.
    fn finish(self) -> (Vec<String>, Vec<Error>);
}

/// Writes the score of each translation, one per line, in order; of n-best lists, each line with it.
pub(super) fn run(args: &ScoreArgs, common: &Common) -> Result<()> {
    let (flag, target) = target(args)?;
    if is_stdin(&args.src) && is_stdin(target) {
        let error = Error::usage(format!("--src and {flag} cannot both be stdin"));
        return Err(error.help("name a file for one of them"));
    }
    match &args.qe {
        Some(model) => quality::run(model, args, common),
        None => likelihood::run(args, common),
    }
}

/// The flag that names the translations, and their file.
fn target(args: &ScoreArgs) -> Result<(&'static str, &PathBuf)> {
    match (&args.tgt, &args.n_best) {
        (_, Some(path)) => Ok(("--n-best", path)),
        (Some(path), None) => Ok(("--tgt", path)),
        // The command line is checked for that.
        (None, None) => Err(Error::usage("neither --tgt nor --n-best is given")),
    }
}

/// Writes what a scorer gives, whose model has these files.
fn write<S: Scorer>(mut scorer: S, args: &ScoreArgs, common: &Common, of_models: &[PathBuf]) -> Result<()> {
    let (_, target) = target(args)?;
    let targets = match &args.n_best {
        Some(_) => Targets::Lists((!common.json).then_some(feature::<S>(args))),
        None => Targets::Lines,
    };
    let mut pairs = Pairs::open([&args.src, target], targets)?;
    let written = AnsweredLines::watch(args.output.as_deref(), ProgressBar::hidden())?;
    let inputs = [&args.src, target].into_iter().chain(of_models);
    refuse_inputs(args.output.as_deref(), inputs.map(PathBuf::as_path))?;
    let mut output = None;
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
        let lines = scorer.lines(&window, pairs.paths)?;
        let result = written.write(window.len(), || {
            lines.iter().try_for_each(|line| output.line(line))?;
            written.note([pairs.warnings(), scorer.warnings()].concat());
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
    let (warnings, errors) = scorer.finish();
    warnings.into_iter().for_each(warning);
    let errors: Vec<Error> = errors.into_iter().chain(refused).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// The name of the feature that n-best lists get.
fn feature<S: Scorer>(args: &ScoreArgs) -> &str {
    args.feature.as_deref().unwrap_or(S::FEATURE)
}

/// The output line of a pair without `--json`: the score, in n-best lists as a feature.
fn plain<S: Scorer>(pair: &Pair, args: &ScoreArgs, score: Option<f64>) -> String {
    let number = score.map_or_else(|| "nan".to_owned(), decimals);
    match &pair.entry {
        Some(entry) => entry.with(&pair.target, feature::<S>(args), &number),
        None => number,
    }
}
