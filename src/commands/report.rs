//! `mt report`

use std::path::PathBuf;

use super::output::{Output, refuse_inputs};
use crate::cli::{Common, ReportArgs};
use crate::error::Result;
use crate::report::page::{self, Run};
use crate::train::log::LOG_FILE;

/// Writes the page of a run, or one that compares several.
pub fn run(args: &ReportArgs, common: &Common) -> Result<()> {
    let runs = args.runs.iter().map(|directory| Run::open(directory)).collect::<Result<Vec<_>>>()?;
    let file = match (&args.output, &args.runs[..]) {
        (Some(file), _) => file.clone(),
        (None, [run]) => run.join(page::FILE),
        (None, _) => PathBuf::from(page::FILE),
    };
    let logs: Vec<PathBuf> = args.runs.iter().map(|run| run.join(LOG_FILE)).collect();
    refuse_inputs(Some(&file), logs.iter().map(PathBuf::as_path))?;
    page::write(&file, &runs)?;
    let mut output = Output::open(None)?;
    if common.json {
        output.line(&serde_json::json!({ "report": file.to_string_lossy() }).to_string())?;
    } else {
        output.line(&file.display().to_string())?;
    }
    output.flush()
}
