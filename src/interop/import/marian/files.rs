//! Which files belong to a model.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::file::folder_of;
use crate::interop::import::read;
use crate::interop::yaml::{self, Value};

/// The files of a model.
pub(super) struct Files {
    /// `model.npz`.
    pub(super) weights: PathBuf,
    /// Names of other models in its folder, saved by the same training.
    pub(super) passed_over: Vec<String>,
    /// Its `decoder.yml`, which names the vocabularies and says how to search.
    pub(super) decoder: Option<PathBuf>,
    /// The vocabularies of source and target: `.spm`, `.yml` or plain text.
    pub(super) vocabularies: [PathBuf; 2],
    /// SentencePiece models that go with lists of their pieces, as in OPUS-MT's releases.
    pub(super) models: Option<[PathBuf; 2]>,
}

/// Whether a file has weights, judging by its name. `model.npz.optimizer.npz` has only the state of the training.
pub(super) fn is_weights(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Validation writes `model.npz.best-perplexity.npz`.
    name.ends_with(".npz") && !name.ends_with(".optimizer.npz") && file.is_file()
}

/// The files of a folder that have weights, by name.
pub(super) fn weights_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_weights(path)).collect();
    found.sort();
    found
}

impl Files {
    /// The files of the model at `source`, which is its file of weights or its folder.
    ///
    /// # Errors
    /// There are several models; vocabularies are missing.
    pub(super) fn find(source: &Path) -> Result<Self> {
        let (weights, decoder, passed_over) =
            if source.is_file() { (source.to_path_buf(), decoder_of(source), Vec::new()) } else { in_folder(source)? };
        let folder = folder_of(&weights);
        let named = match &decoder {
            Some(file) => list(file, "vocabs")?,
            None => Vec::new(),
        };
        let vocabularies = match (&decoder, named.as_slice()) {
            (Some(file), [source, target]) => [locate(folder, source, file)?, locate(folder, target, file)?],
            (Some(file), [_, ..]) => {
                let what = format!("expected two vocabularies, of source and target, found {}", named.len());
                return Err(Error::failure(what).at(file));
            }
            _ => lone_vocabularies(folder)?,
        };
        let models = ["source.spm", "target.spm"].map(|name| folder.join(name));
        let are_lists = vocabularies.iter().all(|file| !is_model(file));
        let is_there = models.each_ref().map(|file| file.is_file());
        if are_lists && is_there[0] != is_there[1] {
            let [there, missing] = if is_there[0] { &models } else { &[models[1].clone(), models[0].clone()] };
            let what = format!("it is missing, though {} is there", there.display());
            let help = "put it beside the model; if text is split already, remove the other one";
            return Err(Error::failure(what).at(missing).help(help));
        }
        let models = (are_lists && is_there[0]).then_some(models);
        Ok(Self { weights, passed_over, decoder, vocabularies, models })
    }
}

/// Whether a vocabulary is a SentencePiece model.
pub(super) fn is_model(vocabulary: &Path) -> bool {
    vocabulary.extension().is_some_and(|extension| extension == "spm" || extension == "model")
}

/// Whether a vocabulary is YAML, of which JSON is a part.
pub(super) fn is_yaml(vocabulary: &Path) -> bool {
    vocabulary.extension().is_some_and(|extension| ["yml", "yaml", "json"].iter().any(|yaml| extension == *yaml))
}

/// The file of a model's search options, under Marian's name for it or the one used in releases.
fn decoder_of(weights: &Path) -> Option<PathBuf> {
    let mut own = weights.as_os_str().to_owned();
    own.push(".decoder.yml");
    let common = weights.with_file_name("decoder.yml");
    [PathBuf::from(own), common].into_iter().find(|file| file.is_file())
}

/// The model of a folder: the one that its `decoder.yml` names, or else the only one, or else the last of a training.
/// With its search options, and the names of the training's other models.
fn in_folder(folder: &Path) -> Result<(PathBuf, Option<PathBuf>, Vec<String>)> {
    let decoder = folder.join("decoder.yml");
    if decoder.is_file() {
        match list(&decoder, "models")?.as_slice() {
            // It has search options only.
            [] => {}
            [model] => return Ok((locate(folder, model, &decoder)?, Some(decoder), Vec::new())),
            models => {
                let what = format!("it names {} models, but only one is imported at a time", models.len());
                let help = "name the .npz of one: mt import FILE.npz --out DIR";
                return Err(Error::failure(what).at(&decoder).help(help));
            }
        }
    }
    let found = weights_in(folder);
    let mut names: Vec<String> = found.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned())).collect();
    let Some(last) = last_of_training(&names) else {
        let what = format!("the folder has {} models: {}", names.len(), names.join(", "));
        return Err(Error::failure(what).at(folder).help("name one of them: mt import FILE.npz --out DIR"));
    };
    let weights = folder.join(names.remove(last));
    let decoder = decoder_of(&weights);
    Ok((weights, decoder, names))
}

