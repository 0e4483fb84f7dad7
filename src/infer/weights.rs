//! The weights of an engine, packed.

use std::borrow::Cow;

use super::{Norm, Sharing};
use crate::choice::choice;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::ops::matmul::int8::{Int8, Quantised};
use crate::ops::matmul::{self, Packed};
use crate::ops::memory::on_host;
use crate::ops::norm::add_bias;

/// A parameter's values by its name.
pub type Lookup<'a> = dyn Fn(&str) -> Result<Cow<'a, [f32]>> + 'a;

/// The parameters of a model.
pub fn of_model(model: &Transformer) -> impl Fn(&str) -> Result<Cow<'static, [f32]>> + use<> {
    let parameters = model.parameters().clone();
    move |name| {
        let entry = parameters.entry(name).ok_or_else(|| Error::failure(format!("the model has no {name}")))?;
        let values = on_host(parameters.values(), |values| Ok(values[entry.range()].to_vec()))?;
        Ok(Cow::Owned(values))
    }
}

choice! {
    /// The type that operands of products are rounded to.
    pub enum Precision {
        /// float32.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit integers, but for embeddings, norms and attention.
        Int8 = "int8",
    }
}

/// A weight, packed.
#[derive(Debug)]
enum Weight {
    Float(Packed),
    Int8(Int8),
}

/// y = x·Wᵀ + b.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Weight,
    /// [out], or empty.
    pub(super) bias: Vec<f32>,
}

impl Linear {
    /// Weights [out, in] one below the other, and their biases.
    pub(super) fn new(
        parameters: &Lookup<'_>,
        weights: &[impl AsRef<str>],
        biases: &[impl AsRef<str>],
        input: usize,
        precision: Precision,
    ) -> Result<Self> {
        let joined = |names: &[&str]| -> Result<Cow<'_, [f32]>> {
            match names {
                [name] => parameters(name),
                names => {
                    let parts = names.iter().map(|name| parameters(name)).collect::<Result<Vec<_>>>()?;
                    Ok(Cow::Owned(parts.concat()))
                }
            }
        };
        let weights: Vec<&str> = weights.iter().map(AsRef::as_ref).collect();
        let biases: Vec<&str> = biases.iter().map(AsRef::as_ref).collect();
        let weight = joined(&weights)?;
        let float = |precision| Packed::transposed(&weight, weight.len() / input, input, precision);
        let weight = match precision {
            Precision::F32 => Weight::Float(float(matmul::Precision::F32)),
            Precision::Bf16 => Weight::Float(float(matmul::Precision::Bf16)),
            Precision::Int8 => Weight::Int8(Int8::new(&Quantised::new(&weight, input), input)),
        };
        Ok(Self { weight, bias: joined(&biases)?.into_owned() })
    }

    /// Width of the output.
    pub(super) fn width(&self) -> usize {
        match &self.weight {
            Weight::Float(weight) => weight.columns(),
            Weight::Int8(weight) => weight.columns(),
        }
    }

    /// y = x·Wᵀ. x: [rows, in], y: [rows, out].
    pub(super) fn product(&self, x: &[f32], y: &mut [f32], sharing: Sharing) {
        /// Elements of a weight below which calling other threads costs more than it saves.
        const FEWEST: usize = 1 << 17;
        let rows = y.len() / self.width();
        let shared = sharing == Sharing::Columns && rows > 0 && x.len() / rows * self.width() >= FEWEST;
        match &self.weight {
            Weight::Float(weight) if shared => weight.product_by_columns(x, y),
            Weight::Float(weight) => weight.product(x, y, false),
            Weight::Int8(weight) if shared => weight.product_by_columns(x, y),
            Weight::Int8(weight) => weight.product(x, y),
        }
    }

    /// y = x·Wᵀ + b.
    pub(super) fn apply(&self, x: &[f32], y: &mut [f32], sharing: Sharing) {
        self.product(x, y, sharing);
        if !self.bias.is_empty() {
            add_bias(y, &self.bias);
        }
    }
}

impl Norm {
    pub(super) fn new(config: &ModelConfig, parameters: &Lookup<'_>, name: &str) -> Result<Self> {
        let (gamma, beta) = (parameters(&format!("{name}.weight"))?, parameters(&format!("{name}.bias"))?);
        Ok(Self { both: [gamma, beta].concat(), eps: config.norm_eps as f32, kind: config.norm_kind })
    }
}

#[derive(Debug)]
pub(super) struct SelfAttention {
    /// Queries, keys and values side by side.
    pub(super) query_key_value: Linear,
    pub(super) output: Linear,
    pub(super) norm: Norm,
}

#[derive(Debug)]
pub(super) struct CrossAttention {
    pub(super) query: Linear,
    /// Keys and values side by side.
    pub(super) key_value: Linear,
    pub(super) output: Linear,
    pub(super) norm: Norm,
}

#[derive(Debug)]
pub(super) struct FeedForward {
    pub(super) fc1: Linear,
    pub(super) fc2: Linear,
    pub(super) norm: Norm,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention: SelfAttention,
    /// In decoders.
    pub(super) cross: Option<CrossAttention>,
    pub(super) feed_forward: FeedForward,
}

impl Layer {
    pub(super) fn new(
        config: &ModelConfig,
        parameters: &Lookup<'_>,
        name: &str,
        cross: bool,
        precision: Precision,
    ) -> Result<Self> {
        let projection = |attention: &str, parts: &[&str], input: usize| {
            let weights: Vec<String> = parts.iter().map(|part| format!("{name}.{attention}.{part}.weight")).collect();
            let biases = parts.iter().map(|part| format!("{name}.{attention}.{part}.bias"));
            let biases: Vec<String> = biases.filter(|_| config.attention_bias).collect();
            Linear::new(parameters, &weights, &biases, input, precision)
        };
        let norm = |sublayer: &str| Norm::new(config, parameters, &format!("{name}.{sublayer}_norm"));
        let (d, values) = (config.d_model, config.heads * config.d_v);
        let dense = |part: &str, input: usize| {
            let part = format!("{name}.feed_forward.{part}");
            Linear::new(parameters, &[format!("{part}.weight")], &[format!("{part}.bias")], input, precision)
        };
        Ok(Self {
            attention: SelfAttention {
                query_key_value: projection("self_attn", &["q_proj", "k_proj", "v_proj"], d)?,
                output: projection("self_attn", &["out_proj"], values)?,
                norm: norm("self_attn")?,
            },
            cross: cross
                .then(|| {
                    Ok::<_, Error>(CrossAttention {
                        query: projection("cross_attn", &["q_proj"], d)?,
                        key_value: projection("cross_attn", &["k_proj", "v_proj"], d)?,
                        output: projection("cross_attn", &["out_proj"], values)?,
                        norm: norm("cross_attn")?,
                    })
                })
                .transpose()?,
            feed_forward: FeedForward {
                fc1: dense("fc1", d)?,
                fc2: dense("fc2", config.d_ff)?,
                norm: norm("feed_forward")?,
            },
        })
    }
}
