//! What Parquet describes itself in: Apache Thrift's compact protocol.
//!
//! The parquet crate's own reader of it recurses as deeply as columns nest, makes room for as many as a file claims,
//! and goes over lists of any length that take no bytes. This one takes time and memory in proportion to the file's
//! bytes.

use parquet::errors::ParquetError;

use super::{Read, wrong};
use crate::limits;

/// A kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    True,
    False,
    Byte,
    Int,
    Double,
    Bytes,
    List,
    Map,
    Struct,
    Uuid,
}

impl Kind {
    fn from_code(code: u8) -> Read<Self> {
        Ok(match code {
            1 => Self::True,
            2 => Self::False,
            3 => Self::Byte,
            4..=6 => Self::Int,
            7 => Self::Double,
            8 => Self::Bytes,
            // A set has the format of a list.
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return Err(wrong("its description has a value of no kind")),
        })
    }
}

/// Reads values, one after the other.
pub(super) struct Thrift<'b> {
    rest: &'b [u8],
}

/// The bytes end within a value.
pub(super) fn ended() -> ParquetError {
    ParquetError::EOF("its description ends within a value".to_owned())
}

impl<'b> Thrift<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub(super) fn rest(&self) -> &'b [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, count: u64) -> Read<&'b [u8]> {
        let count = usize::try_from(count).map_err(|_| ended())?;
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(ended)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    /// A number that is not negative.
    pub(super) fn number(&mut self) -> Read<u64> {
        let mut number = 0u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(wrong("its description has a number of more than ten bytes"))
    }

    /// A number with a sign.
    pub(super) fn signed(&mut self) -> Read<i64> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(super) fn int(&mut self, kind: Kind) -> Read<i64> {
        if kind == Kind::Int { self.signed() } else { Err(wrong("its description has no number where one is needed")) }
    }

    pub(super) fn bytes(&mut self, kind: Kind) -> Read<&'b [u8]> {
        if kind != Kind::Bytes {
            return Err(wrong("its description has no text where one is needed"));
        }
        let length = self.number()?;
        self.take(length)
    }

    /// The length of a list of structs, which follow.
    pub(super) fn structs(&mut self, kind: Kind) -> Read<usize> {
        match (kind, self.list()?) {
            (Kind::List, (Kind::Struct, count)) => Ok(count),
            (Kind::List, (_, 0)) => Ok(0),
            _ => Err(wrong("its description has no list where one is needed")),
        }
    }

    fn list(&mut self) -> Read<(Kind, usize)> {
        let header = self.byte()?;
        let count = if header >> 4 == 15 { self.number()? } else { u64::from(header >> 4) };
        // Some writers give an empty list no kind.
        let kind = if header == 0 { Kind::Byte } else { Kind::from_code(header & 15)? };
        Ok((kind, self.count(count)?))
    }

    /// How many values follow, of at least a byte each.
    fn count(&self, count: u64) -> Read<usize> {
        usize::try_from(count).ok().filter(|count| *count <= self.rest.len()).ok_or_else(ended)
    }

    /// Reads a struct: calls `field` with the number and the kind of each value. If `field` returns false, it has not
    /// read the value, which is skipped.
    pub(super) fn fields(&mut self, mut field: impl FnMut(&mut Self, i64, Kind) -> Read<bool>) -> Read<()> {
        self.fields_within(limits::THRIFT_DEPTH, &mut field)
    }

    fn fields_within(&mut self, depth: usize, field: &mut dyn FnMut(&mut Self, i64, Kind) -> Read<bool>) -> Read<()> {
        let mut last = 0i64;
        loop {
            let header = self.byte()?;
            if header & 15 == 0 {
                return Ok(());
            }
            let kind = Kind::from_code(header & 15)?;
            last = if header >> 4 == 0 { self.signed()? } else { last.wrapping_add(i64::from(header >> 4)) };
            if !field(self, last, kind)? {
                self.skip(kind, depth)?;
            }
        }
    }

    /// Passes over a value.
    fn skip(&mut self, kind: Kind, depth: usize) -> Read<()> {
        let depth = depth.checked_sub(1).ok_or_else(|| wrong("its description nests too deeply"))?;
        match kind {
            Kind::True | Kind::False => {}
            Kind::Byte => drop(self.byte()?),
            Kind::Int => drop(self.number()?),
            Kind::Double => drop(self.take(8)?),
            Kind::Uuid => drop(self.take(16)?),
            Kind::Bytes => drop(self.bytes(kind)?),
            Kind::Struct => self.fields_within(depth, &mut |_, _, _| Ok(false))?,
            Kind::List => {
                let (kind, count) = self.list()?;
                for _ in 0..count {
                    self.skip_element(kind, depth)?;
                }
            }
            Kind::Map => {
                let count = self.number()?;
                let count = self.count(count)?;
                let kinds = if count > 0 { self.byte()? } else { 0x33 };
                let kinds = [Kind::from_code(kinds >> 4)?, Kind::from_code(kinds & 15)?];
                for kind in std::iter::repeat_n(kinds, count).flatten() {
                    self.skip_element(kind, depth)?;
                }
            }
        }
        Ok(())
    }

    /// In a list or map, a Boolean has its own byte.
    fn skip_element(&mut self, kind: Kind, depth: usize) -> Read<()> {
        let kind = if matches!(kind, Kind::True | Kind::False) { Kind::Byte } else { kind };
        self.skip(kind, depth)
    }
}
