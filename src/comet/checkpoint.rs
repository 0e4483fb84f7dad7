//! The tensors of a model: of safetensors, or of PyTorch's checkpoints (`.ckpt`), a ZIP archive of raw numbers and a
//! pickle that says which tensors they are.
//!
//! Of what the pickle builds, only tensors and plain values are used: see [`pickle`].

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::pickle::Object;
use candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{self, member, plain};
use crate::error::{Error, Result};
use crate::escape::{hex, quoted};
use crate::interop::import::hf::WeightFiles;
use crate::{file, limits};

/// The pickle in an archive.
const PICKLE: &str = "data.pkl";

/// The first byte of a pickle; the second is a version.
const PROTOCOL: u8 = 0x80;
/// The version that PyTorch writes, and candle reads.
const LATEST: u8 = 2;
/// PyTorch has no tensors of more axes.
const MOST_AXES: usize = 64;

/// A checkpoint whose tensors can be read by name.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    tensors: Tensors,
    /// The plain values of `hyper_parameters`; of safetensors none.
    pub(super) settings: Map<String, Value>,
}

#[derive(Debug)]
enum Tensors {
    Archive {
        archive: RefCell<ZipArchive<BufReader<File>>>,
        /// The folder of all entries, with a slash.
        folder: String,
        tensors: HashMap<String, Stored>,
        /// The entries whose checksums have been compared.
        checked: RefCell<HashSet<String>>,
    },
    Safe(WeightFiles),
}

/// Where a tensor's numbers are.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    /// The entry below `data/`.
    key: String,
    numbers: DType,
    /// Numbers before its first.
    offset: usize,
    shape: Vec<usize>,
    /// How many numbers further the next one of each axis is.
    strides: Vec<usize>,
}

/// The type of numbers of a class of storages.
fn numbers(storage: &str) -> Option<DType> {
    match storage {
        "DoubleStorage" => Some(DType::F64),
        "FloatStorage" => Some(DType::F32),
        "HalfStorage" => Some(DType::F16),
        "BFloat16Storage" => Some(DType::BF16),
        _ => None,
    }
}

