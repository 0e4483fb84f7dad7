//! Restores a checkpoint: parameters, the optimizer's tensors and the state of the run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{self, LAST, RunPath};
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::model_dir::{Tell, load_parameters};
use crate::notice::Notice;
use crate::ops::memory::change_on_host;
use crate::ops::params::Parameters;
use crate::train::optimizer::Optimizer;
use crate::train::state::TrainState;

/// The newest whole checkpoint of a run: its state and its directory. `None` before the first one.
pub fn newest(run: &Path, tell: Tell<'_>) -> Result<Option<(TrainState, PathBuf)>> {
    let look = || {
        let (newest, warnings) = checkpoint::newest_valid(run)?;
        let newest = match newest {
            Some((_, directory)) => Some((state_of(&directory)?, directory)),
            None => None,
        };
        Ok((newest, warnings))
    };
    let (newest, warnings) = checkpoint::look_again(run, |(_, warnings)| warnings.is_empty(), look)?;
    let Some(newest) = newest else {
        if !warnings.is_empty() {
            let what = format!("every checkpoint of this run is damaged: {}", warnings.join("; "));
            let help = "restore the files named, or start again with --overwrite or another --run-dir";
            return Err(Error::failure(what).at(run).help(help));
        }
        if run.join(checkpoint::MODEL_FILE).exists() {
            let error = Error::failure("this run has a final model but no checkpoint to continue from").at(run);
            return Err(error.help("start again with --overwrite, or name another run with --run-dir"));
        }
        if let Some(step) = last(run) {
            let what = format!("the run has lost its checkpoints: `{LAST}` names that of update {step}, which is gone");
            let help = "bring them back from a copy of the run, or start again with --overwrite or another --run-dir";
            return Err(Error::failure(what).at(run.join(checkpoint::CHECKPOINTS)).help(help));
        }
        return Ok(None);
    };
    for warning in warnings {
        tell(Notice::Damage(warning));
    }
    let step = newest.0.step;
    if let Some(last) = last(run).filter(|last| *last > step)
        && checkpoint::find(run, last)?.is_none()
    {
        let what = format!("the checkpoint of update {last}, the last, is gone");
        if run.join(checkpoint::MODEL_FILE).exists() {
            let error = Error::failure(format!("{what}: going on from update {step} would end this run's final model"));
            return Err(error.at(run).help(
                "start another run from it with train.init and --run-dir; or move model.safetensors away to go on all \
                 the same",
            ));
        }
        tell(Notice::Damage(format!("{what}: the newest is that of update {step}")));
    }
    Ok(Some(newest))
}

/// The update that `last` names; that there was such a checkpoint is certain.
fn last(run: &Path) -> Option<u64> {
    checkpoint::pointer(run, LAST).ok().flatten()
}

fn state_of(checkpoint: &Path) -> Result<TrainState> {
    let state = checkpoint::read_state(checkpoint)?;
    TrainState::from_json(state).map_err(|error| error.at(checkpoint.join(checkpoint::STATE_FILE)))
}

/// Loads the newest whole checkpoint of a run.
pub fn load(run: &Path, model: &Transformer, optimizer: &Optimizer, tell: Tell<'_>) -> Result<Option<TrainState>> {
    let Some((state, directory)) = newest(run, tell)? else {
        tell(Notice::Info("the run has no checkpoint yet: starting at update 0".to_owned()));
        return Ok(None);
    };
    load_from(&directory, model, optimizer)?;
    tell(Notice::Info(format!("resuming at update {}", state.step)));
    Ok(Some(state))
}

fn load_from(directory: &Path, model: &Transformer, optimizer: &Optimizer) -> Result<()> {
    load_parameters(&directory.join(checkpoint::MODEL_FILE), model)?;
    load_optimizer(&directory.join(checkpoint::OPTIMIZER_FILE), optimizer, model.parameters())
}

/// Loads the newest whole checkpoint that is sound, and removes those after it, so that a resume does not start from
/// them.
pub fn go_back(
    writable: RunPath,
    model: &Transformer,
    optimizer: &Optimizer,
    is_sound: impl Fn(&TrainState) -> bool,
    tell: Tell<'_>,
) -> Result<Option<TrainState>> {
    for (step, directory) in checkpoint::list(writable.path)?.into_iter().rev() {
        let verified = checkpoint::verify(&directory).and_then(|_| checkpoint::read_state(&directory));
        let state = match verified.and_then(TrainState::from_json) {
            Ok(state) if is_sound(&state) => state,
            Ok(_) => continue,
            Err(error) => {
                let error = checkpoint::known_damage(error)?;
                tell(Notice::Damage(format!("the checkpoint of update {step} is skipped: {error}")));
                continue;
            }
        };
        load_from(&directory, model, optimizer)?;
        checkpoint::remove_after(writable, step, state.best.as_ref().map(|best| best.step))?;
        return Ok(Some(state));
    }
    Ok(None)
}

/// Fills the optimizer's tensors, and its exponential average if there is one.
fn load_optimizer(file: &Path, optimizer: &Optimizer, parameters: &Arc<Parameters>) -> Result<()> {
    if let Some(average) = optimizer.average() {
        // model.safetensors holds the average; the parameters being trained are stored with the moments.
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
        change_on_host(tensor, |slice| slice.copy_from_slice(values))?;
    }
    Ok(optimizer.clear_frozen_moments()?)
}
