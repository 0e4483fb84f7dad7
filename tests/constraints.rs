//! What is demanded of translations line by line, weights of ensembles, n-best lists of long lines and their scores.

mod common;

use std::collections::HashMap;

use common::project::{Project, sets, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::{Value, json};

const INPUT: [&str; 4] = ["the cat sleeps", "a dog runs", "the dog eats", "a cat runs"];

fn trained(keys: &[&str]) -> Project {
    let project = Project::new();
    succeeds(
        &project.train(&sets(&[&["train.max_updates=40", "valid.every=40", "train.save_every=40"], keys].concat())),
    );
    project
}

fn translate(project: &Project, args: &[&str], input: &str) -> String {
    let args = [&["translate", "--model", "runs/small", "-q", "--max-length", "16"], args].concat();
    let output = project.mt_with_input(&args, input.as_bytes());
    succeeds(&output);
    stdout(&output)
}

fn values(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(value: &Value) -> &str {
    value["translation"].as_str().unwrap()
}

/// Whether a text has a phrase as whole words.
fn has(text: &str, phrase: &str) -> bool {
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    words(text).windows(words(phrase).len()).any(|window| window == words(phrase))
}

fn lines(requests: &[Value]) -> String {
    requests.iter().map(|request| format!("{request}\n")).collect()
}

/// The scores of all combinations of each part's translations, the best first.
fn sums(parts: &[Vec<f64>]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for part in parts {
        sums = sums.iter().flat_map(|sum| part.iter().map(move |score| sum + score)).collect();
    }
    sums.sort_by(|a: &f64, b| b.total_cmp(a));
    sums
}

/// The n best of a line in parts are the best combinations of its parts' translations.
#[test]
fn the_n_best_of_a_line_in_parts_are_its_best_combinations() {
    let project = trained(&["model.positions=learned", "model.max_length=40", "data.max_length=20"]);
    let sentences = ["the cat sleeps and runs!", "a dog eats a cat!", "the dog runs and sleeps!"];
    let list = |input: &str, n_best: &str| -> Vec<Value> {
        let found = translate(&project, &["--json", "--beam", "4", "--n-best", n_best], input);
        values(&found).into_iter().map(|line| line["n_best"].clone()).collect()
    };
    let scores = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|candidate| candidate["score"].as_f64().unwrap()).collect()
    };
    for n_best in ["3", "4"] {
        let parts: Vec<Vec<f64>> = list(&sentences.join("\n"), n_best).iter().map(scores).collect();
        let whole = &list(&sentences.join(" "), n_best)[0];
        let (found, mut expected) = (scores(whole), sums(&parts));
        expected.truncate(n_best.parse().unwrap());
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?} {expected:?}");
        for candidate in whole.as_array().unwrap() {
            assert_eq!(candidate["joints"].as_array().unwrap().len(), 2);
            let log_probs: Vec<f64> = serde_json::from_value(candidate["token_log_probs"].clone()).unwrap();
            assert!((log_probs.iter().sum::<f64>() - candidate["log_prob"].as_f64().unwrap()).abs() < 1e-4);
        }
    }
    // Each has an alignment of its own.
    let aligned = translate(&project, &["--beam", "4", "--n-best", "4", "--alignment"], &sentences.join(" "));
    assert_eq!(aligned.lines().count(), 4, "{aligned}");
}

#[test]
fn each_line_has_its_prefix() {
    let project = trained(&[]);
    let prefixes = ["die Katze", "", "der", "eine Katze rennt"];
    project.write("prefixes", prefixes.join("\n") + "\n");
    project.write("input", INPUT.join("\n") + "\n");
    let with = ["--json", "--beam", "3", "--prefix-file", "prefixes"];
    let found = values(&translate(&project, &with, &INPUT.join("\n")));
    for ((line, prefix), source) in found.iter().zip(prefixes).zip(INPUT) {
        let flag: &[&str] = if prefix.is_empty() { &[] } else { &["--prefix", prefix] };
        let alone = values(&translate(&project, &[&["--json", "--beam", "3"], flag].concat(), source));
        assert_eq!(line, &alone[0]);
        assert!(text(line).starts_with(prefix));
    }
    let args = ["translate", "--model", "runs/small", "-q", "--input", "input", "--prefix-file", "prefixes"];
    let mut transcript = Transcript::new(&project);
    for file in ["a\nb\n", "a\nb\n\n\ne\n"] {
        project.write("prefixes", file);
        transcript.note(&format!("{} prefixes for 4 lines", file.lines().count()));
        let output = transcript.messages(&args);
        assert_eq!(stdout(&output).lines().count(), file.lines().count().min(4));
    }
    project.write("prefixes", format!("\nder {}\n\n\n", "Hund ".repeat(2000)));
    transcript.note("a prefix of 2001 words");
    transcript.messages(&args);
    project.write("prefixes", "\nder\n");
    project.write("blank", "the cat\n\n");
    transcript.messages(&["translate", "--model", "runs/small", "-q", "--input", "blank", "--prefix-file", "prefixes"]);
    transcript.mt(&[&args[..], &["--prefix", "a"]].concat());
    transcript.run("translate --model runs/small --prefix-file -");
    transcript.mt(&[&args[..], &["--output", "prefixes"]].concat());
    assert_transcript!(transcript);
}

