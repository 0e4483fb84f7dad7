//! The two wanted columns of a Parquet file, as a [`FileReader`].

use std::fs::File;
use std::sync::Arc;

use candle_datasets::hub::FileReader;
use parquet::basic::{Repetition, Type as Physical};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::file::metadata::{FileMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::RowGroupReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::{SchemaDescriptor, Type};

use super::Read;
use super::footer::{Footer, Leaf};
use super::pages::Pages;

/// Reads two columns of text of a file that nobody vouches for.
///
/// What it tells the parquet crate has been checked: [`Footer`] and [`Pages`] stand where a `SerializedFileReader` has
/// readers that trust the file.
pub(super) struct TwoColumns {
    file: Arc<File>,
    metadata: ParquetMetaData,
}

impl TwoColumns {
    /// The columns `wanted`, by their indices among all `leaves` of the file.
    ///
    /// # Errors
    /// The description of a row group is damaged, or one is packed in a way that cannot be read.
    pub(super) fn new(file: File, footer: &Footer, leaves: &[Leaf], wanted: [usize; 2]) -> Read<Self> {
        let columns = wanted.into_iter().filter_map(|index| leaves.get(index));
        let columns = columns.zip(["source", "target"]).map(|(leaf, name)| Ok(Arc::new(text(name, leaf.whole)?)));
        let schema = Type::group_type_builder("pair").with_fields(columns.collect::<Read<_>>()?).build()?;
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let groups = footer.groups(wanted, leaves.len(), &schema)?;
        let rows = groups.iter().map(RowGroupMetaData::num_rows).sum();
        let about = FileMetaData::new(1, rows, None, None, schema, None);
        Ok(Self { file: Arc::new(file), metadata: ParquetMetaData::new(about, groups) })
    }
}

/// A column of text. With a level of `whole`, it lies in so many columns, itself among them, each of which may be null.
fn text(name: &str, whole: i16) -> Read<Type> {
    let repetition = if whole > 0 { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let mut column = Type::primitive_type_builder(name, Physical::BYTE_ARRAY).with_repetition(repetition).build()?;
    for _ in 1..whole {
        let group = Type::group_type_builder(name).with_repetition(repetition);
        column = group.with_fields(vec![Arc::new(column)]).build()?;
    }
    Ok(column)
}

impl FileReader for TwoColumns {
    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    fn num_row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn get_row_group(&self, i: usize) -> Read<Box<dyn RowGroupReader + '_>> {
        Ok(Box::new(Group { file: &self.file, metadata: self.metadata.row_group(i) }))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Read<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

/// Some rows of the two columns.
struct Group<'f> {
    file: &'f Arc<File>,
    metadata: &'f RowGroupMetaData,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, i: usize) -> Read<Box<dyn PageReader>> {
        Ok(Box::new(Pages::new(Arc::clone(self.file), self.metadata.column(i))))
    }

    fn get_column_bloom_filter(&self, _i: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Read<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}
