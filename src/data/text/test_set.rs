//! Files of test sets, which are in memory as a whole: plain lines, or documents in XML or SGML.

use std::io::{BufRead, Read};
use std::path::Path;

use super::documents::{self, Version};
use super::lines::{Before, LineFile, not_utf8, read_all};
use super::packing::{Packing, open_packed, open_stream, refuse_documents};
use crate::error::Result;
use crate::limits;
use crate::signature::Signature;

/// What a file holds.
#[derive(Debug)]
pub enum TestFile {
    /// A sentence on each line.
    Lines(LineFile),
    /// Segments of documents.
    Versions(Vec<Version>),
}

/// Reads the file at `path`, unpacking it where it is compressed.
///
/// # Errors
/// It cannot be read or unpacked, it is very long, it is not UTF-8 (with line and column), or another program's
/// document.
pub fn read(path: &Path) -> Result<TestFile> {
    let (mut reader, packing) = open_packed(path)?;
    read_packed(&mut reader, packing, path)
}

/// As [`read`], from a stream that messages call `name`.
///
/// # Errors
/// Those.
pub fn read_from(stream: impl Read + Send + 'static, name: &Path) -> Result<TestFile> {
    let (mut reader, packing) = open_stream(stream).map_err(|error| Packing::None.failed(name, error))?;
    read_packed(&mut reader, packing, name)
}

fn read_packed(reader: &mut (impl BufRead + ?Sized), packing: Packing, path: &Path) -> Result<TestFile> {
    let bytes = read_all(reader, packing, path, limits::TEST_SET_BYTES)?;
    let parse = |bytes: Vec<u8>| {
        if !Signature::is_test_set(&bytes) {
            refuse_documents(&bytes, path)?;
            return LineFile::from_bytes(path, bytes).map(TestFile::Lines);
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => documents::read(text.trim_start_matches('\u{FEFF}'), path).map(TestFile::Versions),
            Err(error) => Err(not_utf8(path, Before::default(), error.valid_up_to(), &bytes)),
        }
    };
    parse(bytes).map_err(|error| packing.inside(error))
}
