//! The header of a tensor file: which tensors it has, and where.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::error::{Error, Result};
use crate::file;
use crate::limits::TENSOR_HEADER_BYTES;
use crate::signature::Signature;

/// Bytes of the length with which the file begins.
pub(super) const LENGTH_BYTES: u64 = 8;
/// The key of the metadata of the whole file.
pub(super) const METADATA_KEY: &str = "__metadata__";

/// A header that was found valid.
pub(crate) struct Header {
    /// Where the data begins in the file.
    pub data: u64,
    /// Its tensors, in the order of their data.
    pub tensors: Vec<(String, TensorInfo)>,
}

/// The error for a file that is none.
pub(super) fn invalid(path: &Path, why: &str) -> Error {
    Error::failure(format!("not a valid safetensors file: {why}"))
        .at(path)
        .help("it is damaged or truncated; fetch it again, or use another checkpoint")
}

/// Reads and checks a file's header; allocates nothing before its length is checked.
pub(crate) fn read(file: &File, path: &Path) -> Result<Header> {
    let read_error = |error| Error::io("read the tensors", path, error);
    let invalid = |why: String| invalid(path, &why);
    file::refuse_placeholder(file).map_err(read_error)?;
    let size = file.metadata().map_err(read_error)?.len();
    let mut length = [0; LENGTH_BYTES as usize];
    if size < LENGTH_BYTES {
        return Err(invalid(format!("it has only {size} bytes")));
    }
    file.read_exact_at(&mut length, 0).map_err(read_error)?;
    let length = u64::from_le_bytes(length);
    if length > TENSOR_HEADER_BYTES || length > size - LENGTH_BYTES {
        let mut head = vec![0; size.min(1 << 12) as usize];
        file.read_exact_at(&mut head, 0).map_err(read_error)?;
        // One that was cut short is still such a file.
        let is_other = |_: &Signature| !head.get(LENGTH_BYTES as usize..).is_some_and(|json| json.starts_with(b"{"));
        let what = Signature::binary(&head).filter(is_other).map(|other| other.to_string());
        return Err(invalid(what.unwrap_or_else(|| format!("a header of {length} bytes in a file of {size}"))));
    }
    let mut json = vec![0; length as usize];
    file.read_exact_at(&mut json, LENGTH_BYTES).map_err(read_error)?;
    let Entries(mut tensors) =
        serde_json::from_slice(&json).map_err(|error| invalid(format!("its header: {error}")))?;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    // Checks that the tensors are contiguous and have the sizes of their shapes.
    let checked = Metadata::new(None, tensors.clone()).map_err(|error| invalid(error.to_string()))?;
    let data = LENGTH_BYTES + length;
    if (checked.data_len() as u64).checked_add(data) != Some(size) {
        return Err(invalid(format!("{} bytes of tensors in a file of {size}", checked.data_len())));
    }
    file::refuse_holes(file).map_err(read_error)?;
    Ok(Header { data, tensors })
}

/// The tensors of a header. Unlike a map, it refuses a name that occurs twice.
struct Entries(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("`{name}` occurs twice")));
                    }
                    if name == METADATA_KEY {
                        map.next_value::<HashMap<String, String>>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}
