//! Training that is killed at any moment and resumed loses no checkpoint and gives the result of an uninterrupted run.

mod common;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::project::{Project, Running, file, stderr, succeeds};
use mt::checkpoint;
use mt::rng::key;
use serde_json::Value;

/// Updates between checkpoints.
const EVERY: u64 = 3;

/// The small run, with a checkpoint every few updates and a validation now and then.
fn settings(updates: u64) -> Vec<String> {
    [
        ("train.max_updates", updates.to_string()),
        ("train.save_every", EVERY.to_string()),
        ("train.keep", "2".to_owned()),
        ("valid.every", "50".to_owned()),
    ]
    .iter()
    .flat_map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")])
    .collect()
}

fn start(project: &Project, run: &str, settings: &[String]) -> Running {
    let mut args = vec!["train", "--config", "small.toml", "-q", "--resume", "--run-dir", run];
    args.extend(settings.iter().map(String::as_str));
    Running::start(project.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()))
}

/// Temporary names that exist while a checkpoint is being saved, and must not be left afterwards.
fn strays(run: &Path) -> Vec<String> {
    let names =
        [run.to_path_buf(), run.join("checkpoints")].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let names = names.flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.') && name != ".lock").collect()
}

fn is_saving(run: &Path) -> bool {
    let entries = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-"))
}

/// Kills the process after a delay, which with `saving` starts when it first writes a checkpoint. Returns whether it
/// was writing one when killed, or `None` if it had ended before.
fn kill(child: &mut Child, run: &Path, saving: bool, delay: Duration) -> Option<bool> {
    let started = Instant::now();
    while saving && !is_saving(run) {
        if child.try_wait().unwrap().is_some() || started.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    std::thread::sleep(delay);
    let ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    // A half-written checkpoint is still there.
    (!ended).then(|| is_saving(run))
}

/// The entries of a log without their timings.
fn entries(project: &Project, run: &str) -> Vec<Value> {
    let mut entries = project.log(run);
    for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
        for field in ["seconds", "tokens_per_second", "saving_seconds", "validation_seconds", "memory"] {
            entry.remove(field);
        }
    }
    entries
}

/// The state of a checkpoint without its times.
fn state(project: &Project, run: &str, step: u64) -> Value {
    let bytes = file(project, run, &format!("checkpoints/step-{step:08}/state.json"));
    let mut state: Value = serde_json::from_slice(&bytes).unwrap();
    for times in ["/seconds", "/window/since"] {
        *state.pointer_mut(times).unwrap() = Value::Null;
    }
    state
}

/// Asserts that two runs have the same bytes in every file without times, and else the same entries.
fn assert_same_run(project: &Project, whole: &str, killed: &str, step: u64) {
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let name = format!("checkpoints/step-{step:08}/{name}");
        assert_eq!(file(project, whole, &name), file(project, killed, &name), "{killed}: {name}");
    }
    for name in ["model.safetensors", "tokenizer.json", "best", "last"] {
        // Not every run validates.
        let [whole, killed] = [whole, killed].map(|run| std::fs::read(project.path(run).join(name)).ok());
        assert_eq!(whole, killed, "{name}");
    }
    assert_eq!(state(project, whole, step), state(project, killed, step), "{killed}");
    let (whole, killed) = (entries(project, whole), entries(project, killed));
    assert_eq!(whole.len(), killed.len());
    for (whole, killed) in whole.iter().zip(&killed) {
        assert_eq!(whole, killed);
    }
}

