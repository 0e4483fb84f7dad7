//! Corpora of the Hugging Face hub, read row by row from the cache.
//!
//! ```text
//! configuration and split ── card, find: which files ── hub: fetch them ── parquet, json, table, rows: pairs in blocks
//! ```

mod card;
mod columns;
mod find;
mod json;
#[cfg(feature = "hub")]
mod parquet;
mod rows;
mod table;

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::corpus::{PairBlock, PairSource, Side};
use crate::console::warning;
use crate::error::{Error, Result};
use crate::hub::{Hub, MAIN, Repo};
use crate::{file, limits};
use card::CardConfig;
pub use columns::Column;
use columns::Columns;
use find::{Format, Found, Missing, Wanted};

/// The revision at which the hub keeps data sets that it has converted.
const CONVERTED: &str = "refs/convert/parquet";

/// A split of a data set, as a configuration names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSplit {
    /// `ORG/NAME`.
    pub name: String,
    /// The data set's configuration; where it has only one, none need be named.
    pub config: Option<String>,
    /// The split.
    pub split: String,
    /// A branch, tag or commit; by default the newest state.
    pub revision: Option<String>,
    /// The column, or language within a nested column, of the source.
    pub source: Column,
    /// That of the target.
    pub target: Column,
}

impl fmt::Display for HubSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hub:{}", self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.config.iter().try_for_each(|config| write!(f, " {config}"))?;
        write!(f, " {}", self.split)
    }
}

/// A file.
#[derive(Clone, Debug)]
struct Shard {
    /// As the user would look it up: `hub:wmt/wmt14 de-en/train-00000-of-00003.parquet`.
    name: PathBuf,
    /// Where it lies in the cache.
    path: PathBuf,
}

impl Shard {
    /// Its name without the folder.
    fn file_name(&self) -> String {
        let name = self.name.to_string_lossy();
        name.rsplit(['/', ' ']).next().unwrap_or_default().to_owned()
    }
}

/// The rows of a file, one after the other.
trait Rows: Send {
    /// Appends the next row's pair; false at the end.
    fn push(&mut self, block: &mut PairBlock) -> Result<bool>;

    /// The line on which the last row begins, from 1; in Parquet, which has no lines, the number of the row.
    fn line(&self) -> usize;
}

/// A split's files, in the cache.
#[derive(Clone, Debug)]
pub struct HubFiles {
    /// `hub:wmt/wmt14 de-en train`.
    name: PathBuf,
    format: Format,
    /// For text, source and target files alternate.
    shards: Vec<Shard>,
    columns: Columns,
}

impl HubFiles {
    /// Finds the split's files and fetches those that are not in the cache.
    ///
    /// # Errors
    /// There is no such data set, configuration, split or column (the error lists the existing ones); or as for
    /// [`Hub::fetch`].
    pub fn fetch(hub: &Hub, split: &HubSplit) -> Result<Self> {
        let (repo, found) = locate(hub, split)?;
        if let Some(missing) = find::missing_shard(&found.files) {
            let what =
                format!("{missing} of {repo} is missing, though the names of the other files say that it exists");
            return Err(Error::failure(what).help("if only a part was fetched, run once without --offline"));
        }
        if is_partial(&found.files, &split.split) {
            warning(format_args!(
                "{split}: the hub has converted only the beginning of this split: the rest is missing"
            ));
        }
        let revision = if repo.revision == MAIN { String::new() } else { format!("@{}", repo.revision) };
        let shard = |file: &String| {
            let name = PathBuf::from(format!("hub:{}{revision} {file}", repo.name));
            Ok(Shard { name, path: hub.fetch(&repo, file)? })
        };
        let shards = found.files.iter().map(shard).collect::<Result<Vec<_>>>()?;
        let columns = Columns { source: split.source.clone(), target: split.target.clone() };
        let files = Self { name: split.to_string().into(), format: found.format, shards, columns };
        // One row is read now, so that a missing column is found before any work.
        if let Some(unit) = files.units().next() {
            files.rows(unit)?.push(&mut PairBlock::default())?;
        }
        Ok(files)
    }

    /// A Parquet file on disk, with its columns `source` and `target`.
    pub fn from_parquet(path: PathBuf, source: Column, target: Column) -> Self {
        let shards = vec![Shard { name: path.clone(), path: path.clone() }];
        Self { name: path, format: Format::Parquet, shards, columns: Columns { source, target } }
    }

    /// Its name in messages.
    pub fn name(&self) -> &PathBuf {
        &self.name
    }

