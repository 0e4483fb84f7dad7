//! A Parquet file of any columns, row groups and pages, written with some of its bytes changed.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use mt::data::corpus::PairSource;
use mt::data::hub::HubFiles;

/// A value of Thrift's compact protocol.
#[derive(Arbitrary, Debug)]
enum Value<'a> {
    Int(i64),
    Small(u8),
    Bytes(&'a [u8]),
    Truth(bool),
    /// With a number of elements that need not be theirs.
    List(u8, Option<u64>, Vec<Value<'a>>),
    Struct(Vec<(u8, Value<'a>)>),
}

fn number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7F {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

impl Value<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Int(_) | Self::Small(_) => 6,
            Self::Bytes(_) => 8,
            Self::Truth(is_true) => 2 - u8::from(*is_true),
            Self::List(..) => 9,
            Self::Struct(_) => 12,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Int(value) => number((value << 1 ^ value >> 63) as u64, out),
            Self::Small(value) => number(u64::from(*value) << 1, out),
            Self::Bytes(bytes) => {
                number(bytes.len() as u64, out);
                out.extend(*bytes);
            }
            Self::Truth(_) => {}
            Self::List(kind, count, elements) => {
                let kind = elements.first().map_or(*kind & 15, Self::kind);
                out.push(0xF0 | kind);
                number(count.unwrap_or(elements.len() as u64), out);
                elements.iter().for_each(|element| element.write(out));
            }
            Self::Struct(fields) => {
                for (id, value) in fields {
                    field(*id, value, out);
                }
                out.push(0);
            }
        }
    }
}

fn field(id: u8, value: &Value, out: &mut Vec<u8>) {
    out.push(value.kind());
    number(u64::from(id) << 1, out);
    value.write(out);
}

fn structure(fields: Vec<(u8, Value)>) -> Vec<u8> {
    let mut out = Vec::new();
    Value::Struct(fields).write(&mut out);
    out
}

#[derive(Arbitrary, Debug)]
struct Page<'a> {
    kind: u8,
    length: Option<i32>,
    values: i32,
    encoding: u8,
    levels: Option<[i32; 2]>,
    is_packed: Option<bool>,
    /// Texts as they stand in a page, or whatever bytes.
    body: Body<'a>,
    more: Vec<(u8, Value<'a>)>,
}

#[derive(Arbitrary, Debug)]
enum Body<'a> {
    Plain(Vec<&'a [u8]>),
    /// A run of an element of the dictionary.
    Run(u32, u8),
    /// Lengths in blocks, and what follows.
    Deltas {
        count: u64,
        first: i64,
        widths: [u8; 4],
        rest: &'a [u8],
    },
    Any(&'a [u8]),
}

impl Body<'_> {
    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Plain(texts) => texts.iter().for_each(|text| {
                out.extend((text.len() as u32).to_le_bytes());
                out.extend(*text);
            }),
            Self::Run(count, element) => {
                out.push(8);
                number(u64::from(*count) << 1, &mut out);
                out.push(*element);
            }
            Self::Deltas { count, first, widths, rest } => {
                number(128, &mut out);
                number(4, &mut out);
                number(*count, &mut out);
                Value::Int(*first).write(&mut out);
                out.push(0);
                out.extend(widths);
                out.extend(*rest);
            }
            Self::Any(bytes) => out.extend(*bytes),
        }
        out
    }
}

impl Page<'_> {
    fn write(&self, codec: u8, out: &mut Vec<u8>) {
        let plain = self.body.write();
        let length = self.length.unwrap_or(plain.len() as i32);
        let packed = if codec % 8 == 6 { plain_zstd(&plain) } else { plain };
        let int = |value: i32| Value::Int(value.into());
        let [definition, repetition] = self.levels.unwrap_or([3, 3]);
        let mut about = vec![(1, int(self.values)), (2, Value::Small(self.encoding % 10))];
        about.extend([(3, int(definition)), (4, int(repetition))]);
        if self.kind % 4 == 3 {
            let levels = self.levels.unwrap_or_default();
            about =
                vec![(1, int(self.values)), (2, int(0)), (3, int(self.values)), (4, Value::Small(self.encoding % 10))];
            about.extend([(5, int(levels[0])), (6, int(levels[1]))]);
            about.extend(self.is_packed.map(|is_packed| (7, Value::Truth(is_packed))));
        }
        let id = [5, 6, 7, 8][usize::from(self.kind % 4)];
        out.push(6);
        number(2, out);
        Value::Small(self.kind % 4).write(out);
        field(2, &int(length), out);
        field(3, &int(packed.len() as i32), out);
        field(id, &Value::Struct(about), out);
        self.more.iter().for_each(|(id, value)| field(*id, value, out));
        out.push(0);
        out.extend(packed);
    }
}

