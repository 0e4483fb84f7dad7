//! Finding checkpoints and models, and passing over damaged ones.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::format::{Slot, TensorFile};
use super::manifest::{Opened, REMOVED, Verified};
use super::save::REPLACED;
use super::{
    BEST, LAST, MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, checkpoints_of, parse_step_name, read_state,
};
use crate::error::{Error, Location, Result, check_directory};
use crate::{file, limits};

/// How often to look into a run whose checkpoints training changes meanwhile. What was opened stays readable, so each
/// look misses only what goes between reading a name and opening the files there: a fraction of a millisecond.
const LOOKS: usize = 20;
/// Directories or steps named in a help text.
const MAX_NAMED: usize = 8;

/// Which model of a run: the value of `--checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The checkpoint with the best validation.
    Best,
    /// The last checkpoint.
    Last,
    /// The model at the top of the directory, written at the end of training.
    Final,
    /// The checkpoint of this step.
    Step(u64),
}

impl Which {
    /// Every name; updates are numbers.
    pub const NAMES: [&str; 3] = ["best", "last", "final"];
}

impl FromStr for Which {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "best" => Ok(Self::Best),
            "last" => Ok(Self::Last),
            "final" => Ok(Self::Final),
            _ => text.parse().map(Self::Step).map_err(|_| {
                Error::usage(format!("`{text}` is not a checkpoint"))
                    .help("use best, last, final, or the number of an update, for example 1500")
            }),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("best"),
            Self::Last => f.write_str("last"),
            Self::Final => f.write_str("final"),
            Self::Step(step) => write!(f, "update {step}"),
        }
    }
}

/// A model that was found and verified.
#[derive(Clone, Debug)]
pub struct Located {
    /// Its `model.safetensors`.
    pub model: PathBuf,
    /// The directory of that file.
    pub directory: PathBuf,
    /// Its description, for example "best (update 1500)".
    pub what: String,
    /// Damaged models that were skipped, one line each, to show to the user.
    pub warnings: Vec<String>,
    /// The file that was verified: it can be read even if training removes the checkpoint now.
    file: Arc<File>,
}

impl Located {
    /// Its weights.
    ///
    /// # Errors
    /// As [`TensorFile::open`].
    pub fn tensors(&self, layout: &[Slot]) -> Result<TensorFile> {
        TensorFile::read_header(self.file.clone(), &self.model, layout)
    }

    /// Fills `flat` from its weights.
    ///
    /// # Errors
    /// As [`super::load_into`].
    pub fn load_into(&self, layout: &[Slot], flat: &mut [f32]) -> Result<()> {
        self.tensors(layout)?.load_into(layout, flat)
    }
}

/// A checkpoint of a run: its step and its directory.
pub type Saved = (u64, PathBuf);

/// All checkpoints of a run in which there is a manifest to be seen, ascending by step. They are not verified.
///
/// # Errors
/// The directory cannot be read. A run without checkpoints is not an error.
pub fn list(run: &Path) -> Result<Vec<Saved>> {
    let all = directories(run)?.into_iter();
    Ok(all.filter(|(_, path)| path.join(MANIFEST_FILE).exists()).collect())
}

/// The directory of the checkpoint of this step, whole or not, if there is one.
///
/// # Errors
/// The checkpoints cannot be listed.
pub fn find(run: &Path, step: u64) -> Result<Option<PathBuf>> {
    Ok(directories(run)?.remove(&step))
}

/// The directories of all checkpoints, whole or not, by step.
pub(super) fn directories(run: &Path) -> Result<BTreeMap<u64, PathBuf>> {
    let parent = checkpoints_of(run);
    let read_error = |error| Error::io("list the checkpoints", &parent, error);
    let mut found = BTreeMap::new();
    let entries = match fs::read_dir(&parent) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(read_error(error)),
    };
    for entry in entries {
        let entry = entry.map_err(read_error)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|_| may_be_directory(&entry)) else { continue };
        if let Some(step) = parse_step_name(name) {
            found.insert(step, entry.path());
        } else if let Some(step) = name.strip_prefix(REPLACED).and_then(parse_step_name) {
            // Left by a crash between the two renames of a replacement: it counts if no new one exists.
            found.entry(step).or_insert_with(|| entry.path());
        }
    }
    Ok(found)
}

/// Whether an entry is a directory or a link to one. An entry that cannot be examined, as in a directory without
/// permission, counts as one: its reader gets the error later.
fn may_be_directory(entry: &fs::DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if !kind.is_symlink() => kind.is_dir(),
        _ => match fs::metadata(entry.path()) {
            Ok(metadata) => metadata.is_dir(),
            Err(error) => error.kind() != ErrorKind::NotFound,
        },
    }
}

