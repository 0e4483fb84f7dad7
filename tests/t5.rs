//! Imported T5 models compute what `transformers` does: the expected numbers are those of its
//! `T5ForConditionalGeneration` (5.24) with the same weights, which follow from a formula.

mod common;

use common::marian::{self, Tensors, WORDS};
use common::project::{Project, fails, stderr, succeeds};
use serde_json::{Value, json};

const D: usize = 16;
const PIECES: usize = 50;

/// Names and shapes of a model of two encoder layers and one decoder layer. Its heads are narrower than `d_model`.
fn shapes(gated: bool, tied: bool) -> Vec<(String, Vec<usize>)> {
    let (inner, f, heads) = (12, 20, 3);
    let mut shapes = vec![("shared.weight".to_owned(), vec![PIECES, D])];
    if !tied {
        shapes.push(("lm_head.weight".to_owned(), vec![PIECES, D]));
    }
    for (stack, layers, attentions) in
        [("encoder", 2, &["SelfAttention"][..]), ("decoder", 1, &["SelfAttention", "EncDecAttention"])]
    {
        let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        shapes.push((bias, vec![6, heads]));
        shapes.push((format!("{stack}.final_layer_norm.weight"), vec![D]));
        for block in (0..layers).map(|layer| format!("{stack}.block.{layer}.layer")) {
            for (number, attention) in attentions.iter().enumerate() {
                let name = |part: &str| format!("{block}.{number}.{attention}.{part}.weight");
                shapes.extend(["q", "k", "v"].map(|part| (name(part), vec![inner, D])));
                shapes.push((name("o"), vec![D, inner]));
                shapes.push((format!("{block}.{number}.layer_norm.weight"), vec![D]));
            }
            let number = attentions.len();
            let name = |part: &str| format!("{block}.{number}.DenseReluDense.{part}.weight");
            let first: &[&str] = if gated { &["wi_0", "wi_1"] } else { &["wi"] };
            shapes.extend(first.iter().map(|part| (name(part), vec![f, D])));
            shapes.push((name("wo"), vec![D, f]));
            shapes.push((format!("{block}.{number}.layer_norm.weight"), vec![D]));
        }
    }
    shapes.sort();
    shapes
}

/// Writes a folder. Number i of the k-th tensor by name is 0.4·sin(0.7·i + 1.3·k), of a norm 1 more.
fn write(project: &Project, name: &str, gated: bool, tied: bool, change: impl FnOnce(&mut Value, &mut Tensors)) {
    let folder = project.path(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("spiece.model"), marian::sentencepiece(&WORDS)).unwrap();
    let mut config = json!({
        "model_type": "t5", "vocab_size": PIECES, "d_model": D, "d_kv": 4, "d_ff": 20, "num_layers": 2,
        "num_decoder_layers": 1, "num_heads": 3, "relative_attention_num_buckets": 6,
        "relative_attention_max_distance": 10, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": if gated { "gated-gelu" } else { "relu" }, "tie_word_embeddings": tied,
        "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "is_encoder_decoder": true,
        "n_positions": 512, "initializer_factor": 1.0, "architectures": ["T5ForConditionalGeneration"],
        "task_specific_params": { "translation_en_to_de": { "prefix": "translate English to German: " } },
    });
    let mut tensors = Tensors::new();
    for (k, (name, shape)) in shapes(gated, tied).into_iter().enumerate() {
        let base = if name.ends_with("layer_norm.weight") { 1.0 } else { 0.0 };
        let count = shape.iter().product::<usize>();
        let value = |i: usize| (base + 0.4 * (0.7 * i as f64 + 1.3 * k as f64).sin()) as f32;
        tensors.insert(name, (shape, (0..count).map(value).collect()));
    }
    change(&mut config, &mut tensors);
    marian::save(&folder, &config, &tensors);
}

