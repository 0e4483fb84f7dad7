//! Attention weights, explanations and sentence vectors; and what happens where learned positions end.

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use common::project::{Project, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use mt::data::tokenizers::Tokenizers;
use mt::model::{Sequences, Transformer};
use mt::ops::Mode;
use serde_json::Value;

fn trained(more: &[&str]) -> Project {
    let project = Project::new();
    succeeds(&project.train(&[&["--set", "train.max_updates=4"], more].concat()));
    project
}

fn vectors(text: &str) -> Vec<Vec<f32>> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The encoder's states of a line of a run's source language, its end included.
fn states(project: &Project, line: &str) -> Vec<Vec<f32>> {
    let run = project.path("runs/small");
    let config = mt::config::load_resolved(run.join("config.toml")).unwrap();
    let tokenizers = Tokenizers::load(&run).unwrap();
    let model = Transformer::new(&config.model, mt::model_dir::vocabulary(&tokenizers), &Device::Cpu).unwrap();
    mt::model_dir::load_parameters(&run.join("model.safetensors"), &model).unwrap();
    let mut ids = tokenizers.source.encode(line);
    ids.push(tokenizers.source.eos_id());
    let length = ids.len();
    let source = Sequences { ids, lengths: Arc::new(vec![length as u32]), length };
    // [S, D]
    model.encode(&source, &Mode::INFERENCE).unwrap().states.to_vec2().unwrap()
}

#[test]
fn attention_of_a_translation() {
    let project = trained(&["--set", "model.decoder_layers=2"]);
    let input = "the cat sleeps\n\na dog runs and runs\n";
    let run = |more: &[&str]| {
        let args = [&["translate", "--model", "runs/small", "-q", "--max-length", "6"], more].concat();
        project.mt_with_input(&args, input.as_bytes())
    };
    let output = run(&["--attention", "weights.json"]);
    succeeds(&output);
    // It does not change the translations.
    assert_eq!(stdout(&output), stdout(&run(&[])));
    let weights: Value = serde_json::from_slice(&std::fs::read(project.path("weights.json")).unwrap()).unwrap();
    let sentences = weights.as_array().unwrap();
    assert_eq!(sentences.len(), 3);
    assert_eq!(sentences[1]["source"], Value::Array(Vec::new()));
    for sentence in [&sentences[0], &sentences[2]] {
        let count = |key: &str| sentence[key].as_array().unwrap().len();
        let (s, t) = (count("source"), count("target"));
        assert_eq!(sentence["source"][s - 1], "</s>");
        assert_eq!(sentence["target_input"][0], "<s>");
        assert_eq!(count("target_input"), t);
        for (kind, layers, queries, keys) in [("encoder", 1, s, s), ("decoder", 2, t, t), ("cross", 2, t, s)] {
            let weights: Vec<Vec<Vec<Vec<f64>>>> = serde_json::from_value(sentence[kind].clone()).unwrap();
            assert_eq!((weights.len(), weights[0].len(), weights[0][0].len()), (layers, 2, queries));
            for head in weights.iter().flatten() {
                for (query, row) in head.iter().enumerate() {
                    assert_eq!(row.len(), keys);
                    assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-5);
                    if kind == "decoder" {
                        assert!(row[query + 1..].iter().all(|weight| *weight == 0.0), "a later position is seen");
                    }
                }
            }
        }
    }
    std::fs::create_dir(project.path("d")).unwrap();
    let mut transcript = Transcript::new(&project);
    for other in ["out --output out", "./d/../out --output out", "-"] {
        transcript.run(&format!("translate --model runs/small -q --attention {other}"));
    }
    assert_transcript!(transcript);
}

