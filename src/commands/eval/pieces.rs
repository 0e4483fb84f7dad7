//! `--tokenize` with a SentencePiece model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::cli::{EvalArgs, MetricArgs};
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::metrics::pieces::{NAMES, Pieces};
use crate::{file, limits};

/// A model that sacrebleu knows by name. The first is also that of `spm`, without a file.
struct Known {
    name: &'static str,
    /// Its file among those of sacrebleu.
    file: &'static str,
    address: &'static str,
}

const KNOWN: [Known; 3] = [
    Known {
        name: "flores101",
        file: "sacrebleu_tokenizer_spm.model",
        address: "https://dl.fbaipublicfiles.com/fairseq/models/flores/sacrebleu_tokenizer_spm.model",
    },
    Known { name: "flores200", file: "flores200sacrebleuspm", address: "https://tinyurl.com/flores200sacrebleuspm" },
    Known {
        name: "spBLEU-1K",
        file: "spbleu-1k_tokenizer_spm.model",
        address: "https://www.dlnlp.ai/spBLEU-1K/spbleu-1k_tokenizer_spm.model",
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
        let error = Error::usage(format!("--report compares words, and --tokenize {name} finds pieces of words"));
        return Err(error.help("leave one of them out"));
    }
    let known = KNOWN.iter().find(|known| known.name == name).unwrap_or(&KNOWN[0]);
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

/// Where sacrebleu keeps a model.
fn of_sacrebleu(name: &str, known: &Known) -> Result<PathBuf> {
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
