//! The binary as users run it: exit codes, messages, results, good and bad input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const SOURCE: &[&str] =
    &["the cat sleeps", "the dog eats", "a cat eats", "the dog sleeps", "a dog runs", "the cat runs"];
const TARGET: &[&str] = &[
    "die Katze schläft",
    "der Hund frisst",
    "eine Katze frisst",
    "der Hund schläft",
    "ein Hund rennt",
    "die Katze rennt",
];

/// A directory with a small corpus and a configuration.
struct Project {
    folder: TempDir,
}

impl Project {
    fn new() -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        let repeat =
            |lines: &[&str]| lines.iter().cycle().take(120).fold(String::new(), |text, line| text + line + "\n");
        project.write("train.en", repeat(SOURCE));
        project.write("train.de", repeat(TARGET));
        project.write("valid.en", SOURCE.join("\n") + "\n");
        project.write("valid.de", TARGET.join("\n") + "\n");
        project.write("small.toml", CONFIG);
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mt"));
        command.current_dir(self.folder.path()).args(args).env_remove("MT_MODEL").env("NO_COLOR", "1");
        command.stdin(Stdio::null());
        command
    }

    fn mt(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn mt_with_input(&self, args: &[&str], input: &[u8]) -> Output {
        self.write("stdin", input);
        self.command(args).stdin(std::fs::File::open(self.path("stdin")).unwrap()).output().unwrap()
    }

    /// Trains a few updates into runs/small.
    fn train(&self, more: &[&str]) -> Output {
        self.mt(&[&["train", "--config", "small.toml", "-q"], more].concat())
    }
}

