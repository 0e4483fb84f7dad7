//! `[train]` and `[valid]`.

use std::cmp::Ordering;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::interval::Interval;
use super::optimizer::OptimizerConfig;
use super::schedule::ScheduleConfig;
use crate::choice::choice;
use crate::hub::DEFAULT_COMET;
use crate::metrics::Tokenize;
use crate::ops::loss::Targets;

/// `[train]`: batches, updates, checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// A model directory whose weights and tokenizers training begins with; none: random weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Which of that model's layers training begins with.
    pub init_layers: InitLayers,
    /// Parameters that stay as they are: parts of the model by name, such as `encoder` or `decoder.layers.0`.
    pub freeze: Vec<String>,
    /// Instead of the weights, factors of low rank are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_rank: Option<LowRankConfig>,
    /// The most padded tokens on the larger side of one micro-batch.
    pub batch_tokens: usize,
    /// Micro-batches in an update; the loss is divided by the update's target tokens, without padding.
    pub accumulate: usize,
    /// Stop after this many updates; 0: no limit.
    pub max_updates: u64,
    /// Stop after this many passes over the data; 0: no limit.
    pub max_epochs: u64,
    /// Probability taken from the label and spread over the vocabulary (Szegedy et al. 2016).
    pub label_smoothing: f64,
    /// R-Drop's α: each pair is gone over twice, and what the two passes predict is drawn together; 0: off.
    pub r_drop: f64,
    /// Gradients are scaled down to at most this L2 norm; 0: off.
    pub clip_norm: f64,
    /// How many of the last checkpoints are averaged to the final model; 0: off.
    pub average_last: usize,
    /// Decay, per update, of a running mean of the parameters, for example 0.9999; 0: off. At update t it is at most
    /// (1 + t) / (10 + t).
    pub exponential_average: f64,
    /// Updates in a row that are skipped because their loss or gradient is not finite, before the run goes back to its
    /// last checkpoint with a lower learning rate.
    pub max_skipped: u64,
    /// How often a checkpoint is saved.
    pub save_every: Interval,
    /// Checkpoints kept; `best` and those an average needs are kept beside them.
    pub keep: usize,
    /// The best checkpoints, by validation, are kept beside them too: this many, with `best`.
    pub keep_best: usize,
    /// Updates between lines of the log. Loss and perplexity of a line are means over target tokens, the gradient's
    /// norm is the last update's.
    pub log_every: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// `[train.schedule]`: the learning rate at each update.
    pub schedule: ScheduleConfig,
    /// `[train.optimizer]`: how gradients move parameters.
    pub optimizer: OptimizerConfig,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            init: None,
            init_layers: InitLayers::default(),
            freeze: Vec::new(),
            low_rank: None,
            batch_tokens: 4096,
            accumulate: 1,
            max_updates: 100_000,
            max_epochs: 0,
            label_smoothing: 0.1,
            r_drop: 0.0,
            clip_norm: 0.0,
            average_last: 10,
            exponential_average: 0.0,
            max_skipped: 10,
            save_every: Interval::Updates(500),
            keep: 10,
            keep_best: 1,
            log_every: 50,
            seed: 1,
            schedule: ScheduleConfig::default(),
            optimizer: OptimizerConfig::default(),
        }
    }
}

impl TrainConfig {
    /// The loss of targets with this padding, without their labels.
    pub fn loss(&self, padding: u32) -> Targets {
        let (smoothing, r_drop) = (self.label_smoothing as f32, self.r_drop as f32);
        Targets { padding, smoothing, r_drop, ..Targets::default() }
    }
}

/// Layers of a model with which a smaller one begins, by their numbers from 0, in order; of a stack without any, all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InitLayers {
    /// Of the encoder.
    pub encoder: Vec<usize>,
    /// Of the decoder.
    pub decoder: Vec<usize>,
}

impl InitLayers {
    /// The name in that model of a parameter of the new one.
    pub fn origin(&self, name: &str) -> String {
        let mut parts = name.splitn(4, '.');
        let (stack, "layers", Some(number), Some(rest)) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next(), parts.next())
        else {
            return name.to_owned();
        };
        let layers = if stack == "encoder" { &self.encoder } else { &self.decoder };
        match number.parse().ok().and_then(|number: usize| layers.get(number)) {
            Some(origin) => format!("{stack}.layers.{origin}.{rest}"),
            None => name.to_owned(),
        }
    }

    /// Those of a stack, by its name.
    pub fn of(&self, stack: &str) -> Option<&[usize]> {
        match stack {
            "encoder" => Some(&self.encoder),
            "decoder" => Some(&self.decoder),
            _ => None,
        }
    }

    /// The numbers of layers of a model that begins with these of one with so many.
    pub fn counts(&self, [encoder, decoder]: [usize; 2]) -> [usize; 2] {
        let count = |layers: &[usize], all| if layers.is_empty() { all } else { layers.len() };
        [count(&self.encoder, encoder), count(&self.decoder, decoder)]
    }
}

/// `[train] low_rank`: only a change of low rank of some matrices is trained (LoRA): [`crate::ops::low_rank`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LowRankConfig {
    /// The rank of the change.
    pub rank: usize,
    /// The change is multiplied by alpha / rank.
    pub alpha: f64,
    /// Which projections have one, by the last part of their names.
    pub projections: Vec<String>,
    /// Parts of the model that are trained whole, such as `source_embedding`.
    pub also: Vec<String>,
}

