//! NCCL: collective operations between NVIDIA's GPUs, from one memory to another.
//!
//! The library is loaded when the ranks of a run have GPUs. Sums of gradients are queued like kernels, so that the host
//! goes on; those of numbers on the host pass through the device's memory, and are waited for. An operation that can
//! never complete, because another rank is gone, leaves the host waiting: the watch over the ranks then ends the
//! process, and so does the thread that asks NCCL for errors.

mod library;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

pub use library::{Failed, Id, Library};

use super::queue::{Address, Mark, Number, Queue, SideStream, Ticket};
use super::{bytes_of, bytes_of_mut};
use crate::error::{Error, Result};
use crate::ranks::{Communicator, Idle, Ranks};
use library::{Handle, SUM, Type};

/// How often NCCL is asked whether an operation has failed.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How long a call that has failed because of another rank waits for the end of this process.
const UNTIL_ENDED: Duration = Duration::from_secs(20);
/// Updates that may be under way: their times are not asked for.
const UNDER_WAY: usize = 3;
/// The most bytes of the device's memory that host numbers pass through at once.
const SCRATCH: usize = 64 << 20;

/// What to do when NCCL finds that an operation has failed, on another thread: most end the process.
pub type OnFailure = Box<dyn Fn(&Failed) + Send>;

/// One of NCCL's ranks, on the device of a queue.
pub struct Nccl {
    handle: Handle,
    queue: Arc<dyn Queue>,
    /// Where sums of gradients go on while the queue computes others.
    side: Box<dyn SideStream>,
    ranks: Ranks,
    /// The machine of each rank.
    hosts: Vec<String>,
    /// Memory that numbers of the host pass through, and its bytes.
    scratch: Cell<(Address, usize)>,
    /// Where the times of all ranks are added up, on the device.
    times: Address,
    timing: RefCell<Timing>,
    /// The thread that asks for errors ends when the sender does.
    asks: Option<(Sender<()>, JoinHandle<()>)>,
    library: &'static Library,
}

/// Gradients that one operation adds up.
pub struct Part {
    /// Where they begin.
    pub at: Address,
    /// How many they are.
    pub count: usize,
    /// The mark of the queue after which they are complete; `None` if they are at the end of the queued work.
    pub complete: Option<Mark>,
}

/// How long ranks work, and wait for others.
#[derive(Default)]
struct Timing {
    /// When the operation before was done.
    since: Option<Mark>,
    /// For each sum that may not be complete: the end of the operation before, the start of the sum on this rank, and
    /// its end.
    under_way: VecDeque<[Mark; 3]>,
    /// Sums of all ranks' times on their way to the host.
    fetched: VecDeque<Ticket>,
    /// Seconds of each rank: those in which it did its own work, and all.
    known: Vec<[f64; 2]>,
}

/// A handle that another thread uses.
struct Shared(Handle);

// SAFETY: NCCL's handles may be asked for errors from any thread.
unsafe impl Send for Shared {}

impl Nccl {
    /// Meets the other ranks, of which rank 0 has made `id`. Waits for all of them.
    ///
    /// # Errors
    /// NCCL cannot connect these GPUs: two ranks use the same one, or there is no way between them.
    pub fn start(
        library: &'static Library,
        id: Id,
        (ranks, hosts): (Ranks, &[String]),
        queue: Arc<dyn Queue>,
        on_failure: OnFailure,
    ) -> Result<Self> {
        // The device is that of the calling thread.
        queue.stream()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: it writes a handle.
        let code = unsafe { (library.init_rank)(&mut handle, ranks.count as c_int, id, ranks.rank as c_int) };
        library.check(code, std::ptr::null_mut(), "connecting the GPUs").map_err(|error| {
            error.more_help("each rank needs a GPU of its own: see --devices, and CUDA_VISIBLE_DEVICES")
        })?;
        let times = queue.allocate(size_of::<[f64; 2]>() * ranks.count)?;
        let (ends, is_over) = mpsc::channel();
        let shared = Shared(handle);
        let ask = move || {
            let Shared(handle) = { shared };
            while is_over.recv_timeout(ASK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if let Some(failed) = library.failed_operation(handle) {
                    return on_failure(&failed);
                }
            }
        };
        let thread = std::thread::Builder::new().name("nccl".to_owned()).spawn(ask);
        let asks = thread.map_err(|error| Error::thread("watches NCCL", error))?;
        Ok(Self {
            handle,
            side: queue.side_stream()?,
            queue,
            ranks,
            hosts: hosts.to_vec(),
            scratch: Cell::new((Address::NONE, 0)),
            times,
            timing: RefCell::new(Timing { known: vec![[0.0; 2]; ranks.count], ..Timing::default() }),
            asks: Some((ends, asks)),
            library,
        })
    }

