//! `mt eval`

mod comparison;
mod neural;
mod perplexity;
mod pieces;
mod report;
pub(super) mod results;
mod test_set;

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::shared::input::is_stdin;
use super::shared::output::{Output, is_stdout};
use crate::cli::{Common, EvalArgs, ScoreFormat};
use crate::console::{note, tell, warning};
use crate::data::text::documents::Place;
use crate::data::text::lines::{LineFile, read_lines};
use crate::data::tokenizer::Tokenizer;
use crate::data::{CorpusLocation, texts};
use crate::device;
use crate::error::{Error, Result};
use crate::metrics::analysis::{self, Frequencies};
use crate::metrics::pieces::PieceBleu;
use crate::metrics::{BleuOptions, Statistics, TextMetric, bleu, resample};
use crate::model_dir::trust;
use comparison::Compared;
use perplexity::Perplexity;
use report::Report;
use results::{Results, Scored, Test};
use test_set::{System, TestSet};

/// Scores translations: a model's own, or those in files.
pub(super) fn run(args: &EvalArgs, common: &Common) -> Result<()> {
    // Flags first: a model takes a while.
    args.metrics.idle(args.report).iter().for_each(warning);
    if args.score_only && (common.json || args.format != ScoreFormat::Text) {
        warning("--score-only is for text: JSON and other formats are printed whole");
    }
    let bleu = args.metrics.bleu(args.sentence_level, &BleuOptions::default())?;
    let pieces = pieces::load(args)?;
    let of_words_or_pieces = |bleu: BleuOptions| -> Box<dyn TextMetric> {
        match &pieces {
            Some(pieces) => Box::new(PieceBleu::new(bleu, pieces.clone())),
            None => Box::new(bleu),
        }
    };
    let metrics = args.metrics.chosen(of_words_or_pieces(bleu), &BleuOptions::default());
    let test = Test::new(&args.significance);
    let pairs = test.is_paired() || args.significance.comet_compare;
    refuse_contradictions(args, common, &metrics, pairs)?;
    let neural = neural::find(args, common)?;
    let translates = !metrics.is_empty() || !neural.is_empty() || args.report;
    let mut output = Output::open(None)?;
    // Before anything is translated, since it may be missing.
    let train_text = args.train_text.as_ref().filter(|_| args.report).map(read_lines).transpose()?;
    let set = if !args.hyp.is_empty() {
        device::set_threads(common.threads.unwrap_or(0))?;
        let set = test_set::score_files(args)?;
        // A file may have several.
        refuse_one_system(pairs, set.systems.len())?;
        if set.systems.len() > 1 {
            refuse_several_scores(args, common)?;
        }
        set
    } else if pairs {
        test_set::translate_apart(args, common)?
    } else {
        test_set::translate_together(args, &args.models, translates, common)?
    };
    let bleu = args.metrics.bleu(args.sentence_level, &set.scoring)?;
    let metrics = args.metrics.chosen(of_words_or_pieces(bleu), &set.scoring);
    let of_models = neural.into_iter().map(|wanted| wanted.score(&set)).collect::<Result<Vec<_>>>()?;
    let TestSet { sources, references, systems, places, perplexity, training, target, scoring } = set;
    if !args.metrics.force && pieces.is_none() && metrics.iter().any(|metric| metric.key() == "bleu") {
        warn(&bleu, &systems, &references);
    }
    let case_note = args.metrics.case_note(&scoring, systems.len());
    if let Some(text) = case_note.filter(|_| !systems.is_empty() && !args.metrics.force) {
        note(text);
    }
    let report = if args.report {
        let text = CountedText {
            named: train_text,
            training: &training,
            target: target.as_deref(),
            trusts: args.set.trust_model_data,
        };
        let (frequencies, counted) = text.frequencies(&references[0], &bleu);
        Some(Report::new(&metrics, sources.as_deref(), &references, &systems, bleu, (&frequencies, counted))?)
    } else {
        None
    };
    let scored = metrics.into_iter().map(|metric| Scored::new(metric, &systems, &references));
    let scored: Vec<Scored> = scored.chain(of_models.into_iter().map(Ok)).collect::<Result<_>>()?;
    let names: Vec<String> = systems.iter().map(|(name, _)| name.clone()).collect();
    if args.sentence_level {
        sentences(&scored, (&names, &places), args, common, &mut output)?;
        return output.flush();
    }
    let seed = common.seed.unwrap_or(resample::SEED);
    let results = Results::new(scored.iter().map(Scored::of_all).collect(), &names, test, seed);
    let compared = if args.significance.comet_compare { comparison::of(&scored, &names) } else { Vec::new() };
    print(args, common, &results, perplexity.as_ref(), (report.as_ref(), &compared), &mut output)?;
    output.flush()
}

