//! Subwords: text to ids and back, and learning how.
//!
//! A tokenizer is byte-pair encoding (Sennrich et al. 2016) over words that [`pipeline`] cuts out of a line, with a
//! piece for each of the 256 bytes, so that no text is unknown. It lives in a `tokenizer.json` that the `tokenizers`
//! library and everything built on it can read; learning is that library's too. Encoding is our own merge loop over the
//! same merges ([`merge`]), because BPE-dropout must follow a seed and the library's does not, and it is held equal to
//! the library's by tests.
//!
//! **Text in is text out**: `decode(encode(line)) == normalise(line)` for every string. Normalising is NFKC, and lower
//! case where the tokenizer was trained so; white space stays as it is, except that NFKC itself turns some of it (U+00A0,
//! U+3000 and the like) into U+0020. So U+0020 alone is written `▁`, one for each, leading and trailing ones too; tabs
//! and other white space are written in bytes. What looks like a special token, a byte piece or a `▁` in the text is
//! text: encoding never yields a special id. (In the library, that is `encode_special_tokens = true`; by its default it
//! does find special tokens in text.)
//!
//! An empty line has no ids. Any other line is taken to begin with one more space than it has, so that a word at its
//! start has the same pieces as elsewhere.

mod cache;
mod detokenise;
mod merge;
mod pipeline;
#[cfg(test)]
mod tests;
mod train;
mod vocabulary;

use std::path::Path;

use rayon::prelude::*;

use crate::error::{Error, Result};
use cache::Stretch;
use merge::{Coins, Scratch};
use pipeline::Pipeline;
use vocabulary::Vocabulary;

/// Far more than any vocabulary takes.
const MOST_BYTES: u64 = 1 << 28;

pub use train::{TextCounts, TrainOptions};

/// A trained tokenizer. It does not change, and threads may share it.
pub struct Tokenizer {
    /// The text of `tokenizer.json`.
    json: String,
    pipeline: Pipeline,
    vocabulary: Vocabulary,
    /// Tells this tokenizer's remembered stretches from those of others.
    cache_owner: u64,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// BPE-dropout of one line.
#[derive(Clone, Copy)]
struct Dropout {
    probability: f32,
    key: u64,
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
        Self::of_text(text, options)
    }

    /// Learns a tokenizer from the text that was counted, as [`Tokenizer::train`] does.
    ///
    /// # Errors
    /// As for [`Tokenizer::train`].
    pub fn of_text(text: TextCounts, options: &TrainOptions) -> Result<Self> {
        Self::from_json(train::train(text, options)?)
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or is one whose encoding or decoding would differ from the file's: the
    /// model must be BPE with byte fallback, the pipeline that of this module, and `<pad>`, `<s>`, `</s>` and `<unk>`
    /// must be in the vocabulary, under any ids. The error names the file.
    pub fn load(path: &Path) -> Result<Self> {
        let read_error = |error| Error::io("read the tokenizer", path, error);
        // A pipe in its place could be waited for for ever, and a hostile file fill the memory.
        let metadata = std::fs::metadata(path).map_err(read_error)?;
        if !metadata.is_file() || metadata.len() > MOST_BYTES {
            let what = format!("this is not a tokenizer.json: not a regular file of at most {MOST_BYTES} bytes");
            return Err(Error::failure(what).at(path));
        }
        let bytes = std::fs::read(path).map_err(read_error)?;
        let json = String::from_utf8(bytes).map_err(|error| {
            Error::failure("this is not a tokenizer.json: it is not UTF-8 text").at(path).caused_by(error)
        })?;
        Self::from_json(json)
            .map_err(|error| error.at(path).help("use a tokenizer.json that mt wrote, or train one from the corpus"))
    }

    /// Reads the text of a `tokenizer.json`; see [`Tokenizer::load`].
    ///
    /// # Errors
    /// As for [`Tokenizer::load`], without a file to name.
    pub fn from_json(json: String) -> Result<Self> {
        let file: serde_json::Value = serde_json::from_str(&json)
            .map_err(|error| Error::failure(format!("this is not a tokenizer.json: {error}")).caused_by(error))?;
        let unusable = |error: Error| error.context("mt cannot use this tokenizer");
        let vocabulary = Vocabulary::from_json(&file).map_err(unusable)?;
        let pipeline = Pipeline::from_json(&file).map_err(unusable)?;
        Ok(Self { json, pipeline, vocabulary, cache_owner: cache::new_owner() })
    }

    /// Writes the tokenizer as `tokenizer.json`, the same bytes every time: those it was read from.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path, &self.json).map_err(|error| Error::io("write the tokenizer", path, error))
    }

    /// The text of `tokenizer.json`.
    ///
    /// # Errors
    /// None today: the text is kept. The signature leaves room for a tokenizer that is not.
    pub fn to_json(&self) -> Result<String> {
        Ok(self.json.clone())
    }

