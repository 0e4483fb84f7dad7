//! Metrics: strings in, statistics out. Nothing here knows of models or tensors.
//!
//! A metric is computed in two steps: sufficient statistics of every line, which can be added up, and a score from
//! their sum ([`metric`]). Resampling therefore adds statistics and never counts an n-gram twice.
//!
//! | Metric | Module | Reference implementation |
//! |---|---|---|
//! | BLEU, of words or of pieces | [`bleu`], [`pieces`] | sacrebleu 2.6.0 |
//! | chrF, chrF++ | [`chrf`] | sacrebleu 2.6.0 |
//! | TER | [`ter`] | sacrebleu 2.6.0, after Tercom |
//! | systems compared by COMET | [`compare`] | unbabel-comet 2.2.7 |
//! | confidence intervals, paired tests | [`resample`] | sacrebleu 2.6.0, with its random numbers ([`numpy`]) |
//!
//! [`analysis`] shows where translations fail. [`tokenize`] splits lines into words for all metrics, [`mecab`] those of
//! Japanese and Korean.

pub mod analysis;
pub mod bleu;
pub mod chrf;
pub mod compare;
pub mod mecab;
pub mod metric;
mod ngrams;
pub mod numpy;
pub mod pieces;
pub mod resample;
mod shifts;
pub mod ter;
pub mod tokenize;

pub use bleu::{BleuOptions, BleuScore, BleuStats, Smooth, corpus_bleu, sentence_bleu, tokenized_warning};
pub use chrf::ChrfOptions;
pub use metric::{MeanScore, Metric, Statistics, TextMetric, signature};
pub use ter::TerOptions;
pub use tokenize::Tokenize;
