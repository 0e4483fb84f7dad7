//! `report.html` and `mt report`: self-contained pages.

mod common;

use std::process::{Child, Stdio};

use common::project::{Project, fails, file, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};
use serde_json::Value;

/// The data in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_run_has_a_page_that_tells_its_log() {
    let project = Project::new();
    // Markup in the text must not act as markup on the page.
    for name in ["valid.en", "valid.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text.replacen(' ', " </script><b> ", 1));
    }
    succeeds(&project.train(&[]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    let data = data(&page);
    let of_run = &data["runs"][0];
    assert_eq!(of_run["log"].as_array().unwrap(), &project.log("runs/small"));
    assert_eq!((&of_run["name"], &of_run["config"]["model.d_ff"]), (&"small".into(), &"64".into()));
    // Data that the log lacks: the training text, and the attention of the samples.
    assert_eq!((&of_run["corpus"]["pairs"], &of_run["corpus"]["corpora"][0]["pairs"]), (&120.into(), &120.into()));
    let lengths = |side: &str| of_run["corpus"][side]["lengths"]["counts"].as_array().unwrap().iter();
    for side in ["source", "target"] {
        assert_eq!(lengths(side).map(|count| count.as_u64().unwrap()).sum::<u64>(), 120);
    }
    let first = std::fs::read_to_string(project.path("valid.en")).unwrap();
    assert_eq!(of_run["attention"]["sentences"][0]["text"], first.lines().next().unwrap());
    assert_eq!(of_run["attention"]["final"], true);
    assert!(
        page.contains("u003c/script") && page.matches("</script>").count() == 2,
        "markup in the data ends the script"
    );
    // The page needs no network: its only addresses are XML namespaces.
    let plain = page.replace("http-equiv", "");
    let addresses: Vec<&str> = plain.split("http").skip(1).map(|rest| &rest[..rest.len().min(24)]).collect();
    assert!(addresses.iter().all(|address| address.starts_with("://www.w3.org/2000/svg")), "{addresses:?}");
    for part in ["@TITLE@", "@STYLE@", "@SCRIPT@", "@DATA@"] {
        assert!(!page.contains(part), "{part} is missing");
    }

    // The page follows when the run is resumed, and when it is replaced.
    succeeds(&project.train(&["--resume", "--set", "train.max_updates=18"]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    assert_eq!(self::data(&page)["runs"][0]["log"].as_array().unwrap(), &project.log("runs/small"));
    succeeds(&project.train(&["--overwrite", "--set", "valid.every=0"]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    assert_eq!(self::data(&page)["runs"][0]["log"].as_array().unwrap(), &project.log("runs/small"));
    // Nothing is left of the previous run.
    assert_eq!(self::data(&page)["runs"][0]["attention"], Value::Null);
    assert!(!project.path("runs/small/validation/best.txt").exists());
}

/// The translations that a run stores are the ones that were scored.
#[test]
fn a_run_keeps_its_translations_of_the_validation_set() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=40", "--set", "valid.every=10"]));
    let log = project.log("runs/small");
    let best = log.iter().rfind(|entry| entry["best"] == true).unwrap();
    let last = log.iter().find(|entry| entry["event"] == "final").unwrap();
    for (name, entry) in [("best", best), ("final", last)] {
        let hyp = format!("runs/small/validation/{name}.txt");
        let output = project.mt(&[
            "eval",
            "--json",
            "--bleu",
            "--chrf",
            "--hyp",
            &hyp,
            "--ref",
            "runs/small/validation/reference.txt",
        ]);
        succeeds(&output);
        let score: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(score["bleu"]["score"], entry["bleu"], "{name}");
        assert_eq!(score["chrf"]["score"], entry["chrf"], "{name}");
    }
    assert_eq!(
        file(&project, "runs/small", "validation/reference.txt"),
        std::fs::read(project.path("valid.de")).unwrap()
    );
    // Only so many are translated; the loss is that of all.
    let sets = ["train.max_updates=40", "valid.every=10", "valid.max_sentences=2"].map(|set| ["--set", set]).concat();
    succeeds(&project.train(&[&["--overwrite"], &sets[..]].concat()));
    for name in ["best", "final", "reference"] {
        let text = String::from_utf8(file(&project, "runs/small", &format!("validation/{name}.txt"))).unwrap();
        assert_eq!(text.lines().count(), 2, "{name}");
    }
    let losses = |log: Vec<Value>| -> Vec<Value> {
        log.into_iter().filter(|entry| entry["event"] == "valid").map(|entry| entry["loss"].clone()).collect()
    };
    assert_eq!(losses(project.log("runs/small")), losses(log));
}

/// Runs are compared by the tokenizer and case of the first run's validation: without spaces between words, they decide
/// which run is better.
#[test]
fn runs_are_compared_as_they_are_validated() {
    let project = Project::new();
    let lower = ["--set", "valid.tokenize=char", "--set", "tokenizer.lowercase=true"];
    succeeds(
        &project.train(&[&["--run-dir", "a", "--set", "valid.tokenize=char"][..], &["--set", "train.seed=5"]].concat()),
    );
    succeeds(&project.train(&[&["--run-dir", "b"], &lower[..]].concat()));
    succeeds(&project.train(&["--run-dir", "c"]));
    let compared = |runs: &[&str]| {
        succeeds(&project.mt(&[&["report", "--output", "page.html"], runs].concat()));
        data(&std::fs::read_to_string(project.path("page.html")).unwrap())["compared"].clone()
    };
    let said = |runs: &[&str], flags: &[&str]| -> Value {
        let texts: Vec<String> = runs.iter().map(|run| format!("{run}/validation/final.txt")).collect();
        let reference = format!("{}/validation/reference.txt", runs[0]);
        let mut eval = vec!["eval", "--json", "--bleu", "--paired-bs", "--ref", &reference, "--hyp"];
        eval.extend(texts.iter().map(String::as_str));
        let output = project.mt(&[&eval[..], flags].concat());
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    for (runs, flags) in [
        (["a", "b"], &["--tokenize", "char", "--lowercase"][..]),
        (["b", "a"], &["--tokenize", "char", "--lowercase"]),
        (["a", "c"], &["--tokenize", "char"]),
        (["c", "a"], &[]),
    ] {
        let (page, eval) = (compared(&runs), said(&runs, flags));
        for system in 0..2 {
            assert_eq!(page["systems"][system]["bleu"], eval[system]["bleu"], "{runs:?}");
        }
        let says =
            if runs.contains(&"c") { "was validated by BLEU of" } else { "ignore case, because b writes lower case" };
        let notes = page["notes"].as_array().unwrap();
        assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains(says), "{page}");
    }
    let notes = compared(&["c", "a"])["notes"].clone();
    assert_eq!(notes[0], "a was validated by BLEU of char words; here it is of 13a words.");
}

#[test]
fn runs_are_compared_on_one_page() {
    let project = Project::new();
    for run in ["one/x", "two/x", "y"] {
        succeeds(&project.train(&["--run-dir", run]));
    }
    let output = project.mt(&["report", "one/x", "two/x", "y"]);
    succeeds(&output);
    assert_eq!(stdout(&output), "report.html\n");
    let page = std::fs::read_to_string(project.path("report.html")).unwrap();
    let names: Vec<Value> = data(&page)["runs"].as_array().unwrap().iter().map(|run| run["name"].clone()).collect();
    assert_eq!(names, ["one/x", "two/x", "y"]);
    // The runs are the same, so no difference is significant.
    let compared = data(&page)["compared"].clone();
    assert_eq!((&compared["lines"], &compared["systems"][2]["bleu"]["p_value"]), (&6.into(), &1.0.into()));
    let again = project.mt(&["report", "y"]);
    assert_eq!(stdout(&again), "y/report.html\n");

    // For a run that differs, the page agrees with mt eval.
    succeeds(&project.train(&["--run-dir", "z", "--set", "train.max_updates=60", "--set", "train.seed=7"]));
    succeeds(&project.mt(&["report", "y", "z", "--output", "two.html"]));
    let compared = data(&std::fs::read_to_string(project.path("two.html")).unwrap())["compared"].clone();
    let texts = ["y", "z"].map(|run| format!("{run}/validation/final.txt"));
    let mut eval = vec!["eval", "--json", "--bleu", "--chrf", "--paired-bs", "--ref", "valid.de", "--hyp"];
    eval.extend(texts.iter().map(String::as_str));
    let output = project.mt(&eval);
    succeeds(&output);
    let expected: Value = serde_json::from_str(&stdout(&output)).unwrap();
    for system in 0..2 {
        for metric in ["bleu", "chrf"] {
            assert_eq!(compared["systems"][system][metric], expected[system][metric]);
        }
    }
    // Runs with different validation sets are not compared.
    project.write("valid.de", "das\n".repeat(6));
    succeeds(&project.train(&["--run-dir", "other"]));
    succeeds(&project.mt(&["report", "y", "other", "--output", "two.html"]));
    let compared = data(&std::fs::read_to_string(project.path("two.html")).unwrap())["compared"].clone();
    assert_eq!(compared, serde_json::json!({ "notes": ["Not compared: other was validated on another text than y."] }));
    // Those that can be compared are.
    project.write("z/validation/final.txt", "short\n");
    succeeds(&project.mt(&["report", "y", "other", "z", "one/x", "--output", "two.html"]));
    let compared = data(&std::fs::read_to_string(project.path("two.html")).unwrap())["compared"].clone();
    let systems: Vec<&Value> = compared["systems"].as_array().unwrap().iter().map(|system| &system["hyp"]).collect();
    assert_eq!(systems, ["y (final)", "x (final)"]);
    assert!(compared["notes"][1].as_str().unwrap().contains("z has a damaged validation/final.txt: 1 line, and 6 in"));

    // The numbers are there for programs, too.
    let output = project.mt(&["report", "y", "one/x", "--output", "curves.svg", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let made = &project.logged("y", "final")[0];
    let [of_page, of_log] =
        [&json["runs"][0]["final"], made].map(|of| ["update", "perplexity", "bleu"].map(|key| of[key].clone()));
    assert_eq!(of_page, of_log);
    assert_eq!(
        (&json["compared"]["systems"][1]["bleu"]["p_value"], &json["runs"][1]["best"]["update"]),
        (&1.0.into(), &12.into())
    );
    // Curves are also available as pictures.
    for (name, beginning) in [("curves.svg", &b"<svg "[..]), ("curves.png", b"\x89PNG")] {
        succeeds(&project.mt(&["report", "y", "z", "--output", name]));
        assert!(std::fs::read(project.path(name)).unwrap().starts_with(beginning));
    }
    let svg = std::fs::read_to_string(project.path("curves.svg")).unwrap();
    for words in ["perplexity", "BLEU of the validation set", "learning rate"] {
        assert!(svg.contains(words), "{words}");
    }
    project.write("y/log.jsonl", "");
    std::fs::remove_file(project.path("z/log.jsonl")).unwrap();
    let mut transcript = Transcript::new(&project);
    for args in [
        "y --output none.svg",
        "y --output y/log.jsonl",
        "y --output y/model.safetensors",
        "y --output b.json",
        "y --output - --json",
        "y --output no/such/page.html",
        "nothing",
        "z",
    ] {
        transcript.run(&format!("report {args}"));
    }
    assert_transcript!(transcript);
    assert!(!project.path("none.svg").exists());
    let page = project.mt(&["report", "y", "--output", "-"]);
    assert!(stdout(&page).starts_with("<!doctype html>") && stdout(&page).ends_with("</html>\n"));
    let json =
        |args: &[&str]| -> Value { serde_json::from_slice(&project.mt(&[args, &["--json"]].concat()).stdout).unwrap() };
    let one = json(&["report", "y"]);
    assert_eq!(
        (&one["report"], &one["runs"][0]["name"], &one["compared"]),
        (&"y/report.html".into(), &"y".into(), &Value::Null)
    );
}

/// In a run's directory, its own page is written again as training wrote it, but not replaced by one of several runs.
#[test]
fn the_page_of_a_run_is_replaced_only_by_its_own() {
    let project = Project::new();
    for run in ["a", "b"] {
        succeeds(&project.train(&["--run-dir", run]));
    }
    let page = || std::fs::read_to_string(project.path("a/report.html")).unwrap();
    let report = |args: &[&str]| {
        let mut command = project.command(&[&["report"], args].concat());
        command.current_dir(project.path("a")).output().unwrap()
    };
    let before = page();
    let mut transcript = Transcript::new(&project);
    transcript.note("in the run a");
    transcript.record("mt report . ../b", &report(&[".", "../b"]));
    assert_transcript!(transcript);
    assert_eq!(page(), before);
    succeeds(&report(&["."]));
    for part in ["name", "config", "log", "attention"] {
        assert_eq!(data(&page())["runs"][0][part], data(&before)["runs"][0][part], "{part}");
    }
    succeeds(&report(&[".", "../b", "--output", "../both.html"]));
    let both = std::fs::read_to_string(project.path("both.html")).unwrap();
    let names: Vec<Value> = data(&both)["runs"].as_array().unwrap().iter().map(|run| run["name"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    // Nor is another file replaced by a page that nobody named.
    let by_default = || project.mt(&["report", "a", "b"]);
    succeeds(&by_default());
    succeeds(&by_default());
    project.write("report.html", "my own page");
    fails(&by_default(), 2, &["there is another file"]);
    assert_eq!(std::fs::read_to_string(project.path("report.html")).unwrap(), "my own page");
    // Whoever asks for it gets it.
    succeeds(&report(&[".", "../b", "--output", "report.html"]));
    assert_ne!(page(), before);
}

/// As when a page is asked for while training writes it.
#[test]
fn a_page_may_be_written_by_several_processes_at_a_time() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let start = |_| {
        let mut command = project.command(&["report", "runs/small", "--output", "page.html"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<Child> = (0..16).map(start).collect();
    running.into_iter().for_each(|child| succeeds(&child.wait_with_output().unwrap()));
    assert_eq!(data(&std::fs::read_to_string(project.path("page.html")).unwrap())["runs"][0]["name"], "small");
    assert_eq!(project.temporaries("page.html"), [""; 0]);
}

/// Damaged parts are reported and left out; the page is written all the same.
#[test]
fn a_damaged_run_has_a_page() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let log = file(&project, "runs/small", "log.jsonl");
    project.write("runs/small/log.jsonl", [b"null\n3\n\xff\n", &log[..], b"{\"event\": \"tr"].concat());
    project.write("runs/small/corpus.json", "[]");
    project.write("runs/small/attention.json", "{\"update\": 3,");
    let mut transcript = Transcript::new(&project);
    transcript.run("report runs/small");
    assert_transcript!(transcript);
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    let lines = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    assert_eq!(data(&page)["runs"][0]["log"].as_array().unwrap().len(), lines);
}

/// A failure to write pages and pictures must not end the run.
#[test]
fn a_run_goes_on_where_its_pictures_cannot_be_written() {
    let project = Project::new();
    std::fs::create_dir_all(project.path("runs/small")).unwrap();
    succeeds(&project.train(&["--set", "train.max_updates=6"]));
    std::fs::remove_dir_all(project.path("runs/small/tensorboard")).unwrap();
    project.write("runs/small/tensorboard", "a file");
    std::fs::remove_file(project.path("runs/small/report.html")).unwrap();
    std::fs::create_dir(project.path("runs/small/report.html")).unwrap();
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&["train", "--config", "small.toml", "--resume"]));
    assert_transcript!(transcript);
    assert_eq!(project.log("runs/small").iter().filter(|entry| entry["event"] == "train").count(), 12);
}
