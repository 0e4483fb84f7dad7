//! The footer of a Parquet file, which describes its layout.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::basic::CompressionCodec;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::schema::types::{ColumnDescPtr, SchemaDescPtr};

use super::thrift::{Kind, Thrift};
use super::{Read, wrong};
use crate::limits;

/// The bytes at the beginning and the end of a file.
const MAGIC: &[u8] = b"PAR1";
/// The physical type of text, in a file.
pub(super) const BYTE_ARRAY: i64 = 6;

/// A column that holds values.
pub(super) struct Leaf {
    /// The names of the columns that it lies in, and its own, with dots between.
    pub(super) name: String,
    /// How many names these are.
    pub(super) names: usize,
    /// What a value is, as a number of the format.
    pub(super) kind: i64,
    /// The level of a value that is there, and not null.
    pub(super) whole: i16,
    /// Whether a row may have several values, or none.
    pub(super) is_repeated: bool,
}

/// The description of a file.
pub(super) struct Footer {
    bytes: Vec<u8>,
    file_length: u64,
}

impl Footer {
    /// Reads it.
    pub(super) fn read(file: &File) -> Read<Self> {
        let file_length = file.metadata()?.len();
        let mut tail = [0; 8];
        let offset = file_length.checked_sub(12).ok_or_else(|| wrong("it is too short"))? + 4;
        file.read_exact_at(&mut tail, offset)?;
        let (length, magic) = tail.split_first_chunk().ok_or_else(|| wrong("it is too short"))?;
        if magic != MAGIC {
            return Err(wrong("it does not end as such a file does"));
        }
        let length = u64::from(u32::from_le_bytes(*length));
        if length > limits::PARQUET_FOOTER_BYTES {
            let most = limits::PARQUET_FOOTER_BYTES;
            return Err(wrong(&format!("its description has {length} bytes, more than {most}")));
        }
        let offset = offset.checked_sub(length).ok_or_else(|| wrong("its description is longer than the file"))?;
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(Self { bytes, file_length })
    }

    /// The columns that hold values, in their order in the file.
    pub(super) fn leaves(&self) -> Read<Vec<Leaf>> {
        let mut leaves = None;
        Thrift::new(&self.bytes).fields(|thrift, id, kind| {
            if id == 2 {
                leaves = Some(columns(thrift, kind)?);
            }
            Ok(id == 2)
        })?;
        leaves.ok_or_else(|| wrong("it has no columns"))
    }