    /// Reads all rows once. An epoch draws each pair `weight` times.
    ///
    /// # Errors
    /// A file cannot be read, a row holds no text, or there is no row.
    pub fn open(&self, weight: f64) -> Result<HubCorpus> {
        let mut corpus = HubCorpus { files: self.clone(), weight, units: Vec::new(), bytes: 0, digest: [0; 32] };
        let mut hashes = [Sha256::new(), Sha256::new()];
        for unit in self.units() {
            let mut rows = self.rows(unit)?;
            let (mut block, mut unit, mut more) = (PairBlock::default(), UnitRows::default(), true);
            while more {
                more = rows.push(&mut block)?;
                if more {
                    unit.push(rows.line());
                }
                if block.is_full() || !more {
                    for (source, target) in (0..block.len()).map(|index| block.get(index)) {
                        for (hash, line) in hashes.iter_mut().zip([source, target]) {
                            hash.update(line);
                            hash.update("\n");
                            corpus.bytes += line.len() as u64 + 1;
                        }
                    }
                    block = PairBlock::default();
                }
            }
            corpus.units.push(unit);
        }
        if corpus.is_empty() {
            let error = Error::failure("there is no row in any of the split's files").at(&self.name);
            return Err(error.help("a corpus needs at least one pair"));
        }
        // The same as for two files with this text, so that a run may be resumed with either.
        let [source, target] = hashes.map(Digest::finalize);
        corpus.digest = Sha256::new().chain_update(source).chain_update(target).finalize().into();
        Ok(corpus)
    }

    /// Files that are read together.
    fn units(&self) -> std::slice::Chunks<'_, Shard> {
        self.shards.chunks(if self.format == Format::Text { 2 } else { 1 })
    }

    fn rows(&self, unit: &[Shard]) -> Result<Bounded> {
        let columns = &self.columns;
        let rows: Box<dyn Rows> = match (self.format, unit) {
            #[cfg(not(feature = "hub"))]
            (Format::Parquet, [shard]) => {
                let error = Error::usage("this build of mt cannot read Parquet: it lacks the feature `hub`");
                return Err(error
                    .at(&shard.name)
                    .help("build with cargo's default features, or convert the file to text"));
            }
            #[cfg(feature = "hub")]
            (Format::Parquet, [shard]) => Box::new(parquet::ParquetRows::open(shard, columns)?),
            (Format::Json, [shard]) => Box::new(json::JsonRows::open(shard, columns)?),
            (Format::Csv, [shard]) => Box::new(table::TableRows::open(shard, columns, ',')?),
            (Format::Tsv, [shard]) => Box::new(table::TableRows::open(shard, columns, '\t')?),
            (Format::Text, [source, target]) => Box::new(rows::TextRows::open(source, target)?),
            _ => {
                return Err(Error::failure("the data set has a text file for one language without one for the other")
                    .at(&self.name));
            }
        };
        let bytes: u64 = unit.iter().filter_map(|shard| shard.path.metadata().ok()).map(|file| file.len()).sum();
        let left = bytes.saturating_mul(limits::DATA_SET_GROWTH).saturating_add(limits::DATA_SET_FREE);
        Ok(Bounded { rows, left, name: unit.first().map(|shard| shard.name.clone()).unwrap_or_default() })
    }
}

/// The rows of a file, or of two that are read together, which cannot hold any amount of text: a small file may stand
/// for more than a disk holds.
struct Bounded {
    rows: Box<dyn Rows>,
    /// How many bytes of text may follow.
    left: u64,
    name: PathBuf,
}

impl Rows for Bounded {
    fn push(&mut self, block: &mut PairBlock) -> Result<bool> {
        if !self.rows.push(block)? {
            return Ok(false);
        }
        let (source, target) = block.get(block.len() - 1);
        // With the ends of lines: a file may also stand for any number of empty rows.
        let bytes = (source.len() + target.len() + 2) as u64;
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let times = limits::DATA_SET_GROWTH;
            let what = format!("the file holds more than {times} times as much text as it has bytes");
            let error = Error::failure(what).at_line(&self.name, self.rows.line(), 0);
            error.help("it was made to fill the disk, or repeats itself: use another data set")
        })?;
        Ok(true)
    }

    fn line(&self) -> usize {
        self.rows.line()
    }
}

/// Whether the files found are only the converted part of a large split.
fn is_partial(files: &[String], split: &str) -> bool {
    let is_partial = |file: &String| {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        folder.rsplit('/').next().is_some_and(|name| name.starts_with("partial-") && name != split)
    };
    files.iter().any(is_partial)
}

