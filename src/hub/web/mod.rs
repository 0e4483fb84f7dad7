//! Requests to the hub: which address gets the token, which redirects are followed, and how much of an answer is read.
//!
//! The HTTP client follows no redirect itself. Each address is joined as browsers do it, so that `/\host/`, which looks
//! like a path, counts as the host that it leads to. Only then its origin is compared with the endpoint's.

mod conversion;
mod download;
mod listing;
mod problem;
mod retry;
mod secret;

use std::fs;
use std::io::Read;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{MAIN, Repo, paths, says_yes, variable};
use crate::console::message;
use crate::error::{Error, Result};
use crate::limits::{HUB_ANSWER, HUB_ANSWER_TIME, HUB_REDIRECTS, HUB_REFUSAL};
use problem::Refusal;
use retry::Failure;
use secret::Secrets;

/// How long a connection may take, an answer about a file, and how long a download may be silent.
const CONNECT: Duration = Duration::from_secs(15);
pub(super) const ANSWER: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// Where the hub is.
const ENDPOINT: &str = "https://huggingface.co";
/// The hub's own addresses. A mirror may send a request on to them.
const HUB: [&str; 3] = [ENDPOINT, "https://hub-ci.huggingface.co", "https://hf.co"];
/// The variable that lets a token go to another machine without encryption.
const INSECURE: &str = "MT_INSECURE_TOKEN";
const AGENT: &str = concat!("mt/", env!("CARGO_PKG_VERSION"));

/// The hub, reached over the network.
pub(super) struct Web {
    /// The endpoint as messages show it, without a password.
    pub endpoint: String,
    address: Url,
    /// The token; or the name and password in `HF_ENDPOINT`, which go before it, as for all programs of the hub. Only
    /// the origin of the endpoint gets it.
    credentials: Option<HeaderValue>,
    has_token: bool,
    secrets: Secrets,
    client: Client,
    /// For this machine, past any proxy: that would be another one.
    near: Client,
}

/// A request.
pub(super) struct Request<'a> {
    pub method: Method,
    pub url: &'a Url,
    pub repo: &'a Repo,
    /// The file asked for; `None` if it is about the repository.
    pub file: Option<&'a str>,
    /// The first byte to request.
    pub start: u64,
    /// The time that the whole answer may take; without it, each part of it may be silent for a while.
    pub time: Option<Duration>,
}

impl Web {
    pub(super) fn from_environment() -> Result<Self> {
        let set = variable(&["HF_ENDPOINT"]).unwrap_or_else(|| ENDPOINT.to_owned());
        let mut address = Url::parse(&set).ok().filter(is_of_web).ok_or_else(|| no_address(&set))?;
        address.set_query(None);
        address.set_fragment(None);
        let user = [address.username(), address.password().unwrap_or_default()].map(str::to_owned);
        let decoded = user.each_ref().map(|part| decoded(part));
        without_user(&mut address);
        let token = token();
        let basic = secret::basic(&decoded[0], &decoded[1]);
        let has_user = user.iter().any(|part| !part.is_empty());
        let has_token = token.is_some() && !has_user;
        let credentials = match &token {
            _ if has_user => Some(authorization(&format!("Basic {basic}"))?),
            Some(token) => Some(authorization(&format!("Bearer {token}"))?),
            None => None,
        };
        let endpoint = address.as_str().trim_end_matches('/').to_owned();
        if credentials.is_some() && address.scheme() == "http" && !is_near(&address) {
            allow_insecure(&endpoint)?;
        }
        let [[_, password], [_, plain]] = [user, decoded];
        let secrets = Secrets::new([token.unwrap_or_default(), password, plain, basic]);
        let client = |is_near: bool| {
            // An unpacked answer could be larger than its stated length.
            let builder = Client::builder().no_gzip().no_brotli().no_zstd().no_deflate().referer(false);
            let builder = builder.user_agent(AGENT).connect_timeout(CONNECT).timeout(SILENCE).redirect(Policy::none());
            if is_near { builder.no_proxy() } else { builder }.build().map_err(no_client)
        };
        let (client, near) = (client(false)?, client(true)?);
        Ok(Self { endpoint, address, credentials, has_token, secrets, client, near })
    }

    /// The address of a part of the hub.
    fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.address.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// The address of information about a repository.
    fn url_about(&self, repo: &Repo, parts: &[&str]) -> Url {
        self.url(["api", repo.kind.plural()].into_iter().chain(repo.name.split('/')).chain(parts.iter().copied()))
    }

