//! Parquet files written byte by byte, so that they may claim anything.

/// A value of Thrift's compact protocol.
pub enum Thrift {
    Int(i64),
    Bytes(Vec<u8>),
    /// With the kind of its elements, and their number if that is another one.
    List(u8, Vec<Thrift>, Option<u64>),
    Struct(Vec<(u8, Thrift)>),
    /// What is written of any value.
    Raw(u8, Vec<u8>),
}

use Thrift::{Bytes, Int, List, Raw, Struct};

pub fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7F {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

impl Thrift {
    fn kind(&self) -> u8 {
        match self {
            Int(_) => 6,
            Bytes(_) => 8,
            List(..) => 9,
            Struct(_) => 12,
            Raw(kind, _) => *kind,
        }
    }

    fn write(&self) -> Vec<u8> {
        match self {
            Int(value) => number((value << 1 ^ value >> 63) as u64),
            Bytes(bytes) => [number(bytes.len() as u64), bytes.clone()].concat(),
            List(kind, elements, count) => {
                let count = number(count.unwrap_or(elements.len() as u64));
                [vec![0xF0 | kind], count, elements.iter().flat_map(Self::write).collect()].concat()
            }
            Struct(fields) => {
                let mut bytes = Vec::new();
                for (id, value) in fields {
                    bytes.push(value.kind());
                    bytes.extend(Int(i64::from(*id)).write());
                    bytes.extend(value.write());
                }
                bytes.push(0);
                bytes
            }
            Raw(_, bytes) => bytes.clone(),
        }
    }
}

pub fn structs(list: Vec<Thrift>) -> Thrift {
    List(12, list, None)
}

/// A column, with so many in it; or one of text.
pub fn column(name: &str, children: Option<i64>) -> Thrift {
    let kind = if children.is_none() { (1, Int(6)) } else { (5, Int(children.unwrap_or(0))) };
    Struct(vec![kind, (3, Int(0)), (4, Bytes(name.into()))])
}

/// The columns `en` and `de`.
pub fn columns() -> Thrift {
    structs(vec![column("", Some(2)), column("en", None), column("de", None)])
}

/// A file of these columns and row groups; `more` comes before them.
pub fn file(pages: &[u8], columns: Thrift, rows: i64, groups: Vec<Thrift>, more: Vec<(u8, Thrift)>) -> Vec<u8> {
    let fields = [(1, Int(1)), (2, columns), (3, Int(rows)), (4, structs(groups))];
    let footer = Struct(more.into_iter().chain(fields).collect()).write();
    [b"PAR1", pages, &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat()
}

/// A file of one row group, whose two columns are the same pages.
pub fn of_pages(pages: &[u8], codec: i64, rows: i64) -> Vec<u8> {
    of_groups(pages, codec, rows, 1)
}

/// A file of so many row groups of so many rows, whose columns are all the same pages.
pub fn of_groups(pages: &[u8], codec: i64, rows: i64, count: usize) -> Vec<u8> {
    let place = [(1, Int(6)), (4, Int(codec)), (7, Int(pages.len() as i64)), (9, Int(4))];
    let chunk = || {
        Struct(vec![(2, Int(0)), (3, Struct(place.iter().map(|(id, value)| (*id, Raw(6, value.write()))).collect()))])
    };
    let group = |_| Struct(vec![(1, structs(vec![chunk(), chunk()])), (3, Int(rows))]);
    file(pages, columns(), rows * count as i64, (0..count).map(group).collect(), Vec::new())
}

/// A page of a kind, 0 of values or 2 of a dictionary, that claims so many bytes and values.
pub fn page(kind: i64, length: i64, values: i64, encoding: i64, body: &[u8]) -> Vec<u8> {
    let about = Struct(vec![(1, Int(values)), (2, Int(encoding)), (3, Int(3)), (4, Int(3))]);
    let id = if kind == 0 { 5 } else { 7 };
    let header = Struct(vec![(1, Int(kind)), (2, Int(length)), (3, Int(body.len() as i64)), (id, about)]);
    [header.write(), body.to_vec()].concat()
}

/// A text as it stands in a page.
pub fn plain(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text].concat()
}
