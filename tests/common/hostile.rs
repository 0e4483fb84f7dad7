//! A server on this machine that answers as a test says, byte for byte, and remembers what it was asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The commit that its listings name.
pub const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// What its header `Authorization` holds.
    pub authorization: Option<String>,
}

impl Asked {
    /// Whether it is about a repository, and for none of its files.
    pub fn is_about(&self) -> bool {
        self.path.starts_with("/api/")
    }
}

/// The server; its threads end with the test.
pub struct Hostile {
    pub address: String,
    log: Arc<Mutex<Vec<Asked>>>,
}

impl Hostile {
    /// Answers each request with what `answer` writes to the connection, which is closed then.
    pub fn start(answer: impl Fn(&Asked, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (log, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let kept = log.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (log, answer) = (kept.clone(), answer.clone());
                // A client that goes away is no failure.
                std::thread::spawn(move || {
                    let Some(asked) = read(&stream) else { return };
                    log.lock().unwrap().push(asked.clone());
                    let _ = answer(&asked, &mut stream);
                });
            }
        });
        Self { address, log }
    }

    /// All requests since the last call.
    pub fn log(&self) -> Vec<Asked> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers = lines.take_while(|line| !line.is_empty());
    let headers =
        headers.filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned())));
    // Read to their end, so that the connection is not reset.
    let headers: Vec<_> = headers.collect();
    let authorization = headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
    Some(Asked { method, path, authorization: authorization.map(|(_, value)| value) })
}

/// Writes a whole answer.
pub fn answer(stream: &mut TcpStream, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
    head(stream, status, &[headers, &[("Content-Length", &body.len().to_string())]].concat())?;
    stream.write_all(body)
}

/// Writes the head of an answer.
pub fn head(stream: &mut TcpStream, status: u16, headers: &[(&str, &str)]) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    stream.write_all(format!("HTTP/1.1 {status} -\r\nConnection: close\r\n{headers}\r\n").as_bytes())
}

/// Writes without end: until the other side has had enough.
pub fn endless(stream: &mut TcpStream, part: &[u8]) -> std::io::Result<()> {
    let parts = part.repeat((1 << 16) / part.len().max(1) + 1);
    loop {
        stream.write_all(&parts)?;
    }
}

/// What the hub says of a repository with these files.
pub fn listing<S: AsRef<str>>(files: &[S]) -> Vec<u8> {
    let siblings: Vec<_> = files.iter().map(|name| serde_json::json!({ "rfilename": name.as_ref() })).collect();
    serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string().into_bytes()
}
