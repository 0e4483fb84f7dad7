//! The merges of subword-nmt and of fastBPE ("codes"), and how they split a word.
//!
//! | file | first line | lines | the end of a word |
//! |---|---|---|---|
//! | subword-nmt 0.2 | `#version: 0.2` | `left right` | `</w>` at the last character |
//! | subword-nmt 0.1 | `#version: 0.1`, or the first merge | `left right` | `</w>` is a symbol of its own |
//! | fastBPE | the first merge | `left right count` | `</w>` at the last character |
//!
//! All occurrences of a pair are merged at once, as these programs do. With a vocabulary, merges that make a piece
//! which it lacks are undone (Sennrich et al. 2017).

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Value, json};

use super::merge::{Coins, Merges, Scratch};
use super::vocabulary::SPECIALS;
use crate::data::text::file::LineReader;
use crate::data::text::packing::refuse_documents;
use crate::error::{Error, Result};

/// Joins a piece to the next.
pub(super) const JOINER: &str = "@@";
/// Marks the end of a word in merges.
const END: &str = "</w>";
/// The `type` of our JSON.
pub(super) const TYPE: &str = "subword-nmt";
/// How version 0.2 of subword-nmt begins.
const HEADER: &str = "#version:";
/// A space in merges of GPT-2's kind, whose files have the same header as subword-nmt's.
const BYTE_LEVEL_SPACE: char = 'Ġ';

/// The id of a symbol that is part of no merge.
const UNKNOWN: u32 = u32::MAX;

/// Where a word ends, for merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// The end is a separate symbol: version 0.1 of subword-nmt.
    Apart,
    /// The end belongs to the last character: version 0.2, and fastBPE.
    Attached,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::Apart => "0.1",
            Self::Attached => "0.2",
        }
    }

    /// The version at the end of a header; further zeros have no meaning.
    fn named(name: &str) -> Option<Self> {
        let mut numbers: Vec<&str> = name.split('.').collect();
        while numbers.len() > 2 && numbers.last() == Some(&"0") {
            numbers.pop();
        }
        [Self::Apart, Self::Attached].into_iter().find(|version| version.name() == numbers.join("."))
    }
}

/// Two symbols that are merged.
type Pair = (Box<str>, Box<str>);

/// Merges that split words, and the pieces that they may make.
#[derive(Clone, Debug)]
pub struct Codes {
    version: Version,
    /// The pairs in the order of their ranks.
    pairs: Vec<Pair>,
    /// What a word may be split into, with [`JOINER`]; `None`: anything.
    vocabulary: Option<HashSet<Box<str>>>,
    /// The ids of all symbols of the merges.
    symbols: HashMap<Box<str>, u32>,
    /// The symbols by their ids.
    names: Vec<Box<str>>,
    merges: Merges,
    /// What a symbol was merged from.
    parts: HashMap<Box<str>, Pair>,
}

impl PartialEq for Codes {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.pairs == other.pairs && self.vocabulary == other.vocabulary
    }
}

impl Codes {
    /// Reads a file of subword-nmt or fastBPE and, where one is named, the vocabulary with pieces that are found there
    /// at least `threshold` times.
    ///
    /// # Errors
    /// A file cannot be read, or has an invalid line; the error names it.
    pub fn load(path: &Path, vocabulary: Option<&Path>, threshold: u64) -> Result<Self> {
        let lines = lines(path, "the codes")?;
        let (version, pairs) = pairs(&lines, path)?;
        let vocabulary = vocabulary.map(|path| read_vocabulary(path, threshold)).transpose()?;
        Ok(Self::new(version, pairs, vocabulary))
    }

    /// Whether a file is of this kind, judged by how it begins: with the header of subword-nmt; or with a merge, if
    /// some merge near the beginning has the end of a word.
    pub(super) fn is_one(bytes: &[u8]) -> bool {
        let head = bytes.get(..1 << 16).unwrap_or(bytes);
        let mut lines = head.split(|byte| *byte == b'\n').map_while(|line| std::str::from_utf8(line).ok());
        let Some(first) = lines.next() else { return false };
        let has_end = |(left, right, _): (&str, &str, bool)| left.ends_with(END) || right.ends_with(END);
        let is_merge = fields(first).is_some();
        first.starts_with(HEADER) || (is_merge && std::iter::once(first).chain(lines).filter_map(fields).any(has_end))
    }

