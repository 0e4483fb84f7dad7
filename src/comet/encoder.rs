//! XLM-RoBERTa (Conneau et al. 2020) as COMET uses it: a vector of each sequence, made of the states of all layers.

use serde_json::{Map, Value};

use super::checkpoint::Checkpoint;
use super::hardware::Hardware;
use super::settings::{Layers, Settings};
use crate::error::{Error, Result};
use crate::gpu::decode::InferenceEngine;
use crate::infer;
use crate::model::layout::{Tie, layout};
use crate::model::pooling::{Mixture, pool, rows_of};
use crate::model::positions::PositionKind;
use crate::model::{ModelConfig, Sequences, Transformer, Vocabulary};
use crate::ops::feed_forward::Activation;
use crate::ops::matmul::int8::Values;
use crate::ops::memory::change_on_host;
use crate::ops::sublayer::NormPlacement;

/// Where its tensors are in the checkpoint.
const PREFIX: &str = "encoder.model.";
/// Our name of the table of tokens.
const EMBEDDING: &str = "source_embedding.weight";

/// The encoder, and how its states become a vector.
#[derive(Debug)]
pub(super) struct Encoder {
    way: Way,
    mixture: Mixture,
    /// D.
    pub(super) width: usize,
}

/// What computes it.
#[derive(Debug)]
enum Way {
    Processor(Box<infer::Encoder>),
    Gpu(Box<InferenceEngine>),
}

/// The shape of the encoder, from its `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape {
    config: ModelConfig,
    /// The position of the first token: those before belong to padding.
    first_position: usize,
    /// The longest sequence in tokens.
    pub(super) longest: usize,
}

impl Shape {
    /// # Errors
    /// A value is missing or of a kind that is not supported.
    pub(super) fn read(file: &Map<String, Value>) -> Result<Self> {
        let number = |key: &str| {
            let number = file.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
            let number = number.filter(|number| (1..=MOST).contains(number));
            number.ok_or_else(|| Error::failure(format!("`{key}` is missing, or no number from 1 to {MOST}")))
        };
        let is = |key: &str, expected: &str| match file.get(key).and_then(Value::as_str) {
            Some(value) if value != expected => Err(Error::failure(format!("`{key}` is {value}, not {expected}"))),
            _ => Ok(()),
        };
        is("model_type", "xlm-roberta")?;
        is("hidden_act", "gelu")?;
        is("position_embedding_type", "absolute")?;
        let (d_model, heads) = (number("hidden_size")?, number("num_attention_heads")?);
        if d_model % heads != 0 || d_model % 2 != 0 {
            return Err(Error::failure(format!("`hidden_size` {d_model} is not divisible by {heads} heads and by 2")));
        }
        let first_position = number("pad_token_id")? + 1;
        let longest = number("max_position_embeddings")?.saturating_sub(first_position);
        if longest < 8 {
            return Err(Error::failure("`max_position_embeddings` leaves no room for a sentence"));
        }
        let config = ModelConfig {
            d_model,
            d_ff: number("intermediate_size")?,
            heads,
            d_k: d_model / heads,
            d_v: d_model / heads,
            encoder_layers: number("num_hidden_layers")?,
            norm: NormPlacement::Post,
            final_norm: false,
            norm_eps: file.get("layer_norm_eps").and_then(Value::as_f64).unwrap_or(1e-5),
            positions: PositionKind::Learned,
            scale_embedding: false,
            embedding_norm: true,
            attention_bias: true,
            activation: Activation::Gelu,
            max_length: longest,
            ..ModelConfig::default()
        };
        Ok(Self { config, first_position, longest })
    }
}

/// The largest size of anything.
const MOST: usize = 1 << 16;

