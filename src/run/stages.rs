//! A run from what is asked to its end, stage by stage. Each stage is made from the one before, so none can be left
//! out:
//!
//! | stage | what is certain then | what has changed on disk |
//! |---|---|---|
//! | [`Resolved`] | configuration, text, device and directory are fit for a run | nothing |
//! | [`Opened`] | the run that is there may be continued or replaced, and nobody else trains in it | the lock |
//! | [`Prepared`] | the text is encoded, and is that of the run | the cache of prepared text |
//! | [`Ready`] | the model has its parameters, the largest batch fits, files can be written | files beside the run's |
//! | [`Begun`] | training goes on from here, also after a kill | the run |
//!
//! If a stage fails, the files of an existing run stay as they were. Only [`Ready::begin`] may change them.

mod begun;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use candle_core::Device;
use serde_json::json;

use super::directory::{self, Resumption};
use super::ended::Ended;
use super::lock::Lock;
use super::plan::Plan;
use super::request::RunRequest;
use super::saver::{self, Saver};
use super::training_data::{self, Meter, Preparation};
use super::validator::Validator;
use super::{Stop, backend, compare, follower, init, plan, restore, resume};
use crate::checkpoint::{self, CONFIG_FILE};
use crate::config::{self, Config};
use crate::data::statistics::Statistics;
use crate::data::texts::Texts;
use crate::data::training::TrainingData;
use crate::error::{Error, Result};
use crate::escape::shown_path;
use crate::gpu::Others;
use crate::model::Transformer;
use crate::model_dir::{Notices, Tell, vocabulary};
use crate::notice::{Notice, grouped};
use crate::ops::matmul::Precision;
use crate::ranks::Ranks;
use crate::ranks::group::Group;
use crate::report::events::Events;
use crate::report::files;
use crate::report::page::Page;
use crate::train::backend::Backend;
use crate::train::log::{self, Continuation, LOG_FILE, Log, Watcher};
use crate::train::optimizer::Optimizer;
use crate::train::state::{TextChecksums, TrainState};
use crate::train::{Session, StopReason, WantedPrecision, memory};

pub use begun::{Begun, Outcome};

/// Why most runs end.
pub const UPDATES_REACHED: &str = "train.max_updates reached";

/// Who receives a run's notices, and who may stop it.
#[derive(Clone)]
pub struct Surroundings<'a> {
    /// Receives notices.
    pub tell: Notices,
    /// Asks to stop.
    pub stop: &'a dyn Stop,
    /// Shows how far the text has been prepared.
    pub meter: Meter<'a>,
    /// The other ranks, if there are any.
    pub group: Option<Rc<Group>>,
}

impl Surroundings<'_> {
    /// Notes what this rank does, for those that wait for it.
    fn does(&self, doing: &str) {
        self.group.iter().for_each(|group| group.watch().does(doing));
    }
}

/// A request whose configuration, text, device and directory have been found.
pub struct Resolved {
    /// What was asked.
    pub request: RunRequest,
    /// The whole configuration.
    pub config: Config,
    /// The text that it names.
    pub texts: Texts,
    /// Where it trains.
    pub device: Device,
    /// The other ranks, if there are any.
    pub others: Option<Others>,
    /// The run directory.
    pub run: PathBuf,
}

