//! Flags of the strategies of the search: what each command that decodes has to know of them.

use clap::Args;

use super::shell::Offered;
use crate::decode::rerank::{Criterion, Utility};
use crate::decode::{Sampling, Strategy};
use crate::error::{Error, Result};
use crate::hub::{DEFAULT_COMET, DEFAULT_QE};

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
    #[arg(long, value_name = "X", default_value_t = 0.5)]
    pub diversity: f64,
    /// Sample tokens at random instead of searching for the best translation
    #[arg(long, conflicts_with_all = ["beam_groups", "patience"])]
    pub sample: bool,
    /// Of --samples translations that are drawn, take the one that is most like all others by this metric: chrf, bleu
    /// or comet (minimum Bayes risk)
    #[arg(
        long, value_name = "METRIC", conflicts_with_all = ["beam_groups", "patience"], hide_possible_values = true,
        value_parser = Offered(Utility::NAMES), group = "chosen"
    )]
    pub mbr: Option<String>,
    /// The model of --mbr comet: hf:ORG/NAME or a folder
    #[arg(long, value_name = "MODEL", default_value = DEFAULT_COMET)]
    pub mbr_model: String,
    /// Of what the search finds, take the translation that a model finds best which needs no reference (quality
    /// estimation): of the whole beam, or with --sample of --samples translations
    #[arg(long, group = "chosen")]
    pub rerank: bool,
    /// The model of --rerank: hf:ORG/NAME or a folder
    #[arg(long, value_name = "MODEL", default_value = DEFAULT_QE)]
    pub rerank_model: String,
    /// How many translations --mbr, or --rerank with --sample, draws for each sentence [default: 32]
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
    /// Divide logits by this before sampling: below 1, the distribution is sharper, above 1 flatter
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub temperature: f64,
    /// Sample from only this many of the most probable tokens; 0: all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub top_k: usize,
    /// Sample from only the most probable tokens that together reach this probability
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub top_p: f64,
}

impl StrategyArgs {
    /// The strategy that the flags ask for; `beam` is the configuration's width, `count` the number of translations
    /// that are wanted.
    ///
    /// # Errors
    /// Flags do not go together.
    pub fn strategy(&self, beam: usize, count: usize, seed: u64) -> Result<Strategy> {
        if let (Some(_), Some(beam @ 2..)) = (&self.mbr, self.beam) {
            let error = Error::usage(format!("--mbr chooses among samples, and --beam {beam} searches for the best"));
            return Err(error.help("leave one of them out; --samples says how many translations to draw"));
        }
        if self.samples == Some(0) {
            return Err(Error::usage("--samples 0: there must be one at least"));
        }
        if self.samples.is_some() && !self.draws_to_choose() {
            return Err(Error::usage("--samples goes with --mbr, or with --rerank and --sample")
                .help("for --rerank among what beam search finds, give --beam"));
        }
        if self.draws_to_choose() && self.samples() < count {
            let what = format!("--samples {} is less than the {count} translations that are wanted", self.samples());
            return Err(Error::usage(what).help("draw more, or ask for fewer (--n-best)"));
        }
        // Other toolkits ask for samples with a beam of 1.
        if let (true, Some(beam @ 2..)) = (self.sample, self.beam) {
            let error = Error::usage(format!("--sample draws translations, and --beam {beam} searches for the best"));
            return Err(error.help("leave one of them out; --n-best says how many translations to draw"));
        }
        let width = self.beam.unwrap_or(beam);
        if self.rerank && !self.sample && width == 1 {
            let error = Error::usage("--rerank chooses among several translations, and a beam of 1 finds one");
            return Err(error.help("give --beam 8, or --sample"));
        }
        Ok(match self.beam_groups {
            _ if self.sample || self.mbr.is_some() => {
                let Self { temperature, top_k, top_p, .. } = *self;
                let count = if self.draws_to_choose() { self.samples() } else { count };
                Strategy::Sample(Sampling { count, temperature, top_k, top_p, seed })
            }
            Some(groups) => Strategy::Diverse { width, groups, penalty: self.diversity },
            None => Strategy::Beam { width },
        })
    }

    /// How one of several translations is chosen in the end, if it is.
    ///
    /// # Errors
    /// There is no such metric.
    pub fn criterion(&self) -> Result<Option<Criterion>> {
        let utility = self.mbr.as_deref().map(|name| Utility::from_flag("--mbr", name)).transpose()?;
        Ok(utility.map(Criterion::Likeness).or(self.rerank.then_some(Criterion::Quality)))
    }

    /// Whether translations are drawn for one of them to be chosen.
    #[must_use]
    pub fn draws_to_choose(&self) -> bool {
        self.mbr.is_some() || self.rerank && self.sample
    }

    /// How many are drawn then.
    fn samples(&self) -> usize {
        self.samples.unwrap_or(32)
    }

    /// The flags that were given, without those that need another one.
    #[must_use]
    pub fn given(&self) -> Vec<&'static str> {
        // All by name, so that no flag is forgotten.
        let Self {
            beam,
            beam_groups,
            sample,
            mbr,
            rerank,
            // These need --beam-groups, --sample, --mbr or --rerank.
            mbr_model: _,
            rerank_model: _,
            samples: _,
            diversity: _,
            temperature: _,
            top_k: _,
            top_p: _,
        } = self;
        let flags = [
            ("--beam", beam.is_some()),
            ("--beam-groups", beam_groups.is_some()),
            ("--sample", *sample),
            ("--mbr", mbr.is_some()),
            ("--rerank", *rerank),
        ];
        flags.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag)).collect()
    }
}
