//! How long pairs are: all that the order of training depends on.

use std::sync::Arc;

/// A pair's lengths in subwords, without special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Source subwords.
    pub source: u32,
    /// Target subwords.
    pub target: u32,
}

impl Lengths {
    /// Columns that the pair needs: `</s>` follows the source; the target is shifted by `<s>` or `</s>`.
    pub(super) fn padded(self) -> (usize, usize) {
        (self.source as usize + 1, self.target as usize + 1)
    }
}

/// The lengths of numbered pairs, which may be more than memory holds.
pub trait PairLengths: Send + Sync {
    /// Number of pairs.
    fn count(&self) -> usize;

    /// The lengths of pair `index`. Panics past the end.
    fn lengths_of(&self, index: usize) -> Lengths;
}

impl PairLengths for Vec<Lengths> {
    fn count(&self) -> usize {
        self.len()
    }

    fn lengths_of(&self, index: usize) -> Lengths {
        self[index]
    }
}

impl<T: PairLengths> PairLengths for Arc<T> {
    fn count(&self) -> usize {
        T::count(self)
    }

    fn lengths_of(&self, index: usize) -> Lengths {
        T::lengths_of(self, index)
    }
}
