//! A small model, and helpers of the test files.

mod damage;
mod hostile;
mod locating;
mod mean;
mod saving;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;

/// Names and shapes of the model; the last has no elements.
const SHAPES: [(&str, &[usize]); 4] = [
    ("source_embedding.weight", &[5, 3]),
    ("encoder.norm.weight", &[3]),
    ("näme \"quoted\"\n", &[2, 1, 2]),
    ("empty", &[0, 7]),
];
const ELEMENTS: usize = 22;
const FILES: [&str; 4] = [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, MANIFEST_FILE];

/// Tensors over consecutive parts of `values`.
fn tensors(values: &[f32]) -> Vec<NamedTensor<'_>> {
    layout()
        .iter()
        .map(|slot| {
            let end = slot.offset + slot.shape.iter().product::<usize>();
            NamedTensor { name: slot.name, shape: slot.shape, data: Elements::F32(&values[slot.offset..end]) }
        })
        .collect()
}

fn layout() -> Vec<Slot<'static>> {
    let mut offset = 0;
    SHAPES
        .iter()
        .map(|&(name, shape)| {
            let slot = Slot { name, shape, offset };
            offset += shape.iter().product::<usize>();
            slot
        })
        .collect()
}

/// Values that differ with `seed` and are awkward to print: their bits must survive.
fn values(seed: u32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..ELEMENTS as u32).map(|i| (i * 7 + seed) as f32 / 3.0 - 1.5).collect();
    values[1] = -0.0;
    values[2] = f32::from_bits(1);
    values[3] = f32::MAX;
    values
}

fn save_step(run: &Path, step: u64) -> PathBuf {
    let (model, optimizer) = (values(step as u32), values(step as u32 + 1));
    save(run, step, &tensors(&model), &tensors(&optimizer), &json!({ "step": step })).unwrap()
}

fn load_model(directory: &Path) -> Result<Vec<f32>> {
    let mut flat = vec![0.0; ELEMENTS];
    load_into(&directory.join(MODEL_FILE), &layout(), &mut flat)?;
    Ok(flat)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn steps(run: &Path) -> Vec<u64> {
    list(run).unwrap().iter().map(|(step, _)| *step).collect()
}

/// Flips one bit of a file.
fn flip(path: &Path, at: usize, bit: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << bit;
    fs::write(path, bytes).unwrap();
}

#[track_caller]
fn assert_says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
