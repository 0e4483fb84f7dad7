//! The tokens of XLM-RoBERTa.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::data::tokenizer::{OwnIds, Tokenizer};
use crate::decode::source::beginning;
use crate::error::{Error, Result};
use crate::foreign::refuse_many_values;
use crate::{file, limits};

/// The whole tokenizer.
pub(super) const WHOLE: &str = "tokenizer.json";
/// Its SentencePiece model, for encoders without it.
pub(super) const MODEL: &str = "sentencepiece.bpe.model";

/// `<s>`, `<pad>`, `</s>` and `<unk>` begin the vocabulary; three of them begin the SentencePiece model.
const FIRST: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
const REPLACED: u32 = 3;
const MASK: &str = "<mask>";
const BEGIN: u32 = 0;
const END: u32 = 2;

/// Turns lines into sequences.
#[derive(Debug)]
pub(super) struct Subwords {
    tokenizer: Tokenizer,
    /// The longest sequence that the encoder takes.
    longest: usize,
}

impl Subwords {
    /// From the files of an encoder.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub(super) fn load(folder: &Path, longest: usize) -> Result<Self> {
        let (whole, model) = (folder.join(WHOLE), folder.join(MODEL));
        let tokenizer = if whole.exists() { of_json(&whole) } else { of_model(&model) }?;
        Ok(Self { tokenizer, longest })
    }

    /// How many tokens there are.
    pub(super) fn size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The tokens of a line, without beginning and end, cut as the original cuts a line: two shorter than the encoder
    /// takes, beginning and end included.
    fn tokens(&self, line: &str) -> Vec<u32> {
        let (text, _) = beginning(line, self.longest);
        let mut tokens = self.tokenizer.encode(text);
        tokens.truncate(self.longest - 4);
        tokens
    }

    /// A line as a sequence.
    pub(super) fn alone(&self, line: &str) -> Vec<u32> {
        [&[BEGIN], &self.tokens(line)[..], &[END]].concat()
    }

    /// Lines as one sequence, with two ends between them. If it is too long, it is cut to what the encoder takes.
    pub(super) fn joined(&self, lines: &[&str]) -> Vec<u32> {
        let mut sequence = vec![BEGIN];
        for (number, line) in lines.iter().enumerate() {
            if number > 0 {
                sequence.extend([END, END]);
            }
            sequence.extend(self.tokens(line));
        }
        sequence.push(END);
        sequence.truncate(self.longest);
        sequence
    }
}

fn of_json(path: &Path) -> Result<Tokenizer> {
    let bytes =
        file::read_at_most(path, limits::TOKENIZER_BYTES).map_err(|e| Error::io("read the tokenizer", path, e))?;
    refuse_many_values(&bytes, limits::TOKENIZER_VALUES).map_err(|error| error.at(path))?;
    let mut whole: Map<String, Value> = serde_json::from_slice(&bytes)
        .map_err(|error| Error::failure(format!("not a JSON object: {error}")).at(path).caused_by(error))?;
    // Beginning and end are added here.
    whole.insert("post_processor".to_owned(), Value::Null);
    whole.insert("truncation".to_owned(), Value::Null);
    whole.insert("padding".to_owned(), Value::Null);
    let tokenizer = Tokenizer::from_json(Value::Object(whole).to_string()).map_err(|error| error.at(path))?;
    for (piece, id) in [(FIRST[0], BEGIN), (FIRST[2], END)] {
        if tokenizer.piece(id) != Some(piece) {
            let what = format!("{piece} has another id than {id}: this is not the tokenizer of XLM-RoBERTa");
            return Err(Error::failure(what).at(path));
        }
    }
    Ok(tokenizer)
}

fn of_model(path: &Path) -> Result<Tokenizer> {
    let bytes = file::read_at_most(path, limits::SENTENCEPIECE_BYTES as u64)
        .map_err(|error| Error::io("read the tokenizer", path, error))?;
    let model = Tokenizer::from_bytes(bytes.clone()).map_err(|error| error.at(path))?;
    let end = (model.vocab_size() - model.appended().len()) as u32;
    let of_model = (REPLACED..end).filter_map(|id| Some(model.piece(id)?.to_owned()));
    let pieces = FIRST.map(str::to_owned).into_iter().chain(of_model).chain([MASK.to_owned()]);
    let ids: HashMap<String, u32> = pieces.zip(0..).collect();
    let vocabulary = ids.into_iter().map(|(piece, id)| (piece, Value::from(id))).collect();
    let special = [1, BEGIN, END, 3];
    let ids = OwnIds {
        special,
        forbidden: Vec::new(),
        language_tags: false,
        tags_in_text: false,
        vocabulary: Value::Object(vocabulary),
    };
    Tokenizer::from_sentencepiece(&bytes, ids).map_err(|error| error.at(path))
}
