//! What the training loop needs: validation, checkpoints, signals.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::Tensor;

use super::saver::{Save, SavedModel, Saver, Snapshot};
use super::{Stop, follower};
use crate::config::Config;
use crate::data::batches;
use crate::data::corpus::Side;
use crate::data::sampler::SamplerPosition;
use crate::data::training::TrainingData;
use crate::error::{Error, Result};
use crate::model::Transformer;
use crate::model_dir::record::{self, Values};
use crate::model_dir::{Notices, named};
use crate::notice::Notice;
use crate::ops::memory::{on_host, with_slices};
use crate::ops::params::Parameters;
use crate::ranks::Ranks;
use crate::ranks::group::Group;
use crate::report::files;
use crate::run::lock::Lock;
use crate::run::training_data::batch_options;
use crate::run::validator::Validator;
use crate::run::{directory, restore};
use crate::train::callbacks::{Batches, Callbacks, Lines, StopReason, Validation};
use crate::train::evaluate::Evaluator;
use crate::train::optimizer::Optimizer;
use crate::train::state::{TextChecksums, TrainState};

/// The surroundings of one run.
pub struct RunCallbacks<'a> {
    /// Run directory.
    pub run: &'a Path,
    /// Keeps other processes from training there.
    pub lock: Arc<Lock>,
    /// Resolved configuration.
    pub config: &'a Config,
    /// Checksums of the text.
    pub text: TextChecksums,
    /// The update of the checkpoint that training goes on from, and its record.
    pub loaded: Option<(u64, Values)>,
    /// What computes, as [`super::backend::machines`] says.
    pub machine: String,
    /// The training data.
    pub data: &'a TrainingData,
    /// Validation set, if there is one.
    pub validator: Option<Validator>,
    /// Asks to stop.
    pub stop: &'a dyn Stop,
    /// Receives notices.
    pub tell: Notices,
    /// The model's parameters.
    pub parameters: Arc<Parameters>,
    /// Writes checkpoints.
    pub saver: Saver,
    /// Whether memory has room for a copy of what a checkpoint holds.
    pub copies_checkpoints: bool,
    /// The last validation since the run was started.
    pub latest: Option<Validation>,
    /// The other ranks, if there are any.
    pub group: Option<Rc<Group>>,
}

/// The source lines of pairs, by file.
pub(super) fn lines_of(data: &TrainingData, pairs: &[usize]) -> Vec<Lines> {
    let mut files: Vec<Lines> = Vec::new();
    for &pair in pairs {
        let (path, line) = data.corpus.origin(pair, Side::Source);
        match files.iter_mut().find(|lines| lines.file == path) {
            Some(file) => file.lines.push(line),
            None => files.push(Lines { file: path.to_path_buf(), lines: vec![line] }),
        }
    }
    files.iter_mut().for_each(|file| file.lines.sort_unstable());
    files
}

impl Callbacks for RunCallbacks<'_> {
    fn validate(
        &mut self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        number: u64,
    ) -> Result<Option<Validation>> {
        let Some(validator) = &self.validator else { return Ok(Some(Validation::default())) };
        let validation = validator.score(model, evaluator, number, self.stop, self.group.as_deref())?;
        // What is shown of it must not be written into another run's directory.
        self.lock.check(self.run)?;
        self.latest.clone_from(&validation);
        Ok(validation)
    }

    fn differ(&self, a: &[u32], b: &[u32]) -> bool {
        self.differ_by_more_than_chance(a, b)
    }

    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()> {
        self.lock.check(self.run)?;
        if let Some(group) = &self.group {
            follower::agree_on_parameters(group, optimizer.model_values())?;
        }
        directory::restore_files(self.run, self.config, &self.data.tokenizers, &*self.tell)?;
        if state.best.as_ref().is_some_and(|best| best.step == state.step) {
            let translations = self.latest.as_ref().map(|latest| latest.translations.clone()).unwrap_or_default();
            self.keep_translations(files::BEST, &translations);
        }
        // A checkpoint that is written again, because its state is another, keeps the record of how it was trained.
        let (configuration, machine) = match &self.loaded {
            Some((step, record)) if *step == state.step => (record.clone(), state.machine.clone()),
            _ => (record::recorded_values(self.config), self.machine.clone()),
        };
        let frozen = self.config.train.freeze.clone();
        let state = TrainState { configuration, frozen, machine, ..state.clone() };
        // The previous one is in memory until it is written, and there may be no room for two.
        self.saver.finish()?;
        let save = Save {
            run: self.run.to_path_buf(),
            lock: self.lock.clone(),
            tell: self.tell.clone(),
            step: state.step,
            best: state.best_steps(),
            state: state.to_json(self.config.train.seed)?,
            config: self.config.train.clone(),
            follow_links: self.config.runtime.follow_links,
        };
        let tensors = optimizer.tensors();
        // Factors are small, and elsewhere than in one tensor.
        if self.copies_checkpoints || optimizer.low_rank().is_some() {
            let copy = |tensor: &Tensor| on_host(tensor, |values| Ok(values.to_vec()));
            let moments = tensors.into_iter().map(|(name, tensor)| Ok((name, copy(tensor)?)));
            let (model, moments) = (SavedModel::copy(optimizer, &self.parameters)?, moments.collect::<Result<_>>()?);
            return self.saver.begin(Snapshot { save, model, moments });
        }
        let all: Vec<&Tensor> = tensors.iter().map(|(_, tensor)| *tensor).chain([optimizer.model_values()]).collect();
        with_slices(&all, |slices| {
            let Some((model, moments)) = slices.split_last() else { return Ok(Ok(())) };
            let moments = tensors.iter().zip(moments).map(|((name, _), values)| (*name, *values));
            Ok(save.write(&named(self.parameters.entries(), model), moments))
        })?
    }

    fn check(&mut self, update: u64) -> Result<()> {
        if let Some(group) = &self.group {
            group.watch().updated(update);
        }
        self.saver.check()
    }

    fn wait_until_saved(&mut self) -> Result<()> {
        self.saver.finish()
    }

    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, before: u64) -> Result<Option<TrainState>> {
        let state = self.restore(model, optimizer, before)?;
        if let Some(group) = &self.group {
            follower::give_return(group, state.as_ref(), self.config.train.seed, model, optimizer)?;
        }
        Ok(state)
    }

    fn batches(&self, position: SamplerPosition) -> Result<Batches> {
        let ranks = self.group.as_ref().map_or(Ranks::ALONE, |group| group.ranks());
        batches::batches(self.data, &batch_options(self.config).of(ranks), position)
    }

    fn lines(&self, pairs: &[usize]) -> Vec<Lines> {
        lines_of(self.data, pairs)
    }

    fn stop(&self) -> Option<StopReason> {
        self.stop.stop()
    }
}