    fn check(&self, code: c_int) -> Result<()> {
        if code == library::REMOTE_ERROR {
            // Which rank has failed, others know: this process ends before the time is over.
            std::thread::sleep(UNTIL_ENDED);
        }
        self.library.check(code, self.handle, "an operation between GPUs")
    }

    /// Queues operations that begin together.
    fn together(&self, operations: impl FnOnce() -> Result<()>) -> Result<()> {
        // SAFETY: they take nothing.
        self.check(unsafe { (self.library.group_start)() })?;
        let queued = operations();
        // SAFETY: as above.
        let ended = self.check(unsafe { (self.library.group_end)() });
        queued.and(ended)
    }

    fn add_up(&self, at: Address, count: usize, of: Type, stream: *mut c_void) -> Result<()> {
        let memory = at.number() as *mut c_void;
        // SAFETY: the numbers are there; the sum may be where they were.
        self.check(unsafe { (self.library.all_reduce)(memory, memory, count, of as c_int, SUM, self.handle, stream) })
    }

    /// Adds up gradients of a type and float64 numbers over all ranks, on the device, in place. Only queues it: each
    /// part is added up when it is complete, beside the work of the queue; what is queued from now on comes after all.
    /// All ranks give the same parts, but need not know alike when these are complete.
    ///
    /// # Errors
    /// NCCL or the device has failed.
    pub fn sum_on_device(&self, parts: &[Part], number: Number, numbers: (Address, usize)) -> Result<()> {
        let mut timing = self.timing.borrow_mut();
        let own = timing.own(&*self.queue)?;
        let mut times = vec![[0f64; 2]; self.ranks.count];
        times[self.ranks.rank] = own;
        let came = self.queue.mark()?;
        self.queue.upload(bytes_of(&times), self.times)?;
        let all_complete = self.queue.mark()?;
        let stream = || self.side.stream();
        let wait_for = |part: &Part| self.side.wait_for(part.complete.as_ref().unwrap_or(&all_complete));
        let Some((last, first)) = parts.split_last() else { return Ok(()) };
        for part in first {
            wait_for(part)?;
            self.add_up(part.at, part.count, number.into(), stream())?;
        }
        self.side.wait_for(&all_complete)?;
        self.together(|| {
            self.add_up(last.at, last.count, number.into(), stream())?;
            self.add_up(numbers.0, numbers.1, Type::F64, stream())?;
            self.add_up(self.times, 2 * self.ranks.count, Type::F64, stream())
        })?;
        self.queue.wait_for(&self.side.mark()?)?;
        let done = self.queue.mark()?;
        if let Some(since) = timing.since.replace(done.clone()) {
            timing.under_way.push_back([since, came, done]);
        }
        timing.fetched.push_back(self.queue.fetch(self.times, size_of_val(&times[..]))?);
        timing.learn(&*self.queue, times)
    }

    /// Memory for numbers of the host.
    fn scratch(&self, bytes: usize) -> Result<Address> {
        let (at, room) = self.scratch.get();
        if bytes <= room {
            return Ok(at);
        }
        self.free_above(0);
        let room = bytes.next_power_of_two();
        let at = self.queue.allocate(room)?;
        self.scratch.set((at, room));
        Ok(at)
    }

    /// Frees that memory, if it has more bytes.
    fn free_above(&self, bytes: usize) {
        let (at, room) = self.scratch.get();
        if room > bytes {
            self.scratch.set((Address::NONE, 0));
            self.queue.free(at, room);
        }
    }

    /// Passes bytes of the host through the device, where `operation` changes them, in place.
    fn through_device(&self, bytes: &mut [u8], operation: impl FnOnce(Address) -> Result<()>) -> Result<()> {
        let at = self.scratch(bytes.len())?;
        self.queue.upload(bytes, at)?;
        operation(at)?;
        self.queue.download(at, bytes)
    }

    /// What ranks do until the next sum is no work for an update.
    fn complete(&self) -> Result<()> {
        self.timing.borrow_mut().since = Some(self.queue.mark()?);
        Ok(())
    }

