//! Writing checkpoints, models and pointers, and removing old checkpoints.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::disk::{self, HashingFile, Scratch};
use super::format::{self, NamedTensor};
use super::locate::{directories, list, pointer};
use super::manifest::{self, FileEntry, Manifest};
use super::{
    BASE_FILE, BEST, CHECKPOINTS, CONFIG_FILE, LAST, MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, RunPath, STATE_FILE,
    checkpoints_of, directory_of, parse_step_name, step_name,
};
use crate::data::tokenizers;
use crate::error::{Error, Result};
use crate::file::{Folder, Links, Staged};
use crate::ops::low_rank;

/// Prefix of a checkpoint's name during writing or removing.
pub(super) const TEMPORARY: &str = ".tmp-";
/// Prefix of a checkpoint's name during replacing. It counts until one without the prefix exists.
pub(super) const REPLACED: &str = ".old-";

/// Writes the checkpoint of `step` and returns its directory.
///
/// It is written to a temporary sibling, every file synced, renamed, and the parent directory synced: a crash at any
/// moment leaves it whole or absent, and the checkpoints before it untouched. Its manifest covers the run's tokenizers
/// too. An existing checkpoint of that step is replaced as safely. The run directory must exist: it may have been moved
/// away, and is not made again. Leftovers of earlier crashes are removed first, to free their space. Tensors are stored
/// in the given order. A run may have only one save at a time. Links in the run directory are not followed, unless
/// [`RunPath`] allows it for directories.
///
/// # Errors
/// The disk is full, the directory cannot be written, or a tensor holds NaN or infinities, which loading would refuse.
/// The temporary directory is then removed, if that can be done.
pub fn save<'a>(
    run: impl Into<RunPath<'a>>,
    step: u64,
    model: &[NamedTensor],
    optimizer: &[NamedTensor],
    state: &Value,
) -> Result<PathBuf> {
    let RunPath { path, links } = run.into();
    let run = disk::folder(path)?;
    let checkpoints = run.made_folder(CHECKPOINTS, links);
    let checkpoints = checkpoints.map_err(|error| disk::write_error(&checkpoints_of(path), error))?;
    disk::sync_directory(&run)?;
    clean_up(&run, &checkpoints);

    let scratch = Scratch::new(&checkpoints, format!("{TEMPORARY}{}", step_name(step)));
    let made = checkpoints.make_folder(scratch.name());
    let directory = made.and_then(|()| checkpoints.folder(scratch.name(), Links::Refused));
    let directory = directory.map_err(|error| disk::write_error(&checkpoints.path().join(scratch.name()), error))?;
    let files = vec![
        format::write(HashingFile::create(&directory, MODEL_FILE)?, MODEL_FILE, model, &[])?,
        format::write(HashingFile::create(&directory, OPTIMIZER_FILE)?, OPTIMIZER_FILE, optimizer, &[])?,
        write_bytes(&directory, STATE_FILE, format!("{state:#}\n").as_bytes())?,
    ];
    let is_of_factors = model.iter().any(|tensor| tensor.name == low_rank::SCALE);
    let base = is_of_factors.then(|| BASE_FILE.to_owned());
    let run_files = companions(path)?.into_iter().filter(|name| name != CONFIG_FILE).chain(base);
    let run_files = run_files.map(|name| disk::synced_entry(path, &name)).collect::<Result<_>>()?;
    write_bytes(&directory, MANIFEST_FILE, Manifest::new(files, run_files).render()?.as_bytes())?;
    disk::sync_directory(&directory)?;
    put_in_place(scratch, &checkpoints, step)?;
    Ok(directory_of(path, step))
}

fn write_bytes(directory: &Folder, name: &str, bytes: &[u8]) -> Result<FileEntry> {
    let mut file = HashingFile::create(directory, name)?;
    file.write(bytes)?;
    file.finish(name)
}

fn put_in_place(scratch: Scratch, checkpoints: &Folder, step: u64) -> Result<()> {
    let target = step_name(step);
    let replaced = format!("{REPLACED}{target}");
    let exists = checkpoints.has(&target);
    if exists {
        disk::rename(checkpoints, &target, &replaced)?;
    }
    if let Err(error) = scratch.rename_to(&target) {
        if exists {
            // Should this fail too, the old one still counts under its present name.
            let _ = checkpoints.rename(&replaced, &target);
        }
        return Err(error);
    }
    disk::sync_directory(checkpoints)?;
    // If this fails, the new one takes precedence, and the next save tries again.
    let _ = checkpoints.remove(&replaced);
    Ok(())
}

