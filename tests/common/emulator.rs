//! An emulated GPU on the processor: the kernels of `src/gpu/kernels`, compiled as C++ against
//! `tests/emulator/emulated.h`, and matrix products as plain loops.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CString, OsStr, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use libloading::Library;
use mt::error::{Error, Result};
use mt::gpu::queue::{self, Address, Epilogue, Mark, Matrix, Number, Product, Queue, SideStream, Ticket};

type Launch = unsafe extern "C" fn(*const c_char, *const u32, u32, u32, *mut *mut c_void) -> c_int;

/// Runs the C++ compiler.
fn compile(arguments: &[&OsStr]) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    // Two such libraries are loaded into one process: hidden symbols keep their variables apart.
    let flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"];
    let output = Command::new(&compiler).args(flags).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{compiler} (Debian: apt-get install g++): {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The compiled kernels; with `sees_races`, instrumented to find races between their threads.
fn kernels(sees_races: bool) -> Library {
    let emulator = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/kernels/all.cu");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [object, library] = ["kernels.o", "kernels.so"].map(|name| folder.path().join(name));
    // A GPU aborts on a misaligned access; the processor would not mind.
    let alignment = ["-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"];
    // The sanitizer's calls go to races.cpp: without the flag at linking, its own library is left out.
    let races = ["-fsanitize=thread", "-fno-threadsafe-statics", "-DMT_RACES"];
    let flags = if sees_races { &races[..] } else { &alignment[..] };
    let mut arguments: Vec<&OsStr> = ["-c", "-DMT_EMULATED", "-x", "c++", "-I"].map(OsStr::new).to_vec();
    arguments.extend([emulator.as_os_str(), source.as_os_str(), OsStr::new("-o"), object.as_os_str()]);
    arguments.extend(flags.iter().map(OsStr::new));
    compile(&arguments);
    let mut arguments = vec![OsStr::new("-shared"), object.as_os_str(), OsStr::new("-o"), library.as_os_str()];
    let watch = emulator.join("races.cpp");
    arguments.extend(sees_races.then_some(watch.as_os_str()));
    compile(&arguments);
    // SAFETY: loading it only fills its table of kernels.
    unsafe { Library::new(&library) }.unwrap()
}

/// NCCL between threads of this process, emulated on the processor.
pub struct EmulatedNccl {
    pub library: &'static mt::gpu::nccl::Library,
    fails_after: unsafe extern "C" fn(std::ffi::c_long),
}

impl EmulatedNccl {
    /// Compiled only once.
    pub fn library() -> &'static Self {
        static LIBRARY: OnceLock<EmulatedNccl> = OnceLock::new();
        LIBRARY.get_or_init(|| {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator/nccl.cpp");
            let file = folder.path().join("libnccl.so.2");
            compile(&["-shared".as_ref(), source.as_os_str(), "-o".as_ref(), file.as_os_str()]);
            // It is never unloaded.
            let library = mt::gpu::nccl::Library::load_from(file.to_str().unwrap(), &[]).unwrap();
            // SAFETY: loading it does nothing; nccl.cpp defines the function with this signature.
            let fails_after = unsafe { *Library::new(&file).unwrap().get(b"emulated_nccl_fails_after").unwrap() };
            Self { library, fails_after }
        })
    }

    /// Lets the rank that this thread starts next fail after so many operations.
    pub fn fails_after(&self, operations: u32) {
        // SAFETY: it only notes a number.
        unsafe { (self.fails_after)(operations.into()) }
    }
}

/// [`kernels`], compiled only once.
fn library(sees_races: bool) -> &'static Library {
    static LIBRARIES: [OnceLock<Library>; 2] = [OnceLock::new(), OnceLock::new()];
    LIBRARIES[usize::from(sees_races)].get_or_init(|| kernels(sees_races))
}

/// Allocates the processor's memory and runs kernels on the processor. Allocated memory holds NaN.
pub struct Emulator {
    launch: Launch,
    /// Bytes left to allocate, for tests that run out of memory.
    left: Mutex<usize>,
    /// Whether each allocation is followed by pages that must not be touched.
    guarded: bool,
    /// `None`: do not look for races; else whether barriers order accesses.
    races: Option<bool>,
    /// Fetched bytes by ticket; `None` once handed out.
    fetches: Mutex<Vec<Option<Vec<u8>>>>,
    /// Where tensors lie, and their bytes. Marks remember what was there, once there is a stream beside.
    tensors: Mutex<Vec<(u64, usize)>>,
    has_stream: AtomicBool,
    /// Kernels and products that it has computed.
    computed: Arc<AtomicUsize>,
    early: Arc<AtomicUsize>,
}

