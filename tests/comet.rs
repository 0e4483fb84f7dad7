//! Scores of COMET's classes beside those of `unbabel-comet` (`tests/golden/comet_models.py`), and damaged files.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use common::comet::{golden, model};
use common::project::{Project, fails, sets, stdout, succeeds};

use mt::comet::{Comet, Found, Hardware, Lines, Place};
use mt::infer::ComputeType;
use serde_json::{Value, json};

fn load(folder: &Path, precision: ComputeType) -> mt::error::Result<Comet> {
    let place = Place::named(folder.to_str().unwrap())?;
    Comet::load(&Found::open(&place, true)?, &Hardware::Processor(precision))
}

#[test]
fn scores_are_those_of_the_original() {
    let ([sources, translations, first, second], expected) = golden();
    let references = [first, second];
    let names: Vec<&String> = expected.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 8);
    for name in names {
        // The encoder's tokenizer in either form.
        for form in ["tokenizer.json", "sentencepiece.bpe.model"] {
            let folder = model(name, |file| file == form || file == "config.json");
            let model = load(folder.path(), ComputeType::F32).unwrap();
            let score = |references: &[Vec<String>]| {
                let systems = [&translations[..], &sources[..]];
                let lines = Lines { sources: &sources, systems: &systems, references };
                let scores = model.scores(lines, |_, _| ()).unwrap();
                assert_eq!(scores.len(), 2);
                scores.into_iter().next().unwrap()
            };
            let of_stream = |stream: usize| -> Vec<f64> {
                expected[name][stream].as_array().unwrap().iter().map(|score| score.as_f64().unwrap()).collect()
            };
            let close = |found: &[f64], expected: &[f64], what: &str| {
                assert_eq!(found.len(), expected.len());
                for (line, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let odd = format!("{name}, {form}, {what}, line {line}: {found} instead of {expected}");
                    assert!((found - expected).abs() < 2e-5, "{odd}");
                }
            };
            let each = [0, 1].map(of_stream);
            for (stream, expected) in each.iter().enumerate() {
                close(&score(&references[stream..=stream]), expected, "alone");
            }
            let mean: Vec<f64> = each[0].iter().zip(&each[1]).map(|(a, b)| (a + b) / 2.0).collect();
            close(&score(&references), &mean, "both");
        }
    }
}

/// The same tensors, as safetensors.
#[test]
fn tensors_may_be_safetensors() {
    let ([sources, translations, first, _], _) = golden();
    for name in ["regression", "kiwi"] {
        let folder = model(name, |_| true);
        let score = || {
            let references = if name == "kiwi" { &[][..] } else { std::slice::from_ref(&first) };
            let lines = Lines { sources: &sources, systems: &[&translations[..]], references };
            load(folder.path(), ComputeType::F32).unwrap().scores(lines, |_, _| ()).unwrap()
        };
        let expected = score();
        let [old, new] = ["model.ckpt", "model.safetensors"].map(|file| folder.path().join("checkpoints").join(file));
        let tensors = candle_core::pickle::read_all_with_key(&old, Some("state_dict")).unwrap();
        let tensors: HashMap<_, _> =
            tensors.into_iter().map(|(name, tensor)| (name, tensor.contiguous().unwrap())).collect();
        candle_core::safetensors::save(&tensors, &new).unwrap();
        fs::remove_file(&old).unwrap();
        assert_eq!(score(), expected, "{name}");
        let bytes = fs::read(&new).unwrap();
        fs::write(&new, &bytes[..bytes.len() - 1]).unwrap();
        let error = load(folder.path(), ComputeType::F32).unwrap_err();
        assert!(error.location().is_some_and(|location| location.path == new), "{error}");
    }
}

