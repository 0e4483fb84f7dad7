//! `mt distill` and `mt augment`: training text made by models.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::project::{Project, SOURCE, TARGET, fails, file, sets, stderr, stdout, succeeds};
use serde_json::Value;

/// More lines than two parts have.
const LINES: usize = 4500;

/// A project with a model that has learnt its sentences, in `runs/small`, and the configuration of a student.
fn taught(keys: &[&str]) -> Project {
    let project = Project::new();
    let learn = ["train.max_updates=200", "tokenizer.dropout=0", "model.dropout=0", "valid.every=0"];
    succeeds(&project.train(&sets(&[&learn[..], keys].concat())));
    let many = |lines: &[&str]| lines.iter().cycle().take(LINES).fold(String::new(), |text, line| text + line + "\n");
    project.write("many.en", many(SOURCE));
    project.write("many.de", many(TARGET));
    let student = "extends = \"small.toml\"\n[data]\ntrain = [{ source = \"many.en\", target = \"many.de\" }]\n\
                   [model]\nd_model = 16\n[train]\nmax_updates = 2\n[valid]\nevery = 2\n";
    project.write("student.toml", student);
    project
}

const DISTILL: [&str; 7] = ["distill", "--teacher", "runs/small", "--config", "student.toml", "--beam", "1"];

fn text(project: &Project, name: &str) -> String {
    String::from_utf8(file(project, ".", name)).unwrap()
}

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_student_is_trained_on_its_teacher_s_translations() {
    let project = taught(&[]);
    let output = project.mt(&DISTILL);
    succeeds(&output);
    assert!(stderr(&output).contains("translations stay; left out:"), "{}", stderr(&output));
    let folder = "runs/student/distilled/corpus-0";
    let [source, target] = ["source.txt", "target.txt"].map(|name| text(&project, &format!("{folder}/{name}")));
    let report: Value = serde_json::from_str(&text(&project, "runs/student/distilled/report.json")).unwrap();
    let counts = &report["corpora"][0]["counts"];
    assert_eq!((counts["lines"].as_u64(), report["teachers"][0].as_str()), (Some(LINES as u64), Some("runs/small")));
    let kept = counts["kept"].as_u64().unwrap() as usize;
    assert!((source.lines().count(), target.lines().count()) == (kept, kept) && kept > LINES * 9 / 10, "{counts}");
    // What the model has learnt.
    let right = source.lines().zip(target.lines()).filter(|(source, target)| {
        SOURCE.iter().position(|line| line == source).is_some_and(|number| TARGET[number] == *target)
    });
    assert!(right.count() > kept / 2);
    let config = text(&project, "runs/student/config.toml");
    assert!(config.contains("many.en") && config.contains("distilled/corpus-0/source.txt"), "{config}");
    assert!(project.path("runs/student/model.safetensors").exists());

    // The same again: nothing is left to do. A part that is gone is made again, alike.
    let parts = || (0..3).map(|number| text(&project, &format!("{folder}/part-{number:06}.jsonl"))).collect::<Vec<_>>();
    let (before, times) = (parts(), fs::metadata(project.path(&format!("{folder}/part-000000.jsonl"))).unwrap());
    fs::remove_file(project.path(&format!("{folder}/part-000001.jsonl"))).unwrap();
    let output = project.mt(&DISTILL);
    succeeds(&output);
    assert!(stderr(&output).contains("has ended"), "{}", stderr(&output));
    assert_eq!(parts(), before);
    let again = fs::metadata(project.path(&format!("{folder}/part-000000.jsonl"))).unwrap();
    assert_eq!(again.modified().unwrap(), times.modified().unwrap());

    // With the run's own configuration, its own text is not distilled again, whatever its path looks like.
    for config in ["runs/student/config.toml", "runs/../runs/student/config.toml"] {
        let output = project.mt(&["distill", "--teacher", "runs/small", "--config", config, "--beam", "1"]);
        succeeds(&output);
        assert!(stderr(&output).contains(&format!("translating {LINES} lines")), "{}", stderr(&output));
    }
    // The text of the run does not change under it.
    for more in [&["--keep", "0.5"][..], &["--keep", "0.5", "--text-only"]] {
        fails(&project.mt(&[&DISTILL[..], more].concat()), 2, &["another choice", "report.json"]);
    }
    assert!(text(&project, &format!("{folder}/source.txt")) == source);
    // Other translations do not get mixed with them.
    let other = [&DISTILL[..6], &["2"]].concat();
    fails(&project.mt(&other), 2, &["made with other flags for searching", "distilled/corpus-0"]);
    fs::write(project.path(&format!("{folder}/part-000002.jsonl")), "{}\n").unwrap();
    fails(&project.mt(&DISTILL), 1, &["part-000002.jsonl", "remove the file"]);
}