/// What a tensor's memory was when a mark was made: nccl.cpp defines it, too.
#[repr(C)]
struct Remembered {
    at: u64,
    bytes: usize,
    copy: *const u8,
}

/// A mark.
struct Moment {
    time: Instant,
    computed: usize,
    tensors: Vec<(u64, Vec<u8>)>,
}

/// A stream beside an emulator, which computes at once. So that a sum that could have begun too early is noticed, the
/// emulated NCCL compares the memory with that of the mark that was waited for.
#[derive(Default)]
struct Stream {
    /// Kernels and products that the emulator has computed.
    computed: Arc<AtomicUsize>,
    /// How often this stream waited for a mark that was not behind all of them.
    early: Arc<AtomicUsize>,
    mark: Mutex<Option<Mark>>,
    /// One after the other, ended by one without bytes.
    remembered: Mutex<Vec<Remembered>>,
}

impl SideStream for Stream {
    fn wait_for(&self, mark: &Mark) -> Result<()> {
        let Moment { computed, tensors, .. } = mark.of().expect("it is of this queue");
        if self.computed.load(Ordering::Relaxed) > *computed {
            self.early.fetch_add(1, Ordering::Relaxed);
        }
        let of = |(at, copy): &(u64, Vec<u8>)| Remembered { at: *at, bytes: copy.len(), copy: copy.as_ptr() };
        let end = Remembered { at: 0, bytes: 0, copy: std::ptr::null() };
        *self.remembered.lock().unwrap() = tensors.iter().map(of).chain([end]).collect();
        *self.mark.lock().unwrap() = Some(mark.clone());
        Ok(())
    }

    fn mark(&self) -> Result<Mark> {
        Ok(Mark::new(Moment { time: Instant::now(), computed: 0, tensors: Vec::new() }))
    }

    fn stream(&self) -> *mut c_void {
        self.remembered.lock().unwrap().as_ptr().cast_mut().cast()
    }
}

const ALIGNMENT: usize = 256;

impl Emulator {
    pub fn new() -> Self {
        Self::with_memory(usize::MAX)
    }

    /// Ends the process if a kernel goes beyond an allocation or uses one that was freed.
    pub fn guarded() -> Self {
        Self { guarded: true, ..Self::new() }
    }

    pub fn with_memory(bytes: usize) -> Self {
        Self { left: bytes.into(), ..Self::of(None) }
    }

    /// Fails if threads of a kernel race. Without `barriers`, races are judged as if no thread ever waited for another.
    pub fn that_sees_races(barriers: bool) -> Self {
        Self::of(Some(barriers))
    }

    /// How often a stream beside it had to wait only for work that was not the last.
    pub fn early(&self) -> usize {
        self.early.load(Ordering::Relaxed)
    }

    fn of(races: Option<bool>) -> Self {
        // SAFETY: emulated.h defines it with this signature.
        let launch = unsafe { *library(races.is_some()).get::<Launch>(b"emulator_launch").unwrap() };
        let (fetches, tensors, has_stream, computed, early) = Default::default();
        Self { launch, left: usize::MAX.into(), guarded: false, races, fetches, tensors, has_stream, computed, early }
    }
}

/// Race detection handles one kernel at a time.
fn watch(barriers: bool) -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: races.cpp defines it with this signature.
    unsafe {
        let ignore = library(true).get::<unsafe extern "C" fn(c_int)>(b"emulator_ignores_meetings").unwrap();
        ignore((!barriers).into());
    }
    one
}

/// Whether to run a test that needs an emulator: not with a device, as that machine may have no compiler.
pub fn on_emulator(test: &str) -> bool {
    let beside_device = std::env::var("MT_TEST_DEVICE").is_ok_and(|name| name != "cpu");
    if beside_device {
        super::skipped(test, "MT_TEST_DEVICE is set, and it needs an emulator with little memory, guards or a watch");
    }
    !beside_device
}

/// The device that `$MT_TEST_DEVICE` names, and its queue; if unset, the processor and an emulator.
pub fn device() -> (Device, Arc<dyn Queue>) {
    let name = std::env::var("MT_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    let device = mt::device::open(&name).unwrap_or_else(|error| panic!("{error}"));
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        let queue = mt::gpu::cuda::Cuda::on(&device).unwrap_or_else(|error| panic!("{error}"));
        return (device, queue);
    }
    (device, Arc::new(Emulator::new()))
}

