//! What trains a model: the number type of its products, and the engine for its device.

use std::rc::Rc;

use candle_core::{DType, Device};

use crate::error::Result;
use crate::model::Transformer;
use crate::model_dir::Tell;
use crate::notice::Notice;
use crate::ops::matmul::Precision;
use crate::ranks::group::Group;
#[cfg(feature = "cuda")]
use crate::train::backend::OnGpu;
use crate::train::backend::{Backend, Tape};

/// The number type of matrix products in training on this device; says so if it is not the one asked for.
pub fn number_type(precision: Precision, device: &Device, tell: Tell<'_>) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::Bf16 if !device.is_cpu() || Precision::Bf16.is_native() => DType::BF16,
        Precision::Bf16 => {
            let text = "runtime.precision = \"bf16\", but this processor has no instructions for bfloat16 products: \
                        computing in f32";
            tell(Notice::Note(text.to_owned()));
            DType::F32
        }
    }
}

/// The backend that trains a model on its device, in the model's number type: the engine for GPUs if there is one. With
/// a group, it is that of one of its ranks.
pub fn open(model: &Transformer, group: Option<&Rc<Group>>) -> Result<Box<dyn Backend>> {
    let communicator = group.map(|group| group.communicator());
    #[cfg(feature = "cuda")]
    if model.parameters().device().is_cuda() {
        let (queue, compute) = (crate::gpu::cuda::Cuda::on(model.parameters().device())?, model.parameters().compute());
        return Ok(Box::new(OnGpu::new(crate::gpu::Engine::new(model, queue, compute)?, communicator)));
    }
    Ok(Box::new(Tape::new(model).with_communicator(communicator)))
}
