//! `data.quality`: a model of quality estimation says which training pairs are good enough.

use std::time::Instant;

use candle_core::Device;
use serde_json::{Value, json};

use super::training_data::Preparation;
use crate::comet::{Found, Hardware, Lines, OnDemand};
use crate::data::QualityConfig;
use crate::data::cache::Cache;
use crate::data::corpus::{PairSource, Side};
use crate::data::encode::Quality;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::infer::ComputeType;
use crate::notice::Notice;

/// A model, and the least that it must find of a pair.
pub(super) struct PairJudge {
    model: OnDemand,
    /// What tells it from others.
    about: Value,
    least: f64,
}

impl PairJudge {
    /// Finds the model, which this device computes.
    ///
    /// # Errors
    /// It cannot be found or fetched, or needs references; the GPU fails.
    pub(super) fn open(config: &QualityConfig, device: &Device, offline: bool) -> Result<Self> {
        let precision = ComputeType::from_flag("data.quality.precision", &config.precision)?;
        let found = Found::without_references("data.quality.model", &config.model, offline)?;
        let about = json!({ "name": found.name, "digest": found.digest()?, "precision": precision.to_string() });
        let hardware = Hardware::of(device, precision)?;
        Ok(Self { model: OnDemand::new(found, hardware), about, least: config.least })
    }

    /// The scores of a corpus, from the cache or made now. `None` if some are missing and none are to be made.
    ///
    /// # Errors
    /// The model or the corpus cannot be used, the scores cannot be written, or a signal ends it.
    pub(super) fn scores(
        &self,
        corpus: &dyn PairSource,
        tokenizers: &Tokenizers,
        cache: &Cache,
        preparation: &Preparation<'_>,
    ) -> Result<Option<Vec<f32>>> {
        let sides = [&tokenizers.source, &tokenizers.target];
        let model = json!({ "model": self.about, "read_as": sides.map(|side| side.reading()) });
        let entry = cache.scores(corpus, &model);
        if let Some(found) = entry.load() {
            return Ok(Some(found));
        }
        let name = corpus.origin(0, Side::Source).0;
        if !preparation.gives_scores {
            (preparation.tell)(Notice::Warning(format!(
                "the pairs of {} have no scores yet (`data.quality`), so all are counted here: `mt prepare` makes them",
                name.display()
            )));
            return Ok(None);
        }
        let (started, mut done) = (Instant::now(), entry.scored());
        let (new, all) = (corpus.len() - done, corpus.len());
        let (name, model) = (name.display(), &self.model.found.name);
        (preparation.tell)(Notice::Info(format!(
            "QE: {new} of {all} pairs of {name} have no scores, {model} gives them"
        )));
        let shown = (preparation.meter)(corpus.len() as u64);
        let progress = |done: usize| {
            shown(done as u64);
            preparation.check_stop()
        };
        let mut score = |pairs: &[[String; 2]]| {
            let sources: Vec<String> = pairs.iter().map(|[source, _]| tokenizers.source.readable(source)).collect();
            let targets: Vec<String> = pairs.iter().map(|[_, target]| tokenizers.target.readable(target)).collect();
            let lines = Lines { sources: &sources, systems: &[&targets], references: &[] };
            let mut stopped = Ok(());
            let scores = self.model.model()?.scores_while(lines, |encoded, all| {
                stopped = progress(done + pairs.len() * encoded / all.max(1));
                stopped.is_ok()
            })?;
            stopped?;
            done += pairs.len();
            let scores = scores.into_iter().flatten().flatten();
            Ok(scores.map(|score| score as f32).collect())
        };
        let scores = entry.complete(corpus, &mut score, &progress, preparation.tell)?;
        let seconds = started.elapsed().as_secs_f64();
        (preparation.tell)(Notice::Info(format!("scored {new} pairs in {seconds:.1} s")));
        Ok(Some(scores))
    }

    /// These scores, and which are good enough.
    pub(super) fn quality<'s>(&'s self, scores: &'s [f32]) -> Quality<'s> {
        Quality { scores, least: self.least, model: &self.about }
    }
}
