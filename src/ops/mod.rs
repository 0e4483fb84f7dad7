//! Operations that training goes through, each with a reference and fused kernels.
//!
//! Candle's own fused layer norm, softmax and attention cut the gradient silently, so the model uses only these
//! operations. Every operation has
//! 1. a *reference* in plain differentiable Candle operations, right on any device;
//! 2. a *fused* form for the CPU with its own backward, that adds the gradients of parameters straight into the flat
//!    buffer of [`params::Parameters`];
//! 3. a test that compares the two, in its file or in tests/gradients.rs.
//!
//! Kernels for NVIDIA's GPUs are in [`crate::gpu`], which composes them itself.
//!
//! Operations are coarse, one per sub-layer, so that Candle's autograd tape costs next to nothing: [`attention`] and
//! [`feed_forward`] implement [`sublayer::Inner`] and are wrapped with norm, residual and dropout by [`sublayer`];
//! [`embedding`] begins and [`loss`] ends the graph; [`optimizer`] works on the flat buffers. [`matmul`] has the
//! products that all of them use, [`profile`] counts their time and work. [`mask`] defines which keys a query sees,
//! [`rotary`] rotates queries and keys by their positions, and [`relative`] adds to their scores by their distance.
//!
//! Shape letters: `B` batch, `S` source length, `T` target length, `D` d_model, `H` heads, `K` d_k, `F` d_ff,
//! `V` vocabulary, `N` tokens (B·L).

// Kernels index several slices side by side and take many arguments: the compiler vectorises loops in this form.
#![allow(clippy::needless_range_loop, clippy::manual_memcpy, clippy::too_many_arguments)]

pub mod attention;
pub mod dropout;
pub mod embedding;
pub mod feed_forward;
pub mod loss;
pub mod low_rank;
pub mod mask;
pub mod matmul;
pub mod memory;
pub mod norm;
pub mod optimizer;
pub mod params;
pub mod profile;
pub mod projection;
pub mod relative;
pub mod rotary;
pub mod simd;
pub mod softmax;
pub mod sublayer;

/// Which implementation of the operations to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Implementation {
    /// Fused kernels where the device has them.
    #[default]
    Fused,
    /// Plain Candle operations everywhere.
    Reference,
}

/// How to run a pass through the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode {
    /// Key of the dropout masks of this pass; `None` outside training: no dropout, no graph.
    pub training: Option<u64>,
    /// Which implementation to use.
    pub implementation: Implementation,
}

impl Mode {
    /// Inference: no dropout, no gradients.
    pub const INFERENCE: Mode = Mode { training: None, implementation: Implementation::Fused };

    /// A training pass whose dropout masks are drawn from `key`.
    pub fn training(key: u64) -> Self {
        Self { training: Some(key), implementation: Implementation::Fused }
    }

    /// Whether gradients will be computed.
    pub fn is_training(&self) -> bool {
        self.training.is_some()
    }

    /// The mask of dropout site number `site` with probability `p` in this pass.
    pub fn dropout(&self, p: f64, site: u64) -> dropout::Dropout {
        match self.training {
            Some(key) => dropout::Dropout::new(p, crate::rng::mix64(key ^ crate::rng::mix64(site.wrapping_add(1)))),
            None => dropout::Dropout::OFF,
        }
    }
}

impl From<candle_core::Error> for crate::error::Error {
    fn from(error: candle_core::Error) -> Self {
        let mut error = error;
        // Where RUST_BACKTRACE is set, Candle adds backtraces, which do not help users.
        while let candle_core::Error::WithBacktrace { inner, .. } = error {
            error = *inner;
        }
        let text = error.to_string();
        let failed = crate::error::Error::failure(format!("tensor operation failed: {text}")).caused_by(error);
        // Candle passes on only the text of the driver's error.
        let is_out_of_memory = text.to_ascii_lowercase().replace('_', " ").contains("out of memory");
        if is_out_of_memory { crate::error::Error::out_of_memory().caused_by(failed) } else { failed }
    }
}
