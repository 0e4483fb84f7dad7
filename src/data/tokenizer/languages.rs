//! The tokenizer of a multilingual model such as NLLB-200: another tokenizer, and languages, each of which is a piece.
//!
//! As text, the language of a line is a tag at its beginning: `>>deu_Latn<< Guten Morgen.` As ids, it comes first. No
//! other text is ever read as a language, and none is written for one. In a model directory:
//!
//! ```json
//! { "version": "1.0", "type": "multilingual", "languages": { "deu_Latn": 256042, … }, "control": [256203],
//!   "forbidden": [1], "language_last": false, "tokenizer": { … } }
//! ```
//!
//! `control` are further ids that are never text, such as that of `<mask>`; `forbidden` are those that a translation
//! never has. A target begins with the end of the sentence, and then its language. With `language_last` the model has
//! learnt from sources with their language after the end of the sentence ([`SpecialIds::language_last`]).
//!
//! [`SpecialIds::language_last`]: crate::data::batch::SpecialIds::language_last

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bounded::GivenUp;
use super::codes::Codes;
use super::engine::{Dropout, Engine};
use super::trim::{self, Trimmed};
use super::{TextForm, Tokenizer, TokenizerKind};
use crate::error::{Error, Result};
use crate::escape::quoted;

/// The `type` of our JSON.
pub(super) const TYPE: &str = "multilingual";

/// A multilingual tokenizer.
pub(super) struct Multilingual {
    inner: Box<dyn Engine>,
    languages: Vec<Language>,
    /// Whether an id is never text: those of the languages, and others.
    is_control: Vec<bool>,
    forbidden: Vec<u32>,
    language_last: bool,
}

/// A language.
struct Language {
    /// What a line begins with: `>>deu_Latn<<`.
    tag: String,
    id: u32,
}

/// Our JSON; see the module's documentation.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: String,
    r#type: String,
    languages: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    control: Vec<u32>,
    forbidden: Vec<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    language_last: bool,
    tokenizer: Value,
}

/// The languages of a model.
#[derive(Clone, Debug, Default)]
pub struct Languages {
    /// Their codes, such as `deu_Latn`, with their ids.
    pub codes: Vec<(String, u32)>,
    /// Further ids that are never text.
    pub control: Vec<u32>,
    /// The ids that a translation never has.
    pub forbidden: Vec<u32>,
    /// Whether a source's language comes after its end.
    pub last: bool,
}

/// The tag for a language's code.
pub fn tag_of(code: &str) -> String {
    format!(">>{code}<<")
}

/// The code in a tag, such as `deu` in `>>deu<<`, `<2deu>`, `<deu>`, `__deu__` or `[deu]`.
pub fn code_of(tag: &str) -> &str {
    let inside = tag.trim_matches(|c: char| !c.is_alphanumeric());
    match inside.strip_prefix('2') {
        Some(rest) if rest.starts_with(char::is_alphabetic) => rest,
        _ => inside,
    }
}

/// Our JSON of a tokenizer with languages.
///
/// # Errors
/// The tokenizer's text is not JSON.
pub(super) fn file(tokenizer: &Tokenizer, languages: &Languages) -> Result<String> {
    let failed = |error| Error::failure("cannot write the tokenizer").caused_by(error);
    let stored = Stored {
        version: "1.0".to_owned(),
        r#type: TYPE.to_owned(),
        languages: languages.codes.iter().map(|(code, id)| (code.clone(), (*id).into())).collect(),
        control: languages.control.clone(),
        forbidden: languages.forbidden.clone(),
        language_last: languages.last,
        tokenizer: serde_json::from_str(tokenizer.json()).map_err(failed)?,
    };
    serde_json::to_string(&stored).map_err(failed)
}

