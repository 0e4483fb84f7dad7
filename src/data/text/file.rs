//! A text file read from beginning to end, as often as wanted, in little memory.
//!
//! [`TextFile::scan`] reads it once, finds its errors, and gathers facts for later stages: the number of lines, and the
//! checksum that identifies its text.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::lines::{self, BYTE_ORDER_MARK, Before};
use super::packing::{self, Packing};
use super::returns::{self, JoinedRows};
use crate::error::{Error, Result};

/// Bytes checked at a time.
const CHUNK: usize = 1 << 20;

/// A text file, compressed or not, that has been read once.
#[derive(Clone, Debug)]
pub struct TextFile {
    path: PathBuf,
    /// The tab-separated column that is the text, from 1; `None` if whole lines are.
    column: Option<usize>,
    /// What it holds, unpacked, where it can be read only once: a pipe.
    kept: Option<Arc<[u8]>>,
    /// Its size and the time of its last change when it was read; `None` for text in memory.
    version: Option<(u64, SystemTime)>,
    /// Number of lines; a last line without `\n` counts.
    pub lines: usize,
    /// Bytes of the text, unpacked.
    pub bytes: u64,
    /// SHA-256 of the text, unpacked.
    pub digest: [u8; 32],
    /// Lines that ended in `\r\n`; the `\r` is not part of the line.
    pub carriage_returns: usize,
    /// Lines with a carriage return that is not at the end.
    pub returns: Option<Odd>,
    /// Lines whose number of columns differs from the first line's.
    pub uneven: Option<Odd>,
}

/// Suspicious lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odd {
    /// How many there are.
    pub lines: usize,
    /// The first, from 1.
    pub first: usize,
}

impl Odd {
    /// Adds a line. Lines come in order.
    pub(super) fn add(of: &mut Option<Self>, line: usize) {
        of.get_or_insert(Self { lines: 0, first: line }).lines += 1;
    }
}

impl TextFile {
    /// Reads the file at `path` to its end.
    ///
    /// Fails where it cannot be read or unpacked, where it is not UTF-8 (with line and column), and where it is empty.
    pub fn scan(path: &Path) -> Result<Self> {
        Self::scan_text(path, None, None)
    }

    /// Reads a file of tab-separated columns to its end; column `column` (from 1) is the text.
    ///
    /// Fails as [`TextFile::scan`] does, where a line has fewer columns, and where carriage returns separate rows.
    pub fn scan_column(path: &Path, column: usize) -> Result<Self> {
        Self::scan_text(path, Some(column), None)
    }

    /// Another column of the same file. A pipe is not read again.
    ///
    /// Fails as [`TextFile::scan_column`] does.
    pub fn of_column(&self, column: usize) -> Result<Self> {
        if self.column == Some(column) {
            Ok(self.clone())
        } else {
            Self::scan_text(&self.path, Some(column), self.kept.clone())
        }
    }

    fn scan_text(path: &Path, column: Option<usize>, kept: Option<Arc<[u8]>>) -> Result<Self> {
        let mut file = Self {
            path: path.to_path_buf(),
            column,
            kept,
            version: version(path),
            lines: 0,
            bytes: 0,
            digest: [0; 32],
            carriage_returns: 0,
            returns: None,
            uneven: None,
        };
        if file.kept.is_none() && !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            let (mut reader, packing) = packing::open_sentences(path)?;
            file.kept = Some(lines::read_all(&mut reader, packing, path, u64::MAX)?.into());
        }
        let mut reader = file.reader()?;
        let mut hash = Sha256::new();
        // A byte order mark alone is no line.
        let mut nothing = true;
        let mut chunk = Vec::with_capacity(CHUNK + (CHUNK >> 4));
        loop {
            chunk.clear();
            let mut read = 0;
            while chunk.len() < CHUNK {
                let start = chunk.len();
                if !reader.append_line(&mut chunk)? {
                    break;
                }
                read += 1;
                if returns::has_any(&chunk[start..]) {
                    Odd::add(&mut file.returns, file.lines + read);
                }
                file.carriage_returns += usize::from(chunk.ends_with(b"\r\n") || chunk.ends_with(b"\r"));
            }
            if read == 0 {
                break;
            }
            reader.check(&chunk, Before { lines: file.lines, bytes: file.bytes })?;
            hash.update(&chunk);
            nothing &= chunk == BYTE_ORDER_MARK;
            file.lines += read;
            file.bytes += chunk.len() as u64;
        }
        if nothing {
            return Err(Error::failure("the file is empty").at(path).help("a corpus needs at least one line per side"));
        }
        file.digest = hash.finalize().into();
        if let Some(columns) = reader.columns {
            columns.rows.refuse(path).map_err(|error| reader.packing.inside(error))?;
            file.uneven = columns.uneven;
        }
        Ok(file)
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still the one that was read, as far as the system tells.
    pub fn is_unchanged(&self) -> bool {
        self.kept.is_some() || version(&self.path) == self.version
    }

    /// The lines from the first on.
    pub fn reader(&self) -> Result<LineReader> {
        let (reader, packing): (Box<dyn BufRead + Send>, _) = match &self.kept {
            Some(bytes) => (Box::new(std::io::Cursor::new(Arc::clone(bytes))), Packing::None),
            None => packing::open_sentences(&self.path)?,
        };
        let columns = self.column.map(|number| Columns { number, ..Columns::default() });
        Ok(LineReader { columns, ..LineReader::new(&self.path, reader, packing) })
    }
}

