//! Any text as the options, the vocabulary and the `decoder.yml` of a Marian model; and any bytes as its `.npz`, and as
//! the `config.json` and weights of a `transformers` model.
#![no_main]

use std::fs;

use candle_core::{Device, Tensor};
use libfuzzer_sys::fuzz_target;
use mt::interop::import;

fuzz_target!(|input: (&str, &str, &str, &[u8])| {
    let (options, vocabulary, decoder, bytes) = input;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let weights = folder.path().join("model.npz");
    write("a.vocab.yml", vocabulary.as_bytes());
    if bytes.is_empty() && !options.is_empty() {
        let text = Tensor::from_slice(options.as_bytes(), options.len(), &Device::Cpu).unwrap();
        Tensor::write_npz(&[("special:model.yml", text)], &weights).unwrap();
    } else {
        write("model.npz", bytes);
    }
    let _ = import::import(&weights);
    write("decoder.yml", decoder.as_bytes());
    let _ = import::import(folder.path());
    write("config.json", options.as_bytes());
    write("vocab.json", vocabulary.as_bytes());
    write("source.spm", decoder.as_bytes());
    write("target.spm", decoder.as_bytes());
    write("model.safetensors", bytes);
    let _ = import::import(folder.path());
});
