//! Pairs in a Parquet file: two columns of text, or two fields of a nested column (`translation: {de, en}`).
//!
//! candle-datasets' [`FileReader`] opens the file and its row groups. A field of a nested column is a column in the file, too,
//! so that only the two that are wanted are read, in batches of bounded size: what follows is for a file of any size. (The rows
//! that a `FileReader` can put together itself, with `get_row_iter`, are a vector of named fields with texts of their own each,
//! and it panics where a column's type is none that it knows.)

use candle_datasets::hub::FileReader;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{RowGroupReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::{Columns, Rows, Shard, in_one_line};
use crate::data::corpus::PairBlock;
use crate::error::{Error, Result};

/// Rows in a batch.
const ROWS: usize = 1024;

/// The rows of a Parquet file.
pub struct ParquetRows {
    shard: Shard,
    file: Box<dyn FileReader>,
    /// The two columns.
    leaves: [usize; 2],
    /// The next row group.
    group: usize,
    /// The row group that is being read, and how many of its rows are in no batch yet.
    sides: Option<[Side; 2]>,
    left: usize,
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
        let file =
            crate::file::open_regular(&shard.path).map_err(|error| Error::io("read the corpus", &shard.name, error))?;
        let file = SerializedFileReader::new(file).map_err(|error| damaged(shard, &error))?;
        check(file.metadata()).map_err(|error| damaged(shard, &error))?;
        let schema = file.metadata().file_metadata().schema_descr();
        let wanted = columns.names(shard)?;
        let leaves = leaves_of(schema, wanted.each_ref().map(String::as_str));
        let leaves = leaves.ok_or_else(|| columns.missing(shard, &names(schema)))?;
        for leaf in leaves {
            let column = schema.column(leaf);
            if column.physical_type() != Type::BYTE_ARRAY || column.max_rep_level() > 0 {
                let what = format!("the column `{}` does not hold text", column.path().string());
                return Err(Error::failure(what).at(&shard.name).help(columns.help(&names(schema))));
            }
        }
        let (shard, file) = (shard.clone(), Box::new(file));
        Ok(Self { shard, file, leaves, group: 0, sides: None, left: 0, rows: 0, next: 0, before: 0 })
    }

    /// Reads the next batch; false at the end.
    fn advance(&mut self) -> Result<bool> {
        let failed = |error| damaged(&self.shard, &error);
        (self.before, self.rows, self.next) = (self.before + self.rows, 0, 0);
        while self.left == 0 {
            if self.group == self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.group).map_err(failed)?;
            self.left = usize::try_from(group.metadata().num_rows()).unwrap_or_default();
            let [source, target] = self.leaves.map(|leaf| Side::of(&*group, leaf));
            self.sides = Some([source.map_err(failed)?, target.map_err(failed)?]);
            self.group += 1;
        }
        let rows = self.left.min(ROWS);
        for side in self.sides.iter_mut().flatten() {
            side.read(rows).map_err(failed)?;
        }
        (self.left, self.rows) = (self.left - rows, rows);
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
        self.next += 1;
        let values = self.sides.as_mut().map(|sides| sides.each_mut().map(Side::next));
        let Some([Some(source), Some(target)]) = values else {
            let error =
                Error::failure("a value is not UTF-8 text").at_line(&self.shard.name, self.before + self.next, 0);
            return Err(error.help("choose columns of text with `source` and `target`"));
        };
        block.push(&in_one_line(source), &in_one_line(target));
        Ok(true)
    }

    fn place(&self) -> usize {
        self.before + self.next
    }
}

/// A column of a row group.
struct Side {
    reader: ColumnReaderImpl<ByteArrayType>,
    /// The definition level of a value that is there: below it, the value or something around it is null.
    whole: i16,
    /// The definition levels of a batch; none where no value can be null.
    levels: Vec<i16>,
    /// The values of the batch that are not null.
    values: Vec<ByteArray>,
    /// How many rows and values have been given out.
    row: usize,
    value: usize,
}

impl Side {
    fn of(group: &dyn RowGroupReader, leaf: usize) -> Read<Self> {
        let column = group.metadata().schema_descr().column(leaf);
        let (pages, whole) = (group.get_column_page_reader(leaf)?, column.max_def_level());
        let reader = ColumnReaderImpl::new(column, Box::new(Pages { pages, has_dictionary: false }));
        Ok(Self { reader, whole, levels: Vec::new(), values: Vec::new(), row: 0, value: 0 })
    }

    /// Reads the values of the next rows.
    fn read(&mut self, rows: usize) -> Read<()> {
        self.levels.clear();
        self.values.clear();
        (self.row, self.value) = (0, 0);
        let (read, ..) = self.reader.read_records(rows, Some(&mut self.levels), None, &mut self.values)?;
        if read == rows {
            return Ok(());
        }
        Err(wrong("a column has fewer values than the file has rows"))
    }

    /// The text of the next row, empty where it is null; `None` where it is not text.
    fn next(&mut self) -> Option<&str> {
        let is_null = self.levels.get(self.row).is_some_and(|level| *level < self.whole);
        self.row += 1;
        if is_null {
            return Some("");
        }
        self.value += 1;
        std::str::from_utf8(self.values.get(self.value - 1)?.data()).ok()
    }
}