impl RunCallbacks<'_> {
    /// The last sound checkpoint before an update, made to fit the configuration and the text of now.
    fn restore(&mut self, model: &Transformer, optimizer: &Optimizer, before: u64) -> Result<Option<TrainState>> {
        self.saver.finish()?;
        self.refuse_to_undo_a_change(before)?;
        // It belongs to an update that is undone.
        self.latest = None;
        let is_sound = |state: &TrainState| state.step < before && state.health.in_a_row == 0;
        let Some(mut state) =
            restore::go_back(directory::writable(self.run, self.config), model, optimizer, is_sound, &*self.tell)?
        else {
            return Ok(None);
        };
        let before = state.configuration.clone();
        let is_other_order = record::is_other_order(&before, self.config) || state.text.train != self.text.train;
        state.sampler = batches::nearest(self.data, &batch_options(self.config), state.sampler, is_other_order)?;
        record::adapt(&mut state, &before, self.config, self.text.clone());
        self.loaded = Some((state.step, state.configuration.clone()));
        Ok(Some(state))
    }

    /// Fails if no update was made since the checkpoint of this update was loaded with another configuration than it
    /// was trained with: the change is at fault, not the checkpoint, which would be removed.
    fn refuse_to_undo_a_change(&self, update: u64) -> Result<()> {
        let Some((_, record)) = self.loaded.as_ref().filter(|(step, _)| *step == update) else { return Ok(()) };
        let now = record::recorded_values(self.config);
        let changed = record.iter().filter_map(|(key, before)| {
            let now = now.get(key).filter(|now| *now != before)?;
            Some(format!("`{key}` was {before} before and is {now} now"))
        });
        let changed: Vec<String> = changed.collect();
        if changed.is_empty() {
            return Ok(());
        }
        let what = format!(
            "training diverges at once with the changed configuration, after update {update}: {}",
            changed.join("; ")
        );
        Err(Error::failure(what).help("restore these values and --resume: the checkpoints are as they were"))
    }

    /// Whether two validations' scores differ by more than chance.
    pub(super) fn differ_by_more_than_chance(&self, a: &[u32], b: &[u32]) -> bool {
        self.validator.as_ref().is_some_and(|validator| validator.differ(a, b))
    }

    /// Writes translations of the validation set under this name, for reports and comparisons.
    pub(super) fn keep_translations(&self, name: &str, translations: &[String]) {
        let (Some(validator), false) = (&self.validator, translations.is_empty()) else { return };
        let texts = [(files::REFERENCE, files::lines(validator.references())), (name, files::lines(translations))];
        for (name, text) in texts {
            // The next save tells of it.
            if self.lock.check(self.run).is_err() {
                break;
            }
            if let Err(error) = files::replace(directory::writable(self.run, self.config), name, &text) {
                (self.tell)(Notice::Damage(error.to_string()));
            }
        }
    }
}
