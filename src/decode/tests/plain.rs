//! The searches written as plainly as possible: one sentence, no back-pointers, no early stops.

use super::super::toy::{END, Language};
use super::super::{Continuation, Ending, Hypothesis, LengthPenalty, SearchOptions, Sentence};

pub(super) fn hypothesis(
    tokens: &[u32],
    token_log_probs: &[f32],
    penalty: LengthPenalty,
    ending: Ending,
) -> Hypothesis {
    let log_prob = token_log_probs.iter().map(|&step| f64::from(step)).sum();
    let score = penalty.score(log_prob, token_log_probs.len());
    Hypothesis { tokens: tokens.to_vec(), token_log_probs: token_log_probs.to_vec(), log_prob, score, ending }
}

/// What the tokens of a language write: some only a part of a character, in bytes.
pub(super) fn written(token: u32) -> Vec<u8> {
    match token {
        5 => vec![0xE4],
        6 => vec![0x80],
        7 => vec![0xC3],
        8 => vec![0x81, b'b', 0xE5],
        _ => format!(" w{token}").into_bytes(),
    }
}

/// The text of each token, for phrases to avoid.
pub(super) fn text(token: u32) -> &'static str {
    match token {
        4 => " w4",
        5 => "x",
        6 => ",",
        7 => " w4 w9",
        8 => " w",
        9 => "4",
        10 => " ",
        _ => "",
    }
}

/// Whether a token ends or contains a phrase, as whole words as far as the text so far shows.
fn writes(before: &[u32], token: u32, phrase: &str) -> bool {
    let old: String = before.iter().map(|token| text(*token)).collect();
    let new = format!("{old}{}", text(token));
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let is_whole = |start: usize| {
        let (left, right) = (&new[..start], &new[start + phrase.len()..]);
        new[start..].starts_with(phrase)
            && !(is_letter(left.chars().next_back()) && is_letter(phrase.chars().next()))
            && !(is_letter(phrase.chars().next_back()) && is_letter(right.chars().next()))
            && start + phrase.len() > old.len()
    };
    (0..new.len().saturating_sub(phrase.len() - 1)).any(is_whole)
}

/// Whether tokens end with an incomplete character.
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
pub(super) struct Plain<'a> {
    pub language: &'a Language,
    pub options: &'a SearchOptions,
    pub sentence: &'a Sentence,
    /// Phrases to avoid.
    pub avoid: &'a [&'a str],
}

/// A phrase by its forms, in tokens.
pub(super) type Forms = Vec<Vec<u32>>;

/// Whether a word goes on from one token to the next.
type Joins<'a> = &'a dyn Fn(u32, u32) -> bool;

/// How many tokens of phrases are found: for a phrase that occurs as whole words, the number of its longest form; for
/// one whose beginning ends the tokens, that number without the missing tokens, and without those of phrases that would
/// occur no more if it went on.
pub(super) fn tokens_found(phrases: &[Forms], tokens: &[u32], joins: Joins<'_>) -> usize {
    let longest = |forms: &Forms| forms.iter().map(Vec::len).max().unwrap();
    let may_begin = |start: usize| start == 0 || !joins(tokens[start - 1], tokens[start]);
    let may_end = |end: usize| end == tokens.len() || !joins(tokens[end - 1], tokens[end]);
    let occurs = |forms: &Forms, end: &usize| {
        let is_here = |form: &Vec<u32>| tokens[..*end].ends_with(form) && may_begin(end - form.len());
        forms.iter().any(is_here) && may_end(*end)
    };
    // Those that occur often enough before an end.
    let found = |most: usize| -> Vec<bool> {
        let wanted = |index: usize| phrases[..=index].iter().filter(|other| **other == phrases[index]).count();
        let count = |forms: &Forms| (1..=most).filter(|end| occurs(forms, end)).count();
        (0..phrases.len()).map(|index| count(&phrases[index]) >= wanted(index)).collect()
    };
    let (now, before) = (found(tokens.len()), found(tokens.len().saturating_sub(1)));
    let of = |found: &[bool]| -> usize {
        phrases.iter().zip(found).filter(|(_, found)| **found).map(|(forms, _)| longest(forms)).sum()
    };
    let (whole, lost) = (of(&now), of(&now) - of(&before));
    let mut part = 0;
    for (forms, _) in phrases.iter().zip(&now).filter(|(_, found)| !**found) {
        for form in forms {
            for begun in 1..form.len().min(tokens.len() + 1) {
                if tokens.ends_with(&form[..begun]) && may_begin(tokens.len() - begun) {
                    let lost = if joins(form[begun - 1], form[begun]) { lost } else { 0 };
                    part = part.max(longest(forms).saturating_sub(form.len() - begun + lost));
                }
            }
        }
    }
    whole + part
}

