//! Any other `tokenizer.json`, by the `tokenizers` library's own encoding and decoding.
//!
//! Nothing is added to a line nor cut off, and what looks like a special token in it is text. BPE-dropout is by our own
//! merge loop ([`super::merge`]), because the library's follows no seed.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizer, PreTokenizerWrapper, TokenizerImpl,
};

use super::bounded::{self, Bounded, GivenUp};
use super::engine::{Dropout, Engine, find_specials};
use super::merge::{Coins, Merges, Scratch};
use super::pipeline::{SPACE, SPACE_PIECE};
use super::vocabulary::{SPECIALS, byte_of_piece, in_order, merge_parts};
use crate::error::{Error, Result};
use crate::foreign::guarded;
use crate::limits;

/// The library's own, in whose steps no text grows without bound.
type Inner = TokenizerImpl<
    ModelWrapper,
    Bounded<NormalizerWrapper>,
    Bounded<PreTokenizerWrapper>,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A tokenizer of the library. What it does is done through [`guarded`]: a file may pass every check and yet make it
/// panic.
pub(super) struct Library {
    /// Encodes and decodes; its names of special tokens are [`HIDDEN`].
    inner: Inner,
    /// Where it is byte-pair encoding.
    splitter: Option<Splitter>,
    pieces: Vec<Box<str>>,
    ids: HashMap<Box<str>, u32>,
    specials: [u32; 4],
    /// Which ids stand for no text.
    are_special: Vec<bool>,
    appended: Vec<String>,
    marking: Marking,
    /// Whether text gets a space in front before it is split, which its pieces then begin with.
    adds_space: bool,
    given_up: GivenUp,
}

/// Whether a step before the model is byte-level BPE's, with a space in front of text.
fn adds_space(step: &Value) -> bool {
    let of_steps = || step["pretokenizers"].as_array().is_some_and(|steps| steps.iter().any(adds_space));
    step["type"] == "ByteLevel" && step["add_prefix_space"] == true || of_steps()
}

/// How pieces mark the beginning of a word.
#[derive(Clone, Copy)]
enum Marking {
    /// By `▁` for a space.
    Space,
    /// By `Ġ` for a space, as in byte-level BPE.
    ByteLevel,
    /// By `##` inside words, as in WordPiece, or by nothing: then each piece is a word.
    Inside,
}

/// A space in byte-level BPE.
const BYTE_LEVEL_SPACE: char = 'Ġ';
/// Before a piece inside a word, in WordPiece.
const INSIDE: &str = "##";

impl Marking {
    fn detect(pieces: &[Box<str>]) -> Self {
        let some = |mark: char| pieces.iter().any(|piece| piece.len() > mark.len_utf8() && piece.starts_with(mark));
        match (some(SPACE), some(BYTE_LEVEL_SPACE)) {
            (true, _) => Self::Space,
            (_, true) => Self::ByteLevel,
            _ => Self::Inside,
        }
    }
}

impl Library {
    /// Reads a parsed `tokenizer.json`, and adds missing special tokens after its vocabulary. Also returns its new
    /// text, if it added any.
    ///
    /// # Errors
    /// The library cannot read it, its ids have gaps, or it cannot encode any text.
    pub(super) fn from_json(file: Value) -> Result<(Self, Option<String>)> {
        guarded(|| Self::read(file))?
    }

