//! A starting configuration for a pair of text files, as `mt init` writes it.
//!
//! ```text
//! survey: one pass over the text ── held_out: pairs for validation ── recipe: sizes, with reasons ── document: TOML
//! ```

mod document;
mod held_out;
mod recipe;
mod survey;

use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::data::corpus::{Corpus, PairSource};
use crate::error::{Error, Result};
use crate::file::{Folder, Links, folder_of};
use crate::notice::grouped;
use document::Named;
pub use recipe::{Machine, Recipe};
use survey::Survey;

/// The text, and where the configuration goes.
#[derive(Clone, Debug)]
pub struct StarterRequest {
    /// Source and target text, line by line.
    pub train: [PathBuf; 2],
    /// Text to validate on. Without it, pairs are held out of the training text.
    pub valid: Option<[PathBuf; 2]>,
    /// The configuration to write. The training text without the held-out pairs goes into a folder beside it.
    pub file: PathBuf,
    /// Whether files that exist are replaced.
    pub overwrite: bool,
    /// The machine to train on.
    pub machine: Machine,
    /// Decides which pairs are held out.
    pub seed: u64,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The configuration.
    pub file: PathBuf,
    /// Pairs to train on.
    pub train_pairs: usize,
    /// Pairs to validate on.
    pub valid_pairs: usize,
    /// The folder of the held-out text, if any was held out.
    pub folder: Option<PathBuf>,
    /// The sizes.
    pub recipe: Recipe,
}

/// The languages of the two files, by their extensions: `train.en.gz` is in `en`.
fn languages(files: &[PathBuf; 2]) -> [String; 2] {
    let language = |file: &PathBuf| {
        let name = file.file_name()?.to_str()?;
        let name = [".gz", ".xz", ".zst"].iter().find_map(|packed| name.strip_suffix(packed)).unwrap_or(name);
        let extension = Path::new(name).extension()?.to_str()?;
        let is_name = extension.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
        (is_name && extension.len() <= 12 && extension != "txt").then(|| extension.to_owned())
    };
    match files.each_ref().map(language) {
        [Some(source), Some(target)] if source != target => [source, target],
        _ => ["source".to_owned(), "target".to_owned()],
    }
}

/// Surveys the text, holds out pairs for validation, and writes the configuration last.
///
/// # Errors
/// The text cannot be read, is not UTF-8, or its files differ in length; all pairs are too long, or too few different
/// ones are there to hold any out; a file exists and may not be replaced, or cannot be written.
pub fn begin(request: &StarterRequest) -> Result<Starter> {
    let file = &request.file;
    let name = file.file_stem().and_then(|stem| stem.to_str());
    let name = name.filter(|_| file.extension().is_some_and(|it| it == "toml")).ok_or_else(|| {
        Error::usage("the name of a configuration ends in .toml").at(file).help("for example --output mt.toml")
    })?;
    let data = file.with_file_name(format!("{name}-data"));
    let written: &[(&Path, &str)] = match &request.valid {
        Some(_) => &[(file, "configuration")],
        None => &[(file, "configuration"), (&data, "folder")],
    };
    refuse_existing(request, written)?;
    let is_new = fs::symlink_metadata(&data).is_err();
    let corpus = Corpus::open(&request.train[0], &request.train[1], 1.0)?;
    let mut survey = Survey::of(&corpus)?;
    refuse_long(&survey, request)?;
    let (named, valid_pairs, folder) = match &request.valid {
        Some(valid) => {
            let pairs = Corpus::open(&valid[0], &valid[1], 1.0)?.len();
            (
                Named { train: seen_from(file, &request.train)?, valid: seen_from(file, valid)?, held_out: 0 },
                pairs,
                None,
            )
        }
        None => {
            let held_out = held_out::choose(&corpus, &survey, request.seed)?;
            let languages = languages(&request.train);
            let files = |set: &str| languages.each_ref().map(|language| format!("{set}.{language}"));
            let (train, valid) = (files("train"), files("valid"));
            write_text(&corpus, &held_out, &data, [&train, &valid]).inspect_err(|_| {
                // It is empty: files get their names only when all are whole.
                let _ = is_new.then(|| fs::remove_dir(&data));
            })?;
            survey.pairs -= held_out.len();
            let below = |files: [String; 2]| files.map(|file| format!("{name}-data/{file}"));
            (Named { train: below(train), valid: below(valid), held_out: held_out.len() }, held_out.len(), Some(data))
        }
    };
    let recipe = Recipe::new(&survey, &request.machine);
    let text = document::text(&request.train, &named, &survey, &recipe, name);
    let written = Folder::containing(file).and_then(|(folder, name)| folder.replace_shared(name, text.as_bytes()));
    written.map_err(|error| {
        if let Some(folder) = folder.as_ref().filter(|_| is_new) {
            let _ = Folder::containing(folder).and_then(|(parent, name)| parent.remove(name));
        }
        Error::io("write", file, error)
    })?;
    Ok(Starter { file: file.clone(), train_pairs: survey.pairs, valid_pairs, folder, recipe })
}

