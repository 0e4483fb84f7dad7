//! The weights: the tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` lists. They are
//! read piece by piece, straight into their places: a model takes its size in memory, and no more.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, TensorInfo};
use serde_json::Value;

use super::folder::{INDEX, WEIGHTS, read_json};
use crate::checkpoint::header::{self, Header};
use crate::error::{Error, Result};
use crate::escape::{brief, quoted};
use crate::file;

/// Numbers converted at a time.
const CHUNK: usize = 1 << 18;

/// The tensors of a model.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    /// What messages name: the only file, or the list of all.
    pub(super) path: PathBuf,
    files: Vec<Opened>,
    tensors: BTreeMap<String, Place>,
}

/// A file of tensors.
#[derive(Debug)]
struct Opened {
    path: PathBuf,
    file: File,
    /// Where its data begins.
    data: u64,
}

/// Where a tensor is.
#[derive(Debug)]
struct Place {
    file: usize,
    info: TensorInfo,
}

/// The names of the files with a folder's weights, as its index lists them.
///
/// # Errors
/// The index cannot be read, or names what is no file of the folder.
pub fn listed(folder: &Path) -> Result<BTreeMap<String, String>> {
    let index = folder.join(INDEX);
    let json = read_json(&index)?;
    let wrong = |what: String| Error::failure(what).at(&index).help("it is damaged: fetch it again");
    let Some(map) = json.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()) else {
        return Err(wrong("it has no `weight_map`, which says in which file each tensor is".to_owned()));
    };
    let name = |(tensor, file): (&String, &Value)| match file.as_str() {
        Some(name) if is_plain(name) => Ok((tensor.clone(), name.to_owned())),
        _ => {
            let (tensor, file) = (quoted(tensor), brief(&file.to_string()).into_owned());
            Err(wrong(format!("it says that {tensor} is in {file}, which is not the name of a file in this folder")))
        }
    };
    map.iter().map(name).collect()
}

/// Whether a name is that of a file of the folder itself.
fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

impl WeightFiles {
    /// Opens the files of a folder, and reads which tensors they have.
    ///
    /// # Errors
    /// A file is missing or damaged, or is not what the index says.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let single = folder.join(WEIGHTS);
        let is_single = single.is_file();
        let path = if is_single { single } else { folder.join(INDEX) };
        let mut new = Self { path, files: Vec::new(), tensors: BTreeMap::new() };
        if is_single {
            new.add(new.path.clone())?;
            return Ok(new);
        }
        let listed = listed(folder)?;
        let mut names: Vec<&String> = listed.values().collect();
        names.sort_unstable();
        names.dedup();
        for name in &names {
            new.add(folder.join(name))?;
        }
        let is_there = |(tensor, file): &(&String, &String)| {
            new.tensors.get(*tensor).is_some_and(|place| names.get(place.file) == Some(file))
        };
        if let Some((tensor, file)) = listed.iter().find(|entry| !is_there(entry)) {
            let what = format!("it says that {} is in {file}, which does not have it", quoted(tensor));
            return Err(Error::failure(what).at(&new.path).help("the files are of different models: fetch them again"));
        }
        Ok(new)
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let file = file::open_regular(&path).map_err(|error| Error::io("read the tensors", &path, error))?;
        let Header { data, tensors } = header::read(&file, &path)?;
        for (name, info) in tensors {
            if let Some(other) = self.tensors.get(&name) {
                let other = self.files.get(other.file).map_or(&path, |file| &file.path);
                let what = format!("{} is also in {}", quoted(&name), other.display());
                return Err(Error::failure(what).at(&path).help("keep one of them"));
            }
            self.tensors.insert(name, Place { file: self.files.len(), info });
        }
        self.files.push(Opened { path, file, data });
        Ok(())
    }

    /// The bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| Some(file.file.metadata().ok()?.len())).sum()
    }

    /// The shape of a tensor, if it is there.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|place| place.info.shape.as_slice())
    }

    /// The names of all tensors, with their shapes.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|(name, place)| (name.as_str(), place.info.shape.as_slice()))
    }

    /// Passes the values of a tensor, in single precision, to `take`, run after run, with the index of the first.
    ///
    /// # Errors
    /// What is wrong with it: it is not there, is not of floats, cannot be read, or has values that are not finite.
    pub(super) fn each(&self, name: &str, mut take: impl FnMut(usize, &[f32])) -> std::result::Result<(), String> {
        let place = self.tensors.get(name).ok_or_else(|| format!("missing: `{name}`"))?;
        let unusable = |error: &dyn std::fmt::Display| format!("`{name}` cannot be read: {error}");
        let opened = self.files.get(place.file).ok_or_else(|| unusable(&"its file is not open"))?;
        let dtype = match place.info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F64 => DType::F64,
            other => return Err(format!("`{name}` has numbers of the type {other}, not weights")),
        };
        let (width, count) = (dtype.size_in_bytes(), place.info.shape.iter().product::<usize>());
        let (mut bytes, mut bad) = (vec![0; CHUNK.min(count) * width], 0);
        let begin = opened.data + place.info.data_offsets.0 as u64;
        for first in (0..count).step_by(CHUNK) {
            let length = CHUNK.min(count - first);
            let bytes = bytes.get_mut(..length * width).unwrap_or_default();
            opened.file.read_exact_at(bytes, begin + (first * width) as u64).map_err(|error| unusable(&error))?;
            let read = || {
                let tensor = Tensor::from_raw_buffer(bytes, dtype, &[length], &Device::Cpu)?;
                tensor.to_dtype(DType::F32)?.to_vec1::<f32>()
            };
            let values = read().map_err(|error| unusable(&error))?;
            bad += values.iter().filter(|value| !value.is_finite()).count();
            take(first, &values);
        }
        if bad > 0 { Err(format!("`{name}` has {bad} values that are NaN or infinite")) } else { Ok(()) }
    }

    /// The values of a tensor.
    ///
    /// # Errors
    /// As for [`Self::each`].
    pub(crate) fn values(&self, name: &str) -> std::result::Result<Vec<f32>, String> {
        let mut all = Vec::new();
        self.each(name, |_, values| all.extend_from_slice(values))?;
        Ok(all)
    }
}
