//! Chooses among the translations that a search has found for a line.
//!
//! Minimum Bayes risk decoding (Eikema and Aziz 2020, "Is MAP Decoding All You Need?"): of translations that are drawn
//! from a model, the one that is on average most like all of them. The utility of a translation is its mean score
//! against each of them as the reference, itself among them.
//!
//! Reranking by quality estimation (Fernandes et al. 2022, "Quality-Aware Decoding for Neural Machine Translation"):
//! the one that a model which needs no reference finds best.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use rayon::prelude::*;

use crate::choice::choice;
use crate::decode::translate::{Candidate, Translation};
use crate::error::{Error, Result};
use crate::metrics::{BleuOptions, ChrfOptions, TextMetric};

choice! {
    /// The metric that says how like two translations are.
    pub enum Utility {
        /// chrF2.
        Chrf = "chrf",
        /// BLEU of a sentence: with exponential smoothing, of the orders that the translation is long enough for.
        Bleu = "bleu",
        /// A model's score ([`Judge`]).
        Comet = "comet",
    }
}

/// A model that says how good translations are.
pub trait Judge: Debug + Send + Sync {
    /// For each translation of a source, the mean of its scores with each of them as the reference.
    ///
    /// # Errors
    /// The model fails.
    fn utilities(&self, source: &str, texts: &[&str]) -> Result<Vec<f64>>;

    /// The score of each pair of a source and a translation, without a reference.
    ///
    /// # Errors
    /// The model fails.
    fn qualities(&self, pairs: &[(&str, &str)]) -> Result<Vec<f64>>;
}

/// How translations are chosen among those that were found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rerank {
    /// What makes one better than another.
    pub by: Criterion,
    /// How BLEU splits lines, where it compares them.
    pub bleu: BleuOptions,
    /// How many of the best stay, the best first.
    pub keep: usize,
}

/// What makes a translation better than another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Criterion {
    /// It is more like all of them, by this metric.
    Likeness(Utility),
    /// A judge's score of it by itself.
    Quality,
}

impl Rerank {
    /// Leaves each line's best translations, each once, with what they were chosen by as their scores: a utility from 0
    /// to 100, or a judge's score. Among equals the one that was found first is the better.
    ///
    /// # Errors
    /// There is no judge where one is needed, or it fails.
    pub fn choose<S: AsRef<str> + Sync>(
        &self,
        translations: &mut [Translation],
        sources: &[S],
        judge: Option<&dyn Judge>,
    ) -> Result<()> {
        let missing = || Error::failure("no model judges the translations");
        match self.by {
            Criterion::Likeness(utility) => match utility.metric(self.bleu) {
                Some(metric) => translations.par_iter_mut().for_each(|translation| {
                    let scores = utilities(&*metric, &texts(translation));
                    self.keep_best(translation, scores);
                }),
                // A judge uses all threads by itself.
                None => {
                    for (translation, source) in translations.iter_mut().zip(sources) {
                        let scores = judge.ok_or_else(missing)?.utilities(source.as_ref(), &texts(translation))?;
                        self.keep_best(translation, scores);
                    }
                }
            },
            Criterion::Quality => {
                let of_line = |(translation, source)| {
                    let source = <S as AsRef<str>>::as_ref(source);
                    texts(translation).into_iter().map(move |text| (source, text))
                };
                let pairs: Vec<(&str, &str)> = translations.iter().zip(sources).flat_map(of_line).collect();
                let mut scores = judge.ok_or_else(missing)?.qualities(&pairs)?.into_iter();
                for translation in translations {
                    let count = translation.n_best.len();
                    self.keep_best(translation, scores.by_ref().take(count).collect());
                }
            }
        }
        Ok(())
    }

    /// Leaves a line's best translations by these scores.
    fn keep_best(&self, translation: &mut Translation, scores: Vec<f64>) {
        let mut seen = HashSet::new();
        let found = std::mem::take(&mut translation.n_best).into_iter().zip(scores);
        let found = found.map(|(candidate, score)| Candidate { score, ..candidate });
        let mut best: Vec<Candidate> = found.filter(|candidate| seen.insert(candidate.text.clone())).collect();
        best.sort_by(|a, b| b.score.total_cmp(&a.score));
        best.truncate(self.keep.max(1));
        translation.n_best = best;
    }
}

/// The texts of a line's translations.
fn texts(translation: &Translation) -> Vec<&str> {
    translation.n_best.iter().map(|candidate| &*candidate.text).collect()
}

impl Utility {
    /// The metric that compares text, if it is one.
    fn metric(self, bleu: BleuOptions) -> Option<Box<dyn TextMetric>> {
        match self {
            Self::Chrf => Some(Box::new(ChrfOptions::default())),
            Self::Bleu => Some(Box::new(BleuOptions { effective_order: true, ..bleu })),
            Self::Comet => None,
        }
    }
}

