//! What can go wrong with the hub, one sentence each, and what to do.

use super::super::problem::NO_REVISION;
use super::super::{MAIN, Repo, RepoKind};
use super::secret;
use crate::error::Error;

/// A refusal by the hub.
pub(super) struct Refusal<'a> {
    /// The status of the answer.
    pub status: u16,
    /// Its header `X-Error-Code`.
    pub code: Option<String>,
    /// Its header `X-Error-Message`, or the error in its body.
    pub message: Option<String>,
    pub repo: &'a Repo,
    /// The file asked for; `None` if it was the listing.
    pub file: Option<&'a str>,
    /// Where the answer came from, if that is another host of the hub, which was not sent the token.
    pub elsewhere: Option<String>,
}

/// The address of a repository's page.
fn page(endpoint: &str, repo: &Repo) -> String {
    match repo.kind {
        RepoKind::Model => format!("{endpoint}/{}", repo.name),
        RepoKind::Dataset => format!("{endpoint}/datasets/{}", repo.name),
    }
}

impl Refusal<'_> {
    /// As a sentence. `has_token`: one was sent.
    pub(super) fn error(&self, endpoint: &str, has_token: bool) -> Error {
        let (repo, noun, page) = (self.repo, self.repo.kind.noun(), page(endpoint, self.repo));
        let name = &repo.name;
        if let (401 | 403, Some(host)) = (self.status, &self.elsewhere) {
            let what = format!("{host}, to which {endpoint} sends requests on, does not let you read {repo}");
            let error = Error::failure(self.with_message(format!("{what} (HTTP {})", self.status)));
            let help =
                "only the host that HF_ENDPOINT names is sent the token: if it belongs to that one, set HF_ENDPOINT to";
            return error.help(format!("{help} {host}"));
        }
        match (self.status, self.code.as_deref(), self.file) {
            // The hub answers for a private repository as if it did not exist.
            (401 | 403 | 404, Some("RepoNotFound"), _) | (404, None, None) => Error::failure(format!(
                "there is no {noun} `{name}` on {endpoint}, or it is private"
            ))
            .help(
                "check the name: it is ORG/NAME, as the address of its page ends; for a private one set HF_TOKEN to a \
                     token that may read it",
            ),
            (404, Some("RevisionNotFound"), _) => {
                let error = Error::failure(format!("the {noun} `{name}` {NO_REVISION} `{}`", repo.revision));
                error.help(format!("its branches, tags and commits: {page}/commits/{MAIN}"))
            }
            (404, _, Some(file)) => Error::failure(format!("there is no {file} in {repo} on {endpoint}"))
                .help(format!("its files: {page}/tree/{}", repo.revision)),
            (401 | 403, Some("GatedRepo"), _) => {
                let what = format!("the hub does not let you read {repo}: it is gated (HTTP {})", self.status);
                Error::failure(self.with_message(what)).help(if has_token {
                    format!(
                        "accept its terms on {page} with the account that the token (HF_TOKEN) belongs to; the token \
                         must be allowed to read gated repositories"
                    )
                } else {
                    format!("accept its terms on {page}, and set HF_TOKEN to a token of your account")
                })
            }
            (401 | 403, _, _) => {
                let what = format!("the hub does not let you read {repo} (HTTP {})", self.status);
                Error::failure(self.with_message(what)).help(if has_token {
                    format!("check that the token (HF_TOKEN) is valid and that its account may read {page}")
                } else {
                    format!("set HF_TOKEN to a token of an account that may read {page}")
                })
            }
            (429, _, _) => {
                let error = Error::failure(self.with_message("the hub asks for fewer requests (HTTP 429)".to_owned()));
                error.help("try again later; it allows more to those who set HF_TOKEN")
            }
            (500.., _, _) => {
                let what = format!("the hub failed (HTTP {}) when asked for {repo}", self.status);
                let help = "try again later; if the files are in the cache, --offline goes on without the hub";
                Error::failure(self.with_message(what)).help(help)
            }
            (status, _, _) => {
                let what = self.with_message(format!("the hub refuses to send {repo} (HTTP {status})"));
                Error::failure(what).help(format!("look at {page}"))
            }
        }
    }

    fn with_message(&self, what: String) -> String {
        match self.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
            // One line, and no more of it than an error should have.
            Some(message) => {
                let plain: String = message.chars().filter(|c| !c.is_control()).take(200).collect();
                format!("{what}: {plain}")
            }
            None => what,
        }
    }
}

