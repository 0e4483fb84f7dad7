//! Data-parallel training on GPUs, with threads of this process as the ranks: through the host, and with an emulated
//! NCCL.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use candle_core::DType;
use mt::gpu::nccl::{Failed, Library, Nccl, OnFailure, Part};
use mt::gpu::queue::{Number, Queue};
use mt::gpu::{Engine, Others};
use mt::model::ModelConfig;
use mt::ops::loss::Targets;
use mt::ops::optimizer::{Counts, Outcome};
use mt::ops::sublayer::NormPlacement;
use mt::ops::{Implementation, Mode};
use mt::ranks::{Communicator, Ranks};
use mt::train::backend::{Backend, OnGpu};

use crate::common::emulator::{EmulatedNccl, Emulator, device, on_emulator};
use crate::common::threads::{Thread, on_threads};
use crate::common::{every_option, random_sequences, relative_error, skipped, with_dropouts};
use crate::{V, error_by_norm, model};

/// Micro-batches of an update.
const MICRO_BATCHES: u64 = 4;

/// What an update has come to: its outcome, and the gradients of all ranks.
type Update = (Outcome, Vec<f32>);

/// Two updates, of which a rank computes its own micro-batches; the second one is returned. From GPU to GPU, gradients
/// travel in parts that are hardly larger than one sub-layer's.
fn updates(ranks: Ranks, (others, queue): (Option<Others>, Arc<dyn Queue>), compute: DType) -> Update {
    updates_of(&with_dropouts(), ranks, (others, queue), compute)
}

fn updates_of(
    config: &ModelConfig,
    ranks: Ranks,
    (others, queue): (Option<Others>, Arc<dyn Queue>),
    compute: DType,
) -> Update {
    let model = model(config, &device().0);
    let engine = Engine::new(&model, queue, compute).unwrap();
    let mut backend = OnGpu::new(engine).with_others(others, 1).unwrap();
    // The text of a micro-batch depends on its number alone, its dropout on the update, too.
    let pass = |backend: &mut OnGpu, update: u64, number: u64| {
        let sequences = |lengths: &[u32], what| random_sequences(lengths, V, &format!("{what} {number}"));
        let (source, target) = (sequences(&[7, 3, 12], "source"), sequences(&[5, 9, 2], "target"));
        let labels = sequences(&[5, 9, 2], "labels").ids;
        let targets = Targets { labels, smoothing: 0.1, ..Targets::default() };
        let mode = Mode { training: Some(MICRO_BATCHES * update + number), implementation: Implementation::Fused };
        backend.pass(&source, &target, &targets, &mode).unwrap();
    };
    // As the rehearsal of a run: a pass that is not reduced.
    backend.begin().unwrap();
    pass(&mut backend, 7, 0);
    let mut update = |update: u64| {
        backend.begin().unwrap();
        for number in (0..MICRO_BATCHES).filter(|number| ranks.takes(*number)) {
            pass(&mut backend, update, number);
        }
        let own = (0..MICRO_BATCHES).filter(|number| ranks.takes(*number)).count() as u64;
        backend.reduce(Counts { tokens: 16 * own, pairs: 3 * own, ..Counts::default() }).unwrap();
        backend.decide(1.0).unwrap();
        let gradients = model.parameters().gradients().to_vec1().unwrap();
        (backend.outcome().unwrap(), gradients)
    };
    update(0);
    update(1)
}

/// All ranks have the same bits, which are those of one rank but for rounding.
fn assert_as_one(all: &[Update], want: &Update) {
    for (outcome, gradients) in all {
        assert_eq!((outcome, gradients), (&all[0].0, &all[0].1));
        assert!(outcome.is_made && outcome.counts == want.0.counts);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6 * b.abs();
        assert!(close(outcome.sums.smoothed, want.0.sums.smoothed) && close(outcome.sums.nll, want.0.sums.nll));
        assert!(close(outcome.gradient_norm, want.0.gradient_norm));
        let error = relative_error(gradients, &want.1);
        assert!(error < 1e-6, "{} ranks: {error}", all.len());
    }
}

#[test]
fn gradients_through_the_host_are_those_of_one_rank() {
    let want = alone(DType::F32);
    assert_eq!((want.0.counts.tokens, want.0.counts.pairs), (64, 12));
    for count in [2, 3, 4] {
        let all = on_threads(count, |thread| {
            let (ranks, others) = (thread.ranks(), Others::Host(Rc::new(thread)));
            updates(ranks, (Some(others), device().1), DType::F32)
        });
        assert_as_one(&all, &want);
    }
}

fn alone(compute: DType) -> Update {
    updates(Ranks::ALONE, (None, device().1), compute)
}

/// A rank of NCCL on this thread, whose id comes from rank 0 by way of the thread's own operations.
fn nccl(library: &'static Library, thread: &Thread, on_failure: OnFailure) -> Rc<Nccl> {
    nccl_on(device().1, library, thread, on_failure)
}