#[test]
fn phrases_are_there_or_not_as_each_line_demands() {
    let project = trained(&[]);
    // In text that training never showed, so in several pieces.
    let requests = [
        json!({"text": INPUT[0], "must": ["Hund"]}),
        json!({"text": INPUT[1]}),
        json!({"text": INPUT[2], "must": ["frisst eine", "Katze"], "avoid": ["der", "Hund"]}),
        json!({"text": INPUT[3], "must": ["Xylophon"], "prefix": "eine Katze", "avoid": null}),
        json!({"text": "", "avoid": ["die"]}),
    ];
    let check = |found: &[Value]| {
        for (request, line) in requests.iter().zip(found) {
            let candidates = line.get("n_best").and_then(Value::as_array).cloned().unwrap_or(vec![line.clone()]);
            for candidate in candidates {
                let phrases = |key: &str| request.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
                let text = text(&candidate);
                for phrase in phrases("must") {
                    assert!(has(text, phrase.as_str().unwrap()), "{request}: {text}");
                }
                for phrase in phrases("avoid") {
                    assert!(!has(text, phrase.as_str().unwrap()), "{request}: {text}");
                }
                assert!(text.starts_with(request["prefix"].as_str().unwrap_or_default()), "{request}: {text}");
            }
        }
    };
    for args in [
        &["--beam", "1"][..],
        &["--beam", "4"],
        &["--beam", "3", "--n-best", "3"],
        &["--beam", "3", "--model", "runs/small"],
        &["--beam", "3", "--patience", "0", "--no-repeat-ngram", "2"],
    ] {
        let with = |more: &[&str]| {
            values(&translate(&project, &[&["--json", "--json-input"], args, more].concat(), &lines(&requests)))
        };
        let found = with(&[]);
        check(&found);
        assert_eq!(found.len(), 5);
        assert_eq!(found[1]["source"], INPUT[1]);
        // A batch of one gives the same as all together.
        assert_eq!(found, with(&["--batch-tokens", "1"]));
        // A line that demands nothing is translated as ever.
        let free = values(&translate(&project, &[&["--json"], args].concat(), INPUT[1]));
        assert_eq!(found[1], free[0]);
    }
    // Sampling can leave out, too.
    let only = [json!({"text": INPUT[0], "avoid": ["die", "Katze", "der", "eine", "ein"]})];
    let drawn = values(&translate(&project, &["--json", "--json-input", "--sample", "--n-best", "8"], &lines(&only)));
    for candidate in drawn[0]["n_best"].as_array().unwrap() {
        assert!(["die", "Katze", "der", "eine", "ein"].iter().all(|word| !has(text(candidate), word)), "{candidate}");
    }
}

/// The phrases of a line in parts, and those that a shortlist does not have.
#[test]
fn phrases_of_long_lines_and_beside_a_shortlist() {
    let project = trained(&["model.positions=learned", "model.max_length=40", "data.max_length=20"]);
    let long = "the cat sleeps and runs! a dog eats a cat! the dog runs and sleeps!";
    let request = json!({"text": long, "must": ["frisst", "Xylophon"], "avoid": ["die Katze"]});
    let found = values(&translate(&project, &["--json", "--json-input", "--beam", "3"], &lines(&[request])));
    assert_eq!(found[0]["joints"].as_array().unwrap().len(), 2);
    let whole = text(&found[0]);
    assert!(has(whole, "frisst") && has(whole, "Xylophon") && !has(whole, "die Katze"), "{whole}");

    succeeds(&project.mt(&["shortlist", "runs/small", "--out", "list", "--best", "1", "--first", "1"]));
    let request = json!({"text": "the cat sleeps", "must": ["Xylophon"]});
    let with_list = ["--json-input", "--shortlist", "list", "--beam", "3"];
    let found = translate(&project, &with_list, &lines(&[request]));
    assert!(has(found.trim(), "Xylophon"), "{found}");
    project.write("prefixes", "Xylophon\n");
    let found = translate(&project, &["--shortlist", "list", "--prefix-file", "prefixes"], "the cat sleeps\n");
    assert!(found.starts_with("Xylophon"), "{found}");
}

