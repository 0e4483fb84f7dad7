//! A resumed run is the same as one that was never stopped, and damage is found.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::project::{
    CONFIG, PRECISION, Project, Running, fails, file, floats, send, sets, stderr, stdout, succeeds, wait_for_log,
};
use common::skipped;
use common::transcript::{Transcript, assert_transcript};
use mt::ops::simd::{self, InstructionSet};
use safetensors::SafeTensors;

#[test]
fn resumed_training_equals_uninterrupted_training() {
    let project = Project::new();
    // Log lines cover updates before and after each stop.
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
            let entries = project.logged(run, "train").into_iter();
            entries.map(|e| (e["update"].as_u64().unwrap(), e["loss"].to_string())).collect()
        };
        assert_eq!(losses("whole"), losses(&run));
    }
}

#[test]
fn what_a_resume_may_not_change_is_named() {
    let project = Project::new();
    succeeds(&project.train(&["--run-dir", "whole"]));
    let mut transcript = Transcript::new(&project);
    // --force is not suggested where it cannot help.
    for more in ["model.dropout=0.2", "model.d_ff=48", "model.d_ff=48 --force"] {
        transcript.run(&format!("train --config small.toml -q --run-dir whole --resume --set {more}"));
    }
    let resume = ["train", "--config", "small.toml", "--run-dir", "whole", "--resume", "--set", "model.dropout=0.2"];
    succeeds(&transcript.warnings(&[&resume[..], &["--set", "train.max_updates=13", "--force"]].concat()));

    // With --force, batch sizes and the text may change, too.
    let lines = std::fs::read_to_string(project.path("valid.en")).unwrap();
    project.write("valid.en", lines.replacen("cat", "dog", 1));
    let sets = ["--set", "train.batch_tokens=2000", "--set", "valid.max_sentences=2", "--set", "train.max_updates=15"];
    transcript.mt(&[&resume[..], &sets].concat());
    succeeds(&transcript.warnings(&[&resume[..], &sets, &["--force"]].concat()));
    // Other filters leave other text.
    let sets = [&sets[..4], &["--set", "data.max_length=5", "--set", "train.max_updates=16", "--force"]].concat();
    succeeds(&transcript.warnings(&[&resume[..], &sets].concat()));
    assert_transcript!(transcript);
}

/// The place is where the user states the value now, or could: not the record of the old one.
#[test]
fn a_refused_change_is_shown_where_it_is_stated() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let mut transcript = Transcript::new(&project);
    let resume = ["--resume", "--set", "train.max_updates=4"];
    for more in [&["--set", "model.dropout=0.2"][..], &["--seed", "7"], &["--set", "train.init=nowhere", "--force"]] {
        transcript.train(&[&resume, more].concat());
    }
    project.write("small.toml", CONFIG.replace("heads = 2\n", "heads = 4\n").replace("batch_tokens = 200\n", ""));
    // What no one states comes from a preset, or could be stated in its section.
    transcript.train(&[&resume[..], &["--set", "model.preset=transformer-small"]].concat());
    transcript.with_keys("check", &[]);
    assert_transcript!(transcript);
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
    let mut transcript = Transcript::new(&project);
    for name in ["train.de", "valid.en"] {
        let text = std::fs::read_to_string(moved.join(name)).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(0, 1);
        std::fs::write(moved.join(name), lines.join("\n") + "\n").unwrap();
        transcript.note(&format!("two lines of {name} have changed places"));
        transcript.train(&resume);
        std::fs::write(moved.join(name), text).unwrap();
    }
    assert_transcript!(transcript);
    succeeds(&project.train(&resume));
    // With the run's own configuration too, which has absolute paths.
    std::fs::rename(moved, project.path("again")).unwrap();
    let own = ["train", "--config", "runs/small/config.toml", "--resume", "--set", "data.root=again"];
    succeeds(&project.mt(&[&own[..], &["--set", "train.max_updates=7"]].concat()));
}

/// So may the columns of a table, and the model that training began with.
#[test]
fn tables_and_initial_models_may_move_before_a_resume() {
    let project = Project::new();
    let lines = ["valid.en", "valid.de"].map(|name| String::from_utf8(file(&project, ".", name)).unwrap());
    let table: String = lines[0].lines().zip(lines[1].lines()).map(|(s, t)| format!("{s}\t{t}\n")).collect();
    for folder in ["here", "there"] {
        std::fs::create_dir(project.path(folder)).unwrap();
        project.write(&format!("{folder}/set.tsv"), &table);
    }
    succeeds(&project.train(&["--set", "train.max_updates=1", "--run-dir", "here/model"]));
    let begun = |folder: &str, more: &[&str]| {
        let set = format!("{{ name = \"m\", tsv = \"{folder}/set.tsv\", source = 1, target = 2 }}");
        let (test, monitor) =
            (format!("data.test={set}").replace("name = \"m\", ", ""), format!("data.monitor=[{set}]"));
        let init = format!("train.init={folder}/model");
        let config = "[data]\ntrain = [{ source = \"train.en\", target = \"train.de\" }]\n\
                      valid = { source = \"valid.en\", target = \"valid.de\" }\n[train]\nmax_updates = 2\n";
        project.write("tuned.toml", config);
        let args = ["train", "--config", "tuned.toml", "--run-dir", "runs/tuned"];
        project.mt(&[&args[..], &sets(&[&test, &monitor, &init]), more].concat())
    };
    succeeds(&begun("here", &[]));
    let model = file(&project, "runs/tuned", "model.safetensors");
    std::fs::rename(project.path("here/model"), project.path("there/model")).unwrap();
    let output = begun("there", &["--resume"]);
    succeeds(&output);
    assert!(stderr(&output).contains("its final model stays as it is"), "{}", stderr(&output));
    assert!(file(&project, "runs/tuned", "model.safetensors") == model);
}

/// The arguments of a training run that only a signal ends.
fn endless() -> Vec<&'static str> {
    let keys = ["train.max_updates=1000000", "valid.every=0", "train.save_every=1000000"];
    [&["train", "--config", "small.toml"], &sets(&keys)[..]].concat()
}

/// Each signal is sent twice, as `timeout` and impatient users do; the second must not prevent saving.
#[test]
fn a_signal_saves_and_ends_while_the_directory_is_locked() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-XCPU", 143), ("-HUP", 143)] {
        if signal == "-HUP" && common::is_ignored(libc::SIGHUP) {
            return common::skipped("a closed terminal", "this runs under nohup, which the program respects");
        }
        let project = Project::new();
        let args = endless();
        let mut child = Running::start(project.command(&args).stderr(Stdio::piped()));
        wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
        let id = child.id().to_string();
        let mut transcript = Transcript::new(&project);
        for second in ["--resume", "--overwrite"] {
            let refused = stderr(&transcript.train(&[second]));
            assert!(refused.contains(&format!("process {id} ")), "{refused}");
        }
        assert_transcript!(transcript, "a_directory_that_another_process_trains_in");
        for _ in 0..2 {
            send(signal, &child);
        }
        let output = child.output();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("stopping and saving"), "{said}");
        let checkpoints = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap().count();
        assert_eq!(checkpoints, 1);
        succeeds(&project.mt(&["translate", "--model", "runs/small", "a dog"]));
    }
}

/// It can be given to a shell as it is, whatever the name of the run directory.
#[test]
fn the_command_that_continues_a_stopped_run_works() {
    let project = Project::new();
    let mut args = endless();
    args.extend(["--run-dir", "runs/it's a run", "--json", "--offline"]);
    let mut child = Running::start(project.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()));
    wait_for_log(&mut child, &project.path("runs/it's a run/log.jsonl"));
    send("-INT", &child);
    let output = child.output();
    fails(&output, 130, &["continue with `mt train --config "]);
    let said = stderr(&output);
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(result["update"].as_u64().unwrap() > 0 && result["model"].is_null(), "{result}");
    let command = said.split_once("continue with `mt ").unwrap().1.split_once('`').unwrap().0;
    assert!(command.ends_with(" --offline"), "{command}");
    let line = format!("\"$0\" {command} --set train.max_updates=1");
    let mut shell = Command::new("sh");
    shell.args(["-c", &line, env!("CARGO_BIN_EXE_mt")]).current_dir(project.folder.path()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    succeeds(&output);
    assert!(stderr(&output).contains("resuming at update "), "{line}: {}", stderr(&output));
}

/// A training run that has just begun its first update, with one thread, so that it takes long on any machine.
fn begun(project: &Project, keys: &[&str]) -> (Running, impl Iterator<Item = String>) {
    let args = [&["train", "--config", "small.toml", "--threads", "1"], &sets(keys)[..]].concat();
    let mut child = Running::start(project.command(&args).stderr(Stdio::piped()));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // This is the last message before the first update; a signal before it would end the run without an update.
    assert!(lines.any(|line| line.contains("largest batch")));
    std::thread::sleep(Duration::from_millis(500));
    (child, lines)
}

