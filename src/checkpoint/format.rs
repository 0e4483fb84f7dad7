//! Tensor files in the safetensors format: eight bytes of header length, a JSON header, then the tensors' bytes.
//!
//! Writing streams: the data is never copied as a whole, and its digest is taken on the way. Reading goes tensor by
//! tensor straight into the caller's flat buffer. Everything is `f32`, little-endian, in the order given; but in a
//! quantised model a matrix [n, k] may hold 8-bit integers, with a tensor NAME_scale [n]: the value of 1 in each row.
//!
//! A checkpoint of a training with low-rank factors has only what is trained; the other parameters are in a file of its
//! run: [`super::factors`].

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorInfo};

use super::disk::{self, HashingFile};
use super::factors::{self, Factors};
use super::header::{self, Header, LENGTH_BYTES, METADATA_KEY};
use super::manifest::FileEntry;
use crate::error::{Error, Result};
use crate::escape::in_one_line;
use crate::file;
use crate::ops::matmul::int8::{Quantised, Values};

/// Elements converted at a time: the bytes stay in the second-level cache.
pub(super) const CHUNK: usize = 16 << 10;
const BYTES: usize = size_of::<f32>();
/// Problems spelled out in one error; a model of another shape would list hundreds.
const MAX_PROBLEMS: usize = 20;

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct NamedTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// Its elements, row-major.
    pub data: Elements<'a>,
}

/// The elements of a tensor.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// float32.
    F32(&'a [f32]),
    /// 8-bit integers.
    I8(&'a [i8]),
}

impl Elements<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I8(values) => values.len(),
        }
    }

    /// Bytes that they take in a file.
    pub fn bytes(&self) -> usize {
        self.len() * self.kind().1
    }

    fn kind(&self) -> (Dtype, usize) {
        match self {
            Self::F32(_) => (Dtype::F32, BYTES),
            Self::I8(_) => (Dtype::I8, 1),
        }
    }
}

/// Name of the tensor with the scales of a matrix of integers.
pub fn scale_name(name: &str) -> String {
    format!("{name}_scale")
}

/// A tensor to read, and its range of the flat buffer.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [usize],
    /// First element in the flat buffer.
    pub offset: usize,
}

impl Slot<'_> {
    /// Its part of the flat buffer.
    pub(super) fn slice<'f>(&self, flat: &'f mut [f32]) -> Result<&'f mut [f32]> {
        let end = elements(self.shape).and_then(|n| n.checked_add(self.offset));
        end.and_then(|end| flat.get_mut(self.offset..end))
            .ok_or_else(|| Error::failure(format!("`{}` {:?} lies outside the parameters", self.name, self.shape)))
    }
}

pub(super) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size))
}

/// Writes `tensors`, in this order, to the new file `directory/name`, and syncs it, with these keys and values in the
/// header.
pub(crate) fn write_with_metadata(
    directory: &Path,
    name: &str,
    tensors: &[NamedTensor],
    metadata: &[(&str, &str)],
) -> Result<FileEntry> {
    write(HashingFile::create(&disk::folder(directory)?, name)?, name, tensors, metadata)
}

/// As [`write_with_metadata`], to an empty file; its manifest entry is called `name`.
pub(super) fn write(
    mut file: HashingFile,
    name: &str,
    tensors: &[NamedTensor],
    metadata: &[(&str, &str)],
) -> Result<FileEntry> {
    let header = header_for(tensors, metadata).map_err(|error| error.at(file.path()))?;
    file.write(&(header.len() as u64).to_le_bytes())?;
    file.write(header.as_bytes())?;
    let mut bytes = vec![0; CHUNK * BYTES];
    for tensor in tensors {
        write_tensor(&mut file, tensor, &mut bytes)?;
    }
    file.finish(name)
}

fn write_tensor(file: &mut HashingFile, tensor: &NamedTensor, bytes: &mut [u8]) -> Result<()> {
    let values = match tensor.data {
        Elements::F32(values) => values,
        Elements::I8(values) => {
            for chunk in values.chunks(bytes.len()) {
                let bytes = &mut bytes[..chunk.len()];
                bytes.iter_mut().zip(chunk).for_each(|(byte, value)| *byte = value.cast_unsigned());
                file.write(bytes)?;
            }
            return Ok(());
        }
    };
    let bad = non_finite(values);
    if bad > 0 {
        // Loading would refuse this file: better to keep the previous checkpoint.
        return Err(Error::failure(format!("not saved: {bad} values of `{}` are NaN or infinite", tensor.name))
            .at(file.path())
            .help("training has diverged: resume from the previous checkpoint with a lower learning rate"));
    }
    for chunk in values.chunks(CHUNK) {
        let bytes = &mut bytes[..chunk.len() * BYTES];
        for (bytes, value) in bytes.chunks_exact_mut(BYTES).zip(chunk) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        file.write(bytes)?;
    }
    Ok(())
}

