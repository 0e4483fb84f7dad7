//! Batches that are too large for the device's memory: split, and tried again.

use crate::data::batch::Batch;
use crate::error::Result;

/// The largest batch, in padded tokens, that is given to the device whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(usize::MAX)
    }
}

impl Limit {
    /// Runs `work` on the batches, and again on smaller parts of them as long as it runs out of memory; returns the
    /// parts. When `work` begins, it must undo what a failed try did. The limit stays for later batches; `told` is
    /// called when it falls.
    ///
    /// # Errors
    /// Those of `work`; out of memory only if every batch has just one row.
    pub fn within(
        &mut self,
        batches: Vec<Batch>,
        mut told: impl FnMut(usize),
        mut work: impl FnMut(&[Batch]) -> Result<()>,
    ) -> Result<Vec<Batch>> {
        let mut batches: Vec<Batch> = batches.into_iter().flat_map(|batch| self.parts(batch)).collect();
        loop {
            let error = match work(&batches) {
                Ok(()) => return Ok(batches),
                Err(error) if error.is_out_of_memory() => error,
                Err(error) => return Err(error),
            };
            let largest = batches.iter().filter(|batch| batch.batch_size > 1).map(padded).max();
            let Some(largest) = largest else {
                return Err(
                    error.help("even a single pair does not fit: lower data.max_length, or make the model smaller")
                );
            };
            self.0 = largest / 2;
            told(self.0);
            batches = batches.into_iter().flat_map(|batch| self.parts(batch)).collect();
        }
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

    const IDS: SpecialIds = SpecialIds { pad_source: 0, eos_source: 1, pad_target: 0, bos_target: 2, eos_target: 1 };

    fn batch(rows: usize) -> Batch {
        let pairs: Vec<(Vec<u32>, Vec<u32>)> = (0..rows).map(|i| (vec![3; i + 1], vec![4; 5])).collect();
        Batch::new(&pairs, &IDS).with_origin((0..rows).collect(), 0)
    }

    fn rows(batches: &[Batch]) -> Vec<usize> {
        batches.iter().flat_map(|batch| batch.pairs.clone()).collect()
    }

    #[test]
    fn a_batch_that_does_not_fit_is_split_until_it_does() {
        // A device with room for 20 padded tokens.
        let mut limit = Limit::default();
        let (mut told, mut tried) = (Vec::new(), 0);
        let mut work = |batches: &[Batch]| {
            tried += 1;
            if batches.iter().any(|batch| padded(batch) > 20) {
                let driver = candle_core::Error::Msg("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")".into());
                return Err(Error::from(driver));
            }
            Ok(())
        };
        // 8 rows of at most 9: 72 tokens.
        let parts = limit.within(vec![batch(8)], |most| told.push(most), &mut work).unwrap();
        assert_eq!(rows(&parts), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(told, [36, 18]);
        // The next one is split at once.
        let parts = limit.within(vec![batch(8), batch(2)], |_| panic!(), &mut work).unwrap();
        assert_eq!(rows(&parts).len(), 10);
        assert_eq!(tried, 4);
    }

    #[test]
    fn other_errors_and_single_rows_are_errors() {
        let mut limit = Limit::default();
        let mut tried = 0;
        let failed = limit.within(
            vec![batch(4)],
            |_| panic!(),
            |_| {
                tried += 1;
                Err(Error::failure("something else"))
            },
        );
        assert_eq!((failed.unwrap_err().what(), tried), ("something else", 1));
        let full = |_: &[Batch]| -> Result<()> { Err(Error::out_of_memory()) };
        assert!(limit.within(vec![batch(4)], |_| (), full).unwrap_err().to_string().contains("a single pair"));
    }
}
