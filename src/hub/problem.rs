//! What can go wrong with the cache, one sentence each, and what to do.

use std::path::Path;

use super::Repo;
use crate::error::Error;
use crate::file::is_out_of_files;

/// Names of files listed in an error.
const NAMED: usize = 12;

/// The words by which [`is_no_revision`] recognises the error.
pub(super) const NO_REVISION: &str = "has no revision";

/// Whether the repository is there, and the revision is not.
pub(super) fn is_no_revision(error: &Error) -> bool {
    error.what().contains(NO_REVISION)
}

/// The disk has no room for a file.
pub(super) fn no_room(error: Error) -> Error {
    error.more_help("or set HF_HOME to a larger disk, then run it again")
}

/// The contents of a cached file do not match its name.
pub(super) fn changed(path: &Path, repo: &Repo, file: &str) -> Error {
    let what = format!("{file} of {repo} in the cache is not what was fetched: its checksum is different");
    Error::failure(what).at(path).help("run once without --offline: it is fetched again")
}

/// The repository does not list the file.
pub(super) fn no_file(repo: &Repo, file: &str, files: &[String]) -> Error {
    let named: Vec<&str> = files.iter().take(NAMED).map(String::as_str).collect();
    let more = files.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Error::failure(format!("there is no {file} in {repo}")).help(format!("its files: {}{more}", named.join(", ")))
}

/// The cache cannot be written.
pub(super) fn cannot_write(path: &Path, error: std::io::Error) -> Error {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let error = Error::io("write into the cache of the hub", path, error);
    if full {
        let what = if is_out_of_files(path) {
            "the file system can hold no more files (its inodes are used up): remove some"
        } else {
            "the disk is full: free some space"
        };
        error.help(format!("{what} or set HF_HOME to a larger disk, then run it again"))
    } else {
        error
    }
}