/// No answer.
pub(super) fn unreachable(endpoint: &str, cause: &(dyn std::error::Error + 'static)) -> Error {
    let why = secret::hide(&innermost(cause));
    let error = Error::failure(format!("the hub cannot be reached at {endpoint}: {why}"));
    error.help(
        "check the network, HF_ENDPOINT and the proxy (HTTPS_PROXY); if the files are in the cache, --offline goes on \
         without the hub",
    )
}

/// Something answered that is not the hub.
pub(super) fn not_the_hub(endpoint: &str) -> Error {
    let error = Error::failure(format!("{endpoint} does not answer like the Hugging Face hub"));
    error.help("check HF_ENDPOINT; the login page of a network may have answered instead")
}

/// The endpoint redirects a request for a repository, or for a file of it without the headers of the hub, to a host
/// that is not known.
pub(super) fn sent_away(endpoint: &str, host: &str, repo: &Repo, file: Option<&str>) -> Error {
    let what = match file {
        Some(file) => {
            format!("{endpoint} sends the request for {file} of {repo} on to {host}, and gives no checksum")
        }
        None => format!("{endpoint} sends the request for {repo} on to {host}"),
    };
    let help = "that host is not one of the hub; if it is a mirror which you trust, set HF_ENDPOINT to it";
    Error::failure(what).help(help)
}

/// The endpoint redirects without end.
pub(super) fn circle(endpoint: &str, repo: &Repo, file: Option<&str>) -> Error {
    let file = file.map(|file| format!("{file} of ")).unwrap_or_default();
    let what = format!("{endpoint} redirects the request for {file}{repo} again and again");
    Error::failure(what).help("check HF_ENDPOINT")
}

/// The endpoint redirects to an address that everybody on the way can read and change.
pub(super) fn unencrypted(endpoint: &str, host: &str) -> Error {
    let what = format!("{endpoint} sends the request on to {host}, which is not encrypted");
    Error::failure(what).help("check HF_ENDPOINT; a hub that is reached over https sends nobody to http")
}

/// An answer is longer than any of the hub.
pub(super) fn too_long(endpoint: &str, repo: &Repo, most: u64) -> Error {
    let what = format!("{endpoint} answers a question about {repo} with more than {most} bytes");
    Error::failure(what).help(NO_LISTING)
}

/// A revision has more files than any should have.
pub(super) fn too_many_files(repo: &Repo, files: usize, most: usize) -> Error {
    Error::failure(format!("{repo} has {files} files, and {most} are the most that are read")).help(NO_LISTING)
}

/// What to do about a repository that cannot be listed.
const NO_LISTING: &str =
    "check HF_ENDPOINT; of a repository of that size, fetch the files with another program, and name those";

/// More came than was announced, or was announced than is taken.
pub(super) fn too_large(repo: &Repo, file: &str, what: &str) -> Error {
    let error = Error::failure(format!("{file} of {repo} is larger than it may be: {what}"));
    error.help(
        "nothing of it is kept; check HF_ENDPOINT and the proxy, or fetch the file with another program of the hub and \
         give --offline",
    )
}

/// A download that would take for ever.
pub(super) fn too_slow(repo: &Repo, file: &str, bytes: u64, seconds: u64) -> Error {
    let error = Error::failure(format!("{file} of {repo} came with {bytes} bytes in {seconds} s, and was given up"));
    error.help("run it again: what has arrived is kept, and the download goes on from there")
}

/// A download broke off too often.
pub(super) fn interrupted(
    repo: &Repo,
    file: &str,
    done: u64,
    size: Option<u64>,
    cause: impl std::fmt::Display,
) -> Error {
    let of = size.map(|size| format!(" of {size}")).unwrap_or_default();
    let what = format!("the download of {file} of {repo} broke off again and again, after {done}{of} bytes: {cause}");
    let help = "run it again: what has arrived is kept, and the download goes on from there";
    Error::failure(what).help(if done == 0 { "run it again later" } else { help })
}

/// The download does not match the hub's announcement.
pub(super) fn damaged(repo: &Repo, file: &str, what: &str) -> Error {
    let error = Error::failure(format!("{file} of {repo} did not arrive whole: {what}"));
    error
        .help("it was thrown away; run it again. If that does not help, a proxy may be changing the files on their way")
}

/// The innermost cause of an error: the layers above only report that something below failed.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
