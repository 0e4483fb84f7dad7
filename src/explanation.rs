//! A translation explained: plain data, which `decode` makes, `train` passes on and `report` draws.

use serde::Serialize;

/// Weights of one kind of attention: by layer, head, query and key.
pub type Weights = Vec<Vec<Vec<Vec<f32>>>>;

/// The attention of one sentence. A blank line has no tokens and no weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SentenceAttention {
    /// What the encoder was given: the source's pieces and the end of the sentence.
    pub source: Vec<String>,
    /// What the decoder was given: the start, then the translation's pieces.
    pub target_input: Vec<String>,
    /// What the decoder then produced at each of these positions.
    pub target: Vec<String>,
    /// Source over source, [layers, H, S, S].
    pub encoder: Weights,
    /// Target over target, [layers, H, T, T].
    pub decoder: Weights,
    /// Target over source, [layers, H, T, S].
    pub cross: Weights,
}

/// All details of one translation. For a blank line they are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// The line, as a reader would see it: subword-nmt's `@@ ` is left out.
    pub text: String,
    /// Its translation.
    pub translation: String,
    /// Tokens, and every layer's and head's attention weights.
    #[serde(flatten)]
    pub attention: SentenceAttention,
    /// The model's distribution at each position of the translation.
    pub steps: Vec<Step>,
    /// Pairs of a source word and a word of the translation, counted from 0; words are what white space separates.
    pub alignment: Vec<(usize, usize)>,
}

/// The distribution that a token was chosen from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Log-probability of the token that was chosen.
    pub log_prob: f32,
    /// Its rank in the vocabulary, from 1.
    pub rank: usize,
    /// The most probable tokens with their log-probabilities, the most probable first.
    pub candidates: Vec<(String, f32)>,
    /// For each of the [`temperatures`] T, log Σ p^(1/T) over the vocabulary: at T, a token of log-probability l has
    /// the log-probability l/T minus this.
    pub log_sums: Vec<f32>,
}

impl Step {
    /// The probability of a token with this log-probability (at temperature 1) at the nearest of the [`temperatures`].
    pub fn at_temperature(&self, log_prob: f32, temperature: f64) -> f64 {
        let distance = |(other, _): &(f64, &f32)| (other - temperature).abs();
        let nearest = temperatures().zip(&self.log_sums).min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.map_or(0.0, |(t, log_sum)| (f64::from(log_prob) / t - f64::from(*log_sum)).exp())
    }
}

/// The temperatures whose effect can be shown: 0.1, 0.2, … 2.
pub fn temperatures() -> impl Iterator<Item = f64> {
    (1..=20).map(|tenths| f64::from(tenths) / 10.0)
}
