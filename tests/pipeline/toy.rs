//! Runs of a small model on made-up batches, in which things go wrong.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use candle_core::{Device, Tensor};
use mt::data::batch::{Batch, SpecialIds};
use mt::data::prefetch::{Prefetch, Prepared};
use mt::data::sampler::SamplerPosition;
use mt::error::{Error, Result};
use mt::model::{ModelConfig, Sequences, Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::{Sums, Targets};
use mt::ops::low_rank::LowRank;
use mt::ops::optimizer::{AdamStep, Counts, Outcome, Trained};
use mt::ranks::Communicator;
use mt::rng::Stream;
use mt::train::backend::{Backend, Ceilings, Tape};
use mt::train::callbacks::{Batches, Lines};
use mt::train::evaluate::Evaluator;
use mt::train::log::Log;
use mt::train::optimizer::Optimizer;
use mt::train::state::TrainState;
use mt::train::{
    Callbacks, Interval, Pipeline, ScheduleConfig, Session, StopReason, TrainConfig, Trainer, ValidConfig, Validation,
};
use serde_json::Value;

use crate::common::small_model;

const V: usize = 40;
/// A batch that begins with this token gives a gradient that is not finite.
const POISON: u32 = 39;
/// Source tokens, with padding, that fit into the device's memory: enough for all batches but [`LARGE`].
const ROOM: usize = 30;
/// The batch that does not fit.
const LARGE: u64 = 12;
/// Batches of an epoch.
pub(crate) const EPOCH: u64 = 10;
const IDS: SpecialIds =
    SpecialIds { pad_source: 0, eos_source: 1, pad_target: 0, bos_target: 2, eos_target: 1, language_last: false };

/// A device with up to `depth` updates under way. After an update that was not made, it skips all others until
/// `forget`.
struct Late {
    tape: Tape,
    model: Transformer,
    depth: usize,
    outcomes: VecDeque<Outcome>,
    stopped: bool,
    /// The most that were under way at once.
    most: Rc<Cell<usize>>,
}

impl Backend for Late {
    fn depth(&self) -> usize {
        self.depth
    }

    fn begin(&mut self) -> Result<()> {
        self.tape.begin()
    }

    fn pass(&mut self, source: &Sequences, target: &Sequences, targets: &Targets, mode: &Mode) -> Result<()> {
        if source.ids.len() > ROOM {
            return Err(Error::out_of_memory());
        }
        self.tape.pass(source, target, targets, mode)?;
        if source.ids[0] == POISON {
            self.model.parameters().gradients().slice_set(&Tensor::new(&[f32::NAN], &Device::Cpu)?, 0, 7)?;
        }
        Ok(())
    }

    fn expect_reduce(&mut self) {
        self.tape.expect_reduce();
    }

    fn sums(&mut self) -> Result<Sums> {
        self.tape.sums()
    }

    fn clear_gradients(&mut self, of: &[Range<usize>]) -> Result<()> {
        self.tape.clear_gradients(of)
    }

    fn communicator(&self) -> Option<&dyn Communicator> {
        self.tape.communicator()
    }

    fn reduce(&mut self, counts: Counts) -> Result<()> {
        self.tape.reduce(counts)
    }

    fn decide(&mut self, clip_norm: f64) -> Result<()> {
        self.tape.decide(clip_norm)?;
        let outcome = self.tape.outcome()?;
        self.stopped |= !outcome.is_made;
        self.outcomes.push_back(Outcome { is_made: !self.stopped, ..outcome });
        self.most.set(self.most.get().max(self.outcomes.len()));
        Ok(())
    }

    fn adam(&mut self, moments: [&Tensor; 2], step: &AdamStep, trained: &Trained) -> Result<()> {
        if self.stopped { Ok(()) } else { self.tape.adam(moments, step, trained) }
    }

    fn factor_gradients(&mut self, low_rank: &LowRank) -> Result<()> {
        self.tape.factor_gradients(low_rank)
    }

    fn adam_of_factors(&mut self, low_rank: &LowRank, moments: [&Tensor; 2], step: &AdamStep) -> Result<()> {
        if self.stopped { Ok(()) } else { self.tape.adam_of_factors(low_rank, moments, step) }
    }

    fn average(&mut self, average: &Tensor, decay: f64) -> Result<()> {
        if self.stopped { Ok(()) } else { self.tape.average(average, decay) }
    }

    fn outcome(&mut self) -> Result<Outcome> {
        Ok(self.outcomes.pop_front().expect("nothing is under way"))
    }

    fn forget(&mut self) -> Result<()> {
        self.outcomes.clear();
        self.stopped = false;
        Ok(())
    }

    fn release_memory(&mut self) {}

    fn ceilings(&mut self) -> Result<Option<Ceilings>> {
        Ok(None)
    }
}

/// The contents of a checkpoint: the state without its times, and all tensors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    pub state: TrainState,
    pub tensors: Vec<Vec<f32>>,
}

