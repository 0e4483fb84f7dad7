//! The run directory: finding and locking it, and starting, replacing and continuing a run in it.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

use super::compare::{self, Comparison};
use super::lock::{LOCK, Lock, lock};
use super::request::RunRequest;
use crate::checkpoint::{self, BEST, CHECKPOINTS, CONFIG_FILE, LAST, MANIFEST_FILE, MODEL_FILE, RunPath};
use crate::config::{self, Config};
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::file::{Folder, Links, Staged};
use crate::model_dir::Tell;
use crate::model_dir::names::{is_own, own_files};
use crate::notice::Notice;
use crate::report::{events, files};
use crate::train::log::{LOG_FILE, NEW_LOG};
use crate::train::state::TrainState;

/// The temporary file that becomes [`CONFIG_FILE`].
const NEW_CONFIG: &str = ".config.toml.new";
/// The checkpoints of a run that is being replaced.
const OLD_CHECKPOINTS: &str = ".checkpoints.old";

/// Whether there is a run in this directory: a configuration that `mt` wrote, or, if another program has written it
/// since, one beside the tokenizers and checkpoints of `mt`.
pub fn is_run(directory: &Path) -> bool {
    let config = directory.join(CONFIG_FILE);
    let has_checkpoints = || checkpoint::list(directory).is_ok_and(|checkpoints| !checkpoints.is_empty());
    config::is_resolved(&config) || (config.is_file() && Tokenizers::exist(directory) && has_checkpoints())
}

/// Refuses an unusable run directory: it cannot be created or written into, or holds something else. Files that no run
/// has may be there if they `may_stay`.
pub fn refuse_unusable(run: &Path, config: &Config, may_stay: bool) -> Result<()> {
    refuse_models(run, config)?;
    refuse_links(run, config)?;
    if run.is_dir() && !is_run(run) {
        if run.join(LOG_FILE).exists() && run.join(CHECKPOINTS).exists() {
            let error = Error::usage("the run in this directory has lost its configuration").at(run.join(CONFIG_FILE));
            return Err(
                error.help("bring the file back from a copy of the run, or name another directory with --run-dir")
            );
        }
        let others = others(run)?;
        if let Some(name) = others.iter().find(|name| is_own(name)) {
            let what = "the run directory holds something that is not a run, but has the name of a run's file";
            return Err(Error::usage(what).at(run.join(name)).help("name another directory with --run-dir"));
        }
        if !others.is_empty() && !may_stay {
            let error = Error::usage("the run directory holds something that is not a run").at(run);
            return Err(error.help("name another with --run-dir; or begin the run beside what is there with --resume"));
        }
    }
    let there = run.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    // A link that leads nowhere is there, too.
    let Some(there) = there.into_iter().find(|path| path.symlink_metadata().is_ok()) else { return Ok(()) };
    let why = if !there.exists() {
        "this link leads nowhere"
    } else if !there.is_dir() {
        "this is a file"
    } else if !is_writable(there) {
        "nothing can be written here"
    } else if there == run {
        return Ok(());
    } else {
        return try_directory(there).map_err(|error| Error::io("create the run directory", run, error));
    };
    let what = format!("the run directory {} cannot be used: {why}", run.display());
    Err(Error::failure(what).at(there).help("name another with --run-dir"))
}

/// Makes a directory and removes it again: permissions alone do not say that a file system, such as `/proc`, can hold
/// one.
fn try_directory(parent: &Path) -> std::io::Result<()> {
    let trial = parent.join(format!(".mt-{}.tmp", std::process::id()));
    match std::fs::create_dir(&trial) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => {
            // If it cannot be removed, an empty directory stays.
            let _ = std::fs::remove_dir(&trial);
            Ok(())
        }
    }
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Refuses a run directory in which links stand for directories, unless the user allows it: it may be another's, and
/// they may lead anywhere.
fn refuse_links(run: &Path, config: &Config) -> Result<()> {
    let directories = [CHECKPOINTS, files::VALIDATION, events::DIRECTORY];
    match directories.into_iter().find(|name| run.join(name).is_symlink()) {
        Some(name) if !config.runtime.follow_links => {
            let error = Error::usage(format!("`{name}` is a link, and links in a run directory are not followed"));
            Err(error.at(run.join(name)).help(
                "if you made it, allow it with --set runtime.follow_links=true, or that key in a configuration of your \
                 own; otherwise remove it",
            ))
        }
        _ => Ok(()),
    }
}

