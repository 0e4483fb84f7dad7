//! When to colour the output.

use std::ffi::OsString;

use clap::{ColorChoice, ValueEnum};

/// When to colour messages and help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// When they go to a terminal, messages to stderr and help to stdout, unless NO_COLOR is set or the terminal is
    /// dumb (TERM).
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// The last `--color` among arguments that are not parsed yet: what parsing them prints is coloured accordingly.
    pub(super) fn from_arguments(arguments: &[OsString]) -> Self {
        let (mut color, mut previous) = (Self::Auto, "");
        let words = arguments.iter().map(|argument| argument.to_str().unwrap_or_default());
        for word in words.take_while(|word| *word != "--") {
            let value = word.strip_prefix("--color=").or((previous == "--color").then_some(word));
            if let Some(Ok(stated)) = value.map(|value| Self::from_str(value, false)) {
                color = stated;
            }
            previous = word;
        }
        color
    }
}

impl From<Color> for ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_color_before_the_text_counts() {
        for (arguments, color) in [
            ("mt translate", Color::Auto),
            ("mt translate --color never", Color::Never),
            ("mt --color=always translate --bogus", Color::Always),
            ("mt --color=always translate --color never", Color::Never),
            ("mt translate --color always -- --color never", Color::Always),
            ("mt translate never --color", Color::Auto),
            ("mt translate --color=never --color=purple", Color::Never),
            ("mt translate --colors=never", Color::Auto),
        ] {
            let words: Vec<OsString> = arguments.split(' ').map(OsString::from).collect();
            assert_eq!(Color::from_arguments(&words), color, "{arguments}");
        }
    }
}
