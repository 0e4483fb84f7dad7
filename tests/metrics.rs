//! Metrics against sacrebleu 2.6.0: small committed cases always, BLEU of published systems if `MT_TEST_DATA` has them.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::project::succeeds;
use mt::metrics::resample::{Interval, Systems, bootstrap, paired_bootstrap, paired_randomisation};
use mt::metrics::tokenize::words;
use mt::metrics::{
    BleuOptions, ChrfOptions, Smooth, Statistics, TerOptions, TextMetric, Tokenize, corpus_bleu, sentence_bleu,
    signature,
};
use serde_json::Value;

/// Both sides compute in f64 and differ at most in the order in which they add four numbers.
const GOLDEN_TOLERANCE: f64 = 1e-9;
/// sacrebleu computes the scores of samples in f32.
const RESAMPLED_TOLERANCE: f64 = 1e-4;
/// The published table has ten decimals.
const PUBLISHED_TOLERANCE: f64 = 1e-6;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// The metric of a golden case; `options` has sacrebleu's names.
fn metric(name: &str, options: &Value) -> Box<dyn TextMetric> {
    let flag = |key: &str| options[key].as_bool().unwrap();
    let number = |key: &str| options[key].as_u64().unwrap();
    match name {
        "bleu" => Box::new(BleuOptions {
            tokenize: options["tokenize"].as_str().unwrap().parse().unwrap(),
            lowercase: flag("lowercase"),
            smooth: Smooth::new(options["smooth_method"].as_str().unwrap(), options["smooth_value"].as_f64()).unwrap(),
            effective_order: flag("effective_order"),
        }),
        "chrf" => Box::new(ChrfOptions {
            char_order: number("char_order") as usize,
            word_order: number("word_order") as usize,
            beta: number("beta") as u32,
            whitespace: flag("whitespace"),
            lowercase: flag("lowercase"),
            eps_smoothing: flag("eps_smoothing"),
        }),
        "ter" => Box::new(TerOptions {
            normalized: flag("normalized"),
            no_punct: flag("no_punct"),
            asian_support: flag("asian_support"),
            case_sensitive: flag("case_sensitive"),
        }),
        _ => panic!("{name}"),
    }
}

#[test]
fn golden_tokens_are_equal() {
    let golden = golden("metrics.json");
    let lines = strings(&golden["lines"]);
    for name in Tokenize::NAMES {
        let tokenize = Tokenize::named(name).unwrap();
        for (line, expected) in lines.iter().zip(golden["tokens"][*name].as_array().unwrap()) {
            let separated = tokenize.separate(line);
            assert_eq!(words(&separated).collect::<Vec<_>>(), strings(expected), "{tokenize}: {line:?}");
        }
    }
}

#[test]
fn golden_scores_are_equal() {
    let golden = golden("metrics.json");
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 130, "the golden file is incomplete");
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let metric = metric(case["metric"].as_str().unwrap(), &case["options"]);
        let text = &golden["texts"][case["text"].as_u64().unwrap() as usize];
        let hypotheses = strings(&text["hypotheses"]);
        let streams: Vec<Vec<Option<String>>> = text["references"]
            .as_array()
            .unwrap()
            .iter()
            .map(|stream| stream.as_array().unwrap().iter().map(|line| line.as_str().map(str::to_owned)).collect())
            .collect();
        let statistics = Statistics::with_missing(metric.as_ref(), &hypotheses, &streams).unwrap();
        let expected = &case["expected"];
        for (line, theirs) in statistics.lines().zip(expected["statistics"].as_array().unwrap()) {
            let theirs: Vec<f64> = theirs.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
            assert_eq!(line, theirs, "{name}: statistics");
        }
        let sum = statistics.sum();
        let (score, theirs) = (metric.score(&sum), expected["score"].as_f64().unwrap());
        assert!((score - theirs).abs() <= GOLDEN_TOLERANCE, "{name}: {score}, sacrebleu has {theirs}");
        assert_eq!(metric.name(), expected["name"].as_str().unwrap(), "{name}");
        assert_eq!(metric.details(&sum).unwrap_or_default(), expected["verbose"].as_str().unwrap(), "{name}");
        let theirs = format!("{}|version:mt-{}", expected["signature"].as_str().unwrap(), env!("CARGO_PKG_VERSION"));
        assert_eq!(signature(metric.as_ref(), statistics.references, &[]), theirs, "{name}");
        for (i, theirs) in expected["sentences"].as_array().unwrap().iter().enumerate() {
            let (score, theirs) = (metric.score(statistics.line(i)), theirs.as_f64().unwrap());
            assert!((score - theirs).abs() <= GOLDEN_TOLERANCE, "{name}, line {}: {score} for {theirs}", i + 1);
        }

        // If no reference is missing, the other constructor gives the same.
        let whole: Option<Vec<Vec<String>>> = streams.into_iter().map(|stream| stream.into_iter().collect()).collect();
        if let Some(whole) = whole {
            assert_eq!(Statistics::new(metric.as_ref(), &hypotheses, &whole).unwrap(), statistics, "{name}");
        }
    }
}

