//! The compression of text: none, gzip, xz or Zstandard, recognised by the first bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;

use super::lines::{Before, not_utf8};
pub use super::members::damage_help;
use super::members::{Member, Members};
use crate::error::{Error, Result};
use crate::signature::Signature;

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
        // An error of the system is unrelated to the compression.
        let is_of_data = self != Self::None && error.raw_os_error().is_none();
        let help = is_of_data.then(|| damage_help(&error, &format!("`{} -t`", self.name())));
        let error = failed(path, error);
        match help {
            Some(help) => error.help(help),
            None => error,
        }
    }

    /// Adds to an error that it lies in the unpacked data.
    pub(super) fn inside(self, error: Error) -> Error {
        match self {
            Self::None => error,
            _ => error.context(format_args!("in the {} data", self.name())),
        }
    }

    fn from_extension(path: &Path) -> Self {
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

    /// Whether data of this kind may begin with these bytes; possibly too few to decide.
    pub(super) fn may_begin(self, head: &[u8]) -> bool {
        Self::BEGINNINGS.iter().any(|(all, packing)| *packing == self && agree(all, head))
    }

    /// The compression that the first bytes show.
    fn from_content(head: &[u8]) -> Self {
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

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io("read the text", path, error)
}

/// Opens the file at `path` as a stream of bytes, unpacking it where it is compressed.
pub fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    Ok(open_packed(path)?.0)
}

/// Opens a file of lines that are sentences.
///
/// # Errors
/// Also where it is a document of another program, compressed or not: a page in HTML, XML, JSON, text in UTF-16 or
/// UTF-32.
pub(super) fn open_sentences(path: &Path) -> Result<(Box<dyn BufRead + Send>, Packing)> {
    let (mut reader, packing) = open_packed(path)?;
    let head = reader.fill_buf().map_err(|error| packing.failed(path, error))?;
    refuse_documents(head, path).map_err(|error| packing.inside(error))?;
    Ok((reader, packing))
}

pub(super) fn open_packed(path: &Path) -> Result<(Box<dyn BufRead + Send>, Packing)> {
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    // The head is kept, not sought back to: the file may be a pipe.
    let head = read_head(&mut file).map_err(|e| failed(path, e))?;
    if let Some(signature) = Signature::binary(&head) {
        return Err(Error::from_signature(&signature, path));
    }
    let named = Packing::from_extension(path);
    let packing = Packing::from_content(&head);
    if packing == Packing::None && named != Packing::None {
        if let Some(page) = Signature::placeholder(&head) {
            return Err(Error::from_signature(&page, path));
        }
        return Err(Error::failure(format!("the file does not hold {} data, as its name says", named.name()))
            .at(path)
            .help(
                "a download may have been cut short, or unpacked on its way: look at the file, and rename it if it is \
                 text",
            ));
    }
    let reader = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(file));
    let mut reader = unpacked(reader, packing).map_err(|e| failed(path, e))?;
    if packing != Packing::None {
        let head = reader.fill_buf().map_err(|error| packing.failed(path, error))?;
        if let Some(signature) = Signature::binary(head) {
            return Err(packing.inside(Error::from_signature(&signature, path)));
        }
    }
    Ok((reader, packing))
}

/// Refuses a stream that is not readable text, judged by its first line: a binary format, a pointer to a file that was
/// not fetched, or text of two or four bytes a character.
///
/// # Errors
/// The text is of such a format; `path` is its name in the error.
pub fn refuse_foreign(first_line: &[u8], path: &Path) -> Result<()> {
    if let Some(signature) = Signature::binary(first_line) {
        return Err(Error::from_signature(&signature, path));
    }
    match first_line {
        // UTF-16 has zero bytes; without any, the text is only damaged.
        [0xFF, 0xFE, rest @ ..] | [0xFE, 0xFF, rest @ ..] if rest.contains(&0) => {
            Err(not_utf8(path, Before::default(), 0, first_line))
        }
        [0, 0, 0xFE, 0xFF, ..] => Err(not_utf8(path, Before::default(), 2, first_line)),
        _ => Signature::wide_text(first_line).map_or(Ok(()), |it| Err(Error::from_signature(&it, path))),
    }
}

/// Refuses text that is not of sentences, judged by how it begins. As [`refuse_foreign`].
///
/// # Errors
/// It is a document of another program, or what [`refuse_foreign`] refuses.
pub fn refuse_documents(head: &[u8], path: &Path) -> Result<()> {
    refuse_foreign(head, path)?;
    Signature::structured_text(head).map_or(Ok(()), |signature| Err(Error::from_signature(&signature, path)))
}

/// What a text is if it is a document in HTML or XML, whose lines are hardly sentences.
pub fn markup(head: &[u8]) -> Option<String> {
    Signature::page_or_markup(head).map(|signature| signature.to_string())
}

/// Whether the first line of a text is an object in JSON that is not empty.
pub fn begins_with_object(head: &[u8]) -> bool {
    Signature::is_object(head)
}

/// Reads the beginning of a stream: the bytes that arrive at once, or enough of them to detect compression.
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
    Packing::from_content(head) != Packing::None
}

/// What a stream holds, unpacked where it is compressed.
pub fn unpack(stream: impl Read + Send + 'static) -> std::io::Result<Box<dyn BufRead + Send>> {
    Ok(open_stream(stream)?.0)
}

