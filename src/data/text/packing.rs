//! How text is compressed: not at all, or by gzip, xz or Zstandard, told apart by the first bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use super::lines::{Before, not_utf8};
use crate::error::{Error, Result};

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// Reading such a file failed.
    pub(super) fn failed(self, path: &Path, error: std::io::Error) -> Error {
        match self {
            Self::None => failed(path, error),
            _ => {
                failed(path, error).help(format!("the file is damaged or cut short: test it with `{} -t`", self.name()))
            }
        }
    }

    /// Adds to an error that it lies in the unpacked data.
    pub(super) fn inside(self, error: Error) -> Error {
        match self {
            Self::None => error,
            _ => error.context(format_args!("in the {} data", self.name())),
        }
    }

    fn of_extension(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip,
            Some("xz") => Self::Xz,
            Some("zst") => Self::Zstd,
            _ => Self::None,
        }
    }

    /// What a file begins with; none of these is text. Parallel compressors put a skippable frame of Zstandard first.
    const BEGINNINGS: [(&[u8], Self); 4] = [
        (b"\x1F\x8B", Self::Gzip),
        (b"\xFD7zXZ\0", Self::Xz),
        (b"\x28\xB5\x2F\xFD", Self::Zstd),
        (&[SKIPPABLE, 0x2A, 0x4D, 0x18], Self::Zstd),
    ];

    /// What the first bytes say.
    fn of_content(head: &[u8]) -> Self {
        let begun = Self::BEGINNINGS.iter().find(|(all, _)| all.len() <= head.len() && agree(all, head));
        begun.map_or(Self::None, |(_, packing)| *packing)
    }
}

/// The first byte of a skippable frame; the lower half of it is free.
const SKIPPABLE: u8 = 0x50;

/// Whether the bytes that both have agree.
fn agree(beginning: &[u8], head: &[u8]) -> bool {
    let is_free = |expected: u8, byte: u8| expected == SKIPPABLE && byte & 0xF0 == SKIPPABLE;
    beginning.iter().zip(head).all(|(&expected, &byte)| byte == expected || is_free(expected, byte))
}

pub(super) fn read_bytes(path: &Path) -> Result<(Vec<u8>, Packing)> {
    let (mut reader, packing) = open_packed(path)?;
    let mut bytes = Vec::new();
    if packing == Packing::None {
        let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        bytes.reserve_exact(usize::try_from(size).unwrap_or_default());
    }
    reader.read_to_end(&mut bytes).map_err(|error| packing.failed(path, error))?;
    bytes.shrink_to_fit();
    Ok((bytes, packing))
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io("read the text", path, error)
}

/// Opens the file at `path` as a stream of bytes, unpacking it where it is compressed.
pub fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    Ok(open_packed(path)?.0)
}

pub(super) fn open_packed(path: &Path) -> Result<(Box<dyn BufRead + Send>, Packing)> {
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    // The head is kept, not sought back to: the file may be a pipe.
    let mut head = Vec::new();
    file.by_ref().take(6).read_to_end(&mut head).map_err(|e| failed(path, e))?;
    let named = Packing::of_extension(path);
    let packing = Packing::of_content(&head);
    // Other common formats, which are not supported.
    let other = match head[..] {
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41] => Some(("bzip2", "bunzip2")),
        [b'P', b'K', 3, 4, ..] => Some(("zip", "unzip")),
        _ => None,
    };
    if let Some((form, command)) = other {
        return Err(packed_otherwise(path, form, command));
    }
    if packing == Packing::None && named != Packing::None {
        return Err(Error::failure(format!("the file does not hold {} data, as its name says", named.name()))
            .at(path)
            .help(
                "a download may have been cut short, or unpacked on its way: look at the file, and rename it if it is \
                 text",
            ));
    }
    let reader = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(file));
    Ok((unpacked(reader, packing).map_err(|e| failed(path, e))?, packing))
}

fn packed_otherwise(path: &Path, form: &str, command: &str) -> Error {
    let error = Error::failure(format!("the file is compressed with {form}, which mt does not read")).at(path);
    error.help(format!("unpack it with `{command}`; gzip, xz and zstd files need not be unpacked"))
}