/// The JSON header, padded with spaces so that the data is aligned to eight bytes.
fn header_for(tensors: &[NamedTensor], metadata: &[(&str, &str)]) -> Result<String> {
    let mut header = String::from("{");
    if !metadata.is_empty() {
        let metadata: serde_json::Map<String, serde_json::Value> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        header += &format!("\"{METADATA_KEY}\":{}", serde_json::Value::from(metadata));
    }
    let mut names = HashSet::new();
    let mut begin = 0;
    for NamedTensor { name, shape, data } in tensors {
        if elements(shape) != Some(data.len()) {
            return Err(Error::failure(format!("`{name}` {shape:?} has {} elements", data.len())));
        }
        if *name == METADATA_KEY || !names.insert(*name) {
            return Err(Error::failure(format!("a file cannot hold a tensor named `{name}`, or cannot hold it twice")));
        }
        let (dtype, bytes) = data.kind();
        let end = begin + data.len() * bytes;
        let key = serde_json::to_string(name).map_err(|error| Error::failure(format!("`{name}`: {error}")))?;
        let separator = if header.len() == 1 { "" } else { "," };
        header +=
            &format!("{separator}{key}:{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}}");
        begin = end;
    }
    header.push('}');
    let padded = header.len().next_multiple_of(LENGTH_BYTES as usize);
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    Ok(header)
}

/// How many values are NaN or infinite.
pub(super) fn non_finite(values: &[f32]) -> usize {
    values.iter().filter(|value| !value.is_finite()).count()
}

/// Fills `flat` from a tensor file: each slot of `layout` from the tensor of its name. What no slot covers is left
/// alone.
///
/// # Errors
/// The file cannot be read or its header is invalid; or tensors are missing, superfluous, of another shape or type, or
/// hold NaN or infinities: all of these at once. `flat` is then partly filled.
pub fn load_into(file: &Path, layout: &[Slot], flat: &mut [f32]) -> Result<()> {
    TensorFile::open(file, layout)?.load_into(layout, flat)
}

/// Where a slot's data lies in the file.
#[derive(Debug)]
pub(super) enum Stored {
    /// Floats, beginning here.
    F32(u64),
    /// Integers, beginning here; and the scales of the rows, with the length of a row.
    I8 { begin: u64, scales: Vec<f32>, columns: usize },
    /// As the base has it.
    Base,
    /// As the base has it, and factors that change it.
    Factors(Factors),
}

impl Stored {
    fn begin(&self) -> u64 {
        match self {
            Self::F32(begin) | Self::I8 { begin, .. } => *begin,
            Self::Base | Self::Factors(_) => 0,
        }
    }
}

/// An open tensor file, matched with a layout.
#[derive(Debug)]
pub struct TensorFile {
    pub(super) data: Data,
    /// One per slot; `None` if its tensor does not fit.
    stored: Vec<Option<Stored>>,
    /// Elements of each slot.
    sizes: Vec<usize>,
    pub(super) problems: Vec<String>,
    /// If the file has only what is trained: the file with the other parameters.
    base: Option<Box<TensorFile>>,
}

impl TensorFile {
    /// Reads the header and compares it with `layout`; differences become [`TensorFile::finish`]'s error.
    ///
    /// # Errors
    /// The file cannot be read or its header is invalid.
    pub fn open(path: &Path, layout: &[Slot]) -> Result<Self> {
        let file = file::open_regular(path).map_err(|error| match file::is_not_regular(&error) {
            true => header::invalid(path, "it is not a regular file"),
            false => Error::io("read the tensors", path, error),
        })?;
        Self::read_header(Arc::new(file), path, layout)
    }