#[test]
fn what_no_line_can_demand_is_named_with_its_line() {
    let project = trained(&[]);
    let good = json!({"text": "the cat"}).to_string();
    let mut transcript = Transcript::new(&project);
    for bad in [
        "the cat",
        r#"["the cat", null, null, null]"#,
        "3",
        r#"{"text": " ", "prefix": "der"}"#,
        r#"{"text": "a", "musts": []}"#,
        r#"{"must": ["a"]}"#,
        r#"{"text": 3}"#,
        r#"{"text": "a", "must": "b"}"#,
        r#"{"text": "a", "must": [" "]}"#,
        r#"{"text": " ", "must": ["b"]}"#,
        // What normalisation takes away is blank, too.
        r#"{"text": "\u200b", "must": ["b"]}"#,
        r#"{"text": "\u00ad", "prefix": "der"}"#,
        r#"{"text": "a", "must": ["Hund frisst"], "avoid": ["frisst"]}"#,
        r#"{"text": "a", "prefix": "Hund frisst", "avoid": ["frisst"]}"#,
    ] {
        transcript.note(&format!("requests: `{bad}`"));
        project.write("requests", format!("{good}\n{bad}\n{good}\n"));
        let args = ["translate", "--model", "runs/small", "-q", "--json-input", "--input", "requests"];
        let output = transcript.messages(&args);
        assert_eq!(stdout(&output).lines().count(), 1);
        project.write("requests", format!("{bad}\n"));
        transcript.mt(&[&args[..], &["--output", "kept"]].concat());
        assert!(!project.path("kept").exists());
    }
    // A blank line has a blank translation.
    project.write("requests", format!("{good}\n\n{good}\n"));
    let found = project.mt(&["translate", "--model", "runs/small", "-q", "--json-input", "--input", "requests"]);
    succeeds(&found);
    let text = stdout(&found);
    let found: Vec<&str> = text.lines().collect();
    assert!(found.len() == 3 && found[0] == found[2] && !found[0].is_empty() && found[1].is_empty(), "{text}");
    let must = json!({"text": "the cat", "must": ["der Hund frisst"]}).to_string();
    let translate = ["translate", "--model", "runs/small", "--json-input", &must];
    for more in [&["--sample"][..], &["--max-length", "1"], &["--prefix", "a"]] {
        transcript.mt(&[&translate, more].concat());
    }
    assert_transcript!(transcript);
    succeeds(&project.mt(&translate));
}

/// The probability of each token is the weighted mean of the models' probabilities.
#[test]
fn an_ensemble_counts_its_models_by_weight() {
    let project = trained(&[]);
    let other = [&["--run-dir", "runs/other"], &sets(&["train.max_updates=6", "train.seed=9"])[..]].concat();
    succeeds(&project.train(&other));
    project.write("source", INPUT.join("\n") + "\n");
    project.write("target", "die Katze schläft\nein Hund rennt\nder Hund frisst\neine Katze rennt\n");
    let score = |args: &[&str]| -> Vec<Vec<f64>> {
        let output = project.mt(&[&["score", "-q", "--json", "--src", "source", "--tgt", "target"], args].concat());
        succeeds(&output);
        let of_line = |line: Value| serde_json::from_value(line["token_log_probs"].clone()).unwrap();
        values(&stdout(&output)).into_iter().map(of_line).collect()
    };
    let both = ["--model", "runs/small", "--model", "runs/other"];
    let [first, second] = ["runs/small", "runs/other"].map(|run| score(&["--model", run]));
    let weighted = score(&[&both[..], &["--weights", "3,1"]].concat());
    for ((first, second), weighted) in first.iter().zip(&second).zip(&weighted) {
        for ((a, b), mean) in first.iter().zip(second).zip(weighted) {
            let expected = (0.75 * a.exp() + 0.25 * b.exp()).ln();
            assert!((mean - expected).abs() < 1e-4, "{mean} {expected}");
        }
    }
    assert_eq!(score(&both), score(&[&both[..], &["--weights", "0.2, 0.2"]].concat()));
    // Nearly all of the weight is nearly that model alone, in translation and evaluation too.
    let translated = |args: &[&str]| {
        let output = project.mt(&[&["translate", "-q", "--input", "source"], args].concat());
        succeeds(&output);
        stdout(&output)
    };
    assert_eq!(translated(&[&both[..], &["--weights", "1e9,1"]].concat()), translated(&["--model", "runs/small"]));
    let eval = ["eval", "--src", "source", "--ref", "target", "--bleu", "-q"];
    let output = project.mt(&[&eval[..], &both, &["--weights", "1,1e9", "--output", "found"]].concat());
    succeeds(&output);
    assert_eq!(std::fs::read_to_string(project.path("found")).unwrap(), translated(&["--model", "runs/other"]));

    let mut transcript = Transcript::new(&project);
    for weights in ["1", "1,2,3", "1,0", "1,-1", "nan,1", "-1,2", "1,x"] {
        transcript.mt(&[&["translate", "a"], &both[..], &["--weights", weights]].concat());
    }
    transcript.run("translate a --model runs/small --weights 1");
    transcript.mt(&[&eval[..], &both, &["--weights", "1,2", "--paired-bs"]].concat());
    assert_transcript!(transcript);
}

