//! `mt import` and fine-tuning. `make test-interop` tests that an imported model computes the same as in its own
//! program.

mod common;

use common::datasets::Bench;
use common::hub::Pull;
use common::marian;
use common::project::{Project, file, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::{Value, json};

/// A project with an imported model in `model`.
fn imported() -> Project {
    let project = Project::new();
    marian::write(&project.path("opus"), |_, _| ());
    succeeds(&project.mt(&["import", "opus", "--out", "model"]));
    project
}

#[test]
fn every_command_takes_an_imported_model() {
    let project = imported();
    let info = project.mt(&["info", "model", "--json"]);
    let info: Value = serde_json::from_str(&stdout(&info)).unwrap();
    assert_eq!(info["config"]["model"]["activation"], "swish");
    assert_eq!(info["config"]["model"]["sinusoid"], "halves");
    assert_eq!(info["config"]["model"]["output_bias"], true);
    assert_eq!(info["config"]["decode"]["beam"], 3);
    assert_eq!(info["history"]["target_languages"], ">>fra<< >>deu<<");
    assert_eq!([0.1, 0.1], ["dropout", "embedding_dropout"].map(|key| info["config"]["model"][key].as_f64().unwrap()));
    let tokens = project.mt_with_input(&["tokenize", "-q", "--model", "model"], b">>deu<< the cat\nthe #\n");
    assert_eq!(stdout(&tokens), ">>deu<< ▁the ▁cat\n▁the ▁ #\n");
    let translate = |model: &str| {
        let output =
            project.mt(&["translate", ">>deu<< the cat", ">>deu<< a dog", "--model", model, "--max-length", "8"]);
        succeeds(&output);
        assert!(!stderr(&output).contains("warning: 1 of"), "{}", stderr(&output));
        stdout(&output)
    };
    let translations = translate("model");
    assert_eq!(translations.lines().count(), 2);
    succeeds(&project.mt(&["quantize", "model", "--out", "int8"]));
    succeeds(&project.mt(&["translate", ">>fra<< the cat", "--model", "int8", "--max-length", "4"]));
    succeeds(&project.mt(&["score", "--model", "model", "--src", "valid.en", "--tgt", "valid.de"]));
    succeeds(&project.mt(&["eval", "--model", "model", "--src", "valid.en", "--ref", "valid.de", "--max-length", "4"]));
    succeeds(&project.mt(&["export", "model", "--format", "ct2", "--out", "ct2"]));
    // Exporting and importing again changes nothing.
    succeeds(&project.mt(&["export", "model", "--format", "hf-marian", "--out", "again"]));
    for name in ["source.spm", "target.spm"] {
        assert_eq!(file(&project, "again", name), file(&project, "opus", name));
        assert_eq!(file(&project, "ct2", name), file(&project, "opus", name));
    }
    let read = |folder: &str, name: &str| -> Value { serde_json::from_slice(&file(&project, folder, name)).unwrap() };
    assert_eq!(read("again", "vocab.json"), read("opus", "vocab.json"));
    assert_eq!(read("again", "tokenizer_config.json")["tokenizer_class"], "MarianTokenizer");
    succeeds(&project.mt(&["import", "again", "--out", "model2"]));
    assert_eq!(translate("model2"), translations);
    assert_eq!(file(&project, "model2", "model.safetensors"), file(&project, "model", "model.safetensors"));
}

/// What stands in the place of a file until it is fetched.
#[test]
fn files_that_were_not_fetched_are_told() {
    let project = imported();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n";
    let page = "<!DOCTYPE html>\n<html>\n<title>404</title>\n</html>\n";
    let mut transcript = Transcript::new(&project);
    for name in ["model.safetensors", "config.json", "source.spm", "vocab.json"] {
        let whole = file(&project, "opus", name);
        for content in [pointer, page] {
            project.write(&format!("opus/{name}"), content);
            transcript.run("import opus --out other");
        }
        project.write(&format!("opus/{name}"), whole);
    }
    for name in ["model.safetensors", "tokenizer.src.json", "config.toml", "manifest.json"] {
        let whole = file(&project, "model", name);
        project.write(&format!("model/{name}"), pointer);
        transcript.run("translate --model model cat");
        project.write(&format!("model/{name}"), whole);
    }
    project.write("spm.model", pointer);
    transcript.run("tokenize --tokenizer spm.model cat");
    assert_transcript!(transcript);
}

#[test]
fn lines_without_a_language_are_told_of() {
    let project = imported();
    project.write("in", ">>deu<< the cat\nthe dog\n>>xxx<< a cat\n\n");
    let mut transcript = Transcript::new(&project);
    transcript.messages(&["translate", "--model", "model", "--min-length", "4", "--max-length", "4", "--input", "in"]);
    assert_transcript!(transcript);
}

/// transformers adds padding to Marian's vocabulary, with an embedding of zeros and a bias of zero, and leaves it out
/// of the softmax by `renormalize_logits` and `bad_words_ids`. All other logits may be lower by any constant.
#[test]
fn padding_has_no_share_of_any_probability() {
    let project = Project::new();
    let write = |name: &str, shift: f32, padding: f32, renormalizes: bool| {
        marian::write(&project.path(name), |config, tensors| {
            config["renormalize_logits"] = renormalizes.into();
            let (size, width) = (config["vocab_size"].as_u64().unwrap() as usize, 16);
            tensors.get_mut("model.shared.weight").unwrap().1[(size - 1) * width..].fill(0.0);
            let biases = &mut tensors.get_mut("final_logits_bias").unwrap().1;
            biases.iter_mut().for_each(|bias| *bias += shift);
            biases[size - 1] = padding;
        });
        succeeds(&project.mt(&["import", name, "--out", &format!("{name}-model")]));
    };
    write("without", 0.0, -1000.0, false);
    write("with", -15.0, 0.0, true);
    write("far", -300.0, 0.0, true);
    // Old versions of transformers left padding out without being told.
    write("old", -15.0, 0.0, false);
    project.write("tune.toml", FINE_TUNING);
    // Translations, and numbers: of theirs, of given ones and of fine-tuning.
    let results = |models: &[&str]| -> (Vec<String>, Vec<f64>) {
        let chosen: Vec<String> = models.iter().flat_map(|name| ["--model".into(), format!("{name}-model")]).collect();
        let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
        let json = |args: &[&str]| -> Vec<Value> {
            let output = project.mt(&[args, &["-q", "--json"], &chosen].concat());
            succeeds(&output);
            stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        for beam in ["1", "4"] {
            let args = ["translate", "--input", "valid.en", "--max-length", "8", "--beam", beam];
            for line in json(&args) {
                texts.push(line["translation"].as_str().unwrap().to_owned());
                numbers.push(line["score"].as_f64().unwrap());
            }
        }
        for line in json(&["score", "--src", "valid.en", "--tgt", "valid.de"]) {
            numbers.extend(line["token_log_probs"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap()));
        }
        if let [model] = models {
            let evaluated = json(&["eval", "--ppl", "--src", "valid.en", "--ref", "valid.de"]);
            numbers.push(evaluated[0]["ppl"]["score"].as_f64().unwrap().ln());
            let (run, init) = (format!("runs/{model}"), format!("train.init={model}-model"));
            let dropouts = ["--set", "model.dropout=0", "--set", "model.embedding_dropout=0"];
            let args = ["train", "--config", "tune.toml", "-q", "--overwrite", "--run-dir", &run, "--set", &init];
            succeeds(&project.mt(&[&args[..], &dropouts].concat()));
            numbers.extend(project.logged(&run, "train").iter().filter_map(|entry| entry["loss"].as_f64()));
        }
        (texts, numbers)
    };
    let same = |got: &[&str], want: &[&str]| {
        let (got, want) = (results(got), results(want));
        assert_eq!(got.0, want.0);
        assert_eq!(got.1.len(), want.1.len());
        // Logits near -15 and -300 are rounded to 1e-6 and 3e-5; a score is a sum over up to nine tokens.
        let off = got.1.iter().zip(&want.1).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 3e-4, "{off}");
    };
    same(&["with"], &["without"]);
    same(&["far"], &["without"]);
    same(&["old"], &["without"]);
    same(&["with", "far"], &["without", "without"]);
    // What is left out stays so: in fine-tuning, in other programs, and when it comes back.
    let read = |folder: &str, name: &str| -> Value { serde_json::from_slice(&file(&project, folder, name)).unwrap() };
    succeeds(&project.mt(&["export", "runs/with", "--format", "hf-marian", "--out", "again"]));
    assert_eq!(read("again", "generation_config.json")["renormalize_logits"], true);
    succeeds(&project.mt(&["import", "again", "--out", "back"]));
    let info =
        |model: &str| -> Value { serde_json::from_slice(&project.mt(&["info", model, "--json"]).stdout).unwrap() };
    assert_eq!(info("back")["config"]["model"]["output_padding"], false);
    let load = |file: &str| candle_core::safetensors::load(project.path(file), &candle_core::Device::Cpu).unwrap();
    let bias = |file: &str| load(file)["output_projection.bias"].to_vec1::<f32>().unwrap().last().copied().unwrap();
    for model in ["with-model", "runs/with", "back"] {
        assert_eq!(bias(&format!("{model}/model.safetensors")), -1e4, "{model}");
    }
    succeeds(&project.mt(&["export", "without-model", "--format", "hf-marian", "--out", "kept"]));
    assert_eq!(read("kept", "generation_config.json")["renormalize_logits"], false);
}

/// What older and newer `transformers` write without a meaning for the model.
#[test]
fn what_asks_for_nothing_is_accepted() {
    let project = Project::new();
    let write = |name: &str, change: &dyn Fn(&mut Value)| {
        marian::write(&project.path(name), |config, _| change(config));
        project.mt(&["import", name, "--out", &format!("{name}-model")])
    };
    succeeds(&write("plain", &|_| ()));
    let plain = file(&project, "plain-model", "model.safetensors");
    let output = write("much", &|config| {
        for (key, value) in [
            ("do_blenderbot_90_layernorm", json!(false)),
            ("force_bos_token_to_be_generated", json!(false)),
            ("trust_remote_code", json!(false)),
            ("use_bfloat16", json!(false)),
            ("attn_implementation", json!("sdpa")),
            ("temperature", json!(0.6)),
            ("eos_token_id", json!([0])),
            ("forced_eos_token_id", json!([0])),
            ("suppress_tokens", json!([])),
            ("prefix", json!(null)),
            ("epsilon_cutoff", json!(0.0)),
            ("max_new_tokens", json!(7)),
        ] {
            config[key] = value;
        }
    });
    succeeds(&output);
    assert_eq!(file(&project, "much-model", "model.safetensors"), plain);
    // One less, as the end is forced.
    let info: Value = serde_json::from_slice(&project.mt(&["info", "much-model", "--json"]).stdout).unwrap();
    assert_eq!(info["config"]["decode"]["max_length_extra"], 6);
    // Byte order marks.
    for name in ["config.json", "vocab.json"] {
        let path = project.path(&format!("plain/{name}"));
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
    }
    succeeds(&project.mt(&["import", "plain", "--out", "marked"]));
    assert_eq!(file(&project, "marked", "model.safetensors"), plain);
    let mut transcript = Transcript::new(&project);
    let wrong = write("wrong", &|config| {
        config["force_bos_token_to_be_generated"] = true.into();
        config["eos_token_id"] = json!([0, 3]);
        config["d_model"] = 0.into();
    });
    transcript.record("mt import wrong --out wrong-model", &wrong);
    assert_transcript!(transcript);
}

/// The size of an embedding is often rounded up.
#[test]
fn rows_beyond_the_vocabulary_are_never_in_a_translation() {
    let project = Project::new();
    let write = |name: &str, spare: usize| {
        marian::write(&project.path(name), |config, tensors| {
            let size = config["vocab_size"].as_u64().unwrap() as usize + spare;
            config["vocab_size"] = size.into();
            for (name, width, value) in [("model.shared.weight", 16, 0.01), ("final_logits_bias", 1, 9.0)] {
                let (shape, values) = tensors.get_mut(name).unwrap();
                values.resize(size * width, value);
                *shape = if width == 1 { vec![1, size] } else { vec![size, width] };
            }
        });
        project.mt(&["import", name, "--out", &format!("{name}-model")])
    };
    let mut transcript = Transcript::new(&project);
    for (name, spare) in [("rounded", 15), ("another", 2000)] {
        transcript.note(&format!("the embedding has {spare} more rows"));
        transcript.record(&format!("mt import {name} --out {name}-model"), &write(name, spare));
    }
    assert_transcript!(transcript);
    let args = ["translate", "-q", "--json", "--model", "rounded-model", "--max-length", "6", ">>deu<< the cat"];
    let output = project.mt(&args);
    succeeds(&output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    // They have nearly all of the probability, and none of the text.
    assert!(found["score"].as_f64().unwrap() < -7.0 && !found.to_string().contains("unused"), "{found}");
}

/// Each part is translated into the line's language, though only the first has the tag.
#[test]
fn parts_of_a_line_are_aligned_with_its_words() {
    let project = imported();
    let line = format!(">>deu<< {}", "The cat sleeps. The dog eats a cat. ".repeat(30));
    let args = ["translate", "--model", "model", "--max-length", "4", "--alignment", "--json", "-q", &line];
    let output = project.mt(&args);
    succeeds(&output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let starts: Vec<u64> = serde_json::from_value(found["joints"].clone()).unwrap();
    assert_eq!(starts.len(), 59, "{found}");
    let pairs = found["alignment"].as_str().unwrap().split_whitespace();
    let sources: Vec<usize> = pairs.map(|pair| pair.split_once('-').unwrap().0.parse().unwrap()).collect();
    assert!(sources.is_sorted_by_key(|word| sentence_of(*word)), "{sources:?}");
    let last = sources.last().copied().unwrap();
    assert_eq!(sentence_of(last), 59, "{sources:?}");

    /// The number of the sentence that a word is in: after the tag, they have three and five words in turn.
    fn sentence_of(word: usize) -> usize {
        match word.checked_sub(1) {
            None => 0,
            Some(word) => word / 8 * 2 + usize::from(word % 8 >= 3),
        }
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let project = Project::new();
    marian::write(&project.path("opus"), |config, tensors| {
        config["normalize_before"] = true.into();
        config["decoder_attention_heads"] = 4.into();
        config["activation_function"] = "quick_gelu".into();
        config["layer_scale"] = json!(0.5);
        config["encoder_layerdrop"] = json!(0.2);
        config["bad_words_ids"] = json!([[1, 2]]);
        config.as_object_mut().unwrap().remove("eos_token_id");
        tensors.clear();
    });
    marian::write(&project.path("other"), |_, tensors| {
        let moved = tensors.remove("model.decoder.layers.0.fc1.weight").unwrap();
        tensors.insert("model.decoder.layers.0.fc3.weight".into(), moved);
        tensors.insert("lm_head.weight".into(), tensors["model.shared.weight"].clone());
        tensors.get_mut("lm_head.weight").unwrap().1[3] += 1.0;
        tensors.get_mut("final_logits_bias").unwrap().0 = vec![2, 25];
        tensors.get_mut("final_logits_bias").unwrap().1.resize(50, 0.0);
        tensors.insert("model.encoder.embed_positions.weight".into(), (vec![64, 16], vec![0.5; 64 * 16]));
    });
    let mut transcript = Transcript::new(&project);
    transcript.run("import opus --out model");
    transcript.run("import other --out model");
    std::fs::rename(project.path("other/model.safetensors"), project.path("other/pytorch_model.bin")).unwrap();
    std::fs::remove_file(project.path("other/vocab.json")).unwrap();
    transcript.run("import other --out model");
    marian::write(&project.path("good"), |_, _| ());
    transcript.run("import good --out opus");
    // A folder of another kind of model has other files, which are not what is wrong.
    std::fs::create_dir(project.path("m2m")).unwrap();
    project.write("m2m/config.json", r#"{ "model_type": "m2m_100", "d_model": 1024 }"#);
    project.write("m2m/model.safetensors", "");
    transcript.run("import m2m --out model");
    std::fs::create_dir(project.path("empty")).unwrap();
    transcript.run("import empty --out model");
    project.write("good/source.spm", "not a model");
    transcript.run("import good --out model");
    assert_transcript!(transcript);
    assert!(!project.path("model").exists());
}

/// A configuration that fine-tunes the imported model on the project's corpus.
const FINE_TUNING: &str = r#"
[data]
train = [{ source = "train.en", target = "train.de" }]
valid = { source = "valid.en", target = "valid.de" }
max_length = 50
[train]
init = "model"
batch_tokens = 10000
max_updates = 8
log_every = 1
label_smoothing = 0.0
schedule = { kind = "constant", learning_rate = 0.001 }
[valid]
every = 4
beam = 1
[decode]
max_length_extra = 8
"#;

/// As some editors leave files.
#[test]
fn a_byte_order_mark_before_json_is_passed_over() {
    let project = imported();
    for (name, contents) in files(&project.path("opus")) {
        let mark: &[u8] = if name.ends_with(".json") { b"\xEF\xBB\xBF" } else { b"" };
        std::fs::write(project.path("opus").join(name), [mark, &contents].concat()).unwrap();
    }
    succeeds(&project.mt(&["import", "opus", "--out", "again"]));
    let config = |model: &str| String::from_utf8(file(&project, model, "config.toml")).unwrap();
    assert_eq!(config("again"), config("model"));
    for name in ["model.safetensors", "tokenizer.src.json"] {
        assert_eq!(file(&project, "again", name), file(&project, "model", name), "{name}");
    }
}

#[test]
fn weights_in_a_form_that_is_not_read_are_named() {
    let project = Project::new();
    let folder = project.path("opus");
    marian::write(&folder, |_, _| ());
    std::fs::rename(folder.join("model.safetensors"), folder.join("model-00001-of-00002.safetensors")).unwrap();
    let mut transcript = Transcript::new(&project);
    for name in [
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
        "tf_model.h5",
        "flax_model.msgpack",
        "pytorch_model.bin",
    ] {
        std::fs::write(folder.join(name), "{}").unwrap();
        transcript.run("import opus --out model");
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    assert_transcript!(transcript);
}

#[test]
fn fine_tuning_begins_with_the_weights() {
    let project = imported();
    project.write("tune.toml", FINE_TUNING);
    let dropouts = ["--set", "model.dropout=0", "--set", "model.embedding_dropout=0"];
    let mut transcript = Transcript::new(&project);
    let mut train =
        |more: &[&str]| transcript.messages(&[&["train", "--config", "tune.toml", "-q"][..], &dropouts, more].concat());
    succeeds(&train(&[]));
    let entries = project.logged("runs/tune", "train");
    let losses: Vec<f64> = entries.iter().filter_map(|entry| entry["loss"].as_f64()).collect();
    // Each batch has all pairs, so losses are comparable.
    assert!(losses.len() == 8 && losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    assert_eq!(file(&project, "runs/tune", "tokenizer.src.json"), file(&project, "model", "tokenizer.src.json"));
    // It can begin with a checkpoint of a run, unless that run would be replaced.
    let checkpoint = "train.init=runs/tune/checkpoints/step-00000008";
    succeeds(&train(&["--run-dir", "again", "--set", checkpoint, "--set", "train.max_updates=1"]));
    train(&["--run-dir", "runs/tune", "--overwrite", "--set", checkpoint]);
    // What it would begin with is told beforehand.
    for set in ["train.max_updates=1", checkpoint] {
        let check = project.mt(&["check", "--config", "tune.toml", "--run-dir", "other", "--set", set]);
        succeeds(&check);
        let start = if set == checkpoint { "runs/tune (update 8)" } else { "model (final)" };
        let path = format!("beginning with the weights of {}", project.path(start).display());
        assert!(stdout(&check).contains(&path), "{}", stdout(&check));
    }
    // The run can be resumed after the model has gone.
    std::fs::rename(project.path("model"), project.path("moved")).unwrap();
    let more = ["--resume", "--set", "train.max_updates=10"];
    train(&more);
    assert_transcript!(transcript);
    succeeds(&project.mt(&[&["train", "--config", "runs/tune/config.toml"][..], &more].concat()));
}

#[test]
fn what_does_not_fit_is_refused_before_any_work() {
    let project = imported();
    project.write("tune.toml", FINE_TUNING);
    project.write("other.spm", marian::sentencepiece(&marian::WORDS[..4]));
    let mut transcript = Transcript::new(&project);
    for keys in [
        &["model.d_ff=64", "model.tie=none"][..],
        // It is not the other model's file that has to be changed.
        &["model.preset=transformer-base"],
        &["tokenizer.path=other.spm"],
        &["tokenizer.dropout=0.1"],
        &["tokenizer.lowercase=true", "tokenizer.vocab_size=4000"],
        &["train.init=nowhere"],
        &["train.init='hf:a/b'"],
        &["train.init=opus"],
    ] {
        transcript.mt(&[&["train", "--config", "tune.toml", "-q"], &sets(keys)[..]].concat());
    }
    assert_transcript!(transcript);
    assert!(!project.path("runs/tune/config.toml").exists());
}

#[test]
fn a_model_is_not_replaced_by_a_run() {
    let project = imported();
    project.write("tune.toml", FINE_TUNING);
    std::fs::create_dir(project.path("copy")).unwrap();
    for entry in std::fs::read_dir(project.path("model")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        std::fs::copy(project.path("model").join(&name), project.path("copy").join(&name)).unwrap();
    }
    let mut transcript = Transcript::new(&project);
    for flag in ["--overwrite", "--resume"] {
        for run in ["model", "copy"] {
            transcript.run(&format!("train --config tune.toml -q --run-dir {run} {flag}"));
        }
    }
    assert_transcript!(transcript);
    succeeds(&project.mt(&["translate", "-q", "--model", "model", "--max-length", "4", ">>deu<< the cat"]));
    succeeds(&project.mt(&["translate", "-q", "--model", "copy", "--max-length", "4", ">>deu<< the cat"]));
}

#[test]
fn what_is_wrong_is_said_once_and_where() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    let huge = 1_000_000_000_000_u64;
    for (keys, value) in [
        (&["num_beams"][..], json!("x")),
        (&["num_beams"], json!("x".repeat(5000))),
        (&["encoder_layers"], json!(huge)),
        (&["encoder_layers"], json!(5000)),
        (&["bad_words_ids"], json!([[999]])),
        (&["bad_words_ids"], json!(5)),
        (&["bad_words_ids"], json!([1, 2])),
        (&["length_penalty"], json!(1e300)),
        (&["encoder_ffn_dim"], json!(1 << 20)),
        (&["encoder_ffn_dim", "decoder_ffn_dim"], json!(1 << 20)),
    ] {
        let _ = std::fs::remove_dir_all(project.path("opus"));
        marian::write(&project.path("opus"), |config, _| keys.iter().for_each(|key| config[*key] = value.clone()));
        transcript.note(&format!("{keys:?}: {}", value.to_string().chars().take(60).collect::<String>()));
        transcript.run("import opus --out model");
    }
    // The vocabulary belongs to another model, or has an id twice.
    marian::write(&project.path("opus"), |_, _| ());
    let vocabulary = String::from_utf8(file(&project, "opus", "vocab.json")).unwrap();
    let pieces: serde_json::Map<String, Value> = serde_json::from_str(&vocabulary).unwrap();
    let new = |(piece, id): (String, Value)| (if piece.starts_with('<') { piece } else { format!("q{id}") }, id);
    let renamed = Value::Object(pieces.into_iter().map(new).collect()).to_string();
    for text in [renamed, vocabulary.replace("\"▁a\":7", "\"▁a\":6")] {
        project.write("opus/vocab.json", text);
        transcript.run("import opus --out model");
    }
    marian::write(&project.path("opus"), |_, tensors| {
        tensors.get_mut("model.encoder.layers.0.fc1.weight").unwrap().1[3] = f32::NAN;
    });
    transcript.run("import opus --out model");
    // The target's own vocabulary counts if tokenizer_config.json says so, as in transformers.
    marian::write(&project.path("opus"), |_, _| ());
    project.write("opus/tokenizer_config.json", "{\"separate_vocabs\": true}");
    transcript.run("import opus --out model");
    assert!(!project.path("model").exists());
    project.write("opus/tokenizer_config.json", "{\"separate_vocabs\": false}");
    project.write("opus/target_vocab.json", "{\"not\": 0}");
    transcript.run("import opus --out leftover");
    assert_transcript!(transcript);
}

/// A folder as the files of a repository.
fn files(folder: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn models_of_the_hub_are_fetched_and_imported_once() {
    let bench = Bench::new();
    marian::write(&bench.project.path("opus"), |_, _| ());
    let mut files = files(&bench.project.path("opus"));
    files.push(("tf_model.h5".to_owned(), b"not to be fetched".to_vec()));
    let borrowed = |files: &[(String, Vec<u8>)], change: &dyn Fn(&str) -> Option<&'static str>| {
        let name = |name: &str| change(name).unwrap_or(name).to_owned();
        files.iter().map(|(file, contents)| (name(file), contents.clone())).collect::<Vec<_>>()
    };
    let add = |revision: &str, files: &[(String, Vec<u8>)]| {
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())).collect();
        bench.hub.model("o/en-xx", revision, &files)
    };
    // Like many repositories: a pickle on `main`, safetensors in a pull request.
    add("main", &borrowed(&files, &|name| (name == "model.safetensors").then_some("pytorch_model.bin")));
    add("refs/pr/3", &files);
    let cache = bench.project.path("cache");
    let command = |args: &[&str]| {
        let mut command = bench.command(args);
        command.env("XDG_CACHE_HOME", &cache);
        command
    };
    let mt = |args: &[&str]| command(args).output().unwrap();
    let mut transcript = Transcript::new(&bench.project);
    let mut refused = |line: &str| {
        transcript.command(&mut command(&line.split(' ').collect::<Vec<_>>()), &[]);
    };
    let translate = |model: &str, more: &[&str]| {
        mt(&[&["translate", "--model", model, "--max-length", "8", ">>deu<< the cat"], more].concat())
    };
    refused("translate --model hf:o/en-xx x");
    assert!(bench.hub.fetched().is_empty());
    // Pull requests by others, or for an earlier model, are not used.
    const TITLE: &str = "Adding `safetensors` variant of this model";
    let pull = |number, title, author, status, parent: &str| {
        bench.hub.pull("o/en-xx", Pull { number, title, author, status, parent: parent.to_owned() });
    };
    add("refs/pr/9", &files);
    pull(9, TITLE, "SFconvertbot", "open", "0123456789012345678901234567890123456789");
    pull(3, TITLE, "someone", "open", "main");
    pull(3, TITLE, "SFconvertbot", "closed", "main");
    pull(3, "A better model", "SFconvertbot", "open", "main");
    refused("translate --model hf:o/en-xx x");
    refused("translate --model hf:o/other x");
    refused("translate --model hf:../x x");
    // As other programs would name it, it may be a folder: nothing is fetched.
    refused("translate --model o/en-xx x");
    refused("import o/en-xx --out x");
    refused("info o/en-xx");
    refused("translate --model hf://datasets/o/set x");
    // Of a model that is not read, the weights are not fetched.
    let config = |name: &str, content: &[u8]| {
        let other = || String::from_utf8_lossy(content).replace("\"marian\"", "\"other\"").into_bytes();
        if name == "config.json" { other() } else { content.to_vec() }
    };
    let other: Vec<_> = files.iter().map(|(name, content)| (name.clone(), config(name, content))).collect();
    add("other", &other);
    refused("translate --model hf:o/en-xx@other x");
    assert_eq!(bench.hub.fetched(), ["config.json"]);
    const PART: &str = "model-00001-of-00001.safetensors";
    let parts = borrowed(&files, &|name| (name == "model.safetensors").then_some(PART));
    let with_index =
        |index: String| [&parts[..], &[("model.safetensors.index.json".to_owned(), index.into())]].concat();
    add("damaged", &with_index("{}".to_owned()));
    refused("translate --model hf:o/en-xx@damaged x");
    refused("translate --model hf:o/en-xx@refs/pr/3 --offline x");

    bench.hub.log();
    let first = translate("hf:o/en-xx@refs/pr/3", &[]);
    succeeds(&first);
    assert!(stderr(&first).contains("imported into "), "{}", stderr(&first));
    let fetched = bench.hub.fetched();
    assert!(fetched.contains(&"model.safetensors".to_owned()) && !fetched.contains(&"tf_model.h5".to_owned()));
    // Weights in several files.
    let tensors =
        candle_core::safetensors::load(bench.project.path("opus/model.safetensors"), &candle_core::Device::Cpu);
    let map: serde_json::Map<String, Value> = tensors.unwrap().into_keys().map(|name| (name, PART.into())).collect();
    add("parts", &with_index(json!({ "weight_map": map }).to_string()));
    assert_eq!(stdout(&translate("hf:o/en-xx@parts", &[])), stdout(&first));
    bench.hub.fetched();
    // The model is that of the folder; the second time it is neither fetched nor imported, and --offline sends no
    // request.
    succeeds(&mt(&["import", "opus", "--out", "model"]));
    assert_eq!(stdout(&first), stdout(&translate("model", &[])));
    let second = translate("hf:o/en-xx@refs/pr/3", &[]);
    assert_eq!(stdout(&second), stdout(&first));
    assert!(!stderr(&second).contains("imported into ") && bench.hub.fetched().is_empty());
    for address in ["hf://o/en-xx@refs/pr/3", "https://huggingface.co/o/en-xx/tree/refs%2Fpr%2F3"] {
        assert_eq!(stdout(&translate(address, &[])), stdout(&first), "{address}");
    }
    bench.hub.log();
    let offline = translate("hf:o/en-xx@refs/pr/3", &["--offline"]);
    assert_eq!(stdout(&offline), stdout(&first));
    assert!(bench.hub.log().is_empty());
    let info = mt(&["info", "hf:o/en-xx@refs/pr/3", "--json"]);
    assert!(stdout(&info).contains(">>deu<<"), "{}", stderr(&info));
    succeeds(&mt(&["import", "hf:o/en-xx@refs/pr/3", "--out", "from-hub"]));
    assert_eq!(
        file(&bench.project, "from-hub", "model.safetensors"),
        file(&bench.project, "model", "model.safetensors")
    );
    // The converter's pull request is found, though not on the first page, and remembered.
    add("refs/pr/4", &files);
    pull(4, TITLE, "SFconvertbot", "open", "main");
    (5..9).for_each(|number| pull(number, "Other", "someone", "open", "main"));
    let found = translate("hf:o/en-xx", &[]);
    assert_eq!(stdout(&found), stdout(&first), "{}", stderr(&found));
    assert!(
        stderr(&found).contains("those that the hub's converter made, at refs/pr/4, are used"),
        "{}",
        stderr(&found)
    );
    // Damaged models in our cache are imported again.
    let models = || std::fs::read_dir(cache.join("mt/models/o--en-xx")).unwrap().map(|entry| entry.unwrap().path());
    for model in models().filter(|path| path.is_dir()) {
        std::fs::write(model.join("model.safetensors"), "damaged").unwrap();
    }
    assert_eq!(stdout(&translate("hf:o/en-xx", &["--offline"])), stdout(&first));
    bench.hub.log();
    for more in [&[][..], &["--offline"]] {
        assert_eq!(stdout(&translate("hf:o/en-xx", more)), stdout(&first));
    }
    assert!(bench.hub.log().iter().all(|request| !request.path.contains("discussions")));
    // A file is missing: it is named, and nothing is left of the import.
    add("broken", &borrowed(&files, &|name| (name == "vocab.json").then_some("vocab.txt")));
    refused("translate --model hf:o/en-xx@broken x");
    assert_transcript!(transcript);
    assert_eq!(
        std::fs::read_dir(cache.join("mt/models/o--en-xx")).unwrap().count(),
        5,
        "three models, the lock, a note"
    );
}

/// transformers 5 shares no table in an untied model, whatever `share_encoder_decoder_embeddings` says; 4 stores only
/// that table.
#[test]
fn tables_of_untied_models_are_each_sides_own() {
    let project = Project::new();
    let (shared, own) = ("model.shared.weight", "model.encoder.embed_tokens.weight");
    let import = |has_own: bool, name: &str| {
        marian::write(&project.path(name), |config, tensors| {
            config["tie_word_embeddings"] = false.into();
            let table = tensors[shared].clone();
            let moved = |by: f32| (table.0.clone(), table.1.iter().map(|value| value + by).collect());
            tensors.insert("lm_head.weight".into(), moved(0.5));
            if has_own {
                tensors.insert(own.into(), moved(1.0));
                tensors.insert("model.decoder.embed_tokens.weight".into(), moved(2.0));
            }
        });
        let out = format!("{name}-model");
        succeeds(&project.mt(&["import", name, "--out", &out]));
        let load =
            |file: String| candle_core::safetensors::load(project.path(&file), &candle_core::Device::Cpu).unwrap();
        (load(format!("{name}/model.safetensors")), load(format!("{out}/model.safetensors")))
    };
    let values = |tensor: &candle_core::Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (has_own, name, [source, target]) in
        [(true, "five", [own, "model.decoder.embed_tokens.weight"]), (false, "four", [shared, shared])]
    {
        let (theirs, ours) = import(has_own, name);
        assert_eq!(values(&ours["source_embedding.weight"]), values(&theirs[source]), "{name}");
        assert_eq!(values(&ours["target_embedding.weight"]), values(&theirs[target]), "{name}");
        assert_eq!(values(&ours["output_projection.weight"]), values(&theirs["lm_head.weight"]), "{name}");
    }
}

/// A student begins with some of its teacher's layers, and with all else.
#[test]
fn a_model_may_begin_with_some_layers_of_another() {
    let project = Project::new();
    let teacher = ["model.encoder_layers=3", "model.decoder_layers=2", "train.max_updates=1"];
    let args = ["train", "--config", "small.toml", "-q", "--run-dir", "teacher"];
    succeeds(&project.mt(&[&args[..], &sets(&teacher)].concat()));
    // A rate so low that nothing changes.
    let rate = "train.schedule={ kind = \"constant\", learning_rate = 1e-30 }";
    let layers = "train.init_layers={ encoder = [0, 2], decoder = [1] }";
    let student = |more: &[&str]| {
        let config =
            "[data]\ntrain = [{ source = \"train.en\", target = \"train.de\" }]\n[train]\ninit = \"teacher\"\n";
        project.write("student.toml", config);
        let args = ["train", "--config", "student.toml", "-q", "--run-dir", "student", "--overwrite"];
        project.mt(&[&args[..], &sets(&[rate, "train.max_updates=1", "valid.every=0"]), &sets(more)].concat())
    };
    succeeds(&student(&[layers]));
    let load = |run: &str| {
        let file = project.path(&format!("{run}/model.safetensors"));
        candle_core::safetensors::load(file, &candle_core::Device::Cpu).unwrap()
    };
    let (teacher, student_tensors) = (load("teacher"), load("student"));
    let origin = |name: &str| {
        let name = name.replace("encoder.layers.1.", "encoder.layers.2.");
        name.replace("decoder.layers.0.", "decoder.layers.1.")
    };
    assert!(student_tensors.keys().any(|name| name.starts_with("encoder.layers.1.")));
    assert!(!student_tensors.keys().any(|name| name.starts_with("encoder.layers.2.")));
    for (name, tensor) in &student_tensors {
        let [a, b] =
            [tensor, &teacher[&origin(name)]].map(|tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        // Zeros have moved by the rate.
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-29), "{name}");
    }
    let mut transcript = Transcript::new(&project);
    for more in [
        &["train.init_layers={ encoder = [0, 3], decoder = [1] }"][..],
        &["train.init_layers={ encoder = [0, -1] }"],
        &["train.init_layers={ encoder = \"all\" }"],
        &[layers, "model.encoder_layers=3"],
    ] {
        transcript.record(&format!("mt train … {}", more.join(" ")), &student(more));
    }
    assert_transcript!(transcript);
}
