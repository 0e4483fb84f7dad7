//! Runs of several ranks: what rank 0, which alone has the run directory, gives the others, and how they train along.
//!
//! All ranks make the same collective operations in the same order. Until training begins, they are:
//!
//! | operation | rank 0 | the others |
//! |---|---|---|
//! | compare | [`Resolved::new`]: the device, where MPI has started the ranks | the same |
//! | wait | finds the text, which may be a download | wait before they look for it |
//! | compare | [`Resolved::open`] | [`follow`]: the configuration |
//! | give | [`prepare`](super::stages::Opened::prepare): the tokenizers | wait, while rank 0 prepares the text |
//! | wait | for the others | prepare the text, the first rank of a machine before the others |
//! | compare | the text | the text |
//! | give | [`ready`](super::stages::Prepared::ready): state and parameters | take them |
//! | compare | the parameters | the parameters |
//! | sum | nothing yet: it takes its memory before the largest batch is tried | the same |
//! | wait | for the others | after the largest batch |

use std::rc::Rc;
use std::sync::Arc;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use super::callbacks::lines_of;
use super::stages::{Resolved, Surroundings};
use super::training_data::{self, Preparation, batch_options};
use super::validator::Validator;
use super::{Stop, backend, compare};
use crate::config::{self, Config};
use crate::data::batches;
use crate::data::sampler::SamplerPosition;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizers::Tokenizers;
use crate::data::training::TrainingData;
use crate::error::Result;
use crate::model::Transformer;
use crate::model_dir::vocabulary;
use crate::ops::memory::{change_on_host, on_host};
use crate::ranks::group::Group;
use crate::train::callbacks::{Batches, Callbacks, Lines, StopReason, Validation};
use crate::train::evaluate::Evaluator;
use crate::train::log::Log;
use crate::train::optimizer::Optimizer;
use crate::train::profile::Profiler;
use crate::train::state::{TextChecksums, TrainState};
use crate::train::{Pipeline, Trainer};

/// Numbers whose bytes are in memory at once for a checksum.
const CHECKED_AT_ONCE: usize = 1 << 16;

/// The tokenizers as JSON: of both languages, if they share one, or of the source and of the target.
#[derive(Deserialize, Serialize)]
pub(super) struct SharedTokenizers {
    source: String,
    target: Option<String>,
}

impl SharedTokenizers {
    pub(super) fn new(tokenizers: &Tokenizers) -> Self {
        let target = (!tokenizers.is_joint()).then(|| tokenizers.target.json().to_owned());
        Self { source: tokenizers.source.json().to_owned(), target }
    }

    fn open(self) -> Result<Tokenizers> {
        let source = Arc::new(Tokenizer::from_json(self.source)?);
        let target = match self.target {
            Some(target) => Arc::new(Tokenizer::from_json(target)?),
            None => source.clone(),
        };
        Ok(Tokenizers { source, target })
    }
}

/// Where training begins, as rank 0 gives it.
#[derive(Deserialize, Serialize)]
struct SharedState {
    /// `state.json`.
    state: serde_json::Value,
    /// Whether parameters follow, because they are not those that the seed gives.
    has_parameters: bool,
    /// Whether the optimizer's moments follow.
    has_moments: bool,
}

/// Compares the configuration of all ranks.
pub(super) fn agree_on_configuration(group: &Group, resolved: &Resolved) -> Result<()> {
    let own = format!("{}\nprofile = {}", config::to_toml(&resolved.config), resolved.request.profile);
    group.agree("the configuration", &own, "start all ranks with the same files and flags")
}

/// Compares the text of all ranks, by its checksums.
pub(super) fn agree_on_text(group: &Group, text: &TextChecksums) -> Result<()> {
    let help = "copy the same files to all machines, or use a file system that they share";
    group.agree("the text", &serde_json::json!(text).to_string(), help)
}

/// Compares the parameters of all ranks, by a checksum.
pub(super) fn agree_on_parameters(group: &Group, parameters: &Tensor) -> Result<()> {
    let append = |sum, values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        crc32c::crc32c_append(sum, &bytes)
    };
    let sum = on_host(parameters, |values| Ok(values.chunks(CHECKED_AT_ONCE).fold(0, append)))?;
    let help = "machines of different kinds may round differently, or one has faulty memory: go on from the last \
                checkpoint with --resume, without that machine";
    group.agree("the model's parameters", &sum.to_string(), help)
}

/// Gives the tensors of training to the other ranks, or takes them from rank 0.
fn spread(group: &Group, model: &Transformer, optimizer: &Optimizer, has_moments: bool) -> Result<()> {
    let mut tensors = vec![model.parameters().values().clone()];
    tensors.extend(optimizer.average().cloned());
    if has_moments {
        tensors.extend(optimizer.tensors().into_iter().map(|(_, tensor)| tensor.clone()));
        tensors.extend(optimizer.low_rank().map(|low_rank| low_rank.base().clone()));
    }
    let communicator = group.communicator();
    tensors.iter().try_for_each(|tensor| change_on_host(tensor, |values| communicator.broadcast(values))?)
}

/// Gives the state and the tensors that training begins with to the other ranks.
pub(super) fn give_state(
    group: &Group,
    (state, has_moments): (&TrainState, bool),
    config: &Config,
    model: &Transformer,
    optimizer: &Optimizer,
) -> Result<()> {
    let has_parameters = has_moments || config.train.init.is_some();
    group.share(Some(SharedState { state: state.to_json(config.train.seed)?, has_parameters, has_moments }))?;
    if has_parameters {
        spread(group, model, optimizer, has_moments)?;
    }
    agree_on_parameters(group, model.parameters().values())
}

