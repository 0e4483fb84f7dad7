//! Text in, text out: tokenise, batch by length, encode, search, detokenise, in the order of the input.

use std::sync::Arc;

use super::neural::{NeuralStep, SpecialTokens};
use super::{SearchOptions, search};
use crate::data::batch::Batch;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::model::cache::Decoder;
use crate::model::{Sequences, Transformer};
use crate::ops::Mode;

/// How to translate.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslateOptions {
    /// Beam width; 1 is greedy.
    pub beam: usize,
    /// α of the GNMT length penalty.
    pub length_penalty: f64,
    /// A translation has at most this many tokens more than its source.
    pub max_length_extra: usize,
    /// A translation has at most this many tokens, whatever its source.
    pub max_length: Option<usize>,
    /// Most padded source tokens in one batch.
    pub batch_tokens: usize,
}

/// One translated line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translation {
    /// The text, on one line.
    pub text: String,
    /// Sum of the log-probabilities of its tokens and the end.
    pub log_prob: f64,
    /// That under the length penalty.
    pub score: f64,
    /// Whether it ended by itself; else it was cut at the maximum length.
    pub finished: bool,
    /// Whether the source was cut at what the model's positions reach.
    pub source_cut: bool,
}

/// A model ready to translate.
pub struct Translator<'a> {
    model: &'a Transformer,
    decoder: Decoder,
    tokenizers: &'a Tokenizers,
    special: SpecialTokens,
}

/// A source line on its way.
struct Source {
    line: usize,
    ids: Vec<u32>,
}

/// As much of a line as could matter to a model that takes `longest` tokens, so that a line of a gigabyte costs little.
fn beginning(line: &str, longest: usize) -> &str {
    const LEAST: usize = 1 << 20;
    const BYTES_A_TOKEN: usize = 256;
    let end = longest.saturating_mul(BYTES_A_TOKEN).max(LEAST);
    &line[..line.floor_char_boundary(end)]
}

impl<'a> Translator<'a> {
    /// Prepares a model's weights for decoding.
    pub fn new(model: &'a Transformer, tokenizers: &'a Tokenizers) -> Result<Self> {
        let target = &tokenizers.target;
        let special = SpecialTokens {
            start: target.bos_id(),
            end: target.eos_id(),
            forbidden: vec![target.pad_id(), target.bos_id(), target.unk_id()],
        };
        Ok(Self { model, decoder: model.decoder()?, tokenizers, special })
    }

    /// Translates lines; the result has one translation a line, in order. `progress` hears how many lines are done.
    pub fn translate<S: AsRef<str> + Sync>(
        &self,
        lines: &[S],
        options: &TranslateOptions,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Translation>> {
        let whole = self.translate_while(lines, options, |done| {
            progress(done);
            true
        })?;
        Ok(whole.unwrap_or_default())
    }

    /// As [`Self::translate`]; asked after each batch, `go_on` may end it, and there is no result then.
    pub fn translate_while<S: AsRef<str> + Sync>(
        &self,
        lines: &[S],
        options: &TranslateOptions,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Translation>>> {
        let mut results = vec![Translation { finished: true, ..Translation::default() }; lines.len()];
        let longest = self.decoder.max_positions() - 1;
        let mut sources: Vec<Source> = Vec::new();
        let beginnings: Vec<&str> = lines.iter().map(|line| beginning(line.as_ref(), longest)).collect();
        for (line, mut ids) in self.tokenizers.source.encode_batch(&beginnings).into_iter().enumerate() {
            // A line of nothing but white space has nothing to translate.
            if beginnings[line].trim().is_empty() {
                continue;
            }
            results[line].source_cut = ids.len() > longest || beginnings[line].len() < lines[line].as_ref().len();
            ids.truncate(longest);
            sources.push(Source { line, ids });
        }
        // Longest first, so that a batch too large shows at once; equal lengths in input order.
        sources.sort_by_key(|source| std::cmp::Reverse(source.ids.len()));
        let mut done = lines.len() - sources.len();
        let mut rest = &sources[..];
        while let Some(first) = rest.first() {
            let rows = (options.batch_tokens / (first.ids.len() + 1)).clamp(1, rest.len());
            let (batch, after) = rest.split_at(rows);
            rest = after;
            for (source, mut translation) in batch.iter().zip(self.batch(batch, options)?) {
                translation.source_cut = results[source.line].source_cut;
                results[source.line] = translation;
            }
            done += rows;
            if !go_on(done) {
                return Ok(None);
            }
        }
        Ok(Some(results))
    }

    fn batch(&self, sources: &[Source], options: &TranslateOptions) -> Result<Vec<Translation>> {
        let ids: Vec<&[u32]> = sources.iter().map(|s| s.ids.as_slice()).collect();
        let batch = Batch::source_only(&ids, &self.tokenizers.special_ids());
        let sequences =
            Sequences { ids: batch.source, lengths: Arc::new(batch.source_lengths), length: batch.source_length };
        let memory = self.model.encode(&sequences, &Mode::INFERENCE)?;
        let mut step = NeuralStep::new(&self.decoder, &memory, &self.special)?;
        let limit = |ids: &[u32]| {
            let most = options.max_length.unwrap_or(usize::MAX).min(ids.len() + options.max_length_extra);
            most.clamp(1, self.decoder.max_positions())
        };
        let search_options = SearchOptions {
            beam: options.beam,
            length_penalty: options.length_penalty,
            max_lengths: ids.iter().map(|ids| limit(ids)).collect(),
        };
        let hypotheses = search(&mut step, &search_options)?;
        Ok(hypotheses.into_iter().map(|best| self.translation(best)).collect())
    }

    fn translation(&self, hypotheses: Vec<super::Hypothesis>) -> Translation {
        let Some(best) = hypotheses.into_iter().next() else { return Translation::default() };
        Translation {
            text: self.tokenizers.target.decode(&best.tokens).replace(['\n', '\r'], " "),
            log_prob: best.log_prob,
            score: best.score,
            finished: best.finished,
            source_cut: false,
        }
    }
}
