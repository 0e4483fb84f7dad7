//! The mean of several checkpoints' weights, as in "Attention Is All You Need", section 6.1, or of several models'
//! (Wortsman et al. 2022, "Model soups"; with weights, between a model and what became of it in fine-tuning, "Robust
//! fine-tuning of zero-shot models").

use std::path::PathBuf;

use super::format::{CHUNK, Slot, TensorFile, non_finite};
use super::locate::located;
use super::manifest::{Opened, damaged_among};
use super::{BASE_FILE, Located, MODEL_FILE};
use crate::error::{Error, Result};

/// Fills `flat` with the mean of the models in these checkpoint or model directories.
///
/// Sums are in `f64`, in the order of the directories, and rounded once. Beyond `flat` it needs one chunk of memory per
/// file, however large the model. The mean of one model is that model, bit for bit.
///
/// # Errors
/// No directory is given, one is damaged, or one does not fit `layout`; all of these are named at once.
pub fn average(directories: &[PathBuf], layout: &[Slot], flat: &mut [f32]) -> Result<()> {
    weighted_average(directories, &vec![1.0; directories.len()], layout, flat).map(|_| ())
}

/// Like [`average`], with a positive weight for each directory. Returns the similarity of the models: the mean cosine
/// between the weights of two of them (without the output's bias), each pair with its share of the result's norm.
/// Models of one training are near 1. Models trained apart are near 0, and their mean is of no use. 1 for a single
/// model.
///
/// # Errors
/// As there.
pub fn weighted_average(directories: &[PathBuf], weights: &[f64], layout: &[Slot], flat: &mut [f32]) -> Result<f64> {
    let Some(first) = directories.first() else {
        return Err(Error::failure("there is no checkpoint to average"));
    };
    // All are opened before the first is read, which takes long: training may remove one meanwhile. Of hundreds, only
    // the files that are read: a process may have only so many open.
    let opened: Vec<_> = directories.iter().map(|directory| Opened::open_weights(directory)).collect();
    let mut files = Vec::with_capacity(directories.len());
    // What the checkpoints of a run have in common.
    let mut problems = damaged_among(first, &[BASE_FILE]).unwrap_or_default();
    for (directory, opened) in directories.iter().zip(opened) {
        match opened.and_then(|opened| located(directory.clone(), opened.verify(&[MODEL_FILE])?, "", Vec::new())) {
            Ok(found) => files.push(found.tensors(layout)),
            Err(error) if error.helps().is_some() => problems.push(error),
            Err(error) => {
                problems.push(error.help("restore a copy of the checkpoint, or choose others with --checkpoints"))
            }
        }
    }
    mean(files, problems, weights, layout, flat)
}

/// As [`weighted_average`], of models that were located.
///
/// # Errors
/// As there.
pub fn average_of(models: &[&Located], weights: &[f64], layout: &[Slot], flat: &mut [f32]) -> Result<f64> {
    mean(models.iter().map(|model| model.tensors(layout)).collect(), Vec::new(), weights, layout, flat)
}

fn mean(
    opened: Vec<Result<TensorFile>>,
    mut problems: Vec<Error>,
    weights: &[f64],
    layout: &[Slot],
    flat: &mut [f32],
) -> Result<f64> {
    let mut files = Vec::with_capacity(opened.len());
    for file in opened {
        match file {
            Ok(file) => files.push(file),
            Err(error) => problems.push(error),
        }
    }
    let mut mean =
        Mean { sum: vec![0.0; CHUNK], values: vec![0.0; CHUNK], squares: vec![0.0; files.len()], sum_square: 0.0 };
    if problems.is_empty() {
        for (i, slot) in layout.iter().enumerate() {
            mean.average_tensor(&mut files, weights, i, slot, slot.slice(flat)?)?;
        }
    }
    problems.extend(files.into_iter().filter_map(|file| file.finish().err()));
    if problems.is_empty() { Ok(mean.likeness(weights)) } else { Err(Error::many(problems)) }
}

/// A mean while it is computed.
struct Mean {
    /// Buffers of one chunk: the weighted sum, and the values read from a file.
    sum: Vec<f64>,
    values: Vec<f32>,
    /// The squared norm of each model, and of the weighted sum.
    squares: Vec<f64>,
    sum_square: f64,
}

impl Mean {
    /// The mean cosine of two models, from |Σ w·v|² = Σ w²·|v|² + Σ over pairs of w·w'·|v|·|v'|·cos.
    fn likeness(&self, weights: &[f64]) -> f64 {
        let norms: Vec<f64> = self.squares.iter().zip(weights).map(|(square, weight)| weight * square.sqrt()).collect();
        let alone: f64 = norms.iter().map(|norm| norm * norm).sum();
        let pairs = norms.iter().sum::<f64>().powi(2) - alone;
        if pairs > 0.0 { (self.sum_square - alone) / pairs } else { 1.0 }
    }

    fn average_tensor(
        &mut self,
        files: &mut [TensorFile],
        weights: &[f64],
        i: usize,
        slot: &Slot,
        out: &mut [f32],
    ) -> Result<()> {
        let total: f64 = weights.iter().sum();
        // Where padding is left out of the softmax, its bias is so low that it would outweigh all that differs.
        let counts = slot.name != "output_projection.bias";
        let mut bad = vec![0; files.len()];
        for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
            for (k, (file, weight)) in files.iter_mut().zip(weights).enumerate() {
                let values = &mut self.values[..out.len()];
                file.read(i, chunk * CHUNK, values)?;
                bad[k] += non_finite(values);
                if counts {
                    self.squares[k] += values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
                }
                for (sum, &value) in self.sum.iter_mut().zip(values.iter()) {
                    // The first is taken as it is: 0.0 + -0.0 would lose the sign.
                    let value = weight * f64::from(value);
                    *sum = if k == 0 { value } else { *sum + value };
                }
            }
            for (out, sum) in out.iter_mut().zip(&self.sum) {
                *out = (sum / total) as f32;
                self.sum_square += if counts { sum * sum } else { 0.0 };
            }
        }
        for (file, bad) in files.iter_mut().zip(bad) {
            file.note_non_finite(slot.name, bad);
        }
        Ok(())
    }
}
