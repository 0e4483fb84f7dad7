//! Warnings about lines that are too long for a model, and about translations that were cut or are damaged.

use super::some_lines::SomeLines;
use crate::data::tokenizer::Tokenizer;
use crate::decode::Ending;
use crate::decode::translate::Translation;

/// Warn from this per cent of unknown tokens on.
pub const MANY_UNKNOWN: usize = 10;

/// A warning about the unknown tokens among all of a side, if they are many.
pub fn of_unknown(side: &str, unknown: usize, all: usize) -> Option<String> {
    let share = 100 * unknown / all.max(1);
    (share >= MANY_UNKNOWN).then(|| {
        format!("{share} % of the {side} tokens are unknown to the model: it may have been trained on text that was split in another way")
    })
}

/// The lines that were cut, or whose translation is damaged.
#[derive(Default)]
pub struct CutLines {
    lines: usize,
    sources: SomeLines,
    split: SomeLines,
    whole: SomeLines,
    stuck: SomeLines,
    translations: SomeLines,
    broken: SomeLines,
    /// The id of what the source's vocabulary lacks, and how many of all tokens are that.
    unknown: (Option<u32>, usize, usize),
}

impl CutLines {
    /// For sources of this tokenizer.
    pub fn new(source: &Tokenizer) -> Self {
        Self { unknown: (Some(source.unk_id()), 0, 0), ..Self::default() }
    }

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
        let (unk, unknown, all) = &mut self.unknown;
        for part in &translation.parts {
            *unknown += part.ids.iter().filter(|id| Some(**id) == *unk).count();
            *all += part.ids.len();
        }
        if translation.parts.len() > 1 {
            self.split.add(line);
        }
        if translation.best().text.contains('\u{FFFD}') {
            self.broken.add(line);
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

    /// Warnings about them.
    pub fn warnings(&self) -> Vec<String> {
        let lines = |some: SomeLines| some.subject(self.lines, "line", ["is", "are"]);
        let translations = |some: SomeLines, verbs| some.subject(self.lines, "translation", verbs);
        [
            lines(self.sources)
                .map(|are| format!("{are} longer than model.max_length: only the beginning was translated")),
            lines(self.split).map(|are| {
                format!(
                    "{are} longer than data.max_length, which the model was trained on, or model.max_length: \
                     translated in parts (--long)"
                )
            }),
            lines(self.whole).map(|are| {
                format!(
                    "{are} longer than data.max_length, which the model was trained on: --attention needs a \
                     line in one part; without it, a long line is translated in several parts, which is better"
                )
            }),
            translations(self.stuck, ["ended", "ended"]).map(|ended| {
                format!(
                    "{ended} early because no further token was allowed (--no-repeat-ngram, --min-length, --prefix, \
                     --shortlist)"
                )
            }),
            translations(self.translations, ["was", "were"]).map(|were| {
                format!("{were} cut at the maximum length (--max-length, --max-length-extra; at most model.max_length)")
            }),
            translations(self.broken, ["contains", "contain"]).map(|contain| {
                format!("{contain} U+FFFD: the source has it, or the model wrote bytes that spell no character")
            }),
            of_unknown("source", self.unknown.1, self.unknown.2),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
