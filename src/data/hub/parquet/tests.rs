use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::serialized_reader::SerializedFileReader;

use super::*;

type Text<'a> = Option<&'a str>;

/// A file with these columns, in row groups of so many rows, with pages of two.
fn file(columns: Vec<(&str, ArrayRef)>, group: usize, version: WriterVersion) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array.clone(), array.null_count() > 0)),
    );
    let batch = batch.unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).set_writer_version(version);
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
        assert_eq!(rows.line(), count);
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
    for count in [0, 1, 2, 50, 2055] {
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
    let error = read(&file(vec![("en", latin.clone()), ("de", latin)], 10, WriterVersion::PARQUET_1_0)).unwrap_err();
    assert!(error.to_string().contains("not UTF-8") && error.to_string().contains("t.parquet:2\n"), "{error}");
}

/// What the file's description says, and the rows, beside what the parquet crate's own reader finds.
#[test]
fn the_reader_of_two_columns_agrees_with_that_of_the_parquet_crate() {
    let pairs: Vec<(Text, Text)> =
        (0..2055).map(|index| (Some("the cat"), (index % 4 > 0).then_some("die Katze"))).collect();
    let (texts, nothing): (Vec<Text>, Vec<Text>) = pairs.iter().copied().unzip();
    let [en, de]: [ArrayRef; 2] = [texts, nothing].map(|texts| Arc::new(StringArray::from(texts)) as ArrayRef);
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let flat = file(vec![("other", en.clone()), ("de", de.clone()), ("en", en.clone())], 1000, version);
        for (bytes, wanted) in [(nested(&pairs, 1000, version), [2, 1]), (flat, [2, 1])] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.parquet");
            std::fs::write(&path, &bytes).unwrap();
            let open = || std::fs::File::open(&path).unwrap();
            let footer = Footer::read(&open()).unwrap();
            let ours = TwoColumns::new(open(), &footer, &footer.leaves().unwrap(), wanted).unwrap();
            let theirs = SerializedFileReader::new(open()).unwrap();
            assert_eq!((ours.num_row_groups(), ours.metadata().file_metadata().num_rows()), (3, 2055));
            assert_eq!(theirs.num_row_groups(), 3);
            for group in 0..3 {
                let [ours, theirs] = [ours.metadata(), theirs.metadata()].map(|metadata| metadata.row_group(group));
                assert_eq!(ours.num_rows(), theirs.num_rows());
                for (column, index) in wanted.into_iter().enumerate() {
                    let [ours, theirs] = [ours.column(column), theirs.column(index)];
                    assert_eq!(ours.byte_range(), theirs.byte_range());
                    assert_eq!(ours.compression_codec(), theirs.compression_codec());
                    let levels = |column: &ColumnChunkMetaData| column.column_descr().max_def_level();
                    assert_eq!(levels(ours), levels(theirs));
                }
            }
            // Rows through the crate's own iterator.
            let rows = |reader: &dyn FileReader| reader.get_row_iter(None).unwrap().count();
            assert_eq!((rows(&ours), rows(&theirs)), (2055, 2055));
        }
    }
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
