//! A Parquet file of any columns and pages, of which some claim what is not so.
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

/// A page. What it says of itself is so, unless something else is stated.
#[derive(Arbitrary, Debug)]
struct Page<'a> {
    is_second: bool,
    body: Body<'a>,
    lies: Option<Lies<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Lies<'a> {
    kind: Option<u8>,
    length: Option<i32>,
    packed: Option<i32>,
    values: Option<i32>,
    encoding: Option<u8>,
    levels: Option<[i32; 2]>,
    is_packed: Option<bool>,
    more: Vec<(u8, Value<'a>)>,
}

#[derive(Arbitrary, Debug)]
enum Body<'a> {
    Plain(Vec<&'a str>),
    Dictionary(Vec<&'a str>),
    /// Runs of elements of the dictionary that all files have; some are beyond it.
    Runs(Vec<(u8, u8)>),
    /// All of one length, which follows from the number of bytes; or each of them beginning as the one before.
    Deltas {
        count: u8,
        length: u8,
        has_prefixes: bool,
        widths: [u8; 4],
        rest: &'a [u8],
    },
    Any(&'a [u8], u8, u8),
}

impl Body<'_> {
    /// The number of values, how they are encoded, and their bytes.
    fn write(&self) -> (i32, u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            Self::Plain(texts) | Self::Dictionary(texts) => {
                texts.iter().for_each(|text| {
                    out.extend((text.len() as u32).to_le_bytes());
                    out.extend(text.bytes());
                });
                (texts.len() as i32, 0, out)
            }
            Self::Runs(runs) => {
                out.push(8);
                for (count, element) in runs {
                    number(u64::from(*count) << 1, &mut out);
                    out.push(if *element < 250 { element % 3 } else { *element });
                }
                (runs.iter().map(|(count, _)| i32::from(*count)).sum(), 8, out)
            }
            Self::Deltas { count, length, has_prefixes, widths, rest } => {
                if *has_prefixes {
                    deltas(*count, 0, [0; 4], &mut out);
                }
                deltas(*count, *length, *widths, &mut out);
                out.extend((0..u32::from(*count) * u32::from(*length)).map(|_| b'a'));
                out.extend(*rest);
                ((*count).into(), if *has_prefixes { 7 } else { 6 }, out)
            }
            Self::Any(bytes, count, encoding) => {
                out.extend(*bytes);
                ((*count).into(), encoding % 10, out)
            }
        }
    }
}

/// So many numbers that are the same, if the widths are 0.
fn deltas(count: u8, first: u8, widths: [u8; 4], out: &mut Vec<u8>) {
    [128, 4, u64::from(count), u64::from(first) << 1].into_iter().for_each(|value| number(value, out));
    for _ in 0..count.saturating_sub(1).div_ceil(128) {
        out.push(0);
        out.extend(widths);
        out.extend(widths.iter().flat_map(|width| vec![0; usize::from(*width) * 4]));
    }
}

impl Page<'_> {
    /// Appends it; returns how many rows it has.
    fn write(&self, codec: u8, has_levels: bool, out: &mut Vec<u8>) -> i64 {
        let (count, encoding, plain) = self.body.write();
        let is_dictionary = matches!(self.body, Body::Dictionary(_));
        let mut levels = Vec::new();
        if has_levels && !is_dictionary {
            number((count as u64) << 1, &mut levels);
            levels.push(1);
        }
        let lengths = [levels.len() as i32, 0];
        if !levels.is_empty() && !self.is_second {
            levels = [&(levels.len() as u32).to_le_bytes()[..], &levels].concat();
        }
        let lies = self.lies.as_ref();
        let is_packed = codec == 6;
        let (packed, plain) = match (is_packed, self.is_second && !is_dictionary) {
            (false, _) => ([&levels[..], &plain].concat(), levels.len() + plain.len()),
            (true, false) => (plain_zstd(&[&levels[..], &plain].concat()), levels.len() + plain.len()),
            (true, true) => ([&levels[..], &plain_zstd(&plain)].concat(), levels.len() + plain.len()),
        };
        let kind = if is_dictionary { 2 } else { 3 * u8::from(self.is_second) };
        let kind = lies.and_then(|lies| lies.kind).unwrap_or(kind) % 4;
        let int = |stated: Option<i32>, value: i32| Value::Int(stated.unwrap_or(value).into());
        let values = lies.and_then(|lies| lies.values);
        let way = Value::Small(lies.and_then(|lies| lies.encoding).unwrap_or(encoding) % 10);
        let stated = lies.and_then(|lies| lies.levels);
        let about = if kind == 3 {
            let [definition, repetition] = stated.unwrap_or(lengths);
            let mut about = vec![(1, int(values, count)), (2, int(None, 0)), (3, int(values, count)), (4, way)];
            about.extend([(5, int(None, definition)), (6, int(None, repetition))]);
            about.extend(lies.and_then(|lies| lies.is_packed).map(|is_packed| (7, Value::Truth(is_packed))));
            about
        } else {
            let [definition, repetition] = stated.unwrap_or([3, 3]);
            vec![(1, int(values, count)), (2, way), (3, int(None, definition)), (4, int(None, repetition))]
        };
        field(1, &Value::Small(kind), out);
        field(2, &int(lies.and_then(|lies| lies.length), plain as i32), out);
        field(3, &int(lies.and_then(|lies| lies.packed), packed.len() as i32), out);
        field([5, 6, 7, 8][usize::from(kind)], &Value::Struct(about), out);
        lies.iter().flat_map(|lies| &lies.more).for_each(|(id, value)| field(*id, value, out));
        out.push(0);
        out.extend(packed);
        if is_dictionary { 0 } else { count.into() }
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

/// A column, or one that holds others.
#[derive(Arbitrary, Debug)]
struct Column<'a> {
    name: &'a str,
    kind: u8,
    repetition: u8,
    inner: Vec<Column<'a>>,
    lies: Option<(i32, u8, Value<'a>)>,
}

impl Column<'_> {
    /// Appends it to the list of columns; returns how many hold values.
    fn list(&self, out: &mut Vec<Vec<u8>>) -> usize {
        let mut bytes = Vec::new();
        field(3, &Value::Small(self.repetition % 3), &mut bytes);
        field(4, &Value::Bytes(self.name.as_bytes()), &mut bytes);
        match &self.lies {
            Some((children, id, value)) => {
                field(5, &Value::Int((*children).into()), &mut bytes);
                field(*id, value, &mut bytes);
            }
            None if self.inner.is_empty() => field(1, &Value::Small(self.kind % 8), &mut bytes),
            None => field(5, &Value::Int(self.inner.len() as i64), &mut bytes),
        }
        bytes.push(0);
        out.push(bytes);
        let inner = self.inner.iter().map(|column| column.list(out)).sum::<usize>();
        if self.inner.is_empty() { 1 } else { inner }
    }
}

