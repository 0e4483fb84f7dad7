//! What a run reports: `log.jsonl`, one JSON object a line, and a progress bar (or plain lines) on stderr.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, ProgressBar};
use rustix::fs::OFlags;
use serde_json::Value;

use crate::console::{Counted, info, message, progress_bar};
use crate::error::{Error, Result};
use crate::explanation::Explanation;
use crate::file::{self, Folder, Staged};
use crate::notice::Notice;

/// The log in a run directory.
pub const LOG_FILE: &str = "log.jsonl";
/// What it is called while it is written.
pub const NEW_LOG: &str = ".log.jsonl.new";

/// Shows the entries of a log in another form. If it fails, there is only a warning: the log has everything, and it
/// begins anew at the next validation.
pub trait Watcher {
    /// The run goes on after these entries; others that were shown before no longer count.
    fn begin(&mut self, entries: &[Value]) -> Result<()>;

    /// There is another entry.
    fn entry(&mut self, entry: &Value) -> Result<()>;

    /// The sample translations of a validation, whose entry comes next.
    fn samples(&mut self, _samples: Samples) -> Result<()> {
        Ok(())
    }
}

/// Sample translations, explained.
#[derive(Clone, Copy)]
pub struct Samples<'a> {
    /// After this update.
    pub update: u64,
    /// Whether they are the final model's.
    pub is_final: bool,
    /// The translations.
    pub explained: &'a [Explanation],
}

/// The log of a run.
pub struct Log {
    /// None for a rank beside rank 0, whose log nobody reads.
    target: Option<Target>,
    /// Entries that could not be written yet.
    pending: Vec<u8>,
    /// Whether a warning has said so.
    is_failing: bool,
    bar: Option<ProgressBar>,
    /// The last update, if it is known.
    total: Option<u64>,
    /// When this session began, and after which update.
    began: (Instant, u64),
    watchers: Vec<Watched>,
}

/// Where the log is written.
struct Target {
    file: File,
    path: PathBuf,
    /// The run directory; another may come to lie at its path.
    directory: Folder,
}

/// A watcher, and whether it has failed. A failed one gets all entries again at the next validation.
struct Watched {
    watcher: Box<dyn Watcher>,
    has_failed: bool,
}

/// How far a run has come.
#[derive(Clone, Copy, Default)]
pub struct Progress {
    /// Updates made.
    pub step: u64,
    /// Updates skipped, including those before it went back to a checkpoint.
    pub skipped: u64,
    /// How often it has gone back to a checkpoint.
    pub returns: u64,
}

/// Whether an entry has the scores of the final model on a set of `data.monitor`; those of validations during training
/// have the same event.
pub fn is_of_final_model(entry: &Value) -> bool {
    entry["event"] == "monitor" && entry["model"].is_string()
}

impl Progress {
    /// Whether an entry of the log is about what was done until then. Skipped updates stay known when a run goes back:
    /// they are compared by their count, not by the number of the update.
    fn covers(self, entry: &Value) -> bool {
        let is_within = |key: &str, most: u64| entry[key].as_u64().is_none_or(|number| number <= most);
        match entry["event"].as_str() {
            Some("skip") => is_within("skipped", self.skipped),
            Some("back") => is_within("returns", self.returns),
            // The end will come again too.
            Some("final" | "candidate") => false,
            Some("monitor") if is_of_final_model(entry) => false,
            _ => is_within("update", self.step),
        }
    }
}

impl Log {
    /// Opens `log.jsonl` in a run directory. A run that begins, without `resumed_at`, has an empty log. On resume,
    /// entries of what came after `resumed_at` are dropped: it will be done again, and each update stands in the
    /// log once. `total` is the last update, if it is known.
    pub fn open(
        run: &Path,
        resumed_at: Option<Progress>,
        total: Option<u64>,
        watchers: Vec<Box<dyn Watcher>>,
    ) -> Result<Self> {
        Self::begin(Continuation::prepare(run, resumed_at)?, run, resumed_at, total, watchers)
    }

