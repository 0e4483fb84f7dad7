//! Text in pieces of subword-nmt: U+0020 separates them, and `@@` at the end of one joins it to the next. The text is
//! split already, or [`Codes`] split it.
//!
//! Of text that is split already, the file is a `tokenizer.json` of words ("WordLevel"), which the `tokenizers` library
//! reads as we do. With codes it is our own JSON, which has the codes in it.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::TokenizerKind;
use super::cache::{self, Stretch};
use super::codes::{Codes, JOINER, words};
use super::engine::{Dropout, Engine};
use super::merge::{Coins, Scratch};
use super::pipeline::SPACE_PIECE;
use super::train::TextCounts;
use super::vocabulary::{SPECIALS, in_order};
use crate::error::{Error, Result};

/// Pieces that the text consists of, once `codes` have split it, if there are any.
pub(super) struct Words {
    pieces: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
    specials: [u32; 4],
    codes: Option<Codes>,
    /// Distinguishes this tokenizer's cached words from those of others.
    cache_owner: u64,
}

/// The ids of the special tokens in a vocabulary. One without `<s>`, like Marian's, uses padding instead.
fn specials(id: impl Fn(&str) -> Option<u32>) -> Option<[u32; 4]> {
    let [pad, bos, eos, unk] = SPECIALS.map(id);
    Some([pad?, bos.or(pad)?, eos?, unk?])
}

/// The file without its vocabulary: lines are cut at U+0020, and joined with spaces, without `@@` and the space after
/// it.
fn pipeline(ids: [u32; 4]) -> Value {
    let replace = |pattern: &str, content: &str| {
        json!({
            "type": "Replace", "pattern": { "Regex": pattern }, "content": content,
        })
    };
    let special = |(content, id): (&str, u32)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    };
    let [pad, bos, ..] = ids;
    let named = SPECIALS.into_iter().zip(ids).filter(|(name, _)| *name != SPECIALS[1] || bos != pad);
    let specials: Vec<Value> = named.map(special).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": specials, "normalizer": null,
        "pre_tokenizer": { "type": "Split", "pattern": { "String": " " }, "behavior": "Removed", "invert": false },
        "post_processor": null,
        "decoder": {
            "type": "Sequence", "decoders": [replace("$", " "), { "type": "Fuse" }, replace("(@@)? $|@@ ", "")],
        },
    })
}

/// Calls `each` with the pieces of a word.
fn for_each_piece(
    codes: Option<&Codes>,
    word: &str,
    coins: Option<Coins>,
    scratch: &mut Scratch,
    mut each: impl FnMut(&str),
) {
    let Some(codes) = codes else { return each(word) };
    let parts = codes.split(word, coins, scratch);
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index + 1 == parts.len() {
            return each(part);
        }
        joined.clear();
        joined.extend([part, JOINER]);
        each(&joined);
    }
}

/// The `vocab_size` most frequent pieces of all texts together, the special tokens counted; of equally frequent ones
/// the first by their bytes. Each text is split by its codes, or already.
///
/// # Errors
/// There is no room for any piece.
pub(super) fn most_frequent(texts: &[(&TextCounts, Option<&Codes>)], vocab_size: usize) -> Result<Vec<String>> {
    let Some(room) = vocab_size.checked_sub(SPECIALS.len()).filter(|room| *room > 0) else {
        return Err(Error::usage(format!("a vocabulary of {vocab_size} has no room for more than the special tokens"))
            .help("set `tokenizer.vocab_size` to at least the number of codes that the text was split with"));
    };
    let (mut counts, mut scratch) = (HashMap::<String, u64>::new(), Scratch::default());
    for (text, codes) in texts {
        for (word, count) in text.iter().filter(|(word, _)| !word.is_empty()) {
            for_each_piece(*codes, word, None, &mut scratch, |piece| match counts.get_mut(piece) {
                Some(all) => *all += count,
                None => drop(counts.insert(piece.to_owned(), count)),
            });
        }
    }
    counts.retain(|piece, _| !SPECIALS.contains(&piece.as_str()));
    let mut ranked: Vec<(String, u64)> = counts.into_iter().collect();
    ranked.sort_unstable_by(|(a, of_a), (b, of_b)| (Reverse(of_a), a).cmp(&(Reverse(of_b), b)));
    let pieces = ranked.into_iter().take(room).map(|(piece, _)| piece);
    Ok(SPECIALS.map(str::to_owned).into_iter().chain(pieces).collect())
}

