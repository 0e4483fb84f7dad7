//! What shells and `man` are told of the command line: completions and manual pages.

use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use clap_complete::Shell;

use super::Cli;

/// `mt completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell that the script is for
    pub shell: Shell,
}

/// `mt man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory to write to
    #[arg(value_name = "DIR")]
    pub out: PathBuf,
}

/// Any text. Completions offer these values; the command that takes the flag knows which others there are, and what to
/// say of wrong ones.
#[derive(Clone)]
pub(super) struct Offered<T>(pub T);

impl<T: AsRef<[&'static str]> + Clone + Send + Sync + 'static> TypedValueParser for Offered<T> {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.as_ref().iter().map(|name| PossibleValue::new(*name))))
    }
}

/// The script that completes our commands, flags, their values and file names in this shell.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut described(), "mt", &mut script);
    script
}

/// The manual pages, with the names of their files: that of `mt` itself, and one for each command.
///
/// # Errors
/// Never, as the pages are written into memory.
pub fn manual_pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut whole = described().disable_help_subcommand(true);
    whole.build();
    let version = whole.render_version();
    let commands: Vec<Command> = whole.get_subcommands().cloned().chain([whole.clone()]).collect();
    commands.into_iter().map(|mut command| page(&mut command, version.trim())).collect()
}

/// The page of one command.
fn page(command: &mut Command, version: &str) -> std::io::Result<(String, Vec<u8>)> {
    let usage = command.render_usage().to_string();
    // Instead of all options once more.
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    // The blank stands for a date, as pages do not depend on the day; nothing would be taken for no argument.
    let page =
        clap_mangen::Man::new(command.clone().override_usage(usage)).date(" ").source(version).manual("mt manual");
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok((page.get_filename(), text))
}

/// The command line, with what each path is.
fn described() -> Command {
    Cli::command().mut_subcommands(|command| command.mut_args(with_kind_of_path))
}

/// Tells directories from other paths by how the help calls their values.
fn with_kind_of_path(argument: Arg) -> Arg {
    let is_directory = argument.get_value_names().is_some_and(|names| names == ["DIR"]);
    match argument.get_value_hint() {
        ValueHint::AnyPath if is_directory => argument.value_hint(ValueHint::DirPath),
        ValueHint::AnyPath => argument.value_hint(ValueHint::FilePath),
        _ => argument,
    }
}
