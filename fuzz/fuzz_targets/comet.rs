//! Any bytes as the pickle of a model of COMET, and any text as its settings and its encoder's.
#![no_main]

use std::fs::{self, File};
use std::io::Write;

use libfuzzer_sys::fuzz_target;
use mt::comet::{Comet, Found, Hardware, Place};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// The encoder's shape, unless the input has another.
const CONFIG: &str = r#"{ "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 16, "vocab_size": 12, "layer_norm_eps": 1e-5, "model_type": "xlm-roberta" }"#;

fuzz_target!(|input: (&str, &str, &[u8])| {
    let (settings, config, pickle) = input;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["checkpoints", "encoder"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::write(path("hparams.yaml"), settings).unwrap();
    fs::write(path("encoder/config.json"), if config.is_empty() { CONFIG } else { config }).unwrap();
    let mut archive = ZipWriter::new(File::create(path("checkpoints/model.ckpt")).unwrap());
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut add = |name: &str, bytes: &[u8]| {
        archive.start_file(format!("model/{name}"), stored).unwrap();
        archive.write_all(bytes).unwrap();
    };
    add("data.pkl", pickle);
    (0..8).for_each(|number| add(&format!("data/{number}"), &[0; 1 << 10]));
    archive.finish().unwrap();
    let place = Place::named(folder.path().to_str().unwrap()).unwrap();
    if let Ok(found) = Found::open(&place, true) {
        let _ = Comet::load(&found, &Hardware::EXACT);
    }
});
