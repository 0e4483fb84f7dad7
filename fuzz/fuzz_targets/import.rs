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
    // Of all families of `transformers`: the text of the options says which.
    let names = import::Format::all().filter_map(import::Format::family).flat_map(|family| family.files());
    for name in names.filter(|name| !name.ends_with("_config.json")) {
        let text = if name.ends_with(".json") { vocabulary } else { decoder };
        write(name, if name == import::hf::WEIGHTS { bytes } else { text.as_bytes() });
    }
    let _ = import::import(folder.path());
});
