//! The lock of a run directory, and who holds it.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::{self, Attempt, Folder};
use crate::limits::NOTE_BYTES;
use crate::model_dir::Tell;
use crate::notice::Notice;

/// Locked by the process that trains.
pub(super) const LOCK: &str = ".lock";

/// Held while a process trains in a run directory.
pub struct Lock {
    /// The locked file, if the file system supports locks.
    file: Option<File>,
    directory: Folder,
    /// The directory, if it was made to be locked, and those around it that were, too.
    pub(super) made: Vec<PathBuf>,
}

/// A start that failed before a run began leaves no directory behind.
impl Drop for Lock {
    fn drop(&mut self) {
        let made = std::mem::take(&mut self.made);
        if made.first().is_none_or(|run| self.check(run).is_err()) {
            return;
        }
        if self.directory.names().is_ok_and(|names| names.iter().all(|name| name == LOCK)) {
            // If it cannot be removed, it may be used for a run all the same.
            let _ = self.directory.remove_file(LOCK);
            made.iter().try_for_each(std::fs::remove_dir).unwrap_or_default();
        }
    }
}

impl Lock {
    /// Makes sure that this is still the directory that was locked (files written into another one of that name would
    /// not make a run), and that no other process trains there because the lock file was removed.
    pub fn check(&self, run: &Path) -> Result<()> {
        match file::patiently(|| std::fs::metadata(run)) {
            Ok(_) if self.directory.is_in_place() => {
                let is_other = |locked: &File| self.directory.has(LOCK) && !self.directory.holds(locked, LOCK);
                return if self.file.as_ref().is_some_and(is_other) { Err(held(&self.directory)) } else { Ok(()) };
            }
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Err(Error::io("look at the run directory", run, error));
            }
            _ => {}
        }
        let error = Error::failure("the run directory was moved or removed while training was under way").at(run);
        Err(error.help("move it back and give --resume: it goes on from its last checkpoint"))
    }
}

/// Locks the directory. The lock is released when the process ends, in whatever way; the file stays.
pub fn lock(run: &Path, tell: Tell<'_>) -> Result<Lock> {
    let directory = Folder::open(run).map_err(|e| Error::io("open the run directory", run, e))?;
    let write_error = |error| Error::io("write into the run directory", run, error);
    let file = match file::try_lock(&directory, LOCK).map_err(write_error)? {
        // It may be a file of somebody else's that was given this name, too.
        Attempt::Locked(file) if file.metadata().map_err(write_error)?.nlink() > 1 => Some(file),
        Attempt::Locked(mut file) => {
            // The machine, if the system tells: others may share the file system.
            let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let on = if machine.trim().is_empty() { "" } else { " on " };
            let who = format!("{}{on}{}", std::process::id(), machine.trim());
            file.set_len(0).and_then(|()| writeln!(file, "{who}")).map_err(write_error)?;
            Some(file)
        }
        Attempt::Held(_) => return Err(held(&directory)),
        Attempt::NoLocks => {
            tell(Notice::Warning(format!(
                "the file system of {} has no locks: make sure that no other process trains in this directory",
                run.display()
            )));
            None
        }
    };
    Ok(Lock { file, directory, made: Vec::new() })
}

/// The error with which training there would be refused, if another process trains there now.
pub fn refused_by_another(run: &Path) -> Option<Error> {
    let directory = Folder::open(run).ok()?;
    let is_held = |file: File| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    directory.read(LOCK).is_ok_and(is_held).then(|| held(&directory))
}

/// The error if another process has the lock.
fn held(run: &Folder) -> Error {
    let mut holder = String::new();
    // If it cannot be read, it is not told.
    let _ = run.read(LOCK).and_then(|file| file.take(NOTE_BYTES).read_to_string(&mut holder));
    // A process that has only just begun has not yet written its number.
    let who = match holder.trim() {
        "" => "another process".to_owned(),
        number => format!("process {number}"),
    };
    let error = Error::failure(format!("{who} is training in this run directory")).at(run.path());
    error.help("wait for it, stop it, or name another directory with --run-dir")
}
