//! How lines are translated.

use std::sync::Arc;

use crate::decode::rerank::Rerank;
use crate::decode::source::Long;
use crate::decode::{Characters, DecodeConfig, LengthPenalty, SearchOptions, Sentence, Strategy};
use crate::error::Result;

/// How to translate.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslateOptions {
    /// How translations are chosen.
    pub strategy: Strategy,
    /// The most translations to return for a line.
    pub n_best: usize,
    /// Which of these remain in the end; all, if `None`.
    pub rerank: Option<Rerank>,
    /// The length penalty by which they are ranked.
    pub length_penalty: LengthPenalty,
    /// See [`SearchOptions::patience`].
    pub patience: f64,
    /// See [`SearchOptions::no_repeat_ngram`].
    pub no_repeat_ngram: usize,
    /// A translation has at least this many tokens.
    pub min_length: usize,
    /// A translation has at most this many times the tokens of its source, plus `max_length_extra`. With several
    /// models, the tokens of the first one count.
    pub max_length_ratio: f64,
    /// See `max_length_ratio`.
    pub max_length_extra: usize,
    /// A translation has at most this many tokens, whatever its source.
    pub max_length: Option<usize>,
    /// Number of lines before the first: random numbers are keyed by line numbers.
    pub lines_before: usize,
    /// Most padded source tokens in one batch.
    pub batch_tokens: usize,
    /// What to do with lines beyond the models' positions.
    pub long: Long,
    /// What lines begin with that each part of one that is split needs, too, beside tags of the models.
    pub tag: Option<String>,
}

impl TranslateOptions {
    /// The options of a configuration.
    pub fn from_config(config: &DecodeConfig) -> Self {
        let DecodeConfig {
            beam,
            length_penalty,
            length_penalty_kind,
            patience,
            no_repeat_ngram,
            min_length,
            max_length_ratio,
            max_length_extra,
            batch_tokens,
            // The command puts them into the text.
            source_language: _,
            target_language: _,
        } = *config;
        Self {
            strategy: Strategy::Beam { width: beam },
            n_best: 1,
            rerank: None,
            length_penalty: LengthPenalty { kind: length_penalty_kind, alpha: length_penalty },
            patience,
            no_repeat_ngram,
            min_length,
            max_length_ratio,
            max_length_extra,
            max_length: None,
            lines_before: 0,
            batch_tokens,
            long: Long::Split,
            tag: None,
        }
    }

    /// Checks that the options are in range.
    ///
    /// # Errors
    /// As [`SearchOptions::check`].
    pub fn check(&self) -> Result<()> {
        self.search(Vec::new(), Arc::default()).check()
    }

    pub(in crate::decode) fn search(&self, sentences: Vec<Sentence>, characters: Arc<Characters>) -> SearchOptions {
        let Self { length_penalty, patience, no_repeat_ngram, .. } = *self;
        let strategy = self.strategy.clone();
        SearchOptions { strategy, length_penalty, patience, no_repeat_ngram, characters, sentences }
    }

    /// The longest translation of a source of `source` tokens, in tokens, `</s>` included.
    pub fn limit(&self, source: usize, demanded: usize) -> usize {
        let by_source = (self.max_length_ratio * source as f64) as usize;
        // Leaves room for the minimum length or the demanded tokens, and for the end.
        let least = self.min_length.max(demanded).saturating_add(1);
        by_source.saturating_add(self.max_length_extra).max(least).min(self.max_length.unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has to be in a translation, and its end, fit whatever its source allows; `--max-length` is for all.
    #[test]
    fn a_limit_follows_the_source_but_leaves_room_for_what_is_asked_for() {
        let of = |max_length_ratio, max_length_extra, min_length, max_length| TranslateOptions {
            max_length_ratio,
            max_length_extra,
            min_length,
            max_length,
            ..TranslateOptions::from_config(&DecodeConfig::default())
        };
        for (options, source, prefix, limit) in [
            (of(1.5, 10, 0, None), 7, 0, 20),
            (of(2.0, 0, 0, None), 7, 0, 14),
            (of(0.0, 5, 0, None), 7, 0, 5),
            (of(0.0, 0, 0, None), 7, 0, 1),
            (of(1.0, 0, 9, None), 3, 0, 10),
            (of(1.0, 0, 0, None), 3, 6, 7),
            (of(1.0, 0, 9, None), 3, 6, 10),
            (of(1.0, 0, 5, None), 3, 6, 7),
            (of(1.0, 50, 0, Some(4)), 3, 0, 4),
            (of(1.0, 0, 9, Some(4)), 3, 6, 4),
            (of(1.0, usize::MAX, usize::MAX, None), 3, 0, usize::MAX),
        ] {
            assert_eq!(options.limit(source, prefix), limit, "{options:?}, {source}, {prefix}");
        }
    }
}
