//! Lines in and out of commands.

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Write};
use std::path::Path;

use crate::console::message;
use crate::data::lines;
use crate::error::{Error, Result};

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

/// Lines of a file (plain or compressed) or of stdin, split on `\n` only; a byte order mark at the start is dropped. Bytes that are not UTF-8 become U+FFFD, and are counted.
pub struct Input {
    reader: Box<dyn BufRead>,
    name: String,
    started: bool,
    /// Lines that held bytes that are not UTF-8.
    pub invalid_lines: usize,
}

impl Input {
    /// Standard input, or a file.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (reader, name): (Box<dyn BufRead>, String) = match path {
            Some(path) if path != Path::new("-") => (lines::open(path)?, path.display().to_string()),
            _ => (Box::new(io::stdin().lock()), "stdin".to_owned()),
        };
        Ok(Self { reader, name, started: false, invalid_lines: 0 })
    }

    /// At most `most` further lines; empty at the end.
    pub fn lines(&mut self, most: usize) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut bytes = Vec::new();
        while lines.len() < most {
            bytes.clear();
            let read = self.reader.read_until(b'\n', &mut bytes);
            if read.map_err(|e| Error::io("read", &self.name, e))? == 0 {
                break;
            }
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
                "warning: {} lines held bytes that are not UTF-8; they were read as U+FFFD",
                self.invalid_lines
            ));
        }
    }
}
