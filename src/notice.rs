//! What work tells its caller on the way. The caller decides what of it is shown, and where.

use std::fmt::{self, Display};

/// Something to tell the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// What was done or found.
    Info(String),
    /// What the user should know, but need not mend.
    Note(String),
    /// What the user may want to mend.
    Warning(String),
    /// What is damaged or lost, or could not be written.
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
