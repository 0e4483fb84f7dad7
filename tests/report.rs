//! `report.html` and `mt report`: pages that need nothing but themselves.

mod common;

use common::project::{Project, fails, file, stderr, stdout, succeeds};
use serde_json::Value;

/// The data in a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn log(project: &Project, run: &str) -> Vec<Value> {
    let log = String::from_utf8(file(project, run, "log.jsonl")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_has_a_page_that_tells_its_log() {
    let project = Project::new();
    // Markup in the text is text on the page.
    for name in ["valid.en", "valid.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text.replacen(' ', " </script><b> ", 1));
    }
    succeeds(&project.train(&[]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    let data = data(&page);
    assert_eq!(data[0]["log"].as_array().unwrap(), &log(&project, "runs/small"));
    assert_eq!((&data[0]["name"], &data[0]["config"]["model.d_ff"]), (&"small".into(), &"64".into()));
    assert!(
        page.contains("u003c/script") && page.matches("</script>").count() == 2,
        "markup in the data ends the script"
    );
    // It asks nothing of the network: the only addresses are names of formats.
    let addresses: Vec<&str> = page.split("http").skip(1).map(|rest| &rest[..rest.len().min(24)]).collect();
    assert!(addresses.iter().all(|address| address.starts_with("://www.w3.org/2000/svg")), "{addresses:?}");
    for part in ["@TITLE@", "@STYLE@", "@SCRIPT@", "@DATA@"] {
        assert!(!page.contains(part), "{part} is missing");
    }

    // A run that goes on, and one that is replaced.
    succeeds(&project.train(&["--resume", "--set", "train.max_updates=18"]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    assert_eq!(self::data(&page)[0]["log"].as_array().unwrap(), &log(&project, "runs/small"));
    succeeds(&project.train(&["--overwrite", "--set", "valid.every=0"]));
    let page = String::from_utf8(file(&project, "runs/small", "report.html")).unwrap();
    assert_eq!(self::data(&page)[0]["log"].as_array().unwrap(), &log(&project, "runs/small"));
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
    let names: Vec<Value> = data(&page).as_array().unwrap().iter().map(|run| run["name"].clone()).collect();
    assert_eq!(names, ["one/x", "two/x", "y"]);
    let again = project.mt(&["report", "y"]);
    assert_eq!(stdout(&again), "y/report.html\n");

    fails(&project.mt(&["report", "nothing"]), 1, &["nothing/log.jsonl", "name a run directory"]);
    fails(&project.mt(&["report", "y", "--output", "y/log.jsonl"]), 2, &["y/log.jsonl"]);
    fails(&project.mt(&["report", "y", "--output", "no/such/page.html"]), 1, &["no/such/page.html"]);
}

/// What shows a run is not worth the run.
#[test]
fn a_run_goes_on_where_its_pictures_cannot_be_written() {
    let project = Project::new();
    std::fs::create_dir_all(project.path("runs/small")).unwrap();
    succeeds(&project.train(&["--set", "train.max_updates=6"]));
    std::fs::remove_dir_all(project.path("runs/small/tensorboard")).unwrap();
    project.write("runs/small/tensorboard", "a file");
    std::fs::remove_file(project.path("runs/small/report.html")).unwrap();
    std::fs::create_dir(project.path("runs/small/report.html")).unwrap();
    let output = project.mt(&["train", "--config", "small.toml", "--resume"]);
    succeeds(&output);
    for words in
        ["warning: cannot write TensorBoard's events", "runs/small/tensorboard", "warning: cannot write the report"]
    {
        assert!(stderr(&output).contains(words), "{words} in {}", stderr(&output));
    }
    assert_eq!(log(&project, "runs/small").iter().filter(|entry| entry["event"] == "train").count(), 12);
}
