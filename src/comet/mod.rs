//! COMET: metrics that are models themselves (Rei et al. 2020, "COMET: A Neural Framework for MT Evaluation"; Rei et
//! al. 2022, "CometKiwi").
//!
//! ```text
//! find        the files of a model, in a folder or of the hub
//! checkpoint  their tensors and settings, read from PyTorch's format
//! tokenizer   lines ── sequences of tokens
//! encoder     ── a vector of each, by XLM-RoBERTa on the processor (infer) or a GPU (gpu)
//! estimator   ── a score
//! ```
//!
//! What is computed equals `unbabel-comet` 2.2.7: `tests/comet.rs` compares a few lines, and
//! `tests/golden/compare_comet.py` any text.

mod checkpoint;
mod encoder;
mod estimator;
mod find;
mod hardware;
mod pickle;
mod settings;
mod tokenizer;

use std::cell::OnceCell;
use std::collections::HashMap;

use rayon::prelude::*;

use crate::console::warning;
use crate::decode::rerank::{Different, Judge};
use crate::error::{Error, Result};
use encoder::Encoder;
use estimator::Estimator;
pub use find::{Found, Place};
pub use hardware::Hardware;
use settings::Kind;
use tokenizer::Subwords;

/// Tokens that are encoded together: enough for all threads, and few enough that their states take little memory.
const TOGETHER: usize = 1 << 13;
/// Rows that go through the estimator together.
const ESTIMATED: usize = 256;

/// A model, ready to score translations.
#[derive(Debug)]
pub struct Comet {
    kind: Kind,
    subwords: Subwords,
    encoder: Encoder,
    estimator: Estimator,
}

/// A model that was found, and is loaded when it is needed for the first time.
#[derive(Debug)]
pub struct OnDemand {
    /// Its files.
    pub found: Found,
    hardware: Hardware,
    loaded: OnceCell<Comet>,
}

impl OnDemand {
    /// Of these files.
    pub fn new(found: Found, hardware: Hardware) -> Self {
        Self { found, hardware, loaded: OnceCell::new() }
    }

    /// The model. If a GPU has no room for it, the processor computes it: what needs it is in the middle of its work.
    ///
    /// # Errors
    /// As [`Comet::load`].
    pub fn model(&self) -> Result<&Comet> {
        if let Some(model) = self.loaded.get() {
            return Ok(model);
        }
        let model = match Comet::load(&self.found, &self.hardware) {
            Err(error) if error.is_out_of_memory() => {
                warning(format_args!("the GPU has no room for {}: the processor computes its scores", self.found.name));
                Comet::load(&self.found, &Hardware::Processor(self.hardware.precision()))?
            }
            result => result?,
        };
        Ok(self.loaded.get_or_init(|| model))
    }
}

/// The lines that are scored.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a> {
    /// Empty if the model needs none.
    pub sources: &'a [String],
    /// Of each system, its translations.
    pub systems: &'a [&'a [String]],
    /// Streams of references; of several, scores are averaged.
    pub references: &'a [Vec<String>],
}

impl Comet {
    /// Loads a model.
    ///
    /// # Errors
    /// A file is missing or damaged, the model is of a kind that is not supported, or there is no room for it on a GPU.
    pub fn load(found: &Found, hardware: &Hardware) -> Result<Self> {
        let Found { path, checkpoint, settings, shape, encoder: folder, .. } = found;
        let of_checkpoint = |error: Error| if error.location().is_some() { error } else { error.at(path) };
        let encoder = Encoder::new(checkpoint, shape, settings, hardware).map_err(of_checkpoint)?;
        let input = encoder.width
            * match settings.kind {
                Kind::Regression => 6,
                Kind::Referenceless => 4,
                Kind::Unified { .. } => 1,
            };
        let estimator = Estimator::new(checkpoint, settings, input).map_err(of_checkpoint)?;
        let subwords = Subwords::load(folder, shape.longest)?;
        let (size, known) = (subwords.size(), Encoder::tokens(checkpoint));
        if size > known {
            let what = format!("the tokenizer has {size} tokens, and the model knows {known}");
            return Err(Error::failure(what).at(folder).help("they are of different models"));
        }
        Ok(Self { kind: settings.kind, subwords, encoder, estimator })
    }

