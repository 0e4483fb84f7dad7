//! `mt average`

use super::model::{config_of, named, slots, vocabulary, write_model};
use super::output::Output;
use crate::checkpoint;
use crate::cli::{AverageArgs, Common};
use crate::console::message;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::layout;

/// Averages the last checkpoints of a run into a model directory of its own.
pub fn run(args: &AverageArgs, common: &Common) -> Result<()> {
    let config = config_of(&args.run)?;
    let end = checkpoint::list(&args.run)?.last().map_or(0, |(step, _)| *step);
    let checkpoints = checkpoint::regular(&args.run, config.train.save_every, end)?;
    if checkpoints.is_empty() {
        let error = Error::failure("this run has no checkpoints to average").at(&args.run);
        return Err(error.help("name a run directory: runs/<name> of a training"));
    }
    if args.last == 0 || args.last > checkpoints.len() {
        let what = format!("--last {}: the run has {} regular checkpoints", args.last, checkpoints.len());
        let help = format!("give a number from 1 to {}", checkpoints.len());
        return Err(Error::usage(what).at(&args.run).help(help));
    }
    if args.out.exists() {
        return Err(Error::usage("the output directory exists").at(&args.out).help("name a new directory with --out"));
    }
    let last = &checkpoints[checkpoints.len() - args.last..];
    let directories: Vec<_> = last.iter().map(|(_, path)| path.clone()).collect();
    let tokenizers = Tokenizers::load(&args.run)?;
    let parameters = layout::layout(&config.model, vocabulary(&tokenizers));
    let slots = slots(parameters.entries());
    let mut flat = vec![0f32; parameters.total()];
    checkpoint::average(&directories, &slots, &mut flat)?;
    write_model(&args.out, &config, &tokenizers, &named(parameters.entries(), &flat))?;
    if common.json {
        let updates: Vec<u64> = last.iter().map(|(step, _)| *step).collect();
        let mut output = Output::open(None)?;
        output.line(&serde_json::json!({ "out": args.out.display().to_string(), "updates": updates }).to_string())?;
        output.flush()?;
    }
    if !common.quiet {
        let steps: Vec<String> = last.iter().map(|(step, _)| step.to_string()).collect();
        message(format_args!("averaged the checkpoints of updates {} into {}", steps.join(", "), args.out.display()));
    }
    Ok(())
}
