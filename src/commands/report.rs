//! `mt report`

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::eval::results::{Results, Scored, Test};
use super::shared::output::{Output, Replacement, is_stdout};
use super::shared::reserved;
use crate::cli::{Common, ReportArgs};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::file::folder_of;
use crate::metrics::{BleuOptions, ChrfOptions, TextMetric, Tokenize, resample};
use crate::report::files;
use crate::report::page::{self, Run};
use crate::report::picture::{Format, curves};
use crate::run::validator;
use crate::train::log::{LOG_FILE, is_of_final_model};

/// Samples of the paired bootstrap; sacrebleu's number.
const SAMPLES: usize = 1000;

/// Writes the page of a run, or one that compares several; or their curves as a picture.
pub(super) fn run(args: &ReportArgs, common: &Common) -> Result<()> {
    if common.json && args.output.as_deref().is_some_and(is_stdout) {
        let error = Error::usage("--json and an --output to stdout do not go together: stdout gets the page");
        return Err(error.help("leave --json out, or name a file with --output"));
    }
    let is_for_several = args.output.is_none() && args.runs.len() > 1;
    if is_for_several && Path::new(LOG_FILE).exists() {
        let error =
            Error::usage("the current directory is a run, whose own page the page of several runs would replace");
        return Err(error.at(page::FILE).help("name another file with --output"));
    }
    // A link is replaced, not what it leads to.
    if is_for_several
        && Path::new(page::FILE).symlink_metadata().is_ok_and(|it| !it.is_symlink())
        && !page::is_own(Path::new("."))
    {
        let error =
            Error::usage("there is another file where the page of several runs would be written").at(page::FILE);
        return Err(error.help("name a file for it with --output"));
    }
    let runs = args.runs.iter().map(|directory| Run::open(directory)).collect::<Result<Vec<_>>>()?;
    let file = match (&args.output, &args.runs[..]) {
        (Some(file), _) => file.clone(),
        (None, [run]) => run.join(page::FILE),
        (None, _) => PathBuf::from(page::FILE),
    };
    check_name(&file)?;
    let is_page_of = |run: &PathBuf| reserved::whole(&run.join(page::FILE)) == reserved::whole(&file);
    if args.output.is_some() && !is_stdout(&file) && !args.runs.iter().any(is_page_of) {
        reserved::refuse(&file)?;
    }
    let names = page::names(&runs);
    let picture = Format::from_path(&file);
    // A picture does not show it.
    let compared = if picture.is_none() || common.json { compared(&args.runs, &names)? } else { Value::Null };
    let bytes = match picture {
        Some(format) => format.encode(curves::whole(&runs, &names)?, &file)?,
        None => page::page(&runs, &compared).into_bytes(),
    };
    if args.output.is_some() {
        let mut replacement = Replacement::open(&file)?;
        replacement.output().bytes(&bytes)?;
        replacement.finish()?;
    } else {
        // The user has not named this file, so a link there is not followed.
        page::write(folder_of(&file), &bytes)?;
    }
    if is_stdout(&file) {
        return Ok(());
    }
    let mut output = Output::open(None)?;
    if common.json {
        let summaries: Vec<Value> = runs.iter().zip(&names).map(|(run, name)| summary(run, name)).collect();
        let json = json!({ "report": file.to_string_lossy(), "runs": summaries, "compared": compared });
        output.json(&json)?;
    } else {
        output.path(&file)?;
    }
    output.flush()
}

/// The results in a run's log: its progress, its best validation, and its final model.
fn summary(run: &Run, name: &str) -> Value {
    let last = |is_wanted: &dyn Fn(&Value) -> bool| run.log().iter().rfind(|entry| is_wanted(entry));
    let scores = |entry: &Value| -> Value {
        let keys =
            ["update", "loss", "perplexity", "bleu", "chrf", "comet"].iter().filter(|key| !entry[**key].is_null());
        keys.map(|key| ((*key).to_owned(), entry[*key].clone())).collect()
    };
    let number = |key: &str| last(&|entry| entry[key].is_number()).map(|entry| &entry[key]);
    let best = last(&|entry| entry["event"] == "valid" && entry["best"] == true);
    let made = last(&|entry| entry["event"] == "final");
    let of_sets = run.log().iter().filter(|entry| is_of_final_model(entry));
    let set = |entry: &Value| (entry["set"].as_str().unwrap_or_default().to_owned(), scores(entry));
    json!({
        "name": name, "update": number("update"), "seconds": number("seconds"),
        "best": best.map(scores), "final": made.map(scores), "monitor": of_sets.map(set).collect::<Value>(),
    })
}