    /// The score of each line of each system. `progress` gets how many of how many sequences are encoded.
    ///
    /// # Errors
    /// A score is not a number: the model is damaged. Or the GPU fails.
    pub fn scores(&self, lines: Lines<'_>, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Vec<f64>>> {
        let scores = self.scores_while(lines, |done, all| {
            progress(done, all);
            true
        })?;
        Ok(scores.unwrap_or_default())
    }

    /// As [`Comet::scores`]; `None` once `go_on`, which gets how far it is, says so.
    ///
    /// # Errors
    /// Those.
    pub fn scores_while(
        &self,
        lines: Lines<'_>,
        mut go_on: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<Vec<f64>>>> {
        let count = lines.systems.first().map_or(0, |system| system.len());
        let streams = match self.kind {
            Kind::Referenceless => 1,
            _ => lines.references.len().max(1),
        };
        let mut sums = vec![vec![0.0; count]; lines.systems.len()];
        let mut cache = Cache::default();
        for stream in 0..streams {
            for (system, sums) in lines.systems.iter().zip(&mut sums) {
                let samples: Vec<Sample<'_>> = (0..count)
                    .map(|line| Sample {
                        source: lines.sources.get(line).map_or("", String::as_str),
                        translation: &system[line],
                        reference: lines.references.get(stream).map(|stream| &*stream[line]),
                    })
                    .collect();
                let Some(scores) = self.of_samples(&samples, &mut cache, &mut go_on)? else { return Ok(None) };
                sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += f64::from(score) / streams as f64);
            }
        }
        match sums.iter().flatten().all(|score| score.is_finite()) {
            true => Ok(Some(sums)),
            false => Err(not_a_number()),
        }
    }

    /// The score of each sample; `None` once `go_on` says so.
    fn of_samples<'a>(
        &self,
        samples: &[Sample<'a>],
        cache: &mut Cache<'a>,
        go_on: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<f32>>> {
        Ok(Some(match self.kind {
            Kind::Regression | Kind::Referenceless => {
                let lines = samples.iter().flat_map(|sample| {
                    let reference = sample.reference.filter(|_| self.kind == Kind::Regression);
                    [Some(sample.source), Some(sample.translation), reference].into_iter().flatten()
                });
                if !self.encode(lines.map(|line| vec![line]), cache, go_on)? {
                    return Ok(None);
                }
                self.estimate(samples, |sample, row| {
                    let [source, translation] = [sample.source, sample.translation].map(|line| &cache[&vec![line]]);
                    let pairs = |other: &[f32], row: &mut Vec<f32>| {
                        row.extend(translation.iter().zip(other).map(|(a, b)| a * b));
                        row.extend(translation.iter().zip(other).map(|(a, b)| (a - b).abs()));
                    };
                    row.extend(translation);
                    match sample.reference.filter(|_| self.kind == Kind::Regression) {
                        Some(reference) => {
                            let reference = &cache[&vec![reference]];
                            row.extend(reference);
                            pairs(reference, row);
                        }
                        None => row.extend(source),
                    }
                    pairs(source, row);
                })
            }
            Kind::Unified { source, reference } => {
                // With all three, the model looks at each pair and at all together.
                let forms = |sample: &Sample<'a>| -> Vec<Vec<&'a str>> {
                    let (mt, src) = (sample.translation, sample.source);
                    match (source, sample.reference.filter(|_| reference)) {
                        (true, Some(reference)) => {
                            vec![vec![mt, src], vec![mt, reference], vec![mt, src, reference]]
                        }
                        (false, Some(reference)) => vec![vec![mt, reference]],
                        (_, None) => vec![vec![mt, src]],
                    }
                };
                if !self.encode(samples.iter().flat_map(&forms), cache, go_on)? {
                    return Ok(None);
                }
                let count = samples.first().map_or(1, |sample| forms(sample).len());
                let mut sums = vec![0.0; samples.len()];
                for form in 0..count {
                    let scores = self.estimate(samples, |sample, row| row.extend(&cache[&forms(sample)[form]]));
                    sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += score / count as f32);
                }
                sums
            }
        }))
    }

