//! Characters that several tokens spell, in bytes: a search that counts n-grams takes each of them for one unit.

use std::collections::HashMap;

use crate::data::tokenizer::Tokenizer;

/// Which tokens of a vocabulary are not whole characters: byte pieces, and the pieces of byte-level BPE that begin or
/// end inside a character.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Characters {
    bytes: HashMap<u32, Vec<u8>>,
}

/// Tokens of one unit: a single token, or the byte tokens of one character.
struct Unit<'t> {
    tokens: &'t [u32],
    /// Whether its character lacks bytes.
    is_open: bool,
}

impl Characters {
    /// From the bytes of each token; tokens of whole characters may be left out.
    pub fn new(bytes: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Self {
        Self { bytes: bytes.into_iter().filter(|(_, bytes)| std::str::from_utf8(bytes).is_err()).collect() }
    }

    /// Those of a tokenizer.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self::new((0..tokenizer.vocab_size() as u32).map(|id| (id, tokenizer.written(id))))
    }

    /// Whether a token begins with bytes that go on with a character.
    fn goes_on(&self, token: u32) -> bool {
        self.bytes.get(&token).and_then(|bytes| bytes.first()).is_some_and(|byte| is_continuation(*byte))
    }

    /// The units of a hypothesis, in order. Bytes that spell no character are units too.
    fn units<'t>(&self, tokens: &'t [u32]) -> Vec<Unit<'t>> {
        let mut units: Vec<Unit<'t>> = Vec::with_capacity(tokens.len());
        let (mut start, mut spelled) = (0, Vec::new());
        for (end, token) in (1..).zip(tokens) {
            let continued = units.pop_if(|unit| unit.is_open && self.goes_on(*token));
            if continued.is_none() {
                start = end - 1;
                spelled.clear();
            }
            spelled.extend(self.bytes.get(token).into_iter().flatten());
            units.push(Unit { tokens: &tokens[start..end], is_open: lacks_bytes(&spelled) });
        }
        units
    }

    /// Adds the tokens that would end a repeated n-gram of units. A token that only begins a character ends none: which
    /// character it becomes is not known yet.
    pub(super) fn forbid_repeats(&self, tokens: &[u32], n: usize, forbidden: &mut Vec<u32>) {
        let units = self.units(tokens);
        let mut forbid = |units: &[Unit<'_>], begun: &[u32], is_possible: &dyn Fn(u32) -> bool| {
            let Some(start) = (units.len() + 1).checked_sub(n) else { return };
            let last = &units[start..];
            for ngram in units.windows(n) {
                if let Some((next, before)) = ngram.split_last()
                    && !next.is_open
                    && before.iter().zip(last).all(|(a, b)| a.tokens == b.tokens)
                    && let Some(&[token]) = next.tokens.strip_prefix(begun)
                    && is_possible(token)
                    && !forbidden.contains(&token)
                {
                    forbidden.push(token);
                }
            }
        };
        let Some((last, before)) = units.split_last().filter(|(last, _)| last.is_open) else {
            return forbid(&units, &[], &|_| true);
        };
        forbid(before, last.tokens, &|_| true);
        forbid(&units, &[], &|token| !self.goes_on(token));
    }
}

