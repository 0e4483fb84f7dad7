//! The lines that a command works on: its arguments, a file or stdin, some at a time.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::output::Input;
use crate::console::prompt;
use crate::data::lines;
use crate::decode::source::BeyondPositions;
use crate::error::{Error, Result};

/// Lines taken together: enough to batch by length, few enough to answer soon and to bound memory.
const WINDOW: usize = 2000;

/// Where lines come from, and how far they have been read.
pub struct Lines {
    source: Source,
    /// Of the input, as a user would name it.
    name: PathBuf,
    /// Lines before the last window.
    before: usize,
    /// Lines of the last window.
    window: usize,
}

enum Source {
    Arguments(Vec<String>),
    File(Input),
    Stdin { input: Input, interactive: bool },
}

impl Lines {
    /// The arguments, each a line; without any the file, and without that stdin.
    pub fn open(arguments: &[String], input: Option<&Path>) -> Result<Self> {
        let named = input.filter(|path| *path != Path::new("-"));
        let (source, name) = match named {
            _ if !arguments.is_empty() => {
                let lines = arguments.iter().map(|text| text.replace(['\n', '\r'], " ")).collect();
                (Source::Arguments(lines), Path::new("arguments"))
            }
            Some(path) => (Source::File(Input::open(named)?), path),
            None => {
                let interactive = std::io::stdin().is_terminal();
                (Source::Stdin { input: Input::open(None)?, interactive }, Path::new("stdin"))
            }
        };
        Ok(Self { source, name: name.to_path_buf(), before: 0, window: 0 })
    }

    /// The file or stdin, where it is one: what an output must not be. Stdin is `-`.
    pub fn path(&self) -> Option<&Path> {
        match self.source {
            Source::Arguments(_) => None,
            Source::File(_) => Some(&self.name),
            Source::Stdin { .. } => Some(Path::new("-")),
        }
    }

    /// How many lines there are, where that can be told beforehand.
    pub fn count(&self) -> Option<usize> {
        match &self.source {
            Source::Arguments(lines) => Some(lines.len()),
            Source::File(_) => lines::count(&self.name),
            Source::Stdin { .. } => None,
        }
    }

    /// Further lines; none at the end. On a terminal one at a time, after a prompt.
    pub fn next(&mut self) -> Result<Vec<String>> {
        let lines = match &mut self.source {
            Source::Arguments(lines) => std::mem::take(lines),
            Source::Stdin { input, interactive: true } => {
                prompt("> ");
                input.lines(1)?
            }
            Source::File(input) | Source::Stdin { input, .. } => input.lines(WINDOW)?,
        };
        self.before += std::mem::replace(&mut self.window, lines.len());
        Ok(lines)
    }

    /// The lines of the last window up to the one that is refused, if any, and the error that this one is. Those before it
    /// can still be answered.
    pub fn split_at_refused<'l>(
        &self,
        window: &'l [String],
        beyond: Option<BeyondPositions>,
    ) -> (&'l [String], Option<Error>) {
        let Some(beyond) = beyond else { return (window, None) };
        let error = beyond.error(&self.name, self.before + 1);
        (&window[..beyond.line], Some(error.help("split the line; the lines before it are done")))
    }

    /// Tells of what was odd in the input.
    pub fn warn(&self) {
        match &self.source {
            Source::Arguments(_) => {}
            Source::File(input) | Source::Stdin { input, .. } => input.warn(),
        }
    }
}