    /// The row groups, each with the two wanted ones of its `count` columns, which are described as `schema` says.
    pub(super) fn groups(
        &self,
        wanted: [usize; 2],
        count: usize,
        schema: &SchemaDescPtr,
    ) -> Read<Vec<RowGroupMetaData>> {
        let (mut groups, mut rows) = (Vec::new(), None);
        Thrift::new(&self.bytes).fields(|thrift, id, kind| {
            match id {
                3 => rows = Some(thrift.int(kind)?),
                4 => {
                    let number = thrift.structs(kind)?;
                    // A damaged file may have several lists.
                    let (all, most) = (groups.len() + number, limits::PARQUET_GROUPS);
                    if all > most {
                        return Err(wrong(&format!("it has {all} row groups, more than {most}")));
                    }
                    for _ in 0..number {
                        groups.push(self.group(thrift, wanted, count, schema)?);
                    }
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let sum = groups.iter().try_fold(0i64, |sum, group: &RowGroupMetaData| sum.checked_add(group.num_rows()));
        if sum.is_none() || sum != rows {
            return Err(wrong("the row groups have other rows than the file"));
        }
        // Each has bytes of its own: else a few bytes could be read again and again.
        let of_column = |column: usize| groups.iter().map(move |group| group.column(column).compressed_size() as u64);
        if (0..2).any(|column| of_column(column).fold(0, u64::saturating_add) > self.file_length) {
            return Err(wrong("its row groups overlap"));
        }
        Ok(groups)
    }

    fn group(
        &self,
        thrift: &mut Thrift,
        wanted: [usize; 2],
        count: usize,
        schema: &SchemaDescPtr,
    ) -> Read<RowGroupMetaData> {
        let (mut found, mut rows) = ([None; 2], None);
        thrift.fields(|thrift, id, kind| {
            match id {
                1 => {
                    if thrift.structs(kind)? != count {
                        return Err(wrong("a row group has other columns than the file"));
                    }
                    for index in 0..count {
                        let chunk = self.chunk(thrift, wanted.contains(&index))?;
                        for (slot, _) in found.iter_mut().zip(wanted).filter(|(_, wanted)| *wanted == index) {
                            *slot = chunk;
                        }
                    }
                }
                3 => rows = Some(thrift.int(kind)?).filter(|rows| *rows >= 0),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let ([Some(source), Some(target)], Some(rows)) = (found, rows) else {
            return Err(wrong("the description of a row group is not whole"));
        };
        let columns = [(source, 0), (target, 1)].map(|(chunk, index)| chunk.described(schema.column(index)));
        let columns = columns.into_iter().collect::<Read<_>>()?;
        RowGroupMetaData::builder(schema.clone()).set_num_rows(rows).set_column_metadata(columns).build()
    }

    /// Reads the description of a column of a row group.
    fn chunk(&self, thrift: &mut Thrift, is_wanted: bool) -> Read<Option<Chunk>> {
        let mut chunk = None;
        thrift.fields(|thrift, id, kind| {
            match (id, kind) {
                _ if !is_wanted => return Ok(false),
                (1, _) => return Err(wrong("a column lies in another file")),
                (3, Kind::Struct) => chunk = Some(self.chunk_metadata(thrift)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if is_wanted && chunk.is_none() { Err(wrong("the description of a column is not whole")) } else { Ok(chunk) }
    }

    fn chunk_metadata(&self, thrift: &mut Thrift) -> Read<Chunk> {
        let (mut type_, mut codec, mut length, mut data, mut dictionary) = (None, None, None, None, None);
        thrift.fields(|thrift, id, kind| {
            let slot = match id {
                1 => &mut type_,
                4 => &mut codec,
                7 => &mut length,
                9 => &mut data,
                11 => &mut dictionary,
                _ => return Ok(false),
            };
            *slot = Some(thrift.int(kind)?);
            Ok(true)
        })?;
        let unsigned = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
        // Some writers state a dictionary at 0 where there is none.
        let start = unsigned(dictionary).filter(|offset| *offset > 0).or(unsigned(data));
        match (type_, codec, start, unsigned(length)) {
            (Some(BYTE_ARRAY), Some(codec), Some(start), Some(length)) => {
                if start.checked_add(length).is_none_or(|end| end > self.file_length) {
                    return Err(wrong("a column lies beyond the end of the file"));
                }
                Ok(Chunk { start, length, codec: compression(codec)? })
            }
            _ => Err(wrong("the description of a column is not whole, or none of text")),
        }
    }
}

/// Where a column of a row group lies in the file, and how it is packed.
#[derive(Clone, Copy)]
struct Chunk {
    start: u64,
    length: u64,
    codec: CompressionCodec,
}

impl Chunk {
    fn described(self, column: ColumnDescPtr) -> Read<ColumnChunkMetaData> {
        let signed = |number| i64::try_from(number).map_err(|_| wrong("a column lies beyond the end of the file"));
        ColumnChunkMetaData::builder(column)
            .set_compression_codec(self.codec)
            .set_data_page_offset(signed(self.start)?)
            .set_total_compressed_size(signed(self.length)?)
            .build()
    }
}

/// How pages are packed, which a file gives as a number.
fn compression(number: i64) -> Read<CompressionCodec> {
    Ok(match number {
        0 => CompressionCodec::UNCOMPRESSED,
        1 => CompressionCodec::SNAPPY,
        2 => CompressionCodec::GZIP,
        4 => CompressionCodec::BROTLI,
        5 => CompressionCodec::LZ4,
        6 => CompressionCodec::ZSTD,
        7 => CompressionCodec::LZ4_RAW,
        3 => return Err(wrong("it is packed by LZO, which cannot be read")),
        _ => return Err(wrong("a column is packed in no known way")),
    })
}

/// A column as the file lists it; its inner columns follow.
#[derive(Default)]
struct Column<'b> {
    name: &'b [u8],
    kind: Option<i64>,
    repetition: Option<i64>,
    children: usize,
}

fn column<'b>(thrift: &mut Thrift<'b>) -> Read<Column<'b>> {
    let mut column = Column::default();
    thrift.fields(|thrift, id, kind| {
        match id {
            1 => column.kind = Some(thrift.int(kind)?),
            3 => column.repetition = Some(thrift.int(kind)?),
            4 => column.name = thrift.bytes(kind)?,
            5 => {
                column.children =
                    usize::try_from(thrift.int(kind)?).map_err(|_| wrong("a column has wrong columns in it"))?
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(column)
}

/// A column that holds others.
struct Open {
    /// Length of the common prefix of the names of its inner columns.
    prefix: usize,
    left: usize,
    whole: i16,
    is_repeated: bool,
}

/// Reads the list of columns, in which inner columns follow each outer one.
fn columns(thrift: &mut Thrift, kind: Kind) -> Read<Vec<Leaf>> {
    let count = thrift.structs(kind)?;
    if count > limits::PARQUET_COLUMNS {
        return Err(wrong(&format!("it has {count} columns, more than {}", limits::PARQUET_COLUMNS)));
    }
    let root = column(thrift)?;
    let (mut open, mut leaves, mut name, mut bytes) = (Vec::new(), Vec::new(), String::new(), 0);
    open.push(Open { prefix: 0, left: root.children, whole: 0, is_repeated: false });
    for _ in 1..count {
        while open.pop_if(|group: &mut Open| group.left == 0).is_some() {}
        let depth = open.len();
        let group = open.last_mut().ok_or_else(|| wrong("it lists more columns than it has"))?;
        group.left -= 1;
        let column = column(thrift)?;
        let own = std::str::from_utf8(column.name).map_err(|_| wrong("the name of a column is not UTF-8"))?;
        name.truncate(group.prefix);
        name.push_str(own);
        bytes += name.len();
        let (whole, is_repeated) = match column.repetition {
            Some(0) => (group.whole, group.is_repeated),
            Some(1) => (group.whole + 1, group.is_repeated),
            Some(2) => (group.whole + 1, true),
            _ => return Err(wrong("a column has no repetition type")),
        };
        if depth > limits::PARQUET_DEPTH || bytes > limits::PARQUET_NAME_BYTES {
            return Err(wrong(&format!(
                "its columns nest too deeply (more than {}), or have too long names",
                limits::PARQUET_DEPTH
            )));
        }
        match column.kind {
            Some(kind) if column.children == 0 => {
                leaves.push(Leaf { name: name.clone(), names: depth, kind, whole, is_repeated });
            }
            _ => {
                name.push('.');
                open.push(Open { prefix: name.len(), left: column.children, whole, is_repeated });
            }
        }
    }
    if open.iter().any(|group| group.left > 0) {
        return Err(wrong("it lists fewer columns than it has"));
    }
    Ok(leaves)
}
