//! Subword sampling: in training, a line is split in another way each time it is drawn.

/// How a line is split at random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RandomSplit {
    /// BPE-dropout (Provilkov et al. 2020): every merge is passed over with this probability at every step.
    Dropout(f32),
    /// One of the ways in which a unigram model can split the line (Kudo 2018), drawn with a probability that is
    /// proportional to the model's to the power of `alpha`.
    Unigram {
        /// 1: as the model has it; towards 0: all alike.
        alpha: f64,
        /// Among how many of the best ways; 0: among all.
        nbest: usize,
    },
}

/// Subword sampling in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubwordSampling {
    /// How.
    pub how: RandomSplit,
    /// Whether source and target are split at random.
    pub sides: [bool; 2],
    /// In how many epochs, the first ones; 0: in all.
    pub epochs: u64,
}

impl SubwordSampling {
    /// How a side is split at random in an epoch (from 0), if it is.
    pub fn at(&self, side: usize, epoch: u64) -> Option<RandomSplit> {
        let is_early = self.epochs == 0 || epoch < self.epochs;
        (self.sides[side] && is_early).then_some(self.how)
    }
}
