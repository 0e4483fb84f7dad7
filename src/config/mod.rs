//! The configuration: typed sections, read strictly from TOML files and `--set` overrides.
//!
//! Each file is parsed with positions (`document`), checked against the table of keys (`schema`, `check`; names of
//! other toolkits are in `aliases`) and laid over the files before it; then `--set` (`overrides`). Paths become
//! absolute (`paths`), the configuration of the model that training begins with is laid below (`init`), defaults that
//! depend on other keys are computed (`computed`), the keys are checked together (`resolve`), and the result can be
//! written out and compared (`dump`). All problems of all files are reported at once.

mod aliases;
mod check;
mod computed;
mod corpus;
mod document;
mod dump;
mod init;
mod overrides;
mod paths;
mod resolve;
mod schema;
mod sections;
#[cfg(test)]
mod tests;
mod value;

use std::cmp::Reverse;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub use crate::key::{Decides, OnResume};
pub use aliases::{instead_of, keys_called};
use check::Report;
use computed::ResolvedLayer;
use document::{Origin, Source, Table, Value, get};
pub use dump::{differences, differences_of, is_resolved, to_toml, values};
pub use init::idle_key;
use overrides::Override;
pub use schema::{decides, on_resume, that_decide};
pub use sections::{Config, MOST_THREADS, RuntimeConfig};

use crate::checkpoint::{CHECKPOINTS, CONFIG_FILE};
use crate::error::{Error, Result, check_path};
use crate::file;
use crate::limits::{CONFIGURATION_BYTES, EXTENDED_CONFIGURATIONS};

/// Loads a configuration: each file after what it `extends`, later files over earlier ones, then each
/// `section.key=VALUE` of `sets`.
///
/// A value of `sets` is TOML, or bare text. A table's `kind` set to another value replaces the table. A file that
/// several files extend counts once, where it is first extended. In the result every path is absolute. `data.root` is
/// relative to the file that states it (in `sets`, to the working directory); files of corpora are relative to
/// `data.root` or, without one, to the file that names them. Missing keys of `[model]` and `[decode]` come from the
/// model that `train.init` names. In a file that [`to_toml`] wrote, computed values follow the keys that a later file
/// or `sets` changes.
///
/// # Errors
///
/// Everything wrong in any file or override, together, as usage errors with file, line and column.
pub fn load(files: &[PathBuf], sets: &[String]) -> Result<Config> {
    Loader::default().load(files, sets)
}

/// As [`load`], for what needs a corpus, and with `valid.every > 0` a validation pair.
///
/// # Errors
///
/// As [`load`]; or the configuration names no such text.
pub fn load_for_training(files: &[PathBuf], sets: &[String]) -> Result<Config> {
    Loader { for_training: true, ..Loader::default() }.load(files, sets)
}

/// Loads what [`to_toml`] wrote; every value comes back identical.
///
/// # Errors
///
/// As for [`load`], and if the path is not a regular file.
pub fn load_resolved(path: impl AsRef<Path>) -> Result<Config> {
    let path = path.as_ref();
    let text = file::read_at_most(path, CONFIGURATION_BYTES);
    let text = text.map_err(|error| Error::io("read the configuration", path, error))?;
    let config = Loader { is_written: true, ..Loader::default() }.load(&[path.to_path_buf()], &[])?;
    // A written file has all keys. An empty one would otherwise count as a configuration of defaults.
    let stated: toml::Table =
        std::str::from_utf8(&text).ok().and_then(|text| toml::from_str(text).ok()).unwrap_or_default();
    match ["data", "tokenizer", "model", "train"].iter().find(|section| !stated.contains_key(**section)) {
        Some(section) => {
            let error =
                Error::failure(format!("this is not the configuration that mt wrote here: it has no [{section}]"));
            Err(error.at(path).help("restore the file as training wrote it, from a copy"))
        }
        None => Ok(config),
    }
}

/// Adds the origin of a key's value to an error: the location of the key if it is stated, else the preset that decides
/// it, its section, or the last file. `files` and `sets` are as for [`load`].
pub fn locate(error: Error, key: &str, files: &[PathBuf], sets: &[String]) -> Error {
    // A pipe cannot be read again.
    if let Some(pipe) = files.iter().find(|file| !file.is_file()) {
        return error.at(pipe);
    }
    let mut loader = Loader::default();
    let merged = loader.read(files, sets).ok().and_then(|()| loader.merged()).unwrap_or_default();
    let sections = key.rmatch_indices('.').map(|(end, _)| &key[..end]);
    let preset = key.starts_with("model.").then_some("model.preset");
    let stated = [key].into_iter().chain(preset).chain(sections).find_map(|key| get(&merged, key));
    match (stated, files.last()) {
        (Some(entry), _) => entry.key.locate(error),
        (None, Some(file)) => error.at(file),
        (None, None) => error,
    }
}

