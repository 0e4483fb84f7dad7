//! A stretch of a corpus, ready for training: the pairs that passed the filter, as numbers, in one piece of memory.
//!
//! The memory may be a mapped file, so that a corpus costs address space and no more. Numbers are little-endian:
//!
//! | section | size | content |
//! |---|---|---|
//! | lengths | 2 × 4 bytes a pair | subwords of the source and of the target |
//! | origins | 4 bytes a pair | which of the pairs read this was |
//! | weights | 4 bytes a pair | what its loss is multiplied by, in float32; only where the corpus has weights |
//! | starts | 2 × 4 bytes a pair, and 4 | where source and target begin among the elements; the end |
//! | elements | [`Elements::width`] bytes each | ids in the order source, target, source …; or text in UTF-8 |
//!
//! With BPE-dropout, each epoch splits the text anew, so text is kept instead of ids. The lengths are those without
//! dropout.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::filter::DropReason;
use super::lengths::Lengths;
use crate::error::{Error, Result};
use crate::file;
use crate::rng::mix64;

/// Pairs read after which a shard is full: some 30 MB of ids, half a minute of work at most.
const FULL_PAIRS: usize = 1 << 18;
/// Elements after which a shard is full, far below what 32 bits can count.
const FULL_ELEMENTS: usize = 1 << 30;

/// What a shard holds of its pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Elements {
    /// Ids below 65,536.
    NarrowIds,
    /// Any ids.
    WideIds,
    /// Normalised text.
    Text,
}

impl Elements {
    /// The narrowest ids for vocabularies of this size.
    pub fn ids(vocabulary: usize) -> Self {
        if vocabulary <= 1 << 16 { Self::NarrowIds } else { Self::WideIds }
    }

    /// Bytes of an element.
    fn width(self) -> usize {
        match self {
            Self::NarrowIds => 2,
            Self::WideIds => 4,
            Self::Text => 1,
        }
    }
}

/// Facts about a shard that are known without reading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Pairs read.
    pub read: usize,
    /// Pairs kept.
    pub kept: usize,
    /// Subwords of both sides.
    pub tokens: [u64; 2],
    /// Subwords of the longest line of each side.
    pub longest: [u32; 2],
    /// For each reason, how many pairs it dropped, and which of the pairs read was the first.
    pub dropped: BTreeMap<DropReason, (usize, usize)>,
    /// What the elements are.
    pub elements: Elements,
    /// How many of them there are.
    pub count: usize,
    /// Whether pairs have weights.
    pub is_weighted: bool,
    /// A checksum (SHA-256) of the ids, whatever the elements are, and of the weights.
    pub digest: String,
    /// CRC-32C of the bytes.
    pub checksum: u32,
}

impl Summary {
    /// How many numbers of 4 bytes a pair has before the starts.
    fn before_starts(&self) -> usize {
        3 + usize::from(self.is_weighted)
    }

    /// Bytes of the shard.
    fn size(&self) -> Option<usize> {
        let fixed = self.kept.checked_mul((self.before_starts() + 2) * 4)?.checked_add(4)?;
        fixed.checked_add(self.count.checked_mul(self.elements.width())?)
    }
}

/// A pair as ids, on its way into a shard.
pub struct EncodedPair {
    /// Source ids, without special tokens.
    pub source: Vec<u32>,
    /// Target ids, without special tokens.
    pub target: Vec<u32>,
    /// A hash that identifies the ids.
    hash: u64,
}

impl EncodedPair {
    /// Hashes the ids here, on many threads, rather than in [`Builder`].
    pub fn new(source: Vec<u32>, target: Vec<u32>) -> Self {
        let ids = [&source, &target]
            .into_iter()
            .flat_map(|side| std::iter::once(side.len() as u32).chain(side.iter().copied()));
        let hash = ids.fold(0, |hash, id| mix64(hash ^ mix64(u64::from(id))));
        Self { source, target, hash }
    }
}

/// Collects pairs.
pub struct Builder {
    summary: Summary,
    hash: Sha256,
    lengths: Vec<u8>,
    origins: Vec<u8>,
    weights: Vec<u8>,
    starts: Vec<u8>,
    elements: Vec<u8>,
}

impl Builder {
    /// A builder with nothing in it, for pairs that have weights or none.
    pub fn new(elements: Elements, is_weighted: bool) -> Self {
        let summary = Summary {
            read: 0,
            kept: 0,
            tokens: [0; 2],
            longest: [0; 2],
            dropped: BTreeMap::new(),
            elements,
            count: 0,
            is_weighted,
            digest: String::new(),
            checksum: 0,
        };
        let empty = Vec::new;
        Self {
            summary,
            hash: Sha256::new(),
            lengths: empty(),
            origins: empty(),
            weights: empty(),
            starts: 0u32.to_le_bytes().to_vec(),
            elements: empty(),
        }
    }

