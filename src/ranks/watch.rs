//! The watch that ranks keep over each other, beside their collective operations.
//!
//! A collective operation waits for all ranks, so one that is gone would keep the others for ever. MPI and NCCL tell
//! some of these cases, but not that a process is stopped or its machine cut off. So each rank has a TCP connection to
//! rank 0, on which both say every second that they are alive. Whoever finds that another rank has failed tells rank 0,
//! which tells all. What then happens is up to [`Watch`]'s maker: a program ends itself, in whatever operation its main
//! thread may be waiting.
//!
//! Messages are lines of JSON. A stranger who connects is not heard, because the name of the launch must match.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Ranks;
use crate::error::{Error, Result};
use crate::escape::in_one_line;

/// How often a rank says that it is alive.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a new connection has for its first message, and a message for its way into a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a rank that has told of a failure waits for the others to hear it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The longest message, in bytes.
const LONGEST: u64 = 1 << 20;

/// What ranks say to each other.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// The first one, of a rank that has connected to rank 0.
    Hello(Hello),
    /// Rank 0 has heard all ranks: their hosts, and what rank 0 hands out.
    Welcome { hosts: Vec<String>, gift: Vec<u8> },
    /// The sender is alive.
    Alive(Standing),
    /// A rank has failed.
    Failed(Failure),
    /// The sender has done its work.
    Done,
}

/// Who connects.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Hello {
    /// The name of the launch.
    launch: String,
    version: String,
    rank: usize,
    count: usize,
    host: String,
}

/// What a rank is doing.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
struct Standing {
    /// Its last update.
    update: u64,
    /// As in "rank 2 is preparing text".
    doing: String,
    /// Whether it waits for others.
    waits: bool,
}

/// Why a run of several ranks cannot go on.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The rank that has failed.
    pub rank: usize,
    /// Its machine.
    pub host: String,
    /// Its last update, as far as it is known.
    pub update: u64,
    /// What has happened, as in "rank 2 has ended".
    pub what: String,
}

impl Failure {
    /// As an error of the ranks that have not failed.
    pub fn error(&self) -> Error {
        let Self { rank, host, update, what } = self;
        let at = if *update == 0 { "before the first update".to_owned() } else { format!("after update {update}") };
        let what = format!("rank {rank} on {} {}, {at}", in_one_line(host), in_one_line(what));
        Error::failure(what).help(
            "the messages of that rank may say why; go on from the last checkpoint with --resume, with as many ranks \
             or fewer",
        )
    }
}

/// The other end of a connection.
struct Peer {
    rank: usize,
    host: String,
    stream: TcpStream,
    heard: Instant,
    standing: Standing,
    is_done: bool,
    /// Whether nothing more can come from it.
    is_closed: bool,
}

impl Peer {
    fn new(rank: usize, host: String, stream: TcpStream) -> Self {
        let standing = Standing::default();
        Self { rank, host, stream, heard: Instant::now(), standing, is_done: false, is_closed: false }
    }
}

struct Shared {
    ranks: Ranks,
    host: String,
    /// In milliseconds: how long a rank may be silent.
    timeout: AtomicU64,
    own: Mutex<Standing>,
    peers: Mutex<Vec<Peer>>,
    failed: OnceLock<Failure>,
    /// Whether this rank has done its work.
    is_done: AtomicBool,
    /// What to do when a rank has failed.
    act: Box<dyn Fn(&Failure) + Send + Sync>,
}

