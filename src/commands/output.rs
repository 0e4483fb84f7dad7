//! Where commands write.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use same_file::Handle;

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