/// With its random numbers, samples are the same.
#[test]
fn golden_intervals_and_p_values_are_equal() {
    let golden = golden("resampling.json");
    let references = vec![strings(&golden["references"])];
    let texts: Vec<Vec<String>> = golden["systems"].as_array().unwrap().iter().map(strings).collect();
    let samples = golden["samples"].as_u64().unwrap() as usize;
    let keys = ["bleu", "chrf", "ter"];
    let metrics: [&dyn TextMetric; 3] = [&BleuOptions::default(), &ChrfOptions::default(), &TerOptions::default()];
    let of_texts = |metric: &dyn TextMetric| -> Vec<Statistics> {
        texts.iter().map(|lines| Statistics::new(metric, lines, &references).unwrap()).collect()
    };
    let statistics = metrics.map(of_texts);
    let systems: Vec<Systems> =
        metrics.iter().zip(&statistics).map(|(metric, statistics)| Systems { metric: *metric, statistics }).collect();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4, "the golden file is incomplete");
    for case in cases {
        let seed = case["seed"].as_u64().unwrap();
        let (scores, p_values) = match case["test"].as_str().unwrap() {
            "bs" => {
                let scores = bootstrap(&systems, samples, seed);
                let p_values = paired_bootstrap(&systems, &scores);
                (Some(scores), p_values)
            }
            _ => (None, paired_randomisation(&systems, samples, seed)),
        };
        for (metric, key) in keys.iter().enumerate() {
            for (system, theirs) in case["results"][key].as_array().unwrap().iter().enumerate() {
                let which = format!("{} with seed {seed}: {key} of system {system}", case["test"]);
                let p_value = (system > 0).then(|| p_values[metric][system - 1]);
                assert_eq!(p_value, theirs["p_value"].as_f64(), "{which}");
                let interval = scores.as_ref().map(|scores| Interval::from_scores(&scores[metric][system]));
                let numbers = interval.map(|of| [of.mean, of.half_width]);
                assert_eq!(numbers.is_some(), theirs["mean"].is_f64(), "{which}");
                for (ours, what) in numbers.into_iter().flatten().zip(["mean", "interval"]) {
                    let theirs = theirs[what].as_f64().unwrap();
                    assert!((ours - theirs).abs() <= RESAMPLED_TOLERANCE, "{which}: {what} {ours} for {theirs}");
                }
            }
        }
    }
}

#[test]
fn bleu_of_a_sentence_is_that_of_a_corpus_of_one() {
    let options = BleuOptions::default();
    let (hypothesis, reference) = ("a b c d e f", "a b c d x f");
    let of_corpus = corpus_bleu(&[hypothesis], &[vec![reference]], &options).unwrap();
    assert_eq!(sentence_bleu(hypothesis, &[reference], &options).unwrap(), of_corpus);
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
    succeeds(&output);
    let results: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results.len(), rows.len());
    for ((system, expected), result) in rows.iter().zip(results) {
        let score = result["bleu"]["score"].as_f64().unwrap();
        assert!((score - expected).abs() <= PUBLISHED_TOLERANCE, "{system}: {score}, sacrebleu has {expected}");
    }
}