    /// The answer to a request, after the redirects that `follows` agrees to.
    fn send(
        &self,
        request: &Request<'_>,
        follows: impl Fn(&Response, &Url) -> bool,
    ) -> std::result::Result<Response, Failure> {
        let mut url = request.url.clone();
        for _ in 0..=HUB_REDIRECTS {
            let response = self.send_once(request, &url)?;
            match self.target(&response, &url)? {
                Some(to) if follows(&response, &to) => url = to,
                _ => return Ok(response),
            }
        }
        Err(Failure::Final(problem::circle(&self.endpoint, request.repo, request.file)))
    }

    fn send_once(&self, request: &Request<'_>, url: &Url) -> std::result::Result<Response, Failure> {
        let client = if is_near(url) { &self.near } else { &self.client };
        // With compression in transit, neither the size nor the offset in the file would be known.
        let mut builder = client.request(request.method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(credentials) = self.credentials_for(url) {
            builder = builder.header(AUTHORIZATION, credentials);
        }
        if request.start > 0 {
            builder = builder.header(RANGE, format!("bytes={}-", request.start));
        }
        if let Some(time) = request.time {
            builder = builder.timeout(time);
        }
        builder.send().map_err(|error| self.unanswered(url, error))
    }

    /// Only the origin that `HF_ENDPOINT` names gets them.
    fn credentials_for(&self, url: &Url) -> Option<&HeaderValue> {
        self.credentials.as_ref().filter(|_| is_same_origin(url, &self.address))
    }

    /// Where an answer of `url` sends the request on to.
    fn target(&self, response: &Response, url: &Url) -> std::result::Result<Option<Url>, Failure> {
        let location = header(response.headers(), LOCATION.as_str()).filter(|_| response.status().is_redirection());
        let Some(location) = location else { return Ok(None) };
        let target = url.join(&location).ok().filter(is_of_web);
        let mut to = target.ok_or_else(|| Failure::Final(problem::not_the_hub(&self.endpoint)))?;
        // Those of a server are not ours.
        without_user(&mut to);
        if url.scheme() == "https" && to.scheme() == "http" {
            return Err(Failure::Final(problem::unencrypted(&self.endpoint, &origin(&to))));
        }
        Ok(Some(to))
    }

    /// Whether a redirect stays on its host or goes to a host of the hub: the endpoint, or the hub's own.
    fn is_within(&self, from: &Url, to: &Url) -> bool {
        is_within(&self.address, from, to)
    }

    /// What the hub answers to a question about a repository.
    fn answer<T: DeserializeOwned>(&self, url: &Url, repo: &Repo) -> std::result::Result<T, Failure> {
        let request = Request { method: Method::GET, url, repo, file: None, start: 0, time: Some(HUB_ANSWER_TIME) };
        // Another host could send false information about a repository, and a request to a host in the user's network
        // could have side effects.
        let response = self.send(&request, |response, to| self.is_within(response.url(), to))?;
        if let Some(to) = self.target(&response, response.url())? {
            return Err(Failure::Final(problem::sent_away(&self.endpoint, &origin(&to), repo, None)));
        }
        if !response.status().is_success() {
            return Err(self.refusal(response, repo, None));
        }
        if response.content_length().is_some_and(|length| length > HUB_ANSWER) {
            return Err(Failure::Final(problem::too_long(&self.endpoint, repo, HUB_ANSWER)));
        }
        let mut bytes = Vec::new();
        let read = response.take(HUB_ANSWER + 1).read_to_end(&mut bytes);
        read.map_err(|error| Failure::Passing(problem::unreachable(&self.endpoint, &error), None))?;
        if bytes.len() as u64 > HUB_ANSWER {
            return Err(Failure::Final(problem::too_long(&self.endpoint, repo, HUB_ANSWER)));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            // The message of a parser may quote its input.
            let cause: String = self.secrets.hide(&error.to_string()).chars().take(200).collect();
            Failure::Final(problem::not_the_hub(&self.endpoint).caused_by(cause))
        })
    }

    /// No answer, or half of one.
    fn unanswered(&self, url: &Url, error: reqwest::Error) -> Failure {
        let error = error.without_url();
        if error.is_builder() {
            return Failure::Final(problem::not_the_hub(&self.endpoint).caused_by(error));
        }
        let connects = !error.is_connect();
        // A mirror may have sent the request on.
        let host = if is_same_origin(url, &self.address) { self.endpoint.clone() } else { origin(url) };
        let error = problem::unreachable(&host, &error).caused_by(error);
        // A host that cannot be reached now will not be a second later; one that is silent may still answer.
        if connects { Failure::Passing(error, None) } else { Failure::Final(error) }
    }

