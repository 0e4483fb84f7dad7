//! The optimizer: its keys, its state over the flat parameters, and the exponential average.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use serde::{Deserialize, Serialize};

use crate::key::{EPSILON, Kind as Holds, RATE_OR_0, Range as Bounds, Variant, key};
use crate::model::layout::is_within;
use crate::ops::low_rank::LowRank;
use crate::ops::optimizer::{self, AdamStep, Trained};
use crate::ops::params::{Entry, Kind, Parameters};
use crate::train::backend::Backend;
use crate::train::{LowRankConfig, TrainConfig};

/// `[train.optimizer]`: how gradients move parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019).
    Adam {
        /// Decay of the running mean of the gradient and of its square.
        #[serde(default = "paper_betas")]
        betas: [f64; 2],
        /// Added to the root of the mean square.
        #[serde(default = "paper_eps")]
        eps: f64,
        /// Share of a parameter, times the learning rate, taken away at each update; not of biases and norms.
        #[serde(default)]
        weight_decay: f64,
    },
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adam { betas: paper_betas(), eps: paper_eps(), weight_decay: 0.0 }
    }
}

/// The keys of each kind.
pub(crate) const KINDS: &[Variant] = &[Variant {
    kind: "adam",
    keys: &[key("betas", Holds::Pair(Bounds::Decay)), key("eps", EPSILON), key("weight_decay", RATE_OR_0)],
}];

/// The paper's β₁ and β₂ (section 5.3).
fn paper_betas() -> [f64; 2] {
    [0.9, 0.98]
}

/// The paper's ε (section 5.3).
fn paper_eps() -> f64 {
    1e-9
}

/// Adam with decoupled weight decay on matrices, none on biases and norms.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    parameters: Arc<Parameters>,
    /// The moments of the parameters that are trained, and of factors of low rank behind them.
    first: Tensor,
    second: Tensor,
    trained: Trained,
    /// The parameters that have no gradient, in order.
    frozen: Vec<Range<usize>>,
    low_rank: Option<LowRank>,
    low_rank_config: Option<LowRankConfig>,
    average: Option<(Tensor, f64)>,
}

/// The ranges of some parameters, adjacent ones merged.
fn ranges<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for range in entries.map(Entry::range) {
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    ranges
}

/// How a parameter is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Training {
    /// Every number of it.
    Whole,
    /// By factors of low rank.
    LowRank,
    /// Not at all.
    Frozen,
}

impl Training {
    /// That of a parameter of this name.
    pub fn of(name: &str, freeze: &[String], low_rank: Option<&LowRankConfig>) -> Self {
        let is_in = |parts: &[String]| parts.iter().any(|part| is_within(name, part));
        match low_rank {
            _ if is_in(freeze) => Self::Frozen,
            None => Self::Whole,
            Some(low_rank) if is_in(&low_rank.also) => Self::Whole,
            Some(low_rank) if low_rank.adapts(name) => Self::LowRank,
            Some(_) => Self::Frozen,
        }
    }
}

/// An exponential average that begins with the parameters as they are, if there is to be one.
fn average_of(parameters: &Parameters, decay: f64) -> Result<Option<(Tensor, f64)>> {
    (decay > 0.0).then(|| parameters.values().copy().map(|copy| (copy, decay))).transpose()
}

/// The parameters that are trained whole where some are not.
fn trained_without(entries: &[Entry], config: &OptimizerConfig, is_frozen: &dyn Fn(&Entry) -> bool) -> Trained {
    let OptimizerConfig::Adam { weight_decay, .. } = config;
    let trained = || entries.iter().filter(|entry| !is_frozen(entry));
    let decayed = trained().filter(|entry| entry.kind == Kind::Weight && *weight_decay > 0.0);
    Trained { ranges: ranges(trained()), decayed: ranges(decayed) }
}

impl Optimizer {
    /// Fresh state: all moments zero. `average_decay` > 0 keeps an exponential average of the parameters.
    pub fn new(config: &OptimizerConfig, parameters: &Arc<Parameters>, average_decay: f64) -> Result<Self> {
        let average = average_of(parameters, average_decay)?;
        Self::with(config.clone(), parameters.clone(), average, &[], None)
    }

