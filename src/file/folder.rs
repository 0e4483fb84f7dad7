//! Changes the contents of a directory without following links that somebody may have planted there.
//!
//! Everything is done relative to the opened directory: that another comes to lie at its path changes nothing. Whether
//! the last part of a name is a link is decided by the system as it opens it, not by a look beforehand.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self as system, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{folder_of, is_left, lies_at, regular};
use crate::limits::NESTED_FOLDERS;

/// Whether a link to a directory is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Links {
    /// It is refused.
    #[default]
    Refused,
    /// The user allows it.
    Followed,
}

/// An opened directory.
pub(crate) struct Folder {
    directory: File,
    path: PathBuf,
}

impl Folder {
    /// The directory of this path, which the user has named: links on the way there are followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let directory = system::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        // Files can be made in a directory that cannot be listed, too.
        #[cfg(target_os = "linux")]
        let directory = directory.or_else(|error| match error {
            Errno::ACCESS => system::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()),
            _ => Err(error),
        });
        Ok(Self { directory: directory?.into(), path: path.to_path_buf() })
    }

    /// The folder that a file is in, and the file's name there.
    pub(crate) fn containing(file: &Path) -> io::Result<(Self, &OsStr)> {
        let name = file.file_name().ok_or_else(|| io::Error::other("this is not the name of a file"))?;
        Ok((Self::open(folder_of(file))?, name))
    }

    /// A directory in this one.
    pub(crate) fn folder(&self, name: impl AsRef<OsStr>, links: Links) -> io::Result<Self> {
        let name = name.as_ref();
        let follow = if links == Links::Followed { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow;
        let directory = system::openat(&self.directory, name, flags, Mode::empty());
        let directory = directory.map_err(|error| self.or_link(name, error))?;
        Ok(Self { directory: directory.into(), path: self.path.join(name) })
    }

    /// As [`Self::folder`]; it is made if it is missing.
    pub(crate) fn made_folder(&self, name: impl AsRef<OsStr>, links: Links) -> io::Result<Self> {
        match self.make_folder(name.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.folder(name, links),
        }
    }

    /// Makes a directory, of a name that is not taken.
    pub(crate) fn make_folder(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(system::mkdirat(&self.directory, name.as_ref(), Mode::from_raw_mode(0o777))?)
    }

    /// The folder below this one, each part of whose path is made if it is missing and is not a link.
    pub(crate) fn made_below(self, path: &Path) -> io::Result<Self> {
        path.components().try_fold(self, |folder, part| match part {
            Component::Normal(part) => folder.made_folder(part, Links::Refused),
            _ => Err(io::Error::other("this is not the name of a folder")),
        })
    }

    /// The path by which it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is what lies at its path.
    pub(crate) fn is_in_place(&self) -> bool {
        lies_at(&self.directory, &self.path)
    }

    /// The names of its entries.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        names(&self.directory)
    }

    /// Makes names that were added to it, and changed, outlast a crash.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    /// Opens a regular file for reading.
    pub(crate) fn read(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.opened(name.as_ref(), OFlags::RDONLY)
    }

    /// Opens a regular file for reading and appending.
    pub(crate) fn append(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        only_name(self.opened(name.as_ref(), OFlags::RDWR | OFlags::APPEND)?)
    }

    /// Opens a regular file for appending, and makes it if it is missing.
    #[cfg_attr(not(feature = "hub"), allow(dead_code))]
    pub(crate) fn append_or_make(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        only_name(self.opened(name.as_ref(), OFlags::RDWR | OFlags::APPEND | OFlags::CREATE)?)
    }

    /// Opens a regular file for locking and writing, and makes it if it is missing.
    pub(crate) fn lockable(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.opened(name.as_ref(), OFlags::RDWR | OFlags::CREATE)
    }

    fn opened(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        // A pipe must not be waited for.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = system::openat(&self.directory, name, flags, Mode::from_raw_mode(0o666));
        regular(opened.map_err(|error| self.or_link(name, error))?.into())
    }

    /// A new file that replaces any other file or link of this name, and keeps the permissions of a replaced file.
    pub(crate) fn create(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = name.as_ref();
        let mode = self.mode(name);
        self.remove_file(name)?;
        self.create_new(name, mode)
    }

    /// A new file with an unused name. Without `mode` it gets the permissions of any new file.
    fn create_new(&self, name: &OsStr, mode: Option<Mode>) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = system::openat(&self.directory, name, flags, mode.unwrap_or(Mode::from_raw_mode(0o666)))?;
        if let Some(mode) = mode {
            // Where that is impossible it has fewer permissions, not more.
            let _ = system::fchmod(&file, mode);
        }
        Ok(file.into())
    }

    /// The permissions of a regular file.
    fn mode(&self, name: &OsStr) -> Option<Mode> {
        let stat = system::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then(|| Mode::from_raw_mode(stat.st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO))
    }

    /// Whether anything has this name.
    pub(crate) fn has(&self, name: impl AsRef<OsStr>) -> bool {
        system::statat(&self.directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether a link has this name.
    pub(crate) fn is_link(&self, name: impl AsRef<OsStr>) -> bool {
        let stat = system::statat(&self.directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Renames an entry; a file with the new name is replaced.
    pub(crate) fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(system::renameat(&self.directory, from.as_ref(), &self.directory, to.as_ref())?)
    }

    /// Makes a link, of a name that is not taken.
    pub(crate) fn link(&self, to: impl AsRef<Path>, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(system::symlinkat(to.as_ref(), &self.directory, name.as_ref())?)
    }

    /// Removes a file or a link; one that is not there is fine.
    pub(crate) fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        missing_is_fine(system::unlinkat(&self.directory, name.as_ref(), AtFlags::empty()))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(system::unlinkat(&self.directory, name.as_ref(), AtFlags::REMOVEDIR)?)
    }

    /// Removes a file, a link or a whole directory, without following links. A missing one is no error.
    pub(crate) fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        remove_at(&self.directory, name.as_ref(), NESTED_FOLDERS)
    }

    /// A file that gets this name when it is whole. Until then its name is `temporary`, which only this process uses:
    /// an existing file of that name was left by a killed process.
    pub(crate) fn stage(&self, name: &str, temporary: &str) -> io::Result<Staged> {
        self.remove_file(temporary)?;
        let file = self.create_new(OsStr::new(temporary), self.mode(OsStr::new(name)))?;
        Ok(Staged {
            folder: self.try_clone()?,
            file,
            temporary: temporary.to_owned(),
            name: name.into(),
            is_persisted: false,
        })
    }

    /// As [`Self::stage`], where other processes may make the same file at the same time: the last one wins. Removes
    /// files of this kind that killed processes left: a running one holds a lock on its own until it closes it.
    pub(crate) fn stage_shared(&self, name: impl AsRef<OsStr>) -> io::Result<Staged> {
        let name = name.as_ref();
        let beginning = format!(".{}.", name.to_string_lossy());
        self.remove_left_by_kills(&beginning);
        let mode = self.mode(name);
        // A process in another container may have the same id.
        for other in 0..MOST_OTHERS {
            let temporary = format!("{beginning}{}{NEW}", std::process::id() + (other << BITS_OF_IDS));
            let file = match self.create_new(OsStr::new(&temporary), mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // Another process may have found it before it was locked, and removed it. Where files cannot be locked,
            // nobody does.
            if file.lock().is_err() || self.holds(&file, &temporary) {
                return Ok(Staged {
                    folder: self.try_clone()?,
                    file,
                    temporary,
                    name: name.into(),
                    is_persisted: false,
                });
            }
        }
        Err(io::Error::other("too many files of other processes lie beside it, with names that begin with a dot"))
    }

    /// Replaces a file, which nobody else replaces at the same time. Readers see the old file or the new one, even
    /// after a crash. Returns the new one.
    pub(crate) fn replace(&self, name: &str, temporary: &str, contents: &[u8]) -> io::Result<File> {
        self.stage(name, temporary)?.filled(contents)?.persist()
    }

    /// As [`Self::replace`], where other processes may replace the same file at the same time: the last one wins.
    pub(crate) fn replace_shared(&self, name: impl AsRef<OsStr>, contents: &[u8]) -> io::Result<()> {
        self.stage_shared(name)?.filled(contents)?.persist().map(drop)
    }

    /// Removes the files of [`Self::stage_shared`] that nobody has locked. Where files cannot be locked, they stay.
    pub(super) fn remove_left_by_kills(&self, beginning: &str) {
        for name in self.names().unwrap_or_default() {
            let number = name.to_str().and_then(|name| name.strip_prefix(beginning)?.strip_suffix(NEW));
            let is_ours = number.is_some_and(|number| number.parse::<u32>().is_ok());
            // Locked until it is gone: a process that has just made it waits, and sees that.
            if is_ours
                && let Ok(file) = self.opened(&name, OFlags::RDWR)
                && file.try_lock().is_ok()
                && self.holds(&file, &name)
            {
                let _ = self.remove_file(&name);
            }
        }
    }

    /// Whether the file of this name is the open one.
    pub(crate) fn holds(&self, file: &File, name: impl AsRef<OsStr>) -> bool {
        let there = system::statat(&self.directory, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
        let both = system::fstat(file).and_then(|file| Ok((file, there?)));
        both.is_ok_and(|(file, there)| (file.st_dev, file.st_ino) == (there.st_dev, there.st_ino))
    }

    /// Locks it, so that nobody takes it for a leftover. Returns whether it is still the file at its path.
    pub(crate) fn is_left(&self) -> bool {
        is_left(&self.directory, &self.path)
    }

    /// Locks it, unless the file system has no such locks.
    pub(crate) fn lock(&self) -> bool {
        self.directory.lock().is_ok()
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, path: self.path.clone() })
    }

    /// The error, with a clear message if a link has this name: the system's message is about directories or too many
    /// links.
    fn or_link(&self, name: &OsStr, error: Errno) -> io::Error {
        if [Errno::LOOP, Errno::NOTDIR, Errno::MLINK].contains(&error) && self.is_link(name) {
            let what = format!("{} is a link, which is not followed here", self.path.join(name).display());
            return io::Error::other(what);
        }
        error.into()
    }
}

