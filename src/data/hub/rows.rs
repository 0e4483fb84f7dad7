//! Pairs in text: a JSON object on each line, or two files aligned line by line.

use std::borrow::Cow;

use serde_json::Value;

use super::{Columns, Rows, Shard, in_one_line};
use crate::data::corpus::PairBlock;
use crate::data::text::file::LineReader;
use crate::error::{Error, Result};

/// What to do about text that cannot be read.
pub(super) const CORRECT: &str = "the file must be corrected where the data set is made";

/// A file's lines, one after the other.
pub(super) struct Lines {
    pub(super) shard: Shard,
    reader: LineReader,
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn open(shard: &Shard) -> Result<Self> {
        let reader = LineReader::open(&shard.path, &shard.name)?;
        Ok(Self { shard: shard.clone(), reader, line: Vec::new() })
    }

    /// The next line without its end.
    pub(super) fn next(&mut self) -> Result<Option<&str>> {
        self.line.clear();
        if !self.reader.next_line(&mut self.line)? {
            return Ok(None);
        }
        let line = std::str::from_utf8(&self.line);
        line.map(Some).map_err(|error| self.reader.not_utf8(&self.line, error.valid_up_to()).more_help(CORRECT))
    }

    /// The number of the line that was read last, from 1.
    pub(super) fn number(&self) -> usize {
        self.reader.number()
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::failure(what).at_line(&self.shard.name, self.number(), 0)
    }
}

/// Two files, aligned line by line.
pub struct TextRows {
    source: Lines,
    target: Lines,
}

impl TextRows {
    /// Opens the files.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn open(source: &Shard, target: &Shard) -> Result<Self> {
        Ok(Self { source: Lines::open(source)?, target: Lines::open(target)? })
    }
}

impl Rows for TextRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        let (longer, shorter) = match (self.source.next()?, self.target.next()?) {
            (Some(source), Some(target)) => {
                block.push(source, target);
                return Ok(true);
            }
            (None, None) => return Ok(false),
            (Some(_), None) => (&self.source, &self.target),
            (None, Some(_)) => (&self.target, &self.source),
        };
        let shorter = shorter.shard.name.display();
        let error = longer.wrong(format!("{shorter} has no such line: the files differ in their number of lines"));
        Err(error.help("line N of one file must be the translation of line N of the other"))
    }

    fn place(&self) -> usize {
        self.source.number()
    }
}

/// JSON objects, one a line: `{"en": …, "de": …}` or `{"translation": {"en": …, "de": …}}`. A blank line is an empty pair.
pub struct JsonRows {
    lines: Lines,
    columns: Columns,
}

impl JsonRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(shard: &Shard, columns: &Columns) -> Result<Self> {
        Ok(Self { lines: Lines::open(shard)?, columns: columns.clone() })
    }

    fn text<'v>(&self, value: &'v Value, name: &str) -> Result<Cow<'v, str>> {
        match value {
            Value::String(text) => Ok(in_one_line(text)),
            Value::Null => Ok(Cow::Borrowed("")),
            other => {
                let shown: String = other.to_string().chars().take(40).collect();
                let error = self.lines.wrong(format!("`{name}` is not text but {shown}"));
                Err(error.help("every row must have text there, or null"))
            }
        }
    }
}

impl Rows for JsonRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        let Some(line) = self.lines.next()? else { return Ok(false) };
        if line.trim().is_empty() {
            block.push("", "");
            return Ok(true);
        }
        let row: Value = match serde_json::from_str(line) {
            Ok(row) => row,
            Err(error) => {
                let help = "each line must be a JSON object; a file that is one list cannot be read";
                return Err(self.lines.wrong(format!("the line is not JSON: {error}")).help(help));
            }
        };
        let Some([source, target]) = fields(&row, &self.columns) else {
            let shard = &self.lines.shard;
            return Err(self.columns.missing(shard, &field_names(&row)).at_line(&shard.name, self.lines.number(), 0));
        };
        block.push(&self.text(source, &self.columns.source)?, &self.text(target, &self.columns.target)?);
        Ok(true)
    }

    fn place(&self) -> usize {
        self.lines.number()
    }
}

/// The two fields: at the top, or within one nested object, `translation` first.
fn fields<'v>(row: &'v Value, columns: &Columns) -> Option<[&'v Value; 2]> {
    let within = |object: &'v Value| Some([object.get(&columns.source)?, object.get(&columns.target)?]);
    let any = || row.as_object()?.values().find_map(within);
    let dotted = || Some([at(row, &columns.source)?, at(row, &columns.target)?]);
    within(row).or_else(|| within(row.get("translation")?)).or_else(dotted).or_else(any)
}

/// The field at a dotted name.
fn at<'v>(row: &'v Value, name: &str) -> Option<&'v Value> {
    name.split('.').try_fold(row, |value, part| value.get(part))
}

fn field_names(row: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in row.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(inner) => names.extend(inner.keys().map(|inner| format!("{name}.{inner}"))),
            None => names.push(name.clone()),
        }
    }
    names
}
