//! Losses that are not numbers, and losses that jump.

use serde::{Deserialize, Serialize};

/// What the learning rate is multiplied with after going back.
pub const LOWER_RATE: f64 = 0.5;
/// Updates in the running means that make the usual loss; before this many, none counts as a jump.
const USUAL: u64 = 100;
/// A loss jumps if it is this many standard deviations above the usual one, …
const DEVIATIONS: f64 = 6.0;
/// … and at least this much, in nats a token. (The usual loss lags behind a falling one, which makes few losses and
/// small ones lie above it, so the deviation alone would be too small: on clean text, up to 0.5 above were seen.)
const JUMP: f64 = 0.75;
/// Lengths of which the logarithms have this standard deviation tell next to nothing of how the loss depends on them.
const EQUAL_LENGTHS: f64 = 0.1;
/// A length further than this many standard deviations from the mean counts as one that far away: an odd pair may be a
/// long one, and would by itself decide what is usual there.
const FARTHEST: f64 = 3.0;

/// An update, as its loss is compared with that of others.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// Mean loss a target token.
    pub loss: f64,
    /// Target tokens.
    pub tokens: u64,
    /// Pairs.
    pub pairs: u64,
}

/// How the updates of a run have gone; part of its state, so that a resumed run takes the same decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Updates skipped since the run began: their loss or gradient was not finite.
    pub skipped: u64,
    /// Updates skipped since the last one that was made.
    pub in_a_row: u64,
    /// What the schedule's learning rate is multiplied with: 1 until the run goes back to a checkpoint, and again after
    /// a change of the schedule.
    pub rate: f64,
    /// How often the run has gone back to a checkpoint.
    pub returns: u64,
    /// Losses seen.
    losses: u64,
    /// Their running mean.
    mean: f64,
    /// The running variance of their distance from the usual loss of their length, as if those below it were spread
    /// like those above.
    variance: f64,
    /// The running mean of the logarithm of target lengths.
    length: f64,
    /// The running variance of these logarithms, …
    length_variance: f64,
    /// … and their covariance with the losses: the tokens of long sentences cost more.
    covariance: f64,
    /// The running mean of target tokens.
    tokens: f64,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            skipped: 0,
            in_a_row: 0,
            rate: 1.0,
            returns: 0,
            losses: 0,
            mean: 0.0,
            variance: 0.0,
            length: 0.0,
            length_variance: 0.0,
            covariance: 0.0,
            tokens: 0.0,
        }
    }
}

impl Health {
    /// Records a skipped update.
    pub fn skip(&mut self) {
        self.skipped += 1;
        self.in_a_row += 1;
    }

    /// Takes note of an update. Returns the usual loss of sentences of its length where its own jumps above that.
    pub fn observe(&mut self, Observed { loss, tokens, pairs }: Observed) -> Option<f64> {
        self.in_a_row = 0;
        let farthest =
            if self.losses > 0 { FARTHEST * self.length_variance.sqrt().max(EQUAL_LENGTHS) } else { f64::MAX };
        let longer = ((1.0 + tokens as f64 / pairs.max(1) as f64).ln() - self.length).clamp(-farthest, farthest);
        let usual = self.mean + longer * self.covariance / (self.length_variance + EQUAL_LENGTHS.powi(2));
        // The mean of few tokens lies further off by chance.
        let chance = (self.tokens / tokens.max(1) as f64).sqrt().max(1.0);
        let most = usual + (DEVIATIONS * self.variance.sqrt() * chance).max(JUMP);
        let jumps = self.losses >= USUAL && loss > most;
        // A jump moves the means too, but not in full: otherwise one would hide the next.
        let loss = if jumps { most } else { loss };
        self.losses += 1;
        let share = 1.0 / self.losses.min(USUAL) as f64;
        let above = loss - self.mean;
        self.covariance = (1.0 - share) * (self.covariance + share * longer * above);
        self.length_variance = (1.0 - share) * (self.length_variance + share * longer.powi(2));
        // Only from losses above the usual: the fall at the beginning says nothing about how far a loss may rise.
        self.variance = (1.0 - share) * (self.variance + 2.0 * share * (loss - usual).max(0.0).powi(2));
        self.mean += share * above;
        self.length += share * longer;
        self.tokens += share * (tokens as f64 - self.tokens);
        jumps.then_some(usual)
    }