const CONFIG: &str = r#"
[data]
train = [{ source = "train.en", target = "train.de" }]
valid = { source = "valid.en", target = "valid.de" }
test = { source = "valid.en", target = "valid.de" }
[tokenizer]
vocab_size = 320
dropout = 0.1
[model]
d_model = 32
d_ff = 64
heads = 2
encoder_layers = 1
decoder_layers = 1
dropout = 0.1
[train]
batch_tokens = 200
max_updates = 12
save_every = 4
log_every = 1
average_last = 2
[train.schedule]
kind = "constant"
learning_rate = 0.003
[valid]
every = 6
"#;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The command failed with this exit code and said all of this.
fn fails(output: &Output, code: i32, says: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    for words in says {
        assert!(text.contains(words), "`{words}` is missing in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{:?}\n{}", output.status, stderr(output));
}

#[test]
fn all_problems_of_a_configuration_are_reported_at_once() {
    let project = Project::new();
    project.write(
        "bad.toml",
        CONFIG.replace("heads = 2", "haeds = 2\nnorm = \"pots\"").replace("log_every = 1", "log_every = -1"),
    );
    let output = project.mt(&["train", "--config", "bad.toml"]);
    fails(&output, 2, &["haeds", "heads", "bad.toml:12", "pots", "post", "bad.toml:13", "log_every"]);
    assert!(!project.path("runs").exists());
}

#[test]
fn set_is_checked_like_a_file() {
    let project = Project::new();
    let output = project.mt(&["train", "--config", "small.toml", "--set", "train.max_update=3"]);
    fails(&output, 2, &["max_update", "max_updates"]);
}

#[test]
fn a_missing_file_is_named() {
    let project = Project::new();
    std::fs::remove_file(project.path("train.de")).unwrap();
    fails(&project.train(&[]), 1, &["train.de", "help:"]);
    fails(&project.mt(&["train", "--config", "nothing.toml"]), 2, &["nothing.toml"]);
}

#[test]
fn unequal_line_counts_are_named() {
    let project = Project::new();
    project.write("train.de", "eins\nzwei\n");
    fails(&project.train(&[]), 1, &["train.en", "120", "train.de", "2"]);
}

#[test]
fn invalid_utf8_is_named_with_its_line() {
    let project = Project::new();
    let mut bytes = std::fs::read(project.path("train.de")).unwrap();
    bytes.splice(0..0, b"gut\nschlecht \xff\n".iter().copied());
    project.write("train.de", bytes);
    fails(&project.train(&[]), 1, &["train.de:2", "UTF-8"]);
}

#[test]
fn nothing_left_after_filtering_is_an_error_with_counts() {
    let project = Project::new();
    fails(&project.train(&["--set", "data.max_length=1"]), 1, &["120", "max_length"]);
}

#[test]
fn bad_pairs_are_counted_and_end_nothing() {
    let project = Project::new();
    for (name, line) in [("train.en", "\n"), ("train.de", "leer\n")] {
        let text = std::fs::read_to_string(project.path(name)).unwrap() + line;
        project.write(name, text);
    }
    let output = project.mt(&["train", "--config", "small.toml"]);
    succeeds(&output);
    assert!(stderr(&output).contains("1 with an empty source"), "{}", stderr(&output));
    assert!(stderr(&output).contains("train.en:121"), "{}", stderr(&output));
}

#[test]
fn an_unwritable_run_directory_is_named() {
    let project = Project::new();
    // Below a file nobody can create a directory, not even root.
    let output = project.train(&["--run-dir", "small.toml/run"]);
    fails(&output, 1, &["small.toml/run", "run directory"]);
}

#[test]
fn a_run_trains_evaluates_and_translates() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let run = project.path("runs/small");
    for file in ["config.toml", "tokenizer.json", "log.jsonl", "model.safetensors", "manifest.json", "best", "last"] {
        assert!(run.join(file).exists(), "{file}");
    }
    let log = std::fs::read_to_string(run.join("log.jsonl")).unwrap();
    let events: Vec<serde_json::Value> = log.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let updates = |event: &str| {
        events.iter().filter(|e| e["event"] == event).map(|e| e["update"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(updates("train"), (1..=12).collect::<Vec<_>>());
    assert_eq!(updates("valid"), [6, 12]);

    // Without --model: the newest run, and said so.
    let output = project.mt(&["eval", "--bleu", "--json"]);
    succeeds(&output);
    let score: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(score["bleu"]["score"].as_f64().is_some());
    assert!(stderr(&output).contains("runs/small"));

    // One line out for each line in, in order; empty lines stay empty; odd lines do not end it.
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
    fails(&project.mt(&["translate", "--model", "runs/small", "--checkpoint", "7", "a dog"]), 1, &["7"]);

    let info = project.mt(&["info", "runs/small", "--json"]);
    let info: serde_json::Value = serde_json::from_str(&stdout(&info)).unwrap();
    let parts = ["source_embedding", "encoder", "decoder"].map(|part| info["parameters"][part].as_u64().unwrap());
    assert_eq!(info["parameters"]["total"].as_u64().unwrap(), parts.iter().sum::<u64>());

    succeeds(&project.mt(&["average", "runs/small", "--last", "2", "--out", "averaged"]));
    assert_eq!(
        std::fs::read(project.path("averaged/model.safetensors")).unwrap(),
        std::fs::read(run.join("model.safetensors")).unwrap()
    );
    succeeds(&project.mt(&["translate", "--model", "averaged", "a dog"]));
}

#[test]
fn a_run_directory_that_exists_is_refused() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    fails(&project.train(&[]), 2, &["runs/small", "--resume", "--overwrite"]);
    succeeds(&project.train(&["--overwrite", "--set", "train.max_updates=2"]));
    std::fs::create_dir(project.path("mine")).unwrap();
    project.write("mine/letter.txt", "dear");
    fails(&project.train(&["--run-dir", "mine", "--overwrite"]), 2, &["mine"]);
    assert!(project.path("mine/letter.txt").exists());
}

#[test]
fn a_model_of_another_version_is_refused() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let manifest = project.path("runs/small/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(
        &manifest,
        text.replacen("\"format\": 1", "\"format\": 2", 1).replacen("\"format\":1", "\"format\":2", 1),
    )
    .unwrap();
    let output = project.mt(&["translate", "--model", "runs/small", "--checkpoint", "final", "a dog"]);
    fails(&output, 1, &["format 2", "update mt"]);
}

#[test]
fn replacing_a_run_loses_it_only_when_the_new_one_can_begin() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let model = file(&project, "runs/small", "model.safetensors");
    let again = ["--overwrite", "--set", "train.seed=2", "--set", "train.max_updates=2"];
    std::fs::rename(project.path("valid.de"), project.path("elsewhere.de")).unwrap();
    fails(&project.train(&again), 1, &["valid.de"]);
    fails(&project.train(&["--dry-run", "--overwrite"]), 1, &["valid.de"]);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    std::fs::rename(project.path("elsewhere.de"), project.path("valid.de")).unwrap();
    project.write("runs/small/notes.txt", "mine");
    succeeds(&project.train(&again));
    assert_ne!(file(&project, "runs/small", "model.safetensors"), model);
    assert_eq!(file(&project, "runs/small", "notes.txt"), b"mine");

    // A configuration of the user's does not make a directory a run.
    std::fs::create_dir(project.path("mine")).unwrap();
    project.write("mine/config.toml", CONFIG);
    fails(&project.train(&["--run-dir", "mine", "--overwrite"]), 2, &["mine"]);
    assert_eq!(file(&project, "mine", "config.toml"), CONFIG.as_bytes());
}

