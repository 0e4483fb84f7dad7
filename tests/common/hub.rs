//! A small server with the paths of the Hugging Face hub, which misbehaves when told to.
//!
//! Larger files come from a second server, like the hub's storage: another port counts as another host.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// Whether it went to the storage.
    pub storage: bool,
}

/// What goes wrong with a request.
#[derive(Clone)]
pub enum Fault {
    /// The answer has this status and these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// The connection breaks off at this byte of the file.
    Cut(usize),
    /// The connection breaks off this many bytes after the beginning of the part that was asked for.
    Drip(usize),
    /// Only this many bytes of the file come, as if that were all.
    Short(usize),
    /// Whatever part is asked for, all of the file comes.
    All,
    /// Whatever part is asked for, another one comes.
    OtherPart,
    /// Whatever part is asked for, the file is said to be shorter.
    NoPart,
    /// The file has other bytes.
    Wrong,
    /// A web page comes instead of the file.
    Page,
    /// The ETag is this.
    Etag(&'static str),
}

impl Fault {
    /// Whether it happens where the contents are sent.
    fn is_of_contents(&self) -> bool {
        !matches!(self, Self::Status(..) | Self::Page | Self::Etag(_))
    }
}

#[derive(Default)]
struct State {
    /// Commits by revision, by repository: `datasets/ORG/NAME`, or for models `ORG/NAME`.
    revisions: BTreeMap<String, BTreeMap<String, String>>,
    /// Files by repository and commit.
    files: BTreeMap<(String, String), BTreeMap<String, Vec<u8>>>,
    /// By the former names of repositories: the status of the redirect, the host that it names, if any, and the
    /// present name.
    renamed: BTreeMap<String, (u16, String, String)>,
    /// The token that each gated repository needs.
    gated: BTreeMap<String, String>,
    /// How a request's path ends, what goes wrong with it, and how often.
    faults: Vec<(String, Fault, usize)>,
    /// Pull requests by repository, newest first.
    pulls: BTreeMap<String, Vec<Pull>>,
    log: Vec<Request>,
    storage: String,
}

/// A pull request as the hub describes it; its revision is `refs/pr/N`.
#[derive(Clone)]
pub struct Pull {
    pub number: u64,
    pub title: &'static str,
    pub author: &'static str,
    pub status: &'static str,
    /// The revision that it was made from.
    pub parent: String,
}

/// The server; its threads end with the test.
pub struct HubServer {
    pub address: String,
    state: Arc<Mutex<State>>,
}

/// Files of at least this size come from the storage.
const LARGE: usize = 600;

impl HubServer {
    pub fn start() -> Self {
        let [hub, storage] = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { storage: address(&storage), ..State::default() }));
        let server = Self { address: address(&hub), state: state.clone() };
        for (listener, is_storage) in [(hub, false), (storage, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || drop(serve(&stream, is_storage, &state)));
                }
            });
        }
        server
    }

    /// Adds a data set with a revision `main`.
    pub fn dataset(&self, name: &str, files: &[(&str, &[u8])]) {
        self.revision(name, "main", files);
    }

    /// Adds a revision of a data set and returns its commit.
    pub fn revision(&self, name: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        self.add(format!("datasets/{name}"), revision, files)
    }

    /// Adds a revision of a model and returns its commit.
    pub fn model(&self, name: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        self.add(name.to_owned(), revision, files)
    }

    fn add(&self, repo: String, revision: &str, files: &[(&str, &[u8])]) -> String {
        let mut hash = Sha256::new_with_prefix(format!("{repo} {revision}"));
        files.iter().for_each(|(name, contents)| hash.update([name.as_bytes(), contents].concat()));
        let commit = format!("{:x}", hash.finalize())[..40].to_owned();
        let files = files.iter().map(|(name, contents)| ((*name).to_owned(), contents.to_vec())).collect();
        let mut state = self.state.lock().unwrap();
        state.files.insert((repo.clone(), commit.clone()), files);
        state.revisions.entry(repo).or_default().insert(revision.to_owned(), commit.clone());
        commit
    }

    /// Adds a pull request to a model. They are listed two per page.
    pub fn pull(&self, name: &str, pull: Pull) {
        self.state.lock().unwrap().pulls.entry(name.to_owned()).or_default().insert(0, pull);
    }

    /// Sends those who ask for a data set to where it is now. Without a host, that is the same one.
    pub fn rename(&self, old: &str, status: u16, host: &str, new: &str) {
        let [old, new] = [old, new].map(|name| format!("datasets/{name}"));
        self.state.lock().unwrap().renamed.insert(old, (status, host.to_owned(), new));
    }

    pub fn gate(&self, name: &str, token: &str) {
        self.state.lock().unwrap().gated.insert(format!("datasets/{name}"), token.to_owned());
    }

    /// Makes the next `times` requests whose path ends with `path` go wrong.
    pub fn fault(&self, path: &str, fault: Fault, times: usize) {
        self.state.lock().unwrap().faults.push((path.to_owned(), fault, times));
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// All requests since the last call.
    pub fn log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// Names of the files whose contents were sent since the last call, sorted.
    pub fn fetched(&self) -> Vec<String> {
        let sent = |request: &Request| request.method == "GET" && !request.path.starts_with("/api/");
        let log = self.log();
        let name = |request: &Request| request.path.rsplit_once("/resolve/").map(|(_, rest)| rest[41..].to_owned());
        // A redirect and its target count once.
        let mut names: Vec<String> =
            log.iter().filter(|request| sent(request) && !request.storage).filter_map(name).collect();
        names.sort();
        names
    }
}