    fn read(mut file: Value) -> Result<(Self, Option<String>)> {
        let failed = |error: tokenizers::Error| Error::failure(error.to_string()).caused_by(error);
        // Not from the text, where a key may occur twice, and differ from the checked one.
        let mut whole: Inner = serde_json::from_value(file.clone()).map_err(|error| failed(error.into()))?;
        check_added(&whole)?;
        whole.with_truncation(None).map_err(failed)?;
        whole.with_padding(None);
        let pieces = in_order(whole.get_vocab(true).into_iter().map(|(piece, id)| (piece, id.into())))?;
        let mut pieces: Vec<Box<str>> = pieces.into_iter().map(Into::into).collect();
        let mut appended = Vec::new();
        let found = find_specials(|name| whole.token_to_id(name)).into_iter().zip(SPECIALS);
        let mut specials = [0; 4];
        for (slot, (found, name)) in specials.iter_mut().zip(found) {
            *slot = found.unwrap_or_else(|| {
                appended.push(name.to_owned());
                (pieces.len() + appended.len() - 1) as u32
            });
        }
        let new = appended.iter().map(|name| AddedToken::from(name.clone(), true));
        whole.add_special_tokens(new).map_err(failed)?;
        pieces.extend(appended.iter().map(|name| name.as_str().into()));
        let ids: HashMap<Box<str>, u32> = pieces.iter().cloned().zip(0..).collect();
        let lost = appended.iter().any(|name| whole.token_to_id(name) != ids.get(name.as_str()).copied());
        if lost {
            return Err(Error::failure("no special token can be added at the end of its vocabulary"));
        }
        let is_added = |piece: &str| whole.get_added_vocabulary().is_special_token(piece);
        let are_special: Vec<bool> =
            pieces.iter().zip(0..).map(|(piece, id)| specials.contains(&id) || is_added(piece)).collect();
        let written = match appended.is_empty() {
            true => None,
            false => {
                Some(whole.to_string(true).map_err(|e| Error::failure("cannot write the tokenizer").caused_by(e))?)
            }
        };
        drop(whole);

        // Unknown text has its own name.
        let unknown = specials.last().and_then(|unk| pieces.get(*unk as usize)).cloned().unwrap_or_default();
        let named = file["model"]["unk_token"].as_str().map(str::to_owned);
        if named.is_none() && file["model"]["merges"].is_array() && file["model"]["byte_fallback"] != true {
            // Without one, the library leaves out characters that have no piece, and nobody would know.
            let [_, _, _, id] = specials;
            file["model"]["unk_token"] = unknown.as_ref().into();
            if let Some(vocabulary) = file["model"].get_mut("vocab").and_then(Value::as_object_mut) {
                vocabulary.entry(unknown.as_ref()).or_insert_with(|| id.into());
            }
        }
        hide(&mut file, |piece| {
            let is_unknown = piece == &*unknown || Some(piece) == named.as_deref();
            !is_unknown && ids.get(piece).is_some_and(|id| are_special.get(*id as usize) == Some(&true))
        });
        let splitter = file["model"]["merges"].is_array().then(|| Splitter::from_json(&file["model"])).transpose()?;
        // It would add and move tokens.
        file["post_processor"] = Value::Null;
        let longest = file["model"].get_mut("max_input_chars_per_word");
        if let Some(longest) =
            longest.filter(|longest| longest.as_u64().is_some_and(|n| n > limits::WORDPIECE_CHARACTERS))
        {
            *longest = limits::WORDPIECE_CHARACTERS.into();
        }
        let adds_space = adds_space(&file["pre_tokenizer"]);
        let mut inner: Inner = serde_json::from_value(file).map_err(|error| failed(error.into()))?;
        check_added(&inner)?;
        inner.with_truncation(None).map_err(failed)?;
        inner.with_padding(None);
        inner.set_encode_special_tokens(true);
        let marking = Marking::detect(&pieces);
        let new = Self {
            inner,
            splitter,
            pieces,
            ids,
            specials,
            are_special,
            appended,
            marking,
            adds_space,
            given_up: GivenUp::default(),
        };
        // A model without a piece for unknown text refuses such text.
        new.encoded("a \u{10FFFD}\u{E000} 0 \u{1F600}").map_err(|error| {
            Error::failure(format!("it cannot encode unknown text: {}", error.what())).caused_by(error)
        })?;
        Ok((new, written))
    }

    /// Joins pieces with the file's decoder; if that fails, with spaces.
    fn join(&self, pieces: Vec<String>) -> String {
        let Some(decoder) = self.inner.get_decoder() else { return pieces.join(" ") };
        let plain = pieces.join(" ");
        let joined = attempt(|| bounded::decode(decoder, pieces)).unwrap_or_else(|error| {
            self.given_up
                .say("a translation cannot be put together as its `decoder` says: its pieces are shown", &error);
            plain
        });
        // The library's decoder leaves it.
        match joined.strip_prefix(' ') {
            Some(text) if self.adds_space => text.to_owned(),
            _ => joined,
        }
    }

    fn encoded(&self, line: &str) -> Result<Vec<u32>> {
        attempt(|| Ok(self.inner.encode_fast(line, false)?.get_ids().to_vec()))
    }

