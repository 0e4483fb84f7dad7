//! The tokenizer of T5, MADLAD-400 and mT5: a SentencePiece model whose ids are its own. The embedding may have more
//! rows than it has pieces: T5's sentinels (`<extra_id_0>`), and rows that round its size up.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::folder::read_json;
use super::marian_vocabulary::ADDED;
use super::settings::Settings;
use super::{MOST_SPARE_ROWS, read, spare_piece};
use crate::data::tokenizer::{OwnIds, Tokenizer, is_text_tag};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::quoted;

/// A SentencePiece model.
pub(super) const MODEL: &str = "spiece.model";
const CONFIG: &str = "tokenizer_config.json";

/// The files of the subwords.
pub(super) const FORMS: &[&[&str]] = &[&[MODEL]];
/// Files that may come with them.
pub(super) const OPTIONAL: &[&str] = &[CONFIG, ADDED];

/// Reads the tokenizer of both sides.
///
/// # Errors
/// A file cannot be read; or the files contradict each other or `config.json`.
pub(super) fn read_tokenizers(directory: &Path, settings: &Settings) -> Result<Tokenizers> {
    let file = directory.join(MODEL);
    let bytes = read(&file)?;
    let model = Tokenizer::from_bytes(bytes.clone()).map_err(|error| error.at(&file))?;
    let pieces = model.vocab_size() - model.appended().len();
    let size = settings.sizes[1];
    if pieces > size || size - pieces > MOST_SPARE_ROWS {
        let what = format!("the vocabulary has {pieces} pieces, and the model {size}");
        return Err(Error::failure(what).at(&file).help("the files are of different models"));
    }
    refuse_added(directory, &model)?;
    let piece = |id: u32| model.piece(id).map_or_else(|| spare_piece(id), str::to_owned);
    let names = (0..size as u32).map(|id| if (id as usize) < pieces { piece(id) } else { spare_piece(id) });
    let vocabulary: Map<String, Value> = names.zip(0u32..).map(|(piece, id)| (piece, id.into())).collect();
    if vocabulary.len() != size {
        return Err(Error::failure("two of its pieces have the same name").at(&file));
    }
    let spare = pieces as u32..size as u32;
    let tags: Vec<u32> = (0..pieces as u32).filter(|id| model.piece(*id).is_some_and(is_text_tag)).collect();
    let (pad, start, end, unk) = (settings.pad, settings.start, settings.eos, model.unk_id());
    let ids = OwnIds {
        special: [pad, start, end, unk],
        language_tags: false,
        tags_in_text: !tags.is_empty(),
        forbidden: settings.forbidden.iter().copied().chain([start, unk]).chain(tags).chain(spare).collect(),
        vocabulary: Value::Object(vocabulary),
    };
    let tokenizer = Arc::new(Tokenizer::from_sentencepiece(&bytes, ids).map_err(|error| error.at(&file))?);
    Ok(Tokenizers { source: tokenizer.clone(), target: tokenizer })
}

/// Refuses tokens that were added to the vocabulary, except for T5's sentinels, which no translation has:
/// `transformers` splits text at them before SentencePiece does.
fn refuse_added(directory: &Path, model: &Tokenizer) -> Result<()> {
    let optional = |name: &str| {
        let file = directory.join(name);
        if file.exists() { read_json(&file) } else { Ok(Map::new()) }
    };
    let (config, listed) = (optional(CONFIG)?, optional(ADDED)?);
    let of_config = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let of_config = of_config.filter_map(|(_, token)| token["content"].as_str());
    let is_new = |token: &&str| !token.starts_with("<extra_id_") && model.ids_of(&[token]).is_empty();
    let mut added: Vec<&str> = listed.keys().map(String::as_str).chain(of_config).filter(is_new).collect();
    added.sort_unstable();
    added.dedup();
    if added.is_empty() {
        return Ok(());
    }
    let named: Vec<String> = added.iter().take(5).map(|token| quoted(token)).collect();
    let what = format!("tokens were added to its vocabulary, which mt would read as text: {}", named.join(", "));
    Err(Error::failure(what).at(directory).help(format!(
        "to import it without them, remove them from {ADDED} and from `added_tokens_decoder` in {CONFIG}"
    )))
}