/// The size of a file and the time of its last change.
fn version(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

/// Reads the lines of a file, one after the other.
pub struct LineReader {
    /// The file's name in messages.
    path: PathBuf,
    reader: Box<dyn BufRead + Send>,
    packing: Packing,
    /// What has been read.
    read: Before,
    /// What came before the line that was read last.
    last: Before,
    columns: Option<Columns>,
}

/// What reading lines of columns needs.
#[derive(Default)]
struct Columns {
    /// The column that is wanted, from 1.
    number: usize,
    /// The whole line.
    line: Vec<u8>,
    /// How many columns the first line has.
    usual: Option<usize>,
    uneven: Option<Odd>,
    rows: JoinedRows,
}

impl Columns {
    /// Appends the column of the line, which comes after `before`.
    fn append(&mut self, path: &Path, before: Before, buffer: &mut Vec<u8>) -> Result<()> {
        if let Err(error) = std::str::from_utf8(&self.line) {
            return Err(lines::not_utf8(path, before, error.valid_up_to(), &self.line));
        }
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        self.rows.add(before.lines + 1, lines::bare(text, before.lines == 0));
        // An empty row is an empty pair, like empty lines of two files.
        if lines::is_blank_row(text) {
            buffer.extend_from_slice(&self.line[text.len()..]);
            return Ok(());
        }
        let count = 1 + text.iter().filter(|byte| **byte == b'\t').count();
        if count != *self.usual.get_or_insert(count) {
            Odd::add(&mut self.uneven, before.lines + 1);
        }
        let Some(column) = text.split(|byte| *byte == b'\t').nth(self.number - 1) else {
            let count = if count == 1 { "one column".to_owned() } else { format!("{count} columns") };
            let error = Error::failure(format!("the line has {count}, but the text is in column {}", self.number));
            let help = "tabs separate columns; fix the line, or name another column with `source` and `target`";
            return Err(error.at_line(path, before.lines + 1, 0).help(help));
        };
        buffer.extend_from_slice(column);
        buffer.extend_from_slice(&self.line[text.len()..]);
        Ok(())
    }
}

impl LineReader {
    /// Opens a file, compressed or not, that messages call `name`.
    pub fn open(path: &Path, name: &Path) -> Result<Self> {
        let (reader, packing) = packing::open_packed(path).map_err(|error| error.at(name))?;
        Ok(Self::new(name, reader, packing))
    }

    fn new(name: &Path, reader: Box<dyn BufRead + Send>, packing: Packing) -> Self {
        let (read, last) = (Before::default(), Before::default());
        Self { path: name.to_path_buf(), reader, packing, read, last, columns: None }
    }

    /// The number of the line that was read last, from 1.
    pub fn number(&self) -> usize {
        self.read.lines
    }

    /// The error for `line`, which was read last and is not UTF-8 at `offset`.
    pub fn not_utf8(&self, line: &[u8], offset: usize) -> Error {
        self.packing.inside(lines::not_utf8(&self.path, self.last, offset, line))
    }

    /// Appends the next line without its end, and without a byte order mark before the first; false at the end of the
    /// file.
    pub fn next_line(&mut self, buffer: &mut Vec<u8>) -> Result<bool> {
        let start = buffer.len();
        let first = self.read.lines == 0;
        if !self.append_line(buffer)? {
            return Ok(false);
        }
        let line = &buffer[start..];
        let bare = lines::bare(line, first).len();
        if first && line.starts_with(BYTE_ORDER_MARK) {
            buffer.drain(start..start + BYTE_ORDER_MARK.len());
            self.last.bytes = BYTE_ORDER_MARK.len() as u64;
        }
        buffer.truncate(start + bare);
        Ok(true)
    }

    /// The next bytes, for formats other than lines; none at the end of the file. They stay until they are consumed.
    pub fn fill(&mut self) -> Result<&[u8]> {
        self.reader.fill_buf().map_err(|error| self.packing.failed(&self.path, error))
    }

    /// Removes the first of those bytes.
    pub fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }

    /// Appends the next line with its end.
    fn append_line(&mut self, buffer: &mut Vec<u8>) -> Result<bool> {
        let line = match &mut self.columns {
            None => &mut *buffer,
            Some(columns) => {
                columns.line.clear();
                &mut columns.line
            }
        };
        let length = match lines::read_line(&mut self.reader, line) {
            Ok(0) => return Ok(false),
            Ok(length) => length,
            Err(error) => return Err(lines::not_read(&self.path, self.packing, self.read.lines + 1, error)),
        };
        if self.read.lines == 0 {
            let refused = returns::refuse_in_place_of_newlines(line, &self.path);
            refused.map_err(|error| self.packing.inside(error))?;
        }
        self.last = self.read;
        self.read.lines += 1;
        self.read.bytes += length as u64;
        if let Some(columns) = &mut self.columns {
            columns.append(&self.path, self.last, buffer).map_err(|error| self.packing.inside(error))?;
        }
        Ok(true)
    }

    /// Fails where `chunk`, which begins with a line, is not UTF-8.
    fn check(&self, chunk: &[u8], before: Before) -> Result<()> {
        let Err(error) = std::str::from_utf8(chunk) else { return Ok(()) };
        Err(self.packing.inside(lines::not_utf8(&self.path, before, error.valid_up_to(), chunk)))
    }
}
