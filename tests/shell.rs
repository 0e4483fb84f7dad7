//! What shells and `man` are told of the command line: completions and manual pages.

mod common;

use std::process::Command;

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use common::project::{Project, fails, stdout, succeeds};
use mt::cli::Cli;

fn script(project: &Project, shell: Shell) -> String {
    let output = project.mt(&["completions", &shell.to_string()]);
    succeeds(&output);
    stdout(&output)
}

#[test]
fn scripts_know_all_commands_and_flags() {
    let project = Project::new();
    for shell in Shell::value_variants() {
        let script = script(&project, *shell);
        for command in Cli::command().get_subcommands() {
            assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            for flag in command.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(script.contains(flag), "{shell}: {} --{flag}", command.get_name());
            }
        }
    }
    fails(&project.mt(&["completions", "cmd"]), 2, &["bash", "zsh", "fish"]);
}

/// With `-n`, these shells only read a script.
#[test]
fn shells_can_read_their_scripts() {
    let project = Project::new();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let name = shell.to_string();
        project.write(&name, script(&project, shell));
        match Command::new(&name).arg("-n").arg(project.path(&name)).output() {
            Ok(output) => succeeds(&output),
            Err(_) if shell != Shell::Bash => {
                eprintln!("SKIPPED reading the completions of {name}: it is not installed")
            }
            Err(error) => panic!("bash: {error}"),
        }
    }
}

/// What bash offers for the last word of a line.
fn offered(project: &Project, line: &str) -> Vec<String> {
    project.write("completions", script(project, Shell::Bash));
    let words: Vec<&str> = line.split(' ').collect();
    let (current, before) = (words[words.len() - 1], words[words.len() - 2]);
    // As bash calls it; only within bash's own completion may `compopt` be called.
    let run = "compopt() { :; }; . ./completions; COMP_WORDS=($1); COMP_CWORD=$2; COMP_LINE=$1\n\
               [ -n \"$4\" ] || COMP_WORDS+=('')\n_mt mt \"$4\" \"$3\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.current_dir(project.folder.path()).args(["-c", run, "bash", line, &(words.len() - 1).to_string()]);
    let output = bash.args([before, current]).output().unwrap();
    succeeds(&output);
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_values_and_files() {
    let project = Project::new();
    for (line, expected) in [
        ("mt tr", "train translate trim"),
        ("mt completions ", "bash elvish fish powershell zsh"),
        ("mt translate --leng", "--length-penalty --length-penalty-kind"),
        ("mt translate --long ", "split truncate error"),
        ("mt translate --precision ", "f32 bf16 int8 auto"),
        ("mt translate --length-penalty-kind ", "gnmt power average"),
        ("mt translate --checkpoint ", "best last final"),
        ("mt score --precision i", "int8"),
        ("mt embed --pool ", "mean max first"),
        ("mt eval --format ", "text json latex"),
        ("mt eval --tokenize ", "13a intl char zh none flores101 flores200 spBLEU-1K spm ja-mecab ko-mecab"),
        ("mt eval --smooth ", "exp floor add-k none"),
        ("mt export --format ", "ct2 hf hf-marian"),
        ("mt export --quantization ", "float32 int8"),
        ("mt info --device ", "auto cpu cuda metal"),
        ("mt info --color ", "auto always never"),
        ("mt train --config sm", "small.toml"),
        ("mt eval --src valid.", "valid.de valid.en"),
    ] {
        let mut words = offered(&project, line);
        // Where a command takes values by their place, flags are offered, too.
        words.retain(|word| line.ends_with("--leng") || !word.starts_with('-'));
        words.sort();
        let mut expected: Vec<&str> = expected.split(' ').collect();
        expected.sort();
        assert_eq!(words, expected, "{line}");
    }
}

/// The commands check these values themselves, so nothing else compares them with what is offered.
#[test]
fn values_that_are_offered_are_taken() {
    let cli = Cli::command();
    let info = cli.find_subcommand("info").unwrap();
    let offered = |name: &str| {
        let flag = info.get_arguments().chain(cli.get_arguments()).find(|flag| flag.get_long() == Some(name));
        let values = flag.unwrap().get_possible_values();
        assert!(values.len() > 2, "{name}");
        values.into_iter().map(|value| value.get_name().to_owned())
    };
    for name in offered("device") {
        name.parse::<mt::device::DeviceName>().unwrap();
    }
    for name in offered("checkpoint") {
        name.parse::<mt::checkpoint::Which>().unwrap();
    }
}

#[test]
fn each_command_has_a_manual_page_with_its_flags() {
    let project = Project::new();
    succeeds(&project.mt(&["man", "manual/man1"]));
    let mut pages = 0;
    let mut cli = Cli::command();
    cli.build();
    let commands = cli.get_subcommands().filter(|command| command.get_name() != "help");
    for (command, name) in
        commands.map(|command| (command, format!("mt-{}", command.get_name()))).chain([(&cli, "mt".to_owned())])
    {
        let page = std::fs::read_to_string(project.path(&format!("manual/man1/{name}.1"))).unwrap();
        assert!(page.contains(&name.replace('-', "\\-")), "{name}");
        for flag in command.get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(page.contains(&format!("\\-\\-{}", flag.replace('-', "\\-"))), "{name}: --{flag}");
        }
        pages += 1;
    }
    assert_eq!(std::fs::read_dir(project.path("manual/man1")).unwrap().count(), pages);
}