    /// As [`Self::open`], with what was prepared for it.
    pub fn begin(
        continuation: Continuation,
        run: &Path,
        resumed_at: Option<Progress>,
        total: Option<u64>,
        watchers: Vec<Box<dyn Watcher>>,
    ) -> Result<Self> {
        let path = run.join(LOG_FILE);
        let mut watchers: Vec<_> = watchers.into_iter().map(|watcher| Watched { watcher, has_failed: false }).collect();
        let (file, directory) = continuation.persist(&path, &mut watchers)?;
        // Where no bar can be drawn, there are plain lines.
        let first = resumed_at.map_or(0, |progress| progress.step);
        let bar = Some(bar(total, first)).filter(|bar| !bar.is_hidden());
        Ok(Self {
            target: Some(Target { file, path, directory }),
            pending: Vec::new(),
            is_failing: false,
            bar,
            total,
            began: (Instant::now(), first),
            watchers,
        })
    }

    /// A log that writes and shows nothing but damage.
    pub fn silent() -> Self {
        let began = (Instant::now(), 0);
        Self {
            target: None,
            pending: Vec::new(),
            is_failing: false,
            bar: None,
            total: None,
            began,
            watchers: Vec::new(),
        }
    }

    /// Drops what came after `progress`: it will be done again.
    pub fn rewind(&mut self, progress: Progress) -> Result<()> {
        self.complete()?;
        let Some(target) = &mut self.target else { return Ok(()) };
        let continuation = Continuation::prepare(file::folder_of(&target.path), Some(progress))?;
        (target.file, target.directory) = continuation.persist(&target.path, &mut self.watchers)?;
        Ok(())
    }

