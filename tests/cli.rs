//! The binary as users run it: exit codes, messages, results, good and bad input.

mod common;

use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use clap::CommandFactory;
use common::datasets::gzip;
use common::project::{CONFIG, Project, fails, file, sets, stderr, stdout, succeeds, wait_for_log};
use common::transcript::{Transcript, assert_transcript};
use serde_json::{Value, json};

/// As on an older processor; each set is listed with all before it.
#[test]
fn newer_instructions_can_be_left_unused() {
    let project = Project::new();
    let with =
        |limit: &str| project.command(&["info", "--machine", "--json"]).env("MT_MAX_ISA", limit).output().unwrap();
    for (limit, most) in [("baseline", 1), ("avx2", 2), ("", 6)] {
        let output = with(limit);
        succeeds(&output);
        let found: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let sets = found["instructions"].as_array().unwrap();
        assert!((1..=most).contains(&sets.len()) && sets[0] == "baseline", "{found}");
    }
    fails(&with("avx3"), 2, &["invalid value `avx3` for MT_MAX_ISA", "baseline, avx2, avx512"]);
    fails(&project.mt(&["info"]), 2, &["MODEL_DIR|CONFIG"]);
    fails(&project.mt(&["info", "--machine", "runs"]), 2, &["cannot be used with"]);
}

/// What a run or model has is nobody's output, stdin is read once, and stdout gets one result.
#[test]
fn outputs_and_inputs_that_cannot_be_are_refused() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let stdin = ["/dev/stdin", "-"];
    for (args, says) in [
        (&["man", "runs/small/checkpoints"][..], "belongs to a run or model"),
        (&["augment", "--model", "runs/small", "--input", "valid.en", "--out", "runs/small/validation"], "belongs to"),
        (&["translate", "--model", "runs/small", "--attention", "/dev/stdout", "a"], "cannot go to stdout"),
        (&["shortlist", "runs/small", "--out", "/dev/stdout"], "cannot go to stdout"),
        (&["eval", "--hyp", stdin[0], "--ref", stdin[1]], "only one of --src, --ref and --hyp can be stdin"),
        (&["score", "--model", "runs/small", "--src", stdin[0], "--tgt", stdin[1]], "cannot both be stdin"),
        (&["eval", "--hyp", "valid.en", "--ref", "valid.en", "--to", "xx"], "cannot be used with"),
        (&["train", "--config", "small.toml", "--dry-run", "--profile"], "--dry-run makes none"),
        (
            &["translate", "--model", "runs/small", "--model", "runs/small", "--weights", "1e-320,1e300", "a"],
            "beside the others, 1e-320 is nothing",
        ),
    ] {
        fails(&project.mt(args), 2, &[says]);
    }
    // Whatever a state is, nothing panics.
    for state in ["[]", "42", "\"x\"", "null"] {
        let checkpoint = project.path("runs/small/checkpoints/step-00000004");
        std::fs::write(checkpoint.join("state.json"), state).unwrap();
        succeeds(&project.mt(&["info", "runs/small/checkpoints/step-00000004"]));
    }
    // One block of a large file.
    for name in ["config.toml", "log.jsonl"] {
        std::fs::write(project.path("runs/small").join(name), "x").unwrap();
        File::options().write(true).open(project.path("runs/small").join(name)).unwrap().set_len(1 << 40).unwrap();
        fails(&project.mt(&["report", "runs/small"]), 1, &["larger than 1073741824 bytes", name]);
    }
}

/// Their text is what a user reads first.
#[test]
fn help_of_every_command() {
    let project = Project::new();
    let commands = mt::cli::Cli::command();
    for name in commands.get_subcommands().map(|command| command.get_name()).chain([""]) {
        let mut transcript = Transcript::new(&project);
        let args = [name, "--help"];
        transcript.mt(&args[usize::from(name.is_empty())..]);
        if name.is_empty() {
            transcript.run("-h");
            transcript.run("--version");
        }
        assert_transcript!(transcript, format!("help {name}").trim().replace(' ', "_"));
    }
}

#[test]
fn all_problems_of_a_configuration_are_reported_at_once() {
    let project = Project::new();
    project.write(
        "bad.toml",
        CONFIG.replace("heads = 2", "haeds = 2\nnorm = \"pots\"").replace("log_every = 1", "log_every = -1"),
    );
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["train", "--config", "bad.toml"]);
    transcript.mt(&["check", "--config", "bad.toml", "--json"]);
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists());
}

#[test]
fn set_is_checked_like_a_file() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for key in [
        "train.max_update=3",
        "max_updates=3",
        "nothing.at_all=3",
        "train.max_updates",
        "train.max_updates=many",
        "train.max_updates=-1",
        "valid.beam=1001",
        "model.norm=\"pots\"",
        "model.heads=5",
        "tokenizer.tags=[\"<2de>\", <2fr>]",
        "train.optimizer.betas=[0.9, 0.98",
        "train.schedule.kind=cosin",
    ] {
        transcript.with_keys("train", &[key]);
    }
    transcript.with_keys("check", &["train.max_update=3", "valid.beam=1001", "model.activation=relo"]);
    assert_transcript!(transcript);
}

#[test]
fn a_missing_file_is_named() {
    let project = Project::new();
    std::fs::remove_file(project.path("train.de")).unwrap();
    std::fs::remove_file(project.path("valid.en")).unwrap();
    let mut transcript = Transcript::new(&project);
    // All missing files are named, before any work on those that exist.
    transcript.train(&[]);
    for name in ["nothing.toml", "smal.toml", "small", "./smlal.toml"] {
        transcript.mt(&["train", "--config", name]);
    }
    // Not the other side.
    transcript.mt(&["eval", "--hyp", "train.de", "--ref", "valid.de"]);
    // With -v, its causes are told.
    transcript.mt(&["eval", "--hyp", "train.de", "--ref", "valid.de", "-v"]);
    assert_transcript!(transcript);
}

#[test]
fn text_that_cannot_be_trained_on_is_named_with_its_line() {
    let project = Project::new();
    let german = std::fs::read(project.path("train.de")).unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--set", "data.max_length=1"]);
    project.write("train.de", "eins\nzwei\n");
    transcript.train(&[]);
    project.write("train.de", [b"gut\nschlecht \xff\n", &german[..]].concat());
    transcript.train(&[]);
    assert_transcript!(transcript);
}

/// Where a folder may not be entered, it is not known that nothing is there.
#[test]
fn what_may_not_be_looked_at_is_not_said_to_be_missing() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    let long = "x".repeat(300);
    let mut transcript = Transcript::new(&project);
    let mut named = |args: &[&str]| {
        let whole: Vec<String> = args.iter().map(|arg| arg.replace("[LONG]", &long)).collect();
        let output = project.mt(&whole.iter().map(String::as_str).collect::<Vec<_>>());
        let text = stderr(&output).replace(&long, "[LONG]");
        transcript.record(&format!("mt {}", args.join(" ")), &Output { stderr: text.into_bytes(), ..output });
    };
    named(&["translate", "--model", "[LONG]/model", "a"]);
    named(&["translate", "--model", "runs/small/[LONG]", "a"]);
    named(&["train", "--config", "small.toml", "--run-dir", "b", "--set", "train.init=[LONG]"]);
    transcript.note("in runs/small, as a bare name has the working directory as its folder");
    let mut bare = project.command(&["translate", "--model", "model.safetensors", "a"]);
    transcript.command(bare.current_dir(project.path("runs/small")), &[]);
    assert_transcript!(transcript);
}

/// An empty file would be a configuration of defaults.
#[test]
fn a_configuration_that_was_emptied_is_damaged() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4", "--set", "train.average_last=0"]));
    let mut transcript = Transcript::new(&project);
    for text in ["", "[model]\nheads = 2\n"] {
        project.write("runs/small/config.toml", text);
        transcript.train(&["--resume", "--set", "train.max_updates=8"]);
    }
    assert_transcript!(transcript);
}

