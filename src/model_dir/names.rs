//! The names that the directory of a run or model has for itself.

use std::ffi::OsStr;

use crate::checkpoint::{BASE_FILE, BEST, CHECKPOINTS, CONFIG_FILE, LAST, MANIFEST_FILE, MODEL_FILE};
use crate::data::tokenizers;
use crate::report::{events, files, page};
use crate::train::log::LOG_FILE;

/// The files that a run has in its directory, besides its checkpoints and its lock; the configuration, which makes it a
/// run, last.
pub fn own_files() -> Vec<&'static str> {
    let files = [BASE_FILE, BEST, LAST, MANIFEST_FILE, MODEL_FILE, LOG_FILE, page::FILE];
    [&files[..], &files::ALL, tokenizers::FILES, &[CONFIG_FILE]].concat()
}

/// Whether the run itself uses this name in its directory.
pub fn is_own(name: &OsStr) -> bool {
    own_files().iter().chain(&[CHECKPOINTS, files::VALIDATION, events::DIRECTORY]).any(|own| name == *own)
}
