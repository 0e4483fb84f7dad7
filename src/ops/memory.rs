//! Scratch memory, access to tensors as slices, and disjoint parallel writes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, bail};
use rayon::prelude::*;

/// Free buffers, by size class.
static POOL: Mutex<BTreeMap<usize, Vec<Vec<f32>>>> = Mutex::new(BTreeMap::new());
/// Most bytes the pool keeps; what exceeds it goes back to the allocator.
const POOL_LIMIT: usize = 2 << 30;

/// A scratch buffer of `len` floats with arbitrary contents. It goes back to a pool when dropped, so that kernels
/// allocate no scratch memory in the steady state of training.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

/// Rounds up to one of eight sizes per power of two, so that batches of varying shape share buffers.
fn size_class(len: usize) -> usize {
    let step = (len.max(64).next_power_of_two() / 16).max(1);
    len.max(64).div_ceil(step) * step
}

impl Scratch {
    /// Takes a buffer from the pool. Its contents are whatever its last user left.
    pub fn new(len: usize) -> Self {
        let class = size_class(len);
        let reused = POOL.lock().ok().and_then(|mut pool| pool.get_mut(&class).and_then(Vec::pop));
        Self { buffer: reused.unwrap_or_else(|| vec![0.0; class]), len }
    }

    /// Takes a buffer and clears it.
    pub fn zeroed(len: usize) -> Self {
        let mut scratch = Self::new(len);
        scratch.fill(0.0);
        scratch
    }

    /// The buffer as 32-bit words, for contents other than floats.
    pub fn words(&self) -> &[u32] {
        // SAFETY: the same size and alignment, and every bit pattern is a word.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len) }
    }

    /// The buffer as words, for writing.
    pub fn words_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above, and every bit pattern is a float.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() {
            return;
        }
        if let Ok(mut pool) = POOL.lock() {
            let held: usize = pool.iter().map(|(class, list)| class * list.len() * 4).sum();
            if held + buffer.len() * 4 <= POOL_LIMIT {
                pool.entry(buffer.len()).or_default().push(buffer);
            }
        }
    }
}

impl Deref for Scratch {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

/// A new matrix of `width` columns. Each thread clears and then writes its own rows: if one thread cleared the whole
/// matrix beforehand, the others would have to wait.
pub struct NewRows {
    buffer: Vec<f32>,
    start: *mut f32,
    rows: usize,
    width: usize,
    cleared: AtomicUsize,
}

// SAFETY: threads access the buffer's memory only through `rows`, whose caller promises to request each row once.
unsafe impl Sync for NewRows {}

impl NewRows {
    /// Memory for `rows` rows.
    pub fn new(rows: usize, width: usize) -> Self {
        let mut buffer = Vec::with_capacity(rows * width);
        Self { start: buffer.as_mut_ptr(), buffer, rows, width, cleared: AtomicUsize::new(0) }
    }

    /// The rows of `range`, cleared, for writing.
    ///
    /// # Safety
    /// No row is requested twice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn rows(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        self.cleared.fetch_add(range.len(), Ordering::Relaxed);
        let len = range.len() * self.width;
        // SAFETY: within the capacity by the assertion; valid floats before a slice is made; exclusive by this
        // function's contract.
        unsafe {
            let start = self.start.add(range.start * self.width);
            start.write_bytes(0, len);
            std::slice::from_raw_parts_mut(start, len)
        }
    }

    /// The matrix. Every row must have been requested.
    pub fn into_vec(mut self) -> Vec<f32> {
        assert_eq!(self.cleared.into_inner(), self.rows, "rows were left out");
        // SAFETY: as many rows were cleared as there are, and none twice.
        unsafe { self.buffer.set_len(self.rows * self.width) };
        self.buffer
    }
}

/// A matrix of `width` columns that several threads write, each its own rows.
#[derive(Clone, Copy)]
pub struct SharedRows<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only turned into slices by `rows`, whose caller promises that no two are alive over the same
// rows.
unsafe impl Send for SharedRows<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRows<'_> {}

impl<'a> SharedRows<'a> {
    /// Shares a buffer of whole rows. If `width` is 0, any number of (empty) rows can be taken.
    pub fn new(buffer: &'a mut [f32], width: usize) -> Self {
        let rows = buffer.len().checked_div(width).unwrap_or(usize::MAX);
        Self { start: buffer.as_mut_ptr(), rows, width, borrow: PhantomData }
    }

    /// Start of the matrix, for kernels that write columns.
    pub fn pointer(&self) -> *mut f32 {
        self.start
    }

    /// The rows of `range`, for writing.
    ///
    /// # Safety
    /// No two slices over the same row may be alive at once.
    pub unsafe fn rows(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // SAFETY: in bounds by the assertion; exclusive by this function's contract.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(range.start * self.width),
                (range.end - range.start) * self.width,
            )
        }
    }
}

/// The contents of a contiguous f32 CPU storage.
pub fn storage_slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(values) = storage else { bail!("a fused operation needs f32 tensors") };
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("a fused operation needs contiguous tensors") };
    Ok(&values[start..end])
}

