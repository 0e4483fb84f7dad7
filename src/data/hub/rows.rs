//! Pairs in text: two files aligned line by line.

use super::{Rows, Shard};
use crate::data::corpus::PairBlock;
use crate::data::text::file::LineReader;
use crate::error::{Error, Result};

/// What to do about text that cannot be read.
pub(super) const CORRECT: &str = "the file must be corrected where the data set is made";

/// A file's lines, one after the other.
pub(super) struct Lines {
    pub(super) shard: Shard,
    reader: LineReader,
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn open(shard: &Shard) -> Result<Self> {
        let reader = LineReader::open(&shard.path, &shard.name)?;
        Ok(Self { shard: shard.clone(), reader, line: Vec::new() })
    }

    /// The next line without its end.
    pub(super) fn next(&mut self) -> Result<Option<&str>> {
        self.line.clear();
        if !self.reader.next_line(&mut self.line)? {
            return Ok(None);
        }
        let line = std::str::from_utf8(&self.line);
        line.map(Some).map_err(|error| self.reader.not_utf8(&self.line, error.valid_up_to()).more_help(CORRECT))
    }

    /// The number of the line that was read last, from 1.
    pub(super) fn number(&self) -> usize {
        self.reader.number()
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::failure(what).at_line(&self.shard.name, self.number(), 0)
    }
}

/// Two files, aligned line by line.
pub(super) struct TextRows {
    source: Lines,
    target: Lines,
}

impl TextRows {
    /// Opens the files.
    ///
    /// # Errors
    /// One cannot be read.
    pub(super) fn open(source: &Shard, target: &Shard) -> Result<Self> {
        Ok(Self { source: Lines::open(source)?, target: Lines::open(target)? })
    }
}

impl Rows for TextRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        let (longer, shorter) = match (self.source.next()?, self.target.next()?) {
            (Some(source), Some(target)) => {
                block.push(source, target);
                return Ok(true);
            }
            (None, None) => return Ok(false),
            (Some(_), None) => (&self.source, &self.target),
            (None, Some(_)) => (&self.target, &self.source),
        };
        let shorter = shorter.shard.name.display();
        let error = longer.wrong(format!("{shorter} has no such line: the files differ in their number of lines"));
        Err(error.help("line N of one file must be the translation of line N of the other"))
    }

    fn line(&self) -> usize {
        self.source.number()
    }
}
