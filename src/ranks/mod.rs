//! The ranks of a data-parallel run: processes that train one model together.
//!
//! | | |
//! |---|---|
//! | [`launch`] | which rank this process is |
//! | [`group`] | the ranks, from when they meet until all are done |
//! | [`watch`] | how ranks find each other, and notice that one has failed |
//! | [`Communicator`] | their collective operations |
//! | [`timed`] | how long they wait for each other |
//! | `mpi` | those of MPI, between processors (feature `mpi`) |
//!
//! Those of NCCL, between GPUs, are in `src/gpu/nccl.rs`, since they work on the memory of the engine's queue.

pub mod group;
pub mod launch;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod timed;
pub mod watch;

use std::sync::Arc;

use crate::error::Result;

/// What is called in a backward pass, with the place from which on all gradients are complete, and all gradients.
pub type OnComplete = Arc<dyn Fn(usize, &[f32]) + Send + Sync>;

/// The other ranks of a data-parallel run, as one of them sees them.
///
/// Every call is a collective operation: all ranks make the same calls in the same order, and each call returns when
/// all have made it.
pub trait Communicator {
    /// Which rank this is, and of how many.
    fn ranks(&self) -> Ranks;
    /// Adds up both slices over all ranks, element by element, in place. All ranks get the same bits.
    ///
    /// # Errors
    /// Another rank cannot be reached.
    fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()>;
    /// What to call while this rank goes back over the last batch of an update, so that the sum of complete gradients
    /// goes on meanwhile; [`Communicator::sum`] ends it. Not a collective operation: others may call it later, or
    /// not at all. `None` where sums begin only then.
    fn sum_ahead(&self) -> Option<OnComplete> {
        None
    }
    /// The bytes of all ranks, in their order.
    ///
    /// # Errors
    /// Another rank cannot be reached.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Makes `values` those of rank 0. All ranks give as many.
    ///
    /// # Errors
    /// Another rank cannot be reached.
    fn broadcast(&self, values: &mut [f32]) -> Result<()>;
    /// How long each rank has waited for the others, since this was asked for before; empty if it is not known. Not a
    /// collective operation: all ranks know it.
    fn idle(&self) -> Vec<Idle> {
        Vec::new()
    }
}

/// How long a rank has waited for others.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Its machine.
    pub host: String,
    /// The share of the time of updates that it spent waiting for others, and for their numbers.
    pub share: f64,
}

/// One of the ranks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub count: usize,
}

impl Ranks {
    /// The only one.
    pub const ALONE: Self = Self { rank: 0, count: 1 };

    /// Whether a micro-batch, by its number in its update, is computed by this rank.
    pub fn takes(self, number: u64) -> bool {
        number % self.count as u64 == self.rank as u64
    }
}
