//! Tests of the search against enumeration and against plain searches without batches, back-pointers or early stops.

mod constrained;
mod plain;
mod trials;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use plain::{Plain, hypothesis, written};

use super::toy::{END, Language, Toy};
use super::{
    Characters, Continuation, Demands, Ending, Hypothesis, LengthPenalty, MAX_BEAM, PenaltyKind, Prediction, Rows,
    Sampling, SearchOptions, Sentence, StepModel, Strategy as Search, beam, force, greedy, predict, search,
};
use crate::error::Result;

fn gnmt(alpha: f64) -> LengthPenalty {
    LengthPenalty { kind: PenaltyKind::Gnmt, alpha }
}

fn options(strategy: Search, length_penalty: LengthPenalty, sentences: Vec<Sentence>) -> SearchOptions {
    let characters = Arc::new(Characters::new((4..11).map(|token| (token, written(token)))));
    SearchOptions { strategy, length_penalty, patience: 0.0, no_repeat_ngram: 0, characters, sentences }
}

fn beam_options(width: usize, alpha: f64, max_lengths: &[usize]) -> SearchOptions {
    SearchOptions::beam(width, gnmt(alpha), max_lengths.iter().copied())
}

/// Every possible hypothesis, in no particular order.
fn enumerate(language: &Language, key: u64, max_length: usize, penalty: LengthPenalty) -> Vec<Hypothesis> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), Vec::new())];
    while let Some((prefix, steps)) = open.pop() {
        if prefix.len() == max_length {
            found.push(hypothesis(&prefix, &steps, penalty, Ending::MaxLength));
            continue;
        }
        for next in language.after(key, &prefix) {
            let steps = [&steps[..], &[next.log_prob]].concat();
            if next.token == END {
                found.push(hypothesis(&prefix, &steps, penalty, Ending::End));
            } else {
                open.push(([&prefix[..], &[next.token]].concat(), steps));
            }
        }
    }
    found
}

fn languages() -> impl Strategy<Value = Language> {
    (any::<u64>(), 1..7u32, -2.0..4.0f64, any::<bool>()).prop_map(|(seed, words, end_bias, coarse)| Language {
        seed,
        words,
        end_bias,
        coarse,
    })
}

fn penalties() -> impl Strategy<Value = LengthPenalty> {
    let kinds = prop_oneof![Just(PenaltyKind::Gnmt), Just(PenaltyKind::Power), Just(PenaltyKind::Average)];
    let alphas = prop_oneof![Just(0.0), Just(0.6), Just(1.0), -0.5..2.0f64];
    (kinds, alphas).prop_map(|(kind, alpha)| LengthPenalty { kind, alpha })
}

/// Sentences: half are free, half have a minimum length and a given beginning.
fn sentences() -> impl Strategy<Value = Vec<Sentence>> {
    let prefix = prop::collection::vec(4..7u32, 0..4);
    let sentence = (any::<bool>(), 0..6usize, 0..9usize, prefix, 0..1000u64);
    let sentence = sentence.prop_map(|(free, min_length, max_length, prefix, key)| {
        if free {
            Sentence { max_length, key, ..Sentence::default() }
        } else {
            Sentence { min_length, max_length, demands: Demands { prefix, ..Demands::default() }, key }
        }
    });
    prop::collection::vec(sentence, 1..9)
}

fn problems() -> impl Strategy<Value = (Language, SearchOptions)> {
    let ngram = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    let patience = prop_oneof![2 => Just(0.0), 2 => Just(1.0), 1 => 0.1..3.0f64];
    let parts = (languages(), penalties(), ngram, patience, sentences());
    parts.prop_map(|(language, penalty, no_repeat_ngram, patience, sentences)| {
        let options = options(Search::Beam { width: 1 }, penalty, sentences);
        (language, SearchOptions { no_repeat_ngram, patience, ..options })
    })
}

fn strategies() -> impl Strategy<Value = Search> {
    prop_oneof![
        (1..8usize).prop_map(|width| Search::Beam { width }),
        (1..4usize, 1..4usize, 0.0..3.0f64).prop_map(|(groups, width, penalty)| Search::Diverse {
            width: groups * width,
            groups,
            penalty
        }),
        (1..4usize, 0.3..3.0f64, 0..4usize, 0.1..1.0f64, any::<u64>()).prop_map(
            |(count, temperature, top_k, p, seed)| {
                let top_p = if p > 0.8 { 1.0 } else { p };
                Search::Sample(Sampling { count, temperature, top_k, top_p, seed })
            }
        ),
    ]
}

