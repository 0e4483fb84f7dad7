//! Padded batches of token ids.

use std::ops::Range;

/// The ids of the special tokens on each side; they come from the tokenizer, never from constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialIds {
    /// Fills source rows.
    pub pad_source: u32,
    /// Ends a source.
    pub eos_source: u32,
    /// Fills target rows and labels.
    pub pad_target: u32,
    /// Begins the decoder's input; some families use `<pad>` or `</s>`.
    pub bos_target: u32,
    /// Ends a target.
    pub eos_target: u32,
    /// A source's first token, its language, comes after its end: NLLB-200's models were first published with a
    /// tokenizer that puts it there.
    pub language_last: bool,
}

/// Sentence pairs as rectangles of token ids, in row-major order.
///
/// Which positions are padding follows from the lengths, never from the ids, because some model families begin targets
/// with `<pad>`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `[B, S]`: each row `x1 … xm </s>`, then padding.
    pub source: Vec<u32>,
    /// `[B]`: lengths with `</s>`.
    pub source_lengths: Vec<u32>,
    /// `[B, T]`: each row `<s> y1 … yn`, then padding.
    pub target_input: Vec<u32>,
    /// `[B, T]`: each row `y1 … yn </s>`, then padding.
    pub labels: Vec<u32>,
    /// `[B]`: lengths with `</s>`.
    pub target_lengths: Vec<u32>,
    /// B.
    pub batch_size: usize,
    /// S, the longest source with `</s>`.
    pub source_length: usize,
    /// T, the longest target with `</s>`; 0 in a batch to translate.
    pub target_length: usize,
    /// Labels that are not padding.
    pub target_tokens: usize,
    /// Source tokens that are not padding.
    pub source_tokens: usize,
    /// `[B]`: what each pair's loss is multiplied by; empty: by 1.
    pub weights: Vec<f32>,
    /// `[B]`: which pairs these are, as given to [`Self::with_origin`].
    pub pairs: Vec<usize>,
    /// The epoch that they were drawn in, as given to [`Self::with_origin`].
    pub epoch: u64,
}

/// Tokens of a pair's larger side, with `</s>`.
pub fn larger_side<S: AsRef<[u32]>, T: AsRef<[u32]>>((source, target): &(S, T)) -> usize {
    source.as_ref().len().max(target.as_ref().len()) + 1
}

