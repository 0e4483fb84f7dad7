//! Confidence intervals and paired tests by resampling (Koehn 2004, "Statistical Significance Tests for Machine
//! Translation Evaluation"; Riezler and Maxwell 2005, "On Some Pitfalls in Automatic Evaluation and Significance
//! Testing for MT"), with the samples and the formulas of sacrebleu 2.6.0.

use rayon::prelude::*;

use super::metric::{Metric, Statistics};
use super::numpy::Generator;

/// sacrebleu's seed.
pub const SEED: u64 = 12345;

/// Number of samples for a difference of two models: as in sacrebleu.
const SAMPLES: usize = 1000;

/// Samples whose line numbers are held in memory at once.
const BLOCK: usize = 128;

/// Score differences closer than this count as equal: sums of thirds, the mean lengths of three references, are
/// rounded.
const ROUNDING: f64 = 1e-9;

/// The mean of resampled scores, and half the width of the interval that 95 % of them lie in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width of the interval.
    pub half_width: f64,
}

impl Interval {
    /// The interval of the scores of samples, at least one.
    pub fn from_scores(scores: &[f64]) -> Self {
        let mut sorted = scores.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let outside = sorted.len() / 40;
        let (lower, upper) = (sorted[outside], sorted[sorted.len() - 1 - outside]);
        Self { mean: sorted.iter().sum::<f64>() / sorted.len() as f64, half_width: 0.5 * (upper - lower) }
    }
}

/// A metric with its statistics of the systems to be compared, all for the same lines.
pub struct Systems<'a> {
    /// The metric.
    pub metric: &'a dyn Metric,
    /// One per system.
    pub statistics: &'a [Statistics],
}

impl Systems<'_> {
    fn scores(&self) -> Vec<f64> {
        self.statistics.iter().map(|of_system| self.metric.score(&of_system.sum())).collect()
    }
}

/// Scores of samples: by metric, by system, by sample.
pub type Scores = Vec<Vec<Vec<f64>>>;

/// Scores of bootstrap samples: as many lines as there are, each drawn from all. All metrics and systems see the same
/// samples.
pub fn bootstrap(systems: &[Systems], samples: usize, seed: u64) -> Scores {
    let lines = lines_of(systems);
    let mut generator = Generator::new(seed);
    let draw = || (0..lines).map(|_| generator.below(lines)).collect();
    let of_sample = |sample: &[u32]| -> Vec<Vec<f64>> {
        let drawn = || sample.iter().map(|line| *line as usize);
        let of_metric =
            |of: &Systems| of.statistics.iter().map(|of_system| of.metric.score(&of_system.sum_of(drawn()))).collect();
        systems.iter().map(of_metric).collect()
    };
    let by_sample = sampled(samples, draw, of_sample);
    let of_system = |metric: usize, system: usize| by_sample.iter().map(|scores| scores[metric][system]).collect();
    let of_metric =
        |metric: usize| (0..systems[metric].statistics.len()).map(|system| of_system(metric, system)).collect();
    (0..systems.len()).map(of_metric).collect()
}

/// Whether the scores of two systems differ by more than chance: whether 0 lies outside the interval of 95 % of their
/// differences in bootstrap samples of the lines (Koehn 2004, section 3). Samples and answer are the same each time.
pub fn differ(metric: &dyn Metric, systems: &[Statistics; 2]) -> bool {
    let scores = bootstrap(&[Systems { metric, statistics: systems }], SAMPLES, SEED);
    let [a, b] = [&scores[0][0], &scores[0][1]];
    let mut differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    differences.sort_unstable_by(f64::total_cmp);
    let outside = differences.len() / 40;
    // Differences of rounding are none.
    differences[outside] > ROUNDING || differences[differences.len() - 1 - outside] < -ROUNDING
}

/// The probability of so large a difference from the first system by chance, by paired bootstrap: by metric, and by
/// system after the first. `scores` come from [`bootstrap`]. If two systems have the same statistics for every line, or
/// the same score in all and in every sample, the p-value is 1, whereas sacrebleu gives its smallest one.
pub fn paired_bootstrap(systems: &[Systems], scores: &Scores) -> Vec<Vec<f64>> {
    let of_metric = |(systems, scores): (&Systems, &Vec<Vec<f64>>)| {
        let actual = systems.scores();
        let of_system = |system: usize| {
            if systems.statistics[system] == systems.statistics[0] {
                return 1.0;
            }
            let differences: Vec<f64> = scores[system].iter().zip(&scores[0]).map(|(a, b)| (a - b).abs()).collect();
            if actual[0] == actual[system] && differences.iter().all(|difference| *difference == 0.0) {
                return 1.0;
            }
            let mean = differences.iter().sum::<f64>() / differences.len() as f64;
            let larger =
                differences.iter().filter(|difference| **difference - mean > (actual[0] - actual[system]).abs());
            p_value(larger.count(), differences.len())
        };
        (1..actual.len()).map(of_system).collect()
    };
    systems.iter().zip(scores).map(of_metric).collect()
}

