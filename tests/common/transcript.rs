//! What commands print, as a text that a snapshot in tests/snapshots holds.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::project::{Project, sets, stderr, stdout};

/// Commands as they are typed, each with its exit code and all that it printed.
///
/// A snapshot shows a change of any word, so a transcript is for text that is the same on every machine. What differs
/// by itself is replaced ([`FILTERS`]); losses, scores and translations of a trained model depend on
/// the processor and do not belong here.
pub struct Transcript<'a> {
    project: &'a Project,
    /// Its directory, and those of other projects that commands ran in.
    folders: Vec<PathBuf>,
    text: String,
}

impl<'a> Transcript<'a> {
    pub fn new(project: &'a Project) -> Self {
        Self { project, folders: vec![project.folder.path().to_owned()], text: String::new() }
    }

    /// Runs `mt` in the project and records it.
    pub fn mt(&mut self, args: &[&str]) -> Output {
        let output = self.project.mt(args);
        self.record(&format!("mt {}", typed(args)), &output);
        output
    }

    /// The same, with arguments that hold no spaces.
    pub fn run(&mut self, line: &str) -> Output {
        self.mt(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command of `mt` that the test has prepared, with these variables, and records both.
    pub fn command(&mut self, command: &mut Command, variables: &[(&str, &str)]) -> Output {
        let output = command.envs(variables.iter().copied()).output().unwrap();
        self.folders.extend(command.get_current_dir().map(Path::to_owned));
        let set: String = variables.iter().map(|(name, value)| format!("{name}={} ", typed(&[value]))).collect();
        let args: Vec<&str> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
        self.record(&format!("{set}mt {}", typed(&args)), &output);
        output
    }

    /// Runs `mt` with a file of the project as its input, and records it.
    pub fn with_input(&mut self, args: &[&str], file: &str) -> Output {
        let input = std::fs::File::open(self.project.path(file)).unwrap();
        let output = self.project.command(args).stdin(input).output().unwrap();
        self.record(&format!("mt {} < {file}", typed(args)), &output);
        output
    }

    /// As [`Project::train`].
    pub fn train(&mut self, more: &[&str]) -> Output {
        self.mt(&[&["train", "--config", "small.toml", "-q"], more].concat())
    }

    /// Runs a command on small.toml in which these keys are set.
    pub fn with_keys(&mut self, command: &str, keys: &[&str]) -> Output {
        self.mt(&[&[command, "--config", "small.toml"], &sets(keys)[..]].concat())
    }

    /// Runs `mt` in the project and records only what it says on stderr, where stdout is of no interest.
    pub fn messages(&mut self, args: &[&str]) -> Output {
        let output = self.project.mt(args);
        let shown = Output { stdout: Vec::new(), ..output.clone() };
        self.record(&format!("mt {} > /dev/null", typed(args)), &shown);
        output
    }

    /// Runs training and records only its warnings and notes: the other lines have losses and speeds.
    pub fn warnings(&mut self, args: &[&str]) -> Output {
        let output = self.project.mt(args);
        let (said, mut is_shown) = (stderr(&output), false);
        let lines = said.split_inclusive('\n').filter(|line| {
            let is_label = ["warning: ", "note: ", "error: "].iter().any(|label| line.starts_with(label));
            // What belongs to it is indented.
            is_shown = (is_label && !OF_LOSSES.iter().any(|words| line.contains(words)))
                || (is_shown && line.starts_with(' '));
            is_shown
        });
        let shown = Output { stdout: Vec::new(), stderr: lines.collect::<String>().into_bytes(), ..output.clone() };
        self.record(&format!("mt {} # warnings and notes", typed(args)), &shown);
        output
    }

    /// Says what the next command finds, where the command itself does not show it.
    pub fn note(&mut self, note: &str) {
        self.text += &format!("# {note}\n");
    }

    /// Records what a command of another project said on stderr.
    pub fn stderr_of(&mut self, project: &Project, typed: &str, output: &Output) {
        self.folders.push(project.folder.path().to_owned());
        self.record(typed, &Output { stdout: Vec::new(), ..output.clone() });
    }

    /// Records what a command printed that the test ran itself.
    pub fn record(&mut self, typed: &str, output: &Output) {
        let code = output.status.code().map_or_else(|| output.status.to_string(), |code| format!("exit code {code}"));
        self.text += &format!("$ {typed}\n[{code}]\n");
        for (stream, printed) in [("stdout", stdout(output)), ("stderr", stderr(output))] {
            if !printed.is_empty() {
                self.text += &format!("[{stream}]\n{}\n", printed.trim_end_matches('\n'));
            }
        }
        self.text += "\n";
    }

    pub fn text(&self) -> String {
        assert!(!self.text.is_empty() && !self.text.contains("panicked at"), "{}", self.text);
        // A Mac's temporary directory is a link.
        let real = self.folders.iter().filter_map(|folder| folder.canonicalize().ok());
        let folders = real.chain(self.folders.iter().cloned()).map(|folder| folder.display().to_string());
        folders.fold(self.text.clone(), |text, folder| text.replace(&folder, "[DIR]"))
    }
}

/// Notes of training that come or do not come by the last digits of losses, which depend on the processor.
const OF_LOSSES: &[&str] = &[" is better than ", "validation has not improved", "the loss of update "];

/// Patterns of what differs between runs and machines, and what stands for it in a snapshot.
pub const FILTERS: &[(&str, &str)] = &[
    (r"about \d+ target tokens/s", "about [SPEED] target tokens/s"),
    (r"updates in about .*", "updates in about [TIME]"),
    (r"\b(in|after) \d+\.\d s\b", "$1 [TIME]"),
    (r"\b\d+(\.\d+)? ([KMGT]i)?B\b", "[SIZE]"),
    (r"\.\d+\.tmp\b", ".[PROCESS].tmp"),
    (r"\bprocess \d+ on \S+ is training\b", "process [PROCESS] on [HOST] is training"),
    // It has losses with all their digits.
    (r"\b(state\.json is damaged: it has \d+ bytes, but its manifest says) \d+", "$1 [SIZE]"),
    // How full a disk is.
    (r"\b\d+( bytes of \d+)? are free\b", "[SIZE]$1 are free"),
    (r"\b127\.0\.0\.1:\d+\b", "127.0.0.1:[PORT]"),
    // Of validations that find nearly the same.
    (r"\b(best checkpoint, of update|best, update) \d+", "$1 [UPDATE]"),
    (r"\b(the mean cosine between their weights is) \d\.\d+", "$1 [COSINE]"),
    // Logarithms differ in their last digits.
    (r"\b(\d+\.\d{6})\d{3,}", "$1…"),
    (r"\b(text|vocabulary)-[0-9a-f]{16}\b", "$1-[HASH]"),
    (r"\bmt([- ])\d+\.\d+\.\d+\b", "mt$1[VERSION]"),
];

/// Arguments as a shell takes them.
fn typed(args: &[&str]) -> String {
    let is_plain =
        |arg: &str| !arg.is_empty() && !arg.contains(|c: char| c.is_whitespace() || "'\"[]{}<>|$*\\".contains(c));
    let quoted = |arg: &&str| if is_plain(arg) { (*arg).into() } else { format!("'{}'", arg.replace('\'', r"'\''")) };
    args.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Compares a transcript with the snapshot of the test that calls it, tests/snapshots/FILE__TEST.snap; with a name, it
/// is FILE__NAME.snap.
macro_rules! assert_transcript {
    ($transcript:expr $(, $name:expr)?) => {
        insta::with_settings!({ filters => $crate::common::transcript::FILTERS.to_vec(), omit_expression => true }, {
            insta::assert_snapshot!($($name,)? $transcript.text());
        })
    };
}
pub(crate) use assert_transcript;