/// A translation counts as much as the pair that it was made of.
#[test]
fn translations_have_the_weights_of_their_pairs() {
    let project = taught(&[]);
    let weights: String = (0..LINES).map(|line| format!("{}\n", line % 3)).collect();
    project.write("weights", weights);
    let student = text(&project, "student.toml").replace("\"many.de\" }", "\"many.de\", weights = \"weights\" }");
    project.write("student.toml", student);
    succeeds(&project.mt(&DISTILL));
    let folder = "runs/student/distilled/corpus-0";
    let [source, kept] = ["source.txt", "weights.txt"].map(|name| text(&project, &format!("{folder}/{name}")));
    assert_eq!(source.lines().count(), kept.lines().count());
    // The sentences and the weights repeat.
    let count = SOURCE.len();
    let found = source.lines().zip(kept.lines()).collect::<BTreeSet<_>>();
    let wanted = (0..3 * count).map(|line| (SOURCE[line % count], ["0", "1", "2"][line % 3])).collect::<BTreeSet<_>>();
    assert!(!found.is_empty() && found.is_subset(&wanted), "{found:?}");
    assert!(text(&project, "runs/student/config.toml").contains("distilled/corpus-0/weights.txt"));
}

#[test]
fn shares_of_the_text_make_the_same() {
    let project = taught(&[]);
    let run = |more: &[&str]| {
        let output = project.mt(&[&DISTILL[..], &["--text-only"], more].concat());
        succeeds(&output);
        output
    };
    let report: Value = serde_json::from_str(&stdout(&run(&["--run-dir", "whole", "--json"]))).unwrap();
    assert_eq!(keys(&report), ["choice", "corpora", "teachers", "weights"].into());
    for share in ["2/2", "1/2"] {
        let output = run(&["--run-dir", "shared", "--shard", share]);
        assert!(stderr(&output).contains("this share is done"));
        assert!(!project.path("shared/distilled/corpus-0/source.txt").exists());
    }
    run(&["--run-dir", "shared"]);
    for name in ["source.txt", "target.txt", "part-000000.jsonl", "part-000001.jsonl", "part-000002.jsonl"] {
        let [whole, shared] =
            ["whole", "shared"].map(|run| text(&project, &format!("{run}/distilled/corpus-0/{name}")));
        assert!(whole == shared, "{name}");
    }
    assert!(!project.path("shared/model.safetensors").exists());
    // Shares are of the parts of all corpora.
    let pairs = |name: &str| format!("{{ source = \"{name}.en\", target = \"{name}.de\" }}");
    let two = text(&project, "student.toml").replace(&pairs("many"), &(pairs("train") + ", " + &pairs("valid")));
    project.write("two.toml", two);
    let of_two = ["distill", "--teacher", "runs/small", "--config", "two.toml", "--beam", "1", "--run-dir", "two"];
    let made =
        || [0, 1].map(|corpus| project.path(&format!("two/distilled/corpus-{corpus}/part-000000.jsonl")).exists());
    for (share, want) in [("1/2", [true, false]), ("2/2", [true, true])] {
        succeeds(&project.mt(&[&of_two[..], &["--shard", share]].concat()));
        assert_eq!(made(), want);
    }
}

/// A teacher of several languages is told which, where the student has one; text that is split already is refused.
#[test]
fn teachers_of_several_languages_are_told_which() {
    let project = taught(&["tokenizer.tags=[\"<2de>\", \"<2en>\"]", "data.train.0.tag=<2de>", "data.valid.tag=<2de>"]);
    let distill = [&DISTILL[..], &["--to", "de"]].concat();
    let output = project.mt(&distill);
    succeeds(&output);
    let target = text(&project, "runs/student/distilled/corpus-0/target.txt");
    assert!(target.lines().filter(|line| TARGET.contains(line)).count() > LINES / 2, "{}", stderr(&output));
    fails(&project.mt(&[&DISTILL[..], &["--to", "it", "--run-dir", "no"]].concat()), 2, &["it"]);
    succeeds(&project.train(&[&sets(&["train.max_updates=1"])[..], &["--run-dir", "one"]].concat()));
    let of_one = ["distill", "--teacher", "one", "--config", "student.toml", "--run-dir", "no", "--to", "de"];
    fails(&project.mt(&of_one), 2, &["--to de", "translates one language"]);
    let split = sets(&["tokenizer.kind=subword-nmt", "tokenizer.dropout=0", "train.max_updates=2"]);
    succeeds(&project.train(&[&split[..], &["--run-dir", "split"]].concat()));
    let of_split = ["distill", "--teacher", "split", "--config", "student.toml", "--run-dir", "no"];
    fails(&project.mt(&of_split), 2, &["split into subwords already", "tokenizer.codes"]);
    fails(
        &project.mt(&["augment", "--model", "split", "--input", "many.de", "--out", "no"]),
        2,
        &["split into subwords"],
    );
}