/// Starts an endless run, calls `meddle` on its directory after some updates, then stops it and returns its output.
fn meddled_with(project: &Project, meddle: impl Fn(&Path)) -> Output {
    let mut child = Running::start(project.command(&endless()).stderr(Stdio::piped()));
    wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
    meddle(&project.path("runs/small"));
    send("-TERM", &child);
    child.output()
}

#[test]
fn files_that_were_removed_are_written_again() {
    let project = Project::new();
    let output = meddled_with(&project, |run| {
        for name in ["tokenizer.json", "config.toml"] {
            std::fs::remove_file(run.join(name)).unwrap();
        }
    });
    let again = "of the run in runs/small was removed or changed: it is written again";
    fails(
        &output,
        143,
        &["tokenizer", "configuration"].map(|what| format!("the {what} {again}")).each_ref().map(String::as_str),
    );
    succeeds(&project.mt(&["translate", "--model", "runs/small", "a dog"]));
    succeeds(&project.train(&["--resume", "--set", "train.max_updates=1"]));
}

/// A checkpoint would otherwise vouch for a tokenizer that is not its own.
#[test]
fn a_tokenizer_that_was_changed_is_written_again() {
    let project = Project::new();
    let path = project.path("runs/small/tokenizer.json");
    let original = std::cell::RefCell::new(String::new());
    let output = meddled_with(&project, |_| {
        original.replace(std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, original.borrow().replace("▁the", "▁teh")).unwrap();
    });
    fails(&output, 143, &["the tokenizer of the run in runs/small was removed or changed: it is written again"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), *original.borrow());
    let resumed = project.train(&["--resume", "--set", "train.max_updates=1"]);
    succeeds(&resumed);
    assert!(!stderr(&resumed).contains("damaged"), "{}", stderr(&resumed));
}

/// A signal while the largest batch is tried: nothing of the run that would be replaced or continued is gone.
#[test]
fn a_signal_before_training_leaves_a_run_as_it_is() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let model = file(&project, "runs/small", "model.safetensors");
    // Pairs so long that a batch of them takes seconds.
    let [source, target] = ["en", "de"].map(|side| {
        let text = String::from_utf8(file(&project, "", &format!("train.{side}"))).unwrap();
        text.lines().map(|line| [line].repeat(24).join(" ") + "\n").collect::<String>()
    });
    project.write("long.en", source);
    project.write("long.de", target);
    let long = r#"data.train=[{source="long.en",target="long.de"}]"#;
    let keys = [
        long,
        "data.max_length=200",
        "train.batch_tokens=20000",
        "model.d_model=256",
        "model.d_ff=1024",
        "model.encoder_layers=3",
    ];
    let args = [&["train", "--config", "small.toml", "--overwrite", "--threads", "1"], &sets(&keys)[..]].concat();
    let mut child = Running::start(project.command(&args).stderr(Stdio::piped()));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("model: ")));
    send("-INT", &child);
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert!(said.iter().any(|line| line.contains("the run directory is as it was")), "{said:?}");
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    succeeds(&project.mt(&["translate", "--model", "runs/small", "a dog"]));
}

/// If a lock was removed and taken by another process, the first process saves nothing over the other's files.
#[test]
fn a_lock_that_was_removed_is_not_lost() {
    let project = Project::new();
    let output = meddled_with(&project, |run| {
        std::fs::remove_file(run.join(".lock")).unwrap();
        std::fs::write(run.join(".lock"), "77\n").unwrap();
    });
    fails(&output, 1, &["process 77 is training in this run directory", "runs/small"]);
    assert!(!project.path("runs/small/checkpoints").exists());
}

/// The signals arrive in the middle of a batch that takes long.
#[test]
fn a_later_second_signal_ends_at_once() {
    let project = Project::new();
    for name in ["train.en", "train.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text.repeat(20));
    }
    let (mut child, lines) = begun(&project, &["train.batch_tokens=1000000", "model.d_ff=4096"]);
    for _ in 0..2 {
        send("-INT", &child);
        std::thread::sleep(Duration::from_millis(800));
    }
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(said.iter().any(|line| line.contains("stopped at once; --resume")), "{said:?}");
    assert!(!project.path("runs/small/checkpoints").exists(), "a batch of 2,400 pairs was over in 2 s");
}

/// SIGUSR1 and SIGXCPU say that another signal is to come: that one does not end at once what they have begun, nor do
/// they themselves after another.
#[test]
fn an_announced_signal_ends_as_cleanly_as_the_announcement() {
    let project = Project::new();
    // The run ends by printing its result, which nobody reads where there is no room for it.
    let (_reader, writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    while (&writer).write(&[b'\n'; 512]).is_ok() {}
    writer.set_nonblocking(false).unwrap();
    let mut command = project.command(&endless());
    command.arg("--json").stdout(OwnedFd::from(writer)).stderr(Stdio::piped());
    let mut child = Running::start(&mut command);
    wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
    for signal in ["-USR1", "-INT", "-XCPU"] {
        send(signal, &child);
        // Longer than signals count as the same one.
        std::thread::sleep(Duration::from_millis(700));
        assert!(child.try_wait().unwrap().is_none(), "{signal} has ended it");
    }
    assert_eq!(std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap().count(), 1);
    send("-INT", &child);
    let output = child.output();
    fails(&output, 130, &["stopping and saving", "stopped at once"]);
}

/// An update of many batches is abandoned, and made when the run is resumed.
#[test]
fn a_signal_does_not_wait_for_an_update_of_many_batches() {
    let project = Project::new();
    let (mut child, lines) = begun(&project, &["train.accumulate=100000"]);
    send("-USR1", &child);
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(143), "{said:?}");
    assert!(said.iter().any(|line| line.contains("stopped by a signal before the first update")), "{said:?}");
    succeeds(&project.train(&["--resume", "--force", "--set", "train.max_updates=2"]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_terminal_is_nothing_under_nohup() {
    let project = Project::new();
    let binary = env!("CARGO_BIN_EXE_mt");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", binary]).args(endless());
    let mut child = command.current_dir(project.folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
    send("-HUP", &child);
    std::thread::sleep(Duration::from_secs(1));
    // Without `nohup` it would have saved and ended within milliseconds.
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    send("-TERM", &child);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
}

#[test]
fn a_finished_model_outlives_a_resume_that_cannot_be() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let model = file(&project, "runs/small", "model.safetensors");
    std::fs::rename(project.path("runs/small/checkpoints"), project.path("checkpoints")).unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--resume"]);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    std::fs::rename(project.path("checkpoints"), project.path("runs/small/checkpoints")).unwrap();

    // A resumed run stores the settings it was resumed with, and reports its result on stdout.
    let output = project.train(&["--resume", "--json", "--set", "train.max_updates=6", "--set", "decode.beam=2"]);
    succeeds(&output);
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(result["update"], 6);
    assert!(result["valid"]["bleu"].is_f64(), "{result}");
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(config.contains("beam = 2") && config.contains("max_updates = 6"), "{config}");

    // If there is nothing left to do, it says so.
    let resume = ["train", "--config", "small.toml", "--resume", "--set", "train.max_updates=3"];
    succeeds(&transcript.warnings(&resume));
    transcript.messages(&[&resume[..], &["-q"]].concat());
    // Nothing was trained in another way: only the limit and what the final model is made of are recorded.
    let other = ["train.schedule.learning_rate=0.3", "train.average_last=1", "decode.beam=3"];
    succeeds(&project.mt(&[&resume[..], &sets(&other)].concat()));
    let changed = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    assert!(changed.contains("average_last = 1") && changed.contains("beam = 3"), "{changed}");
    let trained = |config: &str| -> Vec<String> {
        let changed = ["average_last", "beam", "max_updates"];
        let is_kept = |line: &&str| !changed.iter().any(|key| line.starts_with(key));
        config.lines().filter(is_kept).map(str::to_owned).collect()
    };
    assert_eq!(trained(&changed), trained(&config));
    let own = ["train", "--config", "runs/small/config.toml", "--resume", "--set", "train.max_updates=7"];
    succeeds(&transcript.warnings(&own));
    assert_transcript!(transcript);
}

/// The metric can be chrF as well as BLEU; the best by one is not compared with values of the other.
#[test]
fn the_best_model_is_the_best_by_the_metric_of_now() {
    let project = Project::new();
    let sets = ["--set", "valid.every=10", "--set", "train.max_updates=60"];
    succeeds(&project.train(&[&sets[..], &["--set", "valid.metric=chrf"]].concat()));
    let validations = || project.logged("runs/small", "valid");
    let number = |entry: &serde_json::Value, key: &str| entry[key].as_f64().unwrap();
    let mut best: Option<(f64, f64)> = None;
    for entry in validations() {
        let now = (number(&entry, "chrf"), -number(&entry, "loss"));
        assert_eq!(entry["best"], best.is_none_or(|best| now > best), "{entry}");
        best = if entry["best"] == true { Some(now) } else { best };
    }
    let info = || stdout(&project.mt(&["info", "runs/small"]));
    assert!(info().contains(&format!("best validation: chrF2 {:.2} at update", best.unwrap().0)), "{}", info());

    let other = ["--resume", "--set", "valid.metric=loss", "--set", "valid.every=10", "--set", "train.max_updates=70"];
    let mut transcript = Transcript::new(&project);
    transcript.train(&other);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &other[..], &["--force"]].concat()));
    assert_transcript!(transcript);
    let last = validations().pop().unwrap();
    assert_eq!((&last["update"], &last["best"]), (&70.into(), &true.into()));
    assert!(info().contains(&format!("best validation: loss {:.4} at update 70", number(&last, "loss"))), "{}", info());
}

