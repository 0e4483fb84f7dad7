//! `mt train`

mod host;
mod plan;
mod prepare;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint;
use crate::cli::{Common, TrainArgs};
use crate::config::{self, Config};
use crate::data::tokenizers::Tokenizers;
use crate::device;
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::ops::memory::with_slice_mut;
use crate::ops::params::Parameters;
use crate::train::log::Log;
use crate::train::optimizer::Optimizer;
use crate::train::state::TrainState;
use crate::train::{Alone, End, Trainer};
use host::{RunHost, Signals, Validator};
use prepare::Data;

/// Trains a model.
pub fn run(args: &TrainArgs, common: &Common) -> Result<()> {
    let config = resolve(args, common)?;
    device::set_threads(config.runtime.threads);
    let device = device::open(&config.runtime.device)?;
    if args.dry_run {
        return plan::print(&config, common);
    }
    let signals = Signals::register()?;
    let run = run_directory(args)?;
    let resumed = open_run(&run, args, &config)?;
    let say = |text: String| {
        if !common.quiet {
            eprintln!("{text}");
        }
    };
    let saved = resumed.then(|| Tokenizers::load(&run)).transpose()?;
    let data = prepare::data(&config, saved, &say)?;
    let model = Transformer::new(&config.model, super::model::vocabulary(&data.tokenizers), &device)?;
    model.initialise(config.train.seed)?;
    let mut optimizer = Optimizer::new(&config.train.optimizer, model.parameters(), config.train.exponential_average)?;
    let state = if resumed { resume(&run, &model, &mut optimizer, &say)? } else { TrainState::default() };
    if !resumed {
        start_run(&run, &config, &data.tokenizers)?;
    }
    say(format!(
        "model: {} parameters; run directory: {}",
        super::info::grouped(model.parameters().values().elem_count()),
        run.display()
    ));
    train(&run, &config, common, Prepared { data, model, optimizer, state }, signals)
}

/// Everything a run begins with.
struct Prepared {
    data: Data,
    model: Transformer,
    optimizer: Optimizer,
    state: TrainState,
}

fn train(run: &Path, config: &Config, common: &Common, prepared: Prepared, signals: Signals) -> Result<()> {
    let Prepared { data, model, optimizer, state } = prepared;
    let mut batches = prepare::batches(&data, config, state.position)?;
    let total = (config.train.max_updates > 0).then_some(config.train.max_updates);
    let log = Log::open(run, state.step, total, common.quiet)?;
    let validator = Validator::open(config, &data.tokenizers)?;
    let mut host = RunHost { run, config, validator, signals, parameters: model.parameters().clone() };
    let mut trainer = Trainer {
        model: &model,
        optimizer,
        config: &config.train,
        valid: &config.valid,
        state,
        log,
        communicator: &Alone,
        padding: data.tokenizers.target.pad_id(),
        implementation: Default::default(),
    };
    let end = trainer.run(&mut batches, &mut host)?;
    drop(batches);
    let step = trainer.state.step;
    let why = match end {
        End::Interrupted | End::Terminated => {
            let what = format!("stopped by a signal at update {step}; everything is saved");
            let help = format!("continue with --resume --run-dir {}", run.display());
            return Err(Error::stopped(end == End::Terminated, what).help(help));
        }
        End::Updates => "train.max_updates reached".to_owned(),
        End::Epochs => "train.max_epochs reached".to_owned(),
        End::Patience => format!("{} validations without an improvement", config.valid.patience),
    };
    trainer.log.line(&format!("training ended at update {step}: {why}"));
    host.finish(&model, &trainer.optimizer, &mut trainer.log, step)
}

/// The configuration of files, `--set` and flags.
fn resolve(args: &TrainArgs, common: &Common) -> Result<Config> {
    let mut sets = args.set.clone();
    sets.extend(common.device.iter().map(|device| format!("runtime.device={device}")));
    sets.extend(common.threads.iter().map(|threads| format!("runtime.threads={threads}")));
    sets.extend(common.seed.iter().map(|seed| format!("train.seed={seed}")));
    let config = config::load(&args.config, &sets)?;
    config::check_for_training(&config)?;
    Ok(config)
}

/// `--run-dir`, else `runs/<name of the last configuration file>`.
fn run_directory(args: &TrainArgs) -> Result<PathBuf> {
    if let Some(directory) = &args.run_dir {
        return Ok(directory.clone());
    }
    let name = args.config.last().and_then(|file| file.file_stem());
    let name = name.ok_or_else(|| {
        Error::usage("the configuration file has no name").help("name a run directory with --run-dir")
    })?;
    Ok(Path::new("runs").join(name))
}

