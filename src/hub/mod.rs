//! The Hugging Face hub: all code that talks to it is here.
//!
//! ```text
//! Hub::files ── web/listing ── names of a revision's files, and its commit
//! Hub::fetch ── cache: is it there? ── web/download: metadata, ranges, retries ── cache: in its place once it is whole
//!    both ask through web: who gets the token, which redirects are followed, how much is read
//! ```
//!
//! A build without the feature `hub` has the cache alone, as with `--offline`.
//!
//! `hf-hub` 1.0 supplies the kinds of repositories, their addresses, and the types of answers. Requests are our own:
//! `hf-hub` reads an answer to its end however long it is, and sends the token to any address that a header `Link`
//! names as the next page. Its download stores an answer without checking its status or size, so that an error page can
//! end up in the cache as the file; it starts over after an interruption; it does not wait for as long as the hub asks;
//! and for the metadata of a file it follows the redirect to a host that does not send the headers with commit and
//! checksum. The cache has the layout that all programs of the hub share.

// Without the feature, nothing writes into the cache.
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod cache;
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod checksum;
mod name;
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod paths;
#[cfg_attr(not(feature = "hub"), allow(dead_code))]
mod problem;
mod room;
#[cfg(feature = "hub")]
mod web;
#[cfg(not(feature = "hub"))]
#[path = "without_web.rs"]
mod web;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use cache::{Cache, Listing};
pub use paths::user_cache;
pub(crate) use room::Room;
use web::Web;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl RepoKind {
    /// As addresses and folders of the cache call it.
    fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// As a sentence calls it.
    fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        }
    }
}

/// A repository of the hub at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repo {
    /// What it holds.
    pub kind: RepoKind,
    /// `ORG/NAME`, or `NAME` alone.
    pub name: String,
    /// A branch, a tag or a commit; `main` by default.
    pub revision: String,
}

impl Repo {
    /// A model at the revision `main`.
    pub fn model(name: impl Into<String>) -> Self {
        Self { kind: RepoKind::Model, name: name.into(), revision: MAIN.to_owned() }
    }

    /// A data set at the revision `main`.
    pub fn dataset(name: impl Into<String>) -> Self {
        Self { kind: RepoKind::Dataset, name: name.into(), revision: MAIN.to_owned() }
    }

    /// The same repository at another revision.
    pub fn at(&self, revision: impl Into<String>) -> Self {
        Self { revision: revision.into(), ..self.clone() }
    }

    /// Refuses what cannot be the name or the revision of a repository.
    fn check(&self) -> Result<()> {
        if !is_repo_name(&self.name) {
            let error = Error::usage(format!("`{}` cannot be the name of a {}", self.name, self.kind.noun()));
            return Err(error.help("it is ORG/NAME, as the address of its page on the hub ends"));
        }
        if is_revision(&self.revision) {
            return Ok(());
        }
        let error = Error::usage(format!("`{}` cannot be a revision of {}", self.revision, self.name));
        Err(error.help("it is a branch, a tag or a commit"))
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if self.revision == MAIN { Ok(()) } else { write!(f, " at {}", self.revision) }
    }
}

/// The default revision.
pub const MAIN: &str = "main";
/// The model of COMET that is used if no other is named.
pub const DEFAULT_COMET: &str = "hf:Unbabel/wmt22-comet-da";
/// The one that needs no references.
pub const DEFAULT_QE: &str = "hf:Unbabel/wmt22-cometkiwi-da";

/// Whether this can be the name of a repository.
pub fn is_repo_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty()
            && part.len() <= 96
            && part.chars().all(is_name)
            && !part.starts_with('.')
            && !part.contains("..")
    };
    let mut parts = name.split('/');
    parts.clone().count() <= 2 && parts.all(is_part)
}

/// Whether this can be the name of a revision.
pub fn is_revision(revision: &str) -> bool {
    cache::is_safe_path(revision)
}

/// The hub, or its cache alone.
pub struct Hub {
    cache: Cache,
    /// `None` offline.
    web: Option<Web>,
    /// Listings so far, so that all files come from one commit.
    listings: Mutex<HashMap<Repo, Arc<Listing>>>,
}

