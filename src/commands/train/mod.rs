//! `mt train`

mod dry_run;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::checkpoint::{self, CONFIG_FILE};
use crate::cli::{Common, TrainArgs};
use crate::commands::shared::arguments;
use crate::commands::shared::output::{print, print_json};
use crate::commands::shared::signals::Signals;
use crate::config::Config;
use crate::console::{info, message, note, pairs_bar, tell, warning};
use crate::data::statistics::Statistics;
use crate::data::texts::Texts;
use crate::device;
use crate::error::{Error, Result};
use crate::escape::{shell_word, shown_path};
use crate::model::Transformer;
use crate::report::events::Events;
use crate::report::files;
use crate::report::page::{self, Page};
use crate::run::directory::Resumption;
use crate::run::ended::Ended;
use crate::run::finish::Final;
use crate::run::host::RunHost;
use crate::run::lock::Lock;
use crate::run::plan::Plan;
use crate::run::request::RunRequest;
use crate::run::saver::Saver;
use crate::run::training_data::{self, Data, Preparation};
use crate::run::validator::Validator;
use crate::run::{Stop, backend, batches, compare, directory, init, restore, resume};
use crate::train::backend::Backend;
use crate::train::log::{self, Continuation, LOG_FILE, Log, Watcher};
use crate::train::optimizer::Optimizer;
use crate::train::profile::Profiler;
use crate::train::state::TrainState;
use crate::train::{Alone, End, Pipeline, Session, Trainer, Validation, memory, rehearse};

/// Messages at the first signal, and at a second one.
const ON_SIGNALS: [&str; 2] = [
    "stopping and saving; a second signal stops at once",
    "stopped at once; --resume continues from the last checkpoint, or starts again where there is none",
];

/// Why most runs end.
const UPDATES_REACHED: &str = "train.max_updates reached";

/// Trains a model.
pub fn run(args: &TrainArgs, common: &Common) -> Result<()> {
    let of_system = |error: Error| match (error.is_of_disk() || error.is_of_open_files()) && !args.dry_run {
        true => error.more_help("training goes on with --resume"),
        false => error,
    };
    work(args, common).map_err(of_system)
}

