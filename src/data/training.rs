//! What training reads.

use std::path::PathBuf;
use std::sync::Arc;

use super::encoded::EncodedCorpus;
use super::filter::FilterReport;
use super::tokenizers::Tokenizers;

/// About how many pairs to sample for warnings.
const SAMPLED: usize = 1000;

/// Text that is ready for training, and its tokenizers.
pub struct TrainingData {
    /// Learned, or loaded on resume.
    pub tokenizers: Tokenizers,
    /// The pairs that passed the filters.
    pub corpus: Arc<EncodedCorpus>,
    /// What the filters dropped.
    pub report: FilterReport,
    /// The directories of prepared text of the corpora that are not in memory, each once.
    pub directories: Vec<PathBuf>,
}

impl TrainingData {
    /// Source and target ids of pair `index`, without special tokens and without dropout. Panics past the end.
    pub fn ids(&self, index: usize) -> (Vec<u32>, Vec<u32>) {
        if !self.corpus.is_text() {
            return self.corpus.ids(index);
        }
        let (source, target) = self.corpus.text(index);
        (self.tokenizers.source.encode(source), self.tokenizers.target.encode(target))
    }

    /// The indices of about a thousand pairs, spread evenly.
    pub fn sampled(&self) -> impl Iterator<Item = usize> + use<> {
        let pairs = self.corpus.len();
        (0..pairs).step_by(pairs.div_ceil(SAMPLED).max(1))
    }
}

/// A part of a sample, in words.
pub fn about(part: usize, all: usize) -> String {
    let hundredfold = 100 * part;
    if hundredfold < all {
        "fewer than 1 %".to_owned()
    } else {
        format!("about {} %", (hundredfold + all / 2) / all.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_in_words() {
        for (part, all, words) in [
            (1, 2000, "fewer than 1 %"),
            (9, 1000, "fewer than 1 %"),
            (10, 1000, "about 1 %"),
            (16, 1000, "about 2 %"),
            (1, 3, "about 33 %"),
            (7, 7, "about 100 %"),
        ] {
            assert_eq!(about(part, all), words);
        }
    }
}
