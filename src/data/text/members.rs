//! The members of compressed data, one after the other, as `cat a.gz b.gz` makes them.

use std::io::{BufRead, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::packing::Packing;

/// A stretch of compressed data that can be unpacked by itself.
pub(super) enum Member<R: BufRead> {
    None(R),
    Gzip(GzDecoder<R>),
    Xz(XzDecoder<R>),
    Zstd(ZstdDecoder<'static, R>),
}

impl<R: BufRead> Member<R> {
    pub(super) fn open(reader: R, packing: Packing) -> std::io::Result<Self> {
        Ok(match packing {
            Packing::None => Self::None(reader),
            Packing::Gzip => Self::Gzip(GzDecoder::new(reader)),
            Packing::Xz => Self::Xz(XzDecoder::new(reader)),
            Packing::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(reader)?.single_frame();
                // The largest window that `zstd --long` can ask for.
                decoder.window_log_max(31)?;
                Self::Zstd(decoder)
            }
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::None(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
            Self::Xz(reader) => reader.read(buffer),
            Self::Zstd(reader) => reader.read(buffer),
        }
    }

    /// The reader, after the end of the member.
    fn into_inner(self) -> R {
        match self {
            Self::None(reader) => reader,
            Self::Gzip(reader) => reader.into_inner(),
            Self::Xz(reader) => reader.into_inner(),
            Self::Zstd(reader) => reader.finish(),
        }
    }
}

/// The members of a compressed file, one after the other. Zeros after the last one are padding, which tapes and
/// programs that write whole blocks leave.
pub(super) struct Members<R: BufRead> {
    pub(super) packing: Packing,
    pub(super) member: Option<Member<R>>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let rest = self.member.take().map(Member::into_inner);
            let next = rest.map(|rest| next_member(rest, self.packing)).transpose()?.flatten();
            self.member = next.map(|reader| Member::open(reader, self.packing)).transpose()?;
        }
        Ok(0)
    }
}

/// The reader at its next member, if there is one.
fn next_member<R: BufRead>(mut reader: R, packing: Packing) -> std::io::Result<Option<R>> {
    let mut padding = 0;
    loop {
        let bytes = reader.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        padding += zeros;
        match bytes.get(zeros..) {
            None | Some([]) if zeros == 0 => return Ok(None),
            None | Some([]) => reader.consume(zeros),
            Some(rest) => {
                // Between streams of xz there may be padding, too.
                let may_follow = padding == 0 || (packing == Packing::Xz && padding.is_multiple_of(4));
                if !may_follow || !packing.may_begin(rest) {
                    return Err(std::io::Error::new(ErrorKind::InvalidData, Trailing(packing)));
                }
                reader.consume(zeros);
                return Ok(Some(reader));
            }
        }
    }
}

/// There are data after the end of compressed ones that are no further member.
#[derive(Debug)]
struct Trailing(Packing);

impl std::fmt::Display for Trailing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after the end of the {} data, there are data of another kind", self.0.name())
    }
}

impl std::error::Error for Trailing {}

/// What to do about an error in compressed data; `test` is the command that finds damage in them.
pub fn damage_help(error: &std::io::Error, test: &str) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Trailing>()) {
        Some(Trailing(packing)) => help_on_trailing(*packing),
        None => format!("the file is damaged or cut short: test it with {test}"),
    }
}

fn help_on_trailing(packing: Packing) -> String {
    let command = match packing {
        Packing::Xz => "xz -dc --single-stream".to_owned(),
        _ => format!("{} -dc", packing.name()),
    };
    format!(
        "files may have been joined, or a longer one overwritten in part: fetch it again, or, if what comes before \
         these data is all of the text, write that with `{command} FILE > TEXT`, in spite of what it says about the \
         rest"
    )
}
