//! Flags of the strategies of the search: what each command that decodes has to know of them.

use clap::Args;

use crate::decode::{Sampling, Strategy};
use crate::error::{Error, Result};

/// How translations are chosen.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Decoding")]
pub struct StrategyArgs {
    /// Beam width; 1: greedy search
    #[arg(long, value_name = "N")]
    pub beam: Option<usize>,
    /// Split the beam into this many groups that favour different translations (diverse beam search)
    ///
    /// If groups find the same translation, there are fewer than asked for.
    #[arg(long, value_name = "N")]
    pub beam_groups: Option<usize>,
    /// Penalty on a token for each hypothesis of earlier groups that took it at the same step
    ///
    /// It is subtracted from the token's log-probability when a group chooses what to extend. It is not part of the
    /// score and not carried into later steps.
    #[arg(long, value_name = "X", default_value_t = 0.5, requires = "beam_groups")]
    pub diversity: f64,
    /// Sample tokens at random instead of searching for the best translation
    #[arg(long, conflicts_with_all = ["beam_groups", "patience"])]
    pub sample: bool,
    /// Divide logits by this before sampling: below 1, the distribution is sharper, above 1 flatter
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "sample")]
    pub temperature: f64,
    /// Sample from only this many of the most probable tokens; 0: all
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    pub top_k: usize,
    /// Sample from only the most probable tokens that together reach this probability
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "sample")]
    pub top_p: f64,
}

impl StrategyArgs {
    /// The strategy that the flags ask for; `beam` is the configuration's width, `count` the number of translations
    /// that are wanted.
    ///
    /// # Errors
    /// Flags do not go together.
    pub fn strategy(&self, beam: usize, count: usize, seed: u64) -> Result<Strategy> {
        // Other toolkits ask for samples with a beam of 1.
        if let (true, Some(beam @ 2..)) = (self.sample, self.beam) {
            let error = Error::usage(format!("--sample draws translations, and --beam {beam} searches for the best"));
            return Err(error.help("leave one of them out; --n-best says how many translations to draw"));
        }
        let width = self.beam.unwrap_or(beam);
        Ok(match self.beam_groups {
            _ if self.sample => {
                let Self { temperature, top_k, top_p, .. } = *self;
                Strategy::Sample(Sampling { count, temperature, top_k, top_p, seed })
            }
            Some(groups) => Strategy::Diverse { width, groups, penalty: self.diversity },
            None => Strategy::Beam { width },
        })
    }

    /// The flags that were given, without those that need another one.
    #[must_use]
    pub fn given(&self) -> Vec<&'static str> {
        // All by name, so that no flag is forgotten.
        let Self {
            beam,
            beam_groups,
            sample,
            // These need --beam-groups or --sample.
            diversity: _,
            temperature: _,
            top_k: _,
            top_p: _,
        } = self;
        let flags = [("--beam", beam.is_some()), ("--beam-groups", beam_groups.is_some()), ("--sample", *sample)];
        flags.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag)).collect()
    }
}
