//! Files that are whole or absent after a crash, and bounded reads.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::manifest::FileEntry;
use crate::error::{Error, Result};
use crate::escape;
use crate::file::{Folder, Links, file_system, folder_of, is_out_of_files, open_regular};

const BUFFER_BYTES: usize = 128 << 10;

/// Held while files of a run or model directory are replaced: a save in another thread would remove the temporary
/// files.
static REPLACING: Mutex<()> = Mutex::new(());

/// A new file, hashed as it is written.
pub(super) struct HashingFile {
    file: File,
    path: PathBuf,
    hash: Sha256,
    size: u64,
}

impl HashingFile {
    /// A new file, which replaces any other file or link of this name.
    pub(super) fn create(folder: &Folder, name: &str) -> Result<Self> {
        let path = folder.path().join(name);
        let file = folder.create(name).map_err(|error| write_error(&path, error))?;
        Ok(Self::new(file, path))
    }

    /// An empty file; errors call it `path`.
    pub(super) fn new(file: File, path: PathBuf) -> Self {
        Self { file, path, hash: Sha256::new(), size: 0 }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| write_error(&self.path, error))?;
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Syncs the file; its manifest entry is called `name`.
    pub(super) fn finish(self, name: &str) -> Result<FileEntry> {
        // Some file systems report a full disk only here.
        self.file.sync_all().map_err(|error| write_error(&self.path, error))?;
        Ok(FileEntry { name: name.to_owned(), size: self.size, sha256: hex(self.hash) })
    }
}

/// The digest in lower-case hexadecimal.
pub(super) fn hex(hash: Sha256) -> String {
    escape::hex(&hash.finalize())
}

/// Size and digest of an existing file, which is also synced.
pub(super) fn synced_entry(directory: &Path, name: &str) -> Result<FileEntry> {
    let path = directory.join(name);
    let read_error = |error| Error::io("read a file of the model", &path, error);
    let file = open_regular(&path).map_err(read_error)?;
    let (size, sha256) = digest(&file).map_err(read_error)?;
    file.sync_all().map_err(read_error)?;
    Ok(FileEntry { name: name.to_owned(), size, sha256 })
}

