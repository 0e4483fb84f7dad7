//! Lines of text on their way into the encoder: tokenised, cut at what the model's positions reach, batched by length.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use crate::config::PositionKind;
use crate::data::batch::Batch;
use crate::data::tokenizers::Tokenizers;
use crate::error::Error;
use crate::model::{Sequences, Transformer};

/// A line as a model takes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// Which of the lines it is.
    pub line: usize,
    /// Its tokens, without the end of the sentence; none where the line is blank.
    pub ids: Vec<u32>,
    /// Whether it had more than the positions reach.
    pub cut: bool,
}

/// A line that has more tokens than there are learned positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondPositions {
    /// Which of the lines it is.
    pub line: usize,
    /// Its tokens with the end of the sentence; of an enormous line those of its beginning.
    pub tokens: usize,
    /// Whether it has more.
    pub and_more: bool,
    /// The positions that the model has learned.
    pub positions: usize,
}

impl BeyondPositions {
    /// As an error about `file`, in which the first of the lines is number `first`.
    pub fn error(&self, file: &Path, first: usize) -> Error {
        let Self { line, tokens, and_more, positions } = self;
        let more = if *and_more { "more than " } else { "" };
        let what = format!(
            "the line has {more}{tokens} tokens with its end, but the model has learned {positions} positions \
             (model.max_length)"
        );
        Error::failure(what).at_line(file, first + line, 0).help("split the line")
    }
}

/// Makes lines into what the encoder takes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    tokenizers: &'a Tokenizers,
    /// Most tokens of a line, without the end of the sentence.
    longest: usize,
    learned: bool,
}

/// As much of a line as could matter to a model that takes `longest` tokens, so that a line of a gigabyte costs little.
fn beginning(line: &str, longest: usize) -> &str {
    const LEAST: usize = 1 << 20;
    const BYTES_A_TOKEN: usize = 256;
    let end = longest.saturating_mul(BYTES_A_TOKEN).max(LEAST);
    &line[..line.floor_char_boundary(end)]
}

impl<'a> Reader<'a> {
    /// For a model and its tokenizers.
    pub fn new(model: &Transformer, tokenizers: &'a Tokenizers) -> Self {
        let config = model.config();
        Self { tokenizers, longest: config.max_length - 1, learned: config.positions == PositionKind::Learned }
    }

    /// One source a line, cut where it must be. A line of nothing but white space has no tokens.
    pub fn read<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Vec<Source> {
        let beginnings: Vec<&str> = lines.iter().map(|line| beginning(line.as_ref(), self.longest)).collect();
        let encoded = self.tokenizers.source.encode_batch(&beginnings);
        let sources = encoded.into_iter().zip(&beginnings).zip(lines).enumerate();
        sources
            .map(|(line, ((mut ids, text), whole))| {
                if text.trim().is_empty() {
                    return Source { line, ..Source::default() };
                }
                let cut = ids.len() > self.longest || text.len() < whole.as_ref().len();
                ids.truncate(self.longest);
                Source { line, ids, cut }
            })
            .collect()
    }

    /// The first line with more tokens than the model has learned positions: of what follows them it knows nothing. Other
    /// positions have no end of their own; there lines are cut.
    pub fn beyond_positions<S: AsRef<str> + Sync>(&self, lines: &[S]) -> Option<BeyondPositions> {
        if !self.learned {
            return None;
        }
        let beginnings: Vec<&str> = lines.iter().map(|line| beginning(line.as_ref(), self.longest)).collect();
        let encoded = self.tokenizers.source.encode_batch(&beginnings);
        let line = encoded.iter().position(|ids| ids.len() > self.longest)?;
        let and_more = beginnings[line].len() < lines[line].as_ref().len();
        Some(BeyondPositions { line, tokens: encoded[line].len() + 1, and_more, positions: self.longest + 1 })
    }

    /// Sources as one padded batch.
    pub fn sequences(&self, sources: &[Source]) -> Sequences {
        let ids: Vec<&[u32]> = sources.iter().map(|source| source.ids.as_slice()).collect();
        let batch = Batch::source_only(&ids, &self.tokenizers.special_ids());
        Sequences { ids: batch.source, lengths: Arc::new(batch.source_lengths), length: batch.source_length }
    }
}

/// Sorts by the number of tokens, the longest first, so that a batch too large shows at once; equal ones stay in order.
pub fn by_length<T>(items: &mut [T], tokens: impl Fn(&T) -> usize) {
    items.sort_by_key(|item| Reverse(tokens(item)));
}

/// Items sorted [`by_length`] in batches of at most `batch_tokens` padded tokens, the ends counted, and `most` items, and at
/// least one.
pub fn batches<T>(
    items: &[T],
    tokens: impl Fn(&T) -> usize,
    batch_tokens: usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let rows = (batch_tokens / (tokens(rest.first()?) + 1)).min(most).clamp(1, rest.len());
        let (batch, after) = rest.split_at(rows);
        rest = after;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_their_bound_and_every_source_once() {
        let mut items: Vec<(usize, usize)> = (0..100).map(|i| (i, i * 7 % 23)).collect();
        by_length(&mut items, |item| item.1);
        for bound in [1, 24, 100, 10_000] {
            let batches: Vec<&[(usize, usize)]> = batches(&items, |item| item.1, bound, 9).collect();
            assert!(batches.iter().all(|b| b.len() == 1 || b.len() * (b[0].1 + 1) <= bound && b.len() <= 9));
            assert_eq!(batches.concat(), items);
        }
    }
}
