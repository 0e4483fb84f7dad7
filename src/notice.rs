//! Notices that a task gives its caller on the way. The caller decides which of them to show, and where.

use std::fmt::{self, Display};

/// Something to tell the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// What was done or found.
    Info(String),
    /// Something that the user should know, but need not fix.
    Note(String),
    /// Something that the user may want to fix.
    Warning(String),
    /// Data that is damaged, lost, or could not be written.
    Damage(String),
}

impl Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Info(text) => f.write_str(text),
            Self::Note(text) => write!(f, "note: {text}"),
            Self::Warning(text) | Self::Damage(text) => write!(f, "warning: {text}"),
        }
    }
}

/// A number as notices show it: digits in groups of three.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (65_432_100, "65,432,100")] {
            assert_eq!(grouped(number), text);
        }
    }
}
