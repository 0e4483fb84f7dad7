//! `docs/json.md` names the keys that `--json` and `log.jsonl` have.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::project::{Project, sets, succeeds};
use serde_json::Value;

/// The keys by the name in the first column, of the tables of the page before and after its part on the log.
fn documented() -> [BTreeMap<String, BTreeSet<String>>; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/json.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (results, log) = page.split_once("## `log.jsonl`").unwrap();
    let in_backticks = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    [results, log].map(|part| {
        let rows = part.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        rows.map(|(name, row)| (name.to_owned(), in_backticks(row.split(" | ").next().unwrap()))).collect()
    })
}

const MONITOR: &str = "data.monitor=[{ name = 'again', source = 'train.en', target = 'train.de' }]";

fn keys(object: &Value) -> BTreeSet<String> {
    object.as_object().unwrap_or_else(|| panic!("{object}")).keys().cloned().collect()
}

#[test]
fn results_have_the_documented_keys() {
    let project = Project::new();
    let [results, log_entries] = documented();
    let commands: &[(&str, &[&str])] = &[
        ("init", &["train.en", "train.de", "--valid", "valid.en", "valid.de"]),
        ("train --dry-run", &["--config", "small.toml", "--run-dir", "runs/other"]),
        ("train", &["--config", "small.toml", "--threads", "1", "--set", MONITOR]),
        ("check", &["--config", "small.toml", "--run-dir", "runs/other"]),
        ("prepare", &["--config", "small.toml"]),
        ("tune", &["runs/small", "--beam", "2", "--length-penalty", "1"]),
        ("translate", &["--model", "runs/small", "the cat"]),
        ("score", &["--model", "runs/small", "--src", "valid.en", "--tgt", "valid.de"]),
        ("eval --bleu", &["--model", "runs/small"]),
        ("eval --ppl", &["--model", "runs/small"]),
        ("eval --report", &["--hyp", "valid.de", "--ref", "valid.de"]),
        ("info", &["runs/small"]),
        ("info --machine", &[]),
        ("average", &["runs/small", "--last", "2", "--out", "averaged"]),
        ("quantize", &["runs/small", "--out", "quantised"]),
        ("export", &["runs/small", "--format", "hf-marian", "--out", "exported"]),
        ("import", &["exported", "--out", "imported"]),
        ("shortlist", &["runs/small", "--out", "shortlist"]),
        ("report", &["runs/small"]),
        ("completions", &["bash"]),
        ("man", &["manual"]),
    ];
    for (command, more) in commands {
        let args: Vec<&str> = command.split(' ').chain(more.iter().copied()).chain(["--json", "-q"]).collect();
        let output = project.mt(&args);
        succeeds(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines() {
            assert_eq!(keys(&serde_json::from_str(line).unwrap()), results[*command], "{command}: {line}");
        }
        assert!(!text.is_empty(), "{command}");
    }
    for (command, is_of_its_kind) in [
        ("embed", Value::is_array as fn(&Value) -> bool),
        ("tokenize", Value::is_array),
        ("detokenize", Value::is_string),
    ] {
        let output = project.mt_with_input(&[command, "--model", "runs/small", "--json", "-q"], b"the cat\n");
        succeeds(&output);
        assert!(is_of_its_kind(&serde_json::from_slice(&output.stdout).unwrap()), "{command}");
    }
    let mut seen = BTreeSet::new();
    let mut look_at_log = || {
        for entry in project.log("runs/small") {
            let event = entry["event"].as_str().unwrap().to_owned();
            let mut keys = keys(&entry);
            keys.remove("event");
            assert_eq!(keys, log_entries[&event], "{entry}");
            seen.insert(event);
        }
    };
    look_at_log();
    // What else a log can say: an update that is not finite, a run that goes back, another configuration.
    let hot =
        ["train.save_every=1", "train.max_skipped=0", "train.schedule.learning_rate=1e30", "train.max_updates=16"];
    project.train(&[&["--resume", "--force"], &sets(&hot)[..]].concat());
    look_at_log();
    assert_eq!(
        seen,
        ["back", "candidate", "change", "final", "monitor", "skip", "train", "valid"].map(str::to_owned).into()
    );
}
