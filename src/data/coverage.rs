//! Text that a vocabulary can hardly write: unknown tokens, and characters spelt in bytes; and text that was split
//! before.

use crate::data::tokenizer::{Tokenizer, TokenizerKind};
use crate::data::tokenizers::Tokenizers;

/// Warn from this per cent of unknown tokens on.
pub const MANY_UNKNOWN: usize = 10;

/// Warn from this per cent of bytes on.
const MANY_BYTES: usize = 5;

/// Warn if so many per cent of pairs hold marks of subwords, …
const MANY_MARKED: usize = 10;
/// … or full stops with a space before them.
const MANY_APART: usize = 50;

/// What is counted of one side.
#[derive(Clone, Copy, Default)]
struct Counts {
    unknown: usize,
    bytes: usize,
    all: usize,
}

impl Counts {
    fn add(&mut self, ids: &[u32], tokenizer: &Tokenizer) {
        self.unknown += ids.iter().filter(|id| **id == tokenizer.unk_id()).count();
        self.bytes += spelt(ids, tokenizer);
        self.all += ids.len();
    }
}

/// How many ids are bytes of characters that might have had a piece: white space and control characters never have one.
fn spelt(ids: &[u32], tokenizer: &Tokenizer) -> usize {
    let of_run = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(bytes).replace(|c: char| c.is_whitespace() || c.is_control(), "");
        bytes.clear();
        text.len()
    };
    let (mut count, mut bytes) = (0, Vec::new());
    for id in ids {
        match tokenizer.byte(*id) {
            Some(byte) => bytes.push(byte),
            None if bytes.is_empty() => {}
            None => count += of_run(&mut bytes),
        }
    }
    count + of_run(&mut bytes)
}

/// The set that a vocabulary is learnt from.
pub const TRAINING: &str = "training";

/// Warnings about the token ids of a `set` ([`TRAINING`], "validation"), source and target: the tokenizer may be one of
/// other text. `is_learnt` from the training text, so that more pieces would help it.
pub fn warnings(set: &str, tokenizers: &Tokenizers, is_learnt: bool, pairs: &[(Vec<u32>, Vec<u32>)]) -> Vec<String> {
    let mut counts = [Counts::default(); 2];
    for (source, target) in pairs {
        counts[0].add(source, &tokenizers.source);
        counts[1].add(target, &tokenizers.target);
    }
    let warning = |(side, Counts { unknown, bytes, all }): (&str, Counts)| {
        let share = |part: usize| 100 * part / all.max(1);
        let of = format!("% of the {side} tokens of the {set} text");
        if share(unknown) >= MANY_UNKNOWN {
            let (share, of) = (share(unknown), &of);
            // One that is learnt lacks only rare pieces.
            let why = match is_learnt && set == TRAINING {
                true => {
                    "its words are the pieces of tokenizer.kind = \"subword-nmt\": name the codes that split them \
                     (tokenizer.codes), or give text that subword-nmt has split"
                }
                false => "it may have been learnt from other text",
            };
            Some(format!("{share} {of} are unknown to the tokenizer: {why}"))
        } else if share(bytes) >= MANY_BYTES {
            let why = match is_learnt {
                true if set != TRAINING => {
                    "its text may be of another kind than the training text, of which the vocabulary was learnt"
                }
                true => {
                    "with a larger tokenizer.vocab_size, or tokenizer.character_coverage, more of those in the \
                     training text have one"
                }
                false => "the tokenizer may have been learnt from other text",
            };
            Some(format!("{} {of} are bytes of characters that have no piece in the vocabulary: {why}", share(bytes)))
        } else {
            None
        }
    };
    ["source", "target"].into_iter().zip(counts).filter_map(warning).collect()
}

