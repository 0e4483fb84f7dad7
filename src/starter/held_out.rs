//! Pairs held out of the training text for validation.

use std::collections::HashMap;

use super::survey::Survey;
use crate::data::corpus::{Corpus, PairSource};
use crate::error::{Error, Result};
use crate::rng::{self, Permutation};

/// The most pairs held out …
const MOST: usize = 1000;
/// … and the share of a small corpus.
const SHARE: usize = 10;
/// The fewest whose score means anything.
const FEWEST: usize = 20;
/// Candidates for each pair that is wanted.
const CANDIDATES: usize = 20;

/// The indices of the held-out pairs, in order: drawn at random from those of which neither side, apart from case and
/// punctuation, is in another pair. If these are too few, pairs that share a side are held out together.
///
/// # Errors
/// There are too few.
pub(super) fn choose(corpus: &Corpus, survey: &Survey, seed: u64) -> Result<Vec<usize>> {
    let all = corpus.len();
    let wanted = MOST.min(survey.pairs / SHARE);
    if wanted < FEWEST {
        let what =
            format!("{all} pairs are too few to hold some out for validation: at least {} are needed", FEWEST * SHARE);
        let help = "name other text to validate on with --valid SOURCE TARGET, or add pairs";
        return Err(Error::failure(what).at(corpus.source().path()).help(help));
    }
    if survey.keys[0] == survey.keys[1] {
        let help = "name the text of the other language as the second file, or other text with --valid SOURCE TARGET";
        let what = "both files have the same text, apart from case and punctuation";
        return Err(Error::failure(what).at(corpus.source().path()).help(help));
    }
    let order = Permutation::new(all as u64, rng::key(seed, "held out", &[]));
    let candidates = (0..all).map(|index| order.get(index as u64) as usize);
    let candidates: Vec<usize> = candidates.take(CANDIDATES * MOST).filter(|&pair| is_good(survey, pair)).collect();
    let counts = [0, 1].map(|side| {
        let keys = &survey.keys[side];
        let mut counts: HashMap<u64, usize> = candidates.iter().map(|&pair| (keys[pair], 0)).collect();
        for key in keys {
            counts.entry(*key).and_modify(|count| *count += 1);
        }
        counts
    });
    let is_once = |pair: usize| (0..2).all(|side| counts[side].get(&survey.keys[side][pair]) == Some(&1));
    let mut chosen: Vec<usize> = candidates.into_iter().filter(|&pair| is_once(pair)).take(wanted).collect();
    if chosen.len() < FEWEST {
        let order = (0..all).map(|index| order.get(index as u64) as usize);
        chosen = groups(survey, order, wanted);
    }
    if chosen.len() < FEWEST {
        let error = Error::failure(format!(
            "only {} of {all} pairs can be held out for validation, and at least {FEWEST} are needed",
            chosen.len()
        ));
        let help = "no line of theirs may stay in the training text, and the sides of a pair must differ; name other \
                    text with --valid SOURCE TARGET";
        return Err(error.at(corpus.source().path()).help(help));
    }
    chosen.sort_unstable();
    Ok(chosen)
}

/// At most about `wanted` pairs, in small groups: of each, all pairs that share a side, also through others. `order`
/// has all pairs.
fn groups(survey: &Survey, order: impl Iterator<Item = usize>, wanted: usize) -> Vec<usize> {
    let all = survey.keys[0].len();
    // Of each pair, one before it in its group, or itself.
    let mut before: Vec<usize> = (0..all).collect();
    fn first(before: &mut [usize], mut pair: usize) -> usize {
        while before[pair] != pair {
            before[pair] = before[before[pair]];
            pair = before[pair];
        }
        pair
    }
    for keys in &survey.keys {
        let mut seen = HashMap::new();
        for (pair, key) in keys.iter().enumerate().filter(|(_, key)| **key != 0) {
            let other = *seen.entry(*key).or_insert(pair);
            let [one, two] = [other, pair].map(|pair| first(&mut before, pair));
            before[one.max(two)] = one.min(two);
        }
    }
    let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
    for pair in 0..all {
        members.entry(first(&mut before, pair)).or_default().push(pair);
    }
    let mut chosen = Vec::new();
    for pair in order {
        let is_small = |group: &Vec<usize>| group.len() <= (wanted / FEWEST).max(2) && chosen.len() < wanted;
        if let Some(group) = members.remove(&first(&mut before, pair)).filter(is_small)
            && group.iter().all(|&pair| is_good(survey, pair))
        {
            chosen.extend(group);
        }
    }
    chosen
}

/// Whether both sides have letters or digits, and differ.
fn is_good(survey: &Survey, pair: usize) -> bool {
    let [source, target] = [&survey.keys[0], &survey.keys[1]].map(|keys| keys[pair]);
    source != 0 && target != 0 && source != target
}
