//! What is wrong, or odd, with a parallel corpus: every kind of finding counted, with its first places.
//!
//! ```text
//! bytes of both files → lines → what one line shows  (`line`)
//!                             → what a pair shows    (`pair`: lengths, script, language, copies)
//!                             → what the corpus shows (`shift`; duplicates, pairs of the validation and test set)
//! ```
//!
//! Languages are learnt from the corpora themselves: which words are mostly on one side, and which on the other (`words`),
//! over all corpora of a configuration, so that one with exchanged sides stands out.

mod line;
mod pair;
mod shift;
pub mod words;

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;

use super::corpus::Side;
use super::lines::RawLines;
use crate::choice::choice;
use pair::Languages;
use words::Words;

/// Places listed for each kind of finding.
const NAMED: usize = 5;
/// Lines that one task looks at.
const CHUNK: usize = 4096;

choice! {
    /// How bad a finding is.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Severity {
        /// Training refuses the corpus.
        Error = "error",
        /// Training goes on, but the result suffers.
        Warning = "warning",
        /// Good to know.
        Note = "note",
    }
}

choice! {
    /// What was found.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Kind {
        /// The files differ in their number of lines.
        LineCounts = "line_counts",
        /// A file has no line.
        EmptyFile = "empty_file",
        /// Too few columns.
        Columns = "columns",
        /// Bytes that are not UTF-8.
        NotUtf8 = "not_utf8",
        /// U+FEFF at the start of the file.
        ByteOrderMark = "byte_order_mark",
        /// U+0000.
        Nul = "nul",
        /// A tab within the line.
        Tab = "tab",
        /// Other control characters.
        Control = "control",
        /// `\r\n` at the end of a line.
        CarriageReturn = "carriage_return",
        /// What other programs take for the end of a line: `\r`, U+2028, U+2029, U+0085, form feed, vertical tab.
        LineBreak = "line_break",
        /// Nothing in it.
        EmptyLine = "empty_line",
        /// Nothing but white space in it.
        WhiteSpace = "white_space",
        /// White space at an end, or several spaces in a row.
        Spacing = "spacing",
        /// Longer than any sentence.
        LongLine = "long_line",
        /// From here on, lines are not aligned with those opposite.
        Shifted = "shifted",
        /// From here on, the lengths of lines have nothing to do with those opposite.
        Unrelated = "unrelated",
        /// U+FFFD, which replaces bytes that could not be decoded.
        Replacement = "replacement",
        /// UTF-8 that was read as Latin-1 or Windows-1252.
        Mojibake = "mojibake",
        /// `&amp;` and the like.
        Entity = "entity",
        /// Zero-width characters that belong to no word.
        Invisible = "invisible",
        /// Source and target are the same.
        Identical = "identical",
        /// One side is many times longer.
        Ratio = "ratio",
        /// Mostly in another script than the file.
        Script = "script",
        /// Source and target look swapped.
        Swapped = "swapped",
        /// A side looks like the other side's language.
        Language = "language",
        /// The same pair came before.
        Duplicate = "duplicate",
        /// A pair of the validation or test set.
        Overlap = "overlap",
        /// A pair of the test set that is in the validation set.
        HeldOutTwice = "held_out_twice",
    }
}

impl Kind {
    /// How bad it is.
    pub fn severity(self) -> Severity {
        match self {
            Self::LineCounts | Self::EmptyFile | Self::Columns | Self::NotUtf8 => Severity::Error,
            Self::ByteOrderMark
            | Self::CarriageReturn
            | Self::Spacing
            | Self::Entity
            | Self::Invisible
            | Self::Duplicate
            | Self::HeldOutTwice => Severity::Note,
            _ => Severity::Warning,
        }
    }

