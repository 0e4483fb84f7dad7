//! This process as one of the ranks of a run, from when they meet until all are done.

use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::launch::Launch;
use super::watch::{Failure, Watch};
use super::{Communicator, Ranks};
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::notice::Notice;

/// How long ranks wait for each other at the start, before the configuration is known.
#[cfg(feature = "mpi")]
const START: Duration = Duration::from_secs(120);

/// What a process does when another rank has failed, in whatever its main thread is: most end.
pub type Act = Box<dyn Fn(&Failure) + Send + Sync>;

/// One of the ranks of a run.
pub struct Group {
    communicator: Rc<dyn Communicator>,
    watch: Rc<Watch>,
    #[cfg(feature = "mpi")]
    mpi: Rc<super::mpi::Mpi>,
}

impl Group {
    /// Meets the other ranks. `act` is called on another thread.
    ///
    /// # Errors
    /// This build has nothing by which such ranks could communicate, or they do not all come.
    #[cfg(not(feature = "mpi"))]
    pub fn join(launch: &Launch, _tell: Box<dyn Fn(Notice)>, _act: Act) -> Result<Self> {
        let Ranks { rank, count } = launch.ranks;
        let by = launch.launcher.name();
        let what = format!("this is rank {rank} of {count}, started by {by}, but this mt is built without MPI");
        Err(Error::usage(what).help(format!(
            "build it with `cargo build --release --locked --features mpi` (docs/guide/clusters.md), or start one \
             process, without {by}"
        )))
    }

    /// Meets the other ranks. `act` is called on another thread.
    ///
    /// # Errors
    /// This build has nothing by which such ranks could communicate, or they do not all come.
    #[cfg(feature = "mpi")]
    pub fn join(launch: &Launch, tell: Box<dyn Fn(Notice)>, act: Act) -> Result<Self> {
        use std::net::TcpListener;
        use std::time::Instant;

        use super::mpi::Mpi;
        use super::timed::Timed;
        use super::watch::Meeting;

        let ranks = launch.ranks;
        if !launch.launcher.is_of_mpi() {
            let what =
                format!("{} has started {} ranks, but MPI does not know them", launch.launcher.name(), ranks.count);
            return Err(Error::usage(what).help("on processors, start them with `mpirun` or `srun`"));
        }
        let mpi = Rc::new(Mpi::start(ranks, Instant::now() + START, tell)?);
        let host = host();
        let listener =
            match ranks.rank {
                0 => Some(TcpListener::bind(("::", 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0))).map_err(
                    |error| Error::failure(format!("cannot listen for the other ranks: {error}")).caused_by(error),
                )?),
                _ => None,
            };
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
        let watch = Rc::new(watch);
        mpi.watched_by(watch.clone());
        let communicator = Rc::new(Timed::new(mpi.clone(), watch.hosts()));
        Ok(Self { communicator, watch, mpi })
    }

    /// Which rank this is.
    pub fn ranks(&self) -> Ranks {
        self.communicator.ranks()
    }

    /// Whether this is rank 0, which alone has the run directory.
    pub fn leads(&self) -> bool {
        self.ranks().rank == 0
    }

    /// The collective operations.
    pub fn communicator(&self) -> Rc<dyn Communicator> {
        self.communicator.clone()
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
        share(&*self.communicator, own)
    }

    /// What all ranks give, in their order.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, own: &T) -> Result<Vec<T>> {
        let own = serde_json::to_vec(own).map_err(not_understood)?;
        let all = self.communicator.gather(&own)?;
        all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(not_understood)).collect()
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn wait(&self) -> Result<()> {
        self.communicator.gather(&[]).map(drop)
    }

    /// Compares something of all ranks, such as their text.
    ///
    /// # Errors
    /// That of a rank differs from rank 0's: the error of all ranks names it, and says of `what` it is.
    pub fn agree(&self, what: &str, own: &str, help: &str) -> Result<()> {
        let all = self.communicator.gather(own.as_bytes())?;
        let differs = all.iter().position(|other| *other != all[0]);
        let Some(rank) = differs else { return Ok(()) };
        let host = in_one_line(&self.watch.hosts()[rank]);
        Err(Error::failure(format!("{what} of rank {rank} on {host} is not that of rank 0")).help(help))
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
        self.mpi.finish();
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

/// The name of this machine.
#[cfg(feature = "mpi")]
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
    fn new(host: &str, listener: &std::net::TcpListener) -> Result<Self> {
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
