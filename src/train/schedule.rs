//! Learning-rate schedules: their keys, and the rate as a pure function of the update, counted from 1, and of how often
//! validations have lowered it.

use serde::{Deserialize, Serialize};

use crate::key::{COUNT, Key, Kind, POSITIVE, RATE, RATE_OR_0, Range, Variant, key, required};

/// `[train.schedule]`: the learning rate at each update, counted from 1.
///
/// Every kind rises linearly over its first `warmup` updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScheduleConfig {
    /// factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) ("Attention Is All You Need", section 5.3).
    Noam {
        /// Updates of linear rise; positive.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// Multiplies the rate.
        #[serde(default = "one")]
        factor: f64,
    },
    /// From `initial` linearly to `learning_rate`, then learning_rate · √(warmup / step).
    InverseSqrt {
        /// The highest rate, reached at `warmup`.
        learning_rate: f64,
        /// Updates of linear rise; positive.
        #[serde(default = "paper_warmup")]
        warmup: u64,
        /// The rate at update 0 of the rise.
        #[serde(default)]
        initial: f64,
    },
    /// Linearly up to `learning_rate`, then linearly down to `end` at update `total`.
    Linear(Decay),
    /// Linearly up to `learning_rate`, then along half a cosine down to `end` at update `total`.
    Cosine(Decay),
    /// `learning_rate` throughout.
    Constant {
        /// The rate.
        learning_rate: f64,
        /// Updates of linear rise.
        #[serde(default)]
        warmup: u64,
    },
    /// `learning_rate`, multiplied with `factor` whenever `patience` validations in a row have brought no improvement
    /// (as Sockeye's plateau-reduce).
    Plateau {
        /// The rate at first.
        learning_rate: f64,
        /// Updates of linear rise.
        #[serde(default)]
        warmup: u64,
        /// What the rate is multiplied with.
        #[serde(default = "plateau_factor")]
        factor: f64,
        /// Validations without an improvement, since the best one or since the rate was lowered last, that lower it.
        #[serde(default = "plateau_patience")]
        patience: u64,
        /// The rate is not lowered below this.
        #[serde(default)]
        min: f64,
    },
}

/// How validations have changed the learning rate: part of a run's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plateau {
    /// How often the rate has been lowered.
    pub lowered: u32,
    /// Validations without an improvement since the best one, or since the rate was lowered last.
    stale: u64,
}

impl Plateau {
    /// Counts validations anew, because the best one so far no longer counts.
    pub fn forget_the_best(&mut self) {
        self.stale = 0;
    }

    /// Takes note of a validation. Returns whether it lowers the rate.
    pub fn validated(&mut self, schedule: &ScheduleConfig, is_better: bool) -> bool {
        let ScheduleConfig::Plateau { patience, learning_rate, factor, min, .. } = *schedule else { return false };
        self.stale = if is_better { 0 } else { self.stale + 1 };
        if self.stale < patience {
            return false;
        }
        self.stale = 0;
        let is_above = lowered(learning_rate, factor, min, self.lowered) > min;
        self.lowered += u32::from(is_above);
        is_above
    }
}

/// A rate after it was lowered `times` times.
fn lowered(learning_rate: f64, factor: f64, min: f64, times: u32) -> f64 {
    // A `min` above the rate itself does not raise it.
    (learning_rate * factor.powf(f64::from(times))).max(min.min(learning_rate))
}

/// A schedule that falls to a last rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decay {
    /// The highest rate, reached at `warmup`.
    pub learning_rate: f64,
    /// Updates of linear rise.
    #[serde(default = "paper_warmup")]
    pub warmup: u64,
    /// The update at which `end` is reached. Default: `train.max_updates`.
    #[serde(default)]
    pub total: u64,
    /// The last rate.
    #[serde(default)]
    pub end: f64,
}

impl Decay {
    /// The rate at `step`: `fall` gives it for the share of the way from the end of warm-up to `total`.
    fn rate(&self, step: f64, fall: impl FnOnce(f64) -> f64) -> f64 {
        rise(step, self.warmup, 0.0, self.learning_rate)
            .unwrap_or_else(|| fall(progress(step, self.warmup, self.total)))
    }
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self::Noam { warmup: paper_warmup(), factor: one() }
    }
}

/// The keys of each kind.
pub(crate) const KINDS: &[Variant] = &[
    Variant { kind: "noam", keys: &[key("warmup", POSITIVE), key("factor", RATE)] },
    Variant {
        kind: "inverse_sqrt",
        keys: &[required("learning_rate", RATE), key("warmup", POSITIVE), key("initial", RATE_OR_0)],
    },
    Variant { kind: "linear", keys: DECAY },
    Variant { kind: "cosine", keys: DECAY },
    Variant { kind: "constant", keys: &[required("learning_rate", RATE), key("warmup", COUNT)] },
    Variant {
        kind: "plateau",
        keys: &[
            required("learning_rate", RATE),
            key("warmup", COUNT),
            key("factor", Kind::Number(Range::Factor)),
            key("patience", POSITIVE),
            key("min", RATE_OR_0),
        ],
    },
];

