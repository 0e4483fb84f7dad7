//! `mt translate`: strategies, constraints and outputs, on a small trained model.

mod common;

use std::io::{Read, Write};
use std::process::Output;

use common::datasets::gzip;
use common::project::{Project, fails, file, send, sets, stderr, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use mt::decode::rerank::utilities;
use mt::metrics::ChrfOptions;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

const INPUT: &str = "the cat sleeps\n\na dog runs and runs\nthe dog eats a cat\n";

fn trained() -> Project {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=8"]));
    project
}

/// The translation of the input.
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

/// Each part of a long line gets what `--tag` puts in front of it.
#[test]
fn parts_of_a_long_line_begin_with_the_given_text() {
    let project = Project::new();
    let keys = sets(&["train.max_updates=60", "model.max_length=24", "data.max_length=23"]);
    succeeds(&project.train(&keys));
    let log_prob = |line: &str, more: &[&str]| {
        let args = ["translate", "-q", "--json", "--model", "runs/small", "--max-length", "6", line];
        project.answers(&[&args[..], more].concat())[0]["log_prob"].as_f64().unwrap()
    };
    let sentence = "the cat sleeps, the dog eats, a cat eats.";
    let [one, two] = [1, 2].map(|count| log_prob(&[sentence; 2][..count].join(" "), &["--tag", "say it:"]));
    assert!((two - 2.0 * one).abs() < 1e-4, "{one} {two}");
    assert!((one - log_prob(&format!("say it: {sentence}"), &[])).abs() < 1e-9);
    assert!((one - log_prob(sentence, &[])).abs() > 1e-3);
}

#[test]
fn n_best_lists_are_numbered_by_line_and_begin_with_the_best() {
    let project = trained();
    let plain = translate(&project, &["--beam", "4"]);
    let lists = translate(&project, &["--beam", "4", "--n-best", "3"]);
    let fields: Vec<Vec<&str>> = lists.lines().map(|line| line.split(" ||| ").collect()).collect();
    assert!(fields.iter().all(|fields| fields.len() == 4 && fields[2].starts_with("LogProb= ")), "{lists}");
    let numbers: Vec<usize> = fields.iter().map(|fields| fields[0].parse().unwrap()).collect();
    // The blank line has only one translation.
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

/// A model's tokenizer says whether extra white space counts, also after training goes on.
#[test]
fn extra_white_space_makes_no_difference_unless_it_is_kept() {
    let project = Project::new();
    let odd = "\u{feff}the  cat\tsleeps \n\u{feff}\n  a dog\u{a0} runs and\rruns\nthe dog eats a cat\u{2028}\n";
    let tokens = |run: &str, text: &str| -> Vec<Value> {
        let model = format!("runs/{run}");
        let args = ["translate", "--model", &model, "-q", "--max-length", "8", "--beam", "2", "--json"];
        let output = project.mt_with_input(&args, text.as_bytes());
        succeeds(&output);
        json(&stdout(&output)).into_iter().map(|line| line["log_prob"].clone()).collect()
    };
    succeeds(&project.train(&["--set", "train.max_updates=8"]));
    assert_eq!(tokens("small", odd), tokens("small", INPUT));

    let keep = ["--run-dir", "runs/keep", "--set", "tokenizer.remove_extra_whitespaces=false"];
    succeeds(&project.train(&[&keep[..], &["--set", "train.max_updates=8"]].concat()));
    assert_ne!(tokens("keep", odd), tokens("keep", INPUT));
    // A configuration of before the key was there says nothing about it; the tokenizer does.
    let config = project.path("runs/keep/config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let without: String =
        text.lines().filter(|line| !line.contains("remove_extra")).map(|l| format!("{l}\n")).collect();
    assert_ne!(without, text);
    std::fs::write(&config, without).unwrap();
    let mut transcript = Transcript::new(&project);
    for line in [
        "train --config runs/keep/config.toml --resume --set train.max_updates=9",
        "train --config small.toml --run-dir runs/keep --resume --set train.max_updates=10",
    ] {
        succeeds(&transcript.warnings(&line.split(' ').collect::<Vec<_>>()));
    }
    assert_transcript!(transcript);
    assert_ne!(tokens("keep", odd), tokens("keep", INPUT));
    // What no translation is asked for.
    assert_eq!(tokens("keep", " \t \n"), tokens("small", "\u{feff}\n"));
}

#[test]
fn constraints_are_kept() {
    let project = trained();
    let ensemble = &["--beam", "3", "--model", "runs/small"];
    for strategy in
        [&["--beam", "1"][..], &["--beam", "4"], &["--beam", "4", "--beam-groups", "2"], &["--sample"], ensemble]
    {
        let with = |more: &[&str]| json(&translate(&project, &[&["--json"], strategy, more].concat()));
        for line in with(&["--prefix", "die Katze"]).iter().filter(|line| line["source"] != "") {
            assert!(line["translation"].as_str().unwrap().starts_with("die Katze"), "{strategy:?}: {line}");
        }
        for line in with(&["--min-length", "8"]).iter().filter(|line| line["source"] != "") {
            assert_eq!(line["tokens"].as_array().unwrap().len(), 8, "{strategy:?}: {line}");
        }
        for line in with(&["--min-length", "8", "--no-repeat-ngram", "1"]) {
            // Bytes of other characters may be the same.
            let tokens = line["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap());
            let mut tokens: Vec<&str> = tokens.filter(|token| !token.starts_with("<0x")).collect();
            let all = tokens.len();
            tokens.sort_unstable();
            tokens.dedup();
            assert_eq!(tokens.len(), all, "{strategy:?}: {line}");
        }
    }
    // Groups that nothing keeps apart find the same.
    let args = ["translate", "--model", "runs/small", "--max-length", "8", "--beam", "4", "--n-best", "4"];
    let groups = ["--beam-groups", "2", "--diversity", "0"];
    for (more, fewer) in [(&groups[..], true), (&[], false)] {
        let output = project.mt_with_input(&[&args[..], more].concat(), INPUT.as_bytes());
        succeeds(&output);
        let said = stderr(&output);
        assert_eq!(said.contains(" fewer than 4 translations: "), fewer, "{said}");
    }
    // The further apart they are kept, the less they share.
    let lists = |more: &[&str]| {
        let groups = ["--beam", "4", "--beam-groups", "2", "--n-best", "4"];
        translate(&project, &[&groups, more].concat())
    };
    let [default, none, strong] = [&[][..], &["--diversity", "0"], &["--diversity", "3"]].map(lists);
    assert!(default != none && default != strong && none != strong);
}

/// What flags do not say, the model's configuration does: in translation, and in validation, which has a beam of its
/// own.
#[test]
fn the_search_is_that_of_the_configuration_where_flags_say_nothing() {
    let project = trained();
    type Search<'a> = (&'a str, &'a [(&'a str, &'a str)]);
    let limits = [("max_length_ratio", "0"), ("max_length_extra", "7")];
    let several = [
        ("beam", "2"),
        ("length_penalty", "3"),
        ("length_penalty_kind", "power"),
        ("patience", "0"),
        ("no_repeat_ngram", "1"),
        limits[0],
        limits[1],
    ];
    // With a minimum that is the maximum too, patience makes no difference.
    let least = [("min_length", "7"), limits[0], limits[1]];
    let searches: [Search<'_>; 2] = [("runs/several", &several), ("runs/least", &least)];
    for (run, search) in searches {
        let keys: Vec<String> = search.iter().map(|(key, value)| format!("decode.{key}={value}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).chain(["train.max_updates=8"]).collect();
        succeeds(&project.train(&[&["--run-dir", run][..], &sets(&keys)].concat()));
        assert_eq!(file(&project, run, "model.safetensors"), file(&project, "runs/small", "model.safetensors"));
        let translated = |model: &str, flags: &[String], more: &[&str]| {
            let flags = flags.iter().map(String::as_str);
            let args: Vec<&str> = ["translate", "-q", "--model", model].into_iter().chain(flags).collect();
            let output = project.mt_with_input(&[&args[..], more].concat(), INPUT.as_bytes());
            succeeds(&output);
            stdout(&output)
        };
        let flags = |without: &str| -> Vec<String> {
            let kept = search.iter().filter(|(key, _)| *key != without);
            kept.flat_map(|(key, value)| [format!("--{}", key.replace('_', "-")), (*value).to_owned()]).collect()
        };
        let found = translated(run, &[], &["--json"]);
        assert_eq!(found, translated("runs/small", &flags(""), &["--json"]), "{run}");
        for (key, _) in search {
            assert_ne!(found, translated("runs/small", &flags(key), &["--json"]), "{run}: {key} makes no difference");
        }
        let validated = |run: &str| String::from_utf8(file(&project, run, "validation/final.txt")).unwrap();
        assert_eq!(validated(run), translated(run, &[], &["--beam", "1", "--input", "valid.en"]));
        assert_ne!(validated(run), validated("runs/small"));
    }
}

/// Samples depend on the seed and on the line with its number: not on batches, threads or other lines.
/// Of the same draws; each once.
#[test]
fn minimum_bayes_risk_chooses_among_samples() {
    let project = trained();
    let drawn = json(&translate(&project, &["--sample", "--n-best", "12", "--seed", "3", "--json"]));
    let chosen = json(&translate(&project, &["--mbr", "chrf", "--samples", "12", "--seed", "3", "--json"]));
    let several = ["--mbr", "bleu", "--samples", "12", "--n-best", "3", "--seed", "3", "--json"];
    let several = json(&translate(&project, &several));
    let texts = |line: &Value| -> Vec<String> {
        let list = line["n_best"].as_array().unwrap().iter();
        list.map(|candidate| candidate["translation"].as_str().unwrap().to_owned()).collect()
    };
    assert!(drawn.len() > 3 && drawn.len() == chosen.len() && drawn.len() == several.len());
    for ((drawn, chosen), several) in drawn.iter().zip(&chosen).zip(&several) {
        let (drawn, best) = (texts(drawn), chosen["translation"].as_str().unwrap().to_owned());
        let drawn: Vec<&str> = drawn.iter().map(String::as_str).collect();
        let utilities = utilities(&ChrfOptions::default(), &drawn);
        let most = utilities.iter().copied().fold(0.0, f64::max);
        assert!(drawn.iter().zip(&utilities).any(|(text, utility)| *text == best && *utility == most), "{chosen}");
        assert_eq!(chosen["score"].as_f64(), Some(most));
        let several = texts(several);
        assert!((1..=3).contains(&several.len()) && several.iter().all(|text| drawn.contains(&text.as_str())));
    }
    for (flags, says) in [
        (&["--mbr", "ter"][..], "ter"),
        (&["--mbr", "chrf", "--beam", "4"], "--beam 4 searches"),
        (&["--mbr", "chrf", "--samples", "2", "--n-best", "3"], "--samples 2 is less than the 3"),
        (&["--mbr", "chrf", "--samples", "0"], "--samples 0"),
        (&["--mbr", "chrf", "--samples", "2000"], "--samples 2000 is more"),
        (&["--mbr", "chrf", "--n-best", "0"], "--n-best"),
        (&["--samples", "8"], "--mbr"),
    ] {
        let output = project.mt(&[&["translate", "--model", "runs/small", "a"], flags].concat());
        fails(&output, 2, &[says]);
    }
}

#[test]
fn samples_are_reproducible() {
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=8", "train.seed=5"])));
    let sample =
        |more: &[&str]| translate(&project, &[&["--sample", "--n-best", "2", "--temperature", "2"], more].concat());
    let drawn = sample(&["--seed", "5"]);
    assert_eq!(drawn, sample(&["--seed", "5", "--batch-tokens", "1", "--threads", "1"]));
    assert_ne!(drawn, sample(&["--seed", "6"]));
    // Without a flag it is the seed of the training.
    assert_eq!(drawn, sample(&[]));
    assert_ne!(drawn, sample(&["--seed", "5", "--top-k", "1"]));
    // More than the vocabulary has means all.
    assert_eq!(drawn, sample(&["--seed", "5", "--top-k", "18446744073709551615"]));
    // A sharp enough distribution gives the greedy translation.
    let greedy = translate(&project, &["--beam", "1"]);
    assert_eq!(translate(&project, &["--sample", "--top-k", "1"]), greedy);
    assert_eq!(translate(&project, &["--sample", "--top-p", "1e-9"]), greedy);
    assert_eq!(translate(&project, &["--sample", "--temperature", "1e-6"]), greedy);
}

/// A model of 40 positions, learned from lines of at most 30 tokens.
fn trained_for_short_lines() -> Project {
    let project = Project::new();
    let keys = ["train.max_updates=4", "model.positions=learned", "model.max_length=40", "data.max_length=30"];
    succeeds(&project.train(&sets(&keys)));
    project
}

/// Lines are read in windows of two thousand; one may be translated in parts.
#[test]
fn no_two_lines_or_parts_draw_the_same() {
    let project = trained_for_short_lines();
    let translated = |search: &[&str], input: &str| {
        let args = ["translate", "--model", "runs/small", "-q", "--json", "--max-length", "8"];
        let output = project.mt_with_input(&[&args[..], search].concat(), input.as_bytes());
        succeeds(&output);
        json(&stdout(&output))
    };
    let sampled = |input: &str| translated(&["--sample", "--temperature", "2"], input);
    let later = sampled(&("\n".repeat(2000) + INPUT));
    let first = sampled(INPUT);
    assert_eq!(later.len(), 2004);
    assert!(first.iter().zip(&later[2000..]).any(|(first, later)| first["tokens"] != later["tokens"]), "{first:?}");

    // Two equal parts, and a line that is like each of them.
    let half = "the cat ".repeat(9);
    let input = format!("{half}{half}\n{half}\n");
    let texts = |lines: Vec<Value>| {
        let tokens = |line: &Value| line["tokens"].as_array().unwrap().clone();
        let joint = lines[0]["joints"][0].as_u64().unwrap() as usize;
        assert_eq!(lines[0]["joints"].as_array().unwrap().len(), 1);
        let (first, second) = (tokens(&lines[0])[..joint].to_vec(), tokens(&lines[0])[joint..].to_vec());
        [first, second, tokens(&lines[1])]
    };
    let [first, second, line] = texts(translated(&["--beam", "1"], &input));
    assert!(first == second && second == line, "{first:?} {second:?} {line:?}");
    let [first, second, line] = texts(sampled(&input));
    assert!(first != second && second != line && first != line, "{first:?} {second:?} {line:?}");
}

/// However much was read before it; of many pairs only the first are named.
#[test]
fn a_line_far_down_is_named_by_its_number() {
    let project = trained_for_short_lines();
    let [blank, long] = ["\n".repeat(2000), "the cat ".repeat(40)];
    project.write("lines", format!("{blank}a cat\n{long}\na dog\n"));
    let mut transcript = Transcript::new(&project);
    let output =
        transcript.messages(&["translate", "--model", "runs/small", "-q", "--long", "error", "--input", "lines"]);
    assert_eq!(stdout(&output).lines().count(), 2001);

    for many in [20, 21, 22] {
        project.write("source", format!("{blank}a cat\n{}", format!("{long}\n").repeat(many)));
        project.write("target", format!("{blank}eine Katze\n{}", "ein Hund\n".repeat(many)));
        transcript.note(&format!("{many} lines are too long"));
        let score = ["score", "--model", "runs/small", "-q", "--src", "source", "--tgt", "target"];
        let output = transcript.messages(&score);
        assert_eq!(stdout(&output).lines().filter(|line| *line == "nan").count(), many);
    }
    assert_transcript!(transcript);
}

/// Other programs know no escape for it.
#[test]
fn separators_in_a_translation_are_warned_of() {
    let project = Project::new();
    for name in ["train.en", "train.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text.replace("a dog", "a ||| dog").replace("ein Hund", "ein ||| Hund"));
    }
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    project.write("in", "\na dog\n");
    let mut transcript = Transcript::new(&project);
    for more in
        [&["--n-best", "2"][..], &["--alignment"], &["--n-best", "2", "--json"], &["--alignment", "--json"], &[]]
    {
        // So the translation of the second line is cut.
        let cut = ["--min-length", "16", "--max-length", "16", "--prefix", "ein ||| Hund"];
        transcript.messages(&[&["translate", "--model", "runs/small", "--input", "in"], &cut[..], more].concat());
    }
    assert_transcript!(transcript);
}

/// Who forgets --json-input gets its lines translated, but is told so.
#[test]
fn lines_of_json_and_no_lines_are_told_of() {
    let project = trained();
    let input = b"{\"text\": \"the cat\"}\n{\"text\": \"a dog\"}\n";
    project.write("requests", input);
    project.write("none", "");
    // So every translation is cut.
    let args = ["translate", "--model", "runs/small", "--min-length", "4", "--max-length", "4", "--input"];
    let mut transcript = Transcript::new(&project);
    for more in [&["requests"][..], &["requests", "--json-input"], &["none"]] {
        transcript.messages(&[&args[..], more].concat());
    }
    transcript.messages(&["score", "--model", "runs/small", "--src", "requests", "--tgt", "requests"]);
    assert_transcript!(transcript);
    for text in ["{} is empty\n", "{}\n", "{\"a\": \n", "[\"a\"]\n"] {
        let output = project.mt_with_input(&args[..7], text.as_bytes());
        assert!(!stderr(&output).contains("JSON"), "{text}: {}", stderr(&output));
    }
}

#[test]
fn what_cannot_be_searched_with_is_refused() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    for line in [
        "--beam 3 --n-best 5",
        "--beam 5 --beam-groups 2",
        "--beam -1",
        "--sample --temperature 0",
        "--sample --top-p 0",
        "--sample --beam 3",
        "--length-penalty-kind wrong",
        "--length-penalty 1e30",
        "--min-length 9 --max-length 8",
        "--min-length 100000",
        "--max-length 0",
        "--max-length-ratio nan",
        "--patience inf",
        "--n-best 0",
        "--n-best 100000",
        "--prefix der_Hund_frisst --max-length 2",
        "--attention a.json --long split",
        "--attention a.pdf",
        "--attention -",
        "--long wrong",
        "--output runs/small/model.safetensors",
        "--precision f16",
        "--checkpoint newest",
        "--shortlist none",
        "--model runs/small --shortlist none",
        "--model runs/small --weights 1",
        "--weights a,b",
    ] {
        transcript.run(&format!("translate --model runs/small cat {line}"));
    }
    transcript.run("score --model runs/small --src - --tgt -");
    transcript.run("shortlist runs/small --out none --src valid.en");
    assert_transcript!(transcript);
}

/// A translation found by search gets the same score when it is given.
#[test]
fn scores_are_those_of_the_search() {
    let project = trained();
    let found = json(&translate(&project, &["--beam", "3", "--json"]));
    let lines = |key: &str| found.iter().map(|line| line[key].as_str().unwrap().to_owned() + "\n").collect::<String>();
    project.write("source", lines("source"));
    project.write("target", lines("translation"));
    let score = |more: &[&str]| {
        let args = ["score", "--model", "runs/small", "-q", "--src", "source", "--tgt", "target"];
        let output = project.mt(&[&args[..], more].concat());
        succeeds(&output);
        stdout(&output)
    };
    let scored = json(&score(&["--json"]));
    assert_eq!(scored.len(), found.len());
    let mut compared = 0;
    for (found, scored) in found.iter().zip(&scored) {
        let (searched, forced) = (numbers(&found["token_log_probs"]), numbers(&scored["token_log_probs"]));
        assert_eq!(forced.len(), scored["tokens"].as_array().unwrap().len() + 1);
        // If a text has several segmentations, search may have found another one.
        if found["source"] != "" && found["tokens"] == scored["tokens"] {
            assert!(searched.iter().zip(&forced).all(|(a, b)| (a - b).abs() < 1e-5), "{found} {scored}");
            compared += 1;
        }
    }
    assert!(compared > 0, "nothing was compared: {found:?}");
    let sums: Vec<f64> = score(&[]).lines().map(|line| line.parse().unwrap()).collect();
    let averages: Vec<f64> = score(&["--normalize"]).lines().map(|line| line.parse().unwrap()).collect();
    for ((scored, sum), average) in scored.iter().zip(&sums).zip(&averages) {
        assert!((scored["log_prob"].as_f64().unwrap() - sum).abs() < 1e-5);
        assert!((sum / numbers(&scored["token_log_probs"]).len() as f64 - average).abs() < 1e-5);
    }
    assert_eq!(score(&["--batch-tokens", "1", "--threads", "1"]), score(&[]));

    // Lines without a partner are named, after those before them have been scored.
    project.write("target", "die Katze\n");
    let mut transcript = Transcript::new(&project);
    let output = transcript.messages(&["score", "--model", "runs/small", "-q", "--src", "source", "--tgt", "target"]);
    assert_transcript!(transcript);
    assert_eq!(stdout(&output).lines().count(), 1);
}

/// A pair that is too long has no score; all others have the same as without it.
#[test]
fn pairs_beyond_the_positions_are_named_and_have_no_score() {
    for positions in ["learned", "sinusoidal"] {
        let project = Project::new();
        let set = format!("model.positions={positions}");
        succeeds(&project.train(&[
            "--set",
            "train.max_updates=2",
            "--set",
            &set,
            "--set",
            "model.max_length=50",
            "--set",
            "data.max_length=40",
        ]));
        let args = ["score", "--model", "runs/small", "-q", "--src", "source", "--tgt", "target"];
        project.write("source", "a cat\n\na dog\n");
        project.write("target", "eine Katze\nein Hund\n\n");
        let output = project.mt(&args);
        succeeds(&output);
        let plain: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
        let long = "x ".repeat(100);
        project.write("source", format!("a cat\na dog\n\n{long}\na dog\n{long}\n"));
        project.write("target", format!("eine Katze\n{long}\nein Hund\nein Hund\n\n{long}\n"));
        let mut transcript = Transcript::new(&project);
        let found = stdout(&transcript.messages(&args));
        assert_eq!(found.lines().collect::<Vec<_>>(), [&plain[0], "nan", &plain[1], "nan", &plain[2], "nan"]);
        transcript.mt(&[&args[..], &["--json", "--output", "scores"]].concat());
        assert_transcript!(transcript, "pairs_beyond_the_positions");
        let found = json(&std::fs::read_to_string(project.path("scores")).unwrap());
        assert_eq!(found.len(), 6);
        for (line, found) in found.iter().enumerate() {
            for key in ["log_prob", "average", "tokens", "token_log_probs"] {
                assert_eq!(found[key].is_null(), [1, 3, 5].contains(&line), "{found}");
            }
        }
    }
}

#[test]
fn models_of_integers_translate_as_those_rounded_when_loaded() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    transcript.run("quantize runs/small --out small-int8");
    transcript.run("quantize runs/small --out small-int8");
    transcript.run("quantize small-int8 --out twice");
    assert!(!project.path("twice").exists());
    let stored = |more: &[&str]| {
        let args = ["translate", "--model", "small-int8", "-q", "--max-length", "8", "--json", "--beam", "3"];
        let output = project.mt_with_input(&[&args[..], more].concat(), INPUT.as_bytes());
        succeeds(&output);
        stdout(&output)
    };
    let rounded = translate(&project, &["--json", "--beam", "3", "--precision", "int8"]);
    assert_eq!(stored(&[]), rounded);
    assert_eq!(stored(&["--precision", "int8"]), rounded);
    assert_ne!(stored(&["--precision", "f32"]), rounded);
    let size = |path: &str| std::fs::metadata(project.path(path).join("model.safetensors")).unwrap().len();
    assert!(size("small-int8") * 2 < size("runs/small"));
    // Everything else works with it too.
    succeeds(&project.mt(&["eval", "--model", "small-int8", "-q"]));
    assert!(stdout(&project.mt(&["info", "small-int8"])).contains("stored as: 8-bit integers"));
    succeeds(&project.mt(&["embed", "--model", "small-int8", "-q", "a cat"]));
    let tuning = ["--set", "train.init=small-int8", "--set", "train.max_updates=2", "--run-dir", "runs/tuned"];
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &tuning[..]].concat()));
    assert_transcript!(transcript);
}

/// Nothing is multiplied by a table of positions: its rows are added.
#[test]
fn only_what_is_multiplied_becomes_integers() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1", "--set", "model.positions=learned"]));
    succeeds(&project.mt(&["quantize", "runs/small", "--out", "small-int8"]));
    let [before, after] = ["runs/small", "small-int8"].map(|model| file(&project, model, "model.safetensors"));
    let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let mut positions = 0;
    for (name, tensor) in before.tensors() {
        let is_table = name.ends_with("positions.weight");
        let is_matrix = tensor.shape().len() == 2 && !is_table;
        let stored = after.tensor(&name).unwrap();
        assert_eq!(stored.dtype(), if is_matrix { Dtype::I8 } else { Dtype::F32 }, "{name}");
        assert!(is_matrix || stored.data() == tensor.data(), "{name}");
        positions += usize::from(is_table);
    }
    assert_eq!(positions, 2);
}

#[test]
fn an_ensemble_of_equals_is_one_of_them() {
    let project = trained();
    let one = translate(&project, &["--json", "--beam", "3"]);
    let two = translate(&project, &["--json", "--beam", "3", "--model", "runs/small"]);
    for (one, two) in json(&one).iter().zip(&json(&two)) {
        assert_eq!(one["tokens"], two["tokens"]);
        assert!((one["log_prob"].as_f64().unwrap() - two["log_prob"].as_f64().unwrap()).abs() < 1e-4);
    }
    succeeds(&project.train(&["--set", "tokenizer.vocab_size=310", "--run-dir", "runs/other"]));
    let mut transcript = Transcript::new(&project);
    transcript.run("translate --model runs/small --model runs/other cat");
    assert_transcript!(transcript);
}

/// What the model with the fewest positions cannot take is told, whichever of the models it is.
#[test]
fn an_ensemble_has_the_fewest_positions_of_its_members() {
    let project = trained();
    let few = [
        "--set",
        "model.max_length=24",
        "--set",
        "data.max_length=20",
        "--set",
        "train.max_updates=8",
        "--run-dir",
        "runs/few",
    ];
    succeeds(&project.train(&few));
    let long = "the cat sleeps the dog eats ".repeat(4);
    let mut transcript = Transcript::new(&project);
    for [first, second] in [["runs/small", "runs/few"], ["runs/few", "runs/small"]] {
        let models = ["translate", "--model", first, "--model", second];
        // So every translation is cut.
        let cut = ["--long", "truncate", "--min-length", "8", "--max-length", "8", &long];
        succeeds(&transcript.messages(&[&models[..], &cut].concat()));
        transcript.mt(&[&models[..], &["--min-length", "24", "a cat"]].concat());
    }
    assert_transcript!(transcript);
}

/// A line longer than those of the training text is translated in parts, and so are its like in validation.
#[test]
fn validation_translates_as_translate_does() {
    let project = Project::new();
    project.write("valid.en", "the cat sleeps. the dog eats. a cat eats. the dog sleeps.\na cat eats\n");
    project.write("valid.de", "die Katze schläft. der Hund frisst. eine Katze frisst. der Hund schläft.\neine Katze\n");
    succeeds(&project.train(&["--set", "data.max_length=10"]));
    let translate = |more: &[&str]| {
        let args = ["translate", "--model", "runs/small", "--input", "valid.en", "--beam", "1"];
        let output = project.mt(&[&args[..], more].concat());
        succeeds(&output);
        stdout(&output)
    };
    let validated = std::fs::read_to_string(project.path("runs/small/validation/final.txt")).unwrap();
    assert_eq!(validated, translate(&[]));
    assert_ne!(validated, translate(&["--long", "truncate"]));
}

/// So two checkpoints of one run can form an ensemble.
#[test]
fn a_checkpoint_is_named_by_its_path() {
    let project = trained();
    let checkpoints = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap();
    let mut names: Vec<String> = checkpoints
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("step-"))
        .collect();
    names.sort();
    let (first, last) = (&names[0], &names[names.len() - 1]);
    assert_ne!(first, last);
    let path = |name: &str| format!("runs/small/checkpoints/{name}");
    let step = first.trim_start_matches("step-").trim_start_matches('0');
    let run = |args: &[&str]| {
        let output = project.mt(&[&["translate", "--json", "the cat sleeps"], args].concat());
        succeeds(&output);
        (json(&stdout(&output)).remove(0), stderr(&output))
    };
    let by_path = run(&["--model", &path(first)]);
    let by_flag = run(&["--model", "runs/small", "--checkpoint", step]);
    assert_eq!(by_path, by_flag);
    assert!(by_path.1.contains(&format!("update {step}")) || by_path.1.contains(step), "{}", by_path.1);
    let (both, said) = run(&["--model", &path(first), "--model", &path(last)]);
    assert_eq!(said.matches("model: runs/small (").count(), 2, "{said}");
    assert_ne!(both["log_prob"], by_path.0["log_prob"]);
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["translate", "--model", &path(first), "--checkpoint", "last", "the cat"]);
    assert_transcript!(transcript);
}

