//! What somebody else may have left in a run or model directory: links to other places, pipes, and a configuration that
//! asks for more than a model needs.

mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::project::{Project, stderr, succeeds};
use common::transcript::{Transcript, assert_transcript};

const RESUME: &[&str] = &["--resume", "--set", "train.max_updates=16"];

/// What lies below a directory: where a link leads, or the contents of a file.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(contents(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
            found.insert(name, b"a directory".to_vec());
        } else if kind.is_symlink() {
            found.insert(name, std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
        } else {
            found.insert(name, if kind.is_file() { std::fs::read(&path).unwrap() } else { b"a pipe".to_vec() });
        }
    }
    // It says who trained last.
    found.remove(".lock");
    found
}

/// Removes a file or directory.
fn remove(path: &Path) {
    let is_directory = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let _ = if is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// A project with a run in runs/small, and a directory `victims` with a file of each of these names.
fn with_victims(names: &[&str]) -> Project {
    let project = Project::new();
    succeeds(&project.train(&[]));
    std::fs::create_dir_all(project.path("victims/folder")).unwrap();
    for name in names {
        std::fs::write(project.path("victims").join(name.replace('/', "-")), "precious").unwrap();
    }
    project
}

#[test]
fn a_resume_writes_into_files_of_its_run_alone() {
    let names = [
        ".config.toml.new",
        ".log.jsonl.new",
        ".best.tmp",
        ".last.tmp",
        ".model.safetensors.tmp",
        ".manifest.json.tmp",
        "report.html",
        "attention.json",
        "corpus.json",
        "validation/best.txt",
        "validation/final.txt",
        "tensorboard/.events.new",
        "checkpoints/.tmp-step-00000016",
        "checkpoints/.old-step-00000016",
    ];
    let project = with_victims(&names);
    let before = contents(&project.path("victims"));
    let run = project.path("runs/small");
    for name in names {
        remove(&run.join(name));
        symlink(project.path("victims").join(name.replace('/', "-")), run.join(name)).unwrap();
    }
    // A second name of the same file.
    remove(&run.join(".lock"));
    std::fs::hard_link(project.path("victims/corpus.json"), run.join(".lock")).unwrap();
    succeeds(&project.train(RESUME));
    assert_eq!(contents(&project.path("victims")), before);
    assert_eq!(std::fs::read_to_string(run.join("last")).unwrap(), "step-00000016\n");
    assert!(!run.join("report.html").is_symlink() && !run.join("validation/final.txt").is_symlink());

    let mut transcript = Transcript::new(&project);
    for to in ["victims/corpus.json", "victims/new", "victims/folder"] {
        remove(&run.join(".lock"));
        symlink(project.path(to), run.join(".lock")).unwrap();
        transcript.note(&format!("runs/small/.lock leads to {to}"));
        transcript.train(&["--resume", "--set", "train.max_updates=20"]);
    }
    assert_transcript!(transcript);
    assert_eq!(contents(&project.path("victims")), before);
}

#[test]
fn a_link_to_a_directory_in_a_run_needs_the_users_word() {
    let project = with_victims(&[]);
    let run = project.path("runs/small");
    let mut transcript = Transcript::new(&project);
    for name in ["checkpoints", "validation", "tensorboard"] {
        let elsewhere = project.path("elsewhere");
        std::fs::rename(run.join(name), &elsewhere).unwrap();
        symlink(&elsewhere, run.join(name)).unwrap();
        let (before, kept) = (contents(&run), contents(&elsewhere));
        transcript.note(&format!("{name} is a link"));
        transcript.train(RESUME);
        transcript.train(&["--overwrite"]);
        // The configuration in the run is not the user's, with mt's first line or without it.
        let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
        let allowing = config.replace("follow_links = false", "follow_links = true");
        assert_ne!(config, allowing);
        for text in [allowing.as_str(), allowing.split_once('\n').unwrap().1] {
            std::fs::write(run.join("config.toml"), text).unwrap();
            let args = ["train", "--config", "runs/small/config.toml", "--run-dir", "runs/small", "-q"];
            transcript.mt(&[&args, RESUME].concat());
        }
        std::fs::write(run.join("config.toml"), config).unwrap();
        assert!(contents(&run) == before && contents(&elsewhere) == kept, "{name}");
        std::fs::remove_file(run.join(name)).unwrap();
        std::fs::rename(&elsewhere, run.join(name)).unwrap();
    }
    assert_transcript!(transcript);
    let disk = project.path("disk");
    std::fs::rename(run.join("checkpoints"), &disk).unwrap();
    symlink(&disk, run.join("checkpoints")).unwrap();
    succeeds(&project.train(&[RESUME, &["--set", "runtime.follow_links=true"]].concat()));
    assert!(disk.join("step-00000016").exists() && run.join("checkpoints").is_symlink());
    // Reading needs nobody's word.
    succeeds(&project.mt(&["translate", "--model", "runs/small", "--checkpoint", "last", "-q", "the cat sleeps"]));
}

#[test]
fn a_report_is_not_written_through_a_link_that_the_user_has_not_named() {
    let project = with_victims(&["page"]);
    let (page, run) = (project.path("victims/page"), project.path("runs/small/report.html"));
    for to in [page.clone(), project.path("victims/new")] {
        remove(&run);
        symlink(&to, &run).unwrap();
        succeeds(&project.mt(&["report", "runs/small", "-q"]));
        symlink(&to, project.path("report.html")).unwrap();
        succeeds(&project.mt(&["report", "runs/small", "runs/small", "-q"]));
        assert!(!run.is_symlink() && !project.path("report.html").is_symlink());
        std::fs::remove_file(project.path("report.html")).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "precious");
    assert!(!project.path("victims/new").exists());
    // Where the user names a link, it is followed, also to what is not there yet; the permissions stay.
    std::fs::set_permissions(&page, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&page, project.path("named.html")).unwrap();
    symlink("victims/new.html", project.path("dangling.html")).unwrap();
    for (name, to) in [("named.html", "victims/page"), ("dangling.html", "victims/new.html")] {
        succeeds(&project.mt(&["report", "runs/small", "--output", name, "-q"]));
        assert!(project.path(name).is_symlink());
        assert!(std::fs::read_to_string(project.path(to)).unwrap().starts_with("<!"));
    }
    assert_eq!(std::fs::metadata(&page).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Its page may be sent on: what a link leads to would be in it.
#[test]
fn a_report_shows_no_file_that_a_link_leads_to() {
    let project = with_victims(&[]);
    let secret = project.path("victims/secret");
    for (name, text) in [
        ("config.toml", "token = \"s3cr3t\"\n"),
        ("log.jsonl", "{\"event\":\"train\",\"update\":1,\"loss\":2.5,\"s3cr3t\":1}\n"),
        ("corpus.json", "{\"s3cr3t\": 1}"),
        ("attention.json", "{\"s3cr3t\": 1}"),
        ("validation/best.txt", "s3cr3t\n"),
        ("config.toml", "s3cr3t is no TOML"),
    ] {
        let own = project.path("runs/small").join(name);
        let kept = std::fs::read(&own).unwrap();
        std::fs::write(&secret, text).unwrap();
        remove(&own);
        symlink(&secret, &own).unwrap();
        let output = project.mt(&["report", "runs/small", "--output", "page.html"]);
        let page = std::fs::read_to_string(project.path("page.html")).unwrap_or_default();
        assert!(!(stderr(&output) + &page).contains("s3cr3t"), "{name}: {}", stderr(&output));
        remove(&own);
        remove(&project.path("page.html"));
        std::fs::write(&own, kept).unwrap();
    }
    succeeds(&project.mt(&["report", "runs/small", "-q"]));
}

#[test]
fn a_failed_start_leaves_every_file_as_it_was() {
    let project = with_victims(&[]);
    let run = project.path("runs/small");
    let directory = |name: &str| {
        remove(&run.join(name));
        std::fs::create_dir_all(run.join(name).join("inside")).unwrap();
    };
    let whole = project.path("whole");
    copy(&run, &whole);
    // Names, whether they become a directory or else a file, and whether a run that begins anew needs them as they
    // should be.
    for (name, is_directory, matters_to_both) in [
        ("log.jsonl", true, true),
        ("best", true, true),
        ("last", true, true),
        ("model.safetensors", true, true),
        ("manifest.json", true, true),
        ("validation/final.txt", true, true),
        ("validation", false, true),
        ("checkpoints", false, true),
        (".log.jsonl.new", true, true),
        (".config.toml.new", true, false),
        (".best.tmp", true, false),
    ] {
        remove(&run);
        copy(&whole, &run);
        if is_directory {
            directory(name);
        } else {
            remove(&run.join(name));
            std::fs::write(run.join(name), "a file").unwrap();
        }
        let before = contents(&run);
        let commands: &[&[&str]] = if matters_to_both { &[RESUME, &["--overwrite"]] } else { &[RESUME] };
        for more in commands {
            let output = project.train(more);
            assert_eq!(output.status.code(), Some(1), "{name}, {more:?}: {}", stderr(&output));
            assert!(contents(&run) == before, "{name}, {more:?}: {}", stderr(&output));
        }
    }
    remove(&run);
    copy(&whole, &run);
    succeeds(&project.train(RESUME));
}

#[test]
fn pipes_in_the_place_of_files_are_not_waited_for() {
    let project = with_victims(&[]);
    let whole = contents(&project.path("runs/small"));
    let step = "checkpoints/step-00000012";
    for name in [
        "log.jsonl",
        "config.toml",
        "tokenizer.json",
        "best",
        "last",
        "report.html",
        "attention.json",
        "manifest.json",
        "model.safetensors",
        "validation/reference.txt",
        ".lock",
        &format!("{step}/manifest.json"),
        &format!("{step}/model.safetensors"),
        &format!("{step}/state.json"),
    ] {
        project.mkfifo(&format!("runs/small/{name}"));
        // Whatever they find, they end.
        project.mt(&["report", "runs/small", "-q"]);
        project.mt(&["info", "runs/small"]);
        project.mt(&["average", "runs/small", "--last", "2", "--out", "mean", "-q"]);
        remove(&project.path("mean"));
        project.train(&["--resume", "--dry-run"]);
        if let Some(bytes) = whole.get(name) {
            remove(&project.path("runs/small").join(name));
            std::fs::write(project.path("runs/small").join(name), bytes).unwrap();
        }
    }
}

#[test]
fn outputs_do_not_take_the_place_of_what_a_run_has() {
    let project = with_victims(&[]);
    let run = project.path("runs/small");
    succeeds(&project.mt(&["average", "runs/small", "--last", "2", "--out", "mean", "-q"]));
    symlink(&run, project.path("linked")).unwrap();
    symlink("runs/small/log.jsonl", project.path("log")).unwrap();
    std::fs::hard_link(run.join("log.jsonl"), project.path("second")).unwrap();
    let optimizer = "runs/small/checkpoints/step-00000012/optimizer.safetensors";
    std::fs::hard_link(project.path(optimizer), project.path("third")).unwrap();
    project.write("in", "the cat sleeps\n");
    copy(&run, &project.path("other"));
    let before = contents(&run);
    let mut transcript = Transcript::new(&project);
    for name in [
        "runs/small/log.jsonl",
        "runs/small/best",
        "runs/small/report.html",
        "runs/small/.lock",
        "runs/small/.config.toml.new",
        "runs/small/validation/new",
        "runs/small/checkpoints/new",
        optimizer,
        "linked/last",
        "runs/../linked/corpus.json",
        "log",
        "mean/config.toml",
    ] {
        for flag in ["--output", "--attention"] {
            transcript.mt(&["translate", "--model", "runs/small", "-q", flag, name, "the cat sleeps"]);
        }
    }
    for (name, which) in [("second", "final"), ("third", "last")] {
        let args = ["translate", "--model", "runs/small", "--checkpoint", which, "--output", name, "-q", "the cat"];
        transcript.mt(&args);
    }
    let log = "runs/small/log.jsonl";
    for args in [
        &["score", "--model", "mean", "--src", "valid.en", "--tgt", "valid.de", "--output", log][..],
        &["embed", "--model", "mean", "--input", "in", "--output", log],
        &["eval", "--model", "mean", "--bleu", "--output", log],
        &["tokenize", "--model", "mean", "--input", "in", "--output", log],
        &["shortlist", "mean", "--out", log],
        &["report", "other", "--output", "runs/small/report.html"],
        &["average", "runs/small", "--last", "2", "--out", "runs/small/checkpoints/mean"],
        &["average", "runs/small", "--last", "2", "--out", "linked/.checkpoints.old"],
        &["quantize", "mean", "--out", "runs/small/tensorboard/new/deeper"],
        &["export", "mean", "--format", "hf-marian", "--out", "runs/small/validation/new"],
    ] {
        transcript.mt(args);
    }
    assert_transcript!(transcript);
    assert!(contents(&run) == before);
    // Other names in its directory are free, and so is its own page.
    succeeds(&project.mt(&["translate", "--model", "runs/small", "-q", "--output", "runs/small/out", "the cat"]));
    succeeds(&project.mt(&["report", "runs/small", "-q", "--output", "linked/report.html"]));
    for name in ["/dev/null", "/dev/stdout"] {
        succeeds(&project.mt(&["translate", "--model", "runs/small", "-q", "--output", name, "the cat"]));
    }
}

#[test]
fn the_permissions_of_a_runs_files_stay() {
    let project = with_victims(&[]);
    let names = ["config.toml", "log.jsonl", "best", "last", "report.html", "corpus.json", "attention.json"];
    for name in names {
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(project.path("runs/small").join(name), private).unwrap();
    }
    succeeds(&project.train(RESUME));
    for name in names {
        let mode = std::fs::metadata(project.path("runs/small").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

/// The configuration of a model is not the user's.
#[test]
fn a_models_configuration_reads_and_fetches_nothing_unsaid() {
    let project = with_victims(&[]);
    succeeds(&project.mt(&["average", "runs/small", "--last", "2", "--out", "model", "-q"]));
    let config = std::fs::read_to_string(project.path("runs/small/config.toml")).unwrap();
    let [model, manifest] = ["model.safetensors", "manifest.json"].map(|name| project.path("runs/small").join(name));
    // Whoever writes such a configuration makes the manifest fit, or there is none.
    std::fs::remove_file(manifest).unwrap();
    std::fs::remove_file(model).unwrap();
    let write = |text: String| std::fs::write(project.path("runs/small/config.toml"), text).unwrap();
    let pipe = project.mkfifo("pipe");
    let mut transcript = Transcript::new(&project);
    for base in ["/dev/zero", pipe.to_str().unwrap(), "/etc/passwd"] {
        transcript.note(&format!("extends = \"{base}\""));
        write(config.replacen('\n', &format!("\nextends = \"{base}\"\n"), 1));
        for args in [
            &["info", "runs/small"][..],
            &["translate", "--model", "runs/small", "a"],
            &["train", "--config", "runs/small/config.toml", "--resume", "--run-dir", "runs/small"],
            &["train", "--config", "small.toml", "--set", "train.init=\"runs/small\"", "--run-dir", "new"],
        ] {
            transcript.mt(args);
        }
    }
    let set = |name: &str| {
        let at = config.find("[data.test]").unwrap();
        let end = at + config[at..].find("\n\n").unwrap_or(config.len() - at);
        write(format!("{}[data.test]\n{name}{}", &config[..at], &config[end..]));
    };
    let eval = ["eval", "--model", "runs/small", "--bleu", "--offline"];
    for file in ["/dev/zero", pipe.to_str().unwrap()] {
        transcript.note(&format!("the test set is {file}"));
        set(&format!("source = \"{file}\"\ntarget = \"{file}\"\n"));
        transcript.mt(&eval);
        set(&format!("tsv = \"{file}\"\nsource = 1\ntarget = 2\n"));
        transcript.mt(&eval);
    }
    transcript.note("the test set is what the system writes as it is read");
    set("source = \"/proc/self/environ\"\ntarget = \"/proc/self/environ\"\n");
    transcript.mt(&eval);
    let valid = project.path("valid.en");
    set(&format!("source = \"{0}\"\ntarget = \"{0}\"\n", valid.display()));
    transcript.messages(&eval);
    set("hub = \"org/name\"\nsplit = \"test\"\nsource = \"en\"\ntarget = \"de\"\n");
    transcript.mt(&eval);
    assert_transcript!(transcript);
    let output = project.mt(&[&eval[..], &["--trust-model-data"]].concat());
    assert!(!stderr(&output).contains("would be fetched"), "{}", stderr(&output));
}