#[test]
fn a_finished_model_outlives_a_resume_that_cannot_be() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let model = file(&project, "runs/small", "model.safetensors");
    std::fs::rename(project.path("runs/small/checkpoints"), project.path("checkpoints")).unwrap();
    fails(&project.train(&["--resume"]), 1, &["no checkpoint"]);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    std::fs::rename(project.path("checkpoints"), project.path("runs/small/checkpoints")).unwrap();

    // Continued, it has the keys it continued with, and says on stdout what it made.
    let output = project.train(&["--resume", "--json", "--set", "train.max_updates=6", "--set", "decode.beam=2"]);
    succeeds(&output);
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(result["update"], 6);
    assert!(result["valid"]["bleu"].is_f64(), "{result}");
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(config.contains("beam = 2") && config.contains("max_updates = 6"), "{config}");
}

#[test]
fn an_output_is_emptied_only_when_there_is_input() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let translate = |args: &[&str]| project.mt(&[&["translate", "--model", "runs/small", "-q"], args].concat());
    project.write("precious.txt", "kept\n");
    fails(&translate(&["--input", "precious.txt", "--output", "precious.txt"]), 2, &["same file"]);
    fails(&translate(&["--input", "nothing.txt", "--output", "precious.txt"]), 1, &["nothing.txt"]);
    assert_eq!(std::fs::read(project.path("precious.txt")).unwrap(), b"kept\n");

    // Compressed, with a byte order mark: the same as plain.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, "\u{FEFF}the cat sleeps\na dog\n".as_bytes()).unwrap();
    project.write("in.gz", packed.finish().unwrap());
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
fn flags_that_would_be_ignored_are_refused() {
    let project = Project::new();
    let score = ["eval", "--hyp", "valid.de", "--ref", "valid.de"];
    fails(&project.mt(&[&score[..], &["--beam", "3"]].concat()), 2, &["--beam", "--hyp"]);
    fails(&project.mt(&[&score[..], &["--model", "x"]].concat()), 2, &["--model", "--hyp"]);
    fails(&project.train(&["--set", "valid.beam=1001"]), 2, &["valid.beam", "1000"]);
}

fn file(project: &Project, run: &str, name: &str) -> Vec<u8> {
    std::fs::read(project.path(run).join(name)).unwrap()
}

#[test]
fn resumed_training_equals_uninterrupted_training() {
    let project = Project::new();
    // A line of the log covers updates before and after each stop.
    let train = |more: &[&str]| succeeds(&project.train(&[&["--set", "train.log_every=5"], more].concat()));
    train(&["--run-dir", "whole"]);
    for stop in ["3", "4", "9"] {
        let run = format!("parts-{stop}");
        train(&["--run-dir", &run, "--set", &format!("train.max_updates={stop}")]);
        train(&["--run-dir", &run, "--resume"]);
        for name in ["model.safetensors", "optimizer.safetensors"] {
            let step = "checkpoints/step-00000012";
            assert_eq!(
                file(&project, "whole", &format!("{step}/{name}")),
                file(&project, &run, &format!("{step}/{name}")),
                "{stop} {name}"
            );
        }
        let losses = |run: &str| -> Vec<(u64, String)> {
            let log = String::from_utf8(file(&project, run, "log.jsonl")).unwrap();
            let entries = log.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
            entries
                .filter(|e| e["event"] == "train")
                .map(|e| (e["update"].as_u64().unwrap(), e["loss"].to_string()))
                .collect()
        };
        assert_eq!(losses("whole"), losses(&run));
    }
    fails(
        &project.train(&["--run-dir", "whole", "--resume", "--set", "model.dropout=0.2"]),
        2,
        &["model.dropout", "0.1", "0.2"],
    );
}

