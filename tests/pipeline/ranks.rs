//! Data-parallel training: threads of this process as the ranks.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use candle_core::Device;
use mt::model::{Transformer, Vocabulary};
use mt::ops::Mode;
use mt::ops::loss::Targets;
use mt::ranks::Communicator;
use mt::train::backend::Tape;
use mt::train::{Interval, StopReason, TrainConfig};

use crate::common::threads::{Complete, on_threads};
use crate::common::{every_option, random_sequences};
use crate::toy::{Left, Trouble, config, count, run_with, untrained};

/// What a rank is left with: its run, and the gradients of the last update.
type Rank = (Left, Vec<f32>);

/// A run of `count` ranks, of which each has its own trouble.
fn run(
    count: usize,
    (depth, dropout): (usize, f64),
    config: &TrainConfig,
    trouble: impl Fn(usize) -> Trouble<'static> + Sync,
) -> Vec<Rank> {
    on_threads(count, |thread| {
        let (rank, model) = (thread.ranks().rank, untrained(dropout));
        let thread = Rc::new(thread);
        let tape = Tape::new(&model).with_communicator(Some(thread.clone()));
        let (left, _) = run_with(&model, tape, depth, config, trouble(rank));
        if left.end == Ok(StopReason::Updates) && rank < config.accumulate {
            assert!(thread.sums_ahead() as u64 >= left.saved.last().unwrap().state.step);
        }
        (left, model.parameters().gradients().to_vec1().unwrap())
    })
}

fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let mut difference = got.iter().zip(want).map(|(a, b)| f64::from(a - b));
    norm(&mut difference) / norm(&mut want.iter().map(|x| f64::from(*x)))
}

/// The run, but for the numbers that depend on the order of sums, and for what only some ranks know.
fn outline(left: &Left) -> impl PartialEq + std::fmt::Debug {
    let entries = left.log.iter().map(|entry| {
        let keys = ["event", "update", "epoch", "target_tokens", "skipped", "from", "returns", "rate", "best", "stale"];
        keys.map(|key| entry[key].clone())
    });
    let saved = left.saved.iter().map(|saved| {
        let state = &saved.state;
        let counts = [state.step, state.target_tokens, state.health.skipped, state.health.in_a_row];
        (counts, state.sampler, state.best.as_ref().map(|best| best.step), state.validation_due)
    });
    (left.end.clone(), entries.collect::<Vec<_>>(), saved.collect::<Vec<_>>())
}

/// All ranks have the same bits.
fn assert_alike(ranks: &[Rank]) {
    for (number, (left, gradients)) in ranks.iter().enumerate() {
        assert_eq!(outline(left), outline(&ranks[0].0), "rank {number}");
        assert_eq!(gradients, &ranks[0].1, "rank {number}");
        for (saved, other) in left.saved.iter().zip(&ranks[0].0.saved) {
            assert!(saved.tensors == other.tensors, "rank {number}, update {}", saved.state.step);
        }
    }
}

/// Three ranks do not have equally many; five leave one without any.
#[test]
fn gradients_are_those_of_one_rank_with_as_many_micro_batches() {
    let config = TrainConfig { accumulate: 4, max_updates: 1, ..config() };
    let want = &run(1, (1, 0.1), &config, |_| Trouble::default())[0];
    for count in [2, 3, 4, 5] {
        let ranks = run(count, (1, 0.1), &config, |_| Trouble::default());
        assert_alike(&ranks);
        let error = relative_error(&ranks[0].1, &want.1);
        assert!(error < 1e-6, "{count} ranks: {error}");
        assert_eq!(outline(&ranks[0].0), outline(&want.0));
    }
    // With other dropout they would be others.
    let other = run(2, (1, 0.1), &TrainConfig { seed: 2, ..config }, |_| Trouble::default());
    assert!(relative_error(&other[0].1, &want.1) > 0.01);
}

