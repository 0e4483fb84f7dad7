//! What commands print, as a text that a snapshot in tests/snapshots holds.

use std::path::PathBuf;
use std::process::Output;

use super::project::{Project, sets, stderr, stdout};

/// Commands as they are typed, each with its exit code and all that it printed.
///
/// A snapshot shows a change of any word, so a transcript is for text that is the same on every machine. What differs
/// by itself is replaced (see [`Transcript::filters`]); losses, scores and translations of a trained model depend on
/// the processor and do not belong here.
pub struct Transcript<'a> {
    project: &'a Project,
    text: String,
}

impl<'a> Transcript<'a> {
    pub fn of(project: &'a Project) -> Self {
        Self { project, text: String::new() }
    }

    /// Runs `mt` in the project and records it.
    pub fn mt(&mut self, args: &[&str]) -> Output {
        let output = self.project.mt(args);
        self.record(&format!("mt {}", typed(args)), &output);
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
    pub fn messages(&mut self, args: &[&str]) {
        let output = Output { stdout: Vec::new(), ..self.project.mt(args) };
        self.record(&format!("mt {} > /dev/null", typed(args)), &output);
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

    pub fn text(&self) -> &str {
        assert!(!self.text.is_empty() && !self.text.contains("panicked at"), "{}", self.text);
        &self.text
    }

    /// Settings that replace what differs between runs and machines.
    pub fn filters(&self) -> insta::Settings {
        let mut settings = insta::Settings::clone_current();
        settings.set_omit_expression(true);
        let folder = self.project.folder.path();
        // A Mac's temporary directory is a link.
        for name in [folder.canonicalize().unwrap_or_else(|_| PathBuf::from(folder)), PathBuf::from(folder)] {
            settings.add_filter(&regex_of(&name.to_string_lossy()), "[DIR]");
        }
        for (pattern, replacement) in [
            (r"about \d+ target tokens/s", "about [SPEED] target tokens/s"),
            (r"updates in about .*", "updates in about [TIME]"),
            (r"\b(in|after) \d+\.\d s\b", "$1 [TIME]"),
            (r"\b\d+(\.\d+)? (MiB|GiB|TiB)\b", "[SIZE]"),
            (r"\b\d+ bytes\b", "[SIZE]"),
            (r"\btext-[0-9a-f]{16}\b", "text-[HASH]"),
            (r"\bmt([- ])\d+\.\d+\.\d+\b", "mt$1[VERSION]"),
        ] {
            settings.add_filter(pattern, replacement);
        }
        settings
    }
}

/// Arguments as a shell takes them.
fn typed(args: &[&str]) -> String {
    let is_plain =
        |arg: &str| !arg.is_empty() && !arg.contains(|c: char| c.is_whitespace() || "'\"[]{}<>|$*".contains(c));
    let quoted = |arg: &&str| if is_plain(arg) { (*arg).to_owned() } else { format!("'{arg}'") };
    args.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A pattern of exactly this text.
fn regex_of(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() || c == '/' { c.to_string() } else { format!("\\{c}") }).collect()
}

/// Compares a transcript with the snapshot of the test that calls it, tests/snapshots/FILE__TEST.snap.
/// With a name, it is FILE__NAME.snap.
macro_rules! assert_transcript {
    ($transcript:expr $(, $name:expr)?) => {{
        let _filters = $transcript.filters().bind_to_scope();
        insta::assert_snapshot!($($name,)? $transcript.text());
    }};
}
pub(crate) use assert_transcript;
