//! `report.html`: the log of one run or several as a self-contained page.
//!
//! The page is `assets/report.html` with its style, its script and the data of the runs inserted. All drawing is done
//! by the script.

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{attention, files};
use crate::checkpoint::CONFIG_FILE;
use crate::error::{Error, Result};
use crate::explanation::temperatures;
use crate::file::{self, Folder};
use crate::train::log::{self, LOG_FILE, Samples, Watcher};

/// The page of a run, in its directory.
pub const FILE: &str = "report.html";

const PAGE: &str = include_str!("assets/report.html");
const STYLE: &str = include_str!("assets/report.css");
/// Code shared by the scripts; it comes before them.
pub(super) const COMMON_SCRIPT: &str = include_str!("assets/common.js");
const SCRIPT: &str = include_str!("assets/report.js");

/// About the most training entries to show: more would be indistinguishable and make the page slow.
const MOST_ENTRIES: usize = 4000;

/// A run as the page shows it.
pub struct Run {
    name: String,
    directory: PathBuf,
    config: Map<String, Value>,
    /// The entries of its log that are shown.
    log: Vec<Value>,
    /// Of each group of this many training entries at most two are shown; 1 if all are shown.
    thinning: usize,
    /// [`files::CORPUS`], null if it is missing.
    corpus: Value,
    /// [`files::ATTENTION`], null if it is missing.
    attention: Value,
}