/// Cuts pairs, sorted by [`larger_side`], into runs of at most `batch_tokens` padded tokens on that side. A pair larger
/// than that is a run of its own.
pub fn split_by_tokens<S: AsRef<[u32]>, T: AsRef<[u32]>>(pairs: &[(S, T)], batch_tokens: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if (run.len() + 1) * larger_side(pair) <= batch_tokens => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// Writes a source and its end into `row`, which has room for both; see [`SpecialIds::language_last`].
pub fn end_source(source: &[u32], end: u32, language_last: bool, row: &mut [u32]) {
    row[..source.len()].copy_from_slice(source);
    row[source.len()] = end;
    if language_last {
        row.rotate_left(1);
    }
}

impl Batch {
    /// A training batch of pairs of token ids without special tokens.
    pub fn new<S: AsRef<[u32]>, T: AsRef<[u32]>>(pairs: &[(S, T)], ids: &SpecialIds) -> Self {
        let mut batch = Self::with_sources(pairs.iter().map(|(source, _)| source.as_ref()), ids);
        let targets = || pairs.iter().map(|(_, target)| target.as_ref());
        let columns = targets().map(|target| target.len() + 1).max().unwrap_or(0);
        batch.target_length = columns;
        batch.target_input = vec![ids.pad_target; pairs.len() * columns];
        batch.labels = batch.target_input.clone();
        batch.target_lengths = targets().map(|target| target.len() as u32 + 1).collect();
        for (row, target) in targets().enumerate() {
            let (start, length) = (row * columns, target.len());
            let input = &mut batch.target_input[start..start + length + 1];
            input[0] = ids.bos_target;
            input[1..].copy_from_slice(target);
            let labels = &mut batch.labels[start..start + length + 1];
            labels[..length].copy_from_slice(target);
            labels[length] = ids.eos_target;
            batch.target_tokens += length + 1;
        }
        batch
    }

    /// A batch to translate: sources without special tokens, and no targets.
    pub fn source_only<S: AsRef<[u32]>>(sources: &[S], ids: &SpecialIds) -> Self {
        Self::with_sources(sources.iter().map(AsRef::as_ref), ids)
    }

    /// Says which pairs the rows are, and in which epoch they were drawn.
    pub fn with_origin(mut self, pairs: Vec<usize>, epoch: u64) -> Self {
        self.pairs = pairs;
        self.epoch = epoch;
        self
    }

    /// Says what each pair's loss is multiplied by; empty: by 1.
    pub fn with_weights(self, weights: Vec<f32>) -> Self {
        Self { weights, ..self }
    }

    /// Some of the rows, trimmed to the columns that they need.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let longest = |lengths: &[u32]| lengths.iter().max().map_or(0, |length| *length as usize);
        let sum = |lengths: &[u32]| lengths.iter().map(|length| *length as usize).sum();
        let cut = |ids: &[u32], old: usize, new: usize| -> Vec<u32> {
            rows.clone().flat_map(|row| &ids[row * old..row * old + new]).copied().collect()
        };
        let source_lengths = self.source_lengths[rows.clone()].to_vec();
        let target_lengths = self.target_lengths.get(rows.clone()).unwrap_or_default().to_vec();
        let (source_length, target_length) = (longest(&source_lengths), longest(&target_lengths));
        let target =
            |ids: &[u32]| if ids.is_empty() { Vec::new() } else { cut(ids, self.target_length, target_length) };
        Self {
            source: cut(&self.source, self.source_length, source_length),
            target_input: target(&self.target_input),
            labels: target(&self.labels),
            batch_size: rows.len(),
            source_tokens: sum(&source_lengths),
            target_tokens: sum(&target_lengths),
            source_lengths,
            target_lengths,
            source_length,
            target_length,
            weights: self.weights.get(rows.clone()).unwrap_or_default().to_vec(),
            pairs: self.pairs.get(rows.clone()).unwrap_or_default().to_vec(),
            epoch: self.epoch,
        }
    }

    fn with_sources<'a>(sources: impl ExactSizeIterator<Item = &'a [u32]> + Clone, ids: &SpecialIds) -> Self {
        let columns = sources.clone().map(|source| source.len() + 1).max().unwrap_or(0);
        let mut batch = Self {
            source: vec![ids.pad_source; sources.len() * columns],
            source_lengths: Vec::with_capacity(sources.len()),
            batch_size: sources.len(),
            source_length: columns,
            ..Self::default()
        };
        for (row, source) in sources.enumerate() {
            let (start, length) = (row * columns, source.len());
            end_source(source, ids.eos_source, ids.language_last, &mut batch.source[start..=start + length]);
            batch.source_lengths.push(length as u32 + 1);
            batch.source_tokens += length + 1;
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: SpecialIds = SpecialIds {
        pad_source: 90,
        eos_source: 91,
        pad_target: 80,
        bos_target: 81,
        eos_target: 82,
        language_last: false,
    };

    #[test]
    fn runs_hold_as_many_pairs_as_fit() {
        let pair = |source: usize, target: usize| (vec![7u32; source], vec![7u32; target]);
        // Larger sides, with </s>: 2, 3, 3, 5, 12.
        let pairs = [pair(1, 0), pair(2, 1), pair(1, 2), pair(4, 4), pair(11, 1)];
        assert_eq!(split_by_tokens(&pairs, 10), [0..3, 3..4, 4..5]);
        assert_eq!(split_by_tokens(&pairs, 20), [0..4, 4..5]);
        assert_eq!(split_by_tokens(&pairs, 1), [0..1, 1..2, 2..3, 3..4, 4..5]);
        assert!(split_by_tokens(&pairs[..0], 10).is_empty());
    }

    #[test]
    fn rows_are_ended_shifted_and_padded() {
        let pairs = [(vec![1, 2, 3], vec![4]), (vec![5], vec![6, 7]), (vec![], vec![])];
        let batch = Batch::new(&pairs, &IDS).with_origin(vec![30, 10, 20], 2).with_weights(vec![0.5, 2.0, 0.0]);
        assert_eq!(
            batch,
            Batch {
                #[rustfmt::skip]
                source: vec![
                    1, 2, 3, 91,
                    5, 91, 90, 90,
                    91, 90, 90, 90,
                ],
                source_lengths: vec![4, 2, 1],
                #[rustfmt::skip]
                target_input: vec![
                    81, 4, 80,
                    81, 6, 7,
                    81, 80, 80,
                ],
                #[rustfmt::skip]
                labels: vec![
                    4, 82, 80,
                    6, 7, 82,
                    82, 80, 80,
                ],
                target_lengths: vec![2, 3, 1],
                batch_size: 3,
                source_length: 4,
                target_length: 3,
                target_tokens: 6,
                source_tokens: 7,
                weights: vec![0.5, 2.0, 0.0],
                pairs: vec![30, 10, 20],
                epoch: 2,
            }
        );
    }

    #[test]
    fn rows_of_a_batch_are_the_batch_of_their_pairs() {
        let pairs = [(vec![1, 2, 3], vec![4]), (vec![5], vec![6, 7]), (vec![], vec![]), (vec![9], vec![8])];
        let weights = [0.5, 2.0, 0.0, 1.0];
        let batch = Batch::new(&pairs, &IDS).with_origin(vec![30, 10, 20, 40], 2).with_weights(weights.to_vec());
        for rows in [0..4, 0..2, 1..3, 2..4, 3..4, 1..1] {
            let origin = batch.pairs[rows.clone()].to_vec();
            let weights = weights[rows.clone()].to_vec();
            let expected = Batch::new(&pairs[rows.clone()], &IDS).with_origin(origin, 2).with_weights(weights);
            assert_eq!(batch.rows(rows), expected);
        }
        let sources = Batch::source_only(&[&[1, 2][..], &[3][..]], &IDS);
        assert_eq!(sources.rows(1..2), Batch::source_only(&[&[3][..]], &IDS));
    }

    #[test]
    fn sources_alone_have_no_targets() {
        let batch = Batch::source_only(&[&[1, 2][..], &[3][..]], &IDS);
        assert_eq!(batch.source, [1, 2, 91, 3, 91, 90]);
        assert_eq!((batch.batch_size, batch.source_length, batch.source_tokens), (2, 3, 5));
        assert_eq!((batch.target_length, batch.target_tokens), (0, 0));
        assert!(batch.labels.is_empty() && batch.target_input.is_empty() && batch.target_lengths.is_empty());
    }

    #[test]
    fn a_language_may_come_after_the_end() {
        let ids = SpecialIds { language_last: true, ..IDS };
        let batch = Batch::new(&[(vec![7, 1, 2], vec![8, 3]), (vec![7], vec![8])], &ids);
        assert_eq!(batch.source, [1, 2, 91, 7, 91, 7, 90, 90]);
        assert_eq!(batch.target_input, [81, 8, 3, 81, 8, 80]);
    }

    #[test]
    fn an_empty_batch_is_empty() {
        assert_eq!(Batch::source_only::<&[u32]>(&[], &IDS), Batch::default());
        assert_eq!(Batch::new::<&[u32], &[u32]>(&[], &IDS), Batch::default());
    }
}
