//! How much of its input a command has answered, which it says if a signal ends it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::signals;
use crate::console::message;
use crate::error::{Error, Result};

/// How long a signal waits for results that are being written: a reader that does not read must not stop it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The lines of an input whose results are written.
#[derive(Clone, Default)]
pub struct Written {
    lines: Arc<AtomicUsize>,
    /// Held while results are written.
    writing: Arc<Mutex<()>>,
    /// Whether an output that fails is cut back to its last whole results: [`Output`] does so with a file.
    ///
    /// [`Output`]: super::output::Output
    is_cut_back: bool,
}

impl Written {
    /// Begins to count. SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU now end the process between two writings, and how many lines `output` holds the
    /// results of is said.
    ///
    /// # Errors
    /// The system does not let the process listen for signals.
    pub fn watch(output: Option<&Path>, progress: ProgressBar) -> Result<Self> {
        let file = output.filter(|path| *path != Path::new("-"));
        let is_cut_back = file.is_some_and(|path| std::fs::metadata(path).map_or(true, |metadata| metadata.is_file()));
        let written = Self { is_cut_back, ..Self::default() };
        let watched = written.clone();
        let output = file.unwrap_or(Path::new("stdout")).to_path_buf();
        signals::at_the_end(move |is_terminated| {
            let since = Instant::now();
            // Once it has the lock it keeps it, so that nothing more is written.
            let mut is_between = false;
            while !is_between && since.elapsed() < PATIENCE {
                is_between = watched.writing.try_lock().map(std::mem::forget).is_ok();
                if !is_between {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            progress.finish_and_clear();
            let lines = watched.lines.load(Ordering::Relaxed);
            message(format_args!("error: {}", stopped(is_terminated, lines, is_between, &output)));
        })?;
        Ok(written)
    }

    /// Writes the results of this many more lines, and hands them to the system.
    ///
    /// # Errors
    /// As `write`; if the disk is full, with the number of lines whose results were written before.
    pub fn write(&self, lines: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write().map_err(|error| match self.lines.load(Ordering::Relaxed) {
            before if error.is_of_disk() && before > 0 => {
                let remove = if self.is_cut_back { "" } else { "remove what follows them and " };
                let next = before + 1;
                error.more_help(&format!(
                    "the results of {before} lines are there: to go on, {remove}begin with line {next} of the input"
                ))
            }
            _ => error,
        })?;
        self.lines.fetch_add(lines, Ordering::Relaxed);
        Ok(())
    }
}

/// What is said if the process ends after the results of this many lines were written; between two writings, or in one.
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
        let written = Written::default();
        let fails = |kind: ErrorKind| {
            let error = written.write(5, || Err(Error::io("write", "out.de", kind.into()))).unwrap_err();
            error.to_string().contains("begin with line 2001 of the input")
        };
        assert!(!fails(ErrorKind::StorageFull));
        written.write(2000, || Ok(())).unwrap();
        assert!(fails(ErrorKind::StorageFull) && !fails(ErrorKind::PermissionDenied));
    }
}