fn nccl_on(queue: Arc<dyn Queue>, library: &'static Library, thread: &Thread, on_failure: OnFailure) -> Rc<Nccl> {
    let ranks = thread.ranks();
    let own = if ranks.rank == 0 { library.id().unwrap().to_bytes() } else { Vec::new() };
    let id = mt::gpu::nccl::Id::from_bytes(&thread.gather(&own).unwrap()[0]).unwrap();
    let hosts: Vec<String> = (0..ranks.count).map(|rank| format!("host{rank}")).collect();
    Rc::new(Nccl::start(library, id, (ranks, &hosts), queue, on_failure).unwrap())
}

/// No operation may fail. A panic of this thread would not be noticed.
fn never() -> OnFailure {
    Box::new(|failed| {
        eprintln!("{}", failed.error);
        std::process::abort()
    })
}

/// With a real device, one rank of the real library, if it is installed.
#[test]
fn gradients_by_nccl_are_those_of_one_rank() {
    let is_emulated = device().0.is_cpu();
    let library = if is_emulated { Ok(EmulatedNccl::library().library) } else { Library::load() };
    let Ok(library) = library else { return skipped("gradients_by_nccl_are_those_of_one_rank", "NCCL is missing") };
    for compute in [DType::F32, DType::BF16] {
        let want = alone(compute);
        for count in if is_emulated { vec![1, 2, 4] } else { vec![1] } {
            let all = on_threads(count, |thread| {
                let queue = device().1;
                let nccl = nccl_on(queue.clone(), library, &thread, never());
                updates(thread.ranks(), (Some(Others::Device(nccl, Number::F32)), queue), compute)
            });
            assert_as_one(&all, &want);
        }
    }
}

/// The emulated NCCL ends the process if gradients change after the mark with which they are said to be complete.
#[test]
fn parts_are_added_up_as_soon_as_they_are_complete() {
    if !on_emulator("parts_are_added_up_as_soon_as_they_are_complete") {
        return;
    }
    let deep = ModelConfig { encoder_layers: 3, decoder_layers: 3, norm: NormPlacement::Pre, ..with_dropouts() };
    for (config, count) in every_option().into_iter().step_by(4).zip([2; 9]).chain([(deep, MICRO_BATCHES as usize + 1)])
    {
        let want = updates_of(&config, Ranks::ALONE, (None, device().1), DType::F32);
        let all = on_threads(count, |thread| {
            let emulator = Arc::new(Emulator::new());
            let nccl = nccl_on(emulator.clone(), EmulatedNccl::library().library, &thread, never());
            let others = Some(Others::Device(nccl, Number::F32));
            let update = updates_of(&config, thread.ranks(), (others, emulator.clone()), DType::F32);
            // In each of two updates, all sub-layers but the first; the last of five ranks has no micro-batch.
            let sublayers = 2 * config.encoder_layers + 3 * config.decoder_layers;
            let has_some = (thread.ranks().rank as u64) < MICRO_BATCHES;
            assert_eq!(emulator.early(), if has_some { 2 * (sublayers - 1) } else { 0 }, "{config:?}");
            update
        });
        assert_as_one(&all, &want);
    }
}

/// Each number is rounded to 8 significant bits, and so is each sum; losses and counts are not.
#[test]
fn gradients_that_travel_in_bf16_are_rounded() {
    if !on_emulator("gradients_that_travel_in_bf16_are_rounded") {
        return;
    }
    let want = alone(DType::F32);
    let all = on_threads(2, |thread| {
        let queue = device().1;
        let nccl = nccl_on(queue.clone(), EmulatedNccl::library().library, &thread, never());
        updates(thread.ranks(), (Some(Others::Device(nccl, Number::Bf16)), queue), DType::F32)
    });
    assert_eq!(all[0], all[1]);
    let (outcome, gradients) = &all[0];
    assert!(gradients.iter().all(|gradient| gradient.to_bits() & 0xffff == 0));
    let error = error_by_norm(gradients, &want.1);
    assert!((1e-4..3e-3).contains(&error), "{error}");
    assert!((outcome.sums.nll - want.0.sums.nll).abs() < 1e-6 * want.0.sums.nll);
    assert_eq!(outcome.counts, want.0.counts);
}

