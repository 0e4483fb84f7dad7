//! The merge loop of byte-pair encoding, and BPE-dropout.
//!
//! Without dropout the result is the library's: of all adjacent pairs that have a merge, the one learned first is
//! merged first, and the leftmost of equals. With BPE-dropout (Provilkov et al. 2020, algorithm 1) every candidate is
//! passed over with probability p at every step, and a word is done when no candidate is left or all were passed over.
//! (The library's dropout is weaker: it also draws for pairs that no longer exist, and the first pair that it would not
//! pass over gives all others of that step another chance.)

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::rng::Stream;

/// Longest word, in symbols, whose candidates are searched one by one.
const SHORT: usize = 32;

/// No neighbour.
const NONE: usize = usize::MAX;

/// The merges: a pair of ids to its rank (0 was learned first) and the id that replaces the pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Merges {
    table: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
    /// Whether a step merges all occurrences of a pair, as subword-nmt does, instead of one.
    together: bool,
}

/// A candidate: rank, position of the left symbol, the id of the result. Ordered by rank, then from the left.
type Candidate = Reverse<(u32, usize, u32)>;

/// A symbol of the word being merged, in a doubly linked list. One swallowed by its left neighbour is dead.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: usize,
    next: usize,
    alive: bool,
}

/// The buffers of [`Merges::apply`], kept from word to word.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Candidate>,
    /// Candidates of the next step.
    next: Vec<Candidate>,
}

/// The coin tosses of BPE-dropout in one word. They depend on key, word index and toss index, and on nothing else (not
/// on threads, nor on what was encoded before).
pub(super) struct Coins {
    stream: Stream,
    threshold: u64,
}

impl Coins {
    /// The tosses for word number `word` of the line with this `key`; heads with probability `dropout`.
    pub(super) fn new(key: u64, word: u64, dropout: f32) -> Self {
        // 32 bits decide, so the threshold for p = 1 is one above the largest.
        let threshold = (f64::from(dropout) * 4_294_967_296.0) as u64;
        Self { stream: Stream::from_key(key).child(word), threshold }
    }

    fn toss(&mut self) -> bool {
        self.stream.next_u64() >> 32 < self.threshold
    }
}

impl Merges {
    /// No merges yet. Each step will merge all occurrences of a pair.
    pub(super) fn together() -> Self {
        Self { together: true, ..Self::default() }
    }

    /// Adds the merge of `left` and `right` into `result`; false if the pair had one. Of two merges of one pair the
    /// later counts, as in the library.
    pub(super) fn insert(&mut self, left: u32, right: u32, rank: u32, result: u32) -> bool {
        self.table.insert(pair(left, right), (rank, result)).is_none()
    }

    /// Merges the symbols of one word and appends the results to `out`. Takes O(n log n) for n symbols.
    pub(super) fn apply(&self, word: &[u32], coins: Option<Coins>, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if coins.is_none() && word.len() <= SHORT && !self.together {
            self.apply_short(word, out);
        } else {
            self.apply_long(word, coins, scratch, out);
        }
    }

    /// [`Self::apply`] for at most [`SHORT`] symbols: searching so few candidates for the first one takes less time
    /// than a queue.
    fn apply_short(&self, word: &[u32], out: &mut Vec<u32>) {
        let (mut ids, mut ranks, mut results) = ([0; SHORT], [u32::MAX; SHORT], [0; SHORT]);
        let mut length = word.len();
        ids[..length].copy_from_slice(word);
        let look_up =
            |ids: &[u32; SHORT], at: usize| *self.table.get(&pair(ids[at], ids[at + 1])).unwrap_or(&(u32::MAX, 0));
        for at in 1..length {
            (ranks[at - 1], results[at - 1]) = look_up(&ids, at - 1);
        }
        while length > 1 {
            let mut at = 0;
            for other in 1..length - 1 {
                at = if ranks[other] < ranks[at] { other } else { at };
            }
            if ranks[at] == u32::MAX {
                break;
            }
            ids[at] = results[at];
            ids.copy_within(at + 2..length, at + 1);
            ranks.copy_within(at + 1..length, at);
            results.copy_within(at + 1..length, at);
            length -= 1;
            // The pairs in which the new symbol is the left and the right one.
            for left in [at, at.wrapping_sub(1)] {
                if left.saturating_add(1) < length {
                    (ranks[left], results[left]) = look_up(&ids, left);
                }
            }
        }
        out.extend_from_slice(&ids[..length]);
    }

