//! The training text, prepared: the pairs of several corpora that passed the filter, as token ids or as text.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::corpus::{PairSource, Side};
use super::filter::{Filter, FilterReport};
use super::lengths::{Lengths, PairLengths};
use super::sampler::WeightedRange;
use super::shard::{Elements, Shard};
use crate::error::Result;

/// The pairs of several corpora that passed the filter, by number: those of the first corpus come first.
///
/// Their ids are without special tokens. Where BPE-dropout splits the text anew each epoch, the pairs are text
/// ([`Self::text`]) and their lengths those without dropout.
pub struct EncodedCorpus {
    corpora: Vec<Box<dyn PairSource>>,
    shards: Vec<Placed>,
    /// The kept pairs of each corpus.
    ranges: Vec<WeightedRange>,
}

/// A shard among those of all corpora.
struct Placed {
    shard: Shard,
    /// Number of its corpus.
    corpus: usize,
    /// Number of its first pair among all.
    first: usize,
    /// Number of the first pair read for it, in its corpus.
    first_read: usize,
}

impl EncodedCorpus {
    /// Puts together corpora and the shards that were made of each under `filter`.
    ///
    /// Fails where no pair is left.
    pub fn new(corpora: Vec<(Box<dyn PairSource>, Vec<Shard>)>, filter: Filter) -> Result<(Self, FilterReport)> {
        let mut encoded = Self { corpora: Vec::new(), shards: Vec::new(), ranges: Vec::new() };
        let mut report = FilterReport::new(filter);
        for (number, (corpus, shards)) in corpora.into_iter().enumerate() {
            let start = report.kept;
            let mut first_read = 0;
            for shard in shards {
                let summary = shard.summary();
                for (&reason, &(count, first)) in &summary.dropped {
                    report.drop_pairs(reason, count, || corpus.origin(first_read + first, reason.side()));
                }
                let (kept, read) = (summary.kept, summary.read);
                encoded.shards.push(Placed { shard, corpus: number, first: report.kept, first_read });
                report.kept += kept;
                first_read += read;
            }
            encoded.ranges.push(WeightedRange { range: start..report.kept, weight: corpus.weight() });
            encoded.corpora.push(corpus);
        }
        report.require_pairs()?;
        Ok((encoded, report))
    }

    /// Number of pairs kept.
    pub fn len(&self) -> usize {
        self.ranges.last().map_or(0, |corpus| corpus.range.end)
    }

    /// Whether no pair was kept; never so after [`Self::new`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the pairs are text.
    pub fn is_text(&self) -> bool {
        self.shards.iter().any(|placed| placed.shard.summary().elements == Elements::Text)
    }

    /// Source and target ids of pair `index`; empty where the pairs are text. Panics past the end.
    pub fn ids(&self, index: usize) -> (Vec<u32>, Vec<u32>) {
        let (placed, index) = self.find(index);
        placed.shard.ids(index)
    }

    /// Normalised source and target of pair `index`; empty where the pairs are ids. Panics past the end.
    pub fn text(&self, index: usize) -> (&str, &str) {
        let (placed, index) = self.find(index);
        placed.shard.text(index)
    }

    /// What the losses of these pairs are multiplied by; empty where no corpus has weights. Panics past the end.
    pub fn weights(&self, pairs: &[usize]) -> Vec<f32> {
        let is_weighted = self.shards.iter().any(|placed| placed.shard.summary().is_weighted);
        let of_pair = |&pair: &usize| {
            let (placed, index) = self.find(pair);
            placed.shard.weight(index)
        };
        if is_weighted { pairs.iter().map(of_pair).collect() } else { Vec::new() }
    }

    /// File and line (from 1) of a side of pair `index`. Panics past the end.
    pub fn origin(&self, index: usize, side: Side) -> (PathBuf, usize) {
        let (placed, index) = self.find(index);
        self.corpora[placed.corpus].origin(placed.first_read + placed.shard.origin(index), side)
    }

    /// The lengths of all pairs in subwords.
    pub fn lengths(&self) -> impl Iterator<Item = Lengths> {
        self.shards.iter().flat_map(|Placed { shard, .. }| (0..shard.summary().kept).map(|index| shard.lengths(index)))
    }

    /// Subwords of the longest source and of the longest target.
    pub fn longest(&self) -> [u32; 2] {
        let summaries = self.shards.iter().map(|placed| placed.shard.summary());
        summaries.fold([0; 2], |longest, summary| [0, 1].map(|side| longest[side].max(summary.longest[side])))
    }

    /// Which pairs come from which corpus, with its weight; in the order of the corpora, empty where all were dropped.
    pub fn ranges(&self) -> &[WeightedRange] {
        &self.ranges
    }

    /// Subwords of the source and of the target side.
    pub fn token_counts(&self) -> [u64; 2] {
        let summaries = self.shards.iter().map(|placed| placed.shard.summary());
        summaries.fold([0; 2], |counts, summary| [0, 1].map(|side| counts[side] + summary.tokens[side]))
    }

