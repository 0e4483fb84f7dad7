//! The feed-forward sub-layer: activation(x·W₁ᵀ + b₁)·W₂ᵀ + b₂, with dropout on the hidden layer.
//!
//! If it is gated, the hidden layer is activation(x·W₁ᵀ + b₁) ⊙ (x·W₃ᵀ + b₃) (Shazeer 2020, "GLU Variants Improve
//! Transformer"). Both products are one, since W₁ and W₃ are neighbours.

use candle_core::{D, Result, Tensor};

use super::dropout::Dropout;
use super::matmul::Packed;
use super::memory::Scratch;
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
            Activation::GeluTanh => $f::<3>($($arg),*),
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
        /// The approximation of "gelu" by tanh, x·½(1 + tanh(√(2/π)·(x + 0.044715·x³))), as in T5 1.1.
        GeluTanh = "gelu_tanh",
    }
}

impl Activation {
    /// In plain Candle operations.
    pub fn reference(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => x.relu(),
            Self::Gelu => x.gelu_erf(),
            Self::Swish => x.silu(),
            Self::GeluTanh => x.gelu(),
        }
    }

    /// The hidden layer of the first projection's output, in plain Candle operations.
    pub fn hidden(self, x: &Tensor, gated: bool) -> Result<Tensor> {
        if !gated {
            return self.reference(x);
        }
        let halves = x.chunk(2, D::Minus1)?;
        self.reference(&halves[0].contiguous()?)? * &halves[1]
    }

    /// In place on a slice (decoding).
    pub fn apply(self, x: &mut [f32]) {
        with_activation!(self, activate_in_place(x));
    }

    /// In place on rows of twice `width` numbers: the first half, activated, times the second (decoding). The rows of
    /// `width` numbers lie at the beginning, one after the other.
    pub fn apply_gate(self, x: &mut [f32], width: usize) {
        with_activation!(self, gate_in_place(x, width));
    }

    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        match self {
            Self::Relu => relu(x),
            Self::Gelu => x * simd::normal(x),
            Self::Swish => x / (1.0 + simd::exp(-x)),
            Self::GeluTanh => x * sigmoid(twice_inner(x)),
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
            Self::GeluTanh => {
                let s = sigmoid(twice_inner(x));
                let slope = (3.0 * CUBIC * x).mul_add(x, 1.0) * 2.0 * ROOT_2_OVER_PI;
                s * (1.0 + x * (1.0 - s) * slope)
            }
        }
    }
}

/// 1/(1 + e^-x).
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + simd::exp(-x))
}