/// The queue of [`device`]; if that is an emulator, a guarded one.
pub fn guarded_queue() -> Arc<dyn Queue> {
    let (device, queue) = device();
    if device.is_cpu() { Arc::new(Emulator::guarded()) } else { queue }
}

/// Copies numbers into newly allocated memory.
pub fn put<T: Copy>(queue: &dyn Queue, values: &[T]) -> Address {
    let bytes = std::mem::size_of_val(values);
    let at = queue.allocate(bytes.max(1)).unwrap();
    // SAFETY: numbers have no padding: every byte is initialised.
    queue.upload(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), bytes) }, at).unwrap();
    at
}

/// Copies numbers out of memory.
pub fn get<T: Copy + Default>(queue: &dyn Queue, at: Address, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    let bytes = std::mem::size_of_val(&values[..]);
    // SAFETY: every bit pattern is a valid number.
    queue.download(at, unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) }).unwrap();
    values
}

fn number(at: Address, index: usize, number: Number) -> f32 {
    // SAFETY: the caller's matrices lie in memory.
    unsafe {
        match number {
            Number::F32 => *(at.number() as *const f32).add(index),
            Number::Bf16 => f32::from_bits(u32::from(*(at.number() as *const u16).add(index)) << 16),
        }
    }
}

fn element(matrix: Matrix, row: usize, column: usize, of: Number) -> f32 {
    let (row, column) = if matrix.transposed { (column, row) } else { (row, column) };
    number(matrix.at, row * matrix.stride + column, of)
}

/// Rounds to nearest, ties to even.
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() { (bits >> 16 | 0x40) as u16 } else { ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16 }
}

/// Memory that ends at a page boundary, followed by inaccessible pages.
mod guard {
    use std::ffi::c_void;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Bytes of the widest access.
    const WIDEST: usize = 16;
    /// A multiple of every page size.
    const PAGES: usize = 1 << 16;

    /// Bytes of the accessible pages.
    fn room(bytes: usize) -> usize {
        bytes.next_multiple_of(PAGES)
    }

    pub fn allocate(bytes: usize) -> u64 {
        let bytes = bytes.next_multiple_of(WIDEST);
        let room = room(bytes);
        // SAFETY: the pages are new; nobody else knows them.
        unsafe {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap_anonymous(std::ptr::null_mut(), room + PAGES, flags, MapFlags::PRIVATE).unwrap();
            mprotect(base.byte_add(room), PAGES, MprotectFlags::empty()).unwrap();
            base.cast::<u8>().write_bytes(0xff, room);
            base.byte_add(room - bytes) as u64
        }
    }

    pub fn free(address: u64, bytes: usize) {
        let bytes = bytes.next_multiple_of(WIDEST);
        let room = room(bytes);
        // SAFETY: these are the pages from `allocate`.
        unsafe { munmap((address as usize + bytes - room) as *mut c_void, room + PAGES).unwrap() };
    }
}

impl Queue for Emulator {
    fn allocate(&self, bytes: usize) -> Result<Address> {
        let mut left = self.left.lock().unwrap();
        if bytes > *left {
            return Err(Error::out_of_memory());
        }
        *left -= bytes;
        if self.guarded {
            // SAFETY: the memory is there.
            return Ok(unsafe { Address::new(guard::allocate(bytes)) });
        }
        // SAFETY: the size is not zero.
        unsafe {
            let at = alloc(Layout::from_size_align(bytes, ALIGNMENT).unwrap());
            at.write_bytes(0xff, bytes);
            Ok(Address::new(at as u64))
        }
    }

    fn slab(&self) -> Option<usize> {
        (!self.guarded).then_some(64 << 20)
    }

    fn free(&self, address: Address, bytes: usize) {
        let mut left = self.left.lock().unwrap();
        *left = left.saturating_add(bytes);
        if self.guarded {
            return guard::free(address.number(), bytes);
        }
        // SAFETY: it came from `allocate`.
        unsafe { dealloc(address.number() as *mut u8, Layout::from_size_align(bytes, ALIGNMENT).unwrap()) }
    }

    fn upload(&self, bytes: &[u8], to: Address) -> Result<()> {
        // SAFETY: the engine took as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.number() as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the engine took as many bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.number() as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn fetch(&self, from: Address, bytes: usize) -> Result<Ticket> {
        let mut copy = vec![0; bytes];
        self.download(from, &mut copy)?;
        let mut fetches = self.fetches.lock().unwrap();
        fetches.push(Some(copy));
        Ok(Ticket(fetches.len() as u64 - 1))
    }

