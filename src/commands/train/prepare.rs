//! From corpora on disk to a stream of batches.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::{Config, DataConfig, TokenizerConfig};
use crate::data::batch::{Batch, larger_side, split_by_tokens};
use crate::data::corpus::{Corpus, PairSource, Side};
use crate::data::encode::{self, Recipe};
use crate::data::encoded::EncodedCorpus;
use crate::data::filter::{Filter, FilterReport};
use crate::data::prefetch::{Prefetch, Prepared};
use crate::data::sampler::{BatchPlan, Sampler, SamplerPosition};
use crate::data::shard::Elements;
use crate::data::tokenizers::Tokenizers;
use crate::error::{Error, Result};
use crate::rng;

/// Batches made ahead of the training loop.
const AHEAD: usize = 4;

/// What training reads.
pub struct Data {
    /// Learned, or loaded on resume.
    pub tokenizers: Tokenizers,
    /// The pairs that passed the filters.
    pub corpus: Arc<EncodedCorpus>,
    /// Those that did not.
    pub report: FilterReport,
}

impl Data {
    /// Source and target ids of pair `index`, without special tokens and without dropout. Panics past the end.
    pub fn ids(&self, index: usize) -> (Vec<u32>, Vec<u32>) {
        if !self.corpus.is_text() {
            return self.corpus.ids(index);
        }
        let (source, target) = self.corpus.text(index);
        (self.tokenizers.source.encode(source), self.tokenizers.target.encode(target))
    }
}

/// Checks that every file the configuration names is there: all that are not are named before any work begins.
pub fn check_files(config: &DataConfig) -> Result<()> {
    let train = config.train.iter().flat_map(|corpus| [&corpus.source, &corpus.target]);
    let pairs = [&config.valid, &config.test].into_iter().flatten();
    let files = train.chain(pairs.flat_map(|pair| [&pair.source, &pair.target]));
    let missing = |file: &PathBuf| match std::fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Some(Error::failure("this is a directory, not a text file").at(file)),
        Ok(_) => None,
        Err(error) => {
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            let error = Error::io("read the text", file, error);
            let help = "check the path; relative paths start at the file that states them";
            Some(if is_missing { error.help(help) } else { error })
        }
    };
    let errors: Vec<Error> = files.filter_map(missing).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::many(errors)) }
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

/// The tokenizers that need not be learnt: those of the run that goes on, else those that the configuration names.
fn tokenizers(config: &TokenizerConfig, saved: Option<Tokenizers>, say: &dyn Fn(String)) -> Result<Option<Tokenizers>> {
    let Some(saved) = saved else {
        let named = Tokenizers::named(config)?;
        for (side, appended) in named.iter().flat_map(Tokenizers::appended) {
            let path = if side == Side::Source { &config.path } else { &config.target_path };
            let path = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            say(format!("tokenizer: {path} has no {}: put behind its vocabulary", appended.join(", ")));
        }
        if let Some(named) = &named {
            let sizes = [&named.source, &named.target].map(|tokenizer| tokenizer.vocab_size());
            let sizes = if named.is_joint() {
                format!("{} pieces, joint", sizes[0])
            } else {
                format!("{} and {} pieces", sizes[0], sizes[1])
            };
            say(format!("tokenizer: {sizes}, from a file"));
        }
        return Ok(named);
    };
    // The run has its own copy; the file may have gone.
    let is_there = |path: &Option<PathBuf>| path.as_ref().is_none_or(|path| path.exists());
    if let (Some(path), true, true) = (&config.path, is_there(&config.path), is_there(&config.target_path))
        && let Some(named) = Tokenizers::named(config)?
        && !named.is_same(&saved)?
    {
        let error = Error::usage("the tokenizer is not the one that the run began with").at(path);
        return Err(error.help("name the one it was, or start another run with --run-dir"));
    }
    Ok(Some(saved))
}

