//! Checkpoints written while training goes on: the loop waits for a copy in memory, and for the previous save if that
//! is not done yet; hashing, writing and syncing happen on another thread. Where memory has no room for the copy, the
//! loop itself writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::checkpoint::{self, BEST, CHECKPOINTS, Elements, LAST, NamedTensor, RunPath};
use crate::error::{Error, Result};
use crate::model_dir::{Notices, named};
use crate::notice::Notice;
use crate::ops::low_rank::{Factor, SCALE};
use crate::ops::memory::on_host;
use crate::ops::params::{Entry, Parameters};
use crate::run::lock::Lock;
use crate::train::TrainConfig;
use crate::train::optimizer::Optimizer;

/// How long to wait before another attempt to write a checkpoint.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// What a checkpoint has of the model.
pub enum SavedModel {
    /// All parameters that the model is judged by, and where each lies among them.
    Whole(Vec<f32>, Arc<Parameters>),
    /// Tensors with their names and shapes: those that are trained, and the factors of others.
    Trained(Vec<(String, Vec<usize>, Vec<f32>)>),
}

impl SavedModel {
    /// That of an optimizer's model.
    pub fn copy(optimizer: &Optimizer, parameters: &Arc<Parameters>) -> Result<Self> {
        let Some(low_rank) = optimizer.low_rank() else {
            let values = on_host(optimizer.model_values(), |values| Ok(values.to_vec()))?;
            return Ok(Self::Whole(values, parameters.clone()));
        };
        let mut tensors = on_host(parameters.values(), |values| {
            let whole = parameters.entries().iter().filter(|entry| optimizer.trains_whole(entry));
            let copy = |entry: &Entry| (entry.name.clone(), entry.shape.clone(), values[entry.range()].to_vec());
            Ok(whole.map(copy).collect::<Vec<_>>())
        })?;
        low_rank.with_factors(|factors| {
            let copy = |factor: Factor| (factor.name, factor.shape.to_vec(), factor.values.to_vec());
            tensors.extend(factors.into_iter().map(copy));
        })?;
        tensors.push((SCALE.to_owned(), vec![1], vec![low_rank.scale()]));
        Ok(Self::Trained(tensors))
    }

    fn named(&self) -> Vec<NamedTensor<'_>> {
        match self {
            Self::Whole(values, parameters) => named(parameters.entries(), values),
            Self::Trained(tensors) => tensors
                .iter()
                .map(|(name, shape, values)| NamedTensor { name, shape, data: Elements::F32(values) })
                .collect(),
        }
    }
}

/// Writes the parameters that the checkpoints of a run with low-rank factors do not hold.
///
/// # Errors
/// They cannot be written.
pub fn save_base(run: &Path, parameters: &Parameters) -> Result<()> {
    on_host(parameters.values(), |values| Ok(checkpoint::save_base(run, &named(parameters.entries(), values))))?
}

/// One checkpoint, but for its tensors.
pub struct Save {
    /// Run directory.
    pub run: PathBuf,
    /// Its lock.
    pub lock: Arc<Lock>,
    /// Receives notices.
    pub tell: Notices,
    /// Its update.
    pub step: u64,
    /// The updates of the best validations so far, which are kept, the best one first.
    pub best: Vec<u64>,
    /// `state.json`.
    pub state: Value,
    /// `[train]`, for how many checkpoints to keep.
    pub config: TrainConfig,
    /// `runtime.follow_links`
    pub follow_links: bool,
}

/// One checkpoint, in memory.
pub struct Snapshot {
    /// All but its tensors.
    pub save: Save,
    /// What its `model.safetensors` has.
    pub model: SavedModel,
    /// The optimizer's flat tensors by name.
    pub moments: Vec<(&'static str, Vec<f32>)>,
}

impl Save {
    /// Writes the checkpoint, updates the pointers, and only then removes checkpoints that are no longer needed.
    /// `moments` are the optimizer's flat tensors by name.
    ///
    /// Tries again where the reason may pass: what the checkpoint holds would be lost.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write<'a>(
        &self,
        model: &[NamedTensor<'_>],
        moments: impl IntoIterator<Item = (&'static str, &'a [f32])>,
    ) -> Result<()> {
        let moments: Vec<(&str, [usize; 1], &[f32])> =
            moments.into_iter().map(|(name, values)| (name, [values.len()], values)).collect();
        let moments: Vec<NamedTensor> = moments
            .iter()
            .map(|(name, shape, values)| NamedTensor { name, shape, data: Elements::F32(values) })
            .collect();
        let mut pauses = PAUSES.into_iter();
        loop {
            // If the directory is moved away just now, that says more than the file which cannot be written.
            let why = |error| self.lock.check(&self.run).err().unwrap_or(error);
            let written = self.lock.check(&self.run).and_then(|()| self.try_once(model, &moments).map_err(why));
            let Err(error) = written else { return Ok(()) };
            // What a link leads to may be another file system.
            let may_pass = error.may_pass() || (self.run.join(CHECKPOINTS).is_symlink() && !error.is_of_disk());
            let Some(pause) = pauses.next().filter(|_| may_pass) else { return Err(error) };
            let step = self.step;
            (self.tell)(Notice::Damage(format!("the checkpoint of update {step} is tried again: {error}")));
            std::thread::sleep(pause);
        }
    }

