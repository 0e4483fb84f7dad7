//! Tests of the configuration, on files in a folder of their own.

mod computed;
mod corpora;
mod hints;
mod layers;
mod migrating;
mod problems;
mod shipped;

use std::fs;
use std::path::PathBuf;

use super::{Config, load};
use crate::error::{ErrorKind, Result};

/// A folder of configurations that is removed at the end of the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self, names: &[&str], sets: &[&str]) -> Result<Config> {
        let files: Vec<_> = names.iter().map(|name| self.path(name)).collect();
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        load(&files, &sets)
    }

    /// Each problem as the user reads it, with the files' bare names.
    fn problems(&self, names: &[&str], sets: &[&str]) -> Vec<String> {
        let error = self.load(names, sets).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let folder = format!("{}/", self.0.path().display());
        error.to_string().replace(&folder, "").split("\nerror: ").map(str::to_owned).collect()
    }
}

/// The one problem of a single file.
pub(super) fn problem(text: &str) -> String {
    let mut problems = Folder::new(&[("a.toml", text)]).problems(&["a.toml"], &[]);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems.remove(0)
}

pub(super) fn loaded(text: &str, sets: &[&str]) -> Config {
    Folder::new(&[("a.toml", text)]).load(&["a.toml"], sets).unwrap()
}

#[track_caller]
pub(super) fn assert_mentions(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}