impl Encoder {
    /// # Errors
    /// A tensor is missing or has another shape.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        shape: &Shape,
        settings: &Settings,
        hardware: &Hardware,
    ) -> Result<Self> {
        let Shape { config, first_position, longest } = shape;
        let all = config.encoder_layers + 1;
        let (weights, is_normalised) = match settings.layers {
            Layers::One(layer) if layer < all => {
                ((0..=layer).map(|number| if number == layer { 1.0 } else { 0.0 }).collect(), false)
            }
            Layers::One(layer) => return Err(Error::failure(format!("it uses layer {layer} of {}", all - 1))),
            Layers::Mixture { sparse, normalised } => (mixture(checkpoint, all, sparse)?, normalised),
        };
        // Layers after the last that counts are not needed.
        let needed = weights.iter().rposition(|weight| *weight != 0.0).unwrap_or(0);
        let config = ModelConfig { encoder_layers: needed, ..config.clone() };
        let values = |name: &str| -> Result<Vec<f32>> {
            let theirs = their_name(name);
            check_shape(checkpoint, &theirs, name, shape)?;
            let floats = checkpoint.floats(&theirs)?;
            if name != "encoder.positions.weight" {
                return Ok(floats);
            }
            // The embedding of the only kind of token that there is belongs to each position.
            let kinds = format!("{PREFIX}embeddings.token_type_embeddings.weight");
            check_shape(checkpoint, &kinds, "", shape)?;
            let kind = checkpoint.floats(&kinds)?;
            let d = config.d_model;
            let rows = floats.chunks_exact(d).skip(*first_position).take(*longest);
            Ok(rows.flat_map(|row| row.iter().zip(&kind).map(|(x, y)| x + y)).collect())
        };
        let way = match hardware {
            Hardware::Processor(precision) => {
                let values = |name: &str| Ok(Values::F32(values(name)?));
                Way::Processor(Box::new(infer::Encoder::new(&config, &values, *precision)?))
            }
            Hardware::Gpu { device, queue, compute } => {
                // The engine knows whole models only: in this one, the decoder has no layers.
                let config = ModelConfig { decoder_layers: 0, tie: Tie::All, ..config.clone() };
                let tokens = Self::tokens(checkpoint);
                let vocabulary = Vocabulary { source: tokens, target: tokens, source_padding: 0, target_padding: 0 };
                let is_encoders = |name: &str| name == EMBEDDING || name.starts_with("encoder.");
                // Before there is memory for what a damaged `config.json` says.
                for entry in layout(&config, vocabulary).entries().iter().filter(|entry| is_encoders(&entry.name)) {
                    check_shape(checkpoint, &their_name(&entry.name), &entry.name, shape)?;
                }
                let model = Transformer::for_inference(&config, vocabulary, device, *compute)?;
                let parameters = model.parameters();
                change_on_host(parameters.values(), |flat| {
                    let mut entries = parameters.entries().iter().filter(|entry| is_encoders(&entry.name));
                    entries.try_for_each(|entry| {
                        flat[entry.range()].copy_from_slice(&values(&entry.name)?);
                        Ok::<_, Error>(())
                    })
                })??;
                Way::Gpu(Box::new(InferenceEngine::new(&model, queue.clone(), *compute)?))
            }
        };
        let mixture = Mixture { weights: weights[..=needed].to_vec(), is_normalised, pooling: settings.pooling };
        Ok(Self { way, mixture, width: config.d_model })
    }

    /// How many tokens it knows.
    pub(super) fn tokens(checkpoint: &Checkpoint) -> usize {
        let shape = checkpoint.shape(&their_name(EMBEDDING)).unwrap_or_default();
        shape.first().copied().unwrap_or(0)
    }

    /// The vector of each sequence, [D].
    ///
    /// # Errors
    /// The GPU fails, or has no memory for a single sequence.
    pub(super) fn vectors(&self, sequences: &[&[u32]]) -> Result<Vec<Vec<f32>>> {
        let (mixture, d) = (&self.mixture, self.width);
        let encoder = match &self.way {
            Way::Processor(encoder) => encoder,
            Way::Gpu(engine) => return on_gpu(engine, sequences, mixture),
        };
        let blocks = encoder.states(
            sequences,
            |block| {
                let lengths: Vec<usize> = sequences[block].iter().map(|sequence| sequence.len()).collect();
                (vec![0.0; lengths.iter().sum::<usize>() * d], lengths)
            },
            |(sum, lengths), layer, states| mixture.add(sum, layer, states, lengths, d),
        );
        let of_block = |(sum, lengths): (Vec<f32>, Vec<usize>)| pool(&sum, d, rows_of(&lengths), mixture.pooling);
        Ok(blocks.into_iter().flat_map(of_block).collect())
    }
}

/// The vectors by a GPU, in halves where there is no memory for all at once.
fn on_gpu(engine: &InferenceEngine, sequences: &[&[u32]], mixture: &Mixture) -> Result<Vec<Vec<f32>>> {
    match engine.vectors(&Sequences::padded(sequences, 0), mixture) {
        Err(error) if error.is_out_of_memory() && sequences.len() > 1 => {
            let (first, second) = sequences.split_at(sequences.len() / 2);
            let mut vectors = on_gpu(engine, first, mixture)?;
            vectors.extend(on_gpu(engine, second, mixture)?);
            Ok(vectors)
        }
        result => result,
    }
}