/// Not even a directory, if it was not there before.
#[test]
fn a_start_that_fails_leaves_nothing() {
    let project = Project::new();
    project.write("train.de", "eins\n");
    std::fs::create_dir_all(project.path("mine")).unwrap();
    let mut transcript = Transcript::new(&project);
    for run in ["runs/new", "mine"] {
        transcript.train(&["--run-dir", run]);
    }
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists() && project.path("mine").exists());
    project.write("train.de", std::fs::read(project.path("train.en")).unwrap());
    succeeds(&project.train(&["--run-dir", "runs/new", "--set", "train.max_updates=1"]));
    succeeds(&project.train(&["--run-dir", "mine", "--set", "train.max_updates=1"]));
}

#[test]
fn bad_pairs_are_counted_and_end_nothing() {
    let project = Project::new();
    for (name, line) in [("train.en", "\n"), ("train.de", "leer\n")] {
        let text = std::fs::read_to_string(project.path(name)).unwrap() + line;
        project.write(name, text);
    }
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("prepare", &[]);
    assert_transcript!(transcript);
    succeeds(&project.train(&[]));
    let plan = project.mt(&["train", "--config", "small.toml", "--dry-run", "--json"]);
    succeeds(&plan);
    let plan: serde_json::Value = serde_json::from_str(&stdout(&plan)).unwrap();
    let dropped = &plan["corpus"]["dropped"]["empty_source"];
    assert_eq!((&dropped["count"], &dropped["line"]), (&1.into(), &121.into()));
    // As `mt info` has them.
    let info: serde_json::Value =
        serde_json::from_str(&stdout(&project.mt(&["info", "runs/small", "--json"]))).unwrap();
    assert_eq!((&plan["parameters"], &plan["run_dir"]), (&info["parameters"], &"runs/small".into()));
}

#[test]
fn a_directory_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;
    let project = Project::new();
    let name = std::ffi::OsStr::from_bytes(b"n\xff");
    let mt = |before: &[&str], after: &[&str]| project.command(before).arg(name).args(after).output().unwrap();
    let short = ["--config", "small.toml", "-q", "--json", "--set", "train.max_updates=2"];
    succeeds(&mt(&["train", "--run-dir"], &short));
    succeeds(&mt(&["info"], &["--json"]));
    succeeds(&mt(&["translate", "--json", "--model"], &["the cat"]));
    let within = std::path::Path::new(name).join("run");
    let prepare = ["prepare", "--config", "small.toml", "--json", "--run-dir"];
    succeeds(&project.command(&prepare).arg(within).output().unwrap());
    // An error names the file in JSON, too.
    let missing = std::ffi::OsStr::from_bytes(b"caf\xe9.toml");
    let output = project.command(&["check", "--json", "--config"]).arg(missing).output().unwrap();
    let said: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((output.status.code(), &said["errors"][0]["file"]), (Some(2), &json!("caf\u{FFFD}.toml")));
    // The text of a configuration in such a folder has a path that config.toml cannot hold.
    std::fs::copy(project.path("small.toml"), project.folder.path().join(name).join("a.toml")).unwrap();
    let output = project.command(&["info"]).arg(std::path::Path::new(name).join("a.toml")).output().unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.record("mt info n\u{FFFD}/a.toml", &output);
    assert_transcript!(transcript);
}

#[test]
fn what_is_no_directory_is_not_said_to_be_missing() {
    let project = Project::new();
    project.mkfifo("pipe");
    let _socket = std::os::unix::net::UnixListener::bind(project.path("socket")).unwrap();
    let mut transcript = Transcript::new(&project);
    for name in ["pipe", "socket", "/dev/null", "small.toml", "nothing"] {
        transcript.mt(&["translate", "--model", name, "x"]);
        transcript.train(&["--set", &format!("train.init={name}")]);
    }
    assert_transcript!(transcript);
}

#[test]
fn too_few_open_files_are_told_from_damage() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.keep=10"]));
    let saved = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap().flatten();
    let names = saved.map(|entry| entry.file_name().into_string().unwrap());
    let updates: Vec<String> = names.map(|name| name.trim_start_matches("step-").to_owned()).collect();
    let updates = updates.join(",");
    let limited = |files: usize| {
        let line = format!(
            "ulimit -n {files}; exec '{}' average runs/small --checkpoints {updates} --out averaged",
            env!("CARGO_BIN_EXE_mt")
        );
        let output = std::process::Command::new("sh").args(["-c", &line]).current_dir(project.folder.path()).output();
        stderr(&output.unwrap())
    };
    // What is open at the beginning differs between systems.
    let refused: Vec<String> = (4..16).map(limited).filter(|said| said.contains("Too many open files")).collect();
    assert!(refused.iter().any(|said| said.contains("raise the limit on open files (ulimit -n)")), "{refused:?}");
    for said in refused {
        assert!(!said.contains("restore"), "{said}");
    }
}

#[test]
fn files_of_a_run_that_are_no_regular_ones_are_not_read() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let log = project.mkfifo("runs/small/log.jsonl");
    let mut transcript = Transcript::new(&project);
    transcript.note("log.jsonl is a pipe");
    transcript.messages(&["info", "runs/small"]);
    transcript.run("report runs/small");
    std::fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &log).unwrap();
    transcript.note("log.jsonl is a link to /dev/zero");
    transcript.messages(&["info", "runs/small"]);
    transcript.run("report runs/small");
    project.mkfifo("runs/small/model.safetensors");
    transcript.note("model.safetensors is a pipe, too");
    transcript.messages(&["info", "runs/small"]);
    transcript.train(&["--resume", "--set", "train.max_updates=20"]);
    assert_transcript!(transcript);
}

#[test]
fn only_a_configuration_of_the_user_may_be_a_pipe() {
    let project = Project::new();
    std::fs::create_dir(project.path("model")).unwrap();
    project.mkfifo("model/config.toml");
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["info", "model"]);
    transcript.mt(&["translate", "--model", "model", "the cat"]);
    transcript.train(&["--set", "train.init=model"]);
    // A run directory that holds one is somebody else's.
    transcript.train(&["--run-dir", "model"]);
    transcript.mt(&["train", "--config", "small.toml", "--config", "/dev/stdin"]);
    project.mkfifo("text.en");
    transcript.with_keys("check", &["data.train=[{source=\"text.en\",target=\"train.de\"}]"]);
    assert_transcript!(transcript);

    let (path, text) = (project.mkfifo("piped.toml"), std::fs::read_to_string(project.path("small.toml")).unwrap());
    let writer = std::thread::spawn(move || std::fs::write(path, text));
    succeeds(&project.mt(&["train", "--config", "piped.toml", "--dry-run", "--json"]));
    writer.join().unwrap().unwrap();
}

