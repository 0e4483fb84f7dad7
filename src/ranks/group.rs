//! This process as one of the ranks of a run, from when they meet until all are done.

use std::cell::RefCell;
use std::net::{IpAddr, TcpListener};
use std::rc::Rc;
#[cfg(feature = "mpi")]
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::launch::Launch;
use super::watch::{Failure, Meeting, Watch};
use super::{Communicator, Ranks};
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::notice::Notice;

/// How long ranks wait for each other at the start, before the configuration is known.
const START: Duration = Duration::from_secs(120);

/// What a process does when another rank has failed, in whatever its main thread is: most end.
pub type Act = Box<dyn Fn(&Failure) + Send + Sync>;

/// On rank 0, makes what it gives the others when they meet, so that their GPUs can find each other; on others, tries
/// whether they can use it.
pub type Gift<'a> = &'a dyn Fn(Ranks) -> Result<Vec<u8>>;

/// One of the ranks of a run.
pub struct Group {
    communicator: RefCell<Rc<dyn Communicator>>,
    watch: Rc<Watch>,
    #[cfg(feature = "mpi")]
    mpi: Option<Rc<super::mpi::Mpi>>,
}

impl Group {
    /// Meets the other ranks: by MPI, if it has started them; else, in a build for GPUs, which then has a `gift`, at
    /// rank 0's address. `act` is called on another thread.
    ///
    /// # Errors
    /// This build has nothing by which such ranks could communicate, or they do not all come.
    pub fn join(launch: &Launch, gift: Option<Gift<'_>>, tell: Box<dyn Fn(Notice)>, act: Act) -> Result<Self> {
        #[cfg(feature = "mpi")]
        if launch.launcher.is_of_mpi() {
            return Self::by_mpi(launch.ranks, tell, act);
        }
        let gift = gift.ok_or_else(|| refused(launch))?;
        let Some((address, port)) = &launch.address else {
            return Err(refused(launch));
        };
        let (ranks, gift, host) = (launch.ranks, gift(launch.ranks)?, host());
        let meeting = Meeting { ranks, launch: &launch.name, host: &host, timeout: START, act };
        let watch = if ranks.rank == 0 {
            let listener = listen(address, *port, launch.is_local)?;
            if !launch.is_own() {
                tell(Notice::Info(format!("waiting for the other ranks at {address}:{port}")));
            }
            meeting.host(&listener, &gift)?
        } else {
            meeting.join(&[(address.clone(), *port)])?
        };
        Ok(Self {
            communicator: RefCell::new(Rc::new(Unconnected(ranks))),
            watch: Rc::new(watch),
            #[cfg(feature = "mpi")]
            mpi: None,
        })
    }

    #[cfg(feature = "mpi")]
    fn by_mpi(ranks: Ranks, tell: Box<dyn Fn(Notice)>, act: Act) -> Result<Self> {
        use std::sync::mpsc::{self, RecvTimeoutError};
        use std::thread;
        use std::time::Instant;

        use super::mpi::Mpi;
        use super::timed::Timed;

        let (host, act) = (host(), Arc::new(act));
        // MPI waits for ever for a rank that does not start it.
        let (started, has_started) = mpsc::channel::<()>();
        let late = Failure {
            rank: ranks.rank,
            host: host.clone(),
            update: 0,
            what: format!("has waited {} seconds for all ranks to start", START.as_secs()),
        };
        let act_of_late = act.clone();
        let wait = move || {
            if let Err(RecvTimeoutError::Timeout) = has_started.recv_timeout(START) {
                act_of_late(&late);
            }
        };
        thread::Builder::new().spawn(wait).map_err(|error| Error::thread("waits for the ranks", error))?;
        let mpi = Rc::new(Mpi::start(ranks, Instant::now() + START, tell)?);
        let act: Act = Box::new(move |failure| act(failure));
        let listener = (ranks.rank == 0).then(|| listen("", 0, false)).transpose()?;
        let own = listener.as_ref().map(|listener| Offer::new(&host, listener)).transpose()?;
        let Offer { launch, host: of_zero, addresses, port } = share(&*mpi, own)?;
        let meeting = Meeting { ranks, launch: &launch, host: &host, timeout: START, act };
        let watch = match listener {
            Some(listener) => meeting.host(&listener, &[])?,
            None => {
                let here = (of_zero == host).then(|| "127.0.0.1".to_owned());
                let addresses = here.into_iter().chain(addresses).map(|address| (address, port));
                meeting.join(&addresses.collect::<Vec<_>>())?
            }
        };
        drop(started);
        let watch = Rc::new(watch);
        mpi.watched_by(watch.clone());
        let communicator: Rc<dyn Communicator> = Rc::new(Timed::new(mpi.clone(), watch.hosts()));
        Ok(Self { communicator: RefCell::new(communicator), watch, mpi: Some(mpi) })
    }

