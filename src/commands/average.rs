//! `mt average`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::shared::model::check_weights;
use super::shared::output::print_json;
use super::shared::reserved::refuse_taken;
use crate::checkpoint::{self, Located};
use crate::cli::{AverageArgs, Common};
use crate::config::{self, Config, Decides};
use crate::console::{self, info, message, note, warning};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::{in_one_line, shell_word, shown_path};
use crate::model::{PositionKind, layout};
use crate::model_dir::record::refuse_other_model;
use crate::model_dir::{config_of, named, slots, vocabulary, write_model};
use crate::run::restore;

/// Models that are less alike were not trained from one.
const TRAINED_APART: f64 = 0.5;

/// Updates, and the directories of their checkpoints.
type Checkpoints = Vec<(u64, PathBuf)>;

/// Averages checkpoints of a run, or several models, into a model directory of its own.
pub(super) fn run(args: &AverageArgs, common: &Common) -> Result<()> {
    let are_named = args.last.is_some() || args.best.is_some() || !args.checkpoints.is_empty();
    match &args.models[..] {
        [run] if are_named => average_run(run, args, common),
        [_] => {
            let error = Error::usage("give what to average");
            Err(error.help("for one run, add --last N, --best N or --checkpoints STEP,STEP; or name several models"))
        }
        _ if are_named => {
            let error = Error::usage(
                "--last, --best and --checkpoints choose among the checkpoints of one run, but several are named",
            );
            Err(error.help(
                "name one; or several models, each by its directory (a checkpoint is runs/NAME/checkpoints/step-…)",
            ))
        }
        models => average_models(models, args, common),
    }
}

/// Averages checkpoints of a run.
fn average_run(run: &Path, args: &AverageArgs, common: &Common) -> Result<()> {
    let config = config_of(run)?;
    refuse_taken(&args.out)?;
    let tokenizers = Tokenizers::load(run)?;
    let parameters = layout::layout(&config.model, vocabulary(&tokenizers));
    let slots = slots(parameters.entries());
    let mut flat = vec![0f32; parameters.total()];
    let average = || {
        let chosen = match (args.last, args.best) {
            (Some(wanted), _) => last(wanted, run)?,
            (None, Some(wanted)) => checkpoints_of_updates(&best(wanted, run)?, run)?,
            (None, None) => checkpoints_of_updates(&args.checkpoints, run)?,
        };
        let directories: Vec<_> = chosen.iter().map(|(_, path)| path.clone()).collect();
        for directory in &directories {
            refuse_other_model(&config, run, directory)?;
        }
        let weights = vec![1.0; directories.len()];
        checkpoint::weighted_average(&directories, &weights, &slots, &mut flat).map(|likeness| (chosen, likeness))
    };
    let (chosen, likeness) = checkpoint::look_again(run, |_| true, average)?;
    warn_if_apart(likeness);
    let steps: Vec<String> = chosen.iter().map(|(step, _)| step.to_string()).collect();
    let averaged = match &steps[..] {
        [step] => format!("the checkpoint of update {step}"),
        _ => format!("the checkpoints of updates {}", steps.join(", ")),
    };
    let made_from = format!("{averaged} of {} (average)", run.display());
    write_model(&args.out, &config, &tokenizers, &named(parameters.entries(), &flat), &made_from)?;
    if common.json {
        let updates: Vec<u64> = chosen.iter().map(|(step, _)| *step).collect();
        print_json(&json!({ "out": args.out.display().to_string(), "models": [shown(run)], "updates": updates }))?;
    }
    tell(&averaged, &args.out);
    Ok(())
}