/// Refuses flags that contradict each other.
fn refuse_contradictions(args: &EvalArgs, common: &Common, metrics: &[Box<dyn TextMetric>], pairs: bool) -> Result<()> {
    let files = args.hyp.iter().chain(&args.set.reference).chain(&args.set.src);
    if files.filter(|path| is_stdin(path)).count() > 1 {
        return Err(Error::usage("only one of --src, --ref and --hyp can be stdin").help("name files for the others"));
    }
    if args.hyp.is_empty() && args.metrics.qe.is_some() && args.set.src.is_some() && args.set.reference.is_empty() {
        let error = Error::usage("--qe needs no references, but a model's translations of --src are scored with --ref");
        return Err(error.help("give --ref; or write them with `mt translate`, and give --src and --hyp"));
    }
    if args.output.as_deref().is_some_and(is_stdout) {
        return Err(Error::usage("--output cannot go to stdout, which gets the scores").help("give --output a file"));
    }
    if args.significance.comet_compare && args.metrics.neural() == 0 {
        return Err(Error::usage("--comet-compare without --comet or --qe").help("add the metric that is to compare"));
    }
    if args.hyp.is_empty() {
        refuse_one_system(pairs, args.models.model.len())?;
    }
    if args.metrics.ppl && metrics.is_empty() && args.metrics.neural() == 0 && !args.report {
        perplexity::refuse_idle(args)?;
    }
    if metrics.len() + args.metrics.neural() > 1 || args.hyp.len() > 1 {
        refuse_several_scores(args, common)?;
    }
    Ok(())
}

/// Refuses a paired test, if there is one, of one system.
fn refuse_one_system(is_paired: bool, systems: usize) -> Result<()> {
    if !is_paired || systems > 1 {
        return Ok(());
    }
    let error = Error::usage("a paired test compares systems, but there is only one");
    Err(error.help("give several --hyp or several --model, the baseline first; --confidence needs only one"))
}

/// Refuses to print several scores of a sentence.
fn refuse_several_scores(args: &EvalArgs, common: &Common) -> Result<()> {
    if !args.sentence_level || common.json {
        return Ok(());
    }
    let error = Error::usage("--sentence-level prints one metric of one system");
    Err(error.help("choose one, or give --json"))
}

/// Writes scores, perplexity of the references, and the report on the systems' errors.
fn print(
    args: &EvalArgs,
    common: &Common,
    results: &Results,
    perplexity: Option<&Perplexity>,
    (report, compared): (Option<&Report>, &[Compared]),
    output: &mut Output,
) -> Result<()> {
    if common.json {
        let mut json = results.json();
        if let Some(perplexity) = perplexity {
            json["ppl"] = perplexity.json();
        }
        let mut more = Map::new();
        more.extend(report.map(|report| ("report".to_owned(), report.json())));
        if !compared.is_empty() {
            more.insert("comparisons".to_owned(), compared.iter().map(Compared::json).collect());
        }
        match &mut json {
            Value::Object(scores) => scores.extend(more),
            several if !more.is_empty() => {
                more.insert("scores".to_owned(), several.take());
                json = more.into();
            }
            _ => {}
        }
        return output.json(&json);
    }
    if !results.is_empty() {
        output.description(&results.print(args.format, args.width.into(), args.score_only))?;
    }
    if let Some(perplexity) = perplexity {
        output.description(&perplexity.print(args.width.into(), args.score_only))?;
    }
    for compared in compared {
        output.description(&format!("\n{}", compared.text()))?;
    }
    match report {
        Some(report) => output.description(&format!("\n{}", report.text())),
        None => Ok(()),
    }
}

/// Warns of text for which BLEU is not meaningful.
fn warn(bleu: &BleuOptions, systems: &[System], references: &[Vec<String>]) {
    for (name, lines) in systems {
        if let Some(doubt) = bleu::tokenized_warning(lines) {
            warning(format_args!("{name}: {doubt}"));
        }
    }
    let spaceless = references.first().and_then(|lines| bleu::spaceless_warning(lines, bleu.tokenize));
    if let (Some(doubt), false) = (spaceless, systems.is_empty()) {
        warning(format_args!("{doubt}; give --tokenize zh or char, or --chrf (--force silences this)"));
    }
}