    fn new(version: Version, pairs: Vec<Pair>, vocabulary: Option<HashSet<Box<str>>>) -> Self {
        let (mut symbols, mut names, mut merges) = (HashMap::new(), Vec::new(), Merges::together());
        let mut id = |symbol: &str| match symbols.get(symbol) {
            Some(id) => *id,
            None => {
                let id = names.len() as u32;
                symbols.insert(symbol.into(), id);
                names.push(symbol.into());
                id
            }
        };
        let mut parts = HashMap::new();
        // As in subword-nmt: of equal pairs the first counts, and of pairs that make the same symbol, the one whose
        // last line is the first.
        for (rank, (left, right)) in pairs.iter().enumerate().rev() {
            let rank = rank as u32;
            let joined = format!("{left}{right}");
            let is_new = merges.insert(id(left), id(right), rank, id(&joined));
            if is_new {
                parts.insert(joined.into_boxed_str(), (left.clone(), right.clone()));
            }
        }
        Self { version, pairs, vocabulary, symbols, names, merges, parts }
    }

    /// The special tokens, and every piece that words can be split into if all their characters are in the merges.
    pub(super) fn pieces(&self) -> Vec<String> {
        let mut pieces = SPECIALS.map(str::to_owned).to_vec();
        let mut seen: HashSet<String> = pieces.iter().cloned().collect();
        let mut add = |piece: String| {
            if !piece.is_empty() && self.has(&piece) && seen.insert(piece.clone()) {
                pieces.push(piece);
            }
        };
        let single = self.pairs.iter().flat_map(|(left, right)| [left, right]).flat_map(|symbol| bare(symbol).chars());
        for character in single {
            add(format!("{character}{JOINER}"));
            add(character.to_string());
        }
        for (left, right) in &self.pairs {
            let joined = format!("{left}{right}");
            match joined.strip_suffix(END) {
                Some(whole) => add(whole.to_owned()),
                // In version 0.1, a symbol without an end may still be the last.
                None => {
                    add(format!("{joined}{JOINER}"));
                    add(joined);
                }
            }
        }
        pieces
    }

    fn has(&self, piece: &str) -> bool {
        self.vocabulary.as_ref().is_none_or(|vocabulary| vocabulary.contains(piece))
    }

