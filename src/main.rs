//! The `mt` binary: parse, dispatch, print the error, exit.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use mt::allocator::Allocator;
use mt::cli::{Cli, Color};
use mt::console::message;
use mt::error::Error;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    mt::device::configure_libraries();
    let cli = Cli::parse();
    match mt::commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error, &cli);
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints what is wrong, where, and what to do; with `-v` also the causes.
fn report(error: &Error, cli: &Cli) {
    let colored = match cli.common.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let text = format!("error: {error}");
    if colored {
        message(text.replace("error: ", "\u{1b}[1;31merror\u{1b}[0m: "));
    } else {
        message(text);
    }
    if cli.common.verbose {
        let mut cause = std::error::Error::source(error);
        while let Some(source) = cause {
            message(format_args!("  caused by: {source}"));
            cause = source.source();
        }
    }
}