impl Checkpoint {
    /// Opens a checkpoint and reads what it holds, but no tensor.
    ///
    /// # Errors
    /// It is not one, or it is damaged.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let tensors = Tensors::Safe(WeightFiles::open(file::folder_of(path))?);
            return Ok(Self { path: path.to_path_buf(), tensors, settings: Map::new() });
        }
        let wrong = |what: String| Error::failure(what).at(path).help("it is damaged or incomplete: fetch it again");
        let mut file = file::open_regular(path).map_err(|error| Error::io("read the checkpoint", path, error))?;
        let mut first = [0; 2];
        if file.read_exact(&mut first).is_ok() && first[0] == PROTOCOL && first[1] <= 5 {
            let error = Error::failure("this is a checkpoint in the format of PyTorch before 1.6").at(path);
            return Err(error.help("load it with torch and save it again with torch.save, or as safetensors"));
        }
        file.rewind().map_err(|error| Error::io("read the checkpoint", path, error))?;
        file::refuse_placeholder(&file).map_err(|error| Error::io("read the checkpoint", path, error))?;
        let mut archive = ZipArchive::new(BufReader::new(file))
            .map_err(|error| wrong(format!("this is not a checkpoint of PyTorch: {error}")).caused_by(error))?;
        let names: Vec<String> = (0..archive.len())
            .filter_map(|index| Some(archive.by_index_raw(index).ok()?.name().ok()?.into_owned()))
            .collect();
        let name = names.iter().find(|name| name.strip_suffix(PICKLE).is_some_and(|folder| folder.ends_with('/')));
        let Some(name) = name else { return Err(wrong(format!("this is not a checkpoint of PyTorch: no {PICKLE}"))) };
        let folder = name[..name.len() - PICKLE.len()].to_owned();
        let bytes = entry(&mut archive, name, limits::PICKLE_BYTES).map_err(&wrong)?;
        if let [PROTOCOL, version, ..] = bytes[..]
            && version > LATEST
        {
            let what = format!("its pickle has the protocol {version}, and torch.save writes {LATEST}");
            return Err(Error::failure(what).at(path).help("load it with torch, and save it again with torch.save"));
        }
        if let Ok(order) = entry(&mut archive, &format!("{folder}byteorder"), 16)
            && order != b"little"
        {
            return Err(wrong("its numbers are not in little-endian order".to_owned()));
        }
        let root = pickle::read(&bytes).map_err(|what| wrong(format!("its pickle cannot be read: {what}")))?;
        let tensors = member(&root, "state_dict").map(tensors);
        let tensors = tensors.ok_or_else(|| wrong("it holds no `state_dict`".to_owned()))?;
        let settings = match member(&root, "hyper_parameters").and_then(plain) {
            Some(Value::Object(settings)) => settings,
            _ => Map::new(),
        };
        let tensors = Tensors::Archive { archive: RefCell::new(archive), folder, tensors, checked: RefCell::default() };
        Ok(Self { path: path.to_path_buf(), tensors, settings })
    }

    /// A checksum: of the names and the checksums of all entries of an archive, so that no tensor is read for it; of
    /// safetensors, of the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn digest(&self) -> Result<String> {
        let Tensors::Archive { archive, .. } = &self.tensors else {
            let digest = file::open_regular(&self.path).and_then(|mut file| {
                let mut hash = Sha256::new();
                std::io::copy(&mut file, &mut hash)?;
                Ok(hash.finalize())
            });
            return Ok(hex(&digest.map_err(|error| Error::io("read the checkpoint", &self.path, error))?));
        };
        let mut archive = archive.borrow_mut();
        let mut hash = Sha256::new();
        for index in 0..archive.len() {
            if let Ok(entry) = archive.by_index_raw(index) {
                let about = (entry.name().map(|name| name.into_owned()).ok(), entry.size(), entry.crc32());
                hash.update(format!("{about:?}"));
            }
        }
        Ok(hex(&hash.finalize()))
    }

    /// The shape of a tensor, if there is one.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        match &self.tensors {
            Tensors::Archive { tensors, .. } => tensors.get(name).map(|stored| &stored.shape[..]),
            Tensors::Safe(files) => files.shape(name),
        }
    }

    /// The numbers of a tensor.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>> {
        let wrong = |what: String| {
            Error::failure(format!("the tensor {}: {what}", quoted(name))).at(&self.path).help("fetch the file again")
        };
        let (archive, folder, tensors, checked) = match &self.tensors {
            Tensors::Archive { archive, folder, tensors, checked } => (archive, folder, tensors, checked),
            Tensors::Safe(files) => return files.values(name).map_err(wrong),
        };
        let stored = tensors.get(name).ok_or_else(|| wrong("it is missing".to_owned()))?;
        let Stored { key, numbers, offset, shape, strides } = stored;
        let too_large = || wrong("its size is impossible".to_owned());
        let count = shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size)).ok_or_else(too_large)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        // From the first number to the last.
        let last = shape
            .iter()
            .zip(strides)
            .try_fold(0usize, |last, (size, stride)| last.checked_add(size.saturating_sub(1).checked_mul(*stride)?));
        let span = last.and_then(|last| last.checked_add(1)).ok_or_else(too_large)?;
        if count > span {
            return Err(wrong("it repeats its numbers".to_owned()));
        }
        let [from, to] = [*offset, offset.checked_add(span).ok_or_else(too_large)?]
            .map(|count| count.saturating_mul(numbers.size_in_bytes()));
        let name = format!("{folder}data/{key}");
        // Several tensors may be parts of the same entry: only the first time is all of it read, and its checksum
        // compared.
        let is_first = checked.borrow_mut().insert(name.clone());
        let bytes = match is_first {
            true => {
                entry(&mut archive.borrow_mut(), &name, u64::MAX).map(|bytes| bytes.get(from..to).map(<[u8]>::to_vec))
            }
            false => part(&mut archive.borrow_mut(), &name, from..to),
        };
        let bytes = bytes.map_err(wrong)?.ok_or_else(|| wrong("it ends beyond its file".to_owned()))?;
        let values =
            Tensor::from_raw_buffer(&bytes, *numbers, &[span], &Device::Cpu)?.to_dtype(DType::F32)?.to_vec1()?;
        Ok(if is_contiguous(shape, strides) { values } else { row_by_row(&values, shape, strides) })
    }
}