/// Takes what [`give_state`] gives.
fn take_state(group: &Group, model: &Transformer, optimizer: &Optimizer, seed: u64) -> Result<TrainState> {
    let SharedState { state, has_parameters, has_moments } = group.share(None)?;
    if has_parameters {
        spread(group, model, optimizer, has_moments)?;
    }
    if !has_moments {
        optimizer.begin(seed)?;
    }
    agree_on_parameters(group, model.parameters().values())?;
    TrainState::from_json(state)
}

/// Gives what rank 0 has gone back to, if there was a checkpoint, to the other ranks.
pub(super) fn give_return(
    group: &Group,
    state: Option<&TrainState>,
    seed: u64,
    model: &Transformer,
    optimizer: &Optimizer,
) -> Result<()> {
    group.share(Some(state.map(|state| state.to_json(seed)).transpose()?))?;
    if state.is_some() { spread(group, model, optimizer, true) } else { Ok(()) }
}

/// Trains along with rank 0, on text of this machine. Returns why training has ended; `None` if it had ended before.
///
/// # Errors
/// This rank or another one cannot go on.
pub fn follow(resolved: Resolved, surroundings: &Surroundings<'_>, group: &Rc<Group>) -> Result<Option<StopReason>> {
    agree_on_configuration(group, &resolved)?;
    let Resolved { request, config, mut texts, device, others, run } = resolved;
    let tell = &*surroundings.tell;
    let Some(tokenizers) = group.share::<Option<SharedTokenizers>>(None)? else { return Ok(None) };
    let tokenizers = tokenizers.open()?;
    let preparation = Preparation::beside(&run, &config.data, tell).offline(request.offline).on(device.clone());
    let preparation = preparation.watching(surroundings.stop);
    group.watch().does("preparing the text");
    // The first rank of a machine leaves a cache for the others.
    let is_first = group.local().rank == 0;
    if !is_first {
        group.wait()?;
    }
    let data = training_data::prepare(&config, &mut texts, Some(tokenizers), &preparation)?;
    if is_first {
        group.wait()?;
    }
    let validator = Validator::open(&config, &texts, &data.tokenizers, tell)?;
    agree_on_text(group, &compare::checksums(&data.corpus, validator.as_ref()))?;
    group.watch().does("preparing the model");
    let compute = backend::number_type(config.runtime.precision, &device, tell);
    let model = Transformer::with_precision(&config.model, vocabulary(&data.tokenizers), &device, compute)?;
    model.initialise(config.train.seed)?;
    let optimizer = Optimizer::of(&config.train, model.parameters())?;
    backend::machines(&device, Some(group))?;
    let state = take_state(group, &model, &optimizer, config.train.seed)?;
    group.watch().updated(state.step);
    let mut backend = backend::open(&model, others)?;
    let session = backend::rehearsal(&mut *backend, &data, &config, &|_| ())?;
    group.wait()?;
    group.watch().does("training");
    let stop = surroundings.stop;
    let mut callbacks = Follower { group, config: &config, data: &data, validator, stop };
    let mut trainer = Trainer {
        model: &model,
        optimizer,
        config: &config.train,
        valid: &config.valid,
        state,
        log: Log::silent(),
        padding: data.tokenizers.target.pad_id(),
        backend,
        // It decides how far updates are queued ahead, which must be the same on all ranks.
        profiler: request.profile.then(Profiler::default),
        session,
        pipeline: Pipeline::default(),
    };
    trainer.run(&mut callbacks).map(Some)
}

/// The surroundings of a rank beside rank 0.
struct Follower<'a> {
    group: &'a Rc<Group>,
    config: &'a Config,
    data: &'a TrainingData,
    validator: Option<Validator>,
    stop: &'a dyn Stop,
}

impl Callbacks for Follower<'_> {
    fn validate(
        &mut self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        number: u64,
    ) -> Result<Option<Validation>> {
        let Some(validator) = &self.validator else { return Ok(Some(Validation::default())) };
        validator.score(model, evaluator, number, self.stop, Some(self.group))
    }

    fn differ(&self, a: &[u32], b: &[u32]) -> bool {
        self.validator.as_ref().is_some_and(|validator| validator.differ(a, b))
    }

    fn save(&mut self, optimizer: &Optimizer, _: &TrainState) -> Result<()> {
        agree_on_parameters(self.group, optimizer.model_values())
    }

    fn check(&mut self, update: u64) -> Result<()> {
        self.group.watch().updated(update);
        Ok(())
    }

    fn wait_until_saved(&mut self) -> Result<()> {
        Ok(())
    }

    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, _: u64) -> Result<Option<TrainState>> {
        let state: Option<serde_json::Value> = self.group.share(None)?;
        let Some(state) = state else { return Ok(None) };
        spread(self.group, model, optimizer, true)?;
        TrainState::from_json(state).map(Some)
    }

    fn batches(&self, position: SamplerPosition) -> Result<Batches> {
        batches::batches(self.data, &batch_options(self.config).of(self.group.ranks()), position)
    }

    fn lines(&self, pairs: &[usize]) -> Vec<Lines> {
        lines_of(self.data, pairs)
    }

    fn stop(&self) -> Option<StopReason> {
        self.stop.stop()
    }
}
