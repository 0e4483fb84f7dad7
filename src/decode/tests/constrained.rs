//! Searches for hypotheses that contain given phrases, or that do not.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::toy::{END, Language, Toy};
use super::super::{
    Avoid, Avoided, Demands, Ending, Hypothesis, LengthPenalty, PenaltyKind, Phrases, Sampling, SearchOptions,
    Sentence, Strategy as Search, Surfaces, grid, search,
};
use super::plain::{Forms, Plain, text, tokens_found, written};
use super::{enumerate, options, problems, run, strategies};

/// What the tokens of a language write.
fn surfaces() -> Arc<Surfaces> {
    Arc::new(Surfaces::new((0..12).map(|token| if token < 4 { Vec::new() } else { written(token) })))
}

/// Whether a word goes on from one token to the next.
fn joins(first: u32, next: u32) -> bool {
    surfaces().joins(first, next)
}

/// Up to three phrases, each of one or two forms.
fn phrases() -> impl Strategy<Value = Vec<Forms>> {
    let form = prop::collection::vec(4..8u32, 1..4);
    prop::collection::vec(prop::collection::vec(form, 1..3), 0..4)
}

fn demanding(options: SearchOptions, phrases: &[Forms], surfaces: &Arc<Surfaces>) -> SearchOptions {
    let must = Some(Arc::new(Phrases::new(phrases.to_vec(), surfaces)));
    let demanding = |sentence: Sentence| {
        let demands = Demands { must: must.clone(), ..sentence.demands };
        Sentence { demands, ..sentence }
    };
    SearchOptions { sentences: options.sentences.into_iter().map(demanding).collect(), ..options }
}

fn all_tokens(phrases: &[Forms]) -> usize {
    phrases.iter().map(|forms| forms.iter().map(Vec::len).max().unwrap()).sum()
}

proptest! {
    /// The automaton, the limit of continuations, batching and early stops change nothing.
    #[test]
    fn grid_beam_search_equals_the_plain_one(
        (language, problem) in problems(), phrases in phrases(), width in 1..5usize,
    ) {
        let mut options = demanding(problem, &phrases, &surfaces());
        options.strategy = Search::Beam { width };
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: &[] };
            prop_assert_eq!(found, plain.grid(&phrases, width, &joins));
        }
    }

    #[test]
    fn without_phrases_it_is_beam_search((language, mut options) in problems(), width in 2..6usize) {
        options.strategy = Search::Beam { width };
        let keys: Vec<u64> = options.sentences.iter().map(|sentence| sentence.key).collect();
        let found = grid::search(&mut Toy::new(&language, &keys), &options, width).unwrap();
        prop_assert_eq!(found, run(&language, &options));
    }

    #[test]
    fn a_batch_gives_what_each_constrained_sentence_gives_alone(
        (language, problem) in problems(), phrases in phrases(), width in 1..5usize
    ) {
        let options = SearchOptions { strategy: Search::Beam { width }, ..demanding(problem, &phrases, &surfaces()) };
        for (sentence, together) in options.sentences.iter().zip(run(&language, &options)) {
            let alone = SearchOptions { sentences: vec![sentence.clone()], ..options.clone() };
            prop_assert_eq!(run(&language, &alone), vec![together]);
        }
    }

    /// Wherever there is room for the phrases, they are there, however narrow the beam is.
    #[test]
    fn phrases_are_found_wherever_there_is_room(
        seed in any::<u64>(), coarse in any::<bool>(), phrases in phrases(), width in 1..4usize, patience in 0..3u32
    ) {
        let language = Language { seed, words: 4, end_bias: 1.0, coarse };
        let sentence = Sentence { max_length: all_tokens(&phrases) + 2, key: 5, ..Sentence::default() };
        let options = options(Search::Beam { width }, super::gnmt(0.6), vec![sentence]);
        // No word goes on: nothing has to stand between two phrases.
        let options = SearchOptions { patience: f64::from(patience), ..demanding(options, &phrases, &Arc::default()) };
        let found = run(&language, &options).remove(0);
        prop_assert!(!found.is_empty());
        for Hypothesis { tokens, .. } in &found {
            let found = tokens_found(&phrases, tokens, &|_, _| false);
            prop_assert_eq!(found, all_tokens(&phrases), "{:?} in {:?}", phrases, tokens);
        }
    }

    /// Also if the phrases repeat n-grams that must not repeat elsewhere, and other tokens must not follow at all.
    #[test]
    fn phrases_may_repeat_what_nothing_else_may(
        seed in any::<u64>(), phrases in phrases(), width in 1..4usize, n in 1..3usize,
    ) {
        // Behind the tokens to avoid.
        let later = |forms: Forms| forms.into_iter().map(|form| form.into_iter().map(|token| token + 4).collect());
        let phrases: Vec<Forms> = phrases.into_iter().map(|forms| later(forms).collect()).collect();
        let texts = (0..44).map(|token| format!(" word{token}").into_bytes());
        let texts = Arc::new(Surfaces::new(texts));
        let avoided = ["word4", "word5"].map(|phrase| Arc::new(Avoided::new(phrase, &texts)));
        let avoid = Some(Arc::new(Avoid::new(avoided.to_vec(), &texts, false)));
        let demands = Demands { avoid, ..Demands::default() };
        let language = Language { seed, words: 40, end_bias: 1.0, coarse: false };
        let sentence = Sentence { max_length: all_tokens(&phrases) + 2, key: 5, demands, ..Sentence::default() };
        let options = options(Search::Beam { width }, super::gnmt(0.6), vec![sentence]);
        let options = SearchOptions { no_repeat_ngram: n, ..demanding(options, &phrases, &Arc::default()) };
        for Hypothesis { tokens, .. } in run(&language, &options).remove(0) {
            prop_assert!(!tokens.contains(&4) && !tokens.contains(&5), "{:?}", tokens);
            let found = tokens_found(&phrases, &tokens, &|_, _| false);
            prop_assert_eq!(found, all_tokens(&phrases), "{:?} in {:?}", phrases, tokens);
        }
    }

    /// The search excludes exactly the hypotheses that a look at each whole text would exclude.
    #[test]
    fn searches_with_phrases_to_avoid_equal_the_plain_ones(
        (_, mut options) in problems(), seed in any::<u64>(), width in 1..5usize, strategy in strategies()
    ) {
        let language = Language { seed, words: 7, end_bias: 0.0, coarse: false };
        let avoided = ["w4", "w4x,", "w9, w4", ","];
        let avoided = &avoided[(seed % 2) as usize..1 + (seed % 4) as usize];
        let surfaces = Arc::new(Surfaces::new((0..11).map(|token| text(token).as_bytes().to_vec())));
        let phrases = avoided.iter().map(|phrase| Arc::new(Avoided::new(phrase, &surfaces))).collect();
        let avoid = Arc::new(Avoid::new(phrases, &surfaces, false));
        for sentence in &mut options.sentences {
            sentence.demands.avoid = Some(avoid.clone());
        }
        options.strategy = Search::Beam { width };
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: avoided };
            let expected = if width == 1 { vec![plain.greedy()] } else { plain.beam(1, width, 0.0) };
            prop_assert_eq!(found, expected);
        }
        options.strategy = strategy.clone();
        for (sentence, found) in options.sentences.iter().zip(run(&language, &options)) {
            let plain = Plain { language: &language, options: &options, sentence, avoid: avoided };
            for Hypothesis { tokens, ending, .. } in found {
                let last = (ending == Ending::End).then_some(END);
                for (i, token) in tokens.iter().copied().chain(last).enumerate() {
                    prop_assert!(plain.after(&tokens[..i]).iter().any(|next| next.token == token));
                }
            }
        }
    }
}