/// Warnings if the training text looks as if other programs had split it: into subwords, or punctuation from words.
/// Of a vocabulary of `kind`, which is learnt from it.
pub fn split_already(tokenizers: &Tokenizers, kind: TokenizerKind, pairs: &[(Vec<u32>, Vec<u32>)]) -> Vec<String> {
    let (mut marked, mut apart, mut spaced, mut twice) = (0, 0, 0, 0);
    for (source, target) in pairs {
        let texts = [tokenizers.source.decode(source), tokenizers.target.decode(target)];
        marked += usize::from(texts.iter().any(|text| text.contains("@@ ")));
        apart += usize::from(texts.iter().any(|text| text.ends_with(" .")));
        spaced += usize::from(texts.iter().any(|text| text.contains(" \u{2581}")));
        // A mark that was split as if it were text.
        let is_split = |ids: &[u32], tokenizer: &Tokenizer| {
            ids.iter().any(|id| tokenizer.piece(*id).is_some_and(|piece| piece.ends_with("@@@")))
        };
        twice += usize::from(is_split(source, &tokenizers.source) || is_split(target, &tokenizers.target));
    }
    // Text of subword-nmt is split, and mostly tokenised.
    let is_raw = kind == TokenizerKind::Bpe;
    let are_many = |part: usize, most: usize| part * 100 >= most * pairs.len().max(1);
    let mut warnings = Vec::new();
    if is_raw && are_many(marked, MANY_MARKED) {
        warnings.push(
            "the training text holds `@@ `, as subword-nmt writes it: set tokenizer.kind = \"subword-nmt\" without \
             tokenizer.codes, or give the text as it was before"
                .to_owned(),
        );
    } else if are_many(twice, MANY_MARKED) {
        warnings.push(
            "the training text holds `@@`, as subword-nmt writes it, and tokenizer.codes split it once more: leave the \
             codes out, or give the text as it was before"
                .to_owned(),
        );
    } else if is_raw && are_many(spaced, MANY_MARKED) {
        warnings.push(
            "words of the training text begin with \u{2581}, as SentencePiece writes them: give the text as it was \
             before; tokenizer.path names the model that split it"
                .to_owned(),
        );
    } else if is_raw && are_many(apart, MANY_APART) {
        warnings.push(
            "lines of the training text end in a full stop with a space before it: text need not be tokenised, and \
             translations would come out like it"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::tokenizer::{Normalization, TextForm, TrainOptions};

    #[test]
    fn bytes_of_white_space_are_not_counted() {
        let form = TextForm { normalization: Normalization::Nfc, ..TextForm::default() };
        let options = TrainOptions { vocab_size: 300, form, ..TrainOptions::default() };
        let tokenizer = Tokenizer::train(&[&["a b c"][..]], &options).unwrap();
        for (text, bytes) in [("a b", 0), ("a\u{A0}b\u{3000}c", 0), ("a\u{A0}é b", 2), ("百", 3), ("c 百折", 6)] {
            assert_eq!(spelt(&tokenizer.encode(text), &tokenizer), bytes, "{text}");
        }
    }

    #[test]
    fn text_that_was_split_before_is_known() {
        let raw = ["A dog runs home.", "The cat sleeps."];
        let tokenizer = Arc::new(Tokenizer::train(&[&raw[..]], &TrainOptions::default()).unwrap());
        let tokenizers = Tokenizers { source: tokenizer.clone(), target: tokenizer.clone() };
        let said = |lines: &[&str]| {
            let pair = |line: &&str| (tokenizer.encode(line), tokenizer.encode("The cat sleeps."));
            split_already(&tokenizers, TokenizerKind::Bpe, &lines.iter().map(pair).collect::<Vec<_>>()).concat()
        };
        assert_eq!(said(&raw), "");
        assert_eq!(said(&["He writes to a@@b .", "The cat sleeps.", "A dog runs home."]), "");
        assert!(said(&["A d@@ og runs .", "The cat sleeps ."]).contains("`@@ `"));
        assert!(said(&["A dog runs home .", "The cat sleeps ."]).contains("full stop"));
        assert!(said(&["▁A ▁dog ▁run s .", "The cat sleeps."]).contains("SentencePiece"));
    }
}