#[test]
fn a_run_trains_evaluates_and_translates() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let run = project.path("runs/small");
    for file in ["config.toml", "tokenizer.json", "log.jsonl", "model.safetensors", "manifest.json", "best", "last"] {
        assert!(run.join(file).exists(), "{file}");
    }
    let updates = |event: &str| {
        let entries = project.logged("runs/small", event);
        entries.iter().map(|entry| entry["update"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(updates("train"), (1..=12).collect::<Vec<_>>());
    assert_eq!(updates("valid"), [6, 12]);

    // Without --model, the newest run is used and named.
    let output = project.mt(&["eval", "--bleu", "--json"]);
    assert!(stderr(&output).starts_with("no --model given: taking the newest run\nmodel: runs/small (final)\n"));
    let score: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(score["bleu"]["score"].as_f64().is_some());
    // One line out per line in, in order; empty lines stay empty; odd lines do no harm.
    let input = "the cat sleeps\n\nthe dog </s> eats\n \u{2028} \na\0b\r\nlast".as_bytes();
    let output =
        project.mt_with_input(&["translate", "--model", "runs/small", "-q"], &[input, b"\n\xff\xfe\n"].concat());
    succeeds(&output);
    let lines: Vec<String> = stdout(&output).split('\n').map(str::to_owned).collect();
    assert_eq!(lines.len(), 8, "{lines:?}");
    assert_eq!((lines[1].as_str(), lines[7].as_str()), ("", ""));

    // The same lines alone.
    let alone = project.mt(&["translate", "--model", "runs/small", "-q", "the cat sleeps", "last"]);
    assert_eq!(stdout(&alone).lines().collect::<Vec<_>>(), [lines[0].as_str(), lines[5].as_str()]);
    for flags in [&["--checkpoint", "best"][..], &["--checkpoint", "last"], &["--checkpoint", "12"], &["--beam", "1"]] {
        succeeds(&project.mt(&[&["translate", "--model", "runs/small", "a dog"], flags].concat()));
    }

    let info = project.mt(&["info", "runs/small", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&stdout(&info)).unwrap();
    let parts = ["source_embedding", "encoder", "decoder"].map(|part| info["parameters"][part].as_u64().unwrap());
    assert_eq!(info["parameters"]["total"].as_u64().unwrap(), parts.iter().sum::<u64>());

    let mut transcript = Transcript::new(&project);
    for args in [
        &["--last", "2", "--out", "averaged"][..],
        &["--checkpoints", "12,8,12", "--out", "chosen"],
        &["--checkpoints", "12", "--out", "one"],
        &["--checkpoints", "7,5,4", "--out", "no"],
        &["--last", "2", "--out", "averaged"],
        &["--out", "no"],
    ] {
        transcript.mt(&[&["average", "runs/small"], args].concat());
    }
    transcript.mt(&["translate", "--model", "runs/small", "--checkpoint", "7", "a dog"]);
    assert_transcript!(transcript);
    let told = stdout(&project.mt(&["info", "chosen"]));
    assert!(told.contains("made from: the checkpoints of updates 8, 12 of runs/small (average)"), "{told}");
    assert_eq!(file(&project, "chosen", "model.safetensors"), file(&project, "averaged", "model.safetensors"));
    succeeds(&project.mt(&["translate", "--model", "averaged", "a dog"]));
}

#[test]
fn a_run_directory_that_exists_is_refused() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let mut transcript = Transcript::new(&project);
    transcript.train(&[]);
    transcript.train(&["--overwrite", "--set", "train.max_updates=2"]);
    std::fs::create_dir(project.path("mine")).unwrap();
    project.write("mine/letter.txt", "dear");
    transcript.train(&["--run-dir", "mine", "--overwrite"]);
    // A config.toml alone does not make a directory a run.
    std::fs::rename(project.path("mine/letter.txt"), project.path("mine/config.toml")).unwrap();
    transcript.train(&["--run-dir", "mine", "--overwrite"]);
    assert_transcript!(transcript);
    assert_eq!(file(&project, "mine", "config.toml"), b"dear");
}

#[test]
fn a_model_of_another_version_is_refused() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let manifest = String::from_utf8(file(&project, "runs/small", "manifest.json")).unwrap();
    let newer = manifest.replacen("\"format\": 1", "\"format\": 2", 1).replacen("\"format\":1", "\"format\":2", 1);
    project.write("runs/small/manifest.json", newer);
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["translate", "--model", "runs/small", "--checkpoint", "final", "a dog"]);
    assert_transcript!(transcript);
}

#[test]
fn replacing_a_run_loses_it_only_when_the_new_one_can_begin() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let model = file(&project, "runs/small", "model.safetensors");
    let again = ["--overwrite", "--set", "train.seed=2", "--set", "train.max_updates=2"];
    std::fs::rename(project.path("valid.de"), project.path("elsewhere.de")).unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.train(&again);
    transcript.train(&["--dry-run", "--overwrite"]);
    assert_transcript!(transcript);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    std::fs::rename(project.path("elsewhere.de"), project.path("valid.de")).unwrap();
    project.write("runs/small/notes.txt", "mine");
    succeeds(&project.train(&again));
    assert_ne!(file(&project, "runs/small", "model.safetensors"), model);
    assert_eq!(file(&project, "runs/small", "notes.txt"), b"mine");
}

#[test]
fn an_output_is_emptied_only_when_there_is_input() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    project.write("precious.txt", "kept\n");
    project.write("torn.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\xffnothing");
    let mut transcript = Transcript::new(&project);
    for (command, input, output) in [
        ("translate", "precious.txt", "precious.txt"),
        ("translate", "nothing.txt", "precious.txt"),
        ("translate", "precious.txt", "no/such.txt"),
        ("translate", "torn.gz", "precious.txt"),
        ("tokenize", "torn.gz", "precious.txt"),
        ("embed", "torn.gz", "precious.txt"),
    ] {
        transcript.mt(&[command, "--model", "runs/small", "-q", "--input", input, "--output", output]);
    }
    assert_transcript!(transcript);
    assert_eq!(std::fs::read(project.path("precious.txt")).unwrap(), b"kept\n");

    // Compressed and with a byte order mark, the text gives the same result.
    let translate = |args: &[&str]| project.mt(&[&["translate", "--model", "runs/small", "-q"], args].concat());
    project.write("in.gz", gzip("\u{FEFF}the cat sleeps\na dog\n".as_bytes()));
    project.write("in.txt", "the cat sleeps\na dog\n");
    succeeds(&translate(&["--input", "in.gz", "--output", "a"]));
    succeeds(&translate(&["--input", "in.txt", "--output", "b"]));
    assert_eq!(file(&project, "", "a"), file(&project, "", "b"));
}

#[test]
fn training_outlives_the_reader_of_its_messages() {
    let project = Project::new();
    let mut child = project.command(&["train", "--config", "small.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success());
    assert!(project.path("runs/small/model.safetensors").exists());
}

#[test]
fn wrong_flags_are_refused_with_what_is_right() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for line in [
        "",
        "trian",
        "train",
        "train --config",
        "train --config small.toml --overwrite --resume",
        "train --config small.toml --force",
        "train --config small.toml --max-updates 3",
        "train --config small.toml --threads x",
        "train --config small.toml --devices 1,1",
        "train --config small.toml --devices all --device cpu",
        "train --config small.toml --threads 100000",
        "train --config small.toml --threads -1",
        "train --config small.toml --threads 99999999999999999999",
        "train --config small.toml --seed -1",
        "train --config small.toml -q -v",
        "train --config small.toml --color sometimes",
        "train --config small.toml --device gpu",
        "train --config small.toml --device cuda:",
        "train --config small.toml --device cuda:x",
        "train --config small.toml --device cuda:-1",
        "train --config small.toml --device cuda:+1",
        "info small.toml --device gpu",
        "translate --bogus",
        "translate --beam two x",
        "translate --length-penalty high x",
        "translate --beam 2 --beam 3 x",
        "translate --sample --patience 2 x",
        "translate --top-k 3 x",
        "tokenize --input a b",
        "eval --hyp valid.de --ref valid.de --beam 3",
        "eval --hyp valid.de --ref valid.de --model x",
        "export x --out y --format onnx",
        "average",
        "average x --out y",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists());
}

#[test]
fn a_device_that_cannot_be_used_is_refused_with_a_way_out() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let translate = |device: &str| project.mt(&["translate", "--model", "runs/small", "--device", device, "the cat"]);
    #[cfg(not(any(feature = "cuda", feature = "metal")))]
    {
        let mut transcript = Transcript::new(&project);
        for device in ["cuda", "cuda:7", "metal"] {
            transcript.mt(&["translate", "--model", "runs/small", "--device", device, "the cat"]);
            transcript.train(&["--run-dir", "runs/refused", "--device", device]);
        }
        transcript.train(&["--run-dir", "runs/refused", "--devices", "2"]);
        assert_transcript!(transcript);
        assert!(!project.path("runs/refused").exists());
    }
    // With CUDA, the message names the way out, whatever this machine lacks.
    #[cfg(feature = "cuda")]
    if let output = translate("cuda")
        && !output.status.success()
    {
        fails(&output, 1, &["--device cpu"]);
    }
    for device in ["cpu", "auto"] {
        succeeds(&translate(device));
    }
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["train", "--config", "small.toml", "--dry-run"]);
    transcript.mt(&["check", "--config", "small.toml"]);
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists());
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    let text = "Ein Hund </s> frisst ▁ 3,5 kg — 猫が好き 🙂!\n\nthe cat\n";
    let tokens = project.mt_with_input(&["tokenize", "--model", "runs/small"], text.as_bytes());
    succeeds(&tokens);
    let back = project.mt_with_input(&["detokenize", "--model", "runs/small"], &tokens.stdout);
    assert_eq!(stdout(&back), text);
    // Lines may be arguments, too.
    let lines: Vec<&str> = text.lines().collect();
    let of_arguments = project.mt(&[&["tokenize", "--model", "runs/small"], &lines[..]].concat());
    assert_eq!(of_arguments.stdout, tokens.stdout);
    std::fs::write(project.path("tokens"), &tokens.stdout).unwrap();
    let to_file = ["detokenize", "--model", "runs/small", "--input", "tokens", "--output", "text"];
    assert_eq!(stdout(&project.mt(&to_file)), "");
    assert_eq!(std::fs::read_to_string(project.path("text")).unwrap(), text);
    // But for extra white space.
    let odd = text.replace(' ', "\t ").replace('\n', "  \n");
    assert_eq!(project.mt_with_input(&["tokenize", "--model", "runs/small"], odd.as_bytes()).stdout, tokens.stdout);
}

