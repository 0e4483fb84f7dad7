//! Any text as a configuration: errors with their places, or a configuration that reading back its own dump reproduces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mt::config;

fuzz_target!(|text: &str| {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fuzzed.toml");
    std::fs::write(&file, text).unwrap();
    match config::load(std::slice::from_ref(&file), &[]) {
        Ok(config) => {
            let _ = config::load_for_training(std::slice::from_ref(&file), &[]);
            std::fs::write(&file, config::to_toml(&config)).unwrap();
            assert_eq!(config::load_resolved(&file).unwrap(), config);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
