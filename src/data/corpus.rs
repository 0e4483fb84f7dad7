//! Parallel corpora: pairs of lines that belong together.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use super::block::PairBlock;
use super::block::is_full;
use super::text::file::{LineReader, TextFile};
use super::weights::{WeightReader, Weights};
use crate::error::{Error, Result};

/// One of the two languages of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// What is translated.
    Source,
    /// What it is translated into.
    Target,
}

/// Where pairs come from: all later stages read corpora only through it.
///
/// A corpus may be larger than memory, so it is read in order, block by block, as often as need be.
pub trait PairSource: Send + Sync {
    /// Number of pairs.
    fn len(&self) -> usize;

    /// Whether there is no pair.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of text on both sides, about.
    fn text_bytes(&self) -> u64;

    /// A SHA-256 that identifies the text, wherever it is stored.
    fn digest(&self) -> [u8; 32];

    /// All pairs from the first on, in blocks that are the same each time.
    fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>>;

    /// File and line (from 1) that a side of pair `index` came from, as the user would look it up.
    fn origin(&self, index: usize, side: Side) -> (PathBuf, usize);

    /// How often an epoch draws each pair: 2.0 twice, 0.5 every second pair. Above 0.
    fn weight(&self) -> f64;

    /// Whether the pairs have weights, by which their losses are multiplied ([`PairBlock::weight`]).
    fn is_weighted(&self) -> bool {
        false
    }
}

/// A source line with a tag in front. A blank line stays as it is, since there is nothing to translate.
pub fn tagged<'l>(tag: Option<&str>, line: &'l str) -> Cow<'l, str> {
    match tag {
        Some(tag) if !line.trim().is_empty() => Cow::Owned(format!("{tag} {line}")),
        _ => Cow::Borrowed(line),
    }
}

/// A corpus whose source lines get a tag.
pub struct Tagged {
    /// Without the tag.
    pub corpus: Box<dyn PairSource>,
    /// What is put in front of each line.
    pub tag: String,
}

impl PairSource for Tagged {
    fn len(&self) -> usize {
        self.corpus.len()
    }

    fn text_bytes(&self) -> u64 {
        self.corpus.text_bytes() + (self.len() * (self.tag.len() + 1)) as u64
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::new().chain_update(self.corpus.digest()).chain_update(&self.tag).finalize().into()
    }

    fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>> {
        let tag_block = |block: Result<PairBlock>| Ok(block?.with_sources(|source| tagged(Some(&self.tag), source)));
        Ok(Box::new(self.corpus.blocks()?.map(tag_block)))
    }

    fn origin(&self, index: usize, side: Side) -> (PathBuf, usize) {
        self.corpus.origin(index, side)
    }

    fn weight(&self) -> f64 {
        self.corpus.weight()
    }

    fn is_weighted(&self) -> bool {
        self.corpus.is_weighted()
    }
}

/// All pairs of a corpus that is known to be small, in memory.
pub fn read_all(corpus: &dyn PairSource) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::with_capacity(corpus.len());
    for block in corpus.blocks()? {
        let block = block?;
        pairs.extend((0..block.len()).map(|index| block.get(index)).map(|(s, t)| (s.to_owned(), t.to_owned())));
    }
    Ok(pairs)
}

/// Two text files, aligned line by line; or two columns of one.
#[derive(Clone, Debug)]
pub struct Corpus {
    source: TextFile,
    target: TextFile,
    weight: f64,
    /// The weights of its pairs, if it has any.
    weights: Option<Weights>,
}

