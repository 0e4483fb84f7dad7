//! `model.npz`: arrays of numbers, and the options of the model as text.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use candle_core::npy::NpzTensors;
use candle_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::{file, limits};

/// The array whose bytes are the options.
const OPTIONS: &str = "special:model.yml";
/// The most arrays: a model has some hundreds, and each is looked up among all.
const MOST_ARRAYS: usize = 4096;
/// An array's header says its type and shape: far less.
const LONGEST_HEADER: u64 = 1 << 16;

/// The file.
pub(super) struct Npz {
    pub(super) path: PathBuf,
    arrays: NpzTensors,
}

impl Npz {
    /// Opens it.
    ///
    /// # Errors
    /// It is not one.
    pub(super) fn open(path: &Path) -> Result<Self> {
        refuse_unreadable(path)?;
        let arrays = NpzTensors::new(path).map_err(|error| {
            let what = format!("this is not a .npz: {error}");
            Error::failure(what).at(path).caused_by(error).help("it is damaged or incomplete: fetch it again")
        })?;
        let new = Self { path: path.to_path_buf(), arrays };
        new.verify()?;
        Ok(new)
    }

    /// Reads the whole archive, because a checksum is compared only when its entry has been read to the end.
    fn verify(&self) -> Result<()> {
        let mut archive = self.archive()?;
        if archive.len() > MOST_ARRAYS {
            let what = format!("it has {} arrays, more than {MOST_ARRAYS}: too many for a model", archive.len());
            return Err(Error::failure(what).at(&self.path));
        }
        // Otherwise a small file could take any time to read.
        if archive.has_overlapping_entries().map_err(|error| self.damaged("its directory", error))? {
            return Err(self.damaged("its directory", "entries lie over each other"));
        }
        for index in 0..archive.len() {
            let entry = archive.by_index(index).map_err(|error| self.damaged("an array", error))?;
            let name = entry.name().map(Cow::into_owned).unwrap_or_default();
            std::io::copy(&mut BufReader::new(entry), &mut std::io::sink())
                .map_err(|error| self.damaged(&name, error))?;
        }
        Ok(())
    }

    fn archive(&self) -> Result<zip::ZipArchive<BufReader<File>>> {
        let file = file::open_regular(&self.path).map_err(|error| Error::io("read the model", &self.path, error))?;
        zip::ZipArchive::new(BufReader::new(file)).map_err(|error| self.damaged("its directory", error))
    }

    fn damaged(&self, name: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        let error = error.into();
        let what = format!("`{name}` is damaged: {error}");
        Error::failure(what).at(&self.path).caused_by(error).help("fetch the file again")
    }

    /// The arrays of the model.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.arrays.names().into_iter().map(String::as_str).filter(|name| *name != OPTIONS).collect()
    }

    /// The options that the model was trained with, in YAML. They are an array of signed bytes, which candle cannot
    /// read.
    ///
    /// # Errors
    /// There are none, or they are not in Marian's format.
    pub(super) fn options(&self) -> Result<String> {
        let broken = |what: String| {
            let help = "Marian writes it; for a model without one, mt cannot know what it is";
            Error::failure(format!("{OPTIONS}: {what}")).at(&self.path).help(help)
        };
        let mut archive = self.archive()?;
        let entry = archive.by_name(&format!("{OPTIONS}.npy"));
        let entry = entry.map_err(|error| broken(error.to_string()).caused_by(error))?;
        let mut bytes = Vec::new();
        let read = entry.take(limits::IMPORTED_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| broken(error.to_string()).caused_by(error))?;
        let text = contents(&bytes).ok_or_else(|| broken("not an array of bytes".to_owned()))?;
        // It ends with zeros.
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = std::str::from_utf8(text);
        text.map(str::to_owned).map_err(|error| broken("not UTF-8 text".to_owned()).caused_by(error))
    }

    /// The values of an array, which must have this shape.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn values(&self, name: &str, shape: &[usize]) -> std::result::Result<Vec<f32>, String> {
        let cannot = |error: candle_core::Error| format!("`{name}` cannot be read: {error}");
        // Check before anything is allocated.
        let (found, kind) = self.arrays.get_shape_and_dtype(name).map_err(cannot)?;
        if found.dims() != shape {
            return Err(format!("`{name}` is {:?}, the model has {shape:?}", found.dims()));
        }
        if !kind.is_float() {
            return Err(format!("`{name}` has numbers of the type {}, not floating point", kind.as_str()));
        }
        let tensor = self.arrays.get(name).map_err(cannot)?.ok_or_else(|| format!("missing: `{name}`"))?;
        floats(name, &tensor)
    }
}

