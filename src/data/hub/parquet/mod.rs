//! Pairs in a Parquet file: two columns of text, or two fields of a nested column (`translation: {de, en}`).
//!
//! A field of a nested column is a column in the file, too, so only the two wanted columns are read. Memory holds one
//! row and its page at a time, whatever the size of the file.
//!
//! | | |
//! |---|---|
//! | `footer` | what lies where, in the terms of `thrift` |
//! | `pages` | the pages of a column, unpacked |
//! | `reader` | both, as the `FileReader` that candle-datasets has from the parquet crate |
//! | the parquet crate | the values of a page |
//!
//! The crate has a `FileReader` of its own, but for files that can be trusted: a small file can make it overflow the
//! stack or fill the memory. What the crate does with the pages is done through [`guarded`].

mod footer;
#[cfg(test)]
mod hostile;
mod pages;
mod reader;
#[cfg(test)]
mod tests;
mod thrift;

use std::collections::{HashMap, HashSet};

use candle_datasets::hub::FileReader;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::RowGroupReader;

use super::{Columns, Rows, Shard, in_one_line};
use crate::data::corpus::PairBlock;
use crate::data::text::lines::TOO_LONG_HELP;
use crate::error::{Error, Result};
use crate::file::open_regular;
use crate::foreign::guarded;
use crate::limits;
use footer::{BYTE_ARRAY, Footer, Leaf};
use reader::TwoColumns;

/// The rows of a Parquet file.
pub(super) struct ParquetRows {
    shard: Shard,
    file: Box<dyn FileReader>,
    /// The row group that comes next.
    next: usize,
    /// The current row group, and how many of its rows are still unread.
    sides: Option<[Side; 2]>,
    left: i64,
    /// Rows that have been read.
    row: usize,
}

impl ParquetRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It is damaged, packed in a way that cannot be read, or has no such columns of text.
    pub(super) fn open(shard: &Shard, columns: &Columns) -> Result<Self> {
        let file = open_regular(&shard.path).map_err(|error| Error::io("read the corpus", &shard.name, error))?;
        let failed = |error| damaged(shard, &error);
        let footer = Footer::read(&file).map_err(failed)?;
        let leaves = footer.leaves().map_err(failed)?;
        let names = || leaves.iter().map(|leaf| leaf.name.clone()).collect::<Vec<_>>();
        let wanted = columns.names(shard)?;
        let found = find(&leaves, wanted.each_ref().map(String::as_str));
        let found = found.and_then(|wanted| Some((wanted, leaves.get(wanted[0])?, leaves.get(wanted[1])?)));
        let (wanted, source, target) = found.ok_or_else(|| columns.missing(shard, &names()))?;
        let is_text = |leaf: &&Leaf| leaf.kind == BYTE_ARRAY && !leaf.is_repeated;
        if let Some(leaf) = [source, target].into_iter().find(|leaf| !is_text(leaf)) {
            let what = format!("the column `{}` does not hold text", leaf.name);
            return Err(Error::failure(what).at(&shard.name).help(columns.help(&names())));
        }
        let file = Box::new(TwoColumns::new(file, &footer, &leaves, wanted).map_err(failed)?);
        Ok(Self { shard: shard.clone(), file, next: 0, sides: None, left: 0, row: 0 })
    }

    /// Goes on to a row group that has a row left; false at the end.
    fn advance(&mut self) -> Read<bool> {
        while self.left == 0 {
            if self.next == self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.next)?;
            self.sides = Some([Side::new(&*group, 0)?, Side::new(&*group, 1)?]);
            (self.left, self.next) = (group.metadata().num_rows(), self.next + 1);
        }
        Ok(true)
    }

    /// Reads the next row; false at the end.
    fn read(&mut self) -> Read<bool> {
        if !self.advance()? {
            return Ok(false);
        }
        for side in self.sides.iter_mut().flatten() {
            side.read()?;
        }
        (self.left, self.row) = (self.left - 1, self.row + 1);
        Ok(true)
    }

    fn wrong(&self, what: &str, help: &str) -> Error {
        Error::failure(what).at_line(&self.shard.name, self.row, 0).help(help)
    }
}