/// Refuses text of which no pair is short enough to be trained on.
fn refuse_long(survey: &Survey, request: &StarterRequest) -> Result<()> {
    let Recipe { left_out, max_length, .. } = Recipe::new(survey, &request.machine);
    if left_out == 0 || left_out < survey.pairs {
        return Ok(());
    }
    let what = format!("all pairs are longer than {} subwords", grouped(max_length));
    let help =
        "a line is a sentence or a few: split the text into sentences, with the same number of lines on both sides";
    Err(Error::failure(what).at(&request.train[0]).help(help))
}

/// Refuses to replace what exists, unless that is asked for; and in any case what is read.
fn refuse_existing(request: &StarterRequest, written: &[(&Path, &str)]) -> Result<()> {
    for (path, what) in written.iter().filter(|(path, _)| fs::symlink_metadata(path).is_ok()) {
        if !request.overwrite {
            let error = Error::usage(format!("the {what} already exists")).at(path);
            let help = "replace it with --overwrite, or name another configuration with --output FILE.toml";
            return Err(error.help(help));
        }
        let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let inputs = request.train.iter().chain(request.valid.iter().flatten());
        if let Some(input) = inputs.into_iter().find(|input| whole(input).starts_with(whole(path))) {
            let error = Error::usage(format!("this text would be lost, as the {what} is replaced")).at(input);
            return Err(error.help("name other text, or another configuration with --output FILE.toml"));
        }
    }
    Ok(())
}

/// Files as the configuration names them: relative to its folder where they are below it.
fn seen_from(file: &Path, files: &[PathBuf; 2]) -> Result<[String; 2]> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(|error| Error::io("find", path, error));
    let folder = absolute(folder_of(file))?;
    let seen = |path: &PathBuf| {
        if !path.is_file() {
            let error = Error::usage("this is not a file, and training reads the text again").at(path);
            return Err(error.help("write the text into a file; without --valid, a pipe will do"));
        }
        let path = absolute(path)?;
        let seen = path.strip_prefix(&folder).unwrap_or(&path).to_str().map(str::to_owned);
        seen.ok_or_else(|| Error::usage("this name is not UTF-8, which a configuration is").at(&path))
    };
    Ok([seen(&files[0])?, seen(&files[1])?])
}

/// Writes the training text and the pairs held out of it (indices, in order) as [train, valid][source, target].
fn write_text(corpus: &Corpus, held_out: &[usize], directory: &Path, names: [&[String; 2]; 2]) -> Result<()> {
    let folder = Folder::containing(directory).and_then(|(parent, name)| parent.made_folder(name, Links::Refused));
    let folder = folder.map_err(|error| {
        let help = "a file has the name of a folder: move it away, or name another configuration with --output";
        let is_file = error.kind() == ErrorKind::NotADirectory;
        let error = Error::io("make the folder", directory, error);
        if is_file { error.help(help) } else { error }
    })?;
    let names: Vec<&String> = names.into_iter().flatten().collect();
    let failed = |file: usize, error| Error::io("write", directory.join(names[file]), error);
    let mut staged = Vec::new();
    for (file, name) in names.iter().enumerate() {
        staged.push(folder.stage_shared(name).map_err(|error| failed(file, error))?);
    }
    let mut outputs: Vec<_> = staged.iter().map(|staged| BufWriter::new(staged.file())).collect();
    let (mut index, mut next) = (0, held_out.iter().copied().peekable());
    for block in corpus.blocks()? {
        let block = block?;
        for (source, target) in (0..block.len()).map(|pair| block.get(pair)) {
            let set = if next.next_if_eq(&index).is_some() { 2 } else { 0 };
            for (side, line) in [source, target].into_iter().enumerate() {
                writeln!(outputs[set + side], "{line}").map_err(|error| failed(set + side, error))?;
            }
            index += 1;
        }
    }
    for (file, mut output) in outputs.into_iter().enumerate() {
        output.flush().and_then(|()| staged[file].file().sync_all()).map_err(|error| failed(file, error))?;
    }
    // At no time is a new file beside an old one.
    for (file, name) in names.iter().enumerate() {
        folder.remove_file(name).map_err(|error| failed(file, error))?;
    }
    for (file, staged) in staged.into_iter().enumerate() {
        staged.persist().map_err(|error| failed(file, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
