//! Corpora as token ids: encoded once, filtered, and held compactly.

use std::path::Path;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::compact::CompactVec;
use super::corpus::{PairSource, Side};
use super::filter::{DropReason, Filter, FilterReport};
use super::sampler::{Lengths, WeightedRange};
use crate::error::Result;

/// Pairs that one task encodes: enough to hide the cost of a task, few enough to balance.
const CHUNK: usize = 512;
/// Chunks encoded before their results are moved together; bounds the memory that results take twice.
const CHUNKS_AT_ONCE: usize = 128;

/// The pairs of several corpora that passed the filter, as token ids without special tokens.
///
/// The corpora stay inside, for BPE-dropout encodes the text anew each epoch ([`Self::pair_text`]). The ids and lengths
/// here are those without dropout.
pub struct EncodedCorpus {
    corpora: Vec<Box<dyn PairSource>>,
    source: TokenLists,
    target: TokenLists,
    /// The index of each kept pair in its corpus.
    originals: CompactVec,
    /// The kept pairs of each corpus.
    ranges: Vec<WeightedRange>,
}

impl EncodedCorpus {
    /// Encodes and filters `corpora` in parallel, on rayon's threads.
    ///
    /// The closures turn a line into token ids without special tokens. A line of nothing but white space has none,
    /// whatever they say. A pair that does not pass is counted in the report; the order of the rest is kept.
    ///
    /// Fails where no pair is left.
    pub fn build<S, T>(
        corpora: Vec<Box<dyn PairSource>>,
        filter: Filter,
        encode_source: S,
        encode_target: T,
    ) -> Result<(Self, FilterReport)>
    where
        S: Fn(&str) -> Vec<u32> + Sync,
        T: Fn(&str) -> Vec<u32> + Sync,
    {
        let mut encoded = Self {
            corpora: Vec::new(),
            source: TokenLists::new(),
            target: TokenLists::new(),
            originals: CompactVec::new(),
            ranges: Vec::new(),
        };
        let mut report = FilterReport::new(filter);
        for corpus in corpora {
            let encode = |index| encode_pair(&*corpus, index, filter, &encode_source, &encode_target);
            let start = encoded.len();
            encoded.append(&*corpus, &encode, &mut report);
            encoded.ranges.push(WeightedRange { range: start..encoded.len(), weight: corpus.weight() });
            encoded.corpora.push(corpus);
        }
        encoded.source.shrink();
        encoded.target.shrink();
        encoded.originals.shrink();
        report.kept = encoded.len();
        report.require_pairs()?;
        Ok((encoded, report))
    }

    fn append(
        &mut self,
        corpus: &dyn PairSource,
        encode: &(impl Fn(usize) -> Encoded + Sync),
        report: &mut FilterReport,
    ) {
        for start in (0..corpus.len()).step_by(CHUNK * CHUNKS_AT_ONCE) {
            let end = corpus.len().min(start + CHUNK * CHUNKS_AT_ONCE);
            let pairs: Vec<Encoded> = (start..end).into_par_iter().with_min_len(CHUNK).map(encode).collect();
            for (index, pair) in (start..).zip(pairs) {
                match pair {
                    Ok((source, target)) => {
                        self.source.push(&source);
                        self.target.push(&target);
                        self.originals.push(index);
                    }
                    Err(reason) => {
                        let (path, line) = corpus.origin(index, reason.side());
                        report.drop_pair(reason, path, line);
                    }
                }
            }
        }
    }

    /// Number of pairs kept.
    pub fn len(&self) -> usize {
        self.originals.len()
    }

    /// Whether no pair was kept; never so after [`Self::build`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Source and target ids of pair `index`, without special tokens. Panics past the end.
    pub fn pair(&self, index: usize) -> (&[u32], &[u32]) {
        (self.source.get(index), self.target.get(index))
    }

    /// Source and target text of pair `index`. Panics past the end.
    pub fn pair_text(&self, index: usize) -> (&str, &str) {
        self.corpora[self.corpus_of(index)].pair(self.originals.get(index))
    }

    /// File and line (from 1) of a side of pair `index`. Panics past the end.
    pub fn origin(&self, index: usize, side: Side) -> (&Path, usize) {
        self.corpora[self.corpus_of(index)].origin(self.originals.get(index), side)
    }