/// The end of the names of temporary files of other processes.
const NEW: &str = ".new";
/// Ids of processes are below 2²² on Linux, and smaller elsewhere.
const BITS_OF_IDS: u32 = 22;
/// Processes of one id, in several containers.
const MOST_OTHERS: u32 = 100;

/// A file that does not have its name yet. Dropping it removes it.
pub(crate) struct Staged {
    folder: Folder,
    file: File,
    temporary: String,
    name: OsString,
    is_persisted: bool,
}

impl Staged {
    /// The file to write into.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Writes all of it, and syncs it to disk.
    pub(crate) fn filled(mut self, contents: &[u8]) -> io::Result<Self> {
        self.file.write_all(contents)?;
        self.file.sync_all()?;
        Ok(self)
    }

    /// Gives it its final name, and so replaces an existing file. Sync it first.
    pub(crate) fn persist(mut self) -> io::Result<File> {
        self.folder.rename(&self.temporary, &self.name)?;
        self.is_persisted = true;
        self.file.try_clone()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_persisted {
            // An incomplete file would only take space. What led here matters more than that it stays.
            let _ = self.folder.remove_file(&self.temporary);
        }
    }
}

/// The file, unless it has a second name elsewhere, where appended data would show, too.
fn only_name(file: File) -> io::Result<File> {
    match file.metadata()?.nlink() {
        0 | 1 => Ok(file),
        _ => Err(io::Error::other(
            "the file has another name, too (a hard link), and may be somebody else's: remove this one",
        )),
    }
}

fn missing_is_fine(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// The names of the entries of an opened directory.
fn names(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_os_string());
        }
    }
    Ok(names)
}

/// Removes an entry of an opened directory; directories only to this depth, since each stays open meanwhile.
fn remove_at(parent: &File, name: &OsStr, depth: usize) -> io::Result<()> {
    let refused = match system::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // A directory: the errors of Linux and of other systems.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => error,
        Err(error) => return Err(error.into()),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory: File = match system::openat(parent, name, flags, Mode::empty()) {
        Ok(directory) => directory.into(),
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(refused.into()),
        Err(error) => return Err(error.into()),
    };
    let Some(depth) = depth.checked_sub(1) else {
        return Err(io::Error::other("directories lie within one another too deep to be removed"));
    };
    names(&directory)?.iter().try_for_each(|name| remove_at(&directory, name, depth))?;
    missing_is_fine(system::unlinkat(parent, name, AtFlags::REMOVEDIR))
}