/// With other merges, there would be pieces that the model has never seen in such text.
#[test]
fn a_damaged_tokenizer_splits_nothing() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    let mut tokenizer: Value = serde_json::from_slice(&file(&project, "runs/small", "tokenizer.json")).unwrap();
    tokenizer["model"]["merges"].as_array_mut().unwrap().pop();
    project.write("runs/small/tokenizer.json", tokenizer.to_string());
    let mut transcript = Transcript::new(&project);
    // The final model has a manifest, and so has the last checkpoint.
    for gone in ["none", "manifest.json"] {
        let _ = std::fs::remove_file(project.path("runs/small").join(gone));
        for command in ["tokenize", "detokenize"] {
            transcript.mt(&[command, "--model", "runs/small", "the cat"]);
        }
    }
    // A directory that holds nothing but a tokenizer says nothing about it.
    std::fs::remove_dir_all(project.path("runs/small/checkpoints")).unwrap();
    transcript.mt(&["tokenize", "--model", "runs/small", "the cat"]);
    assert_transcript!(transcript);
}

/// If the two languages have no tokenizer in common.
#[test]
fn text_is_split_as_source_or_as_target() {
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=1", "tokenizer.joint=false"])));
    let with = |command: &str, more: &[&str], input: &str| {
        let args = [&[command, "--model", "runs/small", "-q"], more].concat();
        let output = project.mt_with_input(&args, input.as_bytes());
        succeeds(&output);
        stdout(&output)
    };
    let words = "die Katze\n";
    assert_eq!(with("tokenize", &["--target"], words), "▁die ▁Katze\n");
    assert_ne!(with("tokenize", &[], words), "▁die ▁Katze\n");
    for side in [&[][..], &["--target"]] {
        assert_eq!(with("detokenize", side, &with("tokenize", side, words)), words, "{side:?}");
    }
}

#[test]
fn no_model_is_an_error_that_says_what_to_do() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for line in [
        "translate hello",
        "translate --model nowhere hello",
        "info nowhere",
        "report nowhere",
        "average nowhere --last 2 --out a",
        "export nowhere --format ct2 --out a",
        "import nowhere --out a",
        "tokenize --tokenizer nowhere hello",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
}

/// A run is as new as its final model or its last checkpoint, whichever is newer.
#[test]
fn without_a_model_the_newest_run_is_taken() {
    let project = Project::new();
    let runs = ["runs/a", "runs/b"];
    for (run, seed) in runs.iter().zip(["train.seed=1", "train.seed=2"]) {
        let args = ["--run-dir", run, "--set", "train.max_updates=2", "--set", "train.save_every=1", "--set", seed];
        succeeds(&project.train(&args));
    }
    let translate = |more: &[&str]| project.command(&[&["translate", "--json", "a cat"], more].concat());
    let answer = |mut command: Command| {
        let output = command.output().unwrap();
        succeeds(&output);
        (stdout(&output), stderr(&output).contains("no --model given: taking the newest run"))
    };
    let answers = runs.map(|run| answer(translate(&["--model", run])).0);
    assert_ne!(answers[0], answers[1]);
    let names =
        ["model.safetensors", "checkpoints/step-00000001/manifest.json", "checkpoints/step-00000002/manifest.json"];
    let date = |run: &str, name: &str, hours: u64| {
        let when = SystemTime::now() - Duration::from_secs(3600 * hours);
        File::options().write(true).open(project.path(run).join(name)).unwrap().set_modified(when).unwrap();
    };
    for newest in [names[0], names[2]] {
        for (run, answers_of_run) in runs.iter().zip(&answers) {
            for (run, name) in runs.iter().flat_map(|run| names.map(|name| (run, name))) {
                date(run, name, 2);
            }
            date(run, newest, 1);
            assert_eq!(answer(translate(&[])), (answers_of_run.clone(), true), "{run}/{newest}");
        }
    }
    // $MT_MODEL comes before the newest run, which is the second, and --model before both.
    let with = |variable: &str, more: &[&str]| {
        let mut command = translate(more);
        command.env("MT_MODEL", variable);
        command
    };
    assert_eq!(answer(with("runs/a", &[])), (answers[0].clone(), false));
    assert_eq!(answer(with("runs/a", &["--model", "runs/b"])), (answers[1].clone(), false));
    assert_eq!(answer(with("", &[])), (answers[1].clone(), true));
    let mut transcript = Transcript::new(&project);
    transcript.command(&mut translate(&[]), &[("MT_MODEL", "nowhere")]);
    assert_transcript!(transcript);
}

#[test]
fn a_profile_is_printed_if_it_is_asked_for() {
    let project = Project::new();
    let run = |more: &[&str]| {
        let args = ["train", "--config", "small.toml", "--overwrite", "--set", "train.max_updates=5"];
        let output = project.mt(&[&args[..], more].concat());
        succeeds(&output);
        (stdout(&output), stderr(&output))
    };
    assert_eq!(run(&[]).0, "");
    let (text, _) = run(&["--profile"]);
    assert!(text.starts_with("profile of 2 updates in "), "{text}");
    let result: Value = serde_json::from_str(&run(&["--json", "--profile"]).0).unwrap();
    assert_eq!(result["profile"]["updates"], 2, "{result}");
    let (text, said) = run(&["--profile", "--set", "train.max_updates=3"]);
    assert!(text.is_empty() && said.contains("nothing to profile"), "{text}{said}");
}

#[test]
fn an_output_that_is_an_input_is_refused() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let model = ["--model", "runs/small", "-q"];
    std::fs::hard_link(project.path("valid.en"), project.path("link")).unwrap();
    std::fs::hard_link(project.path("valid.en"), project.path("stdin")).unwrap();
    let before = ["valid.en", "valid.de"].map(|name| std::fs::read(project.path(name)).unwrap());
    let mut transcript = Transcript::new(&project);
    for (command, more) in [
        ("translate", &["--input", "valid.en", "--output", "link"][..]),
        // A file called `stdin`, not the stream.
        ("translate", &["--input", "stdin", "--output", "stdin"]),
        ("translate", &["--output", "a.gz", "x"]),
        ("tokenize", &["--input", "valid.en", "--output", "link"]),
        ("embed", &["--input", "stdin", "--output", "stdin"]),
        ("eval", &["--output", "valid.de"]),
        ("eval", &["--src", "valid.en", "--ref", "valid.de", "--output", "link"]),
    ] {
        transcript.mt(&[&[command], &model[..], more].concat());
    }
    let mut piped = project.command(&[&["translate", "--output", "link"], &model[..]].concat());
    let input = File::open(project.path("valid.en")).unwrap();
    transcript.record("mt translate --output link < valid.en", &piped.stdin(input).output().unwrap());
    assert_eq!(["valid.en", "valid.de"].map(|name| std::fs::read(project.path(name)).unwrap()), before);
    // Nor is the name of an input taken as text without a word.
    for text in ["valid.en", "runs/small"] {
        succeeds(&transcript.messages(&["tokenize", "--model", "runs/small", text]));
    }
    assert_transcript!(transcript);
}

