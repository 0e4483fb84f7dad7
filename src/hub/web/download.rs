//! One file, from the hub into the cache: its size and checksum, then its bytes, from where an earlier try broke off.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use hf_hub::{RepoType, RepoTypeDataset, RepoTypeModel};
use indicatif::ProgressBar;
use reqwest::blocking::Response;
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use reqwest::{Method, StatusCode, Url};

use super::super::cache::{Cache, is_key};
use super::super::problem::{cannot_write, no_room};
use super::super::room::Room;
use super::super::{Repo, RepoKind, checksum};
use super::retry::{Failure, PAUSE, TRIES, after_tries, retrying, wait};
use super::{ANSWER, Request, Web, broken, header, origin, problem};
use crate::console::{Counted, info, message, progress_bar, shown};
use crate::error::{Error, Result};
use crate::file::{Folder, folder_of};
use crate::limits::{HUB_FILE, HUB_PROGRESS, HUB_SLOW, HUB_SLOW_TIME, HUB_UNANNOUNCED};

/// The hub's metadata of a file.
struct Metadata {
    etag: String,
    /// `None` if the hub does not give it.
    size: Option<u64>,
}

impl Web {
    /// Brings a file into the cache, unless the one that is there is the same.
    pub(in crate::hub) fn fetch(
        &self,
        cache: &Cache,
        repo: &Repo,
        commit: &str,
        file: &str,
        cached: Option<PathBuf>,
    ) -> Result<PathBuf> {
        let kind = match repo.kind {
            RepoKind::Model => RepoTypeModel.url_prefix(),
            RepoKind::Dataset => RepoTypeDataset.url_prefix(),
        };
        let kind = kind.split_terminator('/');
        let parts = kind.chain(repo.name.split('/')).chain(["resolve", commit]);
        let url = self.url(parts.chain(file.split('/')));
        let metadata = retrying(|| self.metadata(&url, repo, file))?;
        let Metadata { etag, size } = &metadata;
        let is_same = |path: &Path| {
            let length = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len());
            let is_whole = length.is_some_and(|length| size.is_none_or(|size| size == length));
            is_whole && cache.is_sound(repo, path, etag)
        };
        if let Some(path) = cached {
            if is_same(&path) {
                return Ok(path);
            }
            message(format_args!(
                "warning: {file} of {repo} in the cache is not what the hub has: it is fetched again ({})",
                path.display()
            ));
        }
        let blob = cache.blob(repo, etag);
        let _lock = cache.lock(repo, etag)?;
        if !is_same(&blob) {
            let part = cache.blob(repo, &format!("{etag}.incomplete"));
            let blobs = cache.made(folder_of(&part))?;
            let bar = bar(repo, file, *size);
            Download { web: self, url: &url, repo, file, metadata: &metadata, part: &part, bar }.run()?;
            let moved = blobs.rename(part.file_name().unwrap_or_default(), blob.file_name().unwrap_or_default());
            moved.map_err(|error| cannot_write(&blob, error))?;
            cache.remember(repo, &blob, etag);
        }
        cache.link(repo, commit, file, etag)
    }

    /// Size and checksum of a file. As in `huggingface_hub`, redirects are followed within the hub only: it states
    /// both, and the storage behind it does not.
    fn metadata(&self, url: &Url, repo: &Repo, file: &str) -> std::result::Result<Metadata, Failure> {
        let request = Request { method: Method::HEAD, url, repo, file: Some(file), start: 0, time: Some(ANSWER) };
        let is_linked = |response: &Response| response.headers().contains_key("x-linked-etag");
        let within = |response: &Response, to: &Url| !is_linked(response) && self.is_within(response.url(), to);
        let response = self.send(&request, within)?;
        let (status, headers) = (response.status(), response.headers());
        if !status.is_success() && !status.is_redirection() {
            return Err(self.refusal(response, repo, Some(file)));
        }
        let etag = header(headers, "x-linked-etag").or_else(|| header(headers, ETAG.as_str())).unwrap_or_default();
        let etag = etag.strip_prefix("W/").unwrap_or(&etag).trim_matches('"').to_owned();
        let length = || header(headers, CONTENT_LENGTH.as_str()).filter(|_| status.is_success());
        let size = header(headers, "x-linked-size").or_else(length);
        if is_key(&etag) {
            return Ok(Metadata { etag, size: size.and_then(|size| size.parse().ok()) });
        }
        Err(Failure::Final(match self.target(&response, response.url())? {
            Some(to) if etag.is_empty() => problem::sent_away(&self.endpoint, &origin(&to), repo, Some(file)),
            _ => problem::not_the_hub(&self.endpoint),
        }))
    }
}