/// A panic elsewhere leaves the data as they are.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The failure of a peer. Ranks make their updates together, so this one's last update is the peer's, too.
    fn failure(&self, peer: &Peer, what: impl Into<String>) -> Failure {
        let update = peer.standing.update.max(locked(&self.own).update);
        Failure { rank: peer.rank, host: peer.host.clone(), update, what: what.into() }
    }

    fn send(&self, message: &Message, only: impl Fn(&Peer) -> bool) {
        for peer in locked(&self.peers).iter_mut().filter(|peer| only(peer)) {
            // Who reads from it notices that it is broken.
            let _ = send(&peer.stream, message);
        }
    }

    /// Takes note of a failure: tells the other ranks, and then does what is to be done. Only of the first one: others
    /// may be its consequences.
    fn fail(&self, failure: Failure) {
        if self.failed.set(failure.clone()).is_err() {
            return;
        }
        let is_own = failure.rank == self.ranks.rank;
        // Rank 0 is the only one that others listen to.
        if self.ranks.rank == 0 || is_own {
            self.send(&Message::Failed(failure.clone()), |peer| peer.rank != failure.rank);
            // A connection that is closed with unread data may lose what was sent.
            for peer in locked(&self.peers).iter() {
                let _ = peer.stream.shutdown(Shutdown::Write);
            }
            let since = Instant::now();
            let heard = |peer: &Peer| peer.is_closed || peer.rank == failure.rank;
            while since.elapsed() < LAST_WORDS && !locked(&self.peers).iter().all(heard) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        // Who has failed itself is about to say why, and to end.
        if !is_own {
            (self.act)(&failure);
        }
    }

    /// Notes what a peer says.
    fn hear(&self, index: usize, message: Message) {
        let mut peers = locked(&self.peers);
        let Some(peer) = peers.get_mut(index) else { return };
        peer.heard = Instant::now();
        match message {
            Message::Alive(standing) => peer.standing = standing,
            Message::Done => peer.is_done = true,
            Message::Failed(failure) => {
                drop(peers);
                self.fail(failure);
            }
            Message::Hello(_) | Message::Welcome { .. } => {}
        }
    }

    /// Listens to a peer until its connection ends.
    fn listen(&self, index: usize, stream: BufReader<TcpStream>) {
        let mut stream = stream;
        while let Some(message) = receive(&mut stream) {
            self.hear(index, message);
        }
        let mut peers = locked(&self.peers);
        let Some(peer) = peers.get_mut(index) else { return };
        peer.is_closed = true;
        let is_done = peer.is_done;
        let failure = self.failure(&peers[index], "has ended");
        drop(peers);
        if !is_done {
            self.fail(failure);
        }
    }

    /// Says regularly that this rank is alive, and looks whether the others are.
    fn keep(&self) {
        let mut last = Instant::now();
        while self.failed.get().is_none() {
            let timeout = Duration::from_millis(self.timeout.load(Ordering::Relaxed));
            // If this process was stopped, what the others said meanwhile has not been read yet.
            if last.elapsed() > timeout / 2 {
                locked(&self.peers).iter_mut().for_each(|peer| peer.heard = Instant::now());
            }
            last = Instant::now();
            let standing = locked(&self.own).clone();
            self.send(&Message::Alive(standing), |peer| !peer.is_closed);
            let silent = locked(&self.peers)
                .iter()
                .find(|peer| !peer.is_done && peer.heard.elapsed() > timeout)
                .map(|peer| self.failure(peer, format!("has been silent for {} seconds", timeout.as_secs())));
            if let Some(failure) = silent {
                self.fail(failure);
            }
            if self.is_done.load(Ordering::Relaxed) && locked(&self.peers).iter().all(|peer| peer.is_done) {
                break;
            }
            thread::sleep(INTERVAL.min(timeout / 4));
        }
    }
}

fn send(mut stream: &TcpStream, message: &Message) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// The next message; `None` if there is none, or none that can be understood.
fn receive(stream: &mut BufReader<TcpStream>) -> Option<Message> {
    let mut line = Vec::new();
    stream.by_ref().take(LONGEST).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// How ranks find each other.
pub struct Meeting<'a> {
    /// Which one this is.
    pub ranks: Ranks,
    /// What is the same for all of them, and for no others.
    pub launch: &'a str,
    /// The name of this machine.
    pub host: &'a str,
    /// How long to wait for all.
    pub timeout: Duration,
    /// What to do when a rank has failed, now or later. It may end the process.
    pub act: Box<dyn Fn(&Failure) + Send + Sync>,
}