impl Resolved {
    /// Finds everything that a request names. With a group, it is for one of its ranks.
    ///
    /// # Errors
    /// The configuration is wrong, something that it names is not there, or the directory cannot hold a run.
    pub fn new(request: RunRequest, group: Option<&Group>, tell: Tell<'_>) -> Result<Self> {
        let mut config = request.config()?;
        let ranks = group.map_or(Ranks::ALONE, |group| group.ranks());
        let warning = plan::refuse_idle_ranks(&config.train, ranks.count)?;
        let local = group.map_or(Ranks::ALONE, |group| group.local());
        request.set_threads(&config, local.count)?;
        let device = request.open_device(&config, local.rank)?;
        let mut others = None;
        if let Some(group) = group {
            group.set_timeout(config.runtime.rank_timeout as u64);
            others = Some(backend::connect(group, &device, &config.runtime, tell)?);
            // What rank 0 downloads, the others find.
            if !group.leads() {
                group.wait()?;
            }
        }
        let texts = Texts::find(&config.data, request.offline)?;
        if let Some(group) = group.filter(|group| group.leads()) {
            group.wait()?;
        }
        if device.is_cpu() {
            memory::refuse_the_impossible(&config.model, config.tokenizer.vocab_size)?;
        }
        let run = request.run_directory()?;
        // Ranks may have processors of different kinds.
        let has_bf16 = !device.is_cpu() || Precision::Bf16.is_native();
        let have_bf16 = group.map_or(Ok(vec![has_bf16]), |group| group.gather(&has_bf16))?;
        if ranks.rank == 0 && config.runtime.precision == WantedPrecision::Auto {
            let before = request.resume.then(|| config::load_resolved(run.join(CONFIG_FILE)).ok()).flatten();
            let before = before.map(|before| before.runtime.precision);
            config.runtime.precision = backend::automatic_precision(before, &device, &have_bf16, tell);
        }
        if let Some(group) = group {
            // Rank 0 chooses for all.
            let chosen = group.share(group.leads().then_some(config.runtime.precision))?;
            if config.runtime.precision == WantedPrecision::Auto {
                config.runtime.precision = chosen;
            }
        }
        if let (WantedPrecision::Bf16, Some(other)) =
            (config.runtime.precision, have_bf16.iter().skip(1).position(|has_bf16| !has_bf16))
        {
            let rank = other + 1;
            tell(Notice::Warning(format!(
                "the processor of rank {rank} has no instructions for bfloat16 products: that rank computes in f32"
            )));
        }
        if ranks.rank == 0 {
            directory::refuse_unusable(&run, &config, request.resume)?;
            warning.into_iter().for_each(|text| tell(Notice::Warning(text)));
        }
        let idle = config.train.schedule.idle_end(config.train.max_updates);
        idle.into_iter().for_each(|text| tell(Notice::Warning(text)));
        Ok(Self { request, config, texts, device, others, run })
    }

    /// Locks the directory, and compares the configuration with that of the run which is to be continued.
    ///
    /// # Errors
    /// There is a run that is not to be continued or replaced, it may not be continued, or another process trains in
    /// it.
    pub fn open(self, surroundings: Surroundings<'_>) -> Result<Opened<'_>> {
        if let Some(group) = &surroundings.group {
            follower::agree_on_configuration(group, &self)?;
        }
        let (continued, lock) = directory::open(&self.run, &self.request, &self.config, &*surroundings.tell)?;
        if self.request.resume && continued.is_none() {
            let run = shown_path(&self.run);
            (surroundings.tell)(Notice::Info(format!("there is no run in {run} to resume: starting one")));
        }
        Ok(Opened { resolved: self, surroundings, continued, lock })
    }
}

/// A run whose directory is locked.
pub struct Opened<'a> {
    resolved: Resolved,
    surroundings: Surroundings<'a>,
    continued: Option<directory::Continued>,
    lock: Lock,
}

/// What an opened run comes to.
pub enum Step<'a> {
    /// It has ended: nothing that decides its final model has changed, and that is whole and was validated. It stays as
    /// it is, since making it anew would need all checkpoints that it was made of.
    Over {
        /// How.
        ended: Ended,
        /// Its directory.
        run: PathBuf,
        /// Its configuration.
        config: Box<Config>,
    },
    /// It is to be trained.
    Trains(Box<Prepared<'a>>),
}

