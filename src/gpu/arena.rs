//! Memory of one pass: taken piece by piece, given back all at once, and kept for the next pass.

use std::sync::Arc;

use super::queue::{Address, Queue};
use crate::error::Result;

/// Alignment of every piece, in bytes.
const ALIGNMENT: usize = 256;

/// Memory of one pass.
pub(super) struct Arena {
    queue: Arc<dyn Queue>,
    slabs: Vec<(Address, usize)>,
    next: Mark,
    /// The most bytes ever taken at once, including what was left unused in full slabs.
    most: usize,
}

/// How much of an arena is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    slab: usize,
    used: usize,
}

impl Arena {
    /// An empty arena.
    pub(super) fn new(queue: Arc<dyn Queue>) -> Self {
        Self { queue, slabs: Vec::new(), next: Mark::default(), most: 0 }
    }

    /// Takes memory; its contents are unspecified.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Address> {
        let Some(slab) = self.queue.slab() else { return self.take_alone(bytes) };
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        while let Some(&(address, size)) = self.slabs.get(self.next.slab) {
            if self.next.used + bytes <= size {
                let taken = address.plus(self.next.used);
                self.next.used += bytes;
                let before: usize = self.slabs[..self.next.slab].iter().map(|(_, size)| size).sum();
                self.most = self.most.max(before + self.next.used);
                return Ok(taken);
            }
            self.next = Mark { slab: self.next.slab + 1, used: 0 };
        }
        // The first slab is as large as all that was ever taken at once, or if there is no room for that, as needed
        // now.
        let wanted = if self.slabs.is_empty() { bytes.max(self.most) } else { bytes }.next_multiple_of(slab);
        let slab = match self.queue.allocate(wanted) {
            Ok(address) => (address, wanted),
            Err(_) => (self.queue.allocate(bytes)?, bytes),
        };
        self.slabs.push(slab);
        self.take(bytes)
    }

    /// A slab of its own.
    fn take_alone(&mut self, bytes: usize) -> Result<Address> {
        let address = self.queue.allocate(bytes.max(1))?;
        self.slabs.push((address, bytes.max(1)));
        self.next.slab = self.slabs.len();
        Ok(address)
    }

    /// Moves out everything it holds, and leaves it empty.
    pub(super) fn withdraw(&mut self) -> Self {
        let queue = self.queue.clone();
        std::mem::replace(self, Self::new(queue))
    }

    /// What is taken now.
    pub(super) fn mark(&self) -> Mark {
        self.next
    }

    /// Gives back all that was taken since `mark`.
    pub(super) fn release(&mut self, mark: Mark) {
        self.next = mark;
        if self.queue.slab().is_none() {
            self.free(mark.slab);
        }
    }

    /// Gives back all that was taken. If it needed several slabs, the next pass gets a single one.
    pub(super) fn reset(&mut self) {
        if self.slabs.len() > 1 || self.queue.slab().is_none() {
            self.clear();
        }
        self.next = Mark::default();
    }

    /// Gives everything back to the device.
    pub(super) fn clear(&mut self) {
        self.free(0);
        self.next = Mark::default();
    }

    fn free(&mut self, from: usize) {
        for (address, bytes) in self.slabs.drain(from..) {
            self.queue.free(address, bytes);
        }
    }

    /// [`Arena::clear`], and forgets how much was taken.
    pub(super) fn forget(&mut self) {
        self.clear();
        self.most = 0;
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.clear();
    }
}
