//! The pages of a column, unpacked one after the other.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use parquet::basic::{CompressionCodec, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

use super::thrift::{Kind, Thrift};
use super::{Read, wrong};
use crate::limits;

/// Bytes that are read at first for a page's header, which is seldom longer.
const HEADER: u64 = 1 << 12;

/// Reads the pages of a column of a row group.
pub(super) struct Pages {
    file: Arc<File>,
    /// Where the rest of the column begins in the file, and its bytes.
    start: u64,
    left: u64,
    codec: CompressionCodec,
    /// Whether values may be null, so that pages have a level for each.
    has_levels: bool,
    has_dictionary: bool,
}

/// The header of a page.
#[derive(Default)]
struct Header {
    kind: Option<i64>,
    length: Option<u64>,
    packed: Option<u64>,
    about: About,
}

/// The header's description of the page's values.
#[derive(Default)]
struct About {
    values: u32,
    nulls: u32,
    rows: u32,
    encoding: Option<i64>,
    /// How levels are encoded; how many bytes they take.
    levels: [Option<i64>; 2],
    is_unpacked: bool,
}

fn short(number: i64) -> Read<u32> {
    i32::try_from(number)
        .ok()
        .and_then(|number| u32::try_from(number).ok())
        .ok_or_else(|| wrong("a page has a negative size"))
}

impl Header {
    fn read(thrift: &mut Thrift) -> Read<Self> {
        let mut header = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                (1, _) => header.kind = Some(thrift.int(kind)?),
                (2, _) => header.length = Some(short(thrift.int(kind)?)?.into()),
                (3, _) => header.packed = Some(short(thrift.int(kind)?)?.into()),
                // Of a page of values, of a dictionary, of a page of values in the second version.
                (5 | 7 | 8, Kind::Struct) => header.about = About::read(thrift, id)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(header)
    }
}

impl About {
    fn read(thrift: &mut Thrift, of: i64) -> Read<Self> {
        let mut about = Self::default();
        thrift.fields(|thrift, id, kind| {
            match (of, id) {
                (_, 1) => about.values = short(thrift.int(kind)?)?,
                (5 | 7, 2) | (8, 4) => about.encoding = Some(thrift.int(kind)?),
                (5, 3) | (8, 5) => about.levels[0] = Some(thrift.int(kind)?),
                (5, 4) | (8, 6) => about.levels[1] = Some(thrift.int(kind)?),
                (8, 2) => about.nulls = short(thrift.int(kind)?)?,
                (8, 3) => about.rows = short(thrift.int(kind)?)?,
                (8, 7) => about.is_unpacked = kind == Kind::False,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(about)
    }
}

fn encoding(number: Option<i64>) -> Read<Encoding> {
    Ok(match number {
        Some(0) => Encoding::PLAIN,
        Some(2 | 8) => Encoding::RLE_DICTIONARY,
        Some(3) => Encoding::RLE,
        #[expect(deprecated, reason = "old files have it")]
        Some(4) => Encoding::BIT_PACKED,
        Some(6) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Some(7) => Encoding::DELTA_BYTE_ARRAY,
        _ => return Err(wrong("a page is encoded in no way of text")),
    })
}

impl Pages {
    /// The pages of a column that lies within the file.
    pub(super) fn new(file: Arc<File>, column: &ColumnChunkMetaData) -> Self {
        let (start, left) = column.byte_range();
        let has_levels = column.column_descr().max_def_level() > 0;
        Self { file, start, left, codec: column.compression_codec(), has_levels, has_dictionary: false }
    }

    fn bytes(&self, length: u64) -> Read<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| wrong("a page is too long"))?];
        self.file.read_exact_at(&mut bytes, self.start)?;
        Ok(bytes)
    }

    fn advance(&mut self, by: u64) {
        self.start += by;
        self.left -= by;
    }

