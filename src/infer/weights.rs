//! The weights of an engine, packed.

use super::{Norm, Sharing};
use crate::choice::choice;
use crate::error::{Error, Result};
use crate::model::{ModelConfig, Transformer};
use crate::ops::matmul::int8::{self, Int8, Quantised, Values};
use crate::ops::matmul::{self, Packed};
use crate::ops::memory::on_host;
use crate::ops::norm::add_bias;

/// A parameter's values by its name.
pub type Lookup<'a> = dyn Fn(&str) -> Result<Values> + 'a;

/// A lookup of a model's parameters by name.
pub fn model_values(model: &Transformer) -> impl Fn(&str) -> Result<Values> + use<> {
    let parameters = model.parameters().clone();
    move |name| {
        let entry = parameters.entry(name).ok_or_else(|| Error::failure(format!("the model has no {name}")))?;
        Ok(Values::F32(on_host(parameters.values(), |values| Ok(values[entry.range()].to_vec()))?))
    }
}

choice! {
    /// `--precision`: the type that operands of products are rounded to when the processor translates. For training and
    /// devices: [`matmul::Precision`].
    pub enum ComputeType {
        /// float32.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit integers, except in norms and attention.
        Int8 = "int8",
    }
}

impl ComputeType {
    /// The fastest on this machine.
    pub fn fastest() -> Self {
        if int8::is_native() { Self::Int8 } else { Self::F32 }
    }
}

/// A weight [out, in], packed.
#[derive(Debug)]
pub(super) enum Weight {
    Float(Packed),
    Int8(Int8),
}

/// The lists one after the other; a single list is not copied.
fn joined<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    lists
        .into_iter()
        .reduce(|mut all, list| {
            all.extend(list);
            all
        })
        .unwrap_or_default()
}

impl Weight {
    /// Matrices with rows of `input` numbers, one below the other.
    pub(super) fn new(
        parameters: &Lookup<'_>,
        names: &[impl AsRef<str>],
        input: usize,
        precision: ComputeType,
    ) -> Result<Self> {
        let parts = names.iter().map(|name| parameters(name.as_ref())).collect::<Result<Vec<_>>>()?;
        let precision = match precision {
            ComputeType::F32 => matmul::Precision::F32,
            ComputeType::Bf16 => matmul::Precision::Bf16,
            ComputeType::Int8 => {
                let parts = parts.into_iter().map(|part| part.integers(input));
                let (values, scales) = parts.map(|Quantised { values, scales }| (values, scales)).unzip();
                let whole = Quantised { values: joined(values), scales: joined(scales) };
                return Int8::new(&whole, input).map(Self::Int8);
            }
        };
        let whole = joined(parts.into_iter().map(Values::floats).collect());
        Ok(Self::Float(Packed::transposed(&whole, whole.len() / input, input, precision)))
    }

    /// Row `i` of the weight: in an embedding, the row of token `i`. out: [in].
    pub(super) fn row(&self, i: usize, out: &mut [f32]) {
        match self {
            Self::Float(weight) => weight.column(i, out),
            Self::Int8(weight) => weight.column(i, out),
        }
    }
}

/// y = x·Wᵀ + b.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) weight: Weight,
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
        precision: ComputeType,
    ) -> Result<Self> {
        let biases = biases.iter().map(|name| parameters(name.as_ref()).map(Values::floats)).collect::<Result<_>>()?;
        Ok(Self { weight: Weight::new(parameters, weights, input, precision)?, bias: joined(biases) })
    }

    /// Width of the output.
    pub(super) fn width(&self) -> usize {
        match &self.weight {
            Weight::Float(weight) => weight.columns(),
            Weight::Int8(weight) => weight.columns(),
        }
    }

    /// The layer with only some of the outputs.
    pub(super) fn subset(&self, outputs: &[u32]) -> Self {
        let weight = match &self.weight {
            Weight::Float(weight) => Weight::Float(weight.subset(outputs)),
            Weight::Int8(weight) => Weight::Int8(weight.subset(outputs)),
        };
        let bias =
            if self.bias.is_empty() { Vec::new() } else { outputs.iter().map(|&i| self.bias[i as usize]).collect() };
        Self { weight, bias }
    }

    /// y = x·Wᵀ. x: [rows, in], y: [rows, out].
    pub(super) fn product(&self, x: &[f32], y: &mut [f32], sharing: Sharing) {
        /// Elements of a weight below which calling other threads costs more than it saves.
        const FEWEST_ELEMENTS: usize = 1 << 17;
        if y.is_empty() {
            return;
        }
        let rows = y.len() / self.width();
        let shared = sharing == Sharing::Columns && x.len() / rows * self.width() >= FEWEST_ELEMENTS;
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
        let parts = ["weight", "bias"].into_iter().take(config.norm_kind.parameters());
        let parts = parts.map(|part| parameters(&format!("{name}.{part}")).map(Values::floats));
        Ok(Self {
            parameters: joined(parts.collect::<Result<_>>()?),
            eps: config.norm_eps as f32,
            kind: config.norm_kind,
        })
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
        precision: ComputeType,
    ) -> Result<Self> {
        let projection = |attention: &str, parts: &[&str], input: usize| {
            let weights: Vec<String> = parts.iter().map(|part| format!("{name}.{attention}.{part}.weight")).collect();
            let biases = parts.iter().map(|part| format!("{name}.{attention}.{part}.bias"));
            let biases: Vec<String> = biases.filter(|_| config.attention_bias).collect();
            Linear::new(parameters, &weights, &biases, input, precision)
        };
        let norm = |sublayer: &str| Norm::new(config, parameters, &format!("{name}.{sublayer}_norm"));
        let (d, values) = (config.d_model, config.heads * config.d_v);
        let dense = |parts: &[&str], input: usize| {
            let names = |what: &str| parts.iter().map(|part| format!("{name}.feed_forward.{part}.{what}")).collect();
            let (weights, biases): (Vec<String>, Vec<String>) = (names("weight"), names("bias"));
            let biases = if config.feed_forward_bias { &biases[..] } else { &[] };
            Linear::new(parameters, &weights, biases, input, precision)
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
                fc1: dense(&["fc1", "fc3"][..config.hidden_inputs()], d)?,
                fc2: dense(&["fc2"], config.d_ff)?,
                norm: norm("feed_forward")?,
            },
        })
    }
}
