//! Clipped n-gram matches of one line against its references.

use std::collections::HashMap;

/// The longest n-gram that BLEU counts.
pub(super) const MAX_ORDER: usize = 4;

/// A word's number within one line; [`UNSEEN`] for a hypothesis word that no reference of the line has.
type WordId = u32;
const UNSEEN: WordId = 0;

/// Clipped matches by order: for every distinct n-gram of the hypothesis, its count there or the largest count in any
/// one reference, whichever is less (Papineni et al. 2002, section 2.1.1).
pub(super) fn clipped_matches(hypothesis: &[&str], references: &[Vec<&str>]) -> [u64; MAX_ORDER] {
    let mut ids = HashMap::new();
    let references: Vec<Vec<WordId>> = references
        .iter()
        .map(|words| {
            let intern = |&word| {
                let next = ids.len() as WordId + 1;
                *ids.entry(word).or_insert(next)
            };
            words.iter().map(intern).collect()
        })
        .collect();
    let hypothesis: Vec<WordId> = hypothesis.iter().map(|word| ids.get(word).copied().unwrap_or(UNSEEN)).collect();
    std::array::from_fn(|order| matches_of_order(&hypothesis, &references, order + 1))
}

/// Clipped matches of n-grams of `order` words.
fn matches_of_order(hypothesis: &[WordId], references: &[Vec<WordId>], order: usize) -> u64 {
    let hypothesis = counts(hypothesis, order);
    if hypothesis.is_empty() {
        return 0;
    }
    let mut largest = vec![0u64; hypothesis.len()];
    for reference in references {
        let reference = counts(reference, order);
        let mut candidates = reference.iter().peekable();
        for ((ngram, _), largest) in hypothesis.iter().zip(&mut largest) {
            while candidates.next_if(|(other, _)| other < ngram).is_some() {}
            if let Some((_, count)) = candidates.next_if(|(other, _)| other == ngram) {
                *largest = (*largest).max(*count);
            }
        }
    }
    hypothesis.iter().zip(largest).map(|((_, count), largest)| largest.min(*count)).sum()
}

/// The distinct n-grams in ascending order with their counts, without those that contain an unseen word (nothing
/// matches them). An n-gram is the sequence of its words' numbers; on short lines, sorting is faster than hashing.
fn counts(words: &[WordId], order: usize) -> Vec<(u128, u64)> {
    let mut ngrams: Vec<u128> = words
        .windows(order)
        .filter(|window| !window.contains(&UNSEEN))
        .map(|window| window.iter().fold(0, |ngram, &word| ngram << WordId::BITS | u128::from(word)))
        .collect();
    ngrams.sort_unstable();
    ngrams.chunk_by(|a, b| a == b).filter_map(|same| Some((*same.first()?, same.len() as u64))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(hypothesis: &str, references: &[&str]) -> [u64; MAX_ORDER] {
        let references: Vec<Vec<&str>> = references.iter().map(|r| r.split(' ').collect()).collect();
        clipped_matches(&hypothesis.split(' ').collect::<Vec<_>>(), &references)
    }

    #[test]
    fn clips_repeated_words() {
        // Example 2 of Papineni et al. 2002: "the" counts twice, as in the first reference.
        let references = ["the cat is on the mat", "there is a cat on the mat"];
        assert_eq!(matches("the the the the the the the", &references), [2, 0, 0, 0]);
    }

    #[test]
    fn takes_the_largest_count_of_any_reference() {
        assert_eq!(matches("a a a b", &["a b b", "a a c"]), [3, 2, 0, 0]);
        assert_eq!(matches("a b a b a b", &["a b a b", "b a b a b x"]), [5, 4, 3, 2]);
    }

    #[test]
    fn unseen_words_match_nothing() {
        assert_eq!(matches("x y x y", &["a b"]), [0; 4]);
        assert_eq!(matches("a x b", &["a b x"]), [3, 0, 0, 0]);
    }
}