/// Refuses names of neither pages nor pictures: most would be mistakes, such as the name of a file of a run.
fn check_name(file: &Path) -> Result<()> {
    let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_special = std::fs::metadata(file).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    if is_special || file == Path::new("-") || ["html", "htm", "svg", "png"].contains(&extension.as_str()) {
        return Ok(());
    }
    let error = Error::usage("this name is not that of a page or a picture").at(file);
    Err(error.help("name a .html file for the page, a .svg or .png file for the curves, or - for stdout"))
}

/// Whether runs differ from the first by more than chance in their translations of the validation set: by the final
/// models, or the best ones before the end of training. Null for one run; notes on runs that cannot be compared.
fn compared(runs: &[PathBuf], names: &[String]) -> Result<Value> {
    if runs.len() < 2 {
        return Ok(Value::Null);
    }
    let (mut systems, mut notes) = (Vec::new(), Vec::new());
    let mut reference: Option<(&String, Vec<String>)> = None;
    let mut scoring: Option<BleuOptions> = None;
    let mut with_case = Vec::new();
    for (run, name) in runs.iter().zip(names) {
        let found = match translations(run) {
            Ok(found) => found,
            Err(why) => {
                notes.push(format!("Not compared: {name} {why}."));
                continue;
            }
        };
        let (baseline, lines) = reference.get_or_insert((name, found.reference.clone()));
        if *lines != found.reference {
            notes.push(format!("Not compared: {name} was validated on another text than {baseline}."));
            continue;
        }
        let bleu = scoring.get_or_insert(found.scoring);
        if bleu.tokenize != found.scoring.tokenize {
            let [here, there] = [bleu.tokenize, found.scoring.tokenize].map(Tokenize::name);
            notes.push(format!("{name} was validated by BLEU of {there} words; here it is of {here} words."));
        }
        // A model that writes lower case can only be compared by ignoring case.
        bleu.lowercase |= found.scoring.lowercase;
        with_case.push((name, !found.scoring.lowercase));
        systems.push((format!("{name} ({})", found.which), found.lines));
    }
    let lower: Vec<&str> = with_case.iter().filter(|(_, has_case)| !has_case).map(|(name, _)| name.as_str()).collect();
    if !lower.is_empty() && lower.len() < with_case.len() {
        let write = if lower.len() == 1 { "writes" } else { "write" };
        let lower = lower.join(", ");
        notes.push(format!(
            "Here all scores ignore case, because {lower} {write} lower case; above, each run has its own."
        ));
    }
    let (Some((_, reference)), true) = (reference, systems.len() > 1) else { return Ok(json!({ "notes": notes })) };
    let bleu = scoring.unwrap_or_default();
    let chrf = ChrfOptions { lowercase: bleu.lowercase, ..ChrfOptions::default() };
    let (lines, references) = (reference.len(), [reference]);
    let metrics: [Box<dyn TextMetric>; 2] = [Box::new(bleu), Box::new(chrf)];
    let scored = metrics.into_iter().map(|metric| Scored::new(metric, &systems, &references));
    let scored = scored.collect::<Result<Vec<_>>>()?;
    let names: Vec<String> = systems.into_iter().map(|(name, _)| name).collect();
    let found = scored.iter().map(Scored::of_all).collect();
    let results = Results::new(found, &names, Test::PairedBootstrap(SAMPLES), resample::SEED);
    Ok(json!({ "systems": results.json(), "lines": lines, "notes": notes }))
}

/// A run's translations of the validation set.
struct Translations {
    /// Which of its models they are from.
    which: &'static str,
    lines: Vec<String>,
    reference: Vec<String>,
    /// How its validation computes BLEU.
    scoring: BleuOptions,
}

/// Reads the translations, or returns why they cannot be compared.
fn translations(run: &Path) -> std::result::Result<Translations, String> {
    let read = |name: &str| -> std::result::Result<Option<Vec<String>>, String> {
        if !run.join(name).exists() {
            return Ok(None);
        }
        files::read_lines(run, name).map(Some).ok_or_else(|| format!("has a damaged {name}: it cannot be read as text"))
    };
    let (which, name, lines) = match (read(files::FINAL)?, read(files::BEST)?) {
        (Some(lines), _) => ("final", files::FINAL, lines),
        (None, Some(lines)) => ("best", files::BEST, lines),
        (None, None) => return Err("has no translations of a validation set".to_owned()),
    };
    let reference = read(files::REFERENCE)?.ok_or_else(|| format!("has lost its {}", files::REFERENCE))?;
    if lines.is_empty() || lines.len() != reference.len() {
        let s = if lines.len() == 1 { "" } else { "s" };
        return Err(format!("has a damaged {name}: {} line{s}, and {} in the reference", lines.len(), reference.len()));
    }
    let scoring =
        crate::model_dir::config_of(run).and_then(|config| Ok(validator::scoring(&config, &Tokenizers::load(run)?)));
    let scoring = scoring.map_err(|error| format!("cannot be compared: {}", error.what()))?;
    Ok(Translations { which, lines, reference, scoring })
}
