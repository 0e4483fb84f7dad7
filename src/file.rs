//! Atomic replacement of files, locks between processes, and bounded reads.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// Makes a write beyond a limit on file sizes fail with an error that names the file, instead of ending the process.
pub(crate) fn fail_at_size_limits() {
    // If this fails, the default behaviour stays.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Replaces a file: writes `temporary`, in the same directory, syncs it to disk, and renames it. Readers see the old file or
/// the new one, even after a crash.
pub(crate) fn replace(path: &Path, temporary: &Path, contents: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = File::create(temporary)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(temporary, path)
    };
    write().inspect_err(|_| {
        // An incomplete file would only take space.
        let _ = fs::remove_file(temporary);
    })
}

/// What came of an attempt to lock a file.
pub(crate) enum Attempt {
    /// It is locked until it is closed.
    Locked(File),
    /// Another process holds the lock.
    Held(File),
    /// The file system has no locks, as is the case for some network ones.
    NoLocks,
}

/// Tries to lock a file, which is created if it is missing.
pub(crate) fn try_lock(path: &Path) -> io::Result<Attempt> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    Ok(match file.try_lock() {
        Ok(()) => Attempt::Locked(file),
        Err(TryLockError::WouldBlock) => Attempt::Held(file),
        Err(TryLockError::Error(_)) => Attempt::NoLocks,
    })
}

/// Locks a file, which is created if it is missing. If another process holds the lock, calls `on_wait` and waits. The lock
/// lasts until the file is closed. Returns `None` if the file system has no locks.
pub(crate) fn lock_or_wait(path: &Path, on_wait: impl FnOnce()) -> io::Result<Option<File>> {
    match try_lock(path)? {
        Attempt::Locked(file) => Ok(Some(file)),
        Attempt::Held(file) => {
            on_wait();
            Ok(file.lock().ok().map(|()| file))
        }
        Attempt::NoLocks => Ok(None),
    }
}

/// Opens a regular file. Anything else is an error: reading a pipe might never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening a pipe can block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file as text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    io::read_to_string(open_regular(path)?)
}

/// Reads a regular file of at most `most` bytes: a hostile one might exhaust memory.
pub(crate) fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("larger than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_what_fails() {
        let folder = tempfile::tempdir().unwrap();
        let (file, temporary) = (folder.path().join("a"), folder.path().join(".a.new"));
        replace(&file, &temporary, b"one").unwrap();
        replace(&file, &temporary, b"two").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"two");
        let taken = folder.path().join("folder");
        fs::create_dir_all(taken.join("x")).unwrap();
        replace(&taken, &temporary, b"three").unwrap_err();
        assert!(!temporary.exists() && taken.join("x").exists());
    }

    #[test]
    fn reads_no_more_than_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"four").unwrap();
        assert_eq!(read_at_most(&path, 4).unwrap(), b"four");
        assert!(read_at_most(&path, 3).unwrap_err().to_string().contains("larger than 3 bytes"));
        assert!(read_at_most(folder.path(), 3).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn a_lock_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".lock");
        let (told, heard) = std::sync::mpsc::channel();
        let first = lock_or_wait(&path, || panic!("nobody has it")).unwrap().expect("a file system with locks");
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || lock_or_wait(&path, || told.send(()).unwrap()).unwrap().is_some()
        });
        heard.recv().unwrap();
        drop(first);
        assert!(waiting.join().unwrap());
    }
}