/// The step that the pointer `name` ([`BEST`] or [`LAST`]) of a run names; `None` if there is no such file.
///
/// # Errors
/// The file cannot be read or does not name a checkpoint.
pub fn pointer(run: &Path, name: &str) -> Result<Option<u64>> {
    let path = run.join(name);
    if let Err(error) = fs::symlink_metadata(&path)
        && error.kind() == ErrorKind::NotFound
    {
        return Ok(None);
    }
    let bytes = file::read_at_most(&path, limits::POINTER_BYTES)
        .map_err(|error| Error::io("read the pointer", &path, error))?;
    let step = std::str::from_utf8(&bytes).ok().and_then(|text| parse_step_name(text.trim()));
    step.map(Some).ok_or_else(|| {
        Error::failure(format!("`{name}` does not name a checkpoint"))
            .at(&path)
            .help("write the name of a checkpoint into it, for example step-00001500, or remove it")
    })
}

/// The newest checkpoint from which training can go on, verified; and a warning for each newer one that is damaged.
///
/// None with warnings means that there are checkpoints, but all are damaged.
///
/// # Errors
/// The directory cannot be listed; or a checkpoint cannot be read, so that its contents stay unknown.
pub fn newest_valid(run: &Path) -> Result<(Option<Saved>, Vec<String>)> {
    let mut warnings = Vec::new();
    let newest = newest_verified(run, &mut warnings)?;
    Ok((newest.map(|(saved, _)| saved), warnings))
}

/// The newest checkpoint that is whole; adds a warning for each of the first that are not.
fn newest_verified(run: &Path, warnings: &mut Vec<String>) -> Result<Option<(Saved, Verified)>> {
    let most = warnings.len() + MAX_NAMED;
    for (step, path) in directories(run)?.into_iter().rev() {
        match Opened::open(&path).and_then(|opened| opened.verify(&[MODEL_FILE, OPTIMIZER_FILE, STATE_FILE])) {
            Ok(verified) => return Ok(Some(((step, path), verified))),
            Err(error) => {
                let error = known_damage(error)?;
                if warnings.len() < most {
                    warnings.push(passed_over(&format!("the checkpoint of update {step}"), &error));
                } else if warnings.len() == most {
                    warnings.push("further checkpoints cannot be used and were skipped".to_owned());
                }
            }
        }
    }
    Ok(None)
}

/// Returns the damage of a checkpoint itself, which allows to use another one instead, and to remove this one later.
///
/// # Errors
/// The checkpoint is not known to be damaged, but cannot be read now, or not by this version.
pub fn known_damage(error: Error) -> Result<Error> {
    match error {
        error if is_known_damage(&error) => Ok(error),
        // It has help of its own.
        error if error.is_of_open_files() => Err(error),
        error if error.is_of_access() => {
            Err(error.help("make the checkpoint readable for this user; or move it away, to go on without it"))
        }
        error if error.may_pass() => {
            Err(error.help("try again, since this may be over; or move the checkpoint away, to go on without it"))
        }
        error => Err(error.more_help("or move the checkpoint away, to go on without it")),
    }
}

/// Whether an error shows damage of a checkpoint or model itself; otherwise it may be whole.
pub fn is_known_damage(error: &Error) -> bool {
    !(error.is_of_access() || error.may_pass() || error.is_of_version())
}

/// The checkpoints up to update `step` that `save_every` made, and that of `step` itself; not those saved as the best,
/// or after a signal. The state of each records whether it is regular; without a readable record, it counts as such.
pub fn regular(run: &Path, step: u64) -> Result<Vec<Saved>> {
    let is_regular = |(_, directory): &Saved| {
        let recorded = read_state(directory).ok().and_then(|state| state["regular"].as_bool());
        recorded.unwrap_or(true)
    };
    let mut checkpoints = list(run)?;
    checkpoints.retain(|saved| saved.0 > 0 && saved.0 <= step && (saved.0 == step || is_regular(saved)));
    Ok(checkpoints)
}

/// Looks into a run, and again if the result is not sound and training has changed the run's checkpoints meanwhile: it
/// may have removed the one being read.
pub fn look_again<T>(run: &Path, is_sound: impl Fn(&T) -> bool, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let state = || (directories(run).ok(), [BEST, LAST].map(|name| pointer(run, name).ok()));
    for _ in 1..LOOKS {
        let before = state();
        let found = look();
        if found.as_ref().is_ok_and(&is_sound) || state() == before {
            return found;
        }
    }
    look().map_err(|error| match error.helps() {
        Some(REMOVED) => error,
        _ => error.more_help("training has changed this run meanwhile (`train.keep`): try again"),
    })
}