/// The text of a `tokenizer.json` with these pieces and ids, among them the special tokens; `<s>` may be missing.
///
/// # Errors
/// Special tokens are missing, or the ids are not those from 0 on.
pub(super) fn file(pieces: impl IntoIterator<Item = (String, u32)>) -> Result<String> {
    let wrong =
        || Error::failure("the ids of its pieces are not those from 0 upwards, once each, with <pad>, </s> and <unk>");
    let vocabulary: serde_json::Map<String, Value> = pieces.into_iter().map(|(p, id)| (p, id.into())).collect();
    let id = |name: &str| u32::try_from(vocabulary.get(name)?.as_u64()?).ok();
    let mut file = pipeline(specials(id).ok_or_else(wrong)?);
    file["model"] = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[3] });
    Words::from_json(&file).ok_or_else(wrong)?;
    written(&file)
}

fn written(file: &Value) -> Result<String> {
    serde_json::to_string_pretty(file).map_err(|error| Error::failure("cannot write the tokenizer").caused_by(error))
}

/// The text of our JSON with these pieces, their ids in this order, and the codes that make them.
pub(super) fn file_with_codes(pieces: Vec<String>, codes: &Codes) -> Result<String> {
    written(&codes.to_json(pieces))
}

impl Words {
    /// Reads a file that [`file`] wrote; `None` for any other.
    pub(super) fn from_json(file: &Value) -> Option<Self> {
        if file["model"]["type"] != "WordLevel" || file["model"]["unk_token"] != SPECIALS[3] {
            return None;
        }
        let vocabulary = file["model"]["vocab"].as_object()?;
        let pieces = in_order(vocabulary.iter().map(|(piece, id)| (piece, id.clone()))).ok()?;
        let words = Self::new(pieces.into_iter().map(|piece| piece.as_str().into()).collect(), None)?;
        let same = |(key, part): (&String, &Value)| file[key] == *part;
        pipeline(words.specials).as_object()?.iter().all(same).then_some(words)
    }

    /// Reads a file that [`file_with_codes`] wrote.
    ///
    /// # Errors
    /// It is something else.
    pub(super) fn with_codes(file: &Value) -> Result<Self> {
        let codes = Codes::from_json(file)?;
        let pieces = file["pieces"].as_array().map_or(&[][..], Vec::as_slice);
        let pieces: Option<Vec<Box<str>>> = pieces.iter().map(|piece| piece.as_str().map(Into::into)).collect();
        let words = pieces.and_then(|pieces| Self::new(pieces, Some(codes)));
        words.ok_or_else(|| Error::failure("its pieces are not different ones with <pad>, </s> and <unk> among them"))
    }

    /// `None` if a piece is there twice, or a special token is not.
    fn new(pieces: Vec<Box<str>>, codes: Option<Codes>) -> Option<Self> {
        let ids: HashMap<Box<str>, u32> = pieces.iter().cloned().zip(0..).collect();
        let specials = specials(|name| ids.get(name).copied())?;
        let are_different = ids.len() == pieces.len();
        are_different.then(|| Self { pieces, ids, specials, codes, cache_owner: cache::new_owner() })
    }

    fn is_special(&self, piece: &str) -> bool {
        SPECIALS.contains(&piece)
    }

    /// The id of a piece of text: a special token in it is not one.
    fn id(&self, piece: &str) -> u32 {
        let [.., unk] = self.specials;
        self.ids.get(piece).copied().filter(|_| !self.is_special(piece)).unwrap_or(unk)
    }