/// The run directory, as code that writes into it needs it.
pub fn writable<'a>(run: &'a Path, config: &Config) -> RunPath<'a> {
    RunPath::following_links(run, config.runtime.follow_links)
}

/// Makes sure that the directory can hold a run and that no other process trains in it. Returns the run to be
/// continued, if any. Does not change a run in it.
pub fn open(run: &Path, request: &RunRequest, config: &Config, tell: Tell<'_>) -> Result<(Option<Continued>, Lock)> {
    let exists = is_run(run);
    if exists && !request.resume && !request.overwrite {
        let error = Error::usage("the run directory already exists").at(run);
        return Err(
            error.help("continue it with --resume, replace it with --overwrite, or name another with --run-dir")
        );
    }
    if exists && request.resume {
        let lock = lock(run, tell)?;
        return Ok((continued(run, request, config, tell)?, lock));
    }
    let missing = run.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let made = missing.map(Path::to_path_buf).collect();
    std::fs::create_dir_all(run).map_err(|e| Error::io("create the run directory", run, e))?;
    let mut lock = lock(run, tell)?;
    lock.made = made;
    Ok((None, lock))
}

/// A run to continue.
pub struct Continued {
    /// Its configuration.
    pub config: Config,
    /// What will be different from now on, as the user was told.
    pub changes: Vec<String>,
    /// Whether nothing has changed that decides what is trained or made of it.
    pub is_same: bool,
    /// [`Comparison::not_taken_over`].
    pub not_taken_over: Vec<&'static str>,
}

/// The run in the directory, if it is one to continue.
///
/// # Errors
/// It may not be continued with `config`; all reasons are named.
pub fn continued(run: &Path, request: &RunRequest, config: &Config, tell: Tell<'_>) -> Result<Option<Continued>> {
    let config_file = run.join(CONFIG_FILE);
    if !request.resume || !is_run(run) {
        return Ok(None);
    }
    let old = config::load_resolved(&config_file)?;
    let Comparison { mut notes, mut refused, is_same, not_taken_over, impossible } =
        compare::configurations(&config_file, &old, config, &|error, key| request.locate(error, key));
    if request.force {
        notes.extend(refused.drain(..).map(|error| error.what().to_owned()));
    }
    refused.extend(impossible);
    if !refused.is_empty() {
        return Err(Error::many(refused));
    }
    notes.iter().for_each(|text| tell(Notice::Note(text.clone())));
    Ok(Some(Continued { config: old, changes: notes, is_same, not_taken_over }))
}

/// Refuses a directory whose model was not made by a run in it, and the directory of the model that training begins
/// with: replacing the run would replace the model.
fn refuse_models(run: &Path, config: &Config) -> Result<()> {
    let is_start = |init: &Path| {
        // It may be one of the run's own checkpoints.
        let init = checkpoint::run_and_step(init).map_or(init, |(run, _)| run);
        // Comparing opens both, and opening a pipe waits for its other end.
        [init, run].iter().all(|path| path.is_dir()) && same_file::is_same_file(init, run).unwrap_or(false)
    };
    let what = if config.train.init.as_deref().is_some_and(is_start) {
        "the run directory is the model that training begins with (`train.init`)"
    } else if run.join(MODEL_FILE).exists() && !run.join(LOG_FILE).exists() && !run.join(CHECKPOINTS).exists() {
        "the run directory holds a model, but not the run that made it"
    } else {
        return Ok(());
    };
    Err(Error::usage(what).at(run).help("name another with --run-dir"))
}

/// The tokenizers of the run in a directory.
///
/// # Errors
/// They are missing or damaged.
pub fn tokenizers(run: &Path) -> Result<Tokenizers> {
    let help = "bring the file back from a copy of the run, or start again with --overwrite";
    if !Tokenizers::exist(run) {
        let error =
            Error::failure("the run has lost its tokenizer (tokenizer.json, or .src.json and .tgt.json)").at(run);
        return Err(error.help(help));
    }
    Tokenizers::load(run).map_err(|error| if error.is_of_access() { error } else { error.help(help) })
}

