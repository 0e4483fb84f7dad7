//! Several models as one: the mean of their probabilities, token by token, perhaps weighted.

use rayon::prelude::*;

use super::neural::{Neural, NeuralStep, best_continuations};
use super::{Continuation, Rows, StepModel};
use crate::error::Result;

/// One or more models with the same target vocabulary.
#[derive(Debug)]
pub struct Ensemble {
    members: Vec<Neural>,
    /// The logarithm of each member's share of the mean.
    log_shares: Vec<f32>,
}

impl From<Neural> for Ensemble {
    fn from(model: Neural) -> Self {
        Self::new(vec![model])
    }
}

impl Ensemble {
    /// An ensemble of at least one model, all with the same target vocabulary.
    ///
    /// # Panics
    /// There is no member, or the sizes of the vocabularies differ.
    pub fn new(members: Vec<Neural>) -> Self {
        assert!(!members.is_empty(), "an ensemble of nothing");
        let vocabulary = members[0].vocabulary();
        assert!(members.iter().all(|member| member.vocabulary() == vocabulary), "vocabularies differ");
        let log_share = -(members.len() as f32).ln();
        Self { log_shares: vec![log_share; members.len()], members }
    }

    /// With a weight above 0 for each member; only their ratios matter.
    #[must_use]
    pub fn weighted(mut self, weights: &[f64]) -> Self {
        // Equal weights give the same as `new`, to the bit.
        if weights.iter().any(|weight| *weight != weights[0]) {
            let total: f64 = weights.iter().sum();
            self.log_shares = weights.iter().map(|weight| (weight / total).ln() as f32).collect();
        }
        self
    }

    /// The models.
    pub fn members(&self) -> &[Neural] {
        &self.members
    }

    /// The longest target that the positions of all members allow.
    pub fn max_positions(&self) -> usize {
        self.members.iter().map(Neural::max_positions).min().unwrap_or(0)
    }

    /// Whether steps are computed by a device that works by itself while the host goes on.
    pub fn is_on_device(&self) -> bool {
        self.members.iter().any(Neural::is_on_device)
    }

    /// Gives memory back that is kept for further batches.
    pub fn release_memory(&self) {
        self.members.iter().for_each(Neural::release_memory);
    }

    /// The largest useful number of rows, for a search that reads the `whole` distribution or the best continuations.
    /// More rows only take memory.
    pub fn rows(&self, whole: bool) -> usize {
        /// Limit on the log-probabilities of a step, where all are stored, as they are of each of several models.
        const MOST_VALUES: usize = 16 << 20;
        let rows = self.members.iter().map(Neural::rows).min().unwrap_or(1);
        let are_stored = whole || self.members.len() > 1;
        if are_stored { rows.min(MOST_VALUES / self.members[0].vocabulary()).max(1) } else { rows }
    }

    /// Encodes sentences, given for each member as token ids with the end of the sentence, and begins to decode them.
    ///
    /// # Errors
    /// A device fails.
    pub fn begin(&self, sources: &[Vec<&[u32]>]) -> Result<EnsembleStep<'_>> {
        self.begin_allowing(sources, &[])
    }

    /// As [`Self::begin`]; shortlists allow the tokens that are `needed` for each sentence, if there are any.
    ///
    /// # Errors
    /// A device fails.
    pub fn begin_allowing(&self, sources: &[Vec<&[u32]>], needed: &[Vec<u32>]) -> Result<EnsembleStep<'_>> {
        let members = self.members.iter().zip(sources).map(|(member, sources)| member.begin_allowing(sources, needed));
        Ok(EnsembleStep {
            ensemble: self,
            members: members.collect::<Result<_>>()?,
            log_probs: Vec::new(),
            own: Vec::new(),
        })
    }
}

/// A batch of sentences being decoded.
#[derive(Debug)]
pub struct EnsembleStep<'a> {
    ensemble: &'a Ensemble,
    members: Vec<NeuralStep<'a>>,
    /// [rows, V]: of the mean, and in `own` of one member.
    log_probs: Vec<f32>,
    own: Vec<f32>,
}

