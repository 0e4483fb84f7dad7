//! What commands print, as a text that a snapshot in tests/snapshots holds.

use std::process::Output;

use super::project::{Project, sets, stderr, stdout};

/// Commands as they are typed, each with its exit code and all that it printed.
///
/// A snapshot shows a change of any word, so a transcript is for text that is the same on every machine. What differs
/// by itself is replaced ([`FILTERS`]); losses, scores and translations of a trained model depend on
/// the processor and do not belong here.
pub struct Transcript<'a> {
    project: &'a Project,
    text: String,
}

impl<'a> Transcript<'a> {
    pub fn new(project: &'a Project) -> Self {
        Self { project, text: String::new() }
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

    /// As [`Project::train`].
    pub fn train(&mut self, more: &[&str]) -> Output {
        self.mt(&[&["train", "--config", "small.toml", "-q"], more].concat())
    }

    /// Runs a command on small.toml in which these keys are set.
    pub fn with_keys(&mut self, command: &str, keys: &[&str]) -> Output {
        self.mt(&[&[command, "--config", "small.toml"], &sets(keys)[..]].concat())
    }

    /// Runs `mt` in the project and records only what it says on stderr, where stdout is of no interest.
    pub fn messages(&mut self, args: &[&str]) {
        let output = Output { stdout: Vec::new(), ..self.project.mt(args) };
        self.record(&format!("mt {} > /dev/null", typed(args)), &output);
    }

    /// Says what the next command finds, where the command itself does not show it.
    pub fn note(&mut self, note: &str) {
        self.text += &format!("# {note}\n");
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
        let folder = self.project.folder.path();
        let [link, folder] = [folder.into(), folder.canonicalize().unwrap()].map(|path| path.display().to_string());
        self.text.replace(&folder, "[DIR]").replace(&link, "[DIR]")
    }
}

/// Patterns of what differs between runs and machines, and what stands for it in a snapshot.
pub const FILTERS: &[(&str, &str)] = &[
    (r"about \d+ target tokens/s", "about [SPEED] target tokens/s"),
    (r"updates in about .*", "updates in about [TIME]"),
    (r"\b(in|after) \d+\.\d s\b", "$1 [TIME]"),
    (r"\b\d+(\.\d+)? (bytes|MiB|GiB|TiB)\b", "[SIZE]"),
    // Of validations that find nearly the same.
    (r"\b(best checkpoint, of update) \d+", "$1 [UPDATE]"),
    // Logarithms differ in their last digits.
    (r"\b(\d+\.\d{6})\d{3,}", "$1…"),
    (r"\btext-[0-9a-f]{16}\b", "text-[HASH]"),
    (r"\bmt([- ])\d+\.\d+\.\d+\b", "mt$1[VERSION]"),
];

/// Arguments as a shell takes them.
fn typed(args: &[&str]) -> String {
    let is_plain = |arg: &str| !arg.contains(|c: char| c.is_whitespace() || "'\"[]{}<>|$*".contains(c));
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