impl Rows for ParquetRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        let is_row = guarded(|| self.read()).map_err(|error| damaged(&self.shard, &wrong(error.what())))?;
        if !is_row.map_err(|error| damaged(&self.shard, &error))? {
            return Ok(false);
        }
        let Some([Some(source), Some(target)]) = self.sides.as_ref().map(|sides| sides.each_ref().map(Side::text))
        else {
            return Err(self.wrong("a value is not UTF-8 text", "choose columns of text with `source` and `target`"));
        };
        if source.len().max(target.len()) as u64 > limits::LINE_BYTES {
            return Err(self.wrong("a text is longer than 64 MiB", TOO_LONG_HELP));
        }
        block.push(&in_one_line(source), &in_one_line(target));
        Ok(true)
    }

    fn line(&self) -> usize {
        self.row
    }
}

/// A column of a row group.
struct Side {
    reader: ColumnReaderImpl<ByteArrayType>,
    /// The definition level of a value that is there: below it, the value or something around it is null.
    whole: i16,
    /// The definition level of the row; none where no value can be null.
    levels: Vec<i16>,
    /// The value of the row, if it is not null.
    values: Vec<ByteArray>,
}

impl Side {
    fn new(group: &dyn RowGroupReader, column: usize) -> Read<Self> {
        let ColumnReader::ByteArrayColumnReader(reader) = group.get_column_reader(column)? else {
            return Err(wrong("a column is none of text"));
        };
        let whole = group.metadata().column(column).column_descr().max_def_level();
        Ok(Self { reader, whole, levels: Vec::new(), values: Vec::new() })
    }

    /// Reads the value of the next row.
    fn read(&mut self) -> Read<()> {
        self.levels.clear();
        self.values.clear();
        let (read, ..) = self.reader.read_records(1, Some(&mut self.levels), None, &mut self.values)?;
        // A value without data panics here, where that is caught.
        let is_there = self.values.first().map(ByteArray::len).is_some();
        if read == 1 && (self.is_null() || is_there) {
            return Ok(());
        }
        Err(wrong("a column has fewer values than the file has rows"))
    }

    fn is_null(&self) -> bool {
        self.levels.first().is_some_and(|level| *level < self.whole)
    }

    /// The text of the row, empty where it is null; `None` where it is not text.
    fn text(&self) -> Option<&str> {
        if self.is_null() { Some("") } else { std::str::from_utf8(self.values.first()?.data()).ok() }
    }
}

/// What the parquet crate returns.
type Read<T> = std::result::Result<T, ParquetError>;

fn wrong(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

fn damaged(shard: &Shard, error: &ParquetError) -> Error {
    let what = format!("cannot read the Parquet file: {error}");
    Error::failure(what).at(&shard.name).help(format!(
        "if it is damaged, delete it from the cache and run again: {}",
        shard.path.canonicalize().unwrap_or_else(|_| shard.path.clone()).display()
    ))
}

/// The two columns: at the top, by their dotted names, or within one nested column, `translation` first.
fn find(leaves: &[Leaf], wanted: [&str; 2]) -> Option<[usize; 2]> {
    let mut indices = HashMap::new();
    for (index, leaf) in leaves.iter().enumerate() {
        indices.entry(leaf.name.as_str()).or_insert(index);
    }
    let within = |prefix: &str| -> Option<[usize; 2]> {
        let of = |name: &str| indices.get(format!("{prefix}{name}").as_str()).copied();
        Some([of(wanted[0])?, of(wanted[1])?])
    };
    let nested = leaves.iter().filter(|leaf| leaf.names == 2);
    let parents = nested.filter_map(|leaf| leaf.name.split_once('.').map(|(parent, _)| parent));
    let mut seen = HashSet::new();
    let mut parents = parents.filter(|parent| seen.insert(*parent));
    within("").or_else(|| within("translation.")).or_else(|| parents.find_map(|parent| within(&format!("{parent}."))))
}
