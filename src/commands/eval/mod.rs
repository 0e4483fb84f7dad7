//! `mt eval`

mod metrics;
mod report;
pub(super) mod results;

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::decoding;
use super::model;
use super::output::{Output, refuse_inputs};
use super::tags::Tags;
use super::texts;
use super::translate::CutLines;
use crate::cli::{Common, EvalArgs};
use crate::config::CorpusLocation;
use crate::console::message;
use crate::data::corpus::read_all;
use crate::data::lines::{self, LineFile, read_lines};
use crate::decode::Knowledge;
use crate::decode::source::Long;
use crate::error::{Error, Result};
use crate::metrics::tokenize::is_whitespace;
use crate::metrics::{Metric, analysis, bleu, resample};
use report::Report;
use results::{Results, Test};

/// A system's name and its translations.
type System = (String, Vec<String>);

/// What is scored.
struct TestSet {
    /// Sources, where they are known.
    sources: Option<Vec<String>>,
    references: Vec<Vec<String>>,
    systems: Vec<System>,
    /// How well the model knows the first reference, if that was asked for.
    knowledge: Option<Knowledge>,
    /// The text that the model was trained on.
    training: Vec<CorpusLocation>,
}

/// Scores translations: a model's own, or those in files.
pub fn run(args: &EvalArgs, common: &Common) -> Result<()> {
    let metrics = metrics::chosen(&args.metrics, args.sentence_level)?;
    let files = args.hyp.iter().chain(&args.reference).chain(&args.src);
    if files.filter(|path| *path == Path::new("-")).count() > 1 {
        return Err(Error::usage("only one of --src, --ref and --hyp can be stdin").help("name files for the others"));
    }
    let test = Test::of(&args.significance);
    if test.is_paired() && args.hyp.len() < 2 {
        let error = Error::usage("a paired test compares systems, and there is one");
        return Err(error.help("give several files to --hyp, the baseline first; --confidence is for one"));
    }
    if args.sentence_level && !common.json && (metrics.len() > 1 || args.hyp.len() > 1) {
        let error = Error::usage("--sentence-level prints one metric of one system");
        return Err(error.help("choose one, or give --json"));
    }
    let mut output = Output::open(None)?;
    let TestSet { sources, references, systems, knowledge, training } =
        if args.hyp.is_empty() { of_model(args, !metrics.is_empty() || args.report, common)? } else { of_files(args)? };
    if !args.metrics.force && !common.quiet && metrics.iter().any(|metric| metric.key() == "bleu") {
        for (name, lines) in &systems {
            if let Some(warning) = bleu::tokenized_warning(lines) {
                message(format_args!("warning: {name}: {warning}"));
            }
        }
    }
    if args.sentence_level {
        sentences(&metrics, &systems, &references, args, common, &mut output)?;
        return output.flush();
    }
    let seed = common.seed.unwrap_or(resample::SEED);
    let results = Results::new(&metrics, &systems, &references, test, seed)?;
    let report = if args.report {
        let (frequencies, counted) = frequencies(args.train_text.as_ref(), &training, &references[0], common)?;
        Some(Report::new(&metrics, sources.as_deref(), &references, &systems, (&frequencies, counted))?)
    } else {
        None
    };
    if common.json {
        let mut json = results.json();
        if let Some(known) = knowledge {
            json["ppl"] = json!({ "score": known.perplexity(), "accuracy": known.accuracy(), "tokens": known.tokens });
        }
        if let Some(report) = report {
            json = json!({ "scores": json, "report": report.json() });
        }
        output.line(&json.to_string())?;
        return output.flush();
    }
    if !metrics.is_empty() {
        output.line(&results.print(args.format, args.width.into(), args.score_only))?;
    }
    if let Some(known) = knowledge {
        let width = args.width.into();
        let perplexity = format!("{:.width$}", known.perplexity());
        output.line(&if args.score_only {
            perplexity
        } else {
            let accuracy = 100.0 * known.accuracy();
            format!("perplexity = {perplexity} accuracy = {accuracy:.width$} % of {} tokens", known.tokens)
        })?;
    }
    if let Some(report) = report {
        output.line(&format!("\n{}", report.text()))?;
    }
    output.flush()
}

