//! How text is read, in three ways:
//!
//! - [`lines`]: a whole file as its lines, where it is small or all of it is needed;
//! - [`file`]: from beginning to end as often as wanted, in little memory: what training is prepared from;
//! - [`raw`]: as it is, valid or not, in windows of lines: what `mt check` looks at.
//!
//! All of them read compressed files ([`packing`]).

pub mod documents;
pub mod encoding;
pub mod file;
pub mod lines;
mod members;
pub mod packing;
pub mod raw;
pub mod returns;
pub mod script;
pub mod test_set;

/// A new file in a folder.
#[cfg(test)]
fn write(folder: &tempfile::TempDir, name: &str, bytes: &(impl AsRef<[u8]> + ?Sized)) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}
