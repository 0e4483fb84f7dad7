//! Batches without their padding: the device works on the real tokens alone, one row each.

use crate::model::Sequences;

/// One side of a batch, packed.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Token of every row.
    pub ids: Vec<u32>,
    /// Position of every row in its sentence.
    pub places: Vec<u32>,
    /// Where every row is in the padded batch: what dropout masks are numbered by.
    pub padded: Vec<u32>,
    /// First row of every sentence, and the number of rows.
    pub starts: Vec<u32>,
    /// Length of the longest sentence, to which all are padded.
    pub longest: usize,
}

/// Rows grouped by some value of theirs: the rows of one value are a segment. The long ones come first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    /// The rows of each segment; those of one value stay in order.
    pub order: Vec<u32>,
    /// Where each segment begins in `order`, and where the last one ends.
    pub starts: Vec<u32>,
    /// The values.
    pub values: Vec<u32>,
    /// How many segments, the first ones, have more than [`SHORT`] rows.
    pub long: usize,
}

/// Rows of a short segment, at most.
pub(super) const SHORT: u32 = 32;

impl Rows {
    /// The real tokens of padded sequences.
    pub(super) fn new(sequences: &Sequences) -> Self {
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
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Number of sentences.
    pub(super) fn sentences(&self) -> usize {
        self.starts.len() - 1
    }
}

impl Segments {
    /// Groups rows by value. A counting sort, since there are about as many rows as values, and the device waits for
    /// this.
    pub(super) fn new(values: &[u32]) -> Self {
        let largest = values.iter().max().map_or(0, |&value| value as usize + 1);
        // For each value: first how many rows have it, then where the next one of them goes.
        let mut places = vec![0u32; largest];
        values.iter().for_each(|&value| places[value as usize] += 1);
        let mut segments = Self { order: vec![0; values.len()], ..Self::default() };
        let mut next = 0;
        let mut add = |value: usize, place: &mut u32| {
            segments.starts.push(next);
            segments.values.push(value as u32);
            next += std::mem::replace(place, next);
        };
        let mut short = Vec::new();
        for (value, place) in places.iter_mut().enumerate() {
            match *place {
                0 => {}
                1..=SHORT => short.push((value, place)),
                _ => add(value, place),
            }
        }
        let long = values.len() - short.iter().map(|(_, count)| **count as usize).sum::<usize>();
        short.into_iter().for_each(|(value, place)| add(value, place));
        segments.starts.push(next);
        segments.long = segments.starts.partition_point(|&start| (start as usize) < long);
        for (row, &value) in values.iter().enumerate() {
            let place = &mut places[value as usize];
            segments.order[*place as usize] = row as u32;
            *place += 1;
        }
        segments
    }

    /// Number of segments.
    pub(super) fn len(&self) -> usize {
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
        assert_eq!((segments.values, segments.long), (vec![3, 7, 9], 0));
        let nothing = Segments::new(&[]);
        assert_eq!((nothing.len(), nothing.starts, nothing.long), (0, vec![0], 0));
    }

    #[test]
    fn long_segments_come_first() {
        let often = |value: u32, times: u32| (0..times).map(move |_| value);
        let values: Vec<u32> =
            often(2, 1).chain(often(5, 40)).chain(often(3, SHORT)).chain(often(4, SHORT + 1)).collect();
        let segments = Segments::new(&values);
        assert_eq!((segments.values, segments.long), (vec![4, 5, 2, 3], 2));
        assert_eq!(segments.starts, [0, 33, 73, 74, 106]);
        let rows: Vec<u32> = (73..106).chain(1..41).chain(0..1).chain(41..73).collect();
        assert_eq!(segments.order, rows);
    }
}
