//! Initial values of the parameters.

use std::f64::consts::FRAC_1_SQRT_2;

use candle_core::{Result, Tensor};

use crate::choice::choice;
use crate::model::Vocabulary;
use crate::ops::params::{Entry, Parameters};
use crate::rng::Stream;

choice! {
    /// How matrices start.
    pub enum Init {
        /// Uniform within ±√(6 / (inputs + outputs)) (Glorot and Bengio 2010). Queries, keys and values have a gain of
        /// 1/√2, which at equal widths is the draw of the one matrix [3·D, D] that they form together, as in PyTorch and
        /// fairseq; with a gain of 1 a deep post-norm model under the usual learning rates is slow to find its source.
        XavierUniform = "xavier_uniform",
    }
}

/// Fills all parameters: matrices as `init` says, embeddings N(0, D^-½) with the padding row zero, norms one, biases zero.
///
/// Every parameter has a stream of its own, named after it, so that a value depends on the seed and the name alone.
pub fn initialise(init: Init, parameters: &Parameters, vocabulary: Vocabulary, seed: u64) -> Result<()> {
    let mut values = Vec::with_capacity(parameters.values().elem_count());
    for entry in parameters.entries() {
        values.extend(initial(init, entry, vocabulary, seed));
    }
    parameters.values().slice_set(&Tensor::from_vec(values, parameters.values().shape(), parameters.device())?, 0, 0)
}

fn initial(init: Init, entry: &Entry, vocabulary: Vocabulary, seed: u64) -> Vec<f32> {
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
            let Init::XavierUniform = init;
            let gain = if is_input_projection(&entry.name) { FRAC_1_SQRT_2 } else { 1.0 };
            let bound = gain * (6.0 / (out + input) as f64).sqrt();
            (0..out * input).map(|_| stream.uniform(-bound, bound) as f32).collect()
        }
        _ if entry.name.ends_with("norm.weight") => vec![1.0; entry.len()],
        _ => vec![0.0; entry.len()],
    }
}

/// Whether it projects the input of an attention to queries, keys or values.
fn is_input_projection(name: &str) -> bool {
    [".q_proj.", ".k_proj.", ".v_proj."].iter().any(|projection| name.contains(projection))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::config::ModelConfig;
    use crate::model::Transformer;

    #[test]
    fn draws_have_their_bounds() {
        let vocabulary = Vocabulary { source: 50, target: 50, source_padding: 0, target_padding: 0 };
        let model = Transformer::new(&ModelConfig::default(), vocabulary, &Device::Cpu).unwrap();
        model.initialise(1).unwrap();
        let largest = |name: &str| {
            let parameter = model.parameters().entries().iter().find(|e| e.name == name).unwrap();
            initial(Init::XavierUniform, parameter, vocabulary, 1).iter().fold(0f32, |m, v| m.max(v.abs()))
        };
        // d_model 512, d_ff 2048; thousands of draws come within a thousandth of the bound.
        for (name, bound) in [
            ("encoder.layers.0.self_attn.q_proj.weight", (6.0f32 / 2048.0).sqrt()),
            ("decoder.layers.5.cross_attn.v_proj.weight", (6.0f32 / 2048.0).sqrt()),
            ("encoder.layers.0.self_attn.out_proj.weight", (6.0f32 / 1024.0).sqrt()),
            ("encoder.layers.0.feed_forward.fc1.weight", (6.0f32 / 2560.0).sqrt()),
        ] {
            let largest = largest(name);
            assert!(largest <= bound && largest > 0.999 * bound, "{name}: {largest} for {bound}");
        }
    }
}