impl Multilingual {
    /// Reads our JSON.
    ///
    /// # Errors
    /// It is not our JSON, the tokenizer in it is invalid, or an id is not one of its pieces.
    pub(super) fn from_json(json: &str) -> Result<Self> {
        let stored: Stored = serde_json::from_str(json)
            .map_err(|error| Error::failure(format!("its keys are wrong: {error}")).caused_by(error))?;
        if stored.version != "1.0" {
            return Err(Error::failure(format!("its version is {:?}, and mt knows \"1.0\"", stored.version)));
        }
        if stored.tokenizer["type"] == TYPE {
            return Err(Error::failure("its `tokenizer` is multilingual, too"));
        }
        let inner = Tokenizer::from_json(stored.tokenizer.to_string())?.engine;
        let size = inner.len();
        let id = |(code, id): (&String, &Value)| match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
            Some(id) if (id as usize) < size && !code.is_empty() && !code.contains(['<', '>']) => {
                Ok(Language { tag: tag_of(code), id })
            }
            _ => Err(Error::failure(format!("the language {} has the id {id}, of {size} pieces", quoted(code)))),
        };
        let languages: Vec<Language> = stored.languages.iter().map(id).collect::<Result<_>>()?;
        if languages.is_empty() {
            return Err(Error::failure("it has no `languages`"));
        }
        if let Some(id) = stored.control.iter().chain(&stored.forbidden).find(|id| **id as usize >= size) {
            return Err(Error::failure(format!("its `control` or `forbidden` has the id {id}, of {size} pieces")));
        }
        let mut is_control = vec![false; size];
        for id in languages.iter().map(|language| language.id).chain(stored.control.iter().copied()) {
            is_control[id as usize] = true;
        }
        let Stored { forbidden, language_last, .. } = stored;
        Ok(Self { inner, languages, is_control, forbidden, language_last })
    }

    /// The language that a line begins with, and the rest of the line. White space about the language belongs to it.
    fn split<'t>(&self, line: &'t str) -> (Option<&Language>, &'t str) {
        let text = line.trim_start();
        let Some(end) = text.strip_prefix(">>").and_then(|rest| rest.find("<<")) else { return (None, line) };
        let Some((tag, rest)) = text.split_at_checked(end + 4) else { return (None, line) };
        match self.languages.iter().find(|language| language.tag == tag) {
            Some(language) => (Some(language), rest.trim_start()),
            None => (None, line),
        }
    }

    /// What `encode` makes of a line, after its language.
    fn encoded(&self, line: &str, encode: impl Fn(&str) -> Vec<u32>) -> Vec<u32> {
        let (language, rest) = self.split(line);
        let mut ids: Vec<u32> = language.iter().map(|language| language.id).collect();
        if !rest.is_empty() {
            // Text that reads like a control token is unknown.
            let [_, _, _, unknown] = self.inner.specials();
            ids.extend(encode(rest).into_iter().map(|id| if self.is_control(id) { unknown } else { id }));
        }
        ids
    }

    /// Whether an id is never text.
    fn is_control(&self, id: u32) -> bool {
        self.is_control.get(id as usize) == Some(&true)
    }
}

impl Engine for Multilingual {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn specials(&self) -> [u32; 4] {
        let [pad, _, eos, unk] = self.inner.specials();
        [pad, eos, eos, unk]
    }

    fn piece(&self, id: u32) -> Option<&str> {
        self.inner.piece(id)
    }

    fn encode(&self, line: &str) -> Vec<u32> {
        self.encoded(line, |rest| self.inner.encode(rest))
    }

    fn kind(&self) -> Option<TokenizerKind> {
        self.inner.kind()
    }

    fn form(&self) -> Option<TextForm> {
        self.inner.form()
    }

    fn has_dropout(&self) -> bool {
        self.inner.has_dropout()
    }

    fn codes(&self) -> Option<&Codes> {
        self.inner.codes()
    }

    fn encode_with_dropout(&self, line: &str, dropout: Dropout) -> Vec<u32> {
        self.encoded(line, |rest| self.inner.encode_with_dropout(rest, dropout))
    }

    fn is_unigram(&self) -> bool {
        self.inner.is_unigram()
    }

    fn draw(&self, line: &str, alpha: f64, nbest: usize, key: u64) -> Vec<u32> {
        self.encoded(line, |rest| self.inner.draw(rest, alpha, nbest, key))
    }

    fn decode(&self, ids: &[u32]) -> String {
        let text: Vec<u32> = ids.iter().copied().filter(|id| !self.is_control(*id)).collect();
        self.inner.decode(&text)
    }

    fn pieces(&self, line: &str) -> Vec<String> {
        let (language, rest) = self.split(line);
        let language = language.and_then(|language| self.inner.piece(language.id)).map(str::to_owned);
        let rest = if rest.is_empty() { Vec::new() } else { self.inner.pieces(rest) };
        language.into_iter().chain(rest).collect()
    }

    fn decode_pieces(&self, line: &str) -> String {
        let control: HashSet<&str> =
            (0..self.len() as u32).filter(|id| self.is_control(*id)).filter_map(|id| self.inner.piece(id)).collect();
        let is_text = |piece: &&str| !control.contains(piece);
        self.inner.decode_pieces(&line.split(' ').filter(is_text).collect::<Vec<_>>().join(" "))
    }

    fn encoded_form(&self, line: &str) -> String {
        match self.split(line) {
            (Some(language), rest) => format!("{} {}", language.tag, self.inner.encoded_form(rest)),
            (None, rest) => self.inner.encoded_form(rest),
        }
    }