/// The pages of a column, in which what is read from a dictionary has one: the parquet crate takes that for granted.
struct Pages {
    pages: Box<dyn PageReader>,
    has_dictionary: bool,
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Read<Option<Page>> {
        let page = self.pages.get_next_page()?;
        // Two names of the same.
        let is_coded = |page: &Page| matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        match &page {
            Some(Page::DictionaryPage { .. }) => self.has_dictionary = true,
            Some(page) if !self.has_dictionary && is_coded(page) => {
                return Err(wrong("a column has no dictionary, but values of one"));
            }
            _ => {}
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Read<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Read<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Read<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Pages {
    type Item = Read<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// What the parquet crate takes for granted of a file's description: places that are not negative, and row groups with the rows
/// of the file.
fn check(file: &ParquetMetaData) -> Read<()> {
    let is_negative = |column: &ColumnChunkMetaData| {
        column.data_page_offset().min(column.dictionary_page_offset().unwrap_or(0)).min(column.compressed_size()) < 0
    };
    if file.row_groups().iter().flat_map(|group| group.columns()).any(is_negative) {
        return Err(wrong("a column has a negative place or size"));
    }
    let rows = file.row_groups().iter().try_fold(0i64, |sum, group| sum.checked_add(group.num_rows()));
    if rows == Some(file.file_metadata().num_rows()) {
        Ok(())
    } else {
        Err(wrong("the row groups have other rows than the file"))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray, StructArray};
    use arrow_schema::{DataType, Field, Fields};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::{WriterProperties, WriterVersion};

    use super::*;

    type Text<'a> = Option<&'a str>;

    /// A file with these columns, in row groups of so many rows, with pages of two.
    fn file(columns: Vec<(&str, ArrayRef)>, group: usize, version: WriterVersion) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array.clone(), array.null_count() > 0)),
        );
        let batch = batch.unwrap();
        let properties =
            WriterProperties::builder().set_max_row_group_row_count(Some(group)).set_writer_version(version);
        let properties = properties.set_data_page_row_count_limit(2).set_write_batch_size(2).build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        bytes
    }

    /// `translation: {de, en}`, which is null itself where both are.
    fn nested(pairs: &[(Text, Text)], group: usize, version: WriterVersion) -> Vec<u8> {
        let en: ArrayRef = Arc::new(pairs.iter().map(|(en, _)| *en).collect::<StringArray>());
        let de: ArrayRef = Arc::new(pairs.iter().map(|(_, de)| *de).collect::<StringArray>());
        let field = |name: &str| Field::new(name, DataType::Utf8, true);
        let whole = pairs.iter().map(|(en, de)| en.is_some() || de.is_some()).collect();
        let both = StructArray::new(Fields::from(vec![field("de"), field("en")]), vec![de, en], Some(whole));
        let other: ArrayRef = Arc::new(pairs.iter().map(|_| Some("other")).collect::<StringArray>());
        file(vec![("other", other), ("translation", Arc::new(both))], group, version)
    }

    fn read(bytes: &[u8]) -> Result<Vec<[String; 2]>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        std::fs::write(&path, bytes).unwrap();
        let shard = Shard { name: "hub:o/set t.parquet".into(), path };
        let columns = Columns { source: "en".into(), target: "de".into() };
        let (mut rows, mut block) = (ParquetRows::open(&shard, &columns)?, PairBlock::default());
        let mut count = 0;
        while rows.push(&mut block)? {
            count += 1;
            assert_eq!(rows.place(), count);
        }
        Ok((0..block.len()).map(|index| <[&str; 2]>::from(block.get(index)).map(str::to_owned)).collect())
    }

    fn expected(pairs: &[(Text, Text)]) -> Vec<[String; 2]> {
        pairs.iter().map(|(en, de)| [*en, *de].map(|text| text.unwrap_or_default().to_owned())).collect()
    }

    #[test]
    fn nulls_stand_where_they_are_over_all_pages_and_groups() {
        let texts = ["a", "b c", "", "der Hund", "Größe"];
        let text = |index: usize| (index % 7 != 3).then(|| texts[index % texts.len()]);
        for count in [0, 1, 2, 50, 2 * ROWS + 7] {
            let pairs: Vec<(Text, Text)> = (0..count).map(|index| (text(index), text(index * 3 + 1))).collect();
            for group in [3, 1000, 1_000_000] {
                for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                    assert_eq!(read(&nested(&pairs, group, version)).unwrap(), expected(&pairs), "{count} {group}");
                }
            }
        }
        // Without nulls there are no levels; text may be bytes that are not called text.
        let [en, de]: [ArrayRef; 2] =
            [Arc::new(BinaryArray::from_vec(vec!["ä".as_bytes(), b"b"])), Arc::new(StringArray::from(vec!["c", "d"]))];
        let flat = file(vec![("en", en), ("de", de)], 10, WriterVersion::PARQUET_1_0);
        assert_eq!(read(&flat).unwrap(), [["ä", "c"], ["b", "d"]]);
        let latin: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"a", b"\xE9"]));
        let error =
            read(&file(vec![("en", latin.clone()), ("de", latin)], 10, WriterVersion::PARQUET_1_0)).unwrap_err();
        assert!(error.to_string().contains("not UTF-8") && error.to_string().contains("t.parquet:2\n"), "{error}");
    }

    /// Whatever byte is wrong: the file is refused, or has as many rows.
    #[test]
    fn a_damaged_file_is_an_error_and_no_more() {
        let pairs: Vec<(Text, Text)> =
            (0..40).map(|index| (Some("the cat"), (index % 4 > 0).then_some("die Katze"))).collect();
        let whole = nested(&pairs, 25, WriterVersion::PARQUET_1_0);
        let mut refused = 0;
        for at in 0..whole.len() {
            for flip in [0x01, 0x02, 0x80, 0xFF] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                match read(&bytes) {
                    Ok(rows) => assert_eq!(rows.len(), pairs.len(), "{at}"),
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("hub:o/set t.parquet"), "{error}");
                    }
                }
            }
        }
        assert!(refused > whole.len() / 4, "{refused}");
        for length in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
    }
}
