//! How likely a model finds translations.

use std::path::PathBuf;

use serde_json::json;

use super::{Scorer, plain};
use crate::cli::{Common, ScoreArgs};
use crate::commands::shared::decoding::translator;
use crate::commands::shared::input::{shown_name, with_tag};
use crate::commands::shared::pairs::Pair;
use crate::commands::shared::suspicious::unknown_warning;
use crate::commands::shared::tags::{self, Tags};
use crate::commands::shared::{languages, model};
use crate::data::corpus::Side;
use crate::decode::source::BeyondPositions;
use crate::decode::translate::{Fit, Translator};
use crate::error::{Error, Result};
use crate::escape::harmless_json;

/// Writes the log-probability of each translation.
pub(super) fn run(args: &ScoreArgs, common: &Common) -> Result<()> {
    if args.batch_tokens == Some(0) {
        return Err(Error::usage("--batch-tokens must be at least 1"));
    }
    let (mut first, mut others) = model::load_all(&args.models, common)?;
    let models = std::iter::once(&mut first).chain(&mut others);
    let tag = languages::choose(&args.languages, args.tag.as_deref(), models)?;
    let tag = tag.as_deref();
    tags::check_flag(tag, &first.tokenizers.source)?;
    let scorer = Likelihood {
        translator: &translator(&first, &others, &args.models.weights, args.precision.as_deref())?,
        batch_tokens: args.batch_tokens.unwrap_or(first.config.decode.batch_tokens),
        tag,
        args,
        is_json: common.json,
        unscored: Unscored::default(),
        tags: Tags::new(&first, tag),
        unknown: 0,
        all: 0,
    };
    super::write(scorer, args, common, &crate::model_dir::files_of(&first, &others))
}

/// One or more models, and what is said of the pairs so far.
struct Likelihood<'a> {
    translator: &'a Translator,
    batch_tokens: usize,
    tag: Option<&'a str>,
    args: &'a ScoreArgs,
    is_json: bool,
    unscored: Unscored,
    tags: Tags<'a>,
    /// Tokens of targets that are unknown, and all.
    unknown: usize,
    all: usize,
}

impl Scorer for Likelihood<'_> {
    const FEATURE: &'static str = "Score";

    fn lines(&mut self, window: &[Pair], paths: [&PathBuf; 2]) -> Result<Vec<String>> {
        let sources = with_tag(self.tag, window.iter().map(|pair| pair.source.clone()).collect());
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        let targets: Vec<&str> = window.iter().map(|pair| pair.target.as_str()).collect();
        languages::refuse_without(self.translator, [&sources, &targets], |error, index, side| {
            let side = usize::from(side == Side::Target);
            error.at_line(shown_name(paths[side]), window[index].lines[side], 0)
        })?;
        let fits = self.translator.fit(&sources, &targets);
        fits.iter().zip(window).for_each(|(fit, pair)| self.unscored.add(*fit, paths, pair.lines));
        let is_scored: Vec<bool> = fits.iter().map(|fit| !matches!(fit, Fit::TooLong(..))).collect();
        let scored = |lines: &[&'_ str]| -> Vec<String> {
            lines
                .iter()
                .zip(&is_scored)
                .filter(|(_, is_scored)| **is_scored)
                .map(|(line, _)| (*line).to_owned())
                .collect()
        };
        let scores = self.translator.score(&scored(&sources), &scored(&targets), self.batch_tokens)?;
        sources.iter().for_each(|line| self.tags.count(line));
        for (tokens, _) in &scores {
            self.unknown += tokens.iter().filter(|token| **token == self.translator.target().unk_id()).count();
            self.all += tokens.len();
        }
        let mut scores = scores.iter();
        let shown = |(pair, is_scored): (&Pair, bool)| self.shown(pair, if is_scored { scores.next() } else { None });
        Ok(window.iter().zip(is_scored).map(shown).collect())
    }

    fn warnings(&self) -> Vec<String> {
        self.tags.warnings()
    }

    fn finish(self) -> (Vec<String>, Vec<Error>) {
        let unknown = unknown_warning("target", self.unknown, self.all);
        (self.tags.warnings().into_iter().chain(unknown).collect(), self.unscored.errors().collect())
    }
}

impl Likelihood<'_> {
    /// The output for a pair with its target's tokens and their log-probabilities, or for one that cannot be scored.
    fn shown(&self, pair: &Pair, score: Option<&(Vec<u32>, Vec<f32>)>) -> String {
        let sum = score.map(|(_, log_probs)| log_probs.iter().map(|log_prob| f64::from(*log_prob)).sum::<f64>());
        // A language is given, not predicted; a blank line has none.
        let has_languages = !self.translator.target().languages().is_empty();
        let predicted = |(tokens, log_probs): &(Vec<u32>, Vec<f32>)| {
            log_probs.len() - usize::from(has_languages && !tokens.is_empty())
        };
        let average = sum.zip(score).map(|(sum, score)| sum / predicted(score) as f64);
        if !self.is_json {
            let number = if self.args.normalize { average } else { sum };
            return plain::<Self>(pair, self.args, number);
        }
        let piece = |token: &u32| self.translator.target().piece(*token).unwrap_or_default();
        let mut json = json!({
            "source": pair.source, "target": pair.target, "log_prob": sum, "average": average,
            "tokens": score.map(|(tokens, _)| tokens.iter().map(piece).collect::<Vec<_>>()),
            "token_log_probs": score.map(|(_, log_probs)| log_probs),
        });
        if let Some(entry) = &pair.entry {
            json["number"] = entry.number.into();
        }
        harmless_json(&json.to_string()).into_owned()
    }
}

/// Pairs that could not be scored.
#[derive(Default)]
struct Unscored {
    /// An error for each of the first.
    first: Vec<Error>,
    others: usize,
}

impl Unscored {
    /// Counts a pair, if it is one of them, with its lines in these files.
    fn add(&mut self, fit: Fit, paths: [&PathBuf; 2], lines: [usize; 2]) {
        /// More are only counted.
        const MOST: usize = 20;
        let Fit::TooLong(side, beyond) = fit else { return };
        if self.first.len() == MOST {
            self.others += 1;
            return;
        }
        let side = usize::from(side == Side::Target);
        let error = BeyondPositions { line: 0, ..beyond }.error(shown_name(paths[side]), lines[side]);
        self.first.push(error.help("its pair has no score (nan; with --json, null): split the line, or leave it out"));
    }

    /// Names them.
    fn errors(self) -> impl Iterator<Item = Error> {
        let (others, s) = (self.others, if self.others == 1 { "" } else { "s" });
        let more = (others > 0).then(|| Error::failure(format!("{others} more pair{s} could not be scored either")));
        self.first.into_iter().chain(more)
    }
}
