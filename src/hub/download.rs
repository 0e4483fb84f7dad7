//! One file, from the hub into the cache: its size and checksum, then its bytes, from where an earlier try broke off.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, LOCATION, RANGE,
    RETRY_AFTER,
};
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};
use sha2::{Digest, Sha256};

use super::cache::{Cache, is_key};
use super::problem::{self, Refusal};
use super::{Repo, RepoKind, place, says_yes, variable};
use crate::console::{Counted, info, progress_bar, shown};
use crate::error::{Error, Result};
use crate::file::{Folder, folder_of, open_regular};

/// Tries, and the pause after the first of them, which doubles.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause a server may ask for: the hub counts requests over five minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A user who waits for longer is told why.
const LONG: Duration = Duration::from_secs(5);
/// How long a connection may take, an answer about a repository or a file, and how long a download may be silent.
const CONNECT: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// More than any answer about a repository has.
const LONGEST_ANSWER: u64 = 1 << 24;
/// Most redirects within the hub, as for a repository that was renamed.
const REDIRECTS: usize = 20;
/// The hub's own addresses. A mirror may send a request on to them.
const HUB: [&str; 3] = ["https://huggingface.co", "https://hub-ci.huggingface.co", "https://hf.co"];

/// The hub, reached over the network.
pub(super) struct Web {
    pub hub: hf_hub::HFClientSync,
    pub endpoint: String,
    /// The endpoint as an address.
    address: Url,
    token: Option<HeaderValue>,
    /// Follows redirects, but does not send the token to another host.
    client: Client,
    /// Follows none.
    direct: Client,
}

/// Why a try failed.
pub(super) enum Failure {
    /// Another try would fail as well.
    Final(Error),
    /// Another try may succeed, after the pause that the server asks for, if it does.
    Passing(Error, Option<Duration>),
}

/// Tries again after passing failures.
pub(super) fn retrying<T>(mut attempt: impl FnMut() -> std::result::Result<T, Failure>) -> Result<T> {
    let mut pause = PAUSE;
    for left in (0..TRIES).rev() {
        let began = Instant::now();
        match attempt() {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error, _)) if left == 0 => return Err(after_tries(error)),
            Err(Failure::Passing(error, asked)) => {
                wait(asked.unwrap_or(pause), began, &error, TRIES - left + 1);
                pause *= 2;
            }
        }
    }
    Err(Error::failure("the hub was not asked"))
}

/// The error that ended the last of all tries.
fn after_tries(error: Error) -> Error {
    error.context(format_args!("after {TRIES} tries"))
}

/// Waits before try `number`, but not longer than the longest pause. `error` ended the one that `began` then.
fn wait(pause: Duration, began: Instant, error: &Error, number: usize) {
    let pause = pause.min(LONGEST_PAUSE);
    if pause.max(began.elapsed()) >= LONG {
        info(format_args!("{}; try {number} of {TRIES} is in {} s", error.what(), pause.as_secs()));
    }
    std::thread::sleep(pause);
}

/// What the hub says of a file.
struct Metadata {
    etag: String,
    /// Unknown where the hub does not say.
    size: Option<u64>,
}

impl Web {
    pub fn from_environment() -> Result<Self> {
        let token = token();
        let client = reqwest::Client::builder().user_agent(AGENT).connect_timeout(CONNECT).read_timeout(ANSWER).build();
        let hub = hf_hub::HFClient::builder().client(client.map_err(no_client)?).retry_max_attempts(0);
        // Without one, it would look for one by rules of its own. It sends none that no header can hold.
        let hub = hub.token(token.as_deref().unwrap_or("\n")).build();
        let hub = hub.map_err(|error| {
            let set = std::env::var("HF_ENDPOINT").unwrap_or_default();
            let what = format!("cannot connect to the hub (HF_ENDPOINT=\"{set}\"): {error}");
            Error::usage(what).help("HF_ENDPOINT must be an address such as https://huggingface.co, or not set")
        })?;
        let endpoint = hub.endpoint().to_owned();
        let Some(address) = Url::parse(&endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https")) else {
            let error = Error::usage(format!("cannot connect to the hub (HF_ENDPOINT=\"{endpoint}\")"));
            return Err(error.help("HF_ENDPOINT must be an address such as https://huggingface.co, or not set"));
        };
        let hub = hf_hub::HFClientSync::from_inner(hub)
            .map_err(|error| Error::failure(format!("cannot start the thread that connects to the hub: {error}")))?;
        let client = |policy| {
            let builder = Client::builder().user_agent(AGENT).connect_timeout(CONNECT).timeout(SILENCE);
            builder.redirect(policy).build().map_err(no_client)
        };
        let (client, direct) = (client(Policy::default())?, client(Policy::none())?);
        Ok(Self { hub, endpoint, address, token: token.as_deref().map(authorization).transpose()?, client, direct })
    }

