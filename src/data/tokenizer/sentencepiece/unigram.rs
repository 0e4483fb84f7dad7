//! The likeliest segmentation under a unigram language model (Kudo 2018).
//!
//! Scores are summed as SentencePiece's optimised encoder does, in single precision and from the left, so that ties
//! fall alike: of equals that end at one position the one that begins first wins, and a sum that has grown large
//! restarts at 0.
//!
//! [`Unigram::draw`] draws a segmentation instead, as subword regularisation does.

use super::Segment;
use super::trie::Trie;
use crate::rng::Stream;

/// Beyond this, sums begin again.
const LARGE: f32 = 100_000.0;
/// What an unknown character costs, below the worst piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Score of each byte of a user-defined piece after the first; other pieces have negative scores.
const USER_DEFINED: f64 = 0.1;

/// A unigram model.
pub(super) struct Unigram {
    /// The pieces that text can have, with their ids.
    pub(super) trie: Trie,
    /// The score of each id.
    pub(super) scores: Vec<Score>,
    pub(super) worst: f32,
    pub(super) unknown: u32,
}

/// How a piece counts.
#[derive(Clone, Copy)]
pub(super) enum Score {
    LogProbability(f32),
    /// Better than any other way to write the same text.
    UserDefined,
    /// Never chosen.
    Unused,
}

/// The best path to a position in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f32,
    start: usize,
    id: u32,
}

impl Unigram {
    /// The pieces of a normalised line.
    pub(super) fn segment(&self, line: &str) -> Vec<Segment> {
        let mut ends: Vec<Option<Best>> = vec![None; line.len() + 1];
        // No piece has ended beyond this position yet.
        let mut furthest = 0;
        for (start, character) in line.char_indices() {
            let mut so_far = ends.get(start).copied().flatten().map_or(0.0, |best| best.score);
            if so_far.abs() > LARGE {
                let ahead = ends.get_mut(start..=furthest).unwrap_or_default();
                ahead.iter_mut().flatten().for_each(|best| best.score -= so_far);
                so_far = 0.0;
            }
            self.each_edge(line, start, character, |length, score, id| {
                furthest = furthest.max(start + length);
                let score = score + so_far;
                let Some(end) = ends.get_mut(start + length) else { return };
                if end.is_none_or(|best| score > best.score) {
                    *end = Some(Best { score, start, id });
                }
            });
        }
        let mut segments = Vec::new();
        let mut end = line.len();
        while let Some(Some(best)) = ends.get(end).filter(|_| end > 0) {
            segments.push(Segment { start: best.start, end, id: best.id });
            end = best.start;
        }
        segments.reverse();
        segments
    }

    /// Calls `edge` with the length, score and id of each piece that begins at `start`, where this character is; if
    /// none is as short as it, also for the character as unknown.
    #[inline]
    fn each_edge(&self, line: &str, start: usize, character: char, mut edge: impl FnMut(usize, f32, u32)) {
        let single = character.len_utf8();
        let mut has_single = false;
        let rest = line.as_bytes().get(start..).unwrap_or_default();
        self.trie.prefixes(rest, |length, id| {
            let score = match self.scores.get(id as usize) {
                Some(Score::LogProbability(score)) => *score,
                Some(Score::UserDefined) => ((length - 1) as f64 * USER_DEFINED) as f32,
                Some(Score::Unused) | None => return,
            };
            edge(length, score, id);
            has_single |= length == single;
        });
        if !has_single {
            edge(single, self.worst - UNKNOWN_PENALTY, self.unknown);
        }
    }

    /// A segmentation of a normalised line, drawn with a probability that is proportional to e^(alpha · its score): of
    /// all segmentations, or of the `nbest` with the highest scores if that is not 0.
    pub(super) fn draw(&self, line: &str, alpha: f64, nbest: usize, stream: &mut Stream) -> Vec<Segment> {
        let mut segments = if nbest == 0 {
            self.draw_of_all(line, alpha, stream)
        } else {
            self.draw_of_best(line, alpha, nbest, stream)
        };
        segments.reverse();
        segments
    }

    /// Forward, the sums of all segmentations up to each position; back from the end, one piece after the other.
    fn draw_of_all(&self, line: &str, alpha: f64, stream: &mut Stream) -> Vec<Segment> {
        // For each end: the pieces, with the logarithm of the sum of all ways that end with them.
        let mut ends: Vec<Vec<(f64, Segment)>> = (0..=line.len()).map(|_| Vec::new()).collect();
        for (start, character) in line.char_indices() {
            let so_far = if start == 0 { 0.0 } else { log_sum(ends[start].iter().map(|(sum, _)| *sum)) };
            self.each_edge(line, start, character, |length, score, id| {
                let end = start + length;
                ends[end].push((so_far + alpha * f64::from(score), Segment { start, end, id }));
            });
        }
        let mut segments = Vec::new();
        let mut end = line.len();
        while end > 0 {
            let logarithms: Vec<f64> = ends[end].iter().map(|(sum, _)| *sum).collect();
            let Some((_, segment)) = ends[end].get(drawn(&logarithms, stream)) else { break };
            segments.push(*segment);
            end = segment.start;
        }
        segments
    }