    /// Gathers as many bytes of each rank.
    fn gather_equally(&self, own: &[u8]) -> Result<Vec<u8>> {
        let mut all = vec![0; own.len() * self.ranks.count];
        let at = self.scratch(all.len())?;
        let from = at.plus(own.len() * self.ranks.rank);
        self.queue.upload(own, from)?;
        let (from, to, stream) = (from.number() as *const c_void, at.number() as *mut c_void, self.queue.stream()?);
        // SAFETY: both are there; a rank may send from where its part of the result will be.
        self.check(unsafe {
            (self.library.all_gather)(from, to, own.len(), Type::Bytes as c_int, self.handle, stream)
        })?;
        self.queue.download(at, &mut all)?;
        self.free_above(SCRATCH);
        Ok(all)
    }
}

impl Timing {
    /// The times of this rank that are known since this was asked for before: seconds of work, and all.
    fn own(&mut self, queue: &dyn Queue) -> Result<[f64; 2]> {
        let mut own = [0.0; 2];
        while let Some([since, came, done]) = self.under_way.front() {
            let (Some(busy), Some(all)) = (queue.between(since, came)?, queue.between(since, done)?) else { break };
            own = [own[0] + busy.as_secs_f64(), own[1] + all.as_secs_f64()];
            self.under_way.pop_front();
        }
        Ok(own)
    }

    /// Notes the times of all ranks that have come to the host.
    fn learn(&mut self, queue: &dyn Queue, mut times: Vec<[f64; 2]>) -> Result<()> {
        while self.fetched.len() > UNDER_WAY
            && let Some(ticket) = self.fetched.pop_front()
        {
            queue.fetched(ticket, bytes_of_mut(&mut times))?;
            for (known, times) in self.known.iter_mut().zip(&times) {
                *known = [known[0] + times[0], known[1] + times[1]];
            }
        }
        Ok(())
    }
}

impl Communicator for Nccl {
    fn ranks(&self) -> Ranks {
        self.ranks
    }

    fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()> {
        for values in gradients.chunks_mut(SCRATCH / size_of::<f32>()) {
            let count = values.len();
            self.through_device(bytes_of_mut(values), |at| self.add_up(at, count, Type::F32, self.queue.stream()?))?;
        }
        for values in numbers.chunks_mut(SCRATCH / size_of::<f64>()) {
            let count = values.len();
            self.through_device(bytes_of_mut(values), |at| self.add_up(at, count, Type::F64, self.queue.stream()?))?;
        }
        self.complete()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_equally(&(bytes.len() as u64).to_le_bytes())?;
        let length = |of: &[u8]| u64::from_le_bytes(of.try_into().unwrap_or_default()) as usize;
        let lengths: Vec<usize> = lengths.chunks_exact(size_of::<u64>()).map(length).collect();
        let room = lengths.iter().copied().max().unwrap_or(0);
        let mut own = bytes.to_vec();
        own.resize(room, 0);
        let all = if room == 0 { Vec::new() } else { self.gather_equally(&own)? };
        self.complete()?;
        Ok(lengths.iter().enumerate().map(|(rank, length)| all[rank * room..][..*length].to_vec()).collect())
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        for values in values.chunks_mut(SCRATCH / size_of::<f32>()) {
            let count = values.len();
            self.through_device(bytes_of_mut(values), |at| {
                let (memory, stream) = (at.number() as *mut c_void, self.queue.stream()?);
                // SAFETY: the numbers are there; they may be replaced where they are.
                self.check(unsafe {
                    (self.library.broadcast)(memory, memory, count, Type::F32 as c_int, 0, self.handle, stream)
                })
            })?;
        }
        self.complete()
    }

    fn idle(&self) -> Vec<Idle> {
        let mut timing = self.timing.borrow_mut();
        let known = std::mem::replace(&mut timing.known, vec![[0.0; 2]; self.ranks.count]);
        if known.iter().any(|[_, all]| *all == 0.0) {
            return Vec::new();
        }
        let share = |[busy, all]: [f64; 2]| (1.0 - busy / all).clamp(0.0, 1.0);
        self.hosts.iter().cloned().zip(known).map(|(host, times)| Idle { host, share: share(times) }).collect()
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if let Some((ends, asks)) = self.asks.take() {
            drop(ends);
            // It has ended, or ended the process.
            let _ = asks.join();
        }
        // Without waiting for other ranks, which may be gone; what is under way ends.
        // SAFETY: it is not used again.
        unsafe { (self.library.abort)(self.handle) };
        self.free_above(0);
        self.queue.free(self.times, size_of::<[f64; 2]>() * self.ranks.count);
    }
}