/// One byte less, or any byte another, is an error or changes scores, and never a panic.
#[test]
fn damaged_files_are_errors() {
    let folder = model("kiwi", |_| true);
    let path = folder.path().join("checkpoints/model.ckpt");
    let whole = fs::read(&path).unwrap();
    let ([sources, translations, ..], _) = golden();
    let try_it = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let lines = Lines { sources: &sources[..2], systems: &[&translations[..2]], references: &[] };
        load(folder.path(), ComputeType::F32).and_then(|model| model.scores(lines, |_, _| ()))
    };
    try_it(&whole).unwrap();
    for length in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        let error = try_it(&whole[..length]).unwrap_err();
        assert!(error.location().is_some(), "{error}");
    }
    for at in (0..whole.len()).step_by(whole.len() / 61) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        let _ = try_it(&bytes);
    }
    for (file, text) in [
        ("hparams.yaml", "class_identifier: xcomet_metric\n"),
        ("hparams.yaml", "- a\n"),
        ("encoder/config.json", "{}"),
        ("encoder/config.json", "[]"),
        ("encoder/tokenizer.json", "{}"),
    ] {
        let folder = model("kiwi", |_| true);
        fs::write(folder.path().join(file), text).unwrap();
        let error = load(folder.path(), ComputeType::F32).unwrap_err();
        assert!(error.location().is_some_and(|location| location.path.ends_with(file)), "{file}: {error}");
    }
    // Files of another encoder: more positions and more tokens than the model has.
    let changed = |file: &str, change: &dyn Fn(&mut Value)| {
        let folder = model("kiwi", |_| true);
        let path = folder.path().join("encoder").join(file);
        let mut json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(&path, json.to_string()).unwrap();
        load(folder.path(), ComputeType::F32).unwrap_err().to_string()
    };
    let error = changed("config.json", &|json| json["max_position_embeddings"] = 51.into());
    assert!(error.contains("position_embeddings.weight is [50, 24], which does not fit"), "{error}");
    let error = changed("tokenizer.json", &|json| {
        json["model"]["vocab"].as_array_mut().unwrap().push(serde_json::json!(["zz", -9.5]));
    });
    assert!(error.contains("has 153 tokens, and the model knows 152"), "{error}");
    // A folder of a stranger's does not decide what else is read: its checkpoint names another folder.
    let folder = model("kiwi", |_| false);
    let error = load(folder.path(), ComputeType::F32).unwrap_err().to_string();
    assert!(error.contains("the tokenizer of the encoder") && error.contains("may be a stranger's"), "{error}");
    assert!(error.contains("into a folder `encoder`"), "{error}");
}