#[test]
fn a_line_on_stdin_is_answered_while_it_stays_open() {
    use std::io::{BufRead, BufReader, Write};
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let mut command = project.command(&["tokenize", "--model", "runs/small", "-q"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for text in ["the cat", "the dog"] {
        writeln!(stdin, "{text}").unwrap();
        let mut answer = String::new();
        stdout.read_line(&mut answer).unwrap();
        assert_eq!(answer.replace([' ', '\n'], "").replace('▁', " ").trim(), text);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// A checkpoint that was saved after divergence is not used: neither to go back to nor to resume from.
#[test]
fn ruined_checkpoints_are_passed_over() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let resume = |more: &[&str]| {
        let args = ["train", "--config", "small.toml", "--resume", "--set", "train.max_updates=8"];
        project.mt(&[&args[..], more].concat())
    };
    let hot = ["--set", "train.schedule.learning_rate=1e30"];
    let diverged = resume(&[&hot[..], &["--set", "train.save_every=1", "--set", "train.max_skipped=2"]].concat());
    // Update 5 is made, and its checkpoint saved.
    fails(
        &diverged,
        1,
        &[
            "update 6 skipped",
            "going on from the checkpoint of update 4 with 0.5 times",
            "after update 5, 3 updates in a row",
        ],
    );
    succeeds(&resume(&["--set", "train.save_every=100"]));
}

/// The validation loss shows divergence, too.
#[test]
fn a_validation_without_a_loss_goes_back() {
    let project = Project::new();
    let hot = ["--set", "train.schedule.learning_rate=1e30", "--set", "train.max_updates=8"];
    let output = project.train(&[&hot[..], &["--set", "valid.every=1"]].concat());
    fails(
        &output,
        1,
        &["training has diverged", "the loss on the validation set is not finite", "no checkpoint to go back to"],
    );
    succeeds(&project.train(&["--overwrite", "--set", "train.max_updates=4"]));
    let args = ["train", "--config", "small.toml", "--resume", "--set", "valid.every=5"];
    let output = project.mt(&[&args[..], &hot].concat());
    fails(
        &output,
        1,
        &["validation set is not finite: going on from the checkpoint of update 4", "though the learning rate"],
    );
}

/// The learning rate is so high that nothing stays finite, even after going back and halving it.
#[test]
fn diverged_training_ends_where_it_diverged_and_can_go_on() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let args = ["train", "--config", "small.toml", "--resume", "--set", "train.schedule.learning_rate=1e30"];
    let output = project.mt(&args);
    fails(
        &output,
        1,
        &[
            "note: `train.schedule.learning_rate` was 0.003",
            "warning: update 6 skipped: its loss is NaN",
            "train.en: ",
            "11 updates in a row were not finite: going on from the checkpoint of update 4 with 0.5 times the learning \
             rate",
            "diverged: after update 5, 11 updates in a row",
            "though the learning rate has been lowered; 22 updates skipped",
            "--resume",
        ],
    );
    let [skips, returns] = ["skip", "back"].map(|event| project.logged("runs/small", event));
    // Those from before going back are still in the log.
    assert_eq!((skips.len(), returns.len()), (22, 1));
    let lines = skips[0]["lines"][0]["lines"].as_array().unwrap();
    assert!(lines.iter().all(|line| (1..=120).contains(&line.as_u64().unwrap())), "{lines:?}");
    let config = std::fs::read_to_string(project.path("runs/small/config.toml")).unwrap();
    assert!(config.contains("learning_rate = 1e+30"), "{config}");
    // The advice of the message works.
    let advice = ["--set", "train.schedule.learning_rate=0.001", "--set", "train.clip_norm=1"];
    succeeds(&project.train(&[&["--resume"], &advice[..]].concat()));
}

/// Where training would fail at once, `--dry-run` and `mt check` say so too.
#[test]
fn a_run_directory_that_cannot_be_is_refused_beforehand() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for command in [&["train"][..], &["train", "--dry-run"], &["check"]] {
        for place in ["train.en", "train.en/run"] {
            transcript.messages(&[command, &["--config", "small.toml", "--run-dir", place]].concat());
        }
    }
    assert_transcript!(transcript);
}

/// The same of links that lead nowhere, and of file systems that hold no directories though permissions allow it.
#[cfg(target_os = "linux")]
#[test]
fn a_run_directory_that_cannot_be_made_is_refused_beforehand() {
    let project = Project::new();
    std::os::unix::fs::symlink("nowhere", project.path("dangling")).unwrap();
    let mut transcript = Transcript::new(&project);
    for command in [&["train"][..], &["train", "--dry-run"], &["check"]] {
        for place in ["dangling", "dangling/run"] {
            transcript.messages(&[command, &["--config", "small.toml", "--run-dir", place]].concat());
        }
        // What the system says to this differs.
        let output = project.mt(&[command, &["--config", "small.toml", "--run-dir", "/proc/run"]].concat());
        assert!(output.status.code() == Some(1) && stderr(&output).contains("/proc/run"), "{}", stderr(&output));
    }
    assert_transcript!(transcript);
    succeeds(&project.mt(&["check", "--config", "small.toml", "--run-dir", "new/run"]));
    let names = std::fs::read_dir(project.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| name != "new" && !name.to_string_lossy().starts_with(".mt-")));
}

/// What training would refuse, `--dry-run` and `mt check` refuse too.
#[test]
fn a_directory_with_something_else_is_refused_beforehand() {
    let project = Project::new();
    std::fs::create_dir_all(project.path("foreign/checkpoints")).unwrap();
    let mut transcript = Transcript::new(&project);
    for command in [&["train", "--overwrite"][..], &["train", "--resume"], &["train", "--dry-run"], &["check"]] {
        transcript.messages(&[command, &["--config", "small.toml", "--run-dir", "foreign"]].concat());
    }
    assert_transcript!(transcript);
    assert_eq!(std::fs::read_dir(project.path("foreign")).unwrap().count(), 1);
}

/// A script's log of the run, for example. Nothing of it is touched.
#[test]
fn a_run_begins_beside_other_files_if_asked_to() {
    let project = Project::new();
    std::fs::create_dir_all(project.path("job")).unwrap();
    project.write("job/train.log", "mine");
    let short = ["--run-dir", "job", "--set", "train.max_updates=2"];
    let mut transcript = Transcript::new(&project);
    for more in [&[][..], &["--dry-run"], &["--overwrite"]] {
        transcript.train(&[&short, more].concat());
    }
    assert_transcript!(transcript);
    succeeds(&project.mt(&["check", "--config", "small.toml", "--run-dir", "job"]));
    for more in [&["--resume", "--dry-run"][..], &["--resume"], &["--resume"], &["--overwrite"]] {
        succeeds(&project.train(&[&short, more].concat()));
        assert_eq!(file(&project, "job", "train.log"), b"mine");
    }
}

/// Nothing of another program's folder is taken for a run, or replaced.
#[test]
fn a_folder_with_a_configuration_and_checkpoints_of_others_is_no_run() {
    let project = Project::new();
    std::fs::create_dir_all(project.path("checkpoints/epoch-1")).unwrap();
    project.write("config.toml", CONFIG);
    project.write("tokenizer.json", "{}");
    succeeds(&project.mt(&["train", "--config", "config.toml", "-q", "--set", "train.max_updates=1"]));
    assert!(project.path("runs/config/model.safetensors").exists());
    let mut transcript = Transcript::new(&project);
    for flag in ["--overwrite", "--resume"] {
        transcript.train(&["--run-dir", ".", flag]);
    }
    assert_transcript!(transcript);
    assert!(project.path("checkpoints/epoch-1").exists() && file(&project, ".", "config.toml") == CONFIG.as_bytes());
}

