//! Warnings about lines that are too long for a model, and about translations that were cut.

use super::some_lines::SomeLines;
use crate::console::warning;
use crate::decode::Ending;
use crate::decode::translate::Translation;

/// The lines that were cut.
#[derive(Default)]
pub struct CutLines {
    lines: usize,
    sources: SomeLines,
    split: SomeLines,
    whole: SomeLines,
    stuck: SomeLines,
    translations: SomeLines,
}

impl CutLines {
    /// How many lines have been counted.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Takes note of the translation of the next line.
    pub fn count(&mut self, translation: &Translation) {
        self.lines += 1;
        let line = self.lines;
        if translation.source_cut {
            self.sources.add(line);
        }
        if translation.parts.len() > 1 {
            self.split.add(line);
        }
        match translation.best().ending {
            Ending::End => {}
            Ending::MaxLength => self.translations.add(line),
            Ending::Stuck => self.stuck.add(line),
        }
    }

    /// Takes note that the line counted last was longer than those the model was trained on, and yet translated in one part.
    pub fn count_whole(&mut self) {
        self.whole.add(self.lines);
    }

    /// Prints the warnings.
    pub fn warn(&self) {
        let lines = |some: SomeLines| some.subject(self.lines, "line", ["is", "are"]);
        let translations = |some: SomeLines, verbs| some.subject(self.lines, "translation", verbs);
        if let Some(lines_are) = lines(self.sources) {
            warning(format_args!("{lines_are} longer than model.max_length: only the beginning was translated"));
        }
        if let Some(lines_are) = lines(self.split) {
            warning(format_args!(
                "{lines_are} longer than data.max_length, which the model was trained on, or model.max_length: \
                 translated in parts (--long)"
            ));
        }
        if let Some(lines_are) = lines(self.whole) {
            warning(format_args!(
                "{lines_are} longer than data.max_length, which the model was trained on: --attention needs a \
                 line in one part; without it, a long line is translated in several parts, which is better"
            ));
        }
        if let Some(translations_ended) = translations(self.stuck, ["ended", "ended"]) {
            warning(format_args!(
                "{translations_ended} early because no further token was allowed (--no-repeat-ngram, \
                 --min-length, --prefix, --shortlist)"
            ));
        }
        if let Some(translations_were) = translations(self.translations, ["was", "were"]) {
            warning(format_args!(
                "{translations_were} cut at the maximum length (--max-length, --max-length-extra; at most \
                 model.max_length)"
            ));
        }
    }
}
