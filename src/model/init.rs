//! Initial values of the parameters.

use std::f64::consts::FRAC_1_SQRT_2;

use candle_core::{Result, Tensor};

use crate::choice::choice;
use crate::model::{ModelConfig, Vocabulary};
use crate::ops::params::{Entry, Parameters};
use crate::rng::Stream;

choice! {
    /// How matrices start. Biases start at zero and norms at one, unless said otherwise.
    pub enum Init {
        /// Uniform within ±√(6 / (inputs + outputs)) (Glorot and Bengio 2010). Queries, keys and values have a gain of
        /// 1/√2: at equal widths, the same as drawing them together as one matrix [3·D, D], as PyTorch and fairseq do.
        /// With a gain of 1, a deep post-norm model at the usual learning rates is slow to learn to use its source.
        /// Embeddings: N(0, 1/D), the padding row zero.
        XavierUniform = "xavier_uniform",
        /// Uniform within ±√(6 / (inputs + outputs)), queries, keys and values each on their own. Embeddings: N(0,
        /// 1/D), the padding row zero.
        Tensor2Tensor = "tensor2tensor",
        /// Uniform within ±√(6 / (inputs + outputs)) for every matrix, embeddings and their padding row included, as
        /// in hand-written models that draw every two-dimensional parameter this way.
        XavierUniformAll = "xavier_uniform_all",
        /// N(0, 2 / (inputs + outputs)) for matrices. Embeddings: N(0, 1/D), the padding row zero.
        XavierNormal = "xavier_normal",
        /// N(0, 0.02²) for matrices and embeddings, the padding row zero, as in BERT and GPT-2.
        Normal = "normal",
        /// What `nn.Linear` and `nn.Embedding` of PyTorch draw by themselves: matrices and biases uniform within
        /// ±1/√inputs, embeddings N(0, 1), the padding row zero.
        Torch = "torch",
    }
}

/// The bias of padding in a model that leaves it out of the softmax: so low that padding has no share of any
/// probability, whatever the decoder's state, and still within the range of float16. Not -∞: files and sums of weights
/// must stay finite.
pub const LEFT_OUT_BIAS: f32 = -1e4;

/// What a parameter's elements are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Draw {
    Constant(f64),
    /// Within ± this.
    Uniform(f64),
    /// With this standard deviation.
    Normal(f64),
}

/// Fills all parameters as the configuration says. Tables of relative positions [buckets, H] are drawn as embeddings of
/// H numbers are.
///
/// Every parameter has its own random stream, named after it, so that a value depends only on the seed and the name.
pub fn initialise(config: &ModelConfig, parameters: &Parameters, vocabulary: Vocabulary, seed: u64) -> Result<()> {
    let mut values = Vec::with_capacity(parameters.values().elem_count());
    for entry in parameters.entries() {
        let mut drawn = initial(config.init, entry, parameters, vocabulary, seed);
        if entry.name == "output_projection.bias" {
            let bias = config.left_out(vocabulary.target_padding).and_then(|token| drawn.get_mut(token as usize));
            bias.into_iter().for_each(|bias| *bias = LEFT_OUT_BIAS);
        }
        values.extend(drawn);
    }
    parameters.values().slice_set(&Tensor::from_vec(values, parameters.values().shape(), parameters.device())?, 0, 0)
}

fn initial(init: Init, entry: &Entry, parameters: &Parameters, vocabulary: Vocabulary, seed: u64) -> Vec<f32> {
    let mut stream = Stream::new(seed, &format!("init.{}", entry.name));
    let mut values: Vec<f32> = match draw(init, entry, parameters) {
        Draw::Constant(value) => vec![value as f32; entry.len()],
        Draw::Uniform(bound) => (0..entry.len()).map(|_| stream.uniform(-bound, bound) as f32).collect(),
        Draw::Normal(deviation) => (0..entry.len()).map(|_| (stream.normal() * deviation) as f32).collect(),
    };
    if init != Init::XavierUniformAll && entry.name.ends_with("_embedding.weight") {
        let source = entry.name.starts_with("source");
        let padding = if source { vocabulary.source_padding } else { vocabulary.target_padding };
        if let Some(row) = values.chunks_exact_mut(entry.shape[1]).nth(padding as usize) {
            row.fill(0.0);
        }
    }
    values
}

fn draw(init: Init, entry: &Entry, parameters: &Parameters) -> Draw {
    let [out, input] = match entry.shape[..] {
        [out, input] => [out as f64, input as f64],
        _ if entry.name.ends_with("norm.weight") => return Draw::Constant(1.0),
        _ => {
            return match (init, weight_of(entry, parameters).map(|weight| &weight.shape[..])) {
                // PyTorch draws a bias according to the input width of its weight.
                (Init::Torch, Some([_, input])) => Draw::Uniform((*input as f64).powf(-0.5)),
                _ => Draw::Constant(0.0),
            };
        }
    };
    let table = entry.name.ends_with("_embedding.weight") || entry.name.ends_with("positions.weight");
    let xavier = (6.0 / (out + input)).sqrt();
    match init {
        Init::XavierUniformAll => Draw::Uniform(xavier),
        Init::Normal => Draw::Normal(0.02),
        Init::Torch if table => Draw::Normal(1.0),
        Init::Torch => Draw::Uniform(input.powf(-0.5)),
        _ if table => Draw::Normal(input.powf(-0.5)),
        Init::XavierUniform if is_input_projection(&entry.name) => Draw::Uniform(FRAC_1_SQRT_2 * xavier),
        Init::XavierUniform | Init::Tensor2Tensor => Draw::Uniform(xavier),
        Init::XavierNormal => Draw::Normal((2.0 / (out + input)).sqrt()),
    }
}