fn work(args: &TrainArgs, common: &Common) -> Result<()> {
    let request = RunRequest {
        resume: args.resume,
        overwrite: args.overwrite,
        force: args.force,
        ..arguments::run(&args.run, common)
    };
    let config = request.config()?;
    let texts = Texts::find(&config.data, request.offline)?;
    request.set_threads(&config)?;
    let device = request.open_device(&config)?;
    if device.is_cpu() {
        memory::refuse_the_impossible(&config.model, config.tokenizer.vocab_size)?;
    }
    let run = request.run_directory()?;
    directory::refuse_unusable(&run, &config, args.resume)?;
    config.train.schedule.idle_end(config.train.max_updates).into_iter().for_each(warning);
    if args.dry_run {
        let old = directory::continued(&run, &request, &config, &tell)?.map(|continued| continued.config);
        let saved = old.map(|old| directory::tokenizers(&run).map(|tokenizers| (old, tokenizers))).transpose()?;
        return dry_run::print(&run, &config, &texts, saved, args, &device, common);
    }
    let signals = Signals::register(ON_SIGNALS)?;
    let (mut continued, lock) = directory::open(&run, &request, &config, &tell)?;
    let is_same = continued.as_ref().is_some_and(|continued| continued.is_same) && !args.force;
    let not_taken_over =
        continued.as_mut().map(|continued| std::mem::take(&mut continued.not_taken_over)).unwrap_or_default();
    let (old, changes) = continued.map(|continued| (continued.config, continued.changes)).unzip();
    let changes = changes.unwrap_or_default();
    let resumed = old.is_some();
    if args.resume && !resumed {
        info(format_args!("there is no run in {} to resume: starting one", shown_path(&run)));
    }
    let saved = resumed.then(|| directory::tokenizers(&run)).transpose()?;
    let preparation = Preparation::beside(&run, &config.data, &tell).watching(&signals).showing(&pairs_bar);
    let data = training_data::prepare(&config, &texts, saved, &preparation)?;
    let config = init::stating_tokenizers(config, old.as_ref(), &data.tokenizers);
    let validator = Validator::open(&config, &texts, &data.tokenizers, &tell)?;
    let text = compare::checksums(&data.corpus, validator.as_ref());
    if is_same {
        match restore::newest(&run, &|_| ()) {
            Ok(Some((state, _))) => resume::check_text(&state, &text, &config, false, &tell)?,
            Ok(None) => {}
            // If no checkpoint is left, it is not known what the text was.
            Err(error) if checkpoint::is_known_damage(&error) => {}
            Err(error) => return Err(error),
        }
        if is_over(&run, &config, args, common)? {
            if !not_taken_over.is_empty() {
                let keys = not_taken_over.join("`, `");
                note(format_args!(
                    "`{keys}`: not taken over, since there is nothing to do; the run's config.toml has its own"
                ));
            }
            return Ok(());
        }
    }
    let vocabulary = crate::model_dir::vocabulary(&data.tokenizers);
    let compute = backend::number_type(config.runtime.precision, &device, &tell);
    let model = Transformer::with_precision(&config.model, vocabulary, &device, compute)?;
    let parameters = model.parameters().values().elem_count();
    Plan::new(&config, &data)?.warnings(&config, device.is_cpu()).for_each(warning);
    model.initialise(config.train.seed)?;
    let mut optimizer = Optimizer::new(&config.train.optimizer, model.parameters(), config.train.exponential_average)?;
    let (begun, is_loaded) =
        resume::begin(resumed.then_some(&*run), &config, args.force, &model, &mut optimizer, &text, &tell)?;
    optimizer.freeze(&config.train.freeze)?;
    if optimizer.frozen_count() > 0 {
        let [frozen, all] = [optimizer.frozen_count(), parameters].map(super::info::grouped);
        info(format_args!("frozen: {frozen} of {all} parameters"));
    }
    let (state, recorded) = resume::adapt(begun, old.as_ref(), &config, &data, text.clone(), args.force, &tell)?;
    if state.health.has_gone_back() {
        note(format_args!(
            "the learning rate stays {} times that of the schedule, since the run has gone back to an earlier \
             checkpoint",
            state.health.rate
        ));
    }
    refuse_to_begin(&signals)?;
    info(format_args!("model: {} parameters; run directory: {}", super::info::grouped(parameters), shown_path(&run)));
    let mut backend = backend::open(&model)?;
    // A run that is replaced stays until it is known that this one can be trained.
    let session = rehearsal(&mut *backend, &data, &config)?;
    refuse_to_begin(&signals)?;
    // What may fail comes before the run is touched: a failed resume leaves every file as it was.
    let saver = Saver::start()?;
    let log = Continuation::prepare(&run, is_loaded.then(|| state.progress()))?;
    if resumed {
        Resumption::prepare(&run, &recorded, &state)?.place()?;
    } else {
        directory::start(&run, &config, &data.tokenizers)?;
    }
    let prepared =
        Prepared { data, validator, model, backend, optimizer, state, is_loaded, changes, lock, session, saver, log };
    train(&run, &config, args, common, prepared, signals)
}

/// Fails if a signal has asked to stop while nothing of a former run is touched.
fn refuse_to_begin(signals: &Signals) -> Result<()> {
    let Some(end) = signals.stop() else { return Ok(()) };
    let error = Error::stopped(end == End::Terminated, "stopped by a signal before training began");
    Err(error.help("run the same command again: the run directory is as it was"))
}

/// Tries the largest batch.
fn rehearsal(backend: &mut dyn Backend, data: &Data, config: &Config) -> Result<Session> {
    let largest = batches::largest_batch(data, config);
    let s = if largest.batch_size == 1 { "" } else { "s" };
    let shape = format!("{} pair{s} of {} tokens", largest.batch_size, largest.source_length);
    let session = rehearse(backend, largest, data.tokenizers.target.pad_id(), &config.train)?;
    if let Some(memory) = device::resident_memory() {
        let mebibytes = memory >> 20;
        info(format_args!("tried the largest batch, {shape}: {mebibytes} MiB of memory in use"));
    }
    Ok(session)
}

