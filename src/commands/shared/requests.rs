//! Lines to translate, each with the constraints on its translation.

use std::path::Path;

use serde::Deserialize;

use super::input::{Input, Lines, is_stdin, shown_name, text_of, with_tag};
use crate::cli::TranslateArgs;
use crate::data::corpus::is_blank;
use crate::decode::source::Long;
use crate::decode::translate::{Constraints, Fault, TranslateOptions, Translator};
use crate::error::{Error, Result};
use crate::escape::brief;

/// A line of `--json-input`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    text: String,
    must: Option<Vec<String>>,
    avoid: Option<Vec<String>>,
    prefix: Option<String>,
}

/// Where demands come from.
enum Demanded<'a> {
    /// A flag: the same for all lines.
    Flag(Constraints),
    /// A file with a prefix for each line.
    PrefixFile(Input, &'a Path),
    /// The lines themselves.
    Json,
}

/// Lines to translate together.
#[derive(Default)]
pub(crate) struct Window {
    /// As the model is given them.
    pub lines: Vec<String>,
    /// The constraints of each line; empty without any.
    pub constraints: Vec<Constraints>,
    /// The error of the line after them, if that ended the window.
    pub refused: Option<Error>,
}

/// The input of `mt translate`.
pub(crate) struct Requests<'a> {
    lines: Lines,
    demanded: Demanded<'a>,
    /// The tag in front of the texts of JSON lines; [`Lines`] adds it to other lines.
    tag: Option<&'a str>,
}

impl<'a> Requests<'a> {
    /// Opens the input that the flags name; `tag` goes in front of each line.
    ///
    /// # Errors
    /// A file cannot be opened, or two would be stdin.
    pub(crate) fn open(args: &'a TranslateArgs, tag: Option<&'a str>) -> Result<Self> {
        let reads_stdin = args.text.is_empty() && args.input.as_deref().is_none_or(is_stdin);
        let demanded = match &args.prefix_file {
            Some(path) if reads_stdin && is_stdin(path) => {
                let error = Error::usage("--prefix-file and the text cannot both be stdin");
                return Err(error.help("name a file for one of them"));
            }
            Some(path) => Demanded::PrefixFile(Input::open(Some(path))?, path),
            None if args.json_input => Demanded::Json,
            None => {
                let prefix = args.prefix.as_deref().map(|text| text_of("--prefix", text)).unwrap_or_default();
                Demanded::Flag(Constraints { prefix, ..Constraints::default() })
            }
        };
        let of_lines = tag.filter(|_| !args.json_input);
        let mut lines = Lines::open(&args.text, args.input.as_deref(), of_lines)?;
        if args.json_input {
            lines.expect_json();
        }
        Ok(Self { lines, demanded, tag })
    }

    /// The lines that are read.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// The files that are read, which no output may replace; `-` is stdin.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let prefixes = match &self.demanded {
            Demanded::PrefixFile(_, path) => Some(*path),
            Demanded::Flag(_) | Demanded::Json => None,
        };
        self.lines.path().into_iter().chain(prefixes)
    }

    /// Refuses a demand on all lines that cannot be met.
    ///
    /// # Errors
    /// It cannot; exit code 2.
    pub(crate) fn check(&self, translator: &Translator, options: &TranslateOptions) -> Result<()> {
        let Demanded::Flag(constraints) = &self.demanded else { return Ok(()) };
        if let Some(Fault { what, help }) = translator.lacks_target_language(constraints) {
            return Err(Error::usage(what).help(help));
        }
        let fault = translator.fault("a line", constraints, options);
        fault.map_or(Ok(()), |Fault { what, help }| Err(Error::usage(format!("--prefix: {what}")).help(help)))
    }

    /// Warnings about the input, as far as it has been read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let prefixes = match &self.demanded {
            Demanded::PrefixFile(input, _) => input.warnings(),
            Demanded::Flag(_) | Demanded::Json => Vec::new(),
        };
        [self.lines.warnings(), prefixes].concat()
    }

    /// The next lines, none at the end.
    ///
    /// # Errors
    /// Nothing more can be read.
    pub(crate) fn next(&mut self, translator: &Translator, options: &TranslateOptions) -> Result<Window> {
        let lines = self.lines.next()?;
        let first = self.lines.first();
        let name = self.lines.name();
        let mut window = match &mut self.demanded {
            Demanded::Flag(constraints) if *constraints == Constraints::default() => {
                Window { lines, ..Window::default() }
            }
            Demanded::Flag(constraints) => {
                Window { constraints: vec![constraints.clone(); lines.len()], lines, refused: None }
            }
            Demanded::PrefixFile(input, path) => with_prefixes(lines, input, (*path, name, first))?,
            Demanded::Json => parse_json(lines, self.tag, (name, first)),
        };
        // The file of demands, unless all are alike, and have been checked.
        let demands = match &self.demanded {
            Demanded::Flag(_) => None,
            Demanded::PrefixFile(_, path) => Some(shown_name(path)),
            Demanded::Json => Some(name),
        };
        let faulty = |(line, constraints): (&String, &Constraints)| {
            let has_text = !is_blank(line);
            let into = || translator.lacks_target_language(constraints).filter(|_| has_text);
            into().or_else(|| translator.fault(line, constraints, options))
        };
        let fault = |(index, line): (usize, &String)| {
            let of_line = translator.lacks_source_language(line).map(|fault| (fault, name));
            let of_demand = || demands.and_then(|file| Some((faulty((line, window.constraints.get(index)?))?, file)));
            of_line.or_else(of_demand).map(|found| (index, found))
        };
        if let Some((index, (Fault { what, help }, file))) = window.lines.iter().enumerate().find_map(fault) {
            window.refuse(index, first, Error::failure(what).at_line(file, first + index, 0).help(help));
        }
        if options.long == Long::Error
            && let Some(beyond) = translator.beyond_positions(&window.lines)
        {
            let error = beyond.error(name, first).help("split the line");
            window.refuse(beyond.line, first, error);
        }
        Ok(window)
    }
}