const DECAY: &[Key] =
    &[required("learning_rate", RATE), key("warmup", COUNT), key("total", POSITIVE), key("end", RATE_OR_0)];

impl ScheduleConfig {
    /// Updates of linear rise.
    pub(crate) fn warmup(&self) -> u64 {
        match self {
            Self::Noam { warmup, .. }
            | Self::InverseSqrt { warmup, .. }
            | Self::Constant { warmup, .. }
            | Self::Plateau { warmup, .. } => *warmup,
            Self::Linear(decay) | Self::Cosine(decay) => decay.warmup,
        }
    }

    /// The keys of a schedule that falls to a last rate.
    fn decay(&self) -> Option<&Decay> {
        match self {
            Self::Linear(decay) | Self::Cosine(decay) => Some(decay),
            Self::Noam { .. } | Self::InverseSqrt { .. } | Self::Constant { .. } | Self::Plateau { .. } => None,
        }
    }

    /// Makes a schedule that has a `total` end with the run.
    pub(crate) fn end_at(&mut self, max_updates: u64) {
        match self {
            Self::Linear(decay) | Self::Cosine(decay) => decay.total = max_updates,
            Self::Noam { .. } | Self::InverseSqrt { .. } | Self::Constant { .. } | Self::Plateau { .. } => {}
        }
    }

    /// How its keys contradict one another, and what to do about it.
    pub(crate) fn contradiction(&self) -> Option<(String, &'static str)> {
        let Decay { warmup, total, .. } = self.decay()?;
        if *total == 0 {
            let what = "`train.schedule.total` is missing, and `train.max_updates` = 0 sets no end";
            return Some((what.to_owned(), "set `total`, the update at which the rate has come down to `end`"));
        }
        let what = format!("`train.schedule.warmup` = {warmup} leaves no update before `total` = {total}");
        (warmup >= total).then_some((what, "lower `warmup`, or raise `total` (default: `train.max_updates`)"))
    }

    /// A warning, where the rate is 0 before the last update: then nothing is learnt any more.
    pub fn idle_end(&self, max_updates: u64) -> Option<String> {
        let Decay { total, end, .. } = self.decay()?;
        let until = match max_updates {
            0 => "training goes on".to_owned(),
            last => format!("`train.max_updates` = {last}"),
        };
        (*end == 0.0 && (max_updates == 0 || *total < max_updates)).then(|| {
            format!(
                "`train.schedule.total` = {total}: from that update on the learning rate is 0, but {until}: set \
                 `total` too, or `end`"
            )
        })
    }

    /// A warning, where training ends after about `updates`, long before the rate has come down at `max_updates`.
    pub fn high_end(&self, max_updates: u64, updates: u64) -> Option<String> {
        let Decay { total, .. } = self.decay()?;
        (*total == max_updates && updates < total / 2).then(|| {
            format!(
                "`train.schedule.total` = {total}, as `train.max_updates`, but `train.max_epochs` ends training after \
                 about {updates} updates, while the learning rate is still high: set `total` to that"
            )
        })
    }
}

/// The paper's warm-up (section 5.3).
fn paper_warmup() -> u64 {
    4000
}

fn one() -> f64 {
    1.0
}

fn plateau_factor() -> f64 {
    0.7
}

/// `valid.patience` has room for three of these, by default.
fn plateau_patience() -> u64 {
    3
}

/// The learning rate of update `step` (from 1), which validations have lowered `lowered` times.
pub fn learning_rate(schedule: &ScheduleConfig, d_model: usize, step: u64, lowered: u32) -> f64 {
    let s = step.max(1) as f64;
    match *schedule {
        ScheduleConfig::Noam { warmup, factor } => {
            factor * (d_model as f64).powf(-0.5) * s.powf(-0.5).min(s * (warmup as f64).powf(-1.5))
        }
        ScheduleConfig::InverseSqrt { learning_rate, warmup, initial } => {
            rise(s, warmup, initial, learning_rate).unwrap_or_else(|| learning_rate * (warmup as f64 / s).sqrt())
        }
        ScheduleConfig::Linear(ref decay @ Decay { learning_rate, end, .. }) => {
            decay.rate(s, |share| learning_rate + (end - learning_rate) * share)
        }
        ScheduleConfig::Cosine(ref decay @ Decay { learning_rate, end, .. }) => {
            decay.rate(s, |share| end + (learning_rate - end) * ((1.0 + (std::f64::consts::PI * share).cos()) / 2.0))
        }
        ScheduleConfig::Constant { learning_rate, warmup } => {
            rise(s, warmup, 0.0, learning_rate).unwrap_or(learning_rate)
        }
        ScheduleConfig::Plateau { learning_rate, warmup, factor, min, .. } => {
            let top = self::lowered(learning_rate, factor, min, lowered);
            rise(s, warmup, 0.0, top).unwrap_or(top)
        }
    }
}

