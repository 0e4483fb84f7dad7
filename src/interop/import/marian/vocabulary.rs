//! The tokenizers: from `vocab.spm`, or from a `vocab.yml` or plain text that lists the pieces of SentencePiece models
//! or of text that is already split. Padding is added after the pieces.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::files::{self, Files};
use super::settings::Settings;

use crate::data::tokenizer::{OwnIds, Tokenizer};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::quoted;
use crate::interop::import::read;
use crate::interop::yaml;

/// The piece that we add.
const PADDING: &str = "<pad>";

/// Reads both sides.
///
/// # Errors
/// A file cannot be read, or is not of this model.
pub(super) fn read_tokenizers(files: &Files, settings: &Settings, allows_unknown: bool) -> Result<Tokenizers> {
    let [source, target] = &files.vocabularies;
    let side = |vocabulary: &Path, side: usize| {
        let model = files.models.as_ref().map(|models| models[side].as_path());
        read_side(vocabulary, model, settings.sizes[side], allows_unknown).map(Arc::new)
    };
    let first = side(source, 0)?;
    if source == target && files.models.is_none() && settings.sizes[0] == settings.sizes[1] {
        return Ok(Tokenizers { source: first.clone(), target: first });
    }
    Ok(Tokenizers { source: first, target: side(target, 1)? })
}

/// The tokenizer of a side, from its vocabulary and the SentencePiece model beside it, if there is one.
fn read_side(vocabulary: &Path, model: Option<&Path>, size: usize, allows_unknown: bool) -> Result<Tokenizer> {
    let (mut pieces, model) = if files::is_model(vocabulary) {
        let tokenizer = Tokenizer::load(vocabulary)?;
        // Pieces that our loader has appended, such as `<pad>`, are not in the file.
        let own = tokenizer.vocab_size() - tokenizer.appended().len();
        let pieces = (0..own as u32).map(|id| (tokenizer.piece(id).unwrap_or_default().to_owned(), id)).collect();
        (pieces, Some(vocabulary))
    } else {
        (pieces_of(vocabulary, size)?, model)
    };
    if pieces.len() != size {
        let what = format!("the vocabulary has {} pieces, and the model {size}", pieces.len());
        return Err(Error::failure(what).at(vocabulary).help("the files are of different models"));
    }
    let id = |name: &str| pieces.iter().find(|(piece, _)| piece == name).map(|(_, id)| *id);
    let needed =
        |name: &str| id(name).ok_or_else(|| Error::failure(format!("the vocabulary has no {name}")).at(vocabulary));
    let (eos, unk) = (needed("</s>")?, needed("<unk>")?);
    if id(PADDING).is_some() || (model.is_none() && id("<s>").is_some()) {
        let what = format!(
            "the vocabulary has a {PADDING} or <s> of its own, which mt would take for the beginning of a translation"
        );
        return Err(Error::failure(what).at(vocabulary));
    }
    let pad = size as u32;
    pieces.push((PADDING.to_owned(), pad));
    let language_tags = pieces.iter().any(|(piece, _)| piece.starts_with(">>") && piece.ends_with("<<"));
    let Some(model) = model else {
        if allows_unknown {
            let what = "`allow-unk` is true, but mt has that only for SentencePiece models";
            return Err(Error::failure(what).at(vocabulary).help("remove `allow-unk` from the decoder.yml"));
        }
        return Tokenizer::from_words(pieces).map_err(|error| error.at(vocabulary));
    };
    let forbidden = if allows_unknown { vec![pad] } else { vec![pad, unk] };
    let table: Map<String, Value> = pieces.into_iter().map(|(piece, id)| (piece, id.into())).collect();
    let ids = OwnIds {
        vocabulary: Value::Object(table),
        special: [pad, pad, eos, unk],
        forbidden,
        language_tags,
        tags_in_text: false,
    };
    Tokenizer::from_sentencepiece(&read(model)?, ids).map_err(|error| error.at(model))
}

/// The pieces of a list with ids below `size`; Marian ignores the others. As in Marian, the name of the file tells YAML
/// from plain text, in which the line's number, from zero, is the piece's id.
fn pieces_of(vocabulary: &Path, size: usize) -> Result<Vec<(String, u32)>> {
    if !files::is_yaml(vocabulary) {
        return pieces_by_line(vocabulary, size);
    }
    let mut pieces = Vec::new();
    for (piece, value) in files::entries(vocabulary)? {
        let id = match &value {
            yaml::Value::Scalar(text) => text.parse::<u32>().ok(),
            _ => None,
        };
        let id = id.ok_or_else(|| Error::failure(format!("the piece {} has no id", quoted(&piece))).at(vocabulary))?;
        if (id as usize) < size {
            pieces.push((piece, id));
        }
    }
    Ok(pieces)
}

/// The pieces of a plain list: one on each line.
fn pieces_by_line(vocabulary: &Path, size: usize) -> Result<Vec<(String, u32)>> {
    let text = files::text(vocabulary)?;
    let mut pieces = Vec::new();
    for (number, line) in text.trim_end_matches('\n').split('\n').enumerate().take(size) {
        let piece = line.strip_suffix('\r').unwrap_or(line);
        let problem = if piece.is_empty() {
            Some((
                "an empty line; each line has to be a piece",
                "remove it, if the pieces after it have their ids without it",
            ))
        } else if piece.contains('\t') {
            Some((
                "more than a piece, as in the .vocab of SentencePiece",
                "name the SentencePiece model itself, a .spm",
            ))
        } else {
            None
        };
        if let Some((what, help)) = problem {
            return Err(Error::failure(what).at_line(vocabulary, number + 1, 0).help(help));
        }
        pieces.push((piece.to_owned(), number as u32));
    }
    Ok(pieces)
}