/// Averages models of one shape and vocabulary.
fn average_models(models: &[PathBuf], args: &AverageArgs, common: &Common) -> Result<()> {
    refuse_taken(&args.out)?;
    check_weights(&args.weights, models.len())?;
    let weights = if args.weights.is_empty() { vec![1.0; models.len()] } else { args.weights.clone() };
    let found = models.iter().map(|model| Model::find(model)).collect::<Result<Vec<_>>>()?;
    let (Model { config, tokenizers, .. }, others) = (&found[0], &found[1..]);
    let differing = others.iter().zip(&models[1..]).filter_map(|(other, path)| {
        let why = found[0].difference(other)?;
        Some(Error::failure(format!("this is another model than {}: {why}", models[0].display())).at(path))
    });
    let differing: Vec<Error> = differing.collect();
    if !differing.is_empty() {
        return Err(Error::many(differing));
    }
    let lengths =
        |config: &Config| [("model.max_length", config.model.max_length), ("data.max_length", config.data.max_length)];
    let differs = |length: &(&str, usize)| others.iter().any(|other| !lengths(&other.config).contains(length));
    let differing = lengths(config).into_iter().filter(differs).map(|(key, length)| format!("`{key}` = {length}"));
    let differing: Vec<String> = differing.collect();
    if !differing.is_empty() {
        let (first, lengths) = (models[0].display(), differing.join(", "));
        note(format_args!("the configuration is that of {first}, which comes first: {lengths}"));
    }
    let parameters = layout::layout(&config.model, vocabulary(tokenizers));
    let slots = slots(parameters.entries());
    for (model, path) in found.iter().zip(models) {
        if model.located.tensors(&slots)?.is_quantised() {
            let error = Error::failure("its weights are 8-bit integers").at(path);
            return Err(error.help("average the models that such ones were made from, and quantise the mean"));
        }
    }
    let mut flat = vec![0f32; parameters.total()];
    let located: Vec<&Located> = found.iter().map(|model| &model.located).collect();
    let likeness = checkpoint::average_of(&located, &weights, &slots, &mut flat)?;
    warn_if_apart(likeness);
    let total: f64 = weights.iter().sum();
    let part = |((model, path), weight): ((&Model, &PathBuf), &f64)| {
        format!("{:.4} of {} ({})", weight / total, path.display(), model.located.what)
    };
    let parts: Vec<String> = found.iter().zip(models).zip(&weights).map(part).collect();
    let averaged = parts.join(", ");
    write_model(&args.out, config, tokenizers, &named(parameters.entries(), &flat), &format!("{averaged} (average)"))?;
    if common.json {
        let models: Vec<String> = models.iter().map(|model| shown(model)).collect();
        print_json(&json!({ "out": args.out.display().to_string(), "models": models, "updates": [] }))?;
    }
    tell(&averaged, &args.out);
    Ok(())
}

/// Reports the new model, and that its quality is not known yet.
fn tell(averaged: &str, out: &Path) {
    info(format_args!("averaged {averaged} into {}", shown_path(out)));
    let word = shell_word(out);
    info(format_args!("an average can be worse than its parts: `mt eval --model {}` shows it", in_one_line(&word)));
}

/// Warns of models whose mean is of no use.
fn warn_if_apart(likeness: f64) {
    if likeness < TRAINED_APART {
        warning(format_args!(
            "these models have little in common (the mean cosine between their weights is {likeness:.2}): the mean of \
             models trained apart is of no use. It is meant for checkpoints of one run whose model hardly changes any \
             more, or a model and what it became in fine-tuning; others can translate together: mt translate --model A \
             --model B"
        ));
    }
}

/// Whether the weights of two models have different meanings if they differ in this key.
fn changes_weights(key: &str, one: &Config, other: &Config) -> bool {
    let both = |kind: PositionKind| [one, other].iter().all(|config| config.model.positions == kind);
    match key {
        // Only learned positions are weights.
        "model.max_length" => [one, other].iter().any(|config| config.model.positions == PositionKind::Learned),
        // Learned positions have no layout.
        "model.sinusoid" => !both(PositionKind::Learned),
        // It decides what padding sees, on which nothing depends.
        "model.padding_mask" => false,
        _ => config::decides(key, Decides::Shape) || config::decides(key, Decides::Function),
    }
}

/// One of several models.
struct Model {
    config: Config,
    tokenizers: Tokenizers,
    located: Located,
}