/// Kills runs at `kills` moments, half of them aimed at a save; at more if too few hit one because the machine is busy,
/// and then as soon as a save is seen.
fn kill_and_resume(kills: u64, updates: u64) {
    let project = Project::new();
    let settings = settings(updates);
    succeeds(&start(&project, "whole", &settings).output());
    let (mut done, mut in_saves, mut most_repeated, mut number) = (0, 0, 0, 0);
    // Kills after a save began but before it made its directory.
    let mut unseen = 0;
    let is_enough = |done: u64, in_saves: u64| done >= kills && (4 * in_saves >= kills || done >= 4 * kills);
    while !is_enough(done, in_saves) {
        number += 1;
        let name = format!("killed-{number}");
        let run = project.path(&name);
        let newest = || checkpoint::newest_valid(&run).unwrap();
        loop {
            let before = newest().0.map(|(step, _)| step);
            let mut child = start(&project, &name, &settings);
            if is_enough(done, in_saves) {
                succeeds(&child.output());
                break;
            }
            let draw = |what: &str, range: u64| key(1, what, &[done]) % range;
            let aimed = done % 2 == 0 || done >= kills;
            // Starting takes about 100 ms, an update about 5, a save about 10.
            let latest = if done < kills { 12_000 } else { 1 };
            let delay = Duration::from_micros(if aimed { draw("save", latest) } else { draw("any", 600_000) });
            let Some(was_saving) = kill(&mut child, &run, aimed, delay) else { break };
            done += 1;
            in_saves += u64::from(was_saving);

            let (after, warnings) = newest();
            let after = after.map(|(step, _)| step);
            assert!(warnings.is_empty(), "a kill left a damaged checkpoint: {warnings:?}");
            assert!(after >= before, "killed at {before:?}, and only {after:?} is left");
            let logged = if run.join("log.jsonl").exists() { logged(&run) } else { 0 };
            let repeated = logged.saturating_sub(after.unwrap_or(0));
            // At most one interval, and another one trained while a checkpoint was being written: the next save waits
            // for it.
            assert!(repeated <= 2 * EVERY, "{repeated} updates to be repeated (saving: {was_saving})");
            unseen += u64::from(repeated > EVERY && !was_saving);
            most_repeated = most_repeated.max(repeated);
        }
        assert_eq!(strays(&run), [""; 0]);
        assert_same_run(&project, "whole", &name, updates);
    }
    // How many were unseen depends on how busy the machine is; with nothing else on it, it is a few of two hundred.
    println!(
        "{done} kills, {in_saves} of them in a save; {number} runs; at most {most_repeated} updates repeated; {unseen} \
         kills lost more than an interval, and met no save"
    );
    assert!(in_saves * 4 >= kills, "only {in_saves} of {done} kills met a save");
}

/// The last update in a log.
fn logged(run: &Path) -> u64 {
    let log = String::from_utf8_lossy(&std::fs::read(run.join("log.jsonl")).unwrap()).into_owned();
    let updates = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["update"].as_u64());
    updates.max().unwrap_or(0)
}

#[test]
fn killed_anywhere_nothing_is_lost() {
    kill_and_resume(12, 150);
}

/// To run it: `--ignored --nocapture`.
#[test]
#[ignore = "some minutes"]
fn killed_anywhere_two_hundred_times() {
    kill_and_resume(200, 600);
}

/// Every way of training with its own state, killed and resumed.
#[test]
fn resuming_is_exact_in_every_setting() {
    let project = Project::new();
    project.write("more.en", "the old cat sleeps\na young dog runs\n");
    project.write("more.de", "die alte Katze schläft\nein junger Hund rennt\n");
    let corpora = "data.train=[{ source = \"train.en\", target = \"train.de\" }, \
                   { source = \"more.en\", target = \"more.de\", weight = 3.0 }]";
    let ways: &[&[&str]] = &[
        &["train.accumulate=3"],
        // Epochs of a few batches, so that kills come at their borders too.
        &["train.batch_tokens=600", "train.save_every=1"],
        &[corpora],
        &["valid.every=2", "valid.patience=4"],
        &["train.exponential_average=0.9", "train.average_last=0"],
        &["train.log_every=7", "tokenizer.dropout=0.0"],
        // The first kill comes at the checkpoint of update 0.
        &["valid.on_start=true", "valid.every=3", "data.monitor=[{ source = \"more.en\", target = \"more.de\" }]"],
        &["runtime.threads=1"],
        &["runtime.threads=2", "model.attention_dropout=0.2", "model.activation_dropout=0.2"],
    ];
    for (number, way) in ways.iter().enumerate() {
        let mut settings = settings(40);
        settings.extend(way.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
        let (whole, killed) = (format!("whole-{number}"), format!("killed-{number}"));
        let began = Instant::now();
        succeeds(&start(&project, &whole, &settings).output());
        let most = (began.elapsed() / 6).as_micros() as u64;
        let run = project.path(&killed);
        let mut kills = 0;
        for part in 0..4 {
            let mut child = start(&project, &killed, &settings);
            let delay = Duration::from_micros(key(2, "delay", &[part, number as u64]) % most);
            kills += usize::from(kill(&mut child, &run, true, delay).is_some());
        }
        let output = start(&project, &killed, &settings).output();
        succeeds(&output);
        let last = checkpoint::newest_valid(&project.path(&whole)).unwrap().0.unwrap().0;
        assert!(last > 4, "{way:?}: {}", stderr(&output));
        // The last of them may end before they are killed.
        assert!(kills > 0, "{way:?}: no run was killed before it ended");
        assert_same_run(&project, &whole, &killed, last);
    }
}
