//! How much of the computer's memory, disk and time foreign input may take: every limit on it, in one place.
//!
//! Input that goes beyond a limit is refused with an error that names the file and the limit. `docs/security.md` says which
//! input is foreign and what is promised of it.

// Files and configurations.

/// Directories within one another that are removed as a whole: each is kept open meanwhile, and ours have one within.
pub(crate) const NESTED_FOLDERS: usize = 64;
/// Bytes of a configuration: the largest that is known has a few thousand corpora, in less than 1 MiB.
pub(crate) const CONFIGURATION_BYTES: u64 = 4 << 20;
/// Configurations that extend one another: people use two or three.
pub(crate) const EXTENDED_CONFIGURATIONS: usize = 16;
/// Files that a manifest may list: all are open at once, and ours list at most eight.
pub(crate) const MANIFEST_FILES: usize = 64;
/// Bytes of a note in a run or cache directory, such as who has locked it.
pub(crate) const NOTE_BYTES: u64 = 1 << 12;