/// The linear rise from `from` to `to` over `warmup` updates; `None` after it.
fn rise(step: f64, warmup: u64, from: f64, to: f64) -> Option<f64> {
    (step < warmup as f64).then(|| from + (to - from) * step / warmup as f64)
}

/// Share of the way from the end of warm-up to `total`, at most 1.
fn progress(step: f64, warmup: u64, total: u64) -> f64 {
    let length = total.saturating_sub(warmup).max(1) as f64;
    ((step - warmup as f64) / length).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(schedule: ScheduleConfig, rows: &[(u64, f64)]) {
        for &(step, want) in rows {
            let got = learning_rate(&schedule, 512, step, 0);
            assert!((got - want).abs() < 1e-12 + want.abs() * 1e-9, "{schedule:?} at {step}: {got} for {want}");
        }
    }

    #[test]
    fn noam_follows_the_paper() {
        // d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), section 5.3, with d_model 512 and 4000 updates of warm-up.
        let scale = 512f64.powf(-0.5);
        let rows = [
            (1, scale * 4000f64.powf(-1.5)),
            (2000, scale * 2000.0 * 4000f64.powf(-1.5)),
            (4000, scale / 4000f64.sqrt()),
            (16_000, scale / 16_000f64.sqrt()),
        ];
        table(ScheduleConfig::Noam { warmup: 4000, factor: 1.0 }, &rows);
        let literal = [(1, 1.746928107421711e-07), (4000, 0.0006987712429686843), (100_000, 0.00013975424859373687)];
        table(ScheduleConfig::Noam { warmup: 4000, factor: 1.0 }, &literal);
    }

    #[test]
    fn inverse_square_root() {
        let schedule = ScheduleConfig::InverseSqrt { learning_rate: 0.005, warmup: 2000, initial: 1e-7 };
        table(schedule, &[(1000, (1e-7 + 0.005) / 2.0), (2000, 0.005), (8000, 0.0025)]);
    }

    #[test]
    fn linear_and_cosine_end_where_they_should() {
        let linear = ScheduleConfig::Linear(Decay { learning_rate: 1.0, warmup: 10, total: 110, end: 0.2 });
        table(linear, &[(5, 0.5), (10, 1.0), (60, 0.6), (110, 0.2), (500, 0.2)]);
        let cosine = ScheduleConfig::Cosine(Decay { learning_rate: 1.0, warmup: 10, total: 110, end: 0.0 });
        table(cosine, &[(5, 0.5), (10, 1.0), (60, 0.5), (110, 0.0), (500, 0.0)]);
    }

    #[test]
    fn a_rate_of_0_is_warned_of_only_before_the_last_update() {
        let decay = |end| Decay { learning_rate: 1.0, warmup: 10, total: 110, end };
        for (end, max_updates, warns) in
            [(0.0, 110, false), (0.0, 100, false), (0.0, 111, true), (0.0, 0, true), (0.1, 111, false), (0.1, 0, false)]
        {
            for schedule in [ScheduleConfig::Linear(decay(end)), ScheduleConfig::Cosine(decay(end))] {
                assert_eq!(schedule.idle_end(max_updates).is_some(), warns, "{schedule:?}, {max_updates}");
            }
        }
    }

    #[test]
    fn constant_with_and_without_warm_up() {
        table(ScheduleConfig::Constant { learning_rate: 0.1, warmup: 0 }, &[(1, 0.1), (999, 0.1)]);
        table(ScheduleConfig::Constant { learning_rate: 0.1, warmup: 10 }, &[(1, 0.01), (10, 0.1)]);
    }

    #[test]
    fn a_plateau_lowers_the_rate() {
        let schedule = ScheduleConfig::Plateau { learning_rate: 1.0, warmup: 4, factor: 0.5, patience: 2, min: 0.2 };
        table(schedule.clone(), &[(1, 0.25), (4, 1.0), (9, 1.0)]);
        let mut plateau = Plateau::default();
        let (good, bad) = (true, false);
        let validations = [good, bad, good, bad, bad, bad, bad, bad, bad, bad, bad];
        let rates = validations.map(|is_better| {
            let is_lowered = plateau.validated(&schedule, is_better);
            (is_lowered, learning_rate(&schedule, 512, 9, plateau.lowered))
        });
        let want = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2];
        assert_eq!(rates.map(|(_, rate)| rate), want);
        // A rate that stays the same is not reported as lowered.
        assert_eq!(rates.map(|(is_lowered, _)| usize::from(is_lowered)).iter().sum::<usize>(), 3);
        assert_eq!(learning_rate(&schedule, 512, 2, 1), 0.25);
        let constant = ScheduleConfig::Constant { learning_rate: 1.0, warmup: 0 };
        assert!(!Plateau { lowered: 0, stale: 9 }.validated(&constant, bad));
        let above = ScheduleConfig::Plateau { learning_rate: 0.1, warmup: 0, factor: 0.5, patience: 1, min: 0.2 };
        assert_eq!(learning_rate(&above, 512, 9, 3), 0.1);
    }
}