/// Finds and verifies the model that `which` asks for in a run or model directory.
///
/// None means the final model if there is one, else the best checkpoint, else the last. With None or [`Which::Last`] a
/// damaged checkpoint is reported in [`Located::warnings`] and the next in line is used; a final model, or one that was
/// named exactly, must be intact.
///
/// # Errors
/// There is no such model, or it is damaged; the help lists those that exist.
pub fn locate(dir: &Path, which: Option<Which>) -> Result<Located> {
    let is_there = dir.try_exists().map_err(|error| Error::io("look for the model", dir, error))?;
    if !is_there || !dir.is_dir() {
        return Err(no_model(dir, "there is no such directory").help(check_directory(dir)));
    }
    look_again(dir, |found: &Located| found.warnings.is_empty(), || look(dir, which))
}

fn look(dir: &Path, which: Option<Which>) -> Result<Located> {
    match which {
        None => any(dir),
        Some(Which::Final) if has_final(dir) => final_model(dir),
        Some(Which::Final) => {
            Err(no_model(dir, "it has no final model, which is written at the end of training")
                .help(what_is_there(dir)))
        }
        Some(Which::Best) => match pointer(dir, BEST)? {
            Some(step) => asked(dir, step, Which::Best),
            None => Err(no_model(dir, "it has no best checkpoint, because no validation has chosen one")
                .help(what_is_there(dir))),
        },
        Some(Which::Last) => last(dir, Vec::new()),
        Some(which @ Which::Step(step)) => asked(dir, step, which),
    }
}

fn any(dir: &Path) -> Result<Located> {
    let mut warnings = Vec::new();
    if has_final(dir) {
        match final_model(dir) {
            Ok(found) => return Ok(found),
            // Its writing was interrupted: the run has not ended.
            Err(error) if !dir.join(MANIFEST_FILE).exists() => warnings.push(passed_over("the final model", &error)),
            // Falling back to a checkpoint would silently give a worse model.
            Err(error) => {
                if !is_known_damage(&error) {
                    return Err(error);
                }
                // Checkpoints need the same tokenizer, so naming one would not help.
                let is_tokenizer = |location: &Location| {
                    location.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tokenizer"))
                };
                if error.all().any(|one| one.location().is_some_and(is_tokenizer)) {
                    return Err(error.or_help("restore the file as training wrote it, from a copy"));
                }
                let restore =
                    "restore the file as training wrote it (to translate differently, use flags such as --beam)";
                return Err(error.or_help(format!("{restore}{}", other_checkpoint(dir, None))));
            }
        }
    }
    let best = pointer(dir, BEST).and_then(|step| match step {
        Some(step) => checkpoint(dir, step, &named(Which::Best, step)).map(Some),
        None => Ok(None),
    });
    match best {
        Ok(Some(found)) => return Ok(Located { warnings, ..found }),
        Ok(None) => {}
        Err(error) => warnings.push(passed_over("the best checkpoint", &known_damage(error)?)),
    }
    last(dir, warnings)
}

/// The end of a help text, which names a whole checkpoint of the run other than that of update `damaged`: the best one,
/// else the newest.
fn other_checkpoint(dir: &Path, damaged: Option<u64>) -> String {
    let best = pointer(dir, BEST).ok().flatten();
    let newest_first = list(dir).unwrap_or_default().into_iter().rev().map(|(step, _)| step);
    let mut others = best.into_iter().chain(newest_first).filter(|step| Some(*step) != damaged);
    match others.find(|step| checkpoint(dir, *step, "").is_ok()) {
        Some(step) if Some(step) == best => {
            "; or use another checkpoint, such as the best (--checkpoint best)".to_owned()
        }
        Some(step) => format!("; or use another checkpoint, such as that of update {step} (--checkpoint {step})"),
        None => String::new(),
    }
}