impl<'a> Opened<'a> {
    /// Encodes the text, or finds it encoded.
    ///
    /// # Errors
    /// The text cannot be used, or it is not the text of the run to continue.
    pub fn prepare(self) -> Result<Step<'a>> {
        let Self { mut resolved, surroundings, continued, lock } = self;
        let tell: Tell<'_> = &*surroundings.tell;
        let saved = continued.is_some().then(|| directory::tokenizers(&resolved.run)).transpose()?;
        surroundings.does("preparing the text");
        let preparation = Preparation::beside(&resolved.run, &resolved.config.data, tell)
            .offline(resolved.request.offline)
            .on(resolved.device.clone())
            .watching(surroundings.stop)
            .showing(surroundings.meter);
        let data = training_data::prepare(&resolved.config, &mut resolved.texts, saved, &preparation)?;
        let old = continued.as_ref().map(|continued| &continued.config);
        resolved.config = init::stating_what_is_known(resolved.config, old, &data.tokenizers);
        let validator = Validator::open(&resolved.config, &resolved.texts, &data.tokenizers, tell)?;
        let with_model = |validator: Validator| validator.with_model(&resolved.device, resolved.request.offline);
        let validator = validator.map(with_model).transpose()?;
        let text = compare::checksums(&data.corpus, validator.as_ref());
        if let Some(continued) = &continued
            && continued.is_same
            && !resolved.request.force
        {
            match restore::newest(&resolved.run, &|_| ()) {
                Ok(Some((state, _))) => resume::check_text(&state, &text, &resolved.config, false, tell)?,
                Ok(None) => {}
                // If no checkpoint is left, it is not known what the text was.
                Err(error) if checkpoint::is_known_damage(&error) => {}
                Err(error) => return Err(error),
            }
            if let Some(ended) = Ended::find(&resolved.run, &resolved.config)? {
                let (run, at) = (shown_path(&resolved.run), ended.at());
                tell(Notice::Info(format!("the run in {run} has ended{at}: its final model stays as it is")));
                if !continued.not_taken_over.is_empty() {
                    let keys = continued.not_taken_over.join("`, `");
                    let why = "not taken over, since there is nothing to do; the run's config.toml has its own";
                    tell(Notice::Note(format!("`{keys}`: {why}")));
                }
                if let Some(group) = &surroundings.group {
                    group.share::<Option<follower::SharedTokenizers>>(Some(None))?;
                }
                return Ok(Step::Over { ended, run: resolved.run, config: Box::new(resolved.config) });
            }
        }
        if let Some(group) = &surroundings.group {
            group.share(Some(Some(follower::SharedTokenizers::new(&data.tokenizers))))?;
            group.wait()?;
            follower::agree_on_text(group, &text)?;
        }
        let (old, changes) = continued.map(|continued| (continued.config, continued.changes)).unzip();
        let changes = changes.unwrap_or_default();
        Ok(Step::Trains(Box::new(Prepared { resolved, surroundings, old, changes, lock, data, validator, text })))
    }
}

/// A run whose text is encoded.
pub struct Prepared<'a> {
    resolved: Resolved,
    surroundings: Surroundings<'a>,
    /// The configuration of the run that is continued, …
    old: Option<Config>,
    /// … and what will be different from now on.
    changes: Vec<String>,
    lock: Lock,
    data: TrainingData,
    validator: Option<Validator>,
    text: TextChecksums,
}

impl<'a> Prepared<'a> {
    /// Makes the model, gives it the parameters that it begins with, and tries the largest batch and everything that is
    /// to be written.
    ///
    /// # Errors
    /// The run's checkpoints cannot be used, something does not fit into memory, or something cannot be written.
    pub fn ready(self) -> Result<Ready<'a>> {
        let Self { resolved, surroundings, old, changes, lock, data, validator, text } = self;
        let (config, force, tell): (_, _, Tell<'_>) = (&resolved.config, resolved.request.force, &*surroundings.tell);
        surroundings.does("preparing the model");
        let compute = backend::number_type(config.runtime.precision, &resolved.device, tell);
        let model =
            Transformer::with_precision(&config.model, vocabulary(&data.tokenizers), &resolved.device, compute)?;
        let parameters = model.parameters().values().elem_count();
        let plan = Plan::new(config, &data)?;
        plan.warnings(config, resolved.device.is_cpu()).for_each(|text| tell(Notice::Warning(text)));
        model.initialise(config.train.seed)?;
        let optimizer = Optimizer::of(&config.train, model.parameters())?;
        let resumed = old.is_some().then_some(&*resolved.run);
        let (begun, is_loaded) = resume::begin(resumed, config, force, &model, &optimizer, &text, tell)?;
        plan.training().into_iter().for_each(|text| tell(Notice::Info(text)));
        let machine = backend::machines(&resolved.device, surroundings.group.as_deref())?;
        resume::note_machine(&machine, &begun, tell);
        let (state, recorded) = resume::adapt(begun, old.as_ref(), config, &data, text, force, tell)?;
        if state.health.is_rate_lowered() {
            let rate = state.health.rate;
            tell(Notice::Note(format!(
                "the learning rate stays {rate} times that of the schedule, since the run has gone back to an earlier \
                 checkpoint"
            )));
        }
        refuse_to_begin(surroundings.stop)?;
        let (count, run) = (grouped(parameters), shown_path(&resolved.run));
        tell(Notice::Info(format!("model: {count} parameters; run directory: {run}")));
        let group = surroundings.group.as_ref();
        if let Some(group) = group {
            group.watch().updated(state.step);
            follower::give_state(group, (&state, is_loaded), config, &model, &optimizer)?;
            tell(Notice::Info(plan::of_ranks(config, group.ranks().count, Some(group.machines()))));
        }
        let mut backend = backend::open(&model, resolved.others.clone())?;
        // A run that is replaced stays until it is known that this one can be trained.
        let session = backend::rehearsal(&mut *backend, &data, config, tell)?;
        group.map_or(Ok(()), |group| group.wait())?;
        refuse_to_begin(surroundings.stop)?;
        // What may fail comes before the run is touched: a failed resume leaves every file as it was.
        let saver = Saver::start()?;
        let continuation = Continuation::prepare(&resolved.run, is_loaded.then(|| state.progress()))?;
        let resumption = old.is_some().then(|| Resumption::prepare(&resolved.run, &recorded, &state)).transpose()?;
        let is_on_gpu = !resolved.device.is_cpu();
        let parts = Parts {
            resolved,
            surroundings,
            lock,
            data,
            validator,
            model,
            backend,
            optimizer,
            state,
            is_loaded,
            machine,
            session,
            saver,
            // What lies on a GPU is copied in any case.
            copies_checkpoints: plan.copies_checkpoints || is_on_gpu,
        };
        Ok(Ready { parts, plan, changes, continuation, resumption })
    }
}

