//! Pairs in tables: values separated by commas, tabs, semicolons or bars, below a line of names or without one.
//!
//! A row ends where a line does (`lines`), unless the end lies within quotes. A file that ends within quotes is
//! refused: a single stray quote would otherwise make all rows after it one value. (The csv crate does neither, and is
//! unreliable about the lines of rows; tests hold what both read equal.)
//!
//! In tab-separated values, a quote is usually an ordinary character, but files from Python's csv module or pandas have
//! quotes around values. [`Dialect`] distinguishes the two. If only those values are quoted that need it, a row with
//! another number of values than the first shows where ([`RowReader::read_quoted`]).

use std::borrow::Cow;

use super::rows::{CORRECT, Lines};
use super::{Column, Columns, Rows, Shard, in_one_line, listed};
use crate::data::corpus::PairBlock;
use crate::error::{Error, Result};
use crate::limits;

/// How many rows decide whether values are quoted.
const SAMPLE: usize = 100;
/// Separators of values, in order of preference, after the one that the file's name suggests.
const SEPARATORS: [char; 4] = ['\t', ',', ';', '|'];

/// The rows of a table.
pub(super) struct TableRows {
    reader: RowReader,
    row: Row,
    /// Whether `row` has not been returned yet: the first one of a file without names.
    is_pending: bool,
    /// The columns of source and target.
    columns: [usize; 2],
}

impl TableRows {
    /// Opens the file. Values should be separated by `separator`.
    ///
    /// # Errors
    /// It cannot be read, or has no such columns.
    pub(super) fn open(shard: &Shard, columns: &Columns, separator: char) -> Result<Self> {
        let dialect = Dialect::detect(shard, columns, separator)?;
        let mut reader = RowReader { lines: Lines::open(shard)?, ahead: None, dialect, width: None };
        let mut row = Row::default();
        let is_row = reader.read(&mut row)?;
        let found = [&columns.source, &columns.target].map(|column| row.find(column));
        let [Some(source), Some(target)] = found else { return Err(no_columns(shard, columns, &row)) };
        // Names stand in the first line if there are any.
        reader.width = Some(row.ends.len());
        let is_pending = is_row && [&columns.source, &columns.target].iter().all(|column| column.is_number());
        Ok(Self { reader, row, is_pending, columns: [source, target] })
    }
}

impl Rows for TableRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        if !std::mem::take(&mut self.is_pending) && !self.reader.read(&mut self.row)? {
            return Ok(false);
        }
        let values = self.row.ends.len();
        if self.reader.width != Some(values) {
            return Err(self.reader.uneven(self.row.line, values));
        }
        let value = |column: usize| match self.row.is_unquoted {
            true => Cow::Borrowed(self.row.get(column)),
            false => self.reader.dialect.value(self.row.get(column)),
        };
        let [source, target] = self.columns.map(value);
        block.push(&in_one_line(&source), &in_one_line(&target));
        Ok(true)
    }

    fn line(&self) -> usize {
        self.row.line
    }
}

/// The error for a table whose first row does not have the columns.
fn no_columns(shard: &Shard, columns: &Columns, row: &Row) -> Error {
    let Columns { source, target } = columns;
    let short = |text: &str| text.chars().take(40).collect::<String>();
    let values: Vec<String> = (0..row.ends.len()).map(|column| short(row.get(column))).collect();
    if [source, target].iter().all(|column| column.is_number()) {
        let error = Error::failure(format!("there are no columns {source} and {target}, but {}", values.len()));
        return error.at_line(&shard.name, row.line, 0).help(format!("the first row is {}", listed(&values)));
    }
    let error = columns.missing(shard, &values);
    let is_single = |value: &String| value.len() > 1 && value.starts_with('\'') && value.ends_with('\'');
    if values.iter().any(is_single) {
        return error.more_help(&format!("values are quoted with ', and only \" quotes one: {CORRECT}"));
    }
    error.more_help("if these are text, the file has no line of names: count its columns, source = 1, target = 2")
}

/// The dialect of a table.
#[derive(Clone, Copy)]
struct Dialect {
    separator: char,
    /// Whether quotes stand around values: always, unless tabs separate them.
    has_quotes: bool,
}

