//! The ids that callers see, and those of the model.

use std::collections::HashMap;

use serde_json::Value;

use super::Stored;
use super::model::Pieces;
use super::proto::TrainerProto;
use crate::data::tokenizer::engine::find_specials;
use crate::data::tokenizer::pipeline;
use crate::data::tokenizer::vocabulary::in_order;
use crate::error::{Error, Result};

/// The ids that callers see.
pub(super) struct Vocabulary {
    pub(super) pieces: Vec<Box<str>>,
    pub(super) ids: HashMap<Box<str>, u32>,
    /// The model's id for each of our ids.
    pub(super) to_model: Vec<u32>,
    /// Our id for each of the model's ids.
    pub(super) of_model: Vec<u32>,
    /// Whether the pieces have other ids than in the model.
    pub(super) is_foreign: bool,
    pub(super) specials: [u32; 4],
}

impl Vocabulary {
    pub(super) fn new(pieces: &Pieces, trainer: &TrainerProto, stored: &Stored) -> Result<Self> {
        let mut texts: Vec<Box<str>> = match &stored.vocabulary {
            Some(list) => listed(list)?,
            None => pieces.iter().map(|(text, _)| text.into()).collect(),
        };
        let size = texts.len();
        texts.extend(stored.appended.iter().map(|text| text.as_str().into()));
        let mut ids = HashMap::with_capacity(texts.len());
        for (text, id) in texts.iter().zip(0..) {
            ids.entry(text.clone()).or_insert(id);
        }
        let is_foreign = stored.vocabulary.is_some();
        let of_model =
            |(text, id): (&str, u32)| if is_foreign { ids.get(text).copied().unwrap_or(u32::MAX) } else { id };
        let of_model: Vec<u32> = pieces.iter().map(|(text, _)| text).zip(0..).map(of_model).collect();
        let to_model = texts.iter().zip(0..).map(|(text, id)| match id {
            id if id as usize >= size => pieces.unknown(),
            id if !is_foreign => id,
            _ => pieces.id(text),
        });
        let mut new =
            Self { to_model: to_model.collect(), pieces: texts, ids, of_model, is_foreign, specials: [u32::MAX; 4] };
        new.specials = new.find_specials(pieces, trainer, stored)?;
        Ok(new)
    }

    /// The ids of the special tokens: the stored ones, else those of the model's control symbols, else those with a
    /// usual name. `u32::MAX` for a missing one, which is allowed only in a model's own file.
    fn find_specials(&self, pieces: &Pieces, trainer: &TrainerProto, stored: &Stored) -> Result<[u32; 4]> {
        let unknown = pieces.text(pieces.unknown());
        let stated = [&trainer.pad_piece, &trainer.bos_piece, &trainer.eos_piece].map(Option::as_deref);
        let stated = [stated[0], stated[1], stated[2], Some(unknown)];
        let usual = find_specials(|name| self.ids.get(name).copied());
        let mut found = [u32::MAX; 4];
        let sources = stored.special.all().into_iter().zip(stated).zip(usual);
        for (slot, ((stored, stated), usual)) in found.iter_mut().zip(sources) {
            let stated = stated.and_then(|name| self.ids.get(name).copied());
            *slot = stored.or(stated).or(usual).unwrap_or(u32::MAX);
        }
        let ids = stored.special.all().into_iter().flatten().chain(stored.forbidden.iter().flatten().copied());
        if let Some(id) = ids.into_iter().find(|id| *id as usize >= self.pieces.len()) {
            return Err(Error::failure(format!("its special id {id} is beyond its {} pieces", self.pieces.len())));
        }
        Ok(found)
    }

    /// The id of a piece.
    pub(super) fn id(&self, piece: &str) -> u32 {
        let [_, _, _, unk] = self.specials;
        self.ids.get(piece).copied().unwrap_or(unk)
    }

    /// Our id for a piece with this model id. In a vocabulary shared by two models, text that is unknown to this one
    /// may have an id too.
    pub(super) fn id_of_piece(&self, piece: &str, in_model: u32, unknown: u32) -> u32 {
        let [_, _, _, unk] = self.specials;
        match self.of_model.get(in_model as usize) {
            _ if in_model == unknown => {
                // A stretch that reads like a special token is text.
                let id = if self.is_foreign { self.id(piece) } else { unk };
                if self.specials.contains(&id) { unk } else { id }
            }
            Some(&id) if id != u32::MAX => id,
            _ => unk,
        }
    }

    /// Pieces that only the vocabulary has were written as they are, with `▁` for spaces.
    pub(super) fn finish(&self, text: String) -> String {
        if !self.is_foreign {
            return text;
        }
        text.replace(pipeline::SPACE, " ").trim().to_owned()
    }
}

/// The pieces of a list, or of a table with their ids.
fn listed(list: &Value) -> Result<Vec<Box<str>>> {
    let wrong = || Error::failure("its `vocabulary` is neither a list of pieces nor a table of all ids from 0 upwards");
    if let Some(list) = list.as_array() {
        return list.iter().map(|piece| piece.as_str().map(Into::into).ok_or_else(wrong)).collect();
    }
    let table = list.as_object().ok_or_else(wrong)?;
    let pieces = in_order(table.iter().map(|(piece, id)| (piece, id.clone()))).map_err(|_| wrong())?;
    Ok(pieces.into_iter().map(|piece| piece.as_str().into()).collect())
}
