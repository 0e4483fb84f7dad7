//! The validation set, the sets that are monitored beside it, and their scores: loss, translations, BLEU, chrF, COMET.

mod set;
mod warnings;

use candle_core::Device;

use super::Stop;
use crate::comet::{Comet, Found, Hardware, OnDemand};
use crate::config::Config;
use crate::data::texts::Texts;
use crate::data::tokenizers::Tokenizers;
use crate::error::Result;
use crate::infer::ComputeType;
use crate::metrics::{BleuOptions, Metric, Statistics, resample};
use crate::model::Transformer;
use crate::model_dir::Tell;
use crate::ranks::group::Group;
use crate::train::evaluate::Evaluator;
use crate::train::{ValidConfig, ValidMetric, Validation};
use set::ScoredSet;
pub use warnings::normalisation_warning;

/// How BLEU is computed for a model's translations, in validation and as the default elsewhere.
pub fn scoring(config: &Config, tokenizers: &Tokenizers) -> BleuOptions {
    let lowercase = tokenizers.target.lowers_case();
    BleuOptions { tokenize: config.valid.tokenize, lowercase, ..BleuOptions::default() }
}

/// The validation set, and those of `data.monitor`, ready to be scored.
pub struct Validator {
    set: ScoredSet,
    monitored: Vec<(String, ScoredSet)>,
    config: ValidConfig,
    comet: Option<OnDemand>,
}

impl Validator {
    /// Reads the sets, if validation is wanted. Pairs that are too long for the model are left out of the loss; `tell`
    /// is called with their number, about sources without a tag, about text for which BLEU is not meaningful, and as
    /// [`crate::data::texts::Text::open`] does.
    pub fn open(config: &Config, texts: &Texts, tokenizers: &Tokenizers, tell: Tell<'_>) -> Result<Option<Self>> {
        let Some(valid) = texts.valid.as_ref().filter(|_| !config.valid.every.is_never()) else { return Ok(None) };
        let set = ScoredSet::open(config, valid, "validation", tokenizers, tell)?;
        let monitored = texts.monitor.iter().map(|(name, text)| {
            let mut set = ScoredSet::open(config, text, name, tokenizers, tell)?;
            set.samples = 0;
            Ok((name.clone(), set))
        });
        Ok(Some(Self { set, monitored: monitored.collect::<Result<_>>()?, config: config.valid.clone(), comet: None }))
    }

    /// With the model of COMET that the configuration names, if it wants one; the device computes it.
    ///
    /// # Errors
    /// It cannot be found or fetched, is none that compares with references, or is damaged.
    pub fn with_model(self, device: &Device, offline: bool) -> Result<Self> {
        if !self.config.wants_comet(None) {
            return Ok(self);
        }
        let found = Found::with_references("valid.comet_model", &self.config.comet_model, offline)?;
        // It stays in memory only from the first validation on, but what is damaged shows now.
        Comet::load(&found, &Hardware::EXACT)?;
        let hardware = Hardware::of(device, ComputeType::F32)?;
        Ok(Self { comet: Some(OnDemand::new(found, hardware)), ..self })
    }

    /// A checksum of the validation set's pairs, independent of how they are cut and batched.
    pub fn fingerprint(&self) -> String {
        self.set.fingerprint.clone()
    }

    /// The references of the sentences that validation translates.
    pub fn references(&self) -> &[String] {
        &self.set.references
    }

    /// The model, if COMET is computed at this validation ([`ValidConfig::wants_comet`]).
    fn comet_at(&self, number: Option<u64>) -> Option<&OnDemand> {
        self.comet.as_ref().filter(|_| self.config.wants_comet(number))
    }

    /// The scores of all sets at the validation of this number; `None` if a signal stops it.
    ///
    /// If the loss on the validation set is not finite, nothing else is computed. The ranks of a group, all of which
    /// call it, share the work. Only rank 0 gets the translations and what is shown of them, and computes COMET.
    pub fn score(
        &self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        number: u64,
        stop: &dyn Stop,
        group: Option<&Group>,
    ) -> Result<Option<Validation>> {
        let comet = self.comet_at(Some(number));
        let Some(validation) = self.set.score(model, evaluator, comet, stop, group)? else { return Ok(None) };
        self.with_monitored(validation, model, evaluator, comet, stop, group)
    }

    /// Only the scores of the validation set that decide which model is the best.
    pub fn judge(
        &self,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        stop: &dyn Stop,
    ) -> Result<Option<Validation>> {
        let comet = self.comet.as_ref().filter(|_| self.config.metric == ValidMetric::Comet);
        self.set.score(model, evaluator, comet, stop, None)
    }

    /// All scores of the final model; of `judged`, what [`Validator::judge`] or [`Validator::score`] has found already.
    pub fn score_final(
        &self,
        judged: Option<Validation>,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        stop: &dyn Stop,
    ) -> Result<Option<Validation>> {
        let comet = self.comet_at(None);
        let validation = match judged {
            Some(judged) => self.with_comet(judged, comet, stop)?,
            None => self.set.score(model, evaluator, comet, stop, None)?,
        };
        let Some(validation) = validation else { return Ok(None) };
        self.with_monitored(validation, model, evaluator, comet, stop, None)
    }

    /// A validation with COMET, if it has none.
    fn with_comet(
        &self,
        mut validation: Validation,
        comet: Option<&OnDemand>,
        stop: &dyn Stop,
    ) -> Result<Option<Validation>> {
        let has_it = validation.scores.iter().any(|score| score.key == set::comet().key);
        let Some(comet) = comet.filter(|_| !has_it && validation.loss.is_finite()) else {
            return Ok(Some(validation));
        };
        let texts = std::mem::take(&mut validation.translations);
        let is_whole = self.set.add_comet(&mut validation, &texts, comet, &|| stop.stop().is_some())?;
        validation.translations = texts;
        Ok(is_whole.then_some(validation))
    }

    /// A validation with the scores of the sets that are monitored.
    fn with_monitored(
        &self,
        mut validation: Validation,
        model: &Transformer,
        evaluator: &mut Evaluator<'_>,
        comet: Option<&OnDemand>,
        stop: &dyn Stop,
        group: Option<&Group>,
    ) -> Result<Option<Validation>> {
        validation.monitored.clear();
        for (name, set) in self.monitored.iter().filter(|_| validation.loss.is_finite()) {
            let Some(scores) = set.score(model, evaluator, comet, stop, group)? else { return Ok(None) };
            let scores = Validation { translations: Vec::new(), ..scores };
            validation.monitored.push((name.clone(), scores));
        }
        Ok(Some(validation))
    }

    /// Whether two validations' scores, given by their [`Validation::lines`], differ by more than chance.
    pub fn differ(&self, a: &[u32], b: &[u32]) -> bool {
        let differ = |metric: &dyn Metric, statistics: &dyn Fn(&[u32]) -> Statistics| {
            resample::differ(metric, &[a, b].map(statistics))
        };
        let of_counts = |metric: &dyn Metric| differ(metric, &|lines| Statistics::from_counts(metric, lines));
        match self.set.metric {
            ValidMetric::Bleu => of_counts(&self.set.bleu),
            ValidMetric::Chrf => of_counts(&self.set.chrf),
            ValidMetric::Comet => differ(&set::comet(), &|lines| {
                let scores: Vec<f64> = lines.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect();
                Statistics::from_scores(&scores, 1)
            }),
            ValidMetric::Loss => false,
        }
    }
}
