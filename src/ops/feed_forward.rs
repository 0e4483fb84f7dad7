//! The feed-forward sub-layer: activation(x·W₁ᵀ + b₁)·W₂ᵀ + b₂, with dropout on the hidden layer.

use candle_core::{Result, Tensor};

use super::dropout::Dropout;
use super::matmul::Packed;
use super::params::Param;
use super::profile::{self, Work};
use super::projection::{Pass, Projection};
use super::simd::{self, vectorised};
use super::sublayer::{BackwardBlock, ForwardBlock, Inner, WholeBatch, Widths, with_bias};
use crate::choice::choice;

macro_rules! with_activation {
    ($activation:expr, $f:ident($($arg:expr),*)) => {
        match $activation {
            Activation::Relu => $f::<0>($($arg),*),
            Activation::Gelu => $f::<1>($($arg),*),
            Activation::Swish => $f::<2>($($arg),*),
        }
    };
}

choice! {
    /// The non-linearity between the two projections.
    pub enum Activation {
        /// max(0, x).
        Relu = "relu",
        /// x·Φ(x) with the normal distribution's Φ (Hendrycks and Gimpel 2016), exact as in PyTorch, fairseq and
        /// Hugging Face; not the approximation by tanh.
        Gelu = "gelu",
        /// x·σ(x).
        Swish = "swish",
    }
}

impl Activation {
    /// In plain Candle operations.
    pub fn reference(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu_erf(),
            Self::Swish => x.silu(),
        }
    }

    /// In place on a slice (decoding).
    pub fn apply(self, x: &mut [f32]) {
        with_activation!(self, activate_in_place(x));
    }

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        match self {
            Self::Relu => relu(x),
            Self::Gelu => x * simd::normal(x),
            Self::Swish => x / (1.0 + simd::exp(-x)),
        }
    }

    /// Derivative at the input x.
    #[inline(always)]
    fn derivative(self, x: f32) -> f32 {
        match self {
            Self::Relu => {
                if x <= 0.0 {
                    0.0
                } else {
                    1.0
                }
            }
            Self::Gelu => (INVERSE_ROOT_2_PI * x).mul_add(simd::exp(-0.5 * x * x), simd::normal(x)),
            Self::Swish => {
                let s = 1.0 / (1.0 + simd::exp(-x));
                s * (1.0 + x * (1.0 - s))
            }
        }
    }
}

/// max(0, x), but NaN stays NaN, as in PyTorch: it must reach the loss, or divergence would pass unseen.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// 1/√(2π).
const INVERSE_ROOT_2_PI: f32 = 0.398_942_3;

/// The feed-forward sub-layer.
#[derive(Clone, Debug)]
pub struct FeedForward {
    /// First projection, [F, D].
    pub fc1: Projection,
    /// Second projection, [D, F].
    pub fc2: Projection,
    /// The activation.
    pub activation: Activation,
    /// Dropout on the hidden layer.
    pub dropout: Dropout,
}

/// The activation with this number, as a const argument: loops are compiled for each activation.
#[inline(always)]
const fn activation_of(number: u8) -> Activation {
    match number {
        0 => Activation::Relu,
        1 => Activation::Gelu,
        2 => Activation::Swish,
        _ => panic!("no activation has this number"),
    }
}

vectorised! {
    fn activate_in_place<const KIND: u8>(x: &mut [f32]) {
        let activation = const { activation_of(KIND) };
        for v in x.iter_mut() {
            *v = activation.value(*v);
        }
    }

    /// Adds the bias to the pre-activations `u`, in place, and writes the activated and dropped values to `a`.
    fn activate<const KIND: u8>(
        u: &mut [f32], a: &mut [f32], bias: Option<&[f32]>, width: usize, dropout: Dropout, first_row: usize,
    ) {
        let activation = const { activation_of(KIND) };
        for (row, (u, a)) in u.chunks_exact_mut(width).zip(a.chunks_exact_mut(width)).enumerate() {
            if let Some(bias) = bias {
                for j in 0..width {
                    u[j] += bias[j];
                }
            }
            if dropout.is_on() {
                let base = (first_row + row) * width;
                for j in 0..width {
                    a[j] = activation.value(u[j]) * dropout.factor(base + j);
                }
            } else {
                for j in 0..width {
                    a[j] = activation.value(u[j]);
                }
            }
        }
    }

    /// x = dropout(relu(x + bias)).
    fn relu_in_place(x: &mut [f32], bias: Option<&[f32]>, width: usize, dropout: Dropout, first_row: usize) {
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            if let Some(bias) = bias {
                for j in 0..width {
                    x[j] += bias[j];
                }
            }
            if dropout.is_on() {
                let base = (first_row + row) * width;
                for j in 0..width {
                    x[j] = relu(x[j]) * dropout.factor(base + j);
                }
            } else {
                for j in 0..width {
                    x[j] = relu(x[j]);
                }
            }
        }
    }

    /// As [`activate_backward`], from the hidden layer after relu and dropout: where that is 0, so is the gradient.
    fn relu_backward(a: &[f32], g: &mut [f32], width: usize, scale: f32, sums: &mut [f32]) {
        let sums = &mut sums[..width];
        for (a, g) in a.chunks_exact(width).zip(g.chunks_exact_mut(width)) {
            for j in 0..width {
                g[j] = if a[j] <= 0.0 { 0.0 } else { g[j] * scale };
                sums[j] += g[j];
            }
        }
    }

    /// Turns the gradient of the hidden layer into that of the pre-activations, in place, and adds its column sums.
    fn activate_backward<const KIND: u8>(
        u: &[f32], g: &mut [f32], width: usize, dropout: Dropout, first_row: usize, sums: &mut [f32],
    ) {
        let activation = const { activation_of(KIND) };
        let sums = &mut sums[..width];
        for (row, (u, g)) in u.chunks_exact(width).zip(g.chunks_exact_mut(width)).enumerate() {
            if dropout.is_on() {
                let base = (first_row + row) * width;
                for j in 0..width {
                    g[j] *= dropout.factor(base + j);
                }
            }
            for j in 0..width {
                g[j] *= activation.derivative(u[j]);
                sums[j] += g[j];
            }
        }
    }
}

