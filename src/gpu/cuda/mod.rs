//! NVIDIA's GPUs as a [`Queue`]: the driver for memory, copies and kernels, cuBLASLt for products.

mod product;
mod staging;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::cublaslt::{result as lt, sys as lts};
use candle_core::cuda_backend::cudarc::driver::{
    self, CudaEvent, CudaFunction, CudaModule, CudaStream, DevicePtr, result, sys,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::{Device, Storage, Tensor};

use super::queue::{Address, Epilogue, Launch, Mark, Number, Product, Queue, SideStream, Ticket};
use crate::error::{Error, Result};
use crate::ops::matmul::Precision;
use crate::ops::profile::{self, Work};
use product::{Call, LtResult, Shape, WORKSPACE, alignment, typical};
use staging::{Fetch, STAGING_LIMIT, Staging};

/// `kernels/all.cu`, compiled by build.rs.
const KERNELS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// Dynamic shared memory that any kernel gets without asking: what it has by itself comes from the same 48 KiB.
const SHARED: u32 = 32 << 10;
/// With less free memory than this, cuBLASLt may be unable to load a kernel.
const ROOM_FOR_KERNELS: usize = 64 << 20;

/// One GPU, and the queue that Candle uses there.
pub struct Cuda {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    functions: Mutex<HashMap<String, Loaded>>,
    lt: lts::cublasLtHandle_t,
    /// Scratch of products. Locked while the kernels of one are queued, of which several may use it.
    workspace: Mutex<Address>,
    /// Algorithms by [`typical`] shape.
    algorithms: Algorithms,
    /// Algorithms by exact shape, where that of the typical shape does not work.
    untypical: Algorithms,
    staging: Mutex<Staging>,
    /// Timed work that is not in the profile yet: counted when the host waits for the device.
    timed: Mutex<VecDeque<Timed>>,
    /// Used events, to be used again: making one takes longer than a launch.
    spare: Mutex<Vec<[CudaEvent; 2]>>,
    multiprocessors: u32,
}

/// A kernel, and the bytes of dynamic shared memory that its launches may have.
struct Loaded {
    function: CudaFunction,
    shared: u32,
}

/// What cuBLASLt chose, or that it refused.
type Algorithms = Mutex<HashMap<Shape, LtResult<lts::cublasLtMatmulAlgo_t>>>;

/// One piece of work between two events.
struct Timed {
    name: &'static str,
    part: &'static str,
    work: Work,
    events: [CudaEvent; 2],
}

/// Ends a piece of work that is timed, when it is dropped.
struct Timer<'a>(Option<(&'a Cuda, Timed)>);

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some((cuda, timed)) = self.0.take()
            && timed.events[1].record(&cuda.stream).is_ok()
        {
            locked(&cuda.timed).push_back(timed);
        }
    }
}

/// The time between two events that were recorded and are over.
fn elapsed(before: &CudaEvent, after: &CudaEvent) -> Result<Duration> {
    // SAFETY: both are events.
    let milliseconds = unsafe { result::event::elapsed(before.cu_event(), after.cu_event()) };
    Ok(Duration::from_secs_f32(milliseconds.map_err(driver_error)?.max(0.0) / 1e3))
}

/// What a product is for, as profiles name it.
fn part(product: &Product) -> &'static str {
    match (product.a.transposed, product.b.transposed) {
        (true, _) => "weight gradients",
        (false, true) => "forward",
        (false, false) => "input gradients",
    }
}

fn work(product: &Product) -> Work {
    let Product { m, n, k, number, .. } = *product;
    Work::product(m, n, k, if number == Number::Bf16 { Precision::Bf16 } else { Precision::F32 })
}

// SAFETY: the driver and cuBLASLt may be called from any thread to which the context is bound, which every call
// ensures; the pointers to pinned memory are behind a lock.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What to do about a GPU that has failed.
const FAILED_HELP: &str = "training goes on from its last checkpoint with --resume; with CUDA_LAUNCH_BLOCKING=1 in the \
                           environment, the message names the kernel that failed; of faults of the hardware, \
                           `nvidia-smi -q` and `dmesg` tell";

fn driver_error(error: driver::DriverError) -> Error {
    if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Error::out_of_memory().caused_by(error);
    }
    Error::failure(format!("the GPU failed ({:?})", error.0)).caused_by(error).help(FAILED_HELP)
}

