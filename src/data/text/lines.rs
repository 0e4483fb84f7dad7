//! Text files as lines, however they are compressed (`packing`).
//!
//! A line ends at `\n` and nowhere else. Parallel corpora are aligned by counting `\n`, so the characters that Unicode
//! also calls line breaks (U+2028, U+0085, form feed, a lone `\r`) must stay inside their line.

use std::io::{self, BufRead, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::super::compact::CompactVec;
use super::file::Odd;
use super::packing::{Packing, open, open_sentences};
use super::{encoding, returns};
use crate::error::{Error, Result};
use crate::limits;
use crate::signature::{Signature, wide_encoding};

/// A line with more characters is not a sentence.
const LONG: usize = 10_000;

/// Whether a line is too long for a sentence.
pub fn is_long(line: &str) -> bool {
    line.len() > LONG && line.chars().count() > LONG
}

/// What to do about a line that is longer than can be read.
pub const TOO_LONG_HELP: &str = "a sentence is expected on each line: is this a file of lines? If carriage returns \
                                 should end them: `tr '\\r' '\\n' < FILE > NEW`";

/// Appends the next line with its end; 0 bytes at the end of the text. Fails with [`ErrorKind::FileTooLarge`] where a
/// line has more than 64 MiB.
pub fn read_line(reader: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>) -> io::Result<usize> {
    let read = reader.take(limits::LINE_BYTES).read_until(b'\n', line)?;
    if read as u64 == limits::LINE_BYTES && !line.ends_with(b"\n") {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "the line is longer than 64 MiB"));
    }
    Ok(read)
}

/// The error for a line, numbered from 1, that [`read_line`] has failed to read.
pub(super) fn not_read(path: &Path, packing: Packing, line: usize, error: io::Error) -> Error {
    if error.kind() != ErrorKind::FileTooLarge {
        return packing.failed(path, error);
    }
    packing.inside(Error::failure(error.to_string()).at_line(path, line, 0).help(TOO_LONG_HELP))
}

/// U+FEFF in UTF-8.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The lines of a text file in one allocation, four bytes a line beside the text.
#[derive(Clone, Debug)]
pub struct LineFile {
    path: PathBuf,
    text: String,
    /// Where each line starts, and the end of the text.
    starts: CompactVec,
    /// Lines that ended in `\r\n`; the `\r` is not part of the line.
    pub carriage_returns: usize,
    /// Whether the file began with a byte order mark; it is not part of the first line.
    pub byte_order_mark: bool,
}

/// Reads a text to its end; `path` is its name in errors. With `most`, its lines take no more bytes in memory.
///
/// Fails where it cannot be read or unpacked, and where it or a line is too long: a small compressed file may stand for
/// any amount.
pub(super) fn read_all(
    reader: &mut (impl BufRead + ?Sized),
    packing: Packing,
    path: &Path,
    most: u64,
) -> Result<Vec<u8>> {
    let (mut bytes, mut lines) = (Vec::new(), 0);
    loop {
        match read_line(reader, &mut bytes) {
            Ok(0) => return Ok(bytes),
            Ok(_) => lines += 1,
            Err(error) => return Err(not_read(path, packing, lines + 1, error)),
        }
        if bytes.len() as u64 + limits::BESIDE_LINE * lines as u64 > most {
            let error = Error::failure("the text is longer than a test set may be, which is in memory as a whole");
            let error = error.at_line(path, lines, 0).help("name a file of at most 1 GB, or split it");
            return Err(packing.inside(error));
        }
    }
}

/// Reads the file at `path`, unpacking it where it is compressed.
///
/// Fails where the file cannot be read or unpacked, where a line is too long, and where it is not UTF-8 (with line and
/// column).
pub fn read_lines(path: impl AsRef<Path>) -> Result<LineFile> {
    let path = path.as_ref();
    let (mut reader, packing) = open_sentences(path)?;
    let bytes = read_all(&mut reader, packing, path, u64::MAX)?;
    LineFile::from_bytes(path, bytes).map_err(|error| packing.inside(error))
}

