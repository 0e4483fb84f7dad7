//! Tests of the search against enumeration and against a plain search without batches, back-pointers or early stops.

use std::collections::HashSet;

use proptest::prelude::*;

use super::toy::{END, Language, Toy};
use super::{Continuation, Hypothesis, MAX_BEAM, Rows, SearchOptions, StepModel, beam, greedy, penalty, search};
use crate::error::Result;

fn options(beam: usize, length_penalty: f64, max_lengths: &[usize]) -> SearchOptions {
    SearchOptions { beam, length_penalty, max_lengths: max_lengths.to_vec() }
}

fn hypothesis(tokens: &[u32], log_prob: f64, alpha: f64, finished: bool) -> Hypothesis {
    let score = penalty::score(log_prob, tokens.len() + usize::from(finished), alpha);
    Hypothesis { tokens: tokens.to_vec(), log_prob, score, finished }
}

/// Every hypothesis there is, in no order.
fn enumerate(language: &Language, key: u64, max_length: usize, alpha: f64) -> Vec<Hypothesis> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), 0.0)];
    while let Some((prefix, log_prob)) = open.pop() {
        if prefix.len() == max_length {
            found.push(hypothesis(&prefix, log_prob, alpha, false));
            continue;
        }
        for next in language.after(key, &prefix) {
            let log_prob = log_prob + f64::from(next.log_prob);
            if next.token == END {
                found.push(hypothesis(&prefix, log_prob, alpha, true));
            } else {
                open.push(([&prefix[..], &[next.token]].concat(), log_prob));
            }
        }
    }
    found
}

/// Beam search written down as plainly as can be, always run to the maximum length.
fn plain_beam(language: &Language, key: u64, width: usize, max_length: usize, alpha: f64) -> Vec<Hypothesis> {
    let mut live = vec![(Vec::new(), 0.0)];
    let mut all = Vec::new();
    for _ in 0..max_length {
        let mut candidates = Vec::new();
        for (prefix, log_prob) in &live {
            for next in language.after(key, prefix) {
                candidates.push((prefix.clone(), next.token, log_prob + f64::from(next.log_prob)));
            }
        }
        // Stable, and built by rank and then by token: ties keep that order.
        candidates.sort_by(|a, b| b.2.total_cmp(&a.2));
        live.clear();
        for (prefix, token, log_prob) in candidates {
            if live.len() == width {
                break;
            } else if token == END {
                all.push(hypothesis(&prefix, log_prob, alpha, true));
            } else {
                live.push(([prefix, vec![token]].concat(), log_prob));
            }
        }
    }
    all.extend(live.iter().map(|(tokens, log_prob)| hypothesis(tokens, *log_prob, alpha, false)));
    all.sort_by(|a, b| b.score.total_cmp(&a.score));
    all.truncate(width);
    all
}

/// The most probable token, again and again.
fn plain_greedy(language: &Language, key: u64, max_length: usize, alpha: f64) -> Hypothesis {
    let (mut tokens, mut sum) = (Vec::new(), 0.0);
    while tokens.len() < max_length {
        let next = language.after(key, &tokens);
        let best = next.iter().rev().max_by(|a, b| a.log_prob.total_cmp(&b.log_prob)).unwrap();
        sum += f64::from(best.log_prob);
        if best.token == END {
            return hypothesis(&tokens, sum, alpha, true);
        }
        tokens.push(best.token);
    }
    hypothesis(&tokens, sum, alpha, false)
}

fn languages() -> impl Strategy<Value = Language> {
    (any::<u64>(), 1..7u32, -2.0..4.0f64, any::<bool>()).prop_map(|(seed, words, end_bias, coarse)| Language {
        seed,
        words,
        end_bias,
        coarse,
    })
}

fn alphas() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(0.6), Just(1.0), -0.5..2.0f64]
}

/// Sentences: the key that stands for the content, and the maximum length.
fn sentences() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..1000u64, 0..9usize), 1..9)
}

#[test]
fn a_beam_that_holds_everything_finds_what_enumeration_finds() {
    for seed in 0..8 {
        let language = Language { seed, words: 3, end_bias: 0.5, coarse: false };
        for alpha in [0.0, 0.6, 1.0] {
            let mut expected = enumerate(&language, 7, 4, alpha);
            expected.sort_by(|a, b| b.score.total_cmp(&a.score));
            assert_eq!(expected.len(), 1 + 3 + 9 + 27 + 81);
            let found = search(&mut Toy::new(&language, &[7]), &options(130, alpha, &[4])).unwrap();
            assert_eq!(found, [expected], "seed {seed}, alpha {alpha}");
        }
    }
}

