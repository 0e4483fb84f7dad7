//! Sums of gradients, in pieces, which go on while the main thread computes.
//!
//! All ranks cut gradients into the same pieces, and add these up in the same order: from the last to the first, since
//! backward completes them so. Each rank may begin a piece when it has it. MPI moves data only while it is called, so
//! a thread calls it as long as there is a sum under way; whoever holds the lock may do so.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mpi::ffi;
use mpi::traits::Equivalence;

use crate::error::{Error, Result};
use crate::ranks::OnComplete;

/// The most numbers that one operation adds up: few enough to copy some while others travel.
const MOST: usize = 1 << 20;
/// The least: enough to hide the latency of an operation.
const LEAST: usize = 1 << 10;
/// Pieces of smaller gradients, so that many travel before backward is done.
const PIECES: usize = 16;
/// Operations under way at once.
const UNDER_WAY: usize = 4;
/// How long the thread waits between two calls of MPI: a fast network moves some hundred kilobytes in this time.
const PAUSE: Duration = Duration::from_micros(100);

/// An operation that is not complete.
pub(super) type Request = ffi::MPI_Request;

/// Whether an operation is complete, or MPI's code of an error.
///
/// # Safety
/// The request is that of an operation which this rank has begun, or null, which is complete.
pub(super) unsafe fn is_complete(request: &mut Request) -> std::result::Result<bool, i32> {
    let mut is_complete = 0;
    // SAFETY: as above.
    let code = unsafe { ffi::MPI_Test(request, &mut is_complete, ffi::RSMPI_STATUS_IGNORE) };
    if code == ffi::MPI_SUCCESS as i32 { Ok(is_complete != 0) } else { Err(code) }
}

/// Begins to add up values over all ranks; or MPI's code of an error.
///
/// # Safety
/// Both must stay where they are, and not be used, until the operation is complete. MPI is not used by another thread.
pub(super) unsafe fn begin<T: Equivalence>(
    world: ffi::MPI_Comm,
    values: &[T],
    sum: &mut [T],
) -> std::result::Result<Request, i32> {
    assert!(values.len() == sum.len() && i32::try_from(values.len()).is_ok());
    let (from, to, of) = (values.as_ptr().cast(), sum.as_mut_ptr().cast(), T::equivalent_datatype());
    // SAFETY: it only makes a null handle, which MPI sets.
    let mut request: Request = unsafe { ffi::RSMPI_REQUEST_NULL };
    // SAFETY: the pointers, count and type describe the slices, which the caller keeps.
    let code = unsafe {
        use mpi::traits::AsRaw;
        ffi::MPI_Iallreduce(from, to, values.len() as i32, of.as_raw(), ffi::RSMPI_SUM, world, &mut request)
    };
    if code == ffi::MPI_SUCCESS as i32 { Ok(request) } else { Err(code) }
}

/// A sum that is not complete: this rank's part of the gradients, and that of all ranks.
struct UnderWay {
    request: Request,
    own: Vec<f32>,
    sum: Vec<f32>,
}

/// The sums of an update's gradients.
pub(super) struct Sums {
    world: ffi::MPI_Comm,
    /// How many gradients have been taken, from the last on, …
    taken: usize,
    /// … and how many sums have been put back.
    put: usize,
    waiting: VecDeque<Vec<f32>>,
    under_way: VecDeque<UnderWay>,
    complete: VecDeque<Vec<f32>>,
    /// Memory that is used again.
    spare: Vec<Vec<f32>>,
    /// MPI's code of an error, after which nothing more is done.
    failed: Option<i32>,
    /// Whether MPI is not to be used any more.
    is_over: bool,
}

// SAFETY: MPI was told that several threads use it, one at a time.
unsafe impl Send for Sums {}

impl Sums {
    fn new(world: ffi::MPI_Comm) -> Self {
        let (waiting, under_way, complete) = Default::default();
        let (spare, failed) = Default::default();
        Self { world, taken: 0, put: 0, waiting, under_way, complete, spare, failed, is_over: false }
    }

    /// Copies the pieces that lie behind `start` and were not copied before, as long as fewer than `most` are not
    /// complete.
    fn take(&mut self, start: usize, gradients: &[f32], most: usize) {
        while self.waiting.len() + self.under_way.len() < most {
            let end = gradients.len() - self.taken;
            let begin = end.saturating_sub((gradients.len() / PIECES).clamp(LEAST, MOST));
            if end == 0 || begin < start {
                return;
            }
            let mut own = self.spare.pop().unwrap_or_default();
            own.clear();
            own.extend_from_slice(&gradients[begin..end]);
            self.waiting.push_back(own);
            self.taken += end - begin;
        }
    }

