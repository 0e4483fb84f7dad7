//! The tokenizers of a model's two sides: one for both, or one each.

use std::path::Path;
use std::sync::Arc;

use super::batch::SpecialIds;
use super::corpus::PairSource;
use super::tokenizer::{Tokenizer, TrainOptions};
use crate::config::TokenizerConfig;
use crate::error::{Error, Result};

/// File of a joint tokenizer.
const JOINT: &str = "tokenizer.json";
/// Files of separate tokenizers, source and target.
const SEPARATE: [&str; 2] = ["tokenizer.src.json", "tokenizer.tgt.json"];

/// The files that tokenizers are in, joint or separate.
pub const FILES: &[&str] = &[JOINT, SEPARATE[0], SEPARATE[1]];

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
        let (source, target) = (sample(corpora, config.sample_lines, 0), sample(corpora, config.sample_lines, 1));
        let options = TrainOptions {
            vocab_size: config.vocab_size,
            lowercase: config.lowercase,
            max_piece_length: config.max_piece_length,
        };
        if config.joint {
            let both = Arc::new(Tokenizer::train(&[&source, &target], &options)?);
            return Ok(Self { source: both.clone(), target: both });
        }
        Ok(Self {
            source: Arc::new(Tokenizer::train(&[&source], &options)?),
            target: Arc::new(Tokenizer::train(&[&target], &options)?),
        })
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

    /// Saves them in a directory.
    pub fn save(&self, directory: &Path) -> Result<()> {
        if self.is_joint() {
            return self.source.save(&directory.join(JOINT));
        }
        self.source.save(&directory.join(SEPARATE[0]))?;
        self.target.save(&directory.join(SEPARATE[1]))
    }

    /// Whether one tokenizer serves both sides.
    pub fn is_joint(&self) -> bool {
        Arc::ptr_eq(&self.source, &self.target)
    }

    /// The ids that batches need.
    pub fn special_ids(&self) -> SpecialIds {
        SpecialIds {
            pad_source: self.source.pad_id(),
            eos_source: self.source.eos_id(),
            pad_target: self.target.pad_id(),
            bos_target: self.target.bos_id(),
            eos_target: self.target.eos_id(),
        }
    }
}

/// At most `most` lines of a side (0: all), evenly spread over all corpora.
fn sample(corpora: &[Box<dyn PairSource>], most: usize, side: usize) -> Vec<&str> {
    let total: usize = corpora.iter().map(|c| c.len()).sum();
    let every = if most == 0 { 1 } else { total.div_ceil(most).max(1) };
    let lines = corpora.iter().flat_map(|c| (0..c.len()).map(move |i| c.pair(i)));
    lines.step_by(every).map(|pair| if side == 0 { pair.0 } else { pair.1 }).collect()
}