#[test]
fn text_of_the_target_language_becomes_pairs() {
    let project = taught(&["data.train=[{ source = \"train.de\", target = \"train.en\" }]"]);
    let augment = ["augment", "--model", "runs/small", "--input", "many.de", "--beam", "1", "--keep", "0.5", "--out"];
    let output = project.mt(&[&augment[..], &["bt", "--mark", "<BT>"]].concat());
    succeeds(&output);
    assert_eq!(stdout(&output), "bt/text-0/source.txt\nbt/text-0/target.txt\n");
    assert!(stderr(&output).contains("tokenizer.symbols"));
    let [source, target] = ["source.txt", "target.txt"].map(|name| text(&project, &format!("bt/text-0/{name}")));
    let pairs: Vec<_> = source.lines().zip(target.lines()).collect();
    // Half of them, and those that are as likely as the last of these.
    assert!(pairs.len() >= LINES / 2 && pairs.len() < LINES && source.lines().count() == target.lines().count());
    let right = pairs.iter().filter(|(source, target)| {
        let number = TARGET.iter().position(|line| line == target).expect("the target is the text itself");
        source.strip_prefix("<BT> ") == Some(SOURCE[number])
    });
    assert!(right.count() > pairs.len() / 2);
    // A pipe is read once, and all of it.
    let (pipe, many) = (project.mkfifo("pipe"), text(&project, "many.de"));
    let writer = std::thread::spawn(move || fs::write(pipe, many));
    let output =
        project
            .mt(&[&augment[..2], &["runs/small", "--json", "--beam", "1", "--out", "piped", "--input", "pipe"]]
                .concat());
    succeeds(&output);
    writer.join().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(stdout(&output).trim()).unwrap()["counts"]["lines"], LINES);
    let own = ["augment", "--model", "runs/small", "--input", "bt/text-0/target.txt", "--out", "bt"];
    fails(&project.mt(&own), 2, &["lies in the folder"]);
    // Text beside the folders of pairs stays as it is.
    let beside =
        ["augment", "--model", "runs/small", "--input", "valid.de", "--out", ".", "--beam", "1", "--keep", "1"];
    assert!(!stderr(&project.mt(&beside)).contains("lies in the folder"));
    assert!(project.path("text-0/job.json").exists());
    fails(&project.mt(&[&augment[..], &["many.en"]].concat()), 1, &["a file has the name of a folder"]);
    // Draws depend on the line, not on the part or the run.
    let draw = |out: &str| {
        let drawn = ["augment", "--model", "runs/small", "--input", "many.de", "--sample", "--json", "--out", out];
        let output = project.mt(&drawn);
        succeeds(&output);
        let json: Value = serde_json::from_str(stdout(&output).trim()).unwrap();
        assert_eq!(json["counts"]["lines"], LINES);
        assert_eq!(keys(&json), ["counts", "input", "source", "target"].into());
        text(&project, &format!("{out}/text-0/part-000001.jsonl"))
    };
    let first = draw("one");
    assert_eq!(draw("other"), first);
    let lines: Vec<&str> = first.lines().collect();
    assert!(lines.iter().skip(6).zip(&lines).any(|(line, same)| line != same), "all draws are alike");
}

#[test]
fn wrong_flags_are_refused_before_any_work() {
    let project = taught(&[]);
    let distill = |more: &[&str]| project.mt(&[&DISTILL[..], more].concat());
    fails(&distill(&["--keep", "0"]), 2, &["--keep 0"]);
    fails(&distill(&["--keep", "1.5"]), 2, &["--keep 1.5"]);
    fails(&distill(&["--length-tolerance", "0.5"]), 2, &["--length-tolerance 0.5"]);
    fails(&distill(&["--shard", "3/2"]), 2, &["such as 2/8"]);
    fails(&distill(&["--weights", "0.5,0.5"]), 2, &["--weights"]);
    fails(&distill(&["--run-dir", "runs/small"]), 2, &["not begun by mt distill"]);
    for (key, code) in [("data.valid.source=gone", 1), ("train.init=gone", 1), ("tokenizer.path=gone", 1)] {
        let output = distill(&["--set", key]);
        fails(&output, code, &["gone"]);
        assert!(!stderr(&output).contains("translating"), "{}", stderr(&output));
    }
    fails(&distill(&["--long", "error"]), 2, &["--long error"]);
    fails(&project.mt(&["distill", "--teacher", "nowhere", "--config", "student.toml"]), 1, &["nowhere"]);
    let augment = ["augment", "--model", "runs/small", "--input", "many.de", "--out", "bt"];
    fails(&project.mt(&[&augment[..], &["--mark", "two words"]].concat()), 2, &["not one word"]);
    assert!(!project.path("runs/student").exists() && !project.path("bt").exists());
}