/// This holds with several models and with a shortlist, too.
#[test]
fn evaluation_translates_as_translate_does() {
    let project = trained();
    succeeds(&project.train(&["--set", "train.max_updates=8", "--set", "train.seed=7", "--run-dir", "runs/seven"]));
    succeeds(&project.mt(&["shortlist", "runs/small", "--out", "list", "--best", "1", "--first", "0"]));
    project.write("source", INPUT);
    project.write("reference", "die Katze schläft\n\nein Hund rennt\nder Hund frisst\n");
    let ways = [&[][..], &["--model", "runs/seven"], &["--shortlist", "list"]];
    let texts = ways.map(|more| {
        // Otherwise such a model repeats one word.
        let more = &[&["--no-repeat-ngram", "1", "--min-length", "8"], more].concat();
        let args = ["eval", "--model", "runs/small", "-q", "--max-length", "8", "--output", "hyp"];
        let files = ["--src", "source", "--ref", "reference"];
        let output = project.mt(&[&args[..], &files, more].concat());
        succeeds(&output);
        let text = std::fs::read_to_string(project.path("hyp")).unwrap();
        assert_eq!(text, translate(&project, more), "{more:?}");
        text
    });
    assert!(texts[1..].iter().all(|text| *text != texts[0]), "{texts:?}");
}

