//! The cache on disk, in the layout that all programs of the hub share:
//!
//! ```text
//! datasets--ORG--NAME/refs/main                → the commit that the revision stood for
//!                     snapshots/COMMIT/a/b.txt → a link to
//!                     blobs/ETAG                 the contents; ETAG.incomplete while they come
//!                     .listings/COMMIT           the names of all files at that commit; ours, for work offline
//!                     .verified/ETAG             which file was found to have that checksum; ours, for large ones
//! ```

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::room::Room;
use super::{Repo, checksum, problem};
use crate::console::info;
use crate::error::{Error, Result};
use crate::file::{self, Folder};
use crate::limits::{HUB_ANSWER, HUB_NAME, HUB_NAME_PART};

/// The bytes of a file above which it is remembered that it was found whole: smaller ones are hashed in less time than
/// the hub takes to answer.
const LARGE: u64 = 1 << 24;

/// The files of a revision.
pub(super) struct Listing {
    /// The commit that the revision stands for.
    pub commit: String,
    /// The names of its files, sorted.
    pub files: Vec<String>,
}

/// The cache.
pub(super) struct Cache {
    root: PathBuf,
}

/// Whether this is a relative path that stays in its folder.
pub(super) fn is_safe_path(path: &str) -> bool {
    // A line break would end a name in our listing.
    let plain = !path.contains(|c: char| c == '\\' || c.is_control())
        && path.len() <= HUB_NAME
        && path.split('/').all(|part| (1..=HUB_NAME_PART).contains(&part.len()));
    plain && Path::new(path).components().all(|component| matches!(component, Component::Normal(_)))
        // `components` skips `.` parts.
        && !path.split('/').any(|part| part == ".")
}

