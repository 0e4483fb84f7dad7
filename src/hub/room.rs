//! How much of foreign contents a file system takes: what strangers send must not leave it full.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::file_system;
use crate::limits::{DISK_RESERVE, DISK_RESERVE_PART};

/// The free bytes of the file system of a path, and how many of them stay free.
pub(crate) struct Room {
    path: PathBuf,
    free: u64,
    reserve: u64,
}

impl Room {
    /// `None` if the file system has no numbers, like some network ones.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let numbers = file_system(path).filter(|it| it.f_blocks > 0)?;
        let [free, size] = [numbers.f_bavail, numbers.f_blocks].map(|blocks| blocks.saturating_mul(numbers.f_frsize));
        Some(Self { path: path.to_path_buf(), free, reserve: DISK_RESERVE.min(size / DISK_RESERVE_PART) })
    }

    /// How many bytes are free to write.
    pub(crate) fn spare(&self) -> u64 {
        self.free.saturating_sub(self.reserve)
    }

    /// Fails if `what`, with `needed` bytes, does not fit. The caller adds where else to put it.
    pub(crate) fn check(&self, needed: u64, what: impl std::fmt::Display) -> Result<()> {
        if needed <= self.spare() {
            return Ok(());
        }
        let Self { path, free, reserve } = self;
        let disk = mount_point(path);
        let error = Error::failure(format!(
            "the file system {} is too full for {what}: {needed} bytes are needed, {free} are free, and {reserve} of \
             these are left free for others",
            disk.display()
        ));
        Err(error.at(path).help("free some space"))
    }
}

/// The directory at which the file system of a path begins; the path need not exist yet.
fn mount_point(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let there = path.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or(path);
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let own = device(&there);
    let within = there.ancestors().take_while(|path| device(path) == own);
    within.last().map_or_else(|| there.clone(), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_or_a_gibibyte_is_left_free() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/yet/there");
        let room = Room::at(&path).unwrap();
        assert!(room.reserve > 0 && room.reserve <= DISK_RESERVE);
        assert_eq!(room.spare(), room.free - room.reserve);
        let small = Room { path, free: 1000, reserve: 50 };
        small.check(950, "x").unwrap();
        let error = small.check(951, "the file x").unwrap_err().to_string();
        for part in
            ["too full for the file x: 951 bytes are needed, 1000 are free, and 50", "not/yet/there", "free some space"]
        {
            assert!(error.contains(part), "{error}");
        }
        let full = Room { free: 10, ..small };
        assert_eq!(full.spare(), 0);
        full.check(1, "x").unwrap_err();
    }

    #[test]
    fn the_file_system_is_named_by_where_it_begins() {
        assert_eq!(mount_point(Path::new("/")), Path::new("/"));
        assert_eq!(mount_point(Path::new("/proc/self/not/there")), Path::new("/proc"));
    }
}
