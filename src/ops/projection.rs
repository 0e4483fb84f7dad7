//! Projections: a weight and perhaps a bias, the parts that sub-layers are made of.

use candle_core::{Result, Tensor};

use super::matmul::{Matrix, fixed, gemm, gemm_parallel, transposed};
use super::memory::{Scratch, with_slice};
use super::norm::add_bias;
use super::params::Param;
use super::sublayer::with_bias;

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
        let (out, input) = (self.out(), self.weight.dims()[1]);
        self.weight
            .with_gradient(|dw| gemm_parallel(Matrix::new(g, rows, out).t(), Matrix::new(x, rows, input), dw, true))?;
        match &self.bias {
            Some(bias) => bias.add_gradient_slice(&bias_sums[..out]),
            None => Ok(()),
        }
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

/// A weight [out, in] as [in, out].
pub(super) fn transposed_weight(weight: &Param) -> Result<Scratch> {
    let (out, input) = weight.value().dims2()?;
    with_slice(weight.value(), |w| Ok(transposed(w, out, input)))
}

/// y = x·W for a prepared (transposed) weight, by the blocked or by the fixed-order product.
pub(super) fn product(
    x: &[f32],
    rows: usize,
    input: usize,
    weight: &[f32],
    out: usize,
    y: &mut [f32],
    fixed_order: bool,
) {
    let x = Matrix::new(x, rows, input);
    if fixed_order {
        fixed(rows, out, input, x, weight, out, y, out, false);
    } else {
        gemm(x, Matrix::new(weight, input, out), y, false);
    }
}
