//! Which of several validated models is the best.
//!
//! A score of translations is that of a sample of sentences: of other sentences, it would be another. Differences that
//! chance explains therefore do not count, and the loss decides, which every target token has a part in. So the best
//! model is the one with the lowest loss among those whose score does not differ from the highest one by more than
//! chance (as the one-standard-error rule of Breiman et al. 1984, "Classification and Regression Trees", section 3.4.3,
//! prefers one of several models that cannot be told apart). Each is compared with the highest score, not with the best
//! model: otherwise many small steps down, each within the noise, would add up.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::state::TrainState;
use crate::limits;
use crate::train::ValidMetric;

/// A validated model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// After this update.
    pub step: u64,
    /// Its value of `valid.metric`.
    pub value: f64,
    /// The loss.
    pub loss: f64,
    /// The statistics of its translations, line by line, from which the score follows. Empty where the loss is the
    /// metric, and for a model whose score is lower than the highest one by more than chance: it need not be
    /// compared again.
    #[serde(default, with = "counts", skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<u32>,
}

/// Numbers as one string: a state with a line for each would be hard to read.
mod counts {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(counts: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
        let words: Vec<String> = counts.iter().map(u32::to_string).collect();
        serializer.serialize_str(&words.join(" "))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.split_ascii_whitespace().map(|word| word.parse().map_err(D::Error::custom)).collect()
    }
}

/// How models are compared.
pub struct Judge<'a> {
    /// `valid.metric`.
    pub metric: ValidMetric,
    /// Whether the scores of two lists of statistics, of the same lines, differ by more than chance.
    pub differ: &'a dyn Fn(&[u32], &[u32]) -> bool,
}

impl Judge<'_> {
    /// Whether the values of two models differ by more than chance. Those without statistics differ unless they are
    /// equal.
    fn differ(&self, a: &Judged, b: &Judged) -> bool {
        match (&a.lines[..], &b.lines[..]) {
            ([], _) | (_, []) => a.value != b.value,
            (a, b) if a.len() != b.len() => true,
            // Of scores near 0, chance decides, whatever the lines say: a constant translation may beat all others.
            _ if a.value.max(b.value) < self.metric.floor() => false,
            (a, b) => (self.differ)(a, b),
        }
    }

    /// The order by value, the better one first, then by loss.
    fn by_value(&self, a: &Judged, b: &Judged) -> Ordering {
        self.metric.order(a.value, b.value).then(a.loss.total_cmp(&b.loss))
    }

    /// The order by loss, the lower one first, then by value.
    fn by_loss(&self, a: &Judged, b: &Judged) -> Ordering {
        a.loss.total_cmp(&b.loss).then(self.metric.order(a.value, b.value))
    }

    /// The index of the best of several models, of equals the first; `None` of none. They are compared with the highest
    /// score among them or that of `another`, unless all are lower than that by more than chance.
    pub fn choose(&self, models: &[Judged], another: Option<&Judged>) -> Option<usize> {
        let highest = |another: Option<&Judged>| -> Option<usize> {
            let highest = another.into_iter().chain(models).min_by(|a, b| self.by_value(a, b))?;
            let mut among = models.iter().enumerate().filter(|(_, model)| !self.differ(highest, model));
            let first = among.next()?;
            Some(among.fold(first, |best, next| if self.by_loss(next.1, best.1).is_lt() { next } else { best }).0)
        };
        highest(another).or_else(|| highest(None))
    }
}

/// Where a validation stands among those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its place among the best, from 0; `None` if it is not one of those that are kept.
    pub place: Option<usize>,
    /// Whether the loss decided: its score does not differ from the highest by more than chance, but its order is
    /// another.
    pub is_by_loss: bool,
}

impl Standing {
    /// Whether it is the best so far.
    pub fn is_best(self) -> bool {
        self.place == Some(0)
    }
}

