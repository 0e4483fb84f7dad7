//! The second stage of column sums, deferred: one kernel adds up the partial sums of many, since there is little work
//! and most of the time goes into starting a kernel.

use std::sync::Arc;

use crate::error::Result;
use crate::gpu::arena::Arena;
use crate::gpu::launch::{Kernels, MOST_PARTIAL_SUMS, PartialSum};
use crate::gpu::queue::{Address, Queue};

/// The most bytes of deferred partial sums, so that caches hold them until they are read.
const MOST_BYTES: usize = 16 << 20;

/// One target of partial sums.
pub(crate) fn only(target: (Address, usize)) -> [(Address, usize); 3] {
    [target, (Address::NONE, 0), (Address::NONE, 0)]
}

/// Partial sums that are to be added to their targets.
pub(crate) struct Sums {
    arena: Arena,
    bytes: usize,
    waiting: Vec<PartialSum>,
}

impl Sums {
    /// None yet.
    pub(crate) fn new(queue: Arc<dyn Queue>) -> Self {
        Self { arena: Arena::new(queue), bytes: 0, waiting: Vec::new() }
    }

    /// Forgets what a failed pass has left behind.
    pub(crate) fn begin(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.arena.reset();
    }

    /// Memory for partial sums, float32 [blocks, Σ widths], that the next kernel writes; they will be added to their
    /// targets.
    pub(crate) fn take(&mut self, kernels: &Kernels, blocks: usize, targets: [(Address, usize); 3]) -> Result<Address> {
        let bytes = 4 * blocks * targets.iter().map(|(_, width)| width).sum::<usize>();
        let is_target = |(target, _): (Address, usize)| {
            let mut waiting = self.waiting.iter().flat_map(|sum| sum.targets);
            target != Address::NONE && waiting.any(|(other, _)| other == target)
        };
        let is_full = self.waiting.len() == MOST_PARTIAL_SUMS || self.bytes + bytes > MOST_BYTES;
        if is_full || targets.into_iter().any(is_target) {
            self.add_up(kernels)?;
        }
        let partial = self.arena.take(bytes)?;
        self.bytes += bytes;
        self.waiting.push(PartialSum { targets, partial, blocks });
        Ok(partial)
    }

    /// Adds all to their targets.
    pub(crate) fn add_up(&mut self, kernels: &Kernels) -> Result<()> {
        kernels.add_partial_sums(&self.waiting)?;
        self.begin();
        Ok(())
    }

    /// Gives its memory back until the next pass.
    pub(crate) fn release_memory(&mut self) {
        self.begin();
        self.arena.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use candle_core::Tensor;

    use super::*;
    use crate::gpu::queue::{Launch, Mark, Number, Product, SideStream, Ticket};

    /// Counts blocks and launches, and does nothing.
    #[derive(Default)]
    struct Counting {
        next: AtomicUsize,
        launches: AtomicUsize,
        blocks: AtomicUsize,
    }

    impl Queue for Counting {
        fn allocate(&self, bytes: usize) -> Result<Address> {
            Ok(Address::NONE.plus(256 + self.next.fetch_add(bytes, Ordering::Relaxed)))
        }

        unsafe fn launch(&self, launch: &Launch<'_>, _: &mut [*mut c_void]) -> Result<()> {
            self.launches.fetch_add(1, Ordering::Relaxed);
            self.blocks.fetch_add(launch.grid[0] as usize, Ordering::Relaxed);
            Ok(())
        }

        fn free(&self, _: Address, _: usize) {}

        fn multiprocessors(&self) -> u32 {
            1
        }

        fn upload(&self, _: &[u8], _: Address) -> Result<()> {
            unreachable!()
        }

        fn download(&self, _: Address, _: &mut [u8]) -> Result<()> {
            unreachable!()
        }

        fn fetch(&self, _: Address, _: usize) -> Result<Ticket> {
            unreachable!()
        }

        fn fetched(&self, _: Ticket, _: &mut [u8]) -> Result<()> {
            unreachable!()
        }

        fn clear(&self, _: Address, _: usize) -> Result<()> {
            unreachable!()
        }

        fn copy(&self, _: Address, _: Address, _: usize) -> Result<()> {
            unreachable!()
        }

        fn product(&self, _: &Product) -> Result<()> {
            unreachable!()
        }

        fn mark(&self) -> Result<Mark> {
            unreachable!()
        }

        fn between(&self, _: &Mark, _: &Mark) -> Result<Option<Duration>> {
            unreachable!()
        }

        fn side_stream(&self) -> Result<Box<dyn SideStream>> {
            unreachable!()
        }

        fn wait_for(&self, _: &Mark) -> Result<()> {
            unreachable!()
        }

        fn stream(&self) -> Result<*mut c_void> {
            unreachable!()
        }

        fn address(&self, _: &Tensor) -> Result<Address> {
            unreachable!()
        }
    }

    /// The number of launches, and of their thread blocks, for sums into `targets`, each `width` wide, from `blocks`
    /// rows.
    fn launched(targets: impl Iterator<Item = usize>, width: usize, blocks: usize) -> (usize, usize) {
        let queue = Arc::new(Counting::default());
        let (kernels, mut sums) = (Kernels::new(queue.clone(), Number::F32, false), Sums::new(queue.clone()));
        let mut taken = Vec::new();
        for target in targets {
            let launches = queue.launches.load(Ordering::Relaxed);
            let at = sums.take(&kernels, blocks, only((Address::NONE.plus(target), width))).unwrap();
            if queue.launches.load(Ordering::Relaxed) > launches {
                taken.clear();
            }
            assert!(!taken.contains(&at), "memory of sums that wait is given again");
            taken.push(at);
        }
        sums.add_up(&kernels).unwrap();
        sums.add_up(&kernels).unwrap();
        (queue.launches.load(Ordering::Relaxed), queue.blocks.load(Ordering::Relaxed))
    }

    #[test]
    fn sums_are_added_up_together_but_never_twice_to_one_target() {
        assert_eq!(launched(0..0, 7, 1), (0, 0));
        assert_eq!(launched(1..40, 33, 5), (1, 2 * 39));
        assert_eq!(launched(1..98, 33, 5), (97_usize.div_ceil(MOST_PARTIAL_SUMS), 2 * 97));
        assert_eq!(launched([1, 2, 3, 2, 4, 3, 3].into_iter(), 33, 5), (3, 14));
        // Of 6 MB each, and of 32.
        assert_eq!(launched(1..6, 1500, 1000).0, 3);
        assert_eq!(launched(1..6, 1000, 8000).0, 5);
        // Without a target there is nothing to add twice.
        assert_eq!(launched([0; 9].into_iter(), 33, 5), (1, 18));
    }
}