/// As [`unpack`], with how it is compressed.
pub(super) fn open_stream(
    mut stream: impl Read + Send + 'static,
) -> std::io::Result<(Box<dyn BufRead + Send>, Packing)> {
    let head = read_head(&mut stream)?;
    let packing = Packing::from_content(&head);
    let reader = unpacked(BufReader::with_capacity(1 << 16, Cursor::new(head).chain(stream)), packing)?;
    Ok((reader, packing))
}

/// What `reader` holds; of a compressed file all members, as `cat a.gz b.gz` makes them.
fn unpacked(reader: impl BufRead + Send + 'static, packing: Packing) -> std::io::Result<Box<dyn BufRead + Send>> {
    Ok(match Member::open(reader, packing)? {
        Member::None(reader) => Box::new(reader),
        member => Box::new(BufReader::new(Members { packing, member: Some(member) })),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::write;
    use super::*;
    use crate::data::text::file::TextFile;
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
            // Padded as on tapes, also with more than a buffer.
            ("padded.gz", [gzip("über\n"), gzip("go"), vec![0; 10_240]].concat()),
            ("padded_more.gz", [gzip("über\ngo"), vec![0; 200_000]].concat()),
            ("padded.xz", [xz("über\n"), vec![0; 8], xz("go"), vec![0; 4]].concat()),
            ("padded.zst", [zstd("über\ngo"), vec![0; 100_000]].concat()),
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
                assert!(error.contains("after.gz") && error.contains("after the end of the gzip data"), "{error}");
            }
        }
        // Programs that test a file accept it, or only report that they do not know it.
        for (name, packed, command) in [
            ("garbage.gz", gzip("text\n"), "`gzip -dc FILE"),
            ("garbage.xz", xz("text\n"), "`xz -dc --single-stream FILE"),
            ("garbage.zst", zstd("text\n"), "`zstd -dc FILE"),
        ] {
            let file = write(&directory, name, &[&packed, &b"garbage, no member"[..]].concat());
            let error = read_lines(&file).unwrap_err().to_string();
            assert!(error.contains(command) && !error.contains(" -t`"), "{error}");
            // Damage is something else.
            let file = write(&directory, name, &packed[..packed.len() - 2]);
            let error = read_lines(&file).unwrap_err().to_string();
            assert!(error.contains(" -t`") && !error.contains(" -dc"), "{error}");
        }
    }

    #[test]
    fn a_stream_that_is_no_text_is_recognised_by_its_whole_beginning() {
        let stdin = Path::new("stdin");
        for (line, words) in [
            (&b"BZh91AY&SY and more\n"[..], "bunzip2"),
            (b"PK\x03\x04\n", "unzip"),
            (
                b"\xFF\xFEa\0\n",
                "stdin:1:1\n  help: byte 0xFF at offset 0; convert the text, for example with `iconv -f UTF-16",
            ),
            (b"\xFE\xFF\0a\0\n", "iconv -f UTF-16"),
            (b"\xFF\xFE\0\0a\0\0\0", "iconv -f UTF-32 "),
            (b"\0\0\xFE\xFF\0\0\0a", "iconv -f UTF-32 "),
            // Without a mark, UTF-8 or not.
            (b"a\0 \0d\0o\0g\0\xFC\0\n\0", "iconv -f UTF-16LE"),
            (b"\0a\0 \0d\0o\0g\0\xFC\0\n", "iconv -f UTF-16BE"),
            (b"a\0\0\0 \0\0\0d\0\0\0\n\0\0\0", "iconv -f UTF-32LE"),
            (b"\0\0\0a\0\0\0 \0\0\0d\0\0\0\n", "iconv -f UTF-32BE"),
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
        for content in [&b"text"[..], b""] {
            let error = read_lines(write(&directory, "page.gz", content)).unwrap_err().to_string();
            assert!(error.starts_with("the file does not hold gzip data, as its name says\n  --> "), "{error}");
        }
    }

    /// Whatever reads text, whatever the text is packed in.
    #[test]
    fn files_that_are_no_text_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n";
        let mut tar = vec![b'a'; 2048];
        tar[257..262].copy_from_slice(b"ustar");
        for (content, words) in [
            (&pointer[..], "git lfs pull"),
            (b"<!DOCTYPE html>\n<html>\n", "a page in HTML"),
            (b"<?xml version=\"1.0\"?>\n<tmx version=\"1.4\">\n", "a translation memory (TMX)"),
            (b"{\"en\": \"a\", \"de\": \"b\"}\n", "holds JSON"),
            (b"%PDF-1.7\nplain", "a PDF document"),
            (b"\x04\x22\x4D\x18\x64\x40", "`lz4 -d`"),
            (&tar, "`tar -xf`"),
            (b"a\0b\0c\0d\0e\0f\0\n\0", "iconv -f UTF-16LE"),
        ] {
            for (name, bytes) in
                [("plain.en", content.to_vec()), ("packed.en.zst", zstd::encode_all(content, 1).unwrap())]
            {
                let path = write(&directory, name, &bytes);
                for error in [
                    read_lines(&path).unwrap_err(),
                    TextFile::scan(&path).unwrap_err(),
                    TextFile::scan_column(&path, 1).unwrap_err(),
                    super::super::raw::windows_of_file(&path, |_| ()).unwrap_err(),
                ] {
                    let error = error.to_string();
                    assert!(error.contains(words) && error.contains(name), "{error}");
                }
            }
            // As fetched instead of the named file.
            if words.contains("git") || words.contains("HTML") {
                let error = open(&write(&directory, "named.en.gz", content)).err().unwrap().to_string();
                assert!(error.contains(words), "{error}");
            }
        }
    }
}
