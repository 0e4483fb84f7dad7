//! Warnings about lines that a model cannot translate well, and about translations that were cut or are damaged.

use super::line_summary::LineSummary;
use crate::data::coverage::MANY_UNKNOWN;
use crate::decode::Ending;
use crate::decode::shortlist::Shortlist;
use crate::decode::translate::{Translation, Translator};

/// Warn from this per cent of tokens on that a shortlist has no translations of.
const MANY_UNLISTED: usize = 25;
/// Of fewer tokens, single rare words are a large share.
const ENOUGH: usize = 50;

/// A warning about the unknown tokens among all of a side, if they are many.
pub(crate) fn unknown_warning(side: &str, unknown: usize, all: usize) -> Option<String> {
    let share = 100 * unknown / all.max(1);
    (share >= MANY_UNKNOWN).then(|| {
        format!(
            "{share} % of the {side} tokens are unknown to the model: it may have been trained on text that was \
             split in another way"
        )
    })
}

/// The lines that a reader of the translations should look at.
#[derive(Default)]
pub(crate) struct SuspiciousLines {
    lines: usize,
    sources: LineSummary,
    split: LineSummary,
    whole: LineSummary,
    stuck: LineSummary,
    lacking: LineSummary,
    translations: LineSummary,
    broken: LineSummary,
    /// How many of all tokens are unknown to the source's vocabulary.
    unknown: usize,
    tokens: usize,
    /// Their id.
    unk_id: u32,
    /// Which source tokens the shortlist has translations of, if there is one, and of how many of all tokens it has
    /// none.
    listed: Option<Vec<bool>>,
    unlisted: usize,
    /// The tags of the model's vocabulary, and translations that contain one.
    tags: Vec<String>,
    tagged: LineSummary,
}

impl SuspiciousLines {
    /// For what this translates.
    pub(crate) fn new(translator: &Translator) -> Self {
        Self {
            unk_id: translator.source().unk_id(),
            listed: translator.shortlist().map(Shortlist::listed),
            tags: translator.target().language_tags().into_iter().map(str::to_owned).collect(),
            ..Self::default()
        }
    }

    /// How many lines have been counted.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    /// Takes note of the translation of the next line.
    pub(crate) fn count(&mut self, translation: &Translation) {
        self.lines += 1;
        let line = self.lines;
        if translation.source_cut {
            self.sources.add(line);
        }
        for part in &translation.parts {
            self.unknown += part.ids.iter().filter(|id| **id == self.unk_id).count();
            self.tokens += part.ids.len();
            let is_unlisted = |listed: &Vec<bool>| part.ids.iter().filter(|id| !listed[**id as usize]).count();
            self.unlisted += self.listed.as_ref().map_or(0, is_unlisted);
        }
        if self.tags.iter().any(|tag| translation.best().text.contains(tag)) {
            self.tagged.add(line);
        }
        if translation.parts.len() > 1 {
            self.split.add(line);
        }
        if translation.best().text.contains('\u{FFFD}') {
            self.broken.add(line);
        }
        if translation.n_best.iter().any(|candidate| candidate.lacks_phrases) {
            self.lacking.add(line);
        }
        match translation.best().ending {
            Ending::End => {}
            Ending::MaxLength => self.translations.add(line),
            Ending::Stuck => self.stuck.add(line),
        }
    }

    /// Counts the last line as longer than the training lines, although it was translated in one part.
    pub(crate) fn count_whole(&mut self) {
        self.whole.add(self.lines);
    }

    /// Warnings about them.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let lines = |some: LineSummary| some.subject(self.lines, "line", ["is", "are"]);
        let translations = |some: LineSummary, verbs| some.subject(self.lines, "translation", verbs);
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
                     --shortlist, `avoid`)"
                )
            }),
            translations(self.lacking, ["lacks", "lack"]).map(|lack| {
                format!("{lack} a phrase of `must`: there was no room for it, or other demands excluded it")
            }),
            translations(self.translations, ["was", "were"]).map(|were| {
                format!("{were} cut at the maximum length (--max-length, --max-length-extra; at most model.max_length)")
            }),
            translations(self.broken, ["contains", "contain"]).map(|contain| {
                format!("{contain} U+FFFD: the source has it, or the model wrote bytes that spell no character")
            }),
            translations(self.tagged, ["contains", "contain"]).map(|contain| {
                format!("{contain} a tag of the vocabulary: where such a line is a source again, it is read as one")
            }),
            unknown_warning("source", self.unknown, self.tokens),
            self.shortlist_warning(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
    /// A warning, if the shortlist lacks many of the sources' tokens: one made from such text has nearly all.
    fn shortlist_warning(&self) -> Option<String> {
        let share = 100 * self.unlisted / self.tokens.max(1);
        (share >= MANY_UNLISTED && self.tokens >= ENOUGH).then(|| {
            format!(
                "the shortlist has no translations of {share} % of the source tokens: it seems to be of another \
                 direction or other text (mt shortlist)"
            )
        })
    }
}
