//! Where the time goes: counters of the training loop's phases, of operations and of the kernels inside them. Off by
//! default.
//!
//! A *phase* is a part of the training loop; where phases are nested, only the outermost counts. An *operation* is
//! timed on the loop's thread, one at a time. A *kernel* is timed on whatever thread runs it, and its floating-point
//! operations also count for the operation that it belongs to.

use std::cell::Cell;
use std::ops::AddAssign;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::matmul::Precision;

static ENABLED: AtomicBool = AtomicBool::new(false);
thread_local! {
    static IN_PHASE: Cell<bool> = const { Cell::new(false) };
}
static TABLE: Mutex<Table> = Mutex::new(Table { entries: Vec::new(), operation: None });

struct Table {
    entries: Vec<Entry>,
    /// The operation that runs now.
    operation: Option<usize>,
}

/// What an entry times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A part of the loop.
    Phase,
    /// A step of a phase.
    Operation,
    /// A step of a phase in plain Candle operations, where fused kernels do not reach.
    Reference,
    /// A part of an operation, on the thread that runs it.
    Kernel,
}

/// An amount of work: numbers computed, bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations of float32 products.
    pub flops: u64,
    /// Floating-point operations of bfloat16 products.
    pub flops_bf16: u64,
    /// Bytes read and written outside products.
    pub bytes: u64,
}

impl Work {
    /// No work.
    pub const NONE: Work = Work { flops: 0, flops_bf16: 0, bytes: 0 };

    /// A product of [m, k] and [k, n].
    pub fn product(m: usize, n: usize, k: usize, precision: Precision) -> Self {
        let flops = 2 * m as u64 * n as u64 * k as u64;
        match precision {
            Precision::F32 => Self { flops, ..Self::NONE },
            Precision::Bf16 => Self { flops_bf16: flops, ..Self::NONE },
        }
    }

    /// `count` floats, read or written.
    pub fn floats(count: usize) -> Self {
        Self::bytes(4 * count)
    }

    /// `count` bytes, read or written.
    pub fn bytes(count: usize) -> Self {
        Self { bytes: count as u64, ..Self::NONE }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.flops += other.flops;
        self.flops_bf16 += other.flops_bf16;
        self.bytes += other.bytes;
    }
}

/// The counters of one phase, operation or kernel.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What is timed.
    pub level: Level,
    /// Its name.
    pub name: &'static str,
    /// Which part of it, such as `forward` or `backward`; may be empty.
    pub part: &'static str,
    /// How often it ran.
    pub calls: u64,
    /// Total time of all calls.
    pub time: Duration,
    /// Total work of all calls.
    pub work: Work,
}

impl Table {
    /// Index of the entry, which is added if it is new.
    fn index(&mut self, entry: &Entry) -> usize {
        let same = |e: &Entry| (e.level, e.name, e.part) == (entry.level, entry.name, entry.part);
        match self.entries.iter().position(same) {
            Some(index) => index,
            None => {
                self.entries.push(*entry);
                self.entries.len() - 1
            }
        }
    }
}

/// Starts counting afresh, or stops.
pub fn enable(on: bool) {
    let mut table = lock();
    table.entries.clear();
    table.operation = None;
    ENABLED.store(on, Ordering::Relaxed);
}

/// Whether anything is counted.
#[inline]
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Counts an operation that a device has timed.
pub fn add(name: &'static str, part: &'static str, time: Duration, work: Work) {
    if is_enabled() {
        let entry = Entry { level: Level::Operation, name, part, calls: 0, time: Duration::ZERO, work: Work::NONE };
        let mut table = lock();
        let index = table.index(&entry);
        let entry = &mut table.entries[index];
        entry.calls += 1;
        entry.time += time;
        entry.work += work;
    }
}

/// Everything counted since [`enable`].
pub fn entries() -> Vec<Entry> {
    lock().entries.clone()
}

fn lock() -> std::sync::MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Measures the time from its creation until it is dropped.
#[must_use]
pub struct Timer(Option<(Instant, Entry)>);

/// Times a phase; does nothing inside another phase.
pub fn phase(name: &'static str) -> Timer {
    if !is_enabled() || IN_PHASE.replace(true) {
        return Timer(None);
    }
    start(Level::Phase, name, "", Work::NONE)
}

/// Times an operation.
pub fn operation(name: &'static str, part: &'static str, work: Work) -> Timer {
    start(Level::Operation, name, part, work)
}

/// Times an operation that goes through plain Candle operations.
pub fn reference(name: &'static str) -> Timer {
    start(Level::Reference, name, "", Work::NONE)
}

/// Times a kernel.
pub fn kernel(name: &'static str, part: &'static str, work: Work) -> Timer {
    start(Level::Kernel, name, part, work)
}

#[inline]
fn start(level: Level, name: &'static str, part: &'static str, work: Work) -> Timer {
    if !is_enabled() {
        return Timer(None);
    }
    let entry = Entry { level, name, part, calls: 0, time: Duration::ZERO, work: Work::NONE };
    if level == Level::Operation {
        let mut table = lock();
        table.operation = Some(table.index(&entry));
    }
    Timer(Some((Instant::now(), Entry { work, ..entry })))
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Some((started, entry)) = self.0.take() else { return };
        let time = started.elapsed();
        if entry.level == Level::Phase {
            IN_PHASE.set(false);
        }
        // Counting was turned off meanwhile, and the table cleared.
        if !ENABLED.load(Ordering::Relaxed) {
            return;
        }
        let mut table = lock();
        let index = table.index(&Entry { work: Work::NONE, ..entry });
        let known = &mut table.entries[index];
        known.calls += 1;
        known.time += time;
        known.work += entry.work;
        match (entry.level, table.operation) {
            (Level::Operation, _) => table.operation = None,
            (Level::Kernel, Some(operation)) if operation < table.entries.len() => {
                // Kernels pass data on in caches, so the sum of their bytes would mean nothing; products do add up.
                table.entries[operation].work += Work { bytes: 0, ..entry.work };
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, since the whole process shares one table.
    #[test]
    fn counts_only_when_asked() {
        let count = || {
            let _operation = operation("profile-test", "", Work::floats(1));
            drop(kernel("profile-test", "", Work::product(1, 2, 3, Precision::F32)));
            drop(kernel("profile-test", "", Work::floats(2)));
        };
        let of = |level: Level| entries().into_iter().find(|e| e.name == "profile-test" && e.level == level);
        count();
        assert!(of(Level::Kernel).is_none());
        enable(true);
        count();
        count();
        let (operation, kernel) = (of(Level::Operation), of(Level::Kernel));
        enable(false);
        let (operation, kernel) = (operation.unwrap(), kernel.unwrap());
        assert_eq!((operation.calls, kernel.calls), (2, 4));
        assert_eq!(kernel.work, Work { flops: 24, flops_bf16: 0, bytes: 16 });
        // Other tests run their own kernels meanwhile.
        assert!(operation.work.flops >= 24 && operation.work.bytes == 8);
    }
}