/// The text whose words a report counts.
struct CountedText<'a> {
    /// That of the file that a flag names.
    named: Option<LineFile>,
    /// The model's training text.
    training: &'a [CorpusLocation],
    /// The model's tokenizer, if there is a model: its text may be split already, but words are counted whole.
    target: Option<&'a Tokenizer>,
    /// Whether the user trusts the model.
    trusts: bool,
}

impl CountedText<'_> {
    /// Word frequencies, and the name of the text they are from: the named one, else the training text, else the
    /// references.
    fn frequencies(&self, references: &[String], bleu: &BleuOptions) -> (Frequencies, String) {
        if let Some(file) = &self.named {
            let mut counts = Frequencies::new();
            file.iter().for_each(|line| self.count(line, bleu, &mut counts));
            return (counts, file.path().display().to_string());
        }
        match self.training_frequencies(bleu) {
            Ok(counts) if !counts.is_empty() => return (counts, "the training text".to_owned()),
            Ok(_) => {}
            Err(error) => warning(format_args!("the training text's words cannot be counted: {error}")),
        }
        (analysis::frequencies(references.iter(), bleu), "the references".to_owned())
    }

    /// The words of the training text's target side, as far as it is still here.
    fn training_frequencies(&self, bleu: &BleuOptions) -> Result<Frequencies> {
        let mut counts = Frequencies::new();
        for location in self.training {
            if location.sides().iter().any(|side| side.exists()) || matches!(location, CorpusLocation::Hub(_)) {
                trust::check(location, "training text", self.trusts, &tell)?;
            }
            match location {
                CorpusLocation::Files { target, .. } if target.exists() => {
                    read_lines(target)?.iter().for_each(|line| self.count(line, bleu, &mut counts));
                }
                CorpusLocation::Files { .. } => {}
                CorpusLocation::Tsv { file, .. } if !file.exists() => {}
                CorpusLocation::Tsv { .. } | CorpusLocation::Hub(_) => {
                    // Text that is no longer here is not fetched just to count its words.
                    let Ok(text) = texts::find_one(location, true) else { continue };
                    for block in text.open(1.0, &|_| ())?.blocks()? {
                        let block = block?;
                        (0..block.len()).for_each(|pair| self.count(block.get(pair).1, bleu, &mut counts));
                    }
                }
            }
        }
        Ok(counts)
    }

    /// Counts the words of a line, as a reader would see it.
    fn count(&self, line: &str, bleu: &BleuOptions, counts: &mut Frequencies) {
        let plain = self.target.map_or(Cow::Borrowed(line), |target| target.plain(line));
        analysis::count(&plain, bleu, counts);
    }
}

/// Scores every sentence separately.
fn sentences(
    scored: &[Scored],
    (systems, places): (&[String], &[Place]),
    args: &EvalArgs,
    common: &Common,
    output: &mut Output,
) -> Result<()> {
    let lines = scored.first().and_then(|scored| scored.statistics.first()).map_or(0, Statistics::len);
    for line in 0..lines {
        let found = scored.iter().map(|scored| scored.of_line(line)).collect();
        let results = Results::new(found, systems, Test::None, 0);
        if common.json {
            let mut json = results.json();
            let of_systems = match &mut json {
                Value::Array(list) => &mut list[..],
                one => std::slice::from_mut(one),
            };
            if let Some(Place { document, segment }) = places.get(line) {
                for scores in of_systems {
                    scores["document"] = (**document).into();
                    scores["segment"] = segment.as_str().into();
                }
            }
            output.json(&json)?;
        } else {
            output.description(&results.print(args.format, args.width.into(), args.score_only))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::TextCounts;

    #[test]
    fn words_that_are_split_in_a_file_are_counted_whole() {
        let mut text = TextCounts::default();
        text.add("l@@ ow@@ er low");
        let pieces = Tokenizer::from_pieces(&[(&text, None)], 100).unwrap().remove(0);
        let count = |target| {
            let text = CountedText { named: None, training: &[], target, trusts: false };
            let mut counts = Frequencies::new();
            for line in ["l@@ ow@@ er low", "low"] {
                text.count(line, &BleuOptions::default(), &mut counts);
            }
            ["lower", "low", "l"].map(|word| counts.get(word).copied().unwrap_or(0))
        };
        assert_eq!(count(Some(&pieces)), [1, 2, 0]);
        // Without a model, the splitting of the text is unknown.
        assert_eq!(count(None), [0, 2, 1]);
    }
}
