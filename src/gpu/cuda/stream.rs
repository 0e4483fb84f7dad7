//! A second stream of a GPU, and marks on streams.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, result, sys};

use super::driver_error;
use crate::error::Result;
use crate::gpu::queue::{Mark, SideStream};

/// A stream of its own. (Candle's would make every access to a tensor wait for all streams.)
pub(super) struct Stream {
    raw: sys::CUstream,
    /// That of the queue, for the context.
    queue: Arc<CudaStream>,
}

impl Stream {
    /// One beside that of a queue.
    pub(super) fn new(queue: Arc<CudaStream>) -> Result<Self> {
        queue.context().bind_to_thread().map_err(driver_error)?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(driver_error)?;
        Ok(Self { raw, queue })
    }
}

impl SideStream for Stream {
    fn wait_for(&self, mark: &Mark) -> Result<()> {
        // SAFETY: the stream is there.
        unsafe { wait_for(self.raw, mark) }
    }

    fn mark(&self) -> Result<Mark> {
        // SAFETY: the stream is there.
        unsafe { mark(&self.queue, self.raw) }
    }

    fn stream(&self) -> *mut c_void {
        self.raw.cast()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // What is queued there is done first. If that fails, so has the device.
        // SAFETY: it is not used again.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// Marks the end of the work of a stream, which has the context of `queue`.
///
/// # Safety
/// The stream exists.
pub(super) unsafe fn mark(queue: &CudaStream, stream: sys::CUstream) -> Result<Mark> {
    queue.context().bind_to_thread().map_err(driver_error)?;
    let event = queue.context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver_error)?;
    // SAFETY: both exist.
    unsafe { result::event::record(event.cu_event(), stream) }.map_err(driver_error)?;
    Ok(Mark::new(event))
}

/// Lets a stream wait for the work before a mark.
///
/// # Safety
/// The stream exists.
pub(super) unsafe fn wait_for(stream: sys::CUstream, mark: &Mark) -> Result<()> {
    let Some(event) = mark.of::<CudaEvent>() else { return Ok(()) };
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: both exist.
    unsafe { result::stream::wait_event(stream, event.cu_event(), flags) }.map_err(driver_error)
}