/// An explanation has a step for each token of the translation, with the model's probabilities.
#[test]
fn an_explanation_tells_probabilities_and_runners_up() {
    let project = trained(&["--set", "train.max_updates=40"]);
    let args =
        ["translate", "--model", "runs/small", "-q", "--json", "--beam", "1", "--attention", "a.json", "a dog runs"];
    let output = project.mt(&args);
    succeeds(&output);
    let translation: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let file: Value = serde_json::from_slice(&std::fs::read(project.path("a.json")).unwrap()).unwrap();
    let explained = &file[0];
    assert_eq!((&explained["text"], &explained["translation"]), (&"a dog runs".into(), &translation["translation"]));
    let number = |value: &Value| value.as_f64().unwrap();
    let (steps, log_probs) =
        (explained["steps"].as_array().unwrap(), translation["token_log_probs"].as_array().unwrap());
    assert_eq!(steps.len(), log_probs.len());
    assert_eq!(steps.len(), explained["target"].as_array().unwrap().len());
    for ((step, log_prob), piece) in steps.iter().zip(log_probs).zip(explained["target"].as_array().unwrap()) {
        assert!((number(&step["log_prob"]) - number(log_prob)).abs() < 1e-4, "{step} {log_prob}");
        // Greedy search chooses the best candidate.
        assert_eq!((&step["rank"], &step["candidates"][0][0]), (&1.into(), piece));
        let candidates: Vec<f64> = step["candidates"].as_array().unwrap().iter().map(|pair| number(&pair[1])).collect();
        assert!(candidates.is_sorted_by(|a, b| a >= b) && candidates.iter().map(|l| l.exp()).sum::<f64>() < 1.0 + 1e-6);
        let sums: Vec<f64> = step["log_sums"].as_array().unwrap().iter().map(number).collect();
        // At temperature 1 the probabilities stay the same.
        assert!(sums.len() == 20 && sums[9].abs() < 1e-5, "{sums:?}");
    }
    let words = |key: &str| explained[key].as_str().unwrap().split_whitespace().count() as u64;
    let pairs: Vec<(u64, u64)> = serde_json::from_value(explained["alignment"].clone()).unwrap();
    assert_eq!(pairs.len() as u64, words("translation"));
    assert!(pairs.iter().all(|(source, target)| *source < words("text") && *target < words("translation")));
}

/// A page shows all lines, a picture only one; several are refused, if possible before anything is translated.
#[test]
fn explanations_are_pages_and_pictures() {
    let project = trained(&[]);
    let translate = |more: &[&str]| project.mt(&[&["translate", "--model", "runs/small", "-q"], more].concat());
    let read = |name: &str| std::fs::read(project.path(name)).unwrap();
    let odd = "the \u{1} </script> & @DATA@ <cat> 猫";
    for (name, beginning) in [("a.svg", &b"<svg "[..]), ("a.PNG", b"\x89PNG"), ("a.html", b"<!doctype html>")] {
        let output = translate(&["--attention", name, odd]);
        succeeds(&output);
        assert_eq!(output.stdout, translate(&[odd]).stdout, "asking changes the translation");
        let file = read(name);
        assert!(file.starts_with(beginning) && file.len() > 5000, "{name}: {} bytes", file.len());
        succeeds(&translate(&["--attention", name, "  "]));
        assert!(read(name).starts_with(beginning));
    }
    succeeds(&translate(&["--attention", "a.svg", odd]));
    let svg = String::from_utf8(read("a.svg")).unwrap();
    resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default()).unwrap();
    assert!(svg.contains("attention to the source, layer 1, mean of 2 heads") && svg.contains("&lt;cat&gt;"));

    succeeds(
        &project
            .mt_with_input(&["translate", "--model", "runs/small", "-q", "--attention", "b.html"], b"a cat\n\na dog\n"),
    );
    let page = String::from_utf8(read("b.html")).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let texts: Vec<&Value> = data["sentences"].as_array().unwrap().iter().map(|sentence| &sentence["text"]).collect();
    assert_eq!(texts, ["a cat", "", "a dog"]);
    for kind in ["cross", "encoder", "decoder"] {
        let sentence = &data["sentences"][0];
        let count = |key: &str| sentence[key].as_array().unwrap().len();
        let (queries, keys) = match kind {
            "cross" => ("target", "source"),
            "encoder" => ("source", "source"),
            _ => ("target", "input"),
        };
        let map = &sentence["maps"][kind];
        assert_eq!((&map["layers"], &map["heads"]), (&1.into(), &2.into()));
        assert_eq!(map["hex"].as_str().unwrap().len(), 2 * 2 * count(queries) * count(keys));
    }

    let long = "cat ".repeat(200);
    project.write("kept.png", "as it was");
    project.write("long", format!("{long}\n"));
    project.write("many", "a cat\n".repeat(101));
    project.write("two", "a cat\na dog\n");
    let mut transcript = Transcript::new(&project);
    let mut told = |args: &str| {
        // So every translation is cut.
        let args = format!("translate --model runs/small --min-length 2 --max-length 2 --attention {args}");
        transcript.messages(&args.split(' ').collect::<Vec<_>>());
    };
    told("kept.png --input long");
    assert_eq!((read("kept.png"), project.temporaries("kept.png")), (b"as it was".to_vec(), vec![]));
    told("a.html --input long");
    told("many.html --input many");
    told("many.html --input many -q");
    told("c.svg cat dog");
    told("c.png --input two");
    assert_transcript!(transcript);
    let two = translate(&["--attention", "c.svg", "a cat", "a dog"]);
    assert!(two.stdout.is_empty() && !project.path("c.svg").exists());
}

