//! Text as it is, valid UTF-8 or not, in windows of lines: for checks, which must not hold the text of a corpus.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use super::super::corpus::{PairSource, Side};
use super::encoding;
use super::lines::{BYTE_ORDER_MARK, bare, is_blank_row, not_read, read_line};
use super::packing::{Packing, open_sentences};
use super::returns::{JoinedRows, refuse_in_place_of_newlines};
use crate::error::{Error, Result};

/// The most lines of a window on a side, …
const LINES: usize = 1 << 16;
/// … and the bytes of a side after which it ends.
const BYTES: usize = 16 << 20;

/// Where consecutive lines come from.
#[derive(Clone, Debug, Default)]
pub struct LineLocations(Vec<Stretch>);

/// Lines of a file without gaps.
#[derive(Clone, Debug)]
struct Stretch {
    /// The index of the first.
    first: usize,
    file: Arc<Path>,
    /// The number of the first in the file, from 1.
    line: usize,
}

impl LineLocations {
    /// Line `index`, which follows the known lines, is line `line` of a file.
    fn push(&mut self, index: usize, file: &Path, line: usize) {
        // One that has no line after all.
        self.0.pop_if(|last| last.first == index && (*last.file != *file || last.line != line));
        let last = self.0.last();
        if last.is_none_or(|last| *last.file != *file || index - last.first + last.line != line) {
            let same = last.map(|last| &last.file).filter(|same| ***same == *file).cloned();
            self.0.push(Stretch { first: index, file: same.unwrap_or_else(|| file.into()), line });
        }
    }

    /// Adds the lines of `window`, the first with this index.
    pub fn extend(&mut self, index: usize, window: &RawLines) {
        window.locations.0.iter().for_each(|stretch| self.push(index + stretch.first, &stretch.file, stretch.line));
    }

    /// The file and the line there, from 1, of line `index`, from 0.
    pub fn location(&self, index: usize) -> (&Path, usize) {
        let after = self.0.partition_point(|stretch| stretch.first <= index);
        let stretch = after.checked_sub(1).and_then(|last| self.0.get(last));
        stretch.map_or((Path::new(""), index + 1), |it| (&it.file, index - it.first + it.line))
    }
}

/// Consecutive lines of one side of a corpus, as bytes.
pub struct RawLines {
    locations: LineLocations,
    bytes: Vec<u8>,
    /// Where each line starts, and the end.
    starts: Vec<usize>,
    /// Whether a byte order mark came before the first line.
    pub byte_order_mark: bool,
    /// Rows of a file of columns, from 1, that have too few of them. They are none of the lines.
    pub left_out: Vec<usize>,
}

impl RawLines {
    /// No lines yet; the next one is line `line` of a file.
    fn new(file: &Path, line: usize) -> Self {
        let mut locations = LineLocations::default();
        locations.push(0, file, line);
        Self { locations, bytes: Vec::new(), starts: vec![0], byte_order_mark: false, left_out: Vec::new() }
    }

    /// Adds a line without its end.
    fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.starts.push(self.bytes.len());
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        self.locations.location(0).0
    }

    /// The file and the line there, from 1, of line `index`, from 0.
    pub fn location(&self, index: usize) -> (&Path, usize) {
        self.locations.location(index)
    }

    /// Number of lines; a last line without `\n` counts.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_full(&self) -> bool {
        self.len() >= LINES || self.bytes.len() >= BYTES
    }

    /// Line `index` (from 0) and the lines around it, as many as the detection of an encoding needs. Panics as
    /// [`Self::get`] does.
    pub fn around(&self, index: usize) -> &[u8] {
        encoding::around(&self.bytes, self.starts[index])
    }

    /// Line `index` (from 0) without its `\n`. Panics where `index` is not less than [`Self::len`].
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.starts[index]..self.starts[index + 1]]
    }
}

/// A file being read.
struct Reader<'p> {
    path: &'p Path,
    stream: Box<dyn BufRead + Send>,
    packing: Packing,
    /// Lines read so far.
    lines: usize,
    /// The last of them.
    line: Vec<u8>,
}

