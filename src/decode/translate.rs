//! Text in, text out: tokenise, batch by length, encode, search, detokenise, in the order of the input.

use super::neural::{Neural, SpecialTokens};
use super::source::{self, Reader, Source};
use super::{Ending, Hypothesis, LengthPenalty, SearchOptions, Sentence, Strategy, search};
use crate::config::DecodeConfig;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::model::Transformer;

/// How to translate.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslateOptions {
    /// How translations are chosen.
    pub strategy: Strategy,
    /// Most translations of a line that are wanted.
    pub n_best: usize,
    /// What they are ranked by.
    pub length_penalty: LengthPenalty,
    /// See [`SearchOptions::patience`].
    pub patience: f64,
    /// No sequence of so many tokens comes twice in a translation; 0: any may.
    pub no_repeat_ngram: usize,
    /// A translation has at least this many tokens.
    pub min_length: usize,
    /// A translation has at most this many times the tokens of its source, and `max_length_extra` more.
    pub max_length_ratio: f64,
    /// See `max_length_ratio`.
    pub max_length_extra: usize,
    /// A translation has at most this many tokens, whatever its source.
    pub max_length: Option<usize>,
    /// What every translation begins with.
    pub prefix: String,
    /// Lines before the first: random numbers are keyed by the number of a line.
    pub lines_before: usize,
    /// Most padded source tokens in one batch.
    pub batch_tokens: usize,
}

impl TranslateOptions {
    /// As a configuration has it.
    pub fn of(config: &DecodeConfig) -> Self {
        Self {
            strategy: Strategy::Beam { width: config.beam },
            n_best: 1,
            length_penalty: LengthPenalty { kind: config.length_penalty_kind, alpha: config.length_penalty },
            patience: config.patience,
            no_repeat_ngram: config.no_repeat_ngram,
            min_length: config.min_length,
            max_length_ratio: config.max_length_ratio,
            max_length_extra: config.max_length_extra,
            max_length: None,
            prefix: String::new(),
            lines_before: 0,
            batch_tokens: config.batch_tokens,
        }
    }

    /// Refuses what cannot be searched with.
    ///
    /// # Errors
    /// As [`SearchOptions::check`].
    pub fn check(&self) -> Result<()> {
        self.search(Vec::new()).check()
    }

    /// Rows that a sentence becomes.
    fn rows(&self) -> usize {
        match self.strategy {
            Strategy::Beam { width } | Strategy::Diverse { width, .. } => width,
            Strategy::Sample(sampling) => sampling.count,
        }
    }

    fn search(&self, sentences: Vec<Sentence>) -> SearchOptions {
        let Self { strategy, length_penalty, patience, no_repeat_ngram, .. } = *self;
        SearchOptions { strategy, length_penalty, patience, no_repeat_ngram, sentences }
    }

    /// Most tokens of the translation of so many, the end counted.
    fn limit(&self, source: usize, prefix: usize) -> usize {
        let by_source = (self.max_length_ratio * source as f64) as usize;
        // What must be there has room, and the end too.
        let least = self.min_length.max(prefix).saturating_add(1);
        by_source.saturating_add(self.max_length_extra).max(least).min(self.max_length.unwrap_or(usize::MAX))
    }
}

/// The translations of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The best first, or in the order they were drawn; at least one.
    pub n_best: Vec<Candidate>,
    /// Whether the source was cut at what the model's positions reach.
    pub source_cut: bool,
}

impl Translation {
    /// Of a blank line: a blank line.
    fn blank() -> Self {
        Self { n_best: vec![Candidate::default()], source_cut: false }
    }

    /// The one that counts.
    pub fn best(&self) -> &Candidate {
        &self.n_best[0]
    }
}

/// One translation of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The text, on one line.
    pub text: String,
    /// Its tokens, without the end.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, and that of the end where there is one.
    pub token_log_probs: Vec<f32>,
    /// The sum of these.
    pub log_prob: f64,
    /// That under the length penalty.
    pub score: f64,
    /// Why it goes no further.
    pub ending: Ending,
}

impl Default for Candidate {
    /// No text.
    fn default() -> Self {
        let (text, tokens, token_log_probs) = Default::default();
        Self { text, tokens, token_log_probs, log_prob: 0.0, score: 0.0, ending: Ending::End }
    }
}

