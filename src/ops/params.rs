//! Parameters as named views of one flat tensor, their gradients in one flat buffer.
//!
//! Every parameter is a range of [`Parameters::values`]; backward passes add into the same range of
//! [`Parameters::gradients`]. So clipping, the optimizer, accumulation and an all-reduce are each one pass over one
//! buffer, and neighbouring parameters (the q, k and v projections) can be used as one matrix.
//!
//! Candle's autograd still records the operations but does not know the parameters: it only has to know that there is a
//! graph to go back through. For that, the first operation depends on a dummy variable ([`Parameters::root`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, DType, Device, Layout, MetalStorage, Result, Shape, Tensor, Var, bail,
};

use rayon::prelude::*;

use super::matmul::Precision;
use super::memory;
use super::profile::{self, Work};
use crate::ranks::OnComplete;

/// The kinds of parameters that training treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matrix: weight decay applies.
    Weight,
    /// A bias or a normalisation parameter: no weight decay.
    Vector,
}

/// One named parameter.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name in model files.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// First element in the flat tensor.
    pub offset: usize,
    /// Its kind.
    pub kind: Kind,
}

impl Entry {
    /// Number of elements; if that is more than a number can hold, the largest number.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |len: usize, width| len.saturating_mul(*width))
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in the flat tensor.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset.saturating_add(self.len())
    }
}

/// Collects names and shapes; [`ParameterLayout::allocate`] makes the tensors.
#[derive(Debug, Default)]
pub struct ParameterLayout {
    entries: Vec<Entry>,
    total: usize,
}

impl ParameterLayout {
    /// Adds a parameter after the last one.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], kind: Kind) {
        let entry = Entry { name: name.into(), shape: shape.to_vec(), offset: self.total, kind };
        self.total = self.total.saturating_add(entry.len());
        self.entries.push(entry);
    }

    /// The parameters so far, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Number of elements of all parameters; if that is more than a number can hold, the largest number.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Allocates values and gradients, all zero. Products will be computed in `compute`; if that is f64, so is
    /// everything else, for checks in plain operations.
    pub fn allocate(self, device: &Device, compute: DType) -> Result<Arc<Parameters>> {
        let gradients = self.total;
        self.allocate_with(gradients, device, compute)
    }

    /// [`ParameterLayout::allocate`] without the gradients, for models that are not trained.
    pub fn allocate_values(self, device: &Device, compute: DType) -> Result<Arc<Parameters>> {
        // Drivers do not allocate nothing.
        self.allocate_with(1, device, compute)
    }

    fn allocate_with(self, gradients: usize, device: &Device, compute: DType) -> Result<Arc<Parameters>> {
        let dtype = if compute == DType::F64 { DType::F64 } else { DType::F32 };
        let index = self.entries.iter().enumerate().map(|(i, e)| (e.name.clone(), i)).collect();
        Ok(Arc::new(Parameters {
            values: Tensor::zeros(self.total, dtype, device)?,
            gradients: Tensor::zeros(gradients, dtype, device)?,
            root: Var::zeros(1, dtype, device)?,
            compute,
            entries: self.entries,
            index,
            without_gradient: RwLock::default(),
            backward: Mutex::default(),
        }))
    }
}

/// All parameters of a model with their gradients.
#[derive(Debug)]
pub struct Parameters {
    values: Tensor,
    gradients: Tensor,
    root: Var,
    compute: DType,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
    /// Ranges whose gradients nobody needs, in order.
    without_gradient: RwLock<Vec<Range<usize>>>,
    /// How far a backward pass has come, if somebody wants to know.
    backward: Mutex<Option<Backward>>,
}

/// How far a backward pass over fused sub-layers has come.
struct Backward {
    call: OnComplete,
    /// Where the parameters of each sub-layer begin, and whether their gradients are complete.
    sublayers: BTreeMap<usize, bool>,
}

impl fmt::Debug for Backward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backward").field("sublayers", &self.sublayers).finish_non_exhaustive()
    }
}

