//! Models of the Hugging Face hub: `hf:ORG/NAME`, or the address of its page, fetched into the hub's cache and imported
//! once for each commit.
//!
//! Imported models are in `$XDG_CACHE_HOME/mt/models/ORG--NAME/COMMIT-vN`, where N is the version of the
//! format's importer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Tell;
use super::load::write_imported;
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::file::{self, Folder};
use crate::hub::{Hub, Repo, RepoKind, Room, is_revision, user_cache};
use crate::interop::import::hf::{self, Weights};
use crate::interop::import::{Format, Imported};
use crate::notice::Notice;

/// The files of a repository, in the hub's cache.
pub struct Fetched {
    /// Their folder.
    pub folder: PathBuf,
    /// Their format, and the version of its importer.
    format: (&'static Format, u32),
    /// Their commit.
    commit: String,
}

/// The hub repository of a model, if it is named as `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`, or by the address of its
/// page.
pub fn repository(name: &Path) -> Option<Repo> {
    Repo::named(name.to_str()?)
}

/// Adds help to the error for a missing path that looks like another program's name of a hub model: how to name it
/// here.
pub fn advised(error: Error, missing: &Path) -> Error {
    match missing.to_str().and_then(Repo::perhaps) {
        // In a configuration.
        Some(repo) if repo.kind == RepoKind::Model && missing.is_absolute() => {
            error.more_help(&format!("if {0} is a model of the hub, import it: mt import hf:{0} --out DIR", repo.name))
        }
        Some(repo) if repo.kind == RepoKind::Model => {
            error.more_help(&format!("for a model of the hub, write hf:{}", repo.name))
        }
        _ => error,
    }
}

/// Whether a path, which may have been made absolute, names a repository.
pub fn is_named_within(path: &Path) -> bool {
    path.iter().any(|part| part.to_string_lossy().starts_with("hf:") || part == "https:" || part == "http:")
}

/// Fetches the files of a model that are not in the cache: `config.json` first, which says what others there are. If
/// `main` has its weights only as a pickle, fetches them from the pull request of the hub's converter.
///
/// # Errors
/// Those of the hub; or the repository has no such model.
pub fn fetch(repo: &Repo, offline: bool, tell: Tell<'_>) -> Result<Fetched> {
    if repo.kind == RepoKind::Dataset {
        let error = Error::usage(format!("{repo} is a data set of the hub, and a model is needed"));
        return Err(
            error.help(format!("a configuration names it as a corpus: train = [{{ hub = \"{}\", … }}]", repo.name))
        );
    }
    let hub = Hub::open(offline)?;
    let mut files = hub.files(repo)?;
    let mut repo = repo.clone();
    let has = |files: &[String], name: &str| files.iter().any(|file| file == name);
    let weights = |files: &[String]| Weights::among(&|name| has(files, name));
    match weights(&files).map_err(|error| error.context(&repo))? {
        Weights::Safetensors | Weights::Parts => {}
        Weights::None => return Err(lacks(&repo, hf::WEIGHTS, &files)),
        Weights::Pickle => {
            let Some(revision) = conversion(&hub, &repo)? else { return Err(pickle_alone(&repo)) };
            tell(Notice::Info(format!(
                "{repo} has its weights as a pickle; those that the hub's converter made, at {revision}, are used \
                 instead"
            )));
            repo = repo.at(revision);
            files = hub.files(&repo)?;
            if !matches!(weights(&files), Ok(Weights::Safetensors | Weights::Parts)) {
                return Err(pickle_alone(&repo));
            }
        }
    }
    if !has(&files, hf::CONFIG) {
        return Err(lacks(&repo, hf::CONFIG, &files));
    }
    let folder = file::folder_of(&hub.fetch(&repo, hf::CONFIG)?).to_path_buf();
    let (format, family) = hf::format_of(&folder).map_err(|error| error.context(&repo))?;
    for name in family.files().filter(|name| has(&files, name)) {
        hub.fetch(&repo, name)?;
    }
    if matches!(weights(&files), Ok(Weights::Parts)) {
        let parts: BTreeSet<String> = hf::listed(&folder)?.into_values().collect();
        for name in &parts {
            hub.fetch(&repo, name)?;
        }
    }
    Ok(Fetched { folder, format: (format, family.version), commit: hub.commit(&repo)? })
}

/// The error for a repository without a file that every model has.
fn lacks(repo: &Repo, name: &str, files: &[String]) -> Error {
    let list = files.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", ");
    Error::failure(format!("{repo} has no {name}")).help(format!("it has {list}"))
}