    /// The lengths of all pairs in subwords, without special tokens.
    pub fn lengths(&self) -> Vec<Lengths> {
        let short = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        (0..self.len())
            .map(|i| Lengths { source: short(self.source.get(i).len()), target: short(self.target.get(i).len()) })
            .collect()
    }

    /// Which pairs come from which corpus, with its weight; in the order of the corpora, empty where all were dropped.
    pub fn ranges(&self) -> &[WeightedRange] {
        &self.ranges
    }

    /// Subwords of the source and of the target side, without special tokens.
    pub fn token_counts(&self) -> (usize, usize) {
        (self.source.ids.len(), self.target.ids.len())
    }

    /// A checksum of all pairs as ids, in order: equal for equal text, wherever its files lie.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for corpus in &self.ranges {
            hash.update((corpus.range.len() as u64).to_le_bytes());
        }
        for side in [&self.source, &self.target] {
            side.add_to(&mut hash);
        }
        format!("{:x}", hash.finalize())
    }

    fn corpus_of(&self, index: usize) -> usize {
        self.ranges.partition_point(|corpus| corpus.range.end <= index)
    }
}

/// A pair's ids, or why it was dropped.
type Encoded = std::result::Result<(Vec<u32>, Vec<u32>), DropReason>;

fn encode_pair(
    corpus: &dyn PairSource,
    index: usize,
    filter: Filter,
    encode_source: &impl Fn(&str) -> Vec<u32>,
    encode_target: &impl Fn(&str) -> Vec<u32>,
) -> Encoded {
    let (source, target) = corpus.pair(index);
    let source = if source.trim().is_empty() { Vec::new() } else { encode_source(source) };
    let target = if target.trim().is_empty() { Vec::new() } else { encode_target(target) };
    match filter.check(source.len(), target.len()) {
        Some(reason) => Err(reason),
        None => Ok((source, target)),
    }
}

/// Lists of ids in one allocation.
struct TokenLists {
    ids: Vec<u32>,
    /// Where each list starts, and the end of the last.
    starts: CompactVec,
}

impl TokenLists {
    fn new() -> Self {
        let mut starts = CompactVec::new();
        starts.push(0);
        Self { ids: Vec::new(), starts }
    }

    fn push(&mut self, ids: &[u32]) {
        self.ids.extend_from_slice(ids);
        self.starts.push(self.ids.len());
    }

    #[inline]
    fn get(&self, index: usize) -> &[u32] {
        &self.ids[self.starts.get(index)..self.starts.get(index + 1)]
    }

    fn add_to(&self, hash: &mut Sha256) {
        let mut bytes = Vec::with_capacity(1 << 16);
        for list in 0..self.starts.len() - 1 {
            let ids = self.get(list);
            bytes.extend((ids.len() as u32).to_le_bytes());
            bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            if bytes.len() >= 1 << 16 {
                hash.update(&bytes);
                bytes.clear();
            }
        }
        hash.update(&bytes);
    }