/// Makes sure of the run directory. Returns whether a run is continued.
fn open_run(run: &Path, args: &TrainArgs, config: &Config) -> Result<bool> {
    let config_file = run.join("config.toml");
    let exists = config_file.exists();
    if exists && !args.resume && !args.overwrite {
        let error = Error::usage("the run directory exists").at(run);
        return Err(
            error.help("continue it with --resume, replace it with --overwrite, or name another with --run-dir")
        );
    }
    if exists && args.resume {
        compare(&config_file, config)?;
        return Ok(true);
    }
    std::fs::create_dir_all(run).map_err(|e| Error::io("create the run directory", run, e))?;
    if !exists && holds_something_else(run)? {
        let error = Error::usage("the run directory holds something that is not a run").at(run);
        return Err(error.help("name another with --run-dir"));
    }
    let probe = run.join(".probe");
    std::fs::write(&probe, b"").map_err(|e| Error::io("write into the run directory", run, e))?;
    std::fs::remove_file(&probe).map_err(|e| Error::io("write into the run directory", run, e))?;
    Ok(false)
}

/// Whether a directory that is no run holds anything but tokenizers, which a run killed at its very start leaves.
fn holds_something_else(directory: &Path) -> Result<bool> {
    let entries = std::fs::read_dir(directory).map_err(|e| Error::io("read the run directory", directory, e))?;
    let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("tokenizer");
    Ok(entries.flatten().any(|entry| !ours(&entry.file_name())))
}

/// Keys that may change when a run is continued: they do not change what an update computes.
const MAY_CHANGE: &[&str] = &[
    "runtime.",
    "decode.",
    "data.root",
    "data.test",
    "valid.patience",
    "valid.samples",
    "train.max_updates",
    "train.max_epochs",
    "train.average_last",
    "train.save_every",
    "train.keep",
    "train.log_every",
];

/// Refuses to continue a run under a configuration that would train something else.
fn compare(config_file: &Path, config: &Config) -> Result<()> {
    let old = config::load_resolved(config_file)?;
    let differences = config::differences(&old, config);
    let matters = |key: &str| !MAY_CHANGE.iter().any(|allowed| key.starts_with(allowed));
    let errors: Vec<Error> = differences
        .into_iter()
        .filter(|(key, _, _)| matters(key))
        .map(|(key, before, now)| {
            Error::usage(format!("`{key}` was {before} when the run began and is {now} now"))
                .at(config_file)
                .help("a resumed run must train as it began: restore the value, or start another run with --run-dir")
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// Writes what a new run directory begins with. A run that is to be replaced goes only now, when all data have been read.
fn start_run(run: &Path, config: &Config, tokenizers: &Tokenizers) -> Result<()> {
    std::fs::remove_dir_all(run).map_err(|e| Error::io("remove the old run", run, e))?;
    std::fs::create_dir_all(run).map_err(|e| Error::io("create the run directory", run, e))?;
    tokenizers.save(run)?;
    let file = run.join("config.toml");
    std::fs::write(&file, config::to_toml(config)).map_err(|e| Error::io("write the configuration", &file, e))
}

/// Loads the newest whole checkpoint of a run.
fn resume(run: &Path, model: &Transformer, optimizer: &mut Optimizer, say: &dyn Fn(String)) -> Result<TrainState> {
    withdraw_final_model(run)?;
    let (newest, warnings) = checkpoint::newest_valid(run)?;
    for warning in warnings {
        say(format!("warning: {warning}"));
    }
    let Some((step, directory)) = newest else {
        if checkpoint::list(run)?.first().is_some() {
            let error = Error::failure("every checkpoint of this run is damaged").at(run);
            return Err(error.help("start again with --overwrite, or name another run with --run-dir"));
        }
        say("the run has no checkpoint yet: starting at update 0".to_owned());
        return Ok(TrainState::default());
    };
    super::model::load_parameters(&directory.join("model.safetensors"), model)?;
    load_optimizer(&directory.join("optimizer.safetensors"), optimizer, model.parameters())?;
    let state = checkpoint::read_state(&directory)?;
    let state: TrainState = serde_json::from_value(state["train"].clone()).map_err(|e| {
        Error::failure(format!("the training state cannot be read: {e}")).at(directory.join("state.json"))
    })?;
    say(format!("resuming at update {step}"));
    Ok(state)
}

/// A run that goes on has no final model; its end makes a new one.
fn withdraw_final_model(run: &Path) -> Result<()> {
    for name in [checkpoint::MANIFEST_FILE, checkpoint::MODEL_FILE] {
        let file = run.join(name);
        if file.exists() {
            std::fs::remove_file(&file).map_err(|e| Error::io("withdraw the final model", &file, e))?;
        }
    }
    Ok(())
}

/// Fills the optimizer's tensors (and, with an exponential average, sorts out which parameters are which).
fn load_optimizer(file: &Path, optimizer: &Optimizer, parameters: &Arc<Parameters>) -> Result<()> {
    if let Some(average) = optimizer.average() {
        // model.safetensors holds the average; the parameters being trained are beside the moments.
        average.slice_set(parameters.values(), 0, 0)?;
    }
    let tensors = optimizer.tensors();
    let length = parameters.values().elem_count();
    let shape = [length];
    let slots: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, (name, _))| checkpoint::Slot { name, shape: &shape, offset: i * length })
        .collect();
    let mut flat = vec![0f32; tensors.len() * length];
    checkpoint::load_into(file, &slots, &mut flat)?;
    for ((_, tensor), values) in tensors.iter().zip(flat.chunks_exact(length)) {
        with_slice_mut(tensor, |slice| slice.copy_from_slice(values))?;
    }
    Ok(())
}