#[derive(Arbitrary, Debug)]
struct File<'a> {
    pages: Vec<Page<'a>>,
    has_dictionary: bool,
    is_packed: bool,
    is_optional: bool,
    columns: Vec<Column<'a>>,
    lies: Option<FileLies<'a>>,
}

#[derive(Arbitrary, Debug)]
struct FileLies<'a> {
    rows: Option<i64>,
    codec: Option<u8>,
    more: Vec<(u8, Value<'a>)>,
    /// Places that are not where the pages are.
    place: Option<[i64; 3]>,
    edits: Vec<(u16, u8)>,
}

/// A struct of what is written.
fn raw(fields: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (id, kind, value) in fields {
        out.push(*kind);
        number(u64::from(*id) << 1, &mut out);
        out.extend(value);
    }
    out.push(0);
    out
}

fn list(structs: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0xFC];
    number(structs.len() as u64, &mut out);
    structs.iter().for_each(|bytes| out.extend(bytes));
    out
}

fn int(value: i64) -> Vec<u8> {
    let mut out = Vec::new();
    Value::Int(value).write(&mut out);
    out
}

fuzz_target!(|file: File| {
    let lies = file.lies.as_ref();
    let codec = if file.is_packed { 6 } else { 0 };
    let mut bytes = b"PAR1".to_vec();
    if file.has_dictionary {
        let body = Body::Dictionary(vec!["", "a", "text"]);
        Page { is_second: false, body, lies: None }.write(codec, file.is_optional, &mut bytes);
    }
    let rows: i64 = file.pages.iter().map(|page| page.write(codec, file.is_optional, &mut bytes)).sum();
    let is_true = lies.is_none() && file.pages.iter().all(|page| page.lies.is_none());
    let stated = lies.and_then(|lies| lies.rows).unwrap_or(rows);
    let length = bytes.len() as i64 - 4;
    let [start, dictionary, length] = lies.and_then(|lies| lies.place).unwrap_or([4, 4, length]);
    let codec = lies.and_then(|lies| lies.codec).unwrap_or(codec) % 8;
    let mut columns = Vec::new();
    let text = |name: &[u8]| {
        let name = [vec![name.len() as u8], name.to_vec()].concat();
        raw(&[(1, 6, int(6)), (3, 6, int(file.is_optional.into())), (4, 8, name)])
    };
    columns.extend([raw(&[(4, 8, vec![0]), (5, 6, int(2 + file.columns.len() as i64))]), text(b"en"), text(b"de")]);
    let leaves = 2 + file.columns.iter().map(|column| column.list(&mut columns)).sum::<usize>();
    let place = raw(&[
        (1, 6, int(6)),
        (4, 6, int(codec.into())),
        (7, 6, int(length)),
        (9, 6, int(start)),
        (11, 6, int(dictionary)),
    ]);
    let chunks = vec![raw(&[(3, 12, place)]); leaves];
    let group = raw(&[(1, 9, list(&chunks)), (3, 6, int(stated))]);
    let mut footer = raw(&[(1, 6, int(1)), (2, 9, list(&columns)), (3, 6, int(stated)), (4, 9, list(&[group]))]);
    footer.pop();
    lies.iter().flat_map(|lies| &lies.more).for_each(|(id, value)| field(*id, value, &mut footer));
    footer.push(0);
    bytes.extend(&footer);
    bytes.extend((footer.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    let size = bytes.len();
    for (place, change) in lies.iter().flat_map(|lies| &lies.edits) {
        bytes[usize::from(*place) % size] ^= change;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    std::fs::write(&path, bytes).unwrap();
    match HubFiles::from_parquet(path, "en".into(), "de".into()).open(1.0) {
        Ok(corpus) => assert!(!is_true || corpus.len() as i64 == rows),
        Err(error) => assert!(error.to_string().contains("t.parquet"), "{error}"),
    }
});
