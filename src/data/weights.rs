//! Weights of sentence pairs: a file of numbers, one for each line of the text beside it.

use std::path::{Path, PathBuf};

use super::text::file::{LineReader, TextFile};
use crate::error::{Error, Result};
use crate::escape::{brief, quoted};

/// The largest weight: one above would hide all others.
const MOST: f32 = 1e6;

/// A file of weights that has been read once.
#[derive(Clone, Debug)]
pub struct Weights {
    file: TextFile,
    /// The mean of the weights.
    pub mean: f64,
    /// How many pairs have a weight of 0.
    pub zeros: usize,
}

impl Weights {
    /// Reads the file at `path`, which may be compressed, to its end: the weights of the lines of `text`, if `text` is
    /// known.
    ///
    /// # Errors
    /// It cannot be read, a line is not a number from 0 to a million, or it has not as many lines as the text.
    pub fn scan(path: &Path, text: Option<&TextFile>) -> Result<Self> {
        let mut weights = Self { file: TextFile::scan(path)?, mean: 0.0, zeros: 0 };
        let mut reader = weights.reader()?;
        let (mut sum, mut read) = (0.0, 0);
        while let Some(weight) = reader.next_weight()? {
            sum += f64::from(weight);
            weights.zeros += usize::from(weight == 0.0);
            read += 1;
        }
        text.map_or(Ok(()), |text| same_length(path, read, text))?;
        weights.mean = sum / read.max(1) as f64;
        Ok(weights)
    }

    /// The file, as it was named.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// SHA-256 of its text.
    pub fn digest(&self) -> [u8; 32] {
        self.file.digest
    }

    /// Whether the file is still the one that was read, as far as the system tells.
    pub fn is_unchanged(&self) -> bool {
        self.file.is_unchanged()
    }

    /// The weights from the first on.
    pub fn reader(&self) -> Result<WeightReader> {
        let (path, line) = (self.path().to_path_buf(), Vec::new());
        Ok(WeightReader { path, lines: self.file.reader()?, last: self.file.lines, line })
    }
}

/// Fails where the file of weights has not as many lines as the text.
fn same_length(path: &Path, weights: usize, text: &TextFile) -> Result<()> {
    let lines = text.lines;
    if weights == lines {
        return Ok(());
    }
    let (text, s) = (text.path().display(), if weights == 1 { "" } else { "s" });
    let error = Error::failure(format!("there are {weights} weight{s}, but {text} has {lines} lines"));
    // The first line that is missing, or is one too many.
    let error = error.at_line(path, weights.min(lines) + 1, 0);
    Err(error.help("line N of this file is the weight of line N of the text: give each line one number"))
}

/// Reads weights, one after the other.
pub struct WeightReader {
    path: PathBuf,
    lines: LineReader,
    /// The number of the last line.
    last: usize,
    line: Vec<u8>,
}

impl WeightReader {
    /// The weight on the next line; `None` at the end of the file, before which may be a blank line.
    ///
    /// # Errors
    /// It cannot be read, or is not a number from 0 to a million.
    pub fn next_weight(&mut self) -> Result<Option<f32>> {
        self.line.clear();
        if !self.lines.next_line(&mut self.line)? {
            return Ok(None);
        }
        let number = self.lines.number();
        if number > 1 && number == self.last && self.line.trim_ascii().is_empty() {
            return Ok(None);
        }
        weight(&self.line).map(Some).map_err(|error| error.at_line(&self.path, number, 0))
    }
}

/// The weight on a line.
fn weight(line: &[u8]) -> Result<f32> {
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    let refused = |what: String| {
        let help =
            "each line has one number, 0 or above, such as 0.75: the loss of that line's pair is multiplied by it";
        Err(Error::failure(what).help(help))
    };
    match text.parse::<f32>() {
        _ if text.is_empty() => refused("the line is blank, where a weight is expected".to_owned()),
        Err(_) => refused(format!("{} is not a number, where a weight is expected", quoted(text))),
        Ok(weight) if !(0.0..=MOST).contains(&weight) => {
            refused(format!("invalid weight {}: expected 0 to {MOST}", brief(text)))
        }
        // Not -0, which is the same, but has other bits.
        Ok(weight) => Ok(weight + 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, lines: usize) -> std::result::Result<Weights, String> {
        let folder = tempfile::tempdir().unwrap();
        let [path, source] = ["w.txt", "t.en"].map(|name| folder.path().join(name));
        std::fs::write(&path, text).unwrap();
        std::fs::write(&source, "a\n".repeat(lines)).unwrap();
        Weights::scan(&path, Some(&TextFile::scan(&source).unwrap())).map_err(|error| error.to_string())
    }

    #[test]
    fn weights_are_numbers_from_zero_on() {
        let weights = scan("\u{FEFF}1\r\n 0.5 \n0\n1e1\n-0.0", 5).unwrap();
        assert_eq!((weights.mean, weights.zeros), (2.3, 2));
        assert_eq!(scan("1\n1\n\n", 2).unwrap().mean, 1.0);
        let long = format!("{}\n", "9,".repeat(5000));
        assert!(scan(&long, 1).unwrap_err().len() < 500);
        for (text, line, says) in [
            ("1\n-0.1\n1\n", 2, "invalid weight -0.1: expected 0 to 1000000"),
            ("1\n1\nNaN\n", 3, "invalid weight NaN"),
            ("inf\n1\n1\n", 1, "invalid weight inf"),
            ("1\n1e40\n1\n", 2, "invalid weight 1e40"),
            ("1\n\n1\n", 2, "the line is blank"),
            ("1\n1\n\n\n", 3, "the line is blank"),
            ("1\n1\n\n", 3, "there are 2 weights, but "),
            ("0,5\n1\n1\n", 1, "\"0,5\" is not a number"),
            ("1\n1 2\n1\n", 2, "\"1 2\" is not a number"),
            ("1\n1\n", 3, "there are 2 weights, but "),
            ("1\n1\n1\n1\n", 4, "there are 4 weights, but "),
        ] {
            let error = scan(text, 3).unwrap_err();
            assert!(error.starts_with(says) && error.contains(&format!("w.txt:{line}\n")), "{text:?}: {error}");
        }
    }
}
