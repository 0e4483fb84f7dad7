//! `mt report`

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::eval::results::{Results, Test};
use super::output::{Output, refuse_inputs};
use crate::checkpoint::CONFIG_FILE;
use crate::cli::{Common, ReportArgs};
use crate::error::{Error, Result};
use crate::metrics::{BleuOptions, ChrfOptions, Metric, resample};
use crate::report::files;
use crate::report::page::{self, Run};
use crate::report::picture::{Format, curves};
use crate::train::log::LOG_FILE;

/// Samples of the paired bootstrap; sacrebleu's number.
const SAMPLES: usize = 1000;

/// Writes the page of a run, or one that compares several; or their curves as a picture.
pub fn run(args: &ReportArgs, common: &Common) -> Result<()> {
    let runs = args.runs.iter().map(|directory| Run::open(directory)).collect::<Result<Vec<_>>>()?;
    let file = match (&args.output, &args.runs[..]) {
        (Some(file), _) => file.clone(),
        (None, [run]) => run.join(page::FILE),
        (None, _) => PathBuf::from(page::FILE),
    };
    let names = [LOG_FILE, CONFIG_FILE].into_iter().chain(files::ALL);
    let inputs: Vec<PathBuf> = names.flat_map(|name| args.runs.iter().map(move |run| run.join(name))).collect();
    refuse_inputs(Some(&file), inputs.iter().map(PathBuf::as_path))?;
    let names = page::names(&runs);
    match Format::of(&file) {
        Some(format) => {
            let picture = format.encode(curves::whole(&runs, &names)?).map_err(|error| error.at(&file))?;
            std::fs::write(&file, picture).map_err(|error| Error::io("write the picture", &file, error))?;
        }
        None => page::write(&file, &runs, &compared(&args.runs, &names)?)?,
    }
    let mut output = Output::open(None)?;
    if common.json {
        output.line(&serde_json::json!({ "report": file.to_string_lossy() }).to_string())?;
    } else {
        output.line(&file.display().to_string())?;
    }
    output.flush()
}

/// Whether runs differ by more than chance from the first, in their translations of the validation set: those of the final
/// models, or of the best ones where training has not ended. Null for one run; a note where that cannot be told.
fn compared(runs: &[PathBuf], names: &[String]) -> Result<Value> {
    if runs.len() < 2 {
        return Ok(Value::Null);
    }
    let note = |why: String| Ok(json!({ "note": why }));
    let mut systems = Vec::new();
    let mut reference = None;
    for (run, name) in runs.iter().zip(names) {
        let (Some(lines), Some((which, of_run))) = (files::read_lines(run, files::REFERENCE), translations(run)) else {
            return note(format!("{name} has no translations of a validation set"));
        };
        if *reference.get_or_insert_with(|| lines.clone()) != lines {
            return note(format!("{name} was validated on another text than {}", names[0]));
        }
        systems.push((format!("{name} ({which})"), of_run));
    }
    let metrics: Vec<Box<dyn Metric>> = vec![Box::new(BleuOptions::default()), Box::new(ChrfOptions::default())];
    let references = Vec::from_iter(reference);
    let results = Results::new(&metrics, &systems, &references, Test::PairedBootstrap(SAMPLES), resample::SEED)?;
    Ok(json!({ "systems": results.json(), "lines": references[0].len() }))
}

/// A run's translations of the validation set, and by which of its models.
fn translations(run: &Path) -> Option<(&'static str, Vec<String>)> {
    let of = |name, which| files::read_lines(run, name).map(|lines| (which, lines));
    of(files::FINAL, "final").or_else(|| of(files::BEST, "best"))
}