    /// The failure for a refused request, for a file if `file` is given.
    fn refusal(&self, response: Response, repo: &Repo, file: Option<&str>) -> Failure {
        let (status, headers) = (response.status().as_u16(), response.headers());
        let mut code = header(headers, "x-error-code");
        let wait = header(headers, RETRY_AFTER.as_str()).and_then(|seconds| seconds.trim().parse().ok());
        let said = header(headers, "x-error-message");
        let url = response.url();
        let is_elsewhere = !is_same_origin(url, &self.address) && self.is_within(&self.address, url);
        let elsewhere = self.credentials.as_ref().filter(|_| is_elsewhere).map(|_| origin(url));
        // The hub reports what is missing; some mirrors do not.
        if status == 404 && code.is_none() && file.is_none() && self.exists(repo) {
            code = Some("RevisionNotFound".to_owned());
        }
        let message = said.or_else(|| said_in_body(response)).map(|message| self.secrets.hide(&message));
        self.refused(&Refusal { status, code, message, repo, file, elsewhere }, wait.map(Duration::from_secs))
    }

    /// Whether there is a repository without its revision.
    fn exists(&self, repo: &Repo) -> bool {
        let main = repo.at(MAIN);
        repo.revision != MAIN && self.answer::<IgnoredAny>(&self.url_about(&main, &[]), &main).is_ok()
    }

    /// The failure for a refusal.
    fn refused(&self, refusal: &Refusal<'_>, wait: Option<Duration>) -> Failure {
        let error = refusal.error(&self.endpoint, self.has_token);
        match refusal.status {
            408 | 429 | 500.. => Failure::Passing(error, wait),
            _ => Failure::Final(error),
        }
    }
}

/// The error in the body of a refusal: `{"error": "…"}`.
fn said_in_body(response: Response) -> Option<String> {
    #[derive(Deserialize)]
    struct Said {
        error: String,
    }
    let mut body = Vec::new();
    response.take(HUB_REFUSAL).read_to_end(&mut body).ok()?;
    Some(serde_json::from_slice::<Said>(&body).ok()?.error)
}

/// The answer broke off. The errors above the innermost name the address with its signature.
pub(super) fn broken(error: &std::io::Error) -> Error {
    Error::failure(secret::hide(&problem::innermost(error)))
}

fn no_address(set: &str) -> Error {
    let error = Error::usage(format!("cannot connect to the hub (HF_ENDPOINT=\"{}\")", secret::hide(set)));
    error.help("HF_ENDPOINT must be an address such as https://huggingface.co, or not set")
}

fn no_client(error: reqwest::Error) -> Error {
    let what = format!("cannot open connections to the hub: {}", problem::innermost(&error));
    let help = "are the system's certificates installed (the package ca-certificates)? If the files are in the cache, \
                give --offline";
    Error::failure(what).help(help).caused_by(error)
}

/// Fails where a token would be readable on its way, unless that is allowed.
fn allow_insecure(endpoint: &str) -> Result<()> {
    if says_yes(&[INSECURE]) {
        message(format_args!(
            "warning: {endpoint} is not encrypted: everybody on the way can read the token of the hub ({INSECURE})"
        ));
        return Ok(());
    }
    let what = format!("HF_ENDPOINT={endpoint} is not encrypted: everybody on the way could read the token of the hub");
    Err(Error::usage(what).help(format!(
        "use https://, or send no token (HF_HUB_DISABLE_IMPLICIT_TOKEN=1); {INSECURE}=1 sends it all the same"
    )))
}

/// An address without name and password.
fn without_user(url: &mut Url) {
    // They fail for addresses that can have neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
}

/// Decodes a name or a password of an address.
fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

fn is_of_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Whether two addresses are of the same origin: scheme, host and port.
fn is_same_origin(a: &Url, b: &Url) -> bool {
    a.origin() == b.origin()
}

/// An address as messages name it.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Whether an address is of this machine.
fn is_near(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let number = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    number.map_or(host == "localhost", |number| number.is_loopback())
}

/// Whether a host sends requests on from its plain to its encrypted address.
fn is_upgrade(from: &Url, to: &Url) -> bool {
    let is_usual = |url: &Url, scheme| url.scheme() == scheme && url.port().is_none();
    is_usual(from, "http") && is_usual(to, "https") && from.host() == to.host()
}