    /// What it means, and what to do or what training does.
    pub fn text(self) -> &'static str {
        match self {
            Self::LineCounts => {
                "the files differ in their number of lines: one may be cut short, or a tool may have broken lines"
            }
            Self::EmptyFile => "the file is empty: a corpus needs at least one line a side",
            Self::Columns => {
                "lines have too few columns: tabs separate them; mend the lines, or name other columns with `source` and `target`"
            }
            Self::NotUtf8 => {
                "the text is not UTF-8: convert it with `iconv -f ENCODING -t UTF-8` (ISO-8859-1 or UTF-16, for example), or mend the lines"
            }
            Self::ByteOrderMark => "a byte order mark at the start; it is not part of the text",
            Self::Nul => "U+0000 in the line: the file may be UTF-16, or damaged",
            Self::Tab => "a tab within the line: it may be a row of a table, of which only one column is the sentence",
            Self::Control => "control characters in the line: remove them",
            Self::CarriageReturn => "lines ended in \\r\\n; the \\r is not part of the text",
            Self::LineBreak => {
                "a \\r, form feed, vertical tab, U+0085, U+2028 or U+2029 in the line: other programs may end the line there"
            }
            Self::EmptyLine => "empty lines: their pairs are left out",
            Self::WhiteSpace => "lines of nothing but white space: their pairs are left out",
            Self::Spacing => {
                "white space at an end of the line, or several spaces in a row: mt's own subwords are without it, unless \
                 `tokenizer.remove_extra_whitespaces` is false; other tokenizers may keep it"
            }
            Self::LongLine => {
                "lines of more than 10,000 characters: no sentences; the vocabulary is learnt without them, and data.max_length leaves them out"
            }
            Self::Shifted => {
                "lines look shifted against those opposite, beginning here: a line was lost or added on one side, and its pairs \
                 are no translations"
            }
            Self::Unrelated => {
                "the lengths of lines have nothing to do with those opposite, beginning here: one side is shuffled, or other text"
            }
            Self::Replacement => "U+FFFD in the line: a tool could not read what was there; get the text anew",
            Self::Mojibake => {
                "UTF-8 that a tool has read as Latin-1 or Windows-1252 (Ã¼ for ü): get the text anew, or mend it"
            }
            Self::Entity => "HTML entities (&amp;) in the line: the model learns to write them",
            Self::Invisible => {
                "characters of no width in the line (zero-width space, soft hyphen, U+FEFF): mt's own subwords are without them, \
                 unless `tokenizer.remove_extra_whitespaces` is false; other tokenizers may keep them"
            }
            Self::Identical => "source and target are the same: not translated",
            Self::Ratio => {
                "one side is many times longer than the other: not a translation; data.max_ratio, which counts subwords, may leave it out"
            }
            Self::Script => "a line mostly in another script than its file",
            Self::Swapped => "source and target look swapped: here, or in most of the training text",
            Self::Language => "a line that looks like the other side's language: not translated",
            Self::Duplicate => "pairs that have come before: they weigh more than others",
            Self::Overlap => "pairs of the validation or test set: scores on it will be too good",
            Self::HeldOutTwice => {
                "pairs of the test set that are in the validation set: its score is one that training has chosen for"
            }
        }
    }
}

/// All findings of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How many lines or pairs.
    pub count: usize,
    /// The first of them; line 0 is the whole file.
    pub places: Vec<Place>,
    /// What more there is to say of them.
    pub details: Vec<String>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
}

/// What a check found, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(BTreeMap<Kind, Finding>);

impl Findings {
    fn add(&mut self, kind: Kind, file: &Path, line: usize) {
        self.add_many(kind, file, line, 1);
    }

    fn add_at(&mut self, kind: Kind, (file, line): (&Path, usize)) {
        self.add(kind, file, line);
    }

    /// Adds `count` lines, of which only the first is listed.
    fn add_many(&mut self, kind: Kind, file: &Path, line: usize, count: usize) {
        let finding = self.0.entry(kind).or_default();
        finding.count += count;
        if finding.places.len() < NAMED {
            finding.places.push(Place { file: file.to_path_buf(), line });
        }
    }

    fn detail(&mut self, kind: Kind, text: String) {
        self.0.entry(kind).or_default().details.push(text);
    }

    /// The kinds found, those that training refuses first.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, &Finding)> {
        let mut kinds: Vec<_> = self.0.iter().map(|(kind, finding)| (*kind, finding)).collect();
        kinds.sort_by_key(|(kind, _)| (kind.severity(), *kind));
        kinds.into_iter()
    }

    /// Adds those of another check.
    pub fn merge(&mut self, other: Self) {
        for (kind, finding) in other.0 {
            let ours = self.0.entry(kind).or_default();
            ours.count += finding.count;
            let room = NAMED - ours.places.len().min(NAMED);
            ours.places.extend(finding.places.into_iter().take(room));
            let room = NAMED - ours.details.len().min(NAMED);
            ours.details.extend(finding.details.into_iter().take(room));
        }
    }

    /// How many of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.0.get(&kind).map_or(0, |finding| finding.count)
    }
}