fn pickle_alone(repo: &Repo) -> Error {
    let what = format!("{repo} has its weights only as a pickle, which can run any code and is never read here");
    Error::failure(what).help(
        "if a pull request on the Community tab of its page adds `safetensors`, name it as hf:ORG/NAME@refs/pr/N; or \
         convert the model where you trust it, and give `mt import` the folder",
    )
}

/// The converter's pull request. The hub's answer is stored, for later calls and for offline use.
fn conversion(hub: &Hub, repo: &Repo) -> Result<Option<String>> {
    let kept = models(repo)?.join(format!("{}.conversion", hub.commit(repo)?));
    if let Ok(revision) = file::read_text(&kept) {
        return Ok(Some(revision).filter(|revision| is_revision(revision)));
    }
    let found = hub.conversion(repo)?;
    if let Some(revision) = &found {
        let write_error = |error| Error::io("write down what the hub said of a model", &kept, error);
        let written = made(file::folder_of(&kept))?;
        written.replace_shared(kept.file_name().unwrap_or_default(), revision.as_bytes()).map_err(write_error)?;
    }
    Ok(found)
}

/// The directory of models imported from a repository.
fn models(repo: &Repo) -> Result<PathBuf> {
    Ok(cache()?.join("models").join(repo.name.replace('/', "--")))
}

/// The directory of a model of the hub, imported if it is not there yet.
///
/// # Errors
/// As for [`fetch`] and for importing.
pub fn directory(repo: &Repo, offline: bool, tell: Tell<'_>) -> Result<PathBuf> {
    let fetched = fetch(repo, offline, tell)?;
    let models = models(repo)?;
    let (format, version) = fetched.format;
    let directory = models.join(format!("{}-v{version}", fetched.commit));
    let is_whole = || directory.is_dir() && checkpoint::verify(&directory).is_ok();
    // Before anything is written: others may have made the cache, and this user may only read it.
    if is_whole() {
        return Ok(directory);
    }
    let write_error = |error| Error::io("write the imported model", &models, error);
    let folder = made(&models)?;
    // Without locks, the process that ends first wins, but all import the same model.
    let locked = file::lock_or_wait(&folder, ".lock", || {
        tell(Notice::Info(format!("{repo}: another process is importing it: waiting")));
    });
    let _lock = locked.map_err(write_error)?;
    // A model that has been damaged since is imported again.
    if directory.exists() && !is_whole() {
        let removed = folder.remove(directory.file_name().unwrap_or_default());
        removed.map_err(|error| Error::io("remove a damaged model", &directory, error))?;
    }
    if !directory.is_dir() {
        let imported = format.import(&fetched.folder).map_err(|error| error.context(repo))?;
        check_room(&models, repo, &imported)
            .map_err(|error| error.more_help("or set XDG_CACHE_HOME to a larger disk, then run it again"))?;
        write_imported(&imported, &directory, Path::new(&repo.to_string()))?;
        tell(Notice::Info(format!("{repo}: imported into {}", shown_path(&directory))));
    }
    Ok(directory)
}

/// Checks that a model that anyone may have put on the hub does not leave the disk full, once it is written there.
///
/// # Errors
/// It would; the caller adds where else to put it.
pub fn check_room(place: &Path, repo: &Repo, imported: &Imported) -> Result<()> {
    let needed = imported.layout.total() as u64 * 4;
    Room::at(place).map_or(Ok(()), |room| room.check(needed, format_args!("the imported {repo}")))
}

/// A folder of the cache, made if it is missing; no links in the cache are followed.
fn made(folder: &Path) -> Result<Folder> {
    let cache = cache()?;
    let within = folder.strip_prefix(&cache).unwrap_or(Path::new(""));
    let made = fs::create_dir_all(&cache).and_then(|()| Folder::open(&cache)?.made_below(within));
    made.map_err(|error| Error::io("write the imported model", folder, error))
}

/// The user's cache directory for `mt`.
fn cache() -> Result<PathBuf> {
    let cache = user_cache().ok_or_else(|| {
        Error::failure("there is no directory for imported models: the user has no home directory").help(
            "set HOME to the path of the home directory, or import the model yourself: mt import hf:ORG/NAME --out DIR",
        )
    })?;
    Ok(cache.join("mt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub() {
        let repo = |name: &str| repository(Path::new(name)).map(|repo| (repo.name, repo.revision));
        let some = |name: &str, revision: &str| Some((name.to_owned(), revision.to_owned()));
        assert_eq!(repo("hf:Helsinki-NLP/opus-mt-en-de"), some("Helsinki-NLP/opus-mt-en-de", "main"));
        assert_eq!(repo("https://huggingface.co/a/b/tree/refs%2Fpr%2F3"), some("a/b", "refs/pr/3"));
        assert_eq!(repo("a/b"), None);
    }
}
