//! `mt export`: what the files contain. `make test-interop` tests that the other programs compute the same from them.

mod common;

use common::marian::{WORDS, sentencepiece};
use common::project::{Project, file, sets, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn trained(more: &[&str]) -> Project {
    let project = Project::new();
    succeeds(&project.train(&[&["--set", "train.max_updates=4"], more].concat()));
    project
}

/// A variable of a CTranslate2 model: shape, type, bytes.
type Variable = (Vec<u32>, u8, Vec<u8>);

/// Everything in a `model.bin`: variables, and aliases.
type Contents = (Vec<(String, Variable)>, Vec<(String, String)>);

/// Reads a `model.bin` to its last byte.
fn variables(bytes: &[u8]) -> Contents {
    struct Reader<'a>(&'a [u8]);
    impl Reader<'_> {
        fn take<const N: usize>(&mut self) -> [u8; N] {
            let (head, rest) = self.0.split_first_chunk().unwrap();
            self.0 = rest;
            *head
        }
        fn number(&mut self) -> u32 {
            u32::from_le_bytes(self.take())
        }
        fn bytes(&mut self, count: usize) -> Vec<u8> {
            let (head, rest) = self.0.split_at(count);
            self.0 = rest;
            head.to_vec()
        }
        fn string(&mut self) -> String {
            let length = u16::from_le_bytes(self.take());
            let mut bytes = self.bytes(length.into());
            assert_eq!(bytes.pop(), Some(0));
            String::from_utf8(bytes).unwrap()
        }
    }
    let mut reader = Reader(bytes);
    assert_eq!((reader.number(), reader.string().as_str(), reader.number()), (6, "TransformerSpec", 7));
    let variables = (0..reader.number())
        .map(|_| {
            let name = reader.string();
            let [rank] = reader.take();
            let shape: Vec<u32> = (0..rank).map(|_| reader.number()).collect();
            let [kind] = reader.take();
            let size = reader.number();
            let width = [4, 1, 2][usize::from(kind)];
            assert_eq!(size, shape.iter().product::<u32>() * width, "{name}");
            (name, (shape, kind, reader.bytes(size as usize)))
        })
        .collect();
    let aliases = (0..reader.number()).map(|_| (reader.string(), reader.string())).collect();
    assert!(reader.0.is_empty());
    (variables, aliases)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_ctranslate2_model_has_all_weights() {
    let project = trained(&["--set", "model.output_bias=true"]);
    let export = |out: &str, more: &[&str]| {
        project.mt(&[&["export", "runs/small", "-q", "--format", "ct2", "--out", out], more].concat())
    };
    succeeds(&export("ct2", &[]));
    succeeds(&export("int8", &["--quantization", "int8"]));
    let mut transcript = Transcript::new(&project);
    transcript.run("export runs/small --format ct2 --out again");
    assert_transcript!(transcript);
    let model = file(&project, "runs/small", "model.safetensors");
    let model = SafeTensors::deserialize(&model).unwrap();
    let tensor = |name: &str| floats(model.tensor(name).unwrap().data());
    let (ours, aliases) = variables(&file(&project, "ct2", "model.bin"));
    let get = |name: &str| &ours.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no {name}")).1;
    let joined = |parts: [&str; 3], what: &str| {
        let tensors = parts.map(|part| tensor(&format!("encoder.layers.0.self_attn.{part}_proj.{what}")));
        tensors.concat()
    };
    for what in ["weight", "bias"] {
        let (_, kind, bytes) = get(&format!("encoder/layer_0/self_attention/linear_0/{what}"));
        assert_eq!((*kind, floats(bytes)), (0, joined(["q", "k", "v"], what)), "{what}");
    }
    let (shape, _, bytes) = get("decoder/layer_0/attention/linear_1/weight");
    let keys_values =
        ["k", "v"].map(|part| tensor(&format!("decoder.layers.0.cross_attn.{part}_proj.weight"))).concat();
    assert_eq!((shape[..].to_vec(), floats(bytes)), (vec![64, 32], keys_values));
    assert_eq!(floats(&get("decoder/projection/bias").2), tensor("output_projection.bias"));
    let table = "encoder/embeddings_0/weight".to_owned();
    assert_eq!(
        aliases,
        [
            ("decoder/embeddings/weight".to_owned(), table.clone()),
            ("decoder/projection/weight".to_owned(), table.clone())
        ]
    );
    // The file has all numbers of the model, and the positions of both stacks.
    let numbers: usize =
        ours.iter().filter(|(_, (_, kind, _))| *kind == 0).map(|(_, (.., bytes))| bytes.len() / 4).sum();
    let parameters: usize = model.tensors().iter().map(|(_, tensor)| tensor.data().len() / 4).sum();
    let positions = floats(&get("encoder/position_encodings/encodings").2).len();
    assert_eq!(numbers, parameters + 2 * positions);

    let (integers, aliases) = variables(&file(&project, "int8", "model.bin"));
    assert_eq!(aliases.len(), 4);
    let get = |name: &str| &integers.iter().find(|(other, _)| other == name).unwrap().1;
    let (shape, kind, bytes) = get(&table);
    let scales = floats(&get(&format!("{table}_scale")).2);
    assert_eq!((*kind, scales.len()), (1, shape[0] as usize));
    for (i, (value, byte)) in tensor("source_embedding.weight").iter().zip(bytes).enumerate() {
        let scale = scales[i / shape[1] as usize];
        assert!((value * scale - f32::from(byte.cast_signed())).abs() <= 0.501, "{value} {byte} {scale}");
    }

    let config: Value = serde_json::from_slice(&file(&project, "ct2", "config.json")).unwrap();
    assert_eq!((&config["eos_token"], &config["add_source_eos"]), (&"</s>".into(), &true.into()));
    let vocabulary: Vec<String> = serde_json::from_slice(&file(&project, "ct2", "shared_vocabulary.json")).unwrap();
    assert_eq!(vocabulary.len() as u32, shape[0]);
    assert_eq!(file(&project, "ct2", "tokenizer.json"), file(&project, "runs/small", "tokenizer.json"));
}