impl EnsembleStep<'_> {
    /// Writes the logarithm of the mean of the members' probabilities to `log_probs`.
    fn mean(&mut self, rows: &Rows<'_>) -> Result<()> {
        // Relative to the first, so that members that count the same are added as they are.
        let shares = &self.ensemble.log_shares;
        for (i, (member, share)) in self.members.iter_mut().zip(shares).enumerate() {
            if i == 0 {
                member.log_probs(rows, &mut self.log_probs)?;
                continue;
            }
            member.log_probs(rows, &mut self.own)?;
            let ratio = share - shares[0];
            let pairs = self.log_probs.par_chunks_mut(1 << 14).zip(self.own.par_chunks(1 << 14));
            let add = |(sum, own): (&mut f32, &f32)| *sum = log_add(*sum, *own + ratio);
            pairs.for_each(|(sums, own)| sums.iter_mut().zip(own).for_each(add));
        }
        let first = shares[0];
        self.log_probs.par_chunks_mut(1 << 14).for_each(|sums| sums.iter_mut().for_each(|sum| *sum += first));
        Ok(())
    }
}

/// ln(e^a + e^b).
fn log_add(a: f32, b: f32) -> f32 {
    let (large, small) = (a.max(b), a.min(b));
    // The sum is impossible if both are, and NaN if either is.
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if small == f32::NEG_INFINITY {
        large
    } else {
        large + (small - large).exp().ln_1p()
    }
}

/// The logarithm of the sum of a distribution: 0, or NaN if one of its members is damaged. Of a damaged member with a
/// shortlist, only the tokens on the list are NaN.
fn log_sum_of(log_probs: &[f32]) -> f32 {
    if log_probs.iter().any(|log_prob| log_prob.is_nan()) { f32::NAN } else { 0.0 }
}

impl StepModel for EnsembleStep<'_> {
    fn sentences(&self) -> usize {
        self.members[0].sentences()
    }

    fn start_token(&self) -> u32 {
        self.members[0].start_token()
    }

    fn end_token(&self) -> u32 {
        self.members[0].end_token()
    }

    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        if let [only] = &mut self.members[..] {
            return only.step(rows, k, best);
        }
        self.mean(rows)?;
        let model = &self.ensemble.members[0];
        let log_probs = self.log_probs.par_chunks_mut(model.vocabulary()).zip(best.par_chunks_mut(k));
        log_probs.enumerate().for_each(|(row, (log_probs, best))| {
            let log_sum = log_sum_of(log_probs);
            best_continuations(log_probs, log_sum, None, &model.special().forbidden, rows.constraint(row), best);
        });
        Ok(())
    }

    fn log_probs(&mut self, rows: &Rows<'_>, log_probs: &mut Vec<f32>) -> Result<()> {
        if let [only] = &mut self.members[..] {
            return only.log_probs(rows, log_probs);
        }
        self.mean(rows)?;
        log_probs.clone_from(&self.log_probs);
        Ok(())
    }

    fn forbidden(&self) -> &[u32] {
        self.members[0].forbidden()
    }

    fn languages(&self) -> &[u32] {
        self.members[0].languages()
    }
}

#[cfg(test)]
mod tests {
    use super::{log_add, log_sum_of};

    #[test]
    fn a_row_with_a_nan_is_not_taken_for_one_without_a_possible_token() {
        assert!(log_sum_of(&[f32::NEG_INFINITY, f32::NAN, f32::NEG_INFINITY]).is_nan());
        assert_eq!(log_sum_of(&[f32::NEG_INFINITY, -0.5, -1.0]), 0.0);
    }

    #[test]
    fn log_add_is_the_logarithm_of_the_sum() {
        for (a, b) in [(-1f32, -2f32), (-0.5, -80.0), (-200.0, -201.0), (-3.0, -3.0)] {
            let want = (a as f64).exp() + (b as f64).exp();
            assert!((log_add(a, b) as f64 - want.ln()).abs() < 1e-5, "{a} {b}");
        }
        assert_eq!(log_add(f32::NEG_INFINITY, -1.0), -1.0);
        assert_eq!(log_add(f32::NEG_INFINITY, f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert!(log_add(f32::NAN, -1.0).is_nan() && log_add(-1.0, f32::NAN).is_nan());
    }
}
