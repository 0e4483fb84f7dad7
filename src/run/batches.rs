//! From prepared text to a stream of batches.

use std::ops::Range;

use super::training_data::Data;
use crate::config::Config;
use crate::data::batch::{Batch, larger_side, split_by_tokens};
use crate::data::prefetch::{Prefetch, Prepared};
use crate::data::sampler::{BatchPlan, Sampler, SamplerPosition};
use crate::error::Result;
use crate::rng;

/// How many batches to prepare ahead of the training loop.
const AHEAD: usize = 4;

/// Rows, and tokens per row, of the largest batch without BPE-dropout: as many copies of the longest pair as there is
/// room for, but no more than an epoch has pairs.
pub fn largest_shape(data: &Data, config: &Config) -> (usize, usize) {
    let [source, target] = data.corpus.longest();
    let tokens = source.max(target) as usize + 1;
    let [pairs, _] = data.corpus.epoch();
    ((config.train.batch_tokens / tokens).min(pairs.ceil() as usize).max(1), tokens)
}

/// A batch of the largest shape, with no padding on either side.
pub fn largest_batch(data: &Data, config: &Config) -> Batch {
    let (rows, tokens) = largest_shape(data, config);
    let special = data.tokenizers.special_ids();
    let pair = (vec![special.eos_source; tokens - 1], vec![special.eos_target; tokens - 1]);
    Batch::new(&vec![pair; rows], &special)
}

/// A position from which batches can continue: this one, or the beginning of its epoch if that has other batches now.
pub fn nearest(
    data: &Data,
    config: &Config,
    position: SamplerPosition,
    is_other_order: bool,
) -> Result<SamplerPosition> {
    let train = &config.train;
    let mut sampler = Sampler::new(data.corpus.clone(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
    let beginning = SamplerPosition { epoch: position.epoch, ..SamplerPosition::default() };
    Ok(if !is_other_order && sampler.seek(position).is_ok() { position } else { beginning })
}

/// Batches from `position` on, prepared on another thread; they end after `train.max_epochs`.
///
/// An item is one micro-batch, in parts of at most `train.batch_tokens`: BPE-dropout makes more subwords than the
/// sampler counted.
pub fn batches(data: &Data, config: &Config, position: SamplerPosition) -> Result<Prefetch<Prepared<Vec<Batch>>>> {
    let train = &config.train;
    let mut sampler = Sampler::new(data.corpus.clone(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
    sampler.seek(position)?;
    let (corpus, tokenizers, batch_tokens) = (data.corpus.clone(), data.tokenizers.clone(), train.batch_tokens);
    let (dropout, seed, max_epochs) = (config.tokenizer.dropout as f32, train.seed, train.max_epochs);
    let most = config.model.max_length - 1;
    Prefetch::new(AHEAD, move || {
        let BatchPlan { indices, turns, epoch } = sampler.next_batch();
        if max_epochs > 0 && epoch >= max_epochs {
            return None;
        }
        let special = tokenizers.special_ids();
        let item = if corpus.is_text() {
            let encode = |(index, turn): (usize, u64)| {
                let (source, target) = corpus.text(index);
                let key = |side| rng::key(seed, "bpe-dropout", &[turn, index as u64, side]);
                let mut source = tokenizers.source.encode_with_dropout(source, dropout, key(0));
                let mut target = tokenizers.target.encode_with_dropout(target, dropout, key(1));
                // Dropout makes more pieces; the positions are a hard bound.
                source.truncate(most);
                target.truncate(most);
                (index, (source, target))
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
    use super::super::training_data::{self, Preparation};
    use super::*;
    use crate::data::texts::{Text, Texts};
    use crate::model::{ModelConfig, Preset};

    /// What two hundred pairs give, with this probability of leaving out a merge.
    fn parts(dropout: f64, set: impl Fn(&mut Config)) -> Vec<Vec<Batch>> {
        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| format!("the old dog {i} sleeps near the {} house\n", "very ".repeat(i % 7));
        let text: String = (0..200).map(line).collect();
        let [source, target] = ["en", "de"].map(|name| folder.path().join(name));
        std::fs::write(&source, &text).unwrap();
        std::fs::write(&target, text.replace("dog", "Hund")).unwrap();
        let mut config = Config { model: ModelConfig::from_preset(Preset::Tiny), ..Config::default() };
        let texts =
            Texts { train: vec![(Text::files(source, target), 1.0)], valid: None, test: None, monitor: Vec::new() };
        config.tokenizer.vocab_size = 320;
        config.train.batch_tokens = 128;
        config.train.max_epochs = 1;
        config.tokenizer.dropout = dropout;
        set(&mut config);
        let data = training_data::prepare(&config, &texts, None, &Preparation::quiet(folder.path())).unwrap();
        batches(&data, &config, SamplerPosition::default()).unwrap().map(|item| item.unwrap().item).collect()
    }

    /// With half of all merges undone, pairs grow, but no batch exceeds its bound, and every pair still occurs once per
    /// epoch.
    #[test]
    fn dropout_does_not_make_batches_too_large() {
        let (whole, cut) = (parts(0.0, |_| ()), parts(0.5, |_| ()));
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
        let longest = |side: fn(&Batch) -> usize, dropout: f64, max_length: usize| {
            let set = |config: &mut Config| {
                config.model.max_length = max_length;
                config.data.max_length = max_length - 1;
            };
            parts(dropout, set).iter().flatten().map(side).max().unwrap()
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
        let batches = parts(0.5, |config| config.train.max_epochs = 2);
        let of_epoch = |epoch: u64| {
            let batches = batches.iter().flatten().filter(move |batch| batch.epoch == epoch);
            let pairs = batches.flat_map(|batch| {
                batch.pairs.iter().enumerate().map(|(row, pair)| {
                    let row = batch.rows(row..row + 1);
                    (*pair, [row.source, row.labels])
                })
            });
            pairs.collect::<std::collections::BTreeMap<_, _>>()
        };
        let (first, second) = (of_epoch(0), of_epoch(1));
        assert_eq!((first.len(), second.len()), (200, 200));
        for side in 0..2 {
            let same = first.iter().filter(|(pair, sides)| second[*pair][side] == sides[side]).count();
            assert!(same < 20, "{same} of 200 sides {side}");
        }
    }
}
