//! Files, functions and types that the documents name exist, and flags that help names.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use mt::cli::Cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md, CONTRIBUTING.md and `docs/`.
fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    docs.chain(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name))).collect()
}

/// The parts of a line between backticks.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn paths_that_documents_name_exist() {
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let is_path = |code: &&str| {
                let begins =
                    ["src/", "tests/", "configs/", "scripts/", "docs/"].iter().any(|top| code.starts_with(top));
                begins && !code.contains([' ', '*', '{', '…', '<', '$'])
            };
            for path in code(line).filter(is_path) {
                named += 1;
                if !root().join(path).exists() {
                    missing.push(format!("{}:{number}: {path}", document.display()));
                }
            }
        }
    }
    assert!(named > 100, "only {named} paths found");
    assert!(missing.is_empty(), "{missing:#?}");
}

/// In the tables of docs/architecture.md, each row ends with a function or type and its file.
#[test]
fn the_hops_of_the_architecture_are_in_their_files() {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut rows = 0;
    for line in text.lines() {
        let found: Vec<&str> = code(line).collect();
        let [.., item, path] = &found[..] else { continue };
        if !line.ends_with(&format!("| `{item}` | `{path}` |")) {
            continue;
        }
        rows += 1;
        let source = fs::read_to_string(root().join(path)).unwrap();
        let is_here = ["fn", "struct", "trait", "enum"].iter().any(|kind| {
            let declared = format!("{kind} {item}");
            let ends =
                |at: usize| !source[at + declared.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
            source.match_indices(&declared).any(|(at, _)| ends(at))
        });
        assert!(is_here, "{path} has no {item}");
    }
    assert!(rows > 30, "only {rows} rows found");
}

#[test]
fn help_names_flags_that_the_command_has() {
    let cli = Cli::command();
    for command in cli.get_subcommands() {
        let flags: Vec<_> =
            command.get_arguments().chain(cli.get_arguments()).filter_map(|arg| arg.get_long()).collect();
        let helps = command.get_arguments().filter_map(|arg| arg.get_long_help().or(arg.get_help()));
        for help in helps.map(ToString::to_string) {
            let words = help.split(|c: char| c != '-' && !c.is_alphanumeric());
            for flag in words.filter_map(|word| word.strip_prefix("--")) {
                assert!(flags.contains(&flag), "mt {} has no --{flag}: {help}", command.get_name());
            }
        }
    }
}