fn product_error(product: &Product, error: lt::CublasError) -> Error {
    use lts::cublasStatus_t as status;
    // A kernel is loaded when it is first used, and cuBLASLt does not say that there is no memory for it.
    let says_little = matches!(
        error.0,
        status::CUBLAS_STATUS_INTERNAL_ERROR
            | status::CUBLAS_STATUS_EXECUTION_FAILED
            | status::CUBLAS_STATUS_NOT_INITIALIZED
    );
    let is_full = || result::mem_get_info().is_ok_and(|(free, _)| free < ROOM_FOR_KERNELS);
    if error.0 == status::CUBLAS_STATUS_ALLOC_FAILED || (says_little && is_full()) {
        return Error::out_of_memory().caused_by(error);
    }
    let Product { m, n, k, a, b, c, number, result, .. } = product;
    let matrices = [a, b, c].map(|matrix| {
        let turned = if matrix.transposed { ", transposed" } else { "" };
        format!("rows {} apart, aligned to {} bytes{turned}", matrix.stride, alignment(matrix.at))
    });
    let what = format!("cuBLASLt failed at a product of {m}×{k} and {k}×{n} ({:?})", error.0);
    let which = format!("{number:?} to {result:?}; {}", matrices.join("; "));
    let error = Error::failure(format!("{what}: {which}")).caused_by(error);
    if says_little { error.help(FAILED_HELP) } else { error }
}

/// Whether cuBLASLt refused a product because the algorithm does not support it.
fn is_refusal(error: &lt::CublasError) -> bool {
    use lts::cublasStatus_t as status;
    matches!(
        error.0,
        status::CUBLAS_STATUS_NOT_SUPPORTED | status::CUBLAS_STATUS_INVALID_VALUE | status::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

impl Cuda {
    /// The queue of one of Candle's devices. Made when it is first asked for, and kept.
    pub fn on(device: &Device) -> Result<Arc<Self>> {
        static QUEUES: Mutex<Vec<Arc<Cuda>>> = Mutex::new(Vec::new());
        let stream = device.as_cuda_device()?.cuda_stream();
        let mut queues = locked(&QUEUES);
        if let Some(queue) = queues.iter().find(|queue| Arc::ptr_eq(&queue.stream, &stream)) {
            return Ok(queue.clone());
        }
        let queue = Arc::new(Self::new(stream)?);
        queues.push(queue.clone());
        Ok(queue)
    }

    fn new(stream: Arc<CudaStream>) -> Result<Self> {
        let context = stream.context().clone();
        context.bind_to_thread().map_err(driver_error)?;
        let module = context.load_module(Ptx::from_binary(KERNELS.to_vec())).map_err(|error| {
            let error = Error::failure("the GPU's driver could not load the kernels of mt").caused_by(error);
            error.help("update the driver, build mt on this machine with `make cuda`, or use --device cpu")
        })?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let multiprocessors = context.attribute(attribute).map_err(driver_error)?;
        let lt = lt::create_handle().map_err(|error| {
            Error::failure(format!("cuBLASLt could not be started ({:?})", error.0)).caused_by(error)
        })?;
        // SAFETY: the context is bound; the memory is scratch.
        let workspace = unsafe { Address::new(result::malloc_sync(WORKSPACE).map_err(driver_error)?) };
        Ok(Self {
            module,
            functions: Mutex::default(),
            lt,
            workspace: Mutex::new(workspace),
            algorithms: Mutex::default(),
            untypical: Mutex::default(),
            staging: Mutex::default(),
            timed: Mutex::default(),
            spare: Mutex::default(),
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(1).max(1),
            stream,
        })
    }

    /// What tells this GPU from all others.
    ///
    /// # Errors
    /// The driver fails.
    pub fn identity(&self) -> Result<String> {
        let uuid = self.stream.context().uuid().map_err(driver_error)?;
        Ok(uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
    }

    /// Binds the context to the thread that calls.
    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(driver_error)
    }

    /// Times the work that is queued until the timer is dropped, if there is to be a profile.
    fn timer(&self, name: &'static str, part: &'static str, work: Work) -> Result<Timer<'_>> {
        if !profile::is_enabled() {
            return Ok(Timer(None));
        }
        let event =
            || self.stream.context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver_error);
        let spare = locked(&self.spare).pop();
        let events = match spare {
            Some(events) => events,
            None => [event()?, event()?],
        };
        events[0].record(&self.stream).map_err(driver_error)?;
        Ok(Timer(Some((self, Timed { name, part, work, events }))))
    }

    /// cuBLASLt's choice for a product: that for its typical shape, unless there is none or it did not work for this
    /// one.
    fn algorithm(&self, product: &Product) -> LtResult<lts::cublasLtMatmulAlgo_t> {
        if let Some(known) = locked(&self.untypical).get(&Shape::new(product)) {
            return *known;
        }
        let chosen = self.chosen(&self.algorithms, &typical(product));
        if chosen.is_ok() { chosen } else { self.chosen(&self.untypical, product) }
    }

    /// cuBLASLt's choice for this very shape, which it is asked for only once.
    fn chosen(&self, known: &Algorithms, product: &Product) -> LtResult<lts::cublasLtMatmulAlgo_t> {
        let (shape, mut known) = (Shape::new(product), locked(known));
        if let Some(known) = known.get(&shape) {
            return *known;
        }
        let chosen = Call::new(product)?.choose(self.lt);
        // Any other error may pass.
        if chosen.as_ref().err().is_none_or(is_refusal) {
            known.insert(shape, chosen);
        }
        chosen
    }

    /// A kernel whose launches may have so many bytes of dynamic shared memory, or more.
    fn function(&self, name: &str, shared: u32) -> Result<sys::CUfunction> {
        let mut functions = locked(&self.functions);
        if !functions.contains_key(name) {
            let function = self.module.load_function(name).map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_NOT_FOUND => {
                    Error::failure(format!("this mt was built without the kernel {name}")).caused_by(error)
                }
                // The driver may load a kernel when it is first asked for.
                _ => driver_error(error).context(format!("loading {name}")),
            })?;
            functions.insert(name.to_owned(), Loaded { function, shared: SHARED });
        }
        let Some(loaded) = functions.get_mut(name) else {
            return Err(Error::failure(format!("the kernel {name} is not loaded")));
        };
        let raw = loaded.function.cu_function();
        // Never lowered: another thread may be about to launch it with more.
        if shared > loaded.shared {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            unsafe { result::function::set_function_attribute(raw, attribute, shared as i32) }.map_err(driver_error)?;
            loaded.shared = shared;
        }
        Ok(raw)
    }

    /// Waits for all work, after which staging may be used again.
    fn synchronize(&self) -> Result<()> {
        self.settle(&mut locked(&self.staging))?;
        self.count()
    }

    fn settle(&self, staging: &mut Staging) -> Result<()> {
        self.stream.synchronize().map_err(driver_error)?;
        staging.settle();
        Ok(())
    }

    /// Adds the timed work that is done to the profile.
    fn count(&self) -> Result<()> {
        let mut timed = locked(&self.timed);
        while let Some(Timed { name, part, work, events }) = timed.pop_front_if(|timed| timed.events[1].is_complete()) {
            profile::add(name, part, elapsed(&events[0], &events[1])?, work);
            locked(&self.spare).push(events);
        }
        Ok(())
    }
}

