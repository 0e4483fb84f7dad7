//! BLEU against sacrebleu 2.6.0: small committed cases always, published systems where `MT_TEST_DATA` has them.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use mt::metrics::tokenize::words;
use mt::metrics::{
    BleuOptions, BleuScore, Smooth, Tokenize, corpus_bleu, corpus_bleu_with_missing, corpus_stats, sentence_bleu,
};
use serde_json::Value;

/// Both sides compute in f64 and differ at most in the order of a sum of four.
const GOLDEN_TOLERANCE: f64 = 1e-9;
/// The published table has ten decimals.
const PUBLISHED_TOLERANCE: f64 = 1e-6;

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/bleu.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
}

fn options(value: &Value) -> BleuOptions {
    BleuOptions {
        tokenize: value["tokenize"].as_str().unwrap().parse().unwrap(),
        lowercase: value["lowercase"].as_bool().unwrap(),
        smooth: Smooth::new(value["smooth"].as_str().unwrap(), value["smooth_value"].as_f64()).unwrap(),
        effective_order: value["effective_order"].as_bool().unwrap(),
    }
}

fn assert_score(name: &str, score: &BleuScore, expected: &Value) {
    let near = |what: &str, ours: f64, theirs: &Value| {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours - theirs).abs() <= GOLDEN_TOLERANCE, "{name}: {what} is {ours}, sacrebleu has {theirs}");
    };
    near("score", score.score, &expected["score"]);
    near("bp", score.bp, &expected["bp"]);
    for n in 0..4 {
        near("precision", score.precisions[n], &expected["precisions"][n]);
        assert_eq!(score.counts[n], expected["counts"][n], "{name}: counts of order {}", n + 1);
        assert_eq!(score.totals[n], expected["totals"][n], "{name}: totals of order {}", n + 1);
    }
    assert_eq!(score.sys_len, expected["sys_len"], "{name}: hypothesis length");
    assert_eq!(score.ref_len, expected["ref_len"], "{name}: reference length");
    let signature = format!("{}|version:mt-{}", expected["signature"].as_str().unwrap(), env!("CARGO_PKG_VERSION"));
    assert_eq!(score.signature(), signature, "{name}: signature");
    let line = format!("BLEU|{signature} = {:.2} {}", score.score, expected["verbose"].as_str().unwrap());
    assert_eq!(score.to_string(), line, "{name}: printed line");
}

#[test]
fn golden_tokens_are_equal() {
    let golden = golden();
    let lines = strings(&golden["lines"]);
    for tokenize in Tokenize::ALL {
        for (line, expected) in lines.iter().zip(golden["tokens"][tokenize.name()].as_array().unwrap()) {
            let separated = tokenize.separate(line);
            assert_eq!(words(&separated).collect::<Vec<_>>(), strings(expected), "{tokenize}: {line:?}");
        }
    }
}

#[test]
fn golden_scores_are_equal() {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 60, "the golden file is incomplete");
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let options = options(&case["options"]);
        let hypotheses = strings(&case["hypotheses"]);
        let streams: Vec<Vec<Option<String>>> = case["references"]
            .as_array()
            .unwrap()
            .iter()
            .map(|stream| stream.as_array().unwrap().iter().map(|line| line.as_str().map(str::to_owned)).collect())
            .collect();
        let score = corpus_bleu_with_missing(&hypotheses, &streams, &options).unwrap();
        assert_score(name, &score, &case["expected"]);

        // Where nothing is missing, the other ways to the score give the same.
        let whole: Option<Vec<Vec<String>>> = streams.into_iter().map(|stream| stream.into_iter().collect()).collect();
        let Some(whole) = whole else { continue };
        assert_eq!(corpus_bleu(&hypotheses, &whole, &options).unwrap(), score, "{name}");
        let stats = corpus_stats(&hypotheses, &whole, &options).unwrap().into_iter().sum();
        assert_eq!(BleuScore::from_stats(&stats, whole.len(), &options), score, "{name}");
        if let [hypothesis] = hypotheses.as_slice() {
            let references: Vec<&str> = whole.iter().map(|stream| stream[0].as_str()).collect();
            assert_eq!(sentence_bleu(hypothesis, &references, &options).unwrap(), score, "{name}");
        }
    }
}

#[test]
fn published_systems_score_as_in_sacrebleu() {
    let Some(data) = std::env::var_os("MT_TEST_DATA") else {
        return common::skipped("published_systems_score_as_in_sacrebleu", "MT_TEST_DATA is unset");
    };
    let folder = Path::new(&data).join("bleu-checks/wmt17-en-de");
    let table = fs::read_to_string(folder.join("sacrebleu-2.6.0-full.tsv")).unwrap();
    let rows: Vec<(&str, f64)> = table
        .lines()
        .skip(1)
        .map(|row| {
            let fields: Vec<&str> = row.split('\t').collect();
            (fields[0], fields[1].parse().unwrap())
        })
        .collect();
    assert_eq!(rows.len(), 16);
    // Through the binary: reading files is part of the score.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mt"));
    command.args(["eval", "--json", "--ref"]).arg(folder.join("ref.txt")).arg("--hyp");
    command.args(rows.iter().map(|(system, _)| folder.join(format!("{system}.txt"))));
    let output = command.output().unwrap();
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results.len(), rows.len());
    for ((system, expected), result) in rows.iter().zip(results) {
        let score = result["bleu"]["score"].as_f64().unwrap();
        assert!((score - expected).abs() <= PUBLISHED_TOLERANCE, "{system}: {score}, sacrebleu has {expected}");
    }
}
