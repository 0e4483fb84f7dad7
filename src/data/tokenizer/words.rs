//! Text that subword-nmt has split already: white space separates the pieces, and `@@` at the end of one joins it to the
//! next.
//!
//! The file is a `tokenizer.json` of words ("WordLevel"), which the `tokenizers` library reads as we do.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::{Value, json};

use super::TokenizerKind;
use super::engine::Engine;
use super::pipeline::SPACE_PIECE;
use super::train::TextCounts;
use super::vocabulary::{SPECIALS, in_order};
use crate::error::{Error, Result};

/// Joins a piece to the next.
const JOINER: &str = "@@";

/// Pieces that the text already consists of.
pub(super) struct Words {
    pieces: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
    specials: [u32; 4],
}

/// The ids of the special tokens in a vocabulary. One without `<s>`, as Marian's are, has padding in its place.
fn specials(id: impl Fn(&str) -> Option<u32>) -> Option<[u32; 4]> {
    let [pad, bos, eos, unk] = SPECIALS.map(id);
    Some([pad?, bos.or(pad)?, eos?, unk?])
}

/// The file without its vocabulary: lines are cut at white space, and joined with spaces, without `@@` and the space after it.
fn pipeline(ids: [u32; 4]) -> Value {
    let replace = |pattern: &str, content: &str| json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": content });
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
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [replace("$", " "), { "type": "Fuse" }, replace("(@@)? $|@@ ", "")] },
    })
}

/// The text of a `tokenizer.json` with the `vocab_size` most frequent pieces of a text, the special tokens counted; of
/// equally frequent ones the first by their bytes.
///
/// # Errors
/// There is no room for any piece.
pub(super) fn train(text: &TextCounts, vocab_size: usize) -> Result<String> {
    let Some(room) = vocab_size.checked_sub(SPECIALS.len()).filter(|room| *room > 0) else {
        return Err(Error::usage(format!("a vocabulary of {vocab_size} has no room for more than the special tokens"))
            .help("set `tokenizer.vocab_size` to at least the number of codes that the text was split with"));
    };
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for (stretch, count) in text.iter() {
        stretch.split_whitespace().for_each(|piece| *counts.entry(piece).or_default() += count);
    }
    counts.retain(|piece, _| !SPECIALS.contains(piece));
    let mut ranked: Vec<(&str, u64)> = counts.into_iter().collect();
    ranked.sort_unstable_by_key(|&(piece, count)| (Reverse(count), piece));
    let pieces = SPECIALS.into_iter().chain(ranked.iter().take(room).map(|(piece, _)| *piece));
    file(pieces.zip(0..).map(|(piece, id)| (piece.to_owned(), id)).collect())
}

/// The text of a `tokenizer.json` with these pieces and ids, among them the special tokens; `<s>` may be missing.
///
/// # Errors
/// Special tokens are missing, or the ids are not those from 0 on.
pub(super) fn file(pieces: Vec<(String, u32)>) -> Result<String> {
    let wrong =
        || Error::failure("the ids of its pieces are not those from 0 upwards, once each, with <pad>, </s> and <unk>");
    let vocabulary: serde_json::Map<String, Value> = pieces.into_iter().map(|(p, id)| (p, id.into())).collect();
    let id = |name: &str| u32::try_from(vocabulary.get(name)?.as_u64()?).ok();
    let mut file = pipeline(specials(id).ok_or_else(wrong)?);
    file["model"] = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIALS[3] });
    Words::from_json(&file).ok_or_else(wrong)?;
    serde_json::to_string_pretty(&file).map_err(|error| Error::failure("cannot write the tokenizer").caused_by(error))
}

impl Words {
    /// Reads a file that [`file`] wrote; `None` for any other.
    pub(super) fn from_json(file: &Value) -> Option<Self> {
        if file["model"]["type"] != "WordLevel" || file["model"]["unk_token"] != SPECIALS[3] {
            return None;
        }
        let vocabulary = file["model"]["vocab"].as_object()?;
        let pieces = in_order(vocabulary.iter().map(|(piece, id)| (piece, id.clone()))).ok()?;
        let pieces: Vec<Box<str>> = pieces.into_iter().map(|piece| piece.as_str().into()).collect();
        let ids: HashMap<Box<str>, u32> = pieces.iter().cloned().zip(0..).collect();
        let specials = specials(|name| ids.get(name).copied())?;
        let same = |(key, part): (&String, &Value)| file[key] == *part;
        pipeline(specials).as_object()?.iter().all(same).then_some(Self { pieces, ids, specials })
    }

    fn is_special(&self, piece: &str) -> bool {
        SPECIALS.contains(&piece)
    }
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
        let [.., unk] = self.specials();
        let id = |piece: &str| self.ids.get(piece).copied().filter(|_| !self.is_special(piece)).unwrap_or(unk);
        line.split_whitespace().map(id).collect()
    }

    fn decode(&self, ids: &[u32]) -> String {
        let pieces = ids.iter().filter_map(|&id| self.piece(id));
        let pieces: Vec<&str> = pieces.filter(|piece| !self.is_special(piece)).collect();
        self.plain(&pieces.join(" ")).into_owned()
    }

    fn pieces(&self, line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn decode_pieces(&self, line: &str) -> String {
        let pieces: Vec<&str> = line.split_whitespace().filter(|piece| !self.is_special(piece)).collect();
        self.plain(&pieces.join(" ")).into_owned()
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
        if !line.contains(JOINER) {
            return Cow::Borrowed(line);
        }
        // Any white space separates pieces, however much.
        let pieces: Vec<&str> = line.split_whitespace().collect();
        let joined = pieces.join(" ").replace("@@ ", "");
        Cow::Owned(joined.strip_suffix(JOINER).map(str::to_owned).unwrap_or(joined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 3] = ["the l@@ ow@@ er house", "the  low house </s>", "l@@ ow the"];

    fn trained(vocab_size: usize) -> String {
        let mut text = TextCounts::default();
        LINES.iter().for_each(|line| text.add(line));
        train(&text, vocab_size).unwrap()
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
        assert_eq!(words.plain("  a@@  b@@\tc d@@\u{3000}e  f@@ "), "abc de f");
        assert_eq!(words.marked(&words.encode(LINES[0])), ["▁the", "▁l", "ow", "er", "▁house"]);
        assert_eq!(words.decode_pieces("the un@@ known <pad> word"), "the unknown word");
        assert_eq!(Words::from_json(&serde_json::from_str(&trained(6)).unwrap()).unwrap().len(), 6);
        assert!(train(&TextCounts::default(), 4).unwrap_err().to_string().contains("no room"));
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
