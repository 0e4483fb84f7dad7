//! The tokenizer of T5, MADLAD-400 and mT5: a SentencePiece model whose ids are its own. The embedding may have more
//! rows than it has pieces: T5's sentinels (`<extra_id_0>`), and rows that round its size up.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::folder::read_json;
use super::marian_vocabulary::{ADDED, CONFIG, TOKENIZER, refuse_added_tokens};
use super::settings::Settings;
use super::{MOST_SPARE_ROWS, read, spare_piece};
use crate::data::tokenizer::{OwnIds, Tokenizer, is_text_tag};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::quoted;

/// A SentencePiece model.
pub(super) const MODEL: &str = "spiece.model";

/// The piece that ends a sentence.
const END: &str = "</s>";

/// The files of the subwords.
pub(super) const FORMS: &[&[&str]] = &[&[MODEL]];
/// Files that may come with them.
pub(super) const OPTIONAL: &[&str] = &[CONFIG, ADDED, TOKENIZER];

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
    // Its sentinels are in no translation.
    let file_of_all = directory.join(TOKENIZER);
    let all = if file_of_all.exists() { read_json(&file_of_all)? } else { Map::new() };
    let added = all.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let added = added.filter_map(|token| Some(token["content"].as_str()?.to_owned())).collect();
    refuse_added_tokens(directory, added, |token| {
        token.starts_with("<extra_id_") || !model.ids_of(&[token]).is_empty()
    })?;
    if model.piece(settings.eos) != Some(END) {
        let found = quoted(model.piece(settings.eos).unwrap_or_default());
        let what = format!("`eos_token_id` of config.json is {}, which is {found} here, and not {END}", settings.eos);
        return Err(Error::failure(what).at(&file).help("the files are of different models"));
    }
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
