//! Subwords: text to ids and back, and learning a vocabulary.
//!
//! A [`Tokenizer`] is one of several engines:
//!
//! | engine | file | where from |
//! |---|---|---|
//! | [`bpe`] | `tokenizer.json` | learnt here |
//! | [`words`] | `tokenizer.json` | counted here, in text split by subword-nmt; with [`codes`], JSON that holds them |
//! | [`sentencepiece`] | `.model`, `.spm` | SentencePiece; stored as JSON with the file inside |
//! | [`languages`] | JSON that holds one of the others | models of many languages |
//! | [`library`] | `tokenizer.json` | any other that the `tokenizers` library reads |
//!
//! Our own is byte-pair encoding (Sennrich et al. 2016) over words that [`pipeline`] cuts out of a line, with a piece
//! for each of the 256 bytes, so that no text is unknown. It is stored in a `tokenizer.json` that the `tokenizers`
//! library and everything built on it can read; learning is that library's, too. Encoding is our own loop over the same
//! merges ([`merge`]), because BPE-dropout must follow a seed and the library's does not. Tests keep it equal to the
//! library's.
//!
//! **Text in is text out**: with our own, `decode(encode(line)) == normalise(line)` for every string. A [`TextForm`]
//! defines normalising: by default, it removes extra white space and brings the rest into NFKC, which turns U+00A0,
//! U+3000 and the like into U+0020. Each U+0020 becomes a `▁`; other white space, if kept, becomes byte pieces. A
//! special token, byte piece or `▁` in the text is text: encoding never yields a special id. (In the library, that is
//! `encode_special_tokens = true`; by its default it does find special tokens in text.)
//!
//! A line that normalising makes empty has no ids. Any other line gets one more space in front, so that a word at its
//! start has the same pieces as elsewhere.

mod bounded;
mod bpe;
mod cache;
mod codes;
mod components;
mod detokenise;
mod engine;
mod languages;
mod library;
mod load;
mod merge;
mod normalise;
mod pipeline;
mod sampling;
mod sentencepiece;
mod symbols;
#[cfg(test)]
mod tests;
mod train;
mod trim;
mod vocabulary;
mod words;

use std::borrow::Cow;
use std::path::Path;

use serde_json::{Value, json};

use crate::choice::choice;
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::file::Folder;
use bpe::Bpe;
use engine::{Dropout, Engine};

pub use codes::Codes;
pub use languages::{Languages, code_of, tag_of};
pub use normalise::{INVISIBLE, Normalization, TextForm};
pub use sampling::{RandomSplit, SubwordSampling};
pub use sentencepiece::{OwnIds, is_text_tag};
pub use train::{TextCounts, TrainOptions};

choice! {
    /// How a vocabulary is learnt from the training text.
    pub enum TokenizerKind {
        /// Byte-pair encoding of raw text.
        Bpe = "bpe",
        /// Counting the pieces of text that subword-nmt has split, or that its codes split.
        SubwordNmt = "subword-nmt",
    }
}

/// A tokenizer. It does not change, and threads may share it.
pub struct Tokenizer {
    /// The text of its file in a model directory.
    json: String,
    engine: Box<dyn Engine>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Learns a tokenizer from the lines of all `corpora` (one for each side, or one for both). The same lines give the
    /// same file, byte for byte, in any order and with any number of threads.
    ///
    /// # Errors
    /// A usage error if no vocabulary of the wanted size can exist.
    pub fn train<S: AsRef<str>>(corpora: &[&[S]], options: &TrainOptions) -> Result<Self> {
        let mut text = TextCounts::default();
        corpora.iter().copied().flatten().for_each(|line| text.add(line.as_ref()));
        Self::from_text(text, options)
    }

    /// Learns a tokenizer from the text that was counted, as [`Tokenizer::train`] does.
    ///
    /// # Errors
    /// As for [`Tokenizer::train`].
    pub fn from_text(text: TextCounts, options: &TrainOptions) -> Result<Self> {
        Self::from_json(train::train(text, options)?)
    }