/// Of each sub-layer, and of no other parameter. The threads above check that nothing is told too early.
#[test]
fn backward_tells_from_the_end_on_which_gradients_are_complete() {
    for config in every_option() {
        let vocabulary = Vocabulary { source: 40, target: 40, source_padding: 0, target_padding: 0 };
        let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
        model.initialise(1).unwrap();
        let told: Arc<Mutex<Vec<Complete>>> = Arc::default();
        let tell = {
            let told = told.clone();
            Arc::new(move |start, all: &[f32]| told.lock().unwrap().push((start, all[start..].to_vec())))
        };
        let [source, target, labels] =
            ["source", "target", "labels"].map(|side| random_sequences(&[5, 3, 8], 40, side));
        let targets = Targets { labels: labels.ids, ..Targets::default() };
        model.parameters().tell_what_is_complete(tell, || {
            model.loss(&source, &target, &targets, &Mode::training(7)).unwrap().0.backward().unwrap()
        });
        let all: Vec<f32> = model.parameters().gradients().to_vec1().unwrap();
        let told = told.lock().unwrap();
        assert!(told.iter().all(|(start, gradients)| all[*start..] == *gradients));
        // One after the other: the encoder waits for no layer of the decoder that comes after it.
        let is_first = |name: &str| name.ends_with("q_proj.weight") || name.ends_with("fc1.weight");
        let starts = model.parameters().entries().iter().rev().filter(|entry| is_first(&entry.name));
        assert!(told.iter().map(|(start, _)| *start).eq(starts.map(|entry| entry.offset)), "{config:?}");
    }
}

/// Also with updates that one rank alone has to skip, singly and in a row, a batch that does not fit into one rank's
/// memory, a return to a checkpoint, and a last update with fewer micro-batches than ranks.
#[test]
fn ranks_skip_go_back_and_end_alike() {
    let trouble = |_| Trouble { poisoned: &[2, 9, 10, 20, 23, 26], ..Trouble::default() };
    let config = TrainConfig { accumulate: 3, save_every: Interval::Updates(2), ..config() };
    let want = &run(1, (1, 0.0), &config, trouble)[0].0;
    assert_eq!((want.end.clone(), count(want, "back")), (Ok(StopReason::Epochs), 1));
    assert!(count(want, "skip") == 5 && want.saved.len() > 5);
    for (count, depth) in [(2, 1), (2, 2), (4, 1), (4, 3)] {
        let ranks = run(count, (depth, 0.0), &config, trouble);
        assert_alike(&ranks);
        let got = &ranks[0].0;
        assert_eq!(outline(got), outline(want), "{count} ranks, {depth} under way");
        let (got, want) = (got.saved.last().unwrap(), want.saved.last().unwrap());
        for (got, want) in got.tensors.iter().zip(&want.tensors) {
            let error = relative_error(got, want);
            assert!(error < 1e-3, "{count} ranks, {depth} under way: {error}");
        }
    }
}

/// A signal to one rank stops all at the same update, whenever it comes, and none of them advances past it.
#[test]
fn a_signal_to_one_rank_stops_all_alike() {
    let config = TrainConfig { accumulate: 4, max_updates: 6, ..config() };
    let whole = &run(1, (1, 0.1), &config, |_| Trouble::default())[0].0;
    let mut stopped_at = Vec::new();
    for signal in 0..30 {
        for (count, depth) in [(2, 1), (2, 2), (4, 2)] {
            let asked = signal as usize % count;
            let ranks = run(count, (depth, 0.1), &config, |rank| Trouble {
                signal: (rank == asked).then_some(signal),
                ..Trouble::default()
            });
            let case = format!("signal {signal} to rank {asked} of {count}, {depth} under way");
            let steps: Vec<_> = ranks.iter().map(|(left, _)| left.saved.last().map(|saved| saved.state.step)).collect();
            assert!(steps.iter().all(|step| *step == steps[0]), "{case}: {steps:?}");
            let is_done = ranks[0].0.end == Ok(StopReason::Updates);
            for (rank, (left, _)) in ranks.iter().enumerate() {
                let end = match (is_done, rank == asked) {
                    (true, _) => StopReason::Updates,
                    (false, true) => StopReason::Interrupted,
                    (false, false) => StopReason::Terminated,
                };
                assert_eq!(left.end, Ok(end), "{case}");
                let Some(last) = left.saved.last() else { continue };
                stopped_at.push(last.state.step);
                assert_eq!(last.state.sampler.batch, 4 * last.state.step, "{case}");
                assert!(last.tensors == ranks[0].0.saved.last().unwrap().tensors, "{case}");
            }
        }
    }
    assert_eq!(whole.end, Ok(StopReason::Updates));
    assert!((1..=5).all(|step| stopped_at.contains(&step)), "{stopped_at:?}");
}