impl Candidate {
    /// Whether it ended by itself.
    pub fn finished(&self) -> bool {
        self.ending == Ending::End
    }
}

/// A model ready to translate.
pub struct Translator<'a> {
    model: &'a Transformer,
    search: Neural,
    tokenizers: &'a Tokenizers,
}

impl<'a> Translator<'a> {
    /// Prepares a model's weights for decoding.
    pub fn new(model: &'a Transformer, tokenizers: &'a Tokenizers) -> Result<Self> {
        let target = &tokenizers.target;
        let special = SpecialTokens {
            source_end: tokenizers.source.eos_id(),
            start: target.bos_id(),
            end: target.eos_id(),
            forbidden: vec![target.pad_id(), target.bos_id(), target.unk_id()],
        };
        Ok(Self { model, search: Neural::new(model, special)?, tokenizers })
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
        go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Translation>>> {
        let sources = self.reader().read(lines);
        let prefix = self.prefix(&options.prefix);
        let Some(found) = self.search.translate(&sources, &prefix, options, go_on)? else { return Ok(None) };
        let translation = |(source, hypotheses): (&Source, Vec<Hypothesis>)| {
            let n_best: Vec<Candidate> = hypotheses.into_iter().map(|hypothesis| self.candidate(hypothesis)).collect();
            if n_best.is_empty() { Translation::blank() } else { Translation { n_best, source_cut: source.cut } }
        };
        Ok(Some(sources.iter().zip(found).map(translation).collect()))
    }

    /// What makes lines into its sources.
    pub fn reader(&self) -> Reader<'a> {
        Reader::new(self.model, self.tokenizers)
    }

    /// The tokens of a beginning.
    fn prefix(&self, text: &str) -> Vec<u32> {
        if text.trim().is_empty() { Vec::new() } else { self.tokenizers.target.encode(text) }
    }

    fn candidate(&self, hypothesis: Hypothesis) -> Candidate {
        let Hypothesis { tokens, token_log_probs, log_prob, score, ending } = hypothesis;
        let text = self.tokenizers.target.decode(&tokens).replace(['\n', '\r'], " ");
        Candidate { text, tokens, token_log_probs, log_prob, score, ending }
    }
}

impl Neural {
    /// Up to `options.n_best` hypotheses of each source, in order; none for one without tokens. Sources are batched by
    /// length; asked after each batch with the number of sources that are done, `go_on` may end it, and there is no result
    /// then.
    ///
    /// # Errors
    /// As [`search`].
    pub fn translate(
        &self,
        sources: &[Source],
        prefix: &[u32],
        options: &TranslateOptions,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Vec<Hypothesis>>>> {
        let mut results = vec![Vec::new(); sources.len()];
        let mut order: Vec<usize> = (0..sources.len()).filter(|&i| !sources[i].ids.is_empty()).collect();
        source::by_length(&mut order, |&i| sources[i].ids.len());
        let mut done = sources.len() - order.len();
        let most = self.rows() / options.rows();
        for batch in source::batches(&order, |&i| sources[i].ids.len(), options.batch_tokens, most) {
            let found = self.batch(&batch.iter().map(|&i| &sources[i]).collect::<Vec<_>>(), prefix, options)?;
            for (&i, mut hypotheses) in batch.iter().zip(found) {
                hypotheses.truncate(options.n_best);
                results[i] = hypotheses;
            }
            done += batch.len();
            if !go_on(done) {
                return Ok(None);
            }
        }
        Ok(Some(results))
    }

    fn batch(&self, sources: &[&Source], prefix: &[u32], options: &TranslateOptions) -> Result<Vec<Vec<Hypothesis>>> {
        let ids: Vec<Vec<u32>> =
            sources.iter().map(|source| [&source.ids[..], &[self.source_end()]].concat()).collect();
        let mut step = self.begin(&ids.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        let sentence = |source: &&Source| Sentence {
            min_length: options.min_length,
            max_length: options.limit(source.ids.len(), prefix.len()).clamp(1, self.max_positions()),
            prefix: prefix.to_vec(),
            key: (options.lines_before + source.line) as u64,
        };
        search(&mut step, &options.search(sources.iter().map(sentence).collect()))
    }
}