impl Parameters {
    /// All values, flat.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// All gradients, flat; backward adds to them.
    pub fn gradients(&self) -> &Tensor {
        &self.gradients
    }

    /// The variable that makes Candle record the graph.
    pub fn root(&self) -> &Tensor {
        self.root.as_tensor()
    }

    /// The type that products are computed in.
    pub fn compute(&self) -> DType {
        self.compute
    }

    /// The parameters in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The parameter of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.index.get(name).map(|&i| &self.entries[i])
    }

    /// The device that all of them are on.
    pub fn device(&self) -> &Device {
        self.values.device()
    }

    /// Says which ranges, in order, need no gradient: on the processor, that of a parameter within one is not computed,
    /// and takes no memory.
    pub fn set_without_gradient(&self, ranges: &[Range<usize>]) {
        *self.without_gradient.write().unwrap_or_else(PoisonError::into_inner) = ranges.to_vec();
    }

    /// Runs a pass, forward and back, and calls `call` whenever backward has completed more gradients at the end of the
    /// flat buffer: those from the first parameter of a fused sub-layer on. Of the rest, such as embeddings, nothing is
    /// told. `call` gets no smaller a part than before.
    pub fn tell_what_is_complete<R>(&self, call: OnComplete, pass: impl FnOnce() -> R) -> R {
        *self.backward() = Some(Backward { call, sublayers: BTreeMap::new() });
        let result = pass();
        *self.backward() = None;
        result
    }

    fn backward(&self) -> MutexGuard<'_, Option<Backward>> {
        self.backward.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the gradients to zero that anybody needs.
    pub fn clear_gradients(&self) -> Result<()> {
        let _timer = profile::operation("clear gradients", "", Work::floats(self.gradients.elem_count()));
        if !self.device().is_cpu() || self.gradients.dtype() != DType::F32 {
            return self.gradients.slice_set(&self.gradients.zeros_like()?, 0, 0);
        }
        let unneeded = self.without_gradient.read().unwrap_or_else(PoisonError::into_inner);
        memory::with_slice_mut(&self.gradients, |gradients| {
            let starts = std::iter::once(0).chain(unneeded.iter().map(|range| range.end));
            let ends = unneeded.iter().map(|range| range.start).chain([gradients.len()]);
            for (start, end) in starts.zip(ends) {
                gradients[start..end].par_chunks_mut(1 << 16).for_each(|g| g.fill(0.0));
            }
        })
    }

    /// A view that starts at the parameter `first` and takes as many of its neighbours as `shape` needs.
    pub fn view(self: &Arc<Self>, first: &str, shape: impl Into<Shape>) -> Result<Param> {
        let shape = shape.into();
        let Some(entry) = self.entry(first) else { bail!("no parameter named {first}") };
        let (offset, len) = (entry.offset, shape.elem_count());
        let value = self.values.narrow(0, offset, len)?.reshape(shape)?;
        Ok(Param { owner: self.clone(), value, offset })
    }

    /// A view of one parameter, in its own shape.
    pub fn param(self: &Arc<Self>, name: &str) -> Result<Param> {
        let Some(entry) = self.entry(name) else { bail!("no parameter named {name}") };
        let shape = entry.shape.clone();
        self.view(name, shape)
    }
}

/// A view of one parameter, or of a run of neighbours, together with the offset of its gradient.
#[derive(Clone, Debug)]
pub struct Param {
    owner: Arc<Parameters>,
    value: Tensor,
    offset: usize,
}

