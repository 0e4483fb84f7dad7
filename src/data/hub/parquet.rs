//! Pairs in a Parquet file: two columns of text, or two fields of a nested column (`translation: {de, en}`).
//!
//! Rows come in batches of bounded size, of these two columns alone.

use std::fs::File;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::{Columns, Rows, Shard, in_one_line};
use crate::data::corpus::PairBlock;
use crate::error::{Error, Result};

/// Rows in a batch.
const ROWS: usize = 1024;

/// The rows of a Parquet file.
pub struct ParquetRows {
    shard: Shard,
    reader: ParquetRecordBatchReader,
    /// Where each side's column is, outermost name first.
    paths: [Vec<String>; 2],
    /// The batch that is being read, as its columns.
    batch: [Vec<ArrayRef>; 2],
    /// Rows of the batch, and how many of them have been read.
    rows: usize,
    next: usize,
    /// Rows of the batches before.
    before: usize,
}

impl ParquetRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It is damaged, packed in a way that cannot be read, or has no such columns of text.
    pub fn open(shard: &Shard, columns: &Columns) -> Result<Self> {
        let builder = open(shard)?;
        let schema = builder.parquet_schema();
        let wanted = columns.names(shard)?;
        let leaves = leaves_of(schema, wanted.each_ref().map(String::as_str)).ok_or_else(|| columns.missing(shard, &names(schema)))?;
        for leaf in leaves {
            let column = schema.column(leaf);
            if column.physical_type() != Type::BYTE_ARRAY || column.max_rep_level() > 0 {
                let what = format!("the column `{}` does not hold text", column.path().string());
                return Err(Error::failure(what).at(&shard.name).help(columns.help(&names(schema))));
            }
        }
        let paths = leaves.map(|leaf| schema.column(leaf).path().parts().to_vec());
        let mask = ProjectionMask::leaves(schema, leaves);
        let reader = builder.with_projection(mask).with_batch_size(ROWS).build();
        let reader = reader.map_err(|error| damaged(shard, &error))?;
        let batch = [Vec::new(), Vec::new()];
        Ok(Self { shard: shard.clone(), reader, paths, batch, rows: 0, next: 0, before: 0 })
    }

    /// Reads the next batch; false at the end.
    fn advance(&mut self) -> Result<bool> {
        let Some(batch) = self.reader.next() else { return Ok(false) };
        let batch = batch.map_err(|error| damaged(&self.shard, &ParquetError::from(error)))?;
        let [source, target] = [0, 1].map(|side| column(&batch, &self.paths[side]));
        let (Some(source), Some(target)) = (source, target) else {
            return Err(Error::failure("a batch of rows lacks a column").at(&self.shard.name));
        };
        self.batch = [source, target];
        (self.before, self.rows, self.next) = (self.before + self.rows, batch.num_rows(), 0);
        Ok(true)
    }
}

impl Rows for ParquetRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        while self.next == self.rows {
            if !self.advance()? {
                return Ok(false);
            }
        }
        let [source, target] = &self.batch;
        let (Some(source), Some(target)) = (value(source, self.next), value(target, self.next)) else {
            let error = Error::failure("a value is not UTF-8 text");
            let row = self.before + self.next + 1;
            return Err(error
                .at_line(&self.shard.name, row, 0)
                .help("choose columns of text with `source` and `target`"));
        };
        block.push(&in_one_line(source), &in_one_line(target));
        self.next += 1;
        Ok(true)
    }

    fn place(&self) -> usize {
        self.before + self.next
    }
}

fn open(shard: &Shard) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let file = File::open(&shard.path).map_err(|error| Error::io("read the corpus", &shard.name, error))?;
    // Ignores the writer's Arrow types, so that text is plain text even if it was a dictionary or had long offsets.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(|error| damaged(shard, &error))
}

fn damaged(shard: &Shard, error: &ParquetError) -> Error {
    let what = format!("cannot read the Parquet file: {error}");
    Error::failure(what).at(&shard.name).help(format!(
        "if it is damaged, delete it from the cache and run again: {}",
        shard.path.canonicalize().unwrap_or_else(|_| shard.path.clone()).display()
    ))
}

/// Dotted names of the columns.
fn names(schema: &SchemaDescriptor) -> Vec<String> {
    schema.columns().iter().map(|column| column.path().string()).collect()
}

/// The two columns: at the top, by their dotted names, or within one nested column, `translation` first.
fn leaves_of(schema: &SchemaDescriptor, wanted: [&str; 2]) -> Option<[usize; 2]> {
    let position = |is: &dyn Fn(&ColumnDescriptor) -> bool| schema.columns().iter().position(|column| is(column));
    let by_name = |prefix: &str| -> Option<[usize; 2]> {
        let of = |name: &str| position(&|column| column.path().string() == format!("{prefix}{name}"));
        Some([of(wanted[0])?, of(wanted[1])?])
    };
    let parents = schema.columns().iter().filter_map(|column| match column.path().parts() {
        [parent, _] => Some(format!("{parent}.")),
        _ => None,
    });
    by_name("").or_else(|| by_name("translation.")).or_else(|| parents.into_iter().find_map(|parent| by_name(&parent)))
}

/// The column at a path, outermost first: a value is null where any of them is.
fn column(batch: &RecordBatch, path: &[String]) -> Option<Vec<ArrayRef>> {
    let (first, rest) = path.split_first()?;
    let mut levels = vec![batch.column_by_name(first)?.clone()];
    for name in rest {
        let inner = levels.last()?.as_struct_opt()?.column_by_name(name)?.clone();
        levels.push(inner);
    }
    Some(levels)
}

/// The text of a row, empty where it is null; `None` where it is not text.
fn value(levels: &[ArrayRef], row: usize) -> Option<&str> {
    if levels.iter().any(|level| level.is_null(row)) {
        return Some("");
    }
    let leaf = levels.last()?;
    match leaf.data_type() {
        DataType::Utf8 => Some(leaf.as_string_opt::<i32>()?.value(row)),
        // Text that its writer did not mark as such.
        DataType::Binary => std::str::from_utf8(leaf.as_binary_opt::<i32>()?.value(row)).ok(),
        _ => None,
    }
}