/// A grid that holds everything finds what enumeration finds: all hypotheses with the phrases, and no other.
#[test]
fn a_grid_that_holds_everything_finds_what_enumeration_finds() {
    let problems: [&[Forms]; 6] = [
        &[vec![vec![4]]],
        &[vec![vec![4, 6]]],
        &[vec![vec![4, 4]], vec![vec![4]]],
        &[vec![vec![5]], vec![vec![4, 6]]],
        &[vec![vec![6, 4, 4], vec![5]]],
        &[vec![vec![4]], vec![vec![4]]],
    ];
    for (seed, phrases) in (0..).zip(problems) {
        let language = Language { seed, words: 3, end_bias: 0.5, coarse: false };
        for alpha in [0.0, 1.0] {
            let penalty = LengthPenalty { kind: PenaltyKind::Power, alpha };
            let mut expected = enumerate(&language, 7, 5, penalty);
            expected.retain(|hypothesis| tokens_found(phrases, &hypothesis.tokens, &joins) == all_tokens(phrases));
            expected.sort_by(|a, b| b.score.total_cmp(&a.score));
            assert!(expected.len() > 5, "{phrases:?}");
            let sentence = Sentence { max_length: 5, key: 7, ..Sentence::default() };
            // 364 hypotheses in all; of each beam, at most 512 rows divided by the number of beams.
            let options =
                demanding(options(Search::Beam { width: 500 }, penalty, vec![sentence]), phrases, &surfaces());
            let found = run(&language, &options).remove(0);
            let tokens = |all: &[Hypothesis]| all.iter().map(|one| one.tokens.clone()).collect::<Vec<_>>();
            // Narrower beams may lose some of the worst.
            let best = 20.min(expected.len());
            assert_eq!(tokens(&found)[..best], tokens(&expected)[..best], "{phrases:?}");
            assert_eq!(found[..best], expected[..best], "{phrases:?}");
        }
    }
}

#[test]
fn phrases_need_a_beam() {
    let language = Language { seed: 1, words: 3, end_bias: 0.0, coarse: false };
    let sentence = Sentence { max_length: 5, ..Sentence::default() };
    let sampling = Sampling { count: 1, temperature: 1.0, top_k: 0, top_p: 1.0, seed: 1 };
    for strategy in [Search::Sample(sampling), Search::Diverse { width: 2, groups: 2, penalty: 0.5 }] {
        let options =
            demanding(options(strategy, super::gnmt(0.0), vec![sentence.clone()]), &[vec![vec![4]]], &surfaces());
        let error = search(&mut Toy::new(&language, &[1]), &options).unwrap_err();
        assert!(error.exit_code() == 2 && error.what().contains("need beam search"), "{error}");
    }
}
