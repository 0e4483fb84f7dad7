//! `mt tune`

use std::sync::Arc;

use comfy_table::{CellAlignment, Table, presets};
use rayon::prelude::*;
use serde_json::{Value, json};

use super::shared::input::{shown_name, with_tag};
use super::shared::languages;
use super::shared::output::Output;
use super::shared::test_set::{OwnSet, Text};
use super::shared::{decoding, model};
use crate::checkpoint::{self, CONFIG_FILE};
use crate::cli::{Common, TuneArgs};
use crate::config;
use crate::console::{Counted, info, note, progress_bar, tell};
use crate::data::corpus::Side;
use crate::decode::rerank::Utility;
use crate::decode::translate::TranslateOptions;
use crate::decode::{DecodeConfig, LengthPenalty, PenaltyKind, Strategy, Trials};
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::metrics::{BleuOptions, ChrfOptions, Metric, Statistics, TextMetric, resample, signature};
use crate::model_dir::{ModelFiles, hub};
use crate::run::directory;
use crate::run::validator;
use crate::train::ValidMetric;

/// A beam width and a length penalty, and how good the translations are that they give.
struct Trial {
    beam: usize,
    penalty: LengthPenalty,
    statistics: Statistics,
    score: f64,
    /// The mean of the scores with this penalty and with the next weaker and stronger one.
    smoothed: f64,
}

/// Translates the validation set with several beam widths and length penalties, and makes the best of them the run's.
pub(super) fn run(args: &TuneArgs, common: &Common) -> Result<()> {
    let metric = args.metric.as_deref().map(|name| Utility::from_flag("--metric", name)).transpose()?;
    if metric == Some(Utility::Comet) {
        return Err(Error::usage("--metric comet takes too long for so many trials").help("give bleu or chrf"));
    }
    let mut model = model::load_from(Some(&args.run), args.checkpoint.as_deref(), common)?;
    let run = model.directory().to_path_buf();
    // A model of the hub lies in a cache.
    let may_write = !args.dry_run && hub::repository(&args.run).is_none();
    let lock = match may_write {
        true => directory::keep_from_training(&run, &tell).map_err(|error| error.or_help("give --dry-run"))?,
        false => None,
    };
    let trials = trials(args, &model.config.decode)?;
    let options = TranslateOptions {
        n_best: trials.widths.len() * trials.penalties.len(),
        strategy: Strategy::Trials(Arc::new(trials.clone())),
        ..TranslateOptions::from_config(&model.config.decode)
    };
    options.check()?;
    let (references, translations) = translate(args, &mut model, &options, common)?;
    let metric = metric_of(metric, args, &model);
    let settings = trials.widths.iter().flat_map(|beam| trials.penalties.iter().map(|penalty| (*beam, *penalty)));
    let settings: Vec<(usize, LengthPenalty)> = settings.collect();
    let trial = |(index, (beam, penalty)): (usize, (usize, LengthPenalty))| {
        // A blank line has one translation.
        let texts: Vec<&str> = translations.iter().map(|texts| texts.get(index).map_or("", String::as_str)).collect();
        let references: Vec<Vec<&str>> =
            references.iter().map(|lines| lines.iter().map(String::as_str).collect()).collect();
        let statistics = Statistics::new(&*metric, &texts, &references)?;
        let score = metric.score(&statistics.sum());
        Ok(Trial { beam, penalty, statistics, score, smoothed: score })
    };
    let mut trials: Vec<Trial> = settings.into_par_iter().enumerate().map(trial).collect::<Result<_>>()?;
    smooth(&mut trials);
    let own = of(&model.config.decode);
    let (best, before) = choose(&trials, own);
    let mut output = Output::open(None)?;
    let is_new = (best.beam, best.penalty) != own;
    let writes = may_write && is_new;
    let config_file = run.join(CONFIG_FILE);
    if common.json {
        let signature = signature(&*metric, references.len(), &[]);
        output.json(&json!({
            "metric": metric.name(), "signature": signature, "lines": translations.len(),
            "trials": trials.iter().map(json_of).collect::<Vec<_>>(), "best": json_of(best), "before": json_of(before),
            "written": writes.then(|| config_file.display().to_string()),
        }))?;
    } else {
        output.line(&table(&trials, &*metric))?;
        output.line(&format!("best: {}", described(best, &*metric)))?;
        output.line(&format!("now:  {}", described(before, &*metric)))?;
    }
    if is_new && !resample::differ(&*metric, &[best, before].map(|trial| trial.statistics.clone())) {
        note("so small a difference may be chance");
    }
    for flag in edges(&trials, best) {
        note(format_args!("there may be a better {flag} beyond those that were tried"));
    }
    if writes {
        let LengthPenalty { kind, alpha } = best.penalty;
        let mut config = config::load_resolved(&config_file)?;
        config.decode =
            DecodeConfig { beam: best.beam, length_penalty: alpha, length_penalty_kind: kind, ..config.decode };
        checkpoint::save_config(&run, &config::to_toml(&config))?;
        info(format_args!("written into [decode] of {}", shown_path(&config_file)));
    } else if is_new {
        let LengthPenalty { kind, alpha } = best.penalty;
        let flags = format!("--beam {} --length-penalty {alpha} --length-penalty-kind {kind}", best.beam);
        note(format_args!("nothing is written; to translate so: {flags}"));
    }
    drop(lock);
    output.flush()
}