/// A learning rate that validations have lowered survives a restart.
#[test]
fn a_plateau_lowers_the_rate_also_of_a_run_that_goes_on() {
    let project = Project::new();
    project.write(
        "plateau.toml",
        "extends = \"small.toml\"\n[train]\nsave_every = 7\n[train.schedule]\nkind = \"plateau\"\nlearning_rate = 0.1\n\
         factor = 0.5\npatience = 2\n[valid]\nevery = 2\nmetric = \"loss\"\npatience = 0\n",
    );
    let train = |run: &str, updates: &str, more: &[&str]| {
        let updates = format!("train.max_updates={updates}");
        let output =
            project.mt(&[&["train", "--config", "plateau.toml", "--run-dir", run, "--set", &updates], more].concat());
        succeeds(&output);
        stderr(&output)
    };
    let said = train("whole", "60", &[]);
    for updates in ["19", "33", "60"] {
        train("parts", updates, if updates == "19" { &[] } else { &["--resume"] });
    }
    let rates = |run: &str| -> Vec<(u64, f64)> {
        let train = project.logged(run, "train").into_iter();
        train.map(|e| (e["update"].as_u64().unwrap(), e["learning_rate"].as_f64().unwrap())).collect()
    };
    // Recomputed from the log: the rate falls after two validations in a row without a new best, then the count starts
    // again.
    let (mut rate, mut stale, mut since_best, mut wanted) = (0.1, 0, 0, Vec::new());
    for entry in project.log("whole") {
        if entry["event"] == "train" {
            wanted.push((entry["update"].as_u64().unwrap(), rate));
        } else if entry["event"] == "valid" {
            (stale, since_best) = if entry["best"] == true { (0, 0) } else { (stale + 1, since_best + 1) };
            assert_eq!(entry["stale"], since_best, "{entry}");
            if stale == 2 {
                (rate, stale) = (rate * 0.5, 0);
            }
        }
    }
    assert_eq!(rates("whole"), wanted);
    let lowered = said.matches("the learning rate is lowered to").count();
    assert!(lowered > 1 && rate == 0.1 * 0.5f64.powi(lowered as i32), "{lowered} times, {rate}");
    assert_eq!(rates("parts"), wanted);
    assert_eq!(file(&project, "whole", "model.safetensors"), file(&project, "parts", "model.safetensors"));
    // What it was lowered by belongs to its schedule.
    let mut transcript = Transcript::new(&project);
    for more in ["train.max_updates=61", "train.max_updates=62 --set train.schedule.factor=0.6"] {
        let line = format!("train --config plateau.toml --run-dir parts --resume --set {more}");
        succeeds(&transcript.warnings(&line.split(' ').collect::<Vec<_>>()));
    }
    assert_transcript!(transcript);
}

/// This holds with weight decay and in a resumed run, too.
#[test]
fn what_is_frozen_stays_as_it_is() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=8"]));
    let keys = [
        "train.init=runs/small",
        "train.optimizer.weight_decay=0.1",
        "train.freeze=['encoder', 'decoder.layers.0.cross_attn']",
    ];
    let train = |run: &str, updates: &str, more: &[&str]| {
        let updates = format!("train.max_updates={updates}");
        let keys = sets(&[&keys[..], &[&updates]].concat());
        succeeds(&project.train(&[&["--run-dir", run], &keys[..], more].concat()));
    };
    train("tuned", "12", &[]);
    train("parts", "5", &[]);
    train("parts", "12", &["--resume"]);
    assert_eq!(file(&project, "tuned", "model.safetensors"), file(&project, "parts", "model.safetensors"));
    let [before, after] = ["runs/small", "tuned"].map(|run| file(&project, run, "model.safetensors"));
    let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let (mut frozen, mut moved) = (0, 0);
    for (name, tensor) in before.tensors() {
        let is_frozen = name.starts_with("encoder.") || name.starts_with("decoder.layers.0.cross_attn.");
        // Key biases have no gradient: they add the same to all scores of a query.
        if !is_frozen && name.contains("k_proj.bias") {
            continue;
        }
        assert_eq!(tensor.data() == after.tensor(&name).unwrap().data(), is_frozen, "{name}");
        frozen += usize::from(is_frozen);
        moved += usize::from(!is_frozen);
    }
    assert!(frozen > 10 && moved > 10, "{frozen} {moved}");
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--run-dir", "tuned", "--resume", "--set", "train.init=runs/small"]);
    assert_transcript!(transcript);
}

/// Moments are loaded with the checkpoint that a run goes back to: they must not move what is frozen.
#[test]
fn what_is_frozen_stays_when_a_run_goes_back() {
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=4", "train.average_last=0", "valid.every=0"])));
    let before = file(&project, "runs/small", "model.safetensors");
    let more = sets(&[
        "train.max_updates=6",
        "train.average_last=0",
        "valid.every=0",
        "train.freeze=['encoder']",
        "train.schedule.learning_rate=1e9",
        "train.max_skipped=0",
        "train.save_every=1",
    ]);
    // There is another update 5. Whether update 6 is finite then, last bits decide.
    let output = project.mt(&[&["train", "--config", "small.toml", "--resume", "--force"], &more[..]].concat());
    assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}: {}", output.status, stderr(&output));
    assert!(stderr(&output).contains("going on from the checkpoint of update 4"), "{}", stderr(&output));
    let update = file(&project, "runs/small", "checkpoints/step-00000005/model.safetensors");
    let [before, after] = [&before, &update].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    for (name, tensor) in before.tensors() {
        let same = tensor.data() == after.tensor(&name).unwrap().data();
        assert!(same || !name.starts_with("encoder."), "{name}");
    }
    // The checkpoint of update 4 was written again, without moments of what is frozen now:
    // a run goes on from that, too.
    for step in ["step-00000005", "step-00000006"] {
        let _ = std::fs::remove_dir_all(project.path(&format!("runs/small/checkpoints/{step}")));
    }
    let _ = std::fs::remove_file(project.path("runs/small/model.safetensors"));
    let rate = ["--set", "train.schedule.learning_rate=1e-3"];
    let args = ["train", "--config", "small.toml", "--resume", "--force"];
    let output = project.mt(&[&args[..], &more, &rate].concat());
    succeeds(&output);
    assert!(stderr(&output).contains("resuming at update 4"), "{}", stderr(&output));
}

/// The norm by which a gradient is clipped is that of what is trained: frozen parts take nothing of it.
#[test]
fn what_is_frozen_does_not_count_in_the_norm() {
    let project = Project::new();
    let norm = |freeze: &str| {
        let keys = ["train.max_updates=1", "valid.every=0", "model.output_bias=false", freeze];
        succeeds(&project.train(&[&["--overwrite"], &sets(&keys)[..]].concat()));
        project.log("runs/small")[0]["gradient_norm"].as_f64().unwrap()
    };
    let all = norm("train.freeze=[]");
    let [encoder, others] = ["train.freeze=['source_embedding', 'decoder']", "train.freeze=['encoder']"].map(norm);
    assert!(encoder > 0.0 && others > 0.0);
    // Sums of squares are in f64.
    assert!((encoder.hypot(others) / all - 1.0).abs() < 1e-9, "{encoder} {others} {all}");
}

/// Also if it was stopped between two of those validations.
#[test]
fn training_ends_when_validations_bring_no_improvement() {
    let project = Project::new();
    let sets = sets(&["valid.every=1", "valid.metric=loss", "valid.patience=3", "train.schedule.learning_rate=0.1"]);
    let train = |run: &str, updates: &str, more: &[&str]| {
        let args = ["train", "--config", "small.toml", "--run-dir", run, "--set", updates];
        let output = project.mt(&[&args, &sets[..], more].concat());
        succeeds(&output);
        stderr(&output)
    };
    let said = train("whole", "train.max_updates=1000", &[]);
    assert!(said.contains("3 validations without an improvement"), "{said}");
    let log = |run: &str| -> Vec<(u64, u64, bool)> {
        let number = |e: &serde_json::Value, key: &str| e[key].as_u64().unwrap();
        project
            .logged(run, "valid")
            .into_iter()
            .map(|e| (number(&e, "update"), number(&e, "stale"), e["best"] == true))
            .collect()
    };
    let validations = log("whole");
    let mut since_best = 0;
    for (update, stale, is_best) in &validations {
        assert!(since_best < 3, "it goes on at update {update}");
        since_best = if *is_best { 0 } else { since_best + 1 };
        assert_eq!(*stale, since_best);
    }
    let last = validations.len() as u64;
    assert!(since_best == 3 && last > 4 && last < 1000, "{validations:?}");
    train("parts", &format!("train.max_updates={}", last - 1), &[]);
    train("parts", "train.max_updates=1000", &["--resume"]);
    assert_eq!(log("parts"), validations);
}

