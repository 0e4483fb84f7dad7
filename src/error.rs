//! Errors a user sees: what is wrong, where (file and line), and what to do about it.
//!
//! Every fallible function of the crate returns [`Result`]. An error renders as
//!
//! ```text
//! unknown key `dropuot` in [model]
//!   --> configs/mine.toml:12:1
//!   help: did you mean `dropout`?
//! ```
//!
//! and carries the exit code that `mt` ends with.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::escape::in_one_line;
use crate::file::{is_out_of_files, may_pass};
use crate::limits;
use crate::signature::Signature;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure this is; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command line or the configuration is wrong (exit code 2).
    Usage,
    /// The work failed: bad data, a missing file, a full disk (exit code 1).
    Failure,
    /// A device has no memory left; with smaller batches the work may succeed (exit code 1).
    OutOfMemory,
    /// The user interrupted and everything was saved (exit code 130).
    Interrupted,
    /// The process was asked to terminate and everything was saved (exit code 143).
    Terminated,
}

/// A position in a file. Lines and columns count from 1; 0 means unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The file, as the user would name it.
    pub path: PathBuf,
    /// Line, from 1; 0 for the whole file.
    pub line: usize,
    /// Column, from 1; 0 for the whole line.
    pub column: usize,
}

/// An error that says what, where and what to do.
#[derive(Debug)]
pub struct Error {
    // Boxed, so that a `Result` stays as small as its value.
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    what: String,
    location: Option<Location>,
    help: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
    others: Vec<Error>,
}

impl Error {
    /// Whether a device ran out of memory, also where that is the cause of another error.
    pub fn is_out_of_memory(&self) -> bool {
        let causes = std::iter::successors(std::error::Error::source(self), |error| error.source());
        let causes = causes.filter_map(|error| error.downcast_ref::<Self>());
        std::iter::once(self).chain(causes).any(|error| error.kind() == ErrorKind::OutOfMemory)
    }

    /// A GPU has no memory left.
    pub fn out_of_memory() -> Self {
        Self::new(ErrorKind::OutOfMemory, "the GPU is out of memory").help(
            "stop other programs that use it (nvidia-smi names them), make the model or its batches smaller \
             (train.batch_tokens, decode.batch_tokens), or use --device cpu",
        )
    }

    fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { inner: Box::new(Inner { kind, what, location: None, help: None, source: None, others: Vec::new() }) }
    }

    /// A wrong command line or configuration (exit code 2).
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, what)
    }

    /// A failure while working (exit code 1).
    pub fn failure(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failure, what)
    }

    /// A clean stop after a signal (exit code 130 or 143).
    pub fn stopped(terminated: bool, what: impl Into<String>) -> Self {
        let kind = if terminated { ErrorKind::Terminated } else { ErrorKind::Interrupted };
        Self::new(kind, what)
    }

    /// An input/output error on `path`; `doing` completes "cannot …", for example "read the corpus".
    pub fn io(doing: &str, path: impl AsRef<Path>, source: std::io::Error) -> Self {
        let path = path.as_ref();
        let help = match source.kind() {
            std::io::ErrorKind::NotFound => None,
            std::io::ErrorKind::PermissionDenied => Some("check the permissions, or choose another location"),
            std::io::ErrorKind::StorageFull if is_out_of_files(path) => Some(
                "the file system has room, but can hold no more files (its inodes are used up): remove files that are \
                 not needed, then run again",
            ),
            std::io::ErrorKind::StorageFull => Some("the disk is full: free some space, then run again"),
            std::io::ErrorKind::QuotaExceeded => Some("your disk quota is used up: free some space, then run again"),
            std::io::ErrorKind::FileTooLarge => Some("raise the limit on file sizes (ulimit -f), then run again"),
            std::io::ErrorKind::ReadOnlyFilesystem => Some("the file system is read-only: choose another location"),
            _ if is_of_open_files(&source) => Some("raise the limit on open files (ulimit -n), then run again"),
            std::io::ErrorKind::BrokenPipe => Some("its reader has gone away"),
            std::io::ErrorKind::IsADirectory => Some("there is a directory of this name; a file is needed"),
            _ => None,
        };
        // It was read, but is something else.
        if let Some(signature) = source.get_ref().and_then(|inner| inner.downcast_ref::<Signature>()) {
            return Self::from_signature(signature, path).context(format_args!("cannot {doing}"));
        }
        let is_missing = source.kind() == std::io::ErrorKind::NotFound;
        let mut error = Self::failure(format!("cannot {doing}: {source}")).at(path).caused_by(source);
        error.inner.help = if is_missing { Some(check_path(path)) } else { help.map(str::to_owned) };
        error
    }

    /// A file is something else than was expected.
    pub(crate) fn from_signature(signature: &Signature, path: impl AsRef<Path>) -> Self {
        Self::failure(signature.to_string()).at(path).help(signature.help())
    }

    /// A thread that cannot be started; `does` describes its task, as in "saves checkpoints".
    pub fn thread(does: &str, source: std::io::Error) -> Self {
        let error = Self::failure(format!("cannot start the thread that {does}: {source}")).caused_by(source);
        error.help("the system allows no further threads: raise the limit (`ulimit -u`, or that of the container)")
    }

    /// Several errors reported at once, each with the others it already carries. One that says the same of the same
    /// place in a file as another counts once: two keys may name one file. An empty list is a bug of the caller and
    /// becomes a generic failure.
    pub fn many(errors: Vec<Error>) -> Self {
        let mut seen = HashSet::new();
        let is_new = |error: &Error| seen.insert((error.inner.what.clone(), error.inner.location.clone()));
        let mut all = errors.into_iter().flat_map(Error::into_all).filter(is_new);
        let Some(mut first) = all.next() else { return Self::failure("unknown failure") };
        first.inner.others = all.collect();
        first
    }

    /// Adds the file.
    pub fn at(self, path: impl AsRef<Path>) -> Self {
        self.at_line(path, 0, 0)
    }

    /// Adds file, line and column (both from 1; 0 for unknown).
    pub fn at_line(mut self, path: impl AsRef<Path>, line: usize, column: usize) -> Self {
        self.inner.location = Some(Location { path: path.as_ref().to_path_buf(), line, column });
        self
    }

    /// Adds what the user can do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.inner.help = Some(help.into());
        self
    }

    /// Sets the help, unless there is one already: that knows more about the cause.
    pub fn or_help(self, help: impl Into<String>) -> Self {
        if self.helps().is_some() { self } else { self.help(help) }
    }

    /// Appends to the help, or sets it if there is none.
    pub fn more_help(mut self, more: &str) -> Self {
        let help = self.inner.help.take().map_or_else(|| more.to_owned(), |help| format!("{help}; {more}"));
        self.help(help)
    }

    /// Whether the disk was full or refused the write for another reason.
    pub fn is_of_disk(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        self.is_caused_by(|it| matches!(it.kind(), StorageFull | QuotaExceeded | FileTooLarge | ReadOnlyFilesystem))
    }

    /// Whether the process had as many files open as it may have.
    pub fn is_of_open_files(&self) -> bool {
        self.all().any(|error| error.is_caused_by(is_of_open_files))
    }

    /// Whether a file or a directory could not be opened, whatever it holds: for its permissions, or the limit on open
    /// files.
    pub fn is_of_access(&self) -> bool {
        let is_denied = |it: &std::io::Error| it.kind() == std::io::ErrorKind::PermissionDenied;
        self.is_of_open_files() || self.all().any(|error| error.is_caused_by(is_denied))
    }

    /// Whether what failed may succeed a moment later: on a network file system, or in a directory that was just
    /// removed.
    pub fn may_pass(&self) -> bool {
        self.all().any(|error| error.is_caused_by(|it| it.kind() == std::io::ErrorKind::NotFound || may_pass(it)))
    }

    /// Marks the error of a file that is whole, but has a format version that this program cannot read.
    pub fn unsupported_version(self) -> Self {
        self.caused_by(std::io::Error::from(std::io::ErrorKind::Unsupported))
    }

    /// Whether the error is about a file of another format version.
    pub fn is_of_version(&self) -> bool {
        self.all().any(|error| error.is_caused_by(|it| it.kind() == std::io::ErrorKind::Unsupported))
    }

    fn is_caused_by(&self, is_it: impl Fn(&std::io::Error) -> bool) -> bool {
        let first: &dyn std::error::Error = self;
        std::iter::successors(first.source(), |error| error.source())
            .filter_map(|error| error.downcast_ref::<std::io::Error>())
            .any(is_it)
    }

    /// Adds the underlying error, shown with `-v`.
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Puts a description of the failed action before the message.
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.inner.what = format!("{doing}: {}", self.inner.what);
        self
    }

    /// The kind of the first error.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The first error's message, without location or help.
    pub fn what(&self) -> &str {
        &self.inner.what
    }

    /// The first error's location.
    pub fn location(&self) -> Option<&Location> {
        self.inner.location.as_ref()
    }

    /// The first error's help.
    pub fn helps(&self) -> Option<&str> {
        self.inner.help.as_deref()
    }

    /// The process exit code.
    pub fn exit_code(&self) -> u8 {
        match self.inner.kind {
            ErrorKind::Usage => 2,
            ErrorKind::Failure | ErrorKind::OutOfMemory => 1,
            ErrorKind::Interrupted => 130,
            ErrorKind::Terminated => 143,
        }
    }

    /// This error and all that it was reported with.
    pub fn all(&self) -> impl Iterator<Item = &Error> {
        std::iter::once(self).chain(self.inner.others.iter())
    }

    /// Like [`Error::all`], but as separate errors.
    pub fn into_all(mut self) -> Vec<Error> {
        let others = std::mem::take(&mut self.inner.others);
        std::iter::once(self).chain(others).collect()
    }
}

