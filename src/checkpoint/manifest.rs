//! `manifest.json`: which files belong to a checkpoint or model, their sizes and digests, and its own digest.
//!
//! ```json
//! {
//!   "format": 1,
//!   "written_by": "mt 0.1.0",
//!   "files": [{ "name": "model.safetensors", "size": 1234, "sha256": "…" }],
//!   "run_files": [{ "name": "tokenizer.json", "size": 1234, "sha256": "…" }],
//!   "digest": "…"
//! }
//! ```
//!
//! `run_files` is in checkpoints only, for files at the top of their run. `made_from` (not shown) is the origin of a
//! model that training did not make. `digest` is the SHA-256 of every byte before its own value, and the bytes after it
//! are fixed. So any changed byte is found.

use std::fs::File;
use std::io::{ErrorKind, Seek};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{MANIFEST_FILE, MODEL_FILE, disk, run_and_step};
use crate::error::{Error, Result, check_directory};
use crate::escape::quoted;
use crate::{file, limits};

/// The version of the file format, which covers the manifest and the files it lists.
pub const FORMAT_VERSION: u32 = 1;

const DIGEST_KEY: &str = ",\n  \"digest\": \"";
const END: &str = "\"\n}\n";
const DIGEST_CHARACTERS: usize = 64;
/// What to do if a checkpoint is no longer there.
pub(super) const REMOVED: &str = "training has probably just removed it (`train.keep`): try again";

/// A manifest, read from a file or to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT_VERSION`] of the writer.
    pub format: u32,
    /// The writing program and its version.
    pub written_by: String,
    /// The files that belong together.
    pub files: Vec<FileEntry>,
    /// In a checkpoint: the files at the top of its run that it needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_files: Vec<FileEntry>,
    /// In a model: its origin, if that is not training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_from: Option<String>,
}

/// One file of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name, beside the manifest.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in lower-case hexadecimal.
    pub sha256: String,
}

/// Only the version: all that can be expected of another format.
#[derive(Deserialize)]
struct Version {
    format: u64,
}

impl Manifest {
    /// A manifest of this program's format.
    pub(super) fn new(files: Vec<FileEntry>, run_files: Vec<FileEntry>) -> Self {
        let written_by = format!("mt {}", env!("CARGO_PKG_VERSION"));
        Self { format: FORMAT_VERSION, written_by, files, run_files, made_from: None }
    }

    /// The text of the file, its digest included.
    pub(super) fn render(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::failure(format!("cannot write the manifest: {error}")))?;
        let mut text = json.trim_end_matches("\n}").to_owned() + DIGEST_KEY;
        let digest = disk::hex(Sha256::new().chain_update(&text));
        text.push_str(&digest);
        text.push_str(END);
        Ok(text)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let damaged = |why: String| Error::failure(format!("the manifest is damaged: {why}")).at(path);
        let intact = carries_its_digest(bytes);
        let version: Version = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if version.format != u64::from(FORMAT_VERSION) {
            return Err(other_version(version.format, intact).at(path));
        }
        if !intact {
            return Err(damaged("its digest does not match".into()));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        match manifest.files.len() + manifest.run_files.len() {
            files if files > limits::MANIFEST_FILES => Err(damaged(format!("it lists {files} files"))),
            _ => Ok(manifest),
        }
    }
}

fn carries_its_digest(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.strip_suffix(END.as_bytes()) else { return false };
    let Some((covered, digest)) = bytes.split_last_chunk::<DIGEST_CHARACTERS>() else { return false };
    covered.ends_with(DIGEST_KEY.as_bytes()) && disk::hex(Sha256::new().chain_update(covered)).as_bytes() == digest
}

fn other_version(format: u64, intact: bool) -> Error {
    let advice = if format > u64::from(FORMAT_VERSION) { "update mt" } else { "use the mt that wrote it" };
    let error =
        Error::failure(format!("written in format {format}, but this mt reads format {FORMAT_VERSION}; {advice}"));
    if intact {
        error.unsupported_version()
    } else {
        error.help("or the manifest is damaged: its digest does not match")
    }
}

/// Checks `manifest.json` in `dir` (format version, its own digest) and the size and SHA-256 of every file it lists.
///
/// # Errors
/// There is no manifest ("not complete"), it is of another format version, or anything is damaged: all damaged files
/// are named at once.
pub fn verify(dir: &Path) -> Result<Manifest> {
    verify_holding(dir, &[])
}

/// As [`verify`]; the manifest must list the `required` files.
pub(super) fn verify_holding(dir: &Path, required: &[&str]) -> Result<Manifest> {
    Opened::open(dir)?.verify(required).map(|verified| verified.manifest)
}

/// A checkpoint or model whose files are open: they can be read to the end, even if training removes them meanwhile.
pub(super) struct Opened {
    dir: PathBuf,
    manifest: Manifest,
    /// The files that the manifest lists, or the errors of opening them.
    files: Vec<(PathBuf, FileEntry, Result<File>)>,
}

/// The opened files, after a successful verification.
pub(super) struct Verified {
    pub manifest: Manifest,
    /// Its `model.safetensors`, if it is listed.
    pub model: Option<File>,
}