/// Asserts that this model was made, or tried, as the final one of runs/small.
fn assert_tried(project: &Project, model: &str) {
    let tried = ["candidate", "final"].map(|event| project.logged("runs/small", event)).concat();
    assert!(tried.iter().any(|entry| entry["model"] == model), "{tried:?}");
}

/// Changes one byte in the middle of a file.
fn damage(project: &Project, name: &str) {
    let mut bytes = std::fs::read(project.path(name)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    project.write(name, bytes);
}

#[test]
fn a_damaged_tokenizer_is_never_used() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    damage(&project, "runs/small/tokenizer.json");
    let mut transcript = Transcript::new(&project);
    // Checkpoints are of the same subwords, so they are no way out.
    transcript.run("translate --model runs/small cat");
    transcript.run("translate --model runs/small --checkpoint last cat");
    // Without the final model, the manifests of the checkpoints reveal it.
    for name in ["model.safetensors", "manifest.json"] {
        std::fs::remove_file(project.path("runs/small").join(name)).unwrap();
    }
    transcript.note("the final model is gone");
    transcript.run("translate --model runs/small cat");
    assert_transcript!(transcript);
}

#[test]
fn a_changed_configuration_does_not_bring_back_another_model() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let config = std::fs::read_to_string(project.path("runs/small/config.toml")).unwrap();
    project.write("runs/small/config.toml", config.replace("max_length_extra = 50", "max_length_extra = 49"));
    let mut transcript = Transcript::new(&project);
    transcript.run("translate --model runs/small x");
    succeeds(&project.mt(&["translate", "--model", "runs/small", "--checkpoint", "last", "x"]));

    // The same tensors in another model, which only the checkpoint's record tells.
    let other = config.replace("heads = 2", "heads = 4").replace("d_k = 16", "d_k = 8").replace("d_v = 16", "d_v = 8");
    project.write("runs/small/config.toml", other.replace("seed = 1", "seed = 2"));
    for name in ["model.safetensors", "manifest.json"] {
        std::fs::remove_file(project.path("runs/small").join(name)).unwrap();
    }
    transcript.note("the final model is gone, and the configuration has other heads and another seed");
    for line in [
        "translate --model runs/small x",
        "average runs/small --last 2 --out averaged",
        "train --config runs/small/config.toml --resume --set train.max_updates=13",
        "train --config runs/small/config.toml --resume --set train.max_updates=13 --dry-run",
        "check --config runs/small/config.toml",
    ] {
        transcript.run(line);
    }
    assert_transcript!(transcript);
    // The configuration that it was trained with continues it, whatever the file says.
    succeeds(&project.train(&["--resume", "--set", "train.max_updates=13"]));
    assert!(String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap().contains("\nheads = 2"));
}

/// Other than by `--force`, which could not continue it either.
#[test]
fn a_shape_edited_in_the_configuration_is_named() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let edited = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    project.write("runs/small/config.toml", edited.replace("\nd_ff = 64", "\nd_ff = 48"));
    let resume = "train --config runs/small/config.toml -q --resume --set train.max_updates=6";
    let mut transcript = Transcript::new(&project);
    transcript.run(resume);
    transcript.run(&format!("{resume} --force"));
    project.write("runs/small/config.toml", edited);
    transcript.run(resume);
    assert_transcript!(transcript);
}

/// Without an update there is nothing to save, and reading may take long.
#[test]
fn a_signal_ends_the_reading_of_text_at_once() {
    let project = Project::new();
    let pipe = project.mkfifo("train.en");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let child = Running::start(project.command(&["train", "--config", "small.toml"]).stderr(Stdio::piped()));
        // The other end opens only when it is about to read; it reads on until this one is closed.
        let writer = std::fs::File::create(&pipe).unwrap();
        send(signal, &child);
        fails(&child.output(), code, &["stopped"]);
        drop(writer);
    }
}

/// Without a mean of models, the last update competes with the best checkpoint even if no validation was due after it.
#[test]
fn the_last_update_may_be_the_final_model() {
    let project = Project::new();
    let sets = sets(&["valid.metric=loss", "valid.every=6", "train.average_last=0", "train.max_updates=14"]);
    let finals = |more: &[&str]| -> serde_json::Value {
        succeeds(&project.train(&[&sets[..], more].concat()));
        project.logged("runs/small", "final").pop().unwrap()
    };
    let last = finals(&[]);
    assert_eq!(last["model"], "last, update 14", "{last}");
    let checkpoint = "runs/small/checkpoints/step-00000014/model.safetensors";
    assert_eq!(file(&project, "runs/small", "model.safetensors"), std::fs::read(project.path(checkpoint)).unwrap());
    // What counts is whether there was a validation, not whether one would be due now.
    assert_eq!(finals(&["--resume", "--set", "valid.every=7"])["model"], "last, update 14");
    // From update 12 on, the model gets worse.
    let worse = ["--resume", "--set", "train.schedule.learning_rate=30", "--set", "train.max_updates=16"];
    let best = finals(&worse);
    assert_eq!(best["model"], "best, update 12", "{best}");
    assert!(last["loss"].as_f64() < best["loss"].as_f64());
}

/// A change that is forced, and what was trained before it.
#[test]
fn a_model_is_never_made_of_two() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.average_last=0"]));
    let force = ["train", "--config", "small.toml", "--resume", "--force", "--set", "model.activation=swish"];
    let more = ["--set", "train.average_last=3", "--set", "train.max_updates=16", "--set", "valid.every=16"];
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&force[..], &more].concat()));
    assert_tried(&project, "average of one checkpoint, the last");
    // What was trained before is the other model.
    transcript.run("translate --model runs/small x --checkpoint 12");
    assert_transcript!(transcript);
    succeeds(&project.mt(&["translate", "--model", "runs/small", "x", "--checkpoint", "16"]));
}

/// Without an update, nothing is trained as the other model, even if the checkpoint is written again.
#[test]
fn a_forced_change_without_an_update_can_be_taken_back() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.average_last=0"]));
    let resume = ["--resume", "--set", "train.average_last=2"];
    let models = |event: &str| -> Vec<String> {
        let entries = project.logged("runs/small", event).into_iter();
        entries.map(|entry| entry["model"].as_str().unwrap().to_owned()).collect()
    };
    succeeds(&project.train(&[&resume[..], &["--force", "--set", "model.activation=swish"]].concat()));
    assert_eq!((models("candidate"), models("final")), (vec![], vec!["last, update 12".to_owned()]));
    let mut transcript = Transcript::new(&project);
    transcript.train(&[&resume[..], &["--set", "model.activation=swish"]].concat());
    assert_transcript!(transcript);
    succeeds(&project.train(&resume));
    assert_eq!(models("candidate")[0], "average of the last 2 checkpoints");
}

/// What the learning rate does in a report is explained there, once, however often the run was killed.
#[test]
fn what_changes_on_resume_is_in_the_log() {
    let project = Project::new();
    let changes = || -> Vec<(u64, String)> {
        let changes = project.logged("runs/small", "change").into_iter();
        changes.map(|entry| (entry["update"].as_u64().unwrap(), entry["changes"].to_string())).collect()
    };
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let slower = ["--resume", "--set", "train.schedule.learning_rate=0.001", "--set"];
    // Without an update nothing changes.
    succeeds(&project.train(&[&slower[..], &["train.max_updates=4"]].concat()));
    succeeds(&project.train(&["--resume", "--set", "train.max_updates=8"]));
    assert_eq!(changes(), []);
    for _ in 0..2 {
        succeeds(&project.train(&[&slower[..], &["train.max_updates=10"]].concat()));
        // As if it had been killed before this checkpoint.
        std::fs::remove_dir_all(project.path("runs/small/checkpoints/step-00000010")).unwrap();
        std::fs::remove_file(project.path("runs/small/model.safetensors")).unwrap();
    }
    let found = changes();
    assert_eq!((found.len(), found[0].0), (1, 8), "{found:?}");
    assert!(
        found[0].1.contains("`train.schedule.learning_rate` was 0.003 up to update 8 and is 0.001 now"),
        "{found:?}"
    );
}

/// A change that cannot be trained with takes no checkpoint away.
#[test]
fn a_change_that_diverges_at_once_costs_no_checkpoint() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=8"]));
    let checkpoints = || {
        let names = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = checkpoints();
    // Their divergence is beyond float32.
    let keys = ["train.max_updates=12", "train.r_drop=1e38", "model.dropout=0.9", "train.max_skipped=0"];
    let output = project.train(&[&["--resume", "--force"][..], &sets(&keys)].concat());
    let says = ["with the changed configuration, after update 8", "`train.r_drop` was 0.0 before and is 1e+38 now"];
    fails(&output, 1, &says);
    assert_eq!(checkpoints(), before);
    succeeds(&project.train(&["--resume", "--force", "--set", "train.max_updates=12", "--set", "train.r_drop=0"]));
}