/// Opens, learns the tokenizers (unless they are `saved`), encodes and filters.
pub fn data(config: &Config, saved: Option<Tokenizers>, say: &dyn Fn(String)) -> Result<Data> {
    let (named, corpora) = (tokenizers(&config.tokenizer, saved, say)?, open(&config.data, say)?);
    let tokenizers = match named {
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
    let vocabulary = tokenizers.source.vocab_size().max(tokenizers.target.vocab_size());
    let elements = if config.tokenizer.dropout > 0.0 { Elements::Text } else { Elements::ids(vocabulary) };
    let recipe = Recipe { encoder: &tokenizers, filter, elements };
    let mut parts = Vec::with_capacity(corpora.len());
    for corpus in corpora {
        let shards = encode::shards(&*corpus, recipe, &|_| Ok(()))?;
        parts.push((corpus, shards));
    }
    let (corpus, report) = EncodedCorpus::new(parts, filter)?;
    say(format!("data: {report}"));
    Ok(Data { tokenizers, corpus: Arc::new(corpus), report })
}

/// A batch as large as any of the run can be: the longest pair again and again, with no padding on either side.
pub fn largest_batch(data: &Data, config: &Config) -> Batch {
    let [source, target] = data.corpus.longest();
    let tokens = source.max(target) as usize;
    let special = data.tokenizers.special_ids();
    let pair = (vec![special.eos_source; tokens], vec![special.eos_target; tokens]);
    let rows = (config.train.batch_tokens / (tokens + 1)).max(1);
    Batch::new(&vec![pair; rows], &special)
}

/// Batches from `position` on, prepared on another thread; they end after `train.max_epochs`.
///
/// An item is one micro-batch, in parts of at most `train.batch_tokens`: BPE-dropout makes more subwords than the sampler
/// counted.
pub fn batches(data: &Data, config: &Config, position: SamplerPosition) -> Result<Prefetch<Prepared<Vec<Batch>>>> {
    let train = &config.train;
    let mut sampler = Sampler::new(data.corpus.clone(), data.corpus.ranges(), train.batch_tokens, train.seed)?;
    sampler.seek(position)?;
    let (corpus, tokenizers, batch_tokens) = (data.corpus.clone(), data.tokenizers.clone(), train.batch_tokens);
    let (dropout, seed, max_epochs) = (config.tokenizer.dropout as f32, train.seed, train.max_epochs);
    let most = config.model.max_length - 1;
    Prefetch::new(AHEAD, move || {
        let BatchPlan { indices, epoch } = sampler.next_batch();
        if max_epochs > 0 && epoch >= max_epochs {
            return None;
        }
        let special = tokenizers.special_ids();
        let item = if dropout > 0.0 {
            let encode = |index: usize| {
                let (source, target) = corpus.text(index);
                let key = |side| rng::key(seed, "bpe-dropout", &[epoch, index as u64, side]);
                let mut source = tokenizers.source.encode_with_dropout(source, dropout, key(0));
                let mut target = tokenizers.target.encode_with_dropout(target, dropout, key(1));
                // Dropout makes more pieces; the positions are a hard bound.
                source.truncate(most);
                target.truncate(most);
                (index, (source, target))
            };
            let mut pairs: Vec<_> = indices.into_iter().map(encode).collect();
            pairs.sort_by_key(|(_, pair)| larger_side(pair));
            let (indices, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let part = |part: Range<usize>| {
                Batch::new(&pairs[part.clone()], &special).with_origin(indices[part].to_vec(), epoch)
            };
            split_by_tokens(&pairs, batch_tokens).into_iter().map(part).collect()
        } else {
            let pairs: Vec<_> = indices.iter().map(|&index| corpus.ids(index)).collect();
            vec![Batch::new(&pairs, &special).with_origin(indices, epoch)]
        };
        Some(Ok(Prepared { item, position: sampler.position() }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CorpusConfig, ModelConfig, Preset};

    /// With half of all merges undone pairs grow, but no batch beyond its bound; and every pair comes once an epoch.
    #[test]
    fn dropout_does_not_make_batches_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| format!("the old dog {i} sleeps near the {} house\n", "very ".repeat(i % 7));
        let text: String = (0..200).map(line).collect();
        let [source, target] = ["en", "de"].map(|name| folder.path().join(name));
        std::fs::write(&source, &text).unwrap();
        std::fs::write(&target, text.replace("dog", "Hund")).unwrap();
        let mut config = Config { model: ModelConfig::of_preset(Preset::Tiny), ..Config::default() };
        config.data.train = vec![CorpusConfig { source, target, weight: 1.0 }];
        config.tokenizer.vocab_size = 320;
        config.train.batch_tokens = 128;
        config.train.max_epochs = 1;
        let data = data(&config, None, &|_| ()).unwrap();
        let parts = |dropout: f64| -> Vec<Vec<Batch>> {
            let mut config = config.clone();
            config.tokenizer.dropout = dropout;
            batches(&data, &config, SamplerPosition::default()).unwrap().map(|item| item.unwrap().item).collect()
        };
        let (whole, cut) = (parts(0.0), parts(0.5));
        assert_eq!(whole.len(), cut.len());
        assert!(whole.iter().all(|parts| parts.len() == 1) && cut.iter().any(|parts| parts.len() > 1));
        for batch in cut.iter().chain(&whole).flatten() {
            assert!(batch.batch_size * batch.source_length.max(batch.target_length) <= 128);
        }
        let mut lines: Vec<usize> = cut.iter().flatten().flat_map(|batch| batch.lines.clone()).collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..200).collect::<Vec<_>>());
    }
}