/// A frame of Zstandard with one block that is not packed.
fn plain_zstd(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58];
    let block = (bytes.len() as u32) << 3 | 1;
    out.extend(&block.to_le_bytes()[..3]);
    out.extend(bytes);
    out
}

#[derive(Arbitrary, Debug)]
struct Column<'a> {
    name: &'a [u8],
    kind: Option<u8>,
    repetition: u8,
    children: Option<i32>,
    more: Option<(u8, Value<'a>)>,
}

#[derive(Arbitrary, Debug)]
struct File<'a> {
    pages: Vec<Page<'a>>,
    codec: u8,
    rows: u16,
    is_optional: bool,
    columns: Vec<Column<'a>>,
    more: Vec<(u8, Value<'a>)>,
    /// Places that are not where the pages are.
    place: Option<[i64; 3]>,
    edits: Vec<(u16, u8)>,
}

fuzz_target!(|file: File| {
    let mut bytes = b"PAR1".to_vec();
    file.pages.iter().for_each(|page| page.write(file.codec, &mut bytes));
    let length = bytes.len() as i64 - 4;
    let int = |value: i64| Value::Int(value);
    let [start, dictionary, length] = file.place.unwrap_or([4, 4, length]);
    let chunk = || {
        let place = vec![
            (1, int(6)),
            (4, Value::Small(file.codec % 8)),
            (7, int(length)),
            (9, int(start)),
            (11, int(dictionary)),
        ];
        Value::Struct(vec![(3, Value::Struct(place))])
    };
    let names: [&[u8]; 2] = [b"en", b"de"];
    let mut columns = vec![Value::Struct(vec![(4, Value::Bytes(b"")), (5, int(2 + file.columns.len() as i64))])];
    let repetition = u8::from(file.is_optional);
    columns.extend(
        names.map(|name| {
            Value::Struct(vec![(1, Value::Small(6)), (3, Value::Small(repetition)), (4, Value::Bytes(name))])
        }),
    );
    let mut leaves = 2;
    for column in &file.columns {
        leaves += usize::from(column.kind.is_some() && column.children.unwrap_or(0) == 0);
        let mut fields = vec![(3, Value::Small(column.repetition % 4)), (4, Value::Bytes(column.name))];
        fields.extend(column.kind.map(|kind| (1, Value::Small(kind % 8))));
        fields.extend(column.children.map(|children| (5, int(children.into()))));
        columns.push(Value::Struct(fields));
    }
    let chunks = (0..leaves).map(|_| chunk()).collect();
    let rows = i64::from(file.rows);
    let group = Value::Struct(vec![(1, Value::List(12, None, chunks)), (3, int(rows))]);
    let mut footer = structure(vec![
        (1, int(1)),
        (2, Value::List(12, None, columns)),
        (3, int(rows)),
        (4, Value::List(12, None, vec![group])),
    ]);
    footer.pop();
    file.columns.iter().flat_map(|column| &column.more).for_each(|(id, value)| field(*id, value, &mut footer));
    file.more.iter().for_each(|(id, value)| field(*id, value, &mut footer));
    footer.push(0);
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    let size = bytes.len();
    for (place, change) in &file.edits {
        bytes[usize::from(*place) % size] ^= change;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    std::fs::write(&path, bytes).unwrap();
    match HubFiles::of_parquet(path, "en".into(), "de".into()).open(1.0) {
        Ok(corpus) => assert!(!file.edits.is_empty() || corpus.len() == usize::from(file.rows)),
        Err(error) => assert!(error.to_string().contains("t.parquet"), "{error}"),
    }
});