/// The line at the top of its configuration is a comment, which other programs do not keep.
#[test]
fn a_run_is_known_without_the_first_line_of_its_configuration() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    let (first, rest) = config.split_once('\n').unwrap();
    assert!(first.starts_with('#'), "{first}");
    project.write("runs/small/config.toml", rest);
    let mut transcript = Transcript::new(&project);
    transcript.train(&[]);
    transcript.with_keys("check", &[]);
    assert_transcript!(transcript);
    let again = ["train", "--config", "runs/small/config.toml", "--resume", "-q", "--set", "train.max_updates=4"];
    succeeds(&project.mt(&again));
    assert_eq!(project.logged("runs/small", "train").last().unwrap()["update"], 4);
    assert!(!project.path("runs/config").exists());
    assert!(file(&project, "runs/small", "config.toml").starts_with(first.as_bytes()));
}

/// What is left of a run is not trained over, as if there had been none.
#[test]
fn a_run_that_has_lost_a_part_is_not_begun_again() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let config = file(&project, "runs/small", "config.toml");
    std::fs::remove_file(project.path("runs/small/config.toml")).unwrap();
    let model = file(&project, "runs/small", "model.safetensors");
    let mut transcript = Transcript::new(&project);
    for command in [&["train", "--resume"][..], &["train", "--overwrite"], &["train", "--dry-run"], &["check"]] {
        transcript.messages(&[command, &["--config", "small.toml"]].concat());
    }
    project.write("runs/small/config.toml", config);
    std::fs::remove_dir_all(project.path("runs/small/checkpoints")).unwrap();
    transcript.train(&["--resume", "--set", "train.max_updates=8"]);
    assert_transcript!(transcript);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    assert!(!project.path("runs/small/checkpoints").exists());
}

#[test]
fn a_model_that_no_machine_holds_is_refused_by_check_too() {
    let project = Project::new();
    let huge = ["model.d_model=65536", "model.d_ff=262144", "model.encoder_layers=100", "runtime.device=cpu"];
    // A table of positions is not forgotten.
    let long = ["model.max_length=65536", "model.d_model=1048576", "model.heads=1048576", "runtime.device=cpu"];
    let mut transcript = Transcript::new(&project);
    for (command, keys) in [("check", &huge), ("train", &huge), ("train", &long)] {
        transcript.messages(&[&[command, "--config", "small.toml"], &sets(keys)[..]].concat());
    }
    assert_transcript!(transcript);
    assert!(!project.path("runs").exists());
}

/// Neither does the number of its parameters wrap around, nor is a table of positions forgotten.
#[test]
fn a_model_of_any_size_is_counted_before_it_is_made() {
    let project = Project::new();
    let keys = ["model.d_model=1048576", "model.heads=1048576", "model.d_k=1048576", "model.d_v=1048576"];
    let widest = sets(&keys);
    let mut transcript = Transcript::new(&project);
    transcript.messages(&[&["train", "--config", "small.toml", "--device", "cpu"], &widest[..]].concat());
    assert_transcript!(transcript);
    let info = project.mt(&[&["info", "small.toml", "--json"], &widest[..]].concat());
    let info: serde_json::Value = serde_json::from_str(&stdout(&info)).unwrap();
    assert!(info["parameters"]["total"].as_u64().unwrap() > 1 << 62, "{info}");
    assert_eq!(info["memory"]["training_bytes"].as_u64(), Some(u64::MAX));
}

/// If the system has no memory left, a message says what to do.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_told() {
    let project = Project::new();
    let shape =
        "--set model.d_model=512 --set model.d_ff=2048 --set model.encoder_layers=6 --set model.decoder_layers=6";
    let train = format!("ulimit -v 600000; exec \"$0\" train --config small.toml --threads 1 -q {shape}");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &train, env!("CARGO_BIN_EXE_mt")]).current_dir(project.folder.path());
    fails(&command.output().unwrap(), 1, &["out of memory: the system refused another ", "train.batch_tokens"]);
}

/// Nothing is saved to a directory other than the locked one.
#[test]
fn a_run_directory_that_is_moved_stops_the_run() {
    ["valid.every=0", "valid.every=200"].into_iter().for_each(stops_when_it_is_moved);
}

fn stops_when_it_is_moved(validation: &str) {
    let project = Project::new();
    let endless = ["--set", "train.max_updates=100000", "--set", validation, "--set", "train.save_every=200"];
    let endless = [&endless[..], &["--set", "valid.patience=0"]].concat();
    let run = ["train", "--config", "small.toml", "-q"];
    let mut command = project.command(&[&run[..], &endless].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
    std::fs::rename(project.path("runs/small"), project.path("runs/moved")).unwrap();
    let output = child.wait_with_output().unwrap();
    fails(&output, 1, &["the run directory was moved or removed", "runs/small", "move it back and give --resume"]);
    assert!(!project.path("runs/small").exists());
    std::fs::rename(project.path("runs/moved"), project.path("runs/small")).unwrap();
    let resumed = project.train(&[
        "--resume",
        "--set",
        "train.max_updates=1",
        "--set",
        "valid.every=0",
        "--set",
        "train.save_every=200",
    ]);
    succeeds(&resumed);
}

/// Given a run's own config.toml, `mt train` uses that run.
#[test]
fn a_run_is_resumed_by_its_own_configuration() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let resume = |updates: &str| {
        let more = ["--resume", "-q", "--set", updates];
        succeeds(&project.mt(&[&["train", "--config", "runs/small/config.toml"], &more[..]].concat()));
        let log = std::fs::read_to_string(project.path("runs/small/log.jsonl")).unwrap();
        assert!(!project.path("runs/config").exists(), "{log}");
        log
    };
    assert!(resume("train.max_updates=14").contains("\"update\":14,"));
    // Without its log it is still that run.
    std::fs::remove_file(project.path("runs/small/log.jsonl")).unwrap();
    let log = resume("train.max_updates=16");
    assert!(log.contains("\"update\":16,") && !log.contains("\"update\":14,"), "{log}");
}

/// Text without spaces is scored by characters if configured, in validation and in `mt eval`; otherwise there is a
/// warning.
#[test]
fn one_model_has_one_bleu() {
    let project = Project::new();
    let target: String = ["猫在睡觉，它很累。", "狗在吃东西，它很饿。"]
        .iter()
        .cycle()
        .take(120)
        .fold(String::new(), |text, line| text + line + "\n");
    project.write("train.de", target);
    project.write("valid.de", "猫在睡觉，它很累。\n狗在吃东西，它很饿。\n".repeat(3));
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &[]);
    transcript.mt(&["eval", "--hyp", "valid.de", "--ref", "valid.de"]);
    let sets = ["--set", "valid.tokenize=zh", "--set", "tokenizer.normalization=none", "--set", "train.average_last=0"];
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &sets[..]].concat()));
    let nfkc = ["--run-dir", "nfkc", "--set", "train.max_updates=1"];
    succeeds(&project.train(&nfkc));
    assert_transcript!(transcript);
    let said = stderr(&project.mt(&["eval", "--model", "nfkc", "--max-length", "2"]));
    assert!(said.contains("warning: 6 of 6 references are not in the form that tokenizer.normalization"), "{said}");
    let bleu = |more: &[&str]| -> Value {
        let output = project.mt(&[&["eval", "--model", "runs/small", "--beam", "1", "--json"], more].concat());
        succeeds(&output);
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let validated = project.logged("runs/small", "valid").into_iter().map(|entry| entry["bleu"].as_f64().unwrap());
    let best = validated.fold(f64::NEG_INFINITY, f64::max);
    let scored = bleu(&[]);
    assert_eq!(scored["bleu"]["score"].as_f64(), Some(best), "{scored}");
    assert!(scored["bleu"]["signature"].as_str().unwrap().contains("tok:zh"));
    assert!(bleu(&["--tokenize", "13a"])["bleu"]["signature"].as_str().unwrap().contains("tok:13a"));
}

/// A model that writes lower case is scored without case, as in validation, and a message says so.
#[test]
fn a_model_of_lower_case_is_scored_without_case() {
    let project = Project::new();
    let sets = ["--set", "tokenizer.lowercase=true", "--set", "train.max_updates=150", "--set", "valid.every=150"];
    succeeds(&project.train(&sets));
    let mut transcript = Transcript::new(&project);
    let output = transcript.messages(&["eval", "--model", "runs/small", "--beam", "1", "--json"]);
    assert_transcript!(transcript);
    let bleu = &serde_json::from_str::<Value>(&stdout(&output)).unwrap()["bleu"];
    assert!(bleu["signature"].as_str().unwrap().contains("case:lc"));
    // Seven of the 18 reference words are nouns, which would be wrong if case counted.
    assert!(bleu["precisions"][0].as_f64().unwrap() > 90.0, "{bleu}");
}

