//! `mt translate`: strategies, constraints and outputs, on a small trained model.

mod common;

use common::project::{Project, fails, stdout, succeeds};
use serde_json::Value;

const INPUT: &str = "the cat sleeps\n\na dog runs and runs\nthe dog eats a cat\n";

fn trained() -> Project {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=8"]));
    project
}

/// What translating the input gives.
fn translate(project: &Project, more: &[&str]) -> String {
    let args = [&["translate", "--model", "runs/small", "-q", "--max-length", "8"], more].concat();
    let output = project.mt_with_input(&args, INPUT.as_bytes());
    succeeds(&output);
    stdout(&output)
}

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn n_best_lists_are_numbered_by_line_and_begin_with_the_best() {
    let project = trained();
    let plain = translate(&project, &["--beam", "4"]);
    let lists = translate(&project, &["--beam", "4", "--n-best", "3"]);
    let fields: Vec<Vec<&str>> = lists.lines().map(|line| line.split(" ||| ").collect()).collect();
    assert!(fields.iter().all(|fields| fields.len() == 4 && fields[2].starts_with("LogProb= ")), "{lists}");
    let numbers: Vec<usize> = fields.iter().map(|fields| fields[0].parse().unwrap()).collect();
    // The blank line has one translation.
    assert_eq!(numbers, [0, 0, 0, 1, 2, 2, 2, 3, 3, 3]);
    for (number, best) in plain.lines().enumerate() {
        let list: Vec<&Vec<&str>> = fields.iter().filter(|fields| fields[0] == number.to_string()).collect();
        assert_eq!(list[0][1], best);
        assert!(list.is_sorted_by(|a, b| a[3].parse::<f64>().unwrap() >= b[3].parse::<f64>().unwrap()));
    }
}

#[test]
fn json_tells_tokens_scores_and_why_it_ended() {
    let project = trained();
    let text = translate(&project, &["--beam", "3", "--n-best", "2", "--json", "--length-penalty-kind", "average"]);
    let lines = json(&text);
    let sources: Vec<&str> = lines.iter().map(|line| line["source"].as_str().unwrap()).collect();
    assert_eq!(sources, INPUT.lines().collect::<Vec<_>>());
    assert_eq!((&lines[1]["translation"], &lines[1]["ending"]), (&Value::from(""), &Value::from("end")));
    for line in [&lines[0], &lines[2], &lines[3]] {
        let n_best = line["n_best"].as_array().unwrap();
        assert_eq!(n_best.len(), 2);
        assert_eq!(n_best[0]["translation"], line["translation"]);
        for one in n_best {
            let (tokens, log_probs) = (one["tokens"].as_array().unwrap().len(), numbers(&one["token_log_probs"]));
            let finished = one["ending"] == "end";
            assert_eq!(one["finished"], finished);
            assert_eq!(log_probs.len(), tokens + usize::from(finished));
            assert!(finished || (one["ending"] == "max_length" && tokens == 8));
            let sum: f64 = log_probs.iter().sum();
            assert!((sum - one["log_prob"].as_f64().unwrap()).abs() < 1e-5);
            assert!((sum / log_probs.len() as f64 - one["score"].as_f64().unwrap()).abs() < 1e-5);
        }
    }
}

#[test]
fn constraints_are_kept() {
    let project = trained();
    for strategy in [&["--beam", "1"][..], &["--beam", "4"], &["--beam", "4", "--beam-groups", "2"], &["--sample"]] {
        let with = |more: &[&str]| json(&translate(&project, &[&["--json"], strategy, more].concat()));
        for line in with(&["--prefix", "die Katze"]).iter().filter(|line| line["source"] != "") {
            assert!(line["translation"].as_str().unwrap().starts_with("die Katze"), "{strategy:?}: {line}");
        }
        for line in with(&["--min-length", "8"]).iter().filter(|line| line["source"] != "") {
            assert_eq!(line["tokens"].as_array().unwrap().len(), 8, "{strategy:?}: {line}");
        }
        for line in with(&["--min-length", "8", "--no-repeat-ngram", "1"]) {
            let mut tokens: Vec<&str> =
                line["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            let all = tokens.len();
            tokens.sort_unstable();
            tokens.dedup();
            assert_eq!(tokens.len(), all, "{strategy:?}: {line}");
        }
    }
}

/// What is drawn depends on the seed and the line: neither on the batch, nor on the threads, nor on the lines before.
#[test]
fn samples_are_reproducible() {
    let project = trained();
    let sample =
        |more: &[&str]| translate(&project, &[&["--sample", "--n-best", "2", "--temperature", "2"], more].concat());
    let drawn = sample(&["--seed", "5"]);
    assert_eq!(drawn, sample(&["--seed", "5", "--batch-tokens", "1", "--threads", "1"]));
    assert_ne!(drawn, sample(&["--seed", "6"]));
    assert_ne!(drawn, sample(&["--seed", "5", "--top-k", "1"]));
    // More than there are is all.
    assert_eq!(drawn, sample(&["--seed", "5", "--top-k", "18446744073709551615"]));
    // Sharp enough, it is greedy.
    let greedy = translate(&project, &["--beam", "1"]);
    assert_eq!(translate(&project, &["--sample", "--top-k", "1"]), greedy);
    assert_eq!(translate(&project, &["--sample", "--top-p", "1e-9"]), greedy);
    assert_eq!(translate(&project, &["--sample", "--temperature", "1e-6"]), greedy);
}

#[test]
fn what_cannot_be_searched_with_is_refused() {
    let project = trained();
    let translate = |more: &[&str]| project.mt(&[&["translate", "--model", "runs/small", "the cat"], more].concat());
    for (flags, mentioned) in [
        (&["--beam", "3", "--n-best", "5"][..], "--beam 5"),
        (&["--beam", "5", "--beam-groups", "2"], "--beam-groups"),
        (&["--sample", "--temperature", "0"], "temperature"),
        (&["--sample", "--top-p", "0"], "top-p"),
        (&["--sample", "--beam", "3"], "--beam"),
        (&["--top-k", "3"], "--sample"),
        (&["--length-penalty-kind", "wrong"], "gnmt, power, average"),
        (&["--min-length", "9", "--max-length", "8"], "--max-length"),
        (&["--max-length-ratio", "nan"], "--max-length-ratio"),
        (&["--patience", "inf"], "patience"),
        (&["--n-best", "0"], "--n-best"),
    ] {
        fails(&translate(flags), 2, &[mentioned]);
    }
}