/// Which of these files holds a training's last model, if all are of one training: beside `model.npz` it may have
/// `model.iter1000.npz` and `model.npz.best-perplexity.npz`.
fn last_of_training(names: &[String]) -> Option<usize> {
    let is_saved_with = |name: &str, last: &str| {
        let iteration =
            |stem: &str| name.strip_prefix(stem)?.strip_prefix(".iter")?.strip_suffix(".npz").map(is_number);
        let is_of_iteration = last.strip_suffix(".npz").and_then(iteration).unwrap_or(false);
        let is_best = name.strip_prefix(last).is_some_and(|rest| rest.starts_with(".best-"));
        name == last || is_of_iteration || is_best
    };
    names.iter().position(|last| names.iter().all(|name| is_saved_with(name, last)))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A list of a YAML file; empty if it is not there.
fn list(file: &Path, key: &str) -> Result<Vec<String>> {
    let value = entries(file)?.into_iter().find(|(name, _)| name == key);
    match value {
        Some((_, Value::List(list))) => Ok(list),
        Some((_, Value::Scalar(one))) => Ok(vec![one]),
        Some((_, Value::Null)) | None => Ok(Vec::new()),
        Some((_, Value::Nested)) => Err(Error::failure(format!("`{key}` is not a list of files")).at(file)),
    }
}

/// What a YAML file says.
pub(super) fn entries(file: &Path) -> Result<Vec<(String, Value)>> {
    yaml::table(&text(file)?).map_err(|error| error.at(file))
}

/// The text of a small file.
pub(super) fn text(file: &Path) -> Result<String> {
    String::from_utf8(read(file)?).map_err(|error| Error::failure("this is not UTF-8 text").at(file).caused_by(error))
}

/// Finds a file that a `decoder.yml` names, in the folder of the model alone: its path may be that of another machine,
/// and whoever wrote it may mean any file of this one.
fn locate(folder: &Path, named: &str, by: &Path) -> Result<PathBuf> {
    let named = Path::new(named);
    let is_below = named.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let beside = named.file_name().map(|name| folder.join(name));
    let places = [is_below.then(|| folder.join(named)), beside];
    places.into_iter().flatten().find(|file| file.is_file()).ok_or_else(|| {
        let what = format!("it names {}, which is not in the folder of the model", named.display());
        Error::failure(what).at(by).help("put a copy of the file into that folder")
    })
}

/// The vocabularies of a folder without a `decoder.yml`: a single one, used for both sides.
fn lone_vocabularies(folder: &Path) -> Result<[PathBuf; 2]> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let is_vocabulary = |path: &PathBuf| {
        let name = name(path);
        let is_side = matches!(name.as_str(), "source.spm" | "target.spm");
        let endings = [".spm", "vocab.yml", "vocab.yaml", "vocab.json", "vocab.txt"];
        path.is_file() && !is_side && endings.iter().any(|ending| name.ends_with(ending))
    };
    let mut found: Vec<PathBuf> = entries.filter(is_vocabulary).collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok([one.clone(), one.clone()]),
        _ => {
            let names = found.iter().map(name).collect::<Vec<_>>().join(", ");
            let what =
                format!("which vocabularies the model has is not known: no decoder.yml names them, and there {}", {
                    if found.is_empty() { "is none".to_owned() } else { format!("are several ({names})") }
                });
            let help = "write a decoder.yml beside the model: \
                        vocabs: [FILE of the source, FILE of the target], each a .spm, a .yml, or text with \
                        one piece a line";
            Err(Error::failure(what).at(folder).help(help))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_model_of_a_training_is_told_from_others() {
        for (names, last) in [
            (&["model.npz"][..], Some("model.npz")),
            (&["any.iter7.npz"], Some("any.iter7.npz")),
            (&["model.iter1000.npz", "model.iter20.npz", "model.npz"], Some("model.npz")),
            (&["big.npz", "big.npz.best-bleu-detok.npz", "big.npz.best-perplexity.npz"], Some("big.npz")),
            (&["a.npz", "b.npz"], None),
            (&["model.iter20.npz", "model.iter40.npz"], None),
            (&["model.iter20.npz", "model.npz", "other.npz"], None),
            (&["model.iter.npz", "model.npz"], None),
            (&["model.npz", "model2.iter20.npz"], None),
            (&[], None),
        ] {
            let owned: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(last_of_training(&owned).map(|index| names[index]), last, "{names:?}");
        }
    }
}
