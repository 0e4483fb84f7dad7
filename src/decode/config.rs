//! `[decode]`.

use serde::{Deserialize, Serialize};

use super::PenaltyKind;

/// `[decode]`: how translations are searched for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecodeConfig {
    /// Beam width; 1 is greedy.
    pub beam: usize,
    /// α of the length penalty.
    pub length_penalty: f64,
    /// The formula of the length penalty.
    pub length_penalty_kind: PenaltyKind,
    /// Beam search stops when this many times its width have finished; 0: when nothing can become better. Below 1
    /// there may be fewer translations than the beam is wide.
    pub patience: f64,
    /// No sequence of this many tokens may repeat within a translation; 0: no limit.
    pub no_repeat_ngram: usize,
    /// A translation has at least this many tokens.
    pub min_length: usize,
    /// A translation has at most this many times the tokens of its source, plus `max_length_extra`. A translation that
    /// is cut there has no end, and competes by its score with complete ones.
    pub max_length_ratio: f64,
    /// See `max_length_ratio`.
    pub max_length_extra: usize,
    /// The most padded source tokens in one batch.
    pub batch_tokens: usize,
    /// The language of sources, of models with several, such as `eng_Latn`; `None`: each command is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_language: Option<String>,
    /// The language to translate into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_language: Option<String>,
}

impl Default for DecodeConfig {
    fn default() -> Self {
        Self {
            beam: 4,
            length_penalty: 0.6,
            length_penalty_kind: PenaltyKind::Gnmt,
            patience: 1.0,
            no_repeat_ngram: 0,
            min_length: 0,
            max_length_ratio: 1.0,
            max_length_extra: 50,
            batch_tokens: 4096,
            source_language: None,
            target_language: None,
        }
    }
}