    /// Pairs that an epoch draws, and their target subwords, each corpus multiplied by its weight.
    pub fn epoch(&self) -> [f64; 2] {
        let pairs = self.ranges.iter().map(|corpus| corpus.weight * corpus.range.len() as f64).sum();
        let of_shard = |placed: &Placed| {
            let weight = self.ranges.get(placed.corpus).map_or(0.0, |corpus| corpus.weight);
            weight * placed.shard.summary().tokens[1] as f64
        };
        [pairs, self.shards.iter().map(of_shard).sum()]
    }

    /// A checksum of all pairs as ids, in order: equal for equal text, wherever its files lie.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        (0..self.ranges.len()).for_each(|number| self.add_corpus(number, &mut hash));
        format!("{:x}", hash.finalize())
    }

    /// Such a checksum of each corpus.
    pub fn fingerprints(&self) -> Vec<String> {
        let of_corpus = |number| {
            let mut hash = Sha256::new();
            self.add_corpus(number, &mut hash);
            format!("{:x}", hash.finalize())
        };
        (0..self.ranges.len()).map(of_corpus).collect()
    }

    fn add_corpus(&self, number: usize, hash: &mut Sha256) {
        hash.update((self.ranges[number].range.len() as u64).to_le_bytes());
        let shards = self.shards.iter().filter(|placed| placed.corpus == number);
        shards.for_each(|placed| hash.update(&placed.shard.summary().digest));
    }

    /// The shard that pair `index` is in, and its number there.
    #[inline]
    fn find(&self, index: usize) -> (&Placed, usize) {
        // The last shard that begins no later; shards of which nothing was kept come before it.
        let placed = &self.shards[self.shards.partition_point(|placed| placed.first <= index) - 1];
        (placed, index - placed.first)
    }
}