/// What CTranslate2 would compute with is where it looks for it: a wrong number or place is no error there.
#[test]
fn a_ctranslate2_model_says_how_it_computes() {
    for (sets, [activation, is_pre, scales]) in [
        (["activation=relu", "norm=post", "scale_embedding=true", "tie=all"], [0, 0, 1]),
        (["activation=gelu", "norm=pre", "scale_embedding=false", "tie=none"], [3, 1, 0]),
        (["activation=swish", "norm=pre", "scale_embedding=true", "tie=decoder"], [2, 1, 1]),
    ] {
        let sets = sets.map(|set| format!("model.{set}"));
        let more = ["model.positions=learned", "model.final_norm=true", "model.max_length=50", "data.max_length=40"];
        let sets = sets.iter().map(String::as_str).chain(more);
        let project = trained(&sets.flat_map(|set| ["--set", set]).collect::<Vec<_>>());
        succeeds(&project.mt(&["export", "runs/small", "-q", "--format", "ct2", "--out", "ct2"]));
        let model = file(&project, "runs/small", "model.safetensors");
        let model = SafeTensors::deserialize(&model).unwrap();
        let (theirs, aliases) = variables(&file(&project, "ct2", "model.bin"));
        let get =
            |name: &str| &theirs.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("no {name}")).1.2;
        // Each of their names, and the parameter that it stands for.
        let mut names = vec![("encoder/embeddings_0/weight".to_owned(), "source_embedding.weight".to_owned())];
        for (to, from) in [("embeddings", "target_embedding"), ("projection", "output_projection")] {
            if !aliases.iter().any(|(alias, _)| *alias == format!("decoder/{to}/weight")) {
                names.push((format!("decoder/{to}/weight"), format!("{from}.weight")));
            }
        }
        for stack in ["encoder", "decoder"] {
            names.push((format!("{stack}/position_encodings/encodings"), format!("{stack}.positions.weight")));
            let layers = [format!("{stack}/layer_0/"), format!("{stack}.layers.0.")];
            let mut norms =
                vec![("self_attention/layer_norm", "self_attn_norm"), ("ffn/layer_norm", "feed_forward_norm")];
            let mut linears = vec![
                ("self_attention/linear_1", "self_attn.out_proj"),
                ("ffn/linear_0", "feed_forward.fc1"),
                ("ffn/linear_1", "feed_forward.fc2"),
            ];
            if stack == "decoder" {
                norms.push(("attention/layer_norm", "cross_attn_norm"));
                linears.extend([
                    ("attention/linear_0", "cross_attn.q_proj"),
                    ("attention/linear_2", "cross_attn.out_proj"),
                ]);
            }
            let of_layer = |(to, from): (&str, &str)| (layers[0].clone() + to, layers[1].clone() + from);
            let last = (format!("{stack}/layer_norm"), format!("{stack}.norm"));
            for (to, from) in norms.into_iter().map(of_layer).chain([last]) {
                names.push((format!("{to}/gamma"), format!("{from}.weight")));
                names.push((format!("{to}/beta"), format!("{from}.bias")));
            }
            for (to, from) in linears.into_iter().map(of_layer) {
                names.extend(["weight", "bias"].map(|what| (format!("{to}/{what}"), format!("{from}.{what}"))));
            }
            assert_eq!(get(&format!("{stack}/activation")), &[activation], "{stack}");
            assert_eq!(get(&format!("{stack}/pre_norm")), &[is_pre], "{stack}");
            assert_eq!(get(&format!("{stack}/scale_embeddings")), &[scales], "{stack}");
            assert_eq!(get(&format!("{stack}/num_heads")), &[2, 0], "{stack}");
        }
        for (to, from) in &names {
            assert_eq!(get(to), model.tensor(from).unwrap().data(), "{to}");
        }
        // The others are q, k and v, or k and v, in one.
        let others = theirs.iter().filter(|(name, (_, kind, _))| *kind == 0 && !names.iter().any(|(to, _)| to == name));
        assert_eq!(others.count(), 6);
    }
}