/// The names in a directory that is not a run, but for what a run killed at its very start leaves.
fn others(directory: &Path) -> Result<Vec<OsString>> {
    let entries = std::fs::read_dir(directory).map_err(|e| Error::io("read the run directory", directory, e))?;
    // Left by a start that was killed before it wrote a configuration; without a lock, they are the user's.
    let beside_lock = [tokenizers::FILES, &[files::VALIDATION, events::DIRECTORY]].concat();
    let beside_lock = if directory.join(LOCK).exists() { &beside_lock[..] } else { &[] };
    let is_left = |name: &OsString| {
        beside_lock.iter().chain(&[LOCK, NEW_CONFIG, NEW_LOG, OLD_CHECKPOINTS]).any(|left| *name == **left)
    };
    Ok(entries.flatten().map(|entry| entry.file_name()).filter(|name| !is_left(name)).collect())
}

/// Begins a run, after all data have been read. If it replaces a run, only files that `mt` writes are removed: the
/// directory may be a link or a mounted disk, and other files in it are the user's.
///
/// # Errors
/// Something has the name of one of the run's files, but is none: then nothing was changed.
pub fn start(run: &Path, config: &Config, tokenizers: &Tokenizers) -> Result<()> {
    let folder = open_folder(run)?;
    refuse_directories(&folder, &own_files(), "remove the old run")?;
    // A process that is killed from here on leaves no part of the old run to be continued: first what says that there
    // were checkpoints, then these, at once.
    let links = writable(run, config).links;
    set_aside(&folder, links)?;
    remove(&folder, links, &own_files())?;
    tokenizers.save(run)?;
    write_config(&folder, config)?;
    remove_all(&folder, OLD_CHECKPOINTS)
}

fn open_folder(run: &Path) -> Result<Folder> {
    Folder::open(run).map_err(|e| Error::io("open the run directory", run, e))
}