proptest! {
    /// Batching, back-pointers, the limit of k continuations and early stopping change nothing.
    #[test]
    fn beam_search_equals_the_plain_one(language in languages(), sentences in sentences(), width in 2..8usize, alpha in alphas()) {
        let (keys, lengths): (Vec<u64>, Vec<usize>) = sentences.iter().copied().unzip();
        let found = search(&mut Toy::new(&language, &keys), &options(width, alpha, &lengths)).unwrap();
        prop_assert_eq!(found.len(), keys.len());
        for (&(key, length), found) in sentences.iter().zip(found) {
            prop_assert_eq!(found, plain_beam(&language, key, width, length, alpha));
        }
    }

    #[test]
    fn a_batch_gives_what_each_sentence_gives_alone(language in languages(), sentences in sentences(), width in 1..8usize, alpha in alphas()) {
        let (keys, lengths): (Vec<u64>, Vec<usize>) = sentences.iter().copied().unzip();
        let together = search(&mut Toy::new(&language, &keys), &options(width, alpha, &lengths)).unwrap();
        for (&(key, length), together) in sentences.iter().zip(together) {
            let alone = search(&mut Toy::new(&language, &[key]), &options(width, alpha, &[length])).unwrap();
            prop_assert_eq!(alone, vec![together]);
        }
    }

    #[test]
    fn a_beam_of_one_is_greedy(language in languages(), sentences in sentences(), alpha in alphas()) {
        let (keys, lengths): (Vec<u64>, Vec<usize>) = sentences.iter().copied().unzip();
        let found = search(&mut Toy::new(&language, &keys), &options(1, alpha, &lengths)).unwrap();
        for (&(key, length), found) in sentences.iter().zip(&found) {
            prop_assert_eq!(found, &[plain_greedy(&language, key, length, alpha)]);
        }
        // With no penalty an end that comes first cannot be beaten, so the beam's own code comes to the same.
        let plain = options(1, 0.0, &lengths);
        let by_beam = beam::search(&mut Toy::new(&language, &keys), &plain).unwrap();
        prop_assert_eq!(by_beam, greedy::search(&mut Toy::new(&language, &keys), &plain).unwrap());
    }

    #[test]
    fn hypotheses_are_sorted_distinct_within_length_and_rightly_scored(
        language in languages(), sentences in sentences(), width in 1..8usize, alpha in alphas()
    ) {
        let (keys, lengths): (Vec<u64>, Vec<usize>) = sentences.iter().copied().unzip();
        let found = search(&mut Toy::new(&language, &keys), &options(width, alpha, &lengths)).unwrap();
        for (&(key, max_length), n_best) in sentences.iter().zip(&found) {
            prop_assert!((1..=width).contains(&n_best.len()));
            prop_assert!(n_best.is_sorted_by(|a, b| a.score >= b.score));
            let distinct: HashSet<_> = n_best.iter().map(|h| &h.tokens).collect();
            prop_assert_eq!(distinct.len(), n_best.len());
            for Hypothesis { tokens, log_prob, score, finished } in n_best {
                let length = tokens.len() + usize::from(*finished);
                let fits = if *finished { length <= max_length } else { length == max_length };
                prop_assert!(fits, "{} tokens, finished: {}", length, finished);
                let last = finished.then_some(END);
                let sum: f64 = tokens.iter().copied().chain(last).enumerate().map(|(i, token)| {
                    let next = language.after(key, &tokens[..i]);
                    f64::from(next.iter().find(|c| c.token == token).unwrap().log_prob)
                }).sum();
                // The same additions in the same order: equal to the last bit.
                prop_assert_eq!(*log_prob, sum);
                prop_assert_eq!(*score, sum / ((5.0 + length as f64) / 6.0).powf(alpha));
            }
        }
    }
}

#[test]
fn rows_leave_the_batch_and_the_search_stops_early() {
    let language = Language { seed: 3, words: 6, end_bias: 2.0, coarse: false };
    let keys: Vec<u64> = (0..16).collect();
    for (width, alpha) in [(1, 0.6), (4, 0.0), (4, 0.6)] {
        let mut toy = Toy::new(&language, &keys);
        search(&mut toy, &options(width, alpha, &[100; 16])).unwrap();
        let counts = &toy.row_counts;
        assert!(counts.len() < 100, "stopped after {} steps", counts.len());
        assert_eq!(counts[0], 16);
        assert!(counts.iter().all(|&rows| rows <= 16 * width));
        assert!(counts.last() < Some(&16), "{counts:?}");
    }
}