/// Whether this can be a checksum or commit, the name of a file in the cache.
pub(super) fn is_key(key: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !key.is_empty() && key.len() <= 200 && key.chars().all(is_name) && !key.starts_with('.')
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Cache {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The folder of a repository.
    pub(super) fn folder(&self, repo: &Repo) -> PathBuf {
        self.root.join(format!("{}--{}", repo.kind.plural(), repo.name.replace('/', "--")))
    }

    /// The file, if it is there and whole.
    pub(super) fn find(&self, repo: &Repo, commit: &str, file: &str) -> Option<PathBuf> {
        let path = self.snapshot(repo, commit).join(file);
        path.is_file().then_some(path)
    }

    /// The contents with that checksum, there or not.
    pub(super) fn blob(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.folder(repo).join("blobs").join(etag)
    }

    /// Whether a file has the contents that an ETag stands for, as far as it is a checksum. Of a large one that is
    /// remembered until it changes.
    pub(super) fn is_sound(&self, repo: &Repo, path: &Path, etag: &str) -> bool {
        let stamp = stamp(path).filter(|(size, _)| *size >= LARGE).map(|(_, stamp)| stamp);
        let known = stamp.as_ref().and_then(|_| file::read_at_most(&self.verified(repo, etag), 200).ok());
        if known.is_some_and(|known| stamp.as_ref().is_some_and(|stamp| stamp.as_bytes() == known)) {
            return true;
        }
        let is_sound = checksum::fits(path, etag).unwrap_or(false);
        if is_sound {
            self.remember(repo, path, etag);
        }
        is_sound
    }

    /// Remembers that a file was found to have the contents that an ETag stands for.
    pub(super) fn remember(&self, repo: &Repo, path: &Path, etag: &str) {
        if let Some((_, stamp)) = stamp(path).filter(|(size, _)| *size >= LARGE) {
            // If the cache is not writable, the file is hashed again next time.
            let _ = self.replace(&self.verified(repo, etag), &stamp);
        }
    }

    fn verified(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.folder(repo).join(".verified").join(etag)
    }

    /// Whether a file has not changed since it was fetched: its contents lie under their checksum.
    pub(super) fn is_unchanged(&self, repo: &Repo, path: &Path) -> bool {
        let blob = fs::canonicalize(path).ok();
        let blob = blob.filter(|blob| blob.parent().is_some_and(|folder| folder.ends_with("blobs")));
        // Other programs may put copies where we put links.
        let etag = blob.as_ref().and_then(|blob| blob.file_name()?.to_str());
        etag.is_none_or(|etag| self.is_sound(repo, path, etag))
    }

    /// Waits until no other process fetches these contents, and locks them until the file is closed. On a file system
    /// without locks nobody waits; the checksum detects what two processes corrupt, before the file gets its name.
    pub(super) fn lock(&self, repo: &Repo, etag: &str) -> Result<Option<File>> {
        let folder = self.root.join(".locks").join(self.folder(repo).file_name().unwrap_or_default());
        let name = format!("{etag}.lock");
        let path = folder.join(&name);
        let locked = file::lock_or_wait(&self.made(&folder)?, &name, || {
            info(format_args!("hub: another process is fetching the same file of {repo}: waiting for it"));
        });
        locked.map_err(|error| Error::io("lock the cache", &path, error))
    }

    /// Links contents that are in the cache as `file` of that commit.
    pub(super) fn link(&self, repo: &Repo, commit: &str, file: &str, etag: &str) -> Result<PathBuf> {
        let pointer = self.snapshot(repo, commit).join(file);
        let blob = self.blob(repo, etag);
        let folder = self.made(file::folder_of(&pointer))?;
        if pointer.is_file() && same_file::is_same_file(&pointer, &blob).unwrap_or(false) {
            return Ok(pointer);
        }
        let failed = |error| Error::io("put the file into the cache", &pointer, error);
        // Beside it and renamed, so that another process never finds it missing.
        let new = format!(".{etag}.{}", std::process::id());
        let name = pointer.file_name().unwrap_or_default();
        // A relative link, so that the cache may be moved.
        let up = "../".repeat(2 + file.matches('/').count());
        folder.remove_file(&new).and_then(|()| folder.link(format!("{up}blobs/{etag}"), &new)).map_err(failed)?;
        folder.rename(&new, name).map_err(failed)?;
        Ok(pointer)
    }

    /// Remembers the names of a revision's files and the commit that it stands for.
    pub(super) fn keep_listing(&self, repo: &Repo, listing: &Listing) -> Result<()> {
        let folder = self.folder(repo);
        // The names first: without them a commit would seem to have only the files that are in the cache.
        self.replace(&folder.join(".listings").join(&listing.commit), &listing.files.join("\n"))?;
        if is_commit(&repo.revision) {
            return Ok(());
        }
        self.replace(&folder.join("refs").join(&repo.revision), &listing.commit)
    }

    /// The stored listing of a revision.
    pub(super) fn listing(&self, repo: &Repo) -> Option<Listing> {
        let folder = self.folder(repo);
        let commit = if is_commit(&repo.revision) {
            repo.revision.clone()
        } else {
            file::read_text(&folder.join("refs").join(&repo.revision)).ok()?.trim().to_owned()
        };
        if !is_key(&commit) {
            return None;
        }
        let mut files = Vec::new();
        let names = file::read_at_most(&folder.join(".listings").join(&commit), HUB_ANSWER);
        match names.map(|names| String::from_utf8_lossy(&names).into_owned()) {
            Ok(names) => files.extend(names.lines().filter(|name| is_safe_path(name)).map(str::to_owned)),
            // Fetched by another program, which keeps no listing.
            Err(_) => walk(&self.snapshot(repo, &commit), "", &mut files),
        }
        if files.is_empty() {
            return None;
        }
        files.sort();
        Some(Listing { commit, files })
    }

    fn snapshot(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.folder(repo).join("snapshots").join(commit)
    }

    /// A folder of the cache, made if it is missing. The user names the cache, but nothing in it: links there are not
    /// followed.
    pub(super) fn made(&self, folder: &Path) -> Result<Folder> {
        let cannot_write = |error| problem::cannot_write(folder, error);
        fs::create_dir_all(&self.root).map_err(cannot_write)?;
        let within = folder.strip_prefix(&self.root).unwrap_or(Path::new(""));
        Folder::open(&self.root).and_then(|root| root.made_below(within)).map_err(cannot_write)
    }

    /// Writes a small file whole or not at all.
    fn replace(&self, path: &Path, text: &str) -> Result<()> {
        if let Some(room) = Room::at(path) {
            room.check(text.len() as u64, "what the hub says").map_err(problem::no_room)?;
        }
        let folder = self.made(file::folder_of(path))?;
        let written = folder.replace_shared(path.file_name().unwrap_or_default(), text.as_bytes());
        written.map_err(|error| problem::cannot_write(path, error))
    }
}

/// Names of the files below a folder.
fn walk(folder: &Path, prefix: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        // A link to a folder is none of the hub's, and may lead round and round.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, &format!("{name}/"), files);
        } else if path.is_file() {
            files.push(name);
        }
    }
}