impl Dialect {
    /// Detects the dialect from the beginning of the file; `separator` is the one that its name suggests.
    fn detect(shard: &Shard, columns: &Columns, separator: char) -> Result<Self> {
        let mut lines = Lines::open(shard)?;
        let (mut separator, mut rows) = (separator, 0);
        while let Some(line) = lines.next()?.filter(|_| rows < SAMPLE) {
            if line.is_empty() {
                continue;
            }
            if rows == 0 {
                let fits = |separator: &char| {
                    let mut row = Row::default();
                    push_line(&mut row, line, Self { separator: *separator, has_quotes: true }, None, 1);
                    row.find(&columns.source).is_some() && row.find(&columns.target).is_some()
                };
                separator = [separator].into_iter().chain(SEPARATORS).find(fits).unwrap_or(separator);
            }
            // A writer that quotes all text also quotes names. If names are plain, all rows must agree.
            let is_quoted = line.split('\t').filter(|value| !value.is_empty()).all(|value| unquoted(value).is_some());
            if separator != '\t' || is_quoted == (rows == 0) {
                return Ok(Self { separator, has_quotes: separator != '\t' || is_quoted });
            }
            rows += 1;
        }
        Ok(Self { separator, has_quotes: separator != '\t' || rows > 1 })
    }

    /// The value of a text between separators. If only values are quoted that need it, quotes within them are doubled;
    /// unquoted text does not look like that.
    fn value(self, text: &str) -> Cow<'_, str> {
        match unquoted(text).filter(|value| !self.has_quotes && value.contains("\"\"")) {
            Some(value) => Cow::Owned(value.replace("\"\"", "\"")),
            None => Cow::Borrowed(text),
        }
    }
}

/// The text between the quotes around a whole value, in which quotes are doubled.
fn unquoted(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.replace("\"\"", "").contains('"')).then_some(inner)
}

/// The values of a row.
#[derive(Default)]
struct Row {
    text: String,
    /// Where each value ends.
    ends: Vec<usize>,
    /// The line at which it begins, from 1.
    line: usize,
    /// The line of a quote within a value that follows a backslash and is not doubled.
    escaped: Option<usize>,
    /// Whether something other than a separator follows the quote at the end of a value.
    is_loose: bool,
    /// Whether its values stand for themselves, though the dialect has no quotes.
    is_unquoted: bool,
}

impl Row {
    fn get(&self, column: usize) -> &str {
        let start = column.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[column]]
    }

    /// Which column that is, if this row has the names, or enough columns.
    fn find(&self, column: &Column) -> Option<usize> {
        match column {
            Column::Name(name) => (0..self.ends.len()).find(|column| self.get(*column) == name),
            Column::Number(number) => number.checked_sub(1).filter(|column| *column < self.ends.len()),
        }
    }
}

/// Reads a file row by row; blank lines between rows are passed over.
struct RowReader {
    lines: Lines,
    /// The line that was read last, if it is still to be made a row.
    ahead: Option<String>,
    dialect: Dialect,
    /// How many values a row has, once known.
    width: Option<usize>,
}

impl RowReader {
    /// Reads the next row; false at the end.
    ///
    /// # Errors
    /// The file cannot be read, or the row has no end, or a far one.
    fn read(&mut self, row: &mut Row) -> Result<bool> {
        row.text.clear();
        row.ends.clear();
        row.is_unquoted = false;
        // The line of the quote within which the last line ended.
        let mut open = None;
        loop {
            let ahead = self.ahead.take();
            let number = self.lines.number() + usize::from(ahead.is_none());
            let line = match &ahead {
                Some(line) => Some(line.as_str()),
                None => self.lines.next()?,
            };
            let Some(line) = line else {
                return open.map_or(Ok(false), |line| Err(self.unclosed(line, "to the end of the file")));
            };
            if open.is_none() {
                if line.is_empty() {
                    continue;
                }
                row.line = number;
            }
            open = push_line(row, line, self.dialect, open, number);
            if may_be_quoted(row, self.dialect, self.width) {
                let line = line.to_owned();
                self.read_quoted(row, line)?;
                return Ok(true);
            }
            if let Some(line) = row.escaped.take() {
                let help = format!("write it twice, as a table of quoted values has it; {CORRECT}");
                return Err(self.wrong(line, "a quote within a value is escaped by a backslash".to_owned()).help(help));
            }
            let is_long = row.text.len() as u64 > limits::LINE_BYTES;
            match open {
                None => return Ok(true),
                Some(line) if is_long => return Err(self.unclosed(line, "within 64 MiB")),
                Some(_) => {}
            }
        }
    }