    /// As `[train]` says.
    pub fn of(config: &TrainConfig, parameters: &Arc<Parameters>) -> Result<Self> {
        let average = average_of(parameters, config.exponential_average)?;
        let low_rank = config.low_rank.as_ref();
        Self::with(config.optimizer.clone(), parameters.clone(), average, &config.freeze, low_rank)
    }

    /// With these parts of the model frozen, and others trained by factors of low rank: all moments are zero again. The
    /// caller is to clear the gradients of what has none ([`Self::frozen`]).
    pub fn training(self, freeze: &[String], low_rank: Option<&LowRankConfig>) -> Result<Self> {
        let Self { config, parameters, average, .. } = self;
        Self::with(config, parameters, average, freeze, low_rank)
    }

    fn with(
        config: OptimizerConfig,
        parameters: Arc<Parameters>,
        average: Option<(Tensor, f64)>,
        freeze: &[String],
        low_rank: Option<&LowRankConfig>,
    ) -> Result<Self> {
        let of = |entry: &Entry| Training::of(&entry.name, freeze, low_rank);
        let entries = parameters.entries();
        let trained = trained_without(entries, &config, &|entry| of(entry) != Training::Whole);
        let frozen = ranges(entries.iter().filter(|entry| of(entry) == Training::Frozen));
        let low_rank_config = low_rank.cloned();
        let low_rank = low_rank.map(|low_rank| {
            let adapted = entries.iter().filter(|entry| of(entry) == Training::LowRank);
            LowRank::new(&parameters, adapted, low_rank.rank, low_rank.alpha)
        });
        let low_rank = low_rank.transpose()?;
        let count = trained.count() + low_rank.as_ref().map_or(0, |low_rank| low_rank.factors().elem_count());
        let values = parameters.values();
        let moment = || Tensor::zeros(count, values.dtype(), values.device());
        let (first, second) = (moment()?, moment()?);
        parameters.set_without_gradient(&frozen);
        Ok(Self { config, parameters, first, second, trained, frozen, low_rank, low_rank_config, average })
    }

    /// The parameters that are trained whole.
    pub fn trained(&self) -> &Trained {
        &self.trained
    }

    /// Those of a training with these frozen parts, if they are not the ones of this.
    pub fn trained_before(&self, freeze: &[String]) -> Option<Trained> {
        let of = |entry: &Entry| Training::of(&entry.name, freeze, self.low_rank_config.as_ref());
        let entries = self.parameters.entries();
        let frozen = ranges(entries.iter().filter(|entry| of(entry) == Training::Frozen));
        (frozen != self.frozen).then(|| trained_without(entries, &self.config, &|entry| of(entry) != Training::Whole))
    }

    /// The parameters that have no gradient, in order: those that stay as they are.
    pub fn frozen(&self) -> &[Range<usize>] {
        &self.frozen
    }

    /// Whether every number of a parameter is trained.
    pub fn trains_whole(&self, entry: &Entry) -> bool {
        self.trained.ranges.iter().any(|range| range.contains(&entry.offset))
    }

    /// How many parameters are trained: numbers of factors, where there are some.
    pub fn trained_count(&self) -> usize {
        self.first.elem_count()
    }

    /// The factors of low rank, if there are some.
    pub fn low_rank(&self) -> Option<&LowRank> {
        self.low_rank.as_ref()
    }

    /// Takes the parameters as they are now as those that training begins with.
    pub fn begin(&self, seed: u64) -> crate::error::Result<()> {
        if let Some((average, _)) = &self.average {
            average.slice_set(self.parameters.values(), 0, 0)?;
        }
        self.low_rank.as_ref().map_or(Ok(()), |low_rank| low_rank.begin(seed))
    }

    /// One update from the accumulated gradients times `scale`, by the model's own operations.
    pub fn step(&mut self, update: u64, learning_rate: f64, scale: f64) -> Result<()> {
        let step = self.adam_step(update, learning_rate);
        optimizer::adam_of(&self.parameters, &self.trained, [&self.first, &self.second], scale, &step)?;
        if let Some((average, decay)) = self.average_at(update) {
            optimizer::average(average, self.parameters.values(), decay)?;
        }
        Ok(())
    }