/// Answers one request.
fn serve(stream: &TcpStream, is_storage: bool, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or("").to_owned(), decode(words.next().unwrap_or("")));
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let request = Request { method, path, headers, storage: is_storage };
    let answer = {
        let mut state = state.lock().unwrap();
        state.log.push(request.clone());
        answer(&request, &mut state)
    };
    answer.send(stream, request.method == "HEAD")
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// How many bytes of the body to send, if not all.
    sent: Option<usize>,
}

impl Answer {
    fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { status, headers, body: body.into(), sent: None }
    }

    fn send(&self, mut stream: &TcpStream, head_only: bool) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", self.status);
        if !self.headers.iter().any(|(name, _)| name == "Content-Length") {
            text += &format!("Content-Length: {}\r\n", self.body.len());
        }
        self.headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        stream.write_all((text + "\r\n").as_bytes())?;
        if !head_only {
            stream.write_all(&self.body[..self.sent.unwrap_or(self.body.len())])?;
        }
        stream.flush()
    }
}

fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits: String = rest.by_ref().take(2).map(char::from).collect();
            bytes.push(u8::from_str_radix(&digits, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn answer(request: &Request, state: &mut State) -> Answer {
    let path = request.path.as_str();
    let fault = state.faults.iter_mut().find(|(part, fault, times)| {
        path.ends_with(part.as_str()) && *times > 0 && (!fault.is_of_contents() || request.method == "GET")
    });
    let large = |files: &BTreeMap<String, Vec<u8>>, name: &str| files.get(name).is_some_and(|file| file.len() >= LARGE);
    let fault = fault.map(|(_, fault, times)| (fault.clone(), times));
    let (repo, commit, file) = match split(path) {
        Some(parts) => parts,
        None => return Answer::new(404, &[], ""),
    };
    let is_large = file.is_some_and(|file| {
        state.files.get(&(repo.to_owned(), commit.to_owned())).is_some_and(|files| large(files, file))
    });
    // Faults of the contents happen at the server that sends them.
    let fault = fault.filter(|(fault, _)| !fault.is_of_contents() || request.storage == is_large);
    let fault = fault.map(|(fault, times)| {
        *times -= 1;
        fault
    });
    match fault {
        Some(Fault::Status(status, headers)) => return Answer::new(status, headers, "no"),
        Some(Fault::Page) => return Answer::new(200, &[], "<html>Please log in</html>"),
        _ => {}
    }
    if let Some((status, host, new)) = state.renamed.get(repo) {
        return Answer::new(*status, &[("Location", &format!("{host}{}", path.replacen(repo, new, 1)))], "moved");
    }
    if let (Some(token), false) = (state.gated.get(repo), request.storage)
        && request.headers.get("authorization") != Some(&format!("Bearer {token}"))
    {
        let status = if request.headers.contains_key("authorization") { 403 } else { 401 };
        return Answer::new(status, &[("X-Error-Code", "GatedRepo"), ("X-Error-Message", "Access is restricted.")], "");
    }
    let Some(revisions) = state.revisions.get(repo) else {
        return Answer::new(404, &[("X-Error-Code", "RepoNotFound")], "");
    };
    if file.is_none() && path.contains("/discussions?") {
        let page: usize = path.rsplit_once("&p=").unwrap().1.parse().unwrap();
        let pulls = state.pulls.get(repo).cloned().unwrap_or_default();
        let shown = pulls.iter().skip(2 * page).take(2).map(|pull| {
            json!({ "num": pull.number, "title": pull.title, "status": pull.status, "isPullRequest": true,
                    "author": { "name": pull.author }, "repo": {} })
        });
        let body = json!({ "discussions": shown.collect::<Vec<_>>(), "count": pulls.len(), "start": 2 * page });
        return Answer::new(200, &[("Content-Type", "application/json")], body.to_string());
    }
    if let (None, Some((_, revision))) = (file, path.split_once("/commits/")) {
        let revision = revision.split('?').next().unwrap();
        let pull = state
            .pulls
            .get(repo)
            .and_then(|pulls| pulls.iter().find(|pull| revision == format!("refs/pr/{}", pull.number)));
        let parent = pull.map(|pull| revisions.get(&pull.parent).unwrap_or(&pull.parent));
        let commits = revisions.get(revision).into_iter().chain(parent);
        let commits: Vec<_> = commits
            .map(
                |id| json!({ "id": id, "title": "", "message": "", "authors": [], "date": "2026-01-01T00:00:00.000Z" }),
            )
            .collect();
        return Answer::new(200, &[("Content-Type", "application/json")], json!(commits).to_string());
    }
    let Some(file) = file else {
        let commit = if commit.is_empty() { "main" } else { commit };
        let known =
            revisions.get(commit).cloned().or_else(|| revisions.values().find(|known| *known == commit).cloned());
        let Some(commit) = known else {
            return Answer::new(404, &[("X-Error-Code", "RevisionNotFound")], "");
        };
        let files = &state.files[&(repo.to_owned(), commit.clone())];
        let siblings: Vec<_> = files.keys().map(|name| json!({ "rfilename": name })).collect();
        let body = json!({ "id": repo, "sha": commit, "siblings": siblings, "gated": false });
        return Answer::new(200, &[("Content-Type", "application/json")], body.to_string());
    };
    let key = (repo.to_owned(), commit.to_owned());
    let Some(contents) = state.files.get(&key).and_then(|files| files.get(file)) else {
        return Answer::new(404, &[("X-Error-Code", "EntryNotFound")], "");
    };
    // Small files have the checksum that Git gives them.
    let of_git = || Sha1::new_with_prefix(format!("blob {}\0", contents.len())).chain_update(contents).finalize();
    let etag = if is_large { format!("{:x}", Sha256::digest(contents)) } else { format!("{:x}", of_git()) };
    if is_large && !request.storage {
        let (size, location) = (contents.len().to_string(), format!("{}{}", state.storage, request.path));
        let etag = if let Some(Fault::Etag(etag)) = fault { etag.to_owned() } else { etag };
        let linked = format!("\"{etag}\"");
        let headers = [
            ("X-Repo-Commit", commit),
            ("X-Linked-Etag", &linked),
            ("X-Linked-Size", &size),
            ("ETag", "\"of the redirect\""),
            ("Location", &location),
        ];
        return Answer::new(302, &headers, "moved");
    }
    contents_of(contents, &etag, commit, request, fault)
}

/// Splits `/api/datasets/O/N/revision/R`, `/api/datasets/O/N` and `/datasets/O/N/resolve/COMMIT/FILE`; for models
/// `/api/models/O/N` and `/O/N/resolve/COMMIT/FILE`.
fn split(path: &str) -> Option<(&str, &str, Option<&str>)> {
    if let Some(rest) = path.strip_prefix("/api/") {
        let rest = rest.strip_prefix("models/").unwrap_or(rest);
        if let Some((repo, _)) = rest.split_once("/discussions?").or_else(|| rest.split_once("/commits/")) {
            return Some((repo, "", None));
        }
        return Some(rest.split_once("/revision/").map_or((rest, "", None), |(repo, revision)| (repo, revision, None)));
    }
    let (repo, rest) = path.trim_start_matches('/').split_once("/resolve/")?;
    let (commit, file) = rest.split_once('/')?;
    Some((repo, commit, Some(file)))
}

fn contents_of(contents: &[u8], etag: &str, commit: &str, request: &Request, fault: Option<Fault>) -> Answer {
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
    let range = range.filter(|_| !matches!(fault, Some(Fault::All)));
    let mut start = range.map_or(0, |start| start.parse::<usize>().unwrap());
    if start > contents.len() || matches!(fault, Some(Fault::NoPart)) {
        return Answer::new(416, &[], "");
    }
    if matches!(fault, Some(Fault::OtherPart)) {
        start /= 2;
    }
    let mut body = contents[start..].to_vec();
    let mut sent = None;
    let etag = match fault {
        Some(Fault::Cut(at)) => {
            sent = Some(at.saturating_sub(start).min(body.len()));
            etag
        }
        Some(Fault::Drip(bytes)) => {
            sent = Some(bytes.min(body.len()));
            etag
        }
        Some(Fault::Short(bytes)) => {
            body.truncate(bytes.saturating_sub(start));
            etag
        }
        Some(Fault::Wrong) => {
            body.iter_mut().for_each(|byte| *byte ^= 1);
            etag
        }
        Some(Fault::Etag(etag)) => etag,
        _ => etag,
    };
    let part = format!("bytes {start}-{}/{}", contents.len().saturating_sub(1), contents.len());
    let etag = format!("\"{etag}\"");
    let mut headers = vec![("ETag", etag.as_str()), ("X-Repo-Commit", commit)];
    if range.is_some() {
        headers.push(("Content-Range", &part));
    }
    Answer { sent, ..Answer::new(if range.is_some() { 206 } else { 200 }, &headers, body) }
}
