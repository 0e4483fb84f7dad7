//! Parallel corpora: pairs of lines that belong together.

use std::path::Path;

use super::lines::{LineFile, read_lines};
use crate::error::{Error, Result};

/// One of the two languages of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// What is translated.
    Source,
    /// What it is translated into.
    Target,
}

/// Where pairs come from: everything after this reads corpora through it alone.
pub trait PairSource: Send + Sync {
    /// Number of pairs.
    fn len(&self) -> usize;

    /// Whether there is no pair.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Source and target text of pair `index`, which is less than [`Self::len`].
    fn pair(&self, index: usize) -> (&str, &str);

    /// File and line (from 1) that a side of pair `index` came from, as the user would look it up.
    fn origin(&self, index: usize, side: Side) -> (&Path, usize);

    /// How often an epoch draws each pair: 2.0 twice, 0.5 every second pair.
    fn weight(&self) -> f64 {
        1.0
    }
}

/// Two text files, aligned line by line.
#[derive(Clone, Debug)]
pub struct Corpus {
    source: LineFile,
    target: LineFile,
    weight: f64,
}

impl Corpus {
    /// Reads two files, which may be compressed. An epoch draws each pair `weight` times.
    ///
    /// Fails where a file cannot be read, is not UTF-8 or is empty (for both files at once), where the files differ in
    /// their number of lines, and for a weight that is negative or not finite.
    pub fn open(source: impl AsRef<Path>, target: impl AsRef<Path>, weight: f64) -> Result<Self> {
        let (source, target) = (source.as_ref(), target.as_ref());
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(Error::usage(format!("the weight of a corpus cannot be {weight}"))
                .at(source)
                .help("a weight of 2.0 draws each pair twice an epoch, 0.5 every second pair, 0.0 none"));
        }
        // Unpacking takes most of the time, and the two files are independent.
        match rayon::join(|| read_side(source), || read_side(target)) {
            (Ok(source), Ok(target)) => Self::aligned(source, target, weight),
            (source, target) => Err(Error::many(source.err().into_iter().chain(target.err()).collect())),
        }
    }

    fn aligned(source: LineFile, target: LineFile, weight: f64) -> Result<Self> {
        if source.len() != target.len() {
            let describe = |file: &LineFile| {
                let lines = if file.len() == 1 { "line" } else { "lines" };
                format!("{} has {} {lines}", file.path().display(), file.len())
            };
            return Err(Error::failure(format!("{}, but {}", describe(&source), describe(&target))).help(
                "line N of one file is the translation of line N of the other: one may be cut short, or a tool may have \
                 broken lines at other characters than \\n; compare `wc -l` of both with their origin",
            ));
        }
        Ok(Self { source, target, weight })
    }

    /// The source file.
    pub fn source(&self) -> &LineFile {
        &self.source
    }

    /// The target file.
    pub fn target(&self) -> &LineFile {
        &self.target
    }
}

fn read_side(path: &Path) -> Result<LineFile> {
    let lines = read_lines(path)?;
    if lines.is_empty() {
        return Err(Error::failure("the file is empty").at(path).help("a corpus needs at least one line a side"));
    }
    Ok(lines)
}

impl PairSource for Corpus {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn pair(&self, index: usize) -> (&str, &str) {
        (self.source.get(index), self.target.get(index))
    }

    fn origin(&self, index: usize, side: Side) -> (&Path, usize) {
        let file = match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        };
        (file.path(), index + 1)
    }

    fn weight(&self) -> f64 {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(source: &str, target: &str, weight: f64) -> Result<Corpus> {
        let directory = tempfile::tempdir().unwrap();
        let paths = [("t.en", source), ("t.de", target)].map(|(name, text)| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        });
        Corpus::open(&paths[0], &paths[1], weight)
    }

    #[test]
    fn pairs_are_aligned_and_know_their_origin() {
        let corpus = open("one\ntwo\u{2028}still two\n", "eins\r\nzwei", 2.0).unwrap();
        assert_eq!((corpus.len(), corpus.weight()), (2, 2.0));
        assert_eq!(corpus.pair(1), ("two\u{2028}still two", "zwei"));
        let (path, line) = corpus.origin(1, Side::Target);
        assert!(path.ends_with("t.de"));
        assert_eq!(line, 2);
        assert_eq!((corpus.source().carriage_returns, corpus.target().carriage_returns), (0, 1));
    }

    #[test]
    fn unequal_counts_name_both_files_and_counts() {
        let error = open("one\ntwo\nthree\n", "eins\n", 1.0).unwrap_err().to_string();
        assert!(error.contains("t.en has 3 lines, but "), "{error}");
        assert!(error.contains("t.de has 1 line\n  help: "), "{error}");
    }

    #[test]
    fn empty_and_missing_files_are_reported_together() {
        let error = open("", "", 1.0).unwrap_err();
        assert_eq!(error.all().count(), 2);
        let text = error.to_string();
        assert!(text.contains("t.en") && text.contains("t.de") && text.contains("the file is empty"), "{text}");
        assert_eq!(Corpus::open("/absent/a", "/absent/b", 1.0).unwrap_err().all().count(), 2);
        // Empty beside full: that it is empty says more than the counts.
        assert_eq!(open("one\n", "", 1.0).unwrap_err().what(), "the file is empty");
    }

    #[test]
    fn impossible_weights_are_refused() {
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(open("a\n", "b\n", weight).unwrap_err().exit_code(), 2);
        }
    }
}
