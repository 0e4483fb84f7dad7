//! Finding the directory of a model, and reading its configuration.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::{Tell, hub};
use crate::checkpoint;
use crate::config::{self, Config};
use crate::error::{Error, Result, check_directory};
use crate::escape::shell_word;
use crate::file::folder_of;
use crate::interop::import;
use crate::notice::Notice;

/// The resolved configuration of a run or model directory.
pub fn config_of(directory: &Path) -> Result<Config> {
    let file = directory.join(checkpoint::CONFIG_FILE);
    let is_hub = hub::is_named_within(directory);
    if !is_hub && !is_there(directory)? {
        let error = Error::failure("there is no such directory").at(directory);
        let error = error.help("name a run directory (runs/<name>) or a model directory");
        return Err(hub::advised(error, directory));
    }
    let has_config = file.try_exists().map_err(|error| Error::io("read the configuration", &file, error))?;
    if let (false, Some((run, step))) = (has_config, checkpoint::run_and_step(directory)) {
        let error = Error::failure("this is a checkpoint of a run, not a model directory").at(directory);
        return Err(
            error.help(format!("name the run, {}; the checkpoint of update {step} is part of it", run.display()))
        );
    }
    if !has_config {
        let error = Error::failure("this is neither a run nor a model directory: it has no config.toml").at(directory);
        return Err(error.help(match import::advice(directory) {
            _ if is_hub => "import a model of the hub first: mt import hf:ORG/NAME --out DIR".to_owned(),
            Some(advice) => advice,
            None => "name a run directory (runs/<name>) or a model directory".to_owned(),
        }));
    }
    config::load_resolved(&file).map_err(|error| match checkpoint::verify(directory) {
        // The file is damaged; no user wrote it.
        Err(damage)
            if !damage.is_of_access()
                && damage.all().any(|one| one.location().is_some_and(|location| location.path == file)) =>
        {
            damage.or_help("restore the file as training wrote it, from a copy")
        }
        _ => error,
    })
}

/// Whether there is something at the path of a model.
///
/// # Errors
/// It cannot be determined, for example if a folder may not be entered.
pub fn is_there(directory: &Path) -> Result<bool> {
    directory.try_exists().map_err(|error| Error::io("look for the model", directory, error))
}

/// The error for a path that should be a model's directory, but is no directory.
pub fn not_a_directory(file: &Path) -> Error {
    let what = match std::fs::metadata(file).map(|metadata| metadata.file_type()) {
        Ok(it) if it.is_fifo() => "a pipe",
        Ok(it) if it.is_socket() => "a socket",
        Ok(it) if !it.is_file() => "a device",
        _ => "a file",
    };
    let error = Error::failure(format!("this is {what}, but a model is a directory")).at(file);
    let is_model =
        |parent: &&Path| parent.join(checkpoint::CONFIG_FILE).exists() || checkpoint::run_and_step(parent).is_some();
    match Some(folder_of(file)).filter(is_model) {
        Some(parent) => error.help(format!("name it: {}", shell_word(parent))),
        None => error.help("name a run directory (runs/<name>) or a model directory"),
    }
}

/// `--model`, else `$MT_MODEL`, else the newest run under `./runs`. A model of the hub (`hf:ORG/NAME`) is fetched and
/// imported.
pub fn directory(named: Option<&Path>, offline: bool, tell: Tell<'_>) -> Result<PathBuf> {
    let variable = || std::env::var_os("MT_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = named.map(Path::to_path_buf).or_else(variable) {
        if let Some(repo) = hub::repository(&directory) {
            return hub::directory(&repo, offline, tell);
        }
        let is_there = is_there(&directory)?;
        if is_there && !directory.is_dir() {
            return Err(not_a_directory(&directory));
        }
        if !is_there {
            let name = if named.is_some() { "the model's" } else { "$MT_MODEL's" };
            let error = Error::failure(format!("{name} directory does not exist")).at(&directory);
            let error = hub::advised(error.help(check_directory(&directory)), &directory);
            return Err(error.more_help("`mt train` writes models into runs/<name>"));
        }
        return Ok(whole_path(directory));
    }
    let newest = newest_run(Path::new("runs"))?.ok_or_else(|| {
        Error::failure("no --model given, $MT_MODEL is not set, and there is no run with a checkpoint under ./runs")
            .help("train a model first: mt train --config FILE")
    })?;
    tell(Notice::Info("no --model given: taking the newest run".to_owned()));
    Ok(newest)
}

/// The path of a directory; the absolute one if only that shows that it is a checkpoint, and of which run.
pub fn whole_path(directory: PathBuf) -> PathBuf {
    let is_checkpoint = |path: &Path| checkpoint::run_and_step(path).is_some();
    if is_checkpoint(&directory) {
        return directory;
    }
    std::fs::canonicalize(&directory).ok().filter(|whole| is_checkpoint(whole)).unwrap_or(directory)
}

/// The run under `root` whose model or newest checkpoint is the most recent.
fn newest_run(root: &Path) -> Result<Option<PathBuf>> {
    let changed = |run: &Path| {
        let newest = |path: PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        // List the checkpoints, because a run can have lost the pointers to them.
        let last = checkpoint::list(run).ok().and_then(|mut all| all.pop());
        let last = last.and_then(|(_, checkpoint)| newest(checkpoint.join(checkpoint::MANIFEST_FILE)));
        newest(run.join(checkpoint::MODEL_FILE)).max(last)
    };
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Error::io("look for the newest run", root, error));
        }
        Err(_) => return Ok(None),
    };
    let runs = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let dated = runs.filter_map(|run| changed(&run).map(|when| (when, run)));
    Ok(dated.max().map(|(_, run)| run))
}