    /// As [`Self::open`], of a file that is open already.
    pub(super) fn read_header(file: Arc<File>, path: &Path, layout: &[Slot]) -> Result<Self> {
        let Header { data: start, tensors } = header::read(&file, path)?;
        let by_name: HashMap<&str, &TensorInfo> = tensors.iter().map(|(name, info)| (name.as_str(), info)).collect();
        let mut this = Self {
            data: Data { file, path: path.to_path_buf(), start, bytes: vec![0; CHUNK * BYTES] },
            stored: Vec::with_capacity(layout.len()),
            sizes: layout.iter().map(|slot| elements(slot.shape).unwrap_or(0)).collect(),
            problems: Vec::new(),
            base: None,
        };
        let mut expected = HashSet::new();
        let scale = this.scale(&by_name, &mut expected)?;
        if scale.is_some() {
            this.base = factors::open_base(path, layout)?.map(Box::new);
        }
        for slot in layout {
            let found = this.find(slot, &by_name, scale, &mut expected)?;
            this.problems.extend(found.as_ref().err().cloned());
            this.stored.push(found.ok());
        }
        for (name, info) in tensors.iter().filter(|(name, _)| !expected.contains(name)) {
            this.problems.push(format!("superfluous: `{}` {:?}", in_one_line(name), info.shape));
        }
        Ok(this)
    }

    /// As [`load_into()`], with the same layout.
    pub(super) fn load_into(mut self, layout: &[Slot], flat: &mut [f32]) -> Result<()> {
        // In the order of the file, so that it is read from front to back.
        let mut order: Vec<usize> = (0..layout.len()).collect();
        order.sort_unstable_by_key(|&i| self.stored[i].as_ref().map(Stored::begin));
        for i in order {
            let values = layout[i].slice(flat)?;
            self.read(i, 0, values)?;
            if self.stored[i].is_some() {
                self.note_non_finite(layout[i].name, non_finite(values));
            }
        }
        self.finish()
    }

    /// The location of a slot's data, or its problem; adds the names of its tensors to `expected`.
    fn find(
        &mut self,
        slot: &Slot,
        tensors: &HashMap<&str, &TensorInfo>,
        scale: Option<f32>,
        expected: &mut HashSet<String>,
    ) -> Result<std::result::Result<Stored, String>> {
        expected.insert(slot.name.to_owned());
        let info = tensors.get(slot.name).copied();
        if let (None, Some(scale), Some(_)) = (info, scale, &self.base) {
            return self.find_factors(slot, tensors, scale, expected);
        }
        let (rows, columns, info) = match (slot.shape, info) {
            (&[rows, columns], Some(info)) if info.dtype == Dtype::I8 && info.shape == slot.shape => {
                (rows, columns, info)
            }
            _ => return Ok(fit(slot, info).map(Stored::F32)),
        };
        let name = scale_name(slot.name);
        let fits = fit(&Slot { name: &name, shape: &[rows], offset: 0 }, tensors.get(name.as_str()).copied());
        Ok(match fits {
            Ok(begin) => {
                let mut scales = vec![0f32; rows];
                self.data.floats(begin, &mut scales)?;
                self.note_non_finite(&name, non_finite(&scales));
                expected.insert(name);
                Ok(Stored::I8 { begin: info.data_offsets.0 as u64, scales, columns })
            }
            Err(problem) => Err(problem),
        })
    }

    /// Whether any of the tensors are 8-bit integers.
    pub fn is_quantised(&self) -> bool {
        self.stored.iter().flatten().any(|stored| matches!(stored, Stored::I8 { .. }))
    }

