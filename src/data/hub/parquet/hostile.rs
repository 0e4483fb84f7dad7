//! Hand-made files that try to crash the program or to fill the memory; and every way to pack a page.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};

use super::super::{Bounded, Format, HubFiles};
use super::*;
use crate::limits;

#[allow(unreachable_pub)] // For tests beyond this crate they can be reached.
#[path = "../../../../tests/common/hostile_parquet.rs"]
mod written;

use written::Thrift::{List, Raw, Struct};
use written::{Thrift, column, columns, file, number, of_groups, of_pages, page, plain, structs};

fn columns_named() -> Columns {
    Columns { source: "en".into(), target: "de".into() }
}

fn split_of(bytes: &[u8]) -> (tempfile::TempDir, HubFiles) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    std::fs::write(&path, bytes).unwrap();
    let shards = vec![Shard { name: "hub:o/set t.parquet".into(), path }];
    (folder, HubFiles { name: "split".into(), format: Format::Parquet, shards, columns: columns_named() })
}

fn read(bytes: &[u8]) -> Result<Vec<[String; 2]>> {
    let (_folder, files) = split_of(bytes);
    let (mut rows, mut block) = (files.rows(&files.shards)?, PairBlock::default());
    while rows.push(&mut block)? {}
    Ok((0..block.len()).map(|index| <[&str; 2]>::from(block.get(index)).map(str::to_owned)).collect())
}

fn refused(bytes: &[u8]) -> String {
    let error = read(bytes).unwrap_err().to_string();
    assert!(error.contains("hub:o/set t.parquet"), "{error}");
    error
}

