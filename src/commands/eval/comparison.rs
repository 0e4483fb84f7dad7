//! `--comet-compare`: systems compared by the scores that models give to lines.

use serde_json::{Value, json};

use super::results::Scored;
use crate::escape::in_one_line;
use crate::metrics::compare::{self, Comparison};

/// Two systems beside each other, by one metric.
pub(super) struct Compared {
    metric: String,
    systems: [String; 2],
    found: Comparison,
}

/// Each system beside each later one, by each metric that a model computes.
pub(super) fn of(scored: &[Scored], systems: &[String]) -> Vec<Compared> {
    let by_models = scored.iter().filter(|scored| ["comet", "qe"].contains(&scored.metric.key()));
    let of_metric = |scored: &Scored| -> Vec<Compared> {
        let lines = |system: usize| scored.statistics[system].lines().map(|line| line[0]).collect();
        let scores: Vec<Vec<f64>> = (0..systems.len()).map(lines).collect();
        let metric = scored.metric.name();
        let compared = |(pair, found): ([usize; 2], Comparison)| {
            let systems = pair.map(|system| systems[system].clone());
            Compared { metric: metric.clone(), systems, found }
        };
        compare::compare(&scores).into_iter().map(compared).collect()
    };
    by_models.flat_map(of_metric).collect()
}

impl Compared {
    pub(super) fn json(&self) -> Value {
        let Self { metric, systems, found: Comparison { means, wins, ties, t, p_value } } = self;
        json!({
            "metric": metric.to_lowercase(), "systems": systems,
            "bootstrap": { "means": means, "wins": wins, "ties": ties },
            "t_test": { "t": t, "p_value": p_value },
        })
    }

    pub(super) fn text(&self) -> String {
        let Self { metric, systems, found: Comparison { means, wins, ties, t, p_value } } = self;
        let [a, b] = systems.each_ref().map(|name| in_one_line(name));
        let [wins_a, wins_b, ties] = [wins[0], wins[1], *ties].map(|share| format!("{:.1} %", 100.0 * share));
        let verdict = match p_value {
            p if p.is_nan() => "there is one line, or all differences are 0".to_owned(),
            p if *p > 0.05 => "the difference may be chance".to_owned(),
            _ => format!("{} is better", if means[0] > means[1] { &a } else { &b }),
        };
        let bootstrap = format!(
            "means {:.4} and {:.4}; wins {wins_a} and {wins_b}, ties {ties} ({} samples of {} % of the lines)",
            means[0],
            means[1],
            compare::SAMPLES,
            100.0 * compare::SHARE
        );
        let t_test = format!("t = {t:.4}, p = {p_value:.4}: {verdict}");
        format!("{metric}: {a} and {b}\n  bootstrap: {bootstrap}\n  paired t-test: {t_test}")
    }
}