impl TrainState {
    /// Takes note of a validation: the best `keep` stay known, at least one. Those whose score does not differ from the
    /// highest by more than chance come first, in the order of their losses, then the others, in the order of their
    /// scores.
    pub fn rank(&mut self, new: Judged, keep: usize, judge: &Judge) -> Standing {
        let former = self.best.take();
        let highest = self.highest.take().or_else(|| former.clone());
        let mut all: Vec<Judged> = former.iter().cloned().chain(self.next_best.drain(..)).collect();
        let (step, mut new) = (new.step, new);
        let highest = match highest {
            Some(highest) if !judge.metric.order(new.value, highest.value).is_lt() => {
                if judge.differ(&highest, &new) {
                    new.lines.clear();
                }
                highest
            }
            _ => {
                let is_lower = |model: &Judged| judge.differ(&new, model);
                all.iter_mut().filter(|model| is_lower(model)).for_each(|model| model.lines.clear());
                new.clone()
            }
        };
        let (value, is_compared) = (new.value, !new.lines.is_empty());
        all.push(new);
        all.sort_by(|a, b| match (a.lines.is_empty(), b.lines.is_empty()) {
            (false, false) => judge.by_loss(a, b),
            (true, true) => judge.by_value(a, b),
            (a, b) => a.cmp(&b),
        });
        all.truncate(keep.max(1));
        let place = all.iter().position(|model| model.step == step);
        // Equal scores have always been told apart by the loss.
        let order = former.map_or(Ordering::Equal, |former| judge.metric.order(value, former.value));
        let expected = if place == Some(0) { Ordering::Greater } else { Ordering::Less };
        let mut all = all.into_iter();
        self.best = all.next();
        self.next_best = all.collect();
        self.highest = Some(highest).filter(|highest| self.best.as_ref().is_none_or(|best| best.step != highest.step));
        self.bound_statistics(limits::STATISTICS);
        Standing { place, is_by_loss: is_compared && order == expected }
    }

    /// Forgets the statistics of the last of the best models, as if their scores were lower than the highest by more
    /// than chance, until all together have at most so many numbers.
    fn bound_statistics(&mut self, most: usize) {
        let mut left = most;
        for model in self.best.iter_mut().chain(&mut self.highest).chain(&mut self.next_best) {
            match left.checked_sub(model.lines.len()) {
                Some(rest) => left = rest,
                None => model.lines = Vec::new(),
            }
        }
    }

    /// Takes note of a validation's loss, and returns whether none was lower before.
    pub fn note_loss(&mut self, loss: f64) -> bool {
        let is_lowest = self.lowest_loss.is_none_or(|lowest| loss < lowest);
        if is_lowest {
            self.lowest_loss = Some(loss);
        }
        is_lowest
    }

    /// Forgets the best models whose checkpoints are no longer there.
    pub fn forget_lost_models(&mut self, is_there: impl Fn(u64) -> bool) {
        let models = self.best.take().into_iter().chain(self.next_best.drain(..));
        let mut left = models.filter(|model| is_there(model.step)).collect::<Vec<_>>().into_iter();
        self.best = left.next();
        self.next_best = left.collect();
    }

    /// Forgets the validations so far: what they found is not comparable with what comes.
    pub fn forget_validations(&mut self) {
        (self.best, self.highest, self.lowest_loss, self.stale) = (None, None, None, 0);
        self.next_best.clear();
        self.plateau.forget_the_best();
    }