impl Hub {
    /// Opens the cache (`HF_HUB_CACHE`, else `HF_HOME/hub`) and, unless `offline` or `HF_HUB_OFFLINE=1` says otherwise
    /// (`TRANSFORMERS_OFFLINE` where that is not set), the hub (`HF_ENDPOINT`, with the token of `HF_TOKEN` or of the
    /// token file). Nothing is sent yet.
    ///
    /// # Errors
    /// `HF_ENDPOINT` is not an address, the token is malformed or would be sent to another machine without encryption,
    /// there are no certificates to trust, or the user has no home directory for the cache.
    pub fn open(offline: bool) -> Result<Self> {
        let is_offline = offline || says_yes(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
        let web = if is_offline { None } else { Some(Web::from_environment()?) };
        Ok(Self { cache: Cache::new(paths::cache()?), web, listings: Mutex::default() })
    }

    /// The names of the files at that revision, sorted. Offline: as they were when the hub was last asked, or else
    /// those in the cache.
    ///
    /// # Errors
    /// There is no such repository or revision, it may not be read, the hub cannot be reached; offline: nothing of it
    /// is in the cache.
    pub fn files(&self, repo: &Repo) -> Result<Vec<String>> {
        Ok(self.listing(repo)?.files.clone())
    }

    /// As [`Self::files`], or nothing where the repository has no such revision (offline: none in the cache).
    ///
    /// # Errors
    /// All others of [`Self::files`].
    pub fn find(&self, repo: &Repo) -> Result<Option<Vec<String>>> {
        if self.is_offline() && self.cache.listing(repo).is_none() {
            return Ok(None);
        }
        match self.files(repo) {
            Ok(files) => Ok(Some(files)),
            Err(error) if problem::is_no_revision(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether only the cache is used.
    pub fn is_offline(&self) -> bool {
        self.web.is_none()
    }

    /// The commit that the revision stands for.
    ///
    /// # Errors
    /// As [`Self::files`].
    pub fn commit(&self, repo: &Repo) -> Result<String> {
        Ok(self.listing(repo)?.commit.clone())
    }

    /// The revision with which the hub's converter added safetensors to the present `main`, if there is one. Unknown
    /// offline.
    ///
    /// # Errors
    /// As [`Self::files`].
    pub fn conversion(&self, repo: &Repo) -> Result<Option<String>> {
        match &self.web {
            Some(web) if repo.kind == RepoKind::Model && repo.revision == MAIN => {
                web.conversion(repo, &self.commit(repo)?)
            }
            _ => Ok(None),
        }
    }

    /// The path in the cache of a file at that revision, fetched if it is missing. A partial download is resumed; a
    /// file gets its name only when it is whole.
    ///
    /// # Errors
    /// As for [`Self::files`]. Also: there is no such file, the download fails repeatedly or differs from the
    /// announcement, or the disk would become full. Offline: the cached file has changed since it was fetched.
    pub fn fetch(&self, repo: &Repo, file: &str) -> Result<PathBuf> {
        if !cache::is_safe_path(file) {
            let error = Error::failure(format!("`{file}` of {repo} is not a name that a file can have"));
            return Err(error.help("names may not lead out of the folder"));
        }
        let listing = self.listing(repo)?;
        let cached = self.cache.find(repo, &listing.commit, file);
        let Some(web) = &self.web else {
            let path = cached.ok_or_else(|| self.not_cached(repo, Some(file)))?;
            return if self.cache.is_unchanged(repo, &path) {
                Ok(path)
            } else {
                Err(problem::changed(&path, repo, file))
            };
        };
        if !listing.files.iter().any(|name| name == file) {
            return Err(problem::no_file(repo, file, &listing.files));
        }
        web.fetch(&self.cache, repo, &listing.commit, file, cached)
    }

    fn listing(&self, repo: &Repo) -> Result<Arc<Listing>> {
        repo.check()?;
        let mut listings = self.listings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listing) = listings.get(repo) {
            return Ok(listing.clone());
        }
        let listing = match &self.web {
            Some(web) => {
                let listing = web.list(repo)?;
                // Only offline work needs it, so a cache without write permission is no error.
                let _ = self.cache.keep_listing(repo, &listing);
                listing
            }
            None => self.cache.listing(repo).ok_or_else(|| self.not_cached(repo, None))?,
        };
        let listing = Arc::new(listing);
        listings.insert(repo.clone(), listing.clone());
        Ok(listing)
    }

    fn not_cached(&self, repo: &Repo, file: Option<&str>) -> Error {
        let folder = self.cache.folder(repo);
        if let Err(error) = folder.try_exists() {
            return Error::io("look into the hub's cache", folder, error);
        }
        let what = match file {
            Some(file) => format!("{file} of {repo}"),
            None => format!("{repo}"),
        };
        let error = Error::failure(format!("{what} is not in the cache, and --offline forbids asking the hub"));
        error.at(folder).help(
            "run once without --offline and without HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE on a machine with a \
             network, or set HF_HOME to the cache that has it",
        )
    }
}

/// The first of these variables of the environment that is not empty.
fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Whether the first non-empty one of these variables means yes, in the words that all programs of the hub accept.
fn says_yes(names: &[&str]) -> bool {
    variable(names).is_some_and(|value| matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_repositories() {
        for name in ["wmt/wmt14", "squad", "Helsinki-NLP/opus-mt-en-de", "a/b.c_d"] {
            assert!(is_repo_name(name), "{name}");
        }
        for name in ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a b", "a/.b", "a\\b", "hf:a/b", "ä/b"] {
            assert!(!is_repo_name(name), "{name}");
        }
        assert!(Repo::dataset("a/b").at("refs/convert/parquet").check().is_ok());
        for revision in ["", "../..", "/etc", "a//b"] {
            assert!(Repo::dataset("a/b").at(revision).check().is_err(), "{revision}");
        }
    }
}