    /// Reads a row anew: a table may have quotes only around values with a tab or the end of a line in them. If it is
    /// no such row, it stays as it is.
    ///
    /// # Errors
    /// A line cannot be read; or it is a part of no row.
    fn read_quoted(&mut self, row: &mut Row, mut line: String) -> Result<()> {
        let dialect = Dialect { has_quotes: true, ..self.dialect };
        let mut quoted = Row { line: row.line, is_unquoted: true, ..Row::default() };
        let is_whole = self.width == Some(row.ends.len());
        let (mut open, mut stray) = (None, None);
        loop {
            open = push_line(&mut quoted, &line, dialect, open, row.line);
            let is_over = open.is_none() || quoted.is_loose || quoted.text.len() as u64 > limits::LINE_BYTES;
            if open.is_none() && !quoted.is_loose && self.width == Some(quoted.ends.len()) {
                *row = quoted;
                return Ok(());
            }
            let Some(next) = (if is_over { None } else { self.lines.next()? }) else { break };
            let width = 1 + next.matches(dialect.separator).count();
            line = next.to_owned();
            if is_whole && stray.is_none() && self.width == Some(width) {
                // A separate row, after one that only has a quote there.
                self.ahead = Some(line);
                return Ok(());
            }
            if stray.is_none() && !line.is_empty() {
                stray = Some((self.lines.number(), width));
            }
        }
        match stray.filter(|_| is_whole) {
            Some((line, values)) => Err(self.uneven(line, values)),
            None => Ok(()),
        }
    }

    /// The error for a row that has not as many values as the first.
    fn uneven(&self, line: usize, values: usize) -> Error {
        let width = self.width.unwrap_or_default();
        let what = format!("the row and the header differ in their number of values: {values} and {width}");
        self.wrong(line, what).help(CORRECT)
    }

    fn unclosed(&self, line: usize, how_far: &str) -> Error {
        let help = "a value that begins with a quote ends with one, and a quote within it is written twice";
        self.wrong(line, format!("a quote opens here and is not closed {how_far}")).help(format!("{help}; {CORRECT}"))
    }

    fn wrong(&self, line: usize, what: String) -> Error {
        Error::failure(what).at_line(&self.lines.shard.name, line, 0)
    }
}

/// Whether to read a row again with quotes: it does not have the usual number of values, or its last value begins with
/// a quote that does not end there.
fn may_be_quoted(row: &Row, dialect: Dialect, width: Option<usize>) -> bool {
    let last = || row.ends.len().checked_sub(1).map_or("", |last| row.get(last));
    let is_open = || last().starts_with('"') && unquoted(last()).is_none();
    !dialect.has_quotes && width.is_some_and(|width| width != row.ends.len() || is_open())
}

/// Appends the values of line `number` to a row. `open` is the line of the quote within which the line before ended, if
/// it did; returns the same of this one.
fn push_line(row: &mut Row, line: &str, dialect: Dialect, open: Option<usize>, number: usize) -> Option<usize> {
    let Dialect { separator, has_quotes } = dialect;
    let (mut rest, mut open, mut is_start) = (line, open, open.is_none());
    loop {
        if let Some(opened) = open {
            let Some((value, after)) = rest.split_once('"') else {
                row.text.push_str(rest);
                row.text.push('\n');
                return Some(opened);
            };
            row.text.push_str(value);
            rest = after;
            match rest.strip_prefix('"') {
                Some(after) => {
                    row.text.push('"');
                    rest = after;
                }
                None => {
                    open = None;
                    row.is_loose |= !rest.is_empty() && !rest.starts_with(separator);
                    if value.ends_with('\\') && !rest.is_empty() && !rest.starts_with(separator) {
                        row.escaped.get_or_insert(number);
                    }
                }
            }
        } else if let Some(after) = rest.strip_prefix('"').filter(|_| has_quotes && is_start) {
            (rest, open, is_start) = (after, Some(number), false);
        } else {
            let (value, after) = rest.split_once(separator).map_or((rest, None), |(value, after)| (value, Some(after)));
            row.text.push_str(value);
            row.ends.push(row.text.len());
            let after = after?;
            (rest, is_start) = (after, true);
        }
    }
}

#[cfg(test)]
mod tests;
