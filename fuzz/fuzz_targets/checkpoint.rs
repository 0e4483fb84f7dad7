//! Any bytes as a model file, a state and a manifest: refused, or loaded completely.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::checkpoint::{self, Slot};
use mt::train::state::TrainState;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(checkpoint::MODEL_FILE);
    std::fs::write(&file, bytes).unwrap();
    let layout = [Slot { name: "a", shape: &[2, 3], offset: 0 }, Slot { name: "b", shape: &[4], offset: 6 }];
    let mut flat = [0f32; 10];
    if checkpoint::load_into(&file, &layout, &mut flat).is_ok() {
        assert!(flat.iter().all(|value| value.is_finite()));
    }
    for name in [checkpoint::STATE_FILE, checkpoint::MANIFEST_FILE] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    if let Ok(json) = checkpoint::read_state(folder.path()) {
        let _ = TrainState::from_json(json);
    }
    let _ = checkpoint::verify(folder.path());
});
