//! Pairs in tables: values separated by commas, tabs, semicolons or bars, below a line of names or without one.
//!
//! A row ends where a line does (`lines`), unless the end lies within quotes. A file that ends within quotes is refused: a
//! single stray quote would otherwise make all rows after it one value. (The csv crate does neither, and is unreliable about
//! the lines of rows; tests hold what both read equal.)
//!
//! In tab-separated values, a quote is usually an ordinary character, but files written by Python's csv module or by pandas have
//! quotes around values. [`Dialect`] tells one from the other; where only the values have quotes that need them, a row of another
//! width than the first shows where ([`RowReader::read_quoted`]).

use std::borrow::Cow;

use super::rows::{CORRECT, Lines};
use super::{Column, Columns, Rows, Shard, in_one_line, listed};
use crate::data::corpus::PairBlock;
use crate::error::{Error, Result};
use crate::limits;

/// Rows that are looked at to tell whether values are quoted.
const SAMPLE: usize = 100;
/// What separates values, in order of preference after what the file's name says.
const SEPARATORS: [char; 4] = ['\t', ',', ';', '|'];

/// The rows of a table.
pub struct TableRows {
    reader: RowReader,
    row: Row,
    /// Whether `row` is still to be given out: the first one of a file without names.
    is_pending: bool,
    /// The columns of source and target.
    columns: [usize; 2],
}

impl TableRows {
    /// Opens the file. Values should be separated by `separator`.
    ///
    /// # Errors
    /// It cannot be read, or has no such columns.
    pub fn open(shard: &Shard, columns: &Columns, separator: char) -> Result<Self> {
        let dialect = Dialect::of(shard, columns, separator)?;
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

    fn place(&self) -> usize {
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

/// How a table is written.
#[derive(Clone, Copy)]
struct Dialect {
    separator: char,
    /// Whether quotes stand around values: always, unless tabs separate them.
    has_quotes: bool,
}

impl Dialect {
    /// Finds out from the beginning of the file; `separator` is what its name says.
    fn of(shard: &Shard, columns: &Columns, separator: char) -> Result<Self> {
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
            // A writer that quotes all text quotes names, too. Where names are plain, all rows must agree.
            let is_quoted = line.split('\t').filter(|value| !value.is_empty()).all(|value| unquoted(value).is_some());
            if separator != '\t' || is_quoted == (rows == 0) {
                return Ok(Self { separator, has_quotes: separator != '\t' || is_quoted });
            }
            rows += 1;
        }
        Ok(Self { separator, has_quotes: separator != '\t' || rows > 1 })
    }

    /// The value that a text between separators stands for. Where only those are quoted that need it, quotes within are written
    /// twice; text that nobody has quoted does not look so.
    fn value(self, text: &str) -> Cow<'_, str> {
        match unquoted(text).filter(|value| !self.has_quotes && value.contains("\"\"")) {
            Some(value) => Cow::Owned(value.replace("\"\"", "\"")),
            None => Cow::Borrowed(text),
        }
    }
}

/// What stands between the quotes around a whole value, in which quotes are written twice.
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
    /// The line of a quote within a value that follows a backslash and is not written twice.
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
    /// How many values a row has, once that is known.
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