/// A limit that ended a run early is the one that the run has; the former one makes it go on.
#[test]
fn a_run_that_a_lower_limit_has_ended_goes_on_with_the_former_one() {
    let project = Project::new();
    let (mut child, _) = begun(&project, &["train.max_updates=100000", "train.log_every=1", "valid.every=0"]);
    wait_for_log(&mut child, &project.path("runs/small/log.jsonl"));
    send("-TERM", &child);
    assert_eq!(child.output().status.code(), Some(143));
    let resume = |limit: &str| {
        succeeds(&project.train(&["--resume", "--set", "valid.every=0", "--set", limit]));
        let last = std::fs::read_to_string(project.path("runs/small/last")).unwrap();
        last.trim().strip_prefix("step-").unwrap().parse::<u64>().unwrap()
    };
    let ended = resume("train.max_updates=1");
    assert_eq!(resume(&format!("train.max_updates={}", ended + 3)), ended + 3);
}

/// Batches of another size are not the rest of those of which a part was given.
#[test]
fn an_epoch_of_other_batches_begins_again() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let resume = ["train", "--config", "small.toml", "--resume", "--force", "--set", "train.max_updates=13"];
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&resume[..], &["--set", "train.batch_tokens=150"]].concat()));
    assert_transcript!(transcript);
}

#[test]
fn another_number_type_is_noted_when_a_run_goes_on() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let output = project.mt(&[
        "train",
        "--config",
        "small.toml",
        "--resume",
        "--set",
        "train.max_updates=13",
        "--set",
        "runtime.precision=bf16",
    ]);
    succeeds(&output);
    assert!(
        stderr(&output).contains("`runtime.precision` was \"f32\" before and is \"bf16\" now"),
        "{}",
        stderr(&output)
    );
}

/// What "auto" has chosen is recorded, and the run keeps it.
#[test]
fn the_number_type_that_was_chosen_is_kept() {
    let project = Project::new();
    project.write("small.toml", CONFIG.replace(PRECISION, ""));
    let auto = |more: &[&str]| project.mt(&[&["train", "--config", "small.toml", "--device", "cpu"], more].concat());
    let output = auto(&["--set", "train.max_updates=4"]);
    succeeds(&output);
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    let recorded = config.lines().rfind(|line| line.starts_with("precision = ")).unwrap();
    let chosen = recorded.trim_start_matches("precision = ").trim_matches('"');
    assert!(["f32", "bf16"].contains(&chosen), "{config}");
    let says = format!("runtime.precision = \"auto\": {chosen}, since ");
    assert!(stderr(&output).contains(&says), "{}", stderr(&output));
    // Also if another machine, or another version, would choose otherwise.
    let other = if chosen == "f32" { "bf16" } else { "f32" };
    project.write("runs/small/config.toml", config.replace(recorded, &format!("precision = \"{other}\"")));
    let output = auto(&["--resume", "--set", "train.max_updates=6"]);
    succeeds(&output);
    let said = stderr(&output);
    assert!(said.contains(&format!("runtime.precision = \"auto\": {other}, since the run began with it")), "{said}");
    assert!(!said.contains("`runtime.precision` was"), "{said}");
}

/// On another kind of processor, sums are rounded otherwise.
#[test]
fn another_machine_is_named() {
    let project = Project::new();
    let output = project.train(&["--set", "train.max_updates=4"]);
    succeeds(&output);
    let args = ["train", "--config", "small.toml", "--resume", "--device", "cpu", "--set", "train.max_updates=6"];
    let output = project.command(&args).env("MT_MAX_ISA", "baseline").output().unwrap();
    succeeds(&output);
    let says = stderr(&output);
    if simd::uses(InstructionSet::Avx2) {
        let want = ["this run was computed on ", " up to update 4, and goes on with ", " with baseline: "];
        assert!(want.iter().all(|part| says.contains(part)), "{says}");
    } else {
        skipped("another_machine_is_named", "of instructions beyond the baseline, which this processor lacks");
    }
    let output = project.command(&args).env("MT_MAX_ISA", "baseline").args(["--set", "train.max_updates=8"]).output();
    let output = output.unwrap();
    succeeds(&output);
    assert!(!stderr(&output).contains("this run was computed on"), "{}", stderr(&output));
}

#[test]
fn the_final_average_goes_around_a_damaged_checkpoint() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    damage(&project, "runs/small/checkpoints/step-00000008/model.safetensors");
    let more = ["--resume", "--set", "train.max_updates=14", "--set", "train.average_last=3"];
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml"], &more[..]].concat()));
    assert_tried(&project, "average of the last 3 checkpoints");
    succeeds(&project.mt(&["average", "runs/small", "--last", "2", "--out", "averaged"]));
    transcript.run("average runs/small --last 3 --out other");
    assert_transcript!(transcript);
}

/// They are gone once the run has a newer one to go on from, and take no good one's place.
#[test]
fn damaged_checkpoints_that_were_passed_over_do_not_push_out_good_ones() {
    let project = Project::new();
    let sets = ["--set", "train.average_last=0", "--set", "train.keep=2", "--set", "valid.every=0"];
    succeeds(&project.train(&[&sets[..], &["--set", "train.keep=4"]].concat()));
    for step in ["00000008", "00000012"] {
        damage(&project, &format!("runs/small/checkpoints/step-{step}/model.safetensors"));
    }
    // It would keep the run from going on.
    std::fs::remove_file(project.path("runs/small/model.safetensors")).unwrap();
    let mut transcript = Transcript::new(&project);
    let resume = ["train", "--config", "small.toml", "--resume", "--set", "train.max_updates=5"];
    succeeds(&transcript.warnings(&[&resume, &sets[..]].concat()));
    assert_transcript!(transcript);
    let entries = std::fs::read_dir(project.path("runs/small/checkpoints")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["step-00000004", "step-00000005"]);
    assert_eq!(file(&project, "runs/small", "last"), b"step-00000005\n");
    succeeds(&project.train(&[&sets[..], &["--resume", "--set", "train.max_updates=6"]].concat()));
}

#[test]
fn what_is_known_of_a_run_with_a_damaged_checkpoint_is_told() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    damage(&project, "runs/small/checkpoints/step-00000012/state.json");
    let mut transcript = Transcript::new(&project);
    let output = transcript.messages(&["info", "runs/small", "--json"]);
    assert_transcript!(transcript);
    let info: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let updates = info["history"]["updates"].as_u64().unwrap();
    assert!(updates > 0 && updates < 12, "{info}");
}

/// Each checkpoint records whether it was a regular one, even if the interval changes later.
#[test]
fn the_final_average_spans_a_change_of_rhythm() {
    let project = Project::new();
    let set = ["train", "--config", "small.toml", "--set", "valid.every=0", "--set", "train.average_last=4"];
    let train = |more: &[&str]| {
        let output = project.mt(&[&set[..], more].concat());
        succeeds(&output);
        stderr(&output)
    };
    // Saves at updates 2, 4 and 6, and at the end, 7.
    train(&["--set", "train.save_every=2", "--set", "train.max_updates=7"]);
    // Without validation, there is no entry in the log.
    let printed = train(&["--resume", "--set", "train.save_every=5", "--set", "train.max_updates=10"]);
    assert!(printed.contains("average of the last 4 checkpoints"), "{printed}");
    succeeds(&project.mt(&["average", "runs/small", "--last", "4", "--out", "same"]));
    assert_eq!(file(&project, "same", "model.safetensors"), file(&project, "runs/small", "model.safetensors"));
}

/// A checkpoint that is written again, because the run ends where it ended, is as regular as it was.
#[test]
fn a_resume_without_an_update_changes_nothing_of_the_final_average() {
    let project = Project::new();
    let train = |more: &[&str]| {
        let sets = ["train", "--config", "small.toml", "--set", "train.average_last=10"];
        succeeds(&project.mt(&[&sets[..], more].concat()));
    };
    train(&[]);
    train(&["--resume", "--set", "train.save_every=5"]);
    train(&["--resume", "--set", "train.save_every=5", "--set", "train.max_updates=20"]);
    // Those of updates 4, 8, 12, 15 and 20.
    assert_tried(&project, "average of the last 5 checkpoints");
}