/// Removes what earlier crashes left. Nothing here is worth failing a save for: the next one tries again.
fn clean_up(run: &Folder, checkpoints: &Folder) {
    disk::remove_temporaries(run, &[BASE_FILE, BEST, LAST, MODEL_FILE, MANIFEST_FILE]);
    for name in checkpoints.names().unwrap_or_default() {
        let Some(name) = name.to_str() else { continue };
        if name.strip_prefix(TEMPORARY).and_then(parse_step_name).is_some() {
            let _ = checkpoints.remove(name);
        } else if let Some(plain) = name.strip_prefix(REPLACED).filter(|name| parse_step_name(name).is_some()) {
            let _ = if checkpoints.has(plain) { checkpoints.remove(name) } else { checkpoints.rename(name, plain) };
        }
    }
}

/// Writes what the checkpoints of a run with factors have in common: [`BASE_FILE`].
///
/// # Errors
/// As [`save`].
pub fn save_base(run: &Path, model: &[NamedTensor]) -> Result<()> {
    let _guard = disk::replacing();
    let (folder, path) = (disk::folder(run)?, run.join(BASE_FILE));
    let failed = |error| disk::write_error(&path, error);
    let staged = folder.stage(BASE_FILE, &disk::temporary_name(BASE_FILE)).map_err(failed)?;
    let file = HashingFile::new(staged.file().try_clone().map_err(failed)?, path.clone());
    format::write(file, BASE_FILE, model, &[])?;
    staged.persist().map_err(failed)?;
    disk::sync_directory(&folder)
}

/// Writes the final model to the top of a model directory: `model.safetensors`, and a `manifest.json` that also covers
/// the `config.toml` and tokenizers found there, so write these first.
///
/// Each file is written under a temporary name, synced and renamed, and the old manifest goes before the old model: a
/// reader finds a whole model or one that is "not complete", never a torn one.
///
/// `made_from` is the origin of a model that training did not make.
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
    let folder = disk::folder(dir)?;
    let [at_model, at_manifest] = [MODEL_FILE, MANIFEST_FILE].map(|name| dir.join(name));
    let (of_model, of_manifest) =
        (|error| disk::write_error(&at_model, error), |error| disk::write_error(&at_manifest, error));
    let weights = folder.stage(MODEL_FILE, &disk::temporary_name(MODEL_FILE)).map_err(of_model)?;
    let file = HashingFile::new(weights.file().try_clone().map_err(of_model)?, at_model.clone());
    files.push(format::write(file, MODEL_FILE, model, &[])?);
    let contents = Manifest { made_from: made_from.map(str::to_owned), ..Manifest::new(files, Vec::new()) }.render()?;
    let manifest = folder.stage(MANIFEST_FILE, &disk::temporary_name(MANIFEST_FILE)).map_err(of_manifest)?;
    let manifest = manifest.filled(contents.as_bytes()).map_err(of_manifest)?;

    folder.remove(MANIFEST_FILE).map_err(of_manifest)?;
    disk::sync_directory(&folder)?;
    weights.persist().map_err(of_model)?;
    manifest.persist().map_err(of_manifest)?;
    disk::sync_directory(&folder)
}