impl Run {
    /// The run in a directory, with the entries of its log.
    ///
    /// # Errors
    /// Its configuration cannot be read.
    pub fn new(directory: &Path, log: &[Value]) -> Result<Self> {
        let file = directory.join(CONFIG_FILE);
        let text = file::read_own_text(&file).map_err(|error| Error::io("read the configuration", &file, error))?;
        let config: toml::Table =
            text.parse().map_err(|error| Error::failure(format!("not TOML: {error}")).at(&file))?;
        let mut flat = Map::new();
        flatten("", &toml::Value::Table(config), &mut flat);
        // `.` and `..` have a name only as whole paths.
        let whole = if directory.file_name().is_none() { std::fs::canonicalize(directory).ok() } else { None };
        let named = whole.as_deref().unwrap_or(directory);
        let name = named.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
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
        let log = log::entries(&file).map_err(|error| match error.kind() {
            ErrorKind::NotFound if directory.join(CONFIG_FILE).exists() => {
                let error = Error::failure(format!("this has no {LOG_FILE}, of which a report is made")).at(directory);
                error.help("training writes it into its run directory; other models, such as averages, have none")
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                let error = Error::io("read the log of the run", &file, error);
                error.help("name a run directory, for example runs/my")
            }
            _ => Error::io("read the log of the run", &file, error),
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

/// A log with at most about [`MOST_ENTRIES`] training entries: of each group of successive ones, the one with the
/// largest gradient norm, so that spikes stay, and the last one. Also returns the size of the groups, 1 if all entries
/// are kept.
fn thinned(log: &[Value]) -> (Vec<Value>, usize) {
    let is_training = |entry: &Value| entry["event"] == "train";
    let indices: Vec<usize> = (0..log.len()).filter(|&index| is_training(&log[index])).collect();
    if indices.len() <= MOST_ENTRIES {
        return (log.to_vec(), 1);
    }
    let thinning = (2 * indices.len()).div_ceil(MOST_ENTRIES);
    let norm = |index: &usize| log[*index]["gradient_norm"].as_f64().unwrap_or_default();
    let kept = |part: &[usize]| [part.iter().copied().max_by(|a, b| norm(a).total_cmp(&norm(b))), part.last().copied()];
    let kept: HashSet<usize> = indices.chunks(thinning).flat_map(kept).flatten().chain([indices[0]]).collect();
    let shown = (0..log.len()).filter(|index| kept.contains(index) || !is_training(&log[*index]));
    (shown.map(|index| log[index].clone()).collect(), thinning)
}

/// A configuration as dotted keys with values in TOML's notation.
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

/// The page of some runs. `compared` is the comparison of their translations of the same text that `assets/report.js`
/// shows; null if there is none.
pub fn page(runs: &[Run], compared: &Value) -> String {
    let names = names(runs);
    let of_runs: Value = runs.iter().zip(&names).map(|(run, name)| run.json(name)).collect();
    let data = json!({ "runs": of_runs, "compared": compared });
    filled(PAGE, &names.join(", "), &[COMMON_SCRIPT, attention::SCRIPT, SCRIPT].concat())
        .replace("@DATA@", &embedded(&data))
}

/// A page's template with its title, style and script, still without its data. Its policy lets a browser run this
/// script alone, and fetch nothing: whatever the data hold, they stay data.
pub(super) fn filled(template: &str, title: &str, script: &str) -> String {
    let hash = STANDARD.encode(Sha256::digest(script));
    // The script sets styles of what it draws.
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
         form-action 'none'"
    );
    template
        .replace("@POLICY@", &policy)
        .replace("@TITLE@", &escaped(title))
        .replace("@STYLE@", STYLE)
        .replace("@SCRIPT@", script)
}

/// The names of runs: the name of the directory, or its whole path if names are not unique.
pub fn names(runs: &[Run]) -> Vec<String> {
    let is_unique = |run: &Run| runs.iter().filter(|other| other.name == run.name).count() == 1;
    let name = |run: &Run| if is_unique(run) { run.name.clone() } else { run.directory.display().to_string() };
    runs.iter().map(name).collect()
}

/// Data for the inside of a script element, where only the end tag is markup.
pub(super) fn embedded(data: &Value) -> String {
    data.to_string().replace('<', "\\u003c")
}

pub(super) fn escaped(text: &str) -> String {
    // Strip bidi controls: they would affect surrounding text.
    let is_direction = |c: char| matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    let text: String = text.chars().filter(|c| !is_direction(*c)).collect();
    // Escape @, too: it marks where a page inserts text.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('@', "&#64;")
}

/// Writes a page into the directory of its run, or another, atomically.
///
/// # Errors
/// It cannot be written.
pub fn write(directory: &Path, page: &[u8]) -> Result<()> {
    let written = Folder::open(directory).and_then(|folder| folder.replace_shared(FILE, page));
    written.map_err(|error| Error::io("write the report", directory.join(FILE), error))
}

/// Whether the page in a directory is one that [`write`] wrote.
pub fn is_own(directory: &Path) -> bool {
    let beginning = PAGE.split('@').next().unwrap_or_default();
    let mut found = vec![0; beginning.len()];
    let read = Folder::open(directory).and_then(|folder| folder.read(FILE)?.read_exact(&mut found));
    read.is_ok() && found == beginning.as_bytes()
}

/// Rewrites a run's page at every validation.
pub struct Page {
    run: PathBuf,
    log: Vec<Value>,
}

impl Page {
    /// The page of a run directory.
    pub fn new(run: &Path) -> Self {
        Self { run: run.to_path_buf(), log: Vec::new() }
    }

    fn write(&self) -> Result<()> {
        write(&self.run, page(&[Run::new(&self.run, &self.log)?], &Value::Null).as_bytes())
    }
}

/// Whether the page is written at this entry.
fn is_milestone(entry: &Value) -> bool {
    entry["event"] == "valid" || entry["event"] == "final"
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
        if entries.iter().any(is_milestone) { self.write() } else { Ok(()) }
    }

    fn entry(&mut self, entry: &Value) -> Result<()> {
        self.log.push(entry.clone());
        if is_milestone(entry) { self.write() } else { Ok(()) }
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

    /// A browser compares the hash of the whole text between the tags.
    #[test]
    fn the_policy_lets_only_the_script_of_the_page_run() {
        let page = filled(PAGE, "</title><script>alert(1)</script>", "const a = '@DATA@';\n");
        let (_, rest) = page.split_once("<script>").unwrap();
        let (script, _) = rest.split_once("</script>").unwrap();
        let hash = STANDARD.encode(Sha256::digest(script));
        let policy = format!("content=\"default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; ");
        assert!(page.find(&policy).unwrap() < page.find("<title>").unwrap());
        assert!(page.contains("<title>&lt;/title>&lt;script>alert(1)"));
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
