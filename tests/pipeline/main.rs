//! Queueing updates before the outcome of the last one is known does not change a run, nor does the number of ranks.

#[path = "../common/mod.rs"]
mod common;
mod ranks;
mod toy;

use mt::ops::Mode;
use mt::ops::optimizer::Counts;
use mt::rng;
use mt::train::backend::{Backend, Tape};
use mt::train::split::MicroBatch;
use mt::train::{Interval, StopReason, TrainConfig, accumulate};
use serde_json::Value;
use toy::{EPOCH, Left, Saved, Trouble, batch, config, count, run, untrained};

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
    let batches = (0..3).map(|number| MicroBatch { number, parts: vec![batch(number, false)] });
    let batches: Vec<MicroBatch> = batches.collect();
    let tokens = batches.iter().map(|batch| batch.parts[0].target_tokens as u64).sum();
    let model = untrained(0.1);
    let mut tape = Tape::new(&model);
    let norm = |tape: &mut Tape, update: u64, passes: [u64; 3]| {
        let mode =
            |number: u64, _| Some(Mode::training(rng::key(config.seed, "dropout", &[update, passes[number as usize]])));
        accumulate(tape, &batches, &config.loss(0), false, mode).unwrap();
        tape.reduce(Counts { tokens, ..Counts::default() }).unwrap();
        tape.decide(0.0).unwrap();
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
    let config = TrainConfig { save_every: Interval::Updates(39), ..config() };
    let (left, _) = run(1, &config, Trouble { poisoned: &[39], ..Trouble::default() });
    let saved: Vec<_> = left.saved.iter().rev().map(|of| (of.state.step, of.state.health.skipped)).take(2).collect();
    assert_eq!((left.end, saved), (Ok(StopReason::Epochs), vec![(39, 1), (39, 0)]));
}

/// A lower loss counts as an improvement, even if an earlier model has the higher score and stays the best.
#[test]
fn a_loss_that_still_falls_does_not_end_training() {
    let losses = [6.0, 5.8, 5.7, 5.6, 5.65, 5.6, 5.9, 5.6, 5.6, 5.7];
    let scores = [0.6, 0.2, 0.3, 0.1, 0.3, 0.5, 0.7, 0.2, 0.3, 0.2];
    let found: Vec<[f64; 2]> = scores.into_iter().zip(losses).map(|(score, loss)| [score, loss]).collect();
    // Validations are after every fourth update; the seventh has a higher score.
    for (patience, validations, best) in [(2, 6, 4), (3, 10, 28)] {
        let (left, _) = run(1, &config(), Trouble { found: &found, patience, ..Trouble::default() });
        let entries = left.log.iter().filter(|entry| entry["event"] == "valid");
        let stale: Vec<u64> = entries.map(|entry| entry["stale"].as_u64().unwrap()).collect();
        assert_eq!(stale, [0, 0, 0, 0, 1, 2, 0, 1, 2, 3][..validations]);
        assert_eq!(left.saved.last().unwrap().state.best.as_ref().unwrap().step, best);
    }
}

/// After the last update of each, or the next one if that is skipped; a later one is not queued ahead.
#[test]
fn checkpoints_come_when_epochs_are_complete() {
    let regular = |left: &Left| -> Vec<u64> {
        let regular = left.saved.iter().filter(|saved| saved.state.regular == Some(true));
        regular.map(|saved| saved.state.step).collect()
    };
    for depth in [1, 3] {
        let run = |epochs, accumulate, poisoned: &[u64]| {
            let config = TrainConfig { save_every: Interval::Epochs(epochs), accumulate, ..config() };
            run(depth, &config, Trouble { poisoned, ..Trouble::default() }).0
        };
        assert_eq!(regular(&run(1, 1, &[])), [EPOCH, 2 * EPOCH, 3 * EPOCH, 4 * EPOCH]);
        assert_eq!(regular(&run(2, 1, &[])), [2 * EPOCH, 4 * EPOCH]);
        // Updates of three batches end beyond the epochs.
        assert_eq!(regular(&run(1, 3, &[])), [4, 7, 10, 14]);
        assert_eq!(regular(&run(1, 1, &[9])), [10, 19, 29, 39]);
    }
}