    /// Adds the next pair, with its normalised text where the shard holds text, and its weight where pairs have
    /// weights.
    ///
    /// Fails where a line has more elements than 32 bits count, or an id that is too large for the elements.
    pub fn keep(&mut self, pair: &EncodedPair, text: (&str, &str), weight: f32) -> Result<()> {
        let sides = [(&pair.source, text.0), (&pair.target, text.1)];
        for (side, (ids, text)) in sides.into_iter().enumerate() {
            let length = u32::try_from(ids.len()).map_err(|_| too_long())?;
            self.lengths.extend(length.to_le_bytes());
            self.summary.tokens[side] += u64::from(length);
            self.summary.longest[side] = self.summary.longest[side].max(length);
            self.summary.count += match self.summary.elements {
                Elements::NarrowIds => {
                    for id in ids {
                        let narrow = u16::try_from(*id).map_err(|_| too_wide(*id))?;
                        self.elements.extend(narrow.to_le_bytes());
                    }
                    ids.len()
                }
                Elements::WideIds => {
                    self.elements.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
                    ids.len()
                }
                Elements::Text => {
                    self.elements.extend(text.as_bytes());
                    text.len()
                }
            };
            let end = u32::try_from(self.summary.count).map_err(|_| too_long())?;
            self.starts.extend(end.to_le_bytes());
        }
        self.origins.extend((self.summary.read as u32).to_le_bytes());
        self.hash.update(pair.hash.to_le_bytes());
        if self.summary.is_weighted {
            self.weights.extend(weight.to_le_bytes());
            self.hash.update(weight.to_le_bytes());
        }
        self.summary.kept += 1;
        self.summary.read += 1;
        Ok(())
    }

    /// Counts the next pair as dropped.
    pub fn drop(&mut self, reason: DropReason) {
        self.summary.dropped.entry(reason).or_insert((0, self.summary.read)).0 += 1;
        self.summary.read += 1;
    }

    /// Whether it is time to begin another shard.
    pub fn is_full(&self) -> bool {
        self.summary.read >= FULL_PAIRS || self.summary.count >= FULL_ELEMENTS
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.summary.read == 0
    }

    /// The shard.
    pub fn finish(self) -> Shard {
        let Self { mut summary, hash, lengths, origins, weights, starts, elements } = self;
        let bytes = [lengths, origins, weights, starts, elements].concat();
        summary.digest = format!("{:x}", hash.finalize());
        summary.checksum = crc32c::crc32c(&bytes);
        Shard { summary, bytes: Bytes::Memory(bytes) }
    }
}

fn too_long() -> Error {
    Error::failure("a line of the training text is too long: it has more than four billion parts")
        .help("break it into sentences, or set data.max_length")
}

/// Elements were chosen for a smaller vocabulary.
fn too_wide(id: u32) -> Error {
    Error::failure(format!("the id {id} of a subword takes more than 16 bits, and the prepared text has no more"))
        .help("this is a mistake in mt; please report it")
}

enum Bytes {
    Memory(Vec<u8>),
    Mapped(Mmap),
}

impl Bytes {
    /// The mapped file; or its contents, if the file system cannot map files, like some network ones and FUSE.
    fn new(file: &mut File, mapped: io::Result<Mmap>) -> io::Result<Self> {
        match mapped {
            Ok(map) => Ok(Self::Mapped(map)),
            // Then there is even less room for a copy.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
            Err(_) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok(Self::Memory(bytes))
            }
        }
    }
}

/// Pairs that passed the filter; see the module's description.
pub struct Shard {
    summary: Summary,
    bytes: Bytes,
}

impl Shard {
    /// Maps a file with the contents of [`Self::bytes`], or reads it if it cannot be mapped. `None` if it does not
    /// match `summary`, or is gone.
    ///
    /// Fails where the file cannot be read.
    pub fn map(path: &Path, summary: Summary) -> Result<Option<Self>> {
        let read_error =
            |error| Error::io("read the prepared data", path, error).help("what is removed there is prepared again");
        let mut file = match file::open_regular(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(read_error)?,
        };
        let size = file.metadata().map_err(read_error)?.len();
        if summary.size().and_then(|size| u64::try_from(size).ok()) != Some(size) {
            return Ok(None);
        }
        // SAFETY: the file is written once, under another name, and then only read. (Truncating it while it is in use
        // ends the process, as with any mapped file.)
        let mapped = unsafe { Mmap::map(&file) };
        let shard = Self { summary, bytes: Bytes::new(&mut file, mapped).map_err(read_error)? };
        Ok((crc32c::crc32c(shard.bytes()) == shard.summary.checksum && shard.is_sound()).then_some(shard))
    }