/// The contents of an entry, which must not be compressed and not be longer than `most` bytes.
fn entry(archive: &mut ZipArchive<BufReader<File>>, name: &str, most: u64) -> std::result::Result<Vec<u8>, String> {
    let mut entry = archive.by_name(name).map_err(|error| format!("{}: {error}", quoted(name)))?;
    if entry.compression() != CompressionMethod::Stored {
        return Err(format!("{} is compressed, which PyTorch never does", quoted(name)));
    }
    if entry.size() > most {
        return Err(format!("{} has {} bytes, more than {most}", quoted(name), entry.size()));
    }
    let mut bytes = Vec::new();
    // Its checksum is compared at the end.
    entry.read_to_end(&mut bytes).map_err(|error| format!("{}: {error}", quoted(name)))?;
    Ok(bytes)
}

/// These bytes of an entry, which is not compressed; `None` if it ends before.
fn part(
    archive: &mut ZipArchive<BufReader<File>>,
    name: &str,
    range: Range<usize>,
) -> std::result::Result<Option<Vec<u8>>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", quoted(name));
    let mut entry = archive.by_name_seek(name).map_err(|error| failed(&error))?;
    entry.seek(SeekFrom::Start(range.start as u64)).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    entry.take(range.len() as u64).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    Ok((bytes.len() == range.len()).then_some(bytes))
}

/// The tensors of a table, by name.
fn tensors(object: &Object) -> HashMap<String, Stored> {
    let Object::Dict(pairs) = object else { return HashMap::new() };
    let named = |(name, value): &(Object, Object)| match name {
        Object::Unicode(name) => Some((name.clone(), tensor(value)?)),
        _ => None,
    };
    pairs.iter().filter_map(named).collect()
}

/// A tensor: the call of `torch._utils._rebuild_tensor_v2` with storage, offset, shape and strides.
fn tensor(object: &Object) -> Option<Stored> {
    let Object::Reduce { callable, args } = object else { return None };
    let (Object::Class { module_name, class_name }, Object::Tuple(args)) = (&**callable, &**args) else { return None };
    match (&module_name[..], &class_name[..], &args[..]) {
        ("torch._utils", "_rebuild_parameter", [data, ..]) => tensor(data),
        ("torch._utils", "_rebuild_tensor_v2", [Object::PersistentLoad(storage), offset, shape, strides, ..]) => {
            let Object::Tuple(storage) = &**storage else { return None };
            let [_, Object::Class { class_name, .. }, Object::Unicode(key), ..] = &storage[..] else { return None };
            let (shape, strides) = (sizes(shape)?, sizes(strides)?);
            if shape.len() != strides.len() || shape.len() > MOST_AXES || !key.bytes().all(|byte| byte.is_ascii_digit())
            {
                return None;
            }
            Some(Stored { key: key.clone(), numbers: numbers(class_name)?, offset: size(offset)?, shape, strides })
        }
        _ => None,
    }
}