    /// [`Optimizer::step`] by the backend, which decides on the scale and on whether to make the update.
    pub fn step_with(
        &mut self,
        backend: &mut dyn Backend,
        update: u64,
        learning_rate: f64,
    ) -> crate::error::Result<()> {
        let step = self.adam_step(update, learning_rate);
        backend.adam([&self.first, &self.second], &step, &self.trained)?;
        if let Some(low_rank) = &self.low_rank {
            let (from, count) = (self.trained.count(), low_rank.factors().elem_count());
            let [first, second] = [&self.first, &self.second].map(|moment| moment.narrow(0, from, count));
            backend.adam_of_factors(low_rank, [&first?, &second?], &step)?;
        }
        if let Some((average, decay)) = self.average_at(update) {
            backend.average(average, decay)?;
        }
        Ok(())
    }

    fn adam_step(&self, update: u64, learning_rate: f64) -> AdamStep {
        let OptimizerConfig::Adam { betas, eps, weight_decay } = self.config;
        AdamStep { learning_rate, betas, eps, weight_decay, update }
    }

    /// The average, where there is one, and its decay at an update: short runs would be dominated by the initial
    /// values, so the decay grows with the number of updates.
    fn average_at(&self, update: u64) -> Option<(&Tensor, f64)> {
        let at = |decay: f64| decay.min((1 + update) as f64 / (10 + update) as f64);
        self.average.as_ref().map(|(average, decay)| (average, at(*decay)))
    }