    /// Goes on with the sums of all pieces; returns whether they are complete, and in the place of the gradients.
    /// Otherwise it is to be called again. An error is MPI's code.
    pub(super) fn complete(&mut self, gradients: &mut [f32]) -> std::result::Result<bool, i32> {
        self.take(0, gradients, UNDER_WAY);
        self.advance()?;
        Ok(self.put_back(gradients))
    }

    /// Begins sums, and ends those that are complete; or MPI's code of an error.
    fn advance(&mut self) -> std::result::Result<(), i32> {
        if self.failed.is_none() && !self.is_over {
            self.failed = self.try_to_advance().err();
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn try_to_advance(&mut self) -> std::result::Result<(), i32> {
        loop {
            while self.under_way.len() < UNDER_WAY
                && let Some(own) = self.waiting.pop_front()
            {
                let mut sum = self.spare.pop().unwrap_or_default();
                sum.resize(own.len(), 0.0);
                // SAFETY: both are used next when this request is complete, and leaked if it never is. The lock keeps
                // other threads off.
                let request = unsafe { begin(self.world, &own, &mut sum) }?;
                self.under_way.push_back(UnderWay { request, own, sum });
            }
            let Some(first) = self.under_way.front_mut() else { return Ok(()) };
            // SAFETY: it is that of an operation.
            if !unsafe { is_complete(&mut first.request) }? {
                return Ok(());
            }
            if let Some(UnderWay { own, sum, .. }) = self.under_way.pop_front() {
                self.spare.push(own);
                self.complete.push_back(sum);
            }
        }
    }

    /// Puts complete sums in the place of the gradients; returns whether these are all, and the next update may come.
    fn put_back(&mut self, gradients: &mut [f32]) -> bool {
        for sum in self.complete.drain(..) {
            let end = gradients.len() - self.put;
            gradients[end - sum.len()..end].copy_from_slice(&sum);
            self.put += sum.len();
            self.spare.push(sum);
        }
        let is_over = self.put == gradients.len();
        if is_over {
            (self.taken, self.put) = (0, 0);
        }
        is_over
    }

    fn has_work(&self) -> bool {
        self.failed.is_none() && !(self.waiting.is_empty() && self.under_way.is_empty())
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        // MPI may go on writing into the memory of what is not complete.
        std::mem::forget(std::mem::take(&mut self.under_way));
    }
}

/// Sums, and the thread on which they go on.
pub(super) struct EarlySums {
    shared: Arc<(Mutex<Sums>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl EarlySums {
    /// Sums over the ranks of `world`. Without a thread, they go on only while the caller asks for them.
    ///
    /// # Errors
    /// There can be no other thread.
    pub(super) fn new(world: ffi::MPI_Comm, has_thread: bool) -> Result<Self> {
        let shared = Arc::new((Mutex::new(Sums::new(world)), Condvar::new()));
        let start = || {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("sums".to_owned()).spawn(move || go_on(&shared));
            thread.map_err(|error| Error::thread("adds up gradients", error))
        };
        let thread = has_thread.then(start).transpose()?;
        Ok(Self { shared, thread })
    }

    /// The sums, for this thread alone.
    pub(super) fn locked(&self) -> MutexGuard<'_, Sums> {
        locked(&self.shared.0)
    }

    /// What begins sums while another thread computes, if they can go on then.
    pub(super) fn begin(&self) -> Option<OnComplete> {
        self.thread.as_ref()?;
        let shared = self.shared.clone();
        Some(Arc::new(move |start, gradients| {
            locked(&shared.0).take(start, gradients, usize::MAX);
            shared.1.notify_one();
        }))
    }

    /// Ends the thread: MPI is not used any more.
    pub(super) fn end(&mut self) {
        self.locked().is_over = true;
        self.shared.1.notify_one();
        // It has ended, or panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for EarlySums {
    fn drop(&mut self) {
        self.end();
    }
}

fn locked(sums: &Mutex<Sums>) -> MutexGuard<'_, Sums> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

fn go_on((sums, changed): &(Mutex<Sums>, Condvar)) {
    let mut guard = locked(sums);
    while !guard.is_over {
        if guard.has_work() {
            // If it fails, the main thread learns of it when it asks.
            let _ = guard.advance();
            drop(guard);
            std::thread::sleep(PAUSE);
            guard = locked(sums);
        } else {
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