/// √(2/π), and the factor of x³ in the approximation of the normal distribution.
const ROOT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// 2·√(2/π)·(x + 0.044715·x³); ½(1 + tanh y) = σ(2y).
#[inline(always)]
fn twice_inner(x: f32) -> f32 {
    2.0 * ROOT_2_OVER_PI * (CUBIC * x * x).mul_add(x, x)
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
    /// First projection, [F, D]; if gated, with the third one below, [2·F, D].
    pub fc1: Projection,
    /// Second projection, [D, F].
    pub fc2: Projection,
    /// The activation.
    pub activation: Activation,
    /// Whether what is activated is multiplied by a third projection.
    pub gated: bool,
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
        3 => Activation::GeluTanh,
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

    fn gate_in_place<const KIND: u8>(x: &mut [f32], width: usize) {
        let activation = const { activation_of(KIND) };
        for row in 0..x.len() / (2 * width) {
            let (front, rest) = x.split_at_mut((2 * row * width).max(width));
            // The first row's result lies where its first half was.
            let to = &mut front[row * width..][..width];
            if row == 0 {
                for j in 0..width {
                    to[j] = activation.value(to[j]) * rest[j];
                }
            } else {
                let (u, gate) = rest[..2 * width].split_at(width);
                for j in 0..width {
                    to[j] = activation.value(u[j]) * gate[j];
                }
            }
        }
    }

    /// Adds the bias to the rows of `u`, twice as wide as `width`, in place, and writes the first half, activated,
    /// times the second to `a`, with dropout.
    fn gate<const KIND: u8>(
        u: &mut [f32], a: &mut [f32], bias: Option<&[f32]>, width: usize, dropout: Dropout, first_row: usize,
    ) {
        let activation = const { activation_of(KIND) };
        for (row, (u, a)) in u.chunks_exact_mut(2 * width).zip(a.chunks_exact_mut(width)).enumerate() {
            if let Some(bias) = bias {
                for j in 0..2 * width {
                    u[j] += bias[j];
                }
            }
            let (u, gate) = u.split_at(width);
            for j in 0..width {
                a[j] = activation.value(u[j]) * gate[j];
            }
            if dropout.is_on() {
                let base = (first_row + row) * width;
                for j in 0..width {
                    a[j] *= dropout.factor(base + j);
                }
            }
        }
    }

    /// Backward of [`gate`]: from the gradient `g` of the hidden layer that of `u`, and adds its column sums.
    fn gate_backward<const KIND: u8>(
        u: &[f32], g: &[f32], du: &mut [f32], width: usize, dropout: Dropout, first_row: usize, sums: &mut [f32],
    ) {
        let activation = const { activation_of(KIND) };
        let sums = &mut sums[..2 * width];
        let rows = u.chunks_exact(2 * width).zip(g.chunks_exact(width)).zip(du.chunks_exact_mut(2 * width));
        for (row, ((u, g), du)) in rows.enumerate() {
            let ((u, gate), (to_u, to_gate)) = (u.split_at(width), du.split_at_mut(width));
            to_u.copy_from_slice(g);
            if dropout.is_on() {
                let base = (first_row + row) * width;
                for j in 0..width {
                    to_u[j] *= dropout.factor(base + j);
                }
            }
            for j in 0..width {
                to_gate[j] = to_u[j] * activation.value(u[j]);
                to_u[j] *= gate[j] * activation.derivative(u[j]);
            }
            for j in 0..2 * width {
                sums[j] += du[j];
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
    /// Width of the hidden layer, F.
    fn hidden(&self) -> usize {
        if self.gated { self.fc1.out() / 2 } else { self.fc1.out() }
    }

    /// Whether the hidden layer itself shows where its input was positive.
    fn is_plain_relu(&self) -> bool {
        self.activation == Activation::Relu && !self.gated
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
        let inner = self.fc1.out();
        let before = if self.is_plain_relu() { 0 } else { inner };
        Widths { saved: [before, self.hidden()], memory_saved: 0, inner, sums: inner }
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
        let (relu, first_row) = (self.is_plain_relu(), block.sentences.start);
        fc1.product(block.input, if relu { &mut *a } else { &mut *u }, false);
        with_bias(self.fc1.bias.as_ref(), |bias| {
            let _timer = profile::kernel("activation", "forward", Work::floats(2 * a.len() + u.len()));
            if relu {
                relu_in_place(a, bias, f, self.dropout, first_row);
                return Ok(());
            }
            if self.gated {
                with_activation!(self.activation, gate(u, a, bias, f, self.dropout, first_row));
            } else {
                with_activation!(self.activation, activate(u, a, bias, f, self.dropout, first_row));
            }
            Ok(())
        })?;
        fc2.product(a, h, false);
        Ok(())
    }

    fn backward(&self, [fc1, fc2]: &Self::Prepared, block: BackwardBlock) -> Result<()> {
        let BackwardBlock { dinner, sums, saved: [u, a], .. } = block;
        let (f, dropout, first_row) = (self.hidden(), self.dropout, block.sentences.start);
        let mut hidden = Scratch::new(if self.gated { dinner.len() / 2 } else { 0 });
        fc2.product(block.dh, if self.gated { &mut hidden } else { &mut *dinner }, false);
        let timer = profile::kernel("activation", "backward", Work::floats(3 * dinner.len()));
        if self.gated {
            with_activation!(self.activation, gate_backward(u, &hidden, dinner, f, dropout, first_row, sums));
        } else if self.is_plain_relu() {
            relu_backward(a, dinner, f, dropout.scale(), sums);
        } else {
            with_activation!(self.activation, activate_backward(u, dinner, f, dropout, first_row, sums));
        }
        drop(timer);
        fc1.product(dinner, block.dinput, true);
        Ok(())
    }

    fn weight_gradients(&self, batch: &WholeBatch) -> Result<()> {
        self.fc2.add_weight_gradient(batch.rows, batch.dh, batch.saved[1])?;
        self.fc1.add_gradients(batch.rows, batch.dinner, batch.input, batch.sums)
    }

    fn reference(&self, x: &Tensor, _: Option<&Tensor>, training: bool) -> Result<Tensor> {
        let hidden = self.activation.hidden(&self.fc1.reference(x, training)?, self.gated)?;
        self.fc2.reference(&self.dropout.apply(&hidden)?, training)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the formulas, in f64: x·½(1 + tanh(√(2/π)·(x + 0.044715·x³))), its difference quotient, and a·u for rows [a,
    /// u].
    #[test]
    fn the_approximated_gelu_and_gates_follow_their_formulas() {
        let gelu = |x: f64| {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        };
        let inputs: Vec<f32> = (-60..=60).map(|i| i as f32 / 10.0).collect();
        for &x in &inputs {
            let wide = f64::from(x);
            assert!((f64::from(Activation::GeluTanh.value(x)) - gelu(wide)).abs() < 2e-6, "{x}");
            let slope = (gelu(wide + 1e-4) - gelu(wide - 1e-4)) / 2e-4;
            assert!((f64::from(Activation::GeluTanh.derivative(x)) - slope).abs() < 5e-6, "{x}");
        }
        for width in [1, 3, 20] {
            let mut rows: Vec<f32> = inputs[..6 * width].to_vec();
            Activation::GeluTanh.apply_gate(&mut rows, width);
            for (row, (got, given)) in rows.chunks_exact(width).zip(inputs.chunks_exact(2 * width)).take(3).enumerate()
            {
                let (u, gate) = given.split_at(width);
                for j in 0..width {
                    assert_eq!(got[j], Activation::GeluTanh.value(u[j]) * gate[j], "row {row}, {width} wide");
                }
            }
        }
    }

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
