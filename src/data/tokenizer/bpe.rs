//! Our own engine: the merges of a `tokenizer.json` that [`super::train`] wrote, or one like it.

use serde_json::Value;

use super::cache::{self, Stretch};
use super::engine::{Dropout, Engine};
use super::merge::{Coins, Scratch};
use super::pipeline::Pipeline;
use super::symbols::{self, Symbols};
use super::vocabulary::Vocabulary;
use super::{TextForm, TokenizerKind, detokenise};
use crate::error::{Error, Result};

/// Byte-pair encoding with byte fallback over the pipeline of this module.
pub(super) struct Bpe {
    pipeline: Pipeline,
    vocabulary: Vocabulary,
    /// Distinguishes this tokenizer's cached stretches from those of others.
    cache_owner: u64,
}

impl Bpe {
    /// Reads a parsed `tokenizer.json`.
    ///
    /// # Errors
    /// Its encoding or decoding would differ from the file's: the model must be BPE with byte fallback, the pipeline
    /// that of [`super::pipeline`], and `<pad>`, `<s>`, `</s>` and `<unk>` must be in the vocabulary, under any ids.
    pub(super) fn from_json(file: &Value) -> Result<Self> {
        let vocabulary = Vocabulary::from_json(file)?;
        let pipeline = Pipeline::from_json(file)?;
        if let Some(lost) = pipeline.symbols().iter().find(|symbol| vocabulary.word(symbol).is_none()) {
            return Err(Error::failure(format!(
                "its symbol `{lost}` is not in its vocabulary, or is split by its merges"
            )));
        }
        Ok(Self { pipeline, vocabulary, cache_owner: cache::new_owner() })
    }

    /// `file`, the `tokenizer.json` of this tokenizer, with further tags and symbols at the end of its vocabulary.
    ///
    /// # Errors
    /// A symbol is invalid; or the file cuts words in another way than ours.
    pub(super) fn with_symbols(&self, mut file: Value, tags: &[String], others: &[String]) -> Result<Value> {
        let mut symbols = self.pipeline.symbols().clone();
        for (stated, own) in [(tags, &mut symbols.tags), (others, &mut symbols.others)] {
            for stated in stated {
                own.push(symbols::checked(stated, self.pipeline.normalise(stated))?);
            }
        }
        let symbols = Symbols::new(symbols.tags, symbols.others)?;
        let cannot = || Error::failure("it splits words in a way of its own, so no symbols can be added");
        let expression = self.pipeline.pre_tokenizer_with(&symbols).ok_or_else(cannot)?;
        let vocabulary = file["model"]["vocab"].as_object_mut().ok_or_else(cannot)?;
        for symbol in symbols.iter() {
            let next = vocabulary.len();
            vocabulary.entry(symbol.as_str()).or_insert_with(|| next.into());
        }
        file["model"]["ignore_merges"] = true.into();
        file["pre_tokenizer"] = expression;
        Ok(file)
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
            let whole = self.vocabulary.word(word);
            match whole {
                // Dropout never splits these.
                Some(id) if self.pipeline.symbols().contains(word) => symbols.push(id),
                _ => self.vocabulary.push_symbols(word, &mut symbols),
            }
            ends.push(symbols.len());
            match whole {
                Some(id) => ids.push(id),
                None => {
                    self.vocabulary.merges().apply(symbols.get(start..).unwrap_or_default(), None, scratch, &mut ids)
                }
            }
        });
        Stretch { symbols: symbols.into(), ends: ends.into(), ids: ids.into() }
    }
}

impl Engine for Bpe {
    fn kind(&self) -> Option<TokenizerKind> {
        Some(TokenizerKind::Bpe)
    }

    fn form(&self) -> Option<TextForm> {
        Some(self.pipeline.form())
    }

    fn len(&self) -> usize {
        self.vocabulary.len()
    }

    fn specials(&self) -> [u32; 4] {
        self.vocabulary.specials()
    }

    fn piece(&self, id: u32) -> Option<&str> {
        self.vocabulary.get(id).map(|(piece, _)| piece)
    }

    fn encode(&self, line: &str) -> Vec<u32> {
        self.encode_line(line, None)
    }

    fn encode_with_dropout(&self, line: &str, dropout: Dropout) -> Vec<u32> {
        self.encode_line(line, Some(dropout))
    }

    fn has_dropout(&self) -> bool {
        true
    }

    fn decode(&self, ids: &[u32]) -> String {
        self.pipeline.finish(detokenise::ids_to_text(&self.vocabulary, ids))
    }

    fn decode_pieces(&self, line: &str) -> String {
        self.pipeline.finish(detokenise::pieces_to_text(&self.vocabulary, line.split_whitespace()))
    }

    fn language_tags(&self) -> Vec<&str> {
        self.pipeline.symbols().tags.iter().map(String::as_str).collect()
    }

    fn symbols(&self) -> Vec<&str> {
        self.pipeline.symbols().others.iter().map(String::as_str).collect()
    }

    fn language_tag<'t>(&self, line: &'t str) -> Option<&'t str> {
        self.pipeline.symbols().tag_of(line, |word| self.pipeline.normalise(word))
    }

    fn leading<'t>(&self, line: &'t str) -> &'t str {
        self.pipeline.symbols().leading(line, |word| self.pipeline.normalise(word))
    }

    fn lowers_case(&self) -> bool {
        self.pipeline.form().lowercase
    }

    fn encoded_form(&self, line: &str) -> String {
        self.pipeline.normalise(line)
    }

    fn normalise(&self, line: &str) -> String {
        self.pipeline.finish(self.pipeline.normalise(line))
    }
}
