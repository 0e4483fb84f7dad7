//! Collective operations by MPI, through the system's library.
//!
//! All are non-blocking and polled, so that a rank stops waiting as soon as it is known that another one has failed.
//! MPI may go on writing into the memory of an operation that is not complete: after a failure that memory is leaked,
//! and there are no further operations.

mod sums;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use mpi::environment::{Threading, Universe};
use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator as _, Equivalence};

use self::sums::{EarlySums, Request, is_complete};
use super::watch::Watch;
use super::{Communicator, OnComplete, Ranks};
use crate::error::{Error, Result};
use crate::notice::Notice;

/// Numbers that one operation broadcasts.
const PIECE: usize = 1 << 20;
/// How long to ask without a pause whether an operation is complete.
const BUSY: Duration = Duration::from_millis(2);
/// The pause between two questions after that.
const PAUSE: Duration = Duration::from_micros(50);
/// How long a rank waits for others before it says so, again and again.
const TELL_EVERY: Duration = Duration::from_secs(20);
/// How long to wait, where MPI reports an error, until it is known which rank has failed.
const UNTIL_KNOWN: Duration = Duration::from_secs(90);

/// MPI's ranks.
pub struct Mpi {
    /// The sums of gradients. Their thread ends before MPI does.
    sums: RefCell<EarlySums>,
    universe: Cell<Option<Universe>>,
    world: SimpleCommunicator,
    ranks: Ranks,
    /// Tells of ranks that have failed, once all have met.
    watch: RefCell<Option<Rc<Watch>>>,
    /// Until when ranks must have met.
    until: Instant,
    /// Receives notices.
    tell: Box<dyn Fn(Notice)>,
    is_broken: Cell<bool>,
}

impl Mpi {
    /// Starts MPI, in a process that an MPI launcher has started as one of `ranks`. All must start it before `until`.
    ///
    /// # Errors
    /// MPI knows other ranks.
    pub fn start(ranks: Ranks, until: Instant, tell: Box<dyn Fn(Notice)>) -> Result<Self> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Serialized)
            .ok_or_else(|| Error::failure("MPI has been started before, in this process"))?;
        let world = universe.world();
        // SAFETY: the communicator is valid; by default, errors would end the process without a word of ours.
        unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        let known = Ranks { rank: world.rank() as usize, count: world.size() as usize };
        if known != ranks {
            let what = format!(
                "the launcher has started rank {} of {}, but for MPI it is rank {} of {}",
                ranks.rank, ranks.count, known.rank, known.count
            );
            return Err(Error::failure(what).help(
                "start with the `mpirun` of the MPI library that mt was built with (`ldd` names it), or with \
                 `srun --mpi=pmix` or `--mpi=pmi2`",
            ));
        }
        let sums = EarlySums::new(world.as_raw(), ranks.count > 1 && threading >= Threading::Serialized)?;
        Ok(Self {
            universe: Cell::new(Some(universe)),
            world,
            ranks,
            watch: RefCell::new(None),
            until,
            tell,
            is_broken: Cell::new(false),
            sums: RefCell::new(sums),
        })
    }

    /// From now on, operations wait as long as no rank has failed.
    pub fn watched_by(&self, watch: Rc<Watch>) {
        *self.watch.borrow_mut() = Some(watch);
    }

    /// Ends MPI. All ranks must do so; without it the launcher takes the run as failed.
    pub fn finish(&self) {
        self.sums.borrow_mut().end();
        if !self.is_broken.get() {
            drop(self.universe.take());
        }
    }

    /// Fails if an operation has failed before.
    fn refuse_if_broken(&self) -> Result<()> {
        if self.is_broken.get() { Err(self.failure("an earlier operation has failed")) } else { Ok(()) }
    }

    /// The error of a rank that has failed, or else of MPI.
    fn failure(&self, what: &str) -> Error {
        let watch = self.watch.borrow();
        let failed = watch.as_ref().and_then(|watch| watch.failure());
        failed.map_or_else(|| Error::failure(format!("MPI: {what}")), super::watch::Failure::error)
    }

    fn check(&self, code: i32) -> Result<()> {
        if code == ffi::MPI_SUCCESS as i32 { Ok(()) } else { Err(self.failed(code)) }
    }

    /// The error of MPI's code, after which no more is done.
    fn failed(&self, code: i32) -> Error {
        self.is_broken.set(true);
        // Which rank has failed is known a little later.
        let since = Instant::now();
        let is_known = || self.watch.borrow().as_ref().is_none_or(|watch| watch.failure().is_some());
        while !is_known() && since.elapsed() < UNTIL_KNOWN {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize];
        let mut length = 0;
        // SAFETY: the text has the room that MPI asks for.
        unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
        text.truncate(length.max(0) as usize);
        self.failure(&String::from_utf8_lossy(&text))
    }

    /// Waits until an operation is complete.
    fn wait(&self, mut request: Request) -> Result<()> {
        // SAFETY: the request is that of an operation which this rank has begun.
        self.wait_until(|| unsafe { is_complete(&mut request) }.map_err(|code| self.failed(code)))
    }

    /// Asks until the answer is yes, or another rank has failed.
    fn wait_until(&self, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
        let watch = self.watch.borrow().clone();
        let since = Instant::now();
        let mut told = since;
        let mut says_so = false;
        while !is_over()? {
            let has_failed = match &watch {
                Some(watch) => watch.failure().is_some(),
                None => Instant::now() > self.until,
            };
            if has_failed {
                self.is_broken.set(true);
                return Err(self.failure("not all ranks have started in time"));
            }
            if since.elapsed() < BUSY {
                std::thread::yield_now();
                continue;
            }
            if let (Some(watch), false) = (&watch, says_so) {
                watch.waits(true);
                says_so = true;
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                let awaited = watch.as_ref().and_then(|watch| watch.awaited());
                if let (Some(who), 0) = (awaited, self.ranks.rank) {
                    (self.tell)(Notice::Info(format!("waiting for {who}")));
                }
            }
            std::thread::sleep(PAUSE);
        }
        if let (Some(watch), true) = (&watch, says_so) {
            watch.waits(false);
        }
        Ok(())
    }

    fn try_sum(&self, gradients: &mut [f32], numbers: &mut [Vec<f64>; 2]) -> Result<()> {
        self.wait_until(|| self.sums.borrow().locked().complete(gradients).map_err(|code| self.failed(code)))?;
        let [sent, sum] = numbers;
        // SAFETY: they are waited for now, and leaked if that fails. The thread of the sums has nothing to do.
        let begun = unsafe { sums::begin(self.world.as_raw(), sent, sum) };
        self.wait(begun.map_err(|code| self.failed(code))?)
    }

    /// Gathers as many values of all ranks as this one sends.
    fn gather_equally<T: Equivalence>(&self, sent: &[T], all: &mut [T]) -> Result<()> {
        let count = i32::try_from(sent.len()).map_err(|_| Error::failure("too much to gather"))?;
        assert_eq!(all.len(), sent.len() * self.ranks.count);
        let of = || T::equivalent_datatype().as_raw();
        // SAFETY: the pointers, count and type describe slices that the caller keeps until this is complete; if it
        // never is, they are leaked.
        let (code, request) = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let (from, to) = (sent.as_ptr().cast(), all.as_mut_ptr().cast());
            let code = ffi::MPI_Iallgather(from, count, of(), to, count, of(), self.world.as_raw(), &mut request);
            (code, request)
        };
        self.check(code)?;
        self.wait(request)
    }

    fn try_gather(&self, length: &[i32], lengths: &mut [i32], own: &mut Vec<u8>, all: &mut Vec<u8>) -> Result<()> {
        self.gather_equally(length, lengths)?;
        // Each rank has as much room: the counts of a gather of different sizes would have to last, too.
        let room = lengths.iter().copied().max().unwrap_or(0) as usize;
        own.resize(room, 0);
        all.resize(room * lengths.len(), 0);
        if room == 0 { Ok(()) } else { self.gather_equally(own, all) }
    }

    fn try_broadcast(&self, values: &mut [f32], piece: &mut Vec<f32>) -> Result<()> {
        for values in values.chunks_mut(PIECE) {
            piece.clear();
            piece.extend_from_slice(values);
            // SAFETY: as in `sums::begin`; the piece is leaked if the operation fails.
            let (code, request) = unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let code = ffi::MPI_Ibcast(
                    piece.as_mut_ptr().cast(),
                    piece.len() as i32,
                    f32::equivalent_datatype().as_raw(),
                    0,
                    self.world.as_raw(),
                    &mut request,
                );
                (code, request)
            };
            self.check(code)?;
            self.wait(request)?;
            values.copy_from_slice(piece);
        }
        Ok(())
    }
}

