//! The wrapper around every sub-layer: the order of norm, residual and dropout in training. (Decoding on the processor,
//! `infer`, and the GPU engine, `gpu::pass`, have their own versions; tests compare them with this one.)
//!
//! - post-norm (the paper): y = norm(x + dropout(f(x)))
//! - pre-norm: y = x + dropout(f(norm(x)))
//!
//! A sub-layer f implements [`Inner`]; [`run`] makes one differentiable operation of it, in plain operations
//! ([`plain`]) or `fused`.

mod fused;
mod inner;

use candle_core::{Result, Tensor};

use super::dropout::Dropout;
use super::memory::with_slice;
use super::norm::Norm;
use super::params::Param;
use super::{Implementation, Mode, profile};
use crate::choice::choice;
use fused::Fused;
pub use inner::{BackwardBlock, ForwardBlock, Inner, WholeBatch, Widths};

choice! {
    /// Where layer normalisation stands.
    pub enum NormPlacement {
        /// After the residual sum, as in "Attention Is All You Need".
        Post = "post",
        /// Before each sub-layer, on its input.
        Pre = "pre",
    }
}

/// Norm, residual and dropout around one sub-layer.
#[derive(Clone, Debug)]
pub struct Residual {
    /// Where the normalisation stands.
    pub placement: NormPlacement,
    /// The normalisation.
    pub norm: Norm,
    /// Dropout on the sub-layer's output.
    pub dropout: Dropout,
}

/// One sub-layer with its wrapper. x: [N, D], memory: [M, D]; returns [N, D].
pub fn run<I: Inner + 'static>(
    inner: I,
    residual: Residual,
    x: &Tensor,
    memory: Option<&Tensor>,
    mode: &Mode,
) -> Result<Tensor> {
    if mode.implementation == Implementation::Reference || !x.device().is_cpu() {
        return reference(&inner, &residual, x, memory, mode.is_training());
    }
    let op = Fused::new(inner, residual, mode.is_training());
    match memory {
        None => x.apply_op1(op),
        // Candle goes back through the second argument first: so through the whole decoder before the encoder.
        Some(memory) => memory.apply_op2(x, op),
    }
}

fn reference<I: Inner>(
    inner: &I,
    residual: &Residual,
    x: &Tensor,
    memory: Option<&Tensor>,
    training: bool,
) -> Result<Tensor> {
    let _timer = profile::reference(inner.name());
    plain(residual, x, training, |input| inner.reference(input, memory, training))
}

/// The wrapper in plain Candle operations around any `f`. The sum is in the type of x, whatever f computes in.
pub fn plain(
    residual: &Residual,
    x: &Tensor,
    training: bool,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let dropped = |h: Tensor| residual.dropout.apply(&h)?.to_dtype(x.dtype());
    match residual.placement {
        NormPlacement::Post => residual.norm.reference(&(x + dropped(f(x)?)?)?, training),
        NormPlacement::Pre => x + dropped(f(&residual.norm.reference(x, training)?)?)?,
    }
}

/// Calls `f` with a parameter's values, if there is one.
pub(in crate::ops) fn with_bias<R>(bias: Option<&Param>, f: impl FnOnce(Option<&[f32]>) -> Result<R>) -> Result<R> {
    match bias {
        Some(bias) => with_slice(bias.value(), |b| f(Some(b))),
        None => f(None),
    }
}