/// The file of an evaluation's translations is refused before them, and replaced after them.
#[test]
fn translations_of_an_evaluation_are_written_whole_or_not_at_all() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    let mut eval = |more: &str| {
        // One block of 512 or 1024 bytes: less than the translations.
        let line =
            "ulimit -f 1; exec \"$0\" eval --model runs/small --src train.en --ref train.de --max-length 9 \"$@\"";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line, env!("CARGO_BIN_EXE_mt")]).args(more.split(' '));
        command.current_dir(project.folder.path()).env("NO_COLOR", "1").env_remove("MT_MODEL");
        transcript.record(&format!("ulimit -f 1; mt eval {more}"), &command.output().unwrap());
    };
    project.write("old.txt", "kept");
    eval("--output old.txt");
    assert_eq!(std::fs::read(project.path("old.txt")).unwrap(), b"kept");
    // Even before the model is prepared.
    eval("--output no/such.txt --precision f64");
    assert_transcript!(transcript);
}

#[test]
fn compressed_text_comes_through_a_pipe_too() {
    let project = trained();
    let packed = gzip(INPUT.as_bytes());
    let args = ["translate", "--model", "runs/small", "-q", "--max-length", "8"];
    assert_eq!(stdout(&project.mt_with_input(&args, &packed)), translate(&project, &[]));
    project.write("cut.gz", &packed[..packed.len() - 9]);
    let mut transcript = Transcript::new(&project);
    transcript.with_input(&["tokenize", "--model", "runs/small"], "cut.gz");
    assert_transcript!(transcript);
}

