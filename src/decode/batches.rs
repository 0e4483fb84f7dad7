//! Many sentences through a search: in batches, on a device two at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use super::ensemble::{Ensemble, EnsembleStep};
use super::neural::Neural;
use super::source::{self, Source};
use super::translate::TranslateOptions;
use super::{Demands, Hypothesis, Sentence, grid, search};
use crate::error::{Error, Result};

/// Batches on a device at a time: while it computes a step of one batch, the host ranks the candidates of the other.
const AT_ONCE: usize = 2;

/// Runs `work` on a batch, or on its halves if the device's memory is too small; the results are in the batch's order.
///
/// # Errors
/// Those of `work`; out of memory only if a single item is too large.
pub fn in_halves<T, R>(batch: &[T], work: &impl Fn(&[T]) -> Result<Vec<R>>) -> Result<Vec<R>> {
    match work(batch) {
        Err(error) if error.is_out_of_memory() && batch.len() > 1 => {
            let (first, second) = batch.split_at(batch.len() / 2);
            let mut results = in_halves(first, work)?;
            results.extend(in_halves(second, work)?);
            Ok(results)
        }
        result => result,
    }
}

/// Runs `work` on batches, [`AT_ONCE`] at a time, each on a thread of its own. Calls `finish` with each batch and its
/// result, on the calling thread. Returns the batches that did not fit into memory beside another; none if `finish`
/// returned false to stop.
///
/// # Errors
/// Those of `work`, but for out of memory.
fn overlapped<'b, T: Sync, R: Send>(
    batches: &[&'b [T]],
    work: &(impl Fn(&[T]) -> Result<R> + Sync),
    finish: &mut impl FnMut(&[T], R) -> bool,
) -> Result<Option<Vec<&'b [T]>>> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (sender, next) = (sender.clone(), &next);
            let translate = move || {
                while let Some(&batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody receives any more: stop.
                    if sender.send((batch, work(batch))).is_err() {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().name("batches".to_owned()).spawn_scoped(scope, translate);
            if let Err(error) = thread {
                // The other one has nothing more to do.
                next.store(batches.len(), Ordering::Relaxed);
                return Err(Error::thread("translates batches", error));
            }
        }
        drop(sender);
        let mut too_large = Vec::new();
        for (batch, result) in receiver {
            match result {
                Err(error) if error.is_out_of_memory() => too_large.push(batch),
                Err(error) => return Err(error),
                Ok(result) => {
                    if !finish(batch, result) {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(Some(too_large))
    })
}

impl Ensemble {
    /// The hypotheses of each source, in order; none for a source without tokens. `sources` has a list for each member;
    /// `demands` has an entry per source, or is empty. Sources are batched by length. Stops without a result if `go_on`
    /// returns false; it is called after each batch with the indices of its sources.
    ///
    /// # Errors
    /// As [`search`].
    pub fn translate(
        &self,
        sources: &[Vec<Source>],
        demands: &[Demands],
        options: &TranslateOptions,
        mut go_on: impl FnMut(&[usize]) -> bool,
    ) -> Result<Option<Vec<Vec<Hypothesis>>>> {
        let first = &sources[0];
        let mut results = vec![Vec::new(); first.len()];
        let width = options.strategy.rows();
        let with_phrases = |i: usize| Some(grid::rows(width, demands.get(i)?.must.as_ref()?));
        // The search for phrases is another one, and asks for all probabilities.
        let (mut constrained, mut others): (Vec<usize>, Vec<usize>) =
            (0..first.len()).filter(|&i| !first[i].ids.is_empty()).partition(|&i| with_phrases(i).is_some());
        let most_rows = constrained.iter().filter_map(|&i| with_phrases(i)).max().unwrap_or(width);
        // Each model has its own subwords.
        let longest = |&i: &usize| sources.iter().map(|of_model| of_model[i].ids.len()).max().unwrap_or(0);
        source::by_length(&mut others, longest);
        source::by_length(&mut constrained, longest);
        let most = self.rows(options.strategy.asks_for_all()) / width;
        let batches = source::batches(&others, longest, options.batch_tokens, most);
        let constrained = source::batches(&constrained, longest, options.batch_tokens, self.rows(true) / most_rows);
        let batches: Vec<_> = batches.chain(constrained).collect();
        let mut finish = |batch: &[usize], found: Vec<Vec<Hypothesis>>| {
            batch.iter().zip(found).for_each(|(&i, hypotheses)| results[i] = hypotheses);
            go_on(batch)
        };
        let work = |batch: &[usize]| self.batch(sources, batch, demands, options);
        let mut left = batches.clone();
        if self.is_on_device() && batches.len() > 1 {
            let Some(too_large) = overlapped(&batches, &work, &mut finish)? else { return Ok(None) };
            left = too_large;
            if !left.is_empty() {
                self.release_memory();
            }
        }
        for batch in left {
            if !finish(batch, in_halves(batch, &work)?) {
                return Ok(None);
            }
        }
        Ok(Some(results))
    }

    fn batch(
        &self,
        sources: &[Vec<Source>],
        batch: &[usize],
        demands: &[Demands],
        options: &TranslateOptions,
    ) -> Result<Vec<Vec<Hypothesis>>> {
        let sentence = |&i: &usize| {
            let Source { line, part, ids, .. } = &sources[0][i];
            let demands = demands.get(i).cloned().unwrap_or_default();
            Sentence {
                min_length: options.min_length,
                max_length: options.limit(ids.len(), demands.tokens()).clamp(1, self.max_positions()),
                demands,
                // Unique: there are never 2^40 lines.
                key: ((options.lines_before + line) as u64) + ((*part as u64) << 40),
            }
        };
        let sentences: Vec<Sentence> = batch.iter().map(sentence).collect();
        let needed: Vec<Vec<u32>> = sentences.iter().map(|sentence| sentence.demands.needed()).collect();
        let characters = self.members()[0].special().characters.clone();
        search(&mut self.begin_with(sources, batch, &needed)?, &options.search(sentences, characters))
    }

    /// Begins to decode the sources whose indices are in `batch`. No shortlist excludes the tokens that are `needed`
    /// for each, if there are any.
    pub(super) fn begin_with(
        &self,
        sources: &[Vec<Source>],
        batch: &[usize],
        needed: &[Vec<u32>],
    ) -> Result<EnsembleStep<'_>> {
        let ids = |(member, sources): (&Neural, &Vec<Source>)| -> Vec<Vec<u32>> {
            batch.iter().map(|&i| member.special().ended(&sources[i].ids)).collect()
        };
        let ids: Vec<Vec<Vec<u32>>> = self.members().iter().zip(sources).map(ids).collect();
        let ids: Vec<Vec<&[u32]>> = ids.iter().map(|ids| ids.iter().map(Vec::as_slice).collect()).collect();
        self.begin_allowing(&ids, needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    const ITEMS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

    #[test]
    fn every_batch_is_worked_on_once() {
        let batches: Vec<&[u32]> = ITEMS.chunks(2).collect();
        let work = |batch: &[u32]| match batch {
            [3, _] => Err(Error::out_of_memory()),
            _ => Ok(batch.iter().sum::<u32>()),
        };
        let mut sums = Vec::new();
        let left = overlapped(&batches, &work, &mut |batch, sum| {
            sums.push((batch[0], sum));
            true
        });
        assert_eq!(left.unwrap().unwrap(), [&[3, 4]]);
        sums.sort_unstable();
        assert_eq!(sums, [(1, 3), (5, 11), (7, 15), (9, 9)]);
    }

    #[test]
    fn an_error_or_a_wish_to_stop_ends_it() {
        let items: Vec<u32> = (0..1000).collect();
        let batches: Vec<&[u32]> = items.chunks(1).collect();
        let begun = AtomicUsize::new(0);
        // All of them take seconds.
        let work = |batch: &[u32]| {
            begun.fetch_add(1, Ordering::Relaxed);
            thread::sleep(std::time::Duration::from_millis(5));
            if batch == [1] { Err(Error::failure("broken")) } else { Ok(()) }
        };
        let error = overlapped(&batches, &work, &mut |_, ()| true).unwrap_err();
        assert!(error.to_string().contains("broken"));
        assert!(begun.swap(0, Ordering::Relaxed) < 990);
        assert!(overlapped(&batches[2..], &work, &mut |_, ()| false).unwrap().is_none());
        assert!(begun.load(Ordering::Relaxed) < 990);
    }
}