impl Param {
    /// The values; not tracked by autograd.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        self.value.dims()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.value.elem_count()
    }

    /// Whether anybody needs the gradient of any of it.
    pub fn needs_gradient(&self) -> bool {
        let ranges = self.owner.without_gradient.read().unwrap_or_else(PoisonError::into_inner);
        !ranges.iter().any(|range| range.start <= self.offset && self.offset + self.len() <= range.end)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For reference operations: the values as a tensor that autograd tracks, whose gradient is added to the flat
    /// buffer.
    pub fn tracked(&self) -> Result<Tensor> {
        self.owner.root().apply_op2(&self.value, TrackedParam(self.clone()))
    }

    /// The values, tracked when `training`.
    pub fn reference(&self, training: bool) -> Result<Tensor> {
        if training { self.tracked() } else { Ok(self.value.clone()) }
    }

    /// The values in the type that products are computed in, tracked when `training`. The stored parameters and their
    /// gradients stay f32.
    pub fn computed(&self, training: bool) -> Result<Tensor> {
        self.reference(training)?.to_dtype(self.owner.compute)
    }

    /// The type that fused products with it are computed in.
    pub fn precision(&self) -> Precision {
        match self.owner.compute {
            DType::BF16 => Precision::Bf16,
            _ => Precision::F32,
        }
    }

    /// Adds a gradient of this parameter's shape to the flat buffer, on any device.
    pub fn add_gradient(&self, gradient: &Tensor) -> Result<()> {
        if !self.needs_gradient() {
            return Ok(());
        }
        let gradients = &self.owner.gradients;
        let sum =
            (gradients.narrow(0, self.offset, self.len())? + gradient.flatten_all()?.to_dtype(gradients.dtype())?)?;
        gradients.slice_set(&sum, 0, self.offset)
    }

    /// Notes that backward will go through a sub-layer of which this is the first parameter.
    pub(super) fn begins_sublayer(&self) {
        if let Some(backward) = &mut *self.owner.backward() {
            backward.sublayers.insert(self.offset, false);
        }
    }

    /// Notes that backward has gone through the sub-layer of which this is the first parameter. The layout has the
    /// sub-layers in the order of forward, but backward need not keep to it where two do not depend on each other.
    pub(super) fn completes_sublayer(&self) -> Result<()> {
        let mut backward = self.owner.backward();
        let Some(Backward { call, sublayers }) = &mut *backward else { return Ok(()) };
        sublayers.insert(self.offset, true);
        let complete = sublayers.iter().rev().take_while(|(_, is_complete)| **is_complete).last();
        let Some((start, _)) = complete else { return Ok(()) };
        memory::with_slice(&self.owner.gradients, |gradients| {
            call(*start, gradients);
            Ok(())
        })
    }

    /// Calls `f` with this parameter's part of the flat gradient buffer (CPU), if somebody needs its gradient.
    pub fn with_gradient(&self, f: impl FnOnce(&mut [f32])) -> Result<()> {
        if !self.needs_gradient() {
            return Ok(());
        }
        memory::with_slice_mut(&self.owner.gradients.narrow(0, self.offset, self.len())?, f)
    }

    /// Adds `gradient` to this parameter's part of the flat gradient buffer (CPU).
    pub fn add_gradient_slice(&self, gradient: &[f32]) -> Result<()> {
        self.with_gradient(|g| {
            for (g, x) in g.iter_mut().zip(gradient) {
                *g += x;
            }
        })
    }
}

/// Hands out a parameter's values; its backward adds to the flat gradients and ends there. The first argument is the
/// root, the second the values.
struct TrackedParam(Param);

impl CustomOp2 for TrackedParam {
    fn name(&self) -> &'static str {
        "parameter"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, values: &CpuStorage, at: &Layout) -> Result<(CpuStorage, Shape)> {
        if matches!(values, CpuStorage::F64(_)) {
            return Ok((values.affine(at, 1.0, 0.0)?, at.shape().clone()));
        }
        Ok((CpuStorage::F32(memory::storage_slice(values, at)?.to_vec()), at.shape().clone()))
    }

    // To copy a view: 1·x + 0 is an operation that every backend has.
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout, values: &CudaStorage, at: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((values.affine(at, 1.0, 0.0)?, at.shape().clone()))
    }

    fn metal_fwd(
        &self,
        _: &MetalStorage,
        _: &Layout,
        values: &MetalStorage,
        at: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        Ok((values.affine(at, 1.0, 0.0)?, at.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        self.0.add_gradient(gradient)?;
        Ok((None, None))
    }
}
