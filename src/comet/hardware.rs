//! What computes a model of COMET.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device};

use crate::error::Result;
use crate::gpu::queue::Queue;
use crate::infer::ComputeType;

/// What computes a model.
#[derive(Clone)]
pub enum Hardware {
    /// The processor, in this precision.
    Processor(ComputeType),
    /// A GPU.
    Gpu {
        /// Where the parameters lie.
        device: Device,
        /// What it is asked with.
        queue: Arc<dyn Queue>,
        /// The type of products, float32 or bfloat16.
        compute: DType,
    },
}

impl Hardware {
    /// The processor, in the precision of the published scores.
    pub const EXACT: Self = Self::Processor(ComputeType::F32);

    /// A device in a precision. In place of Apple's GPUs, and in int8, the processor computes.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn of(device: &Device, precision: ComputeType) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let (true, Some(compute)) = (device.is_cuda(), on_gpu(precision)) {
            return Ok(Self::Gpu { device: device.clone(), queue: crate::gpu::cuda::Cuda::on(device)?, compute });
        }
        let _ = device;
        Ok(Self::Processor(precision))
    }

    /// The precision of products.
    pub fn precision(&self) -> ComputeType {
        match self {
            Self::Processor(precision) => *precision,
            Self::Gpu { compute: DType::BF16, .. } => ComputeType::Bf16,
            Self::Gpu { .. } => ComputeType::F32,
        }
    }
}

impl fmt::Debug for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if matches!(self, Self::Gpu { .. }) { "Gpu" } else { "Processor" };
        f.debug_tuple(place).field(&self.precision()).finish()
    }
}

/// The type of a GPU's products in a precision, if GPUs have it.
#[cfg(feature = "cuda")]
fn on_gpu(precision: ComputeType) -> Option<DType> {
    match precision {
        ComputeType::F32 => Some(DType::F32),
        ComputeType::Bf16 => Some(DType::BF16),
        ComputeType::Int8 => None,
    }
}
