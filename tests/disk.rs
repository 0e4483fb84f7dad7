//! If a disk is full or read-only, the run stops and says why, and the last checkpoint stays valid.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::project::{Project, fails, file, stderr, succeeds};
use common::transcript::{Transcript, assert_transcript};
use mt::checkpoint;

/// Many updates, with a checkpoint every third one.
const ENDLESS: &str = "--set train.max_updates=100000 --set train.save_every=3 --set train.keep=2 --set \
                       valid.every=0 --set train.log_every=1000000";

/// Runs a shell command in a project; `mt` in it stands for the binary, whose path may have spaces.
fn shell(project: &Project, line: &str) -> Output {
    let line = line.replace("mt ", "\"$MT\" ");
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(project.folder.path()).env("NO_COLOR", "1");
    command.env("MT", env!("CARGO_BIN_EXE_mt")).output().unwrap()
}

/// The newest checkpoint is valid, no partial one is next to it, and training resumes from it.
fn goes_on(project: &Project, run: &str) {
    let (newest, warnings) = checkpoint::newest_valid(&project.path(run)).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let (step, _) = newest.expect("a checkpoint");
    let updates = format!("train.max_updates={}", step + 2);
    succeeds(&project.train(&["--run-dir", run, "--resume", "--set", &updates]));
}

#[test]
fn a_full_disk_ends_the_run_and_loses_nothing() {
    let project = Project::new();
    let disk = project.path("disk");
    std::fs::create_dir(&disk).unwrap();
    // A private mount that two checkpoints fit on but not three. The run is copied out before the mount disappears.
    let line = format!(
        "mount -t tmpfs -o size=1m tmpfs disk && mt train --config small.toml -q --run-dir disk/run {ENDLESS} --set \
         train.keep=100; code=$?; df disk | tail -1; cp -r disk/run copy; exit $code"
    );
    let quoted = line.replace('\'', "'\\''");
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        return common::skipped("a_full_disk_ends_the_run_and_loses_nothing", "no namespaces here (unshare -rm)");
    }
    let output = shell(&project, &format!("unshare -rm sh -c '{quoted}'"));
    let mut transcript = Transcript::new(&project);
    transcript.stderr_of(&project, "mt train --config small.toml -q --run-dir disk/run > /dev/null", &output);
    assert_transcript!(transcript);
    goes_on(&project, "copy");
}

#[test]
fn a_disk_that_can_hold_no_more_files_is_not_called_full() {
    let project = Project::new();
    std::fs::create_dir(project.path("disk")).unwrap();
    let line = format!(
        "mount -t tmpfs -o size=100m,nr_inodes=60 tmpfs disk && mt train --config small.toml -q --run-dir disk/run \
         {ENDLESS} --set train.keep=100; code=$?; cp -r disk/run copy; exit $code"
    );
    let quoted = line.replace('\'', "'\\''");
    if !Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success()) {
        let name = "a_disk_that_can_hold_no_more_files_is_not_called_full";
        return common::skipped(name, "no namespaces here (unshare -rm)");
    }
    let output = shell(&project, &format!("unshare -rm sh -c '{quoted}'"));
    let mut transcript = Transcript::new(&project);
    transcript.stderr_of(&project, "mt train --config small.toml -q --run-dir disk/run > /dev/null", &output);
    assert_transcript!(transcript);
    goes_on(&project, "copy");
}

#[test]
fn a_limit_on_file_sizes_ends_the_run_and_loses_nothing() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=3"]));
    // In blocks of 512 bytes: less than the model's file.
    let mut transcript = Transcript::new(&project);
    let mut limited = |command: &str| {
        let output = shell(&project, &format!("ulimit -f 20; mt {command}"));
        transcript.record(&format!("ulimit -f 20; mt {command}"), &output);
    };
    limited(&format!("train --config small.toml -q --resume {ENDLESS}"));
    // A model directory is complete or absent, and nothing is left behind that hinders the next try.
    for command in ["average runs/small --last 1 --out new", "quantize runs/small --out new"] {
        limited(command);
        succeeds(&shell(&project, &format!("mt {command} -q && mt translate -q --model new the cat && rm -r new")));
    }
    assert_transcript!(transcript);
    goes_on(&project, "runs/small");
}

