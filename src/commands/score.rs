//! `mt score`

use std::path::{Path, PathBuf};

use serde_json::json;

use super::decoding::translator;
use super::input::Input;
use super::model;
use super::output::{Output, refuse_inputs};
use super::tags::Tags;
use crate::cli::{Common, ScoreArgs};
use crate::decode::translate::Translator;
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
    let of_models = model::files_of(&first, &others);
    let inputs = [&args.src, &args.tgt].into_iter().chain(&of_models);
    refuse_inputs(args.output.as_deref(), inputs.map(PathBuf::as_path))?;
    let mut output = None;
    let mut tags = Tags::new(&first.tokenizers.source);
    loop {
        let (sources, targets, mut refused) = pairs.next(&translator)?;
        // Opening empties the output file, so first make sure that the input can be read.
        let output = match &mut output {
            Some(output) => output,
            None => output.insert(Output::open(args.output.as_deref())?),
        };
        let scores = translator.score(&sources, &targets, batch_tokens)?;
        sources.iter().for_each(|line| tags.count(line));
        for ((source, target), (tokens, log_probs)) in sources.iter().zip(&targets).zip(&scores) {
            let sum: f64 = log_probs.iter().map(|log_prob| f64::from(*log_prob)).sum();
            let average = sum / log_probs.len() as f64;
            if common.json {
                let piece = |token: &u32| translator.target().piece(*token).unwrap_or_default();
                let json = json!({
                    "source": source, "target": target, "log_prob": sum, "average": average,
                    "tokens": tokens.iter().map(piece).collect::<Vec<_>>(), "token_log_probs": log_probs,
                });
                output.line(&json.to_string())?;
            } else {
                output.line(&format!("{:.6}", if args.normalize { average } else { sum }))?;
            }
        }
        output.flush()?;
        if let Some(error) = refused.take() {
            return Err(error);
        }
        if sources.is_empty() || output.is_closed() {
            break;
        }
    }
    pairs.inputs.iter().for_each(Input::warn);
    tags.warn();
    Ok(())
}

/// Lines of two files, side by side.
struct Pairs<'a> {
    paths: [&'a PathBuf; 2],
    inputs: [Input; 2],
    /// Lines read before.
    lines: usize,
}

impl<'a> Pairs<'a> {
    fn open(paths: [&'a PathBuf; 2]) -> Result<Self> {
        let open = |path: &Path| Input::open(Some(path));
        Ok(Self { paths, inputs: [open(paths[0])?, open(paths[1])?], lines: 0 })
    }

    /// The next lines of both, none at the end; and what is wrong with the pair after them, if that is why they end. If the
    /// very next pair cannot be read, that is an error.
    fn read(&mut self) -> Result<(Vec<String>, Vec<String>, Option<Error>)> {
        /// Pairs processed together: enough to batch by length, few enough to bound memory.
        const WINDOW: usize = 2000;
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        let mut refused = None;
        while sources.len() < WINDOW {
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
        Ok((sources, targets, refused))
    }

    /// As [`Self::read`], up to the first pair that is too long to be scored.
    fn next(&mut self, translator: &Translator) -> Result<(Vec<String>, Vec<String>, Option<Error>)> {
        let (mut sources, mut targets, mut refused) = self.read()?;
        let beyond = [translator.beyond_positions(&sources), translator.target_beyond_positions(&targets)];
        let first = (0..2).filter_map(|side| Some((side, beyond[side]?))).min_by_key(|(_, beyond)| beyond.line);
        if let Some((side, beyond)) = first {
            let error = beyond.error(self.paths[side], self.lines + 1);
            refused =
                Some(error.help("a line of this length cannot be scored: leave it out; the lines before it are done"));
            sources.truncate(beyond.line);
            targets.truncate(beyond.line);
        }
        self.lines += sources.len();
        Ok((sources, targets, refused))
    }

    fn uneven(&self, lines: usize, source_goes_on: bool) -> Error {
        let [short, long] = if source_goes_on { [1, 0] } else { [0, 1] }.map(|side: usize| self.paths[side]);
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
