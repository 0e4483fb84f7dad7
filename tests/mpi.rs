//! Training on several ranks, which `mpirun` starts: the same training as that of one process, and no rank that waits
//! for one that is gone.
#![cfg(feature = "mpi")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::project::{Project, Running, fails, file, stderr, succeeds, wait_for_log};
use common::{relative_error, skipped};
use mt::rng::key;
use serde_json::Value;

/// An update of twelve micro-batches: one, two, three and four ranks share it equally.
const ACCUMULATE: &str = "train.accumulate=12";
/// Longer than a rank is silent on a busy machine, so that no other cause is found.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether `mpirun` is here; says so if it is not.
fn has_mpi(test: &str) -> bool {
    let has = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has {
        skipped(test, "there is no mpirun (Debian: openmpi-bin)");
    }
    has
}

/// `mt train` on so many ranks, of which each has one thread. It ends with the test, whatever becomes of it.
fn command(project: &Project, ranks: usize, run: &str, more: &[&str]) -> Command {
    let args = ["train", "--config", "small.toml", "--run-dir", run, "--device", "cpu", "--threads", "1"];
    let own = ["--set", ACCUMULATE, "--set", "train.batch_tokens=40", "--set", "valid.patience=0"];
    let args = [&args[..], &own, more].concat();
    let alone = project.command(&args);
    let mut command = if ranks == 1 { project.command(&args) } else { Command::new("mpirun") };
    if ranks > 1 {
        command.args(["-n", &ranks.to_string()]).arg(alone.get_program()).args(alone.get_args());
        command.current_dir(project.folder.path()).env("NO_COLOR", "1").stdin(Stdio::null());
        // Open MPI refuses both without these.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        // More ranks than cores must not wait actively for each other.
        command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn train(project: &Project, ranks: usize, run: &str, more: &[&str]) -> Output {
    Running::start(&mut command(project, ranks, run, more)).output()
}

fn model(project: &Project, run: &str) -> Vec<u8> {
    file(project, run, "model.safetensors")
}

/// The parameters of a run's model but for the biases of keys: their gradients are zero in theory, so rounding decides
/// where they go.
fn parameters(project: &Project, run: &str) -> Vec<f32> {
    let bytes = model(project, run);
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut named: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| !name.ends_with("k_proj.bias")).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let bytes = named.iter().flat_map(|(_, view)| view.data().as_chunks::<4>().0);
    bytes.map(|four| f32::from_le_bytes(*four)).collect()
}

fn losses(project: &Project, run: &str) -> Vec<f64> {
    project.logged(run, "train").iter().map(|entry| entry["loss"].as_f64().unwrap()).collect()
}

/// What does not depend on rounding: updates, tokens, positions.
fn outline(project: &Project, run: &str) -> Vec<[Value; 4]> {
    let keys = ["event", "update", "epoch", "target_tokens"];
    project.log(run).iter().map(|entry| keys.map(|key| entry[key].clone())).collect()
}

/// The processes that `mpirun` has started, by rank.
fn processes(mpirun: u32, count: usize) -> Vec<u32> {
    let is_ours = |process: &Path| {
        let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == ["PPid:", &mpirun.to_string()])
    };
    let rank = |process: &Path| -> Option<usize> {
        let environment = std::fs::read(process.join("environ")).ok()?;
        let variable = environment.split(|byte| *byte == 0).find_map(|it| it.strip_prefix(b"OMPI_COMM_WORLD_RANK="))?;
        std::str::from_utf8(variable).ok()?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let mut ranks: Vec<(usize, u32)> = all
        .filter(|process| is_ours(process))
        .filter_map(|process| Some((rank(&process)?, process.file_name()?.to_str()?.parse().ok()?)))
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks.len(), count);
    ranks.into_iter().map(|(_, process)| process).collect()
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

fn is_alive(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// Any number of ranks makes the same updates of the same data, with losses that differ by rounding alone.
#[test]
fn the_number_of_ranks_changes_nothing_but_rounding() {
    if !has_mpi("the_number_of_ranks_changes_nothing_but_rounding") {
        return;
    }
    let project = Project::new();
    succeeds(&train(&project, 1, "one", &[]));
    let (one, wanted) = (losses(&project, "one"), parameters(&project, "one"));
    assert_eq!(one.len(), 12);
    for ranks in [2, 4] {
        let run = format!("of-{ranks}");
        let output = train(&project, ranks, &run, &[]);
        succeeds(&output);
        assert!(stderr(&output).contains(&format!("ranks: {ranks} on one machine")), "{}", stderr(&output));
        assert_eq!(outline(&project, &run), outline(&project, "one"));
        for (update, (got, want)) in losses(&project, &run).iter().zip(&one).enumerate() {
            assert!((got / want - 1.0).abs() < 1e-4, "{ranks} ranks, update {}: {got}, {want}", update + 1);
        }
        let error = relative_error(&parameters(&project, &run), &wanted);
        assert!(error < 1e-3, "{ranks} ranks: {error}");
        let logged = &project.logged(&run, "train")[11];
        assert_eq!((&logged["ranks"], logged["idle"].as_array().unwrap().len()), (&ranks.into(), ranks));
        // Nothing that a rank beside rank 0 has written.
        assert_eq!(stderr(&output).matches("final model:").count(), 1, "{}", stderr(&output));
    }
    // The same bits again.
    succeeds(&train(&project, 2, "again", &[]));
    assert!(model(&project, "again") == model(&project, "of-2"));
}

/// Whichever rank goes, and however: the others end, say which one it was, and training goes on with other numbers of
/// ranks.
#[test]
fn no_rank_waits_for_one_that_is_gone() {
    if !has_mpi("no_rank_waits_for_one_that_is_gone") {
        return;
    }
    let project = Project::new();
    let more = ["--resume", "--set", "train.max_updates=100000", "--set", "runtime.rank_timeout=5"];
    for (number, (ranks, gone, how)) in
        [(3, 1, "-KILL"), (2, 1, "-STOP"), (4, 0, "-KILL"), (2, 0, "-STOP")].into_iter().enumerate()
    {
        let log = project.path("run/log.jsonl");
        let before = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let mut running = Running::start(&mut command(&project, ranks, "run", &more));
        wait_for_log(&mut running, &log);
        let since = Instant::now();
        let count = || std::fs::read_to_string(&log).map_or(0, |text| text.lines().count());
        while count() < before + 12 {
            assert!(running.try_wait().unwrap().is_none() && since.elapsed() < PATIENCE, "{number}: {}", count());
            std::thread::sleep(Duration::from_millis(20));
        }
        let processes = processes(running.id(), ranks);
        signal(how, processes[gone]);
        let since = Instant::now();
        let output = running.output();
        let (text, waited) = (stderr(&output), since.elapsed());
        assert!(!output.status.success() && waited < PATIENCE, "{number}: {waited:?}\n{text}");
        let what = if how == "-KILL" { "has ended" } else { "has been silent for 5 seconds" };
        let named = text.lines().any(|line| {
            line.starts_with(&format!("error: rank {gone} on "))
                && line.contains(what)
                && line.contains("after update ")
        });
        assert!(named, "{number}: {text}");
        assert!(!processes.iter().any(|process| is_alive(*process)), "{number}: a process is left");
    }
    // The last checkpoint is whole, and one rank goes on from it.
    let newest = mt::checkpoint::newest_valid(&project.path("run")).unwrap();
    let step = newest.0.expect("there is a checkpoint").0;
    let last = format!("train.max_updates={}", step + 2);
    let output = train(&project, 1, "run", &["--resume", "--set", &last]);
    succeeds(&output);
    assert!(stderr(&output).contains(&format!("resuming at update {step}")), "{}", stderr(&output));
}

/// A signal to one rank stops all, and what each of several numbers of ranks has saved, any other goes on from.
#[test]
fn ranks_stop_together_and_go_on_with_other_numbers() {
    if !has_mpi("ranks_stop_together_and_go_on_with_other_numbers") {
        return;
    }
    let project = Project::new();
    succeeds(&train(&project, 1, "whole", &["--set", "train.max_updates=30"]));
    // Together more than the whole; each start goes on for a while.
    for (ranks, last) in [(2, 8), (3, 13), (1, 19), (4, 30)] {
        let last = format!("train.max_updates={last}");
        succeeds(&train(&project, ranks, "parts", &["--resume", "--set", &last]));
    }
    let of = |run: &str| {
        let entries = project.logged(run, "train");
        entries.iter().map(|entry| (entry["update"].clone(), entry["target_tokens"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(of("parts"), of("whole"));
    let mut running = Running::start(&mut command(&project, 2, "stopped", &["--set", "train.max_updates=100000"]));
    wait_for_log(&mut running, &project.path("stopped/log.jsonl"));
    // Not rank 0, which saves.
    signal("-TERM", processes(running.id(), 2)[1]);
    let output = running.output();
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("everything is saved"), "{text}");
    assert!(!text.contains("error: rank"), "{text}");
    let saved = mt::checkpoint::newest_valid(&project.path("stopped")).unwrap().0;
    let logged = project.logged("stopped", "train").last().unwrap()["update"].as_u64();
    assert_eq!(saved.map(|saved| saved.0), logged);
}

/// What cannot work is refused before anything is written, with the rank that is the cause.
#[test]
fn ranks_that_do_not_fit_together_are_refused() {
    if !has_mpi("ranks_that_do_not_fit_together_are_refused") {
        return;
    }
    let project = Project::new();
    let output = train(&project, 2, "run", &["--set", "train.accumulate=1"]);
    // Whichever of them is the first to say so; the launcher ends the other one.
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("there are 2 ranks"), "{text}");
    assert!(text.contains("train.accumulate, which counts over all ranks: 2 makes updates of 80 tokens"), "{text}");
    let output = train(&project, 2, "idle", &["--set", "train.accumulate=3", "--set", "train.max_updates=2"]);
    succeeds(&output);
    assert!(stderr(&output).contains("they are idle for 25 % of the time"), "{}", stderr(&output));
    // Another seed for rank 1.
    let alike = command(&project, 2, "run", &[]);
    // Without `-n 2`.
    let args: Vec<_> = alike.get_args().skip(2).collect();
    let mut mixed = Command::new("mpirun");
    mixed.args(["-n", "1"]).args(&args).args([":", "-n", "1"]).args(&args).args(["--seed", "7"]);
    mixed.envs(alike.get_envs().filter_map(|(key, value)| Some((key, value?)))).current_dir(project.folder.path());
    mixed.stdin(Stdio::null());
    let output = mixed.output().unwrap();
    fails(&output, 1, &["rank 1 on ", " differs from rank 0 in the configuration"]);
    assert!(!project.path("run").exists());
    // Ranks whose launcher is not MPI's.
    let mut torchrun = project.command(&["train", "--config", "small.toml"]);
    let output = torchrun.env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    fails(&output, 2, &["this is rank 0 of 2, started by torchrun", "ranks on processors need MPI", "mpirun"]);
}

/// The newest whole checkpoint of a run; 0 before the first.
fn newest(project: &Project, run: &str) -> u64 {
    mt::checkpoint::newest_valid(&project.path(run)).unwrap().0.map_or(0, |(step, _)| step)
}

/// Thirty kills of a rank, each time with another number of ranks afterwards: no update is lost or made twice, and the
/// same history without kills gives the same bits.
#[test]
#[ignore = "some minutes"]
fn kills_and_other_numbers_of_ranks_lose_nothing() {
    if !has_mpi("kills_and_other_numbers_of_ranks_lose_nothing") {
        return;
    }
    let project = Project::new();
    let keys = ["--resume", "--set", "train.save_every=2", "--set", "runtime.rank_timeout=5"];
    let log = project.path("killed/log.jsonl");
    let updates = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"event\":\"train\"")).count() as u64
    };
    // How many ranks went on from which update.
    let mut history = Vec::new();
    for kill in 0..30 {
        let ranks = [3, 1, 4, 2][kill % 4];
        let from = newest(&project, "killed");
        history.push((ranks, from));
        let more = [&keys[..], &["--set", "train.max_updates=100000"]].concat();
        // A run that goes on has a new log, without what came after the checkpoint.
        let inode = || std::fs::metadata(&log).map(|metadata| metadata.ino()).ok();
        let before = inode();
        let mut running = Running::start(&mut command(&project, ranks, "killed", &more));
        let since = Instant::now();
        let wanted = from + 1 + key(1, "kills", &[kill as u64]) % 9;
        while inode() == before || updates() < wanted {
            assert!(running.try_wait().unwrap().is_none(), "kill {kill}: it has ended by itself");
            assert!(since.elapsed() < PATIENCE, "kill {kill}: it does not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
        let victim = if ranks == 1 { running.id() } else { processes(running.id(), ranks)[kill % ranks] };
        signal("-KILL", victim);
        let output = running.output();
        assert!(!output.status.success(), "kill {kill}: {}", stderr(&output));
        assert!(newest(&project, "killed") + 2 >= wanted.saturating_sub(1), "kill {kill}");
    }
    let from = newest(&project, "killed");
    history.push((2, from));
    let last = format!("train.max_updates={}", from + 5);
    let more = [&keys[..], &["--set", &last]].concat();
    succeeds(&train(&project, 2, "killed", &more));
    println!("30 kills in {} updates: {history:?}", from + 5);
    let of = |run: &str| {
        let entries = project.logged(run, "train");
        entries.iter().map(|entry| (entry["update"].clone(), entry["target_tokens"].clone())).collect::<Vec<_>>()
    };
    succeeds(&train(&project, 1, "whole", &more));
    assert_eq!(of("killed"), of("whole"));
    // The same history, without kills.
    let ends = history.iter().skip(1).map(|(_, from)| *from).chain([from + 5]);
    for ((ranks, from), end) in history.iter().zip(ends) {
        assert_eq!(newest(&project, "again"), *from);
        let last = format!("train.max_updates={end}");
        if end > *from {
            succeeds(&train(&project, *ranks, "again", &[&keys[..], &["--set", &last]].concat()));
        }
    }
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let name = format!("checkpoints/step-{:08}/{name}", from + 5);
        assert!(file(&project, "again", &name) == file(&project, "killed", &name), "{name}");
    }
}

/// Of Multi30k: the gradients of the first update, by the optimizer's first moments, and the losses of sixty.
#[test]
#[ignore = "some minutes"]
fn ranks_train_multi30k_alike() {
    let Some(data) = std::env::var_os("MT_TEST_DATA").filter(|_| has_mpi("ranks_train_multi30k_alike")) else {
        return skipped("ranks_train_multi30k_alike", "MT_TEST_DATA is not set");
    };
    let project = Project::new();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/multi30k-tiny.toml");
    std::fs::copy(config, project.path("small.toml")).unwrap();
    let root = format!("data.root={}", Path::new(&data).join("multi30k").display());
    let keys = |updates: &str| -> Vec<String> {
        let updates = format!("train.max_updates={updates}");
        let keys = [
            &root,
            "train.accumulate=4",
            "train.batch_tokens=1024",
            "train.log_every=1",
            "valid.every=0",
            "train.save_every=1",
            &updates,
        ];
        keys.iter().flat_map(|key| ["--set".to_owned(), (*key).to_owned()]).collect()
    };
    let moments = |run: &str| {
        let bytes = file(&project, run, "checkpoints/step-00000001/optimizer.safetensors");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let first = tensors.tensors().into_iter().filter(|(name, _)| name == "adam.first_moment");
        let bytes = first.flat_map(|(_, view)| view.data().to_vec()).collect::<Vec<_>>();
        bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect::<Vec<f32>>()
    };
    for (updates, runs) in [("1", "first"), ("60", "losses")] {
        let keys = keys(updates);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        succeeds(&train(&project, 1, &format!("{runs}-1"), &keys));
        for ranks in [2, 3, 4] {
            let run = format!("{runs}-{ranks}");
            succeeds(&train(&project, ranks, &run, &keys));
            if updates == "1" {
                let (got, want) = (moments(&run), moments("first-1"));
                assert!(want.len() > 1_000_000, "{}", want.len());
                let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
                let difference = norm(&mut got.iter().zip(&want).map(|(a, b)| f64::from(a - b)));
                let error = difference / norm(&mut want.iter().map(|x| f64::from(*x)));
                println!("{ranks} ranks: gradients of the first update {error:.1e} apart");
                assert!(error < 1e-6, "{ranks} ranks: {error}");
            } else {
                let (got, want) = (losses(&project, &run), losses(&project, "losses-1"));
                assert_eq!((got.len(), want.len()), (60, 60));
                let apart = got.iter().zip(&want).map(|(got, want)| (got / want - 1.0).abs()).fold(0.0, f64::max);
                println!("{ranks} ranks: losses of 60 updates {apart:.1e} apart");
                assert!(apart < 1e-4, "{ranks} ranks: {apart}");
            }
        }
    }
}

/// Rank 0, which cannot write: the others end and name it.
#[test]
fn a_rank_without_disk_is_named() {
    if !has_mpi("a_rank_without_disk_is_named") {
        return;
    }
    let project = Project::new();
    let alike = command(&project, 2, "run", &["--set", "train.max_updates=100000"]);
    let args: Vec<_> = alike.get_args().skip(2).collect();
    let mut mixed = Command::new("mpirun");
    mixed.args(["-n", "1", "sh", "-c", "ulimit -f 40; exec \"$@\"", "sh"]).args(&args);
    mixed.args([":", "-n", "1"]).args(&args).stdin(Stdio::null());
    mixed.envs(alike.get_envs().filter_map(|(key, value)| Some((key, value?)))).current_dir(project.folder.path());
    let since = Instant::now();
    let output = Running::start(mixed.stdout(Stdio::null()).stderr(Stdio::piped())).output();
    let text = stderr(&output);
    assert!(!output.status.success() && since.elapsed() < PATIENCE, "{text}");
    // Rank 1 says it, perhaps with its own number before.
    let is_named = |line: &str| line.starts_with("error: ") && line.contains("rank 0 on ");
    assert!(text.lines().any(is_named) && text.contains("raise the limit on file sizes"), "{text}");
}
