//! The lines that a command works on: its arguments, a file or stdin, some at a time.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Chain, Cursor, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::line_summary::LineSummary;
use crate::console::{is_watched, prompt, warning};
use crate::data::corpus::tagged;
use crate::data::text::{lines, packing};
use crate::error::{Error, Result};
use crate::escape::shell_word;
use crate::file;

/// Lines processed together: enough to batch by length, few enough to answer soon and to bound memory.
const WINDOW: usize = 2000;
/// From stdin, at first only this many, so that the first of a hundred lines does not wait for the last; twice as many
/// each time, as long as lines come without a pause.
const FIRST_WINDOW: usize = 64;
/// Having waited longer than this for a line is a pause.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of stdin read at once: more than a pipe holds.
const STDIN_BUFFER: usize = 1 << 18;

/// Where lines come from, and how far they have been read.
pub(crate) struct Lines {
    source: Source,
    /// The name of the input, as a user would state it.
    name: PathBuf,
    /// The tag in front of each line.
    tag: Option<String>,
    /// Lines before the last window.
    before: usize,
    /// Lines of the last window.
    window: usize,
}

enum Source {
    Arguments {
        lines: Vec<String>,
        oddities: Oddities,
    },
    File(Input),
    /// `most` is how many lines to take next.
    Stdin {
        input: Input,
        interactive: bool,
        most: usize,
    },
}

impl Lines {
    /// The arguments, each a line; if there are none, the file; if there is none either, stdin. There are prompts if
    /// stdin is a terminal, and the user would see them. Each line gets the tag, if there is one.
    pub(crate) fn open(arguments: &[OsString], input: Option<&Path>, tag: Option<&str>) -> Result<Self> {
        let named = input.filter(|path| *path != Path::new("-"));
        arguments.iter().for_each(|text| warn_of_path(text));
        let (source, name) = match named {
            _ if !arguments.is_empty() => (Source::from_arguments(arguments), Path::new("arguments")),
            Some(path) => (Source::File(Input::open(named)?), path),
            None => {
                let interactive = io::stdin().is_terminal() && is_watched();
                (Source::Stdin { input: Input::open(None)?, interactive, most: FIRST_WINDOW }, Path::new("stdin"))
            }
        };
        Ok(Self { source, name: name.to_path_buf(), tag: tag.map(str::to_owned), before: 0, window: 0 })
    }

    /// Its lines are JSON, which nobody need be warned of.
    pub(crate) fn expect_json(&mut self) {
        if let Source::File(input) | Source::Stdin { input, .. } = &mut self.source {
            input.is_json_expected = true;
        }
    }

    /// The path of the file, or `-` for stdin; the output must be another one. `None` for arguments.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self.source {
            Source::Arguments { .. } => None,
            Source::File(_) => Some(&self.name),
            Source::Stdin { .. } => Some(Path::new("-")),
        }
    }

    /// The name of the input, as a user would state it.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// The number of lines, if known beforehand.
    pub(crate) fn count(&self) -> Option<usize> {
        match &self.source {
            Source::Arguments { lines, .. } => Some(lines.len()),
            Source::File(_) => lines::count(&self.name),
            Source::Stdin { .. } => None,
        }
    }

    /// Whether each line is typed after a prompt.
    pub(crate) fn is_interactive(&self) -> bool {
        matches!(self.source, Source::Stdin { interactive: true, .. })
    }

    /// The next lines; none at the end. After a prompt, only one.
    pub(crate) fn next(&mut self) -> Result<Vec<String>> {
        let lines = match &mut self.source {
            Source::Arguments { lines, .. } => std::mem::take(lines),
            Source::Stdin { input, interactive: true, .. } => {
                prompt("> ");
                input.lines(1)?
            }
            Source::Stdin { input, most, .. } => {
                let began = Instant::now();
                input.wait()?;
                if began.elapsed() > PAUSE {
                    *most = FIRST_WINDOW;
                }
                let lines = input.lines(*most)?;
                *most = (*most * 2).min(WINDOW);
                lines
            }
            Source::File(input) => input.lines(WINDOW)?,
        };
        self.before += std::mem::replace(&mut self.window, lines.len());
        Ok(with_tag(self.tag.as_deref(), lines))
    }

    /// The number of the first line of the last window, from 1.
    pub(crate) fn first(&self) -> usize {
        self.before + 1
    }

    /// Warnings about the input, as far as it has been read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        match &self.source {
            Source::Arguments { oddities, .. } => oddities.warnings(self.before + self.window, "the arguments"),
            Source::File(input) | Source::Stdin { input, .. } => input.warnings(),
        }
    }
}

