//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// From now on a write beyond a limit on file sizes fails, with an error that names the file, where it would end the process.
pub(crate) fn fail_at_size_limits() {
    // Where it cannot be registered, all is as it was.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

/// Replaces a file: `temporary`, beside it, is written and brought to the disk, and takes its place. Readers see the old file or
/// the new one, also after a crash.
pub(crate) fn replace(path: &Path, temporary: &Path, contents: &[u8]) -> io::Result<()> {
    let write = || {
        let mut file = File::create(temporary)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(temporary, path)
    };
    write().inspect_err(|_| {
        // What is left of it would only take room.
        let _ = fs::remove_file(temporary);
    })
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
}