impl Meeting<'_> {
    /// Rank 0 waits for the others on `listener`, and hands them `gift`.
    ///
    /// # Errors
    /// Not all come in time, two have the same number, or another version of the program.
    pub fn host(self, listener: &TcpListener, gift: &[u8]) -> Result<Watch> {
        let failed = |error| Error::failure(format!("cannot listen for the other ranks: {error}")).caused_by(error);
        listener.set_nonblocking(true).map_err(failed)?;
        let (heard, hellos) = mpsc::channel();
        let until = Instant::now() + self.timeout;
        let mut come: Vec<Option<(String, BufReader<TcpStream>)>> = (0..self.ranks.count).map(|_| None).collect();
        while come.iter().skip(1).any(Option::is_none) {
            if let Ok((stream, _)) = listener.accept() {
                let heard = heard.clone();
                // Who says nothing must not keep the others waiting.
                let read = move || {
                    let is_set = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
                    let mut stream = BufReader::new(stream);
                    if let (Ok(()), Some(Message::Hello(hello))) = (is_set, receive(&mut stream)) {
                        let _ = heard.send((hello, stream));
                    }
                };
                thread::Builder::new().spawn(read).map_err(|error| Error::thread("meets the ranks", error))?;
                continue;
            }
            match hellos.recv_timeout(Duration::from_millis(20)) {
                Ok((hello, stream)) => {
                    if let Some((rank, host)) = self.admit(&hello, &come)? {
                        come[rank] = Some((host, stream));
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if Instant::now() < until => {}
                Err(_) => return Err(self.missing(&come)),
            }
        }
        let hosts = come.iter().map(|rank| rank.as_ref().map_or(self.host, |(host, _)| host).to_owned());
        let hosts: Vec<String> = hosts.collect();
        for (_, stream) in come.iter().flatten() {
            let welcome = Message::Welcome { hosts: hosts.clone(), gift: gift.to_vec() };
            send(stream.get_ref(), &welcome)
                .map_err(|error| Error::failure(format!("cannot answer another rank: {error}")))?;
        }
        let peers = come.into_iter().enumerate().filter_map(|(rank, come)| come.map(|(host, it)| (rank, host, it)));
        self.watch(peers.collect(), hosts, gift.to_vec())
    }

    /// The rank and machine of somebody who says hello; `None` for a stranger.
    fn admit(&self, hello: &Hello, come: &[Option<(String, BufReader<TcpStream>)>]) -> Result<Option<(usize, String)>> {
        let Hello { launch, version, rank, count, host } = hello;
        if launch != self.launch {
            return Ok(None);
        }
        let other = in_one_line(host);
        if version != env!("CARGO_PKG_VERSION") {
            let what = format!("rank {rank} on {other} is mt {}", in_one_line(version));
            let help = format!("install the same version on all machines; this one is {}", env!("CARGO_PKG_VERSION"));
            return Err(Error::failure(what).help(help));
        }
        if *count != self.ranks.count || *rank == 0 || rank >= count {
            let what = format!("a process on {other} says it is rank {rank} of {count}");
            return Err(Error::failure(what).help("another run uses this address: choose another MASTER_PORT"));
        }
        if let Some((host, _)) = &come[*rank] {
            let what = format!("two processes say they are rank {rank}: on {} and on {other}", in_one_line(host));
            return Err(Error::failure(what).help("another run uses this address: choose another MASTER_PORT"));
        }
        Ok(Some((*rank, host.clone())))
    }

    fn missing(&self, come: &[Option<(String, BufReader<TcpStream>)>]) -> Error {
        let missing = come.iter().enumerate().skip(1).filter(|(_, come)| come.is_none());
        let missing: Vec<String> = missing.map(|(rank, _)| rank.to_string()).collect();
        let (ranks, have) = if missing.len() == 1 { ("rank", "has") } else { ("ranks", "have") };
        let seconds = self.timeout.as_secs();
        let what = format!("{ranks} {} {have} not connected within {seconds} seconds", missing.join(", "));
        let port = "the machine of rank 0, and that no firewall closes its port";
        Error::failure(what).help(format!("look at their messages; check that they reach {port}"))
    }

    /// Another rank looks for rank 0 at these addresses, in turn.
    ///
    /// # Errors
    /// It cannot be found in time, or it ends.
    pub fn join(self, addresses: &[(String, u16)]) -> Result<Watch> {
        let until = Instant::now() + self.timeout;
        let hello = Message::Hello(Hello {
            launch: self.launch.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            rank: self.ranks.rank,
            count: self.ranks.count,
            host: self.host.to_owned(),
        });
        let mut last = None;
        loop {
            for address in addresses {
                match self.greet(address, &hello, until) {
                    Ok((mut stream, Message::Welcome { hosts, gift })) if hosts.len() == self.ranks.count => {
                        stream.get_mut().set_read_timeout(None).map_err(|error| not_found(addresses, Some(error)))?;
                        return self.watch(vec![(0, hosts[0].clone(), stream)], hosts, gift);
                    }
                    // It listens, but for others, or it has ended.
                    Ok(_) => {}
                    Err(error) => last = Some(error),
                }
            }
            if Instant::now() > until {
                return Err(not_found(addresses, last));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Connects and says hello; returns the answer.
    fn greet(
        &self,
        (host, port): &(String, u16),
        hello: &Message,
        until: Instant,
    ) -> std::io::Result<(BufReader<TcpStream>, Message)> {
        use std::net::ToSocketAddrs;
        let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
        for address in (host.as_str(), *port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => {
                    send(&stream, hello)?;
                    // It answers when all have come.
                    let left = until.saturating_duration_since(Instant::now()).max(INTERVAL);
                    stream.set_read_timeout(Some(left))?;
                    let mut stream = BufReader::new(stream);
                    let closed = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    let answer = receive(&mut stream).ok_or(closed)?;
                    return Ok((stream, answer));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn watch(
        self,
        peers: Vec<(usize, String, BufReader<TcpStream>)>,
        hosts: Vec<String>,
        gift: Vec<u8>,
    ) -> Result<Watch> {
        let failed = |error| Error::failure(format!("cannot use a connection to another rank: {error}"));
        let mut streams = Vec::new();
        let mut known = Vec::new();
        for (rank, host, stream) in peers {
            let socket = stream.get_ref();
            socket.set_read_timeout(None).map_err(failed)?;
            socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
            socket.set_nodelay(true).map_err(failed)?;
            known.push(Peer::new(rank, host, socket.try_clone().map_err(failed)?));
            streams.push(stream);
        }
        let shared = Arc::new(Shared {
            ranks: self.ranks,
            host: self.host.to_owned(),
            timeout: AtomicU64::new(self.timeout.as_millis() as u64),
            own: Mutex::default(),
            peers: Mutex::new(known),
            failed: OnceLock::new(),
            is_done: AtomicBool::new(false),
            act: self.act,
        });
        let start = |task: Box<dyn FnOnce() + Send>| {
            let thread = thread::Builder::new().name("ranks".to_owned()).spawn(task);
            thread.map(drop).map_err(|error| Error::thread("watches the other ranks", error))
        };
        for (index, stream) in streams.into_iter().enumerate() {
            let shared = shared.clone();
            start(Box::new(move || shared.listen(index, stream)))?;
        }
        let keeper = shared.clone();
        start(Box::new(move || keeper.keep()))?;
        Ok(Watch { shared, hosts, gift })
    }
}

fn not_found(addresses: &[(String, u16)], last: Option<std::io::Error>) -> Error {
    let tried: Vec<String> = addresses.iter().map(|(host, port)| format!("{}:{port}", in_one_line(host))).collect();
    let why = last.map(|error| format!(": {error}")).unwrap_or_default();
    let what = format!("cannot connect to rank 0 at {}{why}", tried.join(" or "));
    Error::failure(what).help("look at the messages of rank 0; check that this machine reaches it at that port")
}

/// A rank's connections to the ranks that it watches.
pub struct Watch {
    shared: Arc<Shared>,
    hosts: Vec<String>,
    gift: Vec<u8>,
}

impl Watch {
    /// The machines of all ranks.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// What rank 0 has handed out.
    pub fn gift(&self) -> &[u8] {
        &self.gift
    }

    /// Sets how long a rank may be silent.
    pub fn set_timeout(&self, timeout: Duration) {
        self.shared.timeout.store(timeout.as_millis() as u64, Ordering::Relaxed);
    }

    /// Notes the last update, for messages.
    pub fn updated(&self, update: u64) {
        locked(&self.shared.own).update = update;
    }

    /// Notes what this rank does from now on, as in "rank 2 is preparing text".
    pub fn does(&self, doing: &str) {
        let mut own = locked(&self.shared.own);
        if own.doing != doing {
            doing.clone_into(&mut own.doing);
        }
    }

    /// Notes whether this rank waits for others.
    pub fn waits(&self, waits: bool) {
        locked(&self.shared.own).waits = waits;
    }

    /// Who keeps others waiting, and with what, as far as this rank can tell.
    pub fn awaited(&self) -> Option<String> {
        let peers = locked(&self.shared.peers);
        let describe = |peer: &Peer| {
            let (host, doing) = (in_one_line(&peer.host), in_one_line(&peer.standing.doing));
            let doing = if doing.is_empty() { String::new() } else { format!(", which is {doing}") };
            format!("rank {} on {host}{doing}", peer.rank)
        };
        let awaited: Vec<String> = peers.iter().filter(|peer| !peer.standing.waits).map(describe).collect();
        let more = awaited.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let first = awaited.into_iter().take(3).collect::<Vec<_>>().join(", ");
        (!first.is_empty()).then(|| first + &more)
    }

    /// What has failed, if anything.
    pub fn failure(&self) -> Option<&Failure> {
        self.shared.failed.get()
    }

    /// Whether this rank has done its work.
    pub fn is_done(&self) -> bool {
        self.shared.is_done.load(Ordering::Relaxed)
    }

    /// Tells all that this rank cannot go on.
    pub fn fail(&self, error: &Error) {
        let (ranks, update) = (self.shared.ranks, locked(&self.shared.own).update);
        let what = format!("has failed: {}", error.what());
        self.shared.fail(Failure { rank: ranks.rank, host: self.shared.host.clone(), update, what });
    }

    /// Says that this rank's work is done, and waits until the others say so of theirs.
    ///
    /// # Errors
    /// One fails before.
    pub fn finish(&self) -> Result<()> {
        let Shared { is_done, peers, failed, .. } = &*self.shared;
        is_done.store(true, Ordering::Relaxed);
        self.shared.send(&Message::Done, |_| true);
        while !locked(peers).iter().all(|peer| peer.is_done) {
            if let Some(failure) = failed.get() {
                return Err(failure.error());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// A rank that goes without having finished has failed.
impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_done() && self.failure().is_none() {
            self.fail(&Error::failure("it has stopped working"));
        }
    }
}

#[cfg(test)]
mod tests;