    /// Appends one entry. If it cannot be written, it waits for the next one, or for [`Log::complete`]: training does
    /// not end for it.
    pub fn entry(&mut self, entry: &Value) {
        if self.target.is_none() {
            return;
        }
        self.pending.extend_from_slice(format!("{entry}\n").as_bytes());
        match self.write() {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                if let Some(Target { path, .. }) = &self.target {
                    self.damage(&format!("note: {} is written again, and is complete", path.display()));
                }
            }
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                self.damage(&format!(
                    "warning: {error}\n  training goes on; entries are kept in memory until they can be written"
                ));
            }
            _ => {}
        }
        tell(&mut self.watchers, |watcher| watcher.entry(entry));
        if matches!(entry["event"].as_str(), Some("valid" | "final")) {
            self.begin_again();
        }
    }

    /// Writes what could not be written, trying for six seconds.
    ///
    /// # Errors
    /// It still cannot be written.
    pub fn complete(&mut self) -> Result<()> {
        for seconds in [1, 5] {
            if self.write().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_secs(seconds));
        }
        self.write()
    }

    /// Writes all entries that are pending, or none.
    fn write(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        match self.follow()? {
            Some(Notice::Damage(text)) => self.damage(&format!("warning: {text}")),
            Some(notice) => self.line(&notice.to_string()),
            None => {}
        }
        let Some(Target { file, path, .. }) = &mut self.target else { return Ok(()) };
        let before = file.metadata().map(|metadata| metadata.len());
        let written = file.write_all(&self.pending).map_err(|e| Error::io("write the log", path, e));
        match (&written, before) {
            (Ok(()), _) => self.pending.clear(),
            // Half a line would hide the next one.
            (Err(_), Ok(length)) => drop(file.set_len(length)),
            (Err(_), Err(_)) => {}
        }
        written
    }

    /// If the log is not in the run directory any more, goes on with the file that is there or, if there is none,
    /// writes it there again. Returns what to tell of it.
    fn follow(&mut self) -> Result<Option<Notice>> {
        let Some(Target { file, path, directory }) = &mut self.target else { return Ok(None) };
        // Where the run has gone, or another has come in its place, the next save tells of it; until then its log is
        // the open file.
        if directory.holds(file, LOG_FILE) || !directory.is_in_place() {
            return Ok(None);
        }
        match std::fs::symlink_metadata(&*path) {
            // It might have no end, or nobody who reads it.
            Ok(metadata) if !metadata.is_file() => {
                let error = std::io::Error::other("not a regular file");
                Err(Error::io("write the log", path, error))
            }
            Ok(_) => {
                *file = directory.append(LOG_FILE).map_err(|e| Error::io("write the log", &*path, e))?;
                let ends = ends_a_line(file).map_err(|e| Error::io("read the log", &*path, e))?;
                if !ends {
                    // Otherwise the next entry would be lost with what is there.
                    writeln!(file).map_err(|e| Error::io("write the log", &*path, e))?;
                }
                let text = format!("{} was replaced: going on with the file that is there", path.display());
                Ok(Some(Notice::Note(text)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let mut lines = Vec::new();
                let read = file.rewind().and_then(|()| file.read_to_end(&mut lines));
                read.map_err(|e| Error::io("read the log", &*path, e))?;
                *file = replace(directory, &lines)?;
                Ok(Some(Notice::Damage(format!("{} was gone, and has been written again", path.display()))))
            }
            // It may be there again when the next entry comes.
            Err(_) => Ok(None),
        }
    }

    /// Shows sample translations to the watchers; their explanations are in no entry.
    pub fn samples(&mut self, samples: Samples) {
        if !samples.explained.is_empty() {
            tell(&mut self.watchers, |watcher| watcher.samples(samples));
        }
    }

    /// Tells watchers that have failed everything again.
    fn begin_again(&mut self) {
        let Some(target) = &self.target else { return };
        for watched in self.watchers.iter_mut().filter(|watched| watched.has_failed) {
            // A warning has said that it failed.
            let entries = entries(&target.path).ok();
            watched.has_failed = entries.is_none_or(|entries| watched.watcher.begin(&entries).is_err());
        }
    }

    /// Shows one line to the user, above the progress bar, unless the program is to be quiet.
    pub fn line(&self, text: &str) {
        if self.target.is_none() {
            return;
        }
        match &self.bar {
            // With line breaks: the bar pads lines to the width of the terminal instead.
            Some(bar) => bar.suspend(|| info(text)),
            None => info(text),
        }
    }

    /// Shows a line about what is lost, such as a damaged file or updates that are undone; also if the program is to be
    /// quiet.
    pub fn damage(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| message(text)),
            None => message(text),
        }
    }

    /// Shows how far training is; without a terminal only lines marked `important` are printed.
    pub fn progress(&self, step: u64, text: String, important: bool) {
        match &self.bar {
            Some(bar) => {
                bar.set_position(step);
                bar.set_message(text);
            }
            None if important => {
                let (instant, first) = self.began;
                self.line(&format!("update {step}: {text}, {}", times(instant.elapsed(), step, first, self.total)));
            }
            None => {}
        }
    }

    /// Removes the progress bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How long a session that began after update `first` has lasted, and how long it will until update `total`, at the
/// same rate.
fn times(elapsed: Duration, step: u64, first: u64, total: Option<u64>) -> String {
    let done = step.saturating_sub(first);
    let left = total.map(|total| total.saturating_sub(step)).filter(|left| done > 0 && *left > 0);
    let left = left.and_then(|left| {
        // A limit that will never be reached may be too far for a duration.
        Duration::try_from_secs_f64(elapsed.as_secs_f64() / done as f64 * left as f64).ok()
    });
    let left = left.map_or(String::new(), |left| format!(", about {} left", FormattedDuration(left)));
    format!("{}{left}", FormattedDuration(elapsed))
}