    fn apply_long(&self, word: &[u32], mut coins: Option<Coins>, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { symbols, queue, next } = scratch;
        symbols.clear();
        queue.clear();
        next.clear();
        symbols.extend(word.iter().enumerate().map(|(i, &id)| Symbol {
            id,
            previous: i.wrapping_sub(1),
            next: if i + 1 < word.len() { i + 1 } else { NONE },
            alive: true,
        }));
        queue.extend((0..word.len()).filter_map(|at| self.candidate(symbols, at)));

        // The rank of the pair that this step merges, once it has merged one.
        let mut merging = None;
        loop {
            let is_over = |rank| !self.together || queue.peek().is_none_or(|Reverse((next, ..))| *next != rank);
            if merging.is_some_and(is_over) {
                // What was passed over is a candidate again at the next step.
                queue.extend(next.drain(..));
                merging = None;
            }
            let Some(top) = queue.pop() else { break };
            let Reverse((rank, at, result)) = top;
            // The symbols may have changed since it was queued: then it is no candidate, and no coin is tossed for it.
            match self.candidate(symbols, at) {
                Some(Reverse((_, _, now))) if now == result => {}
                _ => continue,
            }
            if coins.as_mut().is_some_and(Coins::toss) {
                next.push(top);
                continue;
            }
            merging = Some(rank);
            let right = symbols[at].next;
            let after = symbols[right].next;
            symbols[right].alive = false;
            symbols[at].id = result;
            symbols[at].next = after;
            if after != NONE {
                symbols[after].previous = at;
            }
            let before = symbols[at].previous;
            next.extend(if before == NONE { None } else { self.candidate(symbols, before) });
            next.extend(self.candidate(symbols, at));
        }
        out.extend(symbols.iter().filter(|symbol| symbol.alive).map(|symbol| symbol.id));
    }