#[test]
fn text_may_move_but_not_change_before_a_resume() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let moved = project.path("moved");
    std::fs::create_dir(&moved).unwrap();
    for name in ["train.en", "train.de", "valid.en", "valid.de"] {
        std::fs::rename(project.path(name), moved.join(name)).unwrap();
    }
    let resume = ["--resume", "--set", "data.root=moved", "--set", "train.max_updates=6"];
    succeeds(&project.train(&resume));
    for (name, what) in [("train.de", "training"), ("valid.en", "validation")] {
        let text = std::fs::read_to_string(moved.join(name)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(0, 1);
        std::fs::write(moved.join(name), lines.join("\n") + "\n").unwrap();
        fails(&project.train(&resume), 2, &[what, "when the run began", "--run-dir"]);
        std::fs::write(moved.join(name), text).unwrap();
    }
    succeeds(&project.train(&resume));
}

#[cfg(unix)]
#[test]
fn interrupt_saves_and_exits_130() {
    let project = Project::new();
    let args = [
        "train",
        "--config",
        "small.toml",
        "--set",
        "train.max_updates=1000000",
        "--set",
        "valid.every=0",
        "--set",
        "train.save_every=1000000",
    ];
    let mut child = project.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_log(&project.path("runs/small/log.jsonl"));
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let checkpoints = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap().count();
    assert_eq!(checkpoints, 1);
    succeeds(&project.mt(&["translate", "--model", "runs/small", "a dog"]));
}

/// Waits until training has logged an update.
#[cfg(unix)]
fn wait_for_log(path: &Path) {
    for _ in 0..600 {
        if std::fs::read_to_string(path).is_ok_and(|text| text.lines().count() > 3) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("no update within 30 s");
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let project = Project::new();
    let output = project.mt(&["train", "--config", "small.toml", "--dry-run"]);
    succeeds(&output);
    for words in ["max_updates = 12", "parameters:", "batches an epoch", "memory", "subwords"] {
        assert!(stdout(&output).contains(words), "{words} in {}", stdout(&output));
    }
    assert!(!project.path("runs").exists());
}

#[test]
fn scores_without_a_model() {
    let project = Project::new();
    let output = project.mt(&["eval", "--hyp", "valid.de", "--ref", "valid.de", "--bleu"]);
    succeeds(&output);
    let line = stdout(&output);
    assert!(line.starts_with("BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:mt-"), "{line}");
    // As sacrebleu has it: there is no 4-gram in lines of three words, so BLEU is 0 even of a perfect translation.
    let numbers = " = 0.00 100.0/100.0/100.0/0.0 (BP = 1.000 ratio = 1.000 hyp_len = 18 ref_len = 18)\n";
    assert!(line.ends_with(numbers), "{line}");
    project.write("short.de", "eins\n");
    fails(
        &project.mt(&["eval", "--hyp", "short.de", "--ref", "valid.de"]),
        1,
        &["short.de has 1 lines", "valid.de has 6"],
    );
    fails(&project.mt(&["eval", "--hyp", "valid.de", "--ref", "valid.de", "--tokenize", "13b"]), 2, &["13b", "13a"]);
    let output = project.mt(&["eval", "--hyp", "valid.de", "valid.en", "--ref", "valid.de", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[1]["hyp"], "valid.en");
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    let text = "Ein Hund </s> frisst ▁ 3,5 kg — 猫が好き 🙂!\n\n the cat\n";
    let tokens = project.mt_with_input(&["tokenize", "--model", "runs/small"], text.as_bytes());
    succeeds(&tokens);
    let back = project.mt_with_input(&["detokenize", "--model", "runs/small"], &tokens.stdout);
    assert_eq!(stdout(&back), text);
}

#[test]
fn no_model_is_an_error_that_says_what_to_do() {
    let project = Project::new();
    fails(&project.mt(&["translate", "hello"]), 1, &["--model", "mt train"]);
    fails(&project.mt(&["translate", "--model", "nowhere", "hello"]), 1, &["nowhere"]);
}
