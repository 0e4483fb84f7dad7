//! The functions of NCCL's library that are used, as nccl.h declares them. They are those of NCCL 2.13 and newer.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;

use libloading::os::unix;

use crate::device::libraries;
use crate::error::{Error, Result};
use crate::gpu::queue::Number;

/// The library's name. The major version of NCCL has been 2 since 2017.
const NAME: &str = "libnccl.so.2";

/// What rank 0 makes, and all ranks need to find each other.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Id([c_char; Id::BYTES]);

impl Id {
    const BYTES: usize = 128;

    /// As bytes, for other ranks.
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.iter().map(|byte| *byte as u8).collect()
    }

    /// What [`Self::to_bytes`] gave.
    ///
    /// # Errors
    /// There are not as many bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: [u8; Self::BYTES] =
            bytes.try_into().map_err(|_| Error::failure("rank 0 has given no id of NCCL's"))?;
        Ok(Self(bytes.map(|byte| byte as c_char)))
    }
}

/// A rank's handle.
pub(super) type Handle = *mut c_void;

/// An operation that has failed.
pub struct Failed {
    /// Why.
    pub error: Error,
    /// Whether the cause is probably another rank.
    pub is_elsewhere: bool,
}

/// The types of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Type {
    Bytes = 1,
    F32 = 7,
    F64 = 8,
    Bf16 = 9,
}

impl From<Number> for Type {
    fn from(number: Number) -> Self {
        match number {
            Number::F32 => Self::F32,
            Number::Bf16 => Self::Bf16,
        }
    }
}

/// What a function returns if it has succeeded.
const SUCCESS: c_int = 0;
/// What is returned where another rank, or the network, has failed.
pub(super) const REMOTE_ERROR: c_int = 6;
/// What a communicator that is at work returns.
const IN_PROGRESS: c_int = 7;
/// To add up.
pub(super) const SUM: c_int = 0;

/// A stream, in CUDA's words: a queue of work.
type Stream = *mut c_void;

/// The library. It is never unloaded: it has threads of its own.
pub struct Library {
    get_unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    pub(super) init_rank: unsafe extern "C" fn(*mut Handle, c_int, Id, c_int) -> c_int,
    pub(super) all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    pub(super) all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream) -> c_int,
    pub(super) broadcast:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream) -> c_int,
    pub(super) group_start: unsafe extern "C" fn() -> c_int,
    pub(super) group_end: unsafe extern "C" fn() -> c_int,
    get_async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    pub(super) abort: unsafe extern "C" fn(Handle) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    get_last_error: unsafe extern "C" fn(Handle) -> *const c_char,
}

impl Library {
    /// Loads it: that which the dynamic loader finds, else that of an installed CUDA.
    ///
    /// # Errors
    /// It is not there, or is older than 2.13.
    pub fn load() -> Result<&'static Self> {
        Self::load_from(NAME, &libraries::of_cuda())
    }

    /// Loads it under another name, or from one of these folders.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(name: &str, folders: &[PathBuf]) -> Result<&'static Self> {
        let library = libraries::open(name, folders).map_err(|error| {
            let help = "`pip install nvidia-nccl-cu13` (for a driver of CUDA 12: nvidia-nccl-cu12) installs it in \
                        nvidia/nccl/lib: put that folder on LD_LIBRARY_PATH";
            Error::failure(format!("NCCL could not be loaded: {name}")).help(help).caused_by(error)
        })?;
        // SAFETY: it is NCCL's.
        let functions = unsafe { Self::functions(&library) };
        std::mem::forget(library);
        functions.map(|functions| &*Box::leak(Box::new(functions))).map_err(|error| {
            Error::failure(format!("{name} lacks a function of NCCL"))
                .help("install NCCL 2.13 or newer")
                .caused_by(error)
        })
    }

    /// # Safety
    /// Functions of NCCL's names are those of nccl.h.
    unsafe fn functions(library: &unix::Library) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Self {
                get_unique_id: *library.get(b"ncclGetUniqueId")?,
                init_rank: *library.get(b"ncclCommInitRank")?,
                all_reduce: *library.get(b"ncclAllReduce")?,
                all_gather: *library.get(b"ncclAllGather")?,
                broadcast: *library.get(b"ncclBroadcast")?,
                group_start: *library.get(b"ncclGroupStart")?,
                group_end: *library.get(b"ncclGroupEnd")?,
                get_async_error: *library.get(b"ncclCommGetAsyncError")?,
                abort: *library.get(b"ncclCommAbort")?,
                get_error_string: *library.get(b"ncclGetErrorString")?,
                get_last_error: *library.get(b"ncclGetLastError")?,
            })
        }
    }

    /// Makes an id, on rank 0.
    ///
    /// # Errors
    /// NCCL finds no network.
    pub fn id(&self) -> Result<Id> {
        let mut id = Id([0; Id::BYTES]);
        // SAFETY: it writes an id.
        self.check(unsafe { (self.get_unique_id)(&mut id) }, std::ptr::null_mut(), "making an id")?;
        Ok(id)
    }

    /// An error where a function did not succeed.
    pub(super) fn check(&self, code: c_int, handle: Handle, doing: &str) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both return text, or nothing, which stays.
        let [what, more] = unsafe { [text((self.get_error_string)(code)), text((self.get_last_error)(handle))] };
        let more = if more.is_empty() { more } else { format!(" ({more})") };
        let error = Error::failure(format!("NCCL failed at {doing}: {what}{more}"));
        Err(error.help("with NCCL_DEBUG=WARN in the environment, NCCL says more"))
    }

    /// What went wrong while an operation was under way, if anything did.
    pub(super) fn failed_operation(&self, handle: Handle) -> Option<Failed> {
        let mut code = SUCCESS;
        // SAFETY: the handle is a rank's, and it writes a number.
        let asked = unsafe { (self.get_async_error)(handle, &mut code) };
        let code = if code == IN_PROGRESS { SUCCESS } else { code };
        let checked =
            self.check(asked, handle, "asking for errors").and_then(|()| self.check(code, handle, "an operation"));
        checked.err().map(|error| Failed { error, is_elsewhere: code == REMOTE_ERROR })
    }
}

/// # Safety
/// It is null, or points to text.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    crate::escape::in_one_line(text.trim()).into_owned()
}