    fn plain<'t>(&self, line: &'t str) -> Cow<'t, str> {
        self.inner.plain(self.split(line).1)
    }

    fn marked(&self, ids: &[u32]) -> Vec<String> {
        let mut marked = self.inner.marked(ids);
        let control = marked.iter_mut().zip(ids).filter(|(_, id)| self.is_control(**id));
        control.for_each(|(piece, _)| piece.clear());
        marked
    }

    fn written(&self, id: u32) -> Vec<u8> {
        if self.is_control(id) { Vec::new() } else { self.inner.written(id) }
    }

    fn lowers_case(&self) -> bool {
        self.inner.lowers_case()
    }

    fn appended(&self) -> &[String] {
        self.inner.appended()
    }

    fn sentencepiece(&self) -> Option<Vec<u8>> {
        self.inner.sentencepiece()
    }

    fn library_json(&self, size: usize) -> Option<Result<Value>> {
        self.inner.library_json(size)
    }

    fn given_up(&self) -> Option<&GivenUp> {
        self.inner.given_up()
    }

    fn language_tags(&self) -> Vec<&str> {
        self.languages.iter().map(|language| language.tag.as_str()).collect()
    }

    fn symbols(&self) -> Vec<&str> {
        self.inner.symbols()
    }

    fn language_tag<'t>(&self, line: &'t str) -> Option<&'t str> {
        line.trim_start().get(..self.split(line).0?.tag.len())
    }

    fn languages(&self) -> Vec<(&str, u32)> {
        self.languages.iter().map(|language| (code_of_tag(&language.tag), language.id)).collect()
    }

    fn language_last(&self) -> bool {
        self.language_last
    }

    fn forbidden(&self) -> Vec<u32> {
        self.forbidden.clone()
    }
}

/// The text of a `tokenizer.json` for other programs: the tokenizer in `json`, our JSON of `tokenizer`, with its
/// languages as added tokens, and without the pieces that no text has (`<unused_5>`).
///
/// # Errors
/// It cannot be written so.
pub(super) fn library_json(json: &str, tokenizer: &Tokenizer) -> Result<String> {
    let failed = |error| Error::failure("the tokenizer is not JSON").caused_by(error);
    let stored: Stored = serde_json::from_str(json).map_err(failed)?;
    let is_spare = |piece: Option<&str>| piece.is_none_or(|piece| piece.starts_with("<unused_"));
    let size = (0..tokenizer.vocab_size() as u32).rev().find(|id| !is_spare(tokenizer.piece(*id))).unwrap_or(0) + 1;
    let mut library = match tokenizer.engine.library_json(size as usize) {
        Some(library) => library?,
        None => stored.tokenizer,
    };
    let token = |id: u32| {
        json!({
            "id": id, "content": tokenizer.piece(id), "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let mut special: Vec<u32> = tokenizer.engine.specials().into_iter().chain([0]).collect();
    special.extend(stored.languages.values().filter_map(Value::as_u64).map(|id| id as u32));
    special.extend(stored.control);
    special.sort_unstable();
    special.dedup();
    // Those that users have added to the subwords stay as they are.
    let id_of = |token: &Value| token["id"].as_u64().unwrap_or_default();
    let is_other =
        |token: &&Value| id_of(token) < u64::from(size) && !special.iter().any(|id| u64::from(*id) == id_of(token));
    let others = library["added_tokens"].as_array().into_iter().flatten().filter(is_other).cloned();
    let mut all: Vec<Value> = others.collect();
    all.extend(special.iter().copied().filter(|id| *id < size).map(token));
    all.sort_by_key(id_of);
    library["added_tokens"] = all.into();
    Ok(library.to_string())
}

/// The text of our JSON with the ids that are kept, and those that a part of these needs.
///
/// # Errors
/// The text is not our JSON, or its tokenizer is of a kind whose pieces cannot be removed.
pub(super) fn trimmed(json: &str, mut is_kept: Vec<bool>) -> Result<Trimmed> {
    let failed = |error| Error::failure("the tokenizer is not JSON").caused_by(error);
    let mut stored: Stored = serde_json::from_str(json).map_err(failed)?;
    stored.control.iter().for_each(|id| is_kept[*id as usize] = true);
    let inner = Tokenizer::from_json(stored.tokenizer.to_string())?;
    let (text, kept) = trim::trim(&inner, is_kept)?;
    let new: HashMap<u32, u32> = kept.iter().copied().zip(0..).collect();
    let moved = |id: &u32| new.get(id).copied();
    let languages = stored.languages.into_iter().filter_map(|(code, id)| {
        let id = moved(&u32::try_from(id.as_u64()?).ok()?)?;
        Some((code, id.into()))
    });
    stored.languages = languages.collect();
    stored.control = stored.control.iter().filter_map(moved).collect();
    stored.forbidden = stored.forbidden.iter().filter_map(moved).collect();
    stored.tokenizer = serde_json::from_str(&text).map_err(failed)?;
    Ok((serde_json::to_string(&stored).map_err(failed)?, kept))
}

/// The code in a tag of ours.
fn code_of_tag(tag: &str) -> &str {
    tag.strip_prefix(">>").and_then(|rest| rest.strip_suffix("<<")).unwrap_or(tag)
}
