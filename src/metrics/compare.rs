//! Two systems compared by the scores of their lines, as `comet-compare` of unbabel-comet 2.2.7 does: how often one
//! wins in samples of the lines, and Student's paired t-test.

use statrs::function::beta::beta_reg;

use super::numpy::Legacy;

/// Samples of the lines.
pub const SAMPLES: usize = 300;
/// The share of the lines that a sample has.
pub const SHARE: f64 = 0.4;
/// The seed of its random numbers.
pub const SEED: u32 = 1;
/// Means that differ by less are a tie.
const TIE: f64 = 0.001;

/// What two systems have found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// The mean of each over the samples.
    pub means: [f64; 2],
    /// The share of samples in which each has the higher mean.
    pub wins: [f64; 2],
    /// The share of samples in which neither has.
    pub ties: f64,
    /// The statistic of the t-test; not a number if the scores are the same.
    pub t: f64,
    /// How likely a `t` at least so far from 0 is by chance.
    pub p_value: f64,
}

/// Each system beside each later one: their numbers, and what was found. All have a score for each of the same lines.
pub fn compare(systems: &[Vec<f64>]) -> Vec<([usize; 2], Comparison)> {
    let lines = systems.first().map_or(0, Vec::len);
    let size = ((lines as f64 * SHARE) as usize).max(1);
    let mut random = Legacy::new(SEED);
    // Of each line of the samples, that of the first, that of the second, …
    let drawn: Vec<usize> = (0..size * SAMPLES).map(|_| random.below(lines as u32) as usize).collect();
    let means = |scores: &Vec<f64>| -> Vec<f64> {
        let of_sample = |sample: usize| drawn.iter().skip(sample).step_by(SAMPLES).map(|line| scores[*line]);
        (0..SAMPLES).map(|sample| of_sample(sample).sum::<f64>() / size as f64).collect()
    };
    let means: Vec<Vec<f64>> = systems.iter().map(means).collect();
    let pairs = (0..systems.len()).flat_map(|a| (a + 1..systems.len()).map(move |b| [a, b]));
    pairs.map(|[a, b]| ([a, b], comparison([&systems[a], &systems[b]], [&means[a], &means[b]]))).collect()
}

fn comparison([a, b]: [&[f64]; 2], means: [&[f64]; 2]) -> Comparison {
    let differences: Vec<f64> = means[0].iter().zip(means[1]).map(|(a, b)| a - b).collect();
    let share = |is: &dyn Fn(f64) -> bool| {
        differences.iter().filter(|difference| is(**difference)).count() as f64 / SAMPLES as f64
    };
    let (t, p_value) = t_test(a, b);
    Comparison {
        means: means.map(|means| means.iter().sum::<f64>() / SAMPLES as f64),
        wins: [share(&|difference| difference >= TIE), share(&|difference| difference <= -TIE)],
        ties: share(&|difference| difference.abs() < TIE),
        t,
        p_value,
    }
}

/// Student's t-test of paired scores ("The probable error of a mean", 1908): t, and the probability of one at least so
/// far from 0.
fn t_test(a: &[f64], b: &[f64]) -> (f64, f64) {
    let count = a.len() as f64;
    let mean = a.iter().zip(b).map(|(a, b)| a - b).sum::<f64>() / count;
    let squares = a.iter().zip(b).map(|(a, b)| (a - b - mean).powi(2)).sum::<f64>();
    let freedom = count - 1.0;
    let t = mean / (squares / freedom / count).sqrt();
    let p_value = match t {
        t if t.is_nan() || freedom < 1.0 => f64::NAN,
        t if t.is_infinite() => 0.0,
        t => beta_reg(freedom / 2.0, 0.5, freedom / (freedom + t * t)),
    };
    (t, p_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As comet-compare 2.2.7 (numpy 2.4, scipy 1.17) finds for these scores.
    #[test]
    fn comparisons_are_those_of_comet_compare() {
        let systems: Vec<Vec<f64>> = (0..3)
            .map(|system: u32| {
                let score = |line: u32| f64::from((line * (37 + 10 * system) + 11 * system) % 101) / 100.0;
                (0..50).map(|line| score(line) + 0.02 * f64::from(system)).collect()
            })
            .collect();
        let found = compare(&systems);
        assert_eq!(found.iter().map(|(pair, _)| *pair).collect::<Vec<_>>(), [[0, 1], [0, 2], [1, 2]]);
        for ((_, found), (means, wins, ties, t, p_value)) in found.into_iter().zip([
            (
                [0.500_661_666_666_666_8, 0.511_091_666_666_666_6],
                [139, 158],
                3,
                -0.255_218_744_406_281_5,
                0.799_622_388_083_395_3,
            ),
            (
                [0.500_661_666_666_666_8, 0.542_058_333_333_333_3],
                [98, 198],
                4,
                -0.857_830_453_610_414_8,
                0.395_162_670_020_512_86,
            ),
            (
                [0.511_091_666_666_666_6, 0.542_058_333_333_333_3],
                [104, 194],
                2,
                -0.663_209_057_135_032_3,
                0.510_304_822_063_495_1,
            ),
        ]) {
            let share = |count: i32| f64::from(count) / SAMPLES as f64;
            assert_eq!((found.wins, found.ties), (wins.map(share), share(ties)));
            let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{found:?}: {a} and {b}");
            found.means.iter().zip(means).for_each(|(found, mean)| close(*found, mean));
            close(found.t, t);
            close(found.p_value, p_value);
        }
    }

    #[test]
    fn equal_scores_have_no_t() {
        let (t, p_value) = t_test(&[0.5, 0.25], &[0.5, 0.25]);
        assert!(t.is_nan() && p_value.is_nan());
        let (t, p_value) = t_test(&[0.5, 0.25], &[0.25, 0.0]);
        assert_eq!((t, p_value), (f64::INFINITY, 0.0));
    }
}
