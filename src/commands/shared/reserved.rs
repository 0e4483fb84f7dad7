//! Names in the directories of runs and models that are theirs: no output may take one, whatever path leads there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::output::destination;
use crate::checkpoint::{self, CHECKPOINTS, CONFIG_FILE, MANIFEST_FILE, MODEL_FILE};
use crate::config;
use crate::error::{Error, Result};
use crate::model_dir::names::is_own;
use crate::train::log::LOG_FILE;

/// Refuses an output, file or directory, with a path that belongs to a run or model.
pub(crate) fn refuse(output: &Path) -> Result<()> {
    let whole = whole(&destination(output));
    if !whole.ancestors().any(|path| checkpoint::run_and_step(path).is_some() || is_of_ours(path)) {
        return Ok(());
    }
    let error = Error::usage("the output would take the place of what belongs to a run or model").at(output);
    Err(error
        .help("write to another file: in the directory of a run or model, names that it does not use itself are free"))
}

/// Like [`refuse`], for a new directory; also refuses an existing one.
pub(crate) fn refuse_taken(directory: &Path) -> Result<()> {
    checkpoint::refuse_existing(directory)?;
    refuse(directory)
}

/// The path without links, as far as it exists.
pub(crate) fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let known = path.ancestors().find_map(|there| Some((there, std::fs::canonicalize(there).ok()?)));
    known.map_or(path.clone(), |(there, whole)| match path.strip_prefix(there) {
        Ok(rest) if !rest.as_os_str().is_empty() => whole.join(rest),
        _ => whole,
    })
}

/// Whether the run or model around a path uses that path itself.
fn is_of_ours(path: &Path) -> bool {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return false };
    is_reserved(name) && is_run_or_model(directory)
}

/// Names that begin with a dot belong to unfinished files.
fn is_reserved(name: &OsStr) -> bool {
    is_own(name) || name.to_string_lossy().starts_with('.')
}

fn is_run_or_model(directory: &Path) -> bool {
    let has = |name: &str| directory.join(name).exists();
    config::is_resolved(&directory.join(CONFIG_FILE))
        || (has(MODEL_FILE) && has(MANIFEST_FILE))
        || (has(LOG_FILE) && has(CHECKPOINTS))
}