    /// Reads from slot `i`, beginning with its element `from`, as many values as `out` takes. A slot without a fitting
    /// tensor leaves `out` alone.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, i: usize, from: usize, out: &mut [f32]) -> Result<()> {
        match self.stored.get(i) {
            Some(Some(Stored::F32(begin))) => self.data.floats(begin + (from * BYTES) as u64, out),
            Some(Some(Stored::I8 { begin, scales, columns })) => {
                let mut element = from;
                let mut out = out.iter_mut();
                self.data.integers(begin + from as u64, out.len(), |bytes| {
                    for (byte, out) in bytes.iter().zip(&mut out) {
                        *out = f32::from(byte.cast_signed()) * scales[element / columns];
                        element += 1;
                    }
                })
            }
            Some(Some(Stored::Base)) => self.base.as_mut().map_or(Ok(()), |base| base.read(i, from, out)),
            Some(Some(Stored::Factors(factors))) => {
                self.base.as_mut().map_or(Ok(()), |base| base.read(i, from, out))?;
                factors.add_to(out, from);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The tensor of slot `i`, as it is stored; zeros for one that does not fit. NaN and infinities are counted among
    /// the problems.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn parameter(&mut self, i: usize, name: &str) -> Result<Values> {
        let size = self.sizes[i];
        if let Some(Stored::I8 { begin, scales, .. }) = &self.stored[i] {
            let mut values = Vec::with_capacity(size);
            self.data.integers(*begin, size, |bytes| values.extend(bytes.iter().map(|byte| byte.cast_signed())))?;
            return Ok(Values::I8(Quantised { values, scales: scales.clone() }));
        }
        let mut values = vec![0f32; size];
        self.read(i, 0, &mut values)?;
        self.note_non_finite(name, non_finite(&values));
        Ok(Values::F32(values))
    }

    /// Notes a problem if the tensor `name` has `bad` > 0 values that are NaN or infinite.
    pub fn note_non_finite(&mut self, name: &str, bad: usize) {
        if bad > 0 {
            self.problems.push(format!("NaN or infinite: {bad} values of `{name}`"));
        }
    }

    /// Reports all problems as one error.
    ///
    /// # Errors
    /// There was a problem.
    pub fn finish(self) -> Result<()> {
        self.check()
    }

    /// Compares the file with the layout before anything is allocated for it.
    ///
    /// # Errors
    /// All problems found: tensors are missing, superfluous, of another shape or type, or hold NaN or infinities.
    pub fn check(&self) -> Result<()> {
        let count = self.problems.len();
        if count == 0 {
            return Ok(());
        }
        let mut what =
            format!("the tensors do not fit the model ({count} problem{})", if count == 1 { "" } else { "s" });
        for problem in self.problems.iter().take(MAX_PROBLEMS) {
            what += &format!("\n    {problem}");
        }
        if count > MAX_PROBLEMS {
            what += &format!("\n    and {} more", count - MAX_PROBLEMS);
        }
        Err(Error::failure(what)
            .at(&self.data.path)
            .help("the file belongs to another configuration or vocabulary, or it is damaged"))
    }
}

/// The part of the file after the header.
#[derive(Debug)]
pub(super) struct Data {
    /// Several readers may share it, so each read gives its offset.
    file: Arc<File>,
    path: PathBuf,
    /// Where the data begins.
    start: u64,
    bytes: Vec<u8>,
}

impl Data {
    /// Fills `out` with floats, starting at byte `begin` of the data.
    pub(super) fn floats(&mut self, begin: u64, out: &mut [f32]) -> Result<()> {
        let read_error = |error| Error::io("read the tensors", &self.path, error);
        let mut from = self.start + begin;
        for chunk in out.chunks_mut(CHUNK) {
            let bytes = &mut self.bytes[..chunk.len() * BYTES];
            self.file.read_exact_at(bytes, from).map_err(read_error)?;
            from += bytes.len() as u64;
            for (value, bytes) in chunk.iter_mut().zip(bytes.as_chunks::<BYTES>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        Ok(())
    }

    /// Passes `count` integers, starting at byte `begin` of the data, to `take`, in chunks.
    fn integers(&mut self, begin: u64, count: usize, mut take: impl FnMut(&[u8])) -> Result<()> {
        let read_error = |error| Error::io("read the tensors", &self.path, error);
        let (mut left, mut from) = (count, self.start + begin);
        while left > 0 {
            let bytes = &mut self.bytes[..left.min(CHUNK * BYTES)];
            self.file.read_exact_at(bytes, from).map_err(read_error)?;
            from += bytes.len() as u64;
            left -= bytes.len();
            take(bytes);
        }
        Ok(())
    }
}

/// Where the tensor begins in the data, if it fits the slot.
pub(super) fn fit(slot: &Slot, info: Option<&TensorInfo>) -> std::result::Result<u64, String> {
    let Slot { name, shape, .. } = slot;
    match info {
        None => Err(format!("missing: `{name}` {shape:?}")),
        Some(info) if info.shape != *shape => Err(format!("`{name}` is {:?}, the model has {shape:?}", info.shape)),
        Some(info) if info.dtype != Dtype::F32 => Err(format!("`{name}` is {:?}, not F32", info.dtype)),
        Some(info) => Ok(info.data_offsets.0 as u64),
    }
}