/// The matrix that a bias belongs to: that of its module, or an embedding that is also the output projection. `None`
/// for a norm's bias.
fn weight_of<'p>(bias: &Entry, parameters: &'p Parameters) -> Option<&'p Entry> {
    let module = bias.name.strip_suffix(".bias")?;
    let own = parameters.entry(&format!("{module}.weight"));
    let tables = ["target_embedding.weight", "source_embedding.weight"];
    let tied = || tables.into_iter().find_map(|table| parameters.entry(table));
    own.or_else(|| (module == "output_projection").then(tied).flatten())
}

/// Whether it projects the input of an attention to queries, keys or values.
fn is_input_projection(name: &str) -> bool {
    [".q_proj.", ".k_proj.", ".v_proj."].iter().any(|projection| name.contains(projection))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::model::Transformer;
    use crate::model::layout::Tie;

    #[test]
    fn draws_have_their_bounds() {
        let vocabulary = Vocabulary { source: 50, target: 50, source_padding: 0, target_padding: 0 };
        let model = Transformer::new(&ModelConfig::default(), vocabulary, &Device::Cpu).unwrap();
        model.initialise(1).unwrap();
        let largest = |name: &str| {
            let parameter = model.parameters().entries().iter().find(|e| e.name == name).unwrap();
            initial(Init::XavierUniform, parameter, model.parameters(), vocabulary, 1)
                .iter()
                .fold(0f32, |m, v| m.max(v.abs()))
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

    #[test]
    fn every_init_draws_what_it_says() {
        let vocabulary = Vocabulary { source: 300, target: 300, source_padding: 3, target_padding: 3 };
        let d = 64f64;
        let uniform = |bound: f64| bound / 3f64.sqrt();
        let xavier = |sum: f64| (2.0 / sum).sqrt();
        for (init, embedding, q, fc1, bias) in [
            (Init::XavierUniform, d.powf(-0.5), FRAC_1_SQRT_2 * xavier(2.0 * d), xavier(d + 256.0), 0.0),
            (Init::Tensor2Tensor, d.powf(-0.5), xavier(2.0 * d), xavier(d + 256.0), 0.0),
            (Init::XavierUniformAll, xavier(300.0 + d), xavier(2.0 * d), xavier(d + 256.0), 0.0),
            (Init::XavierNormal, d.powf(-0.5), xavier(2.0 * d), xavier(d + 256.0), 0.0),
            (Init::Normal, 0.02, 0.02, 0.02, 0.0),
            (Init::Torch, 1.0, uniform(d.powf(-0.5)), uniform(d.powf(-0.5)), uniform(d.powf(-0.5))),
        ] {
            let config = ModelConfig { d_model: 64, d_ff: 256, d_k: 8, d_v: 8, init, ..ModelConfig::default() };
            let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
            let drawn =
                |name: &str| initial(init, model.parameters().entry(name).unwrap(), model.parameters(), vocabulary, 1);
            // Relative deviation of the standard deviation: six standard errors of the 256 to 19,200 values there are.
            let near = |name: &str, want: f64| {
                let values = drawn(name);
                let got = (values.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
                let bound = 6.0 / (2.0 * values.len() as f64).sqrt() + 1.0 / 300.0;
                assert!((got - want).abs() <= bound * want, "{init} {name}: {got}, not {want}");
            };
            near("source_embedding.weight", embedding);
            near("encoder.layers.0.self_attn.q_proj.weight", q);
            near("encoder.layers.0.feed_forward.fc1.weight", fc1);
            near("encoder.layers.0.feed_forward.fc1.bias", bias);
            near("encoder.layers.0.feed_forward_norm.weight", 1.0);
            near("encoder.layers.0.feed_forward_norm.bias", 0.0);
            let padding = &drawn("source_embedding.weight")[3 * 64..4 * 64];
            assert_eq!(padding.iter().all(|v| *v == 0.0), init != Init::XavierUniformAll);
        }
    }

    /// PyTorch draws it with its `nn.Linear`, whose matrix is replaced by the embedding afterwards.
    #[test]
    fn the_bias_of_a_tied_output_is_drawn_like_that_of_its_own() {
        let vocabulary = Vocabulary { source: 300, target: 300, source_padding: 3, target_padding: 3 };
        let drawn = |init, tie| {
            let config =
                ModelConfig { d_model: 64, d_k: 8, d_v: 8, output_bias: true, init, tie, ..ModelConfig::default() };
            let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
            let parameters = model.parameters();
            initial(init, parameters.entry("output_projection.bias").unwrap(), parameters, vocabulary, 1)
        };
        for tie in [Tie::Decoder, Tie::All] {
            assert_eq!(drawn(Init::Torch, tie), drawn(Init::Torch, Tie::None));
            assert!(drawn(Init::XavierUniform, tie).iter().all(|bias| *bias == 0.0));
        }
        let largest = drawn(Init::Torch, Tie::All).iter().fold(0f32, |most, bias| most.max(bias.abs()));
        assert!((0.11..=0.125).contains(&largest), "{largest}");
    }
}
