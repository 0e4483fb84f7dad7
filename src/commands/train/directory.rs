//! The run directory: whose it is, starting, replacing and continuing a run in it.

use std::path::{Path, PathBuf};

use crate::checkpoint::{self, BEST, LAST, MANIFEST_FILE, MODEL_FILE};
use crate::cli::TrainArgs;
use crate::config::{self, Config, DataConfig};
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::train::state::{TextChecksums, TrainState};

const CONFIG: &str = "config.toml";
/// A configuration on its way to becoming [`CONFIG`].
const NEW_CONFIG: &str = ".config.toml.new";

/// `--run-dir`, else `runs/<name of the last configuration file>`.
pub fn of(args: &TrainArgs) -> Result<PathBuf> {
    if let Some(directory) = &args.run_dir {
        return Ok(directory.clone());
    }
    let name = args.config.last().and_then(|file| file.file_stem());
    let name = name.ok_or_else(|| {
        Error::usage("the configuration file has no name").help("name a run directory with --run-dir")
    })?;
    Ok(Path::new("runs").join(name))
}

/// Makes sure that a run can be in the directory. Returns whether one is continued. Nothing in it changes yet.
pub fn open(run: &Path, args: &TrainArgs, config: &Config) -> Result<bool> {
    let config_file = run.join(CONFIG);
    let exists = config::is_resolved(&config_file);
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
    let ours = |name: std::ffi::OsString| tokenizers::FILES.iter().any(|file| name == *file);
    Ok(entries.flatten().any(|entry| !ours(entry.file_name())))
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
    let differences = config::differences(&old, &with_files_of(config, &old));
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

/// The configuration with the files of `old` in place of its own: text may have moved, and is known by its checksum.
fn with_files_of(config: &Config, old: &Config) -> Config {
    let mut config = config.clone();
    for (new, old) in config.data.train.iter_mut().zip(&old.data.train) {
        (new.source, new.target) = (old.source.clone(), old.target.clone());
    }
    if let (Some(new), Some(old)) = (&mut config.data.valid, &old.data.valid) {
        *new = old.clone();
    }
    config
}

/// Refuses to continue a run on other text than it began with.
pub fn compare_text(old: &TextChecksums, new: &TextChecksums, config: &DataConfig) -> Result<()> {
    let train = old.train != new.train;
    let valid = old.valid.is_some() && new.valid.is_some() && old.valid != new.valid;
    let files = [
        (train, "training", config.train.first().map(|corpus| &corpus.source)),
        (valid, "validation", config.valid.as_ref().map(|pair| &pair.source)),
    ];
    let errors = files.into_iter().filter(|(differs, _, _)| *differs).map(|(_, what, file)| {
        let error = Error::usage(format!("the {what} text is not what it was when the run began"));
        let error = error.help("restore the files; they may lie in another place. Or start another run with --run-dir");
        match file {
            Some(file) => error.at(file),
            None => error,
        }
    });
    let errors: Vec<Error> = errors.collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
}

/// Begins a run, when all data have been read. Of a run that is replaced only what `mt` writes is removed: the directory may
/// be a link or a mounted disk, and other files in it are the user's.
pub fn start(run: &Path, config: &Config, tokenizers: &Tokenizers) -> Result<()> {
    let checkpoints = run.join("checkpoints");
    if checkpoints.exists() {
        std::fs::remove_dir_all(&checkpoints).map_err(|e| Error::io("remove the old run", &checkpoints, e))?;
    }
    let files = [BEST, LAST, MANIFEST_FILE, MODEL_FILE, "log.jsonl"];
    remove(run, files.iter().chain(tokenizers::FILES).chain([&CONFIG]))?;
    tokenizers.save(run)?;
    write_config(run, config)
}

/// Continues a run at `state`: the configuration becomes what it is now, `best` what the state says (a kill may have come
/// between the two), and the final model goes, for the end makes a new one.
pub fn resume(run: &Path, config: &Config, state: &TrainState) -> Result<()> {
    write_config(run, config)?;
    match &state.best {
        Some(best) if checkpoint::directory_of(run, best.step).exists() => {
            checkpoint::set_pointer(run, BEST, best.step)?;
        }
        _ => remove(run, [&BEST])?,
    }
    remove(run, [&MANIFEST_FILE, &MODEL_FILE])
}

fn remove<'a>(run: &Path, names: impl IntoIterator<Item = &'a &'a str>) -> Result<()> {
    for name in names {
        let file = run.join(name);
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove a file of the old run", &file, e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes the resolved configuration, whole or not at all.
fn write_config(run: &Path, config: &Config) -> Result<()> {
    let (file, new) = (run.join(CONFIG), run.join(NEW_CONFIG));
    std::fs::write(&new, config::to_toml(config))
        .and_then(|()| std::fs::rename(&new, &file))
        .map_err(|e| Error::io("write the configuration", &file, e))
}