impl<'p> Reader<'p> {
    fn open(path: &'p Path) -> Result<Self> {
        let (stream, packing) = open_sentences(path)?;
        Ok(Self { path, stream, packing, lines: 0, line: Vec::new() })
    }

    /// A window for the next lines.
    fn window(&self) -> RawLines {
        RawLines::new(self.path, self.lines + 1)
    }

    /// Adds the next line to a window; false at the end of the file.
    fn read(&mut self, window: &mut RawLines) -> Result<bool> {
        self.line.clear();
        let read = read_line(&mut self.stream, &mut self.line);
        let mut line = match read.map_err(|error| not_read(self.path, self.packing, self.lines + 1, error))? {
            0 => return Ok(false),
            _ => &self.line[..],
        };
        if self.lines == 0 {
            let refused = refuse_in_place_of_newlines(line, self.path);
            refused.map_err(|error| self.packing.inside(error))?;
        }
        if self.lines == 0
            && let Some(rest) = line.strip_prefix(BYTE_ORDER_MARK)
        {
            window.byte_order_mark = true;
            // Nothing but the mark is no line.
            if rest.is_empty() {
                return Ok(false);
            }
            line = rest;
        }
        window.push(line.strip_suffix(b"\n").unwrap_or(line));
        self.lines += 1;
        Ok(true)
    }
}

/// Reads a file. Gives at least one window, perhaps without lines. If reading fails, it has given the lines before.
pub fn windows_of_file(path: &Path, mut each: impl FnMut(RawLines)) -> Result<()> {
    windows([Reader::open(path)?], |[window]| each(window))
}

/// Reads two files line by line, so that windows of both have as many lines, until one file ends. At least one window
/// comes.
pub fn windows_of_files(paths: [&Path; 2], each: impl FnMut([RawLines; 2])) -> Result<()> {
    match paths.map(Reader::open) {
        [Ok(source), Ok(target)] => windows([source, target], each),
        sides => Err(Error::many(sides.into_iter().filter_map(Result::err).collect())),
    }
}

fn windows<const N: usize>(mut readers: [Reader; N], mut each: impl FnMut([RawLines; N])) -> Result<()> {
    let mut is_first = true;
    loop {
        let mut sides = readers.each_ref().map(Reader::window);
        let mut is_last = false;
        let mut read = Ok(());
        while !is_last && read.is_ok() && !sides.iter().any(RawLines::is_full) {
            is_last = true;
            for (reader, side) in readers.iter_mut().zip(&mut sides) {
                match reader.read(side) {
                    Ok(has_line) => is_last &= !has_line,
                    Err(error) => read = Err(error),
                }
            }
        }
        if is_first || !sides.iter().all(RawLines::is_empty) {
            each(sides);
        }
        is_first = false;
        read?;
        if is_last {
            return Ok(());
        }
    }
}

/// Reads two tab-separated columns of a file, numbered from 1. Rows that lack one of them are left out. Gives at least
/// one window. Fails at the end if carriage returns separate rows.
pub fn windows_of_columns(path: &Path, columns: [usize; 2], mut each: impl FnMut([RawLines; 2])) -> Result<()> {
    let mut joined = JoinedRows::default();
    windows_of_file(path, |rows| {
        let mut sides = [(); 2].map(|()| RawLines::new(path, rows.location(0).1));
        sides[0].byte_order_mark = rows.byte_order_mark;
        for index in 0..rows.len() {
            let row = rows.get(index);
            let (_, number) = rows.location(index);
            joined.add(number, bare(row, false));
            // As training reads it.
            let column = |number: usize| match is_blank_row(row) {
                true => Some(&[][..]),
                false => row.split(|byte| *byte == b'\t').nth(number - 1),
            };
            let [Some(source), Some(target)] = columns.map(column) else {
                sides.iter_mut().for_each(|side| side.left_out.push(number));
                continue;
            };
            for (side, column) in sides.iter_mut().zip([source, target]) {
                side.locations.push(side.len(), path, number);
                side.push(column);
            }
        }
        each(sides);
    })?;
    joined.refuse(path)
}