/// Text that is not a sentence has no part in learning the vocabulary: it would leave no pieces for the others.
#[test]
fn a_line_without_end_does_not_change_the_vocabulary() {
    let project = Project::new();
    succeeds(&project.train(&["--run-dir", "plain"]));
    for name in ["train.en", "train.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text + &"qx".repeat(10_000) + "\n");
    }
    succeeds(&project.train(&["--run-dir", "odd"]));
    assert_eq!(file(&project, "odd", "tokenizer.json"), file(&project, "plain", "tokenizer.json"));
    assert_eq!(file(&project, "odd", "model.safetensors"), file(&project, "plain", "model.safetensors"));
}

#[test]
fn a_checkpoint_is_no_model_but_tells_which_run_is() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let checkpoint = "runs/small/checkpoints/step-00000012";
    let mut transcript = Transcript::new(&project);
    for line in [
        "average runs/small/checkpoints/step-00000012 --last 1 --out a",
        "info runs/small/checkpoints/step-00000012/model.safetensors",
        "info runs/small/checkpoints/step-00000099",
        "info runs/small --checkpoint 99",
        "info runs/small/checkpoints/step-00000012 --checkpoint last",
        "info small.toml --checkpoint last",
        "train --config small.toml --run-dir other --set train.init=nowhere",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
    let info = |path: &str| -> Value { serde_json::from_str(&stdout(&project.mt(&["info", path, "--json"]))).unwrap() };
    let (of_checkpoint, of_run) = (info(checkpoint), info("runs/small"));
    for key in ["parameters", "config", "tensors"] {
        assert_eq!(of_checkpoint[key], of_run[key]);
    }
    // A run is known by its configuration, too, and from any directory.
    assert_eq!(info("runs/small/config.toml")["tensors"], of_run["tensors"]);
    for (directory, path) in [("runs/small/checkpoints", "step-00000012"), (checkpoint, "."), ("runs", "small")] {
        let output = project.command(&["info", path, "--json"]).current_dir(project.path(directory)).output().unwrap();
        let info: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(info["tensors"], of_run["tensors"], "{path} in {directory}");
    }
    let here = ["translate", "--model", "checkpoints/step-00000012", "-q", "the cat"];
    let translate = |args: &[&str], directory: &str| {
        let output = project.command(args).current_dir(project.path(directory)).output().unwrap();
        succeeds(&output);
        stdout(&output)
    };
    assert_eq!(translate(&here, "runs/small"), translate(&["translate", "--model", checkpoint, "-q", "the cat"], "."));
    let history = &of_checkpoint["history"];
    assert_eq!(
        (&history["checkpoint"], &history["updates"], &history["run"]),
        (&json!("whole"), &json!(12), &json!("runs/small"))
    );
    // --checkpoint names the same.
    let named = |path: &str, which: &str| project.mt(&["info", path, "--json", "--checkpoint", which]);
    for which in ["last", "12"] {
        assert_eq!(serde_json::from_str::<Value>(&stdout(&named("runs/small", which))).unwrap(), of_checkpoint);
    }
    assert_eq!(serde_json::from_str::<Value>(&stdout(&named("runs/small", "final"))).unwrap(), of_run);
}

/// `--checkpoint` does what the path of that checkpoint does, and something else than the final model.
#[test]
fn a_checkpoint_that_is_named_is_the_one_that_is_used() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let checkpoint = "runs/small/checkpoints/step-00000004";
    let ways =
        [("flag", "runs/small", &["--checkpoint", "4"][..]), ("path", checkpoint, &[]), ("final", "runs/small", &[])];
    let written = |command: &[&str], file_name: &str| {
        ways.map(|(name, model, more)| {
            let out = format!("{}-{name}", command[0]);
            succeeds(&project.mt(&[&[command[0], model, "-q", "--out", &out], &command[1..], more].concat()));
            file(&project, &out, file_name)
        })
    };
    let printed = |command: &[&str]| {
        ways.map(|(_, model, more)| {
            let models = ["--model", model].repeat(command.iter().filter(|word| **word == "--paired-bs").count() + 1);
            let output = project.mt(&[command, &models, more].concat());
            succeeds(&output);
            stdout(&output).replace(checkpoint, "runs/small").into_bytes()
        })
    };
    for (what, [flag, path, last]) in [
        ("quantize", written(&["quantize"], "model.safetensors")),
        ("export", written(&["export", "--format", "ct2"], "model.bin")),
        ("embed", printed(&["embed", "-q", "a cat"])),
        ("eval", printed(&["eval", "-q", "--chrf", "--json"])),
        ("paired eval", printed(&["eval", "-q", "--chrf", "--json", "--paired-bs"])),
    ] {
        assert!(flag == path && flag != last, "{what}");
    }
}

#[test]
fn results_are_told_to_programs() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    common::marian::write(&project.path("opus"), |_, _| ());
    let result = |args: &[&str]| {
        let output = project.mt_with_input(&[args, &["--json"]].concat(), b"the cat\n\na dog\n");
        succeeds(&output);
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    for (args, keys) in [
        (&["quantize", "runs/small", "--out", "int8"][..], &["out", "bytes_before", "bytes_after"][..]),
        (&["shortlist", "runs/small", "--out", "list"], &["out", "average_tokens", "pairs"]),
        (&["export", "runs/small", "--format", "ct2", "--out", "ct2"], &["out", "format"]),
        (&["import", "opus", "--out", "imported"], &["out", "parameters"]),
    ] {
        let found = result(args);
        assert_eq!(found.len(), 1, "{args:?}: {found:?}");
        assert_eq!(found[0].as_object().unwrap().keys().collect::<Vec<_>>(), keys, "{args:?}");
        assert_eq!(found[0]["out"], args[args.len() - 1]);
    }
    // Of 120 pairs, every twelfth.
    assert_eq!(result(&["shortlist", "runs/small", "--out", "short", "--sample-lines", "10"])[0]["pairs"], 10);
    let of = |command: &str| result(&[command, "--model", "runs/small"]);
    let is_list =
        |value: &Value, is_item: fn(&Value) -> bool| value.as_array().is_some_and(|list| list.iter().all(is_item));
    let tokens = of("tokenize");
    assert!(tokens.len() == 3 && tokens.iter().all(|line| is_list(line, Value::is_string)), "{tokens:?}");
    assert_eq!((&tokens[0][0], &tokens[1]), (&"▁the".into(), &json!([])));
    assert_eq!(of("detokenize"), ["thecat", "", "adog"]);
    let vectors = of("embed");
    let has_width = |line: &Value| line.as_array().is_some_and(|line| line.len() == 32);
    assert!(vectors.len() == 3 && vectors.iter().all(|line| has_width(line) && is_list(line, Value::is_number)));
}

/// A long file that is no configuration gives few messages, not one per line.
#[test]
fn a_file_that_is_no_configuration_is_told_in_a_few_lines() {
    let project = Project::new();
    project.write("novel", "It was a dark and stormy night = [\n".repeat(100_000));
    let mut transcript = Transcript::new(&project);
    transcript.mt(&["check", "--config", "novel"]);
    transcript.mt(&["translate", "--model", "novel", "x"]);
    assert_transcript!(transcript);
}

/// The translations of a validation that is undone do not replace the best ones.
#[test]
fn the_best_translations_stay_the_best_ones() {
    let project = Project::new();
    let sets = ["--set", "valid.metric=loss", "--set", "valid.every=4", "--set", "train.save_every=1000"];
    succeeds(&project.train(&[&sets[..], &["--set", "train.max_updates=4"]].concat()));
    let best = || std::fs::read_to_string(project.path("runs/small/validation/best.txt")).unwrap();
    let before = best();
    // The weights grow until nothing is finite, but only after the next validation.
    let rate = ["--resume", "--set", "train.schedule.learning_rate=1e8", "--set", "train.max_updates=100"];
    let output = project.mt(&[&["train", "--config", "small.toml"], &sets[..], &rate].concat());
    let back = "11 updates in a row were not finite: going on from the checkpoint of update 4";
    fails(&output, 1, &["valid at 8", back, "training has diverged"]);
    assert_eq!(best(), before);
}