impl Corpus {
    /// Opens two files, which may be compressed, and reads them through once. An epoch draws each pair `weight` times.
    ///
    /// Fails where a file cannot be read, is not UTF-8 or is empty (for both files at once), where the files differ in
    /// their number of lines, and for a weight that is not a positive number.
    pub fn open(source: impl AsRef<Path>, target: impl AsRef<Path>, weight: f64) -> Result<Self> {
        let (source, target) = (source.as_ref(), target.as_ref());
        check_weight(weight, source)?;
        // Unpacking takes most of the time, and the two files are independent.
        let is_regular = |file: &Path| file.metadata().is_ok_and(|metadata| metadata.is_file());
        let scanned = if is_regular(source) && is_regular(target) {
            rayon::join(|| TextFile::scan(source), || TextFile::scan(target))
        } else {
            // Who writes two pipes by turns waits if only one is read, as would be done on a single thread.
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("target".to_owned());
                let reader = thread.spawn_scoped(scope, || TextFile::scan(target));
                let source = TextFile::scan(source);
                let failed = || Error::failure("cannot read on a second thread").at(target);
                let target = match reader {
                    Ok(reader) => reader.join().unwrap_or_else(|_| Err(failed())),
                    Err(error) => Err(Error::thread("reads the target side", error)),
                };
                (source, target)
            })
        };
        match scanned {
            (Ok(source), Ok(target)) => Self::aligned(source, target, weight),
            (source, target) => Err(Error::many(source.err().into_iter().chain(target.err()).collect())),
        }
    }

    /// Opens two columns of one file, numbered from 1, that tabs separate. As [`Corpus::open`].
    pub fn open_columns(file: impl AsRef<Path>, [source, target]: [usize; 2], weight: f64) -> Result<Self> {
        let file = file.as_ref();
        check_weight(weight, file)?;
        // Both scans read the same lines, so one error is enough.
        let (source, target) =
            rayon::join(|| TextFile::scan_column(file, source), || TextFile::scan_column(file, target));
        Self::aligned(source?, target?, weight)
    }

    fn aligned(source: TextFile, target: TextFile, weight: f64) -> Result<Self> {
        if source.lines != target.lines {
            let describe = |file: &TextFile| {
                let lines = if file.lines == 1 { "line" } else { "lines" };
                format!("{} has {} {lines}", file.path().display(), file.lines)
            };
            return Err(Error::failure(format!("{}, but {}", describe(&source), describe(&target))).help(
                "line N of one file is the translation of line N of the other: one may be cut short, or a tool may \
                 have broken lines at characters other than \\n; compare `wc -l` of both with their origin",
            ));
        }
        Ok(Self { source, target, weight, weights: None })
    }

    /// The same corpus, where each pair has the weight that the file at `path` gives it. Reads that file once.
    ///
    /// # Errors
    /// As [`Weights::scan`].
    pub fn with_weights(self, path: &Path) -> Result<Self> {
        let weights = Weights::scan(path, Some(&self.source))?;
        Ok(Self { weights: Some(weights), ..self })
    }

    /// The weights of its pairs, if it has any.
    pub fn weights(&self) -> Option<&Weights> {
        self.weights.as_ref()
    }

    /// Whether its files are still those that were read, as far as the system tells.
    fn is_unchanged(&self) -> bool {
        [&self.source, &self.target].iter().all(|file| file.is_unchanged())
            && self.weights.as_ref().is_none_or(Weights::is_unchanged)
    }

    fn changed(&self) -> Error {
        let [source, target] = [&self.source, &self.target].map(|file| file.path().display().to_string());
        let files = match &self.weights {
            None => format!("{source} or {target}"),
            Some(weights) => format!("{source}, {target} or {}", weights.path().display()),
        };
        Error::failure(format!("{files} changed while they were read")).help("run again when they are complete")
    }

    /// The source file.
    pub fn source(&self) -> &TextFile {
        &self.source
    }

    /// The target file.
    pub fn target(&self) -> &TextFile {
        &self.target
    }
}

impl PairSource for Corpus {
    fn len(&self) -> usize {
        self.source.lines
    }

    fn text_bytes(&self) -> u64 {
        self.source.bytes + self.target.bytes
    }

    fn digest(&self) -> [u8; 32] {
        let hash = Sha256::new().chain_update(self.source.digest).chain_update(self.target.digest);
        self.weights.iter().fold(hash, |hash, weights| hash.chain_update(weights.digest())).finalize().into()
    }

    fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>> {
        let (source, target) = (self.source.reader()?, self.target.reader()?);
        let weights = self.weights.as_ref().map(Weights::reader).transpose()?;
        let mut blocks = Blocks { corpus: self, source, target, weights, read: 0 };
        Ok(Box::new(std::iter::from_fn(move || blocks.next_block().transpose())))
    }

    fn origin(&self, index: usize, side: Side) -> (PathBuf, usize) {
        let file = match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        };
        (file.path().to_path_buf(), index + 1)
    }

    fn weight(&self) -> f64 {
        self.weight
    }

    fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }
}

