//! Counts how much of its input a command has answered, for the message when a signal ends it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::signals;
use crate::console::{message, warning};
use crate::error::{Error, Result};

/// How long a signal waits for the writing of results: a reader that does not read must not stop it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The number of input lines with written results.
#[derive(Clone, Default)]
pub(crate) struct AnsweredLines {
    lines: Arc<AtomicUsize>,
    /// Locked during the writing of results.
    writing: Arc<Mutex<()>>,
    /// Warnings about those lines, which would otherwise be lost after a signal.
    warnings: Arc<Mutex<Vec<String>>>,
}

impl AnsweredLines {
    /// Begins to count. From now on, SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU end the process between two writings,
    /// and a message gives the number of lines with results in `output`.
    ///
    /// # Errors
    /// The system does not let the process listen for signals.
    pub(crate) fn watch(output: Option<&Path>, progress: ProgressBar) -> Result<Self> {
        let written = Self::default();
        let watched = written.clone();
        let output = output.filter(|path| *path != Path::new("-")).unwrap_or(Path::new("stdout")).to_path_buf();
        signals::at_the_end(move |is_terminated| {
            let since = Instant::now();
            // It keeps the lock, so that no more results are written.
            let mut is_between = false;
            while !is_between && since.elapsed() < PATIENCE {
                is_between = watched.writing.try_lock().map(std::mem::forget).is_ok();
                if !is_between {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            progress.finish_and_clear();
            let warnings = watched.warnings.lock().map(|mut warnings| std::mem::take(&mut *warnings));
            warnings.unwrap_or_default().into_iter().for_each(warning);
            let lines = watched.lines.load(Ordering::Relaxed);
            message(format_args!("error: {}", stopped(is_terminated, lines, is_between, &output)));
        })?;
        Ok(written)
    }

    /// Writes the results of this many more lines, and hands them to the system.
    ///
    /// # Errors
    /// As `write`.
    pub(crate) fn write(&self, lines: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write()?;
        self.lines.fetch_add(lines, Ordering::Relaxed);
        Ok(())
    }

    /// Stores the warnings for the case that a signal ends the process after these results. Call it while writing them.
    pub(crate) fn note(&self, warnings: Vec<String>) {
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    /// Adds the number of answered lines to an error of [`Self::write`]. Further results may be in the output, unless
    /// they were `taken_back`.
    pub(crate) fn how_far(&self, error: Error, taken_back: bool) -> Error {
        let lines = self.lines.load(Ordering::Relaxed);
        let next = lines + 1;
        match (lines, taken_back) {
            (0, false) if error.is_of_disk() => {
                error.more_help("the results are not complete: to go on, remove them and begin anew")
            }
            (0, _) => error,
            (_, true) => error.more_help(&format!(
                "the results of {lines} lines are there: to go on, begin with line {next} of the input"
            )),
            (_, false) if error.is_of_disk() => error.more_help(&format!(
                "the results of {lines} lines are there: to go on, remove what follows them and begin with line {next} \
                 of the input"
            )),
            (_, false) => error,
        }
    }
}

/// The message if the process ends after the results of this many lines, between two writings or during one.
fn stopped(is_terminated: bool, lines: usize, is_between: bool, output: &Path) -> Error {
    let how = if is_terminated { "terminated" } else { "interrupted" };
    let what = match lines {
        _ if !is_between => format!("{how} while results were written: those of {lines} lines are complete"),
        0 => format!("{how} before any result was written"),
        1 => format!("{how} after the result of 1 line was written"),
        _ => format!("{how} after the results of {lines} lines were written"),
    };
    let (next, remove) = (lines + 1, if is_between { "" } else { "remove what follows them and " });
    Error::stopped(is_terminated, what)
        .at(output)
        .help(format!("to go on, {remove}begin with line {next} of the input"))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_full_disk_tells_how_far_it_came() {
        let written = AnsweredLines::default();
        let says = |kind: ErrorKind, taken_back: bool| {
            let error = written.write(5, || Err(Error::io("write", "out.de", kind.into()))).unwrap_err();
            let error = written.how_far(error, taken_back).to_string();
            [" begin with line 2001 of the input", "remove what follows"].map(|says| error.contains(says))
        };
        assert_eq!(says(ErrorKind::StorageFull, true), [false, false]);
        let error = written.how_far(Error::io("write", "stdout", ErrorKind::StorageFull.into()), false);
        assert!(error.to_string().contains("remove them and begin anew"), "{error}");
        written.write(2000, || Ok(())).unwrap();
        assert_eq!(says(ErrorKind::StorageFull, true), [true, false]);
        assert_eq!(says(ErrorKind::StorageFull, false), [true, true]);
        assert_eq!(says(ErrorKind::PermissionDenied, true), [true, false]);
        assert_eq!(says(ErrorKind::PermissionDenied, false), [false, false]);
    }
}
