//! Trying again what may succeed a moment later.

use std::time::{Duration, Instant};

use crate::console::info;
use crate::error::{Error, Result};

/// Tries, and the pause after the first of them, which doubles.
pub(super) const TRIES: usize = 5;
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause a server may ask for: the hub counts requests over five minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A user who waits for longer is told why.
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
    let mut pause = PAUSE;
    for left in (0..TRIES).rev() {
        let began = Instant::now();
        match attempt() {
            Ok(value) => return Ok(value),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Passing(error, _)) if left == 0 => return Err(after_tries(error)),
            Err(Failure::Passing(error, asked)) => {
                wait(asked.unwrap_or(pause), began, &error, TRIES - left + 1);
                pause *= 2;
            }
        }
    }
    Err(Error::failure("the hub was not asked"))
}

/// The error that ended the last of all tries.
pub(super) fn after_tries(error: Error) -> Error {
    error.context(format_args!("after {TRIES} tries"))
}

/// Waits before try `number`, but not longer than the longest pause. `error` ended the one that `began` then.
pub(super) fn wait(pause: Duration, began: Instant, error: &Error, number: usize) {
    let pause = pause.min(LONGEST_PAUSE);
    if pause.max(began.elapsed()) >= LONG {
        info(format_args!("{}; try {number} of {TRIES} is in {} s", error.what(), pause.as_secs()));
    }
    std::thread::sleep(pause);
}
