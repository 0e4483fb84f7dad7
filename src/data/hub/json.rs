//! Pairs in JSON: an object for each row. They are the lines of a file, or the elements of one list; lists, and objects
//! one after the other, may be laid out over lines as they like.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::rows::{CORRECT, Lines};
use super::{Columns, Rows, Shard, in_one_line, listed};
use crate::data::corpus::PairBlock;
use crate::data::text::file::LineReader;
use crate::error::{Error, Result};
use crate::foreign::refuse_many_values;
use crate::limits;

/// The rows of a file of JSON objects.
pub(super) struct JsonRows {
    layout: Layout,
    shard: Shard,
    /// The fields of source and target.
    names: [String; 2],
}

enum Row {
    Blank,
    Of(Value),
}

/// How the objects are laid out.
enum Layout {
    /// Each line is a row; a blank one is an empty pair.
    Lines(Lines),
    /// Each value is a row, wherever lines end.
    Values(Values),
}

impl JsonRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn open(shard: &Shard, columns: &Columns) -> Result<Self> {
        let names = columns.names(shard)?;
        let is_lines = is_lines(shard)?;
        let layout = if is_lines { Layout::Lines(Lines::open(shard)?) } else { Layout::Values(Values::open(shard)?) };
        Ok(Self { layout, shard: shard.clone(), names })
    }

    /// The next row, or a blank line; `None` at the end.
    fn row(&mut self) -> Result<Option<Row>> {
        match &mut self.layout {
            Layout::Values(values) => Ok(if values.advance()? { Some(Row::Of(values.parsed()?)) } else { None }),
            Layout::Lines(lines) => {
                let Some(line) = lines.next()? else { return Ok(None) };
                if line.trim().is_empty() {
                    return Ok(Some(Row::Blank));
                }
                let sized = refuse_many_values(line.as_bytes(), limits::FOREIGN_VALUES);
                let row = sized.and_then(|()| {
                    let row = serde_json::from_str(line);
                    row.map_err(|error| Error::failure(format!("the line is not JSON: {error}")))
                });
                row.map(|row| Some(Row::Of(row))).map_err(|error| {
                    error.at_line(&self.shard.name, lines.number(), 0).help("each line must be a JSON object")
                })
            }
        }
    }

    fn text<'v>(&self, value: &'v Value, name: &str) -> Result<Cow<'v, str>> {
        match value {
            Value::String(text) => Ok(in_one_line(text)),
            Value::Null => Ok(Cow::Borrowed("")),
            Value::Array(_) | Value::Object(_) => {
                let error = self.wrong(format!("`{name}` is not text but {}", shown(value)));
                Err(error.help("every row must be an object of its own, and have text there, or null"))
            }
            other => {
                let error = self.wrong(format!("`{name}` is not text but {}", shown(other)));
                Err(error.help("every row must have text there, or null"))
            }
        }
    }

    /// The error for a row without the fields.
    fn without_fields(&self, row: &Value) -> Error {
        let [source, target] = &self.names;
        let Some(object) = row.as_object() else {
            let error = self.wrong(format!("the row is not a JSON object but {}", shown(row)));
            return error.help(format!("every row must be like {{\"{source}\": \"…\", \"{target}\": \"…\"}}"));
        };
        let is_rows = |value: &Value| value.as_array().is_some_and(|list| list.iter().any(Value::is_object));
        if let Some((name, _)) = object.iter().find(|(_, value)| is_rows(value)) {
            let what = format!("the file is one JSON object, whose rows are in the list `{name}`");
            let (file, table) = (self.shard.file_name(), "{ tsv = \"rows.tsv\", source = 1, target = 2 }");
            let rows = format!(".\"{name}\"[] | [.\"{source}\", .\"{target}\"] | @tsv");
            return self
                .wrong(what)
                .help(format!("make a table of it: jq -r '{rows}' {file} > rows.tsv; then name that: {table}"));
        }
        let names = field_names(object);
        let is_there =
            |name: &String| at(row, name).is_some() || names.iter().any(|of| of.split('.').next_back() == Some(name));
        let help = format!("with `source` and `target` name two of {}", listed(&names));
        let missing = [source, target].into_iter().find(|name| !is_there(name));
        match missing.filter(|_| is_there(source) || is_there(target)) {
            Some(name) => {
                let help = format!("{help}; or give every row `{name}`, which may be null");
                self.wrong(format!("the row has no `{name}`")).help(help)
            }
            None => self.wrong(format!("there are no columns `{source}` and `{target}`")).help(help),
        }
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::failure(what).at_line(&self.shard.name, self.line(), 0)
    }
}