impl FeedForward {
    fn hidden(&self) -> usize {
        self.fc1.weight.dims()[0]
    }
}

impl Inner for FeedForward {
    /// Both weights.
    type Prepared = [Packed; 2];

    fn name(&self) -> &'static str {
        "feed-forward"
    }

    fn lengths(&self) -> (usize, usize) {
        (1, 0)
    }

    fn widths(&self) -> Widths {
        let hidden = self.hidden();
        // With relu, the hidden layer itself shows where its input was positive.
        let before = if self.activation == Activation::Relu { 0 } else { hidden };
        Widths { saved: [before, hidden], memory_saved: 0, inner: hidden, sums: hidden }
    }

    fn first_parameter(&self) -> &Param {
        &self.fc1.weight
    }

    fn output_bias(&self) -> Option<&Param> {
        self.fc2.bias.as_ref()
    }

    fn prepare(&self, pass: Pass) -> Result<Self::Prepared> {
        Ok([self.fc1.packed(pass)?, self.fc2.packed(pass)?])
    }

    fn forward(&self, [fc1, fc2]: &Self::Prepared, block: ForwardBlock, h: &mut [f32]) -> Result<()> {
        let f = self.hidden();
        let [u, a] = block.saved;
        let (relu, first_row) = (self.activation == Activation::Relu, block.sentences.start);
        fc1.product(block.input, if relu { &mut *a } else { &mut *u }, false);
        with_bias(self.fc1.bias.as_ref(), |bias| {
            let _timer = profile::kernel("activation", "forward", Work::floats(2 * a.len() + u.len()));
            if relu {
                relu_in_place(a, bias, f, self.dropout, first_row);
                return Ok(());
            }
            with_activation!(self.activation, activate(u, a, bias, f, self.dropout, first_row));
            Ok(())
        })?;
        fc2.product(a, h, false);
        Ok(())
    }

    fn backward(&self, [fc1, fc2]: &Self::Prepared, block: BackwardBlock) -> Result<()> {
        let f = self.hidden();
        fc2.product(block.dh, block.dinner, false);
        let first_row = block.sentences.start;
        let timer = profile::kernel("activation", "backward", Work::floats(3 * block.dinner.len()));
        match self.activation {
            Activation::Relu => relu_backward(block.saved[1], block.dinner, f, self.dropout.scale(), block.sums),
            activation => with_activation!(
                activation,
                activate_backward(block.saved[0], block.dinner, f, self.dropout, first_row, block.sums)
            ),
        }
        drop(timer);
        fc1.product(block.dinner, block.dinput, true);
        Ok(())
    }

    fn weight_gradients(&self, batch: &WholeBatch) -> Result<()> {
        self.fc2.add_weight_gradient(batch.rows, batch.dh, batch.saved[1])?;
        self.fc1.add_gradients(batch.rows, batch.dinner, batch.input, batch.sums)
    }

    fn reference(&self, x: &Tensor, _: Option<&Tensor>, training: bool) -> Result<Tensor> {
        let hidden = self.activation.reference(&self.fc1.reference(x, training)?)?;
        self.fc2.reference(&self.dropout.apply(&hidden)?, training)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relu_passes_on_what_is_not_a_number() {
        let inputs = [-2.0, -0.0, 0.0, 3.0, f32::NAN];
        let is_right = |y: &[f32], scale: f32| y[..4] == [0.0, 0.0, 0.0, 3.0 * scale] && y[4].is_nan();
        let mut y = inputs;
        Activation::Relu.apply(&mut y);
        assert!(is_right(&y, 1.0), "{y:?}");
        let mut y = inputs;
        relu_in_place(&mut y, Some(&[0.0; 5]), 5, Dropout::OFF, 0);
        assert!(is_right(&y, 1.0), "{y:?}");
        // So small a probability that nothing of so few is dropped.
        let dropout = Dropout::new(1e-9, 1);
        let mut y = inputs;
        relu_in_place(&mut y, None, 5, dropout, 0);
        assert!(dropout.is_on() && is_right(&y, dropout.scale()), "{y:?}");
        let (mut g, mut sums) = ([1.0, 1.0, 1.0, 1.0, f32::NAN], [0.0; 5]);
        relu_backward(&y, &mut g, 5, 2.0, &mut sums);
        assert!(g[..4] == [0.0, 0.0, 0.0, 2.0] && g[4].is_nan() && sums[4].is_nan(), "{g:?}");
    }
}
