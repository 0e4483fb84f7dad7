//! The tokenizers of MarianMT: a SentencePiece model for each side with the ids of its pieces, or a `tokenizer.json`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::folder::read_json;
use super::settings::Settings;
use super::{MOST_SPARE_ROWS, read, spare_piece};
use crate::data::tokenizer::{OwnIds, Tokenizer};
use crate::data::tokenizers::{self, Tokenizers};
use crate::error::{Error, Result};
use crate::escape::{brief, quoted};

/// The tokenizer of a model without SentencePiece: for both sides, or for the source.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// The settings of a tokenizer.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// Tokens that were added to a vocabulary, with their ids.
pub(super) const ADDED: &str = "added_tokens.json";

/// Whether a folder has a `tokenizer.json` and no SentencePiece model.
pub(super) fn is_in_json(directory: &Path) -> bool {
    let is_there = |name: &str| directory.join(name).is_file();
    is_there(TOKENIZER) && !is_there("source.spm")
}

/// The names of special tokens, as `tokenizer_config.json` has them.
struct Names {
    pad: String,
    eos: String,
    unk: String,
}

/// Reads both sides.
///
/// # Errors
/// A file cannot be read, or they contradict each other or `config.json`.
pub(super) fn read_tokenizers(directory: &Path, settings: &Settings) -> Result<Tokenizers> {
    if is_in_json(directory) {
        return in_json(directory, settings);
    }
    let config_file = directory.join(CONFIG);
    let config = if config_file.exists() { read_json(&config_file)? } else { Map::new() };
    let name = |key: &str, default: &str| {
        let value = &config.get(key);
        let text = value.and_then(|value| value.as_str().or_else(|| value["content"].as_str()));
        text.unwrap_or(default).to_owned()
    };
    let names =
        Names { pad: name("pad_token", "<pad>"), eos: name("eos_token", "</s>"), unk: name("unk_token", "<unk>") };
    let source_file = directory.join("vocab.json");
    let target_file = directory.join("target_vocab.json");
    // `MarianTokenizer` looks for the target's vocabulary only if this says so.
    let is_separate = match config.get("separate_vocabs").and_then(Value::as_bool) {
        Some(is_separate) => is_separate,
        None => target_file.exists() && config.is_empty(),
    };
    if is_separate && !target_file.exists() {
        let what =
            "tokenizer_config.json says that the target has its own vocabulary, but target_vocab.json is missing";
        return Err(Error::failure(what).at(directory).help("fetch the folder again"));
    }
    if settings.is_shared && is_separate {
        let what = "source and target share an embedding, but target_vocab.json gives the target ids of its own";
        return Err(Error::failure(what).at(&target_file));
    }
    if !is_separate && settings.sizes[0] != settings.sizes[1] {
        let error =
            Error::failure("source and target have vocabularies of different sizes, but there is one vocab.json");
        return Err(error.at(directory).help("target_vocab.json is missing"));
    }
    let vocabulary = read_json(&source_file)?;
    refuse_added_tokens(directory, Vec::new(), |token| vocabulary.contains_key(token))?;
    let target_file = if is_separate { target_file } else { source_file.clone() };
    let source = side(&source_file, &directory.join("source.spm"), &names, settings, 0)?;
    let target = side(&target_file, &directory.join("target.spm"), &names, settings, 1)?;
    Ok(Tokenizers { source: Arc::new(source), target: Arc::new(target) })
}

/// Refuses tokens that were added to a vocabulary, these and others: `transformers` splits text at them before
/// SentencePiece does.
pub(super) fn refuse_added_tokens(
    directory: &Path,
    mut added: Vec<String>,
    is_known: impl Fn(&str) -> bool,
) -> Result<()> {
    let optional = |name: &str| {
        let file = directory.join(name);
        if file.exists() { read_json(&file) } else { Ok(Map::new()) }
    };
    let (config, listed) = (optional(CONFIG)?, optional(ADDED)?);
    let of_config = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let of_config = of_config.filter_map(|(_, token)| Some(token["content"].as_str()?.to_owned()));
    added.extend(listed.keys().cloned().chain(of_config));
    added.retain(|token| !is_known(token));
    added.sort();
    added.dedup();
    if added.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = added.iter().take(5).map(|token| quoted(token)).collect();
    let more = if added.len() > named.len() { ", …" } else { "" };
    let what = format!("tokens were added to its vocabulary, which mt would read as text: {}{more}", named.join(", "));
    Err(Error::failure(what).at(directory).help(format!(
        "to import it without them, remove them from {ADDED}, from `added_tokens_decoder` in {CONFIG}, and \
         from `added_tokens` in {TOKENIZER}"
    )))
}

