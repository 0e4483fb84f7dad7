//! Incremental decoding: one position at a time, with cached keys and values.
//!
//! [`Decoder`] holds the decoder's weights prepared for few rows; [`State`] holds what one batch of sentences has produced
//! so far. On the processor they are [`fused`] kernels over slices, elsewhere [`plain`] Candle operations.

mod fused;
mod plain;

use candle_core::Result;

use super::{Memory, Transformer};
use crate::ops::Implementation;

/// The decoder's weights, prepared for incremental decoding.
#[derive(Debug)]
pub struct Decoder {
    kind: Kind,
    vocabulary: usize,
    max_positions: usize,
}

#[derive(Debug)]
enum Kind {
    Fused(fused::Decoder),
    Plain(plain::Decoder),
}

/// What a batch of sentences has produced so far.
#[derive(Debug)]
pub struct State(StateKind);

#[derive(Debug)]
enum StateKind {
    Fused(fused::State),
    Plain(plain::State),
}

impl Transformer {
    /// Prepares the decoder for incremental decoding.
    pub fn decoder(&self) -> Result<Decoder> {
        self.decoder_with(Implementation::Fused)
    }

    /// Prepares the decoder, with fused kernels only where they are asked for and the device has them.
    pub fn decoder_with(&self, implementation: Implementation) -> Result<Decoder> {
        let fused = implementation == Implementation::Fused && self.parameters.device().is_cpu();
        let kind = if fused { Kind::Fused(self.fused_decoder()?) } else { Kind::Plain(self.plain_decoder()?) };
        Ok(Decoder { kind, vocabulary: self.vocabulary.target, max_positions: self.config.max_length })
    }
}

impl Decoder {
    /// Size of the target vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Longest sequence the positions reach.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Begins decoding a batch of encoded sentences.
    pub fn begin(&self, memory: &Memory) -> Result<State> {
        Ok(State(match &self.kind {
            Kind::Fused(decoder) => StateKind::Fused(decoder.begin(memory)?),
            Kind::Plain(decoder) => StateKind::Plain(decoder.begin(memory)?),
        }))
    }

    /// One step: row r continues row `parents[r]` of the last step with `tokens[r]`, for sentence `sentences[r]`.
    /// Returns logits, [rows, V].
    pub fn step(&self, state: &mut State, tokens: &[u32], parents: &[usize], sentences: &[usize]) -> Result<Vec<f32>> {
        match (&self.kind, &mut state.0) {
            (Kind::Fused(decoder), StateKind::Fused(state)) => Ok(decoder.step(state, tokens, parents, sentences)),
            (Kind::Plain(decoder), StateKind::Plain(state)) => decoder.step(state, tokens, parents, sentences),
            _ => candle_core::bail!("a decoder was given the state of another"),
        }
    }
}