/// `mt eval` with `--comet` and `--qe`: the mean over lines, beside other metrics, of several systems and references.
#[test]
fn eval_scores_with_models() {
    let (comet, qe) = (model("regression", |_| true), model("kiwi", |_| true));
    let [comet, qe] = [&comet, &qe].map(|folder| folder.path().to_str().unwrap());
    let ([sources, translations, first, second], expected) = golden();
    let project = Project::new();
    let lines = 0..8;
    for (name, text) in [("src", &sources), ("hyp", &translations), ("ref", &first), ("ref2", &second)] {
        project.write(name, text[lines.clone()].join("\n").replace('\u{2028}', " ") + "\n");
    }
    // Reading a line removes white space at its end, which no token has.
    let mean = |name: &str, stream: usize| {
        let scores = expected[name][stream].as_array().unwrap()[lines.clone()].iter();
        scores.map(|score| score.as_f64().unwrap()).sum::<f64>() / lines.len() as f64
    };
    let json = |args: &[&str]| -> Value {
        let output = project.mt(args);
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let close = |found: &Value, expected: f64| {
        assert!((found.as_f64().unwrap() - expected).abs() < 2e-5, "{found} instead of {expected}");
    };
    let args = ["eval", "--src", "src", "--hyp", "hyp", "--ref", "ref", "--json", "--comet", comet];
    let found = json(&[&args[..], &["--qe", qe, "--chrf"]].concat());
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["chrf", "comet", "qe"]);
    close(&found["comet"]["score"], mean("regression", 0));
    close(&found["qe"]["score"], mean("kiwi", 0));
    let signature = |of: &str| found[of]["signature"].as_str().unwrap().to_owned();
    assert!(signature("comet").starts_with(&format!("nrefs:1|model:{comet}|precision:f32|")), "{}", signature("comet"));
    assert!(signature("qe").starts_with(&format!("model:{qe}|")), "{}", signature("qe"));
    // Several references and systems.
    let both = ["eval", "--src", "src", "--hyp", "hyp", "src", "--ref", "ref", "ref2", "--comet", comet];
    let found = json(&[&both[..], &["--json", "--paired-bs"]].concat());
    close(&found[0]["comet"]["score"], (mean("regression", 0) + mean("regression", 1)) / 2.0);
    assert!(found[0]["comet"]["signature"].as_str().unwrap().contains("nrefs:2|bs:1000|seed:12345|model:"));
    assert!(found[0]["comet"]["signature"].as_str().unwrap().contains("|refs:mean|"));
    assert!(found[1]["comet"]["p_value"].is_number());
    // Lines alone; text has four decimals.
    let output = project.mt(&[&args[..7], &["--qe", qe, "--sentence-level"]].concat());
    succeeds(&output);
    let scores = expected["kiwi"][0].as_array().unwrap();
    for (line, score) in stdout(&output).lines().zip(scores) {
        assert!(line.ends_with(&format!(" = {:.4}", score.as_f64().unwrap())), "{line}, not {score}");
    }
    // Quality is estimated without references.
    let alone = json(&["eval", "--src", "src", "--hyp", "hyp", "--json", "--qe", qe]);
    close(&alone["qe"]["score"], mean("kiwi", 0));
    for precision in ["bf16", "int8"] {
        let found =
            json(&["eval", "--src", "src", "--hyp", "hyp", "--json", "--qe", qe, "--comet-precision", precision]);
        assert!((found["qe"]["score"].as_f64().unwrap() - mean("kiwi", 0)).abs() < 0.05, "{found}");
        assert!(found["qe"]["signature"].as_str().unwrap().contains(&format!("precision:{precision}")));
    }
    for (args, words) in [
        (&["--hyp", "hyp", "--ref", "ref", "--comet", comet][..], "--comet needs the sources"),
        (&["--hyp", "hyp", "--src", "src", "--comet", comet], "--hyp without --ref"),
        (&["--hyp", "hyp", "--ref", "ref", "--src", "src", "--qe", comet], "compares with references"),
        (&["--hyp", "hyp", "--ref", "ref", "--src", "src", "--comet", qe], "looks at no references"),
        (&["--hyp", "hyp", "--src", "src"], "--hyp without --ref"),
    ] {
        fails(&project.mt(&[&["eval"], args].concat()), 2, &[words]);
    }
    let short = ["eval", "--hyp", "hyp", "--src", "valid.en", "--qe", qe];
    fails(&project.mt(&short), 1, &["hyp has 8 lines", "aligned line by line"]);
    let output = project.mt(&["eval", "--hyp", "hyp", "--ref", "ref", "--src", "src", "--comet", "Unbabel/x"]);
    fails(&output, 1, &["write hf:Unbabel/x"]);
    let offline = ["eval", "--hyp", "hyp", "--ref", "ref", "--src", "src", "--comet", "--offline"];
    let output = project.command(&offline).env("HF_HOME", project.path("none")).output().unwrap();
    fails(&output, 1, &["copy hparams.yaml and checkpoints/model.ckpt of Unbabel/wmt22-comet-da into a folder"]);
}