    /// Whether ranks have collective operations between processors.
    pub fn is_of_mpi(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.mpi.is_some();
        #[cfg(not(feature = "mpi"))]
        false
    }

    /// Uses other collective operations from now on. All ranks must do so.
    pub fn connect(&self, communicator: Rc<dyn Communicator>) {
        *self.communicator.borrow_mut() = communicator;
    }

    /// Which rank this is.
    pub fn ranks(&self) -> Ranks {
        self.communicator.borrow().ranks()
    }

    /// Whether this is rank 0, which alone has the run directory.
    pub fn leads(&self) -> bool {
        self.ranks().rank == 0
    }

    /// The collective operations.
    pub fn communicator(&self) -> Rc<dyn Communicator> {
        self.communicator.borrow().clone()
    }

    /// The watch over the other ranks.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Sets how long a rank may be silent.
    pub fn set_timeout(&self, seconds: u64) {
        self.watch.set_timeout(Duration::from_secs(seconds));
    }

    /// How many ranks on this machine are before this one, and how many there are.
    pub fn local(&self) -> Ranks {
        let (hosts, rank) = (self.watch.hosts(), self.ranks().rank);
        let here = |hosts: &[String]| hosts.iter().filter(|host| **host == self.watch.hosts()[rank]).count();
        Ranks { rank: here(&hosts[..rank]), count: here(hosts) }
    }

    /// How many machines there are.
    pub fn machines(&self) -> usize {
        let hosts: std::collections::HashSet<&String> = self.watch.hosts().iter().collect();
        hosts.len()
    }

    /// What rank 0 gives, for all ranks. Only rank 0 gives something.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn share<T: Serialize + DeserializeOwned>(&self, own: Option<T>) -> Result<T> {
        share(&*self.communicator(), own)
    }

    /// What all ranks give, in their order.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>> {
        let own = serde_json::to_vec(own).map_err(not_understood)?;
        let all = self.communicator().gather(&own)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(not_understood)).collect()
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn wait(&self) -> Result<()> {
        self.communicator().gather(&[]).map(drop)
    }

    /// Compares something of all ranks, such as their text.
    ///
    /// # Errors
    /// That of a rank differs from rank 0's: the error of all ranks names it, and says of `what` it is.
    pub fn agree(&self, what: &str, own: &str, help: &str) -> Result<()> {
        let all = self.communicator().gather(own.as_bytes())?;
        let differs = all.iter().position(|other| *other != all[0]);
        let Some(rank) = differs else { return Ok(()) };
        let host = in_one_line(&self.watch.hosts()[rank]);
        Err(Error::failure(format!("rank {rank} on {host} differs from rank 0 in {what}")).help(help))
    }

    /// Whether this rank's work is done.
    pub fn is_done(&self) -> bool {
        self.watch.is_done()
    }

    /// Says that this rank's work is done, and waits for the others.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn finish(&self) -> Result<()> {
        self.watch.finish()?;
        #[cfg(feature = "mpi")]
        self.mpi.iter().for_each(|mpi| mpi.finish());
        Ok(())
    }
}

