//! `mt import` of Marian's own models. `make test-interop` tests that they compute the same as in Marian.

mod common;

use common::npz;
use common::project::{Project, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::Value;

fn translate(project: &Project, model: &str, line: &str) -> String {
    let output = project.mt(&["translate", line, "--model", model, "--max-length", "8"]);
    succeeds(&output);
    stdout(&output)
}

#[test]
fn a_release_of_opus_mt() {
    let project = Project::new();
    npz::write(&project.path("opus"), |_, _| ());
    succeeds(&project.mt(&["import", "opus", "--out", "model"]));
    let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", "model", "--json"]))).unwrap();
    let config = &info["config"];
    for (section, key, value) in [
        ("model", "activation", Value::from("swish")),
        ("model", "sinusoid", "tensor2tensor".into()),
        ("model", "norm", "post".into()),
        ("model", "norm_eps", 1e-6.into()),
        ("model", "output_bias", true.into()),
        ("model", "scale_embedding", true.into()),
        ("model", "tie", "all".into()),
        ("decode", "beam", 3.into()),
        ("decode", "length_penalty", 1.0.into()),
    ] {
        assert_eq!(config[section][key], value, "{section}.{key}");
    }
    let tokens = project.mt_with_input(&["tokenize", "-q", "--model", "model"], b">>deu<< the cat\n");
    assert_eq!(stdout(&tokens), ">>deu<< ▁the ▁cat\n");
    let translation = translate(&project, "model", ">>deu<< the cat");
    // The .npz alone, or the folder without decoder.yml, gives the same model.
    succeeds(&project.mt(&["import", "opus/model.npz", "--out", "model2"]));
    assert_eq!(translate(&project, "model2", ">>deu<< the cat"), translation);
    std::fs::remove_file(project.path("opus/decoder.yml")).unwrap();
    succeeds(&project.mt(&["import", "opus", "--out", "model3"]));
    let bytes = |model: &str| std::fs::read(project.path(model).join("model.safetensors")).unwrap();
    assert_eq!(bytes("model3"), bytes("model"));
    let mut from_its_folder = project.command(&["import", "model.npz", "--out", "../model4"]);
    succeeds(&from_its_folder.current_dir(project.path("opus")).output().unwrap());
    assert_eq!(bytes("model4"), bytes("model"));
    // Nor does a byte order mark before its YAML change anything.
    npz::write(&project.path("marked"), |_, _| ());
    let mark = |name: &str| {
        let path = project.path("marked").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("\u{feff}{text}")).unwrap();
    };
    mark("decoder.yml");
    succeeds(&project.mt(&["import", "marked", "--out", "model5"]));
    assert_eq!(bytes("model5"), bytes("model"));
    // It can be used like any other model.
    succeeds(&project.mt(&["quantize", "model", "--out", "int8"]));
    succeeds(&project.mt(&["export", "model", "--format", "ct2", "--out", "ct2"]));
    let mut transcript = Transcript::new(&project);
    transcript.run("export model --format hf-marian --out hf");
    assert_transcript!(transcript);
}