    fn is_special(&self, id: u32) -> bool {
        self.are_special.get(id as usize) == Some(&true)
    }

    /// The ids of a line, its words split by our own merge loop.
    fn split(&self, splitter: &Splitter, line: &str, dropout: Dropout) -> tokenizers::Result<Vec<u32>> {
        // As in the library's `encode_fast`, up to the model.
        let mut parts = self.inner.get_added_vocabulary().extract_and_normalize(self.inner.get_normalizer(), line);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut parts)?;
        }
        let (mut ids, mut scratch) = (Vec::new(), Scratch::default());
        let words = parts.get_splits(OffsetReferential::Normalized, OffsetType::None);
        for (number, (word, _, found)) in (0..).zip(words) {
            match found {
                // Found in the text whatever the model is.
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => {
                    let coins = Coins::new(dropout.key, number, dropout.probability);
                    splitter.apply(word, coins, &mut scratch, &mut ids)?;
                }
            }
        }
        Ok(ids)
    }
}

/// Refuses an added token that normalising makes empty: the library finds it everywhere, and may never stop.
fn check_added(tokenizer: &Inner) -> Result<()> {
    let added = tokenizer.get_added_vocabulary();
    let is_empty = |id: &u32| added.simple_id_to_token(*id).is_some_and(|token| token.is_empty());
    match added.get_added_tokens_decoder().iter().find(|(id, _)| is_empty(id)) {
        Some((_, token)) => {
            Err(Error::failure(format!("normalising leaves nothing of its added token {:?}", token.content)))
        }
        None => Ok(()),
    }
}

/// Does something in the library, which may fail or panic.
fn attempt<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    guarded(work)?.map_err(|error| Error::failure(error.to_string()).caused_by(error))
}

/// Begins the names of special tokens in a model that encodes. No line has a line feed, so no text has such a name.
const HIDDEN: char = '\n';

/// Renames special tokens in the model and among the added tokens of a parsed file, so that the model cannot find them
/// in text: there they are text, which it spells.
fn hide(file: &mut Value, is_special: impl Fn(&str) -> bool) {
    let hidden = |piece: &str| format!("{HIDDEN}{piece}");
    match &mut file["model"]["vocab"] {
        Value::Object(vocabulary) => {
            let renamed = std::mem::take(vocabulary).into_iter();
            *vocabulary =
                renamed.map(|(piece, id)| (if is_special(&piece) { hidden(&piece) } else { piece }, id)).collect();
        }
        // Of Unigram: pieces with their scores.
        Value::Array(vocabulary) => {
            for piece in vocabulary.iter_mut().filter_map(|entry| entry.get_mut(0)) {
                if let Some(name) = piece.as_str().filter(|piece| is_special(piece)) {
                    *piece = hidden(name).into();
                }
            }
        }
        _ => {}
    }
    // Not by index, which would add a missing key.
    if let Some(merges) = file["model"].get_mut("merges").and_then(Value::as_array_mut) {
        let names_one =
            |(left, right): (&str, &str)| [left, right, &format!("{left}{right}")].into_iter().any(&is_special);
        merges.retain(|merge| !merge_parts(merge).is_some_and(names_one));
    }
    for token in file.get_mut("added_tokens").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(name) = token["content"].as_str().filter(|content| is_special(content)) {
            token["content"] = hidden(name).into();
        }
    }
}

/// The library's byte-pair encoding with our own merge loop, whose BPE-dropout follows a key.
struct Splitter {
    /// The model without merges: it gives the symbols that a word begins with.
    symbols: BPE,
    merges: Merges,
}

