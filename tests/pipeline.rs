//! Queueing updates before the outcome of the last one is known does not change a run.

mod common;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use candle_core::{Device, Tensor};
use common::small_model;
use mt::data::batch::{Batch, SpecialIds};
use mt::data::prefetch::{Prefetch, Prepared};
use mt::data::sampler::SamplerPosition;
use mt::error::{Error, Result};
use mt::model::{ModelConfig, Sequences, Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::{Sums, Targets};
use mt::ops::optimizer::{AdamStep, Outcome};
use mt::rng::{self, Stream};
use mt::train::backend::{Backend, Ceilings, Tape};
use mt::train::callbacks::{Batches, Lines};
use mt::train::evaluate::Evaluator;
use mt::train::log::Log;
use mt::train::optimizer::Optimizer;
use mt::train::state::TrainState;
use mt::train::{
    Alone, Callbacks, Pipeline, ScheduleConfig, Session, StopReason, TrainConfig, Trainer, ValidConfig, Validation,
    accumulate,
};
use serde_json::Value;

const V: usize = 40;
/// A batch that begins with this token gives a gradient that is not finite.
const POISON: u32 = 39;
/// Source tokens, with padding, that fit into the device's memory: enough for all batches but [`LARGE`].
const ROOM: usize = 30;
/// The batch that does not fit.
const LARGE: u64 = 12;
const IDS: SpecialIds = SpecialIds { pad_source: 0, eos_source: 1, pad_target: 0, bos_target: 2, eos_target: 1 };

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

    fn sums(&mut self) -> Result<Sums> {
        self.tape.sums()
    }

    fn clear_gradients(&mut self, of: &[Range<usize>]) -> Result<()> {
        self.tape.clear_gradients(of)
    }

    fn decide(&mut self, scale: f64, clip_norm: f64) -> Result<()> {
        self.tape.decide(scale, clip_norm)?;
        let outcome = self.tape.outcome()?;
        self.stopped |= !outcome.is_made;
        self.outcomes.push_back(Outcome { is_made: !self.stopped, ..outcome });
        self.most.set(self.most.get().max(self.outcomes.len()));
        Ok(())
    }

    fn adam(&mut self, moments: [&Tensor; 2], step: &AdamStep, decayed: &[Range<usize>]) -> Result<()> {
        if self.stopped { Ok(()) } else { self.tape.adam(moments, step, decayed) }
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
struct Saved {
    state: TrainState,
    tensors: Vec<Vec<f32>>,
}

struct Surroundings {
    model: Transformer,
    /// Batches that are poisoned until the run goes back.
    poisoned: Vec<u64>,
    /// The number of batches.
    batches: u64,
    saved: Vec<Saved>,
    /// A batch that cannot be read.
    unreadable: Option<u64>,
    /// A signal arrives when it has been asked for this many times.
    signal: Option<u64>,
    asked: Cell<u64>,
}

fn tensors<'a>(model: &'a Transformer, optimizer: &'a Optimizer) -> Vec<&'a Tensor> {
    optimizer.tensors().into_iter().map(|(_, tensor)| tensor).chain([model.parameters().values()]).collect()
}

fn batch(number: u64, is_poisoned: bool) -> Batch {
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
    fn validate(&mut self, _: &Transformer, evaluator: &mut Evaluator<'_>) -> Result<Option<Validation>> {
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

    fn check(&mut self) -> Result<()> {
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
            let position = SamplerPosition { epoch: 0, pool: 0, batch: next };
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
struct Left {
    end: std::result::Result<StopReason, String>,
    saved: Vec<Saved>,
    /// The log, without times.
    log: Vec<Value>,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Default)]
struct Trouble<'a> {
    poisoned: &'a [u64],
    signal: Option<u64>,
    unreadable: Option<u64>,
}

fn untrained() -> Transformer {
    let vocabulary = Vocabulary { source: V, target: V, source_padding: 0, target_padding: 0 };
    let model = Transformer::new(&ModelConfig { dropout: 0.1, ..small_model() }, vocabulary, &Device::Cpu).unwrap();
    model.initialise(1).unwrap();
    model
}

/// A run with at most `depth` updates under way, and how many there really were.
fn run(depth: usize, config: &TrainConfig, trouble: Trouble<'_>) -> (Left, usize) {
    let model = untrained();
    let mut host = Surroundings {
        model: model.clone(),
        poisoned: trouble.poisoned.to_vec(),
        batches: 40,
        saved: Vec::new(),
        unreadable: trouble.unreadable,
        signal: trouble.signal,
        asked: Cell::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let (state, most) = (TrainState::default(), Rc::new(Cell::new(0)));
    let backend = Late {
        tape: Tape::new(&model),
        model: model.clone(),
        depth,
        outcomes: VecDeque::new(),
        stopped: false,
        most: most.clone(),
    };
    let mut trainer = Trainer {
        model: &model,
        optimizer: Optimizer::new(&config.optimizer, model.parameters(), config.exponential_average).unwrap(),
        config,
        valid: &ValidConfig { every: 4, patience: 0, ..ValidConfig::default() },
        log: Log::open(folder.path(), None, None, Vec::new()).unwrap(),
        state,
        communicator: &Alone,
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

fn config() -> TrainConfig {
    TrainConfig {
        clip_norm: 1.0,
        exponential_average: 0.9,
        max_skipped: 2,
        save_every: 5,
        log_every: 1,
        schedule: ScheduleConfig::Constant { learning_rate: 0.01, warmup: 3 },
        ..TrainConfig::default()
    }
}

fn count(left: &Left, event: &str) -> usize {
    left.log.iter().filter(|entry| entry["event"] == event).count()
}

/// Also with updates skipped, singly and two in a row, a batch that does not fit into memory, a return to a checkpoint,
/// and the end of the data.
#[test]
fn the_run_is_that_of_one_update_at_a_time() {
    let trouble = Trouble { poisoned: &[2, 8, 9, 20, 21, 22], ..Trouble::default() };
    let (want, most) = run(1, &config(), trouble);
    assert_eq!((want.end.clone(), most), (Ok(StopReason::Epochs), 1));
    assert_eq!((count(&want, "back"), want.saved.last().map(|saved| saved.state.health.skipped)), (1, Some(6)));
    // The lower rate is saved at once: a kill before the next checkpoint does not bring the old one back.
    let lowered = want.saved.iter().find(|saved| saved.state.health.rate < 1.0).map(|saved| saved.state.step);
    let back = want.log.iter().find(|entry| entry["event"] == "back").and_then(|entry| entry["update"].as_u64());
    assert_eq!(lowered, back);
    // And updates are made with it.
    let rates = want.log.iter().skip_while(|entry| entry["event"] != "back").filter(|entry| entry["event"] == "train");
    let rates: Vec<f64> = rates.map(|entry| entry["learning_rate"].as_f64().unwrap()).collect();
    assert!(rates.len() > 10 && rates.iter().all(|rate| *rate == 0.005), "{rates:?}");
    for depth in [2, 3, 5] {
        let (got, most) = run(depth, &config(), trouble);
        assert!(most > 1 && most <= depth);
        assert_eq!(got, want);
    }
}

/// Of all its micro-batches, however many there are, each with dropout of its own.
#[test]
fn a_gradient_is_divided_by_the_target_tokens_of_its_update() {
    let config = TrainConfig { accumulate: 3, max_updates: 2, ..config() };
    let (left, _) = run(1, &config, Trouble::default());
    let train: Vec<_> = left.log.iter().filter(|entry| entry["event"] == "train").collect();
    let batches: Vec<Batch> = (0..3).map(|number| batch(number, false)).collect();
    let tokens: usize = batches.iter().map(|batch| batch.target_tokens).sum();
    let model = untrained();
    let mut tape = Tape::new(&model);
    let norm = |tape: &mut Tape, update: u64, passes: [u64; 3]| {
        let mode =
            |number: u64| Some(Mode::training(rng::key(config.seed, "dropout", &[update, passes[number as usize]])));
        accumulate(tape, &batches, (0, config.label_smoothing), mode).unwrap();
        tape.decide(1.0 / tokens as f64, 0.0).unwrap();
        tape.outcome().unwrap().gradient_norm
    };
    let found = train[0]["gradient_norm"].as_f64().unwrap();
    assert_eq!(norm(&mut tape, 1, [0, 1, 2]), found);
    // With other dropout it would be another.
    assert!(norm(&mut tape, 2, [0, 1, 2]) != found && norm(&mut tape, 1, [0, 0, 0]) != found);
}

#[test]
fn nothing_is_queued_behind_the_last_update() {
    let config = TrainConfig { max_updates: 7, accumulate: 2, ..config() };
    let (want, _) = run(1, &config, Trouble::default());
    let (got, _) = run(2, &config, Trouble::default());
    assert_eq!((want.end.clone(), count(&want, "train")), (Ok(StopReason::Updates), 7));
    assert_eq!(got, want);
}

/// Updates under way when a signal arrives are finished, and the state after them is saved.
#[test]
fn a_signal_ends_what_is_under_way() {
    let (left, most) = run(2, &config(), Trouble { signal: Some(13), ..Trouble::default() });
    let last = left.saved.last().unwrap();
    assert_eq!((left.end.clone(), most), (Ok(StopReason::Interrupted), 2));
    let (want, _) = run(1, &TrainConfig { max_updates: last.state.step, ..config() }, Trouble::default());
    assert!(last.state.step > 5);
    assert_eq!(want.saved.last(), Some(last));
}

/// After a signal between two micro-batches of an update, the state before that update is saved.
#[test]
fn a_signal_does_not_wait_for_the_end_of_an_update() {
    let config = TrainConfig { accumulate: 4, ..config() };
    let mut wanted: Vec<Saved> = Vec::new();
    let mut stopped_at = Vec::new();
    for signal in 0..60 {
        for depth in [1, 2] {
            let (left, _) = run(depth, &config, Trouble { signal: Some(signal), ..Trouble::default() });
            assert_eq!(left.end, Ok(StopReason::Interrupted));
            let Some(last) = left.saved.last() else { continue };
            stopped_at.push(last.state.step);
            if wanted.iter().all(|saved| saved.state.step != last.state.step) {
                let config = TrainConfig { max_updates: last.state.step, ..config.clone() };
                wanted.extend(run(1, &config, Trouble::default()).0.saved.pop());
            }
            assert!(wanted.contains(last), "signal {signal}, {depth} under way");
        }
    }
    assert!(stopped_at.contains(&1) && stopped_at.contains(&7), "{stopped_at:?}");
}

/// Updates under way when data cannot be read are finished and reported first, even if one is skipped.
#[test]
fn an_error_comes_after_what_is_under_way() {
    for poisoned in [&[][..], &[10]] {
        let trouble = Trouble { unreadable: Some(11), poisoned, ..Trouble::default() };
        let (want, _) = run(1, &config(), trouble);
        assert_eq!(want.end, Err("a line that cannot be read".to_owned()));
        assert_eq!(count(&want, "train") + count(&want, "skip"), 11);
        assert_eq!(run(2, &config(), trouble).0, want);
    }
}

/// A line of the log is about the updates since the line before, but a validation begins a new stretch.
#[test]
fn a_line_of_the_log_is_about_the_updates_since_the_last() {
    let train = |log_every: u64| -> Vec<(u64, [f64; 2], f64)> {
        let (left, _) = run(1, &TrainConfig { log_every, ..config() }, Trouble::default());
        let entries = left.log.iter().filter(|entry| entry["event"] == "train");
        let number = |entry: &Value, key: &str| entry[key].as_f64().unwrap();
        let losses = |e: &Value| [number(e, "loss"), number(e, "perplexity").ln()];
        entries.map(|e| (number(e, "update") as u64, losses(e), number(e, "target_tokens"))).collect()
    };
    let (each, third) = (train(1), train(3));
    assert_eq!((each.len(), third.len()), (40, 13));
    for (update, losses, _) in third {
        // Validations are after every fourth.
        let first = (update - 2).max((update - 1) / 4 * 4 + 1);
        let (mut sums, mut tokens) = ([0.0; 2], 0.0);
        for i in first as usize..=update as usize {
            let before = if i == 1 { 0.0 } else { each[i - 2].2 };
            let new = each[i - 1].2 - before;
            sums.iter_mut().zip(each[i - 1].1).for_each(|(sum, loss)| *sum += loss * new);
            tokens += new;
        }
        for (loss, sum) in losses.iter().zip(sums) {
            assert!((loss - sum / tokens).abs() < 1e-9, "update {update}: {loss}, not {}", sum / tokens);
        }
    }
}

/// Though there is a checkpoint of the same update, which does not know of it.
#[test]
fn an_update_skipped_at_the_end_is_saved() {
    let config = TrainConfig { save_every: 39, ..config() };
    let (left, _) = run(1, &config, Trouble { poisoned: &[39], ..Trouble::default() });
    let saved: Vec<_> = left.saved.iter().rev().map(|of| (of.state.step, of.state.health.skipped)).take(2).collect();
    assert_eq!((left.end, saved), (Ok(StopReason::Epochs), vec![(39, 1), (39, 0)]));
}