    /// Brings a file into the cache, unless the one that is there is the same.
    pub fn fetch(
        &self,
        cache: &Cache,
        repo: &Repo,
        commit: &str,
        file: &str,
        cached: Option<PathBuf>,
    ) -> Result<PathBuf> {
        let url = self.url(repo, commit, file)?;
        let metadata = retrying(|| self.metadata(&url, repo, file))?;
        let Metadata { etag, size } = &metadata;
        let is_whole = |path: &Path| {
            let length = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len());
            length.is_some_and(|length| size.is_none_or(|size| size == length))
        };
        if let Some(path) = cached.filter(|path| is_whole(path)) {
            return Ok(path);
        }
        let blob = cache.blob(repo, etag);
        let _lock = cache.lock(repo, etag)?;
        if !is_whole(&blob) {
            let part = cache.blob(repo, &format!("{etag}.incomplete"));
            let blobs = cache.made(folder_of(&part))?;
            self.download(&url, repo, file, &metadata, &part)?;
            let moved = blobs.rename(part.file_name().unwrap_or_default(), blob.file_name().unwrap_or_default());
            moved.map_err(|error| problem::cannot_write(&blob, error))?;
        }
        cache.place(repo, commit, file, etag)
    }

    fn url(&self, repo: &Repo, commit: &str, file: &str) -> Result<Url> {
        let prefix = match repo.kind {
            RepoKind::Model => "",
            RepoKind::Dataset => "datasets/",
        };
        let base = format!("{}/{prefix}{}/resolve/{commit}/", self.endpoint, repo.name);
        let mut url = Url::parse(&base).map_err(|_| problem::not_the_hub(&self.endpoint))?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(file.split('/'));
        }
        Ok(url)
    }

    /// The token for a request to that address: only the host that `HF_ENDPOINT` names gets it.
    fn token_for(&self, url: &Url) -> Option<&HeaderValue> {
        self.token.as_ref().filter(|_| is_same_host(url, &self.address))
    }

    /// Sends a request to an address.
    fn request(&self, request: RequestBuilder, url: &Url) -> std::result::Result<Response, Failure> {
        let request = match self.token_for(url) {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        // If it were compressed in transit, neither size nor place in the file would be known.
        request.header(ACCEPT_ENCODING, "identity").send().map_err(|error| self.unanswered(error))
    }

    /// What the hub answers to a question about a repository.
    pub fn text(&self, address: &str, query: &[(&str, &str)], repo: &Repo) -> std::result::Result<String, Failure> {
        let not_the_hub = || Failure::Final(problem::not_the_hub(&self.endpoint));
        let url = Url::parse_with_params(address, query).map_err(|_| not_the_hub())?;
        let response = self.request(self.client.get(url.clone()).timeout(ANSWER), &url)?;
        if !response.status().is_success() {
            return Err(self.refusal(&response, repo, None));
        }
        let mut text = String::new();
        let read = response.take(LONGEST_ANSWER).read_to_string(&mut text);
        read.map_err(|error| Failure::Passing(Error::failure(problem::innermost(&error)).caused_by(error), None))?;
        Ok(text)
    }

    /// Size and checksum of a file. As in `huggingface_hub`, redirects are followed within the hub only: it states both, and the
    /// storage behind it does not.
    fn metadata(&self, url: &Url, repo: &Repo, file: &str) -> std::result::Result<Metadata, Failure> {
        let mut url = url.clone();
        for _ in 0..REDIRECTS {
            let response = self.request(self.direct.head(url.clone()).timeout(ANSWER), &url)?;
            let (status, headers) = (response.status(), response.headers());
            if !status.is_success() && !status.is_redirection() {
                return Err(self.refusal(&response, repo, Some(file)));
            }
            let target = header(headers, LOCATION.as_str()).filter(|_| status.is_redirection());
            let target = target.map(|to| url.join(&to)).transpose();
            let target = target.map_err(|_| Failure::Final(problem::not_the_hub(&self.endpoint)))?;
            let is_linked = headers.contains_key("x-linked-etag");
            if let Some(to) = target.as_ref().filter(|to| !is_linked && is_within(&self.address, &url, to)) {
                url = to.clone();
                continue;
            }
            let etag = header(headers, "x-linked-etag").or_else(|| header(headers, ETAG.as_str())).unwrap_or_default();
            let etag = etag.strip_prefix("W/").unwrap_or(&etag).trim_matches('"').to_owned();
            let length = || header(headers, CONTENT_LENGTH.as_str()).filter(|_| status.is_success());
            let size = header(headers, "x-linked-size").or_else(length);
            if is_key(&etag) {
                return Ok(Metadata { etag, size: size.and_then(|size| size.parse().ok()) });
            }
            return Err(Failure::Final(match target {
                Some(to) if etag.is_empty() => {
                    problem::sent_away(&self.endpoint, &to.origin().ascii_serialization(), repo, file)
                }
                _ => problem::not_the_hub(&self.endpoint),
            }));
        }
        Err(Failure::Final(problem::circle(&self.endpoint, repo, file)))
    }

    /// Fills the file `part` up to its size, and checks it.
    fn download(&self, url: &Url, repo: &Repo, file: &str, metadata: &Metadata, part: &Path) -> Result<()> {
        let bar = self.bar(repo, file, metadata.size);
        let mut furthest = 0;
        let mut tries = TRIES;
        let mut pause = PAUSE;
        loop {
            let began = Instant::now();
            let (error, asked) = match self.continue_download(url, repo, file, metadata.size, part, &bar) {
                Ok(()) => break,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error, asked)) => (error, asked),
            };
            let done = fs::metadata(part).map_or(0, |metadata| metadata.len());
            // Only tries that bring nothing count: a bad connection gets there in the end.
            (tries, pause) = if done > furthest { (TRIES, PAUSE) } else { (tries, pause) };
            furthest = furthest.max(done);
            tries -= 1;
            if tries == 0 {
                return Err(if done == 0 {
                    after_tries(error)
                } else {
                    problem::interrupted(repo, file, done, metadata.size, error.what())
                });
            }
            bar.suspend(|| wait(asked.unwrap_or(pause), began, &error, TRIES - tries + 1));
            pause *= 2;
        }
        bar.finish_and_clear();
        verify(repo, file, metadata, part).inspect_err(|_| drop(fs::remove_file(part)))
    }

    /// One try: asks for what is missing and appends it.
    fn continue_download(
        &self,
        url: &Url,
        repo: &Repo,
        name: &str,
        size: Option<u64>,
        part: &Path,
        bar: &ProgressBar,
    ) -> std::result::Result<(), Failure> {
        let write_failed = |error| Failure::Final(problem::cannot_write(part, error));
        let opened = Folder::of(part).and_then(|(blobs, name)| blobs.append_or_make(name));
        let mut file = opened.map_err(write_failed)?;
        let mut start = file.metadata().map_err(write_failed)?.len();
        // A part that is longer than the file, or whose file has no known size, is of no use.
        if start > 0 && size.is_none_or(|size| start > size) {
            (file, start) = (restart(part).map_err(write_failed)?, 0);
        }
        if size == Some(start) {
            return file.sync_all().map_err(write_failed);
        }
        let request = self.client.get(url.clone());
        let request = if start > 0 { request.header(RANGE, format!("bytes={start}-")) } else { request };
        let mut response = self.request(request, url)?;
        let status = response.status();
        let goes_on = header(response.headers(), CONTENT_RANGE.as_str())
            .is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
        if start > 0
            && (status == StatusCode::RANGE_NOT_SATISFIABLE || (status == StatusCode::PARTIAL_CONTENT && !goes_on))
        {
            restart(part).map_err(write_failed)?;
            return Err(Failure::Passing(problem::damaged(repo, name, "the wrong part was sent"), None));
        }
        if !status.is_success() {
            return Err(self.refusal(&response, repo, Some(name)));
        }
        if start > 0 && status != StatusCode::PARTIAL_CONTENT {
            // The whole file comes, not the rest.
            (file, start) = (restart(part).map_err(write_failed)?, 0);
        }
        bar.set_position(start);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match response.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => {
                    let error = Error::failure(problem::innermost(&error)).caused_by(error);
                    return Err(Failure::Passing(error, None));
                }
            };
            file.write_all(buffer.get(..read).unwrap_or_default()).map_err(write_failed)?;
            start += read as u64;
            bar.set_position(start);
        }
        if size.is_some_and(|size| start < size) {
            return Err(Failure::Passing(Error::failure("the connection was closed"), None));
        }
        file.sync_all().map_err(write_failed)
    }

    /// A bar on a terminal; elsewhere a line when a file begins.
    fn bar(&self, repo: &Repo, file: &str, size: Option<u64>) -> ProgressBar {
        let bar = progress_bar(Counted::Bytes, size);
        if bar.is_hidden() {
            let size = size.map(|size| format!(", {}", indicatif::HumanBytes(size))).unwrap_or_default();
            info(format_args!("hub: fetching {}: {file}{size}", repo.name));
        } else {
            bar.set_message(shown(&format!("{}: {file}", repo.name)).into_owned());
        }
        bar
    }

    /// No answer, or half of one.
    pub fn unanswered(&self, error: reqwest::Error) -> Failure {
        if error.is_decode() {
            return Failure::Final(problem::not_the_hub(&self.endpoint).caused_by(error));
        }
        let connects = !error.is_connect();
        // A mirror may have sent the request on.
        let elsewhere = error.url().filter(|url| !is_same_host(url, &self.address));
        let host = elsewhere.map_or_else(|| self.endpoint.clone(), |url| url.origin().ascii_serialization());
        let error = problem::unreachable(&host, error);
        // A host that cannot be reached now will not be a second later; one that is silent may still answer.
        if connects { Failure::Passing(error, None) } else { Failure::Final(error) }
    }

    /// The failure for a refused request, for a file if `file` is given.
    fn refusal(&self, response: &Response, repo: &Repo, file: Option<&str>) -> Failure {
        let headers = response.headers();
        let code = header(headers, "x-error-code");
        let message = header(headers, "x-error-message");
        let url = response.url();
        let is_elsewhere = !is_same_host(url, &self.address) && is_within(&self.address, &self.address, url);
        let elsewhere = self.token.as_ref().filter(|_| is_elsewhere).map(|_| url.origin().ascii_serialization());
        let refusal = Refusal { status: response.status().as_u16(), code, message, repo, file, elsewhere };
        let wait = header(headers, RETRY_AFTER.as_str()).and_then(|seconds| seconds.trim().parse().ok());
        self.refused(&refusal, wait.map(Duration::from_secs))
    }

    /// The failure for a refusal.
    pub fn refused(&self, refusal: &Refusal, wait: Option<Duration>) -> Failure {
        let error = refusal.error(&self.endpoint, self.token.is_some());
        match refusal.status {
            408 | 429 | 500.. => Failure::Passing(error, wait),
            _ => Failure::Final(error),
        }
    }
}

