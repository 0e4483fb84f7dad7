//! Warnings about the target-language tags that lines begin with.

use crate::console::message;
use crate::data::tokenizer::Tokenizer;

/// The most tags that a warning lists.
const MOST: usize = 60;

/// Lines without a tag, or with one that the model does not know, and the first of each.
pub struct Tags<'t> {
    tokenizer: &'t Tokenizer,
    known: Vec<&'t str>,
    lines: usize,
    missing: Option<(usize, usize)>,
    unknown: Option<(usize, usize, String)>,
}

impl<'t> Tags<'t> {
    /// For lines read by this tokenizer.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, known: tokenizer.language_tags(), lines: 0, missing: None, unknown: None }
    }

    /// Takes note of the next line.
    pub fn count(&mut self, line: &str) {
        self.lines += 1;
        if self.known.is_empty() || line.trim().is_empty() {
            return;
        }
        match self.tokenizer.language_tag(line) {
            Some(tag) if self.known.contains(&tag) || self.known.contains(&self.tokenizer.normalise(tag).as_str()) => {}
            Some(tag) => self.unknown.get_or_insert_with(|| (self.lines, 0, tag.to_owned())).1 += 1,
            // With a single language there is nothing to choose.
            None if self.known.len() > 1 => self.missing.get_or_insert((self.lines, 0)).1 += 1,
            None => {}
        }
    }

    /// Prints the warnings.
    pub fn warn(&self) {
        let more = if self.known.len() > MOST { " …" } else { "" };
        let known: Vec<&str> = self.known.iter().take(MOST).copied().collect();
        let (known, all) = (known.join(" ") + more, self.lines);
        if let Some((first, count, tag)) = &self.unknown {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}: {tag}) begin with a tag that the model does not know; \
                 it knows {known}"
            ));
        }
        if let Some((first, count)) = self.missing {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) do not begin with a tag for the target \
                 language; the model knows {known}"
            ));
        }
    }
}
