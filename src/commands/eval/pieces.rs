//! `--tokenize` with a SentencePiece model.

use std::path::{Path, PathBuf};

use crate::cli::{EvalArgs, MetricArgs};
use crate::data::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::file;
use crate::limits;
use crate::metrics::pieces::PieceBleu;
use crate::metrics::{BleuOptions, TextMetric};
use sha2::{Digest, Sha256};

/// A model that sacrebleu knows by name.
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

/// Any model; alone, as in sacrebleu, that of FLORES-101.
const ANY: &str = "spm";

/// BLEU with these options, of pieces if the flags ask for them.
///
/// # Errors
/// The model is not there, or is damaged.
pub(super) fn bleu(args: &EvalArgs, options: BleuOptions) -> Result<Box<dyn TextMetric>> {
    let MetricArgs { tokenize, tokenize_model: model, .. } = &args.metrics;
    let Some(name) = tokenize.as_deref().filter(|name| MetricArgs::PIECES.contains(name)) else {
        return match model {
            None => Ok(Box::new(options)),
            Some(_) => {
                let error = Error::usage("--tokenize-model is for a tokenizer that needs a model");
                Err(error.help(format!("give --tokenize {} as well", MetricArgs::PIECES.join(" or "))))
            }
        };
    };
    if args.report {
        let error = Error::usage(format!("--report compares words, and --tokenize {name} finds pieces of words"));
        return Err(error.help("leave one of them out"));
    }
    let known = KNOWN.iter().find(|known| known.name == name || (name == ANY && known.name == KNOWN[0].name));
    let file = match (model, known) {
        (Some(file), _) => file.clone(),
        (None, Some(known)) => of_sacrebleu(name, known)?,
        (None, None) => return Err(Error::usage(format!("--tokenize {name} needs --tokenize-model FILE"))),
    };
    let read = |error| Error::io("read the SentencePiece model", &file, error);
    let bytes = file::read_at_most(&file, limits::SENTENCEPIECE_BYTES as u64).map_err(read)?;
    let digest = format!("{:x}", Sha256::digest(&bytes));
    let help = "name a .model file of SentencePiece";
    let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| error.at(&file).more_help(help))?;
    if tokenizer.sentencepiece().is_none() {
        let error = Error::failure("this is no SentencePiece model").at(&file);
        return Err(error.help(help));
    }
    let name = match (name, model) {
        // Scores of other models are other scores, and nothing says that it is the model of that name.
        (_, Some(_)) => format!("{name}-{}", &digest[..8]),
        (ANY, None) => KNOWN[0].name.to_owned(),
        _ => name.to_owned(),
    };
    Ok(Box::new(PieceBleu::new(options, name, Box::new(move |line| tokenizer.pieces(line)))))
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