impl Source {
    /// The arguments; bytes that are not UTF-8 become U+FFFD, and are counted.
    fn from_arguments(arguments: &[OsString]) -> Self {
        let mut oddities = Oddities::default();
        let line = |(number, text): (usize, &OsString)| {
            if text.to_str().is_none() {
                oddities.invalid.add(number);
            }
            text.to_string_lossy().replace(['\n', '\r'], " ")
        };
        let lines = (1..).zip(arguments).map(line).collect();
        Self::Arguments { lines, oddities }
    }
}

/// Warns of a text that is also the name of a file or directory.
fn warn_of_path(text: &OsStr) {
    let path = Path::new(text);
    if text == "-" {
        return warning("the text - is taken as it is (stdin is read where there is no text, and with --input -)");
    }
    let (kind, flag) = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => ("directory", "name a model with --model"),
        Ok(_) => ("file", "read it with --input"),
        Err(_) => return,
    };
    warning(format_args!(
        "the text {} is also the name of a {kind}; its name is taken as text ({flag})",
        shell_word(path)
    ));
}

/// Lines that each begin with the tag, if there is one.
pub(crate) fn with_tag(tag: Option<&str>, lines: Vec<String>) -> Vec<String> {
    match tag {
        Some(_) => lines.iter().map(|line| tagged(tag, line).into_owned()).collect(),
        None => lines,
    }
}

/// Whether a path is a name of standard input, which can be read once.
pub(crate) fn is_stdin(path: &Path) -> bool {
    let names = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
    names.iter().any(|name| path == Path::new(name)) || path.as_os_str().as_encoded_bytes().starts_with(b"-#")
}

/// A file as messages name it: `-` is stdin.
pub(crate) fn shown_name(path: &Path) -> &Path {
    if path == Path::new("-") { Path::new("stdin") } else { path }
}

/// The text of a flag. Bytes that are not UTF-8 become U+FFFD, with a warning.
pub(crate) fn text_of(flag: &str, value: &OsStr) -> String {
    if value.to_str().is_none() {
        warning(format_args!("bytes that are not UTF-8 were read as U+FFFD, in {flag}"));
    }
    value.to_string_lossy().into_owned()
}

/// Suspicious lines of the input.
#[derive(Clone, Copy, Debug, Default)]
struct Oddities {
    /// Those with bytes that are not UTF-8.
    invalid: LineSummary,
    /// Those with zero bytes.
    zeros: LineSummary,
    /// Those with a carriage return that is not at the end.
    returns: LineSummary,
}

impl Oddities {
    /// Looks at a line without its line end. `is_utf8` is false if bytes of it had to be replaced.
    fn add(&mut self, number: usize, line: &str, is_utf8: bool) {
        let found = [!is_utf8, line.contains('\0'), line.contains('\r')];
        for (lines, found) in [&mut self.invalid, &mut self.zeros, &mut self.returns].into_iter().zip(found) {
            if found {
                lines.add(number);
            }
        }
    }

    /// Warnings about the lines of a file, out of `all`, that there are.
    fn warnings(self, all: usize, file: &str) -> Vec<String> {
        let kinds = [
            (self.invalid, "bytes that are not UTF-8 were read as U+FFFD, in", ""),
            (self.zeros, "there are zero bytes in", " (text in UTF-16 or UTF-32 must be converted, with iconv)"),
            (
                self.returns,
                "there are carriage returns within",
                " (only a newline ends a line: tr '\\r' '\\n' makes them line ends)",
            ),
        ];
        let warning = |(lines, what, hint): (LineSummary, &str, &str)| {
            lines.location(all, file).map(|location| format!("{what} {location}{hint}"))
        };
        kinds.into_iter().filter_map(warning).collect()
    }
}

/// Lines of a file or of stdin, plain or compressed, split on `\n` only; a byte order mark at the start is dropped.
/// Bytes that are not UTF-8 become U+FFFD, and are counted.
pub(crate) struct Input {
    reader: Reader,
    name: String,
    /// Whether the first bytes have been checked for compression.
    started: bool,
    /// Lines read.
    count: usize,
    /// Why reading has stopped; returned once all lines before that have been given.
    failed: Option<io::Error>,
    oddities: Oddities,
    /// The kind of the document, if the input begins as one in HTML or XML, or with an unexpected line of JSON.
    document: Option<String>,
    is_json_expected: bool,
}

/// Standard input, waited for even if the program that started this one has made it one that does not block.
struct StandardInput;

impl Read for StandardInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        file::waiting(libc::STDIN_FILENO, libc::POLLIN, || io::stdin().read(bytes))
    }
}

enum Reader {
    File(Box<dyn BufRead + Send>),
    /// The bytes read to detect compression, and the rest.
    Stdin(BufReader<Chain<Cursor<Vec<u8>>, StandardInput>>),
}

