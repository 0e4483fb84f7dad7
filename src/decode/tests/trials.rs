//! Several beam searches in one.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::{SearchOptions, Strategy as Search, Trials};
use super::{penalties, problems, run};

proptest! {
    /// One search of a width gives for each penalty what a search with this penalty alone puts first.
    #[test]
    fn trials_give_what_each_search_gives(
        (language, mut options) in problems(),
        widths in prop::collection::vec(1..6usize, 1..4),
        penalties in prop::collection::vec(penalties(), 1..6),
    ) {
        let trials = Trials { widths, penalties };
        options.strategy = Search::Trials(Arc::new(trials.clone()));
        let found = run(&language, &options);
        let mut expected = vec![Vec::new(); options.sentences.len()];
        for &width in &trials.widths {
            for &length_penalty in &trials.penalties {
                let alone = SearchOptions { strategy: Search::Beam { width }, length_penalty, ..options.clone() };
                let best = run(&language, &alone).into_iter().map(|mut n_best| n_best.swap_remove(0));
                expected.iter_mut().zip(best).for_each(|(all, best)| all.push(best));
            }
        }
        prop_assert_eq!(found, expected);
    }
}
