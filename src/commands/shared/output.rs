//! Where commands write.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use same_file::Handle;
use serde_json::Value;

use super::reserved;
use crate::error::{Error, Result};
use crate::escape::{harmless, harmless_json, in_one_line};
use crate::file::{self, Folder, Staged};

/// Where results go. If the reader of standard output goes away (`mt … | head`), that is not an error: further output
/// is dropped.
pub(crate) struct Output {
    writer: BufWriter<Box<dyn Write>>,
    name: String,
    is_stdout: bool,
    /// Whether a terminal shows it, which foreign text must not command.
    is_terminal: bool,
    closed: bool,
    /// The regular file that is written from its beginning, if it is one.
    file: Option<File>,
    /// Bytes written, and the number at the last flush.
    written: u64,
    flushed: u64,
}

impl Output {
    /// Standard output, or a file.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        match path {
            Some(path) if !is_stdout(path) => {
                refuse_packing(path)?;
                let file = File::create(path).map_err(|e| not_created(path, e))?;
                let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
                let regular = if is_regular { file.try_clone().ok() } else { None };
                // As a terminal's name may be.
                let same = file.try_clone().and_then(Handle::from_file);
                let is_stdout = !is_regular && same.and_then(|file| Ok(file == Handle::stdout()?)).unwrap_or(false);
                let is_terminal = file.is_terminal();
                Ok(Self { file: regular, is_stdout, is_terminal, ..Self::new(file, path.display().to_string()) })
            }
            _ => {
                let is_terminal = io::stdout().is_terminal();
                Ok(Self { is_stdout: true, is_terminal, ..Self::new(StandardOutput, "stdout".to_owned()) })
            }
        }
    }

    fn new(writer: impl Write + 'static, name: String) -> Self {
        let writer = BufWriter::new(Box::new(writer) as Box<dyn Write>);
        Self { writer, name, is_stdout: false, is_terminal: false, closed: false, file: None, written: 0, flushed: 0 }
    }

    /// Whether the reader has gone away.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// A piece of text as it is; on a terminal without what would command it.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        if self.is_terminal { self.write(harmless(text).as_bytes()) } else { self.write(text.as_bytes()) }
    }

    /// Bytes as they are; a terminal is shown them as text.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if self.is_terminal { self.text(&String::from_utf8_lossy(bytes)) } else { self.write(bytes) }
    }

    /// One line as it is; on a terminal without what would command it.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        self.text(text)?;
        self.write(b"\n")
    }

    /// The line of a path as it is; on a terminal without what would command it, or forge another line.
    pub(crate) fn path(&mut self, path: &Path) -> Result<()> {
        let text = path.display().to_string();
        if self.is_terminal { self.line(&in_one_line(&text)) } else { self.line(&text) }
    }

    /// Writes lines of a description. They may hold names that others have chosen, so harmful characters are escaped.
    pub(crate) fn description(&mut self, text: &str) -> Result<()> {
        self.line(&harmless(text))
    }

    /// One line of JSON, never with what would command a terminal.
    pub(crate) fn json(&mut self, value: &Value) -> Result<()> {
        self.line(&harmless_json(&value.to_string()))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let result = self.writer.write_all(bytes);
        self.written += bytes.len() as u64;
        self.check(result)
    }

    /// Hands everything to the system.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let result = self.writer.flush();
        self.check(result)?;
        self.flushed = self.written;
        Ok(())
    }

    /// Removes the output since the last flush, if this is a regular file. Returns whether it did; then nothing more
    /// may be written.
    pub(crate) fn cut_back(&mut self) -> bool {
        let Some(file) = &self.file else { return false };
        // The buffer must not be written behind the end.
        drop(std::mem::replace(&mut self.writer, BufWriter::new(Box::new(io::sink()))).into_parts());
        file.set_len(self.flushed).is_ok()
    }

    fn check(&mut self, result: io::Result<()>) -> Result<()> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.is_stdout => self.closed = true,
            Err(error) => return Err(Error::io("write", &self.name, error)),
            Ok(()) => {}
        }
        Ok(())
    }
}

/// Standard output, waited for even if the program that started this one has made it one that does not block.
struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        file::waiting(libc::STDOUT_FILENO, libc::POLLOUT, || io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        file::waiting(libc::STDOUT_FILENO, libc::POLLOUT, || io::stdout().flush())
    }
}

/// Whether a path is a name of standard output. Opening it would empty the file that the shell appends to.
pub(crate) fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Lines on standard output that describe something.
pub(crate) fn print(text: impl Display) -> Result<()> {
    let mut output = Output::open(None)?;
    output.description(&text.to_string())?;
    output.flush()
}

/// A line of JSON on standard output.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    let mut output = Output::open(None)?;
    output.json(value)?;
    output.flush()
}

