//! Which words are of the source's language and which of the target's, learnt from the corpora themselves.
//!
//! Pairs whose sides are exchanged spoil these statistics. So pairs that look exchanged are counted the other way
//! round, and the statistics are taken anew, until no pair changes.

use std::collections::HashMap;

use unicode_script::Script;

use super::pair::{self, Scripts};
use crate::data::text::raw::RawLines;
use crate::rng::mix64;

/// The most pairs of a corpus that words and scripts are learnt from.
const LEARNT: usize = 100_000;
/// Rarer words give no evidence of a language.
const OFTEN: u32 = 5;
/// Words counted per line: one line that repeats a word a thousand times must not decide.
const OF_A_LINE: usize = 100;
/// Limit of one word's log-odds, in nats.
const MOST: f64 = 5.0;
/// Most rounds of turning pairs round.
const ROUNDS: usize = 8;
/// If a larger share of the pairs seems exchanged, both directions are taken to be intended.
const EXCHANGED: f64 = 0.35;

/// Pairs of all corpora.
#[derive(Default)]
pub struct Sample {
    numbers: HashMap<String, u32>,
    pairs: Vec<Pair>,
}

/// A pair of the sample.
struct Pair {
    /// A random number of its own.
    lot: u64,
    sides: [Sampled; 2],
}

/// A line of the sample: the numbers of its words, and its script.
struct Sampled {
    words: Box<[u32]>,
    script: Option<Script>,
}

/// Takes pairs of one corpus into a sample: all, or those with the lowest lots. (Every n-th pair would give a biased
/// sample if kinds of lines alternate.)
pub struct Sampler<'s> {
    sample: &'s mut Sample,
    /// Pairs of the corpora before.
    before: usize,
    /// Pairs of this one so far.
    seen: u64,
    /// The highest lot that is taken.
    highest: u64,
}

impl Sampler<'_> {
    /// Takes pairs of a window.
    pub fn add(&mut self, sides: &[RawLines; 2]) {
        let [source, target] = sides;
        for index in 0..source.len().min(target.len()) {
            let lot = mix64(self.seen);
            self.seen += 1;
            if lot > self.highest {
                continue;
            }
            if let [Ok(source), Ok(target)] = [source, target].map(|side| std::str::from_utf8(side.get(index))) {
                let sides = [source, target].map(|text| self.sample.sampled(text));
                self.sample.pairs.push(Pair { lot, sides });
            }
            if self.sample.pairs.len() - self.before > LEARNT {
                self.highest /= 2;
                let mut taken = self.sample.pairs.split_off(self.before);
                taken.retain(|pair| pair.lot <= self.highest);
                self.sample.pairs.append(&mut taken);
            }
        }
    }

    /// Leaves out the corpus: it cannot be read.
    pub fn discard(self) {
        self.sample.pairs.truncate(self.before);
    }

    /// The scripts of the corpus.
    pub fn scripts(self) -> Scripts {
        let pairs = &self.sample.pairs[self.before..];
        Scripts([0, 1].map(|side| pair::usual_script(pairs.iter().filter_map(|pair| pair.sides[side].script))))
    }
}