/// Matrices are transposed, and the embeddings get a row for padding.
#[test]
fn arrays_are_turned_and_padding_added() {
    let project = Project::new();
    let mut expected = Vec::new();
    npz::write(&project.path("opus"), |_, arrays| {
        let (shape, values) = &arrays["encoder_l1_ffn_W1"];
        let [rows, columns] = [shape[0], shape[1]];
        expected = (0..columns * rows).map(|i| values[i % rows * columns + i / rows]).collect();
    });
    succeeds(&project.mt(&["import", "opus", "--out", "model"]));
    let device = candle_core::Device::Cpu;
    let tensors = candle_core::safetensors::load(project.path("model/model.safetensors"), &device).unwrap();
    let found = tensors["encoder.layers.0.feed_forward.fc1.weight"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(found, expected);
    let embeddings = tensors["source_embedding.weight"].to_vec2::<f32>().unwrap();
    assert_eq!(embeddings.len(), npz::pieces().len() + 1);
    assert!(embeddings.last().unwrap().iter().all(|value| *value == 0.0));
    // Nothing is ever translated into it.
    let biases = tensors["output_projection.bias"].to_vec1::<f32>().unwrap();
    let (padding, others) = biases.split_last().unwrap();
    assert!(*padding == -1e4 && others.iter().all(|bias| bias.abs() < 100.0), "{padding}");
}

#[test]
fn text_that_is_split_already() {
    let project = Project::new();
    npz::write(&project.path("words"), |_, _| ());
    for side in ["source", "target"] {
        std::fs::remove_file(project.path(&format!("words/{side}.spm"))).unwrap();
    }
    let mut transcript = Transcript::new(&project);
    transcript.run("import words --out model");
    assert_transcript!(transcript);
    let tokens = project.mt_with_input(&["tokenize", "-q", "--model", "model"], "▁the ▁cat x@@ y\n".as_bytes());
    assert_eq!(stdout(&tokens), "▁the ▁cat x@@ y\n");
    // Words that the vocabulary lacks become unknown, which is never in a translation.
    let translation = translate(&project, "model", "▁the ▁cat x@@ y");
    assert!(!translation.contains("<unk>") && !translation.contains("<pad>"), "{translation}");
    assert!(translation.trim().split(' ').all(|piece| npz::pieces().iter().any(|other| other == piece)));
}

/// Marian takes a vocabulary that is not YAML by its name for one piece a line.
#[test]
fn a_vocabulary_in_plain_lines() {
    let project = Project::new();
    npz::write(&project.path("yaml"), |_, _| ());
    npz::write(&project.path("plain"), |_, _| ());
    let decoder = std::fs::read_to_string(project.path("plain/decoder.yml")).unwrap();
    project.write("plain/decoder.yml", decoder.replace("opus.vocab.yml", "opus.vocab.txt"));
    std::fs::remove_file(project.path("plain/opus.vocab.yml")).unwrap();
    let lines = |pieces: &[String]| pieces.iter().map(|piece| format!("{piece}\n")).collect::<String>();
    project.write("plain/opus.vocab.txt", lines(&npz::pieces()));
    for name in ["yaml", "plain"] {
        succeeds(&project.mt(&["import", name, "--out", &format!("{name}-model")]));
    }
    for name in ["model.safetensors", "tokenizer.src.json"] {
        let read = |model: &str| std::fs::read(project.path(&format!("{model}-model/{name}"))).unwrap();
        assert_eq!(read("yaml"), read("plain"), "{name}");
    }
    let mut broken = npz::pieces();
    broken[3] = String::new();
    project.write("plain/opus.vocab.txt", lines(&broken));
    let mut transcript = Transcript::new(&project);
    transcript.run("import plain --out model");
    broken[3] = "▁the\t-3.2".into();
    project.write("plain/opus.vocab.txt", lines(&broken));
    transcript.run("import plain --out model");
    assert_transcript!(transcript);
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let project = Project::new();
    npz::write(&project.path("options"), |options, _| {
        *options = options
            .replace("right-left: false", "right-left: true")
            .replace("autoreg: self-attention", "autoreg: rnn")
            .replace("activation: swish", "activation: gelu")
            .replace("top: \"\"", "top: a")
            .replace("enc-depth: 1", "enc-depth: x")
            .replace("tied-layers:\n  []", "tied-layers:\n  - 1")
            .replace("ulr: false", "transformer-new: 3");
    });
    npz::write(&project.path("arrays"), |_, arrays| {
        let moved = arrays.remove("decoder_l1_context_Wq").unwrap();
        arrays.insert("decoder_l1_context_Wx".into(), moved);
        arrays.get_mut("encoder_l1_ffn_W1").unwrap().0 = vec![32, 16];
    });
    let mut transcript = Transcript::new(&project);
    transcript.run("import options --out model");
    transcript.run("import arrays --out model");
    assert_transcript!(transcript);
    assert!(!project.path("model").exists());
}

/// Whoever wrote the folder may name any file of this machine.
#[test]
fn only_files_in_the_folder_of_the_model_are_read() {
    let project = Project::new();
    npz::write(&project.path("opus"), |_, _| ());
    std::fs::rename(project.path("opus/opus.vocab.yml"), project.path("elsewhere.yml")).unwrap();
    let absolute = project.path("elsewhere.yml").to_str().unwrap().to_owned();
    for named in ["../elsewhere.yml", "elsewhere.yml", &absolute] {
        project.write("opus/decoder.yml", format!("models: [model.npz]\nvocabs: [{named}, {named}]\n"));
        let output = project.mt(&["import", "opus", "--out", "model"]);
        assert_eq!(output.status.code(), Some(1), "{named}");
        assert!(stderr(&output).contains("not in the folder of the model"), "{}", stderr(&output));
    }
    // A path of another machine.
    std::fs::rename(&absolute, project.path("opus/elsewhere.yml")).unwrap();
    succeeds(&project.mt(&["import", "opus", "--out", "model"]));
}

#[test]
fn files_that_do_not_go_together_are_named() {
    let project = Project::new();
    let fresh = |change: &dyn Fn()| {
        let _ = std::fs::remove_dir_all(project.path("opus"));
        npz::write(&project.path("opus"), |_, _| ());
        change();
        project.mt(&["import", "opus", "--out", "model"])
    };
    let decoder = |text: &str| project.write("opus/decoder.yml", text);
    let both = "models: [model.npz]\nvocabs: [opus.vocab.yml, opus.vocab.yml]\n";
    let beside = |name: &str| {
        std::fs::remove_file(project.path("opus/decoder.yml")).unwrap();
        std::fs::copy(project.path("opus/model.npz"), project.path("opus").join(name)).unwrap();
    };
    let remove = |name: &str| std::fs::remove_file(project.path("opus").join(name)).unwrap();
    let mut transcript = Transcript::new(&project);
    let mut wrong = |what: &str, change: &dyn Fn()| {
        transcript.note(what);
        transcript.record("mt import opus --out model", &fresh(change));
    };
    wrong("two models", &|| decoder("models: [a.npz, b.npz]\nvocabs: [x, y]\n"));
    wrong("no such vocabulary", &|| decoder("models: [model.npz]\nvocabs: [x.yml, opus.vocab.yml]\n"));
    wrong("one vocabulary", &|| decoder("models: [model.npz]\nvocabs: [opus.vocab.yml]\n"));
    wrong("keys of the search", &|| decoder(&format!("{both}word-penalty: 0.5\nbeam-size: many\n")));
    wrong("no YAML", &|| decoder("models: [model.npz]\nvocabs: *all\n"));
    wrong("no decoder.yml, and two vocabularies", &|| {
        remove("decoder.yml");
        project.write("opus/other.vocab.yml", "</s>: 0\n");
    });
    wrong("no target.spm", &|| remove("target.spm"));
    wrong("a compressed archive", &|| compress(&project.path("opus/model.npz")));
    wrong("no decoder.yml, and two models", &|| beside("other.npz"));
    wrong("too short a vocabulary", &|| project.write("opus/opus.vocab.yml", "</s>: 0\n<unk>: 1\n"));
    wrong("no id", &|| project.write("opus/opus.vocab.yml", "</s>: zero\n"));
    wrong("no archive", &|| project.write("opus/model.npz", "PK"));
    wrong("no options", &|| npz::write(&project.path("opus"), |options, _| options.clear()));
    wrong("options of another form", &|| npz::write(&project.path("opus"), |options, _| *options = "- list\n".into()));
    // The archive's checksum reveals a flipped bit in a weight.
    wrong("a flipped bit", &|| {
        let mut bytes = std::fs::read(project.path("opus/model.npz")).unwrap();
        bytes[1000] ^= 1;
        std::fs::write(project.path("opus/model.npz"), bytes).unwrap();
    });
    assert!(!project.path("model").exists());
    // What one training has saved.
    wrong("an older model of the same training", &|| beside("model.iter9.npz"));
    let _ = fresh(&|| ());
    transcript.run("import opus/decoder.yml --out other");
    assert_transcript!(transcript);
    // As the error for two vocabularies advises.
    let _ = fresh(&|| decoder("vocabs: [opus.vocab.yml, opus.vocab.yml]\n"));
    succeeds(&project.mt(&["import", "opus", "--out", "advised"]));
    for (text, unknown) in [("yes", true), ("1", true), ("True", true), ("false", false), ("0", false)] {
        let _ = std::fs::remove_dir_all(project.path("unknown"));
        let _ = fresh(&|| {
            decoder(&format!("{both}allow-unk: {text}\n"));
            ["source.spm", "target.spm"].into_iter().for_each(remove);
        });
        let output = project.mt(&["import", "opus", "--out", "unknown"]);
        assert_eq!(stderr(&output).contains("`allow-unk` is true"), unknown, "{text}: {}", stderr(&output));
    }
    // Truncated anywhere, the file is refused without a crash.
    let _ = fresh(&|| ());
    let whole = std::fs::read(project.path("opus/model.npz")).unwrap();
    for part in 1..24 {
        std::fs::write(project.path("opus/model.npz"), &whole[..whole.len() * part / 24]).unwrap();
        let output = project.mt(&["import", "opus", "--out", "cut"]);
        assert_eq!(output.status.code(), Some(1), "{part}: {}", stderr(&output));
    }
}

/// Marks all arrays as deflated. They are not: they must be refused before they are read.
fn compress(npz: &std::path::Path) {
    let mut bytes = std::fs::read(npz).unwrap();
    // The method is at this offset of an entry in the archive's directory.
    let (signature, offset) = (b"PK\x01\x02", 10);
    let starts: Vec<usize> = (0..bytes.len() - 4).filter(|at| &bytes[*at..][..4] == signature).collect();
    assert!(!starts.is_empty());
    starts.iter().for_each(|at| bytes[at + offset] = 8);
    std::fs::write(npz, bytes).unwrap();
}