    fn shrink(&mut self) {
        self.ids.shrink_to_fit();
        self.starts.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs in memory; line numbers start at 1.
    struct Listed(&'static str, Vec<(String, String)>, f64);

    impl PairSource for Listed {
        fn len(&self) -> usize {
            self.1.len()
        }
        fn pair(&self, index: usize) -> (&str, &str) {
            (&self.1[index].0, &self.1[index].1)
        }
        fn origin(&self, index: usize, _: Side) -> (&Path, usize) {
            (Path::new(self.0), index + 1)
        }
        fn weight(&self) -> f64 {
            self.2
        }
    }

    fn listed(name: &'static str, pairs: &[(&str, &str)], weight: f64) -> Box<dyn PairSource> {
        let pairs = pairs.iter().map(|(source, target)| (source.to_string(), target.to_string())).collect();
        Box::new(Listed(name, pairs, weight))
    }

    fn bytes(line: &str) -> Vec<u32> {
        line.bytes().map(u32::from).collect()
    }

    const FILTER: Filter = Filter { max_length: 5, max_ratio: 3.0 };

    #[test]
    fn keeps_what_passes_and_counts_the_rest() {
        let corpora = vec![
            listed("a", &[("ab", "cd"), ("", "x"), ("y", " \t"), ("abc", "d")], 1.0),
            listed("gone", &[("abcdef", "abc"), ("abcd", "a")], 3.0),
            listed("b", &[("a", "abcdef"), ("e", "fg"), ("abcdefgh", "abcdefgh")], 0.5),
        ];
        let upper = |line: &str| bytes(&line.to_uppercase());
        let (encoded, report) = EncodedCorpus::build(corpora, FILTER, bytes, upper).unwrap();
        assert_eq!(encoded.len(), 3);
        assert_eq!(encoded.pair(0), (&[97, 98][..], &[67, 68][..]));
        assert_eq!(encoded.pair(2), (&[101][..], &[70, 71][..]));
        let texts: Vec<_> = (0..3).map(|i| encoded.pair_text(i)).collect();
        assert_eq!(texts, [("ab", "cd"), ("abc", "d"), ("e", "fg")]);
        assert_eq!(encoded.origin(1, Side::Source), (Path::new("a"), 4));
        assert_eq!(encoded.origin(2, Side::Target), (Path::new("b"), 2));
        assert_eq!(encoded.lengths()[1], Lengths { source: 3, target: 1 });
        assert_eq!(encoded.token_counts(), (6, 5));
        let ranges: Vec<_> = encoded.ranges().iter().map(|corpus| (corpus.range.clone(), corpus.weight)).collect();
        assert_eq!(ranges, [(0..2, 1.0), (2..2, 3.0), (2..3, 0.5)]);
        assert_eq!(
            report.to_string(),
            "3 of 9 pairs, 6 dropped: 1 with an empty source (first at a:2), 1 with an empty target (first at a:3), \
             2 with a source longer than 5 subwords (first at gone:1), 1 with a target longer than 5 subwords (first at \
             b:1), 1 with a length ratio above 3 (first at gone:2)"
        );
    }

    #[test]
    fn order_and_first_examples_do_not_depend_on_threads() {
        // More pairs than one round of chunks holds; every third is dropped.
        let n = CHUNK * CHUNKS_AT_ONCE + 1000;
        let pairs = (0..n).map(|i| if i % 3 == 1 { (String::new(), "x".into()) } else { (format!("{i}"), "1".into()) });
        let corpus = Box::new(Listed("big", pairs.collect(), 1.0));
        let number = |line: &str| vec![line.parse().unwrap()];
        let (encoded, report) = EncodedCorpus::build(vec![corpus], FILTER, number, bytes).unwrap();
        let dropped = &report.dropped[&DropReason::EmptySource];
        assert_eq!((dropped.count, dropped.line), ((n + 1) / 3, 2));
        assert_eq!(encoded.len() + dropped.count, n);
        for i in 0..encoded.len() {
            let expected = i / 2 * 3 + i % 2 * 2;
            assert_eq!(encoded.pair(i).0, [expected as u32]);
            assert_eq!(encoded.origin(i, Side::Source).1, expected + 1);
        }
    }

    #[test]
    fn the_fingerprint_tells_texts_apart_and_files_not() {
        let of = |name, pairs: &[(&str, &str)]| {
            EncodedCorpus::build(vec![listed(name, pairs, 1.0)], FILTER, bytes, bytes).unwrap().0.fingerprint()
        };
        let text = of("a", &[("ab", "cd"), ("c", "d")]);
        assert_eq!(text, of("elsewhere", &[("ab", "cd"), ("c", "d")]));
        for other in [&[("c", "d"), ("ab", "cd")], &[("ab", "cd"), ("c", "e")], &[("a", "cd"), ("bc", "d")]] {
            assert_ne!(text, of("a", other));
        }
        let apart = vec![listed("a", &[("ab", "cd")], 1.0), listed("b", &[("c", "d")], 1.0)];
        assert_ne!(text, EncodedCorpus::build(apart, FILTER, bytes, bytes).unwrap().0.fingerprint());
    }

    #[test]
    fn nothing_left_is_an_error() {
        let corpora = vec![listed("a", &[("", "x"), ("abcdef", "b")], 1.0)];
        let error = EncodedCorpus::build(corpora, FILTER, bytes, bytes).err().unwrap().to_string();
        assert!(error.contains("1 with an empty source (first at a:1), 1 with a source longer"), "{error}");
        assert!(EncodedCorpus::build(Vec::new(), FILTER, bytes, bytes).is_err());
    }
}