impl Sample {
    /// Begins to sample a corpus.
    pub fn sampler(&mut self) -> Sampler<'_> {
        let before = self.pairs.len();
        Sampler { sample: self, before, seen: 0, highest: u64::MAX }
    }

    fn sampled(&mut self, text: &str) -> Sampled {
        let number = |word| {
            let next = self.numbers.len() as u32;
            *self.numbers.entry(word).or_insert(next)
        };
        Sampled { words: words(text).take(OF_A_LINE).map(number).collect(), script: pair::script(text) }
    }

    /// How often each word is on either side, where some pairs are turned round.
    fn counts(&self, is_turned: &[bool]) -> Vec<[u32; 2]> {
        let mut counts = vec![[0; 2]; self.numbers.len()];
        for (pair, turned) in self.pairs.iter().zip(is_turned) {
            for (side, line) in pair.sides.iter().enumerate() {
                line.words.iter().for_each(|&word| counts[word as usize][side ^ usize::from(*turned)] += 1);
            }
        }
        counts
    }

    /// Which pairs seem exchanged.
    fn exchanged(&self, odds: &[f64]) -> Vec<bool> {
        let sum = |line: &Sampled| line.words.iter().map(|&word| odds[word as usize]).sum::<f64>();
        self.pairs.iter().map(|Pair { sides: [source, target], .. }| sum(source) < sum(target)).collect()
    }

    /// Learns the words of each side. If the corpora have both directions (`has_both`), no pair counts as exchanged.
    pub fn learn(self, has_both: bool) -> Words {
        let as_they_are = vec![false; self.pairs.len()];
        let mut is_turned = as_they_are.clone();
        let mut counts = self.counts(&as_they_are);
        for _ in 0..if has_both { 0 } else { ROUNDS } {
            let next = self.exchanged(&odds(&counts));
            if next == is_turned {
                break;
            }
            is_turned = next;
            counts = self.counts(&is_turned);
        }
        let exchanged = is_turned.iter().filter(|turned| **turned).count();
        if exchanged as f64 > EXCHANGED * self.pairs.len() as f64 {
            counts = self.counts(&as_they_are);
        }
        let odds = odds(&counts);
        let is_often = |number: u32| counts[number as usize].iter().sum::<u32>() >= OFTEN;
        let often = self.numbers.into_iter().filter(|(_, number)| is_often(*number));
        Words(often.map(|(word, number)| (word, odds[number as usize])).collect())
    }
}

/// Log-odds of words standing in the source rather than in the target.
fn odds(counts: &[[u32; 2]]) -> Vec<f64> {
    let totals = [0, 1].map(|side| counts.iter().map(|count| f64::from(count[side])).sum::<f64>());
    let share = |count: u32, total: f64| (f64::from(count) + 0.5) / (total + 1.0);
    counts.iter().map(|&[a, b]| (share(a, totals[0]) / share(b, totals[1])).ln().clamp(-MOST, MOST)).collect()
}

/// Evidence of a line's language from the words of the corpora.
#[derive(Debug)]
pub struct Words(HashMap<String, f64>);

impl Words {
    /// Mean log-odds, in nats, that a line's words belong to the source language rather than the target language;
    /// `None` if fewer than `least` words are known.
    pub(super) fn language(&self, text: &str, least: usize) -> Option<f64> {
        let known: Vec<f64> = words(text).filter_map(|word| self.0.get(&word).copied()).collect();
        (known.len() >= least).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }
}

/// Runs of letters, in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of words of two languages; `exchanged` of 100 have their sides exchanged.
    fn sample(exchanged: usize) -> Sample {
        let mut sample = Sample::default();
        let mut stream = crate::rng::Stream::new(1, "words");
        for i in 0..1000 {
            // Some words are the same in both.
            let mut line = |language: &str| -> String {
                let mut word = || match stream.below(5) {
                    0 => format!("name{} ", char::from(b'a' + stream.below(20) as u8)),
                    _ => format!("{language}{} ", char::from(b'a' + stream.below(20) as u8)),
                };
                (0..8).map(|_| word()).collect()
            };
            let mut sides = [line("in"), line("out")].map(|text| sample.sampled(&text));
            if i % 100 < exchanged {
                sides.reverse();
            }
            sample.pairs.push(Pair { lot: 0, sides });
        }
        sample
    }

    #[test]
    fn exchanged_pairs_do_not_blur_the_languages() {
        for exchanged in [0, 1, 10, 20, 30] {
            let words = sample(exchanged).learn(false);
            let of = |text| words.language(text, 1).unwrap();
            assert!(of("ina inb") > 3.0 && of("outa outb") < -3.0, "{exchanged}: {}", of("ina inb"));
            assert!(of("namea nameb namec").abs() < 1.0);
        }
        // Both directions are there: no word belongs to one side.
        for (exchanged, has_both) in [(50, false), (45, false), (30, true)] {
            let words = sample(exchanged).learn(has_both);
            assert!(words.language("ina inb outa", 1).unwrap().abs() < 1.5, "{exchanged}");
        }
        assert_eq!(sample(0).learn(false).language("unknown words", 1), None);
        assert_eq!(Sample::default().learn(false).language("a", 1), None);
    }
}
