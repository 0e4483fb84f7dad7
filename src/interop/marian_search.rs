//! How `transformers` searches with a MarianMT model, as `generation_config.json` says it: for reading one and for writing one.

use serde_json::{Map, Value, json};

use crate::config::DecodeConfig;
use crate::decode::PenaltyKind;

/// The key of `config.json` under which a model of ours says what `transformers` cannot.
pub const OURS: &str = "mt";

/// The keys of a search by a model that takes `max_length` positions. What cannot be said is left out, and has the default there.
pub fn keys(decode: &DecodeConfig, max_length: usize) -> Map<String, Value> {
    let mut keys = Map::new();
    keys.insert("num_beams".to_owned(), json!(decode.beam));
    keys.insert("max_length".to_owned(), json!(max_length));
    // Of one hypothesis neither means anything, and `transformers` warns of them.
    if decode.beam > 1 {
        if let Some(penalty) = length_penalty(decode) {
            keys.insert("length_penalty".to_owned(), json!(penalty));
        }
        // Other patience than one beam's is not there.
        let stopping = if decode.patience == 1.0 { json!(true) } else { json!("never") };
        keys.insert("early_stopping".to_owned(), stopping);
    }
    if decode.no_repeat_ngram > 0 {
        keys.insert("no_repeat_ngram_size".to_owned(), json!(decode.no_repeat_ngram));
    }
    if decode.min_length > 0 {
        // Lengths there count what a translation begins with.
        keys.insert("min_length".to_owned(), json!(decode.min_length + 1));
    }
    keys
}

/// What `transformers` does otherwise when it searches as [`keys`] says.
pub fn lost(decode: &DecodeConfig) -> Vec<String> {
    let mut lost = Vec::new();
    if decode.beam > 1 && length_penalty(decode).is_none() {
        let penalty = decode.length_penalty;
        lost.push(format!("it does not have the length penalty gnmt {penalty}, and divides by the length"));
    }
    if decode.beam > 1 && decode.patience != 0.0 && decode.patience != 1.0 {
        lost.push(format!("it has no patience of {}, and stops when nothing can become better", decode.patience));
    }
    if decode.max_length_ratio > 0.0 {
        lost.push("it bounds lengths by model.max_length alone".to_owned());
    }
    lost
}

/// The exponent of the length by which log-probabilities are divided there, if our penalty is one.
fn length_penalty(decode: &DecodeConfig) -> Option<f64> {
    match decode.length_penalty_kind {
        PenaltyKind::Power => Some(decode.length_penalty),
        PenaltyKind::Average => Some(1.0),
        // Without a penalty all kinds are the same.
        PenaltyKind::Gnmt => (decode.length_penalty == 0.0).then_some(0.0),
    }
}
