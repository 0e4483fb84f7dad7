//! How the ranks of a launch find each other.

use std::io::BufReader;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::{Failure, Hello, INTERVAL, Message, PATIENCE, Peer, Shared, Watch, receive, send};
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::ranks::Ranks;

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
            is_over: AtomicBool::new(false),
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