    /// The parts of a word, which has a character at least and no space; `coins` leave out merges.
    pub(super) fn split<'w>(&self, word: &'w str, coins: Option<Coins>, scratch: &mut Scratch) -> Vec<&'w str> {
        let mut characters = word.chars().peekable();
        let mut symbols = Vec::with_capacity(word.len() + 1);
        let mut buffer = String::new();
        while let Some(character) = characters.next() {
            buffer.clear();
            buffer.push(character);
            if self.version == Version::Attached && characters.peek().is_none() {
                buffer.push_str(END);
            }
            symbols.push(self.symbols.get(buffer.as_str()).copied().unwrap_or(UNKNOWN));
        }
        if symbols.len() == 1 {
            return vec![word];
        }
        if self.version == Version::Apart {
            symbols.push(self.symbols.get(END).copied().unwrap_or(UNKNOWN));
        }
        let mut merged = Vec::with_capacity(symbols.len());
        self.merges.apply(&symbols, coins, scratch, &mut merged);
        let mut parts = Vec::with_capacity(merged.len());
        let mut rest = word;
        for (index, id) in merged.iter().enumerate() {
            let length = match self.names.get(*id as usize) {
                _ if index + 1 == merged.len() => rest.len(),
                Some(name) => name.len(),
                None => rest.chars().next().map_or(0, char::len_utf8),
            };
            let Some((part, after)) = rest.split_at_checked(length) else { break };
            rest = after;
            // Nothing is left of the end of a word that stayed apart.
            if !part.is_empty() {
                parts.push(part);
            }
        }
        if self.vocabulary.is_none() { parts } else { self.within_vocabulary(parts) }
    }

    /// The parts of a word; those that the vocabulary lacks are split into the symbols they were merged from.
    fn within_vocabulary<'w>(&self, parts: Vec<&'w str>) -> Vec<&'w str> {
        let mut found = Vec::with_capacity(parts.len());
        let last = parts.len().saturating_sub(1);
        // Those to look at, the next one last, with whether they are looked up as the end of a word.
        let mut open: Vec<(&str, bool)> =
            parts.into_iter().enumerate().map(|(i, part)| (part, i == last)).rev().collect();
        while let Some((part, is_end)) = open.pop() {
            let is_known = if is_end { self.has(part) } else { self.has(&format!("{part}{JOINER}")) };
            let merged = match is_end {
                _ if is_known => None,
                true => self.parts.get(format!("{part}{END}").as_str()),
                false => self.parts.get(part),
            };
            match merged.and_then(|(left, _)| part.split_at_checked(left.len())) {
                // Version 0.1, which merges the end itself. There subword-nmt writes a joiner with nothing after it.
                Some((whole, "")) => open.push((whole, false)),
                Some((left, right)) => open.extend([(right, is_end), (left, false)]),
                None => found.push(part),
            }
        }
        found
    }

    /// Our JSON of a tokenizer with these codes and pieces.
    pub(super) fn to_json(&self, pieces: Vec<String>) -> Value {
        let codes: Vec<String> = self.lines().collect();
        // In one order, so that the same codes give the same file.
        let vocabulary = self.vocabulary.as_ref().map(|vocabulary| {
            let mut sorted: Vec<&str> = vocabulary.iter().map(AsRef::as_ref).collect();
            sorted.sort_unstable();
            sorted
        });
        json!({
            "type": TYPE, "version": self.version.name(), "codes": codes, "vocabulary": vocabulary, "pieces": pieces,
        })
    }

    /// Reads what [`Self::to_json`] wrote, but for the pieces.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn from_json(file: &Value) -> Result<Self> {
        let wrong = |what: &str| Error::failure(format!("its {what} are not those of subword-nmt"));
        let version = file["version"].as_str().and_then(Version::named).ok_or_else(|| wrong("codes"))?;
        let list = file["codes"].as_array().ok_or_else(|| wrong("codes"))?;
        let pair = |line: &Value| match fields(line.as_str()?)? {
            (left, right, false) => Some((left.into(), right.into())),
            _ => None,
        };
        let pairs: Option<Vec<_>> = list.iter().map(pair).collect();
        let vocabulary = match &file["vocabulary"] {
            Value::Null => None,
            list => {
                let pieces: Option<_> =
                    list.as_array().and_then(|list| list.iter().map(|it| it.as_str().map(Into::into)).collect());
                Some(pieces.ok_or_else(|| wrong("vocabulary's pieces"))?)
            }
        };
        Ok(Self::new(version, pairs.ok_or_else(|| wrong("codes"))?, vocabulary))
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.pairs.iter().map(|(left, right)| format!("{left} {right}"))
    }

    /// The file of subword-nmt with these merges.
    pub(super) fn to_file(&self) -> String {
        let lines: String = self.lines().map(|line| line + "\n").collect();
        format!("{HEADER} {}\n{lines}", self.version.name())
    }
}

/// A symbol without the mark of a word's end.
fn bare(symbol: &str) -> &str {
    symbol.strip_suffix(END).unwrap_or(symbol)
}

/// The words of a line, which U+0020 alone separates: other white space is part of them.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    // As subword-nmt, which takes these for a line's end.
    line.trim_matches(['\r', '\n', ' ']).split(' ').filter(|word| !word.is_empty())
}

/// The two symbols of a line of codes, and whether fastBPE's count follows.
fn fields(line: &str) -> Option<(&str, &str, bool)> {
    let mut fields = line.trim_matches(['\r', '\n', ' ']).split(' ');
    let (left, right) = (fields.next()?, fields.next()?);
    let is_counted = match fields.next() {
        None => false,
        Some(count) => count.parse::<u64>().is_ok().then_some(true)?,
    };
    (!left.is_empty() && !right.is_empty() && fields.next().is_none()).then_some((left, right, is_counted))
}

/// Lines that show what a file is.
const HEAD: usize = 10;

/// The lines of a file, without blank ones at its end.
fn lines(path: &Path, what: &str) -> Result<Vec<String>> {
    // The reader of lines would say that it cannot read the text.
    std::fs::metadata(path).map_err(|error| Error::io(&format!("read {what}"), path, error))?;
    let mut reader = LineReader::open(path, path)?;
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    while reader.next_line(&mut line)? {
        let text = std::str::from_utf8(&line).map_err(|error| reader.not_utf8(&line, error.valid_up_to()))?;
        lines.push(text.to_owned());
        line.clear();
    }
    // A page that was saved instead, for example: a list without counts has any words.
    refuse_documents(lines.iter().take(HEAD).fold(String::new(), |head, line| head + line + "\n").as_bytes(), path)?;
    while lines.last().is_some_and(|line| line.trim_matches(' ').is_empty()) {
        lines.pop();
    }
    Ok(lines)
}

