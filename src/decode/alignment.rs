//! Word alignment: which source word each word of a translation comes from, by the decoder's attention.

use std::fmt;

use super::attention::cross_attention;
use super::source::{Reader, Source};
use super::translate::Translation;
use crate::data::tokenizer::Tokenizer;
use crate::error::Result;
use crate::model::Transformer;

/// Pairs of a source word and a target word, both counted from 0; words are separated by white space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alignment(pub Vec<(usize, usize)>);

/// In the format of Pharaoh and its successors: `0-0 1-2`.
impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (source, target)) in self.0.iter().enumerate() {
            write!(f, "{}{source}-{target}", if i == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// Pairs each word of the best translation with the source word that it attends to most, in the order of the translation.
///
/// Attention is the mean over the heads of the last layer but one (Garg et al. 2019, "Jointly Learning to Align and
/// Translate with Transformer Models"), summed over the pieces of each word.
///
/// # Errors
/// The device fails.
pub fn align(model: &Transformer, reader: &Reader, translation: &Translation) -> Result<Alignment> {
    let best = translation.best();
    let mut pairs = Vec::new();
    let (mut source_words, mut target_words) = (0, 0);
    let ends = best.joints.iter().copied().chain([best.tokens.len()]);
    let mut start = 0;
    for (part, end) in translation.parts.iter().zip(ends) {
        let tokens = &best.tokens[start..end];
        start = end;
        let (added, ids) = part.ids.split_at(part.added);
        let from = [vec![None; added.len()], words(&reader.tokenizers().source, ids)].concat();
        let to = words(&reader.tokenizers().target, tokens);
        let counts = [&from, &to].map(|words| words.iter().flatten().last().map_or(0, |last| last + 1));
        for (target, source) in of_part(model, reader, part, tokens, [&from, &to], counts)?.into_iter().enumerate() {
            pairs.extend(source.map(|source| (source_words + source, target_words + target)));
        }
        source_words += counts[0];
        target_words += counts[1];
    }
    Ok(Alignment(pairs))
}

/// The source word that each target word of one part attends to most.
fn of_part(
    model: &Transformer,
    reader: &Reader,
    source: &Source,
    tokens: &[u32],
    [from, to]: [&[Option<usize>]; 2],
    [sources, targets]: [usize; 2],
) -> Result<Vec<Option<usize>>> {
    let mut sums = vec![0f32; sources * targets];
    if sums.is_empty() {
        return Ok(vec![None; targets]);
    }
    let weights = cross_attention(model, reader, source, tokens)?;
    for (row, target) in weights.iter().zip(to) {
        let Some(target) = target else { continue };
        for (weight, source) in row.iter().zip(from) {
            if let Some(source) = source {
                sums[target * sources + source] += weight;
            }
        }
    }
    let largest = |row: &[f32]| (0..sources).reduce(|best, i| if row[i] > row[best] { i } else { best });
    Ok(sums.chunks_exact(sources).map(largest).collect())
}

/// The number of the word that each token belongs to; `None` for tokens of white space alone.
fn words(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<Option<usize>> {
    /// White space as byte tokens; in ordinary pieces `▁` stands for it.
    const SPACES: [&str; 6] = ["<0x09>", "<0x0A>", "<0x0B>", "<0x0C>", "<0x0D>", "<0x20>"];
    let (mut word, mut in_space) = (None, true);
    let of_token = |piece: &String| {
        if SPACES.contains(&piece.as_str()) {
            in_space = true;
            return None;
        }
        let mut has_text = false;
        for character in piece.chars() {
            if character == '▁' {
                in_space = true;
            } else {
                if in_space {
                    word = Some(word.map_or(0, |word| word + 1));
                }
                (in_space, has_text) = (false, true);
            }
        }
        word.filter(|_| has_text)
    };
    tokenizer.marked(tokens).iter().map(of_token).collect()
}