    fn header(&mut self) -> Read<Header> {
        let most = self.left.min(limits::PARQUET_HEADER_BYTES);
        let mut length = most.min(HEADER);
        loop {
            let bytes = self.bytes(length)?;
            let mut thrift = Thrift::new(&bytes);
            match Header::read(&mut thrift) {
                Ok(header) => {
                    self.advance((bytes.len() - thrift.rest().len()) as u64);
                    return Ok(header);
                }
                Err(ParquetError::EOF(_)) if length < most => length = most.min(16 * length),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next page of values or of a dictionary.
    fn page(&mut self) -> Read<Option<Page>> {
        while self.left > 0 {
            let Header { kind, length: Some(length), packed: Some(packed), about } = self.header()? else {
                return Err(wrong("the header of a page is not whole"));
            };
            if length.max(packed) > limits::PARQUET_PAGE_BYTES {
                let most = limits::PARQUET_PAGE_BYTES;
                return Err(wrong(&format!("a page claims {length} bytes, packed {packed}: more than {most}")));
            }
            if packed > self.left {
                return Err(wrong("a page is longer than its column"));
            }
            let levels = if kind == Some(3) { levels_of(&about, length, packed)? } else { [0; 2] };
            let bytes = if matches!(kind, Some(0 | 2 | 3)) { self.bytes(packed)? } else { Vec::new() };
            self.advance(packed);
            let codec = if about.is_unpacked { CompressionCodec::UNCOMPRESSED } else { self.codec };
            let bytes = || unpacked(codec, bytes, levels.iter().sum::<u32>() as usize, length as usize);
            match kind {
                Some(0) => return self.data_page(bytes()?, &about).map(Some),
                Some(2) => return self.dictionary_page(bytes()?, &about).map(Some),
                Some(3) => return self.data_page_v2(bytes()?, &about, levels).map(Some),
                // An index page, or an unknown one.
                _ => {}
            }
        }
        Ok(None)
    }

    fn dictionary_page(&mut self, bytes: Vec<u8>, about: &About) -> Read<Page> {
        // Each value has a length of four bytes.
        if u64::from(about.values) * 4 > bytes.len() as u64 {
            return Err(wrong(&format!("a dictionary claims {} values and has {} bytes", about.values, bytes.len())));
        }
        self.has_dictionary = true;
        let encoding = if matches!(about.encoding, Some(0 | 2)) { Encoding::PLAIN } else { encoding(about.encoding)? };
        Ok(Page::DictionaryPage { buf: bytes.into(), num_values: about.values, encoding, is_sorted: false })
    }

    fn data_page(&self, bytes: Vec<u8>, about: &About) -> Read<Page> {
        let way = self.way(about)?;
        let [def_level_encoding, rep_level_encoding] = [encoding(about.levels[0])?, encoding(about.levels[1])?];
        let mut data = Thrift::new(&bytes);
        if self.has_levels && is_delta(way) {
            if def_level_encoding != Encoding::RLE {
                return Err(wrong("a page says in an old way which values are null, and has them in a new way"));
            }
            let length = data.take(4)?.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            data.take(length.into())?;
        }
        check_delta(way, data, about.values)?;
        Ok(Page::DataPage {
            buf: bytes.into(),
            num_values: about.values,
            encoding: way,
            def_level_encoding,
            rep_level_encoding,
            statistics: None,
        })
    }

    fn data_page_v2(&self, bytes: Vec<u8>, about: &About, levels: [u32; 2]) -> Read<Page> {
        let [def_levels_byte_len, rep_levels_byte_len] = levels;
        let way = self.way(about)?;
        let mut data = Thrift::new(&bytes);
        data.take(u64::from(def_levels_byte_len) + u64::from(rep_levels_byte_len))?;
        check_delta(way, data, about.values)?;
        Ok(Page::DataPageV2 {
            buf: bytes.into(),
            num_values: about.values,
            encoding: way,
            num_nulls: about.nulls,
            num_rows: about.rows,
            def_levels_byte_len,
            rep_levels_byte_len,
            is_compressed: false,
            statistics: None,
        })
    }

    /// How the values are encoded. Those of a dictionary need one: the parquet crate takes that for granted.
    fn way(&self, about: &About) -> Read<Encoding> {
        let way = encoding(about.encoding)?;
        if way == Encoding::RLE_DICTIONARY && !self.has_dictionary {
            return Err(wrong("a column has no dictionary, but values of one"));
        }
        Ok(way)
    }
}

/// How many bytes the levels take that stand, not packed, before the values.
fn levels_of(about: &About, length: u64, packed: u64) -> Read<[u32; 2]> {
    let [definition, repetition] = about.levels.map(|length| short(length.unwrap_or(-1)));
    let levels = [definition?, repetition?];
    let sum = u64::from(levels[0]) + u64::from(levels[1]);
    if sum > length.min(packed) { Err(wrong("the levels of a page are longer than the page")) } else { Ok(levels) }
}

fn is_delta(way: Encoding) -> bool {
    matches!(way, Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY)
}

/// Refuses lengths of texts for more values than the page has: the parquet crate makes room for all of them beforehand.
fn check_delta(way: Encoding, mut data: Thrift, values: u32) -> Read<()> {
    if is_delta(way) {
        if u64::from(values) > limits::PARQUET_PAGE_VALUES {
            return Err(wrong(&format!("a page has {values} values, more than {}", limits::PARQUET_PAGE_VALUES)));
        }
        // Lengths of the prefix that a text shares with the one before it; then lengths of the rest.
        pass_numbers(&mut data, values)?;
        if way == Encoding::DELTA_BYTE_ARRAY {
            pass_numbers(&mut data, values)?;
        }
    }
    Ok(())
}

/// Skips delta-encoded numbers, at most `most`.
fn pass_numbers(data: &mut Thrift, most: u32) -> Read<()> {
    let damaged = || wrong("the lengths of a page's texts are damaged");
    let (block, parts, count, _) = (data.number()?, data.number()?, data.number()?, data.number()?);
    let part = block.checked_div(parts).filter(|part| *part > 0 && part % 32 == 0 && part * parts == block);
    let part = part.filter(|_| count <= most.into() && block <= 1 << 20).ok_or_else(damaged)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        data.number()?;
        for width in data.take(parts)? {
            if left > 0 {
                data.take(u64::from(*width) * part / 8)?;
            }
            left = left.saturating_sub(part);
        }
    }
    Ok(())
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Read<Option<Page>> {
        self.page()
    }

    fn peek_next_page(&mut self) -> Read<Option<PageMetadata>> {
        Err(wrong("a page is looked at before its turn"))
    }

    fn skip_next_page(&mut self) -> Read<()> {
        Err(wrong("a page is skipped"))
    }
}

impl Iterator for Pages {
    type Item = Read<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Unpacks a page of `length` bytes; the first `plain` bytes are not packed.
fn unpacked(codec: CompressionCodec, bytes: Vec<u8>, plain: usize, length: usize) -> Read<Vec<u8>> {
    let (Some((head, packed)), Some(rest)) = (bytes.split_at_checked(plain), length.checked_sub(plain)) else {
        return Err(wrong("a page is shorter than its levels"));
    };
    let body = match codec {
        CompressionCodec::UNCOMPRESSED => return Ok(bytes),
        _ if rest == 0 => Vec::new(),
        CompressionCodec::SNAPPY if snap::raw::decompress_len(packed).ok() == Some(rest) => {
            snap::raw::Decoder::new().decompress_vec(packed).map_err(|error| ParquetError::External(Box::new(error)))?
        }
        CompressionCodec::GZIP => all_of(flate2::read::MultiGzDecoder::new(packed), rest)?,
        CompressionCodec::BROTLI => all_of(brotli::Decompressor::new(packed, 1 << 12), rest)?,
        CompressionCodec::LZ4 => hadoop(packed, rest)
            .or_else(|_| all_of(lz4_flex::frame::FrameDecoder::new(packed), rest))
            .or_else(|_| block(packed, rest))?,
        CompressionCodec::ZSTD => all_of(zstd::stream::read::Decoder::new(packed)?, rest)?,
        CompressionCodec::LZ4_RAW => block(packed, rest)?,
        _ => return Err(wrong("a page has another size than it claims")),
    };
    if body.len() != rest {
        return Err(wrong("a page has another size than it claims"));
    }
    Ok(if head.is_empty() { body } else { [head, &body].concat() })
}

/// What a reader unpacks, and a byte more than `length` at most.
fn all_of(reader: impl std::io::Read, length: usize) -> Read<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(length as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A block of LZ4.
fn block(packed: &[u8], length: usize) -> Read<Vec<u8>> {
    // A byte stands for 255 at most.
    if length / 255 > packed.len() {
        return Err(wrong("a page has another size than it claims"));
    }
    lz4_flex::block::decompress(packed, length).map_err(|error| ParquetError::External(Box::new(error)))
}

/// Blocks of LZ4, each after its sizes, as Hadoop writes them.
fn hadoop(packed: &[u8], length: usize) -> Read<Vec<u8>> {
    let damaged = || wrong("a page is damaged");
    let (mut bytes, mut rest) = (Vec::new(), packed);
    while let Some((sizes, after)) = rest.split_first_chunk::<8>() {
        let number = |four: &[u8]| four.iter().fold(0usize, |number, byte| number << 8 | usize::from(*byte));
        let [size, packed] = [number(&sizes[..4]), number(&sizes[4..])];
        let (here, after) = after.split_at_checked(packed).ok_or_else(damaged)?;
        if bytes.len() + size > length {
            return Err(damaged());
        }
        bytes.extend(block(here, size)?);
        rest = after;
    }
    if rest.is_empty() { Ok(bytes) } else { Err(damaged()) }
}