impl Rows for JsonRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        let row = match self.row()? {
            None => return Ok(false),
            Some(Row::Blank) => {
                block.push("", "");
                return Ok(true);
            }
            Some(Row::Of(row)) => row,
        };
        let [source, target] = &self.names;
        let Some([source_value, target_value]) = fields(&row, &self.names) else {
            return Err(self.without_fields(&row));
        };
        block.push(&self.text(source_value, source)?, &self.text(target_value, target)?);
        Ok(true)
    }

    fn line(&self) -> usize {
        match &self.layout {
            Layout::Lines(lines) => lines.number(),
            Layout::Values(values) => values.begins,
        }
    }
}

/// The beginning of a value, for a message.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// The two fields: at the top, or within one nested object, `translation` first.
fn fields<'v>(row: &'v Value, [source, target]: &[String; 2]) -> Option<[&'v Value; 2]> {
    let within = |object: &'v Value| Some([object.get(source)?, object.get(target)?]);
    let any = || row.as_object()?.values().find_map(within);
    let dotted = || Some([at(row, source)?, at(row, target)?]);
    within(row).or_else(|| within(row.get("translation")?)).or_else(dotted).or_else(any)
}

/// The field at a dotted name.
fn at<'v>(row: &'v Value, name: &str) -> Option<&'v Value> {
    name.split('.').try_fold(row, |value, part| value.get(part))
}

fn field_names(row: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    for (name, value) in row {
        match value.as_object() {
            Some(inner) => names.extend(inner.keys().map(|inner| format!("{name}.{inner}"))),
            None => names.push(name.clone()),
        }
    }
    names
}

/// Whether the rows are lines: unless the file is a list, or its first line that is not blank ends within a value or
/// has several.
fn is_lines(shard: &Shard) -> Result<bool> {
    if Values::open(shard)?.skip_space()? == Some(b'[') {
        return Ok(false);
    }
    let mut lines = Lines::open(shard)?;
    while let Some(line) = lines.next()? {
        if !line.trim().is_empty() {
            let is_one = !serde_json::from_str::<IgnoredAny>(line).is_err_and(|error| error.is_eof());
            return Ok(is_one && !has_several(line));
        }
    }
    Ok(true)
}

/// Whether another object follows the first on the same line.
fn has_several(line: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(line).into_iter::<IgnoredAny>();
    let is_value = values.next().is_some_and(|value| value.is_ok());
    is_value && line.get(values.byte_offset()..).is_some_and(|rest| rest.trim_start().starts_with('{'))
}

/// The values of a list, or of a file of values one after the other. One value at a time is in memory.
struct Values {
    shard: Shard,
    reader: LineReader,
    /// The current line, from 1.
    line: usize,
    /// The line at which the last value begins.
    begins: usize,
    /// How many values have been read.
    count: usize,
    state: State,
    value: Vec<u8>,
}

/// The state of reading a file of values.
#[derive(Clone, Copy)]
enum State {
    Nothing,
    /// Values that are in no list.
    Values,
    /// The list, to its beginning or a comma.
    Before,
    /// The list, to the end of a value.
    After,
    /// All of the list.
    All,
}

impl Values {
    fn open(shard: &Shard) -> Result<Self> {
        let reader = LineReader::open(&shard.path, &shard.name)?;
        let (value, state) = (Vec::new(), State::Nothing);
        Ok(Self { shard: shard.clone(), reader, line: 1, begins: 1, count: 0, state, value })
    }

    /// Reads the next value; false at the end.
    fn advance(&mut self) -> Result<bool> {
        loop {
            match (self.state, self.skip_space()?) {
                (State::Before | State::After, None) => {
                    return Err(self.wrong(self.line, "the list is not closed").help("the file was cut short"));
                }
                (_, None) => return Ok(false),
                (State::Nothing, Some(b'[')) => self.state = State::Before,
                (State::Nothing | State::Values, Some(_)) => {
                    self.state = State::Values;
                    return self.gather().map(|()| true);
                }
                (State::Before, Some(b']')) if self.count == 0 => self.state = State::All,
                (State::After, Some(b']')) => self.state = State::All,
                (State::After, Some(b',')) => self.state = State::Before,
                (State::Before, Some(_)) => {
                    self.state = State::After;
                    return self.gather().map(|()| true);
                }
                (State::After, Some(_)) => {
                    return Err(self.wrong(self.line, "no comma after an element of the list").help(CORRECT));
                }
                (State::All, Some(_)) => {
                    let help = "a file is one list of objects, or has one object on each line";
                    return Err(self.wrong(self.line, "something follows the end of the list").help(help));
                }
            }
            self.reader.consume(1);
        }
    }