/// Translating it would give line after line of nonsense.
#[test]
fn what_is_no_text_is_refused() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    for (name, text) in [
        ("bzip2", &b"BZh91AY&SY and more\n"[..]),
        ("utf16", b"\xFF\xFEt\0h\0e\0\n\0"),
        ("wide", b"\0a\0 \0d\0o\0g\0\n"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"),
        ("pdf", b"%PDF-1.7\n"),
    ] {
        project.write(name, text);
        for command in ["translate", "tokenize", "embed"] {
            transcript.run(&format!("{command} --model runs/small -q --input {name}"));
        }
        transcript.run(&format!("score --model runs/small -q --src {name} --tgt valid.de"));
        let piped = project.mt_with_input(&["translate", "--model", "runs/small", "-q"], text);
        transcript.record(&format!("mt translate --model runs/small -q < {name}"), &piped);
    }
    // A page may be what is wanted; and text that merely begins like that is still text.
    for (name, text) in [("page", "<!DOCTYPE html>\n<html>\n"), ("text", "BZh91AY is no block\nBZh\n")] {
        project.write(name, text);
        transcript.run(&format!("tokenize --model runs/small --input {name}"));
    }
    assert_transcript!(transcript);
}

#[test]
fn output_appended_to_the_input_is_refused() {
    let project = trained();
    project.write("grows", "the cat sleeps\n");
    let appended = |args: &[&str]| {
        let file = std::fs::File::options().append(true).open(project.path("grows")).unwrap();
        project.command(args).stdout(file).output().unwrap()
    };
    let translate = ["translate", "--model", "runs/small", "--input", "grows"];
    let mut transcript = Transcript::new(&project);
    for args in [
        &["tokenize", "--model", "runs/small", "--input", "grows"][..],
        &translate,
        &["score", "--model", "runs/small", "--src", "grows", "--tgt", "valid.de"],
    ] {
        transcript.record(&format!("mt {} >> grows", args.join(" ")), &appended(args));
    }
    assert_transcript!(transcript);
    // Nothing goes to stdout.
    succeeds(&appended(&[&translate[..], &["--output", "out"]].concat()));
    assert_eq!(std::fs::read_to_string(project.path("out")).unwrap().lines().count(), 1);
    assert_eq!(std::fs::read_to_string(project.path("grows")).unwrap(), "the cat sleeps\n");
}

