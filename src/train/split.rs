//! Batches that are too large for the device's memory: split, and tried again.

use crate::data::batch::Batch;
use crate::error::Result;

/// What is computed of an update between two others: `train.accumulate` of them make one.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Its number in its update, from 0, over all ranks.
    pub number: u64,
    /// Its pairs, in one batch or several.
    pub parts: Vec<Batch>,
}

impl MicroBatch {
    /// The only one.
    pub fn only(parts: Vec<Batch>) -> Self {
        Self { number: 0, parts }
    }
}

/// The largest batch, in padded tokens, that is given to the device whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(usize::MAX)
    }
}

impl Limit {
    /// Runs `work` on the micro-batches, and again on smaller parts of them as long as it runs out of memory; returns
    /// them in these parts. When `work` begins, it must undo what a failed try did. The limit stays for later batches;
    /// `told` is called when it falls.
    ///
    /// # Errors
    /// Those of `work`; out of memory only if every batch has just one row.
    pub fn within(
        &mut self,
        batches: Vec<MicroBatch>,
        mut told: impl FnMut(usize),
        mut work: impl FnMut(&[MicroBatch]) -> Result<()>,
    ) -> Result<Vec<MicroBatch>> {
        let mut batches = self.split(batches);
        loop {
            let error = match work(&batches) {
                Ok(()) => return Ok(batches),
                Err(error) if error.is_out_of_memory() => error,
                Err(error) => return Err(error),
            };
            let parts = batches.iter().flat_map(|batch| &batch.parts);
            let largest = parts.filter(|batch| batch.batch_size > 1).map(padded).max();
            let Some(largest) = largest else {
                return Err(
                    error.help("even a single pair does not fit: lower data.max_length, or make the model smaller")
                );
            };
            self.0 = largest / 2;
            told(self.0);
            batches = self.split(batches);
        }
    }

    /// Micro-batches in parts within the limit.
    fn split(self, batches: Vec<MicroBatch>) -> Vec<MicroBatch> {
        let split = |MicroBatch { number, parts }: MicroBatch| {
            let parts = parts.into_iter().flat_map(|batch| self.parts(batch)).collect();
            MicroBatch { number, parts }
        };
        batches.into_iter().map(split).collect()
    }

    /// The batch in parts within the limit, where it has more than one row.
    fn parts(self, batch: Batch) -> Vec<Batch> {
        if batch.batch_size < 2 || padded(&batch) <= self.0 {
            return vec![batch];
        }
        let half = batch.batch_size / 2;
        let halves = [batch.rows(0..half), batch.rows(half..batch.batch_size)];
        halves.into_iter().flat_map(|half| self.parts(half)).collect()
    }
}

/// Tokens of the larger side, padding included.
fn padded(batch: &Batch) -> usize {
    batch.batch_size * batch.source_length.max(batch.target_length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::batch::SpecialIds;
    use crate::error::Error;

    const IDS: SpecialIds =
        SpecialIds { pad_source: 0, eos_source: 1, pad_target: 0, bos_target: 2, eos_target: 1, language_last: false };

    fn batch(number: u64, rows: usize) -> MicroBatch {
        let pairs: Vec<(Vec<u32>, Vec<u32>)> = (0..rows).map(|i| (vec![3; i + 1], vec![4; 5])).collect();
        MicroBatch { number, parts: vec![Batch::new(&pairs, &IDS).with_origin((0..rows).collect(), 0)] }
    }

    fn rows(batch: &MicroBatch) -> Vec<usize> {
        batch.parts.iter().flat_map(|batch| batch.pairs.clone()).collect()
    }

    #[test]
    fn a_batch_that_does_not_fit_is_split_until_it_does() {
        // A device with room for 20 padded tokens.
        let mut limit = Limit::default();
        let (mut told, mut tried) = (Vec::new(), 0);
        let mut work = |batches: &[MicroBatch]| {
            tried += 1;
            if batches.iter().flat_map(|batch| &batch.parts).any(|batch| padded(batch) > 20) {
                let driver = candle_core::Error::Msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")".into());
                return Err(Error::from(driver));
            }
            Ok(())
        };
        // 8 rows of at most 9: 72 tokens.
        let parts = limit.within(vec![batch(0, 8)], |most| told.push(most), &mut work).unwrap();
        assert_eq!(rows(&parts[0]), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(told, [36, 18]);
        // The next one is split at once.
        let parts = limit.within(vec![batch(3, 8), batch(5, 2)], |_| panic!(), &mut work).unwrap();
        let found = parts.iter().map(|batch| (batch.number, rows(batch).len(), batch.parts.len() > 1));
        assert_eq!(found.collect::<Vec<_>>(), [(3, 8, true), (5, 2, false)]);
        assert_eq!(tried, 4);
    }

    #[test]
    fn other_errors_and_single_rows_are_errors() {
        let mut limit = Limit::default();
        let mut tried = 0;
        let failed = limit.within(
            vec![batch(0, 4)],
            |_| panic!(),
            |_| {
                tried += 1;
                Err(Error::failure("something else"))
            },
        );
        assert_eq!((failed.unwrap_err().what(), tried), ("something else", 1));
        let full = |_: &[MicroBatch]| -> Result<()> { Err(Error::out_of_memory()) };
        assert!(limit.within(vec![batch(0, 4)], |_| (), full).unwrap_err().to_string().contains("a single pair"));
    }
}