struct Surroundings {
    model: Transformer,
    /// Batches that are poisoned until the run goes back.
    poisoned: Vec<u64>,
    /// The number of batches.
    batches: u64,
    saved: Vec<Saved>,
    /// The score and the loss that each validation finds; none: the model's loss.
    found: Vec<[f64; 2]>,
    /// A batch that cannot be read.
    unreadable: Option<u64>,
    /// A signal arrives when it has been asked for this many times.
    signal: Option<u64>,
    asked: Cell<u64>,
}

fn tensors<'a>(model: &'a Transformer, optimizer: &'a Optimizer) -> Vec<&'a Tensor> {
    optimizer.tensors().into_iter().map(|(_, tensor)| tensor).chain([model.parameters().values()]).collect()
}

pub(crate) fn batch(number: u64, is_poisoned: bool) -> Batch {
    let mut stream = Stream::new(number, "batch");
    let mut tokens = |count: u64| -> Vec<u32> { (0..count).map(|_| 3 + stream.below(30) as u32).collect() };
    let rows = if number == LARGE { 6 } else { 3 };
    let mut pairs: Vec<(Vec<u32>, Vec<u32>)> = (0..rows).map(|i| (tokens(3 + i), tokens(8 - i))).collect();
    if is_poisoned {
        pairs[0].0[0] = POISON;
    }
    Batch::new(&pairs, &IDS).with_origin(vec![number as usize; pairs.len()], 0)
}

impl Callbacks for Surroundings {
    fn validate(&mut self, _: &Transformer, evaluator: &mut Evaluator<'_>, number: u64) -> Result<Option<Validation>> {
        if let Some([value, loss]) = self.found.get(number as usize - 1).copied() {
            return Ok(Some(Validation { value, loss, ..Validation::default() }));
        }
        let sums = evaluator.losses(&[batch(1000, false)], &|| false)?.expect("nothing stops it");
        Ok(Some(Validation { loss: sums.smoothed, perplexity: sums.nll, ..Validation::default() }))
    }

    fn differ(&self, _: &[u32], _: &[u32]) -> bool {
        false
    }

    fn save(&mut self, optimizer: &Optimizer, state: &TrainState) -> Result<()> {
        let tensors = tensors(&self.model, optimizer).iter().map(|tensor| tensor.to_vec1().unwrap()).collect();
        let mut state = state.clone();
        (state.seconds, state.window.since) = (0.0, 0.0);
        self.saved.push(Saved { state, tensors });
        Ok(())
    }

    fn check(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn wait_until_saved(&mut self) -> Result<()> {
        Ok(())
    }

    fn go_back(&mut self, model: &Transformer, optimizer: &Optimizer, _: u64) -> Result<Option<TrainState>> {
        self.poisoned.clear();
        let Some(Saved { state, tensors: saved }) = self.saved.last().cloned() else { return Ok(None) };
        for (tensor, values) in tensors(model, optimizer).into_iter().zip(saved) {
            let count = values.len();
            tensor.slice_set(&Tensor::from_vec(values, count, &Device::Cpu)?, 0, 0)?;
        }
        Ok(Some(state))
    }

    fn batches(&self, position: SamplerPosition) -> Result<Batches> {
        let (mut next, last, poisoned) = (position.batch, self.batches, self.poisoned.clone());
        let unreadable = self.unreadable;
        Prefetch::new(2, move || {
            let number = next;
            next += 1;
            let position = SamplerPosition { epoch: next / EPOCH, pool: 0, batch: next };
            if unreadable == Some(number) {
                return Some(Err(Error::failure("a line that cannot be read")));
            }
            let item = || vec![batch(number, poisoned.contains(&number))];
            (number < last).then(|| Ok(Prepared { item: item(), position }))
        })
    }

    fn lines(&self, pairs: &[usize]) -> Vec<Lines> {
        vec![Lines { file: PathBuf::from("train.en"), lines: pairs.to_vec() }]
    }

    fn stop(&self) -> Option<StopReason> {
        self.asked.set(self.asked.get() + 1);
        self.signal.is_some_and(|at| self.asked.get() > at).then_some(StopReason::Interrupted)
    }
}

/// The results of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Left {
    pub end: std::result::Result<StopReason, String>,
    pub saved: Vec<Saved>,
    /// The log, without times.
    pub log: Vec<Value>,
}