    /// The state after going back to `checkpoint`: as it was there, but skipped updates still count, and the rate is
    /// lower.
    #[must_use]
    pub fn gone_back_to(&self, checkpoint: &Self) -> Self {
        let (rate, returns) = (self.rate * LOWER_RATE, self.returns + 1);
        Self { skipped: self.skipped, in_a_row: 0, rate, returns, ..checkpoint.clone() }
    }

    /// Whether the rate is lower than the schedule's.
    pub fn is_rate_lowered(&self) -> bool {
        self.rate < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Losses that fall from 9 to 3 with noise of ±0.2.
    fn usual(update: u64) -> f64 {
        3.0 + 6.0 * (-(update as f64) / 80.0).exp() + 0.2 * ((update * 7919 % 13) as f64 / 6.0 - 1.0)
    }

    /// An update of 50 pairs of 20 tokens.
    fn of(loss: f64) -> Observed {
        Observed { loss, tokens: 1000, pairs: 50 }
    }

    #[test]
    fn only_jumps_are_jumps() {
        let mut health = Health::default();
        for update in 0..1000 {
            assert_eq!(health.observe(of(usual(update))), None, "update {update}");
        }
        let mean = health.observe(of(6.0)).unwrap();
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert_eq!(health.observe(of(usual(1001))), None);
        assert!(health.observe(of(6.0)).is_some(), "one jump hides the next");
        // What stays is the new usual.
        let told = (0..1000).filter(|_| health.observe(of(6.0)).is_some()).count();
        assert!((2..50).contains(&told), "{told}");
    }

    /// Soon after the steepest fall too.
    #[test]
    fn a_fall_does_not_hide_a_jump() {
        let mut health = Health::default();
        assert!((0..USUAL).all(|update| health.observe(of(usual(update))).is_none()));
        let most = usual(USUAL) + 3.0;
        assert!(health.observe(of(most)).is_some(), "{most}");
    }

    #[test]
    fn the_first_losses_never_jump() {
        let mut health = Health::default();
        assert!((0..USUAL).all(|update| health.observe(of((update % 2 * 50) as f64)).is_none()));
    }

    /// Batches of 5 to 25 tokens a pair, and a few of 40, whose tokens cost more; a loss that is usual for those jumps
    /// among short sentences.
    #[test]
    fn long_sentences_are_compared_with_their_like() {
        let loss = |update: u64, length: f64| usual(update) + 1.2 * (length / 15.0).ln();
        let mut health = Health::default();
        for update in 0..2000 {
            let pairs = if update % 101 == 100 { 25 } else { 200 - update * 7919 % 161 };
            let loss = loss(update, 1000.0 / pairs as f64);
            let told = health.observe(Observed { loss, tokens: 1000, pairs });
            assert_eq!(told, None, "update {update}, {pairs} pairs");
        }
        assert!(health.observe(Observed { loss: loss(2000, 40.0), tokens: 1000, pairs: 150 }).is_some());
    }

    /// A batch that was left over has few sentences, and its loss is less certain.
    #[test]
    fn few_tokens_are_given_more_room() {
        let mut health = Health::default();
        (0..1000).for_each(|update| assert_eq!(health.observe(of(usual(update))), None));
        let loss = 3.0 + 2.0 * JUMP;
        assert!(health.clone().observe(of(loss)).is_some());
        assert_eq!(health.observe(Observed { loss, tokens: 20, pairs: 1 }), None);
    }

    #[test]
    fn skips_are_counted_in_all_and_in_a_row() {
        let mut health = Health::default();
        health.skip();
        health.skip();
        assert_eq!((health.skipped, health.in_a_row), (2, 2));
        health.observe(of(1.0));
        health.skip();
        assert_eq!((health.skipped, health.in_a_row, health.is_rate_lowered()), (3, 1, false));
        let back = health.gone_back_to(&Health::default());
        assert_eq!((back.skipped, back.in_a_row, back.rate, back.is_rate_lowered()), (3, 0, LOWER_RATE, true));
        assert_eq!((back.returns, back.gone_back_to(&Health::default()).returns), (1, 2));
    }
}
