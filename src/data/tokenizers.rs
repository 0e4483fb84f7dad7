//! The tokenizers of a model's two sides: one for both, or one each.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::batch::SpecialIds;
use super::corpus::{PairSource, Side};
use super::text::lines::is_long;
use super::tokenizer::{Codes, RandomSplit, TextCounts, Tokenizer, TokenizerKind};
use crate::data::TokenizerConfig;
use crate::error::{Error, Result};
use crate::file;

/// File of a joint tokenizer.
const JOINT: &str = "tokenizer.json";
/// Files of separate tokenizers, source and target.
const SEPARATE: [&str; 2] = ["tokenizer.src.json", TARGET];

/// The file of a separate target tokenizer.
pub const TARGET: &str = "tokenizer.tgt.json";

/// The files that tokenizers are in, joint or separate.
pub const FILES: &[&str] = &[JOINT, SEPARATE[0], SEPARATE[1]];

/// Why a tokenizer cannot split text of these sides (0: source, 1: target) at random as it is asked to, if it cannot.
pub fn no_sampling(config: &TokenizerConfig, mut sides: Range<usize>, tokenizer: &Tokenizer) -> Option<Error> {
    let sampling = config.subword_sampling()?;
    if tokenizer.can(sampling.how) || !sides.any(|side| sampling.sides[side]) {
        return None;
    }
    let (what, help) = match sampling.how {
        RandomSplit::Dropout(_) => (
            format!("`tokenizer.dropout` = {}, but this tokenizer has no BPE-dropout", config.dropout),
            "leave it out, or use a tokenizer.json of byte-pair encoding; a SentencePiece unigram model has \
             `tokenizer.sampling.alpha` instead, and a SentencePiece BPE model has neither",
        ),
        RandomSplit::Unigram { alpha, .. } => (
            format!("`tokenizer.sampling.alpha` = {alpha}, but this tokenizer is no SentencePiece unigram model"),
            "leave it out; byte-pair encoding in a tokenizer.json has `tokenizer.dropout` instead, and a SentencePiece \
             BPE model has neither",
        ),
    };
    Some(Error::usage(what).help(help))
}

/// Source and target tokenizers; the same one twice where the vocabulary is joint.
#[derive(Clone, Debug)]
pub struct Tokenizers {
    /// Of the source side.
    pub source: Arc<Tokenizer>,
    /// Of the target side.
    pub target: Arc<Tokenizer>,
}

impl Tokenizers {
    /// Learns them from the training corpora.
    pub fn train(config: &TokenizerConfig, corpora: &[Box<dyn PairSource>]) -> Result<Self> {
        let [mut source, target] = sample(corpora, config)?;
        if config.kind == TokenizerKind::SubwordNmt {
            return Self::from_pieces(config, [source, target]);
        }
        let options = config.options();
        let learn = |text: TextCounts| Tokenizer::from_text(text, &options);
        if config.joint {
            source.merge(target);
            let both = Arc::new(learn(source)?);
            return Ok(Self { source: both.clone(), target: both });
        }
        Ok(Self { source: Arc::new(learn(source)?), target: Arc::new(learn(target)?) })
    }

    /// Counts the pieces of text that is split already, or that codes split. With one vocabulary for sides whose codes
    /// differ, each has its own tokenizer.
    fn from_pieces(config: &TokenizerConfig, [mut source, target]: [TextCounts; 2]) -> Result<Self> {
        let codes = Self::codes(config)?;
        let [of_source, of_target] = codes.each_ref().map(Option::as_ref);
        let one = |text: &TextCounts, codes| Tokenizer::from_pieces(&[(text, codes)], config.vocab_size);
        let learnt: Vec<Tokenizer> = if !config.joint {
            [one(&source, of_source)?, one(&target, of_target)?].into_iter().flatten().collect()
        } else if of_source == of_target {
            source.merge(target);
            one(&source, of_source)?
        } else {
            Tokenizer::from_pieces(&[(&source, of_source), (&target, of_target)], config.vocab_size)?
        };
        let mut learnt = learnt.into_iter().map(Arc::new);
        let source = learnt.next().ok_or_else(|| Error::failure("no vocabulary was learnt"))?;
        Ok(Self { target: learnt.next().unwrap_or_else(|| source.clone()), source })
    }

