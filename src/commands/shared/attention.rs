//! The file of `mt translate --attention`: explained translations, in a format that depends on its name.

use std::path::{Path, PathBuf};

use super::output::Replacement;
use crate::console::warning;
use crate::error::{Error, Result};
use crate::escape::harmless_json;
use crate::explanation::Explanation;
use crate::report::attention::{Sentence, page};
use crate::report::picture::{Format, sentence};

/// The most sentences on a page, …
const MOST_ON_A_PAGE: usize = 100;
/// … and their bytes, after which there are no more: browsers are slow to open larger pages.
const MOST_BYTES: usize = 200 << 20;

/// An open file.
pub(crate) struct AttentionFile {
    file: Replacement,
    path: PathBuf,
    form: Form,
}

enum Form {
    /// A list with one entry per line, written line by line.
    Json { is_empty: bool },
    /// A page to click through.
    Page { sentences: Vec<Sentence>, bytes: usize, left_out: usize },
    /// One sentence.
    Picture { format: Format, sentence: Option<Box<Explanation>> },
}

impl Form {
    /// The form for a file's name: JSON unless it is the name of a page or a picture.
    fn from_path(path: &Path) -> Self {
        let is_page =
            path.extension().is_some_and(|it| it.eq_ignore_ascii_case("html") || it.eq_ignore_ascii_case("htm"));
        match Format::from_path(path) {
            Some(format) => Self::Picture { format, sentence: None },
            None if is_page => Self::Page { sentences: Vec::new(), bytes: 0, left_out: 0 },
            None => Self::Json { is_empty: true },
        }
    }
}

impl AttentionFile {
    /// Refuses a picture of more than one line; `count` is the number of lines, if known.
    pub(crate) fn refuse_several(path: &Path, count: impl FnOnce() -> Option<usize>) -> Result<()> {
        let is_picture = Format::from_path(path).is_some();
        if is_picture && count().is_some_and(|lines| lines > 1) { Err(several(path)) } else { Ok(()) }
    }

    /// Begins a file; an existing one stays until the new one is complete.
    ///
    /// # Errors
    /// The name is that of an unsupported kind of picture, or the file cannot be written.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default().to_ascii_lowercase();
        if ["pdf", "jpg", "jpeg", "gif", "webp", "eps", "ps", "tif", "tiff", "bmp"].contains(&extension.as_str()) {
            let error = Error::usage(format!("unsupported format `.{extension}` for attention")).at(path);
            return Err(error.help("name a .svg or .png file for a picture, .html for a page, .json for the numbers"));
        }
        let mut file = Replacement::open(path)?;
        let form = Form::from_path(path);
        if let Form::Json { .. } = form {
            file.output().text("[")?;
        }
        Ok(Self { file, path: path.to_path_buf(), form })
    }

    /// Whether there is no room for another line.
    pub(crate) fn is_full(&self) -> bool {
        let is_full = |sentences: usize, bytes: usize| sentences >= MOST_ON_A_PAGE || bytes >= MOST_BYTES;
        matches!(&self.form, Form::Page { sentences, bytes, .. } if is_full(sentences.len(), *bytes))
    }

    /// Counts a line for which there is no room.
    pub(crate) fn leave_out(&mut self) {
        if let Form::Page { left_out, .. } = &mut self.form {
            *left_out += 1;
        }
    }

    /// Adds the explanation of the next line, for which there must be room.
    pub(crate) fn add(&mut self, explanation: Explanation) -> Result<()> {
        match &mut self.form {
            Form::Json { is_empty } => {
                self.file.output().text(if std::mem::replace(is_empty, false) { "\n" } else { ",\n" })?;
                let json = serde_json::to_string(&explanation)
                    .map_err(|e| Error::failure("attention weights cannot be written as JSON").caused_by(e))?;
                self.file.output().text(&harmless_json(&json))
            }
            Form::Page { sentences, bytes, .. } => {
                let sentence = Sentence::new(&explanation);
                *bytes += sentence.bytes();
                sentences.push(sentence);
                Ok(())
            }
            Form::Picture { sentence: Some(_), .. } => Err(several(&self.path)),
            Form::Picture { sentence, .. } => {
                *sentence = Some(Box::new(explanation));
                Ok(())
            }
        }
    }

    /// Writes the rest, and replaces the file. Warns about omitted lines.
    pub(crate) fn finish(mut self) -> Result<()> {
        match self.form {
            Form::Json { .. } => self.file.output().text("\n]\n")?,
            Form::Page { sentences, left_out, .. } => {
                let output = self.file.output();
                page(&sentences, |part| output.text(part))?;
                if left_out > 0 {
                    let shown =
                        if sentences.len() == 1 { "line".to_owned() } else { format!("{} lines", sentences.len()) };
                    warning(format_args!(
                        "{} shows only the first {shown}; {left_out} more would make it too large (a .json file takes \
                         any number)",
                        self.path.display()
                    ));
                }
            }
            Form::Picture { format, sentence: drawn } => {
                let drawn = drawn.unwrap_or_default();
                let picture = sentence::whole(&drawn).map_err(|error| error.at(&self.path))?;
                let picture = format.encode(picture, &self.path)?;
                self.file.output().bytes(&picture)?;
            }
        }
        self.file.finish()
    }
}

fn several(path: &Path) -> Error {
    Error::usage("a picture shows one sentence, but the input has more than one line")
        .at(path)
        .help("name a .html or .json file, which can hold many sentences, or translate only one line")
}