/// One line of the text is unlike all others, and the message names it.
#[test]
fn a_jump_of_the_loss_is_told_with_its_lines() {
    let project = Project::new();
    for (name, odd) in [("train.en", "the house burns"), ("train.de", "zwölf Boxkämpfer jagen Viktor quer")] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        let lines = text.lines().enumerate().map(|(i, line)| if i == 59 { odd } else { line });
        project.write(name, lines.map(|line| line.to_owned() + "\n").collect::<String>());
    }
    // One or two pairs per update; the first hundred updates establish what is usual.
    let keys =
        ["train.batch_tokens=32", "train.max_updates=300", "valid.every=0", "train.save_every=300", "model.dropout=0"];
    let output = project.mt(&[&["train", "--config", "small.toml"], &sets(&keys)[..]].concat());
    succeeds(&output);
    let jumps = project.logged("runs/small", "spike");
    assert!(!jumps.is_empty());
    for jump in &jumps {
        assert!(jump["lines"][0]["lines"].as_array().unwrap().contains(&60.into()), "{jump}");
        assert!(jump["loss"].as_f64() > jump["usual"].as_f64(), "{jump}");
    }
    assert!(stderr(&output).contains("note: the loss of update "), "{}", stderr(&output));
}

#[test]
fn info_tells_of_training_and_of_damage() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let text = stdout(&project.mt(&["info", "runs/small"]));
    for words in [
        "updates: 12",
        "target tokens: ",
        "best validation: BLEU ",
        " at update ",
        "final model: whole",
        "final model is: ",
        "; validation loss ",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(!text.contains("null"), "{text}");
    project.write("runs/small/model.safetensors", "short");
    assert!(stdout(&project.mt(&["info", "runs/small"])).contains("final model: model.safetensors is damaged"));
    let mut transcript = Transcript::new(&project);
    transcript.run("eval --model runs/small");
    assert_transcript!(transcript);
}

/// A vocabulary that `--set` changes is not the run's.
#[test]
fn info_of_a_run_s_configuration_follows_what_is_set() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let embedding = |set: &str| -> u64 {
        let output = project.mt(&["info", "runs/small/config.toml", "--json", "--set", set]);
        succeeds(&output);
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        json["tensors"]["source_embedding.weight"][0].as_u64().unwrap()
    };
    let learnt = embedding("model.d_ff=128");
    assert!(learnt <= 320, "{learnt}");
    assert_eq!(embedding("tokenizer.dropout=0.2"), learnt);
    assert_eq!(embedding("tokenizer.vocab_size=1000"), 1000);
}

/// A small model with many of the options that `mt info` shows.
const VARIANT: &str = r#"
[tokenizer]
vocab_size = 320
joint = false
[model]
d_model = 32
d_ff = 64
heads = 2
d_v = 12
encoder_layers = 2
decoder_layers = 1
norm = "pre"
norm_kind = "std"
norm_eps = 1e-9
positions = "learned"
max_length = 120
output_bias = true
attention_dropout = 0.2
activation = "gelu"
"#;

#[test]
fn info_shows_parameters_and_modules_of_a_configuration() {
    let project = Project::new();
    project.write("variant.toml", VARIANT);
    let mut transcript = Transcript::new(&project);
    let text = stdout(&transcript.mt(&["info", "variant.toml"]));
    let rotary = ["--set", "model.positions=rotary", "--set", "model.tie=none", "--set", "model.dropout=0"];
    transcript.mt(&[&["info", "variant.toml"], &rotary[..]].concat());
    assert_transcript!(transcript);

    // -v and JSON list all tensors; a tied matrix counts once.
    let verbose = stdout(&project.mt(&["info", "variant.toml", "-v"]));
    let tensors = verbose.strip_prefix(&text).unwrap().strip_prefix("\ntensors:\n").unwrap();
    let json: Value = serde_json::from_str(&stdout(&project.mt(&["info", "variant.toml", "--json"]))).unwrap();
    let mut count = 0;
    for (line, (name, shape)) in tensors.lines().zip(json["tensors"].as_object().unwrap()) {
        assert_eq!(line.split_whitespace().collect::<String>(), format!("{name}{shape}"));
        count += shape.as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).product::<u64>();
    }
    assert_eq!(tensors.lines().count(), json["tensors"].as_object().unwrap().len());
    assert_eq!(json["parameters"]["total"], count);
    assert_eq!(json["tied"], json!({ "output_projection": "target_embedding" }));
}

#[test]
fn validation_text_that_is_too_long_is_named_with_its_line() {
    let project = Project::new();
    project.write("valid.en", format!("a cat\na{}\n", " dog".repeat(40)));
    project.write("valid.de", "eine Katze\nein Hund\n");
    let mut transcript = Transcript::new(&project);
    transcript.with_keys("check", &["model.max_length=21", "data.max_length=20"]);
    assert_transcript!(transcript);
}

#[test]
fn colours_are_as_asked() {
    let project = Project::new();
    // The parser of the arguments would colour its messages without being asked to.
    let eager = |args: &[&str]| {
        let output = project.command(args).env_remove("NO_COLOR").env("CLICOLOR_FORCE", "1").output().unwrap();
        stdout(&output) + &stderr(&output)
    };
    let wrong = ["translate", "--bogus"];
    assert!(eager(&wrong).contains("\u{1b}["));
    for args in [&["translate", "--color", "never", "--bogus"][..], &["translate", "--bogus", "--color=never"]] {
        let said = eager(args);
        assert!(said.contains("--bogus") && !said.contains('\u{1b}'), "{said}");
    }
    assert!(!eager(&["translate", "--color", "never", "--help"]).contains('\u{1b}'));
    // After `--` there is only text.
    assert!(eager(&["translate", "--bogus", "--", "--color=never"]).contains('\u{1b}'));

    // Without a terminal, messages are coloured only if that is asked for.
    let score = ["eval", "--hyp", "valid.de", "--ref", "valid.de", "--score-only", "--json"];
    for (args, label, colour) in [(&score[..], "warning", 33), (&["info", "none"], "error", 31)] {
        let said = |more: &[&str]| stderr(&project.mt(&[args, more].concat()));
        assert!(said(&[]).starts_with(&format!("{label}: ")), "{}", said(&[]));
        let coloured = said(&["--color", "always"]);
        assert!(coloured.starts_with(&format!("\u{1b}[1;{colour}m{label}\u{1b}[0m: ")), "{coloured:?}");
    }
    for args in [&["translate", "--color", "always", "--bogus"][..], &["eval", "--color=always", "--help"]] {
        let output = project.mt(args);
        assert!((stdout(&output) + &stderr(&output)).contains("\u{1b}["), "{args:?}");
    }
}

#[test]
fn what_is_damaged_is_told_even_if_it_is_to_be_quiet() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    // There is no run yet; later, there is a note on the configuration.
    for more in [&[][..], &["--set", "train.clip_norm=0.2"], &["--set", "train.batch_tokens=2000", "--force"]] {
        succeeds(&transcript.train(&[&["--resume"], more].concat()));
    }
    succeeds(&transcript.messages(&["info", "runs/small", "-q"]));

    project.write("runs/small/checkpoints/step-00000008/state.json", "{}");
    let more = ["--resume", "--force", "--set", "train.max_updates=14", "--set", "train.average_last=3"];
    succeeds(&transcript.train(&more));

    let log = file(&project, "runs/small", "log.jsonl");
    project.write("runs/small/log.jsonl", [b"null\n", &log[..]].concat());
    project.write("runs/small/checkpoints/step-00000014/state.json", "{}");
    succeeds(&transcript.messages(&["report", "runs/small", "-q"]));
    succeeds(&transcript.messages(&["info", "runs/small", "-q"]));
    assert_transcript!(transcript);
}
