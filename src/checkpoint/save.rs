//! Writing checkpoints, models and pointers, and removing old checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::disk::{self, HashingFile, Scratch};
use super::format::{self, NamedTensor};
use super::locate::{directories, list, pointer};
use super::manifest::{FileEntry, Manifest};
use super::{
    BEST, CONFIG_FILE, LAST, MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, checkpoints_of, parse_step_name,
    step_name,
};
use crate::data::tokenizers;
use crate::error::{Error, Result};

/// Prefix of the name of a checkpoint that is being written or removed.
pub(super) const TEMPORARY: &str = ".tmp-";
/// Prefix of the name of a checkpoint that is being replaced. It still counts until one without the prefix exists.
pub(super) const REPLACED: &str = ".old-";

/// Writes the checkpoint of `step` and returns its directory.
///
/// It is written to a temporary sibling, every file synced, renamed, and the parent directory synced: a crash at any moment
/// leaves it whole or absent, and the checkpoints before it untouched. Its manifest covers the run's tokenizers too. An
/// existing checkpoint of that step is replaced as safely. The run directory must be there: it may have been moved away, and is
/// not made again. What earlier crashes left behind is removed first, so that it
/// takes no space from this one. Tensors are stored in the order given. A run may have only one save at a time.
///
/// # Errors
/// The disk is full, the directory cannot be written, or a tensor holds NaN or infinities, which loading would refuse. The
/// temporary directory is then removed, if that can be done.
pub fn save(run: &Path, step: u64, model: &[NamedTensor], optimizer: &[NamedTensor], state: &Value) -> Result<PathBuf> {
    let checkpoints = checkpoints_of(run);
    if let Err(error) = fs::create_dir(&checkpoints)
        && !checkpoints.is_dir()
    {
        return Err(disk::write_error(&checkpoints, error));
    }
    disk::sync_directory(run)?;
    clean_up(run, &checkpoints);

    let scratch = Scratch::new(checkpoints.join(format!("{TEMPORARY}{}", step_name(step))));
    let directory = scratch.path().to_path_buf();
    fs::create_dir(&directory).map_err(|error| disk::write_error(&directory, error))?;
    let files = vec![
        format::write(&directory.join(MODEL_FILE), MODEL_FILE, model)?,
        format::write(&directory.join(OPTIMIZER_FILE), OPTIMIZER_FILE, optimizer)?,
        write_bytes(&directory, STATE_FILE, format!("{state:#}\n").as_bytes())?,
    ];
    let run_files = companions(run)?.into_iter().filter(|name| name != CONFIG_FILE);
    let run_files = run_files.map(|name| disk::synced_entry(run, &name)).collect::<Result<_>>()?;
    write_bytes(&directory, MANIFEST_FILE, Manifest::new(files, run_files).render()?.as_bytes())?;
    disk::sync_directory(&directory)?;
    put_in_place(scratch, &checkpoints, step)
}

fn write_bytes(directory: &Path, name: &str, bytes: &[u8]) -> Result<FileEntry> {
    let mut file = HashingFile::create(&directory.join(name))?;
    file.write(bytes)?;
    file.finish(name)
}

fn put_in_place(scratch: Scratch, checkpoints: &Path, step: u64) -> Result<PathBuf> {
    let target = checkpoints.join(step_name(step));
    let replaced = checkpoints.join(format!("{REPLACED}{}", step_name(step)));
    let exists = fs::symlink_metadata(&target).is_ok();
    if exists {
        disk::rename(&target, &replaced)?;
    }
    if let Err(error) = scratch.rename_to(&target) {
        if exists {
            // Should this fail too, the old one still counts under its present name.
            let _ = fs::rename(&replaced, &target);
        }
        return Err(error);
    }
    disk::sync_directory(checkpoints)?;
    // If this fails, the new one takes precedence, and the next save tries again.
    let _ = disk::remove(&replaced);
    Ok(target)
}

/// Removes what earlier crashes left. Nothing here is worth failing a save for: the next one tries again.
fn clean_up(run: &Path, checkpoints: &Path) {
    disk::remove_temporaries(run, &[BEST, LAST, MODEL_FILE, MANIFEST_FILE]);
    let Ok(entries) = fs::read_dir(checkpoints) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.strip_prefix(TEMPORARY).and_then(parse_step_name).is_some() {
            let _ = disk::remove(&entry.path());
        } else if let Some(plain) = name.strip_prefix(REPLACED).filter(|name| parse_step_name(name).is_some()) {
            let plain = checkpoints.join(plain);
            let _ = if plain.exists() { disk::remove(&entry.path()) } else { fs::rename(entry.path(), plain) };
        }
    }
}