    /// The value that was read last.
    fn parsed(&self) -> Result<Value> {
        refuse_many_values(&self.value, limits::FOREIGN_VALUES)
            .map_err(|error| error.at_line(&self.shard.name, self.begins, 0))?;
        serde_json::from_slice(&self.value).map_err(|error| {
            let (line, column) = if error.line() > 1 { (error.line() - 1, error.column()) } else { (0, 0) };
            let error = Error::failure(format!("value {} is not JSON: {error}", self.count));
            error.at_line(&self.shard.name, self.begins + line, column).help(CORRECT)
        })
    }

    /// Passes over white space, and over a byte order mark; what comes then, if anything does.
    fn skip_space(&mut self) -> Result<Option<u8>> {
        loop {
            let is_first = matches!(self.state, State::Nothing);
            let is_mark = |byte: &u8| is_first && matches!(byte, 0xEF | 0xBB | 0xBF);
            let bytes = self.reader.fill()?;
            let space = bytes.iter().take_while(|byte| byte.is_ascii_whitespace() || is_mark(byte)).count();
            let (next, is_end) = (bytes.get(space).copied(), bytes.is_empty());
            self.line += newlines(bytes.get(..space).unwrap_or_default());
            self.reader.consume(space);
            if next.is_some() || is_end {
                return Ok(next);
            }
        }
    }

    /// Reads the value that begins here to its end.
    fn gather(&mut self) -> Result<()> {
        self.value.clear();
        (self.begins, self.count) = (self.line, self.count + 1);
        let mut end = End::default();
        loop {
            let bytes = self.reader.fill()?;
            if bytes.is_empty() {
                // Parsing reports the missing part.
                return Ok(());
            }
            let found = end.find(bytes);
            let part = bytes.get(..found.unwrap_or(bytes.len())).unwrap_or_default();
            self.value.extend_from_slice(part);
            self.line += newlines(part);
            let length = part.len();
            self.reader.consume(length);
            if found.is_some() {
                return Ok(());
            }
            if self.value.len() as u64 > limits::LINE_BYTES {
                let error = self.wrong(self.begins, "the value that begins here is longer than 64 MiB");
                return Err(error.help("a file of rows is needed: one list of objects, or an object on each line"));
            }
        }
    }