    /// The number of ids: special tokens, bytes, characters and merged pieces. It may be less than was asked for.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The id of `<pad>`, which fills up a batch.
    pub fn pad_id(&self) -> u32 {
        self.vocabulary.specials()[0]
    }

    /// The id of `<s>`, which a target begins with.
    pub fn bos_id(&self) -> u32 {
        self.vocabulary.specials()[1]
    }

    /// The id of `</s>`, which a sentence ends with.
    pub fn eos_id(&self) -> u32 {
        self.vocabulary.specials()[2]
    }

    /// The id of `<unk>`. Encoding never yields it; other tools expect it to exist.
    pub fn unk_id(&self) -> u32 {
        self.vocabulary.specials()[3]
    }

    /// The ids of a line, without any special token.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_line(text, None)
    }

    /// The ids of a line under BPE-dropout: every merge is passed over with probability `dropout` at every step (Provilkov
    /// et al. 2020). `key` decides the draws, and nothing else does: derive it from seed, epoch and line. With a
    /// `dropout` of 0 this is [`Tokenizer::encode`]; with 1 nothing is merged.
    pub fn encode_with_dropout(&self, text: &str, dropout: f32, key: u64) -> Vec<u32> {
        self.encode_line(text, (dropout > 0.0).then_some(Dropout { probability: dropout, key }))
    }

    /// The ids of many lines, in order, on all threads.
    pub fn encode_batch<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Vec<Vec<u32>> {
        lines.par_iter().with_min_len(64).map(|line| self.encode(line.as_ref())).collect()
    }

    /// The text of ids. Special tokens and ids out of range are left out, bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        detokenise::ids_to_text(&self.vocabulary, ids)
    }

    /// The piece of an id: `▁` for a space, `<0x0A>` for a byte.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.vocabulary.get(id).map(|(piece, _)| piece)
    }

    /// The pieces of a line. None contains white space, so that they can be written in one line with spaces between.
    pub fn pieces(&self, text: &str) -> Vec<String> {
        self.encode(text).into_iter().filter_map(|id| self.piece(id)).map(str::to_owned).collect()
    }

    /// The text of a line of pieces with white space between, as [`Tokenizer::pieces`] gives them. A piece that is not in
    /// the vocabulary stands for its own text, special tokens are left out.
    pub fn decode_pieces(&self, line: &str) -> String {
        detokenise::pieces_to_text(&self.vocabulary, line.split_whitespace())
    }

    /// What decoding a line's ids gives back: NFKC and, where the tokenizer was trained so, lower case.
    pub fn normalise(&self, text: &str) -> String {
        self.pipeline.normalise(text)
    }

    fn encode_line(&self, text: &str, dropout: Option<Dropout>) -> Vec<u32> {
        if text.is_empty() {
            return Vec::new();
        }
        // In European languages a piece has some four bytes.
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        cache::with(self.cache_owner, |cache| {
            let mut word = 0;
            for stretch in text.split(' ') {
                if let Some(known) = cache.stretches.get(stretch) {
                    self.push_ids(known, dropout, &mut word, &mut cache.scratch, &mut ids);
                    continue;
                }
                let new = self.take_apart(stretch, &mut cache.scratch);
                self.push_ids(&new, dropout, &mut word, &mut cache.scratch, &mut ids);
                if stretch.len() <= cache::MAX_STRETCH {
                    cache.insert(stretch, new);
                }
            }
        });
        ids
    }

    /// Appends the ids of a stretch; `word` counts the words of the line.
    fn push_ids(
        &self,
        stretch: &Stretch,
        dropout: Option<Dropout>,
        word: &mut u64,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        let Some(Dropout { probability, key }) = dropout else {
            return ids.extend_from_slice(&stretch.ids);
        };
        let mut start = 0;
        for &end in &stretch.ends {
            let symbols = stretch.symbols.get(start..end).unwrap_or_default();
            self.vocabulary.merges().apply(symbols, Some(Coins::new(key, *word, probability)), scratch, ids);
            *word += 1;
            start = end;
        }
    }

    /// Takes a stretch apart into words and symbols, and merges them.
    fn take_apart(&self, stretch: &str, scratch: &mut Scratch) -> Stretch {
        let (mut symbols, mut ends, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        self.pipeline.for_each_word(stretch, |word| {
            let start = symbols.len();
            self.vocabulary.push_symbols(word, &mut symbols);
            ends.push(symbols.len());
            self.vocabulary.merges().apply(symbols.get(start..).unwrap_or_default(), None, scratch, &mut ids);
        });
        Stretch { symbols: symbols.into(), ends: ends.into(), ids: ids.into() }
    }
}