fn check_weight(weight: f64, file: &Path) -> Result<()> {
    if weight.is_finite() && weight > 0.0 {
        return Ok(());
    }
    let error = Error::usage(format!("the weight of a corpus cannot be {weight}")).at(file);
    Err(error.help("a weight of 2.0 draws each pair twice an epoch, 0.5 every second pair"))
}

/// A pass over two files.
struct Blocks<'a> {
    corpus: &'a Corpus,
    source: LineReader,
    target: LineReader,
    weights: Option<WeightReader>,
    /// Pairs read.
    read: usize,
}

impl Blocks<'_> {
    /// The next block; `None` at the end of both files. Fails where they are not what they were when they were opened.
    fn next_block(&mut self) -> Result<Option<PairBlock>> {
        let (mut text, mut ends, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        while !is_full(ends.len(), text.len()) {
            let is_source = self.source.next_line(&mut text)?;
            ends.push(text.len());
            let is_target = self.target.next_line(&mut text)?;
            ends.push(text.len());
            match (is_source, is_target) {
                (true, true) => {
                    self.read += 1;
                    if let Some(reader) = &mut self.weights {
                        weights.push(reader.next_weight()?.ok_or_else(|| self.corpus.changed())?);
                    }
                }
                (false, false) if self.read == self.corpus.len() => {
                    ends.truncate(ends.len() - 2);
                    break;
                }
                _ => return Err(self.corpus.changed()),
            }
        }
        let text = String::from_utf8(text).map_err(|_| self.corpus.changed())?;
        // Other text must not be kept under the checksum of the one that was there.
        if !self.corpus.is_unchanged() {
            return Err(self.corpus.changed());
        }
        Ok((!ends.is_empty()).then_some(PairBlock::of_parts(text, ends, weights)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::block::BLOCK_PAIRS;
    use crate::data::text::file::Uneven;

    fn open(source: &str, target: &str, weight: f64) -> (tempfile::TempDir, Result<Corpus>) {
        let directory = tempfile::tempdir().unwrap();
        let paths = [("t.en", source), ("t.de", target)].map(|(name, text)| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        });
        let corpus = Corpus::open(&paths[0], &paths[1], weight);
        (directory, corpus)
    }

    fn pairs(corpus: &Corpus) -> Vec<(String, String)> {
        read_all(corpus).unwrap()
    }

    fn pair(source: &str, target: &str) -> (String, String) {
        (source.to_owned(), target.to_owned())
    }

    #[test]
    fn pairs_are_aligned_and_know_their_origin() {
        let (_directory, corpus) = open("\u{FEFF}one\ntwo\u{2028}still two\n", "eins\r\nzwei", 2.0);
        let corpus = corpus.unwrap();
        assert_eq!((corpus.len(), corpus.weight()), (2, 2.0));
        assert_eq!(pairs(&corpus), [pair("one", "eins"), pair("two\u{2028}still two", "zwei")]);
        let (path, line) = corpus.origin(1, Side::Target);
        assert!(path.ends_with("t.de"));
        assert_eq!(line, 2);
        assert_eq!((corpus.source().carriage_returns, corpus.target().carriage_returns), (0, 1));
    }

    #[test]
    fn a_tag_is_put_in_front_of_lines_that_are_not_blank() {
        let (_directory, corpus) = open("one\n \ntwo\n", "eins\n\nzwei\n", 2.0);
        let corpus = corpus.unwrap();
        let (digest, bytes) = (corpus.digest(), corpus.text_bytes());
        let of = |tag: &str| Tagged { corpus: Box::new(corpus.clone()), tag: tag.to_owned() };
        let german = of("<2de>");
        assert_eq!(read_all(&german).unwrap(), [pair("<2de> one", "eins"), pair(" ", ""), pair("<2de> two", "zwei")]);
        assert_eq!((german.len(), german.weight(), german.origin(2, Side::Source).1), (3, 2.0, 3));
        assert!(german.text_bytes() > bytes);
        // Text with another tag is other text.
        assert!(german.digest() != digest && german.digest() != of("<2fr>").digest());
    }

    #[test]
    fn weights_stay_with_their_pairs() {
        let (directory, corpus) = open("one\ntwo\nthree\n", "eins\nzwei\ndrei\n", 1.0);
        let path = directory.path().join("t.weights");
        std::fs::write(&path, "0.5\n0\n2\n").unwrap();
        let plain = corpus.unwrap();
        let weighted = plain.clone().with_weights(&path).unwrap();
        assert!(weighted.is_weighted() && !plain.is_weighted() && weighted.digest() != plain.digest());
        let weights = |corpus: &dyn PairSource| -> Vec<f32> {
            let blocks = corpus.blocks().unwrap().map(|block| block.unwrap());
            blocks.flat_map(|block| (0..block.len()).map(|i| block.weight(i)).collect::<Vec<_>>()).collect()
        };
        assert_eq!(weights(&plain), [1.0; 3]);
        assert_eq!(weights(&weighted), [0.5, 0.0, 2.0]);
        let tagged = Tagged { corpus: Box::new(weighted.clone()), tag: "<2de>".to_owned() };
        assert!(tagged.is_weighted());
        assert_eq!(weights(&tagged), [0.5, 0.0, 2.0]);
        std::fs::write(&path, "0.5\n0\n2.25\n").unwrap();
        let error = read_all(&weighted).unwrap_err().to_string();
        assert!(error.contains("t.weights changed while they were read"), "{error}");
    }

    /// Even if it has as many lines, and whether it was replaced or rewritten.
    #[test]
    fn text_that_changes_between_two_readings_is_refused() {
        for side in ["t.en", "t.de"] {
            let (directory, corpus) = open("one\ntwo\n", "eins\nzwei\n", 1.0);
            let corpus = corpus.unwrap();
            assert_eq!(pairs(&corpus).len(), 2);
            std::fs::write(directory.path().join("new"), "zwei\neins, aber laenger\n").unwrap();
            std::fs::rename(directory.path().join("new"), directory.path().join(side)).unwrap();
            let error = read_all(&corpus).unwrap_err().to_string();
            assert!(error.contains("changed while they were read"), "{error}");
        }
    }

    #[test]
    fn columns_are_sides() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.tsv");
        let open = |text: &[u8], columns| {
            std::fs::write(&path, text).unwrap();
            Corpus::open_columns(&path, columns, 1.0)
        };
        let text = "\u{FEFF}one\t0.7\teins\r\n\t\t\n\"two\t0.9\tzwei\u{2028}\tmore";
        let corpus = open(text.as_bytes(), [1, 3]).unwrap();
        assert_eq!(pairs(&corpus), [pair("one", "eins"), pair("", ""), pair("\"two", "zwei\u{2028}")]);
        assert_eq!((corpus.source().carriage_returns, corpus.target().carriage_returns), (0, 1));
        assert_eq!(corpus.source().uneven, Some(Uneven { lines: 1, first: 3 }));
        assert_eq!(corpus.origin(2, Side::Target), (path.clone(), 3));
        // It is known by its text, wherever that lies.
        let (_other, files) = super::tests::open("\u{FEFF}one\n\n\"two\n", "eins\r\n\nzwei\u{2028}\n", 1.0);
        assert_eq!(pairs(&files.unwrap()), pairs(&corpus));
        assert_eq!(pairs(&open(text.as_bytes(), [3, 1]).unwrap())[0], pair("eins", "one"));

        // A blank line is an empty pair, and has no number of columns that others could differ from.
        let corpus = open("\u{FEFF}\na\tb\r\n\r\n \u{3000} \nc\td\n\n".as_bytes(), [2, 1]).unwrap();
        let empty = || pair("", "");
        assert_eq!(pairs(&corpus), [empty(), pair("b", "a"), empty(), empty(), pair("d", "c"), empty()]);
        assert_eq!((corpus.source().uneven, corpus.origin(4, Side::Source).1), (None, 5));

        let fails = |text: &[u8], columns| open(text, columns).unwrap_err().to_string();
        let error = fails(b"a\tb\tc\na b\tc\n", [1, 3]);
        assert!(
            error.contains("the line has 2 columns, but the text is in column 3") && error.contains("t.tsv:2"),
            "{error}"
        );
        let error = fails(b"a\tb\nno tabs\n", [1, 2]);
        assert!(error.contains("the line has one column") && error.contains("t.tsv:2"), "{error}");
        let error = fails(b"a\tb\ncaf\xE9\tb\n", [1, 2]);
        assert!(
            error.contains("t.tsv:2:4\n  help: byte 0xE9 at offset 7;") && error.matches("0xE9").count() == 1,
            "{error}"
        );
        assert!(fails(b"", [1, 2]).contains("the file is empty"));
    }

    #[test]
    fn lines_are_those_of_a_file_read_whole() {
        for text in ["a\n\nb\n", "a\rb\r\n\r\r\nc", "\u{FEFF}\n\u{FEFF}x", "x\u{2028}y\u{85}\u{0C}z", "\n", "ü\nß🙂\r"]
        {
            let (directory, corpus) = open(text, text, 1.0);
            let expected = super::super::text::lines::read_lines(directory.path().join("t.en")).unwrap();
            let corpus = corpus.unwrap();
            let read: Vec<String> = pairs(&corpus).into_iter().map(|(source, _)| source).collect();
            assert_eq!(read, expected.iter().collect::<Vec<_>>(), "{text:?}");
            assert_eq!(corpus.source().carriage_returns, expected.carriage_returns, "{text:?}");
        }
    }

    /// Long enough for several blocks and chunks.
    #[test]
    fn blocks_hold_every_pair_once_in_order() {
        let n = 2 * BLOCK_PAIRS + 77;
        let side = |word: &str| (0..n).map(|i| format!("{word} {i} {}\n", "é".repeat(i % 90))).collect::<String>();
        let (_directory, corpus) = open(&side("one"), &side("eins"), 1.0);
        let corpus = corpus.unwrap();
        assert!(corpus.text_bytes() > 4 << 20);
        assert_eq!(corpus.blocks().unwrap().count(), 3);
        for (i, (source, target)) in pairs(&corpus).into_iter().enumerate() {
            let tail = format!("{i} {}", "é".repeat(i % 90));
            assert_eq!((source, target), pair(&format!("one {tail}"), &format!("eins {tail}")));
        }
    }

    #[test]
    fn invalid_utf8_is_located_far_into_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.en");
        let mut text = "über alle Maßen\n".repeat(200_000).into_bytes();
        let offset = text.len() + 5;
        text.extend(b"caf\xC3\xA9\xE9 au lait\n");
        std::fs::write(&path, &text).unwrap();
        let error = TextFile::scan(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("t.en:200001:5\n  help: byte 0xE9 at offset {offset};")), "{error}");
        assert!(error.contains("iconv -c -f UTF-8 -t UTF-8"), "{error}");
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        for text in ["one\n", "one\ntwo\nthree\n", "one\ntw\u{0}"] {
            let (directory, corpus) = open("one\ntwo\n", "eins\nzwei\n", 1.0);
            let mut text = text.as_bytes().to_vec();
            text.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0xFF);
            std::fs::write(directory.path().join("t.en"), text).unwrap();
            let error = read_all(&corpus.unwrap()).unwrap_err().to_string();
            assert!(error.contains("changed while they were read"), "{error}");
        }
    }

    #[test]
    fn equal_text_has_an_equal_digest() {
        let digest = |source, target| open(source, target, 1.0).1.unwrap().digest();
        assert_eq!(digest("a\nb\n", "c\nd\n"), digest("a\nb\n", "c\nd\n"));
        assert_ne!(digest("a\nb\n", "c\nd\n"), digest("a\nb\n", "c\ne\n"));
        assert_ne!(digest("a\nb\n", "c\nd\n"), digest("c\nd\n", "a\nb\n"));
    }

    #[test]
    fn unequal_counts_name_both_files_and_counts() {
        let error = open("one\ntwo\nthree\n", "eins\n", 1.0).1.unwrap_err().to_string();
        assert!(error.contains("t.en has 3 lines, but "), "{error}");
        assert!(error.contains("t.de has 1 line\n  help: "), "{error}");
    }

    #[test]
    fn empty_and_missing_files_are_reported_together() {
        let error = open("", "\u{FEFF}", 1.0).1.unwrap_err();
        assert_eq!(error.all().count(), 2);
        let text = error.to_string();
        assert!(text.contains("t.en") && text.contains("t.de") && text.contains("the file is empty"), "{text}");
        assert_eq!(Corpus::open("/absent/a", "/absent/b", 1.0).unwrap_err().all().count(), 2);
        // An empty file beside a full one: "empty" says more than the counts.
        assert_eq!(open("one\n", "", 1.0).1.unwrap_err().what(), "the file is empty");
    }

    #[test]
    fn impossible_weights_are_refused() {
        for weight in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(open("a\n", "b\n", weight).1.unwrap_err().exit_code(), 2);
        }
    }
}