/// Reads the tokenizers of a folder that has a `tokenizer.json`.
fn in_json(directory: &Path, settings: &Settings) -> Result<Tokenizers> {
    let source_file = directory.join(TOKENIZER);
    let target_file = directory.join(tokenizers::TARGET);
    let source = Arc::new(without_end(&source_file)?);
    let (target_file, target) = match target_file.exists() {
        true => (target_file.clone(), Arc::new(without_end(&target_file)?)),
        false => (source_file.clone(), source.clone()),
    };
    let has_two = settings.target_tokenizer.is_some() || settings.sizes[0] != settings.sizes[1];
    if Arc::ptr_eq(&source, &target) && has_two {
        let what = format!("the model has two vocabularies, but {}, the target's, is missing", tokenizers::TARGET);
        let help = "`transformers` does not save it: copy it from the folder that `mt export` wrote";
        return Err(Error::failure(what).at(directory).help(help));
    }
    for (file, tokenizer, size) in [(&source_file, &source, 0), (&target_file, &target, 1)] {
        let (pieces, size) = (tokenizer.vocab_size(), settings.sizes[size]);
        if pieces != size {
            let what = format!("the vocabulary has {pieces} pieces, and the model {size}");
            return Err(Error::failure(what).at(file).help("the files are of different models"));
        }
    }
    for (key, stated, found) in [
        ("pad_token_id", settings.pad, target.pad_id()),
        ("eos_token_id", settings.eos, target.eos_id()),
        ("decoder_start_token_id", settings.start, target.bos_id()),
    ] {
        if stated != found {
            let what =
                format!("`{key}` of config.json is {stated}, but in this tokenizer that token has the id {found}");
            return Err(Error::failure(what).at(&target_file));
        }
    }
    let forbidden: HashSet<u32> = target.forbidden().into_iter().collect();
    if let Some(id) = settings.forbidden.iter().find(|id| !forbidden.contains(id)) {
        let what = format!("`bad_words_ids` has {id}, which is none of this tokenizer's special tokens");
        return Err(Error::failure(what).at(&target_file));
    }
    Ok(Tokenizers { source, target })
}

/// A tokenizer without the step that appends the end of the sentence, because our code does that.
fn without_end(file: &Path) -> Result<Tokenizer> {
    let mut json = read_json(file)?;
    json.insert("post_processor".to_owned(), Value::Null);
    Tokenizer::from_json(format!("{:#}", Value::Object(json))).map_err(|error| error.at(file))
}

/// The tokenizer of a side: 0 is the source, 1 the target.
fn side(vocabulary: &Path, model: &Path, names: &Names, settings: &Settings, side: usize) -> Result<Tokenizer> {
    let mut pieces = read_json(vocabulary)?;
    let size = settings.sizes[side];
    if pieces.len() > size || size - pieces.len() > MOST_SPARE_ROWS.min(pieces.len()) {
        let what = format!("the vocabulary has {} pieces, and the model {size}", pieces.len());
        return Err(Error::failure(what).at(vocabulary).help("the files are of different models"));
    }
    let spare = pieces.len() as u32..size as u32;
    let mut taken = vec![false; pieces.len()];
    for (piece, id) in &pieces {
        let slot = id.as_u64().and_then(|id| taken.get_mut(usize::try_from(id).ok()?)).filter(|taken| !**taken);
        let Some(slot) = slot else {
            let what = format!(
                "the piece {} has the id {}, which another has, or which is not below {}",
                quoted(piece),
                brief(&id.to_string()),
                taken.len()
            );
            return Err(Error::failure(what).at(vocabulary));
        };
        *slot = true;
    }
    let id = |name: &str| {
        let id = pieces.get(name).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| Error::failure(format!("the vocabulary has no {name}")).at(vocabulary))
    };
    let (pad, eos, unk) = (id(&names.pad)?, id(&names.eos)?, id(&names.unk)?);
    // Not checked for the source: its special tokens only come from its own tokenizer.
    for (name, found, stated) in [("pad_token_id", pad, settings.pad), ("eos_token_id", eos, settings.eos)] {
        if side == 1 && found != stated {
            let what = format!("`{name}` of config.json is {stated}, but that piece has the id {found}");
            return Err(Error::failure(what).at(vocabulary));
        }
    }
    let language_tags = side == 0 && pieces.keys().any(|piece| piece.starts_with(">>") && piece.ends_with("<<"));
    for id in spare.clone() {
        let piece = spare_piece(id);
        if pieces.insert(piece.clone(), id.into()).is_some() {
            return Err(
                Error::failure(format!("the piece {} has another id than its own", quoted(&piece))).at(vocabulary)
            );
        }
    }
    let ids = OwnIds {
        special: [pad, if side == 0 { pad } else { settings.start }, eos, unk],
        forbidden: if side == 0 { Vec::new() } else { settings.forbidden.iter().copied().chain(spare).collect() },
        language_tags,
        tags_in_text: false,
        vocabulary: Value::Object(pieces),
    };
    Tokenizer::from_sentencepiece(&read(model)?, ids).map_err(|error| error.at(model))
}
