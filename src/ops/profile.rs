//! Where the time goes: counters of operations and of the kernels inside them, off unless asked for.
//!
//! An *operation* is timed on the thread that walks the graph: the times of all operations add up to the loop's. A *kernel*
//! is timed on whatever thread runs it: the times of all kernels add up to at most the operations' times the threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ENABLED: AtomicBool = AtomicBool::new(false);
static TABLE: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// What an entry times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A step of the loop, on its thread.
    Operation,
    /// An operation in plain Candle operations, where fused kernels do not reach.
    Reference,
    /// A part of an operation, on the thread that runs it.
    Kernel,
}

/// What something computes or moves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Work {
    /// Not counted.
    #[default]
    None,
    /// Floating-point operations, in float32.
    Flops(u64),
    /// Floating-point operations on bfloat16 operands.
    FlopsBf16(u64),
    /// Bytes read and written.
    Bytes(u64),
}

impl Work {
    /// A product of [m, k] and [k, n].
    pub fn product(m: usize, n: usize, k: usize, precision: super::matmul::Precision) -> Self {
        let flops = 2 * m as u64 * n as u64 * k as u64;
        match precision {
            super::matmul::Precision::F32 => Self::Flops(flops),
            super::matmul::Precision::Bf16 => Self::FlopsBf16(flops),
        }
    }

    /// So many floats, read or written.
    pub fn floats(count: usize) -> Self {
        Self::Bytes(4 * count as u64)
    }

    /// The number, without its unit.
    pub fn amount(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Flops(n) | Self::FlopsBf16(n) | Self::Bytes(n) => n,
        }
    }

    fn add(&mut self, other: Work) {
        *self = match (*self, other) {
            (Self::Flops(a), Self::Flops(b)) => Self::Flops(a + b),
            (Self::FlopsBf16(a), Self::FlopsBf16(b)) => Self::FlopsBf16(a + b),
            (Self::Bytes(a), Self::Bytes(b)) => Self::Bytes(a + b),
            (_, other) => other,
        };
    }
}

/// The counters of one name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What is timed.
    pub level: Level,
    /// Its name.
    pub name: &'static str,
    /// What of it, such as `forward` or `backward`; may be empty.
    pub part: &'static str,
    /// How often it ran.
    pub calls: u64,
    /// How long, all calls together.
    pub time: Duration,
    /// What it did.
    pub work: Work,
}

/// Starts counting afresh, or stops.
pub fn enable(on: bool) {
    lock().clear();
    ENABLED.store(on, Ordering::Relaxed);
}

/// Everything counted since [`enable`].
pub fn entries() -> Vec<Entry> {
    lock().clone()
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Entry>> {
    TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Counts from now until it is dropped.
#[must_use]
pub struct Timer(Option<(Instant, Entry)>);

/// Times an operation.
pub fn operation(name: &'static str, part: &'static str) -> Timer {
    start(Level::Operation, name, part, Work::None)
}

/// Times an operation that goes through plain Candle operations.
pub fn reference(name: &'static str) -> Timer {
    start(Level::Reference, name, "", Work::None)
}

/// Times a kernel.
pub fn kernel(name: &'static str, part: &'static str, work: Work) -> Timer {
    start(Level::Kernel, name, part, work)
}

#[inline]
fn start(level: Level, name: &'static str, part: &'static str, work: Work) -> Timer {
    if !ENABLED.load(Ordering::Relaxed) {
        return Timer(None);
    }
    Timer(Some((Instant::now(), Entry { level, name, part, calls: 1, time: Duration::ZERO, work })))
}

impl Drop for Timer {
    fn drop(&mut self) {
        let Some((started, entry)) = self.0.take() else { return };
        let time = started.elapsed();
        let mut table = lock();
        let known = table.iter_mut().find(|e| (e.level, e.name, e.part) == (entry.level, entry.name, entry.part));
        match known {
            Some(known) => {
                known.calls += 1;
                known.time += time;
                known.work.add(entry.work);
            }
            None => table.push(Entry { time, ..entry }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_when_asked() {
        drop(kernel("profile-test", "", Work::Bytes(8)));
        assert!(!entries().iter().any(|e| e.name == "profile-test"));
        enable(true);
        drop(kernel("profile-test", "", Work::Bytes(8)));
        drop(kernel("profile-test", "", Work::Bytes(4)));
        let entry = entries().into_iter().find(|e| e.name == "profile-test").unwrap();
        enable(false);
        assert_eq!((entry.calls, entry.work), (2, Work::Bytes(12)));
    }
}
