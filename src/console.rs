//! Messages to the user on stderr. A reader that has gone away (`mt train … 2>&1 | head`) does not end the program.

use std::fmt::{self, Display};
use std::io::Write;

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

/// One line on stderr.
pub fn message(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What a terminal shows before it waits for input.
pub fn prompt(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
