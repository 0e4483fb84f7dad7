//! Lines in and out of commands.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, StdinLock, Write};
use std::path::Path;

use same_file::Handle;

use crate::console::message;
use crate::data::lines;
use crate::error::{Error, Result};

/// Bytes of stdin taken at once: more than a pipe holds.
const STDIN_BUFFER: usize = 1 << 18;

/// Where results go. A reader that has gone away (`mt … | head`) is not an error: what follows is dropped.
pub struct Output {
    writer: BufWriter<Box<dyn Write>>,
    name: String,
    closed: bool,
}

impl Output {
    /// Standard output, or a file.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            Some(path) if path != Path::new("-") => {
                refuse_packing(path)?;
                let file = File::create(path).map_err(|e| Error::io("write", path, e))?;
                Ok(Self { writer: BufWriter::new(Box::new(file)), name: path.display().to_string(), closed: false })
            }
            _ => Ok(Self { writer: BufWriter::new(Box::new(io::stdout())), name: "stdout".to_owned(), closed: false }),
        }
    }

    /// Whether the reader has gone away.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// A piece of text as it is.
    pub fn text(&mut self, text: &str) -> Result<()> {
        self.bytes(text.as_bytes())
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let result = self.writer.write_all(bytes);
        self.check(result)
    }

    /// One line.
    pub fn line(&mut self, text: &str) -> Result<()> {
        let result = writeln!(self.writer, "{text}");
        self.check(result)
    }

    /// Hands everything to the system.
    pub fn flush(&mut self) -> Result<()> {
        let result = self.writer.flush();
        self.check(result)
    }

    fn check(&mut self, result: io::Result<()>) -> Result<()> {
        match result {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(e) => Err(Error::io("write", &self.name, e)),
        }
    }
}

/// Text is written as it is: under a name that promises otherwise it could not be read again.
fn refuse_packing(path: &Path) -> Result<()> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let Some((_, program)) = [("gz", "gzip"), ("xz", "xz"), ("zst", "zstd")].into_iter().find(|(e, _)| *e == extension)
    else {
        return Ok(());
    };
    let error = Error::usage("the output is plain text, but its name says that it is compressed").at(path);
    Err(error.help(format!("name it without .{extension}, or pipe it through {program}")))
}

/// Refuses an output that is also read: opening it would empty it. `-` among `inputs` is stdin.
pub fn refuse_inputs<'a>(output: Option<&Path>, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let Some(output) = output.filter(|path| path.is_file()) else { return Ok(()) };
    let Ok(handle) = Handle::from_path(output) else { return Ok(()) };
    for input in inputs {
        let other = if input == Path::new("-") { Handle::stdin() } else { Handle::from_path(input) };
        if other.is_ok_and(|other| other == handle) {
            let what = format!("the output is the same file as the input {}", input.display());
            return Err(Error::usage(what).at(output).help("write to another file"));
        }
    }
    Ok(())
}

/// Lines of a file (plain or compressed) or of stdin, split on `\n` only; a byte order mark at the start is dropped. Bytes
/// that are not UTF-8 become U+FFFD, and are counted.
pub struct Input {
    reader: Reader,
    name: String,
    started: bool,
    /// Lines that held bytes that are not UTF-8.
    pub invalid_lines: usize,
}

enum Reader {
    File(Box<dyn BufRead>),
    Stdin(BufReader<StdinLock<'static>>),
}

impl Reader {
    fn read_line(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::File(reader) => reader.read_until(b'\n', bytes),
            Self::Stdin(reader) => reader.read_until(b'\n', bytes),
        }
    }

    /// Whether the next line may have to be waited for.
    fn may_wait(&self) -> bool {
        matches!(self, Self::Stdin(reader) if !reader.buffer().contains(&b'\n'))
    }
}

impl Input {
    /// Standard input, or a file.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (reader, name) = match path {
            Some(path) if path != Path::new("-") => (Reader::File(lines::open(path)?), path.display().to_string()),
            _ => {
                let stdin = BufReader::with_capacity(STDIN_BUFFER, io::stdin().lock());
                (Reader::Stdin(stdin), "stdin".to_owned())
            }
        };
        Ok(Self { reader, name, started: false, invalid_lines: 0 })
    }

    /// At most `most` further lines, and no more after some megabytes; empty at the end. Of stdin, those that are there already, and at least one: a program
    /// that writes a line and waits for its translation gets it.
    pub fn lines(&mut self, most: usize) -> Result<Vec<String>> {
        const MOST_BYTES: usize = 4 << 20;
        let mut lines = Vec::new();
        let (mut bytes, mut total) = (Vec::new(), 0);
        while lines.len() < most && total < MOST_BYTES && (lines.is_empty() || !self.reader.may_wait()) {
            bytes.clear();
            let read = self.reader.read_line(&mut bytes);
            if read.map_err(|e| Error::io("read", &self.name, e))? == 0 {
                break;
            }
            total += bytes.len();
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
            if !std::mem::replace(&mut self.started, true) && bytes.starts_with(b"\xEF\xBB\xBF") {
                bytes.drain(..3);
            }
            let text = String::from_utf8_lossy(&bytes);
            if matches!(text, std::borrow::Cow::Owned(_)) {
                self.invalid_lines += 1;
            }
            lines.push(text.into_owned());
        }
        Ok(lines)
    }

    /// Tells of lines that were not UTF-8.
    pub fn warn(&self) {
        if self.invalid_lines > 0 {
            message(format_args!(
                "warning: bytes that are not UTF-8 were read as U+FFFD, in {} of the lines",
                self.invalid_lines
            ));
        }
    }
}