#[test]
fn a_marian_folder_has_all_weights_with_its_positions_in_halves() {
    let project = trained(&["--set", "tokenizer.joint=false", "--set", "model.attention_bias=false"]);
    succeeds(&project.mt(&["export", "runs/small", "-q", "--format", "hf-marian", "--out", "hf"]));
    let [ours, theirs] = ["runs/small", "hf"].map(|folder| file(&project, folder, "model.safetensors"));
    let [ours, theirs] = [&ours, &theirs].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let of = |model: &SafeTensors, name: &str| floats(model.tensor(name).unwrap().data());
    // The even components of each row come first.
    let halves =
        |row: &[f32]| -> Vec<f32> { row.iter().step_by(2).chain(row.iter().skip(1).step_by(2)).copied().collect() };
    let d = 32;
    let columns = |values: Vec<f32>| values.chunks(d).flat_map(halves).collect::<Vec<f32>>();
    for (to, from) in [
        ("model.encoder.embed_tokens.weight", "source_embedding.weight"),
        ("model.decoder.embed_tokens.weight", "target_embedding.weight"),
        ("model.decoder.layers.0.encoder_attn.k_proj.weight", "decoder.layers.0.cross_attn.k_proj.weight"),
        ("model.encoder.layers.0.fc1.weight", "encoder.layers.0.feed_forward.fc1.weight"),
        ("model.encoder.layers.0.final_layer_norm.bias", "encoder.layers.0.feed_forward_norm.bias"),
    ] {
        assert_eq!(of(&theirs, to), columns(of(&ours, from)), "{to}");
    }
    let rows = of(&ours, "encoder.layers.0.feed_forward.fc2.weight");
    let row = |i: usize| &rows[i * 64..][..64];
    let permuted: Vec<f32> = (0..d).step_by(2).chain((1..d).step_by(2)).flat_map(row).copied().collect();
    assert_eq!(of(&theirs, "model.encoder.layers.0.fc2.weight"), permuted);
    // Biases that the model lacks are zero there.
    assert!(of(&theirs, "model.encoder.layers.0.self_attn.q_proj.bias").iter().all(|value| *value == 0.0));
    assert!(of(&theirs, "final_logits_bias").iter().all(|value| *value == 0.0));

    let json = |name: &str| -> Value { serde_json::from_slice(&file(&project, "hf", name)).unwrap() };
    let config = json("config.json");
    assert_eq!((&config["d_model"], &config["share_encoder_decoder_embeddings"]), (&32.into(), &false.into()));
    assert_eq!(config["tie_word_embeddings"], true);
    let end = json("tokenizer.json")["post_processor"]["special_tokens"]["</s>"]["ids"][0].clone();
    assert_eq!(end, config["eos_token_id"]);
    assert!(project.path("hf/tokenizer.tgt.json").exists());
}