    /// Reads the codes of each side that a configuration names for learning a vocabulary.
    ///
    /// # Errors
    /// A file is wrong; all files are reported at once.
    pub fn codes(config: &TokenizerConfig) -> Result<[Option<Codes>; 2]> {
        let load = |codes: Option<&PathBuf>, vocabulary: Option<&PathBuf>| {
            let vocabulary = vocabulary.map(PathBuf::as_path);
            codes.map(|path| Codes::load(path, vocabulary, config.vocabulary_threshold)).transpose()
        };
        let TokenizerConfig { codes, target_codes, vocabulary, target_vocabulary, .. } = config;
        let source = load(codes.as_ref(), vocabulary.as_ref());
        if target_codes.is_none() && target_vocabulary.is_none() {
            return source.map(|codes| [codes.clone(), codes]);
        }
        let target = load(target_codes.as_ref().or(codes.as_ref()), target_vocabulary.as_ref().or(vocabulary.as_ref()));
        match (source, target) {
            (Ok(source), Ok(target)) => Ok([source, target]),
            (source, target) => Err(Error::many(source.err().into_iter().chain(target.err()).collect())),
        }
    }

    /// Loads the files that a configuration names, if it names any.
    ///
    /// # Errors
    /// A file is wrong, or does not go with the rest of the configuration; both files are reported at once.
    pub fn named(config: &TokenizerConfig) -> Result<Option<Self>> {
        let Some(path) = &config.path else { return Ok(None) };
        let files = [("path", Some(path)), ("target_path", config.target_path.as_ref())];
        let files: Vec<_> = files.into_iter().filter_map(|(key, path)| Some((key, path?))).collect();
        // One alone is that of both sides.
        let sides = |number: usize| if files.len() == 1 { 0..2 } else { number..number + 1 };
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for (number, (key, path)) in files.iter().enumerate() {
            match Tokenizer::load(path) {
                Ok(tokenizer) => match no_sampling(config, sides(number), &tokenizer) {
                    Some(error) => errors.push(error.at(path)),
                    None => found.push(Arc::new(tokenizer)),
                },
                Err(error) => errors.push(error.context(format_args!("`tokenizer.{key}`"))),
            }
        }
        match (found.as_slice(), errors.is_empty()) {
            ([both], true) => Ok(Some(Self { source: both.clone(), target: both.clone() })),
            ([source, target], true) => Ok(Some(Self { source: source.clone(), target: target.clone() })),
            _ => Err(Error::many(errors)),
        }
    }

    /// The special tokens that each side's file lacked.
    pub fn appended(&self) -> impl Iterator<Item = (Side, &[String])> {
        let target = (!self.is_joint()).then_some((Side::Target, self.target.appended()));
        let sides = [(Side::Source, self.source.appended())].into_iter().chain(target);
        sides.filter(|(_, appended)| !appended.is_empty())
    }

    /// Whether these are the same, to the last byte of their files.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_joint() == other.is_joint() && self.digest() == other.digest()
    }

    /// Whether these codes split the text of each side.
    pub fn has_codes(&self, codes: &[Option<Codes>; 2]) -> bool {
        [&self.source, &self.target].iter().zip(codes).all(|(tokenizer, codes)| tokenizer.merges() == codes.as_ref())
    }

    /// Whether a directory holds tokenizers.
    pub fn exist(directory: &Path) -> bool {
        directory.join(JOINT).exists() || SEPARATE.iter().all(|name| directory.join(name).exists())
    }

    /// Loads `tokenizer.json`, or `tokenizer.src.json` and `tokenizer.tgt.json`.
    pub fn load(directory: &Path) -> Result<Self> {
        let joint = directory.join(JOINT);
        if joint.exists() {
            let both = Arc::new(Tokenizer::load(&joint)?);
            return Ok(Self { source: both.clone(), target: both });
        }
        let [source, target] = SEPARATE.map(|name| directory.join(name));
        if !source.exists() {
            return Err(Error::failure("no tokenizer.json here").at(directory).help("name a run or model directory"));
        }
        Ok(Self { source: Arc::new(Tokenizer::load(&source)?), target: Arc::new(Tokenizer::load(&target)?) })
    }

    /// Whether a directory has these, as [`Self::save`] writes them.
    pub fn are_in(&self, directory: &Path) -> bool {
        let is = |tokenizer: &Tokenizer, name: &str| {
            file::read(&directory.join(name)).is_ok_and(|bytes| bytes == tokenizer.json().as_bytes())
        };
        match self.is_joint() {
            true => is(&self.source, JOINT),
            false => is(&self.source, SEPARATE[0]) && is(&self.target, SEPARATE[1]),
        }
    }

    /// Saves them in a directory.
    pub fn save(&self, directory: &Path) -> Result<()> {
        if self.is_joint() {
            return self.source.save(&directory.join(JOINT));
        }
        self.source.save(&directory.join(SEPARATE[0]))?;
        self.target.save(&directory.join(SEPARATE[1]))
    }

    /// The tokenizer of a side.
    pub fn side(&self, side: Side) -> &Tokenizer {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }

    /// Whether one tokenizer serves both sides.
    pub fn is_joint(&self) -> bool {
        Arc::ptr_eq(&self.source, &self.target)
    }

    /// Whether both sides have one vocabulary: from one tokenizer, or from two whose pieces have the same ids.
    pub fn is_one_vocabulary(&self) -> bool {
        self.is_joint() || self.source.difference(&self.target).is_none()
    }

    /// A checksum that identifies these tokenizers.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for tokenizer in [&self.source, &self.target] {
            hash.update(tokenizer.json());
        }
        format!("{:x}", hash.finalize())
    }

    /// The ids that batches need.
    pub fn special_ids(&self) -> SpecialIds {
        SpecialIds {
            pad_source: self.source.pad_id(),
            eos_source: self.source.eos_id(),
            pad_target: self.target.pad_id(),
            bos_target: self.target.bos_id(),
            eos_target: self.target.eos_id(),
            language_last: self.source.language_last(),
        }
    }
}