/// A job that is queued again, perhaps after its checkpoints were tidied up: what they made would be another model.
#[test]
fn a_run_that_has_ended_keeps_its_final_model() {
    let project = Project::new();
    let train = |more: &[&str]| project.mt(&[&["train", "--config", "small.toml", "--json"], more].concat());
    let first = train(&[]);
    succeeds(&first);
    let model = || file(&project, "runs/small", "model.safetensors");
    let (made, log) = (model(), file(&project, "runs/small", "log.jsonl"));
    let kept = project.path("kept");
    std::fs::create_dir(&kept).unwrap();
    let moved = project.path("moved");
    std::fs::create_dir(&moved).unwrap();
    for name in ["train.en", "train.de", "valid.en", "valid.de"] {
        std::fs::copy(project.path(name), moved.join(name)).unwrap();
    }
    let mut transcript = Transcript::new(&project);
    let shown = ["train.log_every=2", "train.keep=1", "train.save_every=2", "valid.samples=0"];
    for (step, more) in [
        ("step-00000004", sets(&["runtime.threads=1", "runtime.device=cpu"])),
        ("step-00000008", sets(&shown)),
        ("step-00000012", sets(&["data.root=moved"])),
        ("", vec![]),
    ] {
        let again = ["train", "--config", "small.toml", "--json", "--resume"];
        let again = transcript.messages(&[&again, &more[..]].concat());
        assert_eq!(stdout(&again), stdout(&first));
        assert!(model() == made && file(&project, "runs/small", "log.jsonl") == log);
        if !step.is_empty() {
            std::fs::rename(project.path("runs/small/checkpoints").join(step), kept.join(step)).unwrap();
        }
    }
    let away = project.path("log.jsonl");
    std::fs::rename(project.path("runs/small/log.jsonl"), &away).unwrap();
    succeeds(&train(&["--resume"]));
    assert!(model() == made);
    std::fs::rename(&away, project.path("runs/small/log.jsonl")).unwrap();
    std::fs::rename(kept.join("step-00000012"), project.path("runs/small/checkpoints/step-00000012")).unwrap();
    // It goes on if there is something to do: an average of other checkpoints, or more updates.
    succeeds(&transcript.warnings(&["train", "--config", "small.toml", "--resume", "--set", "train.average_last=1"]));
    assert_tried(&project, "average of one checkpoint, the last");
    succeeds(&train(&["--resume", "--set", "train.max_updates=16"]));
    // Not from an earlier checkpoint, which would take the final model away.
    let made = model();
    let last = project.path("runs/small/checkpoints/step-00000016");
    std::fs::File::options().write(true).open(last.join("optimizer.safetensors")).unwrap().set_len(100).unwrap();
    transcript.train(&["--resume", "--set", "train.max_updates=20"]);
    assert!(model() == made);
    std::fs::remove_dir_all(last).unwrap();
    let resume = ["--resume", "--set", "train.max_updates=16"];
    succeeds(&train(&resume));
    transcript.train(&["--resume", "--set", "train.max_updates=20"]);
    assert!(model() == made);
    std::fs::remove_file(project.path("runs/small/model.safetensors")).unwrap();
    transcript.note("the final model is gone, too");
    succeeds(&transcript.messages(&[&["train", "--config", "small.toml", "-q"], &resume[..]].concat()));
    assert_transcript!(transcript);
    assert!(model() == made);
}

#[test]
fn a_run_that_has_lost_its_checkpoints_is_not_begun_again() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    std::fs::remove_file(project.path("runs/small/model.safetensors")).unwrap();
    let log = file(&project, "runs/small", "log.jsonl");
    std::fs::remove_dir_all(project.path("runs/small/checkpoints")).unwrap();
    let mut transcript = Transcript::new(&project);
    for more in [&["--resume"][..], &["--resume", "--dry-run"]] {
        transcript.train(more);
    }
    transcript.with_keys("check", &[]);
    assert_transcript!(transcript);
    assert_eq!(file(&project, "runs/small", "log.jsonl"), log);
    succeeds(&project.train(&["--overwrite", "--set", "train.max_updates=4"]));
}

/// As if a file system had gone away for a moment.
#[test]
fn a_checkpoint_that_cannot_be_written_is_tried_again() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let [checkpoints, elsewhere, away] = ["runs/small/checkpoints", "elsewhere", "away"].map(|name| project.path(name));
    std::fs::rename(&checkpoints, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &checkpoints).unwrap();
    let keys = [
        "train.max_updates=100000",
        "train.save_every=100",
        "valid.every=0",
        "train.keep=2",
        "runtime.follow_links=true",
    ];
    let args = [&["train", "--config", "small.toml", "--resume", "-q"], &sets(&keys)[..]].concat();
    let mut child = Running::start(project.command(&args).stderr(Stdio::piped()));
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let wait_for = |update: u64| {
        let last = || {
            std::fs::read_to_string(project.path("runs/small/last")).ok()?.trim().strip_prefix("step-")?.parse().ok()
        };
        let is_there = || last().is_some_and(|step: u64| step >= update);
        assert!(
            (0..2400).any(|_| is_there() || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }),
            "{update}"
        );
    };
    wait_for(100);
    std::fs::rename(&elsewhere, &away).unwrap();
    let again = said.find(|line| {
        let line = line.as_ref().unwrap();
        assert!(!line.starts_with("error"), "{line}");
        line.contains("is tried again")
    });
    let again = again.unwrap().unwrap();
    std::fs::rename(&away, &elsewhere).unwrap();
    let update = again.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
    wait_for(update + 200);
    send("-TERM", &child);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let all: Vec<String> = said.map(Result::unwrap).collect();
    let errors: Vec<_> =
        all.iter().filter(|line| line.starts_with("error") && !line.contains("stopped by a signal")).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

/// How work is divided among threads decides nothing.
#[test]
fn training_does_not_depend_on_the_number_of_threads() {
    let project = Project::new();
    for precision in ["f32", "bf16"] {
        if common::lacks(precision, "training_does_not_depend_on_the_number_of_threads") {
            continue;
        }
        let model = |threads: &str| {
            let run = format!("{precision}-{threads}");
            let precision = format!("runtime.precision={precision}");
            let keys = ["model.attention_dropout=0.1", "train.max_updates=6", "train.clip_norm=1", &precision];
            succeeds(&project.train(&[&["--run-dir", &run, "--threads", threads], &sets(&keys)[..]].concat()));
            file(&project, &run, "model.safetensors")
        };
        let [one, three, seven] = ["1", "3", "7"].map(model);
        assert!(one == three && one == seven, "{precision}");
    }
}

/// The configuration of a run that is at its end says how it was trained, whatever a resume states.
#[test]
fn a_run_that_ended_with_an_epoch_is_at_its_end() {
    let project = Project::new();
    let sets = ["--set", "train.max_updates=0", "--set", "train.max_epochs=1", "--set"];
    succeeds(&project.train(&[&sets[..], &["train.clip_norm=0"]].concat()));
    let [config, model] = ["config.toml", "model.safetensors"].map(|name| file(&project, "runs/small", name));
    let faster = ["train.clip_norm=3", "--set", "train.schedule.learning_rate=5e-4", "--resume"];
    succeeds(&project.train(&[&sets[..], &faster].concat()));
    assert_eq!(file(&project, "runs/small", "config.toml"), config);
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    assert!(!String::from_utf8(file(&project, "runs/small", "log.jsonl")).unwrap().contains("change"));
    // What another name gives to the same shape makes no other run.
    succeeds(&project.train(&["--resume", "--set", "model.preset=transformer-tiny", "--set", "train.max_updates=40"]));
}

/// What a run began with is past: it may be stated otherwise only as long as there is no checkpoint.
#[test]
fn another_beginning_is_refused_even_with_force() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let model = file(&project, "runs/small", "model.safetensors");
    let mut transcript = Transcript::new(&project);
    for set in ["train.init=nowhere", "model.init=normal"] {
        transcript.train(&["--resume", "--force", "--set", "train.max_updates=6", "--set", set]);
    }
    assert_eq!(file(&project, "runs/small", "model.safetensors"), model);
    // As before its first checkpoint.
    std::fs::remove_dir_all(project.path("runs/small/checkpoints")).unwrap();
    for name in ["model.safetensors", "last"] {
        std::fs::remove_file(project.path("runs/small").join(name)).unwrap();
    }
    let again = ["--resume", "--set", "train.max_updates=2", "--set", "model.init=normal"];
    transcript.note("the run has no checkpoint");
    transcript.train(&again);
    assert_transcript!(transcript);
    succeeds(&project.train(&[&again[..], &["--force"]].concat()));
}

/// As the resume itself would.
#[test]
fn a_dry_run_compares_the_text_of_a_run_that_goes_on() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    succeeds(&project.train(&["--resume", "--dry-run"]));
    let text = std::fs::read_to_string(project.path("train.en")).unwrap();
    project.write("train.en", text.replacen("the", "a", 1));
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--resume", "--dry-run"]);
    assert_transcript!(transcript);
    succeeds(&project.train(&["--resume", "--dry-run", "--force"]));
}

/// A validation interrupted by a signal is repeated when the run is resumed, and the end result is the same.
#[test]
fn a_validation_that_was_cut_short_is_made_up_for() {
    let project = Project::new();
    let keys = ["valid.every=2", "valid.beam=300", "decode.batch_tokens=1", "train.max_updates=3", "train.keep=3"];
    let command = |name: &str| {
        project.command(&[&["train", "--config", "small.toml", "--run-dir", name], &sets(&keys)[..]].concat())
    };
    succeeds(&command("whole").output().unwrap());
    let mut child = Running::start(command("cut").stderr(Stdio::piped()));
    let log = |name: &str| std::fs::read_to_string(project.path(name).join("log.jsonl")).unwrap_or_default();
    while log("cut").lines().count() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it has ended without an update");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    send("-INT", &child);
    assert_eq!(child.output().status.code(), Some(130));
    assert!(!log("cut").contains("\"valid\""), "the validation should have been cut short");
    succeeds(&command("cut").arg("--resume").output().unwrap());
    assert_eq!(file(&project, "whole", "model.safetensors"), file(&project, "cut", "model.safetensors"));
    let scores = |name: &str| -> Vec<String> {
        let entries =
            log(name).lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()).collect::<Vec<_>>();
        let pick =
            |e: &serde_json::Value| format!("{} {} {} {} {}", e["event"], e["update"], e["loss"], e["bleu"], e["best"]);
        entries.iter().map(pick).collect()
    };
    assert_eq!(scores("whole"), scores("cut"));
}

