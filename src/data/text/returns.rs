//! Carriage returns that end lines, as on old Macs.
//!
//! A line ends at `\n` alone, since real sentences have a lone `\r` in them. Where that makes one line of many, text is
//! refused.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::Odd;
use super::lines::bare;
use crate::error::{Error, Result};

/// What makes lines of them.
pub const MEND: &str = "`tr '\\r' '\\n' < FILE > NEW` makes them line ends";

/// Refuses a file without any `\n` whose first line, which is all of it, has carriage returns between its words.
pub(super) fn refuse_in_place_of_newlines(first_line: &[u8], path: &Path) -> Result<()> {
    let text = first_line.trim_ascii();
    if first_line.ends_with(b"\n") || !text.contains(&b'\r') {
        return Ok(());
    }
    let error = Error::failure("carriage returns stand where lines should end, and no newline does").at(path);
    Err(error.help(format!("only a newline ends a line: {MEND}")))
}

/// A warning of lines with carriage returns within.
pub fn warning(path: &Path, Odd { lines, first }: Odd) -> String {
    let have = if lines == 1 { "line has" } else { "lines have" };
    let path = path.display();
    format!(
        "{path}: {lines} {have} carriage returns within (line {first} is the first): only a newline ends a line, and \
         {MEND}"
    )
}

/// Whether a line has a carriage return that is not part of its end.
pub(super) fn has_any(line: &[u8]) -> bool {
    line.contains(&b'\r') && bare(line, false).contains(&b'\r')
}

/// Rows of a table that carriage returns have joined into one line.
#[derive(Default)]
pub(super) struct JoinedRows {
    /// The columns of the first row without a carriage return.
    usual: Option<usize>,
    /// By the number of columns that several parts of a row have: the first such row, and how many parts.
    parts: BTreeMap<usize, (usize, usize)>,
}

impl JoinedRows {
    /// Looks at a row without its end.
    pub(super) fn add(&mut self, number: usize, row: &[u8]) {
        let columns = |part: &[u8]| 1 + part.iter().filter(|byte| **byte == b'\t').count();
        if !row.contains(&b'\r') {
            if self.usual.is_none() && row.contains(&b'\t') {
                self.usual = Some(columns(row));
            }
            return;
        }
        let mut of_row: BTreeMap<usize, usize> = BTreeMap::new();
        row.split(|byte| *byte == b'\r').map(columns).for_each(|count| *of_row.entry(count).or_default() += 1);
        // A row with a carriage return in a text has at most one part with all its columns.
        for (count, parts) in of_row.into_iter().filter(|(count, parts)| *count > 1 && *parts > 1) {
            self.parts.entry(count).or_insert((number, 0)).1 += parts;
        }
    }

    /// Refuses the table if some of its rows are several.
    pub(super) fn refuse(&self, path: &Path) -> Result<()> {
        let found = match self.usual {
            Some(usual) => self.parts.get(&usual),
            None => self.parts.values().max_by_key(|(_, parts)| *parts),
        };
        let Some((first, parts)) = found else { return Ok(()) };
        let what = format!("carriage returns make one row of {parts} or more; this is the first such row");
        Err(Error::failure(what).at_line(path, *first, 0).help(format!("only a newline ends a row: {MEND}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_without_newlines_is_refused() {
        let refused = |line: &[u8]| refuse_in_place_of_newlines(line, Path::new("t")).is_err();
        assert!(refused(b"a\rb\rc\r") && refused(b"a\rb"));
        for line in [&b"a\rb\n"[..], b"a\rb\r\n", b"a\r", b"a\r\r", b"\ra", b"a", b""] {
            assert!(!refused(line), "{line:?}");
        }
        assert!(has_any(b"a\rb\n") && has_any(b"a\r\r\n") && !has_any(b"a\r\n") && !has_any(b"a\r"));
    }

    #[test]
    fn joined_rows_are_no_texts_with_a_carriage_return() {
        for (table, line) in [
            // All rows, the end of them, and the beginning.
            ("a\tb\rc\td\re\tf\r", Some(1)),
            ("a\tb\nc\td\ne\tf\rg\th\r", Some(3)),
            ("a\tb\rc\td\n\ne\tf\n", Some(1)),
            ("a\tb\rc\td\ne\tf\rg\th\n", Some(1)),
            ("a\tb\nc\td\r\re\tf\rno tab\n", Some(2)),
            ("1\ta\tb\n2\tc\td\r3\te\tf\n", Some(2)),
            // Texts.
            ("a\rb\tc\nd\te\rf\n", None),
            ("a\rb\tc\rd\n", None),
            ("1\ta\tb\n2\tc\rd\te\n", None),
            ("1\tc\rd\te\n1\ta\tb\n", None),
            ("a\tb\r\nc\td\r\n", None),
            ("a\tb\nno\rtab\rhere\n", None),
        ] {
            let mut rows = JoinedRows::default();
            (1..)
                .zip(table.split_terminator('\n'))
                .for_each(|(number, row)| rows.add(number, bare(row.as_bytes(), false)));
            let found = rows.refuse(Path::new("t")).err().and_then(|error| error.location().map(|it| it.line));
            assert_eq!(found, line, "{table:?}");
        }
    }
}