/// Whether the user wrote the file. A run directory may be somebody else's.
fn is_own(origin: &Origin) -> bool {
    let source = &origin.source;
    let is_of_run =
        || source.name.ends_with(CONFIG_FILE) && source.name.with_file_name(CHECKPOINTS).symlink_metadata().is_ok();
    // Those of `--set` have no text.
    source.text.is_none() || !(origin.is_resolved() || is_of_run())
}

/// Gathers the layers of a configuration, lowest first.
#[derive(Default)]
struct Loader {
    /// The working directory.
    working: PathBuf,
    /// Documents in the order in which they are laid over one another; `None` for one that could not be parsed.
    layers: Vec<Option<Table>>,
    /// Sources read so far.
    sources: usize,
    /// Absolute paths of the files already among the layers.
    files: Vec<PathBuf>,
    /// The position among the sources of the last file named on the command line, …
    named: usize,
    /// … and its folder.
    directory: Option<PathBuf>,
    /// Whether the configuration must name what training needs.
    for_training: bool,
    /// Whether `mt` wrote it into a run or model directory.
    is_written: bool,
    report: Report,
}

impl Loader {
    fn load(mut self, files: &[PathBuf], sets: &[String]) -> Result<Config> {
        self.read(files, sets)?;
        self.finish()
    }

    /// Adds all layers.
    fn read(&mut self, files: &[PathBuf], sets: &[String]) -> Result<()> {
        self.working = match std::env::current_dir() {
            Ok(working) => working,
            // The working directory may have been removed, but no path is relative to it.
            Err(_) if sets.is_empty() && files.iter().all(|file| file.is_absolute()) => PathBuf::from("/"),
            Err(error) => return Err(Error::io("find the working directory", ".", error)),
        };
        for file in files {
            self.file(file, None, &mut Vec::new());
        }
        self.overrides(sets);
        Ok(())
    }

    /// Adds a file, after those that it extends. `chain` holds the files that led here by `extends`, and `from` is the
    /// position of the last `extends`.
    fn file(&mut self, shown: &Path, from: Option<&Origin>, chain: &mut Vec<PathBuf>) {
        let path = paths::normalise(&self.working.join(shown));
        if let Some(from) = from {
            if chain.contains(&path) {
                let what = format!("`extends` goes in a circle: {} extends itself", shown.display());
                self.report.add(from, Error::usage(what).help("remove one `extends`"));
                self.layers.push(None);
                return;
            }
            if self.files.contains(&path) {
                return;
            }
        }
        let directory = path.parent().unwrap_or(&self.working).to_path_buf();
        if from.is_none() {
            self.directory = Some(directory.clone());
            self.named = self.sources + 1;
        }
        let Some(text) = self.text(shown, &path, from) else {
            self.layers.push(None);
            return;
        };
        let source = self.source(shown.to_path_buf(), text, directory, chain.len());
        let layer = match document::parse(&source) {
            Ok(mut table) => {
                chain.push(path.clone());
                self.extended(&mut table, shown, chain);
                chain.pop();
                Some(table)
            }
            Err(errors) => {
                errors.into_iter().for_each(|(origin, error)| self.report.add(&origin, error));
                None
            }
        };
        self.layers.push(layer);
        self.files.push(path);
    }

    fn source(&mut self, name: PathBuf, text: String, directory: PathBuf, extended: usize) -> Rc<Source> {
        self.sources += 1;
        let layer = (self.named, Reverse(extended));
        Rc::new(Source { order: self.sources, layer, name, text: Some(text), directory })
    }

    /// The file's text; a problem is reported where the user named the file.
    fn text(&mut self, shown: &Path, path: &Path, from: Option<&Origin>) -> Option<String> {
        let error = match self.bytes(path, from).map(String::from_utf8) {
            Ok(Ok(text)) => return Some(text),
            Ok(Err(error)) => {
                let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
                let error = Error::usage("the configuration is not UTF-8").at_line(shown, line, 0);
                self.report.add_anywhere(error.help("save the file as UTF-8"));
                return None;
            }
            Err(error) => error,
        };
        match from {
            Some(from) => {
                let what = format!("cannot read the configuration {}: {error}", shown.display());
                let help = "check the path; `extends` is relative to the folder of the file that states it";
                self.report.add(from, Error::usage(what).help(help).caused_by(error));
            }
            None => {
                let what = format!("cannot read the configuration: {error}");
                self.report.add_anywhere(Error::usage(what).at(shown).help(check_path(path)).caused_by(error));
            }
        }
        None
    }

