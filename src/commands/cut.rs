//! Warnings about lines that are too long for a model, and about translations that were cut.

use crate::console::message;
use crate::decode::Ending;
use crate::decode::translate::Translation;

/// Numbers of lines that were cut, and the first of them.
#[derive(Default)]
pub struct CutLines {
    lines: usize,
    sources: Option<(usize, usize)>,
    split: Option<(usize, usize)>,
    whole: Option<(usize, usize)>,
    stuck: Option<(usize, usize)>,
    translations: Option<(usize, usize)>,
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
        let note = |slot: &mut Option<(usize, usize)>| slot.get_or_insert((line, 0)).1 += 1;
        if translation.source_cut {
            note(&mut self.sources);
        }
        if translation.parts.len() > 1 {
            note(&mut self.split);
        }
        match translation.best().ending {
            Ending::End => {}
            Ending::MaxLength => note(&mut self.translations),
            Ending::Stuck => note(&mut self.stuck),
        }
    }

    /// Takes note that the line counted last was longer than those the model was trained on, and yet translated in one part.
    pub fn count_whole(&mut self) {
        self.whole.get_or_insert((self.lines, 0)).1 += 1;
    }

    /// Prints the warnings.
    pub fn warn(&self) {
        let all = self.lines;
        if let Some((first, count)) = self.sources {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than model.max_length: only their \
                 beginning was translated"
            ));
        }
        if let Some((first, count)) = self.split {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than data.max_length, which the model \
                 was trained on, or model.max_length: they were translated in parts (--long)"
            ));
        }
        if let Some((first, count)) = self.whole {
            message(format_args!(
                "warning: {count} of {all} lines (the first is line {first}) are longer than data.max_length, which \
                 the model was trained on: --attention needs them in one part; without it they are translated in \
                 several parts, which is better"
            ));
        }
        if let Some((first, count)) = self.stuck {
            message(format_args!(
                "warning: {count} of {all} translations (the first is line {first}) ended early because no further \
                 token was allowed (--no-repeat-ngram, --min-length, --prefix, --shortlist)"
            ));
        }
        if let Some((first, count)) = self.translations {
            message(format_args!(
                "warning: {count} of {all} translations (the first is line {first}) were cut at the maximum length \
                 (--max-length, --max-length-extra; at most model.max_length)"
            ));
        }
    }
}