    /// Whether all offsets are in order and in bounds, and all weights are numbers from 0 on: a checksum guards against
    /// accidents only.
    fn is_sound(&self) -> bool {
        let is_weight = |index| (0.0..f32::INFINITY).contains(&self.weight(index));
        let mut starts = (0..=2 * self.summary.kept).map(|index| self.start(index));
        let mut before = 0;
        let sorted = starts.all(|start| std::mem::replace(&mut before, start) <= start);
        let is_whole = before == self.summary.count && self.summary.read >= self.summary.kept;
        sorted && is_whole && (0..self.summary.kept).all(is_weight)
    }

    /// Its summary.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }

    /// The subwords of the kept pair `index`. Panics past the end.
    #[inline]
    pub fn lengths(&self, index: usize) -> Lengths {
        Lengths { source: self.number(2 * index), target: self.number(2 * index + 1) }
    }

    /// Which of the pairs read pair `index` was.
    pub fn origin(&self, index: usize) -> usize {
        self.number(2 * self.summary.kept + index) as usize
    }

    /// What the loss of pair `index` is multiplied by: 1 where pairs have no weights.
    pub fn weight(&self, index: usize) -> f32 {
        if self.summary.is_weighted { f32::from_bits(self.number(3 * self.summary.kept + index)) } else { 1.0 }
    }

    /// The ids of pair `index`; empty where the shard holds text.
    pub fn ids(&self, index: usize) -> (Vec<u32>, Vec<u32>) {
        (self.side_ids(2 * index), self.side_ids(2 * index + 1))
    }

    /// The normalised text of pair `index`; empty where the shard holds ids.
    pub fn text(&self, index: usize) -> (&str, &str) {
        (self.side_text(2 * index), self.side_text(2 * index + 1))
    }

    fn side_ids(&self, side: usize) -> Vec<u32> {
        let bytes = self.side(side);
        match self.summary.elements {
            Elements::NarrowIds => bytes.as_chunks().0.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect(),
            Elements::WideIds => bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect(),
            Elements::Text => Vec::new(),
        }
    }

    fn side_text(&self, side: usize) -> &str {
        match self.summary.elements {
            Elements::Text => std::str::from_utf8(self.side(side)).unwrap_or_default(),
            _ => "",
        }
    }

    /// The elements of a line: source, target, source, …
    fn side(&self, side: usize) -> &[u8] {
        let width = self.summary.elements.width();
        let first = ((self.summary.before_starts() + 2) * self.summary.kept + 1) * 4;
        &self.bytes()[first + self.start(side) * width..first + self.start(side + 1) * width]
    }

    fn start(&self, side: usize) -> usize {
        self.number(self.summary.before_starts() * self.summary.kept + side) as usize
    }