/// A file that replaces an existing one only when it is complete: until then, and after an error, the old one stays.
/// Anything but a regular file, such as a pipe or a device, is written directly.
pub(crate) struct Replacement {
    output: Output,
    /// The file to rename, and its final name.
    staged: Option<(Staged, PathBuf)>,
}

impl Replacement {
    /// A replacement of a file; `-` is standard output.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let is_stream = is_stdout(path);
        let is_special = is_stream || std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        if is_special || path.file_name().is_none() {
            return Ok(Self { output: Output::open(Some(path))?, staged: None });
        }
        refuse_packing(path)?;
        let target = destination(path);
        let staged = Folder::containing(&target).and_then(|(folder, name)| folder.stage_shared(name));
        let staged = staged.map_err(|error| not_created(path, error))?;
        let same = staged.file().try_clone().map_err(|error| Error::io("write", path, error))?;
        let output = Output::new(same, path.display().to_string());
        Ok(Self { output, staged: Some((staged, target)) })
    }

    /// The output to write into.
    pub(crate) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Syncs the file to disk and renames it.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.output.flush()?;
        let Some((staged, target)) = self.staged else { return Ok(()) };
        let renamed = staged.file().sync_all().and_then(|()| staged.persist());
        renamed.map(drop).map_err(|error| Error::io("write", target, error))
    }
}

/// The target of an output that the user named. A link is followed, also to a file that does not exist yet.
pub(crate) fn destination(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| match std::fs::read_link(path) {
        Ok(to) => file::folder_of(path).join(to),
        Err(_) => path.to_path_buf(),
    })
}

/// Refuses a file that cannot be written, before any work is done for it.
///
/// # Errors
/// It is a directory, has the name of a compressed file, or its folder cannot be written to.
pub(crate) fn refuse_unwritable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Error::io("write", path, io::ErrorKind::IsADirectory.into())),
        // Opening a pipe waits for its other end.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        // The temporary file is removed again.
        _ => Replacement::open(path).map(drop),
    }
}

/// Whether two outputs would be the same file; no path or `-` is standard output.
pub(crate) fn is_same_file(a: Option<&Path>, b: Option<&Path>) -> bool {
    let handle = |path: Option<&Path>| match path.filter(|path| *path != Path::new("-")) {
        Some(path) => regular_file(path),
        None => Handle::stdout().ok(),
    };
    if let (Some(a), Some(b)) = (handle(a), handle(b)) {
        return a == b;
    }
    // A file that does not exist yet, or a pipe: compare its directory and name.
    let canonical = |path: &Path| -> Option<PathBuf> {
        Some(std::fs::canonicalize(file::folder_of(path)).ok()?.join(path.file_name()?))
    };
    matches!((a.and_then(canonical), b.and_then(canonical)), (Some(a), Some(b)) if a == b)
}

/// The error for a file that could not be created.
fn not_created(path: &Path, error: io::Error) -> Error {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let error = Error::io("write", path, error);
    if is_missing { error.help("check the path; make its directory first") } else { error }
}

/// Refuses names of compressed files: output is not compressed, so reading it back would fail.
fn refuse_packing(path: &Path) -> Result<()> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let Some((_, program)) = [("gz", "gzip"), ("xz", "xz"), ("zst", "zstd")].into_iter().find(|(e, _)| *e == extension)
    else {
        return Ok(());
    };
    let error = Error::usage("the output is plain text, but its name says that it is compressed").at(path);
    Err(error.help(format!("name it without .{extension}, or pipe it through {program}")))
}

/// The regular file of this name, if there is one. Nothing else is opened: opening a pipe waits for its other end, and
/// disturbs the program that reads from it.
fn regular_file(path: &Path) -> Option<Handle> {
    file::open_regular(path).and_then(Handle::from_file).ok()
}

/// Refuses an output that is also an input: opening it would empty it, and reading a file to which the shell appends
/// (`>>`) would never end. No `output`, or `-`, is stdout; `-` among `inputs` is stdin. It also refuses a file of any
/// run or model.
pub(crate) fn refuse_inputs<'a>(output: Option<&Path>, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let output = output.filter(|path| *path != Path::new("-"));
    output.map_or(Ok(()), reserved::refuse)?;
    let Some(handle) = output.map_or_else(|| Handle::stdout().ok(), regular_file) else { return Ok(()) };
    if !handle.as_file().metadata().is_ok_and(|output| output.is_file()) {
        return Ok(());
    }
    for input in inputs {
        let (other, name) = if input == Path::new("-") {
            (Handle::stdin().ok(), "standard input".to_owned())
        } else {
            (regular_file(input), format!("the input {}", input.display()))
        };
        if other.is_some_and(|other| other == handle) {
            let error = Error::usage(format!("the output is the same file as {name}"));
            let error = if let Some(path) = output { error.at(path) } else { error };
            return Err(error.help("write to another file"));
        }
    }
    Ok(())
}