    /// Counts the pieces of texts as subword-nmt does, see [`TokenizerKind::SubwordNmt`]: codes split each text, or it
    /// is already split. Returns a tokenizer for each text; all share one vocabulary, of the most frequent pieces of
    /// all texts.
    ///
    /// # Errors
    /// A usage error if the vocabulary has no room for any.
    pub fn from_pieces(texts: &[(&TextCounts, Option<&Codes>)], vocab_size: usize) -> Result<Vec<Self>> {
        let pieces = words::most_frequent(texts, vocab_size)?;
        let of_text = |(_, codes): &(_, Option<&Codes>)| match codes {
            Some(codes) => Self::from_json(words::file_with_codes(pieces.clone(), codes)?),
            None => Self::from_words(pieces.iter().cloned().zip(0..).collect()),
        };
        texts.iter().map(of_text).collect()
    }

    /// This tokenizer with further tags and symbols, whose ids follow the existing ones.
    ///
    /// # Errors
    /// A symbol is invalid or already present; or the tokenizer was not made by [`Tokenizer::train`].
    pub fn with_symbols(&self, tags: &[String], symbols: &[String]) -> Result<Self> {
        let file: serde_json::Value = serde_json::from_str(&self.json)
            .map_err(|error| Error::failure("the tokenizer is not JSON").caused_by(error))?;
        let bpe = Bpe::from_json(&file).map_err(|error| {
            Error::usage("symbols can be added only to a tokenizer that mt has learnt, and this is not one")
                .caused_by(error)
        })?;
        Self::from_json(format!("{:#}", bpe.with_symbols(file, tags, symbols)?))
    }