#[test]
fn short_limits() {
    let language = Language { seed: 1, words: 5, end_bias: -50.0, coarse: false };
    for width in [1, 4] {
        let mut toy = Toy::new(&language, &[1, 2, 3]);
        let found = search(&mut toy, &options(width, 0.6, &[0, 1, 3])).unwrap();
        let shape: Vec<(usize, bool)> =
            found.iter().map(|n_best| (n_best[0].tokens.len(), n_best[0].finished)).collect();
        assert_eq!(shape, [(0, false), (1, false), (3, false)]);
        assert_eq!(toy.row_counts[0], 2, "no row for a sentence of no length");
        assert_eq!((found[0].len(), found[0][0].score), (1, 0.0));
        // Nothing to do: the model is not called.
        let mut toy = Toy::new(&language, &[]);
        assert_eq!(search(&mut toy, &options(width, 0.6, &[])).unwrap(), Vec::<Vec<Hypothesis>>::new());
        assert!(toy.row_counts.is_empty());
    }
}

/// Gives each row of a step the same answer.
struct Fixed {
    answers: Vec<Vec<Continuation>>,
    row_counts: Vec<usize>,
}

fn fixed(answers: Vec<Vec<Continuation>>) -> Fixed {
    Fixed { answers, row_counts: Vec::new() }
}

impl StepModel for Fixed {
    fn sentences(&self) -> usize {
        1
    }
    fn start_token(&self) -> u32 {
        1
    }
    fn end_token(&self) -> u32 {
        END
    }
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        self.row_counts.push(rows.len());
        for answer in best.chunks_exact_mut(k) {
            answer
                .iter_mut()
                .zip(&self.answers[rows.position])
                .for_each(|(place, continuation)| *place = *continuation);
        }
        Ok(())
    }
}

fn continuation(token: u32, log_prob: f32) -> Continuation {
    Continuation { token, log_prob }
}

#[test]
fn ends_do_not_starve_the_beam() {
    // By hand, W = 2. Step 1: `</s>` -0.1, 4: -3, 5: -4; both words stay although an end is ahead of them.
    // Step 2: `4 </s>` -3.5, `5 </s>` -4.5, then `4 4` -6 and `5 4` -7 fill the beam. Step 3 cuts `4 4 4` -7, `5 4 4` -8.
    let answers = vec![
        vec![continuation(END, -0.1), continuation(4, -3.0), continuation(5, -4.0)],
        vec![continuation(END, -0.5), continuation(4, -3.0), continuation(5, -9.0)],
        vec![continuation(4, -1.0)],
    ];
    // With no penalty nothing live can reach -3.5 after step 2. With a strong one (1, 3.4 and 10 for the three lengths)
    // `4 4 4`, though cut, passes `4 </s>`: it is judged by its score alone.
    let second_best = [(0.0, vec![4], true, vec![1, 2]), (8.0, vec![4, 4, 4], false, vec![1, 2, 2])];
    for (alpha, tokens, finished, row_counts) in second_best {
        let mut model = fixed(answers.clone());
        let found = search(&mut model, &options(2, alpha, &[3])).unwrap().remove(0);
        let found: Vec<_> = found.into_iter().map(|h| (h.tokens, h.finished)).collect();
        assert_eq!(found, [(vec![], true), (tokens, finished)]);
        assert_eq!(model.row_counts, row_counts);
    }
}

#[test]
fn a_dead_end_still_gives_a_hypothesis() {
    for width in [1, 3] {
        let mut model = fixed(vec![vec![continuation(4, -1.0)], vec![]]);
        let found = search(&mut model, &options(width, 0.6, &[5])).unwrap();
        assert_eq!(found, [[hypothesis(&[4], -1.0, 0.6, false)]]);
    }
}

#[test]
fn a_rounding_error_above_zero_counts_as_zero() {
    for width in [1, 3] {
        let mut model = fixed(vec![vec![continuation(4, 1e-7)], vec![continuation(END, 1e-7)]]);
        let found = search(&mut model, &options(width, 0.6, &[5])).unwrap();
        assert_eq!((found[0][0].log_prob, found[0][0].finished), (0.0, true));
    }
}

#[test]
fn wrong_input_is_refused() {
    let language = Language { seed: 1, words: 2, end_bias: 0.0, coarse: false };
    let code = |options| search(&mut Toy::new(&language, &[1]), &options).unwrap_err().exit_code();
    assert_eq!(code(options(0, 0.6, &[3])), 2);
    assert_eq!(code(options(MAX_BEAM + 1, 0.6, &[3])), 2);
    assert_eq!(code(options(4, f64::NAN, &[3])), 2);
    assert_eq!(code(options(4, 0.6, &[3, 3])), 1);
    for (width, bad) in [(1, f32::NAN), (3, f32::NAN), (3, f32::INFINITY)] {
        let error = search(&mut fixed(vec![vec![continuation(4, bad)]]), &options(width, 0.6, &[5])).unwrap_err();
        assert_eq!(error.what(), "the model's output is not a number");
    }
}