fn size(object: &Object) -> Option<usize> {
    match object {
        Object::Int(number) => usize::try_from(*number).ok(),
        Object::Long(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

fn sizes(object: &Object) -> Option<Vec<usize>> {
    let Object::Tuple(list) = object else { return None };
    list.iter().map(size).collect()
}

/// Numbers in the order of their rows; each axis has its stride among `values`, and is not empty.
fn row_by_row(values: &[f32], shape: &[usize], strides: &[usize]) -> Vec<f32> {
    let (Some((size, shape)), Some((stride, strides))) = (shape.split_first(), strides.split_first()) else {
        return values.first().copied().into_iter().collect();
    };
    (0..*size).flat_map(|index| row_by_row(&values[index * stride..], shape, strides)).collect()
}

/// Whether the numbers lie one after the other, row by row.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1usize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(size, stride)| {
            let is_right = *size == 1 || *stride == expected;
            expected = expected.saturating_mul(*size);
            is_right
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever bytes of a real pickle are changed, reading it ends, and without a panic.
    #[test]
    fn changed_pickles_are_read_or_refused() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/comet/kiwi/checkpoints/model.ckpt");
        let mut archive = ZipArchive::new(BufReader::new(File::open(path).unwrap())).unwrap();
        let name = (0..archive.len()).map(|index| archive.by_index(index).unwrap().name().unwrap().into_owned());
        let name = name.into_iter().find(|name| name.ends_with(PICKLE)).unwrap();
        let whole = entry(&mut archive, &name, u64::MAX).unwrap();
        let look = |bytes: &[u8]| {
            let root = pickle::read(bytes)?;
            let settings = member(&root, "hyper_parameters").and_then(plain);
            Ok::<_, String>((member(&root, "state_dict").map_or(0, |state| tensors(state).len()), settings))
        };
        let (count, settings) = look(&whole).unwrap();
        assert!(count > 40 && settings.unwrap()["activations"] == "Tanh");
        let mut random = crate::rng::Stream::new(5, "pickles");
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            refused += usize::from(look(&bytes).is_err());
        }
        assert!((5_000..20_000).contains(&refused), "{refused}");
    }

    #[test]
    fn a_part_of_an_entry_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ckpt");
        let mut writer = zip::ZipWriter::new(File::create(&path).unwrap());
        let stored = zip::write::SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        writer.start_file("a/data/0", stored).unwrap();
        std::io::Write::write_all(&mut writer, b"0123456789").unwrap();
        writer.finish().unwrap();
        let mut archive = ZipArchive::new(BufReader::new(File::open(&path).unwrap())).unwrap();
        for (range, expected) in
            [(3..6, Some(&b"345"[..])), (0..10, Some(b"0123456789")), (8..11, None), (20..21, None)]
        {
            assert_eq!(part(&mut archive, "a/data/0", range.clone()).unwrap().as_deref(), expected, "{range:?}");
        }
        part(&mut archive, "a/data/1", 0..1).unwrap_err();
    }

    #[test]
    fn an_old_format_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.ckpt");
        std::fs::write(&path, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
        assert!(Checkpoint::open(&path).unwrap_err().to_string().contains("before 1.6"));
    }

    /// Three rows and two columns, stored by columns, with a number between them.
    #[test]
    fn numbers_are_in_the_order_of_rows() {
        let values = [0.0, 10.0, 20.0, -1.0, 1.0, 11.0, 21.0];
        assert!(!is_contiguous(&[3, 2], &[1, 4]) && is_contiguous(&[3, 1, 2], &[2, 9, 1]));
        assert_eq!(row_by_row(&values, &[3, 2], &[1, 4]), [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    }

    #[test]
    fn a_tensor_is_where_its_call_says() {
        let class =
            |module: &str, class: &str| Object::Class { module_name: module.to_owned(), class_name: class.to_owned() };
        let text = |text: &str| Object::Unicode(text.to_owned());
        let sizes = |sizes: &[i32]| Object::Tuple(sizes.iter().map(|size| Object::Int(*size)).collect());
        let call = |kind: &str, key: &str, offset: i32, shape: &[i32], strides: &[i32]| {
            let storage =
                Object::Tuple(vec![text("storage"), class("torch", kind), text(key), text("cpu"), Object::Int(9)]);
            let storage = Object::PersistentLoad(Box::new(storage));
            let args = vec![storage, Object::Int(offset), sizes(shape), sizes(strides), Object::Bool(false)];
            let callable = Box::new(class("torch._utils", "_rebuild_tensor_v2"));
            Object::Reduce { callable, args: Box::new(Object::Tuple(args)) }
        };
        let (shape, strides) = (vec![2, 1, 4], vec![4, 4, 1]);
        let stored = Stored { key: "7".to_owned(), numbers: DType::F16, offset: 3, shape, strides };
        assert_eq!(tensor(&call("HalfStorage", "7", 3, &[2, 1, 4], &[4, 4, 1])), Some(stored));
        for other in [
            call("HalfStorage", "7", 3, &[2; 65], &[1; 65]),
            call("HalfStorage", "7", 3, &[2, 4], &[4]),
            call("LongStorage", "7", 3, &[2], &[1]),
            call("FloatStorage", "../7", 3, &[2], &[1]),
            call("FloatStorage", "7", -3, &[2], &[1]),
            Object::Int(1),
        ] {
            assert_eq!(tensor(&other), None, "{other:?}");
        }
    }
}
