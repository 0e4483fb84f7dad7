//! Errors and oddities of a parallel corpus: every kind of finding with its count and its first locations.
//!
//! ```text
//! both files → windows of lines → what one line shows  (`line`)
//!   (`raw`)                       → what a pair shows    (`pair`: lengths, script, language, copies)
//!                                 → what the corpus shows (`shift`; duplicates, pairs of the validation and test set)
//! ```
//!
//! Languages are learnt from the corpora themselves: which words are mostly on one side, and which on the other
//! (`words`), over all corpora of a configuration, so that one with exchanged sides stands out. So text is read twice;
//! of a pair that has been looked at, only its hash and its lengths are kept.

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
use super::text::encoding;
use super::text::raw::{LineLocations, RawLines};
use crate::choice::choice;
use pair::Languages;
pub use pair::Scripts;
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
        /// Bytes that are not UTF-8. It comes first, because counts of lines in another encoding are wrong, too.
        NotUtf8 = "not_utf8",
        /// The files differ in their number of lines.
        LineCounts = "line_counts",
        /// A file has no line.
        EmptyFile = "empty_file",
        /// Too few columns.
        Columns = "columns",
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
        /// Characters that other programs take for the end of a line: `\r`, U+2028, U+2029, U+0085, form feed, vertical
        /// tab.
        LineBreak = "line_break",
        /// Nothing in it.
        EmptyLine = "empty_line",
        /// Nothing but white space in it.
        WhiteSpace = "white_space",
        /// White space at an end, or several spaces in a row.
        Spacing = "spacing",
        /// Longer than any sentence.
        LongLine = "long_line",
        /// From here on, lines are not aligned with those of the other side.
        Shifted = "shifted",
        /// From here on, the lengths of lines are unrelated to those of the other side.
        Unrelated = "unrelated",
        /// U+FFFD, which replaces bytes that could not be decoded.
        Replacement = "replacement",
        /// UTF-8 that was read as Latin-1 or Windows-1252.
        Mojibake = "mojibake",
        /// `&amp;` and the like.
        Entity = "entity",
        /// `<p>`, `</b>` and the like.
        Markup = "markup",
        /// Zero-width characters that belong to no word.
        Invisible = "invisible",
        /// Marks of the direction of text.
        Direction = "direction",
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
            | Self::Markup
            | Self::Invisible
            | Self::Direction
            | Self::Duplicate
            | Self::HeldOutTwice => Severity::Note,
            _ => Severity::Warning,
        }
    }

    /// Its meaning, and what to do or what training does.
    pub fn text(self) -> &'static str {
        match self {
            Self::LineCounts => {
                "the files differ in their number of lines: one may be cut short, or a tool may have broken lines"
            }
            Self::EmptyFile => "the file is empty: a corpus needs at least one line per side",
            Self::Columns => {
                "lines have too few columns: tabs separate them; fix the lines, or name other columns with `source` \
                 and `target`"
            }
            Self::NotUtf8 => "the text is not UTF-8",
            Self::ByteOrderMark => "a byte order mark at the start; it is not part of the text",
            Self::Nul => "U+0000 in the line: the file may be UTF-16, or damaged",
            Self::Tab => "a tab within the line: it may be a row of a table, of which only one column is the sentence",
            Self::Control => "control characters in the line: remove them",
            Self::CarriageReturn => "lines ended in \\r\\n; the \\r is not part of the text",
            Self::LineBreak => {
                "a \\r, form feed, vertical tab, U+0085, U+2028 or U+2029 in the line: other programs may end the line \
                 there; if a \\r should end it here, too: `tr '\\r' '\\n' < FILE > NEW`"
            }
            Self::EmptyLine => "empty lines: their pairs are left out",
            Self::WhiteSpace => "lines of nothing but white space: their pairs are left out",
            Self::Spacing => {
                "white space at an end of the line, or several spaces in a row: mt's own subwords are without it, \
                 unless `tokenizer.remove_extra_whitespaces` is false; other tokenizers may keep it"
            }
            Self::LongLine => {
                "lines of more than 10,000 characters: no sentences; the vocabulary is learnt without them, and \
                 data.max_length leaves them out"
            }
            Self::Shifted => {
                "lines look shifted against those opposite, beginning here: a line was lost or added on one side, and \
                 its pairs are no translations"
            }
            Self::Unrelated => {
                "the lengths of lines have nothing to do with those opposite, beginning here: one side is shuffled, or \
                 other text"
            }
            Self::Replacement => "U+FFFD in the line: a tool could not read what was there; get the text anew",
            Self::Mojibake => {
                "UTF-8 that a tool has read as Latin-1 or Windows-1252 (Ã¼ for ü): get the text anew, or fix it"
            }
            Self::Entity => "HTML entities (&amp;) in the line: the model learns to write them",
            Self::Markup => "tags of HTML (<p>, </b>) in the line: the model learns to write them",
            Self::Invisible => {
                "characters of no width in the line (zero-width space, soft hyphen, U+FEFF): mt's own subwords are \
                 without them, unless `tokenizer.remove_extra_whitespaces` is false; other tokenizers may keep them"
            }
            Self::Direction => {
                "marks of direction in the line (U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069): readers do not \
                 see them, but the model learns to write them, and scores count them: remove those that the text does \
                 not need, from references too"
            }
            Self::Identical => "source and target are the same: not translated",
            Self::Ratio => {
                "one side is many times longer than the other: not a translation; data.max_ratio, which counts \
                 subwords, may leave it out"
            }
            Self::Script => "a line mostly in another script than its file",
            Self::Swapped => "source and target look swapped: here, or in most of the training text",
            Self::Language => "a line that looks like the other side's language: not translated",
            Self::Duplicate => "repeated pairs: they weigh more in training than others",
            Self::Overlap => "pairs that are also in the validation or test set: scores on it will be too good",
            Self::HeldOutTwice => {
                "test pairs that are also in the validation set: training chooses the model by them, so \
                 scores will be too good"
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
    pub places: Vec<LineOfFile>,
    /// Further details of them.
    pub details: Vec<String>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineOfFile {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
}

/// The findings of a check, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(BTreeMap<Kind, Finding>);

impl Findings {
    fn add(&mut self, kind: Kind, file: &Path, line: usize) {
        self.add_many(kind, file, line, 1);
    }

    fn add_at(&mut self, kind: Kind, (file, line): (&Path, usize)) {
        self.add(kind, file, line);
    }

    /// Adds `count` lines, and lists only the first one.
    fn add_many(&mut self, kind: Kind, file: &Path, line: usize, count: usize) {
        let finding = self.0.entry(kind).or_default();
        finding.count += count;
        if finding.places.len() < NAMED {
            finding.places.push(LineOfFile { file: file.to_path_buf(), line });
        }
    }

    fn detail(&mut self, kind: Kind, text: String) {
        self.0.entry(kind).or_default().details.push(text);
    }

    /// The kinds found; first those that training refuses.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, &Finding)> {
        let mut kinds: Vec<_> = self.0.iter().map(|(kind, finding)| (*kind, finding)).collect();
        kinds.sort_by_key(|(kind, _)| (kind.severity(), *kind));
        kinds.into_iter()
    }

    /// Adds the findings of another check.
    pub fn merge(&mut self, other: Self) {
        for (kind, finding) in other.0 {
            let ours = self.0.entry(kind).or_default();
            ours.count += finding.count;
            let room = NAMED - ours.places.len().min(NAMED);
            ours.places.extend(finding.places.into_iter().take(room));
            for detail in finding.details {
                // Two corpora may share a file.
                if ours.details.len() < NAMED && !ours.details.contains(&detail) {
                    ours.details.push(detail);
                }
            }
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

/// Checks one side of a corpus on its own, window by window.
#[derive(Default)]
pub struct SideCheck {
    findings: Findings,
    lines: usize,
    left_out: usize,
    /// Whether the advice about bytes that are not UTF-8 has been given.
    has_advice: bool,
    /// The first file.
    path: PathBuf,
}

impl SideCheck {
    /// Checks the next lines.
    pub fn add(&mut self, window: &RawLines) {
        if self.path.as_os_str().is_empty() {
            self.path = window.path().to_path_buf();
        }
        if window.byte_order_mark {
            self.findings.add(Kind::ByteOrderMark, window.path(), 1);
        }
        in_chunks(window.len(), &mut self.findings, |index, findings| {
            for kind in line::findings(window.get(index)) {
                findings.add_at(kind, window.location(index));
            }
        });
        if !self.has_advice && self.findings.count(Kind::NotUtf8) > 0 {
            self.has_advice = true;
            let first = (0..window.len()).find(|index| std::str::from_utf8(window.get(*index)).is_err());
            let advice = first.map(|index| encoding::advice(window.around(index))).unwrap_or_default();
            self.findings.detail(Kind::NotUtf8, format!("{}: {advice}", window.path().display()));
        }
        self.lines += window.len();
        self.left_out += window.left_out.len();
    }

    fn is_empty(&self) -> bool {
        self.lines == 0 && self.left_out == 0
    }

    /// What was found, if all lines have been added.
    pub fn finish(mut self) -> Findings {
        if self.is_empty() {
            self.findings.add(Kind::EmptyFile, &self.path, 0);
        }
        self.findings
    }

    /// The findings in a file that cannot be read to its end.
    pub fn break_off(self) -> Findings {
        self.findings
    }
}

/// Checks two sides that are translations of each other line by line, window by window.
pub struct PairCheck<'c> {
    languages: Languages<'c>,
    is_training: bool,
    seen: &'c mut Seen,
    sides: [SideCheck; 2],
    /// Findings on pairs.
    findings: Findings,
    /// Where source lines come from.
    locations: LineLocations,
    /// Characters of every line, for both sides.
    lengths: [Vec<u32>; 2],
    /// The first line without a counterpart.
    alone: Option<(PathBuf, usize)>,
    held_out: HashSet<u64>,
}

impl<'c> PairCheck<'c> {
    /// `scripts` are those of the corpus, and `words` tells the languages apart. `seen` holds the pairs of earlier
    /// corpora, to find duplicates and held-out pairs in training text; the pairs of this one are added to it.
    pub fn new(scripts: Scripts, words: &'c Words, is_training: bool, seen: &'c mut Seen) -> Self {
        Self {
            languages: Languages { scripts, words },
            is_training,
            seen,
            sides: Default::default(),
            findings: Findings::default(),
            locations: LineLocations::default(),
            lengths: Default::default(),
            alone: None,
            held_out: HashSet::new(),
        }
    }

    /// Checks the next lines of both sides; they are as many, until one side ends.
    pub fn add(&mut self, windows: &[RawLines; 2]) {
        let [source, target] = windows;
        self.locations.extend(self.sides[0].lines, source);
        for ((check, lengths), window) in self.sides.iter_mut().zip(&mut self.lengths).zip(windows) {
            check.add(window);
            let characters = |index| window.get(index).iter().filter(|byte| !(0x80..0xC0).contains(*byte)).count();
            lengths.par_extend(
                (0..window.len()).into_par_iter().with_min_len(CHUNK).map(|index| characters(index) as u32),
            );
        }
        // Both sides have the same rows.
        source.left_out.iter().for_each(|row| self.findings.add(Kind::Columns, source.path(), *row));
        let pairs = source.len().min(target.len());
        if source.len() != target.len() && self.alone.is_none() {
            let longer = if source.len() > target.len() { source } else { target };
            let (path, line) = longer.location(pairs);
            self.alone = Some((path.to_path_buf(), line));
        }
        in_chunks(pairs, &mut self.findings, |index, findings| {
            for (kind, side) in self.languages.findings(source.get(index), target.get(index)) {
                let window = if side == Side::Source { source } else { target };
                findings.add_at(kind, window.location(index));
            }
        });
        for index in (0..pairs).filter(|index| !source.get(*index).trim_ascii().is_empty()) {
            let hash = self.seen.hash(source.get(index), target.get(index));
            let is_held_out = self.seen.held_out.contains(&hash);
            if !self.is_training {
                if is_held_out {
                    self.findings.add_at(Kind::HeldOutTwice, source.location(index));
                }
                self.held_out.insert(hash);
                continue;
            }
            if is_held_out {
                self.findings.add_at(Kind::Overlap, source.location(index));
            }
            if !self.seen.pairs.insert(hash) {
                self.findings.add_at(Kind::Duplicate, source.location(index));
            }
        }
    }

    /// What was found, if all lines have been added.
    pub fn finish(mut self) -> Findings {
        let pairs = &mut self.findings;
        if let Some((path, line)) = self.alone {
            pairs.add(Kind::LineCounts, &path, line);
            let [source, target] = self.sides.each_ref().map(|side| {
                let s = if side.lines == 1 { "" } else { "s" };
                format!("{} has {} line{s}", side.path.display(), side.lines)
            });
            pairs.detail(Kind::LineCounts, format!("{source}, but {target}"));
        }
        for shift in shift::shifts(&self.lengths[0], &self.lengths[1]) {
            let (path, line) = self.locations.location(shift.start);
            let kind = if shift.offset.is_some() { Kind::Shifted } else { Kind::Unrelated };
            pairs.add_many(kind, path, line, shift.end - shift.start);
        }
        self.seen.held_out.extend(self.held_out);
        let [source, target] = self.sides;
        let is_same_file = source.path == target.path;
        let is_empty = source.is_empty();
        let mut findings = source.finish();
        if !(is_same_file && is_empty) {
            findings.merge(target.finish());
        }
        findings.merge(self.findings);
        findings
    }
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