/// Of the same draws, the one with the best mean score beside all of them, each pair scored by itself.
#[test]
fn minimum_bayes_risk_by_a_model() {
    let (folder, qe) = (model("regression", |_| true), model("kiwi", |_| true));
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=40"])));
    let model = folder.path().to_str().unwrap();
    let translate = |flags: &[&str]| translations(&project, flags);
    let drawn = translate(&["--sample", "--n-best", "7"]);
    let chosen = translate(&["--mbr", "comet", "--mbr-model", model, "--samples", "7"]);
    let comet = load(folder.path(), ComputeType::F32).unwrap();
    assert_eq!((drawn.len(), chosen.len()), (6, 6));
    for (drawn, chosen) in drawn.iter().zip(&chosen) {
        let texts: Vec<String> = drawn["n_best"].as_array().unwrap().iter().map(text).collect();
        let sources = vec![chosen["source"].as_str().unwrap().to_owned(); texts.len()];
        let utility = |translation: &String| {
            let systems = [&vec![translation.clone(); texts.len()][..]];
            let lines = Lines { sources: &sources, systems: &systems, references: std::slice::from_ref(&texts) };
            comet.scores(lines, |_, _| ()).unwrap()[0].iter().sum::<f64>() / texts.len() as f64
        };
        let best = texts.iter().map(utility).fold(f64::NEG_INFINITY, f64::max);
        let (score, own) = (chosen["score"].as_f64().unwrap(), utility(&text(chosen)));
        assert!((score - best).abs() < 1e-5 && (own - best).abs() < 1e-5, "{score}, {own} and not {best}");
    }
    let qe = qe.path().to_str().unwrap();
    for (flags, words) in
        [(&["--mbr", "comet", "--mbr-model", qe][..], "looks at no references"), (&["--mbr-model", model], "--mbr")]
    {
        fails(&project.mt(&[&["translate", "--model", "runs/small", "a"], flags].concat()), 2, &[words]);
    }
    let bulk = ["augment", "--model", "runs/small", "--input", "valid.de", "--out", "bt", "--mbr", "comet"];
    fails(&project.mt(&bulk), 2, &["too long for whole corpora"]);
}

/// Of what the search finds, the one with the best score of its own, and the scores of `mt score --qe`.
#[test]
fn reranking_by_estimated_quality() {
    let (folder, comet) = (model("kiwi", |_| true), model("regression", |_| true));
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=40"])));
    let model = folder.path().to_str().unwrap();
    let translate = |flags: &[&str]| translations(&project, flags);
    let rerank = ["--rerank", "--rerank-model", model];
    for (search, reranked, keep) in [
        (&["--beam", "5", "--n-best", "5"][..], &["--beam", "5", "--n-best", "3"][..], 3),
        (&["--sample", "--n-best", "6"], &["--sample", "--samples", "6"], 1),
    ] {
        let found = translate(search);
        let reranked = translate(&[reranked, &rerank].concat());
        assert_eq!(found.len(), 6);
        for (found, reranked) in found.iter().zip(&reranked) {
            let mut texts: Vec<String> = found["n_best"].as_array().unwrap().iter().map(text).collect();
            let n_best = reranked["n_best"].as_array();
            let best: Vec<&Value> = n_best.map_or_else(|| vec![reranked], |list| list.iter().collect());
            texts.sort();
            texts.dedup();
            assert_eq!(best.len(), keep.min(texts.len()));
            let source = reranked["source"].as_str().unwrap();
            project.write("source", format!("{source}\n").repeat(texts.len()));
            project.write("texts", texts.iter().map(|text| format!("{text}\n")).collect::<String>());
            let output = project.mt(&["score", "--qe", model, "--src", "source", "--tgt", "texts"]);
            succeeds(&output);
            let scores: Vec<f64> = stdout(&output).lines().map(|line| line.parse().unwrap()).collect();
            let mut sorted = scores.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for (rank, best) in best.iter().enumerate() {
                let score = best["score"].as_f64().unwrap();
                let own = scores[texts.iter().position(|text| text == best["translation"].as_str().unwrap()).unwrap()];
                let odd = format!("{rank}: {score}, {own} of {sorted:?}");
                assert!((score - own).abs() < 1e-5 && (own - sorted[rank]).abs() < 1e-5, "{odd}");
            }
        }
    }
    for (flags, words) in [
        (&["--rerank", "--beam", "1"][..], "a beam of 1 finds one"),
        (&["--rerank", "--samples", "9", "--beam", "4"], "--samples goes with --mbr"),
        (&["--rerank", "--beam", "4", "--n-best", "5"], "--n-best 5 is more than a beam of 4"),
        (&["--rerank", "--mbr", "chrf"], "cannot be used with"),
        (&["--rerank", "--beam", "4", "--rerank-model", comet.path().to_str().unwrap()], "compares with references"),
    ] {
        fails(&project.mt(&[&["translate", "--model", "runs/small", "a"], flags].concat()), 2, &[words]);
    }
    let bulk = ["augment", "--model", "runs/small", "--input", "valid.de", "--out", "bt", "--rerank"];
    fails(&project.mt(&bulk), 2, &["too long for whole corpora"]);
}

