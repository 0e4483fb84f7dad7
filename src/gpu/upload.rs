//! Sends the data of a batch to the device.

use super::launch::{SegmentsAt, Side};
use super::queue::Address;
use super::rows::{Rows, Segments};
use super::{Engine, bytes_of};
use crate::error::Result;

/// A side of a batch on the device, with what its embedding's gradient needs.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// The rows.
    pub(super) side: Side,
    /// Rows by token.
    pub(super) tokens: SegmentsAt,
    /// Rows by position, where positions are learned.
    pub(super) places: Option<SegmentsAt>,
}

/// Data of a batch to be sent to the device, in one piece.
#[derive(Default)]
pub(super) struct Upload(Vec<u32>);

impl Upload {
    /// Adds words; returns their place, in bytes.
    pub(super) fn add(&mut self, words: &[u32]) -> usize {
        let place = 4 * self.0.len();
        self.0.extend_from_slice(words);
        place
    }

    fn add_segments(&mut self, values: &[u32]) -> SegmentsAt {
        let segments = Segments::new(values);
        // Relative to the piece, until `moved`.
        let mut at = |words: &[u32]| Address::NONE.plus(self.add(words));
        SegmentsAt {
            order: at(&segments.order),
            starts: at(&segments.starts),
            values: at(&segments.values),
            count: segments.len(),
            long: segments.long,
            rows: values.len(),
        }
    }

    /// Adds rows; their addresses are relative to the piece until [`Side::moved`].
    pub(super) fn add_rows(&mut self, rows: &Rows) -> Side {
        let mut at = |words: &[u32]| Address::NONE.plus(self.add(words));
        Side {
            ids: at(&rows.ids),
            places: at(&rows.places),
            padded: at(&rows.padded),
            starts: at(&rows.starts),
            rows: rows.len(),
            sentences: rows.sentences(),
            longest: rows.longest,
        }
    }

    /// Adds a side of a batch, at addresses relative to the piece.
    pub(super) fn add_side(&mut self, rows: &Rows, learned: bool) -> Placed {
        Placed {
            side: self.add_rows(rows),
            tokens: self.add_segments(&rows.ids),
            places: learned.then(|| self.add_segments(&rows.places)),
        }
    }

    /// Copies the piece to the device; returns where it is.
    pub(super) fn send(&self, engine: &mut Engine) -> Result<Address> {
        let base = engine.arena.take(4 * self.0.len())?;
        engine.queue.upload(bytes_of(&self.0), base)?;
        Ok(base)
    }
}

impl Side {
    /// The same at absolute addresses, if the piece begins at `base`.
    pub(super) fn moved(self, base: Address) -> Self {
        let to = |address: Address| base.plus(address.number() as usize);
        Self { ids: to(self.ids), places: to(self.places), padded: to(self.padded), starts: to(self.starts), ..self }
    }
}

impl SegmentsAt {
    fn moved(self, base: Address) -> Self {
        let to = |address: Address| base.plus(address.number() as usize);
        Self { order: to(self.order), starts: to(self.starts), values: to(self.values), ..self }
    }
}

impl Placed {
    /// The same at absolute addresses, if the piece begins at `base`.
    pub(super) fn moved(self, base: Address) -> Self {
        Self {
            side: self.side.moved(base),
            tokens: self.tokens.moved(base),
            places: self.places.map(|places| places.moved(base)),
        }
    }
}