#[test]
fn n_best_lists_are_scored_beside_their_sources() {
    let project = trained(&[]);
    project.write("source", INPUT.join("\n") + "\n");
    let list = translate(&project, &["--beam", "4", "--n-best", "3", "--input", "source"], "");
    project.write("list", &list);
    let score =
        |args: &[&str]| project.mt(&[&["score", "--model", "runs/small", "-q", "--src", "source"], args].concat());
    let output = score(&["--n-best", "list"]);
    succeeds(&output);
    let scored = stdout(&output);
    let fields = |line: &str| -> Vec<String> { line.split(" ||| ").map(str::to_owned).collect() };
    assert_eq!(scored.lines().count(), 12);
    let mut alike = 0;
    for (before, after) in list.lines().zip(scored.lines()) {
        let (before, after) = (fields(before), fields(after));
        let (kept, score) = after[2].split_once(" Score= ").unwrap();
        assert_eq!(
            [&before[0], &before[1], &before[2], &before[3]],
            [&after[0], &after[1], &kept.to_owned(), &after[3]]
        );
        let [own, score] =
            [before[2].strip_prefix("LogProb= ").unwrap(), score].map(|text| text.parse::<f64>().unwrap());
        // Of a text in other subwords than these it is another.
        alike += usize::from((own - score).abs() < 1e-3);
    }
    assert!(alike >= 4, "{scored}");
    let json = score(&["--n-best", "list", "--json"]);
    succeeds(&json);
    let mut counts: HashMap<u64, usize> = HashMap::new();
    values(&stdout(&json)).iter().for_each(|line| *counts.entry(line["number"].as_u64().unwrap()).or_default() += 1);
    assert_eq!(counts, (0..4).map(|number| (number, 3)).collect());
    project.write("list", "0 ||| die Katze\n2 ||| der Hund ||| F= 1\n7 ||| x\n");
    let with_list = ["score", "--model", "runs/small", "--src", "source", "--n-best", "list"];
    let mut transcript = Transcript::new(&project);
    let output = transcript.messages(&with_list);
    assert_eq!(stdout(&output).lines().count(), 2);
    // Of another model, under another name.
    project.write("list", "0 ||| die Katze ||| Score= -1 ||| -1\n");
    transcript.mt(&with_list);
    project.write("list", &scored);
    succeeds(&score(&["--n-best", "list", "--json"]));
    let again = score(&["--n-best", "list", "--feature", "Other"]);
    succeeds(&again);
    assert!(stdout(&again).lines().all(|line| line.contains(" Score= ") && line.contains(" Other= ")));
    for name in ["", "a b", "a=", "a|b"] {
        transcript.mt(&[&with_list[..], &["--feature", name]].concat());
    }
    project.write("list", "0 ||| die ||| Katze ||| F= 1 ||| 2\n");
    let separated = transcript.messages(&[&with_list[..], &["--json"]].concat());
    assert_eq!(values(&stdout(&separated))[0]["target"], "die ||| Katze");
    project.write("list", "");
    transcript.mt(&with_list);
    transcript.run("score --model runs/small --src source");
    transcript.mt(&[&with_list[..], &["--tgt", "source"]].concat());
    assert_transcript!(transcript);
}