/// The scores of the original, for pairs and for n-best lists.
#[test]
fn pairs_are_scored_without_references() {
    let ([sources, translations, ..], expected) = golden();
    let (folder, comet) = (model("kiwi", |_| true), model("regression", |_| true));
    let model = folder.path().to_str().unwrap();
    let project = Project::new();
    let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    // The original reads no lines: one with a separator of its own would be two here.
    let one_line = |line: &String| !line.contains(['\n', '\r']);
    let chosen: Vec<usize> =
        (0..sources.len()).filter(|n| one_line(&sources[*n]) && one_line(&translations[*n])).collect();
    let of = |lines: &[String]| -> Vec<String> { chosen.iter().map(|n| lines[*n].clone()).collect() };
    let expected: Vec<f64> = chosen.iter().map(|n| expected["kiwi"][0][*n].as_f64().unwrap()).collect();
    project.write("src", text(&of(&sources)));
    project.write("tgt", text(&of(&translations)));
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 2e-5, "{found} and not {expected}");
    let output = project.mt(&["score", "-q", "--qe", model, "--src", "src", "--tgt", "tgt"]);
    succeeds(&output);
    let found: Vec<f64> = stdout(&output).lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    found.iter().zip(&expected).for_each(|(found, expected)| close(*found, *expected));
    project.write("list", "0 ||| hallo Welt ||| LogProb= -1 ||| -0.5\n1 ||| ein Test ||| LogProb= -2 ||| -1\n");
    let list = ["score", "-q", "--qe", model, "--src", "src", "--n-best", "list"];
    let output = project.mt(&list);
    succeeds(&output);
    let first = stdout(&output).lines().next().unwrap().to_owned();
    let json = project.mt(&[&list[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(stdout(&json).lines().next().unwrap()).unwrap();
    let qe =
        first.strip_prefix("0 ||| hallo Welt ||| LogProb= -1 QE= ").and_then(|rest| rest.strip_suffix(" ||| -0.5"));
    close(qe.unwrap().parse().unwrap(), json["qe"].as_f64().unwrap());
    assert_eq!((&json["number"], &json["target"]), (&0.into(), &"hallo Welt".into()));
    let files = ["--src", "src", "--tgt", "tgt"];
    let int8 = project.mt(&[&["score", "--qe", model, "--precision", "int8"], &files[..]].concat());
    succeeds(&int8);
    fails(&project.mt(&[&["score", "--qe", model, "--normalize"], &files[..]].concat()), 2, &["cannot be used with"]);
    let comet = comet.path().to_str().unwrap();
    fails(&project.mt(&[&["score", "--qe", comet], &files[..]].concat()), 2, &["compares with references"]);
    // No output replaces a file of a model.
    succeeds(&project.train(&[]));
    let over = folder.path().join("hparams.yaml");
    let over = ["--output", over.to_str().unwrap()];
    let score = [&["score", "--qe", model], &files[..]].concat();
    let eval = ["eval", "--model", "runs/small", "--src", "src", "--ref", "tgt", "--qe", model];
    let translate = ["translate", "--model", "runs/small", "--input", "src", "--rerank", "--rerank-model", model];
    for command in [&score[..], &eval, &translate] {
        fails(&project.mt(&[command, &over].concat()), 2, &["the output is the same file as the input"]);
    }
}

/// What `metrics::compare` finds in the scores of lines.
#[test]
fn systems_are_compared_as_comet_compare_does() {
    let ([sources, translations, first, _], _) = golden();
    let folder = model("kiwi", |_| true);
    let project = Project::new();
    // A line of its own for each.
    let chosen: Vec<usize> = (0..sources.len()).filter(|n| !sources[*n].contains(['\n', '\r'])).collect();
    let write = |name: &str, lines: &[String]| {
        project.write(name, chosen.iter().map(|n| format!("{}\n", lines[*n])).collect::<String>());
    };
    write("src", &sources);
    write("a", &translations);
    write("b", &first);
    write("c", &sources);
    let eval = ["eval", "--src", "src", "--qe", folder.path().to_str().unwrap(), "--hyp", "a", "b", "c"];
    let output = project.mt(&[&eval[..], &["--sentence-level", "--json"]].concat());
    succeeds(&output);
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let scores = |system: usize| lines.iter().map(|line| line[system]["qe"]["score"].as_f64().unwrap()).collect();
    let expected = mt::metrics::compare::compare(&[scores(0), scores(1), scores(2)]);
    let output = project.mt(&[&eval[..], &["--comet-compare", "--json"]].concat());
    succeeds(&output);
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["scores"].as_array().unwrap().len(), 3);
    let found = found["comparisons"].as_array().unwrap();
    assert_eq!(found.len(), 3);
    for (found, ([a, b], expected)) in found.iter().zip(&expected) {
        let name = |system: &usize| ["a", "b", "c"][*system];
        assert_eq!((&found["metric"], &found["systems"]), (&"qe".into(), &json!([name(a), name(b)])));
        assert_eq!(found["bootstrap"]["wins"], json!(expected.wins));
        assert!((found["t_test"]["t"].as_f64().unwrap() - expected.t).abs() < 1e-9, "{found}");
        assert!((found["t_test"]["p_value"].as_f64().unwrap() - expected.p_value).abs() < 1e-9, "{found}");
    }
    let output = project.mt(&[&eval[..], &["--comet-compare"]].concat());
    assert!(stdout(&output).contains("QE: a and b\n  bootstrap: means "), "{}", stdout(&output));
    for (args, words) in [
        (&["eval", "--hyp", "a", "b", "--ref", "c", "--comet-compare"][..], "without --comet or --qe"),
        (&[&eval[..6], &["a", "--comet-compare"]].concat(), "there is only one"),
    ] {
        fails(&project.mt(args), 2, &[words]);
    }
}

/// Every second validation, and the final model, have it, whether or not the run was interrupted; as the metric, all
/// have it, and it decides.
#[test]
fn validation_scores_with_a_model() {
    let (folder, qe) = (model("regression", |_| true), model("kiwi", |_| true));
    let project = Project::new();
    let named = format!("valid.comet_model={}", folder.path().display());
    let every = ["train.max_updates=40", "valid.every=10", "valid.comet=2", "train.average_last=1", &named];
    let other = "data.monitor=[{ name = \"other\", source = \"valid.en\", target = \"valid.de\" }]";
    let keys = |more: &[&'static str]| sets(&[&every[..], more].concat()).iter().map(|s| (*s).to_owned()).collect();
    let train = |run: &str, more: &[&'static str], flags: &[&str]| {
        let keys: Vec<String> = keys(more);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        project.mt(&[&["train", "--config", "small.toml", "--run-dir", run], &keys[..], flags].concat())
    };
    let updates = |run: &str, event: &str| -> Vec<u64> {
        let entries = project.logged(run, event);
        let scored = entries.iter().filter(|entry| entry["comet"].is_f64());
        scored.map(|entry| entry["update"].as_u64().unwrap()).collect()
    };
    let output = train("runs/whole", &[other], &[]);
    succeeds(&output);
    assert!(common::project::stderr(&output).contains(" COMET "), "{}", common::project::stderr(&output));
    assert_eq!(updates("runs/whole", "valid"), [20, 40]);
    assert_eq!(updates("runs/whole", "monitor"), [20, 40, 40]);
    let last = project.logged("runs/whole", "final")[0].clone();
    // Greedy search, as in validation.
    let model = folder.path().to_str().unwrap();
    let eval = ["eval", "--model", "runs/whole", "--src", "valid.en", "--ref", "valid.de", "--beam", "1", "--json"];
    let output = project.mt(&[&eval[..], &["--comet", model, "--bleu"]].concat());
    let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let [score, bleu] = ["comet", "bleu"].map(|key| found[key]["score"].as_f64().unwrap());
    assert!((score - last["comet"].as_f64().unwrap()).abs() < 1e-6, "{found} {last}");
    assert!((bleu - last["bleu"].as_f64().unwrap()).abs() < 1e-6, "{found} {last}");
    let report = project.mt(&["report", "runs/whole", "--json"]);
    let report: Value = serde_json::from_str(&stdout(&report)).unwrap();
    assert_eq!(report["runs"][0]["final"]["comet"], last["comet"]);

    succeeds(&train("runs/parts", &[other, "train.max_updates=15"], &[]));
    succeeds(&train("runs/parts", &[other], &["--resume"]));
    let scores = |run: &str| -> Vec<Value> {
        project.logged(run, "valid").iter().map(|entry| json!([entry["update"], entry["comet"]])).collect()
    };
    assert_eq!(scores("runs/whole"), scores("runs/parts"));

    succeeds(&train("runs/metric", &["valid.metric=comet", "valid.comet=0"], &[]));
    assert_eq!(updates("runs/metric", "valid"), [10, 20, 30, 40]);
    let best = |run: &str| -> Vec<Value> {
        project.logged(run, "valid").into_iter().filter(|entry| entry["best"] == true).collect()
    };
    let info = project.mt(&["info", "runs/metric"]);
    let chosen = best("runs/metric").last().unwrap()["comet"].as_f64().unwrap();
    assert!(stdout(&info).contains(&format!("best validation: COMET {chosen:.4}")), "{}", stdout(&info));

    fails(&train("runs/none", &["valid.metric=comet"], &[]), 2, &["needs COMET at each validation", "valid.comet=2"]);
    let qe = format!("valid.comet_model={}", qe.path().display());
    fails(&project.train(&sets(&["valid.comet=1", &qe])), 2, &["valid.comet_model", "looks at no references"]);
    let missing = sets(&["valid.comet=1", "valid.comet_model=nowhere"]);
    fails(&project.train(&missing), 1, &["nowhere", "there is no such folder"]);
    fails(&project.mt(&[&["check", "--config", "small.toml"], &missing[..]].concat()), 1, &["there is no such folder"]);
    // A byte of a tensor is another, which shows before the first update.
    let file = folder.path().join("checkpoints/model.ckpt");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    fails(&project.train(&sets(&["valid.comet=100", &named])), 1, &["model.ckpt"]);
    assert!(!project.path("runs/small").exists() && !project.path("runs/none").exists());
}

/// A model that is forged to have no outputs, or whose weights are not numbers, is refused; its settings count for its
/// digest.
#[test]
fn forged_tensors_are_refused() {
    let folder = model("regression", |_| true);
    let [old, new] = ["model.ckpt", "model.safetensors"].map(|file| folder.path().join("checkpoints").join(file));
    let tensors = candle_core::pickle::read_all_with_key(&old, Some("state_dict")).unwrap();
    let tensors: HashMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (name, tensor.contiguous().unwrap())).collect();
    fs::remove_file(&old).unwrap();
    let load_with = |changes: &[(&str, Tensor)]| {
        let mut forged = tensors.clone();
        forged.retain(|name, _| changes.len() == 1 || !name.starts_with("estimator.ff"));
        forged.extend(changes.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
        candle_core::safetensors::save(&forged, &new).unwrap();
        load(folder.path(), ComputeType::F32)
    };
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let input = tensors["estimator.ff.0.weight"].dims()[1];
    let error = load_with(&[
        ("estimator.ff.0.weight", zeros(&[0, input])),
        ("estimator.ff.0.bias", zeros(&[0])),
        ("estimator.ff.3.weight", zeros(&[1, 0])),
        ("estimator.ff.3.bias", zeros(&[1])),
    ]);
    assert!(error.unwrap_err().to_string().contains("estimator.ff.0.weight"));
    let odd = Tensor::new(&[f32::NAN], &Device::Cpu).unwrap();
    let error = load_with(&[("layerwise_attention.scalar_parameters.0", odd)]).unwrap_err();
    assert!(error.to_string().contains("NaN or infinite"), "{error}");
    load_with(&[("layerwise_attention.gamma", tensors["layerwise_attention.gamma"].clone())]).unwrap();
    let digest =
        || Found::open(&Place::named(folder.path().to_str().unwrap()).unwrap(), true).unwrap().digest().unwrap();
    let before = digest();
    assert_eq!(before, digest());
    let settings = folder.path().join("hparams.yaml");
    fs::write(&settings, fs::read_to_string(&settings).unwrap() + "\n# changed\n").unwrap();
    assert_ne!(before, digest());
}

/// Pairs below the threshold are dropped, by the scores of `mt score --qe`; another threshold needs no other scores.
#[test]
fn training_pairs_are_chosen_by_estimated_quality() {
    let (folder, comet) = (model("kiwi", |_| true), model("regression", |_| true));
    let project = Project::new();
    let model = folder.path().to_str().unwrap();
    let output = project.mt(&["score", "--qe", model, "--src", "train.en", "--tgt", "train.de"]);
    succeeds(&output);
    let mut scores: Vec<f64> = stdout(&output).lines().map(|line| line.parse().unwrap()).collect();
    scores.sort_by(f64::total_cmp);
    let count = scores.len();
    let prepare = |command: &str, least: f64, model: &str| {
        let quality = format!("data.quality={{ least = {least}, model = \"{model}\" }}");
        project.mt(&[&[command, "--config", "small.toml", "--json"], &sets(&[&quality])[..]].concat())
    };
    // Unlike its neighbours, so that rounding does not matter.
    let apart = |from: usize| {
        (from..count - 1)
            .find(|n| scores[n + 1] - scores[*n] > 1e-4)
            .map(|n| (n + 1, f64::midpoint(scores[n], scores[n + 1])))
    };
    let (fewer, low) = apart(count / 4).unwrap();
    let (more, high) = apart(count / 2).unwrap();
    assert!(0 < fewer && fewer < more && more < count);
    let cached = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(project.path("runs/data-cache")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(folder)).collect()
    };
    // What only looks makes no scores.
    let output = prepare("check", low, model);
    succeeds(&output);
    assert!(stdout(&output).contains("have no scores yet"), "{}", stdout(&output));
    for (below, least) in [(fewer, low), (more, high)] {
        let output = prepare("prepare", least, model);
        succeeds(&output);
        let found: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
        assert_eq!(found["pairs"], count - below, "{found}");
        assert_eq!(found["dropped"]["low_quality"]["count"], below, "{found}");
        let stderr = common::project::stderr(&output);
        assert_eq!(stderr.contains(&format!("scored {count} pairs")), least == low, "{stderr}");
    }
    assert_eq!((cached("quality-").len(), cached("text-").len()), (1, 2));
    let keys = format!("data.quality={{ least = {high}, model = \"{model}\" }}");
    let output =
        project.mt(&[&["train", "--config", "small.toml"], &sets(&["train.max_updates=2", &keys])[..]].concat());
    succeeds(&output);
    let stderr = common::project::stderr(&output);
    assert!(stderr.contains(&format!("{more} with a quality below data.quality.least")), "{stderr}");
    // A damaged part is made again.
    let part = cached("quality-")[0].join("00000.f32");
    fs::write(&part, &fs::read(&part).unwrap()[1..]).unwrap();
    let output = prepare("prepare", low, model);
    let found: Value = serde_json::from_str(stdout(&output).lines().last().unwrap()).unwrap();
    assert_eq!(found["pairs"], count - fewer);

    fails(&prepare("prepare", 9.0, model), 1, &["no pair is left", "lower data.quality.least"]);
    fails(&prepare("prepare", low, comet.path().to_str().unwrap()), 2, &["data.quality.model", "with references"]);
    let output =
        project.mt(&[&["check", "--config", "small.toml"], &sets(&["data.quality={ model = \"x\" }"])[..]].concat());
    fails(&output, 2, &["least"]);
    // A model that may be a stranger's does not say what is fetched.
    drop(folder);
    succeeds(&project.mt(&["shortlist", "runs/small", "--out", "list"]));
}

/// What the model in runs/small makes of valid.en.
fn translations(project: &Project, flags: &[&str]) -> Vec<Value> {
    let args = ["translate", "--model", "runs/small", "--input", "valid.en", "--seed", "3", "--json"];
    let output = project.mt(&[&args[..], flags].concat());
    succeeds(&output);
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(translation: &Value) -> String {
    translation["translation"].as_str().unwrap().to_owned()
}