    fn fetched(&self, ticket: Ticket, bytes: &mut [u8]) -> Result<()> {
        let mut fetches = self.fetches.lock().unwrap();
        bytes.copy_from_slice(&fetches[ticket.0 as usize].take().expect("asked for twice"));
        Ok(())
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<()> {
        // SAFETY: the engine took as many bytes.
        unsafe { (at.number() as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the engine allocated as many bytes for both.
        unsafe { std::ptr::copy_nonoverlapping(from.number() as *const u8, to.number() as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &queue::Launch<'_>, arguments: &mut [*mut c_void]) -> Result<()> {
        let (name, grid) = (CString::new(launch.kernel).unwrap(), launch.grid);
        let (threads, shared) = (launch.threads, launch.shared);
        let _watch = self.races.map(watch);
        self.computed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `launch`.
        let code = unsafe { (self.launch)(name.as_ptr(), grid.as_ptr(), threads, shared, arguments.as_mut_ptr()) };
        assert!(code != 1, "there is no kernel {}", launch.kernel);
        if code == 3 {
            return Err(Error::failure(format!("{}: a race", launch.kernel)));
        }
        assert!(code == 0, "{}: no GPU runs {threads} threads on a grid of {grid:?}", launch.kernel);
        Ok(())
    }

    fn product(&self, p: &Product) -> Result<()> {
        let c = p.c;
        self.computed.fetch_add(1, Ordering::Relaxed);
        assert!(!c.transposed && (p.epilogue == Epilogue::None || !p.accumulate) && self.takes_epilogue(p));
        for row in 0..p.m {
            let a: Vec<f32> = (0..p.k).map(|k| element(p.a, row, k, p.number)).collect();
            for column in 0..p.n {
                let mut sum: f32 = a.iter().enumerate().map(|(k, a)| a * element(p.b, k, column, p.number)).sum();
                match p.epilogue {
                    Epilogue::None => {}
                    Epilogue::Bias(bias) => sum += number(bias, column, p.result),
                    Epilogue::BiasRelu(bias) => sum = (sum + number(bias, column, p.result)).max(0.0),
                }
                let at = row * c.stride + column;
                if p.accumulate {
                    sum += number(c.at, at, p.result);
                }
                // SAFETY: the matrix lies in memory.
                unsafe {
                    match p.result {
                        Number::F32 => *(c.at.number() as *mut f32).add(at) = sum,
                        Number::Bf16 => *(c.at.number() as *mut u16).add(at) = to_bf16(sum),
                    }
                }
            }
        }
        Ok(())
    }

    fn mark(&self) -> Result<Mark> {
        let mut tensors = Vec::new();
        if self.has_stream.load(Ordering::Relaxed) {
            for &(at, bytes) in &*self.tensors.lock().unwrap() {
                let mut copy = vec![0; bytes];
                // SAFETY: the test keeps its model, and with it its tensors, as long as the queue.
                self.download(unsafe { Address::new(at) }, &mut copy)?;
                tensors.push((at, copy));
            }
        }
        Ok(Mark::new(Moment { time: Instant::now(), computed: self.computed.load(Ordering::Relaxed), tensors }))
    }

    fn between(&self, from: &Mark, to: &Mark) -> Result<Option<Duration>> {
        let [from, to] = [from, to].map(|mark| mark.of::<Moment>().expect("it is of this queue").time);
        Ok(Some(to - from))
    }

    fn side_stream(&self) -> Result<Box<dyn SideStream>> {
        self.has_stream.store(true, Ordering::Relaxed);
        let (computed, early) = (self.computed.clone(), self.early.clone());
        Ok(Box::new(Stream { computed, early, ..Stream::default() }))
    }

    fn wait_for(&self, _: &Mark) -> Result<()> {
        Ok(())
    }

    fn stream(&self) -> Result<*mut c_void> {
        Ok(std::ptr::null_mut())
    }

    fn address(&self, tensor: &Tensor) -> Result<Address> {
        let (at, bytes) =
            mt::ops::memory::with_slice(tensor, |values| Ok((values.as_ptr() as u64, std::mem::size_of_val(values))))?;
        self.tensors.lock().unwrap().push((at, bytes));
        // SAFETY: the tensor's memory begins there.
        Ok(unsafe { Address::new(at) })
    }

    fn multiprocessors(&self) -> u32 {
        2
    }
}