    /// The merge of the symbol at `at` with the one after it, if there is one.
    fn candidate(&self, symbols: &[Symbol], at: usize) -> Option<Candidate> {
        let left = symbols.get(at).filter(|symbol| symbol.alive)?;
        let right = symbols.get(left.next)?;
        let &(rank, result) = self.table.get(&pair(left.id, right.id))?;
        Some(Reverse((rank, at, result)))
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Hashes one u64; the table is looked up several times a character, and its keys come from no adversary.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9E37_79B9_7F4A_7C15_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// a, b, c, d = 0..4; ab = 4, cd = 5, bc = 6, abcd = 7; ranks in that order.
    fn merges() -> Merges {
        let mut merges = Merges::default();
        for (rank, (left, right, result)) in [(0, 1, 4), (2, 3, 5), (1, 2, 6), (4, 5, 7)].into_iter().enumerate() {
            merges.insert(left, right, rank as u32, result);
        }
        merges
    }

    fn apply(word: &[u32], coins: Option<Coins>) -> Vec<u32> {
        let mut out = Vec::new();
        merges().apply(word, coins, &mut Scratch::default(), &mut out);
        out
    }

    #[test]
    fn merges_in_the_order_learned() {
        assert_eq!(apply(&[0, 1, 2, 3], None), [7]);
        assert_eq!(apply(&[0, 1, 2], None), [4, 2]);
        assert_eq!(apply(&[1, 2, 3], None), [1, 5]);
        assert_eq!(apply(&[2, 1, 2, 0, 1], None), [2, 6, 4]);
        assert!(apply(&[], None).is_empty());
        assert_eq!(apply(&[3], None), [3]);
    }

    /// Both ways of merging agree on words of every length.
    #[test]
    fn short_words_are_merged_like_long_ones() {
        let mut merges = Merges::default();
        let mut stream = crate::rng::Stream::new(3, "merges");
        for (rank, result) in (0..400).zip(5..) {
            let [left, right] = [0; 2].map(|_| stream.below(u64::from(result)) as u32);
            merges.insert(left, right, rank, result);
        }
        for length in 0..=SHORT {
            for _ in 0..200 {
                let word: Vec<u32> = (0..length).map(|_| stream.below(5) as u32).collect();
                let (mut short, mut long) = (vec![9], vec![9]);
                merges.apply_short(&word, &mut short);
                merges.apply_long(&word, None, &mut Scratch::default(), &mut long);
                assert_eq!(short, long, "{word:?}");
            }
        }
    }

    #[test]
    fn equal_ranks_go_from_the_left() {
        let mut merges = Merges::default();
        merges.insert(0, 0, 0, 1);
        let mut out = Vec::new();
        merges.apply(&[0, 0, 0], None, &mut Scratch::default(), &mut out);
        assert_eq!(out, [1, 0]);
    }

    #[test]
    fn dropout_has_the_stated_probability() {
        // "ab" stays apart exactly when its only candidate is passed over.
        let trials = 20_000;
        for dropout in [0.1_f32, 0.5, 0.9] {
            let apart = (0..trials).filter(|&key| apply(&[0, 1], Some(Coins::new(key, 0, dropout))).len() == 2).count();
            // Five standard deviations of a binomial.
            let sigma = (trials as f64 * f64::from(dropout) * f64::from(1.0 - dropout)).sqrt();
            assert!((apart as f64 - trials as f64 * f64::from(dropout)).abs() < 5.0 * sigma, "{dropout}: {apart}");
        }
        assert_eq!(apply(&[0, 1, 2, 3], Some(Coins::new(1, 0, 1.0))), [0, 1, 2, 3]);
        assert_eq!(apply(&[0, 1, 2, 3], Some(Coins::new(1, 0, 0.0))), [7]);
    }

    /// Adds to `outcomes` what algorithm 1 of the paper makes of a word, each with its probability times `probability`.
    fn enumerate(merges: &Merges, word: &[u32], p: f64, probability: f64, outcomes: &mut HashMap<Vec<u32>, f64>) {
        let candidate = |at: usize| {
            let &(rank, result) = merges.table.get(&pair(word[at], word[at + 1]))?;
            Some((rank, at, result))
        };
        let mut candidates: Vec<_> = (1..word.len()).filter_map(|right| candidate(right - 1)).collect();
        candidates.sort_unstable();
        // Each is passed over with probability p, and the first of the others is merged.
        let mut passed_over = probability;
        for (_, at, result) in candidates {
            let merged = [&word[..at], &[result], &word[at + 2..]].concat();
            enumerate(merges, &merged, p, passed_over * (1.0 - p), outcomes);
            passed_over *= p;
        }
        *outcomes.entry(word.to_vec()).or_default() += passed_over;
    }

    /// Also with merges that exclude each other, and with merges of merged symbols.
    #[test]
    fn dropout_gives_every_outcome_as_often_as_the_paper_s_algorithm() {
        let mut merges = merges();
        merges.insert(4, 2, 4, 8);
        merges.insert(3, 0, 5, 9);
        let trials = 20_000_u32;
        for (word, dropout) in [
            (&[0, 1, 2, 3][..], 0.1_f32),
            (&[0, 1, 2, 3], 0.5),
            (&[1, 2, 3, 0, 1], 0.3),
            (&[0, 1, 2, 3, 0, 1, 2], 0.1),
            (&[0, 1, 2, 3, 0, 1, 2], 0.6),
        ] {
            let (mut expected, mut counts) = (HashMap::new(), HashMap::<_, u32>::new());
            enumerate(&merges, word, f64::from(dropout), 1.0, &mut expected);
            let mut scratch = Scratch::default();
            for key in 0..trials {
                let mut out = Vec::new();
                merges.apply(word, Some(Coins::new(key.into(), 3, dropout)), &mut scratch, &mut out);
                *counts.entry(out).or_default() += 1;
            }
            assert!(counts.keys().all(|outcome| expected.contains_key(outcome)), "{word:?} {counts:?}");
            for (outcome, probability) in expected {
                let count = counts.get(&outcome).copied().unwrap_or_default();
                let mean = f64::from(trials) * probability;
                // Five standard deviations of a binomial, which of a rare outcome is nearly a Poisson's: two more.
                let most = 5.0 * (mean * (1.0 - probability)).sqrt() + 2.0;
                assert!((f64::from(count) - mean).abs() < most, "{word:?} {dropout} {outcome:?}: {count}, not {mean}");
            }
        }
    }

    #[test]
    fn words_have_coins_of_their_own() {
        let tosses = |key, word| {
            let mut coins = Coins::new(key, word, 0.5);
            (0..64).fold(0_u64, |bits, _| bits << 1 | u64::from(coins.toss()))
        };
        assert_ne!(tosses(1, 0), tosses(1, 1));
        assert_ne!(tosses(1, 0), tosses(2, 0));
        assert_eq!(tosses(7, 9), tosses(7, 9));
    }
}