fn run(language: &Language, options: &SearchOptions) -> Vec<Vec<Hypothesis>> {
    let keys: Vec<u64> = options.sentences.iter().map(|sentence| sentence.key).collect();
    let found = search(&mut Toy::new(language, &keys), options).unwrap();
    assert_eq!(found.len(), keys.len());
    found
}

#[test]
fn a_beam_that_holds_everything_finds_what_enumeration_finds() {
    for seed in 0..8 {
        let language = Language { seed, words: 3, end_bias: 0.5, coarse: false };
        for kind in [PenaltyKind::Gnmt, PenaltyKind::Power, PenaltyKind::Average] {
            for alpha in [0.0, 0.6, 1.0] {
                let penalty = LengthPenalty { kind, alpha };
                let mut expected = enumerate(&language, 7, 4, penalty);
                expected.sort_by(|a, b| b.score.total_cmp(&a.score));
                assert_eq!(expected.len(), 1 + 3 + 9 + 27 + 81);
                let sentence = Sentence { max_length: 4, key: 7, ..Sentence::default() };
                let found = run(&language, &options(Search::Beam { width: 130 }, penalty, vec![sentence]));
                assert_eq!(found, [expected], "seed {seed}, {penalty:?}");
            }
        }
    }
}

proptest! {
    /// Batching, back-pointers, the limit of k continuations and early stopping change nothing.
    #[test]
    fn beam_search_equals_the_plain_one((language, mut options) in problems(), width in 2..8usize) {
        options.strategy = Search::Beam { width };
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: &[] };
            prop_assert_eq!(found, plain.beam(1, width, 0.0));
        }
    }

    /// The hypotheses of a search score the same in forced decoding.
    #[test]
    fn forced_scores_are_those_of_the_search((language, options) in problems()) {
        let found = run(&language, &options);
        let targets: Vec<&[u32]> = found.iter().map(|n_best| n_best[0].tokens.as_slice()).collect();
        let keys: Vec<u64> = options.sentences.iter().map(|sentence| sentence.key).collect();
        let forced = force(&mut Toy::new(&language, &keys), &targets).unwrap();
        for (n_best, forced) in found.iter().zip(&forced) {
            prop_assert_eq!(forced.len(), n_best[0].tokens.len() + 1);
            let log_probs = &n_best[0].token_log_probs;
            prop_assert_eq!(&forced[..log_probs.len()], &log_probs[..]);
        }
    }

    /// A token that the model would have chosen is one that no other is more probable than.
    #[test]
    fn predictions_compare_each_token_with_all_others(
        language in languages(),
        targets in prop::collection::vec(prop::collection::vec(0..7u32, 0..5), 1..5),
    ) {
        let words = |target: &Vec<u32>| target.iter().map(|word| 4 + word % language.words).collect();
        let targets: Vec<Vec<u32>> = targets.iter().map(words).collect();
        let keys: Vec<u64> = (0..targets.len() as u64).collect();
        let slices: Vec<&[u32]> = targets.iter().map(Vec::as_slice).collect();
        let predicted = predict(&mut Toy::new(&language, &keys), &slices).unwrap();
        for ((target, key), predicted) in targets.iter().zip(keys).zip(predicted) {
            let (mut first, mut log_prob) = (0, 0.0);
            for (position, token) in target.iter().chain([&END]).enumerate() {
                let all = language.after(key, &target[..position]);
                let own = all.iter().find(|continuation| continuation.token == *token).unwrap().log_prob;
                first += u64::from(all.iter().all(|continuation| continuation.log_prob <= own));
                log_prob += f64::from(own);
            }
            let tokens = target.len() as u64 + 1;
            prop_assert_eq!(predicted, Prediction { tokens, first, log_prob });
        }
    }

    #[test]
    fn diverse_beam_search_equals_the_plain_one(
        (language, mut options) in problems(), groups in 1..5usize, width in 1..4usize, penalty in 0.0..3.0f64
    ) {
        options.strategy = Search::Diverse { width: groups * width, groups, penalty };
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: &[] };
            prop_assert_eq!(found, plain.beam(groups, width, penalty));
        }
    }

    #[test]
    fn a_batch_gives_what_each_sentence_gives_alone((language, mut options) in problems(), strategy in strategies()) {
        options.strategy = strategy.clone();
        for (sentence, together) in options.sentences.iter().zip(run(&language, &options)) {
            let alone = SearchOptions { sentences: vec![sentence.clone()], ..options.clone() };
            prop_assert_eq!(run(&language, &alone), vec![together]);
        }
    }

    #[test]
    fn a_beam_of_one_is_greedy((language, options) in problems()) {
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: &[] };
            prop_assert_eq!(found, vec![plain.greedy()]);
        }
        // Without a penalty, an end that ranks first cannot be beaten, so the beam's own code gives the same result.
        let plain = SearchOptions { length_penalty: gnmt(0.0), patience: 0.0, ..options };
        let keys: Vec<u64> = plain.sentences.iter().map(|sentence| sentence.key).collect();
        let groups = beam::Groups { count: 1, width: 1, penalty: 0.0 };
        let by_beam = beam::search(&mut Toy::new(&language, &keys), &plain, groups).unwrap();
        prop_assert_eq!(by_beam, greedy::search(&mut Toy::new(&language, &keys), &plain).unwrap());
    }

    #[test]
    fn hypotheses_keep_to_their_constraints_and_are_rightly_scored(
        (language, mut options) in problems(), strategy in strategies()
    ) {
        options.strategy = strategy.clone();
        for (sentence, n_best) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: &[] };
            if let Search::Beam { width } | Search::Diverse { width, .. } = strategy {
                prop_assert!((1..=width).contains(&n_best.len()));
                prop_assert!(n_best.is_sorted_by(|a, b| a.score >= b.score));
                let distinct: HashSet<_> = n_best.iter().map(|h| &h.tokens).collect();
                prop_assert_eq!(distinct.len(), n_best.len());
            }
            for hypothesis in &n_best {
                let Hypothesis { tokens, token_log_probs, ending, .. } = hypothesis;
                prop_assert!(token_log_probs.len() <= sentence.max_length);
                prop_assert!(*ending != Ending::MaxLength || tokens.len() == sentence.max_length);
                prop_assert!(*ending != Ending::Stuck || plain.after(tokens).is_empty());
                let last = (*ending == Ending::End).then_some(END);
                for (i, token) in tokens.iter().copied().chain(last).enumerate() {
                    let is_allowed = plain.after(&tokens[..i]).iter().any(|c| c.token == token);
                    prop_assert!(is_allowed, "token {} is not allowed", i);
                }
                // The same additions in the same order: equal to the last bit.
                prop_assert_eq!(hypothesis, &plain.made(tokens, *ending));
            }
        }
    }
}

