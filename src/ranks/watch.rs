//! The watch that ranks keep over each other, beside their collective operations.
//!
//! A collective operation waits for all ranks, so one that is gone would keep the others for ever. MPI and NCCL tell
//! some of these cases, but not that a process is stopped or its machine cut off. So each rank has a TCP connection to
//! rank 0, on which both say every second that they are alive. Whoever finds that another rank has failed tells rank 0,
//! which tells all. What then happens is up to [`Watch`]'s maker: a program ends itself, in whatever operation its main
//! thread may be waiting.
//!
//! Messages are lines of JSON. A stranger who connects is not heard, because the name of the launch must match.

mod meeting;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use meeting::Meeting;

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
        let at = if *update == 0 { "before training".to_owned() } else { format!("after update {update}") };
        let what = format!("rank {rank} on {} {}, {at}", in_one_line(host), in_one_line(what));
        let help = match update {
            0 => "the messages of that rank may say more",
            _ => {
                "the messages of that rank may say more; go on from the last checkpoint with --resume, with as many \
                 ranks or fewer"
            }
        };
        Error::failure(what).help(help)
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
    /// Whether nobody watches any more.
    is_over: AtomicBool,
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

    /// The failure of this rank.
    fn own_failure(&self, error: &Error) -> Failure {
        let (rank, update) = (self.ranks.rank, locked(&self.own).update);
        Failure { rank, host: self.host.clone(), update, what: format!("has failed: {}", error.what()) }
    }

    fn send(&self, message: &Message, only: impl Fn(&Peer) -> bool) {
        for peer in locked(&self.peers).iter_mut().filter(|peer| only(peer)) {
            // Who reads from it notices that it is broken.
            let _ = send(&peer.stream, message);
        }
    }

    /// Takes note of a failure: tells the other ranks, and then does what is to be done. Only of the first one: others
    /// may be its consequences. Returns whether it is that.
    fn fail(&self, failure: Failure) -> bool {
        if self.failed.set(failure.clone()).is_err() {
            return false;
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
        true
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
        while self.failed.get().is_none() && !self.is_over.load(Ordering::Relaxed) {
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
                // One that is done still has to end MPI with the others.
                .find(|peer| !peer.is_closed && peer.heard.elapsed() > timeout)
                .map(|peer| self.failure(peer, format!("has been silent for {} seconds", timeout.as_secs())));
            if let Some(failure) = silent {
                self.fail(failure);
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

/// How long a rank whose device reports a failure waits to learn which rank is the cause.
const UNTIL_KNOWN: Duration = Duration::from_secs(10);

/// How other threads of a rank say that it cannot go on.
pub struct Alarm(Arc<Shared>);

impl Alarm {
    /// Does what is to be done if a rank has failed, and tells the others. If the cause `is_elsewhere`, it first waits
    /// to hear from there.
    pub fn raise(&self, error: &Error, is_elsewhere: bool) {
        let Self(shared) = self;
        let since = Instant::now();
        let is_over = || shared.failed.get().is_some() || shared.is_done.load(Ordering::Relaxed);
        while is_elsewhere && since.elapsed() < UNTIL_KNOWN && !is_over() {
            thread::sleep(Duration::from_millis(20));
        }
        let failure = shared.own_failure(error);
        if !is_over() && shared.fail(failure.clone()) {
            (shared.act)(&failure);
        }
    }
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
        self.shared.fail(self.shared.own_failure(error));
    }

    /// What other threads of this rank use if it cannot go on.
    pub fn alarm(&self) -> Alarm {
        Alarm(self.shared.clone())
    }

    /// Says that this rank's work is done, and waits until the others say so of theirs.
    ///
    /// # Errors
    /// One fails before.
    pub fn finish(&self) -> Result<()> {
        let Shared { is_done, peers, failed, .. } = &*self.shared;
        is_done.store(true, Ordering::Relaxed);
        // The others wait for rank 0 alone, which waits for all of them before it lets them go.
        let leads = self.shared.ranks.rank == 0;
        self.shared.send(&Message::Done, |_| !leads);
        while !locked(peers).iter().all(|peer| peer.is_done) {
            if let Some(failure) = failed.get() {
                return Err(failure.error());
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.shared.send(&Message::Done, |_| leads);
        Ok(())
    }
}

/// A rank that goes without having finished has failed.
impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_done() && self.failure().is_none() {
            self.fail(&Error::failure("it has stopped working"));
        }
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