/// Calls all watchers but those that have failed.
fn tell(watchers: &mut [Watched], tell: impl Fn(&mut dyn Watcher) -> Result<()>) {
    for watched in watchers.iter_mut().filter(|watched| !watched.has_failed) {
        if let Err(error) = tell(watched.watcher.as_mut()) {
            watched.has_failed = true;
            message(format_args!(
                "warning: {error}\n  training goes on without it, and tries again at the next validation; log.jsonl \
                 has the same information"
            ));
        }
    }
}

/// The log of a run that goes on, made beside the old one, which stays as it is.
pub struct Continuation {
    directory: Folder,
    kept: Vec<Value>,
    staged: Staged,
}

impl Continuation {
    /// Reads the log up to `progress`, and writes what is kept of it beside it; without it, nothing.
    ///
    /// # Errors
    /// The log cannot be read, or nothing can be written there.
    pub fn prepare(run: &Path, progress: Option<Progress>) -> Result<Self> {
        let path = run.join(LOG_FILE);
        let kept = entries_until(&path, progress)?;
        let lines: String = kept.iter().map(|entry| format!("{entry}\n")).collect();
        let directory = Folder::open(run).map_err(|e| Error::io("open the run directory", run, e))?;
        let staged = directory.stage(LOG_FILE, NEW_LOG).and_then(|staged| staged.filled(lines.as_bytes()));
        Ok(Self { staged: staged.map_err(|e| Error::io("write the log", &path, e))?, kept, directory })
    }

    /// Puts it in the place of the log.
    fn persist(self, path: &Path, watchers: &mut [Watched]) -> Result<(File, Folder)> {
        let file = self.staged.persist().and_then(appending).map_err(|e| Error::io("write the log", path, e))?;
        tell(watchers, |watcher| watcher.begin(&self.kept));
        Ok((file, self.directory))
    }
}

/// Replaces the log. Returns the new one.
fn replace(directory: &Folder, lines: &[u8]) -> Result<File> {
    let replaced = directory.replace(LOG_FILE, NEW_LOG, lines).and_then(appending);
    replaced.map_err(|e| Error::io("write the log", directory.path().join(LOG_FILE), e))
}

/// Moves a file's position to its end, so that what is written is appended.
fn appending(file: File) -> std::io::Result<File> {
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// Whether a file is empty or ends with a newline.
fn ends_a_line(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The entries of a log up to `progress`.
fn entries_until(path: &Path, progress: Option<Progress>) -> Result<Vec<Value>> {
    let Some(progress) = progress else { return Ok(Vec::new()) };
    match entries(path) {
        Ok(entries) => Ok(entries.into_iter().filter(|entry| progress.covers(entry)).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io("read the log", path, e)),
    }
}

/// The entries of a log. Damaged lines are left out with a warning, except for the last one, which a killed run may
/// have torn.
///
/// # Errors
/// The file cannot be read, or is not a regular one.
pub fn entries(path: &Path) -> std::io::Result<Vec<Value>> {
    let bytes = file::read_own(path)?;
    let (mut log, mut damaged) = (Vec::new(), None);
    let mut lines = (1..).zip(bytes.split(|byte| *byte == b'\n')).peekable();
    while let Some((number, line)) = lines.next() {
        match serde_json::from_slice::<Value>(line) {
            _ if line.is_empty() => {}
            Ok(entry) if entry.is_object() => log.push(entry),
            _ if lines.peek().is_none() => {}
            _ => damaged.get_or_insert((number, 0)).1 += 1,
        }
    }
    if let Some((first, count)) = damaged {
        let (path, are) = (path.display(), if count == 1 { "line of the log is" } else { "lines of the log are" });
        message(format_args!("warning: {count} damaged {are} left out; the first is {path}:{first}"));
    }
    Ok(log)
}

fn bar(total: Option<u64>, start: u64) -> ProgressBar {
    let bar = progress_bar(Counted::Updates, total);
    bar.set_position(start);
    bar.reset_eta();
    // It ticks on a thread of its own, and panics if the system allows no more of them.
    if !bar.is_hidden() && std::thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok()) {
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

#[cfg(test)]
mod tests;