/// This is how a model that was fine-tuned in Python comes back.
#[test]
fn an_exported_marian_folder_can_be_imported() {
    for (joint, files) in [("true", &["tokenizer.json"][..]), ("false", &["tokenizer.src.json", "tokenizer.tgt.json"])]
    {
        let joint_key = format!("tokenizer.joint={joint}");
        let project = trained(&sets(&[&joint_key, r#"tokenizer.symbols=["<x>"]"#, "decode.min_length=3"]));
        succeeds(&project.mt(&["export", "runs/small", "-q", "--format", "hf-marian", "--out", "hf"]));
        succeeds(&project.mt(&["import", "hf", "--out", "back"]));
        for name in files {
            assert_eq!(file(&project, "back", name), file(&project, "runs/small", name), "{name}");
        }
        let scores = |model: &str| -> Vec<f64> {
            let output = project.mt(&["score", "-q", "--src", "valid.en", "--tgt", "valid.de", "--model", model]);
            succeeds(&output);
            stdout(&output).lines().map(|line| line.parse().unwrap()).collect()
        };
        // The components are permuted, so sums are taken in another order.
        let (ours, back) = (scores("runs/small"), scores("back"));
        assert!(ours.len() > 1 && ours.len() == back.len());
        assert!(ours.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-5 * a.abs()), "{ours:?} {back:?}");
        let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", "back", "--json"]))).unwrap();
        assert_eq!(info["config"]["model"]["sinusoid"], "halves");
        // Search settings and `data.max_length` come back too, unless the search was changed.
        let of = |model: &str| -> Value {
            let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", model, "--json"]))).unwrap();
            json!([info["config"]["decode"], info["config"]["data"]["max_length"]])
        };
        assert_eq!(of("back"), of("runs/small"));
        assert_eq!(of("back")[1], 100);
        let path = project.path("hf/generation_config.json");
        let mut search: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((&search["num_beams"], &search["early_stopping"]), (&json!(4), &json!(true)));
        // In transformers the start token counts, too.
        assert_eq!(search["min_length"], 4);
        search["length_penalty"] = json!(0.7);
        std::fs::write(&path, search.to_string()).unwrap();
        succeeds(&project.mt(&["import", "hf", "--out", "changed"]));
        assert_eq!(
            (&of("changed")[0]["length_penalty"], &of("changed")[0]["length_penalty_kind"]),
            (&json!(0.7), &json!("power"))
        );
        assert_eq!(of("changed")[0]["min_length"], 3);

        let path = project.path("hf/config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        // As in transformers, only generation_config.json counts for the search if it is there.
        config["num_beams"] = json!(9);
        config["do_sample"] = json!(true);
        std::fs::write(&path, config.to_string()).unwrap();
        succeeds(&project.mt(&["import", "hf", "--out", "old"]));
        assert_eq!(of("old"), of("changed"));
        config.as_object_mut().unwrap().remove("num_beams");
        config.as_object_mut().unwrap().remove("do_sample");
        let mut transcript = Transcript::new(&project);
        // What transformers saves again lacks the target's tokenizer.
        if joint == "false" {
            let moved = ["hf/tokenizer.tgt.json", "moved.json"].map(|name| project.path(name));
            std::fs::rename(&moved[0], &moved[1]).unwrap();
            transcript.note("tokenizer.tgt.json is gone");
            transcript.run("import hf --out no");
            std::fs::rename(&moved[1], &moved[0]).unwrap();
        }

        // The folder mixes parts of different models.
        config["decoder_start_token_id"] = 0.into();
        std::fs::write(&path, config.to_string()).unwrap();
        std::fs::remove_file(project.path("hf/generation_config.json")).unwrap();
        transcript.note("config.json has another start of the decoder");
        transcript.run("import hf --out no");
        config["decoder_vocab_size"] = 17.into();
        config["vocab_size"] = 17.into();
        std::fs::write(&path, config.to_string()).unwrap();
        transcript.note("config.json has 17 pieces");
        transcript.run("import hf --out no");
        std::fs::write(project.path("hf/tokenizer.json"), "{}").unwrap();
        transcript.note("tokenizer.json is empty");
        transcript.run("import hf --out no");
        assert_transcript!(
            transcript,
            if joint == "true" { "parts_of_other_models" } else { "parts_of_other_models_apart" }
        );
        assert!(!project.path("no").exists());
    }
}

#[test]
fn what_cannot_be_exported_is_named() {
    let project = trained(&["--set", "model.norm=pre", "--set", "model.positions=rotary", "--set", "model.d_k=8"]);
    let short = "train.max_updates=1";
    succeeds(&project.train(&["--run-dir", "narrow", "--set", "model.d_v=4", "--set", short]));
    succeeds(&project.train(&["--run-dir", "plain", "--set", short]));
    let mut transcript = Transcript::new(&project);
    for line in [
        "export runs/small --format hf-marian --out out",
        "export runs/small --format ct2 --out out",
        "export runs/small --format ct2 --out runs",
        "export runs/small --format onnx --out out",
        "export runs/small --format ct2 --out out --quantization int4",
        "export runs/small --format hf-marian --out out --quantization int8",
        "export narrow --format ct2 --out out",
        "export plain --format ct2 --out deep/er/out --json",
        "export plain --format ct2 --out deep/er/out",
        "info deep/er/out",
        "translate --model deep/er/out cat",
        "import deep/er/out --out again",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
    assert!(!project.path("out").exists());
    let names: Vec<_> =
        std::fs::read_dir(project.path("deep/er")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["out"]);
}

/// A MarianMT folder has a single padding id, and `AutoTokenizer` a single tokenizer.
#[test]
fn what_transformers_does_with_two_vocabularies_is_said() {
    let project = Project::new();
    project.write("long.model", sentencepiece(&WORDS));
    project.write("short.model", sentencepiece(&WORDS[..4]));
    let train = |name: &str, tokenizer: [&str; 2]| {
        let sets = tokenizer.map(|set| format!("tokenizer.{set}"));
        let more = ["--run-dir", name, "--set", "train.max_updates=2", "--set", "tokenizer.dropout=0"];
        succeeds(&project.train(&[&more[..], &["--set", &sets[0], "--set", &sets[1]]].concat()));
    };
    train("wide", ["path=short.model", "target_path=long.model"]);
    let mut transcript = Transcript::new(&project);
    transcript.run("export wide --format hf-marian --out wide-hf");
    train("own", ["joint=true", "vocab_size=320"]);
    std::fs::copy(project.path("own/tokenizer.json"), project.path("own.json")).unwrap();
    train("mixed", ["path=own.json", "target_path=long.model"]);
    transcript.run("export mixed --format hf-marian --out mixed-hf");
    for (name, tokenizer) in [
        ("narrow", ["path=long.model", "target_path=short.model"]),
        ("even", ["path=long.model", "target_path=long.model"]),
        ("learnt", ["joint=false", "vocab_size=320"]),
    ] {
        train(name, tokenizer);
        transcript.run(&format!("export {name} --format hf-marian --out {name}-hf"));
    }
    assert_transcript!(transcript);
}

/// `transformers` saves neither positions nor, of searches, what it cannot have.
#[test]
fn what_saving_again_loses_is_restored() {
    let dropouts = ["model.dropout=0.3", "model.embedding_dropout=0.05"];
    let more = ["model.sinusoid=tensor2tensor", "tokenizer.joint=true", "model.tie=decoder"];
    let search = ["decode.length_penalty=-0.5", "decode.no_repeat_ngram=100000000"];
    let text = ["tokenizer.lowercase=true", "tokenizer.normalization=nfc", "tokenizer.remove_extra_whitespaces=false"];
    let project = trained(&sets(&[&more[..], &dropouts, &search, &text].concat()));
    let mut transcript = Transcript::new(&project);
    transcript.messages(&["export", "runs/small", "--json", "--format", "hf-marian", "--out", "hf"]);
    assert_transcript!(transcript);
    let weights = project.path("hf/model.safetensors");
    let mut tensors = candle_core::safetensors::load(&weights, &candle_core::Device::Cpu).unwrap();
    assert!(tensors.remove("model.encoder.embed_positions.weight").is_some());
    assert!(tensors.remove("model.decoder.embed_positions.weight").is_some());
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    succeeds(&project.mt(&["import", "hf", "--out", "back"]));
    let config = |model: &str| -> Value {
        let info: Value = serde_json::from_str(&stdout(&project.mt(&["info", model, "--json"]))).unwrap();
        info["config"].clone()
    };
    let (ours, back) = (config("runs/small"), config("back"));
    assert_eq!(back["model"]["sinusoid"], "tensor2tensor");
    assert_eq!((&back["model"]["dropout"], &back["model"]["embedding_dropout"]), (&json!(0.3), &json!(0.05)));
    assert_eq!(back["decode"], ours["decode"]);
    assert_eq!((&back["tokenizer"]["joint"], &back["model"]["tie"]), (&json!(true), &json!("decoder")));
    for key in ["kind", "lowercase", "normalization", "remove_extra_whitespaces"] {
        assert_eq!(back["tokenizer"][key], ours["tokenizer"][key], "{key}");
    }
}
