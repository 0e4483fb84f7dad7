//! Pairs in tables: values separated by commas or tabs, below a line of names.
//!
//! A row ends where a line does (`lines`), unless the end lies within quotes. A file that ends within quotes is refused: a
//! single stray quote would otherwise make all rows after it one value. (The csv crate does neither, and is unreliable about
//! the lines of rows; tests hold what both read equal.)

use super::rows::{CORRECT, Lines};
use super::{Columns, Rows, Shard, in_one_line};
use crate::data::corpus::PairBlock;
use crate::data::text::lines::LONGEST;
use crate::error::{Error, Result};

/// The rows of a table.
pub struct TableRows {
    reader: RowReader,
    row: Row,
    /// The number of columns.
    width: usize,
    /// The columns of source and target.
    columns: [usize; 2],
}

impl TableRows {
    /// Opens the file.
    ///
    /// # Errors
    /// It cannot be read, or has no such columns.
    pub fn open(shard: &Shard, columns: &Columns, separator: char) -> Result<Self> {
        let mut reader = RowReader { lines: Lines::open(shard)?, separator };
        let mut row = Row::default();
        reader.read(&mut row)?;
        let names: Vec<String> = (0..row.ends.len()).map(|column| row.get(column).to_owned()).collect();
        let position = |name: &str| names.iter().position(|column| column == name);
        let (Some(source), Some(target)) = (position(&columns.source), position(&columns.target)) else {
            return Err(columns.missing(shard, &names));
        };
        Ok(Self { reader, row, width: names.len(), columns: [source, target] })
    }
}

impl Rows for TableRows {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        if !self.reader.read(&mut self.row)? {
            return Ok(false);
        }
        let (values, width) = (self.row.ends.len(), self.width);
        if values != width {
            let what = format!("the row and the header differ in their number of values: {values} and {width}");
            return Err(self.reader.wrong(self.row.line, what).help(CORRECT));
        }
        let [source, target] = self.columns.map(|column| in_one_line(self.row.get(column)));
        block.push(&source, &target);
        Ok(true)
    }

    fn place(&self) -> usize {
        self.row.line
    }
}

/// The values of a row.
#[derive(Default)]
struct Row {
    text: String,
    /// Where each value ends.
    ends: Vec<usize>,
    /// The line at which it begins, from 1.
    line: usize,
}

impl Row {
    fn get(&self, column: usize) -> &str {
        let start = column.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[column]]
    }
}

/// Reads a file row by row; blank lines between rows are passed over.
struct RowReader {
    lines: Lines,
    separator: char,
}

impl RowReader {
    /// Reads the next row; false at the end.
    ///
    /// # Errors
    /// The file cannot be read, or the row has no end, or a far one.
    fn read(&mut self, row: &mut Row) -> Result<bool> {
        row.text.clear();
        row.ends.clear();
        // The line of the quote within which the last line ended.
        let mut open = None;
        loop {
            let number = self.lines.number() + 1;
            let Some(line) = self.lines.next()? else {
                return open.map_or(Ok(false), |line| Err(self.unclosed(line, "to the end of the file")));
            };
            if open.is_none() {
                if line.is_empty() {
                    continue;
                }
                row.line = number;
            }
            open = push_line(row, line, self.separator, open, number);
            let is_long = row.text.len() as u64 > LONGEST;
            match open {
                None => return Ok(true),
                Some(line) if is_long => return Err(self.unclosed(line, "within 64 MiB")),
                Some(_) => {}
            }
        }
    }

    fn unclosed(&self, line: usize, how_far: &str) -> Error {
        let help = "a value that begins with a quote ends with one, and a quote within it is written twice";
        self.wrong(line, format!("a quote opens here and is not closed {how_far}")).help(format!("{help}; {CORRECT}"))
    }

    fn wrong(&self, line: usize, what: String) -> Error {
        Error::failure(what).at_line(&self.lines.shard.name, line, 0)
    }
}

/// Appends the values of line `number` to a row. `open` is the line of the quote within which the line before ended, if it
/// did; returns the same of this one.
fn push_line(row: &mut Row, line: &str, separator: char, open: Option<usize>, number: usize) -> Option<usize> {
    // In tab-separated values a quote is usually an ordinary character.
    let has_quotes = separator != '\t';
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
                None => open = None,
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
        let columns = Columns { source: "en".into(), target: "de".into() };
        let mut rows = TableRows::open(&shard, &columns, separator).unwrap();
        let mut block = PairBlock::default();
        let error = loop {
            match rows.push(&mut block) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        let pair = |index| <[&str; 2]>::from(block.get(index)).map(str::to_owned);
        ((0..block.len()).map(pair).collect(), error)
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

    /// The beginning of a file is read when it is opened.
    #[test]
    fn a_file_that_cannot_be_read_is_named_as_on_the_hub() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob");
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let shard = Shard { name: "hub:o/set t.csv".into(), path: path.clone() };
            let columns = Columns { source: "en".into(), target: "de".into() };
            TableRows::open(&shard, &columns, ',').err().unwrap().to_string()
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
        let half = vec![b'x'; LONGEST as usize / 2];
        let long = [b"en,de\na,\"".to_vec(), half.clone(), b"\n".to_vec(), half, b"\n\",b\n".to_vec()];
        let error = read(&long.concat(), ',').1.unwrap().to_string();
        assert!(error.starts_with("a quote opens here and is not closed within 64 MiB\n  --> t.csv:2\n"), "{error}");
    }
}
