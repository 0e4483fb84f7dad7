//! Splits Japanese and Korean into words as MeCab does (Kudo et al. 2004, "Applying Conditional Random Fields to
//! Japanese Morphological Analysis"), with a dictionary that MeCab has compiled.
//!
//! Among all ways to cut a line into words of the dictionary and unknown ones, the way with the least sum of costs is
//! taken: costs of words, and of neighbours.
//!
//! The files, little-endian, as MeCab 0.996 writes them:
//!
//! - `sys.dic` and `unk.dic`: ten numbers of 32 bits (a checksum of the size, the version, the type, the numbers of
//!   words and of left and right contexts, the bytes of the three parts, 0), the name of the encoding in 32 bytes, a
//!   double array, words, descriptions;
//! - `matrix.bin`: both numbers of contexts (16 bits), and the cost of each pair (16 bits);
//! - `char.bin`: the number of categories (32 bits), their names in 32 bytes each, and 32 bits about each character
//!   below U+FFFF;
//! - `dicrc`: with mecab-ko, what it costs when a word of some kinds follows white space.

use std::cell::Cell;
use std::path::Path;

use crate::error::{Error, Result};
use crate::file;

/// The files of a dictionary.
pub const FILES: [&str; 5] = ["sys.dic", "unk.dic", "matrix.bin", "char.bin", "dicrc"];
/// The most bytes of a file: that of mecab-ko-dic has about 100 MB.
const MOST_BYTES: u64 = 1 << 30;
/// Its sum with the size of the file is in the header of a dictionary, bit by bit.
const MAGIC: u32 = 0xef71_8f77;
const VERSION: u32 = 102;
/// Bytes of the header of a dictionary.
const HEADER: usize = 40 + NAME;
/// Bytes of the name of an encoding or a category.
const NAME: usize = 32;
/// Bytes of a word in a dictionary.
const WORD: usize = 16;
/// Characters whose category is known.
const CHARACTERS: usize = 0xffff;
/// MeCab makes no unknown word of more characters of one kind.
const LONGEST_GROUP: usize = 24;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// A word of a dictionary.
#[derive(Clone, Copy)]
struct Word {
    /// What it looks like to the word before it, and to the one after it.
    contexts: [u16; 2],
    kind: u16,
    cost: i16,
}

/// Words that are written alike: the first, and how many they are.
type Words = (usize, usize);

/// `sys.dic` or `unk.dic`.
struct Dictionary {
    bytes: Vec<u8>,
    /// Bytes of the double array, which is behind the header.
    array: usize,
    /// The number of words.
    words: usize,
}

impl Dictionary {
    fn new(bytes: Vec<u8>) -> Option<Self> {
        let field = |number: usize| u32_at(&bytes, 4 * number);
        let size = u32::try_from(bytes.len()).ok()?;
        let [array, words, descriptions] = [field(6)? as usize, field(7)? as usize, field(8)? as usize];
        let name = bytes.get(40..HEADER)?.split(|byte| *byte == 0).next()?;
        let is_utf8 = name.eq_ignore_ascii_case(b"utf-8") || name.eq_ignore_ascii_case(b"utf8");
        let is_whole = HEADER.checked_add(array)?.checked_add(words)?.checked_add(descriptions)? == bytes.len();
        let is_right = field(0)? ^ MAGIC == size && field(1)? == VERSION && is_utf8 && is_whole;
        is_right.then_some(Self { array, words: words / WORD, bytes })
    }

    /// How many words it says to have.
    fn size(&self) -> u32 {
        u32_at(&self.bytes, 12).unwrap_or(0)
    }

    fn word(&self, number: usize) -> Option<Word> {
        let at = HEADER + self.array + WORD.checked_mul(number)?;
        let [left, right, kind, cost] = [0, 2, 4, 6].map(|field| u16_at(&self.bytes, at + field));
        (number < self.words).then_some(Word { contexts: [left?, right?], kind: kind?, cost: cost? as i16 })
    }

