//! Messages to the user on stderr. A reader that has gone away (`mt train … 2>&1 | head`) does not end the program.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

/// What work tells its caller on the way, who decides what of it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// What was done or found.
    Info(String),
    /// What the user may want to mend.
    Warning(String),
}

impl Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Info(text) => f.write_str(text),
            Self::Warning(text) => write!(f, "warning: {text}"),
        }
    }
}

/// How messages are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// With coloured labels.
    pub coloured: bool,
    /// Without notes.
    pub quiet: bool,
}

static MANNER: OnceLock<Manner> = OnceLock::new();

/// Sets how messages are shown; the first call counts. Without one, there are no colours, and there are notes.
pub fn set_manner(manner: Manner) {
    MANNER.get_or_init(|| manner);
}

fn manner() -> Manner {
    MANNER.get().copied().unwrap_or_default()
}

/// One message on stderr.
pub fn message(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", shown(&text.to_string()));
}

/// A note on stderr, unless the program is to be quiet.
pub fn note(text: impl Display) {
    if !manner().quiet {
        message(format_args!("note: {text}"));
    }
}

/// A message as it is shown: with coloured labels if that is wanted.
pub fn shown(text: &str) -> Cow<'_, str> {
    if manner().coloured { coloured(text).into() } else { text.into() }
}

/// Colours the labels with which lines begin, as in the compiler's messages.
fn coloured(text: &str) -> String {
    const COLOURS: [(&str, &str); 3] = [("error", "31"), ("warning", "33"), ("note", "36")];
    let line = |line: &str| {
        let begins = |label: &str| line.strip_prefix(label).filter(|rest| rest.starts_with(": "));
        let found = COLOURS.iter().find_map(|(label, colour)| Some((label, colour, begins(label)?)));
        match found {
            Some((label, colour, rest)) => format!("\u{1b}[1;{colour}m{label}\u{1b}[0m{rest}"),
            None => line.to_owned(),
        }
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// A path as a word of a command that the user can give to a shell: in quotes if the shell would take it for something else.
pub fn shell_word(path: &Path) -> String {
    quoted(&path.to_string_lossy(), cfg!(windows))
}

/// A path as a word for the shells of Windows, or for those of other systems.
fn quoted(path: &str, for_windows: bool) -> String {
    let plain = if for_windows { r"_@%+=:,./-\" } else { "_@%+=:,./-" };
    if !path.is_empty() && path.chars().all(|c| c.is_ascii_alphanumeric() || plain.contains(c)) {
        return path.to_owned();
    }
    if for_windows {
        // Names cannot contain double quotes. Backslashes before the closing one must be doubled.
        let last = &path[path.trim_end_matches('\\').len()..];
        return format!("\"{path}{last}\"");
    }
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// What a terminal shows before it waits for input.
pub fn prompt(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_lines_are_coloured() {
        let (off, red) = ("\u{1b}[0m", "\u{1b}[1;31m");
        for (text, expected) in [
            ("warning: an error: 3", format!("\u{1b}[1;33mwarning{off}: an error: 3")),
            ("note: it is so\n  note: x", format!("\u{1b}[1;36mnote{off}: it is so\n  note: x")),
            ("error: one\n  help: a\nerror: two", format!("{red}error{off}: one\n  help: a\n{red}error{off}: two")),
            ("errors: 3\nnotes", "errors: 3\nnotes".to_owned()),
        ] {
            assert_eq!(coloured(text), expected);
        }
    }

    #[test]
    fn paths_in_commands_are_quoted_for_the_shell_if_need_be() {
        for (path, expected, on_windows) in [
            ("runs/a-b_c/step=1,2.toml", "runs/a-b_c/step=1,2.toml", "runs/a-b_c/step=1,2.toml"),
            (r"C:\runs\a", r"'C:\runs\a'", r"C:\runs\a"),
            (r"C:\my runs\", r"'C:\my runs\'", r#""C:\my runs\\""#),
            ("runs/a b", "'runs/a b'", r#""runs/a b""#),
            ("it's $HOME", r"'it'\''s $HOME'", r#""it's $HOME""#),
            ("größe", "'größe'", r#""größe""#),
            ("~/x", "'~/x'", r#""~/x""#),
            ("", "''", "\"\""),
        ] {
            assert_eq!([quoted(path, false), quoted(path, true)], [expected, on_windows]);
        }
    }
}
