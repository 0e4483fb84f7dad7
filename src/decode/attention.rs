//! The attention weights behind a translation, with the tokens they belong to.

use std::sync::Arc;

use candle_core::Tensor;

use super::source::{Reader, Source};
use super::translate::Candidate;
use crate::error::Result;
use crate::explanation::{SentenceAttention, Weights};
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

/// The cross-attention weights of the last layer, averaged over its heads, for each of several sources and tokens made
/// of them: for each token, at the position that produces it, one weight per source token and one for the end of the
/// source. They do not depend on the other pairs of the batch.
pub(super) fn cross_attention(
    model: &Transformer,
    reader: &Reader,
    pairs: &[(&Source, &[u32])],
) -> Result<Vec<Vec<Vec<f32>>>> {
    let special = reader.tokenizers().special_ids();
    let inputs: Vec<Vec<u32>> = pairs
        .iter()
        .map(|(_, tokens)| [&[special.bos_target], &tokens[..tokens.len().saturating_sub(1)]].concat())
        .collect();
    let sources: Vec<&Source> = pairs.iter().map(|(source, _)| *source).collect();
    let sequences = reader.sequences(&sources);
    let decoded = Sequences::padded(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), special.pad_target);
    let memory = model.encode(&sequences, &Mode::INFERENCE)?;
    let (_, weights) = model.decode_with_attention(&memory, &decoded, &Mode::INFERENCE)?;
    let Some(weights) = weights.cross.last() else {
        return Ok(vec![Vec::new(); pairs.len()]);
    };
    let of_pair = |(i, input): (usize, &Vec<u32>)| -> Result<Vec<Vec<f32>>> {
        // [H, T, S] → [T, S]
        let mut rows: Vec<Vec<f32>> = weights.get(i)?.mean(0)?.to_vec2()?;
        rows.truncate(input.len());
        rows.iter_mut().for_each(|row| row.truncate(sequences.lengths[i] as usize));
        Ok(rows)
    };
    inputs.iter().enumerate().map(of_pair).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::data::tokenizer::{Tokenizer, TrainOptions};
    use crate::data::tokenizers::Tokenizers;
    use crate::model::{ModelConfig, NormPlacement, PaddingMask, PositionKind, Vocabulary};

    /// Neither padding nor other pairs of the batch change any bit of a pair's weights.
    #[test]
    fn weights_of_a_pair_are_the_same_in_a_batch() {
        let options = TrainOptions { vocab_size: 300, ..TrainOptions::default() };
        let tokenizer = Arc::new(Tokenizer::train(&[&["the old dog sleeps"][..]], &options).unwrap());
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer };
        let small = ModelConfig {
            d_model: 24,
            d_ff: 48,
            heads: 3,
            d_k: 8,
            d_v: 8,
            encoder_layers: 2,
            decoder_layers: 3,
            max_length: 64,
            ..ModelConfig::default()
        };
        for config in [
            small.clone(),
            ModelConfig {
                norm: NormPlacement::Pre,
                final_norm: true,
                positions: PositionKind::Rotary,
                ..small.clone()
            },
            ModelConfig { padding_mask: PaddingMask::KeysAndQueries, positions: PositionKind::Learned, ..small },
        ] {
            let vocabulary = Vocabulary {
                source: tokenizers.source.vocab_size(),
                target: tokenizers.target.vocab_size(),
                source_padding: tokenizers.source.pad_id(),
                target_padding: tokenizers.target.pad_id(),
            };
            let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
            model.initialise(7).unwrap();
            let reader = Reader::new(&config, &tokenizers);
            let ids = |length: u32, step: u32| -> Vec<u32> { (0..length).map(|i| 4 + i * step % 250).collect() };
            let sources: Vec<Source> = [(30, 7), (1, 3), (17, 11), (30, 13)]
                .map(|(length, step)| Source { ids: ids(length, step), ..Source::default() })
                .into();
            let targets = [ids(5, 9), ids(40, 17), ids(1, 5), ids(23, 3)];
            let pairs: Vec<(&Source, &[u32])> = sources.iter().zip(targets.iter().map(Vec::as_slice)).collect();
            let together = cross_attention(&model, &reader, &pairs).unwrap();
            for (pair, weights) in pairs.iter().zip(&together) {
                assert_eq!((weights.len(), weights[0].len()), (pair.1.len(), pair.0.ids.len() + 1));
                assert!(weights.iter().all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
                assert_eq!(&cross_attention(&model, &reader, &[*pair]).unwrap()[0], weights);
            }
        }
    }
}