/// A split of a data set, read once.
#[derive(Debug)]
pub struct HubCorpus {
    files: HubFiles,
    weight: f64,
    /// The rows of each file, or of each two that are read together.
    units: Vec<UnitRows>,
    bytes: u64,
    digest: [u8; 32],
}

/// How many rows a file has, and where each begins.
#[derive(Debug, Default)]
struct UnitRows {
    count: usize,
    /// Rows, from 0, that do not begin on the line after the beginning of the row before, and the lines where they
    /// begin. Most files have none; a table has names before the first row, and may have blank lines and rows of
    /// several lines.
    jumps: Vec<(usize, usize)>,
}

impl UnitRows {
    /// Adds the next row, which begins at `line`.
    fn push(&mut self, line: usize) {
        if self.line(self.count) != line {
            self.jumps.push((self.count, line));
        }
        self.count += 1;
    }

    /// Where a row begins, or would after the last.
    fn line(&self, row: usize) -> usize {
        let after = self.jumps.partition_point(|(first, _)| *first <= row);
        let jump = after.checked_sub(1).and_then(|before| self.jumps.get(before));
        jump.map_or(row + 1, |(first, line)| row - first + line)
    }
}

impl PairSource for HubCorpus {
    fn len(&self) -> usize {
        self.units.iter().map(|unit| unit.count).sum()
    }

    fn text_bytes(&self) -> u64 {
        self.bytes
    }

    fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn blocks(&self) -> Result<Box<dyn Iterator<Item = Result<PairBlock>> + Send + '_>> {
        let mut pass = Pass { files: &self.files, units: self.files.units(), rows: None };
        let mut read = 0;
        Ok(Box::new(std::iter::from_fn(move || {
            let block = pass.next_block();
            if let Ok(block) = &block {
                read += block.as_ref().map_or(0, PairBlock::len);
                if block.is_none() && read != self.len() {
                    read = self.len();
                    let error = Error::failure("the files changed while they were read").at(&self.files.name);
                    return Some(Err(error.help("run it again")));
                }
            }
            block.transpose()
        })))
    }

    fn origin(&self, index: usize, side: Side) -> (PathBuf, usize) {
        let mut row = index;
        for (unit, rows) in self.files.units().zip(&self.units) {
            if row < rows.count {
                let shard = if side == Side::Target { unit.last() } else { unit.first() };
                return (shard.map(|shard| shard.name.clone()).unwrap_or_default(), rows.line(row));
            }
            row -= rows.count;
        }
        (self.files.name.clone(), index + 1)
    }

    fn weight(&self) -> f64 {
        self.weight
    }
}

/// A pass over all files.
struct Pass<'a> {
    files: &'a HubFiles,
    units: std::slice::Chunks<'a, Shard>,
    /// The rows of the current file.
    rows: Option<Bounded>,
}

impl Pass<'_> {
    fn next_block(&mut self) -> Result<Option<PairBlock>> {
        let mut block = PairBlock::default();
        while !block.is_full() {
            let Some(rows) = &mut self.rows else {
                let Some(unit) = self.units.next() else { break };
                self.rows = Some(self.files.rows(unit)?);
                continue;
            };
            if !rows.push(&mut block)? {
                self.rows = None;
            }
        }
        Ok((!block.is_empty()).then_some(block))
    }
}

/// A pair is one line: a line break within becomes a space.
fn in_one_line(text: &str) -> Cow<'_, str> {
    let text = text.trim_end_matches(['\n', '\r']);
    if text.contains('\n') { Cow::Owned(text.replace("\r\n", " ").replace('\n', " ")) } else { Cow::Borrowed(text) }
}

/// The names of the files of a split, from the page of its data set; `None` if the page does not list them.
pub fn files_by_page(page: &str, files: &[String], split: &HubSplit) -> Option<Vec<String>> {
    find::by_card(&card::configs(page), files, wanted(split)).ok().map(|found| found.files)
}

fn wanted(split: &HubSplit) -> Wanted<'_> {
    let languages = [&split.source, &split.target].map(|column| match column {
        Column::Name(name) => name.as_str(),
        // Text has no columns.
        Column::Number(_) => "",
    });
    Wanted { config: split.config.as_deref(), split: &split.split, languages }
}

