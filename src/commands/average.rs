//! `mt average`

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::shared::model::{config_of, named, slots, vocabulary, write_model};
use super::shared::output::print;
use super::shared::run::record::refuse_other_model;
use crate::checkpoint;
use crate::cli::{AverageArgs, Common};
use crate::config::Config;
use crate::console::info;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::model::layout;

/// Updates, and the directories of their checkpoints.
type Checkpoints = Vec<(u64, PathBuf)>;

/// Averages checkpoints of a run into a model directory of its own.
pub fn run(args: &AverageArgs, common: &Common) -> Result<()> {
    let config = config_of(&args.run)?;
    checkpoint::refuse_existing(&args.out)?;
    let tokenizers = Tokenizers::load(&args.run)?;
    let parameters = layout::layout(&config.model, vocabulary(&tokenizers));
    let slots = slots(parameters.entries());
    let mut flat = vec![0f32; parameters.total()];
    let average = || {
        let chosen = match args.last {
            Some(wanted) => last(wanted, args, &config)?,
            None => of_updates(args)?,
        };
        let directories: Vec<_> = chosen.iter().map(|(_, path)| path.clone()).collect();
        for directory in &directories {
            refuse_other_model(&config, &args.run, directory)?;
        }
        checkpoint::average(&directories, &slots, &mut flat).map(|()| chosen)
    };
    let chosen = checkpoint::look_again(&args.run, |_| true, average)?;
    let steps: Vec<String> = chosen.iter().map(|(step, _)| step.to_string()).collect();
    let averaged = match &steps[..] {
        [step] => format!("the checkpoint of update {step}"),
        _ => format!("the checkpoints of updates {}", steps.join(", ")),
    };
    let made_from = format!("{averaged} of {} (average)", args.run.display());
    write_model(&args.out, &config, &tokenizers, &named(parameters.entries(), &flat), &made_from)?;
    if common.json {
        let updates: Vec<u64> = chosen.iter().map(|(step, _)| *step).collect();
        print(serde_json::json!({ "out": args.out.display().to_string(), "updates": updates }))?;
    }
    info(format_args!("averaged {averaged} into {}", args.out.display()));
    Ok(())
}

/// The last `wanted` checkpoints.
fn last(wanted: usize, args: &AverageArgs, config: &Config) -> Result<Checkpoints> {
    let end = checkpoint::list(&args.run)?.last().map_or(0, |(step, _)| *step);
    let mut checkpoints = checkpoint::regular(&args.run, config.train.save_every, end)?;
    let count = checkpoints.len();
    if count == 0 {
        return Err(no_checkpoints(args));
    }
    if wanted == 0 || wanted > count {
        let s = if count == 1 { "" } else { "s" };
        let what = format!("--last {wanted}: the run has {count} checkpoint{s} that `train.save_every` asked for");
        return Err(Error::usage(what).at(&args.run).help(format!("give a number from 1 to {count}")));
    }
    Ok(checkpoints.split_off(count - wanted))
}

/// The checkpoints of the updates given by flags, each once.
fn of_updates(args: &AverageArgs) -> Result<Checkpoints> {
    let there = checkpoint::list(&args.run)?;
    if there.is_empty() {
        return Err(no_checkpoints(args));
    }
    let wanted: BTreeSet<u64> = args.checkpoints.iter().copied().collect();
    let missing: Vec<String> =
        wanted.iter().filter(|step| there.iter().all(|(other, _)| other != *step)).map(u64::to_string).collect();
    if !missing.is_empty() {
        let steps: Vec<String> = there.iter().map(|(step, _)| step.to_string()).collect();
        let error = Error::usage(format!("the run has no checkpoint of update {}", missing.join(", "))).at(&args.run);
        return Err(error.help(format!("it has those of updates {}", steps.join(", "))));
    }
    Ok(there.into_iter().filter(|(step, _)| wanted.contains(step)).collect())
}

fn no_checkpoints(args: &AverageArgs) -> Error {
    let error = Error::failure("this run has no checkpoints to average").at(&args.run);
    error.help("name the run directory of a training: runs/<name>")
}