fn share<T: Serialize + DeserializeOwned>(communicator: &dyn Communicator, own: Option<T>) -> Result<T> {
    let own = own.map(|own| serde_json::to_vec(&own)).transpose().map_err(not_understood)?;
    let all = communicator.gather(&own.unwrap_or_default())?;
    serde_json::from_slice(&all[0]).map_err(not_understood)
}

fn not_understood(error: serde_json::Error) -> Error {
    Error::failure(format!("ranks do not understand each other: {error}"))
}

/// The error of ranks that cannot communicate.
fn refused(launch: &Launch) -> Error {
    const BUILD: &str = "build it with `cargo build --release --locked --features mpi` (docs/guide/clusters.md)";
    let (Ranks { rank, count }, by) = (launch.ranks, launch.launcher.name());
    let what = format!("this is rank {rank} of {count}, started by {by}");
    if launch.launcher.is_of_mpi() {
        let error = Error::usage(format!("{what}, but this mt is built without MPI"));
        return error.help(format!("{BUILD}, or start one process, without {by}"));
    }
    if cfg!(feature = "cuda") {
        let error = Error::usage(format!("{what}, but MASTER_ADDR and MASTER_PORT do not say where rank 0 is"));
        return error.help("set both, as torchrun does");
    }
    let error = Error::usage(format!("{what}, but this mt is built without CUDA, and ranks on processors need MPI"));
    error.help(if cfg!(feature = "mpi") {
        "start them with `mpirun` or `srun`".to_owned()
    } else {
        format!("{BUILD}, and start the ranks with `mpirun` or `srun`")
    })
}

/// A group whose ranks have met, but have no collective operations yet.
struct Unconnected(Ranks);

impl Unconnected {
    fn refuse<T>(&self) -> Result<T> {
        Err(Error::failure(format!("rank {} is not connected with the others yet", self.0.rank)))
    }
}

impl Communicator for Unconnected {
    fn ranks(&self) -> Ranks {
        self.0
    }

    fn sum(&self, _: &mut [f32], _: &mut [f64]) -> Result<()> {
        self.refuse()
    }

    fn gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.refuse()
    }

    fn broadcast(&self, _: &mut [f32]) -> Result<()> {
        self.refuse()
    }
}

/// Listens for the other ranks: only on this machine, if the address is one that only it can reach. Some launchers tell
/// only rank 0 that it is at `localhost`, and ranks on other machines its name.
fn listen(address: &str, port: u16, is_local: bool) -> Result<TcpListener> {
    let is_loopback = address.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let is_here = is_loopback || address == "localhost" && is_local;
    let listener = match is_here {
        true => TcpListener::bind((address, port)),
        false => TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
    };
    listener.map_err(|error| {
        let error = Error::failure(format!("cannot listen for the other ranks at port {port}: {error}"));
        error.help("another program may use it: start again, or choose another MASTER_PORT")
    })
}

/// The name of this machine.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Where rank 0 can be reached.
#[cfg(feature = "mpi")]
#[derive(Serialize, serde::Deserialize)]
struct Offer {
    /// A name that no other launch has.
    launch: String,
    host: String,
    addresses: Vec<String>,
    port: u16,
}

#[cfg(feature = "mpi")]
impl Offer {
    fn new(host: &str, listener: &TcpListener) -> Result<Self> {
        use std::hash::{BuildHasher, RandomState};

        let failed = |error: std::io::Error| Error::failure(format!("cannot look at the network: {error}"));
        let port = listener.local_addr().map_err(failed)?.port();
        // Keyed anew in each process.
        let launch = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let interfaces = if_addrs::get_if_addrs().map_err(failed)?;
        let addresses =
            interfaces.iter().filter(|it| !it.is_loopback() && !it.is_link_local()).map(|it| it.ip().to_string());
        Ok(Self { launch, host: host.to_owned(), addresses: addresses.chain([host.to_owned()]).collect(), port })
    }
}