/// As [`paired_bootstrap`], by approximate randomisation: in each trial a coin decides for each line whether the two
/// systems swap it.
pub fn paired_randomisation(systems: &[Systems], trials: usize, seed: u64) -> Vec<Vec<f64>> {
    let lines = lines_of(systems);
    let mut generator = Generator::new(seed);
    let mut flip = generator.flips();
    let toss = || (0..lines).filter(|_| flip()).collect();
    let actual: Vec<Vec<f64>> = systems.iter().map(Systems::scores).collect();
    let sums: Vec<Vec<Vec<f64>>> =
        systems.iter().map(|of| of.statistics.iter().map(Statistics::sum).collect()).collect();
    // By metric and system: how much more the shuffled systems differ than the actual ones; `None`: neither does.
    let of_trial = |swapped: &[u32]| -> Vec<Vec<Option<f64>>> {
        let of_metric = |((of, sums), actual): ((&Systems, &Vec<Vec<f64>>), &Vec<f64>)| {
            let drawn = || swapped.iter().map(|line| *line as usize);
            let baseline = of.statistics[0].sum_of(drawn());
            let of_system = |system: usize| {
                let (mut one, mut other) = (sums[system].clone(), sums[0].clone());
                let ours = of.statistics[system].sum_of(drawn());
                for (i, (baseline, ours)) in baseline.iter().zip(&ours).enumerate() {
                    one[i] += baseline - ours;
                    other[i] += ours - baseline;
                }
                let shuffled = (of.metric.score(&one) - of.metric.score(&other)).abs();
                let actual = (actual[0] - actual[system]).abs();
                (shuffled.max(actual) > ROUNDING).then_some(shuffled - actual)
            };
            (1..actual.len()).map(of_system).collect()
        };
        systems.iter().zip(&sums).zip(&actual).map(of_metric).collect()
    };
    let by_trial = sampled(trials, toss, of_trial);
    let of_system = |metric: usize, system: usize| {
        if systems[metric].statistics[system] == systems[metric].statistics[0] {
            return 1.0;
        }
        let by_trial = || by_trial.iter().map(|trial| trial[metric][system - 1]);
        if by_trial().all(|larger| larger.is_none()) {
            return 1.0;
        }
        p_value(by_trial().flatten().filter(|larger| *larger > ROUNDING).count(), trials)
    };
    let of_metric = |metric: usize| (1..actual[metric].len()).map(|system| of_system(metric, system)).collect();
    (0..systems.len()).map(of_metric).collect()
}

/// Draws samples one after another, but applies `look` to them on all threads; results are in the order of the samples.
fn sampled<T: Send>(samples: usize, mut draw: impl FnMut() -> Vec<u32>, look: impl Fn(&[u32]) -> T + Sync) -> Vec<T> {
    let mut results = Vec::with_capacity(samples);
    while results.len() < samples {
        let block: Vec<Vec<u32>> = (results.len()..samples).take(BLOCK).map(|_| draw()).collect();
        results.par_extend(block.par_iter().map(|sample| look(sample)));
    }
    results
}

fn lines_of(systems: &[Systems]) -> u32 {
    systems.first().and_then(|of| of.statistics.first()).map_or(0, |of| of.len() as u32)
}

fn p_value(larger: usize, samples: usize) -> f64 {
    (larger + 1) as f64 / (samples + 1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::BleuOptions;

    /// As in sacrebleu, the actual difference counts as one more sample: no number of samples proves that chance is
    /// impossible.
    #[test]
    fn a_p_value_is_never_0() {
        assert_eq!([p_value(0, 999), p_value(49, 999), p_value(999, 999)], [0.001, 0.05, 1.0]);
    }

    /// One line of a hundred may be there or not; a third of all lines is no chance.
    #[test]
    fn chance_does_not_tell_systems_apart() {
        let references: Vec<String> =
            (0..100).map(|i| format!("the {i} quick brown foxes jump over a fence")).collect();
        let right = |lines: std::ops::Range<usize>| -> Vec<String> {
            (0..100).map(|i| if lines.contains(&i) { references[i].clone() } else { format!("the {i} slow") }).collect()
        };
        let metric = BleuOptions::default();
        let of = |lines| Statistics::new(&metric, &right(lines), std::slice::from_ref(&references)).unwrap();
        let differ = |a, b| differ(&metric, &[of(a), of(b)]);
        assert!(!differ(0..1, 0..0) && !differ(0..0, 0..1) && !differ(0..40, 0..40) && !differ(0..40, 60..100));
        assert!(differ(0..40, 0..8) && differ(0..8, 0..40));
    }

    /// A fortieth of the samples lies outside at each end.
    #[test]
    fn an_interval_holds_95_per_cent_of_the_scores() {
        let scores: Vec<f64> = (0..200).rev().map(f64::from).collect();
        assert_eq!(Interval::from_scores(&scores), Interval { mean: 99.5, half_width: 0.5 * (194.0 - 5.0) });
        assert_eq!(Interval::from_scores(&[3.0]), Interval { mean: 3.0, half_width: 0.0 });
    }
}
