//! `mt distill`

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::shared::output::print_json;
use super::shared::synthesis::{self, ChosenPairs, Input, Maker};
use super::shared::{arguments, languages, model};
use super::train;
use crate::cli::{Common, DistillArgs, RunArgs, SelectionArgs, TrainArgs};
use crate::comet::Found;
use crate::config;
use crate::console::{info, note, tell};
use crate::data::corpus::PairSource;
use crate::data::tokenizers::Tokenizers;
use crate::data::{CorpusConfig, CorpusLocation, texts};
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::report::files;
use crate::run::directory::{self, is_run};
use crate::run::init::Start;
use crate::run::request::RunRequest;
use crate::run::stages::Resolved;
use crate::synthetic::PART_LINES;

/// The folder of the translations, in the student's run.
const FOLDER: &str = "distilled";
/// What was done, there.
const REPORT: &str = "report.json";

/// Translates the training text of a student with its teachers, and trains it.
pub(super) fn run(args: &DistillArgs, common: &Common) -> Result<()> {
    let selection = synthesis::selection(&args.selection)?;
    let request = RunRequest { resume: true, force: args.force, ..arguments::run(&args.run, common) };
    let mut config = request.config()?;
    let run = request.run_directory()?;
    let trains = !args.text_only && args.shard.is_none();
    if is_run(&run) && !run.join(FOLDER).exists() {
        let error = Error::usage("there is a run that was not begun by mt distill").at(&run);
        return Err(error.help("name another one with --run-dir"));
    }
    if trains {
        // What would end the training before it begins is said before hours of translating.
        Resolved::new(request.clone(), None, &|_| ())?;
        Start::open(&config)?;
        Tokenizers::named(&config.tokenizer)?;
        for set in config.data.valid.iter().chain(&config.data.monitor) {
            texts::find_one(&set.location, common.offline)?.open(1.0, &|_| ())?;
        }
        if config.valid.wants_comet(None) {
            Found::with_references("valid.comet_model", &config.valid.comet_model, common.offline)?;
        }
    }
    if args.shard.is_none() {
        refuse_other_choice(args, &run)?;
    }
    // With the run's own configuration, these are there already.
    let own = run.join(FOLDER).canonicalize().ok();
    let is_own = |location: &CorpusLocation| match location {
        CorpusLocation::Files { source, .. } => {
            let source = source.canonicalize().unwrap_or_else(|_| source.clone());
            own.as_ref().is_some_and(|own| source.starts_with(own))
        }
        CorpusLocation::Tsv { .. } | CorpusLocation::Hub(_) => false,
    };
    config.data.train.retain(|corpus| !is_own(&corpus.location));
    if config.data.train.is_empty() {
        let error = Error::usage("`data.train` names nothing but the translations of this run");
        return Err(error.help("give the configuration with which the student was begun"));
    }
    request.set_threads(&config, 1)?;
    model::check_weights(&args.weights, args.teacher.len())?;
    let load = |path: &_| model::load_from(Some(path), None, common);
    let mut teachers = args.teacher.iter().map(|teacher| load(teacher.as_path()));
    let mut first = teachers.next().unwrap_or_else(|| Err(Error::usage("--teacher names no model")))?;
    let mut others = teachers.collect::<Result<Vec<_>>>()?;
    // Refuses languages that they have not.
    languages::choose(&args.languages, None, std::iter::once(&mut first).chain(&mut others))?;
    let mut maker = Maker::new((first, others), &args.weights, &args.decode, common)?;
    let open = |corpus: &CorpusConfig| {
        let text = texts::find_one(&corpus.location, common.offline)?;
        text.with_weights(corpus.weights.clone()).open(1.0, &tell)
    };
    let corpora: Vec<Box<dyn PairSource>> = config.data.train.iter().map(open).collect::<Result<_>>()?;
    let lines: usize = corpora.iter().map(|pairs| pairs.len()).sum();
    let progress = synthesis::progress(lines);
    info(format_args!("translating {lines} lines of training text, into {}", shown_path(&run.join(FOLDER))));
    let (mut made, mut parts_before) = (Vec::new(), 0);
    for (index, (corpus, pairs)) in config.data.train.iter().zip(&corpora).enumerate() {
        let key = format!("data.train[{index}]");
        let of_flags = [&args.languages.from, &args.languages.to];
        let of_all = [&config.decode.source_language, &config.decode.target_language];
        let language =
            |side: usize| [of_flags[side], &corpus.languages[side], of_all[side]].into_iter().flatten().next();
        let languages = [0, 1].map(|side| language(side).cloned());
        let tag = corpus.tag.as_deref();
        let input = Input { key: &key, pairs: &**pairs, tag, languages, parts_before };
        let name = format!("{FOLDER}/corpus-{index}");
        let parts = synthesis::translate(&mut maker, &input, (&run, &name), args.shard, &progress)?;
        parts_before += pairs.len().div_ceil(PART_LINES);
        // None of a share alone.
        made.extend(parts.map(|parts| (key, parts, corpus, &**pairs)));
    }
    progress.finish_and_clear();
    if args.shard.is_some() {
        note("this share is done; when all are, the same command without --shard trains the student");
        return Ok(());
    }
    // The text of a student that is being trained stays.
    let lock = directory::keep_from_training(&run, &tell)?;
    refuse_other_choice(args, &run)?;
    let (mut distilled, mut reports) = (Vec::new(), Vec::new());
    for (key, parts, corpus, pairs) in &made {
        let pair = |source: &str, target: &str| [source.to_owned(), target.to_owned()];
        let ChosenPairs { source, target, weights, counts } = synthesis::choose(parts, *pairs, selection, pair)?;
        info(synthesis::summary(key, counts));
        reports.push(json!({ "corpus": key, "counts": counts }));
        if counts.kept > 0 {
            let location = CorpusLocation::files(absolute(&source)?, absolute(&target)?);
            let weights = weights.as_deref().map(absolute).transpose()?;
            distilled.push(CorpusConfig { location, weights, ..(*corpus).clone() });
        }
    }
    if distilled.is_empty() {
        return Err(synthesis::nothing_left());
    }
    let report = json!({
        "teachers": args.teacher.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "weights": args.weights, "choice": choice(args), "corpora": reports,
    });
    files::replace(&*run, &format!("{FOLDER}/{REPORT}"), &report.to_string())?;
    if !trains {
        return if common.json { print_json(&report) } else { Ok(()) };
    }
    // The memory of the teachers is the student's now.
    drop((maker, made, lock));
    drop(corpora);
    match args.without_original {
        true => config.data.train = distilled,
        false => config.data.train.extend(distilled),
    }
    let text = config::values(&config).remove("data.train").unwrap_or_default();
    let set = [args.run.set.clone(), vec![format!("data.train={text}")]].concat();
    let run = RunArgs { config: args.run.config.clone(), set, run_dir: Some(run) };
    let (overwrite, dry_run, profile, devices) = (false, false, false, None);
    // The folder of the text is there already: a run begins beside it.
    train::run(&TrainArgs { run, resume: true, overwrite, force: args.force, dry_run, profile, devices }, common)
}

/// The flags that choose what the student is trained on.
fn choice(args: &DistillArgs) -> Value {
    let SelectionArgs { keep, length_tolerance } = args.selection;
    json!({ "keep": keep, "length_tolerance": length_tolerance, "with_original": !args.without_original })
}

/// Refuses another choice of the translations than that on which the run has been trained: its text would change.
fn refuse_other_choice(args: &DistillArgs, run: &Path) -> Result<()> {
    let report = run.join(FOLDER).join(REPORT);
    if !is_run(run)
        || !report.exists()
        || files::read_json(run, &format!("{FOLDER}/{REPORT}"))["choice"] == choice(args)
    {
        return Ok(());
    }
    let what = "the student is trained on another choice of the translations";
    let help =
        "repeat --keep, --length-tolerance and --without-original as they were; or name another run with --run-dir";
    Err(Error::usage(what).at(report).help(help))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("find", path, error))
}