/// A rank that goes without having finished tells the others, and does not end MPI: that would wait for them.
impl Drop for Mpi {
    fn drop(&mut self) {
        let Some(universe) = self.universe.take() else { return };
        std::mem::forget(universe);
        if let Some(watch) = self.watch.take() {
            watch.fail(&Error::failure("it has stopped working"));
        }
    }
}

impl Communicator for Mpi {
    fn ranks(&self) -> Ranks {
        self.ranks
    }

    fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()> {
        self.refuse_if_broken()?;
        let mut copies = [numbers.to_vec(), numbers.to_vec()];
        let summed = self.try_sum(gradients, &mut copies);
        if summed.is_err() {
            self.is_broken.set(true);
            std::mem::forget(copies);
            return summed;
        }
        numbers.copy_from_slice(&copies[1]);
        Ok(())
    }

    fn sum_ahead(&self) -> Option<OnComplete> {
        self.sums.borrow().begin()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.refuse_if_broken()?;
        let length = i32::try_from(bytes.len()).map_err(|_| Error::failure("too much to gather"))?;
        let (length, mut lengths) = (vec![length], vec![0; self.ranks.count]);
        let (mut own, mut all) = (bytes.to_vec(), Vec::new());
        if let Err(error) = self.try_gather(&length, &mut lengths, &mut own, &mut all) {
            self.is_broken.set(true);
            std::mem::forget((length, lengths, own, all));
            return Err(error);
        }
        let room = all.len() / lengths.len();
        Ok(lengths.iter().enumerate().map(|(rank, length)| all[rank * room..][..*length as usize].to_vec()).collect())
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        self.refuse_if_broken()?;
        let mut piece = Vec::new();
        let sent = self.try_broadcast(values, &mut piece);
        if sent.is_err() {
            self.is_broken.set(true);
            std::mem::forget(piece);
        }
        sent
    }
}
