//! Minimum Bayes risk decoding (Eikema and Aziz 2020, "Is MAP Decoding All You Need?"): of translations that are drawn
//! from a model, the one that is on average most like all of them. The utility of a translation is its mean score
//! against each of them as the reference, itself among them.

use std::collections::HashMap;

use crate::choice::choice;
use crate::decode::translate::{Candidate, Translation};
use crate::metrics::{BleuOptions, ChrfOptions, TextMetric};

choice! {
    /// The metric that says how like two translations are.
    pub enum Utility {
        /// chrF2.
        Chrf = "chrf",
        /// BLEU of a sentence: with exponential smoothing, of the orders that the translation is long enough for.
        Bleu = "bleu",
    }
}

/// How one is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mbr {
    /// By which metric.
    pub utility: Utility,
    /// How many of the translations with the highest utility stay, the highest first.
    pub keep: usize,
}

impl Mbr {
    /// Leaves a line's best translations, each once, with their utilities, from 0 to 100, as their scores. Among equals
    /// the one that was drawn first is the better.
    pub fn choose(&self, translation: &mut Translation) {
        let drawn = std::mem::take(&mut translation.n_best);
        let texts: Vec<&str> = drawn.iter().map(|candidate| &*candidate.text).collect();
        let utilities = self.utility.of(&texts);
        let mut best: Vec<Candidate> = Vec::new();
        let mut seen = HashMap::new();
        for (number, (candidate, score)) in drawn.iter().zip(utilities).enumerate() {
            if seen.insert(&*candidate.text, number).is_none() {
                best.push(Candidate { score, ..candidate.clone() });
            }
        }
        best.sort_by(|a, b| b.score.total_cmp(&a.score));
        best.truncate(self.keep.max(1));
        translation.n_best = best;
    }
}

impl Utility {
    fn metric(self) -> Box<dyn TextMetric> {
        match self {
            Self::Chrf => Box::new(ChrfOptions::default()),
            Self::Bleu => Box::new(BleuOptions { effective_order: true, ..BleuOptions::default() }),
        }
    }

    /// The utility of each text among all of them.
    pub fn of(self, texts: &[&str]) -> Vec<f64> {
        let metric = self.metric();
        // Equal ones are compared once.
        let mut numbers = HashMap::new();
        let mut different: Vec<(&str, f64)> = Vec::new();
        let places: Vec<usize> = texts
            .iter()
            .map(|text| {
                let number = *numbers.entry(*text).or_insert(different.len());
                if number == different.len() {
                    different.push((text, 0.0));
                }
                different[number].1 += 1.0;
                number
            })
            .collect();
        let mut statistics = vec![0.0; metric.width()];
        let mut utility = |text: &str| -> f64 {
            let against = |(reference, count): &(&str, f64)| {
                metric.line_statistics(text, &[reference], &mut statistics);
                count * metric.score(&statistics)
            };
            different.iter().map(against).sum::<f64>() / texts.len() as f64
        };
        let utilities: Vec<f64> = different.iter().map(|(text, _)| utility(text)).collect();
        places.into_iter().map(|place| utilities[place]).collect()
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
            let found = utility.of(&DRAWN);
            for (text, found) in DRAWN.iter().zip(&found) {
                assert!((found - mean(score, text)).abs() < 1e-9, "{utility:?} {text}: {found}");
            }
            assert!(found[0] == found[3] && found[0] > found[2] && found[2] > found[1], "{found:?}");
        }
        assert!(Utility::Chrf.of(&[]).is_empty());
    }

    #[test]
    fn the_translation_most_like_all_others_is_the_best() {
        let candidate = |text: &&str| Candidate { text: (*text).to_owned(), score: -1.0, ..Candidate::default() };
        let blank = Translation { n_best: Vec::new(), source_cut: false, parts: Vec::new(), later_prefix: Vec::new() };
        let drawn = Translation { n_best: DRAWN.iter().map(candidate).collect(), ..blank };
        for (keep, want) in [(1, &[0][..]), (3, &[0, 2, 4]), (9, &[0, 2, 4, 1])] {
            let mut translation = drawn.clone();
            Mbr { utility: Utility::Chrf, keep }.choose(&mut translation);
            let texts: Vec<&str> = translation.n_best.iter().map(|candidate| &*candidate.text).collect();
            let want: Vec<&str> = want.iter().map(|number| DRAWN[*number]).collect();
            assert_eq!(texts, want);
            assert!(translation.n_best.is_sorted_by(|a, b| a.score >= b.score));
        }
    }
}