/// The projections of a layer; the last one is that of gated feed-forward layers.
pub const PROJECTIONS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2", "fc3"];

impl Default for LowRankConfig {
    fn default() -> Self {
        let projections = PROJECTIONS.map(str::to_owned).to_vec();
        Self { rank: 16, alpha: 32.0, projections, also: Vec::new() }
    }
}

impl LowRankConfig {
    /// Whether the parameter of this name has a change of low rank.
    pub fn adapts(&self, name: &str) -> bool {
        let projection = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        projection.is_some_and(|projection| self.projections.iter().any(|wanted| wanted == projection))
    }
}

choice! {
    /// What counts as an improvement at a validation.
    pub enum ValidMetric {
        /// A higher BLEU of the translated validation set.
        Bleu = "bleu",
        /// A higher chrF of the translated validation set.
        Chrf = "chrf",
        /// A higher COMET of the translated validation set, by `valid.comet_model`.
        Comet = "comet",
        /// A lower loss per token, label-smoothed as in training.
        Loss = "loss",
    }
}

impl ValidMetric {
    /// The order of two values, the better one first.
    pub fn order(self, a: f64, b: f64) -> Ordering {
        match self {
            Self::Bleu | Self::Chrf | Self::Comet => b.total_cmp(&a),
            Self::Loss => a.total_cmp(&b),
        }
    }

    /// Scores of translations below this are those of models that have hardly learnt to translate.
    pub fn floor(self) -> f64 {
        match self {
            Self::Bleu => 1.0,
            Self::Chrf => 5.0,
            Self::Comet | Self::Loss => f64::NEG_INFINITY,
        }
    }

    /// Its name beside a value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Bleu => "BLEU",
            Self::Chrf => "chrF2",
            Self::Comet => "COMET",
            Self::Loss => "loss",
        }
    }

    /// A value, as it is printed.
    pub fn with(self, value: f64) -> String {
        let digits = if matches!(self, Self::Loss | Self::Comet) { 4 } else { 2 };
        format!("{} {value:.digits$}", self.label())
    }
}

/// `[valid]`: validation while training, and stopping early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValidConfig {
    /// Updates between validations; 0: none.
    pub every: Interval,
    /// Whether there is a validation before the first update: what training begins with may be the best.
    pub on_start: bool,
    /// What counts as an improvement; an improvement saves.
    pub metric: ValidMetric,
    /// How lines become words for BLEU, also in `mt eval --model`.
    pub tokenize: Tokenize,
    /// Beam width of the translations scored; 1 is greedy.
    pub beam: usize,
    /// Stop after this many validations without an improvement; 0: never.
    pub patience: u64,
    /// Validations before this update do not count for that.
    pub patience_after: u64,
    /// Translations shown at each validation.
    pub samples: usize,
    /// The most sentences translated at a validation, for scores of translations; 0: all. The loss is of all pairs.
    pub max_sentences: usize,
    /// COMET is computed at every validation whose number is a multiple of this, and for the final model; 0: never,
    /// unless it is the metric, which is needed each time.
    pub comet: u64,
    /// The model of COMET: `hf:ORG/NAME` or a folder.
    pub comet_model: String,
}

impl ValidConfig {
    /// Whether COMET is computed at this validation, counted from 1; `None` is that of the final model.
    pub fn wants_comet(&self, number: Option<u64>) -> bool {
        let is_due = |number: u64| self.comet > 0 && number.is_multiple_of(self.comet);
        self.metric == ValidMetric::Comet || number.map_or(self.comet > 0, is_due)
    }
}

impl Default for ValidConfig {
    fn default() -> Self {
        Self {
            every: Interval::Updates(500),
            on_start: false,
            metric: ValidMetric::Bleu,
            tokenize: Tokenize::V13a,
            beam: 1,
            patience: 10,
            patience_after: 0,
            samples: 3,
            max_sentences: 0,
            comet: 0,
            comet_model: DEFAULT_COMET.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_a_smaller_model_come_from_those_that_are_named() {
        let layers = InitLayers { encoder: vec![0, 2, 5], decoder: Vec::new() };
        for (name, origin) in [
            ("encoder.layers.1.self_attn.q_proj.weight", "encoder.layers.2.self_attn.q_proj.weight"),
            ("encoder.layers.2.feed_forward_norm.bias", "encoder.layers.5.feed_forward_norm.bias"),
            ("decoder.layers.1.self_attn.q_proj.weight", "decoder.layers.1.self_attn.q_proj.weight"),
            ("encoder.norm.weight", "encoder.norm.weight"),
            ("source_embedding.weight", "source_embedding.weight"),
        ] {
            assert_eq!(layers.origin(name), origin);
        }
        assert_eq!(layers.counts([6, 6]), [3, 6]);
    }

    #[test]
    fn higher_scores_and_lower_losses_are_better() {
        for (metric, worse, better) in
            [(ValidMetric::Bleu, 20.0, 21.0), (ValidMetric::Comet, -0.1, 0.8), (ValidMetric::Loss, 3.0, 2.0)]
        {
            assert_eq!(metric.order(better, worse), Ordering::Less, "{metric}");
            assert_eq!(metric.order(worse, better), Ordering::Greater, "{metric}");
            assert_eq!(metric.order(better, better), Ordering::Equal, "{metric}");
        }
    }
}