    /// The updates of the best validations, the best one first.
    pub fn best_steps(&self) -> Vec<u64> {
        self.best.iter().chain(&self.next_best).map(|model| model.step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of which a lone statistic is the score; scores that are at most two apart differ by chance.
    fn model(step: u64, score: u32, loss: f64) -> Judged {
        Judged { step, value: f64::from(score), loss, lines: vec![score] }
    }

    /// A state is never too large to be read again.
    #[test]
    fn statistics_are_bounded() {
        let many = |step, loss| Judged { step, value: 10.0, loss, lines: vec![1; 4] };
        let alike = Judge { metric: ValidMetric::Bleu, differ: &|_, _| false };
        let mut state = TrainState::default();
        for step in 1..=4 {
            state.rank(many(step, step as f64), 4, &alike);
        }
        state.bound_statistics(9);
        assert_eq!(state.best_steps(), [1, 2, 3, 4]);
        assert_eq!(state.best.as_ref().map(|best| best.lines.len()), Some(4));
        assert_eq!(state.next_best.iter().map(|next| next.lines.len()).collect::<Vec<_>>(), [4, 0, 0]);
        state.forget_lost_models(|step| step > 1);
        assert_eq!(state.best_steps(), [2, 3, 4]);
    }

    const BLEU: Judge = Judge { metric: ValidMetric::Bleu, differ: &|a, b| a[0].abs_diff(b[0]) > 2 };
    const LOSS: Judge = Judge { metric: ValidMetric::Loss, differ: &|_, _| false };

    /// The updates that are the best, one after the other, as validations come.
    fn bests(keep: usize, models: &[Judged]) -> Vec<Vec<u64>> {
        let mut state = TrainState::default();
        let best = |model: &Judged| {
            state.rank(model.clone(), keep, &BLEU);
            // What goes on from a checkpoint goes on as it would have.
            state = TrainState::from_json(state.to_json(1).unwrap()).unwrap();
            state.best_steps()
        };
        models.iter().map(best).collect()
    }

    #[test]
    fn what_chance_explains_is_decided_by_the_loss() {
        for (models, expected) in [
            // A score far above the others counts, whatever its loss; one that is hardly above them does not.
            ([model(1, 10, 3.0), model(2, 20, 4.0), model(3, 22, 5.0)], [1, 2, 2]),
            ([model(1, 0, 3.0), model(2, 1, 2.0), model(3, 0, 1.0)], [1, 2, 3]),
            // Each is compared with the highest score so far: two steps down do not add up.
            ([model(1, 20, 3.0), model(2, 18, 2.0), model(3, 16, 1.0)], [1, 2, 2]),
            // The best one is out when a score is higher than its own by more than chance.
            ([model(1, 20, 1.0), model(2, 22, 3.0), model(3, 23, 2.0)], [1, 1, 3]),
            // Near 0, the loss decides.
            ([model(1, 10, 3.0), model(2, 0, 2.0), model(3, 0, 1.0)], [1, 1, 1]),
            // Of equals, the first.
            ([model(1, 5, 1.0), model(2, 5, 1.0), model(3, 6, 1.0)], [1, 1, 3]),
        ] {
            let found: Vec<u64> = bests(1, &models).iter().map(|steps| steps[0]).collect();
            assert_eq!(found, expected, "{models:?}");
        }
    }

    #[test]
    fn scores_near_0_are_told_apart_by_the_loss() {
        let judge = Judge { metric: ValidMetric::Bleu, differ: &|a, b| a != b };
        let of = |value: f64, loss| Judged { value, loss, lines: vec![(10.0 * value) as u32], ..Judged::default() };
        assert_eq!(judge.choose(&[of(0.9, 5.0), of(0.0, 4.0), of(0.3, 4.5)], None), Some(1));
        assert_eq!(judge.choose(&[of(1.1, 5.0), of(0.0, 4.0)], None), Some(0));
    }

    #[test]
    fn the_best_are_kept_in_order() {
        let models = [model(1, 20, 3.0), model(2, 3, 1.0), model(3, 21, 2.0), model(4, 5, 1.0), model(5, 30, 9.0)];
        let expected = [&[1][..], &[1, 2], &[3, 1, 2], &[3, 1, 4], &[5, 3, 1]];
        assert_eq!(bests(3, &models), expected);
    }

    #[test]
    fn standings_say_what_decided() {
        let mut state = TrainState::default();
        let mut rank = |model| {
            let Standing { place, is_by_loss } = state.rank(model, 2, &BLEU);
            (place, is_by_loss)
        };
        assert_eq!(rank(model(1, 20, 3.0)), (Some(0), false));
        assert_eq!(rank(model(2, 19, 2.0)), (Some(0), true));
        assert_eq!(rank(model(3, 20, 2.5)), (Some(1), true));
        assert_eq!(rank(model(4, 10, 1.0)), (None, false));
        assert_eq!(rank(model(5, 30, 8.0)), (Some(0), false));
    }

    #[test]
    fn a_loss_is_compared_as_it_is() {
        let mut state = TrainState::default();
        let losses = [(1, 3.0), (2, 2.0), (3, 2.5), (4, 1.9999)];
        let models = losses.map(|(step, loss)| Judged { step, value: loss, loss, lines: Vec::new() });
        let is_best = models.map(|model| state.rank(model, 1, &LOSS).is_best());
        assert_eq!((is_best, state.highest), ([true, true, false, true], None));
    }

    #[test]
    fn one_of_several_is_chosen() {
        let choose = |models: &[Judged], another: Option<Judged>| BLEU.choose(models, another.as_ref());
        let models = [model(1, 4, 5.0), model(2, 13, 3.0), model(3, 14, 4.0), model(4, 12, 3.0)];
        assert_eq!(choose(&models, None), Some(1));
        assert_eq!(choose(&models[..1], None), Some(0));
        assert_eq!(choose(&[], None), None);
        // As in training, what is lower by more than chance than a score that was had before is out, …
        assert_eq!(choose(&models, Some(model(9, 16, 9.0))), Some(2));
        // … unless nothing would be left.
        assert_eq!(choose(&models, Some(model(9, 30, 9.0))), Some(1));
        let losses = [2.0, 1.0, 1.5].map(|loss| Judged { step: 1, value: loss, loss, lines: Vec::new() });
        assert_eq!(LOSS.choose(&losses, None), Some(1));
    }
}
