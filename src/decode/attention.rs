//! The attention weights behind a translation, with the tokens they belong to.

use std::sync::Arc;

use candle_core::Tensor;

use super::source::{Reader, Source};
use super::translate::Candidate;
use crate::error::Result;
use crate::explanation::{SentenceAttention, Weights, aligning_layer};
use crate::model::{AttentionWeights, Sequences, Transformer};
use crate::ops::Mode;

fn nested(weights: &AttentionWeights) -> Result<Weights> {
    let layer = |weights: &Tensor| -> candle_core::Result<Vec<Vec<Vec<f32>>>> { weights.squeeze(0)?.to_vec3() };
    Ok(weights.iter().map(layer).collect::<candle_core::Result<_>>()?)
}

/// What the model computes for a source and its finished translation.
pub(super) struct Trace {
    /// Every layer's and head's attention weights.
    pub(super) attention: SentenceAttention,
    /// The decoder's states, [T, D].
    pub(super) states: Tensor,
    /// The token that was produced at each of these positions.
    pub(super) produced: Vec<u32>,
}

/// Runs a source, which must not be blank, and its translation through the model once more.
pub(super) fn trace(model: &Transformer, reader: &Reader, source: &Source, translation: &Candidate) -> Result<Trace> {
    let tokenizers = reader.tokenizers();
    let (special, target) = (tokenizers.special_ids(), &tokenizers.target);
    let input: Vec<u32> = std::iter::once(special.bos_target).chain(translation.tokens.iter().copied()).collect();
    // If the translation was cut, nothing was produced after its last token, so that token is not an input.
    let mut produced = translation.tokens.clone();
    let input = if translation.finished() {
        produced.push(special.eos_target);
        input
    } else {
        input[..produced.len()].to_vec()
    };
    let sequences = reader.sequences(std::slice::from_ref(source));
    let decoded = Sequences { ids: input.clone(), lengths: Arc::new(vec![input.len() as u32]), length: input.len() };
    let (memory, encoder) = model.encode_with_attention(&sequences, &Mode::INFERENCE)?;
    let (states, decoder) = model.decode_with_attention(&memory, &decoded, &Mode::INFERENCE)?;
    let pieces = |tokenizer: &crate::data::tokenizer::Tokenizer, ids: &[u32]| {
        ids.iter().map(|&id| tokenizer.piece(id).unwrap_or_default().to_owned()).collect()
    };
    let attention = SentenceAttention {
        source: pieces(&tokenizers.source, &sequences.ids),
        target_input: pieces(target, &input),
        target: pieces(target, &produced),
        encoder: nested(&encoder)?,
        decoder: nested(&decoder.masked)?,
        cross: nested(&decoder.cross)?,
    };
    Ok(Trace { attention, states, produced })
}

/// The cross-attention weights of the [`aligning_layer`], averaged over its heads: for each of `tokens`, at the position
/// that produces it, one weight per source token and one for the end of the source.
pub(super) fn cross_attention(
    model: &Transformer,
    reader: &Reader,
    source: &Source,
    tokens: &[u32],
) -> Result<Vec<Vec<f32>>> {
    let start = reader.tokenizers().special_ids().bos_target;
    let before = &tokens[..tokens.len().saturating_sub(1)];
    let input: Vec<u32> = std::iter::once(start).chain(before.iter().copied()).collect();
    let length = input.len();
    let sequences = reader.sequences(std::slice::from_ref(source));
    let decoded = Sequences { ids: input, lengths: Arc::new(vec![length as u32]), length };
    let memory = model.encode(&sequences, &Mode::INFERENCE)?;
    let (_, weights) = model.decode_with_attention(&memory, &decoded, &Mode::INFERENCE)?;
    let Some(weights) = weights.cross.get(aligning_layer(weights.cross.len())) else { return Ok(Vec::new()) };
    Ok(weights.squeeze(0)?.mean(0)?.to_vec2()?)
}