impl Reader {
    fn read_line(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::File(reader) => lines::read_line(reader, bytes),
            Self::Stdin(reader) => lines::read_line(reader, bytes),
        }
    }

    /// The next bytes, as many as one read gives.
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::File(reader) => reader.fill_buf(),
            Self::Stdin(reader) => reader.fill_buf(),
        }
    }

    /// Standard input, after `head` has been read from it.
    fn stdin(head: Vec<u8>) -> BufReader<Chain<Cursor<Vec<u8>>, StandardInput>> {
        BufReader::with_capacity(STDIN_BUFFER, Cursor::new(head).chain(StandardInput))
    }

    /// If stdin is compressed, replaces it with its decompressed contents. Call it once, before anything is read.
    fn unpack(&mut self) -> io::Result<()> {
        if let Self::Stdin(_) = self {
            let head = packing::read_head(&mut StandardInput)?;
            let is_packed = packing::is_packed(&head);
            let stdin = Self::stdin(head);
            *self = if is_packed { Self::File(packing::unpack(stdin)?) } else { Self::Stdin(stdin) };
        }
        Ok(())
    }

    /// Whether reading the next line may block.
    fn may_wait(&self) -> bool {
        matches!(self, Self::Stdin(reader) if !reader.buffer().contains(&b'\n'))
    }
}

impl Input {
    /// Standard input, or a file.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self> {
        let (reader, name) = match path {
            Some(path) if path != Path::new("-") => (Reader::File(packing::open(path)?), path.display().to_string()),
            _ => (Reader::Stdin(Reader::stdin(Vec::new())), "stdin".to_owned()),
        };
        let (oddities, document) = (Oddities::default(), None);
        Ok(Self { reader, name, started: false, count: 0, failed: None, oddities, document, is_json_expected: false })
    }

    /// The next lines, at most `most` and a few megabytes; empty at the end. From stdin, only lines that have already
    /// arrived, but at least one: a program that writes a line and waits for its translation gets it.
    pub(crate) fn lines(&mut self, most: usize) -> Result<Vec<String>> {
        const MOST_BYTES: usize = 4 << 20;
        self.start()?;
        let mut lines = Vec::new();
        let (mut bytes, mut total) = (Vec::new(), 0);
        while self.failed.is_none()
            && lines.len() < most
            && total < MOST_BYTES
            && (lines.is_empty() || !self.reader.may_wait())
        {
            bytes.clear();
            if self.count == 0 {
                self.look_at_beginning()?;
            }
            match self.reader.read_line(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
            total += bytes.len();
            let is_first = self.count == 0;
            let text = String::from_utf8_lossy(lines::bare(&bytes, is_first));
            self.oddities.add(self.count + 1, &text, matches!(text, Cow::Borrowed(_)));
            lines.push(text.into_owned());
            self.count += 1;
        }
        if let Some(error) = self.failed.take_if(|_| lines.is_empty()) {
            let help = match error.kind() {
                io::ErrorKind::FileTooLarge => lines::TOO_LONG_HELP.to_owned(),
                _ => {
                    let help = packing::damage_help(&error, "gzip -t, xz -t or zstd -t, if it is compressed");
                    if self.count == 0 { help } else { format!("the lines before it are done; {help}") }
                }
            };
            return Err(Error::io("read", &self.name, error).at_line(&self.name, self.count + 1, 0).help(help));
        }
        Ok(lines)
    }

    /// Refuses input that is no text.
    fn look_at_beginning(&mut self) -> Result<()> {
        let head = match self.reader.fill_buf() {
            Ok(head) => head,
            // It is reported with the number of its line.
            Err(error) => {
                self.failed = Some(error);
                return Ok(());
            }
        };
        packing::refuse_foreign(head, Path::new(&self.name))?;
        self.document = packing::markup(head);
        if !self.is_json_expected && packing::begins_with_object(head) {
            self.document =
                Some("the first line is a JSON object (mt translate reads such with --json-input)".to_owned());
        }
        Ok(())
    }

    /// Whether reading the next line may block, because it has not arrived on stdin yet.
    pub(crate) fn may_wait(&self) -> bool {
        self.reader.may_wait()
    }

    /// Finds out whether the input is compressed, once.
    fn start(&mut self) -> Result<()> {
        if !self.started {
            self.reader.unpack().map_err(|e| Error::io("read", &self.name, e))?;
            self.started = true;
        }
        Ok(())
    }

    /// Waits until there is something to read, or the end.
    fn wait(&mut self) -> Result<()> {
        self.start()?;
        match &mut self.reader {
            Reader::Stdin(reader) if self.failed.is_none() => self.failed = reader.fill_buf().err(),
            Reader::Stdin(_) | Reader::File(_) => {}
        }
        Ok(())
    }

    /// Warnings about suspicious lines among those read so far.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let document =
            self.document.iter().map(|what| format!("{}: {what}; each of its lines was taken as text", self.name));
        document.chain(self.oddities.warnings(self.count, &self.name)).collect()
    }
}