/// Number of bytes left in `file` and their SHA-256.
pub(super) fn digest(mut file: impl Read) -> std::io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((size, hex(hash))),
            Ok(n) => {
                hash.update(&buffer[..n]);
                size += n as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Keeps [`remove_temporaries`] away while the temporary files of a run or model directory are in use.
pub(super) fn replacing() -> MutexGuard<'static, ()> {
    // It guards no data, so a panic elsewhere left nothing half done.
    REPLACING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a directory that the user named.
pub(super) fn folder(path: &Path) -> Result<Folder> {
    Folder::open(path).map_err(|error| write_error(path, error))
}

/// The temporary name of a file of a run or model directory during writing.
pub(super) fn temporary_name(name: &str) -> String {
    format!(".{name}.tmp")
}

/// Removes what an earlier crash left of these files. A file that cannot be removed is no reason to stop.
pub(super) fn remove_temporaries(directory: &Folder, names: &[&str]) {
    let _guard = replacing();
    for name in names {
        let _ = directory.remove_file(temporary_name(name));
    }
}

/// Syncs a directory, so that new and renamed entries survive a crash.
pub(super) fn sync_directory(directory: &Folder) -> Result<()> {
    unless_unsupported(directory.sync()).map_err(|error| write_error(directory.path(), error))
}

/// Ignores the errors of file systems that cannot sync a directory (some shared folders, CIFS and FUSE): nothing can be
/// done about them, and they are no reason to end a run. PostgreSQL ignores such errors, too. Others, such as that of a
/// failing disk, stay errors.
pub(super) fn unless_unsupported(synced: std::io::Result<()>) -> std::io::Result<()> {
    if let Err(error) = &synced
        && let Some(libc::EINVAL | libc::EBADF | libc::ENOTSUP | libc::ENOSYS) = error.raw_os_error()
    {
        return Ok(());
    }
    synced
}

/// Renames, replacing a file of that name.
pub(super) fn rename(folder: &Folder, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Result<()> {
    folder.rename(from, &to).map_err(|error| write_error(&folder.path().join(to.as_ref()), error))
}

/// A temporary file or directory, removed unless it got its final name.
pub(super) struct Scratch<'a> {
    folder: &'a Folder,
    name: String,
    in_place: bool,
}

impl<'a> Scratch<'a> {
    pub(super) fn new(folder: &'a Folder, name: String) -> Self {
        Self { folder, name, in_place: false }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn rename_to(mut self, to: impl AsRef<OsStr>) -> Result<()> {
        rename(self.folder, &self.name, to)?;
        self.in_place = true;
        Ok(())
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if !self.in_place {
            // The error that led here matters more than a failed removal; the next save tries again.
            let _ = self.folder.remove(&self.name);
        }
    }
}

/// Makes a directory whole or not at all: `fill` writes into a temporary sibling, which then gets its name. If several
/// processes make the same one, the first to finish wins.
///
/// # Errors
/// It exists already, or a file cannot be written.
pub fn whole_directory(out: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    refuse_existing(out)?;
    let own_name = out.file_name().ok_or_else(|| Error::usage("this is not the name of a directory").at(out))?;
    let name = own_name.to_string_lossy();
    let parent = folder_of(out);
    fs::create_dir_all(parent).map_err(|error| write_error(parent, error))?;
    let parent = folder(parent)?;
    remove_left_by_kills(&parent, &name);
    let temporary = temporary_name(&format!("{name}.{}", std::process::id()));
    // A process in another container may have the same id.
    let made = locked_directory(&parent, &temporary).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            let temporary = parent.path().join(&temporary);
            let error = Error::failure("another process is making this directory").at(out);
            error.help(format!("wait for it; if there is no such process, remove {}", temporary.display()))
        }
        // The user does not know the temporary name.
        _ => write_error(out, error),
    });
    let directory = made?;
    let scratch = Scratch::new(&parent, temporary);
    fill(directory.path())?;
    sync_directory(&directory)?;
    // rename() replaces a directory only if it is empty.
    scratch.rename_to(own_name).map_err(|error| if out.exists() { exists(out) } else { error })?;
    drop(directory);
    sync_directory(&parent)
}

/// Refuses an output directory that exists.
pub fn refuse_existing(out: &Path) -> Result<()> {
    // A dangling link counts as existing.
    if fs::symlink_metadata(out).is_ok() { Err(exists(out)) } else { Ok(()) }
}

fn exists(out: &Path) -> Error {
    let what = if out.is_dir() { "the output directory already exists" } else { "there is a file of this name" };
    Error::usage(what).at(out).help("name a new directory with --out")
}

/// Makes a directory, and locks it against [`remove_left_by_kills`]; not where directories cannot be locked.
fn locked_directory(parent: &Folder, name: &str) -> std::io::Result<Folder> {
    loop {
        parent.make_folder(name)?;
        // Another process may have found it before it was locked, and be removing it: waits until it is gone.
        match parent.folder(name, Links::Refused) {
            Ok(made) if !made.lock() || made.is_in_place() => return Ok(made),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
}

/// Removes the temporary directories of `name` that killed processes left: a running process holds a lock on its own.
/// Where directories cannot be locked, they stay.
pub(super) fn remove_left_by_kills(parent: &Folder, name: &str) {
    for file_name in parent.names().unwrap_or_default() {
        let number = file_name.to_str().and_then(|file| file.strip_prefix(&format!(".{name}."))?.strip_suffix(".tmp"));
        let is_ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
        // Locked until it is gone: a process that has just made it waits, and sees that.
        if is_ours
            && let Ok(directory) = parent.folder(&file_name, Links::Refused)
            && directory.is_left()
        {
            let _ = parent.remove(&file_name);
        }
    }
}

/// A write error; for a full disk it has the free space.
pub(crate) fn write_error(path: &Path, error: std::io::Error) -> Error {
    let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let error = Error::io("write", path, error);
    match file_system(path).filter(|_| is_full) {
        Some(_) if is_out_of_files(path) => error.context("no more files can be created"),
        Some(disk) => {
            let [free, size] = [disk.f_bavail, disk.f_blocks].map(|blocks| blocks * disk.f_frsize);
            error.context(format_args!("{free} bytes of {size} are free"))
        }
        None => error,
    }
}
