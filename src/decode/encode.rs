//! Sentences as vectors: the encoder alone.

use candle_core::DType;

use super::not_a_number;
use crate::error::Result;
use crate::gpu::decode::InferenceEngine;
use crate::model::pooling::{Mixture, Pooling, pool};
use crate::model::{Sequences, Transformer};
use crate::ops::Mode;

/// A model's encoder, in the fastest implementation for its device.
pub enum Encoder {
    /// The model's own operations.
    Model(Box<Transformer>),
    /// The engine of a GPU.
    Device(Box<InferenceEngine>),
}

impl Encoder {
    /// The encoder of a model, with its current parameters.
    ///
    /// # Errors
    /// The device fails.
    pub fn new(model: Transformer) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if model.parameters().device().is_cuda() {
            let queue = crate::gpu::cuda::Cuda::on(model.parameters().device())?;
            return Ok(Self::Device(Box::new(InferenceEngine::new(&model, queue, model.parameters().compute())?)));
        }
        Ok(Self::Model(Box::new(model)))
    }

    /// A vector of D numbers for every sentence, [B, D].
    ///
    /// # Errors
    /// The device fails, or the model's states are not finite.
    pub fn vectors(&self, sources: &Sequences, pooling: Pooling) -> Result<Vec<Vec<f32>>> {
        let vectors = self.pooled(sources, pooling)?;
        if vectors.iter().flatten().all(|x| x.is_finite()) { Ok(vectors) } else { Err(not_a_number()) }
    }

    fn pooled(&self, sources: &Sequences, pooling: Pooling) -> Result<Vec<Vec<f32>>> {
        match self {
            Self::Model(model) => {
                let lengths = sources.lengths.iter().map(|&length| length as usize);
                let states = model.encode(sources, &Mode::INFERENCE)?.states;
                let states: Vec<f32> = states.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
                let rows = (0..).step_by(sources.length).zip(lengths).map(|(start, length)| start..start + length);
                Ok(pool(&states, model.config().d_model, rows, pooling))
            }
            Self::Device(engine) => engine.vectors(sources, &Mixture::last(engine.layers(), pooling)),
        }
    }
}
