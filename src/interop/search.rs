//! Search options of a MarianMT model in the `generation_config.json` of `transformers`, for import and export; and
//! those of CTranslate2.

use serde_json::{Map, Value, json};

use crate::decode::{DecodeConfig, PenaltyKind};

/// The key of `config.json` for settings of ours that `transformers` does not have.
pub const OURS: &str = "mt";

/// The search keys of a model with `max_length` positions. Options that cannot be expressed are left out and so have
/// the defaults of `transformers`.
pub fn keys(decode: &DecodeConfig, max_length: usize) -> Map<String, Value> {
    let mut keys = Map::new();
    keys.insert("num_beams".to_owned(), json!(decode.beam));
    keys.insert("max_length".to_owned(), json!(longest(decode, max_length)));
    // With a single hypothesis neither has an effect, and `transformers` warns about them.
    if decode.beam > 1 {
        if let Some(penalty) = length_penalty(decode) {
            keys.insert("length_penalty".to_owned(), json!(penalty));
        }
        // `transformers` has no patience other than 1 or unlimited.
        let stopping = if decode.patience == 1.0 { json!(true) } else { json!("never") };
        keys.insert("early_stopping".to_owned(), stopping);
    }
    if decode.no_repeat_ngram > 0 {
        keys.insert("no_repeat_ngram_size".to_owned(), json!(decode.no_repeat_ngram));
    }
    if decode.min_length > 0 {
        // Lengths in `transformers` include the start token.
        keys.insert("min_length".to_owned(), json!(decode.min_length + 1));
    }
    keys
}

/// A note on how a search of `transformers` with [`keys`] differs from ours. `None`: it does not.
pub fn difference(decode: &DecodeConfig) -> Option<String> {
    // All by name, so that none is lost without a word.
    let DecodeConfig {
        beam,
        length_penalty: alpha,
        patience,
        max_length_ratio,
        // These are expressed.
        length_penalty_kind: _,
        no_repeat_ngram: _,
        min_length: _,
        max_length_extra: _,
        // It changes no translation.
        batch_tokens: _,
        // Tags of the text.
        source_language: _,
        target_language: _,
    } = decode;
    let mut lost = Vec::new();
    if *beam > 1 && length_penalty(decode).is_none() {
        lost.push(format!("it does not have the length penalty gnmt {alpha}, but divides by the length"));
    }
    if *beam > 1 && ![0.0, 1.0].contains(patience) {
        lost.push(format!("it has no patience of {patience}, but stops when nothing can become better"));
    }
    if *max_length_ratio > 0.0 {
        lost.push("it limits lengths only by model.max_length".to_owned());
    }
    let restored = "`mt import` of this folder restores the search of mt";
    (!lost.is_empty()).then(|| format!("transformers searches differently: {}. {restored}", lost.join("; ")))
}

/// The longest target, its start token included, if the length of the source does not matter.
fn longest(decode: &DecodeConfig, max_length: usize) -> usize {
    match decode.max_length_ratio > 0.0 {
        true => max_length,
        false => max_length.min(decode.max_length_extra.saturating_add(1)),
    }
}

/// The arguments that make CTranslate2's `translate_batch` search as we do, and where it differs all the same. Its
/// models keep no search settings.
pub fn ctranslate2_arguments(decode: &DecodeConfig, max_length: usize, disable_unk: bool) -> (String, Vec<String>) {
    // All by name, so that none is lost without a word.
    let &DecodeConfig {
        beam,
        patience,
        no_repeat_ngram,
        min_length,
        max_length_ratio,
        max_length_extra,
        // In `length_penalty`.
        length_penalty: _,
        length_penalty_kind: _,
        // It changes no translation.
        batch_tokens: _,
        // Tags of the text.
        source_language: _,
        target_language: _,
    } = decode;
    let most = if max_length_ratio > 0.0 { max_length } else { max_length.min(max_length_extra) };
    let lengths = format!("min_decoding_length={min_length}, max_decoding_length={most}");
    let (mut arguments, mut differences) = (vec![format!("beam_size={beam}"), lengths], Vec::new());
    if max_length_ratio > 0.0 {
        differences.push("its limit on the length does not depend on the source's".to_owned());
    }
    if beam > 1 {
        match length_penalty(decode) {
            Some(alpha) => arguments.push(format!("length_penalty={alpha}")),
            None => differences.push(format!("its length penalty is never gnmt {}", decode.length_penalty)),
        }
        match patience {
            0.0 => {
                differences.push("it always stops when as many translations have ended as its beam is wide".to_owned())
            }
            1.0 => {}
            patience => arguments.push(format!("patience={patience}")),
        }
    }
    if no_repeat_ngram > 0 {
        arguments.push(format!("no_repeat_ngram_size={no_repeat_ngram}"));
    }
    if disable_unk {
        arguments.push("disable_unk=True".to_owned());
    }
    (arguments.join(", "), differences)
}

/// The exponent α of the divisor `length^α` in `transformers`, if our penalty has that form.
fn length_penalty(decode: &DecodeConfig) -> Option<f64> {
    match decode.length_penalty_kind {
        PenaltyKind::Power => Some(decode.length_penalty),
        PenaltyKind::Average => Some(1.0),
        // With an exponent of 0 both divide by 1.
        PenaltyKind::Gnmt => (decode.length_penalty == 0.0).then_some(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctranslate2_is_told_what_it_can_do() {
        let of = |kind, patience, beam| {
            let decode = DecodeConfig {
                length_penalty_kind: kind,
                length_penalty: 0.6,
                patience,
                beam,
                max_length_ratio: 0.0,
                ..DecodeConfig::default()
            };
            let (arguments, differences) = ctranslate2_arguments(&decode, 256, beam == 2);
            let (lengths, rest) =
                arguments.split_at("beam_size=4, min_decoding_length=0, max_decoding_length=50".len());
            assert_eq!(lengths, format!("beam_size={beam}, min_decoding_length=0, max_decoding_length=50"));
            (rest.to_owned(), differences.len())
        };
        assert_eq!(of(PenaltyKind::Gnmt, 0.0, 4), (String::new(), 2));
        let power = ", length_penalty=0.6, patience=2, disable_unk=True";
        assert_eq!(of(PenaltyKind::Power, 2.0, 2), (power.to_owned(), 0));
        assert_eq!(of(PenaltyKind::Average, 1.0, 3), (", length_penalty=1".to_owned(), 0));
        assert_eq!(of(PenaltyKind::Gnmt, 0.0, 1), (String::new(), 0));
        let longer = DecodeConfig { max_length_ratio: 1.5, ..DecodeConfig::default() };
        let (arguments, differences) = ctranslate2_arguments(&longer, 256, false);
        assert!(arguments.contains("max_decoding_length=256") && differences.len() == 2, "{arguments} {differences:?}");
    }

    #[test]
    fn lengths_are_limited_as_ours_are_where_that_can_be_said() {
        let longest = |max_length_ratio, max_length_extra| {
            let decode = DecodeConfig { max_length_ratio, max_length_extra, ..DecodeConfig::default() };
            (
                keys(&decode, 200)["max_length"].as_u64(),
                difference(&decode).is_some_and(|difference| difference.contains("limits lengths")),
            )
        };
        // 30 tokens, and the start token.
        assert_eq!(longest(0.0, 30), (Some(31), false));
        assert_eq!(longest(0.0, 300), (Some(200), false));
        assert_eq!(longest(1.0, 30), (Some(200), true));
    }
}