#[test]
fn host_numbers_pass_through_the_devices() {
    if !on_emulator("host_numbers_pass_through_the_devices") {
        return;
    }
    on_threads(3, |thread| {
        let nccl = nccl(EmulatedNccl::library().library, &thread, never());
        let rank = thread.ranks().rank;
        assert_eq!(nccl.ranks(), thread.ranks());
        // More than the emulator moves at once.
        let count = 200_000;
        let mut gradients: Vec<f32> = (0..count).map(|i| (i * (rank + 1)) as f32).collect();
        let mut numbers = [0.1 * rank as f64, 1.0];
        nccl.sum(&mut gradients, &mut numbers).unwrap();
        assert!(gradients.iter().enumerate().all(|(i, sum)| *sum == (i * 6) as f32));
        assert_eq!(numbers, [0.1 + 0.2, 3.0]);
        // Of a flag alone.
        let mut flag = [f64::from(rank == 2)];
        nccl.sum(&mut [], &mut flag).unwrap();
        assert_eq!(flag, [1.0]);
        // Of different lengths, and of none.
        let own = vec![rank as u8; 1000 * rank];
        let all: Vec<Vec<u8>> = (0..3).map(|rank| vec![rank as u8; 1000 * rank]).collect();
        assert_eq!(nccl.gather(&own).unwrap(), all);
        assert_eq!(nccl.gather(&[]).unwrap(), vec![Vec::<u8>::new(); 3]);
        let mut values: Vec<f32> = (0..count).map(|i| if rank == 0 { i as f32 } else { -1.0 }).collect();
        nccl.broadcast(&mut values).unwrap();
        assert!(values.iter().enumerate().all(|(i, value)| *value == i as f32));
    });
}

/// The rank that comes last waits the least.
#[test]
fn the_time_that_ranks_wait_is_known_by_rank() {
    use std::time::Duration;

    if !on_emulator("the_time_that_ranks_wait_is_known_by_rank") {
        return;
    }
    let idle = on_threads(2, |thread| {
        let nccl = nccl(EmulatedNccl::library().library, &thread, never());
        let (_, queue) = device();
        let [gradients, numbers] = [8, 8].map(|bytes| queue.allocate(bytes).unwrap());
        queue.upload(&1.5f64.to_le_bytes(), numbers).unwrap();
        assert_eq!(nccl.idle(), []);
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(if thread.ranks().rank == 1 { 20 } else { 1 }));
            queue.clear(gradients, 8).unwrap();
            let part = Part { at: gradients, count: 2, complete: None };
            nccl.sum_on_device(&[part], Number::F32, (numbers, 1)).unwrap();
        }
        let idle = nccl.idle();
        assert_eq!(nccl.idle(), []);
        idle
    });
    assert_eq!(idle[0], idle[1]);
    assert_eq!([&idle[0][0].host, &idle[0][1].host], ["host0", "host1"]);
    assert!(idle[0][0].share > idle[0][1].share, "{:?}", idle[0]);
}

/// Runs two ranks; returns what the thread that watches NCCL said on each.
fn failures(run: impl Fn(&Nccl, usize) + Sync, fails: impl Fn(usize) -> Option<u32> + Sync) -> Vec<String> {
    let library = EmulatedNccl::library();
    on_threads(2, |thread| {
        let said = Arc::new(Mutex::new(String::new()));
        let rank = thread.ranks().rank;
        let failing = fails(rank);
        failing.iter().for_each(|after| library.fails_after(*after));
        let on_failure = {
            let said = said.clone();
            Box::new(move |failed: &Failed| {
                assert_eq!(failed.is_elsewhere, failed.error.to_string().contains("remote"));
                *said.lock().unwrap() = failed.error.to_string();
            })
        };
        let nccl = nccl(library.library, &thread, on_failure);
        run(&nccl, rank);
        // It asks regularly.
        let since = std::time::Instant::now();
        while said.lock().unwrap().is_empty() && since.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        said.lock().unwrap().clone()
    })
}

#[test]
fn an_operation_that_fails_is_noticed_on_all_ranks() {
    if !on_emulator("an_operation_that_fails_is_noticed_on_all_ranks") {
        return;
    }
    let sums = |nccl: &Nccl, _: usize| {
        for _ in 0..3 {
            nccl.sum(&mut [1.0], &mut [1.0]).unwrap();
        }
    };
    let said = failures(sums, |rank| (rank == 1).then_some(3));
    assert!(said[1].contains("NCCL failed at an operation: unhandled system error"), "{}", said[1]);
    assert!(said[0].contains("remote process exited"), "{}", said[0]);
    assert!(said[0].contains("NCCL_DEBUG=WARN"), "{}", said[0]);
}

#[test]
fn ranks_that_are_out_of_step_fail() {
    if !on_emulator("ranks_that_are_out_of_step_fail") {
        return;
    }
    let said = failures(
        |nccl, rank| match rank {
            0 => nccl.sum(&mut [1.0], &mut []).unwrap(),
            _ => nccl.broadcast(&mut [1.0]).unwrap(),
        },
        |_| None,
    );
    assert!(said.iter().any(|said| said.contains("invalid usage")), "{said:?}");
}

#[test]
fn a_library_that_is_missing_or_another_is_named() {
    let error = Library::load_from("libnothing.so.2", &[]).err().unwrap().to_string();
    assert!(
        error.contains("NCCL could not be loaded: libnothing.so.2") && error.contains("nvidia-nccl-cu13"),
        "{error}"
    );
    let other = if cfg!(target_os = "macos") { "libSystem.dylib" } else { "libc.so.6" };
    let error = Library::load_from(other, &[]).err().unwrap().to_string();
    assert!(error.contains(" lacks a function of NCCL"), "{error}");
    assert!(mt::gpu::nccl::Id::from_bytes(&[0; 3]).is_err());
}