impl Plain<'_> {
    /// What may follow these tokens.
    pub(super) fn after(&self, tokens: &[u32]) -> Vec<Continuation> {
        self.after_or(tokens, &|_| false)
    }

    /// As [`Self::after`], but some tokens may repeat an n-gram.
    fn after_or(&self, tokens: &[u32], may_repeat: &dyn Fn(u32) -> bool) -> Vec<Continuation> {
        let Sentence { min_length, demands, key, .. } = self.sentence;
        let n = self.options.no_repeat_ngram;
        let repeats = |token: u32| {
            let all = units(&[tokens, &[token]].concat());
            // What is only the beginning of a character repeats nothing yet.
            let is_whole = all.last().is_some_and(|unit| !is_beginning(unit));
            let ngrams: Vec<&[Vec<u32>]> = if n == 0 || !is_whole { Vec::new() } else { all.windows(n).collect() };
            ngrams.split_last().is_some_and(|(last, before)| before.contains(last))
        };
        let mut next = self.language.after(*key, tokens);
        let is_avoided = |token: u32| self.avoid.iter().any(|phrase| writes(tokens, token, phrase));
        next.retain(|c| match demands.prefix.get(tokens.len()) {
            Some(forced) => c.token == *forced,
            None if c.token == END => tokens.len() >= *min_length,
            None => (!repeats(c.token) || may_repeat(c.token)) && !is_avoided(c.token),
        });
        next
    }

    /// The hypothesis of these tokens, with all its numbers computed from scratch.
    pub(super) fn made(&self, tokens: &[u32], ending: Ending) -> Hypothesis {
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
    pub(super) fn beam(&self, groups: usize, width: usize, penalty: f64) -> Vec<Hypothesis> {
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
                for (rank, (prefix, token, log_prob, _)) in candidates.into_iter().enumerate() {
                    if live.len() == width {
                        break;
                    } else if token == END && rank < width {
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

    /// Grid beam search, run to the maximum length but for patience.
    pub(super) fn grid(&self, phrases: &[Forms], width: usize, joins: Joins<'_>) -> Vec<Hypothesis> {
        let all: usize = phrases.iter().map(|forms| forms.iter().map(Vec::len).max().unwrap()).sum();
        let mut beams = vec![Vec::new(); all + 1];
        beams[0].push((Vec::new(), 0.0));
        let mut ended: Vec<Hypothesis> = Vec::new();
        let best = |ended: &[Hypothesis]| {
            let mut best = ended.to_vec();
            best.sort_by(|a, b| b.score.total_cmp(&a.score));
            best.truncate(width);
            best
        };
        let enough = match self.options.patience {
            0.0 => usize::MAX,
            patience => (patience * width as f64).ceil() as usize,
        };
        for length in 1..=self.sentence.max_length {
            let mut candidates = vec![Vec::new(); all + 1];
            for (prefix, log_prob) in beams.iter().flatten() {
                let found = |tokens: &[u32]| tokens_found(phrases, tokens, joins);
                let finds_more = |token: u32| found(&[prefix, &[token][..]].concat()) > found(prefix);
                for next in self.after_or(prefix, &finds_more) {
                    let found = match next.token {
                        END => tokens_found(phrases, prefix, joins),
                        token => tokens_found(phrases, &[prefix, &[token][..]].concat(), joins),
                    };
                    if next.token != END || found == all {
                        candidates[found].push((prefix.clone(), next.token, log_prob + f64::from(next.log_prob)));
                    }
                }
            }
            if candidates.iter().all(Vec::is_empty) && ended.is_empty() {
                let fullest = beams.iter().rev().find(|beam| !beam.is_empty());
                let stuck = fullest.into_iter().flatten().map(|(tokens, _)| self.made(tokens, Ending::Stuck));
                return best(&stuck.collect::<Vec<_>>());
            }
            for (beam, mut candidates) in beams.iter_mut().zip(candidates) {
                // Stable, and the candidates come by row, then by token: ties keep that order.
                candidates.sort_by(|a, b| b.2.total_cmp(&a.2));
                beam.clear();
                for (rank, (prefix, token, log_prob)) in candidates.into_iter().enumerate() {
                    if beam.len() == width {
                        break;
                    } else if token == END && rank < width {
                        ended.push(self.made(&prefix, Ending::End));
                    } else if token != END {
                        beam.push(([prefix, vec![token]].concat(), log_prob));
                    }
                }
            }
            let worst = best(&ended).last().map_or(f64::NEG_INFINITY, |worst| worst.score);
            let score = |log_prob: f64| self.options.length_penalty.score(log_prob, length);
            let waits = all > 0 && beams.iter().flatten().any(|(_, log_prob)| score(*log_prob) > worst);
            if ended.len() >= enough && length < self.sentence.max_length && !waits {
                beams.iter_mut().for_each(Vec::clear);
            }
        }
        let full = beams.pop().unwrap();
        let cut = match full.is_empty() && ended.is_empty() {
            true => beams.into_iter().rev().find(|beam| !beam.is_empty()).unwrap_or_default(),
            false => full,
        };
        ended.extend(cut.iter().map(|(tokens, _)| self.made(tokens, Ending::MaxLength)));
        best(&ended)
    }

    /// Takes the most probable token at each step.
    pub(super) fn greedy(&self) -> Hypothesis {
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