const AGENT: &str = concat!("mt/", env!("CARGO_PKG_VERSION"));

fn no_client(error: reqwest::Error) -> Error {
    let what = format!("cannot open connections to the hub: {}", problem::innermost(&error));
    let help = "are the system's certificates installed (the package ca-certificates)? If the files are in the cache, give \
                --offline";
    Error::failure(what).help(help).caused_by(error)
}

/// Whether two addresses are of the same origin: scheme, host and port.
fn is_same_host(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

/// Whether a redirect stays on its host, or goes to one of the hub: the endpoint, or the hub's own.
fn is_within(endpoint: &Url, from: &Url, to: &Url) -> bool {
    let hub = HUB.iter().filter_map(|hub| Url::parse(hub).ok());
    [endpoint, from].iter().any(|url| is_same_host(url, to)) || hub.into_iter().any(|hub| is_same_host(&hub, to))
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// Empties the file.
fn restart(part: &Path) -> std::io::Result<File> {
    crate::file::create(part)
}

/// Compares the whole file with what the hub says of it: its size, and its SHA-256 where the ETag is one.
fn verify(repo: &Repo, file: &str, metadata: &Metadata, part: &Path) -> Result<()> {
    let read_failed = |error| Error::io("read what was fetched", part, error);
    let length = fs::metadata(part).map_err(read_failed)?.len();
    if let Some(size) = metadata.size.filter(|size| *size != length) {
        return Err(problem::damaged(repo, file, &format!("{length} bytes instead of {size}")));
    }
    let is_sha256 = metadata.etag.len() == 64 && metadata.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_sha256 {
        return Ok(());
    }
    let mut hash = Sha256::new();
    std::io::copy(&mut open_regular(part).map_err(read_failed)?, &mut hash).map_err(read_failed)?;
    if format!("{:x}", hash.finalize()).eq_ignore_ascii_case(&metadata.etag) {
        return Ok(());
    }
    Err(problem::damaged(repo, file, "its checksum is different"))
}

/// The token of the user: `HF_TOKEN` (formerly `HUGGING_FACE_HUB_TOKEN`), else a file, as for all programs of the hub.
fn token() -> Option<String> {
    if says_yes(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]) {
        return None;
    }
    let clean =
        |token: String| Some(token.replace(['\r', '\n'], "").trim().to_owned()).filter(|token| !token.is_empty());
    let file = || clean(fs::read_to_string(place::token()?).ok()?);
    variable(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).and_then(clean).or_else(file)
}

/// The header that sends a token.
fn authorization(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        let error =
            Error::usage("the token of the hub (HF_TOKEN, or the token file) holds characters that no token has");
        error.help("copy it again from https://huggingface.co/settings/tokens")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_within_the_hub_and_the_token_stays_on_its_host() {
        let url = |address: &str| Url::parse(address).unwrap();
        let (endpoint, from) = (url("https://mirror.example/hub"), url("https://mirror.example/hub/a/b"));
        for (location, target, follows, has_token) in [
            ("/hub/c/d", "https://mirror.example/hub/c/d", true, true),
            ("d?x=1", "https://mirror.example/hub/a/d?x=1", true, true),
            ("//mirror.example/c", "https://mirror.example/c", true, true),
            ("https://MIRROR.example:443/c", "https://mirror.example/c", true, true),
            ("http://mirror.example/c", "http://mirror.example/c", false, false),
            ("https://mirror.example:8443/c", "https://mirror.example:8443/c", false, false),
            ("https://mirror.example.evil.example/c", "https://mirror.example.evil.example/c", false, false),
            ("https://mirror.example@evil.example/c", "https://mirror.example@evil.example/c", false, false),
            ("//storage.example/c", "https://storage.example/c", false, false),
            ("https://huggingface.co/a/b", "https://huggingface.co/a/b", true, false),
            ("https://hf.co/a/b", "https://hf.co/a/b", true, false),
            ("https://hub-ci.huggingface.co/a", "https://hub-ci.huggingface.co/a", true, false),
            ("http://huggingface.co/a/b", "http://huggingface.co/a/b", false, false),
            ("https://cdn-lfs.huggingface.co/a", "https://cdn-lfs.huggingface.co/a", false, false),
            ("file:///etc/passwd", "file:///etc/passwd", false, false),
        ] {
            let to = from.join(location).unwrap();
            assert_eq!(to.as_str(), target);
            assert_eq!(
                (is_within(&endpoint, &from, &to), is_same_host(&to, &endpoint)),
                (follows, has_token),
                "{location}"
            );
        }
        // And back again.
        assert!(is_within(&endpoint, &url("https://huggingface.co/a"), &from));
    }
}