    fn try_once(&self, model: &[NamedTensor<'_>], moments: &[NamedTensor<'_>]) -> Result<()> {
        let run = RunPath::following_links(&self.run, self.follow_links);
        checkpoint::save(run, self.step, model, moments, &self.state)?;
        checkpoint::set_pointer(&self.run, LAST, self.step)?;
        if self.best.first() == Some(&self.step) {
            checkpoint::set_pointer(&self.run, BEST, self.step)?;
        }
        let mut protected = self.best.clone();
        let averaged = checkpoint::regular(&self.run, self.step)?;
        let surplus = averaged.len().saturating_sub(self.config.average_last);
        protected.extend(averaged[surplus..].iter().map(|(step, _)| *step));
        if let Err(error) = checkpoint::prune(run, self.step, self.config.keep, &protected) {
            // Nothing is lost by keeping too much.
            (self.tell)(Notice::Damage(format!("old checkpoints were not removed: {error}")));
        }
        Ok(())
    }
}

/// Writes one checkpoint at a time. Dropping it waits for the one being written.
pub struct Saver {
    /// `None` only while it is dropped, which ends the thread.
    snapshots: Option<Sender<Snapshot>>,
    outcomes: Receiver<Result<()>>,
    is_writing: bool,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts its thread: now rather than at the first checkpoint, when work would be lost if the system allowed no
    /// more threads.
    ///
    /// # Errors
    /// It allows no more.
    pub fn start() -> Result<Self> {
        let (snapshots, received) = channel::<Snapshot>();
        let (sender, outcomes) = channel();
        let work = move || {
            for snapshot in received {
                let Snapshot { save, model, moments } = &snapshot;
                let outcome = save.write(&model.named(), moments.iter().map(|(name, values)| (*name, &**values)));
                // Before anybody hears of it: there may be no room in memory for two.
                drop(snapshot);
                if sender.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("save".to_owned()).spawn(work);
        let thread = thread.map_err(|error| Error::thread("saves checkpoints", error))?;
        Ok(Self { snapshots: Some(snapshots), outcomes, is_writing: false, thread: Some(thread) })
    }

    /// Begins to write this checkpoint. Waits for the previous one, if [`Self::finish`] has not done so before this one
    /// took its place in memory.
    ///
    /// # Errors
    /// The previous one could not be written.
    pub fn begin(&mut self, snapshot: Snapshot) -> Result<()> {
        self.finish()?;
        self.is_writing = self.snapshots.as_ref().is_some_and(|snapshots| snapshots.send(snapshot).is_ok());
        if self.is_writing { Ok(()) } else { Err(panicked()) }
    }

    /// Fails if the last save has failed; does not wait for one that is still running.
    pub fn check(&mut self) -> Result<()> {
        if !self.is_writing {
            return Ok(());
        }
        match self.outcomes.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            outcome => self.finished(outcome.ok()),
        }
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(&mut self) -> Result<()> {
        if !self.is_writing {
            return Ok(());
        }
        let outcome = self.outcomes.recv().ok();
        self.finished(outcome)
    }

    fn finished(&mut self, outcome: Option<Result<()>>) -> Result<()> {
        self.is_writing = false;
        outcome.unwrap_or_else(|| Err(panicked()))
    }
}

fn panicked() -> Error {
    Error::failure("saving a checkpoint failed: its thread panicked")
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.snapshots = None;
        if let Some(thread) = self.thread.take() {
            // Ignore a failure: whatever ended training has already been reported.
            let _ = thread.join();
        }
    }
}