    /// The words that `text` begins with, from the shortest on, with their lengths.
    fn prefixes(&self, text: &[u8], mut found: impl FnMut(usize, Words)) {
        let array = &self.bytes[HEADER..HEADER + self.array];
        // Each state has a base, and the base of the state that it follows.
        let state = |number: u32| {
            let at = 8 * number as usize;
            Some((u32_at(array, at)?, u32_at(array, at + 4)?))
        };
        let Some((mut base, _)) = state(0) else { return };
        for (length, byte) in text.iter().map(Some).chain([None]).enumerate() {
            if let Some((end, check)) = state(base)
                && check == base
                && (end as i32) < 0
            {
                let words = !end;
                found(length, ((words >> 8) as usize, (words & 0xff) as usize));
            }
            let Some(byte) = byte else { return };
            match base.checked_add(u32::from(*byte) + 1).and_then(state) {
                Some((next, check)) if check == base => base = next,
                _ => return,
            }
        }
    }

    /// The words that are written like this.
    fn exactly(&self, text: &[u8]) -> Option<Words> {
        let mut all = None;
        self.prefixes(text, |length, words| all = (length == text.len()).then_some(words));
        all
    }
}

/// What is known about a character.
#[derive(Clone, Copy)]
struct Character(u32);

impl Character {
    /// The categories that it belongs to, a bit for each.
    fn categories(self) -> u32 {
        self.0 & 0x3_ffff
    }

    /// The category that unknown words beginning with it have.
    fn category(self) -> usize {
        (self.0 >> 18 & 0xff) as usize
    }

    /// The most characters of unknown words that begin with it.
    fn longest(self) -> usize {
        (self.0 >> 26 & 0xf) as usize
    }

    /// Whether all characters of its kind that follow each other make an unknown word.
    fn groups(self) -> bool {
        self.0 >> 30 & 1 == 1
    }

    /// Whether there are unknown words even where the dictionary has a word.
    fn always(self) -> bool {
        self.0 >> 31 == 1
    }

    fn is_like(self, other: Self) -> bool {
        self.categories() & other.categories() != 0
    }
}

/// A word at a place of a line.
struct Node {
    /// Bytes from its beginning to its end.
    place: [u32; 2],
    /// The node before it on the cheapest way.
    before: u32,
    /// The cost of that way.
    cost: i64,
    /// Its context for the word after it.
    right: u16,
}

/// A compiled dictionary of MeCab.
pub struct MeCab {
    words: Dictionary,
    unknown: Dictionary,
    /// The unknown words of each category.
    by_category: Vec<Words>,
    characters: Vec<Character>,
    /// The number of right contexts, and the cost of each for each left context.
    right_contexts: usize,
    costs: Vec<i16>,
    /// What it costs when words of these kinds follow white space.
    after_space: Vec<(u16, i64)>,
}