impl Model {
    fn find(named: &Path) -> Result<Self> {
        let (directory, which) = checkpoint::directory_and_step(named);
        let config = config_of(directory)?;
        let located = checkpoint::locate(directory, which)?;
        located.warnings.iter().for_each(|text| message(format_args!("warning: {text}")));
        refuse_other_model(&config, directory, &located.directory)?;
        Ok(Self { config, tokenizers: Tokenizers::load(directory)?, located })
    }

    /// How another is not the same model with other weights.
    fn difference(&self, other: &Self) -> Option<String> {
        let is_other = |key: &str| key.starts_with("model.") && changes_weights(key, &self.config, &other.config);
        let keys = config::differences(&self.config, &other.config).into_iter();
        let keys: Vec<String> = keys
            .filter(|(key, ..)| is_other(key))
            .map(|(key, here, there)| format!("`{key}` is {there} instead of {here}"))
            .collect();
        if !keys.is_empty() {
            return Some(keys.join(", "));
        }
        let sides = [
            ("source", &self.tokenizers.source, &other.tokenizers.source),
            ("target", &self.tokenizers.target, &other.tokenizers.target),
        ];
        sides.into_iter().find_map(|(side, here, there)| {
            Some(format!("the {side} vocabularies differ: {}", there.difference(here)?))
        })
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The last `wanted` checkpoints.
fn last(wanted: usize, run: &Path) -> Result<Checkpoints> {
    let end = checkpoint::list(run)?.last().map_or(0, |(step, _)| *step);
    let mut checkpoints = checkpoint::regular(run, end)?;
    let count = checkpoints.len();
    if count == 0 {
        return Err(no_checkpoints(run));
    }
    if wanted == 0 || wanted > count {
        let s = if count == 1 { "" } else { "s" };
        let what = format!("--last {wanted}: the run has {count} checkpoint{s} that `train.save_every` asked for");
        return Err(Error::usage(what).at(run).help(format!("give a number from 1 to {count}")));
    }
    Ok(checkpoints.split_off(count - wanted))
}

/// The updates of the `wanted` best checkpoints that the run has kept.
fn best(wanted: usize, run: &Path) -> Result<Vec<u64>> {
    let newest = restore::newest(run, &console::tell)?;
    let there = checkpoint::list(run)?;
    let mut best = newest.map(|(state, _)| state.best_steps()).unwrap_or_default();
    best.retain(|step| there.iter().any(|(other, _)| other == step));
    if wanted == 0 || wanted > best.len() {
        let (count, s) = (best.len(), if best.len() == 1 { "" } else { "s" });
        let what = format!("--best {wanted}: the run has kept {count} checkpoint{s} as the best by validation");
        let help = match count {
            0 => "a run without validation has none: use --last N".to_owned(),
            1 => "`train.keep_best` says how many training keeps; now there is only --best 1".to_owned(),
            _ => format!("give a number from 1 to {count}; `train.keep_best` says how many training keeps"),
        };
        return Err(Error::usage(what).at(run).help(help));
    }
    best.truncate(wanted);
    Ok(best)
}

/// The checkpoints of the updates given by flags, each once.
fn checkpoints_of_updates(updates: &[u64], run: &Path) -> Result<Checkpoints> {
    let there = checkpoint::list(run)?;
    if there.is_empty() {
        return Err(no_checkpoints(run));
    }
    let wanted: BTreeSet<u64> = updates.iter().copied().collect();
    let missing: Vec<String> =
        wanted.iter().filter(|step| there.iter().all(|(other, _)| other != *step)).map(u64::to_string).collect();
    if !missing.is_empty() {
        let steps: Vec<String> = there.iter().map(|(step, _)| step.to_string()).collect();
        let error = Error::usage(format!("the run has no checkpoint of update {}", missing.join(", "))).at(run);
        return Err(error.help(format!("it has those of updates {}", steps.join(", "))));
    }
    Ok(there.into_iter().filter(|(step, _)| wanted.contains(step)).collect())
}

fn no_checkpoints(run: &Path) -> Error {
    let error = Error::failure("this run has no checkpoints to average").at(run);
    error.help("name the run directory of a training: runs/<name>")
}