/// What was found before validations were turned off says nothing about what was trained since.
#[test]
fn without_validations_the_last_update_is_the_final_model() {
    let project = Project::new();
    let sets = ["--set", "train.average_last=0", "--set", "valid.metric=loss"];
    succeeds(&project.train(&sets));
    let more = ["--resume", "--set", "valid.every=0", "--set", "train.max_updates=16", "--json"];
    let output = project.train(&[&sets[..], &more].concat());
    succeeds(&output);
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(result["model"], "last, update 16");
}

#[test]
fn a_validation_set_may_come_later() {
    let project = Project::new();
    let config = std::fs::read_to_string(project.path("small.toml")).unwrap();
    let line = "valid = { source = \"valid.en\", target = \"valid.de\" }\n";
    project.write("none.toml", config.replace(&format!("\n{line}"), "\n").replace("every = 6", "every = 0"));
    let train = |config: &str, more: &[&str]| {
        project.mt(&[&["train", "--config", config, "--run-dir", "runs/small", "-q"], more].concat())
    };
    succeeds(&train("none.toml", &[]));
    succeeds(&train("small.toml", &["--resume", "--set", "train.max_updates=18"]));
    assert!(String::from_utf8(file(&project, "runs/small", "log.jsonl")).unwrap().contains("\"valid\""));
    succeeds(&train("none.toml", &["--resume", "--set", "train.max_updates=19"]));
}

/// A total that was computed follows the number of updates, in the run's config.toml too; one that the user states does
/// not.
#[test]
fn the_learning_rate_falls_until_the_last_update() {
    let project = Project::new();
    let schedule = "train.schedule={ kind = \"linear\", learning_rate = 0.003, warmup = 2 }";
    let mut transcript = Transcript::new(&project);
    succeeds(&transcript.warnings(&["train", "--config", "small.toml", "--set", schedule]));
    let resume = ["train", "--config", "runs/small/config.toml", "--resume", "--set", "train.max_updates=14"];
    for more in [&["--dry-run"][..], &["--dry-run", "--set", "train.schedule.total=12"], &[]] {
        succeeds(&transcript.warnings(&[&resume, more].concat()));
    }
    assert_transcript!(transcript);
    let update = project.logged("runs/small", "train").into_iter().find(|entry| entry["update"] == 13).unwrap();
    let rate = update["learning_rate"].as_f64().unwrap();
    assert!((rate - 0.003 / 12.0).abs() < 1e-9, "{rate}");
}

/// The process may end while a checkpoint is replaced: then it has another name.
#[test]
fn a_checkpoint_that_is_being_replaced_stays_the_best() {
    let project = Project::new();
    let sets = ["--set", "train.average_last=0", "--set", "valid.metric=loss"];
    succeeds(&project.train(&sets));
    let best = file(&project, "runs/small", "best");
    let name = String::from_utf8(best.clone()).unwrap();
    let checkpoints = project.path("runs/small/checkpoints");
    std::fs::rename(checkpoints.join(name.trim()), checkpoints.join(format!(".old-{}", name.trim()))).unwrap();
    let worse = ["--resume", "--set", "train.max_updates=13", "--set", "train.schedule.learning_rate=30"];
    let output = project.train(&[&sets[..], &worse, &["--json"]].concat());
    succeeds(&output);
    assert_eq!(file(&project, "runs/small", "best"), best);
    let result: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(result["model"].as_str().unwrap().starts_with("best, update "), "{result}");
}

/// The configuration is written at the beginning, the next checkpoint later.
#[test]
fn weights_are_those_of_the_checkpoint() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let weight = "data.train=[{ source = \"train.en\", target = \"train.de\", weight = 9 }]";
    let resume = ["--resume", "--set", "train.max_updates=13", "--set", weight];
    let mut transcript = Transcript::new(&project);
    transcript.train(&resume);
    let config = String::from_utf8(file(&project, "runs/small", "config.toml")).unwrap();
    project.write("runs/small/config.toml", config.replace("weight = 1.0", "weight = 9.0"));
    transcript.train(&resume);
    succeeds(&transcript.warnings(&[&["train", "--config", "small.toml", "--force"], &resume[..]].concat()));
    assert_transcript!(transcript);
}

/// Even if the batches are others than those that the checkpoint's position is among.
#[test]
fn going_back_after_a_forced_change_finds_a_place() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let keys = [
        "train.batch_tokens=2000",
        "train.max_updates=400",
        "train.save_every=1000",
        "valid.every=0",
        "train.schedule.learning_rate=1e36",
        "train.max_skipped=2",
    ];
    let output = project.mt(&[&["train", "--config", "small.toml", "--resume", "--force"], &sets(&keys)[..]].concat());
    fails(&output, 1, &["going on from the checkpoint of update 12", "training has diverged"]);
    assert!(!stderr(&output).contains("the data has no batch"), "{}", stderr(&output));
}

#[test]
fn an_average_cannot_be_turned_on_later() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let resume = ["--resume", "--force", "--set", "train.exponential_average=0.9"];
    let mut transcript = Transcript::new(&project);
    transcript.train(&resume);
    assert_transcript!(transcript);
}

/// Files of other programs, and those of the user.
#[test]
fn other_tokenizers_are_no_part_of_a_run() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4", "--set", "train.keep=1"]));
    project.write("runs/small/tokenizer_config.json", "{}");
    let resume = |updates: &str| project.train(&["--resume", "--set", "train.keep=1", "--set", updates]);
    succeeds(&resume("train.max_updates=8"));
    std::fs::remove_file(project.path("runs/small/tokenizer_config.json")).unwrap();
    succeeds(&resume("train.max_updates=12"));
    succeeds(&project.mt(&["translate", "--model", "runs/small", "a dog"]));

    std::fs::create_dir(project.path("mine")).unwrap();
    project.write("mine/tokenizer.json", "mine");
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--run-dir", "mine"]);
    assert_transcript!(transcript);
    assert_eq!(file(&project, "mine", "tokenizer.json"), b"mine");
}

/// Checkpoints that a link leads to are those of the run, and the link stays.
#[test]
fn a_run_is_replaced_where_it_is() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=4"]));
    let [checkpoints, elsewhere] = ["runs/small/checkpoints", "elsewhere"].map(|name| project.path(name));
    std::fs::rename(&checkpoints, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &checkpoints).unwrap();
    std::fs::create_dir(elsewhere.join("step-by-step")).unwrap();
    let keys = sets(&["train.max_updates=8", "train.save_every=8", "runtime.follow_links=true"]);
    succeeds(&project.train(&[&["--overwrite"], &keys[..]].concat()));
    let names = || -> Vec<_> {
        let entries = std::fs::read_dir(&elsewhere).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert!(checkpoints.is_symlink() && names().contains(&"step-00000008".to_owned()), "{:?}", names());
    assert!(!names().contains(&"step-00000004".to_owned()), "{:?}", names());
    assert!(names().contains(&"step-by-step".to_owned()), "what is not ours was removed: {:?}", names());

    // A process that was killed while it replaced the run has moved the checkpoints away at once.
    std::fs::remove_file(&checkpoints).unwrap();
    std::fs::rename(&elsewhere, project.path("runs/small/.checkpoints.old")).unwrap();
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--resume"]);
    assert_transcript!(transcript);
    succeeds(&project.train(&["--overwrite", "--set", "train.max_updates=4"]));
    assert!(!project.path("runs/small/.checkpoints.old").exists() && checkpoints.is_dir());
}

/// Too few updates to go back, and no model that was validated before.
#[test]
fn a_run_that_ends_with_a_useless_model_fails() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "valid.every=0"]));
    let spoilt = ["--resume", "--set", "train.max_updates=13", "--set", "train.schedule.learning_rate=1e30"];
    fails(
        &project.train(&spoilt),
        1,
        &["training has diverged", "average of the last 2 checkpoints", "--checkpoint best"],
    );
    // Again, it has not become a success.
    fails(&project.train(&spoilt), 1, &["training has diverged"]);
    succeeds(&project.mt(&["translate", "--model", "runs/small", "--checkpoint", "12", "a dog"]));
    // If there is one, it becomes the final model.
    succeeds(&project.train(&["--run-dir", "sound"]));
    succeeds(&project.train(&[&["--run-dir", "sound"], &spoilt[..]].concat()));
    assert_eq!(project.logged("sound", "final")[0]["model"], "best, update 12");
}

