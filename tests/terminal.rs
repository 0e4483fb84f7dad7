//! What others wrote, in names, files and logs, neither commands a terminal nor forges a message; and help that cannot
//! be written.

mod common;

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::Stdio;
use std::ptr::null_mut;

use common::project::{Project, stdout, succeeds};
use common::transcript::{Transcript, assert_transcript};

/// A name that would clear the screen, turn what follows around, and forge an error.
const NAME: &str = "a\u{1b}[2J\u{202e}\nerror: forged\u{9b}1m";
const SHOWN: &str = "a\\u{1b}[2J\\u{202e}\\nerror: forged\\u{9b}1m";

fn is_harmless(text: &str) -> bool {
    !text.contains(|c: char| (c.is_control() && !matches!(c, '\n' | '\r' | '\t')) || c == '\u{202e}')
}

/// A run of that name, of which a report can be made.
fn with_run() -> Project {
    let project = Project::new();
    std::fs::create_dir(project.path(NAME)).unwrap();
    project.write(&format!("{NAME}/config.toml"), "");
    project.write(&format!("{NAME}/log.jsonl"), "{\"event\":\"train\",\"update\":1,\"loss\":2.5}\n");
    project
}

#[test]
fn errors_and_notes_show_names_as_escapes() {
    let project = with_run();
    let mut transcript = Transcript::new(&project);
    let mut shows = |args: &[&str]| {
        let output = project.mt(args);
        transcript.record(&format!("mt {args:?}"), &output);
    };
    for args in [
        &["info", "no-\u{1b}[2J\nerror: forged"][..],
        &["eval", "--hyp", NAME, "--ref", "valid.de"],
        &["translate", "--set", NAME],
        &["\u{1b}[2J\u{202e}"],
        &["train", "--config", "small.toml", "--set", "model.\u{1b}[2J\nerror: forged=1"],
    ] {
        shows(args);
    }
    std::fs::rename(project.path(NAME).join("log.jsonl"), project.path(NAME).join("other")).unwrap();
    shows(&["report", NAME]);
    assert!(is_harmless(&transcript.text()), "{}", transcript.text());
    assert_transcript!(transcript);
}

#[test]
fn scores_show_names_as_escapes_and_json_says_the_same() {
    let project = Project::new();
    std::fs::copy(project.path("valid.de"), project.path(NAME)).unwrap();
    let mut transcript = Transcript::new(&project);
    let mut score = |more: &[&str]| {
        let args = [&["eval", "--hyp", NAME, "--hyp", "valid.de", "--ref", "valid.de"], more].concat();
        let output = project.mt(&args);
        transcript.record(&format!("mt {args:?}"), &output);
        stdout(&output)
    };
    score(&[]);
    let json: serde_json::Value = serde_json::from_str(&score(&["--json"])).unwrap();
    assert!(json.to_string().contains("\u{202e}"), "{json}");
    assert!(is_harmless(&transcript.text()), "{}", transcript.text());
    assert_transcript!(transcript);
}

#[test]
fn output_is_raw_in_a_pipe_and_harmless_on_a_terminal() {
    let project = with_run();
    let piped = project.mt(&["report", NAME]);
    succeeds(&piped);
    assert_eq!(stdout(&piped), format!("{NAME}/report.html\n"));

    let (mut master, slave) = terminal();
    let mut command = project.command(&["report", NAME]);
    let status = command.stdout(Stdio::from(slave)).stderr(Stdio::null()).status().unwrap();
    // Its end of the terminal closes with it.
    drop(command);
    assert!(status.success());
    let mut shown = Vec::new();
    // At the end, Linux reports an error instead of an empty read.
    let _ = master.read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap();
    assert!(is_harmless(&shown) && shown == format!("{SHOWN}/report.html\r\n"), "{shown:?}");
}

/// The two ends of a terminal.
fn terminal() -> (File, File) {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both numbers live until the call returns, and it takes no name, settings or size.
    let made = unsafe { libc::openpty(&raw mut master, &raw mut slave, null_mut(), null_mut(), null_mut()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: they are open, and nobody else's.
    unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) }
}

#[test]
#[cfg(target_os = "linux")]
fn help_that_cannot_be_written_is_an_error() {
    let project = Project::new();
    let mut transcript = Transcript::new(&project);
    for args in [&["--help"][..], &["--version"], &["train", "--help"], &["help", "eval"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = project.command(args).stdout(full).output().unwrap();
        transcript.record(&format!("mt {} > /dev/full", args.join(" ")), &output);
        succeeds(&project.mt(args));
    }
    assert_transcript!(transcript);
}