/// Number of lines of a file, if it is a regular one that can be read.
pub fn count(path: &Path) -> Option<usize> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut reader = open(path).ok()?;
    let (mut newlines, mut ends_in_one) = (0, true);
    loop {
        let bytes = reader.fill_buf().ok()?;
        let Some(last) = bytes.last() else { return Some(newlines + usize::from(!ends_in_one)) };
        ends_in_one = *last == b'\n';
        newlines += bytes.iter().filter(|byte| **byte == b'\n').count();
        let read = bytes.len();
        reader.consume(read);
    }
}

impl LineFile {
    /// The lines of `bytes`, as if read from `path` (unpacked already). Fails where they are not UTF-8.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        let path = path.as_ref();
        let text = String::from_utf8(bytes)
            .map_err(|error| not_utf8(path, Before::default(), error.utf8_error().valid_up_to(), error.as_bytes()))?;
        if !text.contains('\n') {
            returns::refuse_in_place_of_newlines(text.as_bytes(), path)?;
        }
        let starts = line_starts(text.as_bytes());
        let byte_order_mark = starts.get(0) > 0;
        let ended = |line: &&str| line.trim_end_matches('\n').ends_with('\r');
        let carriage_returns = text[starts.get(0)..].split_inclusive('\n').filter(ended).count();
        Ok(Self { path: path.to_path_buf(), text, starts, carriage_returns, byte_order_mark })
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of lines; a last line without `\n` counts.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Line `index` (from 0) without its end. Panics where `index` is not less than [`Self::len`].
    #[inline]
    pub fn get(&self, index: usize) -> &str {
        let line = &self.text[self.starts.get(index)..self.starts.get(index + 1)];
        let line = line.strip_suffix('\n').unwrap_or(line);
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// Lines with a carriage return that is not at the end.
    pub fn returns(&self) -> Option<Odd> {
        let mut odd = None;
        if self.text.contains('\r') {
            let has_any = (1..).zip(self.iter()).filter(|(_, line)| line.contains('\r'));
            has_any.for_each(|(number, _)| Odd::add(&mut odd, number));
        }
        odd
    }

    /// The lines in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// A line without its end, `\n` or `\r\n`, and, the first of a file, without a byte order mark.
pub fn bare(line: &[u8], is_first: bool) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line }
}

/// Whether a row of a table with tabs is a blank line, which has no columns.
pub(super) fn is_blank_row(row: &[u8]) -> bool {
    !row.contains(&b'\t')
        && std::str::from_utf8(row).is_ok_and(|row| row.trim_start_matches('\u{FEFF}').trim().is_empty())
}

/// Where each line starts, after a byte order mark, and the end.
fn line_starts(bytes: &[u8]) -> CompactVec {
    let mut start = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let mut starts = CompactVec::new();
    starts.push(start);
    for line in bytes[start..].split_inclusive(|byte| *byte == b'\n') {
        start += line.len();
        starts.push(start);
    }
    starts.shrink();
    starts
}

/// How much of a file comes before the part to check, which starts at a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    pub(super) lines: usize,
    pub(super) bytes: u64,
}

