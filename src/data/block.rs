//! Consecutive pairs of a corpus, in one allocation.

use super::corpus::tagged;

/// Most pairs of a block.
pub(super) const BLOCK_PAIRS: usize = 1 << 14;
/// Bytes of text from which a block counts as full.
const BLOCK_BYTES: usize = 8 << 20;

/// Consecutive pairs of a corpus, in one allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairBlock {
    text: String,
    /// Where each line ends: source, target, source, …
    ends: Vec<usize>,
    /// The weight of each pair; none where the corpus has no weights.
    weights: Vec<f32>,
}

impl PairBlock {
    /// Pairs whose lines end at `ends`: source, target, source, …; with their weights, if they have any.
    pub(super) fn from_parts(text: String, ends: Vec<usize>, weights: Vec<f32>) -> Self {
        Self { text, ends, weights }
    }

    /// Appends a pair.
    pub fn push(&mut self, source: &str, target: &str) {
        for line in [source, target] {
            self.text.push_str(line);
            self.ends.push(self.text.len());
        }
    }

    /// The block with a tag in front of the lines of each side, if there is one.
    pub fn tagged(&self, tags: [Option<&str>; 2]) -> Self {
        let mut changed = Self { weights: self.weights.clone(), ..Self::default() };
        for (source, target) in (0..self.len()).map(|index| self.get(index)) {
            changed.push(&tagged(tags[0], source), &tagged(tags[1], target));
        }
        changed
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether the next pair should begin another block.
    pub fn is_full(&self) -> bool {
        is_full(self.ends.len(), self.text.len())
    }

    /// Source and target of pair `index`. Panics past the end.
    pub fn get(&self, index: usize) -> (&str, &str) {
        (self.line(2 * index), self.line(2 * index + 1))
    }

    /// The weight of pair `index`: 1 where the corpus has no weights.
    pub fn weight(&self, index: usize) -> f32 {
        self.weights.get(index).copied().unwrap_or(1.0)
    }

    fn line(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }
}

/// Whether a block with so many lines and bytes is full.
pub(super) fn is_full(lines: usize, bytes: usize) -> bool {
    lines >= 2 * BLOCK_PAIRS || bytes >= BLOCK_BYTES
}