impl Opened {
    /// Opens all files of the checkpoint or model.
    ///
    /// # Errors
    /// The manifest cannot be read, or the checkpoint is gone.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        Self::open_among(dir, |_| true).map_err(|error| or_gone(dir, error))
    }

    /// Opens the weights alone.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) fn open_weights(dir: &Path) -> Result<Self> {
        Self::open_among(dir, |entry| entry.name == MODEL_FILE).map_err(|error| or_gone(dir, error))
    }

    fn open_among(dir: &Path, is_wanted: impl Fn(&FileEntry) -> bool) -> Result<Self> {
        let manifest = read(dir)?;
        let at_manifest = dir.join(MANIFEST_FILE);
        let mut files = Vec::new();
        let mut open = |dir: &Path, entries: &[FileEntry]| {
            for entry in entries.iter().filter(|entry| is_wanted(entry)) {
                files.push((dir.join(&entry.name), entry.clone(), open_file(dir, entry, &at_manifest)));
            }
        };
        open(dir, &manifest.files);
        if let Some(run) = dir.parent().and_then(Path::parent) {
            open(run, &manifest.run_files);
        }
        Ok(Self { dir: dir.to_path_buf(), manifest, files })
    }

    /// Compares all of them with the manifest, which must list the `required` ones.
    pub(super) fn verify(self, required: &[&str]) -> Result<Verified> {
        let Self { dir, manifest, files } = self;
        let (mut problems, mut model) = (Vec::new(), None);
        for (path, entry, file) in files {
            match file.and_then(|file| check_file(&path, &entry, &file).map(|()| file)) {
                Ok(file) if path == dir.join(MODEL_FILE) => model = Some(file),
                Ok(_) => {}
                Err(error) => problems.push(error),
            }
        }
        for name in required {
            if !manifest.files.iter().any(|entry| entry.name == *name) {
                let path = dir.join(MANIFEST_FILE);
                problems.push(Error::failure(format!("the manifest does not list {name}")).at(&path));
            }
        }
        match problems.is_empty() {
            true => Ok(Verified { manifest, model }),
            false => Err(or_gone(&dir, Error::many(problems))),
        }
    }
}

/// Whether a checkpoint could not be read because training has removed it.
pub fn is_gone(error: &Error) -> bool {
    error.helps() == Some(REMOVED)
}

/// The error of reading a checkpoint; another one if it is no longer there.
pub(super) fn or_gone(dir: &Path, error: Error) -> Error {
    let is_gone = || std::fs::metadata(dir).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if run_and_step(dir).is_none() || !is_gone() {
        return error;
    }
    Error::failure("the checkpoint is gone").at(dir).help(REMOVED)
}

/// Checks the files of these names that `manifest.json` in `dir` lists, and no others. Returns an error for each that
/// is damaged.
///
/// # Errors
/// The manifest cannot be read.
pub fn damaged_among(dir: &Path, names: &[&str]) -> Result<Vec<Error>> {
    let opened = Opened::open_among(dir, |entry| names.contains(&entry.name.as_str()))?;
    let check = |(path, entry, file): (PathBuf, FileEntry, Result<File>)| {
        file.and_then(|file| check_file(&path, &entry, &file)).err()
    };
    Ok(opened.files.into_iter().filter_map(check).collect())
}

pub(super) fn read(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST_FILE);
    if let Err(error) = file::patiently(|| std::fs::metadata(&path)) {
        return Err(if error.kind() == ErrorKind::NotFound {
            not_complete(dir)
        } else {
            Error::io("read the manifest", &path, error)
        });
    }
    let bytes = file::patiently(|| file::read_at_most(&path, limits::MANIFEST_BYTES));
    let bytes = bytes.map_err(|error| Error::io("read the manifest", &path, error))?;
    Manifest::parse(&bytes, &path)
}

fn not_complete(dir: &Path) -> Error {
    if dir.is_dir() {
        Error::failure(format!("not complete: there is no {MANIFEST_FILE}"))
            .at(dir)
            .help("writing it was interrupted, or is still going on; a copy of a model needs the manifest too")
    } else {
        Error::failure("there is no such directory").at(dir).help(check_directory(dir))
    }
}

/// Opens a file that the `manifest` in `dir` lists.
fn open_file(dir: &Path, entry: &FileEntry, manifest: &Path) -> Result<File> {
    let name = &entry.name;
    if !is_plain(name) {
        return Err(
            Error::failure(format!("the manifest lists {}, which is not a file beside it", quoted(name))).at(manifest)
        );
    }
    let path = dir.join(name);
    file::patiently(|| file::open_regular(&path)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::failure(format!("{name} is missing")).at(&path),
        _ if file::is_not_regular(&error) => damaged(name, "it is not a regular file").at(&path),
        _ => Error::io("read a file of the model", &path, error),
    })
}

fn check_file(path: &Path, entry: &FileEntry, file: &File) -> Result<()> {
    let FileEntry { name, size, sha256 } = entry;
    let read_error = |error| Error::io("read a file of the model", path, error);
    let length = file.metadata().map_err(read_error)?.len();
    if length != *size {
        file::refuse_placeholder(file).map_err(read_error)?;
        return Err(damaged(name, &format!("it has {length} bytes, but its manifest says {size}")).at(path));
    }
    file::refuse_holes(file).map_err(read_error)?;
    let found = file::patiently(|| {
        let mut file = file;
        file.rewind()?;
        disk::digest(file)
    });
    if found.map_err(read_error)? != (*size, sha256.clone()) {
        return Err(damaged(name, "its SHA-256 differs from the manifest's").at(path));
    }
    Ok(())
}

fn damaged(name: &str, why: &str) -> Error {
    Error::failure(format!("{name} is damaged: {why}"))
}

/// Whether `name` can only mean a file in the directory itself.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)) && !name.contains(['/', '\\'])
}
