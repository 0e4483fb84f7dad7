//! From corpora on disk to a stream of batches.

use std::sync::Arc;

use crate::config::{Config, DataConfig};
use crate::data::batch::Batch;
use crate::data::corpus::{Corpus, PairSource};
use crate::data::encoded::EncodedCorpus;
use crate::data::filter::Filter;
use crate::data::prefetch::{Prefetch, Prepared};
use crate::data::sampler::{Sampler, SamplerPosition};
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::rng;

/// Batches made ahead of the training loop.
const AHEAD: usize = 4;

/// What training reads.
pub struct Data {
    /// Learned, or loaded on resume.
    pub tokenizers: Tokenizers,
    /// The pairs that passed the filters.
    pub corpus: Arc<EncodedCorpus>,
}

/// Opens the training corpora, and tells of carriage returns in them.
fn open(config: &DataConfig, say: &dyn Fn(String)) -> Result<Vec<Box<dyn PairSource>>> {
    let open = |c: &crate::config::CorpusConfig| -> Result<Box<dyn PairSource>> {
        let corpus = Corpus::open(&c.source, &c.target, c.weight)?;
        for file in [corpus.source(), corpus.target()].into_iter().filter(|file| file.carriage_returns > 0) {
            let (path, lines) = (file.path().display(), file.carriage_returns);
            say(format!("{path}: {lines} lines ended in \\r\\n; the \\r is not part of the text"));
        }
        Ok(Box::new(corpus))
    };
    config.train.iter().map(open).collect()
}

/// Opens, learns the tokenizers (unless they are `saved`), encodes and filters.
pub fn data(config: &Config, saved: Option<Tokenizers>, say: &dyn Fn(String)) -> Result<Data> {
    let corpora = open(&config.data, say)?;
    let tokenizers = match saved {
        Some(tokenizers) => tokenizers,
        None => {
            let tokenizers = Tokenizers::train(&config.tokenizer, &corpora)?;
            let (pieces, asked) = (tokenizers.target.vocab_size(), config.tokenizer.vocab_size);
            say(format!(
                "tokenizer: {pieces} pieces{}{}",
                if tokenizers.is_joint() { ", joint" } else { "" },
                if pieces < asked { format!("; the text has no more than that, of {asked}") } else { String::new() }
            ));
            tokenizers
        }
    };
    let filter = Filter { max_length: config.data.max_length, max_ratio: config.data.max_ratio };
    let (source, target) = (tokenizers.source.clone(), tokenizers.target.clone());
    let (corpus, report) =
        EncodedCorpus::build(corpora, filter, |line| source.encode(line), |line| target.encode(line))?;
    say(format!("data: {report}"));
    Ok(Data { tokenizers, corpus: Arc::new(corpus) })
}

/// Batches from `position` on, prepared on another thread; they end after `train.max_epochs`.
pub fn batches(data: &Data, config: &Config, position: SamplerPosition) -> Result<Prefetch<Prepared<Batch>>> {
    let train = &config.train;
    let mut sampler = Sampler::new(data.corpus.lengths(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
    sampler.seek(position)?;
    let (corpus, tokenizers) = (data.corpus.clone(), data.tokenizers.clone());
    let (dropout, seed, max_epochs) = (config.tokenizer.dropout as f32, train.seed, train.max_epochs);
    let most = config.model.max_length - 1;
    Prefetch::new(AHEAD, move || {
        let plan = sampler.next_batch();
        if max_epochs > 0 && plan.epoch >= max_epochs {
            return None;
        }
        let special = tokenizers.special_ids();
        let batch = if dropout > 0.0 {
            let encode = |&index: &usize| {
                let (source, target) = corpus.pair_text(index);
                let key = |side| rng::key(seed, "bpe-dropout", &[plan.epoch, index as u64, side]);
                let mut source = tokenizers.source.encode_with_dropout(source, dropout, key(0));
                let mut target = tokenizers.target.encode_with_dropout(target, dropout, key(1));
                // Dropout makes more pieces; the positions are the only hard bound.
                source.truncate(most);
                target.truncate(most);
                (source, target)
            };
            let pairs: Vec<_> = plan.indices.iter().map(encode).collect();
            Batch::new(&pairs, &special)
        } else {
            let pairs: Vec<_> = plan.indices.iter().map(|&index| corpus.pair(index)).collect();
            Batch::new(&pairs, &special)
        };
        let item = batch.with_origin(plan.indices, plan.epoch);
        Some(Ok(Prepared { item, position: sampler.position() }))
    })
}
