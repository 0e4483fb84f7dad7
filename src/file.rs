//! Atomic replacement of files, locks between processes, and bounded reads.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{StatVfs, statvfs};

use crate::signature::Signature;
pub(crate) use room::Room;

mod room;

/// Makes a write beyond a limit on file sizes fail with an error that names the file, instead of ending the process.
pub(crate) fn fail_at_size_limits() {
    // If this fails, the default behaviour stays.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Replaces a file: writes `temporary`, in the same directory, syncs it to disk, and renames it. Readers see the old file or
/// the new one, even after a crash.
pub(crate) fn replace(path: &Path, temporary: &Path, contents: &[u8]) -> io::Result<()> {
    fill(File::create(temporary)?, path, temporary, contents)
}

/// As [`replace`], where other processes may replace the same file at the same time: the last one wins.
pub(crate) fn replace_shared(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (file, temporary) = new_beside(path)?;
    fill(file, path, &temporary, contents)
}

fn fill(mut file: File, path: &Path, temporary: &Path, contents: &[u8]) -> io::Result<()> {
    let written = file.write_all(contents).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(temporary, path)).inspect_err(|_| {
        // An incomplete file would only take space.
        let _ = fs::remove_file(temporary);
    })
}

/// What the names of temporary files of other processes end with.
const NEW: &str = ".new";

/// An empty file that is to be renamed to `path`, which other processes may replace at the same time: it lies beside it, under
/// a name of this process. Removes those that killed processes left: a running one holds a lock on its own until it closes it.
pub(crate) fn new_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let beginning = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    remove_left_by_kills(path, &beginning);
    let temporary = path.with_file_name(format!("{beginning}{}{NEW}", std::process::id()));
    loop {
        // It may be that of a process of the same id, in another container.
        let file = File::options().write(true).create(true).truncate(false).open(&temporary)?;
        // Another process may have found it before it was locked, and removed it. Where files cannot be locked, nobody does.
        if file.lock().is_err() || lies_at(&file, &temporary) {
            file.set_len(0)?;
            return Ok((file, temporary));
        }
    }
}

/// Removes the files of [`new_beside`] that nobody has locked. Where files cannot be locked, they stay.
fn remove_left_by_kills(path: &Path, beginning: &str) {
    for entry in fs::read_dir(folder_of(path)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(beginning)?.strip_suffix(NEW));
        let is_ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
        if !is_ours {
            continue;
        }
        // Locked until it is gone: a process that has just made it waits, and sees that.
        if let Ok(file) = File::options().write(true).open(entry.path())
            && is_left(&file, &entry.path())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Locks an open file or directory that a killed process may have left at a path. False if a running one has it locked, or has
/// put another in its place.
pub(crate) fn is_left(file: &File, path: &Path) -> bool {
    file.try_lock().is_ok() && lies_at(file, path)
}

/// Whether an error may be gone a moment later, as those of a network file system.
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
                // SAFETY: one entry, which lives until the call returns. Whatever it says, the next attempt shows.
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

/// Some file systems, such as Btrfs, do not count files, and say that there can be 0.
fn has_only_bytes(files: u64, free_files: u64, free_blocks: u64) -> bool {
    files > 0 && free_files == 0 && free_blocks > 0
}

/// Opens a regular file. Anything else is an error: reading a pipe might never end.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Checked before opening, because opening a pipe can block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    fetched(bytes)
}

/// Reads a regular file as text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// The contents of a file, unless they only stand in its place: then the error says what was not fetched.
fn fetched(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    match Signature::of_placeholder(&bytes) {
        Some(signature) => Err(io::Error::new(io::ErrorKind::InvalidData, signature)),
        None => Ok(bytes),
    }
}

/// Fails if a file only stands in the place of one that was not fetched, such as a pointer of Git LFS.
pub(crate) fn refuse_placeholder(path: &Path) -> io::Result<()> {
    let mut head = Vec::new();
    open_regular(path)?.take(1 << 12).read_to_end(&mut head)?;
    fetched(head).map(drop)
}

/// Reads a regular file of at most `most` bytes: a hostile one might exhaust memory.
pub(crate) fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("larger than {most} bytes")));
    }
    fetched(bytes)
}

/// Text of others without the byte order mark that some editors put first, and that readers of JSON and YAML take for a mistake.
pub(crate) fn without_mark(mut text: Vec<u8>) -> Vec<u8> {
    if text.starts_with(b"\xEF\xBB\xBF") {
        text.drain(..3);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again() {
        let tried = |errors: &[i32]| {
            let count = std::cell::Cell::new(0);
            let result = patiently(|| {
                let number = count.replace(count.get() + 1);
                errors.get(number).map_or(Ok(number), |code| Err(io::Error::from_raw_os_error(*code)))
            });
            (result.ok(), count.get())
        };
        assert_eq!(tried(&[]), (Some(0), 1));
        assert_eq!(tried(&[libc::ESTALE, libc::EIO]), (Some(2), 3));
        assert_eq!(tried(&[libc::EIO; 4]), (None, 4));
        assert_eq!(tried(&[libc::ENOENT]), (None, 1));
    }

    #[test]
    fn what_stands_in_the_place_of_a_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.json");
        for (contents, help) in [
            ("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "git lfs pull"),
            ("<!DOCTYPE html>\n<html>", "fetch the file again"),
        ] {
            fs::write(&path, contents).unwrap();
            for error in [
                read(&path).unwrap_err(),
                read_text(&path).unwrap_err(),
                read_at_most(&path, 1000).unwrap_err(),
                refuse_placeholder(&path).unwrap_err(),
            ] {
                let error = crate::error::Error::io("read the model", &path, error).to_string();
                assert!(error.starts_with("cannot read the model: the file is a p"), "{error}");
                assert!(error.contains("model.json") && error.contains(help), "{error}");
            }
        }
        fs::write(&path, "{}").unwrap();
        refuse_placeholder(&path).unwrap();
    }

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
    fn what_killed_processes_left_is_removed_and_what_others_write_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let others = [".a.1.new", ".a.2.new", ".b.1.new", ".a.x.new"].map(at);
        others.iter().for_each(|path| fs::write(path, "partial").unwrap());
        let running = File::options().write(true).open(&others[1]).unwrap();
        running.lock().unwrap();
        let own = format!(".a.{}.new", std::process::id());
        // A process of the same id may have been killed, too.
        fs::write(at(&own), "longer than what follows").unwrap();
        replace_shared(&at("a"), b"one").unwrap();
        assert_eq!(fs::read(at("a")).unwrap(), b"one");
        assert_eq!(others.each_ref().map(|path| path.exists()), [false, true, true, true]);
        assert!(!at(&own).exists());
        drop(running);
        // Its own is locked while it is written.
        let (file, temporary) = new_beside(&at("a")).unwrap();
        assert_eq!((temporary.as_path(), others[1].exists()), (at(&own).as_path(), false));
        remove_left_by_kills(&at("a"), ".a.");
        assert!(temporary.exists());
        drop(file);
        remove_left_by_kills(&at("a"), ".a.");
        assert!(!temporary.exists());
    }

    #[test]
    fn a_file_system_without_inodes_is_not_one_without_bytes() {
        assert!(has_only_bytes(100, 0, 5));
        for (files, free_files, free_blocks) in [(100, 1, 5), (100, 0, 0), (0, 0, 5), (100, 1, 0)] {
            assert!(!has_only_bytes(files, free_files, free_blocks));
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(file_system(&folder.path().join("not/yet/there")).is_some_and(|it| it.f_blocks > 0));
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