/// Replaces the `config.toml` of a run or model directory, and with it the manifest of a model there, which lists it.
///
/// A process that is killed between the two leaves a model that is "not complete".
///
/// # Errors
/// The manifest is damaged, or a file cannot be written.
pub fn save_config(dir: &Path, config: &str) -> Result<()> {
    let _guard = disk::replacing();
    let folder = disk::folder(dir)?;
    let failed = |name: &'static str| move |error| disk::write_error(&dir.join(name), error);
    let stage = |name: &'static str, contents: &[u8]| {
        let staged = folder.stage(name, &disk::temporary_name(name)).and_then(|staged| staged.filled(contents));
        staged.map_err(failed(name))
    };
    let staged = stage(CONFIG_FILE, config.as_bytes())?;
    if folder.has(MANIFEST_FILE) {
        let mut manifest = manifest::read(dir)?;
        if let Some(entry) = manifest.files.iter_mut().find(|entry| entry.name == CONFIG_FILE) {
            entry.size = config.len() as u64;
            entry.sha256 = disk::hex(Sha256::new().chain_update(config));
        }
        let manifest = stage(MANIFEST_FILE, manifest.render()?.as_bytes())?;
        folder.remove(MANIFEST_FILE).map_err(failed(MANIFEST_FILE))?;
        staged.persist().map_err(failed(CONFIG_FILE))?;
        manifest.persist().map_err(failed(MANIFEST_FILE))?;
    } else {
        staged.persist().map_err(failed(CONFIG_FILE))?;
    }
    disk::sync_directory(&folder)
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
    let _guard = disk::replacing();
    let folder = disk::folder(run)?;
    staged_pointer(&folder, name, step)?.persist().map_err(|error| disk::write_error(&run.join(name), error))?;
    disk::sync_directory(&folder)
}

/// A pointer that is on disk, but has not got its final name yet. The checkpoint must exist.
pub(crate) fn staged_pointer(run: &Folder, name: &str, step: u64) -> Result<Staged> {
    let staged = run.stage(name, &disk::temporary_name(name));
    let staged = staged.and_then(|staged| staged.filled(format!("{}\n", step_name(step)).as_bytes()));
    staged.map_err(|error| disk::write_error(&run.path().join(name), error))
}

/// Removes old checkpoints of a run that has just saved `step`, except the newest `keep` (at least one), those of the
/// steps in `protect`, and those that the pointers `best` and `last` name. Those after `step` go first: a resume has
/// passed over them because they are damaged, and they would count as newer than the checkpoints since.
///
/// # Errors
/// A pointer is damaged, and could name any checkpoint, so none is removed. Or a checkpoint cannot be removed.
pub fn prune<'a>(run: impl Into<RunPath<'a>>, step: u64, keep: usize, protect: &[u64]) -> Result<()> {
    let run = run.into();
    let pointers = [pointer(run.path, BEST)?, pointer(run.path, LAST)?];
    remove_later(run, step)?;
    let checkpoints = list(run.path)?;
    let old = checkpoints.len().saturating_sub(keep.max(1));
    for (step, path) in &checkpoints[..old] {
        if protect.contains(step) || pointers.contains(&Some(*step)) {
            continue;
        }
        remove(run, *step, path)?;
    }
    Ok(())
}

fn remove(run: RunPath, step: u64, path: &Path) -> Result<()> {
    let remove_error = |error| Error::io("remove a checkpoint", path, error);
    let checkpoints = disk::folder(run.path)?.folder(CHECKPOINTS, run.links).map_err(remove_error)?;
    // Renamed first, so that a crash midway leaves no partial checkpoint under its name.
    let doomed = format!("{TEMPORARY}{}", step_name(step));
    disk::rename(&checkpoints, path.file_name().unwrap_or_default(), &doomed)?;
    checkpoints.remove(&doomed).map_err(remove_error)
}

/// Makes the checkpoint of `step` the newest, by removing those after it, the newest first; `best` is the best up to
/// `step`.
///
/// # Errors
/// A pointer cannot be written, or a checkpoint cannot be removed.
pub fn remove_after<'a>(run: impl Into<RunPath<'a>>, step: u64, best: Option<u64>) -> Result<()> {
    let run = run.into();
    let RunPath { path, .. } = run;
    set_pointer(path, LAST, step)?;
    match best {
        Some(best) if directories(path)?.contains_key(&best) => set_pointer(path, BEST, best)?,
        _ => {
            let removed = disk::folder(path)?.remove(BEST);
            removed.map_err(|error| Error::io("remove a pointer", path.join(BEST), error))?;
        }
    }
    remove_later(run, step)
}

/// Removes the checkpoints after `step`, whole or not, the newest first.
fn remove_later(run: RunPath, step: u64) -> Result<()> {
    for (later, path) in directories(run.path)?.into_iter().rev().take_while(|(later, _)| *later > step) {
        remove(run, later, &path)?;
    }
    Ok(())
}