/// Fails if a directory has the name of one of these files, or something else that of a directory around it.
fn refuse_directories(run: &Folder, names: &[&str], doing: &str) -> Result<()> {
    for name in names {
        let path = run.path().join(name);
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => return Err(Error::io(doing, &path, ErrorKind::IsADirectory.into())),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io(doing, &path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// Takes the checkpoints out of the run, and with them what says that there were some.
fn set_aside(folder: &Folder, links: Links) -> Result<()> {
    let remove_error = |error| Error::io("remove the old run", folder.path().join(CHECKPOINTS), error);
    remove_all(folder, OLD_CHECKPOINTS)?;
    if !folder.has(CHECKPOINTS) {
        return remove(folder, links, &[LAST]);
    }
    let checkpoints = folder.folder(CHECKPOINTS, links).map_err(remove_error)?;
    remove(folder, links, &[LAST])?;
    if !folder.is_link(CHECKPOINTS) {
        return folder.rename(CHECKPOINTS, OLD_CHECKPOINTS).map_err(remove_error);
    }
    // The link stays: it leads to where the user wants checkpoints, perhaps among other things.
    let names = checkpoints.names().map_err(remove_error)?;
    let mut ours = names.iter().filter(|name| name.to_str().is_some_and(checkpoint::is_checkpoint_name));
    ours.try_for_each(|name| remove_all(&checkpoints, name))
}

/// Removes a directory, if it is there.
fn remove_all(folder: &Folder, name: impl AsRef<OsStr>) -> Result<()> {
    let name = name.as_ref();
    folder.remove(name).map_err(|e| Error::io("remove the old run", folder.path().join(name), e))
}

/// Rewrites files that were removed from the run directory but are needed to use its checkpoints; and tokenizers that
/// were changed there, which are not those of its parameters.
pub fn restore_files(run: &Path, config: &Config, tokenizers: &Tokenizers, tell: Tell<'_>) -> Result<()> {
    let warn = |what: &str| {
        let run = run.display();
        tell(Notice::Damage(format!("the {what} of the run in {run} was removed or changed: it is written again")));
    };
    if !config::is_resolved(&run.join(CONFIG_FILE)) {
        warn("configuration");
        write_config(&open_folder(run)?, config)?;
    }
    if !tokenizers.are_in(run) {
        warn("tokenizer");
        tokenizers.save(run)?;
    }
    Ok(())
}

/// What a run needs to go on, on disk beside what it has now, which stays as it is until [`Self::persist`].
pub struct Resumption {
    folder: Folder,
    links: Links,
    config: Staged,
    best: Option<Staged>,
}

impl Resumption {
    /// Of a run at `state`: the present configuration, and the state's `best`, which may be another than that of the
    /// run if it was killed between saving the two.
    ///
    /// # Errors
    /// The run could not go on: something there cannot be written or removed.
    pub fn prepare(run: &Path, config: &Config, state: &TrainState) -> Result<Self> {
        let folder = open_folder(run)?;
        let links = writable(run, config).links;
        refuse_directories(&folder, &[&OF_FINAL[..], &[BEST, LAST]].concat(), "remove a file of the old run")?;
        try_checkpoints(&folder, links)?;
        let best = match &state.best {
            Some(best) if checkpoint::find(run, best.step)?.is_some() => {
                Some(checkpoint::staged_pointer(&folder, BEST, best.step)?)
            }
            _ => None,
        };
        Ok(Self { config: staged_config(&folder, config)?, folder, links, best })
    }

    /// Stores the configuration and the pointer.
    pub fn persist(self) -> Result<()> {
        let Self { folder, links, config, best } = self;
        let failed = |name: &str, error| Error::io("write a file of the run", folder.path().join(name), error);
        config.persist().map_err(|error| failed(CONFIG_FILE, error))?;
        // A run that replaced another one, and was killed before it had removed all of that.
        remove_all(&folder, OLD_CHECKPOINTS)?;
        match best {
            Some(best) => best.persist().map(drop).map_err(|error| failed(BEST, error)),
            None => remove(&folder, links, &[BEST]),
        }
    }
}

/// What is there of a final model.
const OF_FINAL: [&str; 3] = [MANIFEST_FILE, MODEL_FILE, files::FINAL];

/// Removes the final model of a run that goes on: another one is made at the end.
pub fn remove_final(run: &Path, config: &Config, tell: Tell<'_>) -> Result<()> {
    if run.join(MODEL_FILE).exists() {
        let text = "the final model of the run is removed: another one is made when training ends";
        tell(Notice::Note(text.to_owned()));
    }
    remove(&open_folder(run)?, writable(run, config).links, &OF_FINAL)
}

/// Fails if no checkpoint could be saved: permissions alone do not say that.
fn try_checkpoints(folder: &Folder, links: Links) -> Result<()> {
    let made = folder.made_folder(CHECKPOINTS, links).and_then(|checkpoints| {
        let trial = format!(".mt-{}.tmp", std::process::id());
        // One of a process of the same id may be left.
        checkpoints.made_folder(&trial, Links::Refused)?;
        checkpoints.remove_empty(&trial)
    });
    made.map_err(|error| Error::io("save checkpoints", folder.path().join(CHECKPOINTS), error))
}

/// Removes files of a run, also from its subdirectories.
fn remove(run: &Folder, links: Links, names: &[&str]) -> Result<()> {
    for name in names {
        let removed = match name.split_once('/') {
            None => run.remove_file(name),
            Some((within, name)) => match run.folder(within, links) {
                Ok(folder) => folder.remove_file(name),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            },
        };
        removed.map_err(|e| Error::io("remove a file of the old run", run.path().join(name), e))?;
    }
    Ok(())
}

/// Locks a run in which nothing may train meanwhile. A model that is no run needs no lock.
///
/// # Errors
/// Something trains in it, or nothing can be written there.
pub fn keep_from_training(run: &Path, tell: Tell<'_>) -> Result<Option<Lock>> {
    if !is_writable(run) {
        return Err(Error::failure("nothing can be written here").at(run));
    }
    let has_trained = [LOG_FILE, CHECKPOINTS].iter().any(|name| run.join(name).exists());
    has_trained.then(|| lock(run, tell)).transpose()
}

/// The resolved configuration, which is on disk, but not in its place.
fn staged_config(run: &Folder, config: &Config) -> Result<Staged> {
    let staged =
        run.stage(CONFIG_FILE, NEW_CONFIG).and_then(|staged| staged.filled(config::to_toml(config).as_bytes()));
    staged.map_err(|e| Error::io("write the configuration", run.path().join(CONFIG_FILE), e))
}

/// Writes the resolved configuration atomically.
fn write_config(run: &Folder, config: &Config) -> Result<()> {
    let placed = staged_config(run, config)?.persist();
    placed.map(drop).map_err(|e| Error::io("write the configuration", run.path().join(CONFIG_FILE), e))
}
