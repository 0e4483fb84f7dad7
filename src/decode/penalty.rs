//! Length penalties: divisors of a hypothesis's log-probability, so that long ones are not put at a disadvantage.
//!
//! A length `|Y|` counts every generated token, the end token included; a hypothesis cut at the maximum length has no
//! end token, so its length is just its tokens.

use crate::choice::choice;

choice! {
    /// A formula for the penalty of a length.
    pub enum PenaltyKind {
        /// `((5 + |Y|) / 6)^α`: Wu et al. 2016, "Google's Neural Machine Translation System", equation 14, without the
        /// coverage term. Tensor2Tensor, JoeyNMT and OpenNMT use it.
        Gnmt = "gnmt",
        /// `|Y|^α`, as in fairseq, Marian, Hugging Face and CTranslate2.
        Power = "power",
        /// `|Y|`: the average of the tokens' log-probabilities, whatever α is.
        Average = "average",
    }
}

/// A length penalty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthPenalty {
    /// The formula.
    pub kind: PenaltyKind,
    /// Its exponent α; 0 is no penalty: plain log-probability.
    pub alpha: f64,
}

impl LengthPenalty {
    /// The divisor for a hypothesis of this length. Except with `Gnmt`, an empty one counts as one token.
    pub fn value(&self, length: usize) -> f64 {
        let length = length as f64;
        match self.kind {
            PenaltyKind::Gnmt => ((5.0 + length) / 6.0).powf(self.alpha),
            PenaltyKind::Power => length.max(1.0).powf(self.alpha),
            PenaltyKind::Average => length.max(1.0),
        }
    }

    /// The score that hypotheses are ranked by, higher is better.
    pub fn score(&self, log_prob: f64, length: usize) -> f64 {
        log_prob / self.value(length)
    }

    /// An upper bound on the score of any extension of a hypothesis of log-probability `log_prob` to a length in
    /// `shortest..=longest`.
    ///
    /// Log-probabilities only fall, and penalties are monotone in the length, so the best case keeps `log_prob` as it
    /// is and has the shortest or the longest length.
    pub fn best_attainable(&self, log_prob: f64, shortest: usize, longest: usize) -> f64 {
        self.score(log_prob, shortest).max(self.score(log_prob, longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_follow_their_formulas() {
        // (kind, length, α, worked out by hand)
        let table = [
            (PenaltyKind::Gnmt, 0, 1.0, 5.0 / 6.0),
            (PenaltyKind::Gnmt, 1, 0.0, 1.0),
            (PenaltyKind::Gnmt, 1, 0.6, 1.0),
            (PenaltyKind::Gnmt, 7, 0.5, std::f64::consts::SQRT_2),
            (PenaltyKind::Gnmt, 7, 1.0, 2.0),
            (PenaltyKind::Gnmt, 19, 0.0, 1.0),
            (PenaltyKind::Gnmt, 19, 0.6, 2.297_396_709_994_07), // 4^0.6 = 2^1.2
            (PenaltyKind::Gnmt, 25, 1.0, 5.0),
            (PenaltyKind::Gnmt, 7, -1.0, 0.5),
            (PenaltyKind::Power, 9, 0.5, 3.0),
            (PenaltyKind::Power, 9, 0.0, 1.0),
            (PenaltyKind::Power, 0, 2.0, 1.0),
            (PenaltyKind::Power, 4, -0.5, 0.5),
            (PenaltyKind::Average, 7, 0.0, 7.0),
            (PenaltyKind::Average, 0, 3.0, 1.0),
        ];
        for (kind, length, alpha, expected) in table {
            let got = LengthPenalty { kind, alpha }.value(length);
            assert!((got - expected).abs() < 1e-12, "{kind:?} of {length} with {alpha}: {got}, not {expected}");
        }
        assert_eq!(LengthPenalty { kind: PenaltyKind::Gnmt, alpha: 1.0 }.score(-6.0, 7), -3.0);
    }

    #[test]
    fn nothing_in_the_range_beats_the_best_attainable() {
        for kind in PenaltyKind::NAMES.iter().filter_map(|name| PenaltyKind::named(name)) {
            for alpha in [-0.5, 0.0, 0.6, 1.0, 2.0] {
                let penalty = LengthPenalty { kind, alpha };
                let bound = penalty.best_attainable(-3.5, 4, 40);
                let scores: Vec<f64> = (4..=40).map(|length| penalty.score(-3.5, length)).collect();
                assert!(scores.iter().all(|&s| s <= bound));
                assert!(scores.contains(&bound), "the bound is attained: {penalty:?}");
            }
        }
    }
}
