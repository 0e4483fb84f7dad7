//! Checkpoints written while training goes on: the loop waits for a copy in memory, and for the previous save if that is
//! not done yet; hashing, writing and syncing happen on another thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use serde_json::Value;

use crate::checkpoint::{self, BEST, Elements, LAST, NamedTensor};
use crate::commands::model::named;
use crate::config::TrainConfig;
use crate::console::message;
use crate::error::{Error, Result};
use crate::ops::params::Parameters;

/// One checkpoint, in memory.
pub struct Snapshot {
    /// Run directory.
    pub run: PathBuf,
    /// Its update.
    pub step: u64,
    /// The update of the best validation so far.
    pub best: Option<u64>,
    /// Where each parameter lies in `values`.
    pub parameters: Arc<Parameters>,
    /// The parameters that the model is judged by.
    pub values: Vec<f32>,
    /// The optimizer's tensors by name, each as long as `values`.
    pub moments: Vec<(&'static str, Vec<f32>)>,
    /// `state.json`.
    pub state: Value,
    /// `[train]`, for how many checkpoints to keep.
    pub config: TrainConfig,
}

impl Snapshot {
    /// Writes the checkpoint, updates the pointers, and only then removes checkpoints that are no longer needed.
    fn write(&self) -> Result<()> {
        let length = [self.values.len()];
        let moments: Vec<NamedTensor> = self
            .moments
            .iter()
            .map(|(name, values)| NamedTensor { name, shape: &length, data: Elements::F32(values) })
            .collect();
        checkpoint::save(&self.run, self.step, &named(self.parameters.entries(), &self.values), &moments, &self.state)?;
        checkpoint::set_pointer(&self.run, LAST, self.step)?;
        if self.best == Some(self.step) {
            checkpoint::set_pointer(&self.run, BEST, self.step)?;
        }
        let mut protected: Vec<u64> = self.best.into_iter().collect();
        let averaged = checkpoint::regular(&self.run, self.config.save_every, self.step)?;
        let surplus = averaged.len().saturating_sub(self.config.average_last);
        protected.extend(averaged[surplus..].iter().map(|(step, _)| *step));
        if let Err(error) = checkpoint::prune(&self.run, self.step, self.config.keep.max(1), &protected) {
            // Nothing is lost by keeping too much.
            message(format_args!("warning: old checkpoints were not removed: {error}"));
        }
        Ok(())
    }
}

/// Writes one checkpoint at a time. Dropping it waits for the one being written.
#[derive(Default)]
pub struct Saver {
    writing: Option<JoinHandle<Result<()>>>,
}

impl Saver {
    /// Begins to write this checkpoint. Waits for the previous one, if [`Self::finish`] has not done so before this one took
    /// its place in memory.
    ///
    /// # Errors
    /// The previous one could not be written.
    pub fn begin(&mut self, snapshot: Snapshot) -> Result<()> {
        self.finish()?;
        let writing = Builder::new().name("save".to_owned()).spawn(move || snapshot.write());
        let failed = |error| Error::failure("cannot start the thread that saves checkpoints").caused_by(error);
        self.writing = Some(writing.map_err(failed)?);
        Ok(())
    }

    /// Fails if the last save has failed; does not wait for one that is still running.
    pub fn check(&mut self) -> Result<()> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) { self.finish() } else { Ok(()) }
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(&mut self) -> Result<()> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        writing.join().unwrap_or_else(|_| Err(Error::failure("saving a checkpoint failed: its thread panicked")))
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            // Ignore a failure: whatever ended training has already been reported.
            let _ = writing.join();
        }
    }
}
