//! Work done ahead on another thread, so that the training step never waits for a batch.

use std::any::Any;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::sampler::SamplerPosition;
use crate::error::{Error, Result};

/// An item and where the sampler stood *after* it.
///
/// The producer runs ahead of the consumer: its sampler has drawn items that nobody has used yet. A checkpoint stores
/// the position of the last item that the consumer *used*; a sampler that seeks there draws the first unused item next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared<T> {
    /// What was prepared.
    pub item: T,
    /// What to seek to for the item after this one.
    pub position: SamplerPosition,
}

/// The items of a producer on its own thread, in order.
///
/// Ends after the producer's first `None` or first error; a panic of the producer becomes an error. Dropping it stops
/// the thread after the current item.
pub struct Prefetch<T> {
    /// `None` once the end is reached.
    items: Option<Receiver<Result<T>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts the thread. It keeps at most `capacity` finished items waiting, and one in hand.
    ///
    /// Fails where the system gives no thread.
    pub fn new(capacity: usize, mut producer: impl FnMut() -> Option<Result<T>> + Send + 'static) -> Result<Self> {
        let (sender, items) = sync_channel(capacity);
        let work = move || {
            while let Some(item) = producer() {
                let last = item.is_err();
                // A closed channel means that the consumer is gone.
                if sender.send(item).is_err() || last {
                    return;
                }
            }
        };
        let thread = Builder::new().name("prefetch".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::thread("prepares batches", error))?;
        Ok(Self { items: Some(items), thread: Some(thread) })
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    /// The next item, waiting for it where need be.
    fn next(&mut self) -> Option<Result<T>> {
        if let Ok(item) = self.items.as_ref()?.recv() {
            return Some(item);
        }
        self.items = None;
        match self.thread.take()?.join() {
            Ok(()) => None,
            Err(panic) => Some(Err(Error::failure(format!("preparing batches failed: {}", message(&*panic))))),
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        // First the channel, or a producer that waits for room in it would never end.
        self.items = None;
        if let Some(thread) = self.thread.take() {
            // Nobody is left to receive a panic.
            let _ = thread.join();
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown panic")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::data::lengths::Lengths;
    use crate::data::sampler::{Sampler, WeightedRange};

    #[test]
    fn items_come_in_order_and_end() {
        for capacity in [0, 1, 4] {
            let mut numbers = 0..100;
            let mut prefetch = Prefetch::new(capacity, move || numbers.next().map(Ok)).unwrap();
            let drawn: Result<Vec<i32>> = prefetch.by_ref().collect();
            assert_eq!(drawn.unwrap(), (0..100).collect::<Vec<_>>());
            assert!(prefetch.next().is_none());
        }
    }

    #[test]
    fn an_error_is_the_last_item() {
        let mut count = 0;
        let mut prefetch = Prefetch::new(2, move || {
            count += 1;
            Some(if count < 3 { Ok(count) } else { Err(Error::failure("bad line")) })
        })
        .unwrap();
        assert_eq!(prefetch.next().unwrap().unwrap(), 1);
        assert_eq!(prefetch.next().unwrap().unwrap(), 2);
        assert_eq!(prefetch.next().unwrap().unwrap_err().what(), "bad line");
        assert!(prefetch.next().is_none());
    }

    #[test]
    fn a_panic_becomes_an_error_once() {
        let mut count = 0;
        let mut prefetch = Prefetch::new(2, move || {
            count += 1;
            assert!(count < 2, "lost at {count}");
            Some(Ok(count))
        })
        .unwrap();
        assert_eq!(prefetch.next().unwrap().unwrap(), 1);
        assert_eq!(prefetch.next().unwrap().unwrap_err().what(), "preparing batches failed: lost at 2");
        assert!(prefetch.next().is_none());
    }

    #[test]
    fn dropping_stops_a_producer_that_waits_for_room() {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let mut prefetch = Prefetch::new(3, move || Some(Ok(counter.fetch_add(1, Ordering::Relaxed)))).unwrap();
        assert_eq!(prefetch.next().unwrap().unwrap(), 0);
        drop(prefetch);
        // One used, three waiting, one in hand; the closure is gone, so the thread has ended.
        assert!(made.load(Ordering::Relaxed) <= 5);
        assert_eq!(Arc::strong_count(&made), 1);
    }

    #[test]
    fn the_position_of_the_last_used_item_resumes_at_the_next() {
        let sampler = || {
            let lengths: Vec<Lengths> = (0..300).map(|i| Lengths { source: i % 17 + 1, target: i % 13 + 1 }).collect();
            Sampler::new(lengths, &[WeightedRange { range: 0..300, weight: 1.0 }], 100, 1).unwrap()
        };
        let start = |mut sampler: Sampler| {
            Prefetch::new(8, move || {
                let item = sampler.next_batch();
                Some(Ok(Prepared { item, position: sampler.position() }))
            })
            .unwrap()
        };
        let mut whole = start(sampler());
        let last_used = whole.nth(20).unwrap().unwrap();
        let expected: Vec<_> = whole.take(60).map(Result::unwrap).collect();
        let mut resumed = sampler();
        resumed.seek(last_used.position).unwrap();
        assert_eq!(start(resumed).take(60).map(Result::unwrap).collect::<Vec<_>>(), expected);
    }
}
