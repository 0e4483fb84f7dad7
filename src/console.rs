//! Messages to the user on stderr. A reader that has gone away (`mt train … 2>&1 | head`) does not end the program.

use std::fmt::Display;
use std::io::Write;

/// One line on stderr.
pub fn message(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What a terminal shows before it waits for input.
pub fn prompt(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
