//! The tokenizer of NLLB-200, M2M-100 and mBART-50 models: subwords, and languages that are pieces.
//!
//! The ids of pieces are
//!
//! - with `sentencepiece.bpe.model` alone (NLLB-200, mBART-50) fairseq's: four special tokens, and then the model's
//!   pieces from the third on, each one higher than there; then the languages, then `<mask>`;
//! - with `vocab.json` beside it (M2M-100) those of that file; then the languages;
//! - with `tokenizer.json` alone its own.
//!
//! The names of the languages, and their order, are those in `tokenizer.json`, `special_tokens_map.json` or
//! `tokenizer_config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::folder::read_json;
use super::settings::Settings;
use super::{MOST_SPARE_ROWS, read, spare_piece};
use crate::data::tokenizer::{Languages, OwnIds, Tokenizer};
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::escape::{brief, quoted};

/// A SentencePiece model.
const MODEL: &str = "sentencepiece.bpe.model";
/// The ids of its pieces, of M2M-100.
const VOCABULARY: &str = "vocab.json";
/// The whole tokenizer.
const TOKENIZER: &str = "tokenizer.json";
const SPECIAL: &str = "special_tokens_map.json";
const CONFIG: &str = "tokenizer_config.json";

/// The files of the subwords, in either form.
pub(super) const FORMS: &[&[&str]] = &[&[MODEL], &[TOKENIZER]];
/// Files that may come with them.
pub(super) const OPTIONAL: &[&str] = &[VOCABULARY, TOKENIZER, SPECIAL, CONFIG];

/// The special tokens with which fairseq's vocabularies begin.
const FIRST: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
/// SentencePiece models begin with three of them.
const REPLACED: u32 = 3;
const MASK: &str = "<mask>";