/// A file on its way.
struct Download<'a> {
    web: &'a Web,
    url: &'a Url,
    repo: &'a Repo,
    file: &'a str,
    metadata: &'a Metadata,
    /// The partial download.
    part: &'a Path,
    bar: ProgressBar,
}

impl Download<'_> {
    /// Fills `part` up to the file's size, and checks it. What cannot become the file is removed.
    fn run(&self) -> Result<()> {
        let size = self.metadata.size;
        if let Some(size) = size.filter(|size| *size > HUB_FILE) {
            let what = format!("it is announced with {size} bytes, and {HUB_FILE} are the most that are taken");
            return Err(problem::too_large(self.repo, self.file, &what));
        }
        let step = (size.unwrap_or(0) / HUB_PROGRESS.0).clamp(1, HUB_PROGRESS.1);
        let length = || fs::metadata(self.part).map_or(0, |metadata| metadata.len());
        let (mut furthest, mut tries, mut pause) = (length(), TRIES, PAUSE);
        loop {
            let began = Instant::now();
            let (error, asked) = match self.attempt() {
                Ok(()) => break,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error, asked)) => (error, asked),
            };
            let done = length();
            // Only tries that bring next to nothing count: a bad connection gets there in the end.
            if done >= furthest + step {
                (tries, pause, furthest) = (TRIES, PAUSE, done);
            }
            tries -= 1;
            if tries == 0 {
                // A refusal says what it is about; what breaks a connection off does not.
                let is_refusal = done == 0 && error.helps().is_some();
                return Err(if is_refusal {
                    after_tries(error, TRIES)
                } else {
                    problem::interrupted(self.repo, self.file, done, size, error.what())
                });
            }
            self.bar.suspend(|| wait(asked.unwrap_or(pause), began, &error, TRIES - tries + 1));
            pause *= 2;
        }
        self.bar.finish_and_clear();
        self.verify().inspect_err(|_| drop(fs::remove_file(self.part)))
    }

    /// One try: requests the missing bytes and appends them.
    fn attempt(&self) -> std::result::Result<(), Failure> {
        let size = self.metadata.size;
        let mut file = open(self.part, true).map_err(|error| self.write_failure(error))?;
        let mut start = file.metadata().map_err(|error| self.write_failure(error))?.len();
        // A part that is longer than the file, or whose file has no known size, is of no use.
        if start > 0 && size.is_none_or(|size| start > size) {
            (file, start) = (self.restart()?, 0);
        }
        if size == Some(start) {
            return file.sync_all().map_err(|error| self.write_failure(error));
        }
        self.check_room(size.map_or(1, |size| size - start)).map_err(|error| {
            // A partial file stays for the next time, unless it is empty or fills the disk.
            if start == 0 || Room::at(self.part).is_some_and(|room| room.spare() == 0) {
                let _ = fs::remove_file(self.part);
            }
            Failure::Final(error)
        })?;
        let (url, repo) = (self.url, self.repo);
        let request = Request { method: Method::GET, url, repo, file: Some(self.file), start, time: None };
        let response = self.web.send(&request, |_, _| true)?;
        let status = response.status();
        let goes_on = header(response.headers(), CONTENT_RANGE.as_str())
            .is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
        if start > 0
            && (status == StatusCode::RANGE_NOT_SATISFIABLE || (status == StatusCode::PARTIAL_CONTENT && !goes_on))
        {
            self.restart()?;
            return Err(Failure::Passing(problem::damaged(repo, self.file, "the wrong part was sent"), None));
        }
        if !status.is_success() {
            return Err(self.web.refusal(response, repo, Some(self.file)));
        }
        if start > 0 && status != StatusCode::PARTIAL_CONTENT {
            // The whole file comes, not the rest.
            (file, start) = (self.restart()?, 0);
        }
        if response.content_length().is_some_and(|coming| coming > self.most() - start) {
            return Err(self.overflows());
        }
        let end = self.copy(response, &mut file, start)?;
        if size.is_some_and(|size| end < size) {
            return Err(Failure::Passing(Error::failure("the connection was closed"), None));
        }
        file.sync_all().map_err(|error| self.write_failure(error))
    }

    /// Appends what comes, up to the file's size, and returns where it ended.
    fn copy(&self, mut response: Response, file: &mut File, start: u64) -> std::result::Result<u64, Failure> {
        let (mut end, mut checked) = (start, start);
        let (mut since, mut before) = (Instant::now(), start);
        self.bar.set_position(start);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match response.read(&mut buffer) {
                Ok(0) => return Ok(end),
                Ok(read) => read,
                Err(error) => return Err(Failure::Passing(broken(&error), None)),
            };
            let length = read as u64;
            if length > self.most() - end {
                return Err(self.overflows());
            }
            // Other programs write to the disk, too. The less room, the more often it is checked.
            if end + length > checked {
                let spare = self.check_room(length).map_err(|error| {
                    // Kept, it would fill the disk, and there is no room for the rest.
                    let _ = fs::remove_file(self.part);
                    Failure::Final(error)
                })?;
                checked = end + length + (spare / 2).min(1 << 24);
            }
            file.write_all(buffer.get(..read).unwrap_or_default()).map_err(|error| self.write_failure(error))?;
            end += length;
            self.bar.set_position(end);
            if since.elapsed() >= HUB_SLOW_TIME {
                if end - before < HUB_SLOW {
                    let (bytes, seconds) = (end - before, since.elapsed().as_secs());
                    return Err(Failure::Final(problem::too_slow(self.repo, self.file, bytes, seconds)));
                }
                (since, before) = (Instant::now(), end);
            }
        }
    }

    /// Most bytes that may come.
    fn most(&self) -> u64 {
        self.metadata.size.unwrap_or(HUB_UNANNOUNCED)
    }

    /// More bytes came than allowed: another try would bring them, too.
    fn overflows(&self) -> Failure {
        let _ = fs::remove_file(self.part);
        let what = match self.metadata.size {
            Some(size) => format!("it was announced with {size} bytes, and more came"),
            None => format!("its size was not announced, and {HUB_UNANNOUNCED} bytes are the most that are taken then"),
        };
        Failure::Final(problem::too_large(self.repo, self.file, &what))
    }

    /// Fails if the disk has no room for this many more bytes. Returns the number of free bytes.
    fn check_room(&self, needed: u64) -> Result<u64> {
        let Some(room) = Room::at(self.part) else { return Ok(u64::MAX) };
        let checked = room.check(needed, format_args!("{} of {}", self.file, self.repo));
        checked.map(|()| room.spare()).map_err(no_room)
    }

    /// A failed write. If the disk or the user's quota is full, the partial file is removed.
    fn write_failure(&self, error: std::io::Error) -> Failure {
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            let _ = fs::remove_file(self.part);
        }
        Failure::Final(cannot_write(self.part, error))
    }

    /// Empties `part`.
    fn restart(&self) -> std::result::Result<File, Failure> {
        open(self.part, false).map_err(|error| self.write_failure(error))
    }

    /// Compares the whole file with the hub's metadata.
    fn verify(&self) -> Result<()> {
        let read_failed = |error| Error::io("read what was fetched", self.part, error);
        let length = fs::metadata(self.part).map_err(read_failed)?.len();
        if let Some(size) = self.metadata.size.filter(|size| *size != length) {
            return Err(problem::damaged(self.repo, self.file, &format!("{length} bytes instead of {size}")));
        }
        if checksum::fits(self.part, &self.metadata.etag).map_err(read_failed)? {
            return Ok(());
        }
        Err(problem::damaged(self.repo, self.file, "its checksum is different"))
    }
}

/// Opens a partial file to append to it, or begins it again. A link of this name, which may have been planted, is not
/// followed.
fn open(part: &Path, append: bool) -> std::io::Result<File> {
    let (blobs, name) = Folder::containing(part)?;
    if !append || fs::symlink_metadata(part).is_ok_and(|metadata| !metadata.is_file()) {
        blobs.remove_file(name)?;
    }
    blobs.append_or_make(name)
}

/// A bar on a terminal; elsewhere a line when a file begins.
fn bar(repo: &Repo, file: &str, size: Option<u64>) -> ProgressBar {
    let bar = progress_bar(Counted::Bytes, size);
    if bar.is_hidden() {
        let size = size.map(|size| format!(", {}", indicatif::HumanBytes(size))).unwrap_or_default();
        info(format_args!("hub: fetching {}: {file}{size}", repo.name));
    } else {
        bar.set_message(shown(&format!("{}: {file}", repo.name)).into_owned());
    }
    bar
}