#[test]
fn lines_that_are_no_good_text_are_told_of() {
    let project = trained();
    let mut transcript = Transcript::new(&project);
    for (name, text) in [
        ("latin1", &b"the cat sleeps\na dog\nthe dog eats\nun caf\xE9\na cat\nna\xEFve\n"[..]),
        ("zeros", b"a dog\n\0a\0 \0c\0a\0t\0\na\na\na\na\n"),
        ("old", b"a dog\ra cat\ra bird\r\na\na\na\na\na\n"),
        ("windows", b"a dog\r\na cat\r\na\r\na\r\na\r\na\r\n"),
    ] {
        project.write(name, text);
        for command in [&["translate", "--min-length", "4", "--max-length", "4"][..], &["tokenize"], &["embed"]] {
            transcript.messages(&[command, &["--model", "runs/small", "--input", name]].concat());
        }
        transcript.messages(&["score", "--model", "runs/small", "--src", name, "--tgt", "valid.de"]);
    }
    // A file that is both sides is told of once.
    transcript.messages(&["score", "--model", "runs/small", "--src", "latin1", "--tgt", "latin1"]);
    assert_transcript!(transcript);
}

#[test]
fn arguments_that_are_not_utf8_are_read_like_lines() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let project = trained();
    let mut transcript = Transcript::new(&project);
    let mut run = |command: &str, more: &[&[u8]]| {
        // Room for a prefix whose bytes are tokens. The lengths are equal, so that no warning depends on the model.
        let mut mt = project.command(&[command, "--model", "runs/small", "--min-length", "9", "--max-length", "9"]);
        let output = mt.args(more.iter().map(|bytes| OsStr::from_bytes(bytes))).output().unwrap();
        succeeds(&output);
        let more = more.iter().map(|bytes| format!(" '{}'", bytes.escape_ascii())).collect::<String>();
        transcript.record(&format!("mt {command}{more}"), &Output { stdout: Vec::new(), ..output.clone() });
        stdout(&output)
    };
    let expected = run("translate", &[b"a dog", "un caf\u{FFFD}".as_bytes()]);
    assert_eq!(run("translate", &[b"a dog", b"un caf\xE9"]), expected);
    assert_eq!(run("translate", &[b"-q", b"a dog", b"un caf\xE9"]), expected);
    let expected = run("translate", &[b"--prefix", "caf\u{FFFD}".as_bytes(), b"a dog"]);
    assert_eq!(run("translate", &[b"--prefix", b"caf\xE9", b"a dog"]), expected);
    assert_transcript!(transcript);
}

