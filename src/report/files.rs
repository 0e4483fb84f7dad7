//! The files that a run directory holds for its report, besides the log.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::RunPath;
use crate::console::message;
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::file::{self, Folder};

/// [`crate::data::statistics::Statistics`] of the training text.
pub const CORPUS: &str = "corpus.json";
/// Sample translations of the last validation, explained.
pub const ATTENTION: &str = "attention.json";
/// The directory of the texts below, one sentence per line.
pub const VALIDATION: &str = "validation";
/// The references of the validation set.
pub const REFERENCE: &str = "validation/reference.txt";
/// Its translations by the best model so far.
pub const BEST: &str = "validation/best.txt";
/// Its translations by the final model.
pub const FINAL: &str = "validation/final.txt";

/// All files.
pub const ALL: [&str; 5] = [CORPUS, ATTENTION, REFERENCE, BEST, FINAL];

/// Replaces such a file atomically.
///
/// # Errors
/// It cannot be written.
pub fn replace<'a>(run: impl Into<RunPath<'a>>, name: &str, text: &str) -> Result<()> {
    let RunPath { path, links } = run.into();
    let replace = || {
        // The run directory may have been moved away: it is not made again.
        let folder = Folder::open(path)?;
        match name.split_once('/') {
            Some((within, name)) => folder.made_folder(within, links)?.replace_shared(name, text.as_bytes()),
            None => folder.replace_shared(name, text.as_bytes()),
        }
    };
    replace().map_err(|error| Error::io("write for the report", path.join(name), error))
}

/// Lines joined into the text of such a file.
pub fn lines<S: AsRef<str>>(lines: &[S]) -> String {
    lines.iter().flat_map(|line| [line.as_ref(), "\n"]).collect()
}

/// The lines of one; `None` if it is missing or cannot be read.
pub fn read_lines(run: &Path, name: &str) -> Option<Vec<String>> {
    let text = file::read_own_text(&run.join(name)).ok()?;
    Some(text.split_terminator('\n').map(str::to_owned).collect())
}

/// The content of one; null if it is missing, or cannot be read, which gives a message.
pub fn read_json(run: &Path, name: &str) -> Value {
    let file = run.join(name);
    if !file.exists() {
        return Value::Null;
    }
    let read = || -> std::result::Result<Value, String> {
        let text = file::read_own_text(&file).map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if value.is_object() { Ok(value) } else { Err("not what a run writes".to_owned()) }
    };
    read().unwrap_or_else(|why| {
        message(format_args!("warning: {} is left out of the report: {why}", shown_path(&file)));
        Value::Null
    })
}