    /// Calls `each` with the pieces of a line.
    fn each_piece(&self, line: &str, dropout: Option<Dropout>, mut each: impl FnMut(&str)) {
        let mut scratch = Scratch::default();
        for (number, word) in (0..).zip(words(line)) {
            let coins = dropout.map(|Dropout { probability, key }| Coins::new(key, number, probability));
            for_each_piece(self.codes.as_ref(), word, coins, &mut scratch, &mut each);
        }
    }

    /// The ids of a line, each of whose words is split only if it has not come lately.
    fn encode_with_codes(&self, line: &str, codes: &Codes) -> Vec<u32> {
        let mut ids = Vec::with_capacity(line.len() / 4 + 1);
        cache::with(self.cache_owner, |cache| {
            for word in words(line) {
                if let Some(known) = cache.stretches.get(word) {
                    ids.extend_from_slice(&known.ids);
                    continue;
                }
                let first = ids.len();
                for_each_piece(Some(codes), word, None, &mut cache.scratch, |piece| ids.push(self.id(piece)));
                if word.len() <= cache::MAX_STRETCH {
                    let of_word = ids.get(first..).unwrap_or_default().into();
                    cache.insert(word, Stretch { ids: of_word, ..Stretch::default() });
                }
            }
        });
        ids
    }
}

/// Pieces as a reader would see them.
fn joined<'p>(pieces: impl Iterator<Item = &'p str>) -> String {
    let pieces: Vec<&str> = pieces.collect();
    let joined = pieces.join(" ").replace("@@ ", "");
    joined.strip_suffix(JOINER).map(str::to_owned).unwrap_or(joined)
}

impl Engine for Words {
    fn kind(&self) -> Option<TokenizerKind> {
        Some(TokenizerKind::SubwordNmt)
    }

    fn len(&self) -> usize {
        self.pieces.len()
    }

    fn specials(&self) -> [u32; 4] {
        self.specials
    }

    fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(AsRef::as_ref)
    }

    fn encode(&self, line: &str) -> Vec<u32> {
        match &self.codes {
            Some(codes) => self.encode_with_codes(line, codes),
            None => words(line).map(|piece| self.id(piece)).collect(),
        }
    }

    fn has_dropout(&self) -> bool {
        self.codes.is_some()
    }

    fn encode_with_dropout(&self, line: &str, dropout: Dropout) -> Vec<u32> {
        let mut ids = Vec::new();
        self.each_piece(line, Some(dropout), |piece| ids.push(self.id(piece)));
        ids
    }

    fn decode(&self, ids: &[u32]) -> String {
        joined(ids.iter().filter_map(|&id| self.piece(id)).filter(|piece| !self.is_special(piece)))
    }

    fn pieces(&self, line: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        self.each_piece(line, None, |piece| pieces.push(piece.to_owned()));
        pieces
    }

    fn decode_pieces(&self, line: &str) -> String {
        joined(words(line).filter(|piece| !self.is_special(piece)))
    }

    fn marked(&self, ids: &[u32]) -> Vec<String> {
        let mut joins = false;
        let mark = |&id: &u32| {
            let piece = self.piece(id).unwrap_or_default();
            let space = if joins { "" } else { SPACE_PIECE };
            joins = piece.ends_with(JOINER);
            format!("{space}{}", piece.strip_suffix(JOINER).unwrap_or(piece))
        };
        ids.iter().map(mark).collect()
    }

    /// With the space after it, which the joiner takes away.
    fn written(&self, id: u32) -> Vec<u8> {
        let piece = self.piece(id).unwrap_or_default();
        piece.strip_suffix(JOINER).map_or_else(|| format!("{piece} "), str::to_owned).into_bytes()
    }

    fn plain<'t>(&self, line: &'t str) -> Cow<'t, str> {
        if self.codes.is_some() || !line.contains(JOINER) {
            return Cow::Borrowed(line);
        }
        // However many spaces separate pieces.
        Cow::Owned(joined(words(line)))
    }

    fn codes(&self) -> Option<&Codes> {
        self.codes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 3] = ["the l@@ ow@@ er house", "the  low house </s>", "l@@ ow the"];

    fn trained(vocab_size: usize) -> String {
        let mut text = TextCounts::default();
        LINES.iter().for_each(|line| text.add(line));
        file(most_frequent(&[(&text, None)], vocab_size).unwrap().into_iter().zip(0..)).unwrap()
    }

    #[test]
    fn pieces_are_counted_and_joined() {
        let words = Words::from_json(&serde_json::from_str(&trained(100)).unwrap()).unwrap();
        // Most frequent first, equals by their bytes.
        let pieces: Vec<&str> = words.pieces.iter().skip(4).map(AsRef::as_ref).collect();
        assert_eq!(pieces, ["the", "house", "l@@", "er", "low", "ow", "ow@@"]);
        assert_eq!(words.encode("the l@@ ow@@ er house"), [4, 5 + 1, 10, 7, 5]);
        assert_eq!(words.decode(&words.encode(LINES[0])), "the lower house");
        assert_eq!(words.encode("new the </s>"), [3, 4, 3], "a special token in the text is not one");
        assert_eq!(words.decode(&[1, 4, 6, 2, 0]), "the l", "a joiner at the end joins nothing");
        assert_eq!(words.plain("a@@ b c@@"), "ab c");
        assert_eq!(words.plain("  a@@  b d@@  e  f@@ "), "ab de f");
        assert_eq!(words.marked(&words.encode(LINES[0])), ["▁the", "▁l", "ow", "er", "▁house"]);
        assert_eq!(words.decode_pieces("the un@@ known <pad> word"), "the unknown word");
        assert_eq!(Words::from_json(&serde_json::from_str(&trained(6)).unwrap()).unwrap().len(), 6);
        assert!(most_frequent(&[(&TextCounts::default(), None)], 4).unwrap_err().to_string().contains("no room"));
    }

    /// As in subword-nmt: other white space is part of a piece, for example inside numbers.
    #[test]
    fn only_u_0020_separates_pieces() {
        let line = "1@@ 0@@ \u{A0}@@ 0@@ 0@@ 0 km 5@@ \u{202F}@@ 0 x\ty \u{3000} z";
        let mut text = TextCounts::default();
        text.add(line);
        let json = file(most_frequent(&[(&text, None)], 300).unwrap().into_iter().zip(0..)).unwrap();
        let words = Words::from_json(&serde_json::from_str(&json).unwrap()).unwrap();
        let plain = "10\u{A0}000 km 5\u{202F}0 x\ty \u{3000} z";
        assert_eq!(words.decode(&words.encode(line)), plain);
        assert_eq!((words.plain(line).as_ref(), words.decode_pieces(line).as_str()), (plain, plain));
        assert_eq!(words.pieces(line).join(" "), line);
        let library: tokenizers::Tokenizer = json.parse().unwrap();
        assert_eq!(library.encode(line, false).unwrap().get_ids(), words.encode(line));
        assert_eq!(library.decode(&words.encode(line), true).unwrap(), plain);
    }

    #[test]
    fn the_library_reads_the_same() {
        let json = trained(100);
        let mut library: tokenizers::Tokenizer = json.parse().unwrap();
        library.set_encode_special_tokens(true);
        let words = Words::from_json(&serde_json::from_str(&json).unwrap()).unwrap();
        for line in LINES.iter().chain(&["", "unknown the", "ow l@@", "@@ x@@"]).filter(|line| !line.contains("</s>")) {
            let ids = words.encode(line);
            assert_eq!(library.encode(*line, false).unwrap().get_ids(), ids, "{line}");
            assert_eq!(library.decode(&ids, true).unwrap(), words.decode(&ids), "{line}");
        }
    }
}