fn is_within(endpoint: &Url, from: &Url, to: &Url) -> bool {
    let hub = HUB.iter().filter_map(|hub| Url::parse(hub).ok());
    let goes_on = |url: &&Url| is_same_origin(url, to) || is_upgrade(url, to);
    [endpoint, from].iter().any(goes_on) || hub.into_iter().any(|hub| is_same_origin(&hub, to))
}

pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The token of the user: `HF_TOKEN` (formerly `HUGGING_FACE_HUB_TOKEN`), else a file, as for all programs of the hub.
fn token() -> Option<String> {
    if says_yes(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]) {
        return None;
    }
    let clean =
        |token: String| Some(token.replace(['\r', '\n'], "").trim().to_owned()).filter(|token| !token.is_empty());
    let file = || clean(fs::read_to_string(paths::token()?).ok()?);
    variable(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).and_then(clean).or_else(file)
}

/// The header that sends a token or a password.
fn authorization(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
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

    fn url(address: &str) -> Url {
        Url::parse(address).unwrap()
    }

    #[test]
    fn redirects_are_followed_within_the_hub_and_the_token_stays_on_its_host() {
        let (endpoint, from) = (url("https://mirror.example/hub"), url("https://mirror.example/hub/a/b"));
        for (location, target, follows, has_token) in [
            ("/hub/c/d", "https://mirror.example/hub/c/d", true, true),
            ("d?x=1", "https://mirror.example/hub/a/d?x=1", true, true),
            ("//mirror.example/c", "https://mirror.example/c", true, true),
            ("https://MIRROR.example:443/c", "https://mirror.example/c", true, true),
            ("http://mirror.example/c", "http://mirror.example/c", false, false),
            ("https://mirror.example:8443/c", "https://mirror.example:8443/c", false, false),
            ("https://mirror.example./c", "https://mirror.example./c", false, false),
            ("https://mirror.example.evil.example/c", "https://mirror.example.evil.example/c", false, false),
            ("https://mirror.example@evil.example/c", "https://mirror.example@evil.example/c", false, false),
            ("//storage.example/c", "https://storage.example/c", false, false),
            // Characters that browsers take for slashes, or leave out.
            ("/\\evil.example/c", "https://evil.example/c", false, false),
            ("\\\\evil.example/c", "https://evil.example/c", false, false),
            ("\\/evil.example/c", "https://evil.example/c", false, false),
            ("/\t/evil.example/c", "https://evil.example/c", false, false),
            ("https:\\\\evil.example/c", "https://evil.example/c", false, false),
            ("https:///evil.example/c", "https://evil.example/c", false, false),
            ("https://mirror.example\\@evil.example/c", "https://mirror.example/@evil.example/c", true, true),
            ("https:c", "https://mirror.example/hub/a/c", true, true),
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
                (is_within(&endpoint, &from, &to), is_same_origin(&to, &endpoint)),
                (follows, has_token),
                "{location}"
            );
        }
        let plain = url("http://mirror.example/a");
        assert!(is_within(&plain, &plain, &url("https://mirror.example/a")));
        for to in ["https://mirror.example:8443/a", "https://other.example/a", "http://mirror.example:81/a"] {
            assert!(!is_within(&plain, &plain, &url(to)), "{to}");
        }
        // And back again.
        assert!(is_within(&endpoint, &url("https://huggingface.co/a"), &from));
    }

    #[test]
    fn this_machine_has_few_names() {
        for address in
            ["http://localhost:1", "http://127.0.0.1", "http://127.3.2.1:80", "http://[::1]", "http://2130706433"]
        {
            assert!(is_near(&url(address)), "{address}");
        }
        for address in [
            "http://localhost.example",
            "http://0.0.0.0",
            "http://10.0.0.1",
            "http://[::2]",
            "http://127.0.0.1.example",
        ] {
            assert!(!is_near(&url(address)), "{address}");
        }
    }

    #[test]
    fn names_and_passwords_are_taken_out_of_addresses() {
        let mut address = url("https://m%40e:p%3aw%@mirror.example/hub");
        let user = [address.username(), address.password().unwrap()].map(decoded);
        assert_eq!(user, ["m@e", "p:w%"]);
        without_user(&mut address);
        assert_eq!(address.as_str(), "https://mirror.example/hub");
    }
}
