//! Pinned memory of the host, which copies to and from a device pass through.

use std::ffi::c_void;

use candle_core::cuda_backend::cudarc::driver::{CudaEvent, result};

use crate::error::{Error, Result};
use crate::gpu::queue::Ticket;

/// Smallest size of the pieces in which pinned memory is allocated.
const STAGING: usize = 4 << 20;
/// When more bytes than this would be under way since the last fetch, a copy to the device first waits for those before
/// it.
pub(super) const STAGING_LIMIT: usize = 64 << 20;

/// Pinned memory.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) memory: *mut c_void,
    pub(super) bytes: usize,
}

/// Pinned memory that copies to and from the device use; it is used again when the device is known to be done with it.
#[derive(Default)]
pub(super) struct Staging {
    /// Not in use.
    pub(super) free: Vec<Piece>,
    /// In use by copies since the last fetch.
    pub(super) filling: Vec<Piece>,
    /// Bytes used of the last piece of `filling`.
    pub(super) used: usize,
    /// Bytes of copies since the last fetch.
    pub(super) under_way: usize,
    /// Copies to the host that were not asked for yet.
    pub(super) fetches: Vec<Fetch>,
    /// Fetches ever begun.
    pub(super) begun: u64,
}

/// A copy to the host, and what was in use when it began.
pub(super) struct Fetch {
    pub(super) ticket: Ticket,
    /// Where it goes, in the last of the pieces.
    pub(super) to: *const u8,
    pub(super) done: CudaEvent,
    pub(super) pieces: Vec<Piece>,
}

impl Staging {
    /// Takes `bytes`, aligned to 256.
    pub(super) fn take(&mut self, bytes: usize) -> Result<*mut u8> {
        let size = bytes.next_multiple_of(256);
        self.under_way += size;
        if let Some(piece) = self.filling.last()
            && self.used + size <= piece.bytes
        {
            // SAFETY: within the piece.
            let at = unsafe { piece.memory.cast::<u8>().add(self.used) };
            self.used += size;
            return Ok(at);
        }
        let piece = match self.free.iter().position(|piece| piece.bytes >= size) {
            Some(index) => self.free.swap_remove(index),
            None => {
                let bytes = size.max(STAGING);
                // SAFETY: it is written before it is read.
                let memory = unsafe { result::malloc_host(bytes, 0) }.map_err(|_| {
                    // Not with the driver's words: this is not the GPU's memory, where smaller batches would help.
                    let error = Error::failure("this machine can pin no more of its memory for copies to the GPU");
                    error.help("stop other programs, or raise the limit on locked memory (ulimit -l)")
                })?;
                Piece { memory, bytes }
            }
        };
        self.filling.push(piece);
        self.used = size;
        Ok(piece.memory.cast())
    }

    /// Takes out a copy to the host that was not asked for yet.
    pub(super) fn withdraw(&mut self, ticket: Ticket) -> Option<Fetch> {
        let index = self.fetches.iter().position(|fetch| fetch.ticket == ticket)?;
        Some(self.fetches.swap_remove(index))
    }

    /// The device is done with all copies since the last fetch.
    pub(super) fn settle(&mut self) {
        self.free.append(&mut self.filling);
        (self.used, self.under_way) = (0, 0);
    }
}