/// T5 1.1, with a gate and an output projection of its own, and T5 1.0, which divides the states before the output.
#[test]
fn scores_and_translations_are_those_of_transformers() {
    let project = Project::new();
    project.write("source", "the cat a dog the dog a cat the a dog\n");
    project.write("target", "die Katze ein Hund der Hund eine Katze die ein Hund der\n");
    let of_gated = [
        -4.632943, -4.200969, -3.333311, -3.623453, -3.839065, -4.847366, -4.297265, -4.429729, -3.591016, -4.696889,
        -3.620558, -3.825895, -3.519454,
    ];
    let of_tied = [
        -4.06908, -4.132332, -4.098483, -4.144713, -4.082686, -4.06818, -3.997021, -4.045785, -4.20676, -3.713263,
        -4.15169, -4.089864, -3.938762,
    ];
    let (best_of_gated, best_of_tied) = ([4, 31, 21, 38, 28, 36, 35, 6], [46, 14, 28, 10, 15, 6, 20, 43]);
    for (name, gated, tied, expected, best) in
        [("gated", true, false, of_gated, best_of_gated), ("tied", false, true, of_tied, best_of_tied)]
    {
        write(&project, name, gated, tied, |_, _| ());
        let model = format!("{name}-model");
        succeeds(&project.mt(&["import", name, "--out", &model]));
        let found =
            &project.answers(&["score", "-q", "--json", "--model", &model, "--src", "source", "--tgt", "target"])[0];
        let found: Vec<f64> =
            found["token_log_probs"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{name}: {found}, not {expected}");
        }
        let args =
            ["translate", "-q", "--json", "--model", &model, "--beam", "1", "--max-length", "8", "--input", "source"];
        let tokens = project.answers(&args)[0]["tokens"].clone();
        let characters: Vec<String> = "▁abcdefghijklmnopqrstuvwxyzäöüKHST".chars().map(String::from).collect();
        let piece =
            |id: usize| WORDS.get(id - 3).map_or_else(|| characters[id - 13].clone(), |word| (*word).to_owned());
        assert_eq!(tokens, json!(best.map(piece)), "{name}");
    }
}

/// Also in training: fine-tuning lowers the loss.
#[test]
fn an_imported_model_is_fine_tuned() {
    let project = Project::new();
    write(&project, "theirs", true, false, |_, _| ());
    succeeds(&project.mt(&["import", "theirs", "--out", "model"]));
    project.write(
        "tune.toml",
        "[data]\ntrain = [{ source = \"train.en\", target = \"train.de\" }]\n\
         [train]\ninit = \"model\"\nmax_updates = 12\nlog_every = 1\nbatch_tokens = 300\n\
         [valid]\nevery = 0\n\
         [train.schedule]\nkind = \"constant\"\nlearning_rate = 0.01\n",
    );
    succeeds(&project.mt(&["train", "--config", "tune.toml", "-q", "--run-dir", "runs/t"]));
    let losses: Vec<f64> =
        project.logged("runs/t", "train").iter().filter_map(|entry| entry["loss"].as_f64()).collect();
    assert!(losses.last().unwrap() + 0.5 < losses[0], "{losses:?}");
}

/// mT5 divides nothing, even where `transformers` says that its matrices are tied.
#[test]
fn multilingual_models_scale_nothing() {
    let project = Project::new();
    let norm = |model: &str| {
        let file = project.path(&format!("{model}/model.safetensors"));
        let tensors = candle_core::safetensors::load(file, &candle_core::Device::Cpu).unwrap();
        tensors["decoder.norm.weight"].to_vec1::<f32>().unwrap()[0]
    };
    for (name, kind) in [("one", "t5"), ("many", "mt5")] {
        write(&project, name, false, true, |config, _| config["model_type"] = json!(kind));
        succeeds(&project.mt(&["import", name, "--out", &format!("{name}-model")]));
    }
    let (one, many) = (norm("one-model"), norm("many-model"));
    assert!((one * 4.0 - many).abs() < 1e-6, "{one} {many}");
}