impl Window {
    /// Cuts the lines off from one on, because of an error. `first` is the number of the first line.
    fn refuse(&mut self, index: usize, first: usize, error: Error) {
        self.lines.truncate(index);
        self.constraints.truncate(index);
        let is_first = first + index == 1;
        self.refused = Some(if is_first { error } else { error.more_help("the lines before it are done") });
    }
}

/// Lines with their prefixes. `path` is the file of prefixes, `name` that of the lines, `first` the number of the first
/// line.
fn with_prefixes(lines: Vec<String>, input: &mut Input, (path, name, first): (&Path, &Path, usize)) -> Result<Window> {
    let uneven = |short: &Path, long: &Path, count: usize| {
        let what = format!("{} ends after line {count}, but {} goes on", short.display(), long.display());
        Error::failure(what).help("give a prefix for each line; a blank one demands nothing")
    };
    let path = shown_name(path);
    if lines.is_empty() {
        return match input.lines(1)?.is_empty() {
            true => Ok(Window::default()),
            false => Err(uneven(name, path, first - 1)),
        };
    }
    /// No model has positions for such prefixes.
    const MOST_BYTES: usize = 64 << 20;
    let (mut prefixes, mut bytes, mut failed) = (Vec::new(), 0, None);
    while prefixes.len() < lines.len() && failed.is_none() {
        match input.lines(lines.len() - prefixes.len()) {
            Ok(more) if more.is_empty() => break,
            Ok(more) => {
                bytes += more.iter().map(String::len).sum::<usize>();
                prefixes.extend(more);
                if bytes > MOST_BYTES {
                    let error = Error::failure("the prefixes up to here are too long to be beginnings of translations");
                    let error = error.at_line(path, first - 1 + prefixes.len(), 0);
                    failed = Some(error.help("make sure that --prefix-file names the right file"));
                }
            }
            // The lines before can be translated.
            Err(error) if !prefixes.is_empty() => failed = Some(error),
            Err(error) => return Err(error),
        }
    }
    let constraints = prefixes.into_iter().map(|prefix| Constraints { prefix, ..Constraints::default() }).collect();
    let mut window = Window { lines, constraints, refused: None };
    let count = window.constraints.len();
    if count < window.lines.len() {
        window.refuse(count, first, uneven(path, name, first - 1 + count));
    }
    // What is damaged says itself that the lines before it are done.
    window.refused = failed.or(window.refused);
    Ok(window)
}

/// The texts of JSON lines, with the tag in front, and the constraints on their translations. A blank line has none,
/// and is a blank line in the output. `first` is the number of the first line, which is from the file `name`.
fn parse_json(lines: Vec<String>, tag: Option<&str>, (name, first): (&Path, usize)) -> Window {
    const HELP: &str =
        r#"each line is an object: {"text": "…"}, and if wanted "must": ["…"], "avoid": ["…"], "prefix": "…""#;
    let (mut texts, mut constraints, mut wrong) = (Vec::new(), Vec::new(), None);
    for (index, line) in lines.iter().enumerate() {
        if line.trim().is_empty() {
            texts.push(String::new());
            constraints.push(Constraints::default());
            continue;
        }
        // A list would be taken for the fields in their order.
        if !line.trim_start().starts_with('{') {
            let error = Error::failure("this is not a line of --json-input: it is no object");
            wrong = Some((index, error.at_line(name, first + index, 0).help(HELP)));
            break;
        }
        match serde_json::from_str::<Request>(line) {
            Ok(Request { text, must, avoid, prefix }) => {
                texts.push(text.replace(['\n', '\r'], " "));
                let prefix = prefix.unwrap_or_default().replace(['\n', '\r'], " ");
                let (must, avoid) = (must.unwrap_or_default(), avoid.unwrap_or_default());
                constraints.push(Constraints { prefix, must, avoid });
            }
            Err(error) => {
                let (what, column) = (error.to_string(), error.column());
                // As JSON calls it, and in short: serde quotes all of a text.
                let what = what.split(" at line ").next().unwrap_or_default().replace("a sequence", "a list");
                let what = brief(&what);
                let what = format!("this is not a line of --json-input: {what}");
                wrong = Some((index, Error::failure(what).at_line(name, first + index, column).help(HELP)));
                break;
            }
        }
    }
    let mut window = Window { lines: with_tag(tag, texts), constraints, refused: None };
    if let Some((index, error)) = wrong {
        window.refuse(index, first, error);
    }
    window
}