#[test]
fn sentence_vectors() {
    let project = trained(&[]);
    let lines = ["the cat sleeps", "a dog", "", "the dog eats the cat and the dog sleeps and eats"];
    project.write("lines.txt", lines.join("\n") + "\n");
    let embed = |args: &[&str]| {
        let output = project.mt(&[&["embed", "--model", "runs/small", "-q"], args].concat());
        succeeds(&output);
        stdout(&output)
    };
    let states = lines.map(|line| states(&project, line));
    let mut seen = Vec::new();
    for pool in ["mean", "max", "first"] {
        let together = vectors(&embed(&["--pool", pool, "--input", "lines.txt"]));
        assert_eq!(together.len(), lines.len());
        assert!(together.iter().all(|vector| vector.len() == 32));
        // Batching, and so padding, does not change a vector.
        for (line, vector) in lines.iter().zip(&together) {
            assert_eq!(vectors(&embed(&["--pool", pool, line])), std::slice::from_ref(vector), "{pool} {line}");
        }
        for ((line, vector), states) in lines.iter().zip(&together).zip(&states) {
            let of_component = |j: usize| {
                let values = states.iter().map(|state| state[j]);
                match pool {
                    "mean" => values.sum::<f32>() / states.len() as f32,
                    "max" => values.fold(f32::NEG_INFINITY, f32::max),
                    _ => states[0][j],
                }
            };
            let expected: Vec<f32> = (0..vector.len()).map(of_component).collect();
            // Sums of float32 in another order.
            assert!(common::relative_error(vector, &expected) < 1e-6, "{pool} {line}: {vector:?} {expected:?}");
        }
        embed(&["--pool", pool, "--input", "lines.txt", "--output", "all.safetensors"]);
        let tensors: HashMap<String, Tensor> =
            candle_core::safetensors::load(project.path("all.safetensors"), &Device::Cpu).unwrap();
        assert_eq!(tensors.len(), 1);
        assert_eq!(tensors["embeddings"].dtype(), DType::F32);
        assert_eq!(tensors["embeddings"].to_vec2::<f32>().unwrap(), together);
        seen.push(together);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2]);
    let mut transcript = Transcript::new(&project);
    transcript.run("embed --model runs/small --pool middle a");
    assert_transcript!(transcript);
}

/// Whatever the positions are, and as `mt translate --long truncate` does: the other lines are not affected.
#[test]
fn a_vector_of_a_line_beyond_the_positions_is_of_its_beginning() {
    for positions in ["learned", "sinusoidal", "rotary"] {
        let set = format!("model.positions={positions}");
        let project = trained(&["--set", &set, "--set", "model.max_length=40", "--set", "data.max_length=30"]);
        project.write("long.txt", format!("a dog\n{}\nthe cat\n{}\n", "the cat ".repeat(40), "a ".repeat(300)));
        let embed = |more: &[&str]| {
            let output = project.mt(&[&["embed", "--model", "runs/small", "-q"], more].concat());
            succeeds(&output);
            output
        };
        let mut transcript = Transcript::new(&project);
        let output = transcript.messages(&["embed", "--model", "runs/small", "--input", "long.txt"]);
        assert_transcript!(transcript, "lines_beyond_the_positions");
        let found = vectors(&stdout(&output));
        for (line, vector) in [("a dog", &found[0]), ("the cat", &found[2])] {
            assert_eq!(vectors(&stdout(&embed(&[line]))), std::slice::from_ref(vector), "{positions}");
        }
        embed(&["--input", "long.txt", "--output", "vectors.safetensors"]);
        let tensors = candle_core::safetensors::load(project.path("vectors.safetensors"), &Device::Cpu).unwrap();
        assert_eq!(tensors["embeddings"].to_vec2::<f32>().unwrap(), found);
    }
}

