//! Messages to the user on stderr, and progress bars. A reader that has gone away (`mt train … 2>&1 | head`) does not
//! end the program.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::escape::harmless;
use crate::notice::Notice;

/// How messages are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageStyle {
    /// With coloured labels.
    pub coloured: bool,
    /// Without information, notes, warnings about the input, prompts and progress bars.
    pub quiet: bool,
}

static STYLE: OnceLock<MessageStyle> = OnceLock::new();

/// Sets how messages are shown; the first call counts. Without one, there are no colours, and there are notes.
pub fn set_style(style: MessageStyle) {
    STYLE.get_or_init(|| style);
}

fn style() -> MessageStyle {
    STYLE.get().copied().unwrap_or_default()
}

/// One message on stderr.
pub fn message(text: impl Display) {
    in_one_piece(&shown(&text.to_string()));
}

/// Prints what was done or found to stderr, unless `--quiet` was given.
pub fn info(text: impl Display) {
    if !style().quiet {
        message(text);
    }
}

/// Prints a warning about the input or a flag to stderr, unless `--quiet` was given. For lost or damaged data, use
/// [`message`].
pub fn warning(text: impl Display) {
    info(format_args!("warning: {text}"));
}

/// Prints a note to stderr, unless `--quiet` was given.
pub fn note(text: impl Display) {
    info(format_args!("note: {text}"));
}

/// Prints a notice to stderr; one about damage or loss even with `--quiet`.
pub fn tell(notice: Notice) {
    if let Notice::Damage(_) = notice { message(notice) } else { info(notice) }
}

/// What a progress bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Updates of training; with a message.
    Updates,
    /// Sentences to translate.
    Sentences,
    /// Pairs of training text to prepare.
    Pairs,
    /// Bytes to fetch; with a message.
    Bytes,
}

impl Counted {
    /// The bar's template, with and without a known total.
    fn template(self, is_known: bool) -> &'static str {
        match (self, is_known) {
            (Self::Updates, true) => "{bar:24.cyan} {pos}/{len} {msg} [{elapsed}<{eta}]",
            (Self::Updates, false) => "{spinner} {pos} {msg} [{elapsed}]",
            (Self::Sentences, true) => "{wide_bar} {pos}/{len} sentences, {speed}, {eta} left",
            (Self::Sentences, false) => "{spinner} {pos} sentences, {speed}",
            (Self::Pairs, true) => "preparing {wide_bar} {human_pos}/{human_len} pairs, {speed}, {eta} left",
            (Self::Pairs, false) => "preparing {spinner} {human_pos} pairs, {speed}",
            (Self::Bytes, true) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
            (Self::Bytes, false) => "{msg} {spinner} {bytes} {bytes_per_sec}",
        }
    }
}

/// A progress bar on stderr, hidden unless that is a terminal and the program may show it. `total` is the amount of
/// work, if known.
pub fn progress_bar(counted: Counted, total: Option<u64>) -> ProgressBar {
    let target = if style().quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(4) };
    let bar = ProgressBar::with_draw_target(total, target);
    let speed = |state: &ProgressState, text: &mut dyn fmt::Write| {
        // There is nowhere to report a formatter's failure.
        let _ = write!(text, "{:.0}/s", state.per_sec());
    };
    // The templates are constants that a test checks.
    match ProgressStyle::with_template(counted.template(total.is_some())) {
        Ok(style) => bar.with_style(style.with_key("speed", speed)),
        Err(_) => bar,
    }
}

/// A progress bar for this many pairs of text. It disappears when the returned function is dropped.
pub fn pairs_bar(pairs: u64) -> Box<dyn Fn(u64)> {
    struct Shown(ProgressBar);
    impl Drop for Shown {
        fn drop(&mut self) {
            self.0.finish_and_clear();
        }
    }
    let shown = Shown(progress_bar(Counted::Pairs, Some(pairs)));
    Box::new(move |read| shown.0.set_position(read))
}

/// A message as the terminal shows it, with coloured labels if wanted. Control characters are escaped and further lines
/// indented: a quoted path or line of text may hold anything, and must not forge another message.
pub fn shown(text: &str) -> Cow<'_, str> {
    finished(indented(harmless(text)))
}

/// Several messages in one text, as [`crate::error::Error`] writes them: it has made sure that each line is its own.
pub fn messages(text: impl Display) {
    let text = text.to_string();
    in_one_piece(&finished(harmless(&text)));
}

/// Writes text with its line feed at once: several processes may write to one terminal.
fn in_one_piece(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

fn finished(text: Cow<'_, str>) -> Cow<'_, str> {
    if style().coloured { coloured(&text).into() } else { text }
}

/// Begins each line after the first with spaces, so that none looks like another message.
fn indented(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_forged = |line: &str| !line.starts_with("  ");
    if !text.split('\n').skip(1).any(is_forged) {
        return text;
    }
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + if is_forged(line) { "\n  " } else { "\n" } + line).into()
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

/// Whether the user would see a prompt or a progress bar.
pub fn is_watched() -> bool {
    !style().quiet && std::io::stderr().is_terminal()
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
    fn templates_of_progress_bars_are_well_formed() {
        for counted in [Counted::Updates, Counted::Sentences, Counted::Pairs, Counted::Bytes] {
            for is_known in [true, false] {
                assert!(ProgressStyle::with_template(counted.template(is_known)).is_ok(), "{counted:?} {is_known}");
            }
        }
    }

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
    fn what_is_quoted_cannot_forge_a_message() {
        let text = "warning: in a\nerror: forged\n\n  --> b";
        assert_eq!(shown(text), "warning: in a\n  error: forged\n  \n  --> b");
        assert_eq!(shown("one\n  help: two"), "one\n  help: two");
    }
}