/// Reads the tokenizer of both sides.
///
/// # Errors
/// A file cannot be read, no file names the languages, or the files contradict each other or `config.json`.
pub(super) fn read_tokenizers(directory: &Path, settings: &Settings) -> Result<Tokenizers> {
    let optional = |name: &str| {
        let file = directory.join(name);
        if file.exists() { read_json(&file) } else { Ok(Map::new()) }
    };
    let (config, special, whole) = (optional(CONFIG)?, optional(SPECIAL)?, optional(TOKENIZER)?);
    let size = settings.sizes[1];
    let added = added(&whole, &config);
    let file = directory.join(if directory.join(MODEL).exists() { MODEL } else { TOKENIZER });
    let mut pieces = if directory.join(VOCABULARY).exists() {
        listed(&directory.join(VOCABULARY))?
    } else if directory.join(MODEL).exists() {
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        let has_its_languages = || names(&special, &config).iter().any(|name| is_of_m2m(name));
        if class.starts_with("M2M100") || whole.is_empty() && has_its_languages() {
            let error = Error::failure(format!("this tokenizer of M2M-100 lacks {VOCABULARY}, the ids of its pieces"));
            return Err(error.at(directory).help("fetch it, too: it belongs to the model"));
        }
        fairseq(&file)?
    } else {
        listed_json(&file, &whole)?
    };
    let names = names(&special, &config);
    let ids: BTreeMap<&str, u32> = added.iter().map(|(id, name)| (name.as_str(), *id)).collect();
    // Where no file gives their ids, they follow the pieces in the order in which they are listed.
    let texts: BTreeSet<String> = pieces.values().cloned().collect();
    // A whole tokenizer gives them all; `transformers` lists languages that a trimmed one has not.
    let may_be_new = file.ends_with(MODEL) || !names.iter().any(|name| ids.contains_key(name.as_str()));
    let new = names.iter().filter(|name| may_be_new && !ids.contains_key(name.as_str()) && !texts.contains(*name));
    let free = (pieces.len() as u32..).filter(|id| !added.contains_key(id));
    pieces.extend(free.zip(new.cloned()).collect::<Vec<_>>());
    pieces.extend(added.iter().map(|(id, name)| (*id, name.clone())));
    // The first id after the pieces.
    let end = |pieces: &BTreeMap<u32, String>| pieces.last_key_value().map_or(0, |(id, _)| *id as usize + 1);
    let mask = config.get("mask_token").and_then(token).unwrap_or_else(|| MASK.to_owned());
    // fairseq's vocabularies end with it. A trimmed M2M-100 has none, and a whole tokenizer has it or not.
    let may_have_mask = file.ends_with(MODEL) && !directory.join(VOCABULARY).exists() && end(&pieces) < size;
    if may_have_mask && !pieces.values().any(|piece| *piece == mask) {
        pieces.insert(end(&pieces) as u32, mask.clone());
    }
    // Special tokens, not subwords that merely look like a code.
    let stated: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let is_stated = |id: u32, piece: &str| added.get(&id).is_some_and(|name| name == piece) || stated.contains(piece);
    let codes = pieces.iter().filter(|(id, piece)| code(piece).is_some() && is_stated(**id, piece));
    let codes: Vec<(String, u32)> = codes.filter_map(|(id, piece)| Some((code(piece)?.to_owned(), *id))).collect();
    if codes.is_empty() {
        let what = format!("no file names the model's languages: neither {TOKENIZER}, {SPECIAL} nor {CONFIG}");
        return Err(Error::failure(what).at(directory).help("fetch them, too: they belong to the model"));
    }
    let control = pieces.iter().filter(|(_, piece)| **piece == mask).map(|(id, _)| *id).collect();
    let first_spare = end(&pieces);
    if !(first_spare..=first_spare + MOST_SPARE_ROWS).contains(&size) {
        let what = format!("the vocabulary has {first_spare} pieces, and the model {size}");
        return Err(Error::failure(what).at(&file).help("the files are of different models"));
    }
    if let Some(id) = (0..first_spare as u32).find(|id| !pieces.contains_key(id)) {
        let error = Error::failure(format!("no piece has the id {id}, and others have higher ones")).at(&file);
        return Err(error.help("the files are of different models, or one of them is damaged"));
    }
    let spare: Vec<u32> = (first_spare as u32..size as u32).collect();
    for (key, stated, name, default) in
        [("pad_token_id", settings.pad, "pad_token", "<pad>"), ("eos_token_id", settings.eos, "eos_token", "</s>")]
    {
        let name = config.get(name).and_then(token).unwrap_or_else(|| default.to_owned());
        if let Some(piece) = pieces.get(&stated).filter(|piece| **piece != name) {
            let what = format!("`{key}` of config.json is {stated}, which is {}, and not {name}", quoted(piece));
            return Err(Error::failure(what).at(&file).help("the files are of different models"));
        }
    }
    if file.ends_with(MODEL) {
        let is_known = |piece: &String| texts.contains(piece) || code(piece).is_some() || *piece == mask;
        let others: Vec<String> = added.values().filter(|piece| !is_known(piece)).map(|it| quoted(it)).collect();
        if !others.is_empty() {
            let what =
                format!("tokens were added to its vocabulary, which mt would read as text: {}", others.join(", "));
            let help = match whole.is_empty() {
                true => "to import it without them, remove them from `added_tokens_decoder` in tokenizer_config.json",
                false => "remove sentencepiece.bpe.model: tokenizer.json, which has them, is then read instead",
            };
            return Err(Error::failure(what).at(directory).help(help));
        }
    }
    let mut forbidden = settings.forbidden.clone();
    forbidden.extend(&spare);
    let last = config.get("legacy_behaviour").and_then(Value::as_bool).unwrap_or(false);
    let languages = Languages { codes, control, forbidden: forbidden.clone(), last };
    let tokenizer = if file.ends_with(MODEL) {
        pieces.extend(spare.iter().map(|id| (*id, spare_piece(*id))));
        from_model(&file, pieces, forbidden, settings)?
    } else {
        from_json(&file, whole, &spare)?
    };
    if tokenizer.pad_id() != settings.pad || tokenizer.eos_id() != settings.eos {
        let (pad, end) = (tokenizer.pad_id(), tokenizer.eos_id());
        let what = format!("<pad> and </s> have the ids {pad} and {end} in this tokenizer, and others in config.json");
        return Err(Error::failure(what).at(&file).help("the files are of different models"));
    }
    if tokenizer.vocab_size() != size {
        let what = format!("the vocabulary has {} pieces, and the model {size}", tokenizer.vocab_size());
        return Err(Error::failure(what).at(&file).help("the files are of different models"));
    }
    let tokenizer = Arc::new(tokenizer.with_languages(&languages).map_err(|error| error.at(&file))?);
    Ok(Tokenizers { source: tokenizer.clone(), target: tokenizer })
}

/// The code of a language in its piece: `deu_Latn`, `de_DE` or `__de__`.
fn code(piece: &str) -> Option<&str> {
    let code = piece.strip_prefix("__").and_then(|piece| piece.strip_suffix("__")).unwrap_or(piece);
    let is_script = |part: &str| (2..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_alphabetic());
    let mut parts = code.split('_');
    let is_name = parts
        .next()
        .is_some_and(|name| (2..=8).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_lowercase()));
    let is_whole = parts.all(is_script);
    // A plain word is a language only between underscores.
    (is_name && is_whole && (code.contains('_') || code.len() < piece.len())).then_some(code)
}

/// Whether this is a language as M2M-100 names it: `__de__`.
fn is_of_m2m(piece: &str) -> bool {
    code(piece).is_some_and(|code| code.len() < piece.len())
}