/// If several processes write the same directory, one does and the others report that it exists.
#[test]
fn one_of_several_makes_a_model() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let args = ["average", "runs/small", "--last", "2", "--out", "averaged"];
    let begin = |_| Running::start(project.command(&args).stderr(Stdio::piped()));
    let children: Vec<Running> = (0..4).map(begin).collect();
    let outputs: Vec<Output> = children.into_iter().map(Running::output).collect();
    let made = outputs.iter().filter(|output| output.status.success()).count();
    assert_eq!(made, 1, "{}", outputs.iter().map(stderr).collect::<String>());
    succeeds(&project.mt(&["translate", "--model", "averaged", "a dog"]));
    let names = std::fs::read_dir(project.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().contains("averaged")).count(), 1);
}

#[test]
fn an_exponential_average_begins_with_the_model_that_training_begins_with() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let keys =
        ["train.init=runs/small", "train.exponential_average=0.9", "train.average_last=0", "train.max_updates=1"];
    let tuned = ["--run-dir", "tuned", "--set", "train.schedule.learning_rate=1e-6"];
    succeeds(&project.train(&[&tuned[..], &sets(&keys)].concat()));
    let [before, after] = ["runs/small", "tuned"].map(|run| floats(&file(&project, run, "model.safetensors")));
    let furthest = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest > 0.0 && furthest < 1e-5, "{furthest}");
}

/// Fine-tuning begins with a validation, and what it began with is the best until something better comes.
#[test]
fn what_fine_tuning_begins_with_is_validated() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    // Too high a rate spoils the model.
    let spoils = sets(&[
        "train.init=runs/small",
        "train.average_last=0",
        "train.schedule.learning_rate=0.5",
        "train.max_updates=4",
        "valid.every=2",
    ]);
    let train = |run, more: &[&str]| {
        succeeds(&project.train(&[&["--run-dir", run], &spoils[..], more].concat()));
    };
    let validations = |run| -> Vec<_> {
        project.logged(run, "valid").iter().map(|entry| (entry["update"].as_u64(), entry["best"].as_bool())).collect()
    };
    let made_of = |run| project.logged(run, "final")[0]["model"].clone();
    let [at_start, at_2, at_4] = [(0, true), (2, false), (4, false)].map(|(update, best)| (Some(update), Some(best)));
    train("spoilt", &[]);
    assert_eq!(validations("spoilt"), [at_start, at_2, at_4]);
    assert_eq!(made_of("spoilt"), "best, update 0");
    assert_eq!(file(&project, "spoilt", "model.safetensors"), file(&project, "runs/small", "model.safetensors"));
    // The first validation is not repeated when the run goes on.
    train("parts", &["--set", "train.max_updates=1"]);
    train("parts", &["--resume"]);
    assert_eq!(validations("parts"), [at_start, at_2, at_4]);
    assert_eq!(file(&project, "parts", "model.safetensors"), file(&project, "spoilt", "model.safetensors"));
    // Averages are of what training has made.
    train("mean", &sets(&["train.average_last=9", "train.save_every=2"]));
    assert_eq!(project.logged("mean", "candidate")[0]["model"], "average of the last 2 checkpoints");
    assert_eq!(made_of("mean"), "best, update 0");
    // It can be left out, and be had without another model.
    train("without", &["--set", "valid.on_start=false"]);
    assert_eq!(validations("without")[0], (at_2.0, Some(true)));
    succeeds(
        &project.train(&[&["--run-dir", "new"], &sets(&["valid.on_start=true", "train.max_updates=1"])[..]].concat()),
    );
    assert_eq!(validations("new"), [at_start]);
    // Its checkpoint records as much of how it was made as others do.
    let record = |step: u64| -> Vec<String> {
        let state = file(&project, "new", &format!("checkpoints/step-{step:08}/state.json"));
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        state["configuration"].as_object().unwrap().keys().cloned().collect()
    };
    assert!(record(0) == record(1) && record(0).iter().any(|key| key == "model.heads"), "{:?}", record(0));
    // What training begins with is said beforehand, too, but not of a run that goes on.
    let mut transcript = Transcript::new(&project);
    for run in ["next", "spoilt"] {
        transcript.mt(&[&["check", "--config", "small.toml", "--run-dir", run], &spoils[..]].concat());
    }
    assert_transcript!(transcript);
    let before = |more: &[&str]| {
        let output = project.train(&[&["--dry-run"], more, &spoils[..]].concat());
        succeeds(&output);
        stdout(&output).contains("beginning with the weights of ") && stdout(&output).contains("runs/small (final)")
    };
    assert!(before(&["--run-dir", "next"]) && !before(&["--run-dir", "spoilt", "--resume"]));
}

/// Between a model and what became of it, each as much as its weight says.
#[test]
fn models_are_averaged_by_their_weights() {
    let project = Project::new();
    succeeds(&project.train(&[]));
    let tuning = sets(&["train.init=runs/small", "train.average_last=0", "train.max_updates=3", "valid.every=0"]);
    succeeds(&project.train(&[&["--run-dir", "tuned"], &tuning[..]].concat()));
    let average = |args: &[&str]| project.mt(&[&["average", "-q"], args].concat());
    let tensors = |model: &str| floats(&file(&project, model, "model.safetensors"));
    succeeds(&average(&["runs/small", "tuned", "--weights", "1,3", "--out", "mixed"]));
    succeeds(&average(&["runs/small", "tuned", "--out", "mean"]));
    let [before, after, mixed, mean] = ["runs/small", "tuned", "mixed", "mean"].map(tensors);
    let mut moved = 0;
    for (((before, after), mixed), mean) in before.iter().zip(&after).zip(&mixed).zip(&mean) {
        let [before, after] = [before, after].map(|value| f64::from(*value));
        assert_eq!(*mixed, ((before + 3.0 * after) / 4.0) as f32);
        assert_eq!(*mean, ((before + after) / 2.0) as f32);
        moved += usize::from(before != after);
    }
    assert!(moved > 100, "{moved}");
    succeeds(&project.mt(&["translate", "--model", "mixed", "a dog"]));
    let info = stdout(&project.mt(&["info", "mixed"]));
    assert!(info.contains("made from: 0.2500 of runs/small (final), 0.7500 of tuned (final) (average)"), "{info}");
    let mut transcript = Transcript::new(&project);
    // Models that began apart have no mean worth having.
    succeeds(&project.train(&[&["--run-dir", "apart"], &sets(&["train.seed=9"])[..]].concat()));
    for other in ["apart", "tuned"] {
        transcript.run(&format!("average runs/small {other} --out with-{other}"));
    }
    // How long sequences may be is no weight, unless positions are learned.
    let longer = sets(&[
        "train.init=runs/small",
        "train.max_updates=1",
        "valid.every=0",
        "model.max_length=512",
        "data.max_length=31",
    ]);
    succeeds(&project.train(&[&["--run-dir", "longer"], &longer[..]].concat()));
    transcript.run("average runs/small longer --out both");
    succeeds(&project.mt(&["translate", "--model", "both", "a dog"]));
    let learned = |run: &str, max_length: &str| {
        let keys = ["model.positions=learned", "train.max_updates=1", "valid.every=0", max_length];
        succeeds(&project.train(&[&["--run-dir", run], &sets(&keys)[..]].concat()));
    };
    learned("short", "model.max_length=128");
    learned("long", "model.max_length=256");
    // A checkpoint is a model, too.
    let checkpoint = "runs/small/checkpoints/step-00000004";
    succeeds(&average(&[checkpoint, "tuned", "--out", "other"]));
    succeeds(&project.mt(&["quantize", "tuned", "--out", "int8", "-q"]));
    succeeds(&project.train(&[&["--run-dir", "wide"], &sets(&["model.d_ff=128", "train.max_updates=1"])[..]].concat()));
    for args in [
        "runs/small tuned --weights 1",
        "runs/small tuned --weights 1,-1",
        "runs/small tuned --last 2",
        "runs/small nowhere",
        "runs/small int8",
        "runs/small wide",
        "short long",
    ] {
        transcript.run(&format!("average {args} --out no"));
    }
    assert_transcript!(transcript);
    assert!(!project.path("no").exists());
}

/// What a run that is fine-tuned says of sampling is its own, not that of the model it begins with.
#[test]
fn fine_tuning_keeps_its_sampling_when_it_is_resumed() {
    let project = Project::new();
    succeeds(&project.train(&sets(&["train.max_updates=2", "train.average_last=0", "valid.every=0"])));
    let keys = [
        "train.init=runs/small",
        "tokenizer.dropout=0.2",
        "tokenizer.sampling.side=target",
        "train.average_last=0",
        "valid.every=0",
    ];
    let tune = |updates: &str, more: &[&str]| {
        let keys = sets(&[&keys[..], &[updates]].concat());
        project.train(&[&["--run-dir", "tuned"], &keys[..], more].concat())
    };
    succeeds(&tune("train.max_updates=2", &[]));
    let config = String::from_utf8(file(&project, "tuned", "config.toml")).unwrap();
    assert!(config.contains("side = \"target\"") && config.contains("dropout = 0.2"), "{config}");
    succeeds(&tune("train.max_updates=4", &["--resume"]));
}