/// The pairs of the validation and test sets, and the pairs seen so far.
#[derive(Default)]
pub struct Seen {
    random: RandomState,
    held_out: HashSet<u64>,
    pairs: HashSet<u64>,
}

impl Seen {
    fn hash(&self, source: &[u8], target: &[u8]) -> u64 {
        self.random.hash_one((source.trim_ascii(), target.trim_ascii()))
    }
}

/// Checks one side of a corpus, on its own.
pub fn check_side(file: &RawLines) -> Findings {
    let mut findings = Findings::default();
    if file.is_empty() && file.left_out().is_empty() {
        findings.add(Kind::EmptyFile, file.path(), 0);
    }
    if file.byte_order_mark() {
        findings.add(Kind::ByteOrderMark, file.path(), 1);
    }
    in_chunks(file.len(), &mut findings, |index, findings| {
        for kind in line::findings(file.get(index)) {
            findings.add_at(kind, file.place(index));
        }
    });
    findings
}

/// Checks two sides that are translations of each other line by line; `words` tells the languages apart. `seen` holds the pairs
/// of earlier corpora, to find duplicates and held-out pairs in training text; the pairs of this one are added to it.
pub fn check_lines([source, target]: &[RawLines; 2], is_training: bool, seen: &mut Seen, words: &Words) -> Findings {
    let mut findings = check_side(source);
    let is_same_file = source.path() == target.path();
    if !(is_same_file && source.is_empty()) {
        findings.merge(check_side(target));
    }
    // Both sides have the same rows.
    source.left_out().iter().for_each(|row| findings.add(Kind::Columns, source.path(), *row));
    if source.len() != target.len() {
        let longer = if source.len() > target.len() { source } else { target };
        // The first line without a counterpart.
        findings.add_at(Kind::LineCounts, longer.place(source.len().min(target.len())));
        let describe = |file: &RawLines| {
            let s = if file.len() == 1 { "" } else { "s" };
            format!("{} has {} line{s}", file.path().display(), file.len())
        };
        findings.detail(Kind::LineCounts, format!("{}, but {}", describe(source), describe(target)));
    }
    let pairs = source.len().min(target.len());
    let lengths = |file: &RawLines| -> Vec<usize> {
        let characters = |index| file.get(index).iter().filter(|byte| !(0x80..0xC0).contains(*byte)).count();
        (0..file.len()).into_par_iter().with_min_len(CHUNK).map(characters).collect()
    };
    for shift in shift::shifts(&lengths(source), &lengths(target)) {
        let (path, line) = source.place(shift.start);
        let kind = if shift.offset.is_some() { Kind::Shifted } else { Kind::Unrelated };
        findings.add_many(kind, path, line, shift.end - shift.start);
    }
    let languages = Languages::of(source, target, words);
    in_chunks(pairs, &mut findings, |index, findings| {
        for (kind, side) in languages.findings(source.get(index), target.get(index)) {
            let file = if side == Side::Source { source } else { target };
            findings.add_at(kind, file.place(index));
        }
    });
    let mut held_out = HashSet::new();
    for index in 0..pairs {
        let hash = seen.hash(source.get(index), target.get(index));
        if source.get(index).trim_ascii().is_empty() {
            continue;
        }
        if !is_training {
            if seen.held_out.contains(&hash) {
                findings.add_at(Kind::HeldOutTwice, source.place(index));
            }
            held_out.insert(hash);
        } else {
            if seen.held_out.contains(&hash) {
                findings.add_at(Kind::Overlap, source.place(index));
            }
            if !seen.pairs.insert(hash) {
                findings.add_at(Kind::Duplicate, source.place(index));
            }
        }
    }
    seen.held_out.extend(held_out);
    findings
}

/// Looks at every index on all threads; findings stay in order.
fn in_chunks(count: usize, findings: &mut Findings, look: impl Fn(usize, &mut Findings) + Sync) {
    let starts: Vec<usize> = (0..count).step_by(CHUNK).collect();
    let of_chunk = |start: &usize| {
        let mut findings = Findings::default();
        (*start..count.min(start + CHUNK)).for_each(|index| look(index, &mut findings));
        findings
    };
    let chunks: Vec<Findings> = starts.par_iter().map(of_chunk).collect();
    chunks.into_iter().for_each(|chunk| findings.merge(chunk));
}
