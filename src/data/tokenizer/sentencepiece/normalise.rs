//! SentencePiece's normaliser: characters replaced by a table, white space tidied and marked.
//!
//! The table ("precompiled charsmap") is a double-array trie (Aoe 1989, in the layout of the Darts library) from
//! strings to offsets in a blob of replacements. At each position of the text the longest string in the table is
//! replaced, and the replacement is not normalised again.

use super::proto::NormalizerProto;
use super::trie::Trie;
use crate::data::tokenizer::components::check_table;
use crate::data::tokenizer::pipeline::SPACE_PIECE;
use crate::error::{Error, Result};
use crate::limits;

/// Normalises lines.
pub(super) struct Normaliser {
    table: Option<Table>,
    /// User-defined pieces, which stay as they are.
    kept: Option<Trie>,
    dummy_prefix: bool,
    remove_extra_spaces: bool,
    escape_spaces: bool,
    spaces_end_words: bool,
}

impl Normaliser {
    /// From a model's file; `kept` is never changed. Where spaces end words the dummy space comes last.
    pub(super) fn new(spec: &NormalizerProto, kept: Option<Trie>, spaces_end_words: bool) -> Result<Self> {
        let table = &spec.precompiled_charsmap;
        Ok(Self {
            table: if table.is_empty() { None } else { Some(Table::new(table)?) },
            kept,
            dummy_prefix: spec.add_dummy_prefix.unwrap_or(true),
            remove_extra_spaces: spec.remove_extra_whitespaces.unwrap_or(true),
            escape_spaces: spec.escape_whitespaces.unwrap_or(true),
            spaces_end_words,
        })
    }

    /// Whether text gets a space before it.
    pub(super) fn has_dummy_prefix(&self) -> bool {
        self.dummy_prefix
    }

    /// Whether spaces at the ends are removed and runs of others become one.
    pub(super) fn removes_extra_spaces(&self) -> bool {
        self.remove_extra_spaces
    }

    /// A line's normal form, with `▁` for spaces.
    ///
    /// # Errors
    /// It is many times as long as the line.
    pub(super) fn normalise(&self, line: &str) -> Result<String> {
        let most = limits::grown(line.len());
        let mut rest = line;
        if self.remove_extra_spaces {
            while let Some((" ", length)) = self.next(rest) {
                rest = rest.get(length..).unwrap_or_default();
            }
        }
        if rest.is_empty() {
            return Ok(String::new());
        }
        let space = if self.escape_spaces { SPACE_PIECE } else { " " };
        let mut normal = String::with_capacity(rest.len() + rest.len() / 2);
        if self.dummy_prefix && !self.spaces_end_words {
            normal.push_str(space);
        }
        let mut after_space = self.remove_extra_spaces;
        while let Some((mut piece, length)) = self.next(rest) {
            if after_space {
                piece = piece.trim_start_matches(' ');
            }
            if !piece.is_empty() {
                let mut words = piece.split(' ');
                normal.push_str(words.next().unwrap_or_default());
                for word in words {
                    normal.push_str(space);
                    normal.push_str(word);
                }
                after_space = self.remove_extra_spaces && piece.ends_with(' ');
            }
            // The longest piece is a whole table of replacements, which is in memory already.
            if normal.len() > most {
                let error = Error::failure("its table of replaced characters makes a text many times as long as it is");
                return Err(error);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        if self.remove_extra_spaces {
            normal.truncate(normal.trim_end_matches(space).len());
        }
        if self.dummy_prefix && self.spaces_end_words {
            normal.push_str(space);
        }
        Ok(normal)
    }

    /// What the beginning of `text` becomes, and how long that beginning is; `None` at the end.
    fn next<'t>(&'t self, text: &'t str) -> Option<(&'t str, usize)> {
        let first = text.chars().next()?;
        if let Some(length) = self.kept.as_ref().and_then(|kept| kept.longest(text.as_bytes()))
            && let Some(piece) = text.get(..length)
        {
            return Some((piece, length));
        }
        if let Some(found) = self.table.as_ref().and_then(|table| table.replace(text)) {
            return Some(found);
        }
        let length = first.len_utf8();
        Some((text.get(..length)?, length))
    }
}

/// The table of replacements.
struct Table {
    units: Vec<u32>,
    /// Replacements, each ended by a zero byte.
    replacements: String,
}

impl Table {
    /// Reads the table: the length of the trie in bytes, the trie, the replacements.
    fn new(bytes: &[u8]) -> Result<Self> {
        check_table(bytes)?;
        let damaged = || Error::failure("its table of replaced characters is damaged");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (trie, replacements) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let (units, []) = trie.as_chunks::<4>() else { return Err(damaged()) };
        let replacements = std::str::from_utf8(replacements).map_err(|_| damaged())?.to_owned();
        Ok(Self { units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(), replacements })
    }

    /// The replacement of the longest beginning of `text` that has one, and the length of that beginning.
    fn replace(&self, text: &str) -> Option<(&str, usize)> {
        let mut longest = None;
        let mut at = offset(*self.units.first()?);
        // A damaged trie may lead in a circle.
        for (length, byte) in (1..=limits::REPLACED_BYTES).zip(text.bytes()) {
            at ^= u32::from(byte);
            let Some(&unit) = self.units.get(at as usize) else { break };
            // Bit 31 marks a value; no label has it.
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1
                && let Some(value) = self.units.get(at as usize)
            {
                longest = Some((value & !(1 << 31), length));
            }
        }
        let (offset, length) = longest?;
        let replacement = self.replacements.get(offset as usize..)?.split('\0').next()?;
        text.is_char_boundary(length).then_some((replacement, length))
    }
}

/// From a unit of the trie to its children.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}