impl Splitter {
    /// Reads the `model` of a parsed file.
    ///
    /// # Errors
    /// The library cannot read it, or a merge is not of two pieces into a third.
    fn from_json(model: &Value) -> Result<Self> {
        let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
        let id = |piece: &str| u32::try_from(model["vocab"].get(piece)?.as_u64()?).ok();
        let mut merges = Merges::default();
        let all = model["merges"].as_array().map_or(&[][..], Vec::as_slice).iter();
        // Old files have the header of a file of merges among them.
        let is_merge = |merge: &&Value| !merge.as_str().is_some_and(|line| line.starts_with("#version"));
        for (rank, merge) in (0..).zip(all.filter(is_merge)) {
            let pair = merge_parts(merge).and_then(|(left, right)| {
                let joined = format!("{left}{}", right.strip_prefix(prefix).unwrap_or(right));
                Some((id(left)?, id(right)?, id(&joined)?))
            });
            let wrong =
                || Error::failure(format!("its merge {merge} is not of two pieces into a third of its vocabulary"));
            let (left, right, result) = pair.ok_or_else(wrong)?;
            merges.insert(left, right, rank, result);
        }
        let mut bare = model.clone();
        bare["merges"] = Value::Array(Vec::new());
        bare["ignore_merges"] = false.into();
        if let Some(keys) = bare.as_object_mut() {
            keys.remove("type");
        }
        let symbols = serde_json::from_value(bare).map_err(|e| Error::failure(e.to_string()).caused_by(e))?;
        Ok(Self { symbols, merges })
    }

    /// Appends the ids of a word.
    fn apply(&self, word: &str, coins: Coins, scratch: &mut Scratch, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        let symbols: Vec<u32> = self.symbols.tokenize(word)?.into_iter().map(|token| token.id).collect();
        self.merges.apply(&symbols, Some(coins), scratch, ids);
        Ok(())
    }
}

impl Engine for Library {
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
        let [_, _, _, unk] = self.specials;
        self.encoded(line).unwrap_or_else(|error| {
            self.given_up.say("a line cannot be split as it says, and is taken for unknown", &error);
            vec![unk]
        })
    }

    fn has_dropout(&self) -> bool {
        self.splitter.is_some()
    }

    fn encode_with_dropout(&self, line: &str, dropout: Dropout) -> Vec<u32> {
        let split = self.splitter.as_ref().map(|splitter| attempt(|| self.split(splitter, line, dropout)));
        split.and_then(Result::ok).unwrap_or_else(|| self.encode(line))
    }

    fn decode(&self, ids: &[u32]) -> String {
        let pieces = ids.iter().filter_map(|&id| self.piece(id).filter(|_| !self.is_special(id)));
        self.join(pieces.map(str::to_owned).collect())
    }

    fn decode_pieces(&self, line: &str) -> String {
        let is_text = |piece: &&str| !piece.is_empty() && self.ids.get(*piece).is_none_or(|&id| !self.is_special(id));
        // Other white space may be part of a piece.
        self.join(line.split(' ').filter(is_text).map(str::to_owned).collect())
    }

    fn marked(&self, ids: &[u32]) -> Vec<String> {
        let mark = |&id: &u32| {
            let piece = self.piece(id).unwrap_or_default();
            match self.marking {
                Marking::Space => piece.to_owned(),
                Marking::ByteLevel => piece.replace(BYTE_LEVEL_SPACE, SPACE_PIECE),
                Marking::Inside => match piece.strip_prefix(INSIDE) {
                    Some(rest) => rest.to_owned(),
                    None => format!("{SPACE_PIECE}{piece}"),
                },
            }
        };
        ids.iter().map(mark).collect()
    }

    fn written(&self, id: u32) -> Vec<u8> {
        let piece = self.piece(id).unwrap_or_default();
        match self.marking {
            Marking::ByteLevel => piece.chars().map_while(byte_of_character).collect(),
            Marking::Space if byte_of_piece(piece).is_some() => byte_of_piece(piece).into_iter().collect(),
            _ => self.marked(&[id]).concat().replace(SPACE, " ").into_bytes(),
        }
    }

    fn appended(&self) -> &[String] {
        &self.appended
    }

    fn given_up(&self) -> Option<&GivenUp> {
        Some(&self.given_up)
    }
}

/// The byte that a character of byte-level BPE stands for: printable characters of Latin-1 stand for themselves, and
/// the other bytes, in order, are U+0100 and those after it.
fn byte_of_character(character: char) -> Option<u8> {
    let is_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u8::try_from(character) {
        Ok(byte) => is_itself(&byte).then_some(byte),
        Err(_) => {
            let index = (character as usize).checked_sub(0x100)?;
            (0..=u8::MAX).filter(|byte| !is_itself(byte)).nth(index)
        }
    }
}
