//! Threads of this process as the ranks of a run.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use mt::error::{Error, Result};
use mt::ranks::{Communicator, OnComplete, Ranks};

/// How long a rank waits for the others. They are out of step if one does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank adds to a collective operation.
#[derive(Clone, Default)]
struct Share {
    floats: Vec<f32>,
    numbers: Vec<f64>,
    bytes: Vec<u8>,
}

/// What an operation makes of all shares.
type Combined = Vec<Share>;

/// What all ranks see of a collective operation.
#[derive(Default)]
struct Meeting {
    shares: Vec<Option<Share>>,
    /// What was made of them, once all are there.
    made: Option<Combined>,
    /// How many ranks have taken it.
    taken: usize,
}

/// Where complete gradients begin, and these.
pub type Complete = (usize, Vec<f32>);

/// A rank that is a thread of this process.
pub struct Thread {
    ranks: Ranks,
    /// The gradients that are said to be complete.
    complete: Arc<Mutex<Option<Complete>>>,
    /// Sums of which a part was complete before.
    ahead: Cell<usize>,
    meeting: Arc<(Mutex<Meeting>, Condvar)>,
}

impl Thread {
    /// Waits until `is_ready`, and then calls `f`.
    fn when<R>(&self, is_ready: impl Fn(&Meeting) -> bool, f: impl FnOnce(&mut Meeting) -> R) -> Result<R> {
        let (meeting, changed) = &*self.meeting;
        let (mut meeting, waited) = changed
            .wait_timeout_while(meeting.lock().unwrap(), PATIENCE, |meeting| !is_ready(meeting))
            .map_err(|_| Error::failure("another rank has panicked"))?;
        if waited.timed_out() {
            return Err(Error::failure(format!("rank {} waits in vain for another", self.ranks.rank)));
        }
        let result = f(&mut meeting);
        changed.notify_all();
        Ok(result)
    }
}

impl Thread {
    /// In how many sums this rank said beforehand that gradients are complete.
    pub fn sums_ahead(&self) -> usize {
        self.ahead.get()
    }

    /// Gives this rank's share, and returns what `combine` makes of all of them.
    fn meet(&self, share: Share, combine: impl FnOnce(Vec<Share>) -> Combined) -> Result<Combined> {
        let Ranks { rank, count } = self.ranks;
        // What the operation before has made is there until all ranks have it.
        self.when(
            |meeting| meeting.made.is_none(),
            |meeting| {
                meeting.shares.resize(count, None);
                meeting.shares[rank] = Some(share);
                if meeting.shares.iter().all(Option::is_some) {
                    meeting.made = Some(combine(meeting.shares.drain(..).flatten().collect()));
                }
            },
        )?;
        self.when(
            |meeting| meeting.made.is_some(),
            |meeting| {
                let made = meeting.made.clone().expect("it is ready");
                meeting.taken += 1;
                if meeting.taken == count {
                    (meeting.made, meeting.taken) = (None, 0);
                }
                made
            },
        )
    }
}

impl Communicator for Thread {
    fn ranks(&self) -> Ranks {
        self.ranks
    }

    fn sum(&self, gradients: &mut [f32], numbers: &mut [f64]) -> Result<()> {
        if let Some((start, complete)) = self.complete.lock().unwrap().take() {
            assert_eq!(gradients[start..], complete, "gradients were not complete");
            self.ahead.set(self.ahead.get() + 1);
        }
        let share = Share { floats: gradients.to_vec(), numbers: numbers.to_vec(), bytes: Vec::new() };
        let made = self.meet(share, |shares| {
            let sum = shares.into_iter().reduce(|mut sum, share| {
                let lengths = |share: &Share| (share.floats.len(), share.numbers.len());
                assert_eq!(lengths(&sum), lengths(&share), "ranks out of step");
                sum.floats.iter_mut().zip(share.floats).for_each(|(sum, x)| *sum += x);
                sum.numbers.iter_mut().zip(share.numbers).for_each(|(sum, x)| *sum += x);
                sum
            });
            vec![sum.expect("there is a rank")]
        })?;
        gradients.copy_from_slice(&made[0].floats);
        numbers.copy_from_slice(&made[0].numbers);
        Ok(())
    }

    fn sum_ahead(&self) -> Option<OnComplete> {
        let complete = self.complete.clone();
        Some(Arc::new(move |start, gradients| {
            let mut complete = complete.lock().unwrap();
            if let Some((before, earlier)) = complete.take() {
                assert!(start <= before && gradients[before..] == earlier, "gradients were not complete");
            }
            *complete = Some((start, gradients[start..].to_vec()));
        }))
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.meet(Share { bytes: bytes.to_vec(), ..Share::default() }, |shares| shares)?;
        Ok(all.into_iter().map(|share| share.bytes).collect())
    }

    fn broadcast(&self, values: &mut [f32]) -> Result<()> {
        let all = self.meet(Share { floats: values.to_vec(), ..Share::default() }, |shares| shares)?;
        values.copy_from_slice(&all[0].floats);
        Ok(())
    }
}

/// Calls `f` as each of `count` ranks; returns what they return, in their order.
pub fn on_threads<R: Send>(count: usize, f: impl Fn(Thread) -> R + Sync) -> Vec<R> {
    let meeting: Arc<(Mutex<Meeting>, Condvar)> = Arc::default();
    let f = &f;
    thread::scope(|scope| {
        let start = |rank| {
            let (ranks, meeting) = (Ranks { rank, count }, meeting.clone());
            let thread = Thread { ranks, complete: Arc::default(), ahead: Cell::default(), meeting };
            scope.spawn(move || f(thread))
        };
        let ranks: Vec<_> = (0..count).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