/// Calls `f` with the contents of a contiguous f32 CPU tensor.
pub fn with_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    f(host_slice(&storage, layout)?)
}

/// Calls `f` with the contents of contiguous f32 CPU tensors.
pub fn with_slices<R>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> Result<R>) -> Result<R> {
    let storages: Vec<_> = tensors.iter().map(|tensor| tensor.storage_and_layout()).collect();
    let slices = storages.iter().map(|(storage, layout)| host_slice(storage, layout));
    f(&slices.collect::<Result<Vec<_>>>()?)
}

fn host_slice<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [f32]> {
    match storage {
        Storage::Cpu(storage) => storage_slice(storage, layout),
        _ => bail!("a fused CPU operation was given a tensor of another device"),
    }
}

/// Calls `f` with the contents of a contiguous f32 CPU tensor, to change them in place.
pub fn with_slice_mut<R>(tensor: &Tensor, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    struct Change<F, R> {
        f: RefCell<Option<F>>,
        result: RefCell<Option<R>>,
    }
    impl<R, F: FnOnce(&mut [f32]) -> R> InplaceOp1 for Change<F, R> {
        fn name(&self) -> &'static str {
            "change-in-place"
        }
        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
            let CpuStorage::F32(values) = storage else { bail!("a fused operation needs f32 tensors") };
            let Some((start, end)) = layout.contiguous_offsets() else {
                bail!("a fused operation needs contiguous tensors")
            };
            if let Some(f) = self.f.borrow_mut().take() {
                *self.result.borrow_mut() = Some(f(&mut values[start..end]));
            }
            Ok(())
        }
    }
    let change = Change { f: RefCell::new(Some(f)), result: RefCell::new(None) };
    tensor.inplace_op1(&change)?;
    match change.result.into_inner() {
        Some(result) => Ok(result),
        None => bail!("in-place operation did not run"),
    }
}

/// Calls `f` with the contents of a contiguous f32 tensor of any device, copied to the host first if they are not
/// there.
pub fn on_host<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    if tensor.device().is_cpu() {
        return with_slice(tensor, f);
    }
    f(&tensor.flatten_all()?.to_vec1::<f32>()?)
}

/// Calls `f` with the contents of a flat f32 tensor of any device, to be changed; if they are not on the host, they are
/// copied there and back.
pub fn change_on_host<R>(tensor: &Tensor, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    if tensor.device().is_cpu() {
        return with_slice_mut(tensor, f);
    }
    let mut values = tensor.to_vec1::<f32>()?;
    let result = f(&mut values);
    tensor.slice_set(&Tensor::from_vec(values, tensor.shape(), tensor.device())?, 0, 0)?;
    Ok(result)
}

/// Bytes per second that all threads together read and write while they copy more than any cache holds.
pub fn bandwidth() -> f64 {
    const FLOATS: usize = 32 << 20;
    let (from, mut to) = (Scratch::zeroed(FLOATS), Scratch::zeroed(FLOATS));
    let mut turn = || {
        let started = std::time::Instant::now();
        to.par_chunks_mut(1 << 16).zip(from.par_chunks(1 << 16)).for_each(|(to, from)| to.copy_from_slice(from));
        (8 * FLOATS) as f64 / started.elapsed().as_secs_f64()
    };
    (0..4).map(|_| turn()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn size_classes_waste_little() {
        for len in [1usize, 63, 64, 65, 1000, 4096, 4097, 1_000_000] {
            let class = size_class(len);
            assert!(class >= len);
            assert!(class <= (len.max(64) as f64 * 1.13) as usize + 8, "{len} -> {class}");
        }
    }

    #[test]
    fn scratch_has_the_asked_length() {
        let mut a = Scratch::new(100);
        a.fill(3.0);
        drop(a);
        assert_eq!(Scratch::zeroed(97).len(), 97);
        assert!(Scratch::zeroed(97).iter().all(|v| *v == 0.0));
    }

    #[test]
    fn new_rows_are_cleared_and_complete() {
        let new = NewRows::new(3, 2);
        // SAFETY: no row twice.
        unsafe {
            new.rows(1..3).copy_from_slice(&[1.0, 2.0, 0.0, 4.0]);
            assert_eq!(new.rows(0..1), [0.0, 0.0]);
        }
        assert_eq!(new.into_vec(), [0.0, 0.0, 1.0, 2.0, 0.0, 4.0]);
        assert!(NewRows::new(0, 5).into_vec().is_empty());
        let incomplete = NewRows::new(2, 1);
        // SAFETY: no row twice.
        unsafe { incomplete.rows(0..1) };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| incomplete.into_vec())).is_err());
    }

    #[test]
    fn changes_a_view_in_place() -> Result<()> {
        let flat = Tensor::zeros(6, candle_core::DType::F32, &Device::Cpu)?;
        with_slice_mut(&flat.narrow(0, 2, 3)?, |v| v.fill(1.0))?;
        assert_eq!(flat.to_vec1::<f32>()?, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        Ok(())
    }
}