/// Of the process, or of the whole system.
fn is_of_open_files(error: &std::io::Error) -> bool {
    let errors = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    errors.into_iter().any(|full| error.raw_os_error() == Some(full.raw_os_error()))
}

/// A part of a message that may quote foreign text: cut to the length of a message, and on one line. Only our own lists
/// keep their line breaks, since nobody takes them for another message.
fn part(text: &str) -> Cow<'_, str> {
    const ITEM: &str = "\n    ";
    let text: Cow<'_, str> = match text.contains(ITEM) {
        true => text.split(ITEM).map(in_one_line).collect::<Vec<_>>().join(ITEM).into(),
        false => in_one_line(text),
    };
    let length = text.chars().count();
    if length <= limits::LONGEST_MESSAGE {
        return text;
    }
    let half = limits::LONGEST_MESSAGE / 2;
    let (start, end): (String, String) =
        (text.chars().take(half).collect(), text.chars().skip(length - half).collect());
    format!("{start} … ({} characters left out) … {end}", length - 2 * half).into()
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", part(&self.path.to_string_lossy()))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if self.column > 0 {
                write!(f, ":{}", self.column)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.all().take(limits::MOST_ERRORS).enumerate() {
            if i > 0 {
                write!(f, "\nerror: ")?;
            }
            write!(f, "{}", part(&error.inner.what))?;
            if let Some(location) = &error.inner.location {
                write!(f, "\n  --> {location}")?;
            }
            if let Some(help) = &error.inner.help {
                write!(f, "\n  help: {}", part(help))?;
            }
        }
        match self.all().count().saturating_sub(limits::MOST_ERRORS) {
            0 => Ok(()),
            more => write!(f, "\nerror: and {more} more of them: fix these first"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

/// Help for a missing file: check its path or, if its folder has an entry with a similar name, use that.
pub fn check_path(path: &Path) -> String {
    advice(similar(path, |_| true))
}

/// The same of a directory.
pub fn check_directory(path: &Path) -> String {
    advice(similar(path, Path::is_dir))
}

/// A similar path that exists, for the path of a missing file.
pub fn suggestion(path: &Path) -> Option<String> {
    similar(path, |_| true).map(|other| format!("did you mean {}?", other.display()))
}

fn advice(other: Option<PathBuf>) -> String {
    other.map_or_else(|| "check the path".to_owned(), |other| format!("did you mean {}?", other.display()))
}

/// An entry in the folder of a missing path with a similar name: it differs by a slip of the pen, or the path only
/// lacks the extension.
fn similar(path: &Path, is_wanted: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // `train.de` is no slip for `train.en`.
    let of = |name: &str| -> [String; 2] {
        let (stem, extension) = name.split_once('.').unwrap_or((name, ""));
        [stem, extension].map(str::to_owned)
    };
    let [stem, extension] = of(name);
    let slips = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok().filter(|entry| is_wanted(&entry.path()))?;
        // A dangling link exists, too.
        let other = entry.file_name().into_string().ok().filter(|other| other != name)?;
        let [other_stem, other_extension] = of(&other);
        let slips = strsim::damerau_levenshtein(&stem, &other_stem);
        let is_close = extension == other_extension && (1..=2).contains(&slips) && 3 * slips <= stem.chars().count();
        (is_close || (slips == 0 && extension.is_empty())).then_some((slips, other))
    };
    let (_, other) = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.filter_map(slips).min()?;
    Some(folder.map_or_else(|| PathBuf::from(&other), |folder| folder.join(&other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_what_where_and_help() {
        let error =
            Error::usage("unknown key `dropuot` in [model]").at_line("a.toml", 12, 1).help("did you mean `dropout`?");
        assert_eq!(
            error.to_string(),
            "unknown key `dropuot` in [model]\n  --> a.toml:12:1\n  help: did you mean `dropout`?"
        );
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn what_is_quoted_forges_no_line_and_fills_no_screen() {
        let error = Error::failure("bad key `a\nerror: forged\u{202e}`").at("b\n  help: run this").help("c\u{1b}[2J");
        let text = "bad key `a\\nerror: forged\\u{202e}`\n  --> b\\n  help: run this\n  help: c\\u{1b}[2J";
        assert_eq!(error.to_string(), text);
        let long = Error::failure("ä".repeat(1_000_000)).to_string();
        assert!(long.chars().count() < limits::LONGEST_MESSAGE + 100 && long.contains("996000 characters left out"));
        let many = Error::many((0..300_000).map(|i| Error::failure(format!("error {i}"))).collect());
        assert_eq!((many.to_string().lines().count(), many.all().count()), (limits::MOST_ERRORS + 1, 300_000));
        assert!(many.to_string().ends_with("\nerror: and 299900 more of them: fix these first"), "{many}");
    }

    #[test]
    fn a_limit_on_open_files_is_no_damage() {
        let error = Error::io("read", "a", std::io::Error::from_raw_os_error(24));
        assert!(error.is_of_access() && error.is_of_open_files() && !error.is_of_disk());
        assert!(error.helps().is_some_and(|help| help.contains("ulimit -n")));
        let denied = Error::io("read", "a", std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.is_of_access() && !denied.is_of_open_files());
        assert!(!Error::io("read", "a", std::io::ErrorKind::NotFound.into()).is_of_access());
    }

    #[test]
    fn many_reports_all() {
        let error = Error::many(vec![Error::usage("one"), Error::usage("two").at("b")]);
        assert_eq!(error.to_string(), "one\nerror: two\n  --> b");
        assert_eq!(error.all().count(), 2);
        assert_eq!(Error::many(Vec::new()).what(), "unknown failure");
    }

    #[test]
    fn many_reports_each_once() {
        let errors = ["a", "b", "a", "a"].map(|file| Error::usage("no such file").at(file)).into();
        assert_eq!(Error::many(errors).to_string(), "no such file\n  --> a\nerror: no such file\n  --> b");
    }

    #[test]
    fn many_reports_all_of_what_was_many_before() {
        let pair = |[a, b]: [&str; 2]| Error::many(vec![Error::usage(a), Error::usage(b)]);
        let nested = Error::many(vec![pair(["a", "b"]), Error::usage("c"), pair(["d", "e"])]);
        let deep = Error::many(vec![Error::usage("first"), nested]);
        assert_eq!(deep.all().map(Error::what).collect::<Vec<_>>(), ["first", "a", "b", "c", "d", "e"]);
        assert_eq!(deep.to_string(), "first\nerror: a\nerror: b\nerror: c\nerror: d\nerror: e");
    }
}