/// Pearson's χ² of counts against probabilities, in standard deviations above its mean (which is its degrees of
/// freedom).
fn surprise(counts: &[(f64, f64)], draws: f64) -> f64 {
    let chi_square: f64 =
        counts.iter().map(|(count, probability)| (count - draws * probability).powi(2) / (draws * probability)).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi_square - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn samples_follow_the_distribution_they_claim() {
    const DRAWS: usize = 1000;
    let language = Language { seed: 5, words: 5, end_bias: 0.5, coarse: false };
    let sentence = |key| Sentence { max_length: 3, key, ..Sentence::default() };
    for (temperature, top_k, top_p) in
        [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.7), (1.5, 4, 0.8), (0.7, 2, 0.9)]
    {
        // The probability of everything that can be drawn, from the definition.
        let mut expected: HashMap<Vec<u32>, f64> = HashMap::new();
        let mut open = vec![(Vec::new(), 1.0)];
        while let Some((tokens, probability)) = open.pop() {
            if tokens.len() == 3 || tokens.last() == Some(&END) {
                expected.insert(tokens, probability);
                continue;
            }
            let next = language.after(9, &tokens);
            let mut weights: Vec<(u32, f64)> =
                next.iter().map(|c| (c.token, (f64::from(c.log_prob) / temperature).exp())).collect();
            weights.sort_by(|a, b| b.1.total_cmp(&a.1));
            weights.truncate(if top_k == 0 { usize::MAX } else { top_k });
            let total: f64 = weights.iter().map(|w| w.1).sum();
            let mut sum = 0.0;
            weights.retain(|w| {
                let wanted = sum < top_p * total;
                sum += w.1;
                wanted
            });
            let total: f64 = weights.iter().map(|w| w.1).sum();
            for (token, weight) in weights {
                open.push(([&tokens[..], &[token]].concat(), probability * weight / total));
            }
        }
        let sampling = Sampling { count: DRAWS, temperature, top_k, top_p, seed: 11 };
        let found = run(&language, &options(Search::Sample(sampling), gnmt(0.0), vec![sentence(9)])).remove(0);
        let mut counts: HashMap<Vec<u32>, f64> = HashMap::new();
        for Hypothesis { mut tokens, ending, .. } in found {
            tokens.extend((ending == Ending::End).then_some(END));
            assert!(expected.contains_key(&tokens), "{tokens:?} cannot be drawn: {sampling:?}");
            *counts.entry(tokens).or_default() += 1.0;
        }
        // Rare outcomes are pooled: χ² needs at least five expected of each.
        let (mut table, mut rare) = (Vec::new(), (0.0, 0.0));
        for (tokens, probability) in &expected {
            let count = counts.get(tokens).copied().unwrap_or_default();
            if probability * DRAWS as f64 >= 5.0 {
                table.push((count, *probability));
            } else {
                rare = (rare.0 + count, rare.1 + probability);
            }
        }
        table.extend((rare.1 > 0.0).then_some(rare));
        let surprise = surprise(&table, DRAWS as f64);
        assert!(table.len() > 3 && surprise < 4.0, "{surprise} over {} outcomes: {sampling:?}", table.len());
        // Nor may the fit be too good: draws that are not independent can fit too well.
        assert!(surprise > -4.0, "{surprise}: {sampling:?}");
    }
}

