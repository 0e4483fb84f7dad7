//! `report.html`: the log of one run or several as a page that needs nothing but itself.
//!
//! The page is `assets/report.html`, with its style, its script and the data of the runs put in. The script draws; here
//! nothing is computed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::files::replace_file;
use super::{attention, files};
use crate::checkpoint::CONFIG_FILE;
use crate::error::{Error, Result};
use crate::explanation::temperatures;
use crate::train::log::{self, LOG_FILE, Samples, Watcher};

/// The page of a run, in its directory.
pub const FILE: &str = "report.html";

const PAGE: &str = include_str!("assets/report.html");
pub(super) const STYLE: &str = include_str!("assets/report.css");
/// What the scripts have in common; it comes first.
pub(super) const COMMON_SCRIPT: &str = include_str!("assets/common.js");
const SCRIPT: &str = include_str!("assets/report.js");

/// Most entries of training that are shown, about: more cannot be told apart, and make a page that browsers are slow with.
const MOST_ENTRIES: usize = 4000;

/// A run as the page shows it.
pub struct Run {
    name: String,
    directory: PathBuf,
    config: Map<String, Value>,
    /// What is shown of its log.
    log: Vec<Value>,
    /// Of how many entries of training two are shown; 1 where all are.
    thinning: usize,
    /// [`files::CORPUS`], null where it is not there.
    corpus: Value,
    /// [`files::ATTENTION`], null where it is not there.
    attention: Value,
}

impl Run {
    /// The run in a directory, with the entries of its log.
    ///
    /// # Errors
    /// Its configuration cannot be read.
    pub fn new(directory: &Path, log: &[Value]) -> Result<Self> {
        let file = directory.join(CONFIG_FILE);
        let text = std::fs::read_to_string(&file).map_err(|error| Error::io("read the configuration", &file, error))?;
        let config: toml::Table =
            text.parse().map_err(|error| Error::failure(format!("not TOML: {error}")).at(&file))?;
        let mut flat = Map::new();
        flatten("", &toml::Value::Table(config), &mut flat);
        let name = directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
        let [corpus, attention] = [files::CORPUS, files::ATTENTION].map(|name| files::read_json(directory, name));
        let (log, thinning) = thinned(log);
        Ok(Self { name, directory: directory.to_path_buf(), config: flat, log, thinning, corpus, attention })
    }

    /// The run in a directory, with its log there.
    ///
    /// # Errors
    /// There is no log, or it cannot be read.
    pub fn open(directory: &Path) -> Result<Self> {
        let file = directory.join(LOG_FILE);
        let log = log::entries(&file).map_err(|error| {
            Error::io("read the log of the run", &file, error).help("name a run directory, for example runs/my")
        })?;
        Self::new(directory, &log)
    }

    /// The entries of its log that are shown.
    pub fn log(&self) -> &[Value] {
        &self.log
    }

    fn json(&self, name: &str) -> Value {
        json!({
            "name": name, "directory": self.directory.to_string_lossy(), "config": self.config, "log": self.log,
            "thinning": self.thinning, "corpus": self.corpus, "attention": self.attention,
        })
    }
}

/// A log with at most about [`MOST_ENTRIES`] entries of training: of every so many the one with the largest gradient norm and
/// the last one, so that spikes stay. How many that is comes with it, 1 where all are there.
fn thinned(log: &[Value]) -> (Vec<Value>, usize) {
    let is_training = |entry: &Value| entry["event"] == "train";
    let places: Vec<usize> = (0..log.len()).filter(|&place| is_training(&log[place])).collect();
    if places.len() <= MOST_ENTRIES {
        return (log.to_vec(), 1);
    }
    let thinning = (2 * places.len()).div_ceil(MOST_ENTRIES);
    let norm = |place: &usize| log[*place]["gradient_norm"].as_f64().unwrap_or_default();
    let kept = |part: &[usize]| [part.iter().copied().max_by(|a, b| norm(a).total_cmp(&norm(b))), part.last().copied()];
    let kept: HashSet<usize> = places.chunks(thinning).flat_map(kept).flatten().chain([places[0]]).collect();
    let shown = (0..log.len()).filter(|place| kept.contains(place) || !is_training(&log[*place]));
    (shown.map(|place| log[place].clone()).collect(), thinning)
}