    /// The 32-bit number at index `index`, before the elements.
    #[inline]
    fn number(&self, index: usize) -> u32 {
        let bytes = &self.bytes()[4 * index..4 * index + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(elements: Elements) -> Shard {
        shard_of(elements, false)
    }

    fn shard_of(elements: Elements, is_weighted: bool) -> Shard {
        let mut builder = Builder::new(elements, is_weighted);
        assert!(builder.is_empty());
        builder.keep(&EncodedPair::new(vec![1, 65_535], vec![3]), ("one", "eins"), 0.25).unwrap();
        builder.drop(DropReason::EmptyTarget);
        builder.drop(DropReason::Ratio);
        builder.drop(DropReason::EmptyTarget);
        builder.keep(&EncodedPair::new(vec![4], vec![5, 6, 7]), ("zwölf", "ü"), 3.0).unwrap();
        builder.finish()
    }

    fn check(shard: &Shard, elements: Elements) {
        let pair = |source: &[u32], target: &[u32]| match elements {
            Elements::Text => (vec![], vec![]),
            _ => (source.to_vec(), target.to_vec()),
        };
        assert_eq!([shard.ids(0), shard.ids(1)], [pair(&[1, 65_535], &[3]), pair(&[4], &[5, 6, 7])]);
        let texts = if elements == Elements::Text { [("one", "eins"), ("zwölf", "ü")] } else { [("", ""); 2] };
        assert_eq!([shard.text(0), shard.text(1)], texts);
        assert_eq!([shard.origin(0), shard.origin(1)], [0, 4]);
        assert_eq!(shard.lengths(1), Lengths { source: 1, target: 3 });
    }

    #[test]
    fn gives_back_what_was_put_in() {
        for elements in [Elements::NarrowIds, Elements::WideIds, Elements::Text] {
            let shard = shard(elements);
            check(&shard, elements);
            let summary = shard.summary();
            assert_eq!((summary.read, summary.kept, summary.tokens, summary.longest), (5, 2, [3, 4], [2, 3]));
            let dropped = [(DropReason::EmptyTarget, (2, 1)), (DropReason::Ratio, (1, 2))];
            assert_eq!(summary.dropped, BTreeMap::from(dropped));
        }
        let digest = |elements| shard(elements).summary().digest.clone();
        assert_eq!(digest(Elements::NarrowIds), digest(Elements::Text));
    }

    #[test]
    fn weights_are_part_of_the_shard_and_of_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        for elements in [Elements::NarrowIds, Elements::WideIds, Elements::Text] {
            let [plain, weighted] = [false, true].map(|is_weighted| shard_of(elements, is_weighted));
            assert_eq!([0, 1].map(|index| plain.weight(index)), [1.0, 1.0]);
            assert_ne!(plain.summary().digest, weighted.summary().digest);
            let path = folder.path().join("0.bin");
            std::fs::write(&path, weighted.bytes()).unwrap();
            let mapped = Shard::map(&path, weighted.summary().clone()).unwrap().unwrap();
            for shard in [weighted, mapped] {
                check(&shard, elements);
                assert_eq!([0, 1].map(|index| shard.weight(index)), [0.25, 3.0]);
            }
        }
    }

    #[test]
    fn a_file_is_taken_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.bin");
        for elements in [Elements::NarrowIds, Elements::WideIds, Elements::Text] {
            let whole = shard(elements);
            let map = |bytes: &[u8]| {
                std::fs::write(&path, bytes).unwrap();
                Shard::map(&path, whole.summary().clone()).unwrap()
            };
            check(&map(whole.bytes()).unwrap(), elements);
            let size = whole.bytes().len();
            for cut in [0, 3, size - 1] {
                assert!(map(&whole.bytes()[..cut]).is_none());
            }
            for index in 0..size {
                let mut bytes = whole.bytes().to_vec();
                bytes[index] ^= 1;
                assert!(map(&bytes).is_none(), "{index}");
                // Even with a matching checksum, nothing may panic.
                let mut summary = whole.summary().clone();
                summary.checksum = crc32c::crc32c(&bytes);
                if let Some(shard) = Shard::map(&path, summary).unwrap() {
                    (0..2).for_each(|index| drop((shard.ids(index), shard.text(index))));
                }
            }
        }
        let mut summary = shard(Elements::NarrowIds).summary().clone();
        summary.kept = usize::MAX;
        assert!(Shard::map(&path, summary).unwrap().is_none());
    }

    #[test]
    fn a_file_that_cannot_be_mapped_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.bin");
        std::fs::write(&path, b"content").unwrap();
        let bytes = |number| Bytes::new(&mut File::open(&path).unwrap(), Err(io::Error::from_raw_os_error(number)));
        assert!(matches!(bytes(libc::ENODEV), Ok(Bytes::Memory(bytes)) if bytes == b"content"));
        assert!(bytes(libc::ENOMEM).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(Shard::map(&path, shard(Elements::Text).summary().clone()).unwrap().is_none());
    }

    #[test]
    fn ids_narrow_as_long_as_they_fit() {
        assert_eq!([65_536, 65_537].map(Elements::ids), [Elements::NarrowIds, Elements::WideIds]);
        let keep = |elements, source, target| {
            let pair = EncodedPair::new(vec![source], vec![target]);
            Builder::new(elements, false).keep(&pair, ("a", "b"), 1.0).map_err(|error| error.to_string())
        };
        keep(Elements::NarrowIds, 65_535, 65_535).unwrap();
        keep(Elements::WideIds, 65_536, u32::MAX).unwrap();
        // They are never cut.
        for (source, target) in [(65_536, 1), (1, 65_536)] {
            let error = keep(Elements::NarrowIds, source, target).unwrap_err();
            assert!(error.starts_with("the id 65536 of a subword takes more than 16 bits"), "{error}");
        }
    }
}