/// How often words come, and in what: in the text that is named, else in what the model was trained on, else in the
/// references.
fn frequencies(
    named: Option<&PathBuf>,
    training: &[CorpusLocation],
    references: &[String],
    common: &Common,
) -> Result<(HashMap<String, usize>, String)> {
    if let Some(file) = named {
        return Ok((analysis::frequencies(read_lines(file)?.iter()), file.display().to_string()));
    }
    // What is not here any more is not fetched for the sake of counting it.
    let here = Common { offline: true, quiet: true, ..common.clone() };
    let mut lines = Vec::new();
    for location in training {
        match location {
            CorpusLocation::Files { target, .. } if target.exists() => {
                lines.extend(read_lines(target)?.iter().map(str::to_owned));
            }
            CorpusLocation::Files { .. } => {}
            CorpusLocation::Hub(_) => {
                if let Ok(text) = texts::find_one(location, &here) {
                    lines.extend(read_all(&*text.open(1.0, &|_| ())?)?.into_iter().map(|(_, target)| target));
                }
            }
        }
    }
    if lines.is_empty() {
        return Ok((analysis::frequencies(references.iter()), "the references".to_owned()));
    }
    Ok((analysis::frequencies(lines.iter()), "the training text".to_owned()))
}

/// Translations in files.
fn of_files(args: &EvalArgs) -> Result<TestSet> {
    if args.src.is_some() && !args.report {
        let error = Error::usage("--src says nothing about translations that are there already");
        return Err(error.help("leave it out, or give --report"));
    }
    let references = read_references(&args.reference)?;
    if let (Some(file), Some([])) = (args.reference.first(), references.first().map(Vec::as_slice)) {
        return Err(nothing_to_score(file));
    }
    let read_aligned = |path: &PathBuf| -> Result<Vec<String>> {
        let lines = read_to_score(path)?;
        check_counts(path, lines.len(), &args.reference, &references)?;
        Ok(lines)
    };
    let system = |path: &PathBuf| Ok((path.display().to_string(), read_aligned(path)?));
    Ok(TestSet {
        sources: args.src.as_ref().map(read_aligned).transpose()?,
        systems: args.hyp.iter().map(system).collect::<Result<_>>()?,
        references,
        knowledge: None,
        training: Vec::new(),
    })
}

fn nothing_to_score(file: &Path) -> Error {
    Error::failure("there are no lines to score").at(file).help("give a file with a sentence on each line")
}

/// Scores every sentence for itself.
fn sentences(
    metrics: &[Box<dyn Metric>],
    systems: &[System],
    references: &[Vec<String>],
    args: &EvalArgs,
    common: &Common,
    output: &mut Output,
) -> Result<()> {
    let lines = systems.first().map_or(0, |(_, lines)| lines.len());
    for line in 0..lines {
        let one = |(name, lines): &System| (name.clone(), vec![lines[line].clone()]);
        let systems: Vec<System> = systems.iter().map(one).collect();
        let references: Vec<Vec<String>> = references.iter().map(|stream| vec![stream[line].clone()]).collect();
        let results = Results::new(metrics, &systems, &references, Test::None, 0)?;
        if common.json {
            output.line(&results.json().to_string())?;
        } else {
            output.line(&results.print(args.format, args.width.into(), args.score_only))?;
        }
    }
    Ok(())
}