/// Reads the pairs of a corpus.
pub fn windows_of_pairs(corpus: &dyn PairSource, mut each: impl FnMut([RawLines; 2])) -> Result<()> {
    let mut read = 0;
    for block in corpus.blocks()? {
        let block = block?;
        let mut sides = [Side::Source, Side::Target].map(|side| {
            let (file, line) = corpus.origin(read, side);
            (side, RawLines::new(&file, line))
        });
        for (source, target) in (0..block.len()).map(|pair| block.get(pair)) {
            for ((side, lines), text) in sides.iter_mut().zip([source, target]) {
                let (file, line) = corpus.origin(read, *side);
                lines.locations.push(lines.len(), &file, line);
                lines.push(text.as_bytes());
            }
            read += 1;
        }
        each(sides.map(|(_, lines)| lines));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::lines::read_lines;
    use super::super::write;
    use super::*;

    fn numbered(lines: usize) -> String {
        (1..=lines).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn lines_are_those_that_training_reads() {
        let folder = tempfile::tempdir().unwrap();
        for text in
            ["", "\n", "a", "a\n", "a\n\nb", "a\u{2028}b\u{85}c\n", "\u{FEFF}a\n\u{FEFF}b\n", "\u{FEFF}\n", "\u{FEFF}"]
        {
            let path = write(&folder, "text", text);
            let mut windows = Vec::new();
            windows_of_file(&path, |window| windows.push(window)).unwrap();
            let [window] = &windows[..] else { panic!("{text:?}: {} windows", windows.len()) };
            let expected = read_lines(&path).unwrap();
            let found: Vec<_> = (0..window.len()).map(|i| std::str::from_utf8(window.get(i)).unwrap()).collect();
            assert_eq!(found, expected.iter().collect::<Vec<_>>(), "{text:?}");
            assert_eq!(window.byte_order_mark, expected.byte_order_mark, "{text:?}");
            assert_eq!(window.path(), path);
        }
        // Not valid, and with a carriage return.
        std::fs::write(folder.path().join("text"), b"a\xFF\r\nb").unwrap();
        windows_of_file(&folder.path().join("text"), |window| assert_eq!(window.get(0), b"a\xFF\r")).unwrap();
    }

    #[test]
    fn windows_of_two_files_stay_aligned() {
        let folder = tempfile::tempdir().unwrap();
        for (source, target) in [(LINES + 9, LINES + 9), (LINES + 9, LINES + 4), (5, LINES + 4), (0, 3), (3, 0), (0, 0)]
        {
            let paths = [("s", source), ("t", target)].map(|(name, lines)| write(&folder, name, &numbered(lines)));
            let (mut read, mut windows) = ([0, 0], 0);
            windows_of_files([&paths[0], &paths[1]], |sides| {
                // As many of both, until one ends.
                assert!(read[0] == read[1] || sides.iter().any(RawLines::is_empty));
                for ((side, path), read) in sides.iter().zip(&paths).zip(&mut read) {
                    for index in 0..side.len() {
                        *read += 1;
                        assert_eq!(side.get(index), read.to_string().as_bytes());
                        assert_eq!(side.location(index), (path.as_path(), *read));
                    }
                }
                windows += 1;
            })
            .unwrap();
            assert_eq!((read, windows > 0), ([source, target], true));
        }
    }

    #[test]
    fn a_window_of_long_lines_ends_early() {
        let folder = tempfile::tempdir().unwrap();
        let long = write(&folder, "long", &("x".repeat(BYTES / 4) + "\n").repeat(10));
        let short = write(&folder, "short", &numbered(10));
        for paths in [[&*long, &long], [&long, &short], [&short, &long]] {
            let mut lengths = Vec::new();
            windows_of_files(paths, |[source, target]| {
                assert_eq!(source.len(), target.len());
                lengths.push(source.len());
            })
            .unwrap();
            assert_eq!(lengths, [4, 4, 2]);
        }
    }

    #[test]
    fn columns_keep_the_numbers_of_their_rows() {
        let folder = tempfile::tempdir().unwrap();
        let short = [1, 4, LINES, LINES + 1, LINES + 3];
        let row = |i: usize| if short.contains(&i) { "no tab\n".to_owned() } else { format!("s{i}\tx\tt{i}\n") };
        let path = write(&folder, "table", &(1..=LINES + 5).map(row).collect::<String>());
        let (mut left_out, mut rows, mut locations, mut total) = (Vec::new(), Vec::new(), LineLocations::default(), 0);
        windows_of_columns(&path, [1, 3], |[source, target]| {
            assert_eq!(source.left_out, target.left_out);
            left_out.extend(source.left_out.clone());
            locations.extend(total, &source);
            total += source.len();
            for index in 0..source.len() {
                let (_, number) = source.location(index);
                assert_eq!(source.get(index), format!("s{number}").as_bytes());
                assert_eq!(target.get(index), format!("t{number}").as_bytes());
                assert_eq!(target.location(index).1, number);
                rows.push(number);
            }
        })
        .unwrap();
        assert_eq!(left_out, short);
        assert_eq!(rows, (1..=LINES + 5).filter(|row| !short.contains(row)).collect::<Vec<_>>());
        // Also the numbers of all lines.
        assert!((0..total).all(|index| locations.location(index).1 == rows[index]));
        assert_eq!(locations.0.len(), 4);
    }

    /// As training reads them.
    #[test]
    fn blank_rows_are_empty_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, "table", "a\tb\n\n \r\nno tab\nc\td\n");
        windows_of_columns(&path, [1, 2], |[source, target]| {
            let rows = |side: &RawLines| {
                (0..side.len()).map(|i| (side.get(i).to_vec(), side.location(i).1)).collect::<Vec<_>>()
            };
            let row = |text: &[u8], number| (text.to_vec(), number);
            assert_eq!(rows(&source), [row(b"a", 1), row(b"", 2), row(b"", 3), row(b"c", 5)]);
            assert_eq!(rows(&target), [row(b"b", 1), row(b"", 2), row(b"", 3), row(b"d", 5)]);
            assert_eq!(source.left_out, [4]);
        })
        .unwrap();
    }

    /// As training refuses them.
    #[test]
    fn carriage_returns_in_place_of_newlines_and_wide_characters_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let old = write(&folder, "old", "a\tb\rc\td\r");
        let mixed = write(&folder, "mixed", "a\tb\nc\td\re\tf\r");
        for error in [
            windows_of_file(&old, |_| ()).unwrap_err(),
            windows_of_columns(&old, [1, 2], |_| ()).unwrap_err(),
            windows_of_columns(&mixed, [1, 2], |_| ()).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.starts_with("carriage returns ") && error.contains("tr '\\r' '\\n'"), "{error}");
        }
        for (bytes, encoding) in [
            (&b"\xFF\xFEa\0\n\0"[..], "UTF-16 "),
            (b"\xFE\xFF\0a\0\n", "UTF-16 "),
            (b"\xFF\xFE\0\0a\0\0\0\n\0\0\0", "UTF-32 "),
            (b"\xFF\xFE<\0?\0x\0m\0l\0", "UTF-16 "),
            (b"\0a\0 \0d\0o\0g\0\xFC\0\n", "UTF-16BE "),
        ] {
            let error = windows_of_file(&write(&folder, "wide", bytes), |_| ()).unwrap_err().to_string();
            assert!(error.contains(&format!("iconv -f {encoding}")), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = write(&folder, "endless", &("a\n".to_owned() + &"x".repeat(crate::limits::LINE_BYTES as usize + 1)));
        let mut read = 0;
        let error = windows_of_file(&path, |window| read += window.len()).unwrap_err().to_string();
        assert_eq!(read, 1);
        assert!(error.contains("longer than 64 MiB") && error.contains("endless:2"), "{error}");
    }
}