/// Everything a run begins with.
struct Prepared {
    data: Data,
    validator: Option<Validator>,
    model: Transformer,
    backend: Box<dyn Backend>,
    optimizer: Optimizer,
    state: TrainState,
    /// Whether the state is that of a checkpoint.
    is_loaded: bool,
    /// What will be different from now on in a run that is continued.
    changes: Vec<String>,
    lock: Lock,
    session: Session,
    saver: Saver,
    log: Continuation,
}

fn train(
    run: &Path,
    config: &Config,
    args: &TrainArgs,
    common: &Common,
    prepared: Prepared,
    signals: Signals,
) -> Result<()> {
    let Prepared {
        data,
        validator,
        model,
        backend,
        optimizer,
        state,
        is_loaded,
        changes,
        lock,
        session,
        saver,
        log: continuation,
    } = prepared;
    let writable = directory::writable(run, config);
    let total = (config.train.max_updates > 0).then_some(config.train.max_updates);
    let watchers: Vec<Box<dyn Watcher>> = vec![Box::new(Events::new(writable)), Box::new(Page::new(run))];
    let vocabulary = crate::model_dir::vocabulary(&data.tokenizers);
    let statistics = Statistics::new(&data.corpus, &data.report, &config.data, [vocabulary.source, vocabulary.target]);
    let mut of_run = json!(statistics);
    of_run["parameters"] = model.parameters().values().elem_count().into();
    of_run["tokenizers"] = data.tokenizers.digest().into();
    if let Err(error) = files::replace(writable, files::CORPUS, &of_run.to_string()) {
        message(format_args!("warning: {error}"));
    }
    let mut log = Log::begin(continuation, run, is_loaded.then(|| state.progress()), total, watchers)?;
    // Last, because it could not be brought back; a run that begins has none.
    directory::remove_final(run, config, &tell)?;
    if !changes.is_empty() && state.end(&config.train, &config.valid).is_none() {
        let entry = json!({ "event": "change", "update": state.step, "changes": changes });
        // It is there already if the run was killed before its next checkpoint.
        if !log::entries(&run.join(LOG_FILE)).is_ok_and(|entries| entries.contains(&entry)) {
            log.entry(&entry);
        }
    }
    let parameters = model.parameters().clone();
    let mut host = RunHost {
        run,
        lock: Arc::new(lock),
        config,
        text: state.text.clone(),
        loaded: is_loaded.then(|| (state.step, state.configuration.clone())),
        data: &data,
        validator,
        stop: &signals,
        tell: Arc::new(tell),
        parameters,
        saver,
        latest: None,
    };
    let mut trainer = Trainer {
        model: &model,
        optimizer,
        config: &config.train,
        valid: &config.valid,
        state,
        log,
        communicator: &Alone,
        padding: data.tokenizers.target.pad_id(),
        backend,
        profiler: args.profile.then(Profiler::default),
        session,
        pipeline: Pipeline::default(),
    };
    let end = trainer.run(&mut host)?;
    // Even if there was no validation since the last page, or none at all.
    if let Err(error) =
        page::Run::open(run).and_then(|of_run| page::write(run, page::page(&[of_run], &Value::Null).as_bytes()))
    {
        trainer.log.damage(&format!("warning: {error}"));
    }
    conclude(end, &mut trainer, &mut host, args, common)
}

/// The command that goes on with a run, on the same device.
fn resuming(run: &Path, common: &Common) -> String {
    let device = common.device.as_ref().map(|device| format!(" --device {device}")).unwrap_or_default();
    let threads = common.threads.map(|threads| format!(" --threads {threads}")).unwrap_or_default();
    format!("`mt train --config {} --resume{device}{threads}`", shell_word(&run.join(CONFIG_FILE)))
}

