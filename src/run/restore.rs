//! Restores a checkpoint: parameters, the optimizer's tensors and the state of the run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{self, LAST, RunPath, TensorFile};
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::model_dir::{Tell, load_parameters, slots};
use crate::notice::Notice;
use crate::ops::low_rank::LowRank;
use crate::ops::memory::change_on_host;
use crate::ops::optimizer::Trained;
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
    if let Some(last) = last(run).filter(|last| *last > step) {
        let is_gone = checkpoint::find(run, last)?.is_none();
        let fate = if is_gone { "gone" } else { "damaged" };
        let what = format!("the checkpoint of update {last}, the last, is {fate}");
        if run.join(checkpoint::MODEL_FILE).exists() {
            let error = Error::failure(format!("{what}: going on from update {step} would end this run's final model"));
            return Err(error.at(run).help(
                "start another run from it with train.init and --run-dir; or move model.safetensors away to go on all \
                 the same",
            ));
        }
        if is_gone {
            tell(Notice::Damage(format!("{what}: the newest is that of update {step}")));
        }
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
    load_from(&directory, &state, model, optimizer)?;
    tell(Notice::Info(format!("resuming at update {}", state.step)));
    Ok(Some(state))
}

fn load_from(directory: &Path, state: &TrainState, model: &Transformer, optimizer: &Optimizer) -> Result<()> {
    load_parameters(&directory.join(checkpoint::MODEL_FILE), model)?;
    if let Some(low_rank) = optimizer.low_rank() {
        load_base(directory, low_rank, model.parameters())?;
    }
    load_optimizer(directory, state, optimizer, model.parameters())?;
    // As this device makes them: a resumed run has the same bits as one that was not interrupted. Those that were
    // loaded have the bits of processors and of the engine for GPUs.
    if let Some(low_rank) = optimizer.low_rank().filter(|_| model.parameters().device().is_metal()) {
        low_rank.merge()?;
    }
    Ok(())
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
        let mut state = match verified.and_then(TrainState::from_json) {
            Ok(state) if is_sound(&state) => state,
            Ok(_) => continue,
            Err(error) => {
                let error = checkpoint::known_damage(error)?;
                tell(Notice::Damage(format!("the checkpoint of update {step} is skipped: {error}")));
                continue;
            }
        };
        load_from(&directory, &state, model, optimizer)?;
        // Better ones that came after it may have pushed out those that were the best here.
        state.forget_lost_models(|step| matches!(checkpoint::find(writable.path, step), Ok(Some(_))));
        checkpoint::remove_after(writable, step, state.best.as_ref().map(|best| best.step))?;
        return Ok(Some(state));
    }
    Ok(None)
}

/// Fills the optimizer's tensors, and its exponential average if there is one.
fn load_optimizer(
    directory: &Path,
    state: &TrainState,
    optimizer: &Optimizer,
    parameters: &Arc<Parameters>,
) -> Result<()> {
    if let Some(average) = optimizer.average() {
        // model.safetensors holds the average; the parameters being trained are stored with the moments.
        average.slice_set(parameters.values(), 0, 0)?;
    }
    let before = optimizer.trained_before(&state.frozen);
    if before.is_some() && optimizer.low_rank().is_some() {
        let error =
            Error::failure("the run has low-rank factors, which belong to its `train.freeze`, and this is another");
        return Err(error.at(directory).help("restore `train.freeze`, or start another run with --run-dir"));
    }
    let tensors = optimizer.tensors();
    let moments_before = |name: &str| before.as_ref().filter(|_| name.starts_with("adam."));
    let lengths =
        tensors.iter().map(|(name, tensor)| [moments_before(name).map_or(tensor.elem_count(), Trained::count)]);
    let (lengths, mut next) = (lengths.collect::<Vec<_>>(), 0);
    let slots = tensors.iter().zip(&lengths).map(|((name, _), shape)| {
        let offset = next;
        next += shape[0];
        checkpoint::Slot { name, shape, offset }
    });
    let slots: Vec<_> = slots.collect();
    let mut flat = vec![0f32; next];
    checkpoint::load_into(&directory.join(checkpoint::OPTIMIZER_FILE), &slots, &mut flat)?;
    for ((name, tensor), slot) in tensors.iter().zip(&slots) {
        let values = &flat[slot.offset..][..slot.shape[0]];
        let moved = moments_before(name).map(|before| optimizer.trained().moments_from(before, values));
        change_on_host(tensor, |slice| slice.copy_from_slice(moved.as_deref().unwrap_or(values)))?;
    }
    Ok(())
}

/// Fills what factors of low rank are added to.
fn load_base(directory: &Path, low_rank: &LowRank, parameters: &Arc<Parameters>) -> Result<()> {
    let run = checkpoint::run_and_step(directory).map_or(directory, |(run, _)| run);
    let entries = parameters.entries();
    let mut file = TensorFile::open(&run.join(checkpoint::BASE_FILE), &slots(entries))?;
    low_rank.load(|name, base, _| {
        let index = entries.iter().position(|entry| entry.name == name);
        index.map_or(Ok(()), |index| file.read(index, 0, base))
    })?;
    file.finish()
}