impl PairLengths for EncodedCorpus {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn lengths_of(&self, index: usize) -> Lengths {
        let (placed, index) = self.find(index);
        placed.shard.lengths(index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::corpus::PairBlock;
    use super::super::encode::{Encode, Progress, Recipe, encode, shards};
    use super::super::filter::DropReason;
    use super::*;
    use crate::error::Error;

    /// Pairs in memory; line numbers start at 1.
    struct Listed(&'static str, Vec<(String, String)>, f64);

    impl PairSource for Listed {
        fn len(&self) -> usize {
            self.1.len()
        }
        fn text_bytes(&self) -> u64 {
            0
        }
        fn digest(&self) -> [u8; 32] {
            [0; 32]
        }
        fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>> {
            Ok(Box::new(self.1.chunks(1000).map(|pairs| {
                let mut block = PairBlock::default();
                pairs.iter().for_each(|(source, target)| block.push(source, target));
                Ok(block)
            })))
        }
        fn origin(&self, index: usize, _: Side) -> (PathBuf, usize) {
            (self.0.into(), index + 1)
        }
        fn weight(&self) -> f64 {
            self.2
        }
    }

    fn listed(name: &'static str, pairs: &[(&str, &str)], weight: f64) -> Box<dyn PairSource> {
        let pairs = pairs.iter().map(|(source, target)| (source.to_string(), target.to_string())).collect();
        Box::new(Listed(name, pairs, weight))
    }

    /// Bytes as they are, of the target in upper case.
    struct Bytes;

    impl Encode for Bytes {
        fn encode(&self, side: Side, line: &str) -> Vec<u32> {
            self.encoded_form(side, line).bytes().map(u32::from).collect()
        }
        fn encoded_form(&self, side: Side, line: &str) -> String {
            if side == Side::Target { line.to_uppercase() } else { line.to_owned() }
        }
    }

    const FILTER: Filter = Filter { max_length: 5, max_ratio: 3.0 };
    const RECIPE: Recipe<'static> =
        Recipe { encoder: &Bytes, filter: FILTER, elements: Elements::NarrowIds, quality: None };
    const SILENT: Progress<'static> = &|_| Ok(());

    fn build(corpora: Vec<Box<dyn PairSource>>, elements: Elements) -> Result<(EncodedCorpus, FilterReport)> {
        let recipe = Recipe { elements, ..RECIPE };
        let parts = corpora.into_iter().map(|corpus| {
            let made = shards(&*corpus, recipe, SILENT).unwrap();
            (corpus, made)
        });
        EncodedCorpus::new(parts.collect(), FILTER)
    }

    #[test]
    fn keeps_what_passes_and_counts_the_rest() {
        for elements in [Elements::NarrowIds, Elements::Text] {
            let corpora = vec![
                listed("a", &[("ab", "cd"), ("", "x"), ("y", " \t"), ("abc", "d")], 1.0),
                listed("gone", &[("abcdef", "abc"), ("abcd", "a")], 3.0),
                listed("b", &[("a", "abcdef"), ("e", "fg"), ("abcdefgh", "abcdefgh")], 0.5),
            ];
            let (encoded, report) = build(corpora, elements).unwrap();
            assert_eq!(encoded.len(), 3);
            if elements == Elements::Text {
                assert!(encoded.is_text());
                assert_eq!([0, 1, 2].map(|i| encoded.text(i)), [("ab", "CD"), ("abc", "D"), ("e", "FG")]);
            } else {
                assert_eq!(encoded.ids(0), (vec![97, 98], vec![67, 68]));
                assert_eq!(encoded.ids(2), (vec![101], vec![70, 71]));
            }
            assert_eq!(encoded.origin(1, Side::Source), ("a".into(), 4));
            assert_eq!(encoded.origin(2, Side::Target), ("b".into(), 2));
            let lengths: Vec<Lengths> = encoded.lengths().collect();
            assert_eq!(lengths[1], Lengths { source: 3, target: 1 });
            assert_eq!(lengths, [0, 1, 2].map(|i| encoded.lengths_of(i)));
            assert_eq!((encoded.token_counts(), encoded.longest()), ([6, 5], [3, 2]));
            let ranges: Vec<_> = encoded.ranges().iter().map(|corpus| (corpus.range.clone(), corpus.weight)).collect();
            assert_eq!(ranges, [(0..2, 1.0), (2..2, 3.0), (2..3, 0.5)]);
            assert_eq!(
                report.to_string(),
                "3 of 9 pairs, 6 dropped: 1 with an empty source (first at a:2), 1 with an empty target (first at \
                 a:3), 2 with a source longer than data.max_length = 5 (first at gone:1), 1 with a target longer than \
                 data.max_length = 5 (first at b:1), 1 with a length ratio above 3 (first at gone:2)"
            );
        }
    }

    /// More pairs than a shard holds; every third is dropped.
    fn big() -> Listed {
        let n = (1 << 18) + 5000;
        let pairs =
            (0..n).map(|i| (if i % 3 == 1 { String::new() } else { format!("{:05}", i % 100_000) }, "12".into()));
        Listed("big", pairs.collect(), 1.0)
    }

    #[test]
    fn order_and_first_examples_do_not_depend_on_threads() {
        let (encoded, report) = build(vec![Box::new(big())], Elements::NarrowIds).unwrap();
        let dropped = &report.dropped[&DropReason::EmptySource];
        let n = big().len();
        assert_eq!((dropped.count, dropped.line, encoded.shards.len()), ((n + 1) / 3, 2, 2));
        assert_eq!(encoded.len() + dropped.count, n);
        for i in (0..encoded.len()).step_by(7).chain([encoded.len() - 1]) {
            let line = i / 2 * 3 + i % 2 * 2;
            assert_eq!(encoded.ids(i).0, Bytes.encode(Side::Source, &format!("{:05}", line % 100_000)));
            assert_eq!(encoded.origin(i, Side::Source).1, line + 1);
        }
    }

    #[test]
    fn the_work_goes_on_where_it_was_left() {
        let corpus = big();
        let whole = shards(&corpus, RECIPE, SILENT).unwrap();
        let first = whole[0].summary().read;
        let mut rest = Vec::new();
        let mut sink = |shard| {
            rest.push(shard);
            Ok(())
        };
        encode(&corpus, RECIPE, first, &mut sink, SILENT).unwrap();
        assert_eq!(rest.len(), 1);
        assert_eq!((rest[0].summary(), rest[0].bytes()), (whole[1].summary(), whole[1].bytes()));
    }

    #[test]
    fn progress_is_told_and_can_end_it() {
        let told = std::cell::Cell::new(0);
        let progress = |read| {
            told.set(read);
            if read < 3000 { Ok(()) } else { Err(Error::stopped(false, "enough")) }
        };
        let error = shards(&big(), RECIPE, &progress).err().unwrap();
        assert_eq!((error.exit_code(), told.get()), (130, 3000));
    }

    #[test]
    fn the_fingerprint_tells_texts_apart_and_files_not() {
        let of = |name, pairs: &[(&str, &str)]| {
            let [ids, text] = [Elements::NarrowIds, Elements::Text]
                .map(|elements| build(vec![listed(name, pairs, 1.0)], elements).unwrap().0.fingerprint());
            assert_eq!(ids, text);
            ids
        };
        let text = of("a", &[("ab", "cd"), ("c", "d")]);
        assert_eq!(text, of("elsewhere", &[("ab", "cd"), ("c", "d")]));
        for other in [&[("c", "d"), ("ab", "cd")], &[("ab", "cd"), ("c", "e")], &[("a", "cd"), ("bc", "d")]] {
            assert_ne!(text, of("a", other));
        }
        let apart = vec![listed("a", &[("ab", "cd")], 1.0), listed("b", &[("c", "d")], 1.0)];
        assert_ne!(text, build(apart, Elements::NarrowIds).unwrap().0.fingerprint());
    }

    #[test]
    fn nothing_left_is_an_error() {
        let corpora = vec![listed("a", &[("", "x"), ("abcdef", "b")], 1.0)];
        let error = build(corpora, Elements::NarrowIds).err().unwrap().to_string();
        assert!(error.contains("1 with an empty source (first at a:1), 1 with a source longer"), "{error}");
        assert!(build(Vec::new(), Elements::NarrowIds).is_err());
    }
}