/// MADLAD-400's tags: `--to`, what a line begins with, and what is never in a translation.
#[test]
fn tags_in_the_text_select_a_language() {
    let project = Project::new();
    write(&project, "theirs", true, false, |_, _| ());
    let words: Vec<&str> = WORDS.iter().copied().take(8).chain(["<2de>", "<2fr>"]).collect();
    std::fs::write(project.path("theirs/spiece.model"), marian::sentencepiece(&words)).unwrap();
    succeeds(&project.mt(&["import", "theirs", "--out", "model"]));
    let translate = |args: &[&str]| {
        let common = ["translate", "-q", "--json", "--model", "model", "--max-length", "6"];
        project.answers(&[&common[..], args].concat()).remove(0)
    };
    let scores = |args: &[&str]| translate(args)["token_log_probs"].clone();
    assert_eq!(scores(&["--to", "de", "the cat"]), scores(&["<2de> the cat"]));
    assert_ne!(scores(&["--to", "de", "the cat"]), scores(&["--to", "fr", "the cat"]));
    let found = translate(&["--beam", "1", "--n-best", "1", "<2de> the cat"]);
    let tokens = found["tokens"].as_array().unwrap();
    assert!(tokens.iter().all(|token| !token.as_str().unwrap().starts_with("<2")), "{found}");
    let warned = |line: &str| {
        let output = project.mt(&["translate", "--model", "model", "--max-length", "6", line]);
        succeeds(&output);
        stderr(&output)
    };
    assert!(!warned("<2de> the cat").contains("tag"), "{}", warned("<2de> the cat"));
    assert!(warned("the cat").contains("tag"));
    fails(&project.mt(&["translate", "--model", "model", "--to", "it", "the cat"]), 2, &["no language it"]);
}

#[test]
fn what_is_not_such_a_model_is_named() {
    let project = Project::new();
    write(&project, "odd", true, false, |config, tensors| {
        config["feed_forward_proj"] = json!("gated-tanh");
        config["num_heads"] = json!(0);
        config["relative_attention_num_buckets"] = json!(5000);
        config["is_decoder"] = json!(true);
        tensors.remove("decoder.final_layer_norm.weight");
    });
    let problems =
        ["`feed_forward_proj` is \"gated-tanh\"", "`num_heads` is 0", "`is_decoder` is true", "5000 buckets"];
    fails(&project.mt(&["import", "odd", "--out", "model"]), 1, &problems);
    // Subwords of another model.
    write(&project, "mixed", true, false, |config, _| config["eos_token_id"] = json!(1));
    fails(&project.mt(&["import", "mixed", "--out", "model"]), 1, &["`eos_token_id` of config.json is 1", "\"<s>\""]);
    // `transformers` obeys this key, whatever the other says.
    write(&project, "relu", true, false, |config, _| config["dense_act_fn"] = json!("relu"));
    succeeds(&project.mt(&["import", "relu", "--out", "relu-model"]));
    let config = std::fs::read_to_string(project.path("relu-model/config.toml")).unwrap();
    assert!(config.contains("activation = \"relu\"") && config.contains("gated = true"), "{config}");
    write(&project, "torn", true, false, |_, tensors| {
        tensors.remove("decoder.final_layer_norm.weight");
        tensors.insert("decoder.more.weight".to_owned(), (vec![1], vec![0.0]));
    });
    let problems = ["missing: `decoder.final_layer_norm.weight` [16]", "superfluous: `decoder.more.weight`"];
    fails(&project.mt(&["import", "torn", "--out", "model"]), 1, &problems);
}

/// What `transformers` 5 saves of a model lacks a file.
#[test]
fn a_missing_model_of_subwords_is_said_to_be_copied() {
    let project = Project::new();
    write(&project, "saved", true, false, |_, _| ());
    std::fs::remove_file(project.path("saved/spiece.model")).unwrap();
    project.write("saved/tokenizer.json", "{}");
    let says = ["spiece.model is missing", "copy it from the model that this one was made of"];
    fails(&project.mt(&["import", "saved", "--out", "model"]), 1, &says);
}

