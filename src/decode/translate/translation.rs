//! The translations of a line, joined from those of its parts.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::decode::Ending;
use crate::decode::source::Source;

/// The translations of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The best first, or in the order they were drawn; at least one.
    pub n_best: Vec<Candidate>,
    /// Whether the source was cut to fit the model's positions.
    pub source_cut: bool,
    /// The sources of its parts, as the first model reads them: one unless the line was split; none for a blank line.
    pub parts: Vec<Source>,
    /// The tokens with which the translation of each part but the first had to begin; they are not among its tokens.
    pub later_prefix: Vec<u32>,
}

impl Translation {
    /// The translation of a blank line: a blank line.
    pub(super) fn blank() -> Self {
        Self { n_best: vec![Candidate::default()], source_cut: false, parts: Vec::new(), later_prefix: Vec::new() }
    }

    /// The translation of a line from those of its parts, at least one. If `ranked`, the candidates of each part begin
    /// with the best, and the line gets the `most` best combinations, or all. Samples have no order: the n-th of the
    /// line joins the n-th of each part.
    pub(super) fn from_parts(parts: Vec<PartTranslation>, ranked: bool, most: usize) -> Self {
        let scores = |part: &PartTranslation| part.n_best.iter().map(|candidate| candidate.score).collect::<Vec<f64>>();
        let choices = if ranked {
            best_choices(&parts.iter().map(scores).collect::<Vec<_>>(), most)
        } else {
            let drawn = parts.iter().map(|part| part.n_best.len()).min().unwrap_or(0);
            (0..drawn.min(most)).map(|number| vec![number; parts.len()]).collect()
        };
        let joined = |choice: Vec<usize>| {
            let chosen = choice.into_iter().zip(&parts).map(|(i, part)| part.n_best[i].clone());
            chosen.reduce(Candidate::joined).unwrap_or_default()
        };
        let n_best = choices.into_iter().map(joined).collect();
        Self {
            n_best,
            source_cut: parts.iter().any(|part| part.source_cut),
            later_prefix: parts.last().map(|part| part.forced.clone()).unwrap_or_default(),
            parts: parts.into_iter().map(|part| part.source).collect(),
        }
    }

    /// The first, and best, translation.
    pub fn best(&self) -> &Candidate {
        &self.n_best[0]
    }
}

/// The translations of a part of a line.
pub(super) struct PartTranslation {
    pub(super) source: Source,
    /// Whether any of the models had to cut it.
    pub(super) source_cut: bool,
    /// At least one.
    pub(super) n_best: Vec<Candidate>,
    /// The tokens that they had to begin with and that they lack: an earlier part has them.
    pub(super) forced: Vec<u32>,
}

/// The best ways to choose one item of each list, by the sum of the items' scores: for each, the index in every list.
/// The best way comes first, and among equals the one with the better items in the earlier lists; `most` of them, or as
/// many as there are. Every list begins with its best score.
///
/// The lists are joined one by one; no more than the `most` best of a beginning are needed.
fn best_choices(lists: &[Vec<f64>], most: usize) -> Vec<Vec<usize>> {
    let mut sums = vec![0.0];
    let mut choices = vec![Vec::new()];
    for list in lists {
        let pairs = best_pairs(&sums, list, most);
        choices = pairs.iter().map(|&(first, next)| [&choices[first][..], &[next]].concat()).collect();
        sums = pairs.iter().map(|&(first, next)| sums[first] + list[next]).collect();
    }
    choices
}

/// A pair of indices, one of each of two lists.
struct Pair {
    sum: f64,
    indices: (usize, usize),
}