/// Lines before the damage are processed, and the message says where it is.
#[test]
fn damage_in_the_middle_costs_what_comes_after_it() {
    let project = trained();
    let lines: Vec<String> = (0..3000).map(|i| format!("a cat {} sleeps {}", i * 7919 % 1000, i * i % 997)).collect();
    let packed = gzip((lines.join("\n") + "\n").as_bytes());
    project.write("cut.gz", &packed[..packed.len() / 2]);
    let mut readable = Vec::new();
    flate2::read::GzDecoder::new(&packed[..packed.len() / 2]).read_to_end(&mut readable).unwrap_err();
    let whole = readable.iter().filter(|byte| **byte == b'\n').count();
    let mut transcript = Transcript::new(&project);
    transcript.note(&format!("{whole} lines are whole"));
    let output = transcript.messages(&["tokenize", "--model", "runs/small", "-q", "--input", "cut.gz"]);
    assert_eq!(stdout(&output).lines().count(), whole);
    // Also where the damage is in the prefixes of these lines.
    let prefixes: String = (0..3000).map(|i| ["\n", "a\n", "a cat\n"][i * i % 997 % 3]).collect();
    let packed = gzip(prefixes.as_bytes());
    project.write("prefixes.gz", &packed[..packed.len() / 2]);
    project.write("all", lines.join("\n") + "\n");
    let args = ["translate", "--model", "runs/small", "-q", "--max-length", "6", "--beam", "1", "--input", "all"];
    let output = project.mt(&[&args[..], &["--prefix-file", "prefixes.gz"]].concat());
    let (answered, said) = (stdout(&output).lines().count(), stderr(&output));
    assert_eq!(output.status.code(), Some(1));
    assert!(answered > 0 && said.contains(&format!("prefixes.gz:{}\n", answered + 1)), "{answered}: {said}");

    // What there is to say of the lines before is said, and their explanations are written.
    let packed = gzip(format!("a cat\n{}\n", "a dog ".repeat(200)).as_bytes());
    project.write("cut.gz", [&packed[..], &packed[..12]].concat());
    let args = ["--input", "cut.gz", "--min-length", "4", "--max-length", "4", "--attention", "weights.json"];
    transcript.messages(&[&["translate", "--model", "runs/small"], &args[..]].concat());
    assert_transcript!(transcript);
    let weights = std::fs::read(project.path("weights.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&weights).unwrap().len(), 2);
}

#[test]
fn alignments_are_of_words() {
    let project = trained();
    let plain = translate(&project, &[]);
    let aligned = translate(&project, &["--alignment"]);
    let from_json = json(&translate(&project, &["--alignment", "--json"]));
    for (((plain, aligned), json), source) in plain.lines().zip(aligned.lines()).zip(&from_json).zip(INPUT.lines()) {
        let (text, pairs) = aligned.split_once(" ||| ").unwrap();
        assert_eq!((text, pairs), (plain, json["alignment"].as_str().unwrap()));
        let pairs: Vec<(usize, usize)> = pairs
            .split_whitespace()
            .map(|pair| pair.split_once('-').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).unwrap())
            .collect();
        // Each word of the translation once, in order.
        let targets: Vec<usize> = pairs.iter().map(|pair| pair.1).collect();
        assert_eq!(targets, (0..text.split_whitespace().count()).collect::<Vec<_>>(), "{aligned}");
        assert!(pairs.iter().all(|pair| pair.0 < source.split_whitespace().count()), "{aligned}");
    }
}

#[test]
fn a_shortlist_allows_only_what_was_seen_together() {
    let project = trained();
    let make = |more: &[&str]| project.mt(&[&["shortlist", "runs/small", "--out", "list"], more].concat());
    succeeds(&make(&[]));
    // A list that allows every word of the corpus changes scores but not these translations; batches change nothing.
    let with = |more: &[&str]| translate(&project, &[&["--shortlist", "list", "--beam", "3", "--json"], more].concat());
    let listed = with(&[]);
    assert_eq!(listed, with(&["--batch-tokens", "1", "--threads", "1"]));
    succeeds(&make(&["--best", "1", "--first", "0"]));
    let narrow = json(&with(&[]));
    // The list leaves too few pieces for eight different ones; without it there are enough.
    let eight = ["--no-repeat-ngram", "1", "--min-length", "8"];
    let stuck = |lines: &[Value]| lines.iter().any(|line| line["ending"] == "stuck");
    assert!(stuck(&json(&with(&eight))));
    assert!(!stuck(&json(&translate(&project, &[&["--beam", "3", "--json"][..], &eight].concat()))));
    for line in narrow.iter().filter(|line| line["source"] != "") {
        assert!(line["log_prob"].as_f64().unwrap().is_finite());
    }
    // A forced prefix is always allowed.
    for line in json(&with(&["--prefix", "der Hund schläft ein"])).iter().filter(|line| line["source"] != "") {
        assert!(line["translation"].as_str().unwrap().starts_with("der Hund schläft ein"), "{line}");
    }
    project.write("list", "nonsense");
    let mut transcript = Transcript::new(&project);
    transcript.run("translate --model runs/small --shortlist list cat");
    succeeds(&make(&[]));
    succeeds(&project.train(&["--set", "tokenizer.vocab_size=310", "--run-dir", "runs/other"]));
    transcript.run("translate --model runs/other --shortlist list cat");
    // One of other text has translations of few tokens.
    project.write("one.en", "the\n");
    project.write("one.de", "die\n");
    let translate = ["translate", "--model", "runs/small", "--min-length", "4", "--max-length", "4"];
    let with_list = [&translate[..], &["--shortlist", "list", "--input", "train.en"]].concat();
    succeeds(&transcript.messages(&with_list));
    succeeds(&make(&["--src", "one.en", "--tgt", "one.de"]));
    transcript.note("the list is of one word");
    succeeds(&transcript.messages(&with_list));
    assert_transcript!(transcript);
}

/// Neither where text was prepared, nor the file that a tokenizer came from, depends on how the model is named.
#[test]
fn a_shortlist_is_learnt_from_prepared_text_and_the_model_s_own_tokenizer() {
    let project = trained();
    std::fs::copy(project.path("runs/small/tokenizer.json"), project.path("mine.json")).unwrap();
    let config = std::fs::read_to_string(project.path("small.toml")).unwrap();
    project.write("small.toml", config.replace("vocab_size = 320", "path = \"mine.json\""));
    succeeds(&project.train(&["--run-dir", "runs/named", "--set", "data.cache_above=0"]));
    let tokenizer = mt::data::tokenizer::Tokenizer::load(&project.path("mine.json")).unwrap();
    let text = tokenizer.json();
    assert!(text.contains("Katze"));
    project.write("mine.json", text.replace("Katze", "Kater"));
    let mut transcript = Transcript::new(&project);
    for model in ["runs/named", "runs/named/checkpoints/step-00000012"] {
        transcript.run(&format!("shortlist {model} --out list"));
    }
    assert_transcript!(transcript);
    assert!(project.path("runs/data-cache").exists() && !project.path("runs/named/checkpoints/data-cache").exists());
}

/// The files may hold other text than the training text that the model names.
#[test]
fn a_shortlist_is_learnt_from_files_that_are_named() {
    let project = trained();
    let make = |out: &str, more: &[&str]| project.mt(&[&["shortlist", "runs/small", "--out", out], more].concat());
    succeeds(&make("of-model", &[]));
    let config = std::fs::read_to_string(project.path("small.toml")).unwrap();
    assert!(config.contains("train.en"), "the corpus of the model");
    let [source, target] = ["train.en", "train.de"].map(|name| std::fs::read_to_string(project.path(name)).unwrap());
    project.write("other.en", &source);
    project.write("other.de", &target);
    succeeds(&make("of-files", &["--src", "other.en", "--tgt", "other.de"]));
    // Text for validation and tests is not read.
    std::fs::remove_file(project.path("valid.en")).unwrap();
    succeeds(&make("without", &[]));
    let bytes = |name: &str| std::fs::read(project.path(name)).unwrap();
    assert_eq!(bytes("of-model"), bytes("of-files"));
    assert_eq!(bytes("of-model"), bytes("without"));
    // The list depends on the named files.
    project.write("other.en", "the cat\n");
    project.write("other.de", "die Katze\n");
    succeeds(&make("small", &["--src", "other.en", "--tgt", "other.de"]));
    assert_ne!(bytes("of-model"), bytes("small"));
    // What the text does not have can still be copied.
    let tokenizers = mt::data::tokenizers::Tokenizers::load(&project.path("runs/small")).unwrap();
    let list = mt::decode::shortlist::Shortlist::load(&project.path("small"), &tokenizers).unwrap();
    let mut pieces = 0..tokenizers.source.vocab_size() as u32;
    assert!(tokenizers.is_joint() && pieces.all(|piece| list.tokens_for(&[piece], &[], &[]).contains(&piece)));
    let mut transcript = Transcript::new(&project);
    transcript.run("shortlist runs/small --out other.de --src other.en --tgt other.de");
    assert_transcript!(transcript);
}

/// Looking whether output and input are the same file must not open them: that would wait for the other end of a pipe,
/// or take its lines away.
#[test]
fn inputs_and_outputs_may_be_named_pipes() {
    let project = trained();
    let path = project.mkfifo("pipe");
    let expected = translate(&project, &[]);
    // Instead of waiting for ever, a command that hangs is stopped.
    let run = |args: &[&str], other: std::thread::JoinHandle<String>| {
        let args = [&["translate", "--model", "runs/small", "-q", "--max-length", "8"], args].concat();
        let file = std::fs::File::create(project.path("stdout")).unwrap();
        let mut child = project.command(&args).stdout(file).stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(INPUT.as_bytes()).unwrap();
        let began = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() {
            if began.elapsed().as_secs() > 120 {
                child.kill().unwrap();
                panic!("{args:?} waits");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(child.wait().unwrap().success());
        (std::fs::read_to_string(project.path("stdout")).unwrap(), other.join().unwrap())
    };
    let to = path.clone();
    let writer = std::thread::spawn(move || std::fs::write(to, INPUT).map(|()| String::new()).unwrap());
    assert_eq!(run(&["--input", "pipe"], writer).0, expected);
    let reader = std::thread::spawn(move || std::fs::read_to_string(path).unwrap());
    assert_eq!(run(&["--output", "pipe"], reader).1, expected);
}

/// If the new list cannot be written, the old one stays.
#[test]
fn a_shortlist_is_replaced_whole_or_not_at_all() {
    let project = trained();
    succeeds(&project.mt(&["shortlist", "runs/small", "--out", "list"]));
    let before = std::fs::read(project.path("list")).unwrap();
    // One block of 512 or 1024 bytes: less than the list.
    let line = "ulimit -f 1; exec \"$0\" shortlist runs/small --out list --best 1";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", line, env!("CARGO_BIN_EXE_mt")]).current_dir(project.folder.path()).env("NO_COLOR", "1");
    let mut transcript = Transcript::new(&project);
    transcript.record("ulimit -f 1; mt shortlist runs/small --out list --best 1", &command.output().unwrap());
    assert_transcript!(transcript);
    assert!(std::fs::read(project.path("list")).unwrap() == before);
    assert_eq!(project.temporaries("list"), [""; 0]);
    succeeds(&project.mt(&["shortlist", "runs/small", "--out", "list", "--best", "1"]));
    assert!(std::fs::read(project.path("list")).unwrap() != before);
}

/// Learning takes long: what cannot be written is refused first, even before text is looked for.
#[test]
fn a_shortlist_that_cannot_be_written_is_refused_first() {
    let project = trained();
    std::fs::create_dir(project.path("folder")).unwrap();
    let mut transcript = Transcript::new(&project);
    for out in ["folder", "no/list", "list.gz", "list"] {
        transcript.run(&format!("shortlist runs/small --src none.en --tgt none.de --out {out}"));
    }
    assert_transcript!(transcript);
    let names = std::fs::read_dir(project.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("list")));
}

/// Unlike that of standard output, whose end is wanted (`mt … | head`).
#[test]
fn the_reader_of_a_named_output_does_not_go_away_unnoticed() {
    let project = trained();
    let pipe = project.mkfifo("pipe");
    let args = ["translate", "--model", "runs/small", "-q", "--output", "pipe", "--max-length", "4"];
    let lines = "the cat\n".repeat(30_000);
    let mut reader = std::process::Command::new("head").args(["-c", "1"]).arg(&pipe).spawn().unwrap();
    let output = project.mt_with_input(&args, lines.as_bytes());
    // It waits for ever if nobody has opened the pipe.
    let _ = reader.kill();
    reader.wait().unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.record("yes 'the cat' | mt translate --model runs/small -q --output pipe", &output);
    assert_transcript!(transcript);
}

/// A signal ends it between two lines, and how many are done is said; also if the input ends at the same time, as it
/// does where Ctrl-C ends its writer too.
#[test]
fn what_is_interrupted_says_how_much_is_done() {
    let project = trained();
    project.write("none", "");
    let runs = [
        (&["translate"][..], &["--max-length", "4", "--output", "out"][..], "INT", libc::SIGINT, 130),
        (&["translate", "--beam", "2"], &["--n-best", "2", "--output", "out"], "TERM", libc::SIGTERM, 143),
        (&["embed"], &["--output", "out"], "HUP", libc::SIGHUP, 143),
        (&["score", "--src", "-", "--tgt", "train.de"], &["--output", "out"], "INT", libc::SIGINT, 130),
        (&["score", "--src", "-", "--tgt", "train.de"], &["--output", "out"], "USR1", libc::SIGUSR1, 143),
        (&["translate"], &["--output", "out"], "XCPU", libc::SIGXCPU, 143),
    ];
    let ends = [false, true, true];
    for (input_ends, (command, more, signal, number, code)) in
        ends.into_iter().flat_map(|ends| runs.map(|run| (ends, run)))
    {
        if common::is_ignored(number) {
            common::skipped("what_is_interrupted_says_how_much_is_done", &format!("SIG{signal} is ignored here"));
            continue;
        }
        let args = [command, &["--model", "runs/small", "-q"], more].concat();
        let mut child = project.command(&args);
        child.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"the cat sleeps\na dog\nthe dog\n").unwrap();
        let lines = || std::fs::read_to_string(project.path("out")).unwrap_or_default().lines().count();
        let all = if more.contains(&"--n-best") { 6 } else { 3 };
        for _ in 0..600 {
            if lines() == all {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(lines(), all, "{args:?}");
        send(&format!("-{signal}"), &child);
        let stdin = (!input_ends).then_some(stdin);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        fails(&output, code, &["after the results of 3 lines were written\n  --> out", "begin with line 4"]);
        std::fs::remove_file(project.path("out")).unwrap();
    }
}

#[test]
fn what_is_interrupted_warns_of_the_lines_that_are_done() {
    let project = trained();
    for command in [&["translate"][..], &["embed"], &["score", "--src", "-", "--tgt", "train.de"]] {
        let args = [command, &["--model", "runs/small", "--output", "out"]].concat();
        let mut child = project.command(&args);
        child.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"the cat sleeps\na \xff dog\n").unwrap();
        let lines = || std::fs::read_to_string(project.path("out")).unwrap_or_default().lines().count();
        for _ in 0..600 {
            if lines() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        send("-TERM", &child);
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        fails(&output, 143, &["were read as U+FFFD, in line 2 of ", "the results of 2 lines"]);
        std::fs::remove_file(project.path("out")).unwrap();
    }
}

/// Some programs share pipes with their children that do not block.
#[test]
fn pipes_that_do_not_block_are_waited_for() {
    use std::os::fd::AsRawFd;
    let project = trained();
    let ((input, mut to), (mut from, output)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    for descriptor in [input.as_raw_fd(), output.as_raw_fd()] {
        // SAFETY: this only sets a flag of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    }
    let mut command = project.command(&["translate", "--model", "runs/small", "-q", "--json", "--max-length", "4"]);
    let mut child = command.stdin(input).stdout(output).spawn().unwrap();
    // Holds the other ends.
    drop(command);
    // First there is nothing to read, then no room to write: these are more than a pipe holds.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(300));
    pause();
    let writer = std::thread::spawn(move || to.write_all("the cat\n".repeat(1000).as_bytes()).unwrap());
    pause();
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(text.len() > 1 << 17 && json(&text).len() == 1000, "{}", text.len());
}

#[test]
fn neither_a_removed_directory_nor_what_a_file_holds_is_in_the_way() {
    let project = trained();
    let (mt, model) = (env!("CARGO_BIN_EXE_mt"), project.path("runs/small"));
    let shell = |script: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, "sh", mt]).arg(&model).current_dir(project.path(".")).env_remove("MT_MODEL");
        shell.output().unwrap()
    };
    let output = shell("mkdir gone && cd gone && rmdir ../gone && exec \"$1\" translate -q --model \"$2\" 'the cat'");
    succeeds(&output);
    assert_eq!(stdout(&output).lines().count(), 1);
    // The shell's `>>` appends.
    succeeds(&shell("echo kept >out && \"$1\" translate -q --model \"$2\" --output /dev/stdout 'the cat' >>out"));
    let text = std::fs::read_to_string(project.path("out")).unwrap();
    assert!(text.starts_with("kept\n") && text.lines().count() == 2, "{text}");
}

/// Each of several translations has its own alignment, however many are computed together.
#[test]
fn every_translation_of_a_list_is_aligned() {
    let project = trained();
    let aligned = |more: &[&str], input: &str| {
        let args =
            ["translate", "--model", "runs/small", "-q", "--max-length", "8", "--alignment", "--json", "--beam", "4"];
        let output = project.mt_with_input(&[&args[..], more].concat(), input.as_bytes());
        succeeds(&output);
        json(&stdout(&output))
    };
    let together = aligned(&["--n-best", "4"], INPUT);
    let mut different = 0;
    for (line, text) in together.iter().zip(INPUT.lines()) {
        let list = line["n_best"].as_array().unwrap();
        assert_eq!(line["alignment"], list[0]["alignment"]);
        for one in list {
            let pairs = one["alignment"].as_str().unwrap();
            let targets: Vec<usize> =
                pairs.split_whitespace().map(|pair| pair.split_once('-').unwrap().1.parse().unwrap()).collect();
            let words = one["translation"].as_str().unwrap().split_whitespace().count();
            assert_eq!(targets, (0..words).collect::<Vec<_>>(), "{one}");
            different += usize::from(one["alignment"] != line["alignment"]);
        }
        // Alone, and only the best.
        let alone = &aligned(&["--n-best", "4"], &format!("{text}\n"))[0];
        assert_eq!(alone["n_best"], line["n_best"]);
        assert_eq!(aligned(&[], &format!("{text}\n"))[0]["alignment"], line["alignment"]);
    }
    assert!(different > 0, "{together:?}");
    // As text, between the translation and its log-probability.
    let args = ["--max-length", "8", "--beam", "4", "--n-best", "4", "--alignment"];
    let output =
        project.mt_with_input(&[&["translate", "--model", "runs/small"], &args[..]].concat(), INPUT.as_bytes());
    let text = stdout(&output);
    let all = together.iter().enumerate().flat_map(|(number, line)| {
        line["n_best"].as_array().unwrap().iter().map(move |one| {
            let [text, pairs] = ["translation", "alignment"].map(|key| one[key].as_str().unwrap());
            format!("{number} ||| {text} ||| {pairs} ||| LogProb= {:.6} |||", one["log_prob"].as_f64().unwrap())
        })
    });
    let all: Vec<_> = all.collect();
    assert_eq!(text.lines().count(), all.len());
    text.lines().zip(&all).for_each(|(line, begins)| assert!(line.starts_with(begins), "{line}: {begins}"));
}

/// Neither batches nor threads nor the order of lines change any bit of the result.
#[test]
fn every_way_gives_the_same() {
    let project = trained();
    for precision in ["f32", "bf16", "int8"] {
        if common::lacks(precision, "every_way_gives_the_same") {
            continue;
        }
        let with = |more: &[&str]| {
            json(&translate(&project, &[&["--json", "--beam", "3", "--precision", precision], more].concat()))
        };
        let all = with(&[]);
        for more in [["--batch-tokens", "1"], ["--batch-tokens", "9"], ["--threads", "1"], ["--threads", "3"]] {
            assert_eq!(with(&more), all, "{precision}: {more:?}");
        }
        let backwards: String = INPUT.lines().rev().map(|line| line.to_owned() + "\n").collect();
        let args = ["translate", "--model", "runs/small", "-q", "--max-length", "8", "--json", "--beam", "3"];
        let output = project.mt_with_input(&[&args[..], &["--precision", precision]].concat(), backwards.as_bytes());
        let mut reversed = json(&stdout(&output));
        reversed.reverse();
        assert_eq!(reversed, all, "{precision}");
    }
}