/// The test set as the model translates it, if that is wanted.
fn of_model(args: &EvalArgs, translations_wanted: bool, common: &Common) -> Result<TestSet> {
    if args.src.is_some() == args.reference.is_empty() {
        let error =
            Error::usage(if args.src.is_some() { "--src without --ref" } else { "--ref without --hyp or --src" });
        return Err(error.help(
            "to score translations that are there, name them with --hyp; to translate and score, give --src and --ref, or \
             neither for the model's test set",
        ));
    }
    if args.metrics.ppl && args.decode.shortlist.is_some() {
        let error = Error::usage("--ppl is of all tokens, and --shortlist leaves most of them out");
        return Err(error.help("leave one of the two out"));
    }
    let (loaded, others) = model::load_all(&args.models, common)?;
    let options = decoding::translate_options(&args.decode, None, &loaded.config, common)?;
    let test = loaded.config.data.test.as_ref();
    let location = match (&args.src, test) {
        (Some(source), _) => CorpusLocation::files(source, args.reference.first().cloned().unwrap_or_default()),
        (None, Some(test)) => test.clone(),
        (None, None) => {
            let error = Error::usage("the model's configuration names no test set");
            return Err(error.help("give --src FILE and --ref FILE"));
        }
    };
    let [source, reference] = location.sides();
    let reference_paths = if args.reference.is_empty() { vec![reference] } else { args.reference.clone() };
    let (lines, references) = match &location {
        CorpusLocation::Files { .. } => (read(&source)?, read_references(&reference_paths)?),
        CorpusLocation::Hub(_) => {
            let text = texts::find_one(&location, common)?.open(1.0, &|_| ())?;
            let (sources, references): (Vec<_>, Vec<_>) = read_all(&*text)?.into_iter().unzip();
            (sources, vec![references.iter().map(|line| trimmed(line)).collect()])
        }
    };
    check_counts(&source, lines.len(), &reference_paths, &references)?;
    if lines.is_empty() {
        return Err(nothing_to_score(&source));
    }
    let of_models = model::files_of(&loaded, &others);
    let inputs = reference_paths.iter().chain([&source]).chain(&args.decode.shortlist).chain(&of_models);
    refuse_inputs(args.output.as_deref(), inputs.map(PathBuf::as_path))?;
    let translator = decoding::translator_with_flags(&loaded, &others, &args.decode, "", common)?;
    if options.long == Long::Error
        && let Some(beyond) = translator.beyond_positions(&lines)
    {
        return Err(beyond.error(&source, 1).help("give --long split, or split the line"));
    }
    let knowledge = if args.metrics.ppl {
        if let Some(beyond) = translator.target_beyond_positions(&references[0]) {
            return Err(beyond
                .error(&reference_paths[0], 1)
                .help("its perplexity cannot be computed: leave the line out"));
        }
        Some(translator.knowledge(&lines, &references[0], options.batch_tokens)?)
    } else {
        None
    };
    let training = loaded.config.data.train.iter().map(|corpus| corpus.location.clone()).collect();
    if !translations_wanted {
        return Ok(TestSet { sources: Some(lines), references, systems: Vec::new(), knowledge, training });
    }
    let mut file = args.output.as_deref().map(|path| Output::open(Some(path))).transpose()?;
    let bar = (!common.quiet).then(|| indicatif::ProgressBar::new(lines.len() as u64));
    let translations = translator.translate(&lines, &options, |done| {
        if let Some(bar) = &bar {
            bar.set_position(done as u64);
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if !common.quiet {
        let mut cut = CutLines::default();
        translations.iter().for_each(|translation| cut.count(translation));
        cut.warn();
        let mut tags = Tags::new(&loaded.tokenizers.source);
        lines.iter().for_each(|line| tags.count(line));
        tags.warn();
    }
    let translations: Vec<String> = translations.iter().map(|t| t.best().text.clone()).collect();
    if let Some(file) = &mut file {
        translations.iter().try_for_each(|line| file.line(line))?;
        file.flush()?;
    }
    let systems = vec![("model".to_owned(), translations)];
    let target = &loaded.tokenizers.target;
    let references = references.iter().map(|lines| lines.iter().map(|line| target.plain(line).into_owned()).collect());
    let references = references.collect();
    Ok(TestSet { sources: Some(lines), references, systems, knowledge, training })
}

fn read(path: &Path) -> Result<Vec<String>> {
    if path == Path::new("-") {
        return read_to_score(path);
    }
    Ok(read_lines(path)?.iter().map(str::to_owned).collect())
}

/// As [`read`]; a byte order mark stays part of the first line, as it does for sacrebleu.
fn read_to_score(path: &Path) -> Result<Vec<String>> {
    let file = if path == Path::new("-") {
        let mut bytes = Vec::new();
        let stdin = BufReader::new(std::io::stdin());
        let read = lines::unpack(stdin).and_then(|mut reader| reader.read_to_end(&mut bytes));
        read.map_err(|e| Error::io("read", "stdin", e))?;
        LineFile::from_bytes("stdin", bytes)?
    } else {
        read_lines(path)?
    };
    let mut lines: Vec<String> = file.iter().map(trimmed).collect();
    if let (true, Some(first)) = (file.byte_order_mark, lines.first_mut()) {
        first.insert(0, '\u{FEFF}');
    }
    Ok(lines)
}

/// As sacrebleu reads lines: without white space at their ends.
fn trimmed(line: &str) -> String {
    line.trim_end_matches(is_whitespace).to_owned()
}

fn read_references(paths: &[PathBuf]) -> Result<Vec<Vec<String>>> {
    paths.iter().map(|path| read_to_score(path)).collect()
}

/// Every reference must have as many lines as what is scored.
fn check_counts(path: &Path, lines: usize, reference_paths: &[PathBuf], references: &[Vec<String>]) -> Result<()> {
    for (reference, reference_lines) in reference_paths.iter().zip(references) {
        if reference_lines.len() != lines {
            let what = format!(
                "{} has {lines} lines but {} has {}",
                path.display(),
                reference.display(),
                reference_lines.len()
            );
            return Err(Error::failure(what).help("translations, sources and references must be aligned line by line"));
        }
    }
    Ok(())
}