    /// Reads a row anew: a table may have quotes only around values with a tab or the end of a line in them. If it is no such row, it
    /// stays as it is.
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
                // A row of its own, after one that just has a quote there.
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

/// Whether a row that was read without quotes is to be read anew, as if there were some: it has not the usual number of values, or its
/// last one begins with a quote that does not end there.
fn may_be_quoted(row: &Row, dialect: Dialect, width: Option<usize>) -> bool {
    let last = || row.ends.len().checked_sub(1).map_or("", |last| row.get(last));
    let is_open = || last().starts_with('"') && unquoted(last()).is_none();
    !dialect.has_quotes && width.is_some_and(|width| width != row.ends.len() || is_open())
}

/// Appends the values of line `number` to a row. `open` is the line of the quote within which the line before ended, if it
/// did; returns the same of this one.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pairs of a table, and the error that ends them, if one does.
    fn read(table: &[u8], separator: char) -> (Vec<[String; 2]>, Option<Error>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, table).unwrap();
        let shard = Shard { name: "t.csv".into(), path };
        read_columns(&shard, "en".into(), "de".into(), separator)
    }

    fn read_columns(
        shard: &Shard,
        source: Column,
        target: Column,
        separator: char,
    ) -> (Vec<[String; 2]>, Option<Error>) {
        let mut block = PairBlock::default();
        let rows = TableRows::open(shard, &Columns { source, target }, separator);
        let read = rows.and_then(|mut rows| {
            while rows.push(&mut block)? {}
            Ok(())
        });
        let pair = |index| <[&str; 2]>::from(block.get(index)).map(str::to_owned);
        ((0..block.len()).map(pair).collect(), read.err())
    }

    /// The line of the first row that cannot be read.
    fn bad_line(table: &[u8]) -> usize {
        read(table, ',').1.unwrap().place().unwrap().line
    }

    fn pairs(table: &str, separator: char) -> Vec<[String; 2]> {
        let (pairs, error) = read(table.as_bytes(), separator);
        assert!(error.is_none(), "{}", error.unwrap());
        pairs
    }

    #[test]
    fn a_bad_row_is_at_its_line_of_the_file() {
        for end in ["\n", "\r\n"] {
            let line = |rows: &[&str]| bad_line([&["en,de"][..], rows].concat().join(end).as_bytes());
            assert_eq!(line(&["a"]), 2);
            assert_eq!(line(&["a,b", "c,d", "e,f,g", "h,i"]), 4);
            // A line break within a value.
            assert_eq!(line(&["\"a\nb\",c", "d"]), 4);
        }
        assert_eq!(bad_line(b"\"en\",\"de\",\"a\nb\"\na,b,c\nd,e\n"), 4);
        let error = read(b"en,de\na,b\nc,\xE9\n", ',').1.unwrap();
        let place = error.place().unwrap();
        assert_eq!((place.line, place.column), (3, 3));
        let help = error.helps().unwrap();
        assert!(help.starts_with("byte 0xE9 at offset 12; ") && help.ends_with(CORRECT), "{help}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_as_on_the_hub() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let shard = Shard { name: "hub:o/set t.csv".into(), path: path.clone() };
            read_columns(&shard, "en".into(), "de".into(), ',').1.unwrap().to_string()
        };
        // A byte order mark is no part of the line, but of the file.
        let error = open(b"\xEF\xBB\xBFen,de,\xE9\n");
        assert!(error.contains("hub:o/set t.csv:1:7\n") && error.contains("offset 9;"), "{error}");
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"en,de\nsome text,that is long enough\n").unwrap();
        let error = open(&encoder.finish().unwrap()[..20]);
        assert!(error.contains("hub:o/set t.csv\n") && error.contains("damaged or cut short"), "{error}");
        assert!(!error.contains("blob"), "{error}");
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        let table = "\u{feff}\"id\",en,\"de\"\r\n1,a,b\r\n\n2,\"c, \"\"d\"\"\",e\"f\"\n3,\"\",\"g\r\n\nh\"i\n4,j,\"k\"";
        let expected = [["a", "b"], ["c, \"d\"", "e\"f\""], ["", "g  hi"], ["j", "k"]];
        assert_eq!(pairs(table, ','), expected);
        assert_eq!(pairs("de\ten\n\"a\t\"\"b\n\t\n", '\t'), [["\"\"b", "\"a"], ["", ""]]);
        assert_eq!(pairs("de,en", ','), [[""; 2]; 0]);
    }

    #[test]
    fn quotes_around_values_that_tabs_separate() {
        let quoted = [["Er sagte \"ja\".", "a"], ["\"", "b"], ["c \"d\"", "e"]];
        for table in [
            // Only what needs it.
            "en\tde\n\"Er sagte \"\"ja\"\".\"\ta\n\"\"\"\"\tb\n\"c \"\"d\"\"\"\te\n",
            // Everything.
            "\"en\"\t\"de\"\n\"Er sagte \"\"ja\"\".\"\t\"a\"\n\"\"\"\"\t\"b\"\n\"c \"\"d\"\"\"\t\"e\"\n",
            // Everything but the names.
            "en\tde\n\"Er sagte \"\"ja\"\".\"\t\"a\"\n\"\"\"\"\t\"b\"\n\"c \"\"d\"\"\"\t\"e\"\n",
        ] {
            assert_eq!(pairs(table, '\t'), quoted, "{table}");
        }
        assert_eq!(pairs("en\tde\n\"a\"\t\"b c\"\n\"d\"\t\n", '\t'), [["a", "b c"], ["d", ""]]);
        assert_eq!(pairs("\"en\"\t\"de\"\n\"a\nb\tc\"\t\"d\"\n", '\t'), [["a b\tc", "d"]]);
        // Only values with a tab, the end of a line, or a quote in them.
        let table = "en\tde\nx\ty\n\"a\tb\"\tc\nd\t\"e\nf \"\"g\"\"\n\nh\"\n\"i\"\"\"\tj\nk\tl\n";
        let expected = [["x", "y"], ["a\tb", "c"], ["d", "e f \"g\"  h"], ["i\"", "j"], ["k", "l"]];
        assert_eq!(pairs(table, '\t'), expected);
        for (table, line) in [
            ("en\tde\nx\ty\n\"a\nb\tc\nd \"e\" f\tg\n", 3),
            ("en\tde\nx\ty\n\"a\nb\tc\n", 3),
            ("en\tde\nx\ty\n\"a\tb\tc\"\n", 3),
        ] {
            let (found, error) = read(table.as_bytes(), '\t');
            assert_eq!((found.len(), error.unwrap().place().unwrap().line), (1, line), "{table}");
        }
        // Text that nobody has quoted.
        let plain = "en\tde\n\"Yes\", he said.\t\"Ja.\"\n\"No.\"\t\"Nein.\"\n\"\"a\"\"\t\"\"\n\"b\tc\"\n";
        let expected =
            [["\"Yes\", he said.", "\"Ja.\""], ["\"No.\"", "\"Nein.\""], ["\"\"a\"\"", "\"\""], ["\"b", "c\""]];
        assert_eq!(pairs(plain, '\t'), expected);
    }

    #[test]
    fn separators_that_the_name_does_not_tell() {
        for table in ["en;de\na, b;c\n", "en\tde\na, b\tc\n", "en|de\na, b|c\n", "id;en;de\n1;a, b;\"c\"\n"] {
            for separator in [',', '\t'] {
                assert_eq!(pairs(table, separator), [["a, b", "c"]], "{table}");
            }
        }
        assert_eq!(pairs("en,de\n\"a; b\",c\n", '\t'), [["a; b", "c"]]);
    }

    #[test]
    fn a_table_without_names_has_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.tsv");
        let shard = Shard { name: "hub:o/set t.tsv".into(), path: path.clone() };
        let open = |table: &str, source: Column, target: Column, separator: char| {
            std::fs::write(&path, table).unwrap();
            let (pairs, error) = read_columns(&shard, source, target, separator);
            (pairs, error.map(|error| error.to_string()).unwrap_or_default())
        };
        let number = Column::Number;
        let (pairs, error) = open("Guten Tag\tHello\nJa\tYes\n", number(2), number(1), '\t');
        assert_eq!(
            (pairs, error.as_str()),
            (vec![["Hello", "Guten Tag"], ["Yes", "Ja"]].into_iter().map(|pair| pair.map(str::to_owned)).collect(), "")
        );
        let (pairs, _) = open("1,\"a, b\",c\n2,d,e\n", number(2), number(3), ',');
        assert_eq!(pairs, [["a, b", "c"], ["d", "e"]]);
        let (pairs, _) = open("a, b;c\nd;e\n", number(1), number(2), ';');
        assert_eq!(pairs, [["a, b", "c"], ["d", "e"]]);
        // With a name, the first line is of names.
        let (pairs, _) = open("en\tde\na\tb\n", "en".into(), number(2), '\t');
        assert_eq!(pairs, [["a", "b"]]);
        let (_, error) = open("Guten Tag\tHello\n", "de".into(), "en".into(), '\t');
        let says =
            ["there are no columns `de` and `en`", "name two of Guten Tag, Hello", "count its columns, source = 1"];
        assert!(says.iter().all(|says| error.contains(says)), "{error}");
        let (_, error) = open("a\tb\n", number(1), number(3), '\t');
        assert!(error.contains("there are no columns 1 and 3, but 2\n") && error.contains("t.tsv:1\n"), "{error}");
        let (_, error) = open("'en','de'\n'a','b'\n", "en".into(), "de".into(), ',');
        assert!(error.contains("values are quoted with '"), "{error}");
    }

    #[test]
    fn a_quote_that_a_backslash_escapes_is_refused() {
        let (pairs, error) = read(b"en,de\na\\,\"b\\\"\n\"c\",\"d\\\",\n\"Er sagte \\\"ja\\\".\",e\n", ',');
        assert_eq!(pairs, [["a\\", "b\\"]]);
        let error = error.unwrap();
        assert_eq!(error.place().unwrap().line, 3);
        let (_, error) = read(b"en,de\n\"Er sagte \\\"ja\\\".\",e\n", ',');
        let error = error.unwrap().to_string();
        assert!(error.contains("escaped by a backslash") && error.contains("t.csv:2\n"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn tables_are_read_as_by_the_csv_crate(rows in "([a,\"]|\"\"|\n|\r\n|\"a\",){0,24}") {
            let table = format!("en,de\n{rows}");
            let (ours, error) = read(table.as_bytes(), ',');
            // That one takes the end of the file for the end of the quote.
            prop_assume!(!error.as_ref().is_some_and(|error| error.what().starts_with("a quote opens")));
            let mut theirs = Vec::new();
            let mut reader = csv::Reader::from_reader(table.as_bytes());
            let is_whole = reader.records().try_for_each(|record| -> csv::Result<()> {
                let record = record?;
                theirs.push([&record[0], &record[1]].map(|value| in_one_line(value).into_owned()));
                Ok(())
            });
            prop_assert_eq!((ours, error.is_none()), (theirs, is_whole.is_ok()), "{:?}", table);
        }
    }

    #[test]
    fn a_carriage_return_within_a_line_ends_no_row() {
        for (separator, table) in [('\t', "en\tde\na\rb\tc\r\nd\te\rf\tg\n"), (',', "en,de\na\rb,c\r\nd,e\rf,g\n")] {
            let (pairs, error) = read(table.as_bytes(), separator);
            assert_eq!(
                (&pairs[..], error.unwrap().place().unwrap().line),
                (&[["a\rb", "c"].map(str::to_owned)][..], 3)
            );
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_is_refused_where_it_opens() {
        let table = "en,de\na,b\n\"c\nd\",\"e\nf,g\nh,i\n";
        for end in ["", "j,k", "\n"] {
            let (pairs, error) = read(format!("{table}{end}").as_bytes(), ',');
            let error = error.unwrap().to_string();
            assert_eq!(pairs, [["a", "b"]]);
            assert!(
                error.starts_with("a quote opens here and is not closed to the end of the file\n  --> t.csv:4\n"),
                "{error}"
            );
        }
        // Nor is more read than a row may hold.
        let half = vec![b'x'; limits::LINE_BYTES as usize / 2];
        let long = [b"en,de\na,\"".to_vec(), half.clone(), b"\n".to_vec(), half, b"\n\",b\n".to_vec()];
        let error = read(&long.concat(), ',').1.unwrap().to_string();
        assert!(error.starts_with("a quote opens here and is not closed within 64 MiB\n  --> t.csv:2\n"), "{error}");
    }
}
