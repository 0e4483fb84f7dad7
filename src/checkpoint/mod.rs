//! Checkpoints and model directories. Writing loses nothing if the process is killed or the disk is full; reading finds
//! damage.
//!
//! ```text
//! RUN/checkpoints/step-00001000/{model.safetensors, optimizer.safetensors, state.json, manifest.json}
//! RUN/best, RUN/last                        each the name of one checkpoint
//! RUN/{model.safetensors, manifest.json}    the final model, with the config.toml and tokenizers beside it
//! ```
//!
//! A checkpoint is written into a temporary sibling, every file synced, then renamed: it exists whole or not at all. It
//! counts only with a valid `manifest.json` ([`verify`]). Files are safetensors, JSON and text; nothing read here is
//! trusted.
//!
//! [`mod@format`] is the tensor file, [`manifest`] the digests, `save` and `locate` the directories,
//! [`average`](fn@average) the mean.

pub mod average;
mod disk;
mod factors;
pub mod format;
pub(crate) mod header;
mod locate;
pub mod manifest;
mod save;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use average::{average, average_of, weighted_average};
pub(crate) use disk::write_error;
pub use disk::{refuse_existing, whole_directory};
pub use format::{Elements, NamedTensor, Slot, TensorFile, load_into, scale_name};
pub use locate::{
    Located, Saved, Which, find, is_known_damage, known_damage, list, locate, look_again, newest_valid, pointer,
    regular,
};
pub use manifest::{FORMAT_VERSION, FileEntry, Manifest, damaged_among, is_gone, verify};
pub(crate) use save::staged_pointer;
pub use save::{prune, remove_after, save, save_base, save_config, save_model, set_pointer};

use crate::error::{Error, Result};
use crate::file::{self, Links};
use crate::limits;

/// The weights, in a checkpoint and in a model directory.
pub const MODEL_FILE: &str = "model.safetensors";
/// The optimizer's tensors, in a checkpoint.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Everything else that a resume needs, in a checkpoint.
pub const STATE_FILE: &str = "state.json";
/// Sizes and digests of the files beside it.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The resolved configuration, in a run or model directory.
pub const CONFIG_FILE: &str = "config.toml";
/// At the top of a run with low-rank factors: all parameters as they were when training began.
/// Its checkpoints hold only what is trained.
pub const BASE_FILE: &str = "base.safetensors";
/// The directory of a run's checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// The pointer to the best checkpoint.
pub const BEST: &str = "best";
/// The pointer to the last checkpoint.
pub const LAST: &str = "last";

/// A run directory to write to. The user has named it, but another user may have planted links in it. Files are never
/// written through links, and directories only if the user allows it ([`Self::following_links`]).
#[derive(Clone, Copy, Debug)]
pub struct RunPath<'a> {
    pub(crate) path: &'a Path,
    pub(crate) links: Links,
}

impl<'a> RunPath<'a> {
    /// As `path`; if `follows`, directories in it may be links, such as `checkpoints/` to another disk
    /// (`runtime.follow_links`).
    pub fn following_links(path: &'a Path, follows: bool) -> Self {
        Self { path, links: if follows { Links::Followed } else { Links::Refused } }
    }
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for RunPath<'a> {
    fn from(path: &'a P) -> Self {
        Self { path: path.as_ref(), links: Links::Refused }
    }
}

/// Where the checkpoint of `step` lies, whether it exists or not.
pub fn directory_of(run: &Path, step: u64) -> PathBuf {
    checkpoints_of(run).join(step_name(step))
}

/// `state.json` of the checkpoint directory `dir`, which [`verify`] should have passed.
///
/// # Errors
/// The file cannot be read, is larger than 64 MiB or is not JSON.
pub fn read_state(dir: &Path) -> Result<serde_json::Value> {
    let path = dir.join(STATE_FILE);
    let bytes = file::read_at_most(&path, limits::STATE_BYTES)
        .map_err(|error| Error::io("read the training state", &path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Error::failure(format!("the training state is damaged: {error}"))
            .at_line(&path, error.line(), error.column())
            .help("to resume from another checkpoint, move this one away")
    })
}

/// The run and the step of a checkpoint's path; `None` for other paths.
pub fn run_and_step(directory: &Path) -> Option<(&Path, u64)> {
    let step = parse_step_name(directory.file_name()?.to_str()?)?;
    let checkpoints = directory.parent()?;
    let run = checkpoints.parent().filter(|run| checkpoints == checkpoints_of(run))?;
    // That of a relative path may be the working directory.
    Some((if run.as_os_str().is_empty() { Path::new(".") } else { run }, step))
}

/// Interprets a path: a model or run directory, or one checkpoint of a run, whose step is also returned.
pub fn directory_and_step(named: &Path) -> (&Path, Option<Which>) {
    match run_and_step(named) {
        Some((run, step)) if !named.join(CONFIG_FILE).exists() => (run, Some(Which::Step(step))),
        _ => (named, None),
    }
}

fn checkpoints_of(run: &Path) -> PathBuf {
    run.join(CHECKPOINTS)
}

fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Whether a directory of this name is a checkpoint, also during writing, replacing or removing.
pub fn is_checkpoint_name(name: &str) -> bool {
    let bare = [save::TEMPORARY, save::REPLACED].into_iter().find_map(|prefix| name.strip_prefix(prefix));
    parse_step_name(bare.unwrap_or(name)).is_some()
}

/// The step of a name from [`step_name`]; `None` for any other name.
fn parse_step_name(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}