/// The utility of each text among all of them by a metric.
pub fn utilities(metric: &dyn TextMetric, texts: &[&str]) -> Vec<f64> {
    // Equal ones are compared once.
    let Different { texts: different, counts, places } = Different::new(texts);
    let mut statistics = vec![0.0; metric.width()];
    let mut utility = |text: &str| -> f64 {
        let against = |(reference, count): (&&str, &f64)| {
            metric.line_statistics(text, &[reference], &mut statistics);
            count * metric.score(&statistics)
        };
        different.iter().zip(&counts).map(against).sum::<f64>() / texts.len() as f64
    };
    let utilities: Vec<f64> = different.iter().map(|text| utility(text)).collect();
    places.into_iter().map(|place| utilities[place]).collect()
}

/// Texts, each once.
#[derive(Debug)]
pub struct Different<'a> {
    /// In the order in which they came first.
    pub texts: Vec<&'a str>,
    /// How often each is there.
    pub counts: Vec<f64>,
    /// For each of all texts, which of these it is.
    pub places: Vec<usize>,
}

impl<'a> Different<'a> {
    /// Those among all of these.
    pub fn new(all: &[&'a str]) -> Self {
        let mut numbers = HashMap::new();
        let (mut texts, mut counts) = (Vec::new(), Vec::new());
        let place = |text: &&'a str| {
            let number = *numbers.entry(*text).or_insert(texts.len());
            if number == texts.len() {
                texts.push(*text);
                counts.push(0.0);
            }
            counts[number] += 1.0;
            number
        };
        Self { places: all.iter().map(place).collect(), texts, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metric;
    use crate::metrics::sentence_bleu;

    const DRAWN: [&str; 5] = [
        "the cat sleeps on the mat",
        "a dog runs",
        "the cat sleeps on a mat",
        "the cat sleeps on the mat",
        "the cats sleep on the mat",
    ];

    /// The mean over all pairs, each computed by itself.
    #[test]
    fn utilities_are_the_mean_score_against_all() {
        let options = BleuOptions { effective_order: true, ..BleuOptions::default() };
        let bleu = |hypothesis: &str, reference: &str| sentence_bleu(hypothesis, &[reference], &options).unwrap().score;
        let chrf = |hypothesis: &str, reference: &str| {
            let (metric, mut statistics) = (ChrfOptions::default(), vec![0.0; ChrfOptions::default().width()]);
            metric.line_statistics(hypothesis, &[reference], &mut statistics);
            metric.score(&statistics)
        };
        let mean = |score: &dyn Fn(&str, &str) -> f64, hypothesis: &str| {
            DRAWN.iter().map(|reference| score(hypothesis, reference)).sum::<f64>() / DRAWN.len() as f64
        };
        for (utility, score) in [(Utility::Bleu, &bleu as &dyn Fn(&str, &str) -> f64), (Utility::Chrf, &chrf)] {
            let found = utilities(&*utility.metric(BleuOptions::default()).unwrap(), &DRAWN);
            for (text, found) in DRAWN.iter().zip(&found) {
                assert!((found - mean(score, text)).abs() < 1e-9, "{utility:?} {text}: {found}");
            }
            assert!(found[0] == found[3] && found[0] > found[2] && found[2] > found[1], "{found:?}");
        }
        assert!(utilities(&ChrfOptions::default(), &[]).is_empty());
    }

    #[test]
    fn the_translation_most_like_all_others_is_the_best() {
        let candidate = |text: &&str| Candidate { text: (*text).to_owned(), score: -1.0, ..Candidate::default() };
        let blank = Translation { n_best: Vec::new(), source_cut: false, parts: Vec::new(), later_prefix: Vec::new() };
        let drawn = Translation { n_best: DRAWN.iter().map(candidate).collect(), ..blank };
        for (keep, want) in [(1, &[0][..]), (3, &[0, 2, 4]), (9, &[0, 2, 4, 1])] {
            let mut translation = drawn.clone();
            let rerank = Rerank { by: Criterion::Likeness(Utility::Chrf), bleu: BleuOptions::default(), keep };
            rerank.choose(std::slice::from_mut(&mut translation), &[""], None).unwrap();
            let texts: Vec<&str> = translation.n_best.iter().map(|candidate| &*candidate.text).collect();
            let want: Vec<&str> = want.iter().map(|number| DRAWN[*number]).collect();
            assert_eq!(texts, want);
            assert!(translation.n_best.is_sorted_by(|a, b| a.score >= b.score));
        }
    }
}
