//! `mt score`

use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde_json::json;

use super::shared::decimals::decimals;
use super::shared::decoding::translator;
use super::shared::doubtful::of_unknown;
use super::shared::input::{Input, shown_name, with_tag};
use super::shared::model;
use super::shared::output::{Output, refuse_inputs};
use super::shared::tags::{self, Tags};
use super::shared::written::Written;
use crate::cli::{Common, ScoreArgs};
use crate::console::warning;
use crate::data::corpus::Side;
use crate::decode::translate::{Fit, Translator};
use crate::error::{Error, Result};

/// Writes the log-probability of each translation, one per line, in order.
pub fn run(args: &ScoreArgs, common: &Common) -> Result<()> {
    if args.batch_tokens == Some(0) {
        return Err(Error::usage("--batch-tokens must be at least 1"));
    }
    if args.src == Path::new("-") && args.tgt == Path::new("-") {
        return Err(Error::usage("--src and --tgt cannot both be stdin").help("name a file for one of them"));
    }
    let (first, others) = model::load_all(&args.models, common)?;
    let translator = translator(&first, &others, args.precision.as_deref())?;
    let batch_tokens = args.batch_tokens.unwrap_or(first.config.decode.batch_tokens);
    let mut pairs = Pairs::open([&args.src, &args.tgt])?;
    let mut unscored = Unscored::default();
    let written = Written::watch(args.output.as_deref(), ProgressBar::hidden())?;
    let of_models = model::files_of(&first, &others);
    let inputs = [&args.src, &args.tgt].into_iter().chain(&of_models);
    refuse_inputs(args.output.as_deref(), inputs.map(PathBuf::as_path))?;
    let mut output = None;
    tags::check_flag(args.tag.as_deref(), &first.tokenizers.source)?;
    let mut tags = Tags::new(&first.tokenizers.source, args.tag.as_deref());
    let (mut unknown, mut all) = (0, 0);
    let refused = loop {
        let (sources, targets, refused) = match pairs.read() {
            Ok((sources, targets, refused)) => (with_tag(args.tag.as_deref(), sources), targets, refused),
            // Once something is written, what is known of the lines before is told too.
            Err(error) if output.is_some() => break Some(error),
            Err(error) => return Err(error),
        };
        // Opening empties the output file, so first make sure that the input can be read.
        let output = match &mut output {
            Some(output) => output,
            None => output.insert(Output::open(args.output.as_deref())?),
        };
        let fits = translator.fit(&sources, &targets);
        let first_line = pairs.lines - sources.len() + 1;
        fits.iter().for_each(|fit| unscored.add(*fit, pairs.paths, first_line));
        let is_scored: Vec<bool> = fits.iter().map(|fit| !matches!(fit, Fit::TooLong(..))).collect();
        let scored = |lines: &[String]| -> Vec<String> {
            lines.iter().zip(&is_scored).filter(|(_, is_scored)| **is_scored).map(|(line, _)| line.clone()).collect()
        };
        let scores = translator.score(&scored(&sources), &scored(&targets), batch_tokens)?;
        sources.iter().for_each(|line| tags.count(line));
        for (tokens, _) in &scores {
            unknown += tokens.iter().filter(|token| **token == translator.target().unk_id()).count();
            all += tokens.len();
        }
        let mut scores = scores.iter();
        let result = written.write(sources.len(), || {
            for ((source, target), is_scored) in sources.iter().zip(&targets).zip(is_scored) {
                let score = if is_scored { scores.next() } else { None };
                output.line(&shown(&translator, [source, target], score, args, common))?;
            }
            written.note(pairs.inputs.iter().flat_map(Input::warnings).chain(tags.warnings()).collect());
            output.flush()
        });
        result.map_err(|error| written.how_far(error, output.cut_back()))?;
        if refused.is_some() || sources.is_empty() || output.is_closed() {
            break refused;
        }
    };
    pairs.inputs.iter().flat_map(Input::warnings).for_each(warning);
    tags.warnings().into_iter().chain(of_unknown("target", unknown, all)).for_each(warning);
    let errors: Vec<Error> = unscored.errors().chain(refused).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// What is written of a pair with its target's tokens and their log-probabilities, or of one that cannot be scored.
fn shown(
    translator: &Translator,
    [source, target]: [&str; 2],
    score: Option<&(Vec<u32>, Vec<f32>)>,
    args: &ScoreArgs,
    common: &Common,
) -> String {
    let sum = score.map(|(_, log_probs)| log_probs.iter().map(|log_prob| f64::from(*log_prob)).sum::<f64>());
    let average = sum.zip(score).map(|(sum, (_, log_probs))| sum / log_probs.len() as f64);
    if common.json {
        let piece = |token: &u32| translator.target().piece(*token).unwrap_or_default();
        let json = json!({
            "source": source, "target": target, "log_prob": sum, "average": average,
            "tokens": score.map(|(tokens, _)| tokens.iter().map(piece).collect::<Vec<_>>()),
            "token_log_probs": score.map(|(_, log_probs)| log_probs),
        });
        return json.to_string();
    }
    match if args.normalize { average } else { sum } {
        Some(number) => decimals(number),
        None => "nan".to_owned(),
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
    /// Takes note of a pair, if it is one of them. `first` is the number, in these files, of the line that counts as line 0.
    fn add(&mut self, fit: Fit, [source, target]: [&PathBuf; 2], first: usize) {
        /// More are only counted.
        const MOST: usize = 20;
        let Fit::TooLong(side, beyond) = fit else { return };
        if self.first.len() == MOST {
            self.others += 1;
            return;
        }
        let file = if side == Side::Source { source } else { target };
        let error = beyond.error(shown_name(file), first);
        self.first.push(error.help("its pair has no score (nan; with --json, null): split the line, or leave it out"));
    }

    /// Names them.
    fn errors(self) -> impl Iterator<Item = Error> {
        let (others, s) = (self.others, if self.others == 1 { "" } else { "s" });
        let more = (others > 0).then(|| Error::failure(format!("{others} more pair{s} could not be scored either")));
        self.first.into_iter().chain(more)
    }
}

/// Lines of two files, side by side.
struct Pairs<'a> {
    paths: [&'a PathBuf; 2],
    inputs: [Input; 2],
    /// Lines read.
    lines: usize,
}

impl<'a> Pairs<'a> {
    fn open(paths: [&'a PathBuf; 2]) -> Result<Self> {
        let open = |path: &Path| Input::open(Some(path));
        Ok(Self { paths, inputs: [open(paths[0])?, open(paths[1])?], lines: 0 })
    }

    /// The next lines of both, none at the end, and from stdin only those that have arrived, but at least one; and what is wrong
    /// with the pair after them, if that is why they end. If the very next pair cannot be read, that is an error.
    fn read(&mut self) -> Result<(Vec<String>, Vec<String>, Option<Error>)> {
        /// Pairs processed together: enough to batch by length, few enough to bound memory.
        const WINDOW: usize = 2000;
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        let mut refused = None;
        while sources.len() < WINDOW && (sources.is_empty() || !self.inputs.iter().any(Input::may_wait)) {
            let [source, target] = &mut self.inputs;
            let pair = source.lines(1).and_then(|mut line| Ok((line.pop(), target.lines(1)?.pop())));
            match pair {
                Ok((Some(source), Some(target))) => {
                    sources.push(source);
                    targets.push(target);
                }
                Ok((None, None)) => break,
                Ok((source, _)) => {
                    refused = Some(self.uneven(self.lines + sources.len(), source.is_some()));
                    break;
                }
                Err(error) if sources.is_empty() => return Err(error),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        self.lines += sources.len();
        Ok((sources, targets, refused))
    }

    fn uneven(&self, lines: usize, source_goes_on: bool) -> Error {
        let [short, long] =
            if source_goes_on { [1, 0] } else { [0, 1] }.map(|side: usize| shown_name(self.paths[side]));
        let s = if lines == 1 { "" } else { "s" };
        let what = format!("{} ends after {lines} line{s}, but {} goes on", short.display(), long.display());
        Error::failure(what).help("the two must be aligned line by line; the lines before that are done")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    /// Pairs before the damage are scored, and the error names the damaged line.
    #[test]
    fn damage_in_one_file_costs_the_pairs_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let [source, target] = ["source.gz", "target"].map(|name| folder.path().join(name));
        // The second member of the compressed file ends right after its header.
        let cut = gzip("d\ne\n")[..12].to_vec();
        std::fs::write(&target, "A\nB\nC\nD\nE\n").unwrap();
        let lines = |of: &[&str]| -> Vec<String> { of.iter().map(|line| (*line).to_owned()).collect() };
        for damaged_first in [true, false] {
            std::fs::write(&source, [gzip("a\nb\nc\n"), cut.clone()].concat()).unwrap();
            let paths = if damaged_first { [&source, &target] } else { [&target, &source] };
            let (mut first, mut second, refused) = Pairs::open(paths).unwrap().read().unwrap();
            if !damaged_first {
                std::mem::swap(&mut first, &mut second);
            }
            assert_eq!((first, second), (lines(&["a", "b", "c"]), lines(&["A", "B", "C"])));
            let error = refused.unwrap().to_string();
            assert!(error.contains("source.gz:4") && error.contains("the lines before it are done"), "{error}");
            // With nothing before it there is nothing to write.
            std::fs::write(&source, &cut).unwrap();
            assert!(Pairs::open(paths).unwrap().read().is_err());
        }
    }
}
