//! How long ranks wait for each other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use super::{Communicator, Idle, OnComplete, Ranks};
use crate::error::Result;

/// Collective operations, with the time that each rank spends in sums of gradients: the slowest rank spends the least.
pub struct Timed {
    inner: Rc<dyn Communicator>,
    hosts: Vec<String>,
    /// When the last operation was complete.
    since: Cell<Instant>,
    /// Seconds until the sums were complete, and those in which each rank did its own work.
    spent: RefCell<(f64, Vec<f64>)>,
}

impl Timed {
    /// The operations of `inner`, whose ranks are on these machines.
    pub fn new(inner: Rc<dyn Communicator>, hosts: &[String]) -> Self {
        let spent = RefCell::new((0.0, vec![0.0; hosts.len()]));
        Self { inner, hosts: hosts.to_vec(), since: Cell::new(Instant::now()), spent }
    }

    /// Notes that an operation is complete: what the ranks do until the next one is another matter.
    fn complete<R>(&self, result: R) -> R {
        self.since.set(Instant::now());
        result
    }
}

impl Communicator for Timed {
    fn ranks(&self) -> Ranks {
        self.inner.ranks()
    }

    fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()> {
        if gradients.is_empty() {
            return self.complete(self.inner.sum(gradients, numbers));
        }
        // Each rank fills in its own place: the sum is a list.
        let mut all = [&*numbers, &vec![0.0; self.hosts.len()]].concat();
        all[numbers.len() + self.ranks().rank] = self.since.get().elapsed().as_secs_f64();
        self.inner.sum(gradients, &mut all)?;
        let (sums, busy) = all.split_at(numbers.len());
        numbers.copy_from_slice(sums);
        let mut spent = self.spent.borrow_mut();
        spent.0 += self.since.get().elapsed().as_secs_f64();
        spent.1.iter_mut().zip(busy).for_each(|(spent, busy)| *spent += busy);
        self.complete(Ok(()))
    }

    fn sum_ahead(&self) -> Option<OnComplete> {
        self.inner.sum_ahead()
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.complete(self.inner.gather(bytes))
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        self.complete(self.inner.broadcast(values))
    }

    fn idle(&self) -> Vec<Idle> {
        let (all, busy) = self.spent.replace((0.0, vec![0.0; self.hosts.len()]));
        let share = |busy: f64| (1.0 - busy / all).clamp(0.0, 1.0);
        let named = self.hosts.iter().cloned().zip(busy);
        if all > 0.0 { named.map(|(host, busy)| Idle { host, share: share(busy) }).collect() } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Rank 0 of two, of which the other one says that it was busy for longer.
    struct Slower(f64);

    impl Communicator for Slower {
        fn ranks(&self) -> Ranks {
            Ranks { rank: 0, count: 2 }
        }

        fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()> {
            std::thread::sleep(Duration::from_millis(30));
            if !gradients.is_empty() {
                numbers[1] += 5.0;
                numbers[3] += self.0 * numbers[2];
            }
            Ok(())
        }

        fn gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
            Ok(Vec::new())
        }

        fn broadcast(&self, _: &mut [f32]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_slower_rank_waits_less() {
        let timed = Timed::new(Rc::new(Slower(2.0)), &["a".to_owned(), "b".to_owned()]);
        assert_eq!(timed.idle().len(), 0);
        std::thread::sleep(Duration::from_millis(10));
        // What comes before another operation is no work for an update.
        timed.gather(&[]).unwrap();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(10));
            let mut numbers = [1.0, 2.0];
            timed.sum(&mut [1.0], &mut numbers).unwrap();
            assert_eq!(numbers, [1.0, 7.0]);
        }
        let idle = timed.idle();
        assert_eq!([&idle[0].host, &idle[1].host], ["a", "b"]);
        let [first, second] = [idle[0].share, idle[1].share];
        assert!((0.0..first).contains(&second) && first < 1.0, "{first} {second}");
        // One was busy for twice as long as the other.
        assert!(((1.0 - second) / (1.0 - first) - 2.0).abs() < 1e-6, "{first} {second}");
        assert_eq!(timed.idle().len(), 0);
    }
}
