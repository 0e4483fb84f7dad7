//! Projections: a weight and perhaps a bias, the parts that sub-layers are made of.

use candle_core::{Result, Tensor};

use super::matmul::{Packed, Precision, transposed_product};
use super::memory::with_slice;
use super::norm::add_bias;
use super::params::Param;
use super::sublayer::with_bias;

/// What a weight is packed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// x·Wᵀ outside training: always float32, so that a score does not depend on the precision of the training.
    Inference,
    /// x·Wᵀ in training.
    Forward,
    /// g·W.
    Backward,
}

impl Pass {
    /// The forward pass, in training or in inference.
    pub fn first(training: bool) -> Self {
        if training { Self::Forward } else { Self::Inference }
    }
}

/// A projection: a weight [out, D] and perhaps a bias [out].
#[derive(Clone, Debug)]
pub struct Projection {
    /// Weight, [out, in].
    pub weight: Param,
    /// Bias, [out].
    pub bias: Option<Param>,
}

impl Projection {
    /// x·Wᵀ + b in plain Candle operations, in the type that products are computed in.
    pub fn reference(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        self.plain(training)?.apply(x)
    }

    /// The projection as tensors.
    pub fn plain(&self, training: bool) -> Result<Plain> {
        Ok(Plain {
            weight: self.weight.computed(training)?.t()?,
            bias: self.bias.as_ref().map(|bias| bias.computed(training)).transpose()?,
        })
    }

    /// Width of the output.
    pub(super) fn out(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Adds the bias to rows, if there is one.
    pub(super) fn add_bias(&self, y: &mut [f32]) -> Result<()> {
        with_bias(self.bias.as_ref(), |bias| {
            if let Some(bias) = bias {
                add_bias(y, bias);
            }
            Ok(())
        })
    }

    /// Adds dW = gᵀ·x and the bias's column sums to the gradients. g: [rows, out], x: [rows, in].
    pub(super) fn add_gradients(&self, rows: usize, g: &[f32], x: &[f32], bias_sums: &[f32]) -> Result<()> {
        self.add_weight_gradient(rows, g, x)?;
        match &self.bias {
            Some(bias) => bias.add_gradient_slice(&bias_sums[..self.out()]),
            None => Ok(()),
        }
    }

    /// Adds dW = gᵀ·x to the gradients. g: [rows, out], x: [rows, in].
    pub(super) fn add_weight_gradient(&self, rows: usize, g: &[f32], x: &[f32]) -> Result<()> {
        let precision = self.weight.precision();
        self.weight.with_gradient(|dw| transposed_product(g, x, rows, dw, true, precision))
    }

    /// The weight, packed for the products of a pass.
    pub(super) fn packed(&self, pass: Pass) -> Result<Packed> {
        let (out, input) = self.weight.value().dims2()?;
        let precision = self.weight.precision();
        with_slice(self.weight.value(), |weight| {
            Ok(match pass {
                Pass::Inference => Packed::transposed(weight, out, input, Precision::F32),
                Pass::Forward => Packed::transposed(weight, out, input, precision),
                Pass::Backward => Packed::new(weight, out, input, precision),
            })
        })
    }
}

/// A projection in plain tensors.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Transposed weight, [in, out].
    weight: Tensor,
    /// [out].
    bias: Option<Tensor>,
}

impl Plain {
    /// x·Wᵀ + b. x: [N, in] of any float type.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.to_dtype(self.weight.dtype())?.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