    /// The best ways to each position, the best one first; then one of those of the whole line.
    fn draw_of_best(&self, line: &str, alpha: f64, nbest: usize, stream: &mut Stream) -> Vec<Segment> {
        // For each end: scores, last pieces, and which of the ways to where these begin.
        let mut ends: Vec<Vec<(f64, Segment, usize)>> = (0..=line.len()).map(|_| Vec::new()).collect();
        let keep_best = |ways: &mut Vec<(f64, Segment, usize)>| {
            // Equals stay in the order of their beginnings.
            ways.sort_by(|(a, _, _), (b, _, _)| b.total_cmp(a));
            ways.truncate(nbest);
        };
        for (start, character) in line.char_indices() {
            keep_best(&mut ends[start]);
            let before: Vec<f64> = match start {
                0 => vec![0.0],
                _ => ends[start].iter().map(|(score, _, _)| *score).collect(),
            };
            self.each_edge(line, start, character, |length, score, id| {
                let end = start + length;
                let way = |(rank, before): (usize, &f64)| (before + f64::from(score), Segment { start, end, id }, rank);
                ends[end].extend(before.iter().enumerate().map(way));
                // Many pieces may end at one place.
                if ends[end].len() > 4 * nbest {
                    keep_best(&mut ends[end]);
                }
            });
        }
        let mut end = line.len();
        keep_best(&mut ends[end]);
        let logarithms: Vec<f64> = ends[end].iter().map(|(score, _, _)| alpha * score).collect();
        let mut rank = drawn(&logarithms, stream);
        let mut segments = Vec::new();
        while let Some((_, segment, before)) = ends[end].get(rank).filter(|_| end > 0) {
            segments.push(*segment);
            (end, rank) = (segment.start, *before);
        }
        segments
    }
}

/// log Σ e^x; -∞ of nothing.
fn log_sum(logarithms: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = logarithms.clone().fold(f64::NEG_INFINITY, f64::max);
    if largest.is_finite() { largest + logarithms.map(|x| (x - largest).exp()).sum::<f64>().ln() } else { largest }
}

/// A number, drawn with a probability that is proportional to e to the power of its entry.
fn drawn(logarithms: &[f64], stream: &mut Stream) -> usize {
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logarithms.iter().map(|x| (x - largest).exp()).collect();
    let mut left = stream.next_f64() * weights.iter().sum::<f64>();
    let reaches = |weight: &f64| {
        left -= weight;
        left < 0.0
    };
    weights.iter().position(reaches).unwrap_or(weights.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Pieces with their scores, of which text is made.
    fn model(pieces: &[(&str, f32)]) -> Unigram {
        let keys = pieces.iter().zip(1..).map(|((piece, _), id)| (piece.as_bytes(), id)).collect();
        let scores = [Score::Unused].into_iter().chain(pieces.iter().map(|(_, score)| Score::LogProbability(*score)));
        let worst = pieces.iter().map(|(_, score)| *score).fold(0.0, f32::min);
        Unigram { trie: Trie::new(keys), scores: scores.collect(), worst, unknown: 0 }
    }

    /// All ways to split a line, with their scores.
    fn ways(model: &Unigram, line: &str) -> Vec<(f64, Vec<u32>)> {
        let Some(character) = line.chars().next() else { return vec![(0.0, Vec::new())] };
        let mut all = Vec::new();
        model.each_edge(line, 0, character, |length, score, id| {
            for (rest, ids) in ways(model, &line[length..]) {
                all.push((f64::from(score) + rest, [vec![id], ids].concat()));
            }
        });
        all
    }

    #[test]
    fn segmentations_are_drawn_as_often_as_their_probabilities_say() {
        let model = model(&[("a", -3.0), ("ab", -4.0), ("b", -3.5), ("ba", -4.5), ("aba", -6.0), ("é", -5.0)]);
        let line = "ababaéx";
        let mut all = ways(&model, line);
        all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        assert!(all.len() > 8);
        const DRAWS: u64 = 20_000;
        for (alpha, nbest) in [(1.0, 0), (0.2, 0), (0.0, 0), (0.5, 3), (0.1, 5), (1.0, 1), (0.3, 1000)] {
            let possible = if nbest == 0 { &all[..] } else { &all[..nbest.min(all.len())] };
            let sum: f64 = possible.iter().map(|(score, _)| (alpha * score).exp()).sum();
            let mut found: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
            for key in 0..DRAWS {
                let segments = model.draw(line, alpha, nbest, &mut Stream::from_key(key));
                assert_eq!(segments.iter().map(|s| &line[s.start..s.end]).collect::<String>(), line);
                *found.entry(segments.iter().map(|segment| segment.id).collect()).or_default() += 1;
            }
            assert!(found.keys().all(|ids| possible.iter().any(|(_, known)| known == ids)), "{alpha} {nbest}");
            for (score, ids) in possible {
                let p = (alpha * score).exp() / sum;
                let (count, mean) = (found.get(ids).copied().unwrap_or(0) as f64, p * DRAWS as f64);
                let sigma = (mean * (1.0 - p)).sqrt();
                assert!((count - mean).abs() <= 5.0 * sigma + 1e-9, "{alpha} {nbest} {ids:?}: {count}, not {mean}");
            }
        }
    }

    #[test]
    fn the_best_of_one_is_the_likeliest_segmentation() {
        let model = model(&[("a", -3.0), ("ab", -4.0), ("b", -3.5), ("bab", -4.25)]);
        let ids = |segments: Vec<Segment>| segments.iter().map(|segment| segment.id).collect::<Vec<_>>();
        for line in ["", "a", "abab", "x", "xaxbabx", "babababab"] {
            for key in 0..10 {
                let mut stream = Stream::from_key(key);
                assert_eq!(ids(model.draw(line, 0.1, 1, &mut stream)), ids(model.segment(line)), "{line}");
            }
        }
    }
}
