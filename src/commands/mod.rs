//! The commands: wiring of the other modules. Each has a file or a folder here; [`shared`] is what several of them
//! need.

mod augment;
mod average;
mod check;
mod completions;
mod distill;
mod embed;
mod eval;
mod export;
mod import;
mod info;
mod init;
mod man;
mod prepare;
mod quantize;
mod report;
mod score;
mod shared;
mod shortlist;
mod tokenize;
mod train;
mod translate;
mod trim;
mod tune;

use crate::cli::{Cli, Command};
use crate::config::MOST_THREADS;
use crate::device::DeviceName;
use crate::error::{Error, Result};
use crate::file;
use crate::ops::simd;
use shared::signals;
pub use shared::signals::end_if_interrupted;

/// Runs the command line.
pub fn run(cli: &Cli) -> Result<()> {
    signals::end_the_first_process();
    file::fail_at_size_limits();
    let common = &cli.common;
    simd::check_environment()?;
    // Commands that need no device accept the flag too, but not a wrong value.
    if let Some(device) = &common.device {
        device.parse::<DeviceName>()?;
    }
    if common.threads.is_some_and(|threads| threads > MOST_THREADS) {
        return Err(Error::usage(format!("--threads is at most {MOST_THREADS}")).help("0 means one for each core"));
    }
    let result = match &cli.command {
        Command::Init(args) => init::run(args, common),
        Command::Train(args) => train::run(args, common),
        Command::Check(args) => check::run(args, common),
        Command::Prepare(args) => prepare::run(args, common),
        Command::Distill(args) => distill::run(args, common),
        Command::Augment(args) => augment::run(args, common),
        Command::Tune(args) => tune::run(args, common),
        Command::Eval(args) => eval::run(args, common),
        Command::Translate(args) => translate::run(args, common),
        Command::Score(args) => score::run(args, common),
        Command::Shortlist(args) => shortlist::run(args, common),
        Command::Export(args) => export::run(args, common),
        Command::Import(args) => import::run(args, common),
        Command::Quantize(args) => quantize::run(args, common),
        Command::Trim(args) => trim::run(args, common),
        Command::Report(args) => report::run(args, common),
        Command::Embed(args) => embed::run(args, common),
        Command::Info(args) => info::run(args, common),
        Command::Average(args) => average::run(args, common),
        Command::Tokenize(args) => tokenize::tokenize(args, common),
        Command::Detokenize(args) => tokenize::detokenize(args, common),
        Command::Completions(args) => completions::run(args, common),
        Command::Man(args) => man::run(args, common),
    };
    signals::await_the_end();
    result
}
