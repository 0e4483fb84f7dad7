//! From text files to padded batches of token ids.
//!
//! ```text
//! lines → corpus → encoded (with filter) → batches: sampler → batch → prefetch → the training loop
//! ```

pub mod batch;
pub mod batches;
mod block;
pub mod cache;
pub mod check;
mod compact;
mod config;
pub mod corpus;
pub mod corpus_tags;
pub mod coverage;
pub mod encode;
pub mod encoded;
pub mod filter;
pub mod hub;
pub mod lengths;
pub mod lexicon;
pub mod prefetch;
pub mod sampler;
pub mod scores;
pub mod shard;
pub mod statistics;
pub mod tags;
pub mod text;
pub mod texts;
pub mod tokenizer;
pub mod tokenizers;
pub mod training;
pub mod weights;

pub use config::{
    CorpusConfig, CorpusLocation, DataConfig, QualityConfig, SampledSide, SamplingConfig, SetConfig, TokenizerConfig,
};
