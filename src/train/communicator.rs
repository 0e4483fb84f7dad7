//! How the ranks of a data-parallel run reach each other.

use crate::error::Result;

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
