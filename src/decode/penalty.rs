//! Length penalties: what a hypothesis's log-probability is divided by, so that long ones are not put at a disadvantage.
//!
//! A length `|Y|` counts every generated token, the end token included; a hypothesis cut at the maximum length has no
//! end token, and counts the tokens it has.

/// The length penalty of Wu et al. 2016 ("Google's Neural Machine Translation System", equation 14, without the
/// coverage term): `lp(Y) = ((5 + |Y|) / 6)^alpha`. With `alpha = 0` it is 1: plain log-probability.
pub fn gnmt(length: usize, alpha: f64) -> f64 {
    ((5.0 + length as f64) / 6.0).powf(alpha)
}

/// The score that hypotheses are ranked by: `log_prob / lp(Y)`, higher is better.
pub fn score(log_prob: f64, length: usize, alpha: f64) -> f64 {
    log_prob / gnmt(length, alpha)
}

/// No hypothesis that extends one of log-probability `log_prob` and ends with a length in `shortest..=longest` scores
/// higher than this.
///
/// Log-probabilities only fall, and the penalty is monotone in the length, so the best case adds nothing to `log_prob`
/// and lies at one end of the range: at `longest` with `alpha >= 0`, at `shortest` below.
pub fn best_attainable(log_prob: f64, shortest: usize, longest: usize, alpha: f64) -> f64 {
    score(log_prob, if alpha >= 0.0 { longest } else { shortest }, alpha)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gnmt_follows_the_formula() {
        // (length, alpha, ((5 + length) / 6)^alpha worked out by hand)
        let table = [
            (0, 1.0, 5.0 / 6.0),
            (1, 0.0, 1.0),
            (1, 0.6, 1.0),
            (1, 1.0, 1.0),
            (7, 0.5, std::f64::consts::SQRT_2),
            (7, 1.0, 2.0),
            (19, 0.0, 1.0),
            (19, 0.6, 2.297_396_709_994_07), // 4^0.6 = 2^1.2
            (19, 2.0, 16.0),
            (25, 1.0, 5.0),
            (7, -1.0, 0.5),
        ];
        for (length, alpha, expected) in table {
            let got = gnmt(length, alpha);
            assert!((got - expected).abs() < 1e-12, "lp({length}; {alpha}) = {got}, not {expected}");
        }
        assert_eq!(score(-6.0, 7, 1.0), -3.0);
    }

    #[test]
    fn nothing_in_the_range_beats_the_best_attainable() {
        for alpha in [-0.5, 0.0, 0.6, 1.0, 2.0] {
            let bound = best_attainable(-3.5, 4, 40, alpha);
            let scores: Vec<f64> = (4..=40).map(|length| score(-3.5, length, alpha)).collect();
            assert!(scores.iter().all(|&s| s <= bound));
            assert!(scores.contains(&bound), "the bound is attained, alpha {alpha}");
        }
    }
}