/// The values of a tensor in single precision.
///
/// # Errors
/// What is wrong with it.
fn floats(name: &str, tensor: &Tensor) -> std::result::Result<Vec<f32>, String> {
    if !tensor.dtype().is_float() {
        return Err(format!("`{name}` has numbers of the type {}, not weights", tensor.dtype().as_str()));
    }
    let read = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
    let values = read().map_err(|error| format!("`{name}` cannot be read: {error}"))?;
    match values.iter().filter(|value| !value.is_finite()).count() {
        0 => Ok(values),
        count => Err(format!("`{name}` has {count} values that are NaN or infinite")),
    }
}

/// Refuses weights that were not fetched, or not to the end, before the library reads all of them.
fn refuse_unfetched(weights: &Path) -> Result<()> {
    let refused = file::open_regular(weights).and_then(|file| {
        file::refuse_placeholder(&file)?;
        file::refuse_holes(&file)
    });
    refused.map_err(|error| Error::io("read the model", weights, error))
}

/// Refuses arrays that numpy has compressed, because the reader takes stored ones only, as Marian writes them; and
/// arrays for whose headers it would take much memory.
fn refuse_unreadable(path: &Path) -> Result<()> {
    refuse_unfetched(path)?;
    let file = file::open_regular(path).map_err(|error| Error::io("read the model", path, error))?;
    // What is no archive is reported by the reader.
    let Ok(mut archive) = zip::ZipArchive::new(BufReader::new(file)) else { return Ok(()) };
    let arrays = archive.len();
    for index in 0..arrays {
        let mut begin = Vec::new();
        let is_read = archive.by_index(index).is_ok_and(|entry| entry.take(12).read_to_end(&mut begin).is_ok());
        if is_read && header(&begin).is_some_and(|(length, _)| length > LONGEST_HEADER) {
            let what = format!("the header of array {index} is said to have more than {LONGEST_HEADER} bytes");
            return Err(Error::failure(what).at(path).help("fetch the file again"));
        }
    }
    let is_compressed = |index: usize| {
        archive.by_index_raw(index).is_ok_and(|entry| entry.compression() != zip::CompressionMethod::Stored)
    };
    if !(0..arrays).any(is_compressed) {
        return Ok(());
    }
    let what = "its arrays are compressed, as numpy.savez_compressed writes them, and only stored ones are read";
    let help = "in Python: numpy.savez(\"model.npz\", **numpy.load(FILE)), then import that";
    Err(Error::failure(what).at(path).help(help))
}

/// The length of an array's header, and what follows this number.
fn header(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes.strip_prefix(b"\x93NUMPY")? {
        [1, _, low, high, rest @ ..] => Some((u64::from(u16::from_le_bytes([*low, *high])), rest)),
        [2 | 3, _, a, b, c, d, rest @ ..] => Some((u64::from(u32::from_le_bytes([*a, *b, *c, *d])), rest)),
        _ => None,
    }
}

/// What follows the header of an array.
fn contents(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = header(bytes)?;
    rest.get(usize::try_from(length).ok()?..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_versions() {
        assert_eq!(contents(b"\x93NUMPY\x01\x00\x03\x00abctext"), Some(&b"text"[..]));
        assert_eq!(contents(b"\x93NUMPY\x02\x00\x03\x00\x00\x00abctext"), Some(&b"text"[..]));
        for broken in [&b""[..], b"\x93NUMPY", b"\x93NUMPY\x03\x00\x00\x00", b"\x93NUMPY\x01\x00\xff\xffabc", b"PK"] {
            assert_eq!(contents(broken), None);
        }
    }
}