impl Ord for Pair {
    /// The best sum is the greatest, among equals the one with the smaller indices.
    fn cmp(&self, other: &Self) -> Ordering {
        self.sum.total_cmp(&other.sum).then(Reverse(self.indices).cmp(&Reverse(other.indices)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// The `most` best pairs of an index of `first` and one of `next`, by the sum of their scores. Both lists fall, so a
/// predecessor of each pair is at least as good. The next best pair is therefore a successor of one already taken
/// (Huang and Chiang 2005, "Better k-best Parsing", algorithm 2).
fn best_pairs(first: &[f64], next: &[f64], most: usize) -> Vec<(usize, usize)> {
    let pair = |i: usize, j: usize| Some(Pair { sum: first.get(i)? + next.get(j)?, indices: (i, j) });
    let mut open: BinaryHeap<Pair> = pair(0, 0).into_iter().collect();
    let mut best = Vec::new();
    while let Some(Pair { indices: (i, j), .. }) = open.pop().filter(|_| best.len() < most) {
        best.push((i, j));
        open.extend(pair(i, j + 1));
        // Every pair has one predecessor, so that none is found twice.
        if j == 0 {
            open.extend(pair(i + 1, 0));
        }
    }
    best
}

/// One translation of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The text, on one line.
    pub text: String,
    /// Its tokens, without the end.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, and that of the end if there is one.
    pub token_log_probs: Vec<f32>,
    /// The sum of these.
    pub log_prob: f64,
    /// The score under the length penalty; of a line in parts, the sum of their scores.
    pub score: f64,
    /// Why it stopped; of a line in parts, the first reason other than the end token.
    pub ending: Ending,
    /// The index in `tokens` at which each part after the first begins.
    pub joints: Vec<usize>,
    /// Whether a phrase is missing that it had to contain.
    pub lacks_phrases: bool,
}

impl Default for Candidate {
    /// An empty, finished translation.
    fn default() -> Self {
        let (text, tokens, token_log_probs, joints) = Default::default();
        let (log_prob, score, ending) = (0.0, 0.0, Ending::End);
        Self { text, tokens, token_log_probs, log_prob, score, ending, joints, lacks_phrases: false }
    }
}

impl Candidate {
    /// Appends the translation of the next part.
    fn joined(mut self, next: Self) -> Self {
        if let (Some(before), Some(after)) = (self.text.chars().next_back(), next.text.chars().next())
            && has_space_between(before, after)
        {
            self.text.push(' ');
        }
        self.text += &next.text;
        self.joints.push(self.tokens.len());
        self.tokens.extend(next.tokens);
        self.token_log_probs.extend(next.token_log_probs);
        self.log_prob += next.log_prob;
        self.score += next.score;
        self.lacks_phrases |= next.lacks_phrases;
        if self.finished() {
            self.ending = next.ending;
        }
        self
    }

    /// Whether it ended with the end token.
    pub fn finished(&self) -> bool {
        self.ending == Ending::End
    }
}

/// Whether to put a space between two sentences, given the last character of one and the first of the next: not between
/// Chinese or Japanese text, nor after their punctuation.
pub(in crate::decode) fn has_space_between(before: char, after: char) -> bool {
    let is_east_asian = |c: char| {
        matches!(c,
            '\u{3000}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
    };
    !(is_east_asian(before) && (is_east_asian(after) || !before.is_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of these lists with its score, the best first.
    fn all_choices(lists: &[Vec<f64>]) -> Vec<(f64, Vec<usize>)> {
        let mut all = vec![(0.0, Vec::new())];
        for list in lists {
            let with = |(sum, choice): &(f64, Vec<usize>)| {
                let (sum, choice) = (*sum, choice.clone());
                list.iter().enumerate().map(move |(i, score)| (sum + score, [&choice[..], &[i]].concat()))
            };
            all = all.iter().flat_map(with).collect();
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all
    }

    #[test]
    fn the_best_choices_are_those_of_enumeration() {
        let mut stream = crate::rng::Stream::new(3, "choices");
        for round in 0..300 {
            let lists: Vec<Vec<f64>> = (0..1 + stream.below(4))
                .map(|_| {
                    // Coarse scores tie often.
                    let coarse = round % 2 == 0;
                    let score = |x: u64| if coarse { -((x % 4) as f64) / 2.0 } else { -(x as f64) / 1e3 };
                    let mut list: Vec<f64> = (0..1 + stream.below(5)).map(|_| score(stream.below(1000))).collect();
                    list.sort_by(|a, b| b.total_cmp(a));
                    list
                })
                .collect();
            let all = all_choices(&lists);
            for most in [1, 2, 7, 1000] {
                let found = best_choices(&lists, most);
                assert_eq!(found.len(), most.min(all.len()), "{lists:?}");
                let sum = |choice: &Vec<usize>| choice.iter().zip(&lists).fold(0.0, |sum, (i, list)| sum + list[*i]);
                let sums: Vec<f64> = found.iter().map(sum).collect();
                let expected: Vec<f64> = all.iter().take(most).map(|(sum, _)| *sum).collect();
                assert_eq!(sums, expected, "{lists:?}");
                let distinct: std::collections::HashSet<_> = found.iter().collect();
                assert_eq!(distinct.len(), found.len());
            }
        }
        // Nine times two: 512 combinations. The second best changes only one part.
        let lists = vec![vec![-0.7, -1.5]; 9];
        let found = best_choices(&lists, 1000);
        assert_eq!(found.len(), 512);
        assert!(found[1..10].iter().all(|choice| choice.iter().sum::<usize>() == 1));
        // Far more combinations than could be listed.
        assert_eq!(best_choices(&vec![vec![-0.7, -1.5]; 200], 5).len(), 5);
    }

    /// All details of a combination come from its parts.
    #[test]
    fn a_line_in_parts_has_the_best_combinations() {
        let candidate = |text: &str, tokens: &[u32], score: f64, ending| Candidate {
            text: text.to_owned(),
            tokens: tokens.to_vec(),
            token_log_probs: vec![-0.5; tokens.len() + 1],
            log_prob: 2.0 * score,
            score,
            ending,
            joints: Vec::new(),
            lacks_phrases: text == "d",
        };
        let part = |part: usize, n_best: Vec<Candidate>| PartTranslation {
            source: Source { part, ..Source::default() },
            source_cut: part == 1,
            n_best,
            forced: Vec::new(),
        };
        let parts = || {
            let first = vec![candidate("a", &[1], -1.0, Ending::End), candidate("b", &[2, 3], -3.0, Ending::MaxLength)];
            let second = vec![candidate("c", &[4], -1.0, Ending::End), candidate("d", &[5], -1.5, Ending::End)];
            vec![part(0, first), part(1, second), part(2, vec![candidate("e", &[6], -1.0, Ending::End)])]
        };
        let ranked = Translation::from_parts(parts(), true, 3);
        let texts: Vec<&str> = ranked.n_best.iter().map(|candidate| candidate.text.as_str()).collect();
        assert_eq!(texts, ["a c e", "a d e", "b c e"]);
        assert_eq!(ranked.n_best.iter().map(|it| it.lacks_phrases).collect::<Vec<_>>(), [false, true, false]);
        let third = &ranked.n_best[2];
        assert_eq!((&third.tokens[..], &third.joints[..]), (&[2, 3, 4, 6][..], &[2, 3][..]));
        assert_eq!((third.token_log_probs.len(), third.score, third.log_prob), (7, -5.0, -10.0));
        assert_eq!(third.ending, Ending::MaxLength);
        assert!(ranked.source_cut && ranked.parts.len() == 3);
        assert_eq!(Translation::from_parts(parts(), true, 100).n_best.len(), 4);
        // Samples stay in the order in which they were drawn.
        let drawn = Translation::from_parts(parts(), false, 3);
        assert_eq!(drawn.n_best.len(), 1);
        assert_eq!(drawn.best().text, "a c e");
    }

    /// What is wrong with any part is wrong with the line.
    #[test]
    fn a_line_ends_as_its_first_part_that_did_not_end_well() {
        let joined = |endings: &[Ending]| {
            let parts = endings.iter().map(|ending| Candidate { ending: *ending, ..Candidate::default() });
            parts.reduce(Candidate::joined).unwrap().ending
        };
        for (endings, whole) in [
            ([Ending::End, Ending::End, Ending::End], Ending::End),
            ([Ending::End, Ending::MaxLength, Ending::End], Ending::MaxLength),
            ([Ending::Stuck, Ending::End, Ending::MaxLength], Ending::Stuck),
            ([Ending::End, Ending::End, Ending::Stuck], Ending::Stuck),
        ] {
            assert_eq!(joined(&endings), whole, "{endings:?}");
        }
    }

    #[test]
    fn sentences_are_joined_as_their_script_has_it() {
        let join = |parts: [&str; 2]| {
            let [first, next] = parts.map(|text| Candidate { text: text.to_owned(), ..Candidate::default() });
            first.joined(next).text
        };
        for (parts, whole) in [
            (["Ein Satz.", "Noch einer."], "Ein Satz. Noch einer."),
            (["我走了。", "你来了。"], "我走了。你来了。"),
            (["猫です。", "OK。"], "猫です。OK。"),
            (["是 OK", "猫です"], "是 OK 猫です"),
            (["猫", "は"], "猫は"),
            (["나는 간다.", "너는 온다."], "나는 간다. 너는 온다."),
            (["ฉันไป", "คุณมา"], "ฉันไป คุณมา"),
            (["", "a"], "a"),
            (["a", ""], "a"),
        ] {
            assert_eq!(join(parts), whole);
        }
    }
}