    fn wrong(&self, line: usize, what: &str) -> Error {
        Error::failure(what).at_line(&self.shard.name, line, 0)
    }
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Finds where a value ends, in parts of it.
#[derive(Default)]
struct End {
    /// How many lists and objects are open.
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl End {
    /// Where the value ends within these bytes, which follow those of the last call.
    fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        for (index, byte) in bytes.iter().enumerate() {
            if self.is_in_text {
                let is_escaped = std::mem::take(&mut self.is_escaped);
                match byte {
                    _ if is_escaped => {}
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.is_in_text = false;
                        if self.depth == 0 {
                            return Some(index + 1);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.is_in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                // A number or a word ends before these.
                b',' | b'}' | b']' if self.depth == 0 => return Some(index),
                byte if self.depth == 0 && byte.is_ascii_whitespace() => return Some(index),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs of a file with the lines that they begin at, and the error that ends them, if one does.
    fn read(text: &[u8]) -> (Vec<(usize, [String; 2])>, Option<Error>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        std::fs::write(&path, text).unwrap();
        let shard = Shard { name: "hub:o/set t.json".into(), path };
        let columns = Columns { source: "en".into(), target: "de".into() };
        let (mut block, mut lines) = (PairBlock::default(), Vec::new());
        let error = JsonRows::open(&shard, &columns).and_then(|mut rows| {
            while rows.push(&mut block)? {
                lines.push(rows.line());
            }
            Ok(())
        });
        let pairs = lines.into_iter().enumerate();
        (
            pairs.map(|(index, line)| (line, <[&str; 2]>::from(block.get(index)).map(str::to_owned))).collect(),
            error.err(),
        )
    }

    #[test]
    fn however_the_objects_are_laid_out() {
        let pair = |line, en: &str, de: &str| (line, [en.to_owned(), de.to_owned()]);
        for (text, expected) in [
            (r#"{"en": "a", "de": "b"}"#, vec![pair(1, "a", "b")]),
            (
                "{\"en\": \"a\", \"de\": \"b\"}\n\n{\"de\": null, \"en\": \"c\"}\n",
                vec![pair(1, "a", "b"), pair(2, "", ""), pair(3, "c", "")],
            ),
            (
                r#"[{"en": "a", "de": "b"}, {"en": "]}\\\",{", "de": "\u00e4"}]"#,
                vec![pair(1, "a", "b"), pair(1, "]}\\\",{", "ä")],
            ),
            (
                "\n[\n  {\n    \"en\": \"a\",\n    \"de\": \"b\"\n  },\n  {\"translation\": {\"en\": \"c\", \"de\": \
                 \"d\"}}\n]\n",
                vec![pair(3, "a", "b"), pair(7, "c", "d")],
            ),
            (
                "{\n  \"en\": \"a\",\n  \"de\": \"b\"\n}\n{\"en\": \"c\",\n\
                 \"de\": \"d\"} {\"en\": \"e\", \"de\": \"f\"}",
                vec![pair(1, "a", "b"), pair(5, "c", "d"), pair(6, "e", "f")],
            ),
            (
                "{\"en\": \"a\", \"de\": \"b\"} {\"en\": \"c\", \"de\": \"d\"}\n{\"en\": \"e\", \"de\": \"f\"}",
                vec![pair(1, "a", "b"), pair(1, "c", "d"), pair(2, "e", "f")],
            ),
            ("[]", vec![]),
        ] {
            for text in [text.to_owned(), format!("\u{feff}{text}"), text.replace('\n', "\r\n")] {
                let (pairs, error) = read(text.as_bytes());
                assert!(error.is_none(), "{text:?}: {}", error.unwrap());
                assert_eq!(pairs, expected, "{text:?}");
            }
        }
        assert_eq!(read(b"").0, []);
        // Packed, and longer than the buffer.
        let rows: Vec<_> = (0..9000).map(|i| format!("{{\"en\": \"the {i}th\", \"de\": \"die {i}.\"}}")).collect();
        let packed = zstd::encode_all(format!("[{}]", rows.join(",")).as_bytes(), 1).unwrap();
        let (pairs, error) = read(&packed);
        assert!(error.is_none() && pairs.len() == 9000);
        assert_eq!(pairs[8999], pair(1, "the 8999th", "die 8999."));
    }

    #[test]
    fn errors_have_their_line() {
        for (text, count, line, says) in [
            (
                "[\n{\"en\": \"a\", \"de\": \"b\"},\n{\"en\": }\n]",
                1,
                "t.json:3\n",
                "value 2 is not JSON: expected value",
            ),
            ("[\n{\"en\": \"a\", \"de\": \"b\"}", 1, "t.json:2\n", "the list is not closed"),
            ("[\n{\"en\": \"a\", \"de\": \"b\"", 0, "t.json:2\n", "value 1 is not JSON: EOF"),
            ("[{\"en\": \"a\", \"de\": \"b\"} {}]", 1, "t.json:1\n", "no comma"),
            ("[{\"en\": \"a\", \"de\": \"b\"},]", 1, "t.json:1\n", "value 2 is not JSON"),
            ("[{\"en\": \"a\", \"de\": \"b\"}]\n[]", 1, "t.json:2\n", "something follows the end of the list"),
            ("[\"a\", \"b\"]", 0, "t.json:1\n", "the row is not a JSON object but \"a\""),
            ("[[\"a\", \"b\"]]", 0, "t.json:1\n", "the row is not a JSON object but [\"a\",\"b\"]"),
            ("[null]", 0, "t.json:1\n", "the row is not a JSON object but null"),
            ("[{\"en\": \"a\"}]", 0, "t.json:1\n", "with `source` and `target` name two of en"),
            ("[{\"id\": \"a\"}]", 0, "t.json:1\n", "there are no columns `en` and `de`"),
            ("{\"en\": \"a\", \"de\": \"b\"}\n{\"en\": \"a\", \"id\": 1}\n", 1, "t.json:2\n", "the row has no `de`\n"),
            ("{\"translation\": {\"de\": \"a\"}}\n", 0, "t.json:1\n", "the row has no `en`\n"),
            ("{\"en\": [\"a\"], \"de\": [\"b\"]}", 0, "t.json:1\n", "every row must be an object of its own"),
            (
                "{\"data\": [{\"en\": \"a\"}]}",
                0,
                "t.json:1\n",
                "jq -r '.\"data\"[] | [.\"en\", .\"de\"] | @tsv' t.json",
            ),
            (
                "{\n \"version\": 1,\n \"data\": [{\"en\": \"a\"}]}",
                0,
                "t.json:1\n",
                "whose rows are in the list `data`",
            ),
            ("{\"en\": \"a\", \"de\": \"b\"},\n", 0, "t.json:1\n", "the line is not JSON: trailing characters"),
        ] {
            let (pairs, error) = read(text.as_bytes());
            let error = error.unwrap().to_string();
            assert!(pairs.len() == count && error.contains(says) && error.contains(line), "{text}: {error}");
        }
        let (_, error) = read(b"[{\"en\": \"\xE9\", \"de\": \"b\"}]");
        assert!(error.unwrap().to_string().contains("value 1 is not JSON"));
    }
}
