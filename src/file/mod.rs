//! Files that others may have planted, left or locked: replacement as a whole, locks between processes, and bounded
//! reads.
//!
//! The user has not named the files in a directory of ours (of a run, a model, a cache). A [`Folder`], which follows no
//! links, writes, locks and removes them, and [`open_regular`], which does not wait for pipes, reads them.

mod folder;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, StatVfs, statvfs};

use crate::limits;
use crate::signature::Signature;
pub(crate) use folder::{Folder, Links, Staged};

/// Makes a write beyond a limit on file sizes fail with an error that names the file, instead of ending the process.
pub(crate) fn fail_at_size_limits() {
    // If this fails, the default behaviour stays.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Locks an open file or directory that a killed process may have left at a path. False if a running process has locked
/// or replaced it.
pub(crate) fn is_left(file: &File, path: &Path) -> bool {
    file.try_lock().is_ok() && lies_at(file, path)
}

/// Whether an error may be temporary, like those of a network file system.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| [libc::EIO, libc::ESTALE, libc::ETIMEDOUT, libc::ENFILE].contains(&code))
}

/// Tries again, some moments later, what failed for a reason that may pass.
pub(crate) fn patiently<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    for pause in [100, 1000, 5000] {
        match attempt() {
            Err(error) if may_pass(&error) => std::thread::sleep(Duration::from_millis(pause)),
            result => return result,
        }
    }
    attempt()
}

/// Does something with a descriptor, as often as it would block: some programs share pipes that do not.
pub(crate) fn waiting<T>(descriptor: i32, events: i16, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd { fd: descriptor, events, revents: 0 };
                // SAFETY: one entry, which lives until the call returns. Its result does not matter: the next attempt
                // shows it.
                unsafe { libc::poll(&raw mut poll, 1, -1) };
            }
            result => return result,
        }
    }
}

/// Whether an open file or directory is what lies at a path.
pub(crate) fn lies_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let both = file.metadata().and_then(|opened| Ok((identity(opened), identity(fs::metadata(path)?))));
    both.is_ok_and(|(opened, there)| opened == there)
}

/// The result of an attempt to lock a file.
pub(crate) enum Attempt {
    /// It is locked until it is closed.
    Locked(File),
    /// Another process holds the lock.
    Held(File),
    /// The file system has no locks, as is the case for some network ones.
    NoLocks,
}

/// Tries to lock a file, which is created if it is missing.
pub(crate) fn try_lock(folder: &Folder, name: &str) -> io::Result<Attempt> {
    let file = folder.lockable(name)?;
    Ok(match file.try_lock() {
        Ok(()) => Attempt::Locked(file),
        Err(TryLockError::WouldBlock) => Attempt::Held(file),
        Err(TryLockError::Error(_)) => Attempt::NoLocks,
    })
}

/// Locks a file, which is created if it is missing. If another process holds the lock, calls `on_wait` and waits. The
/// lock lasts until the file is closed. Returns `None` if the file system has no locks.
pub(crate) fn lock_or_wait(folder: &Folder, name: &str, on_wait: impl FnOnce()) -> io::Result<Option<File>> {
    match try_lock(folder, name)? {
        Attempt::Locked(file) => Ok(Some(file)),
        Attempt::Held(file) => {
            on_wait();
            Ok(file.lock().ok().map(|()| file))
        }
        Attempt::NoLocks => Ok(None),
    }
}

/// The folder that a file is in: `.` of a bare name.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The numbers of the file system of a path, which need not exist yet.
pub(crate) fn file_system(path: &Path) -> Option<StatVfs> {
    // Made absolute, because the last ancestor of a relative path is empty.
    let path = std::path::absolute(path).ok()?;
    statvfs(path.ancestors().find(|path| path.exists())?).ok()
}

/// Whether a file system that refuses a write as full has room for bytes, and only not for more files.
pub(crate) fn is_out_of_files(path: &Path) -> bool {
    file_system(path).is_some_and(|it| has_only_bytes(it.f_files, it.f_favail, it.f_bavail))
}

/// Some file systems, such as Btrfs, do not count files, and report a limit of 0.
fn has_only_bytes(files: u64, free_files: u64, free_blocks: u64) -> bool {
    files > 0 && free_files == 0 && free_blocks > 0
}

/// The error for a path that should be a file, but is a directory, a pipe, a socket or a device.
#[derive(Debug)]
struct NotRegular;

impl fmt::Display for NotRegular {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a regular file")
    }
}

impl std::error::Error for NotRegular {}

/// Whether something else than a regular file was found.
pub(crate) fn is_not_regular(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotRegular>())
}

/// The file, unless it is none: reading a pipe might never end.
fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other(NotRegular)) }
}

/// Opens a regular file. Anything else is an error, and is not waited for.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Check before opening: opening a device can have effects, and opening a pipe disturbs the process at its other
    // end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other(NotRegular));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    regular(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// A new file, not named by the user, that replaces any file or link of this name.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let (folder, name) = Folder::containing(path)?;
    folder.create(name)
}

/// Reads a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    fetched(bytes)
}

/// Reads a regular file as text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// As [`read_at_most`], but not through a link: of a file that is shown, in a directory that others may have made.
/// (Weights and tokenizers may be links, as in the hub's cache.)
pub(crate) fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let (folder, name) = Folder::containing(path)?;
    let mut bytes = Vec::new();
    folder.read(name)?.take(limits::WHOLE_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limits::WHOLE_FILE_BYTES {
        return Err(too_large(limits::WHOLE_FILE_BYTES));
    }
    fetched(bytes)
}

fn too_large(most: u64) -> io::Error {
    io::Error::other(format!("larger than {most} bytes"))
}

/// As [`read_text`], but not through a link, as [`read_own`].
pub(crate) fn read_own_text(path: &Path) -> io::Result<String> {
    text(read_own(path)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Fails if a huge file consists mostly of holes, as after a download that only allocated it: reading it would take as
/// long as if it had been written. (Some network file systems count no blocks.)
pub(crate) fn refuse_holes(file: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    const BLOCK: u64 = 512;
    let metadata = file.metadata()?;
    let (size, written) = (metadata.len(), metadata.blocks().saturating_mul(BLOCK));
    match size >= limits::SPARSE_BYTES && written > 0 && written < size / limits::MOST_SPARSE {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "most of its bytes were never written: fetch it again")),
        false => Ok(()),
    }
}

/// The contents of a file, unless they are only a placeholder: then the error names what was not fetched.
fn fetched(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    match Signature::placeholder(&bytes) {
        Some(signature) => Err(io::Error::new(io::ErrorKind::InvalidData, signature)),
        None => Ok(bytes),
    }
}

/// Fails if a file is only a placeholder for one that was not fetched, such as a pointer of Git LFS.
pub(crate) fn refuse_placeholder(file: &File) -> io::Result<()> {
    let mut head = vec![0; 1 << 12];
    let length = file.read_at(&mut head, 0)?;
    head.truncate(length);
    fetched(head).map(drop)
}

/// Reads a regular file of at most `most` bytes: a hostile one might exhaust memory.
pub(crate) fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_large(most));
    }
    fetched(bytes)
}

/// Text of others without the byte order mark that some editors put first, and that readers of JSON and YAML take for a
/// mistake.
pub(crate) fn without_mark(mut text: Vec<u8>) -> Vec<u8> {
    if text.starts_with(b"\xEF\xBB\xBF") {
        text.drain(..3);
    }
    text
}