/// The name of a token: itself, or its `content`.
fn token(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// The tokens that were added to a vocabulary, with their ids.
fn added(whole: &Map<String, Value>, config: &Map<String, Value>) -> BTreeMap<u32, String> {
    let id = |id: u64| u32::try_from(id).ok();
    let of_whole = whole.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let of_whole = of_whole.filter_map(|entry| Some((id(entry["id"].as_u64()?)?, token(entry)?)));
    let of_config = config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
    let of_config = of_config.filter_map(|(key, entry)| Some((key.parse().ok()?, token(entry)?)));
    of_config.chain(of_whole).collect()
}

/// The further special tokens that a file lists, in order.
fn names(special: &Map<String, Value>, config: &Map<String, Value>) -> Vec<String> {
    let lists = [special, config].into_iter().flat_map(|file| {
        ["additional_special_tokens", "extra_special_tokens"].into_iter().filter_map(|key| file.get(key)?.as_array())
    });
    let mut lists = lists.filter(|list| !list.is_empty());
    lists.next().into_iter().flatten().filter_map(token).collect()
}

/// The pieces of `vocab.json` by their ids.
fn listed(file: &Path) -> Result<BTreeMap<u32, String>> {
    let table = read_json(file)?;
    let mut pieces = BTreeMap::new();
    for (piece, id) in &table {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| (*id as usize) < table.len());
        if id.is_none_or(|id| pieces.insert(id, piece.clone()).is_some()) {
            let (piece, id) = (quoted(piece), brief(&table[piece].to_string()).into_owned());
            let what =
                format!("the piece {piece} has the id {id}, which another has, or which is not below {}", table.len());
            return Err(Error::failure(what).at(file));
        }
    }
    Ok(pieces)
}

/// The pieces of `tokenizer.json` by their ids.
fn listed_json(file: &Path, whole: &Map<String, Value>) -> Result<BTreeMap<u32, String>> {
    let tokenizer = from_json(file, whole.clone(), &[])?;
    Ok((0..tokenizer.vocab_size() as u32).filter_map(|id| Some((id, tokenizer.piece(id)?.to_owned()))).collect())
}

/// The pieces of a SentencePiece model by fairseq's ids.
fn fairseq(file: &Path) -> Result<BTreeMap<u32, String>> {
    let model = Tokenizer::from_bytes(read(file)?).map_err(|error| error.at(file))?;
    let of_model = (REPLACED..(model.vocab_size() - model.appended().len()) as u32)
        .filter_map(|id| Some(model.piece(id)?.to_owned()));
    Ok((0..).zip(FIRST.map(str::to_owned).into_iter().chain(of_model)).collect())
}

fn from_model(
    file: &Path,
    pieces: BTreeMap<u32, String>,
    forbidden: Vec<u32>,
    settings: &Settings,
) -> Result<Tokenizer> {
    let size = pieces.len();
    let unknown = pieces.iter().find(|(_, piece)| piece.as_str() == "<unk>").map(|(id, _)| *id);
    let Some(unknown) = unknown else {
        return Err(Error::failure("the vocabulary has no <unk>").at(file));
    };
    let vocabulary: Map<String, Value> = pieces.into_iter().map(|(id, piece)| (piece, id.into())).collect();
    if vocabulary.len() != size {
        return Err(Error::failure("two of its pieces have the same name").at(file));
    }
    let ids = OwnIds {
        special: [settings.pad, settings.start, settings.eos, unknown],
        forbidden,
        language_tags: false,
        tags_in_text: false,
        vocabulary: Value::Object(vocabulary),
    };
    Tokenizer::from_sentencepiece(&read(file)?, ids).map_err(|error| error.at(file))
}

fn from_json(file: &Path, mut whole: Map<String, Value>, spare: &[u32]) -> Result<Tokenizer> {
    // Our code adds languages and ends.
    whole.insert("post_processor".to_owned(), Value::Null);
    let tokens = whole.entry("added_tokens").or_insert_with(|| json!([]));
    if let Some(tokens) = tokens.as_array_mut() {
        tokens.extend(spare.iter().map(|id| {
            json!({
                "id": id, "content": spare_piece(*id), "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        }));
    }
    Tokenizer::from_json(format!("{:#}", Value::Object(whole))).map_err(|error| error.at(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_languages() {
        for (piece, found) in [
            ("deu_Latn", Some("deu_Latn")),
            ("zh_CN", Some("zh_CN")),
            ("en_XX", Some("en_XX")),
            ("__de__", Some("de")),
            ("__ceb__", Some("ceb")),
            ("<mask>", None),
            ("</s>", None),
            ("de", None),
            ("Deu_Latn", None),
            ("a_b_", None),
            ("madeupword0", None),
        ] {
            assert_eq!(code(piece), found, "{piece}");
        }
    }
}