/// Says that a run has ended already, if there is nothing left to do: nothing that decides its final model has changed, and that
/// is whole and was validated. It stays as it is: making it anew would need all checkpoints that it was made of.
fn is_over(run: &Path, config: &Config, args: &TrainArgs, common: &Common) -> Result<bool> {
    let Some(ended) = Ended::find(run, config)? else { return Ok(false) };
    info(format_args!("the run in {} has ended{}: its final model stays as it is", shown_path(run), ended.at()));
    let Ended { update, made, monitored, candidates } = ended;
    if args.profile {
        note("nothing to profile: there were no updates");
    }
    if common.json {
        // Why a run ended otherwise, its log does not say.
        let is_reached = update.is_some_and(|update| (1..=update).contains(&config.train.max_updates));
        let why = if is_reached { UPDATES_REACHED } else { "the run had ended before" };
        let mut result = json!({ "run_dir": run.to_string_lossy(), "update": update, "ended": why });
        result["model"] = made.as_ref().map_or(Value::Null, |entry| entry["model"].clone());
        let numbers = |entry: &Value| -> Value {
            let is_number = |key: &str| !["event", "update", "model", "set", "seconds"].contains(&key);
            let numbers = entry.as_object().into_iter().flatten().filter(|(key, _)| is_number(key));
            numbers.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        result["valid"] = made.as_ref().map_or(Value::Null, numbers);
        let set = |entry: &Value| (entry["set"].as_str().unwrap_or_default().to_owned(), numbers(entry));
        result["monitor"] = made.map_or(Value::Null, |_| monitored.iter().map(set).collect());
        result["candidates"] = candidates.into();
        print_json(&result)?;
    }
    Ok(true)
}

/// Reports how training has ended, and makes the final model unless it was ended by a signal.
fn conclude(
    end: End,
    trainer: &mut Trainer<'_>,
    host: &mut RunHost<'_>,
    args: &TrainArgs,
    common: &Common,
) -> Result<()> {
    let (step, run) = (trainer.state.step, host.run.display());
    let profiler = trainer.profiler.take();
    let profile = match profiler {
        Some(profiler) => profiler.finish(&mut *trainer.backend)?,
        None => None,
    };
    if args.profile && profile.is_none() {
        note("nothing to profile: the first three updates are not counted, and there were no more");
    }
    if let (Some(profile), false) = (&profile, common.json) {
        print(profile)?;
    }
    let why = match end {
        End::Interrupted | End::Terminated => {
            let what = match step {
                0 => "stopped by a signal before the first update".to_owned(),
                _ => format!("stopped by a signal at update {step}; everything is saved"),
            };
            let help = format!("continue with {}", resuming(host.run, common));
            if common.json {
                print_json(
                    &json!({ "run_dir": run.to_string(), "update": step, "ended": what, "model": null, "valid": null, "monitor": null, "candidates": [] }),
                )?;
            }
            return Err(Error::stopped(end == End::Terminated, what).help(help));
        }
        End::Updates => UPDATES_REACHED.to_owned(),
        End::Epochs => "train.max_epochs reached".to_owned(),
        End::Patience if trainer.valid.patience == 1 => {
            "a validation without an improvement (valid.patience)".to_owned()
        }
        End::Patience => format!("{} validations without an improvement (valid.patience)", trainer.valid.patience),
    };
    trainer.log.line(&format!("training ended at update {step}: {why}"));
    let Final { model: made, validation, candidates } = host.finish(trainer)?;
    if let (true, None, Some(signal)) = (host.validator.is_some(), &validation, host.stop.stop()) {
        let what = "stopped by a signal after training: the final model is saved, and not evaluated";
        let help = format!("evaluate it with {}", resuming(host.run, common));
        if common.json {
            print_json(
                &json!({ "run_dir": run.to_string(), "update": step, "ended": what, "model": made, "valid": null, "monitor": null, "candidates": [] }),
            )?;
        }
        return Err(Error::stopped(signal == End::Terminated, what).help(help));
    }
    if common.json {
        let mut result = json!({ "run_dir": run.to_string(), "update": step, "ended": why, "model": made });
        let of = |numbers: fn(&Validation) -> Map<String, Value>| validation.as_ref().map(numbers).into();
        result["valid"] = of(Validation::numbers);
        result["monitor"] = of(Validation::monitored_numbers);
        result["candidates"] = candidates.into();
        if let Some(profile) = profile {
            result["profile"] = profile.json();
        }
        print_json(&result)?;
    }
    Ok(())
}