/// Writes the final model to the top of a model directory: `model.safetensors`, and a `manifest.json` that also covers the
/// `config.toml` and tokenizers found there, so write these first.
///
/// Each file is written beside its place, synced and renamed, and the old manifest goes before the old model: a reader finds
/// a whole model or one that is "not complete", never a torn one.
///
/// `made_from` says what the model was made from, if not by training.
///
/// # Errors
/// As [`save`].
pub fn save_model(dir: &Path, model: &[NamedTensor], made_from: Option<&str>) -> Result<()> {
    fs::create_dir_all(dir).map_err(|error| disk::write_error(dir, error))?;
    let _guard = disk::replacing();
    let mut files = Vec::new();
    for name in companions(dir)? {
        files.push(disk::synced_entry(dir, &name)?);
    }
    let weights = Scratch::new(dir.join(disk::temporary_name(MODEL_FILE)));
    files.push(format::write(weights.path(), MODEL_FILE, model)?);
    let manifest = Scratch::new(dir.join(disk::temporary_name(MANIFEST_FILE)));
    let mut file = HashingFile::create(manifest.path())?;
    let contents = Manifest { made_from: made_from.map(str::to_owned), ..Manifest::new(files, Vec::new()) };
    file.write(contents.render()?.as_bytes())?;
    file.finish(MANIFEST_FILE)?;

    let old = dir.join(MANIFEST_FILE);
    disk::remove(&old).map_err(|error| disk::write_error(&old, error))?;
    disk::sync_directory(dir)?;
    weights.rename_to(&dir.join(MODEL_FILE))?;
    manifest.rename_to(&old)?;
    disk::sync_directory(dir)
}

/// The other files of a model directory, sorted.
fn companions(dir: &Path) -> Result<Vec<String>> {
    let read_error = |error| Error::io("read the model directory", dir, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(read_error)? {
        let name = entry.map_err(read_error)?.file_name();
        let Some(name) = name.to_str() else { continue };
        if name == CONFIG_FILE || tokenizers::FILES.contains(&name) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes the pointer `name` ([`BEST`] or [`LAST`]) of a run name the checkpoint of `step`: a small text file, replaced
/// atomically.
///
/// # Errors
/// There is no such checkpoint (it must have been saved before), or the file cannot be written.
pub fn set_pointer(run: &Path, name: &str, step: u64) -> Result<()> {
    if !directories(run)?.contains_key(&step) {
        return Err(Error::failure(format!("`{name}` cannot name update {step}: there is no such checkpoint")).at(run));
    }
    disk::replace_small(run, name, format!("{}\n", step_name(step)).as_bytes())
}

/// Removes old checkpoints of a run that has just saved `step`, except the newest `keep` (at least one), those of the steps in
/// `protect`, and those that the pointers `best` and `last` name. Those after `step` go first: a resume has passed over them
/// because they are damaged, and they would count as newer than what has been trained since.
///
/// # Errors
/// A pointer is damaged: nothing is removed then, since it might name any of them. Or a checkpoint cannot be removed.
pub fn prune(run: &Path, step: u64, keep: usize, protect: &[u64]) -> Result<()> {
    let pointers = [pointer(run, BEST)?, pointer(run, LAST)?];
    remove_later(run, step)?;
    let checkpoints = list(run)?;
    let old = checkpoints.len().saturating_sub(keep.max(1));
    for (step, path) in &checkpoints[..old] {
        if protect.contains(step) || pointers.contains(&Some(*step)) {
            continue;
        }
        remove(run, *step, path)?;
    }
    Ok(())
}

fn remove(run: &Path, step: u64, path: &Path) -> Result<()> {
    // Renamed first, so that a crash midway leaves no partial checkpoint under its name.
    let doomed = checkpoints_of(run).join(format!("{TEMPORARY}{}", step_name(step)));
    disk::rename(path, &doomed)?;
    disk::remove(&doomed).map_err(|error| Error::io("remove a checkpoint", &doomed, error))
}

/// Makes the checkpoint of `step` the newest, by removing those after it, the newest first; `best` is the best up to `step`.
///
/// # Errors
/// A pointer cannot be written, or a checkpoint cannot be removed.
pub fn remove_after(run: &Path, step: u64, best: Option<u64>) -> Result<()> {
    set_pointer(run, LAST, step)?;
    match best {
        Some(best) if directories(run)?.contains_key(&best) => set_pointer(run, BEST, best)?,
        _ => {
            let pointer = run.join(BEST);
            disk::remove(&pointer).map_err(|error| Error::io("remove a pointer", &pointer, error))?;
        }
    }
    remove_later(run, step)
}

/// Removes the checkpoints after `step`, whole or not, the newest first.
fn remove_later(run: &Path, step: u64) -> Result<()> {
    for (later, path) in directories(run)?.into_iter().rev().take_while(|(later, _)| *later > step) {
        remove(run, later, &path)?;
    }
    Ok(())
}
