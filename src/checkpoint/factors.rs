//! Checkpoints of a training with low-rank factors ([`crate::ops::low_rank`]).
//! Their `model.safetensors` has the parameters that are trained whole, two factors for each matrix that is trained by
//! them, and the scale of the factors.
//! The other parameters, and what the factors are added to, are in the run's [`BASE_FILE`].

use std::collections::{HashMap, HashSet};
use std::path::Path;

use safetensors::tensor::TensorInfo;

use super::format::{Slot, Stored, TensorFile, elements, fit, non_finite};
use super::{BASE_FILE, run_and_step};
use crate::error::Result;
use crate::ops::low_rank::{SCALE, add_row, name_of_a, name_of_b};

/// The factors of a matrix.
#[derive(Debug)]
pub(super) struct Factors {
    /// [rank, columns]
    a: Vec<f32>,
    /// [rows, rank]
    b: Vec<f32>,
    columns: usize,
    scale: f32,
}

impl Factors {
    /// Adds scale · B · A to these numbers of the matrix, which begin with its element `from`.
    pub(super) fn add_to(&self, mut numbers: &mut [f32], from: usize) {
        let (rank, mut element) = (self.a.len() / self.columns, from);
        while !numbers.is_empty() {
            let (row, column) = (element / self.columns, element % self.columns);
            let (part, rest) = numbers.split_at_mut((self.columns - column).min(numbers.len()));
            element += part.len();
            add_row(part, &self.b[row * rank..][..rank], &self.a, self.columns, column, self.scale);
            numbers = rest;
        }
    }
}

/// The file with the other parameters, of a checkpoint's `model.safetensors`; `None` if `path` is none.
///
/// # Errors
/// The file cannot be read, or does not fit `layout`.
pub(super) fn open_base(path: &Path, layout: &[Slot]) -> Result<Option<TensorFile>> {
    let Some((run, _)) = path.parent().and_then(run_and_step) else { return Ok(None) };
    let base = TensorFile::open(&run.join(BASE_FILE), layout)?;
    base.check()?;
    Ok(Some(base))
}

impl TensorFile {
    /// The scale of factors, if the file has some.
    pub(super) fn scale(
        &mut self,
        tensors: &HashMap<&str, &TensorInfo>,
        expected: &mut HashSet<String>,
    ) -> Result<Option<f32>> {
        if !tensors.contains_key(SCALE) {
            return Ok(None);
        }
        Ok(self.factor(SCALE, &[1], tensors, expected)?.ok().map(|scale| scale[0]))
    }

    /// As [`Self::find`], of a slot that the file has no tensor for.
    /// The base has it, and the file may have its factors.
    pub(super) fn find_factors(
        &mut self,
        slot: &Slot,
        tensors: &HashMap<&str, &TensorInfo>,
        scale: f32,
        expected: &mut HashSet<String>,
    ) -> Result<std::result::Result<Stored, String>> {
        let (name_a, name_b) = (name_of_a(slot.name), name_of_b(slot.name));
        let shape_of_a = tensors.get(&*name_a).map(|info| &info.shape[..]);
        if shape_of_a.is_none() && !tensors.contains_key(&*name_b) {
            return Ok(Ok(Stored::Base));
        }
        let (&[rows, columns], Some(&[rank, _])) = (slot.shape, shape_of_a) else {
            return Ok(Err(format!("`{}` cannot have such factors", slot.name)));
        };
        let a = self.factor(&name_a, &[rank, columns], tensors, expected)?;
        let b = self.factor(&name_b, &[rows, rank], tensors, expected)?;
        Ok(a.and_then(|a| b.map(|b| Stored::Factors(Factors { a, b, columns, scale }))))
    }

    /// A tensor of this name and shape, or why it does not fit.
    fn factor(
        &mut self,
        name: &str,
        shape: &[usize],
        tensors: &HashMap<&str, &TensorInfo>,
        expected: &mut HashSet<String>,
    ) -> Result<std::result::Result<Vec<f32>, String>> {
        expected.insert(name.to_owned());
        let begin = match fit(&Slot { name, shape, offset: 0 }, tensors.get(name).copied()) {
            Ok(begin) => begin,
            Err(problem) => return Ok(Err(problem)),
        };
        // That the file is so long was seen in its header.
        let mut values = vec![0f32; elements(shape).unwrap_or(0)];
        self.data.floats(begin, &mut values)?;
        self.note_non_finite(name, non_finite(&values));
        Ok(Ok(values))
    }
}