/// What is exported is what was imported, but for rounding. `make test-interop` compares CTranslate2's arithmetic.
#[test]
fn a_model_comes_back_from_its_export() {
    let project = Project::new();
    project.write("source", "the cat a dog the dog a cat the a dog\n");
    project.write("target", "die Katze ein Hund der Hund eine Katze die ein Hund der\n");
    write(&project, "other", true, false, |_, _| ());
    succeeds(&project.mt(&["import", "other", "--out", "other-model"]));
    let output = project.mt(&["export", "other-model", "--format", "hf", "--out", "out"]);
    fails(&output, 1, &["`<unk>` has the id 2", "and 0 here"]);
    for (name, gated, tied) in [("gated", true, false), ("tied", false, true)] {
        write(&project, name, gated, tied, |config, _| {
            (config["pad_token_id"], config["eos_token_id"]) = (0.into(), 1.into());
        });
        let subwords = marian::sentencepiece_after(["<pad>", "</s>", "<unk>"], &WORDS);
        std::fs::write(project.path(&format!("{name}/spiece.model")), subwords).unwrap();
        let [model, folder, again] = ["model", "folder", "again"].map(|what| format!("{name}-{what}"));
        succeeds(&project.mt(&["import", name, "--out", &model]));
        succeeds(&project.mt(&["export", &model, "--format", "hf", "--out", &folder]));
        succeeds(&project.mt(&["import", &folder, "--out", &again]));
        let scores = |model: &str| -> Vec<f64> {
            let args = ["score", "-q", "--json", "--model", model, "--src", "source", "--tgt", "target"];
            let scores = project.answers(&args).remove(0)["token_log_probs"].take();
            scores.as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect()
        };
        let (before, after) = (scores(&model), scores(&again));
        assert!(
            before.len() > 5 && before.iter().zip(&after).all(|(a, b)| (a - b).abs() < 1e-5),
            "{before:?} {after:?}"
        );
        let tensors = |folder: &str| {
            let file = project.path(&format!("{folder}/model.safetensors"));
            candle_core::safetensors::load(file, &candle_core::Device::Cpu).unwrap()
        };
        let (theirs, ours) = (tensors(name), tensors(&folder));
        for (name, tensor) in &theirs {
            let largest = (tensor - &ours[name]).unwrap().abs().unwrap().max_all().unwrap();
            let difference = largest.to_scalar::<f32>().unwrap();
            assert!(difference < 1e-6, "{name}: {difference}");
        }
        assert_eq!(theirs.len(), ours.len());
        succeeds(&project.mt(&["export", &model, "--format", "ct2", "--out", &format!("{name}-ct2")]));
        assert!(project.path(&format!("{name}-ct2/model.bin")).exists());
        let output = project.mt(&["export", &model, "--format", "hf-marian", "--out", "out"]);
        fails(&output, 1, &["model.norm_kind", "model.feed_forward_bias", "model.positions"]);
    }
    project.write(
        "gated/tokenizer.json",
        r#"{ "added_tokens": [{ "content": "<extra_id_0>" }, { "content": "<ent>" }] }"#,
    );
    fails(&project.mt(&["import", "gated", "--out", "no"]), 1, &["tokens were added to its vocabulary", "\"<ent>\""]);
    // One of our own, whose layers T5 does not have.
    succeeds(&project.train(&["--set", "model.positions=relative", "--set", "train.max_updates=1"]));
    let output = project.mt(&["export", "runs/small", "--format", "hf", "--out", "out"]);
    fails(&output, 1, &["`model.norm`", "`model.norm_kind`", "`model.attention_bias`", "`tokenizer`: its subwords"]);
    succeeds(&project.mt(&["export", "runs/small", "--format", "ct2", "--out", "out"]));
}