#[test]
fn a_description_that_would_take_memory_or_time_without_bound_is_refused() {
    let nested = |depth: usize| {
        let inner = (0..depth).map(|_| column("a", Some(1)));
        let all = std::iter::once(column("", Some(1))).chain(inner).chain([column("b", None)]);
        file(b"", structs(all.collect()), 0, Vec::new(), Vec::new())
    };
    let of = |columns: Thrift| file(b"", columns, 0, Vec::new(), Vec::new());
    let with = |more: Thrift| file(b"", columns(), 0, Vec::new(), vec![(20, more)]);
    let named = |length: usize, count: usize| {
        let (name, mut all) = ("a".repeat(length), vec![column("", Some(1))]);
        all.push(column(&name, Some(count as i64)));
        all.extend((0..count).map(|_| column("b", None)));
        of(structs(all))
    };
    // Groups of one row each, in the same page.
    let shared = |count: usize| of_groups(&page(0, 1004, 1, 0, &plain(&[b'a'; 1000])), 0, 1, count);
    let groups = |count: usize| {
        let all = (0..count).map(|_| Struct(Vec::new())).collect();
        file(b"", columns(), 0, all, Vec::new())
    };
    // The deepest nesting that is read; these files lack the wanted columns.
    assert!(refused(&nested(limits::PARQUET_DEPTH - 1)).contains("no columns `en` and `de`"));
    for (bytes, words) in [
        (nested(limits::PARQUET_DEPTH), "nest too deeply"),
        (nested(limits::PARQUET_COLUMNS - 2), "nest too deeply"),
        (nested(20_000), "20002 columns"),
        (of(structs(vec![column("", Some(i64::from(i32::MAX))), column("en", None)])), "fewer columns than it has"),
        (of(structs(vec![column("", Some(1)), column("en", None), column("de", None)])), "more columns than it has"),
        (of(structs(vec![column("", Some(-1))])), "wrong columns in it"),
        (of(List(12, Vec::new(), Some(1 << 40))), "ends within a value"),
        (named(1 << 20, 1000), "too long names"),
        // Values that take no bytes, for a reader that takes them for fields.
        (with(List(1, Vec::new(), Some(i32::MAX as u64))), "ends within a value"),
        (with(Raw(11, [number(1 << 31), vec![0x11]].concat())), "ends within a value"),
        (with((0..20).fold(Struct(Vec::new()), |inner, _| Struct(vec![(1, inner)]))), "nests too deeply"),
        (with(Raw(14, Vec::new())), "of no kind"),
        (with(Raw(6, vec![0xFF; 11])), "more than ten bytes"),
        (with(Raw(8, number(u64::MAX))), "ends within a value"),
        (file(b"", columns(), 1 << 40, Vec::new(), Vec::new()), "other rows than the file"),
        (groups(limits::PARQUET_GROUPS + 1), "65537 row groups, more than 65536"),
        (groups(limits::PARQUET_GROUPS), "a row group is not whole"),
        (shared(20), "row groups overlap"),
        (b"PAR1\xFF\xFF\xFF\x7FPAR1".to_vec(), "more than 33554432"),
        (b"PAR1\x00\x01\x00\x00PAR1".to_vec(), "longer than the file"),
        (b"PAR1".to_vec(), "too short"),
    ] {
        let error = refused(&bytes);
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn a_page_that_claims_what_it_has_not_is_refused() {
    let text = plain(b"a");
    let [many, most] = [i64::from(i32::MAX), limits::PARQUET_PAGE_BYTES as i64];
    // Lengths of texts: blocks of 128 in 4 parts, and a number of them.
    let lengths = |count: u64| [number(128), number(4), number(count), number(0)].concat();
    let [length, prefix] = [6, 7];
    for (pages, codec, words) in [
        (page(2, 5, many, 0, &text), 0, "a dictionary claims 2147483647 values"),
        (page(0, many, 1, 0, &text), 1, "a page claims 2147483647 bytes"),
        (page(0, most + 1, 1, 0, &text), 6, "more than 268435456"),
        (page(0, -1, 1, 0, &text), 0, "negative size"),
        (page(0, 5, -1, 0, &text), 0, "negative size"),
        (page(0, 5, 1, 8, &text), 0, "no dictionary, but values of one"),
        (page(0, 5, 1, 99, &text), 0, "encoded in no way of text"),
        (page(0, 9, 1, length, &lengths(1 << 40)), 0, "lengths of a page's texts are damaged"),
        (page(0, 9, many, length, &lengths(many as u64)), 0, "values, more than 16777216"),
        (page(0, 9, 9, prefix, &[lengths(1), lengths(1 << 40)].concat()), 0, "lengths of a page's texts are damaged"),
        (page(0, 9, 1000, length, &lengths(1000)), 0, "ends within a value"),
        // A length that is beyond the page, which the parquet crate would look for.
        (page(0, 9, 1, length, &[number(128), number(4), number(1), number(2000)].concat()), 0, "its reader failed"),
        (page(0, 5, 1, 0, &text), 3, "LZO"),
        (page(0, 5, 1, 0, &text), 42, "no known way"),
    ] {
        let error = refused(&of_pages(&pages, codec, 1));
        assert!(error.contains(words), "{words}: {error}");
    }
    // Fewer rows than are claimed.
    let pages = page(0, 5, 1, 0, &text);
    assert_eq!(read(&of_pages(&pages, 0, 1)).unwrap(), [["a", "a"]]);
    assert!(refused(&of_pages(&pages, 0, 1 << 40)).contains("fewer values than the file has rows"));
}

#[test]
fn a_page_is_not_unpacked_beyond_what_it_claims() {
    let text = vec![0u8; 64 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&text).unwrap();
    let mut brotli = brotli::CompressorWriter::new(Vec::new(), 1 << 12, 5, 22);
    brotli.write_all(&text).unwrap();
    let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
    frame.write_all(&text).unwrap();
    let (gzip, brotli, frame) = (gzip.finish().unwrap(), brotli.into_inner(), frame.finish().unwrap());
    let block = lz4_flex::block::compress(&text);
    let sizes = [text.len(), block.len()].map(|size| (size as u32).to_be_bytes()).concat();
    let snappy = snap::raw::Encoder::new().compress_vec(&text).unwrap();
    for (codec, packed) in [
        (1, snappy),
        (2, gzip),
        (4, brotli),
        (5, frame),
        (5, [&sizes[..], &block].concat()),
        (6, zstd::encode_all(&text[..], 1).unwrap()),
        (7, block),
    ] {
        refused(&of_pages(&page(0, 1000, 1, 0, &packed), codec, 1));
        // Nor is there room made for what cannot be in it.
        refused(&of_pages(&page(0, limits::PARQUET_PAGE_BYTES as i64, 1, 0, &packed[..100]), codec, 1));
    }
}

/// A file of a few bytes may stand for any amount of text, and for any number of rows.
#[test]
fn a_small_file_does_not_hold_endless_text() {
    let rows = i64::from(i32::MAX);
    // A run of the dictionary's only text, once per row; run lengths are stored doubled.
    let run = [vec![1], number(2 * rows as u64), vec![0]].concat();
    let endless = |text: &[u8]| {
        let dictionary = page(2, 4 + text.len() as i64, 1, 0, &plain(text));
        of_pages(&[dictionary, page(0, run.len() as i64, rows, 8, &run)].concat(), 0, rows)
    };
    let (_folder, files) = split_of(&endless(&[b'a'; 4000]));
    let error = files.open(1.0).unwrap_err().to_string();
    assert!(error.contains("1000 times as much text as it has bytes"), "{error}");
    assert!(error.contains("hub:o/set t.parquet:"), "{error}");
    // Empty rows count, too.
    let (_folder, files) = split_of(&endless(b""));
    let mut rows = Bounded { left: 100, ..files.rows(&files.shards).unwrap() };
    let mut block = PairBlock::default();
    let error = std::iter::repeat_with(|| rows.push(&mut block)).find_map(Result::err).unwrap();
    assert!(block.len() == 51 && error.to_string().contains("t.parquet:51\n"), "{error}");
}

#[test]
fn every_way_of_packing_is_read() {
    let texts: Vec<Option<String>> = (0..3000)
        .map(|index| (index % 7 != 3).then(|| format!("Ein Satz, Nummer {}", index % 500).repeat(index % 5)))
        .collect();
    let array: ArrayRef = Arc::new(texts.iter().map(Option::as_deref).collect::<StringArray>());
    let whole: ArrayRef =
        Arc::new(texts.iter().map(|text| Some(text.as_deref().unwrap_or("x"))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter_with_nullable([("de", array, true), ("en", whole, false)]).unwrap();
    let expected: Vec<[String; 2]> = texts
        .iter()
        .map(|text| [text.clone().unwrap_or_else(|| "x".into()), text.clone().unwrap_or_default()])
        .collect();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for encoding in
                [None, Some(Encoding::PLAIN), Some(Encoding::DELTA_LENGTH_BYTE_ARRAY), Some(Encoding::DELTA_BYTE_ARRAY)]
            {
                let mut properties = WriterProperties::builder()
                    .set_compression(compression)
                    .set_writer_version(version)
                    .set_dictionary_enabled(encoding.is_none())
                    .set_max_row_group_row_count(Some(1300))
                    .set_data_page_row_count_limit(400)
                    .set_write_batch_size(100);
                if let Some(encoding) = encoding {
                    properties = properties.set_encoding(encoding);
                }
                let mut bytes = Vec::new();
                let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build())).unwrap();
                writer.write(&batch).unwrap();
                writer.close().unwrap();
                assert_eq!(read(&bytes).unwrap(), expected, "{compression:?} {version:?} {encoding:?}");
            }
        }
    }
}
