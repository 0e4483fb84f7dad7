//! The text that a configuration names: files, and data sets of the hub, which are fetched first.

use std::path::{Path, PathBuf};

use crate::data::corpus::{Corpus, PairSource, Side, Tagged};
use crate::data::hub::HubFiles;
use crate::data::tags::LanguageTags;
use crate::data::text::file::{Odd, TextFile};
use crate::data::text::raw::{self, RawLines};
use crate::data::text::returns;
use crate::data::weights::Weights;
use crate::data::{CorpusLocation, DataConfig};
use crate::error::{Error, Result, suggestion};
use crate::hub::Hub;
use crate::notice::Notice;

/// A corpus; the files of one that [`Texts::find`] returns exist.
#[derive(Clone, Debug)]
pub struct Text {
    files: TextFiles,
    /// What is put in front of each line, of sources and of targets.
    tags: [Option<String>; 2],
    /// The tag and the languages of both sides as stated, of which [`Texts::resolve`] makes tags.
    tag: Option<String>,
    languages: [Option<String>; 2],
    /// The file of the pairs' weights.
    weights: Option<PathBuf>,
}

/// Where a corpus is; splits of data sets are in the cache.
type TextFiles = CorpusLocation<HubFiles>;

impl Text {
    /// Two files.
    #[cfg(test)]
    pub fn files(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        Self {
            files: TextFiles::files(source, target),
            tags: [None, None],
            tag: None,
            languages: [None, None],
            weights: None,
        }
    }

    /// Opens it and reads it once; an epoch draws each pair `weight` times. Tells of carriage returns in files.
    pub fn open(&self, weight: f64, say: &dyn Fn(Notice)) -> Result<Box<dyn PairSource>> {
        let corpus = self.files.open(weight, self.weights.as_deref(), say)?;
        Ok(match &self.tags {
            [None, None] => corpus,
            tags => Box::new(Tagged { corpus, tags: tags.clone() }),
        })
    }

    /// What is put in front of each source line.
    pub fn tag(&self) -> Option<&str> {
        self.tags[0].as_deref()
    }

    /// Checks the weights of its pairs, if it has any; where the text itself cannot be read, only that they are
    /// weights.
    pub fn check_weights(&self) -> Result<()> {
        let Some(path) = &self.weights else { return Ok(()) };
        let text = match &self.files {
            TextFiles::Files { source: file, .. } | TextFiles::Tsv { file, .. } => TextFile::scan(file).ok(),
            TextFiles::Hub(_) => None,
        };
        must_be_there(path)?;
        Weights::scan(path, text.as_ref()).map(|_| ())
    }

    /// Both sides as they are, without the tag, for finding mistakes in them: calls `each` with window after window.
    pub fn windows(&self, mut each: impl FnMut([RawLines; 2])) -> Result<()> {
        match &self.files {
            TextFiles::Files { source, target } => {
                let missing: Vec<Error> =
                    [source, target].into_iter().filter_map(|file| must_be_there(file).err()).collect();
                if !missing.is_empty() {
                    return Err(Error::many(missing));
                }
                raw::windows_of_files([source, target], each)
            }
            TextFiles::Tsv { file, columns } => {
                must_exist(file, COLUMNS).and_then(|()| raw::windows_of_columns(file, *columns, each))
            }
            TextFiles::Hub(files) => files.open(1.0).and_then(|corpus| raw::windows_of_pairs(&corpus, &mut each)),
        }
    }

    /// Like [`Text::windows`], for one side alone; false if that side is not a separate file.
    pub fn windows_of_side(&self, side: Side, each: impl FnMut(RawLines)) -> Result<bool> {
        let TextFiles::Files { source, target } = &self.files else { return Ok(false) };
        let file = if side == Side::Source { source } else { target };
        must_be_there(file).and_then(|()| raw::windows_of_file(file, each))?;
        Ok(true)
    }

    /// Whether it can be read at once, and again: not from a pipe.
    pub fn is_kept(&self) -> bool {
        let files = match &self.files {
            TextFiles::Files { source, target } => [source, target],
            TextFiles::Tsv { file, .. } => [file, file],
            TextFiles::Hub(_) => return true,
        };
        files.iter().all(|file| file.is_file())
    }

    /// With a file of the weights of its pairs, if there is one.
    #[must_use]
    pub fn with_weights(self, weights: Option<PathBuf>) -> Self {
        Self { weights, ..self }
    }

    /// Its name in messages.
    pub fn name(&self) -> &Path {
        match &self.files {
            TextFiles::Files { source: file, .. } | TextFiles::Tsv { file, .. } => file,
            TextFiles::Hub(files) => files.name(),
        }
    }
}