/// What goes wrong in a run, and what its validations find.
#[derive(Clone, Copy, Default)]
pub(crate) struct Trouble<'a> {
    pub poisoned: &'a [u64],
    pub signal: Option<u64>,
    pub unreadable: Option<u64>,
    pub found: &'a [[f64; 2]],
    pub patience: u64,
}

pub(crate) fn untrained(dropout: f64) -> Transformer {
    let vocabulary = Vocabulary { source: V, target: V, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(&ModelConfig { dropout, ..small_model() }, vocabulary, &Device::Cpu).unwrap();
    model.initialise(1).unwrap();
    model
}

/// A run with at most `depth` updates under way, and how many there really were.
pub(crate) fn run(depth: usize, config: &TrainConfig, trouble: Trouble<'_>) -> (Left, usize) {
    let model = untrained(0.1);
    run_with(&model, Tape::new(&model), depth, config, trouble)
}

/// [`run`] of this model.
pub(crate) fn run_with(
    model: &Transformer,
    tape: Tape,
    depth: usize,
    config: &TrainConfig,
    trouble: Trouble<'_>,
) -> (Left, usize) {
    let mut host = Surroundings {
        model: model.clone(),
        poisoned: trouble.poisoned.to_vec(),
        batches: 40,
        saved: Vec::new(),
        found: trouble.found.to_vec(),
        unreadable: trouble.unreadable,
        signal: trouble.signal,
        asked: Cell::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let (state, most) = (TrainState::default(), Rc::new(Cell::new(0)));
    let backend =
        Late { tape, model: model.clone(), depth, outcomes: VecDeque::new(), stopped: false, most: most.clone() };
    let mut trainer = Trainer {
        model,
        optimizer: Optimizer::new(&config.optimizer, model.parameters(), config.exponential_average).unwrap(),
        config,
        valid: &ValidConfig { every: Interval::Updates(4), patience: trouble.patience, ..ValidConfig::default() },
        log: Log::open(folder.path(), None, None, Vec::new()).unwrap(),
        state,
        padding: 0,
        backend: Box::new(backend),
        profiler: None,
        session: Session::default(),
        pipeline: Pipeline::default(),
    };
    let end = trainer.run(&mut host).map_err(|error| error.what().to_owned());
    drop(trainer);
    let log = std::fs::read_to_string(folder.path().join("log.jsonl")).unwrap();
    let without_times = |line: &str| {
        let mut entry: Value = serde_json::from_str(line).unwrap();
        for time in ["seconds", "saving_seconds", "validation_seconds", "tokens_per_second", "memory"] {
            entry.as_object_mut().unwrap().remove(time);
        }
        entry
    };
    (Left { end, saved: host.saved, log: log.lines().map(without_times).collect() }, most.get())
}

pub(crate) fn config() -> TrainConfig {
    TrainConfig {
        clip_norm: 1.0,
        exponential_average: 0.9,
        max_skipped: 2,
        save_every: Interval::Updates(5),
        log_every: 1,
        schedule: ScheduleConfig::Constant { learning_rate: 0.01, warmup: 3 },
        ..TrainConfig::default()
    }
}

pub(crate) fn count(left: &Left, event: &str) -> usize {
    left.log.iter().filter(|entry| entry["event"] == event).count()
}
