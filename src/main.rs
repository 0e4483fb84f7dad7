//! The `mt` binary: parse, dispatch, print the error, exit.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use mt::allocator::Allocator;
use mt::cli::{Cli, Color};
use mt::console::{MessageStyle, message, messages, set_style};
use mt::error::Error;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    mt::device::configure_libraries();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::from_arguments(&arguments) {
        Ok(cli) => cli,
        Err(outcome) => return mt::cli::report(&outcome),
    };
    set_style(MessageStyle { coloured: is_coloured(cli.common.color), quiet: cli.common.quiet });
    match mt::commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error, &cli);
            mt::commands::end_if_interrupted(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Whether labels of messages are coloured.
fn is_coloured(color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
            let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            std::io::stderr().is_terminal() && !is_dumb && !refused
        }
    }
}

/// Prints what is wrong, where, and what to do; with `-v` also the causes.
fn report(error: &Error, cli: &Cli) {
    messages(format_args!("error: {error}"));
    if cli.common.verbose {
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            message(format_args!("  caused by: {source}"));
            cause = source.source();
        }
    }
}