/// Refuses a stream that is not readable text, judged by its first line: bzip2 or zip, by their whole signature, or UTF-16.
///
/// # Errors
/// It is one of these; `path` is its name in the error.
pub fn refuse_foreign(first_line: &[u8], path: &Path) -> Result<()> {
    match first_line {
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => {
            Err(packed_otherwise(path, "bzip2", "bunzip2"))
        }
        [b'P', b'K', 3, 4, ..] => Err(packed_otherwise(path, "zip", "unzip")),
        // UTF-16 has zero bytes; without any, the text is only damaged.
        [0xFF, 0xFE, rest @ ..] | [0xFE, 0xFF, rest @ ..] if rest.contains(&0) => {
            Err(not_utf8(path, Before::default(), 0, first_line))
        }
        _ => Ok(()),
    }
}

/// Reads the beginning of a stream: what arrives at once, or as much as tells whether it is compressed.
pub fn read_head(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut head = vec![0; 1 << 16];
    let mut length = 0;
    let is_open = |head: &[u8]| Packing::BEGINNINGS.iter().any(|(all, _)| all.len() > head.len() && agree(all, head));
    while is_open(&head[..length]) {
        match stream.read(&mut head[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    head.truncate(length);
    Ok(head)
}

/// Whether a stream that begins with `head` is compressed.
pub fn is_packed(head: &[u8]) -> bool {
    Packing::of_content(head) != Packing::None
}

/// What a stream holds, unpacked where it is compressed.
pub fn unpack(mut stream: impl Read + Send + 'static) -> std::io::Result<Box<dyn BufRead + Send>> {
    let head = read_head(&mut stream)?;
    let packing = Packing::of_content(&head);
    unpacked(BufReader::with_capacity(1 << 16, Cursor::new(head).chain(stream)), packing)
}

/// What `reader` holds; of a compressed file all members, as `cat a.gz b.gz` makes them.
fn unpacked(reader: impl BufRead + Send + 'static, packing: Packing) -> std::io::Result<Box<dyn BufRead + Send>> {
    Ok(match packing {
        Packing::None => Box::new(reader),
        Packing::Gzip => Box::new(BufReader::new(Gunzip(Some(GzDecoder::new(reader))))),
        Packing::Xz => Box::new(BufReader::new(liblzma::bufread::XzDecoder::new_multi_decoder(reader))),
        Packing::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?;
            // The largest window that `zstd --long` can ask for.
            decoder.window_log_max(31)?;
            Box::new(BufReader::new(decoder))
        }
    })
}

/// The members of a gzip file, one after the other. As for gzip itself, zeros after the last one are padding, which tapes and
/// programs that write whole blocks leave.
struct Gunzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let rest = self.0.take().map(GzDecoder::into_inner);
            self.0 = rest.map(next_member).transpose()?.flatten().map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// The reader at its next member, if there is one.
fn next_member<R: BufRead>(mut reader: R) -> std::io::Result<Option<R>> {
    let mut is_padded = false;
    loop {
        let bytes = reader.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match (bytes.is_empty(), zeros < bytes.len()) {
            (true, _) => return Ok(None),
            (_, true) if is_padded || zeros > 0 => {
                return Err(std::io::Error::new(
                    ErrorKind::InvalidData,
                    "there are data after the padding of a gzip file",
                ));
            }
            (_, true) => return Ok(Some(reader)),
            _ => {}
        }
        is_padded = true;
        reader.consume(zeros);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::write;
    use super::*;
    use crate::data::text::lines::read_lines;

    #[test]
    fn reads_every_packing_with_several_members_under_any_name() {
        let gzip = |text: &str| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let xz = |text: &str| {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        let skippable = b"\x50\x2A\x4D\x18\x04\0\0\0abcd".to_vec();
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("t.txt", "über\ngo".as_bytes().to_vec()),
            ("t.gz", [gzip("über\n"), gzip("go")].concat()),
            ("t.xz", [xz("über\n"), xz("go")].concat()),
            ("t.zst", [zstd("über\n"), zstd("go")].concat()),
            ("skippable.zst", [skippable.clone(), zstd("über\n"), zstd("go")].concat()),
            ("skippable", [b"\x5F\x2A\x4D\x18\0\0\0\0".to_vec(), skippable, zstd("über\ngo")].concat()),
            ("P.txt", "P*M\n_*M".as_bytes().to_vec()),
            ("unnamed", gzip("über\ngo")),
            // Padded as on tapes; more than a buffer, too.
            ("padded.gz", [gzip("über\n"), gzip("go"), vec![0; 10_240]].concat()),
            ("padded_more.gz", [gzip("über\ngo"), vec![0; 200_000]].concat()),
        ] {
            let file = read_lines(write(&directory, name, &bytes)).unwrap();
            let expected = if name == "P.txt" { ["P*M", "_*M"] } else { ["über", "go"] };
            assert_eq!(file.iter().collect::<Vec<_>>(), expected, "{name}");
        }
        let foreign = write(&directory, "t.bz2", b"BZh91AY&SY and more");
        let error = read_lines(&foreign).unwrap_err().to_string();
        assert!(error.contains("t.bz2") && error.contains("bzip2") && error.contains("bunzip2"), "{error}");
        let cut = write(&directory, "cut.gz", &gzip("some text that is long enough")[..20]);
        let error = read_lines(&cut).unwrap_err().to_string();
        assert!(error.contains("cut.gz") && error.contains("gzip -t"), "{error}");
        // Text after padding would be lost.
        for after in [gzip("lost"), b"lost".to_vec()] {
            for padding in [1, 100_000] {
                let file = write(&directory, "after.gz", &[gzip("text\n"), vec![0; padding], after.clone()].concat());
                let error = read_lines(&file).unwrap_err().to_string();
                assert!(error.contains("after.gz") && error.contains("after the padding"), "{error}");
            }
            let file = write(&directory, "garbage.gz", &[gzip("text\n"), b"garbage, no member".to_vec()].concat());
            assert!(read_lines(&file).unwrap_err().to_string().contains("gzip -t"));
        }
    }

    #[test]
    fn a_stream_that_is_no_text_is_told_by_its_whole_beginning() {
        let stdin = Path::new("stdin");
        for (line, words) in [
            (&b"BZh91AY&SY and more\n"[..], "bunzip2"),
            (b"PK\x03\x04\n", "unzip"),
            (
                b"\xFF\xFEa\0\n",
                "stdin:1:1\n  help: byte 0xFF at offset 0; convert the text, for example with `iconv -f UTF-16",
            ),
            (b"\xFE\xFF\0a\0\n", "iconv -f UTF-16"),
        ] {
            let error = refuse_foreign(line, stdin).unwrap_err().to_string();
            assert!(error.contains("stdin") && error.contains(words), "{error}");
        }
        for text in
            [&b"BZh91AY is no block\n"[..], b"BZh9\n", b"BZh01AY&SY\n", b"PK\n", b"\xFF\xFEdamaged\n", b"\n", b""]
        {
            refuse_foreign(text, stdin).unwrap();
        }
    }

    #[test]
    fn a_stream_may_arrive_in_pieces() {
        /// Gives a byte at a time.
        struct Slow<'b>(&'b [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(&mut buffer[..1])
            }
        }
        let zstd = zstd::encode_all(&b"text"[..], 1).unwrap();
        for (stream, length, packed) in [
            (&b"\x1F\x8B\x08\0"[..], 2, true),
            (b"\xFD7zXZ\0\0", 6, true),
            (&zstd, 4, true),
            (b"\x50\x2A\x4D\x18\x01", 4, true),
            (b"\x5F\x2A\x4D\x18\x01", 4, true),
            // Text, a byte that is no UTF-8, the end of the stream.
            (b"(a) text", 2, false),
            (b"text", 1, false),
            (b"P*Ma", 4, false),
            (b"Q\n", 2, false),
            (b"\xFD7zip", 4, false),
            (b"\x1F", 1, false),
            (b"", 0, false),
        ] {
            let head = read_head(&mut Slow(stream)).unwrap();
            assert_eq!((&head[..], is_packed(&head)), (&stream[..length], packed));
            assert_eq!(read_head(&mut &stream[..]).unwrap(), stream);
        }
        let skipped = [&b"\x50\x2A\x4D\x18\x01\0\0\0a"[..], &zstd].concat();
        for packed in [zstd, skipped] {
            let mut text = String::new();
            unpack(Slow(packed.leak())).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
    }

    #[test]
    fn a_name_that_promises_gzip_must_hold_it() {
        let directory = tempfile::tempdir().unwrap();
        for content in [&b"<html>"[..], b""] {
            let error = read_lines(write(&directory, "page.gz", content)).unwrap_err().to_string();
            assert!(error.starts_with("the file does not hold gzip data, as its name says\n  --> "), "{error}");
        }
    }
}