#[test]
fn samples_follow_their_seed() {
    let language = Language { seed: 2, words: 6, end_bias: -3.0, coarse: false };
    let draw = |seed, key| {
        let sampling = Sampling { count: 2, temperature: 1.0, top_k: 0, top_p: 1.0, seed };
        let sentence = Sentence { max_length: 20, key, ..Sentence::default() };
        run(&language, &options(Search::Sample(sampling), gnmt(0.0), vec![sentence])).remove(0)
    };
    assert_eq!(draw(1, 3), draw(1, 3));
    assert_ne!(draw(1, 3)[0], draw(1, 3)[1]);
    assert_ne!(draw(1, 3), draw(2, 3));
}

#[test]
fn rows_leave_the_batch_and_the_search_stops_early() {
    let language = Language { seed: 3, words: 6, end_bias: 2.0, coarse: false };
    let keys: Vec<u64> = (0..16).collect();
    for (width, alpha) in [(1, 0.6), (4, 0.0), (4, 0.6)] {
        let mut toy = Toy::new(&language, &keys);
        search(&mut toy, &beam_options(width, alpha, &[100; 16])).unwrap();
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
        let found = search(&mut toy, &beam_options(width, 0.6, &[0, 1, 3])).unwrap();
        let shape: Vec<(usize, bool)> =
            found.iter().map(|n_best| (n_best[0].tokens.len(), n_best[0].finished())).collect();
        assert_eq!(shape, [(0, false), (1, false), (3, false)]);
        assert_eq!(toy.row_counts[0], 2, "no row for a sentence of no length");
        assert_eq!((found[0].len(), found[0][0].score), (1, 0.0));
        // Nothing to do: the model is not called.
        let mut toy = Toy::new(&language, &[]);
        assert_eq!(search(&mut toy, &beam_options(width, 0.6, &[])).unwrap(), Vec::<Vec<Hypothesis>>::new());
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
    fn forbidden(&self) -> &[u32] {
        &[]
    }
    fn log_probs(&mut self, _: &Rows<'_>, _: &mut Vec<f32>) -> Result<()> {
        unreachable!("only beams are searched here")
    }
    fn step(&mut self, rows: &Rows<'_>, k: usize, best: &mut [Continuation]) -> Result<()> {
        self.row_counts.push(rows.len());
        for answer in best.chunks_exact_mut(k) {
            answer.iter_mut().zip(&self.answers[rows.position]).for_each(|(slot, continuation)| *slot = *continuation);
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
    // Step 2: `4 </s>` -3.5, `5 </s>` -4.5, then `4 4` -6 and `5 4` -7 fill the beam. Step 3 cuts `4 4 4` -7, `5 4 4`
    // -8.
    let answers = vec![
        vec![continuation(END, -0.1), continuation(4, -3.0), continuation(5, -4.0)],
        vec![continuation(END, -0.5), continuation(4, -3.0), continuation(5, -9.0)],
        vec![continuation(4, -1.0)],
    ];
    // Without a penalty nothing live can reach -3.5 after step 2. With a strong one (1, 3.4 and 10 for the three
    // lengths) `4 4 4`, though cut, overtakes `4 </s>`: only its score counts.
    let second_best = [(0.0, vec![4], true, vec![1, 2]), (8.0, vec![4, 4, 4], false, vec![1, 2, 2])];
    for (alpha, tokens, finished, row_counts) in second_best {
        let mut model = fixed(answers.clone());
        let found = search(&mut model, &beam_options(2, alpha, &[3])).unwrap().remove(0);
        let found: Vec<_> = found.into_iter().map(|h| (h.finished(), h.tokens)).collect();
        assert_eq!(found, [(true, vec![]), (finished, tokens)]);
        assert_eq!(model.row_counts, row_counts);
    }
}

/// `transformers` and CTranslate2 do the same: at the last step, having enough finished hypotheses does not exclude the
/// cut ones.
#[test]
fn what_is_cut_competes_with_what_ends_at_the_same_step() {
    // By hand, W = 2, scores by length. Step 1: `4` -1, `</s>` -1.2, `5` -1.5. Step 2, the last: `4 4` -1.1, `4 </s>`
    // -1.2. The second end would stop the search, but `4 4` has the best score, -0.55, before `4 </s>` -0.6 and
    // `</s>` -1.2.
    let answers = vec![
        vec![continuation(4, -1.0), continuation(END, -1.2), continuation(5, -1.5)],
        vec![continuation(4, -0.1), continuation(END, -0.2)],
    ];
    let penalty = LengthPenalty { kind: PenaltyKind::Power, alpha: 1.0 };
    let options = SearchOptions { patience: 1.0, ..SearchOptions::beam(2, penalty, [2]) };
    let found = search(&mut fixed(answers), &options).unwrap().remove(0);
    let found: Vec<_> = found.into_iter().map(|h| (h.tokens.clone(), h.finished())).collect();
    assert_eq!(found, [(vec![4, 4], false), (vec![4], true)]);
}

#[test]
fn a_dead_end_still_gives_a_hypothesis() {
    for width in [1, 3] {
        let mut model = fixed(vec![vec![continuation(4, -1.0)], vec![]]);
        let found = search(&mut model, &beam_options(width, 0.6, &[5])).unwrap();
        assert_eq!(found, [[hypothesis(&[4], &[-1.0], gnmt(0.6), Ending::Stuck)]]);
    }
}

#[test]
fn a_rounding_error_above_zero_counts_as_zero() {
    for (width, step) in [(1, 1e-7), (3, 1e-7), (1, -0.0), (3, -0.0)] {
        let mut model = fixed(vec![vec![continuation(4, step)], vec![continuation(END, step)]]);
        let found = search(&mut model, &beam_options(width, 0.6, &[5])).unwrap();
        let Hypothesis { log_prob, score, token_log_probs, .. } = &found[0][0];
        assert_eq!((*log_prob, found[0][0].finished()), (0.0, true));
        // Printed without a sign.
        assert!(log_prob.is_sign_positive() && score.is_sign_positive());
        assert!(token_log_probs.iter().all(|step| step.is_sign_positive()));
    }
}

#[test]
fn wrong_input_is_refused() {
    let language = Language { seed: 1, words: 2, end_bias: 0.0, coarse: false };
    let code = |options| search(&mut Toy::new(&language, &[1]), &options).unwrap_err().exit_code();
    assert_eq!(code(beam_options(0, 0.6, &[3])), 2);
    assert_eq!(code(beam_options(MAX_BEAM + 1, 0.6, &[3])), 2);
    assert_eq!(code(beam_options(4, f64::NAN, &[3])), 2);
    assert_eq!(code(beam_options(4, 0.6, &[3, 3])), 1);
    let strategy = |strategy| code(SearchOptions { strategy, ..beam_options(1, 0.6, &[3]) });
    assert_eq!(strategy(Search::Diverse { width: 4, groups: 3, penalty: 0.5 }), 2);
    assert_eq!(strategy(Search::Diverse { width: 4, groups: 0, penalty: 0.5 }), 2);
    assert_eq!(strategy(Search::Diverse { width: 4, groups: 2, penalty: -0.5 }), 2);
    let sampling = Sampling { count: 1, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };
    for wrong in [
        Sampling { count: 0, ..sampling },
        Sampling { temperature: 0.0, ..sampling },
        Sampling { temperature: f64::INFINITY, ..sampling },
        Sampling { top_p: 0.0, ..sampling },
        Sampling { top_p: 1.5, ..sampling },
    ] {
        assert_eq!(strategy(Search::Sample(wrong)), 2, "{wrong:?}");
    }
    for (width, bad) in [(1, f32::NAN), (3, f32::NAN), (3, f32::INFINITY)] {
        let error = search(&mut fixed(vec![vec![continuation(4, bad)]]), &beam_options(width, 0.6, &[5])).unwrap_err();
        assert_eq!(error.what(), "the model's output is not a number");
    }
}