    /// The scores of samples, all of them numbers.
    fn finite_scores(&self, samples: &[Sample<'_>]) -> Result<Vec<f32>> {
        let scores = self.of_samples(samples, &mut Cache::default(), &mut |_, _| true)?.unwrap_or_default();
        if scores.iter().all(|score| score.is_finite()) { Ok(scores) } else { Err(not_a_number()) }
    }

    /// Encodes what is not in the cache yet; returns false if `go_on` ends it.
    fn encode<'a>(
        &self,
        texts: impl Iterator<Item = Vec<&'a str>>,
        cache: &mut Cache<'a>,
        go_on: &mut impl FnMut(usize, usize) -> bool,
    ) -> Result<bool> {
        let mut new: Vec<Vec<&str>> = texts.filter(|text| !cache.contains_key(text)).collect();
        new.sort_unstable();
        new.dedup();
        let tokens = |text: &Vec<&str>| match &text[..] {
            [line] if !matches!(self.kind, Kind::Unified { .. }) => self.subwords.alone(line),
            lines => self.subwords.joined(lines),
        };
        let sequences: Vec<Vec<u32>> = new.par_iter().map(tokens).collect();
        let mut sequences: Vec<(Vec<&str>, Vec<u32>)> = new.into_iter().zip(sequences).collect();
        sequences.sort_by_key(|(_, sequence)| sequence.len());
        let (all, mut done) = (sequences.len(), 0);
        while done < all {
            let mut tokens = 0;
            let fits = |(_, sequence): &&(Vec<&str>, Vec<u32>)| {
                tokens += sequence.len();
                tokens <= TOGETHER
            };
            let count = sequences[done..].iter().take_while(fits).count().max(1);
            let chunk = &sequences[done..done + count];
            let of_chunk: Vec<&[u32]> = chunk.iter().map(|(_, sequence)| &sequence[..]).collect();
            let vectors = self.encoder.vectors(&of_chunk)?;
            cache.extend(chunk.iter().map(|(text, _)| text.clone()).zip(vectors));
            done += count;
            if !go_on(done, all) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The score of each sample; `fill` appends what the estimator gets of it to a row.
    fn estimate<'s, 'a>(
        &self,
        samples: &'s [Sample<'a>],
        fill: impl Fn(&'s Sample<'a>, &mut Vec<f32>) + Sync,
    ) -> Vec<f32> {
        let of_chunk = |chunk: &'s [Sample<'a>]| {
            let mut rows = Vec::new();
            chunk.iter().for_each(|sample| fill(sample, &mut rows));
            self.estimator.scores(rows, chunk.len())
        };
        samples.par_chunks(ESTIMATED).flat_map_iter(of_chunk).collect()
    }
}

impl Judge for Comet {
    fn utilities(&self, source: &str, texts: &[&str]) -> Result<Vec<f64>> {
        let Different { texts: different, counts, places } = Different::new(texts);
        // Every one beside every other.
        let pairs = |translation| different.iter().map(move |reference| (translation, *reference));
        let sample = |(translation, reference)| Sample { source, translation, reference: Some(reference) };
        let samples: Vec<Sample<'_>> = different.iter().flat_map(|text| pairs(*text)).map(sample).collect();
        let scores = self.finite_scores(&samples)?;
        let mean = |scores: &[f32]| {
            scores.iter().zip(&counts).map(|(score, count)| f64::from(*score) * count).sum::<f64>() / texts.len() as f64
        };
        let utilities: Vec<f64> = scores.chunks_exact(different.len().max(1)).map(mean).collect();
        Ok(places.into_iter().map(|place| utilities[place]).collect())
    }

    fn qualities(&self, pairs: &[(&str, &str)]) -> Result<Vec<f64>> {
        let sample = |&(source, translation)| Sample { source, translation, reference: None };
        let samples: Vec<Sample<'_>> = pairs.iter().map(sample).collect();
        Ok(self.finite_scores(&samples)?.into_iter().map(f64::from).collect())
    }
}

fn not_a_number() -> Error {
    Error::failure("the score of a model of COMET is not a number: its weights are damaged")
}

/// The vectors of lines, or of lines in one sequence.
type Cache<'a> = HashMap<Vec<&'a str>, Vec<f32>>;

/// What one score is for.
#[derive(Clone, Copy, Debug)]
struct Sample<'a> {
    source: &'a str,
    translation: &'a str,
    reference: Option<&'a str>,
}
