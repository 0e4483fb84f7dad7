//! Batches without their padding: the device works on the real tokens alone, one row each.

use crate::model::Sequences;

/// One side of a batch, packed.
#[derive(Debug, Default)]
pub struct Rows {
    /// Token of every row.
    pub ids: Vec<u32>,
    /// Position of every row in its sentence.
    pub places: Vec<u32>,
    /// Where every row is in the padded batch: what dropout masks are numbered by.
    pub padded: Vec<u32>,
    /// First row of every sentence, and the number of rows.
    pub starts: Vec<u32>,
    /// The longest sentence, padded length of all.
    pub longest: usize,
}

/// Rows by some value that they have: those of one value are a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// The rows, by value, those of one value in order.
    pub order: Vec<u32>,
    /// Where each segment begins in `order`, and where the last one ends.
    pub starts: Vec<u32>,
    /// The values.
    pub values: Vec<u32>,
}

impl Rows {
    /// The real tokens of padded sequences.
    pub fn new(sequences: &Sequences) -> Self {
        let mut rows = Self { longest: sequences.length, ..Self::default() };
        for (sentence, &length) in sequences.lengths.iter().enumerate() {
            rows.starts.push(rows.ids.len() as u32);
            let first = sentence * sequences.length;
            let length = (length as usize).min(sequences.length);
            rows.ids.extend_from_slice(&sequences.ids[first..first + length]);
            rows.places.extend(0..length as u32);
            rows.padded.extend((first..first + length).map(|row| row as u32));
        }
        rows.starts.push(rows.ids.len() as u32);
        rows
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Number of sentences.
    pub fn sentences(&self) -> usize {
        self.starts.len() - 1
    }
}

impl Segments {
    /// Rows by value.
    pub fn new(values: &[u32]) -> Self {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_unstable_by_key(|&row| (values[row as usize], row));
        let mut segments = Self::default();
        for (at, &row) in order.iter().enumerate() {
            let value = values[row as usize];
            if segments.values.last() != Some(&value) {
                segments.starts.push(at as u32);
                segments.values.push(value);
            }
        }
        segments.starts.push(order.len() as u32);
        segments.order = order;
        segments
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn padding_is_left_out() {
        let ids = vec![5, 6, 0, 7, 0, 0, 8, 9, 5];
        let rows = Rows::new(&Sequences { ids, lengths: Arc::new(vec![2, 1, 3]), length: 3 });
        assert_eq!(rows.ids, [5, 6, 7, 8, 9, 5]);
        assert_eq!(rows.places, [0, 1, 0, 0, 1, 2]);
        assert_eq!(rows.padded, [0, 1, 3, 6, 7, 8]);
        assert_eq!(rows.starts, [0, 2, 3, 6]);
        assert_eq!((rows.len(), rows.sentences(), rows.longest), (6, 3, 3));
    }

    #[test]
    fn segments_are_rows_of_one_value() {
        let segments = Segments::new(&[7, 3, 7, 7, 3, 9]);
        assert_eq!(segments.order, [1, 4, 0, 2, 3, 5]);
        assert_eq!(segments.starts, [0, 2, 5, 6]);
        assert_eq!(segments.values, [3, 7, 9]);
        assert_eq!(Segments::new(&[]), Segments { order: vec![], starts: vec![0], values: vec![] });
    }
}
