//! The searches written as plainly as possible: one sentence, no back-pointers, no early stops.

use super::super::toy::{END, Language};
use super::super::{Continuation, Ending, Hypothesis, LengthPenalty, SearchOptions, Sentence};

pub fn hypothesis(tokens: &[u32], token_log_probs: &[f32], penalty: LengthPenalty, ending: Ending) -> Hypothesis {
    let log_prob = token_log_probs.iter().map(|&step| f64::from(step)).sum();
    let score = penalty.score(log_prob, token_log_probs.len());
    Hypothesis { tokens: tokens.to_vec(), token_log_probs: token_log_probs.to_vec(), log_prob, score, ending }
}

/// What the tokens of a language write: some only a part of a character, in bytes.
pub fn written(token: u32) -> Vec<u8> {
    match token {
        5 => vec![0xE4],
        6 => vec![0x80],
        7 => vec![0xC3],
        8 => vec![0x81, b'b', 0xE5],
        _ => format!(" w{token}").into_bytes(),
    }
}

/// Whether tokens write something of which the last character is not whole.
fn is_beginning(unit: &[u32]) -> bool {
    let bytes: Vec<u8> = unit.iter().flat_map(|token| written(*token)).collect();
    let mut rest = &bytes[..];
    while let Err(error) = std::str::from_utf8(rest) {
        let Some(invalid) = error.error_len() else { return true };
        rest = &rest[error.valid_up_to() + invalid..];
    }
    false
}

/// Tokens, those of one character together.
fn units(tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut units: Vec<Vec<u32>> = Vec::new();
    for &token in tokens {
        match units.last_mut().filter(|unit| is_beginning(unit) && written(token)[0] & 0xC0 == 0x80) {
            Some(unit) => unit.push(token),
            None => units.push(vec![token]),
        }
    }
    units
}

/// A sentence of a language, to be searched.
pub struct Plain<'a> {
    pub language: &'a Language,
    pub options: &'a SearchOptions,
    pub sentence: &'a Sentence,
}

impl Plain<'_> {
    /// What may follow these tokens.
    pub fn after(&self, tokens: &[u32]) -> Vec<Continuation> {
        let Sentence { min_length, prefix, key, .. } = self.sentence;
        let n = self.options.no_repeat_ngram;
        let repeats = |token: u32| {
            let all = units(&[tokens, &[token]].concat());
            // What is only the beginning of a character repeats nothing yet.
            let is_whole = all.last().is_some_and(|unit| !is_beginning(unit));
            let ngrams: Vec<&[Vec<u32>]> = if n == 0 || !is_whole { Vec::new() } else { all.windows(n).collect() };
            ngrams.split_last().is_some_and(|(last, before)| before.contains(last))
        };
        let mut next = self.language.after(*key, tokens);
        next.retain(|c| match prefix.get(tokens.len()) {
            Some(forced) => c.token == *forced,
            None if c.token == END => tokens.len() >= *min_length,
            None => !repeats(c.token),
        });
        next
    }

    /// The hypothesis of these tokens, with all its numbers computed from scratch.
    pub fn made(&self, tokens: &[u32], ending: Ending) -> Hypothesis {
        let last = (ending == Ending::End).then_some(END);
        let all = tokens.iter().copied().chain(last).enumerate();
        let steps: Vec<f32> = all
            .map(|(i, token)| {
                let next = self.language.after(self.sentence.key, &tokens[..i]);
                next.iter().find(|c| c.token == token).expect("a token of the language").log_prob
            })
            .collect();
        hypothesis(tokens, &steps, self.options.length_penalty, ending)
    }

    /// Beam search in groups, always run to the maximum length.
    pub fn beam(&self, groups: usize, width: usize, penalty: f64) -> Vec<Hypothesis> {
        let mut live = vec![vec![(Vec::new(), 0.0)]; groups];
        let mut all = vec![Vec::new(); groups];
        let enough = match self.options.patience {
            0.0 => usize::MAX,
            patience => (patience * width as f64).ceil() as usize,
        };
        for length in 1..=self.sentence.max_length {
            let mut taken: Vec<u32> = Vec::new();
            for (live, all) in live.iter_mut().zip(&mut all) {
                let mut candidates = Vec::new();
                for (prefix, log_prob) in &*live {
                    for next in self.after(prefix) {
                        let log_prob = log_prob + f64::from(next.log_prob);
                        let times = taken.iter().filter(|t| **t == next.token).count();
                        candidates.push((prefix.clone(), next.token, log_prob, log_prob - penalty * times as f64));
                    }
                }
                // Stable, and the candidates come by rank, then by token: ties keep that order.
                candidates.sort_by(|a, b| b.3.total_cmp(&a.3));
                if candidates.is_empty() && all.is_empty() {
                    all.extend(live.iter().map(|(tokens, _)| self.made(tokens, Ending::Stuck)));
                }
                live.clear();
                for (place, (prefix, token, log_prob, _)) in candidates.into_iter().enumerate() {
                    if live.len() == width {
                        break;
                    } else if token == END && place < width {
                        all.push(self.made(&prefix, Ending::End));
                    } else if token != END {
                        taken.push(token);
                        live.push(([prefix, vec![token]].concat(), log_prob));
                    }
                }
                if all.len() >= enough && length < self.sentence.max_length {
                    live.clear();
                }
            }
        }
        let mut found: Vec<Hypothesis> = Vec::new();
        for (live, mut all) in live.iter().zip(all) {
            all.extend(live.iter().map(|(tokens, _)| self.made(tokens, Ending::MaxLength)));
            all.sort_by(|a, b| b.score.total_cmp(&a.score));
            all.truncate(width);
            for one in all {
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found
    }

    /// Takes the most probable token at each step.
    pub fn greedy(&self) -> Hypothesis {
        let mut tokens = Vec::new();
        while tokens.len() < self.sentence.max_length {
            let next = self.after(&tokens);
            let Some(best) = next.iter().rev().max_by(|a, b| a.log_prob.total_cmp(&b.log_prob)) else {
                return self.made(&tokens, Ending::Stuck);
            };
            if best.token == END {
                return self.made(&tokens, Ending::End);
            }
            tokens.push(best.token);
        }
        self.made(&tokens, Ending::MaxLength)
    }
}