/// The widths and penalties to try: those of the flags, and the model's own.
fn trials(args: &TuneArgs, config: &DecodeConfig) -> Result<Trials> {
    let (beam, own) = of(config);
    let kinds = args.length_penalty_kind.iter().map(|name| PenaltyKind::from_flag("--length-penalty-kind", name));
    let mut kinds: Vec<PenaltyKind> = kinds.collect::<Result<_>>()?;
    if kinds.is_empty() {
        kinds.push(own.kind);
    }
    let of_kind = |kind: PenaltyKind| -> Vec<LengthPenalty> {
        match kind {
            // It has no strength.
            PenaltyKind::Average => vec![LengthPenalty { kind, alpha: own.alpha }],
            _ => args.length_penalty.iter().map(|alpha| LengthPenalty { kind, alpha: *alpha }).collect(),
        }
    };
    let mut penalties: Vec<LengthPenalty> = kinds.into_iter().flat_map(of_kind).chain([own]).collect();
    if let Some(penalty) = penalties.iter().find(|penalty| penalty.alpha.is_nan()) {
        return Err(Error::usage(format!("--length-penalty {} is not a number", penalty.alpha)));
    }
    penalties.sort_by(|a, b| (a.kind.name().cmp(b.kind.name())).then(a.alpha.total_cmp(&b.alpha)));
    penalties.dedup();
    let mut widths: Vec<usize> = args.beam.iter().copied().chain([beam]).collect();
    widths.sort_unstable();
    widths.dedup();
    Ok(Trials { widths, penalties })
}

fn of(config: &DecodeConfig) -> (usize, LengthPenalty) {
    (config.beam, LengthPenalty { kind: config.length_penalty_kind, alpha: config.length_penalty })
}

/// Lists of texts.
type Lists = Vec<Vec<String>>;

