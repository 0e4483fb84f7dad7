//! Parallel corpora: pairs of lines that belong together.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use super::block::PairBlock;
use super::block::is_full;
use super::text::file::{LineReader, TextFile};
use super::text::returns;
use super::tokenizer::INVISIBLE;
use super::weights::{WeightReader, Weights};
use crate::error::{Error, Result};

/// One of the two languages of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The side to translate.
    Source,
    /// The side of the translation.
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

/// Whether a line has nothing to translate: only white space and characters without width.
pub fn is_blank(line: &str) -> bool {
    line.chars().all(|c| c.is_whitespace() || INVISIBLE.contains(&c))
}

/// A line with a tag in front. A blank line stays as it is.
pub fn tagged<'l>(tag: Option<&str>, line: &'l str) -> Cow<'l, str> {
    match tag {
        Some(tag) if !is_blank(line) => Cow::Owned(format!("{tag} {line}")),
        _ => Cow::Borrowed(line),
    }
}

/// A corpus whose lines get a tag.
pub struct Tagged {
    /// Without the tags.
    pub corpus: Box<dyn PairSource>,
    /// What is put in front of each line, of sources and of targets.
    pub tags: [Option<String>; 2],
}

impl PairSource for Tagged {
    fn len(&self) -> usize {
        self.corpus.len()
    }

    fn text_bytes(&self) -> u64 {
        let bytes: usize = self.tags.iter().flatten().map(|tag| tag.len() + 1).sum();
        self.corpus.text_bytes() + (self.len() * bytes) as u64
    }

    fn digest(&self) -> [u8; 32] {
        let [source, target] = &self.tags;
        let mut hash =
            Sha256::new().chain_update(self.corpus.digest()).chain_update(source.as_deref().unwrap_or_default());
        if let Some(target) = target {
            // No line has a line feed, so this is unambiguous.
            hash = hash.chain_update("\n").chain_update(target);
        }
        hash.finalize().into()
    }

    fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>> {
        let tags = self.tags.each_ref().map(Option::as_deref);
        let tag_block = move |block: Result<PairBlock>| Ok(block?.tagged(tags));
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

/// Reads all pairs of a small corpus into memory.
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
    /// Fails if a file cannot be read, is not UTF-8 or is empty (for both files at once), if the files differ in their
    /// number of lines, and for a weight that is not a positive number.
    pub fn open(source: impl AsRef<Path>, target: impl AsRef<Path>, weight: f64) -> Result<Self> {
        let (source, target) = (source.as_ref(), target.as_ref());
        check_weight(weight, source)?;
        if source == target {
            // A pipe can be read only once.
            let text = TextFile::scan(source)?;
            return Self::aligned(text.clone(), text, weight);
        }
        // Unpacking takes most of the time, and the two files are independent.
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
        let (source, target) = if is_regular(file) {
            rayon::join(|| TextFile::scan_column(file, source), || TextFile::scan_column(file, target))
        } else {
            let source = TextFile::scan_column(file, source)?;
            let target = source.of_column(target);
            (Ok(source), target)
        };
        Self::aligned(source?, target?, weight)
    }

    fn aligned(source: TextFile, target: TextFile, weight: f64) -> Result<Self> {
        if source.lines != target.lines {
            let describe = |file: &TextFile| {
                let lines = if file.lines == 1 { "line" } else { "lines" };
                format!("{} has {} {lines}", file.path().display(), file.lines)
            };
            let error = Error::failure(format!("{}, but {}", describe(&source), describe(&target))).help(
                "line N of one file is the translation of line N of the other: one may be cut short, or a tool may \
                 have broken lines at characters other than \\n; compare `wc -l` of both with their origin",
            );
            let with_returns = [&source, &target].into_iter().filter_map(|file| Some((file.path(), file.returns?)));
            return Err(with_returns.fold(error, |error, (path, odd)| error.more_help(&returns::warning(path, odd))));
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

    /// Whether its files have not changed since they were read, as far as the system reports it.
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

fn is_regular(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

fn check_weight(weight: f64, file: &Path) -> Result<()> {
    if weight.is_finite() && weight > 0.0 {
        return Ok(());
    }
    let error = Error::usage(format!("invalid weight {weight} of a corpus")).at(file);
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
    /// The next block; `None` at the end of both files. Fails if they have changed since they were opened.
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
        Ok((!ends.is_empty()).then_some(PairBlock::from_parts(text, ends, weights)))
    }
}

#[cfg(test)]
mod tests;