/// The split's files, and the revision that they are at.
fn locate(hub: &Hub, split: &HubSplit) -> Result<(Repo, Found)> {
    let main = Repo::dataset(&split.name);
    let repo = split.revision.as_ref().map_or_else(|| main.clone(), |revision| main.at(revision));
    let wanted = wanted(split);
    let files = hub.files(&repo)?;
    let configs = configs(hub, &repo, &files)?;
    if !configs.is_empty() {
        let found = find::by_card(&configs, &files, wanted).map_err(|missing| explain(&repo, split, &missing))?;
        return Ok((repo, found));
    }
    let by_name = find::by_name(&files, wanted);
    // A loading script may turn the files into something else.
    let script = format!("{}.py", split.name.rsplit('/').next().unwrap_or_default());
    let is_script = files.contains(&script);
    match by_name {
        Ok(found) if !is_script => return Ok((repo, found)),
        _ if split.revision.is_some() => {}
        _ => {
            let converted = main.at(CONVERTED);
            if let Some(files) = hub.find(&converted)? {
                let found = find::by_name(&files, wanted).map_err(|missing| explain(&converted, split, &missing))?;
                return Ok((converted, found));
            }
        }
    }
    match by_name {
        Ok(found) => Ok((repo, found)),
        Err(missing) => Err(explain(&repo, split, &missing)),
    }
}

/// The configurations in the header of the data set's page; empty if there is no page.
fn configs(hub: &Hub, repo: &Repo, files: &[String]) -> Result<Vec<CardConfig>> {
    if !files.iter().any(|file| file == card::FILE) {
        return Ok(Vec::new());
    }
    let path = match hub.fetch(repo, card::FILE) {
        Ok(path) => path,
        // Another program has fetched the data alone.
        Err(_) if hub.is_offline() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    // Of a longer one, nothing is taken.
    let read =
        file::open_regular(&path).and_then(|file| file.take(limits::CARD_BYTES as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::io("read the page of the data set", &path, error))?;
    Ok(card::configs(&String::from_utf8_lossy(&bytes)))
}

/// A sentence about the missing part, with the existing ones.
fn explain(repo: &Repo, split: &HubSplit, missing: &Missing) -> Error {
    let of_config = split.config.as_ref().map(|config| format!(" of `{config}`")).unwrap_or_default();
    match missing {
        Missing::Config(there) if there.is_empty() => {
            let what = format!("no file of {repo} has the name of a data file");
            Error::failure(what)
                .help("data files are *.parquet, *.jsonl, *.csv, *.tsv, or text files named by split and language")
        }
        Missing::Config(there) => match &split.config {
            Some(config) => Error::failure(format!("{repo} has no configuration `{config}`"))
                .help(format!("its configurations: {}", listed(there))),
            None => Error::failure(format!("{repo} has several configurations"))
                .help(format!("name one with `config`: {}", listed(there))),
        },
        Missing::Split(there) => {
            let error = Error::failure(format!("{repo} has no split `{}`{of_config}", split.split));
            if there.is_empty() {
                error.help(
                    "files are found by their names: {config}/{split}-*.parquet, {split}.jsonl, {split}.{language}",
                )
            } else {
                error.help(format!("its splits: {}", listed(there)))
            }
        }
        Missing::Files(patterns) => {
            let what = format!(
                "{repo} has no file {}, which its page names for the split `{}`",
                listed(patterns),
                split.split
            );
            Error::failure(what)
                .help("if only a part was fetched, run once without --offline; or choose another revision")
        }
        Missing::Pattern(pattern) => {
            let what = format!(
                "the page of {repo} names files by too many patterns, or by one that is long, nested or none: {}",
                listed(std::slice::from_ref(pattern))
            );
            Error::failure(what)
                .help("the page must be corrected where the data set is made; or choose another revision")
        }
        Missing::Form(files) => {
            let (source, target) = (&split.source, &split.target);
            let what = format!("the files of the split `{}` of {repo} cannot be read: {}", split.split, listed(files));
            Error::failure(what).help(format!(
                "Parquet, JSON lines, comma- or tab-separated values can be read, and text in two files that end in \
                 .{source} and .{target}"
            ))
        }
    }
}

/// Names between commas, not too many.
fn listed(names: &[String]) -> String {
    const MOST: usize = 20;
    const LONGEST: usize = 200;
    let short = |name: &String| match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.clone(),
    };
    let mut text = names.iter().take(MOST).map(short).collect::<Vec<_>>().join(", ");
    if names.len() > MOST {
        text += &format!(" and {} more", names.len() - MOST);
    }
    text
}

#[cfg(test)]
mod tests;