/// A configuration's keys with dots, and its values as TOML has them.
fn flatten(prefix: &str, value: &toml::Value, flat: &mut Map<String, Value>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&key, value, flat);
            }
        }
        other => {
            flat.insert(prefix.to_owned(), other.to_string().into());
        }
    }
}

/// The page of some runs. `compared` is what their translations of the same text are like beside each other, as
/// `assets/report.js` shows it; null where that is not known.
pub fn page(runs: &[Run], compared: &Value) -> String {
    let names = names(runs);
    let of_runs: Value = runs.iter().zip(&names).map(|(run, name)| run.json(name)).collect();
    let data = json!({ "runs": of_runs, "compared": compared });
    PAGE.replace("@TITLE@", &escaped(&names.join(", ")))
        .replace("@STYLE@", STYLE)
        .replace("@SCRIPT@", &[COMMON_SCRIPT, attention::SCRIPT, SCRIPT].concat())
        .replace("@DATA@", &embedded(&data))
}

/// What runs are called: by their directory's name, or all of its path where that is not enough.
pub fn names(runs: &[Run]) -> Vec<String> {
    let is_unique = |run: &Run| runs.iter().filter(|other| other.name == run.name).count() == 1;
    let name = |run: &Run| if is_unique(run) { run.name.clone() } else { run.directory.display().to_string() };
    runs.iter().map(name).collect()
}

/// Data inside a script element, where nothing but its end tag is markup.
pub(super) fn embedded(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

pub(super) fn escaped(text: &str) -> String {
    // What changes the direction of a text would change that of others.
    let is_direction = |c: char| matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let text: String = text.chars().filter(|c| !is_direction(*c)).collect();
    // No @ either: what else is put into a page is marked by it.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('@', "&#64;")
}

/// Writes a page, whole or not at all.
///
/// # Errors
/// It cannot be written.
pub fn write(file: &Path, runs: &[Run], compared: &Value) -> Result<()> {
    file.file_name().ok_or_else(|| Error::usage("this is no file name").at(file))?;
    replace_file(file, &page(runs, compared)).map_err(|error| Error::io("write the report", file, error))
}

/// Writes a run's page anew at every validation.
pub struct Page {
    run: PathBuf,
    log: Vec<Value>,
}

impl Page {
    /// That of a run directory.
    pub fn new(run: &Path) -> Self {
        Self { run: run.to_path_buf(), log: Vec::new() }
    }
}

impl Watcher for Page {
    fn samples(&mut self, Samples { update, is_final, explained }: Samples) -> Result<()> {
        let temperatures: Vec<f64> = temperatures().collect();
        let sentences: Vec<Value> = explained.iter().map(attention::packed).collect();
        let json = json!({
            "update": update, "final": is_final, "temperatures": temperatures, "sentences": sentences,
        });
        files::replace(&self.run, files::ATTENTION, &json.to_string())
    }

    fn begin(&mut self, entries: &[Value]) -> Result<()> {
        self.log = entries.to_vec();
        Ok(())
    }

    fn entry(&mut self, entry: &Value) -> Result<()> {
        self.log.push(entry.clone());
        if entry["event"] == "valid" || entry["event"] == "final" {
            write(&self.run.join(FILE), &[Run::new(&self.run, &self.log)?], &Value::Null)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(count: usize) -> Vec<Value> {
        let entry = |i: usize| {
            let norm = if i == 54_321 { 99.0 } else { 1.0 + (i % 7) as f64 / 10.0 };
            json!({ "event": if i % 1000 == 999 { "valid" } else { "train" }, "update": i, "gradient_norm": norm })
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn long_logs_are_thinned_and_keep_their_spikes() {
        assert_eq!(thinned(&log(MOST_ENTRIES)), (log(MOST_ENTRIES), 1));
        let whole = log(100_000);
        let (shown, thinning) = thinned(&whole);
        let trained = shown.iter().filter(|entry| entry["event"] == "train").count();
        assert!((MOST_ENTRIES / 2..=MOST_ENTRIES + 2).contains(&trained), "{trained}");
        assert_eq!(thinning, 50);
        assert_eq!(shown.len() - trained, 100, "validations are all there");
        let updates: Vec<u64> = shown.iter().filter_map(|entry| entry["update"].as_u64()).collect();
        assert!(updates.is_sorted() && updates.contains(&54_321));
        assert!(updates.contains(&0) && updates.ends_with(&[99_998, 99_999]));
    }
}