/// What was written of lines that are not told of is removed, so that both can be put together.
#[test]
fn translations_that_found_no_room_go_on_where_they_ended() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=3"]));
    project.write("lines.en", "the cat sleeps\na dog\n".repeat(3500));
    let translate = "mt translate --model runs/small -q --min-length 3 --max-length 4 --beam 1";
    succeeds(&shell(&project, &format!("{translate} --input lines.en --output all")));
    let all = String::from_utf8(file(&project, ".", "all")).unwrap();
    // In blocks of 512 bytes: some of the lines.
    let blocks = all.len() / 512 * 3 / 4;
    let output = shell(&project, &format!("ulimit -f {blocks}; {translate} --input lines.en --output part"));
    let part = String::from_utf8(file(&project, ".", "part")).unwrap();
    let lines = part.lines().count();
    assert!(lines > 0 && all.starts_with(&part) && part.ends_with('\n'), "{lines}");
    // How many lines have room depends on the translations.
    let known = |output: Output| {
        let text = stderr(&output).replace(&lines.to_string(), "[LINES]");
        Output { stderr: text.replace(&(lines + 1).to_string(), "[LINES + 1]").into_bytes(), ..output }
    };
    let mut transcript = Transcript::new(&project);
    transcript.record(&format!("ulimit -f [BLOCKS]; {translate} --input lines.en --output part"), &known(output));
    // What others have opened is theirs to cut.
    let output = shell(&project, &format!("ulimit -f {blocks}; {translate} --input lines.en >part"));
    transcript.record(&format!("ulimit -f [BLOCKS]; {translate} --input lines.en > part"), &known(output));
    assert_transcript!(transcript);
}

/// Also those of `mt tokenize`.
#[test]
fn pieces_that_found_no_room_end_with_a_whole_line() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=1"]));
    project.write("lines.en", "the cat sleeps\na dog\n".repeat(3500));
    let tokenize = "mt tokenize --model runs/small -q --input lines.en --output";
    succeeds(&shell(&project, &format!("{tokenize} all")));
    let blocks = file(&project, ".", "all").len() / 512 * 3 / 4;
    let output = shell(&project, &format!("ulimit -f {blocks}; {tokenize} pieces"));
    let pieces = String::from_utf8(file(&project, ".", "pieces")).unwrap();
    let lines = pieces.lines().count();
    assert!(lines > 0 && pieces.ends_with('\n'), "{lines}");
    fails(&output, 1, &[&format!("to go on, begin with line {} of the input", lines + 1)]);
}

/// Until the largest batch has been tried.
#[test]
fn a_run_is_not_replaced_by_one_that_has_no_memory() {
    let project = Project::new();
    for name in ["train.en", "train.de"] {
        let text = std::fs::read_to_string(project.path(name)).unwrap();
        project.write(name, text.repeat(50));
    }
    succeeds(&project.train(&["--set", "train.max_updates=2"]));
    let model = std::fs::read(project.path("runs/small/model.safetensors")).unwrap();
    // The parameters have room, but not what one sub-layer computes for 6,000 pairs.
    let line = "ulimit -v 3000000; mt train --config small.toml --overwrite --set model.d_ff=20000 --set \
                train.max_updates=1 --set train.batch_tokens=1000000";
    let output = shell(&project, line);
    // How much memory is asked for first depends on the threads.
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("out of memory: the system refused another "), "{said}");
    assert!(said.contains("run directory: runs/small") && !said.contains("tried the largest batch"), "{said}");
    assert_eq!(std::fs::read(project.path("runs/small/model.safetensors")).unwrap(), model);
    succeeds(&shell(&project, "mt translate -q --model runs/small the cat"));
}

#[test]
fn a_directory_that_cannot_be_written_ends_the_run_and_loses_nothing() {
    let project = Project::new();
    succeeds(&project.train(&["--set", "train.max_updates=3"]));
    let checkpoints = project.path("runs/small/checkpoints");
    let allow = |mode| std::fs::set_permissions(&checkpoints, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    // Root may write anyway, but not in a namespace where it is nobody.
    let writes_anyway = std::fs::write(checkpoints.join("probe"), "").is_ok();
    if writes_anyway {
        std::fs::remove_file(checkpoints.join("probe")).unwrap();
        if !Command::new("unshare").args(["-U", "true"]).status().is_ok_and(|status| status.success()) {
            let test = "a_directory_that_cannot_be_written_ends_the_run_and_loses_nothing";
            return common::skipped(test, "this user may write anywhere, and has no namespaces (unshare -U)");
        }
    }
    let line = "mt train --config small.toml -q --resume";
    let output = shell(&project, &if writes_anyway { format!("unshare -U {line}") } else { line.to_owned() });
    allow(0o755);
    let mut transcript = Transcript::new(&project);
    transcript.record(line, &output);
    assert_transcript!(transcript);
    goes_on(&project, "runs/small");
}

#[test]
fn a_read_only_disk_and_a_missing_directory_are_named() {
    let project = Project::new();
    project.write("file", "");
    let mut transcript = Transcript::new(&project);
    transcript.train(&["--run-dir", "file/run"]);
    assert_transcript!(transcript);
    // Not even root can write there.
    let places = ["/proc/run", "/sys/run"];
    let places: Vec<&str> =
        places.into_iter().filter(|place| Path::new(place).parent().is_some_and(Path::is_dir)).collect();
    if places.is_empty() {
        return common::skipped("a_read_only_disk_and_a_missing_directory_are_named", "there is no /proc and no /sys");
    }
    // In the system's words.
    for place in places {
        let output = project.train(&["--run-dir", place]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(place), "{}", stderr(&output));
    }
}