/// The size of a file, and a text that changes when the file does. The last of its times is set by the system alone.
fn stamp(path: &Path) -> Option<(u64, String)> {
    let it = fs::metadata(path).ok()?;
    let times = format!("{}.{:09} {}.{:09}", it.mtime(), it.mtime_nsec(), it.ctime(), it.ctime_nsec());
    Some((it.len(), format!("{} {} {} {times}\n", it.len(), it.dev(), it.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of [`LARGE`] times `a`.
    const LARGE_SHA256: &str = "5b6ff2e19d0da0fe323061018fc381393492884e74af8296c81ab9cb2694783a";
    const LARGE_GIT: &str = "8f20b722f2b62b9f6e6e38ff60f9a87c5633091a";

    #[test]
    fn names_never_lead_out_of_the_folder() {
        for path in ["a", "a/b.txt", "de-en/train-00000-of-00003.parquet", "..a", "refs/convert/parquet"] {
            assert!(is_safe_path(path), "{path}");
        }
        for path in
            ["", "..", "a/../b", "/etc/passwd", "a//b", "a/", "./a", "a/./b", "a\\..\\b", "a\0", "a\nb", "a\u{1b}[31m"]
        {
            assert!(!is_safe_path(path), "{path}");
        }
        let (longest, parts) = ("a".repeat(HUB_NAME_PART), "a/".repeat(HUB_NAME / 2));
        assert!(is_safe_path(&longest) && !is_safe_path(&format!("{longest}a")) && !is_safe_path(&format!("{parts}a")));
        for key in ["", ".", "..", "a/b", "a\\b", ".hidden"] {
            assert!(!is_key(key), "{key}");
        }
        assert!(is_key("d41d8cd98f00b204e9800998ecf8427e-2"));
    }

    #[test]
    fn the_layout_is_the_hub_s() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_path_buf());
        let repo = Repo::dataset("org/name");
        let commit = "0123456789012345678901234567890123456789";
        let listing = Listing { commit: commit.to_owned(), files: vec!["a/b.txt".to_owned()] };
        cache.keep_listing(&repo, &listing).unwrap();
        cache.made(cache.blob(&repo, "e").parent().unwrap()).unwrap();
        fs::write(cache.blob(&repo, "e"), "text").unwrap();
        assert_eq!(cache.find(&repo, commit, "a/b.txt"), None);
        let path = cache.link(&repo, commit, "a/b.txt", "e").unwrap();
        let in_cache = |name: &str| folder.path().join("datasets--org--name").join(name);
        assert_eq!(path, in_cache(&format!("snapshots/{commit}/a/b.txt")));
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_to_string(in_cache("refs/main")).unwrap(), commit);
        assert_eq!(cache.find(&repo, commit, "a/b.txt"), Some(path));
        // The cache is trusted no more than the hub.
        fs::write(in_cache(&format!(".listings/{commit}")), "../../../c.txt\na/b.txt\n/etc/passwd").unwrap();
        assert_eq!(cache.listing(&repo).unwrap().files, ["a/b.txt"]);
        // Without our listing, as another program leaves it; and by its commit.
        fs::remove_dir_all(in_cache(".listings")).unwrap();
        for revision in ["main", commit] {
            let known = cache.listing(&repo.at(revision)).unwrap();
            assert_eq!((known.commit.as_str(), known.files), (commit, vec!["a/b.txt".to_owned()]));
        }
        assert!(cache.listing(&repo.at("other")).is_none());
    }

    #[test]
    fn a_large_file_is_hashed_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_path_buf());
        let repo = Repo::dataset("org/name");
        let path = folder.path().join("large");
        let mut contents = vec![b'a'; usize::try_from(LARGE).unwrap()];
        fs::write(&path, &contents).unwrap();
        // As `sha256sum` and `git hash-object` give it.
        let sums = [LARGE_SHA256, LARGE_GIT];
        for sum in sums {
            assert!(cache.is_sound(&repo, &path, sum) && cache.verified(&repo, sum).is_file());
        }
        // The stored result is used: this checksum is not the file's.
        let other = "0".repeat(64);
        assert!(!cache.is_sound(&repo, &path, &other) && !cache.verified(&repo, &other).exists());
        fs::copy(cache.verified(&repo, sums[0]), cache.verified(&repo, &other)).unwrap();
        assert!(cache.is_sound(&repo, &path, &other));
        // A change of neither size nor time of modification is noticed.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        *contents.last_mut().unwrap() = b'b';
        fs::write(&path, &contents).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        for sum in [LARGE_SHA256, LARGE_GIT, &other] {
            assert!(!cache.is_sound(&repo, &path, sum), "{sum}");
        }
    }

    #[test]
    fn a_listing_that_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_path_buf());
        let repo = Repo::dataset("org/name");
        let [old, new] = ["0", "1"].map(|digit| Listing { commit: digit.repeat(40), files: vec!["a".to_owned()] });
        cache.keep_listing(&repo, &old).unwrap();
        // A folder instead of a file makes writing fail.
        cache.made(&cache.folder(&repo).join(".listings").join(&new.commit)).unwrap();
        cache.keep_listing(&repo, &new).unwrap_err();
        assert_eq!(cache.listing(&repo).unwrap().commit, old.commit);
    }

    #[test]
    fn what_a_killed_process_left_of_a_listing_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().to_path_buf());
        let repo = Repo::dataset("org/name");
        let listing = Listing { commit: "0".repeat(40), files: vec!["a".to_owned()] };
        let left = [format!(".listings/.{}.7.new", listing.commit), "refs/.main.7.new".to_owned()];
        let left = left.map(|name| cache.folder(&repo).join(name));
        for path in &left {
            cache.made(path.parent().unwrap()).unwrap();
            fs::write(path, "par").unwrap();
        }
        cache.keep_listing(&repo, &listing).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
    }
}