/// The checkpoint that `last` names, else the newest valid one.
fn last(dir: &Path, mut warnings: Vec<String>) -> Result<Located> {
    let named_step = pointer(dir, LAST).unwrap_or_else(|error| {
        warnings.push(passed_over("the pointer to the last checkpoint", &error));
        None
    });
    if let Some(step) = named_step {
        match checkpoint(dir, step, &named(Which::Last, step)) {
            Ok(found) => return Ok(Located { warnings, ..found }),
            Err(error) => {
                warnings.push(passed_over(&format!("the checkpoint of update {step}"), &known_damage(error)?))
            }
        }
    }
    let mut others = Vec::new();
    let newest = newest_verified(dir, &mut others)?;
    for other in others {
        if !warnings.contains(&other) {
            warnings.push(other);
        }
    }
    match newest {
        Some(((step, directory), verified)) => located(directory, verified, &named(Which::Last, step), warnings),
        None if warnings.is_empty() => Err(no_model(dir, "it holds no checkpoint yet").help(what_is_there(dir))),
        None => Err(no_model(dir, &format!("nothing in it can be used\n    {}", warnings.join("\n    ")))
            .help("restore a copy, or train again")),
    }
}

fn has_final(dir: &Path) -> bool {
    dir.join(MODEL_FILE).exists() || dir.join(MANIFEST_FILE).exists()
}

fn final_model(dir: &Path) -> Result<Located> {
    located(dir.to_path_buf(), Opened::open(dir)?.verify(&[MODEL_FILE])?, "final", Vec::new())
}

fn checkpoint(dir: &Path, step: u64, what: &str) -> Result<Located> {
    let Some(directory) = directories(dir)?.remove(&step) else {
        return Err(no_model(dir, &format!("it has no checkpoint of update {step}")).help(what_is_there(dir)));
    };
    let verified = Opened::open(&directory)?.verify(&[MODEL_FILE])?;
    located(directory, verified, what, Vec::new())
}

/// A checkpoint that the user asked for, and no other.
fn asked(dir: &Path, step: u64, which: Which) -> Result<Located> {
    let what = if which == Which::Step(step) { which.to_string() } else { named(which, step) };
    checkpoint(dir, step, &what).map_err(|error| match error.helps() {
        Some(_) => error,
        None => error.help(format!("restore a copy of the checkpoint{}", other_checkpoint(dir, Some(step)))),
    })
}

pub(super) fn located(directory: PathBuf, verified: Verified, what: &str, warnings: Vec<String>) -> Result<Located> {
    let model = directory.join(MODEL_FILE);
    let file = verified.model.ok_or_else(|| Error::failure("the manifest does not list it").at(&model))?;
    Ok(Located { model, directory, what: what.to_owned(), warnings, file: Arc::new(file) })
}

fn named(which: Which, step: u64) -> String {
    format!("{which}, update {step}")
}

/// One line for a warning.
fn passed_over(what: &str, error: &Error) -> String {
    let reasons: Vec<String> = error
        .all()
        .map(|error| match error.location() {
            Some(location) => format!("{} ({location})", error.what()),
            None => error.what().to_owned(),
        })
        .collect();
    format!("{what} cannot be used and was skipped: {}", reasons.join("; "))
}

fn no_model(dir: &Path, why: &str) -> Error {
    Error::failure(format!("no model in {}: {why}", dir.display()))
}

/// The models that the user can choose instead.
fn what_is_there(dir: &Path) -> String {
    let mut there = Vec::new();
    if has_final(dir) {
        there.push("a final model (--checkpoint final)".to_owned());
    }
    let exists = |step: &u64| directories(dir).is_ok_and(|all| all.contains_key(step));
    if let Some(step) = pointer(dir, BEST).ok().flatten().filter(exists) {
        there.push(format!("a best checkpoint, of update {step} (--checkpoint best)"));
    }
    let all = list(dir).unwrap_or_default();
    let steps: Vec<String> = all.iter().rev().take(MAX_NAMED).map(|(step, _)| step.to_string()).collect();
    if !steps.is_empty() {
        let more = if all.len() > steps.len() { ", …" } else { "" };
        there.push(format!(
            "checkpoints of updates, the newest first: {}{more} (--checkpoint UPDATE)",
            steps.join(", ")
        ));
    }
    let below = models_below(dir);
    match (there.is_empty(), below.is_empty()) {
        (false, _) => format!("it has {}", there.join("; ")),
        (true, false) => format!("there are models below it; name one: {}", below.join(", ")),
        (true, true) => "a model directory is what `mt train` writes: runs/NAME after its first checkpoint".to_owned(),
    }
}

/// Directories directly below that are runs or models, sorted.
fn models_below(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> = paths
        .filter(|path| has_final(path) || checkpoints_of(path).is_dir())
        .map(|path| path.display().to_string())
        .collect();
    names.sort_unstable();
    names.truncate(MAX_NAMED);
    names
}