impl Queue for Cuda {
    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.bind()?;
        // SAFETY: its contents are unspecified.
        unsafe { result::malloc_sync(bytes).map(|number| Address::new(number)) }.map_err(driver_error)
    }

    fn free(&self, address: Address, _: usize) {
        // If one of these fails, the device has failed, and the next call reports it.
        let _ = self.bind();
        let _ = self.synchronize();
        // SAFETY: `allocate` gave it, and no work is under way.
        let _ = unsafe { result::free_sync(address.number()) };
    }

    fn upload(&self, bytes: &[u8], to: Address) -> Result<()> {
        self.bind()?;
        // Locked until the copy is queued: settling before that would free its memory without waiting for it.
        let mut staging = locked(&self.staging);
        if staging.under_way + bytes.len() > STAGING_LIMIT {
            self.settle(&mut staging)?;
        }
        let staged = staging.take(bytes.len())?;
        // SAFETY: as many bytes are staged, and no copy from them is under way.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), staged, bytes.len());
            let staged = std::slice::from_raw_parts(staged, bytes.len());
            result::memcpy_htod_async(to.number(), staged, self.stream.cu_stream()).map_err(driver_error)
        }
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the memory is there, and `bytes` is not used before the work is done.
        unsafe { result::memcpy_dtoh_async(bytes, from.number(), self.stream.cu_stream()) }.map_err(driver_error)?;
        self.synchronize()
    }

    fn fetch(&self, from: Address, bytes: usize) -> Result<Ticket> {
        self.bind()?;
        let mut staging = locked(&self.staging);
        let to = staging.take(bytes)?;
        // SAFETY: the memory is there, and what is staged is not used before the copy is done.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to, bytes);
            result::memcpy_dtoh_async(to, from.number(), self.stream.cu_stream()).map_err(driver_error)?;
        }
        let done = self.stream.record_event(None).map_err(driver_error)?;
        let pieces = std::mem::take(&mut staging.filling);
        (staging.used, staging.under_way) = (0, 0);
        let ticket = Ticket(staging.begun);
        staging.begun += 1;
        staging.fetches.push(Fetch { ticket, to, done, pieces });
        Ok(ticket)
    }

    fn fetched(&self, ticket: Ticket, bytes: &mut [u8]) -> Result<()> {
        self.bind()?;
        let Some(fetch) = locked(&self.staging).withdraw(ticket) else {
            return Err(Error::failure("a result of the GPU was asked for twice"));
        };
        // Not locked meanwhile: another thread may queue its work.
        fetch.done.synchronize().map_err(driver_error)?;
        // SAFETY: as many bytes were copied there.
        unsafe { std::ptr::copy_nonoverlapping(fetch.to, bytes.as_mut_ptr(), bytes.len()) };
        locked(&self.staging).free.extend(fetch.pieces);
        self.count()
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the memory is there.
        unsafe { result::memset_d8_async(at.number(), 0, bytes, self.stream.cu_stream()) }.map_err(driver_error)
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the memory is there.
        unsafe { result::memcpy_dtod_async(to.number(), from.number(), bytes, self.stream.cu_stream()) }
            .map_err(driver_error)
    }

    unsafe fn launch(&self, launch: &Launch<'_>, arguments: &mut [*mut c_void]) -> Result<()> {
        self.bind()?;
        let Launch { kernel, grid: [x, y, z], threads, shared, .. } = *launch;
        let in_context = |error: Error| {
            let blocks = [x, y, z];
            error.context(format!(
                "starting {kernel}, {blocks:?} blocks of {threads} threads, {shared} bytes of shared memory"
            ))
        };
        let function = self.function(kernel, shared).map_err(in_context)?;
        let _timer = self.timer(launch.name, "", launch.work)?;
        // SAFETY: the caller's promise.
        let launched = unsafe {
            result::launch_kernel(function, (x, y, z), (threads, 1, 1), shared, self.stream.cu_stream(), arguments)
        };
        launched.map_err(|error| in_context(driver_error(error)))
    }

    fn product(&self, product: &Product) -> Result<()> {
        self.bind()?;
        let failed = |error| product_error(product, error);
        let call = Call::new(product).map_err(failed)?;
        let algorithm = self.algorithm(product).map_err(failed)?;
        let _timer = self.timer("product", part(product), work(product))?;
        match call.run(self, &algorithm) {
            // The algorithm does not support this shape; any other error is the device's.
            Err(error) if is_refusal(&error) => {}
            outcome => return outcome.map_err(failed),
        }
        profile::add("product that was asked for twice", "", Duration::ZERO, Work::NONE);
        let algorithm = self.chosen(&self.untypical, product).map_err(failed)?;
        call.run(self, &algorithm).map_err(|error| {
            if is_refusal(&error) {
                locked(&self.untypical).insert(Shape::new(product), Err(error));
            }
            failed(error)
        })
    }

    fn takes_epilogue(&self, product: &Product) -> bool {
        product.epilogue == Epilogue::None || (product.epilogue.is_aligned() && self.algorithm(product).is_ok())
    }

    fn mark(&self) -> Result<Mark> {
        // SAFETY: the stream is there.
        unsafe { stream::mark(&self.stream, self.stream.cu_stream()) }
    }

    fn between(&self, from: &Mark, to: &Mark) -> Result<Option<Duration>> {
        let (Some(from), Some(to)) = (from.of::<CudaEvent>(), to.of::<CudaEvent>()) else { return Ok(None) };
        if !from.is_complete() || !to.is_complete() {
            return Ok(None);
        }
        elapsed(from, to).map(Some)
    }

    fn side_stream(&self) -> Result<Box<dyn SideStream>> {
        self.bind()?;
        Ok(Box::new(stream::Stream::new(self.stream.clone())?))
    }

    fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream is there.
        unsafe { stream::wait_for(self.stream.cu_stream(), mark) }
    }

    fn stream(&self) -> Result<*mut c_void> {
        self.bind()?;
        Ok(self.stream.cu_stream().cast())
    }

    fn address(&self, tensor: &Tensor) -> Result<Address> {
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, _)) = layout.contiguous_offsets() else {
            return Err(Error::failure("a tensor with gaps was given to the GPU's kernels"));
        };
        match &*storage {
            Storage::Cuda(storage) => match &storage.slice {
                CudaStorageSlice::F32(slice) => {
                    // SAFETY: the tensor's memory begins there.
                    Ok(unsafe { Address::new(slice.device_ptr(&self.stream).0) }.plus(4 * start))
                }
                _ => Err(Error::failure("a tensor that is not float32 was given to the GPU's kernels")),
            },
            _ => Err(Error::failure("a tensor elsewhere was given to the GPU's kernels")),
        }
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }
}
