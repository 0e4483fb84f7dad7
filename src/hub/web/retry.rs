//! Repeats actions that may succeed a moment later.

use std::time::{Duration, Instant};

use crate::console::info;
use crate::error::{Error, Result};
use crate::limits::HUB_ANSWER_TIME;

/// Tries, and the pause after the first of them, which doubles.
pub(super) const TRIES: usize = 5;
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause a server may ask for: the hub counts requests over five minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A longer wait gets a message with its reason.
const LONG: Duration = Duration::from_secs(5);

/// Why a try failed.
pub(super) enum Failure {
    /// Another try would fail as well.
    Final(Error),
    /// Another try may succeed, after the pause that the server asks for, if it does.
    Passing(Error, Option<Duration>),
}

/// Tries again after passing failures.
pub(super) fn retrying<T>(mut attempt: impl FnMut() -> std::result::Result<T, Failure>) -> Result<T> {
    let (mut pause, mut tries, mut spent) = (PAUSE, 0, Duration::ZERO);
    loop {
        let began = Instant::now();
        let (error, asked) = match attempt() {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error, asked)) => (error, asked),
        };
        tries += 1;
        spent += began.elapsed();
        // One that uses up its time again and again is not there.
        if tries == TRIES || spent >= 2 * HUB_ANSWER_TIME {
            return Err(after_tries(error, tries));
        }
        wait(asked.unwrap_or(pause), began, &error, tries + 1);
        pause *= 2;
    }
}

/// The error that ended the last of all tries.
pub(super) fn after_tries(error: Error, tries: usize) -> Error {
    error.context(format_args!("after {tries} tries"))
}

/// Waits before try `number`, but not longer than the longest pause. `error` ended the one that `began` then.
pub(super) fn wait(pause: Duration, began: Instant, error: &Error, number: usize) {
    let pause = pause.min(LONGEST_PAUSE);
    if pause.max(began.elapsed()) >= LONG {
        info(format_args!("{}; try {number} of {TRIES} is in {} s", error.what(), pause.as_secs()));
    }
    std::thread::sleep(pause);
}