/// Reads the lines of a file of codes.
fn pairs(lines: &[String], path: &Path) -> Result<(Version, Vec<Pair>)> {
    let header = lines.first().and_then(|line| line.strip_prefix(HEADER));
    let stated = header.map(|header| header.split_whitespace().next_back().unwrap_or_default());
    let version = match stated {
        Some(name) => Version::named(name).ok_or_else(|| {
            let error = Error::failure(format!("these are codes of subword-nmt's version {name}")).at_line(path, 1, 0);
            error.help("mt applies those of the versions 0.1 and 0.2, and fastBPE's")
        })?,
        // fastBPE has no header; it writes a count.
        None if lines.first().and_then(|line| fields(line)).is_some_and(|(.., is_counted)| is_counted) => {
            Version::Attached
        }
        None => Version::Apart,
    };
    let (skipped, is_fastbpe) = (usize::from(header.is_some()), header.is_none() && version == Version::Attached);
    let mut pairs: Vec<Pair> = Vec::with_capacity(lines.len());
    for (number, line) in (1..).zip(lines).skip(skipped) {
        let Some((left, right, _)) = fields(line).filter(|(.., is_counted)| *is_counted == is_fastbpe) else {
            let form = if is_fastbpe { "two symbols and a count (fastBPE)" } else { "two symbols (subword-nmt)" };
            let error = Error::failure(format!("the line is not a merge: {form} are expected, with one space between"));
            return Err(error
                .at_line(path, number, 0)
                .help("name a file of `subword-nmt learn-bpe` or `fast learnbpe`"));
        };
        pairs.push((left.into(), right.into()));
    }
    let has = |what: &dyn Fn(&str) -> bool| pairs.iter().any(|(left, right)| what(left) || what(right));
    if pairs.is_empty() {
        return Err(Error::failure("the file has no merges").at(path));
    }
    if header.is_none() && pairs.iter().all(|(_, right)| right.parse::<u64>().is_ok()) {
        let error = Error::failure("these are words and their counts, as a vocabulary lists them, not merges").at(path);
        return Err(error.help(
            "name the file of `subword-nmt learn-bpe` in `tokenizer.codes`, this one in `tokenizer.vocabulary`",
        ));
    }
    if has(&|symbol| symbol.starts_with(BYTE_LEVEL_SPACE)) && !has(&|symbol| symbol.ends_with(END)) {
        let error = Error::failure("these are merges of bytes, as GPT-2 has them, not codes of subword-nmt").at(path);
        return Err(error.help("name the tokenizer.json that belongs to them in `tokenizer.path`"));
    }
    Ok((version, pairs))
}

/// The pieces that a file lists at least `threshold` times.
fn read_vocabulary(path: &Path, threshold: u64) -> Result<HashSet<Box<str>>> {
    let mut pieces = HashSet::new();
    for (number, line) in (1..).zip(lines(path, "the vocabulary")?) {
        let mut fields = line.trim_matches(['\r', ' ']).split(' ');
        let (piece, count) = (fields.next().unwrap_or_default(), fields.next());
        let count = match count {
            // A list without counts, where none are needed.
            None if threshold == 0 && !piece.contains('\t') => Some(0),
            count => count.and_then(|count| count.parse().ok()),
        };
        let Some(count) = count.filter(|_| !piece.is_empty() && fields.next().is_none()) else {
            let error = Error::failure("the line is not a piece and its count, with one space between");
            return Err(error
                .at_line(path, number, 0)
                .help("name a file of `subword-nmt get-vocab` or `fast getvocab`"));
        };
        if count >= threshold {
            pieces.insert(piece.into());
        }
    }
    if pieces.is_empty() {
        let error = Error::failure(format!("no piece occurs {threshold} times or more in the vocabulary")).at(path);
        return Err(error.help("lower `tokenizer.vocabulary_threshold`, or check the file"));
    }
    Ok(pieces)
}
