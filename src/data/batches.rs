//! From prepared text to a stream of batches.

use std::ops::Range;

use super::training::TrainingData;
use crate::data::batch::{Batch, larger_side, split_by_tokens};
use crate::data::prefetch::{Prefetch, Prepared};
use crate::data::sampler::{BatchPlan, Sampler, SamplerPosition};
use crate::data::tokenizer::{SubwordSampling, Tokenizer};
use crate::error::Result;
use crate::ranks::Ranks;
use crate::rng;

/// How many batches to prepare ahead of the training loop.
const AHEAD: usize = 4;

/// How prepared text becomes batches.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Padded tokens of a batch's larger side, at most.
    pub batch_tokens: usize,
    /// Epochs after which the batches end; 0 for no end.
    pub max_epochs: u64,
    /// Tokens of a line, with `</s>`, at most.
    pub max_length: usize,
    /// How text is split at random, if it is.
    pub sampling: Option<SubwordSampling>,
    /// Of the order of pairs, and of subword sampling.
    pub seed: u64,
    /// Micro-batches that make an update, over all ranks.
    pub accumulate: u64,
    /// Which of them are prepared.
    pub ranks: Ranks,
}

impl BatchOptions {
    /// As a rank needs it.
    pub fn of(self, ranks: Ranks) -> Self {
        Self { ranks, ..self }
    }
}

/// Rows, and tokens per row, of the largest batch without subword sampling: as many copies of the longest pair as there
/// is room for, but no more than an epoch has pairs.
pub fn largest_shape(data: &TrainingData, batch_tokens: usize) -> (usize, usize) {
    let [source, target] = data.corpus.longest();
    let tokens = source.max(target) as usize + 1;
    let [pairs, _] = data.corpus.epoch();
    ((batch_tokens / tokens).min(pairs.ceil() as usize).max(1), tokens)
}

/// A batch of the largest shape, with no padding on either side.
pub fn largest_batch(data: &TrainingData, batch_tokens: usize) -> Batch {
    let (rows, tokens) = largest_shape(data, batch_tokens);
    let special = data.tokenizers.special_ids();
    let pair = (vec![special.eos_source; tokens - 1], vec![special.eos_target; tokens - 1]);
    Batch::new(&vec![pair; rows], &special)
}

fn sampler(data: &TrainingData, options: &BatchOptions) -> Result<Sampler> {
    Sampler::new(data.corpus.clone(), data.corpus.ranges(), options.batch_tokens, options.seed)
}

/// A position from which batches can continue: this one, or the beginning of its epoch if that has other batches now.
pub fn nearest(
    data: &TrainingData,
    options: &BatchOptions,
    position: SamplerPosition,
    is_other_order: bool,
) -> Result<SamplerPosition> {
    let mut sampler = sampler(data, options)?;
    let beginning = SamplerPosition { epoch: position.epoch, ..SamplerPosition::default() };
    Ok(if !is_other_order && sampler.seek(position).is_ok() { position } else { beginning })
}