impl TextFiles {
    /// As [`Text::open`], without the tag.
    fn open(&self, weight: f64, weights: Option<&Path>, say: &dyn Fn(Notice)) -> Result<Box<dyn PairSource>> {
        let corpus = match self {
            Self::Hub(files) => return Ok(Box::new(files.open(weight)?)),
            Self::Files { source, target } => Corpus::open(source, target, weight)?,
            Self::Tsv { file, columns } => Corpus::open_columns(file, *columns, weight)?,
        };
        let corpus = match weights {
            Some(path) => corpus.with_weights(path)?,
            None => corpus,
        };
        if let Some(weights) = corpus.weights() {
            let (path, mean, zeros) = (weights.path().display(), weights.mean, weights.zeros);
            let of_zeros = if zeros > 0 { format!("; {zeros} pairs have a weight of 0") } else { String::new() };
            say(match mean {
                0.0 => Notice::Warning(format!("{path}: all weights are 0: nothing is learnt from these pairs")),
                _ => Notice::Info(format!("{path}: the mean of the weights is {mean:.3}{of_zeros}")),
            });
        }
        let ended_in_returns = |file: &TextFile| {
            let (path, lines) = (file.path().display(), file.carriage_returns);
            let s = if lines == 1 { "" } else { "s" };
            let text = format!("{path}: {lines} line{s} ended in \\r\\n; the \\r is not part of the text");
            (lines > 0).then_some(Notice::Info(text))
        };
        let with_returns = |file: &TextFile| Some(Notice::Warning(returns::warning(file.path(), file.returns?)));
        let of_both = |notice: &dyn Fn(&TextFile) -> Option<Notice>| {
            let [source, target] = [corpus.source(), corpus.target()].map(notice);
            // Both sides may be the same file, and its last column both of them.
            let target = target.filter(|target| source.as_ref() != Some(target));
            source.into_iter().chain(target).for_each(say);
        };
        of_both(&ended_in_returns);
        of_both(&with_returns);
        if let Some(Odd { lines, first }) = corpus.source().uneven {
            let path = corpus.source().path().display();
            let have = if lines == 1 { "line has" } else { "lines have" };
            say(Notice::Warning(format!(
                "{path}: {lines} {have} a different number of columns from the first line (line {first} is the first \
                 of them): a tab within a sentence cuts it in two"
            )));
        }
        Ok(Box::new(corpus))
    }
}

/// All text of a configuration.
#[derive(Clone, Debug)]
pub struct Texts {
    /// What is trained on, with weights.
    pub train: Vec<(Text, f64)>,
    /// What is validated on.
    pub valid: Option<Text>,
    /// What is tested on.
    pub test: Option<Text>,
    /// Further sets to score at validations, by name.
    pub monitor: Vec<(String, Text)>,
}

/// What a text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Deciding which model is the best.
    Validation,
    /// Scoring the final model.
    Test,
    /// Scored beside the validation set, without influence on training.
    Monitored,
    /// Being trained on.
    Training,
}

/// A text, as the configuration names it.
pub struct Named<'a> {
    /// The text.
    pub text: &'a Text,
    /// What it is for.
    pub role: Role,
    /// Its key, such as `data.train[0]`.
    pub key: String,
}