impl MeCab {
    /// Reads the dictionary in a folder, whose text must be UTF-8.
    ///
    /// # Errors
    /// A file cannot be read, or is none of MeCab's.
    pub fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            let bytes = file::read_at_most(&path, MOST_BYTES);
            bytes.map_err(|error| {
                let help = "name the folder of a compiled dictionary of MeCab, with sys.dic, unk.dic, char.bin and \
                            matrix.bin";
                Error::io("read the dictionary", &path, error).help(help)
            })
        };
        let damaged = |name: &str| {
            let what = "this is no dictionary of MeCab 0.996 in UTF-8, or it is damaged";
            Error::failure(what).at(folder.join(name))
        };
        let dictionary = |name: &str| Dictionary::new(read(name)?).ok_or_else(|| damaged(name));
        let (words, unknown) = (dictionary("sys.dic")?, dictionary("unk.dic")?);
        let (right_contexts, left_contexts, costs) =
            matrix(&read("matrix.bin")?).ok_or_else(|| damaged("matrix.bin"))?;
        let table = read("char.bin")?;
        let (characters, categories) = characters(&table).ok_or_else(|| damaged("char.bin"))?;
        let fits = |word: Word| {
            let [left, right] = word.contexts.map(usize::from);
            left < left_contexts && right < right_contexts
        };
        for (name, dictionary) in [("sys.dic", &words), ("unk.dic", &unknown)] {
            if !(0..dictionary.words).all(|number| dictionary.word(number).is_some_and(fits)) {
                return Err(damaged(name).more_help("matrix.bin has other contexts"));
            }
        }
        let of_category = |name: &[u8]| unknown.exactly(name);
        let by_category = categories.iter().map(|name| of_category(name)).collect::<Option<Vec<Words>>>();
        let by_category = by_category.ok_or_else(|| damaged("unk.dic").more_help("char.bin has other categories"))?;
        let settings = folder.join("dicrc");
        let settings = if settings.exists() { read("dicrc")? } else { Vec::new() };
        let after_space = after_space(&String::from_utf8_lossy(&settings));
        Ok(Self { words, unknown, by_category, characters, right_contexts, costs, after_space })
    }

    /// How many words the dictionary has: what sacrebleu knows it by.
    pub fn size(&self) -> u32 {
        self.words.size()
    }

    /// The first character of `text`, and its bytes.
    fn character(&self, text: &str) -> Option<(Character, usize)> {
        let first = text.chars().next()?;
        // As MeCab, which takes characters beyond 16 bits for U+0000.
        let known = self.characters.get(first as usize).or(self.characters.first())?;
        Some((*known, first.len_utf8()))
    }

    /// The bytes and the number of the characters that `text` begins with, as long as each is like the one before it,
    /// the first like `kind`; at most `most`. Also the last character that was looked at.
    fn run(&self, text: &str, mut kind: Character, most: usize) -> (usize, usize, Option<(Character, usize)>) {
        let (mut bytes, mut count, mut last) = (0, 0, None);
        while count < most
            && let Some((character, length)) = self.character(&text[bytes..])
        {
            last = Some((character, length));
            if !kind.is_like(character) {
                break;
            }
            (bytes, count, kind) = (bytes + length, count + 1, character);
        }
        (bytes, count, last)
    }

    /// Calls `found` for each word that may follow a place of the line, in MeCab's order: with where it begins, behind
    /// white space, and where it ends.
    fn words_at(&self, line: &str, place: usize, mut found: impl FnMut([usize; 2], Word)) {
        let Some(space) = self.characters.get(usize::from(b' ')) else { return };
        let (spaces, _, first) = self.run(&line[place..], *space, usize::MAX);
        let start = place + spaces;
        let (text, Some((first, length))) = (&line[start..], first) else { return };
        if text.is_empty() {
            return;
        }
        let is_known = Cell::new(false);
        let mut add = |dictionary: &Dictionary, (number, count): Words, bytes: usize| {
            // Only a damaged dictionary has such words.
            if bytes == 0 || !text.is_char_boundary(bytes) {
                return;
            }
            for word in (number..number + count).filter_map(|number| dictionary.word(number)) {
                is_known.set(true);
                found([start, start + bytes], word);
            }
        };
        self.words.prefixes(text.as_bytes(), |bytes, words| add(&self.words, words, bytes));
        if is_known.get() && !first.always() {
            return;
        }
        let mut unknown = |bytes: usize| add(&self.unknown, self.by_category[first.category()], bytes);
        let mut grouped = None;
        if first.groups() {
            let (bytes, count, _) = self.run(&text[length..], first, LONGEST_GROUP + 1);
            if count <= LONGEST_GROUP {
                unknown(length + bytes);
                grouped = Some(length + bytes);
            }
        }
        let mut bytes = length;
        for _ in 0..first.longest() {
            if grouped == Some(bytes) {
                continue;
            }
            unknown(bytes);
            match self.character(&text[bytes..]) {
                Some((next, length)) if first.is_like(next) => bytes += length,
                _ => break,
            }
        }
        if !is_known.get() {
            unknown(bytes);
        }
    }

    /// The cost of a word that follows a context, with white space between them or not.
    fn cost(&self, right: u16, word: Word, has_space: bool) -> i64 {
        let pair = usize::from(right) + self.right_contexts * usize::from(word.contexts[0]);
        let of_pair = self.costs.get(pair).copied().unwrap_or(i16::MAX);
        let of_space = self.after_space.iter().find(|(kind, _)| has_space && *kind == word.kind);
        i64::from(of_pair) + i64::from(word.cost) + of_space.map_or(0, |(_, cost)| *cost)
    }

    /// The words of a line, without the white space between them.
    pub fn split<'a>(&self, line: &'a str) -> Vec<&'a str> {
        const START: u32 = 0;
        let mut nodes = vec![Node { place: [0, 0], before: START, cost: 0, right: 0 }];
        // The nodes that end at each place, the last one first.
        let mut ends: Vec<Vec<u32>> = vec![Vec::new(); line.len() + 1];
        ends[0].push(START);
        let cheapest = |nodes: &[Node], ends: &[u32], cost: &dyn Fn(u16) -> i64| {
            let ways = ends.iter().rev().map(|&end| {
                let node = &nodes[end as usize];
                (node.cost + cost(node.right), end)
            });
            // The first of equal ones.
            ways.reduce(|best, way| if way.0 < best.0 { way } else { best })
        };
        let mut words = Vec::new();
        for place in 0..line.len() {
            if ends[place].is_empty() {
                continue;
            }
            words.clear();
            self.words_at(line, place, |at, word| words.push((at, word)));
            for &([start, end], word) in words.iter().rev() {
                let cost = |right| self.cost(right, word, start > place);
                let Some((cost, before)) = cheapest(&nodes, &ends[place], &cost) else { continue };
                let number = nodes.len() as u32;
                nodes.push(Node { place: [start as u32, end as u32], before, cost, right: word.contexts[1] });
                ends[end].push(number);
            }
        }
        let end = Word { contexts: [0, 0], kind: 0, cost: 0 };
        let last = ends.iter().rev().find(|ends| !ends.is_empty());
        let way = last.and_then(|ends| cheapest(&nodes, ends, &|right| self.cost(right, end, false)));
        let mut found = Vec::new();
        let mut at = way.map_or(START, |(_, at)| at);
        while at != START {
            let Node { place: [start, end], before, .. } = nodes[at as usize];
            found.push(&line[start as usize..end as usize]);
            at = before;
        }
        found.reverse();
        found
    }
}