    /// Writes the tokenizer as `tokenizer.json`, with the same bytes that it was read from. An old file is replaced at
    /// once, and the new one is synced: files written later rely on it, such as the configuration of a run or a digest,
    /// and so do the checkpoints of a run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let write = || {
            let (folder, name) = Folder::containing(path)?;
            folder.stage_shared(name)?.filled(self.json.as_bytes())?.persist()
        };
        write().map(drop).map_err(|error| Error::io("write the tokenizer", path, error))
    }

    /// The text of `tokenizer.json`.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The number of ids: special tokens, bytes, characters and merged pieces. It may be less than requested.
    pub fn vocab_size(&self) -> usize {
        self.engine.len()
    }

    /// The id of `<pad>`, which fills up a batch.
    pub fn pad_id(&self) -> u32 {
        self.engine.specials()[0]
    }

    /// The id of `<s>`, which a target begins with.
    pub fn bos_id(&self) -> u32 {
        self.engine.specials()[1]
    }

    /// The id of `</s>`, which a sentence ends with.
    pub fn eos_id(&self) -> u32 {
        self.engine.specials()[2]
    }

    /// The id of `<unk>`. Our own engine never yields it; others do, for text they have no piece for.
    pub fn unk_id(&self) -> u32 {
        self.engine.specials()[3]
    }

    /// The ids of a line, without any special token.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        if text.is_empty() { Vec::new() } else { self.engine.encode(text) }
    }

    /// The ids of a line that is split at random. `key` alone decides the draws: derive it from seed, epoch and line.
    /// Without dropout, or if the tokenizer [cannot](Self::can) do it, this is [`Tokenizer::encode`]; with a dropout of
    /// 1 nothing is merged.
    pub fn sample(&self, text: &str, sampling: RandomSplit, key: u64) -> Vec<u32> {
        match sampling {
            _ if text.is_empty() => Vec::new(),
            RandomSplit::Dropout(probability) if probability > 0.0 => {
                self.engine.encode_with_dropout(text, Dropout { probability, key })
            }
            RandomSplit::Dropout(_) => self.encode(text),
            RandomSplit::Unigram { alpha, nbest } => self.engine.draw(text, alpha, nbest, key),
        }
    }

    /// The text of ids. Special tokens and ids out of range are left out, bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        self.engine.decode(ids)
    }

    /// The piece of an id: `▁` for a space, `<0x0A>` for a byte.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.engine.piece(id)
    }

    /// Whether an id is a byte piece: every vocabulary with byte fallback has all of them, however rare.
    pub fn is_byte(&self, id: u32) -> bool {
        self.byte(id).is_some()
    }

    /// The byte of a byte piece.
    pub fn byte(&self, id: u32) -> Option<u8> {
        self.piece(id).and_then(vocabulary::byte_of_piece)
    }

    /// The ids of these pieces, ascending; pieces that are not in the vocabulary are left out.
    pub fn ids_of(&self, pieces: &[&str]) -> Vec<u32> {
        let is_one = |id: &u32| self.piece(*id).is_some_and(|piece| pieces.contains(&piece));
        (0..self.vocab_size() as u32).filter(is_one).collect()
    }

    /// The pieces of a line; unknown text may appear unchanged. No piece contains a space, so that they can be joined
    /// by spaces.
    pub fn pieces(&self, text: &str) -> Vec<String> {
        if text.is_empty() { Vec::new() } else { self.engine.pieces(text) }
    }

    /// The text of a line of pieces with spaces between, as [`Tokenizer::pieces`] gives them. A piece that is not in
    /// the vocabulary stands for its own text, special tokens are left out.
    pub fn decode_pieces(&self, line: &str) -> String {
        self.engine.decode_pieces(line)
    }

    /// What decoding a line's ids gives back: with our own engine, the line in its [`TextForm`].
    pub fn normalise(&self, text: &str) -> String {
        self.engine.normalise(text)
    }

    /// The form of a line that is split: it has the same ids. Differs from what [`Tokenizer::normalise`] gives in
    /// letters whose form depends on what follows (ς).
    pub fn encoded_form(&self, text: &str) -> String {
        self.engine.encoded_form(text)
    }

    /// A line of a corpus as a reader would see it, for scoring translations against it: without the `@@ ` of
    /// subword-nmt, if the tokenizer takes text split like that.
    pub fn plain<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.engine.plain(text)
    }

    /// A line as a reader would see it: as [`Tokenizer::plain`], and without the tag or symbols at its beginning.
    pub fn readable(&self, line: &str) -> String {
        self.plain(line[self.leading(line).len()..].trim_start()).into_owned()
    }

    /// Tells tokenizers apart that make other lines readable: by their tags and symbols, and by whether they take text
    /// that is split already.
    pub fn reading(&self) -> Value {
        json!({ "tags": self.language_tags(), "symbols": self.symbols(), "is_split": self.plain("a@@ b") != "a@@ b" })
    }

    /// How the vocabulary differs from another one, if it does.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let sizes = [self, other].map(Self::vocab_size);
        if sizes[0] != sizes[1] {
            return Some(format!("{} pieces, and {}", sizes[0], sizes[1]));
        }
        let id = (0..sizes[0] as u32).find(|&id| self.piece(id) != other.piece(id))?;
        let [here, there] = [self, other].map(|it| quoted(it.piece(id).unwrap_or_default()));
        Some(format!("piece {id} is {here}, and {there}"))
    }

    /// The pieces of ids with `▁` for every space between words, and no other mark of how pieces join.
    pub fn marked(&self, ids: &[u32]) -> Vec<String> {
        self.engine.marked(ids)
    }

    /// The merges of subword-nmt that split text, as the file of subword-nmt, and a `tokenizer.json` of text that they
    /// have split. `None` with any other tokenizer.
    ///
    /// # Errors
    /// The tokenizer cannot be written.
    pub fn codes(&self) -> Result<Option<(String, Self)>> {
        let Some(codes) = self.engine.codes() else { return Ok(None) };
        let pieces = (0..).map_while(|id| Some((self.piece(id)?.to_owned(), id))).collect();
        Ok(Some((codes.to_file(), Self::from_words(pieces)?)))
    }

    /// Whether merges of subword-nmt split text.
    pub fn has_codes(&self) -> bool {
        self.engine.codes().is_some()
    }

    /// The bytes that a token adds to the text, with the space before or after it; none for a special token. A byte
    /// piece, or a piece of byte-level BPE, may be only a part of a character. The decoder drops the space at the
    /// beginning of the text.
    pub fn written(&self, id: u32) -> Vec<u8> {
        if self.engine.specials().contains(&id) { Vec::new() } else { self.engine.written(id) }
    }

    /// How the vocabulary was learnt, if that was by `mt`.
    pub fn kind(&self) -> Option<TokenizerKind> {
        self.engine.kind()
    }

    /// What is done to text before it is split, if `mt` wrote the file.
    pub fn form(&self) -> Option<TextForm> {
        self.engine.form()
    }

    /// Whether output is lower-case, whatever the input.
    pub fn lowers_case(&self) -> bool {
        self.engine.lowers_case()
    }

    /// The whole file of the model, if this is SentencePiece.
    pub fn sentencepiece(&self) -> Option<Vec<u8>> {
        self.engine.sentencepiece()
    }

    /// The tags, such as `>>fra<<` or `<2de>`; each source line begins with one.
    pub fn language_tags(&self) -> Vec<&str> {
        self.engine.language_tags()
    }

    /// The user's own symbols that are not tags; see [`TrainOptions::symbols`].
    pub fn symbols(&self) -> Vec<&str> {
        self.engine.symbols()
    }

    /// The tag at the beginning of a line, which need not be one of [`Tokenizer::language_tags`]; `None` if the
    /// tokenizer has no tags.
    pub fn language_tag<'t>(&self, line: &'t str) -> Option<&'t str> {
        self.engine.language_tag(line)
    }

    /// The tag or symbols at the beginning of a line, and the white space after them. They apply to the whole line: if
    /// it is split, its parts must begin with them.
    pub fn leading<'t>(&self, line: &'t str) -> &'t str {
        self.engine.leading(line)
    }

    /// The codes of a multilingual model's languages, such as `deu_Latn`, with their ids; each source line and each
    /// target line begins with one.
    pub fn languages(&self) -> Vec<(&str, u32)> {
        self.engine.languages()
    }

    /// The merges of subword-nmt that split text, if there are any.
    pub fn merges(&self) -> Option<&Codes> {
        self.engine.codes()
    }

    /// Whether a source's language comes after its end, which is how the model was trained.
    pub fn language_last(&self) -> bool {
        self.engine.language_last()
    }

    /// This tokenizer without the pieces that are not kept, and the old ids of its pieces, in order. Special tokens,
    /// and what kept pieces are merged of, are kept, too: text that needs no other pieces is split as before.
    ///
    /// # Errors
    /// It is of a kind whose pieces cannot be removed, such as `mt`'s own.
    ///
    /// # Panics
    /// `is_kept` does not have an entry for each id.
    pub fn trimmed(&self, is_kept: Vec<bool>) -> Result<(Self, Vec<u32>)> {
        assert_eq!(is_kept.len(), self.vocab_size());
        let (json, kept) = trim::trim(self, is_kept)?;
        Ok((Self::from_json(json)?, kept))
    }

    /// A multilingual tokenizer as a `tokenizer.json` that `transformers` reads.
    ///
    /// # Errors
    /// It is none, or cannot be written so.
    pub fn library_json(&self) -> Result<String> {
        languages::library_json(&self.json, self)
    }

    /// Whether there is BPE-dropout.
    pub fn has_dropout(&self) -> bool {
        self.engine.has_dropout()
    }

    /// Whether it can split text at random in this way.
    pub fn can(&self, sampling: RandomSplit) -> bool {
        match sampling {
            RandomSplit::Dropout(_) => self.engine.has_dropout(),
            RandomSplit::Unigram { .. } => self.engine.is_unigram(),
        }
    }

    /// The special tokens that the file lacked, and that were added after its vocabulary.
    pub fn appended(&self) -> &[String] {
        self.engine.appended()
    }

    /// The ids that a translation never has: by default padding, beginning and unknown; the file may name others.
    pub fn forbidden(&self) -> Vec<u32> {
        self.engine.forbidden()
    }
}