/// What each layer counts in the mixture.
fn mixture(checkpoint: &Checkpoint, layers: usize, sparse: bool) -> Result<Vec<f32>> {
    let scalar = |name: String| -> Result<f64> {
        let of_model = format!("layerwise_attention.{name}");
        let is_one = checkpoint.shape(&of_model).is_none_or(|shape| shape.iter().all(|size| *size == 1));
        let values = if is_one { checkpoint.floats(&of_model)? } else { Vec::new() };
        values
            .first()
            .map(|value| f64::from(*value))
            .ok_or_else(|| Error::failure(format!("`{name}` is not one number")))
    };
    let scores = (0..layers).map(|layer| scalar(format!("scalar_parameters.{layer}"))).collect::<Result<Vec<_>>>()?;
    let gamma = scalar("gamma".to_owned())?;
    if scores.iter().chain([&gamma]).any(|number| !number.is_finite()) {
        return Err(Error::failure("the weights of its layers are not numbers"));
    }
    let shares = if sparse { sparsemax(&scores) } else { softmax(&scores) };
    Ok(shares.into_iter().map(|share| (gamma * share) as f32).collect())
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The point of the simplex that is nearest (Martins and Astudillo 2016, algorithm 1).
fn sparsemax(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (mut sum, mut threshold) = (0.0, 0.0);
    for (score, count) in sorted.into_iter().zip(1..) {
        sum += score;
        let count = f64::from(count);
        if 1.0 + count * score > sum {
            threshold = (sum - 1.0) / count;
        }
    }
    scores.iter().map(|score| (score - threshold).max(0.0)).collect()
}

/// The name of one of our parameters in the checkpoint.
fn their_name(ours: &str) -> String {
    const NAMES: &[(&str, &str)] = &[
        ("self_attn.q_proj", "attention.self.query"),
        ("self_attn.k_proj", "attention.self.key"),
        ("self_attn.v_proj", "attention.self.value"),
        ("self_attn.out_proj", "attention.output.dense"),
        ("self_attn_norm", "attention.output.LayerNorm"),
        ("feed_forward.fc1", "intermediate.dense"),
        ("feed_forward.fc2", "output.dense"),
        ("feed_forward_norm", "output.LayerNorm"),
    ];
    let theirs = match ours {
        EMBEDDING => "embeddings.word_embeddings.weight".to_owned(),
        "encoder.positions.weight" => "embeddings.position_embeddings.weight".to_owned(),
        _ => {
            let within = ours.strip_prefix("encoder.").unwrap_or(ours);
            let within =
                within.replace("embedding_norm.", "embeddings.LayerNorm.").replace("layers.", "encoder.layer.");
            let found = NAMES.iter().find(|(name, _)| within.contains(&format!(".{name}.")));
            found.map_or(within.clone(), |(name, theirs)| within.replace(&format!(".{name}."), &format!(".{theirs}.")))
        }
    };
    format!("{PREFIX}{theirs}")
}

/// Refuses a tensor that does not fit the encoder's `config.json`.
fn check_shape(checkpoint: &Checkpoint, theirs: &str, ours: &str, shape: &Shape) -> Result<()> {
    let Shape { config, first_position, longest } = shape;
    let (d, f) = (config.d_model, config.d_ff);
    let shape = checkpoint.shape(theirs).unwrap_or_default();
    let fits = match ours {
        EMBEDDING => shape.len() == 2 && shape[1] == d,
        "encoder.positions.weight" => shape.len() == 2 && shape[0] >= first_position + longest && shape[1] == d,
        // Of the kinds of tokens.
        "" => shape == [1, d],
        _ if ours.ends_with("fc1.weight") => shape == [f, d],
        _ if ours.ends_with("fc1.bias") => shape == [f],
        _ if ours.ends_with("fc2.weight") => shape == [d, f],
        _ if ours.ends_with("proj.weight") => shape == [d, d],
        _ => shape == [d],
    };
    match fits {
        true => Ok(()),
        false => {
            let what = format!("the tensor {theirs} is {shape:?}, which does not fit the encoder's config.json");
            Err(Error::failure(what).help("checkpoint and encoder are of different models"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_transformers() {
        for (ours, theirs) in [
            ("source_embedding.weight", "embeddings.word_embeddings.weight"),
            ("encoder.embedding_norm.bias", "embeddings.LayerNorm.bias"),
            ("encoder.layers.11.self_attn.v_proj.bias", "encoder.layer.11.attention.self.value.bias"),
            ("encoder.layers.0.self_attn_norm.weight", "encoder.layer.0.attention.output.LayerNorm.weight"),
            ("encoder.layers.3.feed_forward.fc2.weight", "encoder.layer.3.output.dense.weight"),
            ("encoder.layers.3.feed_forward_norm.bias", "encoder.layer.3.output.LayerNorm.bias"),
        ] {
            assert_eq!(their_name(ours), format!("{PREFIX}{theirs}"));
        }
    }

    /// The nearest point of the simplex, found by trying all sets of coordinates that are not 0.
    #[test]
    fn sparsemax_is_the_nearest_point() {
        for scores in [vec![0.0; 5], vec![2.0, 0.1, -1.0], vec![0.3, 0.2, 0.5, 0.45], vec![-3.0, -3.1]] {
            let found = sparsemax(&scores);
            assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12 && found.iter().all(|x| *x >= 0.0));
            let distance = |point: &[f64]| point.iter().zip(&scores).map(|(x, y)| (x - y).powi(2)).sum::<f64>();
            for set in 1..1u32 << scores.len() {
                let inside = |i: usize| set >> i & 1 == 1;
                let sum: f64 = (0..scores.len()).filter(|i| inside(*i)).map(|i| scores[i]).sum();
                let shift = (1.0 - sum) / f64::from(set.count_ones());
                let at = |i: usize| if inside(i) { scores[i] + shift } else { 0.0 };
                let point: Vec<f64> = (0..scores.len()).map(at).collect();
                let is_on_simplex = point.iter().all(|x| *x >= 0.0);
                assert!(!is_on_simplex || distance(&found) <= distance(&point) + 1e-12, "{scores:?}");
            }
        }
    }
}