/// The references, stream by stream, and for each line its translations, trial by trial.
fn translate(
    args: &TuneArgs,
    model: &mut ModelFiles,
    options: &TranslateOptions,
    common: &Common,
) -> Result<(Lists, Lists)> {
    let set = &args.set;
    if let (None, Some(valid)) = (&set.src, &model.config.data.valid) {
        languages::state(valid.languages.clone(), "data.valid", [&mut *model])?;
    }
    let tag = languages::choose(&set.languages, set.tag.as_deref(), [&mut *model])?;
    let own = OwnSet { key: "data.valid", name: "validation set", set: model.config.data.valid.as_ref() };
    let Text { sources, references, tag, source, .. } = Text::find(set, &own, tag.as_deref(), model, common)?;
    let references = references.iter().map(|lines| {
        let target = &model.tokenizers.target;
        lines.iter().map(|line| target.plain(line).into_owned()).collect()
    });
    let references = references.collect();
    let translator = decoding::translator(model, &[], &[], args.precision.as_deref())?;
    let sources = with_tag(tag.as_deref(), sources);
    languages::refuse_unknown_target(&translator)?;
    languages::refuse_without(&translator, [&sources, &[]], |error, index, _: Side| {
        error.at_line(shown_name(&source), index + 1, 0)
    })?;
    let bar = progress_bar(Counted::Sentences, Some(sources.len() as u64));
    let options = TranslateOptions { tag, ..options.clone() };
    let translations = translator.translate(&sources, &[], &options, |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let texts = translations.into_iter().map(|line| line.n_best.into_iter().map(|candidate| candidate.text).collect());
    Ok((references, texts.collect()))
}

fn metric_of(of_flag: Option<Utility>, args: &TuneArgs, model: &ModelFiles) -> Box<dyn TextMetric> {
    let scoring = validator::scoring(&model.config, &model.tokenizers);
    let lowercase = args.lowercase || scoring.lowercase;
    match (of_flag, model.config.valid.metric) {
        (Some(Utility::Chrf), _) | (None, ValidMetric::Chrf) => {
            Box::new(ChrfOptions { lowercase, ..ChrfOptions::default() })
        }
        (Some(_), _) | (None, ValidMetric::Bleu | ValidMetric::Comet | ValidMetric::Loss) => {
            Box::new(BleuOptions { lowercase, ..scoring })
        }
    }
}

/// Fills in the smoothed scores. Two penalties do not show how scores change from one to the next.
fn smooth(trials: &mut [Trial]) {
    let is_same_row = |a: &Trial, b: &Trial| a.beam == b.beam && a.penalty.kind == b.penalty.kind;
    for row in trials.chunk_by_mut(is_same_row) {
        let scores: Vec<f64> = row.iter().map(|trial| trial.score).collect();
        if scores.len() < 3 {
            continue;
        }
        for (index, trial) in row.iter_mut().enumerate() {
            // The ends have themselves beyond them: no fewer scores decide there.
            let around = [index.saturating_sub(1), index, (index + 1).min(scores.len() - 1)];
            trial.smoothed = around.iter().map(|index| scores[*index]).sum::<f64>() / 3.0;
        }
    }
}

/// The best trial, and that of the model's own values. Smoothed scores decide: where a little more penalty is much
/// worse, a good score is chance, and other text may have a bad one. Among those with equal ones, the best score wins,
/// then the model's own values, then the narrower beam, then the model's own penalty. What scores less than the model's
/// own values does not replace them.
fn choose(trials: &[Trial], own: (usize, LengthPenalty)) -> (&Trial, &Trial) {
    let before = trials.iter().find(|trial| (trial.beam, trial.penalty) == own).unwrap_or(&trials[0]);
    let is_better = |one: &Trial, than: &Trial| [one.smoothed, one.score] > [than.smoothed, than.score];
    let as_good = trials.iter().filter(|trial| trial.score >= before.score);
    let best = as_good.fold(before, |best, trial| if is_better(trial, best) { trial } else { best });
    // A beam of 1 finds the same with every penalty.
    let is_as_good = |trial: &&Trial| trial.beam == best.beam && !is_better(best, trial) && trial.penalty == own.1;
    (trials.iter().find(is_as_good).unwrap_or(best), before)
}

/// The flags of which the best value is the last that was tried.
fn edges(trials: &[Trial], best: &Trial) -> Vec<&'static str> {
    let is_widest = trials.iter().all(|trial| trial.beam <= best.beam);
    let of_kind = trials.iter().map(|trial| trial.penalty).filter(|penalty| penalty.kind == best.penalty.kind);
    let alphas: Vec<f64> = of_kind.map(|penalty| penalty.alpha).collect();
    let ends = [f64::min, f64::max].map(|end| alphas.iter().copied().reduce(end));
    let is_last = ends[0] != ends[1] && ends.contains(&Some(best.penalty.alpha));
    let flags = [("--beam", is_widest && trials[0].beam < best.beam), ("--length-penalty", is_last && best.beam > 1)];
    flags.into_iter().filter_map(|(flag, is_at_the_edge)| is_at_the_edge.then_some(flag)).collect()
}

/// Scores by beam width and length penalty.
fn table(trials: &[Trial], metric: &dyn Metric) -> String {
    let mut table = Table::new();
    let first = trials[0].beam;
    let penalties: Vec<LengthPenalty> =
        trials.iter().take_while(|trial| trial.beam == first).map(|trial| trial.penalty).collect();
    let is_of_one_kind = penalties.iter().all(|penalty| penalty.kind == penalties[0].kind);
    let kind = if is_of_one_kind { format!(" ({})", penalties[0].kind) } else { String::new() };
    let title = format!("{} by beam width and length penalty{kind}:", metric.name());
    let heading = |penalty: &LengthPenalty| match is_of_one_kind {
        true => penalty.alpha.to_string(),
        false => described_penalty(*penalty),
    };
    let header: Vec<String> = std::iter::once(String::new()).chain(penalties.iter().map(heading)).collect();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(&header);
    for row in trials.chunks(header.len() - 1) {
        let scores = row.iter().map(|trial| format!("{:.2}", trial.score));
        table.add_row(std::iter::once(row[0].beam.to_string()).chain(scores));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{title}\n{table}")
}

fn described_penalty(penalty: LengthPenalty) -> String {
    match penalty.kind {
        PenaltyKind::Average => penalty.kind.to_string(),
        kind => format!("{kind} {}", penalty.alpha),
    }
}

fn described(trial: &Trial, metric: &dyn Metric) -> String {
    let penalty = described_penalty(trial.penalty);
    format!("{} {:.2}, beam {}, length penalty {penalty}", metric.name(), trial.score, trial.beam)
}

fn json_of(trial: &Trial) -> Value {
    let LengthPenalty { kind, alpha } = trial.penalty;
    let Trial { beam, score, smoothed, .. } = trial;
    json!({
        "beam": beam, "length_penalty": alpha, "length_penalty_kind": kind, "score": score, "smoothed": smoothed,
    })
}