#[test]
fn of_many_lines_beyond_the_positions_only_the_first_are_named() {
    let project = trained(&["--set", "model.max_length=40", "--set", "data.max_length=30"]);
    let mut transcript = Transcript::new(&project);
    for many in [20, 23] {
        // Lines are read in windows of two thousand.
        project.write("long.txt", "\n".repeat(2000) + &format!("{}\n", "the cat ".repeat(40)).repeat(many));
        transcript.messages(&["embed", "--model", "runs/small", "--input", "long.txt"]);
    }
    assert_transcript!(transcript);
}

/// If the new vectors cannot be written, or the input cannot be read, the old ones stay.
#[test]
fn a_tensor_of_vectors_is_replaced_whole_or_not_at_all() {
    let project = trained(&[]);
    let mut transcript = Transcript::new(&project);
    let mut embed = |input: &str| {
        // One block of 512 or 1024 bytes: less than the tensor.
        let line = "ulimit -f 1; exec \"$0\" embed --model runs/small --input \"$1\" --output old.safetensors";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line, env!("CARGO_BIN_EXE_mt"), input]).current_dir(project.folder.path());
        let output = command.env("NO_COLOR", "1").env_remove("MT_MODEL").output().unwrap();
        let typed = format!("ulimit -f 1; mt embed --model runs/small --input {input} --output old.safetensors");
        transcript.record(&typed, &output);
        assert_eq!(std::fs::read(project.path("old.safetensors")).unwrap(), b"kept");
    };
    project.write("old.safetensors", "kept");
    embed("train.en");
    embed("none.en");
    assert_transcript!(transcript);
    assert_eq!(project.temporaries("old.safetensors"), [""; 0]);
}

/// As in JSON: what was read before the damage is there.
#[test]
fn vectors_before_damaged_input_are_written() {
    let project = trained(&[]);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all("a cat\nthe dog runs\n".repeat(50).as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    project.write("cut.gz", &packed[..packed.len() - 200]);
    let mut transcript = Transcript::new(&project);
    for output in ["lines.json", "tensor.safetensors"] {
        transcript.run(&format!("embed --model runs/small --input cut.gz --output {output}"));
    }
    assert_transcript!(transcript);
    let lines = std::fs::read_to_string(project.path("lines.json")).unwrap().lines().count();
    let tensors = candle_core::safetensors::load(project.path("tensor.safetensors"), &Device::Cpu).unwrap();
    assert!(lines > 10 && tensors["embeddings"].dims()[0] == lines, "{lines}");
}

#[test]
fn beyond_the_positions_the_line_is_split_or_cut_or_named() {
    let project =
        trained(&["--set", "model.positions=learned", "--set", "model.max_length=40", "--set", "data.max_length=30"]);
    let long = "the cat ".repeat(40);
    project.write("long.txt", format!("the cat sleeps\n{long}\na dog\n"));
    let mut transcript = Transcript::new(&project);
    let mut mt = |line: &str| transcript.messages(&line.split(' ').collect::<Vec<_>>());
    let output = mt("translate --long error --model runs/small -q --input long.txt");
    // The line before it is still processed.
    assert_eq!(stdout(&output).lines().count(), 1);
    // As nothing was translated, nothing is overwritten.
    project.write("precious.txt", "kept\n");
    mt("eval --long error --model runs/small -q --src long.txt --ref long.txt --output precious.txt");
    assert_eq!(std::fs::read(project.path("precious.txt")).unwrap(), b"kept\n");
    // By default the line is translated in parts that together cover all of it.
    let [whole, halves] = [long.clone(), format!("{}\n{}", "the cat ".repeat(20), "the cat ".repeat(20))].map(|text| {
        project.write("text", text);
        // So every translation is cut.
        let output = mt("translate --model runs/small --beam 1 --min-length 9 --max-length 9 --input text");
        succeeds(&output);
        stdout(&output)
    });
    assert_eq!(whole.lines().count(), 1);
    assert_eq!(whole.trim(), halves.replace('\n', " ").trim());
    mt("translate --model runs/small --beam 1 --min-length 9 --max-length 9 --long truncate --input long.txt");
    mt("translate --model runs/small --long wrong a");
    transcript.mt(&["translate", "--model", "runs/small", "-q", "--long", "error", &long]);
    assert_transcript!(transcript);
}
