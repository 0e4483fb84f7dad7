//! Text in, text out: tokenise, batch by length, encode, search, detokenise, in the order of the input.

use super::neural::{NeuralStep, SpecialTokens};
use super::source::{self, Reader, Source};
use super::{SearchOptions, search};
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::model::Transformer;
use crate::model::cache::Decoder;
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
    /// Its tokens, without the end.
    pub tokens: Vec<u32>,
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
        let mut sources = self.reader().read(lines);
        sources.retain(|source| !source.ids.is_empty());
        source::by_length(&mut sources);
        let mut done = lines.len() - sources.len();
        for batch in source::batches(&sources, options.batch_tokens) {
            for (source, translation) in batch.iter().zip(self.batch(batch, options)?) {
                results[source.line] = Translation { source_cut: source.cut, ..translation };
            }
            done += batch.len();
            if !go_on(done) {
                return Ok(None);
            }
        }
        Ok(Some(results))
    }

    /// What makes lines into its sources.
    pub fn reader(&self) -> Reader<'a> {
        Reader::new(self.model, self.tokenizers)
    }

    fn batch(&self, sources: &[Source], options: &TranslateOptions) -> Result<Vec<Translation>> {
        let memory = self.model.encode(&self.reader().sequences(sources), &Mode::INFERENCE)?;
        let mut step = NeuralStep::new(&self.decoder, &memory, &self.special)?;
        let limit = |source: &Source| {
            let most = options.max_length.unwrap_or(usize::MAX).min(source.ids.len() + options.max_length_extra);
            most.clamp(1, self.decoder.max_positions())
        };
        let search_options = SearchOptions {
            beam: options.beam,
            length_penalty: options.length_penalty,
            max_lengths: sources.iter().map(limit).collect(),
        };
        let hypotheses = search(&mut step, &search_options)?;
        Ok(hypotheses.into_iter().map(|best| self.translation(best)).collect())
    }

    fn translation(&self, hypotheses: Vec<super::Hypothesis>) -> Translation {
        let Some(best) = hypotheses.into_iter().next() else { return Translation::default() };
        Translation {
            text: self.tokenizers.target.decode(&best.tokens).replace(['\n', '\r'], " "),
            tokens: best.tokens,
            log_prob: best.log_prob,
            score: best.score,
            finished: best.finished,
            source_cut: false,
        }
    }
}