/// The text is not UTF-8 at `offset` of `bytes`.
pub(super) fn not_utf8(path: &Path, before: Before, offset: usize, bytes: &[u8]) -> Error {
    let valid = &bytes[..offset];
    let line_start = valid.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.lines + 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
    // Characters, as editors count: bytes that do not continue one.
    let column = 1 + valid[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
    let byte = bytes.get(offset).copied().unwrap_or_default();
    let first = before.bytes + line_start as u64;
    let unicode = match (before.bytes, bytes) {
        (0, [0xFF, 0xFE, 0, 0, ..] | [0, 0, 0xFE, 0xFF, ..]) => Some("UTF-32"),
        (0, [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..]) => Some("UTF-16"),
        _ => wide_encoding(&bytes[line_start..], first),
    };
    let rest = &bytes[offset..];
    let is_cut = rest.len() > 1 && std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
    // What its name promises shows at once.
    let packed = if before.lines == 0 && line == 1 { Signature::packed_name(path) } else { None };
    let advice = match (packed, unicode) {
        (Some(packed), _) => packed.help().to_owned(),
        (_, Some(unicode)) => {
            format!("convert the text, for example with `iconv -f {unicode} -t UTF-8`, or fix the line")
        }
        _ if is_cut => "the text ends in the middle of a character: it was cut short, so get it anew, or leave out \
                        what is left of the character, with `iconv -c -f UTF-8 -t UTF-8`"
            .to_owned(),
        _ if bytes.len() < SAMPLE => encoding::advice(&surroundings(path, before).unwrap_or_else(|| bytes.to_vec())),
        _ => encoding::advice(encoding::around(bytes, offset)),
    };
    let offset = before.bytes + offset as u64;
    Error::failure("the text is not UTF-8")
        .at_line(path, line, column)
        .help(format!("byte 0x{byte:02X} at offset {offset}; {advice}"))
}

/// Fewer bytes give little evidence of an encoding.
const SAMPLE: usize = 1 << 16;

/// What surrounds a line of a file, if it can be read again.
fn surroundings(path: &Path, before: Before) -> Option<Vec<u8>> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut reader = open(path).ok()?;
    io::copy(&mut reader.by_ref().take(before.bytes.saturating_sub(SAMPLE as u64)), &mut io::sink()).ok()?;
    let mut sample = Vec::new();
    reader.take(2 * SAMPLE as u64).read_to_end(&mut sample).ok()?;
    // It may be another file by that name.
    std::str::from_utf8(&sample).is_err().then_some(sample)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::test_set::{self, TestFile};
    use super::super::write;
    use super::*;

    fn lines(text: &str) -> LineFile {
        LineFile::from_bytes("t.txt", text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn splits_at_newlines_only() {
        for (text, expected) in [
            ("", vec![]),
            ("\n", vec![""]),
            ("a", vec!["a"]),
            ("a\n", vec!["a"]),
            ("a\n\nb", vec!["a", "", "b"]),
            ("a\u{2028}b\u{85}c\u{0C}d\u{0B}e\u{2029}f\n", vec!["a\u{2028}b\u{85}c\u{0C}d\u{0B}e\u{2029}f"]),
            ("a\rb\n", vec!["a\rb"]),
            ("\u{FEFF}a\n\u{FEFF}b\n", vec!["a", "\u{FEFF}b"]),
            ("\u{FEFF}", vec![]),
        ] {
            let file = lines(text);
            assert_eq!(file.iter().collect::<Vec<_>>(), expected, "{text:?}");
            assert_eq!(file.len(), expected.len());
            assert_eq!(file.is_empty(), expected.is_empty());
            assert_eq!((file.carriage_returns, file.byte_order_mark), (0, text.starts_with('\u{FEFF}')));
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut line = Vec::new();
        let error = read_line(&mut io::BufReader::new(io::repeat(b'a')), &mut line).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(line.len() as u64, limits::LINE_BYTES);
    }

    /// A small file that stands for a text of any length, in one line or in many.
    #[test]
    fn a_text_without_end_is_refused_where_it_is_too_long() {
        let directory = tempfile::tempdir().unwrap();
        let gzip = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let long = [&b"a\n"[..], &vec![b'a'; limits::LINE_BYTES as usize + 1]].concat();
        let path = write(&directory, "long.gz", &gzip(&long));
        for error in [read_lines(&path).unwrap_err(), test_set::read(&path).unwrap_err()] {
            let error = error.to_string();
            assert!(error.starts_with("in the gzip data: the line is longer than 64 MiB"), "{error}");
            assert!(error.contains("long.gz:2\n"), "{error}");
        }
        let mut lines = io::BufReader::new(io::repeat(b'\n'));
        let error = read_all(&mut lines, Packing::None, Path::new("t"), 10_000).unwrap_err().to_string();
        assert!(error.contains("longer than a test set") && error.contains("t:154\n"), "{error}");
        let path = write(&directory, "few.gz", &gzip(b"a\nb\n"));
        let TestFile::Lines(lines) = test_set::read(&path).unwrap() else { panic!("not lines") };
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn counts_and_drops_one_carriage_return_a_line() {
        let file = lines("a\r\nb\n\r\nc\r\r\nd\r");
        assert_eq!(file.iter().collect::<Vec<_>>(), ["a", "b", "", "c\r", "d"]);
        assert_eq!(file.carriage_returns, 4);
        assert_eq!(file.returns(), Some(Odd { lines: 1, first: 4 }));
    }

    #[test]
    fn invalid_utf8_is_located() {
        let directory = tempfile::tempdir().unwrap();
        let path = write(&directory, "latin1.txt", b"first\nl\xC3\xBCtt caf\xE9 au lait\n");
        let error = read_lines(&path).unwrap_err().to_string();
        let location = format!("the text is not UTF-8\n  --> {}:2:9\n", path.display());
        assert!(error.starts_with(&location), "{error}");
        assert!(error.contains("byte 0xE9 at offset 15;") && error.contains("iconv -c -f UTF-8 -t UTF-8"), "{error}");
        let path = write(&directory, "latin1.txt", b"first\nl\xFCtt caf\xE9 au lait\n");
        let error = read_lines(&path).unwrap_err().to_string();
        assert!(error.contains("byte 0xFC at offset 7;") && error.contains("iconv -f LATIN1"), "{error}");
        let path = write(&directory, "cp1252.txt", b"first\nl\xFCtt\nsome \x93caf\xE9\x94 au lait\n");
        let error = read_lines(&path).unwrap_err().to_string();
        assert!(error.contains("byte 0xFC at offset 7;") && error.contains("iconv -f CP1252"), "{error}");
        let error = read_lines(write(&directory, "text.br", b"\x0B\x02\x80\xE9\n")).unwrap_err().to_string();
        assert!(error.contains("`brotli -d`"), "{error}");
        let error = LineFile::from_bytes("t", b"\xFF\xFE\0\0a\0\0\0".to_vec()).unwrap_err().to_string();
        assert!(error.contains("iconv -f UTF-32"), "{error}");
        let error = LineFile::from_bytes("t", b"\xFF\xFEa\0".to_vec()).unwrap_err().to_string();
        assert!(error.contains("t:1:1\n") && error.contains("iconv -f UTF-16"), "{error}");
        for (encoding, bytes) in [("UTF-16LE", u16::to_le_bytes as fn(u16) -> [u8; 2]), ("UTF-16BE", u16::to_be_bytes)]
        {
            let text: Vec<u8> = "first line\nwithout a mark, but süß\n".encode_utf16().flat_map(bytes).collect();
            let error = LineFile::from_bytes("t", text).unwrap_err().to_string();
            assert!(error.contains(&format!("iconv -f {encoding} -t")), "{error}");
        }
        let error = LineFile::from_bytes("t", b"an old\rMac\r".to_vec()).unwrap_err().to_string();
        assert!(error.contains("carriage returns") && error.contains("tr '\\r' '\\n'"), "{error}");
        let error = LineFile::from_bytes("t", b"a zero \0, and caf\xE9\n".to_vec()).unwrap_err().to_string();
        assert!(error.contains("iconv -f LATIN1"), "{error}");
        let error = LineFile::from_bytes("t", b"cut \xE2\x80".to_vec()).unwrap_err().to_string();
        assert!(error.contains("t:1:5\n") && error.contains("offset 4;") && error.contains("cut short"), "{error}");
    }

    #[test]
    fn a_missing_file_or_a_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = read_lines(directory.path().join("absent.de")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read the text: ") && error.contains("absent.de"), "{error}");
        assert!(read_lines(directory.path()).is_err());
    }
}
