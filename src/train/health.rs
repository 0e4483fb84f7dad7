//! Losses that are not numbers, and losses that jump.

use serde::{Deserialize, Serialize};

/// What the learning rate is multiplied with after going back.
pub const LOWER_RATE: f64 = 0.5;
/// Updates in the running mean that is the usual loss; before this many, none counts as a jump.
const USUAL: u64 = 100;
/// A loss jumps if it is this many standard deviations above the usual one, …
const DEVIATIONS: f64 = 6.0;
/// … and at least this much, in nats a token.
const JUMP: f64 = 0.5;

/// How the updates of a run have gone; part of its state, so that a resumed run takes the same decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Updates skipped since the run began: their loss or gradient was not finite.
    pub skipped: u64,
    /// Updates skipped since the last one that was made.
    pub in_a_row: u64,
    /// What the schedule's learning rate is multiplied with: 1 until the run has gone back to a checkpoint.
    pub rate: f64,
    /// How often the run has gone back to a checkpoint.
    #[serde(default)]
    pub returns: u64,
    /// Losses seen.
    losses: u64,
    /// Their running mean.
    mean: f64,
    /// Their running variance, as if those below the mean were spread like those above.
    variance: f64,
}

impl Default for Health {
    fn default() -> Self {
        Self { skipped: 0, in_a_row: 0, rate: 1.0, returns: 0, losses: 0, mean: 0.0, variance: 0.0 }
    }
}

impl Health {
    /// Takes note of an update that is skipped.
    pub fn skip(&mut self) {
        self.skipped += 1;
        self.in_a_row += 1;
    }

    /// Takes note of an update's mean loss a token. Returns the usual loss where this one jumps above it.
    pub fn observe(&mut self, loss: f64) -> Option<f64> {
        self.in_a_row = 0;
        let (usual, most) = (self.mean, self.mean + (DEVIATIONS * self.variance.sqrt()).max(JUMP));
        let jumps = self.losses >= USUAL && loss > most;
        // A jump moves the mean too, but not in full: otherwise one would hide the next.
        let loss = if jumps { most } else { loss };
        self.losses += 1;
        let share = 1.0 / self.losses.min(USUAL) as f64;
        let above = loss - self.mean;
        self.mean += share * above;
        // Only from losses above the mean: the fall at the beginning says nothing about how far a loss may rise.
        self.variance = (1.0 - share) * (self.variance + 2.0 * share * above.max(0.0).powi(2));
        jumps.then_some(usual)
    }

    /// The state after going back to `checkpoint`: as it was there, but skipped updates still count, and the rate is lower.
    #[must_use]
    pub fn gone_back_to(&self, checkpoint: &Self) -> Self {
        let (rate, returns) = (self.rate * LOWER_RATE, self.returns + 1);
        Self { skipped: self.skipped, in_a_row: 0, rate, returns, ..checkpoint.clone() }
    }

    /// Whether the run has gone back to a checkpoint before.
    pub fn has_gone_back(&self) -> bool {
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

    #[test]
    fn only_jumps_are_jumps() {
        let mut health = Health::default();
        for update in 0..1000 {
            assert_eq!(health.observe(usual(update)), None, "update {update}");
        }
        let mean = health.observe(6.0).unwrap();
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        assert_eq!(health.observe(usual(1001)), None);
        assert!(health.observe(6.0).is_some(), "one jump hides the next");
        // What stays is the new usual.
        let told = (0..1000).filter(|_| health.observe(6.0).is_some()).count();
        assert!((2..50).contains(&told), "{told}");
    }

    /// Soon after the steepest fall too.
    #[test]
    fn a_fall_does_not_hide_a_jump() {
        let mut health = Health::default();
        assert!((0..USUAL).all(|update| health.observe(usual(update)).is_none()));
        let most = usual(USUAL) + 3.0;
        assert!(health.observe(most).is_some(), "{most}");
    }

    #[test]
    fn the_first_losses_never_jump() {
        let mut health = Health::default();
        assert!((0..USUAL).all(|update| health.observe((update % 2 * 50) as f64).is_none()));
    }

    #[test]
    fn skips_are_counted_in_all_and_in_a_row() {
        let mut health = Health::default();
        health.skip();
        health.skip();
        assert_eq!((health.skipped, health.in_a_row), (2, 2));
        health.observe(1.0);
        health.skip();
        assert_eq!((health.skipped, health.in_a_row, health.has_gone_back()), (3, 1, false));
        let back = health.gone_back_to(&Health::default());
        assert_eq!((back.skipped, back.in_a_row, back.rate, back.has_gone_back()), (3, 0, LOWER_RATE, true));
    }
}