/// Batches from `position` on, where an update begins, prepared on another thread; they end after `max_epochs`.
///
/// Those of other ranks are hollow: they name their pairs, and have no rows.
/// An item is one micro-batch, in parts of at most `batch_tokens`: subword sampling makes more subwords than
/// the sampler counted.
pub fn batches(
    data: &TrainingData,
    options: &BatchOptions,
    position: SamplerPosition,
) -> Result<Prefetch<Prepared<Vec<Batch>>>> {
    let mut sampler = sampler(data, options)?;
    sampler.seek(position)?;
    let (corpus, tokenizers) = (data.corpus.clone(), data.tokenizers.clone());
    let BatchOptions { batch_tokens, max_epochs, max_length, sampling, seed, accumulate, ranks } = *options;
    let most = max_length - 1;
    let mut numbers = (0..accumulate).cycle();
    Prefetch::new(AHEAD, move || {
        let BatchPlan { indices, turns, epoch } = sampler.next_batch();
        if max_epochs > 0 && epoch >= max_epochs {
            return None;
        }
        let special = tokenizers.special_ids();
        let is_own = numbers.next().is_none_or(|number| ranks.takes(number));
        let item = if !is_own {
            vec![Batch::default().with_origin(indices, epoch)]
        } else if corpus.is_text() {
            let encode = |(index, turn): (usize, u64)| {
                let (source, target) = corpus.text(index);
                let split = |tokenizer: &Tokenizer, text, side: usize| {
                    let key = || rng::key(seed, "bpe-dropout", &[turn, index as u64, side as u64]);
                    let mut ids = match sampling.and_then(|sampling| sampling.at(side, epoch)) {
                        Some(sampling) => tokenizer.sample(text, sampling, key()),
                        None => tokenizer.encode(text),
                    };
                    // Sampling makes more pieces; the positions are a hard bound.
                    ids.truncate(most);
                    ids
                };
                (index, (split(&tokenizers.source, source, 0), split(&tokenizers.target, target, 1)))
            };
            let mut pairs: Vec<_> = indices.into_iter().zip(turns).map(encode).collect();
            pairs.sort_by_key(|(_, pair)| larger_side(pair));
            let (indices, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let part = |part: Range<usize>| {
                let indices = &indices[part.clone()];
                let batch = Batch::new(&pairs[part], &special).with_weights(corpus.weights(indices));
                batch.with_origin(indices.to_vec(), epoch)
            };
            split_by_tokens(&pairs, batch_tokens).into_iter().map(part).collect()
        } else {
            let pairs: Vec<_> = indices.iter().map(|&index| corpus.ids(index)).collect();
            let batch = Batch::new(&pairs, &special).with_weights(corpus.weights(&indices));
            vec![batch.with_origin(indices, epoch)]
        };
        Some(Ok(Prepared { item, position: sampler.position() }))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::data::TokenizerConfig;
    use crate::data::corpus::PairSource;
    use crate::data::encode::{self, Recipe};
    use crate::data::encoded::EncodedCorpus;
    use crate::data::filter::Filter;
    use crate::data::shard::Elements;
    use crate::data::texts::Text;
    use crate::data::tokenizer::RandomSplit;
    use crate::data::tokenizers::Tokenizers;

    const OPTIONS: BatchOptions = BatchOptions {
        batch_tokens: 128,
        max_epochs: 1,
        max_length: 256,
        sampling: None,
        seed: 1,
        accumulate: 1,
        ranks: Ranks::ALONE,
    };

    fn dropout(share: f32) -> Option<SubwordSampling> {
        (share > 0.0).then_some(SubwordSampling { how: RandomSplit::Dropout(share), sides: [true; 2], epochs: 0 })
    }

    /// What two hundred pairs give; those longer than `max_length` are left out.
    fn parts(options: BatchOptions) -> Vec<Vec<Batch>> {
        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| format!("the old dog {i} sleeps near the {} house\n", "very ".repeat(i % 7));
        let text: String = (0..200).map(line).collect();
        let [source, target] = ["en", "de"].map(|name| folder.path().join(name));
        std::fs::write(&source, &text).unwrap();
        std::fs::write(&target, text.replace("dog", "Hund")).unwrap();
        let corpora = vec![Text::files(source, target).open(1.0, &|_| ()).unwrap()];
        let config = TokenizerConfig { vocab_size: 320, ..TokenizerConfig::default() };
        let tokenizers = Tokenizers::train(&config, &corpora).unwrap();
        let filter = Filter { max_length: options.max_length - 1, max_ratio: 0.0 };
        let elements = if options.sampling.is_some() { Elements::Text } else { Elements::WideIds };
        let recipe = Recipe { encoder: &tokenizers, filter, elements, quality: None };
        let encode = |corpus: Box<dyn PairSource>| {
            let shards = encode::shards(&*corpus, recipe, &|_| Ok(())).unwrap();
            (corpus, shards)
        };
        let (corpus, report) = EncodedCorpus::new(corpora.into_iter().map(encode).collect(), filter).unwrap();
        let data = TrainingData { tokenizers, corpus: Arc::new(corpus), report, directories: Vec::new() };
        batches(&data, &options, SamplerPosition::default()).unwrap().map(|item| item.unwrap().item).collect()
    }

    /// Each rank has its own micro-batches, as one rank would have them, and knows the pairs of all.
    #[test]
    fn ranks_prepare_their_own_batches() {
        let options = BatchOptions { accumulate: 3, sampling: dropout(0.5), ..OPTIONS };
        let all = parts(options);
        for rank in 0..2 {
            let own = parts(options.of(Ranks { rank, count: 2 }));
            assert_eq!(own.len(), all.len());
            for (number, (own, all)) in own.iter().zip(&all).enumerate() {
                let pairs = |parts: &[Batch]| {
                    let mut pairs: Vec<usize> = parts.iter().flat_map(|part| part.pairs.clone()).collect();
                    pairs.sort_unstable();
                    pairs
                };
                assert_eq!((pairs(own), own[0].epoch), (pairs(all), all[0].epoch));
                if number % 3 % 2 == rank {
                    assert_eq!(own, all);
                } else {
                    assert!(own.len() == 1 && own[0].batch_size == 0);
                }
            }
        }
    }

    /// With half of all merges undone, pairs grow, but no batch exceeds its bound, and every pair still occurs once per
    /// epoch.
    #[test]
    fn dropout_does_not_make_batches_too_large() {
        let (whole, cut) = (parts(OPTIONS), parts(BatchOptions { sampling: dropout(0.5), ..OPTIONS }));
        assert_eq!(whole.len(), cut.len());
        assert!(whole.iter().all(|parts| parts.len() == 1) && cut.iter().any(|parts| parts.len() > 1));
        for batch in cut.iter().chain(&whole).flatten() {
            assert!(batch.batch_size * batch.source_length.max(batch.target_length) <= 128);
        }
        let mut lines: Vec<usize> = cut.iter().flatten().flat_map(|batch| batch.pairs.clone()).collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..200).collect::<Vec<_>>());
    }

    /// There is no position for what a model's `max_length` has no room for.
    #[test]
    fn dropout_does_not_make_pairs_longer_than_the_model_takes() {
        let longest = |side: fn(&Batch) -> usize, share: f32, max_length: usize| {
            parts(BatchOptions { sampling: dropout(share), max_length, ..OPTIONS })
                .iter()
                .flatten()
                .map(side)
                .max()
                .unwrap()
        };
        for side in [|batch: &Batch| batch.source_length, |batch: &Batch| batch.target_length] {
            let most = longest(side, 0.0, 100);
            assert!(longest(side, 0.9, 100) > most);
            assert_eq!(longest(side, 0.9, most), most);
        }
    }

    /// Otherwise a model would see each pair in one and the same form, and the dropout would be of little use.
    #[test]
    fn dropout_cuts_a_pair_in_another_way_in_each_epoch() {
        let epochs = |sampling| {
            let batches = parts(BatchOptions { sampling, max_epochs: 2, ..OPTIONS });
            [0, 1].map(|epoch: u64| {
                let batches = batches.iter().flatten().filter(|batch| batch.epoch == epoch);
                let pairs = batches.flat_map(|batch| {
                    batch.pairs.iter().enumerate().map(|(row, pair)| {
                        let row = batch.rows(row..row + 1);
                        (*pair, [row.source, row.labels])
                    })
                });
                pairs.collect::<BTreeMap<_, _>>()
            })
        };
        let [first, second] = epochs(dropout(0.5));
        assert_eq!((first.len(), second.len()), (200, 200));
        let same = |one: &BTreeMap<_, [_; 2]>, other: &BTreeMap<_, [Vec<u32>; 2]>, side: usize| {
            one.iter().filter(|(pair, sides): &(&usize, &[Vec<u32>; 2])| other[*pair][side] == sides[side]).count()
        };
        assert!(same(&first, &second, 0) < 20 && same(&first, &second, 1) < 20);
        // One side alone, and only in the first epoch.
        let target = dropout(0.5).map(|sampling| SubwordSampling { sides: [false, true], epochs: 1, ..sampling });
        let ([first, second], [whole, _]) = (epochs(target), epochs(None));
        assert_eq!([same(&first, &whole, 0), same(&second, &whole, 0), same(&second, &whole, 1)], [200; 3]);
        assert!(same(&first, &whole, 1) < 20);
    }
}