    /// A file is regular, unless the user has named it: then it may be a pipe. None is endless.
    fn bytes(&self, path: &Path, from: Option<&Origin>) -> std::io::Result<Vec<u8>> {
        if self.is_written || from.is_some() {
            return file::read_at_most(path, CONFIGURATION_BYTES);
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(CONFIGURATION_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > CONFIGURATION_BYTES {
            return Err(std::io::Error::other(format!("larger than {CONFIGURATION_BYTES} bytes")));
        }
        Ok(bytes)
    }

    /// Takes `extends` out of a document and adds the file it names.
    fn extended(&mut self, table: &mut Table, shown: &Path, chain: &mut Vec<PathBuf>) {
        let Some(entry) = table.remove("extends") else {
            return;
        };
        let origin = &entry.item.origin;
        if self.is_written || origin.is_resolved() {
            let what = "`extends` in the configuration of a run or model directory: mt writes none there";
            let help = "restore the file as training wrote it, from a copy; one from elsewhere is not to be trusted";
            self.report.add(origin, Error::usage(what).help(help));
            self.layers.push(None);
            return;
        }
        if chain.len() > EXTENDED_CONFIGURATIONS {
            let what = format!("more than {EXTENDED_CONFIGURATIONS} configurations extend one another");
            self.report.add(origin, Error::usage(what).help("put them together in fewer files"));
            self.layers.push(None);
            return;
        }
        match &entry.item.value {
            Value::Text(base) => {
                let base = shown.parent().unwrap_or(Path::new("")).join(base);
                self.file(&base, Some(origin), chain);
            }
            other => {
                let what = format!("`extends` must be the path of a configuration, found {}", other.describe());
                self.report.add(origin, Error::usage(what));
                self.layers.push(None);
            }
        }
    }

    /// Adds the overrides, later ones over earlier ones.
    fn overrides(&mut self, sets: &[String]) {
        let mut layers = Vec::new();
        for set in sets {
            match Override::parse(set) {
                Ok(set) => {
                    self.sources += 1;
                    let added = set.add_to(&mut layers, &self.layers, self.sources, &self.working);
                    added.err().into_iter().for_each(|error| self.report.add_anywhere(error));
                }
                Err(error) => self.report.add_anywhere(error),
            }
        }
        self.layers.extend(layers.into_iter().map(Some));
    }

    /// Checks the layers and lays them over one another. `None` if one could not be read: it may state what seems
    /// missing.
    fn merged(&mut self) -> Option<Table> {
        let mut merged = Table::new();
        let mut resolved = Vec::new();
        let mut all_read = true;
        for layer in std::mem::take(&mut self.layers) {
            match layer {
                Some(mut layer) => {
                    self.report.check_layer(&mut layer, all_read.then_some(&merged));
                    resolved.extend(ResolvedLayer::new(&layer));
                    document::merge(&mut merged, layer, schema::ROOT);
                }
                None => all_read = false,
            }
        }
        resolved.iter().for_each(|layer| layer.release(&mut merged));
        all_read.then_some(merged)
    }

    /// Resolves the merged layers.
    fn finish(mut self) -> Result<Config> {
        let Some(mut merged) = self.merged() else { return Err(self.report.into_error()) };
        corpus::check(&merged, &mut self.report);
        self.report.require(&mut merged);
        let directory = self.directory.as_deref().unwrap_or(&self.working);
        let root = paths::absolutise(&mut merged, directory, &mut self.report);
        let merged = init::lay_below(merged);
        let mut config = resolve::resolve(&merged, root, &mut self.report);
        if let (Some(stated), Ok(config)) = (get(&merged, "runtime.follow_links"), &mut config) {
            config.runtime.follow_links &= self.is_written || is_own(&stated.key);
        }
        if let (true, Ok(config)) = (self.for_training, &config) {
            resolve::require_for_training(config, &merged, &mut self.report);
        }
        if self.report.is_empty() { config } else { Err(self.report.into_error()) }
    }
}
