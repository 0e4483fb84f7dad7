//! Metrics: strings in, statistics out. Nothing here knows of models or tensors.
//!
//! A metric is computed in two steps: sufficient statistics of every line, which can be added up, and a score from
//! their sum. A bootstrap therefore resamples statistics and never counts an n-gram twice.
//!
//! | Metric | Module | Reference implementation |
//! |---|---|---|
//! | BLEU | [`bleu`] | sacrebleu 2.6.0 |
//!
//! [`tokenize`] holds what the metrics share: how a line becomes words.

pub mod bleu;
mod ngrams;
pub mod tokenize;

pub use bleu::{
    BleuOptions, BleuScore, BleuStats, Smooth, corpus_bleu, corpus_bleu_with_missing, corpus_stats, sentence_bleu,
    tokenized_warning,
};
pub use tokenize::Tokenize;
