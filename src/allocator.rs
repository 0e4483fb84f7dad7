//! The memory of the process.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

/// Keeps freed memory for the next step instead of giving every buffer back to the system. If the system has no memory
/// left, the process ends with a message; this is safe because the files on disk are complete at any time.
pub struct Allocator;

// SAFETY: all memory comes from mimalloc and goes back to it.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { MiMalloc.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { MiMalloc.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        given(unsafe { MiMalloc.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.dealloc(memory, layout) }
    }
}

fn given(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        end(bytes);
    }
    memory
}

/// Ends the process without asking for memory.
#[cold]
fn end(bytes: usize) -> ! {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if ENDS.swap(true, Ordering::Relaxed) {
        std::process::abort();
    }
    let mut text = [0; 400];
    let mut rest = &mut text[..];
    let _ = write!(
        rest,
        "error: out of memory: the system refused another {bytes} bytes\n  \
         help: use less memory (lower train.batch_tokens or decode.batch_tokens, fewer --threads, a smaller model), or \
         allow more: a limit (ulimit -v, or a container's) may be below what the machine has\n"
    );
    let room = rest.len();
    let _ = std::io::stderr().write_all(&text[..text.len() - room]);
    std::process::exit(1);
}