impl Texts {
    /// All of them; first the sets that training must not use.
    pub fn all(&self) -> impl Iterator<Item = Named<'_>> {
        let one = |text, role, key: &str| Named { text, role, key: key.to_owned() };
        let valid = self.valid.iter().map(move |text| one(text, Role::Validation, "data.valid"));
        let test = self.test.iter().map(move |text| one(text, Role::Test, "data.test"));
        let monitor = self.monitor.iter().enumerate();
        let monitor =
            monitor.map(move |(index, (_, text))| one(text, Role::Monitored, &format!("data.monitor[{index}]")));
        let train = self.train.iter().enumerate();
        let train = train.map(move |(index, (text, _))| one(text, Role::Training, &format!("data.train[{index}]")));
        valid.chain(test).chain(monitor).chain(train)
    }

    /// Makes tags of the languages of all texts, for the vocabulary of a model or of these tags. `decode` has the
    /// languages of texts that state none, nor a tag.
    ///
    /// # Errors
    /// The vocabulary lacks a language, or a text states none; all such texts are named.
    pub fn resolve(&mut self, vocabulary: &LanguageTags<'_>, decode: [Option<&str>; 2]) -> Result<()> {
        let named: Vec<String> = self.all().map(|named| named.key).collect();
        let sets = self.valid.iter_mut().chain(&mut self.test).chain(self.monitor.iter_mut().map(|(_, text)| text));
        let texts = sets.chain(self.train.iter_mut().map(|(text, _)| text));
        let mut errors = Vec::new();
        for (text, key) in texts.zip(named) {
            let default = if text.tag.is_some() { [None; 2] } else { decode };
            let languages = [0, 1].map(|side| text.languages[side].as_deref().or(default[side]));
            match vocabulary.tags(&key, text.tag.as_deref(), languages) {
                Ok(tags) => text.tags = tags,
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
    }

    /// Checks that everything the configuration names exists, and fetches data sets that are not in the hub's cache.
    ///
    /// # Errors
    /// Files are missing or data sets cannot be fetched; all of them are named, before any work begins.
    pub fn find(config: &DataConfig, offline: bool) -> Result<Self> {
        let weights = config.train.iter().filter_map(|corpus| must_exist(corpus.weights.as_ref()?, None).err());
        let missing: Vec<Error> = config.locations().flat_map(missing_files).chain(weights).collect();
        if !missing.is_empty() {
            return Err(Error::many(missing));
        }
        let (found, errors) = Self::gather(config, offline);
        if errors.is_empty() { Ok(found) } else { Err(Error::many(errors)) }
    }

    /// Like [`Texts::find`], but goes on after errors. Data sets that cannot be fetched are left out, and the errors
    /// give the reasons. Files may be missing: [`Text::windows`] reports them.
    pub fn gather(config: &DataConfig, offline: bool) -> (Self, Vec<Error>) {
        let mut errors = Vec::new();
        let is_hub = config.locations().any(|location| matches!(location, CorpusLocation::Hub(_)));
        let hub = is_hub.then(|| Hub::open(offline)).transpose().map_err(|error| errors.push(error));
        let hub = hub.ok().flatten();
        let mut find = |location: &CorpusLocation, tag: &Option<String>, languages: &[Option<String>; 2], key: &str| {
            if hub.is_none() && matches!(location, CorpusLocation::Hub(_)) {
                // The errors already hold the reason.
                return None;
            }
            let files = find(location, hub.as_ref());
            let files = files.map_err(|error| errors.push(error.context(format_args!("`{key}`")))).ok()?;
            let tags = [tag.clone(), None];
            Some(Text { files, tags, tag: tag.clone(), languages: languages.clone(), weights: None })
        };
        let mut train = Vec::with_capacity(config.train.len());
        for (index, corpus) in config.train.iter().enumerate() {
            let text = find(&corpus.location, &corpus.tag, &corpus.languages, &format!("data.train[{index}]"));
            train.extend(text.map(|text| (text.with_weights(corpus.weights.clone()), corpus.weight)));
        }
        let valid = config.valid.as_ref().and_then(|set| find(&set.location, &set.tag, &set.languages, "data.valid"));
        let test = config.test.as_ref().and_then(|set| find(&set.location, &set.tag, &set.languages, "data.test"));
        let mut monitor = Vec::with_capacity(config.monitor.len());
        for (index, set) in config.monitor.iter().enumerate() {
            let text = find(&set.location, &set.tag, &set.languages, &format!("data.monitor[{index}]"));
            monitor.extend(text.map(|text| (set.name(), text)));
        }
        (Self { train, valid, test, monitor }, errors)
    }
}

/// Finds a single corpus, without a tag.
pub fn find_one(location: &CorpusLocation, offline: bool) -> Result<Text> {
    let hub = match location {
        CorpusLocation::Files { .. } | CorpusLocation::Tsv { .. } => None,
        CorpusLocation::Hub(_) => Some(Hub::open(offline)?),
    };
    Ok(Text {
        files: find(location, hub.as_ref())?,
        tags: [None, None],
        tag: None,
        languages: [None, None],
        weights: None,
    })
}

fn find(location: &CorpusLocation, hub: Option<&Hub>) -> Result<TextFiles> {
    match (location, hub) {
        (CorpusLocation::Files { source, target }, _) => {
            Ok(TextFiles::Files { source: source.clone(), target: target.clone() })
        }
        (CorpusLocation::Tsv { file, columns }, _) => Ok(TextFiles::Tsv { file: file.clone(), columns: *columns }),
        (CorpusLocation::Hub(split), Some(hub)) => Ok(TextFiles::Hub(HubFiles::fetch(hub, split)?)),
        (CorpusLocation::Hub(split), None) => Err(Error::failure(format!("{split} was not fetched"))),
    }
}

/// An error for each file that does not exist.
fn missing_files(location: &CorpusLocation) -> Vec<Error> {
    let (files, reader) = match location {
        CorpusLocation::Files { source, target } => (vec![source, target], None),
        CorpusLocation::Tsv { file, .. } => (vec![file], COLUMNS),
        CorpusLocation::Hub(_) => return Vec::new(),
    };
    files.into_iter().filter_map(|file| must_exist(file, reader).err()).collect()
}

/// Who reads a file of columns twice.
const COLUMNS: Option<&str> = Some("a file of columns");

/// Fails if a file of text that is checked does not exist, or can be read only once.
fn must_be_there(file: &Path) -> Result<()> {
    must_exist(file, Some("text that is checked"))
}

/// Fails if a file does not exist, or cannot hold text; or if it can be read only once, but is `read_twice_by`
/// somebody.
fn must_exist(file: &Path, read_twice_by: Option<&str>) -> Result<()> {
    match (std::fs::metadata(file), read_twice_by) {
        (Ok(metadata), Some(who)) if !metadata.is_file() && !metadata.is_dir() => {
            Err(Error::failure(format!("mt reads {who} twice, but can read this only once")).at(file))
        }
        (Ok(metadata), _) if metadata.is_dir() => Err(Error::failure("this is a directory, not a text file").at(file)),
        (Ok(_), _) => Ok(()),
        (Err(error), _) => {
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            let error = Error::io("read the text", file, error);
            let help = "check the path; in a configuration, names are relative to data.root or, if that is unset, to \
                        the folder of the file that states them; if text has moved: --set data.root=DIR";
            Err(if is_missing { error.help(suggestion(file).unwrap_or_else(|| help.to_owned())) } else { error })
        }
    }
}