/// What training works with.
struct Parts<'a> {
    resolved: Resolved,
    surroundings: Surroundings<'a>,
    lock: Lock,
    data: TrainingData,
    validator: Option<Validator>,
    model: Transformer,
    backend: Box<dyn Backend>,
    optimizer: Optimizer,
    state: TrainState,
    /// Whether the state comes from a checkpoint.
    is_loaded: bool,
    /// What computes, as [`backend::machines`] says.
    machine: String,
    session: Session,
    saver: Saver,
    copies_checkpoints: bool,
}

/// A run that can begin.
pub struct Ready<'a> {
    parts: Parts<'a>,
    plan: Plan,
    /// What will be different from now on in the configuration.
    changes: Vec<String>,
    continuation: Continuation,
    /// What is written of a run that goes on; none for one that starts.
    resumption: Option<Resumption>,
}

impl<'a> Ready<'a> {
    /// Starts, replaces or continues the run in its directory.
    ///
    /// # Errors
    /// Something cannot be written after all.
    pub fn begin(self) -> Result<Begun<'a>> {
        let Self { parts, plan, changes, continuation, resumption } = self;
        let Parts { resolved, surroundings, data, model, optimizer, state, is_loaded, .. } = &parts;
        let (run, config, tell): (&Path, _, Tell<'_>) = (&resolved.run, &resolved.config, &*surroundings.tell);
        match resumption {
            Some(resumption) => resumption.persist()?,
            None => directory::start(run, config, &data.tokenizers)?,
        }
        if optimizer.low_rank().is_some() && !is_loaded {
            saver::save_base(run, model.parameters())?;
        }
        let writable = directory::writable(run, config);
        let total = plan.updates;
        let watchers: Vec<Box<dyn Watcher>> = vec![Box::new(Events::new(writable)), Box::new(Page::new(run))];
        let sizes = vocabulary(&data.tokenizers);
        let statistics = Statistics::new(&data.corpus, &data.report, &config.data, [sizes.source, sizes.target]);
        let mut of_run = json!(statistics);
        of_run["parameters"] = model.parameters().values().elem_count().into();
        of_run["tokenizers"] = data.tokenizers.digest().into();
        if let Err(error) = files::replace(writable, files::CORPUS, &of_run.to_string()) {
            tell(Notice::Damage(error.to_string()));
        }
        let mut log = Log::begin(continuation, run, is_loaded.then(|| state.progress()), total, watchers)?;
        // Last, because it could not be brought back; a run that begins has none.
        directory::remove_final(run, config, tell)?;
        if !changes.is_empty() && state.end(&config.train, &config.valid).is_none() {
            let entry = json!({ "event": "change", "update": state.step, "changes": changes });
            // It is there already if the run was killed before its next checkpoint.
            if !log::entries(&run.join(LOG_FILE)).is_ok_and(|entries| entries.contains(&entry)) {
                log.entry(&entry);
            }
        }
        Ok(Begun { parts, log })
    }
}

/// Fails if a signal has asked to stop while nothing of a former run is touched.
fn refuse_to_begin(stop: &dyn Stop) -> Result<()> {
    let Some(end) = stop.stop() else { return Ok(()) };
    let error = Error::stopped(end == StopReason::Terminated, "stopped by a signal before training began");
    Err(error.help("run the same command again: the run directory is as it was"))
}

#[cfg(test)]
mod tests;