    /// What a checkpoint stores: named flat tensors.
    pub fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        let mut tensors = vec![("adam.first_moment", &self.first), ("adam.second_moment", &self.second)];
        if self.average.is_some() {
            tensors.push(("training.values", self.parameters.values()));
        }
        tensors.extend(self.low_rank.as_ref().map(|low_rank| ("low_rank.factors", low_rank.factors())));
        tensors
    }

    /// The parameters a model is judged by: the exponential average where there is one.
    pub fn model_values(&self) -> &Tensor {
        self.average.as_ref().map_or(self.parameters.values(), |(average, _)| average)
    }

    /// Whether every value of the model and of the optimizer's state is finite, as the backend tells.
    pub fn is_finite(&self, backend: &mut dyn Backend) -> crate::error::Result<bool> {
        // With an average, `tensors` has the parameters too.
        let tensors = self.tensors().into_iter().map(|(_, tensor)| tensor).chain([self.model_values()]);
        backend.is_finite(&tensors.collect::<Vec<_>>())
    }

    /// Replaces the parameters by those the model is judged by; returns what [`Optimizer::end_model_values`] brings
    /// back.
    pub fn begin_model_values(&self) -> Result<Option<Tensor>> {
        let Some((average, _)) = &self.average else { return Ok(None) };
        let values = self.parameters.values();
        let training = values.copy()?;
        values.slice_set(average, 0, 0)?;
        Ok(Some(training))
    }

    /// Brings back the parameters that training changes.
    pub fn end_model_values(&self, training: Option<Tensor>) -> Result<()> {
        training.map_or(Ok(()), |training| self.parameters.values().slice_set(&training, 0, 0))
    }

    /// The exponential average, if one is kept.
    pub fn average(&self) -> Option<&Tensor> {
        self.average.as_ref().map(|(average, _)| average)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::model::{ModelConfig, Transformer, Vocabulary};
    use crate::ops::memory::change_on_host;
    use crate::train::backend::Tape;

    fn model() -> Transformer {
        let config = ModelConfig {
            d_model: 8,
            d_ff: 8,
            heads: 2,
            d_k: 4,
            d_v: 4,
            encoder_layers: 1,
            decoder_layers: 1,
            ..ModelConfig::default()
        };
        let vocabulary = Vocabulary { source: 9, target: 9, source_padding: 0, target_padding: 0 };
        let model = Transformer::new(&config, vocabulary, &Device::Cpu).unwrap();
        model.initialise(1).unwrap();
        model
    }

    fn fill(tensor: &Tensor, value: f32) {
        change_on_host(tensor, |values| values.fill(value)).unwrap();
    }

    /// Moments are there when a part is frozen if the run was trained without that before.
    #[test]
    fn what_is_frozen_has_no_momentum_left() {
        let model = model();
        let optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
        let all = vec![1.0; optimizer.trained_count()];
        let mut optimizer = optimizer.training(&["encoder".to_owned()], None).unwrap();
        let moments = optimizer.trained().moments_from(&optimizer.trained_before(&[]).unwrap(), &all);
        for (_, moment) in optimizer.tensors() {
            change_on_host(moment, |values| values.copy_from_slice(&moments)).unwrap();
        }
        let before: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        optimizer.step(1, 0.1, 1.0).unwrap();
        let after: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        for entry in model.parameters().entries() {
            let is_frozen = entry.name.starts_with("encoder.");
            assert_eq!(before[entry.range()] == after[entry.range()], is_frozen, "{}", entry.name);
        }
    }

    /// Without gradients nothing else moves a parameter.
    #[test]
    fn weights_decay_and_biases_and_norms_do_not() {
        let model = model();
        let config = OptimizerConfig::Adam { betas: [0.9, 0.98], eps: 1e-9, weight_decay: 0.5 };
        let mut optimizer = Optimizer::new(&config, model.parameters(), 0.0).unwrap();
        fill(model.parameters().values(), 2.0);
        optimizer.step(1, 0.1, 1.0).unwrap();
        let after: Vec<f32> = model.parameters().values().to_vec1().unwrap();
        for entry in model.parameters().entries() {
            let is_weight = entry.name.ends_with(".weight") && !entry.name.contains("norm");
            let want = if is_weight { 2.0 * (1.0 - 0.1 * 0.5) } else { 2.0 };
            assert!(after[entry.range()].iter().all(|value| *value == want), "{}", entry.name);
        }
    }

    /// Validations and checkpoints have the average, training goes on with what it had.
    #[test]
    fn the_average_takes_the_parameters_place_for_a_while() {
        let model = model();
        let optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.9).unwrap();
        let values = || model.parameters().values().to_vec1::<f32>().unwrap();
        let average = values();
        fill(model.parameters().values(), 3.0);
        let trained = optimizer.begin_model_values().unwrap();
        assert!(values() == average && trained.is_some());
        optimizer.end_model_values(trained).unwrap();
        assert!(values().iter().all(|value| *value == 3.0));
        let without = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.0).unwrap();
        assert!(without.begin_model_values().unwrap().is_none());
    }

    /// At first it follows the parameters closely, as in TensorFlow's `ExponentialMovingAverage` with `num_updates`:
    /// (1 + n) / (10 + n).
    #[test]
    fn the_decay_of_the_average_grows_to_its_bound() {
        let optimizer = Optimizer::new(&OptimizerConfig::default(), model().parameters(), 0.9).unwrap();
        for (update, decay) in [(1, 2.0 / 11.0), (8, 0.5), (79, 80.0 / 89.0), (80, 0.9), (100_000, 0.9)] {
            assert_eq!(optimizer.average_at(update).unwrap().1, decay, "{update}");
        }
    }

    /// A checkpoint with any of them not finite could not be loaded.
    #[test]
    fn every_tensor_that_is_saved_has_to_be_finite() {
        let model = model();
        let optimizer = Optimizer::new(&OptimizerConfig::default(), model.parameters(), 0.9).unwrap();
        let mut tape = Tape::new(&model);
        assert!(optimizer.is_finite(&mut tape).unwrap());
        let saved: Vec<_> = optimizer.tensors().into_iter().chain([("model", optimizer.model_values())]).collect();
        assert_eq!(saved.len(), 4);
        for (name, tensor) in saved {
            let before = tensor.copy().unwrap();
            change_on_host(tensor, |values| values[values.len() - 1] = f32::NAN).unwrap();
            assert!(!optimizer.is_finite(&mut tape).unwrap(), "{name}");
            tensor.slice_set(&before, 0, 0).unwrap();
        }
    }
}
