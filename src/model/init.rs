//! Initial values of the parameters.

use candle_core::{Result, Tensor};

use crate::model::Vocabulary;
use crate::ops::params::{Entry, Parameters};
use crate::rng::Stream;

/// Fills all parameters: matrices Xavier-uniform (Glorot and Bengio 2010), embeddings N(0, D^-½) with the padding row
/// zero, norms one, biases zero. Every parameter has a stream of its own, named after it, so that a value depends on the
/// seed and the name alone.
pub fn initialise(parameters: &Parameters, vocabulary: Vocabulary, seed: u64) -> Result<()> {
    let mut values = Vec::with_capacity(parameters.values().elem_count());
    for entry in parameters.entries() {
        values.extend(initial(entry, vocabulary, seed));
    }
    parameters.values().slice_set(&Tensor::from_vec(values, parameters.values().shape(), parameters.device())?, 0, 0)
}

fn initial(entry: &Entry, vocabulary: Vocabulary, seed: u64) -> Vec<f32> {
    let mut stream = Stream::new(seed, &format!("init.{}", entry.name));
    match entry.shape[..] {
        [rows, d] if entry.name.ends_with("_embedding.weight") => {
            let deviation = (d as f64).powf(-0.5);
            let mut table: Vec<f32> = (0..rows * d).map(|_| (stream.normal() * deviation) as f32).collect();
            let padding =
                if entry.name.starts_with("source") { vocabulary.source_padding } else { vocabulary.target_padding };
            if let Some(row) = table.chunks_exact_mut(d).nth(padding as usize) {
                row.fill(0.0);
            }
            table
        }
        [out, input] => {
            let bound = (6.0 / (out + input) as f64).sqrt();
            (0..out * input).map(|_| stream.uniform(-bound, bound) as f32).collect()
        }
        _ if entry.name.ends_with("norm.weight") => vec![1.0; entry.len()],
        _ => vec![0.0; entry.len()],
    }
}