/// Whether a byte of UTF-8 is one that continues a character.
fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// Whether bytes end inside a character.
fn lacks_bytes(bytes: &[u8]) -> bool {
    let tail = bytes.iter().rev().take(3).position(|byte| !is_continuation(*byte));
    let Some(first) = tail.map(|after| (after, bytes[bytes.len() - 1 - after])) else { return false };
    let wanted = match first.1 {
        0xC2..=0xDF => 1,
        0xE0..=0xEF => 2,
        0xF0..=0xF4 => 3,
        _ => 0,
    };
    first.0 < wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::TrainOptions;

    /// Tokens 0 to 99 are words, 100 and 101 `ä` whole and as a piece with the beginning of the next, the others byte
    /// pieces.
    fn characters() -> Characters {
        let byte = |byte: u8| (1000 + u32::from(byte), vec![byte]);
        let others = [(100, "ä".as_bytes().to_vec()), (101, vec![b'a', 0xE4, 0xB8])];
        Characters::new((0..=255).map(byte).chain(others))
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(|byte| 1000 + u32::from(byte)).collect()
    }

    #[test]
    fn characters_are_units() {
        let lengths = |tokens: &[u32]| -> Vec<(usize, bool)> {
            characters().units(tokens).iter().map(|unit| (unit.tokens.len(), unit.is_open)).collect()
        };
        assert_eq!(lengths(&[7, 8, 100]), [(1, false); 3]);
        assert_eq!(lengths(&bytes("a一ä😀")), [(1, false), (3, false), (2, false), (4, false)]);
        assert_eq!(lengths(&[&[7], &bytes("一")[..2]].concat()), [(1, false), (2, true)]);
        // A beginning that is not continued, and continuations of nothing.
        assert_eq!(
            lengths(&[1000 + 0xE4, 7, 1000 + 0x80, 1000 + 0x80]),
            [(1, true), (1, false), (1, false), (1, false)]
        );
        // The second character of the piece goes on.
        assert_eq!(lengths(&[101, 1000 + 0x80, 7]), [(2, false), (1, false)]);
    }

    /// Our own subwords have pieces for bytes: a copy of this line, in which 一 has no piece, repeats no trigram.
    #[test]
    fn byte_pieces_of_a_tokenizer_are_found() {
        let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
        let tokenizer = Tokenizer::train(&[&["and or"; 20][..]], &options).unwrap();
        let characters = Characters::from_tokenizer(&tokenizer);
        let ids = tokenizer.encode("一 and 一 or 丁");
        assert_eq!(ids.len(), 3 * 4 + 2, "and and or are single pieces");
        assert_eq!(ids.iter().filter(|id| tokenizer.is_byte(**id)).count(), 9);
        for end in 0..ids.len() {
            let mut forbidden = Vec::new();
            characters.forbid_repeats(&ids[..end], 3, &mut forbidden);
            assert!(!forbidden.contains(&ids[end]), "{forbidden:?} after {end} tokens");
        }
        // Each byte for itself, they would.
        let mut forbidden = Vec::new();
        let second = ids.iter().rposition(|id| *id == ids[1]).unwrap();
        let again = ids[..second].iter().rposition(|id| *id == ids[1]).unwrap();
        Characters::default().forbid_repeats(&ids[..again + 2], 3, &mut forbidden);
        assert!(forbidden.contains(&ids[again + 2]));
    }

    #[test]
    fn the_last_byte_ends_a_repetition() {
        let forbidden = |tokens: &[u32], n| {
            let mut forbidden = Vec::new();
            characters().forbid_repeats(tokens, n, &mut forbidden);
            forbidden
        };
        let one = bytes("一");
        let [first, second, third] = one[..] else { panic!("three bytes") };
        // The report that this is about: 一 and 一, without a repeated trigram.
        let copied = [&one[..], &[7], &one[..2]].concat();
        assert!((1..copied.len()).all(|end| forbidden(&copied[..end], 3).is_empty()));
        assert_eq!(forbidden(&copied, 1), [third, 7]);
        assert_eq!(forbidden(&[&one[..], &[7]].concat(), 1), [7], "another character may begin in the same way");
        assert_eq!(forbidden(&[&one[..], &[7], &one[..], &[7], &one[..2]].concat(), 3), [third]);
        assert!(forbidden(&[&one[..], &one[..], &[first]].concat(), 2).is_empty());
        assert_eq!(forbidden(&[&one[..], &one[..], &[first, second]].concat(), 2), [third]);
        // 丁 differs from 一 in its last byte.
        assert_eq!(forbidden(&[&one[..], &bytes("丁")[..2]].concat(), 1), [third]);
        // Words repeat as they always did.
        assert_eq!(forbidden(&[7, 8, 7], 1), [7, 8]);
        assert_eq!(forbidden(&[7, 8, 7], 2), [8]);
        assert!(forbidden(&[7, 8, 9], 2).is_empty());
        assert_eq!(forbidden(&[7, 8, 9, 7, 8], 3), [9]);
        assert_eq!(forbidden(&[7, 7, 7], 3), [7]);
        assert_eq!(forbidden(&[7, 8, 1, 7, 8, 2, 7, 8], 3), [1, 2]);
        assert!(forbidden(&[7], 3).is_empty() && forbidden(&[], 1).is_empty());
    }
}