/// The number of right and left contexts, and the costs of pairs.
fn matrix(bytes: &[u8]) -> Option<(usize, usize, Vec<i16>)> {
    let (right, left) = (usize::from(u16_at(bytes, 0)?), usize::from(u16_at(bytes, 2)?));
    let (costs, rest) = bytes[4..].as_chunks::<2>();
    let is_whole = rest.is_empty() && costs.len() == right * left;
    is_whole.then(|| (right, left, costs.iter().map(|cost| i16::from_le_bytes(*cost)).collect()))
}

/// What is known about characters, and the names of the categories.
fn characters(bytes: &[u8]) -> Option<(Vec<Character>, Vec<&[u8]>)> {
    let count = u32_at(bytes, 0)? as usize;
    let (names, characters) = bytes[4..].split_at_checked(NAME.checked_mul(count)?)?;
    let names = names.chunks_exact(NAME).map(|name| name.split(|byte| *byte == 0).next().unwrap_or(name)).collect();
    let (characters, rest) = characters.as_chunks::<4>();
    let characters: Vec<Character> = characters.iter().map(|bytes| Character(u32::from_le_bytes(*bytes))).collect();
    let is_right = characters.iter().all(|character| character.category() < count);
    (is_right && rest.is_empty() && characters.len() == CHARACTERS).then_some((characters, names))
}

/// Kinds of words and what each costs after white space, from the settings of a dictionary: numbers that take turns.
fn after_space(settings: &str) -> Vec<(u16, i64)> {
    let values = settings.lines().filter_map(|line| line.split_once('='));
    let values = values.filter(|(key, _)| key.trim() == "left-space-penalty-factor");
    let numbers: Vec<i32> = values.flat_map(|(_, value)| value.split(',')).flat_map(|n| n.trim().parse()).collect();
    let pair = |[kind, cost]: &[i32; 2]| Some((u16::try_from(*kind).ok()?, i64::from(*cost)));
    numbers.as_chunks::<2>().0.iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests;