/// The counts of at most `config.sample_lines` lines of each side (0: all), evenly spread over all corpora; without
/// pairs that are too long for sentences.
fn sample(corpora: &[Box<dyn PairSource>], config: &TokenizerConfig) -> Result<[TextCounts; 2]> {
    let total: usize = corpora.iter().map(|corpus| corpus.len()).sum();
    let every = if config.sample_lines == 0 { 1 } else { total.div_ceil(config.sample_lines).max(1) };
    let mut counts = [TextCounts::default(), TextCounts::default()];
    let mut read: usize = 0;
    for corpus in corpora {
        for block in corpus.blocks()? {
            let block = block?;
            let first = read.next_multiple_of(every) - read;
            let pairs = (first..block.len()).step_by(every).map(|index| block.get(index));
            // Their characters would displace those of sentences in the vocabulary.
            let pairs: Vec<_> = pairs.filter(|(source, target)| !is_long(source) && !is_long(target)).collect();
            let [source, target] = &mut counts;
            rayon::join(
                || pairs.iter().for_each(|pair| source.add(pair.0)),
                || pairs.iter().for_each(|pair| target.add(pair.1)),
            );
            read += block.len();
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::corpus::Corpus;
    use super::*;

    /// Over the blocks of a corpus and over corpora.
    #[test]
    fn the_lines_that_a_vocabulary_is_learnt_from_are_evenly_spread() {
        let directory = tempfile::tempdir().unwrap();
        let corpus = |numbers: Range<usize>| -> Box<dyn PairSource> {
            let [source, target] = ["source", "target"].map(|side| {
                let path = directory.path().join(format!("{side}{}", numbers.start));
                std::fs::write(&path, numbers.clone().map(|number| format!("{side}{number}\n")).collect::<String>())
                    .unwrap();
                path
            });
            Box::new(Corpus::open(source, target, 1.0).unwrap())
        };
        let corpora = [corpus(0..20_001), corpus(20_001..20_003), corpus(20_003..40_000)];
        for (sample_lines, every) in [(10, 4000), (9, 4445), (30_000, 2), (40_000, 1), (1_000_000, 1), (0, 1)] {
            // Each line is a piece.
            let kind = TokenizerKind::SubwordNmt;
            let config = TokenizerConfig { kind, vocab_size: 50_000, joint: false, sample_lines, ..Default::default() };
            let learnt = Tokenizers::train(&config, &corpora).unwrap();
            for (tokenizer, side) in [(&learnt.source, "source"), (&learnt.target, "target")] {
                let is_known = |number: &usize| tokenizer.encode(&format!("{side}{number}")) != [tokenizer.unk_id()];
                let known: Vec<usize> = (0..40_000).filter(is_known).collect();
                assert_eq!(known, (0..40_000).step_by(every).collect::<Vec<_>>(), "{sample_lines}");
            }
        }
    }
}
