//! Any bytes as a model file and as a state: refused, or loaded completely. Any change of a file of a checkpoint:
//! found.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use mt::checkpoint::{self, Elements, NamedTensor, Slot};
use mt::train::state::TrainState;
use tempfile::TempDir;

const FILES: [&str; 4] =
    [checkpoint::MODEL_FILE, checkpoint::OPTIMIZER_FILE, checkpoint::STATE_FILE, checkpoint::MANIFEST_FILE];

/// A run, and its only checkpoint.
static RUN: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
    let run = tempfile::tempdir().unwrap();
    let tensors = [NamedTensor { name: "a", shape: &[2, 2], data: Elements::F32(&[1.0, 2.0, 3.0, 4.0]) }];
    let directory = checkpoint::save(run.path(), 1, &tensors, &tensors, &serde_json::json!({ "step": 1 })).unwrap();
    checkpoint::verify(&directory).unwrap();
    (run, directory)
});

fuzz_target!(|input: (&[u8], &[u8], u8, u16, &[u8])| {
    let (model, state, number, at, change) = input;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(checkpoint::MODEL_FILE);
    fs::write(&file, model).unwrap();
    let layout = [Slot { name: "a", shape: &[2, 3], offset: 0 }, Slot { name: "b", shape: &[4], offset: 6 }];
    let mut flat = [0f32; 10];
    if checkpoint::load_into(&file, &layout, &mut flat).is_ok() {
        assert!(flat.iter().all(|value| value.is_finite()));
    }
    fs::write(folder.path().join(checkpoint::STATE_FILE), state).unwrap();
    if let Ok(json) = checkpoint::read_state(folder.path()) {
        let _ = TrainState::from_json(json);
    }

    let (_, directory) = &*RUN;
    let path = directory.join(FILES[usize::from(number) % FILES.len()]);
    let whole = fs::read(&path).unwrap();
    let at = usize::from(at) % (whole.len() + 1);
    // Replaces bytes; at the end, it adds some.
    let changed = [&whole[..at], change, whole.get(at + change.len()..).unwrap_or_default()].concat();
    fs::write(&path, &changed).unwrap();
    assert_eq!(checkpoint::verify(directory).is_ok(), changed == whole);
    fs::write(&path, &whole).unwrap();
});
